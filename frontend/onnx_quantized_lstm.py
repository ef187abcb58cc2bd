"""DynamicQuantizeLSTM of ONNX Runtime: an LSTM whose weights have 8 bits, and whose states are quantized in every step.

The input is quantized once, and each state over the whole batch, as ONNX Runtime does on one thread. Its products are
those of dequantized matrices, in a loop over the steps, so that passes make products of integers of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from aot import dtypes
from aot.control import add_loop
from aot.dims import Dim, maximum
from aot.frontend.known import KnownBuilder
from aot.frontend.onnx_contrib import contrib
from aot.frontend.onnx_recurrent import activations_of, directions_of
from aot.frontend.onnx_registry import Context, Result
from aot.frontend.quantizing import contents, quantized_at_run
from aot.ir import Array, TensorType, Value, live

Activation = Callable[[KnownBuilder, Value], Value]


def _activation(name: str, alpha: float, beta: float) -> Activation | None:
    """A function of ONNX's recurrent layers as an op; None for one that has none."""
    plain = {"Sigmoid": "sigmoid", "Tanh": "tanh", "Relu": "relu", "Softsign": "softsign", "Softplus": "softplus"}
    given = {"LeakyRelu": {"alpha": alpha}, "Elu": {"alpha": alpha}, "HardSigmoid": {"alpha": alpha, "beta": beta}}
    op = plain.get(name) or {"LeakyRelu": "leaky_relu", "Elu": "elu", "HardSigmoid": "hardsigmoid"}.get(name)
    return None if op is None else lambda builder, x: builder.op(op, x, **given.get(name, {}))[0]


@dataclass(frozen=True)
class _Matrix:
    """Numbers [K, 4 H] of one direction, a scale of all or of each column, and a zero point alike."""

    numbers: Array
    scale: Array
    zero: Array

    def times(self, builder: KnownBuilder, x: Value) -> Value:
        """x, quantized by its least and its greatest element, times what the numbers stand for."""
        numbers, scale, zero = quantized_at_run(builder, x)
        (left,) = builder.op("dequantize", numbers, scale, zero)
        (right,) = builder.op(
            "dequantize", builder.const(self.numbers), builder.const(self.scale), builder.const(self.zero)
        )
        return builder.op("matmul", left, right)[0]


@dataclass(frozen=True)
class _Layer:
    """What the directions have in common."""

    where: str
    locs: tuple[str, ...]
    hidden: int
    clip: float
    input_forget: bool


@contrib(
    "DynamicQuantizeLSTM", 12, 12, "activation_alpha", "activation_beta", "activations", "clip", "direction",
    "hidden_size", "input_forget", results=3,
)  # fmt: skip
def _dynamic_quantize_lstm(c: Context) -> Result:
    x = c.input(0)
    if x.type.rank != 3 or c.rank(1) != 3 or c.rank(2) != 3:
        c.fail("its input and weights must have rank 3")
    directions, hidden, width = c.shape(2)
    _, reverse = directions_of(c)
    if not isinstance(hidden, int) or not isinstance(width, int) or width != 4 * hidden or len(reverse) != directions:
        c.fail(f"recurrence weights of shape {list(c.shape(2))} do not fit {len(reverse)} directions of four gates")
    names, parameters = activations_of(c, "lstm", len(reverse))
    functions = [
        _activation(name, *parameters[2 * number : 2 * number + 2]) for number, name in enumerate(names.split())
    ]
    if None in functions:
        c.unsupported(f"activations {names} of a quantized LSTM")
    layer = _Layer(
        c.where, c.builder.locs, hidden, c.float_attribute("clip", 0.0), c.bool_attribute("input_forget", False)
    )
    sequences: list[Value] = []
    last: tuple[list[Value], list[Value]] = ([], [])
    for number, backwards in enumerate(reverse):
        weights = [_matrix(c, operand, number) for operand in (1, 2)]
        chosen = [each for each in functions[3 * number : 3 * number + 3] if each is not None]
        made = _direction(c, layer, number, backwards, weights, chosen)
        sequences.append(made[0])
        for states, state in zip(last, made[1:], strict=True):
            states.append(state)
    steps, batch = x.type.shape[:2]
    parts = [c.reshape(sequence, (steps, 1, batch, hidden)) for sequence in sequences]
    joined = [[c.reshape(state, (1, batch, hidden)) for state in states] for states in last]
    return tuple(c.op("concat", *group, axis=axis) for group, axis in ((parts, 1), (joined[0], 0), (joined[1], 0)))


def _matrix(c: Context, operand: int, number: int) -> _Matrix:
    """The weight of a direction: operand 1 or 2; its scale is operand 8 or 10, and its zero point the next one."""
    held = [contents(c.builder, c.input(index)) for index in (operand, 6 + 2 * operand, 7 + 2 * operand)]
    if held[0] is None or held[1] is None or held[2] is None:
        c.unsupported("a weight, a scale or a zero point of a quantized LSTM that is no constant")
    numbers, scale, zero = (part[number] for part in (held[0], held[1], held[2]))
    if held[2].dtype != held[0].dtype or scale.shape not in ((), (1,), numbers.shape[1:]) or zero.size > scale.size:
        c.fail("a scale or a zero point does not fit its weight")
    if scale.size == 1:
        scale, zero = scale.reshape(()), zero.reshape(())
    return _Matrix(numbers, scale, np.asarray(np.broadcast_to(zero, scale.shape)))


def _direction(
    c: Context, layer: _Layer, number: int, backwards: bool, weights: Sequence[_Matrix], functions: Sequence[Activation]
) -> tuple[Value, Value, Value]:
    """Y [steps, batch, hidden] and the last states [batch, hidden] of one direction."""
    x, builder, hidden = c.input(0), c.builder, layer.hidden
    steps, batch, width = x.type.shape
    gates = weights[0].times(builder, c.reshape(x, (steps * batch, width)))
    gates = c.reshape(gates, (steps, batch, 4 * hidden))
    if c.has(3):
        both = c.reshape(c.slice_axis(c.input(3), 0, number, 1), (2, 4 * hidden))
        gates = c.op("add", gates, c.op("reduce_sum", both, axes=(0,), keepdims=True))
    limit = c.reshape(c.cast(c.input(4), dtypes.I64), (batch, 1)) if c.has(4) else None
    if backwards:
        gates = _turned(c, gates, limit)
    states = [_initial(c, index, number, batch, hidden) for index in (5, 6)]
    peephole = c.reshape(c.slice_axis(c.input(7), 0, number, 1), (3 * hidden,)) if c.has(7) else None
    carried = [*states, states[0]]  # the last one is what is multiplied: zeros once a sequence is over
    captured = [value for value in (gates, limit, peephole) if value is not None]
    for value in (*captured, *states):
        builder.materialize(value)
    body = KnownBuilder(f"{layer.where}/step", layer.locs)
    place = body.input("step", dtypes.I64, ())
    h, cell, seen = (body.input(name, dtypes.F32, (batch, hidden)) for name in ("h", "c", "seen"))
    inner = iter([body.input(f"captured_{n}", value.type.dtype, value.type.shape) for n, value in enumerate(captured)])
    (own,) = body.op("gather", next(inner), place, axis=0)
    runs = None if limit is None else body.op("lt", place, next(inner))[0]
    sums = body.op("add", own, weights[1].times(body, seen))[0]
    shown, new_cell = _step(body, layer, sums, cell, next(inner, None), functions)
    new_h = shown
    if runs is not None:
        new_h, new_cell, shown = (
            body.op("where", runs, new, old)[0]
            for new, old in ((new_h, h), (new_cell, cell), (shown, body.scalar(0.0, dtypes.F32)))
        )
    results = [body.op("copy", value)[0] for value in (new_h, new_cell, shown, shown)]
    trips = c.dim_scalar(steps, dtypes.I64)
    builder.materialize(trips)
    state = TensorType(dtypes.F32, (batch, hidden))
    stacked = TensorType(dtypes.F32, (maximum(steps, 0), batch, hidden))
    last_h, last_cell, _, sequence = add_loop(
        builder, trips, None, carried, captured, live(body.finish(results)), (state, state, state, stacked)
    )
    return _turned(c, sequence, limit) if backwards else sequence, last_h, last_cell


def _turned(c: Context, value: Value, lengths: Value | None) -> Value:
    """The steps in the other order; those of each sequence, where there are lengths [batch, 1]."""
    steps, batch, width = value.type.shape
    if lengths is None:
        starts: tuple[Dim, ...] = (steps - 1, 0, 0)
        return c.op("slice", value, starts=starts, sizes=value.type.shape, steps=(-1, 1, 1))
    places = c.op("iota", shape=(steps, 1, 1), axis=0, start=0, step=1, dtype=dtypes.I64)
    from_end = c.op("sub", c.op("sub", lengths, c.scalar(1, dtypes.I64)), places)
    order = c.op("where", c.op("ge", from_end, c.scalar(0, dtypes.I64)), from_end, places)
    return c.op("gather_elements", value, c.expand(order, (steps, batch, width)), axis=0)


def _initial(c: Context, index: int, number: int, batch: Dim, hidden: int) -> Value:
    """The state of a direction before its first step."""
    if not c.has(index):
        return c.op("expand", c.scalar(0.0, dtypes.F32), shape=(batch, hidden))
    return c.reshape(c.slice_axis(c.input(index), 0, number, 1), (batch, hidden))


def _step(
    b: KnownBuilder, layer: _Layer, sums: Value, cell: Value, extra: Value | None, functions: Sequence[Activation]
) -> tuple[Value, Value]:
    """The hidden state and the cell after a step: gates in ONNX's order, input, output, forget, cell."""
    hidden, batch = layer.hidden, sums.type.shape[0]

    def op(name: str, *inputs: Value) -> Value:
        return b.op(name, *inputs)[0]

    def part(value: Value, number: int, axis: int) -> Value:
        sizes = (hidden,) if axis == 0 else (batch, hidden)
        starts = (number * hidden,) if axis == 0 else (0, number * hidden)
        return b.op("slice", value, starts=starts, sizes=sizes, steps=(1,) * len(sizes))[0]

    def clipped(x: Value) -> Value:
        if not layer.clip:
            return x
        return op("max", op("min", x, b.scalar(layer.clip, dtypes.F32)), b.scalar(-layer.clip, dtypes.F32))

    def peep(x: Value, number: int, state: Value) -> Value:
        return x if extra is None else op("add", x, op("mul", part(extra, number, 0), state))

    gate_i, gate_o, gate_f, gate_c = (part(sums, number, 1) for number in range(4))
    f, g, h = functions
    into = f(b, clipped(peep(gate_i, 0, cell)))
    if layer.input_forget:
        kept = op("sub", b.scalar(1.0, dtypes.F32), into)
    else:
        kept = f(b, clipped(peep(gate_f, 2, cell)))
    new = op("add", op("mul", cell, kept), op("mul", into, g(b, clipped(gate_c))))
    out = f(b, clipped(peep(gate_o, 1, new)))
    return op("mul", out, h(b, new)), new
