"""Random models with control flow against ONNX Runtime.

The default run takes a few seeds. For more: `pytest -m fuzz tests/control`, with AOT_FUZZ_SEEDS=FIRST:LAST.
To look at one seed: `python -m tests.control.test_random SEED`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from pathlib import Path

import pytest
from onnx import helper

from tests.control.generate import generate
from tests.control.models import Checker


@pytest.mark.parametrize("seed", range(6))
def test_a_few_models(check: Checker, seed: int) -> None:
    model, feeds = generate(seed)
    check(model, *feeds)


@pytest.mark.fuzz
def test_many_models(check: Checker) -> None:
    first, _, last = os.environ.get("AOT_FUZZ_SEEDS", "0:100").partition(":")
    wrong: dict[int, str] = {}
    for seed in range(int(first), int(last)):
        try:
            model, feeds = generate(seed)
            check(model, *feeds)
        except Exception as error:  # the other seeds are still worth a look
            wrong[seed] = f"{type(error).__name__}: {error}"[:300]
    assert not wrong


def main() -> None:
    """Prints a model, and what is wrong with it."""
    model, feeds = generate(int(sys.argv[1]))
    print(helper.printable_graph(model.graph))
    with tempfile.TemporaryDirectory() as cache:
        try:
            Checker(Path(cache))(model, *feeds)
            print("no fault")
        except Exception:
            traceback.print_exc(limit=-4)


if __name__ == "__main__":
    main()
