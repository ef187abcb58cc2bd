"""The instruction sets that CPU code is made for, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aot.errors import TargetError
from aot.target import Target

EXACT = "exact"
"""A feature of a target, not of a CPU: what options.exact asks for."""


@dataclass(frozen=True, slots=True)
class Isa:
    """One x86-64 level. `lanes` elements make one vector block, of whatever element type."""

    name: str
    lanes: int
    registers: int
    flags: tuple[str, ...]
    features: frozenset[str]
    numbers: Mapping[str, float] = field(default_factory=dict, hash=False)

    @property
    def is_exact(self) -> bool:
        """Whether sums are not reassociated and products are not fused into sums: builds with --exact."""
        return EXACT in self.features

    @property
    def exact(self) -> Isa:
        """The same level for exact arithmetic."""
        return replace(self, features=self.features | {EXACT}, flags=(*self.flags, "-ffp-contract=off"))

    @property
    def vector_bytes(self) -> int:
        """Bytes of one register: a block of 32-bit elements."""
        return 4 * self.lanes

    @property
    def is_wide(self) -> bool:
        """Whether masks are registers of their own (AVX-512)."""
        return "avx512" in self.features

    @property
    def has_vnni(self) -> bool:
        """Whether four products of 8-bit integers are one instruction with their sum (AVX-512 VNNI)."""
        return "vnni" in self.features

    @property
    def has_bf16(self) -> bool:
        """Whether two products of bf16 are one instruction with their sum in f32 (AVX-512 BF16)."""
        return "bf16" in self.features

    @property
    def target(self) -> Target:
        return Target("cpu", self.name, self.features, self.numbers)


# Rates are per core, measured at 3.7 GHz; the cost model uses their ratios.
V3 = Isa(
    "x86-64-v3",
    8,
    16,
    ("-march=x86-64-v3",),
    frozenset({"avx2", "fma", "f16c"}),
    {
        "lanes": 8,
        "fp32_flops_per_us": 110e3,
        "int8_flops_per_us": 130e3,
        "memory_bytes_per_us": 16e3,
        "l2_bytes_per_us": 60e3,
        "l2_bytes": 1 << 20,
        "launch_us": 0.5,
    },
)
V4 = Isa(
    "x86-64-v4",
    16,
    32,
    ("-march=x86-64-v4", "-mprefer-vector-width=512"),
    frozenset({"avx2", "fma", "f16c", "avx512"}),
    {
        "lanes": 16,
        "fp32_flops_per_us": 118e3,
        "int8_flops_per_us": 200e3,
        "memory_bytes_per_us": 16e3,
        "l2_bytes_per_us": 70e3,
        "l2_bytes": 1 << 20,
        "launch_us": 0.5,
    },
)


def _with(isa: Isa, feature: str, **rates: float) -> Isa:
    """A level and one instruction set beyond it."""
    return replace(
        isa,
        name=f"{isa.name}+{feature}",
        flags=(*isa.flags, f"-mavx512{feature}"),
        features=isa.features | {feature},
        numbers={**isa.numbers, **rates},
    )


V4_VNNI = _with(V4, "vnni", int8_flops_per_us=473e3)
V4_VNNI_BF16 = _with(V4_VNNI, "bf16", bf16_flops_per_us=236e3)
ISAS: Mapping[str, Isa] = {isa.name: isa for isa in (V3, V4, V4_VNNI, V4_VNNI_BF16)}


def isa_of(architecture: str) -> Isa:
    """The table row of an architecture; raises TargetError, listing the known ones."""
    if architecture not in ISAS:
        raise TargetError(
            f"unknown CPU architecture {architecture!r}", hint=f"Known: {', '.join(f'cpu:{name}' for name in ISAS)}."
        )
    return ISAS[architecture]


def isa_of_target(target: Target) -> Isa:
    """The instruction set of a target, exact where the target is."""
    isa = isa_of(target.architecture)
    return isa.exact if EXACT in target.features else isa
