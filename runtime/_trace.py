"""A run that is looked into: each step, when it has ended, with the tensors that it wrote.

For tools that compare, calibrate or search for faults. The arrays are views of memory that the next step may write
over; who wants to keep one copies it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from aot.runtime import _library as native
from aot.runtime import _tensors
from aot.runtime._specs import TraceStep, TraceTensor

if TYPE_CHECKING:
    from aot.runtime._model import Model


def trace(model: Model, inputs: Mapping[str, Any], callback: Callable[[TraceStep], Any]) -> dict[str, Any]:
    """See Model.trace."""
    raised: list[BaseException] = []
    nodes: dict[tuple[int, int], tuple[str, ...]] = {}

    def told(user: Any, pointer: Any) -> int:
        step = pointer.contents
        place = (int(step.program), int(step.step))
        try:
            if place not in nodes:
                nodes[place] = model._step(*place)[1]
            tensors = tuple(_tensor(step.tensors[number]) for number in range(step.tensor_count))
            callback(TraceStep(*place, step.label.decode(), nodes[place], tensors))
        except BaseException as error:  # also KeyboardInterrupt: nothing may pass through C
            raised.append(error)
            return 1
        return 0

    function = native.TraceFunction(told)

    def start(session: Any, given: Any, count: int, outputs: Any, output_count: int, options: Any, error: Any) -> int:
        status: int = model._lib.aot_session_trace(
            session, given, count, outputs, output_count, options, function, None, error
        )
        return status

    session = model._take()
    try:
        results = model._run_in(session, model._given(inputs), None, None, start=start)
    except Exception:
        if raised:
            raise raised[0] from None
        raise
    finally:
        model._idle.append(session)
    return dict(zip((spec.name for spec in model.outputs), results, strict=True))


def _tensor(named: Any) -> TraceTensor:
    """A tensor of C as an array over its memory."""
    import numpy

    tensor = named.tensor.contents
    dtype = _tensors.type_name(tensor)
    element = _tensors.numpy_dtype(dtype)
    shape = tuple(tensor.shape[axis] for axis in range(tensor.rank))
    if 0 in shape:
        array = numpy.empty(shape, element)
    else:
        steps = [tensor.strides[axis] for axis in range(tensor.rank)]
        reach = sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True)) + 1
        raw = (ctypes.c_uint8 * (reach * element.itemsize)).from_address(tensor.data)
        flat = numpy.frombuffer(raw, element)
        array = numpy.lib.stride_tricks.as_strided(flat, shape, [step * element.itemsize for step in steps])
    array.flags.writeable = False
    return TraceTensor(named.name.decode(), dtype, array)
