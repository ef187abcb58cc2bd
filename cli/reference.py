"""ONNX Runtime as the reference: a session with a stated number of threads, and the comparison with it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from aot.cli.common import check_file
from aot.errors import AotError, ModelError, OptionError
from aot.file_kinds import ARTIFACT, ONNX, FileKind, kind_of
from aot.ir import Array

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.frontend import Edges
    from aot.program import Program


def edges_of(artifact: Artifact) -> Edges:
    """Which inputs of its model an artifact has as constants (--set), and which constants as inputs (--override)."""
    from aot.frontend import Edges

    options = artifact.meta.get("options", {})
    return Edges(tuple(options.get("overridable", ())), dict(options.get("values", ())))


def check_model(path: Path) -> FileKind | None:
    """What the model to compare with is, None where that cannot be told; raises ModelError for what is no model."""
    check_file(path, "a model to compare with")
    kind = kind_of(path)
    if kind is not None and not kind.is_model:
        hint = kind.model_remedy
        if kind.name == ARTIFACT:
            hint = "Compare with the model that it was built from; two artifacts: aotc diff."
        raise ModelError(kind.instead_of("a model to compare with"), where=str(path), hint=hint)
    return kind


class ModelSource(Protocol):
    """A model that an artifact is compared with: its file, and the names of its inputs."""

    path: Path
    inputs: list[str]


def check_same_inputs(reference: ModelSource, artifact: Artifact, program: Program, given: Collection[str]) -> None:
    """Raises OptionError where the model needs inputs that neither the artifact has nor are given."""
    ports = [port.name for port in program.inputs]
    missing = [name for name in reference.inputs if name not in ports and name not in given]
    if missing:
        raise OptionError(
            f"the model also needs the inputs {', '.join(map(repr, missing))}; the artifact's inputs are "
            f"{', '.join(map(repr, ports)) or 'none'}",
            where=str(reference.path),
            hint=f"Compare with the model that the artifact was built from. {another_file(reference.path, artifact)}",
        )


def another_file(path: Path, artifact: Artifact) -> str:
    """A sentence where the artifact was built from another file, or from a model in memory; else ""."""
    built = artifact.meta.get("source", {}).get("digest", "")
    try:
        found = source_digest(path)
    except AotError:
        return ""
    if not built or found == built:
        return ""
    digests = f"the SHA-256 of that begins with {built[:8]}, of {path.name} with {found[:8]}"
    return f"It was built from another file, or from a model in memory: {digests}."


def source_digest(path: Path) -> str:
    """The digest that an artifact of the model keeps: of the file, and of ONNX's external data."""
    from aot.frontend.onnx_model import read_model

    kind = kind_of(path)
    return (
        hashlib.sha256(path.read_bytes()).hexdigest() if kind is None or kind.name != ONNX else read_model(path).digest
    )


class Reference:
    """A model in ONNX Runtime on the CPU, with the inputs that an artifact of it has.

    `defaults`: the values in the model of what the artifact has as inputs and the model as initializers.
    `inner`: after a run, the tensors that `wanted` names, as far as the model has them.
    """

    def __init__(self, path: Path, threads: int, edges: Edges | None = None, wanted: Collection[str] = ()) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise OptionError(
                "comparing needs ONNX Runtime, which is not installed", hint="pip install onnxruntime"
            ) from error
        self.path = path
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        self.defaults: dict[str, Array] = {}
        self.inner: dict[str, Array] = {}
        self._added: set[str] = set()  # outputs that the model does not have
        source: str | bytes = str(path)
        has_edges = edges is not None and bool(edges.overridable or edges.values)
        if wanted or has_edges:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
            source = self._changed(path, edges if has_edges else None, wanted)
        self.name = f"onnxruntime {onnxruntime.__version__}"
        try:
            self._session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its errors have no common base class
            raise ModelError(f"ONNX Runtime cannot load it: {_first_line(error)}", where=str(path)) from error
        self.inputs = [item.name for item in self._session.get_inputs()]
        self._floats = {item.name for item in self._session.get_inputs() if item.type == "tensor(float)"}
        self.outputs = [item.name for item in self._session.get_outputs()]

    def _changed(self, path: Path, edges: Edges | None, wanted: Collection[str]) -> bytes:
        """The model's bytes with its edges moved and with more outputs; keeps the default values."""
        from aot.frontend.edges import with_edges
        from aot.frontend.onnx_model import read_model, tensor_const

        model = read_model(path)
        changed = model.proto
        if edges is not None:
            changed = with_edges(model, edges).proto
            kept = {tensor.name for tensor in changed.graph.initializer}
            for tensor in model.graph.initializer:
                if tensor.name not in kept:
                    self.defaults[tensor.name] = tensor_const(tensor, model.folder, tensor.name).array()
        known = {output.name for output in changed.graph.output}
        made = [name for node in changed.graph.node for name in node.output]
        for name in dict.fromkeys(name for name in made if name in wanted and name not in known):
            changed.graph.output.add().name = name
            self._added.add(name)
        return bytes(changed.SerializeToString())

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        missing = [name for name in self.inputs if name not in feed]
        if missing:
            raise OptionError(f"the model also needs the inputs {', '.join(missing)}", where=str(self.path))
        try:
            given = {name: widened(feed[name]) if name in self._floats else feed[name] for name in self.inputs}
            results = self._session.run(None, given)
        except Exception as error:
            reason = f"ONNX Runtime cannot run the model on these inputs: {_first_line(error)}"
            hint = "If they are random, give those that must fit with --input, sizes with --dim, and add --random."
            raise ModelError(reason, hint=hint) from error
        found: dict[str, Array] = {}
        self.inner = {}
        for name, value in zip(self.outputs, results, strict=True):
            if name in self._added:
                if isinstance(value, np.ndarray):
                    self.inner[name] = value
            elif isinstance(value, list) and all(isinstance(item, np.ndarray) for item in value):
                found |= {f"{name}_{number}": item for number, item in enumerate(value)}  # as the import names them
            else:
                found[name] = _tensor(value)
        return found

    def timed(self, feed: Mapping[str, Array]) -> tuple[Callable[[], Any], Callable[[], None]]:
        """What runs the model on these inputs, and what puts back its state after it: a session has none."""
        return lambda: self.run(feed), lambda: None


def widened(array: Any) -> Any:
    """An array of 16-bit floats as float32; others as they are."""
    return array.astype(np.float32) if np.asarray(array).dtype.name in _HALVES else array


def _tensor(value: Any) -> Any:
    """An output as an artifact gives it: a sequence of maps (ZipMap) is the matrix of their values."""
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return np.array([list(item.values()) for item in value], np.float32)
    return value


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


TOLERANCES: Mapping[str, tuple[float, float]] = {
    "fp32": (1e-3, 1e-4),
    "tf32": (1e-2, 2e-3),
    "fp16": (1e-2, 1e-2),
    "bf16": (5e-2, 5e-2),
}
"""(rtol, atol) by precision. Below fp32 errors go with the size of what was added, not of a result near zero: atol is
then a share of the output's largest element."""

_HALVES = {"float16": "fp16", "bfloat16": "bf16"}


def tolerance(
    precision: str, found: Any, expected: Any, rtol: float | None = None, atol: float | None = None
) -> tuple[float, float]:
    """(rtol, atol) of an output: as asked, else from the program's precision and the element type that came out."""
    given_as = "fp32" if found is None else _HALVES.get(np.asarray(found).dtype.name, "fp32")
    precision = max(precision, given_as, key=lambda name: TOLERANCES[name])
    relative, absolute = TOLERANCES[precision]
    if precision != "fp32":
        sizes = np.abs(np.asarray(expected, np.float64)) if np.asarray(expected).dtype.kind == "f" else np.zeros(0)
        absolute *= float(np.max(sizes, initial=0.0, where=np.isfinite(sizes))) or 1.0
    return relative if rtol is None else rtol, absolute if atol is None else atol


@dataclass(frozen=True, slots=True)
class Comparison:
    """One output against the reference. `worst` is the largest |difference| / (atol + rtol*|expected|).

    `relative_error` is over elements whose expected value is above atol. `wrong` counts elements
    beyond the tolerance; `reason` says why there was nothing to compare.
    """

    name: str
    shape: tuple[int, ...]
    max_error: float
    relative_error: float
    worst: float
    wrong: int
    elements: int
    reason: str = ""
    rtol: float = 0.0
    atol: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.reason and self.wrong == 0


def compare(name: str, found: Any, expected: Any, rtol: float, atol: float) -> Comparison:
    """Compares two arrays: floats within the tolerance (NaN equals NaN, infinities their like), others exactly."""
    if found is None:
        return Comparison(name, (), 0.0, 0.0, 0.0, 0, 0, "the artifact has no such output", rtol, atol)
    found, expected = np.asarray(found), np.asarray(expected)
    shape = tuple(map(int, found.shape))
    if found.shape != expected.shape or found.dtype != expected.dtype:
        reason = f"{found.dtype}{list(found.shape)}, expected {expected.dtype}{list(expected.shape)}"
        return Comparison(name, shape, 0.0, 0.0, 0.0, 0, int(found.size), reason, rtol, atol)
    if not found.size:
        return Comparison(name, shape, 0.0, 0.0, 0.0, 0, 0, "", rtol, atol)
    exact = found.dtype.kind in "biu"
    with np.errstate(all="ignore"):
        if exact:
            same = found == expected
            difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
            limit = np.zeros(())
        else:
            wide, wanted = found.astype(np.float64), expected.astype(np.float64)
            same = (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
            difference = np.where(same, 0.0, np.abs(wide - wanted))
            difference = np.where(np.isnan(difference), np.inf, difference)
            limit = atol + rtol * np.abs(np.where(np.isfinite(wanted), wanted, 0.0))
        size = np.abs(expected.astype(np.float64))
        large = np.isfinite(size) & (size > atol)
        relative = float(np.max(np.where(large, difference / np.where(large, size, 1.0), 0.0)))
        ratio = np.where(same, 0.0, difference / limit)
    wrong = int(np.count_nonzero(~same)) if exact else int(np.count_nonzero(~same & ~(difference <= limit)))
    errors = float(np.max(difference)), relative, float(np.max(ratio))
    return Comparison(name, shape, *errors, wrong, int(found.size), "", rtol, atol)


def compare_outputs(
    found: Mapping[str, Any],
    expected: Mapping[str, Any],
    precision: str,
    rtol: float | None = None,
    atol: float | None = None,
) -> list[Comparison]:
    """Every output within its tolerance; what --io-dtype made 16 bits wide counts as the float32 it stands for."""
    made = []
    for name, wanted in expected.items():
        got = found.get(name)
        relative, absolute = tolerance(precision, got, wanted, rtol, atol)
        is_float32 = getattr(wanted, "dtype", None) == "float32"
        made.append(compare(name, widened(got) if is_float32 else got, wanted, relative, absolute))
    return made
