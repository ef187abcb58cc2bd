"""OPAQUE ops of linear algebra, in f64 and rounded once: LU, Cholesky and QR factors, triangular systems.

They follow LAPACK's conventions: pivots count from 1, the signs of QR are those of its Householder reflections, and
`info` is 0, or the number of the first pivot that is not there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from aot import dims as dimension
from aot.dims import Dim
from aot.dtypes import I32, I64
from aot.errors import UnsupportedError
from aot.ir import Array, TensorType
from aot.ops.helpers import (
    FLOAT,
    int_attr,
    need_family,
    need_rank,
    need_same_dtype,
    normal,
    tile_extent,
    with_constants,
)
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent

MOST_SIDE = 64
"""Rows and columns of the largest matrix that a program on a GPU has in its registers."""


def _matrix(what: str, x: TensorType, square: bool = False) -> tuple[Dim, ...]:
    """The leading axes."""
    need_family(what, x, FLOAT)
    need_rank(what, x, 2)
    if x.dtype.bits < 32:
        raise OpError(f"{what} of {x.dtype} must be cast to f32 first")
    if square:
        same_extent(x.shape[-1], x.shape[-2], f"the rows and columns of {what}")
    return x.shape[:-2]


def _square_scratch(attrs: Attrs, x: TensorType, *others: TensorType) -> Dim:
    return x.shape[-1] * x.shape[-2] * 8


# LU


def _lu_infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    lead = _matrix("lu's operand", x)
    return x, TensorType(I32, (*lead, dimension.minimum(*x.shape[-2:]))), TensorType(I32, lead)


def _lu_reference(attrs: Attrs, x: Array) -> tuple[Array, ...]:
    rows, columns = x.shape[-2:]
    count = min(rows, columns)
    made = x.astype(np.float64)
    pivots = np.zeros((*x.shape[:-2], count), np.int32)
    info = np.zeros(x.shape[:-2], np.int32)
    with np.errstate(all="ignore"):
        for at in np.ndindex(*x.shape[:-2]):
            a = made[at]
            for step in range(count):
                best = step + int(np.argmax(np.abs(a[step:, step])))
                pivots[(*at, step)] = best + 1
                a[[step, best]] = a[[best, step]]
                if a[step, step] == 0:
                    info[at] = info[at] or step + 1
                    continue
                a[step + 1 :, step] /= a[step, step]
                a[step + 1 :, step + 1 :] -= np.outer(a[step + 1 :, step], a[step, step + 1 :])
    return made.astype(x.dtype), pivots, info


_LU = r"""
static void lu(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 m = x->shape[x->rank - 2], n = x->shape[x->rank - 1], count = m < n ? m : n;
  i64 first, end;
  aot_share(call, call->outputs[2].elements, &first, &end);
  f64 *a = call->scratch;
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *matrix = (const IN0_T *)x->data + unit * m * n;
    OUT0_T *out = (OUT0_T *)call->outputs[0].data + unit * m * n;
    i32 *pivots = (i32 *)call->outputs[1].data + unit * count, info = 0;
    for (i64 k = 0; k < m * n; k++) a[k] = matrix[k];
    for (i64 step = 0; step < count; step++) {
      i64 best = step;
      for (i64 row = step + 1; row < m; row++)
        if (__builtin_fabs(a[row * n + step]) > __builtin_fabs(a[best * n + step])) best = row;
      pivots[step] = (i32)(best + 1);
      for (i64 column = 0; column < n && best != step; column++) {
        const f64 other = a[best * n + column];
        a[best * n + column] = a[step * n + column];
        a[step * n + column] = other;
      }
      const f64 pivot = a[step * n + step];
      if (pivot == 0) {
        info = info ? info : (i32)(step + 1);
        continue;
      }
      for (i64 row = step + 1; row < m; row++) {
        const f64 factor = a[row * n + step] /= pivot;
        for (i64 column = step + 1; column < n; column++) a[row * n + column] -= factor * a[step * n + column];
      }
    }
    for (i64 k = 0; k < m * n; k++) out[k] = a[k];
    ((i32 *)call->outputs[2].data)[unit] = info;
  }
}
"""

# A program has a whole matrix in registers.
_LU_TRITON = """
@triton.jit
def lu(program, in0, out0, out1, out2):
    unit = program.to(tl.int64)
    i = tl.arange(0, HEIGHT)[:, None]
    j = tl.arange(0, WIDTH)[None, :]
    inside = (i < ROWS) & (j < COLUMNS)
    place = unit * (ROWS * COLUMNS) + i * COLUMNS + j
    a = tl.load(in0 + place, mask=inside, other=0).to(tl.float64)
    info = tl.zeros((1, 1), tl.int32)
    for step in range(0, COUNT):
        column = tl.sum(tl.where(j == step, a, 0.0), axis=1)[:, None]
        size = tl.where((i >= step) & (i < ROWS), tl.abs(column), -1.0)
        most = tl.max(size, axis=0)[None, :]
        best = tl.min(tl.where(size == most, i, HEIGHT), axis=0)[None, :]
        best = tl.where(best < ROWS, best, step)
        if out1 is not None:
            tl.store(out1 + unit * COUNT + step + tl.zeros((1, 1), tl.int32), best + 1)
        own = tl.sum(tl.where(i == step, a, 0.0), axis=0)[None, :]
        other = tl.sum(tl.where(i == best, a, 0.0), axis=0)[None, :]
        a = tl.where(i == step, other, tl.where(i == best, own, a))
        pivot = tl.sum(tl.where(j == step, other, 0.0), axis=1)[:, None]
        is_pivot = pivot != 0
        column = tl.sum(tl.where(j == step, a, 0.0), axis=1)[:, None]
        factor = column / tl.where(is_pivot, pivot, 1.0)
        below = is_pivot & (i > step)
        a = tl.where(below & (j == step), factor, tl.where(below & (j > step), a - factor * other, a))
        info = tl.where((info == 0) & (pivot == 0), step + 1, info)
    if out0 is not None:
        tl.store(out0 + place, a.to(out0.dtype.element_ty), mask=inside)
    if out2 is not None:
        tl.store(out2 + unit + tl.zeros((1, 1), tl.int32), info)
"""


def _matrix_tile(source: str, what: str, x: TensorType) -> str:
    """A Triton source for matrices of this size. Raises UnsupportedError where they are too large for registers."""
    height, width = (tile_extent(f"{what} of matrices with sides", extent, MOST_SIDE) for extent in x.shape[-2:])
    rows, columns = (extent for extent in x.shape[-2:] if isinstance(extent, int))
    sizes = {"HEIGHT": height, "WIDTH": width, "ROWS": rows, "COLUMNS": columns, "COUNT": min(rows, columns)}
    return with_constants(source, sizes)


def _matrices(attrs: Attrs, x: TensorType, *others: TensorType) -> Dim:
    return dimension.product(x.shape[:-2])


def _lu_samples(rng: Any) -> list[Sample]:
    shapes = ((1, 1), (4, 4), (2, 3, 5), (3, 5, 2), (0, 3, 3), (2, 0, 0))
    found = [Sample((normal(rng, *shape),), {}, 1e-4, 1e-4) for shape in shapes]
    return [*found, Sample((normal(rng, 5, 5, dtype=np.float64),), {}, 1e-9, 1e-9), Sample((np.zeros((3, 3), "f4"),))]


register(
    OpDef(
        name="lu", doc="Factors of P x = L U: L below the diagonal and U above; the pivots; info.", inputs=("x",),
        kind=Kind.OPAQUE, infer=_lu_infer, samples=_lu_samples, reference=_lu_reference, cost_flops=64,
        sources={
            "cpu": KernelSource(text=_LU, function="lu", scratch_bytes=_square_scratch),
            "cuda": KernelSource(
                text=lambda attrs, x: _matrix_tile(_LU_TRITON, "lu", x), function="lu", programs=_matrices, warps=8,
            ),
        },
    )
)  # fmt: skip


def _order_infer(attrs: Attrs, pivots: TensorType) -> TensorType:
    if pivots.dtype is not I32:
        raise OpError(f"pivots must be i32; they are {pivots.dtype}")
    need_rank("pivots", pivots, 1)
    size: Any = attrs["size"]
    return TensorType(I64, (*pivots.shape[:-1], size))


def _order_reference(attrs: Attrs, pivots: Array) -> Array:
    size = int_attr(attrs, "size")
    order = np.broadcast_to(np.arange(size), (*pivots.shape[:-1], size)).copy()
    for at in np.ndindex(*pivots.shape[:-1]):
        for step, pivot in enumerate(pivots[at]):
            order[(*at, [step, pivot - 1])] = order[(*at, [pivot - 1, step])]
    return order


_ORDER = r"""
static void pivot_order(const aot_call *call) {
  const i64 count = call->inputs[0].shape[call->inputs[0].rank - 1];
  const i64 size = call->outputs[0].shape[call->outputs[0].rank - 1];
  i64 first, end;
  aot_share(call, size ? call->outputs[0].elements / size : 0, &first, &end);
  for (i64 unit = first; unit < end; unit++) {
    const i32 *pivots = (const i32 *)call->inputs[0].data + unit * count;
    i64 *order = (i64 *)call->outputs[0].data + unit * size;
    for (i64 k = 0; k < size; k++) order[k] = k;
    for (i64 step = 0; step < count && step < size; step++) {
      const i64 other = pivots[step] - 1;
      if (other < 0 || other >= size) continue;
      const i64 kept = order[step];
      order[step] = order[other];
      order[other] = kept;
    }
  }
}
"""

_ORDER_TRITON = """
@triton.jit
def pivot_order(program, in0, in0_shape, out0, out0_shape):
    count = in0_shape[-1]
    size = out0_shape[-1]
    pivots = in0 + program.to(tl.int64) * count
    order = out0 + program.to(tl.int64) * size
    for begin in range(0, size, 128):
        at = begin + tl.arange(0, 128)
        tl.store(order + at, at.to(tl.int64), mask=at < size)
    for step in range(0, tl.minimum(count, size)):
        tl.debug_barrier()
        other = tl.load(pivots + step) - 1
        if (other >= 0) & (other < size):
            left = tl.load(order + step)
            right = tl.load(order + other)
            tl.debug_barrier()
            tl.store(order + step, right)
            tl.store(order + other, left)
"""


def _order_samples(rng: Any) -> list[Sample]:
    pivots = np.array([[3, 2, 3, 4], [1, 2, 3, 4], [4, 4, 4, 4]], np.int32)
    return [Sample((pivots,), {"size": 4}), Sample((pivots[0],), {"size": 6}), Sample((pivots[:, :0],), {"size": 2})]


register(
    OpDef(
        name="pivot_order", doc="The order of `size` rows after the exchanges that pivots (from 1) say.",
        inputs=("pivots",), kind=Kind.OPAQUE, infer=_order_infer, samples=_order_samples, reference=_order_reference,
        attrs={"size": AttrSpec("dim")},
        sources={
            "cpu": KernelSource(text=_ORDER, function="pivot_order"),
            "cuda": KernelSource(
                text=_ORDER_TRITON, function="pivot_order", warps=1,
                programs=lambda attrs, pivots: dimension.product(pivots.shape[:-1]),
            ),
        },
    )
)  # fmt: skip


# Triangular systems


def _triangular_infer(attrs: Attrs, a: TensorType, b: TensorType) -> TensorType:
    lead = _matrix("a triangular system's matrix", a, square=True)
    _matrix("a triangular system's right side", b)
    need_same_dtype(a, b)
    if a.rank != b.rank:
        raise OpError(f"a triangular system's sides must have one rank; they are {a} and {b}")
    for left, right in zip((*lead, a.shape[-1]), b.shape[:-1], strict=True):
        same_extent(left, right, "a triangular system's sides")
    return b


def _triangular_reference(attrs: Attrs, a: Array, b: Array) -> Array:
    wide, x = a.astype(np.float64), b.astype(np.float64)
    n = a.shape[-1]
    with np.errstate(all="ignore"):
        for row in range(n - 1, -1, -1) if attrs["upper"] else range(n):
            known = slice(row + 1, n) if attrs["upper"] else slice(0, row)
            x[..., row, :] -= np.einsum("...k,...kc->...c", wide[..., row, known], x[..., known, :])
            if not attrs["unit"]:
                x[..., row, :] /= wide[..., row, row, None]
    return x.astype(b.dtype)


_TRIANGULAR = r"""
static void solve_triangular(const aot_call *call) {
  const aot_tensor *right = call->inputs + 1;
  const i64 n = right->shape[right->rank - 2], columns = right->shape[right->rank - 1];
  i64 first, end;
  aot_share(call, n * columns ? right->elements / (n * columns) : 0, &first, &end);
  f64 *x = call->scratch;
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *a = (const IN0_T *)call->inputs[0].data + unit * n * n;
    const IN1_T *b = (const IN1_T *)right->data + unit * n * columns;
    OUT0_T *out = (OUT0_T *)call->outputs[0].data + unit * n * columns;
    for (i64 k = 0; k < n * columns; k++) x[k] = b[k];
    for (i64 step = 0; step < n; step++) {
      const i64 row = UPPER ? n - 1 - step : step;
      for (i64 k = UPPER ? row + 1 : 0; k < (UPPER ? n : row); k++) {
        const f64 factor = a[row * n + k];
        for (i64 column = 0; column < columns; column++) x[row * columns + column] -= factor * x[k * columns + column];
      }
      if (!UNIT)
        for (i64 column = 0; column < columns; column++) x[row * columns + column] /= (f64)a[row * n + row];
    }
    for (i64 k = 0; k < n * columns; k++) out[k] = x[k];
  }
}
"""


def _triangular_text(attrs: Attrs, *types: TensorType) -> str:
    return f"#define UPPER {int(bool(attrs['upper']))}\n#define UNIT {int(bool(attrs['unit']))}\n{_TRIANGULAR}"


# A program has all rows of some columns of the right side in registers.
_TRIANGULAR_TRITON = """
@triton.jit
def solve_triangular(program, in0, in1, out0):
    unit = (program // BLOCKS).to(tl.int64)
    i = tl.arange(0, HEIGHT)[:, None]
    c = (program % BLOCKS * WIDTH + tl.arange(0, WIDTH))[None, :]
    inside = (i < ROWS) & (c < COLUMNS)
    a = in0 + unit * (ROWS * ROWS)
    place = unit * (ROWS * COLUMNS) + i * COLUMNS + c
    x = tl.load(in1 + place, mask=inside, other=0).to(tl.float64)
    for step in range(0, ROWS):
        row = ROWS - 1 - step if UPPER else step
        value = tl.sum(tl.where(i == row, x, 0.0), axis=0)[None, :]
        if UNIT == 0:
            value = value / tl.load(a + row * ROWS + row).to(tl.float64)
        column = tl.load(a + i * ROWS + row, mask=i < ROWS, other=0).to(tl.float64)
        is_left = i < row if UPPER else i > row
        x = tl.where(i == row, value, tl.where(is_left, x - column * value, x))
    tl.store(out0 + place, x.to(out0.dtype.element_ty), mask=inside)
"""


def _triangular_blocks(b: TensorType) -> tuple[int, Dim]:
    """Columns of a program, and how many programs have those of one system."""
    height = tile_extent("triangular systems with rows", b.shape[-2], 1024)
    width = min(4096 // height, 16)
    return width, dimension.ceildiv(b.shape[-1], width)


def _triangular_triton(attrs: Attrs, a: TensorType, b: TensorType) -> str:
    rows, columns = b.shape[-2:]
    width, blocks = _triangular_blocks(b)
    if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(blocks, int):
        raise UnsupportedError(f"a GPU has no kernel for triangular systems with {columns} columns")
    sizes = {
        "HEIGHT": tile_extent("triangular systems with rows", rows, 1024), "WIDTH": width, "ROWS": rows,
        "COLUMNS": columns, "BLOCKS": max(blocks, 1), "UPPER": int(bool(attrs["upper"])),
        "UNIT": int(bool(attrs["unit"])),
    }  # fmt: skip
    return with_constants(_TRIANGULAR_TRITON, sizes)


def _triangular_samples(rng: Any) -> list[Sample]:
    found = []
    for upper in (False, True):
        for unit in (False, True):
            for lead, n, columns in (((), 4, 2), ((2, 3), 3, 1), ((2,), 0, 3), ((2,), 3, 0), ((), 1, 1)):
                a = normal(rng, *lead, n, n, scale=0.5) + 2 * np.eye(n, dtype=np.float32)
                attrs = {"upper": upper, "unit": unit}
                found.append(Sample((a.astype(np.float32), normal(rng, *lead, n, columns)), attrs, 1e-4, 1e-4))
    return found


register(
    OpDef(
        name="solve_triangular", doc="x of a x = b, of a the lower or upper triangle.", inputs=("a", "b"),
        kind=Kind.OPAQUE, infer=_triangular_infer, samples=_triangular_samples, reference=_triangular_reference,
        attrs={"upper": AttrSpec("bool", False), "unit": AttrSpec("bool", False, "the diagonal counts as ones")},
        sources={
            "cpu": KernelSource(
                text=_triangular_text, function="solve_triangular",
                scratch_bytes=lambda attrs, a, b: b.shape[-1] * b.shape[-2] * 8,
            ),
            "cuda": KernelSource(
                text=_triangular_triton, function="solve_triangular",
                programs=lambda attrs, a, b: dimension.product(b.shape[:-2]) * _triangular_blocks(b)[1],
            ),
        },
        cost_flops=64,
    )
)  # fmt: skip


# Cholesky


def _cholesky_infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    lead = _matrix("cholesky's operand", x, square=True)
    return x, TensorType(I32, lead)


def _cholesky_reference(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    made = np.tril(x.astype(np.float64))
    info = np.zeros(x.shape[:-2], np.int32)
    with np.errstate(all="ignore"):
        for at in np.ndindex(*x.shape[:-2]):
            a = made[at]
            for step in range(len(a)):
                square = a[step, step] - (a[step, :step] ** 2).sum()
                if not square > 0:
                    info[at] = step + 1
                    break
                a[step, step] = np.sqrt(square)
                a[step + 1 :, step] -= a[step + 1 :, :step] @ a[step, :step]
                a[step + 1 :, step] /= a[step, step]
    return made.astype(x.dtype), info


_CHOLESKY = r"""
static void cholesky(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 n = x->shape[x->rank - 1];
  i64 first, end;
  aot_share(call, call->outputs[1].elements, &first, &end);
  f64 *a = call->scratch;
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *matrix = (const IN0_T *)x->data + unit * n * n;
    OUT0_T *out = (OUT0_T *)call->outputs[0].data + unit * n * n;
    i32 info = 0;
    for (i64 row = 0; row < n; row++)
      for (i64 column = 0; column < n; column++) a[row * n + column] = column > row ? 0 : matrix[row * n + column];
    for (i64 step = 0; step < n; step++) {
      f64 square = a[step * n + step];
      for (i64 k = 0; k < step; k++) square -= a[step * n + k] * a[step * n + k];
      if (!(square > 0)) {
        info = (i32)(step + 1);
        break;
      }
      const f64 root = a[step * n + step] = aot_sqrt_f64(square);
      for (i64 row = step + 1; row < n; row++) {
        f64 sum = a[row * n + step];
        for (i64 k = 0; k < step; k++) sum -= a[row * n + k] * a[step * n + k];
        a[row * n + step] = sum / root;
      }
    }
    for (i64 k = 0; k < n * n; k++) out[k] = a[k];
    ((i32 *)call->outputs[1].data)[unit] = info;
  }
}
"""

# Columns from that of a missing pivot on stay as they were.
_CHOLESKY_TRITON = """
@triton.jit
def cholesky(program, in0, out0, out1):
    unit = program.to(tl.int64)
    i = tl.arange(0, HEIGHT)[:, None]
    j = tl.arange(0, WIDTH)[None, :]
    inside = (i < ROWS) & (j < ROWS)
    place = unit * (ROWS * ROWS) + i * ROWS + j
    given = tl.load(in0 + place, mask=inside & (i >= j), other=0).to(tl.float64)
    a = given
    info = tl.zeros((1, 1), tl.int32)
    for step in range(0, ROWS):
        column = tl.sum(tl.where(j == step, a, 0.0), axis=1)[:, None]
        square = tl.sum(tl.where(i == step, column, 0.0), axis=0)[None, :]
        is_left = (info == 0) & (square > 0)
        root = tl.sqrt(tl.where(is_left, square, 1.0))
        factor = tl.where(i > step, column / root, tl.where(i == step, root, 0.0))
        across = tl.trans(factor)
        made = tl.where(j == step, factor, tl.where((j > step) & (i >= j), a - factor * across, a))
        a = tl.where(is_left, made, a)
        info = tl.where((info == 0) & (is_left == 0), step + 1, info)
    if out0 is not None:
        made = tl.where((info == 0) | (j < info - 1), a, given)
        tl.store(out0 + place, made.to(out0.dtype.element_ty), mask=inside)
    if out1 is not None:
        tl.store(out1 + unit + tl.zeros((1, 1), tl.int32), info)
"""


def _cholesky_samples(rng: Any) -> list[Sample]:
    found = []
    for shape in ((1, 1), (4, 4), (2, 3, 3), (0, 2, 2), (2, 0, 0)):
        root = normal(rng, *shape)
        square = root @ np.swapaxes(root, -1, -2) + np.eye(shape[-1], dtype=np.float32)
        found.append(Sample((square,), {}, 1e-4, 1e-4))
    return [*found, Sample((-np.eye(3, dtype=np.float32),))]


register(
    OpDef(
        name="cholesky", doc="The lower factor of x = L L', from the lower triangle; info.", inputs=("x",),
        kind=Kind.OPAQUE, infer=_cholesky_infer, samples=_cholesky_samples, reference=_cholesky_reference,
        sources={
            "cpu": KernelSource(text=_CHOLESKY, function="cholesky", scratch_bytes=_square_scratch),
            "cuda": KernelSource(
                text=lambda attrs, x: _matrix_tile(_CHOLESKY_TRITON, "cholesky", x), function="cholesky",
                programs=_matrices, warps=8,
            ),
        },
        cost_flops=64,
    )
)  # fmt: skip


# QR


def _qr_infer(attrs: Attrs, x: TensorType) -> tuple[TensorType, ...]:
    lead = _matrix("qr's operand", x)
    rows, columns = x.shape[-2:]
    inner = rows if attrs["complete"] else dimension.minimum(rows, columns)
    return TensorType(x.dtype, (*lead, rows, inner)), TensorType(x.dtype, (*lead, inner, columns))


def _qr_reference(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    q, r = np.linalg.qr(x.astype(np.float64), "complete" if attrs["complete"] else "reduced")
    return q.astype(x.dtype), r.astype(x.dtype)


_QR = r"""
static void qr(const aot_call *call) {
  const aot_tensor *x = call->inputs;
  const i64 m = x->shape[x->rank - 2], n = x->shape[x->rank - 1], count = m < n ? m : n;
  const i64 inner = call->outputs[0].shape[call->outputs[0].rank - 1];
  i64 units = 1, first, end;
  for (i64 axis = 0; axis < (i64)x->rank - 2; axis++) units *= x->shape[axis];
  aot_share(call, units, &first, &end);
  f64 *a = call->scratch, *tau = a + m * n, *q = tau + count;
  for (i64 unit = first; unit < end; unit++) {
    const IN0_T *matrix = (const IN0_T *)x->data + unit * m * n;
    OUT0_T *out = (OUT0_T *)call->outputs[0].data + unit * m * inner;
    OUT1_T *upper = (OUT1_T *)call->outputs[1].data + unit * inner * n;
    for (i64 k = 0; k < m * n; k++) a[k] = matrix[k];
    for (i64 step = 0; step < count; step++) { /* reflections I - tau v v', v below the diagonal, with a leading 1 */
      f64 below = 0;
      for (i64 row = step + 1; row < m; row++) below += a[row * n + step] * a[row * n + step];
      const f64 head = a[step * n + step];
      tau[step] = 0;
      if (below == 0) continue;
      const f64 length = aot_sqrt_f64(head * head + below), beta = head >= 0 ? -length : length;
      tau[step] = (beta - head) / beta;
      for (i64 row = step + 1; row < m; row++) a[row * n + step] /= head - beta;
      a[step * n + step] = beta;
      for (i64 column = step + 1; column < n; column++) {
        f64 sum = a[step * n + column];
        for (i64 row = step + 1; row < m; row++) sum += a[row * n + step] * a[row * n + column];
        sum *= tau[step];
        a[step * n + column] -= sum;
        for (i64 row = step + 1; row < m; row++) a[row * n + column] -= sum * a[row * n + step];
      }
    }
    for (i64 row = 0; row < m; row++)
      for (i64 column = 0; column < inner; column++) q[row * inner + column] = row == column;
    for (i64 step = count - 1; step >= 0; step--)
      for (i64 column = 0; column < inner; column++) {
        f64 sum = q[step * inner + column];
        for (i64 row = step + 1; row < m; row++) sum += a[row * n + step] * q[row * inner + column];
        sum *= tau[step];
        q[step * inner + column] -= sum;
        for (i64 row = step + 1; row < m; row++) q[row * inner + column] -= sum * a[row * n + step];
      }
    for (i64 k = 0; k < m * inner; k++) out[k] = q[k];
    for (i64 row = 0; row < inner; row++)
      for (i64 column = 0; column < n; column++) upper[row * n + column] = column < row ? 0 : a[row * n + column];
  }
}
"""


def _qr_scratch(attrs: Attrs, x: TensorType) -> Dim:
    rows, columns = x.shape[-2:]
    return (rows * columns + rows + rows * rows) * 8


def _qr_samples(rng: Any) -> list[Sample]:
    shapes = ((1, 1), (4, 4), (2, 3, 5), (3, 5, 2), (0, 3, 3))
    return [
        Sample((normal(rng, *shape),), {"complete": complete}, 1e-4, 1e-4)
        for shape in shapes
        for complete in (False, True)
    ]


register(
    OpDef(
        name="qr", doc="x = Q R by Householder reflections, of min(rows, columns) columns of Q or of all.",
        inputs=("x",), kind=Kind.OPAQUE, infer=_qr_infer, samples=_qr_samples, reference=_qr_reference, cost_flops=64,
        attrs={"complete": AttrSpec("bool", False)},
        sources={"cpu": KernelSource(text=_QR, function="qr", scratch_bytes=_qr_scratch)},
    )
)  # fmt: skip
