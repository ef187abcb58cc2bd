"""Assertions of a torch program (torch._check, torch._assert_async) as guards: what data decides is checked in a run.

Conditions on the sizes of inputs are torch's own bounds and guards (see aot.frontend.torch_guards).
"""

from __future__ import annotations

from typing import Any

from aot import dims as dimension
from aot import dtypes
from aot.control import add_claim, add_read
from aot.dims import Dim
from aot.errors import ModelError, UnsupportedError
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_numbers import COMPARISONS, condition_of_sizes
from aot.frontend.torch_sizes import SizeReader
from aot.ir import Value

ASSERTIONS = frozenset(
    {
        "_assert_async.default", "_assert_async.msg", "_assert_scalar.default", "_functional_assert_async.msg",
        "_functional_assert_scalar.default",
    }
)  # fmt: skip


def add_assertion(builder: KnownBuilder, sizes: SizeReader, condition: Any, message: str, place: str) -> str:
    """Checks a condition in every run; returns a note where that cannot be done, else "".

    `condition` is a tensor of one element, a number, or torch's condition on sizes. `place`: the node and the line
    of Python. Raises ModelError for a condition that never holds.
    """
    if isinstance(condition, bool | int | float):
        if not condition:
            raise ModelError(f"an assertion never holds{': ' if message else ''}{message}", where=place)
        return ""
    text = f"{message} ({place})" if message else place
    with builder.at(text):
        if isinstance(condition, Value):
            hold(builder, condition)
            return ""
        expression = getattr(getattr(condition, "node", None), "expr", None)
        if expression is None:
            return f"an assertion is left out: {text}"
        try:
            claims = _claims(sizes, expression)
            if claims is None:
                hold(builder, condition_of_sizes(builder, sizes, expression))
        except UnsupportedError as error:
            return f"an assertion is left out, {error.message}: {text}"
        for left, right, is_exact in claims or ():
            if not _is_known(left, right, is_exact):
                add_claim(builder, left, right, exact=is_exact)
    return ""


def hold(builder: KnownBuilder, value: Value) -> None:
    """Reads the first element, which must be true."""
    if not value.type.dtype.is_bool:
        value = builder.op("ne", value, builder.scalar(0, value.type.dtype))[0]
    flag = builder.op("cast", value, to=dtypes.I64)[0]
    builder.materialize(flag)
    add_read(builder, flag, 0, 1, is_assertion=True)


def _claims(sizes: SizeReader, expression: Any) -> list[tuple[Dim, Dim, bool]] | None:
    """(left, right, exact) of each part of a condition: left >= right, or left == right. None for other conditions."""
    kind = type(expression).__name__
    if kind == "BooleanTrue":
        return []
    if kind == "And":
        parts = [_claims(sizes, part) for part in expression.args]
        return None if None in parts else [claim for part in parts for claim in part or ()]
    if kind not in COMPARISONS or kind == "Unequality":
        return None
    left, right = (sizes.of(part) for part in expression.args)
    if kind == "Equality":
        return [(left, right, True)]
    if kind in ("LessThan", "StrictLessThan"):
        left, right = right, left
    return [(left, right + 1 if kind.startswith("Strict") else right, False)]


def _is_known(left: Dim, right: Dim, is_exact: bool) -> bool:
    """Whether the bounds of the sizes say it already."""
    least, most = dimension.bounds(left - right)
    return least >= 0 and (not is_exact or most == 0)
