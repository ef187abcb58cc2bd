"""What all tests share: what must be set before anything imports Triton or PyTorch, and which files start first."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["TRITON_INTERPRET"] = "1"  # cubins are compiled in processes that do not have it
# One process of pytest for each core is the parallelism: with threads too, PyTorch's wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A file stays on one worker (--dist loadfile), and with --no-loadscope-reorder files start in this order.
LONGEST = (
    "tests/torch/test_models.py", "tests/zoo/test_zoo.py", "tests/torch/test_suites.py",
    "tests/passes/test_zoo_models.py", "tests/cuda/test_loops.py", "tests/torch/test_open_sizes.py",
    "tests/docs/test_pages.py", "tests/backend/test_loops.py", "tests/cuda/test_joined.py",
    "tests/torch/test_idioms.py", "tests/torch/test_complex.py", "tests/runtime/test_cuda.py",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that take longest first, so that no worker begins one when the others are about to end."""
    rank = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONGEST)))


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The simulated driver in this process, without a GPU."""
    if any("libcuda.so" in line for line in Path("/proc/self/maps").read_text().splitlines()):
        pytest.skip("a driver is loaded already")
    from tests import simulated  # not above: it imports backends

    fake = simulated.load_driver(tmp_path_factory.mktemp("driver"))
    fake.fake_machine(0, 90, 13000, simulated.DEVICE_BYTES)
    return fake


@pytest.fixture
def fake(library: ctypes.CDLL) -> Iterator[ctypes.CDLL]:
    """One GPU; afterwards nothing may be left of what a test made there, and nothing may have been misused."""
    from tests.simulated import DEVICE_BYTES

    library.fake_machine(1, 90, 13000, DEVICE_BYTES)
    library.fake_fail(0, 0)
    yield library
    library.fake_fail(0, 0)
    gc.collect()
    misuse, live = library.fake_misuse(), library.fake_live()
    library.fake_machine(0, 90, 13000, DEVICE_BYTES)
    assert not misuse, misuse.decode()
    assert live == 0
