"""What a random model is made of: single ops with hostile arguments, and the blocks of real networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.grow import Dims, Grower, Step

STEPS: list[tuple[float, Step]] = []
FLOATS = ("float32", "float64", "float16")
UNARY = (
    "Abs Neg Relu Sigmoid Tanh Exp Sqrt Log Erf Softplus Softsign HardSwish HardSigmoid LeakyRelu Elu Celu Selu Floor "
    "Ceil Round Sign Sin Cos Atan Reciprocal ThresholdedRelu Shrink Identity Mish Gelu Asinh Sinh Cosh Tan"
).split()
REDUCTIONS = (
    "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSumExp"
).split()


def step(weight: float) -> Callable[[Step], Step]:
    def register(function: Step) -> Step:
        STEPS.append((weight, function))
        return function

    return register


def pick(g: Grower, accept: Callable[[str], bool] = lambda name: True) -> str | None:
    """A value that fits, a late one more likely."""
    fitting = [name for name in g.order if accept(name)]
    if not fitting:
        return None
    position = max(g.random.random(), g.random.random())
    return fitting[int(position * len(fitting))]


def is_float(g: Grower, name: str) -> bool:
    return g.dtype(name) in FLOATS


def pick_float(g: Grower, rank: int = 0, only: str = "") -> str | None:
    return pick(g, lambda name: (g.dtype(name) == only if only else is_float(g, name)) and g.rank(name) >= rank)


def choice(g: Grower, items: Sequence[Any]) -> Any:
    return items[int(g.random.integers(len(items)))]


def chance(g: Grower, probability: float) -> bool:
    return bool(g.random.random() < probability)


def int64(g: Grower, values: Any) -> str:
    return g.constant(np.asarray(values, np.int64))


def broadcastable(a: Dims, b: Dims) -> bool:
    return all(x == y or set(x) == {1} or set(y) == {1} for x, y in zip(a[::-1], b[::-1], strict=False))


def partner(g: Grower, name: str) -> str:
    """A value or a constant that broadcasts with this one."""
    if chance(g, 0.55):
        other = pick(g, lambda it: g.dtype(it) == g.dtype(name) and broadcastable(g.dims(it), g.dims(name)))
        if other:
            return other
    shape = [extent if extent > 0 and chance(g, 0.6) else 1 for extent in g.fixed(name)]
    shape = shape[int(g.random.integers(len(shape) + 1)) :]
    if chance(g, 0.1):
        shape = [choice(g, [1, 2, 3]), *([1] * (g.rank(name) - len(shape))), *shape]
    return g.constant(g.sample(shape, g.dtype(name)))


# elementwise


@step(3)
def unary(g: Grower) -> Any:
    name = pick_float(g)
    if name is None:
        return None
    op = choice(g, UNARY)
    if op in ("Sqrt", "Log"):
        name = g.add("Abs", [name])
        if op == "Log" and name:
            name = g.add("Add", [name, g.constant(np.asarray(0.5, g.dtype(name)))])
        if name is None:
            return None
    attributes: dict[str, Any] = {}
    if op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu"):
        attributes = {"alpha": float(choice(g, [0.1, 0.5, 1.0, 2.0]))}
    if op == "HardSigmoid" and chance(g, 0.5):
        attributes = {"alpha": 1 / 6, "beta": 0.5}
    if op == "Shrink":
        attributes = {"lambd": 0.7, "bias": 0.3}
    if op == "Gelu":
        attributes = {"approximate": choice(g, ["none", "tanh"])}
    return g.add(op, [name], **attributes)


@step(1)
def clip(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) != "bool")
    if name is None:
        return None
    dtype = g.dtype(name)
    bounds = [g.constant(np.asarray(bound, dtype)) if chance(g, 0.7) else "" for bound in (0, 6)]
    return g.add("Clip", [name, *bounds])


@step(4)
def binary(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) != "bool")
    if name is None:
        return None
    other = partner(g, name)
    op = choice(g, ["Add", "Sub", "Mul", "Max", "Min", "Add", "Mul", "Div"])
    if op == "Div":
        other = g.add("Abs", [other])
        other = other and g.add("Add", [other, g.constant(np.asarray(1, g.dtype(name)))])
        if other is None:
            return None
    operands = [name, other]
    if op != "Div" and chance(g, 0.4):
        operands.reverse()
    return g.add(op, operands)


@step(0.5)
def several(g: Grower) -> Any:
    name = pick_float(g)
    if name is None:
        return None
    return g.add(choice(g, ["Sum", "Mean", "Max", "Min"]), [name, partner(g, name), partner(g, name)])


@step(1)
def compare(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) != "bool")
    if name is None:
        return None
    return g.add(choice(g, ["Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Equal"]), [name, partner(g, name)])


@step(1)
def logical(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) == "bool")
    if name is None:
        return None
    op = choice(g, ["And", "Or", "Xor", "Not"])
    return g.add(op, [name] if op == "Not" else [name, partner(g, name)])


@step(1.5)
def where(g: Grower) -> Any:
    condition = pick(g, lambda it: g.dtype(it) == "bool")
    if condition is None:
        return None
    name = pick(g, lambda it: g.dtype(it) != "bool" and broadcastable(g.dims(it), g.dims(condition)))
    if name is None:
        return None
    other = partner(g, name)
    if not broadcastable(g.dims(other), g.dims(condition)):
        return None
    return g.add("Where", [condition, name, other] if chance(g, 0.5) else [condition, other, name])


@step(1)
def power(g: Grower) -> Any:
    name = pick_float(g)
    if name is None:
        return None
    exponent = choice(g, [2.0, 3.0, 0.5, -1.0, 1.0, 0.0, 1.5])
    if exponent in (0.5, -1.0, 1.5):
        name = g.add("Abs", [name])
        name = name and g.add("Add", [name, g.constant(np.asarray(0.5, g.dtype(name)))])
        if name is None:
            return None
    dtype = g.dtype(name) if chance(g, 0.7) else "int64" if exponent == int(exponent) else "float32"
    return g.add("Pow", [name, g.constant(np.asarray(exponent, dtype))])


@step(0.5)
def prelu(g: Grower) -> Any:
    name = pick_float(g, 2)
    if name is None or g.fixed(name)[1] < 0:
        return None
    return g.add("PRelu", [name, g.weight(g.fixed(name)[1], *[1] * (g.rank(name) - 2), dtype=g.dtype(name))])


@step(0.6)
def modulo(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) in ("int64", "int32", "float32"))
    if name is None:
        return None
    divisor = g.constant(np.asarray(choice(g, [3, -3, 5]), g.dtype(name)))
    return g.add("Mod", [name, divisor], fmod=1 if g.dtype(name) == "float32" else int(chance(g, 0.5)))


@step(1.5)
def cast(g: Grower) -> Any:
    name = pick(g)
    if name is None:
        return None
    target = choice(g, [1, 1, 1, 11, 7, 7, 6, 9, 10, 2, 3])
    return g.add("Cast", [name], to=target)


# views and movement


@step(2.5)
def transpose(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 2)
    if name is None:
        return None
    if chance(g, 0.1):
        return g.add("Transpose", [name])
    return g.add("Transpose", [name], perm=[int(axis) for axis in g.random.permutation(g.rank(name))])


@step(2.5)
def reshape(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    if name is None:
        return None
    fixed = g.fixed(name)
    kind = g.random.random()
    if kind < 0.3:  # merge two neighbours
        if len(fixed) < 2:
            return None
        axis = int(g.random.integers(len(fixed) - 1))
        target = [0] * axis + [-1] + [extent for extent in fixed[axis + 2 :]]
        if target.count(-1) > 1:
            return None
        return g.add("Reshape", [name, int64(g, target)])
    if kind < 0.6:  # split one
        axes = [axis for axis, extent in enumerate(fixed) if extent > 1]
        if not axes or len(fixed) > 4:
            return None
        axis = choice(g, axes)
        divisors = [d for d in range(1, fixed[axis] + 1) if fixed[axis] % d == 0]
        first = choice(g, divisors)
        target = [*fixed[:axis], first, fixed[axis] // first, *fixed[axis + 1 :]]
        if target.count(-1) > 1:
            return None
        return g.add("Reshape", [name, int64(g, target)])
    if kind < 0.8:  # all but one free
        static = int(np.prod([extent for extent in fixed if extent > 0], dtype=np.int64))
        if static == 0:
            return None
        divisors = [d for d in range(1, static + 1) if static % d == 0]
        return g.add("Reshape", [name, int64(g, choice(g, [[-1], [-1, choice(g, divisors)], [1, -1], [-1, 1]]))])
    shape = g.add("Shape", [name])  # as exporters write it
    if shape is None:
        return None
    axis = int(g.random.integers(len(fixed)))
    one = g.add("Gather", [shape, int64(g, [axis])], axis=0)
    target = one and g.add("Concat", [one, int64(g, [-1])], axis=0)
    return target and g.add("Reshape", [name, target])


@step(1)
def flatten(g: Grower) -> Any:
    name = pick(g)
    return name and g.add("Flatten", [name], axis=int(g.random.integers(-g.rank(name), g.rank(name) + 1)))


@step(1.5)
def unsqueeze(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) <= 4)
    return name and g.add("Unsqueeze", [name, int64(g, [int(g.random.integers(-g.rank(name) - 1, g.rank(name) + 1))])])


@step(1)
def squeeze(g: Grower) -> Any:
    name = pick(g, lambda it: 1 in g.fixed(it))
    if name is None:
        return None
    axes = [axis for axis, extent in enumerate(g.fixed(name)) if extent == 1]
    if -1 not in g.fixed(name) and chance(g, 0.3):
        return g.add("Squeeze", [name])
    return g.add("Squeeze", [name, int64(g, [choice(g, axes)])])


@step(1.5)
def expand(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) <= 4)
    if name is None:
        return None
    if chance(g, 0.4):
        other = pick(g, lambda it: broadcastable(g.dims(it), g.dims(name)) and g.rank(it) >= 1)
        shape = other and g.add("Shape", [other])
        return shape and g.add("Expand", [name, shape])
    target = [choice(g, [1, 1, 2, 3]) if extent == 1 else 1 for extent in g.fixed(name)]
    if chance(g, 0.3):
        target = [choice(g, [1, 2, 3]), *target]
    return g.add("Expand", [name, int64(g, target)]) if target else None


@step(0.7)
def tile(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    return name and g.add("Tile", [name, int64(g, [choice(g, [1, 1, 2, 3]) for _ in range(g.rank(name))])])


@step(2.5)
def slice_(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    if name is None:
        return None
    count = int(g.random.integers(1, min(g.rank(name), 2) + 1))
    axes = [int(axis) for axis in g.random.permutation(g.rank(name))[:count]]
    starts, ends, steps = [], [], []
    for _ in axes:
        if chance(g, 0.2):
            starts.append(choice(g, [-1, 2**62, 3]))
            ends.append(choice(g, [-(2**62), -5, 0, -(2**63)]))
            steps.append(choice(g, [-1, -2]))
        else:
            starts.append(choice(g, [0, 1, 2, -2, -3, -(2**62)]))
            ends.append(choice(g, [2**63 - 1, 2**31 - 1, -1, 4, 5, 2]))
            steps.append(choice(g, [1, 1, 1, 2, 3]))
    operands = [name, int64(g, starts), int64(g, ends), int64(g, axes), int64(g, steps)]
    result = g.add("Slice", operands)
    return result


@step(2.5)
def concat(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    if name is None:
        return None
    axis = int(g.random.integers(g.rank(name)))

    def joins(other: str) -> bool:
        a, b = g.dims(name), g.dims(other)
        return (
            g.dtype(other) == g.dtype(name)
            and len(a) == len(b)
            and all(x == y for i, (x, y) in enumerate(zip(a, b, strict=True)) if i != axis)
        )

    operands = [name, *(other for other in (pick(g, joins), pick(g, joins)) if other)]
    if chance(g, 0.3) and all(extent > 0 for i, extent in enumerate(g.fixed(name)) if i != axis):
        shape = list(g.fixed(name))
        shape[axis] = choice(g, [1, 2])
        operands.append(g.constant(g.sample(shape, g.dtype(name))))
    order = g.random.permutation(len(operands))[: choice(g, [1, 2, 3, 4])]
    return g.add("Concat", [operands[i] for i in order], axis=axis - (g.rank(name) if chance(g, 0.3) else 0))


@step(1.5)
def split(g: Grower) -> Any:
    name = pick(g, lambda it: any(extent >= 2 for extent in g.fixed(it)))
    if name is None:
        return None
    axis = choice(g, [axis for axis, extent in enumerate(g.fixed(name)) if extent >= 2])
    extent = g.fixed(name)[axis]
    first = int(g.random.integers(0 if chance(g, 0.1) else 1, extent))
    return g.add("Split", [name, int64(g, [first, extent - first])], 2, axis=axis)


@step(1.5)
def pad(g: Grower) -> Any:
    name = pick(g, lambda it: 1 <= g.rank(it) <= 4 and g.dtype(it) in ("float32", "float64", "int64", "int32"))
    if name is None:
        return None
    mode = choice(g, ["constant", "constant", "reflect", "edge"])
    pads = [choice(g, [0, 0, 1, 2]) for _ in range(2 * g.rank(name))]
    if mode == "constant" and chance(g, 0.2):
        pads[int(g.random.integers(len(pads)))] = -1
    operands = [name, int64(g, pads)]
    if mode == "constant" and chance(g, 0.5):
        operands.append(g.constant(np.asarray(choice(g, [0, 1, -2]), g.dtype(name))))
    return g.add("Pad", operands, mode=mode)


@step(0.5)
def depth_space(g: Grower) -> Any:
    name = pick_float(g, 4, "float32")
    if name is None or g.rank(name) != 4:
        return None
    if chance(g, 0.5):
        return g.add("SpaceToDepth", [name], blocksize=2)
    return g.add("DepthToSpace", [name], blocksize=2, mode=choice(g, ["DCR", "CRD"]))


@step(1.5)
def gather(g: Grower) -> Any:
    name = pick(g, lambda it: any(extent >= 1 for extent in g.fixed(it)))
    if name is None:
        return None
    axis = choice(g, [axis for axis, extent in enumerate(g.fixed(name)) if extent >= 1])
    extent = g.fixed(name)[axis]
    if chance(g, 0.3):
        index = pick(g, lambda it: g.dtype(it) in ("int64", "int32") and g.rank(it) <= 2)
        index = index and g.add("Mod", [index, g.constant(np.asarray(extent, g.dtype(index)))])
        if index is None:
            return None
    else:
        shape = choice(g, [(), (1,), (3,), (2, 2), (extent,)])
        index = g.constant(g.random.integers(-extent, extent, shape))
    return g.add("Gather", [name, index], axis=axis)


@step(0.6)
def gather_elements(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1 and min(g.fixed(it)) >= 1)
    if name is None:
        return None
    axis = int(g.random.integers(g.rank(name)))
    shape = list(g.fixed(name))
    shape[axis] = choice(g, [1, 2, shape[axis]])
    return g.add(
        "GatherElements",
        [name, g.constant(g.random.integers(-g.fixed(name)[axis], g.fixed(name)[axis], shape))],
        axis=axis,
    )


@step(0.6)
def gather_nd(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 2 and min(g.fixed(it)[:2]) >= 1)
    if name is None:
        return None
    count = choice(g, [1, 2])
    limits = np.asarray(g.fixed(name)[:count])
    index = g.random.integers(-limits, limits, (*choice(g, [(), (3,), (2, 2)]), count))
    return g.add("GatherND", [name, g.constant(index)])


@step(0.4)
def one_hot(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) in ("int64", "int32") and g.rank(it) <= 3)
    return name and g.add(
        "OneHot", [name, int64(g, 5), g.constant(np.asarray([-1, 2], "float32"))], axis=choice(g, [-1, 0])
    )


@step(0.5)
def trilu(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 2 and g.dtype(it) in ("float32", "int64"))
    return name and g.add("Trilu", [name, int64(g, choice(g, [0, 1, -1]))], upper=int(chance(g, 0.5)))


@step(0.5)
def cumsum(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1 and g.dtype(it) in ("float32", "float64", "int64", "int32"))
    return name and g.add(
        "CumSum", [name, int64(g, int(g.random.integers(-g.rank(name), g.rank(name))))],
        exclusive=int(chance(g, 0.5)), reverse=int(chance(g, 0.5)),
    )  # fmt: skip


@step(0.4)
def constant_of_shape(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    shape = name and g.add("Shape", [name])
    filled = shape and g.add("ConstantOfShape", [shape])
    if not name or not filled or not is_float(g, name):
        return None
    plain = g.add("Cast", [filled], to=1)
    return g.add("Add", [plain, name])


@step(0.4)
def positions(g: Grower) -> Any:
    """Positions of a sequence, as language models count them."""
    name = pick(g, lambda it: g.rank(it) >= 1)
    if name is None:
        return None
    shape = g.add("Shape", [name])
    extent = shape and g.add("Gather", [shape, int64(g, int(g.random.integers(g.rank(name))))], axis=0)
    line = extent and g.add("Range", [int64(g, 0), extent, int64(g, 1)])
    return line and g.add("Cast", [line], to=1)


# reductions


@step(3)
def reduction(g: Grower) -> Any:
    op = choice(g, REDUCTIONS)
    name = pick(g, lambda it: g.rank(it) >= 1 and (is_float(g, it) or g.dtype(it) in ("int64", "int32")))
    if name is None or (op == "ReduceLogSumExp" and not is_float(g, name)):
        return None
    axes = [int(axis) for axis in g.random.permutation(g.rank(name))[: int(g.random.integers(1, g.rank(name) + 1))]]
    if chance(g, 0.3):
        axes = [axis - g.rank(name) for axis in axes]
    if op == "ReduceMean" and any(array.size == 0 for array in g.get(name)):
        return None  # ONNX Runtime says 0, arithmetic says NaN
    keep = int(chance(g, 0.6))
    if chance(g, 0.15):
        return g.add(op, [name], keepdims=keep)
    if g.opset >= 18 or (op == "ReduceSum" and g.opset >= 13):
        return g.add(op, [name, int64(g, axes)], keepdims=keep)
    return g.add(op, [name], axes=axes, keepdims=keep)


@step(0.8)
def arg_reduction(g: Grower) -> Any:
    name = pick(g, lambda it: g.rank(it) >= 1)
    return name and g.add(
        choice(g, ["ArgMax", "ArgMin"]), [name], axis=int(g.random.integers(-g.rank(name), g.rank(name))),
        keepdims=int(chance(g, 0.5)), select_last_index=int(chance(g, 0.3)),
    )  # fmt: skip


@step(2)
def softmax(g: Grower) -> Any:
    name = pick_float(g, 1)
    return name and g.add(
        choice(g, ["Softmax", "LogSoftmax", "Softmax", "Hardmax"]),
        [name],
        axis=int(g.random.integers(-g.rank(name), g.rank(name))),
    )


# norms


@step(1.5)
def layer_norm(g: Grower) -> Any:
    name = pick_float(g, 1, "float32")
    if name is None or g.fixed(name)[-1] < 0 or g.opset < 17:
        return None
    width = g.fixed(name)[-1]
    operands = [name, g.weight(width, scale=1.0)]
    if chance(g, 0.7):
        operands.append(g.weight(width, scale=1.0))
    return g.add("LayerNormalization", operands, axis=-1, epsilon=1e-2)


@step(1)
def written_layer_norm(g: Grower) -> Any:
    name = pick_float(g, 1, "float32")
    if name is None or g.opset >= 18:
        return None
    mean = g.add("ReduceMean", [name], axes=[-1], keepdims=1)
    centered = mean and g.add("Sub", [name, mean])
    squared = centered and g.add("Pow", [centered, g.constant(np.float32(2))])
    variance = squared and g.add("ReduceMean", [squared], axes=[-1], keepdims=1)
    shifted = variance and g.add("Add", [variance, g.constant(np.float32(0.1))])
    deviation = shifted and g.add("Sqrt", [shifted])
    return deviation and g.add("Div", [centered, deviation])


@step(1.5)
def batch_norm(g: Grower) -> Any:
    name = pick_float(g, 2, "float32")
    if name is None or g.fixed(name)[1] < 0:
        return None
    channels = g.fixed(name)[1]
    variance = g.constant(np.abs(g.random.standard_normal(channels)).astype("float32") + 0.2)
    return g.add("BatchNormalization", [name, *(g.weight(channels, scale=1.0) for _ in range(3)), variance])


@step(0.7)
def instance_norm(g: Grower) -> Any:
    name = pick_float(g, 3, "float32")
    if name is None or g.fixed(name)[1] < 0:
        return None
    channels = g.fixed(name)[1]
    return g.add(
        "InstanceNormalization", [name, g.weight(channels, scale=1.0), g.weight(channels, scale=1.0)], epsilon=0.1
    )


@step(0.5)
def lrn(g: Grower) -> Any:
    name = pick_float(g, 4, "float32")
    return name and g.rank(name) == 4 and g.add("LRN", [name], size=choice(g, [1, 3, 5]), alpha=0.1)


@step(0.4)
def mean_variance(g: Grower) -> Any:
    name = pick_float(g, 4, "float32")
    return name and g.rank(name) == 4 and g.add("MeanVarianceNormalization", [name], axes=[0, 2, 3])


@step(0.4)
def lp_norm(g: Grower) -> Any:
    name = pick_float(g, 1, "float32")
    return name and g.add("LpNormalization", [name], p=choice(g, [1, 2]), axis=-1)


# linear


@step(3)
def linear(g: Grower) -> Any:
    name = pick_float(g, 1)
    if name is None or g.fixed(name)[-1] < 1:
        return None
    out = choice(g, [1, 2, 3, 7, 8, 16, 17, 32, 33])
    weight = g.weight(g.fixed(name)[-1], out, scale=1 / np.sqrt(g.fixed(name)[-1]), dtype=g.dtype(name))
    result = g.add("MatMul", [name, weight])
    if result and chance(g, 0.6):
        result = g.add("Add", [result, g.weight(out, scale=1.0, dtype=g.dtype(name))])
    return result


@step(2)
def product(g: Grower) -> Any:
    """A matrix product of two computed values, one of them transposed as needed."""
    name = pick_float(g, 2)
    if name is None:
        return None
    dims = g.dims(name)
    straight = pick(
        g, lambda it: g.dtype(it) == g.dtype(name) and g.rank(it) >= 2 and g.dims(it)[-2] == dims[-1]
        and broadcastable(g.dims(it)[:-2], dims[:-2]),
    )  # fmt: skip
    if straight and chance(g, 0.6):
        return g.add("MatMul", [name, straight])
    turned = pick(
        g, lambda it: g.dtype(it) == g.dtype(name) and g.rank(it) >= 2 and g.dims(it)[-1] == dims[-1]
        and broadcastable(g.dims(it)[:-2], dims[:-2]),
    )  # fmt: skip
    perm = list(range(g.rank(turned))) if turned else []
    perm[-2:] = reversed(perm[-2:])
    other = turned and g.add("Transpose", [turned], perm=perm)
    return other and g.add("MatMul", [name, other])


@step(1)
def gemm(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) in ("float32", "float64") and g.rank(it) == 2 and max(g.fixed(it)) > 0)
    if name is None:
        return None
    axis = choice(g, [axis for axis in (0, 1) if g.fixed(name)[axis] > 0])
    depth, out, turned = g.fixed(name)[axis], choice(g, [1, 3, 8, 20]), int(chance(g, 0.5))
    dtype = g.dtype(name)
    operands = [name, g.weight(*((out, depth) if turned else (depth, out)), scale=1 / np.sqrt(depth), dtype=dtype)]
    if chance(g, 0.6):
        operands.append(g.weight(*choice(g, [(out,), (1, out), (1, 1), ()]), scale=1.0, dtype=dtype))
    return g.add(
        "Gemm", operands, transA=1 - axis, transB=turned, alpha=choice(g, [1.0, 0.5]), beta=choice(g, [1.0, 2.0])
    )


@step(0.6)
def einsum(g: Grower) -> Any:
    name = pick_float(g, 3, "float32")
    if name is None or g.rank(name) != 3 or g.fixed(name)[-1] < 1:
        return None
    width = g.fixed(name)[-1]
    equation = choice(g, ["abc,cd->abd", "abc,cd->adb", "abc,cd->bd", "abc,cd->dba"])
    return g.add("Einsum", [name, g.weight(width, 4, scale=1 / np.sqrt(width))], equation=equation)


@step(2)
def attention(g: Grower) -> Any:
    """Heads split, scores, softmax, values, heads joined: as exporters write it."""
    name = pick(g, lambda it: g.dtype(it) == "float32" and g.rank(it) == 3 and g.fixed(it)[-1] > 0)
    if name is None:
        return None
    width = g.fixed(name)[-1]
    heads, size = choice(g, [1, 2, 3]), choice(g, [1, 4, 8, 5])
    parts = []
    for part in range(3):
        value = g.add("MatMul", [name, g.weight(width, heads * size, scale=1 / np.sqrt(width))])
        value = value and g.add("Reshape", [value, int64(g, [0, 0, heads, size])])
        value = value and g.add("Transpose", [value], perm=[0, 2, 3, 1] if part == 1 else [0, 2, 1, 3])
        if value is None:
            return None
        parts.append(value)
    scores = g.add("MatMul", parts[:2])
    scores = scores and g.add("Div" if chance(g, 0.5) else "Mul", [scores, g.constant(np.float32(np.sqrt(size)))])
    if scores and chance(g, 0.4):
        mask = pick(g, lambda it: g.dtype(it) == "float32" and broadcastable(g.dims(it), g.dims(scores)))
        scores = g.add("Add", [scores, mask]) if mask else scores
    weights = scores and g.add("Softmax", [scores], axis=-1)
    mixed = weights and g.add("MatMul", [weights, parts[2]])
    mixed = mixed and g.add("Transpose", [mixed], perm=[0, 2, 1, 3])
    return mixed and g.add("Reshape", [mixed, int64(g, [0, 0, heads * size])])


# windows


def image(g: Grower) -> str | None:
    name = pick(g, lambda it: g.dtype(it) == "float32" and 3 <= g.rank(it) <= 5 and g.fixed(it)[1] > 0)
    if name is not None:
        return name
    name = pick(g, lambda it: g.dtype(it) == "float32" and 1 <= g.rank(it) <= 4 and g.fixed(it)[-1] > 0)
    return name and g.add(
        "Unsqueeze", [name, int64(g, [0, 1] if g.rank(name) == 1 else [1] if g.rank(name) < 4 else [0])]
    )


def window(g: Grower, rank: int, pool: bool = False) -> dict[str, Any]:
    kernel = [choice(g, [1, 2, 3, 3, 5]) for _ in range(rank)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if chance(g, 0.5):
        attributes["strides"] = [choice(g, [1, 2, 3]) for _ in range(rank)]
    if chance(g, 0.3) and not pool:
        attributes["dilations"] = [choice(g, [1, 2, 3]) for _ in range(rank)]
    kind = g.random.random()
    if kind < 0.15:
        attributes["auto_pad"] = choice(g, ["SAME_UPPER", "SAME_LOWER", "VALID"])
    elif kind < 0.75:
        most = [k - 1 if pool else k for k in kernel]
        attributes["pads"] = [int(g.random.integers(0, m + 1)) for m in (*most, *most)]
    return attributes


def fits(g: Grower, name: str, attributes: dict[str, Any]) -> bool:
    """Whether the window fits the padded input at every setting; ONNX Runtime rounds a size of less than 0 up."""
    if attributes.get("auto_pad", "VALID") != "VALID":
        return True
    kernel = attributes["kernel_shape"]
    pads = attributes.get("pads", [0] * 2 * len(kernel))
    return all(
        min(extents) + pads[axis] + pads[len(kernel) + axis] >= kernel[axis]
        for axis, extents in enumerate(g.dims(name)[2:])
    )


@step(4)
def convolution(g: Grower) -> Any:
    name = image(g)
    if name is None:
        return None
    channels, rank = g.fixed(name)[1], g.rank(name) - 2
    attributes = window(g, rank)
    groups = choice(g, [d for d in range(1, channels + 1) if channels % d == 0] + [1, 1, channels])
    out = groups * choice(g, [1, 1, 2, 3, 8, 16] if groups == 1 else [1, 1, 2, 3])
    operands = [name, g.weight(out, channels // groups, *attributes["kernel_shape"])]
    if chance(g, 0.7):
        operands.append(g.weight(out, scale=1.0))
    result = g.add("Conv", operands, group=groups, **attributes)
    if result and chance(g, 0.4):
        activation = choice(g, ["Relu", "HardSwish", "Sigmoid", "Clip", "LeakyRelu"])
        if activation == "Clip":
            return g.add("Clip", [result, g.constant(np.float32(0)), g.constant(np.float32(6))])
        return g.add(activation, [result])
    return result


@step(1)
def convolution_transposed(g: Grower) -> Any:
    name = image(g)
    if name is None:
        return None
    channels, rank = g.fixed(name)[1], g.rank(name) - 2
    attributes = window(g, rank)
    attributes.pop("auto_pad", None)
    strides = attributes.get("strides", [1] * rank)
    groups = choice(g, [d for d in range(1, channels + 1) if channels % d == 0] + [1, 1])
    out = choice(g, [1, 2, 3])
    if chance(g, 0.3):
        attributes["output_padding"] = [int(g.random.integers(0, stride)) for stride in strides]
    operands = [name, g.weight(channels, out, *attributes["kernel_shape"])]
    if chance(g, 0.7):
        operands.append(g.weight(out * groups, scale=1.0))
    return g.add("ConvTranspose", operands, group=groups, **attributes)


@step(1.5)
def pool(g: Grower) -> Any:
    name = image(g)
    if name is None:
        return None
    op = choice(g, ["MaxPool", "AveragePool", "AveragePool", "LpPool"])
    attributes = window(g, g.rank(name) - 2, pool=True)
    if not fits(g, name, attributes):
        return None
    if op != "LpPool" or g.opset >= 18:
        attributes["ceil_mode"] = int(chance(g, 0.4))
    if op == "AveragePool":
        attributes["count_include_pad"] = int(chance(g, 0.5))
    return g.add(op, [name], **attributes)


@step(1)
def global_pool(g: Grower) -> Any:
    name = image(g)
    return name and g.add(choice(g, ["GlobalAveragePool", "GlobalMaxPool"]), [name])


@step(1)
def resize(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) == "float32" and 3 <= g.rank(it) <= 4)
    if name is None:
        return None
    mode = choice(g, ["nearest", "linear", "cubic"])
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": choice(g, ["asymmetric", "half_pixel", "align_corners"]),
    }
    if mode == "nearest":
        attributes["nearest_mode"] = choice(g, ["floor", "round_prefer_floor"])
    if mode == "cubic" and g.rank(name) != 4:
        return None
    scales = [1.0, 1.0, *(choice(g, [1.0, 2.0, 0.5, 1.5]) for _ in range(g.rank(name) - 2))]
    return g.add("Resize", [name, "", g.constant(np.asarray(scales, np.float32))], **attributes)


@step(1)
def squeeze_excite(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) == "float32" and g.rank(it) == 4 and g.fixed(it)[1] > 0)
    if name is None:
        return None
    channels = g.fixed(name)[1]
    pooled = g.add("GlobalAveragePool", [name])
    small = pooled and g.add("Conv", [pooled, g.weight(3, channels, 1, 1), g.weight(3, scale=1.0)])
    small = small and g.add("Relu", [small])
    gate = small and g.add("Conv", [small, g.weight(channels, 3, 1, 1), g.weight(channels, scale=1.0)])
    gate = gate and g.add(choice(g, ["Sigmoid", "HardSigmoid"]), [gate])
    return gate and g.add("Mul", [name, gate])


@step(1)
def inverted_residual(g: Grower) -> Any:
    name = pick(g, lambda it: g.dtype(it) == "float32" and g.rank(it) == 4 and g.fixed(it)[1] > 0)
    if name is None:
        return None
    channels, wide = g.fixed(name)[1], choice(g, [4, 8, 19, 24])
    inner = g.add("Conv", [name, g.weight(wide, channels, 1, 1), g.weight(wide, scale=1.0)])
    inner = inner and g.add(choice(g, ["Relu", "HardSwish"]), [inner])
    size = choice(g, [3, 5])
    inner = inner and g.add("Conv", [inner, g.weight(wide, 1, size, size)], group=wide, pads=[size // 2] * 4)
    inner = inner and g.add("Relu", [inner])
    inner = inner and g.add("Conv", [inner, g.weight(channels, wide, 1, 1)])
    return inner and g.add("Add", [name, inner])


@step(0.8)
def gated(g: Grower) -> Any:
    """x · sigmoid(x), the two halves of a gate, or GELU as exporters write it."""
    name = pick_float(g, 1, "float32")
    if name is None:
        return None
    kind = choice(g, ["silu", "halves", "gelu"])
    if kind == "silu":
        gate = g.add("Sigmoid", [name])
        return gate and g.add("Mul", [name, gate])
    if kind == "halves":
        if g.fixed(name)[-1] < 2 or g.fixed(name)[-1] % 2:
            return None
        parts = g.add("Split", [name, int64(g, [g.fixed(name)[-1] // 2] * 2)], 2, axis=-1)
        gate = parts and g.add("Sigmoid", [parts[0]])
        return gate and g.add("Mul", [gate, parts[1]])
    inner = g.add("Div", [name, g.constant(np.float32(np.sqrt(2)))])
    inner = inner and g.add("Erf", [inner])
    inner = inner and g.add("Add", [inner, g.constant(np.float32(1))])
    inner = inner and g.add("Mul", [name, inner])
    return inner and g.add("Mul", [inner, g.constant(np.float32(0.5))])
