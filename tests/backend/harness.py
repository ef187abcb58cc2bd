"""Runs one kernel for tests: compiles it, lays out numpy arrays as their types say, calls every thread in turn."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import mmap
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import dims as dimension
from aot import dtypes, recipe
from aot.backend.base import Emitted
from aot.backend.cpu import build as builder
from aot.backend.cpu.isa import V3, V4, V4_VNNI, V4_VNNI_BF16, Isa
from aot.backend.cpu.prelude import assemble
from aot.ir import TensorType, const_of
from aot.kernel import Kernel
from aot.program import Source

_FOLDER = Path(tempfile.mkdtemp(prefix="aot-kernels-"))
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
GUARD_BYTES = 4096
"""Poisoned bytes around every buffer: what a kernel must not touch."""


def _host_has(isa: Isa) -> bool:
    text = Path("/proc/cpuinfo").read_text()
    flags = {"avx2", "avx512dq", "avx512vl"} if isa.is_wide else {"avx2"}
    flags |= {f"avx512_{feature}" for feature in isa.features & {"vnni", "bf16"}}
    return flags <= set(text.split())


def _params(*isas: Isa) -> list[Any]:
    return [
        pytest.param(isa, id=isa.name, marks=[] if _host_has(isa) else pytest.mark.skip("this CPU")) for isa in isas
    ]


ISAS = _params(V3, V4)
WORD_ISAS = _params(V3, V4, V4_VNNI)
"""For products of 8-bit integers."""
PAIR_ISAS = _params(V4_VNNI_BF16)
"""For products of bf16."""


class KernelArgs(ctypes.Structure):
    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("dims", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("thread", ctypes.c_int32),
        ("thread_count", ctypes.c_int32),
    )


_FUNCTIONS: dict[tuple[str, str], Any] = {}


def build_all(units: Sequence[Emitted], isa: Isa) -> None:
    """Compiles kernels together, in one run of the compiler, for the calls of `build` that follow."""
    sources = [
        source for source in dict.fromkeys(unit.source for unit in units) if (source, isa.name) not in _FUNCTIONS
    ]
    if not sources:
        return
    names = [f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:20]}" for source in sources]
    text = "".join(
        f'__attribute__((visibility("default"))) void {name}(const aot_kernel_args *args);\n'
        + re.sub(r"\bKERNEL\b", name, source)
        for name, source in zip(names, sources, strict=True)
    )
    library = _FOLDER / f"{len(_FUNCTIONS)}-{names[0]}.so"
    compiler = builder.find_compiler()
    flags = [*builder.FLAGS, *compiler.flags, *builder.LINK_FLAGS, *compiler.isa_flags(isa)]
    command = [*compiler.command, *flags, "-x", "c", "-", "-o", str(library)]
    code = assemble(text, isa) + builder.SUPPORT
    done = subprocess.run(command, input=code, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    loaded = ctypes.CDLL(str(library))
    for name, source in zip(names, sources, strict=True):
        _FUNCTIONS[source, isa.name] = getattr(loaded, name)


def build(emitted: Emitted, isa: Isa) -> Any:
    """The kernel as a ctypes function; a test does not wait for the same source twice."""
    build_all([emitted], isa)
    return _FUNCTIONS[emitted.source, isa.name]


def _numbers(values: Sequence[dimension.Dim], symbols: Mapping[str, int]) -> list[int]:
    return [dimension.evaluate(value, symbols) for value in values]


def aligned(size_bytes: int) -> np.ndarray:
    """Bytes at a 64-byte boundary."""
    raw = np.empty(size_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size_bytes]


def fenced(size_bytes: int, behind_bytes: int = 0) -> np.ndarray:
    """Bytes whose end is followed, after `behind_bytes`, by a page that must not be touched."""
    page = mmap.PAGESIZE
    pages = -(-(size_bytes + behind_bytes) // page) * page
    memory = mmap.mmap(-1, pages + page)
    everything = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(everything.ctypes.data + pages), ctypes.c_size_t(page), 0) == 0
    return everything[pages - behind_bytes - size_bytes : pages - behind_bytes]


def _strided(elements: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """A view of elements; numpy makes none of ml_dtypes' float8_e5m2, so bytes are viewed as such."""
    held = elements.view(np.uint8) if elements.dtype.itemsize == 1 else elements
    return np.lib.stride_tricks.as_strided(held, shape, strides).view(elements.dtype)


class Storage:
    """A buffer with a tensor in it, poisoned around. With `edge`, a page that traps follows it."""

    def __init__(self, type_: TensorType, symbols: Mapping[str, int], poison: int = 0xA5, edge: bool = False) -> None:
        self.shape = _numbers(type_.shape, symbols)
        self.strides = _numbers(type_.strides, symbols)
        item = type_.dtype.itemsize_bytes
        halo = type_.halo
        origin = _numbers([type_.origin_elements], symbols)[0]
        reach = sum((n - 1 + after) * s for n, s, (_, after) in zip(self.shape, self.strides, halo, strict=True))
        size = max(origin + reach + 1, 0) * item if 0 not in self.shape else 0
        size = max(size, _numbers([type_.storage_bytes], symbols)[0])
        self.all = fenced(size + GUARD_BYTES) if edge else aligned(size + 2 * GUARD_BYTES)
        self.all[:] = poison
        self.poison = poison
        self.bytes = self.all[GUARD_BYTES : GUARD_BYTES + size]
        elements = self.bytes[: size // item * item].view(type_.dtype.numpy)
        self.logical = _strided(elements[origin:], self.shape, [s * item for s in self.strides])
        self.halo = halo
        self.item = item
        self.elements = elements
        self.origin = origin

    def with_halo(self) -> np.ndarray:
        """The tensor and its halo."""
        before = sum(low * s for (low, _), s in zip(self.halo, self.strides, strict=True))
        shape = [n + low + high for n, (low, high) in zip(self.shape, self.halo, strict=True)]
        start = self.elements[self.origin - before :]
        return _strided(start, shape, [s * self.item for s in self.strides])

    def check_guards(self) -> None:
        assert (self.all[:GUARD_BYTES] == self.poison).all(), "written before the buffer"
        assert (self.all[GUARD_BYTES + len(self.bytes) :] == self.poison).all(), "written behind the buffer"

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)


def call(function: Any, addresses: Sequence[int], dims: Sequence[int], scratch_bytes: int, threads: int) -> None:
    """Calls every thread of a launch, one after the other, each with scratch of its own."""
    buffers = (ctypes.c_void_p * max(len(addresses), 1))(*addresses)
    numbers = (ctypes.c_int64 * max(len(dims), 1))(*dims)
    for thread in range(threads):
        scratch = aligned(scratch_bytes + GUARD_BYTES)
        scratch[:] = 0xFF  # NaN: nothing may be assumed of scratch
        args = KernelArgs(ctypes.addressof(buffers), ctypes.addressof(numbers), scratch.ctypes.data, thread, threads)
        function(ctypes.byref(args))
        assert (scratch[scratch_bytes:] == 0xFF).all(), "written behind the scratch"


def run(
    kernel: Kernel,
    emitted: Emitted,
    isa: Isa,
    inputs: Sequence[np.ndarray],
    symbols: Mapping[str, int] | None = None,
    threads: int = 1,
) -> list[np.ndarray]:
    """The kernel's outputs. Inputs are logical arrays; constants are packed as the kernel asks.

    With one thread, reading or writing behind the end of a buffer traps.
    """
    symbols = symbols or {}
    keep: list[Any] = []
    addresses: list[int] = []
    for number, (operand, array) in enumerate(zip(kernel.inputs, inputs, strict=True)):
        if number in emitted.packed:
            packed = emitted.packed[number]
            steps = (recipe.source(0), *packed.recipe)
            made = recipe.run(steps, [Source("w", const_of(np.ascontiguousarray(array)))])
            assert made.shape == packed.shape and made.dtype == dtypes.BY_NUMBER[packed.dtype].numpy
            place = fenced(made.nbytes) if threads == 1 else aligned(made.nbytes)
            place[: made.nbytes] = made.view(np.uint8).reshape(-1) if made.size else []
            keep.append(place)
            addresses.append(place.ctypes.data)
            continue
        storage = Storage(operand.type, symbols, edge=threads == 1)
        if 0 not in storage.shape:
            storage.with_halo()[...] = operand.type.layout.fill
            storage.logical[...] = array
        keep.append((storage, storage.all.copy()))
        addresses.append(storage.address)
    outputs = [Storage(operand.type, symbols, 0xFF, threads == 1) for operand in kernel.outputs]
    addresses += [storage.address for storage in outputs]
    dims = _numbers(emitted.dims, symbols)
    scratch_bytes = _numbers([emitted.scratch_bytes], symbols)[0]
    call(build(emitted, isa), addresses, dims, scratch_bytes, threads)
    for item in keep:
        if isinstance(item, tuple):
            assert (item[0].all == item[1]).all(), "an input was changed"
    results = []
    for storage, operand in zip(outputs, kernel.outputs, strict=True):
        storage.check_guards()
        results.append(storage.logical.copy())
        if 0 not in storage.shape and any(low or high for low, high in storage.halo):
            edge = storage.with_halo().copy()
            inner = tuple(slice(low, edge.shape[a] - high) for a, (low, high) in enumerate(storage.halo))
            edge[inner] = operand.type.layout.fill
            assert (edge == operand.type.layout.fill).all(), "the halo does not hold what it must"
    return results


def run_threads(
    kernel: Kernel, emitted: Emitted, isa: Isa, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """As `run`, with 1, 2 and 3 threads; they must give the same bits."""
    first = run(kernel, emitted, isa, inputs, symbols)
    for threads in (2, 3):
        for one, other in zip(first, run(kernel, emitted, isa, inputs, symbols, threads), strict=True):
            assert one.tobytes() == other.tobytes(), f"other bits with {threads} threads"
    return first
