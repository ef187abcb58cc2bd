"""What products take as floats and quantized: measured on this machine's CPU, or modelled for a GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from aot import driver
from aot.calibrate import Tell, this_cpu
from aot.dims import typical
from aot.ir import Graph, Node
from aot.ops.contract import MATMULS
from aot.ops.window import CONVS
from aot.options import CompileOptions
from aot.passes import Context
from aot.quantization import FLOAT, Quantization
from aot.samples import Sample
from aot.target import Target
from aot.transforms.products import Product
from aot.transforms.quantize import quantized

_RUNS = 7

_BYTES = {"int8": (1.0, 1.0), "fp8": (1.0, 1.0), "int8-weights": (0.0, 1.0), "int4-weights": (0.0, 0.5)}
"""Of an element of the left operand, 0: as in float, and of the weight."""

UNIT_CHANNELS = 32
"""Channels of one instruction of tensor cores in 8 bits: an image of three is no faster than in 16."""


_GAIN = 0.97
"""A quantized product is faster if it takes at most this part of the float one's time: less is noise."""


@dataclass(frozen=True, slots=True)
class Times:
    """Microseconds of each product by name, as floats and quantized, and of a whole run in float; said: whose."""

    plain: Mapping[str, float]
    quantized: Mapping[str, float]
    run_us: float
    said: str

    def is_faster(self, name: str) -> bool:
        """Whether a product is faster quantized, by more than is noise; where nothing is known, it is."""
        return not self.plain.get(name) or self.quantized.get(name, 0.0) <= _GAIN * self.plain[name]


NO_TIMES = Times({}, {}, 0.0, "")


def measured_times(
    graph: Graph, products: Sequence[Product], record: Quantization, sample: Sample, options: CompileOptions, tell: Tell
) -> Times:
    """Measured here: one thread, a clock behind each kernel, medians."""
    found: list[Mapping[str, float]] = []
    total, said = 0.0, ""
    for what, each in (("float", graph), ("quantized", quantized(graph, record, Context(options=options)))):
        tell("time", what)
        hardware = this_cpu(each, options)
        artifact, ordered = driver.build_graph(each, options, hardware)
        with artifact.load(threads=1) as model:
            rows = model.profile({name: np.asarray(array, order="C") for name, array in sample.items()}, _RUNS)
        kernels = [node for node in ordered.nodes if node.op == "kernel"]
        if len(kernels) != len(rows):
            return NO_TIMES  # a step is no kernel: nothing is known of one product
        found.append(_by_product(kernels, [seconds * 1e6 for _, _, seconds in rows], products))
        total = total or sum(seconds * 1e6 for _, _, seconds in rows)
        said = f"measured on {hardware[1].name}, one thread"
    plain, fast = found
    return Times(plain, fast, total, said)


def modelled_times(products: Sequence[Product], record: Quantization, target: Target, precision: str) -> Times:
    """From the target's rates: the longer one of the arithmetic and of the bytes of each product.

    Tensor cores multiply numbers of 8 bits twice as fast as those of 16; convolutions in groups do not use them.
    """
    numbers, half = target.numbers, precision in ("fp16", "bf16")
    memory, vector = numbers["memory_bytes_per_us"], numbers["fp32_flops_per_us"]
    tensor = numbers.get("half_flops_per_us", vector)
    plain: dict[str, float] = {}
    fast: dict[str, float] = {}
    for product, node in zip(products, record.nodes, strict=True):
        if node.form == FLOAT:
            continue
        outputs = typical(product.node.output.type.elements)
        inputs = typical(product.x.type.elements)
        weights = int(np.prod(product.weight.shape))
        flops = 2 * outputs * weights / max(product.weight.shape[product.output_axis], 1)
        each = 2.0 if half else 4.0
        rate = vector if product.groups > 1 or not half else tensor
        plain[product.name] = max(flops / rate, (inputs * each + weights * each + outputs * each) / memory)
        kind = node.form.removesuffix("-dynamic")
        left, right = _BYTES[kind]
        has_unit = kind == "int8" or (kind == "fp8" and "float8" in target.features)
        has_unit = has_unit and product.channels >= UNIT_CHANNELS
        fast_rate = 2 * tensor if has_unit and product.groups == 1 else rate
        moved = inputs * (left or each) + weights * right + outputs * each
        extra = inputs * (each + left) / memory if node.form.endswith("-dynamic") else 0.0
        fast[product.name] = max(flops / fast_rate, moved / memory) + extra
    return Times(plain, fast, sum(plain.values()), f"modelled for {target.name}")


def _by_product(kernels: Sequence[Node], times_us: Sequence[float], products: Sequence[Product]) -> dict[str, float]:
    """The time of each product: of the kernel that multiplies, and of those that only prepare its operands.

    Products of one node of the model share its time evenly.
    """
    sharing: dict[str, list[str]] = {}
    for product in products:
        sharing.setdefault(product.node.locs[0] if product.node.locs else product.name, []).append(product.name)
    found: dict[str, float] = {}
    for kernel, time_us in zip(kernels, times_us, strict=True):
        roots = [node for node in kernel.regions[0].nodes if node.op in MATMULS or node.op in CONVS]
        where = {loc for node in roots or kernel.regions[0].nodes for loc in node.locs[:1]}
        if len(where) == 1 and (names := sharing.get(next(iter(where)))):
            for name in names:
                found[name] = found.get(name, 0.0) + time_us / len(names)
    return found
