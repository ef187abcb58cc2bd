"""Source text under construction, of any language: lines at a depth, and the integer arguments of a kernel."""

from __future__ import annotations

import math
from typing import Self

from aot import dims as dimension
from aot.dims import Dim


class Lines:
    """Lines at a depth. `fragment()` leaves a place that can be written to later."""

    indent = "  "

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._items: list[str | Lines] = []

    def line(self, text: str) -> None:
        self._items.append(self.indent * self.depth + text)

    def fragment(self) -> Self:
        """A writer whose lines come here, before everything that is written to this one later."""
        inner = type(self)(self.depth)
        self._items.append(inner)
        return inner

    def text(self) -> str:
        return "".join(item.text() if isinstance(item, Lines) else item + "\n" for item in self._items)


class Integers:
    """The integer arguments of a kernel. `dims` are what the caller passes, in this order."""

    def __init__(self) -> None:
        self._names: dict[Dim, str] = {}

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(self._names)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._names.values())

    def literal(self, value: int) -> str:
        """A number in the language."""
        return str(value)

    def text(self, dim: Dim) -> str:
        """A literal, or the name of an argument (times what divides every coefficient)."""
        if isinstance(dim, int):
            return self.literal(dim)
        terms, constant = dimension.terms_of(dim)
        common = math.gcd(constant, *(coefficient for _, coefficient in terms))
        if common > 1:
            inner = dimension.exact_div(dim, common)
            if inner is not None:
                return f"({self.text(inner)} * {common})"
        return self._names.setdefault(dim, f"n{len(self._names)}")
