"""What the compiler asks of a backend. A backend is a folder with one object that has this shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from aot.dims import Dim
from aot.dtypes import DType
from aot.ir import Node
from aot.kernel import Kernel, Kind
from aot.program import Image, RecipeStep
from aot.target import Target


@dataclass(frozen=True, slots=True)
class PackedOperand:
    """How a kernel wants one constant operand: recipe steps after its SOURCE, dtype number, shape."""

    recipe: tuple[RecipeStep, ...]
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Emitted:
    """A kernel as source text, and what its launch needs.

    `source` defines one function whose name is the word KERNEL; equal sources are compiled once.
    `dims` are the integer arguments, in order. `packed`: constant operands (by number) that are read
    in another form than row-major. `scratch_bytes` is per thread. `grid`: the programs of a launch on a GPU.
    """

    source: str
    dims: tuple[Dim, ...]
    schedule: str
    scratch_bytes: Dim = 0
    packed: Mapping[int, PackedOperand] = field(default_factory=dict)
    flops: Dim = 0
    bytes_moved: Dim = 0
    grid: tuple[Dim, ...] = ()


@dataclass(frozen=True, slots=True)
class Built:
    """A code blob. `images` by symbol, where the blob is no library that has its own table.

    `driver`: the oldest GPU driver that takes the code, as CUDA's version, such as 12040; 0: any.
    """

    code: bytes
    images: Mapping[str, Image] = field(default_factory=dict)
    driver: int = 0


class Backend(Protocol):
    """One family of targets."""

    name: str
    default_architectures: tuple[str, ...]
    """What the bare backend name stands for, in the order in which a loader tries them."""
    quantized_architectures: tuple[str, ...]
    """The same for programs with products of 8-bit numbers."""
    kinds: frozenset[Kind]
    """The kinds it emits; ops of other kinds are decomposed."""
    decomposes: frozenset[str]
    """Ops that are decomposed although their kind is emitted."""
    has_halos: bool
    """Whether sliding windows read zeros around their input; else they check their places."""
    joins_products: bool
    """Whether products of one left operand are better made by one kernel; then a ContractRoot may have others."""
    splits_keys: bool
    """Whether attention of few queries is better made in parts of its keys; then it has a kernel for parts."""
    splits_sums: bool
    """Whether products of few rows are better made in parts of their sums, which what follows adds up."""
    channel_group: int
    """Images of few channels are better padded to a multiple of so many; 1: they stay as they are."""
    reads_anywhere: bool
    """Whether kernels compute where they read at so little cost that what only moves elements is no step."""
    precisions: frozenset[str]
    """The precisions of float arithmetic that it has; programs asked for in another are in fp32."""
    precision_features: Mapping[str, str]
    """The feature that targets with a precision have, where not all of them have that precision."""
    precision_architectures: Mapping[str, tuple[str, ...]]
    """What the bare backend name stands for where a precision is asked for that its defaults lack."""
    eight_bit_operands: tuple[DType, DType]
    """The types of bytes, i8 or u8 each, that products of integers take on their left and right."""

    def target(self, architecture: str) -> Target:
        """The target's table row; raises TargetError, listing the known ones."""
        ...

    def lacks(self, node: Node) -> str:
        """Why it has no kernel for a node of level CORE, or nothing: a GPU's program then runs that node on the CPU."""
        ...

    def emit(self, kernel: Kernel, target: Target) -> Emitted:
        """Schedules and emits one kernel."""
        ...

    def build(
        self,
        sources: Sequence[tuple[str, str]],
        target: Target,
        cache: Path | None,
        *,
        jobs: int = 0,
        compiler: str | None = None,
    ) -> Built:
        """Compiles (symbol, source) pairs into one code blob. The same input gives the same bytes.

        `jobs` compilers run at a time, 0 for one per CPU; `compiler` is the command, None to search.
        """
        ...

    def tools(self, compiler: str | None = None) -> Mapping[str, str]:
        """The tools that decide the bytes of a build, with their versions."""
        ...
