"""The text form of graphs: canonical printer and parser.

Invariants: `parse_graph(print_graph(g))` prints the same text at every level, and equal graphs print
equal, since values are renumbered, constants ordered by first use and attributes by name. The bytes
of constants are never printed, except scalars and up to eight integers.

    aot ir 1
    graph mlp level=core {
      where N in 1..64
      %0 x: f32[N,64] = input
      %1: f32[64,256] = const sha256:9f… fc1.weight
      %2: f32[N,256] = matmul(%0, %1) ; fc1
      %3 y: f32[N,256] = relu(%2)
      output %3
    }
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim, DimExpr, Symbol
from aot.dtypes import DType
from aot.errors import AotError, CompilerError, ModelError
from aot.ir import (
    NO_ATTRS,
    SIGNS,
    Array,
    Attr,
    Const,
    Graph,
    Layout,
    Level,
    Node,
    Relation,
    TensorType,
    Value,
    attr_symbols,
    const_of,
)

HEADER = "aot ir 1"
INLINE_INTEGERS = 8
ConstResolver = Callable[[str], "Const | None"]  # digest -> the constant, if it is known

_BARE = re.compile(r"[A-Za-z0-9_./$@-]+")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_RESERVED = {*dtypes.BY_NAME, "true", "false", "inf", "nan", "min", "max"}


# Printing.


def print_graph(graph: Graph) -> str:
    """The canonical text of a graph at any level."""
    return "\n".join([HEADER, *Printer(graph).graph(graph, "")]) + "\n"


def graph_digest(graph: Graph) -> str:
    """SHA-256, in hex, of the canonical text: equal for equal graphs with equal constants."""
    return hashlib.sha256(print_graph(graph).encode("utf-8", "surrogatepass")).hexdigest()


def type_text(type_: TensorType) -> str:
    """A type, such as f32[N,64,H,W]{order=0,2,3,1 halo=0:0,0:0,1:1,1:1}."""
    return _type_text(type_, str)


def quote(text: str) -> str:
    """A name as it stands in text: bare where it is plain, else a JSON string."""
    if _BARE.fullmatch(text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def lines_near(graph: Graph, node: Node | None = None, where: str = "", around: int = 2) -> list[str]:
    """The lines that define `node` (or the node that `Node.where` describes), with some before and after.

    The first lines of the graph where neither is found.
    """
    printer = Printer(graph)
    lines = printer.graph(graph, "")
    found = printer.line_of.get(node) if node is not None else None
    if found is None and where:
        op, _, rest = where.partition(" (")
        loc = quote(rest.rstrip(")").split(", ")[0]) if rest else where
        mentions = [i for i, line in enumerate(lines) if loc in line]
        found = next((i for i in mentions if f" = {op}(" in lines[i]), mentions[0] if mentions else None)
    if found is None:
        return lines[: 2 * around + 1]
    return lines[max(found - around, 0) : found + around + 1]


def consts_of(graph: Graph) -> dict[str, Const]:
    """Every constant by digest, those of nested regions too; its `get` is a resolver for `parse_graph`."""
    found = {const.digest: const for const in graph.consts.values()}
    for node in graph.nodes:
        for region in node.regions:
            found.update(consts_of(region))
    return found


def _all_symbols(graph: Graph) -> Iterator[Symbol]:
    """Symbols in the order in which the text mentions them."""
    yield from graph.environment or ()
    for value in graph.inputs:
        yield from _type_symbols(value.type)
    for node in graph.nodes:
        for value in node.outputs:
            yield from _type_symbols(value.type)
        for name in sorted(node.attrs):
            yield from attr_symbols(node.attrs[name])
        for region in node.regions:
            yield from _all_symbols(region)


def _type_symbols(type_: TensorType) -> Iterator[Symbol]:
    for dim in (*type_.shape, *type_.layout.strides):
        yield from dimension.symbols_of(dim)


class Printer:
    """Prints one graph. `line_of` tells where each node's line is, counted from the graph's own."""

    def __init__(self, graph: Graph) -> None:
        self.aliases: dict[Symbol, Symbol] = {}
        self.symbols = tuple(dict.fromkeys(_all_symbols(graph)))
        taken: set[str] = {symbol.name for symbol in self.symbols}
        printed: set[str] = set()
        for symbol in self.symbols:
            name = symbol.name
            if not _IDENTIFIER.fullmatch(name) or name in _RESERVED or name in printed:
                name = next(f"s{i}" for i in range(len(taken) + 1) if f"s{i}" not in taken)
                taken.add(name)
            printed.add(name)
            self.aliases[symbol] = symbol if name == symbol.name else replace(symbol, name=name)
        self.renames = any(symbol is not alias for symbol, alias in self.aliases.items())
        self.line_of: dict[Node, int] = {}
        self.lines: list[str] = []

    def dim(self, dim: Dim) -> str:
        if self.renames:
            dim = dimension.substitute(dim, lambda symbol: self.aliases[symbol].dim)
        return str(dim)

    def graph(self, graph: Graph, indent: str) -> list[str]:
        lines = self.lines
        lines.append(f"{indent}graph {quote(graph.name)} level={graph.level.name.lower()} {{")
        inner = indent + "  "
        if not indent:
            lines.extend(f"{inner}where {self.symbol(symbol)}" for symbol in self.symbols)
        if graph.environment is not None:
            lines.append(
                f"{inner}given {', '.join(self.aliases[symbol].name for symbol in graph.environment)}".rstrip()
            )
        names: dict[Value, str] = {}
        for value in graph.inputs:
            lines.append(f"{inner}{self.define(value, names)} = input")
        for value in _const_order(graph):
            lines.append(f"{inner}{self.define(value, names)} = {self.const(graph.consts[value])}")
        for node in graph.nodes:
            self.node(node, names, inner)
        for number, held, is_equal in graph.input_values:
            lines.append(f"{inner}value {number} {'=' if is_equal else '!='} {held}")
        for relation in graph.relations:
            left, right = self.dim(relation.left), self.dim(relation.right)
            lines.append(f"{inner}needs {left} {relation.sign} {right}")
        for kept, replacement in graph.state:
            lines.append(f"{inner}state {_reference(kept, names)} -> {_reference(replacement, names)}")
        lines.append(f"{inner}output {', '.join(_reference(value, names) for value in graph.outputs)}".rstrip())
        lines.append(f"{indent}}}")
        return lines

    def symbol(self, symbol: Symbol) -> str:
        alias = self.aliases[symbol]
        hi = "" if symbol.hi is None else str(symbol.hi)
        text = f"{alias.name} in {symbol.lo}..{hi}"
        if alias.name != symbol.name:
            text += f" name {quote(symbol.name)}"
        if symbol.divisor != 1:
            text += f" divisor {symbol.divisor}"
        if symbol.origin != "input":
            text += f" origin {quote(symbol.origin)}"
        return text

    def define(self, value: Value, names: dict[Value, str]) -> str:
        names[value] = f"%{len(names)}"
        label = f"{names[value]} {quote(value.name)}" if value.name else names[value]
        return f"{label}: {_type_text(value.type, self.dim)}"

    def const(self, const: Const) -> str:
        inline = _inline_text(const)
        what = f"const = {inline}" if inline is not None else f"const sha256:{const.digest}"
        return f"{what} {quote(const.source)}" if const.source else what

    def node(self, node: Node, names: dict[Value, str], indent: str) -> None:
        operands = ", ".join("_" if value is None else _reference(value, names) for value in node.inputs)
        results = ", ".join(self.define(value, names) for value in node.outputs)
        text = f"{indent}{results} = {node.op}({operands})" if results else f"{indent}{node.op}({operands})"
        if node.attrs:
            text += f" {{{', '.join(f'{name}={self.attr(node.attrs[name])}' for name in sorted(node.attrs))}}}"
        if node.locs:
            text += f" ; {', '.join(map(quote, node.locs))}"
        self.line_of[node] = len(self.lines)
        self.lines.append(text)
        for region in node.regions:
            self.graph(region, indent + "  ")

    def attr(self, attr: Attr) -> str:
        if isinstance(attr, bool):
            return "true" if attr else "false"
        if isinstance(attr, int):
            return str(int(attr))
        if isinstance(attr, float):
            return _float_text(attr)
        if isinstance(attr, str):
            return json.dumps(attr, ensure_ascii=not attr.isprintable())
        if isinstance(attr, DType):
            return attr.name
        if isinstance(attr, DimExpr):
            return self.dim(attr)
        if isinstance(attr, tuple):
            return f"[{', '.join(map(self.attr, attr))}]"
        raise CompilerError(f"an attribute has the type {type(attr).__name__}, which has no text form")


def _reference(value: Value, names: Mapping[Value, str]) -> str:
    found = names.get(value)
    if found is None:
        raise CompilerError(f"value {value.name!r} of type {type_text(value.type)} is used and never defined")
    return found


def _const_order(graph: Graph) -> list[Value]:
    """Constants in order of first use; unused ones last, by digest and name."""
    used: dict[Value, None] = {}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None and value in graph.consts:
                used.setdefault(value)
    for value in graph.outputs:
        if value in graph.consts:
            used.setdefault(value)
    rest = [value for value in graph.consts if value not in used]
    rest.sort(key=lambda value: (graph.consts[value].digest, graph.consts[value].source, value.name))
    return [*used, *rest]


def _type_text(type_: TensorType, dim: Callable[[Dim], str]) -> str:
    text = f"{type_.dtype.name}[{','.join(map(dim, type_.shape))}]"
    layout = type_.layout
    if not layout:
        return text
    parts = []
    if layout.order:
        parts.append(f"order={','.join(map(str, layout.order))}")
    if layout.halo:
        parts.append(f"halo={','.join(f'{before}:{after}' for before, after in layout.halo)}")
    if layout.fill:
        parts.append(f"fill={layout.fill}")
    if layout.strides:
        parts.append(f"strides={','.join(map(dim, layout.strides))}")
    return f"{text}{{{' '.join(parts)}}}"


def _float_text(number: float) -> str:
    text = repr(float(number))
    return text if any(c in text for c in ".einf") else f"{text}.0"


def _inline_text(const: Const) -> str | None:
    """The values of a small constant, or None where they are not to be printed."""
    count = math.prod(const.shape)
    family = const.dtype.family
    if count > (INLINE_INTEGERS if family in ("int", "uint", "bool") else 1):
        return None
    if family == "float" and const.shape and count:
        return None
    try:
        array = const.array()
        flat: list[Any] = np.asarray(array).reshape(-1).tolist()
        printer = _float_text if family == "float" else (lambda x: str(bool(x)).lower()) if family == "bool" else str
        numbers = [printer(float(x) if family == "float" else x) for x in flat]
        text = f"[{', '.join(numbers)}]" if const.shape else numbers[0]
        if _array_of(numbers, const.dtype, const.shape).tobytes() != np.ascontiguousarray(array).tobytes():
            return None  # a NaN with a payload has no text of its own
        return text if const_of(_array_of(numbers, const.dtype, const.shape)).digest == const.digest else None
    except (AotError, ImportError, OSError, ValueError, TypeError, OverflowError):
        return None  # bytes that cannot be had now; the digest names them


def _array_of(numbers: Sequence[str], dtype: DType, shape: tuple[int, ...]) -> Array:
    """The array of printed numbers. Raises ValueError, OverflowError."""
    if dtype.is_bool:
        if any(number not in ("true", "false") for number in numbers):
            raise ValueError("a bool constant holds true and false")
        values: list[Any] = [number == "true" for number in numbers]
    else:
        values = [float(number) if dtype.is_float else int(number) for number in numbers]
    return np.array(values, dtype=dtype.numpy).reshape(shape)


# Parsing. Line by line; each line is read by a small cursor.


def parse_graph(text: str, consts: ConstResolver | None = None) -> Graph:
    """Reads what `print_graph` prints.

    `consts` gives constants by digest, such as `consts_of(graph).get`. One that it does not know
    becomes a Const whose load() raises ModelError. Raises ModelError, naming the line, for bad text.
    """
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    parser = _Parser(lines, consts or (lambda digest: None))
    if parser.peek().strip() != HEADER:
        parser.fail(f"expected the header {HEADER!r}, got {parser.peek()[:40]!r}")
    parser.position += 1
    graph = parser.graph()
    if parser.position != len(lines):
        parser.fail(f"unexpected text after the graph: {parser.peek().strip()[:40]!r}")
    return graph


@dataclass(slots=True)
class _Cursor:
    """A place in a line."""

    text: str
    position: int = 0

    def skip(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in " \t":
            self.position += 1

    def at(self, token: str) -> bool:
        self.skip()
        return self.text.startswith(token, self.position)

    def take(self, token: str) -> bool:
        if self.at(token):
            self.position += len(token)
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise ValueError(f"expected {token!r} before {self.text[self.position : self.position + 20]!r}")

    def match(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.position)
        if found is None:
            raise ValueError(f"expected {what} before {self.text[self.position : self.position + 20]!r}")
        self.position = found.end()
        return found[0]

    def word(self) -> str:
        return self.match(_WORD, "a word")

    def name(self) -> str:
        if not self.at('"'):
            return self.match(_BARE, "a name")
        value, self.position = _JSON.raw_decode(self.text, self.position)
        return str(value)

    def until(self, closing: str) -> str:
        """The text up to a closing bracket, which is passed."""
        end = self.text.find(closing, self.position)
        if end < 0:
            raise ValueError(f"{closing!r} is missing")
        inner = self.text[self.position : end]
        self.position = end + 1
        return inner

    def dim_text(self) -> str:
        """What stands before the next comma or closing bracket that is in no parentheses."""
        depth, start = 0, self.position
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == "(":
                depth += 1
            elif character == ")":
                depth -= 1
            elif character in ",]}" and depth == 0:
                break
            self.position += 1
        text = self.text[start : self.position].strip()
        if not text:
            raise ValueError(f"expected an attribute value before {self.text[start : start + 20]!r}")
        return text

    @property
    def digit(self) -> bool:
        """Whether a digit is next."""
        return self.text[self.position : self.position + 1].isdecimal()

    @property
    def done(self) -> bool:
        self.skip()
        return self.position >= len(self.text)


_WORD = re.compile(r"[A-Za-z_][\w.]*")
_VALUE = re.compile(r"%\d+")
_INTEGER = re.compile(r"-?\d+")
_REST = re.compile(r".+")
_NUMBER = re.compile(r"true|false|-?inf|nan|-?\d[\w.+-]*")
_FLOAT = re.compile(r"-?(?:inf|nan)\b|-?\d+(?:\.\d*(?:e[+-]?\d+)?|e[+-]?\d+)")
_JSON = json.JSONDecoder()
_FIELD = re.compile(r"(order|halo|fill|strides)=")


@dataclass(slots=True)
class _Body:
    """A graph while its lines are read."""

    names: dict[str, Value] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    consts: dict[Value, Const] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    outputs: tuple[Value, ...] = ()
    state: list[tuple[Value, Value]] = field(default_factory=list)
    values: list[tuple[int, int, bool]] = field(default_factory=list)
    environment: tuple[Symbol, ...] | None = None
    relations: list[Relation] = field(default_factory=list)
    ended: bool = False


class _Parser:
    def __init__(self, lines: Sequence[tuple[int, str]], consts: ConstResolver) -> None:
        self.lines = lines
        self.position = 0
        self.consts = consts
        self.symbols: dict[str, Symbol] = {}
        self.dims: dict[str, Dim] = {}
        self.depth = 0

    def peek(self) -> str:
        return self.lines[self.position][1] if self.position < len(self.lines) else ""

    def fail(self, reason: str) -> None:
        number = self.lines[min(self.position, len(self.lines) - 1)][0] if self.lines else 1
        raise ModelError(reason, where=f"line {number}", hint="The text form is described in docs/cli.md.")

    def graph(self) -> Graph:
        """The graph that starts at this line."""
        self.depth += 1
        if self.depth > 64:
            self.fail("regions are nested more than 64 deep")
        body = _Body()
        name, level = "", Level.CORE
        try:
            cursor = _Cursor(self.peek().rstrip())
            cursor.expect("graph")
            name = cursor.name()
            cursor.expect("level=")
            word = cursor.word().upper()
            if word not in Level.__members__:
                raise ValueError(f"unknown level {word.lower()!r}; levels are core, fused, ordered")
            level = Level[word]
            cursor.expect("{")
            self.end(cursor)
            self.position += 1
            while not body.ended:
                if self.position >= len(self.lines):
                    raise ValueError("the graph does not end; '}' is missing")
                self.line(body)
        except (ValueError, ZeroDivisionError, OverflowError, RecursionError) as error:
            self.fail(str(error))
        self.depth -= 1
        return Graph(
            name, tuple(body.inputs), body.consts, tuple(body.nodes), body.outputs, tuple(body.state), level,
            tuple(body.values), body.environment, tuple(body.relations),
        )  # fmt: skip

    def end(self, cursor: _Cursor) -> None:
        if not cursor.done:
            raise ValueError(f"unexpected {cursor.text[cursor.position : cursor.position + 20]!r}")

    def line(self, body: _Body) -> None:
        cursor = _Cursor(self.peek().rstrip())
        if cursor.take("}"):
            body.ended = True
        elif cursor.take("where "):
            self.symbol(cursor)
        elif cursor.take("given"):
            body.environment = tuple(self.given(cursor))
        elif cursor.take("value "):
            number = int(cursor.match(_INTEGER, "the number of an input"))
            is_equal = not cursor.take("!=")
            if is_equal:
                cursor.expect("=")
            body.values.append((number, int(cursor.match(_INTEGER, "an integer")), is_equal))
        elif cursor.take("needs "):
            body.relations.append(self.relation(cursor.match(_REST, "a relation")))
        elif cursor.take("state "):
            kept = self.reference(cursor, body)
            cursor.expect("->")
            body.state.append((kept, self.reference(cursor, body)))
        elif cursor.take("output"):
            body.outputs = tuple(self.references(cursor, body))
        else:
            self.definition(cursor, body)
        self.end(cursor)
        self.position += 1
        while not body.ended and body.nodes and self.peek().lstrip().startswith("graph "):
            region = self.graph()
            body.nodes[-1] = replace(body.nodes[-1], regions=(*body.nodes[-1].regions, region))

    def symbol(self, cursor: _Cursor) -> None:
        alias = cursor.match(_IDENTIFIER, "a symbol")
        if alias in self.symbols or alias in _RESERVED:
            raise ValueError(f"symbol {alias!r} is declared twice or reserved")
        cursor.expect("in")
        lo = int(cursor.match(_INTEGER, "a bound"))
        cursor.expect("..")
        hi = (
            None if cursor.done or not _INTEGER.match(cursor.text, cursor.position) else int(cursor.match(_INTEGER, ""))
        )
        name, divisor, origin = alias, 1, "input"
        while not cursor.done:
            word = cursor.word()
            if word == "name":
                name = cursor.name()
            elif word == "divisor":
                divisor = int(cursor.match(_INTEGER, "a divisor"))
            elif word == "origin":
                origin = cursor.name()
            else:
                raise ValueError(f"a symbol has name, divisor and origin, not {word!r}")
        self.symbols[alias] = Symbol(name, lo, hi, divisor, origin)

    def relation(self, text: str) -> Relation:
        for sign in SIGNS:
            left, found, right = text.partition(f" {sign} ")
            if found:
                return Relation(self.dim(left), sign, self.dim(right))
        raise ValueError(f"expected two sizes with one of {', '.join(SIGNS)} between them")

    def given(self, cursor: _Cursor) -> Iterator[Symbol]:
        while not cursor.done:
            name = cursor.match(_IDENTIFIER, "a symbol")
            if name not in self.symbols:
                raise ValueError(f"symbol {name!r} is used before it is declared")
            yield self.symbols[name]
            if not cursor.take(","):
                break

    def references(self, cursor: _Cursor, body: _Body) -> Iterator[Value]:
        while not cursor.done:
            yield self.reference(cursor, body)
            if not cursor.take(","):
                break

    def reference(self, cursor: _Cursor, body: _Body) -> Value:
        name = cursor.match(_VALUE, "a value such as %0")
        if name not in body.names:
            raise ValueError(f"{name} is used before it is defined")
        return body.names[name]

    def definition(self, cursor: _Cursor, body: _Body) -> None:
        results: list[tuple[str, Value]] = []
        while cursor.at("%"):
            name = cursor.match(_VALUE, "a value")
            label = "" if cursor.at(":") else cursor.name()
            cursor.expect(":")
            results.append((name, Value(self.type(cursor), label)))
            if not cursor.take(","):
                break
        if results:
            cursor.expect("=")
        op = cursor.word()
        if op in ("input", "const") and not cursor.at("("):
            if len(results) != 1:
                raise ValueError(f"{op} defines one value")
            value = results[0][1]
            if op == "input":
                body.inputs.append(value)
            else:
                body.consts[value] = self.const(cursor, value.type)
        else:
            body.nodes.append(self.node(op, cursor, tuple(value for _, value in results), body))
        for name, value in results:
            if name in body.names:
                raise ValueError(f"{name} is defined twice")
            body.names[name] = value

    def type(self, cursor: _Cursor) -> TensorType:
        word = cursor.word()
        if word not in dtypes.BY_NAME:
            raise ValueError(f"unknown element type {word!r}")
        cursor.expect("[")
        shape = self.dim_list(cursor.until("]"))
        if not cursor.text.startswith("{", cursor.position):
            return TensorType(dtypes.BY_NAME[word], shape)
        cursor.position += 1
        return TensorType(dtypes.BY_NAME[word], shape, self.layout(cursor.until("}")))

    def layout(self, text: str) -> Layout:
        pieces = _FIELD.split(text)
        fields = dict(zip(pieces[1::2], (piece.strip() for piece in pieces[2::2]), strict=True))
        if pieces[0].strip() or not fields:
            raise ValueError(f"a layout has order, halo, fill and strides, got {text!r}")
        order = tuple(int(item) for item in fields["order"].split(",")) if "order" in fields else ()
        halo: list[tuple[int, int]] = []
        for item in fields["halo"].split(",") if "halo" in fields else ():
            before, _, after = item.partition(":")
            halo.append((int(before), int(after)))
        strides = self.dim_list(fields["strides"]) if "strides" in fields else ()
        return Layout(order, tuple(halo), strides, int(fields.get("fill", 0)))

    def dim_list(self, text: str) -> tuple[Dim, ...]:
        return tuple(map(self.dim, _split(text)))

    def dim(self, text: str) -> Dim:
        text = text.strip()
        if text.isdecimal():
            return int(text)
        if text not in self.dims:
            if len(text) > 10_000:
                raise ValueError("a dimension of more than 10,000 characters")
            self.dims[text] = dimension.parse_dim(text, self.symbols)
        return self.dims[text]

    def const(self, cursor: _Cursor, type_: TensorType) -> Const:
        shape: list[int] = []
        for extent in type_.shape:
            if not isinstance(extent, int):
                raise ValueError("the shape of a constant is known")
            shape.append(extent)
        if cursor.take("="):
            if cursor.take("["):
                numbers = [item.strip() for item in cursor.until("]").split(",") if item.strip()]
            else:
                numbers = [cursor.match(_NUMBER, "a number")]
            if len(numbers) != math.prod(shape):
                raise ValueError(f"{type_text(type_)} has {math.prod(shape)} elements, the line gives {len(numbers)}")
            array = _array_of(numbers, type_.dtype, tuple(shape))
            source = "" if cursor.done else cursor.name()
            return const_of(array, source)
        cursor.expect("sha256:")
        digest = cursor.match(_HEX, "64 hexadecimal digits")
        source = "" if cursor.done else cursor.name()
        known = self.consts(digest)
        if known is None:
            return Const(digest, type_.dtype, tuple(shape), source, _missing(source, digest))
        if known.dtype != type_.dtype or known.shape != tuple(shape):
            raise ValueError(
                f"constant {source!r} is {known.dtype}{list(known.shape)}, the line says {type_text(type_)}"
            )
        return replace(known, source=source)

    def node(self, op: str, cursor: _Cursor, results: tuple[Value, ...], body: _Body) -> Node:
        cursor.expect("(")
        operands: list[Value | None] = []
        while not cursor.take(")"):
            operands.append(None if cursor.take("_") else self.reference(cursor, body))
            if not cursor.take(","):
                cursor.expect(")")
                break
        attrs: dict[str, Attr] = {}
        if cursor.take("{"):
            while not cursor.take("}"):
                name = cursor.word()
                if name in attrs:
                    raise ValueError(f"attribute {name!r} is given twice")
                cursor.expect("=")
                attrs[name] = self.attr(cursor)
                if not cursor.take(","):
                    cursor.expect("}")
                    break
        locs: list[str] = []
        if cursor.take(";"):
            locs.append(cursor.name())
            while cursor.take(","):
                locs.append(cursor.name())
        return Node(op, tuple(operands), results, MappingProxyType(attrs) if attrs else NO_ATTRS, tuple(locs))

    def attr(self, cursor: _Cursor, depth: int = 0) -> Attr:
        if cursor.take("["):
            if depth > 16:
                raise ValueError("an attribute is nested more than 16 deep")
            items: list[Attr] = []
            while not cursor.take("]"):
                items.append(self.attr(cursor, depth + 1))
                if not cursor.take(","):
                    cursor.expect("]")
                    break
            return tuple(items)
        if cursor.at('"'):
            return cursor.name()
        for text, value in (("true", True), ("false", False)):
            if cursor.at(text) and not cursor.text[cursor.position + len(text) :][:1].isalnum():
                cursor.position += len(text)
                return value
        cursor.skip()
        found = _FLOAT.match(cursor.text, cursor.position)
        if found is not None:
            cursor.position = found.end()
            return float(found[0])
        text = cursor.dim_text()
        if _INTEGER.fullmatch(text):
            return int(text)
        return dtypes.BY_NAME[text] if text in dtypes.BY_NAME else self.dim(text)


_HEX = re.compile(r"[0-9a-f]{64}")


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no parentheses; none for blank text."""
    depth = start = 0
    if not text.strip():
        return
    for position, character in enumerate(text):
        if character == "(":
            depth += 1
        elif character == ")":
            depth -= 1
        elif character == "," and not depth:
            yield text[start:position]
            start = position + 1
    yield text[start:]


def _missing(source: str, digest: str) -> Callable[[], Array]:
    def load() -> Array:
        raise ModelError(
            f"the bytes of constant {source!r} (sha256 {digest[:12]}…) are not in the text",
            where=source,
            hint="Give the model that holds it, such as: aotc opt FILE.air --weights model.onnx.",
        )

    return load
