"""Programs as text, for people. There is no parser: the artifact is the form that is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aot import dtypes
from aot.ir import Graph, TensorType, Value
from aot.program import RELATIONS, Buffer, Flow, FlowOp, FlowStep, GuardKind, Program, Space
from aot.text import Printer, quote, type_text


def program_text(program: Program) -> str:
    """A program as text: symbols, ports, guards, constants, buffers, kernels, steps; or slots, flow and blocks."""
    head = f"program {quote(program.target)} variant={quote(program.variant)} {{"
    lines = _program_lines(program)
    if program.flow is not None:
        for number, block in enumerate(program.flow.blocks):
            inner = (f"  {line}" for line in _program_lines(block))
            place = "" if block.target == program.target else f" on {quote(block.target)}"
            lines += [f"block {number}{place} {{", *inner, "}"]
    return "\n".join([head, *(f"  {line}" for line in lines), "}"]) + "\n"


def flow_lines(flow: Flow) -> list[str]:
    """The tensors between blocks, and the steps, those of bodies indented."""
    slots = [f"slot {i} {quote(slot.name)}: {type_text(slot.type)}" for i, slot in enumerate(flow.slots)]
    results = f"results {', '.join(map(str, flow.results))}"
    return [*slots, *_flow_step_lines(flow.steps, ""), results]


def _flow_step_lines(steps: Sequence[FlowStep], indent: str) -> Iterable[str]:
    for step in steps:
        outputs = f"{', '.join(f's{number}' for number in step.outputs)} = " if step.outputs else ""
        operands = ", ".join("_" if number < 0 else f"s{number}" for number in step.inputs)
        what = f"{step.op.name.lower()} {step.block}" if step.op == FlowOp.CALL else step.op.name.lower()
        text = f"{indent}{outputs}{what}({operands})"
        if step.op == FlowOp.READ:
            text += f" element {step.element}"
        if step.symbols:
            text += f" gives [{', '.join('_' if number < 0 else str(number) for number in step.symbols)}]"
        if step.dims:
            text += f" dims=[{', '.join(map(str, step.dims))}]"
        text += " exact" if step.exact else ""
        text += " clamp" if step.clamp else ""
        text += f" drops [{', '.join(map(str, step.drops))}]" if step.drops else ""
        yield text + _locs_text((step.where,) if step.where else ())
        for number, body in enumerate(step.bodies):
            yield f"{indent}  body {number}:"
            yield from _flow_step_lines(body, indent + "    ")


def _program_lines(program: Program) -> list[str]:
    parts = (
        (f"where {Printer.symbol(_symbol_printer(program), symbol)}" for symbol in program.symbols),
        (f"input {i} {quote(port.name)}: {type_text(port.type)}" for i, port in enumerate(program.inputs)),
        (f"output {i} {quote(port.name)}: {type_text(port.type)}" for i, port in enumerate(program.outputs)),
        (f"state input {kept} -> output {new}" for kept, new in program.state),
        (f"initial input {kept} = {program.constants[number].name}" for kept, number in program.initial),
        guard_lines(program),
        _constant_lines(program),
        (f"buf {i} {buffer_text(program, buffer)}" for i, buffer in enumerate(program.buffers)),
        (
            f"kernel {i} @{kernel.symbol} kind={kernel.kind} {quote(kernel.label)} schedule={quote(kernel.schedule)}"
            + _locs_text(kernel.locs)
            for i, kernel in enumerate(program.kernels)
        ),
        step_lines(program),
        flow_lines(program.flow) if program.flow is not None else (),
        [f"peak {program.peak_bytes} bytes, lower bound {program.lower_bound_bytes} bytes, planner {program.planner}"],
    )
    return [line for part in parts for line in part]


def buffer_text(program: Program, buffer: Buffer) -> str:
    """A buffer: who owns it, its size, where it lies, and the steps it lives for."""
    name = buffer.name
    if not name and buffer.space == Space.INPUT and buffer.index < len(program.inputs):
        name = program.inputs[buffer.index].name
    text = f"{quote(name)}: {buffer.space.name.lower()}"
    if buffer.space == Space.ARENA:
        place = f"above {','.join(map(str, buffer.below))}" if buffer.below else f"at {buffer.offset_bytes}"
        return f"{text} {buffer.size_bytes} bytes {place} steps {buffer.first_step}..{buffer.last_step}"
    return f"{text} {buffer.index} {buffer.size_bytes} bytes"


_SIGN_OF = {kind: sign for sign, kind in RELATIONS.items()}


def guard_lines(program: Program) -> list[str]:
    """The guards as rules on the user's inputs."""
    lines = []
    for guard in program.guards:
        if guard.kind in _SIGN_OF:
            lines.append(f"guard {guard.expected} {_SIGN_OF[guard.kind]} {guard.other}")
            continue
        what = f"guard {quote(program.inputs[guard.port].name)} axis {guard.axis}"
        if guard.kind in (GuardKind.VALUE, GuardKind.OTHER_VALUE):
            holds = "holds" if guard.kind == GuardKind.VALUE else "does not hold"
            lines.append(f"guard {quote(program.inputs[guard.port].name)} {holds} {guard.expected}")
            continue
        if guard.kind == GuardKind.EQUAL:
            lines.append(f"{what} == {guard.expected}")
            continue
        hi = guard.hi or ""
        multiple = f", multiple of {guard.divisor}" if guard.divisor != 1 else ""
        name = program.symbols[guard.symbol].name
        form = "" if guard.kind == GuardKind.BIND else f"{guard.expected} for "
        lines.append(f"{what} is {form}{name} in {guard.lo}..{hi}{multiple}")
    return lines


def step_lines(program: Program) -> list[str]:
    """The launches, in order."""
    lines = []
    for number, step in enumerate(program.steps):
        arguments = ", ".join(
            f"b{a.buffer}" if a.offset_bytes == 0 else f"b{a.buffer}+{a.offset_bytes}" for a in step.arguments
        )
        dims = f" dims=[{', '.join(map(str, step.dims))}]" if step.dims else ""
        grid = f" grid=[{', '.join(map(str, step.grid))}]" if step.grid else ""
        scratch = f" scratch={step.scratch_bytes}" if step.scratch_bytes != 0 else ""
        barrier = "" if step.barrier else " nobarrier"
        symbol = program.kernels[step.kernel].symbol
        lines.append(f"launch {number} @{symbol}({arguments}){dims}{grid}{scratch}{barrier}{_locs_text(step.locs)}")
    return lines


def _constant_lines(program: Program) -> Iterable[str]:
    for i, constant in enumerate(program.constants):
        dtype = dtypes.BY_NUMBER[constant.dtype].name
        sources = [
            program.sources[number].name
            for step in constant.recipe
            if step.op.name == "SOURCE"
            for number in step.operands
        ]
        recipe = ", ".join(step.op.name.lower() for step in constant.recipe)
        shape = ",".join(map(str, constant.shape))
        yield f"const {i} {quote(constant.name)}: {dtype}[{shape}] = {recipe}" + _locs_text(tuple(sources))


def _locs_text(locs: Sequence[str]) -> str:
    return f" ; {', '.join(map(quote, locs))}" if locs else ""


def _symbol_printer(program: Program) -> Printer:
    values = tuple(Value(TensorType(dtypes.I64, (symbol.dim,))) for symbol in program.symbols)
    return Printer(Graph("", values, {}, (), ()))
