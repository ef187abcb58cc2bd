"""Small models as artifacts that a GPU host can run: for every precision, as PTX, and for what has to fail there.

`python -m tests.cuda.models FOLDER [--cache DIRECTORY]` builds them; it needs torch and Triton, and no GPU.
`AOT_GPU_MODELS=FOLDER pytest -m gpu tests/cuda` runs them on a GPU, without Triton (tests/cuda/test_gpu_models.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import aot
from aot.backend.cuda import CudaBackend

EXACT, CPU = "cuda:sm_90a", "cpu:x86-64-v3"
TEXTS = ("cuda:compute_80", "cuda:compute_90")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
BATCHES = (1, 3, 33)
MOST = 64
WIDTH, LENGTH, HEADS = 64, 24, 4
HUGE_WIDTH, HUGE_ROWS = 65536, 2_000_000
"""Intermediate values of 65,536 columns and two million rows in 16 bits take 262 GB."""

_WAIT = "        tl.extra.cuda.gdc_wait()\n"
_TRAP = (
    "    tl.inline_asm_elementwise('trap; mov.u32 $0, $1;', '=r,r', [tl.program_id(0).to(tl.uint32)], dtype=tl.uint32, "
    "is_pure=False, pack=1)\n"
)


class Perceptron(nn.Module):  # type: ignore[misc]
    """Rows of WIDTH numbers to rows of 40."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(256)
        self.first, self.second, self.last = nn.Linear(WIDTH, 256), nn.Linear(256, 256), nn.Linear(256, 40)

    def forward(self, x: Any) -> Any:
        x = self.norm(nn.functional.gelu(self.first(x)))
        return self.last(nn.functional.silu(self.second(x)))


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block over LENGTH places."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.joined, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.joined(self.first(x)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.second(x))))


class Huge(nn.Module):  # type: ignore[misc]
    """Rows of 16 numbers to rows of 16, through HUGE_WIDTH columns."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, HUGE_WIDTH), nn.Linear(HUGE_WIDTH, 16)

    def forward(self, x: Any) -> Any:
        return self.down(torch.relu(self.up(x)))


class Kept(nn.Module):  # type: ignore[misc]
    """Puts a row into a cache that it keeps, and gives the sum of all rows."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(512, WIDTH))

    def forward(self, x: Any, place: Any) -> Any:
        self.cache.index_copy_(0, place, x)
        return self.cache.sum(0)


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron": (Perceptron, (WIDTH,)),
    "block": (Block, (LENGTH, WIDTH)),
}
"""The models that are compared, and the shape of a sample."""


def drawn(shape: Sequence[int], seed: int) -> Any:
    """f32: the inputs of both halves."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def exported(make: Callable[[], nn.Module], shape: Sequence[int], most: int = MOST) -> Any:
    """The program of a model with an open batch, and weights from a seed."""
    torch.manual_seed(0)
    model = make().eval()
    batch = torch.export.Dim("batch", min=1, max=most)
    with torch.no_grad():
        return torch.export.export(model, (torch.zeros(2, *shape),), dynamic_shapes=({0: batch},), strict=False)


def trapped(source: str) -> str:
    """A kernel's text that fails behind its wait."""
    if _WAIT not in source:
        raise ValueError("a kernel without a wait")
    return source.replace(_WAIT, _WAIT + _TRAP)


def build(folder: Path, cache: Path | None) -> None:
    """Writes every artifact; those that are compared hold a program for CPUs too."""
    folder.mkdir(parents=True, exist_ok=True)

    def write(name: str, program: Any, targets: Sequence[str], **options: Any) -> None:
        artifact = aot.compile(program, target=list(targets), cache_dir=cache, **options)
        artifact.save(folder / f"{name}.aot")
        print(f"{name}: {len(artifact.data) / 1e3:.0f} KB", flush=True)

    for name, (make, shape) in MODELS.items():
        program = exported(make, shape)
        for precision in PRECISIONS:
            write(f"{name}.{precision}", program, [EXACT, CPU], precision=precision)
        for target in TEXTS:
            write(f"{name}.{target.partition(':')[2]}", program, [target], precision="fp16")
    perceptron = exported(*MODELS["perceptron"])
    for target in ("sm_80", "sm_100a"):
        write(target, perceptron, [f"cuda:{target}"])
    write("huge", exported(Huge, (16,), 2 * HUGE_ROWS), [EXACT], precision="fp16")
    with torch.no_grad():
        kept = torch.export.export(Kept().eval(), (torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.int64)))
    write("kept", kept, [EXACT])
    plain = CudaBackend.build

    def failing(self: Any, sources: Sequence[tuple[str, str]], *rest: Any, **more: Any) -> Any:
        return plain(self, [(symbol, trapped(source)) for symbol, source in sources], *rest, **more)

    with mock.patch.object(CudaBackend, "build", failing):
        write("trap", perceptron, [EXACT])


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, help="of compiled kernels")
    chosen = parser.parse_args()
    build(chosen.folder, chosen.cache)


if __name__ == "__main__":
    main()
