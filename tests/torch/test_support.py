"""docs/torch.md says what the importer takes."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_page_is_current() -> None:
    from aot.frontend.torch_support import torch_page

    if not torch.__version__.startswith("2.13."):
        pytest.skip("the page is made with PyTorch 2.13")
    assert PAGE.read_text() == torch_page(), "run the command in frontend/torch_support.py"


def test_the_example_does_what_the_page_shows(tmp_path: Path) -> None:
    from docs.generator import blocks

    page = blocks.run_page(PAGE.read_text(), tmp_path, {"AOTC_CACHE": str(tmp_path / "kernels")})
    assert not page.differences and not page.skipped, page.differences


def test_every_core_op_is_taken_or_named() -> None:
    from aot.frontend.torch_support import core_overloads, is_supported

    missing = {name for name in core_overloads() if not is_supported(name)}
    left = {name for name in missing if not name.startswith("sym_")}
    assert left == {"_local_scalar_dense.default"}
