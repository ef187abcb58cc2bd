"""Models that once went wrong, reduced: each is the smallest form of what a random or hostile model showed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper, numpy_helper

import aot
from tests.fuzz.grow import Array, session_of

Check = Callable[..., None]
node = helper.make_node


@pytest.fixture(scope="module")
def agrees(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Builds a model and compares all outputs with ONNX Runtime, on every feed."""
    cache = tmp_path_factory.mktemp("kernels")

    def run(
        nodes: Sequence[NodeProto],
        outputs: Sequence[str],
        *feeds: Mapping[str, Array],
        constants: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Sequence[int | str]] | None = None,
        opset: int = 17,
        **options: Any,
    ) -> None:
        infos = [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), (shapes or {}).get(name, array.shape)
            )
            for name, array in feeds[0].items()
        ]
        results = [onnx.ValueInfoProto(name=name) for name in outputs]
        held = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
        graph = helper.make_graph(list(nodes), "reduced", infos, results, held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        loaded = aot.load(aot.compile(model.SerializeToString(), cache_dir=cache, **options).data)
        session = session_of(model)
        for feed in feeds:
            got = loaded.run(feed)
            assert list(got) == list(outputs)
            for name, expected in zip(outputs, session.run(list(outputs), dict(feed)), strict=True):
                assert got[name].dtype == expected.dtype
                np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)

    return run


def normal(*shape: int) -> Array:
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.asarray(values, np.int64)


def test_outputs_that_are_constants_keep_their_names(agrees: Check) -> None:
    """Small constants, of which the import knows the contents, and constants made of sizes."""
    agrees(
        [node("Shape", ["x"], ["sizes"]), node("Identity", ["c"], ["d"]), node("Add", ["x", "x"], ["y"])],
        ["c", "sizes", "d", "y", "x"],
        {"x": normal(2, 3)},
        constants={"c": ints(1, 2, 3)},
    )


def test_empty_constants(agrees: Check) -> None:
    """A constant without elements is no scalar to be written into the kernel's text."""
    agrees(
        [node("Range", ["zero", "zero", "one"], ["r"]), node("Cast", ["r"], ["f"], to=1), node("Exp", ["f"], ["y"])],
        ["f", "y"],
        {"x": normal(2)},
        constants={"zero": np.int64(0), "one": np.int64(1)},
    )
    agrees([node("Mul", ["x", "c"], ["y"])], ["y"], {"x": normal(1, 3)}, constants={"c": np.zeros((0, 3), np.float32)})


def test_a_store_does_not_overwrite_what_a_later_store_reads(agrees: Check) -> None:
    """Two results of one kernel, the first in place of an operand that only the second reads."""
    x = np.random.default_rng(3).integers(0, 3, (7, 4, 3)).astype(np.int64)
    agrees(
        [
            node("CumSum", ["x", "one"], ["a"], exclusive=1, reverse=1),
            node("Abs", ["a"], ["b"]),
            node("CumSum", ["a", "one"], ["c"], exclusive=1),
            node("Add", ["b", "one"], ["d"]),
            node("Div", ["c", "d"], ["e"]),
            node("Pad", ["c", "pads"], ["f"], mode="edge"),
            node("Add", ["b", "b"], ["g"]),
        ],
        ["e", "f", "g"],
        {"x": x},
        constants={"one": np.int64(1), "pads": ints(0, 0, 1, 0, 1, 1)},
    )


def test_results_of_different_rank_are_made_by_different_kernels(agrees: Check) -> None:
    agrees(
        [
            node("Sigmoid", ["x"], ["s"]),
            node("Mul", ["x", "s"], ["a"]),
            node("Add", ["a", "c"], ["b"]),
            node("Reshape", ["a", "flat"], ["r"]),
        ],
        ["b", "a", "r"],
        {"x": normal(8, 3)},
        constants={"c": np.full((1, 1, 1), 2, np.float32), "flat": ints(24)},
    )


@pytest.mark.parametrize("rows", [0, 5])
def test_matrix_products_without_columns_or_depth(agrees: Check, rows: int) -> None:
    agrees([node("MatMul", ["x", "w"], ["y"])], ["y"], {"x": normal(rows, 4)}, constants={"w": normal(4, 0)})
    agrees([node("MatMul", ["x", "w"], ["y"])], ["y"], {"x": normal(rows, 0)}, constants={"w": normal(0, 4)})
    agrees(
        [node("MatMul", ["x", "w"], ["y"])], ["y"], {"x": normal(3, 4)}, {"x": normal(12, 4)},
        constants={"w": normal(4, 0)}, shapes={"x": ("N", 4)},
    )  # fmt: skip


def test_parts_of_an_empty_concatenation(agrees: Check) -> None:
    agrees([node("Concat", ["x", "x", "x"], ["y"], axis=1)], ["y"], {"x": normal(0, 2, 3)})


def test_an_empty_view_beyond_the_end_of_its_tensor(agrees: Check) -> None:
    """x[2:, :, 2:-1:2] of one row starts behind the last row."""
    agrees(
        [node("Slice", ["x", "starts", "ends", "axes", "steps"], ["a"]), node("Neg", ["a"], ["y"])],
        ["a", "y"], {"x": normal(5, 3, 7)}, {"x": normal(1, 3, 7)}, {"x": normal(2, 3, 7)},
        constants={"starts": ints(2, 2), "ends": ints(99, -1), "axes": ints(0, 2), "steps": ints(1, 2)},
        shapes={"x": ("T", 3, 7)},
    )  # fmt: skip


def test_a_reshape_of_nothing(agrees: Check) -> None:
    """Two axes that lie in another order than the result's, of a tensor without elements."""
    agrees(
        [node("Reshape", ["x", "shape"], ["a"]), node("Neg", ["a"], ["y"])],
        ["a", "y"], {"x": normal(8, 1, 0, 5)}, constants={"shape": ints(5, -1)},
    )  # fmt: skip


def test_an_output_that_decomposes_to_a_constant(agrees: Check) -> None:
    """An op without a kernel, of constants alone, too large for the import to follow."""
    agrees(
        [node("BatchNormalization", ["c", "w", "w", "w", "v"], ["y"])],
        ["y"],
        {"x": normal(2)},
        constants={"c": normal(7, 8, 500), "w": normal(8), "v": np.abs(normal(8)) + 1},
    )


def test_a_part_of_a_concatenation_is_also_reshaped(agrees: Check) -> None:
    """The reshape merges axes that are not adjacent once the part lies in the whole."""
    agrees(
        [
            node("Exp", ["x"], ["a"]),
            node("Concat", ["a", "x"], ["b"], axis=2),
            node("Reshape", ["a", "flat"], ["c"]),
            node("Split", ["c", "halves"], ["d", "e"], axis=0),
            node("MatMul", ["b", "w"], ["f"]),
        ],
        ["d", "e", "f"],
        {"x": normal(2, 3, 4)},
        constants={"flat": ints(-1), "halves": ints(5, 19), "w": normal(8, 3)},
    )


@pytest.mark.parametrize("numbers", [[0.1], [2.0], [-0.5, 3.0], [np.inf]])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sizes_beside_numbers_that_are_not_whole(agrees: Check, numbers: list[float], dtype: Any) -> None:
    """Sizes cast to floats, joined with float constants, and read by a real op."""
    agrees(
        [
            node("Shape", ["x"], ["s"]),
            node("Cast", ["s"], ["f"], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
            node("Concat", ["f", "c"], ["d"], axis=0),
            node("Mul", ["d", "d"], ["e"]),
        ],
        ["d", "e"],
        {"x": normal(3, 4)},
        constants={"c": np.asarray(numbers, dtype)},
        shapes={"x": ("A", "B")},
    )


def test_convolutions_of_one_weight(agrees: Check) -> None:
    agrees(
        [node("Conv", ["x", "w", "b"], ["y"], pads=[1, 0])], ["y"], {"x": normal(1, 1, 1)},
        constants={"w": np.full((1, 1, 1), 1.5, np.float32), "b": np.ones(1, np.float32)},
    )  # fmt: skip
    agrees(
        [node("Conv", ["c", "x"], ["y"])],
        ["y"],
        {"x": normal(3, 1, 1)},
        constants={"c": np.ones((1, 1, 1), np.float32)},
    )


def model_bytes(nodes: Sequence[NodeProto], shape: Sequence[int | str], name: str = "x", **constants: Any) -> bytes:
    held = [numpy_helper.from_array(np.asarray(array), key) for key, array in constants.items()]
    info = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph(list(nodes), "reduced", [info], [onnx.ValueInfoProto(name="y")], held)
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10).SerializeToString()
    )


def test_a_name_with_a_nul_character() -> None:
    with pytest.raises(aot.AotError, match="NUL") as caught:
        aot.compile(model_bytes([node("Exp", ["a\0b"], ["y"])], [2], "a\0b"))
    assert caught.value.code == "model"
    with pytest.raises(aot.AotError, match="NUL") as caught:
        aot.compile(model_bytes([node("Exp", ["x"], ["y"])], ["N\0"]))
    assert caught.value.code == "model"


def test_tensors_larger_than_any_machine() -> None:
    with pytest.raises(aot.AotError, match=r"input 'x'.*bytes") as caught:
        aot.compile(model_bytes([node("Exp", ["x"], ["y"])], [2**62, 2**62]))
    assert caught.value.code == "model"
    with pytest.raises(aot.AotError, match=r"too_much.*bytes") as caught:
        aot.compile(
            model_bytes([node("Expand", ["x", "s"], ["y"], name="too_much")], [1], s=np.asarray([2**40, 2**40]))
        )
    assert caught.value.code == "model"


def test_no_memory_for_an_output(tmp_path: Path) -> None:
    """1 TiB, of which the build knows and the machine cannot give."""
    model = model_bytes([node("Expand", ["x", "s"], ["y"])], [1], s=np.asarray([2**40]))
    loaded = aot.load(aot.compile(model, cache_dir=tmp_path).data)
    with pytest.raises(aot.AotError, match=r"y: no memory") as caught:
        loaded.run({"x": np.ones(1, np.float32)})
    assert caught.value.code == "run"


def test_long_chains_of_elementwise_ops(agrees: Check) -> None:
    """One kernel of them all would be too deep for recursion, and for the C compiler's patience."""
    ops = ("Neg", "Abs", "Relu")
    agrees([node(ops[i % 3], [f"v{i}"], [f"v{i + 1}"]) for i in range(400)], ["v400"], {"v0": normal(3)})
    agrees([node("Sum", ["x"] * 400, ["y"])], ["y"], {"x": normal(3)})
