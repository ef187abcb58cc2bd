"""aotc inspect --machine: which program a described machine would run, and why not the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.artifacts import Artifact
from aot.cli.machine import HERE, machine_text, parse
from aot.errors import OptionError
from aot.program import Program
from aot.runtime import Machine, target_supported, this_machine
from tests.cli.conftest import META, program
from tests.cli.test_commands import document, invoke

GPU = "the GPU has compute capability"


def empty(target: str, driver: int = 0, variant: str = "") -> Program:
    """A program that does nothing, for any target."""
    nothing: dict[str, Any] = dict.fromkeys(("kernels", "steps", "buffers", "constants", "sources"), ())
    return replace(program(variant), target=target, driver=driver, code=b"", **nothing)


@pytest.fixture
def several(tmp_path: Path) -> Path:
    path = tmp_path / "several.aot"
    programs = (
        empty("cuda:sm_90a", 12000, "N=8"), empty("cuda:sm_90a", 12000), empty("cuda:sm_100a", 12080),
        empty("cuda:compute_80", 12000), empty("cpu:x86-64-v4"), empty("cpu:x86-64-v3"),
    )  # fmt: skip
    Artifact.build(programs, meta=META).save(path)
    return path


@pytest.mark.parametrize(
    ("machine", "chosen", "reasons"),
    [
        ("sm=90,driver=12040", "cuda:sm_90a", {
            "cuda:sm_100a": "the driver supports CUDA 12.4, 12.8 or newer is needed: update the driver",
            "cuda:compute_80": "cuda:sm_90a comes first", "cpu:x86-64-v4": "cuda:sm_90a comes first"}),
        ("sm=8.9", "cuda:compute_80", {
            "cuda:sm_90a": f"{GPU} 8.9, 9.0 is needed", "cuda:sm_100a": f"{GPU} 8.9, 10.0 is needed"}),
        ("sm=120, driver=13.0", "cuda:compute_80", {"cuda:sm_100a": f"{GPU} 12.0, 10.0 is needed"}),
        ("sm=75,cpu=x86-64-v3", "cpu:x86-64-v3", {
            "cuda:compute_80": f"{GPU} 7.5, 8.0 or above is needed", "cpu:x86-64-v4": "this CPU supports x86-64-v3"}),
        ("sm=90,driver=11.8", "cpu:x86-64-v4", {
            "cuda:sm_90a": "the driver supports CUDA 11.8, 12.0 or newer is needed: update the driver"}),
        ("cpu=x86-64", None, {"cuda:sm_90a": "there is no GPU", "cpu:x86-64-v3": "this CPU supports x86-64"}),
        ("cpu=x86-64-v4", "cpu:x86-64-v4", {"cpu:x86-64-v3": "cpu:x86-64-v4 comes first"}),
        ("cpu=none", None, {"cpu:x86-64-v3": "this CPU supports no x86-64 level"}),
    ],
    ids=str,
)  # fmt: skip
def test_described(several: Path, machine: str, chosen: str | None, reasons: dict[str, str]) -> None:
    found = document("inspect", several, "--machine", machine)
    assert found["selected"] == chosen
    rows = found["programs"]
    assert [row["program"] for row in rows] == list(range(6)) and rows[0]["variant"] == "N=8"
    assert {row["target"] for row in rows if row["selected"]} == ({chosen} if chosen else set())
    assert all(bool(row["reason"]) != row["selected"] for row in rows)
    assert {row["target"]: row["reason"] for row in rows}.items() >= reasons.items()
    text = invoke("inspect", several, "--machine", machine).stdout
    assert f"selected  {chosen or 'no program runs there'}\n" in text
    for reason in reasons.values():
        assert reason in text


def test_this_machine(several: Path) -> None:
    machine = this_machine()
    found = document("inspect", several, "--machine", HERE)
    assert found["machine"] == {
        "cpu_level": machine.cpu_level, "capability": machine.capability, "driver": machine.driver,
        "cpu_extras": machine.cpu_extras,
    }  # fmt: skip
    for row in found["programs"]:
        assert not row["selected"] or target_supported(row["target"])
        assert target_supported(row["target"]) == (row["selected"] or row["reason"].endswith("comes first"))
    assert "(this one)" in invoke("inspect", several, "--machine", HERE).stdout
    overview = invoke("inspect", several).stdout
    assert f"{found['selected'] or 'no program'} on this machine" in overview and "not cuda:sm_100a: " in overview


def test_descriptions() -> None:
    assert parse("sm=89") == parse("sm=8.9") == parse("sm=sm_89") == Machine(4, 89, 0, 3)
    assert parse("sm=90a,driver=12.4") == parse("driver=12040,sm=9.0") == Machine(4, 90, 12040, 3)
    assert parse("sm=120,cpu=x86-64") == Machine(1, 120) and parse("cpu=cpu:x86-64-v2") == Machine(2)
    assert parse("cpu=x86-64-v4") == Machine(4) and parse("cpu=x86-64-v4+vnni") == Machine(4, cpu_extras=1)
    assert parse("cpu=x86-64-v4+bf16+vnni") == Machine(4, cpu_extras=3) and parse("cpu=none") == Machine(0)
    assert machine_text(Machine(4, cpu_extras=3)) == "x86-64-v4+vnni+bf16, no GPU"
    assert machine_text(Machine(4, 103, 13010)) == "x86-64-v4, a GPU of compute capability 10.3, driver for CUDA 13.1"
    assert machine_text(Machine(0)) == "another CPU than x86-64, no GPU"
    for wrong in (
        "",
        "sm=",
        "sm=h200",
        "sm=9",
        "driver=12040",
        "sm=90,driver=12",
        "cpu=v3",
        "cpu=x86-64-v5",
        "gpu=90",
        "there",
    ):
        with pytest.raises(OptionError, match="--machine"):
            parse(wrong)


def test_a_wrong_description_is_told(several: Path) -> None:
    result = invoke("inspect", several, "--machine", "sm=H200")
    assert result.exit_code == 2 and "'sm=H200' is not sm=, driver= or cpu=" in result.stderr
