"""`aotc explain`: why an artifact is as accurate as it is: the error ledger that its build recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from aot.cli.common import check_writable, common_options, note, print_json, wants
from aot.cli.ledger_page import page, page_of_products
from aot.cli.ledger_report import report_record, said_of_products
from aot.cli.loading import open_artifact
from aot.file_kinds import kind_of
from aot.quantization import Quantization


@click.command("explain")
@click.argument("artifact", type=click.Path(path_type=Path))
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Also a report with pictures.")
@common_options
def command(artifact: Path, html: Path | None) -> None:
    """Tell which products of ARTIFACT are quantized, what each costs in accuracy, and why others are float.

    Worst first, in the names of the model's nodes. ARTIFACT may be a record of `aotc quantize` too.
    """
    document: dict[str, Any] | None
    kind = kind_of(artifact)
    if artifact.suffix == ".quantization" or (kind is not None and kind.name == "arrays"):
        document, products = Quantization.open(artifact).summary(), ()
    else:
        meta = open_artifact(artifact).meta
        document, products = meta.get("quantization"), meta.get("products", ())
    if html is not None:
        check_writable(html)
    if document is not None:
        report_record(document, str(artifact))
    elif wants("json"):
        print_json({"artifact": str(artifact), "ledger": None, "products": products})
    elif products:
        note("the model came quantized: nothing was measured here")
        said_of_products(products)
    else:
        click.echo("nothing is quantized")
    if html is not None:
        made = page(document, artifact.name) if document is not None else page_of_products(products, artifact.name)
        html.write_text(made, encoding="utf-8")
        if not wants("json"):
            click.echo(f"written: {html}")
