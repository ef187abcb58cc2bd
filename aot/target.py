"""Targets: a backend, an architecture, and its numbers. Data, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Target:
    """What code is made for, written `backend:architecture`, such as `cpu:x86-64-v4`.

    `numbers` holds rates and sizes with their units in the names; the cost model and the schedules
    read them. `features` are words such as "avx512".
    """

    backend: str
    architecture: str
    features: frozenset[str] = frozenset()
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def name(self) -> str:
        return f"{self.backend}:{self.architecture}"

    def __str__(self) -> str:
        return self.name
