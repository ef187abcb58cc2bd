"""Pages that need nothing else: their frame, tables, and text that HTML and XML can hold."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 1500px; padding: 0 1em;
  color: #222; }
h1 { font-size: 1.3em; } h2 { font-size: 1.1em; margin-top: 1.8em; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0.15em 1em; }
dt { font-weight: 600; } dd { margin: 0; white-space: pre-line; }
table { border-collapse: collapse; font-size: 12px; } .wide { overflow-x: auto; }
th, td { text-align: right; padding: 0.2em 0.6em; border-bottom: 1px solid #e4e4e4; white-space: nowrap;
  vertical-align: top; }
th { position: sticky; top: 0; background: #fff; } .text { text-align: left; }
td.long { white-space: normal; min-width: 14em; }
"""


def document(title: str, body: Sequence[str]) -> str:
    """The page of these elements."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>'
        f"<title>{text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{chr(10).join(body)}\n</body></html>\n"
    )


def facts_list(facts: Sequence[tuple[str, str]]) -> str:
    """Names and what is said of them."""
    return "<dl>" + "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in facts) + "</dl>"


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    texts: frozenset[str],
    longs: frozenset[str] = frozenset(),
) -> str:
    """A table without its empty columns. `texts` are the headings of columns of text, `longs` of those that wrap."""
    used = [n for n, column in enumerate(zip(*rows, strict=True)) if any(cell != "" for cell in column)]
    headings, rows = [headings[n] for n in used], [[row[n] for n in used] for row in rows]
    marks = ["text" if heading in texts else "" for heading in headings]
    long = [f"{mark} long" if heading in longs else mark for heading, mark in zip(headings, marks, strict=True)]
    head = "".join(f'<th class="{mark}">{text(name)}</th>' for name, mark in zip(headings, marks, strict=True))
    lines = [
        "<tr>"
        + "".join(f'<td class="{mark}">{text(cell)}</td>' for cell, mark in zip(row, long, strict=True))
        + "</tr>"
        for row in rows
    ]
    return (
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>\n<tbody>{chr(10).join(lines)}</tbody></table></div>'
    )


def text(value: Any) -> str:
    """Escaped, and without control characters."""
    return escape("".join(c if c.isprintable() or c == "\n" else "?" for c in str(value)))
