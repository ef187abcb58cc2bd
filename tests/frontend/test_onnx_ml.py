"""Operators of ai.onnx.ml other than trees, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from aot.errors import ModelError, UnsupportedError
from aot.evaluate import evaluate
from aot.frontend import load, load_with_info
from tests.frontend.models import Array, check_against_onnxruntime

ML = "ai.onnx.ml"
RNG = np.random.default_rng(0)


def ml(op_type: str, *arrays: Array, version: int = 1, results: int = 1, **attrs: Any) -> tuple[Any, dict[str, Array]]:
    names = [f"x{number}" for number in range(len(arrays))]
    outputs = [f"y{number}" for number in range(results)]
    node = helper.make_node(op_type, names, outputs, name="the_node", domain=ML, **attrs)
    graph = helper.make_graph(
        [node], "ml",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in zip(names, arrays, strict=True)
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9), dict(zip(names, arrays, strict=True))


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.int32])
def test_scaler(dtype: Any) -> None:
    x = (normal(5, 3) * 4).astype(dtype)
    check_against_onnxruntime(*ml("Scaler", x, offset=[0.5, 1.0, -2.0], scale=[2.0, 0.5, 3.0]))
    check_against_onnxruntime(*ml("Scaler", x, offset=[0.5], scale=[2.0]))


@pytest.mark.parametrize("post", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
def test_linear_models(post: str) -> None:
    x = normal(9, 4)
    for targets in (1, 3):
        attrs = {"coefficients": normal(targets * 4).tolist(), "intercepts": normal(targets).tolist()}
        check_against_onnxruntime(*ml("LinearRegressor", x, targets=targets, post_transform=post, **attrs))
    for classes, rows in ((3, 3), (2, 2), (2, 1)):
        attrs = {"coefficients": normal(rows * 4).tolist(), "intercepts": normal(rows).tolist()}
        attrs["classlabels_ints"] = list(range(5, 5 + classes))
        check_against_onnxruntime(*ml("LinearClassifier", x, results=2, post_transform=post, **attrs))


def test_a_malformed_linear_classifier_is_refused() -> None:
    model, _ = ml("LinearClassifier", normal(3, 2), results=2, coefficients=[1.0] * 12, intercepts=[0.0] * 3,
                  classlabels_ints=[0, 1, 2])  # fmt: skip
    with pytest.raises(ModelError, match="12 coefficients for 3 targets of 2 features; 6 are needed"):
        load(model)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_svm_regressor(kernel: str) -> None:
    x = normal(6, 3)
    for one_class in (0, 1):
        support: dict[str, Any] = {"support_vectors": normal(15).tolist(), "coefficients": normal(5).tolist()}
        model = ml("SVMRegressor", x, kernel_type=kernel, kernel_params=[0.3, 0.1, 2.0], n_supports=5, rho=[0.2],
                   one_class=one_class, **support)  # fmt: skip
        check_against_onnxruntime(*model, 1e-3, 1e-4)
    plain: dict[str, Any] = {"kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0]}
    check_against_onnxruntime(*ml("SVMRegressor", x, rho=[0.2], coefficients=normal(3).tolist(), **plain))


@pytest.mark.parametrize("norm", ["MAX", "L1", "L2"])
def test_normalizer(norm: str) -> None:
    x = np.abs(normal(4, 3))
    x[1] = 0
    check_against_onnxruntime(*ml("Normalizer", x, norm=norm))
    check_against_onnxruntime(*ml("Normalizer", normal(4, 3) if norm != "MAX" else x, norm=norm))


def test_imputer_and_binarizer() -> None:
    x = normal(4, 3)
    x[0, 1] = x[2, 2] = np.nan
    nan = float("nan")
    check_against_onnxruntime(*ml("Imputer", x, imputed_value_floats=[1.0, 2.0, 3.0], replaced_value_float=nan))
    check_against_onnxruntime(*ml("Imputer", x, imputed_value_floats=[7.0], replaced_value_float=nan))
    whole = RNG.integers(0, 3, (4, 3))
    check_against_onnxruntime(*ml("Imputer", whole, imputed_value_int64s=[9], replaced_value_int64=1))
    check_against_onnxruntime(*ml("Binarizer", normal(4, 3), threshold=0.25))


def test_array_feature_extractor() -> None:
    places = np.array([[2, 0, 2]], np.int64)
    check_against_onnxruntime(*ml("ArrayFeatureExtractor", normal(4, 3), places))
    check_against_onnxruntime(*ml("ArrayFeatureExtractor", RNG.integers(0, 9, (2, 4, 3)), places))
    check_against_onnxruntime(*ml("ArrayFeatureExtractor", normal(3), places))


def test_one_hot_encoder_and_feature_vectorizer() -> None:
    x = RNG.integers(0, 5, (3, 4))
    check_against_onnxruntime(*ml("OneHotEncoder", x, cats_int64s=[3, 1, 0], zeros=1))
    check_against_onnxruntime(*ml("OneHotEncoder", x.astype(np.float32), cats_int64s=[3, 1, 0], zeros=1))
    check_against_onnxruntime(*ml("FeatureVectorizer", normal(3, 4), normal(3, 2), inputdimensions=[4, 2]))


@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder(version: int) -> None:
    whole, real = RNG.integers(-3, 8, (3, 4)), RNG.integers(0, 4, (3, 4)).astype(np.float32) / 2
    ints: dict[str, Any] = {"keys_int64s": [5, -2, 0], "values_int64s": [7, 8, 9]}
    check_against_onnxruntime(*ml("LabelEncoder", whole, version=version, default_int64=4, **ints))
    far: dict[str, Any] = {"keys_int64s": [5, 1 << 40, 0], "values_floats": [0.5, 1.5, 2.5]}
    check_against_onnxruntime(*ml("LabelEncoder", whole, version=version, default_float=-1.0, **far))
    floats: dict[str, Any] = {"keys_floats": [0.5, 1.5], "values_int64s": [3, 4]}
    check_against_onnxruntime(*ml("LabelEncoder", real, version=version, **floats))
    if version == 4:
        with_nan = np.array([0.5, np.nan, 2.0], np.float32)
        tensors = {
            name: numpy_helper.from_array(np.array(values, dtype), name)
            for name, values, dtype in (
                ("keys_tensor", [np.nan, 0.5], np.float32), ("values_tensor", [1, 2], np.int64),
                ("default_tensor", [-5], np.int64),
            )
        }  # fmt: skip
        check_against_onnxruntime(*ml("LabelEncoder", with_nan, version=4, **tensors))


def test_strings_are_named_as_the_reason() -> None:
    model, _ = ml("LabelEncoder", RNG.integers(0, 3, (2,)), version=2, keys_int64s=[0], values_strings=["a"])
    with pytest.raises(UnsupportedError, match="labels that are strings"):
        load(model)


def test_zip_map_gives_the_tensor() -> None:
    x = normal(3, 2)
    model, feed = ml("ZipMap", x, classlabels_strings=["cat", "dog"])
    model.graph.output[0].type.CopyFrom(
        helper.make_sequence_type_proto(
            helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
        )
    )
    graph, info = load_with_info(model)
    np.testing.assert_array_equal(evaluate(graph, feed)[0], x)
    assert graph.outputs[0].name == "y0"
    assert any("its columns are the classes 'cat', 'dog'" in warning for warning in info.warnings)
