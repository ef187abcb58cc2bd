"""Small random graphs of what moves elements and what reads them: the same for a seed, on every machine.

Reshapes, transposes, gathers by turned and odd tables, slices, concatenations, windows of images, norms, products,
convolutions, pools, and attention as exporters write it, with masks by window. Some values are read twice, and some
outputs are read inside.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np

from aot.builder import Builder
from aot.dtypes import F16, F32, DType
from aot.ir import Array, Graph, Value

MOST_ELEMENTS = 4000
SHAPES = ((2, 4, 6, 8), (4, 6, 16), (1, 8, 6, 6), (12, 16), (2, 3, 5, 4), (3, 5, 7), (2, 16, 4, 6), (1, 3, 17, 18))


def shape_of(value: Value) -> list[int]:
    """The extents of a value of known shape."""
    return [extent for extent in value.type.shape if isinstance(extent, int)]


def divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


class RandomGraph:
    """A graph of `count` steps; `graph` is it, and `arrays` are inputs for it."""

    def __init__(self, seed: int, count: int = 8) -> None:
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.builder = Builder(f"random_{seed}")
        self.dtype: DType = self.random.choice([F16, F32])
        self.made = [self.builder.input(f"x{n}", self.dtype, self.random.choice(SHAPES)) for n in range(2)]
        steps: list[tuple[Callable[[], Value | None], int]] = [
            (self.reshape, 4), (self.transpose, 4), (self.gather, 5), (self.turn, 2), (self.slice, 2),
            (self.concat, 2), (self.unary, 2), (self.binary, 3), (self.norm, 3), (self.mean, 1), (self.product, 4),
            (self.conv, 3), (self.pool, 1), (self.windows, 4), (self.images, 3), (self.turned_axes, 3),
            (self.attention, 3),
        ]  # fmt: skip
        for _ in range(8 * count):
            if len(self.made) >= count + 2:
                break
            (step,) = self.random.choices([step for step, _ in steps], [weight for _, weight in steps])
            value = step()
            if value is not None and value.type.rank <= 7 and 0 < math.prod(shape_of(value)) <= MOST_ELEMENTS:
                self.made.append(value)
        read = {value for node in self.builder.nodes for value in node.operands}
        made = [value for value in self.made if value not in self.builder.inputs]
        outputs = [value for value in made if value not in read][-3:]
        outputs += self.random.sample(made, min(len(made), self.random.choice([0, 1])))
        outputs = list(dict.fromkeys(outputs)) or [self.builder.neg(self.made[0])]
        self.graph: Graph = self.builder.finish(outputs)
        self.arrays: list[Array] = [
            self.numbers.standard_normal(shape_of(v)).astype(self.dtype.numpy) for v in self.builder.inputs
        ]

    # What steps read.

    def pick(self, ranks: Sequence[int] = range(9)) -> Value | None:
        """A value of one of the ranks, rather a recent one."""
        found = [value for value in self.made if value.type.rank in ranks]
        return found[-1 - min(int(self.random.expovariate(0.7)), len(found) - 1)] if found else None

    def weight(self, *shape: int) -> Value:
        fan_in = math.prod(shape[1:]) if len(shape) > 2 else shape[0]
        array = self.numbers.standard_normal(shape) / math.sqrt(fan_in)
        return self.builder.const(array.astype(self.dtype.numpy), f"w{len(self.builder.consts)}")

    def some(self, axis: int, rank: int) -> int:
        """An axis, at times counted from the end."""
        return axis - rank if self.random.random() < 0.2 else axis

    # Steps.

    def reshape(self) -> Value:
        x = self.pick()
        assert x is not None
        shape = shape_of(x)
        for _ in range(self.random.randint(1, 3)):
            place = self.random.randrange(max(len(shape), 1))
            if self.random.random() < 0.5 and len(shape) > place + 1:
                shape[place : place + 2] = [shape[place] * shape[place + 1]]
            elif shape:
                part = self.random.choice(divisors(shape[place]))
                shape[place : place + 1] = [part, shape[place] // part]
        return self.builder.reshape(x, shape=tuple(shape))  # type: ignore[no-any-return]

    def transpose(self) -> Value:
        x = self.pick()
        assert x is not None
        return self.builder.transpose(x, perm=tuple(self.random.sample(range(x.type.rank), x.type.rank)))  # type: ignore[no-any-return]

    def gather(self) -> Value | None:
        x = self.pick(range(1, 9))
        if x is None:
            return None
        axis = self.random.randrange(x.type.rank)
        extent = shape_of(x)[axis]
        turned = (np.arange(extent) + self.random.randint(-extent, extent)) % extent
        table = self.random.choice(
            [turned, turned, turned, turned - extent, turned[:-1], turned[None], turned[::-1],
             self.numbers.permutation(extent), self.numbers.integers(-extent, extent, 3)]
        )  # fmt: skip
        table = table if table.size else turned
        places = self.builder.const(table.astype(np.int64), f"table{len(self.builder.consts)}")
        return self.builder.gather(x, places, axis=self.some(axis, x.type.rank))  # type: ignore[no-any-return]

    def part(self, x: Value, axis: int, start: int, end: int) -> Value:
        starts, sizes = [0] * x.type.rank, shape_of(x)
        starts[axis], sizes[axis] = start, end - start
        return self.builder.slice(x, starts=tuple(starts), sizes=tuple(sizes), steps=(1,) * x.type.rank)  # type: ignore[no-any-return]

    def slice(self) -> Value | None:
        x = self.pick(range(1, 9))
        if x is None:
            return None
        axis = self.random.randrange(x.type.rank)
        start, end = sorted(self.random.choices(range(shape_of(x)[axis] + 1), k=2))
        return self.part(x, axis, start, end) if end > start else None

    def turn(self) -> Value | None:
        """`roll` as slices and a concatenation."""
        x = self.pick(range(1, 9))
        axis = self.random.randrange(x.type.rank) if x is not None else 0
        if x is None or shape_of(x)[axis] < 2:
            return None
        extent = shape_of(x)[axis]
        cut = self.random.randint(1, extent - 1)
        parts = self.part(x, axis, cut, extent), self.part(x, axis, 0, cut)
        return self.builder.concat(*parts, axis=self.some(axis, x.type.rank))  # type: ignore[no-any-return]

    def concat(self) -> Value | None:
        x = self.pick(range(1, 9))
        if x is None:
            return None
        alike = [value for value in self.made if value.type.shape == x.type.shape]
        axis = self.some(self.random.randrange(x.type.rank), x.type.rank)
        return self.builder.concat(x, self.random.choice(alike), axis=axis)  # type: ignore[no-any-return]

    def unary(self) -> Value:
        x = self.pick()
        assert x is not None
        return getattr(self.builder, self.random.choice(["tanh", "sigmoid", "relu", "neg", "silu"]))(x)  # type: ignore[no-any-return]

    def binary(self) -> Value:
        x = self.pick()
        assert x is not None
        others = [value for value in self.made if value.type.shape == x.type.shape]
        others.append(self.builder.scalar(2.0, self.dtype))
        others += [self.weight(shape_of(x)[-1])] if x.type.rank else []
        return getattr(self.builder, self.random.choice(["add", "mul", "max"]))(x, self.random.choice(others))  # type: ignore[no-any-return]

    def norm(self) -> Value | None:
        x = self.pick(range(1, 9))
        if x is None or shape_of(x)[-1] < 2:
            return None
        if self.random.random() < 0.3:
            return self.builder.softmax(x, axis=self.random.randrange(-1, x.type.rank))  # type: ignore[no-any-return]
        scales = [self.weight(shape_of(x)[-1]) for _ in range(2)]
        return self.builder.layer_norm(x, *scales, axis=x.type.rank - 1, epsilon=1e-2)  # type: ignore[no-any-return]

    def mean(self) -> Value | None:
        x = self.pick(range(2, 9))
        if x is None:
            return None
        axis = self.some(self.random.randrange(x.type.rank), x.type.rank)
        return self.builder.reduce_mean(x, axes=(axis,), keepdims=self.random.random() < 0.5)  # type: ignore[no-any-return]

    def product(self) -> Value | None:
        x = self.pick(range(2, 9))
        if x is None or shape_of(x)[-1] > 64:
            return None
        width = shape_of(x)[-1]
        result = self.builder.matmul(x, self.weight(width, self.random.choice([width, width, 16, 5])))
        return self.builder.add(x, result) if result.type.shape == x.type.shape else result  # type: ignore[no-any-return]

    def conv(self) -> Value | None:
        x = self.pick((3, 4, 5))
        if x is None:
            return None
        channels, *image = shape_of(x)[1:]
        groups = self.random.choice([1, 1, channels, *divisors(channels)])
        outputs = self.random.choice([channels, 16, 5]) if groups == 1 else groups * self.random.choice([1, 2])
        window = [self.random.choice([1, 2, 3]) for _ in image]
        pads = [self.random.choice([extent // 2, 1]) for extent in (*window, *window)]
        if outputs > 64 or any(
            a + p + q < k for a, p, q, k in zip(image, pads, pads[len(image) :], window, strict=False)
        ):
            return None
        result = self.builder.conv(
            x, self.weight(outputs, channels // groups, *window), pads=tuple(pads), groups=groups,
            strides=tuple(self.random.choice([1, 1, 2]) for _ in image), dilations=(1,) * len(image),
        )  # fmt: skip
        return self.builder.add(result, x) if result.type.shape == x.type.shape else result  # type: ignore[no-any-return]

    def pool(self) -> Value | None:
        x = self.pick((3, 4, 5))
        if x is None:
            return None
        image = shape_of(x)[2:]
        window = [min(extent, self.random.choice([1, 2, 3])) for extent in image]
        pads = tuple(extent // 2 for extent in window) * 2
        ones = (1,) * len(image)
        return self.builder.max_pool(x, window=tuple(window), strides=ones, pads=pads, dilations=ones)  # type: ignore[no-any-return]

    def windows(self) -> Value | None:
        """Windows of images that lie channels last, as rows of their own."""
        x = self.pick((4,))
        if x is None:
            return None
        n, h, w, c = shape_of(x)
        high, wide = self.random.choice(divisors(h)), self.random.choice(divisors(w))
        apart = self.builder.reshape(x, shape=(n, h // high, high, w // wide, wide, c))
        joined = self.builder.transpose(apart, perm=(0, 1, 3, 2, 4, 5))
        return self.builder.reshape(joined, shape=(n * h // high * w // wide, high * wide, c))  # type: ignore[no-any-return]

    def images(self) -> Value | None:
        """The inverse of `windows`."""
        x = self.pick((3,))
        if x is None:
            return None
        count, places, c = shape_of(x)
        down = self.random.choice(divisors(count))
        across = self.random.choice(divisors(count // down))
        high = self.random.choice(divisors(places))
        apart = self.builder.reshape(x, shape=(count // down // across, down, across, high, places // high, c))
        joined = self.builder.transpose(apart, perm=(0, 1, 3, 2, 4, 5))
        shape = (count // down // across, down * high, across * (places // high), c)
        return self.builder.reshape(joined, shape=shape)  # type: ignore[no-any-return]

    def turned_axes(self) -> Value | None:
        x = self.pick((4,))
        perm = self.random.choice([(0, 2, 3, 1), (0, 3, 1, 2)])
        return None if x is None else self.builder.transpose(x, perm=perm)

    def attention(self) -> Value | None:
        """Of windows, with a bias by head and a mask by window; scaled in f32 where types are 16 bits wide."""
        b, x = self.builder, self.pick((3,))
        if x is None or shape_of(x)[1] > 32 or shape_of(x)[2] > 32:
            return None
        m, places, c = shape_of(x)
        heads = self.random.choice([h for h in (1, 2, 3) if c % h == 0])
        size = c // heads
        joined = b.reshape(b.matmul(x, self.weight(c, 3 * c)), shape=(m, places, 3, heads, size))
        apart = b.transpose(joined, perm=(2, 0, 3, 1, 4))
        q, k, v = (b.reshape(self.part(apart, 0, n, n + 1), shape=(m, heads, places, size)) for n in range(3))
        if self.dtype == F16 and self.random.random() < 0.5:
            q = b.cast(b.mul(b.cast(q, to=F32), b.scalar(size**-0.5, F32)), to=F16)
        else:
            q = b.mul(q, b.scalar(size**-0.5, self.dtype))
        scores = b.matmul(q, b.transpose(k, perm=(0, 1, 3, 2)))
        if self.random.random() < 0.5:
            table = b.gather(self.weight(9, heads), self.table(9, places * places), axis=0)
            bias = b.transpose(b.reshape(table, shape=(places, places, heads)), perm=(2, 0, 1))
            scores = b.add(scores, b.reshape(bias, shape=(1, heads, places, places)))
        if self.random.random() < 0.6:
            windows = self.random.choice(divisors(m))
            shape = (windows, places, places)
            mask = b.input(f"mask{len(b.inputs)}", self.dtype, shape) if self.random.random() < 0.5 else None
            mask = mask or b.const((self.numbers.random(shape) < 0.3) * self.dtype.numpy.type(-100), "mask")
            split = b.reshape(scores, shape=(m // windows, windows, heads, places, places))
            total = b.add(split, b.reshape(mask, shape=(1, windows, 1, places, places)))
            scores = b.reshape(total, shape=(m, heads, places, places))
        mixed = b.transpose(b.matmul(b.softmax(scores, axis=3), v), perm=(0, 2, 1, 3))
        result = b.matmul(b.reshape(mixed, shape=(m, places, c)), self.weight(c, c))
        return b.add(x, result)  # type: ignore[no-any-return]

    def table(self, extent: int, count: int) -> Value:
        return self.builder.const(self.numbers.integers(0, extent, count), f"table{len(self.builder.consts)}")


def assert_alike(found: Sequence[Array], wanted: Sequence[Array], what: object) -> None:
    """The same outputs, to roundings in another order; NaN where it is NaN."""
    for got, want in zip(found, wanted, strict=True):
        assert (got.shape, got.dtype) == (want.shape, want.dtype), what
        wide = want.astype(np.float64)
        finite = np.abs(wide[np.isfinite(wide)])
        bound = (6e-2 if want.dtype == np.float16 else 2e-3) * max(float(finite.max(initial=0)), 1)
        with np.errstate(invalid="ignore"):
            error = np.abs(got.astype(np.float64) - wide)
        assert (error[np.isfinite(wide)] <= bound).all(), (what, float(np.nanmax(error)))
