"""A process that compiles Triton texts: reads a request file, writes a cubin and its facts for each kernel."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from aot.backend.cuda.compile import header_of, module_text


def main() -> None:
    """Serves the request named on the command line."""
    request = json.loads(Path(sys.argv[1]).read_text())
    for kernel in request["kernels"]:
        path = Path(kernel["path"])
        facts = compile_one(kernel["symbol"], kernel["source"], path, request)
        path.with_suffix(".json").write_text(json.dumps(facts, sort_keys=True))


def compile_one(symbol: str, source: str, path: Path, request: dict[str, Any]) -> dict[str, int]:
    """Writes the cubin of one kernel at `path`; returns what its launch needs (the fields of Image)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    header = header_of(source)
    module_path = path.with_suffix(".py")
    module_path.write_text(re.sub(r"\bKERNEL\b", symbol, module_text(source)))
    spec = importlib.util.spec_from_file_location(symbol, module_path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[symbol] = module
    spec.loader.exec_module(module)
    function = getattr(module, symbol)
    kinds = [*header["pointers"], *header["integers"]]
    signature: dict[str, str] = dict(zip(function.arg_names, [*kinds, "constexpr"], strict=True))
    first = len(header["pointers"])
    multiples = [*header["aligned"], *(first + number for number in header["multiples"])]
    compiled = triton.compile(
        ASTSource(
            fn=function,
            signature=signature,
            constexprs={(len(kinds),): request["programmatic"]},
            attrs={(number,): [["tt.divisibility", 16]] for number in multiples},
        ),
        target=GPUTarget("cuda", request["capability"], 32),
        options={
            "num_warps": header["warps"],
            "num_stages": header["stages"],
            "enable_fp_fusion": not request["exact"],
            "launch_pdl": request["programmatic"],
        },
    )
    path.write_bytes(compiled.asm["cubin"])
    registers, spilled = _resources(path, symbol)
    metadata = compiled.metadata
    return {
        "threads": 32 * metadata.num_warps,
        "shared_bytes": metadata.shared,
        "scratch_bytes": metadata.global_scratch_size,
        "wide_integers": sum(1 << number for number, kind in enumerate(header["integers"]) if kind == "i64"),
        "registers": registers,
        "spilled_bytes": spilled,
        "is_heavy": header["heavy"],
    }


def _resources(path: Path, symbol: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from the cubin's notes."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    done = subprocess.run([str(tool), "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True)
    found = re.search(rf"Function {symbol}:\s*REG:(\d+)\s+STACK:(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


if __name__ == "__main__":
    main()
