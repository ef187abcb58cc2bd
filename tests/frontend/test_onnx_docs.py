"""docs/onnx.md says what the converters do."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from aot.frontend import support
from aot.frontend.onnx_import import ONE_TO_ONE
from aot.frontend.onnx_registry import CONVERTERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "onnx.md"


def test_the_page_is_current() -> None:
    text = PAGE.read_text()
    if f"onnx {onnx.__version__};" not in text:
        pytest.skip("the page was generated with another version of onnx")
    assert text == support.support_page(), f"regenerate it as {support.__name__} says"


def test_every_converter_is_for_an_op_of_onnx() -> None:
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas_with_history()}
    assert set(CONVERTERS) <= known
    assert {("", name) for name in ONE_TO_ONE} <= known
    assert set(support.LIMITS) <= {name for _, name in known}


def test_no_op_has_two_ways_in() -> None:
    assert not {name for domain, name in CONVERTERS if not domain} & set(ONE_TO_ONE)
