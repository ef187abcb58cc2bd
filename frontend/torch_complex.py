"""Complex tensors of torch programs: pairs of real values of the graph, which has no complex numbers itself.

A node that takes or gives a complex tensor is converted here: by a converter of its own (`complex_op`), or, where
the op only moves or adds elements, by its real converter, once for the real and once for the imaginary parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from aot import dtypes
from aot.dtypes import DType
from aot.frontend.torch_registry import Context, Result, converter_of, dtype_of
from aot.ir import TensorType, Value
from aot.ops.helpers import wide_dtype

HINT = "Pass its real and imaginary parts as a last axis of 2: torch.view_as_complex and torch.view_as_real."

_PARTS: Mapping[str, str] = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

ComplexConverter = Callable[[Context], Any]
COMPLEX: dict[str, ComplexConverter] = {}

# Ops that move or add elements, so that real and imaginary parts stay apart.
BY_PARTS = frozenset(
    """_pad_circular _reshape_alias _reshape_copy _to_copy _unsafe_view alias alias_copy as_strided as_strided_copy
    as_strided_scatter broadcast_to cat channel_shuffle chunk clone col2im concat concatenate constant_pad_nd contiguous
    copy copy_ cumsum detach detach_ diagonal diagonal_copy diagonal_scatter embedding empty empty_like empty_permuted
    empty_strided expand expand_as expand_copy fill fill_ flatten flip fliplr flipud full full_like gather im2col index
    index_add index_copy index_fill index_put index_select lift lift_fresh lift_fresh_copy masked_fill masked_scatter
    masked_select mean moveaxis movedim narrow narrow_copy native_channel_shuffle neg new_empty new_empty_strided
    new_full new_zeros numpy_T permute permute_copy pixel_shuffle pixel_unshuffle positive put reflection_pad1d
    reflection_pad2d reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d
    reshape reshape_as resolve_conj resolve_neg roll scalar_tensor scatter scatter_add select select_copy select_scatter
    slice slice_copy slice_scatter split split_copy split_with_sizes split_with_sizes_copy squeeze squeeze_copy stack
    sum swapaxes swapdims t t_copy take tile to trace transpose transpose_copy tril triu type_as unbind unbind_copy
    unflatten unfold unfold_copy unsafe_chunk unsafe_index_put unsafe_split unsafe_split_with_sizes unsqueeze
    unsqueeze_copy view view_as view_copy view_of where zero zeros zeros_like _neg_view prims::clone prims::view_of
    prims::convert_element_type _unsafe_index _unsafe_index_put""".split()
)
_DATA = frozenset(
    """a fill_value input other s self source src tensor tensors value values weight""".split()
)  # operands that are complex; the others place them


@dataclass(frozen=True)
class Complex:
    """A complex tensor: two values of one real float type."""

    real: Value
    imaginary: Value

    @property
    def type(self) -> TensorType:
        """The type of each part."""
        return self.real.type


@dataclass(frozen=True)
class PartResult:
    """Torch's fake tensor of a complex result, as the one of a part of it."""

    dtype: Any
    shape: Any


def is_complex(item: Any) -> bool:
    """Whether an argument, or torch's fake result, is of complex numbers."""
    return isinstance(item, Complex | complex) or str(getattr(item, "dtype", "")).startswith("torch.complex")


def part_dtype(torch_dtype: Any) -> Any:
    """The torch.dtype of the parts of complex numbers; any other as it is."""
    import torch

    name = str(torch_dtype).removeprefix("torch.")
    return getattr(torch, _PARTS[name]) if name in _PARTS else torch_dtype


def complex_op(*names: str) -> Callable[[ComplexConverter], ComplexConverter]:
    """Registers a converter for nodes that take or give complex tensors, as `aten_op` does for others."""

    def add(converter: ComplexConverter) -> ComplexConverter:
        for name in names:
            assert name not in COMPLEX, name
            COMPLEX[name] = converter
        return converter

    return add


def convert_complex(c: Context) -> Any:
    """The results of a node of complex numbers: Complex where torch's are complex, else Values."""
    base = c.op.partition(".")[0]
    several = isinstance(c.results, list | tuple)
    parts = [_part_result(fake) for fake in (c.results if several else [c.results])]
    own = replace(c, results=parts if several else parts[0])
    converter = COMPLEX.get(c.op) or COMPLEX.get(base)
    if converter is not None:
        return converter(own)
    plain = converter_of(c.op)
    if base not in BY_PARTS or plain is None:
        c.unsupported("complex numbers")
    real, imaginary = (_by_part(own, plain, number) for number in range(2))
    if not several:
        return _joined(c.results, real, imaginary)
    return [_joined(fake, a, b) for fake, a, b in zip(c.results, real, imaginary, strict=False)]


def _part_result(fake: Any) -> Any:
    return PartResult(part_dtype(fake.dtype), fake.shape) if is_complex(fake) else fake


def _by_part(c: Context, plain: Callable[[Context], Result], number: int) -> Any:
    arguments = {
        name: _part(c, item, number) if name in _DATA else item for name, item in c.arguments.items()
    }  # fmt: skip
    return plain(replace(c, arguments=arguments))


def _part(c: Context, item: Any, number: int) -> Any:
    """The real (0) or imaginary (1) part of an operand."""
    if isinstance(item, list | tuple):
        return [_part(c, inner, number) for inner in item]
    if isinstance(item, Complex):
        return item.imaginary if number else item.real
    if isinstance(item, complex):
        return item.imag if number else item.real
    if number == 0:
        return item
    if isinstance(item, Value):
        return zeros(c, item)
    return 0 if isinstance(item, int | float) else item


def _joined(fake: Any, real: Value, imaginary: Value) -> Any:
    """The result; of a real one, such as a cast to it, the imaginary part does not count."""
    return Complex(real, imaginary) if is_complex(fake) else real


def zeros(c: Context, like: Value, dtype: DType | None = None) -> Value:
    """Zeros of a value's shape."""
    return c.expand(c.scalar(0, dtype or like.type.dtype), like.type.shape)


def constant_parts(tensor: Any) -> tuple[Any, Any]:
    """A complex torch tensor's parts, as contiguous real tensors."""
    import torch

    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    both = torch.view_as_real(plain.contiguous())
    return both[..., 0].contiguous(), both[..., 1].contiguous()


# What converters of complex numbers share

Parts = tuple[Value, Value | None]


def parts_of(c: Context, item: Any, dtype: DType) -> Parts:
    """An operand's parts in one float type; None for the imaginary part of a real one."""
    if isinstance(item, Complex):
        return c.cast(item.real, dtype), c.cast(item.imaginary, dtype)
    if isinstance(item, complex):
        return c.number_value(item.real, dtype), c.number_value(item.imag, dtype) if item.imag else None
    if isinstance(item, Value):
        return c.cast(item, dtype), None
    return c.number_value(float(item) if isinstance(item, bool | int) else item, dtype), None


def both_parts(c: Context, item: Any, dtype: DType) -> tuple[Value, Value]:
    """An operand's parts in one float type; zeros for the imaginary part of a real one."""
    real, imaginary = parts_of(c, item, dtype)
    return real, zeros(c, real) if imaginary is None else imaginary


def widest(*items: Any) -> DType:
    """The float type in which complex operands are computed with: half types in f32."""
    found = [item.type.dtype for item in items if isinstance(item, Complex | Value)]
    floats = [dtype for dtype in found if dtype.is_float] or [dtypes.F32]
    return wide_dtype(max(floats, key=lambda dtype: dtype.bits))


def made(c: Context, parts: tuple[Value, Value | None]) -> Complex:
    """A result of the element type that the node has."""
    real, imaginary = parts
    kind = dtype_of(c.result().dtype, c.where)
    return Complex(c.cast(real, kind), c.cast(zeros(c, real) if imaginary is None else imaginary, kind))
