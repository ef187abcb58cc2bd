"""What the compiling process sees to: registers that do not suffice, and a fault of the assembler."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend, worker
from aot.backend.cuda.contract import Tile
from aot.backend.cuda.direct import Direct
from aot.backend.cuda.window import emit_window
from aot.dtypes import F16
from aot.ir import Layout, TensorType
from aot.kernel import Kernel
from tests.backend.kernels import conv_kernel

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
    built = BACKEND.build([("k", bounded)], BACKEND.target("sm_90a"), None, jobs=1)
    (tmp_path / "k.cubin").write_bytes(built.code)
    tool = [str(worker._tool("cuobjdump")), "-sass", str(tmp_path / "k.cubin")]
    listing = subprocess.run(tool, capture_output=True, text=True, check=True).stdout
    assert "HGMMA" in listing and "VIADD.16x2" not in listing


def test_what_pairs_become() -> None:
    text = worker.unpacked("\tadd.s16x2 \t%r3, %r1, %r2;\n\tmax.u16x2 \t%r4, %r3, 255;\n\tadd.s32 \t%r5, %r4, 1;\n")
    assert "16x2" not in text and text.count("add.s16 ") == text.count("max.u16 ") == 2
    assert "mov.b32 %c1, 255;" in text and "mov.b32 %r4, {%a0, %a1};" in text and "add.s32 \t%r5, %r4, 1;" in text
