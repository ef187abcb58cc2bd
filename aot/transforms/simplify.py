"""Rewrites a graph to a cheaper one of the same meaning.

Runs the rules of normalization too, since one simplification makes room for another. Invariant: the
outputs are the same function of the inputs, up to rounding, and to the bit under the option `exact`.
"""

from __future__ import annotations

from aot.ir import Graph, Level
from aot.passes import Context, transform
from aot.pattern import rewrite
from aot.transforms.fold import fold_node
from aot.transforms.normalize import NORMALIZE_RULES
from aot.transforms.simplify_batches import BATCH_RULES
from aot.transforms.simplify_concats import CONCAT_RULES
from aot.transforms.simplify_indices import INDEX_RULES
from aot.transforms.simplify_linear import LINEAR_RULES
from aot.transforms.simplify_reshapes import RESHAPE_RULES
from aot.transforms.simplify_transposes import TRANSPOSE_RULES

SIMPLIFY_RULES = (
    *NORMALIZE_RULES,
    *LINEAR_RULES,
    *INDEX_RULES,
    *BATCH_RULES,
    *CONCAT_RULES,
    *RESHAPE_RULES,
    *TRANSPOSE_RULES,
)


@transform(takes=Level.CORE, gives=Level.CORE, rules=(rule.name for rule in SIMPLIFY_RULES))
def simplify(graph: Graph, context: Context) -> Graph:
    """Folds constants into weights, cancels moves of data, and drops what does nothing."""
    return rewrite(graph, SIMPLIFY_RULES, context, fold=fold_node, exact=context.options.exact)
