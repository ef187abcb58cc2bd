"""The ONNX backend suite. AOT_SUITE=all runs every test; by default one in eight of the node tests."""

from __future__ import annotations

import os
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.frontend.suite import SuiteCase, compiled, file_cases, node_cases, run

# Passes of a full run (2024 tests without the large models).
FULL_PASSES = 1832

KNOWN_FAILURES = {
    # The suite rounds every step to float16; the difference is one unit in the last place.
    "test_attention_4d_causal_fp16": "float16 rounding",
    "test_attention_4d_causal_fp16_expanded": "float16 rounding",
    # ONNX Runtime uses the rounded output size here, as this compiler does.
    "test_resize_downsample_scales_linear_align_corners": "fractional output size",
    "test_resize_downsample_scales_cubic_align_corners": "fractional output size",
    # Expected are 2e-6 where the exact result is 0.
    "test_dft_inverse": "rounding of the suite",
    "test_dft_inverse_opset19": "rounding of the suite",
    **{
        f"test_bernoulli{kind}{form}": "another generator of random numbers"
        for kind in ("", "_double", "_seed")
        for form in ("", "_expanded")
    },
}


@pytest.mark.suite
def test_suite(record_property: Callable[[str, object], None]) -> None:
    everything = os.environ.get("AOT_SUITE") == "all"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases: list[SuiteCase] = list(node_cases())
        if everything:
            cases += file_cases()
        else:
            cases = [case for case in cases if zlib.crc32(case.name.encode()) % 8 == 0]
        verdicts = {case.name: run(case) for case in cases}
    counts = Counter(verdict for verdict, _ in verdicts.values())
    for verdict, count in counts.items():
        record_property(verdict, count)
    print(dict(counts))
    failures = {name: reason for name, (verdict, reason) in verdicts.items() if verdict == "fail"}
    assert set(failures) <= set(KNOWN_FAILURES), failures
    assert counts["pass"] >= (FULL_PASSES if everything else 150)


@pytest.mark.suite
def test_suite_compiled(tmp_path: Path) -> None:
    """The same through the C compiler and the runtime; by default one in forty of the node tests."""
    every = 1 if os.environ.get("AOT_SUITE") == "all" else 40
    apply = compiled(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = [case for case in node_cases() if zlib.crc32(case.name.encode()) % every == 0]
        verdicts = {case.name: run(case, apply) for case in cases}
    failures = {name: reason for name, (verdict, reason) in verdicts.items() if verdict == "fail"}
    assert set(failures) <= set(KNOWN_FAILURES), failures
    assert sum(verdict == "pass" for verdict, _ in verdicts.values()) >= len(cases) * 0.7
