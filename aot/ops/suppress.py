"""OPAQUE op `suppress`: of overlapping boxes the best ones, for every image and class on its own.

The order is the same everywhere: higher scores first, then lower box numbers; a score that is not a number is
never chosen. Overlaps are computed in f32, each operation rounded, as ONNX Runtime does: no fused multiplications.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import F32, I64
from aot.ir import Array, TensorType
from aot.ops.helpers import integers, need_rank, normal
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent


def _infer(
    attrs: Attrs,
    boxes: TensorType,
    scores: TensorType,
    most: TensorType,
    overlap: TensorType,
    least: TensorType | None = None,
) -> tuple[TensorType, ...]:
    need_rank("the boxes", boxes, 3, 3)
    need_rank("the scores", scores, 3, 3)
    same_extent(boxes.shape[2], 4, "the coordinates of a box")
    same_extent(boxes.shape[0], scores.shape[0], "the images of boxes and scores")
    same_extent(boxes.shape[1], scores.shape[2], "the boxes and their scores")
    for what, type_, dtype in (
        ("the boxes", boxes, F32), ("the scores", scores, F32), ("the most boxes of a class", most, I64),
        ("the overlap", overlap, F32), ("the least score", least, F32),
    ):  # fmt: skip
        if type_ is not None and type_.dtype != dtype:
            raise OpError(f"{what} must be {dtype}; it is {type_.dtype}")
    for what, type_ in (("the most boxes of a class", most), ("the overlap", overlap), ("the least score", least)):
        if type_ is not None and type_.elements != 1:
            raise OpError(f"{what} must be one number; it is {type_}")
    room: Any = attrs["room"]
    if dimension.bounds(room)[0] < 0:
        raise OpError(f"there is room for {room} boxes; it must not be negative")
    images, classes = scores.shape[:2]
    return TensorType(I64, (images, classes, room)), TensorType(I64, (images, classes))


def _overlaps(one: Any, other: Any, limit: Any, center: bool) -> bool:
    """Whether two boxes, four f32 each, share more than a part `limit` of their union."""
    low, high = [], []
    for box in (one, other):
        if center:
            half = box[2:] / np.float32(2)
            low.append(box[:2] - half)
            high.append(box[:2] + half)
        else:
            low.append(np.minimum(box[:2], box[2:]))
            high.append(np.maximum(box[:2], box[2:]))
    size = np.minimum(high[0], high[1]) - np.maximum(low[0], low[1])
    areas = [np.prod(h - l, dtype=np.float32) for l, h in zip(low, high, strict=True)]  # noqa: E741
    both = size[0] * size[1]
    union = areas[0] + areas[1] - both
    if not (size[0] > 0 and size[1] > 0 and both > 0 and areas[0] > 0 and areas[1] > 0 and union > 0):
        return False
    return bool(both / union > limit)


def _reference(
    attrs: Attrs, boxes: Array, scores: Array, most: Array, overlap: Array, least: Array | None = None
) -> tuple[Array, Array]:
    room: Any = attrs["room"]
    images, classes = scores.shape[:2]
    places = np.zeros((images, classes, room), np.int64)
    counts = np.zeros((images, classes), np.int64)
    limit = min(max(int(most.reshape(-1)[0]), 0), room)
    with np.errstate(all="ignore"):
        for image, kind in np.ndindex(images, classes):
            row = scores[image, kind]
            fits = ~np.isnan(row) if least is None else row > least.reshape(-1)[0]
            chosen: list[int] = []
            for place in np.argsort(-row, kind="stable"):
                if len(chosen) == limit:
                    break
                if fits[place] and not any(
                    _overlaps(boxes[image, place], boxes[image, other], overlap.reshape(-1)[0], bool(attrs["center"]))
                    for other in chosen
                ):
                    chosen.append(int(place))
            places[image, kind, : len(chosen)] = chosen
            counts[image, kind] = len(chosen)
    return places, counts


_SOURCE = r"""
/* A conversion to double and back keeps the compiler from fusing a product into a sum. */
#define PRODUCT(a, b) ((f32)((f64)(a) * (f64)(b)))
static inline i32 overlaps(const f32 *one, const f32 *other, f32 limit) {
  f32 low[2][2], high[2][2];
  for (i32 b = 0; b < 2; b++) {
    const f32 *box = b ? other : one;
    for (i32 axis = 0; axis < 2; axis++) {
      const f32 p = box[axis], q = box[axis + 2];
      if (ATTR_center) { low[b][axis] = p - q / 2; high[b][axis] = p + q / 2; }
      else { low[b][axis] = p < q ? p : q; high[b][axis] = p < q ? q : p; }
    }
  }
  f32 size[2], area[2];
  for (i32 axis = 0; axis < 2; axis++) {
    const f32 begin = low[0][axis] > low[1][axis] ? low[0][axis] : low[1][axis];
    const f32 end = high[0][axis] < high[1][axis] ? high[0][axis] : high[1][axis];
    size[axis] = end - begin;
    if (!(size[axis] > 0)) return 0;
  }
  for (i32 b = 0; b < 2; b++) area[b] = PRODUCT(high[b][0] - low[b][0], high[b][1] - low[b][1]);
  const f32 both = PRODUCT(size[0], size[1]), all = area[0] + area[1] - both;
  if (!(both > 0) || !(area[0] > 0) || !(area[1] > 0) || !(all > 0)) return 0;
  return both / all > limit;
}
typedef struct { f32 score; i64 place; } candidate;
static inline i32 better(const candidate *a, const candidate *b) {
  return a->score > b->score || (a->score == b->score && a->place < b->place);
}
static inline void sink(candidate *heap, i64 count, i64 at) {
  const candidate moved = heap[at];
  for (i64 child; (child = 2 * at + 1) < count; at = child) {
    if (child + 1 < count && better(&heap[child + 1], &heap[child])) child++;
    if (!better(&heap[child], &moved)) break;
    heap[at] = heap[child];
  }
  heap[at] = moved;
}
/* Each image and class is one thread's: candidates in a heap, taken best first. */
static void suppress(const aot_call *call) {
  const aot_tensor *scores = &call->inputs[1];
  const i64 classes = scores->shape[1], boxes = scores->shape[2], room = call->outputs[0].shape[2];
  const f32 limit = *(const f32 *)call->inputs[3].data;
  const f32 *least = call->inputs[4].data;
  i64 most = *(const i64 *)call->inputs[2].data;
  most = most < 0 ? 0 : most < room ? most : room;
  candidate *heap = call->scratch;
  i64 unit, end;
  aot_share(call, call->outputs[1].elements, &unit, &end);
  for (; unit < end; unit++) {
    const f32 *all = (const f32 *)call->inputs[0].data + unit / classes * boxes * 4;
    const f32 *row = (const f32 *)scores->data + unit * boxes;
    i64 *chosen = (i64 *)call->outputs[0].data + unit * room;
    i64 count = 0, taken = 0;
    for (i64 place = 0; place < boxes && most; place++)
      if (least ? row[place] > *least : row[place] == row[place]) {
        heap[count].score = row[place];
        heap[count++].place = place;
      }
    for (i64 at = count / 2 - 1; at >= 0; at--) sink(heap, count, at);
    while (count && taken < most) {
      const i64 place = heap[0].place;
      heap[0] = heap[--count];
      if (count) sink(heap, count, 0);
      i64 other = 0;
      while (other < taken && !overlaps(all + place * 4, all + chosen[other] * 4, limit)) other++;
      if (other == taken) chosen[taken++] = place;
    }
    ((i64 *)call->outputs[1].data)[unit] = taken;
    for (; taken < room; taken++) chosen[taken] = 0;
  }
}
"""

# A program has one image and class. It takes candidates best first, each found by a look at all scores below the last
# one, and compares it with all that are chosen at once: what it keeps does not grow with the number of boxes.
_TRITON = """
@triton.jit
def product(a, b):
    # By doubles, which hold it whole: the compiler does not fuse it into a sum.
    return (a.to(tl.float64) * b.to(tl.float64)).to(tl.float32)

@triton.jit
def span(box, mask, axis: tl.constexpr, center: tl.constexpr):
    p = tl.load(box + axis, mask=mask, other=0)
    q = tl.load(box + axis + 2, mask=mask, other=0)
    if center:
        low = p - q / 2
        high = p + q / 2
    else:
        low = tl.where(p < q, p, q)
        high = tl.where(p < q, q, p)
    return low, high

@triton.jit
def overlaps(one, other, mask, limit, center: tl.constexpr):
    a_low, a_high = span(one, mask, 0, center)
    b_low, b_high = span(other, mask, 0, center)
    c_low, c_high = span(one, mask, 1, center)
    d_low, d_high = span(other, mask, 1, center)
    first = tl.where(a_high < b_high, a_high, b_high) - tl.where(a_low > b_low, a_low, b_low)
    second = tl.where(c_high < d_high, c_high, d_high) - tl.where(c_low > d_low, c_low, d_low)
    own = product(a_high - a_low, c_high - c_low)
    its = product(b_high - b_low, d_high - d_low)
    both = product(first, second)
    union = own + its - both
    is_there = (first > 0) & (second > 0) & (both > 0) & (own > 0) & (its > 0) & (union > 0)
    return is_there & (tl.div_rn(both, tl.where(is_there, union, 1.0)) > limit)

@triton.jit
def suppress(program, in0, in1, in1_shape, in2, in3, in4, out0, out0_shape, out1, center: tl.constexpr):
    classes = in1_shape[1]
    boxes = in1_shape[2]
    room = out0_shape[2]
    unit = program.to(tl.int64)
    every = in0 + unit // classes * boxes * 4
    row = in1 + unit * boxes
    chosen = out0 + unit * room
    limit = tl.load(in3)
    most = tl.minimum(tl.maximum(tl.load(in2), 0), room)
    none = tl.full((1024,), -0x7FFFFFFFFFFFFFFF, tl.int64)
    last = tl.full((), 0x7FFFFFFFFFFFFFFF, tl.int64)
    taken = tl.full((), 0, tl.int64)
    going = (most > 0).to(tl.int32)
    while going != 0:
        best = none
        for begin in range(0, boxes, 1024):
            at = begin + tl.arange(0, 1024)
            score = tl.load(row + at, mask=at < boxes, other=0)
            if in4 is not None:
                fits = score > tl.load(in4)
            else:
                fits = score == score
            bits = tl.where(score == 0, 0.0, score).to(tl.int32, bitcast=True)
            bits = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
            key = (bits.to(tl.int64) << 32) | (0x7FFFFFFF - at).to(tl.int64)
            best = tl.maximum(best, tl.where(fits & (at < boxes) & (key < last), key, none))
        last = tl.max(best, axis=0)
        going = (last != -0x7FFFFFFFFFFFFFFF).to(tl.int32)
        if going != 0:
            place = 0x7FFFFFFF - (last & 0x7FFFFFFF)
            clash = tl.zeros((128,), tl.int32)
            for start in range(0, taken, 128):
                number = start + tl.arange(0, 128)
                mask = number < taken
                other = tl.load(chosen + number, mask=mask, other=0)
                one = place + tl.zeros((128,), tl.int64)
                found = overlaps(every + one * 4, every + other * 4, mask, limit, center)
                clash = clash | (found & mask).to(tl.int32)
            if tl.max(clash, axis=0) == 0:
                tl.store(chosen + taken, place)
                taken += 1
                going = (taken < most).to(tl.int32)
            tl.debug_barrier()
    for start in range(0, room, 128):
        number = start + tl.arange(0, 128)
        tl.store(chosen + number, tl.zeros((128,), tl.int64), mask=(number >= taken) & (number < room))
    if out1 is not None:
        tl.store(out1 + unit, taken)
"""


def _scratch(attrs: Attrs, boxes: TensorType, *rest: TensorType | None) -> Dim:
    return boxes.shape[1] * 16


def _samples(rng: Any) -> list[Sample]:
    def numbers(most: int, overlap: float, least: float | None) -> tuple[Array | None, ...]:
        given = (np.int64(most), np.float32(overlap), None if least is None else np.float32(least))
        return tuple(None if number is None else np.array(number) for number in given)

    def corners(images: int, count: int) -> Array:
        start, size = rng.uniform(0, 10, (images, count, 2)), rng.uniform(0, 6, (images, count, 2))
        return np.concatenate([start, start + size], 2).astype(np.float32)

    found = []
    for images, classes, count, most, overlap, least in (
        (1, 1, 30, 10, 0.5, None), (2, 3, 40, 5, 0.25, 0.1), (1, 2, 17, 100, 0.0, 0.0), (2, 1, 1, 3, 0.5, None),
        (1, 80, 5, 2, 0.9, 0.3), (1, 1, 0, 3, 0.5, None), (1, 3, 8, 0, 0.5, None), (0, 2, 5, 3, 0.5, 0.2),
        (3, 2, 200, 50, 1.0, -1.0),
    ):  # fmt: skip
        scores = normal(rng, images, classes, count)
        room = min(most, count)
        operands = (corners(images, count), scores, *numbers(most, overlap, least))
        found += [Sample(operands, {"room": room, "center": center}) for center in (False, True)]
    # Whole coordinates, so that overlaps are exactly at the limit; equal scores; corners in any order; odd numbers.
    grid = integers(rng, 1, 60, 4, lo=0, hi=6).astype(np.float32)
    ties = integers(rng, 1, 2, 60, lo=0, hi=4).astype(np.float32)
    ties[0, 0, :3] = np.nan, np.inf, -np.inf
    grid[0, 5] = np.nan
    grid[0, 6] = -np.inf, 0, np.inf, 1
    grid[0, 7] = 3
    for overlap in (0.5, 0.7, 1 / 3):
        found.append(Sample((grid, ties, *numbers(60, overlap, None)), {"room": 60}))
        found.append(Sample((grid, ties, *numbers(20, overlap, 1.0)), {"room": 30}))
    return found


register(
    OpDef(
        name="suppress", doc="The best boxes of each image and class that do not overlap, best first; and how many.",
        inputs=("boxes", "scores", "most", "overlap", "least?"), kind=Kind.OPAQUE, infer=_infer, samples=_samples,
        attrs={
            "room": AttrSpec("dim", doc="boxes of a class that the result has room for"),
            "center": AttrSpec("bool", False, "boxes are centers and sizes, not two corners"),
        },
        reference=_reference, cost_flops=64,
        sources={
            "cpu": KernelSource(text=_SOURCE, function="suppress", scratch_bytes=_scratch),
            "cuda": KernelSource(
                text=_TRITON, function="suppress",
                programs=lambda attrs, boxes, scores, *rest: scores.shape[0] * scores.shape[1],
            ),
        },
    )
)  # fmt: skip
