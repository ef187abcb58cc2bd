"""docs/reference_python.md from the signatures and docstrings of the public names."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, ForwardRef

INTRODUCTION = """\
# Python reference

The public names of the package, from whose signatures and docstrings this page is generated
(`python docs/generate.py`). Everything else may change without notice. Every name of `aot` is loaded on first use, and
`import aot.runtime` loads nothing of the compiler: a serving host needs only numpy.

Every error is an `AotError`: see [Errors](#errors). Command line: [docs/cli.md](cli.md); C: [docs/c_api.md](c_api.md).
"""

SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Building", ("aot.compile", "aot.options.CompileOptions", "aot.options.DimRange", "aot.Artifact",
                  "aot.driver.BuildReport")),
    ("Running", ("aot.load", "aot.Model", "aot.runtime.TensorSpec", "aot.runtime.DimSpec", "aot.runtime.ProgramSpec",
                 "aot.runtime.StateSpec", "aot.runtime.TraceStep", "aot.runtime.TraceTensor",
                 "aot.runtime.target_supported", "aot.runtime.target_rank",
                 "aot.runtime.Machine", "aot.runtime.this_machine", "aot.runtime.prefix")),
    ("Custom operators", ("aot.Operator", "aot.custom.OpDef", "aot.custom.AttrSpec", "aot.custom.KernelSource",
                          "aot.custom.Sample", "aot.custom.load_operators", "aot.testing.check_operator",
                          "aot.testing.Checked")),
)  # fmt: skip
INTERNAL = ("Artifact.build", "Artifact.reader", "BuildReport.stage")
"""Members that the compiler uses and a user has no use for."""

ERRORS = "aot.errors"
WIDTH = 100


def public_names() -> dict[str, tuple[str, ...]]:
    """Full names by section: those above, then what else `aot` and `aot.runtime` export, by its home module."""
    found = dict(SECTIONS)
    taken = {id(resolve(name)) for names in found.values() for name in names}
    for module in ("aot", "aot.runtime"):
        for name in importlib.import_module(module).__all__:
            value = resolve(f"{module}.{name}")
            if id(value) in taken or _is_error(value):
                continue
            taken.add(id(value))
            home = value.__name__ if inspect.ismodule(value) else value.__module__
            found[home] = (*found.get(home, ()), f"{module}.{name}")
    return found


def resolve(name: str) -> Any:
    """The object of a full name."""
    module, _, last = name.rpartition(".")
    return getattr(importlib.import_module(module), last)


def reference() -> str:
    """The page."""
    names = public_names()
    parts = [INTRODUCTION]
    lists = [f"- [{title}](#{title.lower().replace('.', '').replace(' ', '-')}): " for title in names]
    for line, group in zip(lists, names.values(), strict=True):
        parts.append(line + ", ".join(f"`{name}`" for name in group))
    parts.append("- [Errors](#errors)\n")
    for title, group in names.items():
        parts.append(f"## {title}\n")
        for name in group:
            parts.extend(_entry(name, resolve(name)))
    parts.extend(_errors())
    return "\n".join(parts)


def _entry(name: str, value: Any) -> Iterator[str]:
    yield f"### {name}\n"
    if inspect.ismodule(value):
        yield f"{prose(value)}\n"
        for member in getattr(value, "__all__", ()):
            yield from _entry(f"{name}.{member}", getattr(value, member))
    elif inspect.isclass(value):
        yield from _class(value)
    elif callable(value):
        yield f"```python\n{signature(name, value)}\n```\n\n{prose(value)}\n"
    else:
        yield f"```python\n{name} = {value!r}\n```\n"


def _class(kind: type) -> Iterator[str]:
    fields = list(_fields(kind))
    if fields:
        lines = "\n".join(f"    {field}" for field in fields)
        yield f"```python\nclass {kind.__name__}:\n{lines}\n```\n"
    yield f"{prose(kind, [field.partition(':')[0] for field in fields])}\n"
    for name, member in vars(kind).items():
        hidden = name.startswith("_") and (name != "__call__" or not inspect.getdoc(member))
        if hidden or f"{kind.__name__}.{name}" in INTERNAL:
            continue
        if isinstance(member, property | cached_property):
            getter = member.fget if isinstance(member, property) else member.func
            returns = _annotation(inspect.signature(getter).return_annotation)  # type: ignore[arg-type]
            yield f"#### {kind.__name__}.{name}\n\n`{name}: {returns}`. {prose(member)}\n"
        elif inspect.isfunction(member) or isinstance(member, classmethod):
            function = member.__func__ if isinstance(member, classmethod) else member
            shown = f"{kind.__name__}.{name}" if isinstance(member, classmethod) else name
            yield f"#### {kind.__name__}.{name}\n"
            yield f"```python\n{signature(shown, function, bound=True)}\n```\n\n{prose(function)}\n"


def _fields(kind: type) -> Iterator[str]:
    if dataclasses.is_dataclass(kind):
        for field in dataclasses.fields(kind):
            default = ""
            if field.default is not dataclasses.MISSING:
                default = f" = {_literal(field.default)}"
            elif field.default_factory is not dataclasses.MISSING:
                default = f" = {_literal(field.default_factory())}"
            yield f"{field.name}: {_annotation(field.type)}{default}"
    elif issubclass(kind, tuple):
        for name in kind._fields:  # type: ignore[attr-defined]
            yield f"{name}: {_annotation(inspect.get_annotations(kind)[name])}"


def _errors() -> Iterator[str]:
    module = importlib.import_module(ERRORS)
    yield "## Errors\n"
    yield f"{prose(module)}\n"
    yield f"### {ERRORS}.AotError\n\n{prose(module.AotError)}\n"
    yield "| error | `code` | when |\n| --- | --- | --- |"
    rows = [value for value in vars(module).values() if _is_error(value) and value is not module.AotError]
    yield "\n".join(f"| `{kind.__name__}` | `{kind.code}` | {prose(kind)} |" for kind in rows) + "\n"


def _is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def signature(name: str, function: Any, *, bound: bool = False) -> str:
    """`name(parameters) -> type`, over several lines where it is long."""
    found = inspect.signature(function)
    parameters = list(found.parameters.values())[1 if bound else 0 :]
    texts: list[str] = []
    star = False
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            star = True
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        marks = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
        text = f"{marks.get(parameter.kind, '')}{parameter.name}"
        if parameter.annotation is not parameter.empty:
            text += f": {_annotation(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_literal(parameter.default)}"
        texts.append(text)
    returns = "" if found.return_annotation is found.empty else f" -> {_annotation(found.return_annotation)}"
    line = f"{name}({', '.join(texts)}){returns}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){returns}"


def _literal(value: object) -> str:
    """A default as the formatter writes it: strings in double quotes."""
    text = repr(value)
    return text if '"' in text else text.replace("'", '"')


def _annotation(value: Any) -> str:
    if isinstance(value, ForwardRef):
        return value.__forward_arg__
    return value if isinstance(value, str) else inspect.formatannotation(value)


def prose(value: Any, fields: Sequence[str] = ()) -> str:
    """A docstring as Markdown: lines that begin with a name (in backticks, or of a field) and a colon become a list."""
    text = inspect.getdoc(value) or ""
    if inspect.isclass(value) and not value.__doc__:
        text = ""
    names = "|".join((r"`\w+`", *fields))
    paragraphs = []
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        items = [item for item in re.split(rf"(?m)^(?=(?:{names})(?:, \w+)*: )", paragraph) if item]
        lines = [_item(item) if re.match(rf"(?:{names})[,:]", item) else _joined(item) for item in items]
        paragraphs.append("\n".join(lines) if len(items) > 1 else _joined(paragraph))
    return "\n\n".join(paragraphs)


def _item(text: str) -> str:
    names, _, rest = _joined(text).partition(": ")
    return f"- {names if '`' in names else f'`{names}`'}: {rest}"


def _joined(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines())
