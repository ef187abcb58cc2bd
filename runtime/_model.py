"""Model: a loaded artifact in Python. Immutable; any number of threads may run it at once.

Each run borrows a session from a stack of idle ones; a new one is made when all are busy, so there
are as many sessions as there were runs at the same time.

There are two ways through a call. `_run_quickly` is for numpy arrays that fit: C code (src/python.c, built where
Python's headers are) reads them, makes the results and runs. `_run` does everything with ctypes and needs no
headers; it also takes other arrays, `outputs` and timeouts, and words every error.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from aot.errors import ArtifactError, GuardError, RunError
from aot.runtime import _library as native
from aot.runtime import _tensors
from aot.runtime._specs import DimSpec, ProgramSpec, StateSpec, Statistics, TensorSpec, TraceStep

if TYPE_CHECKING:
    from collections.abc import Callable

    from aot.runtime._times import Times
    from aot.runtime.keys import Key

_MAP_WEIGHTS, _ANY_WEIGHTS, _OWN_WEIGHTS = 1, 2, 4
_NO_GRAPH, _FULL_EDGES, _POISON = 4, 8, 16
_NUMBERS = (int, float, bool)  # of Python, which stand for an input of one element
_LONGEST_SECONDS = 1e9  # a longer timeout is none
_I64 = range(-(1 << 63), 1 << 63)
# The element types that numpy exports through the buffer protocol.
_BUFFER_DTYPES = frozenset(
    ("bool", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64")
)  # fmt: skip


class Model:
    """An artifact that is ready to run; made by `aot.load`.

    Any number of threads may run it at once: each run in progress has an arena and plans of its own, and keeps them
    for later runs. `inputs` and `outputs` are a TensorSpec for each, in the order of the model; `device` is the number
    of the GPU that it runs on, or None. Memory goes when the model is collected, or at `close`; as a context manager
    it closes itself. After that every use raises RunError.

    A call with numpy arrays costs 1 to 2 µs besides the kernels: a small C module beside the library makes it. Where
    the package was built without Python's headers, for other arrays, and with `outputs` or a timeout, ctypes does the
    same in about 8 µs.
    """

    def __init__(
        self,
        artifact: str | os.PathLike[str] | bytes | bytearray | memoryview,
        *,
        threads: int | None = None,
        target: str | None = None,
        weights: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        verify_weights: bool = True,
        map_weights: bool = False,
        share_weights: bool = True,
        trusted_keys: Key | Iterable[Key] | None = None,
        plan_cache_size: int = 8,
        temporary_directory: str | os.PathLike[str] | None = None,
        device: int = 0,
        context: int | None = None,
        graphs: bool = True,
        early_start: bool = True,
        poison: bool = False,
    ) -> None:
        if threads is not None and not (isinstance(threads, int) and 1 <= threads < 1 << 31):
            raise RunError(f"threads must be a number, at least 1, got {threads!r}")
        if not (isinstance(plan_cache_size, int) and 0 <= plan_cache_size < 1 << 31):
            raise RunError(f"plan_cache_size must be a number, at least 0, got {plan_cache_size!r}")
        self._lib = native.library()
        self._options = native.info(native.SessionOptions)
        self._options.thread_count = threads or 0
        self._options.plan_cache_size = plan_cache_size
        self._options.flags = (0 if graphs else _NO_GRAPH) | (0 if early_start else _FULL_EDGES) | poison * _POISON
        options = native.info(native.LoadOptions)
        options.target = target.encode() if target else None
        options.flags = (_MAP_WEIGHTS if map_weights else 0) | (0 if verify_weights else _ANY_WEIGHTS)
        options.flags |= 0 if share_weights else _OWN_WEIGHTS
        options.temporary_directory = os.fsencode(temporary_directory) if temporary_directory else None
        options.device, options.context = device, context
        if trusted_keys is not None:
            from aot.runtime.keys import trusted_keys as keys_of

            keys = keys_of(trusted_keys)
            options.trusted_keys, options.trusted_key_count = b"".join(keys), len(keys)
        keep: list[Any] = []
        if isinstance(weights, Mapping):
            keep = _fill_weights(options, weights)
        elif weights is not None:
            options.weights_path = os.fsencode(weights)
        handle = self._load(artifact, options, map_weights)
        del keep
        self._handle = handle
        self._idle: list[int] = []
        ordinal = int(self._lib.aot_model_device(handle))
        self.device = None if ordinal < 0 else ordinal
        self._pools: list[Any] = []  # of device memory: none before the first result there
        self._lock = threading.Lock()
        self._close = weakref.finalize(self, _unload, self._lib, handle, self._idle, self._pools)
        self._close.atexit = False  # a daemon thread may still be running it
        self.inputs = self._ports("input")
        self.outputs = self._ports("output")
        self._input_names = tuple(spec.name for spec in self.inputs)
        self._input_set = frozenset(self._input_names)
        # Inputs for whose values there are programs of their own.
        self._choosing = tuple(index for index in range(len(self.inputs)) if self._port("input", index).chooses)
        self._output_names = tuple(spec.name for spec in self.outputs)
        self._input_addresses = ctypes.c_void_p * len(self.inputs)
        self._output_addresses = ctypes.c_void_p * len(self.outputs)
        self._shapes: dict[tuple[Any, ...], list[tuple[int, ...] | None]] = {}
        self._dtypes: list[Any] = []
        self._caller: Any = None
        self._has_asked_for_caller = False  # made after the first run: loading imports no numpy

    def _load(self, artifact: Any, options: Any, map_weights: bool) -> int:
        handle = ctypes.c_void_p()
        error = native.new_error()
        if isinstance(artifact, bytes | bytearray | memoryview):
            data = bytes(artifact) if not isinstance(artifact, bytes) else artifact
            if map_weights:
                raise RunError("map_weights needs a file", hint="Save the artifact and load it by its path.")
            status = self._lib.aot_model_load_memory(
                data, len(data), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
            )
        elif isinstance(artifact, str | os.PathLike):
            status = self._lib.aot_model_load_file(
                os.fsencode(artifact), ctypes.byref(options), ctypes.byref(handle), ctypes.byref(error)
            )
        else:
            raise ArtifactError(
                f"expected the path or the bytes of an artifact, got {type(artifact).__name__}",
                hint="Models are compiled first: aot.compile(model).load().",
            )
        if status:
            raise _not_loaded(native.exception(status, error), artifact)
        assert handle.value is not None
        return handle.value

    @property
    def _live(self) -> int:
        """The handle; raises RunError once it is closed."""
        if not self._close.alive:
            raise RunError("the model was closed", hint="Load it again.")
        return self._handle

    def _port(self, side: str, index: int) -> native.PortInfo:
        """What the library says of an input or output."""
        port: native.PortInfo = native.info(native.PortInfo)
        getattr(self._lib, f"aot_model_{side}")(self._live, index, ctypes.byref(port))
        return port

    def _ports(self, side: str) -> tuple[TensorSpec, ...]:
        count = getattr(self._lib, f"aot_model_{side}_count")(self._live)
        get_dim = getattr(self._lib, f"aot_model_{side}_dim")
        specs = []
        for index in range(count):
            port = self._port(side, index)
            shape: list[int | str] = []
            for axis in range(port.rank):
                dim = native.info(native.DimInfo)
                get_dim(self._live, index, axis, ctypes.byref(dim))
                shape.append(int(dim.value) if dim.value >= 0 else dim.text.decode())
            specs.append(TensorSpec(port.name.decode(), port.dtype.decode(), tuple(shape)))
        return tuple(specs)

    @property
    def dims(self) -> tuple[DimSpec, ...]:
        """The extents that vary, with their bounds."""
        found = []
        for index in range(self._lib.aot_model_symbol_count(self._live)):
            symbol = native.info(native.SymbolInfo)
            self._lib.aot_model_symbol(self._live, index, ctypes.byref(symbol))
            hi = None if symbol.hi < 0 else int(symbol.hi)
            found.append(DimSpec(symbol.name.decode(), int(symbol.lo), hi, int(symbol.divisor)))
        return tuple(found)

    @cached_property
    def state(self) -> tuple[StateSpec, ...]:
        """The inputs that a run replaces; one array given as both input and output is updated in place."""
        found = []
        for index in range(self._lib.aot_model_state_count(self._live)):
            pair = native.info(native.StateInfo)
            self._lib.aot_model_state(self._live, index, ctypes.byref(pair))
            names = (self.inputs[pair.input].name, self.outputs[pair.output].name)
            found.append(StateSpec(*names, bool(pair.has_initial)))
        return tuple(found)

    def new_state(self) -> dict[str, Any]:
        """New arrays for the state whose initial values the model knows (the buffers that `forward` changes).

        {input: array}, as `run` takes it in `state`; on a GPU, DeviceTensors. Each sequence of runs, such as a
        conversation, has its own.
        """
        found: dict[str, Any] = {}
        specs = {spec.name: spec for spec in self.inputs}
        for index, pair in enumerate(self.state):
            if pair.has_initial:
                spec = specs[pair.input]
                shape = tuple(int(extent) for extent in spec.shape)
                array = _empty(pair.input, shape, _tensors.numpy_dtype(spec.dtype))
                status = self._lib.aot_model_initial_state(self._live, index, array.ctypes.data, array.nbytes)
                if status:
                    raise RunError("the initial value cannot be had", where=pair.input)
                found[pair.input] = array if self.device is None else self.to_device(array)
        return found

    def to_device(self, array: Any, *, stream: Any = None) -> Any:
        """A copy of a numpy array in the memory of the model's GPU, as a DeviceTensor. Raises RunError without one."""
        from aot.runtime import _device

        pool = self.device_pool()
        return _device.from_host(pool, array, self.device or 0, _device.stream_address(stream))

    def device_pool(self) -> Any:
        """Where results in device memory come from."""
        if self.device is None:
            raise RunError("the model runs on the CPU", hint="Give it arrays in CPU memory.")
        handle = self._live
        with self._lock:
            if not self._pools:
                from aot.runtime._device import Pool

                self._pools.append(Pool(self._lib, handle))
        return self._pools[0]

    @property
    def programs(self) -> tuple[ProgramSpec, ...]:
        """Every program of the artifact, in the order in which they are tried."""
        found = []
        for index in range(self._lib.aot_model_program_count(self._live)):
            p = native.info(native.ProgramInfo)
            self._lib.aot_model_program(self._live, index, ctypes.byref(p))
            texts = (p.target.decode(), p.variant.decode(), p.planner.decode())
            found.append(
                ProgramSpec(
                    *texts,
                    bool(p.supported),
                    bool(p.selected),
                    p.kernel_count,
                    p.step_count,
                    p.code_bytes,
                    p.reason.decode(),
                    p.host_step_count,
                )
            )
        return tuple(found)

    @property
    def target(self) -> str:
        """The target whose code runs, such as "cpu:x86-64-v3"."""
        return next(program.target for program in self.programs if program.selected)

    @property
    def meta(self) -> dict[str, Any]:
        """What the build recorded for people."""
        import json

        size = ctypes.c_size_t()
        address = self._lib.aot_model_meta(self._live, ctypes.byref(size))
        value = json.loads(ctypes.string_at(address, size.value)) if size.value else {}
        return dict(value)

    @property
    def weight_bytes(self) -> int:
        """Bytes of constants in memory, also those that other models share."""
        return int(self._lib.aot_model_weight_bytes(self._live))

    @property
    def shared_weight_bytes(self) -> int:
        """Of `weight_bytes`, those that other models of this process hold too: closing this one frees the rest."""
        return int(self._lib.aot_model_shared_weight_bytes(self._live))

    @property
    def statistics(self) -> Statistics:
        """How the runs of this model ended so far; those that numpy or Python refused before are not among them."""
        found = native.info(native.StatisticsInfo)
        self._lib.aot_model_statistics(self._live, ctypes.byref(found))
        ended = {self._lib.aot_status_name(i).decode(): int(n) for i, n in enumerate(found.by_status) if n}
        reasons = {self._lib.aot_reason_name(i).decode(): int(n) for i, n in enumerate(found.by_reason) if i and n}
        return Statistics(
            int(found.by_status[0]), found.run_ns * 1e-9, {k: n for k, n in ended.items() if k != "ok"}, reasons
        )

    @property
    def memory_bytes(self) -> int:
        """Bytes that runs left behind for later ones: arenas, scratch memory, plans."""
        return sum(int(self._lib.aot_session_memory_bytes(session)) for session in list(self._idle))

    @property
    def host_steps(self) -> int:
        """How often runs so far left the GPU for CPU code, of nodes that it has no kernel for."""
        return sum(int(self._lib.aot_session_host_steps(session)) for session in list(self._idle))

    @property
    def thread_count(self) -> int:
        """Threads that a run uses."""
        session = self._take()
        try:
            return int(self._lib.aot_session_thread_count(session))
        finally:
            self._idle.append(session)

    def _new_session(self, flags: int = 0) -> int:
        options = native.SessionOptions.from_buffer_copy(self._options)
        options.flags |= flags
        session = ctypes.c_void_p()
        error = native.new_error()
        status = self._lib.aot_session_create(
            self._live, ctypes.byref(options), ctypes.byref(session), ctypes.byref(error)
        )
        if status:
            raise native.exception(status, error)
        assert session.value is not None
        return session.value

    def _take(self) -> int:
        try:
            return self._idle.pop()
        except IndexError:
            return self._new_session()

    def run(
        self,
        inputs: Mapping[str, Any],
        *,
        outputs: Mapping[str, Any] | None = None,
        state: Mapping[str, Any] | None = None,
        timeout_seconds: float | None = None,
        stream: Any = None,
    ) -> dict[str, Any]:
        """Runs once: {"name": array} to {"name": array}.

        Inputs are numpy arrays, torch CPU tensors or anything with __dlpack__, row-major; none is copied.
        Outputs are new numpy arrays, or the arrays given in `outputs`, which may name only some.
        `state` are arrays of inputs that the run replaces (see `Model.state`): each is updated in place, and not
        among the results. A run that fails at its guards leaves them as they were; one that is stopped may not.
        `timeout_seconds` is looked at between steps. The GIL is free during a run.
        On a GPU, inputs may also be torch CUDA tensors, DeviceTensors, or others with __dlpack__ or
        __cuda_array_interface__ in its memory. Where one is, apart from state, new outputs are DeviceTensors, and the
        run is only put into `stream` (an int, or a stream of torch, CuPy or the CUDA bindings; by default the default
        stream). With arrays in CPU memory the run ends before the call does.
        Raises GuardError for an input or output whose name, dtype, shape or strides do not fit, or that overlap;
        RunError after `timeout_seconds` and where memory is short.
        """
        if state:
            return self._run_with_state(inputs, outputs or {}, state, timeout_seconds, stream)
        plain = outputs is None and timeout_seconds is None and stream is None
        if self._caller is not None and plain and type(inputs) is dict:
            quick = self._run_quickly(inputs)
            if quick is not None:
                return quick  # type: ignore[no-any-return]
        if timeout_seconds is not None and (
            not isinstance(timeout_seconds, int | float) or timeout_seconds != timeout_seconds
        ):
            raise RunError(f"timeout_seconds must be a number of seconds, got {timeout_seconds!r}")
        given = self._given(inputs, stream)
        results = self._run(given, outputs, timeout_seconds, stream)
        return dict(zip(self._output_names, results, strict=True))

    def _run_with_state(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        state: Mapping[str, Any],
        timeout: float | None,
        stream: Any,
    ) -> dict[str, Any]:
        replaced_by = {pair.input: pair.output for pair in self.state}
        if not state.keys() <= replaced_by.keys():
            self._complain("state", state, tuple(replaced_by))
        targets = {replaced_by[name]: array for name, array in state.items()}
        for what, given, names in (("input", inputs, state), ("output", outputs, targets)):
            twice = [name for name in names if name in given]
            if twice:
                raise GuardError(f"the {what} is given in state as well", where=twice[0], hint="Give it once.")
        found = self.run({**inputs, **state}, outputs={**outputs, **targets}, timeout_seconds=timeout, stream=stream)
        return {name: array for name, array in found.items() if name not in targets}

    def __call__(self, *arrays: Any, stream: Any = None) -> Any:
        """Runs with inputs in their order; returns the one output, or a tuple of all. Raises as `run`."""
        if len(arrays) != len(self._input_names):
            kept = {pair.input for pair in self.state}
            hint = self._state_hint(kept) if len(arrays) == len(self._input_names) - len(kept) else ""
            raise GuardError(
                f"expected {len(self._input_names)} inputs ({', '.join(self._input_names)}), got {len(arrays)}",
                hint=hint or self._fixed_hint(),
            )
        results = self._run_quickly(arrays) if self._caller is not None and stream is None else None
        if results is None:
            given = self._views(arrays, stream)
            results = self._run(given, None, None, stream)
        return results[0] if len(results) == 1 else tuple(results)

    def _run_quickly(self, inputs: Any) -> Any:
        """Results of a dict by name or of a tuple in order, without Python code between; None: not this way.

        Only for numpy arrays that fit. All else, errors too, goes through `_run`.
        """
        session = self._take()
        try:
            return self._caller.run(session, inputs)
        finally:
            self._idle.append(session)

    def _make_caller(self) -> Any:
        """What `_run_quickly` needs, or None."""
        self._has_asked_for_caller = True
        kind = native.caller_type()
        if kind is None or any(spec.dtype not in _BUFFER_DTYPES for spec in (*self.inputs, *self.outputs)):
            return None
        if max(len(self.inputs), len(self.outputs)) > kind.most_ports:
            return None
        import numpy

        lib = self._lib
        return kind(
            prepare=native.address(lib.aot_session_prepare),
            run=native.address(lib.aot_session_run),
            output=native.address(lib.aot_session_output),
            array_type=numpy.ndarray,
            empty=numpy.empty,
            inputs=self._input_names,
            outputs=self._output_names,
            dtypes=tuple(self._dtypes),
        )

    def _views(self, arrays: Iterable[Any], stream: Any) -> list[_tensors.View]:
        address = None if self.device is None else self._stream_address(stream)
        device = self.device or 0
        return [
            _tensors.view(
                spec.name,
                _tensors.of_number(spec.name, array, spec.dtype, spec.shape) if type(array) in _NUMBERS else array,
                stream=address,
                device=device,
            )
            for spec, array in zip(self.inputs, arrays, strict=True)
        ]

    def _stream_address(self, stream: Any) -> int:
        if stream is None:
            return 0
        if self.device is None:
            raise RunError("a stream was given, and the model runs on the CPU", hint="Leave the stream out.")
        from aot.runtime._device import stream_address

        return stream_address(stream)

    def _given(self, inputs: Mapping[str, Any], stream: Any = None) -> list[_tensors.View]:
        if not hasattr(inputs, "keys"):
            raise GuardError(
                f"expected inputs by name, got {type(inputs).__name__}",
                hint='Write run({"name": array}), or call the model with the arrays in order.',
            )
        if self._input_set != inputs.keys():
            self._complain("input", inputs, self._input_names)
        return self._views((inputs[name] for name in self._input_names), stream)

    def _complain(self, what: str, given: Mapping[str, Any], names: Sequence[str]) -> None:
        unknown = [repr(name) for name in given if name not in names]
        missing = [repr(name) for name in names if name not in given] if what == "input" else []
        parts = []
        if missing:
            parts.append(f"missing {what} {', '.join(missing)}")
        if unknown:
            parts.append(f"unknown {what} {', '.join(unknown)}")
        hint = f"The model's {what}s are {', '.join(map(repr, names)) or 'none'}."
        if missing and (kept := {pair.input for pair in self.state} - given.keys()):
            hint += f" {self._state_hint(kept)}"
        elif unknown and what == "input":
            hint += f" {self._fixed_hint()}".rstrip()
        raise GuardError("; ".join(parts), hint=hint)

    def _state_hint(self, names: Iterable[str]) -> str:
        """How to give inputs that are state, by name."""
        known = sorted(pair.input for pair in self.state if pair.input in names and pair.has_initial)
        others = sorted(pair.input for pair in self.state if pair.input in names and not pair.has_initial)
        parts = []
        if known:
            parts.append(
                f"{', '.join(map(repr, known))}: state with a first value; state = model.new_state() once for each "
                "sequence of runs, then run(inputs, state=state)."
            )
        if others:
            parts.append(
                f"{', '.join(map(repr, others))}: state that you make, such as zeros, and give to every run in state, "
                "which replaces it in place."
            )
        return " ".join(parts)

    def _fixed_hint(self) -> str:
        """What became of arguments of a torch.export program that are no inputs."""
        is_program = str(self.meta.get("source", {}).get("producer", "")).startswith("torch ")
        return "Numbers and texts among the arguments were fixed when the program was exported." if is_program else ""

    def _run(
        self, given: list[_tensors.View], outputs: Mapping[str, Any] | None, timeout: float | None, stream: Any
    ) -> list[Any]:
        session = self._take()
        try:
            return self._run_in(session, given, outputs, timeout, stream)
        finally:
            self._idle.append(session)

    def _run_in(
        self,
        session: int,
        given: list[_tensors.View],
        outputs: Mapping[str, Any] | None,
        timeout: float | None,
        stream: Any = None,
        start: Any = None,
    ) -> list[Any]:
        """Results of a run in a session; `start` is called in place of aot_session_run."""
        inputs = self._input_addresses(*[view.address for view in given])
        error = native.new_error()
        key: tuple[Any, ...] = tuple(view.shape for view in given)
        if self._choosing:
            # What these hold may choose the program, and with it the shapes of the results.
            key = (*key, *(given[index].element() for index in self._choosing))
        on_device = self.device is not None and self._wants_device_results(given)
        shapes = self._shapes.get(key)
        if shapes is None or (on_device and self._choosing):
            if on_device and self._choosing:
                self.device_pool().copy(0, 0, 0, self._stream_address(stream))  # what they hold must be there
            shapes = self._output_shapes(session, inputs, len(given), error)
            if len(self._shapes) >= 4096:
                self._shapes.clear()
            self._shapes[key] = shapes
        address = self._stream_address(stream)
        results = self._result_arrays(shapes, outputs, on_device, address)
        views = [
            _tensors.view(name, array, writable=True, stream=address, device=self.device or 0)
            if array is not None
            else None
            for name, array in zip(self._output_names, results, strict=True)
        ]
        # A new output whose shape is known only after the run has no entry here: the session keeps it.
        targets = self._output_addresses(*[view.address if view else None for view in views])
        options = None
        if timeout is not None and timeout < _LONGEST_SECONDS:
            options = native.info(native.RunOptions)
            options.deadline_ns = time.monotonic_ns() + max(int(timeout * 1e9), 1)
        if address:
            options = options if options is not None else native.info(native.RunOptions)
            options.stream = address
        late: list[tuple[int, Any]] = []
        if self.device is not None and None in views:
            options = options if options is not None else native.info(native.RunOptions)
            options.flags = native.DEVICE_OUTPUTS if on_device else native.HOST_OUTPUTS
            if on_device:
                options.allocate_output = native.AllocateOutput(self._allocate_in(late, address))
        status = (start or self._lib.aot_session_run)(
            session,
            inputs,
            len(given),
            targets,
            len(views),
            ctypes.byref(options) if options is not None else None,
            ctypes.byref(error),
        )
        if status:
            raise native.exception(status, error)
        for index, tensor in late:
            results[index] = tensor
        for index, view in enumerate(views):
            if (view is None or not view.has_memory) and not on_device:
                results[index] = self._found(session, index, results[index], view)
        if not self._has_asked_for_caller:
            self._caller = self._make_caller()
        return results

    def _allocate_in(self, made: list[tuple[int, Any]], stream: int) -> Any:
        """What gives outputs on the device their memory once their shapes are known; appends (index, tensor)."""
        from aot.runtime._device import DeviceTensor

        def allocate(user: Any, index: int, tensor: Any, size_bytes: int) -> int | None:
            described = tensor.contents
            try:
                memory = self.device_pool().take(size_bytes, stream)
            except RunError:  # the library says that memory is short
                return None
            shape = tuple(described.shape[axis] for axis in range(described.rank))
            made.append((index, DeviceTensor(memory, shape, self.outputs[index].dtype, self.device or 0)))
            return int(memory.address)

        return allocate

    def _found(self, session: int, index: int, given: Any, view: _tensors.View | None) -> Any:
        """A copy of an output that the session holds, in the array that was given for it, or in a new one."""
        name = self._output_names[index]
        tensor = native.Tensor()
        status = self._lib.aot_session_output(session, index, ctypes.byref(tensor))
        if status:
            raise RunError("the run left no result", where=name, hint="Report this: it is a defect of the runtime.")
        if given is None:
            given = _empty(name, tuple(tensor.shape[axis] for axis in range(tensor.rank)), self._dtypes[index])
            view = _tensors.view(name, given, writable=True)
        assert view is not None
        _tensors.copy_into(f"output {name!r}", view, tensor)
        return given

    def _output_shapes(
        self, session: int, inputs: Any, count: int, error: native.Error
    ) -> list[tuple[int, ...] | None]:
        """The shapes of the outputs; None for one that depends on what the run finds."""
        status = self._lib.aot_session_prepare(session, inputs, count, ctypes.byref(error))
        if status:
            raise native.exception(status, error)
        shapes: list[tuple[int, ...] | None] = []
        for index in range(len(self._output_names)):
            tensor = native.Tensor()
            unknown = self._lib.aot_session_output(session, index, ctypes.byref(tensor))
            shapes.append(None if unknown else tuple(tensor.shape[axis] for axis in range(tensor.rank)))
        return shapes

    def _wants_device_results(self, given: list[_tensors.View]) -> bool:
        replaced = {pair.input for pair in self.state}
        return any(
            view.is_on_device for name, view in zip(self._input_names, given, strict=True) if name not in replaced
        )

    def _result_arrays(
        self,
        shapes: list[tuple[int, ...] | None],
        outputs: Mapping[str, Any] | None,
        on_device: bool = False,
        stream: int = 0,
    ) -> list[Any]:
        if not self._dtypes:
            self._dtypes = [_tensors.numpy_dtype(spec.dtype) for spec in self.outputs]
        if outputs and not outputs.keys() <= set(self._output_names):
            self._complain("output", outputs, self._output_names)
        if on_device:
            from aot.runtime import _device

            given = outputs or {}
            pairs = zip(self._output_names, shapes, strict=True)
            made = _device.results(self, [None if name in given else shape for name, shape in pairs], stream)
            return [given.get(name, tensor) for name, tensor in zip(self._output_names, made, strict=True)]
        results: list[Any] = []
        for name, shape, dtype in zip(self._output_names, shapes, self._dtypes, strict=True):
            if outputs and name in outputs:
                results.append(outputs[name])
            else:
                results.append(None if shape is None else _empty(name, shape, dtype))
        return results

    def reserve(self, **dims: int) -> int:
        """Makes the plan and memory for given values of the model's dims ahead of time. Returns the arena's bytes.

        A dim has the name that `dims` says, or that of an input and an axis which it is: reserve(**{"x.0": 8}).
        For one run at a time: each further run in progress makes its own. Raises GuardError for a value that the
        artifact was not built for, RunError where a dim is not given.
        """
        for name, value in dims.items():
            if not isinstance(value, int) or value not in _I64:
                raise GuardError(f"expected a whole number below 2**63, got {value!r}", where=name)
        dims = {self._dim_name(name): value for name, value in dims.items()}
        values = (native.DimValue * len(dims))(*[native.DimValue(name.encode(), value) for name, value in dims.items()])
        session = self._take()
        try:
            error = native.new_error()
            status = self._lib.aot_session_reserve(session, values, len(dims), ctypes.byref(error))
            if status:
                raise native.exception(status, error)
            return int(self._lib.aot_session_arena_bytes(session))
        finally:
            self._idle.append(session)

    def _dim_name(self, name: str) -> str:
        """The name of the dim that is an axis of an input ("x.0"); other names as they are."""
        port, _, axis = name.rpartition(".")
        for spec in self.inputs if axis.isdecimal() else ():
            if spec.name == port and int(axis) < len(spec.shape) and isinstance(spec.shape[int(axis)], str):
                return str(spec.shape[int(axis)])
        return name

    def profile(self, inputs: Mapping[str, Any], repeats: int = 10) -> list[tuple[str, tuple[str, ...], float]]:
        """The median seconds of every step over `repeats` runs: (kernel label, nodes of the model, seconds), in order.

        A barrier follows every step, so the sum is a little more than a run takes. Raises as `run`.
        """
        from aot.runtime._times import profile

        return profile(self, inputs, repeats)

    def time_steps(self, inputs: Mapping[str, Any], repeats: int | None = None) -> Times:
        """The time of every kernel, on a GPU without the cost of launching it, and of a whole run (see Times).

        There, each kernel is launched `repeats` times in a row, by default as often as fits into about a quarter of a
        second, with warm caches; three rounds, medians. On a CPU as `profile`, with the time of a run beside it.
        `inputs` are arrays in CPU memory; state among them stays what it is. Raises as `run`.
        """
        from aot.runtime._times import time_steps

        return time_steps(self, inputs, repeats)

    def trace(self, inputs: Mapping[str, Any], callback: Callable[[TraceStep], Any]) -> dict[str, Any]:
        """Runs once, as `run`, and calls `callback` with a TraceStep behind each step: the tensors that it wrote.

        Their arrays hold until the callback returns: copy what you keep. On a GPU each kernel is waited for and its
        results are copied. The results of the run are the same bits. The callback must not run the model; what it
        raises ends the run and is raised here.
        """
        from aot.runtime._trace import trace

        return trace(self, inputs, callback)

    def copy_rate(self, most_bytes: int = 1 << 30) -> float:
        """Bytes per second, read and written, of a plain copy in the memory of the model's GPU, measured now.

        With two pieces of `most_bytes`, or less where the device has not that much left; 0 where there is none. Raises
        RunError on a CPU.
        """
        from aot.runtime._times import copy_rate

        if self.device is None:
            raise RunError("the model runs on the CPU")
        return copy_rate(self, most_bytes)

    def _step(self, program: int, index: int) -> tuple[str, tuple[str, ...]]:
        step = native.info(native.StepInfo)
        self._lib.aot_model_program_step(self._live, program, index, ctypes.byref(step))
        locs = (self._lib.aot_model_program_step_loc(self._live, program, index, loc) for loc in range(step.loc_count))
        return step.label.decode(), tuple(loc.decode() for loc in locs)

    def close(self) -> None:
        """Frees everything now; no run may be in progress. Otherwise it happens when the model is collected."""
        self._close()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        def specs(ports: tuple[TensorSpec, ...]) -> str:
            return ", ".join(f"{p.name}: {p.dtype}[{', '.join(map(str, p.shape))}]" for p in ports)

        return f"<Model ({specs(self.inputs)}) -> ({specs(self.outputs)})>"


def _not_loaded(error: Exception, artifact: str | os.PathLike[str] | bytes | bytearray | memoryview) -> Exception:
    """The error of a load, or where the file is something else than an artifact, one that says what."""
    if not isinstance(error, ArtifactError):
        return error
    from aot.file_kinds import not_an_artifact

    given = artifact if isinstance(artifact, str | os.PathLike) else bytes(artifact)
    said = not_an_artifact(given)
    if said is None:
        return error
    return ArtifactError(said[0], where="" if isinstance(given, bytes) else str(given), hint=said[1])


def _empty(name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    import numpy

    try:
        return numpy.empty(shape, dtype)
    except (MemoryError, ValueError) as error:
        raise RunError(
            f"no memory for the output of shape {list(shape)}",
            where=name,
            hint="Use smaller inputs, or a larger machine.",
        ) from error


def _fill_weights(options: Any, weights: Mapping[str, Any]) -> list[Any]:
    """Puts named weights into the options; returns what must live until the model is loaded."""
    views = [_tensors.view(name, array) for name, array in weights.items()]
    entries = (native.NamedTensor * len(views))()
    for entry, name, view in zip(entries, weights, views, strict=True):
        entry.name = name.encode()
        entry.tensor = ctypes.cast(view.address, ctypes.POINTER(native.Tensor))
    options.weights = entries
    options.weight_count = len(views)
    return [views, entries]


def _unload(lib: ctypes.CDLL, handle: int, idle: list[int], pools: list[Any]) -> None:
    for pool in pools:
        pool.close()
    while idle:
        lib.aot_session_destroy(idle.pop())
    lib.aot_model_unload(handle)
