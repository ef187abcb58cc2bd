"""Single ONNX ops over versions and attributes, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.frontend.models import check_against_onnxruntime, single


@dataclass
class Case:
    """One node: operands, the opsets to try, attributes; operands numbered in `constant` are initializers."""

    op: str
    operands: Sequence[Any]
    opsets: Sequence[int] = (17,)
    constant: Sequence[int] = ()
    results: int = 1
    attrs: dict[str, Any] = field(default_factory=dict)
    relative: float = 1e-4


R = np.random.default_rng(7)


def f(*shape: int) -> Any:
    """Normal f32."""
    return R.normal(0, 2, shape).astype(np.float32)


def i(*values: int) -> Any:
    return np.array(values, np.int64)


def positive(*shape: int) -> Any:
    return R.uniform(0.1, 3, shape).astype(np.float32)


def unit(*shape: int) -> Any:
    return R.uniform(-0.9, 0.9, shape).astype(np.float32)


def ints(*shape: int, lo: int = -5, hi: int = 6, dtype: Any = np.int64) -> Any:
    return R.integers(lo, hi, shape).astype(dtype)


def bools(*shape: int) -> Any:
    return R.integers(0, 2, shape).astype(bool)


PLAIN = (
    "Abs Neg Sign Exp Sin Cos Tan Sinh Cosh Tanh Atan Asinh Sigmoid Erf Floor Ceil Round Relu "
    "Softplus Softsign Identity"
)
CASES: list[Case] = [
    *(Case(op, [f(3, 5)], (13,)) for op in PLAIN.split()),
    *(Case(op, [positive(3, 5)], (7, 13)) for op in ("Sqrt", "Log", "Reciprocal")),
    *(Case(op, [unit(3, 5)], (9, 17)) for op in ("Asin", "Acos", "Atanh")),
    Case("Acosh", [positive(9) + 1]),
    Case("Mish", [f(9)], (18, 22)),
    Case("HardSwish", [f(9)], (14, 22)),
    Case("Not", [bools(7)]),
    Case("IsNaN", [np.array([1, np.nan, np.inf], np.float32)], (9, 13, 20)),
    Case("IsInf", [np.array([1, np.nan, np.inf, -np.inf], np.float32)], (10, 20)),
    Case("IsInf", [np.array([1, np.nan, np.inf, -np.inf], np.float32)], (10,), attrs={"detect_negative": 0}),
    *(Case(op, [f(4, 1, 3), f(2, 3)], (7, 14)) for op in ("Add", "Sub", "Mul", "Div")),
    *(Case(op, [ints(4, 3), ints(3, lo=1, hi=6)], (14,)) for op in ("Add", "Sub", "Mul", "Div")),
    Case("PRelu", [f(2, 3, 4), f(3, 1)], (7, 9, 16)),
    *(Case(op, [f(4, 3), f(3)], (9, 13)) for op in ("Less", "Greater")),
    *(Case(op, [ints(4, 3), ints(3)], (12, 16)) for op in ("LessOrEqual", "GreaterOrEqual")),
    Case("Equal", [ints(4, 3), ints(3)], (7, 11, 13, 19)),
    *(Case(op, [bools(4, 3), bools(3)], (7,)) for op in ("And", "Or", "Xor")),
    *(Case(op, [ints(4), ints(4)], (18,)) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    Case("BitwiseNot", [ints(4)], (18,)),
    Case("BitShift", [ints(5, lo=0, hi=99, dtype=np.uint32), ints(5, lo=0, hi=5, dtype=np.uint32)], (11,),
         attrs={"direction": "LEFT"}),
    Case("BitShift", [ints(5, lo=0, hi=99, dtype=np.uint8), ints(5, lo=0, hi=5, dtype=np.uint8)], (11,),
         attrs={"direction": "RIGHT"}),
    Case("Mod", [ints(9), ints(9, lo=1)], (10, 13)),
    Case("Mod", [ints(9, lo=1), -ints(9, lo=1)], (13,)),
    Case("Mod", [f(9), positive(9)], (13,), attrs={"fmod": 1}),
    Case("Pow", [positive(3, 4), f(4)], (7, 12, 13)),
    Case("Pow", [positive(3, 4), np.array(2, np.int64)], (12, 13)),
    Case("Pow", [ints(4, lo=1), ints(4, lo=0, hi=4)], (13,)),
    *(Case(op, [f(4, 3), f(3), f(1, 1)], (8, 13)) for op in ("Max", "Min", "Sum", "Mean")),
    *(Case(op, [f(3)], (8,)) for op in ("Max", "Min", "Sum", "Mean")),
    *(Case(op, [ints(4), ints(4)], (12,)) for op in ("Max", "Min")),
    Case("Where", [bools(3, 1), f(4), f(3, 4)], (9, 16)),
    Case("Clip", [f(9)], (7,), attrs={"min": -0.5, "max": 1.0}),
    Case("Clip", [f(9)], (9,), attrs={"max": 1.0}),
    Case("Clip", [f(9), np.float32(-1), np.float32(1)], (11, 13)),
    Case("Clip", [f(9), None, np.float32(1)], (12,)),
    Case("Clip", [ints(9), np.int64(-2)], (13,)),
    Case("Clip", [f(9)], (11,)),
    Case("LeakyRelu", [f(9)], (7, 16), attrs={"alpha": 0.3}),
    Case("LeakyRelu", [f(9)], (7,)),
    Case("Elu", [f(9)], (7,), attrs={"alpha": 0.5}),
    Case("Selu", [f(9)], (7,)),
    Case("Celu", [f(9)], (12,), attrs={"alpha": 1.5}),
    Case("HardSigmoid", [f(9)], (7,), attrs={"alpha": 0.1, "beta": 0.4}),
    Case("ThresholdedRelu", [f(9)], (10,), attrs={"alpha": 0.7}),
    Case("Shrink", [f(9)], (9,), attrs={"lambd": 0.7, "bias": 0.2}),
    Case("Gelu", [f(9)], (20,)),
    Case("Gelu", [f(9)], (20,), attrs={"approximate": "tanh"}),
    Case("Dropout", [f(3, 4)], (7, 10), attrs={"ratio": 0.5}),
    Case("Dropout", [f(3, 4)], (12, 13)),
    Case("Dropout", [f(3, 4), np.float32(0.3)], (13,), results=2),
    Case("Cast", [f(9)], (9, 13), attrs={"to": 7}),
    Case("Cast", [ints(9)], (13,), attrs={"to": 1}),
    Case("Cast", [f(9)], (13,), attrs={"to": 9}),
    Case("Cast", [f(9)], (13,), attrs={"to": 10}),
    Case("Cast", [bools(9)], (13,), attrs={"to": 11}),
    Case("CastLike", [f(9), ints(1)], (15,)),
    # Reductions
    *(Case(op, [positive(2, 3, 4)], (11, 13), attrs={"axes": [1], "keepdims": k})
      for op in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
                 "ReduceLogSumExp", "ReduceSumSquare") for k in (0, 1)),
    *(Case(op, [positive(2, 3, 4), i(0, -1)], (18,), constant=(1,), attrs={"keepdims": k})
      for op in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
                 "ReduceLogSumExp", "ReduceSumSquare", "ReduceSum") for k in (0, 1)),
    Case("ReduceSum", [f(2, 3)], (7, 11), attrs={"axes": [-1]}),
    Case("ReduceSum", [f(2, 3)], (7, 13), attrs={"keepdims": 0}),
    Case("ReduceSum", [f(2, 3)], (13,), attrs={"noop_with_empty_axes": 1}),
    Case("ReduceMean", [ints(2, 3, lo=0)], (13,), attrs={"axes": [1]}),
    Case("ReduceLogSumExp", [f(2, 3) * 60], (13,), attrs={"axes": [1]}),
    Case("ReduceMax", [bools(2, 3), i(1)], (20,), constant=(1,)),
    Case("ArgMax", [f(3, 4, 5)], (7, 13), attrs={"axis": 1}),
    Case("ArgMin", [f(3, 4, 5)], (11,), attrs={"axis": -1, "keepdims": 0}),
    Case("ArgMax", [ints(3, 6, hi=1)], (13,), attrs={"axis": 1, "select_last_index": 1}),
    Case("CumSum", [f(3, 4), np.array(1)], (11, 14), constant=(1,)),
    Case("CumSum", [f(3, 4), np.array(0)], (14,), constant=(1,), attrs={"exclusive": 1, "reverse": 1}),
    *(Case(op, [f(2, 3, 4)], (7, 11, 13)) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(Case(op, [f(2, 3, 4)], (7, 11, 13), attrs={"axis": 2}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    *(Case(op, [f(2, 3, 4, 2)], (11,), attrs={"axis": 2}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    # Products
    *(Case("MatMul", pair, (9, 13)) for pair in (
        [f(3, 4), f(4, 5)], [f(2, 3, 4), f(4, 5)], [f(4), f(4, 5)], [f(3, 4), f(4)], [f(4), f(4)],
        [f(2, 1, 3, 4), f(5, 4, 2)], [f(2, 3, 4), f(4)])),
    Case("MatMul", [ints(3, 4), ints(4, 5)], (13,)),
    Case("Gemm", [f(3, 4), f(4, 5), f(5)], (7, 9, 11, 13)),
    Case("Gemm", [f(4, 3), f(5, 4), f(3, 1)], (11,), attrs={"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    Case("Gemm", [f(3, 4), f(4, 5)], (11,)),
    *(Case("Einsum", operands, (12,), attrs={"equation": equation}) for equation, operands in (
        ("ij,jk->ik", [f(3, 4), f(4, 5)]), ("bhid,bhjd->bhij", [f(2, 3, 4, 5), f(2, 3, 6, 5)]), ("ij->ji", [f(3, 4)]),
        ("ij->", [f(3, 4)]), ("bij,bjk", [f(2, 3, 4), f(2, 4, 5)]), ("i,j->ij", [f(3), f(4)]), ("ii->i", [f(3, 3)]),
        ("...ij,...jk->...ik", [f(2, 3, 4), f(2, 4, 5)]), ("ij,jk,kl->il", [f(2, 3), f(3, 4), f(4, 2)]),
        ("bn,bnd->bd", [f(2, 3), f(2, 3, 4)]), ("ijk,k->ij", [f(2, 3, 4), f(4)]), ("ij,ij->ij", [f(3, 4), f(3, 4)]))),
    # Windows
    Case("Conv", [f(1, 3, 7, 8), f(4, 3, 3, 3), f(4)], (7, 11, 22), attrs={"pads": [1, 1, 1, 1]}),
    Case("Conv", [f(2, 4, 9), f(6, 2, 3)], (11,), attrs={"strides": [2], "dilations": [2], "group": 2}),
    *(Case("Conv", [f(1, 2, 7, 8), f(3, 2, 3, 2)], (11,), attrs={"auto_pad": mode, "strides": [2, 3]})
      for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    Case("Conv", [f(1, 2, 4, 5, 6), f(3, 2, 2, 2, 2)], (11,)),
    Case("ConvTranspose", [f(1, 3, 5, 4), f(3, 2, 3, 3), f(2)], (7, 11, 22), attrs={"strides": [2, 2]}),
    Case("ConvTranspose", [f(1, 3, 5, 4), f(3, 2, 3, 3)], (11,),
         attrs={"strides": [3, 2], "pads": [1, 0, 1, 1], "output_padding": [2, 1]}),
    Case("ConvTranspose", [f(1, 4, 5), f(4, 2, 3)], (11,), attrs={"group": 2, "dilations": [2]}),
    Case("ConvTranspose", [f(1, 3, 5, 4), f(3, 2, 3, 3)], (11,), attrs={"strides": [3, 2], "output_shape": [16, 9]}),
    *(Case("ConvTranspose", [f(1, 3, 5, 4), f(3, 2, 3, 4)], (11,), attrs={"strides": [2, 2], "auto_pad": mode})
      for mode in ("SAME_UPPER", "SAME_LOWER", "VALID")),
    *(Case("MaxPool", [f(1, 3, 9, 8)], (8, 12), attrs={"kernel_shape": [3, 2], "strides": [2, 3], **more})
      for more in ({}, {"pads": [1, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER"})),
    Case("MaxPool", [f(1, 3, 9, 8)], (10, 12), attrs={"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    Case("MaxPool", [f(1, 3, 9)], (10,), attrs={"kernel_shape": [3], "dilations": [2]}),
    *(Case("AveragePool", [f(1, 3, 9, 8)], (7, 11, 19), attrs={"kernel_shape": [3, 2], "strides": [2, 3], **more})
      for more in ({}, {"pads": [1, 0, 1, 1]}, {"pads": [1, 0, 1, 1], "count_include_pad": 1},
                   {"auto_pad": "SAME_UPPER"})),
    Case("AveragePool", [f(1, 3, 9, 8)], (19,), attrs={"kernel_shape": [3, 2], "strides": [2, 3], "ceil_mode": 1}),
    Case("LpPool", [f(1, 3, 9, 8)], (11,), attrs={"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]}),
    Case("LpPool", [f(1, 3, 9, 8)], (11,), attrs={"kernel_shape": [3, 2], "p": 3}),
    *(Case(op, [f(2, 3, 5, 4)], (7, 22)) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    *(Case("GlobalLpPool", [f(2, 3, 5, 4)], (7,), attrs={"p": p}) for p in (1, 2, 3)),
    Case("LRN", [f(1, 6, 4, 5)], (7, 13), attrs={"size": 3, "alpha": 0.5, "beta": 0.6, "bias": 1.5}),
    Case("LRN", [f(1, 6, 4, 2)], (13,), attrs={"size": 5}),
    # Normalization
    Case("BatchNormalization", [f(2, 3, 4, 5), f(3), f(3), f(3), positive(3)], (7, 9, 14, 15), attrs={"epsilon": 1e-3}),
    Case("InstanceNormalization", [f(2, 3, 4, 5), f(3), f(3)], (7, 22)),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], (17,)),
    Case("LayerNormalization", [f(2, 3, 4), f(3, 4)], (17,), attrs={"axis": 1, "epsilon": 1e-2}),
    Case("LayerNormalization", [f(2, 3, 4), f(4), f(4)], (17,), results=3),
    Case("GroupNormalization", [f(2, 6, 4), f(6), f(6)], (21,), attrs={"num_groups": 3}),
    Case("RMSNormalization", [f(2, 3, 4), f(4)], (23,)),
    Case("LpNormalization", [f(2, 3, 4)], (7, 22), attrs={"axis": 1}),
    Case("LpNormalization", [f(2, 3, 4)], (7,), attrs={"p": 1}),
    Case("MeanVarianceNormalization", [f(2, 3, 4, 5)], (9, 13)),
    # Shapes
    Case("Reshape", [f(2, 3, 4), i(0, -1)], (7, 13, 19), constant=(1,)),
    Case("Reshape", [f(2, 3, 4), i(4, 6)], (14,), constant=(1,), attrs={"allowzero": 1}),
    Case("Reshape", [f(0, 3), i(3, 0)], (14,), constant=(1,), attrs={"allowzero": 1}),
    *(Case("Flatten", [f(2, 3, 4)], (9, 11, 13), attrs={"axis": axis}) for axis in (0, 1, 3)),
    Case("Flatten", [f(2, 3, 4)], (11,), attrs={"axis": -1}),
    Case("Squeeze", [f(1, 3, 1)], (7, 11), attrs={"axes": [0]}),
    Case("Squeeze", [f(1, 3, 1)], (7, 13)),
    Case("Squeeze", [f(1, 3, 1), i(-1)], (13,), constant=(1,)),
    Case("Unsqueeze", [f(3, 4)], (7, 11), attrs={"axes": [0, 3]}),
    Case("Unsqueeze", [f(3, 4), i(-1, 0)], (13,), constant=(1,)),
    Case("Transpose", [f(2, 3, 4)], (7, 13)),
    Case("Transpose", [f(2, 3, 4)], (13,), attrs={"perm": [1, 2, 0]}),
    Case("Expand", [f(3, 1), i(2, 1, 4)], (8, 13), constant=(1,)),
    Case("Tile", [f(2, 3), i(2, 1)], (7, 13), constant=(1,)),
    Case("Concat", [f(2, 3), f(2, 1), f(2, 2)], (7, 13), attrs={"axis": -1}),
    Case("Slice", [f(5, 6)], (7, 9), attrs={"starts": [1, -3], "ends": [4, 1000], "axes": [0, 1]}),
    Case("Slice", [f(5, 6)], (9,), attrs={"starts": [1], "ends": [-1]}),
    Case("Slice", [f(5, 6), i(4), i(-100), i(0), i(-2)], (10, 13), constant=(1, 2, 3, 4)),
    Case("Slice", [f(5, 6), i(-2, 5), i(2**62, 1), i(1, 0), i(1, -1)], (13,), constant=(1, 2, 3, 4)),
    Case("Slice", [f(5, 6), i(3), i(2)], (13,), constant=(1, 2)),
    *(Case("Split", [f(6, 2)], (7, 11), results=3, attrs=more) for more in ({}, {"split": [1, 2, 3]})),
    Case("Split", [f(6, 2), i(1, 2, 3)], (13, 18), constant=(1,), results=3),
    Case("Split", [f(7, 2)], (18,), results=3, attrs={"num_outputs": 3}),
    Case("Pad", [f(3, 4)], (7,), attrs={"pads": [1, 0, 0, 2], "value": 1.5}),
    *(Case("Pad", [f(3, 4)], (7,), attrs={"pads": [1, 0, 0, 2], "mode": mode}) for mode in ("reflect", "edge")),
    Case("Pad", [f(3, 4), i(1, 0, 0, 2), np.float32(2)], (11, 13, 18), constant=(1,)),
    Case("Pad", [f(3, 4), i(-1, 1, 1, -2)], (13,), constant=(1,)),
    Case("Pad", [f(5, 4), i(2, 1), None, i(-2)], (18,), constant=(1, 3), attrs={"mode": "reflect"}),
    Case("Pad", [f(5, 4), i(2, 1, 3, 1)], (19,), constant=(1,), attrs={"mode": "wrap"}),
    Case("Gather", [f(5, 4), ints(2, 3, hi=4)], (7, 13)),
    Case("Gather", [f(5, 4), np.array(-1)], (13,), attrs={"axis": 1}),
    Case("GatherElements", [f(5, 4), ints(5, 2, lo=-4, hi=4)], (11, 13), attrs={"axis": 1}),
    Case("GatherND", [f(5, 4, 3), ints(2, 2, lo=0, hi=4)], (11, 13)),
    Case("GatherND", [f(2, 4, 3), ints(2, 1, lo=0, hi=4)], (12,), attrs={"batch_dims": 1}),
    Case("OneHot", [ints(3, 2), np.array(4), np.array([0, 1], np.float32)], (9, 11), constant=(1,)),
    Case("OneHot", [ints(3, 2), np.array([4]), np.array([2, 5])], (11,), constant=(1,), attrs={"axis": 0}),
    Case("ReverseSequence", [f(4, 3, 2), i(1, 4, 2)], (10,)),
    Case("ReverseSequence", [f(3, 4, 2), i(1, 4, 2)], (10,), attrs={"time_axis": 1, "batch_axis": 0}),
    Case("Range", [np.array(2), np.array(9), np.array(3)], (11,), constant=(0, 1, 2)),
    Case("Range", [np.array(5), np.array(-1), np.array(-2)], (11,), constant=(0, 1, 2)),
    Case("Range", [np.float32(0), np.float32(1), np.float32(0.3)], (11,), constant=(0, 1, 2)),
    Case("ConstantOfShape", [i(2, 3)], (9,), constant=(0,)),
    Case("Shape", [f(2, 3, 4)], (7, 13)),
    Case("Shape", [f(2, 3, 4)], (15,), attrs={"start": -2, "end": 3}),
    Case("Size", [f(2, 3)], (7, 13)),
    Case("EyeLike", [f(3, 4)], (9,), attrs={"k": 1, "dtype": 7}),
    *(Case("Trilu", [f(4, 5), np.array(k)], (14,), constant=(1,), attrs={"upper": u})
      for k in (-1, 0, 2) for u in (0, 1)),
    *(Case("DepthToSpace", [f(1, 8, 2, 3)], (11, 13), attrs={"blocksize": 2, "mode": mode}) for mode in ("DCR", "CRD")),
    Case("SpaceToDepth", [f(1, 2, 4, 6)], (7, 13), attrs={"blocksize": 2}),
    # Resize
    Case("Upsample", [f(1, 2, 3, 4)], (7,), attrs={"scales": [1.0, 1.0, 2.0, 3.0]}),
    Case("Upsample", [f(1, 2, 3, 4), np.array([1, 1, 2, 2], np.float32)], (9,), constant=(1,),
         attrs={"mode": "linear"}),
    Case("Resize", [f(1, 2, 3, 4), np.array([1, 1, 2, 1.5], np.float32)], (10,), constant=(1,)),
    Case("Resize", [f(1, 2, 4, 5), np.zeros(0, np.float32), np.array([1, 1, 2, 0.5], np.float32)], (11,),
         constant=(1, 2), attrs={"mode": "linear"}),
    Case("Resize", [f(1, 2, 4, 5), np.zeros(0, np.float32), np.zeros(0, np.float32), i(1, 2, 8, 3)], (11,),
         constant=(1, 2, 3), attrs={"mode": "cubic"}),
    *(Case("Resize", [f(1, 2, 4, 5), None, np.array([1, 1, 1.7, 0.6], np.float32)], (13, 19), constant=(2,),
           attrs={"mode": mode, "coordinate_transformation_mode": coordinate})
      for mode in ("nearest", "linear", "cubic")
      for coordinate in ("half_pixel", "asymmetric", "pytorch_half_pixel")),
    *(Case("Resize", [f(1, 2, 4, 5), None, None, i(1, 2, 7, 3)], (13, 18), constant=(3,),
           attrs={"mode": mode, "coordinate_transformation_mode": coordinate})
      for mode in ("nearest", "linear", "cubic")
      for coordinate in ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")),
    *(Case("Resize", [f(1, 1, 4, 5), None, None, i(1, 1, 9, 3)], (13,), constant=(3,),
           attrs={"nearest_mode": mode, "coordinate_transformation_mode": "half_pixel"})
      for mode in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    Case("Resize", [f(1, 2, 4, 5), None, None, i(9, 4)], (18,), constant=(3,),
         attrs={"axes": [3, 2], "mode": "linear"}),
    *(Case("Resize", [f(1, 2, 4, 6), None, None, i(7, 8)], (18,), constant=(3,),
           attrs={"axes": [2, 3], "keep_aspect_ratio_policy": policy}) for policy in ("not_larger", "not_smaller")),
    Case("Resize", [f(1, 1, 6, 6), None, np.array([1, 1, 0.7, 2], np.float32)], (13,), constant=(2,),
         attrs={"mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
    # Attention
    Case("Attention", [f(2, 3, 4, 8), f(2, 3, 6, 8), f(2, 3, 6, 8)], (23,)),
    Case("Attention", [f(2, 4, 5, 8), f(2, 2, 5, 8), f(2, 2, 5, 8)], (23,), attrs={"is_causal": 1, "scale": 0.1}),
    Case("Attention", [f(2, 4, 24), f(2, 6, 24), f(2, 6, 24), f(4, 6)], (23,),
         attrs={"q_num_heads": 3, "kv_num_heads": 3}),
    Case("Attention", [f(1, 2, 4, 8), f(1, 2, 6, 8), f(1, 2, 6, 8)], (23,), attrs={"softcap": 2.0}),
    Case("RotaryEmbedding", [f(1, 2, 3, 8), f(5, 4), f(5, 4), ints(1, 3, lo=0, hi=5)], (23,)),
]  # fmt: skip


def _expanded() -> list[Any]:
    found = []
    for number, case in enumerate(CASES):
        for opset in case.opsets:
            found.append(pytest.param(case, opset, id=f"{case.op}-{opset}-{number}"))
    return found


@pytest.mark.parametrize(("case", "opset"), _expanded())
def test_op(case: Case, opset: int) -> None:
    model, feed = single(
        case.op, case.operands, opset=opset, results=case.results, constant=case.constant, **case.attrs
    )
    check_against_onnxruntime(model, feed, case.relative, 1e-5)
