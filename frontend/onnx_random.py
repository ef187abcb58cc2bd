"""Converters of ops with random results.

Numbers come from a counter and a seed (aot/ops/random.py): every run of an artifact gives the same ones,
at any number of threads. Without a seed the node's name is one. They are not the numbers that ONNX
Runtime gives for the same seed; only the distribution is the same.
"""

from __future__ import annotations

import hashlib
import struct

from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Value


def _seed(c: Context) -> int:
    """64 bits from the seed's bits, or from the node's name."""
    if c.has_attribute("seed"):
        (bits,) = struct.unpack("<I", struct.pack("<f", c.float_attribute("seed")))
        return int(bits)
    return int.from_bytes(hashlib.sha256(c.where.encode()).digest()[:7], "little")


def _like(c: Context) -> tuple[tuple[Dim, ...], DType]:
    """Shape and element type of the result."""
    if c.op_type.endswith("Like"):
        x = c.input(0).type
        return x.shape, c.dtype_attribute("dtype", x.dtype)
    return tuple(c.ints_attribute("shape")), c.dtype_attribute("dtype", dtypes.F32)


def _uniform(c: Context, shape: tuple[Dim, ...], dtype: DType) -> Value:
    return c.op("random_uniform", shape=shape, dtype=dtype, seed=_seed(c))


@onnx_op("RandomUniform", "RandomUniformLike")
def _random_uniform(c: Context) -> Result:
    shape, dtype = _like(c)
    low, high = c.float_attribute("low", 0.0), c.float_attribute("high", 1.0)
    return c.op("random_uniform", shape=shape, dtype=dtype, seed=_seed(c), low=low, high=high)


@onnx_op("RandomNormal", "RandomNormalLike")
def _random_normal(c: Context) -> Result:
    shape, dtype = _like(c)
    mean, scale = c.float_attribute("mean", 0.0), c.float_attribute("scale", 1.0)
    return c.op("random_normal", shape=shape, dtype=dtype, seed=_seed(c), mean=mean, scale=scale)


@onnx_op("Bernoulli")
def _bernoulli(c: Context) -> Result:
    x = c.input(0)
    chance = c.cast(x, dtypes.F32)
    hit = c.op("lt", _uniform(c, x.type.shape, dtypes.F32), chance)
    return c.cast(hit, c.dtype_attribute("dtype", x.type.dtype))


@onnx_op("Multinomial")
def _multinomial(c: Context) -> Result:
    x = c.input(0)
    count = c.int_attribute("sample_size", 1)
    batch, classes = x.type.shape
    weights = c.op("cumsum", c.op("softmax", c.cast(x, dtypes.F32), axis=1), axis=1)
    draws = _uniform(c, (batch, count, 1), dtypes.F32)
    passed = c.op("le", c.reshape(weights, (batch, 1, classes)), draws)
    number = c.op("reduce_sum", c.cast(passed, dtypes.I64), axes=(2,), keepdims=False)
    last = c.op("sub", c.dim_scalar(classes, dtypes.I64), c.scalar(1, dtypes.I64))
    return c.cast(c.op("min", number, last), c.dtype_attribute("dtype", dtypes.I32))
