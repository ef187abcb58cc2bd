"""Building kernels: the same bytes, the cache, the errors, and what the object needs and exports."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from aot.backend.cpu import CpuBackend, build
from aot.backend.cpu.isa import V3, V4, isa_of
from aot.backend.cpu.prelude import assemble, functions
from aot.errors import CompilerError, TargetError

BODY = "void KERNEL(const aot_kernel_args *args) {{ store_f32(args->scratch, {0}_f32(load_f32(args->buffers[0]))); }}\n"
SOURCES = [(f"k_{name}", BODY.format(name)) for name in ("exp", "log", "erf", "sin")]
BACKEND = CpuBackend()


def test_same_bytes_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BACKEND.build(SOURCES, V3.target, None).code
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    cache = tmp_path / "cache"
    assert BACKEND.build(SOURCES, V3.target, cache, jobs=1).code == first
    assert BACKEND.build(SOURCES, V3.target, cache, jobs=3).code == first
    assert str(tmp_path).encode() not in first and b"/tmp" not in first
    assert BACKEND.build(SOURCES, V4.target, None).code != first


def test_cache_is_used_and_may_be_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = BACKEND.build(SOURCES, V3.target, tmp_path).code
    entries = sorted(tmp_path.rglob("*.o"))
    assert len(entries) == len(SOURCES) + 1 and not [p for p in tmp_path.rglob("*") if p.is_file() and p.suffix != ".o"]
    ran: list[str] = []
    monkeypatch.setattr(build, "_run", lambda command, source, what, folder: ran.append(what))
    with pytest.raises(FileNotFoundError):  # only the link is run, and our stand-in made no file
        BACKEND.build(SOURCES, V3.target, tmp_path)
    assert ran == ["linking the kernels"]
    monkeypatch.undo()
    nowhere = tmp_path / "file"
    nowhere.write_text("not a folder")
    assert BACKEND.build(SOURCES, V3.target, nowhere).code == first


def test_exports_only_the_symbols_and_needs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kernels.so"
    path.write_bytes(BACKEND.build(SOURCES, V3.target, None).code)
    library = ctypes.CDLL(str(path))
    assert all(hasattr(library, symbol) for symbol, _ in SOURCES)
    assert not hasattr(ctypes.CDLL(str(path)), "exp_f32")
    if shutil.which("readelf"):
        dynamic = subprocess.run(["readelf", "-d", "-W", str(path)], capture_output=True, text=True, check=True).stdout
        assert "NEEDED" not in dynamic and "RPATH" not in dynamic and "TEXTREL" not in dynamic
        symbols = subprocess.run(
            ["readelf", "--dyn-syms", "-W", str(path)], capture_output=True, text=True, check=True
        ).stdout
        names = {
            line.split()[-1]
            for line in symbols.splitlines()
            if ("FUNC" in line or "NOTYPE" in line) and "UND" not in line
        }
        assert names == {symbol for symbol, _ in SOURCES}


def test_loading_leaves_the_floating_point_mode(tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "kernels.so"
    path.write_bytes(BACKEND.build(SOURCES, V3.target, None).code)
    ctypes.CDLL(str(path))
    assert np.float32(1e-40) * np.float32(0.5) != 0  # no flush to zero


def test_compiler_error_names_the_kernel() -> None:
    with pytest.raises(CompilerError, match="k_bad") as caught:
        BACKEND.build([("k_bad", "void KERNEL(const aot_kernel_args *args) { nonsense; }\n")], V3.target, None)
    assert "nonsense" in str(caught.value)


def test_compiler_that_does_not_run() -> None:
    with pytest.raises(TargetError, match="no-such-compiler"):
        BACKEND.build(SOURCES, V3.target, None, compiler="no-such-compiler")


def test_no_compiler_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    build._find.cache_clear()
    monkeypatch.setattr(build, "_identify", lambda command: None)
    with pytest.raises(TargetError, match="no C compiler") as caught:
        build.find_compiler()
    assert "pip install" in caught.value.hint
    build._find.cache_clear()


def test_unknown_architecture_lists_the_known() -> None:
    with pytest.raises(TargetError, match="x86-64-v9") as caught:
        isa_of("x86-64-v9")
    assert "cpu:x86-64-v3" in caught.value.hint


def test_many_kernels_link(tmp_path: Path) -> None:
    source = "void KERNEL(const aot_kernel_args *args) {{ *(i32 *)args->buffers[0] = {}; }}\n"
    sources = [(f"k_{n}", source.format(n)) for n in range(40)]
    path = tmp_path / "kernels.so"
    path.write_bytes(BACKEND.build(sources, V3.target, None).code)
    library = ctypes.CDLL(str(path))
    assert all(hasattr(library, f"k_{n}") for n in range(40))


@pytest.mark.parametrize("isa", [V3, V4], ids=lambda isa: isa.name)
def test_every_library_function_compiles(isa: object) -> None:
    """All of the library in one unit: no function names one that comes later."""
    chosen = V3 if isa is V3 else V4
    names = functions(chosen)
    body = "void KERNEL(const aot_kernel_args *args) { /* " + " ".join(names) + " */ }\n"
    source = assemble(body, chosen)
    assert all(f"{name}(" in source for name in names)
    build.build([("k_all", source)], chosen, build.find_compiler(), None)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "zig"])
def test_other_compilers(compiler: str, tmp_path: Path) -> None:
    command = compiler
    if compiler == "zig":
        pytest.importorskip("ziglang")
        import sys

        command = f"{sys.executable} -m ziglang cc"
    elif shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(tmp_path))
    first = BACKEND.build(SOURCES, V3.target, None, compiler=command).code
    assert first == BACKEND.build(SOURCES, V3.target, None, compiler=command).code
