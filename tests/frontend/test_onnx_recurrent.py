"""LSTM, GRU and RNN nodes with every attribute, against ONNX Runtime, and through kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import aot
from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend.models import FLOAT, check_against_onnxruntime, model_of, onnxruntime, single

INT32 = onnx.TensorProto.INT32

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
FUNCTIONS = {"LSTM": 3, "GRU": 2, "RNN": 1}
ROW_LENGTHS = (4, 0, 5)
ACTIVATIONS: Sequence[tuple[str, int]] = (
    ("Sigmoid", 0), ("Tanh", 0), ("Relu", 0), ("Softsign", 0), ("Softplus", 0),
    ("Affine", 2), ("LeakyRelu", 1), ("ThresholdedRelu", 1), ("ScaledTanh", 2), ("HardSigmoid", 2), ("Elu", 1),
)  # fmt: skip
"""ONNX's names, and how many of alpha and beta each takes."""


def operands_of(op: str, hidden: int, direction: str, without: str = "", seed: int = 0) -> list[Any]:
    """X, W, R, B, sequence_lens, initial_h, initial_c, P; those in `without` are omitted."""
    random = np.random.default_rng(seed)
    count = 2 if direction == "bidirectional" else 1
    gates, steps, batch, width = GATES[op], max(ROW_LENGTHS), len(ROW_LENGTHS), 5
    shapes = {
        "X": (steps, batch, width), "W": (count, gates * hidden, width), "R": (count, gates * hidden, hidden),
        "B": (count, 2 * gates * hidden), "sequence_lens": (batch,), "initial_h": (count, batch, hidden),
        "initial_c": (count, batch, hidden), "P": (count, 3 * hidden),
    }  # fmt: skip
    found: list[Any] = []
    for name, shape in shapes.items():
        array = random.normal(0, 0.6 if name == "X" else 0.25, shape).astype(np.float32)
        if name == "sequence_lens":
            array = np.array(ROW_LENGTHS, np.int32)
        if op == "LSTM" or name not in ("initial_c", "P"):
            found.append(None if name in without.split() else array)
    while found[-1] is None:
        found.pop()
    return found


def cases() -> Iterator[Any]:
    """Parameters (op, hidden, direction, omitted operands, attributes)."""
    for op in GATES:
        for direction in ("forward", "reverse", "bidirectional"):
            yield op, 4, direction, "", {}
            yield op, 3, direction, "sequence_lens P", {}
            yield op, 5, direction, "B sequence_lens initial_h initial_c P", {}
        for clip in (0.05, 0.2, 1.0):
            yield op, 4, "bidirectional", "", {"clip": clip}
        for name, parameters in ACTIVATIONS:
            values = [0.3, 0.6][:parameters]
            attrs: dict[str, Any] = {"activations": [name] * FUNCTIONS[op]}
            if values:
                attrs["activation_alpha"] = [values[0] + 0.1 * n for n in range(FUNCTIONS[op])]
            if len(values) > 1:
                attrs["activation_beta"] = [values[1] - 0.1 * n for n in range(FUNCTIONS[op])]
            yield op, 4, "forward", "sequence_lens", attrs
        yield op, 4, "forward", "sequence_lens", {"activations": ["LeakyRelu"] * FUNCTIONS[op]}
    mixed = ["HardSigmoid", "Tanh", "Elu", "Sigmoid", "ScaledTanh", "Relu"]
    mixed_attrs = {"activations": mixed, "activation_alpha": [0.3, 0.5, 0.9], "activation_beta": [0.4, 0.8]}
    yield "LSTM", 4, "bidirectional", "", mixed_attrs
    yield "LSTM", 4, "forward", "", {"input_forget": 1}
    yield "LSTM", 4, "bidirectional", "P", {"input_forget": 1, "clip": 0.9}
    for reset in (0, 1):
        for direction in ("forward", "bidirectional"):
            yield "GRU", 4, direction, "", {"linear_before_reset": reset}
            yield "GRU", 17, direction, "B sequence_lens", {"linear_before_reset": reset, "clip": 0.7}


@pytest.mark.parametrize(("op", "hidden", "direction", "without", "attrs"), list(cases()))
def test_against_onnxruntime(op: str, hidden: int, direction: str, without: str, attrs: dict[str, Any]) -> None:
    results = 3 if op == "LSTM" else 2
    given = operands_of(op, hidden, direction, without)
    model, feed = single(
        op, given, opset=14, results=results, constant=(1, 2, 3), direction=direction, hidden_size=hidden, **attrs
    )
    check_against_onnxruntime(model, feed, relative=1e-4)


def test_newest_operator_set() -> None:
    for op in GATES:
        given = operands_of(op, 3, "bidirectional")
        model, feed = single(op, given, opset=22, results=2, direction="bidirectional", hidden_size=3)
        check_against_onnxruntime(model, feed)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_batch_first(op: str, direction: str) -> None:
    """layout 1, which ONNX Runtime does not run, is layout 0 with axes exchanged."""
    results = 3 if op == "LSTM" else 2
    given = operands_of(op, 4, direction)
    model, feed = single(op, given, opset=14, results=results, direction=direction, hidden_size=4)
    y, *states = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    turned = [np.swapaxes(a, 0, 1) if n in (0, 5, 6) and a is not None else a for n, a in enumerate(given)]
    model, feed = single(op, turned, opset=14, results=results, direction=direction, hidden_size=4, layout=1)
    wanted = [np.transpose(y, (2, 0, 1, 3)), *(np.swapaxes(state, 0, 1) for state in states)]
    for got, want in zip(evaluate(load(model), feed), wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("attrs", "error", "message"),
    [
        ({"hidden_size": 4}, ModelError, "hidden_size is 4"),
        ({"hidden_size": 3, "direction": "sideways"}, ModelError, "sideways"),
        ({"hidden_size": 3, "activations": ["Tanh"]}, ModelError, "2 activations"),
        ({"hidden_size": 3, "activations": ["Tanh", "Mystery"]}, UnsupportedError, "Mystery"),
        ({"hidden_size": 3, "direction": "bidirectional"}, ModelError, "differ"),
    ],
)
def test_faults_are_named(attrs: dict[str, Any], error: type[Exception], message: str) -> None:
    model, _ = single("GRU", operands_of("GRU", 3, "forward"), opset=14, results=2, **attrs)
    with pytest.raises(error, match=message):
        load(model)


def _network() -> onnx.ModelProto:
    """Two layers in both directions over any number of steps and rows, as exporters write them; lengths at the end."""
    random = np.random.default_rng(5)
    nodes = [helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2])]
    constants = {"flat": np.array([0, 0, -1], np.int64)}
    below, width = "steps", 6
    for number, (op, hidden) in enumerate((("LSTM", 20), ("GRU", 16), ("RNN", 9))):
        names = [f"{part}{number}" for part in "WRB"]
        gates = GATES[op] * hidden
        for name, shape in zip(names, ((gates, width), (gates, hidden), (2 * gates,)), strict=True):
            constants[name] = random.normal(0, 0.3, (2, *shape)).astype(np.float32)
        more: dict[str, Any] = {"linear_before_reset": 1} if op == "GRU" else {}
        results = [f"y{number}", f"h{number}", f"c{number}"][: 3 if op == "LSTM" else 2]
        operands = [below, *names, "lengths"] if number == 2 else [below, *names]
        nodes += [
            helper.make_node(op, operands, results, hidden_size=hidden, direction="bidirectional", **more),
            helper.make_node("Transpose", [results[0]], [f"t{number}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"t{number}", "flat"], [f"f{number}"]),
        ]
        below, width = f"f{number}", 2 * hidden
    nodes.append(helper.make_node("Transpose", [below], ["out"], perm=[1, 0, 2]))
    inputs = {"x": (FLOAT, ("rows", "time", 6)), "lengths": (INT32, ("rows",))}
    return model_of(nodes, inputs, ["out", "h0", "c0", "h1", "h2"], opset=14, constants=constants)


@pytest.mark.parametrize("threads", [1, 2])
def test_network_of_any_size(threads: int, tmp_path: Path) -> None:
    model = _network()
    onnx.save(model, tmp_path / "network.onnx")
    built = aot.compile(tmp_path / "network.onnx")
    built.save(tmp_path / "network.aot")
    loaded = aot.load(tmp_path / "network.aot", threads=threads)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    random = np.random.default_rng(6)
    for rows, steps in ((1, 1), (1, 7), (3, 4), (26, 5)):
        feed = {
            "x": random.normal(0, 1, (rows, steps, 6)).astype(np.float32),
            "lengths": random.integers(1, steps + 1, rows).astype(np.int32),
        }
        got = loaded.run(feed)
        for output, want in zip(session.get_outputs(), session.run(None, feed), strict=True):
            np.testing.assert_allclose(got[output.name], want, rtol=1e-4, atol=1e-5, err_msg=f"{rows} x {steps}")
