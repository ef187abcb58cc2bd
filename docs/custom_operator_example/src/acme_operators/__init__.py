"""Two operators of Acme's audio models: the activation Snake, and an envelope follower."""

from pathlib import Path

import numpy as np

from aot.custom import (
    AttrSpec,
    KernelSource,
    Kind,
    OpDef,
    Operator,
    OpError,
    Sample,
    TensorType,
    broadcast_shapes,
    call,
    same_extent,
)

# Snake: elementwise, so its body is all that is needed. It fuses into its neighbours like any built-in op.


def snake_infer(attrs, x, alpha):
    if x.dtype != alpha.dtype or not x.dtype.is_float:
        raise OpError(f"x and alpha must have one float type; they have {x.dtype} and {alpha.dtype}")
    return TensorType(x.dtype, broadcast_shapes(x.shape, alpha.shape))


def snake_body(attrs, x, alpha):
    wave = call("sin", x * alpha)
    return x + wave * wave / alpha


def snake_samples(rng):
    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    alpha = rng.uniform(0.5, 2, (3, 1)).astype(np.float32)
    return [Sample((floats(2, 3, 40), alpha)), Sample((floats(3, 1), alpha)), Sample((floats(2, 3, 0), alpha))]


SNAKE = Operator(
    domain="com.acme",
    op_type="Snake",
    op=OpDef(
        name="acme.snake",
        doc="x + sin(alpha x)² / alpha, with broadcasting.",
        inputs=("x", "alpha"),
        kind=Kind.MAP,
        infer=snake_infer,
        body=snake_body,
        samples=snake_samples,
        cost_flops=24,
    ),
)

# Envelope: a recursion along the last axis, which no elementwise body can say. Its kernel is envelope.c.


def envelope_infer(attrs, x, start=None):
    if not x.dtype.is_float or x.dtype.bits < 32 or x.rank < 1:
        raise OpError(f"x must be f32 or f64, of rank 1 or more; it is {x}")
    if start is not None:
        if start.dtype != x.dtype or start.rank != x.rank - 1:
            raise OpError(f"start must be {x.dtype} of rank {x.rank - 1}; it is {start}")
        for have, want in zip(start.shape, x.shape, strict=False):
            same_extent(have, want, "start and x")
    return x, TensorType(x.dtype, x.shape[:-1])


def envelope_reference(attrs, x, start=None):
    state = np.zeros(x.shape[:-1], x.dtype) if start is None else start.copy()
    level = np.empty_like(x)
    for step in range(x.shape[-1]):
        now = np.abs(x[..., step])
        rate = np.where(now > state, x.dtype.type(attrs["attack"]), x.dtype.type(attrs["release"]))
        state = state + rate * (now - state)
        level[..., step] = state
    return level, state


def envelope_samples(rng):
    def floats(*shape, dtype=np.float32):
        return rng.normal(size=shape).astype(dtype)

    rates = {"attack": 0.5, "release": 0.0625}
    return [
        Sample((floats(3, 50),), rates),
        Sample((floats(2, 5, 17), np.abs(floats(2, 5))), rates),
        Sample((floats(9),), {"attack": 1.0}),
        Sample((floats(4, 33, dtype=np.float64),), rates),
        Sample((floats(0, 8),), rates),
        Sample((floats(8, 0),), rates),
    ]


ENVELOPE = Operator(
    domain="com.acme",
    op_type="Envelope",
    attributes={"attack_rate": "attack", "release_rate": "release"},
    op=OpDef(
        name="acme.envelope",
        doc="Follows |x| along the last axis, up at one rate and down at another; also the last level.",
        inputs=("x", "start?"),
        kind=Kind.OPAQUE,
        infer=envelope_infer,
        reference=envelope_reference,
        samples=envelope_samples,
        attrs={
            "attack": AttrSpec("float", doc="share of the way up that one step goes"),
            "release": AttrSpec("float", 0.01, "share of the way down that one step goes"),
        },
        sources={"cpu": KernelSource(text=Path(__file__).with_name("envelope.c").read_text(), function="envelope")},
        cost_flops=6,
    ),
)

OPERATORS = [SNAKE, ENVELOPE]
