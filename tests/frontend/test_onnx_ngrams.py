"""TfIdfVectorizer over numbers against ONNX Runtime, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from tests.frontend.models import check_against_onnxruntime, single

RNG = np.random.default_rng(10)
POOL = [1, 2, 3, 4, 1, 2, 2, 2, 3, 1, 4, 4, 1, 2, 3, 2, 2, 2]  # four of 1, four of 2, two of 3


def attrs(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "mode": "TF", "min_gram_length": 1, "max_gram_length": 3, "max_skip_count": 0, "ngram_counts": [0, 4, 12],
        "ngram_indexes": [3, 0, 1, 2, 9, 8, 7, 6, 5, 4], "pool_int64s": POOL,
    }  # fmt: skip
    return {**found, **changes}


@pytest.mark.parametrize("mode", ["TF", "IDF", "TFIDF"])
@pytest.mark.parametrize("skips", [0, 2])
@pytest.mark.parametrize("lengths", [(1, 3), (2, 2), (1, 1), (3, 3)])
def test_counts(mode: str, skips: int, lengths: tuple[int, int]) -> None:
    weights = RNG.uniform(0.1, 2.0, 10).astype(np.float32).tolist()
    more = attrs(
        mode=mode, max_skip_count=skips, min_gram_length=lengths[0], max_gram_length=lengths[1], weights=weights
    )
    for shape in ((9,), (4, 12), (3, 2), (1, 1)):
        for dtype in (np.int64, np.int32):
            rows = RNG.integers(0, 5, shape).astype(dtype)
            check_against_onnxruntime(*single("TfIdfVectorizer", [rows], opset=9, **more))


def test_without_weights() -> None:
    for mode in ("IDF", "TFIDF"):
        rows = RNG.integers(0, 5, (3, 8))
        check_against_onnxruntime(*single("TfIdfVectorizer", [rows], opset=9, **attrs(mode=mode)))


def test_what_is_malformed_is_refused() -> None:
    rows = RNG.integers(0, 5, (3, 8))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mode": "X"}, "mode 'X' is not TF"),
        ({"weights": [1.0]}, "1 weights for 10 n-grams"),
        ({"ngram_counts": [0, 4, 11]}, "do not divide a pool of 18 into n-grams"),
        ({"ngram_indexes": [0, 1, 2]}, "3 ngram_indexes for 4 n-grams"),
    ]
    for change, reason in cases:
        changed = attrs(**change)
        if "weights" in change:
            changed["mode"] = "IDF"
        with pytest.raises(ModelError, match=reason):
            load(single("TfIdfVectorizer", [rows], opset=9, **changed)[0])
    with pytest.raises(UnsupportedError, match="share a place"):
        load(single("TfIdfVectorizer", [rows], opset=9, **attrs(ngram_indexes=[0] * 10))[0])
