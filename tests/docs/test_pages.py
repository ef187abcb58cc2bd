"""Every generated page is what the sources say, and what every executed page shows is what its commands print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from aot.runtime import prefix
from docs import generate
from docs.generator import blocks, c_reference, python_reference

DOCS = Path(__file__).resolve().parents[2] / "docs"
REMEDY = "\nIf the change is meant: python docs/generate.py "


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.parametrize("name", generate.GENERATED)
def test_reference_is_what_the_sources_say(name: str) -> None:
    assert (DOCS / name).read_text() == generate.GENERATED[name](), REMEDY + name


@pytest.mark.parametrize("name", generate.EXECUTED)
def test_page_shows_what_its_commands_print(name: str, tmp_path: Path, cache: Path) -> None:
    if name == "c_api.md":
        _needs_headers()
    page = blocks.run_page((DOCS / name).read_text(), tmp_path, {"AOTC_CACHE": str(cache)})
    assert not page.differences, "\n".join(page.differences) + REMEDY + name
    if name == "c_api.md":
        _is_cpp_too(tmp_path)
    if page.skipped:
        pytest.skip("; ".join(page.skipped))


@pytest.mark.parametrize("compiler", [("gcc", "-std=c11", "c"), ("g++", "-std=c++17", "c++")], ids=["c", "c++"])
def test_headers_compile_alone_without_warnings(compiler: tuple[str, str, str]) -> None:
    command, standard, language = compiler
    include = DOCS.parent / "runtime" / "include"
    headers = ["runtime.h"] if language == "c" else ["runtime.h", "runtime.hpp"]
    for header in headers:
        flags = [standard, "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fsyntax-only", f"-I{include}"]
        subprocess.run([command, *flags, "-x", language, include / "aot" / header], check=True)


def test_every_declaration_has_a_comment() -> None:
    found = [item for item in c_reference.entries(c_reference.HEADER.read_text()) if not isinstance(item, str)]
    assert len(found) > 50
    assert [item.name for item in found if not item.comment] == []
    header = re.sub(r"/\*.*?\*/", " ", c_reference.HEADER.read_text(), flags=re.DOTALL)
    assert set(re.findall(r"\b(aot_\w+)\(", header)) <= {item.name for item in found}


def test_every_public_name_has_a_docstring() -> None:
    text = python_reference.reference()
    bare = re.findall(r"(?m)^#+ (\S+)\n\n```python\n[^`]*```\n\n(?=\n|#|$)", text)
    assert not bare, "no docstring"
    assert re.findall(r"(?m)^`[^`]+`\. $", text) == [], "a property without a docstring"
    assert "ForwardRef" not in text and "0x" not in text


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]*))?\)", text):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert anchor in _anchors(path.read_text()), f"{page.name} links to {target}#{anchor}"


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"(?m)^#+ (.+)$", re.sub(r"(?ms)^```.*?^```$", "", text))
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def _is_cpp_too(folder: Path) -> None:
    """The C blocks as C++17 (with designated initializers, which C++20 brought) print what they print as C11."""
    include, lib = prefix() / "include", prefix() / "lib"
    flags = ["-std=c++17", "-Wall", "-Werror", f"-I{include}", f"-L{lib}", f"-Wl,-rpath,{lib}", "-pthread"]
    command = ["g++", *flags, "-x", "c++", "guide.c", "-x", "none", "-laot_runtime", "-o", "guide_as_cpp"]
    subprocess.run(command, cwd=folder, check=True)
    printed = [
        subprocess.run([program], cwd=folder, check=True, capture_output=True, text=True, timeout=60).stdout
        for program in (folder / "build" / "guide_c", folder / "guide_as_cpp")
    ]
    assert printed[0] == printed[1] != ""


def _needs_headers() -> None:
    for header in (DOCS.parent / "runtime" / "include" / "aot").iterdir():
        if not (prefix() / "include" / "aot" / header.name).exists():
            pytest.skip(f"{header.name} is not installed yet: install the package again")
