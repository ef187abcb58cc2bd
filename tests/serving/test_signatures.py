"""Signatures: what they cover, that nothing they cover can change, and that they do not disturb each other."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from aot.artifacts import Artifact, layout, signatures
from aot.artifacts.layout import Section
from aot.artifacts.table import read_entries, read_table, replaced
from aot.artifacts.write import header_digest, section_digest
from aot.errors import AotError, ArtifactError, OptionError
from aot.runtime import load
from aot.runtime.keys import trusted_keys
from tests.cli.commands import document, invoke
from tests.runtime import handmade

pytest.importorskip("cryptography")


@pytest.fixture(scope="module")
def pair() -> tuple[bytes, bytes]:
    private, public = signatures.generate_key()
    return private, trusted_keys(public)[0]


@pytest.fixture(scope="module")
def other() -> tuple[bytes, bytes]:
    private, public = signatures.generate_key()
    return private, trusted_keys(public)[0]


@pytest.fixture(scope="module")
def plain() -> bytes:
    return handmade.artifact(self_test={"input/0/x": np.zeros((1, 5), np.float32)}).data


@pytest.fixture(scope="module")
def signed(plain: bytes, pair: tuple[bytes, bytes]) -> bytes:
    return signatures.sign(plain, pair[0])


def accepts(data: bytes, key: bytes) -> bool:
    """Whether all is well: every byte of the file, and a signature of the key."""
    try:
        read_entries(memoryview(data))
        return signatures.verify(memoryview(data), [key]) == key
    except ArtifactError:
        return False


def test_the_message_is_what_the_format_says(signed: bytes) -> None:
    """Written out again from docs/format.md, without the code that signs."""
    header = bytearray(signed[:80])
    table_offset = struct.unpack_from("<Q", signed, 24)[0]
    count, size = struct.unpack_from("<II", signed, 64)
    rows = [signed[table_offset + n * size : table_offset + (n + 1) * size] for n in range(count)]
    kept = [row for row in rows if struct.unpack_from("<I", row)[0] != 24]
    header[16:64] = bytes(48)
    header[64:68] = struct.pack("<I", len(kept))
    expected = b"aotc artifact signature v1\0" + bytes(header)
    expected += b"".join(row[:8] + bytes(8) + row[16:] for row in kept)
    assert signatures.signed_message(memoryview(signed)) == expected
    assert len(kept) == count - 1 and layout.RECORD_OF[Section.SIGNATURE].size_bytes == 104


def test_the_record_is_what_the_format_says(signed: bytes, pair: tuple[bytes, bytes]) -> None:
    entry = read_entries(memoryview(signed))[Section.SIGNATURE]
    assert (entry.flags, entry.count, entry.entry_bytes, entry.bytes) == (0, 1, 104, 104)
    record = signed[entry.offset : entry.offset + 104]
    assert record[:8] == struct.pack("<II", 1, 0)
    assert record[8:40] == signatures.key_id(pair[1])


def test_a_known_signature() -> None:
    """RFC 8032 is deterministic: a fixed key and file give fixed bytes, whoever makes them."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    pem = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    data = signatures.sign(handmade.artifact().data, pem)
    (found,) = signatures.signatures_of(memoryview(data))
    assert found.value == key.sign(signatures.signed_message(memoryview(handmade.artifact().data)))
    assert signatures.sign(data, pem) == data


def test_signing_changes_nothing_that_was_signed(
    plain: bytes, signed: bytes, pair: tuple[bytes, bytes], other: tuple[bytes, bytes]
) -> None:
    twice = signatures.sign(signed, other[0])
    message = signatures.signed_message(memoryview(plain))
    for data in (signed, twice):
        assert signatures.signed_message(memoryview(data)) == message
    assert accepts(twice, pair[1]) and accepts(twice, other[1])
    assert [each.key for each in signatures.signatures_of(memoryview(twice))] == [
        signatures.key_id(key) for key in (pair[1], other[1])
    ]
    first, second = signatures.signatures_of(memoryview(twice))
    assert signatures.with_signatures(twice, [first]) == signed
    assert accepts(signatures.with_signatures(twice, [second]), other[1])
    assert signatures.with_signatures(twice, []) == plain


def test_a_signed_artifact_is_the_same_artifact(plain: bytes, signed: bytes) -> None:
    one, two = Artifact(plain), Artifact(signed)
    assert one.programs == two.programs and one.meta == two.meta
    x = handmade.batch_of(3)
    assert np.array_equal(load(signed).run({"x": x})["y"], handmade.expected(x))


def test_every_row_of_the_table_is_covered(signed: bytes, pair: tuple[bytes, bytes]) -> None:
    """Every bit of the header and the table flipped, and all digests but the signature made right again."""
    assert accepts(signed, pair[1])
    table = read_table(memoryview(signed))
    end = table.offset + sum(map(len, table.rows))
    own = next(entry for entry in table.entries if entry.kind == Section.SIGNATURE)
    harmless = set()
    for position in range(end):
        for bit in range(8):
            data = bytearray(signed)
            data[position] ^= 1 << bit
            data[32:64] = header_digest(bytes(data[:80]), bytes(data[80:end]))
            if accepts(bytes(data), pair[1]):
                harmless.add(position)
    # The digest of the header is computed again, so a flip there is none; bits of the signature's own row do not
    # matter where a reader ignores them: its flags.
    assert harmless <= {*range(32, 64), *range(own.row_offset + 4, own.row_offset + 8)}


def with_section(data: bytes, kind: Section, content: bytes) -> bytes:
    """The file with other bytes in a section, and every digest right; the signatures stay as they were."""
    return replaced(data, {kind: content})


@pytest.mark.parametrize("kind", [kind for kind in Section if kind != Section.SIGNATURE], ids=lambda k: k.name)
def test_every_section_is_covered(kind: Section, signed: bytes, pair: tuple[bytes, bytes]) -> None:
    """Bytes of a section changed, with and without the digests made right."""
    entries = read_entries(memoryview(signed))
    if kind not in entries:
        added = with_section(signed, kind, bytes(layout.RECORD_OF[kind].size_bytes))
        assert not accepts(added, pair[1])
        return
    entry = entries[kind]
    generator = random.Random(kind)
    places = range(entry.bytes) if entry.bytes <= 64 else generator.sample(range(entry.bytes), 64)
    for place in places:
        for mask in (1, 0x80, generator.randrange(1, 256)):
            data = bytearray(signed)
            data[entry.offset + place] ^= mask
            assert not accepts(bytes(data), pair[1])
            assert not accepts(with_section(signed, kind, bytes(data[entry.offset :][: entry.bytes])), pair[1])
    content = signed[entry.offset : entry.offset + entry.bytes]
    assert not accepts(with_section(signed, kind, content + bytes(max(entry.entry_bytes, 1))), pair[1])
    if entry.bytes:
        assert not accepts(replaced(signed, {kind: None}), pair[1])


def test_the_same_chunks_as_plain_bytes_are_another_section(signed: bytes, pair: tuple[bytes, bytes]) -> None:
    """The digests of a section's chunks, stored as a section without TREE, have the same SHA-256: flags are signed."""
    entry = read_entries(memoryview(signed))[Section.WEIGHTS]
    import hashlib

    content = hashlib.sha256(signed[entry.offset :][: entry.bytes]).digest()
    assert section_digest(content, 1) == entry.digest
    data = bytearray(with_section(signed, Section.WEIGHTS, content))
    row = read_entries(memoryview(bytes(data)))[Section.WEIGHTS].row_offset
    data[row + 4 : row + 8] = struct.pack("<I", 1)
    data[row + 40 : row + 72] = entry.digest
    table = read_table(memoryview(signed))
    end = table.offset + sum(map(len, table.rows))
    data[32:64] = header_digest(bytes(data[:80]), bytes(data[80:end]))
    read_entries(memoryview(bytes(data)))
    assert not accepts(bytes(data), pair[1])


def test_every_byte_of_the_signature(signed: bytes, pair: tuple[bytes, bytes]) -> None:
    (found,) = signatures.signatures_of(memoryview(signed))
    for place in range(64):
        value = bytearray(found.value)
        value[place] ^= 1 << place % 8
        data = signatures.with_signatures(signed, [signatures.Signature(1, found.key, bytes(value))])
        assert not accepts(data, pair[1])


Change = Callable[[bytes], signatures.Signature]


def test_other_signatures_do_not_matter(signed: bytes, pair: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    """Of unknown algorithms, of unknown keys, and wrong ones of the trusted key."""
    (good,) = signatures.signatures_of(memoryview(signed))
    wrong = [
        signatures.Signature(7, good.key, bytes(64)),
        signatures.Signature(1, bytes(32), bytes(64)),
        signatures.Signature(1, good.key, bytes(64)),
    ]
    assert accepts(signatures.with_signatures(signed, [*wrong, good]), pair[1])
    assert not accepts(signatures.with_signatures(signed, wrong), pair[1])
    with pytest.raises(ArtifactError, match="none of which is trusted"):
        signatures.verify(memoryview(signed), [other[1]])
    with pytest.raises(OptionError, match="64 signatures"):
        signatures.with_signatures(signed, [good] * 65)


def test_a_signature_of_another_file(plain: bytes, signed: bytes, pair: tuple[bytes, bytes]) -> None:
    changed = handmade.artifact(handmade.program("cpu:x86-64-v2")).data
    moved = signatures.with_signatures(changed, signatures.signatures_of(memoryview(signed)))
    with pytest.raises(ArtifactError, match="changed after it was signed"):
        signatures.verify(memoryview(moved), [pair[1]])
    with pytest.raises(ArtifactError, match="not signed"):
        signatures.verify(memoryview(plain), [pair[1]])


def test_external_weights_are_signed(tmp_path: Path, pair: tuple[bytes, bytes]) -> None:
    keys = tmp_path / "key.pub.pem"
    keys.write_bytes(public_pem(pair[0]))
    path = tmp_path / "model.aot"
    handmade.artifact(weights="external").save(path)
    path.write_bytes(signatures.sign(path.read_bytes(), pair[0]))
    assert document("sign", "--verify", path, "--trusted-keys", keys)["external_verified"]
    (weights,) = tmp_path.glob("*.safetensors")
    data = bytearray(weights.read_bytes())
    data[-3] ^= 1
    weights.write_bytes(data)
    error = document("sign", "--verify", path, "--trusted-keys", keys, code=1)["error"]
    assert error["code"] == "artifact" and "not the one of the build" in error["message"]
    assert error["where"] == str(weights)
    weights.write_bytes(data[:-8])
    assert "bytes, expected" in document("sign", "--verify", path, "--trusted-keys", keys, code=1)["error"]["message"]
    weights.unlink()
    assert not document("sign", "--verify", path, "--trusted-keys", keys)["external_verified"]


def public_pem(private: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form

    public = form.load_pem_private_key(private, None).public_key()
    return public.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def test_the_command(tmp_path: Path) -> None:
    made = document("sign", "--generate-key", tmp_path / "release")
    private, public = Path(made["private"]), Path(made["public"])
    assert private.stat().st_mode & 0o777 == 0o600 and public.name == "release.pub.pem"
    assert "not replaced" in document("sign", "--generate-key", tmp_path / "release", code=2)["error"]["message"]
    path = tmp_path / "model.aot"
    handmade.artifact().save(path)
    assert "not signed" in document("sign", "--verify", path, "--trusted-keys", public, code=1)["error"]["message"]
    assert document("sign", path, "--key", private, "-o", tmp_path / "signed.aot")["key"] == made["key"]
    assert Artifact.open(path).data == handmade.artifact().data
    said = document("sign", "--verify", tmp_path / "signed.aot", "--trusted-keys", public)
    assert said["key"] == made["key"] and said["digest"] == Artifact.open(tmp_path / "signed.aot").digest
    assert "trusted key" in invoke("sign", "--verify", tmp_path / "signed.aot", "--trusted-keys", public).output
    invoke("sign", path, "--key", private)
    assert path.read_bytes() == (tmp_path / "signed.aot").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "one of --key"),
        (["MODEL", "--key", "PUBLIC"], "no private key"),
        (["MODEL", "--key", "none.pem"], "no such file"),
        (["--key", "PRIVATE"], "an artifact is wanted"),
        (["MODEL", "--verify"], "--trusted-keys goes with"),
        (["MODEL", "--verify", "--trusted-keys", "PRIVATE"], "a private key: keep it secret"),
        (["MODEL", "--verify", "--trusted-keys", "MODEL"], "no key in PEM form"),
        (["MODEL", "--key", "PRIVATE", "--verify", "--trusted-keys", "PUBLIC"], "one of --key"),
        (["MODEL", "--generate-key", "x"], "signs nothing"),
    ],
)
def test_bad_command_lines(tmp_path: Path, arguments: list[str], said: str) -> None:
    document("sign", "--generate-key", tmp_path / "k")
    handmade.artifact().save(tmp_path / "model.aot")
    known = {"MODEL": "model.aot", "PRIVATE": "k.pem", "PUBLIC": "k.pub.pem"}
    given = [str(tmp_path / known[text]) if text in known else text for text in arguments]
    assert said in document("sign", *given, code=2)["error"]["message"]


def test_keys(tmp_path: Path, pair: tuple[bytes, bytes], other: tuple[bytes, bytes]) -> None:
    bundle = tmp_path / "keys.pem"
    bundle.write_bytes(b"ours\n" + public_pem(pair[0]) + b"\nand theirs\n" + public_pem(other[0]))
    assert trusted_keys(bundle) == (pair[1], other[1])
    assert trusted_keys([str(bundle), pair[1], public_pem(other[0])]) == (pair[1], other[1])
    bad: list[tuple[object, str]] = [
        ([], "no trusted key"),
        (tmp_path / "none.pem", "cannot read"),
        (b"x" * 31, "no key in PEM form"),
        (pair[0], "private key"),
        ([3], "a path or bytes"),
        (public_pem(pair[0]).replace(b"MCow", b"MC*w"), "damaged"),
        (public_pem(pair[0]).replace(b"MCow", b"MCox"), "another kind"),
    ]
    for keys, said in bad:
        with pytest.raises(OptionError, match=said):
            trusted_keys(keys)  # type: ignore[arg-type]


def test_other_kinds_of_private_keys(plain: bytes) -> None:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    def pem(key: object, encryption: object) -> bytes:
        return key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined, no-any-return]

    with pytest.raises(OptionError, match="not Ed25519"):
        signatures.sign(plain, pem(ec.generate_private_key(ec.SECP256R1()), form.NoEncryption()))
    locked = pem(ed25519.Ed25519PrivateKey.generate(), form.BestAvailableEncryption(b"secret"))
    with pytest.raises(OptionError, match="encrypted"):
        signatures.sign(plain, locked)


def test_damage_is_an_error_and_no_crash(signed: bytes, pair: tuple[bytes, bytes]) -> None:
    generator = random.Random(8)
    for _ in range(2000):
        data = bytearray(signed[: generator.choice([len(signed), generator.randrange(len(signed))])])
        for _ in range(generator.randrange(1, 4)):
            if data:
                data[generator.randrange(min(len(data), 2000))] = generator.randrange(256)
        if bytes(data) != signed:
            with pytest.raises(AotError):
                read_entries(memoryview(bytes(data)))
                signatures.verify(memoryview(bytes(data)), [pair[1]])


def test_without_cryptography_the_extra_is_named(
    plain: bytes, pair: tuple[bytes, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    (tmp_path / "m.aot").write_bytes(plain)
    (tmp_path / "k.pem").write_bytes(pair[0])
    for arguments in (("--generate-key", tmp_path / "new"), (tmp_path / "m.aot", "--key", tmp_path / "k.pem")):
        error = document("sign", *arguments, code=2)["error"]
        assert error["code"] == "option" and error["hint"] == "pip install 'aotc[sign]'"
    assert not (tmp_path / "new.pem").exists()
