"""Arrays of other packages as aot_tensor structs, without copies, and numpy arrays for outputs.

A `View` keeps alive what its struct points to. Strides are passed on as they are: the library says
which dimension is not row-major.
"""

from __future__ import annotations

import ctypes
from math import isfinite
from typing import Any

from aot.errors import GuardError, RunError
from aot.runtime._library import Tensor

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype = ctypes.c_void_p
_get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_get_name = ctypes.pythonapi.PyCapsule_GetName
_get_name.restype = ctypes.c_char_p
_get_name.argtypes = (ctypes.py_object,)

# Where DLTensor starts: first in DLManagedTensor, behind version, context, deleter and flags in the versioned one.
_TENSOR_OFFSET = {b"dltensor": 0, b"dltensor_versioned": 32}

# name -> (numpy name, DLPack code, bits)
DTYPES = {
    "bool": ("bool", 6, 8),
    "i8": ("int8", 0, 8),
    "i16": ("int16", 0, 16),
    "i32": ("int32", 0, 32),
    "i64": ("int64", 0, 64),
    "u8": ("uint8", 1, 8),
    "u16": ("uint16", 1, 16),
    "u32": ("uint32", 1, 32),
    "u64": ("uint64", 1, 64),
    "f16": ("float16", 2, 16),
    "bf16": ("bfloat16", 4, 16),
    "f32": ("float32", 2, 32),
    "f64": ("float64", 2, 64),
    "f8e4m3": ("float8_e4m3fn", 10, 8),
    "f8e5m2": ("float8_e5m2", 12, 8),
    "i4": ("int4", 0, 4),
    "u4": ("uint4", 1, 4),
}
_OF_NUMPY = frozenset(name for name in DTYPES if name not in ("bf16", "f8e4m3", "f8e5m2", "i4", "u4"))
_BY_NUMPY = {numpy_name: (code, bits) for numpy_name, code, bits in DTYPES.values()}


class View:
    """The address of an aot_tensor, and what must live as long."""

    __slots__ = ("address", "keep", "shape")

    def __init__(self, address: int, shape: tuple[int, ...], keep: Any) -> None:
        self.address = address
        self.shape = shape
        self.keep = keep

    @property
    def is_on_device(self) -> bool:
        """Whether it is in a GPU's memory."""
        return Tensor.from_address(self.address).device_type in (2, 13)

    @property
    def has_memory(self) -> bool:
        """Whether the struct points to anything: arrays without elements may not."""
        return bool(Tensor.from_address(self.address).data)

    def element(self) -> bytes:
        """The bytes of the first element; none where it is not in CPU memory or there is none."""
        tensor = Tensor.from_address(self.address)
        if tensor.device_type != 1 or not tensor.data or 0 in self.shape:
            return b""
        return ctypes.string_at(tensor.data + tensor.byte_offset, -(-tensor.dtype_bits // 8))


def view(name: str, array: Any, *, writable: bool = False, stream: int | None = None, device: int = 0) -> View:
    """A view of a numpy array, a torch tensor, or anything with __dlpack__ or __cuda_array_interface__.

    `name` is for messages. `stream`: the CUstream that will use the array, where it is in device memory; `device`: the
    GPU of arrays that do not say theirs.
    """
    module = type(array).__module__
    if module == "aot.runtime._device":
        if stream is not None and array.stream != stream:
            array.synchronize()
        return device_view(array)
    if module == "numpy" and hasattr(array, "__array_finalize__"):  # an array, not a scalar
        return _numpy_view(name, array, writable)
    if module.startswith("numpy.") and hasattr(array, "__array_finalize__"):
        if module.startswith("numpy.ma") and bool(array.mask.any()):
            raise GuardError("some elements are masked", where=name, hint="Say what they are: array.filled(value).")
        return _numpy_view(name, array, writable)
    if module == "torch" or module.startswith("torch."):
        return _torch_view(name, array)
    if hasattr(array, "__dlpack__"):
        # Of a GPU's array, its owner makes our stream wait for whatever fills it. DLPack calls the default stream 1.
        on_device = hasattr(array, "__dlpack_device__") and int(array.__dlpack_device__()[0]) in (2, 13)
        capsule = array.__dlpack__(stream=stream or 1) if on_device else array.__dlpack__()
        address = _address(capsule)
        tensor = Tensor.from_address(address)
        return View(address, tuple(tensor.shape[i] for i in range(tensor.rank)), (capsule, array))
    if hasattr(array, "__cuda_array_interface__"):
        return _cuda_view(name, array, writable, stream, device)
    if hasattr(array, "__array__") and not writable:
        import numpy

        return _numpy_view(name, numpy.asarray(array), writable)
    raise GuardError(
        f"expected a numpy array, a torch tensor or another array with __dlpack__, got {type(array).__name__}",
        where=name,
        hint="Wrap the values with numpy.asarray(values, dtype).",
    )


def of_number(name: str, value: Any, dtype: str, shape: tuple[int | str, ...]) -> Any:
    """A number of Python as the array of an input of one element, rounded to a float type.

    Raises GuardError where it does not fit: of another kind, outside of the type's range.
    """
    import numpy

    kinds = {"bool": (bool,), "i": (int,), "u": (int,)}.get(dtype if dtype == "bool" else dtype[0], (int, float))
    fits = all(extent == 1 for extent in shape) and type(value) in kinds
    if fits and dtype[0] in "iu":
        bits, is_signed = int(dtype[1:]), dtype[0] == "i"
        fits = -(1 << (bits - 1)) * is_signed <= value < 1 << (bits - is_signed)
    elif fits:
        fits = abs(value) < 1 << 1000 or type(value) is float
    if fits:
        with numpy.errstate(over="ignore"):
            made: Any = numpy.full(1, value, numpy_dtype(dtype)).reshape(shape)
        fits = bool(numpy.isfinite(made).all()) or not isfinite(value)
    if not fits:
        raise GuardError(
            f"expected {dtype} {list(shape)}, got the number {value!r}",
            where=name,
            hint="Give an array of that type and shape, such as numpy.asarray makes; one element may be a number.",
        )
    return made


def device_view(array: Any) -> View:
    """A view of a DeviceTensor."""
    if array.description is None:
        _, code, bits = DTYPES[array.dtype]
        strides, step = [], 1
        for extent in reversed(array.shape):
            strides.append(step)
            step *= extent
        made = _filled(array.address, 2, array.device, code, bits, array.shape, tuple(reversed(strides)), None)
        array.description = made.address, made.keep
    address, parts = array.description
    return View(address, array.shape, (parts, array))


def _cuda_view(name: str, array: Any, writable: bool, stream: int | None, device: int) -> View:
    """Of an array with version 2 or 3 of __cuda_array_interface__, as Numba and JAX have it."""
    interface = array.__cuda_array_interface__
    typestr, shape = str(interface["typestr"]), tuple(int(extent) for extent in interface["shape"])
    code = {"i": 0, "u": 1, "f": 2, "b": 6}.get(typestr[1:2])
    if code is None or typestr[0] == ">" or interface.get("mask") is not None:
        raise GuardError(f"no element type for {typestr}", where=name, hint="Convert the array to a numeric dtype.")
    address, is_read_only = interface["data"]
    if writable and is_read_only:
        raise GuardError("the output array is read-only", where=name, hint="Give an array that can be written to.")
    if interface.get("stream") not in (None, stream or 1) and hasattr(array, "synchronize"):
        array.synchronize()
    item = int(typestr[2:])
    strides = interface.get("strides")
    if strides is None:
        steps = [item]
        for extent in reversed(shape[1:]):
            steps.append(steps[-1] * extent)
        strides = tuple(reversed(steps)) if shape else ()
    if any(stride % item for stride in strides):
        raise GuardError("strides are not whole elements", where=name, hint="Make the array contiguous first.")
    elements = tuple(stride // item for stride in strides)
    own = getattr(getattr(array, "device", None), "id", getattr(array, "device", None))
    ordinal = own if isinstance(own, int) else device
    return _filled(int(address or 0), 2, ordinal, code, 8 * item, shape, elements, array)


def _address(capsule: Any) -> int:
    name = _get_name(capsule)
    if name not in _TENSOR_OFFSET:
        raise GuardError(f"unknown kind of DLPack capsule {name!r}")
    return int(_get_pointer(capsule, name)) + _TENSOR_OFFSET[name]


def _numpy_view(name: str, array: Any, writable: bool) -> View:
    if array.dtype.kind == "c":
        raise _no_element_type(name, array.dtype)
    try:
        capsule = array.__dlpack__()  # ten times faster than reading its attributes
        return View(_get_pointer(capsule, b"dltensor"), array.shape, capsule)
    except (BufferError, AttributeError, RuntimeError, TypeError, ValueError):
        pass  # read-only, or an element type that numpy's DLPack does not know
    if writable and not array.flags.writeable:
        raise GuardError("the output array is read-only", where=name, hint="Give an array that can be written to.")
    numpy_dtype = array.dtype
    if numpy_dtype.name not in _BY_NUMPY or not numpy_dtype.isnative:
        raise _no_element_type(name, numpy_dtype)
    code, bits = _BY_NUMPY[numpy_dtype.name]
    item = numpy_dtype.itemsize
    if any(stride % item for stride in array.strides):
        raise GuardError("strides are not whole elements", where=name, hint="Make the array contiguous first.")
    strides = tuple(stride // item for stride in array.strides)
    return _filled(array.ctypes.data, 1, 0, code, bits, array.shape, strides, array)


def _no_element_type(name: str, numpy_dtype: Any) -> GuardError:
    """The error for an array whose elements no artifact takes, with how to make one that it may take."""
    message, kind = f"no element type for numpy dtype {numpy_dtype}", numpy_dtype.kind
    if numpy_dtype.names:
        hint = f"Give one field, made contiguous: numpy.ascontiguousarray(array[{numpy_dtype.names[0]!r}])."
    elif kind == "O":
        hint = "It holds Python objects: array.astype('float32'), or the input's type, where they are numbers."
    elif kind in "SUT":
        message += ", which is text"
        hint = "Convert texts to numbers first: tokens, or array.astype('float32') where they are written numbers."
    elif kind in "mM":
        hint = "Times are numbers of a unit: array.astype('int64')."
    elif kind == "c":
        hint = "Give its parts as a last axis of 2: numpy.stack([array.real, array.imag], -1)."
    elif not numpy_dtype.isnative and numpy_dtype.newbyteorder("<").name in _BY_NUMPY:
        message += ": its bytes are in big-endian order, expected little-endian"
        hint = f"Convert it: array.astype({numpy_dtype.newbyteorder('<').str!r})."
    else:
        hint = "Convert the array to the input's type: array.astype('float32')."
    return GuardError(message, where=name, hint=hint)


def _torch_view(name: str, tensor: Any) -> View:
    if not hasattr(tensor, "data_ptr"):
        raise GuardError(f"expected a tensor, got {type(tensor).__name__}", where=name)
    if tensor.is_nested:
        raise GuardError(
            "expected a dense tensor, got a nested one", where=name, hint="Call to_padded_tensor(0) first."
        )
    element = _TORCH_KINDS.get((tensor.dtype, tensor.layout))
    code, bits = _torch_kind(name, tensor) if element is None else element
    if tensor.is_neg() or tensor.is_conj():
        raise GuardError("the tensor's negation is pending", where=name, hint="Call resolve_neg() first.")
    place = tensor.device
    kind = _TORCH_DEVICES.get(place.type)
    if kind is None or type(tensor).__name__ == "FakeTensor":
        empty = place.type == "meta" or kind is not None
        raise GuardError(
            f"expected a tensor in the memory of a CPU or a CUDA device, got one on {place.type!r}"
            + (", which has no data" if place.type == "meta" else " that is fake and has no data" if empty else ""),
            where=name,
            hint="Make a tensor with data." if empty else "Copy it to the CPU: tensor.cpu().",
        )
    # Filled by hand: `tensor.__dlpack__()` takes four times as long, and refuses tensors that want gradients.
    return _filled(
        tensor.data_ptr(), kind, place.index or 0, code, bits, tuple(tensor.shape),
        tensor.stride(), tensor,
    )  # fmt: skip


_TORCH_DEVICES = {"cpu": 1, "cuda": 2}  # DLPack's numbers of the devices whose memory torch gives addresses in
_TORCH_KINDS: dict[tuple[Any, Any], tuple[int, int]] = {}  # by dtype and layout, whose names take a microsecond to make


def _torch_kind(name: str, tensor: Any) -> tuple[int, int]:
    """DLPack's code and bits of a torch tensor's elements. Raises GuardError for one that is not dense, or has none."""
    dtype, layout = (str(word).removeprefix("torch.") for word in (tensor.dtype, tensor.layout))
    if dtype not in _BY_NUMPY:
        raise GuardError(f"no element type for {tensor.dtype}", where=name, hint="Convert the tensor first.")
    if layout != "strided":
        raise GuardError(
            f"expected a dense tensor, got one of layout {layout}", where=name, hint="Call to_dense() first."
        )
    _TORCH_KINDS[tensor.dtype, tensor.layout] = kind = _BY_NUMPY[dtype]
    return kind


def _filled(
    data: int,
    device_type: int,
    device_id: int,
    code: int,
    bits: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    owner: Any,
) -> View:
    rank = len(shape)
    extents = (ctypes.c_int64 * (2 * rank))(*shape, *strides)
    tensor = Tensor(data, device_type, device_id, rank, code, bits, 1)
    pointer = ctypes.cast(extents, ctypes.POINTER(ctypes.c_int64))
    tensor.shape = pointer
    tensor.strides = ctypes.cast(ctypes.addressof(extents) + 8 * rank, ctypes.POINTER(ctypes.c_int64))
    return View(ctypes.addressof(tensor), shape, (tensor, extents, owner))


def type_name(tensor: Tensor) -> str:
    """The name of a tensor's element type, such as "f32"."""
    found = (name for name, (_, code, bits) in DTYPES.items() if (code, bits) == (tensor.dtype_code, tensor.dtype_bits))
    return next(found, "an unknown element type")


def conversion(wanted: str, found: str) -> str:
    """How numpy makes an array of an element type, for a hint: `wanted` and `found` are names such as "f32"."""
    if wanted not in DTYPES:
        return ""
    numpy_name = DTYPES[wanted][0]
    dtype = f"'{numpy_name}'" if wanted in _OF_NUMPY else f"ml_dtypes.{numpy_name}"
    may_be_bits = wanted in ("f16", "bf16") and found in ("i16", "u16")
    return f"In numpy: array.astype({dtype})" + (f", or array.view({dtype}) of its bits." if may_be_bits else ".")


def copy_into(name: str, to: View, source: Tensor) -> None:
    """Copies a row-major tensor in CPU memory into an output that the caller gave, which must fit it."""
    target = Tensor.from_address(to.address)
    shape = tuple(source.shape[axis] for axis in range(source.rank))
    if to.shape != shape:
        raise GuardError(
            f"expected shape {list(shape)}, got {list(to.shape)}",
            where=name,
            hint="The shape depends on what the inputs hold: leave it out of `outputs` to get a new array.",
        )
    if type_name(target) != type_name(source):
        raise GuardError(
            f"expected element type {type_name(source)}, got {type_name(target)}",
            where=name,
            hint="Give an array of that element type.",
        )
    if target.device_type != 1:
        raise GuardError("expected an array in CPU memory", where=name, hint="Leave it out and copy the result.")
    if 0 in shape:
        return
    step = 1
    for axis in reversed(range(len(shape))):
        if target.strides and shape[axis] != 1 and target.strides[axis] != step:
            raise GuardError("the array is not row-major", where=name, hint="Make the array contiguous first.")
        step *= shape[axis]
    size_bytes = step * source.dtype_bits // 8
    ctypes.memmove(target.data + target.byte_offset, source.data + source.byte_offset, size_bytes)


def numpy_dtype(name: str) -> Any:
    """The numpy dtype of an element type; from ml_dtypes where numpy has none."""
    import numpy

    numpy_name = DTYPES[name][0]
    try:
        return numpy.dtype(numpy_name)
    except TypeError:
        try:
            import ml_dtypes
        except ImportError as error:
            raise RunError(
                f"numpy has no element type for {name}",
                hint="Install ml_dtypes, or pass outputs of another package.",
            ) from error
        return numpy.dtype(getattr(ml_dtypes, numpy_name))
