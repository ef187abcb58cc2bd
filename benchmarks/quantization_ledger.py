"""The error ledger and calibration themselves: is a planted bad layer named first, and what memory calibration takes.

    python benchmarks/quantization_ledger.py plant [--count N]    # a bad layer in N random networks
    python benchmarks/quantization_ledger.py memory               # a network of 100 layers on 1,000 samples

`--write` puts what was found into benchmarks/results/quantization_ledger.json, beside what stands there.

`plant`: in turns a dense network, a convolutional one and one with residuals and layer normalization, each with random
weights, get one bad layer: a row of a weight (an input channel) times 100, a column (an output channel) times 100, or
an input with outliers: the normalization or the layer before makes three channels 100 times as large, and the weight's
rows are divided likewise, so that the network computes the same. It is quantized with default settings, built, and
`aotc explain --json` is asked for the first layer.

`memory`: the peak of resident memory above what stood before, of calibration with 1,000 samples and of one run of the
same float artifact, each in a process of its own; and the bytes of weights.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import aot

RESULTS = Path(__file__).parent / "results" / "quantization_ledger.json"
KINDS = ("row", "column", "outliers")
FACTOR = 100.0
LAYERS = 10
WIDTH = 48
MEMORY_LAYERS = 100
MEMORY_WIDTH = 256
MEMORY_ROWS = 512
Array = np.ndarray[Any, np.dtype[Any]]


class Network:
    """An ONNX model under construction, and where its weights are."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: dict[str, Array] = {}
        self.layers: list[str] = []  # names of nodes; the weight of NAME is NAME.w

    def add(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def dense(self, x: str, name: str, inputs: int, outputs: int) -> str:
        weight = self.random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
        self.weights[f"{name}.w"] = weight.astype(np.float32)
        self.layers.append(name)
        return self.add("MatMul", [x, f"{name}.w"], name)

    def conv(self, x: str, name: str, inputs: int, outputs: int) -> str:
        weight = self.random.standard_normal((outputs, inputs, 3, 3)) * np.sqrt(2 / (9 * inputs))
        self.weights[f"{name}.w"] = weight.astype(np.float32)
        self.layers.append(name)
        return self.add("Conv", [x, f"{name}.w"], name, pads=[1, 1, 1, 1])

    def amplify(self, layer: str, factor: Array) -> None:
        """Multiplies the channels that a layer reads: in the normalization or the layer that makes them."""
        makers = {node.output[0]: node for node in self.nodes}
        maker = makers[layer]
        while maker.op_type not in ("LayerNormalization",) and (maker.name == layer or maker.name not in self.layers):
            maker = makers[maker.input[0]]
        if maker.op_type == "LayerNormalization":
            self.weights[f"{maker.name}.scale"] = self.weights["scale"] * factor
            maker.input[1] = f"{maker.name}.scale"
            return
        weight = self.weights[f"{maker.name}.w"]
        self.weights[f"{maker.name}.w"] = weight * factor.reshape((-1, 1, 1, 1) if weight.ndim == 4 else (1, -1))

    def model(self, x_shape: list[Any], output: str) -> Any:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, x_shape)
        y = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        initializers = [numpy_helper.from_array(array, name) for name, array in self.weights.items()]
        graph = helper.make_graph(self.nodes, "network", [x], [y], initializers)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def dense_network(network: Network, layers: int = LAYERS, width: int = WIDTH) -> tuple[list[Any], str]:
    x = "x"
    for number in range(layers):
        x = network.add("Relu", [network.dense(x, f"dense{number}", width, width)], f"relu{number}")
    return ["N", width], network.dense(x, "head", width, 16)


def conv_network(network: Network) -> tuple[list[Any], str]:
    x, width = "x", 16
    for number in range(LAYERS):
        x = network.add("Relu", [network.conv(x, f"conv{number}", width, width)], f"relu{number}")
    x = network.add("GlobalAveragePool", [x], "pool")
    return ["N", width, 10, 10], network.dense(network.add("Flatten", [x], "flat"), "head", width, 16)


def residual_network(network: Network) -> tuple[list[Any], str]:
    x = "x"
    network.weights["scale"] = np.ones(WIDTH, np.float32)
    for number in range(LAYERS // 2):
        normal = network.add("LayerNormalization", [x, "scale"], f"norm{number}", axis=-1)
        inner = network.add("Relu", [network.dense(normal, f"up{number}", WIDTH, 2 * WIDTH)], f"relu{number}")
        x = network.add("Add", [x, network.dense(inner, f"down{number}", 2 * WIDTH, WIDTH)], f"sum{number}")
    return ["N", WIDTH], network.dense(x, "head", WIDTH, 16)


def planted(seed: int) -> tuple[Any, str, str, list[dict[str, Array]]]:
    """A model with one bad layer, the layer's name, the kind of fault, and data."""
    network = Network(seed)
    shape, output = (dense_network, conv_network, residual_network)[seed % 3](network)
    kind = KINDS[seed // 3 % len(KINDS)]
    random = np.random.default_rng([seed, 1])
    layer = network.layers[int(random.integers(1, len(network.layers) - 1))]
    weight = network.weights[f"{layer}.w"]
    axis = {"row": 0, "column": 1, "outliers": 0}[kind]
    if weight.ndim == 4:
        axis = 1 - axis
    if kind == "outliers":
        chosen = random.choice(weight.shape[axis], 3, replace=False)
        factor = np.ones(weight.shape[axis], np.float32)
        factor[chosen] = FACTOR
        network.weights[f"{layer}.w"] = weight / factor.reshape([-1 if n == axis else 1 for n in range(weight.ndim)])
        network.amplify(layer, factor)
    else:
        place_of: list[Any] = [slice(None)] * weight.ndim
        place_of[axis] = int(random.integers(weight.shape[axis]))
        weight[tuple(place_of)] *= FACTOR
    sizes = [16 if extent == "N" else extent for extent in shape]
    data = [{"x": random.standard_normal(sizes).astype(np.float32)} for _ in range(4)]
    return network.model(shape, output), layer, kind, data


def plant(count: int) -> dict[str, Any]:
    """How often the planted layer is the first that `aotc explain` names."""
    from aot.quantize import quantize

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "planted.aot"
        for seed in range(count):
            model, layer, kind, data = planted(seed)
            record = quantize(model, "int8", data=data, allow_slower=True)
            aot.compile(model, "cpu", quantize=record).save(path)
            command = [sys.executable, "-m", "aot.cli", "explain", str(path), "--json"]
            told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            names = [entry["node"] for entry in told["ledger"]]
            rows.append({"seed": seed, "kind": kind, "layer": layer, "first": names[0], "place": names.index(layer)})
            print(rows[-1], flush=True)
    hits = {kind: [row["place"] == 0 for row in rows if row["kind"] == kind] for kind in KINDS}
    return {
        "count": count, "first": sum(row["place"] == 0 for row in rows), "rows": rows,
        "by_kind": {kind: f"{sum(each)} of {len(each)}" for kind, each in hits.items()},
    }  # fmt: skip


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def memory_child(what: str, path: Path) -> dict[str, Any]:
    """In a process of its own: the peak of one run, or of calibration, above what stood before."""
    from aot import driver, runtime
    from aot.calibrate import calibrate_graph, plain
    from aot.options import CompileOptions
    from aot.transforms.products import products

    options = plain(CompileOptions())
    rows = np.random.default_rng(2).standard_normal((MEMORY_ROWS, MEMORY_WIDTH)).astype(np.float32)
    graph = driver.core_graphs(str(path), options).graphs[0]
    if what == "run":
        artifact, _ = driver.build_graph(graph, options, driver.resolve_targets(options)[0])
        artifact.save(path.with_suffix(".aot"))
        return {}
    if what == "loaded":
        before = peak_bytes()
        with runtime.load(path.with_suffix(".aot"), map_weights=True) as model:
            model.run({"x": rows})
        return {"before": before, "peak": peak_bytes()}

    def samples(count: int) -> Iterator[dict[str, Array]]:
        for _ in range(count):
            yield {"x": rows}

    count = int(what)
    calibrate_graph(graph, products(graph), samples(count), options, lambda stage, detail: None)
    return {"peak": peak_bytes()}


def memory() -> dict[str, Any]:
    """See the module."""
    network = Network(1)
    shape, output = dense_network(network, MEMORY_LAYERS, MEMORY_WIDTH)
    weights = sum(array.nbytes for array in network.weights.values())
    found: dict[str, Any] = {"layers": MEMORY_LAYERS, "rows": MEMORY_ROWS, "weights_bytes": weights}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        onnx.save(network.model(shape, output), path)
        for what in ("run", "loaded", "1", "1000"):
            command = [sys.executable, __file__, "child", what, str(path)]
            found[what] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    one = found["loaded"]["peak"] - found["loaded"]["before"]
    found["one_run_bytes"] = one
    found["growth_bytes"] = found["1000"]["peak"] - found["1"]["peak"]
    return found


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("plant", "memory", "child"))
    parser.add_argument("more", nargs="*")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--write", action="store_true", help="also into benchmarks/results")
    chosen = parser.parse_args()
    if chosen.what == "child":
        print(json.dumps(memory_child(chosen.more[0], Path(chosen.more[1]))))
        return 0
    found = plant(chosen.count) if chosen.what == "plant" else memory()
    print(json.dumps({key: value for key, value in found.items() if key != "rows"}, indent=1))
    if chosen.write:
        results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        results[chosen.what] = {"date": str(date.today()), "aotc": aot.__version__, "numpy": np.__version__, **found}
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
