"""Reads torch.export programs: from Python, or from a .pt2 file without running anything that the file says.

A .pt2 file is a zip archive: the graph as JSON, weights as raw bytes. torch's own loader also unpickles sample
inputs, evaluates size expressions with sympy's eval, and resolves function names by attribute access; a hostile
file runs code in each of these. Here sample inputs are never read, expressions and names are checked against what
an export can contain before torch sees them, and a weight that only a pickle holds is refused.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import io
import json
import os
import re
import warnings
import zipfile
from collections.abc import Iterator
from typing import Any

from aot.errors import ModelError, OptionError, UnsupportedError
from aot.file_kinds import ARCHIVE_FAULTS, PROGRAM, kind_of
from aot.frontend.torch_hints import refuse_unknown, training_notes
from aot.frontend.torch_mended import mend_document, mend_program, mend_symbols

# Composite ops that converters take whole; torch would take them apart into forms that are harder to recognize.
KEPT_WHOLE = frozenset(
    {
        "aten._pad_circular", "aten._scaled_dot_product_flash_attention_for_cpu", "aten._upsample_nearest_exact1d",
        "aten._upsample_nearest_exact2d", "aten._upsample_nearest_exact3d", "aten.baddbmm", "aten.batch_norm",
        "aten.channel_shuffle", "aten.col2im", "aten.dot", "aten.group_norm", "aten.gru.data", "aten.gru.input",
        "aten.hardsigmoid", "aten.hardswish", "aten.im2col", "aten.index_add", "aten.index_copy", "aten.instance_norm",
        "aten.layer_norm", "aten.linear", "aten.lstm.data", "aten.lstm.input", "aten.matmul", "aten.mish", "aten.mv",
        "aten.native_channel_shuffle", "aten.pixel_shuffle", "aten.pixel_unshuffle", "aten.reflection_pad1d",
        "aten.reflection_pad2d", "aten.reflection_pad3d", "aten.replication_pad1d", "aten.replication_pad2d",
        "aten.replication_pad3d", "aten.rms_norm", "aten.rnn_relu.data", "aten.rnn_relu.input", "aten.rnn_tanh.data",
        "aten.rnn_tanh.input", "aten.roll", "aten.scaled_dot_product_attention", "aten.select_scatter", "aten.silu",
        "aten.slice_scatter", "aten.softmax",
        "aten.softplus", "aten.upsample_bicubic2d", "aten.upsample_bilinear2d", "aten.upsample_linear1d",
        "aten.upsample_nearest1d", "aten.upsample_nearest2d", "aten.upsample_nearest3d", "aten.upsample_trilinear3d",
    }
)  # fmt: skip
LARGEST_JSON_BYTES = 1 << 30
_OPERATORS = frozenset(
    {
        "add", "and_", "eq", "floordiv", "ge", "getitem", "gt", "le", "lshift", "lt", "mod", "mul", "ne", "neg",
        "not_", "or_", "pos", "pow", "rshift", "sub", "truediv",
    }
)  # fmt: skip
_MATH = frozenset({"ceil", "floor", "sqrt", "trunc", "pow", "log2", "exp"})
_PREDISPATCH = frozenset(  # of scans whose steps are combined: vmap's own, which trace and compute nothing
    {
        "_add_batch_dim",
        "_remove_batch_dim",
        "_vmap_decrement_nesting",
        "_vmap_increment_nesting",
        "lazy_load_decompositions",
    }
)
_ON_FILES = ("torch.ops.aten.from_file", "torch.ops.aten.save")
_TARGET = re.compile(r"torch\.ops\.[A-Za-z_]\w*\.[A-Za-z_]\w*(\.[A-Za-z_]\w*)?|torch\._?sym_[a-z_]+(\.[a-z]+)?")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[+-]?\d+)?")
_NO_EXPORT = (
    "No export that is known here writes this. Do not trust a file of others; a program of your own can be compiled "
    "without one: aot.compile(exported_program)."
)
_SYMBOL_NAME = re.compile(r"[A-Za-z_]\w*")
_EXPRESSION_NODES = (
    ast.BinOp, ast.UnaryOp, ast.Name, ast.Constant, ast.Load, ast.Compare, ast.BoolOp,
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.USub, ast.UAdd, ast.Not, ast.And, ast.Or,
    ast.BitAnd, ast.BitOr, ast.Invert, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
)  # fmt: skip
_EXPRESSION_CALLS = frozenset(
    """Abs Add And CeilDiv CeilToInt CleanDiv Eq Equality FloatPow FloatTrueDiv FloorDiv FloorToInt Ge GreaterThan Gt
    Identity IntTrueDiv Integer IsNonOverlappingAndDenseIndicator Le LessThan LShift Lt Max Min Mod ModularIndexing Mul
    Ne Not OpaqueUnaryFn_cos OpaqueUnaryFn_exp OpaqueUnaryFn_log OpaqueUnaryFn_log2 OpaqueUnaryFn_sin
    OpaqueUnaryFn_sqrt OpaqueUnaryFn_tanh
    Or Piecewise Pow PowByNatural PythonMod RShift RoundDecimal RoundToInt StrictGreaterThan StrictLessThan
    ToFloat TruncToFloat TruncToInt Unequality Where ceiling floor""".split()
)


def is_program(source: Any) -> bool:
    """Whether an object is a torch.export.ExportedProgram, without importing torch."""
    return any(
        kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.") for kind in type(source).__mro__
    )


def read_program(source: Any, *, trust_pickle: bool = False) -> tuple[Any, str, list[str]]:
    """The ExportedProgram in Core ATen form, a digest of its source, and notes on what of it works as in training.

    `source` is a path of a .pt2 file, its bytes, or an ExportedProgram. Raises ModelError for a file that is no
    exported program or is hostile, UnsupportedError where only a pickle holds the data.
    """
    program, digest = open_program(source, trust_pickle=trust_pickle)
    _check_weights(program)
    decomposed = decompose(program)
    return decomposed, digest or _program_digest(decomposed), training_notes(program)


def open_program(source: Any, *, trust_pickle: bool = False) -> tuple[Any, str]:
    """The ExportedProgram as it was exported, and a digest of its source; "" where that is a program of Python's.

    Takes and raises what `read_program` does.
    """
    _need_torch()
    if is_program(source):
        return source, ""
    data = source if isinstance(source, bytes) else _file_bytes(source)
    try:
        return _from_archive(data, trust_pickle), hashlib.sha256(data).hexdigest()
    except (ModelError, UnsupportedError) as error:
        if error.where or isinstance(source, bytes):
            raise
        raise type(error)(error.message, where=str(source), hint=error.hint) from error


def _check_weights(program: Any) -> None:
    """Raises ModelError for a weight, buffer or constant without data: on the meta device, or fake."""
    for name, tensor in {**program.state_dict, **program.constants}.items():
        device = getattr(getattr(tensor, "device", None), "type", "")
        if device == "meta" or type(tensor).__name__ == "FakeTensor":
            raise _without_data(name, "meta" if device == "meta" else "fake")


def _without_data(name: str, kind: str) -> ModelError:
    return ModelError(
        f"{'a tensor on the meta device' if kind == 'meta' else 'a fake tensor'} has no data",
        where=f"weight {name!r}",
        hint="Load the weights into the module (module.to_empty(device='cpu'), load_state_dict) before it is exported.",
    )


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise OptionError(
            "a torch.export program needs PyTorch to be read", hint="Install it: pip install 'aotc[torch]'."
        ) from error


def _file_bytes(path: str | os.PathLike[str]) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ModelError(f"cannot read it: {error.strerror or error}", where=str(path)) from error


def decompose(program: Any) -> Any:
    """The program in Core ATen, with what KEPT_WHOLE names left whole.

    Raises UnsupportedError for an operator whose results PyTorch cannot foresee, ModelError where it fails otherwise.
    PyTorch would run the program's guards here, which are Python: they are kept from it, and put back.
    """
    import torch

    table = torch.export.default_decompositions()
    whole = KEPT_WHOLE - ({"aten.instance_norm"} if _updates_instance_statistics(program) else set())
    whole -= {"aten.lstm.input", "aten.lstm.data"} if _has_projections(program) else set()
    for op in list(table):
        name = str(op)
        if name in whole or name.rpartition(".")[0] in whole:
            table.pop(op)
    mend_symbols(program)
    bare = copy.copy(program)
    guards, bare._guards_code = _guards(program), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # PyTorch warns of its own use of its own classes
        try:
            decomposed = bare.run_decompositions(table)
        except Exception as error:  # torch raises anything here
            raise _not_decomposed(error) from error
    decomposed._guards_code = list(dict.fromkeys([*guards, *_guards(decomposed)]))
    return decomposed


def _not_decomposed(error: Exception) -> ModelError | UnsupportedError:
    """What to say where PyTorch does not take a program to Core ATen: the node and the reason, without its traces."""
    text = str(error)
    found = re.search(r"While executing %(\w+)", text)
    where = f"node {found[1]!r}" if found else ""
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)[:200]
    if type(error).__name__ == "UnsupportedOperatorException":
        return UnsupportedError(
            f"PyTorch cannot take {reason} to Core ATen: it has no fake implementation, to foresee the results",
            where=where,
            hint="Register a fake implementation of it and export again, or leave the operator out.",
        )
    return ModelError(
        f"PyTorch cannot take the program to Core ATen: {type(error).__name__}: {reason}",
        where=where,
        hint="program.run_decompositions() fails in the same way in Python.",
    )


def _guards(program: Any) -> list[str]:
    """The guards that PyTorch keeps with a program, a line of Python each (see aot.frontend.torch_guards)."""
    return list(getattr(program, "_guards_code", None) or ())


def _updates_instance_statistics(program: Any) -> bool:
    """Whether an instance_norm changes the running statistics that it is given; whole, it would not say so."""
    return any(
        str(node.target) == "aten.instance_norm.default" and len(node.args) > 5 and node.args[3] is not None
        and bool(node.args[5])
        for node in program.graph.nodes
    )  # fmt: skip


def _has_projections(program: Any) -> bool:
    """Whether an LSTM makes its output smaller (`proj_size`), which the op that stays whole does not."""
    for node in program.graph.nodes:
        first = {"aten.lstm.input": 2, "aten.lstm.data": 3}.get(str(node.target))  # where its parameters stand
        if first is None:
            continue
        params, biased, layers = node.args[first : first + 3]
        bidirectional = node.args[first + 5]
        if len(params) != layers * (2 if bidirectional else 1) * (4 if biased else 2):
            return True
    return False


def _program_digest(program: Any) -> str:
    """A digest of the graph's text and of the weights' bytes."""
    found = hashlib.sha256(str(program.graph).encode())
    for name, tensor in sorted({**program.state_dict, **program.constants}.items()):
        found.update(name.encode())
        if hasattr(tensor, "detach"):
            found.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            found.update(tensor_bytes(tensor))
    return found.hexdigest()


def tensor_bytes(tensor: Any) -> bytes:
    """The row-major bytes of a torch tensor on the CPU."""
    import torch

    # A clone: a single element may have any stride and still count as contiguous.
    flat = tensor.detach().cpu().contiguous().reshape(-1).clone(memory_format=torch.contiguous_format)
    return bytes(flat.view(torch.uint8).numpy().data) if flat.numel() else b""


# The archive


def _from_archive(data: bytes, trust_pickle: bool) -> Any:
    try:
        archive = zipfile.ZipFile(io.BytesIO(data))
        names = archive.namelist()
    except ARCHIVE_FAULTS as error:
        raise _no_program(data, str(error)) from error
    models = [name for name in names if re.fullmatch(r"[^/]+/models/[^/]+\.json", name)]
    if len(models) != 1:
        raise _no_program(data, f"the archive holds {len(models)} exported programs; one is expected")
    root, _, last = models[0].partition("/models/")
    name = last.removesuffix(".json")
    document = _json(archive, models[0])
    check_document(document)
    refuse_unknown(document)
    texts = mend_document(document)
    import torch
    from torch._export.serde import schema
    from torch._export.serde.serialize import ExportedProgramDeserializer, _dict_to_dataclass

    try:
        serialized = _dict_to_dataclass(schema.ExportedProgram, document)
        weights = _payload(archive, root, "weights", f"{name}_weights_config.json", trust_pickle)
        constants = _payload(archive, root, "constants", f"{name}_constants_config.json", trust_pickle)
        program = ExportedProgramDeserializer().deserialize(serialized, weights, constants, None)
        mend_program(program, texts)
        program._guards_code = list(serialized.guards_code)
        if not all(isinstance(line, str) for line in program._guards_code):
            raise ModelError("the program's guards are no text", hint="Do not trust this file.")
        return program
    except (ModelError, UnsupportedError):
        raise
    except Exception as error:  # torch's deserializer raises anything on a document that does not fit
        written = document.get("torch_version") if isinstance(document, dict) else None
        hint = "Export the model again with this version of PyTorch."
        if written and str(written) != torch.__version__:
            hint = f"PyTorch {str(written)[:40]} wrote it, and {torch.__version__} reads it."
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:300]
        raise ModelError(f"torch cannot read the program: {type(error).__name__}: {reason}", hint=hint) from error


def _no_program(data: bytes, reason: str) -> ModelError:
    """The error for bytes in which there is no exported program, or more than one."""
    kind = kind_of(data)
    if kind is None or kind.name == PROGRAM:
        return ModelError(f"no torch.export program: {reason}", hint="Write it with torch.export.save.")
    return ModelError(kind.instead_of("a torch.export program"), hint=kind.model_remedy)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    """The bytes of a file of the archive."""
    try:
        return archive.read(name)
    except ARCHIVE_FAULTS as error:
        raise ModelError(f"{name} cannot be read: {error}", hint="The archive is damaged.") from error


def _json(archive: zipfile.ZipFile, name: str) -> Any:
    info = archive.getinfo(name)
    if info.file_size > LARGEST_JSON_BYTES:
        raise ModelError(f"{name} has {info.file_size} bytes", hint="No export is that large.")
    try:
        return json.loads(_member(archive, name))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{name} cannot be read: {error}", hint="The archive is damaged.") from error


def _payload(archive: zipfile.ZipFile, root: str, kind: str, config_name: str, trust_pickle: bool) -> dict[str, Any]:
    """The tensors of data/weights or data/constants by name; those that share bytes share their storage."""
    import torch
    from torch._export.serde.schema import TensorMeta
    from torch._export.serde.serialize import _dict_to_dataclass, deserialize_scalar_type

    folder = f"{root}/data/{kind}"
    path = f"{folder}/{config_name}"
    if path not in archive.namelist():
        raise UnsupportedError(
            f"the archive keeps its {kind} in an old form, a pickle",
            hint="Write it again with torch.export.save of PyTorch 2.8 or newer.",
        )
    found: dict[str, Any] = {}
    storages: dict[str, Any] = {}
    for name, entry in _json(archive, path)["config"].items():
        file = f"{folder}/{entry['path_name']}"
        if entry.get("use_pickle"):
            if not trust_pickle:
                raise UnsupportedError(
                    f"{name!r} is stored as a pickle, which can run code when it is read",
                    hint="If you trust the file, build with --trust-pickle.",
                )
            found[name] = torch.load(io.BytesIO(_member(archive, file)), weights_only=False)
            continue
        meta = _dict_to_dataclass(TensorMeta, entry["tensor_meta"])
        if meta.device is not None and meta.device.type == "meta":
            raise _without_data(name, "meta")
        dtype = deserialize_scalar_type(meta.dtype)
        if file not in storages:
            raw = bytearray(_member(archive, file))
            storages[file] = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        sizes, strides = ([_plain(part) for part in parts] for parts in (meta.sizes, meta.strides))
        offset = _plain(meta.storage_offset)
        last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if min([offset, *sizes, *strides], default=0) < 0 or (0 not in sizes and last >= storages[file].numel()):
            raise ModelError(f"tensor {name!r} lies outside of its file", hint="The archive is damaged.")
        tensor = storages[file].as_strided(sizes, strides, offset)
        found[name] = torch.nn.Parameter(tensor, requires_grad=False) if entry.get("is_param") else tensor
    return found


def _plain(size: Any) -> int:
    if size.type != "as_int":
        raise ModelError("a weight has a symbolic size")
    return int(size.value)


# What torch will evaluate or call


def check_document(document: Any) -> None:
    """Raises ModelError for a name or an expression that no export writes: torch would call, or evaluate, it."""
    for key, value in _strings(document):
        if key == "target" and not value.startswith("#") and "." in value and not _is_known_target(value):
            raise ModelError(f"the program calls {value[:80]!r}, which is no operator", hint=_NO_EXPORT)
        if key == "expr_str" and not is_plain_expression(value):
            raise ModelError(f"the size {value[:80]!r} is no expression of sizes", hint=_NO_EXPORT)


def _strings(part: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string of the document that is called, or evaluated, under its key."""
    pending: list[tuple[str, Any]] = [(key, part)]
    while pending:
        name, item = pending.pop()
        if isinstance(item, dict):
            is_node = "target" in item and "inputs" in item
            for inner, value in item.items():
                # A node's target is a function; the target of a parameter is its name.
                pending.append((inner if inner != "target" or is_node else "", value))
        elif isinstance(item, list):
            pending.extend((name, value) for value in item)
        elif isinstance(item, str):
            yield name, item


def _is_known_target(target: str) -> bool:
    module, _, name = target.rpartition(".")
    if module in ("_operator", "operator"):
        return name in _OPERATORS
    if module == "math":
        return name in _MATH
    if module == "torch._functorch.predispatch":
        return name in _PREDISPATCH
    return _TARGET.fullmatch(target) is not None and not target.startswith(_ON_FILES)


def is_plain_expression(text: str) -> bool:
    """Whether a text is arithmetic over numbers and names, with calls of the functions of sizes alone."""
    if len(text) > 20_000 or "__" in text:
        return False
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return _is_plain(tree.body)


def _is_plain(node: ast.expr) -> bool:
    """Whether a part of an expression is plain. A symbol is a name, or as sympy writes it: Symbol('s0', real=True)."""
    pending: list[ast.AST] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Symbol":
            named = (
                len(part.args) == 1 and isinstance(part.args[0], ast.Constant) and isinstance(part.args[0].value, str)
            )
            if not named or not _SYMBOL_NAME.fullmatch(part.args[0].value):  # type: ignore[attr-defined]
                return False
            if any(not isinstance(keyword.value, ast.Constant) for keyword in part.keywords):
                return False
            continue
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "Float":
            if not _is_plain_float(part):
                return False
            continue
        if isinstance(part, ast.Call):
            if not isinstance(part.func, ast.Name) or part.func.id not in _EXPRESSION_CALLS or part.keywords:
                return False
            pending.extend(part.args)
            continue
        if not isinstance(part, _EXPRESSION_NODES):
            return False
        if isinstance(part, ast.Constant) and not isinstance(part.value, int | float | bool):
            return False
        pending.extend(ast.iter_child_nodes(part))
    return True


def _is_plain_float(call: ast.Call) -> bool:
    """Whether a call is a number as sympy writes it: Float('1.5', precision=53)."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    if len(call.args) != 1 or any(keyword.arg != "precision" for keyword in call.keywords):
        return False
    number, *precision = (each.value if isinstance(each, ast.Constant) else None for each in given)
    return isinstance(number, str) and _NUMBER.fullmatch(number) is not None and all(type(p) is int for p in precision)
