"""The models of tests/cuda/models.py on a GPU: precisions, PTX, poisoned memory, and errors that only a driver gives.

What the runtime does at such events, and at many more, is tested without a GPU on the simulated driver
(tests/runtime/test_cuda.py, runtime/tests/cuda_test.cpp); here it meets a real one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot.runtime
from aot.errors import AotError, GuardError, RunError, TargetError

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).resolve().parents[2]
FOLDER = os.environ.get("AOT_GPU_MODELS", "")
EXACT, CPU = "cuda:sm_90a", "cpu:x86-64-v3"
ERRORS = {"fp32": 2e-5, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2}
"""Of the largest output."""
BATCHES = (1, 3, 33)
SHAPES = {"perceptron": (64,), "block": (24, 64)}

if not FOLDER:
    pytest.skip("AOT_GPU_MODELS names no folder of artifacts: see tests/cuda/models.py", allow_module_level=True)
torch = pytest.importorskip("torch", reason="device tensors are torch's")


def path(name: str) -> Path:
    return Path(FOLDER) / f"{name}.aot"


def load(name: str, **options: Any) -> Any:
    return aot.runtime.load(path(name), **{"target": EXACT, **options})


@pytest.fixture
def perceptron() -> Iterator[Any]:
    with load("perceptron.fp16") as model:
        yield model


def draw(model: str, batch: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((batch, *SHAPES[model])).astype(np.float32)


def result(found: dict[str, Any]) -> Any:
    (value,) = found.values()
    return value


def bits(value: Any) -> Any:
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value).view(np.uint8)


def error_of(got: Any, wanted: Any) -> float:
    assert np.isfinite(got).all()
    return float(np.abs(got.astype(np.float64) - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("precision", ERRORS)
@pytest.mark.parametrize("name", SHAPES)
def test_a_precision_is_as_near_the_cpu_as_it_can_be(name: str, precision: str) -> None:
    with load(f"{name}.{precision}") as model, load(f"{name}.{precision}", target=CPU) as reference:
        assert model.target == EXACT and reference.target == CPU
        worst = 0.0
        for seed, batch in enumerate((*BATCHES, 64)):
            x = draw(name, batch, seed)
            worst = max(worst, error_of(result(model.run({"x": x})), result(reference.run({"x": x}))))
    print(f"{name} {precision}: {worst:.2g} of the largest output")
    assert worst <= ERRORS[precision]


@pytest.mark.parametrize("text", ["compute_80", "compute_90"])
@pytest.mark.parametrize("name", SHAPES)
def test_text_is_compiled_and_agrees(name: str, text: str) -> None:
    began = time.perf_counter()
    with load(f"{name}.{text}", target=f"cuda:{text}") as model, load(f"{name}.fp16") as exact:
        print(f"{name} {text}: loaded in {time.perf_counter() - began:.2f} s (a driver keeps what it compiled)")
        for batch in BATCHES:
            x = draw(name, batch, batch)
            assert error_of(result(model.run({"x": x})), result(exact.run({"x": x}))) <= 2 * ERRORS["fp16"]


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("name", SHAPES)
def test_what_memory_held_before_does_not_matter(name: str, graphs: bool) -> None:
    with load(f"{name}.fp16") as plain, load(f"{name}.fp16", poison=True, graphs=graphs) as poisoned:
        for round_number in range(12):
            x = draw(name, BATCHES[round_number % len(BATCHES)], round_number)
            wanted, got = result(plain.run({"x": x})), result(poisoned.run({"x": x}))
            np.testing.assert_array_equal(bits(got), bits(wanted))
            given = torch.full(wanted.shape, float("nan"), device="cuda")
            (output,) = (spec.name for spec in poisoned.outputs)
            poisoned.run({"x": torch.from_numpy(x).cuda()}, outputs={output: given})
            torch.cuda.synchronize()
            np.testing.assert_array_equal(bits(given.cpu()), bits(wanted))


# What has to fail, and what it says.


def child(script: str, **environment: str) -> list[str]:
    """The lines that a process of its own prints; it has the artifacts' folder as an argument."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script, FOLDER]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**variables, **environment}, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


_WITHOUT = """
import sys, numpy as np, aot.runtime
from aot.errors import TargetError
x = np.zeros((3, 64), np.float32)
try:
    aot.runtime.load(sys.argv[1] + "/perceptron.fp32.aot", target="cuda:sm_90a")
except TargetError as error:
    print(error.message)
model = aot.runtime.load(sys.argv[1] + "/perceptron.fp32.aot")
(y,) = model.run({"x": x}).values()
print(model.target, y.shape)
"""


def test_without_a_driver_the_cpu_takes_over(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"")
    before = os.environ.get("LD_LIBRARY_PATH", "")
    error, ran = child(_WITHOUT, LD_LIBRARY_PATH=f"{tmp_path}{os.pathsep if before else ''}{before}")
    assert "no program runs here" in error and "driver" in error
    assert "cannot be loaded" in error or "not found" in error
    assert ran.startswith("cpu") and ran.endswith("(3, 40)")


def test_without_a_device_the_cpu_takes_over() -> None:
    error, ran = child(_WITHOUT, CUDA_VISIBLE_DEVICES="-1")
    assert "no program runs here" in error and "cuda:sm_90a" in error
    assert ran.startswith("cpu")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_100a"])
def test_another_architecture(architecture: str) -> None:
    with pytest.raises(TargetError, match=f"no program runs here: cuda:{architecture}: ") as told:
        aot.runtime.load(path(architecture))
    print(told.value)


def test_a_pointer_that_is_not_aligned(perceptron: Any) -> None:
    whole = torch.zeros(3 * 64 + 1, device="cuda")
    with pytest.raises(GuardError, match="aligned to 16 bytes") as told:
        perceptron.run({"x": whole[1:].view(3, 64)})
    assert "'x'" in told.value.where
    perceptron.run({"x": whole[:-1].view(3, 64)})


class Pretended:
    """An array in host memory that says it is on the device."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "strides": None}


def aligned(array: Any) -> Any:
    """A copy at an address that is a multiple of 64."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    made = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def test_a_host_pointer_given_as_one_of_the_device(perceptron: Any) -> None:
    with pytest.raises(GuardError, match=r"expected memory of device 0.*which the driver knows as") as told:
        perceptron.run({"x": Pretended(aligned(draw("perceptron", 3)))})
    assert "device memory" in str(told.value)
    assert np.isfinite(result(perceptron.run({"x": draw("perceptron", 3)}))).all()


def test_memory_of_another_device(perceptron: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one device only")
    with pytest.raises(AotError, match="device 1"):
        perceptron.run({"x": torch.zeros(3, 64, device="cuda:1")})


def test_two_sessions_that_update_one_state_without_an_order() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with load("kept") as one, load("kept") as other:
        feeds = {"x": torch.ones(1, 64, device="cuda"), "place": torch.zeros(1, dtype=torch.int64, device="cuda")}
        cache = one.new_state()
        one.run(feeds, state=cache, stream=first)
        other.run(feeds, state=cache, stream=first)
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            torch.cuda._sleep(2_000_000_000)  # cycles: about a second
        one.run(feeds, state=cache, stream=first)
        with pytest.raises(GuardError, match="another session, on another stream") as told:
            other.run(feeds, state=cache, stream=second)
        assert "one stream" in str(told.value)
        other.run(feeds, state=cache, stream=first)  # in order
        torch.cuda.synchronize()
        other.run(feeds, state=cache, stream=second)  # the first has ended
        torch.cuda.synchronize()


def test_results_outlive_their_model() -> None:
    x = draw("perceptron", 33)
    model = load("perceptron.fp16")
    wanted = result(model.run({"x": x}))
    held = result(model.run({"x": torch.from_numpy(x).cuda()}))
    model.close()
    del model
    gc.collect()
    np.testing.assert_array_equal(torch.from_dlpack(held).cpu().numpy(), wanted)


def test_a_stream_that_is_captured(perceptron: Any) -> None:
    (output,) = (spec.name for spec in perceptron.outputs)
    x, y = torch.zeros(33, 64, device="cuda"), torch.zeros(33, 40, device="cuda")
    perceptron.run({"x": x}, outputs={output: y}, stream=torch.cuda.current_stream())
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        perceptron.run({"x": x}, outputs={output: y}, stream=torch.cuda.current_stream())
    for seed in range(3):
        given = draw("perceptron", 33, seed)
        x.copy_(torch.from_numpy(given))
        graph.replay()
        torch.cuda.synchronize()
        captured = y.cpu().numpy()
        with load("perceptron.fp16") as alone:
            np.testing.assert_array_equal(captured, result(alone.run({"x": given})))
    with contextlib.suppress(RuntimeError):  # PyTorch cannot end a capture in which a call failed
        with torch.cuda.graph(torch.cuda.CUDAGraph(), stream=stream):
            with pytest.raises(AotError) as told:
                perceptron.run({"x": draw("perceptron", 3)}, stream=torch.cuda.current_stream())
    assert "captured" in f"{told.value} {told.value.hint}"
    torch.cuda.synchronize()


def test_no_memory() -> None:
    with load("huge") as model:
        small = np.random.default_rng(4).standard_normal((4, 16)).astype(np.float32)
        before = result(model.run({"x": small}))
        with pytest.raises(RunError, match=r"device 0 has no \d+ bytes for intermediate values: \d+ of its") as told:
            model.run({"x": torch.zeros(2_000_000, 16, device="cuda")})
        assert "Free device memory" in told.value.hint
        np.testing.assert_array_equal(result(model.run({"x": small})), before)


_TRAPPED = """
import os, sys, numpy as np, aot.runtime
from aot.errors import AotError
x = np.zeros((3, 64), np.float32)
model = aot.runtime.load(sys.argv[1] + "/trap.aot", target="cuda:sm_90a")
for attempt in range(2):
    try:
        model.run({"x": x})
        print("no error")
    except AotError as error:
        print(f"{error.message} | {error.hint}")
sys.stdout.flush()
os._exit(0)  # nothing can be given back
"""


def test_a_kernel_that_traps_makes_the_context_unusable() -> None:
    lines = child(_TRAPPED)
    print(lines)
    assert len(lines) == 2
    for line in lines:
        assert "failed: CUDA_ERROR" in line and "restart the process" in line
    with load("perceptron.fp16") as model:  # here nothing has happened
        assert np.isfinite(result(model.run({"x": draw("perceptron", 3)}))).all()
