"""What a run on a GPU costs the host beside the driver's launch call, from C.

    python benchmarks/gpu_host.py build FOLDER    # an artifact with weights; needs Triton, no GPU
    python benchmarks/gpu_host.py run FOLDER      # on the GPU host; needs a C compiler and the aotc wheel

The model is a perceptron of twelve layers at batch 1. Medians of 200 rounds of 20 calls each, which the GPU is waited
for in between; `gpu_host.c` has the loop. The result goes to FOLDER/host.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from gpu_models import TARGET, facts_of_run, half
from torch_definitions import mlp


def build(folder: Path) -> None:
    """Writes FOLDER/host.aot."""
    import aot

    definition = mlp(1)
    with torch.no_grad():
        program = torch.export.export(definition.make().half(), half(definition.inputs(1, 1)), strict=False)
    aot.compile(program, target=TARGET).save(folder / "host.aot")


def run(folder: Path) -> None:
    """Compiles the loop, runs it, and keeps what it found."""
    from aot.runtime._library import library_path, prefix

    library, binary = Path(library_path()), folder / "gpu_host"
    source = Path(__file__).with_suffix(".c")
    options = [f"-I{prefix()}/include", f"-Wl,-rpath,{library.parent.resolve()}", "-ldl"]
    subprocess.run(["cc", "-O2", str(source), str(library), *options, "-o", str(binary)], check=True)
    found = json.loads(subprocess.run([binary, folder / "host.aot"], check=True, capture_output=True, text=True).stdout)
    found["beside the launch us"] = round(found["aot_session_run us"] - found["cuGraphLaunch us"], 2)
    print(found)
    (folder / "host.json").write_text(json.dumps({**facts_of_run(), **found}, indent=1) + "\n")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    (build if chosen.what == "build" else run)(chosen.folder)


if __name__ == "__main__":
    main()
