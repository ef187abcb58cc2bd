"""Public keys of those whose artifacts a process trusts, as 32 bytes each, from PEM files, PEM text or raw bytes."""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable
from pathlib import Path

from aot.errors import OptionError

_PEM = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----([^-]*)-----END \1-----")
_ED25519 = bytes.fromhex("302a300506032b6570032100")
"""How the DER form of an Ed25519 SubjectPublicKeyInfo begins (RFC 8410); the 32 bytes of the key follow."""
_HINT = "Give PEM files of Ed25519 public keys (aotc sign --generate-key NAME writes one), or keys of 32 bytes."
_MOST_BYTES = 1 << 20  # of a key file

Key = str | os.PathLike[str] | bytes


def trusted_keys(keys: Key | Iterable[Key]) -> tuple[bytes, ...]:
    """Every key once, in the order given. A file may hold several.

    `bytes` are a key (32 of them) or PEM text, anything else is the path of a PEM file. Raises OptionError for what is
    no Ed25519 public key, and where there is none at all: a policy that trusts nobody is a mistake.
    """
    given = (keys,) if isinstance(keys, str | bytes | os.PathLike) else tuple(keys)
    found = tuple(dict.fromkeys(key for each in given for key in _keys_of(each)))
    if not found:
        raise OptionError("there is no trusted key", hint=_HINT)
    return found


def _keys_of(source: Key) -> list[bytes]:
    if isinstance(source, bytes):
        return [source] if len(source) == 32 else _of_pem(source, "the bytes of a key")
    if not isinstance(source, str | os.PathLike):
        raise OptionError(f"a trusted key is a path or bytes, not {type(source).__name__}", hint=_HINT)
    path = Path(source)
    try:
        with path.open("rb") as file:
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise OptionError(f"cannot read the key: {error.strerror or error}", where=str(path), hint=_HINT) from error
    return _of_pem(text, str(path))


def _of_pem(text: bytes, where: str) -> list[bytes]:
    blocks = _PEM.findall(text)
    if not blocks:
        raise OptionError("there is no key in PEM form", where=where, hint=_HINT)
    found = []
    for label, body in blocks:
        if label != b"PUBLIC KEY":
            what = "a private key: keep it secret" if b"PRIVATE" in label else label.decode().lower()
            raise OptionError(f"a public key is wanted, this is {what}", where=where, hint=_HINT)
        try:
            der = base64.b64decode(b"".join(body.split()), validate=True)
        except binascii.Error as error:
            raise OptionError(f"the PEM text is damaged: {error}", where=where, hint=_HINT) from error
        if len(der) != len(_ED25519) + 32 or not der.startswith(_ED25519):
            raise OptionError("the public key is of another kind than Ed25519", where=where, hint=_HINT)
        found.append(der[len(_ED25519) :])
    return found
