"""Programs of a GPU made by hand, whose kernels the simulated driver (runtime/tests/fake_cuda.cpp) knows by name.

`python -m tests.runtime.cuda_programs FILE` writes the artifact that runtime/tests/cuda_test.cpp runs.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aot import dtypes, recipe
from aot.artifacts import Artifact
from aot.dims import Dim, Symbol
from aot.ir import Array, TensorType, const_of
from aot.program import (
    Argument,
    Buffer,
    Constant,
    Guard,
    GuardKind,
    Image,
    KernelCode,
    Port,
    Program,
    Source,
    Space,
    Step,
    StepResult,
)

MOST = 4096
THREADS = 128
N = Symbol("n", 0, MOST)


def weight() -> Array:
    """f32 [MOST]: small fractions."""
    return ((np.arange(MOST) % 37 - 18) / 8).astype(np.float32)


def grid(n: Dim) -> tuple[Dim, Dim, Dim]:
    return ((n + (THREADS - 1)) // THREADS, 1, 1)


def program(target: str = "cuda:sm_90a", capability: int = 90, variant: str = "", n: Dim = N.dim) -> Program:
    """next = (x + w) + cache and y = next + (x + w), for n elements; cache and next are state.

    Four launches: an addition of a weight into the arena, one of state, a copy that takes a 64-bit size, and one that
    asks for scratch memory and 64 KiB of shared memory.
    """
    symbols = () if isinstance(n, int) else (N,)
    guards = [Guard(GuardKind.EQUAL, 0, 0, expected=n), Guard(GuardKind.EQUAL, 1, 0, expected=n)]
    if symbols:
        guards[0] = Guard(GuardKind.BIND, 0, 0, symbol=0, lo=0, hi=MOST)
    port = TensorType(dtypes.F32, (n,))

    def result(argument: int, name: str) -> tuple[StepResult, ...]:
        return (StepResult(argument, name, dtypes.F32, (n,), (1,)),)

    image = f"FAKE {capability} k_add_first k_add_state k_copy k_addscratch_last\0".encode()
    names = ("k_add_first", "k_add_state", "k_copy", "k_addscratch_last")
    locs = ("layer/Add", "layer/Cache", "layer/Identity", "layer/Sum")
    images = [Image(0, len(image), THREADS) for _ in names]
    images[2] = replace(images[2], wide_integers=1)
    images[3] = replace(images[3], scratch_bytes=128, shared_bytes=64 << 10)
    return Program(
        target=target,
        variant=variant,
        symbols=symbols,
        inputs=(Port("x", port), Port("cache", port)),
        outputs=(Port("y", port), Port("next", port)),
        state=((1, 1),),
        guards=tuple(guards),
        sources=(Source("layer.weight", const_of(weight(), "layer.weight")),),
        constants=(Constant("layer.weight", dtypes.F32.number, (MOST,), (recipe.source(0),)),),
        buffers=(
            Buffer(Space.INPUT, 0, n * 4, name="x"),
            Buffer(Space.INPUT, 1, n * 4, name="cache"),
            Buffer(Space.CONST, 0, MOST * 4, name="w"),
            Buffer(Space.ARENA, 0, n * 4, first_step=0, last_step=3, name="sum"),
            Buffer(Space.ARENA, 0, n * 4, below=(3,), first_step=2, last_step=3, name="copied"),
            Buffer(Space.OUTPUT, 0, n * 4, name="y"),
            Buffer(Space.OUTPUT, 1, n * 4, name="next"),
        ),
        kernels=tuple(
            KernelCode(name, "MAP", name.removeprefix("k_"), (loc,), "", "", image)
            for name, loc, image in zip(names, locs, images, strict=True)
        ),
        steps=(
            Step(
                0, (Argument(0), Argument(2), Argument(3)), (n,), locs=locs[:1], grid=grid(n), results=result(2, "sum")
            ),
            Step(
                1,
                (Argument(3), Argument(1), Argument(6)),
                (n,),
                locs=locs[1:2],
                grid=grid(n),
                results=result(2, "next"),
            ),
            Step(2, (Argument(6), Argument(4)), (n * 4,), locs=locs[2:3], grid=grid(n), results=result(1, "")),
            Step(3, (Argument(4), Argument(3), Argument(5)), (n,), locs=locs[3:], grid=grid(n), results=result(2, "y")),
        ),
        code=image,
    )


def expected(x: Array, cache: Array) -> tuple[Array, Array]:
    """(y, next)"""
    total = x + weight()[: len(x)]
    return total + cache + total, total + cache


def artifact(*programs: Program, **options: Any) -> Artifact:
    """An artifact of the programs, or of one for n=8 and one for every n."""
    found = programs or (program(variant="n=8", n=8), program())
    return Artifact.build(found, meta={"compiler": "handmade"}, debug={"graph": "handmade"}, **options)


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(artifact().data)
