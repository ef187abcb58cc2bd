"""The GPU architectures that kernels are made for, as data. Rates are whole devices'."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aot.errors import TargetError
from aot.target import Target


@dataclass(frozen=True, slots=True)
class Architecture:
    """One compute capability, with a device of it in mind. `capability` is ten times its number.

    `driver`: CUDA's version of the oldest driver that knows it and takes code of the assembler of CUDA 12.
    `ptx`: ten times the version of PTX of an architecture whose kernels stay text, which the driver compiles for the
    device that it finds, this one or a newer one; 0: they are machine code.
    """

    name: str
    capability: int
    device: str
    driver: int
    features: frozenset[str]
    numbers: Mapping[str, float] = field(hash=False)
    ptx: int = 0

    @property
    def target(self) -> Target:
        return Target("cuda", self.name, self.features, self.numbers)


def _numbers(
    multiprocessors: int, shared_bytes: int, memory_tb_s: float, half_tflops: float, single_tflops: float, l2_mib: int
) -> Mapping[str, float]:
    return {
        "multiprocessors": multiprocessors,
        "shared_bytes": shared_bytes,  # the most that one program may have
        "memory_bytes_per_us": memory_tb_s * 1e6,
        "l2_bytes_per_us": 1.6 * memory_tb_s * 1e6,
        "l2_bytes": l2_mib << 20,
        "half_flops_per_us": half_tflops * 1e6,
        "fp32_flops_per_us": single_tflops * 1e6,
        "launch_us": 0.8,
    }


PTX = 80
"""Ten times the version of PTX in which texts are: the oldest that has all that the kernels use."""

PTX_DRIVERS: Mapping[int, int] = {
    80: 12000,
    81: 12010,
    82: 12020,
    83: 12030,
    84: 12040,
    85: 12050,
    86: 12070,
    87: 12080,
    88: 12090,
}
"""The oldest driver, as CUDA's version, that knows a version of PTX (its manual's release notes)."""

_ANY = _numbers(132, 101376, 1.8, 312, 30, 48)
"""Of a device that is not built yet: the least shared memory that any of 8.0 and above has, else middling."""

ARCHITECTURES: Mapping[str, Architecture] = {
    each.name: each
    for each in (
        Architecture("sm_80", 80, "A100", 12000, frozenset(), _numbers(108, 166912, 1.9, 312, 19.5, 40)),
        Architecture("sm_86", 86, "A10", 12000, frozenset(), _numbers(72, 101376, 0.6, 125, 31, 6)),
        Architecture("sm_89", 89, "L40S", 12000, frozenset({"float8"}), _numbers(142, 101376, 0.86, 362, 91, 96)),
        Architecture(
            "sm_90a", 90, "H100 and H200", 12000, frozenset({"float8", "programmatic_launch", "tensor_copies"}),
            _numbers(132, 232448, 4.2, 730, 60, 50),
        ),
        Architecture(
            "sm_100a", 100, "B200", 12080, frozenset({"float8", "programmatic_launch"}),
            _numbers(148, 232448, 7.7, 2250, 75, 126),
        ),
        Architecture("compute_80", 80, "any newer", PTX_DRIVERS[PTX], frozenset(), _ANY, PTX),
        Architecture("compute_90", 90, "any newer", PTX_DRIVERS[PTX], frozenset({"programmatic_launch"}), _ANY, PTX),
    )
}  # fmt: skip


def architecture_of(name: str) -> Architecture:
    """The row of an architecture; "sm_90" and "sm_100" mean their forms with an a. Raises TargetError."""
    found = ARCHITECTURES.get(name) or ARCHITECTURES.get(f"{name}a")
    if found is None:
        raise TargetError(
            f"the CUDA backend does not know {name!r}", hint=f"Known: {', '.join(ARCHITECTURES)}. Example: cuda:sm_90a."
        )
    return found
