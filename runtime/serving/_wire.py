"""What a deployment and its worker process say to each other: headers through a socket, tensors through shared memory.

Headers are JSON, one a packet, since the worker runs code that may have gone wrong: nothing that it sends is trusted.
The memory is an anonymous file (memfd) that both map. It has no name, so nothing can be left behind; it may grow but
never shrink (a seal), and is backed before it is used, so that touching it cannot raise SIGBUS.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import socket
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from aot.errors import GuardError, RunError
from aot.runtime import _tensors
from aot.runtime.serving.causes import CRASH, ELSEWHERE, LinkError

ALIGN_BYTES = 64
MOST_HEADER_BYTES = 1 << 17
_DTYPE_OF = {numpy_name: name for name, (numpy_name, _, _) in _tensors.DTYPES.items()}


def shared_file(name: str) -> int:
    """A descriptor of an empty file in memory without a name, which is sealed against shrinking.

    Where memfd_create is forbidden: a temporary file that is already removed.
    """
    try:
        descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except OSError:
        with tempfile.TemporaryFile() as file:
            return os.dup(file.fileno())
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return descriptor


class Arena:
    """Shared memory of one channel. Owns the descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None
        self.size_bytes = 0

    def map(self, size_bytes: int) -> mmap.mmap:
        """A mapping of at least that many bytes; grows the file where it is smaller. Raises RunError for no memory.

        Views of an earlier, smaller mapping stay valid.
        """
        if self._map is None or size_bytes > self.size_bytes:
            size = max(os.fstat(self.descriptor).st_size, _rounded(size_bytes))
            try:
                os.posix_fallocate(self.descriptor, 0, size)
                self._map = mmap.mmap(self.descriptor, size)
            except (OSError, ValueError) as error:
                raise RunError(
                    f"no shared memory of {size} bytes: {error}",
                    where="worker process",
                    hint="Give the machine or the container more memory, or use smaller inputs.",
                ) from error
            self.size_bytes = size
        return self._map

    def close(self) -> None:
        """Closes the file; the mapping goes with its last view."""
        self._map = None
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _rounded(size_bytes: int) -> int:
    return max(1 << 16, 1 << (size_bytes - 1).bit_length()) if size_bytes > 1 else 1 << 16


def as_arrays(inputs: Mapping[str, Any], specs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs as row-major numpy arrays; raises LinkError for one that has no form in CPU memory, GuardError for
    one that is unknown or of no element type.

    A name that a client made up must not come to the worker: it may be of any type and length.
    """
    found = {}
    for name, value in inputs.items():
        if name not in specs:
            raise GuardError(f"unknown input {name!r:.200}", hint=f"The model's inputs are {', '.join(specs)}.")
        if type(value) in (int, float, bool):
            value = _tensors.of_number(name, value, specs[name].dtype, specs[name].shape)
        try:
            array = host_array(value)
        except Exception as error:
            raise LinkError(
                ELSEWHERE,
                f"{name}: a worker process takes arrays in CPU memory, got {type(value).__name__}; give numpy arrays, "
                'or run the candidate in this process: isolation="none"',
            ) from error
        if array.dtype.name not in _DTYPE_OF:
            raise GuardError(f"no element type is called {array.dtype.name}", where=name)
        found[name] = np.ascontiguousarray(array).reshape(array.shape)
    return found


def host_array(value: Any) -> Any:
    """What a model takes as an input, as a numpy array, not copied. Raises what its package raises where it cannot."""
    if type(value).__module__.partition(".")[0] == "torch":
        value = value.detach()
    if not hasattr(value, "__array__") and hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def places(arrays: Mapping[str, Any], start: int) -> tuple[list[list[Any]], int]:
    """[name, element type, shape, offset] of each array one behind another, and where they end."""
    rows = []
    for name, array in arrays.items():
        start = -(-start // ALIGN_BYTES) * ALIGN_BYTES
        rows.append([name, _DTYPE_OF[array.dtype.name], list(array.shape), start])
        start += array.nbytes
    return rows, start


def put(memory: mmap.mmap, rows: Sequence[Sequence[Any]], arrays: Mapping[str, Any]) -> None:
    """Copies arrays to their places."""
    for name, _, shape, offset in rows:
        array = arrays[name]
        np.frombuffer(memory, array.dtype, array.size, offset).reshape(shape)[...] = array


def views(memory: mmap.mmap, rows: Any) -> dict[str, Any]:
    """The arrays at their places, not copied. Raises RunError where a row is not what `places` makes."""
    found: dict[str, Any] = {}
    try:
        for name, dtype_name, shape, offset in rows:
            dtype = _tensors.numpy_dtype(dtype_name)
            count = 1
            for extent in shape:
                if type(extent) is not int or extent < 0:
                    raise ValueError(f"shape {shape}")
                count *= extent
            if type(name) is not str or type(offset) is not int or offset < 0:
                raise ValueError(f"{name!r} at {offset!r}")
            if offset + count * dtype.itemsize > len(memory):
                raise ValueError(f"{name!r} ends outside of the memory")
            if count:
                found[name] = np.frombuffer(memory, dtype, count, offset).reshape(shape)
            else:  # frombuffer takes no count of 0
                found[name] = np.empty(shape, dtype)
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"a message of the worker process makes no sense: {error}", where="worker process") from error
    return found


def encoded(message: Mapping[str, Any]) -> bytes:
    """One header; raises RunError for one that is too long."""
    data = json.dumps(message).encode()
    if len(data) > MOST_HEADER_BYTES:
        raise RunError(f"the names and shapes of a request take {len(data)} bytes; {MOST_HEADER_BYTES} are the most")
    return data


def send(channel: socket.socket, message: Mapping[str, Any]) -> None:
    """Sends one header; raises OSError where nobody listens any more, RunError for one that is too long."""
    channel.send(encoded(message))


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """The next header; None where the other side is gone. Raises TimeoutError, and LinkError for what is no header."""
    try:
        data = channel.recv(MOST_HEADER_BYTES)
    except ConnectionError:
        return None
    if not data:
        return None
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise LinkError(CRASH, f"a message of the worker process makes no sense: {error}") from error
    if not isinstance(message, dict):
        raise LinkError(CRASH, "a message of the worker process makes no sense: it is no object")
    return message
