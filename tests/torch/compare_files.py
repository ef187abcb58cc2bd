"""Whether programs give the same graph through a saved .pt2 file as in memory; nothing is built.

Much quicker than building: what is known of a program in memory then holds of its file too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aot.errors import UnsupportedError
from aot.frontend import load
from aot.frontend.bindings import Bindings
from aot.frontend.torch_program import open_program
from aot.text import graph_digest
from tests.torch.suites import Case, Importer, Outcome, brief, bytes_of, decomposed, exported, fault_of_reading

Seen = tuple[str, tuple[str, ...]]  # the graph's digest, weights included, "" without a graph; what is refused


def compared(program: Any, see: Callable[[Any], Seen], *, core: bool = False) -> tuple[str, str]:
    """(verdict, reason): "pass" where both ways are the same, "fail" where not.

    `see` takes a program as it was exported. "no export": PyTorch cannot save the program, take it to core ops, or
    read it again; "unsupported": refused in memory, and by another reason in the file.
    """
    try:
        saved = bytes_of(program)
    except Exception as error:  # whatever PyTorch raises
        return "no export", f"PyTorch does not save it: {brief(error)}"
    try:
        in_memory = see(program)
    except Exception as error:
        return "no export", f"in memory: {brief(error)}"
    try:
        in_file = see(open_program(saved)[0])
    except Exception as error:
        if isinstance(error, UnsupportedError) and not in_memory[0]:
            return "unsupported", brief(error)
        fault = fault_of_reading(saved, core=core)
        return ("no export", fault) if fault else ("fail", f"read: {brief(error)}")
    if in_file == in_memory:
        return "pass", ""
    return "fail", f"in memory {' '.join(in_memory[1]) or 'a graph'}, in the file {' '.join(in_file[1]) or 'another'}"


class Comparer:
    """Compares cases, many as one program; in halves where these differ. `core`: as of a Runner."""

    def __init__(self, size: int = 48, *, core: bool = False) -> None:
        self.size, self.core = size, core

    def run(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """The outcomes, in the order of the cases."""
        for start in range(0, len(cases), self.size):
            outcomes = [Outcome(case) for case in cases[start : start + self.size]]
            self._compare(outcomes)
            yield from outcomes

    def _compare(self, outcomes: Sequence[Outcome]) -> None:
        try:
            program = exported([outcome.case for outcome in outcomes])
        except Exception as error:  # whatever PyTorch raises
            verdict, reason = "no export", brief(error)
        else:
            verdict, reason = compared(program, self._see, core=self.core)
        if verdict == "pass" or len(outcomes) == 1:
            for outcome in outcomes:
                outcome.settle(verdict, reason)
            return
        half = len(outcomes) // 2
        self._compare(outcomes[:half])
        self._compare(outcomes[half:])

    def _see(self, program: Any) -> Seen:
        importer = Importer(decomposed(program, core=self.core), Bindings(None))
        graph = importer.run()
        return "" if graph is None else graph_digest(graph), tuple(sorted(map(" ".join, importer.refused)))


def seen_whole(program: Any) -> Seen:
    """As `aotc build` sees a program: all of it is supported, or none."""
    try:
        return graph_digest(load(program)), ()
    except UnsupportedError as error:
        return "", (brief(error),)
