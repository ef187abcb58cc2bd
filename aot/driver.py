"""The compiler driver: a model in, an Artifact out. The only module that sees frontend, backend and artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from aot import custom, frontend
from aot.artifacts import Artifact
from aot.assemble import Assembled, assemble, assemble_flow
from aot.axes import by_symbol
from aot.backend import BACKENDS
from aot.backend.base import Backend, Built
from aot.control import has_control
from aot.dims import typical
from aot.errors import OptionError, TargetError
from aot.host_steps import Placed, host_target, place_host_steps
from aot.ir import Graph
from aot.offsets import DEFAULT_NODE_BUDGET
from aot.ops.contract import MATMULS
from aot.ops.window import CONVS
from aot.options import Binding, CompileOptions, DimRange
from aot.partition import FlowChart, partition
from aot.passes import Context, Pass, PassManager, Rewrites, check_disable, precisions_of
from aot.pipeline import CORE_PASSES, PIPELINE, TARGET_PASSES
from aot.program import HostStep, Program
from aot.quantization import FORMS, Quantization
from aot.target import Target
from aot.text import print_graph
from aot.transforms.bind_shapes import bind_shapes
from aot.transforms.convert_io import convert_io
from aot.transforms.products import Product, products, products_digest
from aot.views import VIEW_OPS

Progress = Callable[[str, str], None]
"""Told (stage, detail) as work goes on."""


@dataclass
class BuildReport:
    """What a person wants to know of a build. Seconds are told, never stored in the artifact."""

    figures: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    refusals: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    products: tuple[Mapping[str, str], ...] = ()  # of a program with quantized ones: node, op and form of each
    host_steps: tuple[tuple[str, HostStep], ...] = ()  # with the target of their program
    rewrites: dict[str, Rewrites] = field(default_factory=dict)  # of each variant, over all targets

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class Lowered:
    """A program before its code is made: its blocks as the passes leave them, kernels in their final order.

    `source` is the model's graph as it was read, `sources` are its blocks; a program without control has one.
    `rewrites` counts on over the targets.
    """

    variant: str
    target: Target
    backend: Backend
    placed: Placed
    source: Graph
    sources: Sequence[Graph]
    cores: Sequence[Graph]
    ordered: Sequence[Graph]
    units: Sequence[tuple[Backend, Target]]
    context: Context

    @property
    def rewrites(self) -> Rewrites:
        return self.context.rewrites

    @property
    def label(self) -> str:
        return f"{self.target.name}{' ' + self.variant if self.variant else ''}"

    @property
    def texts(self) -> dict[str, str]:
        """The IR text of each block, by the name that it has in the artifact."""
        return {
            _block_label(self.label, n, self.placed.chart): print_graph(block) for n, block in enumerate(self.ordered)
        }


def compile(
    model: Any,
    target: str | Sequence[str] | None = None,
    *,
    options: CompileOptions | None = None,
    operators: Iterable[custom.Operator | str | os.PathLike[str]] = (),
    progress: Progress | None = None,
    external_name: str = "",
    quantize: Any = None,
    calibration: Any = None,
    accuracy_budget: str | None = None,
    **changes: Any,
) -> Artifact:
    """Compiles a model: the path or the bytes of an ONNX file or of a torch.export program (.pt2), an onnx.ModelProto,
    or a torch.export.ExportedProgram.

    What a file is says its contents, not its name. A .pt2 file is read without running anything that it says.
    `target` is one or several targets ("cpu", "cpu:x86-64-v3"); `changes` are fields of
    CompileOptions. `operators` are custom operators beside those of installed packages: aot.custom.Operator,
    or modules and files that define OPERATORS. `external_name` is the file name of the weights for
    weights="external". `quantize`: a form such as "int8", an aot.quantization.Method, or a record (a Quantization or
    its path); "int8" where only `calibration` is given, which is data as aot.samples.open_samples takes it, such as an
    iterator of samples, or an aot.calibrate.Calibration. `accuracy_budget`: what quantization may cost, as
    aot.metrics.parse_budget reads it, measured on the data. The artifact's `report` says what was done. Raises
    ModelError, UnsupportedError, OptionError, TargetError, OperatorError; CompilerError is a defect of aotc.
    """
    options = replace(options or CompileOptions(), **changes)
    if target is not None:
        options = replace(options, targets=(target,) if isinstance(target, str) else tuple(target))
    with custom.use(operators):
        if quantize is not None or calibration is not None:
            record = _quantization(model, quantize, calibration, accuracy_budget, options, progress)
            options = replace(options, quantization=record)
        elif accuracy_budget is not None:
            raise OptionError("there is an accuracy budget, and nothing is quantized", hint="Name a form: int8.")
        return _compile(model, options, progress, external_name)


def _quantization(
    model: Any, how: Any, calibration: Any, budget: str | None, options: CompileOptions, progress: Progress | None
) -> Quantization:
    """The record of what is quantized: as it is given, or made now."""
    from aot.calibrate import Calibration  # these build programs of their own, through this module
    from aot.quantize import quantize

    how = "int8" if how is None else how
    if isinstance(how, Quantization) or (isinstance(how, (str, os.PathLike)) and how not in FORMS):
        if calibration is not None or budget is not None:
            raise OptionError(
                "the record says what is quantized; calibration and a budget are for making one",
                hint="Name a form such as int8 instead of the record, or leave them out.",
            )
        return how if isinstance(how, Quantization) else Quantization.open(Path(how))
    known = isinstance(calibration, Calibration)
    return quantize(
        model, how, data=None if known else calibration, calibration=calibration if known else None,
        accuracy_budget=budget, options=options, tell=progress,
    )  # fmt: skip


def _compile(model: Any, options: CompileOptions, progress: Progress | None, external_name: str) -> Artifact:
    tell = progress or (lambda stage, detail: None)
    report = BuildReport()
    check_disable(PIPELINE, options.disable)
    resolve_targets(options)  # what is wrong with them is told before a large model is read
    tell("read", str(model) if isinstance(model, (str, os.PathLike)) else "model")
    with report.stage("read"):
        graphs, info, applied = _read(model, options)
    targets = _targets(graphs, options)
    programs: list[Program] = []
    debug: dict[str, str] = {}
    contexts: dict[str, Context] = {}  # by variant
    for each in _lowered(graphs, applied, targets, report, tell):
        contexts[each.variant] = each.context
        with report.stage("fuse and plan"):
            assembled = [
                assemble(block, by, unit, variant=each.variant, node_budget=DEFAULT_NODE_BUDGET)
                for block, (by, unit) in zip(each.ordered, each.units, strict=True)
            ]
        built = _with_code(assembled, each.units, options, report, tell)
        placed, target = each.placed, each.target
        if placed.chart is None:
            programs.extend(built)
        else:
            programs.append(
                assemble_flow(placed.graph, placed.chart, built, target, variant=each.variant, host=placed.host)
            )
        report.host_steps += tuple((target.name, step) for step in placed.host)
        debug |= each.texts
        report.products = report.products or forms(each.ordered)
        if not report.figures:
            report.figures = figures(each.sources, each.cores, each.ordered, assembled)
    programs = _shared_state(programs)
    report.refusals = tuple(
        dict.fromkeys(
            (r.rule, r.where, r.reason) for context in contexts.values() for r in context.diagnostics.refusals
        )
    )
    report.notes = tuple(dict.fromkeys((*info.warnings, *(n for c in contexts.values() for n in c.diagnostics.notes))))
    report.rewrites = {variant: context.rewrites for variant, context in contexts.items()}
    tell("write", "artifact")
    with report.stage("write"):
        file = Path(model).name if isinstance(model, (str, os.PathLike)) else ""
        meta = _meta(options, info, report, targets, file)
        artifact = Artifact.build(
            programs,
            meta=meta,
            weights=options.weights,  # type: ignore[arg-type]  # checked by CompileOptions
            debug=None if options.strip_debug else debug,
            external_name=external_name,
        )
    artifact.report = report
    return artifact


def lower(model: Any, options: CompileOptions) -> Iterator[Lowered]:
    """The programs that `compile` would make, in its order, as graphs of kernels: no code is made.

    Raises as `compile`. Custom operators: those of `aot.custom.use` around the iteration.
    """
    check_disable(PIPELINE, options.disable)
    graphs, _, applied = _read(model, options)
    yield from _lowered(graphs, applied, _targets(graphs, options), BuildReport(), lambda stage, detail: None)


def _targets(graphs: Sequence[tuple[str, Graph]], options: CompileOptions) -> list[tuple[Backend, Target]]:
    """Backends and targets of a build; what a bare backend stands for depends on the model."""
    is_quantized = options.quantization is not None or any(has_8bit_products(graph) for _, graph in graphs)
    return resolve_targets(options, quantized=is_quantized)


def _lowered(
    graphs: Sequence[tuple[str, Graph]],
    options: CompileOptions,
    targets: Sequence[tuple[Backend, Target]],
    report: BuildReport,
    tell: Progress,
) -> Iterator[Lowered]:
    """Every program to make, through all passes: each variant for each target. `options` are for the passes."""
    found: dict[str, Product] = {}
    for graph, variant_name, variant in _variants(graphs, options):
        is_last = graph is graphs[-1][1]
        with report.stage("transform"):
            context = Context(options=variant, target=targets[0][1], backend=targets[0][0])
            graph, chart, blocks, context = _blocks(graph, context)
            run = partial(_run, CORE_PASSES, context, "transform", tell)
            cores = [run(block) for block in blocks]
            if options.quantization is not None:
                own = {product.name: product for core in cores for product in products(core)}
                found |= {} if variant.dims else own
                if is_last:  # by then all are known where an input decides what the program is
                    _check_record(options.quantization, found | own, general=not variant.dims)
        for backend, hardware in targets:
            placed = place_host_steps(graph, chart, cores, backend, hardware, allowed=options.host_steps)
            with report.stage("fuse and plan"):
                here = (backend, hardware)
                units = [_host(options) if placed.is_host(n) else here for n in range(len(placed.blocks))]
                ordered = [
                    _run(TARGET_PASSES, replace(context, target=unit, backend=by), "fuse and plan", tell, core)
                    for core, (by, unit) in zip(placed.blocks, units, strict=True)
                ]
            yield Lowered(variant_name, hardware, backend, placed, graph, blocks, cores, ordered, units, context)


def _shared_state(programs: Sequence[Program]) -> list[Program]:
    """The programs with the state pairs that all of them have: a caller does not know which one will run."""
    shared = set.intersection(*(set(program.state) for program in programs))
    return [replace(p, state=tuple(pair for pair in p.state if pair in shared)) for p in programs]


def _read(
    model: Any, options: CompileOptions
) -> tuple[tuple[tuple[str, Graph], ...], frontend.ImportInfo, CompileOptions]:
    """The graphs with `dims` applied, and the options for the passes: variants named as the graph names them.

    The frontend applies the bounds, since a model may need them to have shapes at all; variants are
    bound by the pass bind_shapes, one at a time.
    """
    graphs, info = frontend.load_variants(
        model, dims=options.dim_bounds, edges=_edges(options), trust_pickle=options.trust_pickle
    )
    plain = {text: name for name, text in info.symbols.items()}
    variants = tuple(_by_symbol(each, plain, graphs[0][1]) for each in options.variants)
    return graphs, info, replace(options, dims=(), variants=tuple(dict.fromkeys(variants)))


def _by_symbol(binding: Binding, plain: Mapping[str, str], graph: Graph) -> Binding:
    """What a variant fixes, by the graph's symbols; `plain`: these by the model's texts. Axes of inputs have names too.

    Raises OptionError for a name that is no dimension, and for two sizes of one.
    """
    shapes = {value.name: value.type.shape for value in graph.inputs}
    symbols = [symbol.name for symbol in graph.symbols if symbol.origin == "input"]
    asked = [(plain.get(text, text), extent) for text, extent in binding]
    return tuple(sorted(by_symbol(asked, symbols, shapes).items()))


def _edges(options: CompileOptions) -> frontend.Edges:
    return frontend.Edges(options.overridable, dict(options.values))


@dataclass(frozen=True)
class CoreGraphs:
    """A model's general program after the core passes.

    Parts of it where branches or loops that are decided in a run cut it, or where the value of an input decides what
    the program is; else the whole.
    """

    graphs: tuple[Graph, ...]
    is_whole: bool


def core_graphs(model: Any, options: CompileOptions) -> CoreGraphs:
    """What calibration and measurement work on. Raises as `compile`."""
    graphs, _, applied = _read(model, options)
    backend, target = resolve_targets(options)[0]
    found: list[Graph] = []
    is_whole = len(graphs) == 1
    for graph, _, variant in _variants(graphs, applied):
        if not variant.dims:
            _, chart, blocks, context = _blocks(graph, Context(options=variant, target=target, backend=backend))
            found += [PassManager(CORE_PASSES, context).run(block) for block in blocks]
            is_whole = is_whole and chart is None
    return CoreGraphs(tuple(found), is_whole)


def _check_record(record: Quantization, found: Mapping[str, Product], general: bool) -> None:
    """Raises OptionError where a record is of another model: a product that it quantizes is not there.

    Of the general program, which the record was made of, weights are compared too.
    """
    missing = [node.node for node in record.nodes if node.node not in found]
    if missing:
        raise OptionError(
            f"the record quantizes {len(missing)} nodes that the model does not have",
            where=missing[0],
            hint=_OF_THIS_MODEL,
        )
    if general and record.graph != products_digest([found[node.node] for node in record.nodes]):
        raise OptionError("the record is of another model: its nodes have other weights", hint=_OF_THIS_MODEL)


_OF_THIS_MODEL = "Make it of this model, with the same --dim, --set and --exact as the build has: aotc quantize."


def build_graph(graph: Graph, options: CompileOptions, hardware: tuple[Backend, Target]) -> tuple[Artifact, Graph]:
    """An artifact of one program, and its ordered graph, from one that has been through the core passes."""
    backend, target = hardware
    context = Context(options=options, target=target, backend=backend)
    ordered = PassManager(TARGET_PASSES, context).run(graph)
    block = assemble(ordered, backend, target, variant="", node_budget=DEFAULT_NODE_BUDGET)
    (program,) = _with_code([block], [hardware], options, BuildReport(), lambda stage, detail: None)
    return Artifact.build([program], meta={}, debug=None), ordered


def check(model: Any, options: CompileOptions | None = None) -> list[Any]:
    """The ops of a model that cannot be compiled, with their nodes and counts; empty when all can.

    Custom operators: those of `aot.custom.use` around the call.
    """
    options = options or CompileOptions()
    return list(
        frontend.check(model, dims=options.dim_bounds, edges=_edges(options), trust_pickle=options.trust_pickle)
    )


_QUANTIZED = frozenset({"quantize", "matmul_8bit", "conv_8bit"})
"""Ops of programs that want the backends' architectures for products of 8-bit numbers."""


def has_8bit_products(graph: Graph) -> bool:
    """Whether a graph has products of numbers in 8 bits, or may have after it is lowered."""
    return any(node.op in _QUANTIZED or any(map(has_8bit_products, node.regions)) for node in graph.nodes)


def resolve_targets(options: CompileOptions, *, quantized: bool = False) -> list[tuple[Backend, Target]]:
    """Backends and targets asked for, the most specific first.

    `quantized`: what a bare backend's name stands for is what programs with products of 8-bit numbers want.
    Raises TargetError for an unknown one, and where none has the precision although other levels of their CPU do.
    """
    found: list[tuple[Backend, Target]] = []
    for text in options.targets:
        name, _, architecture = text.partition(":")
        if name not in BACKENDS:
            raise TargetError(f"no backend {name!r}", hint=f"Backends: {', '.join(sorted(BACKENDS))}.")
        backend = BACKENDS[name]
        default = backend.quantized_architectures if quantized else backend.default_architectures
        default = backend.precision_architectures.get(options.precision, default)
        for each in (architecture,) if architecture else default:
            target = backend.target(each)
            if options.exact:
                target = replace(target, features=target.features | {"exact"})
            if options.precision == "tf32" and "tf32" in backend.precisions:
                target = replace(target, features=target.features | {"tf32"})
            if all(target.name != known.name for _, known in found):
                found.append((backend, target))
    _check_precision(found, options.precision)
    return found


def _check_precision(units: Sequence[tuple[Backend, Target]], precision: str) -> None:
    """Raises TargetError where no target has the precision, but one of another name would."""
    if any(precision in precisions_of(backend, target) for backend, target in units):
        return
    having = [
        f"{backend.name}:{backend.precision_architectures[precision][0]}"
        for backend in dict.fromkeys(backend for backend, _ in units)
        if precision in backend.precision_architectures
    ]
    if having:
        names = ", ".join(target.name for _, target in units)
        raise TargetError(
            f"precision {precision} was asked for, and {names} has no products of it",
            hint=f"Build for a target that has: --target {' or '.join(having)}; or leave --precision out.",
        )


def _blocks(graph: Graph, context: Context) -> tuple[Graph, FlowChart | None, Sequence[Graph], Context]:
    """The graph, and the graphs that passes may work on: itself, or where it has control, its blocks.

    Dimensions are bound and the types of inputs and outputs are set before it is cut, since what lies between the
    blocks has types too.
    """
    if not has_control(graph):
        return graph, None, (graph,), context
    graph = PassManager((bind_shapes, convert_io), context).run(graph)
    chart = partition(graph)
    return graph, chart, chart.blocks, replace(context, options=replace(context.options, dims=(), io_dtype="model"))


def _run(passes: Sequence[Pass], context: Context, stage: str, tell: Progress, graph: Graph) -> Graph:
    return PassManager(passes, context, report=lambda name: tell(stage, name)).run(graph)


def _with_code(
    assembled: Sequence[Assembled],
    units: Sequence[tuple[Backend, Target]],
    options: CompileOptions,
    report: BuildReport,
    tell: Progress,
) -> list[Program]:
    """The programs with their code: those of one target share a blob."""
    made: dict[Target, Built] = {}
    for backend, target in dict.fromkeys(units):
        own = [block for block, (_, each) in zip(assembled, units, strict=True) if each == target]
        sources = dict(source for block in own for source in block.sources)
        tell("compile", f"{len(sources)} kernels for {target.name}")
        with report.stage("compile"):
            made[target] = _build(backend, tuple(sources.items()), target, options)
    return [block.with_code(made[target]) for block, (_, target) in zip(assembled, units, strict=True)]


def _host(options: CompileOptions) -> tuple[Backend, Target]:
    backend, target = host_target()
    return backend, replace(target, features=target.features | {"exact"}) if options.exact else target


def _block_label(label: str, number: int, chart: FlowChart | None) -> str:
    """The name of a graph's text: target, variant, and the number of the block where there are several."""
    return label if chart is None else f"{label} block {number}"


def _build(backend: Backend, sources: Sequence[tuple[str, str]], target: Target, options: CompileOptions) -> Built:
    return backend.build(
        sources, target, options.cache_dir, jobs=options.jobs or 0, compiler=options.c_compiler or None
    )


def _variants(
    graphs: Sequence[tuple[str, Graph]], options: CompileOptions
) -> Iterator[tuple[Graph, str, CompileOptions]]:
    """(graph, name, options) of every program to make; the generic one last."""
    for held, graph in graphs:
        for name, variant in _bindings(options):
            yield graph, ",".join(filter(None, (held, name))), variant


def _bindings(options: CompileOptions) -> Iterator[tuple[str, CompileOptions]]:
    """(name, options) of every set of fixed dimensions; the open one last."""
    for binding in filter(None, options.variants):  # one that fixes nothing is the open one
        fixed = {name: DimRange(name, extent, extent) for name, extent in binding}
        kept = tuple(dim for dim in options.dims if dim.name not in fixed)
        name = ",".join(f"{name}={extent}" for name, extent in binding)
        yield name, replace(options, dims=(*kept, *fixed.values()), variants=())
    yield "", options


def figures(
    source: Sequence[Graph], core: Sequence[Graph], ordered: Sequence[Graph], assembled: Sequence[Assembled]
) -> dict[str, Any]:
    """The numbers of a build: ops, kernels, bytes at a typical shape, memory. Of a flow, the sums over its blocks."""
    moved_before = sum(
        typical(value.type.bytes)
        for graph in core
        for node in graph.nodes
        if node.op not in VIEW_OPS
        for value in (*node.operands, *node.outputs)
    )
    kernels = [node for graph in ordered for node in graph.nodes if node.op == "kernel"]
    moved_after = sum(typical(v.type.bytes) for node in kernels for v in (*node.operands, *node.outputs))
    by_kind: dict[str, int] = {}
    for node in kernels:
        by_kind[str(node.attrs["kind"])] = by_kind.get(str(node.attrs["kind"]), 0) + 1
    programs = [block.program for block in assembled]
    weights = {source.const.digest: source.const.bytes for program in programs for source in program.sources}
    return {
        "ops_in": sum(len(graph.nodes) for graph in source),
        "ops_simplified": sum(len(graph.nodes) for graph in core),
        "kernels_out": len(kernels),
        "kernels_distinct": len({symbol for block in assembled for symbol, _ in block.sources}),
        "kernels_by_kind": dict(sorted(by_kind.items())),
        "bytes_moved_unfused": moved_before,
        "bytes_moved_fused": moved_after,
        "peak_bytes": max((typical(program.peak_bytes) for program in programs), default=0),
        "lower_bound_bytes": max((typical(program.lower_bound_bytes) for program in programs), default=0),
        "planner": programs[0].planner if len(programs) == 1 else f"the largest of {len(programs)} blocks",
        "weights_bytes": sum(weights.values()),
    }


def forms(ordered: Sequence[Graph]) -> tuple[Mapping[str, str], ...]:
    """Node, op and form of every matrix product and convolution; nothing where all are of floats."""
    found: list[Mapping[str, str]] = []
    for graph in ordered:
        for kernel in graph.nodes:
            for node in kernel.regions[0].nodes if kernel.op == "kernel" else ():
                if node.op not in MATMULS and node.op not in CONVS:
                    continue
                form = "float"
                if node.op.endswith("_8bit"):
                    form = "fp8" if node.operands[0].type.dtype.is_float else "int8"
                elif node.op == "matmul_packed":
                    form = f"int{node.attrs['bits']}-weights"
                found.append({"node": ", ".join(node.locs[:1]), "op": node.op.partition("_")[0], "form": form})
    return tuple(found) if any(item["form"] != "float" for item in found) else ()


def _meta(
    options: CompileOptions,
    info: frontend.ImportInfo,
    report: BuildReport,
    targets: Sequence[tuple[Backend, Target]],
    file: str,
) -> Mapping[str, Any]:
    from importlib.metadata import version

    import numpy
    import onnx

    operators = custom.current().described()
    tools: dict[str, str] = {}
    for backend in dict.fromkeys(
        [*(backend for backend, _ in targets), *([host_target()[0]] if report.host_steps else [])]
    ):
        tools.update(backend.tools(options.c_compiler or None))
    return {
        "aotc": version("aotc"),
        "build": report.figures,
        "fusion_refusals": [list(item) for item in report.refusals],
        "notes": list(report.notes),
        **({"host_steps": _host_meta(report)} if report.host_steps else {}),
        **({"operators": operators} if operators else {}),
        "options": options.to_json(),
        **({"products": list(report.products)} if report.products else {}),
        **({"quantization": options.quantization.summary()} if options.quantization is not None else {}),
        "precisions": {
            target.name: options.precision if options.precision in precisions_of(backend, target) else "fp32"
            for backend, target in targets
        },
        "source": {
            **({"file": file} if file else {}),
            "digest": info.digest,
            "node_count": info.node_count,
            "ops": dict(info.ops),
            "opset": info.opset,
            "producer": info.producer,
            "symbols": dict(info.symbols),
        },
        "targets": [target.name for _, target in targets],
        "tools": {**tools, "numpy": numpy.__version__, "onnx": onnx.__version__},
    }


def _host_meta(report: BuildReport) -> list[dict[str, Any]]:
    """The host steps, each once for a target: variants have the same."""
    rows = [(target, ", ".join(step.locs), step.op, step.why) for target, step in report.host_steps]
    return [dict(zip(("target", "node", "op", "why"), row, strict=True)) for row in dict.fromkeys(rows)]
