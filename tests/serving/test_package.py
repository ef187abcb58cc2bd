"""`aotc package`: the layout follows the OCI image specification, is deterministic, and gives back what went in."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aot.artifacts import Artifact, oci
from aot.errors import ArtifactError
from tests.cli.commands import document, invoke
from tests.runtime import handmade

META = {"aotc": "0.1.0", "source": {"digest": "ab" * 32}, "precisions": {"cuda:sm_90a": "fp16"}}
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")


def save(path: Path, *targets: str, meta: dict[str, Any] | None = None, weights: Any = "embedded") -> Path:
    """An artifact for the targets; those of GPUs have nothing to run."""
    programs = []
    for target in targets:
        program = handmade.program("cpu:x86-64-v3")
        if target.startswith("cuda:"):
            program = replace(program, kernels=(), steps=(), buffers=(), code=b"", driver=12040)
        programs.append(replace(program, target=target))
    Artifact.build(programs, meta=META if meta is None else meta, weights=weights).save(path)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def check_descriptor(folder: Path, descriptor: dict[str, Any]) -> bytes:
    """The rules of image-spec/descriptor.md; the blob."""
    assert MEDIA_TYPE.fullmatch(descriptor["mediaType"])
    assert re.fullmatch(r"sha256:[a-f0-9]{64}", descriptor["digest"])
    data: bytes = (folder / "blobs" / "sha256" / descriptor["digest"][7:]).read_bytes()
    assert type(descriptor["size"]) is int and len(data) == descriptor["size"]
    assert hashlib.sha256(data).hexdigest() == descriptor["digest"][7:]
    check_annotations(descriptor.get("annotations", {}))
    if "artifactType" in descriptor:
        assert MEDIA_TYPE.fullmatch(descriptor["artifactType"])
    return data


def check_annotations(annotations: dict[str, Any]) -> None:
    """The rules of image-spec/annotations.md: text by unique names in reverse domain notation."""
    for name, value in annotations.items():
        assert isinstance(value, str) and re.fullmatch(r"[a-z0-9]+(\.[a-z0-9]+)+", name)


def check_layout(folder: Path) -> list[dict[str, Any]]:
    """The rules of image-layout.md, image-index.md and manifest.md; the entries of the indexes with their manifests."""
    assert json.loads((folder / "oci-layout").read_text()) == {"imageLayoutVersion": "1.0.0"}
    top = json.loads((folder / "index.json").read_text())
    assert top["schemaVersion"] == 2 and top["mediaType"] == "application/vnd.oci.image.index.v1+json"
    used = set()
    found = []
    for tagged in top["manifests"]:
        assert tagged["mediaType"] == top["mediaType"]
        assert re.fullmatch(r"[\w][\w.-]{0,127}", tagged["annotations"]["org.opencontainers.image.ref.name"])
        index = json.loads(check_descriptor(folder, tagged))
        used.add(tagged["digest"])
        assert index["schemaVersion"] == 2 and index["mediaType"] == tagged["mediaType"]
        for entry in index["manifests"]:
            assert entry["mediaType"] == "application/vnd.oci.image.manifest.v1+json"
            assert {"os", "architecture"} <= entry["platform"].keys() <= {"os", "architecture", "variant"}
            manifest = json.loads(check_descriptor(folder, entry))
            assert manifest["schemaVersion"] == 2 and manifest["mediaType"] == entry["mediaType"]
            assert manifest["artifactType"] == entry["artifactType"] == "application/vnd.aotc.model.v1"
            check_annotations(manifest["annotations"])
            assert manifest["annotations"] == entry["annotations"] and manifest["layers"]
            config = json.loads(check_descriptor(folder, manifest["config"]))
            assert manifest["config"]["mediaType"] == "application/vnd.aotc.config.v1+json"
            for layer in manifest["layers"]:
                check_descriptor(folder, layer)
                assert "/" not in layer["annotations"]["org.opencontainers.image.title"]
            used |= {entry["digest"], manifest["config"]["digest"], *(each["digest"] for each in manifest["layers"])}
            found.append(entry | {"manifest": manifest, "config": config})
    assert {path.name for path in (folder / "blobs" / "sha256").iterdir()} == {digest[7:] for digest in used}
    assert {path.name for path in folder.iterdir()} == {"oci-layout", "index.json", "blobs"}
    return found


def test_one_artifact_with_several_targets(tmp_path: Path) -> None:
    path = save(tmp_path / "net.aot", "cuda:sm_90a", "cpu:x86-64-v4+vnni", "cpu:x86-64-v3")
    said = document("package", "--oci", tmp_path / "oci", path)
    entries = check_layout(tmp_path / "oci")
    assert [each["annotations"]["dev.aotc.target"] for each in entries] == [
        "cuda:sm_90a", "cpu:x86-64-v4+vnni", "cpu:x86-64-v3",
    ]  # fmt: skip
    amd64 = {"os": "linux", "architecture": "amd64"}
    assert [each["platform"] for each in entries] == [amd64, amd64 | {"variant": "v4"}, amd64 | {"variant": "v3"}]
    digest = f"sha256:{Artifact.open(path).digest}"
    for entry in entries:
        (layer,) = entry["manifest"]["layers"]
        assert layer["digest"] == digest == entry["annotations"]["dev.aotc.artifact.digest"]
        assert layer["mediaType"] == "application/vnd.aotc.artifact.v1"
        assert entry["config"]["target"] == entry["annotations"]["dev.aotc.target"]
        assert entry["annotations"]["dev.aotc.version"] == "0.1.0"
    assert entries[0]["annotations"]["dev.aotc.cuda.driver"] == "12040" and entries[0]["config"]["precision"] == "fp16"
    assert [each["digest"] for each in said["manifests"]] == [each["digest"] for each in entries]
    assert "cuda:sm_90a" in invoke("package", "--oci", tmp_path / "text", path).output


def test_several_artifacts_and_external_weights(tmp_path: Path) -> None:
    cpu = save(tmp_path / "cpu.aot", "cpu:x86-64-v3", weights="external")
    gpu = save(tmp_path / "gpu.aot", "cuda:sm_90a")
    invoke("package", "--oci", tmp_path / "oci", cpu, gpu, "--tag", "v1.2")
    entries = check_layout(tmp_path / "oci")
    assert [len(each["manifest"]["layers"]) for each in entries] == [2, 1]
    weights = entries[0]["manifest"]["layers"][1]
    assert weights["mediaType"] == "application/vnd.aotc.weights.v1.safetensors"
    name = weights["annotations"]["org.opencontainers.image.title"]
    assert (tmp_path / name).stat().st_size == weights["size"]
    (tmp_path / "out").mkdir()
    said = document("package", "--extract", tmp_path / "oci", "cpu:x86-64-v3", "-o", tmp_path / "out" / "m.aot")
    assert said["files"] == [str(tmp_path / "out" / "m.aot"), str(tmp_path / "out" / name)]
    assert (tmp_path / "out" / "m.aot").read_bytes() == cpu.read_bytes()
    assert (tmp_path / "out" / name).read_bytes() == (tmp_path / name).read_bytes()
    from aot.runtime import load

    load(tmp_path / "out" / "m.aot").close()
    invoke("package", "--extract", tmp_path / "oci", "cuda:sm_90a", "-o", tmp_path / "out" / "g.aot", "--tag", "v1.2")
    assert (tmp_path / "out" / "g.aot").read_bytes() == gpu.read_bytes()


def test_it_is_deterministic(tmp_path: Path) -> None:
    path = save(tmp_path / "net.aot", "cuda:sm_90a", "cpu:x86-64-v3")
    for name in ("one", "two"):
        invoke("package", "--oci", tmp_path / name, path)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    invoke("package", "--oci", tmp_path / "one", path)  # again, over the same layout
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")


def test_tags(tmp_path: Path) -> None:
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3")
    for tag in ("v2", "v1"):
        invoke("package", "--oci", tmp_path / "oci", path, "--tag", tag)
    check_layout(tmp_path / "oci")
    extracting = ("package", "--extract", tmp_path / "oci", "cpu:x86-64-v3", "-o", tmp_path / "out.aot")
    error = document(*extracting, code=2)["error"]
    assert "2 tags" in error["message"] and "v1 or v2" in error["hint"]
    assert "no tag 'v3'" in document(*extracting, "--tag", "v3", code=2)["error"]["message"]
    assert document(*extracting, "--tag", "v1")["artifact"] == str(tmp_path / "out.aot")


def test_signatures_are_told(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3")
    key = document("sign", "--generate-key", tmp_path / "k")["key"]
    invoke("sign", path, "--key", tmp_path / "k.pem")
    invoke("package", "--oci", tmp_path / "oci", path)
    (entry,) = check_layout(tmp_path / "oci")
    assert entry["annotations"]["dev.aotc.signature.keys"] == key
    invoke("package", "--extract", tmp_path / "oci", "cpu:x86-64-v3", "-o", tmp_path / "out.aot")
    invoke("sign", "--verify", tmp_path / "out.aot", "--trusted-keys", tmp_path / "k.pub.pem")


def test_bad_input(tmp_path: Path) -> None:
    one, two = save(tmp_path / "one.aot", "cpu:x86-64-v3"), save(tmp_path / "two.aot", "cpu:x86-64-v3")
    other = save(tmp_path / "other.aot", "cuda:sm_90a", meta={"source": {"digest": "cd" * 32}})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    oci_folder = tmp_path / "oci"
    cases: list[tuple[tuple[object, ...], str]] = [
        ((one,), "one of --oci and --extract"),
        (("--oci", oci_folder, one, two), "two artifacts are for cpu:x86-64-v3"),
        (("--oci", oci_folder, one, other), "different models"),
        (("--oci", tmp_path / "full", one), "something else than an OCI layout"),
        (("--oci", one, one), "it is a file"),
        (("--oci", oci_folder, one, "--tag", "a b"), "is no tag"),
        (("--oci", oci_folder, tmp_path / "none.aot"), "no such file"),
        (("--oci", oci_folder, one, "-o", "x"), "-o goes with --extract"),
        (("--extract", oci_folder, "cpu"), "wants one target"),
        (("--extract", tmp_path / "full", "cpu", "-o", tmp_path / "x.aot"), "no OCI layout"),
        (("--oci", oci_folder), "Missing argument"),
    ]
    for arguments, said in cases:
        error = document("package", *arguments, code=2)["error"]
        assert said in error["message"], error
    assert not oci_folder.exists()
    (tmp_path / "bad.aot").write_bytes(one.read_bytes()[:-1])
    assert "truncated" in document("package", "--oci", oci_folder, tmp_path / "bad.aot", code=1)["error"]["message"]
    external = save(tmp_path / "external.aot", "cpu:x86-64-v3", weights="external")
    next(tmp_path.glob("*.safetensors")).unlink()
    assert "weights file is missing" in document("package", "--oci", oci_folder, external, code=1)["error"]["message"]
    invoke("package", "--oci", oci_folder, one)
    error = document("package", "--extract", oci_folder, "cuda:sm_80", "-o", tmp_path / "x.aot", code=2)["error"]
    assert "no target 'cuda:sm_80'" in error["message"] and "cpu:x86-64-v3" in error["hint"]


def rewritten(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """The layout with a changed manifest, and all digests right."""
    top = json.loads((folder / "index.json").read_text())
    blobs = folder / "blobs" / "sha256"

    def store(value: dict[str, Any], descriptor: dict[str, Any]) -> None:
        data = json.dumps(value).encode()
        descriptor |= {"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
        (blobs / descriptor["digest"][7:]).write_bytes(data)

    tagged = top["manifests"][0]
    index = json.loads((blobs / tagged["digest"][7:]).read_bytes())
    entry = index["manifests"][0]
    manifest = json.loads((blobs / entry["digest"][7:]).read_bytes())
    change(entry, manifest)
    if "kept" not in entry:
        store(manifest, entry)
    store(index, tagged)
    (folder / "index.json").write_text(json.dumps(top))


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "..", "", "a/b"])
def test_names_cannot_lead_out(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3", weights="external")
    invoke("package", "--oci", tmp_path / "oci", path)
    rewritten(tmp_path / "oci", lambda _, m: m["layers"][1]["annotations"].update({oci.TITLE: name}))
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactError, match="no name of a file"):
        oci.extract(tmp_path / "oci", "cpu:x86-64-v3", tmp_path / "out" / "m.aot")
    assert not any((tmp_path / "out").iterdir()) and not (tmp_path / "evil").exists()


def test_damaged_layouts(tmp_path: Path) -> None:
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3")
    folder = tmp_path / "oci"
    invoke("package", "--oci", folder, path)
    good = files_of(folder)
    output = tmp_path / "out.aot"
    for name, data in good.items():
        if json.loads(data).get("aotc") if data[:1] == b"{" else False:
            continue  # the config, which extraction does not need
        for wrong in (data[:-1], bytes([data[0] ^ 1]) + data[1:], b""):
            (folder / name).write_bytes(wrong)
            said = document("package", "--extract", folder, "cpu:x86-64-v3", "-o", output, code=1)
            assert "damaged" in said["error"]["message"], (name, said)
            assert not output.exists()
        (folder / name).write_bytes(data)
    changes: list[Callable[[dict[str, Any], dict[str, Any]], None]] = [
        lambda entry, m: m.update(layers=[]),
        lambda entry, m: m.update(layers=3),
        lambda entry, m: m["layers"].append(m["layers"][0]),
        lambda entry, m: m["layers"][0].update(digest="sha256:../../../etc/passwd"),
        lambda entry, m: m["layers"][0].update(size="1"),
        lambda entry, m: entry.update(kept=True, digest=7),
    ]
    for change in changes:
        rewritten(folder, change)
        with pytest.raises(ArtifactError, match="damaged"):
            oci.extract(folder, "cpu:x86-64-v3", output)
        for name, data in good.items():
            (folder / name).write_bytes(data)
    assert oci.extract(folder, "cpu:x86-64-v3", output) == (output,)


@pytest.mark.parametrize(
    "name",
    [
        ".bashrc",
        "conftest.py",
        ".weights.safetensors",
        "\ud800.safetensors",
        "\x1b[2J.safetensors",
        "n" * 300 + ".safetensors",
    ],
)
def test_weights_have_names_of_weights(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3", weights="external")
    invoke("package", "--oci", tmp_path / "oci", path)
    output = tmp_path / "out" / "m.aot"
    output.parent.mkdir()
    rewritten(tmp_path / "oci", lambda _, m: m["layers"][1]["annotations"].update({oci.TITLE: name}))
    with pytest.raises(ArtifactError, match="no name of a file"):
        oci.extract(tmp_path / "oci", "cpu:x86-64-v3", output)
    assert not any(output.parent.iterdir())


def test_documents_that_are_nested_without_end(tmp_path: Path) -> None:
    path = save(tmp_path / "net.aot", "cpu:x86-64-v3")
    invoke("package", "--oci", tmp_path / "oci", path)
    (tmp_path / "oci" / "index.json").write_text("[" * 100_000)
    with pytest.raises(ArtifactError, match="damaged"):
        oci.extract(tmp_path / "oci", "cpu:x86-64-v3", tmp_path / "out.aot")
