"""The compiler's passes, top to bottom: the one list.

Each ordering constraint is a comment naming the test that fails when it is broken.
"""

from __future__ import annotations

from aot.passes import Pass
from aot.transforms.absorb_moves import absorb_moves
from aot.transforms.bind_shapes import bind_shapes
from aot.transforms.convert_io import convert_io
from aot.transforms.decompose import decompose
from aot.transforms.dedupe import dedupe
from aot.transforms.flush_subnormals import flush_subnormals
from aot.transforms.fold import fold
from aot.transforms.fuse import fuse
from aot.transforms.join import join
from aot.transforms.join_alike import join_alike
from aot.transforms.layout import assign_layouts
from aot.transforms.lower_quantized import lower_quantized
from aot.transforms.narrow import narrow
from aot.transforms.normalize import normalize
from aot.transforms.order import order
from aot.transforms.pad_channels import pad_channels
from aot.transforms.place import finish_layouts, reuse_in_place
from aot.transforms.quantize import quantize
from aot.transforms.recognize import recognize
from aot.transforms.roll import roll
from aot.transforms.simplify import simplify
from aot.transforms.split_keys import split_keys
from aot.transforms.split_sums import split_sums
from aot.transforms.state import settle_state

CORE_PASSES: tuple[Pass, ...] = (
    bind_shapes,
    convert_io,  # first, so that all others see the types that the artifact has  [tests/passes/test_convert_io.py]
    roll,  # before fold, which makes the first step, whose state is zero, unlike the others  [tests/torch/test_roll.py]
    fold,
    normalize,
    dedupe,  # before recognize: idioms share their constants and intermediates  [tests/passes/test_recognize.py]
    recognize,  # before simplify: idioms are matched as exporters write them
    simplify,
    dedupe,
    recognize,  # again: some idioms show only once reshapes and expansions have sunk
    simplify,
    decompose,  # after the last recognize, which would find the decomposed ops again
    simplify,  # decompositions leave reshapes, and multiplications that a weight can take
    fold,  # simplify leaves constant arithmetic (convolution weights x batch-norm scales)
    normalize,
    flush_subnormals,  # after the folds that make weights
    dedupe,
)
"""The same for every target."""

TARGET_PASSES: tuple[Pass, ...] = (
    quantize,  # after the core passes, whose products have the names of a record
    lower_quantized,  # before join, which joins products of floats  [tests/passes/test_lower_quantized.py]
    fold,  # weights that became floats are moved
    dedupe,  # several products correct and convert one tensor alike
    split_keys,
    join,  # before assign_layouts, which gives the parts the strides of the whole  [tests/passes/test_join.py]
    join_alike,  # after join, which makes neighbours of queries and keys  [tests/passes/test_join_alike.py]
    split_sums,  # after join, which makes one product of several  [tests/cuda/test_split_sums.py]
    pad_channels,  # before assign_layouts, which lays what it pads channels last  [tests/passes/test_pad_channels.py]
    assign_layouts,  # before fuse: it inserts copies, which fuse into their neighbours
    absorb_moves,  # after assign_layouts, which puts the copies in  [tests/passes/test_absorb_moves.py]
    fuse,
    narrow,  # before settle_state: a cache that is read without its cast is read before it is overwritten
    settle_state,  # before order, which keeps readers of state before its writers  [tests/torch/test_state.py]
    order,  # before finish_layouts: placement is paid for by the order
    finish_layouts,
    reuse_in_place,
)
"""These ask the target for its numbers."""

PIPELINE = (*CORE_PASSES, *TARGET_PASSES)
