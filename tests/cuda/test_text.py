"""Kernels as PTX, for GPUs that are newer than any machine code: valid there, plain, the same bytes each time."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")

from aot.backend.cuda import CudaBackend
from aot.backend.cuda.architectures import ARCHITECTURES, PTX_DRIVERS
from aot.backend.cuda.compile import assembler
from aot.builder import Builder
from aot.dtypes import F16, F32
from aot.errors import CompilerError
from aot.ir import Value
from aot.target import Target
from tests.backend.test_loops import kernel_of

BACKEND = CudaBackend()
TEXTS = [name for name, architecture in ARCHITECTURES.items() if architecture.ptx]
LAST = {"compute_80": ("sm_80", "sm_89", "sm_90", "sm_120"), "compute_90": ("sm_90", "sm_100", "sm_120")}


def sources(target: Target) -> list[tuple[str, str]]:
    """A kernel of each form."""
    found: list[tuple[str, str]] = []

    def add(build: Builder, result: Value) -> None:
        emitted = BACKEND.emit(kernel_of(build.finish((result,))), target)
        found.append((f"k_{len(found)}", emitted.source))

    b = Builder()
    add(b, b.matmul(b.input("x", F16, (128, 256)), b.input("w", F16, (256, 128))))
    b = Builder()
    add(b, b.matmul(b.input("x", F16, (1, 512)), b.input("w", F16, (512, 256))))
    b = Builder()
    q, k, v = (b.input(name, F16, (1, 4, 128, 64)) for name in "qkv")
    add(b, b.attention(q, k, v, scale=0.125, causal=True))
    b = Builder()
    add(b, b.softmax(b.input("x", F32, (64, 300)), axis=1))
    b = Builder()
    add(b, b.cumsum(b.input("x", F32, (64, 3000)), axis=1))
    return found


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, tmp_path: Path) -> None:
    target = BACKEND.target(name)
    texts = sources(target)
    built = BACKEND.build(texts, target, tmp_path / "cache", jobs=2)
    assert BACKEND.build(texts, target, tmp_path / "cache") == built  # from the cache
    assert built.driver == PTX_DRIVERS[ARCHITECTURES[name].ptx] == 12000
    capability = name.removeprefix("compute_")
    for symbol, image in built.images.items():
        text = built.code[image.offset_bytes : image.offset_bytes + image.size_bytes]
        assert text.startswith(b"//") and b"\0" not in text and str(tmp_path).encode() not in text
        assert b"\n.version 8.0\n" in text and f"\n.target sm_{capability}\n".encode() in text
        assert (b"griddepcontrol.wait" in text) == (capability == "90")
        assert not re.search(rb"wgmma|setmaxnreg|tcgen05|sm_\d+a", text)
        assert image.spilled_bytes == 0 and 0 < image.registers <= 255
        assert image.shared_bytes <= 101376
        for newer in LAST[name]:  # what a driver will do there
            path = tmp_path / f"{symbol}.ptx"
            path.write_bytes(text)
            subprocess.run([str(assembler()), f"-arch={newer}", str(path), "-o", "/dev/null"], check=True)


def test_the_texts_do_not_depend_on_the_folder() -> None:
    target = BACKEND.target("compute_80")
    texts = sources(target)[3:4]
    assert BACKEND.build(texts, target, None) == BACKEND.build(texts, target, None)


def test_exact_texts_fuse_no_products_and_sums() -> None:
    b = Builder()
    x, y, z = (b.input(name, F32, (64, 64)) for name in "xyz")
    source = BACKEND.emit(kernel_of(b.finish((b.add(b.mul(x, y), z),))), BACKEND.target("compute_80")).source
    plain = BACKEND.target("compute_80")
    exact = Target(plain.backend, plain.architecture, plain.features | {"exact"}, plain.numbers)
    code = BACKEND.build([("k_one", source)], exact, None).code
    # A driver's compiler joins mul and add, but not mul.rn and add.rn.
    assert b"mul.rn.f32" in code and b"add.rn.f32" in code and b"fma" not in code


def test_a_text_that_no_driver_would_take_is_told() -> None:
    b = Builder()
    target = BACKEND.target("compute_80")
    source = BACKEND.emit(kernel_of(b.finish((b.exp(b.input("x", F32, (64,))),))), target).source
    assembly = "tl.inline_asm_elementwise('nonsense $0, $1;', '=r,r', [x], dtype=tl.int32, is_pure=True, pack=1)"
    bad = f"@triton.jit\ndef bad(x):\n    return {assembly}\n\n\n@triton.jit\ndef KERNEL"
    source = source.replace("@triton.jit\ndef KERNEL", bad).replace("tl.program_id(0)", "bad(tl.program_id(0))")
    with pytest.raises(CompilerError, match="ptxas") as told:
        BACKEND.build([("k_bad", source)], target, None)
    assert told.value.where == "k_bad"
