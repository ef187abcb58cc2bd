"""Kernel: what a backend is given. A fused body as loops, loads, one optional root, stores.

`aot/lower.py` makes a Kernel from a `kernel` node; a backend turns it into text with a Schedule of
its own. The meaning is complete here; tuning never changes a Kernel.

Axes 0 … domain-1 are the domain: the logical axes of the primary output, every point of which is
computed once, in any order (parallel). Later axes are reduction axes: they appear in
`reduce` expressions or in the root.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from aot.dims import Dim
from aot.dtypes import DType
from aot.expr import Expr
from aot.ir import Attr, TensorType


class Kind(Enum):
    """What a backend has to be able to emit; see the table in the design."""

    MAP = "map"
    REDUCE = "reduce"
    ROW = "row"
    SCAN_AXIS = "scan_axis"
    CONTRACT = "contract"
    WINDOW = "window"
    ATTEND = "attend"
    ATTEND_PARTS = "attend_parts"
    GATHER = "gather"
    VIEW = "view"
    SORT = "sort"
    SCATTER = "scatter"
    RANDOM = "random"
    RECUR = "recur"
    OPAQUE = "opaque"
    KERNEL = "kernel"  # the fused node itself


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop axis. `extent` is its length; `name` is for reading generated code."""

    extent: Dim
    name: str


@dataclass(frozen=True, slots=True)
class KernelOperand:
    """A tensor that the kernel reads or writes.

    `type` has the final layout. `loads` address it by logical index: the element lies at
    origin_elements + sum(index * stride). `constant`: the contents are known at build time and may
    be packed. `is_aligned`: its pointer is a multiple of ALIGNMENT_BYTES in every run.
    """

    ALIGNMENT_BYTES: ClassVar[int] = 16

    type: TensorType
    constant: bool = False
    is_aligned: bool = True


@dataclass(frozen=True, slots=True)
class Store:
    """output[indices] = value, for every point of the domain.

    `indices` are one Expr per logical axis of the output. `axes`: where the output is smaller than
    the domain (a row statistic stored once per row), the domain axes that it has; () means all.
    """

    output: int
    indices: tuple[Expr, ...]
    value: Expr
    axes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """Where a ContractRoot's `b` comes from, if that is a weight in 8 or 4 bits: operands [K or K / 2, N], [blocks, N].

    `b` says the same in an expression; an emitter may read the operands its own way. `bits` and `block` as in the op
    matmul_packed; without `zero` the zero point is 0 (8 bits) or NIBBLE_ZERO (4 bits).
    """

    w: int
    scale: int
    zero: int | None
    bits: int
    block: int


@dataclass(frozen=True, slots=True)
class ContractRoot:
    """acc[batch…, m, n] = sum over k of a × b, accumulated in `accumulate`; also a × every one of `others`.

    `batch`, `m`, `n`, `k` are axis numbers; so are `taps`, which are summed as well, one place after the other: those
    of a sliding window, whose channels are k. Only a backend's own rewrites of windows make taps. `a` and `b` are Exprs
    over these axes: usually a plain load (then the emitter may stream or pack it), else a fused prologue. They may be
    of a 16-bit type each, or one of a 16-bit type and one of `accumulate`; or of 8-bit types: integers, summed in i32,
    or floats, in f32. `root(0)` is the sum of `b`, `root(i + 1)`
    that of `others[i]`, which has the axes of `b`; only backends that ask for it get others.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a: Expr
    b: Expr
    accumulate: DType
    others: tuple[Expr, ...] = ()
    taps: tuple[int, ...] = ()
    weight: PackedWeight | None = None

    @property
    def rights(self) -> tuple[Expr, ...]:
        """`b` and the others: what `a` is multiplied by."""
        return (self.b, *self.others)


@dataclass(frozen=True, slots=True)
class WindowRoot:
    """acc[n, o, p…] = sum over c, r… of x[n, group(o)*C + c, p*stride + r*dilation - pad] × w[o, c, r…].

    Logical NC… order; the operand types' layouts say NHWC. `x`, `w`: operand numbers (inputs).
    Reads outside the input are `fill`, which x's halo holds; that has at least `pads`, so no check is needed.
    `groups` as in ONNX; depthwise is groups == channels. Domain axes: n, o, spatial….
    `operand`: the type that x and w are converted to before they are multiplied; None: both have one already, or are
    in 8 bits, as in ContractRoot.
    """

    x: int
    w: int
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]
    groups: int
    accumulate: DType
    operand: DType | None = None
    fill: int = 0


@dataclass(frozen=True, slots=True)
class AttendRoot:
    """acc[b, h, s, d] = softmax over t of (scale × q·k + mask) @ v.

    `q` [B,H,S,D], `k` [B,Hkv,T,D], `v` [B,Hkv,T,Dv]: operand numbers; any strides. H is a multiple
    of Hkv. `mask`: an additive Expr over axes b, h, s, t (t is the axis number `t`), or None.
    `causal`: position s sees t <= s + (T - S). A row whose every score is -inf gives NaN, as softmax does,
    or 0 under `zero_empty`. `operand`: as in WindowRoot, of q, k and v.
    """

    q: int
    k: int
    v: int
    t: int
    scale: float
    mask: Expr | None
    causal: bool
    accumulate: DType
    zero_empty: bool = False
    operand: DType | None = None


@dataclass(frozen=True, slots=True)
class ScanRoot:
    """acc[…] = running `function` (sum or prod) of `value` along domain axis `axis`."""

    axis: int
    function: str
    exclusive: bool
    reverse: bool
    value: Expr
    accumulate: DType


@dataclass(frozen=True, slots=True)
class OwnedRoot:
    """A whole op whose emitter writes every output itself (SORT, SCATTER, RECUR, OPAQUE); the kernel has no stores.

    `operands` and `results`: for each operand and result of the op, its number among the kernel's inputs
    and outputs; None where it is not given, or read by nobody.
    """

    op: str
    attrs: Mapping[str, Attr]
    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


Root = ContractRoot | WindowRoot | AttendRoot | ScanRoot | OwnedRoot


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused kernel. `inputs` then `outputs` are its pointer arguments, in this order.

    `stores` may contain `reduce` nodes (kinds REDUCE and ROW) and, with a root, `root(0, dtype)`.
    A `load`'s payload is the number of the input. An optional guard is two more args after the
    indices: (guard, fill).
    """

    name: str
    kind: Kind
    axes: tuple[Axis, ...]
    domain: int
    inputs: tuple[KernelOperand, ...]
    outputs: tuple[KernelOperand, ...]
    stores: tuple[Store, ...]
    root: Root | None
    locs: tuple[str, ...]
