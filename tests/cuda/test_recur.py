"""Recurrences for CUDA, under Triton's interpreter: every attribute, odd sizes, element types, layouts, schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims
from aot.backend.cuda import CudaBackend
from aot.backend.cuda import recur as emitter
from aot.dims import Symbol
from aot.dtypes import BF16, F16, F32, F64, DType
from aot.evaluate import evaluate_op
from aot.ir import Layout
from aot.kernel import Kernel
from aot.ops import OPS
from aot.ops.recur import OPERANDS
from aot.target import Target
from tests.backend.test_recur import ALL, recurrence
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
S, B = Symbol("S", lo=0).dim, Symbol("B", lo=0).dim
OPERATORS = ("recur_lstm", "recur_gru", "recur_rnn")
TOLERANCE = {"f32": 3e-5, "f64": 1e-6, "f16": 6e-3, "bf16": 4e-2}


def check(
    kernel: Kernel, symbols: dict[str, int] | None = None, target: Target = TARGET, tolerance: float | None = None
) -> str:
    """Runs a kernel on random operands, against the reference; returns its schedule."""
    random = np.random.default_rng(3)
    root: Any = kernel.root
    arrays: dict[str, Any] = {}
    steps = dims.evaluate(kernel.inputs[0].type.shape[0], symbols or {})
    by_number = {number: name for name, number in zip(OPERANDS[root.op], root.operands, strict=True)}
    for number, operand in enumerate(kernel.inputs):
        name, type_ = by_number[number], operand.type
        shape = [dims.evaluate(extent, symbols or {}) for extent in type_.shape]
        scale = 1.0 if name in ("gates", "h", "c") else 0.3
        values = random.integers(-1, steps + 2, shape) if name == "lengths" else random.normal(0, scale, shape)
        arrays[name] = values.astype(type_.dtype.numpy)
    emitted = BACKEND.emit(kernel, target)
    got = interpreter.run(kernel, emitted, list(arrays.values()), symbols)
    expected = evaluate_op(OPS[root.op], root.attrs, [arrays.get(name) for name in OPERANDS[root.op]])
    tolerance = tolerance or TOLERANCE[kernel.inputs[0].type.dtype.name]
    for result, place in enumerate(root.results):
        if place is not None:
            wide = got[place].astype(np.float64), expected[result].astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
    return emitted.schedule


def given_to(op: str) -> tuple[str, ...]:
    return tuple(name for name in ALL if name in OPERANDS[op])


@pytest.mark.parametrize(("op", "number"), [(op, n) for op in OPERATORS for n in range(len(samples_of(op)))])
def test_samples_of_the_op(op: str, number: int) -> None:
    """Every attribute: clipping, activations, coupled gates; weights known and not."""
    sample = samples_of(op)[number]
    arrays = dict(zip(OPERANDS[op], sample.operands, strict=True))
    gates, weight = arrays["gates"], arrays["weight"]
    assert gates is not None and weight is not None
    given = tuple(name for name in ALL if arrays.get(name) is not None)
    steps, batch, _ = gates.shape
    attrs: dict[str, Any] = dict(sample.attrs)
    dtype = F16 if number % 3 == 2 else F32
    kernel = recurrence(
        op, steps, batch, weight.shape[2], given, constant=number % 2 == 0, directions=len(weight), dtype=dtype, **attrs
    )
    check(kernel)


@pytest.mark.parametrize("number", range(len(samples_of("recur_cell"))))
@pytest.mark.parametrize("dtype", [F32, F16])
def test_cells(number: int, dtype: DType) -> None:
    sample = samples_of("recur_cell")[number]
    arrays = dict(zip(OPERANDS["recur_cell"], sample.operands, strict=True))
    assert arrays["gates"] is not None and arrays["weight"] is not None
    given = tuple(name for name in ("h", "c", "extra") if arrays.get(name) is not None)
    steps, batch, _ = arrays["gates"].shape
    hidden = arrays["weight"].shape[2]
    extra = arrays.get("extra")
    attrs: dict[str, Any] = {**sample.attrs, "extra": 0 if extra is None else len(extra) // hidden}
    check(recurrence("recur_cell", steps, batch, hidden, given, dtype=dtype, **attrs))
    check(recurrence("recur_cell", steps, batch, hidden, given, dtype=dtype, constant=False, reverse=True, **attrs))
    check(recurrence("recur_cell", 1, batch, 40, given, dtype=dtype, **attrs))


@pytest.mark.parametrize("hidden", [1, 5, 16, 40])
@pytest.mark.parametrize("op", OPERATORS)
def test_sizes_that_are_known_when_running(op: str, hidden: int) -> None:
    attrs: dict[str, Any] = {"linear_before_reset": True} if op == "recur_gru" else {}
    for dtype in (F32, F16):
        kernel = recurrence(op, S, B, hidden, given_to(op), dtype=dtype, **attrs)
        plain = recurrence(op, S, B, hidden, (), dtype=dtype, reverse=True, **attrs)
        for steps, batch in ((0, 2), (3, 0), (4, 3), (1, 17 if dtype == F16 else 1)):
            check(kernel, {"S": steps, "B": batch})
            if hidden == 5:
                check(plain, {"S": steps, "B": batch})


@pytest.mark.parametrize("hidden", [1, 16, 37])
def test_reset_before_the_product(hidden: int) -> None:
    for dtype in (F32, F16):
        kernel = recurrence("recur_gru", S, B, hidden, ("lengths", "h"), dtype=dtype)
        for batch in (1, 3):
            check(kernel, {"S": 4, "B": batch})
        check(recurrence("recur_gru", 3, 2, hidden, constant=False, reverse=True, dtype=dtype))


@pytest.mark.parametrize("dtype", [F64, F16, BF16])
def test_other_types(dtype: DType) -> None:
    for op in OPERATORS:
        check(recurrence(op, 4, 7, 19, given_to(op), dtype=dtype))


def test_layouts() -> None:
    """Batch outermost in memory, parts of larger buffers, and gates that are not even adjacent."""
    for dtype in (F32, F16):
        outer = {"gates": Layout(order=(1, 0, 2)), "y": Layout(order=(2, 0, 1, 3))}
        check(recurrence("recur_lstm", 5, 3, 18, ("h", "c"), layouts=outer, dtype=dtype))
        part = {"gates": Layout(strides=(3 * 200, 200, 1)), "y": Layout(strides=(3 * 50, 50, 50, 1))}
        attrs: dict[str, Any] = {"linear_before_reset": True, "reverse": True}
        check(recurrence("recur_gru", 5, 3, 18, ("bias",), layouts=part, dtype=dtype, **attrs))
        inside = {"gates": Layout(order=(2, 0, 1)), "weight": Layout(order=(2, 0, 1))}
        check(recurrence("recur_rnn", 5, 3, 18, layouts=inside, constant=False, dtype=dtype))


def test_some_results() -> None:
    for results in ((0,), (1,), (2,), (2, 0)):
        check(recurrence("recur_lstm", 3, 2, 21, ("lengths", "h"), results=results))


def test_weights_of_both_directions() -> None:
    for index in (0, 1):
        for constant in (False, True):
            for dtype in (F32, F64, F16):
                check(recurrence("recur_lstm", 3, 2, 21, directions=2, index=index, constant=constant, dtype=dtype))


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("before", [False, True])
def test_weights_that_do_not_fit(op: str, before: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the rows stays, or none; pieces that divide what is left, and that do not."""
    attrs: dict[str, Any] = {"linear_before_reset": before} if op == "recur_gru" else {}
    for hidden, held, piece in ((48, 1 << 12, 1 << 11), (50, 1 << 13, 1 << 12), (64, 1 << 8, 1 << 11), (19, 0, 1 << 9)):
        monkeypatch.setattr(emitter, "RESIDENT_BYTES", held)
        monkeypatch.setattr(emitter, "PIECE_BYTES", piece)
        schedule = check(recurrence(op, 3, 2, hidden, given_to(op), **attrs))
        assert "pieces" in schedule or op == "recur_rnn"
        check(recurrence(op, 3, 18, hidden, given_to(op), dtype=F16, **attrs))
        check(recurrence(op, 2, 1, hidden, constant=False, **attrs))


@pytest.mark.parametrize("op", OPERATORS)
def test_one_step_is_shared_by_units(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    attrs: dict[str, Any] = {"linear_before_reset": True} if op == "recur_gru" else {}
    for hidden in (40, 64, 100):
        assert "16 units a program" in check(recurrence(op, 1, 3, hidden, given_to(op), **attrs))
        assert "16 units a program" in check(recurrence(op, 1, B, hidden, reverse=True, **attrs), {"B": 2})
    monkeypatch.setattr(emitter, "PIECE_BYTES", 1 << 10)  # several pieces
    for hidden in (40, 64):
        check(recurrence(op, 1, 2, hidden, given_to(op), **attrs))
    assert "units a program" not in check(recurrence("recur_gru", 1, 2, 40, given_to("recur_gru")))


def test_many_rows_in_tf32() -> None:
    target = replace(TARGET, features=TARGET.features | {"tf32"})
    kernel = recurrence("recur_lstm", 2, 150, 20, ("lengths", "h", "c"))
    assert "one row" in check(kernel)
    assert "16 rows" in check(kernel, target=target, tolerance=1e-2)


def test_nan_and_infinity_stay_in_their_rows() -> None:
    kernel = recurrence("recur_lstm", 3, 2, 20, ("h", "c"))
    arrays = [np.zeros([int(n) for n in o.type.shape], o.type.dtype.numpy) for o in kernel.inputs]  # type: ignore[arg-type]
    arrays[0][1, 0] = np.nan
    arrays[0][:, 1, 7] = np.inf
    got = interpreter.run(kernel, BACKEND.emit(kernel, TARGET), arrays)
    root: Any = kernel.root
    by_name = dict(zip([n for n in OPERANDS["recur_lstm"] if n in ("gates", "weight", "h", "c")], arrays, strict=True))
    want = evaluate_op(OPS["recur_lstm"], root.attrs, [by_name.get(name) for name in OPERANDS["recur_lstm"]])
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_cubins() -> None:
    """Real sizes compile for new and old devices, and keep their values in registers."""
    sizes: list[tuple[str, int, DType]] = [("recur_lstm", 128, F32), ("recur_gru", 64, F32), ("recur_gru", 400, F32)]
    sizes += [("recur_lstm", 512, F32), ("recur_lstm", 128, F16), ("recur_gru", 256, F16)]
    for architecture in ("sm_90a", "sm_80"):
        target = BACKEND.target(architecture)
        texts: dict[str, str] = {}
        for op, hidden, dtype in sizes:
            attrs: dict[str, Any] = {"linear_before_reset": True} if op == "recur_gru" else {}
            for steps in (S, 1) if dtype == F32 else (S,):
                kernel = recurrence(
                    op, steps, 1, hidden, ("h", "c") if op == "recur_lstm" else ("h",), dtype=dtype, **attrs
                )
                texts[f"k{len(texts)}"] = BACKEND.emit(kernel, target).source
        for symbol, image in BACKEND.build(list(texts.items()), target, None).images.items():
            assert image.spilled_bytes == 0, (architecture, symbol, image)
            assert image.shared_bytes <= target.numbers["shared_bytes"]
