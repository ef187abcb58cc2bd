"""Resize with antialiasing or a crop, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from tests.frontend.models import FLOAT, Array, check_against_onnxruntime, model_of

RNG = np.random.default_rng(3)


def resize(
    shape: tuple[int, ...], sizes: Any = None, scales: Any = None, roi: Any = None, symbolic: bool = False, **attrs: Any
) -> tuple[Any, dict[str, Array]]:
    constants = {}
    if roi is not None:
        constants["roi"] = np.array(roi, np.float32)
    if scales is not None:
        constants["scales"] = np.array(scales, np.float32)
    if sizes is not None:
        constants["sizes"] = np.array(sizes, np.int64)
    names = ["x", *(name if name in constants else "" for name in ("roi", "scales", "sizes"))]
    node = helper.make_node("Resize", names, ["y"], **attrs)
    declared: list[int | str | None] = [*shape]
    if symbolic:
        declared[2:] = ["h", "w"]
    x = RNG.normal(size=shape).astype(np.float32)
    return model_of([node], {"x": (FLOAT, declared)}, ["y"], opset=18, constants=constants), {"x": x}


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("coordinate", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("exclude", [0, 1])
def test_antialias(mode: str, coordinate: str, exclude: int) -> None:
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinate, "antialias": 1}
    if mode == "cubic":
        attrs["exclude_outside"] = exclude
    for shape, sizes in (((2, 3, 17, 12), (2, 3, 5, 7)), ((1, 1, 9, 8), (1, 1, 4, 20)), ((1, 2, 6, 6), (1, 2, 6, 2))):
        check_against_onnxruntime(*resize(shape, sizes=sizes, **attrs), 1e-3, 1e-4)


def test_antialias_by_scales() -> None:
    model = resize((1, 2, 10, 13), scales=[1, 1, 0.6, 0.45], mode="linear", antialias=1)
    check_against_onnxruntime(*model, 1e-3, 1e-4)


def test_antialias_of_any_batch() -> None:
    model, feed = resize((3, 2, 10, 13), sizes=[4, 5], axes=[2, 3], mode="linear", antialias=1)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    check_against_onnxruntime(model, feed, 1e-3, 1e-4)


def test_antialias_of_nearest_is_plain() -> None:
    check_against_onnxruntime(*resize((1, 2, 10, 13), sizes=[1, 2, 4, 5], mode="nearest"))


CROP: dict[str, Any] = {"coordinate_transformation_mode": "tf_crop_and_resize", "extrapolation_value": 10.0}


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_crop_and_resize(mode: str) -> None:
    inside = [0.0, 0.0, 0.4, 0.6, 1.0, 1.0, 0.6, 0.8]
    beyond = [0.0, 0.0, 0.4, -0.2, 1.0, 1.0, 1.4, 1.7]
    turned = [0.0, 0.0, 0.9, 0.1, 1.0, 1.0, 0.2, 1.0]
    for roi in (inside, beyond, turned):
        check_against_onnxruntime(*resize((1, 1, 7, 6), sizes=[1, 1, 3, 4], roi=roi, mode=mode, **CROP), 1e-3, 1e-4)
    check_against_onnxruntime(*resize((1, 1, 7, 6), sizes=[1, 1, 1, 9], roi=inside, mode=mode, **CROP), 1e-3, 1e-4)


def test_what_needs_known_sizes_says_so() -> None:
    with pytest.raises(UnsupportedError, match="antialiasing of a size that is only known when running"):
        load(resize((1, 2, 9, 9), sizes=[1, 2, 3, 3], mode="linear", antialias=1, symbolic=True)[0])
    with pytest.raises(UnsupportedError, match="tf_crop_and_resize of a size that is only known when running"):
        load(resize((1, 2, 9, 9), sizes=[1, 2, 3, 3], roi=[0, 0, 0, 0, 1, 1, 1, 1], symbolic=True, **CROP)[0])
    with pytest.raises(ModelError, match="roi has 4 numbers for 4 axes; 8 are needed"):
        load(resize((1, 2, 9, 9), sizes=[1, 2, 3, 3], roi=[0, 0, 1, 1], **CROP)[0])
