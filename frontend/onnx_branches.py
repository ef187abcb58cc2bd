"""Branches that an input chooses: If on the value of a one-element input, or on a size.

An `If` whose condition compares an integer or bool input with a number (a sample rate, a flag) is resolved
by importing the model once for each answer: every import is a graph of its own, good where the input
holds that number, and the last one is for all other numbers. A condition that compares sizes is taken to
be true, which becomes a condition on the inputs' sizes, as every other that an import needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aot.dtypes import BOOL
from aot.frontend.known import KnownBuilder
from aot.frontend.known_scalars import is_symbolic
from aot.ir import Value
from aot.ops.opdef import DimMismatch

_KEEPS_THE_ELEMENT = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Cast", "Gather"})

MOST_ANSWERS = 6  # that one program is made for
MOST_INPUTS = 3  # that it asks


@dataclass(frozen=True)
class Choices:
    """What an import takes inputs to hold: `chosen` numbers, or none of the `excluded` ones, by name."""

    chosen: Mapping[str, int] = field(default_factory=dict)
    excluded: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @property
    def full(self) -> bool:
        """Whether further conditions are left to the run: each input with choices multiplies the programs."""
        answers = len(self.chosen) + sum(map(len, self.excluded.values()))
        return answers >= MOST_ANSWERS or len({*self.chosen, *self.excluded}) >= MOST_INPUTS

    def with_chosen(self, name: str, value: int) -> Choices:
        return Choices({**self.chosen, name: value}, self.excluded)

    def without(self, name: str, value: int) -> Choices:
        return Choices(self.chosen, {**self.excluded, name: self.excluded.get(name, frozenset()) | {value}})


class InputChoice(Exception):
    """The import has to go on twice: where the input holds the number, and where it does not."""

    def __init__(self, name: str, value: int) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value


class Branches:
    """Follows one-element inputs to the comparisons that conditions are made of."""

    def __init__(self, choices: Choices) -> None:
        self.choices = choices
        self._element: dict[Value, str] = {}  # values that hold the one element of an input
        self._tests: dict[Value, tuple[str, int]] = {}  # this input == this number
        self._sizes: dict[Value, tuple[Any, Any]] = {}  # this size == that size, undecided

    def input(self, builder: KnownBuilder, name: str, value: Value) -> None:
        """Notes an input, and gives it its contents where they are chosen."""
        if value.type.elements != 1 or value.type.dtype.is_float:
            return
        self._element[value] = name
        held = self.choices.chosen.get(name)
        if value.type.dtype.is_bool and 1 in self.choices.excluded.get(name, ()):
            held = 0  # there is no third answer
        if held is not None:
            contents = np.empty(tuple(int(str(extent)) for extent in value.type.shape), object)
            contents[...] = bool(held) if value.type.dtype.is_bool else held
            builder.assume(value, contents)

    def result(self, builder: KnownBuilder, op_type: str, inputs: Sequence[Value | None], made: Value) -> Value:
        """Follows a node; its result, which may now be known."""
        sources = [value for value in inputs if value is not None]
        if not sources or made.type.elements != 1 or builder.known(made) is not None:
            return made
        first = sources[0]
        if op_type in _KEEPS_THE_ELEMENT and first in self._element:
            self._element[made] = self._element[first]
        elif op_type == "Equal" and len(sources) == 2:
            return self._equal(builder, sources, made)
        return made

    def _equal(self, builder: KnownBuilder, sources: Sequence[Value], made: Value) -> Value:
        contents = [builder.known(value) for value in sources]
        for value, other in ((sources[0], contents[1]), (sources[1], contents[0])):
            if value in self._element and other is not None and not is_symbolic(other.flat[0]):
                name, number = self._element[value], int(other.flat[0])
                if number in self.choices.excluded.get(name, ()):
                    return builder.known_value(np.full(made.type.shape, False, object), BOOL)
                self._tests[made] = (name, number)
        left, right = contents
        if left is not None and right is not None and left.size == right.size == 1:
            self._sizes[made] = (left.flat[0], right.flat[0])
        return made

    def decide_by_input(self, condition: Value) -> None:
        """Raises InputChoice for a condition on what an input holds: the model is imported for each answer."""
        if condition in self._tests:
            raise InputChoice(*self._tests[condition])
        if condition in self._element and condition.type.dtype.is_bool:
            raise InputChoice(self._element[condition], 1)

    def decide_by_size(self, condition: Value) -> None:
        """Raises DimMismatch for a condition on sizes: it is taken to be true, as a rule for the inputs."""
        if condition in self._sizes:
            left, right = self._sizes[condition]
            raise DimMismatch(f"a branch is taken where {left} is {right}", left, right)
