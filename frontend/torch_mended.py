"""What PyTorch's reader of .pt2 files gets wrong (2.13), put right around it: the document before, the program after.

Each of these programs can be written by torch.export.save, and torch.export.load either does not read it, or gives a
program that PyTorch cannot take to Core ATen. A document that is damaged is left as it is, for the reader to refuse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

# Arguments that a Python keyword names are looked up even where the writer has left them out, as they have a default.
_KEYWORD_DEFAULTS = {
    "torch.ops.aten.uniform.default": ("from", {"as_float": 0.0}),
    "torch.ops.aten.uniform_.default": ("from", {"as_float": 0.0}),
}
_POSITIONAL = 1


def mend_document(document: Any) -> dict[int, str]:
    """Changes the JSON document of a program, in place, to one that PyTorch reads.

    Gives the texts among the program's results, by their place: there is no reader for these, and they are left out.
    """
    graph, specs = (_part(document, "graph_module", *keys) for keys in (("graph",), ("signature", "output_specs")))
    _mend_nodes(graph)
    _mend_classes(_part(document, "graph_module", "module_call_graph"))
    texts: dict[int, str] = {}
    outputs = _part(graph, "outputs")
    if isinstance(outputs, list) and isinstance(specs, list) and len(outputs) == len(specs):
        for place, (output, spec) in enumerate(zip(outputs, specs, strict=True)):
            text = _part(output, "as_string")
            if isinstance(text, str) and _part(spec, "user_output", "arg", "as_string") == text:
                texts[place] = text
                outputs[place] = spec["user_output"]["arg"] = {"as_none": True}
    return texts


def _mend_classes(calls: Any) -> None:
    """Takes arguments and results of classes that are not registered in this process as dicts, or tuples.

    A class such as a result of transformers writes the names of its parts where a dict writes its keys.
    """
    for call in calls if isinstance(calls, list) else ():
        signature = _part(call, "signature")
        for name in ("in_spec", "out_spec"):
            text = _part(signature, name)
            try:
                spec = json.loads(text) if isinstance(text, str) else None
            except (ValueError, RecursionError):  # damaged, or too deep: for the reader to refuse
                continue
            if isinstance(spec, list) and len(spec) == 2 and _mend_spec(spec[1]):
                signature[name] = json.dumps(spec)


def _mend_spec(spec: Any) -> bool:
    """Changes the classes in a spec, in place; whether there are any."""
    from torch.utils._pytree import SERIALIZED_TYPE_TO_PYTHON_TYPE

    found, pending = False, [spec]
    while pending:
        part = pending.pop()
        kind, children = _part(part, "type"), _part(part, "children_spec")
        if not isinstance(children, list):
            continue
        pending.extend(children)
        if not isinstance(kind, str) or kind in SERIALIZED_TYPE_TO_PYTHON_TYPE:
            continue
        try:
            keys = json.loads(part["context"])
        except (KeyError, TypeError, ValueError, RecursionError):
            keys = None
        named = isinstance(keys, list) and len(keys) == len(children) and all(isinstance(key, str) for key in keys)
        part["type"], part["context"] = ("builtins.dict", part["context"]) if named else ("builtins.tuple", "null")
        found = True
    return found


def _mend_nodes(graph: Any) -> None:
    """Adds arguments that are left out, in a graph and in those that its nodes hold."""
    pending = [graph]
    while pending:
        part = pending.pop()
        if isinstance(part, list):
            pending.extend(part)
        elif isinstance(part, dict):
            name, default = _KEYWORD_DEFAULTS.get(str(part.get("target")), ("", None))
            inputs = part.get("inputs")
            if name and isinstance(inputs, list) and not any(_part(each, "name") == name for each in inputs):
                inputs.append({"name": name, "arg": default, "kind": _POSITIONAL})
            pending.extend(part.values())


def _part(document: Any, *keys: str) -> Any:
    """What lies under the keys; None where nothing does."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def mend_program(program: Any, texts: Mapping[int, str]) -> None:
    """Puts the texts back among the results of a program that was read."""
    from torch.export.graph_signature import ConstantArgument

    if not texts:
        return
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    results = list(output.args[0])
    for place, text in texts.items():
        results[place] = text
        program.graph_signature.output_specs[place].arg = ConstantArgument(name="", value=text)
    output.args = (tuple(results),)
    program.graph_module.recompile()


def mend_symbols(program: Any) -> None:
    """Takes sizes such as s0 + 2 from among the symbols, where PyTorch's reader puts them; the ranges keep them."""
    from torch._export.utils import _get_shape_env_from_gm

    shapes = _get_shape_env_from_gm(program.graph_module)
    for name in ("var_to_range", "backed_var_to_val"):
        table = getattr(shapes, name, None)
        if isinstance(table, dict):
            for key in [key for key in table if not getattr(key, "is_Symbol", False)]:
                del table[key]
