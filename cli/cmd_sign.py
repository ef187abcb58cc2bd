"""`aotc sign`: signs an artifact, verifies who signed it, and makes keys."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aot.cli.common import check_file, check_writable, common_options, note, print_facts, print_json, wants
from aot.cli.loading import open_artifact
from aot.errors import AotError, OptionError


@click.command("sign")
@click.argument("artifact", required=False, type=click.Path(path_type=Path))
@click.option("--key", type=click.Path(path_type=Path), metavar="PRIVATE.pem", help="Sign with this Ed25519 key.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OUT.aot", help="Default: ARTIFACT itself.")
@click.option("--verify", is_flag=True, help="Say which of the trusted keys signed ARTIFACT; fail if none did.")
@click.option(
    "--trusted-keys",
    "trusted",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PUBLIC.pem",
    help="For --verify. A file may hold several keys; may be repeated.",
)
@click.option("--generate-key", "name", metavar="NAME", help="Make NAME.pem, which is secret, and NAME.pub.pem.")
@common_options
def command(
    artifact: Path | None,
    key: Path | None,
    output: Path | None,
    verify: bool,
    trusted: tuple[Path, ...],
    name: str | None,
) -> None:
    """Sign ARTIFACT (with --key), verify it (--verify), or make a pair of keys (--generate-key).

    A signature covers every byte of the artifact and the digests of weights that lie elsewhere. An artifact may have
    several, each with a key of its own; signing again with the same key replaces that one.
    """
    if sum((key is not None, verify, name is not None)) != 1:
        raise OptionError(
            "one of --key, --verify and --generate-key is wanted",
            hint="aotc sign ARTIFACT --key PRIVATE.pem; aotc sign --verify ARTIFACT --trusted-keys PUBLIC.pem",
        )
    if bool(trusted) != verify or (output is not None and key is None):
        raise OptionError("--trusted-keys goes with --verify, and -o with --key")
    if name is not None:
        if artifact is not None:
            raise OptionError("--generate-key makes keys and signs nothing", hint="Sign with --key NAME.pem after it.")
        make_keys(name)
        return
    if artifact is None:
        raise OptionError("an artifact is wanted", hint="aotc sign ARTIFACT --key PRIVATE.pem")
    if key is not None:
        sign_file(artifact, key, output or artifact)
    else:
        verify_file(artifact, trusted)


def make_keys(name: str) -> None:
    """Writes NAME.pem, which only its owner can read, and NAME.pub.pem. Raises OptionError where one is there."""
    from aot.artifacts.signatures import generate_key, key_id
    from aot.runtime.keys import trusted_keys

    paths = (Path(f"{name}.pem"), Path(f"{name}.pub.pem"))
    for path in paths:
        check_writable(path)
        if path.exists():
            raise OptionError("a key is there already, and is not replaced", where=str(path), hint="Choose a new name.")
    texts = generate_key()
    for path, text, mode in zip(paths, texts, (0o600, 0o644), strict=True):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(text)
    identity = key_id(*trusted_keys(texts[1])).hex()
    if wants("json"):
        print_json({"private": str(paths[0]), "public": str(paths[1]), "key": identity})
        return
    print_facts([("private", f"{paths[0]}: keep it secret"), ("public", str(paths[1])), ("key", identity)])


def sign_file(artifact: Path, key: Path, output: Path) -> None:
    """Signs a sound artifact; the file is written whole or not at all."""
    from aot.artifacts import write_whole
    from aot.artifacts.signatures import sign, signatures_of

    check_file(key, "a private key")
    check_writable(output)
    opened = open_artifact(artifact)
    try:
        data = sign(opened.data, key.read_bytes())
    except OptionError as error:
        raise OptionError(error.message, where=str(key), hint=error.hint) from error
    write_whole(output, data)
    identities = [each.key.hex() for each in signatures_of(memoryview(data))]
    if opened.external_file and output.resolve().parent != artifact.resolve().parent:
        note(f"its weights stay where they are: put {opened.external_file} beside {output}")
    if wants("json"):
        print_json({"artifact": str(output), "key": identities[-1], "keys": identities})
        return
    print_facts([("signed", str(output)), ("key", identities[-1]), ("signatures", len(identities))])


def verify_file(artifact: Path, trusted: tuple[Path, ...]) -> None:
    """Verifies signature and bytes, those of external weights that are there included. Raises ArtifactError."""
    from aot.artifacts.external import check_external
    from aot.artifacts.signatures import key_id, verify
    from aot.runtime.keys import trusted_keys

    keys = trusted_keys(trusted)
    opened = open_artifact(artifact)
    try:
        found = verify(memoryview(opened.data), keys)
        has_external = check_external(opened.reader, artifact)
    except AotError as error:
        raise type(error)(error.message, where=error.where or str(artifact), hint=error.hint) from error
    if opened.external_file and not has_external:
        note(f"{opened.external_file} is not beside it: its weights are compared with the artifact when it is loaded")
    if wants("json"):
        document = {"artifact": str(artifact), "digest": opened.digest, "key": key_id(found).hex()}
        print_json(document | ({"external_verified": has_external} if opened.external_file else {}))
        return
    print_facts([("signed", f"{artifact}, by a trusted key"), ("key", key_id(found).hex()), ("sha256", opened.digest)])
