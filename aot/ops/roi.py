"""OPAQUE ops over regions of interest: `roi_align` and `max_roi_pool`.

How many pixels a region covers depends on its coordinates, so that no other kind says it: a bin's pixels
are a loop with bounds of its own. Both walk the image's channels one by one, and never read outside of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import I64
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, float_attr, int_attr, need_family, need_rank, need_same_dtype, normal, with_constants
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent

MOST_SAMPLES = 1 << 20
"""Samples along one side of a bin; coordinates that ask for more, or are no numbers, get this many or none."""


def _pooled(attrs: Attrs) -> tuple[int, int]:
    height, width = int_attr(attrs, "height"), int_attr(attrs, "width")
    if min(height, width) < 1:
        raise OpError(f"the result of a region must have pixels; its size is {height} x {width}")
    return height, width


def _align_infer(attrs: Attrs, x: TensorType, rois: TensorType, batch: TensorType) -> TensorType:
    need_family("roi_align's operands", x, FLOAT)
    need_same_dtype(x, rois)
    need_rank("the image", x, 4, 4)
    need_rank("the regions", rois, 2, 2)
    same_extent(rois.shape[1], 4, "the coordinates of a region")
    need_rank("the batch indices", batch, 1, 1)
    same_extent(batch.shape[0], rois.shape[0], "the batch indices and the regions")
    if batch.dtype != I64:
        raise OpError(f"the batch indices must be i64; they are {batch.dtype}")
    if attrs["mode"] not in ("avg", "max") or int_attr(attrs, "samples") < 0:
        raise OpError(f"mode is avg or max and samples not negative; they are {attrs['mode']} and {attrs['samples']}")
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *_pooled(attrs)))


def _taps(place: Any, extent: int) -> list[tuple[int, Any]]:
    """Two pixels and their weights; none outside of the image and its border."""
    if not -1.0 <= place <= extent:
        return []
    place = max(place, type(place)(0))
    low = min(int(place), extent - 1)
    if low == extent - 1:
        return [(low, type(place)(1)), (low, type(place)(0))]
    part = place - type(place)(low)
    return [(low, 1 - part), (low + 1, part)]


def _align_reference(attrs: Attrs, x: Array, rois: Array, batch: Array) -> Array:
    height, width = _pooled(attrs)
    real = x.dtype.type
    shift = real(0.5 if attrs["half_pixel"] else 0.0)
    result = np.zeros((len(rois), x.shape[1], height, width), x.dtype)
    for number, roi in enumerate(rois):
        image = x[min(max(int(batch[number]), 0), x.shape[0] - 1)]
        left, top, right, bottom = (roi * real(float_attr(attrs, "scale")) - shift).tolist()
        ends = (real(bottom) - real(top), real(right) - real(left))
        sizes = ends if attrs["half_pixel"] else tuple(max(end, real(1)) for end in ends)
        bins = (sizes[0] / real(height), sizes[1] / real(width))
        fixed = int_attr(attrs, "samples")
        counts = tuple(fixed or max(math.ceil(size), 0) for size in bins)
        for row, column in np.ndindex(height, width):
            found = []
            for i, j in np.ndindex(*counts):
                y = real(top) + real(row) * bins[0] + (real(i) + real(0.5)) * bins[0] / real(counts[0])
                z = real(left) + real(column) * bins[1] + (real(j) + real(0.5)) * bins[1] / real(counts[1])
                down, across = _taps(y, x.shape[2]), _taps(z, x.shape[3])
                parts = [image[:, p, q] * (v * w) for p, v in down for q, w in across]
                parts = parts or [np.zeros(x.shape[1], x.dtype)]
                found.append(np.max(parts, axis=0) if attrs["mode"] == "max" else np.sum(parts, axis=0))
            if found and attrs["mode"] == "max":
                result[number, :, row, column] = np.max(found, axis=0)
            elif found:
                result[number, :, row, column] = np.sum(found, axis=0) / real(len(found))
    return result


_ALIGN = r"""
typedef struct { i64 low, high; IN0_T below, above; } taps;
static inline taps taps_of(IN0_T place, i64 extent) {
  taps t = {0, 0, 0, 0};
  if (!(place >= -1) || !(place <= extent)) return t;
  if (!(place > 0)) place = 0;
  t.low = (i64)place;
  if (t.low >= extent - 1) { t.low = t.high = extent - 1; t.below = 1; return t; }
  t.high = t.low + 1; t.above = place - (IN0_T)t.low; t.below = 1 - t.above;
  return t;
}
static inline i64 samples_of(IN0_T size) {
  if (ATTR_samples) return ATTR_samples;
  if (!(size > 0)) return 0;
  if (size >= MOST) return MOST;
  const i64 whole = (i64)size;
  return whole + (whole < size);
}
static void roi_align(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const IN0_T *rois = call->inputs[1].data;
  const i64 *batches = call->inputs[2].data;
  IN0_T *out = call->outputs[0].data;
  const i64 images = x->shape[0], channels = x->shape[1], height = x->shape[2], width = x->shape[3];
  i64 first, end;
  aot_share(call, call->outputs[0].shape[0] * channels, &first, &end);
  const IN0_T shift = ATTR_half_pixel ? 0.5 : 0.0, scale = ATTR_scale;
  for (i64 unit = first; unit < end; unit++) {
    const i64 roi = unit / channels, channel = unit % channels;
    i64 batch = batches[roi];
    batch = batch < 0 ? 0 : batch >= images ? images - 1 : batch;
    const IN0_T *image = (const IN0_T *)x->data + (batch * channels + channel) * height * width;
    const IN0_T left = rois[roi * 4] * scale - shift, top = rois[roi * 4 + 1] * scale - shift;
    IN0_T wide = rois[roi * 4 + 2] * scale - shift - left, high = rois[roi * 4 + 3] * scale - shift - top;
    if (!ATTR_half_pixel) { wide = wide < 1 ? 1 : wide; high = high < 1 ? 1 : high; }
    const IN0_T bin_y = high / ATTR_height, bin_x = wide / ATTR_width;
    const i64 rows = samples_of(bin_y), columns = samples_of(bin_x);
    for (i64 py = 0; py < ATTR_height; py++) for (i64 px = 0; px < ATTR_width; px++) {
      IN0_T total = 0, most = 0;
      for (i64 i = 0; i < rows; i++) {
        const taps y = taps_of(top + py * bin_y + (i + (IN0_T)0.5) * bin_y / rows, height);
        const IN0_T *low = image + y.low * width, *up = image + y.high * width;
        for (i64 j = 0; j < columns; j++) {
          const taps z = taps_of(left + px * bin_x + (j + (IN0_T)0.5) * bin_x / columns, width);
          const IN0_T a = low[z.low] * (y.below * z.below), b = low[z.high] * (y.below * z.above);
          const IN0_T c = up[z.low] * (y.above * z.below), d = up[z.high] * (y.above * z.above);
          const IN0_T ab = a > b ? a : b, cd = c > d ? c : d, top_one = ab > cd ? ab : cd;
          most = (i == 0 && j == 0) || top_one > most ? top_one : most;
          total += a + b + c + d;
        }
      }
      const i64 count = rows * columns > 1 ? rows * columns : 1;
      out[(unit * ATTR_height + py) * ATTR_width + px] = AVERAGE ? total / count : most;
    }
  }
}
"""

# Both kernels have a pixel of the result in each lane; all take the steps of the largest bin among them.
_DIVIDE = """
@triton.jit
def divide(a, b):
    if a.dtype == tl.float32:
        found = tl.div_rn(a, b)
    else:
        found = a / b
    return found
"""

_ALIGN_TRITON = """
@triton.jit
def taps_of(place, extent):
    inside = (place >= -1) & (place <= extent)
    place = tl.where(inside & (place > 0), place, 0.0)
    low = place.to(tl.int64)
    is_last = low >= extent - 1
    low = tl.where(is_last, extent - 1, low)
    high = tl.where(is_last, low, low + 1)
    above = tl.where(is_last, 0.0, place - low.to(place.dtype))
    below = 1 - above
    zero = tl.zeros(place.shape, tl.int64)
    return (tl.where(inside, low, zero), tl.where(inside, high, zero), tl.where(inside, below, 0.0),
            tl.where(inside, above, 0.0))

@triton.jit
def samples_of(size):
    if SAMPLES > 0:
        count = tl.full(size.shape, SAMPLES, tl.int32)
    else:
        whole = tl.ceil(tl.where(size >= MOST, MOST * 1.0, tl.where(size > 0, size, 0.0)))
        count = whole.to(tl.int32)
    return count

@triton.jit
def coordinate(rois, place, inside, scale, shift):
    return tl.load(rois + place, mask=inside, other=0).to(REAL) * scale - shift

@triton.jit
def roi_align(program, in0, in0_shape, in1, in2, out0, out0_elements, scale):
    at = program.to(tl.int64) * 128 + tl.arange(0, 128)
    inside = at < out0_elements
    channels = in0_shape[1]
    height = in0_shape[2]
    width = in0_shape[3]
    px = at % WIDTH
    py = at // WIDTH % HEIGHT
    unit = at // (WIDTH * HEIGHT)
    roi = unit // channels
    batch = tl.load(in2 + roi, mask=inside, other=0)
    batch = tl.minimum(tl.maximum(batch, 0), in0_shape[0] - 1)
    image = in0 + (batch * channels + unit % channels) * height * width
    by = tl.full((128,), scale, REAL)
    shift = tl.full((128,), 0.5 * HALF, REAL)
    left = coordinate(in1, roi * 4, inside, by, shift)
    top = coordinate(in1, roi * 4 + 1, inside, by, shift)
    wide = coordinate(in1, roi * 4 + 2, inside, by, shift) - left
    high = coordinate(in1, roi * 4 + 3, inside, by, shift) - top
    if HALF == 0:
        wide = tl.where(wide < 1, 1.0, wide)
        high = tl.where(high < 1, 1.0, high)
    bin_y = divide(high, tl.full((128,), HEIGHT, REAL))
    bin_x = divide(wide, tl.full((128,), WIDTH, REAL))
    rows = samples_of(bin_y)
    columns = samples_of(bin_x)
    rows_real = tl.maximum(rows, 1).to(REAL)
    columns_real = tl.maximum(columns, 1).to(REAL)
    total = tl.zeros((128,), REAL)
    most = tl.zeros((128,), REAL)
    for i in range(0, tl.max(rows, axis=0)):
        y = top + py.to(REAL) * bin_y + divide((tl.zeros((128,), REAL) + i + 0.5) * bin_y, rows_real)
        y_low, y_high, y_below, y_above = taps_of(y, height)
        for j in range(0, tl.max(columns, axis=0)):
            z = left + px.to(REAL) * bin_x + divide((tl.zeros((128,), REAL) + j + 0.5) * bin_x, columns_real)
            z_low, z_high, z_below, z_above = taps_of(z, width)
            here = inside & (i < rows) & (j < columns)
            a = tl.load(image + y_low * width + z_low, mask=here, other=0).to(REAL) * (y_below * z_below)
            b = tl.load(image + y_low * width + z_high, mask=here, other=0).to(REAL) * (y_below * z_above)
            c = tl.load(image + y_high * width + z_low, mask=here, other=0).to(REAL) * (y_above * z_below)
            d = tl.load(image + y_high * width + z_high, mask=here, other=0).to(REAL) * (y_above * z_above)
            largest = tl.maximum(tl.maximum(a, b), tl.maximum(c, d))
            is_first = (i == 0) & (j == 0)
            most = tl.where(here & (is_first | (largest > most)), largest, most)
            total = tl.where(here, total + (a + b + c + d), total)
    if AVERAGE:
        most = divide(total, tl.maximum(rows.to(tl.int64) * columns, 1).to(REAL))
    tl.store(out0 + at, most.to(out0.dtype.element_ty), mask=inside)
"""


def _lanes(attrs: Attrs, x: TensorType, rois: TensorType, *others: TensorType) -> Dim:
    height, width = _pooled(attrs)
    return dimension.ceildiv(rois.shape[0] * x.shape[1] * (height * width), 128)


def _triton(source: str, attrs: Attrs, x: TensorType) -> str:
    height, width = _pooled(attrs)
    names = {
        "HEIGHT": height, "WIDTH": width, "MOST": MOST_SAMPLES, "SAMPLES": attrs.get("samples", 0),
        "HALF": int(bool(attrs.get("half_pixel"))), "AVERAGE": int(attrs.get("mode") == "avg"),
    }  # fmt: skip
    real = "tl.float64" if x.dtype.bits == 64 else "tl.float32"
    return with_constants(_DIVIDE + source, names).replace("REAL", real)  # type: ignore[arg-type]  # integers all


def _align_source(attrs: Attrs, *types: TensorType | None) -> str:
    return f"#define MOST {MOST_SAMPLES}\n#define AVERAGE {int(attrs['mode'] == 'avg')}\n{_ALIGN}"


def _regions(rng: Any, count: int, size: float) -> Array:
    """Boxes inside and across the border, small, empty and turned ones among them."""
    corners = rng.uniform(-2.0, size + 2.0, (count, 4))
    corners[: count // 2, 2:] = corners[: count // 2, :2] + rng.uniform(0.1, size / 2, (count // 2, 2))
    return np.asarray(corners.astype(np.float32))


def _align_samples(rng: Any) -> list[Sample]:
    found = []
    for mode in ("avg", "max"):
        for samples in (0, 1, 2):
            for half_pixel in (False, True):
                attrs = {"height": 3, "width": 2, "samples": samples, "scale": 0.75, "mode": mode}
                batch = np.asarray(rng.integers(0, 2, 6))
                operands = (normal(rng, 2, 3, 7, 9), _regions(rng, 6, 9.0), batch)
                found.append(Sample(operands, {**attrs, "half_pixel": half_pixel}, 1e-3, 1e-3))
    wide = (normal(rng, 1, 2, 1, 1), _regions(rng, 3, 4.0), np.zeros(3, np.int64))
    found.append(Sample(wide, {"height": 2, "width": 2}, 1e-3, 1e-3))
    double = (normal(rng, 1, 2, 5, 4, dtype=np.float64), _regions(rng, 3, 4.0).astype(np.float64), np.array([5, -3, 0]))
    found.append(Sample(double, {"height": 1, "width": 4}))
    found.append(Sample((normal(rng, 1, 2, 4, 4), np.zeros((0, 4), np.float32), np.zeros(0, np.int64)), {}))
    return found


register(
    OpDef(
        name="roi_align", doc="Every region of x, interpolated to one size.", inputs=("x", "rois", "batch"),
        kind=Kind.OPAQUE, infer=_align_infer, samples=_align_samples, reference=_align_reference, cost_flops=64,
        sources={
            "cpu": KernelSource(text=_align_source, function="roi_align"),
            "cuda": KernelSource(
                text=lambda attrs, x, *others: _triton(_ALIGN_TRITON, attrs, x), function="roi_align", programs=_lanes,
            ),
        },
        attrs={
            "height": AttrSpec("int", 1), "width": AttrSpec("int", 1),
            "samples": AttrSpec("int", 0, "per side of a bin; 0: as many as it covers pixels"),
            "scale": AttrSpec("float", 1.0, "of the regions' coordinates to pixels"),
            "half_pixel": AttrSpec("bool", True, "pixels have their centres at halves"),
            "mode": AttrSpec("str", "avg", "avg, or max of the weighted pixels"),
        },
    )
)  # fmt: skip


# max_roi_pool


def _pool_infer(attrs: Attrs, x: TensorType, rois: TensorType) -> TensorType:
    need_family("max_roi_pool's operands", x, FLOAT)
    need_same_dtype(x, rois)
    need_rank("the image", x, 4, 4)
    need_rank("the regions", rois, 2, 2)
    same_extent(rois.shape[1], 5, "the batch index and coordinates of a region")
    return TensorType(x.dtype, (rois.shape[0], x.shape[1], *_pooled(attrs)))


def _half_away(number: float) -> int:
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def _pool_reference(attrs: Attrs, x: Array, rois: Array) -> Array:
    pooled = _pooled(attrs)
    real = x.dtype.type
    result = np.zeros((len(rois), x.shape[1], *pooled), x.dtype)
    for number, roi in enumerate(rois):
        image = x[min(max(int(roi[0]), 0), x.shape[0] - 1)]
        left, top, right, bottom = (_half_away(float(v)) for v in roi[1:] * real(float_attr(attrs, "scale")))
        bins = [real(max(n, 1)) / real(p) for n, p in zip((bottom - top + 1, right - left + 1), pooled, strict=True)]
        for place in np.ndindex(*pooled):
            spans = []
            for axis, start in enumerate((top, left)):
                begin = math.floor(real(place[axis]) * bins[axis]) + start
                end = math.ceil(real(place[axis] + 1) * bins[axis]) + start
                spans.append(slice(*(min(max(edge, 0), x.shape[2 + axis]) for edge in (begin, end))))
            part = image[:, spans[0], spans[1]]
            if part[0].size:
                result[(number, slice(None), *place)] = part.max(axis=(1, 2))
    return result


_POOL = r"""
static inline i64 rounded(IN0_T number) {
  if (!(number > -1e9)) number = -1e9;
  if (number > 1e9) number = 1e9;
  return number < 0 ? -(i64)(0.5 - number) : (i64)(number + 0.5);
}
static inline i64 edge(IN0_T part, i64 up, i64 start, i64 extent) {
  const i64 whole = (i64)part;
  const i64 place = whole + (up && whole < part) + start;
  return place < 0 ? 0 : place > extent ? extent : place;
}
static void max_roi_pool(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const IN0_T *rois = call->inputs[1].data;
  IN0_T *out = call->outputs[0].data;
  const i64 images = x->shape[0], channels = x->shape[1], height = x->shape[2], width = x->shape[3];
  i64 first, end;
  aot_share(call, call->outputs[0].shape[0] * channels, &first, &end);
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *roi = rois + unit / channels * 5;
    i64 batch = roi[0] > 0 ? roi[0] < images ? (i64)roi[0] : images - 1 : 0;
    const IN0_T *image = (const IN0_T *)x->data + (batch * channels + unit % channels) * height * width;
    const IN0_T scale = ATTR_scale;
    const i64 left = rounded(roi[1] * scale), top = rounded(roi[2] * scale);
    const i64 wide = rounded(roi[3] * scale) - left + 1, high = rounded(roi[4] * scale) - top + 1;
    const IN0_T bin_y = (IN0_T)(high > 1 ? high : 1) / ATTR_height, bin_x = (IN0_T)(wide > 1 ? wide : 1) / ATTR_width;
    for (i64 py = 0; py < ATTR_height; py++) for (i64 px = 0; px < ATTR_width; px++) {
      const i64 y0 = edge(py * bin_y, 0, top, height), y1 = edge((py + 1) * bin_y, 1, top, height);
      const i64 x0 = edge(px * bin_x, 0, left, width), x1 = edge((px + 1) * bin_x, 1, left, width);
      IN0_T most = y0 < y1 && x0 < x1 ? image[y0 * width + x0] : 0;
      for (i64 i = y0; i < y1; i++) for (i64 j = x0; j < x1; j++) {
        const IN0_T pixel = image[i * width + j];
        most = pixel > most || pixel != pixel ? pixel : most;
      }
      out[(unit * ATTR_height + py) * ATTR_width + px] = most;
    }
  }
}
"""

_POOL_TRITON = """
@triton.jit
def rounded(number):
    number = tl.where((number > -1e9) == 0, -1e9, number)
    number = tl.where(number > 1e9, 1e9, number)
    return tl.where(number < 0, -(0.5 - number).to(tl.int64), (number + 0.5).to(tl.int64))

@triton.jit
def edge(part, up: tl.constexpr, start, extent):
    whole = part.to(tl.int64)
    place = whole + start
    if up:
        place += (whole.to(part.dtype) < part).to(tl.int64)
    return tl.minimum(tl.maximum(place, 0), extent)

@triton.jit
def coordinate(rois, place, inside):
    return tl.load(rois + place, mask=inside, other=0).to(REAL)

@triton.jit
def max_roi_pool(program, in0, in0_shape, in1, out0, out0_elements, scale):
    at = program.to(tl.int64) * 128 + tl.arange(0, 128)
    inside = at < out0_elements
    channels = in0_shape[1]
    height = in0_shape[2]
    width = in0_shape[3]
    px = at % WIDTH
    py = at // WIDTH % HEIGHT
    unit = at // (WIDTH * HEIGHT)
    roi = unit // channels * 5
    number = coordinate(in1, roi, inside)
    number = tl.where(number > 0, tl.where(number < in0_shape[0], number, in0_shape[0] - 1.0), 0.0)
    image = in0 + (number.to(tl.int64) * channels + unit % channels) * height * width
    by = tl.full((128,), scale, REAL)
    left = rounded(coordinate(in1, roi + 1, inside) * by)
    top = rounded(coordinate(in1, roi + 2, inside) * by)
    wide = tl.maximum(rounded(coordinate(in1, roi + 3, inside) * by) - left + 1, 1)
    high = tl.maximum(rounded(coordinate(in1, roi + 4, inside) * by) - top + 1, 1)
    bin_y = divide(high.to(REAL), tl.full((128,), HEIGHT, REAL))
    bin_x = divide(wide.to(REAL), tl.full((128,), WIDTH, REAL))
    y0 = edge(py.to(REAL) * bin_y, False, top, height)
    y1 = edge((py + 1).to(REAL) * bin_y, True, top, height)
    x0 = edge(px.to(REAL) * bin_x, False, left, width)
    x1 = edge((px + 1).to(REAL) * bin_x, True, left, width)
    inside = inside & (y0 < y1) & (x0 < x1)
    most = tl.load(image + y0 * width + x0, mask=inside, other=0).to(REAL)
    rows = tl.max(tl.where(inside, y1 - y0, 0), axis=0)
    columns = tl.max(tl.where(inside, x1 - x0, 0), axis=0)
    for i in range(0, rows):
        for j in range(0, columns):
            here = inside & (y0 + i < y1) & (x0 + j < x1)
            pixel = tl.load(image + (y0 + i) * width + x0 + j, mask=here, other=0).to(REAL)
            most = tl.where(here & ((pixel > most) | (pixel != pixel)), pixel, most)
    tl.store(out0 + at, most.to(out0.dtype.element_ty), mask=at < out0_elements)
"""


def _pool_samples(rng: Any) -> list[Sample]:
    found = []
    for scale, height, width in ((1.0, 2, 2), (0.5, 3, 2), (1.0, 5, 5)):
        rois = np.concatenate([rng.integers(0, 2, (6, 1)), _regions(rng, 6, 8.0)], axis=1).astype(np.float32)
        attrs = {"height": height, "width": width, "scale": scale}
        found.append(Sample((normal(rng, 2, 3, 8, 6), rois), attrs))
    return found


register(
    OpDef(
        name="max_roi_pool", doc="The maxima of a grid of bins over every region of x; 0 for an empty bin.",
        inputs=("x", "rois"), kind=Kind.OPAQUE, infer=_pool_infer, samples=_pool_samples, reference=_pool_reference,
        sources={
            "cpu": KernelSource(text=_POOL, function="max_roi_pool"),
            "cuda": KernelSource(
                text=lambda attrs, x, *others: _triton(_POOL_TRITON, attrs, x), function="max_roi_pool",
                programs=_lanes,
            ),
        },
        cost_flops=64,
        attrs={"height": AttrSpec("int", 1), "width": AttrSpec("int", 1), "scale": AttrSpec("float", 1.0)},
    )
)  # fmt: skip
