"""`aotc build`: a model in, one artifact out, and the figures a person wants to see."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
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
from aot.cli.feeds import DimType, generic
from aot.cli.fusion import fusion_of, print_fusion
from aot.cli.operators import operators_option, operators_text
from aot.errors import OptionError
from aot.file_kinds import A_MODEL, ONNX, PROGRAM, kind_of
from aot.options import (
    IO_DTYPES,
    PRECISIONS,
    WEIGHTS,
    CompileOptions,
    DimRange,
    combine_variants,
    parse_set_option,
    parse_variant_option,
)


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


class SetType(click.ParamType[tuple[str, Any]]):
    """NAME=VALUE."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        try:
            return parse_set_option(value) if isinstance(value, str) else value
        except OptionError as error:
            self.fail(f"{error.message}. {error.hint}", param, ctx)


@click.command("build")
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.aot", help="Default: MODEL.aot, here.")
@click.option("--target", "targets", multiple=True, metavar="TARGET", help="cpu, cpu:x86-64-v3, … May be repeated.")
@click.option(
    "--dim", "dims", multiple=True, type=DimType(), metavar="NAME=LO..HI", help="Bounds, or NAME=N to fix it."
)
@click.option("--set", "values", multiple=True, type=SetType(), metavar="NAME=VALUE", help="Make an input a constant.")
@click.option(
    "--override", "overridable", multiple=True, metavar="NAME", help="Make an initializer an input; or all of these."
)
@click.option("--trust-pickle", is_flag=True, help="Read pickled weights of a .pt2 file, which can run code.")
@click.option("--variant", "variants", multiple=True, type=VariantType(), metavar="NAME=1,8", help="Also specialize.")
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS),
    default="fp32",
    show_default=True,
    help="On GPUs, of float32.",
)
@click.option(
    "--io-dtype",
    type=click.Choice(list(IO_DTYPES)),
    default="model",
    show_default=True,
    help="Of float32 inputs, outputs and state.",
)
@click.option("--exact", is_flag=True, help="No reassociation, no fused multiply-add across ops.")
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
@click.option("--jobs", type=int, metavar="N", help="Parallel compilers. Default: one per core.")
@click.option("--cache", "cache_dir", type=click.Path(path_type=Path), envvar="AOTC_CACHE", help="Compiled kernels.")
@click.option("--cc", "c_compiler", default="", envvar="AOTC_CC", metavar="CMD", help="C compiler. Default: search.")
@click.option("--explain-fusion", is_flag=True, help="Also tell what was fused, what was not, and why.")
@operators_option
@click.option("--check", is_flag=True, help="Only say whether every op is supported; build nothing.")
@common_options
def command(
    model: Path,
    output: Path | None,
    targets: tuple[str, ...],
    dims: tuple[DimRange, ...],
    values: tuple[tuple[str, Any], ...],
    overridable: tuple[str, ...],
    trust_pickle: bool,
    variants: tuple[tuple[str, tuple[int, ...]], ...],
    precision: str,
    io_dtype: str,
    exact: bool,
    no_host_steps: bool,
    weights: str,
    strip_debug: bool,
    dump_dir: Path | None,
    disable: tuple[str, ...],
    bisect: int | None,
    jobs: int | None,
    cache_dir: Path | None,
    c_compiler: str,
    explain_fusion: bool,
    operators: tuple[str, ...],
    check: bool,
) -> None:
    """Compile MODEL (an ONNX file, or a torch.export program as .pt2) into one artifact.

    AOTC_CC names the C compiler, AOTC_CACHE the folder of compiled kernels (default: aotc in
    XDG_CACHE_HOME or ~/.cache).
    """
    options = CompileOptions(
        targets=targets or ("cpu",),
        dims=dims,
        values=values,
        overridable=overridable,
        trust_pickle=trust_pickle,
        variants=combine_variants(variants),
        precision=precision,
        io_dtype=io_dtype,
        exact=exact,
        host_steps=not no_host_steps,
        weights=weights,
        strip_debug=strip_debug,
        disable=disable,
        bisect=bisect,
        dump_dir=dump_dir,
        cache_dir=cache_dir or default_cache(),
        jobs=jobs,
        c_compiler=c_compiler,
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
    path = output or Path(model.with_suffix(".aot").name)
    check_writable(path)
    external = f"{path.stem}.safetensors" if weights == "external" else ""
    with progress() as tell:
        artifact = driver.compile(model, options=options, operators=operators, progress=tell, external_name=external)
        tell("write", str(path))
        artifact.save(path)
    report_build(model, path, artifact, external, explain_fusion)


def default_cache() -> Path:
    """The user's cache folder: XDG_CACHE_HOME/aotc or ~/.cache/aotc."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aotc"


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
