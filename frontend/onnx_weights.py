"""Converters of ops with weights in blocks of few bits: MatMulNBits and GatherBlockQuantized of ONNX Runtime.

Their bytes are unpacked when building, into a constant of u4 or u8; what is made of it in a kernel is the compiler's.
"""

from __future__ import annotations

import numpy as np

from aot import dtypes
from aot.frontend.onnx_contrib import contrib
from aot.frontend.onnx_quantized import dequantize
from aot.frontend.onnx_registry import Context, Result
from aot.frontend.quantizing import contents
from aot.ir import Array, Value


def _constant(c: Context, index: int, what: str) -> Array:
    held = contents(c.builder, c.input(index))
    if held is None:
        c.unsupported(f"{what} that is no constant")
    return held


def _unpacked(packed: Array, bits: int, length: int) -> Array:
    """Numbers of 2, 4 or 8 bits of bytes [..., n], low bits first: u8 [..., length]."""
    if bits == 8:
        return packed[..., :length].astype(np.uint8)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed[..., None] >> shifts) & ((1 << bits) - 1)
    return np.asarray(numbers.reshape(*packed.shape[:-1], -1)[..., :length], np.uint8)


def _numbers(c: Context, held: Array, bits: int) -> Value:
    """Unsigned numbers of up to 4 bits as u4, of more as u8."""
    return c.builder.const(held.astype((dtypes.U4 if bits <= 4 else dtypes.U8).numpy))


def _middle(bits: int) -> int:
    """The zero point of weights that have none of their own."""
    return 1 << (bits - 1)


@contrib(
    "MatMulNBits", 3, 6, "K", "N", "accuracy_level", "bits", "block_size", "weight_prepacked"
)  # fmt: skip
def _matmul_n_bits(c: Context) -> Result:
    x = c.input(0)
    summed, columns = c.int_attribute("K"), c.int_attribute("N")
    bits, block = c.int_attribute("bits", 4), c.int_attribute("block_size")
    if bits not in (2, 4, 8):
        c.unsupported(f"weights of {bits} bits: 2, 4 and 8 are possible")
    if c.int_attribute("weight_prepacked", 0):
        c.unsupported("a weight that is packed for one processor")
    if summed < 1 or columns < 1 or block < 1:
        c.fail(f"K, N and block_size must be positive; they are {summed}, {columns} and {block}")
    blocks = -(-summed // block)
    packed = _constant(c, 1, "a weight in blocks")
    if packed.size * 8 != columns * blocks * block * bits:
        expected = columns * blocks * block * bits // 8
        c.fail(f"{columns} columns of {blocks} blocks of {block} are {expected} bytes; the weight has {packed.size}")
    numbers = _unpacked(packed.reshape(columns, -1).view(np.uint8), bits, blocks * block)
    scale = _constant(c, 2, "scales")
    if scale.size != columns * blocks:
        c.fail(f"{columns} columns of {blocks} blocks need as many scales; there are {scale.size}")
    scale = scale.reshape(columns, blocks)
    zero = _zeros(c, columns, blocks, bits)
    groups = contents(c.builder, c.optional(4))
    if c.has(4) and groups is None:
        c.unsupported("a g_idx that is no constant")
    if groups is not None and not np.array_equal(groups[:summed], np.arange(summed) // block):
        if groups.size < summed or groups.min() < 0 or groups.max() >= blocks:
            c.fail(f"g_idx must have {summed} numbers from 0 to {blocks - 1}")
        scale, zero = scale[:, groups[:summed]], zero[:, groups[:summed]]
        weight = _weight(c, numbers[:, :summed], scale, zero, bits)
    else:
        made = _weight(c, numbers.reshape(columns, blocks, block), scale[..., None], zero[..., None], bits)
        weight = c.reshape(made, (columns, blocks * block))
        weight = c.slice_axis(weight, 1, 0, summed)
    result = c.op("matmul", x, c.cast(c.transpose(weight, (1, 0)), x.type.dtype))
    return c.op("add", result, c.input(5)) if c.has(5) else result


def _zeros(c: Context, columns: int, blocks: int, bits: int) -> Array:
    """The zero points [columns, blocks]: u8, or floats where they are no whole numbers of the weight's range."""
    if not c.has(3):
        return np.full((columns, blocks), _middle(bits), np.uint8)
    held = _constant(c, 3, "zero points")
    if held.dtype == np.uint8:
        width = -(-blocks * bits // 8)
        if held.size != columns * width:
            c.fail(f"zero points of {columns} columns are {columns * width} bytes; there are {held.size}")
        return _unpacked(held.reshape(columns, width), bits, blocks)
    if held.size != columns * blocks:
        c.fail(f"{columns} columns of {blocks} blocks need as many zero points; there are {held.size}")
    wide = held.reshape(columns, blocks).astype(np.float32)
    is_whole = np.all((wide == np.rint(wide)) & (wide >= 0) & (wide < 1 << bits))
    return wide.astype(np.uint8) if is_whole else wide


def _weight(c: Context, numbers: Array, scale: Array, zero: Array, bits: int) -> Value:
    """(numbers - zero) * scale, in the type of the scale."""
    if zero.dtype == np.uint8:
        parameters = c.builder.const(np.ascontiguousarray(scale)), _numbers(c, zero, bits)
        return c.op("dequantize", _numbers(c, numbers, bits), *parameters)
    whole = c.builder.const(((numbers - zero) * scale.astype(np.float32)).astype(np.float32))
    return c.cast(whole, c.input(2).type.dtype)


@contrib("GatherBlockQuantized", 3, 4, "bits", "block_size", "gather_axis", "quantize_axis")
def _gather_blocks(c: Context) -> Result:
    """Rows of a table in blocks of few bits: the numbers are gathered, and their scales, and only then made floats."""
    data, indices, scale = c.input(0), c.input(1), c.input(2)
    bits, block = c.int_attribute("bits", 4), c.int_attribute("block_size", 128)
    rank = data.type.rank
    gathered, along = c.axis(c.int_attribute("gather_axis", 0)), c.axis(c.int_attribute("quantize_axis", 1))
    if bits not in (2, 4, 8):
        c.unsupported(f"numbers of {bits} bits: 2, 4 and 8 are possible")
    zero = c.optional(3)
    held = contents(c.builder, data)
    if held is not None and (data.type.dtype is dtypes.U8 or data.type.dtype.bits < 8):  # rows are read in bytes
        least = None if zero is None else _constant(c, 3, "zero points")
        if data.type.dtype is dtypes.U8 and bits < 8:
            if along != rank - 1:
                c.fail(f"bytes of {8 // bits} numbers are quantized along the last axis; quantize_axis is {along}")
            held = _unpacked(held, bits, held.shape[-1] * 8 // bits)
            blocks = scale.type.shape[-1]
            assert isinstance(blocks, int)
            least = None if least is None else _unpacked(least, bits, blocks)
        signed = data.type.dtype.family == "int"
        wide = np.int8 if signed else np.uint8
        if least is None and not signed:
            least = np.full(_constant(c, 2, "scales").shape, _middle(bits))
        data = c.builder.const(held.astype(wide))
        zero = None if least is None else c.builder.const(least.astype(wide))
    if gathered == along:
        c.fail(f"gather_axis and quantize_axis are both {along}")
    numbers, scales, zeros = (
        None if value is None else c.op("gather", value, indices, axis=gathered) for value in (data, scale, zero)
    )
    assert numbers is not None and scales is not None
    moved = along if along < gathered else along + indices.type.rank - 1
    return dequantize(c, numbers, scales, zeros, moved, block)
