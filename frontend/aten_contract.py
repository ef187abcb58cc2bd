"""ATen converters of products and layers of weights: matrix products, convolutions, attention, recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend import shaping
from aot.frontend.aten_views import concat, swapped
from aot.frontend.torch_hints import AFTER_EVAL
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.opdef import broadcast_shapes
from aot.ops.recur import FORMS

_F32, _I64 = dtypes.F32, dtypes.I64


# Matrix products


def matmul(c: Context, a: Value, b: Value) -> Value:
    """torch's matmul, vectors included."""
    if a.type.rank == 0 or b.type.rank == 0:
        c.fail("operands of a matrix product cannot be scalars")
    left = c.reshape(a, (1, *a.type.shape)) if a.type.rank == 1 else a
    right = c.reshape(b, (*b.type.shape, 1)) if b.type.rank == 1 else b
    if a.type.dtype.is_bool:
        wide = c.op_("matmul", c.cast(left, dtypes.I32), c.cast(right, dtypes.I32))
        product = c.op_("ne", wide, c.scalar(0, dtypes.I32))
    else:
        product = c.op_("matmul", left, right)
    shape = list(product.type.shape)
    if b.type.rank == 1:
        shape.pop()
    if a.type.rank == 1:
        shape.pop(-1 if b.type.rank == 1 else -2)
    return c.reshape(product, shape)


_OPERANDS = {
    "mm": ("self", "mat2"), "bmm": ("self", "mat2"), "matmul": ("self", "other"), "mv": ("self", "vec"),
    "dot": ("self", "tensor"), "vdot": ("self", "other"), "inner": ("self", "other"),
}  # fmt: skip


@aten_op("mm", "bmm", "matmul", "mv", "dot", "vdot")
def _matmul(c: Context) -> Result:
    names = _OPERANDS[c.op.partition(".")[0]]
    return matmul(c, c.cast(c.tensor(names[0]), c.dtype), c.cast(c.tensor(names[1]), c.dtype))


@aten_op("linear")
def _linear(c: Context) -> Result:
    x, weight = c.tensor("input"), c.tensor("weight")
    made = matmul(c, x, swapped(c, weight, -1, -2))
    bias = c.optional("bias")
    return made if bias is None else c.op_("add", made, bias)


@aten_op("outer", "ger")
def _outer(c: Context) -> Result:
    x, y = c.cast(c.tensor("self"), c.dtype), c.cast(c.tensor("vec2"), c.dtype)
    times = "and" if c.dtype.is_bool else "mul"
    return c.op_(times, c.reshape(x, (x.type.elements, 1)), c.reshape(y, (1, y.type.elements)))


def _is(c: Context, name: str, number: float) -> bool:
    value = c.arguments.get(name, 1)
    return isinstance(value, bool | int | float) and float(value) == number


def _scaled(c: Context, value: Value, name: str) -> Value:
    """beta or alpha times a value."""
    if _is(c, name, 1.0):
        return value
    if value.type.dtype.is_bool:
        return value
    return c.op_("mul", value, c.number_value(c[name], value.type.dtype))


def _sum_with(c: Context, product: Value) -> Value:
    """beta * self + alpha * product; with beta 0, self is not read, not even its NaNs."""
    narrow = c.dtype.is_float and c.dtype.bits < 32 and not (_is(c, "alpha", 1.0) and _is(c, "beta", 1.0))
    wide: DType = dtypes.F32 if narrow else c.dtype
    product = _scaled(c, c.cast(product, wide), "alpha")
    shape = tuple(product.type.shape)
    if _is(c, "beta", 0.0):
        return c.cast(product, c.dtype)
    added = _scaled(c, c.cast(c.tensor("self"), wide), "beta")
    if added.type.rank > len(shape):
        c.fail("the operand that is added has more axes than the product")
    return c.cast(c.op_("or" if wide.is_bool else "add", product, added), c.dtype)


@aten_op("addmm", "baddbmm", "addmv", "addbmm", "addr")
def _addmm(c: Context) -> Result:
    name = c.op.partition(".")[0]
    left, right = {
        "addmm": ("mat1", "mat2"), "baddbmm": ("batch1", "batch2"), "addmv": ("mat", "vec"),
        "addbmm": ("batch1", "batch2"), "addr": ("vec1", "vec2"),
    }[name]  # fmt: skip
    a, b = c.cast(c.tensor(left), c.dtype), c.cast(c.tensor(right), c.dtype)
    if name == "addr":
        times = "and" if c.dtype.is_bool else "mul"
        rows, columns = c.reshape(a, (a.type.elements, 1)), c.reshape(b, (1, b.type.elements))
        return _sum_with(c, c.op_(times, rows, columns))
    if name == "addbmm":  # the sum over the batch is part of the products
        batch, height, depth = a.type.shape
        a = c.reshape(c.transpose(a, (1, 0, 2)), (height, batch * depth))
        b = c.reshape(b, (batch * depth, b.type.shape[2]))
    return _sum_with(c, matmul(c, a, b))


@aten_op("_addmm_activation")
def _addmm_activation(c: Context) -> Result:
    made = _sum_with(c, matmul(c, c.tensor("mat1"), c.tensor("mat2")))
    return c.op_("gelu", made, approximate="tanh") if c.flag("use_gelu") else c.op_("relu", made)


# Convolutions


def _per_axis(c: Context, name: str, count: int) -> tuple[int, ...]:
    """One number per spatial axis; one given number stands for all."""
    given = c.ints(name)
    return given * count if len(given) == 1 else given


@aten_op("convolution", "_convolution")
def _convolution(c: Context) -> Result:
    x, weight, bias = c.tensor("input"), c.tensor("weight"), c.optional("bias")
    spatial = weight.type.rank - 2
    batched = x.type.rank == weight.type.rank
    if not batched:
        x = c.reshape(x, (1, *x.type.shape))
    strides, dilations = (_per_axis(c, name, spatial) for name in ("stride", "dilation"))
    around = c.sizes("padding") * (spatial if len(c.sizes("padding")) == 1 else 1)
    if c.flag("transposed") or all(isinstance(amount, int) for amount in around):
        pads = _per_axis(c, "padding", spatial)
    else:
        pads = (0,) * spatial
        x = shaping.padded(c.builder, x, (0, 0, *around), (0, 0, *around), "constant", None)
    attrs = {"strides": strides, "pads": (*pads, *pads), "dilations": dilations, "groups": c.integer("groups")}
    if not c.flag("transposed"):
        made = c.op_("conv", x, weight, bias, **attrs)
    else:
        wanted = c.sizes("output_padding") * (spatial if len(c.sizes("output_padding")) == 1 else 1)
        # One that depends on sizes is less than the stride, or the dilation: of the longest result, what is wanted.
        most = map(max, strides, dilations)
        extra = tuple(one if isinstance(one, int) else limit - 1 for one, limit in zip(wanted, most, strict=True))
        operands = [x, weight, *([] if bias is None else [bias])]
        if not x.type.dtype.is_float:
            operands = [c.cast(operand, dtypes.F64) for operand in operands]
        made = c.cast(c.op_("conv_transpose", *operands, output_padding=extra, **attrs), x.type.dtype)
        for axis, (longest, one) in enumerate(zip(extra, wanted, strict=True), start=2):
            made = c.slice_axis(made, axis, 0, made.type.shape[axis] - (longest - one))
    return made if batched else c.reshape(made, made.type.shape[1:])


# Attention


def _four_axes(c: Context, value: Value) -> Value:
    """[…, rows, depth] as [batch, heads, rows, depth]."""
    shape = value.type.shape
    if len(shape) <= 4:
        return c.reshape(value, (*shape[: max(len(shape) - 3, 0)], *(1,) * (4 - len(shape)), *shape[-3:]))
    return c.reshape(value, (dimension.product(shape[:-3]), *shape[-3:]))


def _mask(c: Context, mask: Value, lead: Sequence[Dim], rank: int) -> Value:
    """A mask of a rank that the op takes; leading axes that q merged are expanded and merged as well."""
    if rank <= 3:
        shape = (*(1,) * (rank - mask.type.rank), *mask.type.shape)
        return c.reshape(mask, (*shape[:-3], *(1,) * (4 - len(shape)), *shape[-3:])) if mask.type.rank == 3 else mask
    if mask.type.rank <= 4 and rank == 4:
        return mask
    shape = (*(1,) * (rank - mask.type.rank), *mask.type.shape)
    if all(extent == 1 for extent in shape[:-3]):
        return c.reshape(mask, (1, *shape[-3:]))
    wide = c.expand(c.reshape(mask, shape), (*lead, *shape[-3:]))
    return c.reshape(wide, (dimension.product(lead), *shape[-3:]))


def _causal_mask(c: Context, queries: Dim, keys: Dim) -> Value:
    """Query s sees keys t <= s."""
    row = c.op_("iota", shape=(queries, 1), axis=0, start=0, step=1, dtype=_I64)
    column = c.op_("iota", shape=(1, keys), axis=1, start=0, step=1, dtype=_I64)
    return c.op_("le", column, row)


def _scale(c: Context, depth: Dim) -> float:
    if c.has("scale"):
        return c.number("scale")
    if not isinstance(depth, int):
        c.unsupported("attention whose depth is only known when running", "Give it a scale.")
    return 1.0 / math.sqrt(depth) if depth else 1.0


def attended(c: Context) -> Value:
    """scaled_dot_product_attention's arguments as one `attention`."""
    q, k, v = c.tensor("query"), c.tensor("key"), c.tensor("value")
    if c.arguments.get("dropout_p") and c.number("dropout_p") > 0:
        c.unsupported("attention with dropout", AFTER_EVAL)
    mask = c.optional("attn_mask") or c.optional("attn_bias")
    lead = broadcast_shapes(q.type.shape[:-3], k.type.shape[:-3], v.type.shape[:-3])
    heads = [part.type.shape[-3] if part.type.rank > 2 else 1 for part in (q, k, v)]
    rank = max(part.type.rank for part in (q, k, v))
    parts = []
    for part in (q, k, v):
        own: tuple[Dim, ...] = (*lead, *part.type.shape[-3:]) if rank > 2 else part.type.shape
        if rank > 2 and part.type.rank < 3:
            own = (*lead, 1, *part.type.shape[-2:])
        parts.append(c.expand(part, own) if part.type.rank == len(own) or rank > 3 else part)
    grouped = c.flag("enable_gqa")
    if not grouped and len(set(heads)) > 1:
        head = broadcast_shapes(*((count,) for count in heads))[0]
        parts = [c.expand(part, (*part.type.shape[:-3], head, *part.type.shape[-2:])) for part in parts]
    result_shape = (*parts[0].type.shape[:-1], parts[2].type.shape[-1])
    if heads[1] != heads[2] and grouped:
        c.unsupported("attention whose keys and values have different numbers of heads")
    queries, keys = q.type.shape[-2], k.type.shape[-2]
    causal = c.flag("is_causal")
    empty = mask is not None
    if causal and (queries != keys or mask is not None):
        seen = _causal_mask(c, queries, keys)
        if mask is None:
            mask, empty = seen, False
        elif mask.type.dtype.is_bool:
            mask = c.op_("and", mask, seen)
        else:
            mask = c.op_("where", seen, mask, c.scalar(float("-inf"), mask.type.dtype))
        causal = False
    if mask is not None:
        mask = _mask(c, mask, lead, rank)
        if not mask.type.dtype.is_bool:
            mask = c.cast(mask, q.type.dtype)
    made = c.op_(
        "attention", *(_four_axes(c, part) for part in parts), *([] if mask is None else [mask]),
        scale=_scale(c, q.type.shape[-1]), causal=causal, zero_empty=empty,
    )  # fmt: skip
    return c.reshape(made, result_shape)


@aten_op("scaled_dot_product_attention")
def _attention(c: Context) -> Result:
    return attended(c)


@aten_op(
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math",
)
def _attention_parts(c: Context) -> Result:
    """The first result; what training would need of the others is refused where it is read."""
    if any(number > 0 for number in c.used):
        c.unsupported("results of attention beside the first")
    return [attended(c), *[None] * (len(c.results) - 1)]


# Recurrent layers

_ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Where ONNX's order of gates, which the ops have, finds each of them in torch's."""


def _gates_in_order(c: Context, form: str, weight: Value) -> Value:
    """Rows of gates in the op's order."""
    order = _ORDERS[form]
    if len(order) == 1:
        return weight
    hidden = dimension.exact_div(weight.type.shape[0], len(order))
    assert hidden is not None
    return concat(c, [c.slice_axis(weight, 0, hidden * gate, hidden) for gate in order], 0)


def _leading(c: Context, values: Sequence[Value]) -> Value:
    """Directions side by side on a new first axis."""
    return concat(c, [c.reshape(value, (1, *value.type.shape)) for value in values], 0)


def _layers(c: Context, form: str, states: Sequence[Value], activation: str = "") -> list[Value]:
    """All layers of lstm.input and its kin: the outputs, then the last states."""
    x = c.tensor("input")
    params = [item for item in c["params"] if isinstance(item, Value)]
    count, biased = c.integer("num_layers"), c.flag("has_biases")
    directions = 2 if c.flag("bidirectional") else 1
    each = 4 if biased else 2
    if len(params) != count * directions * each:
        c.unsupported("recurrent layers with projections")
    if c.flag("train") and c.number("dropout", 0.0) > 0 and count > 1:
        c.unsupported("dropout between recurrent layers", AFTER_EVAL)
    if c.flag("batch_first"):
        x = swapped(c, x, 0, 1)
    activations = (activation,) if activation else FORMS[form].activations
    more = {"lstm": {"input_forget": False}, "gru": {"linear_before_reset": True}, "rnn": {}}[form]
    last: list[list[Value]] = [[] for _ in states]
    for layer in range(count):
        own = [params[(layer * directions + side) * each :][:each] for side in range(directions)]
        weights = [_leading(c, [_gates_in_order(c, form, part[n]) for part in own]) for n in (0, 1)]
        bias: Value | None = None
        if biased:
            bias = _leading(c, [concat(c, [_gates_in_order(c, form, part[n]) for n in (2, 3)], 0) for part in own])
        initial = [c.slice_axis(state, 0, layer * directions, directions) for state in states]
        results = c.builder.op(
            form, x, *weights, bias, None, *initial,
            direction="bidirectional" if directions == 2 else "forward",
            activations=" ".join(activations * directions), parameters=(0.0,) * (2 * len(activations) * directions),
            clip=0.0, batch_first=False, **more,
        )  # fmt: skip
        steps, _, batch, hidden = results[0].type.shape
        made = results[0] if directions == 1 else c.transpose(results[0], (0, 2, 1, 3))
        x = c.reshape(made, (steps, batch, hidden * directions))
        for found, state in zip(last, results[1:], strict=True):
            found.append(state)
    output = swapped(c, x, 0, 1) if c.flag("batch_first") else x
    return [output, *(concat(c, found, 0) for found in last)]


@aten_op("lstm.input")
def _lstm(c: Context) -> Result:
    return _layers(c, "lstm", c.tensors("hx"))


@aten_op("gru.input")
def _gru(c: Context) -> Result:
    return _layers(c, "gru", [c.tensor("hx")])


@aten_op("rnn_tanh.input", "rnn_relu.input")
def _rnn(c: Context) -> Result:
    return _layers(c, "rnn", [c.tensor("hx")], "Relu" if c.op.startswith("rnn_relu") else "Tanh")


# Distances and determinants


@aten_op("_cdist_forward", "cdist")
def _cdist(c: Context) -> Result:
    return _distances(c, c.tensor("x1"), c.tensor("x2"))


def _distances(c: Context, a: Value, b: Value) -> Value:
    """The p-norm of the difference of every row of a and every row of b."""
    power = c.number("p")
    left = c.reshape(a, (*a.type.shape[:-1], 1, a.type.shape[-1]))
    right = c.reshape(b, (*b.type.shape[:-2], 1, *b.type.shape[-2:]))
    apart = c.op_("abs", c.op_("sub", left, right))
    dtype, axes = apart.type.dtype, (apart.type.rank - 1,)
    if a.type.shape[-1] == 0:
        return c.expand(c.scalar(0, dtype), apart.type.shape[:-1])
    if power == 0:
        apart = c.cast(c.op_("ne", apart, c.scalar(0, dtype)), dtype)
        return c.op_("reduce_sum", apart, axes=axes, keepdims=False)
    if math.isinf(power):
        return c.op_("reduce_max", apart, axes=axes, keepdims=False)
    if power == 1:
        return c.op_("reduce_sum", apart, axes=axes, keepdims=False)
    if power == 2:
        return c.op_("sqrt", c.op_("reduce_sum", c.op_("mul", apart, apart), axes=axes, keepdims=False))
    total = c.op_("reduce_sum", c.op_("pow", apart, c.scalar(power, dtype)), axes=axes, keepdims=False)
    return c.op_("pow", total, c.scalar(1.0 / power, dtype))


@aten_op("_pdist_forward", "pdist")
def _pdist(c: Context) -> Result:
    """Distances of all pairs of rows, the first before the second."""
    x = c.tensor("self")
    rows = x.type.shape[0]
    if not isinstance(rows, int):
        c.unsupported("distances of a number of rows that is only known when running")
    table = _distances(c, x, x)
    first, second = np.triu_indices(rows, 1)
    places = c.builder.const((first * rows + second).astype(np.int64))
    return c.op_("gather", c.reshape(table, (rows * rows,)), places, axis=0)


@aten_op("_trilinear")
def _trilinear(c: Context) -> Result:
    """The product of three tensors, each with new axes, summed over some."""
    product: Value | None = None
    rank = 0
    for operand, name in (("i1", "expand1"), ("i2", "expand2"), ("i3", "expand3")):
        value = c.tensor(operand)
        rank = value.type.rank + len(c.ints(name))
        shape = list(value.type.shape)
        for axis in sorted(axis % rank for axis in c.ints(name)):
            shape.insert(axis, 1)
        value = c.reshape(value, shape)
        product = value if product is None else c.op_("mul", product, value)
    assert product is not None
    return c.op_("reduce_sum", product, axes=c.axes("sumdim", rank), keepdims=False)


@aten_op("linalg_det", "_linalg_det")
def _determinant(c: Context) -> Result:
    made = c.op_("determinant", c.tensor("A"))
    if c.op.startswith("linalg_det"):
        return made
    if any(number > 0 for number in c.used):
        c.unsupported("the factors of a determinant")
    return [made, None, None]


@aten_op("transformers::grouped_mm_fallback", "_grouped_mm")
def _grouped_matmul(c: Context) -> Result:
    """Rows in groups, each group times its own matrix; `offs` holds where groups end, rows behind the last are 0.

    Every row is multiplied by every matrix, and its own product is kept: group sizes are only known when running.
    """
    names = ("self", "mat2") if c.op.startswith("_grouped") else ("input", "weight")
    x, weight, ends = c.tensor(names[0]), c.tensor(names[1]), c.optional("offs")
    if ends is None or x.type.rank != 2 or weight.type.rank != 3:
        c.unsupported("grouped products other than of rows by groups")
    groups, rows = weight.type.shape[0], x.type.shape[0]
    row = c.op_("iota", shape=(1, rows), axis=1, start=0, step=1, dtype=_I64)
    begun = c.op_("le", c.reshape(c.cast(ends, _I64), (groups, 1)), row)
    own = c.op_("reduce_sum", c.cast(begun, _I64), axes=(0,), keepdims=True)
    group = c.op_("iota", shape=(groups, 1), axis=0, start=0, step=1, dtype=_I64)
    kept = c.reshape(c.op_("eq", group, own), (groups, rows, 1))
    products = c.op_("matmul", c.reshape(x, (1, *x.type.shape)), weight)
    chosen = c.op_("where", kept, products, c.scalar(0, products.type.dtype))
    made = c.op_("reduce_sum", chosen, axes=(0,), keepdims=False)
    bias = c.optional("bias")
    return c.cast(made if bias is None else c.op_("add", made, bias), c.dtype)


@aten_op("torch_nn::_linear_cross_entropy_batch_chunked", "torch_nn::_linear_cross_entropy_batch_chunked_no_reduction")
def _linear_cross_entropy(c: Context) -> Result:
    """The cross entropy of a linear layer's results with classes, computed whole: what no result needs is not made."""
    is_whole = "no_reduction" in c.op
    if not is_whole and any(c.flag(f"compute_{name}_grad") for name in ("input", "linear_weight", "linear_bias")):
        c.unsupported("gradients of a linear cross entropy", hint="Export under torch.no_grad().")
    x, weight, target = c.tensor("input"), c.tensor("linear_weight"), c.tensor("target")
    bias, class_weight = c.optional("linear_bias"), c.optional("weight")
    made = c.op_("matmul", c.cast(x, _F32), c.op_("transpose", c.cast(weight, _F32), perm=(1, 0)))
    if bias is not None:
        made = c.op_("add", made, c.cast(bias, _F32))
    likely = c.op_("log_softmax", made, axis=1)
    target = c.cast(target, _I64)
    is_left_out = c.op_("eq", target, c.scalar(c.integer("ignore_index"), _I64))
    place = c.op_("where", is_left_out, c.scalar(0, _I64), target)
    rows = x.type.shape[0]
    chosen = c.reshape(c.op_("gather_elements", likely, c.reshape(place, (rows, 1)), axis=1), (rows,))
    share = c.scalar(1, _F32) if class_weight is None else c.op_("gather", c.cast(class_weight, _F32), place, axis=0)
    share = c.op_("where", is_left_out, c.scalar(0, _F32), share)
    loss = c.op_("neg", c.op_("mul", share, chosen))
    if is_whole:
        return c.cast(loss, c.dtype)
    loss = c.op_("reduce_sum", loss, axes=(0,), keepdims=False)
    if c.text("reduction") == "mean":
        loss = c.op_("div", loss, c.op_("reduce_sum", share, axes=(0,), keepdims=False))
    nothing = [c.op_("iota", shape=shape, axis=0, start=0, step=1, dtype=_F32) for shape in ((0, 0), (0, 0), (0,))]
    return [c.cast(loss, x.type.dtype), *(c.cast(each, x.type.dtype) for each in nothing)]
