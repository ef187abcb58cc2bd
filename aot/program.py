"""Program: what is planned, what is serialized, what the runtime executes. Plain data.

One program is one target × one variant. Everything symbolic is a `Dim` over `symbols`; the artifact
stores these as a table of stack code, and the runtime evaluates them once per new shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from aot.dims import Dim, Symbol
from aot.ir import Const, TensorType


class Space(IntEnum):
    """Who owns the bytes of a buffer."""

    INPUT = 0  # the caller's input tensor number `index`
    OUTPUT = 1  # the caller's output tensor number `index`
    CONST = 2  # constant number `index` of the artifact
    ARENA = 3  # the session's arena


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes that steps read and write.

    For ARENA: if `below` is empty the buffer starts at `offset_bytes`; otherwise at the largest end
    (start + size, rounded up to 64) of the buffers numbered in `below`, all of which come earlier in the table.
    The arena's size is the largest end of all. `first_step`..`last_step` (inclusive) is the lifetime.
    """

    space: Space
    index: int
    size_bytes: Dim
    offset_bytes: int = 0
    below: tuple[int, ...] = ()
    first_step: int = 0
    last_step: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the model, as its user named it. Always row-major, dense."""

    name: str
    type: TensorType


class RecipeOp(IntEnum):
    """What a recipe step does; see `aot/recipe.py` for the numpy meaning."""

    SOURCE = 0  # push source tensor `operands[0]`
    SCALAR = 1  # push the f64 `scalar` as a rank-0 tensor of `dtype`
    ADD = 2  # pop b, a; push a + b (numpy broadcasting); likewise below
    SUB = 3
    MUL = 4
    DIV = 5
    NEG = 6
    SQRT = 7
    CAST = 8  # to `dtype`
    RESHAPE = 9  # to `shape`
    PACK = 10  # see Recipe: strided copy with zero fill
    WINOGRAD = 11  # [O, C, 3, 3] -> [16, C, O] for F(2x2, 3x3): G g G^T in f64, rounded once


@dataclass(frozen=True, slots=True)
class RecipeStep:
    """One instruction of the stack machine that makes a packed constant from source weights.

    PACK: the destination has `shape`; its element (i_0 … i_r) is the source element whose index on
    axis a is sum_j coefficients[a][j] * i_j, or zero where that is outside the source.
    """

    op: RecipeOp
    operands: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    coefficients: tuple[tuple[int, ...], ...] = ()
    dtype: int = 0
    scalar: float = 0.0


@dataclass(frozen=True, slots=True)
class Source:
    """A weight of the source model that recipes read; `name` is the initializer's."""

    name: str
    const: Const


@dataclass(frozen=True, slots=True)
class Constant:
    """Constant bytes as kernels read them: `recipe` applied to `sources` of the program."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    recipe: tuple[RecipeStep, ...]
    always_embedded: bool = False  # not a weight of the user's model (tables, folded scalars)


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A compiled function. `symbol` is its name in the program's code blob; `label` is for people."""

    symbol: str
    kind: str
    label: str
    locs: tuple[str, ...]
    schedule: str
    source: str  # C or Triton text, kept in the debug section


@dataclass(frozen=True, slots=True)
class Argument:
    """A pointer for a kernel: a buffer plus a byte offset."""

    buffer: int
    offset_bytes: Dim = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One launch. `dims` are the integer arguments; `scratch_bytes` is wanted per thread.

    `barrier`: later steps must wait until every thread has finished this one.
    """

    kernel: int
    arguments: tuple[Argument, ...]
    dims: tuple[Dim, ...]
    scratch_bytes: Dim = 0
    flops: Dim = 0
    bytes_moved: Dim = 0
    barrier: bool = True
    locs: tuple[str, ...] = ()


class GuardKind(IntEnum):
    """A rule on one extent of one input, checked before every run, in table order."""

    BIND = 0  # symbol number `symbol` takes the extent; must be in lo..hi and a multiple of divisor
    EQUAL = 1  # the extent equals `expected`
    VALUE = 2  # the one element of the input, an integer or bool, equals `expected`; `axis` is 0
    OTHER_VALUE = 3  # the one element of the input is not `expected`; `axis` is 0


@dataclass(frozen=True, slots=True)
class Guard:
    kind: GuardKind
    port: int
    axis: int
    symbol: int = 0
    lo: int = 0
    hi: int = 0  # 0: no bound
    divisor: int = 1
    expected: Dim = 0


@dataclass(frozen=True, slots=True)
class Program:
    """A complete plan for one target and variant. `code` is the blob that holds every kernel."""

    target: str
    variant: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state: tuple[tuple[int, int], ...]  # (input, output) pairs updated in place
    guards: tuple[Guard, ...]
    sources: tuple[Source, ...]
    constants: tuple[Constant, ...]
    buffers: tuple[Buffer, ...]
    kernels: tuple[KernelCode, ...]
    steps: tuple[Step, ...]
    code: bytes
    peak_bytes: Dim = 0
    lower_bound_bytes: Dim = 0
    planner: str = ""  # which method placed the buffers, and whether the peak is proved minimal
