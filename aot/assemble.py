"""From an ORDERED graph to a Program: lower and emit every kernel, place every buffer, fill the tables."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from aot import dims as dimension
from aot.backend.base import Backend, Built, Emitted, PackedOperand
from aot.dims import Dim, Symbol, divisor_of, maximum
from aot.dtypes import BY_NUMBER
from aot.errors import CompilerError, OptionError, UnsupportedError
from aot.ir import Const, Graph, Node, Value
from aot.kernel import Kernel, KernelOperand
from aot.lower import lower
from aot.partition import FlowChart
from aot.program import (
    RELATIONS,
    Argument,
    Buffer,
    Constant,
    Flow,
    Guard,
    GuardKind,
    HostStep,
    KernelCode,
    Port,
    Program,
    RecipeOp,
    RecipeStep,
    Source,
    Space,
    Step,
    StepResult,
)
from aot.recipe import simplified
from aot.storage import Slot, pointer_offset_bytes, slots
from aot.target import Target
from aot.transforms.place import Plan, place_buffers
from aot.transforms.state import scatter_data


@dataclass(frozen=True)
class Assembled:
    """A program that still lacks its code blob, and the sources that the blob is built from."""

    program: Program
    sources: tuple[tuple[str, str], ...]  # (symbol, text)
    plan: Plan

    def with_code(self, built: Built) -> Program:
        images = built.images
        kernels = tuple(replace(kernel, image=images.get(kernel.symbol)) for kernel in self.program.kernels)
        return replace(self.program, code=built.code, kernels=kernels, driver=built.driver)


def assemble(
    graph: Graph,
    backend: Backend,
    target: Target,
    *,
    variant: str,
    node_budget: int,
    report: Callable[[str], None] | None = None,
) -> Assembled:
    """The program of an ORDERED graph for one target.

    Raises UnsupportedError, with all kernels that the target cannot have, and CompilerError, in the user's names.
    """
    kernels = [node for node in graph.nodes if node.op == "kernel"]
    places = slots(graph)
    emitted: list[Emitted] = []
    refused: dict[str, list[str]] = {}
    for node in kernels:
        if report is not None:
            report(str(node.attrs["name"]))
        kernel = _with_alignment(lower(node, lambda value: value in graph.consts), node, places)
        try:
            emitted.append(backend.emit(kernel, target))
        except UnsupportedError as error:
            refused.setdefault(error.message, []).append(node.where)
        except CompilerError as error:
            raise CompilerError(error.message, where=error.where or node.where, hint=error.hint) from error
    if refused:
        lines = [f"  {reason}: {', '.join(nodes)}" for reason, nodes in refused.items()]
        raise UnsupportedError(
            "\n".join((f"no kernels for {target.name}:", *lines)), hint="Build for the CPU: --target cpu."
        )
    table = _ConstantTable(graph)
    numbers = [
        {
            operand: table.number(value, unit.packed.get(operand))
            for operand, value in enumerate(node.operands)
            if value in graph.consts
        }
        for node, unit in zip(kernels, emitted, strict=True)
    ]
    # A constant read in several packings is several constants; a storage root then stands for the plain one.
    plain = {value: table.plain(value) for value in graph.consts if _is_read_plain(graph, kernels, emitted, value)}
    plan = place_buffers(graph, plain, node_budget)
    buffers = list(plan.buffers)
    constant_buffer: dict[int, int] = {b.index: n for n, b in enumerate(buffers) if b.space is Space.CONST}
    codes: list[KernelCode] = []
    code_number: dict[str, int] = {}
    steps: list[Step] = []
    for position, (node, unit) in enumerate(zip(kernels, emitted, strict=True)):
        symbol = f"k_{hashlib.sha256(unit.source.encode()).hexdigest()[:20]}"
        if symbol not in code_number:
            code_number[symbol] = len(codes)
            label, kind = str(node.attrs["name"]), str(node.attrs["kind"])
            codes.append(KernelCode(symbol, kind, label, node.locs, unit.schedule, unit.source))
        arguments = []
        for operand, value in enumerate((*node.operands, *node.outputs)):
            constant = numbers[position].get(operand) if operand < len(node.operands) else None
            if constant is not None:
                if constant not in constant_buffer:
                    constant_buffer[constant] = len(buffers)
                    buffers.append(table.buffer(constant, position))
                else:
                    number = constant_buffer[constant]
                    buffers[number] = replace(buffers[number], last_step=max(buffers[number].last_step, position))
                arguments.append(Argument(constant_buffer[constant], 0))
                continue
            slot = plan.slots[value]
            arguments.append(Argument(plan.number[slot.root], pointer_offset_bytes(slot, value.type)))
        moved = unit.bytes_moved + _copied_bytes(graph, plan, node)
        steps.append(
            Step(
                code_number[symbol], tuple(arguments), unit.dims, unit.scratch_bytes, unit.flops, moved,
                position + 1 < len(kernels), node.locs, unit.grid, _results(node),
            )
        )  # fmt: skip
    symbols = input_symbols(graph)
    initial = tuple((number, table.number_of(const)) for number, const in graph.initial)
    program = Program(
        target=target.name,
        variant=variant,
        symbols=symbols,
        inputs=tuple(Port(value.name, value.type) for value in graph.inputs),
        outputs=tuple(Port(value.name, value.type) for value in graph.outputs),
        state=tuple((graph.inputs.index(i), graph.outputs.index(o)) for i, o in graph.state),
        guards=guards(graph, symbols) if graph.environment is None else (),
        sources=tuple(table.sources),
        constants=tuple(table.constants),
        buffers=tuple(buffers),
        kernels=tuple(codes),
        steps=tuple(steps),
        code=b"",
        peak_bytes=plan.peak_bytes,
        lower_bound_bytes=plan.lower_bound_bytes,
        planner=plan.method,
        initial=initial,
    )
    units = {symbol: codes[number].source for symbol, number in code_number.items()}
    return Assembled(program, tuple(units.items()), plan)


def _results(node: Node) -> tuple[StepResult, ...]:
    """What a kernel writes, as its last pointers find it."""
    return tuple(
        StepResult(number, v.name, v.type.dtype, v.type.shape, v.type.strides, v.type.origin_elements)
        for number, v in enumerate(node.outputs, len(node.operands))
    )


def _copied_bytes(graph: Graph, plan: Plan, node: Node) -> Dim:
    """What a kernel that replaces elements moves beside them: all others, where the result lies elsewhere.

    State counts as one piece of memory, since only a caller that gives two pays for the copy.
    """
    data = scatter_data(node)
    if data is None:
        return 0
    source, target = plan.slots[data].root, plan.slots[node.outputs[0]].root
    is_state = any(source is kept and target is plan.slots[new].root for kept, new in graph.state)
    return 0 if source is target or is_state else 2 * data.type.bytes


def _with_alignment(kernel: Kernel, node: Node, places: Mapping[Value, Slot]) -> Kernel:
    """The kernel with what is known of its pointers: storages begin at multiples of 64 bytes, views anywhere."""

    def of(operand: KernelOperand, value: Value) -> KernelOperand:
        offset = 0 if operand.constant else pointer_offset_bytes(places[value], value.type)
        return replace(operand, is_aligned=divisor_of(offset) % KernelOperand.ALIGNMENT_BYTES == 0)

    return replace(
        kernel,
        inputs=tuple(map(of, kernel.inputs, node.operands)),
        outputs=tuple(map(of, kernel.outputs, node.outputs)),
    )


def assemble_flow(
    graph: Graph,
    chart: FlowChart,
    blocks: Sequence[Program],
    target: Target,
    *,
    variant: str,
    host: tuple[HostStep, ...] = (),
) -> Program:
    """The program of a graph that was cut into blocks, which are assembled already. `host`: what the CPU runs."""
    inputs = input_symbols(graph)
    by_name = {symbol.name: symbol for symbol in chart.symbols}
    if any(symbol.name not in by_name for symbol in inputs) or len(by_name) != len(chart.symbols):
        raise CompilerError("the symbols of a flow are not those of its graph")
    number = {symbol: position for position, symbol in enumerate(chart.symbols)}
    table = _ConstantTable(graph)
    initial = tuple((position, table.number_of(const)) for position, const in graph.initial)
    flow = Flow(
        slots=tuple(Port(value.name, value.type) for value in chart.slots),
        steps=chart.steps,
        results=chart.results,
        blocks=tuple(blocks),
        environments=tuple(tuple(number[symbol] for symbol in block.symbols) for block in blocks),
        unbacked=chart.unbacked,
        host=host,
    )
    return Program(
        target=target.name,
        variant=variant,
        symbols=chart.symbols,
        inputs=tuple(Port(value.name, value.type) for value in graph.inputs),
        outputs=tuple(Port(value.name, value.type) for value in graph.outputs),
        state=tuple((graph.inputs.index(i), graph.outputs.index(o)) for i, o in graph.state),
        guards=guards(graph, chart.symbols[: len(chart.symbols) - chart.unbacked]),
        sources=tuple(table.sources),
        constants=tuple(table.constants),
        buffers=(),
        kernels=(),
        steps=(),
        code=b"",
        peak_bytes=maximum(0, *(block.peak_bytes for block in blocks)),
        lower_bound_bytes=maximum(0, *(block.lower_bound_bytes for block in blocks)),
        planner=f"the largest of {len(blocks)} blocks",
        flow=flow,
        initial=initial,
        driver=max((block.driver for block in blocks), default=0),
    )


def _is_read_plain(graph: Graph, kernels: Sequence[Node], emitted: Sequence[Emitted], value: Value) -> bool:
    """Whether a kernel, or a view, reads the constant row-major."""
    if any(node.op != "kernel" and value in node.operands for node in graph.nodes):
        return True
    return any(
        value is operand and number not in unit.packed
        for node, unit in zip(kernels, emitted, strict=True)
        for number, operand in enumerate(node.operands)
    )


def input_symbols(graph: Graph) -> tuple[Symbol, ...]:
    """The symbols that inputs give values, in order, or those that a block is given.

    Raises OptionError for one that nothing gives a value.
    """
    if graph.environment is not None:
        return graph.environment
    bound: dict[str, Symbol] = {}
    extents = [dim for value in graph.inputs for dim in value.type.shape]
    for symbol in (*map(dimension.plain_symbol, extents), *map(_given_by, extents)):
        if symbol is not None:
            bound.setdefault(symbol.name, symbol)
    for symbol in graph.symbols:
        if symbol.name not in bound and symbol.origin == "input":
            raise OptionError(
                f"the size {symbol.name!r} is not an extent of any input, so it is unknown when the model runs",
                hint=f"Give it a value: --dim {symbol.name}=N.",
            )
    return tuple(bound.values())


def _given_by(extent: Dim) -> Symbol | None:
    found = dimension.linear_symbol(extent)
    return found[0] if found is not None else None


def guards(graph: Graph, symbols: Sequence[Symbol]) -> tuple[Guard, ...]:
    """The rules on the extents of the inputs.

    The first extent that is a symbol binds it; a symbol that stands nowhere alone is solved from the first extent
    that is linear in it; all others must be equal.
    """
    number = {symbol: index for index, symbol in enumerate(symbols)}
    places = [(port, axis, dim) for port, value in enumerate(graph.inputs) for axis, dim in enumerate(value.type.shape)]
    giving: dict[tuple[int, int], Guard] = {}
    seen: set[Symbol] = set()
    for kind, symbol_of in ((GuardKind.BIND, dimension.plain_symbol), (GuardKind.SOLVE, _given_by)):
        for port, axis, dim in places:
            symbol = symbol_of(dim)
            if symbol is None or symbol in seen:
                continue
            seen.add(symbol)
            expected = dim if kind == GuardKind.SOLVE else 0
            giving[port, axis] = Guard(
                kind, port, axis, number[symbol], symbol.lo, symbol.hi or 0, symbol.divisor, expected
            )
    equal = [
        Guard(GuardKind.EQUAL, port, axis, expected=dim) for port, axis, dim in places if (port, axis) not in giving
    ]
    held = [
        Guard(GuardKind.VALUE if is_equal else GuardKind.OTHER_VALUE, port, 0, expected=value)
        for port, value, is_equal in graph.input_values
    ]
    related = [
        Guard(RELATIONS[relation.sign], 0, 0, expected=relation.left, other=relation.right)
        for relation in graph.relations
        if not relation.known()
    ]
    # Values first: a program for other values is not the one whose sizes the user should hear of.
    return (*held, *giving.values(), *equal, *related)


class _ConstantTable:
    """Collects the constants of a program: one entry for each (contents, packing)."""

    def __init__(self, graph: Graph) -> None:
        self.consts: Mapping[Value, Const] = graph.consts
        self.sources: list[Source] = []
        self.constants: list[Constant] = []
        self._source_number: dict[str, int] = {}
        self._number: dict[tuple[str, tuple[RecipeStep, ...]], int] = {}
        self._names: set[str] = set()

    def plain(self, value: Value) -> int:
        return self.number(value, None)

    def number(self, value: Value, packed: PackedOperand | None) -> int:
        return self.number_of(self.consts[value], packed)

    def number_of(self, const: Const, packed: PackedOperand | None = None) -> int:
        steps = packed.recipe if packed is not None else ()
        key = (const.digest, steps)
        if key not in self._number:
            recipe = simplified((*self._recipe(const), *steps), [source.const.shape for source in self.sources])
            dtype = packed.dtype if packed is not None else const.dtype.number
            shape = packed.shape if packed is not None else const.shape
            name = self._fresh(const.source or f"const_{const.digest[:8]}")
            anonymous = not const.recipe and not const.source
            self._number[key] = len(self.constants)
            self.constants.append(Constant(name, dtype, tuple(shape), recipe, anonymous))
        return self._number[key]

    def buffer(self, number: int, position: int) -> Buffer:
        constant = self.constants[number]
        size = BY_NUMBER[constant.dtype].itemsize_bytes
        for extent in constant.shape:
            size *= extent
        return Buffer(Space.CONST, number, size, 0, (), position, position, constant.name)

    def _recipe(self, const: Const) -> tuple[RecipeStep, ...]:
        """The steps that make the constant from weights of the source model."""
        if const.recipe is None:
            return (RecipeStep(RecipeOp.SOURCE, (self._source(const),)),)
        numbers = [self._source(source) for source in const.recipe_sources]
        return tuple(
            replace(step, operands=(numbers[step.operands[0]],)) if step.op is RecipeOp.SOURCE else step
            for step in const.recipe
        )

    def _source(self, const: Const) -> int:
        if const.digest not in self._source_number:
            self._source_number[const.digest] = len(self.sources)
            self.sources.append(Source(self._fresh_source(const), const))
        return self._source_number[const.digest]

    def _fresh_source(self, const: Const) -> str:
        name = const.source or f"const_{const.digest[:8]}"
        taken = {source.name for source in self.sources}
        return name if name not in taken else f"{name}#{const.digest[:8]}"

    def _fresh(self, name: str) -> str:
        chosen, count = name, 1
        while chosen in self._names:
            count += 1
            chosen = f"{name}#{count}"
        self._names.add(chosen)
        return chosen
