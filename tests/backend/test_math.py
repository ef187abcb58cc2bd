"""The elementary functions of the CPU backend against numpy in double precision: ulps and special values."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aot import expr
from aot.backend.cpu.isa import Isa
from aot.backend.cpu.loops import emit_loops
from aot.dtypes import F32, F64, DType
from aot.ir import TensorType
from aot.kernel import Axis, Kernel, KernelOperand, Kind, Store
from tests.backend.harness import ISAS, run

RANGES = {
    # name: (lowest, highest, ulps in f32 at most, relative error in f64 at most)
    "exp": (-105.0, 89.5, 2, 1e-15),
    "expm1": (-20.0, 88.0, 3, 1e-14),
    "log": (1e-40, 1e38, 2, 1e-15),
    "log1p": (-0.9999, 1e6, 4, 1e-14),
    "sigmoid": (-100.0, 100.0, 3, 1e-14),
    "tanh": (-12.0, 12.0, 5, 1e-14),
    "erf": (-6.0, 6.0, 5, 1e-13),
    "sin": (-20.0, 20.0, 4, 1e-14),
    "cos": (-20.0, 20.0, 4, 1e-14),
    "tan": (-1.5, 1.5, 4, 1e-14),
    "asin": (-1.0, 1.0, 3, 1e-14),
    "acos": (-1.0, 1.0, 3, 1e-14),
    "atan": (-1e4, 1e4, 3, 1e-14),
    "sinh": (-85.0, 85.0, 4, 1e-13),
    "cosh": (-85.0, 85.0, 4, 1e-13),
    "asinh": (-1e6, 1e6, 4, 1e-13),
    "acosh": (1.0, 1e6, 4, 1e-13),
    "atanh": (-0.999, 0.999, 4, 1e-13),
    "sqrt": (0.0, 1e30, 1, 1e-15),
    "rsqrt": (1e-30, 1e30, 2, 1e-15),
}


def call(name: str, isa: Isa, dtype: DType, *arrays: np.ndarray) -> np.ndarray:
    """One function applied to arrays by a generated kernel."""
    type_ = TensorType(dtype, arrays[0].shape)
    loads = [expr.load(n, dtype, [expr.axis(0)]) for n in range(len(arrays))]
    value = expr.call(name, *loads)
    out = KernelOperand(TensorType(value.dtype, arrays[0].shape))
    axes = (Axis(arrays[0].shape[0], "i"),)
    inputs = tuple(KernelOperand(type_) for _ in arrays)
    kernel = Kernel(name, Kind.MAP, axes, 1, inputs, (out,), (Store(0, (expr.axis(0),), value),), None, ())
    with np.errstate(all="ignore"):
        return np.asarray(run(kernel, emit_loops(kernel, isa), isa, [a.astype(dtype.numpy) for a in arrays])[0])


def points(low: float, high: float, count: int = 40001) -> np.ndarray:
    """Points of all magnitudes between two bounds."""
    even = np.linspace(low, high, count)
    small = np.geomspace(1e-30, max(abs(low), abs(high)), count // 4)
    every = np.concatenate([even, small, -small, [low, high]])
    return np.asarray(every[(every >= low) & (every <= high)])


def reference(name: str, x: np.ndarray) -> np.ndarray:
    if name == "sigmoid":
        return np.asarray(np.where(x > 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))))
    return np.asarray(expr.NUMPY[name](x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", sorted(RANGES))
def test_accuracy(name: str, isa: Isa) -> None:
    low, high, ulps, relative = RANGES[name]
    x = points(low, high).astype(np.float32)
    exact = reference(name, x.astype(np.float64))
    got = call(name, isa, F32, x)
    with np.errstate(over="ignore"):
        unit = np.spacing(np.abs(exact.astype(np.float32)))
    fine = np.isfinite(exact.astype(np.float32)) & np.isfinite(got)
    error = np.abs(got.astype(np.float64) - exact)[fine] / unit[fine]
    assert error.max() <= ulps, (error.max(), x[fine][error.argmax()])
    assert (np.isfinite(exact.astype(np.float32)) == np.isfinite(got)).all()
    wide = points(low, high)
    exact = reference(name, wide)
    error = np.abs(call(name, isa, F64, wide) - exact) / np.maximum(np.abs(exact), 1e-300)
    near = np.abs(exact) > (1e-9 if name in ("sin", "cos", "tan") else 0)
    assert error[near].max() <= relative, (error[near].max(), wide[near][error[near].argmax()])


SPECIAL = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, math.inf, -math.inf, math.nan, 1e-40, -1e-40, 3.4e38, -3.4e38]
SPECIAL += [88.7, 88.8, 103.9, -87.5, -104.0, 1e-20, 16777216.0, 16777217.5, 2.5, -2.5, 1.5, 0.49999997]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize(
    "name", [*sorted(RANGES), "floor", "ceil", "round", "trunc", "abs", "sign", "neg", "isnan", "isinf"]
)
def test_special_values(name: str, isa: Isa, dtype: DType) -> None:
    x = np.array(SPECIAL, dtype.numpy)
    got = call(name, isa, dtype, x)
    exact = reference(name, x) if name != "sigmoid" else reference(name, x.astype(np.float64)).astype(dtype.numpy)
    np.testing.assert_allclose(got, exact, rtol=1e-6, atol=1e-37)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
@pytest.mark.parametrize("name", ["pow", "fmod", "mod", "floordiv", "min", "max", "div"])
def test_two_operands(name: str, isa: Isa, dtype: DType) -> None:
    values = np.array([*SPECIAL, 3.0, -3.0, 7.25, 1e10, -1e10, 1e-10, 0.1, 1 / 3], dtype.numpy)
    a, b = (v.reshape(-1).copy() for v in np.meshgrid(values, values))
    rng = np.random.default_rng(1)
    a = np.concatenate([a, rng.normal(size=999).astype(dtype.numpy) * 10])
    b = np.concatenate([b, rng.normal(size=999).astype(dtype.numpy) * 3])
    got = call(name, isa, dtype, a, b)
    exact = np.asarray(expr.NUMPY[name](a, b))
    if name == "floordiv":  # numpy's result at a quotient of infinity is its own
        usual = np.isfinite(a) & np.isfinite(b) & np.isfinite(exact) & (np.abs(exact) < 1e7)
        got, exact = got[usual], exact[usual]
    tolerance = 1e-6 if dtype == F32 else 1e-12
    np.testing.assert_allclose(got, exact, rtol=tolerance, atol=1e-300 if dtype == F64 else 1e-37)


@pytest.mark.parametrize("isa", ISAS)
def test_large_arguments_of_circular_functions(isa: Isa) -> None:
    x = np.concatenate([np.geomspace(1e3, 3e38, 5000), -np.geomspace(3e4, 1e30, 999)]).astype(np.float32)
    for name in ("sin", "cos"):
        exact = expr.NUMPY[name](x.astype(np.float64))
        np.testing.assert_allclose(call(name, isa, F32, x), exact, rtol=0, atol=2e-7)
    wide = np.geomspace(1e3, 1e300, 5000)
    for name in ("sin", "cos"):
        np.testing.assert_allclose(call(name, isa, F64, wide), expr.NUMPY[name](wide), rtol=0, atol=1e-13)
