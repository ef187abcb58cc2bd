"""RECUR op `recur_map`: an elementwise recurrence over time; and the text form of what any recurrence does in a step.

A step of one element (or, of a cell, one hidden unit) is an Expr over leaves that have a letter and a number: `x0`
what the step is given, `h0` a state before it, `r0` a weighted sum of the state before it, `e0` what is the same in
every step. Its text is postfix, results separated by `;`. `:` names the value on top, `$0` is the first value so
named: an Expr is a graph, not a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot import dtypes, expr
from aot.dtypes import BOOL, DType
from aot.expr import FUNCTIONS, Expr
from aot.ir import Array, TensorType
from aot.ops.helpers import FLOAT, int_attr, need_family, need_rank, need_same_dtype, normal
from aot.ops.opdef import Attrs, AttrSpec, Kind, OpDef, OpError, Sample, register, same_extent

Leaf = tuple[str, int]


def step_text(results: Sequence[Expr], names: Mapping[Expr, Leaf]) -> str | None:
    """The text of a step, its leaves by `names`; None where it has a leaf without a name, or a conversion."""
    uses: dict[Expr, int] = {}
    for node in dict.fromkeys(node for result in results for node in expr.walk(result)):
        if node not in names and node.op != "const" and (node.op not in FUNCTIONS or node.op == "cast"):
            return None
        for operand in node.args:
            uses[operand] = uses.get(operand, 0) + 1
    for result in results:
        uses[result] = uses.get(result, 0) + 1
    shared: dict[Expr, int] = {}
    words: list[str] = []

    def write(node: Expr) -> None:
        if node in names:
            letter, number = names[node]
            words.append(f"{letter}{number}")
        elif node.op == "const":
            words.append(str(node.payload).lower() if node.dtype.is_bool else repr(float(node.payload)))
        elif node in shared:
            words.append(f"${shared[node]}")
        else:
            for operand in node.args:
                write(operand)
            words.append(node.op)
            if uses[node] > 1:
                shared[node] = len(shared)
                words.append(":")

    for number, result in enumerate(results):
        if number:
            words.append(";")
        write(result)
    return " ".join(words)


def parse_step(text: str, leaf: Callable[[str, int], Expr], dtype: DType) -> tuple[Expr, ...]:
    """The Exprs of a text, numbers of `dtype`, leaves as `leaf` gives them. Raises OpError where it is malformed."""
    results: list[Expr] = []
    stack: list[Expr] = []
    shared: list[Expr] = []
    for word in (*text.split(), ";"):
        if word == ";":
            if len(stack) != 1 or stack[0].dtype != dtype:
                raise OpError(f"result {len(results)} of the step {text!r} is not one number")
            results.append(stack.pop())
        elif word == ":" and stack:
            shared.append(stack[-1])
        elif word in FUNCTIONS and word != "cast":
            count = FUNCTIONS[word][0]
            if len(stack) < count:
                raise OpError(f"{word} has too few operands in the step {text!r}")
            operands = [stack.pop() for _ in range(count)][::-1]
            stack.append(expr.call(word, *operands))
        else:
            stack.append(_leaf_of(word, text, leaf, shared, dtype))
    return tuple(results)


def _leaf_of(word: str, text: str, leaf: Callable[[str, int], Expr], shared: list[Expr], dtype: DType) -> Expr:
    if word in ("true", "false"):
        return expr.const(word == "true", BOOL)
    if word[0] in "xhre$" and word[1:].isdecimal():
        number = int(word[1:])
        if word[0] != "$":
            return leaf(word[0], number)
        if number < len(shared):
            return shared[number]
    try:
        return expr.const(float(word), dtype)
    except ValueError:
        raise OpError(f"{word!r} means nothing in the step {text!r}") from None


def leaves_of(text: str) -> dict[str, int]:
    """For each letter, one more than the largest number that it has in the text."""
    found: dict[str, int] = {}
    for word in text.split():
        if word[0] in "xhre" and word[1:].isdecimal():
            found[word[0]] = max(found.get(word[0], 0), int(word[1:]) + 1)
    return found


def results_of(text: str) -> int:
    """How many results a step has."""
    return text.count(";") + 1


# The op.


def step_of(attrs: Attrs) -> str:
    """The text of a recurrence's step."""
    text = attrs["step"]
    assert isinstance(text, str)
    return text


def _infer(attrs: Attrs, *types: TensorType) -> tuple[TensorType, ...]:
    states, steps, text = int_attr(attrs, "states"), int_attr(attrs, "steps"), step_of(attrs)
    if states < 1 or steps < 1 or len(types) < states:
        raise OpError("an elementwise recurrence needs a state, its initial value, and a step")
    for type_ in types:
        need_family("a recurrence's operand", type_, FLOAT)
    dtype = need_same_dtype(*types)
    axis = int_attr(attrs, "axis")
    if not 0 <= axis <= types[0].rank:
        raise OpError(f"axis {axis} is out of range for states of rank {types[0].rank}")
    if dtype.bits < 32:
        raise OpError(f"a recurrence of {dtype} must be done in f32")
    shape = types[0].shape
    for type_ in types[1:states]:
        need_rank("an initial state", type_, len(shape), len(shape))
        for left, right in zip(shape, type_.shape, strict=True):
            same_extent(left, right, "the initial states")
    for type_ in types[states:]:
        need_rank("what a recurrence is given", type_, len(shape) + 1, len(shape) + 1)
        for have, want in zip(type_.shape, (*shape[:axis], steps, *shape[axis:]), strict=True):
            if have != 1:
                same_extent(have, want, "what a recurrence is given, and its states")
    used = leaves_of(text)
    if used.get("x", 0) > len(types) - states or used.get("h", 0) > states or results_of(text) < states:
        raise OpError(f"the step {text!r} does not fit {states} states and {len(types) - states} other operands")
    if set(used) - {"x", "h"}:
        raise OpError(f"an elementwise step has no {', '.join(sorted(set(used) - set('xh')))}")
    parse_step(text, lambda letter, number: expr.arg(number, dtype), dtype)
    every = TensorType(dtype, (*shape[:axis], steps, *shape[axis:]))
    return (*[every] * results_of(text), *[TensorType(dtype, shape)] * states)


def _reference(attrs: Attrs, *arrays: Array) -> tuple[Array, ...]:
    count, steps, text = int_attr(attrs, "states"), int_attr(attrs, "steps"), step_of(attrs)
    dtype = arrays[0].dtype
    wide = [array.astype(np.float64) for array in arrays]
    axis = int_attr(attrs, "axis")
    states, given = wide[:count], [np.moveaxis(array, axis, 0) for array in wide[count:]]

    def leaf(letter: str, number: int) -> Expr:
        return expr.arg(number if letter == "h" else count + number, dtypes.F64)

    bodies = parse_step(text, leaf, dtypes.F64)
    shape = arrays[0].shape
    stacked: list[list[Array]] = [[] for _ in bodies]
    for step in range(steps):
        values = [*states, *(array[step if len(array) > 1 else 0] for array in given)]
        found = [np.broadcast_to(expr.evaluate(body, values), shape) for body in bodies]
        for rows, result in zip(stacked, found, strict=True):
            rows.append(result)
        states = found[:count]
    with np.errstate(all="ignore"):
        every = [np.stack(rows, axis=axis) for rows in stacked]
        return tuple(np.ascontiguousarray(array).astype(dtype) for array in (*every, *states))


def _samples(rng: Any) -> list[Sample]:
    def sample(
        steps: int, states: int, text: str, *shapes: tuple[int, ...], dtype: Any = np.float32, axis: int = 0
    ) -> Sample:
        operands = tuple(normal(rng, *shape, scale=0.6, dtype=dtype) for shape in shapes)
        return Sample(operands, {"states": states, "steps": steps, "step": text, "axis": axis}, 1e-4, 1e-5)

    linear, fold = "x0 h0 mul x1 add", "h0 x0 max : ; h1 h0 $0 sub exp mul x1 add"
    found = [
        sample(5, 1, linear, (37,), (5, 37), (5, 37)),
        sample(4, 1, linear, (2, 3, 16), (4, 2, 1, 16), (4, 1, 3, 1)),
        sample(3, 1, linear, (300,), (1, 300), (3, 1)),
        sample(6, 2, fold, (2, 19), (2, 19), (6, 2, 19), (6, 1, 19)),
        sample(3, 1, "h0 x0 add tanh : ; $0 h0 mul", (4, 5), (3, 4, 5)),
        sample(1, 1, "x0 0.0 gt h0 x0 select", (1,), (1, 1)),
        sample(7, 1, linear, (3, 40), (7, 3, 40), (7, 3, 40), dtype=np.float64),
    ]
    found.append(sample(4, 1, linear, (3, 19), (3, 4, 19), (3, 1, 1), axis=1))
    found.append(sample(5, 2, fold, (2, 18), (2, 18), (2, 18, 5), (1, 18, 5), axis=2))
    odd = (np.array([1.0, np.inf, np.nan], np.float32), np.array([[2.0, 0.0, 1.0]] * 4, np.float32))
    found.append(Sample(odd, {"states": 1, "steps": 4, "step": "x0 h0 mul 1.0 add"}))
    return found


register(
    OpDef(
        name="recur_map",
        doc="Elementwise recurrences along an axis: every step's states and other results, and the last states.",
        inputs=("*operands",), kind=Kind.RECUR, infer=_infer, samples=_samples,
        attrs={
            "step": AttrSpec("str", None, "the next states, then other results, over states h… and operands x…"),
            "states": AttrSpec("int", None, "how many of the operands are initial states, [...]; they come first"),
            "steps": AttrSpec("int", None, "the extent of the axis; the other operands are [..., steps or 1, ...]"),
            "axis": AttrSpec("int", 0, "where, among the axes of the states, the steps are"),
        },
        reference=_reference, cost_flops=4,
    )
)  # fmt: skip
