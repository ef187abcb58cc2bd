"""Machines as selection sees them: this one, or a described one; how well a target's code fits one."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from aot.runtime import _library


@dataclass(frozen=True, slots=True)
class Machine:
    """`cpu_level`: of x86-64, 1 to 4; 0: another CPU. `capability`: ten times the GPU's compute capability; 0: no GPU.

    `driver`: the GPU's, as the version of CUDA that it supports, such as 12040; 0: new enough for everything.
    `cpu_extras`: what a CPU of level 4 has beyond it, the sum of numbers of EXTRAS, by their names in targets
    ("x86-64-v4+vnni"): dot products of 8-bit integers, and of bfloat16.
    """

    EXTRAS: ClassVar[Mapping[str, int]] = MappingProxyType({"vnni": 1, "bf16": 2})

    cpu_level: int
    capability: int = 0
    driver: int = 0
    cpu_extras: int = 0


def this_machine(device: int = 0) -> Machine:
    """This machine, with the GPU of a number where there is one and a driver for it."""
    found = _library.MachineInfo(ctypes.sizeof(_library.MachineInfo))
    _library.library().aot_this_machine(device, ctypes.byref(found))
    return Machine(found.cpu_level, found.capability, found.driver, found.cpu_extras)


def target_rank(target: str, lowest_driver: int = 0, machine: Machine | None = None) -> tuple[int, str]:
    """How well code for a target fits a machine (None: this one), and, where it does not run, 0 and why not.

    Loading takes the program with the largest number, and of equals the first in the file. `lowest_driver`: the oldest
    that takes the code (`Program.driver`), 0 for any.
    """
    described = None
    if machine is not None:
        size = ctypes.sizeof(_library.MachineInfo)
        numbers = (machine.cpu_level, machine.capability, machine.driver, machine.cpu_extras)
        described = ctypes.byref(_library.MachineInfo(size, *numbers))
    reason = ctypes.create_string_buffer(512)
    rank = _library.library().aot_target_rank(target.encode(), lowest_driver, described, reason, len(reason))
    return rank, reason.value.decode(errors="replace")
