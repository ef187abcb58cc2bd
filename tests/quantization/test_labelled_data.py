"""What judges quantized models: scores, intervals, the tokenizer, the tables."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")

from benchmarks import labelled_data, labelled_data_tables, labelled_data_text, quantization_tables


def rows(scores: list[float], labels: list[float]) -> labelled_data.Array:
    return np.asarray([scores, labels]).T


def test_roc_auc_counts_pairs_and_halves_ties() -> None:
    random = np.random.default_rng(0)
    scores = random.integers(0, 6, 40).astype(float)
    labels = random.integers(0, 2, 40).astype(float)
    gaps = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    expected = ((gaps > 0) + 0.5 * (gaps == 0)).mean()
    assert labelled_data.roc_auc(rows(list(scores), list(labels))) == pytest.approx(expected)
    assert labelled_data.roc_auc(rows([0.1, 0.2], [1, 1])) == 1.0


def test_concordance_compares_levels_only() -> None:
    assert labelled_data.concordance(rows([3, 2, 1, 1.5], [60, 20, 0, 0])) == 1.0
    assert labelled_data.concordance(rows([1, 2], [60, 20])) == 0.0
    assert labelled_data.concordance(rows([2, 2], [60, 20])) == 0.5


def test_interval_is_paired() -> None:
    random = np.random.default_rng(1)
    plain = rows(list(random.integers(0, 2, 400).astype(float)), [0.0] * 400)
    low, high = labelled_data.interval(labelled_data.mean_of_first, plain, plain)
    assert low == high == 0.0
    worse = plain.copy()
    worse[np.flatnonzero(plain[:, 0])[:8], 0] = 0
    low, high = labelled_data.interval(labelled_data.mean_of_first, worse, plain)
    assert low < -8 / 400 < high < 0.0


def test_word_pieces_take_the_longest() -> None:
    known = {
        name: n for n, name in enumerate(["[CLS]", "[SEP]", "[UNK]", "read", "reader", "##s", "##er", ".", "cafe"])
    }
    tokens = labelled_data_text.WordPieces(known)
    assert tokens("Readers. Café xyz", 16).tolist() == [[0, 4, 5, 7, 8, 2, 1]]
    assert tokens("reads reads reads", 5).tolist() == [[0, 3, 5, 3, 1]]


def test_docstrings_are_the_same_every_time() -> None:
    found = labelled_data_text._summaries()
    assert len(found) >= 1500
    assert found == labelled_data_text._summaries()


def test_networks_of_tables_learn() -> None:
    random = np.random.default_rng(2)
    x = random.standard_normal((300, 4))
    y = (x[:, 0] * x[:, 1] > 0).astype(float)
    layers = labelled_data_tables._trained(x, y, 2, width=16, steps=400)
    found = x
    for n, (weight, bias) in enumerate(layers):
        found = found @ weight + bias
        found = np.maximum(found, 0) if n < 2 else found
    assert (found.argmax(axis=1) == y).mean() > 0.9


def entry(gain: float, ms: float, **more: object) -> dict[str, object]:
    return {"score": 0.9 + gain, "gain": gain, "low": gain, "high": gain, "ms": ms, "agreement": {"same": 1.0}, **more}


def test_tables_say_what_holds(tmp_path: Path) -> None:
    found = {
        "onnxruntime float": {"score": 0.9, "ms": 4.0}, "aotc float": entry(0.0, 3.0),
        "aotc int8": entry(-0.001, 1.5, quantized=3, products=4),
        "static a": entry(-0.002, 3.0, **{"ours ahead": [-0.003, -0.0005]}),
        "static b": {"failed": "ValueError"}, "dynamic": entry(-0.1, 2.0),
    }  # fmt: skip
    pair = {"pair": "one", "metric": "top-1", "items": 10, "margin": 0.0045, "found": found}
    lost = {**pair, "pair": "two", "found": {**found, "aotc int8": entry(-0.003, 1.5, quantized=3, products=4)}}
    document = {"cpu": "x", "pairs": {"one": pair, "two": lost}}
    (tmp_path / "quantization.json").write_text(json.dumps(document))
    quantization_tables.write_tables(tmp_path)
    text = (tmp_path / "quantization.md").read_text().splitlines()
    verdicts = [line.split("|")[-2].strip() for line in text if line.startswith(("| one | top", "| two | top"))]
    assert verdicts == ["yes", "NO: behind"]
    speeds = next(line for line in text if line.startswith("| one | 3.000"))
    assert "2.00" in speeds and "3.000 (a)" in speeds and "2.000 (dynamic)" in speeds
    assert any("fails" in line for line in text)
