"""The example of a worker in C++, and many models in many threads, both also under ThreadSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import aot.runtime
from aot.artifacts import signatures
from aot.runtime import _library
from tests.runtime import handmade
from tests.serving.test_shared_weights import built, changed, weights_of

RUNTIME = Path(aot.runtime.__file__).resolve().parent
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror"]


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example, built against the library that is loaded."""
    path = tmp_path_factory.mktemp("worker") / "worker"
    lib = _library.library_path().parent.resolve()
    flags = ["-std=c++17", "-O1", *WARNINGS, f"-I{RUNTIME / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    source = RUNTIME / "examples" / "worker.cpp"
    subprocess.run(["g++", *flags, source, "-laot_runtime", "-pthread", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """stable.aot takes up to 8 rows, fallback.aot up to 64."""
    folder = tmp_path_factory.mktemp("artifacts")
    for name, most in (("stable", 8), ("fallback", 64)):
        program = handmade.program()
        guards = (replace(program.guards[0], hi=most), *program.guards[1:])
        handmade.artifact(replace(program, guards=guards)).save(folder / f"{name}.aot")
    return folder


def serve(
    worker: Path, folder: Path, requests: Sequence[str], *arguments: str, prefix: Sequence[str] = ()
) -> list[str]:
    """The lines that the worker prints for these requests."""
    done = subprocess.run(
        [*prefix, worker, *arguments], cwd=folder, input="\n".join(requests) + "\n", capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def sum_for(batch: int) -> str:
    """The sum of the results for the input that the example makes, as C++ prints it."""
    x = (np.arange(batch * handmade.K) % 7 * 0.125).reshape(batch, handmade.K).astype(np.float32)
    return f"sum={float(handmade.expected(x).sum(dtype=np.float64)):g}"


REQUESTS = ["batch=2", "batch=9", "batch=65", "width=3", "batch=8", "batch=64", "batch=0"]


def expected_answers() -> list[str]:
    return [
        f"0 ok stable {sum_for(2)}",
        f"1 ok fallback (stable: guard, range) {sum_for(9)}",
        "2 refused (stable: guard, range; fallback: guard, range)",
        "3 refused (stable: argument)",
        f"4 ok stable {sum_for(8)}",
        f"5 ok fallback (stable: guard, range) {sum_for(64)}",
        "6 refused (stable: guard, range; fallback: guard, range)",
    ]


def test_every_request_is_answered_once_by_what_can(worker: Path, folder: Path) -> None:
    lines = serve(worker, folder, REQUESTS, "stable.aot", "--fallback", "fallback.aot")
    assert lines[:7] == expected_answers()
    stable, fallback, weights = lines[7:]
    assert stable.startswith("stable: 2 runs, ") and stable.endswith(" ms each; guard 4; range 4")
    assert fallback.startswith("fallback: 2 runs, ") and fallback.endswith(" ms each; guard 2; range 2")
    assert weights == "weights: 768 bytes, of which 0 are shared"


def test_deadlines_and_a_full_queue(worker: Path, folder: Path) -> None:
    late = serve(worker, folder, ["batch=2"] * 3, "stable.aot", "--fallback", "fallback.aot", "--timeout-ms", "0")
    assert late[:3] == [f"{n} refused (stable: cancelled, deadline)" for n in range(3)]  # no other one is tried
    full = serve(worker, folder, ["batch=2"] * 3, "stable.aot", "--queue", "0")
    assert full[:3] == [f"{n} refused (queue full)" for n in range(3)]


def test_what_cannot_be_loaded_is_left_out(worker: Path, folder: Path) -> None:
    (folder / "damaged.aot").write_bytes((folder / "stable.aot").read_bytes()[:-1])
    lines = serve(worker, folder, ["batch=2"], "damaged.aot", "--fallback", "fallback.aot")
    assert lines[0] == f"0 ok fallback {sum_for(2)}" and len(lines) == 3
    done = subprocess.run([worker, "damaged.aot"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.startswith("damaged error: damaged.aot: ")
    assert subprocess.run([worker], capture_output=True, timeout=60, check=False).returncode == 2


def test_only_signed_artifacts_serve(worker: Path, folder: Path) -> None:
    pytest.importorskip("cryptography")
    from aot.runtime.keys import trusted_keys

    private, public = signatures.generate_key()
    (folder / "key.raw").write_bytes(trusted_keys(public)[0])
    (folder / "signed.aot").write_bytes(signatures.sign((folder / "fallback.aot").read_bytes(), private))
    lines = serve(worker, folder, ["batch=2"], "stable.aot", "--fallback", "signed.aot", "--trusted-key", "key.raw")
    assert lines[0] == f"0 ok fallback {sum_for(2)}"


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three artifacts that share most of their weights, and one that shares none."""
    folder = tmp_path_factory.mktemp("versions")
    data = built(weights_of()[:4]).data
    files = [
        data,
        changed(data, 2, slice(None), 1.5),
        changed(data, 3, slice(4096, 8192), 0.5),
        handmade.artifact().data,
    ]
    paths = [folder / f"{number}.aot" for number in range(len(files))]
    for path, content in zip(paths, files, strict=True):
        path.write_bytes(content)
    return paths


def test_models_come_and_go_in_threads(tmp_path: Path, versions: list[Path]) -> None:
    lib = _library.library_path().parent.resolve()
    flags = ["-std=c++17", "-O1", *WARNINGS, f"-I{RUNTIME / 'include'}", f"-L{lib}", f"-Wl,-rpath,{lib}"]
    source, program = RUNTIME / "tests" / "models_test.cpp", tmp_path / "models_test"
    subprocess.run(["g++", *flags, source, "-laot_runtime", "-pthread", "-o", program], check=True)
    command: list[str | Path] = [program, "40", *versions]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, the worker and the stress, built with ThreadSanitizer."""
    if not shutil.which("cmake"):
        pytest.skip("cmake is not there")
    build = tmp_path_factory.mktemp("thread")
    probe = build / "probe.cpp"
    probe.write_text("int main() {}\n")
    compiled = subprocess.run(
        ["g++", "-fsanitize=thread", probe, "-o", build / "probe"], capture_output=True, check=False
    )
    if compiled.returncode or subprocess.run([*fixed_addresses(), build / "probe"], check=False).returncode:
        pytest.skip("ThreadSanitizer does not work here")
    options = ["-DAOT_BUILD_TESTS=ON", "-DAOT_SANITIZE=thread", "-DCMAKE_CXX_COMPILER=g++", "-DCMAKE_C_COMPILER=gcc"]
    commands: tuple[list[str | Path], ...] = (
        ["cmake", "-S", RUNTIME, "-B", build, *options],
        ["cmake", "--build", build, "--parallel", "2", "--target", "worker_example", "models_test"],
    )
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return build


def fixed_addresses() -> list[str]:
    """A prefix for commands: older sanitizers do not know where new kernels put things at random."""
    return ["setarch", "-R"] if shutil.which("setarch") else []


@pytest.mark.slow
def test_the_worker_has_no_data_race(sanitized: Path, folder: Path) -> None:
    requests = REQUESTS * 30
    lines = serve(
        sanitized / "worker_example", folder, requests, "stable.aot", "--fallback", "fallback.aot", "--queue", "1000",
        "--timeout-ms", "60000", prefix=fixed_addresses(),
    )  # fmt: skip
    answers = [line.partition(" ")[2] for line in lines[: len(requests)]]
    assert answers == [line.partition(" ")[2] for line in expected_answers()] * 30


@pytest.mark.slow
def test_loading_and_unloading_has_no_data_race(sanitized: Path, versions: list[Path]) -> None:
    command: list[str | Path] = [*fixed_addresses(), sanitized / "models_test", "60", *versions]
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
