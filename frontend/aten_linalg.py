"""ATen converters of linear algebra: systems, inverses, factors. Half types do not have it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.aten_types import filled
from aot.frontend.aten_views import swapped
from aot.frontend.torch_registry import Context, Result, aten_op
from aot.ir import Value
from aot.ops.opdef import broadcast_shapes

_I64 = dtypes.I64


def _factors(c: Context, x: Value) -> tuple[Value, Value, Value]:
    """LU in one matrix, pivots and info."""
    packed, pivots, info = c.builder.op("lu", x)
    return packed, pivots, info


def _batched(c: Context, x: Value, lead: Sequence[Dim]) -> Value:
    """A matrix, or stack of them, for every place of the leading axes."""
    return c.expand(x, (*lead, *x.type.shape[-2:]))


def _triangular(c: Context, a: Value, b: Value, upper: bool, unit: bool = False) -> Value:
    lead = broadcast_shapes(a.type.shape[:-2], b.type.shape[:-2])
    return c.op_("solve_triangular", _batched(c, a, lead), _batched(c, b, lead), upper=upper, unit=unit)


def _rows(c: Context, x: Value, order: Value) -> Value:
    """The rows in an order, which is one for each matrix."""
    lead = broadcast_shapes(x.type.shape[:-2], order.type.shape[:-1])
    wide = c.reshape(order, (*order.type.shape, 1))
    wide = c.expand(wide, (*lead, order.type.shape[-1], x.type.shape[-1]))
    return c.op_("gather_elements", _batched(c, x, lead), wide, axis=len(lead))


def _solved(c: Context, packed: Value, pivots: Value, b: Value, transposed: bool = False) -> Value:
    """x of A x = b, or of A' x = b, by the factors P A = L U."""
    order = c.op_("pivot_order", pivots, size=packed.type.shape[-1])
    if not transposed:
        return _triangular(c, packed, _triangular(c, packed, _rows(c, b, order), False, True), True)
    turned = swapped(c, packed, -1, -2)
    found = _triangular(c, turned, _triangular(c, turned, b, False), True, True)
    _, back = c.builder.op("sort", order, axis=order.type.rank - 1, descending=False)
    return _rows(c, found, back)


def _system(c: Context, packed: Value, pivots: Value, b: Value, left: bool, adjoint: bool = False) -> Value:
    """A x = b, or x A = b where not `left`; of A' where `adjoint`."""
    if left:
        return _solved(c, packed, pivots, b, adjoint)
    return swapped(c, _solved(c, packed, pivots, swapped(c, b, -1, -2), not adjoint), -1, -2)


def _identity(c: Context, like: Value, size: Dim) -> Value:
    down = c.op_("iota", shape=(size, 1), axis=0, start=0, step=1, dtype=_I64)
    across = c.op_("iota", shape=(1, size), axis=1, start=0, step=1, dtype=_I64)
    return c.cast(c.op_("eq", down, across), like.type.dtype)


@aten_op("linalg_inv_ex", "inverse", "linalg_inv")
def _inverse(c: Context) -> Result:
    x = c.tensor("A") if "A" in c.arguments else c.tensor("self")
    packed, pivots, info = _factors(c, x)
    found = _solved(c, packed, pivots, _identity(c, x, x.type.shape[-1]))
    return (found, info) if c.op.startswith("linalg_inv_ex") else found


@aten_op("_linalg_solve_ex")
def _solve(c: Context) -> Result:
    a, b = c.tensor("A"), c.tensor("B")
    left = c.flag("left") if c.has("left") else True
    is_vector = b.type.rank == 1 or (a.type.rank - 1 == b.type.rank and b.type.shape == a.type.shape[:-1])
    packed, pivots, info = _factors(c, a)
    right = c.reshape(b, (*b.type.shape, 1)) if is_vector else b
    found = _system(c, packed, pivots, right, left or is_vector)
    return c.reshape(found, found.type.shape[:-1]) if is_vector else found, packed, pivots, info


@aten_op("linalg_lu_factor_ex")
def _lu_factor(c: Context) -> Result:
    if not c.flag("pivot"):
        c.unsupported("LU factors without pivots")
    return _factors(c, c.tensor("A"))


@aten_op("linalg_lu_solve")
def _lu_solve(c: Context) -> Result:
    left = c.flag("left") if c.has("left") else True
    return _system(c, c.tensor("LU"), c.tensor("pivots"), c.tensor("B"), left, c.flag("adjoint"))


def _unpacked(c: Context, packed: Value, pivots: Value) -> tuple[Value, Value, Value]:
    """P, L and U."""
    rows, columns = packed.type.shape[-2:]
    inner, rank = dimension.minimum(rows, columns), packed.type.rank
    lower = c.op_("trilu", c.slice_axis(packed, rank - 1, 0, inner), k=-1, upper=False)
    lower = c.op_("add", lower, c.slice_axis(_identity(c, packed, rows), 1, 0, inner))
    upper = c.op_("trilu", c.slice_axis(packed, rank - 2, 0, inner), k=0, upper=True)
    order = c.op_("pivot_order", pivots, size=rows)
    place = c.op_("iota", shape=(rows, 1), axis=0, start=0, step=1, dtype=_I64)
    wide = c.reshape(order, (*order.type.shape[:-1], 1, rows))
    return c.cast(c.op_("eq", place, wide), packed.type.dtype), lower, upper


@aten_op("lu_unpack")
def _lu_unpack(c: Context) -> Result:
    found: list[Value] = list(_unpacked(c, c.tensor("LU_data"), c.tensor("LU_pivots")))
    kept = (c.flag("unpack_pivots"), c.flag("unpack_data"), c.flag("unpack_data"))
    return [
        part if keep else filled(c, 0, c.dtype, (0,)) for part, keep in zip(found, kept, strict=True)
    ]  # fmt: skip


@aten_op("linalg_lu")
def _lu(c: Context) -> Result:
    if not c.flag("pivot"):
        c.unsupported("LU factors without pivots")
    packed, pivots, _ = _factors(c, c.tensor("A"))
    return _unpacked(c, packed, pivots)


@aten_op("_linalg_slogdet")
def _slogdet(c: Context) -> Result:
    """By the diagonal of U; each exchange of rows changes the sign."""
    x = c.tensor("A")
    packed, pivots, _ = _factors(c, x)
    size, rank = x.type.shape[-1], x.type.rank
    diagonal = c.op_("where", c.op_("eq", _identity(c, x, size), c.scalar(1.0, x.type.dtype)), packed,
                     c.scalar(0.0, x.type.dtype))  # fmt: skip
    diagonal = c.op_("reduce_sum", diagonal, axes=(rank - 1,), keepdims=False)
    last = (rank - 2,)
    total = c.op_("reduce_sum", c.op_("log", c.op_("abs", diagonal)), axes=last, keepdims=False)
    place = c.cast(c.op_("iota", shape=(size,), axis=0, start=1, step=1, dtype=_I64), pivots.type.dtype)
    kept = c.op_("eq", pivots, place)
    turns = c.op_("where", kept, c.scalar(1.0, x.type.dtype), c.scalar(-1.0, x.type.dtype))
    sign = c.op_("reduce_prod", c.op_("mul", c.op_("sign", diagonal), turns), axes=last, keepdims=False)
    return sign, total, packed, pivots


# Cholesky


def _cholesky(c: Context, x: Value) -> tuple[Value, Value]:
    if not c.flag("upper"):
        found, info = c.builder.op("cholesky", x)
        return found, info
    found, info = c.builder.op("cholesky", swapped(c, x, -1, -2))
    return swapped(c, found, -1, -2), info


@aten_op("linalg_cholesky_ex", "cholesky")
def _cholesky_of(c: Context) -> Result:
    found, info = _cholesky(c, c.tensor("self"))
    return (found, info) if c.op.startswith("linalg") else found


def _by_cholesky(c: Context, factor: Value, b: Value) -> Value:
    """x of A x = b, of the factor that `upper` names."""
    turned = swapped(c, factor, -1, -2)
    lower, upper = (turned, factor) if c.flag("upper") else (factor, turned)
    return _triangular(c, upper, _triangular(c, lower, b, False), True)


@aten_op("cholesky_solve")
def _cholesky_solve(c: Context) -> Result:
    return _by_cholesky(c, c.tensor("input2"), c.tensor("self"))


@aten_op("cholesky_inverse")
def _cholesky_inverse(c: Context) -> Result:
    factor = c.tensor("self")
    return _by_cholesky(c, factor, _identity(c, factor, factor.type.shape[-1]))


# Triangles, QR, exponential


def _system_of_triangle(c: Context, a: Value, b: Value, upper: bool, left: bool, unit: bool) -> Value:
    if left:
        return _triangular(c, a, b, upper, unit)
    turned = [swapped(c, part, -1, -2) for part in (a, b)]
    return swapped(c, _triangular(c, turned[0], turned[1], not upper, unit), -1, -2)


@aten_op("linalg_solve_triangular")
def _solve_triangular(c: Context) -> Result:
    left = c.flag("left") if c.has("left") else True
    return _system_of_triangle(c, c.tensor("self"), c.tensor("B"), c.flag("upper"), left, c.flag("unitriangular"))


@aten_op("triangular_solve")
def _old_triangular_solve(c: Context) -> Result:
    a, b, upper = c.tensor("A"), c.tensor("self"), c.flag("upper")
    if c.flag("transpose"):
        used, upper = swapped(c, a, -1, -2), not upper
    else:
        used = a
    found = _triangular(c, used, b, upper, c.flag("unitriangular"))
    return found, c.expand(a, (*found.type.shape[:-2], *a.type.shape[-2:]))


@aten_op("linalg_qr")
def _qr(c: Context) -> Result:
    mode = c.text("mode", "reduced")
    q, r = c.builder.op("qr", c.tensor("A"), complete=mode == "complete")
    return (filled(c, 0, c.dtype, (0,)) if mode == "r" else q), r


_SQUARINGS, _TERMS = 12, 12


@aten_op("linalg_matrix_exp")
def _matrix_exp(c: Context) -> Result:
    """exp(x / 2^12)^(2^12), the first by its series, in f64."""
    x = c.cast(c.tensor("self"), dtypes.F64)
    scaled = c.op_("mul", x, c.scalar(math.ldexp(1.0, -_SQUARINGS), dtypes.F64))
    one: Any = _identity(c, x, x.type.shape[-1])
    made = c.expand(one, x.type.shape)
    for term in range(_TERMS, 0, -1):
        product = c.op_("mul", c.op_("matmul", scaled, made), c.scalar(1.0 / term, dtypes.F64))
        made = c.op_("add", product, one)
    for _ in range(_SQUARINGS):
        made = c.op_("matmul", made, made)
    return c.cast(made, c.dtype)


# Singular values and eigenvalues


def _singular(c: Context, x: Value) -> tuple[Value, Value, Value]:
    """U, s and V of x = U diag(s) V', of min(rows, columns) columns."""
    rows, columns = x.type.shape[-2:]
    if not isinstance(rows, int) or not isinstance(columns, int):
        c.unsupported("singular values of matrices of open sizes", "Give the size a value with --dim.")
    if rows >= columns:
        left, values, right = c.builder.op("svd", x)
    else:
        right, values, left = c.builder.op("svd", swapped(c, x, -1, -2))
    return left, values, right


def _completed(c: Context, x: Value) -> Value:
    """Columns at right angles, and those that a whole basis has beyond them."""
    rows, columns = x.type.shape[-2:]
    if rows == columns:
        return x
    basis, _ = c.builder.op("qr", x, complete=True)
    axis = x.type.rank - 1
    more = c.slice_axis(basis, axis, columns, rows - columns)
    return c.op_("concat", x, more, axis=axis)


@aten_op("_linalg_svd")
def _svd(c: Context) -> Result:
    left, values, right = _singular(c, c.tensor("A"))
    if not c.flag("compute_uv"):
        nothing = filled(c, 0, c.dtype, (0,))
        return nothing, values, nothing
    if c.flag("full_matrices"):
        left, right = _completed(c, left), _completed(c, right)
    return left, values, swapped(c, right, -1, -2)


@aten_op("_linalg_eigh")
def _eigh(c: Context) -> Result:
    x = c.tensor("A")
    upper = c.text("UPLO", "L").upper() == "U"
    values, vectors = c.builder.op("eigh", swapped(c, x, -1, -2) if upper else x)
    return values, vectors if c.flag("compute_v") else filled(c, 0, c.dtype, (0,))


@aten_op("linalg_pinv.atol_rtol_tensor")
def _pseudo_inverse(c: Context) -> Result:
    """V diag(1 / s) U', of singular values above the larger of both tolerances."""
    x = c.tensor("self")
    if c.flag("hermitian"):  # of which the lower triangle is read
        turned, left = c.builder.op("eigh", x)
        values = c.op_("abs", turned)
        signs = c.reshape(c.op_("sign", turned), (*turned.type.shape[:-1], 1, turned.type.shape[-1]))
        right = c.op_("mul", left, signs)
    else:
        left, values, right = _singular(c, x)
    size = max(int(str(extent)) for extent in x.type.shape[-2:])
    zero = c.scalar(0.0, x.type.dtype)
    absolute, relative = c.optional("atol"), c.optional("rtol")
    epsilon = c.scalar(size * (2.0**-52 if x.type.dtype is dtypes.F64 else 2.0**-23), x.type.dtype)
    if absolute is None:
        absolute = zero
    else:
        absolute = c.cast(absolute, x.type.dtype)
        epsilon = c.op_("where", c.op_("gt", absolute, zero), zero, epsilon)
    relative = epsilon if relative is None else c.cast(relative, x.type.dtype)
    largest = c.op_("reduce_max", values, axes=(values.type.rank - 1,), keepdims=True)
    absolute, relative = (c.reshape(part, (*part.type.shape, 1)) for part in (absolute, relative))
    limit = c.op_("max", absolute, c.op_("mul", relative, largest))
    kept = c.op_("gt", values, limit)
    one = c.scalar(1.0, x.type.dtype)
    inverse = c.op_("where", kept, c.op_("div", one, c.op_("where", kept, values, one)), zero)
    scaled = c.op_("mul", right, c.reshape(inverse, (*inverse.type.shape[:-1], 1, inverse.type.shape[-1])))
    return c.op_("matmul", scaled, swapped(c, left, -1, -2))
