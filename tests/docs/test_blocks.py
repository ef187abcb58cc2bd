"""The runner of documentation blocks: what counts as the same text, and what a page turns into."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.generator.blocks import blocks_of, matches, run_page

PAGE = """\
# A page

```text
$ not a command
```

```python file=one.py
import sys
```

```console
$ echo shown; echo wrong >&2
old
$ export WORD=kept
$ echo $WORD \\
    twice
kept twice
$ printf 'a\\nb 12 ms\\nc\\nd\\n'
a
b ... ms
...
```

```python file=one.py
print(sys.argv[1])
```

```console
$ python one.py x | cat
```
"""


def test_output_replaces_what_the_page_has(tmp_path: Path) -> None:
    page = run_page(PAGE, tmp_path, {})
    expected = PAGE.replace("old\n", "shown\nwrong\n").replace("| cat\n", "| cat\nx\n")
    assert page.text == expected
    assert [item.partition(":")[0] for item in page.differences] == ["line 12", "line 29"]
    assert "-old" in page.differences[0] and "+shown" in page.differences[0]
    (tmp_path / "again").mkdir()
    again = run_page(page.text, tmp_path / "again", {})
    assert again.text == page.text and not again.differences


def test_a_block_whose_needs_are_missing_is_skipped(tmp_path: Path) -> None:
    page = run_page("```console needs=python,no_such_tool\n$ false\n```\n", tmp_path, {})
    assert page.skipped == ["line 1: needs no_such_tool"] and not page.differences


def test_a_failing_command_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)line 3: exit code 3.*said so"):
        run_page("\n```console\n$ echo said so; exit 3\n```\n", tmp_path, {})


@pytest.mark.parametrize("text", ["```console\noutput\n```\n", "```console\n$ true\n"])
def test_a_malformed_page_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line [12]"):
        run_page(text, tmp_path, {})


@pytest.mark.parametrize(
    ("expected", "found", "same"),
    [
        (["a"], ["a"], True),
        (["a"], ["b"], False),
        (["a.c"], ["abc"], False),
        (["a"], ["a", "b"], False),
        (["a ... c"], ["a b c"], True),
        (["a ... c"], ["a b", "c"], False),
        (["..."], [], True),
        (["..."], ["a", "b"], True),
        (["a", "...", "d"], ["a", "b", "c", "d"], True),
        (["a", "...", "d"], ["a", "b", "c"], False),
        (["a", "..."], ["a", "b"], True),
        (["a", "..."], ["a"], True),
        (["...", "z"], ["a", "z", "z"], True),
        ([], ["a"], False),
    ],
)
def test_dots_stand_for_anything(expected: list[str], found: list[str], same: bool) -> None:
    assert matches(expected, found) is same


def test_blocks_know_where_they_are() -> None:
    found = list(blocks_of(PAGE))
    assert [block.language for block in found] == ["text", "python", "console", "python", "console"]
    assert found[1].words == {"file": "one.py"} and PAGE.splitlines()[found[1].first] == "import sys"
