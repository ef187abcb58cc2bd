"""The op table. Importing this package registers every built-in op; after that the table does not change."""

import importlib
import pkgutil

from aot.ops.opdef import (
    OPS,
    AttrSpec,
    DimMismatch,
    KernelSource,
    Kind,
    OpDef,
    OpError,
    Sample,
    Source,
    broadcast_shapes,
    infer,
    normalize_axis,
    register,
    same_extent,
)

__all__ = [
    "OPS",
    "AttrSpec",
    "DimMismatch",
    "KernelSource",
    "Kind",
    "OpDef",
    "OpError",
    "Sample",
    "Source",
    "broadcast_shapes",
    "infer",
    "normalize_axis",
    "register",
    "same_extent",
]

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"aot.ops.{_module}")
