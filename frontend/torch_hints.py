"""What users read of a program that cannot be compiled, or that works as in training: lines, reasons, hints, notes."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from aot.errors import UnsupportedError
from aot.frontend.imported import Unsupported, report_of

AFTER_EVAL = "Export the module after module.eval()."
CHECK = "`aotc build --check` lists this without building."
_WAYS_OUT = (
    "Write it with other operators of PyTorch (docs/torch.md lists them), do it outside of the model, or give "
    "program.run_decompositions a decomposition of it before the build: docs/torch.md, Operators that are not "
    "supported."
)
_QUANTIZED = re.compile(
    r"quantize|fake_quant|qparams|^(quantized|quantized_decomposed|torchao|fbgemm)::|_weight_int4pack|_scaled_mm"
)
_OF_QUANTIZED = (
    "an operator of quantized tensors",
    "Quantize for export (PT2E: quantize_per_tensor, dequantize_per_channel and so on), or export the float model and "
    "quantize it here: aotc quantize.",
)
_SEVERAL_PROCESSES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d", "symm_mem")
_HIGHER_ORDER: Mapping[str, tuple[str, str]] = {  # by name: a reason and a hint
    "flex_attention": (
        "attention with functions of its own",
        "Write it with torch.nn.functional.scaled_dot_product_attention and a mask.",
    ),
    "triton_kernel_wrapper_functional": ("a Triton kernel of the model's own", _WAYS_OUT),
    "triton_kernel_wrapper_mutation": ("a Triton kernel of the model's own", _WAYS_OUT),
}
_EXAMPLES = 3


# Lines of Python


def line_of(trace: str) -> str:
    """FILE:LINE of the user's code in a stack trace: its last line outside of PyTorch and of what PyTorch made."""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    real = [line for line in lines if not line.startswith('File "<eval_with_key>')] or lines
    own = [line for line in real if not re.search(r"(-packages|/pytorch)/torch/", line)] or real
    if not own:
        return ""
    file, _, rest = own[-1].removeprefix('File "').partition('", line ')
    return f"{file}:{rest.partition(',')[0]}"


def location(node: Any) -> str:
    """The node's name, and the line of the user's Python that made it."""
    line = line_of(str(node.meta.get("stack_trace") or ""))
    return f"{node.name} ({line})" if line else str(node.name)


def place(node: Any) -> str:
    """As `location`, without the folder of the file: what goes into artifacts."""
    name, _, rest = location(node).partition(" (")
    return f"{name} ({rest.rpartition('/')[2]}" if rest else name


# Operators that are not supported


def refused(name: str, node: Any) -> UnsupportedError:
    """Why an operator without a converter is not supported, and what to do.

    `name` is its own: "histc.default", "mylib::twice.default", "flex_attention".
    """
    if name.startswith("auto_functionalized") and node.args:  # PyTorch's frame around one that changes its arguments
        inner = str(node.args[0]).replace(".", "::", 1)
        reason, hint = _reason_of(inner)
        return UnsupportedError(f"{inner} changes its arguments: {reason}", hint=hint)
    reason, hint = _reason_of(name)
    return UnsupportedError(reason, hint=hint)


def _reason_of(name: str) -> tuple[str, str]:
    """Why an operator is not supported, "" of PyTorch's own, and what to do."""
    namespace = name.rpartition("::")[0]
    if _QUANTIZED.search(name):
        return _OF_QUANTIZED
    if name in _HIGHER_ORDER:
        return _HIGHER_ORDER[name]
    if namespace in _SEVERAL_PROCESSES:
        return "work shared by several processes", "Export the model of one process."
    return ("" if namespace in ("", "aten", "prims") else f"an operator of another package, {namespace!r}"), _WAYS_OUT


def label_of(name: str) -> tuple[str, str]:
    """The namespace of an operator's own name, and the name in full: "aten" and "aten::histc.default"."""
    namespace, _, _ = name.rpartition("::")
    if namespace:
        return namespace, name
    return ("aten", f"aten::{name}") if "." in name else ("higher_order", name)


def refuse_unknown(document: Any) -> None:
    """Raises UnsupportedError where a saved program calls operators that PyTorch does not know here, with their lines.

    `document` is the archive's, checked by `aot.frontend.torch_program.check_document`. PyTorch's own operators are
    left to its loader.
    """
    found: dict[str, list[str]] = {}
    for node in _nodes_of(document):
        target = str(node["target"])
        if target.startswith("torch.ops.") and not _is_known(target):
            metadata = node.get("metadata")
            line = line_of(str(metadata.get("stack_trace", ""))) if isinstance(metadata, dict) else ""
            namespace, _, name = target.removeprefix("torch.ops.").partition(".")
            found.setdefault(f"{namespace}::{name}", []).append(line or "no line is known")
    if found:
        reasons = {name: _reason_of(name) for name in found}
        entries = [
            Unsupported(*label_of(name), 0, reasons[name][0], len(lines), tuple(lines[:_EXAMPLES]))
            for name, lines in found.items()
        ]
        raise UnsupportedError(report_of(entries), hint=" ".join(dict.fromkeys(hint for _, hint in reasons.values())))


def _nodes_of(document: Any) -> Iterator[Mapping[str, Any]]:
    """Every node of a saved program's graphs."""
    pending = [document]
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            if "target" in part and "inputs" in part:
                yield part
            pending.extend(reversed(part.values()))
        elif isinstance(part, list):
            pending.extend(reversed(part))


def _is_known(target: str) -> bool:
    """Whether PyTorch knows torch.ops.NAMESPACE.NAME here; those of its own namespaces count as known."""
    import torch

    namespace, name = target.removeprefix("torch.ops.").split(".")[:2]
    if namespace == "quantized_decomposed":
        with suppress(ImportError):  # it registers them; a PyTorch without it does not know them
            importlib.import_module("torch.ao.quantization.fx._decomposed")
    return namespace in ("aten", "prims", "higher_order") or hasattr(getattr(torch.ops, namespace), name)


# Modules in training


def _drops(argument: Callable[[str], Any]) -> bool:
    train = argument("train")  # None means training to native_dropout
    return train is not False and argument("p") != 0


def _uses_batch(argument: Callable[[str], Any]) -> bool:
    """Whether statistics are kept and not used; where none are kept, evaluation is the same."""
    return bool(argument("training") or argument("use_input_stats")) and argument("running_mean") is not None


def _is_noisy(argument: Callable[[str], Any]) -> bool:
    return bool(argument("training"))


_AT_RANDOM, _OF_BATCH = "at random", "with the statistics of each batch, not the running ones"
_TRAINING: Mapping[str, tuple[str, str, Callable[[Callable[[str], Any]], bool]]] = {  # what it is, how it works, when
    **{name: (name, _AT_RANDOM, _drops) for name in ("alpha_dropout", "feature_alpha_dropout", "feature_dropout")},
    **dict.fromkeys(("dropout", "native_dropout"), ("dropout", _AT_RANDOM, _drops)),
    **dict.fromkeys(("rrelu", "rrelu_with_noise", "rrelu_with_noise_functional"), ("rrelu", _AT_RANDOM, _is_noisy)),
    **dict.fromkeys(
        ("batch_norm", "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
        ("batch_norm", _OF_BATCH, _uses_batch),
    ),
    "instance_norm": ("instance_norm", _OF_BATCH, _uses_batch),
}


def training_notes(program: Any) -> list[str]:
    """A note on each kind of operator that works as in training, in a program as it was exported."""
    found: dict[tuple[str, str], list[str]] = {}
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            schema = getattr(node.target, "_schema", None)
            entry = _TRAINING.get(schema.name.partition("::")[2].removesuffix("_")) if schema is not None else None
            if entry is not None and entry[2](partial(_argument, node)):
                found.setdefault(entry[:2], []).append(place(node))
    notes = []
    for (name, how), nodes in found.items():
        others = f" and {len(nodes) - _EXAMPLES} more" if len(nodes) > _EXAMPLES else ""
        functional = ", and call functional.dropout with training=self.training" if "dropout" in name else ""
        where = f"{', '.join(nodes[:_EXAMPLES])}{others}"
        notes.append(f"{name} works as in training, {how}: {where}; export the module after module.eval(){functional}")
    return notes


def _argument(node: Any, name: str) -> Any:
    """What a node gives to an argument of its operator, or the default; None where it has none of the name."""
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name == name:
            default = argument.default_value if argument.has_default_value() else None
            return node.args[position] if position < len(node.args) else node.kwargs.get(name, default)
    return None
