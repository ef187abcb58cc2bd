"""RANDOM ops: numbers that depend on a seed and on the element's position alone.

Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): the position is the
counter, the seed the key. So every element can be computed by itself, in any order, by any thread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from aot.dtypes import F32, F64, I64, U64, DType
from aot.expr import Expr, call, cast, const
from aot.ir import Array, TensorType
from aot.ops.helpers import dims_attr, dtype_attr, float_attr, int_attr
from aot.ops.indexing import fixed, linear
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, Source, register

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
_LOW = 0xFFFFFFFF


def _infer(attrs: Attrs) -> TensorType:
    dtype = dtype_attr(attrs, "dtype")
    if not dtype.is_float:
        raise OpError(f"random numbers are floats, not {dtype}")
    if int_attr(attrs, "seed") < 0:
        raise OpError("a seed must not be negative")
    return TensorType(dtype, dims_attr(attrs, "shape"))


def philox(counter: Expr, seed: int) -> tuple[Expr, Expr, Expr, Expr]:
    """Four random words of 32 bits, as u64, for a counter (u64)."""
    words = [call("and", counter, _LOW), call("shr", counter, 32), const(0, U64), const(0, U64)]
    keys = [seed & _LOW, (seed >> 32) & _LOW]
    for _ in range(ROUNDS):
        products = [words[0] * MULTIPLIERS[0], words[2] * MULTIPLIERS[1]]
        high = [call("shr", product, 32) for product in products]
        low = [call("and", product, _LOW) for product in products]
        words = [
            call("xor", call("xor", high[1], words[1]), keys[0]), low[1],
            call("xor", call("xor", high[0], words[3]), keys[1]), low[0],
        ]  # fmt: skip
        keys = [(key + step) & _LOW for key, step in zip(keys, WEYL, strict=True)]
    return words[0], words[1], words[2], words[3]


def _unit(words: Sequence[Expr], wide: DType) -> Expr:
    """A number in 0 <= u < 1 from one word (24 bits, f32) or two (53 bits, f64)."""
    if wide == F32:
        return cast(cast(call("shr", words[0], 8), I64), F32) * 2.0**-24
    bits = call("or", call("shl", call("shr", words[0], 5), 26), call("shr", words[1], 6))
    return cast(cast(bits, I64), F64) * 2.0**-53


def _access(name: str) -> Any:
    def rule(attrs: Attrs, sources: Sequence[Source | None], out: TensorType, indices: Sequence[Expr]) -> Expr:
        wide = F64 if out.dtype == F64 else F32
        words = philox(cast(linear(indices, out.shape), U64), int_attr(attrs, "seed"))
        if name == "random_uniform":
            low, high = float_attr(attrs, "low"), float_attr(attrs, "high")
            return cast(_unit(words, wide) * (high - low) + low, out.dtype)
        # Box-Muller: the distance from 1 - u, which is never 0, and the angle.
        first = 1.0 - _unit(words[:2], wide)
        angle = _unit(words[2:], wide) * (2.0 * math.pi)
        distance = call("sqrt", call("log", first) * -2.0)
        value = distance * call("cos", angle)
        return cast(value * float_attr(attrs, "scale") + float_attr(attrs, "mean"), out.dtype)

    return rule


def philox_array(counters: Array, seed: int) -> Array:
    """numpy's philox: [4, n] words for n counters; written apart from the rule above."""
    state = np.zeros((4, counters.size), np.uint64)
    state[0], state[1] = counters & np.uint64(_LOW), counters >> np.uint64(32)
    key = np.array([seed & _LOW, seed >> 32 & _LOW], np.uint64)
    for _ in range(ROUNDS):
        a, b = state[0] * np.uint64(MULTIPLIERS[0]), state[2] * np.uint64(MULTIPLIERS[1])
        mask, half = np.uint64(_LOW), np.uint64(32)
        state = np.stack([(b >> half) ^ state[1] ^ key[0], b & mask, (a >> half) ^ state[3] ^ key[1], a & mask])
        key = (key + np.array(WEYL, np.uint64)) & mask
    return state


def _reference(name: str) -> Any:
    def run(attrs: Attrs) -> Array:
        shape = fixed(dims_attr(attrs, "shape"))
        dtype = dtype_attr(attrs, "dtype")
        words = philox_array(np.arange(math.prod(shape), dtype=np.uint64), int_attr(attrs, "seed"))

        def unit(pair: Array) -> Array:
            if dtype != F64:
                return np.asarray((pair[0] >> np.uint64(8)).astype(np.float64) * 2.0**-24)
            bits: Any = (pair[0] >> np.uint64(5) << np.uint64(26)) | (pair[1] >> np.uint64(6))
            return np.asarray(bits.astype(np.float64) * 2.0**-53)

        if name == "random_uniform":
            low, high = float_attr(attrs, "low"), float_attr(attrs, "high")
            wide: Any = np.float64 if dtype == F64 else np.float32
            value: Any = unit(words[:2]).astype(wide) * wide(high - low) + wide(low)
        else:
            distance = np.sqrt(-2.0 * np.log(1.0 - unit(words[:2])))
            value = distance * np.cos(2.0 * np.pi * unit(words[2:]))
            value = value * float_attr(attrs, "scale") + float_attr(attrs, "mean")
        return np.asarray(value).astype(dtype.numpy).reshape(shape)

    return run


def _samples(extra: dict[str, float]) -> Any:
    def make(rng: Any) -> list[Sample]:
        return [
            Sample((), {"shape": (5, 7), "dtype": F32, "seed": 0}, 1e-4, 1e-5),
            Sample((), {"shape": (3, 100), "dtype": F32, "seed": 1 << 40, **extra}, 1e-4, 1e-5),
            Sample((), {"shape": (33,), "dtype": F64, "seed": 7, **extra}, 1e-4, 1e-5),
            Sample((), {"shape": (), "dtype": F32, "seed": 3}, 1e-4, 1e-5),
            Sample((), {"shape": (0, 4), "dtype": F32, "seed": 3}, 1e-4, 1e-5),
        ]

    return make


_ATTRS = {
    "shape": AttrSpec("dims"),
    "dtype": AttrSpec("dtype", F32),
    "seed": AttrSpec("int", 0, "the key: 64 bits"),
}
register(
    OpDef(
        name="random_uniform", doc="Uniform numbers low <= x < high, by seed and position.", inputs=(),
        kind=Kind.RANDOM, infer=_infer, samples=_samples({"low": -2.0, "high": 3.0}), access=_access("random_uniform"),
        attrs={**_ATTRS, "low": AttrSpec("float", 0.0), "high": AttrSpec("float", 1.0)},
        reference=_reference("random_uniform"), cost_flops=120,
    )
)  # fmt: skip
register(
    OpDef(
        name="random_normal", doc="Normally distributed numbers, by seed and position.", inputs=(),
        kind=Kind.RANDOM, infer=_infer, samples=_samples({"mean": 1.5, "scale": 0.5}), access=_access("random_normal"),
        attrs={**_ATTRS, "mean": AttrSpec("float", 0.0), "scale": AttrSpec("float", 1.0)},
        reference=_reference("random_normal"), cost_flops=180,
    )
)  # fmt: skip
