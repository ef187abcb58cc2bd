"""Who vouches for an artifact: Ed25519 signatures over its section table, as docs/format.md defines them.

Keys and curves are the package `cryptography`'s; what is here is which bytes are signed, and where signatures lie.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aot.artifacts import layout
from aot.artifacts.layout import Section, SignatureAlgorithm
from aot.artifacts.table import View, check_digest, damaged, read_table, replaced
from aot.errors import ArtifactError, OptionError

DOMAIN = b"aotc artifact signature v1\0"
MOST_SIGNATURES = 64
_RECORD = layout.RECORD_OF[Section.SIGNATURE]
_OFFSET = slice(8, 16)  # of a row: where the section's offset is


@dataclass(frozen=True, slots=True)
class Signature:
    """One record of the section. `key`: SHA-256 of the public key's 32 bytes; `value`: 64 bytes."""

    algorithm: int
    key: bytes
    value: bytes


def key_id(public: bytes) -> bytes:
    """What a signature names a public key (32 bytes) by."""
    return hashlib.sha256(public).digest()


def signed_message(data: View) -> bytes:
    """The bytes that every signature of an artifact is over: header and table, without what signing changes.

    Reads no section. Raises ArtifactError where the header is damaged or of another version.
    """
    table = read_table(data)
    rows = [row for entry, row in zip(table.entries, table.rows, strict=True) if entry.kind != Section.SIGNATURE]
    header = bytearray(table.header)
    header[16:68] = bytes(48) + struct.pack("<I", len(rows))  # file_bytes, table_offset, digest, section_count
    message = bytearray(DOMAIN + header)
    for row in rows:
        message += row[: _OFFSET.start] + bytes(8) + row[_OFFSET.stop :]
    return bytes(message)


def signatures_of(data: View) -> tuple[Signature, ...]:
    """The signatures that an artifact has, in their order; whether they hold is `verify`'s to say.

    Raises ArtifactError where the section is damaged.
    """
    found: list[Signature] = []
    for entry in (entry for entry in read_table(data).entries if entry.kind == Section.SIGNATURE):
        if entry.offset > len(data) or entry.bytes > len(data) - entry.offset:
            damaged("it lies behind the end of the file", entry.name, entry.row_offset)
        size = entry.entry_bytes
        if size < _RECORD.size_bytes or size * entry.count != entry.bytes:
            damaged(
                f"{entry.count} records of {size} bytes do not fill {entry.bytes} bytes", entry.name, entry.row_offset
            )
        if entry.count > MOST_SIGNATURES or found:
            damaged(f"{entry.count} signatures, {MOST_SIGNATURES} are the most", entry.name, entry.row_offset)
        content = check_digest(data, entry)
        for start in range(0, entry.bytes, size):
            algorithm, reserved, key, value = _RECORD.struct.unpack_from(content, start)
            if reserved:
                damaged("a reserved field is not zero", entry.name, entry.offset + start)
            found.append(Signature(algorithm, key, value))
    return tuple(found)


def with_signatures(data: bytes, signatures: Sequence[Signature]) -> bytes:
    """The artifact with these signatures and no others; without any it has no such section."""
    if len(signatures) > MOST_SIGNATURES:
        raise OptionError(f"{MOST_SIGNATURES} signatures are the most that a file may have")
    records = [_RECORD.struct.pack(each.algorithm, 0, each.key, each.value) for each in signatures]
    return replaced(data, {Section.SIGNATURE: b"".join(records) or None})


def sign(data: bytes, private_key: bytes) -> bytes:
    """The artifact with one more signature, in the place of an earlier one by the same key.

    `private_key` is PEM, unencrypted. Raises OptionError for what is no such key, ArtifactError for a damaged artifact.
    """
    key, view = _private(private_key), memoryview(data)
    public = key.public_key().public_bytes_raw()
    made = Signature(SignatureAlgorithm.ED25519, key_id(public), key.sign(signed_message(view)))
    others = [each for each in signatures_of(view) if each.key != made.key]
    return with_signatures(data, [*others, made])


def verify(data: View, public_keys: Iterable[bytes]) -> bytes:
    """The key, of those given (32 bytes each), with which a signature of the artifact holds; the first one that does.

    Checks header, table and signatures, not the sections' bytes: readers compare these with the table's digests.
    Raises ArtifactError where no signature holds.
    """
    ed25519 = _module()
    from cryptography.exceptions import InvalidSignature

    by_id = {key_id(key): key for key in public_keys}
    signatures = signatures_of(data)
    message = signed_message(data)
    known = [each for each in signatures if each.algorithm == SignatureAlgorithm.ED25519 and each.key in by_id]
    for each in known:
        try:
            ed25519.Ed25519PublicKey.from_public_bytes(by_id[each.key]).verify(each.value, message)
        except (InvalidSignature, ValueError):
            continue
        return by_id[each.key]
    if not signatures:
        reason, hint = "it is not signed", "Sign it: aotc sign ARTIFACT --key PRIVATE.pem."
    elif not known:
        reason = f"it is signed by {', '.join(each.key.hex()[:16] for each in signatures)}, none of which is trusted"
        hint = "Trust one of these keys, or sign it with one that is trusted."
    else:
        reason = "its signature does not hold: it was changed after it was signed, or the signature was"
        hint = "Do not use it. Get it again from who signed it."
    raise ArtifactError(f"the artifact is refused: {reason}", hint=hint)


def generate_key() -> tuple[bytes, bytes]:
    """A new private key and its public one, both PEM (PKCS #8 without a password, SubjectPublicKeyInfo)."""
    ed25519 = _module()
    from cryptography.hazmat.primitives import serialization as form

    key = ed25519.Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def _module() -> Any:
    """cryptography's Ed25519; raises OptionError where the package is not installed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise OptionError(
            "signatures need the package cryptography, which is not installed", hint="pip install 'aotc[sign]'"
        ) from error
    return ed25519


def _private(pem: bytes) -> Any:
    """The private key that PEM text holds; raises OptionError."""
    ed25519 = _module()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    hint = "Make one with aotc sign --generate-key NAME, or openssl genpkey -algorithm ed25519."
    try:
        key = load_pem_private_key(pem, password=None)
    except TypeError as error:
        raise OptionError(
            "the private key is encrypted", hint="Decrypt it: openssl pkey -in KEY.pem -out PLAIN.pem."
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise OptionError("this holds no private key in PEM form", hint=hint) from error
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise OptionError(f"the private key is {type(key).__name__.lstrip('_')}, not Ed25519", hint=hint)
    return key
