"""Converters of the operators of ai.onnx.ml other than trees: linear models, scalers, encoders.

Strings have no place in an artifact: what maps to or from them is reported as unsupported, except that
ZipMap gives the tensor of probabilities itself and a note says which column is which class.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from aot import dtypes
from aot.dims import Dim
from aot.frontend.ml_scores import class_labels, transformed
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Array, Value

ml_op = partial(onnx_op, domain="ai.onnx.ml")

LARGEST_TABLE = 1 << 16
"""Span of integer keys up to which a table of all of them is kept."""


def float_array(c: Context, name: str) -> Array:
    """An attribute of floats; empty where it is not given."""
    return np.array(c.floats_attribute(name, ()), np.float32)


def as_f32(c: Context) -> Value:
    """The first operand in f32."""
    return c.cast(c.input(0), dtypes.F32)


def rows_of(c: Context, x: Value) -> tuple[Value, int]:
    """A matrix of rows, and how many features it has."""
    if x.type.rank == 1:
        x = c.reshape(x, (1, x.type.shape[0]))
    if x.type.rank != 2:
        c.fail(f"the features must be a matrix; they have rank {x.type.rank}")
    width = x.type.shape[1]
    if not isinstance(width, int):
        c.unsupported("a number of features that is only known when running", "Give it a value with --dim.")
    return x, width


def _per_feature(c: Context, values: Array, x: Value, what: str) -> Value:
    """One number, or one per feature, that broadcasts against x."""
    if x.type.rank not in (1, 2) and values.size != 1:
        c.fail(f"{what} per feature need a matrix; the operand has rank {x.type.rank}")
    if values.size != 1 and x.type.shape[-1] != values.size:
        c.fail(f"{values.size} {what} for {x.type.shape[-1]} features")
    return c.scalar(values.reshape(-1)[0].item(), x.type.dtype) if values.size == 1 else c.builder.const(values)


@ml_op("Scaler")
def _scaler(c: Context) -> Result:
    x = as_f32(c)
    offset, scale = float_array(c, "offset"), float_array(c, "scale")
    if offset.size:
        x = c.op("sub", x, _per_feature(c, offset, x, "offsets"))
    return c.op("mul", x, _per_feature(c, scale, x, "scales")) if scale.size else x


def _linear(c: Context, x: Value, width: int, targets: int, intercepts: Array) -> Value:
    coefficients = float_array(c, "coefficients")
    if coefficients.size != targets * width:
        c.fail(
            f"{coefficients.size} coefficients for {targets} targets of {width} features; {targets * width} are needed"
        )
    weights = np.ascontiguousarray(coefficients.reshape(targets, width).T)
    scores = c.op("matmul", x, c.builder.const(weights))
    return c.op("add", scores, c.builder.const(intercepts)) if intercepts.size else scores


@ml_op("LinearRegressor")
def _linear_regressor(c: Context) -> Result:
    x, width = rows_of(c, as_f32(c))
    targets = c.int_attribute("targets", 1)
    intercepts = float_array(c, "intercepts")
    if intercepts.size not in (0, targets):
        c.fail(f"{intercepts.size} intercepts for {targets} targets")
    scores = _linear(c, x, width, targets, intercepts)
    return transformed(c, scores, c.text_attribute("post_transform", "NONE"), alone=targets == 1)


@ml_op("LinearClassifier")
def _linear_classifier(c: Context) -> Result:
    x, width = rows_of(c, as_f32(c))
    labels = class_labels(c, "classlabels_ints", "classlabels_strings")
    intercepts = float_array(c, "intercepts")
    targets = int(intercepts.size) or len(labels)
    if targets not in (len(labels), 1):
        c.fail(f"{targets} intercepts for {len(labels)} classes")
    scores = _linear(c, x, width, targets, intercepts)
    post = c.text_attribute("post_transform", "NONE")
    if targets == 1:
        second, first = (labels[1], labels[0]) if len(labels) == 2 else (labels[0], 0)
        is_second = c.reshape(c.op("gt", scores, c.scalar(0.0, dtypes.F32)), (x.type.shape[0],))
        label = c.op("where", is_second, c.scalar(second, dtypes.I64), c.scalar(first, dtypes.I64))
        if len(labels) != 2:
            return label, transformed(c, scores, post, alone=True)
        score = transformed(c, scores, post, alone=post != "LOGISTIC")
        return label, c.op("concat", c.op("sub", c.scalar(1.0, dtypes.F32), score), score, axis=1)
    best = c.op("argmax", scores, axis=1, keepdims=False)
    return c.op("gather", c.builder.const(np.array(labels, np.int64)), best, axis=0), transformed(c, scores, post)


@ml_op("Normalizer")
def _normalizer(c: Context) -> Result:
    x = as_f32(c)
    norm = c.text_attribute("norm", "MAX")
    if x.type.rank not in (1, 2):
        c.fail(f"the operand must have rank 1 or 2; it has rank {x.type.rank}")
    axes = (x.type.rank - 1,)
    if norm == "MAX":
        size = c.op("reduce_max", x, axes=axes, keepdims=True)
    elif norm == "L1":
        size = c.op("reduce_sum", c.op("abs", x), axes=axes, keepdims=True)
    elif norm == "L2":
        size = c.op("sqrt", c.op("reduce_sum", c.op("mul", x, x), axes=axes, keepdims=True))
    else:
        c.fail(f"norm is MAX, L1 or L2; it is {norm!r}")
    none = c.op("eq", size, c.scalar(0.0, dtypes.F32))
    return c.op("div", x, c.op("where", none, c.scalar(1.0, dtypes.F32), size))


@ml_op("Imputer")
def _imputer(c: Context) -> Result:
    x = c.input(0)
    if x.type.dtype.is_float:
        imputed = np.array(c.floats_attribute("imputed_value_floats", ()), x.type.dtype.numpy)
        replaced: float = c.float_attribute("replaced_value_float", 0.0)
        missing = c.op("isnan", x) if math.isnan(replaced) else c.op("eq", x, c.scalar(replaced, x.type.dtype))
    else:
        imputed = np.array(c.ints_attribute("imputed_value_int64s", ()), x.type.dtype.numpy)
        missing = c.op("eq", x, c.scalar(c.int_attribute("replaced_value_int64", 0), x.type.dtype))
    if not imputed.size:
        c.fail("no imputed value of the operand's type is given")
    return c.op("where", missing, _per_feature(c, imputed, x, "imputed values"), x)


@ml_op("Binarizer")
def _binarizer(c: Context) -> Result:
    x = c.input(0)
    above = c.op("gt", x, c.scalar(c.float_attribute("threshold", 0.0), x.type.dtype))
    return c.cast(above, x.type.dtype)


@ml_op("ArrayFeatureExtractor")
def _array_feature_extractor(c: Context) -> Result:
    x, places = c.input(0), c.input(1)
    flat = c.reshape(places, (places.type.elements,))
    found = c.op("gather", x, flat, axis=x.type.rank - 1)
    return c.reshape(found, (1, found.type.shape[0])) if found.type.rank == 1 else found


@ml_op("OneHotEncoder")
def _one_hot_encoder(c: Context) -> Result:
    categories = np.array(c.ints_attribute("cats_int64s", ()), np.int64)
    if not categories.size:
        c.unsupported("categories that are strings", "Number the categories before the export.")
    if not c.bool_attribute("zeros", True):
        c.note("OneHotEncoder gives zeros for a value that is no category, where zeros=0 asks for an error")
    x = c.cast(c.input(0), dtypes.I64)
    hit = c.op("eq", c.reshape(x, (*x.type.shape, 1)), c.builder.const(categories))
    return c.cast(hit, dtypes.F32)


@ml_op("FeatureVectorizer")
def _feature_vectorizer(c: Context) -> Result:
    widths = c.ints_attribute("inputdimensions", ())
    if len(widths) != c.count:
        c.fail(f"{c.count} operands have {len(widths)} inputdimensions")
    parts = []
    for number, width in enumerate(widths):
        x, have = rows_of(c, c.cast(c.input(number), dtypes.F32))
        if width > have:
            c.unsupported(f"inputdimensions of {width} for {have} features")
        parts.append(c.slice_axis(x, 1, 0, width))
    return c.op("concat", *parts, axis=1) if len(parts) > 1 else parts[0]


@ml_op("LabelEncoder")
def _label_encoder(c: Context) -> Result:
    if c.opset < 2:
        c.unsupported("labels that are strings", "Number the classes before the export.")
    keys, values = _table(c, "keys"), _table(c, "values")
    if len(keys) != len(values):
        c.fail(f"{len(keys)} keys have {len(values)} values")
    default: Any
    tensor = c.tensor_attribute("default_tensor") if c.has_attribute("default_tensor") else None
    if tensor is not None:
        default = np.asarray(tensor.array()).reshape(-1)[0].item()
    elif values.dtype.kind == "f":
        default = c.float_attribute("default_float", -0.0)
    else:
        default = c.int_attribute("default_int64", -1)
    x = c.cast(c.input(0), dtypes.from_numpy(keys.dtype))
    to = dtypes.from_numpy(values.dtype)
    fallback = c.scalar(default, to)
    if not len(keys):
        return c.expand(fallback, x.type.shape)
    first: dict[Any, int] = {}
    for number, key in enumerate(keys.tolist()):
        first.setdefault(key, number)
    if keys.dtype.kind == "i" and int(keys.max()) - int(keys.min()) < LARGEST_TABLE:
        low, high = int(keys.min()), int(keys.max())
        table = np.full(high - low + 1, np.array(default, values.dtype), values.dtype)
        for key, number in first.items():
            table[key - low] = values[number]
        inside = c.op("and", c.op("ge", x, c.scalar(low, x.type.dtype)), c.op("le", x, c.scalar(high, x.type.dtype)))
        place = c.op("sub", c.op("where", inside, x, c.scalar(low, x.type.dtype)), c.scalar(low, x.type.dtype))
        return c.op("where", inside, c.op("gather", c.builder.const(table), place, axis=0), fallback)
    wide: tuple[Dim, ...] = (*x.type.shape, 1)
    column = c.reshape(x, wide)
    hit = c.op("eq", column, c.builder.const(keys))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        hit = c.op("or", hit, c.op("and", c.op("isnan", column), c.builder.const(np.isnan(keys))))
    place = c.op("argmax", c.cast(hit, dtypes.I32), axis=x.type.rank, keepdims=False)
    found = c.op("reduce_max", c.cast(hit, dtypes.I32), axes=(x.type.rank,), keepdims=False)
    value = c.op("gather", c.builder.const(values), place, axis=0)
    return c.op("where", c.op("gt", found, c.scalar(0, dtypes.I32)), value, fallback)


def _table(c: Context, which: str) -> Array:
    """The keys or values of a LabelEncoder, which must be numbers."""
    if c.has_attribute(f"{which}_int64s"):
        return np.array(c.ints_attribute(f"{which}_int64s"), np.int64)
    if c.has_attribute(f"{which}_floats"):
        return float_array(c, f"{which}_floats")
    if c.has_attribute(f"{which}_strings"):
        c.unsupported("labels that are strings", "Number the classes before the export.")
    tensor = c.tensor_attribute(f"{which}_tensor")
    if tensor is None:
        c.fail(f"no {which} are given")
    return np.asarray(tensor.array()).reshape(-1)


@ml_op("ZipMap")
def _zip_map(c: Context) -> Result:
    strings = c.texts_attribute("classlabels_strings", ())
    labels = [repr(text) for text in strings] or [str(number) for number in c.ints_attribute("classlabels_int64s", ())]
    c.note(
        f"{c.node.output[0]!r} is the tensor of probabilities that ZipMap would make dictionaries of;"
        f" its columns are the classes {', '.join(labels)}"
    )
    return c.input(0)
