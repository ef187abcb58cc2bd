"""What a model says of itself: its inputs and outputs, sizes that vary, state, programs. Plain data."""

from __future__ import annotations

from typing import Any, NamedTuple


class TensorSpec(NamedTuple):
    """An input or output: `shape` holds ints, and the expressions of extents that vary, as text."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class DimSpec(NamedTuple):
    """A named extent that varies: inclusive bounds (`hi` None: no bound) and a divisor of its values.

    Inputs outside of them raise GuardError.
    """

    name: str
    lo: int
    hi: int | None
    divisor: int


class StateSpec(NamedTuple):
    """State: the input that a run replaces by an output, such as a cache.

    `has_initial`: the model knows what the input holds before the first run (`Model.new_state`).
    """

    input: str
    output: str
    has_initial: bool


class ProgramSpec(NamedTuple):
    """A program of the artifact: one target, and one variant (fixed extents) or "" for the general one.

    `planner`: the method that placed its buffers. `supported`: this CPU, or the first GPU, runs its code. `selected`:
    this process runs it, and otherwise `reason` says why not. `kernels` are distinct functions, `steps` are launches
    in a run. `host_steps`: nodes that it runs on the CPU while the others run on a GPU.
    """

    target: str
    variant: str
    planner: str
    supported: bool
    selected: bool
    kernels: int
    steps: int
    code_bytes: int
    reason: str = ""
    host_steps: int = 0


class Statistics(NamedTuple):
    """How the runs of a model ended since it was loaded, traced ones apart.

    `runs` ended well and took `run_seconds` together (on a GPU, runs that were only put into a stream count until they
    were). `failures` are the others by status, such as {"guard": 2}, `reasons` those by aot_reason, such as
    {"dtype": 1, "range": 1}.
    """

    runs: int
    run_seconds: float
    failures: dict[str, int]
    reasons: dict[str, int]


class TraceTensor(NamedTuple):
    """A tensor that a step wrote: its name in the user's model ("" where it has none), element type and array.

    `array` may have strides; it is valid, read-only, until the callback returns.
    """

    name: str
    dtype: str
    array: Any


class TraceStep(NamedTuple):
    """A step that has ended.

    `program`: its number in the artifact; `number`: of the step in it, in a program with control flow counted over
    all blocks. `label` is the kernel's, `nodes` are those of the user's model that it computes. `tensors` is empty for
    an artifact without debug information.
    """

    program: int
    number: int
    label: str
    nodes: tuple[str, ...]
    tensors: tuple[TraceTensor, ...]
