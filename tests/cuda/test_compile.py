"""What the compiling process sees to: registers that do not suffice, and a fault of the assembler."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend, worker
from aot.backend.cuda.compile import assembler
from aot.backend.cuda.contract import Tile
from aot.backend.cuda.direct import Direct
from aot.backend.cuda.window import emit_window
from aot.dtypes import F16
from aot.ir import Layout, TensorType
from aot.kernel import Kernel
from tests.backend.kernels import conv_kernel

BACKEND = CudaBackend()
TARGET = BACKEND.target("sm_90a")
REQUEST = {"capability": 90, "ptx": 0, "programmatic": True, "exact": False}


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


def packed(cubin: Path) -> list[str]:
    """The instructions that compute with pairs of 16-bit integers."""
    tool = [str(worker._tool("cuobjdump")), "-sass", str(cubin)]
    return re.findall(r"\bV[A-Z0-9]+\.[SU]?16x2\b", subprocess.run(tool, capture_output=True, text=True).stdout)


COMPILE = """
import json, sys
from pathlib import Path
from aot.backend.cuda import worker
if sys.argv[3] == "careless":
    worker._packs_halves = lambda text, cubin: False
source, path = Path(sys.argv[1]), Path(sys.argv[2])
worker.compile_one("k", source.read_text(), path, json.loads(sys.argv[4]))
"""


def test_what_packs_integers_in_pairs_is_not_unrolled(tmp_path: Path) -> None:
    source = emit_window(conv(1, 64, 56, 3, 1), TARGET, Tile(64, 32, 64, 4, 3)).source
    assert "tile = program\n" in source  # nothing bounds the places of a plain product
    (tmp_path / "source").write_text(source.replace("tile = program\n", "tile = program % 98\n"))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment |= {"TRITON_PTXAS_BLACKWELL_PATH": str(assembler()), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    found = {}
    for way in ("careful", "careless"):
        arguments = [str(tmp_path / "source"), str(tmp_path / f"{way}.cubin"), way, json.dumps(REQUEST)]
        subprocess.run([sys.executable, "-c", COMPILE, *arguments], env=environment, check=True)
        found[way] = len(packed(tmp_path / f"{way}.cubin"))
    assert found["careless"] > 2 * found["careful"]  # what the assembler does when it is let
