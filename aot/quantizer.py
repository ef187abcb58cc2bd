"""From calibration to a record: ranges, balance, correction and rounding for every product of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from aot import rounding
from aot.calibrate import Calibration, Tell, gram_sums
from aot.dtypes import F8E4M3
from aot.ir import Array, Graph
from aot.observations import Observation
from aot.ops.quantized import FLOAT8_MOST, NIBBLE_ZERO, pack_rows
from aot.options import CompileOptions
from aot.quantization import FLOAT, STATIC, Entry, Method, NodeRecord, Quantization
from aot.samples import Samples
from aot.transforms.observe import taps
from aot.transforms.products import Product, products_digest, weight_array
from aot.transforms.quantize import packed_weight, rounded_weight

_LEVELS = 255
_ATTENUATIONS = tuple((reference, exponent) for reference in (0.75, 0.9, 0.99) for exponent in (0.5, 1.0))
"""Ways to balance: which of the channels' ranges counts as ordinary, as a quantile, and how much of what a channel has
beyond it goes to its weight."""

_WORTH = 0.7
"""Balance costs a multiplication: it is used where it lessens the modelled error to this part."""


@dataclass(frozen=True, slots=True)
class Range:
    """What an activation is quantized between, and the balance of its channels; empty: none."""

    low: float
    high: float
    balance: Array


def records(
    products: Sequence[Product], method: Method, calibration: Calibration | None, notes: list[str]
) -> tuple[NodeRecord, ...]:
    """What each product needs for the method's form; those that cannot have it, or shall not, are float.

    `notes` gets a warning, in the user's names, for whatever was done otherwise than asked.
    """
    ranges: dict[str, Range] = {}
    seen: dict[str, Observation] = {}
    if calibration is not None:
        for name, group in taps(products).items():
            observation = calibration.taps[name]
            found = _range(observation, group, method) if method.form in STATIC else Range(0.0, 0.0, _NONE)
            if method.form in STATIC:
                _warn(name, observation, notes)
            ranges |= dict.fromkeys((product.name for product in group), found)
            seen |= dict.fromkeys((product.name for product in group), observation)
    made = tuple(_record(product, method, ranges.get(product.name), seen.get(product.name)) for product in products)
    notes += [f"{product.name}: {_BROKEN}: it stays float" for product in products if not _is_finite(product)]
    return made


_NONE = np.zeros(0, np.float32)


def _record(product: Product, method: Method, found: Range | None, seen: Observation | None) -> NodeRecord:
    if why_float(product, method, seen):
        return NodeRecord(product.name, FLOAT)
    means = _NONE
    if method.bias_correction and seen is not None and seen.rows:
        means = seen.means.astype(np.float32)
    record = NodeRecord(product.name, method.form, means=means)
    if found is None or method.form not in STATIC:
        return record
    scale, zero = parameters(found.low, found.high, method)
    return replace(record, scale=scale, zero_point=zero, balance=found.balance)


_BROKEN = "its weight holds NaN or infinity"


def _is_finite(product: Product) -> bool:
    return bool(np.isfinite(weight_array(product)).all())


def why_float(product: Product, method: Method, seen: Observation | None) -> str:
    """Why a product keeps its floats whatever is measured, or nothing."""
    asked = next((part for part in method.float_nodes if part in product.name), None)
    if asked is not None:
        return f"asked for: {asked}"
    if method.form.endswith("-weights") and product.node.op != "matmul":
        return "only the weights of matrix products are held in few bits"
    if not _is_finite(product):
        return _BROKEN
    return _unfit(seen) if method.form in STATIC and seen is not None else ""


def _unfit(seen: Observation) -> str:
    """Why no range follows from what was seen, or nothing."""
    if not seen.elements:
        return "no data went through it"
    if seen.not_finite:
        return f"{seen.not_finite} of its inputs were infinite or NaN on the data"
    return f"its input was {seen.least:g} on all of the data" if seen.is_constant else ""


def _warn(name: str, seen: Observation, notes: list[str]) -> None:
    if reason := _unfit(seen):
        notes.append(f"{name}: {reason}: it stays float")
    elif (constant := seen.constant_channels()) and constant * 2 > seen.low.size > 8:
        notes.append(f"{name}: {constant} of {seen.low.size} channels of its input had one value on all of the data")


def parameters(low: float, high: float, method: Method) -> tuple[float, int]:
    """(scale, zero point) of an activation between two numbers: u8 for int8, without a zero point for fp8."""
    if method.form.startswith("fp8"):
        return float(np.float32(max(-low, high, 1e-30) / FLOAT8_MOST[F8E4M3])), 0
    if method.symmetric:
        return float(np.float32(max(-low, high, 1e-30) / 127)), 128
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max((high - low) / _LEVELS, 1e-30)
    return float(np.float32(scale)), int(np.clip(np.rint(-low / scale), 0, 255))


# Ranges.


def _range(seen: Observation, group: Sequence[Product], method: Method) -> Range:
    """The range of a tensor that these products read, with a balance of its channels where that pays."""
    if method.form.startswith("fp8"):
        return Range(seen.least, seen.greatest, _NONE)
    low, high = seen.range(method.observer, method.percentile, _LEVELS)
    if method.symmetric:
        high = max(-low, high)
        low = -high
    plain = Range(low, high, _NONE)
    if not method.balance or not seen.elements:
        return plain
    weights = [weight_array(product) for product in group]
    most = seen.most
    best, least = plain, _WORTH * _modelled_error(seen, group, weights, plain, seen.error(low, high, _LEVELS))
    for factor in _balances(most, _largest(group, weights)):
        balance = factor.astype(np.float32)
        ends = [np.where(np.isfinite(end), end, 0) / balance for end in (seen.low, seen.high)]
        found = Range(min(float(ends[0].min()), 0.0), max(float(ends[1].max()), 0.0), balance)
        if method.symmetric:
            top = max(-found.low, found.high)
            found = Range(-top, top, balance)
        step = (found.high - found.low) / _LEVELS
        error = _modelled_error(seen, group, weights, found, step * step / 12)
        if error < least:
            best, least = found, error
    return best


def _balances(most: Array, largest: Array) -> Iterator[Array]:
    """f64 [channels]: what activations may be divided by, from the largest magnitudes of activations and of weights.

    Channels that stand out are attenuated. Where a channel's weights stand out instead, it is amplified, and its
    weights shrink; but only up to half of what an ordinary channel has: numbers larger than those on this data have
    room, and a channel that hardly speaks on it may speak on other data.
    """
    for reference, exponent in _ATTENUATIONS:
        # Between two channels a quantile leans towards an outlier.
        ordinary = float(np.quantile(most, reference, method="lower"))
        if ordinary <= 0:
            continue
        down = np.maximum(most / ordinary, 1.0) ** exponent
        if ordinary < most.max():
            yield down
        usual = float(np.quantile(largest, reference, method="lower"))
        heavy = largest > 2 * usual
        if heavy.any():
            wanted = usual / np.where(heavy, largest, 1.0)
            up = np.minimum(np.maximum(wanted, most / (ordinary / 2)), 1.0)
            yield np.where(heavy & (down == 1), up, down)


def _largest(group: Sequence[Product], weights: Sequence[Array]) -> Array:
    """f64 [channels]: the largest magnitude of the weights of each channel."""
    found = np.zeros(group[0].channels)
    for product, weight in zip(group, weights, strict=True):
        if product.node.op == "matmul":
            own = np.abs(weight).max(axis=1)
        else:
            outputs, inputs, *_ = weight.shape
            grouped = np.abs(weight).reshape(product.groups, outputs // product.groups, inputs, -1)
            own = grouped.max(axis=(1, 3)).reshape(-1)
        found = np.maximum(found, own)
    return found


def _modelled_error(
    seen: Observation, group: Sequence[Product], weights: Sequence[Array], found: Range, activation: float
) -> float:
    """The squared error of the outputs that rounding of activations (of that variance) and of weights makes."""
    balance = found.balance.astype(np.float64) if found.balance.size else np.ones(group[0].channels)
    power = seen.squares / balance**2
    total = 0.0
    for product, weight in zip(group, weights, strict=True):
        scaled = weight * product.by_channel(balance)
        axes = tuple(axis for axis in range(weight.ndim) if axis != product.output_axis)
        steps = np.abs(scaled).max(axis=axes) / 127
        total += activation * float(np.square(scaled).sum())
        per_output = np.broadcast_to(product.by_channel(power), weight.shape).sum(axis=axes)
        total += float((steps**2 / 12 * per_output).sum())
    return total


# Rounding with data.


def rounded_with_data(
    graph: Graph, products: Sequence[Product], record: Quantization, data: Samples,
    options: CompileOptions, tell: Tell,
) -> Quantization:  # fmt: skip
    """The record with weights that were rounded so that the products keep their values on the data.

    Where what a product reads is not finite, or too large to be squared, its weight is rounded to nearest; a note says
    so.
    """
    method = record.method
    by_node = record.by_node
    chosen = [product for product in products if by_node[product.name].form != FLOAT]
    bits = 4 if method.form == "int4-weights" else 8
    low, high = (-NIBBLE_ZERO, NIBBLE_ZERO - 1) if bits == 4 else (-127, 127)
    made: dict[str, NodeRecord] = {}
    notes: list[str] = []
    for product, gram in gram_sums(graph, chosen, data, options, tell):
        if not np.isfinite(gram).all():
            notes.append(f"{product.name}: the squares of its inputs are not finite: its weight is rounded to nearest")
            continue
        weight = weight_array(product)
        _, scale, _, block = packed_weight(weight, by_node[product.name], method.block)
        numbers = rounding.gptq(weight, gram, scale, block, low, high)
        stored = pack_rows(numbers + NIBBLE_ZERO) if bits == 4 else numbers.astype(np.int8)
        made[product.name] = replace(by_node[product.name], weight=stored, weight_scale=scale)
    nodes = tuple(made.get(node.node, node) for node in record.nodes)
    return replace(record, nodes=nodes, notes=(*record.notes, *notes))


# The ledger's first columns.


def entries(products: Sequence[Product], record: Quantization, calibration: Calibration | None) -> tuple[Entry, ...]:
    """A line for each product: what rounding does to its weight and its input."""
    by_node: Mapping[str, NodeRecord] = record.by_node
    seen: dict[str, Observation] = {}
    if calibration is not None:
        for name, group in taps(products).items():
            seen |= dict.fromkeys((product.name for product in group), calibration.taps[name])
    found = []
    for product in products:
        node = by_node[product.name]
        entry = Entry(
            node=product.name, op=product.node.op, form=node.form, weight_bytes=product.weight.bytes,
            reason=why_float(product, record.method, seen.get(product.name)),
        )  # fmt: skip
        if node.form != FLOAT:
            entry = replace(entry, weight_snr_db=_weight_snr_db(product, node, record.method))
        if product.name in seen:
            of_weight, of_input, loss = hardness(product, seen[product.name])
            entry = replace(entry, weight_hardness=of_weight, input_hardness=of_input, input_loss=loss)
            entry = _with_input(entry, node, seen[product.name]) if node.form in STATIC else entry
        found.append(entry)
    return tuple(found)


def hardness(product: Product, seen: Observation) -> tuple[float, float, float]:
    """(weight, input, loss): relative errors in the simplest 8-bit form, modelled; 0 without data.

    That is one scale for the whole weight, and the whole range of the input. A number that is less than half a step is
    lost, others are off by the twelfth of a step's square. The first two are of the usual weight and of the usual
    input, medians of the weights and of the channels: they tell where a few large ones take the range from all others.
    The third is what the input's rounding does to the usual result: little, where those few are all that matters.
    """
    weight = weight_array(product).astype(np.float64)
    power, width = seen.squares, (max(seen.greatest, 0.0) - min(seen.least, 0.0)) / _LEVELS
    own, spoken = weight[weight != 0] ** 2, power[power > 0]
    if not own.size or not spoken.size or not np.isfinite(weight).all():
        return 0.0, 0.0, 0.0
    step = np.abs(weight).max() / 127
    axes = tuple(axis for axis in range(weight.ndim) if axis != product.output_axis)
    squares, of_channel = weight**2, np.broadcast_to(product.by_channel(power), weight.shape)
    signal = (squares * of_channel).sum(axis=axes)
    noise = (squares * np.minimum(of_channel, width**2 / 12)).sum(axis=axes)
    shares = (
        np.minimum(step**2 / 12 / own, 1.0), np.minimum(width**2 / 12 / spoken, 1.0),
        noise[signal > 0] / signal[signal > 0],
    )  # fmt: skip
    weights, inputs, loss = (float(np.sqrt(np.median(share))) if share.size else 0.0 for share in shares)
    return weights, inputs, loss


def _with_input(entry: Entry, node: NodeRecord, seen: Observation) -> Entry:
    if node.form != "int8":
        return entry
    low, high = -node.zero_point * node.scale, (_LEVELS - node.zero_point) * node.scale
    if node.balance.size:
        step = node.scale
        return replace(entry, input_snr_db=_db(float((seen.squares / node.balance**2).mean()), step * step / 12))
    power = float(seen.squares.mean())
    return replace(entry, input_snr_db=_db(power, seen.error(low, high, _LEVELS)), saturated=seen.saturated(low, high))


def _weight_snr_db(product: Product, node: NodeRecord, method: Method) -> float | None:
    weight = weight_array(product)
    if node.form.endswith("-weights"):
        return None
    if node.balance.size:
        weight = weight * product.by_channel(node.balance)
    numbers, spread = rounded_weight(product, weight, node.form, method)
    error = weight - numbers.astype(np.float32) * spread
    return _db(float(np.square(weight, dtype=np.float64).sum()), float(np.square(error, dtype=np.float64).sum()))


def _db(signal: float, noise: float) -> float | None:
    """The ratio in decibels, with one digit; None where there is no signal, 200 at most."""
    if signal <= 0:
        return None
    return round(min(10 * float(np.log10(signal / max(noise, signal * 1e-20))), 200.0), 1)


def planned(products: Sequence[Product], method: Method, calibration: Calibration | None) -> Quantization:
    """The record of a method, with nothing measured yet."""
    if calibration is not None:
        calibration.check(products)
    notes: list[str] = []
    nodes = records(products, method, calibration, notes)
    data, samples = (calibration.data, calibration.samples) if calibration is not None else ("", 0)
    record = Quantization(method, nodes, products_digest(products), data, samples, notes=tuple(notes))
    return replace(record, ledger=entries(products, record, calibration))
