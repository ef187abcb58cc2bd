"""A process that compiles Triton texts: reads a request file, writes a cubin or PTX and its facts for each kernel."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from aot.backend.cuda.compile import assembler, header_of, module_text
from aot.backend.cuda.ptx import overlapped, unpacked

MOST_WARPS = 16
"""Up to which a kernel whose registers do not suffice is compiled again, for twice as many threads."""

REGISTERS = 65536
"""Of a multiprocessor, of every architecture from Ampere to Blackwell."""

PLAIN_CAPABILITY = 80
"""What kernels that stay text are lowered for: above it Triton uses instructions of single architectures."""


def main() -> None:
    """Serves the request named on the command line."""
    request = json.loads(Path(sys.argv[1]).read_text())
    for kernel in request["kernels"]:
        path = Path(kernel["path"])
        facts = compile_one(kernel["symbol"], kernel["source"], path, request)
        path.with_suffix(".json").write_text(json.dumps(facts, sort_keys=True))


def compile_one(symbol: str, source: str, path: Path, request: dict[str, Any]) -> dict[str, int]:
    """Writes the cubin or PTX of one kernel at `path`; returns what its launch needs (the fields of Image).

    A kernel whose registers spill gets more threads, each with a smaller part of the same blocks, and if possible no
    more registers than let as many of them share a multiprocessor as before: while one waits or stores, another works.
    """
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
    is_text = bool(request["ptx"])
    facts: dict[str, int] = {}
    attempts = [(header["warps"], header["blocks"])]
    for warps, blocks in attempts:
        triton.knobs.runtime.add_stages_inspection_hook = _stages(request["capability"], is_text, blocks)
        compiled = triton.compile(
            ASTSource(
                fn=function,
                signature=signature,
                constexprs={(len(kinds),): request["programmatic"]},
                attrs={(number,): [["tt.divisibility", 16]] for number in multiples},
            ),
            target=GPUTarget("cuda", PLAIN_CAPABILITY if is_text else request["capability"], 32),
            options={
                "num_warps": warps,
                "num_stages": header["stages"],
                "enable_fp_fusion": not request["exact"],
                "launch_pdl": request["programmatic"],
                **({"ptx_version": request["ptx"]} if is_text else {}),
            },
        )
        attempt = path.with_suffix(".attempt")
        attempt.write_bytes(compiled.asm["cubin"])
        cubin = _assembled(attempt, request["capability"]) if is_text else attempt
        registers, spilled = _resources(cubin, symbol)
        metadata = compiled.metadata
        if not facts or spilled < facts["spilled_bytes"]:
            attempt.replace(path)
            facts = {
                "threads": 32 * metadata.num_warps,
                "shared_bytes": metadata.shared,
                "scratch_bytes": metadata.global_scratch_size,
                "wide_integers": sum(1 << number for number, kind in enumerate(header["integers"]) if kind == "i64"),
                "registers": registers,
                "spilled_bytes": spilled,
                "is_heavy": header["heavy"],
            }
        if not facts["spilled_bytes"]:
            break
        if blocks > 1:
            attempts.append((warps, 0))
        elif 2 * warps <= MOST_WARPS:
            together = min(REGISTERS // (32 * warps * registers), request["shared_bytes"] // max(metadata.shared, 1))
            attempts.append((2 * warps, together if together > 1 else 0))
    return facts


def _stages(capability: int, is_text: bool, blocks: int) -> Any:
    """A hook for Triton's stages: its PTX is `unpacked` and `overlapped`; a text is for a capability and all above it.

    `blocks`: of the kernel that are to fit a multiprocessor; 0: the assembler's choice.
    """

    def hook(*given: Any) -> Any:
        if not given:  # what Triton's own cache has to know
            key = f"rewritten {capability} {is_text} {blocks}"
            return key, key
        backend, stages, options = given[:3]
        plain = stages["ptx"]

        def text(source: Any, metadata: Any) -> str:
            if is_text:
                made = re.sub(
                    r"(?m)^\.target sm_\w+", f".target sm_{capability}",
                    backend.make_ptx(source, metadata, options, capability),
                )  # fmt: skip
            else:
                made = plain(source, metadata)
            if blocks:
                made = re.sub(r"(?m)^(\.reqntid .*)$", rf"\1\n.minnctapersm {blocks}", made)
            return overlapped(unpacked(made))

        stages["ptx"] = text
        if is_text:
            stages["cubin"] = lambda source, metadata: source.encode()
        return None

    return hook


def _assembled(path: Path, capability: int) -> Path:
    """A cubin of a text, as a driver would make it: whether it is valid, and what it needs."""
    cubin = path.with_suffix(".cubin")
    subprocess.run([str(assembler()), f"-arch=sm_{capability}", str(path), "-o", str(cubin)], check=True)
    return cubin


def _tool(name: str) -> Path:
    import triton

    return Path(triton.__file__).parent / "backends/nvidia/bin" / name


def _resources(path: Path, symbol: str) -> tuple[int, int]:
    """Registers and spilled bytes of a thread, from the cubin's notes."""
    done = subprocess.run(
        [str(_tool("cuobjdump")), "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True
    )
    found = re.search(rf"Function {symbol}:\s*REG:(\d+)\s+STACK:(\d+)", done.stdout)
    return (int(found[1]), int(found[2])) if found else (0, 0)


if __name__ == "__main__":
    main()
