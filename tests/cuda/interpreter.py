"""Runs the text of a CUDA kernel under Triton's interpreter, on numpy arrays laid out as the kernel's types say."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from triton.runtime import interpreter

from aot import dims as dimension
from aot import recipe
from aot.backend.base import Emitted
from aot.backend.cuda.compile import module_text
from aot.dtypes import BF16, F8E4M3, F8E5M2, from_numpy
from aot.ir import TensorType, const_of
from aot.kernel import Kernel
from aot.program import Source
from tests.backend.harness import Storage

_NATIVE_DOT = interpreter.InterpreterBuilder.create_dot


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """tl.dot of bf16 and of floats of 8 bits, which the interpreter holds as bits."""
    import triton.language as tl

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar in _float8():
            return interpreter.TensorHandle(handle.data.view(_float8()[handle.dtype.scalar]).astype("f4"), tl.float32)
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = handle.data.astype(np.uint32) << 16
        return interpreter.TensorHandle(bits.view(np.float32), tl.float32)

    return _NATIVE_DOT(self, widened(a), widened(b), d, input_precision, max_num_imprecise_acc)


interpreter.InterpreterBuilder.create_dot = _dot


def _float8() -> dict[Any, np.dtype[Any]]:
    import triton.language as tl

    return {tl.float8e4nv: F8E4M3.numpy, tl.float8e5: F8E5M2.numpy}


_NATIVE_CONVERT = interpreter._convert_float


def _convert(data: Any, source: Any, target: Any, rounding: Any) -> Any:
    """f32 to bf16, which the interpreter cuts off where a GPU rounds; 8 bits as a GPU has them, NaN among them."""
    import triton.language as tl

    if source in _float8():
        return np.asarray(data).view(_float8()[source]).astype(_np(target)).view(f"u{_np(target).itemsize}")
    if target == tl.float8e4nv:  # the instruction's result is never beyond the largest number
        with np.errstate(all="ignore"):
            bounded = np.clip(np.asarray(data).view(_np(source)).astype("f4"), -448, 448)
        return bounded.astype(F8E4M3.numpy).view(np.uint8)

    if (source, target, rounding) == (tl.float32, tl.bfloat16, None):
        with np.errstate(all="ignore"):
            return np.asarray(data).view(np.float32).astype(BF16.numpy).view(np.uint16)
    return _NATIVE_CONVERT(data, source, target, rounding)


def _np(dtype: Any) -> np.dtype[Any]:
    found: np.dtype[Any] = np.dtype(interpreter._get_np_dtype(dtype))
    return found


interpreter._convert_float = _convert
_FOLDER = Path(tempfile.mkdtemp(prefix="aot-triton-"))
_LOADED: dict[str, Any] = {}


def load(source: str) -> Any:
    """The kernel of a text."""
    if source not in _LOADED:
        name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:20]}"
        path = _FOLDER / f"{name}.py"
        path.write_text(module_text(source))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        _LOADED[source] = module.KERNEL
    return _LOADED[source]


def laid_out(
    kernel: Kernel, emitted: Emitted, inputs: Sequence[np.ndarray], symbols: Mapping[str, int]
) -> list[Storage]:
    """The inputs in memory as the kernel's types say, or packed as it asks."""
    storages = []
    for number, (operand, array) in enumerate(zip(kernel.inputs, inputs, strict=True)):
        packed = emitted.packed.get(number)
        if packed is not None:
            steps = (recipe.source(0), *packed.recipe)
            made = recipe.run(steps, [Source("w", const_of(np.ascontiguousarray(array)))])
            assert made.shape == packed.shape and from_numpy(made.dtype).number == packed.dtype
            storage = Storage(TensorType(operand.type.dtype, packed.shape), symbols)
            storage.logical[...] = made
            storages.append(storage)
            continue
        storage = Storage(operand.type, symbols)
        if 0 not in storage.shape:
            storage.with_halo()[...] = 0
            storage.logical[...] = array
        storages.append(storage)
    return storages


def blank(kernel: Kernel, symbols: Mapping[str, int]) -> list[Storage]:
    """Poisoned memory for the outputs."""
    return [Storage(operand.type, symbols, 0xFF) for operand in kernel.outputs]


def run(
    kernel: Kernel, emitted: Emitted, inputs: Sequence[np.ndarray], symbols: Mapping[str, int] | None = None
) -> list[np.ndarray]:
    """The kernel's outputs. Nothing outside of the operands may be written, and no input."""
    import torch

    symbols = symbols or {}
    storages = laid_out(kernel, emitted, inputs, symbols)
    before = [storage.all.copy() for storage in storages]
    outputs = blank(kernel, symbols)
    pointers = []
    for operand, storage in zip((*kernel.inputs, *kernel.outputs), (*storages, *outputs), strict=True):
        item = operand.type.dtype.itemsize_bytes
        whole = torch.from_numpy(storage.bytes[: len(storage.bytes) // item * item])
        pointers.append(whole.view(getattr(torch, _TORCH.get(operand.type.dtype.name, operand.type.dtype.name))))
    numbers = [dimension.evaluate(d, symbols) for d in emitted.dims]
    assert emitted.grid
    grid = tuple(dimension.evaluate(d, symbols) for d in emitted.grid)
    if all(grid):
        with np.errstate(all="ignore"):
            load(emitted.source)[grid](*pointers, *numbers, PROGRAMMATIC=False)
    for storage, old in zip(storages, before, strict=True):
        assert np.array_equal(storage.all, old), "an input was written"
    for storage in outputs:
        storage.check_guards()
    return [storage.logical.copy() for storage in outputs]


_TORCH = {
    "bool": "uint8", "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64", "u8": "uint8", "u16": "uint16",
    "u32": "uint32", "u64": "uint64", "f8e4m3": "uint8", "f8e5m2": "uint8", "f16": "float16", "bf16": "bfloat16",
    "f32": "float32", "f64": "float64",
}  # fmt: skip
