"""Program: what is planned, what is serialized, what the runtime executes. Plain data.

One program is one target × one variant. Everything symbolic is a `Dim` over `symbols`; the artifact
stores these as a table of stack code, and the runtime evaluates them once per new shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from aot.dims import Dim, Symbol
from aot.dtypes import DType
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
    CONCAT = 12  # pop `operands[1]` tensors; push them joined along axis `operands[0]`, in the order they were pushed


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
class Image:
    """A GPU kernel's machine code: where it lies in the program's code, and what its launch needs.

    `threads` and `shared_bytes` are of a block; `scratch_bytes` of device memory too. Bit i of `wide_integers`: integer
    argument i has 64 bits, else 32. `registers` and `spilled_bytes` of a thread are for people. `is_heavy`: it overlaps
    neither the kernel before it nor the one behind it.
    """

    offset_bytes: int
    size_bytes: int
    threads: int
    shared_bytes: int = 0
    scratch_bytes: int = 0
    wide_integers: int = 0
    registers: int = 0
    spilled_bytes: int = 0
    is_heavy: bool = False


@dataclass(frozen=True, slots=True)
class KernelCode:
    """A compiled function. `symbol` is its name in the program's code blob; `label` is for people.

    `image` is given where the code is not one library but a GPU's kernels, each for itself.
    """

    symbol: str
    kind: str
    label: str
    locs: tuple[str, ...]
    schedule: str
    source: str  # C or Triton text, kept in the debug section
    image: Image | None = None


@dataclass(frozen=True, slots=True)
class Argument:
    """A pointer for a kernel: a buffer plus a byte offset."""

    buffer: int
    offset_bytes: Dim = 0


@dataclass(frozen=True, slots=True)
class StepResult:
    """A tensor that a step writes, for who looks into a run: behind pointer number `argument`, as `name` in the model.

    Its first element lies `origin_elements` behind the pointer (a halo comes first); `strides` are in elements.
    """

    argument: int
    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    origin_elements: Dim = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One launch. `dims` are the integer arguments; `scratch_bytes` is wanted per thread.

    `barrier`: later steps must wait until every thread has finished this one. `grid`: blocks of threads on a GPU,
    along three axes; a launch without blocks is left out. `results`: what it writes; a file without debug information
    does not say.
    """

    kernel: int
    arguments: tuple[Argument, ...]
    dims: tuple[Dim, ...]
    scratch_bytes: Dim = 0
    flops: Dim = 0
    bytes_moved: Dim = 0
    barrier: bool = True
    locs: tuple[str, ...] = ()
    grid: tuple[Dim, ...] = ()
    results: tuple[StepResult, ...] = ()


class GuardKind(IntEnum):
    """A rule on one extent of one input, checked before every run, in table order."""

    BIND = 0  # symbol number `symbol` takes the extent; must be in lo..hi and a multiple of divisor
    EQUAL = 1  # the extent equals `expected`
    VALUE = 2  # the one element of the input, an integer or bool, equals `expected`; `axis` is 0
    OTHER_VALUE = 3  # the one element of the input is not `expected`; `axis` is 0
    # Of several inputs, whose symbols are bound: `port` and `axis` are 0.
    AT_LEAST = 4  # `expected` >= `other`
    SAME = 5  # `expected` == `other`
    DIFFERENT = 6  # `expected` != `other`
    ABOVE = 7  # `expected` > `other`
    # Symbol number `symbol` is solved from `expected`, linear in it alone, which the extent equals; in lo..hi and a
    # multiple of divisor as in BIND.
    SOLVE = 8


RELATIONS: Mapping[str, GuardKind] = {
    ">=": GuardKind.AT_LEAST, "==": GuardKind.SAME, "!=": GuardKind.DIFFERENT, ">": GuardKind.ABOVE,
}  # fmt: skip
"""The kind of guard of each sign of a relation."""


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
    other: Dim = 0


class FlowOp(IntEnum):
    """What a step of a flow does. Slots are numbered tensors; a slot names memory, and several may share it."""

    CALL = 0  # run block `block`: `inputs` to `outputs`
    READ = 1  # symbols[0] takes element `element` of inputs[0]; without symbols the element must equal dims[0]
    CHECK = 2  # dims[0] >= dims[1]; with `exact`, dims[0] == dims[1]
    ALIAS = 3  # outputs[0] is the memory of inputs[0] in its own shape: its start, or with `exact` all of it
    MOVE = 4  # every output becomes the input beside it, all at once
    MATCH = 5  # per axis of inputs[0]: symbols[axis] takes the extent, or where that is -1 the extents must agree
    CLEAR = 6  # outputs[0] becomes empty, to be appended to
    APPEND = 7  # inputs[0] is copied behind the last entry of outputs[0] along its first axis
    IF = 8  # bodies[0] where the bool inputs[0] holds, else bodies[1]
    LOOP = 9  # bodies[0] at most inputs[0] (-1: any number of) times while the bool inputs[1] (-1: always) holds;
    # outputs[0] holds the number of the iteration


@dataclass(frozen=True, slots=True)
class FlowStep:
    """One step between blocks; which fields an op reads is said at FlowOp.

    `drops` are slots that nothing reads afterwards. `exact` READs are assertions of the user's. `clamp`: READ takes
    the nearest number that the symbol allows instead of refusing others. `where` names the user's node.
    """

    op: FlowOp
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    block: int = 0
    element: int = 0
    symbols: tuple[int, ...] = ()
    dims: tuple[Dim, ...] = ()
    exact: bool = False
    clamp: bool = False
    bodies: tuple[tuple[FlowStep, ...], ...] = ()
    drops: tuple[int, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class HostStep:
    """A node of the user's model that a program for a GPU runs as CPU code: in block `block`, and why."""

    block: int
    op: str
    why: str
    locs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """How a program with control flow, with sizes that depend on data, or with host steps runs its blocks.

    A block is a program of its own, without a flow; `environments` say for each which of this program's
    symbols are its symbols. `slots` are the tensors between blocks, the first ones the program's inputs;
    `results` are the slots of the outputs. The last `unbacked` symbols are not bound by inputs.
    Blocks that `host` names are for a CPU, which their target says, where the program is for a GPU.
    """

    slots: tuple[Port, ...]
    steps: tuple[FlowStep, ...]
    results: tuple[int, ...]
    blocks: tuple[Program, ...]
    environments: tuple[tuple[int, ...], ...]
    unbacked: int
    host: tuple[HostStep, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A complete plan for one target and variant. `code` is the blob that holds every kernel.

    A program with a `flow` has no buffers and steps of its own: its blocks have them.
    """

    target: str
    variant: str
    symbols: tuple[Symbol, ...]
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    state: tuple[tuple[int, int], ...]  # (input, output) that may be one piece of memory: then updated in place
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
    flow: Flow | None = None
    initial: tuple[tuple[int, int], ...] = ()  # (input, constant): what state holds at first; one element means all
    driver: int = 0  # of a GPU: the oldest driver that takes the code, as CUDA's version, such as 12040; 0: any

    @property
    def parts(self) -> tuple[Program, ...]:
        """The programs that hold kernels: the blocks of the flow, or this one."""
        return self.flow.blocks if self.flow is not None else (self,)

    @property
    def input_symbols(self) -> tuple[Symbol, ...]:
        """The symbols that the extents of inputs give their values."""
        return self.symbols[: len(self.symbols) - (self.flow.unbacked if self.flow is not None else 0)]

    @property
    def launches(self) -> tuple[tuple[KernelCode, Step], ...]:
        """Every step with its kernel, block by block."""
        return tuple((part.kernels[step.kernel], step) for part in self.parts for step in part.steps)

    @property
    def distinct_kernels(self) -> tuple[KernelCode, ...]:
        """The kernels, each once, of all blocks."""
        return tuple({kernel.symbol: kernel for part in self.parts for kernel in part.kernels}.values())

    @property
    def code_bytes(self) -> int:
        """Bytes of code; blocks of a target share it."""
        return sum(map(len, {part.target: part.code for part in self.parts}.values()))

    @property
    def host_steps(self) -> tuple[HostStep, ...]:
        """What a program for a GPU runs as CPU code."""
        return self.flow.host if self.flow is not None else ()
