"""The controller: steps, operators, restarts, full disks, and the audit log."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from aot.errors import RunError
from aot.runtime.serving import Canary, CanaryPolicy, Order, Pair, Record, Request, canary_status, leave_order
from tests.serving.traffic import expected, pair

QUICK = CanaryPolicy(least_pairs=50, least_requests=10, failure_rate=0.05)


def traffic(pairs: int, **changes: object) -> list[Record]:
    """Pairs with live requests of both versions."""
    records: list[Record] = []
    for _ in range(pairs):
        records += [
            pair(**changes),
            Request(0.0, "", "stable", "ok", 0.01),
            Request(0.0, "", "candidate", "ok", 0.01),
        ]
    return records


@pytest.fixture
def canary(tmp_path: Path) -> Iterator[Canary]:
    with Canary(tmp_path / "state", QUICK, expected(), clock=lambda: 5.0) as made:
        yield made


def whats(canary: Canary) -> list[str]:
    return [line["what"] for line in canary.audit()]


# Steps.


def test_a_good_candidate_climbs_the_steps(canary: Canary) -> None:
    shares = [canary.share]
    for _ in range(40):
        canary.add(traffic(20))
        canary.decide()
        if canary.share != shares[-1]:
            shares.append(canary.share)
    assert shares == [0.01, 0.05, 0.25, 1.0] and canary.state == "promoted"
    assert whats(canary)[:3] == ["begin", "step", "hold"] and whats(canary)[-1] == "promote"
    assert canary.decide().decision == "promote"


def test_no_traffic_holds_for_ever(canary: Canary) -> None:
    for _ in range(5):
        verdict = canary.decide()
        assert verdict.decision == "hold" and "0 of 50 pairs" in verdict.reasons[0]
    assert canary.share == 0.01 and whats(canary) == ["begin"]


def test_each_step_needs_its_own_samples(canary: Canary) -> None:
    canary.add(traffic(60))
    assert canary.decide().decision == "promote"
    verdict = canary.decide()
    assert verdict.decision == "hold" and "0 of 50 pairs in this step" in verdict.reasons[0]


def test_all_traffic_needs_the_judges_word(tmp_path: Path) -> None:
    policy = CanaryPolicy(least_pairs=50, least_requests=10)
    with Canary(tmp_path, policy, expected()) as canary:
        for _ in range(6):
            canary.add(traffic(60))
            canary.decide()
        assert canary.share == 0.25 and canary.judge.decision() == "hold"


def test_a_fault_rolls_back_and_stays(canary: Canary) -> None:
    canary.add(traffic(60))
    canary.decide()
    canary.add(traffic(60, candidate="crash"))
    verdict = canary.decide()
    assert verdict.decision == "roll back" and canary.share == 0.0 and canary.state == "rolled back"
    canary.add(traffic(500))
    again = canary.decide()
    assert again.decision == "roll back" and again.reasons == verdict.reasons
    last = canary.audit()[-1]
    assert last["what"] == "roll back" and last["share"] == 0.0 and last["evidence"] and last["time"] == 5.0


# Operators.


def test_an_operator_can_pause_resume_and_force(canary: Canary) -> None:
    canary.pause("ada", "release freeze")
    canary.add(traffic(60))
    verdict = canary.decide()
    assert verdict.decision == "hold" and verdict.reasons == ("pause by ada: release freeze",)
    assert canary.share == 0.01 and canary.state == "paused"
    canary.resume("ada", "thaw")
    assert canary.decide().decision == "promote"
    canary.force("promote", "bob", "known good")
    assert canary.share == 1.0 and canary.state == "promoted"
    canary.force("roll back", "bob", "not so good")
    assert canary.share == 0.0
    last = canary.audit()[-1]
    assert (last["who"], last["why"]) == ("bob", "not so good")


def test_a_fault_rolls_back_a_paused_rollout(canary: Canary) -> None:
    canary.pause("ada", "lunch")
    canary.add(traffic(60, candidate="crash"))
    assert canary.decide().decision == "roll back"


@pytest.mark.parametrize(("who", "why"), [("", "x"), ("x", " ")])
def test_operators_give_a_name_and_a_reason(canary: Canary, who: str, why: str) -> None:
    with pytest.raises(RunError, match="name and a reason"):
        canary.force("roll back", who, why)
    assert canary.state == "running"


def test_orders_that_make_no_sense_are_refused(canary: Canary) -> None:
    with pytest.raises(RunError, match="an order is one of"):
        canary.force("retry", "ada", "x")
    with pytest.raises(RunError, match="not paused"):
        canary.resume("ada", "x")
    canary.force("roll back", "ada", "x")
    with pytest.raises(RunError, match="nothing to pause"):
        canary.pause("ada", "x")


def test_orders_from_other_processes_are_followed_once(canary: Canary) -> None:
    leave_order(canary.directory, Order("pause", "ada", "x"))
    assert canary_status(canary.directory)["orders"] == 1
    canary.decide()
    assert canary.state == "paused" and not list((canary.directory / "orders").iterdir())
    leave_order(canary.directory, Order("pause", "ada", "y"))
    leave_order(canary.directory, Order("resume", "ada", "z"))
    (canary.directory / "orders" / "damaged.json").write_text("{")
    canary.decide()
    assert canary.state == "running"
    assert whats(canary) == ["begin", "pause", "pause", "resume", "order refused"]


def test_an_order_that_cannot_be_removed_is_not_followed_again(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.runtime.serving.controller.finish_order", lambda directory, name: None)
    leave_order(canary.directory, Order("pause", "ada", "x"))
    for _ in range(3):
        canary.decide()
    assert whats(canary) == ["begin", "pause"]


# Restarts.


def test_a_restart_continues_where_it_was(tmp_path: Path) -> None:
    records = traffic(150)
    with Canary(tmp_path / "one", QUICK, expected()) as whole:
        for first in range(0, len(records), 30):
            whole.add(records[first : first + 30])
            whole.decide()
        state, share, judged = whole.state, whole.share, whole.judge.state()
    for first in range(0, len(records), 30):
        with Canary(tmp_path / "two") if first else Canary(tmp_path / "two", QUICK, expected()) as part:
            part.add(records[first : first + 30])
            part.decide()
    with Canary(tmp_path / "two", QUICK, expected()) as part:
        assert (part.state, part.share) == (state, share) and part.judge.state() == judged
        assert canary_status(tmp_path / "two")["share"] == share


def test_a_long_journal_becomes_a_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.runtime.serving.controller._SEGMENT_BYTES", 20_000)
    with Canary(tmp_path, QUICK, expected()) as canary:
        for _ in range(30):
            canary.add(traffic(20))
        judged = canary.judge.state()
        assert sum(path.stat().st_size for path in tmp_path.glob("journal-*")) < 60_000
    with Canary(tmp_path) as canary:
        assert canary.judge.state() == judged


def test_another_policy_or_other_errors_are_refused(tmp_path: Path) -> None:
    Canary(tmp_path, QUICK, expected()).close()
    with pytest.raises(RunError, match="another policy"):
        Canary(tmp_path, CanaryPolicy(), expected())
    with pytest.raises(RunError, match="another expected errors"):
        Canary(tmp_path, QUICK, {"y": {}})
    with Canary(tmp_path) as canary:
        assert canary.policy == QUICK


def test_two_controllers_on_one_directory_are_refused(canary: Canary) -> None:
    with pytest.raises(RunError, match="another controller of this process"):
        Canary(canary.directory)
    canary.add(traffic(1))  # the first one goes on


def test_damage_is_told_in_the_audit_log(tmp_path: Path) -> None:
    with Canary(tmp_path, QUICK, expected()) as canary:
        canary.add(traffic(5))
        canary.add(traffic(5))
    path = tmp_path / "journal-00000000"
    path.write_bytes(path.read_bytes()[:-7])
    with Canary(tmp_path) as canary:
        assert canary.judge.pairs == 5
        last = canary.audit()[-1]
        assert last["what"] == "recover" and "not whole" in last["reasons"][0]


@pytest.mark.parametrize("damage", ["torn", "removed", "a line of rubbish"])
def test_the_audit_log_is_repaired_from_the_journal(tmp_path: Path, damage: str) -> None:
    with Canary(tmp_path, QUICK, expected()) as canary:
        canary.pause("ada", "ä")
        canary.resume("ada", "y")
        before = canary.audit()
    path = tmp_path / "audit.jsonl"
    data = path.read_bytes()
    if damage == "torn":
        path.write_bytes(data[: data.rstrip(b"\n").rfind(b"\n") + 9])
    elif damage == "removed":
        path.unlink()
    else:
        path.write_bytes(data + b"rubbish\n")
    with Canary(tmp_path) as canary:
        assert canary.audit() == before
        canary.pause("ada", "z")
        assert len(canary.audit()) == 4


def test_status_of_no_canary_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no canary"):
        canary_status(tmp_path)
    with pytest.raises(RunError, match="no such directory"):
        canary_status(tmp_path / "nowhere")


# A full disk.


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_an_error_and_the_canary_holds(canary: Canary) -> None:
    canary.add(traffic(40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(RunError, match="the disk is full"):
            canary.add(traffic(30))
        assert canary.judge.pairs == 40 and "full" in canary.trouble
        with pytest.raises(RunError, match="the disk is full"):
            canary.pause("ada", "x")
        assert canary.state == "running" and canary.decide().decision == "hold"
    canary.add(traffic(30))
    assert canary.decide().decision == "promote" and canary.share == 0.05 and not canary.trouble


def test_a_step_that_cannot_be_written_is_not_taken(canary: Canary) -> None:
    canary.add(traffic(60))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        verdict = canary.decide()
        assert verdict.decision == "hold" and "cannot be written" in verdict.reasons[0]
        assert canary.share == 0.01
    assert canary.decide().decision == "promote"


def test_a_fault_rolls_back_even_with_a_full_disk(canary: Canary) -> None:
    canary.add(traffic(60, candidate="crash"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert canary.decide().decision == "roll back" and canary.share == 0.0
    canary.close()
    with Canary(canary.directory) as again:
        assert again.decide().decision == "roll back" and again.share == 0.0


def test_a_snapshot_without_room_leaves_the_journal_going(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aot.runtime.serving.controller._SEGMENT_BYTES", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full)
        canary.add(traffic(10))
        assert "full" in canary.trouble
    canary.add(traffic(10))
    assert canary.judge.pairs == 20 and not canary.trouble
    canary.close()
    with Canary(canary.directory) as again:
        assert again.judge.pairs == 20


def test_audit_lines_are_for_people(canary: Canary) -> None:
    canary.pause("ada", "für später")
    text = (canary.directory / "audit.jsonl").read_text(encoding="utf-8")
    assert "für später" in text
    assert all(isinstance(json.loads(line), dict) for line in text.splitlines())


def test_records_are_taken_from_any_iterable(canary: Canary) -> None:
    canary.add(record for record in traffic(3))
    canary.add([])
    assert canary.judge.pairs == 3 and isinstance(pair(), Pair)


# What must not make a directory useless.


@pytest.mark.parametrize(
    "record",
    [
        Request(0.0, "", "candidate", "weird", 0.01),
        Request(0.0, "", "other", "ok", 0.01),
        Request(0.0, "", "candidate", "ok", 0.01, False, 7),  # type: ignore[arg-type]
        Request(0.0, None, "candidate", "ok", 0.01),  # type: ignore[arg-type]
        Request(None, "", "candidate", "ok", 0.01),  # type: ignore[arg-type]
        Pair(0.0, "", "ok", "weird", 0.01, 0.01),
    ],
)
def test_a_record_that_is_none_counts_for_nothing(canary: Canary, record: Record) -> None:
    with pytest.raises(RunError):
        canary.add([*traffic(1), record])
    assert canary.judge.pairs == canary.judge.requests == 0
    canary.add(traffic(1))
    canary.close()
    with Canary(canary.directory) as again:
        assert again.judge.state() == canary.judge.state() and again.judge.pairs == 1


def test_text_that_is_no_unicode(canary: Canary) -> None:
    why = os.fsdecode(b"caf\xe9")  # an argument of another encoding
    canary.pause("me", why)
    canary.close()
    with Canary(canary.directory) as again:
        again.resume("me", "because")
        assert again.audit()[-2]["why"] == why
    lines = (canary.directory / "audit.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["what"] for line in lines] == ["begin", "pause", "resume"]


def test_an_order_that_cannot_be_removed_is_refused_once(canary: Canary) -> None:
    (canary.directory / "orders" / "1.json").mkdir(parents=True)  # as one that another user left
    for _ in range(5):
        canary.decide()
    assert whats(canary).count("order refused") == 1


def test_an_order_that_is_nested_without_end(canary: Canary) -> None:
    (canary.directory / "orders").mkdir()
    (canary.directory / "orders" / "1.json").write_text("[" * 100_000)
    canary.decide()
    assert whats(canary)[-1] == "order refused"
