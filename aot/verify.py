"""Checks that a graph keeps the specification of its level. Runs after every pass; shares no code with any.

What each level allows:
  CORE     ops of the table, without regions; types as `infer` gives them. Control (`aot/control.py`), as
           long as the graph is not cut into blocks.
  FUSED    `kernel` nodes, whose one region is a CORE graph with the node's inputs and outputs, ops of
           kind VIEW, and `concat` whose operands are written into place.
  ORDERED  as FUSED, with final layouts: views really move no bytes, operands of a concat lie in the
           whole, the input of a convolution has a halo of at least the padding where the target's windows
           have one, and what a kernel overwrites (`in_place`) nobody reads afterwards.
At every level: each value is defined once and before its uses; constants agree with their values;
layouts are sane; the graph's own inputs and outputs are row-major; one symbol has one name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aot import dims as dimension
from aot.control import CONTROL, fault, has_effect
from aot.dims import Dim, DimExpr, Symbol
from aot.dtypes import DType
from aot.errors import AotError, CompilerError
from aot.ir import Attr, Graph, Level, Node, TensorType, Value
from aot.ops import OPS, AttrSpec, Kind, infer

_KERNEL_KINDS = {kind.value for kind in Kind if kind is not Kind.KERNEL}
_MAX_RANK = 64


class VerifyError(CompilerError):
    """A graph breaks a rule of its level. `node` is the node at fault, where there is one."""

    def __init__(self, message: str, *, where: str = "", node: Node | None = None) -> None:
        super().__init__(message, where=where, hint="This is a defect of aotc, not of the model; please report it.")
        self.node = node


def verify(graph: Graph, *, has_halos: bool = True) -> None:
    """Raises VerifyError, naming the user's node and the rule, if the graph breaks a rule of its level.

    `has_halos`: whether sliding windows read zeros around their input; else they check their places.
    """
    _verify_graph(graph, f"graph {graph.name}", outermost=True)
    _verify_symbols(graph)
    if graph.level is Level.ORDERED and has_halos:
        for node in graph.nodes:
            for body in node.regions:
                outside_type = {value: operand.type for value, operand in zip(body.inputs, node.operands, strict=True)}
                for part in body.nodes:
                    if part.op == "cast" and part.operands[0] in outside_type:  # read as it lies, converted on the way
                        outside_type[part.output] = outside_type[part.operands[0]]
                    if part.op in ("conv", "conv_8bit"):
                        _verify_halo(part, node, outside_type)


def _verify_graph(graph: Graph, where: str, outermost: bool) -> None:
    defined: set[Value] = set()

    def define(value: Value, what: str, node: Node | None = None) -> None:
        if value in defined:
            raise VerifyError(
                f"{what} {_label(value)} is defined twice", where=node.where if node else where, node=node
            )
        defined.add(value)
        reason = _type_fault(value.type)
        if reason:
            raise VerifyError(f"{what} {_label(value)}: {reason}", where=node.where if node else where, node=node)

    for value in graph.inputs:
        define(value, "input")
    for value, const in graph.consts.items():
        define(value, "constant")
        if value.type.dtype != const.dtype or value.type.shape != const.shape:
            held = TensorType(const.dtype, const.shape)
            raise VerifyError(f"constant {_label(value)} has the type {value.type} and holds {held}", where=where)
        if len(const.digest) != 64:
            raise VerifyError(f"constant {_label(value)} has no SHA-256 digest, but {const.digest!r}", where=where)
    for position, node in enumerate(graph.nodes):
        for number, operand in enumerate(node.inputs):
            if operand is not None and operand not in defined:
                raise VerifyError(
                    f"operand {number}, {_label(operand)}, is used before it is defined", where=node.where, node=node
                )
        if not node.outputs and not has_effect(node):
            raise VerifyError("the node has no result", where=node.where, node=node)
        _verify_node(node, graph.level)
        if "in_place" in node.attrs and node.op == "kernel":
            _verify_overwritten(node, graph, position)
        for value in node.outputs:
            define(value, "result", node)
    for value in graph.outputs:
        if value not in defined:
            raise VerifyError(f"output {_label(value)} is not defined", where=where)
    _verify_state(graph, where)
    if graph.level is Level.ORDERED:
        _verify_overwritten_state(graph, where)
    if outermost:
        for value in (*graph.inputs, *graph.outputs):
            if not _is_row_major(value.type):
                raise VerifyError(
                    f"{_label(value)} is an input or output of the model and not row-major: {value.type}", where=where
                )


def _verify_state(graph: Graph, where: str) -> None:
    for position, (kept, replacement) in enumerate(graph.state):
        if kept not in graph.inputs:
            raise VerifyError(f"state {position}: {_label(kept)} is not an input", where=where)
        if replacement not in graph.outputs:
            raise VerifyError(f"state {position}: {_label(replacement)} is not an output", where=where)
        if (kept.type.dtype, kept.type.shape) != (replacement.type.dtype, replacement.type.shape):
            raise VerifyError(f"state {position}: {kept.type} is replaced by {replacement.type}", where=where)
    for side in (0, 1):
        values = [pair[side] for pair in graph.state]
        if len(set(values)) != len(values):
            raise VerifyError("a value is in two state pairs", where=where)


def _verify_overwritten_state(graph: Graph, where: str) -> None:
    """No kernel reads an input after one has written its replacement, which may lie in the same bytes."""
    if not graph.state:
        return
    lies_in: dict[Value, Value] = {}  # a view, a part of a concatenation, or what is written over an operand
    for node in graph.nodes:
        if node.op == "concat":
            lies_in.update((operand, node.output) for operand in node.operands)
        elif node.op == "kernel":
            if isinstance(number := node.attrs.get("in_place"), int):
                lies_in[node.outputs[0]] = node.operands[number]
        else:
            lies_in[node.output] = node.operands[0]

    def root(value: Value) -> Value:
        while value in lies_in:
            value = lies_in[value]
        return value

    for kept, replacement in graph.state:
        written = ""
        for node in graph.nodes:
            if node.op != "kernel":
                continue
            if written and any(root(value) is kept for value in node.operands):
                raise VerifyError(f"{_label(kept)} is read after {written} has overwritten it", where=where, node=node)
            if any(root(value) is root(replacement) for value in node.outputs):
                written = node.where


def _verify_node(node: Node, level: Level) -> None:
    if node.op == "kernel":
        if level is Level.CORE:
            raise VerifyError("level core has no kernel nodes", where=node.where, node=node)
        _verify_kernel(node, level)
        return
    if node.op in CONTROL and level is Level.CORE:
        reason = fault(node)
        if reason:
            raise VerifyError(reason, where=node.where, node=node)
        for region in node.regions:
            _verify_graph(region, node.where, outermost=False)
        return
    if node.op not in OPS:
        raise VerifyError(f"unknown op {node.op!r}", where=node.where, node=node)
    op = OPS[node.op]
    # A concatenation outside of a kernel is written into place by the kernels that make its operands.
    if level is not Level.CORE and op.kind is not Kind.VIEW and node.op != "concat":
        raise VerifyError(
            f"level {level.name.lower()} has kernel nodes and views; {node.op} is of kind {op.kind.value}",
            where=node.where,
            node=node,
        )
    if node.regions:
        raise VerifyError(f"{node.op} has {len(node.regions)} regions and takes none", where=node.where, node=node)
    _verify_attrs(node, op.attrs)
    operand_types = [None if value is None else value.type for value in node.inputs]
    try:
        expected = infer(node.op, node.attrs, operand_types)
    except AotError as error:
        raise VerifyError(f"the operands do not fit: {error.message}", where=node.where, node=node) from error
    if len(expected) != len(node.outputs):
        raise VerifyError(f"{len(node.outputs)} results, the op has {len(expected)}", where=node.where, node=node)
    for value, type_ in zip(node.outputs, expected, strict=True):
        if value.type.dtype != type_.dtype or value.type.shape != type_.shape:
            raise VerifyError(f"result {_label(value)} is {value.type}, should be {type_}", where=node.where, node=node)
    if level is Level.ORDERED:
        reason = _view_fault(node)
        if reason:
            raise VerifyError(f"this {node.op} is no view: {reason}", where=node.where, node=node)


def _verify_kernel(node: Node, level: Level) -> None:
    def fail(reason: str) -> VerifyError:
        return VerifyError(reason, where=node.where, node=node)

    if not {"kind", "name"} <= set(node.attrs) <= {"kind", "name", "in_place"}:
        raise fail(f"a kernel has the attributes kind, name and perhaps in_place, not {sorted(node.attrs)}")
    if "in_place" in node.attrs:
        _verify_in_place(node, level)
    kind, name = node.attrs["kind"], node.attrs["name"]
    if kind not in _KERNEL_KINDS:
        raise fail(f"kind {kind!r} is none of {sorted(_KERNEL_KINDS)}")
    if not isinstance(name, str) or not name:
        raise fail(f"a kernel needs a name, got {name!r}")
    if len(node.regions) != 1:
        raise fail(f"a kernel has one region, not {len(node.regions)}")
    (body,) = node.regions
    if body.level is not Level.CORE:
        raise fail(f"the body of a kernel is at level core, not {body.level.name.lower()}")
    for what, outer, inner in (("input", node.inputs, body.inputs), ("output", node.outputs, body.outputs)):
        if len(outer) != len(inner):
            raise fail(f"{len(outer)} {what}s, the body has {len(inner)}")
        for position, (outside, inside) in enumerate(zip(outer, inner, strict=True)):
            if outside is None:
                raise fail(f"{what} {position} is omitted; a kernel has none to omit")
            if (outside.type.dtype, outside.type.shape) != (inside.type.dtype, inside.type.shape):
                raise fail(f"{what} {position} is {outside.type} outside and {inside.type} in the body")
            if level is Level.ORDERED and inside.type.layout and inside.type.layout != outside.type.layout:
                raise fail(f"{what} {position} has the layout of {outside.type} outside, of {inside.type} in the body")
    _verify_graph(body, node.where, outermost=False)
    if body.state:
        raise fail("the body of a kernel has no state")


def _verify_in_place(node: Node, level: Level) -> None:
    """The first output may lie in the bytes of an operand of the same type, once layouts are final."""
    number = node.attrs["in_place"]
    if level is not Level.ORDERED or not isinstance(number, int) or not 0 <= number < len(node.operands):
        raise VerifyError(
            f"in_place {number!r} names no operand, or layouts are not final", where=node.where, node=node
        )
    if node.operands[number].type != node.outputs[0].type:
        raise VerifyError(
            f"in_place: {node.operands[number].type} is replaced by {node.outputs[0].type}", where=node.where, node=node
        )


def _verify_overwritten(node: Node, graph: Graph, position: int) -> None:
    """What a kernel overwrites belongs to the graph and is read by no later node and by no caller."""
    number = node.attrs["in_place"]
    assert isinstance(number, int)
    operand = node.operands[number]
    reader = next((later for later in graph.nodes[position + 1 :] if operand in later.operands), None)
    reason = ""
    if operand in graph.inputs or operand in graph.consts:
        reason = "is the caller's or a constant"
    elif operand in graph.outputs:
        reason = "is an output"
    elif reader is not None:
        reason = f"is read later by {reader.where}"
    if reason:
        raise VerifyError(f"in_place overwrites {_label(operand)}, which {reason}", where=node.where, node=node)


def _verify_halo(conv: Node, kernel: Node, outside_type: Mapping[Value, TensorType]) -> None:
    """The input of a convolution is read without bounds checks: its halo covers the padding, and holds what that is."""
    x = conv.inputs[0]
    assert x is not None
    pads = conv.attrs["pads"]
    assert isinstance(pads, tuple)
    spatial = len(pads) // 2
    layout = outside_type.get(x, x.type).layout
    halo = layout.halo or ((0, 0),) * x.type.rank
    fill = conv.attrs.get("fill", 0)
    if any(pads) and layout.fill != fill:
        raise VerifyError(
            f"the convolution reads {fill} outside of its input, whose halo holds {layout.fill}",
            where=conv.where if conv.locs else kernel.where,
            node=kernel,
        )
    for axis in range(spatial):
        before, after = halo[2 + axis]
        wanted = (pads[axis], pads[spatial + axis])
        if before < wanted[0] or after < wanted[1]:  # type: ignore[operator]
            raise VerifyError(
                f"the convolution pads axis {2 + axis} by {wanted[0]}:{wanted[1]}, "
                f"its input has the halo {before}:{after}",
                where=conv.where if conv.locs else kernel.where,
                node=kernel,
            )


def _verify_attrs(node: Node, specs: Mapping[str, AttrSpec]) -> None:
    for name, attr in node.attrs.items():
        if name not in specs:
            raise VerifyError(f"unknown attribute {name!r}; {node.op} has {sorted(specs)}", where=node.where, node=node)
        if not _fits(attr, specs[name].type):
            raise VerifyError(
                f"attribute {name} is {attr!r} ({type(attr).__name__}), should be {specs[name].type}",
                where=node.where,
                node=node,
            )


def _is_int(attr: object) -> bool:
    return type(attr) is int


def _is_float(attr: object) -> bool:
    return type(attr) is float or type(attr) is int


def _is_dim(attr: object) -> bool:
    return type(attr) is int or isinstance(attr, DimExpr)


_SINGLE = {
    "int": _is_int,
    "float": _is_float,
    "str": lambda attr: type(attr) is str,
    "bool": lambda attr: type(attr) is bool,
    "dtype": lambda attr: isinstance(attr, DType),
    "dim": _is_dim,
}
_TUPLE = {"ints": _is_int, "floats": _is_float, "dims": _is_dim}


def _fits(attr: Attr, kind: str) -> bool:
    """Whether an attribute has the type that its spec names; numpy scalars have no text form and do not."""
    if kind in _TUPLE:
        return isinstance(attr, tuple) and all(map(_TUPLE[kind], attr))
    return kind in _SINGLE and _SINGLE[kind](attr)


def _type_fault(type_: TensorType) -> str:
    """What is wrong with a type, or nothing."""
    rank, layout = type_.rank, type_.layout
    if rank > _MAX_RANK:
        return f"rank {rank} is above {_MAX_RANK}"
    for extent in type_.shape:
        if not _is_dim(extent):
            return f"extent {extent!r} is a {type(extent).__name__}"
        if isinstance(extent, int) and extent < 0:
            return f"extent {extent} is negative"
    if layout.order and sorted(layout.order) != list(range(rank)):
        return f"layout order {layout.order} is no permutation of {rank} axes"
    if layout.halo:
        if len(layout.halo) != rank:
            return f"a halo for {len(layout.halo)} of {rank} axes"
        if any(before < 0 or after < 0 for before, after in layout.halo):
            return f"halo {layout.halo} is negative"
    if layout.fill and not any(map(any, layout.halo)):
        return f"what a halo holds, {layout.fill}, and no halo"
    if layout.strides and len(layout.strides) != rank:
        return f"{len(layout.strides)} strides for {rank} axes"
    return ""


def _is_row_major(type_: TensorType) -> bool:
    layout = type_.layout
    return (
        layout.order in ((), tuple(range(type_.rank)))
        and all(pair == (0, 0) for pair in layout.halo)
        and (not layout.strides or layout.strides == type_.with_layout(type(layout)()).strides)
    )


def _part_fault(node: Node) -> str:
    """Why an operand of a concatenation does not lie in the whole, or nothing: its strides differ."""
    whole = node.output.type
    for number, part in enumerate(node.operands):
        if _effective(part.type.shape, list(part.type.strides)) != _effective(part.type.shape, list(whole.strides)):
            return f"operand {number} has other strides than the whole"
    return ""


def _view_fault(node: Node) -> str:
    """Why a VIEW node would have to move bytes, or nothing. Judged on the strides of both sides."""
    if node.op == "concat":
        return _part_fault(node)
    source = node.inputs[0]
    assert source is not None
    given, wanted = source.type, node.output.type
    strides: list[Dim] = []
    if node.op == "transpose":
        perm = node.attrs["perm"]
        assert isinstance(perm, tuple)
        strides.extend(given.strides[axis] for axis in perm)  # type: ignore[index]
        expected, found = _effective(wanted.shape, strides), _effective(wanted.shape, wanted.strides)
    elif node.op == "slice":
        steps = node.attrs["steps"]
        assert isinstance(steps, tuple)
        strides.extend(stride * step for stride, step in zip(given.strides, steps, strict=True))  # type: ignore[misc, operator]
        expected, found = _effective(wanted.shape, strides), _effective(wanted.shape, wanted.strides)
    elif node.op == "expand":
        strides.extend([0] * (wanted.rank - given.rank))
        strides.extend(0 if extent == 1 else step for extent, step in zip(given.shape, given.strides, strict=True))
        expected, found = _effective(wanted.shape, strides), _effective(wanted.shape, wanted.strides)
    elif node.op == "reshape":
        expected, found = _merged(given.shape, given.strides), _merged(wanted.shape, wanted.strides)
    else:
        return f"no rule says how {node.op} moves no bytes"
    if 0 in wanted.shape or expected == found:
        return ""
    return f"{given} would have to be moved to become {wanted}"


Steps = list[tuple[Dim, Dim]]


def _effective(shape: Sequence[Dim], strides: Sequence[Dim]) -> Steps:
    """(extent, stride) of the axes that are longer than 1; an axis of extent 1 is never stepped along."""
    return [(extent, stride) for extent, stride in zip(shape, strides, strict=True) if extent != 1]


def _merged(shape: Sequence[Dim], strides: Sequence[Dim]) -> Steps:
    """The same walk through memory with as few axes as possible, so that equal walks are equal."""
    result: Steps = []
    for extent, stride in _effective(shape, strides):
        if result and result[-1][1] == stride * extent:
            result[-1] = (result[-1][0] * extent, stride)
        else:
            result.append((extent, stride))
    return result


def _verify_symbols(graph: Graph) -> None:
    """One symbol has one name; what an input does not bind must be declared to come from a node."""
    by_name: dict[str, Symbol] = {}
    for symbol in _symbols(graph):
        other = by_name.setdefault(symbol.name, symbol)
        if other != symbol:
            raise VerifyError(
                f"symbol {symbol.name!r} has two definitions: {_symbol_text(other)} and {_symbol_text(symbol)}",
                where=f"graph {graph.name}",
            )
    bound = {s for value in graph.inputs for extent in value.type.shape for s in dimension.symbols_of(extent)}
    bound.update(graph.environment or ())
    for symbol in by_name.values():
        if symbol.origin == "input" and symbol not in bound:
            raise VerifyError(
                f"symbol {symbol.name!r} comes from an input, and no input has it", where=f"graph {graph.name}"
            )


def _symbols(graph: Graph) -> Iterable[Symbol]:
    yield from graph.symbols
    for node in graph.nodes:
        for region in node.regions:
            yield from _symbols(region)


def _symbol_text(symbol: Symbol) -> str:
    hi = "" if symbol.hi is None else symbol.hi
    return f"{symbol.lo}..{hi} divisor {symbol.divisor} origin {symbol.origin}"


def _label(value: Value) -> str:
    return repr(value.name) if value.name else f"a value of type {value.type}"
