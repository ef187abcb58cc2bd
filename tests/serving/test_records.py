"""Records, expected errors and policies as JSON: there and back, and every wrong field by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.errors import RunError
from aot.runtime.serving import (
    OUTCOMES,
    CanaryPolicy,
    ErrorDistribution,
    Pair,
    Request,
    expected_of,
    expected_to_json,
    from_json,
    read_records,
    to_json,
)
from tests.serving.traffic import pair

numbers = st.floats(allow_nan=False)
seconds = st.none() | numbers
words = st.sampled_from(OUTCOMES)
values = st.dictionaries(st.text(max_size=3), st.dictionaries(st.text(max_size=3), numbers, max_size=2), max_size=2)
records = st.builds(Pair, numbers, st.text(), words, words, seconds, seconds, values, st.booleans(), st.text()) | (
    st.builds(Request, numbers, st.text(), st.sampled_from(("stable", "candidate")), words, seconds, st.booleans())
)


@given(records)
def test_records_go_to_json_and_back(record: Pair | Request) -> None:
    assert from_json(json.loads(json.dumps(to_json(record), allow_nan=False))) == record


def test_nan_goes_to_json_and_back() -> None:
    back = from_json(to_json(pair(values={"y": {"max_abs": math.nan}})))
    assert isinstance(back, Pair) and math.isnan(back.values["y"]["max_abs"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": "other"}, "kind"), ({"time": None}, "time"), ({"time": "soon"}, "time"), ({"bucket": 3}, "bucket"),
        ({"stable": "good"}, "stable"), ({"candidate": ["ok"]}, "candidate"),
        ({"stable_seconds": "x"}, "stable_seconds"),
        ({"values": []}, "values"), ({"values": {"y": 1}}, "values.y"), ({"is_cold": "no"}, "is_cold"),
        ({"values": {"y": {"max_abs": None}}}, "values.y.max_abs"), ({"key": 1}, "key"),
        ({"values": {"y": {"max_abs": True}}}, "values.y.max_abs"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(RunError, match=f"field '{field}'"):
        from_json({**to_json(pair()), **changes})


def test_a_wrong_version_is_named() -> None:
    with pytest.raises(RunError, match="'version'"):
        from_json({**to_json(Request(0.0, "", "stable", "ok", None)), "version": "third"})


def test_what_is_no_object_is_refused() -> None:
    with pytest.raises(RunError, match="a record is an object"):
        from_json([1])  # type: ignore[arg-type]


@pytest.mark.parametrize("line", [b"{", b"[1]", b'{"kind": "pair"}', b"\xff\xfe", b"[" * 100_000, b"nonsense"])
def test_damaged_lines_are_errors_with_their_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "records.jsonl"
    good = json.dumps(to_json(pair())).encode()
    path.write_bytes(good + b"\n\n" + line)
    reader = read_records(path)
    assert next(reader) == pair()
    with pytest.raises(RunError) as raised:
        next(reader)
    assert raised.value.where == f"{path}, line 3"


def test_huge_numbers_are_infinite() -> None:
    document = {**to_json(pair()), "values": {"y": {"max_abs": 10**400}}}
    back = from_json(document)
    assert isinstance(back, Pair) and back.values["y"]["max_abs"] == math.inf


def test_records_that_cannot_be_read_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        next(read_records(tmp_path))


# Expected errors.


def test_expected_errors_go_to_json_and_back() -> None:
    expected = {"y": {"max_abs": ErrorDistribution(100, ((0.5, 0.1), (1.0, 0.2)))}}
    assert expected_of({"errors": json.loads(json.dumps(expected_to_json(expected)))}) == expected
    assert expected_of({}) == {}


@pytest.mark.parametrize(
    "entry",
    [
        3, {}, {"samples": 10}, {"samples": 1.5, "quantiles": [[1.0, 1.0]]}, {"samples": 0, "quantiles": [[1.0, 1.0]]},
        {"samples": 10, "quantiles": []}, {"samples": 10, "quantiles": [[0.9, 1.0]]},
        {"samples": 10, "quantiles": [[1]]},
        {"samples": 10, "quantiles": [[0.5, 2.0], [1.0, 1.0]]}, {"samples": 10, "quantiles": [[1.0, math.nan]]},
        {"samples": 10, "quantiles": [[1.0, -1.0]]},
        {"samples": 10, "quantiles": [[1.0, 10**400]]}, {"samples": 10**400, "quantiles": [[1.0, 1.0]]},
        {"samples": True, "quantiles": [[1.0, 1.0]]},
    ],
)  # fmt: skip
def test_wrong_expected_errors_are_named(entry: Any) -> None:
    with pytest.raises(RunError, match=r"errors\.y\.max_abs"):
        expected_of({"errors": {"y": {"max_abs": entry}}})


# Policies.


def test_policies_go_to_json_and_back() -> None:
    policy = CanaryPolicy(bounds={"y": {"max_abs": 0.5}}, metrics=("max_abs",), steps=(0.5, 1.0))
    assert CanaryPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy
    assert CanaryPolicy.from_json({"false_alarm": 0.05, "steps": [0.1, 1]}).steps == (0.1, 1.0)


@pytest.mark.parametrize(
    "document",
    [
        {"false_alarm": 0}, {"false_alarm": 1.5}, {"false_alarm": "low"}, {"missed_fault": True}, {"least_pairs": -1},
        {"least_pairs": 1.5}, {"steps": []}, {"steps": [0.5]}, {"steps": [0.5, 0.2, 1]}, {"steps": "all"},
        {"latency_ratio": 1.01}, {"tolerated_latency_ratio": 0.9}, {"require": []}, {"require": ["speed"]},
        {"bounds": {"y": 3}}, {"bounds": {"y": {"max_abs": -1}}}, {"bounds": 1}, {"metrics": [3]},
        {"steps": [10**400, 1]}, {"false_alarm": 10**400}, {"false_alarm": 1e-310}, {"false_alarm": math.nan},
        {"bounds": {"y": {"max_abs": 10**400}}}, {"latency_ratio": 10**400},
        {"error_factor": 0.5}, {"tail_index": 0}, {"most_buckets": 0}, {"missing_share": 1.0}, {"steps": [0, 1]},
    ],
)  # fmt: skip
def test_a_wrong_field_of_a_policy_is_named(document: dict[str, Any]) -> None:
    (name,) = document
    with pytest.raises(RunError) as raised:
        CanaryPolicy.from_json(document)
    assert raised.value.where.startswith(name)


def test_an_unknown_field_of_a_policy_is_refused() -> None:
    with pytest.raises(RunError, match="no field 'false_alarms'"):
        CanaryPolicy.from_json({"false_alarms": 0.01})
