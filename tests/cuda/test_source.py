"""Triton source of ops' entries, under Triton's interpreter: every sample of every op that has some; custom ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot import dims as dimension
from aot.backend.cuda import CudaBackend
from aot.builder import Builder
from aot.custom import AttrSpec, KernelSource, Kind, OpDef, Operator, TensorType, use
from aot.dims import Symbol
from aot.dtypes import I64, from_numpy
from aot.errors import OperatorError, UnsupportedError
from aot.evaluate import evaluate_op
from aot.kernel import Kernel
from aot.ops import OPS
from aot.ops.opdef import Sample
from tests.backend.test_loops import compare, kernel_of
from tests.cuda import interpreter
from tests.ops.samples import samples_of

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
NAMES = sorted(name for name in OPS if "cuda" in OPS[name].sources)


def kernel(name: str, sample: Sample, symbolic: bool = False) -> tuple[Kernel, dict[str, int]]:
    """A kernel of one op; symbolic: its first operand's first axis has a size that is known when running."""
    builder, symbols = Builder(), {}
    given: list[Any] = []
    for number, array in enumerate(sample.operands):
        if array is None:
            given.append(None)
            continue
        shape: tuple[Any, ...] = array.shape
        if symbolic and number == 0 and shape:
            shape = (Symbol("n", lo=0).dim, *shape[1:])
            symbols["n"] = array.shape[0]
        given.append(builder.input(f"x{number}", from_numpy(array.dtype), shape))
    return kernel_of(builder.finish(builder.op(name, *given, **sample.attrs))), symbols


@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str) -> None:
    for sample in samples_of(name):
        made, symbols = kernel(name, sample)
        got = interpreter.run(made, BACKEND.emit(made, TARGET), [a for a in sample.operands if a is not None], symbols)
        want = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
        for one, other in zip(got, want, strict=True):
            compare(one, np.asarray(other), sample.relative, sample.absolute)


def test_cubins() -> None:
    """The largest sample of every op compiles, and keeps its values in registers."""
    texts: dict[str, str] = {}
    for name in NAMES:
        for sample in samples_of(name)[-2:]:
            texts[f"k{len(texts)}"] = BACKEND.emit(kernel(name, sample)[0], TARGET).source
    for symbol, image in BACKEND.build(list(texts.items()), TARGET, None).images.items():
        # A function of doubles may have an array of its own.
        assert image.spilled_bytes <= 64, (symbol, image, texts[symbol])


DOUBLE = """
@triton.jit
def scaled(x, factor):
    return x * factor

@triton.jit
def double(program, factor, in0, in0_shape, in0_elements, in1, out0, out1):
    at = program.to(tl.int64) * 64 + tl.arange(0, 64)
    x = tl.load(in0 + at, mask=at < in0_elements, other=0)
    if in1 is not None:
        x += tl.load(in1)
    tl.store(out0 + at, scaled(x, factor).to(out0.dtype.element_ty), mask=at < in0_elements)
    if out1 is not None:
        tl.store(out1 + at, (at % in0_shape[-1]).to(tl.int64), mask=at < in0_elements)
"""


def custom(**changes: Any) -> Operator:
    """x times a factor, of x and an optional number to add, and the column of each element."""

    def infer(attrs: Any, x: TensorType, add: TensorType | None = None) -> tuple[TensorType, ...]:
        return TensorType(x.dtype, x.shape), TensorType(I64, x.shape)

    def reference(attrs: Any, x: Any, add: Any = None) -> Any:
        columns = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
        return (x + (0 if add is None else add)) * np.float32(attrs["factor"]), columns.copy()

    source: dict[str, Any] = {"text": DOUBLE, "function": "double"}
    source["programs"] = lambda attrs, x, add=None: dimension.ceildiv(x.elements, 64)
    op = OpDef(
        name="test.double", doc="Twice x.", inputs=("x", "add?"), kind=Kind.OPAQUE, infer=infer, reference=reference,
        samples=lambda rng: [], attrs={"factor": AttrSpec("float", 2.0)},
        sources={"cuda": KernelSource(**{**source, **changes})},
    )  # fmt: skip
    return Operator(op=op, domain="test", op_type="Double")


def built(operator: Operator, *arrays: np.ndarray, read: tuple[int, ...] = (0, 1), **attrs: Any) -> Kernel:
    builder = Builder()
    given = [builder.input(f"x{n}", from_numpy(a.dtype), a.shape) for n, a in enumerate(arrays)]
    made = builder.op("test.double", *given, **attrs)
    return kernel_of(builder.finish(tuple(made[number] for number in read)))


def test_custom_operators() -> None:
    x, add = np.arange(130, dtype=np.float32).reshape(2, 65), np.array(3.0, np.float32)
    operator = custom()
    with use([operator]):
        for arrays in ((x,), (x, add), (x[:, :0],)):
            for read in ((0, 1), (0,), (1, 0)):
                made = built(operator, *arrays, read=read, factor=1.5)
                if arrays[0].size:
                    want = operator.op.reference({"factor": 1.5}, *arrays)  # type: ignore[misc]
                    got = interpreter.run(made, BACKEND.emit(made, TARGET), list(arrays))
                    for one, number in zip(got, read, strict=True):
                        np.testing.assert_array_equal(one, want[number])
        text = BACKEND.emit(built(operator, x), TARGET).source
        image = BACKEND.build([("k", text)], TARGET, None).images["k"]
        assert image.threads == 128


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"text": "def double(:"}, "does not parse: line 1"),
        ({"text": "x = 1"}, "no function double"),
        ({"text": "def double(program): pass"}, "lacks @triton.jit"),
        ({"text": DOUBLE.replace("program, factor", "program, in2, factor")}, "a parameter 'in2'"),
        ({"text": lambda attrs, *types: 1 / 0}, "the source raised ZeroDivisionError"),
        ({"text": lambda attrs, *types: 7}, "must be text, not int"),
        ({"programs": "many"}, "programs must be a number"),
    ],
)
def test_faults_of_custom_operators(changes: dict[str, Any], said: str) -> None:
    operator = custom(**changes)
    with use([operator]), pytest.raises(OperatorError, match=said):
        BACKEND.emit(built(operator, np.ones((2, 3), np.float32)), TARGET)


def test_results_that_nobody_reads_are_tested_for_or_refused() -> None:
    always = DOUBLE.replace("    if out1 is not None:\n        tl.store(out1", "    tl.store(out1")
    operator = custom(text=always)
    with use([operator]):
        BACKEND.emit(built(operator, np.ones((2, 3), np.float32)), TARGET)
        with pytest.raises(UnsupportedError, match="of which nobody reads result 1"):
            BACKEND.emit(built(operator, np.ones((2, 3), np.float32), read=(0,)), TARGET)


def test_ops_without_a_source_are_refused() -> None:
    sample = samples_of("svd")[0]
    with pytest.raises(UnsupportedError, match="a GPU has no kernel for svd"):
        BACKEND.emit(kernel("svd", sample)[0], TARGET)
