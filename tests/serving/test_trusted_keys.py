"""A policy of trusted keys in the runtime: what was not signed by one of them never gets as far as its code."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.artifacts import layout, signatures
from aot.artifacts.layout import Section
from aot.artifacts.table import read_table, replaced
from aot.errors import ArtifactError, OptionError, RunError
from aot.runtime import _library as native
from aot.runtime import load
from aot.runtime.keys import trusted_keys
from tests.artifacts.test_sharing import both
from tests.runtime import handmade

pytest.importorskip("cryptography")

X = handmade.batch_of(3)
RECORD = layout.RECORD_OF[Section.SIGNATURE]


def pair() -> tuple[bytes, bytes]:
    """A private key as PEM, and its public key, 32 bytes."""
    private, public = signatures.generate_key()
    return private, trusted_keys(public)[0]


PRIVATE, PUBLIC = pair()
OTHER_PRIVATE, OTHER_PUBLIC = pair()
PLAIN = handmade.artifact().data
SIGNED = signatures.sign(PLAIN, PRIVATE)


def status_of(data: bytes, keys: bytes | None, count: int) -> tuple[int, str]:
    """What aot_model_load_memory says, with a pointer and a number of keys as C programs give them."""
    options = native.info(native.LoadOptions)
    options.trusted_keys, options.trusted_key_count = keys, count
    handle, error = ctypes.c_void_p(), native.new_error()
    status = native.library().aot_model_load_memory(
        data, len(data), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
    )
    native.library().aot_model_unload(handle)
    return status, error.message.decode()


def test_a_signed_artifact_loads_and_runs(tmp_path: Path) -> None:
    path, pem = tmp_path / "signed.aot", tmp_path / "release.pub.pem"
    path.write_bytes(SIGNED)
    pem.write_bytes(signatures.generate_key()[1] + _pem(PUBLIC))
    ways: tuple[tuple[Path | bytes, Any], ...] = (
        (path, PUBLIC), (SIGNED, [OTHER_PUBLIC, PUBLIC]), (path, str(pem)), (path, [pem, OTHER_PUBLIC]),
    )  # fmt: skip
    for source, keys in ways:
        with load(source, trusted_keys=keys) as model:
            np.testing.assert_array_equal(model(X), handmade.expected(X))
    twice = signatures.sign(SIGNED, OTHER_PRIVATE)
    for key in (PUBLIC, OTHER_PUBLIC):
        load(twice, trusted_keys=key).close()
    load(SIGNED).close()  # without a policy a signature does not matter


def _pem(public: bytes) -> bytes:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = Ed25519PublicKey.from_public_bytes(public)
    return key.public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)


def resigned_table(change: Callable[[bytearray], None]) -> bytes:
    """The signed file with another section table, under a digest that holds again."""
    from aot.artifacts.write import header_digest

    data = bytearray(SIGNED)
    change(data)
    table = struct.unpack_from("<Q", data, 24)[0]
    count, size = struct.unpack_from("<II", data, 64)
    data[32:64] = header_digest(bytes(data[:80]), bytes(data[table : table + count * size]))
    return bytes(data)


def _change_section(kind: Section, content: bytes) -> bytes:
    return replaced(SIGNED, {kind: content})


OTHER_CODE = handmade.compiled(handmade.DENSE_SOURCE + "int more;")
REFUSED = {
    "unsigned": (PLAIN, "it is not signed"),
    "by another": (signatures.sign(PLAIN, OTHER_PRIVATE), "none of its 1 signatures is by a trusted key"),
    "other meta": (_change_section(Section.META, b"{}"), "does not hold"),
    "other code": (_change_section(Section.CODE, OTHER_CODE), "does not hold"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_anything_else_is_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(ArtifactError, match=f"refused: .*{message}") as caught:
        load(data, trusted_keys=PUBLIC)
    assert caught.value.hint
    assert status_of(data, PUBLIC, 1)[0] == 12
    load(data).close()


def test_a_changed_header_is_refused() -> None:
    """Every field that may differ in a file whose digest holds: versions, alignment, flags, unused bytes."""
    table = struct.unpack_from("<Q", SIGNED, 24)[0]
    size = struct.unpack_from("<I", SIGNED, 68)[0]
    minor = resigned_table(lambda data: struct.pack_into("<H", data, 10, layout.MINOR - 1))
    flags = resigned_table(lambda data: struct.pack_into("<I", data, table + size + 4, 1 << 20))
    for data in (minor, flags):
        assert status_of(data, None, 0)[0] == 0
        status, message = status_of(data, PUBLIC, 1)
        assert status == 12 and "does not hold" in message


def test_the_decision_comes_before_the_rest_of_the_file() -> None:
    """A file that is not signed is refused as that, whatever else is wrong with it."""
    broken = bytearray(PLAIN)
    for entry in read_table(memoryview(PLAIN)).entries:
        broken[entry.offset] ^= 1 if entry.bytes else 0
    assert status_of(bytes(broken), None, 0)[0] == 2
    status, message = status_of(bytes(broken), PUBLIC, 1)
    assert status == 12 and "not signed" in message


@pytest.mark.parametrize("kind", [Section.STRINGS, Section.CODE, Section.WEIGHTS, Section.META, Section.SIGNATURE])
def test_damage_behind_a_good_signature_is_found(kind: Section) -> None:
    entry = next(entry for entry in read_table(memoryview(SIGNED)).entries if entry.kind == kind)
    broken = bytearray(SIGNED)
    broken[entry.offset + entry.bytes // 2] ^= 1
    with pytest.raises(ArtifactError, match="damaged"):
        load(bytes(broken), trusted_keys=PUBLIC)


def with_records(content: bytes, size: int = 104, count: int | None = None) -> bytes:
    """The unsigned file with these bytes as its section of signatures."""
    data = bytearray(replaced(PLAIN, {Section.SIGNATURE: content or b"\0" * 104}))
    table, number, stride = struct.unpack_from("<Q", data, 24)[0], *struct.unpack_from("<II", data, 64)
    for row in range(table, table + number * stride, stride):
        if struct.unpack_from("<I", data, row)[0] == Section.SIGNATURE:
            found = bytearray(data[row : row + stride])
            fields = list(layout.SECTION.struct.unpack_from(found))
            names = [field.name for field in layout.SECTION.fields]
            fields[names.index("count")] = len(content) // size if count is None else count
            fields[names.index("entry_bytes")] = size
            data[row : row + stride] = layout.SECTION.struct.pack(*fields)
    from aot.artifacts.write import header_digest

    data[32:64] = header_digest(bytes(data[:80]), bytes(data[table : table + number * stride]))
    return bytes(data)


GOOD = RECORD.struct.pack(1, 0, b"k" * 32, b"s" * 64)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (with_records(GOOD * 65), "65 records of 104 bytes"),
        (with_records(GOOD * 2, count=1), "do not fill"),
        (with_records(GOOD * 2, count=1 << 20), "are the most"),
        (with_records(GOOD, size=52, count=2), "2 records of 52 bytes"),
        (with_records(GOOD, size=0, count=0), "0 records of 0 bytes"),
        (with_records(RECORD.struct.pack(1, 7, b"k" * 32, b"s" * 64)), "reserved is not zero"),
    ],
)
def test_bad_records_are_damage(data: bytes, message: str) -> None:
    with pytest.raises(ArtifactError, match=f"signature.*{message}"):
        load(data)


def test_other_algorithms_and_bad_signatures_do_not_matter() -> None:
    """A policy asks for one signature that holds, whatever lies beside it."""
    good = next(iter(signatures.signatures_of(memoryview(SIGNED))))
    unknown = signatures.Signature(9, good.key, good.value)
    wrong = signatures.Signature(1, good.key, bytes(64))
    for others in ([unknown], [wrong], [unknown, wrong] * 20):
        load(signatures.with_signatures(PLAIN, [*others, good]), trusted_keys=PUBLIC).close()
        with pytest.raises(ArtifactError, match="refused"):
            load(signatures.with_signatures(PLAIN, others), trusted_keys=PUBLIC)


def test_keys_that_are_none() -> None:
    with pytest.raises(OptionError, match="no trusted key"):
        load(SIGNED, trusted_keys=[])
    with pytest.raises(OptionError):
        load(SIGNED, trusted_keys=b"short")
    for keys, count in ((None, 1), (PUBLIC, 0)):
        status, message = status_of(SIGNED, keys, count)
        assert status == 12 and "list of trusted keys is empty" in message
    assert status_of(SIGNED, bytes(32), 1)[0] == 12  # no point of the curve that signed anything


def test_mapped_files_cannot_be_trusted(tmp_path: Path) -> None:
    path = tmp_path / "signed.aot"
    path.write_bytes(SIGNED)
    with pytest.raises(RunError, match="mapped weights cannot be trusted"):
        load(path, trusted_keys=PUBLIC, map_weights=True)


def test_constants_are_made_from_the_bytes_that_were_checked(tmp_path: Path) -> None:
    """Sources in the file, which a plain load reads a second time."""
    path = tmp_path / "both.aot"
    path.write_bytes(signatures.sign(both().data, PRIVATE))
    for source in (path, path.read_bytes()):
        with load(source, trusted_keys=PUBLIC) as model:
            np.testing.assert_array_equal(model(X), handmade.expected(X))


def test_weights_from_elsewhere_are_always_verified() -> None:
    w, b = handmade.weights()
    data = signatures.sign(handmade.artifact(weights="none").data, PRIVATE)
    load(data, weights={"layer.weight": w, "layer.bias": b}, trusted_keys=PUBLIC).close()
    others = {"layer.weight": w * 2, "layer.bias": b}
    load(data, weights=others, verify_weights=False).close()
    with pytest.raises(ArtifactError, match="differ from those of the build"):
        load(data, weights=others, verify_weights=False, trusted_keys=PUBLIC)


NO_LIBCRYPTO = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
void *dlopen(const char *name, int flags) {
    static void *(*real)(const char *, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "dlopen");
    return name && strncmp(name, "libcrypto", 9) == 0 ? 0 : real(name, flags);
}
"""


def test_without_libcrypto_the_answer_is_no(tmp_path: Path) -> None:
    (tmp_path / "none.c").write_text(NO_LIBCRYPTO)
    (tmp_path / "signed.aot").write_bytes(SIGNED)
    shim = tmp_path / "none.so"
    subprocess.run(["gcc", "-shared", "-fPIC", tmp_path / "none.c", "-o", shim, "-ldl"], check=True)
    script = f"""
from aot.runtime import load
load({str(tmp_path / "signed.aot")!r}).close()
try:
    load({str(tmp_path / "signed.aot")!r}, trusted_keys={PUBLIC!r})
except Exception as error:
    print(type(error).__name__, error)
"""
    environment = {**os.environ, "LD_PRELOAD": str(shim)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=60, env=environment
    )
    assert done.stdout.startswith("ArtifactError") and "cannot be verified: libcrypto.so.3" in done.stdout
    assert "Install OpenSSL" in done.stdout
