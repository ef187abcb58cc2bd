"""Lowers a fused `kernel` node to a Kernel: pulls every output back to loads of the operands.

The body is a CORE graph. Values are pulled on demand: the element of a value at an index is an Expr
over elements of its operands, down to the kernel's inputs. ROW ops are decomposed first, so only MAP,
REDUCE, VIEW and GATHER rules and at most one root remain. Shared work stays shared: the same value
at the same index is the same Expr.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aot import dtypes, expr
from aot.builder import Builder
from aot.dims import Dim
from aot.dtypes import DType
from aot.errors import CompilerError
from aot.expr import Expr
from aot.ir import Graph, Node, TensorType, Value, live, resolve, rewire
from aot.kernel import (
    AttendRoot,
    Axis,
    ContractRoot,
    Kernel,
    KernelOperand,
    OwnedRoot,
    PackedWeight,
    Root,
    ScanRoot,
    Store,
    WindowRoot,
)
from aot.ops import OPS, Kind
from aot.ops.contract import MATMULS
from aot.ops.helpers import float_attr, int_attr, ints_attr
from aot.ops.quantized import NIBBLE_ZERO
from aot.ops.window import CONVS

ROOT_OPS = frozenset({*MATMULS, *CONVS, "attention", "cumsum", "cumprod"})
"""Ops whose loops an emitter owns; a kernel has at most one."""

POOLS = frozenset({"max_pool", "avg_pool"})

OWNED_KINDS = frozenset({Kind.SORT, Kind.SCATTER, Kind.RECUR, Kind.OPAQUE, Kind.ATTEND_PARTS})
"""Kinds whose op is a kernel by itself: its emitter writes every output."""


def is_direct(op: str) -> bool:
    """Whether a body may hold the op as it is; the others are decomposed first."""
    definition = OPS[op]
    rules = definition.body or definition.access or definition.reduce
    return bool(op in ROOT_OPS or op in POOLS or definition.kind in OWNED_KINDS or rules)


def expand_body(body: Graph) -> Graph:
    """The body with every op that is not direct replaced by its decomposition, repeatedly."""
    while any(not is_direct(node.op) for node in body.nodes):
        nodes: list[Node] = []
        consts = dict(body.consts)
        replaced: dict[Value, Value] = {}
        for node in rewire(body.nodes, {}):
            node = rewire([node], replaced)[0]
            if is_direct(node.op):
                nodes.append(node)
                continue
            decompose = OPS[node.op].decompose
            if decompose is None:
                raise CompilerError(f"{node.op} has neither a rule for kernels nor a decomposition", where=node.where)
            builder = Builder(locs=node.locs)
            results = decompose(builder, node.attrs, node.inputs)
            nodes.extend(builder.nodes)
            consts.update(builder.consts)
            replaced.update(zip(node.outputs, results, strict=True))
        outputs = tuple(resolve(value, replaced) for value in body.outputs)
        body = live(body.with_(nodes=tuple(nodes), consts=consts, outputs=outputs))
    return body


@dataclass(frozen=True)
class _Operand:
    """One operand of an access rule: aot.ops.Source over a value of the body."""

    lowering: _Lowering
    value: Value

    @property
    def type(self) -> TensorType:
        return self.value.type

    def at(self, indices: Sequence[Expr]) -> Expr:
        return self.lowering.pull(self.value, tuple(indices))

    def at_if(self, guard: Expr, indices: Sequence[Expr], fill: Expr) -> Expr:
        return self.lowering.pull_if(guard, self.value, tuple(indices), fill)


class _Lowering:
    """The state of one lowering: the axes made so far, and what was pulled at which index."""

    def __init__(self, body: Graph, domain: Sequence[Dim]) -> None:
        self.body = body
        self.axes = [Axis(extent, f"i{number}") for number, extent in enumerate(domain)]
        self.domain = len(self.axes)
        self.inputs = {value: number for number, value in enumerate(body.inputs)}
        self.pulled: dict[tuple[Value, tuple[Expr, ...]], Expr] = {}
        self.root: Root | None = None
        self.root_values: list[Value] = []

    def new_axis(self, extent: Dim, name: str) -> Expr:
        self.axes.append(Axis(extent, f"{name}{len(self.axes)}"))
        return expr.axis(len(self.axes) - 1)

    def pull(self, value: Value, indices: tuple[Expr, ...]) -> Expr:
        """The element of `value` at logical indices."""
        indices = tuple(
            expr.const(0, dtypes.I64) if extent == 1 else index
            for index, extent in zip(indices, value.type.shape, strict=True)
        )
        key = (value, indices)
        if key not in self.pulled:
            self.pulled[key] = self._pull(value, indices)
        return self.pulled[key]

    def pull_if(self, guard: Expr, value: Value, indices: tuple[Expr, ...], fill: Expr) -> Expr:
        """The element where the guard holds, else `fill`; only loads need the guard, the rest cannot trap."""
        if guard.op == "const":
            return self.pull(value, indices) if guard.payload else fill
        guarded = _guard_loads(self.pull(value, indices), guard)
        if guarded.op == "load" and guarded.args[-2] == guard:
            return Expr("load", (*guarded.args[:-1], fill), guarded.dtype, guarded.payload)
        return expr.select(guard, guarded, fill)

    def _pull(self, value: Value, indices: tuple[Expr, ...]) -> Expr:
        if value in self.inputs:
            return expr.load(self.inputs[value], value.type.dtype, indices)
        if value in self.body.consts:
            array = self.body.consts[value].array()
            if array.size != 1:
                raise CompilerError("a kernel body holds a constant of more than one element")
            return expr.const(array.reshape(()).item(), value.type.dtype)
        node = self.body.producer[value]
        definition = OPS[node.op]
        if node.op in ROOT_OPS:
            return self._pull_root(node, indices)
        if node.op in POOLS:
            return self._pull_pool(node, indices)
        if definition.body is not None:
            operands = [self.pull(operand, _broadcast(indices, operand.type)) for operand in node.operands]
            present = iter(operands)
            return definition.body(node.attrs, *(None if operand is None else next(present) for operand in node.inputs))
        if definition.access is not None:
            sources = [None if operand is None else _Operand(self, operand) for operand in node.inputs]
            return definition.access(node.attrs, sources, value.type, indices)
        return self._pull_reduce(node, indices)

    def _pull_reduce(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        (source,) = node.operands
        rank = source.type.rank
        function = OPS[node.op].reduce
        if function in ("argmax", "argmin"):
            over = [int_attr(node.attrs, "axis") % rank] if rank else []
            function += "_last" if node.attrs.get("last") else ""
        else:
            over = sorted(axis % rank for axis in ints_attr(node.attrs, "axes"))
        kept = [axis for axis in range(rank) if axis not in over]
        outer = [indices[axis] for axis in kept] if node.attrs["keepdims"] else list(indices)
        inner: list[Expr] = [expr.const(0, dtypes.I64)] * rank
        for axis, index in zip(kept, outer, strict=True):
            inner[axis] = index
        loops = []
        for axis in over:
            inner[axis] = self.new_axis(source.type.shape[axis], "r")
            loops.append(len(self.axes) - 1)
        result = self.pull(source, tuple(inner))
        for loop in reversed(loops):
            result = expr.reduce(function, loop, result, node.output.type.dtype)
        return result

    def _pull_pool(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        (source,) = node.operands
        dtype = source.type.dtype
        window, strides, pads, dilations = (
            ints_attr(node.attrs, n) for n in ("window", "strides", "pads", "dilations")
        )
        spatial = len(window)
        guard = expr.const(True, dtypes.BOOL)
        inner = list(indices[:2])
        loops: list[int] = []
        count = expr.const(1, dtypes.I64)
        for number in range(spatial):
            extent = source.type.shape[2 + number]
            tap = self.new_axis(window[number], "r")
            loops.append(len(self.axes) - 1)
            start = indices[2 + number] * strides[number] - pads[number]
            position = start + tap * dilations[number]
            inner.append(position)
            out_extent = node.output.type.shape[2 + number]
            overhang = (
                (out_extent - 1) * strides[number]
                + (window[number] - 1) * dilations[number]
                - pads[number]
                + 1
                - extent
            )
            last_in_range = isinstance(overhang, int) and overhang <= 0
            if pads[number]:
                guard = _both(guard, position >= 0)
            if not last_in_range:
                guard = _both(guard, position < expr.dim(extent))
            if node.op == "avg_pool":
                count = count * _taps_counted(
                    start, window[number], dilations[number], expr.dim(extent), pads[number], pads[spatial + number],
                    bool(node.attrs["include_pad"]), bool(pads[number]) or not last_in_range,
                )  # fmt: skip
        if node.op == "max_pool":
            fill = expr.const(-math.inf if dtype.is_float else int(np.iinfo(dtype.numpy).min), dtype)
            result = self.pull_if(guard, source, tuple(inner), fill)
            for loop in reversed(loops):
                result = expr.reduce("max", loop, result)
            return result
        result = self.pull_if(guard, source, tuple(inner), expr.const(0, dtype))
        for loop in reversed(loops):
            result = expr.reduce("sum", loop, result)
        return result / expr.cast(count, dtype)

    def _pull_root(self, node: Node, indices: tuple[Expr, ...]) -> Expr:
        shape = node.output.type.shape
        wanted = tuple(
            expr.const(0, dtypes.I64) if extent == 1 else expr.axis(number) for number, extent in enumerate(shape)
        )
        if indices != wanted or len(shape) != self.domain:
            raise CompilerError("a root is read at another index than its own", where=node.where)
        if self.root is None:
            self.root = self._make_root(node)
            self.root_values.append(node.output)
        elif node.output not in self.root_values:
            self.root = self._with_other(self.root, node)
            self.root_values.append(node.output)
        result = expr.root(self.root_values.index(node.output), node.output.type.dtype)
        if node.op == "conv" and len(node.inputs) == 3 and node.inputs[2] is not None:
            result = result + self.pull(node.inputs[2], (indices[1],))
        return result

    def _make_root(self, node: Node) -> Root:
        operands = node.operands
        dtype = node.output.type.dtype
        accumulate = dtypes.F32 if dtype in (dtypes.F16, dtypes.BF16) else dtype
        if node.op in MATMULS:
            return self._contract(node, accumulate)
        if node.op in CONVS:
            spatial = operands[0].type.rank - 2
            pads = ints_attr(node.attrs, "pads")
            (x, w), operand = self._inputs(operands[:2], node)
            return WindowRoot(
                x, w, ints_attr(node.attrs, "strides"), ints_attr(node.attrs, "dilations"),
                tuple((pads[i], pads[spatial + i]) for i in range(spatial)), int_attr(node.attrs, "groups"), accumulate,
                operand, int_attr(node.attrs, "fill") if node.op == "conv_8bit" else 0,
            )  # fmt: skip
        if node.op == "attention":
            return self._attend(node, accumulate)
        axis = int_attr(node.attrs, "axis") % node.output.type.rank
        indices = tuple(map(expr.axis, range(self.domain)))
        function = "sum" if node.op == "cumsum" else "prod"
        value = expr.cast(self.pull(operands[0], indices), accumulate)
        return ScanRoot(axis, function, bool(node.attrs["exclusive"]), bool(node.attrs["reverse"]), value, accumulate)

    def _contract(self, node: Node, accumulate: DType) -> ContractRoot:
        batch = self.domain - 2
        k = self.new_axis(node.operands[0].type.shape[-1], "k").payload
        root = ContractRoot(tuple(range(batch)), batch, batch + 1, k, *self._factors(node, k), accumulate)
        if node.op != "matmul_packed":
            return root
        numbers = [None if value is None else self.inputs.get(value) for value in (*node.inputs[1:], None)[:3]]
        w, scale, zero = numbers
        if w is None or scale is None or (zero is None and len(node.operands) > 3):
            raise CompilerError("a packed weight must be an input of its kernel", where=node.where)
        weight = PackedWeight(w, scale, zero, int_attr(node.attrs, "bits"), int_attr(node.attrs, "block"))
        return replace(root, weight=weight)

    def _factors(self, node: Node, k: int) -> tuple[Expr, Expr]:
        """The factors of a matmul over the axes of the domain and the axis `k`."""
        a, b = node.operands[:2]
        batch = self.domain - 2
        lead = [expr.axis(number) for number in range(batch)]

        def batch_indices(value: Value) -> tuple[Expr, ...]:
            return tuple(lead[batch - (value.type.rank - 2) :])

        m, n, summed = expr.axis(batch), expr.axis(batch + 1), expr.axis(k)
        left = self.pull(a, (*batch_indices(a), m, summed))
        if node.op == "matmul_packed":
            return _narrowest(left), self._unpacked(node, summed, n)
        right = self.pull(b, (*batch_indices(b), summed, n))
        return _narrowest(left), _narrowest(right)

    def _unpacked(self, node: Node, k: Expr, n: Expr) -> Expr:
        """The element of a packed weight as a float, as aot.ops.quantized says."""
        _, w, scale, *zero = node.operands
        bits, group = int_attr(node.attrs, "bits"), expr.call("floordiv", k, int_attr(node.attrs, "block"))

        def number(value: Value, row: Expr) -> Expr:
            return expr.cast(self.pull(value, (row, n)), dtypes.I32)

        if bits == 4:
            half = expr.cast(expr.call("mod", k, 2), dtypes.I32) * 4
            element = expr.call("and", expr.call("shr", number(w, expr.call("floordiv", k, 2)), half), 15)
        else:
            element = number(w, k)
        if zero:
            element = element - number(zero[0], group)
        elif bits == 4:
            element = element - NIBBLE_ZERO
        return expr.cast(element, dtypes.F32) * expr.cast(self.pull(scale, (group, n)), dtypes.F32)

    def _with_other(self, root: Root, node: Node) -> ContractRoot:
        """The root of a kernel with one more product of the same left operand."""
        if isinstance(root, ContractRoot) and node.op == "matmul":
            a, b = self._factors(node, root.k)
            if a == root.a:
                return replace(root, others=(*root.others, b))
        raise CompilerError("a kernel has two roots", where=node.where)

    def _attend(self, node: Node, accumulate: DType) -> AttendRoot:
        q, k, v = node.inputs[:3]
        assert q is not None and k is not None and v is not None
        t = self.new_axis(k.type.shape[2], "t")
        mask_value = node.inputs[3] if len(node.inputs) > 3 else None
        mask = None
        if mask_value is not None:
            where = (expr.axis(0), expr.axis(1), expr.axis(2), t)
            mask = self.pull(mask_value, _broadcast(where, mask_value.type))
            if mask.dtype.is_bool:
                mask = expr.select(mask, expr.const(0.0, accumulate), expr.const(-math.inf, accumulate))
            mask = expr.cast(mask, accumulate)
        (queries, keys, values), operand = self._inputs((q, k, v), node)
        return AttendRoot(
            queries, keys, values, len(self.axes) - 1, float_attr(node.attrs, "scale"), mask,
            bool(node.attrs["causal"]), accumulate, bool(node.attrs["zero_empty"]), operand,
        )  # fmt: skip

    def _inputs(self, values: Sequence[Value], node: Node) -> tuple[list[int], DType | None]:
        """The kernel's inputs that are the operands of a root, and the type that all are converted to, if any is.

        Each is an input, or one through casts: that it is rounded to 16 bits on the way, if all are, is the type.
        """
        numbers: list[int] = []
        types: set[DType] = set()
        for value in values:
            passed = [value.type.dtype]
            while value not in self.inputs:
                cast = self.body.producer.get(value)
                if cast is None or cast.op != "cast" or not cast.operands[0].type.dtype.is_float:
                    raise CompilerError("an operand of a root must be an input of its kernel", where=node.where)
                (value,) = cast.operands
                passed.append(value.type.dtype)
            numbers.append(self.inputs[value])
            types.add(min(reversed(passed), key=lambda dtype: dtype.bits))
        if all(value in self.inputs for value in values):
            return numbers, None
        return numbers, types.pop() if len(types) == 1 else values[0].type.dtype


def _narrowest(value: Expr) -> Expr:
    """A factor of a product without a cast from a 16-bit type: products of these are exact in the accumulator's."""
    if value.op == "cast" and value.dtype == dtypes.F32 and value.args[0].dtype in (dtypes.F16, dtypes.BF16):
        return value.args[0]
    return value


def _broadcast(indices: tuple[Expr, ...], type_: TensorType) -> tuple[Expr, ...]:
    """Indices into an operand that broadcasts to the shape that `indices` run over."""
    return indices[len(indices) - type_.rank :] if type_.rank else ()


def _guard_loads(value: Expr, guard: Expr) -> Expr:
    """The expression with the guard on every load, filled with zero: the select outside decides the value."""

    def leaf(node: Expr) -> Expr | None:
        if node.op != "load":
            return None
        indices, old = node.args, None
        if indices and indices[-1].dtype == node.dtype and len(indices) >= 2 and indices[-2].dtype.is_bool:
            indices, old = indices[:-2], indices[-2]
        both = guard if old is None else expr.call("and", guard, old)
        fill = node.args[-1] if old is not None else expr.const(0, node.dtype)
        return Expr("load", (*indices, both, fill), node.dtype, node.payload)

    return expr.rewrite(value, leaf)


def _both(left: Expr, right: Expr) -> Expr:
    if left.op == "const":
        return right if left.payload else left
    return expr.call("and", left, right)


def _taps_counted(
    start: Expr,
    window: int,
    dilation: int,
    extent: Expr,
    pad_before: int,
    pad_after: int,
    with_pads: bool,
    clipped: bool,
) -> Expr:
    """How many taps of one window an average counts along one axis, as an i64 Expr.

    A tap r is at start + r × dilation; it counts if it lies in the input, or in the padded input.
    """
    if not clipped:
        return expr.const(window, dtypes.I64)
    lo: Expr | int = -pad_before if with_pads else 0
    hi: Expr = extent + pad_after if with_pads else extent
    # ceil((lo - start) / dilation) and ceil((hi - start) / dilation), both within 0..window
    first = expr.call("max", _ceil_div(lo - start, dilation), 0)
    end = expr.call("min", _ceil_div(hi - start, dilation), window)
    return expr.call("max", end - first, 1)


def _ceil_div(value: Expr, divisor: int) -> Expr:
    return value if divisor == 1 else expr.call("floordiv", value + (divisor - 1), divisor)


def _fits(shape: tuple[Dim, ...], domain: tuple[Dim, ...]) -> bool:
    """Whether loops over a domain can store a result of a shape: each extent is the domain's, or 1."""
    return len(shape) == len(domain) and all(e in (1, d) for e, d in zip(shape, domain, strict=True))


def lower(node: Node, is_constant: Callable[[Value], bool]) -> Kernel:
    """The Kernel of a `kernel` node. Raises CompilerError, in the user's names, for a body with no such form.

    `is_constant` tells which of the node's inputs are known at build time.
    """
    if node.op != "kernel":
        raise CompilerError("only kernel nodes are lowered", where=node.where)
    body = expand_body(node.regions[0])
    if any(OPS[inner.op].kind in OWNED_KINDS for inner in body.nodes):
        return _lower_owned(node, body, is_constant)
    shapes = [value.type.shape for value in body.outputs]
    # The first is the largest, unless all are empty.
    primary = next((shape for shape in shapes if all(_fits(other, shape) for other in shapes)), shapes[0])
    lowering = _Lowering(body, primary)
    stores: list[Store] = []
    for number, value in enumerate(body.outputs):
        shape = value.type.shape
        if not _fits(shape, primary):
            raise CompilerError(f"outputs of shapes {primary} and {shape} in one kernel", where=node.where)
        indices = tuple(expr.const(0, dtypes.I64) if e == 1 else expr.axis(a) for a, e in enumerate(shape))
        axes = () if shape == primary else tuple(a for a, e in enumerate(shape) if e != 1 or primary[a] == 1)
        stores.append(Store(number, indices, lowering.pull(value, indices)))
        if axes:
            stores[-1] = replace(stores[-1], axes=axes)
    inputs = tuple(KernelOperand(value.type, is_constant(value)) for value in node.operands)
    outputs = tuple(KernelOperand(value.type) for value in node.outputs)
    name = str(node.attrs["name"])
    return Kernel(
        name,
        _kind(lowering, stores),
        tuple(lowering.axes),
        lowering.domain,
        inputs,
        outputs,
        tuple(stores),
        lowering.root,
        node.locs,
    )


def _lower_owned(node: Node, body: Graph, is_constant: Callable[[Value], bool]) -> Kernel:
    """The kernel of one op that owns its loops; its axes are those of its first output, for the reader only."""
    if len(body.nodes) != 1:
        raise CompilerError(f"{len(body.nodes)} ops in a kernel of one", where=node.where)
    (inner,) = body.nodes
    read = {value: number for number, value in enumerate(body.inputs)}
    made = {value: number for number, value in enumerate(body.outputs)}
    if any(value is not None and value not in read for value in inner.inputs):
        raise CompilerError("an operand of a root must be an input of its kernel", where=node.where)
    operands = tuple(None if value is None else read[value] for value in inner.inputs)
    root = OwnedRoot(inner.op, inner.attrs, operands, tuple(made.get(value) for value in inner.outputs))
    shape = body.outputs[0].type.shape
    return Kernel(
        str(node.attrs["name"]),
        OPS[inner.op].kind,
        tuple(Axis(extent, f"i{number}") for number, extent in enumerate(shape)),
        len(shape),
        tuple(KernelOperand(value.type, is_constant(value)) for value in node.operands),
        tuple(KernelOperand(value.type) for value in node.outputs),
        (),
        root,
        node.locs,
    )


def _kind(lowering: _Lowering, stores: Sequence[Store]) -> Kind:
    if isinstance(lowering.root, ContractRoot):
        return Kind.CONTRACT
    if isinstance(lowering.root, WindowRoot):
        return Kind.WINDOW
    if isinstance(lowering.root, AttendRoot):
        return Kind.ATTEND
    if isinstance(lowering.root, ScanRoot):
        return Kind.SCAN_AXIS
    nodes = {node for store in stores for node in expr.walk(store.value)}
    if not any(node.op == "reduce" for node in nodes):
        gathers = any(node.op == "load" and any(i.op not in ("axis", "const") for i in node.args) for node in nodes)
        return Kind.GATHER if gathers else Kind.MAP
    return Kind.REDUCE if all(store.value.op == "reduce" for store in stores) else Kind.ROW
