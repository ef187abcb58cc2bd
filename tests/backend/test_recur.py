"""Recurrent kernels against the double-precision reference: odd sizes, symbols, element types, layouts, threads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aot import dims
from aot.backend.cpu.isa import V4, Isa
from aot.backend.cpu.recur import emit_recurrence
from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import BF16, F16, F32, F64, I64, DType
from aot.evaluate import evaluate_op
from aot.ir import Layout, Node, Value
from aot.kernel import Kernel
from aot.lower import lower
from aot.ops import OPS
from aot.ops.recur import OPERANDS, form_of
from tests.backend.harness import ISAS, run_threads
from tests.ops.samples import samples_of

S, B = Symbol("S").dim, Symbol("B").dim
LEVELS: list[Any] = [isa.values[0] for isa in ISAS if not isa.marks]  # those of this CPU
ALL = ("lengths", "h", "c", "peephole", "bias")


def recurrence(
    op: str,
    steps: Dim,
    batch: Dim,
    hidden: int,
    given: tuple[str, ...] = (),
    *,
    dtype: DType = F32,
    constant: bool = True,
    layouts: Mapping[str, Layout] | None = None,
    results: tuple[int, ...] | None = None,
    directions: int = 1,
    extra: int = 1,
    **attrs: Any,
) -> Kernel:
    """A kernel of one recurrence; `layouts` by operand name, and of y under "y"; `results`: those that are read."""
    form, layouts = form_of(op, attrs), layouts or {}
    shapes: dict[str, tuple[Dim, ...]] = {
        "gates": (steps, batch, form.inputs * hidden), "weight": (directions, form.gates * hidden, hidden),
        "lengths": (batch,), "h": (1, batch, hidden), "c": (1, batch, hidden),
        "peephole": (3 * hidden,), "bias": (hidden,), "extra": (extra * hidden,),
    }  # fmt: skip
    builder = Builder()
    names = [name for name in OPERANDS[op] if name in ("gates", "weight", *given)]
    values = {n: builder.input(n, I64 if n == "lengths" else dtype, shapes[n]) for n in names}
    made = builder.op(op, *(values.get(name) for name in OPERANDS[op]), **attrs)
    body = builder.finish([made[number] for number in results or range(len(made))])
    inputs = tuple(Value(v.type.with_layout(layouts.get(v.name, Layout())), v.name) for v in body.inputs)
    outputs = tuple(Value(v.type.with_layout(layouts.get("y", Layout()) if v is made[0] else Layout()))
                    for v in body.outputs)  # fmt: skip
    node = Node("kernel", inputs, outputs, {"name": "test", "kind": "recur"}, ("test",), (body,))
    return lower(node, lambda value: constant and value.name == "weight")


def check(isa: Isa, kernel: Kernel, symbols: dict[str, int] | None = None) -> None:
    random = np.random.default_rng(3)
    root: Any = kernel.root
    arrays: dict[str, Any] = {}
    steps = dims.evaluate(kernel.inputs[0].type.shape[0], symbols or {})
    by_number = {number: name for name, number in zip(OPERANDS[root.op], root.operands, strict=True)}
    for number, operand in enumerate(kernel.inputs):
        name, type_ = by_number[number], operand.type
        shape = [dims.evaluate(extent, symbols or {}) for extent in type_.shape]
        scale = 1.0 if name in ("gates", "h", "c") else 0.3
        values = random.integers(0, steps + 1, shape) if name == "lengths" else random.normal(0, scale, shape)
        arrays[name] = values.astype(type_.dtype.numpy)
    got = run_threads(kernel, emit_recurrence(kernel, isa), isa, list(arrays.values()), symbols)
    expected = evaluate_op(OPS[root.op], root.attrs, [arrays.get(name) for name in OPERANDS[root.op]])
    tolerance = {"f32": 2e-5, "f64": 1e-12, "f16": 4e-3, "bf16": 3e-2}[kernel.inputs[0].type.dtype.name]
    for result, number in enumerate(root.results):
        if number is not None:
            wide = got[number].astype(np.float64), expected[result].astype(np.float64)
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("op", "number"),
    [(op, n) for op in ("recur_lstm", "recur_gru", "recur_rnn") for n in range(len(samples_of(op)))],
)
def test_samples_of_the_op(op: str, number: int) -> None:
    """Every attribute: clipping, activations, coupled gates; weights known and not, on either instruction set."""
    sample = samples_of(op)[number]
    arrays = dict(zip(OPERANDS[op], sample.operands, strict=True))
    gates, weight = arrays["gates"], arrays["weight"]
    assert gates is not None and weight is not None
    given = tuple(name for name in ALL if arrays.get(name) is not None)
    attrs: dict[str, Any] = dict(sample.attrs)
    steps, batch, _ = gates.shape
    kernel = recurrence(
        op, steps, batch, weight.shape[2], given, constant=number % 2 == 0, directions=len(weight), **attrs
    )
    check(LEVELS[number // 2 % len(LEVELS)], kernel)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("hidden", [1, 5, 16, 40, 64, 128])
@pytest.mark.parametrize("op", ["recur_lstm", "recur_gru", "recur_rnn"])
def test_sizes(isa: Isa, op: str, hidden: int) -> None:
    attrs: dict[str, Any] = {"linear_before_reset": True} if op == "recur_gru" else {}
    kernel = recurrence(op, S, B, hidden, tuple(n for n in ALL if n in OPERANDS[op]), **attrs)
    for batch in (1, 2, 3, 4, 5, 29):
        check(isa, kernel, {"S": 1 + batch % 4, "B": batch})
    if hidden in (5, 40):
        check(isa, recurrence(op, 3, 4, hidden, reverse=True, **attrs))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("hidden", [1, 16, 37, 80])
def test_reset_before_the_product(isa: Isa, hidden: int) -> None:
    kernel = recurrence("recur_gru", S, B, hidden, ("lengths", "h"))
    for batch in (1, 3, 8):
        check(isa, kernel, {"S": 4, "B": batch})
    check(isa, recurrence("recur_gru", 3, 2, hidden, constant=False, reverse=True))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", [F64, F16, BF16])
def test_other_types(isa: Isa, dtype: DType) -> None:
    for op in ("recur_lstm", "recur_gru", "recur_rnn"):
        check(isa, recurrence(op, 4, 7, 19, tuple(n for n in ALL if n in OPERANDS[op]), dtype=dtype))


@pytest.mark.parametrize("isa", ISAS)
def test_layouts(isa: Isa) -> None:
    """Batch outermost in memory, parts of larger buffers, and gates that are not even adjacent."""
    outer = {"gates": Layout(order=(1, 0, 2)), "y": Layout(order=(2, 0, 1, 3))}
    check(isa, recurrence("recur_lstm", 5, 3, 18, ("h", "c"), layouts=outer))
    part = {"gates": Layout(strides=(3 * 200, 200, 1)), "y": Layout(strides=(3 * 50, 50, 50, 1))}
    check(isa, recurrence("recur_gru", 5, 3, 18, ("bias",), layouts=part, linear_before_reset=True, reverse=True))
    inside = {"gates": Layout(order=(2, 0, 1)), "weight": Layout(order=(2, 0, 1))}
    check(isa, recurrence("recur_rnn", 5, 3, 18, layouts=inside, constant=False))


@pytest.mark.parametrize("isa", ISAS)
def test_some_results(isa: Isa) -> None:
    for results in ((0,), (1,), (2,), (2, 0)):
        check(isa, recurrence("recur_lstm", 3, 2, 21, ("lengths", "h"), results=results))


@pytest.mark.parametrize("isa", ISAS)
def test_weights_of_both_directions(isa: Isa) -> None:
    for index in (0, 1):
        for constant in (False, True):
            for dtype in (F32, F64, F16, BF16):  # narrow ones are packed as f32
                kernel = recurrence("recur_lstm", 3, 2, 21, directions=2, index=index, constant=constant, dtype=dtype)
                check(isa, kernel)


def test_schedule_names_the_form() -> None:
    emitted = emit_recurrence(recurrence("recur_lstm", S, B, 128), V4)
    assert "128 units" in emitted.schedule and "packed" in emitted.schedule
    assert emitted.packed[1].shape == (1, 8, 4, 128, 16)
    assert isinstance(emitted.scratch_bytes, int), "scratch does not grow with time or batch"
