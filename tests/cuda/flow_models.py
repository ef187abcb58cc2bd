"""Small models with control flow, sizes from data and host steps, for a GPU host: for it and for a CPU in one file.

`python -m tests.cuda.flow_models FOLDER [--cache DIRECTORY]` builds them; it needs torch, onnx and Triton, and no GPU.
`AOT_GPU_FLOWS=FOLDER pytest -m gpu tests/cuda/test_gpu_flows.py` runs them on a GPU, without these packages.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch
from torch import nn

import aot

EXACT, CPU = "cuda:sm_90a", "cpu:x86-64-v3"
HEAD = '<ir_version: 8, opset_import: ["" : 17]>'
TEXTS: Mapping[str, str] = {
    "nonzero": """g (float[n] x) => (int64[1,m] places, float[m] values, float total) {
        places = NonZero (x)
        rows = Transpose <perm = [1, 0]> (places)
        picked = GatherND (x, rows)
        values = Exp (picked)
        total = ReduceSum <keepdims = 0> (picked)
    }""",
    "sizes": """g (int64[3] s, float[n] x) => (float[a,b,c] y, float[n] z) {
        t = Neg (s)
        u = Abs (t)
        y = ConstantOfShape (u)
        z = Exp (x)
    }""",
    "loop": """g (float[n] x, float limit) => (float[n] y, float[t,n] rows, int64[t] numbers) <bool yes = {1}> {
        y, rows, numbers = Loop (, yes, x) <body = b (int64 i, bool ci, float[] a)
                => (bool co, float[] a1, float[] row, int64 k) {
            half = Constant <value = float {0.75}> ()
            a1 = Mul (a, half)
            size = Abs (a1)
            most = ReduceMax <keepdims = 0> (size)
            co = Greater (most, limit)
            row = Exp (a1)
            k = Identity (i)
        }>
    }""",
    "trips": """g (float[n] x, int64 M) => (float[n] y) <bool yes = {1}> {
        y = Loop (M, yes, x) <body = b (int64 i, bool ci, float[] a) => (bool co, float[] a1) {
            co = Identity (ci)
            k = Cast <to = 1> (i)
            s = Sin (a)
            a1 = Add (s, k)
        }>
    }""",
    "branch": """g (float[n] x) => (float[m] y) {
        zero = Constant <value = float {0}> ()
        s = ReduceSum <keepdims = 0> (x)
        c = Greater (s, zero)
        y = If (c) <
            then_branch = a () => (float[p] p) { p = Exp (x) },
            else_branch = b () => (float[q] q) { e = Neg (x) q = Concat <axis = 0> (x, e) }
        >
    }""",
}


class Host(nn.Module):  # type: ignore[misc]
    """Eigenvalues between two kernels: no GPU has one for them."""

    def forward(self, x: Any, w: Any) -> Any:
        e = torch.tanh(x)
        return torch.linalg.eigvalsh(e + e.transpose(1, 2)).sum(1) + w, e


class Kept(nn.Module):  # type: ignore[misc]
    """Adds to what it keeps, and gives what is above zero of it."""

    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(64))

    def forward(self, x: Any) -> Any:
        self.cache.add_(x)
        return self.cache[self.cache > 0]


def build(folder: Path, cache: Path | None, targets: Sequence[str] = (EXACT, CPU)) -> None:
    """Writes every artifact."""
    folder.mkdir(parents=True, exist_ok=True)
    models: dict[str, Any] = {
        name: onnx.parser.parse_model(f"{HEAD}\n{text}").SerializeToString() for name, text in TEXTS.items()
    }
    with torch.no_grad():
        open_batch = {0: torch.export.Dim("b", min=1, max=100)}
        models["host"] = torch.export.export(
            Host().eval(), (torch.zeros(2, 3, 3), torch.zeros(2)), dynamic_shapes=(open_batch, open_batch), strict=False
        )
        models["kept"] = torch.export.export(Kept().eval(), (torch.zeros(64),), strict=False)
    for name, model in models.items():
        artifact = aot.compile(model, target=list(targets), cache_dir=cache)
        artifact.save(folder / f"{name}.aot")
        steps = ", ".join(step.op for step in artifact.programs[0].host_steps)
        print(f"{name}: {len(artifact.data) / 1e3:.0f} KB{', host steps: ' if steps else ''}{steps}", flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path, help="of compiled kernels")
    chosen = parser.parse_args()
    build(chosen.folder, chosen.cache)


if __name__ == "__main__":
    main()
