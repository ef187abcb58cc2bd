"""Converters of ONNX Runtime's quantized operators, of the domain com.microsoft.

The onnx package knows nothing of them, so each entry says how many operands and which attributes its op has. What is
computed is what the op's definition says: operands dequantized, the float op, the result quantized.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.onnx_quantized import dequantize, dequantized_matrix, number, quantize, side
from aot.frontend.onnx_registry import CONVERTERS, Context, Converter, Result
from aot.frontend.quantizing import quantized_at_run
from aot.ir import Value

DOMAIN = "com.microsoft"


@dataclass(frozen=True)
class Contributed:
    """An op of the domain: the least and the most operands, the most results, and the names of its attributes."""

    least: int
    most: int
    results: int
    attributes: frozenset[str]
    convert: Converter


CONTRIB: dict[tuple[str, str], Contributed] = {}


def contrib(name: str, least: int, most: int, *attributes: str, results: int = 1) -> Callable[[Converter], Converter]:
    """Registers a converter of an op of ONNX Runtime."""

    def add(converter: Converter) -> Converter:
        assert (DOMAIN, name) not in CONTRIB, name
        CONTRIB[DOMAIN, name] = Contributed(least, most, results, frozenset(attributes), converter)
        return converter

    return add


def contributed(c: Context) -> Sequence[Value | None]:
    """The results of a node of one of these ops. Raises ModelError for operands or attributes that it does not have."""
    entry = CONTRIB[DOMAIN, c.op_type]
    if not entry.least <= len(c.node.input) <= entry.most:
        expected = str(entry.least) if entry.least == entry.most else f"{entry.least} to {entry.most}"
        c.fail(f"the op has {expected} operands; the node has {len(c.node.input)}")
    if c.outputs > entry.results:
        c.fail(f"the op has {entry.results} results; the node has {c.outputs}")
    unknown = sorted({*c.attributes} - entry.attributes)
    if unknown:
        c.fail(f"the op has no attribute {unknown[0]!r}; it has {', '.join(sorted(entry.attributes)) or 'none'}")
    made = entry.convert(c)
    return [made] if isinstance(made, Value) else [each if isinstance(each, Value) else None for each in made]


def plain(c: Context, name: str, *inputs: Value | None, attributes: Mapping[str, object] | None = None) -> Value:
    """What the op of the default domain gives for operands, with the node's attributes of these names."""
    kept = {key: value for key, value in c.attributes.items() if attributes is None or key in attributes}
    made = CONVERTERS["", name](replace(c, inputs=list(inputs), attributes=kept))
    assert isinstance(made, Value)
    return made


def _real(c: Context, first: int) -> Value:
    """What operand `first` stands for, its scale and zero point being the next ones."""
    return dequantize(c, c.input(first), c.input(first + 1), c.optional(first + 2))


def _numbers(c: Context, x: Value, first: int, like: DType) -> Value:
    """x in numbers of the type of the zero point, or of `like`; its scale and zero point are operand `first` and on."""
    zero = c.optional(first + 1)
    return quantize(c, x, c.input(first), zero, like if zero is None else zero.type.dtype)


# Conversions.


@contrib("QuantizeLinear", 2, 3, "axis", "block_size", "output_dtype", "saturate", "precision")
def _quantize_linear(c: Context) -> Result:
    return CONVERTERS["", "QuantizeLinear"](c)


@contrib("DequantizeLinear", 2, 3, "axis", "block_size", "output_dtype")
def _dequantize_linear(c: Context) -> Result:
    return CONVERTERS["", "DequantizeLinear"](c)


# Elementwise.


@contrib("QLinearAdd", 7, 8)
def _add(c: Context) -> Result:
    return _numbers(c, c.op("add", _real(c, 0), _real(c, 3)), 6, c.dtype())


@contrib("QLinearMul", 7, 8)
def _mul(c: Context) -> Result:
    return _numbers(c, c.op("mul", _real(c, 0), _real(c, 3)), 6, c.dtype())


@contrib("QLinearSigmoid", 4, 5)
def _sigmoid(c: Context) -> Result:
    return _numbers(c, c.op("sigmoid", _real(c, 0)), 3, c.dtype())


@contrib("QLinearLeakyRelu", 4, 5, "alpha")
def _leaky_relu(c: Context) -> Result:
    made = c.op("leaky_relu", _real(c, 0), alpha=c.float_attribute("alpha", 0.01))
    return _numbers(c, made, 3, c.dtype())


@contrib("QLinearWhere", 9, 9)
def _where(c: Context) -> Result:
    return _numbers(c, c.op("where", c.input(0), _real(c, 1), _real(c, 4)), 7, c.dtype(1))


@contrib("QLinearSoftmax", 5, 5, "axis", "opset")
def _softmax(c: Context) -> Result:
    opset = c.int_attribute("opset")
    x = _real(c, 0)
    axis = c.axis(c.int_attribute("axis", -1 if opset >= 13 else 1))
    if opset >= 13:
        return _numbers(c, c.op("softmax", x, axis=axis), 3, c.dtype())
    flat = c.reshape(x, _flattened(x, axis))
    return _numbers(c, c.reshape(c.op("softmax", flat, axis=1), x.type.shape), 3, c.dtype())


def _flattened(x: Value, axis: int) -> tuple[Dim, Dim]:
    rows: Dim = 1
    columns: Dim = 1
    for place, extent in enumerate(x.type.shape):
        if place < axis:
            rows = rows * extent
        else:
            columns = columns * extent
    return rows, columns


@contrib("QLinearConcat", 5, 1 << 16, "axis")
def _concat(c: Context) -> Result:
    if (c.count - 2) % 3:
        c.fail(f"each piece has a scale and a zero point; there are {c.count - 2} operands")
    pieces = [_real(c, first) for first in range(2, c.count, 3)]
    axis = c.axis(c.int_attribute("axis"), pieces[0].type.rank)
    return _numbers(c, c.op("concat", *pieces, axis=axis), 0, c.dtype(2))


# Reductions and windows.


@contrib("QLinearReduceMean", 4, 5, "axes", "keepdims")
def _reduce_mean(c: Context) -> Result:
    x = _real(c, 0)
    axes = c.axes(c.ints_attribute("axes"))
    made = c.op("reduce_mean", x, axes=axes, keepdims=c.bool_attribute("keepdims", True))
    return _numbers(c, made, 3, c.dtype())


def _channels_last(c: Context, convert: Callable[[Context], Value]) -> Value:
    """A node whose image may lie channels last: `convert` is given it channels first."""
    if not c.bool_attribute("channels_last", False):
        return convert(c)
    rank = c.rank()
    first = (0, rank - 1, *range(1, rank - 1))
    made = convert(replace(c, inputs=[c.transpose(c.input(0), first), *c.inputs[1:]]))
    return c.transpose(made, (0, *range(2, rank), 1))


@contrib("QLinearGlobalAveragePool", 5, 5, "channels_last")
def _global_average_pool(c: Context) -> Result:
    def convert(c: Context) -> Value:
        x = _real(c, 0)
        return _numbers(c, c.op("reduce_mean", x, axes=tuple(range(2, x.type.rank)), keepdims=True), 3, c.dtype())

    return _channels_last(c, convert)


_POOL = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")


@contrib("QLinearAveragePool", 4, 5, "channels_last", *_POOL)
def _average_pool(c: Context) -> Result:
    def convert(c: Context) -> Value:
        made = plain(c, "AveragePool", _real(c, 0), attributes=dict.fromkeys(_POOL))
        return _numbers(c, made, 3, c.dtype())

    return _channels_last(c, convert)


@contrib(
    "QLinearConv", 8, 9, "auto_pad", "channels_last", "dilations", "group", "kernel_shape", "pads", "strides"
)  # fmt: skip
def _conv(c: Context) -> Result:
    def convert(c: Context) -> Value:
        made = CONVERTERS["", "QLinearConv"](c)
        assert isinstance(made, Value)
        return made

    return _channels_last(c, convert)


# Products.


@contrib("QGemm", 6, 9, "alpha", "transA", "transB")
def _gemm(c: Context) -> Result:
    a, b, c_scale = c.input(0), c.input(3), c.input(4)
    if c.rank() != 2 or b.type.rank != 2:
        c.fail(f"operands must have rank 2; they have {c.rank()} and {b.type.rank}")
    alpha = c.float_attribute("alpha", 1.0)
    if c.bool_attribute("transA", False):
        a = c.transpose(a, (1, 0))
    if c.bool_attribute("transB", False):
        b = c.transpose(b, (1, 0))
    a_scale = number(c, c.input(1))
    left = dequantized_matrix(c, a, a_scale, c.input(2), True)
    right = dequantized_matrix(c, b, c_scale, c.input(5), False)
    made = c.op("matmul", left, right)
    if c.has(6):
        unit = c.op("mul", a_scale, side(c, c_scale, 2, False) or c_scale)
        held = c.op("dequantize", c.expand(c.input(6), made.type.shape), unit, None)
        made = c.op("add", made, held)
    if alpha != 1.0:
        made = c.op("mul", made, c.scalar(alpha, dtypes.F32))
    return _numbers(c, made, 7, c.dtype()) if c.has(7) else made


@contrib("MatMulIntegerToFloat", 4, 7)
def _matmul_to_float(c: Context) -> Result:
    left = dequantized_matrix(c, c.input(0), c.input(2), c.optional(4), True)
    right = dequantized_matrix(c, c.input(1), c.input(3), c.optional(5), False)
    return _plus(c, plain(c, "MatMul", left, right), c.optional(6))


@contrib("DynamicQuantizeMatMul", 3, 5)
def _matmul_at_run(c: Context) -> Result:
    numbers, scale, zero = quantized_at_run(c.builder, c.input(0))
    left = c.op("dequantize", numbers, scale, zero)
    right = dequantized_matrix(c, c.input(1), c.input(2), c.optional(3), False)
    return _plus(c, plain(c, "MatMul", left, right), c.optional(4))


def _plus(c: Context, product: Value, bias: Value | None) -> Value:
    return product if bias is None else c.op("add", product, bias)


# Attention.

_ATTENTION = (
    "do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer", "scale", "unidirectional",
)  # fmt: skip


@contrib("QAttention", 5, 9, *_ATTENTION, results=2)
def _attention(c: Context) -> Result:
    """Queries, keys and values of one product with a quantized weight, then attention in floats."""
    if c.bool_attribute("do_rotary", False) or c.bool_attribute("past_present_share_buffer", False):
        c.unsupported("rotary embeddings and shared buffers of QAttention")
    if c.rank() != 3:
        c.fail(f"its input must have rank 3; it has rank {c.rank()}")
    x = dequantized_matrix(c, c.input(0), number(c, c.input(3)), c.optional(6), True)
    weight = dequantized_matrix(c, c.input(1), c.input(4), c.optional(7), False)
    made = c.op("add", c.op("matmul", x, weight), c.input(2))
    batch, length, width = made.type.shape
    heads = c.int_attribute("num_heads")
    if not isinstance(width, int) or heads < 1 or width % (3 * heads):
        c.fail(f"a width of {width} does not divide into queries, keys and values of {heads} heads")
    size = width // 3 // heads
    parts = [c.slice_axis(made, 2, number * heads * size, heads * size) for number in range(3)]
    turned = [c.transpose(c.reshape(part, (batch, length, heads, size)), (0, 2, 1, 3)) for part in parts]
    q, k, v = turned
    present: Value | None = None
    if c.has(8):
        past = c.input(8)
        old = [c.reshape(c.slice_axis(past, 0, number, 1), past.type.shape[1:]) for number in range(2)]
        k, v = c.op("concat", old[0], k, axis=2), c.op("concat", old[1], v, axis=2)
    if c.wants(1):
        shape = (1, *k.type.shape)
        present = c.op("concat", c.reshape(k, shape), c.reshape(v, shape), axis=0)
    result = c.op(
        "attention", q, k, v, _mask(c, batch, length, k.type.shape[2]),
        scale=c.float_attribute("scale", 0.0) or size**-0.5, causal=c.bool_attribute("unidirectional", False),
    )  # fmt: skip
    flat = c.reshape(c.transpose(result, (0, 2, 1, 3)), (batch, length, heads * size))
    return (flat, present)


def _mask(c: Context, batch: Dim, length: Dim, keys: Dim) -> Value | None:
    """The additive mask [batch, 1, length or 1, keys] of a mask: lengths [batch], or of 0 and 1 for each key."""
    mask = c.optional(5)
    if mask is None:
        return None
    rank = mask.type.rank
    if rank == 1:
        if mask.type.shape[0] != batch:
            c.unsupported(f"a mask_index of shape {list(mask.type.shape)}: lengths [batch], or a mask of 0 and 1")
        places = c.op("iota", shape=(1, keys), axis=1, start=0, step=1, dtype=mask.type.dtype)
        kept = c.op("lt", places, c.reshape(mask, (batch, 1)))
    else:
        kept = c.op("gt", mask, c.scalar(0, mask.type.dtype))
    shape = {1: (batch, 1, 1, keys), 2: (batch, 1, 1, keys), 3: (batch, 1, length, keys)}.get(rank)
    if shape is None:
        c.unsupported(f"a mask of rank {rank}")
    filled = c.scalar(c.float_attribute("mask_filter_value", -10000.0), dtypes.F32)
    return c.op("where", c.reshape(kept, shape), c.scalar(0.0, dtypes.F32), filled)
