"""Reads models of other systems into a Graph. `load` takes any format that this version knows.

A dimension that a model leaves open becomes a Symbol whose name is the model's text for it as an
identifier ("batch size" becomes batch_size); `ImportInfo.symbols` gives the text back for messages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from aot.errors import ModelError
from aot.file_kinds import A_MODEL, PROGRAM, kind_of
from aot.frontend.bindings import DimOption
from aot.frontend.edges import Edges
from aot.frontend.imported import ImportInfo, Unsupported
from aot.frontend.onnx_graphs import check_onnx, import_onnx
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
    return import_onnx(source, dims, edges)


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
    return check_onnx(source, dims, edges)


def _is_torch(source: Any) -> bool:
    """Whether the source is a torch.export program: the object, or a file or bytes that hold one.

    Raises ModelError for what is no model, where its contents say so; what a file is called counts only where they do
    not.
    """
    if not isinstance(source, str | os.PathLike | bytes):
        if is_program(source):
            return True
        _check_object(source)
        return False
    kind = kind_of(source)
    path = "" if isinstance(source, bytes) else str(os.fspath(source))
    is_other = kind is not None and (kind.is_torch or kind.is_folder or path.endswith((".pt2", ".pt", ".pth")))
    if kind is not None and is_other and not kind.is_model:
        raise ModelError(kind.instead_of(A_MODEL), where=path, hint=kind.model_remedy)
    return path.endswith(".pt2") if kind is None else kind.name == PROGRAM


def _check_object(source: Any) -> None:
    """Raises ModelError for an object that is no model, with what to do."""
    kinds = {base.__name__: base.__module__ for base in type(source).__mro__}
    if "ModelProto" in kinds:
        return
    hint = ""
    if kinds.get("Module", "").startswith("torch.nn"):
        hint = "Export it: program = torch.export.export(module, inputs), and compile that."
    elif isinstance(source, Mapping):
        hint = "A state dict is weights without a program: load them into their module, and export that."
    known = "a path, bytes, an onnx.ModelProto or a torch.export.ExportedProgram"
    raise ModelError(f"a model is {known}, not {type(source).__name__}", hint=hint)
