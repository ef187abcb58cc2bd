"""The layers of the design, held by reading every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS: dict[str, int] = {
    **dict.fromkeys(
        (
            "aot.dtypes", "aot.errors", "aot.file_kinds", "aot.options", "aot.target", "aot.dims", "aot.array_files",
            "aot.metrics", "aot.observations", "aot.quantization",
        ),
        0,
    ),
    **dict.fromkeys(
        (
            "aot.ir", "aot.expr", "aot.kernel", "aot.program", "aot.text", "aot.program_text", "aot.recipe",
            "aot.offsets", "aot.offset_search", "aot.axes",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "aot.ops", "aot.builder", "aot.verify", "aot.evaluate", "aot.pattern", "aot.passes", "aot.lower",
            "aot.views", "aot.storage", "aot.custom", "aot.control", "aot.partition", "aot.quantized_sums",
            "aot.rounding",
        ),
        2,
    ),
    **dict.fromkeys(("aot.transforms", "aot.frontend", "aot.backend", "aot.artifacts"), 3),
    "aot.pipeline": 4,
    **dict.fromkeys(
        (
            "aot.assemble", "aot.driver", "aot.host_steps", "aot.calibrate", "aot.ledger", "aot.product_times",
            "aot.quantize", "aot.quantizer", "aot.samples",
        ),
        5,
    ),
    **dict.fromkeys(("aot.cli", "aot.testing"), 6),
}  # fmt: skip
SEPARATE = ("aot.transforms", "aot.frontend", "aot.backend", "aot.artifacts")
"""Of the same layer, and never importing each other."""

FOLDERS = {"aot": "aot", "frontend": "aot.frontend", "backend": "aot.backend", "artifacts": "aot.artifacts",
           "cli": "aot.cli", "runtime": "aot.runtime"}  # fmt: skip


def modules() -> Iterator[tuple[str, Path]]:
    for folder, package in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if folder == "aot" and any(
                (ROOT / "aot" / part).is_symlink() for part in path.relative_to(ROOT / "aot").parts[:1]
            ):
                continue
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if folder == "runtime" and parts[0] in ("tests", "examples"):
                continue
            name = ".".join((package, *parts)).removesuffix(".__init__")
            yield name, path


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            if node.module == "aot":
                yield from (f"aot.{alias.name}" for alias in node.names)


def unit(module: str) -> str | None:
    """The entry of LAYERS that a module belongs to."""
    return next((name for name in LAYERS if module == name or module.startswith(f"{name}.")), None)


@pytest.mark.parametrize(
    ("module", "path"), list(modules()), ids=lambda value: str(value) if isinstance(value, str) else ""
)
def test_imports_point_to_lower_layers(module: str, path: Path) -> None:
    if module == "aot":
        return  # its imports are lazy
    if module.startswith("aot.runtime"):
        allowed = ("aot.errors", "aot.file_kinds", "aot.runtime")
        wrong = [name for name in imports(path) if name.startswith("aot.") and not name.startswith(allowed)]
        assert not wrong, f"the runtime imports the compiler: {wrong}"
        return
    own = unit(module)
    assert own is not None, f"{module} is in no layer; add it to LAYERS"
    for name in imports(path):
        other = unit(name)
        if other is None or other == own:
            continue
        assert LAYERS[other] <= LAYERS[own], f"{module} (layer {LAYERS[own]}) imports {name} (layer {LAYERS[other]})"
        assert not (own in SEPARATE and other in SEPARATE), f"{module} imports its sibling {name}"
