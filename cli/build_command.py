"""The `aotc build` command that made an artifact, as its meta section records it, with other targets."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def build_command(meta: Mapping[str, Any], artifact: Path, targets: Sequence[str] = ()) -> str:
    """A line for a shell: the recorded build, for the recorded targets and `targets` before them.

    What the artifact does not record stands in capitals: MODEL. Quantization names the record that a build writes
    beside the artifact.
    """
    options: Mapping[str, Any] = meta.get("options", {})
    words = ["aotc", "build", meta.get("source", {}).get("file") or "MODEL"]
    wanted = dict.fromkeys((*targets, *options.get("targets", meta.get("targets", ()))))
    words += [word for target in wanted for word in ("--target", target)]
    words += _dims(options)
    for name, value in options.get("values", ()):
        words += ["--set", f"{name}={json.dumps(value, separators=(',', ':'))}"]
    for flag, name in (("--override", "overridable"), ("--disable", "disable")):
        words += [word for value in options.get(name, ()) for word in (flag, str(value))]
    for name, default in (("precision", "fp32"), ("io_dtype", "model"), ("weights", "embedded"), ("bisect", None)):
        if options.get(name, default) != default:
            words += [f"--{name.replace('_', '-')}", str(options[name])]
    words += [f"--{name.replace('_', '-')}" for name in ("exact", "trust_pickle", "strip_debug") if options.get(name)]
    if not options.get("host_steps", True):
        words.append("--no-host-steps")
    if options.get("quantization"):
        words += ["--quantize", str(artifact.with_suffix(".quantization"))]
    if self_test := meta.get("self_test"):
        words += ["--self-test", str(self_test.get("inputs", 1))]
        data = str(self_test.get("data", "random"))
        words += ["--self-test-data", data] if not data.startswith("random") else []
    return shlex.join([*words, "-o", str(artifact)])


def _dims(options: Mapping[str, Any]) -> Iterable[str]:
    """--dim and --variant."""
    for name, lo, hi in options.get("dims", ()):
        yield from ("--dim", f"{name}={lo}" if lo == hi else f"{name}={lo}..{'' if hi is None else hi}")
    extents: dict[str, list[int]] = {}
    for name, extent in (pair for binding in options.get("variants", ()) for pair in binding):
        if extent not in extents.setdefault(name, []):
            extents[name].append(extent)
    for name, several in extents.items():
        yield from ("--variant", f"{name}={','.join(map(str, several))}")
