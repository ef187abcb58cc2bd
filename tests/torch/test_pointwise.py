"""Elementwise ops of torch.export programs: arithmetic of every type, comparisons, functions, activations, casts."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.evaluate import evaluate
from aot.frontend import load
from tests.torch.programs import check, check_compiled, exported

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # an export for each case: minutes in all
functional = torch.nn.functional

INF, NAN = float("inf"), float("nan")
FLOATS = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.3, -7.25, 100.0, INF, -INF, NAN])
WHOLE = torch.tensor([0, 1, -1, 2, -7, 5, 100, -128, 63])
DIVISORS = torch.tensor([1, -2, 3, -3, 7, 2, -9, 5, 4])
TRUTHS = torch.tensor([[True], [False]])

PAIRS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda x, y: torch.add(x, y, alpha=2),
    "sub": lambda x, y: torch.sub(x, y, alpha=3),
    "rsub": lambda x, y: torch.rsub(x, y, alpha=2),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "div down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div to zero": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "fmod": torch.fmod,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "fmax": torch.fmax,
    "fmin": torch.fmin,
    "eq": torch.eq,
    "lt": torch.lt,
    "ge": torch.ge,
    "logical_xor": torch.logical_xor,
    "atan2": torch.atan2,
    "copysign": torch.copysign,
    "xlogy": torch.xlogy,
    "isclose": lambda x, y: torch.isclose(x, y, rtol=0.5, equal_nan=True),
    "clamp by tensors": lambda x, y: x.clamp(y, y + 1),
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_floats(name: str) -> None:
    check(PAIRS[name], FLOATS[:, None].clone(), FLOATS.clone())


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_whole_numbers(name: str) -> None:
    check(PAIRS[name], WHOLE[:, None].clone(), DIVISORS.clone())


@pytest.mark.parametrize("name", ["add", "mul", "div", "remainder", "maximum", "lt", "eq"])
def test_types_are_promoted_as_torch_does(name: str) -> None:
    if name not in ("remainder",):
        check(PAIRS[name], WHOLE.clone(), torch.tensor(2.5))
    check(PAIRS[name], WHOLE.to(torch.int32), DIVISORS.clone())
    check(PAIRS[name], FLOATS[2:11].half(), DIVISORS.clone())
    check(PAIRS[name], FLOATS[2:11].half(), torch.tensor([3.0], dtype=torch.float64))
    check(PAIRS[name], FLOATS[2:11].bfloat16(), FLOATS[2:11].half())
    check(PAIRS[name], WHOLE.to(torch.uint8), torch.tensor(3))


def test_numbers_beside_half_types_are_rounded_where_torch_rounds_them() -> None:
    x = torch.linspace(-4, 4, 333).half()

    def function(t: Any) -> Any:
        return (t + 0.1, t * 0.1, t / 3.3, 0.7 - t, t % 0.3, t.abs() ** 0.3, torch.lerp(t, t * 2, 0.1))

    graph = check(function, x)
    for mine, theirs in zip(evaluate(graph, [x.numpy()]), function(x), strict=True):
        assert (mine != theirs.numpy()).mean() < 0.01


def test_truth_values() -> None:
    other = torch.tensor([True, False])
    check(lambda x, y: (x + y, x * y, x & y, x | y, x ^ y, ~x, x == y, x < y, x >= y), TRUTHS, other)
    check(lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), x + 1, x * 2.5, x.sign()), TRUTHS, other)


def test_bits_and_shifts() -> None:
    places = torch.tensor([0, 1, 2, 3, 4, 5, 63, 64, 70])
    check(lambda x, y: (x << y, x >> y, x & 12, x | 3, x ^ -1, ~x), WHOLE, places)
    check(lambda x, y: (x << y, x >> y), WHOLE.to(torch.uint8), places.to(torch.uint8))


def test_powers() -> None:
    exponents = torch.tensor([0, 1, -1, 3, 2, -2, 1, 1, 5])
    check(lambda x, y: (x**y, x**2, x**3.0, x**0.5, 2 ** y.abs(), 2.0**y), WHOLE, exponents)
    check(lambda x: (x**2, x**0.5, x**-0.5, x**-1, x**3, x**1.7, 2.0**x), FLOATS)


FUNCTIONS: tuple[str, ...] = (
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf",
    "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "isfinite", "isinf", "isnan", "isneginf", "isposinf",
    "lgamma", "log", "log10", "log1p", "log2", "logical_not", "neg", "rad2deg", "reciprocal", "relu", "round", "rsqrt",
    "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "frexp",
    "special.i0", "special.i0e", "special.i1", "special.i1e", "special.erfcx", "special.entr", "special.ndtr",
    "special.log_ndtr", "special.ndtri",
)  # fmt: skip


def function_of(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = torch
    for part in name.split("."):
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    x = torch.cat([torch.linspace(-3.3, 3.3, 67), torch.tensor([0.0, 1.0, -1.0, 12.5, -20.25, NAN])])
    check(function_of(name), x)
    if name not in ("frac", "frexp", "neg", "relu"):
        check(function_of(name), torch.tensor([0, 1, 2, 5]))


@pytest.mark.parametrize("name", ["exp", "sigmoid", "erfinv", "log2", "rsqrt", "gelu", "silu"])
def test_functions_of_half_types(name: str) -> None:
    function = getattr(torch, name, None) or getattr(functional, name)
    for dtype in (torch.float16, torch.bfloat16):
        check(function, torch.linspace(0.05, 0.95, 19).to(dtype))


ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": functional.gelu,
    "gelu tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "silu": functional.silu,
    "mish": functional.mish,
    "elu": lambda x: functional.elu(x, 0.7),
    "celu": lambda x: functional.celu(x, 1.3),
    "selu": functional.selu,
    "softplus": lambda x: functional.softplus(x, beta=2, threshold=3),
    "softshrink": functional.softshrink,
    "hardshrink": functional.hardshrink,
    "hardtanh": lambda x: functional.hardtanh(x, -0.5, 2),
    "hardswish": functional.hardswish,
    "hardsigmoid": functional.hardsigmoid,
    "relu6": functional.relu6,
    "leaky_relu": lambda x: functional.leaky_relu(x, 0.2),
    "threshold": lambda x: functional.threshold(x, 0.5, -3.0),
    "logsigmoid": functional.logsigmoid,
    "tanhshrink": functional.tanhshrink,
    "softsign": functional.softsign,
    "glu": lambda x: functional.glu(x.reshape(2, -1), dim=1),
    "prelu": lambda x: functional.prelu(x.reshape(1, 2, -1), torch.tensor([0.25, -0.5])),
    "clamp": lambda x: (x.clamp(-1), x.clamp(max=2), x.clamp(1, -1), x.clamp_min(0.5)),
    "nan_to_num": lambda x: (x.nan_to_num(), x.nan_to_num(2.0, 5.0, -5.0)),
    "where": lambda x: (torch.where(x > 0, x, 0.0), torch.where(x.bool(), 1, 2)),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: (torch.addcmul(x, x, x, value=0.5), torch.addcdiv(x, x, x + 200, value=2)),
    "polygamma": lambda x: torch.polygamma(1, x),
    "nextafter": lambda x: torch.nextafter(x, -x),
    "logaddexp": lambda x: (torch.logaddexp(x, -x), torch.logaddexp2(x, x)),
    "ldexp": lambda x: torch.ldexp(x, torch.tensor(3)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    # Torch's gelu of infinity depends on the machine; its trigamma is inexact left of 0.
    x = FLOATS[:9] if name.startswith("gelu") else FLOATS.abs() if name == "polygamma" else FLOATS
    check(ACTIVATIONS[name], x.clone())


def test_incomplete_gamma() -> None:
    """On a grid that crosses x = a, in f64, and of numbers that have no result."""
    points = torch.tensor([0.0, 1e-3, 0.5, 1.0, 3.0, 30.0, 80.0, 1000.0, math.inf, -1.0], dtype=torch.float64)
    a, x = torch.meshgrid(points, points, indexing="ij")
    functions = (torch.special.gammainc, torch.special.gammaincc)
    check(lambda a, x: tuple(function(a, x) for function in functions), a.clone(), x.clone())
    check(lambda a, x: tuple(function(a, x) for function in functions), a[1:6, :1].half(), x[:1, 1:6].half())


def test_divisors() -> None:
    x, y = torch.tensor([0, 0, 12, -18, 7, 2**40, -5])[:, None], torch.tensor([0, 6, -9, 35, 2**35])
    check(lambda x, y: (torch.gcd(x, y), torch.lcm(x % 1000, y % 1000)), x, y)
    check(lambda x, y: (torch.gcd(x, y), torch.lcm(x, y)), x[:5].to(torch.int16), y[:4].to(torch.int16))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 7])
def test_polygamma(order: int) -> None:
    """Between poles, close to them and far out, against the recurrence from numbers to the right, in f64."""
    x = torch.tensor([-3.5, -2.999, -2.001, -0.75, -1e-3, 0.25, 1.0, 2.5, 40.0], dtype=torch.float64)
    (found,) = evaluate(load(exported(lambda x: torch.polygamma(order, x), (x,))), [x.numpy()])
    steps = x[:, None] + torch.arange(8)
    sign = -1.0 if order % 2 == 0 else 1.0
    below = math.factorial(order) * sign * (steps ** -(order + 1)).sum(1)
    expected = below + torch.polygamma(order, x + 8)
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-9)
    (poles,) = evaluate(load(exported(lambda x: torch.polygamma(order, x), (x,))), [np.arange(-8.0, 1.0)])
    assert (poles == sign * math.inf).all()


def test_numbers_from_data() -> None:
    """Of any sign, floats and truth values too, and Python's arithmetic on them."""

    def floats(x: Any, number: Any) -> Any:
        value = number.item()
        return x * value, x + (value - 1.5) * 2, torch.full((2,), value), -value / 2 < 1.0

    check(floats, torch.randn(3), torch.tensor([-2.5]), others=[(torch.ones(3), torch.tensor([7.25]))])

    def whole(x: Any, number: Any) -> Any:
        value = number.item()
        return x * value, x - (value + 1), torch.full((2,), value), value * 3

    check(whole, torch.randn(3), torch.tensor(-4), others=[(torch.ones(3), torch.tensor(9))])
    check(lambda x: x.item(), torch.tensor([True]), others=[(torch.tensor([False]),)])


def test_casts() -> None:
    x = torch.tensor([0.0, 0.9, -0.9, 1.5, -7.25, 100.0, 300.0])
    kinds = (
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.int8,
        torch.bool,
        torch.float16,
        torch.bfloat16,
        torch.float64,
    )
    check(lambda t: tuple(t.to(kind) for kind in kinds), x)
    check(lambda t: tuple(t.to(kind) for kind in (*kinds, torch.float32)), WHOLE)


def test_open_sizes_stay_open() -> None:
    graph = check(
        lambda x, y: (x + y * 2).clamp(-1, 1) / x.shape[0],
        torch.randn(4, 3),
        torch.randn(4, 1),
        open_axes=((0,), (0,)),
        others=((torch.randn(7, 3), torch.randn(7, 1)),),
    )
    assert len(graph.symbols) == 1


def test_compiled(tmp_path: Path) -> None:
    def function(x: Any, n: Any) -> Any:
        return (
            functional.gelu(x), functional.softplus(x), torch.log2(x.abs() + 1), torch.atan2(x, x.flip(0)),
            torch.div(n, 3, rounding_mode="floor"), n % 4, n << 2, x.half() + 0.1, n.to(torch.float32) / 7,
            torch.where(n > 0, x, -1.0), torch.erfc(x), n**2,
        )  # fmt: skip

    check_compiled(function, torch.linspace(-4, 4, 50), torch.arange(-25, 25), cache=tmp_path)


# Numbers beside small integers


NUMBERS = (0, 1, -1, -5, 127, 128, 200, 255, 256, 300, -128, -129, 32768, 40000, -40000, 1 << 31, -(1 << 40))
BESIDE: dict[str, Callable[[Any, Any], Any]] = {
    "gt": lambda x, n: x > n,
    "ge": lambda x, n: x >= n,
    "lt": lambda x, n: x < n,
    "le": lambda x, n: x <= n,
    "eq": lambda x, n: x == n,
    "ne": lambda x, n: x != n,
    "eq of a tensor": lambda x, n: x == torch.tensor(n),
    "clamp from": lambda x, n: x.clamp(min=n),
    "clamp to": lambda x, n: x.clamp(max=n),
    "clamp": lambda x, n: x.clamp(-n, n),
    "clamp by a tensor": lambda x, n: x.clamp(torch.tensor(n)),
    "where": lambda x, n: torch.where(x > 1, x, n),
    "masked_fill": lambda x, n: x.masked_fill(x > 1, n),
    "full_like": torch.full_like,
    "fill": lambda x, n: x.clone().fill_(n),
    "index_fill": lambda x, n: x.index_fill(0, torch.tensor([1]), n),
    "scatter": lambda x, n: x.scatter(0, torch.tensor([0, 2]), n),
    "pad": lambda x, n: functional.pad(x, (1, 1), value=n),
    "add": lambda x, n: x + n,
    "rsub": lambda x, n: n - x,
    "mul": lambda x, n: x * n,
    "add scaled": lambda x, n: torch.add(x, x, alpha=n),
    "and": lambda x, n: x & n,
    "or": lambda x, n: x | n,
    "logical_and": lambda x, n: torch.logical_and(x, torch.tensor(n)),
    "logical_xor": lambda x, n: torch.logical_xor(x, torch.tensor(n)),
    "isin": torch.isin,
}


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32"])
def test_numbers_beside_small_integers(dtype: str) -> None:
    """In range and out of it, as in eager; what eager refuses is left out."""
    kind = getattr(torch, dtype)
    limits = torch.iinfo(kind)
    x = torch.tensor([0, 1, 2, 3, 100, limits.max, limits.min, limits.max - 1, 5], dtype=kind)
    cases = []
    for name, function in BESIDE.items():
        for number in NUMBERS:
            try:
                cases.append((name, number, function(x, number)))
            except RuntimeError:  # "value cannot be converted without overflow"
                continue
    assert len(cases) > 300
    program = exported(lambda x: [BESIDE[name](x, number) for name, number, _ in cases], [x])
    found = evaluate(load(program), [x.numpy()])
    for (name, number, expected), array in zip(cases, found, strict=True):
        assert array.dtype == expected.numpy().dtype, (name, number)
        np.testing.assert_array_equal(array, expected.numpy(), err_msg=f"{name} {number}")


def test_a_bound_that_eager_refuses() -> None:
    """PyTorch exports it; it does not bind."""
    x = torch.arange(200, 256, dtype=torch.uint8)
    graph = load(exported(lambda x: (x.clamp(max=300), x.clamp(min=-300), x.clamp(0, 1e9)), [x]))
    for array in evaluate(graph, [x.numpy()]):
        np.testing.assert_array_equal(array, x.numpy())
