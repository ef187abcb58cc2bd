"""Converters of signal ops: transforms are products with tables of sines (`fourier`), spectrograms convolutions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from aot import dtypes
from aot.dims import Dim
from aot.frontend import fourier
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.frontend.shaping import padded
from aot.ir import Array, Value

LARGEST_TRANSFORM = 4096
"""Samples of a frame of STFT: its table has about twice this squared in numbers."""


def _table(length: int, bins: int, inverse: bool) -> tuple[Array, Array]:
    return fourier.table(length, bins, inverse, 1.0 / length if inverse else 1.0)


def _length(c: Context, extent: Dim) -> int:
    if not isinstance(extent, int):
        c.unsupported("a transform whose length is only known when running", "Give the size a value with --dim.")
    return extent


@onnx_op("DFT")
def _dft(c: Context) -> Result:
    x = c.input(0)
    rank = x.type.rank
    if c.opset < 20:
        axis = c.axis(c.int_attribute("axis", 1))
    else:
        axis = c.axis(c.int_scalar(2, "the axis") if c.has(2) else -2)
    if axis == rank - 1 or x.type.shape[-1] not in (1, 2):
        c.fail("the last axis holds real and imaginary parts, and is not transformed")
    parts = 2 if x.type.shape[-1] == 2 else 1
    inverse, onesided = c.bool_attribute("inverse", False), c.bool_attribute("onesided", False)
    if onesided and inverse:
        return _real_signal(c, axis, parts)
    if onesided and parts == 2:
        c.fail("a one-sided transform is of real numbers")
    wanted = c.dims(1, "dft_length")[0] if c.has(1) else x.type.shape[axis]
    length, have = _length(c, wanted), _length(c, x.type.shape[axis])
    if have > length:
        x = c.slice_axis(x, axis, 0, length)
    bins = length // 2 + 1 if onesided else length
    if length > fourier.LARGEST_DIRECT:
        real, imaginary = _parts(c, x, axis, length)
        found = fourier.transform(
            c.builder, (real, imaginary), length, inverse=inverse, scale=1.0 / length if inverse else 1.0, bins=bins
        )
        return _joined(c, found, axis)
    cos, sin = _table(length, bins, inverse)
    rows = min(have, length)  # zeros beyond add nothing
    # Rows (sample, part), columns (bin, part): (a + ib)(cos + i sin).
    table = np.empty((rows, parts, bins, 2))
    table[:, 0, :, 0], table[:, 0, :, 1] = cos[:rows], sin[:rows]
    if parts == 2:
        table[:, 1, :, 0], table[:, 1, :, 1] = -sin[:rows], cos[:rows]
    return _transformed(c, x, axis, table)


def _real_signal(c: Context, axis: int, parts: int) -> Value:
    """The inverse of a one-sided transform: the other half of the bins are the conjugates of these."""
    x = c.input(0)
    if parts != 2:
        c.fail("an inverse one-sided transform is of complex numbers")
    have = _length(c, x.type.shape[axis])
    length = _length(c, c.dims(1, "dft_length")[0]) if c.has(1) else 2 * (have - 1)
    bins = length // 2 + 1
    if have > bins:
        x = c.slice_axis(x, axis, 0, bins)
    if length > fourier.LARGEST_DIRECT:
        found = fourier.real_inverse(c.builder, _parts(c, x, axis, bins), length, 1.0 / length)
        return _joined(c, (found,), axis)
    rows = min(have, bins)
    cos, sin = (part.T for part in _table(length, rows, True))
    twice = np.full((rows, 1), 2.0)
    twice[0] = 1.0
    if length % 2 == 0 and rows == bins:
        twice[-1] = 1.0
    table = np.stack([cos * twice, -sin * twice], axis=1)[..., None]
    return _transformed(c, x, axis, table)


def _parts(c: Context, x: Value, axis: int, length: int) -> fourier.Parts:
    """Real and imaginary parts of `length` samples each, the last axis; zeros follow where there are fewer."""
    rank = x.type.rank
    missing = [0] * rank
    missing[axis] = length - _length(c, x.type.shape[axis])
    x = padded(c.builder, x, [0] * rank, missing, "constant", None)
    moved = c.transpose(x, (*(a for a in range(rank) if a != axis), axis))
    parts = [
        c.reshape(c.slice_axis(moved, rank - 2, part, 1), (*moved.type.shape[:-2], length))
        for part in range(_length(c, x.type.shape[-1]))
    ]
    return parts[0], parts[1] if len(parts) > 1 else None


def _joined(c: Context, parts: Sequence[Value], axis: int) -> Value:
    """Parts, of which the last axis was `axis`, side by side."""
    columns = [c.reshape(part, (*part.type.shape, 1)) for part in parts]
    both = columns[0] if len(columns) == 1 else c.op("concat", *columns, axis=columns[0].type.rank - 1)
    rank = both.type.rank
    order = [*range(rank - 2)]
    order.insert(axis, rank - 2)
    return c.transpose(both, (*order, rank - 1))


def _transformed(c: Context, x: Value, axis: int, table: Array) -> Value:
    """The samples along an axis and the parts behind, times a table [samples, parts, results, their parts]."""
    rank = x.type.rank
    rows, parts, bins, made = table.shape
    others = [a for a in range(rank - 1) if a != axis]
    moved = c.transpose(x, (*others, axis, rank - 1))
    lead = tuple(x.type.shape[a] for a in others)
    flat = c.reshape(moved, (*lead, rows * parts))
    weights = c.builder.const(table.reshape(rows * parts, bins * made).astype(x.type.dtype.numpy))
    result = c.reshape(c.op("matmul", flat, weights), (*lead, bins, made))
    back = [*range(rank)]
    for place, a in enumerate((*others, axis, rank - 1)):
        back[a] = place
    return c.transpose(result, tuple(back))


@onnx_op("STFT")
def _stft(c: Context) -> Result:
    x = c.input(0)
    batch, samples = x.type.shape[:2]
    parts = 2 if x.type.rank == 3 and x.type.shape[2] == 2 else 1
    if x.type.rank not in (2, 3) or (x.type.rank == 3 and x.type.shape[2] not in (1, 2)):
        c.fail("the signal is [batch, samples], with an axis of real and imaginary parts behind them or none")
    step = c.int_scalar(1, "the frame step")
    window = _contents(c, c.input(2), "the window") if c.has(2) else None
    if c.has(3):
        length = c.int_scalar(3, "the frame length")
    elif window is not None:
        length = window.size
    else:
        c.fail("neither a window nor a frame length is given")
    if length > LARGEST_TRANSFORM:
        c.unsupported(f"frames of more than {LARGEST_TRANSFORM} samples")
    onesided = c.bool_attribute("onesided", True)
    if onesided and parts == 2:
        c.unsupported("a one-sided transform of complex numbers")
    bins = length // 2 + 1 if onesided else length
    cos, sin = (part.T * (1.0 if window is None else window[None, :]) for part in _table(length, bins, False))
    filters = np.empty((bins, 2, parts, length))
    filters[:, 0, 0], filters[:, 1, 0] = cos, sin
    if parts == 2:
        filters[:, 0, 1], filters[:, 1, 1] = -sin, cos
    signal = c.reshape(x, (batch, samples, parts)) if x.type.rank == 2 else x
    signal = c.transpose(signal, (0, 2, 1)) if parts == 2 else c.reshape(signal, (batch, 1, samples))
    weights = c.builder.const(filters.reshape(bins * 2, parts, length).astype(x.type.dtype.numpy))
    spectrum = c.op("conv", signal, weights, strides=(step,), pads=(0, 0), dilations=(1,), groups=1)
    turned = c.transpose(spectrum, (0, 2, 1))
    return c.reshape(turned, (batch, turned.type.shape[1], bins, 2))


def _contents(c: Context, value: Value, what: str) -> Array:
    """The numbers of an operand that must be known when building."""
    if value in c.builder.consts:
        return np.asarray(c.builder.consts[value].array(), np.float64).reshape(-1)
    known = c.builder.known(value)
    if known is None:
        c.unsupported(f"{what} depends on data that is only known when running")
    return np.array([float(number) for number in known.reshape(-1)])


@onnx_op("MelWeightMatrix")
def _mel_weight_matrix(c: Context) -> Result:
    bins, length, rate = (c.int_scalar(number, what) for number, what in
                          ((0, "num_mel_bins"), (1, "dft_length"), (2, "sample_rate")))  # fmt: skip
    low, high = c.number(3, "lower_edge_hertz"), c.number(4, "upper_edge_hertz")
    to = c.dtype_attribute("output_datatype", dtypes.F32)

    def mel(hertz: float) -> float:
        return float(2595.0 * np.log10(1.0 + hertz / 700.0))

    places = mel(low) + np.arange(bins + 2) * (mel(high) - mel(low)) / (bins + 2)
    hertz = 700.0 * (10.0 ** (places / 2595.0) - 1.0)
    edges = ((length + 1) * hertz // rate).astype(np.int64)
    matrix = np.zeros((length // 2 + 1, bins))
    for number in range(bins):
        first, centre, last = edges[number : number + 3]
        if centre == first:
            matrix[centre, number] = 1.0
        else:
            up = np.arange(first, centre + 1)
            matrix[up, number] = (up - first) / (centre - first)
        if last > centre:
            down = np.arange(centre, last)
            matrix[down, number] = (last - down) / (last - centre)
    return c.builder.const(matrix.astype(to.numpy))
