"""State: caches as changed buffers, as changed inputs and as results, updated in place, compared with eager."""

from __future__ import annotations

import ctypes
import mmap
import threading
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.artifacts import Artifact
from aot.errors import GuardError
from aot.program import Program, Space

pytest.importorskip("torch")
import torch

HEADS, KEYS, WIDTH, LENGTH, VOCABULARY = 4, 2, 8, 64, 31
TOLERANCE: Any = {"rtol": 2e-4, "atol": 2e-5}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def exported(model: Any, arguments: tuple[Any, ...], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model.eval(), arguments, strict=False, **options)


def built(model: Any, arguments: tuple[Any, ...], cache: Path, **options: Any) -> Artifact:
    return aot.compile(exported(model, arguments, **options), "cpu:x86-64-v3", cache_dir=str(cache))


def arena_bytes(program: Program) -> int:
    assert isinstance(program.peak_bytes, int)
    return program.peak_bytes


def touched(program: Program, name: str) -> list[str]:
    """The kinds of the kernels that read or write the memory of a state input or its output."""
    kept = next(n for n, port in enumerate(program.inputs) if port.name == name)
    new = dict(program.state)[kept]
    own = {
        number
        for number, buffer in enumerate(program.buffers)
        if (buffer.space, buffer.index) in ((Space.INPUT, kept), (Space.OUTPUT, new))
    }
    return [
        program.kernels[step.kernel].kind
        for step in program.steps
        if any(argument.buffer in own for argument in step.arguments)
    ]


class Decoder(torch.nn.Module):
    """A decoder of one token at a time whose caches are in one of several forms."""

    def __init__(self, form: str, batch: int, layers: int = 2) -> None:
        super().__init__()
        width = HEADS * WIDTH
        self.form = form
        self.embedding = torch.nn.Embedding(VOCABULARY, width)
        self.parts = torch.nn.ModuleList(
            torch.nn.ModuleDict(
                {
                    "norm": torch.nn.RMSNorm(width),
                    "q": torch.nn.Linear(width, width, bias=False),
                    "kv": torch.nn.Linear(width, 2 * KEYS * WIDTH, bias=False),
                    "out": torch.nn.Linear(width, width, bias=False),
                }
            )
            for _ in range(layers)
        )
        shape = (batch, KEYS, LENGTH, WIDTH)
        for layer in range(layers if form.startswith("buffer") else 0):
            self.register_buffer(f"k{layer}", torch.zeros(shape))
            self.register_buffer(f"v{layer}", torch.zeros(shape))
        if form == "stacked":
            self.register_buffer("caches", torch.zeros(layers, 2, *shape))

    def update(self, layer: int, position: Any, k: Any, v: Any, caches: Any) -> tuple[Any, Any]:
        if self.form == "stacked":
            self.caches[layer, 0, :, :, position] = k
            self.caches[layer, 1, :, :, position] = v
            return self.caches[layer, 0], self.caches[layer, 1]
        if self.form == "returned":
            return caches[2 * layer].index_copy(2, position, k), caches[2 * layer + 1].index_copy(2, position, v)
        if self.form == "input":
            kept = (caches[2 * layer], caches[2 * layer + 1])
        else:
            kept = (getattr(self, f"k{layer}"), getattr(self, f"v{layer}"))
        for held, new in zip(kept, (k, v), strict=True):
            if self.form == "buffer put":
                held[:, :, position] = new
            elif self.form == "buffer rows":
                held[torch.arange(held.shape[0])[:, None], :, position] = new.transpose(1, 2)
            else:
                held.index_copy_(2, position, new)
        return kept

    def forward(self, ids: Any, position: Any, *caches: Any) -> Any:
        x = self.embedding(ids)
        batch = x.shape[0]
        seen = torch.arange(LENGTH) <= position
        results: list[Any] = []
        for layer, part in enumerate(self.parts):
            y = part["norm"](x)
            q = part["q"](y).view(batch, 1, HEADS, WIDTH).transpose(1, 2)
            k, v = part["kv"](y).view(batch, 1, 2 * KEYS, WIDTH).transpose(1, 2).split(KEYS, dim=1)
            keys, values = self.update(layer, position, k, v, caches)
            results.extend((keys, values))
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, keys, values, attn_mask=seen[None, None, None], enable_gqa=True
            )
            x = x + part["out"](mixed.transpose(1, 2).reshape(batch, 1, HEADS * WIDTH))
        logits = x @ self.embedding.weight.T
        return (logits, *results) if self.form == "returned" else logits


FORMS = ("buffer copy", "buffer put", "buffer rows", "stacked", "input", "returned")


def own_caches(form: str, batch: int) -> list[Any]:
    """The caches that the caller gives."""
    return [torch.zeros(batch, KEYS, LENGTH, WIDTH) for _ in range(4)] if form in ("input", "returned") else []


@lru_cache
def decoder(form: str, batch: int, cache: Path) -> tuple[Any, Artifact]:
    torch.manual_seed(len(form) + batch)
    model = Decoder(form, batch)
    arguments = (torch.zeros(batch, 1, dtype=torch.int64), torch.tensor([0]), *own_caches(form, batch))
    return model, built(model, arguments, cache)


def decode(form: str, batch: int, cache: Path, threads: int, tokens: int = 50) -> None:
    model, artifact = decoder(form, batch, cache)
    caches = own_caches(form, batch)
    (program,) = artifact.programs
    compiled = artifact.load(threads=threads)
    states = []
    for _ in range(2):  # two conversations at once
        state = compiled.new_state()
        state |= {pair.input: np.zeros((batch, KEYS, LENGTH, WIDTH), "f4") for pair in compiled.state[len(state) :]}
        states.append(state)
    assert sum(array.nbytes for array in states[0].values()) == 4 * batch * KEYS * LENGTH * WIDTH * 4
    assert arena_bytes(program) < next(iter(states[0].values())).nbytes, "a cache is copied"
    eager_states = [[c.clone() for c in caches] for _ in states]
    buffers = [{name: value.clone() for name, value in model.named_buffers()} for _ in states]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for number in range(tokens):
            for state, eager, held in zip(states, eager_states, buffers, strict=True):
                ids = torch.randint(0, VOCABULARY, (batch, 1), generator=generator)
                position = torch.tensor([number])
                for name, value in model.named_buffers():
                    value.copy_(held[name])
                wanted = model(ids, position, *eager)
                for name, value in model.named_buffers():
                    held[name].copy_(value)
                if form == "returned":
                    wanted, *eager[:] = wanted
                addresses = {name: array.ctypes.data for name, array in state.items()}
                found = compiled.run({"ids": ids.numpy(), "position": position.numpy()}, state=state)
                assert {name: array.ctypes.data for name, array in state.items()} == addresses
                (logits,) = found.values()
                np.testing.assert_allclose(logits, wanted.numpy(), **TOLERANCE)
    for state, eager, held in zip(states, eager_states, buffers, strict=True):
        for array, tensor in zip(state.values(), (*held.values(), *eager), strict=True):
            np.testing.assert_allclose(array, tensor.numpy(), **TOLERANCE)


@pytest.mark.parametrize("form", FORMS)
def test_a_loop_of_tokens_agrees_with_eager(form: str, cache: Path) -> None:
    decode(form, 1, cache, threads=1)
    decode(form, 1, cache, threads=2)


@pytest.mark.parametrize("form", ["buffer rows", "returned"])
def test_a_batch_agrees_with_eager(form: str, cache: Path) -> None:
    decode(form, 3, cache, threads=1)
    decode(form, 3, cache, threads=2)


@pytest.mark.parametrize("form", FORMS)
def test_no_kernel_copies_a_cache(form: str, cache: Path) -> None:
    (program,) = decoder(form, 1, cache)[1].programs
    for kept, _ in program.state:
        kinds = touched(program, program.inputs[kept].name)
        assert set(kinds) == {"scatter", "attend"}, kinds
    moved = [step.bytes_moved for kernel, step in program.launches if kernel.kind == "scatter"]
    assert all(isinstance(count, int) and count <= 3 * KEYS * WIDTH * 8 for count in moved), moved


class Wide(torch.nn.Module):
    """A cache whose rows are pages of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(1, 1, 64, 1024))

    def forward(self, position: Any, row: Any) -> Any:
        self.kept.index_copy_(2, position, row)
        return self.kept.sum(-1)


class WideResult(torch.nn.Module):
    """The same, given back."""

    def forward(self, kept: Any, position: Any, row: Any) -> Any:
        new = kept.index_copy(2, position, row)
        return new.sum(-1), new


def pages(count: int) -> tuple[Any, Any]:
    """Memory of whole pages as an array of rows of 1,024 floats, and a function that forbids writes to a row."""
    memory = mmap.mmap(-1, count * 4096)
    array = np.frombuffer(memory, "f4").reshape(1, 1, count, 1024)
    library = ctypes.CDLL(None, use_errno=True)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

    def protect(row: int, forbid: bool) -> None:
        assert library.mprotect(array.ctypes.data + row * 4096, 4096, 1 if forbid else 3) == 0

    return array, protect


@pytest.mark.parametrize("threads", [1, 2])
def test_only_the_row_is_written(threads: int, cache: Path) -> None:
    """Writing to any other row of the cache would end the process."""
    held, arguments = torch.zeros(1, 1, 64, 1024), (torch.tensor([5]), torch.ones(1, 1, 1, 1024))
    for model, given in ((Wide(), arguments), (WideResult(), (held, *arguments))):
        compiled = built(model, given, cache).load(threads=threads)
        array, protect = pages(64)
        array[:] = np.arange(64, dtype="f4")[:, None]
        for row in range(64):
            protect(row, row != 7)
        inputs = {"position": np.array([7]), "row": np.full((1, 1, 1, 1024), 3, "f4")}
        found = compiled.run(inputs, state={"kept": array})
        wanted = np.arange(64, dtype="f4")
        wanted[7] = 3
        np.testing.assert_array_equal(array[0, 0, :, 0], wanted)
        np.testing.assert_array_equal(found["output_0"][0, 0], wanted * 1024)
        for row in range(64):
            protect(row, False)


def test_two_pieces_of_memory_are_right_too(cache: Path) -> None:
    held, arguments = torch.zeros(1, 1, 64, 1024), (torch.tensor([5]), torch.ones(1, 1, 1, 1024))
    compiled = built(WideResult(), (held, *arguments), cache).load(threads=2)
    before = np.random.default_rng(1).standard_normal((1, 1, 64, 1024)).astype("f4")
    given = {"kept": before.copy(), "position": np.array([9]), "row": np.full((1, 1, 1, 1024), 3, "f4")}
    wanted = before.copy()
    wanted[:, :, 9] = 3
    for outputs in (None, {"output_1": np.full_like(before, np.nan)}):
        found = compiled.run(given, outputs=outputs)
        np.testing.assert_array_equal(found["output_1"], wanted)
        np.testing.assert_array_equal(given["kept"], before)
        np.testing.assert_allclose(found["output_0"], wanted.sum(-1), rtol=1e-4, atol=1e-3)


def test_memory_that_overlaps_in_part_is_refused(cache: Path) -> None:
    held, arguments = torch.zeros(1, 1, 64, 1024), (torch.tensor([5]), torch.ones(1, 1, 1, 1024))
    compiled = built(WideResult(), (held, *arguments), cache).load()
    memory = np.zeros(65 * 1024, "f4")
    first, second = (memory[start : start + 64 * 1024].reshape(1, 1, 64, 1024) for start in (0, 1024))
    with pytest.raises(GuardError, match="overlaps"):
        compiled.run(
            {"kept": first, "position": np.array([1]), "row": np.ones((1, 1, 1, 1024), "f4")},
            outputs={"output_1": second},
        )


class Statistics(torch.nn.Module):
    """Buffers that are read before and after they change, exchanged, shifted and counted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(8.0))
        self.register_buffer("other", torch.arange(8.0) + 100)
        self.register_buffer("recent", torch.zeros(4, 8))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("flags", torch.ones(5, dtype=torch.bool))

    def forward(self, x: Any) -> Any:
        before, old = self.mean.sum(), self.mean.clone()
        self.mean.copy_(torch.roll(self.other, 1) + x)
        self.other.copy_(torch.roll(old, 1) - x)
        self.recent.copy_(torch.cat([self.recent[1:], x[None]]))
        self.count += 1
        self.flags.logical_not_()
        return before, self.mean + self.other, self.recent.mean(0) * self.count, self.flags


@pytest.mark.parametrize("threads", [1, 2])
def test_state_that_no_order_keeps_is_copied_last(threads: int, cache: Path) -> None:
    model = Statistics()
    artifact = built(model, (torch.ones(8),), cache)
    compiled = artifact.load(threads=threads)
    assert [(pair.input, pair.output, pair.has_initial) for pair in compiled.state] == [
        (name, name, True) for name in ("mean", "other", "recent", "count", "flags")
    ]
    state = compiled.new_state()
    for name, value in model.named_buffers():
        np.testing.assert_array_equal(state[name], value.numpy())
    for number in range(6):
        x = torch.full((8,), float(number))
        wanted = model(x)
        # In place, and once into memory of its own.
        apart = compiled.run({"x": x.numpy(), **{name: array.copy() for name, array in state.items()}})
        found = compiled.run({"x": x.numpy()}, state=state)
        for mine, theirs in zip(found.values(), wanted, strict=True):
            np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-6)
        for name, value in model.named_buffers():
            np.testing.assert_allclose(state[name], value.numpy(), rtol=1e-6)
            np.testing.assert_array_equal(apart[name], state[name])


class Slices(torch.nn.Module):
    """A cache with rows assigned at fixed places, twice, and in a layer of a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(2, 16, 4))
        self.register_buffer("stack", torch.randn(3, 2, 16, 4))

    def forward(self, x: Any, position: Any) -> Any:
        self.kept[:, 3:5] = x[:, :2]
        self.kept[:, 9] = x[:, 2]
        self.kept[:, 1:16:5] = x
        y = self.kept.sum(1, keepdim=True)
        for layer in range(3):
            self.stack[layer][:, position] = x[:, :1] + y
            self.stack[layer, :1, 2:4] = x[:1, 1:3]
            y = y + self.stack[layer].sum(1, keepdim=True)
        return y


def test_assigned_slices_write_in_place(cache: Path) -> None:
    torch.manual_seed(2)
    model = Slices()
    arguments = (torch.randn(2, 3, 4), torch.tensor([5]))
    artifact = built(model, arguments, cache)
    (program,) = artifact.programs
    for name in ("kept", "stack"):
        assert set(touched(program, name)) <= {"scatter", "reduce"}
    assert arena_bytes(program) < 2 * 16 * 4 * 4
    compiled = artifact.load(threads=2)
    state = compiled.new_state()
    for number in range(4):
        x, position = torch.randn(2, 3, 4), torch.tensor([number * 3])
        wanted = model(x, position)
        (found,) = compiled.run({"x": x.numpy(), "position": position.numpy()}, state=state).values()
        np.testing.assert_allclose(found, wanted.numpy(), **TOLERANCE)
        for name, value in model.named_buffers():
            np.testing.assert_allclose(state[name], value.numpy(), **TOLERANCE)


def test_initial_values_are_small_where_they_are_all_one_value(cache: Path) -> None:
    class Large(torch.nn.Module):
        def __init__(self, fill: float, ramp: bool) -> None:
            super().__init__()
            self.register_buffer("kept", torch.arange(1 << 18).float() if ramp else torch.full((1 << 18,), fill))

        def forward(self, x: Any) -> Any:
            self.kept[:1] = x
            return self.kept[:2] + 1

    for fill, ramp in ((0.0, False), (-2.5, False), (0.0, True)):
        for weights in ("embedded", "external", "none"):
            model = Large(fill, ramp)
            artifact = aot.compile(
                exported(model, (torch.ones(1),)), "cpu:x86-64-v3", cache_dir=str(cache), weights=weights,
                external_name="w.safetensors",
            )  # fmt: skip
            size = artifact.size_bytes + len(artifact.external)
            assert (size > 1 << 20) == (ramp and weights != "none")
            given = {"kept": model.kept.numpy()} if weights == "none" and ramp else None
            compiled = artifact.load(**({"weights": given} if given else {}))
            np.testing.assert_array_equal(compiled.new_state()["kept"], model.kept.numpy())


def test_state_survives_a_file_and_a_flow(cache: Path, tmp_path: Path) -> None:
    """The same through a .pt2 file, with control flow on data around the update."""

    class Guarded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.ones(6, 2))

        def forward(self, x: Any, position: Any) -> Any:
            self.kept.index_copy_(0, position, x)
            return torch.cond(self.kept.sum() > 14, lambda k: k * 2, lambda k: k - 1, (self.kept.clone(),))

    model = Guarded()
    torch.export.save(exported(model, (torch.ones(1, 2), torch.tensor([1]))), tmp_path / "model.pt2")
    artifact = aot.compile(tmp_path / "model.pt2", "cpu:x86-64-v3", cache_dir=str(cache))
    assert artifact.programs[0].flow is not None
    artifact.save(tmp_path / "model.aot")
    compiled = aot.load(tmp_path / "model.aot")
    state = compiled.new_state()
    for number in range(4):
        x, position = torch.full((1, 2), float(number)), torch.tensor([number])
        wanted = model(x, position)
        (found,) = compiled.run({"x": x.numpy(), "position": position.numpy()}, state=state).values()
        np.testing.assert_allclose(found, wanted.numpy())
        np.testing.assert_array_equal(state["kept"], model.kept.numpy())


def test_a_symbolic_batch_keeps_state(cache: Path) -> None:
    class Net(torch.nn.Module):
        def forward(self, kept: Any, position: Any, row: Any) -> Any:
            new = kept.index_copy(1, position, row)
            return (new * 2).sum(), new

    batch = torch.export.Dim("batch", min=1, max=16)
    arguments = (torch.randn(3, 8, 4), torch.tensor([2]), torch.randn(3, 1, 4))
    shapes = {"kept": {0: batch}, "position": None, "row": {0: batch}}
    artifact = built(Net(), arguments, cache, dynamic_shapes=shapes)
    compiled = artifact.load()
    assert [(pair.input, pair.output) for pair in compiled.state] == [("kept", "output_1")]
    assert compiled.new_state() == {}
    for size in (1, 2, 5):
        kept, row = np.random.default_rng(size).standard_normal((size, 8, 4)).astype("f4"), np.ones((size, 1, 4), "f4")
        wanted = kept.copy()
        wanted[:, 6] = 1
        compiled.run({"position": np.array([6]), "row": row}, state={"kept": kept})
        np.testing.assert_array_equal(kept, wanted)


def test_wrong_state_is_refused_by_name(cache: Path) -> None:
    compiled = built(Wide(), (torch.tensor([5]), torch.ones(1, 1, 1, 1024)), cache).load()
    inputs = {"position": np.array([7]), "row": np.ones((1, 1, 1, 1024), "f4")}
    state = compiled.new_state()
    with pytest.raises(GuardError, match="unknown state 'row'"):
        compiled.run({"position": inputs["position"]}, state={**state, "row": inputs["row"]})
    with pytest.raises(GuardError, match="given in state as well"):
        compiled.run({**inputs, **state}, state=state)
    with pytest.raises(GuardError, match="kept"):
        compiled.run(inputs, state={"kept": state["kept"][:, :, :60]})
    with pytest.raises(GuardError, match="kept"):
        compiled.run(inputs, state={"kept": state["kept"].astype("f8")})
    locked = state["kept"].copy()
    locked.flags.writeable = False
    with pytest.raises(GuardError, match="read-only"):
        compiled.run(inputs, state={"kept": locked})


def test_threads_run_conversations_of_their_own(cache: Path) -> None:
    compiled = decoder("buffer copy", 1, cache)[1].load(threads=1)
    tokens = [[(seed * 7 + number * 3) % VOCABULARY for number in range(30)] for seed in range(4)]

    def talk(words: list[int], found: list[Any]) -> None:
        state = compiled.new_state()
        for number, word in enumerate(words):
            found.extend(
                compiled.run({"ids": np.array([[word]]), "position": np.array([number])}, state=state).values()
            )

    alone: list[list[Any]] = [[] for _ in tokens]
    together: list[list[Any]] = [[] for _ in tokens]
    for words, found in zip(tokens, alone, strict=True):
        talk(words, found)
    workers = [threading.Thread(target=talk, args=pair) for pair in zip(tokens, together, strict=True)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for one, other in zip(alone, together, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


class Rescaled(torch.nn.Module):
    """Changes a parameter in every run."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([1.0, 2.0, 4.0]), requires_grad=False)

    def forward(self, x: Any) -> Any:
        self.weight.div_(2)
        return x * self.weight


def test_changed_parameters_are_state(cache: Path) -> None:
    module = Rescaled()
    model = built(module, (torch.ones(3),), cache).load(threads=1)
    assert [pair.input for pair in model.state] == ["weight"]
    state = model.new_state()
    np.testing.assert_array_equal(state["weight"], [1, 2, 4])
    for run in range(3):
        (mine,) = model.run({"x": torch.full((3,), 3.0)}, state=state).values()
        np.testing.assert_array_equal(mine, module(torch.full((3,), 3.0)), err_msg=str(run))
