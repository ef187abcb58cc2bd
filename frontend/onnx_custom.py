"""Nodes of custom operators: found among those at hand, imported as their entries say.

Only operators that no converter knows are looked for, so that no package can change what a built-in
operator means. They come before function bodies: a package may have a kernel for what a model spells out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from aot import custom
from aot.custom import Operator
from aot.errors import OperatorError
from aot.frontend.onnx_registry import Context
from aot.ir import Value
from aot.ops.opdef import infer

_HINT = (
    "`aotc build --check` lists this without building. An operator of your own needs a package with the entry "
    f"point {custom.ENTRY_POINTS}, or `--operators FILE`: {custom.GUIDE}."
)
_STANDARD = ("", "ai.onnx.ml")


def find(domain: str, op_type: str, opsets: Mapping[str, int]) -> Operator | None:
    """The custom operator that nodes of this kind import to, or None."""
    return custom.current().find(domain, op_type, opsets[domain]) if domain in opsets else None


def why_not(domain: str, op_type: str, version: int) -> str:
    """What is known of an operator that nobody knows."""
    if domain:
        return custom.current().why_not(domain, op_type, version)
    return f"not an operator of operator set {version}"


def hint(domains: Iterable[str]) -> str:
    """What to do about unsupported operators of these domains; empty where all are standard ones."""
    if all(domain in _STANDARD for domain in domains):
        return ""
    problems = custom.current().problems
    return f"{_HINT} Note: {'; '.join(problems)}." if problems else _HINT


def convert(c: Context, operator: Operator) -> Sequence[Value]:
    """The results of a node of a custom operator."""
    op = operator.op
    attrs: dict[str, Any] = {}
    for onnx_name in c.attributes:
        name = operator.attributes.get(onnx_name, onnx_name)
        if name not in op.attrs or (name == onnx_name and name in operator.attributes.values()):
            known = sorted({*op.attrs} - {*operator.attributes.values()} | {*operator.attributes})
            c.fail(f"{operator.onnx_name} has no attribute {onnx_name!r}; it has {', '.join(known) or 'none'}")
        attrs[name] = _READERS[op.attrs[name].type](c, onnx_name)
    filled = op.check_attrs(attrs)
    operands = c.tensors
    if op.body is not None or op.sources:
        return c.builder.op(op.name, *operands, **filled)
    assert op.decompose is not None
    types = infer(op.name, filled, [None if value is None else value.type for value in operands])
    found = op.decompose(c.builder, filled, operands)
    if not isinstance(found, tuple) or tuple(value.type for value in found) != types:
        made = ", ".join(str(value.type) for value in found) if isinstance(found, tuple) else repr(found)
        raise OperatorError(
            f"infer says {', '.join(map(str, types))}; decompose makes {made}", where=f"operator {op.name!r}"
        )
    return found


_READERS: Mapping[str, Callable[[Context, str], Any]] = {
    "int": lambda c, name: c.int_attribute(name),
    "bool": lambda c, name: bool(c.int_attribute(name)),
    "float": lambda c, name: c.float_attribute(name),
    "str": lambda c, name: c.text_attribute(name),
    "ints": lambda c, name: c.ints_attribute(name),
    "floats": lambda c, name: c.floats_attribute(name),
}
