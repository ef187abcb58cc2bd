"""What every node adds to the error: its meaning on the program's own inputs, against what the program made of them.

A graph is run by the reference interpreter in several worlds at once. In the first, wherever the program's own tensor
is known it takes the place of the computed one, so that each stretch between two known tensors is judged alone. The
second is the first with the rounding of the program's precision put on every number: how far it comes off is how far
the program may. Two more start from the model's inputs and are never set right, one without and one with such
rounding: what it amounts to along the network. So the bounds follow from the network, not from a table of tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from aot.control import CONTROL, evaluate_control
from aot.errors import AotError, CompilerError, ModelError
from aot.evaluate import bind_symbols, evaluate, evaluate_node
from aot.ir import Array, Graph, Node, Value
from aot.ops import OPS, Kind

UNITS: Mapping[str, float] = {"fp32": 2.0**-24, "tf32": 2.0**-11, "fp16": 2.0**-11, "bf16": 2.0**-8}
"""The rounding of a number, relative to it, by precision."""

_FACTOR = 8.0
"""How far beyond what noise of single roundings does an honest program may be: it rounds more often, and worse."""

_SIGNS = np.where(np.random.default_rng(7).random(65521) < 0.5, -1.0, 1.0)
_STEPS = np.random.default_rng(8).integers(-1, 2, 65521)
_STEP_SHARE = 0.02
"""Of elements of a quantized tensor that may be one step off: those that lie between two steps."""


@dataclass(frozen=True, slots=True)
class Rounded:
    """How a product of the model is quantized in the program: a name of aot.quantization.FORMS, and the activation's
    scale and zero point, 0 where they are found in each run."""

    form: str
    scale: float = 0.0
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class Steps:
    """Of a tensor of few bits: the size of a step, and the smallest and the largest number that it can hold."""

    size: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Precision:
    """How coarse the arithmetic of the program is: the rounding of a float, and the products that are quantized."""

    unit: float = UNITS["fp32"]
    weights_too: bool = False
    quantized: Mapping[str, Rounded] = field(default_factory=dict)


@dataclass(slots=True)
class Judgement:
    """A tensor of the program against its meaning.

    `error` is the largest difference to what the nodes mean on the inputs that the program has, `bound` what rounding
    explains; of integers both count elements, where `counts` says so. `drift`: what rounding amounts to in a run from
    the model's inputs, None where that was not asked. `expected`: the meaning, kept of the first few tensors beyond
    their bounds. `confirmed`: something that is computed from it, or an output of the model, shows the error too; what
    is not confirmed is another value under the name of the model's. `follows`: something before it was beyond already.
    `nodes`: of the stretch that was judged, the last node's last.
    """

    value: Value
    nodes: tuple[str, ...]
    error: float
    bound: float
    counts: bool
    drift: float | None = None
    expected: Array | None = None
    confirmed: bool = False
    follows: bool = False

    @property
    def ratio(self) -> float:
        """The error as a part of its bound."""
        return self.error / self.bound if self.bound else (math.inf if self.error else 0.0)

    @property
    def is_beyond(self) -> bool:
        return not self.error <= self.bound


def judge(
    graph: Graph,
    feed: Sequence[Array | None],
    found: Mapping[Value, Array],
    precision: Precision,
    *,
    steps: Mapping[Value, Steps] | None = None,
    with_drift: bool = False,
    computed: Callable[[Value, Array], None] | None = None,
) -> tuple[list[Judgement], int]:
    """Judges every tensor of `found`, in the order of the graph's nodes; and how many nodes could not be run.

    feed: the inputs in order; None: not known. found: what the program has for values of the graph, of the values'
    shapes. steps: of those that it has in few bits. with_drift: also find what rounding amounts to along the network.
    computed: is shown each value that is not in `found`, as it follows from those that are. A node is not run where an
    input, a constant or a size that it needs is not known.
    """
    walk = _Walk(graph, found, precision, steps or {}, with_drift, computed)
    walk.run(feed)
    return walk.made, walk.left_out


class _Walk:
    def __init__(
        self,
        graph: Graph,
        found: Mapping[Value, Array],
        precision: Precision,
        steps: Mapping[Value, Steps],
        with_drift: bool,
        computed: Callable[[Value, Array], None] | None,
    ) -> None:
        self.graph, self.found, self.with_drift, self.computed = graph, found, with_drift, computed
        self.steps = steps
        self.left_out = 0
        self.noise = _Noise(precision)
        self.precision = precision
        self.exact: dict[Value, Array] = {}
        self.noisy: dict[Value, Array] = {}
        self.plain: dict[Value, Array] = {}
        self.drift: dict[Value, Array] = {}
        self.made: list[Judgement] = []
        self.taints: dict[Value, frozenset[int]] = {}  # the judgements beyond their bounds that a value depends on
        self.stretch: dict[Value, tuple[str, ...]] = {}  # nodes since the last known tensors

    def run(self, feed: Sequence[Array | None]) -> None:
        graph, noise = self.graph, self.noise
        given = {value: array for value, array in zip(graph.inputs, feed, strict=True) if array is not None}
        for value, array in given.items():
            self.exact[value] = self.plain[value] = array
            self.noisy[value] = self.drift[value] = noise.on(array)
        known = bind_symbols([*given], [*given.values()])
        for value, const in graph.consts.items():
            try:
                array = const.array()
            except ModelError:  # it is known by its digest only
                continue
            self.exact[value] = self.plain[value] = array
            self.noisy[value] = self.drift[value] = noise.on(array) if self.precision.weights_too else array
        last: dict[Value, int] = {}
        for position, node in enumerate(graph.nodes):
            for value in node.operands:
                last[value] = position
        with np.errstate(all="ignore"):
            for position, node in enumerate(graph.nodes):
                if not all(value in self.exact for value in node.operands) or not self._node(node, known):
                    self._leave_out(node)
                for value in {*node.operands, *node.outputs}:
                    if last.get(value, -1) <= position:
                        for world in (self.exact, self.noisy, self.plain, self.drift):
                            world.pop(value, None)

    def _leave_out(self, node: Node) -> None:
        """A node that cannot be run: its results are taken as the program has them."""
        self.left_out += 1
        for value in node.outputs:
            if value in self.found:
                self.exact[value] = self.plain[value] = self.found[value]
                self.noisy[value] = self.drift[value] = self.noise.on(self.found[value])

    def _node(self, node: Node, known: dict[str, int]) -> bool:
        """Runs and judges a node; whether that was possible."""
        exact = [None if value is None else self.exact[value] for value in node.inputs]
        try:
            results = run_node(node, exact, known)
        except (CompilerError, ModelError):  # a constant in a body, or a size that only a run gives
            return False
        noisy = self._noisy(
            node, [None if value is None else self.noisy[value] for value in node.inputs], results, known
        )
        plain, drift = results, noisy
        if self.with_drift:
            plain = self._freely(
                node, [None if value is None else self.plain[value] for value in node.inputs], results, known
            )
            drift = self._noisy(
                node, [None if value is None else self.drift[value] for value in node.inputs], results, known
            )
        taint = frozenset[int]().union(*(self.taints.get(value, frozenset()) for value in node.operands))
        before = (name for value in node.operands for name in self.stretch.get(value, ()))
        nodes = tuple(dict.fromkeys((*before, *node.locs)))
        weight = _weight(node, exact, results)
        for value, result, off, free, adrift in zip(node.outputs, results, noisy, plain, drift, strict=True):
            found = self.found.get(value)
            self.plain[value], self.drift[value] = free, self._rounded(node, adrift, weight)
            if found is None or found.shape != result.shape:
                self.taints[value], self.stretch[value] = taint, nodes
                self.exact[value], self.noisy[value] = result, self._rounded(node, off, weight)
                if self.computed is not None:
                    self.computed(value, result)
                continue
            made = self._judgement(value, nodes, found, result, off, weight)
            if self.with_drift:
                made.drift = _largest(adrift, free)
            made.follows = bool(taint)
            self.made.append(made)
            if not made.is_beyond:
                kept = np.asarray(found).astype(result.dtype)
                self.taints[value], self.stretch[value] = frozenset(), ()
                self.exact[value], self.noisy[value] = kept, self.noise.on(kept)
                continue
            # Its meaning goes on in its place: what follows tells whether the program's tensor matters.
            for number in taint:
                self.made[number].confirmed = True
            made.confirmed = value in self.graph.outputs
            if sum(each.expected is not None for each in self.made) < _KEPT:
                made.expected = result
            self.taints[value], self.stretch[value] = taint | {len(self.made) - 1}, nodes
            self.exact[value], self.noisy[value] = result, self._rounded(node, off, weight)
        return True

    def _judgement(
        self, value: Value, nodes: tuple[str, ...], found: Array, exact: Array, noisy: Array, weight: float
    ) -> Judgement:
        if exact.dtype.kind in "iub":
            return Judgement(value, nodes, *_counted(found, exact, noisy))
        steps = self.steps.get(value)
        if steps is not None:  # what lies beyond the range of few bits is at its end
            exact, noisy = (np.clip(array, steps.low, steps.high) for array in (exact, noisy))
        least = np.finfo(np.float16).smallest_subnormal if found.dtype.itemsize == 2 else _TINY
        unit = max(self.precision.unit, unit_of(found))
        error, response = _largest(found, exact), _largest(noisy, exact)
        bound = _FACTOR * (response + unit * weight * _most(exact)) + float(least)
        bound += steps.size if steps is not None else 0.0
        return Judgement(value, nodes, error, bound, False)

    def _freely(
        self, node: Node, operands: Sequence[Array | None], exact: Sequence[Array], known: Mapping[str, int]
    ) -> list[Array]:
        """The node's results in the world that is never set right."""
        return _in_shape(lambda: run_node(node, operands, dict(known)), exact)

    def _noisy(
        self, node: Node, operands: Sequence[Array | None], exact: Sequence[Array], known: Mapping[str, int]
    ) -> list[Array]:
        """The node's results in a noisy world."""
        return _in_shape(lambda: self._noisy_node(node, operands, dict(known)), exact)

    def _noisy_node(self, node: Node, operands: Sequence[Array | None], known: dict[str, int]) -> list[Array]:
        if node.op in CONTROL:
            return evaluate_control(node, operands, known, self._noisy_body)
        if node.op == "kernel":
            (body,) = node.regions
            return self._noisy_body(body, [array for array in operands if array is not None], known)
        return evaluate_node(node, _quantized(node, operands, self.precision.quantized), known)

    def _noisy_body(self, body: Graph, operands: Sequence[Array], known: Mapping[str, int]) -> list[Array]:
        """The results of a region with noise on all that is computed on the way."""
        symbols = bind_symbols(body.inputs, operands, known)
        values: dict[Value, Array] = dict(zip(body.inputs, operands, strict=True))
        values |= {value: const.array() for value, const in body.consts.items()}
        for node in body.nodes:
            inputs = [None if value is None else values[value] for value in node.inputs]
            results = self._noisy_node(node, inputs, symbols)
            weight = _weight(node, inputs, results)
            for value, result in zip(node.outputs, results, strict=True):
                values[value] = result if value in body.outputs else self._rounded(node, result, weight)
        return [values[value] for value in body.outputs]

    def _rounded(self, node: Node, array: Array, weight: float) -> Array:
        if node.op == "quantize" and array.dtype.kind in "iu":
            return self.noise.by_steps(array)
        return self.noise.on(array, weight)


def _in_shape(run: Callable[[], list[Array]], exact: Sequence[Array]) -> list[Array]:
    """Results of another world; the exact ones where it has none of their shapes: sizes may follow from data."""
    try:
        results = run()
    except (AotError, ValueError, IndexError, ArithmeticError):
        return list(exact)
    pairs = zip(results, exact, strict=True)
    return [result if result.shape == array.shape else array for result, array in pairs]


_KEPT = 3
_TINY = 1e-37  # what flushing numbers below the normal ones to zero may amount to


def run_node(node: Node, operands: Sequence[Array | None], known: dict[str, int]) -> list[Array]:
    """The results of any node; control gives symbols their values in `known`."""
    if node.op in CONTROL:
        return evaluate_control(node, operands, known, evaluate)
    return evaluate_node(node, operands, known)


class _Noise:
    """Rounding, made up: a number times 1 plus or minus a unit. The signs are the same in every run."""

    def __init__(self, precision: Precision) -> None:
        self.precision = precision
        self.count = 0

    def on(self, array: Array, weight: float = 1.0) -> Array:
        """The array with noise on every number, `weight` times what one rounding does; integers as they are."""
        if array.dtype.kind in "iub" or not array.size:
            return array
        self.count += 1
        signs = np.resize(_SIGNS[self.count * 977 % 4093 :], array.shape)
        with np.errstate(all="ignore"):
            wide = array.astype(np.float64)
            noisy = np.asarray(wide + wide * signs * (self.precision.unit * weight)).astype(array.dtype)
            # The largest numbers, which masks are made of, must not become infinite.
            return np.where(np.isfinite(array) & ~np.isfinite(noisy), array, noisy)

    def by_steps(self, array: Array) -> Array:
        """A quantized tensor with a third of its numbers a step up and a third a step down."""
        self.count += 1
        shift = np.resize(_STEPS[self.count * 613 % 4093 :], array.shape)
        limits = np.iinfo(array.dtype)
        return np.asarray(np.clip(array.astype(np.int64) + shift, limits.min, limits.max)).astype(array.dtype)


def unit_of(array: Array) -> float:
    """The rounding of the numbers of an array, relative to them."""
    if array.dtype.kind == "f":
        return float(np.finfo(array.dtype).eps) / 2
    return {"bfloat16": UNITS["bf16"]}.get(array.dtype.name, 2.0**-3)


def _largest(found: Array, expected: Array) -> float:
    """The largest |difference|; infinite where one is NaN or infinite and the other is something else."""
    if not found.size:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return math.inf if np.isnan(difference).any() else float(difference.max())


def _most(array: Array) -> float:
    sizes = np.abs(array.astype(np.float64))
    return float(np.max(sizes, initial=0.0, where=np.isfinite(sizes)))


def _counted(found: Array, exact: Array, noisy: Array) -> tuple[float, float, bool]:
    """(error, bound, whether these count elements) of integers, and of what is true or false."""
    wrong, flipped = int(np.count_nonzero(found != exact)), int(np.count_nonzero(noisy != exact))
    if exact.dtype.name not in ("int8", "uint8"):
        return float(wrong), 4.0 * flipped, True
    largest, response = _largest(found, exact), _largest(noisy, exact)
    if largest > 1 + 2 * response:
        return largest, 1 + 2 * response, False
    return float(wrong), max(math.ceil(_STEP_SHARE * exact.size), 4.0 * flipped), True


def _weight(node: Node, operands: Sequence[Array | None], results: Sequence[Array]) -> float:
    """How much worse than a single rounding a node rounds: sums of n numbers by about the root of n."""
    present = [array for array in operands if array is not None]
    if node.op == "kernel":
        return max((_static_weight(inner) for inner in node.regions[0].nodes), default=1.0)
    op = OPS.get(node.op)
    if op is None or not present or not results:
        return 1.0
    if op.kind is Kind.CONTRACT:
        summed = present[0].shape[-1] if present[0].ndim else 1
    elif op.kind is Kind.WINDOW and len(present) > 1:
        summed = present[1].size // max(present[1].shape[0], 1)
    elif op.kind in _SUMS:
        most = max(present, key=lambda array: array.size)
        summed = max(most.shape[-1] if most.ndim else 1, most.size // max(results[0].size, 1))
    else:
        return 1.0
    return 1 + math.sqrt(max(summed, 1)) / 4


_SUMS = frozenset(
    {Kind.REDUCE, Kind.ROW, Kind.ATTEND, Kind.ATTEND_PARTS, Kind.SCAN_AXIS, Kind.RECUR, Kind.OPAQUE, Kind.SCATTER,
     Kind.WINDOW}
)  # fmt: skip


def _static_weight(node: Node) -> float:
    """`_weight` from types alone; a symbolic extent counts as a thousand."""

    def extents(value: Value) -> list[int]:
        return [extent if isinstance(extent, int) else 1024 for extent in value.type.shape]

    op = OPS.get(node.op)
    if op is None or not node.operands:
        return 1.0
    if op.kind is Kind.CONTRACT:
        summed = extents(node.operands[0])[-1]
    elif op.kind is Kind.WINDOW and len(node.operands) > 1:
        summed = math.prod(extents(node.operands[1])[1:])
    elif op.kind in _SUMS:
        shape = max((extents(value) for value in node.operands), key=math.prod)
        summed = max(shape[-1] if shape else 1, math.prod(shape) // max(math.prod(extents(node.outputs[0])), 1))
    else:
        return 1.0
    return 1 + math.sqrt(max(summed, 1)) / 4


# Products that the program quantizes, in the graph of a model that does not say so.


def _quantized(
    node: Node, operands: Sequence[Array | None], quantized: Mapping[str, Rounded]
) -> Sequence[Array | None]:
    """The operands of a product as the program has them: rounded to the steps of its numbers of few bits."""
    if node.op not in ("matmul", "conv") or not quantized:
        return operands
    rounded = next((quantized[name] for name in reversed(node.locs) if name in quantized), None)
    x, w = operands[0], operands[1]
    if rounded is None or x is None or w is None or not x.size or not w.size:
        return operands
    summed = tuple(range(w.ndim - 1)) if node.op == "matmul" else tuple(range(1, w.ndim))
    if rounded.form.startswith("fp8"):
        return [_by_unit(x), _by_unit(w), *operands[2:]]
    w = _by_steps(w, np.abs(w).max(axis=summed, keepdims=True) / (7 if rounded.form == "int4-weights" else 127))
    if not rounded.form.endswith("-weights"):
        if rounded.scale:
            numbers = np.clip(np.rint(x / rounded.scale) + rounded.zero_point, 0, 255)
            x = ((numbers - rounded.zero_point) * rounded.scale).astype(x.dtype)
        else:
            x = _by_steps(x, np.abs(x).max() / 127)
    return [x, w, *operands[2:]]


def _by_steps(array: Array, step: Array) -> Array:
    step = np.where(step > 0, step, 1)
    return np.asarray(np.rint(array / step) * step).astype(array.dtype)


def _by_unit(array: Array) -> Array:
    """Numbers of 3 bits behind the point, as float8 has them."""
    fraction, power = np.frexp(array.astype(np.float64))
    return np.asarray(np.ldexp(np.rint(fraction * 16) / 16, power)).astype(array.dtype)
