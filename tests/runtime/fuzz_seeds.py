"""Writes the seeds of runtime/fuzz: `python -m tests.runtime.fuzz_seeds runtime/fuzz/corpus`.

Small artifacts that between them use every section, record, guard, space, recipe op and weights mode. Their code
is four bytes, since the harness replaces kernels by functions that do nothing. Same bytes on every machine.
"""

from __future__ import annotations

import struct
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper, numpy_helper

import aot
from aot import dims, dtypes, recipe
from aot.artifacts import layout, signatures
from aot.artifacts.layout import Section
from aot.artifacts.table import read_entries
from aot.artifacts.write import assemble
from aot.dims import Symbol
from aot.ir import Array, TensorType, const_of
from aot.program import (
    RELATIONS,
    Argument,
    Buffer,
    Constant,
    Flow,
    FlowOp,
    FlowStep,
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
)
from tests.runtime import handmade

NO_CODE = b"code"
N = Symbol("n", 0, None)
KERNEL = KernelCode("kernel", "MAP", "label", ("node",), "rows", "")


def dense(**changes: Any) -> Program:
    """`handmade.program()` without code and sources."""
    program = handmade.program()
    kernels = tuple(replace(kernel, source="") for kernel in program.kernels)
    return replace(program, kernels=kernels, code=NO_CODE, **changes)


def simple(**changes: Any) -> Program:
    """One input x [n], one output y [n], f32, paired as state."""
    port = TensorType(dtypes.F32, (N.dim,))
    program = Program(
        target="cpu:x86-64",
        variant="",
        symbols=(N,),
        inputs=(Port("x", port),),
        outputs=(Port("y", port),),
        state=((0, 0),),
        guards=(Guard(GuardKind.BIND, 0, 0, symbol=0),),
        sources=(),
        constants=(),
        buffers=(Buffer(Space.INPUT, 0, N.dim * 4), Buffer(Space.OUTPUT, 0, N.dim * 4)),
        kernels=(KERNEL,),
        steps=(Step(0, (Argument(0), Argument(1)), (N.dim,)),),
        code=NO_CODE,
    )
    return replace(program, **changes)


def made_by(steps: Sequence[RecipeStep], sources: Sequence[Array]) -> Program:
    """A program with one constant, made by a recipe, and one output of its shape."""
    named = tuple(Source(f"w{i}", const_of(array, f"file.w{i}")) for i, array in enumerate(sources))
    expected = recipe.run(steps, named)
    dtype = dtypes.from_numpy(expected.dtype)
    size = expected.nbytes
    return simple(
        symbols=(),
        inputs=(),
        outputs=(Port("y", TensorType(dtype, expected.shape)),),
        state=(),
        guards=(),
        sources=named,
        constants=(Constant("c", dtype.number, expected.shape, tuple(steps)),),
        buffers=(Buffer(Space.CONST, 0, size), Buffer(Space.OUTPUT, 0, size)),
        steps=(Step(0, (Argument(0), Argument(1)), (size,)),),
    )


def recipes() -> Iterator[tuple[str, Program]]:
    """Recipes that between them use every op and most element types."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    ints = np.arange(-3, 3, dtype=np.int32)
    source, other = recipe.source(0), recipe.source(1)

    def op(kind: RecipeOp, **fields: Any) -> RecipeStep:
        return RecipeStep(kind, **fields)

    yield "matrix", made_by([source, recipe.pack_matrix(2, 3)], [a])
    kinds = (RecipeOp.ADD, RecipeOp.SUB, RecipeOp.MUL, RecipeOp.DIV)
    arithmetic = [step for kind in kinds for step in (other, op(kind))]
    yield "arithmetic", made_by([source, *arithmetic, op(RecipeOp.NEG)], [a, a[:1] + 1])
    scalar = op(RecipeOp.SCALAR, dtype=dtypes.F32.number, scalar=2.5)
    yield "scalar", made_by([source, scalar, op(RecipeOp.MUL), op(RecipeOp.SQRT)], [a])
    casts = (dtypes.F64, dtypes.F16, dtypes.BF16, dtypes.F32, dtypes.I64, dtypes.U8, dtypes.BOOL, dtypes.I16)
    yield "casts", made_by([source, *(op(RecipeOp.CAST, dtype=dtype.number) for dtype in casts)], [ints])
    transpose = op(RecipeOp.PACK, shape=(3, 2), coefficients=((0, 1), (1, 0)))
    yield "pack", made_by([source, transpose, op(RecipeOp.RESHAPE, shape=(6, 1))], [a])
    strided = op(RecipeOp.PACK, shape=(2, 4), coefficients=((1, 0), (-1, 2)))
    yield "strided", made_by([source, strided], [a.astype(np.float64)])
    weight = np.arange(2 * 2 * 9, dtype=np.float32).reshape(2, 2, 3, 3)
    yield "winograd", made_by([source, op(RecipeOp.WINOGRAD)], [weight])
    yield "concat", made_by([source, other, source, recipe.concat(1, 3)], [a, a[:, :1]])
    yield "empty", made_by([source, other, op(RecipeOp.ADD)], [np.zeros((0, 4), np.int8), np.zeros((1, 1), np.int8)])


def guarded() -> Iterator[tuple[str, tuple[Program, ...]]]:
    """Programs with every kind of guard."""
    batch = handmade.BATCH.dim
    base = dense()
    bind = Guard(GuardKind.BIND, 0, 0, symbol=0, lo=4, hi=0, divisor=4)
    yield "divisor", (replace(base, guards=(bind, base.guards[1])),)
    square = (base.guards[0], Guard(GuardKind.EQUAL, 0, 1, expected=dims.maximum(batch * 2 - 3, 5)))
    yield "equal", (replace(base, guards=square),)
    kinds = tuple(RELATIONS.values())
    related = [Guard(kind, 0, 0, expected=batch * 2, other=dims.maximum(batch + 3, 5)) for kind in kinds]
    for number, form in enumerate((batch * 2 - 3, batch * batch, dims.maximum(batch, 5))):  # only the first is linear
        solve = Guard(GuardKind.SOLVE, 0, 0, symbol=0, lo=1, hi=64, expected=form)
        yield f"solved-{number}", (replace(base, guards=(solve, base.guards[1])),)
    yield "relations", (replace(base, guards=(*base.guards, *related)),)
    index = Port("rate", TensorType(dtypes.I64, ()))
    ports = (*base.inputs, index)
    programs = []
    for value in (8000, 16000):
        guard = Guard(GuardKind.VALUE, 1, 0, expected=value)
        programs.append(replace(base, variant=f"rate={value}", inputs=ports, guards=(*base.guards, guard)))
    other = Guard(GuardKind.OTHER_VALUE, 1, 0, expected=8000)
    programs.append(replace(base, inputs=ports, guards=(*base.guards, other)))
    yield "value", tuple(programs)


def placed() -> Iterator[tuple[str, Program]]:
    """Programs whose buffers lie in every space, some on others."""
    n = N.dim
    first = simple().buffers
    sizes = dims.floordiv(n * 4 + 3, 2) + dims.minimum(n, 7)
    stacked = (
        *first,
        Buffer(Space.ARENA, 0, n * 4, first_step=0, last_step=1, name="low"),
        Buffer(Space.ARENA, 64, 100),
        Buffer(Space.ARENA, 0, sizes, below=(2,)),
        Buffer(Space.ARENA, 0, dims.mod(n, 5) * 8, below=(2, 3, 4)),
    )
    steps = tuple(
        Step(0, (Argument(0), Argument(2 + i % 4), Argument(1, n * 2)), (n, sizes), 64 * i, barrier=i % 2 == 0)
        for i in range(6)
    )
    yield "stacked", simple(buffers=stacked, steps=steps, peak_bytes=n * 9, planner="greedy")
    scalar, row = TensorType(dtypes.BF16, ()), TensorType(dtypes.I4, (n, 3, n + 1))
    yield (
        "ports",
        simple(
            inputs=(Port("a", scalar), Port("b", row)),
            outputs=(Port("c", row), Port("d", scalar)),
            state=((1, 0),),
            guards=(Guard(GuardKind.BIND, 1, 0, symbol=0, lo=0), Guard(GuardKind.EQUAL, 1, 1, expected=3)),
            buffers=(Buffer(Space.INPUT, 0, 2), Buffer(Space.OUTPUT, 1, 2)),
            steps=(Step(0, (Argument(0), Argument(1)), ()),),
        ),
    )
    yield "nothing", simple(kernels=(), steps=(), buffers=(), code=b"")


def flows() -> Iterator[tuple[str, Program]]:
    """Programs of blocks: branches, loops, results that grow, sizes read from data."""
    n, m = N.dim, Symbol("m", 0, 1000)
    row = TensorType(dtypes.F32, (n,))
    one, number = TensorType(dtypes.BOOL, ()), TensorType(dtypes.I64, ())
    many, half = TensorType(dtypes.F32, (m.dim, n)), TensorType(dtypes.F32, (dims.minimum(m.dim, n),))
    inputs = (Port("x", row), Port("flag", one), Port("trips", number))
    held = (Port("y", row), Port("i", number), Port("all", many), Port("part", half), Port("go", one))
    block = simple(symbols=(N,), state=(), guards=())
    weighted = replace(made_by([recipe.source(0)], [np.ones((2, 3), np.float32)]), outputs=(Port("w", many),))
    weighted = replace(weighted, symbols=(m, N), buffers=(weighted.buffers[0], Buffer(Space.OUTPUT, 0, m.dim * n * 4)))

    def step(op: FlowOp, reads: tuple[int, ...] = (), writes: tuple[int, ...] = (), **fields: Any) -> FlowStep:
        return FlowStep(op, reads, writes, where="node", **fields)

    call = step(FlowOp.CALL, (3,), (3,), block=0)
    start = step(FlowOp.MOVE, (0,), (3,))

    def program(*steps: FlowStep, result: Port, slot: int) -> Program:
        return simple(
            symbols=(N, m),
            inputs=inputs,
            outputs=(result,),
            state=(),
            buffers=(),
            steps=(),
            kernels=(),
            code=b"",
            flow=Flow((*inputs, *held), steps, (slot,), (block, weighted), ((0,), (1, 0)), 1),
        )

    branch = step(FlowOp.IF, (1,), bodies=((call, call), (step(FlowOp.MOVE, (3,), (3,)),)), drops=(1,))
    yield "branch", program(start, branch, result=Port("r", row), slot=3)
    grow = step(FlowOp.APPEND, (3,), (5,))
    loop = step(FlowOp.LOOP, (2, -1), (4,), bodies=((call, grow),))
    match = step(FlowOp.MATCH, (5,), symbols=(1, -1))
    yield "loop", program(start, step(FlowOp.CLEAR, (), (5,)), loop, match, result=Port("r", many), slot=5)
    size = step(FlowOp.READ, (2,), symbols=(1,), clamp=True)
    part = step(FlowOp.ALIAS, (3,), (6,), drops=(3,))
    enough = step(FlowOp.CHECK, dims=(m.dim + n, m.dim))
    yield "size", program(start, size, enough, part, result=Port("r", half), slot=6)
    same = step(FlowOp.READ, (2,), dims=(3,))
    whole = step(FlowOp.LOOP, (-1, 7), (-1,), bodies=((call, step(FlowOp.MOVE, (1,), (7,))),))
    go = step(FlowOp.MOVE, (1, 3), (7, 3))
    filled = step(FlowOp.CALL, (), (5,), block=1)
    yield "while", program(start, go, whole, same, size, filled, result=Port("r", many), slot=5)


def hosted() -> Program:
    """A program for a GPU that is one host step."""
    port = Port("x", TensorType(dtypes.F32, (N.dim,)))
    call = FlowStep(FlowOp.CALL, (0,), (1,), block=0, drops=(0,), where="node")
    host = (HostStep(0, "sort", "no kernel", ("node", "other")),)
    flow = Flow((port, replace(port, name="y")), (call,), (1,), (simple(state=(), guards=()),), ((0,),), 0, host)
    return simple(target="cuda:sm_90a", state=(), buffers=(), steps=(), kernels=(), code=b"", flow=flow)


def handmade_seeds() -> Iterator[tuple[str, bytes]]:
    """Artifacts of programs written by hand."""
    base = dense()
    for mode in ("embedded", "external", "none"):
        yield f"dense-{mode}", handmade.artifact(base, weights=mode, external_name="weights").data
    fixed = dense(variant="batch=3", guards=handmade.fixed_variant(3).guards)
    elsewhere = replace(base, target="cpu:x86-64-v4", code=b"other code")
    self_test = {"input:x": np.zeros((1, 5), np.float32)}
    yield "variants", handmade.artifact(fixed, base, elsewhere, self_test=self_test).data
    rows = Constant("layer.weight", dtypes.F32.number, (5, 19), (recipe.source(0),))
    alike = replace(base, target="cuda:sm_90a", kernels=(), steps=(), buffers=(), constants=(rows, base.constants[1]))
    yield "kept-sources", handmade.artifact(alike, base, debug=None).data
    always = replace(base.constants[1], always_embedded=True)
    mixed = replace(base, constants=(base.constants[0], always))
    yield "mixed", handmade.artifact(mixed, weights="none", debug=None).data
    for name, program in recipes():
        yield f"recipe-{name}", handmade.artifact(program, weights="none", debug=None).data
    for name, programs in guarded():
        yield f"guard-{name}", handmade.artifact(*programs, debug=None).data
    for name, program in placed():
        yield f"placed-{name}", handmade.artifact(program, debug=None).data
    for name, program in flows():
        yield f"flow-{name}", handmade.artifact(program, debug=None).data
    yield "host", handmade.artifact(hosted(), simple(), debug=None).data


def models() -> Iterator[tuple[str, onnx.ModelProto]]:
    """Tiny models, for tables as the compiler writes them."""
    random = np.random.default_rng(0)

    def model(nodes: Sequence[Any], inputs: Any, outputs: Any, weights: dict[str, Array]) -> onnx.ModelProto:
        def infos(items: Any) -> list[Any]:
            return [helper.make_tensor_value_info(*item) for item in items]

        held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
        graph = helper.make_graph(list(nodes), "seed", infos(inputs), infos(outputs), held)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)

    def normal(*shape: int) -> Array:
        return random.standard_normal(shape).astype(np.float32)

    f32 = onnx.TensorProto.FLOAT
    yield (
        "convolution",
        model(
            [
                helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["r"]),
                helper.make_node("GlobalAveragePool", ["r"], ["g"]),
                helper.make_node("Flatten", ["g"], ["f"]),
                helper.make_node("Gemm", ["f", "m"], ["y"]),
            ],
            [("x", f32, ["batch", 2, "h", "w"])],
            [("y", f32, ["batch", 3])],
            {"w": normal(2, 2, 3, 3), "m": normal(2, 3)},
        ),
    )
    yield (
        "recurrent",
        model(
            [helper.make_node("GRU", ["x", "w", "r"], ["", "y"], hidden_size=2)],
            [("x", f32, ["time", 1, 2])],
            [("y", f32, [1, 1, 2])],
            {"w": normal(1, 6, 2), "r": normal(1, 6, 2)},
        ),
    )


def without_code(data: bytes) -> bytes:
    """The artifact with four bytes of code for every program, and nothing that only people read."""
    entries = read_entries(memoryview(data))
    sections = {Section(e.kind): bytearray(data[e.offset : e.offset + e.bytes]) for e in entries.values()}
    sections[Section.CODE] = bytearray(NO_CODE)
    sections.pop(Section.DEBUG, None)
    sections.pop(Section.SELF_TEST, None)
    sections[Section.META] = bytearray(b"{}")
    record = layout.RECORD_OF[Section.PROGRAMS]
    table = sections[Section.PROGRAMS]
    for at in range(0, len(table), record.size_bytes):
        struct.pack_into("<QQ", table, at + record.size_bytes - 16, 0, len(NO_CODE))
    return assemble(sections)


def built_seeds() -> Iterator[tuple[str, bytes]]:
    """Artifacts that the compiler made."""
    with tempfile.TemporaryDirectory() as cache:
        for name, model in models():
            built = aot.compile(model.SerializeToString(), ("cpu:x86-64-v3",), cache_dir=cache, weights="none")
            yield f"built-{name}", without_code(built.data)


def signed_seeds() -> Iterator[tuple[str, bytes]]:
    """Artifacts with one and with several signatures; the harness trusts the key that is made from zeros."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    def private(byte: int) -> bytes:
        key = Ed25519PrivateKey.from_private_bytes(bytes([byte]) * 32)
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())

    data = signatures.sign(handmade.artifact(dense()).data, private(0))
    yield "signed-one", data
    yield "signed-three", signatures.sign(signatures.sign(data, private(1)), private(2))


def main(folder: str) -> None:
    """Writes every seed into the folder."""
    # Small files are faster to mutate, and readers take the alignment from the file.
    with mock.patch.object(layout, "WEIGHTS_ALIGN_BYTES", layout.SECTION_ALIGN_BYTES):
        for make in (handmade_seeds, built_seeds, signed_seeds):
            for name, data in make():
                (Path(folder) / f"seed-{name}.aot").write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1])
