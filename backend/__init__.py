"""The table of backends: one line each."""

from __future__ import annotations

from collections.abc import Mapping

from aot.backend.base import Backend
from aot.backend.cpu import CpuBackend
from aot.backend.cuda import CudaBackend

BACKENDS: Mapping[str, Backend] = {"cpu": CpuBackend(), "cuda": CudaBackend()}
