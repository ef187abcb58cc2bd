"""RECUR: LSTM, GRU and simple RNN layers, and the recurrences that they are made of.

A layer (`lstm`, `gru`, `rnn`) has ONNX's operands and meaning, all directions in one node. It decomposes
into one matrix product over all time steps with every bias that can join it, and one recurrence per
direction (`recur_lstm`, `recur_gru`, `recur_rnn`): the part that needs a step's result for the next.
The arithmetic of a step is `next_state`, an Expr over the gates of one unit; the reference evaluates it
in double precision, backends render it. A cell that is none of these says its step itself (`recur_cell`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from aot import dtypes, expr
from aot.dims import Dim
from aot.expr import Expr, arg, call, select
from aot.ir import Array, Attr, TensorType, Value
from aot.ops.helpers import FLOAT, INDEX, float_attr, int_attr, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, register, same_extent
from aot.ops.steps import parse_step

if TYPE_CHECKING:
    from aot.builder import Builder

# Activations, by ONNX's names: f(alpha, beta, x), and the defaults of alpha and beta.

_Activation = Callable[[float, float, Expr], Expr]


def _softplus(alpha: float, beta: float, x: Expr) -> Expr:
    return call("max", x, 0.0) + call("log1p", call("exp", -call("abs", x)))


ACTIVATIONS: Mapping[str, tuple[_Activation, tuple[float, ...]]] = {
    "Sigmoid": (lambda a, b, x: call("sigmoid", x), ()),
    "Tanh": (lambda a, b, x: call("tanh", x), ()),
    "Relu": (lambda a, b, x: call("max", x, 0.0), ()),
    "Affine": (lambda a, b, x: x * a + b, (1.0, 0.0)),
    "LeakyRelu": (lambda a, b, x: select(x < 0.0, x * a, x), (0.01,)),
    "ThresholdedRelu": (lambda a, b, x: select(x >= a, x, 0.0), (1.0,)),
    "ScaledTanh": (lambda a, b, x: call("tanh", x * b) * a, (1.0, 1.0)),
    "HardSigmoid": (lambda a, b, x: call("min", call("max", x * a + b, 0.0), 1.0), (0.2, 0.5)),
    "Elu": (lambda a, b, x: select(x < 0.0, call("expm1", x) * a, x), (1.0,)),
    "Softsign": (lambda a, b, x: x / (call("abs", x) + 1.0), ()),
    "Softplus": (_softplus, ()),
}
"""The tuple's length says how many of alpha and beta the function takes."""


@dataclass(frozen=True)
class Form:
    """What tells the three recurrences apart: gates per unit, states, activations, optional operands."""

    gates: int
    states: int
    activations: tuple[str, ...]
    extra: str = ""  # the operand that only this one has
    given: int = 0  # what the input gives each unit, where it is not one number per gate

    @property
    def inputs(self) -> int:
        """How many numbers the input gives each unit in a step."""
        return self.given or self.gates


FORMS: Mapping[str, Form] = {
    "lstm": Form(4, 2, ("Sigmoid", "Tanh", "Tanh"), "peephole"),
    "gru": Form(3, 1, ("Sigmoid", "Tanh"), "bias"),
    "rnn": Form(1, 1, ("Tanh",)),
}


def form_of(op: str, attrs: Attrs) -> Form:
    """The form of a layer or a recurrence."""
    if op == CELL:
        return Form(int_attr(attrs, "sums"), int_attr(attrs, "states"), (), "extra", int_attr(attrs, "inputs"))
    return FORMS[op.removeprefix("recur_")]


CELL = "recur_cell"


def directions(attrs: Attrs) -> tuple[bool, ...]:
    """For each direction of a layer, whether it runs backwards."""
    known = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if attrs["direction"] not in known:
        raise OpError(f"direction {attrs['direction']!r} is none of {', '.join(known)}")
    return known[str(attrs["direction"])]


def _functions(attrs: Attrs, form: Form) -> list[Callable[[Expr], Expr]]:
    """The activations of a recurrence as functions of a clipped argument.

    An LSTM's third, of the cell state, is not clipped: ONNX says that all are, ONNX Runtime computes so.
    """
    names = str(attrs["activations"]).split() or list(form.activations)
    parameters = attrs["parameters"]
    assert isinstance(parameters, tuple)
    if len(names) != len(form.activations) or len(parameters) not in (0, 2 * len(names)):
        raise OpError(f"{len(form.activations)} activations are needed, each with two parameters; got {names}")
    clip = float_attr(attrs, "clip")
    found: list[Callable[[Expr], Expr]] = []
    for number, name in enumerate(names):
        if name not in ACTIVATIONS:
            raise OpError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
        function, defaults = ACTIVATIONS[name]
        given = parameters[2 * number : 2 * number + 2] or (*defaults, 0.0, 0.0)[:2]
        found.append(partial(_activate, function, float(given[0]), float(given[1]), clip if number < 2 else 0.0))  # type: ignore[arg-type]
    return found


def _activate(function: _Activation, alpha: float, beta: float, clip: float, x: Expr) -> Expr:
    return function(alpha, beta, x if not clip else call("min", call("max", x, -clip), clip))


# A step.


def is_two_stage(op: str, attrs: Attrs) -> bool:
    """Whether the last gate multiplies a state that the others have changed: a GRU that resets first."""
    return bool(attrs["reset"]) if op == CELL else op == "recur_gru" and not attrs["linear_before_reset"]


def _stated(
    text: Attr, x: Sequence[Expr], r: Sequence[Expr], states: Sequence[Expr], extra: Sequence[Expr]
) -> tuple[Expr, ...]:
    """The Exprs of a cell's own text."""
    assert isinstance(text, str)
    given = {"x": x, "r": r, "h": states, "e": extra}

    def leaf(letter: str, number: int) -> Expr:
        if number >= len(given[letter]):
            raise OpError(f"{letter}{number} in the step {text!r} is not given")
        return given[letter][number]

    return parse_step(text, leaf, states[0].dtype)


def reset_state(
    op: str, attrs: Attrs, x: Sequence[Expr], r: Sequence[Expr], states: Sequence[Expr], extra: Sequence[Expr]
) -> Expr:
    """What the weights of the last gate of a two-stage recurrence multiply, given the sums of the others."""
    if op == CELL:
        return _stated(attrs["reset"], x, r[:-1], states, extra)[0]
    sigmoid, _ = _functions(attrs, FORMS["gru"])
    return sigmoid(x[1] + r[1]) * states[0]


def next_state(
    op: str, attrs: Attrs, x: Sequence[Expr], r: Sequence[Expr], states: Sequence[Expr], extra: Sequence[Expr]
) -> tuple[Expr, ...]:
    """The states of one unit after a step.

    `x`: its gates' share of the input, with biases; `r`: the weighted sums of the previous step's h;
    `states`: h, and an LSTM's c; `extra`: an LSTM's peepholes i, o, f, or a GRU's bias behind the reset
    gate, or what a cell's text asks for; empty if not given.
    """
    if op == CELL:
        return _stated(attrs["step"], x, r, states, extra)
    functions = _functions(attrs, form_of(op, attrs))
    h = states[0]
    if op == "recur_rnn":
        return (functions[0](x[0] + r[0]),)
    f, g = functions[:2]
    if op == "recur_gru":
        update = f(x[0] + r[0])
        if is_two_stage(op, attrs):
            candidate = g(x[2] + r[2])
        else:
            candidate = g(x[2] + f(x[1] + r[1]) * (r[2] + extra[0] if extra else r[2]))
        return (candidate + update * (h - candidate),)
    c = states[1]
    entry, out, keep, new = (a + b for a, b in zip(x, r, strict=True))
    entry = f(entry + extra[0] * c if extra else entry)
    keep = 1.0 - entry if attrs["input_forget"] else f(keep + extra[2] * c if extra else keep)
    cell = keep * c + entry * g(new)
    out = f(out + extra[1] * cell if extra else out)
    return out * functions[2](cell), cell


# Types.


def _hidden(weight: TensorType) -> int:
    hidden = weight.shape[2]
    if not isinstance(hidden, int) or hidden < 1:
        raise OpError(f"the number of hidden units must be known and positive; it is {hidden}")
    return hidden


def _need_shape(what: str, type_: TensorType | None, shape: tuple[Dim, ...]) -> None:
    """Raises OpError unless the type has the shape."""
    if type_ is None:
        return
    need_rank(what, type_, len(shape), len(shape))
    for found, wanted in zip(type_.shape, shape, strict=True):
        same_extent(found, wanted, f"the shape of {what}")


def _infer_recurrence(op: str, attrs: Attrs, *types: TensorType | None) -> tuple[TensorType, ...]:
    form = form_of(op, attrs)
    names = OPERANDS[op]
    given = dict(zip(names, (*types, *[None] * (len(names) - len(types))), strict=True))
    gates, weight, lengths = given["gates"], given["weight"], given["lengths"]
    assert gates is not None and weight is not None
    need_family("a recurrence's gates", gates, FLOAT)
    need_rank("a recurrence's gates", gates, 3, 3)
    need_rank("a recurrence's weight", weight, 3, 3)
    hidden = _hidden(weight)
    dtype = need_same_dtype(*(t for name, t in given.items() if t is not None and name != "lengths"))
    steps, batch, _ = gates.shape
    _need_shape("a recurrence's gates", gates, (steps, batch, form.inputs * hidden))
    _need_shape("a recurrence's weight", weight, (weight.shape[0], form.gates * hidden, hidden))
    if not isinstance(weight.shape[0], int) or not 0 <= int_attr(attrs, "index") < weight.shape[0]:
        raise OpError(f"index {attrs['index']} is out of range for {weight.shape[0]} directions")
    for name in ("h", "c"):
        _need_shape(f"the initial {name}", given.get(name), (1, batch, hidden))
    _need_shape("the peepholes", given.get("peephole"), (3 * hidden,))
    _need_shape("the bias", given.get("bias"), (hidden,))
    _need_shape("the lengths", lengths, (batch,))
    if lengths is not None:
        need_family("the lengths", lengths, INDEX)
    if op == CELL:
        _check_cell(attrs, form, given["extra"], hidden)
    else:
        _functions(attrs, form)
    state = TensorType(dtype, (1, batch, hidden))
    return (TensorType(dtype, (steps, 1, batch, hidden)), *[state] * form.states)


def extra_parts(op: str, extra: TensorType | None, hidden: int) -> int:
    """How many numbers per unit the extra operand of a recurrence holds."""
    if op != CELL:
        return 3 if op == "recur_lstm" else 1
    width = 0 if extra is None else extra.shape[0]
    return width // hidden if isinstance(width, int) else 0


def _check_cell(attrs: Attrs, form: Form, extra: TensorType | None, hidden: int) -> None:
    """Raises OpError unless a cell's texts fit its operands."""
    if not 1 <= form.states <= 2 or form.gates < 1 or form.inputs < 1:
        raise OpError("a cell has one or two states, and at least one sum and one input")
    parts = extra_parts(CELL, extra, hidden)
    if extra is not None:
        _need_shape("what a cell has in every step", extra, (parts * hidden,))
    counts = (form.inputs, form.gates, form.states, parts)
    leaves = [[arg(number, dtypes.F64) for number in range(count)] for count in counts]
    if len(next_state(CELL, attrs, *leaves)) != form.states:
        raise OpError(f"the step {attrs['step']!r} does not give {form.states} states")
    if attrs["reset"]:
        reset_state(CELL, attrs, *leaves)


def _infer_layer(op: str, attrs: Attrs, *types: TensorType | None) -> tuple[TensorType, ...]:
    form = form_of(op, attrs)
    names = OPERANDS[op]
    given = dict(zip(names, (*types, *[None] * (len(names) - len(types))), strict=True))
    x, w, r, lengths = given["x"], given["w"], given["r"], given["lengths"]
    assert x is not None and w is not None and r is not None
    need_family(f"the input of {op}", x, FLOAT)
    for what, part in (("x", x), ("w", w), ("r", r)):
        need_rank(f"{op}'s {what}", part, 3, 3)
    hidden, count = _hidden(r), len(directions(attrs))
    dtype = need_same_dtype(*(t for name, t in given.items() if t is not None and name != "lengths"))
    by_row = bool(attrs["batch_first"])
    steps, batch = (x.shape[1], x.shape[0]) if by_row else x.shape[:2]
    _need_shape(f"{op}'s w", w, (count, form.gates * hidden, x.shape[2]))
    _need_shape(f"{op}'s r", r, (count, form.gates * hidden, hidden))
    _need_shape(f"{op}'s b", given["b"], (count, 2 * form.gates * hidden))
    state = (batch, count, hidden) if by_row else (count, batch, hidden)
    for name in ("h", "c"):
        _need_shape(f"{op}'s initial {name}", given.get(name), state)
    _need_shape(f"{op}'s peepholes", given.get("p"), (count, 3 * hidden))
    _need_shape(f"{op}'s lengths", lengths, (batch,))
    if lengths is not None:
        need_family("the lengths", lengths, INDEX)
    for index in range(count):
        _functions(_of_direction(attrs, form, index), form)
    shape = (batch, steps, count, hidden) if by_row else (steps, count, batch, hidden)
    return (TensorType(dtype, shape), *[TensorType(dtype, state)] * form.states)


def _of_direction(attrs: Attrs, form: Form, index: int) -> dict[str, Any]:
    """The attributes of the recurrence of one direction of a layer."""
    count = len(form.activations)
    names = str(attrs["activations"]).split()
    parameters = attrs["parameters"]
    assert isinstance(parameters, tuple)
    total = len(directions(attrs)) * count
    if len(names) not in (0, total) or len(parameters) not in (0, 2 * total):
        raise OpError(f"{total} activations are needed, each with two parameters; got {names}")
    found: dict[str, Any] = {
        "reverse": directions(attrs)[index],
        "index": index,
        "activations": " ".join(names[index * count : (index + 1) * count]),
        "parameters": parameters[2 * index * count : 2 * (index + 1) * count],
        "clip": attrs["clip"],
    }
    for name in ("input_forget", "linear_before_reset"):
        if name in attrs:
            found[name] = attrs[name]
    return found


# numpy.


def _recur(op: str, attrs: Attrs, *arrays: Array | None) -> tuple[Array, ...]:
    """The reference of a recurrence, in double precision."""
    form = form_of(op, attrs)
    given = dict(zip(OPERANDS[op], (*arrays, *[None] * (len(OPERANDS[op]) - len(arrays))), strict=True))
    gates, weight, lengths = given["gates"], given["weight"], given["lengths"]
    assert gates is not None and weight is not None
    dtype = gates.dtype
    steps, batch, _ = gates.shape
    hidden = weight.shape[2]
    x = gates.astype(np.float64).reshape(steps, batch, form.inputs, hidden)
    columns = weight[int_attr(attrs, "index")].astype(np.float64).T
    states = []
    for name in ("h", "c")[: form.states]:
        initial = given.get(name)
        states.append(np.zeros((batch, hidden)) if initial is None else initial[0].astype(np.float64))
    last = np.full(batch, steps) if lengths is None else np.clip(lengths.astype(np.int64), 0, steps)
    extra_array = given.get(form.extra) if form.extra else None
    extra = [] if extra_array is None else list(extra_array.astype(np.float64).reshape(-1, hidden))
    numbers = iter(range(99))
    x_args, r_args, state_args, extra_args = (
        [arg(next(numbers), dtypes.F64) for _ in range(count)]
        for count in (form.inputs, form.gates, form.states, len(extra))
    )
    bodies = next_state(op, attrs, x_args, r_args, state_args, extra_args)
    reset = reset_state(op, attrs, x_args, r_args, state_args, extra_args) if is_two_stage(op, attrs) else None
    y = np.zeros((steps, 1, batch, hidden))
    rows = np.arange(batch)
    for step in range(steps):
        where = np.clip(last - 1 - step, 0, None) if attrs["reverse"] else np.full(batch, step)
        active = (step < last)[:, None]
        inputs = list(np.moveaxis(x[where, rows], 1, 0))
        sums = np.matmul(states[0], columns).reshape(batch, form.gates, hidden)
        values = [*inputs, *np.moveaxis(sums, 1, 0), *states, *extra]
        if reset is not None:
            changed = expr.evaluate(reset, values)
            values[form.inputs + form.gates - 1] = np.matmul(changed, columns[:, -hidden:])
        found = [expr.evaluate(body, values) for body in bodies]
        states = [np.where(active, new, old) for new, old in zip(found, states, strict=True)]
        y[where[step < last], 0, rows[step < last]] = states[0][step < last]
    states = [np.where((last > 0)[:, None], state, 0.0) for state in states]  # as in ONNX Runtime
    with np.errstate(all="ignore"):
        return tuple(array.astype(dtype) for array in (y, *(state[None] for state in states)))


def _layer(op: str, attrs: Attrs, *arrays: Array | None) -> tuple[Array, ...]:
    """The reference of a layer."""
    form = form_of(op, attrs)
    given = dict(zip(OPERANDS[op], (*arrays, *[None] * (len(OPERANDS[op]) - len(arrays))), strict=True))
    x, w, r, b = given["x"], given["w"], given["r"], given["b"]
    assert x is not None and w is not None and r is not None
    wide = {name: None if a is None or name == "lengths" else a.astype(np.float64) for name, a in given.items()}
    rows = np.swapaxes(x, 0, 1) if attrs["batch_first"] else x
    hidden, width = r.shape[2], form.gates * r.shape[2]
    results = []
    for index in range(len(w)):
        gates = np.matmul(rows.astype(np.float64), w[index].astype(np.float64).T)
        extra = None
        if b is not None:
            bias = b[index].astype(np.float64)
            inner = bias[width:].copy()
            if attrs.get("linear_before_reset"):
                extra, inner[2 * hidden :] = bias[width + 2 * hidden :], 0.0
            gates = gates + bias[:width] + inner
        if wide.get("p") is not None:
            extra = wide["p"][index]  # type: ignore[index]
        operands: dict[str, Array | None] = {"gates": gates, "weight": wide["r"], "lengths": given["lengths"]}
        if form.extra:
            operands[form.extra] = extra
        for name in ("h", "c")[: form.states]:
            state = wide[name]
            if state is not None:
                state = np.swapaxes(state, 0, 1) if attrs["batch_first"] else state
                operands[name] = state[index : index + 1]
        inner_op = f"recur_{op}"
        ordered = (operands.get(name) for name in OPERANDS[inner_op])
        results.append(_recur(inner_op, _of_direction(attrs, form, index), *ordered))
    y, *states = (np.concatenate(parts, axis=1 - min(n, 1)) for n, parts in enumerate(zip(*results, strict=True)))
    if attrs["batch_first"]:
        y, states = np.transpose(y, (2, 0, 1, 3)), [np.swapaxes(state, 0, 1) for state in states]
    with np.errstate(all="ignore"):
        return tuple(np.ascontiguousarray(array).astype(x.dtype) for array in (y, *states))


# Decomposition.


def _part(builder: Builder, value: Value, axis: int, start: int, size: int) -> Value:
    """value[start : start + size] along an axis."""
    if start == 0 and value.type.shape[axis] == size:
        return value
    starts = tuple(start if a == axis else 0 for a in range(value.type.rank))
    sizes = tuple(size if a == axis else extent for a, extent in enumerate(value.type.shape))
    result: Value = builder.slice(value, starts=starts, sizes=sizes, steps=(1,) * value.type.rank)
    return result


def _decompose(op: str, builder: Builder, attrs: Attrs, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
    form = form_of(op, attrs)
    given = dict(zip(OPERANDS[op], (*inputs, *[None] * (len(OPERANDS[op]) - len(inputs))), strict=True))
    x, w, r, b = given["x"], given["w"], given["r"], given["b"]
    assert x is not None and w is not None and r is not None
    by_row = bool(attrs["batch_first"])
    hidden, count = _hidden(r.type), len(directions(attrs))
    width = form.gates * hidden
    if by_row:
        x = builder.transpose(x, perm=(1, 0, 2))
    columns = builder.transpose(builder.reshape(w, shape=(count * width, w.type.shape[2])), perm=(1, 0))
    gates = builder.matmul(x, columns)
    inner = None
    if b is not None:
        outer, inner = _part(builder, b, 1, 0, width), _part(builder, b, 1, width, width)
        if attrs.get("linear_before_reset"):  # the candidate's bias is scaled by the reset gate
            shared = builder.add(_part(builder, outer, 1, 0, 2 * hidden), _part(builder, inner, 1, 0, 2 * hidden))
            bias = builder.concat(shared, _part(builder, outer, 1, 2 * hidden, hidden), axis=1)
            inner = _part(builder, inner, 1, 2 * hidden, hidden)
        else:
            bias, inner = builder.add(outer, inner), None
        gates = builder.add(gates, builder.reshape(bias, shape=(count * width,)))
    per_row = {"h": given.get("h"), "c": given.get("c")}
    if by_row:
        per_row = {n: None if v is None else builder.transpose(v, perm=(1, 0, 2)) for n, v in per_row.items()}
    results = []
    for index in range(count):
        operands: dict[str, Value | None] = {
            "gates": _part(builder, gates, 2, index * width, width), "weight": r, "lengths": given["lengths"],
            **{n: None if v is None else _part(builder, v, 0, index, 1) for n, v in per_row.items()},
        }  # fmt: skip
        extra = given.get("p") if form.extra == "peephole" else inner
        if form.extra and extra is not None:
            extra = _part(builder, extra, 0, index, 1)
            operands[form.extra] = builder.reshape(extra, shape=extra.type.shape[1:])
        ordered = [operands.get(name) for name in OPERANDS[f"recur_{op}"]]
        results.append(builder.op(f"recur_{op}", *ordered, **_of_direction(attrs, form, index)))
    y, *states = (
        parts[0] if count == 1 else builder.concat(*parts, axis=1 - min(n, 1))
        for n, parts in enumerate(zip(*results, strict=True))
    )
    if by_row:
        y = builder.transpose(y, perm=(2, 0, 1, 3))
        states = [builder.transpose(state, perm=(1, 0, 2)) for state in states]
    return (y, *states)


# Samples.


def _layer_samples(op: str, rng: Any) -> list[Sample]:
    form = FORMS[op.removeprefix("recur_")]

    def sample(
        steps: int, batch: int, width: int, hidden: int, direction: str = "forward", drop: str = "", **attrs: Any
    ) -> Sample:
        count = 2 if direction == "bidirectional" else 1
        by_row = attrs.get("batch_first", False)
        state = (batch, count, hidden) if by_row else (count, batch, hidden)
        lengths = np.asarray(rng.integers(0, steps + 1, batch)).astype(np.int32)
        every: dict[str, Array] = {
            "x": normal(rng, *((batch, steps) if by_row else (steps, batch)), width, scale=1.0),
            "w": normal(rng, count, form.gates * hidden, width, scale=0.4),
            "r": normal(rng, count, form.gates * hidden, hidden, scale=0.4),
            "b": normal(rng, count, 2 * form.gates * hidden, scale=0.4),
            "lengths": lengths,
            "h": normal(rng, *state, scale=0.5), "c": normal(rng, *state, scale=0.5),
            "p": normal(rng, count, 3 * hidden, scale=0.4),
        }  # fmt: skip
        operands = tuple(None if name in drop.split() else every[name] for name in OPERANDS[op])
        return Sample(operands, {"direction": direction, **attrs}, 1e-4, 1e-5)

    found = [
        sample(3, 2, 4, 5, drop="lengths h c p"),
        sample(1, 1, 2, 1, drop="b lengths h c p"),
        sample(4, 3, 6, 16, "bidirectional", drop="lengths"),
        sample(5, 2, 3, 7, "reverse"),
        sample(5, 4, 3, 8, "bidirectional", batch_first=True, clip=0.7),
        sample(4, 2, 3, 17, drop="p", batch_first=True),
    ]
    if op == "gru":
        found += [sample(4, 3, 2, 6, "bidirectional", linear_before_reset=True), sample(3, 1, 4, 20, drop="h lengths")]
    if op == "lstm":
        names = "HardSigmoid Softsign Elu"
        found.append(sample(4, 2, 3, 6, input_forget=True, activations=names, parameters=(0.3, 0.4, 0, 0, 0.5, 0)))
    if op == "rnn":
        others = [name for name in ACTIVATIONS if name != "Tanh"]
        found += [sample(3, 2, 3, 4, drop="lengths h", activations=name) for name in others]
        found.append(sample(3, 2, 3, 4, "bidirectional", activations="Affine LeakyRelu", parameters=(0.5, 0.1, 0.2, 0)))
    return found


def _recurrence_samples(op: str, rng: Any) -> list[Sample]:
    form = FORMS[op.removeprefix("recur_")]

    def sample(steps: int, batch: int, hidden: int, drop: str = "", count: int = 1, **attrs: Any) -> Sample:
        every: dict[str, Array] = {
            "gates": normal(rng, steps, batch, form.gates * hidden, scale=1.0),
            "weight": normal(rng, count, form.gates * hidden, hidden, scale=0.4),
            "lengths": np.asarray(rng.integers(0, steps + 1, batch)).astype(np.int32),
            "h": normal(rng, 1, batch, hidden, scale=0.5), "c": normal(rng, 1, batch, hidden, scale=0.5),
            "peephole": normal(rng, 3 * hidden, scale=0.4), "bias": normal(rng, hidden, scale=0.4),
        }  # fmt: skip
        operands = tuple(None if name in drop.split() else every[name] for name in OPERANDS[op])
        return Sample(operands, attrs, 1e-4, 1e-5)

    found = [
        sample(3, 2, 5, drop="h c lengths peephole bias"),
        sample(1, 1, 1, drop="lengths"),
        sample(4, 3, 16),
        sample(5, 2, 18, reverse=True, count=2, index=1),
        sample(5, 4, 33, drop="lengths", reverse=True, clip=0.6),
        sample(2, 7, 40, drop="peephole bias"),
    ]
    if op == "recur_gru":
        found += [sample(3, 2, 19, linear_before_reset=True), sample(3, 5, 4, drop="bias", linear_before_reset=True)]
    if op == "recur_lstm":
        names = "Affine LeakyRelu ScaledTanh"
        found.append(sample(3, 2, 6, input_forget=True))
        found.append(sample(3, 2, 6, activations=names, parameters=(0.3, 0.4, 0.2, 0, 0.5, 0.7)))
    if op == "recur_rnn":
        found += [sample(2, 3, 4, drop="lengths", activations=name) for name in ACTIVATIONS]
    return found


# Entries.

OPERANDS: Mapping[str, tuple[str, ...]] = {
    "lstm": ("x", "w", "r", "b", "lengths", "h", "c", "p"),
    "gru": ("x", "w", "r", "b", "lengths", "h"),
    "rnn": ("x", "w", "r", "b", "lengths", "h"),
    "recur_lstm": ("gates", "weight", "lengths", "h", "c", "peephole"),
    "recur_gru": ("gates", "weight", "lengths", "h", "bias"),
    "recur_rnn": ("gates", "weight", "lengths", "h"),
    CELL: ("gates", "weight", "lengths", "h", "c", "extra"),
}
_NEEDED = ("x", "w", "r", "gates", "weight")
_SHARED = {
    "activations": AttrSpec("str", "", "ONNX's names in ONNX's order, by spaces; empty: the defaults"),
    "parameters": AttrSpec("floats", (), "alpha and beta of every activation; empty: the defaults"),
    "clip": AttrSpec("float", 0.0, "bound of the activations' arguments; 0: none"),
}
_OWN: Mapping[str, Mapping[str, AttrSpec]] = {
    "lstm": {"input_forget": AttrSpec("bool", False, "the forget gate is 1 - the input gate")},
    "gru": {"linear_before_reset": AttrSpec("bool", False, "the reset gate scales the sums, not the state")},
    "rnn": {},
}

for _name in FORMS:
    register(
        OpDef(
            name=_name, doc=f"A layer of {_name.upper()} units over time, in one or both directions, as in ONNX.",
            inputs=tuple(n if n in _NEEDED else f"{n}?" for n in OPERANDS[_name]), kind=Kind.RECUR,
            infer=partial(_infer_layer, _name), samples=partial(_layer_samples, _name),
            attrs={
                "direction": AttrSpec("str", "forward", "forward, reverse or bidirectional"),
                "batch_first": AttrSpec("bool", False, "the batch is the outermost axis, not time"),
                **_SHARED, **_OWN[_name],
            },
            reference=partial(_layer, _name), decompose=partial(_decompose, _name), cost_flops=2,
        )
    )  # fmt: skip
    register(
        OpDef(
            name=f"recur_{_name}",
            doc=f"The steps of one direction of {_name.upper()} units, given the input's share of the gates.",
            inputs=tuple(n if n in _NEEDED else f"{n}?" for n in OPERANDS[f"recur_{_name}"]), kind=Kind.RECUR,
            infer=partial(_infer_recurrence, f"recur_{_name}"), samples=partial(_recurrence_samples, f"recur_{_name}"),
            attrs={
                "reverse": AttrSpec("bool", False, "from the last step (of each row) to the first"),
                "index": AttrSpec("int", 0, "which of the weight's directions"),
                **_SHARED, **_OWN[_name],
            },
            reference=partial(_recur, f"recur_{_name}"), cost_flops=2,
        )
    )  # fmt: skip


def _cell_samples(rng: Any) -> list[Sample]:
    def sample(
        steps: int, batch: int, hidden: int, step: str, *, reset: str = "", drop: str = "", **counts: int
    ) -> Sample:
        """`counts`: inputs, sums, states, extra."""
        every: dict[str, Array | None] = {
            "gates": normal(rng, steps, batch, counts["inputs"] * hidden, scale=1.0),
            "weight": normal(rng, 1, counts["sums"] * hidden, hidden, scale=0.4),
            "h": normal(rng, 1, batch, hidden, scale=0.5), "c": normal(rng, 1, batch, hidden, scale=0.5),
            "extra": normal(rng, counts.pop("extra", 1) * hidden, scale=0.4),
        }  # fmt: skip
        gone = f"{drop} lengths{'' if counts['states'] == 2 else ' c'}".split()
        operands = tuple(None if name in gone else every[name] for name in OPERANDS[CELL])
        return Sample(operands, {"step": step, "reset": reset, **counts}, 1e-4, 1e-5)

    light = "x0 r0 add sigmoid : h0 mul 1.0 $0 sub x1 r1 e1 add add tanh mul add"
    two = "x0 r0 add tanh h1 h0 mul add : ; $0 h1 x1 mul sub"
    return [
        sample(4, 3, 16, "x0 r0 add tanh", drop="extra", inputs=1, sums=1, states=1),
        sample(3, 2, 5, "x0 r0 add tanh", drop="extra h", inputs=1, sums=1, states=1),
        sample(3, 5, 18, light, inputs=2, sums=2, states=1, extra=2),
        sample(4, 2, 17, two, inputs=2, sums=1, states=2, drop="extra"),
        sample(3, 4, 20, "x0 r1 add tanh h0 e0 mul add", reset="x1 r0 add sigmoid h0 mul", inputs=2, sums=2, states=1),
    ]


register(
    OpDef(
        name=CELL,
        doc="The steps of units of one layer whose arithmetic `step` says, over sums of the step before's state h0.",
        inputs=tuple(n if n in _NEEDED else f"{n}?" for n in OPERANDS[CELL]), kind=Kind.RECUR,
        infer=partial(_infer_recurrence, CELL), samples=_cell_samples,
        attrs={
            "step": AttrSpec("str", None, "the next states of a unit, over inputs x…, sums r…, states h…, extras e…"),
            "reset": AttrSpec("str", "", "what the weights of the last sum multiply; empty: h0, as for the others"),
            "inputs": AttrSpec("int", None, "numbers that the input gives each unit"),
            "sums": AttrSpec("int", None, "weighted sums of each unit"),
            "states": AttrSpec("int", 1, "1, or 2 with c"),
            "reverse": AttrSpec("bool", False, "from the last step to the first"),
            "index": AttrSpec("int", 0, "which of the weight's directions"),
        },
        reference=partial(_recur, CELL), cost_flops=2,
    )
)  # fmt: skip
