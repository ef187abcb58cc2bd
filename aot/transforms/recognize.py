"""Finds what exporters spell out: activations, softmax, norms, attention.

A recognized op names its meaning, so that a backend can do it in one kernel and in the best order.
Invariant: the new node carries the names of every node that it replaces.
"""

from __future__ import annotations

from aot.ir import Graph, Level
from aot.passes import Context, transform
from aot.pattern import rewrite
from aot.transforms.fold import fold_node
from aot.transforms.recognize_activations import ACTIVATION_RULES
from aot.transforms.recognize_attention import ATTENTION_RULES
from aot.transforms.recognize_norms import NORM_RULES

RECOGNIZE_RULES = (*ACTIVATION_RULES, *NORM_RULES, *ATTENTION_RULES)


@transform(takes=Level.CORE, gives=Level.CORE, rules=(rule.name for rule in RECOGNIZE_RULES))
def recognize(graph: Graph, context: Context) -> Graph:
    """Replaces the spelled-out forms of known functions by their ops."""
    return rewrite(graph, RECOGNIZE_RULES, context, fold=fold_node, exact=context.options.exact)
