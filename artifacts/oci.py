"""Artifacts as an OCI image layout: one manifest per target under one index, as registries and ORAS-type tools take it.

Follows the OCI image specification 1.1 (image-layout, image-index, manifest, descriptor, annotations). The layout's
index.json names one index by a tag; that index has a manifest for each target, whose layers are the artifact's file and
its external weights. Deterministic: no times, keys sorted, manifests in the order of the artifacts and their targets.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from aot.artifacts import Artifact, write_whole
from aot.artifacts.external import check_external
from aot.artifacts.signatures import signatures_of
from aot.errors import ArtifactError, OptionError

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.aotc.model.v1"
CONFIG_TYPE = "application/vnd.aotc.config.v1+json"
FILE_TYPE = "application/vnd.aotc.artifact.v1"
WEIGHTS_TYPE = "application/vnd.aotc.weights.v1.safetensors"
TITLE = "org.opencontainers.image.title"
REF_NAME = "org.opencontainers.image.ref.name"
TARGET, DIGEST, VERSION = "dev.aotc.target", "dev.aotc.artifact.digest", "dev.aotc.version"
DRIVER, KEYS = "dev.aotc.cuda.driver", "dev.aotc.signature.keys"
LAYOUT = {"imageLayoutVersion": "1.0.0"}
_TAG = re.compile(r"[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_WINDOW_BYTES = 1 << 22
_MOST_DOCUMENT_BYTES = 4 << 20  # of an index or a manifest, as registries have it
_AGAIN = "Package the artifacts again, or fetch the layout again."

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Packaged:
    """What a layout has for a target: `digest` of its manifest, names of the files in it."""

    target: str
    digest: str
    files: tuple[str, ...]


def package(folder: Path, artifacts: Sequence[Path], tag: str) -> tuple[Packaged, ...]:
    """Writes the artifacts into a layout, under a tag: a new folder, an empty one, or a layout that is there.

    A tag that is there is replaced, other tags stay. Raises OptionError for another folder, a tag that registries do
    not take, artifacts of different models, and a target that two artifacts have; ArtifactError for damaged files.
    """
    if not _TAG.fullmatch(tag):
        raise OptionError(f"{tag!r} is no tag", hint="Letters, digits, '_', '.' and '-', at most 128, such as v1.2.")
    opened = [(path, _opened(path)) for path in artifacts]
    _check_together(opened)
    others = _other_tags(folder, tag)
    blobs = folder / "blobs" / "sha256"
    try:
        blobs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write there: {error.strerror}", where=str(folder)) from error
    made: list[Packaged] = []
    manifests: list[Document] = []
    for path, artifact in opened:
        layers = [_add_file(blobs, path, FILE_TYPE)]
        if artifact.external_file:
            if not _is_weights_name(artifact.external_file):
                raise OptionError(
                    f"its weights file is called {artifact.external_file!r}, which no one would extract",
                    where=str(path), hint="Build it with a name that ends in .safetensors.",
                )  # fmt: skip
            layers.append(_add_file(blobs, path.with_name(artifact.external_file), WEIGHTS_TYPE))
        for target in dict.fromkeys(program.target for program in artifact.programs):
            manifest = _add_manifest(blobs, artifact, target, layers)
            manifests.append(manifest)
            made.append(Packaged(target, manifest["digest"], tuple(each["annotations"][TITLE] for each in layers)))
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "artifactType": ARTIFACT_TYPE, "manifests": manifests}
    described = _add_document(blobs, index, INDEX_TYPE) | {
        "artifactType": ARTIFACT_TYPE,
        "annotations": {REF_NAME: tag},
    }
    tags = sorted([*others, described], key=lambda each: str(each.get("annotations", {}).get(REF_NAME, "")))
    write_whole(folder / "oci-layout", _json(LAYOUT))
    write_whole(folder / "index.json", _json({"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": tags}))
    return tuple(made)


def extract(folder: Path, target: str, output: Path, tag: str | None = None) -> tuple[Path, ...]:
    """Writes the artifact of a target, and its weights beside it; every blob is compared with size and digest.

    `tag` may be left out where there is one. Raises OptionError for a target or a tag that is not there, ArtifactError
    where the layout is damaged.
    """
    index = _tagged(folder, tag)
    found = [each for each in _list(index, "manifests", folder) if _annotations(each).get(TARGET) == target]
    if not found:
        known = ", ".join(str(_annotations(each).get(TARGET)) for each in _list(index, "manifests", folder))
        raise OptionError(f"there is no target {target!r}", where=str(folder), hint=f"It has {known or 'none'}.")
    manifest = _document(folder, found[0])
    layers = _list(manifest, "layers", folder)
    files = [each for each in layers if each.get("mediaType") == FILE_TYPE]
    if len(files) != 1:
        _broken(folder, f"the manifest of {target} has {len(files)} artifacts")
    written = []
    for layer in sorted(layers, key=lambda each: each.get("mediaType") == FILE_TYPE):  # the artifact last
        if layer.get("mediaType") not in (FILE_TYPE, WEIGHTS_TYPE):
            continue
        name = str(_annotations(layer).get(TITLE, ""))
        is_weights = layer["mediaType"] == WEIGHTS_TYPE
        if not _is_file_name(name) or (is_weights and not _is_weights_name(name)):
            _broken(folder, f"{name!r} is no name of a file{' of weights' if is_weights else ''}")
        place = output.with_name(name) if is_weights else output
        if place in written:
            _broken(folder, f"two layers are called {name!r}")
        _copy(_blob(folder, layer), place, layer)
        written.append(place)
    return tuple(reversed(written))


def _is_file_name(name: str) -> bool:
    """Whether a name stays in its folder, and a terminal may show it."""
    return name not in ("", ".", "..") and Path(name).name == name and name.isprintable() and len(name.encode()) <= 200


def _is_weights_name(name: str) -> bool:
    """Whether a file of that name does nothing by itself, as .bashrc or conftest.py would, and replaces no such file:
    whoever made the layout chose it."""
    return _is_file_name(name) and name.endswith(".safetensors") and not name.startswith(".")


def _opened(path: Path) -> Artifact:
    """A sound artifact with the weights that it looks for beside itself."""
    artifact = Artifact.open(path)
    if artifact.external_file and not check_external(artifact.reader, path):
        raise ArtifactError(
            "its weights file is missing",
            where=str(path.with_name(artifact.external_file)),
            hint="Copy it from where the artifact was built.",
        )
    return artifact


def _check_together(opened: Sequence[tuple[Path, Artifact]]) -> None:
    """Raises OptionError for artifacts that are not one model for several targets."""
    sources: dict[str, Path] = {}
    targets: dict[str, Path] = {}
    for path, artifact in opened:
        digest = artifact.meta.get("source", {}).get("digest")
        if digest:
            sources.setdefault(str(digest), path)
        for target in dict.fromkeys(program.target for program in artifact.programs):
            if target in targets:
                raise OptionError(
                    f"two artifacts are for {target}",
                    where=f"{targets[target]}, {path}",
                    hint="Name one artifact for each target; another version of it goes under another --tag.",
                )
            targets[target] = path
    if len(sources) > 1:
        raise OptionError(
            "the artifacts are of different models",
            where=", ".join(map(str, sources.values())),
            hint="Package each model under a tag of its own.",
        )


def _other_tags(folder: Path, tag: str) -> list[Document]:
    """The other entries of a layout that is there."""
    if folder.exists() and not folder.is_dir():
        raise OptionError("it is a file, not a folder", where=str(folder))
    if not folder.exists() or not any(folder.iterdir()):
        return []
    if not (folder / "oci-layout").is_file():
        raise OptionError(
            "the folder holds something else than an OCI layout", where=str(folder), hint="Choose a new folder."
        )
    entries = _list(_top(folder), "manifests", folder)
    return [each for each in entries if _annotations(each).get(REF_NAME) != tag]


def _add_manifest(blobs: Path, artifact: Artifact, target: str, layers: Sequence[Document]) -> Document:
    """Writes a target's config and manifest; the descriptor of the manifest, as the index has it."""
    digest = f"sha256:{artifact.digest}"
    programs = [program for program in artifact.programs if program.target == target]
    drivers = [program.driver for program in programs if program.driver]
    meta = artifact.meta
    annotations = {TARGET: target, DIGEST: digest, VERSION: str(meta.get("aotc", "unknown"))}
    annotations |= {DRIVER: str(max(drivers))} if drivers else {}
    keys = [each.key.hex() for each in signatures_of(memoryview(artifact.data))]
    annotations |= {KEYS: ",".join(keys)} if keys else {}
    config = {
        "aotc": annotations[VERSION],
        "artifact": digest,
        "precision": meta.get("precisions", {}).get(target, "fp32"),
        "source": meta.get("source", {}).get("digest", ""),
        "target": target,
        "variants": [program.variant for program in programs if program.variant],
        "weights": artifact.weights_mode,
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": _add_document(blobs, config, CONFIG_TYPE),
        "layers": list(layers),
        "annotations": annotations,
    }
    described = _add_document(blobs, manifest, MANIFEST_TYPE)
    return described | {"artifactType": ARTIFACT_TYPE, "platform": platform(target), "annotations": annotations}


def platform(target: str) -> dict[str, str]:
    """What a registry's client chooses by: the host is Linux on x86-64, of a level where the target is for its CPU."""
    found = {"os": "linux", "architecture": "amd64"}
    level = re.match(r"cpu:x86-64-(v[2-4])", target)
    return found | ({"variant": level[1]} if level else {})


def _json(document: Document) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _add_document(blobs: Path, document: Document, media_type: str) -> Document:
    data = _json(document)
    digest = hashlib.sha256(data).hexdigest()
    write_whole(blobs / digest, data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add_file(blobs: Path, path: Path, media_type: str) -> Document:
    """Copies a file to where its digest says, without having it in memory; its descriptor."""
    digest, size = hashlib.sha256(), 0
    handle, aside = tempfile.mkstemp(prefix=".blob.", dir=blobs)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in _parts(path):
                digest.update(part)
                file.write(part)
                size += len(part)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)
        os.replace(aside, blobs / digest.hexdigest())
    except OSError as error:
        Path(aside).unlink(missing_ok=True)
        raise ArtifactError(f"could not copy it: {error.strerror}", where=str(path), hint="Free some space.") from error
    annotations = {TITLE: path.name}
    named = {"mediaType": media_type, "digest": f"sha256:{digest.hexdigest()}", "size": size}
    return named | {"annotations": annotations}


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(_WINDOW_BYTES):
            yield part


def _broken(folder: Path, message: str) -> NoReturn:
    raise ArtifactError(f"the OCI layout is damaged: {message}", where=str(folder), hint=_AGAIN)


def _top(folder: Path) -> Document:
    """index.json of a layout of a version that is known."""
    documents = []
    for name in ("oci-layout", "index.json"):
        try:
            with (folder / name).open("rb") as file:
                found = json.loads(file.read(_MOST_DOCUMENT_BYTES))
        except OSError as error:
            raise OptionError(f"it is no OCI layout: {name}: {error.strerror}", where=str(folder)) from error
        except (ValueError, RecursionError) as error:
            _broken(folder, f"{name}: {error}")
        if not isinstance(found, dict):
            _broken(folder, f"{name} is no object")
        documents.append(found)
    if documents[0].get("imageLayoutVersion") != "1.0.0":
        _broken(folder, f"its version is {documents[0].get('imageLayoutVersion')!r}, 1.0.0 is known")
    return documents[1]


def _tagged(folder: Path, tag: str | None) -> Document:
    """The index with a tag; without one, the only index."""
    entries = _list(_top(folder), "manifests", folder)
    names = [str(_annotations(each).get(REF_NAME, "")) for each in entries]
    if tag is None and len(entries) != 1:
        raise OptionError(
            f"there are {len(entries)} tags", where=str(folder), hint=f"Choose: --tag {' or '.join(names)}"
        )
    if tag is not None and tag not in names:
        raise OptionError(f"there is no tag {tag!r}", where=str(folder), hint=f"It has {', '.join(names) or 'none'}.")
    return _document(folder, entries[0 if tag is None else names.index(tag)])


def _list(document: Document, name: str, folder: Path) -> list[Document]:
    found = document.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        _broken(folder, f"{name} is no list of descriptors")
    return found


def _annotations(descriptor: Document) -> Document:
    found = descriptor.get("annotations")
    return found if isinstance(found, dict) else {}


def _blob(folder: Path, descriptor: Document) -> Path:
    digest, size = descriptor.get("digest"), descriptor.get("size")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest) or not isinstance(size, int):
        _broken(folder, f"a descriptor has the digest {digest!r} and the size {size!r}")
    path = folder / "blobs" / "sha256" / digest.removeprefix("sha256:")
    if not path.is_file() or path.stat().st_size != size:
        _broken(folder, f"blob {digest} is missing, or has not {size} bytes")
    return path


def _document(folder: Path, descriptor: Document) -> Document:
    """The JSON of a blob, which matches its descriptor."""
    path = _blob(folder, descriptor)
    if descriptor["size"] > _MOST_DOCUMENT_BYTES:
        _broken(folder, f"blob {descriptor['digest']} is too large for a manifest")
    data = path.read_bytes()
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != descriptor["digest"]:
        _broken(folder, f"blob {descriptor['digest']} does not match its digest")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        _broken(folder, f"blob {descriptor['digest']}: {error}")
    if not isinstance(found, dict):
        _broken(folder, f"blob {descriptor['digest']} is no object")
    return found


def _copy(blob: Path, place: Path, descriptor: Document) -> None:
    """A blob to a file, whole or not at all; refused where it does not match its digest."""
    digest = hashlib.sha256()
    handle, aside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            for part in _parts(blob):
                digest.update(part)
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
        if f"sha256:{digest.hexdigest()}" != descriptor["digest"]:
            _broken(blob.parents[2], f"blob {descriptor['digest']} does not match its digest")
        os.chmod(aside, 0o644)
        os.replace(aside, place)
        aside = ""
    except OSError as error:
        raise ArtifactError(
            f"could not write it: {error.strerror}", where=str(place), hint="Free some space."
        ) from error
    finally:
        if aside:
            os.unlink(aside)
