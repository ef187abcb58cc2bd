"""The ONNX backend suite, as data: cases that ship with the onnx package, run through import and interpreter.

A run is (name, verdict, reason); verdict is "pass", "unsupported", "other" (sequences, optionals) or "fail".
All operands arrive at run time, as the suite gives them. Only where the import refuses a case are its small operands
(axes, scales, regions) bound as constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import load_model_tests

import aot
from aot.errors import TargetError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class SuiteCase:
    name: str
    model: onnx.ModelProto
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    relative: float
    absolute: float


def node_cases() -> Iterator[SuiteCase]:
    """The node tests and their forms expanded to function bodies; made in memory."""
    for case in collect_testcases(None):
        assert case.data_sets is not None and case.model is not None
        inputs, outputs = case.data_sets[0]
        yield SuiteCase(case.name, case.model, inputs, outputs, case.rtol, case.atol)


def file_cases() -> Iterator[SuiteCase]:
    """The multi-node and PyTorch tests; files of the onnx package."""
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for case in load_model_tests(kind=kind):
            folder = Path(case.model_dir or "")
            data = folder / "test_data_set_0"
            inputs, outputs = (
                [_tensor(data / f"{side}_{i}.pb") for i in range(len(list(data.glob(f"{side}_*.pb"))))]
                for side in ("input", "output")
            )
            model = onnx.load(folder / "model.onnx")
            yield SuiteCase(f"{kind}/{case.name}", model, inputs, outputs, case.rtol, case.atol)


def _tensor(path: Path) -> onnx.TensorProto:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return tensor


def _array(item: Any) -> Any:
    if isinstance(item, onnx.TensorProto):
        return numpy_helper.to_array(item) if item.data_type else None
    return np.asarray(item) if isinstance(item, np.ndarray | np.generic) else None


def _bound(model: onnx.ModelProto, feed: dict[str, Array], names: set[str]) -> onnx.ModelProto:
    """The model with some inputs as initializers."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    kept = [info for info in result.graph.input if info.name not in names]
    del result.graph.input[:]
    result.graph.input.extend(kept)
    result.graph.initializer.extend(numpy_helper.from_array(feed[name], name) for name in sorted(names))
    return result


Evaluate = Callable[[onnx.ModelProto, dict[str, Array]], list[Array]]


def interpreted(model: onnx.ModelProto, feed: dict[str, Array]) -> list[Array]:
    """The results of the imported graph, by the interpreter."""
    return evaluate(load(model), feed)


def compiled(cache: Path) -> Evaluate:
    """The results of the artifact."""

    def apply(model: onnx.ModelProto, feed: dict[str, Array]) -> list[Array]:
        data = aot.compile(model.SerializeToString(), ("cpu:x86-64-v3",), cache_dir=cache).data
        with aot.load(data) as loaded:
            known = {port.name for port in loaded.inputs}
            results = loaded.run({name: array for name, array in feed.items() if name in known})
        return [results[info.name] for info in model.graph.output]

    return apply


def run(case: SuiteCase, apply: Evaluate = interpreted) -> tuple[str, str]:
    """The verdict on one case, and the reason."""
    inputs, outputs = [_array(item) for item in case.inputs], [_array(item) for item in case.outputs]
    if any(item is None for item in (*inputs, *outputs)):
        return "other", "not tensors"
    weights = {tensor.name for tensor in case.model.graph.initializer}
    input_names = [info.name for info in case.model.graph.input if info.name not in weights]
    feed = dict(zip(input_names, inputs, strict=False))
    small = [name for name, array in feed.items() if array.size <= 64 and array.ndim <= 1]
    for names in (set(), set(small) - {next(iter(feed), "")}, set(small)):
        try:
            model = _bound(case.model, feed, names)
            load(model)
            break
        except UnsupportedError as error:
            if names == set(small):
                return "unsupported", str(error)
    try:
        got = apply(model, {name: array for name, array in feed.items() if name not in names})
        assert len(got) == len(outputs)
        for mine, theirs in zip(got, outputs, strict=True):
            assert (mine.dtype, mine.shape) == (theirs.dtype, theirs.shape)
            if theirs.dtype.kind in "biu":
                np.testing.assert_array_equal(mine, theirs)
            else:
                relative = max(case.relative, 2**-6 if theirs.dtype.name == "bfloat16" else 1e-3)
                wide = mine.astype(np.float64), theirs.astype(np.float64)
                np.testing.assert_allclose(*wide, rtol=relative, atol=max(case.absolute, 1e-7))
    except TargetError as error:
        return "unsupported", str(error)
    except Exception as error:
        return "fail", f"{type(error).__name__}: {error}"
    return "pass", ""
