"""Graphs of quantized numbers, compiled whole for every level and run: fused scales, halos of zero points, joins."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot import dtypes
from aot.artifacts import Artifact
from aot.assemble import assemble
from aot.backend.cpu import CpuBackend
from aot.backend.cpu.isa import Isa
from aot.builder import Builder
from aot.dtypes import F32, U8
from aot.evaluate import evaluate
from aot.ir import Graph
from aot.ops.opdef import Sample
from aot.options import CompileOptions
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from tests.backend.harness import WORD_ISAS
from tests.ops.samples import samples_of

BACKEND = CpuBackend()


def compiled(graph: Graph, isa: Isa) -> tuple[Graph, Artifact]:
    """The graph in kernels, and its artifact."""
    context = Context(options=CompileOptions(), target=isa.target, backend=BACKEND)
    ordered = PassManager((*CORE_PASSES, *TARGET_PASSES), context).run(graph)
    block = assemble(ordered, BACKEND, isa.target, variant="", node_budget=1000)
    program = block.with_code(BACKEND.build(block.sources, isa.target, None))
    return ordered, Artifact.build((program,), meta={})


def check(graph: Graph, isa: Isa, *inputs: np.ndarray, relative: float = 0, absolute: float = 0) -> Graph:
    """Runs the graph and compares with the interpreter: bit for bit unless a tolerance is given."""
    ordered, artifact = compiled(graph, isa)
    model = artifact.load(threads=2)
    expected = evaluate(graph, list(inputs))
    for _ in range(2):  # halos are written in every run
        got = model(*inputs)
        for one, other in zip(got if isinstance(got, tuple) else (got,), expected, strict=True):
            assert one.dtype == other.dtype and one.shape == other.shape
            np.testing.assert_allclose(one.astype("f8"), other.astype("f8"), relative, absolute)
    return ordered


def kernels(graph: Graph) -> list[list[str]]:
    """The ops of every kernel, in order."""
    return [[node.op for node in node.regions[0].nodes] for node in graph.nodes if node.op == "kernel"]


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("name", ["matmul_8bit", "conv_8bit", "matmul_packed"])
def test_samples(isa: Isa, name: str, constant: bool) -> None:
    """All samples of an op in one graph, with weights that are inputs or constants."""
    builder = Builder()
    given: list[np.ndarray] = []
    outputs: list[Any] = []
    samples: list[Sample] = samples_of(name)
    for number, sample in enumerate(samples):
        values: list[Any] = []
        for place, array in enumerate(sample.operands):
            label = f"x{number}_{place}"
            if array is None:
                values.append(None)
            elif place and constant:
                values.append(builder.const(array, label))
            else:
                values.append(builder.input(label, dtypes.from_numpy(array.dtype), array.shape))
                given.append(array)
        outputs.extend(builder.op(name, *values, **sample.attrs))
    tolerances = [max(getattr(sample, kind) or 0 for sample in samples) for kind in ("relative", "absolute")]
    exact = name != "matmul_packed"
    check(builder.finish(outputs), isa, *given, relative=0 if exact else tolerances[0],
          absolute=0 if exact else tolerances[1])  # fmt: skip


def weights(builder: Builder, *shape: int) -> Any:
    random = np.random.default_rng(len(builder.consts))
    return builder.const(random.integers(-128, 128, shape).astype(np.int8), f"w{len(builder.consts)}")


def scalar(builder: Builder, value: float, dtype: Any = np.float32) -> Any:
    return builder.const(np.asarray(value, dtype), f"s{len(builder.consts)}")


def quantized(builder: Builder, x: Any, scale: float, zero: int) -> Any:
    return builder.op("quantize", x, scalar(builder, scale), scalar(builder, zero, np.uint8), to=U8)[0]


def conv(builder: Builder, x: Any, outputs: int, window: int, fill: int, groups: int = 1, scale: float = 2e-5) -> Any:
    """A convolution of a quantized image, as a float."""
    w = weights(builder, outputs, int(x.type.shape[1]) // groups, window, window)
    attrs: dict[str, Any] = {
        "strides": (1, 1), "pads": (window // 2,) * 4, "dilations": (1, 1), "groups": groups, "fill": fill
    }  # fmt: skip
    sums = builder.op("conv_8bit", x, w, **attrs)[0]
    return builder.mul(builder.cast(sums, to=F32), scalar(builder, scale * 16 / (window * window * 8)))


def image(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("isa", WORD_ISAS)
def test_a_chain_stays_in_8_bits(isa: Isa) -> None:
    """Two convolutions with scales, bounds and rounding: one kernel each, and u8 with a halo of 7 between them."""

    def build(b: Builder) -> Graph:
        x = quantized(b, b.input("x", F32, (2, 3, 13, 11)), 0.05, 128)
        y = quantized(b, b.relu(conv(b, x, 20, 3, 128, scale=3e-3)), 0.02, 7)
        return b.finish([quantized(b, conv(b, y, 10, 3, 7, scale=3e-3), 0.1, 100)])

    graph = check(build(Builder()), isa, image(0, 2, 3, 13, 11), absolute=1)
    middle = [ops for ops in kernels(graph) if "conv_8bit" in ops]
    assert len(middle) == 2 and all("quantize" in ops for ops in middle)
    fills = {value.type.layout.fill for value in graph.values() if value.type.layout.halo}
    assert fills == {128, 7} and len(kernels(graph)) <= 4


@pytest.mark.parametrize("isa", WORD_ISAS)
def test_convolutions_that_read_different_numbers_around_one_image(isa: Isa) -> None:
    def build(b: Builder) -> Graph:
        x = quantized(b, b.input("x", F32, (1, 8, 9, 10)), 0.05, 128)
        return b.finish(
            [conv(b, x, 6, 3, 128), conv(b, x, 6, 5, 3), conv(b, x, 8, 3, 128, groups=8), conv(b, x, 4, 1, 0)]
        )

    graph = check(build(Builder()), isa, image(1, 1, 8, 9, 10))
    assert sorted(ops.count("copy") for ops in kernels(graph) if "conv_8bit" not in ops)


@pytest.mark.parametrize("isa", WORD_ISAS)
@pytest.mark.parametrize("fills", [(128, 128), (128, 5)])
def test_a_concatenation_of_parts_with_a_halo(isa: Isa, fills: tuple[int, int]) -> None:
    """Its parts are written into place with the halo of the whole; one is also read alone."""

    def build(b: Builder) -> Graph:
        x = b.input("x", F32, (1, 6, 9, 10))
        left, right = quantized(b, b.relu(x), 0.05, 128), quantized(b, b.op("sigmoid", x)[0], 0.05, 128)
        whole = b.op("concat", left, right, axis=1)[0]
        return b.finish([conv(b, whole, 6, 3, fills[0]), conv(b, left, 5, 3, fills[1])])

    check(build(Builder()), isa, image(2, 1, 6, 9, 10))
