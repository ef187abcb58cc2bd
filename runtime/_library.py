"""Loads libaot_runtime and declares the functions of aot/runtime.h. Turns its errors into exceptions.

Imports nothing but the standard library and aot.errors, so that a serving process starts fast.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from aot.errors import AotError, ArtifactError, GuardError, RunError, TargetError

if TYPE_CHECKING:
    from pathlib import Path

ABI_VERSION = 1

_U32, _I32, _U64, _I64 = ctypes.c_uint32, ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64
_POINTER, _TEXT = ctypes.c_void_p, ctypes.c_char_p


class Tensor(ctypes.Structure):
    """aot_tensor, laid out like DLPack's DLTensor."""

    _fields_ = (
        ("data", _POINTER),
        ("device_type", _I32),
        ("device_id", _I32),
        ("rank", _I32),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(_I64)),
        ("strides", ctypes.POINTER(_I64)),
        ("byte_offset", _U64),
    )


class Error(ctypes.Structure):
    """aot_error"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("status", _I32),
        ("reason", _I32),
        ("where", ctypes.c_char * 160),
        ("message", ctypes.c_char * 512),
        ("hint", ctypes.c_char * 256),
    )


class NamedTensor(ctypes.Structure):
    """aot_named_tensor"""

    _fields_ = (("name", _TEXT), ("tensor", ctypes.POINTER(Tensor)))


class LoadOptions(ctypes.Structure):
    """aot_load_options"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("allocator", _POINTER),
        ("target", _TEXT),
        ("flags", _U32),
        ("weight_count", _U32),
        ("weights", ctypes.POINTER(NamedTensor)),
        ("weights_path", _TEXT),
        ("temporary_directory", _TEXT),
        ("device", _I32),
        ("reserved", _I32),
        ("context", _POINTER),
        ("trusted_keys", ctypes.c_char_p),
        ("trusted_key_count", _U32),
        ("reserved2", _U32),
    )


class StatisticsInfo(ctypes.Structure):
    """aot_statistics"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("sessions", _U64),
        ("run_ns", _U64),
        ("by_status", _U64 * 16),
        ("by_reason", _U64 * 64),
    )


class ProgramInfo(ctypes.Structure):
    """aot_program_info"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("target", _TEXT),
        ("variant", _TEXT),
        ("planner", _TEXT),
        ("supported", _I32),
        ("selected", _I32),
        ("kernel_count", _U32),
        ("step_count", _U32),
        ("code_bytes", _U64),
        ("reason", _TEXT),
        ("host_step_count", _U32),
        ("reserved", _U32),
    )


class PortInfo(ctypes.Structure):
    """aot_port_info"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("name", _TEXT),
        ("dtype", _TEXT),
        ("dtype_code", ctypes.c_uint8),
        ("dtype_bits", ctypes.c_uint8),
        ("dtype_lanes", ctypes.c_uint16),
        ("rank", _U32),
        ("chooses", _U32),
    )


class DimInfo(ctypes.Structure):
    """aot_dim_info"""

    _fields_ = (("struct_size", ctypes.c_size_t), ("text", _TEXT), ("value", _I64))


class SymbolInfo(ctypes.Structure):
    """aot_symbol_info"""

    _fields_ = (("struct_size", ctypes.c_size_t), ("name", _TEXT), ("lo", _I64), ("hi", _I64), ("divisor", _I64))


class StateInfo(ctypes.Structure):
    """aot_state_info"""

    _fields_ = (("struct_size", ctypes.c_size_t), ("input", _U32), ("output", _U32), ("has_initial", _I32))


class StepInfo(ctypes.Structure):
    """aot_step_info"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("label", _TEXT),
        ("kind", _TEXT),
        ("symbol", _TEXT),
        ("schedule", _TEXT),
        ("loc_count", _U32),
    )


class SessionOptions(ctypes.Structure):
    """aot_session_options"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("allocator", _POINTER),
        ("thread_count", _U32),
        ("plan_cache_size", _U32),
        ("pool", _POINTER),
        ("flags", _U32),
    )


AllocateOutput = ctypes.CFUNCTYPE(_POINTER, _POINTER, _U32, ctypes.POINTER(Tensor), ctypes.c_size_t)
"""The type of allocate_output of aot_run_options."""
HOST_OUTPUTS, DEVICE_OUTPUTS = 1, 2  # AOT_RUN_...


class RunOptions(ctypes.Structure):
    """aot_run_options"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("cancel", _POINTER),
        ("deadline_ns", _U64),
        ("allocate_output", AllocateOutput),
        ("user", _POINTER),
        ("stream", _POINTER),
        ("flags", _U32),
        ("reserved", _U32),
    )


class MachineInfo(ctypes.Structure):
    """aot_machine"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("cpu_level", _I32),
        ("capability", _I32),
        ("driver", _I32),
        ("cpu_extras", _U32),
    )


class StepTimeInfo(ctypes.Structure):
    """aot_step_time"""

    _fields_ = (("ns", _U64), ("starts_early", _U32), ("reserved", _U32))


class TraceStepInfo(ctypes.Structure):
    """aot_trace_step"""

    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("program", _U32),
        ("step", _U32),
        ("label", _TEXT),
        ("tensors", ctypes.POINTER(NamedTensor)),
        ("tensor_count", _U32),
        ("reserved", _U32),
    )


TraceFunction = ctypes.CFUNCTYPE(_I32, _POINTER, ctypes.POINTER(TraceStepInfo))
"""aot_trace_function"""


class DimValue(ctypes.Structure):
    """aot_dim_value"""

    _fields_ = (("name", _TEXT), ("value", _I64))


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "aot_version": (_TEXT, ()),
    "aot_status_name": (_TEXT, (_I32,)),
    "aot_reason_name": (_TEXT, (_I32,)),
    "aot_status_advice": (_I32, (_I32, _I32)),
    "aot_target_supported": (_I32, (_TEXT,)),
    "aot_this_machine": (None, (_I32, _POINTER)),
    "aot_target_rank": (_I32, (_TEXT, _I32, _POINTER, _TEXT, ctypes.c_size_t)),
    "aot_default_thread_count": (_U32, ()),
    "aot_model_load_file": (_I32, (_TEXT, _POINTER, _POINTER, _POINTER)),
    "aot_model_load_memory": (_I32, (_POINTER, ctypes.c_size_t, _POINTER, _POINTER, _POINTER)),
    "aot_model_unload": (None, (_POINTER,)),
    "aot_model_program_count": (_U32, (_POINTER,)),
    "aot_model_program": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_model_input_count": (_U32, (_POINTER,)),
    "aot_model_output_count": (_U32, (_POINTER,)),
    "aot_model_input": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_model_output": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_model_input_dim": (_I32, (_POINTER, _U32, _U32, _POINTER)),
    "aot_model_output_dim": (_I32, (_POINTER, _U32, _U32, _POINTER)),
    "aot_model_symbol_count": (_U32, (_POINTER,)),
    "aot_model_symbol": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_model_state_count": (_U32, (_POINTER,)),
    "aot_model_state": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_model_initial_state": (_I32, (_POINTER, _U32, _POINTER, ctypes.c_size_t)),
    "aot_model_program_step": (_I32, (_POINTER, _U32, _U32, _POINTER)),
    "aot_model_program_step_loc": (_TEXT, (_POINTER, _U32, _U32, _U32)),
    "aot_model_meta": (_POINTER, (_POINTER, _POINTER)),
    "aot_model_weight_bytes": (_U64, (_POINTER,)),
    "aot_model_shared_weight_bytes": (_U64, (_POINTER,)),
    "aot_model_check": (_I32, (_POINTER, _POINTER, _U32, _POINTER)),
    "aot_model_statistics": (None, (_POINTER, _POINTER)),
    "aot_model_device": (_I32, (_POINTER,)),
    "aot_device_allocate": (_I32, (_POINTER, ctypes.c_size_t, _POINTER, _POINTER)),
    "aot_device_free": (None, (_POINTER, _POINTER)),
    "aot_device_copy": (_I32, (_POINTER, _POINTER, _POINTER, ctypes.c_size_t, _POINTER, _POINTER)),
    "aot_session_create": (_I32, (_POINTER, _POINTER, _POINTER, _POINTER)),
    "aot_session_destroy": (None, (_POINTER,)),
    "aot_session_run": (_I32, (_POINTER, _POINTER, _U32, _POINTER, _U32, _POINTER, _POINTER)),
    "aot_session_prepare": (_I32, (_POINTER, _POINTER, _U32, _POINTER)),
    "aot_session_reserve": (_I32, (_POINTER, _POINTER, _U32, _POINTER)),
    "aot_session_output": (_I32, (_POINTER, _U32, _POINTER)),
    "aot_session_arena_bytes": (_U64, (_POINTER,)),
    "aot_session_host_steps": (_U64, (_POINTER,)),
    "aot_session_memory_bytes": (_U64, (_POINTER,)),
    "aot_session_thread_count": (_U32, (_POINTER,)),
    "aot_session_profile": (_U32, (_POINTER, _POINTER, _U32, _POINTER)),
    "aot_session_trace": (
        _I32,
        (_POINTER, _POINTER, _U32, _POINTER, _U32, _POINTER, TraceFunction, _POINTER, _POINTER),
    ),
    "aot_session_time_steps": (_I32, (_POINTER, _U32, _POINTER, _U32, _POINTER, _POINTER, _POINTER)),
}

_ERRORS: dict[int, type[AotError]] = {
    1: RunError,
    2: ArtifactError,
    3: ArtifactError,
    4: TargetError,
    5: GuardError,
    6: RunError,
    7: RunError,
    8: ArtifactError,
    9: ArtifactError,
    11: RunError,
    12: ArtifactError,
}


_HERE = os.path.dirname(os.path.abspath(__file__))


def _find() -> str:
    if given := os.environ.get("AOT_RUNTIME_LIBRARY"):
        return given
    beside = os.path.join(_HERE, "lib", "libaot_runtime.so")
    return beside if os.path.exists(beside) else str(prefix() / "lib" / "libaot_runtime.so")


def prefix() -> Path:
    """The folder that holds include/aot, lib/, lib/cmake and lib/pkgconfig, for programs in C and C++."""
    # An editable install keeps the sources and the library in different folders; finding the latter costs more
    # than all of this package's imports together.
    from importlib.resources import files
    from pathlib import Path

    return Path(str(files("aot.runtime") / "lib")).parent


def library_path() -> Path:
    """The library that is loaded: $AOT_RUNTIME_LIBRARY (for development), or else the installed one."""
    from pathlib import Path

    return Path(_find())


@cache
def library() -> ctypes.CDLL:
    """The loaded library, with every function declared."""
    path = _find()
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise TargetError(
            f"cannot load the runtime library: {error}",
            where=path,
            hint="Install aotc with pip, which builds it, or set AOT_RUNTIME_LIBRARY.",
        ) from error
    lib.aot_abi_version.restype = ctypes.c_uint32
    if (found := lib.aot_abi_version()) != ABI_VERSION:
        raise TargetError(f"the library has ABI {found}, this package needs {ABI_VERSION}", where=path)
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


@cache
def caller_type() -> Any:
    """The class of the small extension module beside the library, which shortens calls; None where it is missing.

    It is built where Python's headers are found, and any Python with the stable ABI loads it.
    """
    from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    path = os.path.join(os.path.dirname(_find()), "aot_call.abi3.so")
    if ".abi3.so" not in EXTENSION_SUFFIXES or not os.path.exists(path):
        return None  # a Python without the stable ABI, such as a free-threaded one
    loader = ExtensionFileLoader("aot_call", path)
    spec = spec_from_loader("aot_call", loader)
    assert spec is not None
    try:
        module = module_from_spec(spec)
        loader.exec_module(module)
    except ImportError:
        return None
    return module.Caller


def address(function: Any) -> int:
    """Where a function of the library is."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def new_error() -> Error:
    """An aot_error to be filled."""
    return Error(struct_size=ctypes.sizeof(Error))


def exception(status: int, error: Error) -> AotError:
    """The exception for a status that is not AOT_OK."""
    kind = _ERRORS.get(status, RunError)
    text = error.message.decode(errors="replace") or f"status {status}"
    hint = error.hint.decode(errors="replace")
    wanted, _, found = text.removeprefix("expected element type ").partition(", got ")
    if kind is GuardError and found and wanted != text and error.where.startswith(b"input"):
        from aot.runtime._tensors import conversion

        hint = f"{hint} {conversion(wanted, found)}".rstrip()
    made = kind(text, where=error.where.decode(errors="replace"), hint=hint)
    made.status = status
    if error.reason:
        made.reason = library().aot_reason_name(error.reason).decode()
    return made


def info(kind: type[Any]) -> Any:
    """A struct with its size filled in."""
    return kind(struct_size=ctypes.sizeof(kind))
