"""Element types of ATen arithmetic: promotion, the types in which torch's CPU kernels compute, and casts to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aot import dtypes
from aot.dims import Dim
from aot.dtypes import DType
from aot.frontend.torch_registry import Context, dtype_of
from aot.ir import Value
from aot.ops.helpers import wide_dtype


def common_dtype(c: Context, *names: str) -> DType:
    """The type in which torch computes with these arguments, by its promotion rules."""
    return promoted(c, *(c[name] for name in names))


def promoted(c: Context, *items: object) -> DType:
    """The type to which torch promotes tensors, numbers and sizes."""
    import torch

    found: Any = None
    rank = 0
    for item in items:
        other = _sample(item)
        rank = max(rank, item.type.rank if isinstance(item, Value) else 0)
        found = other if found is None else torch.zeros((1,) * rank, dtype=torch.result_type(found, other))
    if not isinstance(found, torch.Tensor):
        found = torch.scalar_tensor(found)
    return dtype_of(found.dtype, c.where)


def _sample(item: object) -> Any:
    """A torch tensor, or number, that promotes as the argument does."""
    import torch

    if isinstance(item, Value):
        return torch.zeros((1,) * item.type.rank, dtype=getattr(torch, str(item.type.dtype.numpy)))
    return item if isinstance(item, bool | int | float) else 1


def typed(c: Context, item: object, dtype: DType) -> Value:
    """A tensor, number or size as a tensor of the element type; whole numbers wrap around as torch's do."""
    return c.cast(item, dtype) if isinstance(item, Value) else c.number_value(item, dtype)


def pair(c: Context, dtype: DType, left: str = "self", right: str = "other") -> tuple[Value, Value]:
    """Two arguments as tensors of one type."""
    return typed(c, c[left], dtype), typed(c, c[right], dtype)


def computing(c: Context, dtype: DType, compute: Callable[..., Value], *items: object) -> Value:
    """compute(*items) in the type in which torch computes `dtype`, cast back to it; numbers are rounded to it first."""
    return c.cast(compute(*(typed(c, typed(c, item, dtype), wide_dtype(dtype)) for item in items)), dtype)


def truth(c: Context, value: Value) -> Value:
    """Whether each element is not 0."""
    return c.cast(value, dtypes.BOOL)


def filled(c: Context, number: object, dtype: DType, shape: tuple[Dim, ...]) -> Value:
    """A tensor of one number."""
    return c.expand(typed(c, number, dtype), shape)


def extreme(c: Context, name: str, left: Value, right: Value) -> Value:
    """The op `max` or `min`, of truth values too."""
    if left.type.dtype.is_bool:
        return c.op_("or" if name == "max" else "and", left, right)
    return c.op_(name, left, right)


def convert(c: Context, x: Value, dtype: DType) -> Value:
    """A cast as torch's: what is not whole, or out of range, goes to small integers through i64."""
    if x.type.dtype.is_float and dtype.is_integer and dtype.bits < 64:
        x = c.cast(x, dtypes.I64)
    return c.cast(x, dtype)
