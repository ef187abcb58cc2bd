"""`aotc compare`: the first node where an artifact differs from its model by more than its precision explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from aot.cli.blame import Compared, compare_tensors, find_fault, match, precision_of, precision_text, with_ledger
from aot.cli.common import DIFFERS, check_writable, common_options, note, print_json, progress, wants, write_text
from aot.cli.compare_page import page
from aot.cli.compare_report import as_json, report
from aot.cli.feeds import FeedChoice, feed_options, feeds, generic
from aot.cli.loading import load_model, load_options, open_artifact
from aot.cli.measures import distance
from aot.cli.model_options import default_cache
from aot.cli.operators import open_reference, reference_options
from aot.cli.rebuild import Culprit, Run, Search, built_run, lowered_run, options_of
from aot.cli.reference import another_file, check_same_inputs, compare_outputs, edges_of, widened
from aot.cli.traced import (
    KernelJudgement,
    interpreted_run,
    judge_kernels,
    known_names,
    name_outputs,
    name_tensors,
    program_graphs,
    traced_run,
)
from aot.errors import ModelError, OptionError

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.driver import Lowered
    from aot.ir import Array, Graph
    from aot.options import CompileOptions


@click.command("compare")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--against", required=True, type=click.Path(path_type=Path), metavar="MODEL", help="The source model.")
@feed_options
@click.option("--bisect", is_flag=True, help="Build again with fewer rewrites, to find the one that is to blame.")
@click.option("--interpret", is_flag=True, help="Run what the kernels mean, not their code: for a device not here.")
@click.option("--top", type=click.IntRange(1), metavar="N", help="So many rows of the table. Default: 24.")
@click.option("--html", "html_path", type=click.Path(path_type=Path), metavar="FILE", help="A page with a picture.")
@click.option(
    "--quantize",
    "quantization",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The record of quantization that the build was given.",
)
@reference_options
@click.option("--device", type=click.IntRange(0), default=0, metavar="N", help="Of a GPU's program. Default: 0.")
@click.option("--cache", "cache_dir", type=click.Path(path_type=Path), envvar="AOTC_CACHE", help="For --bisect.")
@click.option("--cc", "c_compiler", default="", envvar="AOTC_CC", metavar="CMD", help="For --bisect: the C compiler.")
@load_options(None)
@common_options
def command(
    artifact: Path,
    against: Path,
    choice: FeedChoice,
    bisect: bool,
    interpret: bool,
    top: int | None,
    html_path: Path | None,
    runs_it: str | None,
    quantization: Path | None,
    trust_pickle: bool,
    operators: tuple[str, ...],
    device: int,
    cache_dir: Path | None,
    c_compiler: str,
    threads: int | None,
    target: str | None,
    weights: Path | None,
) -> None:
    """Find the first node where ARTIFACT differs from the model that it was built from, in the names of the model.

    Both run, and every tensor that is left after fusion is compared. Each stretch of nodes is judged on the tensors
    that the program itself had, so that a node is not blamed for what it was given; the bounds follow from the
    program's precision. FILES: one .npz file with arrays by input name, or an .npy file for a model of one input;
    without any the inputs are random. Exit code 3 where something is beyond its bound.
    """
    if html_path is not None:
        check_writable(html_path)
    from aot import custom

    click.get_current_context().with_resource(custom.use(operators))
    opened = open_artifact(artifact)
    session = _Session(opened, artifact, against, interpret, threads, target, weights, device)
    with progress() as tell:
        tell("compare", "reading the model")
        session.lower(quantization, trust_pickle, cache_dir or default_cache(), c_compiler)
        reference = open_reference(
            against,
            threads or 1,
            opened,
            operators,
            runs_it=runs_it,
            trust_pickle=trust_pickle,
            wanted=session.wanted(),
        )
        program = generic(opened.programs)
        cases = feeds(program, choice, reference.inputs, reference.defaults)
        if len(cases) > 1:
            raise OptionError(f"a comparison is of one run, and {len(cases)} files were given", hint="Give one file.")
        what, feed = cases[0]
        check_same_inputs(reference, opened, program, feed)
        tell("compare", f"the artifact on {what or 'the inputs'}")
        session.run(feed)
        tell("compare", reference.name)
        try:
            expected = reference.run(feed)
        except ModelError as error:
            hint = " ".join(filter(None, (error.hint, another_file(against, opened))))
            raise ModelError(error.message, where=error.where or str(against), hint=hint) from error
        tell("compare", "each node alone")
        compared = session.compare(expected, reference.inner, reference.name)
        culprit = session.bisect(compared, expected, tell) if bisect else None
    if not compared.passed and (text := another_file(against, opened)):
        compared.notes.append(f"the artifact may be of another model. {text}")
    if html_path is not None:
        write_text(html_path, page(compared, culprit, artifact.name))
    if wants("json"):
        print_json(as_json(compared, culprit))
    else:
        report(compared, culprit, top, artifact)
    click.get_current_context().exit(0 if compared.passed else DIFFERS)


class _Session:
    """What one comparison needs on the way."""

    def __init__(
        self,
        opened: Artifact,
        path: Path,
        model: Path,
        interpret: bool,
        threads: int | None,
        target: str | None,
        weights: Path | None,
        device: int,
    ) -> None:
        self.opened, self.model_path, self.interpret, self.threads = opened, model, interpret, threads
        self.notes: list[str] = []
        self.loaded: Any = None
        if interpret:
            if weights is not None:
                note("--interpret takes weights from the model: --weights is not used")
            self.target = target or opened.programs[0].target
            if all(program.target != self.target for program in opened.programs):
                known = ", ".join(sorted({program.target for program in opened.programs}))
                raise OptionError(
                    f"the artifact has no program for {self.target}", where=str(path), hint=f"It has: {known}."
                )
        else:
            self.loaded = load_model(path, threads, target, weights, device=device)
            self.target = self.loaded.target
        self.options: CompileOptions | None = None
        self.lowered: dict[str, Lowered] = {}
        self.source: Graph | None = None
        self.precision = str(opened.meta.get("precisions", {}).get(self.target, "fp32"))

    def lower(self, quantization: Path | None, trust_pickle: bool, cache_dir: Path, c_compiler: str) -> None:
        """What this aotc makes of the model: its graphs, for what kernels mean, and for the bounds of nodes."""
        from aot import driver

        options = options_of(self.opened, self.target, quantization)
        if quantization is None and self.opened.meta.get("options", {}).get("quantization"):
            self.notes.append("the artifact is quantized: with its record (--quantize FILE) kernels are judged too")
        options = replace(options, trust_pickle=trust_pickle, cache_dir=cache_dir, c_compiler=c_compiler)
        self.options = options
        for each in driver.lower(self.model_path, options):
            self.lowered[each.variant] = each

    def program_numbers(self) -> list[int]:
        return [number for number, each in enumerate(self.opened.programs) if each.target == self.target]

    def graphs(self, number: int) -> tuple[Sequence[Graph], bool]:
        """Of a program, and whether this aotc makes the same of the model."""
        return program_graphs(self.opened, number, self.lowered.get(self.opened.programs[number].variant))

    def wanted(self) -> set[str]:
        """Names of tensors that the program may have."""
        names: set[str] = set()
        for number in self.program_numbers():
            names |= known_names(self.opened.programs[number], self.graphs(number)[0])
        return names

    def run(self, feed: Mapping[str, Array]) -> None:
        """The artifact's side."""
        self.feed = feed
        if self.interpret:
            number = self.program_numbers()[-1]
            self.traced = interpreted_run(number, self.graphs(number)[0], feed)
        else:
            self.traced = traced_run(self.loaded, feed)
            if self.traced.program < 0:
                self.traced.program = self.program_numbers()[-1]
        self.program = self.opened.programs[self.traced.program]
        self.traced.graphs, same = self.graphs(self.traced.program)
        if not same:
            self.notes.append("this aotc makes other kernels of the model, so their weights may not be known")
        name_tensors(self.traced)

    def compare(self, expected: Mapping[str, Array], inner: Mapping[str, Array], reference: str) -> Compared:
        """Both sides, tensor by tensor."""
        traced, feed = self.traced, self.feed
        quantization = self.opened.meta.get("quantization") or {}
        precision = precision_of(self.precision, quantization)
        plain = replace(precision, quantized={}, weights_too=False)
        kernels: list[KernelJudgement] = []
        kernels_left_out = 0
        if traced.graphs:
            kernels, kernels_left_out = judge_kernels(traced, self.program, feed, plain)
        elif traced.steps:
            kernels_left_out = len(traced.steps)
        source = self._source()
        name_outputs(traced)
        matched, other_shape = match(source, traced.tensors)
        inner = {**inner, **{name: array for name, array in expected.items() if isinstance(array, np.ndarray)}}
        rows, nodes_left_out = compare_tensors(source, feed, matched, inner, precision)
        outputs = compare_outputs(traced.outputs, expected, self.precision)
        blamed = find_fault(rows, kernels, matched, outputs, source, feed, inner, precision)
        of_model = {value.name for node in source.nodes for value in node.outputs if value.name}
        return Compared(
            reference=reference,
            precision=precision_text(self.precision, quantization),
            rows=rows,
            outputs=outputs,
            fault=with_ledger(blamed, quantization),
            kernels=len(kernels),
            kernels_left_out=kernels_left_out,
            nodes_left_out=nodes_left_out,
            unmatched=traced.unnamed,
            model_only=len(of_model - {value.name for value in matched}),
            other_shape=other_shape,
            renamed=[row.name for row in rows if row.own.is_beyond and not row.own.confirmed],
            notes=list(self.notes),
        )

    def _source(self) -> Graph:
        """The model's graph as it was read, for the program that ran."""
        lowered = self.lowered.get(self.program.variant)
        if lowered is not None:
            return lowered.source
        from aot import frontend

        dims = {name: (lo, hi) for name, lo, hi in self.opened.meta.get("options", {}).get("dims", [])}
        graphs, _ = frontend.load_variants(self.model_path, dims=dims, edges=edges_of(self.opened))
        return graphs[-1][1]

    def bisect(self, compared: Compared, expected: Mapping[str, Array], tell: Callable[[str, str], None]) -> Culprit:
        """The rewrite with which the outputs begin to differ."""
        assert self.options is not None
        if self.opened.meta.get("options", {}).get("quantization") and self.options.quantization is None:
            raise OptionError(
                "the artifact was built with a record of quantization", hint="Give it with --quantize FILE."
            )
        bounds = {row.name: row.drift_bound for row in compared.rows if row.drift_bound is not None}

        def agree(outputs: Mapping[str, Array]) -> bool:
            for output in compare_outputs(outputs, expected, self.precision):
                found, wanted, bound = outputs.get(output.name), expected[output.name], bounds.get(output.name)
                if not output.passed:
                    return False
                if found is not None and bound is not None and found.shape == wanted.shape:
                    if not distance(widened(found), wanted).max_error <= bound:
                        return False
            return True

        if agree(self.traced.outputs):
            return Culprit("gone", "the outputs agree: there is nothing that a rewrite could have changed in them", 0)
        variant = self.program.variant
        run: Run = (
            lowered_run(self.model_path, variant, self.feed)
            if self.interpret
            else built_run(self.model_path, variant, self.feed, self.threads)
        )
        found = Search(run, self.options, agree, tell).find()
        if found.kind == "none" and compared.fault.kind == "kernel":
            fault = compared.fault
            what = f"the code of kernel {fault.kernel}, nodes {', '.join(fault.nodes)}, differs from its meaning"
            return replace(found, text=f"not a rewrite: {what}")
        return found
