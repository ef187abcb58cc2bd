"""Regions of interest, deformable convolutions and determinants, against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import ModelError
from aot.frontend import load
from tests.frontend.models import Array, check_against_onnxruntime, single

RNG = np.random.default_rng(6)


def normal(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def regions(count: int, size: float) -> Array:
    corners = RNG.uniform(-2.0, size + 2.0, (count, 4))
    corners[: count // 2, 2:] = corners[: count // 2, :2] + RNG.uniform(0.1, size / 2, (count // 2, 2))
    return corners.astype(np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("samples", [0, 1, 2])
@pytest.mark.parametrize("coordinate", ["half_pixel", "output_half_pixel"])
def test_roi_align(mode: str, samples: int, coordinate: str) -> None:
    boxes = regions(7, 20.0)
    if samples == 0:  # ONNX Runtime refuses boxes without extent here
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 0.25)
    operands = [normal(2, 3, 9, 11), boxes, RNG.integers(0, 2, 7)]
    attrs: dict[str, Any] = {"output_height": 3, "output_width": 4, "sampling_ratio": samples, "spatial_scale": 0.5}
    attrs |= {"mode": mode, "coordinate_transformation_mode": coordinate}
    check_against_onnxruntime(*single("RoiAlign", operands, opset=16, **attrs), 1e-3, 1e-4)


def test_roi_align_before_opset_16() -> None:
    operands = [normal(2, 3, 9, 11), regions(5, 9.0), RNG.integers(0, 2, 5)]
    check_against_onnxruntime(*single("RoiAlign", operands, opset=11, output_height=2, output_width=2), 1e-3, 1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale: float) -> None:
    boxes = np.sort(RNG.uniform(0.0, 9.0 / scale, (6, 2, 2)), axis=1).reshape(6, 4)
    rois = np.concatenate([RNG.integers(0, 2, (6, 1)), boxes], axis=1).astype(np.float32)
    model = single("MaxRoiPool", [normal(2, 3, 9, 10), rois], opset=17, pooled_shape=[2, 3], spatial_scale=scale)
    check_against_onnxruntime(*model)


@pytest.mark.parametrize(
    ("attrs", "image", "weights", "offset", "mask"),
    [
        ({"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, (2, 4, 6, 7), (3, 4, 3, 3), (2, 18, 6, 7), None),
        ({"strides": [2, 1], "dilations": [1, 2]}, (1, 2, 9, 9), (4, 2, 2, 3), (1, 12, 4, 5), (1, 6, 4, 5)),
        ({"group": 2, "offset_group": 2}, (2, 4, 5, 5), (6, 2, 2, 2), (2, 16, 4, 4), (2, 8, 4, 4)),
    ],
)
def test_deform_conv(attrs: Any, image: Any, weights: Any, offset: Any, mask: Any) -> None:
    operands = [normal(*image), normal(*weights), normal(*offset), normal(weights[0])]
    if mask is not None:
        operands.append(normal(*mask))
    check_against_onnxruntime(*single("DeformConv", operands, opset=19, **attrs), 1e-3, 1e-4)


def test_offsets_of_another_size_are_refused() -> None:
    operands = [normal(1, 2, 6, 6), normal(3, 2, 3, 3), normal(1, 18, 5, 4)]
    with pytest.raises(ModelError, match="the offsets have 5 places on spatial axis 0; the convolution has 4"):
        load(single("DeformConv", operands, opset=19)[0])


@pytest.mark.parametrize("shape", [(2, 2), (3, 4, 4), (2, 1, 6, 6)])
def test_det(shape: tuple[int, ...]) -> None:
    check_against_onnxruntime(*single("Det", [normal(*shape)], opset=11), 1e-3, 1e-4)
