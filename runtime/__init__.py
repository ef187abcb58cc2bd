"""The serving side: loads artifacts and runs them. Needs no compiler package, and numpy only when it runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from aot.runtime._library import prefix
from aot.runtime._machine import Machine, target_rank, this_machine
from aot.runtime._model import Model
from aot.runtime._specs import DimSpec, ProgramSpec, StateSpec, Statistics, TensorSpec, TraceStep, TraceTensor

if TYPE_CHECKING:
    from aot.runtime.keys import Key

__all__ = [
    "DimSpec",
    "Machine",
    "Model",
    "ProgramSpec",
    "StateSpec",
    "Statistics",
    "TensorSpec",
    "TraceStep",
    "TraceTensor",
    "load",
    "prefix",
    "target_rank",
    "target_supported",
    "this_machine",
]


def load(
    artifact: str | os.PathLike[str] | bytes | bytearray | memoryview,
    *,
    threads: int | None = None,
    target: str | None = None,
    weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    verify_weights: bool = True,
    map_weights: bool = False,
    share_weights: bool = True,
    trusted_keys: Key | Iterable[Key] | None = None,
    plan_cache_size: int = 8,
    temporary_directory: str | os.PathLike[str] | None = None,
    device: int = 0,
    context: int | None = None,
    graphs: bool = True,
    early_start: bool = True,
    poison: bool = False,
) -> Model:
    """Loads an artifact from a path or from its bytes.

    `threads`: how many a run uses, unless it has too little to do; by default the CPUs that this process may use.
    `target`: run this target's code; by default what fits this machine best.
    `weights`: for artifacts built without them, the arrays by name, or the path of the external file.
    `verify_weights`: refuse weights that differ from those of the build.
    `map_weights`: use the mapped file instead of a copy in huge pages: less memory, often slower.
    `share_weights`: constants that another model of this process has too are in memory once; without it, the model has
    all of its own, as on machines with several memory nodes, where each shall have them near.
    `trusted_keys`: load nothing but what one of these Ed25519 keys signed (`aotc sign`): paths of PEM files of public
    keys, or 32 raw bytes each. That is decided before code or weights are looked at. Not together with `map_weights`;
    weights from elsewhere are then verified always.
    `plan_cache_size`: for how many shapes each session keeps its plan.
    `temporary_directory`: a private folder for code, where the system forbids memfd_create.
    `device`: the number of the GPU, for code that runs on one; `context`: a CUcontext instead of its primary one.
    `graphs`: on a GPU, launch a run as one CUDA graph; without, kernel by kernel, with the same bits. `early_start`:
    kernels may start before those ahead of them have ended, and wait inside; without it too, the bits are the same.
    `poison`: on a GPU, fill intermediate values and results with NaN before each run: for tests.

    Raises ArtifactError for a file that is damaged, of another version or not signed as asked, TargetError where it has
    no code for this machine, OptionError for what is no public key.
    """
    return Model(
        artifact,
        threads=threads,
        target=target,
        weights=weights,
        verify_weights=verify_weights,
        map_weights=map_weights,
        share_weights=share_weights,
        trusted_keys=trusted_keys,
        plan_cache_size=plan_cache_size,
        temporary_directory=temporary_directory,
        device=device,
        context=context,
        graphs=graphs,
        early_start=early_start,
        poison=poison,
    )


def target_supported(target: str) -> bool:
    """Whether this machine runs code of a target such as "cpu:x86-64-v4" or, on its first GPU, "cuda:sm_90a"."""
    from aot.runtime._library import library

    return bool(library().aot_target_supported(target.encode()))
