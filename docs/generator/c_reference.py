"""docs/reference_c.md from the comments of a header.

The header is read by form, not as C: `/* ---- Title ---- */` starts a section; a comment right above a declaration
explains it. The declarations are shown as they stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from docs.generator.blocks import ROOT

HEADER = ROOT / "runtime" / "include" / "aot" / "runtime.h"
INTRODUCTION = """\
# C reference

All of [`aot/runtime.h`](../runtime/include/aot/runtime.h), from which this page is generated
(`python docs/generate.py`). How the pieces are used together is in the [C and C++ guide](c_api.md).
"""

_SECTION = re.compile(r"/\* -{4} (.+) -{4} \*/")
_NAMES = (
    re.compile(r"typedef \w+ \(\*(aot_\w+)\)"),
    re.compile(r"^#define (\w+)"),
    re.compile(r"^typedef (?:struct|enum) (\w+)"),
    re.compile(r"^enum \{\s*(\w+?)_[A-Z]+ ="),
    re.compile(r"^AOT_API [\w ]+?[ *](\w+)\("),
)


@dataclass
class Entry:
    """A declaration, and the comment above it as paragraphs."""

    name: str
    comment: str
    declaration: str


def entries(header: str) -> Iterator[str | Entry]:
    """Section titles and declarations, in the order of the header; first the comment that the file begins with."""
    for part in re.split(r"\n\s*\n", header):
        comment, declaration = _split(part.strip())
        section = _SECTION.fullmatch(comment)
        if section:
            yield section[1]
        elif declaration.startswith(("typedef", "enum", "AOT_API", "#define AOT_ABI")):
            yield Entry(_name(declaration), _prose(comment), declaration)


def _split(part: str) -> tuple[str, str]:
    """The comment at the beginning of a part, and the rest."""
    if not part.startswith("/*"):
        return "", part
    end = part.index("*/") + 2
    return part[:end], part[end:].strip()


def _prose(comment: str) -> str:
    lines = comment.removeprefix("/*").removesuffix("*/").split("\n")
    return "\n".join(line.strip().removeprefix("*").strip() for line in lines).strip()


def _name(declaration: str) -> str:
    for pattern in _NAMES:
        found = pattern.match(declaration)
        if found:
            return found[1] + ("_..." if declaration.startswith("enum") else "")
    raise ValueError(f"no name found in:\n{declaration}")


def reference(header: Path = HEADER) -> str:
    """The page."""
    text = header.read_text()
    opening, _ = _split(text)
    parts = [INTRODUCTION, _prose(opening).partition("\n")[2].strip() + "\n"]
    found = list(entries(text))
    titles = [item for item in found if isinstance(item, str)]
    parts.append("\n".join(f"- [{title}](#{_anchor(title)})" for title in titles) + "\n")
    for item in found:
        if isinstance(item, str):
            parts.append(f"## {item}\n")
            continue
        comment = f"{item.comment}\n\n" if item.comment else ""
        parts.append(f"### {item.name}\n\n{comment}```c\n{item.declaration.replace('AOT_API ', '')}\n```\n")
    return "\n".join(parts)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
