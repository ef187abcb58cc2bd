"""Accumulators of a reduction: declared, added to, folded, in a fixed order."""

from __future__ import annotations

import math

import numpy as np

from aot.backend.cpu.code import Code, literal, register_dtype, register_type, vector_type
from aot.backend.cpu.functions import splat
from aot.backend.cpu.render import Renderer, Scope
from aot.dtypes import I32
from aot.errors import CompilerError
from aot.expr import Expr, cast

_OF_TRUTH = {"sum": "|", "max": "|", "prod": "&", "min": "&"}


class Accumulator:
    """The running result of one `reduce` node, in `partial` variables: blocks of lanes, or single values.

    NaN wins in max, min, argmax and argmin, as in numpy.
    """

    def __init__(self, renderer: Renderer, node: Expr, in_lanes: bool, partial: int) -> None:
        self.renderer = renderer
        function: str = node.payload[0]
        self.node = node
        self.in_lanes = in_lanes
        self.is_arg = function.startswith("arg")
        self.is_last = function.endswith("_last")
        self.function = function.removeprefix("arg").removesuffix("_last")
        self.dtype = node.args[0].dtype if self.is_arg else node.dtype
        if self.is_arg and self.dtype.is_bool:
            self.dtype = I32
        self.names = [renderer.name("acc") for _ in range(partial)]
        self.totals: list[str] = []
        self.index = renderer.name("at")
        if self.function not in _OF_TRUTH:
            raise CompilerError(f"{renderer.kernel.name}: no code for the reduction {function}")

    def declare(self, code: Code) -> None:
        """Writes the variables, holding the identity."""
        type_ = vector_type(self.dtype) if self.in_lanes else register_type(self.dtype)
        for name in self.names:
            code.line(f"{type_} {name} = {self._identity()};")
        if self.is_arg:
            code.line(f"{'v_i32' if self.in_lanes else 'i32'} {self.index} = {self._both('i32', '-1')};")

    def declare_totals(self, code: Code) -> None:
        """Writes second-level variables: a long sum of floats is a sum of short ones, so its error stays small."""
        if self.function == "sum" and not self.is_arg and register_dtype(self.dtype).is_float:
            self.totals = [f"{name}_total" for name in self.names]
            type_ = vector_type(self.dtype) if self.in_lanes else register_type(self.dtype)
            for total in self.totals:
                code.line(f"{type_} {total} = {self._identity()};")

    def flush(self, code: Code) -> None:
        """Writes the end of a short sum."""
        for name, total in zip(self.names, self.totals, strict=False):
            code.line(f"{total} = {total} + {name}; {name} = {self._identity()};")

    def _both(self, type_: str, text: str) -> str:
        return f"splat_{type_}({text})" if self.in_lanes else text

    def _identity(self) -> str:
        dtype, function = register_dtype(self.dtype), self.function
        value: float
        if dtype.is_bool:
            value = function in ("prod", "min")
        elif function in ("sum", "prod"):
            value = 0 if function == "sum" else 1
        elif dtype.is_float:
            value = -math.inf if function == "max" else math.inf
        else:
            limits = np.iinfo(dtype.numpy)
            value = int(limits.min if function == "max" else limits.max)
        text = literal(value, dtype)
        return splat(dtype, text) if self.in_lanes else text

    def add(self, scope: Scope, part: int, count: str | None) -> None:
        """Writes the update with the value at the scope's place; `count`: only the first lanes count."""
        code = scope.code
        value = scope.value(cast(self.node.args[0], self.dtype))
        if self.is_arg:
            self._add_index(scope, value, count)
            return
        if count is not None:
            held = "bool" if self.dtype.is_bool else register_type(self.dtype)
            value = f"select_{held}(first_bool({count}), {value}, {self._identity()})"
        code.line(f"{self.names[part]} = {self._joined(self.names[part], value)};")

    def _joined(self, left: str, right: str) -> str:
        dtype, function = register_dtype(self.dtype), self.function
        if dtype.is_bool:
            return f"{left} {_OF_TRUTH[function]} {right}"
        if function in ("sum", "prod"):
            return f"{left} {'+' if function == 'sum' else '*'} {right}"
        return (
            f"{function}_{dtype.name}({left}, {right})"
            if self.in_lanes
            else f"join_{function}_{dtype.name}({left}, {right})"
        )

    def _add_index(self, scope: Scope, value: str, count: str | None) -> None:
        code, best = scope.code, self.names[0]
        axis = self.node.payload[1]
        number: int = axis[0] if isinstance(axis, tuple) else axis
        text = scope.axis_text(number)
        if not self.in_lanes:
            with code.block(f"if ({self.index} < 0 || {self._better(value, best)})"):
                code.line(f"{best} = {value}; {self.index} = (i32){text};")
            return
        index = f"iota_i32((i32){text})" if scope.vector == number else f"splat_i32((i32){text})"
        held = self.renderer.name()
        code.line(f"const {vector_type(self.dtype)} {held} = {value};")
        sign = ">" if self.function == "max" else "<"
        tests = [f"({held} {sign} {best})"]
        if register_dtype(self.dtype).is_float:
            tests.append(f"(({held} != {held}) & ({best} == {best}))")
        if self.is_last:
            tests.append(f"({held} == {best})")
            if register_dtype(self.dtype).is_float:
                tests.append(f"(({held} != {held}) & ({best} != {best}))")
        mask = self.renderer.name()
        better = f"__builtin_convertvector({' | '.join(tests)}, v_i32) | ({self.index} < 0)"
        valid = "" if count is None else f" & first_bool({count})"
        code.line(f"const v_i32 {mask} = ({better}){valid};")
        code.line(f"{best} = select_{register_type(self.dtype)}({mask}, {held}, {best});")
        code.line(f"{self.index} = select_i32({mask}, {index}, {self.index});")

    def _better(self, value: str, best: str) -> str:
        sign = ">" if self.function == "max" else "<"
        text = f"{value} {sign} {best} || ({value} != {value} && {best} == {best})"
        if self.is_last:
            text += f" || {value} == {best} || ({value} != {value} && {best} != {best})"
        return text

    def result(self, code: Code, fold: bool) -> str:
        """Writes the end of the reduction and returns the result's name; `fold`: all lanes into one value."""
        if self.is_arg:
            return self._index_result(code, fold)
        self.flush(code)
        names = list(self.totals or self.names)
        while len(names) > 1:
            pairs = zip(names[::2], names[1::2], strict=True)
            names = [f"({self._joined(a, b)})" for a, b in pairs]
        if not fold:
            return names[0]
        dtype = register_dtype(self.dtype)
        name = self.renderer.name()
        if dtype.is_bool:
            # Lanes are 0 or -1, so "any" is their minimum.
            function = "min" if _OF_TRUTH[self.function] == "|" else "max"
            code.line(f"const i32 {name} = fold_{function}_i32({names[0]}) & 1;")
        else:
            code.line(f"const {dtype.name} {name} = fold_{self.function}_{dtype.name}({names[0]});")
        return name

    def _index_result(self, code: Code, fold: bool) -> str:
        name = self.renderer.name()
        if not fold:
            if self.in_lanes:
                code.line(f"const v_i64 {name} = __builtin_convertvector({self.index}, v_i64);")
            else:
                code.line(f"const i64 {name} = {self.index};")
            return name
        lanes, type_ = self.renderer.isa.lanes, register_type(self.dtype)
        code.line(f"i64 {name};")
        earlier = "index[l] > at" if self.is_last else "index[l] < at"
        with code.block():
            code.line(f"{type_} value[{lanes}]; i32 index[{lanes}];")
            code.line(f"store_{type_}(value, {self.names[0]}); store_i32(index, {self.index});")
            code.line(f"{type_} best = value[0]; i32 at = index[0];")
            same = "value[l] == best || (value[l] != value[l] && best != best)"
            sign = ">" if self.function == "max" else "<"
            better = f"value[l] {sign} best || (value[l] != value[l] && best == best)"
            with code.block(f"for (i32 l = 1; l < {lanes}; l++)"):
                code.line(f"if (index[l] >= 0 && (at < 0 || {better} || (({same}) && {earlier})))")
                code.line("  { best = value[l]; at = index[l]; }")
            code.line(f"{name} = at;")
        return name
