"""What is an input of the artifact and what is a constant of it, where that is not as the model has it.

An input can be given its value when building (`values`): axes, counts and shapes that must be known by then,
or a switch that one deployment never turns. An initializer can be made an input (`overridable`): ONNX lets
callers override initializers that are inputs too, and has their values as defaults; an artifact keeps no
defaults, so an overridable initializer must be given at each run. Both happen in the model, before the import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, ValueInfoProto, helper, numpy_helper

from aot.errors import OptionError
from aot.frontend.onnx_model import OnnxModel, dtype_of

ALL = "all"


@dataclass(frozen=True)
class Edges:
    """`overridable`: initializers that become inputs, or "all" that are declared as inputs. `values` of inputs."""

    overridable: Sequence[str] = ()
    values: Mapping[str, Any] = field(default_factory=dict)


def with_edges(model: OnnxModel, edges: Edges) -> OnnxModel:
    """The model with constants in place of inputs and inputs in place of constants.

    Raises OptionError for a name that is neither, and for a value that its input cannot hold.
    """
    if not edges.overridable and not edges.values:
        return model
    proto = ModelProto()
    proto.CopyFrom(model.proto)
    graph = proto.graph
    declared = {info.name: info for info in graph.input}
    both = set(edges.overridable) & set(edges.values)
    if both:
        raise OptionError(f"{sorted(both)[0]!r} is to be given at each run, and to have a value when building")
    for name, value in edges.values.items():
        if name not in declared:
            raise OptionError(f"the model has no input {name!r} to set", hint=_known(name, declared, "inputs"))
        _remove(graph, name)
        graph.initializer.append(numpy_helper.from_array(_array(declared[name], value), name))
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    wanted = dict.fromkeys(edges.overridable)
    if ALL in wanted and ALL not in initializers:
        del wanted[ALL]
        wanted.update(dict.fromkeys(name for name in initializers if name in declared and name not in edges.values))
    for name in wanted:
        if name not in initializers:
            raise OptionError(
                f"the model has no initializer {name!r} to override",
                hint=_known(name, {key: 0 for key in initializers if key not in edges.values}, "initializers"),
            )
        tensor = initializers[name]
        if name not in declared:
            graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
        _remove(graph, name)
    return replace(model, proto=proto, weights={})


def _remove(graph: GraphProto, name: str) -> None:
    for number, tensor in enumerate(graph.initializer):
        if tensor.name == name:
            del graph.initializer[number]
            return


def _known(name: str, names: Mapping[str, Any], what: str) -> str:
    close = [known for known in names if known.lower() == name.lower()] or get_close_matches(name, list(names), 1)
    shown = ", ".join(list(names)[:8]) + (", …" if len(names) > 8 else "")
    return f"{f'Did you mean {close[0]!r}? ' if close else ''}Its {what} are {shown or 'none'}."


def _array(info: ValueInfoProto, value: Any) -> np.ndarray[Any, np.dtype[Any]]:
    """A value as the input declares it: element type, rank, and the sizes that are numbers."""
    where = f"input {info.name!r}"
    if not info.type.HasField("tensor_type"):
        raise OptionError("only tensors can be set", where=where)
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    try:
        given = np.asarray(value)
        with np.errstate(all="ignore"):
            array = given.astype(dtype.numpy)
            # A number that wraps around comes back as it was; its sign tells.
            exact = (
                bool(np.isfinite(array.astype(np.float64)).all())
                if dtype.is_float
                else np.array_equal(array.astype(given.dtype), given) and np.array_equal(array < 0, given < 0)
            )
    except (TypeError, ValueError, OverflowError) as error:
        raise OptionError(f"{value!r} is not a number or a regular list of numbers", where=where) from error
    if given.dtype.kind not in "biuf" or not exact:
        raise OptionError(f"{value!r} is not of the input's element type {dtype}", where=where)
    if not tensor.HasField("shape"):
        return array
    sizes = [dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in tensor.shape.dim]
    if array.ndim == 0 and all(size == 1 for size in sizes):
        return array.reshape([1] * len(sizes))
    fits = len(sizes) == array.ndim and all(s in (-1, n) for s, n in zip(sizes, array.shape, strict=True))
    if not fits:
        shape = [dim.dim_param or "?" if size < 0 else size for dim, size in zip(tensor.shape.dim, sizes, strict=True)]
        raise OptionError(
            f"the value has shape {list(array.shape)}, the input {'[' + ', '.join(map(str, shape)) + ']'}",
            where=where,
            hint="Write a number for rank 0, [1,2] for rank 1, [[1],[2]] for rank 2.",
        )
    return array
