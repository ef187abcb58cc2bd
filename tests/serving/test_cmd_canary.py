"""`aotc canary`: exit codes, JSON, errors by line, and operators' commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from aot.runtime.serving import Canary, CanaryPolicy, Record, expected_to_json, to_json
from tests.cli.commands import document, invoke
from tests.serving.traffic import expected, pair

ROLL_BACK, HOLD = 3, 4


@pytest.fixture
def errors(tmp_path: Path) -> Path:
    path = tmp_path / "errors.json"
    path.write_text(json.dumps(expected_to_json(expected())))
    return path


def written(path: Path, records: Iterable[Record]) -> Path:
    path.write_text("".join(json.dumps(to_json(record)) + "\n" for record in records))
    return path


def test_good_records_promote(tmp_path: Path, errors: Path) -> None:
    file = written(tmp_path / "records.jsonl", [pair()] * 1500)
    told = document("canary", "judge", file, "--expected", errors)
    assert told["decision"] == "promote" and told["pairs"] == 1500
    assert {row["kind"] for row in told["evidence"]} == {"numeric", "latency", "failures"}
    text = invoke("canary", "judge", file, "--expected", errors).stdout
    assert text.startswith("promote") and "must be below" in text


def test_faulty_records_roll_back(tmp_path: Path, errors: Path) -> None:
    file = written(tmp_path / "records.jsonl", [pair(candidate="crash")] * 60)
    assert document("canary", "judge", file, "--expected", errors, code=ROLL_BACK)["decision"] == "roll back"


def test_records_without_expected_errors_hold(tmp_path: Path) -> None:
    file = written(tmp_path / "records.jsonl", [pair()] * 1500)
    told = document("canary", "judge", file, code=HOLD)
    assert told["decision"] == "hold" and "recorded no errors" in told["reasons"][0]


def test_an_empty_file_holds(tmp_path: Path, errors: Path) -> None:
    file = written(tmp_path / "records.jsonl", [])
    assert "no traffic" in document("canary", "judge", file, "--expected", errors, code=HOLD)["reasons"][0]


def test_a_policy_is_read(tmp_path: Path, errors: Path) -> None:
    file = written(tmp_path / "records.jsonl", [pair()] * 400)
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"failure_rate": 0.05}))
    invoke("canary", "judge", file, "--expected", errors, code=HOLD)
    invoke("canary", "judge", file, "--expected", errors, "--policy", policy, code=0)
    policy.write_text(json.dumps({"failure_rates": 0.05}))
    error = document("canary", "judge", file, "--policy", policy, code=1)["error"]
    assert "failure_rates" in error["message"] and str(policy) in error["where"]
    policy.write_text("{")
    assert "no JSON" in document("canary", "judge", file, "--policy", policy, code=1)["error"]["message"]


def test_damaged_lines_are_errors_with_their_number(tmp_path: Path) -> None:
    file = written(tmp_path / "records.jsonl", [pair()] * 3)
    file.write_text(file.read_text()[:-20])
    error = document("canary", "judge", file, code=1)["error"]
    assert error["where"] == f"{file}, line 3"


def test_missing_files_are_usage_errors(tmp_path: Path) -> None:
    document("canary", "judge", tmp_path / "none.jsonl", code=2)
    assert "no regular file" in document("canary", "judge", "/dev/null", code=2)["error"]["message"]
    file = written(tmp_path / "records.jsonl", [])
    document("canary", "judge", file, "--expected", tmp_path / "none.aot", code=2)
    (tmp_path / "bad.aot").write_bytes(b"rubbish")
    assert document("canary", "judge", file, "--expected", tmp_path / "bad.aot", code=1)["error"]["code"] == "artifact"
    (tmp_path / "bad.json").write_text('{"y": {"max_abs": 1}}')
    assert (
        "errors.y.max_abs"
        in document("canary", "judge", file, "--expected", tmp_path / "bad.json", code=1)["error"]["where"]
    )


def test_operators_commands_steer_a_rollout_that_no_one_controls(tmp_path: Path) -> None:
    state = tmp_path / "state"
    Canary(state, CanaryPolicy(), expected()).close()
    by = ("--name", "ada", "--reason", "test")
    assert document("canary", "pause", state, *by) == {"done": True, "state": "paused", "share": 0.01}
    assert document("canary", "status", state)["state"] == "paused"
    assert document("canary", "resume", state, *by)["state"] == "running"
    assert document("canary", "resume", state, *by, code=1)["error"]["message"] == "this rollout is not paused"
    assert document("canary", "force", state, *by)["share"] == 1.0
    assert "rolled back" in invoke("canary", "rollback", state, *by).stdout
    assert "rolled back" in invoke("canary", "status", state).stdout
    assert len((state / "audit.jsonl").read_text().splitlines()) == 5


def test_orders_wait_for_the_controller(tmp_path: Path) -> None:
    with Canary(tmp_path / "state", CanaryPolicy(), expected()) as canary:
        told = document("canary", "rollback", canary.directory, "--name", "ada", "--reason", "test")
        assert not told["done"] and canary.state == "running"
        assert document("canary", "status", canary.directory)["orders"] == 1
        assert canary.decide().decision == "roll back" and canary.share == 0.0


def test_commands_begin_no_canary(tmp_path: Path) -> None:
    for name in ("pause", "resume", "force", "rollback"):
        document("canary", name, tmp_path, "--name", "ada", "--reason", "x", code=2)
    document("canary", "status", tmp_path / "nowhere", code=2)
    assert not list(tmp_path.iterdir())


def test_operators_give_a_reason(tmp_path: Path) -> None:
    Canary(tmp_path / "state").close()
    assert "reason" in document("canary", "pause", tmp_path / "state", "--name", "ada", code=2)["error"]["message"]
    document("canary", "pause", tmp_path / "state", "--name", "ada", "--reason", " ", code=1)


def test_help_lists_all_commands() -> None:
    text = invoke("canary", "--help").stdout
    assert all(name in text for name in ("judge", "status", "pause", "resume", "force", "rollback", "simulate"))
    assert "4 hold" in invoke("canary", "judge", "--help").stdout


def test_a_reason_in_another_encoding(tmp_path: Path) -> None:
    Canary(tmp_path / "state").close()
    invoke("canary", "pause", tmp_path / "state", "--name", "me", "--reason", os.fsdecode(b"caf\xe9"))
    assert "caf" in invoke("canary", "status", tmp_path / "state").output
    with Canary(tmp_path / "state") as canary:
        canary.resume("me", "because")
        canary.pause("me", os.fsdecode(b"caf\xe9"))  # not through the command line
    assert document("canary", "status", tmp_path / "state")["state"] == "paused"
