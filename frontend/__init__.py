"""Reads models of other systems into a Graph. `load` takes any format that this version knows.

A dimension that a model leaves open becomes a Symbol whose name is the model's text for it as an
identifier ("batch size" becomes batch_size); `ImportInfo.symbols` gives the text back for messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from aot.errors import ModelError
from aot.frontend.bindings import DimOption
from aot.frontend.edges import Edges
from aot.frontend.imported import ImportInfo, Unsupported
from aot.frontend.onnx_import import check_onnx, import_onnx
from aot.frontend.torch_program import is_program
from aot.ir import Graph

__all__ = ["DimOption", "Edges", "ImportInfo", "Unsupported", "check", "load", "load_variants", "load_with_info"]


def load(source: Any, *, dims: Mapping[str, DimOption] | None = None) -> Graph:
    """The graph of a model: a path, the bytes of a file, an onnx.ModelProto, or a torch.export.ExportedProgram.

    `dims` maps a dimension's name, or "input.axis", to a size, a range (lo, hi) or another name.
    Raises ModelError for a malformed model, UnsupportedError listing everything that is
    unsupported, OptionError for `dims` that fit no dimension.
    """
    return load_with_info(source, dims=dims)[0]


def load_with_info(source: Any, *, dims: Mapping[str, DimOption] | None = None) -> tuple[Graph, ImportInfo]:
    """As `load`, with what is known of the source: digest, opset, symbol texts, warnings."""
    graphs, info = load_variants(source, dims=dims)
    return graphs[0][1], info


def load_variants(
    source: Any,
    *,
    dims: Mapping[str, DimOption] | None = None,
    edges: Edges | None = None,
    trust_pickle: bool = False,
) -> tuple[tuple[tuple[str, Graph], ...], ImportInfo]:
    """(name, graph) of every graph that the model stands for, to be tried in this order, and its source.

    More than one where a branch depends on what an input holds: `Graph.input_values` says for which numbers
    a graph is right. `load` gives the first. `edges` make inputs constants, and constants inputs.
    `trust_pickle`: weights of a .pt2 file that only a pickle holds are read, which can run code.
    """
    if _is_torch(source):
        from aot.frontend.torch_import import import_torch  # torch takes seconds to import

        return import_torch(source, dims, edges, trust_pickle=trust_pickle)
    return import_onnx(_checked(source), dims, edges)


def check(
    source: Any,
    *,
    dims: Mapping[str, DimOption] | None = None,
    edges: Edges | None = None,
    trust_pickle: bool = False,
) -> list[Unsupported]:
    """Everything in a model that cannot be compiled; empty when it can be."""
    if _is_torch(source):
        from aot.frontend.torch_import import check_torch

        return check_torch(source, dims, trust_pickle=trust_pickle)
    return check_onnx(_checked(source), dims, edges)


def _is_torch(source: Any) -> bool:
    """Whether the source is a torch.export program: the object, a .pt2 file, or the bytes of one."""
    if isinstance(source, str | os.PathLike):
        return str(os.fspath(source)).endswith(".pt2")
    return source[:4] == b"PK\3\4" if isinstance(source, bytes) else is_program(source)


def _checked(source: Any) -> Any:
    """The source, if some reader knows its kind."""
    if isinstance(source, str | os.PathLike):
        name = os.fspath(source)
        if str(name).endswith((".pt", ".pth")):
            hint = "Export the model: torch.export.save(torch.export.export(model, inputs), 'model.pt2')."
            raise ModelError("a file of weights, or of a pickled module, is no program", where=str(name), hint=hint)
    elif not isinstance(source, bytes) and type(source).__name__ != "ModelProto":
        known = "a path, bytes, an onnx.ModelProto or a torch.export.ExportedProgram"
        raise ModelError(f"a model is {known}, not {type(source).__name__}")
    return source
