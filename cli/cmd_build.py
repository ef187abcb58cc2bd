"""`aotc build`: a model in, one artifact out, and the figures a person wants to see."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from aot.cli.common import (
    ERROR,
    bytes_text,
    check_file,
    check_writable,
    common_options,
    host_steps_text,
    note,
    precision_text,
    print_facts,
    print_json,
    progress,
    seconds_text,
    target_bytes_text,
    wants,
)
from aot.cli.feeds import generic
from aot.cli.fusion import fusion_of, print_fusion
from aot.cli.model_options import model_options
from aot.cli.operators import operators_option, operators_text
from aot.cli.quantize_options import QuantizeChoice, quantize_options
from aot.cli.self_test_options import SelfTestChoice, self_test_options
from aot.errors import OptionError
from aot.file_kinds import A_MODEL, ONNX, PROGRAM, kind_of
from aot.options import (
    IO_DTYPES,
    PRECISIONS,
    WEIGHTS,
    CompileOptions,
    combine_variants,
    parse_variant_option,
)
from aot.quantization import FORMS, Quantization


class VariantType(click.ParamType[tuple[str, tuple[int, ...]]]):
    """NAME=1,8."""

    name = "name=n,n"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, tuple[int, ...]]:
        try:
            return parse_variant_option(value) if isinstance(value, str) else value
        except OptionError as error:
            self.fail(f"{error.message}. {error.hint}", param, ctx)


@click.command("build")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.aot", help="Default: MODEL.aot, here.")
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="cpu, cpu:x86-64-v3, … May be repeated.")
@click.option("--variant", "variants", multiple=True, type=VariantType(), metavar="NAME=1,8", help="Also specialize.")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="Of float32; on CPUs fp32, or bf16.",
)
@click.option(
    "--io-dtype",
    type=click.Choice(list(IO_DTYPES)),
    default="model",
    show_default=True,
    help="Of float32 inputs, outputs and state.",
)
@click.option(
    "--no-host-steps", is_flag=True, help="Fail where a GPU has no kernel, instead of running that node on the CPU."
)
@click.option(
    "--weights", type=click.Choice(WEIGHTS), default="embedded", show_default=True, help="Where weights live."
)
@click.option("--strip-debug", is_flag=True, help="Leave IR text and kernel sources out.")
@click.option("--dump", "dump_dir", type=click.Path(path_type=Path), metavar="DIR", help="IR text after each pass.")
@click.option("--disable", multiple=True, metavar="PASS[:n]", help="Skip a pass, its n-th run, or a rewrite rule.")
@click.option("--bisect", type=int, metavar="N", help="Let only the first N rewrites happen.")
@click.option("--explain-fusion", is_flag=True, help="Also tell what was fused, what was not, and why.")
@click.option(
    "--quantize",
    "how",
    metavar="FORM|FILE",
    help="int8, fp8, int8-dynamic, int4-weights, …, or a record of aotc quantize.",
)
@quantize_options
@model_options
@operators_option
@self_test_options
@click.option("--check", is_flag=True, help="Only say whether every op is supported; build nothing.")
@common_options
def command(
    model: Path,
    output: Path | None,
    targets: tuple[str, ...],
    variants: tuple[tuple[str, tuple[int, ...]], ...],
    precision: str,
    io_dtype: str,
    no_host_steps: bool,
    weights: str,
    strip_debug: bool,
    dump_dir: Path | None,
    disable: tuple[str, ...],
    bisect: int | None,
    explain_fusion: bool,
    how: str | None,
    choice: QuantizeChoice,
    base: CompileOptions,
    operators: tuple[str, ...],
    self_test: SelfTestChoice | None,
    check: bool,
) -> None:
    """Compile MODEL (an ONNX file, or a torch.export program as .pt2) into one artifact.

    AOTC_CC names the C compiler, AOTC_CACHE the folder of compiled kernels (default: aotc in
    XDG_CACHE_HOME or ~/.cache).
    """
    options = replace(
        base,
        targets=targets or ("cpu",),
        variants=combine_variants(variants),
        precision=precision,
        io_dtype=io_dtype,
        host_steps=not no_host_steps,
        weights=weights,
        strip_debug=strip_debug,
        disable=disable,
        bisect=bisect,
        dump_dir=dump_dir,
    )
    check_file(model, A_MODEL)
    kind = kind_of(model)
    if (
        kind is not None
        and {".onnx": ONNX, ".pt2": PROGRAM}.get(model.suffix, kind.name) != kind.name
        and kind.is_model
    ):
        note(f"{model} is {kind.text} by its contents, and is read as one")
    from aot import custom, driver

    if check:
        with custom.use(operators) as at_hand:
            unsupported = driver.check(model, options)
        click.get_current_context().exit(report_check(model, unsupported, tuple(at_hand.used.values())))
    if dump_dir is not None:
        for old in dump_dir.glob("[0-9][0-9][0-9]-*.air"):
            old.unlink()  # of an earlier build into the same folder: numbers start at 000 again
    if how is None and not choice.is_empty:
        raise OptionError("options say how to quantize, and nothing is to be", hint="Add --quantize int8.")
    path = output or Path(model.with_suffix(".aot").name)
    check_writable(path)
    external = f"{path.stem}.safetensors" if weights == "external" else ""
    with progress() as tell:
        if how is not None:
            options = replace(options, quantization=quantization_of(model, how, choice, options, operators, path, tell))
        artifact = driver.compile(model, options=options, operators=operators, progress=tell, external_name=external)
        if self_test is not None:
            from aot.cli.self_test_build import with_self_test

            with custom.use(operators), artifact.report.stage("self-test"):
                artifact = with_self_test(artifact, model, self_test, options, operators, tell)
        tell("write", str(path))
        artifact.save(path)
    if how is not None and self_test is not None and self_test.data is None:
        note(
            "the errors of the self-test are of random inputs, and this model is quantized for those of its data: give "
            "inputs like those that come with --self-test-data PATH, above all where a canary will judge by them"
        )
    report_build(model, path, artifact, external, explain_fusion)


def quantization_of(
    model: Path,
    how: str,
    choice: QuantizeChoice,
    options: CompileOptions,
    operators: Sequence[str],
    path: Path,
    tell: Callable[[str, str], None],
) -> Quantization:
    """The record that --quantize names, or one made now, which is written beside the artifact."""
    from aot import custom
    from aot.quantize import quantize

    if how not in FORMS:
        if not choice.is_empty:
            raise OptionError(
                f"{how} says what is quantized; --data, --accuracy-budget and the like are for making it",
                hint=f"Name a form ({', '.join(FORMS)}), or leave the others out.",
            )
        return Quantization.open(Path(how))
    with custom.use(operators):
        record = quantize(
            model, choice.method_of(how), data=choice.data, calibration=choice.calibration(),
            accuracy_budget=choice.accuracy_budget, measured_samples=choice.measured_samples,
            allow_slower=choice.allow_slower, options=options,
            tell=tell,
        )  # fmt: skip
    record.save(path.with_suffix(".quantization"))
    return record


def report_check(model: Path, unsupported: Sequence[Any], operators: Sequence[Any] = ()) -> int:
    """Prints the ops that cannot be compiled, and the custom ones that can; the exit code."""
    if wants("json"):
        items = [asdict(item) for item in unsupported]
        known = [str(operator) for operator in operators]
        document = {"model": str(model), "supported": not unsupported, "unsupported": items}
        print_json(document | ({"operators": known} if known else {}))
    elif not unsupported:
        click.echo(f"{model}: every op is supported")
    else:
        click.echo(f"{model}: {len(unsupported)} {'op is' if len(unsupported) == 1 else 'ops are'} not supported")
        for item in unsupported:
            click.echo(f"  {item}")
    if not wants("json"):
        for operator in operators:
            click.echo(f"  custom operator {operator}")
    return ERROR if unsupported else 0


def report_build(model: Path, path: Path, artifact: Any, external: str, explain: bool) -> None:
    """Prints what a build did. `explain`: also what it fused, of the general program for the best target."""
    meta, report = artifact.meta, artifact.report
    fusion = fusion_of(meta, generic(artifact.programs)) if explain else None
    figures, seconds = dict(meta.get("build", {})), dict(report.seconds)
    if wants("json"):
        document = {
            "artifact": str(path),
            "artifact_bytes": artifact.size_bytes,
            "artifact_digest": artifact.digest,
            "build": figures,
            "seconds": seconds,
            "notes": report.notes,
            "host_steps": meta.get("host_steps", []),
            "fusion_refusals": meta.get("fusion_refusals", []),
            "targets": [program.target for program in artifact.programs],
            "target_bytes": artifact.target_bytes,
        }
        document |= {"external": str(path.with_name(external))} if external else {}
        print_json(document | ({"fusion": fusion} if fusion is not None else {}))
        return
    facts = build_facts(model, path, artifact, external)
    print_facts([*facts, *typical_shape(artifact), ("time", time_text(seconds))])
    if fusion is not None:
        click.echo()
        print_fusion(fusion)
    for text in report.notes:
        note(text)


def build_facts(model: Path, path: Path, artifact: Any, external: str) -> list[tuple[str, str]]:
    """The lines of the summary, without times."""
    meta = artifact.meta
    build = meta.get("build", {})
    facts = [("model", f"{model}: {build.get('ops_in', '?')} ops, {build.get('ops_simplified', '?')} after rewriting")]
    kinds = ", ".join(f"{count} {kind}" for kind, count in build.get("kernels_by_kind", {}).items())
    facts.append(
        ("kernels", f"{build.get('kernels_out', '?')}, {build.get('kernels_distinct', '?')} distinct" + _aside(kinds))
    )
    before, after = build.get("bytes_moved_unfused", 0), build.get("bytes_moved_fused", 0)
    saved = f", {abs(1 - after / before):.0%} {'less by fusion' if after <= before else 'more'}" if before else ""
    facts.append(("moved", f"{bytes_text(before)} -> {bytes_text(after)} per run{saved}"))
    peak, bound = build.get("peak_bytes", 0), build.get("lower_bound_bytes", 0)
    over = "equal to the lower bound" if peak == bound else f"lower bound {bytes_text(bound)}"
    facts.append(("memory", f"{bytes_text(peak)} at the peak, {over}" + _aside(str(build.get("planner", "")))))
    facts.append(("weights", bytes_text(build.get("weights_bytes", 0))))
    if meta.get("quantization"):
        facts.append(("quantized", quantized_text(meta["quantization"])))
    if meta.get("self_test"):
        facts.append(("self-test", self_test_text(meta)))
    if meta.get("host_steps"):
        facts.append(("host steps", host_steps_text(meta["host_steps"])))
    if meta.get("operators"):
        facts.append(("custom", operators_text(meta["operators"])))
    refusals = len(meta.get("fusion_refusals", []))
    if refusals:
        facts.append(
            (
                "declined",
                f"{refusals} rewrite{'s' if refusals != 1 else ''}, with reasons: aotc inspect --fusion {path}",
            )
        )
    programs = ", ".join(
        f"{p.target}{f' {p.variant}' if p.variant else ''}{precision_text(meta, p.target)}" for p in artifact.programs
    )
    facts.append(("artifact", f"{path}, {bytes_text(artifact.size_bytes)}: {programs}"))
    if len({target.partition(":")[0] for target in meta.get("targets", ())}) > 1:
        facts.append(("bytes", target_bytes_text(artifact.target_bytes)))
    if external:
        facts.append(("external", f"{path.with_name(external)}, {bytes_text(len(artifact.external))}"))
    return facts


def quantized_text(record: dict[str, Any]) -> str:
    """How many products are quantized, and what it costs."""
    nodes = record["nodes"]
    count = sum(node["form"] != "float" for node in nodes)
    error = "" if record["final"] is None else f", {record['metric']} {record['final']:.2g}"
    return f"{count} of {len(nodes)} products in {record['method']['form']}{error}: see aotc explain"


def self_test_text(meta: dict[str, Any]) -> str:
    """How many inputs are kept, and how far the outputs are from the reference's."""
    held = meta["self_test"]
    worst = max(
        (metrics["relative"]["quantiles"][-1][1] for metrics in meta["errors"].values() if "relative" in metrics),
        default=None,
    )
    error = "" if worst is None else f", relative error at most {worst:.2g}"
    how = "" if held["measured"] == "compiled" else " (kernels interpreted: the target is not here)"
    return f"{held['inputs']} inputs; {held['error_samples']} samples against {held['reference']}{error}{how}"


def typical_shape(artifact: Any) -> list[tuple[str, str]]:
    """Which shape the byte counts are for, where shapes are open."""

    from aot.dims import typical

    symbols = {symbol.name: symbol for program in artifact.programs for symbol in program.input_symbols}
    shape = ", ".join(f"{name}={typical(symbol.dim)}" for name, symbol in symbols.items())
    return [("figures", f"moved and memory are for {shape}")] if shape else []


def _aside(text: str) -> str:
    return f" ({text})" if text else ""


def time_text(seconds: dict[str, float]) -> str:
    """The stages and their sum."""
    stages = ", ".join(f"{name} {seconds_text(value)}" for name, value in seconds.items())
    return f"{seconds_text(sum(seconds.values()))}{_aside(stages)}"
