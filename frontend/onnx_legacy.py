"""Nodes of operator sets 1 to 6 in the form of operator set 7, which the converters know.

Until 7, binary ops had attributes for broadcasting, and several ops had hints for training or for where a result
may be written, which do not matter here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import AttributeProto, TensorProto, helper

from aot.dims import Dim
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.onnx_registry import Operand
from aot.ir import Value

FIRST_MODERN = 7
Attributes = dict[str, AttributeProto]

_BINARY = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "And", "Or", "Xor", "Equal", "Greater", "Less"})
# What says nothing of the result of an inference.
_HINTS = frozenset({"consumed_inputs", "is_test", "output_sequence"})


def modernized(
    op_type: str, version: int, inputs: Sequence[Operand | None], attributes: Attributes, builder: KnownBuilder
) -> tuple[list[Operand | None], Attributes]:
    """Operands and attributes of a node of the default domain, as operator set 7 has them."""
    operands = list(inputs)
    kept = {name: value for name, value in attributes.items() if name not in _HINTS}
    if op_type in _BINARY or op_type == "Gemm":
        broadcast, axis = kept.pop("broadcast", None), kept.pop("axis", None)
        if op_type != "Gemm" and broadcast is not None and broadcast.i and len(operands) == 2:
            operands[1] = _aligned(builder, operands[0], operands[1], None if axis is None else axis.i)
    elif op_type == "PRelu" and len(operands) == 2:
        slope = operands[1]
        if isinstance(slope, Value) and slope.type.rank == 1 and slope.type.shape[0] != 1:
            operands[1] = _aligned(builder, operands[0], slope, 1)
    elif op_type == "Reshape" and version < 5:
        operands.append(builder.const(np.array(_taken(kept, "shape").ints, np.int64)))
    elif op_type == "Cast" and version < 6:
        name = _taken(kept, "to").s.decode("ascii", "replace")
        if name not in TensorProto.DataType.keys():
            raise ModelError(f"a cast to {name!r}, which is no element type")
        kept["to"] = helper.make_attribute("to", TensorProto.DataType.Value(name))
    elif op_type == "Concat" and version < 4 and "axis" not in kept:
        kept["axis"] = helper.make_attribute("axis", 1)
    elif op_type == "Pad" and version < 2:
        kept["pads"] = helper.make_attribute("pads", list(_taken(kept, "paddings").ints))
    elif op_type in ("LpPool", "GlobalLpPool") and "p" in kept and kept["p"].type == AttributeProto.FLOAT:
        if not kept["p"].f.is_integer():
            raise UnsupportedError(f"a power of {kept['p'].f}")
        kept["p"] = helper.make_attribute("p", int(kept["p"].f))
    elif op_type == "Upsample":
        scales = [1.0, 1.0, _taken(kept, "height_scale").f, _taken(kept, "width_scale").f]
        kept["scales"] = helper.make_attribute("scales", scales)
    elif op_type == "Split" and len(operands) == 2:
        split = operands.pop()
        contents = builder.known(split) if isinstance(split, Value) else None
        if contents is None:
            raise UnsupportedError("the sizes of a split depend on data that is only known when running")
        kept["split"] = helper.make_attribute("split", [int(size) for size in contents.flat])
    elif op_type == "Tile" and version < 6:
        operands = [operands[0], _repeats(builder, operands)]
    return operands, kept


def _taken(attributes: Attributes, name: str) -> AttributeProto:
    if name not in attributes:
        raise ModelError(f"attribute {name!r} is missing")
    return attributes.pop(name)


def _aligned(builder: KnownBuilder, left: Operand | None, right: Operand | None, axis: int | None) -> Operand | None:
    """The right operand with axes of extent 1 behind it, so that its first one meets `axis` of the left one."""
    if not isinstance(left, Value) or not isinstance(right, Value):
        return right
    rank = left.type.rank
    if axis is None:
        return right  # its axes are the last ones: that is broadcasting as it is now
    first = axis + rank if axis < 0 else axis
    shape: tuple[Dim, ...] = right.type.shape
    behind = rank - first - len(shape)
    if behind < 0 or first < 0:
        raise ModelError(f"axis {axis} leaves no room for {len(shape)} axes in a tensor of rank {rank}")
    if behind == 0:
        return right
    return builder.op("reshape", right, shape=(*shape, *(1,) * behind))[0]


def _repeats(builder: KnownBuilder, operands: Sequence[Operand | None]) -> Value:
    """The repeats of a Tile that names one axis and how often."""
    x, numbers = operands[0], []
    for operand in operands[1:]:
        contents = builder.known(operand) if isinstance(operand, Value) else None
        if contents is None or contents.size != 1:
            raise UnsupportedError("tiles or the axis depend on data that is only known when running")
        numbers.append(contents.flat[0])
    if not isinstance(x, Value) or len(numbers) != 2 or not all(math.isfinite(float(n)) for n in numbers):
        raise ModelError("a Tile has an operand, tiles and an axis")
    repeats = [1] * x.type.rank
    place = int(numbers[1])
    if not 0 <= place < len(repeats):
        raise ModelError(f"axis {place} is out of range for rank {len(repeats)}")
    repeats[place] = int(numbers[0])
    return builder.const(np.array(repeats, np.int64))
