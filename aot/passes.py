"""Passes and the manager that runs them.

A pass is a pure function Graph, Context -> Graph. The manager verifies the result with code that no
pass shares, times it, dumps text when the graph changed, and turns a failure into a message that
names the pass, the user's node, a few lines of IR and the command that reproduces it.
Invariant: a pass that changed nothing returns the very graph it was given.
"""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Protocol

from aot.dtypes import I8, U8, DType
from aot.errors import AotError, CompilerError, OptionError
from aot.ir import Graph, Level, Node
from aot.ops import Kind, OpError
from aot.options import CompileOptions
from aot.target import Target
from aot.text import lines_near, print_graph
from aot.verify import VerifyError, verify

Reporter = Callable[[str], None]  # told the name of each pass as it starts


class BackendInfo(Protocol):
    """What transforms may ask of a backend, so that they need not know which one it is."""

    @property
    def kinds(self) -> frozenset[Kind]:
        """The kinds it has emitters for; ops of other kinds are decomposed."""
        ...

    @property
    def decomposes(self) -> frozenset[str]:
        """Ops that are decomposed although their kind has an emitter."""
        ...

    @property
    def has_halos(self) -> bool:
        """Whether sliding windows read zeros around their input; else they check their places."""
        ...

    @property
    def joins_products(self) -> bool:
        """Whether products of one left operand are better made by one kernel than apart."""
        ...

    @property
    def splits_keys(self) -> bool:
        """Whether attention of few queries is better made in parts of its keys; then it has a kernel for parts."""
        ...

    @property
    def splits_sums(self) -> bool:
        """Whether products of few rows are better made in parts of their sums."""
        ...

    @property
    def channel_group(self) -> int:
        """Images of few channels are better padded to a multiple of so many; 1: they stay as they are."""
        ...

    @property
    def reads_anywhere(self) -> bool:
        """Whether kernels compute where they read at so little cost that what only moves elements is no step."""
        ...

    @property
    def precisions(self) -> frozenset[str]:
        """The precisions of float arithmetic that it has; see CompileOptions."""
        ...

    @property
    def precision_features(self) -> Mapping[str, str]:
        """The feature that targets with a precision have, where not all of them have that precision."""
        ...

    @property
    def eight_bit_operands(self) -> tuple[DType, DType]:
        """The types of bytes, i8 or u8 each, that products of integers take on their left and right."""
        ...


def precisions_of(backend: BackendInfo, target: Target) -> frozenset[str]:
    """The precisions of float arithmetic that a target of a backend has."""
    features = backend.precision_features
    return frozenset(name for name in backend.precisions if name not in features or features[name] in target.features)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rewrite that was possible by form and did not happen: which rule, at which node, why."""

    rule: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rule} at {self.where}: {self.reason}"


@dataclass(slots=True)
class Diagnostics:
    """Collects what passes have to say. Repeats are kept once, in order of first appearance."""

    _refusals: dict[Refusal, None] = field(default_factory=dict)
    _notes: dict[str, None] = field(default_factory=dict)

    def refuse(self, rule: str, where: str, reason: str) -> None:
        self._refusals.setdefault(Refusal(rule, where, reason))

    def note(self, message: str) -> None:
        self._notes.setdefault(message)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(self._refusals)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(self._notes)

    def why(self, rule: str, where: str) -> tuple[Refusal, ...]:
        """The refusals of a rule ("" or "*": any) at a node whose description contains `where`."""
        return tuple(r for r in self._refusals if rule in ("", "*", r.rule) and where in r.where)


@dataclass(slots=True)
class Rewrites:
    """Counts rewrites over all passes of a run, for --bisect."""

    limit: int | None = None
    fired: int = 0
    last: str = ""  # the last rewrite that was let through
    last_pass: str = ""  # and the run of the pass that made it, as --disable names it
    running: str = ""  # the run of a pass in progress
    by_rule: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Context:
    """What a pass may look at. Read-only, but for what it reports.

    `backend` is None only where no pass of the run asks it anything (tests, CORE-level passes).
    """

    options: CompileOptions = field(default_factory=CompileOptions)
    target: Target = field(default_factory=lambda: Target("cpu", "x86-64-v3"))
    backend: BackendInfo | None = None
    diagnostics: Diagnostics = field(default_factory=Diagnostics)
    rewrites: Rewrites = field(default_factory=Rewrites)

    def __post_init__(self) -> None:
        self.rewrites.limit = self.options.bisect

    @property
    def has_halos(self) -> bool:
        """Whether sliding windows of the backend read zeros around their input."""
        return self.backend is None or self.backend.has_halos

    @property
    def joins_products(self) -> bool:
        """Whether the backend makes products of one left operand better by one kernel than apart."""
        return self.backend is not None and self.backend.joins_products

    @property
    def splits_keys(self) -> bool:
        """Whether the backend makes attention of few queries better in parts of its keys."""
        return self.backend is not None and self.backend.splits_keys

    @property
    def splits_sums(self) -> bool:
        """Whether the backend makes products of few rows better in parts of their sums."""
        return self.backend is not None and self.backend.splits_sums

    @property
    def channel_group(self) -> int:
        """The channels that images of few channels are padded to a multiple of."""
        return 1 if self.backend is None else self.backend.channel_group

    @property
    def reads_anywhere(self) -> bool:
        """Whether kernels of the backend read moved elements where they are."""
        return self.backend is not None and self.backend.reads_anywhere

    @property
    def eight_bit_operands(self) -> tuple[DType, DType]:
        """The types of bytes that the backend's products of integers take on their left and right."""
        return (U8, I8) if self.backend is None else self.backend.eight_bit_operands

    def allow(self, rule: str, where: str = "") -> bool:
        """Asked before a rewrite fires: counts it, and says no when it is disabled or beyond --bisect."""
        if rule in self.options.disable:
            return False
        rewrites = self.rewrites
        if rewrites.limit is not None and rewrites.fired >= rewrites.limit:
            return False
        rewrites.fired += 1
        rewrites.by_rule[rule] = rewrites.by_rule.get(rule, 0) + 1
        rewrites.last = f"{rule} at {where}" if where else rule
        rewrites.last_pass = rewrites.running
        return True

    def refuse(self, rule: str, where: str, reason: str) -> None:
        """Records why a rewrite did not happen."""
        self.diagnostics.refuse(rule, where, reason)

    def note(self, message: str) -> None:
        """Records something the user should know."""
        self.diagnostics.note(message)


PassFunction = Callable[[Graph, Context], Graph]


@dataclass(frozen=True, slots=True)
class Pass:
    """A named pass: the level it takes, the level it gives, and the function.

    `rules` are the names that it asks `Context.allow` about, where they are not the pass's own name.
    """

    name: str
    takes: Level
    gives: Level
    function: PassFunction
    doc: str = ""
    rules: tuple[str, ...] = ()

    def __call__(self, graph: Graph, context: Context) -> Graph:
        return self.function(graph, context)


def transform(
    *, takes: Level, gives: Level, name: str = "", rules: Iterable[str] = ()
) -> Callable[[PassFunction], Pass]:
    """Makes a function a pass, named after it."""

    def wrap(function: PassFunction) -> Pass:
        doc = (function.__doc__ or "").strip().split("\n")[0]
        return Pass(name or getattr(function, "__name__", "pass"), takes, gives, function, doc, tuple(rules))

    return wrap


@dataclass(frozen=True, slots=True)
class PassRecord:
    """One run of one pass, for reports."""

    name: str
    seconds: float
    changed: bool
    nodes_before: int
    nodes_after: int
    rewrites: int
    disabled: bool = False


class PassFailure(CompilerError):
    """A pass raised, or its result does not verify. `dump` is the graph it was given, as a file."""

    def __init__(self, message: str, *, where: str, hint: str, pass_name: str, dump: Path | None) -> None:
        super().__init__(message, where=where, hint=hint)
        self.pass_name = pass_name
        self.dump = dump


class PassManager:
    """Runs a list of passes over a graph. `records` says what each one did."""

    def __init__(self, passes: Sequence[Pass], context: Context, report: Reporter | None = None) -> None:
        self.passes = tuple(passes)
        self.context = context
        self.report = report
        self.records: list[PassRecord] = []

    def run(self, graph: Graph, *, until: str = "") -> Graph:
        """The graph after every pass, or after the first run of the pass named `until`.

        Raises PassFailure for defects; errors that are the user's (model, option, unsupported,
        target) pass through unchanged.
        """
        if until and until not in {item.name for item in self.passes}:
            raise OptionError(f"no pass {until!r} in the list", hint=f"Passes: {', '.join(unique_names(self.passes))}.")
        verify(graph, has_halos=self.context.has_halos)
        self.dump("input", graph)
        for item, label in _labelled(self.passes):
            graph = self._step(item, label, graph)
            if item.name == until:
                break
        return graph

    def _step(self, item: Pass, label: str, graph: Graph) -> Graph:
        if self.report is not None:
            self.report(item.name)
        if item.name in self.context.options.disable or label in self.context.options.disable:
            self.records.append(PassRecord(item.name, 0.0, False, len(graph.nodes), len(graph.nodes), 0, True))
            return graph
        if graph.level != item.takes:
            raise CompilerError(
                f"pass {item.name} takes level {item.takes.name.lower()}, the graph is at {graph.level.name.lower()}"
            )
        fired = self.context.rewrites.fired
        self.context.rewrites.running = label
        start = time.perf_counter()
        result: Graph | None = None
        try:
            result = item(graph, self.context)
            if result is not graph:
                if result.level != item.gives:
                    raise CompilerError(
                        f"it promises level {item.gives.name.lower()} and gave {result.level.name.lower()}"
                    )
                verify(result, has_halos=self.context.has_halos)
            elif item.gives != item.takes:
                raise CompilerError(f"it promises level {item.gives.name.lower()} and returned its input")
        except Exception as error:
            if isinstance(error, AotError) and not isinstance(error, (CompilerError, OpError)):
                raise
            raise self._failure(item, graph, result, error) from error
        seconds = time.perf_counter() - start
        changed = result is not graph
        rewrites = self.context.rewrites.fired - fired
        self.records.append(PassRecord(item.name, seconds, changed, len(graph.nodes), len(result.nodes), rewrites))
        if changed:
            self.dump(item.name, result)
        return result

    def dump(self, label: str, graph: Graph) -> Path | None:
        """Writes the graph's text as the next numbered file of the dump folder, if one is asked for.

        Numbers go on where an earlier manager of the same build left off; the graph that it ended with
        is not written again as this one's input.
        """
        folder = self.context.options.dump_dir
        if folder is None:
            return None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            hint = "Name a folder that exists, or that can be made."
            raise OptionError(f"cannot dump there: {error.strerror}", where=str(folder), hint=hint) from error
        text = print_graph(graph)
        earlier = sorted(folder.glob("[0-9][0-9][0-9]-*.air"))
        if label == "input" and earlier and earlier[-1].read_text(encoding="utf-8") == text:
            return None
        path = folder / f"{_next_number(earlier):03d}-{label}.air"
        path.write_text(text, encoding="utf-8")
        return path

    def _failure(self, item: Pass, graph: Graph, result: Graph | None, error: Exception) -> PassFailure:
        if result is not None and isinstance(error, CompilerError):
            what, shown = "gave a graph that does not verify", result
        else:
            what, shown = "failed", graph
        reason = error.message if isinstance(error, AotError) else f"{type(error).__name__}: {error}"
        where = error.where if isinstance(error, AotError) else ""
        node = error.node if isinstance(error, VerifyError) else None
        excerpt = "".join(f"\n    {line}" for line in _excerpt(shown, node, where))
        dump = self._failure_dump(item, graph)
        hint = "The graph cannot be printed; please report this with the model."
        if dump is not None:
            hint = f"Reproduce it with: aotc opt --pass {item.name} {shlex.quote(str(dump))}"
        return PassFailure(
            f"pass {item.name} {what}: {reason}{excerpt}", where=where, hint=hint, pass_name=item.name, dump=dump
        )

    def _failure_dump(self, item: Pass, graph: Graph) -> Path | None:
        folder = self.context.options.dump_dir or Path(tempfile.mkdtemp(prefix="aotc-failure-"))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            number = _next_number(sorted(folder.glob("[0-9][0-9][0-9]-*.air")))
            path = folder / f"{number:03d}-before-{item.name}.air"
            path.write_text(print_graph(graph), encoding="utf-8")
        except Exception:  # the failure being reported matters more than its dump
            return None
        return path


def _excerpt(graph: Graph, node: Node | None, where: str) -> list[str]:
    """The lines of IR around the node of a failure; none if even printing fails."""
    try:
        return lines_near(graph, node, where)
    except Exception:  # a broken graph may not print; the reason is still told
        return []


def _next_number(files: Sequence[Path]) -> int:
    """One more than the last of numbered files."""
    return int(files[-1].name[:3]) + 1 if files else 0


def unique_names(passes: Sequence[Pass]) -> list[str]:
    """The names of passes, each once, in order."""
    return list(dict.fromkeys(item.name for item in passes))


def _labelled(passes: Sequence[Pass]) -> Iterator[tuple[Pass, str]]:
    """Each pass with `name:n`, n counting its runs from 1."""
    runs: dict[str, int] = {}
    for item in passes:
        runs[item.name] = runs.get(item.name, 0) + 1
        yield item, f"{item.name}:{runs[item.name]}"


def check_disable(passes: Sequence[Pass], disable: Sequence[str], others: Sequence[Pass] = ()) -> None:
    """Raises OptionError for an entry that is no pass, no run of one and no rule, or a pass that changes the level.

    `passes` are those that will run; a name may also be a pass, or a rule of a pass, of `others`.
    """
    labels = {label: item for item, label in _labelled(passes)}
    by_name = {item.name: item for item in (*others, *passes)}
    rules = {name for item in (*others, *passes) for name in item.rules}
    for entry in disable:
        item = labels.get(entry) or by_name.get(entry)
        if item is not None and item.takes != item.gives:
            raise OptionError(
                f"pass {item.name} cannot be disabled",
                hint=f"It turns {item.takes.name.lower()} into {item.gives.name.lower()}; later passes need that.",
            )
        if item is not None or entry in rules:
            continue
        name, _, _ = entry.partition(":")
        runs = [label for label in labels if label.startswith(f"{name}:")]
        if ":" in entry and name in by_name:
            raise OptionError(f"no pass run {entry!r} to disable", hint=f"Runs of it: {', '.join(runs) or 'none'}.")
        hint = "`aotc opt --list` names all passes and rules."
        close = get_close_matches(name, sorted({*by_name, *rules}), 3)
        if close:
            hint = f"Did you mean {' or '.join(close)}? {hint}"
        raise OptionError(f"no pass and no rule {name!r} to disable", hint=hint)


__all__ = [
    "BackendInfo",
    "Context",
    "Diagnostics",
    "Pass",
    "PassFailure",
    "PassManager",
    "PassRecord",
    "Refusal",
    "Rewrites",
    "check_disable",
    "transform",
    "unique_names",
]
