"""Makes the generated pages of this folder, or says which are stale.

    python docs/generate.py [--check] [PAGE ...]

reference_c.md and reference_python.md come from the sources. The blocks of the other pages are run, and
what they print replaces what the page has. tests/docs holds every page to this.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from docs.generator import blocks, c_reference, python_reference  # noqa: E402

GENERATED = {"reference_c.md": c_reference.reference, "reference_python.md": python_reference.reference}
EXECUTED = ("c_api.md", "deployment.md", "quantization.md", "recipes.md", "tour.md")


def make(name: str) -> blocks.Page:
    """A page as it should be."""
    path = HERE / name
    if name in GENERATED:
        text = GENERATED[name]()
        stale = not path.exists() or path.read_text() != text
        return blocks.Page(text, ["it is not what the sources say"] if stale else [])
    with tempfile.TemporaryDirectory() as folder:
        return blocks.run_page(path.read_text(), Path(folder), {})


def main() -> int:
    """Exit code 1 if a command of a page fails, or if a page is stale and --check is given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("pages", nargs="*", choices=[[], *GENERATED, *EXECUTED], metavar="PAGE")
    arguments = parser.parse_args()
    stale = False
    for name in arguments.pages or (*GENERATED, *EXECUTED):
        try:
            page = make(name)
        except (RuntimeError, ValueError) as error:
            print(f"{name}: {error}")
            return 1
        for reason in page.skipped:
            print(f"{name}: skipped: {reason}")
        for difference in page.differences:
            print(f"{name}: {difference}")
        stale = stale or bool(page.differences)
        if page.differences and not arguments.check:
            (HERE / name).write_text(page.text)
            print(f"{name}: written")
    return int(stale and arguments.check)


if __name__ == "__main__":
    sys.exit(main())
