"""The catalogue of real models (models.json) and the inputs to try them with."""

from __future__ import annotations

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
RELATIVE, ABSOLUTE = 1e-3, 1e-4
Inputs = dict[str, np.ndarray[Any, np.dtype[Any]]]


@dataclass(frozen=True)
class ZooModel:
    """A row of the catalogue.

    `cases` are (label, input specification by name); `refused` says why it is not built. `absolute`: how far results
    may be apart, where a state that lies between two quantized numbers to the last bit becomes the one or the other.
    """

    name: str
    file: str
    package: str
    version: str
    member: str
    sha256: str
    cases: tuple[tuple[str, dict[str, dict[str, Any]]], ...]
    refused: str = ""
    task: str = ""
    absolute: float = ABSOLUTE


def catalogue() -> list[ZooModel]:
    """Every row, in the file's order."""
    rows = json.loads((HERE / "models.json").read_text())["models"]
    return [
        ZooModel(
            row["id"], row["file"], row["package"], row["version"], row["path"], row["sha256"],
            tuple((case["label"], case["inputs"]) for case in row["cases"]), row.get("refused", ""), row["task"],
            row.get("absolute", ABSOLUTE),
        )
        for row in rows
    ]  # fmt: skip


def buildable() -> list[ZooModel]:
    """The rows that are not refused."""
    return [model for model in catalogue() if not model.refused]


def folder() -> Path | None:
    """Where the models were fetched to: $AOT_ZOO."""
    path = os.environ.get("AOT_ZOO")
    return Path(path) if path and Path(path).is_dir() else None


def make_inputs(specification: dict[str, dict[str, Any]]) -> Inputs:
    """Arrays for one case; the same on every machine."""
    return {name: _array(name, spec) for name, spec in specification.items()}


def _array(name: str, spec: dict[str, Any]) -> np.ndarray[Any, np.dtype[Any]]:
    random = np.random.default_rng(zlib.crc32(name.encode()))
    shape = tuple(spec["shape"])
    values: Any
    match spec["gen"]:
        case "const":
            values = np.full(shape, spec.get("value", 0))
        case "normal":
            values = random.standard_normal(shape) * spec.get("std", 1.0)
        case "uniform":
            values = random.uniform(spec.get("lo", 0.0), spec.get("hi", 1.0), shape)
        case "choice":
            values = random.choice(spec["values"], shape)
        case "randint":
            values = random.integers(spec["lo"], spec["hi"], shape)
        case "tokens":
            values = random.integers(spec["lo"], spec["hi"], shape)
            values[..., 0], values[..., -1] = spec["first"], spec["last"]
        case "prefix_mask":
            values = np.arange(shape[-1]) < np.asarray(spec["lengths"])[:, None]
        case "image":
            values = (_picture(random, shape) * spec["scale"] - spec["mean"]) / spec["std"]
        case "speech":
            values = _voice(random, shape) * spec["scale"]
        case other:
            raise ValueError(f"unknown generator {other!r}")
    return np.asarray(values, dtype=spec["dtype"], order="C")


def _picture(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """NCHW in 0..1: smooth shading, flat rectangles, dark strokes as of print."""
    batch, channels, height, width = shape
    y, x = np.linspace(0, 3, height)[:, None], np.linspace(0, 3, width)[None, :]
    phase = random.uniform(0, 6, (batch, channels, 1, 1))
    picture = 0.6 + 0.25 * np.sin(x + phase) * np.cos(y * 1.3 + phase)
    for image in picture:
        for _ in range(12):
            top, left = random.integers(0, max(height - 8, 1)), random.integers(0, max(width - 8, 1))
            image[:, top : top + max(height // 6, 4), left : left + max(width // 6, 4)] = random.uniform(
                0, 1, (channels, 1, 1)
            )
        for _ in range(40):
            top, left = random.integers(0, max(height - 12, 1)), random.integers(0, max(width - 3, 1))
            image[:, top : top + random.integers(4, 12), left : left + 2] = 0.05
    clipped: np.ndarray[Any, np.dtype[Any]] = np.clip(picture, 0, 1)
    return clipped


def _voice(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[Any]]:
    """Harmonics of a wavering pitch, swelling as syllables do, over faint noise; 16 kHz."""
    samples = int(np.prod(shape[1:]))
    seconds = np.arange(samples) / 16000
    rows = []
    for _ in range(shape[0]):
        pitch = random.uniform(100, 180) * (1 + 0.03 * np.sin(2 * np.pi * 3 * seconds))
        angle = 2 * np.pi * np.cumsum(pitch) / 16000
        tone = sum(np.sin(k * angle) / k for k in range(1, 20))
        swell = 0.5 + 0.5 * np.sin(2 * np.pi * random.uniform(3, 5) * seconds)
        rows.append(0.2 * tone * swell + 0.002 * random.standard_normal(samples))
    return np.stack(rows).reshape(shape)
