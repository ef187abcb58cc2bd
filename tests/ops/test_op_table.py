"""Every op against itself: infer, body, reference, access and decomposition must tell one story."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot import dims as dimension
from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import BF16, F16, DType, from_numpy
from aot.evaluate import evaluate, evaluate_op
from aot.ir import Array, Graph, TensorType, Value
from aot.ops import OPS, AttrSpec, DimMismatch, Kind, OpError, Sample, infer
from tests.ops.samples import Variant, cases, samples_of, types_of, variants


def assert_close(got: Array, expected: Array, sample: Sample) -> None:
    assert got.shape == expected.shape and got.dtype == expected.dtype
    if expected.dtype.kind in "iub":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=sample.relative, atol=sample.absolute)


@pytest.mark.parametrize(("name", "sample"), cases())
def test_infer_agrees_with_reference(name: str, sample: Sample) -> None:
    op = OPS[name]
    types = infer(name, sample.attrs, types_of(sample))
    results = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
    assert [(t.dtype.numpy, t.shape) for t in types] == [(r.dtype, r.shape) for r in results]
    assert not any(t.layout for t in types)


@pytest.mark.parametrize(("name", "sample"), cases(lambda op: op.decompose))
def test_decomposition_agrees_with_reference(name: str, sample: Sample) -> None:
    op = OPS[name]
    builder, given = Builder(), []
    arrays = [array for array in sample.operands if array is not None]
    for number, array in enumerate(sample.operands):
        value = None if array is None else builder.input(f"in{number}", from_numpy(array.dtype), array.shape)
        given.append(value)
    assert op.decompose is not None
    graph = builder.finish(op.decompose(builder, op.check_attrs(sample.attrs), given))
    assert name not in {node.op for node in graph.nodes}
    expected = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
    for got, result in zip(evaluate(graph, arrays), expected, strict=True):
        assert_close(got, result, sample)


@pytest.mark.parametrize(("name", "sample"), cases())
def test_infer_with_symbols_gives_the_shape(name: str, sample: Sample) -> None:
    """What infer accepts must be true; also through the interpreter, and through the decomposition."""
    op = OPS[name]
    expected = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
    arrays = [array for array in sample.operands if array is not None]
    for variant in variants(name, sample):
        for type_, result in zip(variant.results, expected, strict=True):
            assert tuple(dimension.evaluate(extent, variant.symbols) for extent in type_.shape) == result.shape
        graph = symbolic_graph(name, variant, decompose=False)
        for got, result in zip(evaluate(graph, arrays, variant.symbols), expected, strict=True):
            np.testing.assert_array_equal(got, result)
        if op.decompose is not None:
            graph = symbolic_graph(name, variant, decompose=True)
            for got, result in zip(evaluate(graph, arrays, variant.symbols), expected, strict=True):
                assert_close(got, result, sample)


DYNAMIC = ("conv", "conv_transpose", "max_pool", "avg_pool", "attention", "group_norm", "resize", "softmax", "matmul")


@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_sizes_are_accepted(name: str) -> None:
    """The test above would pass if infer refused everything."""
    accepted = [bool(list(variants(name, sample))) for sample in samples_of(name)]
    assert sum(accepted) > len(accepted) / 2


def symbolic_graph(name: str, variant: Variant, decompose: bool) -> Graph:
    builder = Builder()
    given: list[Value | None] = [
        None if t is None else builder.input(f"in{number}", t.dtype, t.shape) for number, t in enumerate(variant.types)
    ]
    op = OPS[name]
    if decompose:
        assert op.decompose is not None
        return builder.finish(op.decompose(builder, variant.attrs, given))
    return builder.finish(builder.op(name, *given, **variant.attrs))


@pytest.mark.parametrize("name", sorted(OPS))
def test_entry_is_complete(name: str) -> None:
    op = OPS[name]
    assert op.name == name and op.doc.endswith(".") and len(op.doc.splitlines()) == 1
    assert samples_of(name), "an op without samples is an op without tests"
    assert all(isinstance(spec, AttrSpec) for spec in op.attrs.values())
    assert (op.access is not None) == (op.kind in (Kind.VIEW, Kind.GATHER, Kind.RANDOM))
    assert op.body is not None or op.reference is not None
    if op.kind is Kind.MAP:
        assert (op.body is None) == (op.decompose is not None)
    if op.kind is Kind.ROW:
        assert op.decompose is not None
    if op.kind is Kind.REDUCE:
        assert op.reduce or op.decompose
    with pytest.raises(OpError, match="no attribute"):
        op.check_attrs({"nonsense": 1})


@pytest.mark.parametrize("name", sorted(OPS))
def test_wrong_operand_count_is_refused(name: str) -> None:
    op = OPS[name]
    sample = samples_of(name)[0]
    types = types_of(sample)
    if types and not op.inputs[0].startswith("*"):
        with pytest.raises(OpError):
            infer(name, sample.attrs, [])
    if not any(given.startswith("*") for given in op.inputs):
        extra = TensorType(from_numpy(np.dtype(np.float32)), ())
        with pytest.raises(OpError):
            infer(name, sample.attrs, [*types, *[extra] * (len(op.inputs) + 1 - len(types))])


def test_mismatch_carries_both_dims() -> None:
    n, m = Symbol("n").dim, Symbol("m").dim
    f32 = from_numpy(np.dtype(np.float32))
    with pytest.raises(DimMismatch) as caught:
        infer("add", {}, [TensorType(f32, (n,)), TensorType(f32, (m,))])
    assert (caught.value.left, caught.value.right) == (n, m)


@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize(
    ("name", "shapes", "attrs"),
    [
        ("softmax", [(4, 33)], {"axis": -1}),
        ("log_softmax", [(4, 33)], {"axis": -1}),
        ("layer_norm", [(4, 33), (33,), (33,)], {"axis": -1}),
        ("rms_norm", [(4, 33), (33,)], {"axis": -1}),
        ("instance_norm", [(2, 3, 9), (3,), (3,)], {}),
        ("group_norm", [(2, 4, 9), (4,), (4,)], {"groups": 2}),
        ("reduce_mean", [(4, 33)], {"axes": (1,)}),
        ("attention", [(1, 2, 5, 8), (1, 2, 6, 8), (1, 2, 6, 8)], {"scale": 0.35}),
    ],
)
def test_half_precision_rows_are_computed_in_f32(
    name: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], dtype: DType
) -> None:
    """Rounded once at the end: within one unit in the last place of the exact result."""
    op = OPS[name]
    rng = np.random.default_rng(3)
    arrays = [np.asarray(rng.normal(size=shape)).astype(dtype.numpy) for shape in shapes]
    builder = Builder()
    given = [builder.input(f"in{number}", dtype, array.shape) for number, array in enumerate(arrays)]
    assert op.decompose is not None
    (got,) = evaluate(builder.finish(op.decompose(builder, op.check_attrs(attrs), given)), arrays)
    (exact,) = evaluate_op(op, op.check_attrs(attrs), [array.astype(np.float64) for array in arrays])
    assert got.dtype == dtype.numpy
    unit = 2.0**-10 if dtype is F16 else 2.0**-7
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=unit, atol=2.0**-22)
