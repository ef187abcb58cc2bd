"""From Triton texts to cubins or PTX, in processes of their own, through a content-addressed cache; needs no GPU.

The same texts give the same bytes on every machine: line information, which holds paths, is off, and the assembler
is the one that comes with Triton and knows the architecture. The blob of a program is the cubins (or texts) one after
the other; `Image` says where each lies and what its launch needs.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from aot.backend.base import Built
from aot.backend.cuda.architectures import Architecture
from aot.backend.cuda.frame import HEADER
from aot.errors import CompilerError, TargetError
from aot.program import Image

IMAGE_ALIGN_BYTES = 64
_PREAMBLE = (
    "import triton\nimport triton.language as tl\n\nINTERPRETED = tl.constexpr(triton.knobs.runtime.interpret)\n\n\n"
)


def module_text(source: str) -> str:
    """A kernel's text as a Python module."""
    return _PREAMBLE + source


def header_of(source: str) -> Mapping[str, Any]:
    """How a text wants to be compiled."""
    first = source.split("\n", 1)[0]
    if not first.startswith(HEADER):
        raise CompilerError("a Triton text without its header")
    found: Mapping[str, Any] = json.loads(first.removeprefix(HEADER))
    return found


@cache
def triton_version() -> str:
    """The version of the installed Triton. Raises TargetError where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("triton")
    except PackageNotFoundError:
        raise TargetError(
            "the CUDA target needs Triton to compile kernels (to run them it is not needed)",
            hint="pip install 'aotc[cuda]'",
        ) from None


@cache
def assembler() -> Path:
    """The older of Triton's assemblers, that of CUDA 12."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "backends/nvidia/bin/ptxas"


@cache
def assembler_version() -> str:
    """What the assembler calls itself, such as "V12.9.86"."""
    said = subprocess.run([str(assembler()), "--version"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"V\d+\.\d+\.\d+", said)
    return found[0] if found else "unknown"


@cache
def _worker_digest() -> str:
    """What the compiling process does is part of what is kept."""
    texts = (Path(__file__).with_name(name).read_bytes() for name in ("worker.py", "ptx.py"))
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def build(
    sources: Sequence[tuple[str, str]], architecture: Architecture, is_exact: bool, cache_dir: Path | None, jobs: int
) -> Built:
    """Compiles (symbol, text) pairs. Raises CompilerError with Triton's message where one does not compile."""
    version = f"{triton_version()} {assembler_version()} {architecture.ptx} {_worker_digest()}"
    suffix = ".ptx" if architecture.ptx else ".cubin"
    folder = None if cache_dir is None else cache_dir / "cuda" / architecture.name
    with tempfile.TemporaryDirectory(prefix="aotc-") as work:
        wanted: list[tuple[str, str, Path]] = []
        paths: list[Path] = []
        for number, (symbol, source) in enumerate(sources):
            key = hashlib.sha256("\0".join((version, architecture.name, str(is_exact), symbol, source)).encode())
            name = f"{key.hexdigest()}{suffix}"
            path = Path(work) / f"{number}-{name}"
            if folder is not None:
                kept = folder / name[:2] / name
                if kept.exists() and kept.with_suffix(".json").exists():
                    paths.append(kept)
                    continue
            paths.append(path)
            wanted.append((symbol, source, path))
        if wanted:
            _compile(wanted, architecture, is_exact, Path(work), jobs or os.cpu_count() or 1)
        images: dict[str, Image] = {}
        blob = bytearray()
        for (symbol, _), path in zip(sources, paths, strict=True):
            image, facts = path.read_bytes(), json.loads(path.with_suffix(".json").read_text())
            blob += b"\0" * (-len(blob) % IMAGE_ALIGN_BYTES)
            images[symbol] = Image(len(blob), len(image), **facts)
            blob += image
            if folder is not None and path.parent == Path(work):
                _keep(path, folder)
    return Built(bytes(blob), images, architecture.driver)


def _keep(path: Path, folder: Path) -> None:
    name = path.name.split("-", 1)[1]
    target = folder / name[:2] / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for suffix in (".json", path.suffix):
            aside = target.with_name(f"{name}.{os.getpid()}{suffix}")
            aside.write_bytes(path.with_suffix(suffix).read_bytes())
            os.replace(aside, target.with_suffix(suffix))
    except OSError:
        return  # a cache that cannot be written is only slower


def _compile(
    wanted: Sequence[tuple[str, str, Path]], architecture: Architecture, is_exact: bool, work: Path, jobs: int
) -> None:
    """Shares the texts among worker processes: importing Triton takes a second, a kernel a tenth to one."""
    shares = [wanted[number::jobs] for number in range(min(jobs, len(wanted)))]

    def run(number: int) -> None:
        share = shares[number]
        request = work / f"request-{number}.json"
        request.write_text(
            json.dumps(
                {
                    "capability": architecture.capability,
                    "ptx": architecture.ptx,
                    "programmatic": "programmatic_launch" in architecture.features,
                    "exact": is_exact,
                    "shared_bytes": architecture.numbers["shared_bytes"],
                    "kernels": [
                        {"symbol": symbol, "source": source, "path": str(path)} for symbol, source, path in share
                    ],
                }
            )
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRITON_")},
            "TRITON_DISABLE_LINE_INFO": "1",
            "TRITON_PTXAS_BLACKWELL_PATH": str(assembler()),  # its code loads into drivers of CUDA 12 as well
            "TRITON_CACHE_DIR": str(work / f"triton-{number}"),
            "PYTHONHASHSEED": "0",
        }
        command = [sys.executable, "-m", "aot.backend.cuda.worker", str(request)]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise CompilerError(f"Triton failed: {'; '.join(lines[-6:])}", where=_current(share))

    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(run, range(len(shares))))


def _current(share: Sequence[tuple[str, str, Path]]) -> str:
    """The kernel at which a worker stopped: the first without a result."""
    return next((symbol for symbol, _, path in share if not path.with_suffix(".json").exists()), "")
