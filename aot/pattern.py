"""Rewrite rules: pattern + check + replacement, and the driver that runs them to a fixed point.

A pattern describes a value by how it is computed. A rule's check looks at a match and answers with
the reason it declines; the driver records that reason, so that `aotc opt --why RULE NODE` can tell.
Invariant: every rewrite lowers the measure that its rule states; one that does not is a defect of
the rule and raises CompilerError. Values keep their identity and names: a replacement takes over
the value that it replaces, so that outputs of the model stay what they were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from aot.builder import Builder
from aot.errors import CompilerError
from aot.ir import Array, Attr, Const, Graph, Node, Value
from aot.ops import OPS, Kind, OpError

SILENT = ""  # what a check answers when declining is not worth telling

FoldFn = Callable[[Node, Sequence["Const | None"]], "tuple[Const, ...] | None"]


class RewriteContext(Protocol):
    """What the driver asks of the pass that runs it; `aot.passes.Context` is one."""

    def allow(self, rule: str, where: str = "") -> bool:
        """Whether the next rewrite may fire (bisection counts them)."""
        ...

    def refuse(self, rule: str, where: str, reason: str) -> None:
        """Records that a rule matched and declined."""
        ...


# Patterns.


class Pattern:
    """A description of a value. `match` yields once for every way in which it holds."""

    __slots__ = ()

    def match(self, value: Value | None, matching: Matching) -> Iterator[None]:
        raise CompilerError("a pattern needs its own match")

    def __or__(self, other: Pattern) -> Pattern:
        return Either((self, other))

    @property
    def depth(self) -> int:
        """How many nodes deep the pattern looks."""
        return 0


class Matching:
    """Bindings while a pattern is tried; patterns undo their own when they are resumed."""

    __slots__ = ("matched", "nodes", "values", "view")

    def __init__(self, view: View) -> None:
        self.view = view
        self.values: dict[str, Value | None] = {}
        self.nodes: dict[str, Node] = {}
        self.matched: list[tuple[Node, bool]] = []


_ABSENT: Any = object()


@dataclass(frozen=True, slots=True)
class AnyValue(Pattern):
    """Any value; the same name twice must be the same value (or an equal constant)."""

    name: str
    optional: bool = False  # an omitted operand matches too, and binds None

    def match(self, value: Value | None, matching: Matching) -> Iterator[None]:
        if value is None and not self.optional:
            return
        bound = matching.values.get(self.name, _ABSENT)
        if bound is _ABSENT:
            matching.values[self.name] = value
            yield
            del matching.values[self.name]
        elif bound is value or matching.view.same(bound, value):
            yield


@dataclass(frozen=True, slots=True)
class Constant(Pattern):
    """A constant. `number`: every element is that number, up to `tolerance` (relative)."""

    name: str = ""
    number: float | None = None
    splat: bool = False  # all elements equal
    tolerance: float = 1e-5

    def match(self, value: Value | None, matching: Matching) -> Iterator[None]:
        if value is None or value not in matching.view.consts:
            return
        if self.number is not None or self.splat:
            found = matching.view.number(value)
            if found is None:
                return
            if self.number is not None and not abs(found - self.number) <= self.tolerance * abs(self.number):
                return
        if not self.name:
            yield
            return
        yield from AnyValue(self.name).match(value, matching)


@dataclass(frozen=True, slots=True)
class Op(Pattern):
    """A value computed by one of `ops`. Without `inputs`, the operands do not matter.

    `name` binds the node. `shared`: the value may be read by nodes outside the match too; otherwise
    such a match is declined. Commutative ops match in both orders. Operands that a node has beyond
    `inputs` must be absent.
    """

    ops: frozenset[str]
    inputs: tuple[Pattern, ...] | None = None
    name: str = ""
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    shared: bool = False

    @property
    def depth(self) -> int:
        return 1 + max((p.depth for p in self.inputs or ()), default=0)

    def match(self, value: Value | None, matching: Matching) -> Iterator[None]:
        node = matching.view.producer.get(value) if value is not None else None
        if node is not None:
            yield from self.match_node(node, matching)

    def match_node(self, node: Node, matching: Matching) -> Iterator[None]:
        """Matches a node rather than a value; the root of a rule is tried this way."""
        if node.op not in self.ops:
            return
        for key, wanted in self.attrs.items():
            if node.attrs.get(key) != wanted:
                return
        matching.matched.append((node, self.shared))
        if self.name:
            matching.nodes[self.name] = node
        if self.inputs is None:
            yield
        else:
            for operands in self._orders(node):
                yield from self._operands(operands, 0, matching)
        matching.matched.pop()
        if self.name:
            del matching.nodes[self.name]

    def _orders(self, node: Node) -> Iterator[tuple[Value | None, ...]]:
        assert self.inputs is not None
        if any(v is not None for v in node.inputs[len(self.inputs) :]):
            return
        operands = node.inputs[: len(self.inputs)] + (None,) * (len(self.inputs) - len(node.inputs))
        yield operands
        if len(operands) == 2 and OPS[node.op].commutative and operands[0] is not operands[1]:
            yield operands[::-1]

    def _operands(self, operands: tuple[Value | None, ...], index: int, matching: Matching) -> Iterator[None]:
        assert self.inputs is not None
        if index == len(self.inputs):
            yield
            return
        for _ in self.inputs[index].match(operands[index], matching):
            yield from self._operands(operands, index + 1, matching)


@dataclass(frozen=True, slots=True)
class Either(Pattern):
    """One of several patterns, tried in order."""

    choices: tuple[Pattern, ...]

    @property
    def depth(self) -> int:
        return max(p.depth for p in self.choices)

    def match(self, value: Value | None, matching: Matching) -> Iterator[None]:
        for choice in self.choices:
            yield from choice.match(value, matching)

    def __or__(self, other: Pattern) -> Pattern:
        return Either((*self.choices, other))


def op(
    names: str | Iterable[str],
    *inputs: Pattern | str,
    name: str = "",
    shared: bool = False,
    **attrs: Attr,
) -> Op:
    """An Op pattern: `op("mul", "x", number(0.5))`. A str operand is any value of that name.

    `names` are op names, separated by spaces in a str. With no operands given, they do not matter.
    """
    wanted = frozenset(names.split() if isinstance(names, str) else names)
    patterns = tuple(AnyValue(p) if isinstance(p, str) else p for p in inputs)
    return Op(wanted, patterns or None, name, MappingProxyType(attrs), shared)


def number(value: float, name: str = "", tolerance: float = 1e-5) -> Constant:
    """A constant whose every element is `value`."""
    return Constant(name, number=value, tolerance=tolerance)


def maybe(names: str, inner: Pattern, *rest: Pattern | str, name: str = "", shared: bool = False) -> Pattern:
    """`inner` itself, or one op applied to it (with `rest` as the other operands)."""
    return Either((inner, op(names, inner, *rest, name=name, shared=shared)))


# Matches and rules.


class Match:
    """One way in which a rule's pattern holds at a node.

    `m["x"]` is a bound value, `m.node("n")` a bound node. `facts` carries what the check worked out
    to the replacement.
    """

    def __init__(self, view: View, root: Node, matching: Matching) -> None:
        self.view = view
        self.root = root
        self.values: dict[str, Value | None] = dict(matching.values)
        self.nodes: dict[str, Node] = dict(matching.nodes)
        self.matched: dict[Node, bool] = {}
        for node, shared in matching.matched:
            self.matched[node] = self.matched.get(node, False) or shared
        self.facts: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Value:
        value = self.values[name]
        if value is None:
            raise CompilerError(f"the operand bound to {name!r} is omitted")
        return value

    def get(self, name: str) -> Value | None:
        """A bound value; None where the operand is omitted or the name is not bound."""
        return self.values.get(name)

    def node(self, name: str) -> Node:
        return self.nodes[name]

    def number(self, name: str) -> float:
        """The number that every element of a bound constant is; raises CompilerError for others."""
        found = self.view.number(self[name])
        if found is None:
            raise CompilerError(f"the constant bound to {name!r} is not uniform")
        return found

    def include(self, *nodes: Node) -> None:
        """Counts further nodes to the match: the replacement carries their names when they go."""
        for node in nodes:
            self.matched.setdefault(node, True)

    def problem(self) -> str | None:
        """Why an inner node cannot go: somebody outside the match reads it."""
        for node, shared in self.matched.items():
            if node is self.root or shared:
                continue
            for value in node.outputs:
                if value in self.view.outputs:
                    return f"its inner value of {node.where} is an output of the model"
                for user in self.view.users.get(value, ()):
                    if user not in self.matched:
                        return f"its inner value of {node.where} is also read by {user.where}"
        return None

    def dying(self) -> list[Node]:
        """The matched nodes that nobody needs once the root is replaced, in graph order."""
        gone = {self.root}
        for node in sorted(self.matched, key=self.view.rank.__getitem__, reverse=True):
            if node not in gone and all(
                value not in self.view.outputs and all(u in gone for u in self.view.users.get(value, ()))
                for value in node.outputs
            ):
                gone.add(node)
        return sorted(gone, key=self.view.rank.__getitem__)


CheckFn = Callable[[Match], str | None]
ReplaceFn = Callable[[Builder, Match], Value | Sequence[Value]]
MeasureFn = Callable[[Sequence[Node], "View"], float]

_KIND_COST = {
    Kind.MAP: 1.0,
    Kind.REDUCE: 3.0,
    Kind.ROW: 3.0,
    Kind.SCAN_AXIS: 3.0,
    Kind.CONTRACT: 100.0,
    Kind.WINDOW: 100.0,
    Kind.ATTEND: 100.0,
    Kind.RECUR: 100.0,
    Kind.GATHER: 2.0,
    Kind.VIEW: 0.25,
}


def node_cost(node: Node) -> float:
    """A rough, size-free price of a node: passes over memory first, scalar operations second."""
    definition = OPS.get(node.op)
    if definition is None:
        return 10.0
    if node.op == "transpose":
        return 1.5
    return _KIND_COST.get(definition.kind, 10.0) + 0.01 * definition.cost_flops


MEASURES: dict[str, MeasureFn] = {
    "nodes": lambda nodes, view: len(nodes),
    "cost": lambda nodes, view: sum(map(node_cost, nodes)),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A rewrite: where `pattern` holds and `check` gives no reason against it, `replace` builds anew.

    `measure` names or computes what every rewrite lowers: removed nodes against added ones. `exact`:
    the rewrite keeps the bits; others are off under the option `exact`. `leaves_copies`: it happens
    even where all that it gains is that an output of the model becomes a copy of something.
    """

    name: str
    pattern: Op
    replace: ReplaceFn
    check: CheckFn = lambda m: None
    measure: str | MeasureFn = "nodes"
    exact: bool = True
    doc: str = ""
    leaves_copies: bool = False


def rule(
    pattern: Op,
    *,
    check: CheckFn | None = None,
    measure: str | MeasureFn = "nodes",
    exact: bool = True,
    name: str = "",
) -> Callable[[ReplaceFn], Rule]:
    """Decorator: makes a Rule of its replacement function; the docstring is the rule's sentence."""

    def make(function: ReplaceFn) -> Rule:
        title = name or getattr(function, "__name__", "rule")
        return Rule(
            title, pattern, function, check or (lambda m: None), measure, exact, (function.__doc__ or "").strip()
        )

    return make


class Declined(Exception):
    """Raised inside a replacement that finds it cannot go on; the text is the reason."""


# The graph while it is rewritten.


class View:
    """A graph under rewriting: producers, users and constants, always up to date."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.consts: dict[Value, Const] = dict(graph.consts)
        self.inputs = frozenset(graph.inputs)
        self.outputs: frozenset[Value] = frozenset(graph.outputs) | {value for _, value in graph.state}
        self.producer: dict[Value, Node] = {}
        self.users: dict[Value, dict[Node, None]] = {}
        self.rank: dict[Node, tuple[int, int]] = {}
        self._serial = 0
        self._numbers: dict[str, float | None] = {}
        for index, node in enumerate(graph.nodes):
            self.add(node, (index, 0))

    def add(self, node: Node, rank: tuple[int, int]) -> None:
        self.rank[node] = rank
        for value in node.outputs:
            self.producer[value] = node
        for value in node.operands:
            self.users.setdefault(value, {})[node] = None

    def drop(self, node: Node) -> None:
        del self.rank[node]
        for value in node.outputs:
            if self.producer.get(value) is node:
                del self.producer[value]
        for value in dict.fromkeys(node.operands):
            self.users[value].pop(node, None)

    def place_at(self, node: Node) -> tuple[int, int]:
        """A fresh rank just after a node's."""
        self._serial += 1
        return (self.rank[node][0], self._serial)

    def const(self, value: Value | None) -> Const | None:
        """The constant behind a value."""
        return self.consts.get(value) if value is not None else None

    def array(self, value: Value) -> Array:
        """The elements of a constant value."""
        return self.consts[value].array()

    def number(self, value: Value | None) -> float | None:
        """The number that every element of a constant is; None for other values."""
        const = self.const(value)
        return None if const is None else self.uniform(const)

    def uniform(self, const: Const) -> float | None:
        """The number that every element of a constant is, or None."""
        if const.digest not in self._numbers:
            self._numbers[const.digest] = _uniform(const)
        return self._numbers[const.digest]

    def same(self, left: Value | None, right: Value | None) -> bool:
        """Whether two values are one, or are equal constants."""
        if left is right:
            return True
        first, second = self.const(left), self.const(right)
        return first is not None and second is not None and first.digest == second.digest

    def sole_user(self, value: Value) -> Node | None:
        """The one node that reads a value which is no output; None where there are more or none."""
        users = self.users.get(value, {})
        return next(iter(users)) if len(users) == 1 and value not in self.outputs else None

    def finish(self) -> Graph:
        """The graph as it now is, every value defined before its use."""
        ordered: list[Node] = []
        state: dict[Node, int] = {}
        for start in sorted(self.rank, key=self.rank.__getitem__):
            stack = [start]
            while stack:
                node = stack[-1]
                if node not in state:
                    state[node] = 1
                    before = [self.producer[v] for v in node.operands if v in self.producer]
                    pending = [n for n in before if state.get(n) != 2]
                    if any(state.get(n) == 1 for n in pending):
                        raise CompilerError("a rewrite made a cycle", where=node.where)
                    stack.extend(reversed(pending))
                    if pending:
                        continue
                stack.pop()
                if state[node] != 2:
                    state[node] = 2
                    ordered.append(node)
        used = {value for node in ordered for value in node.operands} | self.outputs
        consts = {value: const for value, const in self.consts.items() if value in used}
        return self.graph.with_(nodes=tuple(ordered), consts=consts)


def _uniform(const: Const) -> float | None:
    if const.dtype.bits < 8 or 0 in const.shape:
        return None
    array = const.array().reshape(-1)
    first = array[0]
    if array[-1] != first or not bool(np.all(array == first)):
        return None
    return bool(first) if const.dtype.is_bool else int(first) if const.dtype.is_integer else float(first)


class RewriteBuilder(Builder):
    """The builder of a replacement: folds nodes whose operands are all constants as it goes."""

    def __init__(self, view: View, locs: tuple[str, ...], fold: FoldFn | None) -> None:
        super().__init__(locs=locs)
        self.view = view
        self.fold = fold

    def constant_of(self, value: Value | None) -> Const | None:
        """The constant behind a value, new or old."""
        if value is None:
            return None
        return self.consts.get(value) or self.view.consts.get(value)

    def op(self, name: str, *inputs: Value | None, **attrs: Attr) -> tuple[Value, ...]:
        outputs = super().op(name, *inputs, **attrs)
        if self.fold is None or not inputs:
            return outputs
        consts = [self.constant_of(v) for v in inputs]
        if any(c is None and v is not None for c, v in zip(consts, inputs, strict=True)):
            return outputs
        folded = self.fold(self.nodes[-1], consts)
        if folded is None:
            return outputs
        self.nodes.pop()
        return tuple(self.const(const) for const in folded)


# The driver.


def rewrite(
    graph: Graph,
    rules: Sequence[Rule],
    context: RewriteContext,
    *,
    fold: FoldFn | None = None,
    exact: bool = False,
) -> Graph:
    """Applies rules until none fires; the very same graph when none did.

    fold: makes constants of a node's results, or answers None. exact: rules that change rounding
    decline. Raises CompilerError for a rule that does not lower its measure, builds another type, or
    never ends.
    """
    return _Driver(graph, rules, context, fold, exact).run()


class _Driver:
    def __init__(
        self, graph: Graph, rules: Sequence[Rule], context: RewriteContext, fold: FoldFn | None, exact: bool
    ) -> None:
        self.graph = graph
        self.view = View(graph)
        self.context = context
        self.fold = fold
        self.exact = exact
        self.by_op: dict[str, list[Rule]] = {}
        for entry in rules:
            for name in sorted(entry.pattern.ops):
                self.by_op.setdefault(name, []).append(entry)
        self.depth = max((entry.pattern.depth for entry in rules), default=1) + 1
        self.queue: deque[Node] = deque(graph.nodes)
        self.queued: set[Node] = set(graph.nodes)
        self.refusals: dict[tuple[str, Node], str] = {}
        self.fired: list[str] = []
        self.limit = 20 * len(graph.nodes) + 1000

    def run(self) -> Graph:
        while self.queue:
            node = self.queue.popleft()
            self.queued.discard(node)
            if node not in self.view.rank:
                continue
            for entry in self.by_op.get(node.op, ()):
                if self._try(entry, node):
                    break
        for (name, node), reason in self.refusals.items():
            if node in self.view.rank:
                self.context.refuse(name, node.where, reason)
        return self.view.finish() if self.fired else self.graph

    def _try(self, entry: Rule, node: Node) -> bool:
        matching = Matching(self.view)
        refusal: str | None = None
        for _ in entry.pattern.match_node(node, matching):
            match = Match(self.view, node, matching)
            reason = entry.check(match)
            if reason is None:
                reason = match.problem()
            if reason is None and self.exact and not entry.exact:
                reason = "it would change rounding, and exact arithmetic is asked for"
            if reason is None:
                reason = self._fire(entry, match)
                if reason is None:
                    return True
            refusal = refusal or reason
        if refusal:
            self.refusals[entry.name, node] = refusal
        else:
            self.refusals.pop((entry.name, node), None)
        return False

    def _fire(self, entry: Rule, match: Match) -> str | None:
        view, root = self.view, match.root
        dying = match.dying()
        locs = tuple(dict.fromkeys(loc for node in dying for loc in node.locs))
        builder = RewriteBuilder(view, locs, self.fold)
        try:
            built = entry.replace(builder, match)
        except Declined as declined:
            return str(declined)
        except OpError as error:
            raise CompilerError(f"rule {entry.name} built an ill-typed node: {error}", where=root.where) from error
        results = (built,) if isinstance(built, Value) else tuple(built)
        if len(results) != len(root.outputs):
            raise CompilerError(
                f"rule {entry.name} gives {len(results)} results for {len(root.outputs)}", where=root.where
            )
        for old, new in zip(root.outputs, results, strict=True):
            if old.type.dtype is not new.type.dtype or old.type.rank != new.type.rank:
                raise CompilerError(f"rule {entry.name} gives {new.type}, not {old.type}", where=root.where)
            if old.type.shape != new.type.shape:
                if all(isinstance(d, int) for d in (*old.type.shape, *new.type.shape)):
                    raise CompilerError(f"rule {entry.name} gives {new.type}, not {old.type}", where=root.where)
                return f"its result would be {new.type}, which is not known to equal {old.type}"
        builder.nodes[:] = [_named_first(node, dying) for node in builder.nodes]
        fresh = {value for node in builder.nodes for value in node.outputs}
        for old, new in zip(root.outputs, results, strict=True):
            alone = len(dying) < 2 and not entry.leaves_copies
            if old in view.outputs and new not in fresh and not self._can_adopt(new) and alone:
                return "it is an output of the model, and would be an input, a constant or another output"
        self._check_measure(entry, match, builder, results)
        if not self.context.allow(entry.name, root.where):
            return "switched off by --disable or --bisect"
        self._commit(entry, match, builder, results)
        return None

    def _check_measure(self, entry: Rule, match: Match, builder: RewriteBuilder, results: Sequence[Value]) -> None:
        """Raises CompilerError unless the rewrite lowers its rule's measure: what goes against what comes."""
        measure = MEASURES[entry.measure] if isinstance(entry.measure, str) else entry.measure
        needed = set(results)
        coming: list[Node] = []
        for node in reversed(builder.nodes):
            if any(value in needed for value in node.outputs):
                coming.append(node)
                needed.update(node.operands)
        going = self._doomed(match.root, needed)
        before, after = measure(going, self.view), measure(coming[::-1], self.view)
        if not after < before:
            raise CompilerError(
                f"rule {entry.name} does not lower its measure ({before:g} before, {after:g} after)",
                where=match.root.where,
            )

    def _doomed(self, root: Node, needed: set[Value]) -> list[Node]:
        """The root, and the nodes that nobody reads once it is gone and `needed` is read instead."""
        view = self.view
        doomed = {root: None}
        pending = list(root.operands)
        while pending:
            value = pending.pop()
            node = view.producer.get(value)
            if node is None or node in doomed:
                continue
            if all(
                v not in view.outputs and v not in needed and all(u in doomed for u in view.users.get(v, ()))
                for v in node.outputs
            ):
                doomed[node] = None
                pending.extend(node.operands)
        return list(doomed)

    def _can_adopt(self, value: Value) -> bool:
        return value in self.view.producer and value not in self.view.outputs

    def _commit(self, entry: Rule, match: Match, builder: RewriteBuilder, results: Sequence[Value]) -> None:
        view, root = self.view, match.root
        view.consts.update(builder.consts)
        renamed: dict[Value, Value] = {}
        fresh = {value for node in builder.nodes for value in node.outputs}
        moved: list[tuple[Value, Value]] = []
        for old, new in zip(root.outputs, results, strict=True):
            if new in fresh and new not in renamed:
                renamed[new] = old
            else:
                moved.append((old, renamed.get(new, new)))
        added = [_renamed(node, renamed) for node in builder.nodes]
        copies = [
            Node("copy", (new,), (old,), locs=builder.locs)
            for old, new in moved
            if old in view.outputs and not (self._can_adopt(new) and new not in renamed.values())
        ]
        copied = {node.output for node in copies}
        ranks = [view.place_at(root) for _ in (*added, *copies)]
        touched: dict[Value, None] = dict.fromkeys(value for node in match.matched for value in node.operands)
        view.drop(root)
        for node, rank in zip((*added, *copies), ranks, strict=True):
            view.add(node, rank)
        for old, new in moved:
            if old in copied:
                continue
            if old in view.outputs:  # the node that computes `new` now computes the output itself
                maker = view.producer[new]
                self._swap(maker, _renamed(maker, {new: old}))
                old, new = new, old
            for user in list(view.users.get(old, ())):
                self._swap(user, replace(user, inputs=tuple(new if v is old else v for v in user.inputs)))
            touched[new] = None
        candidates = [root, *added, *match.matched]
        removed = [root]
        self._sweep([n for n in candidates if n in view.rank], removed)
        self._sweep([view.producer[v] for v in touched if v in view.producer], removed)
        alive = [node for node in (*added, *copies) if node in view.rank]
        self.fired.append(entry.name)
        if len(self.fired) > self.limit:
            raise CompilerError(f"rewriting does not end; the last rules were {', '.join(self.fired[-6:])}")
        for node in removed:
            touched.update(dict.fromkeys(node.operands))
        self._enqueue([*alive, *(u for v in (*touched, *root.outputs) for u in view.users.get(v, ()))])
        for value in touched:
            if value in view.producer:
                self._enqueue([view.producer[value]])

    def _swap(self, old: Node, new: Node) -> None:
        view = self.view
        rank = view.rank[old]
        view.drop(old)
        view.add(new, rank)
        self._enqueue([new])

    def _sweep(self, nodes: Iterable[Node], removed: list[Node]) -> None:
        """Removes nodes whose results nobody reads, and then what only they read."""
        view = self.view
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in view.rank:
                continue
            if any(value in view.outputs or view.users.get(value) for value in node.outputs):
                continue
            view.drop(node)
            removed.append(node)
            pending.extend(view.producer[v] for v in node.operands if v in view.producer)

    def _enqueue(self, nodes: Iterable[Node]) -> None:
        """Queues nodes and the users, as deep as patterns look, whose matches they may change."""
        level = [node for node in dict.fromkeys(nodes) if node in self.view.rank]
        seen = set(level)
        for _ in range(self.depth):
            following: list[Node] = []
            for node in level:
                if node not in self.queued:
                    self.queued.add(node)
                    self.queue.append(node)
                for value in node.outputs:
                    for user in self.view.users.get(value, ()):
                        if user not in seen:
                            seen.add(user)
                            following.append(user)
            level = following


def _named_first(node: Node, replaced: Iterable[Node]) -> Node:
    """The node with the user's names of what it takes the place of, a node of the same op, before the others."""
    own = next((old.locs for old in replaced if old.op == node.op), ())
    first = tuple(loc for loc in own if loc in node.locs)
    locs = (*first, *(loc for loc in node.locs if loc not in first))
    return node if locs == node.locs else replace(node, locs=locs)


def _renamed(node: Node, mapping: Mapping[Value, Value]) -> Node:
    """A node with values renamed among its inputs and outputs."""
    inputs = tuple(mapping.get(v, v) if v is not None else None for v in node.inputs)
    outputs = tuple(mapping.get(v, v) for v in node.outputs)
    return node if inputs == node.inputs and outputs == node.outputs else replace(node, inputs=inputs, outputs=outputs)
