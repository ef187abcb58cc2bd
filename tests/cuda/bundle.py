"""The kernel tests of this folder as a bundle that a GPU host can run: cubins, inputs, and what numpy expects.

`python -m tests.cuda.bundle OUT.zip [ARCHITECTURE] [-k EXPRESSION]` runs the tests under the interpreter, keeps every
call, and compiles its kernels. `AOT_GPU_BUNDLE=OUT.zip pytest -m gpu tests/cuda` runs them on a GPU, without Triton.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tests.conftest  # noqa: F401  # before anything imports Triton
from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda import CudaBackend
from aot.kernel import Kernel
from tests.cuda import interpreter


def recorded(calls: list[dict[str, Any]], arrays: dict[str, np.ndarray]) -> Any:
    """A stand-in for interpreter.run that keeps what it is called with, and what comes out."""
    plain = interpreter.run

    def run(
        kernel: Kernel, emitted: Emitted, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
    ) -> list[np.ndarray]:
        outputs = plain(kernel, emitted, inputs, symbols)
        number = len(calls)
        storages = [
            *interpreter.laid_out(kernel, emitted, inputs, symbols or {}),
            *interpreter.blank(kernel, symbols or {}),
        ]
        for place, storage in enumerate(storages):
            arrays[f"{number}.{place}"] = storage.bytes.copy()
        for place, (storage, output) in enumerate(
            zip(storages[len(kernel.inputs) :], outputs, strict=True), len(kernel.inputs)
        ):
            storage.logical[...] = output
            arrays[f"{number}.{place}.wanted"] = storage.bytes.copy()
        calls.append(
            {
                "source": emitted.source,
                "is_tf32": 'input_precision="tf32"' in emitted.source,
                "test": os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0].rpartition("/")[2],
                "outputs": [
                    {"operand": place, "dtype": operand.type.dtype.name}
                    for place, operand in enumerate(kernel.outputs, len(kernel.inputs))
                ],
                "operands": len(storages),
                "dims": [dimension.evaluate(d, symbols or {}) for d in emitted.dims],
                "grid": [dimension.evaluate(d, symbols or {}) for d in emitted.grid],
            }
        )
        return outputs

    return run


def main() -> int:
    """Writes a bundle; the tests' exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out")
    parser.add_argument("architecture", nargs="?", default="sm_90a")
    parser.add_argument("-k", default="")
    parser.add_argument("--cache", type=Path, help="of compiled kernels")
    chosen = parser.parse_args()
    calls: list[dict[str, Any]] = []
    arrays: dict[str, np.ndarray] = {}
    interpreter.run = recorded(calls, arrays)
    code = pytest.main(["-q", "tests/cuda", "-m", "not gpu", *(["-k", chosen.k] if chosen.k else [])])
    backend = CudaBackend()
    symbols = {call["source"]: f"k_{hashlib.sha256(call['source'].encode()).hexdigest()[:20]}" for call in calls}
    built = backend.build([(s, t) for t, s in symbols.items()], backend.target(chosen.architecture), chosen.cache)
    for call in calls:
        call["symbol"] = symbols[call.pop("source")]
    images = {name: {field: getattr(image, field) for field in image.__slots__} for name, image in built.images.items()}
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]  # names are strings
    with zipfile.ZipFile(chosen.out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("calls.json", json.dumps({"calls": calls, "images": images}))
        archive.writestr("code", built.code)
        archive.writestr("data.npz", data.getvalue())
    print(f"{len(calls)} calls of {len(symbols)} kernels in {chosen.out}")
    return int(code)


if __name__ == "__main__":
    raise SystemExit(main())
