"""ATen converters of elementwise ops: arithmetic, comparisons, activations, casts."""

from __future__ import annotations

from aot.dtypes import DType
from aot.frontend.torch_registry import Context, Result, aten_op, dtype_of
from aot.ir import Value


def common_dtype(c: Context, *names: str) -> DType:
    """The type in which torch computes with these arguments, by its promotion rules."""
    import torch

    found = None
    for name in names:
        item = c[name]
        other = _sample(item)
        found = other if found is None else torch.zeros((), dtype=torch.result_type(found, other))
        if isinstance(item, Value) and item.type.rank:
            found = found.reshape((1,) * item.type.rank) if not found.dim() else found
    assert found is not None
    return dtype_of(found.dtype, c.where)


def _sample(item: object) -> object:
    """A torch tensor, or number, that promotes as the argument does."""
    import torch

    if isinstance(item, Value):
        return torch.zeros((1,) * item.type.rank, dtype=getattr(torch, str(item.type.dtype.numpy)))
    return item if isinstance(item, bool | int | float) else 1


def pair(c: Context, dtype: DType, left: str = "self", right: str = "other") -> tuple[Value, Value]:
    """Two arguments as tensors of one type."""
    values = []
    for name in (left, right):
        item = c[name]
        values.append(c.cast(item, dtype) if isinstance(item, Value) else c.number_value(item, dtype))
    return values[0], values[1]


@aten_op("add", "sub", "rsub")
def _add(c: Context) -> Result:
    left, right = pair(c, c.dtype)
    alpha = c["alpha"]
    name = "sub" if c.op.startswith(("sub", "rsub")) else "add"
    if c.op.startswith("rsub"):
        left, right = right, left
        if alpha != 1:
            right = c.op_("mul", right, c.number_value(alpha, c.dtype))
    elif alpha != 1:
        right = c.op_("mul", right, c.number_value(alpha, c.dtype))
    return c.op_(name, left, right)


@aten_op("mul")
def _mul(c: Context) -> Result:
    return c.op_("mul", *pair(c, c.dtype))


@aten_op("relu")
def _relu(c: Context) -> Result:
    return c.op_("relu", c.tensor("self"))
