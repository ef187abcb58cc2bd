"""Support vector machines against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from tests.frontend.models import check_against_onnxruntime
from tests.frontend.test_onnx_ml import ml, normal

RNG = np.random.default_rng(8)
POSTS = ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]


def machine(classes: int, kernel: str = "RBF", probabilities: bool = False, sign: bool = True) -> dict[str, Any]:
    counts = RNG.integers(1, 5, classes)
    total, pairs = int(counts.sum()), classes * (classes - 1) // 2
    coefficients = normal(total * (classes - 1))
    attrs: dict[str, Any] = {
        "classlabels_ints": list(range(7, 7 + classes)), "vectors_per_class": counts.tolist(),
        "support_vectors": normal(total * 4).tolist(), "rho": normal(pairs).tolist(),
        "coefficients": (coefficients if sign else np.abs(coefficients)).tolist(),
        "kernel_type": kernel, "kernel_params": [0.2, 0.1, 2.0],
    }  # fmt: skip
    if probabilities:
        attrs |= {"prob_a": (-np.abs(normal(pairs)) - 0.5).tolist(), "prob_b": (normal(pairs) * 0.2).tolist()}
    return attrs


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("probabilities", [False, True])
def test_classifier(post: str, classes: int, probabilities: bool) -> None:
    attrs = machine(classes, probabilities=probabilities)
    check_against_onnxruntime(*ml("SVMClassifier", normal(12, 4), results=2, post_transform=post, **attrs), 1e-3, 1e-5)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
@pytest.mark.parametrize("sign", [True, False])
def test_kernels(kernel: str, sign: bool) -> None:
    for classes in (2, 4):
        attrs = machine(classes, kernel, sign=sign)
        check_against_onnxruntime(*ml("SVMClassifier", normal(9, 4), results=2, **attrs), 1e-3, 1e-4)


@pytest.mark.parametrize("post", POSTS)
@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("positive", [False, True])
def test_without_support_vectors(post: str, classes: int, positive: bool) -> None:
    coefficients = normal(classes * 4)
    attrs = {
        "classlabels_ints": list(range(classes)), "rho": [0.1], "post_transform": post,
        "kernel_type": "LINEAR", "kernel_params": [0.0, 0.0, 0.0],
        "coefficients": (np.abs(coefficients) if positive else coefficients).tolist(),
    }  # fmt: skip
    check_against_onnxruntime(*ml("SVMClassifier", normal(11, 4), results=2, **attrs), 1e-3, 1e-5)


def test_malformed_machines_are_refused() -> None:
    attrs = machine(3)
    for name, value, reason in (
        ("rho", [0.0], "3 classes have 3 labels and 1 rho; 3 rho are needed"),
        ("coefficients", [1.0], "1 coefficients"),
        ("prob_a", [1.0], "prob_a and prob_b have 1 and 0 numbers; 3 are needed"),
    ):
        with pytest.raises(ModelError, match=reason):
            load(ml("SVMClassifier", normal(2, 4), results=2, **{**attrs, name: value})[0])
    strings = {**machine(2), "classlabels_strings": ["a", "b"]}
    del strings["classlabels_ints"]
    with pytest.raises(UnsupportedError, match="labels that are strings"):
        load(ml("SVMClassifier", normal(2, 4), results=2, **strings)[0])
