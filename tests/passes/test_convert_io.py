"""--io-dtype: the signature, and what lies right behind it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aot.builder import Builder
from aot.dtypes import BF16, F16, F32, F64, I64, DType
from aot.evaluate import evaluate
from aot.ir import Graph, const_of
from aot.options import CompileOptions
from aot.passes import Context
from aot.program import RecipeOp
from aot.transforms.convert_io import convert_io
from aot.verify import verify


def converted(graph: Graph, name: str) -> Graph:
    result = convert_io(graph, Context(options=CompileOptions(io_dtype=name)))
    verify(result)
    return result


@pytest.mark.parametrize(("name", "dtype"), [("fp16", F16), ("bf16", BF16)])
def test_signature_and_numbers(name: str, dtype: DType) -> None:
    b = Builder()
    x, y, n = b.input("x", F32, (3, 4)), b.input("y", F64, (3, 4)), b.input("n", I64, (3,))
    made = b.exp(x)
    graph = b.finish((made, b.neg(y), made, x, n))
    result = converted(graph, name)
    assert [v.name for v in result.inputs] == ["x", "y", "n"]
    assert [v.type.dtype for v in result.inputs] == [dtype, F64, I64]
    assert [v.type.dtype for v in result.outputs] == [dtype, F64, dtype, dtype, I64]
    values = np.linspace(-2, 2, 12).reshape(3, 4)
    arrays = [values.astype(dtype.numpy), values, np.arange(3)]
    found = evaluate(result, arrays)
    np.testing.assert_array_equal(found[0], np.exp(arrays[0].astype(np.float32)).astype(dtype.numpy))
    np.testing.assert_array_equal(found[3], arrays[0])


def test_the_model_keeps_its_types_by_default() -> None:
    b = Builder()
    graph = b.finish((b.exp(b.input("x", F32, (3,))),))
    assert converted(graph, "model") is graph
    b = Builder()
    graph = b.finish((b.neg(b.input("n", I64, (3,))),))
    assert converted(graph, "fp16") is graph


def test_state_stays_narrow_from_end_to_end() -> None:
    b = Builder()
    cache, place, x = b.input("cache", F32, (4, 6)), b.input("place", I64, (1, 6)), b.input("x", F32, (1, 6))
    flat = b.reshape(cache, shape=(4, 6))
    changed = b.scatter_elements(b.scatter_elements(flat, place, b.exp(x), axis=0), place, b.neg(x), axis=0)
    graph = b.finish((changed, b.reduce_sum(changed, axes=(0,), keepdims=False)), ((cache, changed),))
    graph = replace(graph, initial=((0, const_of(np.full((4, 6), 0.1, np.float32), "cache0")),))
    result = converted(graph, "fp16")
    assert result.state == ((result.inputs[0], result.outputs[0]),)
    scatters = [node for node in result.nodes if node.op == "scatter_elements"]
    assert [v.type.dtype for node in scatters for v in (*node.operands, node.output)] == [F16, I64, F16, F16] * 2
    ((number, const),) = result.initial
    assert number == 0 and const.dtype == F16 and const.recipe is not None and const.recipe[-1].op is RecipeOp.CAST
    arrays = [np.ones((4, 6), np.float16), np.full((1, 6), 2), np.full((1, 6), 0.3, np.float16)]
    state, total = evaluate(result, arrays)
    wanted, wanted_total = evaluate(graph, [arrays[0].astype(np.float32), arrays[1], arrays[2].astype(np.float32)])
    np.testing.assert_allclose(state.astype(np.float32), wanted, rtol=1e-3)
    np.testing.assert_allclose(total.astype(np.float32), wanted_total, rtol=1e-3)


def test_state_that_is_computed_anew() -> None:
    b = Builder()
    kept = b.input("kept", F32, (3,))
    added = b.add(kept, b.scalar(1.0, F32))
    untouched = b.input("untouched", F32, (2,))
    graph = b.finish((added, untouched), ((kept, added), (untouched, untouched)))
    result = converted(graph, "fp16")
    assert [v.type.dtype for pair in result.state for v in pair] == [F16] * 4
    found = evaluate(result, [np.arange(3, dtype=np.float16), np.arange(2, dtype=np.float16)])
    np.testing.assert_array_equal(found[0], [1, 2, 3])
    np.testing.assert_array_equal(found[1], [0, 1])
