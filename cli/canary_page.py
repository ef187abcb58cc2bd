"""A canary as one HTML page that needs nothing else: stable and candidate side by side over time, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aot.cli.canary_story import Interval, Story, intervals, outcome_rows, over_time, time_of
from aot.cli.charts import CANDIDATE, LIMIT, RECORDED, STABLE, Band, Chart, Level, Line, Mark, number
from aot.cli.html import document, facts_list, table, text
from aot.runtime.serving.verdict import Evidence

_MOST_CHARTS = 16  # of a kind; the table names all streams
_COLOURS = {"promote": "#2e7d32", "hold": "#8a6d00", "roll back": LIMIT}
_DASHES = ((0.5, ""), (0.9, "5 3"), (0.99, "1.5 2.5"))
_WORST_FIRST = ("fault", "open", "no data", "unjudged", "cleared")
_UNITS = {"numeric": "%", "failures": "%", "latency": ""}


def page(story: Story) -> str:
    """The document."""
    found = intervals(story)
    verdict = story.verdict
    so_far = f"running, verdict so far: {verdict.decision}"
    decision = {"": verdict.decision, "running": so_far}.get(story.state, story.state)
    colour = _COLOURS[verdict.decision]
    body = [
        f"<h1>Canary {text(story.name)}</h1>",
        f'<p style="font-size:1.25em;font-weight:600;color:{colour}">{text(decision)}</p>',
        "<ul>" + "".join(f"<li>{text(reason)}</li>" for reason in verdict.reasons) + "</ul>",
        facts_list(_facts(story)),
        "<h2>Traffic</h2>",
        *(chart.svg() for chart in _traffic(story, found)),
        "<h2>Latency</h2>",
        "<p>Of the model's run alone, without cold starts. Solid: median; dashed: 90th percentile; dotted: 99th.</p>",
        *_some([chart.svg() for chart in _latency(story, found)], "bucket"),
        "<h2>Errors of the outputs</h2>",
        "<p>The candidate against the stable version on the same input, and what the build recorded.</p>",
        *_some([chart.svg() for chart in _errors(story, found)], "metric"),
        "<h2>Failures</h2>",
        _failures(story, found).svg(),
        table(
            ("outcome", "stable, in pairs", "candidate, in pairs", "stable, live", "candidate, live"),
            outcome_rows(story), frozenset({"outcome"}),
        ) if story.records else "",
        "<h2>What the judge knew</h2>",
        "<p>Bands hold at all moments at once, so looking often costs nothing. A stream is cleared when its band lies "
        "below the limit, the smallest effect that matters. Evidence of a fault, over all streams together, rolls "
        "back when it reaches its limit.</p>",
        *(chart.svg() for chart in _evidence_ratio(story)),
        *_some([chart.svg() for chart in _intervals(story)], "stream"),
        "<h2>Streams at the end</h2>",
        _streams(verdict.evidence),
        "<h2>Audit log</h2>",
        _audit(story.audit),
    ]  # fmt: skip
    return document(f"Canary {story.name}: {decision}", body)


def _some(parts: Sequence[str], what: str) -> list[str]:
    """At most _MOST_CHARTS of them, and how many more there are."""
    if not parts:
        return [f"<p>Nothing was seen of any {what}.</p>"]
    more = len(parts) - _MOST_CHARTS
    return [*parts[:_MOST_CHARTS], *([f"<p>And {more} more, in the table of streams.</p>"] if more > 0 else [])]


def when(seconds: float) -> str:
    """A moment, in UTC; the number where a calendar has no such day."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{seconds:g} s"


def _facts(story: Story) -> list[tuple[str, str]]:
    policy, verdict = story.policy, story.verdict
    pairs = sum(1 for record in story.records if hasattr(record, "candidate"))
    states = [each.state for each in verdict.evidence]
    counted = ", ".join(f"{states.count(state)} {state}" for state in _WORST_FIRST if state in states)
    older = "; those before are no longer there: what was decided then is in the audit log" if story.seen_before else ""
    facts = [("verdict", verdict.decision)]
    facts += [("state", story.state)] if story.state else []
    return [
        *facts,
        ("records", f"{pairs:,} pairs, {len(story.records) - pairs:,} live requests{older}"),
        ("time", f"{when(story.start)}, {story.end:,.0f} s" if story.records else "nothing came"),
        ("streams", counted or "none"),
        ("promises", f"a rollback without fault in {policy.false_alarm:.2%} of rollouts at most, a fault of smallest "
                     f"effect promoted in {policy.missed_fault:.2%} at most"),
        ("smallest effects", f"median latency {policy.latency_ratio:g} times; {policy.failure_rate:.2%} more failures; "
                             f"errors {policy.error_factor:g} times the recorded ones on "
                             f"{policy.exceedance_rate:.2%} of inputs"),
        ("steps", " → ".join(f"{share:.4g}" for share in (100 * each for each in policy.steps)) + " %"),
    ]  # fmt: skip


def _marks(story: Story) -> list[Mark]:
    """Moments of the audit log at which something changed."""
    found = []
    for entry in story.audit:
        time, name = time_of(entry), str(entry.get("what", ""))
        if time is not None and name:
            found.append(Mark(name, time - story.start, LIMIT if name == "roll back" else "#444"))
    return found


def _traffic(story: Story, found: Sequence[Interval]) -> Iterator[Chart]:
    middles = [interval.middle for interval in found]
    observed = [
        interval.live["candidate"] / interval.live.total() if interval.live.total() else None for interval in found
    ]
    lines = [Line("of live requests, seen", middles, observed, CANDIDATE, dots=True)]
    decided = [
        (time - story.start, float(entry["share"]))
        for entry in story.audit
        if (time := time_of(entry)) is not None and isinstance(entry.get("share"), (int, float))
    ]
    if decided:
        decided.append((story.end, decided[-1][1]))
        times, shares = zip(*decided, strict=True)
        lines.append(Line("decided", times, shares, "#444", steps=True))
    yield Chart("Share of the candidate in live traffic", lines, marks=_marks(story), unit="%", end=story.end,
                least_range=(0.0, 0.05), height=140)  # fmt: skip
    width = story.end / len(found) if story.end else 1.0
    counts = [
        Line("pairs", middles, [interval.pairs / width for interval in found], "#6b4fa0"),
        Line("live, stable", middles, [interval.live["stable"] / width for interval in found], STABLE),
        Line("live, candidate", middles, [interval.live["candidate"] / width for interval in found], CANDIDATE),
    ]
    yield Chart("Records a second", counts, end=story.end, height=110, least_range=(0.0, 0.0))


def _latency(story: Story, found: Sequence[Interval]) -> Iterator[Chart]:
    counts: dict[str, int] = {}
    for interval in found:
        for (_, bucket), seconds in interval.seconds.items():
            counts[bucket] = counts.get(bucket, 0) + len(seconds)
    middles = [interval.middle for interval in found]
    for bucket in sorted(counts, key=lambda name: -counts[name]):
        lines = []
        for version, colour in (("stable", STABLE), ("candidate", CANDIDATE)):
            for probability, dash in _DASHES:
                values = over_time(
                    found, lambda each, key=(version, bucket): each.seconds.get(key, ()), probability  # type: ignore[misc]
                )  # fmt: skip
                lines.append(Line(f"{version} p{100 * probability:g}", middles, values, colour, dash))
        yield Chart(f"Latency, {bucket or 'all shapes'} ({counts[bucket]:,} runs)", lines, unit="s", end=story.end,
                    log=True)  # fmt: skip


def _errors(story: Story, found: Sequence[Interval]) -> Iterator[Chart]:
    names = dict.fromkeys(name for interval in found for name in interval.values)
    middles = [interval.middle for interval in found]
    for output, metric in names:
        recorded = story.expected.get(output, {}).get(metric)
        values = [value for interval in found for value in interval.values.get((output, metric), ())]
        title = f"{metric} of {output} ({len(values):,} pairs)"
        if set(values) <= {0.0, 1.0}:
            rates = [
                sum(each) / len(each) if (each := interval.values.get((output, metric), ())) else None
                for interval in found
            ]
            levels = []
            if recorded:
                share = 1 - max((p for p, value in recorded.quantiles if value == 0), default=0.0)
                levels = [Level(f"recorded, at most ({recorded.samples:,} samples)", share, RECORDED)]
            yield Chart(f"Share of inputs with {title}", [Line("candidate", middles, rates, CANDIDATE, dots=True)],
                        levels=levels, unit="%", end=story.end, least_range=(0.0, 0.01), height=120)  # fmt: skip
            continue
        lines = [
            Line(f"candidate {label}", middles,
                 over_time(found, lambda each, key=(output, metric): each.values.get(key, ()), p),  # type: ignore[misc]
                 CANDIDATE, dash, dots=p == 1)
            for p, label, dash in ((0.5, "median", ""), (0.9, "p90", "5 3"), (1.0, "largest", "1.5 2.5"))
        ]  # fmt: skip
        yield Chart(title, lines, levels=list(_recorded(story, output, metric)), end=story.end, log=True)


def _recorded(story: Story, output: str, metric: str) -> Iterator[Level]:
    """Levels of what the build recorded, and of the error that is not to be seen often."""
    policy = story.policy
    bound = policy.bounds.get(output, {}).get(metric)
    recorded = story.expected.get(output, {}).get(metric)
    if bound is not None:
        yield Level("the user's bound", bound)
    elif recorded:
        edge = recorded.quantile(policy.error_quantile)
        yield Level("recorded median", recorded.quantile(0.5), RECORDED, "2 3")
        yield Level(f"recorded p{100 * policy.error_quantile:g}", edge, RECORDED)
        yield Level(f"largest of {recorded.samples:,} recorded", recorded.largest, RECORDED, "")
        yield Level(f"{policy.error_factor:g} × p{100 * policy.error_quantile:g}: a fault if often",
                    policy.error_factor * edge)  # fmt: skip


def _failures(story: Story, found: Sequence[Interval]) -> Chart:
    middles = [interval.middle for interval in found]
    lines = [
        Line(version, middles, [interval.failure_rate(version) for interval in found], colour, dots=True)
        for version, colour in (("stable", STABLE), ("candidate", CANDIDATE))
    ]
    return Chart("Share of runs that did not end well, pairs and live together", lines, unit="%", end=story.end,
                 least_range=(0.0, 0.01), height=140)  # fmt: skip


def _key(each: Evidence) -> tuple[str, str, str, str]:
    return each.kind, each.output, each.metric, each.bucket


def _ordered(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The weightiest first."""
    return sorted(evidence, key=lambda each: (_WORST_FIRST.index(each.state), not each.required, -each.evidence_ratio))


def _evidence_ratio(story: Story) -> Iterator[Chart]:
    """The weighted mean of all streams' evidence, over time: what rolls back."""
    times = [time for time, _ in story.moments]
    means = [math.fsum(each.share * each.evidence_ratio for each in verdict.evidence) for _, verdict in story.moments]
    if any(mean > 0 for mean in means):
        limit = Level(f"rolls back at {1 / story.policy.false_alarm:g}", 1 / story.policy.false_alarm)
        shown: list[float | None] = [mean if mean > 0 else None for mean in means]
        line = Line("evidence of a fault", times, shown, "#6b4fa0", dots=True)
        yield Chart("Evidence of a fault, all streams together", [line], levels=[limit], log=True, end=story.end,
                    height=130)  # fmt: skip


def _intervals(story: Story) -> Iterator[Chart]:
    history: dict[tuple[str, str, str, str], list[tuple[float, Evidence]]] = {}
    for time, verdict in story.moments:
        for each in verdict.evidence:
            history.setdefault(_key(each), []).append((time, each))
    for last in _ordered(story.verdict.evidence):
        seen = history[_key(last)]
        if all(each.interval is None for _, each in seen):
            continue
        times = [time for time, _ in seen]
        low = [_finite(each.interval[0]) if each.interval else None for _, each in seen]
        high = [_finite(each.interval[1]) if each.interval else None for _, each in seen]
        colour = {"fault": LIMIT, "cleared": RECORDED}.get(last.state, "#8a6d00")
        required = "" if last.required else ", not required"
        yield Chart(
            f"{last.name}: {last.state} after {last.count:,} records{required}",
            [Line("estimate", times, [_finite(each.estimate) for _, each in seen], colour, dots=True)],
            [Band("", times, low, high, colour)],
            [Level(f"smallest effect {number(last.limit, _UNITS[last.kind])}", last.limit)],
            unit=_UNITS[last.kind],
            end=story.end,
            height=120,
            focus=(last.limit**-4, last.limit**5) if last.kind == "latency" else (-2 * last.limit, 5 * last.limit),
        )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _streams(evidence: Sequence[Evidence]) -> str:
    if not evidence:
        return "<p>None.</p>"
    rows = []
    for each in _ordered(evidence):
        named = (each.kind, each.output, each.metric, each.bucket, each.state, f"{each.count:,}")
        amounts = (each.estimate, *(each.interval or (None, None)), each.limit)
        measured = [_cell(amount, _UNITS[each.kind]) for amount in amounts]
        weighed = (_cell(each.evidence_ratio, ""), f"{each.share:.3g}", "" if each.required else "no", each.note)
        rows.append((*named, *measured, *weighed))
    headings = ("kind", "output", "metric", "bucket", "state", "records", "estimate", "at least", "at most",
                "smallest effect", "evidence ratio", "weight", "required", "note")  # fmt: skip
    return table(headings, rows, frozenset({"kind", "output", "metric", "bucket", "state", "required", "note"}),
                 frozenset({"note"}))  # fmt: skip


def _cell(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return number(value, unit) if math.isfinite(value) else str(value)


def _audit(audit: Sequence[Mapping[str, Any]]) -> str:
    """All entries, whatever their fields: the time first, texts last."""
    if not audit:
        return "<p>There is none: the records were judged from a file, or nothing was decided yet.</p>"
    left_out = ("time", "evidence")  # the time comes first, and the evidence is drawn above
    names = list(dict.fromkeys(name for entry in audit for name in entry if name not in left_out))
    rows = [
        (when(time) if (time := time_of(entry)) is not None else "", *(_plain(entry.get(name, "")) for name in names))
        for entry in audit
    ]
    return table(("time", *names), rows, frozenset(("time", *names)), frozenset(names))


def _plain(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return "; ".join(_plain(each) for each in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(each)}" for name, each in value.items())
    return str(value)
