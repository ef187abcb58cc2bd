"""The kernels of a bundle (see tests/cuda/bundle.py) on a GPU, against what the interpreter gave."""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.cuda.driver import Driver, DriverError

pytestmark = pytest.mark.gpu
BUNDLE = os.environ.get("AOT_GPU_BUNDLE", "")
TOLERANCE = {"f8e5m2": 0.26, "f8e4m3": 0.13, "f16": 4e-3, "bf16": 2e-2, "f32": 4e-5, "f64": 1e-9}


@pytest.mark.skipif(not BUNDLE, reason="AOT_GPU_BUNDLE names no bundle: see tests/cuda/bundle.py")
def test_bundle() -> None:
    with zipfile.ZipFile(BUNDLE) as archive:
        table = json.loads(archive.read("calls.json"))
        code = archive.read("code")
        data = np.load(io.BytesIO(archive.read("data.npz")))
    driver = Driver()
    functions = {}
    for symbol, image in table["images"].items():
        cubin = code[image["offset_bytes"] : image["offset_bytes"] + image["size_bytes"]]
        functions[symbol] = driver.function(cubin, symbol, image["shared_bytes"])
    failures: list[str] = []
    for number, call in enumerate(table["calls"]):
        image = table["images"][call["symbol"]]
        if not all(call["grid"]):
            continue
        contents = [data[f"{number}.{place}"] for place in range(call["operands"])]
        pointers = [driver.memory(content) for content in contents]
        scratch_bytes = image["scratch_bytes"] * math.prod(call["grid"])
        scratch = driver.memory(np.zeros(scratch_bytes, np.uint8)) if scratch_bytes else 0
        wide = image["wide_integers"]
        integers = [(value, bool(wide >> place & 1)) for place, value in enumerate(call["dims"])]
        try:
            grid, shared = call["grid"], image["shared_bytes"]
            driver.launch(functions[call["symbol"]], grid, image["threads"], shared, pointers, integers, scratch)
            driver.synchronize()
        except DriverError as error:
            pytest.fail(f"call {number} ({call['test']}): {error}; {len(failures)} before: {failures[:5]}")
        for output in call["outputs"]:
            place = output["operand"]
            got = driver.read(pointers[place], contents[place].nbytes)
            problem = difference(got, data[f"{number}.{place}.wanted"], output["dtype"], call["is_tf32"])
            if problem:
                failures.append(f"call {number} ({call['test']}) output {place} ({output['dtype']}): {problem}")
        for pointer in (*pointers, scratch):
            if pointer:
                driver.free(pointer)
    print(f"{len(table['calls'])} calls, {len(failures)} wrong")
    assert not failures, "\n".join(failures[:60])


def difference(got: np.ndarray, wanted: np.ndarray, dtype: str, is_tf32: bool) -> str:
    """What differs between two outputs as bytes; empty if nothing that matters."""
    kinds: dict[str, Any] = {
        "bool": "u1", "f16": "f2", "f32": "f4", "f64": "f8", "bf16": ml_dtypes.bfloat16,
        "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
    }  # fmt: skip
    kind = np.dtype(kinds.get(dtype) or f"{dtype[0]}{int(dtype[1:]) // 8}")
    item = kind.itemsize
    size = len(got) // item * item
    left, right = got[:size].view(kind), wanted[:size].view(kind)
    if dtype not in TOLERANCE:
        return "" if np.array_equal(left, right) else f"{np.count_nonzero(left != right)} of {left.size} differ"
    tolerance = TOLERANCE["f16" if is_tf32 else dtype]  # both have 10 bits
    wide_left, wide_right = left.astype(np.float64), right.astype(np.float64)
    # Sums in another order differ by their largest parts, not by what is left of them.
    largest = np.abs(wide_right[np.isfinite(wide_right)]).max(initial=1.0)
    if item == 1:  # one rounding that fell the other way, and nothing beside
        largest = 2 * {"f8e4m3": 2.0**-9, "f8e5m2": 2.0**-16}.get(dtype, 0.0) / tolerance  # of the least numbers
    close = np.isclose(wide_left, wide_right, rtol=tolerance, atol=tolerance * largest, equal_nan=True)
    if close.all():
        return ""
    first = int(np.flatnonzero(~close)[0])
    return (
        f"{np.count_nonzero(~close)} of {left.size}, first at {first}: {wide_left[first]!r}, not {wide_right[first]!r}"
    )
