"""`aotc canary report`: a canary as one HTML page, from a controller's directory or from a file of records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from aot.cli.canary_page import page
from aot.cli.canary_story import Story, tell
from aot.cli.cmd_canary import read_expected, read_policy
from aot.cli.common import check_file, check_writable, common_options, note, print_json, wants, write_text
from aot.errors import OptionError, RunError
from aot.runtime.serving import CanaryPolicy, Judge, expected_of, from_json, read_records
from aot.runtime.serving.journal import read_journal


@click.command("report")
@click.argument("source", type=click.Path(path_type=Path), metavar="DIRECTORY | FILE.jsonl")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, metavar="PAGE.html", help="The page.")
@click.option("--policy", type=click.Path(path_type=Path), metavar="FILE",
              help="JSON, for a file of records; default: the default policy.")  # fmt: skip
@click.option("--expected", type=click.Path(path_type=Path), metavar="ARTIFACT",
              help="For a file of records: the candidate, or a JSON file with its recorded errors.")  # fmt: skip
@common_options
def command(source: Path, output: Path, policy: Path | None, expected: Path | None) -> None:
    """Write a page about a canary: stable and candidate side by side over time, the verdict, the audit log.

    A directory is read as it is, also while a controller works on it; its policy and expected errors are in it. The
    page is one file, with pictures inline and no script.
    """
    check_writable(output)
    if source.is_dir():
        if policy is not None or expected is not None:
            raise OptionError("a canary's directory has its policy and expected errors in it", where=str(source),
                              hint="Leave out --policy and --expected.")  # fmt: skip
        story = story_of_directory(source)
    else:
        check_file(source, "a file of records, or a canary's directory")
        story = tell(source.name, read_records(source), read_policy(policy), read_expected(expected))
    write_text(output, page(story))
    verdict = story.verdict
    if wants("json"):
        print_json({"page": str(output), "decision": verdict.decision, "reasons": verdict.reasons,
                    "state": story.state or None})  # fmt: skip
    else:
        click.echo(f"{output}: {story.state or verdict.decision}")


def story_of_directory(directory: Path) -> Story:
    """What a controller's directory tells. Raises RunError where there is no canary in it, or a damaged one."""
    found = read_journal(directory)
    if found.snapshot is None:
        raise RunError("there is no canary in this directory", where=str(directory),
                       hint="Give the state directory of a canary, or a file of records.")  # fmt: skip
    for text in found.notes:
        note(text)
    try:
        snapshot = json.loads(found.snapshot)
        policy = CanaryPolicy.from_json(snapshot["policy"])
        expected = expected_of({"errors": snapshot["expected"]})
        judge = Judge(policy, expected)
        judge.restore(snapshot["judge"])
        state = snapshot["progress"]["state"]
        records, decisions = [], []
        for entry in map(json.loads, found.entries):
            records += [from_json(record) for record in entry.get("records", ())]
            decisions += [entry["decision"]] if "decision" in entry else []
            state = entry["progress"]["state"] if "progress" in entry else state
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"the state is whole, but of another version of aotc: {error!r}", where=str(directory),
                       hint="Read it with the version that wrote it.") from error  # fmt: skip
    return tell(directory.name, records, policy, expected, judge=judge, state=state,
                audit=_audit(directory, decisions))  # fmt: skip


def _audit(directory: Path, decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of the audit log, and those that only the journal has yet; a torn last line is left out."""
    lines: dict[int, dict[str, Any]] = {}
    path = directory / "audit.jsonl"
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else ():
        try:
            line = json.loads(text)
            lines[int(line["number"])] = line
        except (ValueError, KeyError, TypeError):
            note(f"{path}: a line that is no decision")
    lines.update((int(line["number"]), line) for line in decisions)
    return [lines[number] for number in sorted(lines)]
