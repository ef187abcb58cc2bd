"""OPAQUE op `gamma_incomplete`: the regularized incomplete gamma functions, in f64 and rounded once.

P(a, x) below x = a + 1 by its power series, Q(a, x) = 1 - P(a, x) above by its continued fraction, which is evaluated
by W. Lentz's method ("Generating Bessel functions in Mie scattering calculations using continued fractions", 1976).
Both take a number of steps about the square root of a where x is close to a.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from aot import dims as dimension
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, need_family, need_same_dtype
from aot.ops.opdef import Attrs, AttrSpec, KernelSource, Kind, OpDef, OpError, Sample, register, same_extent

MOST_STEPS = 100_000
_SMALL = 1e-17  # of the sum, or of the change of the fraction


def _infer(attrs: Attrs, a: TensorType, x: TensorType) -> TensorType:
    need_family("the operands of gamma_incomplete", a, FLOAT)
    dtype = need_same_dtype(a, x)
    if a.rank != x.rank:
        raise OpError(f"the operands of gamma_incomplete must have one shape; they are {a} and {x}")
    for left, right in zip(a.shape, x.shape, strict=True):
        same_extent(left, right, "the operands of gamma_incomplete")
    return TensorType(dtype, a.shape)


def _one(a: float, x: float, upper: bool) -> float:
    if math.isnan(a) or math.isnan(x) or a < 0 or x < 0:
        return math.nan
    sides = (1.0, 0.0) if upper else (0.0, 1.0)  # of x = 0, and of x far above a
    if a == 0:
        return sides[1] if x > 0 else math.nan
    if x == 0:
        return sides[0]
    if math.isinf(a):
        return math.nan if math.isinf(x) else sides[0]
    if math.isinf(x):
        return sides[1]
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1:
        term = total = 1.0 / a
        for step in range(1, MOST_STEPS):
            term *= x / (a + step)
            total += term
            if term < total * _SMALL:
                break
        lower = min(front * total, 1.0)
        return 1.0 - lower if upper else lower
    first = x + 1 - a
    above, below = 1e300, 1.0 / first
    fraction = below
    for step in range(1, MOST_STEPS):
        numerator = -step * (step - a)
        first += 2
        below = numerator * below + first
        above = first + numerator / above
        below = 1.0 / (below if abs(below) > 1e-300 else 1e-300)
        above = above if abs(above) > 1e-300 else 1e-300
        change = below * above
        fraction *= change
        if abs(change - 1) < 1e-16:
            break
    result = min(front * fraction, 1.0)
    return result if upper else 1.0 - result


def _reference(attrs: Attrs, a: Array, x: Array) -> Array:
    wide = [np.asarray(operand, np.float64).reshape(-1) for operand in (a, x)]
    upper = bool(attrs["upper"])
    found = [_one(float(left), float(right), upper) for left, right in zip(*wide, strict=True)]
    return np.array(found, np.float64).reshape(a.shape).astype(a.dtype)


_SOURCE = r"""
static f64 log_gamma(f64 x) { /* of x > 0, by C. Lanczos' approximation of 1964 */
  if (x < 0.5) return aot_log_f64(3.14159265358979324 / aot_sin_f64(3.14159265358979324 * x)) - log_gamma(1 - x);
  static const f64 terms[] = {676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
                              12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7};
  f64 total = 0.99999999999980993;
  for (i64 k = 0; k < 8; k++) total += terms[k] / (x + k);
  const f64 base = x + 6.5;
  return (x - 0.5) * aot_log_f64(base) - base + aot_log_f64(total) + 0.918938533204672742;
}
static f64 incomplete(f64 a, f64 x) {
  const f64 none = UPPER, all = 1 - UPPER, odd = __builtin_nan("");
  if (!(a >= 0) || !(x >= 0)) return odd;
  if (a == 0) return x > 0 ? all : odd;
  if (x == 0) return none;
  if (__builtin_isinf(a)) return __builtin_isinf(x) ? odd : none;
  if (__builtin_isinf(x)) return all;
  const f64 front = aot_exp_f64(a * aot_log_f64(x) - x - log_gamma(a));
  if (x < a + 1) {
    f64 term = 1 / a, total = term;
    for (i64 step = 1; step < STEPS; step++) {
      term *= x / (a + step);
      total += term;
      if (term < total * 1e-17) break;
    }
    const f64 lower = front * total < 1 ? front * total : 1;
    return UPPER ? 1 - lower : lower;
  }
  f64 first = x + 1 - a, above = 1e300, below = 1 / first, fraction = below;
  for (i64 step = 1; step < STEPS; step++) {
    const f64 numerator = -step * (step - a);
    first += 2;
    below = numerator * below + first;
    above = first + numerator / above;
    below = 1 / (__builtin_fabs(below) > 1e-300 ? below : 1e-300);
    above = __builtin_fabs(above) > 1e-300 ? above : 1e-300;
    const f64 change = below * above;
    fraction *= change;
    if (__builtin_fabs(change - 1) < 1e-16) break;
  }
  const f64 upper = front * fraction < 1 ? front * fraction : 1;
  return UPPER ? upper : 1 - upper;
}
static void gamma_incomplete(const aot_call *call) {
  i64 first, end;
  aot_share(call, call->outputs[0].elements, &first, &end);
  const IN0_T *a = call->inputs[0].data;
  const IN1_T *x = call->inputs[1].data;
  OUT0_T *out = call->outputs[0].data;
  for (i64 k = first; k < end; k++) out[k] = incomplete(a[k], x[k]);
}
"""

# Every lane takes the steps of both sums until the last one has enough.
_TRITON = """
@triton.jit
def log_gamma(x):
    y = tl.where(x < 0.5, 1 - x, x)
    total = 0.99999999999980993 + 676.5203681218851 / y - 1259.1392167224028 / (y + 1) + 771.32342877765313 / (y + 2)
    total = total - 176.61502916214059 / (y + 3) + 12.507343278686905 / (y + 4) - 0.13857109526572012 / (y + 5)
    total = total + 9.9843695780195716e-6 / (y + 6) + 1.5056327351493116e-7 / (y + 7)
    base = y + 6.5
    found = (y - 0.5) * tl.log(base) - base + tl.log(total) + 0.918938533204672742
    turned = tl.log(3.14159265358979324 / tl.sin(3.14159265358979324 * tl.where(x < 0.5, x, 0.25))) - found
    return tl.where(x < 0.5, turned, found)

@triton.jit
def gamma_incomplete(program, in0, in1, out0, out0_elements):
    at = program.to(tl.int64) * 128 + tl.arange(0, 128)
    inside = at < out0_elements
    a = tl.load(in0 + at, mask=inside, other=1).to(tl.float64)
    x = tl.load(in1 + at, mask=inside, other=1).to(tl.float64)
    infinite = float("inf")
    plain = (a > 0) & (a < infinite) & (x > 0) & (x < infinite)
    p = tl.where(plain, a, 1.0)
    q = tl.where(plain, x, 1.0)
    front = tl.exp(p * tl.log(q) - q - log_gamma(p))
    is_series = q < p + 1
    term = 1 / p
    total = term
    step = 1
    left = (plain & is_series & inside).to(tl.int32)
    while (step < STEPS) & (tl.max(left, axis=0) != 0):
        term = tl.where(left != 0, term * (q / (p + step)), term)
        total = tl.where(left != 0, total + term, total)
        left = tl.where(term < total * 1e-17, 0, left)
        step += 1
    first = q + 1 - p
    above = tl.full((128,), 1e300, tl.float64)
    below = 1 / tl.where(is_series, 1.0, first)
    fraction = below
    step = 1
    left = (plain & (is_series == 0) & inside).to(tl.int32)
    while (step < STEPS) & (tl.max(left, axis=0) != 0):
        numerator = -step * (step - p)
        first += 2
        below = numerator * below + first
        above = first + numerator / above
        below = 1 / tl.where(tl.abs(below) > 1e-300, below, 1e-300)
        above = tl.where(tl.abs(above) > 1e-300, above, 1e-300)
        change = below * above
        fraction = tl.where(left != 0, fraction * change, fraction)
        left = tl.where(tl.abs(change - 1) < 1e-16, 0, left)
        step += 1
    lower = tl.minimum(front * total, 1.0)
    upper = tl.minimum(front * fraction, 1.0)
    lower = tl.where(is_series, lower, 1 - upper)
    found = tl.where(UPPER != 0, tl.where(is_series, 1 - lower, upper), lower)
    none = tl.full((128,), UPPER, tl.float64)
    found = tl.where(a == infinite, none, found)
    found = tl.where((x == infinite) & (a < infinite), 1 - none, found)
    found = tl.where(x == 0, none, found)
    found = tl.where((a == 0) & (x > 0), 1 - none, found)
    odd = ((a >= 0) == 0) | ((x >= 0) == 0) | ((a == 0) & (x == 0)) | ((a == infinite) & (x == infinite))
    found = tl.where(odd, float("nan"), found)
    tl.store(out0 + at, found.to(out0.dtype.element_ty), mask=inside)
"""


def _text(attrs: Attrs, *types: TensorType, source: str = _SOURCE) -> str:
    return source.replace("UPPER", "1" if attrs["upper"] else "0").replace("STEPS", str(MOST_STEPS))


def _samples(rng: Any) -> list[Sample]:
    special = np.array([0.0, 1.0, np.inf, np.nan, -1.0, 0.5, 1e-6, 80.0], np.float32)
    grid = [np.ascontiguousarray(part) for part in np.meshgrid(special, special)]
    large = np.array([900.0, 1000.0, 1000.0, 20000.0], np.float32), np.array([1000.0, 1000.0, 900.0, 20100], np.float32)
    found = []
    for upper in (False, True):
        attrs = {"upper": upper}
        found.append(Sample((grid[0], grid[1]), attrs, 1e-5, 1e-6))
        found.append(Sample(large, attrs, 1e-5, 1e-6))
        for shape, dtype in (((3, 5), np.float32), ((), np.float32), ((0, 2), np.float32), ((40,), np.float64)):
            operands = tuple(np.asarray(rng.gamma(2.0, 3.0, shape)).astype(dtype) for _ in range(2))
            found.append(Sample(operands, attrs, 1e-5, 1e-6))
    return found


register(
    OpDef(
        name="gamma_incomplete", doc="The regularized incomplete gamma function of a at x, lower or upper.",
        inputs=("a", "x"), kind=Kind.OPAQUE, infer=_infer, samples=_samples, reference=_reference, cost_flops=2000,
        attrs={"upper": AttrSpec("bool", False)},
        sources={
            "cpu": KernelSource(text=_text, function="gamma_incomplete"),
            "cuda": KernelSource(
                text=partial(_text, source=_TRITON), function="gamma_incomplete",
                programs=lambda attrs, a, x: dimension.ceildiv(a.elements, 128),
            ),
        },
    )
)  # fmt: skip
