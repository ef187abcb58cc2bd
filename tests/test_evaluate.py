"""The interpreter and the folding: symbols, kernels, messages, and bits that do not depend on the machine."""

from __future__ import annotations

import hashlib
import importlib
import os
import subprocess
import sys
import zlib
from types import MappingProxyType

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Symbol
from aot.dtypes import F16, F32, F64, I8, I64, from_numpy
from aot.errors import CompilerError, ModelError
from aot.evaluate import evaluate, evaluate_op, fold_value
from aot.ir import Array, Graph, Level, Node, TensorType, Value
from aot.lower import OWNED_KINDS
from aot.ops import OPS, Kind, Sample, infer


def softmax_of_rows() -> Graph:
    builder = Builder()
    n = Symbol("n").dim
    x = builder.input("x", F32, (n, 2 * n))
    y = builder.reshape(x, shape=(2 * n * n,))
    return builder.finish([builder.reduce_mean(y, axes=(0,), keepdims=False), builder.dim_tensor(dims=(n, n * n))])


def test_symbols_come_from_input_shapes() -> None:
    x = np.arange(18, dtype=np.float32).reshape(3, 6)
    mean, sizes = evaluate(softmax_of_rows(), {"x": x})
    assert mean == x.mean() and sizes.tolist() == [3, 9]
    assert evaluate(softmax_of_rows(), [x])[0] == mean


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"x": np.zeros((3, 5), np.float32)}, r"input 'x': axis 1 must have extent 2\*n = 6; it has 5"),
        ({"x": np.zeros((3,), np.float32)}, "expected rank 2, got 1"),
        ({"x": np.zeros((3, 6), np.float64)}, "expected f32, got float64"),
        ({"y": np.zeros((3, 6), np.float32)}, r"missing \['x'\], unknown \['y'\]"),
        ([], "expected 1 inputs, got 0"),
    ],
)
def test_wrong_inputs_are_refused(inputs: dict[str, Array], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        evaluate(softmax_of_rows(), inputs)


def test_symbol_that_no_input_determines() -> None:
    builder = Builder()
    unknown = Symbol("u", origin="unbacked").dim
    graph = builder.finish([builder.dim_tensor(dims=(unknown + 1,))])
    assert evaluate(graph, [], {"u": 4})[0].tolist() == [5]
    with pytest.raises(CompilerError, match=r"needs the symbols \['u'\]"):
        evaluate(graph, [])


def test_kernel_nodes_run_their_body() -> None:
    n = Symbol("n").dim
    inner = Builder("body")
    a, b = inner.input("a", F32, (n,)), inner.input("b", F32, ())
    body = inner.finish([inner.mul(inner.exp(a), b), inner.reduce_sum(a, axes=(0,), keepdims=False)])
    outer = Builder()
    x = outer.input("x", F32, (n,))
    two = outer.scalar(2.0, F32)
    outputs = tuple(Value(value.type) for value in body.outputs)
    node = Node("kernel", (x, two), outputs, MappingProxyType({"kind": "reduce"}), (), (body,))
    graph = Graph("g", (x,), outer.consts, (node,), outputs, level=Level.FUSED)
    array = np.linspace(-1, 1, 5, dtype=np.float32)
    scaled, total = evaluate(graph, [array])
    np.testing.assert_allclose(scaled, np.exp(array) * 2, rtol=1e-6)
    np.testing.assert_allclose(total, array.sum(), atol=1e-6)


def test_a_wrong_type_is_found_where_it_happens() -> None:
    x = Value(TensorType(F32, (3,)), "x")
    y = Value(TensorType(F32, (4,)))
    graph = Graph("g", (x,), {}, (Node("exp", (x,), (y,), locs=("Exp_7",)),), (y,))
    with pytest.raises(CompilerError, match=r"Exp_7.*inferred as f32\[4\] and computed float32\[3\]"):
        evaluate(graph, [np.zeros(3, np.float32)])


# Folding.


def node_of(name: str, sample: Sample) -> Node:
    types = [None if a is None else TensorType(from_numpy(a.dtype), a.shape) for a in sample.operands]
    attrs = OPS[name].check_attrs(sample.attrs)
    outputs = tuple(Value(type_) for type_ in infer(name, attrs, types))
    return Node(name, tuple(None if t is None else Value(t) for t in types), outputs, attrs)


def samples() -> list[tuple[str, Sample]]:
    return [
        (name, sample)
        for name, op in sorted(OPS.items())
        for sample in op.samples(np.random.default_rng(zlib.crc32(name.encode())))
    ]


NEVER = {"conv_8bit", "matmul_8bit", "matmul_packed"}  # their operands are not all constants
NEVER |= {  # convolutions, pools and rows of constants stay in the graph; resize has weights with transcendental ties
    "attention", "avg_pool", "batch_norm", "conv", "conv_transpose", "group_norm", "instance_norm", "layer_norm",
    "log_softmax", "max_pool", "resize", "rms_norm", "softmax",
}  # fmt: skip
NEVER |= {  # special functions: chains of functions of the math library, whose last bits are its own
    "atan2", "bessel_i0", "bessel_i0e", "bessel_i1", "bessel_i1e", "digamma", "erfc", "erfcx", "erfinv", "lgamma",
    "zeta",
}  # fmt: skip
NEVER_KINDS = {Kind.RANDOM, *OWNED_KINDS}


def test_folding_agrees_with_the_reference() -> None:
    folded: dict[str, int] = dict.fromkeys(OPS, 0)
    for name, sample in samples():
        found = fold_value(node_of(name, sample), sample.operands)
        if found is None:
            continue
        folded[name] += 1
        op = OPS[name]
        expected = evaluate_op(op, op.check_attrs(sample.attrs), sample.operands)
        for got, result in zip(found, expected, strict=True):
            assert got.shape == result.shape and got.dtype == result.dtype, name
            np.testing.assert_allclose(got, result, rtol=1e-5, atol=1e-6, err_msg=name)
    never = NEVER | {name for name, op in OPS.items() if op.kind in NEVER_KINDS}
    assert {name for name, count in folded.items() if not count} == never


def digest_of_folds() -> str:
    """Every fold of every sample, by its bits."""
    found = hashlib.sha256()
    for name, sample in samples():
        for array in fold_value(node_of(name, sample), sample.operands) or ():
            found.update(f"{name} {array.dtype} {array.shape}".encode())
            found.update(array.tobytes())
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(257, 33)).astype(np.float32)
    for name, attrs in (
        ("reduce_sum", {"axes": (0,)}),
        ("exp", {}),
        ("tanh", {}),
        ("erf", {}),
        ("log", {}),
        ("sqrt", {}),
    ):
        for array in fold_value(node_of(name, Sample((wide,), attrs)), [wide]) or ():
            found.update(array.tobytes())
    for array in fold_value(node_of("matmul", Sample((wide, wide.T.copy()))), [wide, wide.T.copy()]) or ():
        found.update(array.tobytes())
    return found.hexdigest()


def test_folded_bits_do_not_depend_on_vector_units() -> None:
    """numpy picks its loops by the processor; with all of them disabled the bits must stay."""
    core = "_core" if np.__version__ >= "2" else "core"
    features = importlib.import_module(f"numpy.{core}._multiarray_umath")
    enabled = [name for name in features.__cpu_dispatch__ if features.__cpu_features__.get(name)]
    here = os.path.dirname(__file__)
    environment = {
        **os.environ,
        "NPY_DISABLE_CPU_FEATURES": " ".join(enabled),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA,-AVX2,-FMA4,-AVX2_Usable,-FMA_Usable",  # the math library's choice
        "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)]),
    }
    program = "import test_evaluate; print(test_evaluate.digest_of_folds())"
    result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == digest_of_folds()


def fold_one(name: str, *operands: Array, **attrs: object) -> Array | None:
    sample = Sample(operands, attrs)  # type: ignore[arg-type]
    found = fold_value(node_of(name, sample), operands)
    return None if found is None else found[0]


def test_folding_refuses_what_depends_on_the_machine() -> None:
    assert fold_one("exp", np.ones(3)) is None  # f64: the last bit is the math library's
    assert fold_one("cast", np.array([3e9, 1.0], np.float32), to=I8) is None
    assert fold_one("cast", np.array([np.nan], np.float32), to=I64) is None
    assert fold_one("cast", np.array([2.0**63], np.float64), to=I64) is None
    assert fold_one("argmax", np.array([np.nan, 1], np.float32), axis=0) is None
    assert fold_one("pow", np.array([2.0], np.float32), np.array(0.3, np.float32)) is None
    assert fold_one("pow", np.array([2]), np.array(-1)) is None


def test_folding_at_the_edges() -> None:
    cast = fold_one("cast", np.array([-(2.0**63), 2.0**62]), to=I64)
    assert cast is not None and cast.tolist() == [-(2**63), 2**62]
    zeros = fold_one("max", np.array([0.0, -0.0], np.float32), np.array([-0.0, 0.0], np.float32))
    assert zeros is not None and np.signbit(zeros).tolist() == [True, False]
    nan = fold_one("sub", np.array([np.inf], np.float32), np.array([np.inf], np.float32))
    assert nan is not None and nan.view(np.uint32)[0] == np.array(np.nan, np.float32).view(np.uint32)
    root = fold_one("pow", np.array([4.0, -0.0, np.inf], np.float32), np.array(0.5, np.float32))
    assert root is not None and root.tolist() == [2.0, 0.0, np.inf] and not np.signbit(root[1])
    half = fold_one("exp", np.array([1.0, 100.0, -100.0], np.float16))
    assert half is not None and half.dtype == np.float16 and half[1] == np.inf and half[2] == 0
    total = fold_one("reduce_sum", np.full((3, 4), 0.1, np.float32), axes=(0, 1), keepdims=False)
    assert total is not None and total.shape == ()


def test_folding_leaves_symbols_alone() -> None:
    n = Symbol("n").dim
    output = Value(TensorType(I64, (1,)))
    node = Node("dim_tensor", (), (output,), MappingProxyType({"dims": (n,)}))
    assert fold_value(node, []) is None


@pytest.mark.parametrize("dtype", [F16, F64])
def test_composite_bodies_in_other_float_types(dtype: object) -> None:
    """f16 bodies are computed in f32 and rounded once: they equal the rounded f32 result."""
    x = np.linspace(-6, 6, 49)
    for name in ("gelu", "silu", "mish", "softplus", "hardswish", "elu", "selu", "celu", "softsign", "hardsigmoid"):
        op = OPS[name]
        attrs = op.check_attrs({})
        (wide,) = evaluate_op(op, attrs, [x.astype(np.float16).astype(np.float32)])
        if dtype is F16:
            (got,) = evaluate_op(op, attrs, [x.astype(np.float16)])
            assert got.dtype == np.float16
            np.testing.assert_array_equal(got, wide.astype(np.float16), err_msg=name)
        else:
            (got,) = evaluate_op(op, attrs, [x.astype(np.float16).astype(np.float64)])
            assert got.dtype == np.float64
            np.testing.assert_allclose(got, wide, rtol=1e-5, atol=1e-6, err_msg=name)
