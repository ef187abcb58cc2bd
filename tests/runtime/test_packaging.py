"""A serving host: what importing costs and loads, and building against the library from C."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import aot.runtime
from aot.runtime import _library
from tests.runtime import handmade

ROOT = Path(aot.runtime.__file__).resolve().parent.parent
COMPILER_PACKAGES = ("numpy", "onnx", "torch", "triton", "ml_dtypes", "click", "rich")


def python(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60, env=environment
    ).stdout


def test_import_loads_no_package() -> None:
    loaded = python("import sys, aot.runtime; print(*sys.modules)").split()
    assert not {name.partition(".")[0] for name in loaded} & set(COMPILER_PACKAGES)
    ours = {name for name in loaded if name == "aot" or name.startswith("aot.")}
    assert ours <= {
        "aot",
        "aot.errors",
        "aot.runtime",
        "aot.runtime._library",
        "aot.runtime._machine",
        "aot.runtime._model",
        "aot.runtime._specs",
        "aot.runtime._tensors",
    }


def test_serving_without_compiler_packages(dense_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.aot"
    path.write_bytes(dense_bytes)
    script = f"""
import sys
class Blocked:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {COMPILER_PACKAGES[1:]!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocked())
import aot, numpy as np
model = aot.load({str(path)!r})
print(model(np.zeros((2, 5), np.float32)).shape)
"""
    assert python(script).strip() == "(2, 19)"


def test_library_is_small(tmp_path: Path) -> None:
    stripped = tmp_path / "stripped.so"
    shutil.copy(_library.library_path(), stripped)
    subprocess.run(["strip", stripped], check=True)
    assert stripped.stat().st_size < 400_000


def test_library_exports_only_its_api() -> None:
    if "AOT_RUNTIME_LIBRARY" in os.environ:
        pytest.skip("a development build, perhaps with sanitizers")
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", _library.library_path()], check=True, capture_output=True, text=True
    )
    names = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()} - {"AOT_1"}
    assert names and all(name.startswith("aot_") for name in names)
    assert set(_library._FUNCTIONS) <= names


def test_structs_have_the_layout_of_the_header(tmp_path: Path) -> None:
    """Every ctypes struct against the C compiler's view of aot/runtime.h."""
    structs = {
        "aot_tensor": _library.Tensor,
        "aot_error": _library.Error,
        "aot_named_tensor": _library.NamedTensor,
        "aot_load_options": _library.LoadOptions,
        "aot_statistics": _library.StatisticsInfo,
        "aot_program_info": _library.ProgramInfo,
        "aot_port_info": _library.PortInfo,
        "aot_dim_info": _library.DimInfo,
        "aot_symbol_info": _library.SymbolInfo,
        "aot_step_info": _library.StepInfo,
        "aot_session_options": _library.SessionOptions,
        "aot_run_options": _library.RunOptions,
        "aot_dim_value": _library.DimValue,
    }
    lines = ["#include <aot/runtime.h>", "#include <stddef.h>"]
    for name, struct in structs.items():
        lines.append(f'_Static_assert(sizeof({name}) == {ctypes.sizeof(struct)}, "{name}");')
        for field, *_ in struct._fields_:
            offset = getattr(struct, field).offset
            lines.append(f'_Static_assert(offsetof({name}, {field}) == {offset}, "{name}.{field}");')
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines) + "\n")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only"]
    subprocess.run([*command, f"-I{ROOT / 'runtime' / 'include'}", source], check=True)


def test_c_example(dense_bytes: bytes, tmp_path: Path) -> None:
    prefix = _library.prefix()
    if "AOT_RUNTIME_LIBRARY" in os.environ or not (prefix / "include" / "aot" / "runtime.h").exists():
        include, lib = ROOT / "runtime" / "include", _library.library_path().parent
    else:
        include, lib = prefix / "include", prefix / "lib"
    program = tmp_path / "run"
    flags = [
        "-std=c11",
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{include}",
        f"-L{lib}",
        f"-Wl,-rpath,{lib.resolve()}",
    ]
    subprocess.run(["gcc", ROOT / "runtime" / "examples" / "run.c", *flags, "-laot_runtime", "-o", program], check=True)
    model = tmp_path / "model.aot"
    model.write_bytes(dense_bytes)
    x = handmade.batch_of(3)
    (tmp_path / "x.raw").write_bytes(x.tobytes())
    done = subprocess.run(
        [program, model, "batch=3", f"x@{tmp_path / 'x.raw'}"], check=True, capture_output=True, text=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "program cpu:x86-64: 2 steps, selected"
    assert lines[1].startswith("x: f32 [3, 5] -2 ")
    label, _, values = lines[2].partition("] ")
    assert label == "y: f32 [3, 19"
    np.testing.assert_allclose([float(v) for v in values.split()[:8]], handmade.expected(x).ravel()[:8], rtol=1e-5)
    zeros = subprocess.run([program, model], check=True, capture_output=True, text=True, timeout=60)
    assert "x: f32 [1, 5] 0 0 0 0 0" in zeros.stdout
    damaged = tmp_path / "damaged.aot"
    damaged.write_bytes(dense_bytes[:-1])
    failed = subprocess.run([program, damaged], check=False, capture_output=True, text=True, timeout=60)
    assert failed.returncode == 1 and "damaged" in failed.stderr and "hint:" in failed.stderr
    too_large = subprocess.run([program, model, "batch=5000"], check=False, capture_output=True, text=True, timeout=60)
    assert too_large.returncode == 1 and "expected 1 to 4096, got 5000" in too_large.stderr


def test_pkg_config(tmp_path: Path) -> None:
    folder = _library.prefix() / "lib" / "pkgconfig"
    if not folder.exists() or not shutil.which("pkg-config"):
        pytest.skip("not installed here")
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    found = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "aot_runtime"], check=True, capture_output=True, text=True, env=environment
    )
    assert "-laot_runtime" in found.stdout and "-I" in found.stdout


def test_cmake_package(tmp_path: Path) -> None:
    """find_package(aot_runtime) in a project of someone else."""
    prefix = _library.prefix()
    if "AOT_RUNTIME_LIBRARY" in os.environ or not (prefix / "lib" / "cmake").exists() or not shutil.which("cmake"):
        pytest.skip("not installed here")
    shutil.copy(ROOT / "runtime" / "examples" / "run.c", tmp_path / "run.c")
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.21)\nproject(user C)\nfind_package(aot_runtime REQUIRED)\n"
        "add_executable(run run.c)\ntarget_link_libraries(run PRIVATE aot::aot_runtime)\n"
    )
    build = tmp_path / "build"
    commands: list[list[str | Path]] = [
        ["cmake", "-S", tmp_path, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}"],
        ["cmake", "--build", build],
    ]
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    usage = subprocess.run([build / "run"], check=False, capture_output=True, text=True)
    assert usage.returncode == 2 and "usage" in usage.stderr
