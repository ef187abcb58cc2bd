"""The story of a build's fusions: grouping, names, reasons; the same from build and inspect."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from aot.cli.fusion import Fusion, fusion_lines, fusion_of
from aot.cli.main import cli

DIGITS = Path(__file__).resolve().parents[2] / "docs" / "digits" / "digits.onnx"


def story(
    steps: list[tuple[str, tuple[str, ...]]], refusals: list[tuple[str, str, str]], node_count: int = 0
) -> Fusion:
    """The story of a program with these (kind, nodes) steps."""
    program: Any = SimpleNamespace(
        launches=[(SimpleNamespace(kind=kind), SimpleNamespace(locs=locs)) for kind, locs in steps]
    )
    return fusion_of({"fusion_refusals": refusals, "source": {"node_count": node_count}}, program)


def test_kernels_of_the_same_nodes_are_one_group() -> None:
    steps = [("window", (f"/l{i}/Conv_{i}", f"/l{i}/Relu_{i}")) for i in range(5)]
    found = story([*steps, ("map", ("a",)), ("map", ("b",)), ("sort", ("top",))], [], node_count=20)
    (group,) = found.fused
    assert (group.kind, group.pattern, len(group.kernels)) == ("window", "Conv + Relu", 5)
    assert found.alone == {"map": 2, "sort": 1} and found.without_kernel == 20 - 13
    text = "\n".join(fusion_lines(found))
    assert "fused: 10 nodes of the model in 5 kernels" in text
    assert "5 x window: Conv + Relu (up to /l0/Relu_0, /l1/Relu_1, /l2/Relu_2, … 2 more)" in text
    assert "alone: 3 kernels" in text and "no kernel: 7 nodes became constants" in text
    assert "nothing that was possible by form was left undone" in text


def test_refusals_are_grouped_by_ops_and_reason() -> None:
    steps = [("window", ("c0", "r0")), ("window", ("c1", "r1")), ("row", ("s0",)), ("map", ("n2",))]
    refusals = [
        ("fuse", "relu (c0, r0) -> conv (c1)", "both loop"),
        ("fuse", "relu (r1) -> conv (c2, n2)", "both loop"),
        ("fuse", "relu (r1) -> softmax (s0)", "rows"),
        ("fuse", "conv (c1) -> relu (r1)", "not at first"),  # the two are in one kernel in the end
        ("fuse", "relu (other) -> conv (elsewhere)", "both loop"),
        ("pad_into_conv", "conv (c0)", "it pads by reflect"),
        ("drop", "copy", "its value of slice (a, b, c) is read"),
    ]
    found = story(steps, refusals)
    assert [(item.what, item.reason, item.places) for item in found.not_fused] == [
        ("relu -> conv", "both loop", ("r0 -> c1", "r1 -> n2")),
        ("relu -> softmax", "rows", ("r1 -> s0",)),
    ]
    assert [(item.what, item.reason, item.places) for item in found.not_rewritten] == [
        ("drop", "its value of slice (c) is read", ("copy",)),
        ("pad_into_conv", "it pads by reflect", ("c0",)),
    ]
    assert "  2 x relu -> conv: both loop (r0 -> c1, r1 -> n2)" in fusion_lines(found)


@pytest.mark.parametrize("name", ["", "/", "a (b) -> c (", "x" * 500, "{json: [1, 2]}", "::", "é/漢字.7"])
def test_any_name_has_a_line_of_bounded_length(name: str) -> None:
    steps = [("map", tuple(f"{name}{i}" for i in range(40))), ("map", (name,))]
    found = story(steps, [("fuse", f"neg ({name}) -> abs ({name})", "so"), ("drop", f"copy ({name})", "so")])
    assert all(len(line) < 1000 for line in fusion_lines(found))


def test_build_and_inspect_tell_the_same(tmp_path: Path) -> None:
    def invoke(*arguments: object) -> str:
        result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    options = ("--target", "cpu:x86-64-v3", "--cache", tmp_path / "kernels")
    built = invoke("build", DIGITS, "-o", tmp_path / "d.aot", *options, "--explain-fusion")
    shown = invoke("inspect", "--fusion", tmp_path / "d.aot")
    assert built.endswith(f"\n\n{shown}")
    for part in ("6 x window: conv + norm + relu", "relu -> conv: both have loops of their own", "block2.relu3"):
        assert part in shown
    document = json.loads(invoke("build", DIGITS, "-o", tmp_path / "d.aot", *options, "--explain-fusion", "--json"))
    assert document["fusion"] == json.loads(invoke("inspect", "--fusion", tmp_path / "d.aot", "--json"))["fusion"]
    names = [name for group in document["fusion"]["fused"] for kernel in group["kernels"] for name in kernel]
    assert "stem.relu" in names and "classifier" not in names
