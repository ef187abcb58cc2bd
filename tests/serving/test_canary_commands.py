"""`aotc canary simulate` and `report`: what they print and write, and what they refuse."""

from __future__ import annotations

import html.parser
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from aot.cli.canary_page import page
from aot.cli.canary_report import story_of_directory
from aot.cli.canary_story import intervals, quantile, tell
from aot.cli.canary_traffic import Fault, Rollout, Traffic
from aot.cli.canary_trials import Scenario, compare, judge_once, simulate, tune
from aot.cli.main import cli
from aot.runtime.serving import (
    Canary,
    CanaryPolicy,
    ErrorDistribution,
    Pair,
    Record,
    Request,
    expected_to_json,
    to_json,
)

TRAFFIC = Traffic()


def run(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["canary", *arguments], catch_exceptions=False)


def records_of(fault: Fault, pairs: int, share: float = 0.05, seed: int = 1) -> tuple[list[Record], Rollout]:
    rollout = Rollout(TRAFFIC, fault, seed, start=1.8e9)
    block = rollout.block(pairs)
    records: list[Record] = [*block.pairs(TRAFFIC), *rollout.requests(block, share)]
    return sorted(records, key=lambda record: record.time), rollout


def written(path: Path, records: list[Record]) -> Path:
    path.write_text("".join(json.dumps(to_json(record)) + "\n" for record in records))
    return path


class Reader(html.parser.HTMLParser):
    """The texts of a page and its tags; fails on tags that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


# The simulation.


def test_a_rollout_follows_from_its_seed() -> None:
    scenario = Scenario(Fault("latency", 1.5), most_pairs=500)
    assert judge_once(scenario, (1, 2)) == judge_once(scenario, (1, 2))
    assert simulate(scenario, 4, 7, jobs=1)[1] == simulate(scenario, 4, 7, jobs=2)[1]


def test_a_large_fault_is_rolled_back_and_no_traffic_is_held() -> None:
    judged, trials = simulate(Scenario(Fault("latency", 2.0), most_pairs=500), 10)
    assert judged.rolled_back == 10 and judged.quantile(0.95) < 100
    assert all("latency" in trial.reason for trial in trials)
    silent, _ = simulate(Scenario(Fault("no-traffic")), 3)
    assert (silent.rolled_back, silent.promoted, silent.held) == (0, 0, 3)
    document = silent.to_json(within=600)
    assert document["delay_pairs"]["median"] is None and document["within"]["rate"] == 0


@pytest.mark.slow
def test_false_rollbacks_are_within_the_budget() -> None:
    judged, _ = simulate(Scenario(live=False), 300, 3)
    low, _ = judged.to_json()["rolled_back"]["interval_95"]
    assert low <= 0.01
    assert judged.promoted > 290


def test_comparators_see_the_same_kind_of_traffic() -> None:
    scenario = Scenario(Fault("crash", 0.3), most_pairs=1300)
    rules = tune(scenario, 20, [0.05, 0.2], seed=1)
    assert [each.false_alarm for each in rules] == [0.05, 0.2]
    for both in compare(scenario, rules, 5):
        assert [each.rule for each in both] == ["Kayenta", "Flagger"]
        assert all(each.rolled_back == 5 for each in both)


def test_simulate_prints_all_rules_and_intervals() -> None:
    result = run(
        "simulate", "--fault", "latency", "--size", "2", "--rollouts", "5", "--pairs", "700", "--within", "600"
    )
    assert result.exit_code == 0
    for word in (
        "judge",
        "Kayenta",
        "Flagger",
        "95th percentile",
        "100.00% (47.82% to 100.00%)",
        "within 600",
        "tuned to",
    ):
        assert word in result.output


def test_simulate_as_json(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"false_alarm": 0.05, "steps": [0.2, 1.0]}))
    arguments = ("simulate", "--rollouts", "3", "--pairs", "300", "--no-compare", "--policy", str(policy), "--json")
    document = json.loads(run(*arguments).output)
    assert document["policy"]["false_alarm"] == 0.05
    assert document["rollback_is_false"] is True
    (rule,) = document["rules"]
    assert rule["rolled_back"]["count"] + rule["promoted"]["count"] + rule["held"]["count"] == 3
    assert json.loads(run(*arguments).output) == document


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--fault", "latency"), "has a size"),
        (("--fault", "crash", "--size", "2"), "a fraction above 0"),
        (("--fault", "latency", "--size", "2", "--bucket", "batch=5"), "no bucket is called"),
        (("--policy", "none.json"), "no such file"),
    ],
)
def test_simulate_refuses(arguments: tuple[str, ...], word: str) -> None:
    result = run("simulate", *arguments)
    assert result.exit_code == 2 and word in result.stderr


# The page.


def test_the_page_of_a_file_shows_both_versions_and_the_verdict(tmp_path: Path) -> None:
    records, rollout = records_of(Fault("outlier", 5.0, 0.1), 400)
    expected = tmp_path / "expected.json"
    expected.write_text(json.dumps(expected_to_json(rollout.expected)))
    file, out = written(tmp_path / "pairs.jsonl", records), tmp_path / "page.html"
    result = run("report", str(file), "--expected", str(expected), "-o", str(out))
    assert result.exit_code == 0 and "roll back" in result.output
    text = out.read_text()
    reader = Reader(text)
    assert "script" not in reader.tags
    assert not re.search(r"(?:src|href|url)\s*[=(]\s*['\"]?https?:", text)
    shown = "\n".join(reader.texts)
    for words in (
        "Canary pairs.jsonl", "roll back", "numeric logits/max_abs", "Latency, batch=1", "Latency, batch=32",
        "stable p99", "candidate p50", "max_abs of logits", "Share of inputs with top1 of logits", "recorded p99",
        "largest of 1,000 recorded", "3 × p99", "Share of runs that did not end well", "Evidence of a fault",
        "rolls back at 100", "smallest effect", "Streams at the end", "Audit log", "live, candidate",
    ):  # fmt: skip
        assert words in shown, words
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ET.fromstring(picture)


def test_the_page_of_a_directory_has_shares_decisions_and_the_audit_log(tmp_path: Path) -> None:
    records, rollout = records_of(Fault("latency", 1.0001), 300)
    now = [1.8e9]
    policy = CanaryPolicy(steps=(0.05, 0.25, 1.0), least_pairs=100, least_requests=10)
    with Canary(tmp_path / "state", policy, rollout.expected, clock=lambda: now[0]) as canary:
        for first in range(0, len(records), 100):
            part = records[first : first + 100]
            now[0] = part[-1].time
            canary.add(part)
            canary.decide()
        canary.pause("<b>Ada</b>", "lunch & tea")
        # Read beside the controller that holds the directory.
        result = run("report", str(tmp_path / "state"), "-o", str(tmp_path / "page.html"), "--json")
    assert json.loads(result.output)["state"] == "paused"
    text = (tmp_path / "page.html").read_text()
    shown = "\n".join(Reader(text).texts)
    for words in ("paused", "begin", "step", "decided", "<b>Ada</b>", "lunch & tea", "5 → 25 → 100 %"):
        assert words in shown, words
    story = story_of_directory(tmp_path / "state")
    assert len(story.records) == len(records) and not story.seen_before
    assert [entry["number"] for entry in story.audit] == list(range(1, len(story.audit) + 1))
    assert all(before <= after for (before, _), (after, _) in zip(story.moments, story.moments[1:], strict=False))


def test_hostile_texts_are_escaped() -> None:
    bad = "<script>alert('x')</script>\x00\"&"
    records: list[Record] = []
    for number in range(60):
        values = {bad: {bad: 0.001 * number}}
        records.append(Pair(1e9 + number, bad, "ok", "ok", 0.01, 0.01, values, key=bad))
        records.append(Request(1e9 + number, bad, "candidate", "crash", None, key=bad))
    audit = [{"time": 1e9, "number": 1, "what": bad, "who": bad, "reasons": [bad], bad: {bad: bad}, "share": 0.1}]
    expected = {bad: {bad: ErrorDistribution(10, ((1.0, 0.1),))}}
    text = page(tell(bad, records, CanaryPolicy(), expected, state=bad, audit=audit))
    assert "script" not in Reader(text).tags
    assert "<script" not in text and "\x00" not in text


def test_nothing_odd_times_and_odd_values_make_a_page_too() -> None:
    odd: list[Record] = [
        Pair(float("nan"), "", "ok", "ok", 0.0, float("inf"), {"y": {"max_abs": float("nan"), "top1": 1.0}}),
        Pair(5.0, "", "ok", "ok", -1.0, None, {"y": {"max_abs": float("inf")}}),
        Pair(1e300, "", "crash", "ok", None, 1e-9),
        Request(-3.0, "", "stable", "ok", 1e-3),
    ]
    for records in ([], odd, odd[:1]):
        text = page(tell("odd", records, CanaryPolicy(), {}))
        Reader(text)
        assert "hold" in text
        assert not re.search(r'="[^"]*\b(?:nan|inf)\b[^"]*"', re.sub(r'aria-label="[^"]*"', "", text))


def test_intervals_keep_every_record() -> None:
    records, rollout = records_of(Fault("crash", 0.2), 500)
    story = tell("x", records, CanaryPolicy(), rollout.expected)
    found = intervals(story)
    assert sum(each.pairs for each in found) == 500
    assert sum(each.live.total() for each in found) == len(records) - 500
    rates = [rate for each in found if (rate := each.failure_rate("candidate")) is not None]
    assert sum(rates) / len(rates) == pytest.approx(0.2, abs=0.05)
    assert story.moments[-1][1].decision == "roll back"
    assert story.moments[-1][0] == pytest.approx(story.end)


def test_quantiles_are_observed_values() -> None:
    assert [quantile([3.0, 1.0, 2.0, 4.0], p) for p in (0.25, 0.5, 0.99, 1.0)] == [1, 2, 4, 4]
    assert quantile([], 0.5) is None and quantile([float("nan")], 0.5) is None


@pytest.mark.parametrize(
    ("source", "code", "word"),
    [("missing.jsonl", 2, "no such file"), ("empty", 1, "no canary"), ("broken.jsonl", 1, "line 1")],
)
def test_report_refuses(tmp_path: Path, source: str, code: int, word: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jsonl").write_text("{]\n")
    result = run("report", str(tmp_path / source), "-o", str(tmp_path / "page.html"))
    assert result.exit_code == code and word in result.stderr
    assert not (tmp_path / "page.html").exists()


def test_report_refuses_a_policy_beside_a_directory(tmp_path: Path) -> None:
    result = run("report", str(tmp_path), "--policy", "p.json", "-o", str(tmp_path / "page.html"))
    assert result.exit_code == 2 and "has its policy" in result.stderr


def test_traffic_can_be_slower() -> None:
    slow = Rollout(replace(TRAFFIC, pairs_per_second=0.5), Fault(), 1)
    assert slow.block(1000).times[-1] == pytest.approx(2000, rel=0.15)
