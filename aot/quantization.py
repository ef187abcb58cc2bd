"""What is quantized and how: the record that calibration and measurement write, and that a build takes in.

A record says for each product of the model with a weight (named by the user's node) which form it has, with which
scale. It is made once, with data; builds from it need none, and give the same bytes. It also holds the error ledger:
what each product costs in accuracy and what it saves in time, and why it was kept in float.

File: an archive of arrays (.npz) whose entry `record` is JSON text in UTF-8; nothing in it is executed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from aot.array_files import archive_bytes, read_archive, read_file
from aot.errors import OptionError
from aot.observations import OBSERVERS

Array = np.ndarray[Any, np.dtype[Any]]

FLOAT = "float"
STATIC = ("int8", "fp8")
DYNAMIC = ("int8-dynamic", "fp8-dynamic")
WEIGHTS = ("int8-weights", "int4-weights")
FORMS = (*STATIC, *DYNAMIC, *WEIGHTS)
"""How a product may be quantized: operands of 8 bits, the left one's scale known from data or found in every run; or
the weight alone."""

BLOCKS = (32, 64, 128)
ROUNDINGS = ("nearest", "gptq")
FORMAT = "aot.quantization/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """How to quantize, as the user asks.

    form: one of FORMS. observer: how a range follows from what was seen; percentile: for that observer, of each end.
    symmetric: ranges of activations are symmetric. per_channel: weights have a scale for each output.
    balance: channels of activations are scaled against their weights where that lessens the modelled error (Xiao et
    al., SmoothQuant, 2023). equalize: that scale moves into the layer before where it can (Nagel et al., 2019).
    bias_correction: the mean error of a weight's rounding is taken back (the same). block: rows that share a scale in
    weights of 4 bits, and 0 or rows in weights of 8. rounding: "gptq" minimizes the error on data (Frantar et al.,
    2022). float_nodes: parts of names of nodes that stay float.
    Raises OptionError for values that make no sense.
    """

    form: str = "int8"
    observer: str = "mse"
    percentile: float = 99.99
    symmetric: bool = False
    per_channel: bool = True
    balance: bool = True
    equalize: bool = True
    bias_correction: bool = True
    block: int = 0
    rounding: str = "nearest"
    float_nodes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, known in (("form", FORMS), ("observer", OBSERVERS), ("rounding", ROUNDINGS)):
            if getattr(self, name) not in known:
                raise OptionError(f"unknown {name} {getattr(self, name)!r}", hint=f"Known: {', '.join(known)}.")
        if not 50 < self.percentile <= 100:
            raise OptionError(f"a percentile lies above 50 and up to 100, not at {self.percentile}")
        block = self.block or (32 if self.form == "int4-weights" else 0)
        if self.form == "int4-weights" and block not in BLOCKS:
            raise OptionError(f"weights of 4 bits have blocks of {', '.join(map(str, BLOCKS))} rows, not {block}")
        if block and self.form not in WEIGHTS:
            raise OptionError(f"blocks are for {' and '.join(WEIGHTS)}, not for {self.form}")
        if self.rounding == "gptq" and self.form not in WEIGHTS:
            raise OptionError(f"rounding gptq is for {' and '.join(WEIGHTS)}, not for {self.form}")
        if block < 0:
            raise OptionError(f"a block has a positive number of rows, not {block}")
        object.__setattr__(self, "block", block)
        names = (self.float_nodes,) if isinstance(self.float_nodes, str) else self.float_nodes
        object.__setattr__(self, "float_nodes", tuple(names))

    @property
    def needs_data(self) -> bool:
        """Whether scales or roundings come from data."""
        return self.form in STATIC or self.rounding == "gptq"


@dataclass(frozen=True, slots=True, eq=False)
class NodeRecord:
    """One product: its form, and what the form needs.

    node: its name (see aot.transforms.products). form: FLOAT or one of FORMS. scale, zero_point: of the activation,
    static forms. balance: f32 [channels], what the activation is divided by and the weight multiplied; empty: nothing.
    means: f32 [channels] of the activation, for bias correction; empty: none. weight, weight_scale: a weight that was
    rounded with data, as matmul_packed holds it; empty: rounded to nearest in the build.
    """

    node: str
    form: str
    scale: float = 0.0
    zero_point: int = 0
    balance: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    means: Array = field(default_factory=lambda: np.zeros(0, np.float32))
    weight: Array = field(default_factory=lambda: np.zeros((0, 0), np.uint8))
    weight_scale: Array = field(default_factory=lambda: np.zeros((0, 0), np.float32))


_ARRAYS = ("balance", "means", "weight", "weight_scale")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A line of the ledger. Errors are relative ones of the outputs, on the data measured; times of one run: see
    Quantization.timed.

    alone: the error with this product quantized and nothing else. weight_hardness, input_hardness, input_loss: see
    aot.quantizer.hardness; what balance and scales for each output mend is seen there.
    running: with it and all that stand before it in the order of `alone`, the least first. weight_snr_db, input_snr_db:
    of the rounding itself. saturated: the share of the activation's numbers beyond the range. float_us, quantized_us: 0
    where not measured. reason: why it is float.
    """

    node: str
    op: str
    form: str
    alone: float | None = None
    weight_hardness: float | None = None
    input_hardness: float | None = None
    input_loss: float | None = None
    running: float | None = None
    weight_snr_db: float | None = None
    input_snr_db: float | None = None
    saturated: float | None = None
    float_us: float = 0.0
    quantized_us: float = 0.0
    weight_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A choice that was tried: how many products were quantized, the error, the time and the bytes of weights."""

    quantized: int
    error: float
    run_us: float
    weight_bytes: int
    chosen: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Quantization:
    """The record. graph: the digest of the model's products; data: that of the data, "" without; samples: how many.

    metric: what errors are, such as "relative error"; budget: the most that was allowed, None without a budget;
    final: the error of what was chosen. timed: whose times the ledger has.
    """

    method: Method
    nodes: tuple[NodeRecord, ...]
    graph: str
    data: str = ""
    samples: int = 0
    metric: str = ""
    budget: float | None = None
    final: float | None = None
    measured_samples: int = 0
    timed: str = ""
    ledger: tuple[Entry, ...] = ()
    points: tuple[Point, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def by_node(self) -> Mapping[str, NodeRecord]:
        return {record.node: record for record in self.nodes}

    @property
    def digest(self) -> str:
        """SHA-256, in hex, over all that changes a build: the method and the nodes."""
        summary = hashlib.sha256(json.dumps([FORMAT, self.graph, asdict(self.method)], sort_keys=True).encode())
        for record in self.nodes:
            parts = [record.node, record.form, repr(record.scale), record.zero_point]
            summary.update(json.dumps(parts).encode())
            for name in _ARRAYS:
                array = np.ascontiguousarray(getattr(record, name))
                summary.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
        return summary.hexdigest()

    def with_forms(self, forms: Mapping[str, str]) -> Quantization:
        """The record with other forms: of nodes by name."""
        nodes = tuple(replace(record, form=forms.get(record.node, record.form)) for record in self.nodes)
        return replace(self, nodes=nodes)

    def summary(self) -> dict[str, Any]:
        """The part that people read, as JSON values: all but the arrays. An artifact holds it."""
        nodes = [
            {name: getattr(record, name) for name in ("node", "form", "scale", "zero_point")}
            | {name: list(getattr(record, name).shape) for name in _ARRAYS if getattr(record, name).size}
            for record in self.nodes
        ]
        plain = {
            f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("method", "nodes", "ledger", "points")
        }
        return {
            "format": FORMAT, "method": asdict(self.method), "nodes": nodes,
            "ledger": [asdict(entry) for entry in self.ledger], "points": [asdict(point) for point in self.points],
            **plain,
        }  # fmt: skip

    def to_bytes(self) -> bytes:
        """The file. Equal records give equal bytes."""
        arrays = {
            f"{number}.{name}": getattr(record, name)
            for number, record in enumerate(self.nodes)
            for name in _ARRAYS
            if getattr(record, name).size
        }
        return archive_bytes(self.summary(), arrays)

    @staticmethod
    def from_bytes(data: bytes, where: str = "") -> Quantization:
        """Raises OptionError for anything that to_bytes did not write."""
        document, arrays = read_archive(data, FORMAT, where)
        try:
            document.pop("format")
            nodes = tuple(
                NodeRecord(
                    item["node"], item["form"], float(item["scale"]), int(item["zero_point"]),
                    **{name: arrays[f"{number}.{name}"] for name in _ARRAYS if name in item},
                )
                for number, item in enumerate(document.pop("nodes"))
            )  # fmt: skip
            method = document.pop("method")
            method["float_nodes"] = tuple(method["float_nodes"])
            for node in nodes:
                _check_node(node)
            ledger = tuple(Entry(**item) for item in document.pop("ledger"))
            points = tuple(Point(**item) for item in document.pop("points"))
            _check_fields((*ledger, *points))
            document["notes"] = tuple(document["notes"])
            found = Quantization(Method(**method), nodes, ledger=ledger, points=points, **document)
            _check_fields((found,))
            return found
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, OptionError) as error:
            raise OptionError(f"the record is damaged: {error}", where=where, hint=_AGAIN) from error

    def save(self, path: Path) -> None:
        path.write_bytes(self.to_bytes())

    @staticmethod
    def open(path: Path) -> Quantization:
        """Raises OptionError where there is no record."""
        return Quantization.from_bytes(read_file(path, "a quantization record", _AGAIN), str(path))


_AGAIN = "Write it again with `aotc quantize`."


_SHAPES = {"balance": (1, "f4"), "means": (1, "f4"), "weight": (2, "u1 i1"), "weight_scale": (2, "f4")}
"""Rank and types of the arrays of a node."""


def _check_node(node: NodeRecord) -> None:
    """Raises ValueError for what no record says."""
    if not isinstance(node.node, str) or node.form not in (FLOAT, *FORMS):
        raise ValueError(f"node {node.node!r} has form {node.form!r}")
    if not (0 <= node.scale < math.inf and 0 <= node.zero_point <= 255) or (node.form in STATIC and not node.scale):
        raise ValueError(f"node {node.node!r} has scale {node.scale} and zero point {node.zero_point}")
    for name, (rank, types) in _SHAPES.items():
        array = getattr(node, name)
        if array.ndim != rank or array.dtype.str[1:] not in types.split() or not np.isfinite(array).all():
            raise ValueError(f"{name} of node {node.node!r} is {array.dtype} of shape {array.shape}")
    if (node.balance <= 0).any() or (node.weight_scale <= 0).any():
        raise ValueError(f"a scale of node {node.node!r} is not positive")


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "float": (int, float), "int": (int,), "bool": (bool,), "float | None": (int, float, type(None)),
}  # fmt: skip


def _check_fields(items: Iterable[Any]) -> None:
    """Raises ValueError for fields of plain types that hold something else."""
    for item in items:
        for each in fields(item):
            value, kinds = getattr(item, each.name), _KINDS.get(str(each.type))
            if kinds is not None and not isinstance(value, kinds):
                raise ValueError(f"{each.name} is {value!r}")
