"""What the compiling process sees to: registers that do not suffice, products that run on, a fault of the assembler."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend, ptx, worker
from aot.backend.cuda.contract import Stream, Tile, emit_contract
from aot.backend.cuda.direct import Direct
from aot.backend.cuda.window import emit_window
from aot.builder import Builder
from aot.dtypes import F8E4M3, F16, F32, I8, U8, DType
from aot.ir import Layout, TensorType
from aot.kernel import Kernel
from tests.backend.kernels import conv_kernel
from tests.cuda.test_8bit import kernel_of, layer

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")


def conv(samples: int, channels: int, size: int, window: int, groups: int) -> Kernel:
    """A convolution as the compiler lowers it for a GPU: channels last, no halo."""
    pad = (window - 1) // 2
    kernel = conv_kernel(
        samples, channels, (size, size), channels, (window, window), pads=((pad, pad),) * 2, groups=groups, dtype=F16
    )
    last = Layout(order=(0, 2, 3, 1))
    x, out = kernel.inputs[0], kernel.outputs[0]
    inputs = (replace(x, type=TensorType(F16, x.type.shape, last)), *kernel.inputs[1:])
    return replace(kernel, inputs=inputs, outputs=(replace(out, type=TensorType(F16, out.type.shape, last)),))


def test_a_kernel_that_would_spill_gets_more_threads() -> None:
    emitted = emit_window(conv(8, 96, 56, 7, 96), TARGET, Direct(16, 64, 4, 2, False))
    (image,) = BACKEND.build([("k", emitted.source)], TARGET, None, jobs=1).images.values()
    assert image.spilled_bytes == 0 and image.threads > 64


def test_integers_of_16_bits_are_computed_one_by_one(tmp_path: Path) -> None:
    source = emit_window(conv(1, 64, 56, 3, 1), TARGET, Tile(64, 32, 64, 4, 3)).source
    assert "tile = program\n" in source  # nothing bounds the places of a plain product
    bounded = source.replace("tile = program\n", "tile = program % 98\n")
    listing = listing_of(bounded, tmp_path)
    assert "HGMMA" in listing and "VIADD.16x2" not in listing


def listing_of(source: str, folder: Path) -> str:
    """A kernel's assembly."""
    built = BACKEND.build([("k", source)], TARGET, None, jobs=1)
    (folder / "k.cubin").write_bytes(built.code)
    tool = [str(worker._tool("cuobjdump")), "-sass", str(folder / "k.cubin")]
    return subprocess.run(tool, capture_output=True, text=True, check=True).stdout


def product(dtype: DType, summed: int) -> Kernel:
    """A product of two matrices of 8-bit numbers."""
    b = Builder()
    x, w = b.input("x", dtype, (512, summed)), b.input("w", dtype, (summed, 512))
    return kernel_of(b.finish((b.cast(b.matmul_8bit(x, w), to=F32),)))


@pytest.mark.parametrize("summed", [768, 3072])
def test_products_of_integers_run_on_into_the_next_step(summed: int, tmp_path: Path) -> None:
    """Of a loop's groups of products one is under way at each wait but the last, also where the loop is unrolled."""
    listing = listing_of(emit_contract(product(I8, summed), TARGET, Tile(128, 128, 128, 4, 3)).source, tmp_path)
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", listing)
    assert "IGMMA" in listing and waits[-1] == "0" and set(waits[:-1]) == {"1"}


@pytest.mark.parametrize("types", [(U8, I8), (I8, U8)], ids=str)
def test_operands_that_a_step_makes_are_awaited(types: tuple[DType, DType], tmp_path: Path) -> None:
    """Unsigned integers become signed ones in registers, or in a place that every step fills."""
    b = Builder()
    x, w = b.input("x", types[0], (512, 768)), b.input("w", types[1], (768, 512))
    kernel = kernel_of(b.finish((b.cast(b.matmul_8bit(x, w), to=F32),)))
    listing = listing_of(emit_contract(kernel, TARGET, Tile(128, 128, 128, 8, 3)).source, tmp_path)
    waits = re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", listing)
    assert "IGMMA" in listing and waits and set(waits) == {"0"}


def test_products_whose_sums_are_used_are_awaited(tmp_path: Path) -> None:
    """Sums of 8-bit floats in parts are added in every step."""
    listing = listing_of(emit_contract(product(F8E4M3, 768), TARGET, Tile(128, 128, 128, 8, 3)).source, tmp_path)
    assert "QGMMA" in listing and "1" not in re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x(\d)", listing)


LOOP = """$L__BB0_1:
\tcp.async.wait_group \t1;
\twgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1,%r2}, %rd1, %rd2, p;
\twgmma.commit_group.sync.aligned;
\t// wait for regs: %r1,%r2
\twgmma.wait_group.sync.aligned 0;
\tadd.s32 \t%r9, USED, 1;
\t@%p1 bra \t$L__BB0_1;
\tadd.s32 \t%r8, %r1, %r2;
"""


def test_which_loops_run_on() -> None:
    changed = ptx.overlapped(LOOP.replace("USED", "%r10"))
    assert changed.count("wait_group.sync.aligned 1;") == 1
    assert "bra \t$L__BB0_1;\n\twgmma.wait_group.sync.aligned 0;\n\tadd.s32 \t%r8" in changed
    for kept in (
        LOOP.replace("USED", "%r2"),
        LOOP.replace("USED", "%r10").replace(".s32.s8.s8", ".f32.e4m3.e4m3"),
        LOOP.replace("USED", "%r10").replace("%rd1,", "{%r3,%r4},"),
        LOOP.replace("USED", "%r10").replace("\tadd.s32", "\tst.shared.b32 [%r7], %r6;\n\tadd.s32", 1),
        LOOP.replace("USED", "%r10").replace("\tadd.s32", "$L__BB0_2:\n\tadd.s32", 1),
        LOOP.replace("USED", "%r10").replace("\twgmma.commit_group.sync.aligned;\n", ""),
    ):
        assert ptx.overlapped(kept) == kept


@pytest.mark.parametrize("to", [I8, U8, F8E4M3], ids=str)
def test_single_numbers_are_quantized(to: DType) -> None:
    """Bytes are made four at a time, but where a program has fewer."""
    emitted = emit_contract(kernel_of(layer(2, 70, 48, to)), TARGET, Stream(1, 128, 1))
    BACKEND.build([("k", emitted.source)], TARGET, None, jobs=1)


def test_what_pairs_become() -> None:
    text = ptx.unpacked("\tadd.s16x2 \t%r3, %r1, %r2;\n\tmax.u16x2 \t%r4, %r3, 255;\n\tadd.s32 \t%r5, %r4, 1;\n")
    assert "16x2" not in text and text.count("add.s16 ") == text.count("max.u16 ") == 2
    assert "mov.b32 %c1, 255;" in text and "mov.b32 %r4, {%a0, %a1};" in text and "add.s32 \t%r5, %r4, 1;" in text
