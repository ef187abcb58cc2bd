"""A GPU that is simulated: the driver of runtime/tests/fake_cuda.cpp, and a backend whose kernels it can run.

The kernels are those of the CPU backend; the driver hands them "device" memory. So whole models run on the runtime's
path for GPUs: what is copied when, what waits for what, and which memory is whose is tested, with the numbers.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

from aot import host_steps
from aot.backend import BACKENDS
from aot.backend.base import Built, Emitted
from aot.backend.cpu import CpuBackend
from aot.ir import Node
from aot.kernel import Kernel
from aot.program import Image
from aot.target import Target

ROOT = Path(__file__).resolve().parent.parent
DEVICE_BYTES = 1 << 30
THREADS = 128
TARGET = "cuda:sm_90a"
WHY = "a GPU has no kernel for it yet"


def load_driver(folder: Path) -> ctypes.CDLL:
    """Builds the driver and loads it into this process: whoever loads libcuda.so.1 by that name gets it."""
    path = folder / "libcuda.so.1"
    includes = [f"-I{ROOT / 'runtime/src'}", f"-I{ROOT / 'runtime/include'}"]
    flags = ["-std=c++17", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    source = ROOT / "runtime/tests/fake_cuda.cpp"
    subprocess.run(["g++", *flags, *includes, "-o", path, source, "-ldl"], check=True)
    fake = ctypes.CDLL(str(path), mode=ctypes.RTLD_LOCAL)
    fake.fake_machine.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_size_t)
    fake.fake_misuse.restype = ctypes.c_char_p
    fake.fake_live.restype = fake.fake_calls.restype = fake.fake_count.restype = ctypes.c_long
    fake.fake_fail.argtypes = (ctypes.c_long, ctypes.c_int)
    return fake


class SimulatedBackend(CpuBackend):
    """See aot.backend.base.Backend: kernels of the CPU backend as images of the simulated driver."""

    name = "cuda"
    default_architectures: tuple[str, ...] = ("sm_90a",)
    quantized_architectures: tuple[str, ...] = ("sm_90a",)

    def __init__(self, lacking: frozenset[str] = frozenset()) -> None:
        self.lacking = lacking
        self.forms: dict[str, tuple[int, int, int]] = {}  # pointers read, pointers written, integers, by source

    def target(self, architecture: str) -> Target:
        return replace(super().target("x86-64-v3"), backend=self.name, architecture=architecture)

    def lacks(self, node: Node) -> str:
        return WHY if node.op in self.lacking else ""

    def emit(self, kernel: Kernel, target: Target) -> Emitted:
        made = super().emit(kernel, self._own(target))
        self.forms[made.source] = (len(kernel.inputs), len(kernel.outputs), len(made.dims))
        return replace(made, grid=(1, 1, 1), scratch_bytes=0)

    def build(
        self,
        sources: Sequence[tuple[str, str]],
        target: Target,
        cache: Path | None,
        *,
        jobs: int = 0,
        compiler: str | None = None,
    ) -> Built:
        if not sources:
            return Built(b"")
        code = super().build(sources, self._own(target), cache, jobs=jobs, compiler=compiler).code
        lines = [f"{symbol} {' '.join(map(str, self.forms[source]))}\n" for symbol, source in sources]
        image = f"FAKELIB 90 {len(lines)}\n{''.join(lines)}{len(code)}\n".encode() + code
        placed = Image(0, len(image), THREADS, wide_integers=(1 << 64) - 1)
        return Built(image, {symbol: placed for symbol, _ in sources})

    def _own(self, target: Target) -> Target:
        return replace(target, backend="cpu", architecture="x86-64-v3")

    def tools(self, compiler: str | None = None) -> Mapping[str, str]:
        return super().tools(compiler)


@contextmanager
def simulated_backend(lacking: frozenset[str] = frozenset()) -> Iterator[SimulatedBackend]:
    """Builds for "cuda" are made for the simulated driver; ops in `lacking` have no kernels there."""
    backend = SimulatedBackend(lacking)
    table = {**BACKENDS, "cuda": backend}
    with mock.patch("aot.driver.BACKENDS", table), mock.patch.object(host_steps, "BACKENDS", table):
        yield backend
