"""OPAQUE op `couple_pairs`: probabilities of classes from those of every pair of them.

The second method of Wu, Lin and Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling"
(2004), iterated to the same accuracy as LIBSVM and ONNX Runtime do, in f32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.dims import Dim
from aot.dtypes import F32
from aot.ir import Array, TensorType
from aot.ops.helpers import int_attr, need_rank, tile_extent, with_constants
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent

MOST_ROUNDS = 100


def _infer(attrs: Attrs, pairs: TensorType) -> TensorType:
    classes = int_attr(attrs, "classes")
    need_rank("the pairs", pairs, 2, 2)
    if pairs.dtype != F32 or classes < 2:
        raise OpError(f"couple_pairs takes f32 and two classes or more; they are {pairs.dtype} and {classes}")
    same_extent(pairs.shape[1], classes * (classes - 1) // 2, "the columns and the pairs of classes")
    return TensorType(F32, (pairs.shape[0], classes))


_SOURCE = r"""
static void couple_pairs(const aot_call *call) {
  enum { n = ATTR_classes };
  const f32 *pairs = call->inputs[0].data;
  f32 *out = call->outputs[0].data;
  f32 *q = call->scratch, *r = q + n * n, *qp = r + n * n;
  i64 first, end;
  aot_share(call, call->outputs[0].shape[0], &first, &end);
  for (i64 row = first; row < end; row++) {
    const f32 *pair = pairs + row * (n * (n - 1) / 2);
    f32 *p = out + row * n;
    for (i64 i = 0; i < n; i++) for (i64 j = i + 1; j < n; j++) {
      const f32 value = *pair++;
      r[i * n + j] = value;
      r[j * n + i] = 1 - value;
    }
    for (i64 t = 0; t < n; t++) {
      p[t] = 1.0f / n;
      f32 own = 0;
      for (i64 j = 0; j < n; j++) if (j != t) {
        own += r[j * n + t] * r[j * n + t];
        q[t * n + j] = -r[j * n + t] * r[t * n + j];
      }
      q[t * n + t] = own;
    }
    for (i64 round = 0; round < MOST_ROUNDS; round++) {
      f32 total = 0, worst = 0;
      for (i64 t = 0; t < n; t++) {
        qp[t] = 0;
        for (i64 j = 0; j < n; j++) qp[t] += q[t * n + j] * p[j];
        total += p[t] * qp[t];
      }
      for (i64 t = 0; t < n; t++) {
        const f32 error = __builtin_fabsf(qp[t] - total);
        worst = error > worst ? error : worst;
      }
      if (worst < 0.005f / n) break;
      for (i64 t = 0; t < n; t++) {
        const f32 change = (total - qp[t]) / q[t * n + t], scale = 1 / (1 + change);
        p[t] += change;
        total = (total + change * (change * q[t * n + t] + 2 * qp[t])) * scale * scale;
        for (i64 j = 0; j < n; j++) {
          qp[j] = (qp[j] + change * q[t * n + j]) * scale;
          p[j] *= scale;
        }
      }
    }
  }
}
"""

# Every program has one row, and the matrix q of all its pairs in registers.
_TRITON = """
@triton.jit
def couple_pairs(program, in0, out0):
    i = tl.arange(0, WIDTH)[:, None]
    j = tl.arange(0, WIDTH)[None, :]
    low = tl.minimum(i, j)
    high = tl.maximum(i, j)
    pairs = (i < CLASSES) & (j < CLASSES) & (i != j)
    place = low * (2 * CLASSES - low - 1) // 2 + high - low - 1
    row = program.to(tl.int64)
    value = tl.load(in0 + row * (CLASSES * (CLASSES - 1) // 2) + place, mask=pairs, other=0.5)
    own = tl.where(i < j, value, 1 - value)
    other = tl.where(i < j, 1 - value, value)
    squares = tl.sum(tl.where(pairs, other * other, 0.0), axis=1)[:, None]
    q = tl.where(pairs, -own * other, tl.where((i == j) & (i < CLASSES), squares, 0.0))
    p = tl.where(j < CLASSES, 1.0 / CLASSES, 0.0)
    round = 0
    going = 1
    while (round < MOST_ROUNDS) & (going != 0):
        qp = tl.sum(q * tl.trans(p), axis=0)[None, :]
        total = tl.sum(p * qp, axis=1)[:, None]
        error = tl.where(j < CLASSES, tl.abs(qp - total), 0.0)
        going = (tl.max(tl.max(error, axis=1), axis=0) >= 0.005 / CLASSES).to(tl.int32)
        if going != 0:
            for t in range(0, CLASSES):
                line = tl.sum(tl.where(i == t, q, 0.0), axis=0)[None, :]
                diagonal = tl.sum(tl.where(j == t, line, 0.0), axis=1)[:, None]
                own_qp = tl.sum(tl.where(j == t, qp, 0.0), axis=1)[:, None]
                change = (total - own_qp) / diagonal
                scale = 1 / (1 + change)
                total = (total + change * (change * diagonal + 2 * own_qp)) * scale * scale
                p = tl.where(j == t, p + change, p) * scale
                qp = (qp + change * line) * scale
        round += 1
    tl.store(out0 + row * CLASSES + j, p, mask=j < CLASSES)
"""


def _triton(attrs: Attrs, pairs: TensorType) -> str:
    classes = int_attr(attrs, "classes")
    width = tile_extent("couple_pairs, with classes", classes, 64)
    names = {"WIDTH": width, "CLASSES": classes, "MOST_ROUNDS": MOST_ROUNDS}
    return with_constants(_TRITON, names)


def _scratch(attrs: Attrs, pairs: TensorType) -> Dim:
    classes = int_attr(attrs, "classes")
    return 4 * classes * (2 * classes + 1)


def _reference(attrs: Attrs, pairs: Array) -> Array:
    n = int_attr(attrs, "classes")
    result = np.empty((len(pairs), n), np.float32)
    upper = np.triu_indices(n, 1)
    for number, row in enumerate(pairs.astype(np.float64)):
        r = np.zeros((n, n))
        r[upper] = row
        r.T[upper] = 1 - row
        q = -r.T * r
        np.fill_diagonal(q, (r**2).sum(axis=0))
        p = np.full(n, 1 / n)
        for _ in range(MOST_ROUNDS):
            total = p @ q @ p
            if np.abs(q @ p - total).max() < 0.005 / n:
                break
            for t in range(n):
                p[t] += (p @ q @ p - q[t] @ p) / q[t, t]
                p /= p.sum()
        result[number] = p
    return result


def _samples(rng: Any) -> list[Sample]:
    """Rows that are not at the limit of a round, where f32 and f64 may stop one round apart, differ by less than it."""
    found = []
    for rows, classes in ((1, 2), (7, 2), (9, 3), (4, 5), (0, 3)):
        pairs = rng.uniform(0.02, 0.98, (rows, classes * (classes - 1) // 2)).astype(np.float32)
        found.append(Sample((pairs,), {"classes": classes}, 5e-3, 5e-3))
    return found


register(
    OpDef(
        name="couple_pairs", doc="Probabilities of n classes from the probabilities of i against j, i < j.",
        inputs=("pairs",), kind=Kind.OPAQUE, infer=_infer, samples=_samples, reference=_reference, cost_flops=400,
        sources={
            "cpu": KernelSource(
                text=f"#define MOST_ROUNDS {MOST_ROUNDS}\n{_SOURCE}", function="couple_pairs",
                scratch_bytes=_scratch,
            ),
            "cuda": KernelSource(
                text=_triton, function="couple_pairs", programs=lambda attrs, pairs: pairs.shape[0]
            ),
        },
        attrs={"classes": AttrSpec("int")},
    )
)  # fmt: skip
