"""Builds the digit classifier beside this file, loads what was built, and measures it on held-out images.

    python docs/digits/run.py [ARTIFACT]

Uses nothing but the public API and numpy. ARTIFACT (default digits.aot) is the file that is written. The exit status
is 0 only if the logits agree with those that ONNX Runtime gave for the same images (test.npz keeps them).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from statistics import median

import numpy as np

import aot

HERE = Path(__file__).parent
BATCH_IMAGES = 32
RELATIVE_TOLERANCE = 1e-3
ABSOLUTE_TOLERANCE = 1e-4
TIMED_PASSES = 20


def main(arguments: list[str]) -> int:
    artifact_path = Path(arguments[0] if arguments else "digits.aot")
    model_path = HERE / "digits.onnx"
    with np.load(HERE / "test.npz") as test:
        images, labels, expected = test["images"], test["labels"], test["logits"]

    start = time.perf_counter()
    aot.compile(model_path, target="cpu").save(artifact_path)
    build_s = time.perf_counter() - start

    start = time.perf_counter()
    model = aot.load(artifact_path)
    load_ms = (time.perf_counter() - start) * 1e3

    # The last batch is smaller than the others: the artifact serves every batch size.
    batches = [images[i : i + BATCH_IMAGES] for i in range(0, len(images), BATCH_IMAGES)]
    logits = np.concatenate([np.array(model.run({"image": batch})["logits"]) for batch in batches])

    times_us = []
    for _ in range(TIMED_PASSES):
        for batch in batches[:-1]:
            start = time.perf_counter()
            model.run({"image": batch})
            times_us.append((time.perf_counter() - start) * 1e6)

    correct = int((logits.argmax(1) == labels).sum())
    same_answer = int((logits.argmax(1) == expected.argmax(1)).sum())
    largest_difference = float(np.abs(logits - expected).max())
    agrees = np.allclose(logits, expected, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE)

    total = len(labels)
    rows = {
        "model": f"{model_path.name}, {model_path.stat().st_size / 1e3:.1f} KB",
        "artifact": f"{artifact_path}, {artifact_path.stat().st_size / 1e3:.1f} KB",
        "build": f"{build_s:.1f} s",
        "load": f"{load_ms:.2f} ms",
        "accuracy": f"{correct / total:.2%} ({correct} of {total} held-out images)",
        "agreement": f"{same_answer} of {total} answers as ONNX Runtime's, logits within {largest_difference:.1e}",
        "time": f"{median(times_us):.0f} us per batch of {BATCH_IMAGES} (median of {len(times_us)})",
    }
    for name, value in rows.items():
        print(f"{name:<10} {value}")
    if not agrees:
        print(
            f"error: the logits differ from ONNX Runtime's by more than rtol {RELATIVE_TOLERANCE:g}, "
            f"atol {ABSOLUTE_TOLERANCE:g}",
            file=sys.stderr,
        )
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
