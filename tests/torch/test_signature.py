"""Signatures of torch programs: names of nested inputs and outputs, numbers, None, strings; weights stored once."""

from __future__ import annotations

import json
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import aot
from aot.artifacts import Artifact
from aot.errors import UnsupportedError

pytest.importorskip("torch")
import torch

from tests.torch.opinfo import array_of
from tests.torch.programs import leaves


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


class Call(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arguments: Any, **named: Any) -> Any:
        return self.function(*arguments, **named)


def built(model: Any, arguments: tuple[Any, ...], cache: Path, named: Any = None, **options: Any) -> Artifact:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model.eval(), arguments, named, strict=False)
    return aot.compile(program, "cpu:x86-64-v3", cache_dir=str(cache), **options)


def names(artifact: Artifact) -> tuple[list[str], list[str]]:
    program = artifact.programs[0]
    return [port.name for port in program.inputs], [port.name for port in program.outputs]


def run(artifact: Artifact, arrays: list[Any]) -> list[Any]:
    model = artifact.load(threads=1)
    return list(model.run(dict(zip([spec.name for spec in model.inputs], arrays, strict=True))).values())


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Batch:
    ids: Any
    scale: Any


class Nested(torch.nn.Module):
    """Inputs in lists, dictionaries and tuples, by position and by name; outputs as nested."""

    def forward(self, x: Any, parts: Any, options: Any, *, bias: Any, flags: Any = None) -> Any:
        y = x + parts[0] * options["gain"] + parts[1][0] + bias
        return {
            "logits": y,
            "cache": [y * 2, (y * 3, None)],
            "pair": Pair(y - 1, y - 2),
            "size": x.shape[0],
            "none": None,
        }


def test_names_of_nested_arguments_and_results(cache: Path) -> None:
    t = torch.arange(4.0)
    arguments = (t, [t + 1, (t + 2,)], {"gain": t + 3, "unused": t})
    model = Nested()
    artifact = built(model, arguments, cache, {"bias": t + 4})
    inputs, outputs = names(artifact)
    assert inputs == ["x", "parts_0", "parts_1_0", "options_gain", "options_unused", "bias"]
    assert outputs == ["logits", "cache.0", "cache.1.0", "pair.left", "pair.right", "size"]
    found = run(artifact, [array_of(tensor) for tensor in (t, t + 1, t + 2, t + 3, t, t + 4)])
    wanted = [value for value in leaves(model(*arguments, bias=t + 4)) if value is not None]
    for mine, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs if isinstance(theirs, int) else theirs.numpy())


def test_one_result_and_several_are_numbered(cache: Path) -> None:
    assert names(built(Call(lambda x: x + 1), (torch.ones(2),), cache))[1] == ["output_0"]
    assert names(built(Call(lambda x: (x + 1, [x + 2])), (torch.ones(2),), cache))[1] == ["output_0", "output_1.0"]
    both = built(Call(lambda x: ([x + 1, x + 2], x + 3)), (torch.ones(2),), cache)
    assert names(both)[1] == ["output_0.0", "output_0.1", "output_1"]


def test_arguments_that_are_no_tensors_are_fixed(cache: Path) -> None:
    class Scaled(torch.nn.Module):
        def forward(self, x: Any, times: int, rate: float, negate: bool, mode: str, nothing: None) -> Any:
            y = x * times + rate
            return (-y if negate else y) if mode == "plain" else y * 100

    artifact = built(Scaled(), (torch.arange(3.0), 3, 0.5, True, "plain", None), cache)
    assert names(artifact) == (["x"], ["output_0"])
    assert "the argument 'times' is no input: fixed at 3" in artifact.report.notes
    np.testing.assert_array_equal(run(artifact, [np.arange(3, dtype="f4")])[0], -(np.arange(3) * 3 + 0.5))


def test_open_numbers_are_inputs(cache: Path) -> None:
    class Rows(torch.nn.Module):
        def forward(self, x: Any, count: int) -> Any:
            return x[:count].sum(0), torch.arange(count) * 2, x * count

    dims: Any = {"x": {0: torch.export.Dim.AUTO}, "count": torch.export.Dim.DYNAMIC}
    program = torch.export.export(Rows(), (torch.ones(8, 3), 4), dynamic_shapes=dims)
    x = torch.arange(24.0).reshape(8, 3)
    with aot.compile(program, "cpu:x86-64-v3", cache_dir=str(cache)).load(threads=1) as model:
        assert [info.name for info in model.inputs] == ["x", "count"]
        for count in (1, 2, 5, 8):
            for mine, theirs in zip(
                model.run({"x": x.numpy(), "count": count}).values(), Rows()(x, count), strict=True
            ):
                np.testing.assert_allclose(mine, theirs.numpy())
        for wrong, words in ((9, "must be at least count"), (0, "must be at least 1"), (2.5, "expected i64")):
            with pytest.raises(aot.GuardError, match=words):
                model.run({"x": x.numpy(), "count": wrong})


def test_names_that_meet_are_told_apart(cache: Path) -> None:
    class Meeting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("h", torch.ones(3))
            self.register_buffer("output_0", torch.zeros(3))

        def forward(self, x: Any, h: Any) -> Any:
            self.h.add_(x)
            self.output_0.copy_(h)
            return (self.h * h).sum(), {"a.b": x + 1, "a": {"b": x + 2}}

    given = (torch.arange(3.0), torch.tensor([5.0, 6.0, 7.0]))
    artifact = built(Meeting(), given, cache)
    inputs, outputs = names(artifact)
    assert inputs == ["b_h", "output_0", "x", "h"]
    assert outputs == ["b_h", "output_0", "output_0_2", "output_1.a.b", "output_1.a.b_2"]
    model = Meeting()
    with artifact.load(threads=1) as loaded:
        state = loaded.new_state()
        assert sorted(state) == ["b_h", "output_0"]
        for _ in range(3):
            found = loaded.run({"x": given[0].numpy(), "h": given[1].numpy()}, state=state)
            wanted = model(*given)
            np.testing.assert_allclose(found["output_0_2"], wanted[0].numpy())
            np.testing.assert_allclose(found["output_1.a.b_2"], wanted[1]["a"]["b"].numpy())


def test_a_size_that_was_exported_as_fixed_stays(cache: Path) -> None:
    program = torch.export.export(Call(lambda x: x.sum() / x.shape[0]), (torch.ones(5, 2),))
    with pytest.raises(aot.AotError, match=r"the model holds for 5\.\.5 alone"):
        aot.compile(program, dims={f"{program.graph_signature.user_inputs[0]}.0": (1, 8)}, cache_dir=str(cache))


def test_results_of_a_class_that_is_not_registered(cache: Path, tmp_path: Path) -> None:
    """As of transformers, in a process that does not import it."""
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(Call(lambda x: {"first": x + 1, "then": x + 2}), (torch.ones(2),)), path)
    changed = tmp_path / "changed.pt2"
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(changed, "w") as target:
        for item in source.infolist():
            data = source.read(item)
            if "/models/" in item.filename and item.filename.endswith(".json"):
                document = json.loads(data)
                signature = document["graph_module"]["module_call_graph"][0]["signature"]
                signature["out_spec"] = signature["out_spec"].replace("builtins.dict", "elsewhere.Results")
                data = json.dumps(document).encode()
            target.writestr(item, data)
    assert names(aot.compile(changed, "cpu:x86-64-v3", cache_dir=str(cache)))[1] == ["first", "then"]


def test_a_registered_class_is_taken_apart(cache: Path) -> None:
    torch.export.register_dataclass(Batch, serialized_type_name="tests.Batch")

    class Net(torch.nn.Module):
        def forward(self, batch: Batch) -> Batch:
            return Batch(batch.ids + 1, batch.scale * 2)

    artifact = built(Net(), (Batch(torch.tensor([1, 2]), torch.ones(2)),), cache)
    assert names(artifact) == (["batch_ids", "batch_scale"], ["ids", "scale"])
    found = run(artifact, [np.array([4, 5]), np.ones(2, "f4")])
    np.testing.assert_array_equal(found[0], [5, 6])
    np.testing.assert_array_equal(found[1], [2, 2])


def test_results_that_are_inputs_weights_or_twice_the_same(cache: Path) -> None:
    class Echo(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.arange(3.0))
            self.register_buffer("table", torch.tensor([7, 8]))

        def forward(self, x: Any) -> Any:
            y = x * self.weight
            return x, y, y, self.weight, self.table, 5, 2.5, True, x.shape[0]

    model, x = Echo(), torch.ones(3)
    found = run(built(model, (x,), cache), [x.numpy()])
    for mine, theirs in zip(found, model(x), strict=True):
        np.testing.assert_array_equal(mine, theirs.detach().numpy() if isinstance(theirs, torch.Tensor) else theirs)


def test_a_text_result_is_left_out(cache: Path) -> None:
    artifact = built(Call(lambda x: (x + 1, "done")), (torch.ones(2),), cache)
    assert names(artifact)[1] == ["output_0"]
    assert any("left out" in note for note in artifact.report.notes)


class Tied(torch.nn.Module):
    """An embedding whose table is the last projection too."""

    def __init__(self, is_tied: bool) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(512, 128)
        self.head = torch.nn.Linear(128, 512, bias=False)
        if is_tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Any) -> Any:
        return self.head(self.embedding(ids).tanh())


def test_tied_weights_are_one_source(cache: Path) -> None:
    ids = torch.arange(7)
    counts: dict[bool, list[int]] = {}
    for is_tied in (True, False):
        torch.manual_seed(1)
        model = Tied(is_tied)
        artifact = built(model, (ids,), cache, weights="external", external_name="w.safetensors")
        counts[is_tied] = [len(artifact.programs[0].sources), len(artifact.external)]
        with torch.no_grad():
            np.testing.assert_allclose(run(artifact, [ids.numpy()])[0], model(ids).numpy(), rtol=1e-4, atol=1e-5)
    table = 512 * 128 * 4
    assert counts[True][0] == 1
    assert counts[False][0] == 2
    assert table <= counts[True][1] < table + 4096
    assert 2 * table <= counts[False][1]


def test_tied_through_views_and_buffers(cache: Path) -> None:
    """One table under two names, and read twice as it is, is stored once."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Parameter(torch.randn(64, 64))
            self.second = self.first
            self.register_buffer("third", self.first.detach())

        def forward(self, x: Any) -> Any:
            return x + self.first, x * self.second, x - self.third

    model, x = Net(), torch.randn(64, 64)
    artifact = built(model, (x,), cache)
    assert sum(artifact.sections[name] for name in ("weights",)) < 64 * 64 * 4 + 4096
    for mine, theirs in zip(run(artifact, [x.numpy()]), model(x), strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy())


def test_lifted_constants(cache: Path, tmp_path: Path) -> None:
    """Tensors made in forward, and attributes that are neither parameters nor buffers; through a file too."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.plain = torch.tensor([1.0, 2.0, 3.0])
            self.register_buffer("hidden", torch.tensor([4.0, 5.0, 6.0]), persistent=False)

        def forward(self, x: Any) -> Any:
            return x * torch.tensor([10.0, 20.0, 30.0]) + self.plain - self.hidden

    model, x = Net(), torch.randn(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (x,), strict=False)
        torch.export.save(program, tmp_path / "model.pt2")
    for source in (program, tmp_path / "model.pt2"):
        artifact = aot.compile(source, "cpu:x86-64-v3", cache_dir=str(cache))
        np.testing.assert_allclose(run(artifact, [x.numpy()])[0], model(x).numpy(), rtol=1e-6)


def test_inputs_of_other_kinds_are_refused_by_name(cache: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.ops.aten._fft_r2c(x, [0], 0, False)

    with pytest.raises(UnsupportedError, match="complex"):
        built(Net(), (torch.randn(4),), cache)
