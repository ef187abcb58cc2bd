"""aot.load(..., trusted_keys=...): what no trusted key signed is refused before any of its code is loaded."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import aot
from aot.artifacts import Artifact, signatures
from aot.artifacts.layout import Section
from aot.artifacts.table import read_entries, replaced
from aot.errors import AotError, ArtifactError, OptionError
from aot.runtime import load
from aot.runtime.keys import trusted_keys
from tests.runtime import handmade

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def keys() -> tuple[bytes, bytes]:
    """The PEM forms of a private key and its public one."""
    return signatures.generate_key()


@pytest.fixture(scope="module")
def signed(keys: tuple[bytes, bytes]) -> bytes:
    return signatures.sign(handmade.artifact(self_test={"input/0/x": np.zeros((1, 5), np.float32)}).data, keys[0])


def refused(data: bytes, key: bytes) -> bool:
    try:
        load(data, trusted_keys=[key]).close()
    except AotError:
        return True
    return False


def test_a_signed_artifact_is_loaded(signed: bytes, keys: tuple[bytes, bytes], tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_bytes(keys[1])
    (tmp_path / "model.aot").write_bytes(signed)
    given: list[Any] = [keys[1], trusted_keys(keys[1]), [tmp_path / "key.pem"], str(tmp_path / "key.pem")]
    for trusted in given:
        with aot.load(tmp_path / "model.aot", trusted_keys=trusted) as model:
            x = handmade.batch_of(2)
            assert np.array_equal(model.run({"x": x})["y"], handmade.expected(x))
    with load(signed):  # without a policy a signature is nothing
        pass


def test_many_signatures_and_keys(signed: bytes, keys: tuple[bytes, bytes]) -> None:
    others = [signatures.generate_key() for _ in range(3)]
    data = signed
    for private, _ in others:
        data = signatures.sign(data, private)
    for _, public in [keys, *others]:
        load(data, trusted_keys=[signatures.generate_key()[1], public]).close()
    with pytest.raises(ArtifactError):
        load(signed, trusted_keys=[public for _, public in others])


def test_unsigned_and_foreign(signed: bytes, keys: tuple[bytes, bytes], tmp_path: Path) -> None:
    path = tmp_path / "model.aot"
    handmade.artifact().save(path)
    with pytest.raises(ArtifactError) as unsigned:
        load(path, trusted_keys=[keys[1]])
    assert unsigned.value.where == str(path) and "sign" in unsigned.value.message and unsigned.value.hint
    with pytest.raises(ArtifactError):
        load(signed, trusted_keys=[signatures.generate_key()[1]])
    moved = signatures.with_signatures(handmade.artifact().data, signatures.signatures_of(memoryview(signed)))
    with pytest.raises(ArtifactError):
        load(moved, trusted_keys=[keys[1]])
    for wrong in ([], [b"x" * 31], [keys[0]]):
        with pytest.raises(OptionError):
            load(signed, trusted_keys=wrong)


@pytest.mark.parametrize("kind", list(Section), ids=lambda kind: kind.name)
def test_every_section_tampered_with(kind: Section, signed: bytes, keys: tuple[bytes, bytes]) -> None:
    """Bytes of every section changed, digests left and digests made right; the runtime refuses both."""
    entry = read_entries(memoryview(signed)).get(kind)
    if entry is None or not entry.bytes:
        return
    generator = random.Random(kind)
    for place in generator.sample(range(entry.bytes), min(entry.bytes, 24)):
        data = bytearray(signed)
        data[entry.offset + place] ^= 1 << generator.randrange(8)
        assert refused(bytes(data), keys[1])
        if kind != Section.SIGNATURE or place >= 8:
            assert refused(replaced(signed, {kind: bytes(data[entry.offset :][: entry.bytes])}), keys[1])


def test_the_table_tampered_with(signed: bytes, keys: tuple[bytes, bytes]) -> None:
    from aot.artifacts.table import read_table
    from aot.artifacts.write import header_digest

    table = read_table(memoryview(signed))
    end = table.offset + sum(map(len, table.rows))
    own = next(entry for entry in table.entries if entry.kind == Section.SIGNATURE)
    free = {*range(32, 64), *range(own.row_offset + 4, own.row_offset + 8)}
    generator = random.Random(5)
    for position in range(end):
        data = bytearray(signed)
        data[position] ^= 1 << generator.randrange(8)
        assert refused(bytes(data), keys[1])
        data[32:64] = header_digest(bytes(data[:80]), bytes(data[80:end]))
        assert position in free or refused(bytes(data), keys[1]), position


def test_weights_of_elsewhere_must_be_those_of_the_build(tmp_path: Path, keys: tuple[bytes, bytes]) -> None:
    path = tmp_path / "model.aot"
    handmade.artifact(weights="external").save(path)
    path.write_bytes(signatures.sign(path.read_bytes(), keys[0]))
    load(path, trusted_keys=keys[1]).close()
    (weights,) = tmp_path.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-2] ^= 1
    weights.write_bytes(data)
    for verify in (True, False):
        with pytest.raises(ArtifactError):
            load(path, trusted_keys=keys[1], verify_weights=verify)
    load(path, verify_weights=False).close()


def test_code_of_a_refused_artifact_never_runs(tmp_path: Path, keys: tuple[bytes, bytes]) -> None:
    """A constructor in its code would write a file."""
    mark = tmp_path / "ran"
    source = f"""
#include <fcntl.h>
#include <unistd.h>
__attribute__((constructor)) static void begin(void) {{ close(open("{mark}", O_CREAT | O_WRONLY, 0600)); }}
void dense_matmul(const void *a) {{ (void)a; }}
void dense_relu(const void *a) {{ (void)a; }}
"""
    (tmp_path / "k.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-O1", "-o", str(tmp_path / "k.so"), str(tmp_path / "k.c")]
    subprocess.run(command, check=True)
    from dataclasses import replace

    code = (tmp_path / "k.so").read_bytes()
    path = tmp_path / "model.aot"
    Artifact.build([replace(handmade.program(), code=code)], meta={}).save(path)
    (tmp_path / "key.pem").write_bytes(keys[1])
    script = "import sys, aot.runtime as r\nr.load(sys.argv[1], trusted_keys=sys.argv[2:] or None)"
    done = subprocess.run([sys.executable, "-c", script, path, tmp_path / "key.pem"], capture_output=True, text=True)
    assert done.returncode and "ArtifactError" in done.stderr and not mark.exists()
    subprocess.run([sys.executable, "-c", script, path], capture_output=True)
    assert mark.exists()  # the mark works: without a policy the same file's code is loaded
