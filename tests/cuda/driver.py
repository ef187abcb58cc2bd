"""The few functions of the CUDA driver that tests on a GPU need, through ctypes: memory, modules, launches, time."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np


class DriverError(RuntimeError):
    """A call of the driver that failed."""


class Driver:
    """One GPU's primary context, made current."""

    def __init__(self, ordinal: int = 0) -> None:
        self.library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        """Calls a function; raises DriverError with the driver's name of the error."""
        code = getattr(self.library, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.library.cuGetErrorName(code, ctypes.byref(text))
            raise DriverError(f"{name}: {text.value.decode() if text.value else code}")

    def memory(self, content: np.ndarray) -> int:
        """Device memory with these bytes; its address."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(content.nbytes, 1)))
        if content.nbytes:
            plain = np.ascontiguousarray(content)
            self.call("cuMemcpyHtoD_v2", address, ctypes.c_void_p(plain.ctypes.data), ctypes.c_size_t(plain.nbytes))
        return address.value

    def read(self, address: int, size_bytes: int) -> np.ndarray:
        """Bytes of device memory."""
        found = np.empty(size_bytes, np.uint8)
        if size_bytes:
            place = ctypes.c_void_p(found.ctypes.data)
            self.call("cuMemcpyDtoH_v2", place, ctypes.c_uint64(address), ctypes.c_size_t(size_bytes))
        return found

    def free(self, address: int) -> None:
        """Gives device memory back."""
        self.call("cuMemFree_v2", ctypes.c_uint64(address))

    def function(self, image: bytes, symbol: str, shared_bytes: int) -> ctypes.c_void_p:
        """A kernel of a cubin."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, symbol.encode())
        if shared_bytes > 48 << 10:
            self.call("cuFuncSetAttribute", function, 8, ctypes.c_int(shared_bytes))
        return function

    def launch(
        self, function: ctypes.c_void_p, grid: Sequence[int], threads: int, shared_bytes: int,
        pointers: Sequence[int], integers: Sequence[tuple[int, bool]], scratch: int = 0,
    ) -> None:  # fmt: skip
        """Launches on the default stream; `integers` are (value, whether it has 64 bits)."""
        values: list[Any] = [ctypes.c_uint64(pointer) for pointer in pointers]
        values += [(ctypes.c_int64 if wide else ctypes.c_int32)(value) for value, wide in integers]
        values += [ctypes.c_uint64(scratch), ctypes.c_uint64(0)]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        size = ctypes.c_uint(shared_bytes)
        self.call("cuLaunchKernel", function, *map(ctypes.c_uint, grid), threads, 1, 1, size, None, places, None)

    def synchronize(self) -> None:
        """Waits for everything."""
        self.call("cuCtxSynchronize")
