"""Small artifacts for tests of deployments: a dense layer, versions of it that go wrong, and one with state."""

from __future__ import annotations

from dataclasses import replace

from aot import dtypes
from aot.artifacts import Artifact
from aot.dims import Symbol
from aot.ir import TensorType
from aot.program import Argument, Buffer, Guard, GuardKind, KernelCode, Port, Program, Space, Step
from aot.runtime.serving.stored_tests import StoredTest, to_tensors
from tests.runtime import handmade

CRASH = "*(volatile int *)0 = 1;"
HANG = "for (volatile int forever = 1; forever;) {}"
POISON_VALUE = 1000.0
"""Inputs with this as their first number set off what `dense` is given."""


def dense(at_poison: str = "", every_value: str = "v", target: str = "cpu:x86-64") -> bytes:
    """relu(x @ w + b) of tests.runtime.handmade. `at_poison`: C code that runs in the kernel where the input begins
    with POISON_VALUE; `every_value`: a C expression of each result `v`."""
    source = handmade.DENSE_SOURCE.replace(
        "for (i64 i = a->thread; i < n; i += a->thread_count) {",
        f"if (x[0] == {POISON_VALUE}f) {{ {at_poison} }}\n for (i64 i = a->thread; i < n; i += a->thread_count) {{",
        1,
    ).replace("= v > 0 ? v : 0", f"= ({every_value}) > 0 || v != v ? ({every_value}) : 0")
    assert source.count(every_value) >= 2
    program = handmade.program(target)
    kernels = tuple(replace(kernel, source=source) for kernel in program.kernels)
    return handmade.artifact(replace(program, kernels=kernels, code=handmade.compiled(source))).data


def renamed(input_name: str = "x", output_name: str = "y") -> bytes:
    """The dense layer with another name of its input or output."""
    program = handmade.program()
    inputs = (replace(program.inputs[0], name=input_name),)
    outputs = (replace(program.outputs[0], name=output_name),)
    return handmade.artifact(replace(program, inputs=inputs, outputs=outputs)).data


def with_self_test(artifact: bytes) -> bytes:
    """The artifact with two inputs and what `handmade.expected` has for them."""
    tests = []
    for n in (1, 6):
        x = handmade.batch_of(n)
        tests.append(StoredTest({"x": x}, {"y": handmade.expected(x)}))
    return Artifact(artifact).with_parts(meta={"compiler": "handmade"}, self_test=to_tensors(tuple(tests))).data


COUNTER_SOURCE = (
    handmade.PRELUDE
    + """
void count(const struct args *a) {
    const float *x = a->buffers[0], *sum = a->buffers[1];
    float *total = a->buffers[2], *next = a->buffers[3];
    if (a->thread == 0)
        for (i64 i = 0; i < a->dims[0]; ++i) { float t = sum[i] + x[i] * FACTOR; next[i] = t; total[i] = t; }
}
"""
)


def counter(factor: float = 1.0) -> bytes:
    """total = sum + factor * x, with the state sum [n], n 1..64, which a run replaces by it."""
    source = COUNTER_SOURCE.replace("FACTOR", f"{factor}f")
    symbol = Symbol("n", 1, 64)
    n = symbol.dim
    vector = TensorType(dtypes.F32, (n,))
    program = Program(
        target="cpu:x86-64",
        variant="",
        symbols=(symbol,),
        inputs=(Port("x", vector), Port("sum", vector)),
        outputs=(Port("total", vector), Port("next", vector)),
        state=((1, 1),),
        guards=(
            Guard(GuardKind.BIND, port=0, axis=0, symbol=0, lo=1, hi=64),
            Guard(GuardKind.EQUAL, port=1, axis=0, expected=n),
        ),
        sources=(),
        constants=(),
        buffers=(
            Buffer(Space.INPUT, 0, n * 4),
            Buffer(Space.INPUT, 1, n * 4),
            Buffer(Space.OUTPUT, 0, n * 4),
            Buffer(Space.OUTPUT, 1, n * 4),
        ),
        kernels=(KernelCode("count", "MAP", "count", ("count",), "all", source),),
        steps=(Step(0, (Argument(0), Argument(1), Argument(2), Argument(3)), (n,)),),
        code=handmade.compiled(source),
    )
    return handmade.artifact(program).data
