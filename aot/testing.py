"""Checks of a custom operator on its own samples, for the tests of the package that provides it.

`check_operator` holds the parts of an operator against each other: infer, reference, decomposition, the
kernels of every target that this machine runs, and the import from ONNX. Kernels are called directly, with
poisoned memory around every buffer, so that a fault is reported and not only seen as a wrong number.
"""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from aot import custom
from aot import dims as dimension
from aot.backend import BACKENDS
from aot.backend.base import Backend, Emitted
from aot.builder import Builder
from aot.custom import Operator
from aot.dims import Dim, Symbol
from aot.dtypes import from_numpy
from aot.errors import AotError, OperatorError, TargetError
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Array, Node, TensorType
from aot.kernel import Kernel
from aot.lower import lower
from aot.ops import OPS, Kind, OpError, Sample, infer
from aot.ops.opdef import Attrs
from aot.target import Target

GUARD_BYTES = 512
"""Poisoned bytes before and behind every buffer."""
_POISON = 0xFF  # NaN in every float type
_ALIGNMENT_BYTES = 64


class Checked(NamedTuple):
    """What `check_operator` did: how many samples, how many of these also with symbolic extents, on which targets."""

    samples: int
    symbolic: int
    targets: tuple[str, ...]


def check_operator(operator: Operator, *, threads: Sequence[int] = (1, 2, 3)) -> Checked:
    """Checks an operator on its samples. Raises OperatorError that says which sample fails, and how.

    For every sample: infer gives the types that the reference computes, also where extents are symbols; the
    decomposition agrees with the reference; the compiled kernel agrees with it within the sample's tolerances,
    for fixed and for symbolic extents, gives the same bits for every number of threads, reads no memory that
    is not its own so that it would matter, and writes none. At last all samples as one ONNX model, compiled and run.
    Needs a C compiler, and the runtime's library.
    """
    name = operator.op.name
    with custom.use([operator]):
        samples = list(OPS[name].samples(np.random.default_rng(zlib.crc32(name.encode()))))
        if not samples or not all(isinstance(sample, Sample) for sample in samples):
            raise OperatorError("`samples` must return a list of Sample, of at least one", where=f"operator {name!r}")
        units = [_checked_unit(name, number, sample) for number, sample in enumerate(samples)]
        targets = _check_kernels(name, units, threads)
        _check_import(operator, units, threads)
    return Checked(len(units), sum(unit.variant is not None for unit in units), targets)


# Samples, with numbers and with symbols in place of the extents.


def types_of(sample: Sample) -> list[TensorType | None]:
    """The operands' types."""
    return [None if array is None else TensorType(from_numpy(array.dtype), array.shape) for array in sample.operands]


@dataclass(frozen=True)
class Variant:
    """A sample with symbols for some extents: what infer was given, what it said, and the symbols' values."""

    types: list[TensorType | None]
    attrs: Attrs
    results: tuple[TensorType, ...]
    symbols: dict[str, int]


def variants(name: str, sample: Sample) -> Iterator[Variant]:
    """Every way tried to put symbols in place of extents that infer accepts.

    First equal extents as one symbol, everywhere; then all axes of the first operand as symbols of
    their own; then one axis of it at a time.
    """
    extents = sorted({n for array in sample.operands if array is not None for n in array.shape if n > 1})
    yield from _accepted(name, sample, {n: f"s{n}" for n in extents}, None)
    if sample.operands and sample.operands[0] is not None:
        axes = [axis for axis, n in enumerate(sample.operands[0].shape) if n > 1]
        for chosen in [axes, *([axis] for axis in axes)]:
            yield from _accepted(name, sample, {}, chosen)


def _accepted(name: str, sample: Sample, by_extent: dict[int, str], axes: list[int] | None) -> Iterator[Variant]:
    symbols: dict[str, int] = {}

    def named(symbol: str, extent: int) -> Dim:
        symbols[symbol] = extent
        return Symbol(symbol, lo=2).dim

    def replaced(extent: Any) -> Any:
        return named(by_extent[extent], extent) if extent in by_extent else extent

    types = types_of(sample)
    attrs = dict(sample.attrs)
    if axes is None:
        types = [None if t is None else TensorType(t.dtype, tuple(map(replaced, t.shape))) for t in types]
        for key in ("shape", "sizes"):
            value = attrs.get(key)
            if isinstance(value, tuple):
                attrs[key] = tuple(map(replaced, value))
    else:
        first = sample.operands[0]
        assert first is not None
        shape = tuple(named(f"a{axis}", n) if axis in axes else n for axis, n in enumerate(first.shape))
        types[0] = TensorType(from_numpy(first.dtype), shape)
    try:
        results = infer(name, attrs, types)
    except OpError:
        return  # it wants fixed extents here, or cannot prove that they fit
    yield Variant(types, OPS[name].check_attrs(attrs), results, symbols)


@dataclass(frozen=True)
class _Unit:
    """A sample with its expected results, and a variant with symbols if there is one."""

    number: int
    sample: Sample
    attrs: Attrs
    expected: list[Array]
    variant: Variant | None

    def fault(self, name: str, reason: str) -> OperatorError:
        shapes = ", ".join("omitted" if t is None else str(t) for t in types_of(self.sample))
        attrs = ", ".join(f"{key}={value!r}" for key, value in sorted(self.sample.attrs.items()))
        what = f"operator {name!r}, sample {self.number} ({shapes}{'; ' if attrs else ''}{attrs})"
        return OperatorError(reason, where=what)


def _checked_unit(name: str, number: int, sample: Sample) -> _Unit:
    """infer, reference and decomposition, without a compiler."""
    op = OPS[name]
    unit = _Unit(number, sample, {}, [], None)
    try:
        types = infer(name, sample.attrs, types_of(sample))
        attrs = op.check_attrs(sample.attrs)
    except OpError as error:
        raise unit.fault(name, f"infer refuses it: {error.message}") from error
    before = [None if array is None else array.copy() for array in sample.operands]
    expected = evaluate_op(op, attrs, sample.operands)
    for position, (array, copy) in enumerate(zip(sample.operands, before, strict=True)):
        if array is not None and array.tobytes() != _must(copy).tobytes():
            raise unit.fault(name, f"the reference changes operand {position}")
    said = [f"{t.dtype}[{', '.join(map(str, t.shape))}]" for t in types]
    computed = [f"{_dtype_name(array)}[{', '.join(map(str, array.shape))}]" for array in expected]
    if said != computed:
        raise unit.fault(name, f"infer says {', '.join(said)}; the reference computes {', '.join(computed)}")
    accepted: Variant | None = None
    for variant in variants(name, sample):
        accepted = accepted or (variant if variant.symbols else None)
        for position, (type_, array) in enumerate(zip(variant.results, expected, strict=True)):
            extents = tuple(dimension.evaluate(extent, variant.symbols) for extent in type_.shape)
            if extents != array.shape or type_.dtype.numpy != array.dtype:
                given = ", ".join("omitted" if t is None else str(t) for t in variant.types)
                raise unit.fault(
                    name,
                    f"for ({given}) infer says that result {position} is {type_}, which is {list(extents)} for these "
                    f"sizes; the reference computes {list(array.shape)}",
                )
    unit = _Unit(number, sample, attrs, expected, accepted)
    if op.decompose is not None:
        builder = Builder()
        operands = [
            None if t is None else builder.input(f"x{n}", t.dtype, t.shape) for n, t in enumerate(types_of(sample))
        ]
        graph = builder.finish(op.decompose(builder, attrs, operands))
        for position, array in enumerate(evaluate(graph, [a for a in sample.operands if a is not None])):
            _compare(unit, name, f"result {position} of the decomposition", array, expected[position])
    return unit


def _dtype_name(array: Array) -> str:
    try:
        return from_numpy(array.dtype).name
    except AotError:
        return str(array.dtype)


def _must(array: Array | None) -> Array:
    assert array is not None
    return array


def _compare(unit: _Unit, name: str, what: str, found: Array, expected: Array) -> None:
    """Raises OperatorError where an array is beyond the sample's tolerances."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        raise unit.fault(
            name, f"{what} is {found.dtype}{list(found.shape)}; expected {expected.dtype}{list(expected.shape)}"
        )
    if not found.size:
        return
    if found.dtype.kind in "iub":
        wrong = found != expected
    else:
        wide, wanted = found.astype(np.float64), expected.astype(np.float64)
        with np.errstate(all="ignore"):
            limit = unit.sample.absolute + unit.sample.relative * np.abs(wanted)
            same = (wide == wanted) | (np.isnan(wide) & np.isnan(wanted))
            wrong = ~same & ~(np.abs(wide - wanted) <= limit)
    if wrong.any():
        place = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise unit.fault(
            name,
            f"{what} is wrong in {int(wrong.sum())} of {wrong.size} elements; the first is at {list(place)}: "
            f"{found[place]}, expected {expected[place]}",
        )


# Kernels, called directly.


@dataclass(frozen=True)
class _Case:
    unit: _Unit
    emitted: Emitted
    symbols: Mapping[str, int]


def _check_kernels(name: str, units: Sequence[_Unit], threads: Sequence[int]) -> tuple[str, ...]:
    """Builds and calls the kernels of every target that this machine runs; returns the targets' names."""
    if OPS[name].kind is not Kind.MAP and not OPS[name].sources:
        return ()  # it is only its decomposition
    targets = _targets()
    for backend, target in targets:
        cases: list[_Case] = []
        for unit in units:
            forms: list[tuple[Sequence[TensorType | None], Attrs, Mapping[str, int]]] = []
            forms.append((types_of(unit.sample), unit.attrs, {}))
            if unit.variant is not None:
                forms.append((unit.variant.types, unit.variant.attrs, unit.variant.symbols))
            for types, attrs, symbols in forms:
                emitted = backend.emit(_kernel(name, types, attrs), target)
                cases.append(_Case(unit, emitted, symbols))
        symbol_of = {case.emitted.source: _symbol(case.emitted.source) for case in cases}
        code = backend.build([(symbol, source) for source, symbol in symbol_of.items()], target, None).code
        with tempfile.TemporaryDirectory(prefix="aot-testing-") as folder:
            path = Path(folder) / "kernels.so"
            path.write_bytes(code)
            library = ctypes.CDLL(str(path))
        for case in cases:
            _check_calls(name, case, getattr(library, symbol_of[case.emitted.source]), threads, target.name)
    return tuple(target.name for _, target in targets)


def _targets() -> list[tuple[Backend, Target]]:
    """The targets that this machine runs, the best first. Raises TargetError where it runs none."""
    from aot import runtime

    known = [
        (backend, backend.target(name))
        for backend in BACKENDS.values()
        for name in dict.fromkeys((*backend.default_architectures, *backend.quantized_architectures))
    ]
    found = [(backend, target) for backend, target in known if runtime.target_supported(target.name)]
    if not found:
        raise TargetError(f"this machine runs none of {', '.join(target.name for _, target in known)}")
    return found


def _symbol(source: str) -> str:
    return f"k_{hashlib.sha256(source.encode()).hexdigest()[:20]}"


def _kernel(name: str, types: Sequence[TensorType | None], attrs: Attrs) -> Kernel:
    """The op alone as a kernel."""
    builder = Builder()
    given = [None if t is None else builder.input(f"x{n}", t.dtype, t.shape) for n, t in enumerate(types)]
    body = builder.finish(builder.op(name, *given, **attrs))
    attributes = {"name": "kernel", "kind": OPS[name].kind.value}
    return lower(Node("kernel", body.inputs, body.outputs, attributes, (name,), (body,)), lambda value: False)


class _Arguments(ctypes.Structure):
    """aot_kernel_args of aot/runtime.h."""

    _fields_ = (
        ("buffers", ctypes.c_void_p),
        ("dims", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("thread", ctypes.c_int32),
        ("thread_count", ctypes.c_int32),
    )


class _Buffer:
    """Bytes with poison around them, at an address of no more than the alignment asked for."""

    def __init__(self, size_bytes: int, alignment_bytes: int, exactly: bool) -> None:
        self.whole: Array = np.full(size_bytes + 2 * GUARD_BYTES + 2 * _ALIGNMENT_BYTES, _POISON, np.uint8)
        start = GUARD_BYTES + -(self.whole.ctypes.data + GUARD_BYTES) % _ALIGNMENT_BYTES
        self.start = start + (alignment_bytes if exactly else 0)
        self.size = size_bytes
        self.address = self.whole.ctypes.data + self.start

    @property
    def content(self) -> Array:
        return self.whole[self.start : self.start + self.size]

    @property
    def is_intact(self) -> bool:
        """Whether nothing around the bytes was written."""
        before, behind = self.whole[: self.start], self.whole[self.start + self.size :]
        return bool((before == _POISON).all() and (behind == _POISON).all())


def _check_calls(name: str, case: _Case, function: Any, threads: Sequence[int], target: str) -> None:
    """Calls a kernel with each number of threads, one thread after the other, and looks at all it did."""
    arrays = [array for array in case.unit.sample.operands if array is not None]
    first: list[bytes] = []
    for count in threads:
        label = f"{target}{', symbolic extents' if case.symbols else ''}, {count} thread{'s' if count > 1 else ''}"
        inputs = [_Buffer(a.nbytes, a.itemsize, exactly=True) for a in arrays]
        for buffer, array in zip(inputs, arrays, strict=True):
            buffer.content[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        outputs = [_Buffer(a.nbytes, a.itemsize, exactly=True) for a in case.unit.expected]
        before = [buffer.whole.copy() for buffer in inputs]
        scratch = _call(function, case, [*inputs, *outputs], count)
        for position, (buffer, copy) in enumerate(zip(inputs, before, strict=True)):
            if (buffer.whole != copy).any():
                raise case.unit.fault(name, f"{label}: the kernel writes to operand {position}, or beside it")
        for position, buffer in enumerate(outputs):
            if not buffer.is_intact:
                raise case.unit.fault(name, f"{label}: the kernel writes beside result {position}")
        if not all(buffer.is_intact for buffer in scratch):
            raise case.unit.fault(name, f"{label}: the kernel writes beside its scratch memory")
        results = [
            buffer.content.copy().view(expected.dtype).reshape(expected.shape)
            for buffer, expected in zip(outputs, case.unit.expected, strict=True)
        ]
        for position, (found, expected) in enumerate(zip(results, case.unit.expected, strict=True)):
            _compare(case.unit, name, f"{label}: result {position}", found, expected)
        bits = [array.tobytes() for array in results]
        first = first or bits
        if bits != first:
            raise case.unit.fault(name, f"{label}: the results have other bits than with {threads[0]}")


def _call(function: Any, case: _Case, buffers: Sequence[_Buffer], count: int) -> list[_Buffer]:
    addresses = (ctypes.c_void_p * max(len(buffers), 1))(*(buffer.address for buffer in buffers))
    extents = [dimension.evaluate(extent, case.symbols) for extent in case.emitted.dims]
    numbers = (ctypes.c_int64 * max(len(extents), 1))(*extents)
    scratch_bytes = dimension.evaluate(case.emitted.scratch_bytes, case.symbols)
    used: list[_Buffer] = []
    for thread in range(count):
        used.append(_Buffer(scratch_bytes, _ALIGNMENT_BYTES, exactly=False))
        arguments = _Arguments(ctypes.addressof(addresses), ctypes.addressof(numbers), used[-1].address, thread, count)
        function(ctypes.byref(arguments))
    return used


# All samples as one ONNX model.


def _check_import(operator: Operator, units: Sequence[_Unit], threads: Sequence[int]) -> None:
    """Compiles a model that has a node for each sample, runs it, and compares."""
    from aot import driver, runtime
    from aot.frontend.onnx_model import onnx_number

    name = operator.op.name
    model, feed, wanted = _model(operator, units, onnx_number)
    artifact = driver.compile(model, _targets()[0][1].name, operators=[operator])
    with tempfile.TemporaryDirectory(prefix="aot-testing-") as folder:
        path = Path(folder) / "model.aot"
        artifact.save(path)
        for count in threads:
            found = runtime.load(path, threads=count).run(feed)
            for output, (unit, position) in wanted.items():
                what = f"compiled from ONNX, {count} thread{'s' if count > 1 else ''}: result {position}"
                _compare(unit, name, what, np.asarray(found[output]), unit.expected[position])


def _model(
    operator: Operator, units: Sequence[_Unit], onnx_number: Any
) -> tuple[Any, dict[str, Array], dict[str, tuple[_Unit, int]]]:
    """The model, its inputs by name, and by output name the sample and the number of the result."""
    from onnx import AttributeProto, helper

    feed: dict[str, Array] = {}
    wanted: dict[str, tuple[_Unit, int]] = {}
    nodes, inputs, outputs = [], [], []
    onnx_names = {own: onnx_name for onnx_name, own in operator.attributes.items()}
    for unit in units:
        types = unit.variant.types if unit.variant is not None else types_of(unit.sample)
        read = []
        for position, (type_, array) in enumerate(zip(types, unit.sample.operands, strict=True)):
            read.append("" if array is None else f"x{unit.number}_{position}")
            if type_ is not None and array is not None:
                shape = [e if isinstance(e, int) else f"{e}_{unit.number}" for e in type_.shape]
                inputs.append(helper.make_tensor_value_info(read[-1], onnx_number(type_.dtype), shape))
                feed[read[-1]] = array
        made = [f"y{unit.number}_{position}" for position in range(len(unit.expected))]
        for position, (output, array) in enumerate(zip(made, unit.expected, strict=True)):
            wanted[output] = (unit, position)
            info = helper.make_tensor_value_info(output, onnx_number(from_numpy(array.dtype)), None)
            outputs.append(info)
        node = helper.make_node(operator.op_type, read, made, name=f"sample_{unit.number}", domain=operator.domain)
        for key, value in unit.sample.attrs.items():
            spec = operator.op.attrs[key].type
            given: Any = list(value) if isinstance(value, tuple) else value
            if spec == "float":
                given = float(given)
            elif spec == "floats":
                given = [float(item) for item in given]
            elif spec == "bool":
                given = int(given)
            kind = AttributeProto.INTS if spec == "ints" else AttributeProto.FLOATS if spec == "floats" else None
            node.attribute.append(helper.make_attribute(onnx_names.get(key, key), given, attr_type=kind))
        nodes.append(node)
    opsets = [helper.make_opsetid("", 17)]
    if operator.domain:
        opsets.append(helper.make_opsetid(operator.domain, operator.since_version))
    graph = helper.make_graph(nodes, "samples", inputs, outputs)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), feed, wanted
