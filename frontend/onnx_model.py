"""Reads an ONNX file: protobuf, tensors, external data, attributes, order of nodes.

Everything that comes from the file is checked here before it is believed; each fault is a
ModelError that names the node or the tensor. Nothing is executed and no path leaves the model's folder.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]
from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto

from aot import dtypes
from aot.dtypes import DType
from aot.errors import ModelError, UnsupportedError
from aot.file_kinds import A_MODEL, ONNX, kind_of
from aot.ir import Array, Const, const_of

OLDEST_OPSET = 1
NEWEST_OPSET = onnx.defs.onnx_opset_version()

_DTYPES: dict[int, DType] = {
    TensorProto.BOOL: dtypes.BOOL,
    TensorProto.INT8: dtypes.I8,
    TensorProto.INT16: dtypes.I16,
    TensorProto.INT32: dtypes.I32,
    TensorProto.INT64: dtypes.I64,
    TensorProto.UINT8: dtypes.U8,
    TensorProto.UINT16: dtypes.U16,
    TensorProto.UINT32: dtypes.U32,
    TensorProto.UINT64: dtypes.U64,
    TensorProto.FLOAT16: dtypes.F16,
    TensorProto.BFLOAT16: dtypes.BF16,
    TensorProto.FLOAT: dtypes.F32,
    TensorProto.DOUBLE: dtypes.F64,
    TensorProto.FLOAT8E4M3FN: dtypes.F8E4M3,
    TensorProto.FLOAT8E5M2: dtypes.F8E5M2,
    TensorProto.INT4: dtypes.I4,
    TensorProto.UINT4: dtypes.U4,
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items()}

# The repeated field that holds a tensor's elements when it has no raw bytes, and its numpy type.
_TYPED_FIELDS: dict[int, tuple[str, str]] = {
    TensorProto.FLOAT: ("float_data", "float32"),
    TensorProto.DOUBLE: ("double_data", "float64"),
    TensorProto.INT64: ("int64_data", "int64"),
    TensorProto.UINT32: ("uint64_data", "uint32"),
    TensorProto.UINT64: ("uint64_data", "uint64"),
    TensorProto.INT32: ("int32_data", "int32"),
    TensorProto.INT16: ("int32_data", "int16"),
    TensorProto.INT8: ("int32_data", "int8"),
    TensorProto.UINT16: ("int32_data", "uint16"),
    TensorProto.UINT8: ("int32_data", "uint8"),
    TensorProto.BOOL: ("int32_data", "bool"),
    TensorProto.FLOAT16: ("int32_data", "uint16"),
    TensorProto.BFLOAT16: ("int32_data", "uint16"),
    TensorProto.FLOAT8E4M3FN: ("int32_data", "uint8"),
    TensorProto.FLOAT8E5M2: ("int32_data", "uint8"),
    TensorProto.INT4: ("int32_data", "uint8"),
    TensorProto.UINT4: ("int32_data", "uint8"),
}


@dataclass(frozen=True)
class OnnxModel:
    """A parsed model file. `folder` is where external data may lie (None: nowhere).

    `weights` keeps the constants of the graph's initializers once they were read and hashed.
    """

    proto: ModelProto
    folder: Path | None
    digest: str
    opsets: Mapping[str, int]
    functions: Mapping[tuple[str, str, str], FunctionProto] = field(default_factory=dict)
    weights: dict[str, Const] = field(default_factory=dict)

    @property
    def graph(self) -> GraphProto:
        return self.proto.graph


def dtype_of(number: int, where: str) -> DType:
    """The element type of an ONNX TensorProto.DataType number."""
    if number in _DTYPES:
        return _DTYPES[number]
    try:
        name = TensorProto.DataType.Name(number).lower()
    except ValueError:
        raise ModelError(f"{number} is not an ONNX element type", where=where) from None
    if number == TensorProto.UNDEFINED:
        raise ModelError("the element type is missing", where=where)
    raise UnsupportedError(f"element type {name} is not supported", where=where)


def onnx_number(dtype: DType) -> int:
    """The ONNX TensorProto.DataType number of an element type."""
    return int(_NUMBERS[dtype])


def read_model(source: str | os.PathLike[str] | bytes | ModelProto) -> OnnxModel:
    """Parses a file, bytes, or takes a ModelProto. Raises ModelError or UnsupportedError with the reason."""
    folder: Path | None = None
    where = ""
    if isinstance(source, ModelProto):
        proto = source
        data = source.SerializeToString(deterministic=True)
    else:
        if isinstance(source, bytes):
            data = source
        else:
            path = Path(source)
            where = str(source)
            try:
                data = path.read_bytes()
            except OSError as error:
                raise ModelError(f"cannot read the model: {error.strerror or error}", where=where) from error
            folder = path.resolve().parent
        proto = _parse(data, where)
    if not proto.HasField("graph"):
        raise _no_model(data, "not an ONNX model: it holds no graph", where)
    for text in _texts(proto):
        if not isinstance(text, str):  # protobuf hands out what is not UTF-8 as bytes
            raise ModelError(f"the name {text!r} is not UTF-8 text", where=where, hint="The file may be damaged.")
    opsets = _opsets(proto, where)
    functions: dict[tuple[str, str, str], FunctionProto] = {}
    for function in proto.functions:
        key = (plain_domain(function.domain), function.name, function.overload)
        if key in functions:
            raise ModelError(f"function {function.name!r} is defined twice", where=where)
        functions[key] = function
    digest = hashlib.sha256(data)
    for location in sorted(set(_external_locations(proto))):
        with _external_file(location, folder, "external data").open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return OnnxModel(proto, folder, digest.hexdigest(), opsets, functions)


def _parse(data: bytes, where: str) -> ModelProto:
    if not data:
        raise ModelError("the file is empty", where=where, hint="Export the model again.")
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise _no_model(data, f"not a readable ONNX model ({error})", where) from error
    return proto


def _no_model(data: bytes, reason: str, where: str) -> ModelError:
    """The error for bytes that are no ONNX model: what they are, or the reason where that is not known."""
    kind = kind_of(data)
    if kind is None or kind.name == ONNX:
        hint = "The file is damaged or truncated, or no ONNX model: fetch or export it again."
        return ModelError(reason, where=where, hint=hint)
    return ModelError(kind.instead_of(A_MODEL), where=where, hint=kind.model_remedy)


def _texts(proto: ModelProto) -> Iterator[Any]:
    """Every name in a model."""
    yield from (proto.producer_name, proto.producer_version)
    for entry in proto.opset_import:
        yield entry.domain
    yield from _graph_texts(proto.graph)
    for function in proto.functions:
        yield from (function.name, function.domain, function.overload)
        yield from (*function.input, *function.output, *function.attribute)
        for entry in function.opset_import:
            yield entry.domain
        yield from _node_texts(function.node)


def _graph_texts(graph: GraphProto) -> Iterator[Any]:
    yield graph.name
    for info in (*graph.input, *graph.output):
        yield info.name
        for dim in info.type.tensor_type.shape.dim:
            yield dim.dim_param
    for tensor in graph.initializer:
        yield tensor.name
        for entry in tensor.external_data:
            yield from (entry.key, entry.value)
    yield from _node_texts(graph.node)


def _node_texts(nodes: Iterable[NodeProto]) -> Iterator[Any]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload, *node.input, *node.output)
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)
            if attribute.HasField("g"):
                yield from _graph_texts(attribute.g)
            for graph in attribute.graphs:
                yield from _graph_texts(graph)


def _opsets(proto: ModelProto, where: str) -> dict[str, int]:
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = plain_domain(entry.domain)
        if domain in opsets and opsets[domain] != entry.version:
            raise ModelError(f"two versions of operator set {domain or 'ai.onnx'!r} are imported", where=where)
        opsets[domain] = entry.version
    if not opsets and proto.ir_version < 3:  # before there were operator sets to import
        opsets[""] = 1
    if not opsets:
        raise ModelError("the model imports no operator set", where=where, hint="Export the model again.")
    version = opsets.get("")
    if version is not None and version < 1:
        raise ModelError(f"{version} is not a version of the ONNX operator set", where=where)
    if version is not None and not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise UnsupportedError(
            f"operator set {version} is outside {OLDEST_OPSET}..{NEWEST_OPSET}",
            where=where,
            hint="Convert the model with onnx.version_converter, or export it with another opset.",
        )
    return opsets


def plain_domain(domain: str) -> str:
    """The domain, with the default one as ""."""
    return "" if domain == "ai.onnx" else domain


# Tensors


def tensor_const(tensor: TensorProto, folder: Path | None, where: str) -> Const:
    """A constant from an initializer or attribute tensor; external data is mapped, not read into memory."""
    name = tensor.name or where
    label = f"tensor {name!r}"
    dtype = dtype_of(tensor.data_type, label)
    shape = tuple(int(extent) for extent in tensor.dims)
    if any(extent < 0 for extent in shape):
        raise ModelError(f"shape {list(shape)} has a negative extent", where=label)
    if tensor.HasField("segment"):
        raise UnsupportedError("tensors in segments are not supported", where=label)
    elements = math.prod(shape)
    size_bytes = (elements * dtype.bits + 7) // 8
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external_const(tensor, dtype, shape, size_bytes, folder)
    if tensor.data_location != TensorProto.DEFAULT:
        raise ModelError(f"unknown data location {tensor.data_location}", where=label)
    if tensor.HasField("raw_data"):
        raw = tensor.raw_data
        if len(raw) != size_bytes:
            raise ModelError(f"{dtype}{list(shape)} needs {size_bytes} bytes, found {len(raw)}", where=label)
        return const_of(_from_bytes(np.frombuffer(raw, np.uint8), dtype, shape), tensor.name)
    return const_of(_typed_data(tensor, dtype, shape, label), tensor.name)


def _typed_data(tensor: TensorProto, dtype: DType, shape: tuple[int, ...], label: str) -> Array:
    field_name, carrier = _TYPED_FIELDS[tensor.data_type]
    items = getattr(tensor, field_name)
    elements = math.prod(shape)
    expected = (elements + 1) // 2 if dtype.bits == 4 else elements
    if len(items) != expected:
        raise ModelError(
            f"{dtype}{list(shape)} needs {expected} numbers in {field_name}, found {len(items)}", where=label
        )
    wide = np.array(items, dtype=np.uint64 if field_name == "uint64_data" else None).reshape(-1)
    with np.errstate(over="ignore"):
        narrow = wide.astype(carrier)
    if carrier == "bool" or dtype.numpy == narrow.dtype:
        return narrow.reshape(shape)
    return _from_bytes(narrow.view(np.uint8), dtype, shape)


def _from_bytes(raw: Array, dtype: DType, shape: tuple[int, ...]) -> Array:
    elements = math.prod(shape)
    if dtype.bits == 4:
        nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:elements]
        if dtype is dtypes.I4:
            nibbles = ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int8)
            return np.asarray(nibbles.astype(ml_dtypes.int4)).reshape(shape)
        return np.asarray(nibbles.astype(ml_dtypes.uint4)).reshape(shape)
    if dtype.is_bool:
        return np.asarray(raw != 0).reshape(shape)
    little = dtype.numpy.newbyteorder("<") if dtype.numpy.kind in "iuf" else dtype.numpy
    return np.asarray(raw.view(little)).reshape(shape)


def _external_const(
    tensor: TensorProto, dtype: DType, shape: tuple[int, ...], size_bytes: int, folder: Path | None
) -> Const:
    label = f"tensor {tensor.name!r}"
    entries: dict[str, str] = {}
    for entry in tensor.external_data:
        if entry.key in entries:  # readers differ in which one counts
            raise ModelError(f"external data {entry.key} is given twice", where=label)
        entries[entry.key] = entry.value
    path = _external_file(entries.get("location", ""), folder, label)
    offset = _external_number(entries, "offset", 0, label)
    length = _external_number(entries, "length", size_bytes, label)
    if length != size_bytes:
        raise ModelError(f"{dtype}{list(shape)} needs {size_bytes} bytes, its entry says {length}", where=label)
    file_bytes = path.stat().st_size
    if offset + length > file_bytes:
        text = f"bytes {offset}..{offset + length} are outside {path.name}, which has {file_bytes}"
        raise ModelError(text, where=label, hint="The external data file is truncated or belongs to another model.")
    if size_bytes == 0:
        return const_of(np.zeros(shape, dtype.numpy), tensor.name)
    mapped = np.memmap(path, dtype=np.uint8, mode="r", offset=offset, shape=(size_bytes,))
    array = _from_bytes(mapped, dtype, shape)
    digest = hashlib.sha256(f"{dtype.name}{shape}".encode())
    digest.update(mapped.data if dtype.bits >= 8 else array.tobytes())
    return Const(digest.hexdigest(), dtype, shape, tensor.name, lambda: array)


def _external_number(entries: Mapping[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"external data {key} {text[:40]!r} is not a non-negative number", where=label)
    return int(text)


def _external_file(location: str, folder: Path | None, label: str) -> Path:
    """The file of an external tensor. It must lie in the model's folder, reached without links or '..'."""
    if folder is None:
        raise ModelError("the tensor's data lies in another file", where=label, hint="Load the model by its path.")
    parts = location.replace("\\", "/").split("/")
    if not location or "\0" in location or Path(location).is_absolute() or ".." in parts or ":" in parts[0]:
        raise ModelError(f"external data path {location!r} leaves the model's folder", where=label)
    path = folder
    try:
        for part in parts:
            path = path / part
            if path.is_symlink():
                raise ModelError(f"external data path {location!r} goes through a link", where=label)
        if not path.is_file():
            hint = f"It belongs into {folder}."
            raise ModelError(f"external data file {location!r} is missing", where=label, hint=hint)
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ModelError(f"external data path {location!r} leaves the model's folder", where=label)
        if path.stat().st_nlink > 1:
            raise ModelError(
                f"external data file {location!r} has another name elsewhere (a hard link)",
                where=label,
                hint="Copy the file, and put the copy in its place.",
            )
    except OSError as error:
        text = f"external data file {location[:80]!r} cannot be read: {error.strerror or error}"
        raise ModelError(text, where=label) from error
    return path


def _external_locations(proto: ModelProto) -> Iterator[str]:
    """The files that any tensor of a model lies in: initializers and attributes, of bodies and functions too."""
    for tensor in (*_graph_tensors(proto.graph), *(t for f in proto.functions for t in _node_tensors(f.node))):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield from (entry.value for entry in tensor.external_data if entry.key == "location")


def _graph_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    yield from _node_tensors(graph.node)


def _node_tensors(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                yield from _graph_tensors(graph)


# Attributes

_ATTRIBUTE_TYPES: dict[int, str] = {
    AttributeProto.FLOAT: "float",
    AttributeProto.INT: "int",
    AttributeProto.STRING: "string",
    AttributeProto.TENSOR: "tensor",
    AttributeProto.GRAPH: "graph",
    AttributeProto.SPARSE_TENSOR: "sparse tensor",
    AttributeProto.TYPE_PROTO: "type",
    AttributeProto.FLOATS: "floats",
    AttributeProto.INTS: "ints",
    AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors",
    AttributeProto.GRAPHS: "graphs",
}


def attributes_of(node: NodeProto, given: Mapping[str, AttributeProto], where: str) -> dict[str, AttributeProto]:
    """A node's attributes by name; references to a function's attributes are replaced by `given` ones."""
    found: dict[str, AttributeProto] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise ModelError(f"attribute {attribute.name!r} is given twice", where=where)
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in given:
                found[attribute.name] = given[attribute.ref_attr_name]
            continue
        found[attribute.name] = attribute
    return found


def attribute_kind(attribute: AttributeProto) -> str:
    """The word for an attribute's type: float, int, string, tensor, ints, …"""
    return _ATTRIBUTE_TYPES.get(attribute.type, f"type {attribute.type}")


def attribute_value(attribute: AttributeProto, where: str) -> Any:
    """The Python value: numbers, str, tuples of them; a TensorProto or GraphProto as it is."""
    kind = attribute_kind(attribute)
    try:
        if kind == "string":
            return attribute.s.decode()
        if kind == "strings":
            return tuple(text.decode() for text in attribute.strings)
    except UnicodeDecodeError:
        raise ModelError(f"attribute {attribute.name!r} is not UTF-8 text", where=where) from None
    readers: dict[str, Callable[[], Any]] = {
        "float": lambda: float(attribute.f),
        "int": lambda: int(attribute.i),
        "tensor": lambda: attribute.t,
        "graph": lambda: attribute.g,
        "floats": lambda: tuple(attribute.floats),
        "ints": lambda: tuple(int(i) for i in attribute.ints),
    }
    if kind not in readers:
        raise UnsupportedError(f"attribute {attribute.name!r} is of kind {kind}", where=where)
    return readers[kind]()


# Order


def node_names(nodes: Sequence[NodeProto], prefix: str = "") -> list[str]:
    """What messages call each node: its name, or OpType_index."""
    return [prefix + (node.name or f"{node.op_type}_{index}") for index, node in enumerate(nodes)]


def _reads(node: NodeProto) -> Iterable[str]:
    yield from (name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            inner = {name for child in graph.node for name in child.output}
            inner.update(tensor.name for tensor in graph.initializer)
            inner.update(value.name for value in graph.input)
            reads = {name for child in graph.node for name in _reads(child)} | {value.name for value in graph.output}
            yield from reads - inner


def ordered(nodes: Sequence[NodeProto], names: Sequence[str], known: Iterable[str]) -> list[int]:
    """Node numbers in an order in which every tensor is made before it is read; the file's order where it is one.

    `known` are the tensors that exist before the first node. Raises ModelError for tensors that are
    made twice, never, or from themselves. Kahn's algorithm over the first-ready node.
    """
    available = set(known)
    maker: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in filter(None, node.output):
            if name in maker:
                raise ModelError(f"tensor {name!r} is also made by {names[maker[name]]}", where=names[index])
            if name in available:
                text = f"tensor {name!r} is also an input, an initializer, or one of a graph around this"
                raise ModelError(text, where=names[index])
            maker[name] = index
    waiting: list[set[int]] = []
    readers: dict[int, list[int]] = {}
    for index, node in enumerate(nodes):
        needs: set[int] = set()
        for name in _reads(node):
            if name in maker:
                needs.add(maker[name])
            elif name not in available:
                hint = "The model is damaged, or was cut out of a larger one."
                raise ModelError(
                    f"tensor {name!r} is made by no node, input or initializer", where=names[index], hint=hint
                )
        waiting.append(needs)
        for need in needs:
            readers.setdefault(need, []).append(index)
    import heapq

    ready = [index for index, needs in enumerate(waiting) if not needs]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waiting[reader].discard(index)
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [names[index] for index, needs in enumerate(waiting) if needs]
        raise ModelError(f"the graph has a cycle through {', '.join(stuck[:5])}", where=stuck[0])
    return order
