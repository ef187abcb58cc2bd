"""Converters of recurrent layers: LSTM, GRU, RNN."""

from __future__ import annotations

from typing import Any

from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ops.recur import ACTIVATIONS, FORMS, OPERANDS

_DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@onnx_op("LSTM")
def _lstm(c: Context) -> Result:
    return _layer(c, "lstm", input_forget=c.bool_attribute("input_forget", False))


@onnx_op("GRU")
def _gru(c: Context) -> Result:
    return _layer(c, "gru", linear_before_reset=c.bool_attribute("linear_before_reset", False))


@onnx_op("RNN")
def _rnn(c: Context) -> Result:
    return _layer(c, "rnn")


def _layer(c: Context, op: str, **attrs: Any) -> Result:
    """The layer op with the node's operands, all of them in the op's order: x, w, r, b, lengths, states, peepholes."""
    hidden = c.shape(2)[2] if c.rank(2) == 3 else None
    stated = c.int_attribute("hidden_size", -1)
    if stated != -1 and stated != hidden:
        c.fail(f"hidden_size is {stated}, the recurrence weights have shape {list(c.shape(2))}")
    direction, reverse = directions_of(c)
    activations, parameters = activations_of(c, op, len(reverse))
    operands = [c.optional(index) for index in range(len(OPERANDS[op]))]
    results = c.builder.op(
        op, *operands,
        direction=direction, activations=activations, parameters=parameters,
        clip=c.float_attribute("clip", 0.0), batch_first=c.bool_attribute("layout", False), **attrs,
    )  # fmt: skip
    return tuple(results[: c.outputs])


def directions_of(c: Context) -> tuple[str, tuple[bool, ...]]:
    """The directions of a layer: their name, and for each whether it runs backwards."""
    direction = c.text_attribute("direction", "forward").lower()
    if direction not in _DIRECTIONS:
        c.fail(f"direction {direction!r} is none of {', '.join(_DIRECTIONS)}")
    return direction, _DIRECTIONS[direction]


def activations_of(c: Context, op: str, directions: int) -> tuple[str, tuple[float, ...]]:
    """Names in ONNX's spelling, and alpha and beta of each; the lists of both hold only those that are taken."""
    known = {name.lower(): name for name in ACTIVATIONS}
    wanted = FORMS[op].activations * directions
    names = []
    for text in c.texts_attribute("activations", wanted):
        if text.lower() not in known:
            c.unsupported(f"activation {text!r} is none of {', '.join(ACTIVATIONS)}")
        names.append(known[text.lower()])
    if len(names) != len(wanted):
        c.fail(f"{len(wanted)} activations are needed, got {len(names)}")
    alphas = iter(c.floats_attribute("activation_alpha", ()))
    betas = iter(c.floats_attribute("activation_beta", ()))
    parameters: list[float] = []
    for name in names:
        defaults = ACTIVATIONS[name][1]
        parameters.append(next(alphas, defaults[0]) if defaults else 0.0)
        parameters.append(next(betas, defaults[1]) if len(defaults) > 1 else 0.0)
    return " ".join(names), tuple(parameters)
