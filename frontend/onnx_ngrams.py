"""The converter of TfIdfVectorizer: counts of known n-grams of numbers in rows of numbers."""

from __future__ import annotations

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.dims import Dim
from aot.frontend.onnx_registry import Context, Result, onnx_op
from aot.ir import Array, Value

MOST_COMPARISONS = 1 << 16
"""N-grams of one length: each place of a row is compared with all of them."""


@onnx_op("TfIdfVectorizer")
def _tf_idf(c: Context) -> Result:
    if c.has_attribute("pool_strings"):
        c.unsupported("n-grams of strings", "Number the words before the model.")
    mode = c.text_attribute("mode")
    if mode not in ("TF", "IDF", "TFIDF"):
        c.fail(f"mode {mode!r} is not TF, IDF or TFIDF")
    least, most = c.int_attribute("min_gram_length"), c.int_attribute("max_gram_length")
    skips = c.int_attribute("max_skip_count")
    starts, places = c.ints_attribute("ngram_counts"), c.ints_attribute("ngram_indexes")
    pool = np.array(c.ints_attribute("pool_int64s", ()), np.int64)
    if not 1 <= least <= most <= len(starts) or skips < 0 or min(places, default=-1) < 0:
        c.fail(f"gram lengths {least} to {most}, {len(starts)} ngram_counts, {skips} skips and {len(places)} places")
    x = c.cast(c.input(0), dtypes.I64)
    single = x.type.rank == 1
    rows = c.reshape(x, (1, x.type.shape[0])) if single else x
    if rows.type.rank != 2:
        c.fail(f"the operand must have rank 1 or 2; it has rank {x.type.rank}")
    counts: list[Value] = []
    columns: dict[int, int] = {}  # of each place in the result
    grams = width = 0
    for length in range(1, len(starts) + 1):
        end = starts[length] if length < len(starts) else pool.size
        if not 0 <= starts[length - 1] <= end <= pool.size or (end - starts[length - 1]) % length:
            c.fail(f"ngram_counts {list(starts)} do not divide a pool of {pool.size} into n-grams")
        listed = pool[starts[length - 1] : end].reshape(-1, length)
        first, grams = grams, grams + len(listed)
        if grams > len(places):
            c.fail(f"{len(places)} ngram_indexes for {grams} n-grams or more")
        if not least <= length <= most or not len(listed):
            continue
        if len(listed) > MOST_COMPARISONS:
            c.unsupported(f"{len(listed)} n-grams of one length")
        for number in range(len(listed)):
            if places[first + number] in columns:
                c.unsupported("n-grams that share a place of the result")
            columns[places[first + number]] = width + number
        width += len(listed)
        counts.append(_counted(c, rows, listed, skips if length > 1 else 0))
    size = max(places, default=-1) + 1
    batch = rows.type.shape[0]
    counts.append(c.expand(c.scalar(0.0, dtypes.F32), (batch, 1)))  # of what is not counted
    every = c.op("concat", *counts, axis=1) if len(counts) > 1 else counts[0]
    order = np.array([columns.get(place, width) for place in range(size)], np.int64)
    result = c.op("gather", every, c.builder.const(order), axis=1)
    result = _weighted(c, result, mode, places, size)
    return c.reshape(result, (size,)) if single else result


def _counted(c: Context, rows: Value, grams: Array, skips: int) -> Value:
    """[rows, n-grams]: how often each n-gram is in each row, its parts apart by 1 to skips + 1."""
    batch, extent = rows.type.shape
    total: Value | None = None
    for gap in range(1, skips + 2):
        reach = (grams.shape[1] - 1) * gap
        length: Dim = dimension.maximum(extent - reach, 0)
        hit: Value | None = None
        for part in range(grams.shape[1]):
            shifted = c.slice_axis(rows, 1, part * gap if length != 0 else 0, length)
            same = c.op("eq", c.reshape(shifted, (batch, length, 1)), c.builder.const(grams[:, part].copy()))
            hit = same if hit is None else c.op("and", hit, same)
        assert hit is not None
        found = c.op("reduce_sum", c.cast(hit, dtypes.F32), axes=(1,), keepdims=False)
        total = found if total is None else c.op("add", total, found)
    assert total is not None
    return total


def _weighted(c: Context, counts: Value, mode: str, places: tuple[int, ...], size: int) -> Value:
    """The weights are those of the n-grams in the order of the pool."""
    if mode == "TF":
        return counts
    weights = np.array(c.floats_attribute("weights", (1.0,) * len(places)), np.float32)
    if weights.size != len(places):
        c.fail(f"{weights.size} weights for {len(places)} n-grams")
    by_place = np.zeros(size, np.float32)
    by_place[list(places)] = weights
    if mode == "TFIDF":
        return c.op("mul", counts, c.builder.const(by_place))
    zero = c.scalar(0.0, dtypes.F32)
    return c.op("where", c.op("gt", counts, zero), c.builder.const(by_place), zero)
