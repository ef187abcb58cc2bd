"""Calibration: what the tensors of a model look like on data, in one streaming pass of the compiled program.

The model is built for this machine's CPU with an `observe` behind each tensor that a product reads; a sample at a time
runs through it, so memory does not depend on how many there are. What was seen is a small file, keyed by the model's
products and by the data; files of several shards add up to the same whatever their order.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from aot import driver
from aot.array_files import archive_bytes, read_archive, read_file
from aot.backend.base import Backend
from aot.errors import AotError, OptionError, UnsupportedError
from aot.ir import Array, Graph
from aot.observations import Observation
from aot.options import CompileOptions
from aot.samples import Data, Sample, Samples, open_samples
from aot.target import Target
from aot.transforms.observe import RESULTS, grams, observed, taps
from aot.transforms.products import Product, products, products_digest

Tell = Callable[[str, str], None]

_FORMAT = "aot.calibration/1"
_AGAIN = "Write it with `aotc calibrate`."
_MODULUS = 1 << 256
_GRAM_BYTES = 1 << 30
"""What sums of x xᵀ may take at a time; more products are another pass over the data."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What was seen. graph: the digest of the model's products; data: that of the samples, whatever their order.

    taps: by the name of the first product that reads a tensor, what the tensor held.
    """

    graph: str
    data: str
    samples: int
    taps: Mapping[str, Observation]

    def __add__(self, other: Calibration) -> Calibration:
        if self.graph != other.graph or self._channels() != other._channels():
            raise OptionError("the calibrations are of different models", hint="Add up shards of one model only.")
        total = (int(self.data, 16) + int(other.data, 16)) % _MODULUS
        both = {name: seen + other.taps[name] for name, seen in self.taps.items()}
        return Calibration(self.graph, f"{total:064x}", self.samples + other.samples, both)

    def _channels(self) -> dict[str, int]:
        return {name: seen.low.size for name, seen in self.taps.items()}

    def to_bytes(self) -> bytes:
        """The file. Equal calibrations give equal bytes."""
        document = {
            "format": _FORMAT, "graph": self.graph, "data": self.data, "samples": self.samples,
            "taps": sorted(self.taps),
        }  # fmt: skip
        arrays = {
            f"{number}.{field}": array
            for number, name in enumerate(sorted(self.taps))
            for field, array in self.taps[name].to_arrays().items()
        }
        return archive_bytes(document, arrays)

    @staticmethod
    def from_bytes(data: bytes, where: str = "") -> Calibration:
        """Raises OptionError for anything that to_bytes did not write."""
        document, arrays = read_archive(data, _FORMAT, where)
        try:
            fields: list[dict[str, Array]] = [{} for _ in document["taps"]]
            for key, array in arrays.items():
                number, _, name = key.partition(".")
                fields[int(number)][name] = array
            seen = dict(zip(document["taps"], map(Observation.from_arrays, fields), strict=True))
            data_digest = f"{int(document['data'], 16) % _MODULUS:064x}"
            return Calibration(str(document["graph"]), data_digest, int(document["samples"]), seen)
        except (KeyError, ValueError, IndexError, TypeError, OverflowError) as error:
            raise OptionError(f"the calibration is damaged: {error}", where=where, hint=_AGAIN) from error

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_bytes())

    @staticmethod
    def open(path: Path) -> Calibration:
        """Raises OptionError where there is no calibration."""
        return Calibration.from_bytes(read_file(path, "a calibration", _AGAIN), str(path))

    def check(self, found: Sequence[Product]) -> None:
        """Raises OptionError where it is of other products."""
        channels = {name: group[0].channels for name, group in taps(found).items()}
        if self.graph != products_digest(found) or self._channels() != channels:
            raise OptionError(
                "the calibration is of another model: its products with weights differ",
                hint="Calibrate this model, with the same --dim, --set and --exact as the build has.",
            )


def calibrate(model: Any, data: Data, options: CompileOptions | None = None, tell: Tell | None = None) -> Calibration:
    """Runs a model on samples (the inputs of a run, by name) and records what its products read.

    `model` as aot.compile takes it, `data` as aot.samples.open_samples. Raises OptionError where there are no samples,
    and for one that does not fit.
    """
    options = plain(options or CompileOptions())
    cores = driver.core_graphs(model, options)
    if not cores.is_whole:
        raise in_branches(cores.graphs)
    (graph,) = cores.graphs
    samples = open_samples(data, graph.inputs, defaults=first_state(graph))
    return calibrate_graph(graph, products(graph), samples(), options, tell or (lambda stage, detail: None))


def no_product(graphs: Sequence[Graph]) -> OptionError:
    """The error for a model without a product that can be quantized."""
    kinds = {
        node.operands[1].type.dtype.name
        for graph in graphs
        for node in graph.nodes
        if node.op in ("conv", "matmul") and node.operands[1] in graph.consts
    } - {"f32"}
    return OptionError(
        "the model has no product of float32 with a constant weight: there is nothing to quantize",
        hint=f"Its products are of {', '.join(sorted(kinds))}: export it in float32."
        if kinds
        else "Build it as it is.",
    )


def no_sample() -> OptionError:
    """The error for data without a sample."""
    return OptionError("there is no sample in the data", hint="Give inputs as the model is used with.")


def in_branches(graphs: Sequence[Graph]) -> UnsupportedError:
    """The error for a model that is not one graph: values inside of branches and loops cannot be observed."""
    return UnsupportedError(
        "values inside of branches and loops that are decided in a run cannot be observed",
        where=f"a model of {len(graphs)} block{'s' if len(graphs) > 1 else ''}",
        hint="Fix the input that decides (--set NAME=VALUE), or choose a form that needs no data: int8-dynamic.",
    )


def calibrate_graph(
    graph: Graph, found: Sequence[Product], data: Iterable[Sample], options: CompileOptions, tell: Tell
) -> Calibration:
    """The same for a graph that has been through the passes that all targets share, and its products."""
    groups = taps(found)
    if not groups:
        raise no_product((graph,))
    names = list(groups)
    tell("build", f"{len(names)} tensors are observed")
    seen: dict[str, Observation] = {}
    digest, count = 0, 0
    with running(observed(graph, names, list(groups.values())), options) as model:
        for number, sample in enumerate(data):
            tell("calibrate", f"sample {number + 1}")
            results = run(model, sample, number)
            for name in names:
                here = Observation.of_run(*(np.asarray(results[f"{name} {what}"]) for what in RESULTS))
                seen[name] = here if name not in seen else seen[name] + here
            digest = (digest + sample_digest(sample)) % _MODULUS
            count += 1
    if not count:
        raise no_sample()
    return Calibration(products_digest(found), f"{digest:064x}", count, seen)


def gram_sums(
    graph: Graph, chosen: Sequence[Product], data: Samples, options: CompileOptions, tell: Tell
) -> Iterator[tuple[Product, Array]]:
    """For each matmul f64 [channels, channels], the sum of x xᵀ over the data, which is gone through again for more.

    Products that read one tensor share the sum.
    """
    groups = list(taps(chosen).items())
    while groups:
        part: list[tuple[str, tuple[Product, ...]]] = []
        room = _GRAM_BYTES
        while groups and (not part or room >= 12 * groups[0][1][0].channels ** 2):
            part.append(groups.pop(0))
            room -= 12 * part[-1][1][0].channels ** 2
        names = [name for name, _ in part]
        sums: dict[str, Array] = {}
        with running(grams(graph, names, [group[0] for _, group in part]), options) as model:
            for number, sample in enumerate(data()):
                tell("round", f"sample {number + 1}")
                results = run(model, sample, number)
                for name in names:
                    here = np.asarray(results[f"{name} gram"], np.float64)
                    sums[name] = here if name not in sums else sums[name] + here
        if not sums:
            raise no_sample()
        for name, group in part:
            for product in group:
                yield product, sums[name]


def first_state(graph: Graph) -> dict[str, Array]:
    """What the state of the model holds before its first run, where the model says it: samples may leave it out."""
    found: dict[str, Array] = {}
    for number, const in graph.initial:
        value = graph.inputs[number]
        shape = [extent for extent in value.type.shape if isinstance(extent, int)]
        if len(shape) == value.type.rank:
            found[value.name] = np.array(np.broadcast_to(const.array(), shape))  # one number may stand for all
    return found


def plain(options: CompileOptions) -> CompileOptions:
    """Options of a build for measurements on this machine: the same model, in f32, with nothing quantized."""
    return replace(
        options, targets=("cpu",), precision="fp32", io_dtype="model", quantization=None, variants=(),
        weights="embedded", dump_dir=None,
    )  # fmt: skip


def this_cpu(graph: Graph, options: CompileOptions) -> tuple[Backend, Target]:
    """The backend and the target that suit this machine's CPU best, of those that a default build has code for."""
    from aot.runtime import target_supported

    candidates = driver.resolve_targets(replace(options, targets=("cpu",)), quantized=driver.has_8bit_products(graph))
    return next((pair for pair in candidates if target_supported(pair[1].name)), candidates[-1])


@contextmanager
def running(graph: Graph, options: CompileOptions) -> Iterator[Any]:
    """The graph, built for this machine's CPU, as a model that runs. Its file, with the weights, is mapped."""
    from aot import runtime

    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        path = Path(folder) / "measured.aot"
        artifact, _ = driver.build_graph(graph, options, this_cpu(graph, options))
        artifact.save(path)
        del artifact
        with runtime.load(path, map_weights=True, verify_weights=False) as model:
            yield model


def run(model: Any, sample: Sample, number: int) -> Mapping[str, Array]:
    """The results of one run; raises OptionError, which names the sample, where its shapes do not fit."""
    wanted = {spec.name for spec in model.inputs}
    try:
        given = {name: np.asarray(array, order="C") for name, array in sample.items() if name in wanted}
        results: Mapping[str, Array] = model.run(given)
        return results
    except AotError as error:
        where = f"sample {number + 1} of the data" + (f", {error.where}" if error.where else "")
        raise OptionError(error.message, where=where, hint=error.hint) from error


def sample_digest(sample: Sample) -> int:
    """SHA-256 over names, types, shapes and bytes, as a number: digests of samples add up."""
    summary = hashlib.sha256()
    for name in sorted(sample):
        array = np.asarray(sample[name], order="C")
        summary.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return int.from_bytes(summary.digest(), "big")
