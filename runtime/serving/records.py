"""The records of a canary: pairs of runs on the same input, and live requests; as objects and as lines of JSON.

Invariant: `from_json(to_json(record)) == record`, NaN and infinity among the values included.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aot.errors import RunError

OUTCOMES = ("ok", "guard", "device", "crash", "timeout", "not_finite", "fallback", "refused")
"""How a run ended: well; its inputs did not fit; the device failed; the process died; too late; NaN or infinity
where the policy forbids them; something else of the chain answered; nothing answered."""

VERSIONS = ("stable", "candidate")
_HINT = "docs/canary_judge.md lists the fields of a record."
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class Pair:
    """One shadowed request that went through both versions.

    `time`: seconds since the epoch. `bucket`: the shape bucket, such as "batch=8", or "" where shapes are fixed.
    `stable`, `candidate`: one of OUTCOMES. `stable_seconds`, `candidate_seconds`: of the model's run alone, without
    queue and hop; None where it did not end well. `values`: output -> metric -> value ("max_abs", "relative",
    "cosine" for 1 - cosine similarity, "top1" for 1 where the largest element is another, or the user's names):
    larger is worse, 0 is equal; empty unless both are "ok". `is_cold`: a first run of a process or of a shape, whose
    latency is not judged. `key`: of the request.
    """

    time: float
    bucket: str
    stable: str
    candidate: str
    stable_seconds: float | None
    candidate_seconds: float | None
    values: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    is_cold: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One live request: `version` is "stable" or "candidate"; the other fields are those of Pair."""

    time: float
    bucket: str
    version: str
    outcome: str
    seconds: float | None
    is_cold: bool = False
    key: str = ""


Record = Pair | Request


def to_json(record: Record) -> dict[str, Any]:
    """A record as JSON can hold it, with its "kind"; NaN and infinity become text."""
    common = {"time": _number(record.time), "bucket": record.bucket, "is_cold": record.is_cold, "key": record.key}
    if isinstance(record, Request):
        return {
            "kind": "request", **common, "version": record.version, "outcome": record.outcome,
            "seconds": _number(record.seconds),
        }  # fmt: skip
    values = {
        output: {metric: _number(value) for metric, value in metrics.items()}
        for output, metrics in record.values.items()
    }
    return {
        "kind": "pair", **common, "stable": record.stable, "candidate": record.candidate,
        "stable_seconds": _number(record.stable_seconds), "candidate_seconds": _number(record.candidate_seconds),
        "values": values,
    }  # fmt: skip


def from_json(document: Mapping[str, Any]) -> Record:
    """The record of such an object; raises RunError that names the field which is missing or wrong."""
    if not isinstance(document, Mapping):
        raise RunError(f"a record is an object; this is {_shown(document)}", hint=_HINT)
    kind = document.get("kind")
    common = (_read_number(document, "time"), _read_text(document, "bucket", ""))
    cold = document.get("is_cold", False)
    if not isinstance(cold, bool):
        raise _wrong("is_cold", "true or false", cold)
    key = _read_text(document, "key", "")
    if kind == "request":
        version, outcome = _read_word(document, "version", VERSIONS), _read_word(document, "outcome", OUTCOMES)
        return Request(*common, version, outcome, _read_seconds(document, "seconds"), cold, key)
    if kind == "pair":
        stable, candidate = _read_word(document, "stable", OUTCOMES), _read_word(document, "candidate", OUTCOMES)
        seconds = (_read_seconds(document, "stable_seconds"), _read_seconds(document, "candidate_seconds"))
        return Pair(*common, stable, candidate, *seconds, _read_values(document), cold, key)
    raise _wrong("kind", '"pair" or "request"', kind)


def read_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The records of a file with one JSON object a line; empty lines are skipped.

    Raises RunError that names the line, for one that is no JSON, or no record, or not whole (the last, of a file
    that is still written), and for a file that cannot be read.
    """
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                try:
                    document = json.loads(line.strip())
                except (ValueError, RecursionError) as error:
                    raise RunError(
                        f"this line is no JSON: {error}", where=f"{path}, line {number}",
                        hint="Each line is one whole record; remove the damaged one, or repeat the export.",
                    ) from error  # fmt: skip
                try:
                    yield from_json(document)
                except RunError as error:
                    raise RunError(error.message, where=f"{path}, line {number}", hint=error.hint) from error
    except OSError as error:
        raise RunError(f"the records cannot be read: {error.strerror or error}", where=str(path)) from error


def _number(value: float | None) -> float | str | None:
    if value is None or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _wrong(name: str, wanted: str, found: Any) -> RunError:
    return RunError(f"the field {name!r} of a record is {wanted}; found {_shown(found)}", hint=_HINT)


def _read_text(document: Mapping[str, Any], name: str, default: str) -> str:
    value = document.get(name, default)
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    return value


def _read_word(document: Mapping[str, Any], name: str, words: tuple[str, ...]) -> str:
    value = document.get(name)
    if value not in words:
        raise _wrong(name, "one of " + ", ".join(words), value)
    return str(value)


def _as_number(value: Any) -> float | None:
    """A number, or the text of NaN and infinity; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _NOT_FINITE.get(value) if isinstance(value, str) else None


def _read_number(document: Mapping[str, Any], name: str) -> float:
    number = _as_number(document.get(name))
    if number is None:
        raise _wrong(name, "a number", document.get(name))
    return number


def _read_seconds(document: Mapping[str, Any], name: str) -> float | None:
    if document.get(name) is None:
        return None
    number = _as_number(document[name])
    if number is None:
        raise _wrong(name, "a number of seconds, or null", document[name])
    return number


def _read_values(document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    values = document.get("values", {})
    if not isinstance(values, Mapping):
        raise _wrong("values", "an object of outputs", values)
    read: dict[str, dict[str, float]] = {}
    for output, metrics in values.items():
        if not isinstance(metrics, Mapping):
            raise _wrong(f"values.{output}", "an object of metrics", metrics)
        read[str(output)] = {}
        for metric, value in metrics.items():
            number = _as_number(value)
            if number is None:
                raise _wrong(f"values.{output}.{metric}", "a number", value)
            read[str(output)][str(metric)] = number
    return read
