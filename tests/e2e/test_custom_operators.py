"""Custom operators in real graphs: compiled, loaded and run, against their references in numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper

import aot
from aot import custom, runtime
from aot.backend.cpu.source import BINARY, UNARY
from aot.custom import AttrSpec, KernelSource, Kind, OpDef, Operator, OpError, Sample, TensorType, call, select
from aot.dtypes import BOOL, BY_NAME, F32, F64, I64
from aot.expr import NUMPY
from aot.testing import check_operator

onnxruntime = pytest.importorskip("onnxruntime")
RNG = np.random.default_rng(11)


def floats(*shape: int, dtype: Any = np.float32) -> Any:
    return RNG.normal(size=shape).astype(dtype)


def opaque(name: str, source: str | Callable[..., str], **parts: Any) -> Operator:
    """An operator com.test:Name with one C function `run`."""
    given: dict[str, Any] = {"samples": lambda rng: [], "inputs": ("x",), "infer": lambda attrs, x: x} | parts
    kernel: dict[str, Any] = {key: given.pop(key) for key in ("scratch_bytes", "row_major") if key in given}
    sources = {"cpu": KernelSource(text=source, function="run", **kernel)}
    op = OpDef(name=f"test.{name.lower()}", doc="For a test.", kind=Kind.OPAQUE, sources=sources, **given)
    return Operator(op=op, domain="com.test", op_type=name)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, tuple[int, Sequence[int | str]]],
    outputs: Mapping[str, int],
    weights: Mapping[str, Any] | None = None,
    version: int = 1,
    functions: Sequence[Any] = (),
) -> Any:
    graph = helper.make_graph(
        list(nodes), "test",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.test", version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=list(functions))


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Any) -> Any:
    return helper.make_node(op_type, inputs, outputs, name=f"n_{outputs[0]}", domain="com.test", **attrs)


@pytest.fixture
def run(tmp_path: Path, cache: Path) -> Callable[..., dict[str, Any]]:
    """Compiles a model and runs it with 1, 2 and 3 threads, which must give the same bits."""

    def build(proto: Any, operators: Sequence[Operator], feed: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        path = tmp_path / "model.aot"
        aot.compile(proto, operators=operators, cache_dir=cache, **options).save(path)
        results = [aot.load(path, threads=threads).run(feed) for threads in (1, 2, 3)]
        for other in results[1:]:
            for name, array in results[0].items():
                assert array.tobytes() == other[name].tobytes()
        return results[0]

    return build


COPY = """
static void run(const aot_call *call) {
  const IN0_T *x = call->inputs[0].data; OUT0_T *y = call->outputs[0].data;
  i64 i, end; aot_share(call, call->inputs[0].elements, &i, &end);
  for (; i < end; i++) y[i] = 2 * x[i];
}
"""
DOUBLE = opaque("Double", COPY, reference=lambda attrs, x: 2 * x)


def test_between_a_transpose_and_convolutions(run: Callable[..., dict[str, Any]]) -> None:
    """Views and channels-last values reach a row-major kernel as dense copies; convolutions get their halo after it."""
    x, w = floats(2, 8, 9, 7), floats(8, 8, 3, 3) / 8
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        node("Double", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "w"], ["d"], pads=[1, 1, 1, 1]),
        helper.make_node("Transpose", ["c"], ["t"], perm=[3, 0, 2, 1]),
        node("Double", ["t"], ["e"]),
        helper.make_node("Exp", ["e"], ["f"]),
        helper.make_node("Slice", ["a", "one", "five", "two"], ["s"]),
        node("Double", ["s"], ["g"]),
    ]
    numbers = {"one": [1], "five": [5], "two": [2]}
    weights = {"w": w} | {name: np.array(value, np.int64) for name, value in numbers.items()}
    proto = model(nodes, {"x": (1, ["N", 8, "H", "W"])}, {"d": 1, "f": 1, "g": 1}, weights)
    got = run(proto, [DOUBLE], {"x": x})
    conv = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])
    plain = model([conv], {"x": (1, x.shape)}, {"y": 1}, {"w": w})
    session = onnxruntime.InferenceSession(plain.SerializeToString())
    a = session.run(None, {"x": x})[0]
    c = 2 * np.maximum(a, 0)
    np.testing.assert_allclose(got["d"], session.run(None, {"x": c})[0], 1e-4, 1e-4)
    np.testing.assert_allclose(got["f"], np.exp(2 * c.transpose(3, 0, 2, 1)), 1e-4, 1e-4)
    np.testing.assert_allclose(got["g"], 2 * a[:, :, 1:5], 1e-4, 1e-4)


def test_beside_a_concatenation(run: Callable[..., dict[str, Any]]) -> None:
    """What a concatenation could take in place is dense where a row-major kernel makes it or reads it."""
    x = floats(3, 4, 5)
    nodes = [
        helper.make_node("Exp", ["x"], ["a"]),
        node("Double", ["a"], ["b"]),
        helper.make_node("Concat", ["a", "b"], ["c"], axis=1),
        helper.make_node("Unsqueeze", ["a", "axes"], ["u"]),
        node("Double", ["u"], ["d"]),
        helper.make_node("Concat", ["d", "d"], ["e"], axis=3),
        node("Double", ["c"], ["f"]),
    ]
    proto = model(nodes, {"x": (1, ["A", "B", 5])}, {"c": 1, "e": 1, "f": 1}, {"axes": np.array([1])})
    got = run(proto, [DOUBLE], {"x": x})
    c = np.concatenate([np.exp(x), 2 * np.exp(x)], 1)
    np.testing.assert_allclose(got["c"], c, 1e-5)
    np.testing.assert_allclose(got["f"], 2 * c, 1e-5)
    np.testing.assert_allclose(got["e"], np.concatenate([2 * np.exp(x[:, None])] * 2, 3), 1e-5)


def test_strides_instead_of_copies(run: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """row_major=False: the kernel walks strides, and no copy is made for it."""
    source = """
    static void run(const aot_call *call) {
      const aot_tensor x = call->inputs[0], y = call->outputs[0];
      i64 i, end; aot_share(call, x.elements, &i, &end);
      for (; i < end; i++) {
        i64 rest = i, from = 0, to = 0;
        for (int axis = x.rank - 1; axis >= 0; axis--) {
          const i64 at = rest % x.shape[axis]; rest /= x.shape[axis];
          from += at * x.strides[axis]; to += at * y.strides[axis];
        }
        ((f32 *)y.data)[to] = 2 * ((const f32 *)x.data)[from];
      }
    }
    """
    strided = opaque("Double", source, reference=lambda attrs, x: 2 * x, row_major=False)
    x, w = floats(1, 8, 6, 5), floats(8, 8, 3, 3) / 8
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        node("Double", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "w"], ["c"], pads=[1, 1, 1, 1]),
    ]
    proto = model(nodes, {"x": (1, [1, 8, 6, 5])}, {"c": 1}, {"w": w})
    got = run(proto, [strided], {"x": x})
    np.testing.assert_allclose(got["c"], run(proto, [DOUBLE], {"x": x})["c"], 1e-5, 1e-5)
    steps = [
        len(aot.compile(proto, operators=[each], target="cpu:x86-64-v3").programs[0].steps)
        for each in (strided, DOUBLE)
    ]
    assert steps[0] < steps[1]


ATTRIBUTES = """
static void run(const aot_call *call) {
  const IN0_T *x = call->inputs[0].data; f64 *y = call->outputs[0].data;
  i64 *counts = call->outputs[1].data; u8 *flags = call->outputs[2].data;
  i64 i, end; aot_share(call, call->inputs[0].elements, &i, &end);
  for (; i < end; i++) {
    f64 total = ATTR_bias;
    for (i64 k = 0; k < ATTR_powers_COUNT; k++) {
      f64 power = 1;
      for (i64 n = 0; n < ATTR_powers[k]; n++) power *= (f64)x[i];
      total += ATTR_weights[k] * power;
    }
#if defined(ATTR_mode_IS_negate)
    total = -total;
#endif
    y[i] = ATTR_clip && total > 10 ? 10 : total;
    counts[i] = ATTR_powers_COUNT + ATTR_shift + sizeof(ATTR_label) - 1 + ATTR_label[0];
    flags[i] = total > 0;
  }
}
"""


def _attributes_reference(attrs: Any, x: Any) -> Any:
    wide = x.astype(np.float64)
    total = attrs["bias"] + sum(w * wide**p for w, p in zip(attrs["weights"], attrs["powers"], strict=True))
    total = np.asarray(total if np.ndim(total) else np.full(x.shape, total))
    total = -total if attrs["mode"] == "negate" else total
    text = attrs["label"].encode()
    count = len(attrs["powers"]) + attrs["shift"] + len(text) + (text[0] if text[0] < 128 else text[0] - 256)
    clipped = np.minimum(total, 10) if attrs["clip"] else total
    return clipped, np.full(x.shape, count, np.int64), total > 0


def _attributes_samples(rng: Any) -> list[Sample]:
    attrs: dict[str, Any] = {"powers": (1, 3), "weights": (0.5, -2.0)}
    return [
        Sample((rng.normal(size=(5, 7)).astype(np.float32),), attrs),
        Sample((rng.normal(size=(3,)),), attrs | {"mode": "negate", "clip": True, "bias": 20.0, "shift": -3}),
        Sample((rng.integers(-3, 4, (4, 4)),), attrs | {"label": 'a"\\?%\n1ä'}),
        Sample((rng.integers(0, 2, (9,)).astype(np.bool_),), attrs | {"label": "long text"}),
        Sample((np.array(2.5, np.float32),), {"powers": (), "weights": ()}),
    ]


def test_attributes_and_element_types() -> None:
    """int, float, str, bool, ints, floats; f32, f64, i64 and bool in; f64, i64 and bool out."""
    polynomial = opaque(
        "Polynomial", ATTRIBUTES,
        infer=lambda attrs, x: tuple(TensorType(d, x.shape) for d in (F64, I64, BOOL)),
        reference=_attributes_reference, samples=_attributes_samples,
        attrs={
            "bias": AttrSpec("float", 0.25), "shift": AttrSpec("int", 2), "label": AttrSpec("str", "x"),
            "mode": AttrSpec("str", "plain"), "clip": AttrSpec("bool", False), "powers": AttrSpec("ints"),
            "weights": AttrSpec("floats"),
        },
    )  # fmt: skip
    checked = check_operator(polynomial)
    assert checked.samples == 5 and checked.symbolic == 4
    levels = ("cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:x86-64-v4+vnni")
    assert set(checked.targets) == {level for level in levels if runtime.target_supported(level)}


SUMS = """
static void run(const aot_call *call) {
  const aot_tensor *first = &call->inputs[0];
  f32 *y = call->outputs[0].data, *total = call->outputs[1].data;
  f32 *sums = call->scratch;
  const i64 n = first->shape[1];
  i64 row, end; aot_share(call, first->shape[0], &row, &end);
  for (; row < end; row++) {
    for (i64 k = 0; k < n; k++) sums[k] = 0;
    for (i32 number = 0; number < call->input_count; number++)
      for (i64 k = 0; k < n; k++) sums[k] += ((const f32 *)call->inputs[number].data)[row * n + k];
    total[row] = 0;
    for (i64 k = 0; k < n; k++) { y[row * n + k] = sums[k]; total[row] += sums[k]; }
  }
}
"""
SUM_ALL = opaque(
    "SumAll", SUMS, inputs=("*xs",), infer=lambda attrs, *xs: (xs[0], TensorType(F32, xs[0].shape[:1])),
    reference=lambda attrs, *xs: (np.add.reduce(xs), np.add.reduce(xs).sum(1)),
    scratch_bytes=lambda attrs, *xs: xs[0].shape[1] * 4,
    samples=lambda rng: [
        Sample(tuple(rng.normal(size=(6, 11)).astype(np.float32) for _ in range(count)), absolute=1e-5)
        for count in (1, 2, 5)
    ],
)  # fmt: skip


def test_any_number_of_operands_scratch_memory_and_constants(run: Callable[..., dict[str, Any]]) -> None:
    check_operator(SUM_ALL)
    x, w = floats(13, 6), floats(13, 6)
    nodes = [
        helper.make_node("Tanh", ["x"], ["a"]), node("SumAll", ["a", "w", "x"], ["b", "t"]),
        node("SumAll", ["b", "w"], ["y", "unread"]), node("SumAll", ["b"], ["unread2", "u"]),
        node("SumAll", ["x"], ["z"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (1, [13, "M"])}, {"y": 1, "t": 1, "u": 1, "z": 1}, {"w": w})
    got = run(proto, [SUM_ALL], {"x": x})
    b = np.tanh(x) + w + x
    for name, want in {"y": b + w, "t": b.sum(1), "u": b.sum(1), "z": x}.items():
        np.testing.assert_allclose(got[name], want, 1e-5, 1e-5)


def test_omitted_operands() -> None:
    source = """
    static void run(const aot_call *call) {
      f32 *y = call->outputs[0].data;
      i64 i, end; aot_share(call, call->outputs[0].elements, &i, &end);
      for (; i < end; i++) {
        y[i] = ((f32 *)call->inputs[0].data)[i];
        for (int n = 1; n < call->input_count; n++)
          if (call->inputs[n].data) y[i] += n * ((f32 *)call->inputs[n].data)[i];
      }
    }
    """

    def reference(attrs: Any, x: Any, a: Any = None, b: Any = None) -> Any:
        return x + (0 if a is None else a) + (0 if b is None else np.float32(2) * b)

    def samples(rng: Any) -> list[Sample]:
        x, a, b = (rng.normal(size=(4, 9)).astype(np.float32) for _ in range(3))
        return [Sample((x,)), Sample((x, a)), Sample((x, None, b)), Sample((x, a, b))]

    check_operator(
        opaque(
            "Maybe", source, inputs=("x", "a?", "b?"), infer=lambda attrs, x, a=None, b=None: x, reference=reference,
            samples=samples,
        )
    )  # fmt: skip


LIBRARY = """
static f32 both(f32 x) { return aot_exp_f32(x) * aot_sigmoid_f32(x) + aot_pow_f32(x * x, 0.5f); }
static void run(const aot_call *call) {
  const f32 *x = call->inputs[0].data; f32 *y = call->outputs[0].data;
  i64 i, end; aot_share(call, call->inputs[0].elements, &i, &end);
  for (; i + AOT_LANES <= end; i += AOT_LANES) {
    const v_f32 v = load_f32(x + i);
    store_f32(y + i, exp_f32(v) * sigmoid_f32(v) + abs_f32(v));
  }
  if (i < end) {
    const v_f32 v = loadn_f32(x + i, end - i);
    storen_f32(y + i, exp_f32(v) * sigmoid_f32(v) + abs_f32(v), end - i);
  }
  if (call->thread_count > 100) y[0] = both(x[0]);
}
"""


def test_the_functions_that_a_kernel_may_call() -> None:
    """Blocks, and every function for single values that the guide names."""
    samples = [Sample((floats(3, 41),), relative=1e-5, absolute=1e-5)]
    reference = lambda attrs, x: np.exp(x) / (1 + np.exp(-x)) + np.abs(x)  # noqa: E731
    check_operator(opaque("Blocks", LIBRARY, reference=reference, samples=lambda rng: samples))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_function_of_single_values(dtype: str) -> None:
    """All in one kernel, each into a row of its own."""
    names = (*UNARY, *BINARY)
    calls = [
        f"y[{number} * n + i] = aot_{name}_{dtype}({'x[i], x[i]' if name in BINARY else 'x[i]'});"
        for number, name in enumerate(names)
    ]
    source = f"""
    static void run(const aot_call *call) {{
      const IN0_T *x = call->inputs[0].data; OUT0_T *y = call->outputs[0].data;
      const i64 n = call->inputs[0].elements;
      i64 i, end; aot_share(call, n, &i, &end);
      for (; i < end; i++) {{ {" ".join(calls)} }}
    }}
    """
    x = np.array([0.5, 0.75, 1.0, 1.5, -0.25], BY_NAME[dtype].numpy)

    def expected(attrs: Any, x: Any) -> Any:
        return np.stack([NUMPY[name](*(x, x)[: 1 + (name in BINARY)]) for name in names])

    def infer(attrs: Any, x: TensorType) -> TensorType:
        if not isinstance(x.shape[0], int):
            raise OpError("fixed sizes are enough here: the kernel takes long to compile")
        return TensorType(x.dtype, (len(names), *x.shape))

    everything = opaque(
        "All", source, reference=expected, infer=infer,
        samples=lambda rng: [Sample((x,), relative=1e-5)],
    )  # fmt: skip
    check_operator(everything)


def test_intrinsics_and_freestanding_headers() -> None:
    source = """
    #include <immintrin.h>
    #include <stdint.h>
    static void run(const aot_call *call) {
      const float *x = call->inputs[0].data; float *y = call->outputs[0].data;
      int64_t i = 0, n = call->inputs[0].elements;
      if (call->thread) return;
      for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_add_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(1)));
      for (; i < n; i++) y[i] = x[i] + 1;
    }
    """
    samples = [Sample((floats(5, 9),))]
    check_operator(opaque("Plus", source, reference=lambda attrs, x: x + np.float32(1), samples=lambda rng: samples))


def test_source_made_for_the_types(run: Callable[..., dict[str, Any]]) -> None:
    """A function may write the text, from attributes and operand types."""
    text = lambda attrs, x: COPY.replace("2 *", f"{2 + x.rank} *")  # noqa: E731
    made = opaque("Ranked", text, reference=lambda attrs, x: (2 + x.ndim) * x)
    x = floats(3, 5)
    proto = model([node("Ranked", ["x"], ["y"])], {"x": (1, ["N", 5])}, {"y": 1})
    np.testing.assert_array_equal(run(proto, [made], {"x": x})["y"], 4 * x)


SCALE = Operator(
    domain="com.test",
    op_type="Gate",
    op=OpDef(
        name="test.gate", doc="x where it is above a limit, else 0.", inputs=("x",), kind=Kind.MAP,
        infer=lambda attrs, x: x, attrs={"limit": AttrSpec("float", 0.0)},
        body=lambda attrs, x: select(call("gt", x, attrs["limit"]), x, 0.0),
        samples=lambda rng: [Sample((rng.normal(size=(3, 7)).astype(np.float32),), {"limit": 0.5})],
    ),
)  # fmt: skip


def test_an_elementwise_operator_fuses(run: Callable[..., dict[str, Any]]) -> None:
    """Into the epilogue of a matmul here, with an add and a product around it: one kernel."""
    x, w, b = floats(5, 16), floats(16, 24), floats(24)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Add", ["p", "b"], ["q"]),
        node("Gate", ["q"], ["r"], limit=0.25), helper.make_node("Mul", ["r", "r"], ["y"]),
    ]  # fmt: skip
    proto = model(nodes, {"x": (1, ["N", 16])}, {"y": 1}, {"w": w, "b": b})
    got = run(proto, [SCALE], {"x": x})["y"]
    q = x @ w + b
    clear = np.abs(q - 0.25) > 1e-3
    np.testing.assert_allclose(got[clear], (np.where(q > 0.25, q, 0) ** 2)[clear], 1e-4, 1e-4)
    artifact = aot.compile(proto, operators=[SCALE], target="cpu:x86-64-v3")
    assert [kernel.kind for kernel in artifact.programs[0].kernels] == ["contract"]
    assert artifact.meta["operators"] == [
        {"name": "test.gate", "onnx": "com.test:Gate-1", "package": "", "version": ""}
    ]
    check_operator(SCALE)


def test_an_operator_made_of_others(run: Callable[..., dict[str, Any]]) -> None:
    def decompose(builder: Any, attrs: Any, inputs: Any) -> Any:
        (x,) = inputs
        total = builder.reduce_sum(builder.abs(x), axes=(attrs["axis"],), keepdims=True)
        return (builder.div(x, total),)

    norm = Operator(
        domain="com.test", op_type="L1",
        op=OpDef(
            name="test.l1", doc="x over the sum of its absolute values.", inputs=("x",), kind=Kind.OPAQUE,
            infer=lambda attrs, x: x, attrs={"axis": AttrSpec("int", -1)}, decompose=decompose,
            reference=lambda attrs, x: x / np.abs(x).sum(attrs["axis"], keepdims=True),
            samples=lambda rng: [Sample((rng.normal(size=(3, 7)).astype(np.float32),))],
        ),
    )  # fmt: skip
    assert check_operator(norm).targets == ()
    x = floats(4, 9)
    proto = model([node("L1", ["x"], ["y"], axis=0)], {"x": (1, ["N", "M"])}, {"y": 1})
    np.testing.assert_allclose(run(proto, [norm], {"x": x})["y"], x / np.abs(x).sum(0), 1e-5)


def test_versions_of_an_operator(run: Callable[..., dict[str, Any]]) -> None:
    """The newest form that is not newer than the model's version of the domain."""
    old = opaque("Double", COPY, reference=lambda attrs, x: 2 * x)
    new = Operator(
        domain="com.test", op_type="Double", since_version=3,
        op=OpDef(
            name="test.triple", doc="3 x.", inputs=("x",), kind=Kind.MAP, infer=lambda attrs, x: x,
            body=lambda attrs, x: x * 3.0, samples=lambda rng: [],
        ),
    )  # fmt: skip
    x = floats(5)
    for version, factor in ((1, 2), (2, 2), (3, 3), (9, 3)):
        proto = model([node("Double", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1}, version=version)
        np.testing.assert_allclose(run(proto, [old, new], {"x": x})["y"], factor * x)


def test_an_operator_comes_before_the_function_of_the_model(run: Callable[..., dict[str, Any]]) -> None:
    """What an exporter spells out as a function may have a kernel in a package; without it, the function is used."""
    function = helper.make_function(
        "com.test", "Double", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    proto = model([node("Double", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1}, functions=[function])
    x = floats(5)
    assert "operators" not in aot.compile(proto, target="cpu:x86-64-v3").meta
    assert "operators" in aot.compile(proto, operators=[DOUBLE], target="cpu:x86-64-v3").meta
    np.testing.assert_array_equal(run(proto, [DOUBLE], {"x": x})["y"], run(proto, [], {"x": x})["y"])


def test_a_standard_operator_that_is_not_built_in(run: Callable[..., dict[str, Any]]) -> None:
    """A package may add an operator of ai.onnx, and cannot change a built-in one."""
    det = Operator(
        domain="ai.onnx", op_type="StringNormalizer",
        op=OpDef(
            name="test.nothing", doc="x.", inputs=("x",), kind=Kind.MAP, infer=lambda attrs, x: x,
            body=lambda attrs, x: x + 1.0, samples=lambda rng: [],
        ),
    )  # fmt: skip
    relu = Operator(op=SCALE.op, domain="", op_type="Relu")
    x = floats(5)
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1})
    np.testing.assert_array_equal(run(proto, [relu], {"x": x})["y"], np.maximum(x, 0))
    proto = model([helper.make_node("StringNormalizer", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1})
    np.testing.assert_array_equal(run(proto, [det], {"x": x})["y"], x + 1)


def test_in_branches_and_loops_on_data(run: Callable[..., dict[str, Any]]) -> None:
    def body(name: str, nodes: Sequence[Any], inputs: Sequence[Any], *outputs: str) -> Any:
        made = [helper.make_tensor_value_info(output, 9 if output == "go" else 1, None) for output in outputs]
        return helper.make_graph(list(nodes), name, list(inputs), made)

    step = helper.make_tensor_value_info("i", 7, [])
    again, state = helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("s", 1, ["N", 4])
    loop = body(
        "loop", [helper.make_node("Identity", ["c"], ["go"]), node("Double", ["s"], ["next"])], [step, again, state],
        "go", "next",
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Greater", ["sum", "zero"], ["positive"]),
        helper.make_node(
            "If", ["positive"], ["a"], then_branch=body("t", [node("Double", ["x"], ["p"])], [], "p"),
            else_branch=body("e", [node("Gate", ["x"], ["q"], limit=0.0)], [], "q"),
        ),
        helper.make_node("Cast", ["sum"], ["count"], to=7),
        helper.make_node("Loop", ["count", "", "a"], ["y"], body=loop),
    ]  # fmt: skip
    proto = model(nodes, {"x": (1, ["N", 4])}, {"y": 1}, {"zero": np.array(0, np.float32)})
    x = np.full((3, 4), 0.25, np.float32)
    np.testing.assert_array_equal(run(proto, [DOUBLE, SCALE], {"x": x})["y"], 2 * x * 2**3)
    np.testing.assert_array_equal(run(proto, [DOUBLE, SCALE], {"x": -x})["y"], 0 * x)


def test_the_source_is_part_of_the_cache_key_and_bytes_do_not_change(
    run: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    x = floats(7)
    proto = model([node("Double", ["x"], ["y"])], {"x": (1, [7])}, {"y": 1})
    quadruple = opaque("Double", COPY.replace("2 * x", "4 * x"), reference=lambda attrs, x: 4 * x)
    np.testing.assert_array_equal(run(proto, [DOUBLE], {"x": x})["y"], 2 * x)
    np.testing.assert_array_equal(run(proto, [quadruple], {"x": x})["y"], 4 * x)  # the same cache
    paths = [tmp_path / f"{n}.aot" for n in range(2)]
    for path in paths:
        aot.compile(proto, operators=[DOUBLE]).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_operators_of_one_build_do_not_reach_another() -> None:
    proto = model([node("Double", ["x"], ["y"])], {"x": (1, [7])}, {"y": 1})
    aot.compile(proto, operators=[DOUBLE], target="cpu:x86-64-v3")
    with pytest.raises(aot.AotError, match="not supported"):
        aot.compile(proto, target="cpu:x86-64-v3")
    assert "test.double" not in aot.ops.OPS and "test.double" not in list(aot.ops.OPS)
    with custom.use([DOUBLE]):
        assert "test.double" in aot.ops.OPS and aot.ops.OPS["test.double"].kind is Kind.OPAQUE


def test_reasons_of_infer_name_the_node() -> None:
    def infer(attrs: Any, x: TensorType) -> TensorType:
        raise OpError("x must be sorted by colour")

    picky = opaque("Double", COPY, infer=infer, reference=lambda attrs, x: x)
    proto = model([node("Double", ["x"], ["y"])], {"x": (1, [7])}, {"y": 1})
    with pytest.raises(aot.AotError, match=r"n_y.*x must be sorted by colour"):
        aot.compile(proto, operators=[picky])
