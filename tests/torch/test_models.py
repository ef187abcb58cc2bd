"""Models of timm, transformers and torch through torch.export: a fixed part, and with AOT_MODELS=all every one.

They are compared as benchmarks/torch_models.py compares them, which writes docs/torch_models.md.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

import aot
from aot.runtime import target_supported
from benchmarks import torch_agreement, torch_definitions, torch_models
from benchmarks.torch_definitions import Definition, LlamaSizes

TARGET = "cpu:x86-64-v4" if target_supported("cpu:x86-64-v4") else "cpu:x86-64-v3"


def _small_image_model(name: str) -> torch.nn.Module:
    """A model of timm's classes with each kind of layer, in less depth than the published ones."""
    with torch_definitions._torchvision():
        from timm.models.levit import Levit
        from timm.models.regnet import RegNet, RegNetCfg
    torch.manual_seed(0)
    if name == "regnet":  # four stages of 24 to 368 channels, grouped convolutions, squeeze and excitation
        model = RegNet(RegNetCfg(depth=6, w0=24, wa=60, wm=2.49, group_size=8, se_ratio=0.25), num_classes=10)
    else:
        model = Levit(SIDE, num_classes=10, embed_dim=(32, 48, 64), key_dim=16, num_heads=(2, 3, 4), depth=(1, 1, 1))
    return torch_definitions.settle(model.eval(), torch_definitions._images(SIDE, 4, 1))


SIDE = 96
SMALL = {
    f"small {name}": Definition(
        f"small {name}", partial(_small_image_model, name), partial(torch_definitions._images, SIDE), needs="timm"
    )
    for name in ("regnet", "levit")
}

# One of each kind: convolutions, window attention, grouped heads, experts, biased attention, an encoder with a
# decoder, a state space, two inputs, a recurrence.
FIXED = (
    *SMALL, "transformers:deberta-v2", "transformers:gemma2", "transformers:mixtral",
    "transformers:bart", "transformers:mamba2", "transformers:wav2vec2", "transformers:clip", "torch:LSTM",
    "mlp12x512_b256",
)  # fmt: skip
DEFINITIONS = {each.name: each for each in (*torch_definitions.models(), *torch_definitions.fourteen())} | SMALL
CHOSEN = tuple(DEFINITIONS) if os.environ.get("AOT_MODELS") == "all" else FIXED


@pytest.mark.zoo
@pytest.mark.parametrize("name", CHOSEN)
def test_model_agrees_with_eager(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    definition = DEFINITIONS[name]
    if not definition.available:
        pytest.skip(f"needs {definition.needs}: pip install 'aotc[models]', and --no-deps timm")
    cache = tmp_path_factory.getbasetemp() / "kernels"
    row = torch_models.Trial(TARGET, cache, threads=2).examine(definition, "zoo")
    assert not row.failure, row.failure
    assert row.static is not None and row.static <= 1
    assert set(row.symbolic) == {"1", "2", "3", "5"} and max(row.symbolic.values()) <= 1, row.symbolic
    assert row.same_bits


@pytest.mark.parametrize("kept", [False, True], ids=["caches given", "caches kept"])
def test_decoding_steps(kept: bool, tmp_path: Path) -> None:
    sizes = LlamaSizes(1, 32, 4, 2, 64, 50, 16)
    definition = Definition(
        "llama", lambda: torch_definitions._llama(sizes, 2 if kept else 0),
        lambda batch, seed: torch_definitions._llama_inputs(sizes, kept, batch, seed),
    )  # fmt: skip
    module = definition.make()
    program = torch.export.export(module, definition.inputs(2, 0), strict=False)
    buffers = {name: value.numpy().copy() for name, value in module.named_buffers()}
    loaded = aot.compile(program, target=TARGET).load(threads=1)
    state = {name: array for name, array in buffers.items() if name in {each.name for each in loaded.inputs}}
    names = [each.name for each in loaded.inputs if each.name not in state]
    for step in (1, 2):
        inputs = definition.inputs(2, step)
        values = {name: tensor.numpy() for name, tensor in zip(names, inputs, strict=True)}
        found = loaded.run({**values, **state}, outputs=state)
        got = [found[each.name] for each in loaded.outputs if each.name not in state]
        want = torch_models.expected(module, inputs)
        assert torch_agreement.of_allowed(got, want, torch_agreement.allowed_error(program)) <= 1
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(state[name], buffer.numpy(), rtol=1e-5, atol=1e-5)
    assert bool(state) == kept


def test_forty_nine_and_fourteen() -> None:
    assert len(torch_definitions.models()) == 49
    assert len(torch_definitions.fourteen()) == 14
    assert len(torch_definitions.peers()) == 10
    assert set(FIXED) <= set(DEFINITIONS)


def test_depth_counts_ops_that_compute_floats() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            index = (x > 0).sum()  # no floats
            return torch.sin(torch.cos(x).reshape(-1)) + index, x.exp()

    program = torch.export.export(Model(), (torch.ones(2, 3),), strict=False)
    assert torch_agreement.depth(program) == 3
    assert torch_agreement.allowed_error(program) == pytest.approx(4 * 3 * 2**-23)


@pytest.mark.parametrize(
    ("got", "want", "worst"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.002], [1.0, 2.0], 1.0),
        ([0.0], [0.0], 0.0),
        ([1e-3], [0.0], float("inf")),
        ([float("nan")], [1.0], float("inf")),
        ([1.0], [float("nan")], float("inf")),
        ([[1.0]], [1.0], float("inf")),
    ],
)
def test_agreement_is_relative_to_the_largest_element(got: Any, want: Any, worst: float) -> None:
    arrays = [np.asarray(got, np.float64)], [np.asarray(want, np.float64)]
    found = torch_agreement.of_allowed(*arrays, 1e-3)
    assert found > 1 if worst == float("inf") else found == pytest.approx(worst)


def test_whole_numbers_and_types_must_be_equal() -> None:
    one, two = np.array([1]), np.array([2])
    assert torch_agreement.of_allowed([one], [one], 1.0) == 0
    assert torch_agreement.of_allowed([one], [two], 1.0) == float("inf")
    assert torch_agreement.of_allowed([one.astype(np.float32)], [one], 1.0) == float("inf")


def test_settled_weights_vary() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    torch.nn.init.zeros_(model[0].weight)
    images = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0)) * 50 + 7
    torch_definitions.settle(model, (images,))
    assert all(weight.min() != weight.max() for weight in model.parameters())
    with torch.no_grad():
        assert 0.3 < float(model(images).std()) < 3
    assert not any(part.training for part in model.modules())


def test_a_stand_in_for_torchvision_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from importlib import import_module

    monkeypatch.setattr(torch_definitions, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    before = list(sys.meta_path)
    with torch_definitions._torchvision():
        assert import_module("torchvision.transforms").Resize(3) is not None
        assert import_module("torchvision.transforms").InterpolationMode.BICUBIC == "BICUBIC"
    assert sys.meta_path == before
    assert not any(name.partition(".")[0] == "torchvision" for name in sys.modules)


def test_the_page_tells_what_differs() -> None:
    good = torch_models.Row("a", "zoo", "", 3, 2, 1, 10, 0.5, {"1": 0.25, "2": 0.5}, "batch", True, 1.0)
    bad = torch_models.Row("b", "zoo", "small", 3, 2, 1, 10, 0.5, {"1": 3.0}, "batch", True, 1.0)
    failed = torch_models.Row("c", "timed", "", failure="ModelError: a | b")
    assert [row.agrees for row in (good, bad, failed)] == [True, False, False]
    page = torch_models.page([good, bad, failed], {"date": "today"})
    assert "1 of 2 build and agree" in page and "0 of 1 build and agree" in page
    assert "DIFFERS: 3" in page and "ModelError: a \\| b" in page and "b (small)" in page
