"""Torch models of small widths for CUDA: how many kernels they are, and their outputs under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the CUDA backend compiles with Triton, which is not installed")
pytest.importorskip("torch", reason="the models are PyTorch's")

import torch
from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from aot import frontend
from aot.backend.cuda import CudaBackend
from aot.ir import Graph
from aot.passes import Context, PassManager
from aot.pipeline import CORE_PASSES, TARGET_PASSES
from benchmarks import torch_definitions
from benchmarks.torch_definitions import LlamaSizes
from tests.cuda.test_joined import launches
from tests.cuda.test_precision import ordered, run

WIDTH, HEADS, TOKENS = 32, 2, 7


class Bert(nn.Module):
    """A layer of BERT: three linear layers with biases, norms behind the residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any, mask: Any) -> Any:
        q, k, v = (
            layer(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        x = self.first(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
        return self.second(x + self.down(gelu(self.up(x))))


class Vit(nn.Module):
    """A layer of a vision transformer as timm writes it: queries, keys and values by one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.first(x)).reshape(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.out(scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))
        return x + self.down(gelu(self.up(self.second(x))))


def normal(*shape: int) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def bert() -> tuple[Any, tuple[Any, ...]]:
    return Bert(), (normal(2, TOKENS, WIDTH), torch.arange(TOKENS)[None] < torch.tensor([[TOKENS], [4]]))


def vit() -> tuple[Any, tuple[Any, ...]]:
    return Vit(), (normal(2, TOKENS, WIDTH),)


def llama(kept: bool) -> tuple[Any, tuple[Any, ...]]:
    sizes = LlamaSizes(2, 32, 4, 2, 64, 50, 16)
    return torch_definitions._llama(sizes, 1 if kept else 0), torch_definitions._llama_inputs(sizes, kept, 1, 3)


MODELS: dict[str, tuple[Callable[[], tuple[Any, tuple[Any, ...]]], int, int]] = {
    "bert": (bert, 9, 7),
    "vit": (vit, 7, 7),
    "llama": (lambda: llama(False), 38, 28),
    "llama with its caches": (lambda: llama(True), 34, 24),
}  # fmt: skip
"""Each model with its kernels: of products apart, and joined."""


class Apart(CudaBackend):
    """The backend, where products stay apart."""

    joins_products = False


def imported(module: Any, inputs: tuple[Any, ...]) -> Graph:
    with torch.no_grad():
        program = torch.export.export(module.eval(), inputs, strict=False)
    ((_, graph),), _ = frontend.load_variants(program)
    return graph


@pytest.mark.parametrize("name", MODELS)
def test_kernels_and_outputs(name: str) -> None:
    make, apart, joined = MODELS[name]
    torch.manual_seed(0)
    module, inputs = make()
    graph = imported(module, inputs)
    planned, context = ordered(graph, "fp32")
    held = {key: buffer.numpy().copy() for key, buffer in module.named_buffers()}
    with torch.no_grad():
        wanted = module(*inputs)
    wanted = [value.numpy() for value in (wanted if isinstance(wanted, tuple) else (wanted,))]
    given = iter(inputs)
    arrays = [held[value.name] if value.name in held else next(given).numpy() for value in planned.inputs]
    found, _ = run(planned, context, arrays)
    for got, want in zip(found[len(found) - len(wanted) :], wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    assert len(launches(planned)) == joined
    plain = Context(target=context.target, backend=Apart())
    assert len(launches(PassManager((*CORE_PASSES, *TARGET_PASSES), plain).run(graph))) == apart
