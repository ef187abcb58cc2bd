"""Small graphs that between them use every kind, for the tests of layout, fusion, lowering and placement."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from aot import dtypes as d
from aot.builder import Builder
from aot.dims import Symbol
from aot.ir import Graph, Value

N, S = Symbol("N"), Symbol("S")
SYMBOLS = {"N": 2, "S": 5}


class Maker(Builder):
    """A builder with seeded random weights and short convolutions."""

    def weight(self, *shape: int) -> Value:
        seed = zlib.crc32(f"{shape}{len(self.consts)}".encode())
        array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        return self.const(array * np.float32(0.5), f"w{len(self.consts)}")

    def convolve(
        self, x: Value, out: int, kernel: int = 3, stride: int = 1, groups: int = 1, pad: int | None = None
    ) -> Value:
        channels, spatial = x.type.shape[1], x.type.rank - 2
        assert isinstance(channels, int)
        pads = (kernel // 2 if pad is None else pad,) * (2 * spatial)
        weight = self.weight(out, channels // groups, *([kernel] * spatial))
        result: Value = self.op(
            "conv",
            x,
            weight,
            self.weight(out),
            strides=(stride,) * spatial,
            pads=pads,
            dilations=(1,) * spatial,
            groups=groups,
        )[0]
        return result


def residual() -> Graph:
    """Convolutions with a residual, pooled, flattened and classified."""
    b = Maker("residual")
    x = b.input("x", d.F32, (N.dim, 3, 12, 12))
    with b.at("stem"):
        y = b.relu(b.convolve(x, 8))
    with b.at("body"):
        z = b.convolve(b.relu(b.convolve(y, 8)), 8)
    with b.at("join"):
        z = b.relu(b.add(z, y))
    with b.at("pool"):
        p = b.max_pool(z, window=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1), dilations=(1, 1))
        a = b.avg_pool(p, window=(2, 2), strides=(2, 2), pads=(1, 1, 0, 0), dilations=(1, 1))
    with b.at("head"):
        mean = b.mul(b.reduce_sum(a, axes=(2, 3), keepdims=False), b.scalar(1 / 9, d.F32))
        logits = b.add(b.matmul(mean, b.weight(8, 5)), b.weight(5))
    return b.finish([b.softmax(logits, axis=-1), z])


def pyramid() -> Graph:
    """Concatenations of channels and rows, nested, read by padded convolutions, and a squeeze-excite."""
    b = Maker("pyramid")
    x = b.input("x", d.F32, (N.dim, 6, 8, 8))
    left, right = b.relu(b.convolve(x, 4, 1)), b.convolve(x, 6)
    inner = b.concat(left, right, axis=1)
    outer = b.concat(inner, left, x, axis=1)
    y = b.convolve(outer, 8)
    rows = b.concat(y, b.relu(y), axis=2)
    z = b.convolve(rows, 8, groups=8)
    gate = b.hardsigmoid(b.convolve(b.reduce_sum(z, axes=(2, 3), keepdims=True), 8, 1))
    gated = b.mul(z, gate)
    return b.finish([b.concat(gated, z, axis=1), b.transpose(gated, perm=(0, 2, 3, 1))])


def encoder() -> Graph:
    """One transformer layer with dynamic batch and sequence, a mask from ids, embeddings, layer norms."""
    b = Maker("encoder")
    n, s = N.dim, S.dim
    ids = b.input("ids", d.I64, (n, s))
    mask = b.input("mask", d.I64, (n, s))
    with b.at("embed"):
        x = b.gather(b.weight(11, 12), ids, axis=0)
        places = b.gather(b.weight(16, 12), b.iota(shape=(s,), axis=0, start=0, step=1, dtype=d.I64), axis=0)
        x = b.layer_norm(b.add(x, places), b.weight(12), b.weight(12), axis=-1, epsilon=1e-5)
    with b.at("mask"):
        hidden = b.sub(b.scalar(1.0, d.F32), b.cast(mask, to=d.F32))
        bias = b.reshape(b.mul(hidden, b.scalar(-1e4, d.F32)), shape=(n, 1, 1, s))

    def heads(value: Value) -> Value:
        split = b.reshape(b.add(b.matmul(value, b.weight(12, 12)), b.weight(12)), shape=(n, s, 3, 4))
        result: Value = b.transpose(split, perm=(0, 2, 1, 3))
        return result

    with b.at("attention"):
        a = b.attention(heads(x), heads(x), heads(x), bias, scale=0.5)
        a = b.reshape(b.transpose(a, perm=(0, 2, 1, 3)), shape=(n, s, 12))
    with b.at("project"):
        x = b.layer_norm(
            b.add(b.add(b.matmul(a, b.weight(12, 12)), b.weight(12)), x), b.weight(12), None, axis=-1, epsilon=1e-5
        )
    with b.at("feed"):
        y = b.matmul(b.gelu(b.add(b.matmul(x, b.weight(12, 20)), b.weight(20))), b.weight(20, 12))
    x = b.add(x, y)
    return b.finish([x, b.reduce_max(x, axes=(1,), keepdims=False), b.cumsum(ids, axis=1)])


def signal() -> Graph:
    """One-dimensional convolutions, slices, padding, a split, means of rows, and outputs that alias inputs."""
    b = Maker("signal")
    x = b.input("x", d.F32, (N.dim, 1, 40))
    y = b.convolve(x, 6, 5, 2)
    first = b.slice(y, starts=(0, 0, 0), sizes=(N.dim, 3, 20), steps=(1, 1, 1))
    second = b.slice(y, starts=(0, 3, 0), sizes=(N.dim, 3, 10), steps=(1, 1, 2))
    tail = b.slice(y, starts=(0, 0, 19), sizes=(N.dim, 6, 20), steps=(1, 1, -1))
    z = b.mul(first, b.sigmoid(first))
    padded = b.pad(z, before=(0, 0, 2), after=(0, 0, 1), mode="reflect")
    rows = b.reduce_max(b.transpose(padded, perm=(0, 2, 1)), axes=(2,), keepdims=True)
    top = b.argmax(second, axis=1, keepdims=False)
    wide = b.expand(rows, shape=(N.dim, 23, 4))
    return b.finish([b.add(wide, b.weight(4)), top, tail, b.reshape(x, shape=(N.dim, 40)), b.convolve(second, 2, 1)])


def two_stores() -> Graph:
    """A kernel that stores twice; its second store reads an operand that dies there, its first does not."""
    b = Maker("two_stores")
    x = b.input("x", d.F32, (N.dim, 6))
    dying = b.concat(b.matmul(x, b.weight(6, 2)), b.matmul(x, b.weight(6, 4)), axis=1)
    first = b.relu(x)
    second = b.add(first, dying)
    return b.finish([b.matmul(first, b.weight(6, 3)), b.matmul(second, b.weight(6, 3))])


def reshaped_outputs() -> Graph:
    """Outputs that are reshapes: of a result, also read on; of one twice; of an input; of parts; of reversed rows."""
    b = Maker("reshaped_outputs")
    x = b.input("x", d.F32, (N.dim, 6))
    y = b.matmul(x, b.weight(6, 4))
    wide = b.reshape(y, shape=(N.dim, 2, 2))
    softened = b.softmax(y, axis=1)
    part, other = b.matmul(x, b.weight(6, 3)), b.matmul(x, b.weight(6, 5))
    whole = b.concat(part, other, axis=1)
    reversed_rows = b.slice(b.relu(y), starts=(0, 3), sizes=(N.dim, 4), steps=(1, -1))
    outputs = [
        wide, b.reshape(softened, shape=(N.dim * 4,)), b.reshape(softened, shape=(N.dim, 4, 1)),
        b.reshape(x, shape=(N.dim, 3, 2)), b.reshape(part, shape=(N.dim * 3,)), b.reshape(whole, shape=(N.dim, 2, 4)),
        b.reshape(reversed_rows, shape=(N.dim, 2, 2)), b.transpose(wide, perm=(0, 2, 1)), b.relu(wide),
    ]  # fmt: skip
    return b.finish(outputs)


GRAPHS: Mapping[str, Callable[[], Graph]] = {
    f.__name__: f for f in (residual, pyramid, encoder, signal, two_stores, reshaped_outputs)
}


def random_inputs(graph: Graph, symbols: Mapping[str, int] = SYMBOLS, seed: int = 0) -> dict[str, np.ndarray]:
    """Inputs of a graph: normal floats, ids below 11, masks of zeros and ones."""
    random = np.random.default_rng(seed)
    found = {}
    for value in graph.inputs:
        shape: Sequence[int] = [e if isinstance(e, int) else symbols[str(e)] for e in value.type.shape]
        if value.type.dtype.is_float:
            found[value.name] = random.standard_normal(shape).astype(value.type.dtype.numpy)
        else:
            found[value.name] = random.integers(0, 2 if value.name == "mask" else 11, shape).astype(
                value.type.dtype.numpy
            )
    return found
