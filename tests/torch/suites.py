"""Runs cases of PyTorch's own test suites on the compiled CPU target: many cases become one artifact.

A case is a module and its tensors. A batch of cases is exported as one program with an output list for each,
saved as a .pt2 file, read back as `aotc build` reads it, taken to core ops, imported, built and run once, and every
case is compared with eager by itself. Where a batch fails as a whole, its halves are tried, down to the one case at
fault. Cases share no values, so that what is said of a case holds for a program of that case alone.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils import _pytree as pytree

import aot
from aot.control import has_control
from aot.errors import ModelError, UnsupportedError
from aot.frontend.bindings import Bindings
from aot.frontend.imported import ImportInfo
from aot.frontend.torch_import import TorchImporter, is_size, np_array, op_name
from aot.frontend.torch_program import decompose, open_program
from aot.frontend.torch_registry import dtype_of
from aot.ir import Graph, live

TOLERANCE = {"float16": (4e-3, 4e-3), "bfloat16": (2e-2, 2e-2), "float32": (2e-4, 2e-5)}  # relative, absolute
FILE, MEMORY, COMPARE = "file", "memory", "compare"  # through what a program comes to the importer
Results = Sequence[tuple[str, Any]]  # ("0", tensor or number) of each result, ("given 1", tensor) of a changed input


@dataclass(frozen=True, eq=False)
class Case:
    """`module` is called with `tensors`; `name` is of the op or module, `number` counts its cases of a dtype.

    `unwritten`: nothing writes the results, so that only types and shapes are compared. `same` may accept results
    that differ from eager's: (mine, eager's, tensors) -> why.
    """

    name: str
    dtype: str
    number: int
    module: Any
    tensors: Sequence[Any]
    unwritten: bool = False
    same: Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], str] | None = None


@dataclass(eq=False)
class Outcome:
    """What became of a case.

    `verdict` is "pass"; "unsupported": this compiler refuses it; "no export": PyTorch does not export it, or gives
    results that are no tensors; or "fail". `overloads` are the ops of its decomposed program, `refused` those of
    them that are not supported; `note` says how a case passed that does not equal eager. `random`: some of its
    ops draw random numbers.
    """

    case: Case
    verdict: str = "fail"
    reason: str = ""
    note: str = ""
    overloads: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    random: bool = False

    def settle(self, verdict: str, reason: str, note: str = "") -> None:
        self.verdict, self.reason, self.note = verdict, reason, note


@dataclass(frozen=True, eq=False)
class _Entry:
    """A case on its way: its outcome, and what eager gives."""

    outcome: Outcome
    wanted: Results

    @property
    def case(self) -> Case:
        return self.outcome.case


class Call(torch.nn.Module):
    """A function, or a module, as a module of the tensors in its arguments; complex ones are pairs of real numbers."""

    def __init__(self, function: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.function = function
        self.leaves, self.spec = pytree.tree_flatten((args, kwargs))
        self.places = [place for place, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def __deepcopy__(self, memo: Any) -> Call:
        args, kwargs = pytree.tree_unflatten(self.leaves, self.spec)
        return Call(copy.deepcopy(self.function, memo) if self._modules else self.function, args, kwargs)

    def forward(self, *tensors: Any) -> Any:
        filled = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            filled[place] = torch.view_as_complex(tensor) if filled[place].is_complex() else tensor
        args, kwargs = pytree.tree_unflatten(filled, self.spec)
        return pytree.tree_map_only(torch.Tensor, real, self.function(*args, **kwargs))

    def tensors(self) -> list[Any]:
        """The tensors that the arguments hold."""
        return [real(self.leaves[place].detach()).clone() for place in self.places]


def real(tensor: Any) -> Any:
    """A complex tensor as pairs of real numbers."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class Merged(torch.nn.Module):
    """The cases as one module: the tensors of all, one after the other, to a list of results for each."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([case.module for case in cases])
        self.counts = [len(case.tensors) for case in cases]

    def forward(self, *given: Any) -> Any:
        rest = iter(given)
        results = []
        for part, count in zip(self.parts, self.counts, strict=True):
            results.append(pytree.tree_leaves(part(*(next(rest) for _ in range(count)))))
        return results


class Runner:
    """Runs cases. `core`: nothing is kept whole, so that only core ops and what PyTorch itself leaves remain.

    `through`: FILE, the .pt2 file that a program is saved as, or MEMORY, the program itself.
    """

    def __init__(
        self, cache: Path, target: str = "cpu:x86-64-v3", size: int = 48, *, core: bool = False, through: str = FILE
    ) -> None:
        self.cache, self.target, self.size, self.core, self.through = cache, target, size, core, through

    def run(self, cases: Sequence[Case]) -> Iterator[Outcome]:
        """The outcomes, in the order of the cases."""
        for start in range(0, len(cases), self.size):
            outcomes = [Outcome(case) for case in cases[start : start + self.size]]
            entries = []
            for outcome in outcomes:
                try:
                    entries.append(_Entry(outcome, eager(outcome.case)))
                except Exception as error:  # whatever PyTorch raises
                    outcome.settle("no export", f"eager: {brief(error)}")
            self._export(entries)
            yield from outcomes

    def _export(self, entries: Sequence[_Entry]) -> None:
        """From eager to a decomposed program; in halves where the whole fails."""
        if not entries:
            return
        program = saved = None
        try:
            program = exported([entry.case for entry in entries])
            if self.through == FILE:
                saved = bytes_of(program)
                program, _ = open_program(saved)
            program = decomposed(program, core=self.core)
        except Exception as error:
            if len(entries) == 1:
                entries[0].outcome.settle(*self._fault_before(error, program, saved))
            else:
                self._halves(self._export, entries)
            return
        cones = _cones(program, len(entries))
        for entry, cone in zip(entries, cones, strict=True):
            entry.outcome.overloads = tuple(sorted({name for node in cone if (name := _op(node))}))
            entry.outcome.random = any(_is_random(node) for node in cone)
        apart = [entry for entry, cone in zip(entries, cones, strict=True) if _has_sizes_of_data(cone)]
        if apart and len(entries) > 1:  # these become flows: they stand alone, and the others without them
            self._export([entry for entry in entries if entry not in apart])
            for entry in apart:
                self._export([entry])
            return
        self._import(entries, program, cones)

    def _fault_before(self, error: Exception, program: Any, saved: bytes | None) -> tuple[str, str]:
        """The verdict on a case that comes to no decomposed program, and the reason."""
        if self.through == MEMORY or program is None:
            return "no export", brief(error)
        if saved is None:
            return "no export", f"PyTorch does not save it: {brief(error)}"
        if isinstance(error, UnsupportedError):
            return "unsupported", brief(error)
        fault = fault_of_reading(saved, core=self.core)
        return ("no export", fault) if fault else ("fail", f"read: {brief(error)}")

    def _import(self, entries: Sequence[_Entry], program: Any, cones: Sequence[Sequence[Any]]) -> None:
        """From a program to a graph of the cases that are supported."""
        importer = Importer(program, Bindings(None))
        try:
            graph = importer.run()
        except Exception as error:
            if len(entries) == 1:
                entries[0].outcome.settle("fail", f"import: {brief(error)}")
            else:
                self._halves(self._export, entries)
            return
        refused = {
            place.partition(" (")[0]: (op, reason)
            for (op, reason), places in importer.refused.items()
            for place in places
        }
        made = set() if graph is None else {value.name for value in graph.outputs}
        kept: dict[int, _Entry] = {}
        for number, (entry, cone) in enumerate(zip(entries, cones, strict=True)):
            found = {refused[node.name] for node in cone if node.name in refused}
            if not found and not all(name in made for name in _output_names(entries, number)):
                found = set(importer.refused) or {("", "a result is left out")}
            if found:
                entry.outcome.settle("unsupported", "; ".join(sorted(": ".join(filter(None, f)) for f in found)))
                entry.outcome.refused = tuple(sorted({op for op, _ in found}))
            else:
                kept[number] = entry
        if kept and graph is not None:
            self._build(entries, kept, graph)

    def _build(self, entries: Sequence[_Entry], kept: dict[int, _Entry], graph: Graph) -> None:
        """Compiles the kept cases, runs them, and judges each."""
        stage = "compile"
        names = {name for number in kept for name in _output_names(entries, number)}
        feeds = {name: tensor for number in kept for name, tensor in _feeds(entries, number).items()}
        try:
            artifact = compile_graph(_part(graph, names, set(feeds)), self.target, self.cache)
            stage = "run"
            with aot.load(artifact, threads=1) as model:
                results = model.run({port.name: feeds[port.name] for port in model.inputs})
        except Exception as error:
            if len(kept) == 1:
                (entry,) = kept.values()
                theirs = run_by_pytorch(entry.case, core=self.core, through=self.through) if stage == "run" else []
                if isinstance(theirs, str):
                    entry.outcome.settle("no export", f"PyTorch's own program: {theirs}")
                else:
                    entry.outcome.settle("fail", f"{stage}: {brief(error)}")
                return
            numbers, half = list(kept), len(kept) // 2
            for part in (numbers[:half], numbers[half:]):
                self._build(entries, {number: kept[number] for number in part}, graph)
            return
        for number, entry in kept.items():
            mine = [results[name] for name in _output_names(entries, number)]
            entry.outcome.settle(*judged(entry.outcome, mine, entry.wanted))
            if entry.outcome.verdict == "fail" and self._is_fault_of_pytorch(entry, mine):
                entry.outcome.settle("no export", "PyTorch's own program gives the same, and eager something else")

    def _is_fault_of_pytorch(self, entry: _Entry, mine: Sequence[Any]) -> bool:
        """Whether the decomposed program, run by PyTorch, differs from eager in the same way."""
        theirs = run_by_pytorch(entry.case, core=self.core, through=self.through)
        if isinstance(theirs, str) or len(theirs) != len(mine):
            return False
        results = [(str(number), leaf) for number, leaf in enumerate(theirs)]
        return judged(entry.outcome, mine, results)[0] == "pass"

    @staticmethod
    def _halves(stage: Callable[[Sequence[_Entry]], None], entries: Sequence[_Entry]) -> None:
        half = len(entries) // 2
        stage(entries[:half])
        stage(entries[half:])


class Importer(TorchImporter):
    """An importer that goes on without the outputs that need an unsupported op; those are in `refused`."""

    def __init__(self, program: Any, bindings: Bindings) -> None:
        super().__init__(program, bindings)
        self.refused: dict[tuple[str, str], list[str]] = {}

    def _outputs(self, *given: Any, **named: Any) -> Any:
        self.refused, self.rejected = self.rejected, {}
        try:
            return super()._outputs(*given, **named)
        except ModelError:
            if not self.refused:
                raise
            self.rejected = self.refused  # none is left
            return [], []


# Exporting


def eager(case: Case) -> Results:
    """What eager gives. Raises what PyTorch raises, and TypeError for results that are no dense tensors."""
    given = [tensor.clone() for tensor in case.tensors]
    with quiet():
        torch.manual_seed(0)
        leaves = pytree.tree_leaves(copy.deepcopy(case.module)(*given))
    results = [(str(number), leaf) for number, leaf in enumerate(leaves) if leaf is not None]
    for _, leaf in results:
        dense = isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and not leaf.is_quantized
        if not dense and not isinstance(leaf, bool | int | float):
            raise TypeError(f"results that are no dense tensors, but {type(leaf).__name__}")
    changed = [
        (f"given {place}", now)
        for place, (now, before) in enumerate(zip(given, case.tensors, strict=True))
        if now.shape != before.shape or not torch.equal(now.nan_to_num(), before.nan_to_num())
    ]
    return [*results, *changed]


def exported(cases: Sequence[Case]) -> Any:
    """The cases as one program."""
    tensors = tuple(tensor.clone() for case in cases for tensor in case.tensors)
    with quiet():
        return torch.export.export(Merged(cases), tensors, strict=False)


def decomposed(program: Any, *, core: bool) -> Any:
    """The program as the importer takes it; `core`: with no op kept whole."""
    with quiet():
        return program.run_decompositions() if core else decompose(program)


def bytes_of(program: Any) -> bytes:
    """The .pt2 file of a program."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file)
    return file.getvalue()


def read_by_pytorch(saved: bytes) -> Any:
    """The program of a .pt2 file, by PyTorch's own reader."""
    with quiet():
        return torch.export.load(io.BytesIO(saved))


def fault_of_reading(saved: bytes, *, core: bool) -> str:
    """How PyTorch fails to read its own file, or to take what it has read to core ops; "" if it does not."""
    try:
        decomposed(read_by_pytorch(saved), core=core)
    except Exception as error:  # whatever PyTorch raises
        return f"PyTorch does not read its own file: {brief(error)}"
    return ""


def run_by_pytorch(case: Case, *, core: bool, through: str) -> list[Any] | str:
    """The results of the decomposed program, run by PyTorch; or how it fails."""
    program = exported([case])
    program = decomposed(read_by_pytorch(bytes_of(program)) if through == FILE else program, core=core)
    with quiet():
        try:
            return list(pytree.tree_leaves(program.module()(*(tensor.clone() for tensor in case.tensors))))
        except Exception as error:  # whatever PyTorch raises
            return brief(error)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """PyTorch tells of things that do not matter here."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def brief(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def _cones(program: Any, count: int) -> list[list[Any]]:
    """The nodes that the results of each case need."""
    (output,) = (node for node in program.graph.nodes if node.op == "output")
    spec = program.call_spec.out_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    signature = program.graph_signature.output_specs
    user = [
        argument for each, argument in zip(signature, output.args[0], strict=True) if each.kind.name == "USER_OUTPUT"
    ]
    return [_needed([user[leaf] for leaf in tree[number]]) for number in range(count)]


def _needed(ends: Sequence[Any]) -> list[Any]:
    found: dict[Any, None] = {}
    pending = [end for end in ends if isinstance(end, torch.fx.Node)]
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending.extend(node.all_input_nodes)
    return list(found)


def _op(node: Any) -> str:
    """The overload that a node calls; "" of a node that is no op on tensors."""
    if node.op != "call_function" or is_size(node.meta.get("val")):
        return ""
    name = op_name(node.target)
    return "" if name == "getitem" else name


def _is_random(node: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _has_sizes_of_data(cone: Sequence[Any]) -> bool:
    """Whether data gives a size, or decides what runs."""
    return any(
        isinstance(node.target, torch._ops.HigherOrderOperator)
        or any(isinstance(size, torch.SymInt) for value in pytree.tree_leaves(node.meta.get("val"))
               for size in getattr(value, "shape", ()))
        or isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool)
        for node in cone
    )  # fmt: skip


def _output_names(entries: Sequence[_Entry], number: int) -> list[str]:
    """The names that the results of a case have in the merged program."""
    offset = sum(len(entry.case.tensors) for entry in entries[:number])
    return [
        f"given_{offset + int(label.split()[1])}" if label.startswith("given") else f"output_{number}.{label}"
        for label, _ in entries[number].wanted
    ]


def _feeds(entries: Sequence[_Entry], number: int) -> dict[str, Any]:
    offset = sum(len(entry.case.tensors) for entry in entries[:number])
    return {f"given_{offset + place}": array_of(tensor) for place, tensor in enumerate(entries[number].case.tensors)}


# Building


def compile_graph(graph: Graph, target: str, cache: Path) -> bytes:
    """The artifact of an imported graph, by the whole driver."""
    info = ImportInfo(
        digest="", opset=0, producer="torch", symbols={}, node_count=len(graph.nodes), ops={}, warnings=()
    )
    with mock.patch("aot.driver.frontend.load_variants", return_value=((("", graph),), info)):
        return bytes(aot.compile(None, target, cache_dir=cache, strip_debug=True).data)


def _part(graph: Graph, outputs: set[str], inputs: set[str]) -> Graph:
    """The graph with these outputs and inputs alone."""
    if has_control(graph):
        return graph.with_(state=())
    part = graph.with_(
        outputs=tuple(value for value in graph.outputs if value.name in outputs),
        inputs=tuple(value for value in graph.inputs if value.name in inputs),
        state=(),
    )
    return live(part)


# Judging


def array_of(tensor: Any) -> Any:
    """A torch tensor as the array that artifacts take."""
    return np_array(tensor, dtype_of(tensor.dtype))


def judged(outcome: Outcome, mine: Sequence[Any], wanted: Results) -> tuple[str, str, str]:
    """(verdict, reason, note) on the results of a case."""
    case = outcome.case
    theirs = [leaf for _, leaf in wanted]
    try:
        for array, leaf in zip(mine, theirs, strict=True):
            _check_kind(array, leaf)
            if outcome.random and not case.unwritten:
                _check_statistics(array, leaf)
    except AssertionError as error:
        return "fail", str(error), ""
    if case.unwritten or outcome.random:
        return "pass", "", "shapes" if case.unwritten else "statistics"
    differs = differences(mine, theirs)
    if not differs:
        return "pass", "", ""
    try:
        why = case.same(mine, theirs, case.tensors) if case.same is not None else ""
        why = why or ("float64" if _is_near_truth(case, mine, theirs) else "")
    except Exception as error:  # eager has no float64 form
        return "fail", f"{differs}; in float64: {brief(error)}", ""
    return ("pass", "", why) if why else ("fail", differs, "")


def _check_kind(mine: Any, theirs: Any) -> None:
    shape = tuple(theirs.shape) if isinstance(theirs, torch.Tensor) else ()
    assert mine.shape == shape, f"shape {mine.shape}, eager has {shape}"
    if isinstance(theirs, torch.Tensor):
        dtype = dtype_of(theirs.dtype).numpy
        assert mine.dtype == dtype, f"type {mine.dtype}, eager has {dtype}"


def differences(mine: Sequence[Any], theirs: Sequence[Any]) -> str:
    """How results differ from eager's beyond the tolerance of their type; "" if they do not."""
    for number, (array, leaf) in enumerate(zip(mine, theirs, strict=True)):
        wanted = array_of(leaf) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)
        bad = ~_close(array, wanted)
        if bad.any():
            place = tuple(int(axis[0]) for axis in np.nonzero(bad)) if bad.ndim else ()
            return (
                f"result {number}: {int(bad.sum())} of {bad.size} differ, "
                f"at {place} {array[place]!s} and eager has {wanted[place]!s}"
            )
    return ""


def _close(mine: Any, wanted: Any) -> Any:
    """Where elements agree: exactly for integers, within the tolerance of the type for floats."""
    if wanted.dtype.kind in "biu":
        return mine == wanted
    relative, absolute = TOLERANCE.get(str(wanted.dtype), (1e-6, 1e-7))
    with np.errstate(all="ignore"):
        return np.isclose(
            mine.astype(np.float64), wanted.astype(np.float64), rtol=relative, atol=absolute, equal_nan=True
        )


def _is_near_truth(case: Case, mine: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Eager rounds too: whether results are as near to eager's computation in float64 as the tolerance, or as eager."""
    if case.dtype not in TOLERANCE:
        return False
    with quiet():
        torch.manual_seed(0)
        wide = [tensor.double() if tensor.is_floating_point() else tensor.clone() for tensor in case.tensors]
        exact = [leaf for leaf in pytree.tree_leaves(copy.deepcopy(case.module).double()(*wide)) if leaf is not None]
    for array, leaf, truth in zip(mine, theirs, exact, strict=False):
        if not differences([array], [leaf]):
            continue
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
            return False
        rounded = array_of(truth.to(leaf.dtype))
        with np.errstate(all="ignore"):
            errors = [np.abs(array_of(truth) - each.astype(np.float64)) for each in (array, array_of(leaf))]
        of_eager = errors[1][np.isfinite(errors[1])].max(initial=0.0)
        if not (_close(array, rounded) | (errors[0] <= of_eager)).all():
            return False
    return True


def _check_statistics(mine: Any, theirs: Any) -> None:
    """Random numbers: finite where eager's are, and of a like mean where there are many."""
    if not isinstance(theirs, torch.Tensor) or mine.size == 0:
        return
    wanted = array_of(theirs).astype(np.float64)
    got = mine.astype(np.float64)
    assert np.isfinite(got).all() or not np.isfinite(wanted).all(), "numbers that are not finite"
    if mine.size >= 64 and np.isfinite(wanted).all():
        spread = max(wanted.std(), got.std())
        bound = 6 * spread * (2 / mine.size) ** 0.5 + 1e-6
        assert abs(got.mean() - wanted.mean()) <= bound, f"mean {got.mean():.4g}, eager has {wanted.mean():.4g}"
