"""Host steps: what a GPU has no kernel for runs as CPU code between its blocks, and nobody is left unaware of it.

Invariant: a node is a host step only where the backend says that it lacks a kernel for its op; every one is named in
the program, and with it in the artifact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aot.backend import BACKENDS
from aot.backend.base import Backend
from aot.errors import UnsupportedError
from aot.ir import Graph, Node
from aot.partition import FlowChart, partition, set_apart
from aot.program import HostStep
from aot.target import Target


@dataclass(frozen=True)
class Placed:
    """A program's graphs for one target: `chart` is None where the one graph of `blocks` needs no flow."""

    graph: Graph
    chart: FlowChart | None
    blocks: tuple[Graph, ...]
    host: tuple[HostStep, ...] = ()

    def is_host(self, block: int) -> bool:
        """Whether a block is CPU code."""
        return self.chart is not None and block in self.chart.apart


def host_target() -> tuple[Backend, Target]:
    """What the code of host steps is for: any CPU that the CPU backend has code for."""
    backend = BACKENDS["cpu"]
    return backend, backend.target(backend.default_architectures[-1])


def place_host_steps(
    graph: Graph, chart: FlowChart | None, blocks: Sequence[Graph], backend: Backend, target: Target, *, allowed: bool
) -> Placed:
    """The graphs with the nodes that the backend lacks kernels for in blocks of their own.

    `blocks` are what the CORE passes made: of `chart`, or of `graph` alone. Raises UnsupportedError, naming nodes and
    ops, where there are such nodes and none is allowed.
    """

    def lacks(node: Node) -> bool:
        return bool(backend.lacks(node))

    wanted = [node for block in blocks for node in block.nodes if lacks(node)]
    if not wanted:
        return Placed(graph, chart, tuple(blocks))
    if not allowed:
        lines = [f"  {node.op}: {', '.join(node.locs)} ({backend.lacks(node)})" for node in wanted]
        raise UnsupportedError(
            "\n".join((f"these would be host steps on {target.name}, which --no-host-steps forbids:", *lines)),
            hint="Allow host steps, or build for the CPU: --target cpu.",
        )
    if chart is None:
        (graph,) = blocks
        made = partition(graph, lacks)
    else:
        made = set_apart(chart, blocks, lacks)
    host = tuple(
        HostStep(number, node.op, backend.lacks(node), node.locs)
        for number in sorted(made.apart)
        for node in made.blocks[number].nodes
    )
    return Placed(graph, made, made.blocks, host)


__all__ = ["Placed", "host_target", "place_host_steps"]
