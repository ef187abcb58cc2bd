"""What model code writes for norms, rotary embeddings, gates, patches, windows and grouped attention, as modules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

functional: Any = nn.functional


class Norm(nn.Module):
    """Root-mean-square normalization as written in several code bases, before a projection."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.weight = nn.Parameter(torch.rand(32) + 0.5)
        self.project = nn.Linear(32, 32, bias=False)
        self.whole = nn.RMSNorm(32, eps=1e-6)

    def forward(self, x: Any) -> Any:
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        if self.how == "weight first":
            y = self.weight * (wide * scale).to(x.dtype)
        elif self.how == "weight last":
            y = (wide * scale).type_as(x) * self.weight
        elif self.how == "one plus weight":
            y = ((wide * scale) * (1.0 + self.weight.float())).type_as(x)
        elif self.how == "square":
            y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight
        elif self.how == "square root":
            y = x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight
        else:
            y = self.whole(x)
        return self.project(y) + x


class Rotary(nn.Module):
    """Rotary position embeddings of queries and keys: halves or neighbours, whole or in part."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def turn(self, x: Any, cos: Any, sin: Any) -> Any:
        half = x.shape[-1] // 2
        if self.how == "halves":
            return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin
        if self.how == "chunks":
            a, b = x.chunk(2, -1)
            return x * cos + torch.cat((-b, a), -1) * sin
        if self.how == "two products":
            a, b = x.chunk(2, -1)
            cos, sin = cos[..., :half], sin[..., :half]
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        if self.how == "neighbours":
            return x * cos + torch.stack((-x[..., 1::2], x[..., 0::2]), -1).flatten(-2) * sin
        if self.how == "pairs":
            a, b = x.reshape(*x.shape[:-1], -1, 2).unbind(-1)
            cos, sin = cos[..., :half], sin[..., :half]
            return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
        head, cos, sin = x[..., :4], cos[..., :4], sin[..., :4]
        return torch.cat((head * cos + torch.cat((-head[..., 2:], head[..., :2]), -1) * sin, x[..., 4:]), -1)

    def forward(self, q: Any, k: Any, cos: Any, sin: Any) -> Any:
        return self.turn(q, cos, sin), self.turn(k, cos, sin)


class Gate(nn.Module):
    """Feed-forward blocks with a gate."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.gate, self.up = (nn.Linear(16, 48, bias=False) for _ in range(2))
        self.both = nn.Linear(16, 96, bias=False)
        self.down = nn.Linear(48, 16, bias=False)

    def forward(self, x: Any) -> Any:
        if self.how in ("joined", "glu"):
            if self.how == "glu":
                return self.down(functional.glu(self.both(x), -1))
            gate, up = self.both(x).chunk(2, -1)
            return self.down(functional.silu(gate) * up)
        gate, up = self.gate(x), self.up(x)
        activations: dict[str, Callable[[Any], Any]] = {
            "silu": functional.silu,
            "sigmoid": lambda g: g * torch.sigmoid(g),
            "gelu": functional.gelu,
            "gelu of erf": lambda g: g * 0.5 * (1.0 + torch.erf(g / 2**0.5)),
            "gelu of tanh": lambda g: functional.gelu(g, approximate="tanh"),
            "gelu by hand": lambda g: 0.5 * g * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (g + 0.044715 * g**3.0))),
            "quick": lambda g: g * torch.sigmoid(1.702 * g),
        }
        return self.down(activations[self.how](gate) * up)


class Vision(nn.Module):
    """A patch embedding, by a convolution or by a projection, and a block of a vision transformer."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.convolution = nn.Conv2d(3, 24, 4, stride=4)
        self.projection = nn.Linear(48, 24)
        self.first, self.places = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(1, 17, 24))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(2))
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.up, self.down = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: Any) -> Any:
        batch = x.shape[0]
        if self.how == "convolution":
            y = self.convolution(x).flatten(2).transpose(1, 2)
        else:
            y = self.projection(x.reshape(batch, 3, 4, 4, 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(batch, 16, 48))
        y = torch.cat((self.first.expand(batch, -1, -1), y), 1) + self.places
        q, k, v = self.qkv(self.norms[0](y)).reshape(batch, 17, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        y = y + self.out(mixed.transpose(1, 2).reshape(batch, 17, 24))
        return y + self.down(functional.gelu(self.up(self.norms[1](y))))


class Window(nn.Module):
    """A block of attention in windows, perhaps shifted."""

    def __init__(self, is_shifted: bool) -> None:
        super().__init__()
        self.is_shifted = is_shifted
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.register_buffer("bias", torch.randn(2, 16, 16))
        self.register_buffer("mask", torch.where(torch.rand(4, 16, 16) > 0.5, -100.0, 0.0))

    def forward(self, x: Any) -> Any:
        batch, height, width, channels = x.shape
        y = self.norms[0](x)
        if self.is_shifted:
            y = torch.roll(y, (-2, -2), (1, 2))
        y = y.view(batch, height // 4, 4, width // 4, 4, channels).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, channels)
        q, k, v = self.qkv(y).reshape(-1, 16, 3, 2, 8).permute(2, 0, 3, 1, 4).unbind(0)
        scores = (q * 8**-0.5) @ k.transpose(-2, -1) + self.bias[None]
        if self.is_shifted:
            scores = (scores.view(-1, 4, 2, 16, 16) + self.mask[None, :, None]).view(-1, 2, 16, 16)
        y = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, 16, channels))
        y = y.view(batch, height // 4, width // 4, 4, 4, channels).permute(0, 1, 3, 2, 4, 5).reshape(x.shape)
        if self.is_shifted:
            y = torch.roll(y, (2, 2), (1, 2))
        x = x + y
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Layer(nn.Module):
    """A decoder layer with a static cache, one step: normalization, rotation, grouped attention, a gated block."""

    def __init__(self, width: int = 32, heads: int = 4, keys: int = 2, inner: int = 64) -> None:
        super().__init__()
        self.each = width // heads
        self.q, self.out = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, keys * self.each, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)
        self.first, self.second = (nn.Parameter(torch.rand(width) + 0.5) for _ in range(2))

    def norm(self, x: Any, weight: Any) -> Any:
        return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    def turn(self, x: Any, cos: Any, sin: Any) -> Any:
        half = self.each // 2
        return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin

    def forward(self, x: Any, keys: Any, values: Any, position: Any, cos: Any, sin: Any, mask: Any) -> Any:
        batch, length, width = x.shape
        y = self.norm(x, self.first)
        q, k, v = (part(y).view(batch, length, -1, self.each).transpose(1, 2) for part in (self.q, self.k, self.v))
        q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
        places = position.view(1, 1, -1, 1).expand(k.shape)
        keys, values = keys.scatter(2, places, k), values.scatter(2, places, v)
        group = q.shape[1] // k.shape[1]
        wide = (part.repeat_interleave(group, 1) for part in (keys, values))
        mixed = functional.scaled_dot_product_attention(q, *wide, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.norm(x, self.second)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), keys, values


class Grouped(nn.Module):
    """Attention whose keys and values serve several heads each, as model code writes it."""

    def __init__(self, how: str, mask: str) -> None:
        super().__init__()
        self.how, self.mask = how, mask

    def forward(self, q: Any, k: Any, v: Any, mask: Any = None) -> Any:
        batch, keys, length, width = k.shape
        group = q.shape[1] // keys
        shape = (batch, q.shape[1], length, width)
        if self.how in ("axis", "einsum"):
            apart = q.view(batch, keys, group, q.shape[2], width)
            if self.how == "axis":
                scores = apart @ k[:, :, None].transpose(-1, -2)
            else:
                scores = torch.einsum("bkgsd,bktd->bkgst", apart, k)
            scores = scores * width**-0.5
            weights = (scores if mask is None else scores + mask.unsqueeze(1)).softmax(-1)
            if self.how == "axis":
                return (weights @ v[:, :, None]).flatten(1, 2)
            return torch.einsum("bkgst,bktd->bkgsd", weights, v).flatten(1, 2)
        if self.how in ("interleave", "by hand"):
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        elif self.how == "expand":
            k, v = (x[:, :, None].expand(batch, keys, group, length, width).reshape(shape) for x in (k, v))
        elif self.how == "stack":
            k, v = (torch.stack([x] * group, 2).flatten(1, 2) for x in (k, v))
        elif self.how == "repeat":
            k, v = (x.unsqueeze(2).repeat(1, 1, group, 1, 1).view(shape) for x in (k, v))
        if self.how == "by hand":
            scores = q @ k.transpose(-1, -2) * width**-0.5
            scores = scores if mask is None else scores + mask
            return scores.softmax(-1, dtype=torch.float32).to(q.dtype) @ v
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=self.mask == "causal", enable_gqa=self.how == "gqa"
        )


NORMS = ("weight first", "weight last", "one plus weight", "square", "square root", "whole")
ROTATIONS = ("halves", "chunks", "two products", "neighbours", "pairs", "part")
GATES = ("silu", "sigmoid", "gelu", "gelu of erf", "gelu of tanh", "gelu by hand", "quick", "joined", "glu")
GROUPS = ("interleave", "expand", "stack", "repeat", "gqa", "axis", "einsum", "by hand")


def layer_arguments(length: int = 16, batch: int = 1) -> tuple[Any, ...]:
    """Arguments of a `Layer`: one token, caches, its position, its rotation, and a mask."""
    caches = (torch.randn(batch, 2, length, 8) for _ in range(2))
    mask = torch.where(torch.arange(length) > 3, -1e9, 0.0).view(1, 1, 1, length)
    return (torch.randn(batch, 1, 32), *caches, torch.tensor([3]), torch.randn(1, 8), torch.randn(1, 8), mask)


def group_arguments(mask: str) -> tuple[Any, ...]:
    """Arguments of a `Grouped`."""
    tensors = (torch.randn(2, 4, 6, 8), torch.randn(2, 2, 6, 8), torch.randn(2, 2, 6, 8))
    masks = {"added": torch.randn(2, 1, 6, 6), "flags": torch.rand(6, 6) > 0.3}
    return (*tensors, masks[mask]) if mask in masks else tensors


Idiom = tuple[Callable[[], Any], Callable[[], tuple[Any, ...]]]
"""How to make a module, and its arguments."""


def normal(*shapes: tuple[int, ...]) -> tuple[Any, ...]:
    """Random tensors."""
    return tuple(torch.randn(*shape) for shape in shapes)


def idioms() -> dict[str, Idiom]:
    """All of them by name."""
    found: dict[str, Idiom] = {}
    for how in NORMS:
        found[f"norm, {how}"] = (partial(Norm, how), partial(normal, (2, 5, 32)))
    for how in ROTATIONS:
        found[f"rotary, {how}"] = (partial(Rotary, how), partial(normal, (2, 4, 6, 8), (2, 2, 6, 8), (6, 8), (6, 8)))
    for how in GATES:
        found[f"gate, {how}"] = (partial(Gate, how), partial(normal, (2, 5, 16)))
    for how in ("convolution", "projection"):
        found[f"patches, {how}"] = (partial(Vision, how), partial(normal, (2, 3, 16, 16)))
    for name, is_shifted in (("windows", False), ("windows, shifted", True)):
        found[name] = (partial(Window, is_shifted), partial(normal, (2, 8, 8, 16)))
    found["decoder layer"] = (Layer, layer_arguments)
    for how in GROUPS:
        found[f"grouped attention, {how}"] = (partial(Grouped, how, "added"), partial(group_arguments, "added"))
    return found
