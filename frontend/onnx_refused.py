"""Operators that have no place in an artifact, and why: the reason stands in the report of what is not supported."""

from __future__ import annotations

from collections.abc import Mapping

_STRINGS = "tensors of strings have no place in an artifact; do this before the model"
_MAPS = "maps have no place in an artifact; make a tensor of the values before the model"

REASONS: Mapping[tuple[str, str], str] = {
    **{("", name): _STRINGS for name in ("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch")},
    ("", "ImageDecoder"): "images are decoded before the model",
    ("ai.onnx.ml", "CategoryMapper"): _STRINGS,
    ("ai.onnx.ml", "CastMap"): _MAPS,
    ("ai.onnx.ml", "DictVectorizer"): _MAPS,
}


def reason(domain: str, op_type: str) -> str:
    """Why an operator is not supported; "" where there is no more to say than that."""
    return REASONS.get((domain, op_type), "")
