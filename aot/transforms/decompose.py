"""Replaces ops that the backend has no kernel for by simpler ones, as their entries in the table say.

ROW ops stay: they are lowered through the same decomposition, but inside one kernel. Invariant: no
node of a decomposed op is left, and the new nodes carry its names.
"""

from __future__ import annotations

from collections.abc import Sequence

from aot.builder import Builder
from aot.errors import UnsupportedError
from aot.ir import Graph, Level, Value
from aot.ops import OPS, Kind
from aot.passes import BackendInfo, Context, transform
from aot.pattern import Match, Op, Rule, rewrite
from aot.transforms.fold import fold_node

# No backend has kernels for these.
ALWAYS = frozenset(("batch_norm", "reduce_mean", "conv_transpose", "lstm", "gru", "rnn"))
_INSIDE_KERNELS = frozenset((Kind.ROW,))


@transform(takes=Level.CORE, gives=Level.CORE)
def decompose(graph: Graph, context: Context) -> Graph:
    """Writes ops without a kernel in terms of those that have one."""
    wanted = decomposed_ops(context.backend)
    entry = Rule(
        "decompose",
        Op(wanted),
        _replacement,
        measure=lambda nodes, view: sum(1.0 for node in nodes if node.op in wanted),
        doc="An op becomes simpler ones.",
        leaves_copies=True,
    )
    result = rewrite(graph, (entry,), _Unconditional(context), fold=fold_node)
    for node in result.nodes:
        if node.op in wanted:
            raise UnsupportedError(f"{node.op} cannot be written in simpler ops here", where=node.where)
    return result


class _Unconditional:
    """The context without bisection: what a backend cannot emit must go."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def allow(self, rule: str, where: str = "") -> bool:
        return True

    def refuse(self, rule: str, where: str, reason: str) -> None:
        self.context.refuse(rule, where, reason)


def decomposed_ops(backend: BackendInfo | None) -> frozenset[str]:
    """The ops that are decomposed for a backend; without one, those that no backend has kernels for."""
    wanted = set(ALWAYS)
    if backend is not None:
        wanted |= {name for name in backend.decomposes if name in OPS}
        wanted |= {
            name
            for name, definition in OPS.items()
            if definition.kind not in backend.kinds and definition.kind not in _INSIDE_KERNELS
        }
    return frozenset(name for name in wanted if OPS[name].decompose is not None)


def _replacement(b: Builder, m: Match) -> Sequence[Value]:
    definition = OPS[m.root.op]
    assert definition.decompose is not None
    return definition.decompose(b, m.root.attrs, m.root.inputs)
