"""Grows random ONNX models node by node, each node run at once by ONNX Runtime, so that shapes and values are known.

A `Grower` keeps every value at several settings of the dynamic dimensions, and a shadow of it: the same
value computed with a small error after every node. Where value and shadow part, the model itself is
ill-conditioned, and nothing can be asked of a compiler; a node that would do so is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
Dims = tuple[tuple[int, ...], ...]  # of each axis, the extent at every setting

onnxruntime.set_default_logger_severity(4)

NOISE = {"float16": 1e-3, "float32": 3e-6, "float64": 3e-6}  # relative, after every node
MOST_ELEMENTS = 40_000
MOST_MAGNITUDE = 3e3


@dataclass(frozen=True)
class Case:
    """A model, its inputs at every setting, and what it must give, with the shadow of it."""

    model: onnx.ModelProto
    feeds: list[dict[str, Array]]
    expected: list[dict[str, Array]]
    shadows: list[dict[str, Array]]


class Grower:
    """A model under construction. Values are known by name."""

    def __init__(self, seed: int, opset: int, settings: Sequence[Mapping[str, int]]) -> None:
        self.random = np.random.default_rng(seed)
        self.opset = opset
        self.settings = list(settings)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, tuple[str, tuple[int | str, ...]]] = {}
        self.constants: dict[str, Array] = {}
        self.values: dict[str, list[Array]] = {}
        self.shadows: dict[str, list[Array]] = {}
        self.order: list[str] = []  # inputs and results
        self.refused: dict[str, str] = {}
        self.counter = 0

    def name(self, prefix: str = "v") -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def input(self, shape: Sequence[int | str], dtype: str = "float32", name: str = "") -> str:
        name = name or self.name("in")
        self.inputs[name] = (dtype, tuple(shape))
        arrays = []
        for setting in self.settings:
            extents = [setting[extent] if isinstance(extent, str) else extent for extent in shape]
            arrays.append(self.sample(extents, dtype))
        self.values[name] = arrays
        self.shadows[name] = arrays
        self.order.append(name)
        return name

    def sample(self, shape: Sequence[int], dtype: str) -> Array:
        if dtype == "bool":
            return self.random.random(shape) < 0.5
        if dtype.startswith(("int", "uint")):
            low = 0 if dtype.startswith("u") else -5
            return self.random.integers(low, 8, shape).astype(dtype)
        array = self.random.standard_normal(shape)
        if self.random.random() < 0.3:
            array = np.round(array * 2) / 2  # ties and zeros
        return array.astype(dtype)

    def constant(self, array: Any, dtype: str = "") -> str:
        name = self.name("c")
        self.constants[name] = np.asarray(array, dtype or None)
        return name

    def weight(self, *shape: int, scale: float = 0.0, dtype: str = "float32") -> str:
        """A random constant; `scale` 0: such that a product keeps its size."""
        fan = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return self.constant((self.random.standard_normal(shape) * (scale or 1 / np.sqrt(max(fan, 1)))).astype(dtype))

    def get(self, name: str) -> list[Array]:
        if name in self.constants:
            return [self.constants[name]] * len(self.settings)
        return self.values[name]

    def dims(self, name: str) -> Dims:
        shapes = [array.shape for array in self.get(name)]
        return tuple(zip(*shapes, strict=True)) if shapes[0] else ()

    def rank(self, name: str) -> int:
        return self.get(name)[0].ndim

    def dtype(self, name: str) -> str:
        return str(self.get(name)[0].dtype)

    def fixed(self, name: str) -> tuple[int, ...]:
        """The extents; -1 for one that varies."""
        return tuple(extents[0] if len(set(extents)) == 1 else -1 for extents in self.dims(name))

    def add(self, op: str, inputs: Sequence[str], results: int = 1, *, domain: str = "", **attributes: Any) -> Any:
        """Appends a node; gives its result's name (or names), or None where ONNX Runtime or this class refuses it."""
        names = [self.name() for _ in range(results)]
        node = helper.make_node(op, list(inputs), names, name=f"{op}_{self.counter}", domain=domain, **attributes)
        try:
            exact, shadow = self._run(node)
        except Exception as error:
            self.refused[op] = str(error)[:300]
            return None
        if not all(self._sane(e, s) for es, ss in zip(exact, shadow, strict=True) for e, s in zip(es, ss, strict=True)):
            return None
        self.nodes.append(node)
        for index, result in enumerate(names):
            self.values[result] = [at[index] for at in exact]
            self.shadows[result] = [self._noisy(at[index]) for at in shadow]
            self.order.append(result)
        return names[0] if results == 1 else names

    def _run(self, node: onnx.NodeProto) -> tuple[list[list[Array]], list[list[Array]]]:
        used = dict.fromkeys(name for name in node.input if name)
        fed = [name for name in used if name not in self.constants]
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(self.get(name)[0].dtype), [None] * self.rank(name)
            )
            for name in fed
        ]
        constants = [numpy_helper.from_array(self.constants[name], name) for name in used if name in self.constants]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "one", infos, outputs, constants)
        session = session_of(helper.make_model(graph, **self.versions))
        exact, shadow = [], []
        for index in range(len(self.settings)):
            exact.append(session.run(None, {name: self.values[name][index] for name in fed}))
            shadow.append(session.run(None, {name: self.shadows[name][index] for name in fed}))
        return exact, shadow

    @property
    def versions(self) -> dict[str, Any]:
        return {"opset_imports": [helper.make_opsetid("", self.opset)], "ir_version": 10}

    def _noisy(self, array: Array) -> Array:
        noise = NOISE.get(str(array.dtype))
        if noise is None:
            return array
        signs = np.where(np.arange(array.size) * 2654435761 % 7 < 3, 1.0, -1.0).reshape(array.shape)
        return (array * (1 + noise * signs)).astype(array.dtype)

    def _sane(self, exact: Any, shadow: Any) -> bool:
        if not isinstance(exact, np.ndarray) or exact.size > MOST_ELEMENTS or exact.ndim > 6:
            return False
        if exact.shape != shadow.shape:
            return False
        if exact.dtype.kind != "f":
            return bool((exact == shadow).all()) and (
                exact.dtype.kind == "b" or np.abs(exact.astype(np.float64)).max(initial=0) < 1e9
            )
        size = np.abs(exact.astype(np.float64)).max(initial=0)
        if not np.isfinite(size) or size > MOST_MAGNITUDE:
            return False
        loose = 3e-2 if exact.dtype == np.float16 else 1e-3
        return bool(np.allclose(exact, shadow, rtol=loose, atol=loose * min(size, 1)))

    def finish(self, outputs: Sequence[str]) -> Case:
        """The model with these outputs, which may be inputs and constants too."""
        infos = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
            for name, (dtype, shape) in self.inputs.items()
        ]
        results = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(self.get(name)[0].dtype), [None] * self.rank(name)
            )
            for name in outputs
        ]
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        model = helper.make_model(helper.make_graph(self.nodes, "random", infos, results, constants), **self.versions)
        count = range(len(self.settings))
        return Case(
            model,
            [{name: self.values[name][index] for name in self.inputs} for index in count],
            [{name: self.get(name)[index] for name in outputs} for index in count],
            [
                {name: self.shadows[name][index] if name in self.shadows else self.constants[name] for name in outputs}
                for index in count
            ],
        )


def session_of(model: onnx.ModelProto) -> Any:
    """ONNX Runtime with one thread and no rewriting of the model."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


Step = Callable[[Grower], Any]
