"""Guards of a torch.export program: what PyTorch found that the sizes of the inputs must meet.

PyTorch keeps them as lines of Python over `L['x'].size()[0]`, which it runs before the exported program. Here they are
parsed, never run. Most say again what the shapes and bounds of the inputs say; the others become relations of the
graph.

Invariant: a relation that is left out is either said by the inputs' types, or PyTorch's own assumption that no size is
0 or 1, on which a compiled program does not rely. What is no relation is computed and held in every run; what cannot be
read is named in a note.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import numpy as np

from aot import dims as dimension
from aot.builder import Builder
from aot.dims import Dim, DimExpr, Symbol
from aot.errors import AotError, ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import data_sizes
from aot.frontend.bindings import small_sizes
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_asserts import hold
from aot.frontend.torch_guard_values import GuardValues
from aot.frontend.torch_sizes import SizeReader, scaled
from aot.ir import Relation, Value

_ARITHMETIC: Mapping[type, Callable[[Dim, Dim], Dim]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: dimension.floordiv,
    ast.Mod: dimension.mod,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Dim]] = {
    "max": dimension.maximum,
    "min": dimension.minimum,
    "int": lambda size: size,
}
SHOWN_SIZES = 4096  # of a symbol, that show where a condition holds that is no arithmetic of whole numbers
LARGEST_POWER = 8
LARGEST_ASSUMED = 64  # sizes that a relation of PyTorch's assumption may refuse
LONGEST_GUARD = 20_000  # characters; a parsed expression of more would be no size


_ASSUMED: Mapping[str, tuple[int, ...]] = {"!=": (0, 1), ">=": (2,), ">": (1,)}
"""By sign, the numbers on the right that say of an extent on the left that it is not 0, or not 1."""


class _Unreadable(Exception):
    """A guard of a form that is not followed."""


def relations_of(
    program: Any, sizes: SizeReader, inputs: Mapping[str, Sequence[Dim] | Dim], builder: KnownBuilder
) -> tuple[tuple[Relation, ...], list[str]]:
    """The relations that the guards of a program ask for beyond its inputs' types, and notes on those not read.

    `inputs`: the shape of each input of the graph, or of a number its dim, by name. A guard that is no relation becomes
    a condition that the builder's graph computes. Raises ModelError for a guard that never holds.
    """
    code = list(dict.fromkeys(getattr(program, "_guards_code", None) or ()))
    if not code:
        return (), []
    reader = _Reader(inputs, _sources(program))

    def size_of(tree: ast.expr) -> Value | None:
        size = reader.extent(tree)
        return None if size is None else data_sizes.number(builder, size)

    values = GuardValues(builder, size_of)
    found: dict[Relation, None] = {}
    notes: list[str] = []
    assumed: set[Dim] | None = None
    for text in code:
        try:
            relations = list(reader.relations(text))
        except (_Unreadable, UnsupportedError, ArithmeticError) as error:
            try:
                with builder.at(f"PyTorch's guard {text}"):
                    hold(builder, values.truth(ast.parse(text, mode="eval").body))
            except (_Unreadable, UnsupportedError, SyntaxError, ValueError, RecursionError, MemoryError):
                notes.append(f"PyTorch's guard {text} is not checked: {error}")
            continue
        for relation in relations:
            known = relation.known()
            if known is None and relation.sign != "==":
                assumed = _extents(program, sizes) if assumed is None else assumed
                known = _is_assumed(relation, assumed) or None
            if known is False:
                raise ModelError(
                    f"with the sizes that the program is built for, PyTorch's guard never holds: {text}",
                    hint="Leave these sizes open or give others by --dim, or export the program again.",
                )
            if known is None:
                found[relation] = None
    return tuple(found), notes


def _is_assumed(relation: Relation, extents: set[Dim]) -> bool:
    """Whether a relation says that extents are not 0 or 1: of one, or wherever a symbol breaks it, of any."""
    spare = relation.left - relation.right
    if any(spare + number in extents for number in _ASSUMED[relation.sign]):
        return True
    linear = dimension.linear_symbol(spare)
    if linear is None:
        return False
    symbol, scale, offset = linear
    size, rest = divmod(-offset, scale)
    if relation.sign == "!=":
        breaking = range(size, size + (not rest))
    else:  # the sizes below the first that meets it
        breaking = range(symbol.lo, size + bool(rest or relation.sign == ">"))
    own = [extent for extent in extents if dimension.symbols_of(extent) == (symbol,)]
    return len(breaking) <= LARGEST_ASSUMED and all(
        any(dimension.evaluate(extent, {symbol.name: size}) in (0, 1) for extent in own)
        for size in breaking
        if size >= symbol.lo and size % symbol.divisor == 0
    )


def _extents(program: Any, sizes: SizeReader) -> set[Dim]:
    """Extents of the program's tensors, and products of their last ones: counts of elements, and strides."""
    found: set[Dim] = set()
    for node in program.graph.nodes:
        for value in _tensors(node.meta.get("val")):
            product: Dim = 1
            for extent in reversed(value.shape):
                size = sizes.given(extent)
                if size is None:
                    break
                product = product * size
                found.update((size, product))
    return found


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "shape") and hasattr(value, "dtype"):
        yield value


def _sources(program: Any) -> Mapping[str, str]:
    """The placeholder behind each of the module's arguments, as guards name it: `L['x']`, `L['pair'][0]`."""
    from torch.utils import _pytree as pytree

    call = program.module_call_graph[0].signature
    names = list(getattr(call, "forward_arg_names", None) or ())
    leaves = pytree.tree_unflatten(list(range(call.in_spec.num_leaves)), call.in_spec)
    placed = {}
    users = list(program.graph_signature.user_inputs)
    for path, number in pytree.tree_flatten_with_path(leaves)[0]:
        is_keyword, first, rest = bool(path[0].idx), path[1], path[2:]
        if is_keyword:
            base = f"L[{first.key!r}]"
        elif first.idx < len(names):
            base = f"L[{names[first.idx]!r}]"
        else:
            continue  # of *args, whose name the program does not hold
        placed[ast.unparse(ast.parse(base + pytree.keystr(rest), mode="eval"))] = str(users[number])
    return placed


class _Reader:
    """Guards as relations of dims."""

    def __init__(self, inputs: Mapping[str, Sequence[Dim] | Dim], sources: Mapping[str, str]) -> None:
        self.inputs = inputs
        self.sources = sources

    def relations(self, text: str) -> Iterator[Relation]:
        """What a line says. Raises _Unreadable."""
        if len(text) > LONGEST_GUARD:
            raise _Unreadable(f"it has {len(text)} characters")
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _Unreadable("it is not Python") from error
        try:
            found = list(self._condition(tree))
        except RecursionError as error:
            raise _Unreadable("it is too deep") from error
        except (_Unreadable, UnsupportedError, ArithmeticError):
            shown = self._shown(tree)
            if shown is None:
                raise
            found = shown
        yield from found

    def _shown(self, tree: ast.expr) -> list[Relation] | None:
        """What a condition on one symbol says: the range of sizes at which it holds.

        Small sizes show it, and some of every magnitude; None where these do not show one range.
        """
        subscripts = [part for part in ast.walk(tree) if isinstance(part, ast.Subscript)]
        dims = [size for part in subscripts if (size := self.extent(part)) is not None]
        symbols = {symbol for dim in dims for symbol in dimension.symbols_of(dim)}
        if len(symbols) != 1:
            return None
        (symbol,) = symbols
        first = -(-symbol.lo // symbol.divisor) * symbol.divisor
        small = [first + number * symbol.divisor for number in range(SHOWN_SIZES)]
        large = [(small[-1] + factor * symbol.divisor) << power for power in range(28) for factor in (1, 3)]
        small, large = ([size for size in sizes if symbol.hi is None or size <= symbol.hi] for sizes in (small, large))
        truth = self._truth(tree, symbol, [*small, *large])
        holding = [size for size, holds in zip(small, truth, strict=False) if holds]
        if not holding or len(holding) != (holding[-1] - holding[0]) // symbol.divisor + 1:
            return None
        is_open = holding[-1] == small[-1]
        if any(holds != is_open for holds in truth[len(small) :]):
            return None
        found = [Relation(symbol.dim, ">=", holding[0])] if holding[0] != small[0] else []
        return found if is_open else [*found, Relation(holding[-1], ">=", symbol.dim)]

    def _truth(self, tree: ast.expr, symbol: Symbol, sizes: Sequence[int]) -> list[bool]:
        """Whether a condition holds at each of the sizes of its symbol; no answers where it cannot be computed."""
        builder = Builder()

        def extents(part: ast.expr) -> Value | None:
            extent = self.extent(part)
            if extent is None:
                return None
            return builder.const(np.array([dimension.evaluate(extent, {symbol.name: size}) for size in sizes]))

        try:
            graph = builder.finish((GuardValues(builder, extents).truth(tree),))
            (found,) = evaluate(graph, [])
        except (AotError, _Unreadable, ArithmeticError):
            return []
        truth: list[bool] = np.broadcast_to(found, len(sizes)).tolist()
        return truth

    def _condition(self, tree: ast.expr) -> Iterator[Relation]:
        if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
            for part in tree.values:
                yield from self._condition(part)
        elif isinstance(tree, ast.BoolOp):
            parts = [list(self._condition(part)) for part in tree.values]
            if not any(all(relation.known() for relation in part) for part in parts):
                yield from _weakest(parts)
        elif isinstance(tree, ast.Compare):
            sides = [self._size(side) for side in (tree.left, *tree.comparators)]
            for left, sign, right in zip(sides, tree.ops, sides[1:], strict=False):
                yield _relation(left, sign, right)
        else:
            raise _Unreadable(f"a condition of kind {type(tree).__name__}")

    def _size(self, tree: ast.expr) -> Dim:
        if isinstance(tree, ast.Constant) and type(tree.value) is int:
            return tree.value
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -1 * self._size(tree.operand)
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Pow):
            power = tree.right.value if isinstance(tree.right, ast.Constant) else None
            if type(power) is int and 0 <= power <= LARGEST_POWER:
                return dimension.product([self._size(tree.left)] * power)
        elif isinstance(tree, ast.BinOp) and type(tree.op) in _ARITHMETIC:
            return _ARITHMETIC[type(tree.op)](self._size(tree.left), self._size(tree.right))
        elif isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id in _CALLS and tree.args:
            return _CALLS[tree.func.id](*map(self._size, tree.args))
        elif isinstance(tree, ast.Call) and ast.unparse(tree.func) == "math.trunc" and len(tree.args) == 1:
            return self._scaled(tree.args[0])
        elif (size := self.extent(tree)) is not None:
            return size
        raise _Unreadable(f"the size {ast.unparse(tree)[:80]}")

    def _scaled(self, tree: ast.expr) -> Dim:
        """`1.5 * torch.sym_float(size)`, rounded down."""
        if isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult):
            factor = tree.left.value if isinstance(tree.left, ast.Constant) else None
            number = tree.right
            if isinstance(number, ast.Call) and ast.unparse(number.func) == "torch.sym_float" and number.args:
                if isinstance(factor, float) and factor > 0:
                    return scaled(self._size(number.args[0]), factor)
        raise _Unreadable(f"the size math.trunc({ast.unparse(tree)[:80]})")

    def extent(self, tree: ast.expr) -> Dim | None:
        """The size that a subscript is; None for another expression. Raises _Unreadable for that of no input."""
        if _is_extent(tree):
            return self._extent(tree)
        number = self.inputs.get(self.sources.get(ast.unparse(tree), "")) if isinstance(tree, ast.Subscript) else None
        return number if isinstance(number, int | DimExpr) else None

    def _extent(self, tree: ast.Subscript) -> Dim:
        """`L['x'].size()[0]`."""
        assert isinstance(tree.value, ast.Call) and isinstance(tree.value.func, ast.Attribute)
        source = ast.unparse(tree.value.func.value)
        shape = self.inputs.get(self.sources.get(source, ""))
        axis = tree.slice.value if isinstance(tree.slice, ast.Constant) else None
        if not isinstance(shape, Sequence) or not isinstance(axis, int) or axis not in range(len(shape)):
            raise _Unreadable(f"the size {ast.unparse(tree)[:80]}")
        return shape[axis]


def _weakest(parts: Sequence[Sequence[Relation]]) -> Sequence[Relation]:
    """The part of a choice that holds wherever another one does: `a == 4 or a % 4 == 0` is `a % 4 == 0`.

    Raises _Unreadable where there is none.
    """
    sides = [side for part in parts for relation in part for side in (relation.left, relation.right)]
    points = list(small_sizes(dict.fromkeys(symbol for side in sides for symbol in dimension.symbols_of(side))))

    def holds(part: Sequence[Relation], sizes: Mapping[str, int]) -> bool:
        signs = {"==": operator.eq, "!=": operator.ne, ">=": operator.ge, ">": operator.gt}
        return all(
            signs[each.sign](dimension.evaluate(each.left, sizes), dimension.evaluate(each.right, sizes))
            for each in part
        )

    for part in parts:
        if all(holds(part, sizes) or not any(holds(other, sizes) for other in parts) for sizes in points):
            return part
    raise _Unreadable("a choice of conditions")


def _is_extent(tree: ast.AST) -> TypeGuard[ast.Subscript]:
    return isinstance(tree, ast.Subscript) and _is_call_of(tree.value, "size")


def _is_call_of(tree: ast.expr, name: str) -> bool:
    """`(…).name()`."""
    return (
        isinstance(tree, ast.Call) and not tree.args and isinstance(tree.func, ast.Attribute) and tree.func.attr == name
    )


_SIGNS: Mapping[type, str] = {ast.Eq: "==", ast.NotEq: "!=", ast.GtE: ">=", ast.Gt: ">"}


def _relation(left: Dim, sign: ast.cmpop, right: Dim) -> Relation:
    """The relation with each term on the side where it is positive, and a lone number on the right where that may be.

    What is never less than a number and at most that is equal to it.
    """
    if isinstance(sign, ast.LtE | ast.Lt):
        return _relation(right, ast.GtE() if isinstance(sign, ast.LtE) else ast.Gt(), left)
    if type(sign) not in _SIGNS:
        raise _Unreadable(f"the comparison {type(sign).__name__}")
    text = _SIGNS[type(sign)]
    terms, constant = dimension.terms_of(left - right)
    sides = [DimExpr(tuple((m, abs(c)) for m, c in terms if (c > 0) == positive), 0) + 0 for positive in (True, False)]
    more, less = sides[0] + max(constant, 0), sides[1] + max(-constant, 0)
    if text == ">=" and isinstance(more, int) and dimension.bounds(less)[0] >= more:
        text = "=="
    if text in ("==", "!=") and isinstance(more, int):
        more, less = less, more
    return Relation(more, text, less)
