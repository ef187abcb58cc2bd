"""Samples of the op table as test cases."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from aot.ops import OPS, OpDef, Sample
from aot.testing import Variant, types_of, variants

__all__ = ["Variant", "cases", "samples_of", "types_of", "variants"]


def samples_of(name: str) -> list[Sample]:
    """The op's samples; the generator is seeded by its name, so ops do not depend on each other."""
    return list(OPS[name].samples(np.random.default_rng(zlib.crc32(name.encode()))))


def cases(wanted: Callable[[OpDef], object] = lambda op: True) -> list[Any]:
    """Parameters (name, sample) of every op that is wanted."""
    return [
        pytest.param(name, sample, id=f"{name}-{number}")
        for name in sorted(OPS)
        if wanted(OPS[name])
        for number, sample in enumerate(samples_of(name))
    ]
