"""OPAQUE ops `svd` and `eigh`: singular values, eigenvalues of symmetric matrices, and their vectors, by Jacobi's
rotations in f64, rounded once.

`svd` rotates pairs of columns until all are at right angles (M. Hestenes, "Inversion of matrices by biorthogonalization
and related results", 1958); `eigh` rotates off-diagonal elements away. The signs of vectors are not LAPACK's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot.dims import Dim
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, need_family, need_rank, normal
from aot.ops.opdef import Attrs, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent

_SWEEPS = 60


def _need_matrix(what: str, x: TensorType) -> tuple[Dim, ...]:
    need_family(what, x, FLOAT)
    need_rank(what, x, 2)
    if x.dtype.bits < 32:
        raise OpError(f"{what} of {x.dtype} must be cast to f32 first")
    return x.shape[:-2]


def _svd_infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    lead = _need_matrix("svd's operand", x)
    rows, columns = x.shape[-2:]
    if isinstance(rows, int) and isinstance(columns, int) and rows < columns:
        raise OpError(f"svd's operand must have at least as many rows as columns; it is {x}")
    return x, TensorType(x.dtype, (*lead, columns)), TensorType(x.dtype, (*lead, columns, columns))


def _rotation(apart: float, across: float) -> tuple[float, float]:
    """cos and sin of the smaller angle that makes `across` vanish; `apart` is the difference of the diagonal."""
    ratio = apart / (2.0 * across)
    tangent = (1.0 if ratio >= 0 else -1.0) / (abs(ratio) + np.sqrt(1.0 + ratio * ratio))
    cos = 1.0 / np.sqrt(1.0 + tangent * tangent)
    return cos, cos * tangent


def _svd_of(x: Array) -> tuple[Array, Array, Array]:
    a, (rows, n) = x.astype(np.float64), x.shape
    v = np.eye(n)
    for _ in range(_SWEEPS):
        turned = False
        for p in range(n):
            for q in range(p + 1, n):
                across, first, second = a[:, p] @ a[:, q], a[:, p] @ a[:, p], a[:, q] @ a[:, q]
                if not abs(across) > 1e-15 * np.sqrt(first * second):
                    continue
                turned = True
                cos, sin = _rotation(float(second - first), float(across))
                for m in (a, v):
                    m[:, p], m[:, q] = cos * m[:, p] - sin * m[:, q], sin * m[:, p] + cos * m[:, q]
        if not turned:
            break
    sizes = np.sqrt((a * a).sum(0))
    order = np.argsort(-sizes, kind="stable")
    a, v, sizes = a[:, order], v[:, order], sizes[order]
    u = np.zeros((rows, n))
    for k in range(n):
        if sizes[k] > sizes[0] * n * 1e-15:
            u[:, k] = a[:, k] / sizes[k]
            continue
        for row in range(rows):
            unit = np.zeros(rows)
            unit[row] = 1.0
            for _ in range(2):
                unit -= u[:, :k] @ (u[:, :k].T @ unit)
            length = np.sqrt(unit @ unit)
            if length * length * rows > 0.5:
                u[:, k] = unit / length
                break
    return u, sizes, v


def _each(run: Any, x: Array, shapes: Any) -> tuple[Array, ...]:
    results = tuple(np.zeros((*x.shape[:-2], *shape), x.dtype) for shape in shapes)
    for at in np.ndindex(*x.shape[:-2]):
        for result, part in zip(results, run(x[at]), strict=True):
            result[at] = part
    return results


def _svd_reference(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    rows, n = x.shape[-2:]
    return _each(_svd_of, x, ((rows, n), (n,), (n, n)))


_ROTATION = r"""
static inline void rotation(f64 apart, f64 across, f64 *cos, f64 *sin) {
  const f64 ratio = apart / (2 * across);
  const f64 tangent = (ratio >= 0 ? 1 : -1) / (__builtin_fabs(ratio) + aot_sqrt_f64(1 + ratio * ratio));
  *cos = 1 / aot_sqrt_f64(1 + tangent * tangent);
  *sin = *cos * tangent;
}
static inline void turn(f64 *m, i64 rows, i64 n, i64 p, i64 q, f64 cos, f64 sin) { /* columns p and q */
  for (i64 row = 0; row < rows; row++) {
    const f64 first = m[row * n + p], second = m[row * n + q];
    m[row * n + p] = cos * first - sin * second;
    m[row * n + q] = sin * first + cos * second;
  }
}
"""

_SVD = (
    _ROTATION
    + r"""
static inline f64 product(const f64 *m, i64 rows, i64 n, i64 p, i64 q) {
  f64 sum = 0;
  for (i64 row = 0; row < rows; row++) sum += m[row * n + p] * m[row * n + q];
  return sum;
}
static void svd(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 m = x->shape[x->rank - 2], n = x->shape[x->rank - 1];
  i64 units = 1, first, end;
  for (i64 axis = 0; axis < (i64)x->rank - 2; axis++) units *= x->shape[axis];
  aot_share(call, units, &first, &end);
  f64 *a = call->scratch, *v = a + m * n, *u = v + n * n, *sizes = u + m * n, *unit = sizes + n, *places = unit + m;
  for (i64 number = first; number < end; number++) {
    const IN0_T *matrix = (const IN0_T *)x->data + number * m * n;
    OUT0_T *left = (OUT0_T *)call->outputs[0].data + number * m * n;
    OUT1_T *values = (OUT1_T *)call->outputs[1].data + number * n;
    OUT2_T *right = (OUT2_T *)call->outputs[2].data + number * n * n;
    for (i64 k = 0; k < m * n; k++) a[k] = matrix[k];
    for (i64 k = 0; k < n * n; k++) v[k] = k / n == k % n;
    for (i64 sweep = 0; sweep < SWEEPS; sweep++) {
      i32 turned = 0;
      for (i64 p = 0; p < n; p++)
        for (i64 q = p + 1; q < n; q++) {
          const f64 across = product(a, m, n, p, q), one = product(a, m, n, p, p), two = product(a, m, n, q, q);
          if (!(__builtin_fabs(across) > 1e-15 * aot_sqrt_f64(one * two))) continue;
          turned = 1;
          f64 cos, sin;
          rotation(two - one, across, &cos, &sin);
          turn(a, m, n, p, q, cos, sin);
          turn(v, n, n, p, q, cos, sin);
        }
      if (!turned) break;
    }
    for (i64 k = 0; k < n; k++) {
      unit[0] = aot_sqrt_f64(product(a, m, n, k, k));
      i64 at = k;
      for (; at > 0 && sizes[at - 1] < unit[0]; at--) sizes[at] = sizes[at - 1], places[at] = places[at - 1];
      sizes[at] = unit[0];
      places[at] = (f64)k;
    }
    for (i64 k = 0; k < n; k++) {
      const i64 from = (i64)places[k];
      values[k] = sizes[k];
      for (i64 row = 0; row < n; row++) right[row * n + k] = v[row * n + from];
      for (i64 row = 0; row < m; row++) u[row * n + k] = a[row * n + from] / sizes[k];
      if (sizes[k] > sizes[0] * n * 1e-15) continue;
      for (i64 row = 0; row < m; row++) u[row * n + k] = 0;
      for (i64 pick = 0; pick < m; pick++) { /* a unit vector at right angles to those before */
        for (i64 row = 0; row < m; row++) unit[row] = row == pick;
        for (i64 twice = 0; twice < 2; twice++)
          for (i64 before = 0; before < k; before++) {
            f64 sum = 0;
            for (i64 row = 0; row < m; row++) sum += u[row * n + before] * unit[row];
            for (i64 row = 0; row < m; row++) unit[row] -= sum * u[row * n + before];
          }
        f64 square = 0;
        for (i64 row = 0; row < m; row++) square += unit[row] * unit[row];
        if (square * m <= 0.5) continue;
        for (i64 row = 0; row < m; row++) u[row * n + k] = unit[row] / aot_sqrt_f64(square);
        break;
      }
    }
    for (i64 k = 0; k < m * n; k++) left[k] = u[k];
  }
}
"""
).replace("SWEEPS", str(_SWEEPS))


def _svd_scratch(attrs: Attrs, x: TensorType) -> Dim:
    rows, columns = x.shape[-2:]
    return (rows * columns * 2 + columns * columns + columns * 2 + rows + 1) * 8


def _svd_samples(rng: Any) -> list[Sample]:
    shapes = ((1, 1), (4, 4), (2, 5, 3), (0, 3, 3), (3, 0), (2, 7, 1))
    found = [Sample((normal(rng, *shape),), {}, 2e-4, 2e-4) for shape in shapes]
    return [*found, Sample((np.diag([3.0, 0.0, 2.0]).astype(np.float32),), {}, 1e-5, 1e-5)]


register(
    OpDef(
        name="svd", doc="x = U diag(s) V' with s falling: U, s and V, of at least as many rows as columns.",
        inputs=("x",), kind=Kind.OPAQUE, infer=_svd_infer, samples=_svd_samples, reference=_svd_reference,
        cost_flops=512, sources={"cpu": KernelSource(text=_SVD, function="svd", scratch_bytes=_svd_scratch)},
    )
)  # fmt: skip


# Symmetric matrices


def _eigh_infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    lead = _need_matrix("eigh's operand", x)
    same_extent(x.shape[-1], x.shape[-2], "the rows and columns of eigh's operand")
    return TensorType(x.dtype, (*lead, x.shape[-1])), x


def _eigh_of(x: Array) -> tuple[Array, Array]:
    a = np.tril(x.astype(np.float64))
    a = a + np.tril(a, -1).T
    n = len(a)
    v = np.eye(n)
    for _ in range(_SWEEPS):
        turned = False
        for p in range(n):
            for q in range(p + 1, n):
                if not abs(a[p, q]) > 1e-16 * np.sqrt(abs(a[p, p] * a[q, q])) or abs(a[p, q]) < 1e-300:
                    continue
                turned = True
                cos, sin = _rotation(a[q, q] - a[p, p], a[p, q])
                for m in (a, v):
                    m[:, p], m[:, q] = cos * m[:, p] - sin * m[:, q], sin * m[:, p] + cos * m[:, q]
                a[p], a[q] = cos * a[p] - sin * a[q], sin * a[p] + cos * a[q]
                a[p, q] = a[q, p] = 0.0
        if not turned:
            break
    order = np.argsort(np.diag(a), kind="stable")
    return np.diag(a)[order], v[:, order]


def _eigh_reference(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    n = x.shape[-1]
    return _each(_eigh_of, x, ((n,), (n, n)))


_EIGH = (
    _ROTATION
    + r"""
static void eigh(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 n = x->shape[x->rank - 1];
  i64 units = 1, first, end;
  for (i64 axis = 0; axis < (i64)x->rank - 2; axis++) units *= x->shape[axis];
  aot_share(call, units, &first, &end);
  f64 *a = call->scratch, *v = a + n * n, *places = v + n * n;
  for (i64 number = first; number < end; number++) {
    const IN0_T *matrix = (const IN0_T *)x->data + number * n * n;
    OUT0_T *values = (OUT0_T *)call->outputs[0].data + number * n;
    OUT1_T *vectors = (OUT1_T *)call->outputs[1].data + number * n * n;
    for (i64 row = 0; row < n; row++)
      for (i64 column = 0; column < n; column++) {
        a[row * n + column] = column > row ? matrix[column * n + row] : matrix[row * n + column];
        v[row * n + column] = row == column;
      }
    for (i64 sweep = 0; sweep < SWEEPS; sweep++) {
      i32 turned = 0;
      for (i64 p = 0; p < n; p++)
        for (i64 q = p + 1; q < n; q++) {
          const f64 across = a[p * n + q], one = a[p * n + p], two = a[q * n + q];
          if (!(__builtin_fabs(across) > 1e-16 * aot_sqrt_f64(__builtin_fabs(one * two)))) continue;
          if (__builtin_fabs(across) < 1e-300) continue;
          turned = 1;
          f64 cos, sin;
          rotation(two - one, across, &cos, &sin);
          turn(a, n, n, p, q, cos, sin);
          turn(v, n, n, p, q, cos, sin);
          for (i64 column = 0; column < n; column++) {
            const f64 upper = a[p * n + column], lower = a[q * n + column];
            a[p * n + column] = cos * upper - sin * lower;
            a[q * n + column] = sin * upper + cos * lower;
          }
          a[p * n + q] = a[q * n + p] = 0;
        }
      if (!turned) break;
    }
    for (i64 k = 0; k < n; k++) {
      i64 at = k;
      for (; at > 0 && a[(i64)places[at - 1] * (n + 1)] > a[k * (n + 1)]; at--) places[at] = places[at - 1];
      places[at] = (f64)k;
    }
    for (i64 k = 0; k < n; k++) {
      const i64 from = (i64)places[k];
      values[k] = a[from * (n + 1)];
      for (i64 row = 0; row < n; row++) vectors[row * n + k] = v[row * n + from];
    }
  }
}
"""
).replace("SWEEPS", str(_SWEEPS))


def _eigh_scratch(attrs: Attrs, x: TensorType) -> Dim:
    size = x.shape[-1]
    return (size * size * 2 + size) * 8


def _eigh_samples(rng: Any) -> list[Sample]:
    found = []
    for shape in ((1, 1), (4, 4), (2, 3, 3), (0, 3, 3), (2, 0, 0)):
        x = normal(rng, *shape)
        found.append(Sample((x + np.swapaxes(x, -1, -2),), {}, 2e-4, 2e-4))
    return [*found, Sample((np.diag([3.0, -1.0, 2.0]).astype(np.float32),), {}, 1e-5, 1e-5)]


register(
    OpDef(
        name="eigh", doc="Eigenvalues, rising, and eigenvectors of symmetric matrices, from their lower triangles.",
        inputs=("x",), kind=Kind.OPAQUE, infer=_eigh_infer, samples=_eigh_samples, reference=_eigh_reference,
        cost_flops=512, sources={"cpu": KernelSource(text=_EIGH, function="eigh", scratch_bytes=_eigh_scratch)},
    )
)  # fmt: skip
