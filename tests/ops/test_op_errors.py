"""What every infer function must refuse, and with which words."""

from __future__ import annotations

from typing import Any

import pytest

from aot.dims import Dim, Symbol
from aot.dtypes import BF16, BOOL, F16, F32, F64, I32, I64, DType
from aot.ir import TensorType
from aot.ops import DimMismatch, OpError, infer

N, M = Symbol("n").dim, Symbol("m").dim
WINDOW = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1)}


def t(*shape: Dim, dtype: DType = F32) -> TensorType:
    return TensorType(dtype, shape)


CASES: list[tuple[str, dict[str, Any], list[TensorType | None], str]] = [
    ("exp", {}, [t(3, dtype=I64)], "the operand of exp must be of family float; it is i64"),
    ("neg", {}, [t(3, dtype=BOOL)], "family float or int or uint; it is bool"),
    ("not", {}, [t(3)], "family bool or int or uint; it is f32"),
    ("gelu", {"approximate": 3}, [t(3), t(3)], "gelu takes x; got 2 operands"),
    ("add", {}, [t(3), t(3, dtype=F64)], "one element type; they have f32, f64"),
    ("add", {}, [t(3), t(4)], "broadcast on axis 0: 3 and 4 differ"),
    ("add", {}, [t(N, 3), t(M, 3)], "broadcast on axis 0: n and m differ"),
    ("shl", {}, [t(3), t(3)], "family int or uint"),
    ("where", {}, [t(3, dtype=I64), t(3), t(3)], "condition of where must be of family bool"),
    ("where", {}, [t(3, dtype=BOOL), None, t(3)], "where needs its operand 'x'"),
    ("clip", {}, [t(3), t(1)], "clip's lo must be a rank-0 tensor; it has rank 1"),
    ("clip", {}, [t(3), None, t(dtype=I32)], "one element type; they have f32, i32"),
    ("cast", {"to": "f32"}, [t(3)], "'to' must be an element type"),
    ("cast", {}, [t(3)], "cast needs the attribute 'to'"),
    ("reduce_sum", {"axes": (2,)}, [t(3, 4)], "axis 2 is out of range for rank 2"),
    ("reduce_sum", {"axes": (0, -2)}, [t(3, 4)], "name an axis twice"),
    ("reduce_max", {"axes": (0,)}, [t(3, dtype=BOOL)], "family float or int or uint"),
    ("reduce_sum", {"axes": 0}, [t(3)], "'axes' must be a tuple"),
    ("argmax", {"axis": 1}, [t(3, 0)], "at least one element"),
    ("softmax", {"axis": 2}, [t(3, 4)], "axis 2 is out of range"),
    ("softmax", {"axis": "1"}, [t(3, 4)], "'axis' must be an integer"),
    ("layer_norm", {"axis": -1}, [t(3, 4), t(3)], "4 and 3 differ"),
    ("layer_norm", {"axis": -1}, [t(3, 4), t(1, 3, 4)], r"scale must broadcast to \[4\]; its shape is \[1, 3, 4\]"),
    ("instance_norm", {}, [t(2, 3, 5), t(3), t(4)], "length and the channels: 4 and 3 differ"),
    ("group_norm", {"groups": 2}, [t(2, 3, 5), t(3), t(3)], "3 channels do not divide into 2 groups"),
    ("batch_norm", {}, [t(2), t(2), t(2), t(2), t(2)], "must have rank 2 or more; it has rank 1"),
    ("cumsum", {"axis": 0}, [t()], "must have rank 1 or more"),
    ("matmul", {}, [t(3), t(3, 4)], "left operand must have rank 2 or more"),
    ("matmul", {}, [t(3, 4), t(5, 6)], "inner extents: 4 and 5 differ"),
    ("matmul", {}, [t(2, 3, 4), t(3, 4, 6)], "broadcast on axis 0: 2 and 3 differ"),
    ("conv", WINDOW, [t(1, 3, 5, 5), t(2, 4, 3, 3)], "weight.shape.1. \\* groups: 3 and 4 differ"),
    ("conv", WINDOW, [t(1, 3, 5, 5), t(2, 3, 6, 3)], "a window of reach 6 does not fit extent 5"),
    ("conv", WINDOW, [t(1, 3, 5, 5), t(2, 3, 3)], "weight must have rank 4; it has rank 3"),
    ("conv", {**WINDOW, "strides": (1,)}, [t(1, 3, 5, 5), t(2, 3, 3, 3)], "2 spatial axes need 2 strides"),
    ("conv", {**WINDOW, "strides": (0, 1)}, [t(1, 3, 5, 5), t(2, 3, 3, 3)], "must be positive"),
    ("conv", {**WINDOW, "pads": (0, 0, -1, 0)}, [t(1, 3, 5, 5), t(2, 3, 3, 3)], "must not be negative"),
    ("conv", {**WINDOW, "groups": 2}, [t(1, 2, 5, 5), t(3, 1, 3, 3)], "3 output channels do not divide into 2 groups"),
    ("conv", WINDOW, [t(1, 3, 5, 5), t(2, 3, N, 3)], "window must have a fixed shape; an extent is n"),
    ("conv", WINDOW, [t(1, 3, 5, 5), t(2, 3, 3, 3), t(3)], "bias's length and the output channels: 3 and 2 differ"),
    ("conv_transpose", {**WINDOW, "output_padding": (0,)}, [t(1, 3, 5, 5), t(3, 2, 3, 3)], "must be 2 numbers"),
    ("conv_transpose", {**WINDOW, "output_padding": (0, 0)}, [t(1, 3, 5, 5), t(2, 2, 3, 3)], "3 and 2 differ"),
    ("max_pool", {**WINDOW, "window": (3,)}, [t(1, 3, 5, 5)], "one extent per spatial axis, 2"),
    (
        "avg_pool",
        {**WINDOW, "window": (2, 2), "pads": (2, 0, 0, 0)},
        [t(1, 3, 5, 5)],
        "smaller than the window's",
    ),
    ("attention", {"scale": 1.0}, [t(1, 3, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8)], "3 heads of q are no multiple of 2"),
    ("attention", {"scale": 1.0}, [t(1, 2, 4, 8), t(1, 2, 5, 8), t(1, 2, 4, 8)], "positions of k and v: 5 and 4"),
    ("reshape", {"shape": (5,)}, [t(2, 3)], r"\[2, 3\] has 6 elements; \[5\] has 5"),
    ("reshape", {"shape": (N, 7)}, [t(N, 6)], r"\[n, 6\] has 6\*n elements; \[n, 7\] has 7\*n"),
    ("reshape", {"shape": (-1, 6)}, [t(2, 3)], "has a negative extent"),
    ("transpose", {"perm": (0, 0)}, [t(2, 3)], "is no permutation"),
    ("slice", {"starts": (0,), "sizes": (4,), "steps": (1,)}, [t(3)], "reads index 3 of axis 0, whose extent is 3"),
    ("slice", {"starts": (0,), "sizes": (2,), "steps": (-1,)}, [t(3)], "reads index -1 of axis 0"),
    ("slice", {"starts": (0,), "sizes": (2,), "steps": (0,)}, [t(3)], "step on axis 0 is 0"),
    ("slice", {"starts": (N,), "sizes": (1,), "steps": (1,)}, [t(N)], "reads index n of axis 0, whose extent is n"),
    ("slice", {"starts": (), "sizes": (1,), "steps": (1,)}, [t(3)], "for each of 1 axes"),
    ("expand", {"shape": (3,)}, [t(2, 3)], r"\[2, 3\] does not broadcast to \[3\]"),
    ("expand", {"shape": (2, 1)}, [t(2, 3)], "does not broadcast"),
    ("gather", {"axis": 0}, [t(3), t(2)], "the indices must be of family int"),
    ("gather", {"axis": 0}, [t(), t(2, dtype=I64)], "must have rank 1 or more"),
    ("gather_elements", {"axis": 0}, [t(3, 2), t(3, 4, dtype=I64)], "the indices have extent 4 on axis 1"),
    ("gather_elements", {"axis": 0}, [t(3, 2), t(3, dtype=I64)], "must have rank 2; it has rank 1"),
    ("gather_nd", {}, [t(3), t(2, 2, dtype=I64)], "2 indices do not fit a tensor of rank 1"),
    ("gather_nd", {}, [t(3), t(2, N, dtype=I64)], "needs a fixed last extent"),
    ("one_hot", {"depth": 3}, [t(2, dtype=I64), t(3)], r"values are \[off, on\]"),
    ("pad", {"before": (1,), "after": (1, 1)}, [t(3, 3)], "pad needs 2 extents before and 2 after"),
    ("pad", {"before": (-1,), "after": (0,)}, [t(3)], "the padding .* has a negative extent"),
    ("pad", {"before": (1,), "after": (0,), "mode": "mirror"}, [t(3)], "one of constant, reflect, edge, wrap"),
    ("pad", {"before": (1,), "after": (0,), "mode": "edge"}, [t(0)], "axis 0 is empty"),
    ("concat", {"axis": 0}, [], "concat takes|at least one operand"),
    ("concat", {"axis": 0}, [t(2, 3), t(2, 4)], "concat on axis 1: 3 and 4 differ"),
    ("concat", {"axis": 0}, [t(2, 3), t(2)], "must have rank 2; it has rank 1"),
    ("concat", {"axis": 0}, [t(2), t(2, dtype=F16)], "they have f32, f16"),
    ("tile", {"repeats": (2,)}, [t(2, 3)], "must be 2 numbers"),
    ("trilu", {}, [t(3)], "must have rank 2 or more"),
    ("resize", {"shape": (3,)}, [t(2, 3)], "for each of 2 axes"),
    ("resize", {"shape": (3,), "scales": (-1.0,)}, [t(2)], "must be positive"),
    ("resize", {"shape": (3,), "mode": "area"}, [t(2)], "one of nearest, linear, cubic"),
    ("iota", {"shape": (3,), "dtype": BOOL}, [], "iota's dtype must be of family"),
    ("iota", {"shape": ()}, [], "must have rank 1 or more"),
]


@pytest.mark.parametrize(
    ("name", "attrs", "types", "message"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_refusals(name: str, attrs: dict[str, Any], types: list[TensorType | None], message: str) -> None:
    with pytest.raises(OpError, match=message):
        infer(name, attrs, types)


def test_mismatch_of_symbols_is_told_apart() -> None:
    """The frontend turns these into conditions on the symbols."""
    for name, attrs, types in (
        ("matmul", {}, [t(2, N), t(M, 3)]),
        ("concat", {"axis": 0}, [t(2, N), t(2, M)]),
        ("conv", WINDOW, [t(1, N, 5, 5), t(2, M, 3, 3)]),
    ):
        with pytest.raises(DimMismatch) as caught:
            infer(name, attrs, types)
        assert {caught.value.left, caught.value.right} == {N, M}


def test_half_precision_is_inferred_as_itself() -> None:
    for dtype in (F16, BF16):
        assert infer("softmax", {}, [t(2, 3, dtype=dtype)])[0].dtype == dtype
        assert infer("matmul", {}, [t(2, 3, dtype=dtype), t(3, 2, dtype=dtype)])[0].dtype == dtype
