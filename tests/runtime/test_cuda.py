"""Models on a GPU from Python, on the simulated driver of runtime/tests/fake_cuda.cpp: no machine here has a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from aot import dtypes, recipe
from aot.cli.machine import selection
from aot.cli.main import cli
from aot.errors import AotError, ArtifactError, GuardError, RunError, TargetError
from aot.ir import Array, TensorType, const_of
from aot.program import Constant, Guard, GuardKind, Port, Program, RecipeOp, RecipeStep, Source
from aot.runtime import Machine, _device, _library, _tensors, target_rank, this_machine
from tests.runtime import cuda_programs, handmade
from tests.simulated import DEVICE_BYTES

ROOT = Path(__file__).resolve().parents[2]


def count(fake: ctypes.CDLL, what: str) -> int:
    return int(fake.fake_count(what.encode()))


def case(n: int, seed: int = 0) -> dict[str, Array]:
    i = np.arange(n)
    return {"x": ((i * 3 + seed) % 17).astype(np.float32), "cache": ((i + seed) % 5).astype(np.float32)}


def check(found: dict[str, Any], given: dict[str, Array]) -> None:
    y, following = cuda_programs.expected(given["x"], given["cache"])
    np.testing.assert_array_equal(np.asarray(found["y"]), y)
    np.testing.assert_array_equal(np.asarray(found["next"]), following)


@pytest.mark.parametrize("graphs", [True, False])
def test_numpy_in_and_out(fake: ctypes.CDLL, graphs: bool) -> None:
    with cuda_programs.artifact().load(graphs=graphs) as model:
        assert (model.target, model.device) == ("cuda:sm_90a", 0)
        for n in (300, 8, 0, 1, 4096, 300):
            for seed in range(3):  # the second run goes through the short way in C
                found = model.run(case(n, seed))
                assert type(found["y"]) is np.ndarray
                check(found, case(n, seed))
        assert (count(fake, "graph_launch") > 0) == graphs
        assert [label for label, _, seconds in model.profile(case(300)) if seconds == 5e-4] == [
            "add_first",
            "add_state",
            "copy",
            "addscratch_last",
        ]


@pytest.mark.parametrize("graphs", [True, False])
def test_poisoned_memory(fake: ctypes.CDLL, graphs: bool) -> None:
    """What is read before it is written would be NaN; state that is updated in place stays what it was."""
    with cuda_programs.artifact().load(graphs=graphs, poison=True) as model:
        for n in (300, 8, 4096, 300):
            given = case(n, n)
            filled = count(fake, "set_bytes")
            check(model.run(given), given)
            assert count(fake, "set_bytes") > filled
            kept = model.to_device(given["cache"])
            found = model.run({"x": given["x"]}, state={"cache": kept})
            check({"y": found["y"], "next": kept.numpy()}, given)


def test_device_tensors(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        for n in (300, 8, 0, 300):
            given = {name: model.to_device(array) for name, array in case(n).items()}
            copied = count(fake, "copy_in")
            found = model.run(given)
            assert count(fake, "copy_in") == copied  # nothing was staged
            assert isinstance(found["y"], _device.DeviceTensor) and found["y"].shape == (n,)
            check(found, case(n))
            y = model.to_device(np.zeros(n, np.float32))
            assert model.run(given, outputs={"y": y})["y"] is y
            check({"y": y.numpy(), "next": found["next"]}, case(n))
        mixed = model.run({"x": case(5)["x"], "cache": model.to_device(case(5)["cache"])})
        check(mixed, case(5))
        assert "device 0" in repr(found["y"]) and found["y"].nbytes == 1200


def test_state_stays_on_the_device(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        given = case(300)
        cache = model.to_device(given["cache"])
        for _ in range(4):
            found = model.run({"x": given["x"]}, state={"cache": cache})
            assert type(found["y"]) is np.ndarray  # state on the device does not move the results there
            expected = cuda_programs.expected(given["x"], given["cache"])
            np.testing.assert_array_equal(found["y"], expected[0])
            given["cache"] = expected[1]
        np.testing.assert_array_equal(cache.numpy(), given["cache"])
        host = case(300)["cache"]
        model.run({"x": given["x"]}, state={"cache": host})
        np.testing.assert_array_equal(host, cuda_programs.expected(given["x"], case(300)["cache"])[1])


class Interface:
    """An array of a package that has only __cuda_array_interface__."""

    def __init__(self, tensor: Any, **changes: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, **changes}


class Exchange:
    """An array of a package that has only __dlpack__; notes the stream that it was asked for."""

    def __init__(self, tensor: Any) -> None:
        self.tensor, self.streams = tensor, list[Any]()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.tensor.__dlpack_device__()  # type: ignore[no-any-return]

    def __dlpack__(self, *, stream: Any = None) -> Any:
        self.streams.append(stream)
        return self.tensor.__dlpack__(stream=stream)


def test_arrays_of_other_packages(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        x, cache = (model.to_device(array) for array in case(300).values())
        exchange = Exchange(cache)
        check(model.run({"x": Interface(x), "cache": exchange}), case(300))
        assert exchange.streams == [1]  # DLPack's number for the default stream
        check(model.run({"x": Interface(x, strides=(4,), stream=None), "cache": exchange}), case(300))
        del exchange
        with pytest.raises(GuardError, match="should have stride 1, got 2"):
            model.run({"x": Interface(x, shape=(150,), strides=(8,)), "cache": cache})
        with pytest.raises(GuardError, match="no element type for <c8"):
            model.run({"x": Interface(x, typestr="<c8"), "cache": cache})
        with pytest.raises(GuardError, match="read-only"):
            model.run({"x": x, "cache": cache}, outputs={"y": Interface(x, data=(x.address, True))})
        capsule = x.__dlpack__()
        assert _device._held
        del capsule
        assert not _device._held  # a capsule that nobody took gives back what it holds


def test_streams(fake: ctypes.CDLL) -> None:
    class Numbered:
        def __init__(self, name: str, value: Any) -> None:
            setattr(self, name, value)

    with cuda_programs.artifact().load() as model:
        stream = ctypes.c_void_p()
        given = {name: model.to_device(array) for name, array in case(300).items()}
        context = ctypes.c_void_p()
        fake.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
        fake.cuCtxPushCurrent_v2(context)
        fake.cuStreamCreate(ctypes.byref(stream), 1)
        assert stream.value
        for given_stream in (
            stream.value,
            Numbered("cuda_stream", stream.value),
            Numbered("ptr", stream.value),
            Numbered("__cuda_stream__", lambda: (0, stream.value)),
        ):
            found = model.run(given, stream=given_stream)
            assert found["y"].stream == stream.value
            check(found, case(300))
            check(dict(zip(("y", "next"), model(*given.values(), stream=given_stream), strict=True)), case(300))
        with pytest.raises(RunError, match="expected a stream, got str"):
            model.run(given, stream="0")
        del found
        fake.cuStreamSynchronize(stream)
        fake.cuStreamDestroy_v2(stream)
        fake.cuCtxPopCurrent_v2(ctypes.byref(context))
        fake.cuDevicePrimaryCtxRelease_v2(0)
    with pytest.raises(RunError, match="the model runs on the CPU"):
        handmade.artifact().load().run({"x": handmade.batch_of(2)}, stream=1)


def test_results_outlive_their_model(fake: ctypes.CDLL) -> None:
    model = cuda_programs.artifact().load()
    found = model.run({name: model.to_device(array) for name, array in case(300).items()})
    model.close()
    check(found, case(300))
    with pytest.raises(RunError, match="the model was closed"):
        model.to_device(np.zeros(1, np.float32))


def test_memory_of_results_is_used_again(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        given = {name: model.to_device(array) for name, array in case(300).items()}
        model.run(given)
        live = fake.fake_live()
        for _ in range(10):
            model.run(given)
        assert fake.fake_live() == live


def test_threads(fake: ctypes.CDLL) -> None:
    wrong: list[str] = []
    with cuda_programs.artifact().load() as model:

        def work(number: int) -> None:
            try:
                for i in range(20):
                    given = case(1 + (number * 7 + i) % 5 * 100, i)
                    check(model.run(given), given)
                    check(model.run({name: model.to_device(array) for name, array in given.items()}), given)
            except AssertionError as error:
                wrong.append(str(error))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_selection_says_why(fake: ctypes.CDLL) -> None:
    cpu = handmade.program("cpu:x86-64")
    gpu, newer = (
        replace(cpu, target=target, kernels=(), steps=(), code=b"", buffers=(), constants=(), sources=())
        for target in ("cuda:sm_90a", "cuda:sm_100a")
    )
    with handmade.artifact(newer, gpu, cpu).load() as model:
        assert [(p.target, p.selected, p.reason) for p in model.programs] == [
            (
                "cuda:sm_100a",
                False,
                "device 0 (Simulated GPU) has compute capability 9.0, 10.0 is needed",
            ),
            ("cuda:sm_90a", True, ""),
            ("cpu:x86-64", False, "cuda:sm_90a comes first"),
        ]
    recent = cuda_programs.artifact(replace(cuda_programs.program(), driver=13020))
    with pytest.raises(TargetError, match=r"the driver supports CUDA 13\.0, 13\.2 or newer is needed"):
        recent.load()
    fake.fake_machine(1, 75, 13000, DEVICE_BYTES)
    with handmade.artifact(newer, gpu, cpu).load() as model:
        assert model.target == "cpu:x86-64" and model.device is None
        assert "compute capability 7.5, 9.0 is needed" in model.programs[1].reason
    with pytest.raises(
        TargetError, match=r"no program runs here: cuda:sm_100a: .*; cuda:sm_90a: .*7\.5, 9\.0 is needed"
    ):
        handmade.artifact(newer, gpu).load()
    with pytest.raises(TargetError, match="there is no device 2"):
        handmade.artifact(newer, gpu).load(device=2)


ORDERS = [
    # capability, what is in the file, what is chosen
    (90, ("cuda:compute_80", "cpu:x86-64", "cuda:sm_90a"), "cuda:sm_90a"),
    (90, ("cpu:x86-64", "cuda:compute_80", "cuda:compute_90", "cuda:sm_80"), "cuda:compute_90"),
    (86, ("cuda:compute_80", "cuda:sm_80", "cuda:sm_86", "cuda:sm_89"), "cuda:sm_86"),
    (89, ("cuda:sm_80", "cuda:sm_86", "cuda:compute_80"), "cuda:sm_86"),
    (103, ("cuda:sm_90a", "cuda:sm_100a", "cuda:compute_80", "cuda:compute_90"), "cuda:compute_90"),
    (120, ("cuda:sm_100a", "cpu:x86-64", "cuda:compute_80"), "cuda:compute_80"),
    (75, ("cuda:sm_80", "cuda:compute_80", "cpu:x86-64"), "cpu:x86-64"),
    (103, ("cuda:sm_100f", "cuda:sm_100a", "cuda:compute_90"), "cuda:sm_100f"),
]


def empty(target: str, driver: int = 0) -> Program:
    """A program that does nothing, for any target."""
    plain = handmade.program("cpu:x86-64")
    return replace(
        plain, target=target, kernels=(), steps=(), code=b"", buffers=(), constants=(), sources=(), driver=driver
    )


@pytest.mark.parametrize(("capability", "targets", "chosen"), ORDERS, ids=str)
def test_the_program_that_fits_best_is_selected(
    fake: ctypes.CDLL, capability: int, targets: tuple[str, ...], chosen: str
) -> None:
    fake.fake_machine(1, capability, 13000, DEVICE_BYTES)
    machine = Machine(1, capability, 13000)
    assert this_machine() == replace(this_machine(), capability=capability, driver=13000)
    for order in (targets, targets[::-1]):
        artifact = handmade.artifact(*map(empty, order))
        with artifact.load() as model:
            assert model.target == chosen
            told = [(row["target"], row["selected"], row["reason"]) for row in selection(artifact.programs, None)]
            assert told == [(program.target, program.selected, program.reason) for program in model.programs]
            for program in model.programs:
                rank, reason = target_rank(program.target, 0, machine)
                assert (rank, reason) == (target_rank(program.target)[0], reason)
                if rank:
                    assert program.reason == ("" if program.target == chosen else f"{chosen} comes first")
                else:
                    assert program.reason == reason.replace("the GPU", "device 0 (Simulated GPU)")
        ranks = {target: target_rank(target, 0, machine)[0] for target in order}
        assert max(ranks, key=lambda target: ranks[target]) == chosen


def test_described_machines() -> None:
    assert (
        target_rank("cuda:sm_90a", 12000, Machine(3, 90))
        > target_rank("cuda:compute_90", 12000, Machine(3, 90))
        > (1, "")
    )
    assert target_rank("cuda:sm_80", 0, Machine(3)) == (0, "there is no GPU")
    assert target_rank("cpu:x86-64-v4", 0, Machine(3, 90)) == (0, "this CPU supports x86-64-v3")
    fits = [
        target_rank(f"cpu:x86-64-v4{extras}", 0, Machine(4, cpu_extras=1)) for extras in ("", "+vnni", "+vnni+bf16")
    ]
    assert fits == [(1, ""), (1, ""), (0, "this CPU supports x86-64-v4 without bf16")]
    assert target_rank("cpu:x86-64-v4+vnni", 0, Machine(4)) == (0, "this CPU supports x86-64-v4 without vnni")
    assert target_rank("cpu:x86-64-v4+vnni", 0, Machine(3)) == (0, "this CPU supports x86-64-v3")
    assert target_rank("cpu:x86-64-v4+other", 0, Machine(4, cpu_extras=3))[1].endswith("without other")
    assert target_rank("cpu:x86-64-v3+", 0, Machine(4))[0] == 0 and target_rank("cpu:x86", 0, Machine(4))[0] == 0
    needed = "the driver supports CUDA 12.4, 12.8 or newer is needed: update the driver"
    assert target_rank("cuda:sm_100a", 12080, Machine(4, 100, 12040)) == (0, needed)
    assert "11.8, 12.0 or newer" in target_rank("cuda:sm_80", 0, Machine(4, 80, 11080))[1]
    reason = "the GPU has compute capability 8.9, 9.0 or above is needed"
    assert target_rank("cuda:compute_90", 0, Machine(4, 89)) == (0, reason)
    assert target_rank("cuda:ptx", 0, Machine(4, 89)) == (0, "this runtime does not know the architecture")
    assert this_machine().cpu_level >= 1


def text_program(capability: int, version: str = "8.0") -> Program:
    """The program whose kernels are text for a capability and above."""
    plain = cuda_programs.program(f"cuda:compute_{capability}")
    image = plain.code.replace(b"FAKE 90", f".version {version} .target sm_{capability}".encode())
    image = image.rstrip(b"\0")  # text in a file has no NUL at its end
    kernels = tuple(
        replace(kernel, image=replace(kernel.image, size_bytes=len(image))) for kernel in plain.kernels if kernel.image
    )
    return replace(plain, code=image, kernels=kernels, driver=12000)


@pytest.mark.parametrize(("capability", "device"), [(80, 86), (80, 90), (90, 90), (90, 120)])
def test_text_is_compiled_by_the_driver(fake: ctypes.CDLL, capability: int, device: int) -> None:
    fake.fake_machine(1, device, 12000, DEVICE_BYTES)
    with cuda_programs.artifact(text_program(capability)).load() as model:
        assert model.target == f"cuda:compute_{capability}" and count(fake, "jit") == 1
        for n in (300, 0, 4096):
            check(model.run(case(n)), case(n))
        # Kernels for older GPUs have no wait inside: they must not start early.
        assert (count(fake, "early") > 0) == (capability >= 90)


def test_text_that_the_driver_does_not_take(fake: ctypes.CDLL) -> None:
    fake.fake_machine(1, 90, 12040, DEVICE_BYTES)
    with pytest.raises(
        RunError, match=r"compiling its PTX for this device \(ptxas fatal Unsupported .version 8\.8\)"
    ) as told:
        cuda_programs.artifact(text_program(80, "8.8")).load()
    assert told.value.where == "kernel 'add_first' of layer/Add" and "Update the driver" in told.value.hint
    wrong = replace(text_program(90), target="cuda:compute_80")
    fake.fake_machine(1, 80, 12040, DEVICE_BYTES)
    with pytest.raises(RunError, match=r"SM version sm_90 is above sm_80"):
        cuda_programs.artifact(wrong).load()
    with pytest.raises(TargetError, match=r"the driver supports CUDA 13\.0, 13\.2 or newer is needed"):
        cuda_programs.artifact(replace(text_program(80), driver=13020)).load()


def test_no_driver() -> None:
    """In a process of its own, without the simulated driver."""
    script = """
import aot.runtime, ctypes
from tests.runtime import cuda_programs, handmade
try:
    ctypes.CDLL("libcuda.so.1")
    print("there is a driver")
except OSError:
    print(aot.runtime.target_supported("cuda:sm_90a"))
    try:
        cuda_programs.artifact().load()
    except aot.errors.TargetError as error:
        print(error)
    print(handmade.artifact(cuda_programs.program(), handmade.program("cpu:x86-64")).load().programs[0].reason)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    if "there is a driver" in done.stdout:
        pytest.skip("this machine has a driver")
    supported, error, *_, reason = done.stdout.splitlines()
    assert supported == "False" and reason == "no driver (libcuda.so.1 not found)"
    assert "no program runs here: cuda:sm_90a: no driver (libcuda.so.1 not found)" in error


def test_a_forked_child_is_told(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        model.run(case(8))
        fake.fake_fail(3, 3)  # what a driver says in a forked child
        with pytest.raises(RunError, match="start processes by spawn"):
            model.run(case(8), timeout_seconds=60)  # not the short way, which tries again


def test_errors_name_kernels(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load(graphs=False) as model:
        model.run(case(300))
        found = set()
        for at in range(20):
            fake.fake_fail(at, 701)
            try:
                model.run(case(300), timeout_seconds=60)
            except RunError as error:
                if "launching it" in str(error):
                    found.add(error.where)
            fake.fake_fail(0, 0)
        assert "kernel 'add_state' of layer/Cache" in found and len(found) == 4


def test_bad_machine_code(fake: ctypes.CDLL) -> None:
    good = cuda_programs.program()
    for code, text in ((b"NONE " + good.code[5:], "not an image"), (good.code.replace(b"k_copy", b"k_kopy"), "k_copy")):
        with pytest.raises(AotError, match=text) as caught:
            cuda_programs.artifact(replace(good, code=code)).load()
        assert caught.value.where.startswith("kernel '")
    bare = replace(good, kernels=tuple(replace(kernel, image=None) for kernel in good.kernels))
    with pytest.raises(ArtifactError, match="machine code"):
        cuda_programs.artifact(replace(bare, steps=tuple(replace(step, grid=()) for step in bare.steps))).load()


def chosen(value: int) -> Program:
    """A program for one value of a third input, which the kernels do not read."""
    base = cuda_programs.program(variant=f"mode={value}")
    mode = Port("mode", TensorType(dtypes.I64, (1,)))
    guards = (*base.guards, Guard(GuardKind.VALUE, 2, 0, expected=value), Guard(GuardKind.EQUAL, 2, 0, expected=1))
    return replace(base, inputs=(*base.inputs, mode), guards=guards)


def test_an_input_on_the_device_chooses_the_program(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact(chosen(1), chosen(2)).load() as model:
        given = {name: model.to_device(array) for name, array in case(300).items()}
        for value in (1, 2, 1):
            check(model.run({**given, "mode": model.to_device(np.array([value]))}), case(300))
        with pytest.raises(GuardError, match="expected the value 1, got 3"):
            model.run({**given, "mode": model.to_device(np.array([3]))})


def test_weights_by_name(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact(weights="none").load(weights={"layer.weight": cuda_programs.weight()}) as model:
        check(model.run(case(300)), case(300))
        with cuda_programs.artifact().load() as other:  # the same bytes from another file
            copied = count(fake, "copy_in")
            assert copied == 4 * cuda_programs.MOST + 2 * 1200
            check(other.run(case(300)), case(300))


def test_device_view_of_scalars(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        tensor = model.to_device(np.array(3.0, np.float32))
        assert tensor.shape == () and tensor.numpy() == 3
        view = _tensors.view("x", tensor)
        assert view.is_on_device and view.shape == () and view.element() == b""
        with pytest.raises(AttributeError, match="no element type for bf16"):
            _ = _device.DeviceTensor(tensor._memory, (1,), "bf16", 0).__cuda_array_interface__


def test_constants_that_are_made_at_load(fake: ctypes.CDLL) -> None:
    """The file holds half of the weight, which a program for the CPU reads as it is, and the GPU's twice."""
    half = Source("layer.half", const_of(cuda_programs.weight() / 2, "layer.half"))
    steps = (recipe.source(0), recipe.source(0), RecipeStep(RecipeOp.ADD))
    shape = (cuda_programs.MOST,)
    gpu = replace(cuda_programs.program(), sources=(half,), constants=(Constant("w", dtypes.F32.number, shape, steps),))
    plain = Constant("half", dtypes.F32.number, shape, (recipe.source(0),))
    cpu = replace(gpu, target="cpu:x86-64", kernels=(), steps=(), code=b"", buffers=(), constants=(plain,))
    artifact = cuda_programs.artifact(gpu, cpu)
    assert artifact.sections["weights"] == 4 * cuda_programs.MOST
    assert [row.made_bytes for row in artifact.target_bytes] == [4 * cuda_programs.MOST, 0]
    with artifact.load() as model:
        assert model.target == "cuda:sm_90a"
        check(model.run(case(300)), case(300))


def test_variants_share_modules(fake: ctypes.CDLL) -> None:
    """Two programs whose blobs of code differ have what they share once in the file, and once on the device."""
    general = cuda_programs.program()
    image = b"FAKE 90 k_copy and nothing else\0"
    kernels = list(cuda_programs.program(variant="n=8", n=8).kernels)
    assert kernels[2].image is not None
    offset = -(-len(general.code) // 64) * 64
    own = replace(kernels[2].image, offset_bytes=offset, size_bytes=len(image))
    kernels[2] = replace(kernels[2], image=own)
    code = general.code.ljust(offset, b"\0") + image
    fixed = replace(cuda_programs.program(variant="n=8", n=8), kernels=tuple(kernels), code=code)
    artifact = cuda_programs.artifact(fixed, general)
    assert artifact.sections["code"] < len(code) + 64 and artifact.programs[0].code == artifact.programs[1].code
    live = fake.fake_live()
    with artifact.load() as model:
        modules = 2
        assert fake.fake_live() == live + modules + 2  # the context and the weight
        for n in (8, 300):
            check(model.run(case(n)), case(n))


# Profiles.


def test_kernels_are_timed_in_graphs(fake: ctypes.CDLL) -> None:
    """The simulated driver says of every pair of events that half a millisecond lies between."""
    with cuda_programs.artifact().load() as model:
        given = case(300)
        kept = given["cache"].copy()
        times = model.time_steps(given, repeats=50)
        assert (times.method, times.repeats, model.programs[times.program].variant) == ("graph", 50, "")
        assert times.run_seconds == pytest.approx(1e-5)
        assert [step.label for step in times.steps] == [label for label, _, _ in model.profile(given, 1)]
        assert [step.seconds for step in times.steps] == pytest.approx([1e-5] * 4)
        assert [step.starts_early for step in times.steps] == [False, True, True, True]
        np.testing.assert_array_equal(given["cache"], kept)  # the profiler's state is its own
        check(model.run(given), given)
        assert model.time_steps(given).repeats == 200  # as many as there may be: a run seems short
        assert model.programs[model.time_steps(case(8), repeats=1).program].variant == "n=8"
        assert [step.seconds for step in model.time_steps(case(0), repeats=2).steps] == [0, 0, 0, 0]
        assert 0 < model.copy_rate(16 << 20) < 1e13
        with pytest.raises(RunError, match="a profile wants inputs in CPU memory"):
            model.time_steps({name: model.to_device(array) for name, array in given.items()})
    with cuda_programs.artifact().load(early_start=False) as model:
        assert not any(step.starts_early for step in model.time_steps(case(300), repeats=2).steps)


def test_a_kernel_that_cannot_be_timed_is_named(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        given = case(300)
        model.time_steps(given, repeats=1)
        before = fake.fake_calls()
        model.time_steps(given, repeats=1)
        calls = fake.fake_calls() - before
        messages = set()
        for at in range(0, calls, 5):
            fake.fake_fail(at, 719)
            try:
                model.time_steps(given, repeats=1)
            except RunError as error:
                messages.add(error.where)
            fake.fake_fail(0, 0)
        assert {"kernel 'copy' of layer/Identity", "kernel 'add_first' of layer/Add"} & messages


def test_memory_that_is_short_is_copied_in_smaller_pieces(fake: ctypes.CDLL) -> None:
    fake.fake_machine(1, 90, 13000, 8 << 20)
    with cuda_programs.artifact().load() as model:
        assert model.copy_rate(64 << 20) > 0
        places = []
        while True:
            place, error = ctypes.c_void_p(), _library.new_error()
            if model._lib.aot_device_allocate(model._live, 1 << 20, ctypes.byref(place), ctypes.byref(error)):
                break
            places.append(place)
        assert model.copy_rate(64 << 20) == 0
        for place in places:
            model._lib.aot_device_free(model._live, place)


def test_profile_command(fake: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate = 4e12
    monkeypatch.setattr("aot.runtime.Model.copy_rate", lambda self: rate)
    path = tmp_path / "gpu.aot"
    made = cuda_programs.program()
    images = [replace(k, image=replace(k.image, registers=33, spilled_bytes=4)) for k in made.kernels if k.image]
    steps = [replace(step, bytes_moved=cuda_programs.N.dim * 12, flops=cuda_programs.N.dim) for step in made.steps]
    cuda_programs.artifact(replace(made, kernels=tuple(images), steps=tuple(steps))).save(path)
    arguments = ["profile", str(path), "--dim", "n=300", "--repeats", "50"]
    pages = ["--html", str(tmp_path / "page.html"), "--trace", str(tmp_path / "trace.json")]
    result = CliRunner().invoke(cli, [*arguments, *pages, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["target"], found["method"], found["dims"]) == ("cuda:sm_90a", "graph", {"n": 300})
    assert "a GPU of compute capability 9.0" in found["machine"] and found["launches"] == 4
    assert found["gap_seconds"] == pytest.approx(-3e-5)  # four kernels of 10 us in a run of 10 us
    assert found["ceilings"]["memory_bytes"] == rate and found["ceilings"]["flops"]["half"] == 7.3e14
    assert "sm_90a (H100 and H200), not measured" in found["ceilings"]["flops_from"]
    for row, kernel in zip(found["rows"], made.kernels, strict=True):
        assert (row["blocks"], row["threads"], row["registers"], row["spilled_bytes"]) == (3, 128, 33, 4)
        assert row["bytes"] == 3600 and row["bytes_per_s"] == pytest.approx(3.6e8) and row["nodes"] == list(kernel.locs)
    assert "layer/Cache" in (tmp_path / "page.html").read_text()
    text = CliRunner().invoke(cli, arguments)
    assert "overlap -30.00 us" in text.stdout and "3 x 128 early" in text.stdout and "spill" in text.stderr
    assert "33, 65536 B, 4 B spilled" in text.stdout
