"""`aotc package`: artifacts as an OCI layout for registries, and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from aot.cli.common import check_file, check_writable, common_options, print_facts, print_json, print_table, wants
from aot.errors import OptionError


@click.command("package")
@click.argument("names", nargs=-1, required=True, metavar="ARTIFACT... | TARGET")
@click.option("--oci", type=click.Path(path_type=Path), metavar="DIR", help="Write the artifacts there.")
@click.option("--extract", type=click.Path(path_type=Path), metavar="DIR", help="Write the artifact of TARGET to -o.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="For --extract.")
@click.option("--tag", metavar="TAG", help="Of the index. Default: latest; for --extract the only one.")
@common_options
def command(
    names: tuple[str, ...], oci: Path | None, extract: Path | None, output: Path | None, tag: str | None
) -> None:
    """Put artifacts of one model into an OCI image layout (--oci DIR), or get one out of it (--extract DIR TARGET).

    The layout has one manifest for each target under one index, which ORAS-type tools push as it is:
    oras cp --from-oci-layout DIR:latest REGISTRY/REPOSITORY:latest -r
    """
    from aot.artifacts import oci as layout

    if (oci is None) == (extract is None):
        raise OptionError("one of --oci and --extract is wanted", hint="aotc package --oci DIR ARTIFACT...")
    if oci is not None:
        if output is not None:
            raise OptionError("-o goes with --extract; --oci says where to write")
        paths = [Path(name) for name in names]
        for path in paths:
            check_file(path, "an artifact")
        made = layout.package(oci, paths, tag or "latest")
        if wants("json"):
            print_json({"layout": str(oci), "tag": tag or "latest", "manifests": [asdict(each) for each in made]})
            return
        print_facts([("layout", f"{oci}, tag {tag or 'latest'}")])
        rows = [(each.target, each.digest, ", ".join(each.files)) for each in made]
        print_table(("target", "manifest", "files"), rows)
        return
    assert extract is not None
    if len(names) != 1 or output is None:
        raise OptionError("--extract wants one target and -o FILE", hint="aotc package --extract DIR TARGET -o FILE")
    check_writable(output)
    written = layout.extract(extract, names[0], output, tag)
    if wants("json"):
        print_json({"target": names[0], "artifact": str(written[0]), "files": [str(path) for path in written]})
        return
    print_facts([("extracted", "\n".join(map(str, written)))])
