"""Traces: every step with what it wrote, on a CPU and a simulated GPU, in flows, with strides; and what fails."""

from __future__ import annotations

import ctypes
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot import driver, dtypes
from aot.artifacts import Artifact
from aot.errors import ArtifactError, GuardError, RunError
from aot.options import CompileOptions
from aot.program import StepResult
from aot.runtime import Model, TraceStep, load
from tests.control.models import model_of
from tests.runtime import cuda_programs, handmade
from tests.simulated import simulated_backend


def traced(model: Model, inputs: dict[str, Any]) -> tuple[dict[str, Any], list[TraceStep]]:
    """The results of a traced run, and its steps with copies of their tensors."""
    steps: list[TraceStep] = []

    def keep(step: TraceStep) -> None:
        tensors = tuple(tensor._replace(array=np.array(tensor.array)) for tensor in step.tensors)
        steps.append(step._replace(tensors=tensors))

    return model.trace(inputs, keep), steps


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_steps_and_tensors(dense_bytes: bytes, threads: int) -> None:
    model = load(dense_bytes, threads=threads)
    w, b = handmade.weights()
    for n in (1, 7, 4096, 3):  # the arena grows, and is used again
        x = handmade.batch_of(n)
        results, (first, second) = traced(model, {"x": x})
        np.testing.assert_array_equal(results["y"], handmade.expected(x))
        assert (first.program, first.number, first.label, first.nodes) == (0, 0, "matmul 5x19", ("layer/MatMul",))
        assert (second.number, second.nodes) == (1, ("layer/Add", "layer/Relu"))
        (product,), (y,) = first.tensors, second.tensors
        assert (product.name, product.dtype, y.name) == ("product", "f32", "y")
        np.testing.assert_array_equal(product.array, x @ w)
        np.testing.assert_array_equal(y.array, np.maximum(x @ w + b, 0))
        np.testing.assert_array_equal(model.run({"x": x})["y"], results["y"])


def test_arrays_are_views_that_nobody_may_write_to(dense_bytes: bytes) -> None:
    def look(step: TraceStep) -> None:
        assert not step.tensors[0].array.flags.writeable and not step.tensors[0].array.flags.owndata

    load(dense_bytes).trace({"x": handmade.batch_of(2)}, look)


def test_variants_say_which_program_ran() -> None:
    model = load(handmade.artifact(handmade.fixed_variant(2), handmade.program()).data)
    assert [step.program for n in (2, 3) for step in traced(model, {"x": handmade.batch_of(n)})[1]] == [0, 0, 1, 1]


def test_without_debug_information_there_are_no_tensors() -> None:
    model = load(handmade.artifact(debug=None).data)
    results, steps = traced(model, {"x": handmade.batch_of(2)})
    np.testing.assert_array_equal(results["y"], handmade.expected(handmade.batch_of(2)))
    assert [(step.nodes, step.tensors) for step in steps] == [
        (("layer/MatMul",), ()),
        (("layer/Add", "layer/Relu"), ()),
    ]


def test_what_the_callback_raises_ends_the_run(dense_bytes: bytes) -> None:
    model = load(dense_bytes)
    seen = []

    def stop(step: TraceStep) -> None:
        seen.append(step.number)
        raise KeyError("enough")

    for _ in range(2):
        with pytest.raises(KeyError, match="enough"):
            model.trace({"x": handmade.batch_of(2)}, stop)
    assert seen == [0, 0]
    np.testing.assert_array_equal(model(handmade.batch_of(2)), handmade.expected(handmade.batch_of(2)))


def test_guards_come_first(dense_bytes: bytes) -> None:
    model = load(dense_bytes)
    seen: list[TraceStep] = []
    with pytest.raises(GuardError, match="expected 5, got 4"):
        model.trace({"x": np.zeros((2, 4), np.float32)}, seen.append)
    with pytest.raises(GuardError, match="missing input 'x'"):
        model.trace({}, seen.append)
    assert seen == []


def with_result(result: StepResult, **options: Any) -> bytes:
    """`handmade.program` whose first step says that it writes something else."""
    base = handmade.program()
    return handmade.artifact(
        replace(base, steps=(replace(base.steps[0], results=(result,)), base.steps[1])), **options
    ).data


BATCH = handmade.BATCH.dim
FITTING = StepResult(2, "p", dtypes.F32, (BATCH, 2, 3), (19, 6, 2), 5)


def test_strides_and_origin() -> None:
    x = handmade.batch_of(4)
    _, steps = traced(load(with_result(FITTING)), {"x": x})
    flat = (x @ handmade.weights()[0]).reshape(-1)
    expected = [[[flat[5 + i * 19 + j * 6 + k * 2] for k in range(3)] for j in range(2)] for i in range(4)]
    np.testing.assert_array_equal(steps[0].tensors[0].array, expected)


@pytest.mark.parametrize(
    "change",
    [
        {"origin_elements": 19},
        {"strides": (21, 6, 2)},
        {"strides": (19, 1 << 61, 2)},
        {"shape": (BATCH, 1 << 62, 3)},
        {"origin_elements": (1 << 63) - 1},
        {"origin_elements": -1},
        {"strides": (-19, 6, 2)},
        {"dtype": dtypes.F64},
    ],
)
def test_a_tensor_outside_of_its_buffer_is_refused(change: dict[str, Any]) -> None:
    model = load(with_result(replace(FITTING, **change)))
    with pytest.raises(RunError, match="does not fit into its buffer"):
        model.trace({"x": handmade.batch_of(4)}, lambda step: None)
    np.testing.assert_array_equal(model(handmade.batch_of(4)), handmade.expected(handmade.batch_of(4)))


@pytest.mark.parametrize(
    ("change", "message"), [({"argument": 3}, "argument"), ({"strides": (1,)}, "shape and strides")]
)
def test_damaged_tables(change: dict[str, Any], message: str) -> None:
    data = with_result(replace(FITTING, **change))
    with pytest.raises(ArtifactError, match=message):
        load(data)
    with pytest.raises(ArtifactError, match=message):
        _ = Artifact(data).programs


def test_no_elements() -> None:
    empty = StepResult(2, "p", dtypes.BF16, (BATCH, 0), (0, 1), 1 << 40)
    _, steps = traced(load(with_result(empty)), {"x": handmade.batch_of(4)})
    assert steps[0].tensors[0].array.shape == (4, 0) and steps[0].tensors[0].dtype == "bf16"


def test_tables_are_read_as_written() -> None:
    program = replace(handmade.program(), code=b"")
    assert Artifact(handmade.artifact(program).data).programs[0].steps == program.steps


LOOP = """g (float[n,4] x, int64 M) => (float[n,4] y)
    <float[4,4] w = {1,0.5,0,0,0,1,0.5,0,0,0,1,0.5,0.5,0,0,1}, bool on = {1}> {
    s = Tanh (x)
    z = Loop (M, on, s) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a2) {
        co = Identity (ci)
        a1 = MatMul (a, w)
        a2 = Tanh (a1)
    }>
    y = Add (z, x)
}"""


def check_loop(model: Model) -> None:
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    for trips in (0, 3):
        given = {"x": x, "M": np.array(trips)}
        results, steps = traced(model, given)
        np.testing.assert_array_equal(results["y"], model.run(given)["y"])
        names = [tensor.name for step in steps for tensor in step.tensors]
        assert names.count("Loop_1/a2") == trips and names[-1] == "y"
        last = [tensor.array for step in steps for tensor in step.tensors][-1]
        np.testing.assert_array_equal(last, results["y"])
        rounds = [tensor.array for step in steps for tensor in step.tensors if tensor.name == "Loop_1/a2"]
        assert len({array.tobytes() for array in rounds}) == trips  # each is that of its round
        for step in steps:
            assert step.nodes and step.number < sum(spec.steps for spec in model.programs if spec.selected)


def test_flows(tmp_path: Path) -> None:
    check_loop(driver.compile(model_of(LOOP), "cpu:x86-64-v3", cache_dir=tmp_path).load())


def test_flows_on_a_gpu(fake: ctypes.CDLL, tmp_path: Path) -> None:
    with simulated_backend():
        artifact = driver.compile(model_of(LOOP), "cuda:sm_90a", cache_dir=tmp_path)
        with artifact.load() as model:
            check_loop(model)


def test_halos_and_layouts_are_those_of_the_buffers(tmp_path: Path) -> None:
    v, w = (",".join(f"{math.sin(i):.3f}" for i in range(count)) for count in (108, 180))
    model = model_of(f"""g (float[2,3,9,9] x) => (float[2,5,9,9] y)
        <float[4,3,3,3] v = {{{v}}}, float[5,4,3,3] w = {{{w}}}> {{
        a = Conv <pads = [1,1,1,1]> (x, v)
        b = Relu (a)
        y = Conv <pads = [1,1,1,1]> (b, w)
    }}""")
    loaded = driver.compile(model, options=CompileOptions(targets=("cpu:x86-64-v3",), cache_dir=tmp_path)).load()
    x = np.random.default_rng(0).normal(size=(2, 3, 9, 9)).astype(np.float32)
    results, steps = traced(loaded, {"x": x})
    tensors = {tensor.name: tensor.array for step in steps for tensor in step.tensors}
    import torch

    weight = torch.tensor([float(f"{math.sin(i):.3f}") for i in range(108)]).reshape(4, 3, 3, 3)
    expected = torch.relu(torch.nn.functional.conv2d(torch.tensor(x), weight, padding=1)).numpy()
    np.testing.assert_allclose(tensors["b"], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(tensors["y"], results["y"])


# On a GPU.


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize("n", [0, 8, 300])
def test_device(fake: ctypes.CDLL, graphs: bool, n: int) -> None:
    i = np.arange(n)
    given = {"x": (i % 17).astype(np.float32), "cache": (i % 5).astype(np.float32)}
    with cuda_programs.artifact().load(graphs=graphs) as model:
        before = model.run(given)
        results, steps = traced(model, given)
        y, following = cuda_programs.expected(given["x"], given["cache"])
        arrays = {(step.number, tensor.name): tensor.array for step in steps for tensor in step.tensors}
        assert [*arrays] == [(0, "sum"), (1, "next"), (2, ""), (3, "y")]
        np.testing.assert_array_equal(arrays[0, "sum"], given["x"] + cuda_programs.weight()[:n])
        np.testing.assert_array_equal(arrays[1, "next"], following)
        np.testing.assert_array_equal(arrays[2, ""], following)
        np.testing.assert_array_equal(arrays[3, "y"], y)
        for name, array in before.items():
            np.testing.assert_array_equal(results[name], array)
        assert [step.nodes for step in steps] == [("layer/Add",), ("layer/Cache",), ("layer/Identity",), ("layer/Sum",)]


def test_a_kernel_that_fails_is_the_one_that_is_named(fake: ctypes.CDLL) -> None:
    given = {"x": np.ones(300, np.float32), "cache": np.ones(300, np.float32)}
    with cuda_programs.artifact().load() as model:
        traced(model, given)
        before = fake.fake_calls()
        traced(model, given)
        calls = fake.fake_calls() - before
        failed = set()
        for at in range(1, calls + 1):
            fake.fake_fail(at, 700)
            try:
                traced(model, given)
            except RunError as error:
                failed.add(error.where)
            fake.fake_fail(0, 0)
        assert {
            f"kernel '{label}' of layer/{node}" for label, node in [("add_first", "Add"), ("copy", "Identity")]
        } <= failed


def test_inputs_in_device_memory(fake: ctypes.CDLL) -> None:
    with cuda_programs.artifact().load() as model:
        given = {"x": np.ones(8, np.float32), "cache": np.ones(8, np.float32)}
        device = {name: model.to_device(array) for name, array in given.items()}
        _, steps = traced(model, device)
        assert len(steps) == 4 and all(
            isinstance(tensor.array, np.ndarray) for step in steps for tensor in step.tensors
        )
