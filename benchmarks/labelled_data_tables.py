"""Labelled tables, as scikit-learn's package has them, and small networks that are trained on them here."""

from __future__ import annotations

import gzip
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.labelled_data import Array, Maker, Pair, Run, Sample, Store, mean_of_first, same

_FOLDER = "sklearn/datasets/data"


def _digits(store: Store) -> tuple[Array, Array]:
    rows = _rows(gzip.decompress(store.member("scikit-learn", f"{_FOLDER}/digits.csv.gz")).decode(), 0)
    return rows[:, :-1], rows[:, -1]


def _plain(name: str) -> Callable[[Store], tuple[Array, Array]]:
    def read(store: Store) -> tuple[Array, Array]:
        rows = _rows(store.member("scikit-learn", f"{_FOLDER}/{name}.csv").decode(), 1)
        return rows[:, :-1], rows[:, -1]

    return read


def _diabetes(store: Store) -> tuple[Array, Array]:
    texts = (store.member("scikit-learn", f"{_FOLDER}/diabetes_{part}.csv.gz") for part in ("data_raw", "target"))
    x, y = (_rows(gzip.decompress(text).decode(), 0) for text in texts)
    return x, y[:, 0]


def _rows(text: str, skip: int) -> Array:
    lines = text.strip().split("\n")[skip:]
    return np.asarray([[float(v) for v in line.replace(",", " ").split()] for line in lines])


def _trained(x: Array, y: Array, outputs: int, width: int = 128, steps: int = 1500) -> list[tuple[Array, Array]]:
    """(weight [in, out], bias) of three layers with ReLU between, by Adam (Kingma and Ba, 2015) with weight decay.

    Two outputs and more: classes, by cross entropy; one: a number, by squares.
    """
    random = np.random.default_rng(5)
    sizes = (x.shape[1], width, width, outputs)
    pairs = list(itertools.pairwise(sizes))
    parameters = [random.standard_normal(p) * np.sqrt(2 / p[0]) for p in pairs] + [np.zeros(p[1]) for p in pairs]
    first, second = ([np.zeros_like(p) for p in parameters] for _ in range(2))
    for step in range(1, steps + 1):
        picked = random.integers(0, len(x), 64)
        held = [x[picked]]
        for n in range(3):
            z = held[-1] @ parameters[n] + parameters[3 + n]
            held.append(np.maximum(z, 0) if n < 2 else z)
        if outputs > 1:
            scaled = np.exp(held[-1] - held[-1].max(axis=1, keepdims=True))
            slope = scaled / scaled.sum(axis=1, keepdims=True)
            slope[np.arange(64), y[picked].astype(int)] -= 1
        else:
            slope = held[-1] - y[picked][:, None]
        slope /= 64
        slopes: list[Array] = [np.zeros(0)] * 6
        for n in (2, 1, 0):
            slopes[n] = held[n].T @ slope + 1e-3 * parameters[n]
            slopes[3 + n] = slope.sum(axis=0)
            slope = (slope @ parameters[n].T) * (held[n] > 0)
        for p, m, v, g in zip(parameters, first, second, slopes, strict=True):
            m += 0.1 * (g - m)
            v += 0.001 * (g * g - v)
            p -= 0.002 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return [(parameters[n].astype(np.float32), parameters[3 + n].astype(np.float32)) for n in range(3)]


def _write(layers: list[tuple[Array, Array]], path: Path) -> None:
    nodes, held, x = [], [], "x"
    for n, (weight, bias) in enumerate(layers):
        held += [numpy_helper.from_array(weight, f"weight_{n}"), numpy_helper.from_array(bias, f"bias_{n}")]
        last = n == len(layers) - 1
        nodes.append(helper.make_node("Gemm", [x, f"weight_{n}", f"bias_{n}"], ["y" if last else f"z_{n}"], f"fc_{n}"))
        if not last:
            x = f"a_{n}"
            nodes.append(helper.make_node("Relu", [f"z_{n}"], [x], f"relu_{n}"))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width])
        for name, width in (("x", layers[0][0].shape[0]), ("y", layers[-1][0].shape[1]))
    ]
    graph = helper.make_graph(nodes, path.stem, ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def _table(name: str, read: Callable[[Store], tuple[Array, Array]], classes: int) -> Maker:
    """A third of the rows is judged on, the rest trains; half of that calibrates."""

    def make(store: Store) -> Pair:
        x, y = read(store)
        order = np.random.default_rng(6).permutation(len(x))
        kept, judged = order[len(x) // 3 :], order[: len(x) // 3]
        mean, spread = x[kept].mean(axis=0), x[kept].std(axis=0) + 1e-9
        x = ((x - mean) / spread).astype(np.float32)
        scale = 1.0 if classes > 1 else float(y[kept].std())
        centre = 0.0 if classes > 1 else float(y[kept].mean())
        path = store.made / f"table_{name}.onnx"
        if not path.exists():
            store.made.mkdir(parents=True, exist_ok=True)
            steps = 1500 if classes > 1 else 80
            _write(_trained(x[kept], (y[kept] - centre) / scale, classes, steps=steps), path)
        batches: list[Sample] = [{"x": x[judged[at : at + 16]]} for at in range(0, len(judged), 16)]
        truth = y[judged]

        def predict(run: Run) -> Array:
            found = np.concatenate([np.asarray(run(sample)["y"], np.float64) for sample in batches])
            if classes > 1:
                answers = found.argmax(axis=1)
                return np.stack([answers == truth, answers], axis=1).astype(np.float64)
            return np.stack([found[:, 0] * scale + centre, truth], axis=1)

        def explained(rows: Array) -> float:
            return 1 - float(np.mean((rows[:, 0] - rows[:, 1]) ** 2) / np.var(rows[:, 1]))

        def apart(found: Array, plain: Array) -> dict[str, float]:
            return {"largest error, in deviations": float(np.abs(found[:, 0] - plain[:, 0]).max() / scale)}

        calibration: list[Sample] = [{"x": x[kept[at : at + 8]]} for at in range(0, len(kept) // 2, 8)]
        return Pair(
            name=f"table_{name}", model=path, metric="accuracy" if classes > 1 else "R²",
            calibration=calibration[:64], timed=batches[0], predict=predict,
            score=mean_of_first if classes > 1 else explained,
            agreement=same(1, "answers as float") if classes > 1 else apart,
        )  # fmt: skip

    return make


PAIRS: dict[str, Maker] = {
    "table_digits": _table("digits", _digits, 10),
    "table_wine": _table("wine", _plain("wine_data"), 3),
    "table_breast_cancer": _table("breast_cancer", _plain("breast_cancer"), 2),
    "table_diabetes": _table("diabetes", _diabetes, 1),
}
