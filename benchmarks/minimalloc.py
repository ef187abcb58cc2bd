"""Measures the buffer planner on the instances of benchmarks/minimalloc: peak over lower bound, nodes, CPU seconds.

    python benchmarks/minimalloc.py [--nodes N] [--greedy] [INSTANCE ...]

Instances are letters, A to K by default. Every plan is checked. The offsets depend on the node budget alone, never on
the machine's speed; the seconds are this machine's.
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path

from aot.offsets import DEFAULT_NODE_BUDGET, Block, check, lower_bound_bytes, place

INSTANCES = Path(__file__).parent / "minimalloc"


def read_instance(path: Path) -> list[Block]:
    """The blocks of a CSV file with the columns id, lower, upper, size."""
    with path.open(newline="") as file:
        return [
            Block(int(row["lower"]), int(row["upper"]), int(row["size"]), row["id"]) for row in csv.DictReader(file)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the buffer planner on the minimalloc instances.")
    parser.add_argument("instances", nargs="*", metavar="INSTANCE", help="letters A to K (default: all)")
    parser.add_argument("--nodes", type=int, default=DEFAULT_NODE_BUDGET, help="search nodes for each (%(default)s)")
    parser.add_argument("--greedy", action="store_true", help="greedy plans only")
    options = parser.parse_args()
    budget = 0 if options.greedy else options.nodes

    print(f"{'':2}{'blocks':>7}{'bound':>10}{'peak':>10}{'ratio':>8}{'proved':>8}{'nodes':>9}{'CPU s':>8}  method")
    total_s = 0.0
    for path in sorted(INSTANCES.glob("*.csv")):
        letter = path.name.split(".")[0]
        if options.instances and letter not in options.instances:
            continue
        blocks = read_instance(path)
        start = time.process_time()
        placement = place(blocks, node_budget=budget)
        cpu_s = time.process_time() - start
        check(blocks, placement.offsets)
        total_s += cpu_s
        bound = lower_bound_bytes(blocks)
        print(
            f"{letter:2}{len(blocks):7}{bound:10}{placement.peak_bytes:10}{placement.peak_bytes / bound:8.4f}"
            f"{'yes' if placement.proved else 'no':>8}{placement.nodes:9}{cpu_s:8.2f}  {placement.method}"
        )
    print(f"{total_s:.2f} CPU s in all")


if __name__ == "__main__":
    main()
