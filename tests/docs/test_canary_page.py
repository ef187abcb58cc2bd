"""The YAML of docs/canary.md can be read, and is what Argo Rollouts and Flagger ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from aot.cli.cmd_canary import HOLD, ROLL_BACK
from aot.cli.main import cli

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "canary.md").read_text()


@pytest.fixture(scope="module")
def documents() -> list[dict[str, Any]]:
    yaml = pytest.importorskip("yaml")
    blocks = re.findall(r"(?ms)^```yaml\n(.*?)^```$", PAGE)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


def test_documents_are_whole(documents: list[dict[str, Any]]) -> None:
    kinds = [document["kind"] for document in documents]
    assert kinds == ["AnalysisTemplate", "AnalysisTemplate", "Rollout", "Deployment", "Service", "Canary"]
    for document in documents:
        assert document["apiVersion"] and document["metadata"]["name"] and document["spec"]


def test_the_rollout_names_templates_that_are_there(documents: list[dict[str, Any]]) -> None:
    templates = {document["metadata"]["name"]: document for document in of_kind(documents, "AnalysisTemplate")}
    canary = of_kind(documents, "Rollout")[0]["spec"]["strategy"]["canary"]
    used = [canary["analysis"], *(step["analysis"] for step in canary["steps"] if "analysis" in step)]
    assert {each["templateName"] for use in used for each in use["templates"]} == set(templates)
    job, web = (template["spec"]["metrics"][0]["provider"] for template in templates.values())
    assert job["job"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert f'"$code" -eq {HOLD}' in job["job"]["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert web["web"]["jsonPath"] == "{$.decision}"


def test_volumes_that_are_mounted_are_declared(documents: list[dict[str, Any]]) -> None:
    pods = [of_kind(documents, "Deployment")[0]["spec"]["template"]["spec"]]
    pods.append(
        of_kind(documents, "AnalysisTemplate")[0]["spec"]["metrics"][0]["provider"]["job"]["spec"]["template"]["spec"]
    )
    for pod in pods:
        declared = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
        assert mounted == declared


def test_flagger_asks_by_exit_code(documents: list[dict[str, Any]]) -> None:
    hooks = {hook["type"]: hook for hook in of_kind(documents, "Canary")[0]["spec"]["analysis"]["webhooks"]}
    assert set(hooks) == {"rollback", "rollout", "confirm-promotion"}
    assert hooks["rollback"]["metadata"]["cmd"].endswith(f"test $? -eq {ROLL_BACK}")
    assert f"in 0|{ROLL_BACK}|{HOLD}) ;;" in hooks["rollout"]["metadata"]["cmd"]


def test_commands_of_the_page_exist() -> None:
    group = cli.get_command(None, "canary")  # type: ignore[arg-type]
    assert group is not None
    for name, rest in re.findall(r"(?m)aotc canary (\w+)\b([^\n]*)", re.sub(r"`[^`\n]*`", "", PAGE)):
        command = group.get_command(None, name)  # type: ignore[attr-defined]
        assert command is not None, name
        options = {option for parameter in command.params for option in parameter.opts}
        for option in re.findall(r"(?<= )--?[a-z]+\b", rest.split(";")[0].split(">")[0]):
            assert option in options, f"aotc canary {name} {option}"
