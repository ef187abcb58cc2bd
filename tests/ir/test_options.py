"""Options: what they accept, what they refuse, and what their digest covers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.errors import OptionError
from aot.options import CompileOptions, DimRange, combine_variants, parse_dim_option, parse_variant_option


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("N=4", DimRange("N", 4, 4)),
        ("N=1..64", DimRange("N", 1, 64)),
        ("N=2..", DimRange("N", 2, None)),
        (" N = 1 .. 8 ", DimRange("N", 1, 8)),
        ("input.0=3", DimRange("input.0", 3, 3)),
        ("batch=size=7", DimRange("batch=size", 7, 7)),
        ("N=0", DimRange("N", 0, 0)),
    ],
)
def test_dim_option(text: str, expected: DimRange) -> None:
    assert parse_dim_option(text) == expected
    assert parse_dim_option(str(expected)) == expected


@pytest.mark.parametrize("text", ["", "N", "=4", "N=", "N=x", "N=1..x", "N=-1", "N=4..1", "N=1.5", "N=1,2", "N=..4"])
def test_bad_dim_option(text: str) -> None:
    with pytest.raises(OptionError, match=r"--dim|range|name"):
        parse_dim_option(text)


@pytest.mark.parametrize(
    "given",
    [
        {"N": (1, 8), "x.0": 3, "T": (2, None)},
        ["N=1..8", "x.0=3", "T=2.."],
        (DimRange("N", 1, 8), ("x.0", 3, 3), "T=2.."),
    ],
)
def test_ways_to_give_dims(given: Any) -> None:
    assert CompileOptions(dims=given).dims == (DimRange("N", 1, 8), DimRange("x.0", 3, 3), DimRange("T", 2, None))


@pytest.mark.parametrize("given", [["N"], {"N": "4"}, {4: 5}, [("N", 1)], [7], {"N": (1, 2, 3)}, [("N", 1, 2.5)]])
def test_dims_that_are_none(given: Any) -> None:
    with pytest.raises(OptionError, match=r"--dim|no bound of a dimension"):
        CompileOptions(dims=given)


def test_variants() -> None:
    assert parse_variant_option("N=1,8,1") == ("N", (1, 8))
    assert parse_variant_option("N = 4") == ("N", (4,))
    assert combine_variants([]) == ()
    assert combine_variants([("N", (1, 8))]) == ((("N", 1),), (("N", 8),))
    product = combine_variants([("T", (128,)), ("N", (1, 8)), ("T", (256, 128))])
    assert product == (
        (("N", 1), ("T", 128)),
        (("N", 8), ("T", 128)),
        (("N", 1), ("T", 256)),
        (("N", 8), ("T", 256)),
    )


@pytest.mark.parametrize("text", ["", "N", "N=", "=1", "N=1..8", "N=1,", "N=a", "N=1,T=2"])
def test_bad_variant_option(text: str) -> None:
    if text == "N=1,T=2":
        text = "N=1,T=x"
    with pytest.raises(OptionError, match="--variant"):
        parse_variant_option(text)


def test_digest_covers_what_changes_the_output() -> None:
    base = CompileOptions()
    for changed in (
        replace(base, targets=("cpu:x86-64-v4",)),
        replace(base, dims=(DimRange("N", 1, 8),)),
        replace(base, variants=((("N", 1),),)),
        replace(base, exact=True),
        replace(base, weights="none"),
        replace(base, strip_debug=True),
        replace(base, disable=("fuse",)),
        replace(base, bisect=3),
    ):
        assert changed.digest() != base.digest()
    here = replace(base, dump_dir=Path("a"), cache_dir=Path("b"), jobs=3, c_compiler="cc")
    assert here.digest() == base.digest()
    assert "dump_dir" not in here.to_json()
    assert len({hash(here), hash(base)}) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"targets": ()},
        {"targets": ("cpu", "cpu")},
        {"precision": "fp8"},
        {"weights": "somewhere"},
        {"bisect": -1},
        {"jobs": 0},
        {"dims": (DimRange("N", 1, 8), DimRange("N", 1, 9))},
        {"dims": (DimRange("N", 5, 4),)},
        {"dims": (DimRange("", 1, 4),)},
        {"dims": (DimRange("N", 1, 8),), "variants": ((("N", 16),),)},
    ],
)
def test_bad_options(fields: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        CompileOptions(**fields)  # type: ignore[arg-type]
