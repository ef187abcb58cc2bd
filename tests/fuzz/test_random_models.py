"""Random models against ONNX Runtime: shapes, values, untouched inputs, the same bits at any thread count.

The default run takes a few seeds. For more: `pytest -m fuzz tests/fuzz`, with AOT_FUZZ_SEEDS=FIRST:LAST.
To look at one seed: `python -m tests.fuzz.test_random_models SEED`.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import pytest
from onnx import helper

from aot.errors import ModelError, UnsupportedError
from aot.runtime import target_supported
from tests.fuzz.check import check
from tests.fuzz.generate import generate
from tests.fuzz.grow import Case

FAST = range(1000, 1014)
# What the compiler may decline: ONNX leaves these to the sizes at run time, and no size fits all of them.
DECLINED = ("differ", "pads that may be negative")


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def targets() -> tuple[str, ...]:
    return tuple(target for target in ("cpu:x86-64-v4", "cpu:x86-64-v3") if target_supported(target))


def faults(case: Case, cache: Path, target: str) -> list[str]:
    try:
        return check(case, cache, (target,))
    except (ModelError, UnsupportedError) as error:
        if any(text in str(error) for text in DECLINED):
            return []
        raise


@pytest.mark.parametrize("seed", FAST)
def test_a_few_models(seed: int, kernels: Path) -> None:
    names = targets()
    assert not faults(generate(seed), kernels, names[seed % len(names)])


@pytest.mark.fuzz
def test_many_models(kernels: Path) -> None:
    first, _, last = os.environ.get("AOT_FUZZ_SEEDS", "0:200").partition(":")
    wrong: dict[int, list[str]] = {}
    for seed in range(int(first), int(last)):
        for target in targets():
            try:
                found = faults(generate(seed), kernels, target)
            except Exception as error:  # the other seeds are still worth a look
                found = [f"{target}: {type(error).__name__}: {error}"]
            if found:
                wrong.setdefault(seed, []).extend(found[:3])
    assert not wrong


def main() -> None:
    """Prints a model, and what is wrong with it."""
    case = generate(int(sys.argv[1]))
    print(helper.printable_graph(case.model.graph))
    with tempfile.TemporaryDirectory() as cache:
        print("\n".join(line for target in targets() for line in faults(case, Path(cache), target)) or "no fault")


if __name__ == "__main__":
    main()
