"""Arrays in the memory of a GPU: results of models that run on one, and inputs for them. Needs no other package.

A `DeviceTensor` owns its memory or shares its owner's. Memory that is given back is kept by the model for the next
result of the same size on the same stream, where the order of the stream makes reuse safe.
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from aot.errors import RunError
from aot.runtime import _library as native
from aot.runtime import _tensors

if TYPE_CHECKING:
    from aot.runtime._model import Model

CUDA = 2  # kDLCUDA
_KEPT_BYTES = 1 << 30  # the most that a model keeps for later results


class Memory:
    """A piece of device memory of a model; it goes back to the pool when nothing refers to it."""

    __slots__ = ("address", "pool", "size_bytes", "stream")

    def __init__(self, pool: Pool, address: int, size_bytes: int, stream: int) -> None:
        self.pool, self.address, self.size_bytes, self.stream = pool, address, size_bytes, stream

    def __del__(self) -> None:
        self.pool.give_back(self)


class Pool:
    """The device memory of a model's results. Every piece holds the model's handle, also after it was closed."""

    def __init__(self, lib: ctypes.CDLL, handle: int) -> None:
        self._lib, self._handle = lib, handle
        self._lock = threading.RLock()  # a collection inside of a call may give memory back
        self._free: dict[tuple[int, int], list[int]] = {}
        self._kept_bytes = 0
        self._closed = False

    def take(self, size_bytes: int, stream: int) -> Memory:
        """Memory for work on a stream. Raises RunError where the device has none left."""
        size_bytes = -(-max(size_bytes, 1) // 256) * 256
        with self._lock:
            kept = self._free.get((size_bytes, stream))
            if kept:
                self._kept_bytes -= size_bytes
                return Memory(self, kept.pop(), size_bytes, stream)
        address, error = ctypes.c_void_p(), native.new_error()
        status = self._lib.aot_device_allocate(self._handle, size_bytes, ctypes.byref(address), ctypes.byref(error))
        if status:
            self._drop_all()
            status = self._lib.aot_device_allocate(self._handle, size_bytes, ctypes.byref(address), ctypes.byref(error))
        if status:
            raise native.exception(status, error)
        return Memory(self, address.value or 0, size_bytes, stream)

    def give_back(self, memory: Memory) -> None:
        """Keeps memory for the next taker, or frees it."""
        with self._lock:
            if not self._closed and self._kept_bytes + memory.size_bytes <= _KEPT_BYTES:
                self._free.setdefault((memory.size_bytes, memory.stream), []).append(memory.address)
                self._kept_bytes += memory.size_bytes
                return
        self._lib.aot_device_free(self._handle, memory.address)

    def copy(self, to: int, source: int, size_bytes: int, stream: int) -> None:
        """Copies between host and device and waits for the stream; with 0 bytes it only waits."""
        error = native.new_error()
        status = self._lib.aot_device_copy(self._handle, to, source, size_bytes, stream, ctypes.byref(error))
        if status:
            raise native.exception(status, error)

    def _drop_all(self) -> None:
        with self._lock:
            for addresses in self._free.values():
                for address in addresses:
                    self._lib.aot_device_free(self._handle, address)
            self._free.clear()
            self._kept_bytes = 0

    def close(self) -> None:
        """Frees what is kept; memory in use follows when it is given back."""
        self._closed = True
        self._drop_all()


class DeviceTensor:
    """A row-major array in device memory, shared without copies by `__dlpack__` and `__cuda_array_interface__`.

    `shape`, `dtype` (such as "f32"), `device` (the GPU's number), `stream` (the CUstream whose work fills it, as an
    int; 0 is the default stream). Results of a run may be read on that stream at once, and elsewhere after
    `synchronize`; `numpy` waits by itself.
    """

    __slots__ = ("_memory", "description", "device", "dtype", "shape", "stream")

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: str, device: int) -> None:
        self._memory, self.shape, self.dtype, self.device, self.stream = memory, shape, dtype, device, memory.stream
        self.description: Any = None  # what the library is told of it, made once: state is given in every run

    @property
    def address(self) -> int:
        """Of the first element, in device memory."""
        return self._memory.address

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count * -(-_tensors.DTYPES[self.dtype][2] // 8)

    def synchronize(self) -> None:
        """Waits for the work that fills the array. Raises RunError where it failed."""
        self._memory.pool.copy(0, 0, 0, self.stream)

    def numpy(self) -> Any:
        """A copy in a new numpy array. Raises RunError where the work that fills it failed."""
        import numpy

        array = numpy.empty(self.shape, _tensors.numpy_dtype(self.dtype))
        self._memory.pool.copy(array.ctypes.data, self.address, array.nbytes, self.stream)
        return array

    to_host = numpy

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = {0: "i", 1: "u", 2: "f", 6: "b"}.get(_tensors.DTYPES[self.dtype][1])
        bits = _tensors.DTYPES[self.dtype][2]
        if kind is None or bits < 8:
            raise AttributeError(f"__cuda_array_interface__ has no element type for {self.dtype}")
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": f"{'|' if bits == 8 else '<'}{kind}{bits // 8}",
            "data": (self.address, False),
            "strides": None,
            "stream": self.stream or 1,  # 1 is the default stream there
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A DLPack capsule. `stream`: the consumer's, as DLPack numbers them; -1: it needs no order."""
        if stream != -1 and (stream if stream not in (None, 1) else 0) != self.stream:
            self.synchronize()
        return _capsule(self)

    def __repr__(self) -> str:
        return f"<DeviceTensor {self.dtype}{list(self.shape)} on device {self.device}>"


def from_host(pool: Pool, array: Any, device: int, stream: int) -> DeviceTensor:
    """A copy of a row-major numpy array in device memory."""
    import numpy

    array = numpy.asarray(array, order="C")
    dtype = next((name for name, row in _tensors.DTYPES.items() if row[0] == array.dtype.name), None)
    if dtype is None:
        raise RunError(f"no element type for numpy dtype {array.dtype}", hint="Convert the array to a numeric dtype.")
    tensor = DeviceTensor(pool.take(array.nbytes, stream), array.shape, dtype, device)
    pool.copy(tensor.address, array.ctypes.data, array.nbytes, stream)
    return tensor


def stream_address(stream: Any) -> int:
    """The CUstream of what a caller gives: None, an int, or an object of torch, CuPy or the CUDA bindings."""
    if stream is None:
        return 0
    if isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        found = stream.__cuda_stream__
        return int((found() if callable(found) else found)[1])
    for name in ("cuda_stream", "ptr"):  # torch, CuPy
        if isinstance(getattr(stream, name, None), int):
            return int(getattr(stream, name))
    raise RunError(
        f"expected a stream, got {type(stream).__name__}",
        hint="Give its address as an int, or an object with cuda_stream or __cuda_stream__.",
    )


def results(model: Model, shapes: list[tuple[int, ...] | None], stream: int) -> list[DeviceTensor | None]:
    """New device memory for every output of a model whose shape is known."""
    pool, device = model.device_pool(), model.device
    found: list[DeviceTensor | None] = []
    for spec, shape in zip(model.outputs, shapes, strict=True):
        if shape is None:
            found.append(None)
            continue
        size_bytes = -(-_tensors.DTYPES[spec.dtype][2] // 8)
        for extent in shape:
            size_bytes *= extent
        found.append(DeviceTensor(pool.take(size_bytes, stream), shape, spec.dtype, device or 0))
    return found


# ---- DLPack capsules: a DLManagedTensor in ctypes, kept here until its deleter runs ----


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", native.Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


_held: dict[int, Any] = {}
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
# By address: the capsule is being destroyed, so it must get no new reference.
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _forget(managed: int) -> None:
    _held.pop(managed, None)


def _forget_capsule(capsule: int) -> None:
    if _is_valid(capsule, b"dltensor"):  # nobody took what is in it
        _held.pop(_pointer(capsule, b"dltensor"), None)


_delete = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_forget)
_drop_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_forget_capsule)


def _capsule(tensor: DeviceTensor) -> Any:
    view = _tensors.device_view(tensor)
    managed = _Managed(native.Tensor.from_address(view.address), None, ctypes.cast(_delete, ctypes.c_void_p))
    address = ctypes.addressof(managed)
    _held[address] = (managed, view, tensor)
    return _new_capsule(address, b"dltensor", ctypes.cast(_drop_capsule, ctypes.c_void_p))
