"""Products, convolutions, attention, recurrent layers, pools and images in torch.export programs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aot.errors import UnsupportedError
from aot.frontend import load
from tests.torch.programs import check, check_compiled, exported

torch = pytest.importorskip("torch")
functional = torch.nn.functional


def x(*shape: int) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator)


PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "matmul of vectors": (lambda a, b: a @ b, [(3,), (3,)]),
    "matmul that broadcasts": (lambda a, b: a @ b, [(2, 1, 3, 4), (5, 4, 2)]),
    "mv": (lambda a, b: torch.mv(a, b), [(3, 4), (4,)]),
    "addmm": (lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2), [(4,), (2, 3), (3, 4)]),
    "addmm without": (lambda c, a, b: torch.addmm(c / 0, a, b, beta=0), [(4,), (2, 3), (3, 4)]),
    "baddbmm": (lambda c, a, b: torch.baddbmm(c, a, b), [(2, 1, 4), (2, 3, 3), (2, 3, 4)]),
    "addbmm": (lambda c, a, b: torch.addbmm(c, a, b), [(3, 4), (2, 3, 3), (2, 3, 4)]),
    "outer": (lambda a, b: torch.outer(a, b), [(3,), (4,)]),
    "linear": (lambda a, w, b: functional.linear(a, w, b), [(2, 3, 4), (5, 4), (5,)]),
    "bilinear": (lambda a, b, w: functional.bilinear(a, b, w), [(2, 3), (2, 4), (5, 3, 4)]),
    "einsum": (lambda a, b: torch.einsum("bij,bjk->bki", a, b), [(2, 3, 4), (2, 4, 5)]),
    "cdist": (lambda a, b: torch.cdist(a, b, p=1.5), [(2, 3, 4), (2, 5, 4)]),
    "pdist": (lambda a: functional.pdist(a), [(4, 3)]),
    "determinant": (lambda a: torch.linalg.det(a), [(2, 3, 3)]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    function, shapes = PRODUCTS[name]
    check(function, *(x(*shape) for shape in shapes))


CONVOLUTIONS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "1d": (lambda a, w, b: functional.conv1d(a, w, b, stride=2, padding=1), [(2, 3, 8), (4, 3, 3), (4,)]),
    "same": (lambda a, w: functional.conv2d(a, w, padding="same"), [(1, 2, 5, 6), (3, 2, 2, 3)]),
    "groups": (lambda a, w: functional.conv2d(a, w, groups=2, dilation=2), [(1, 4, 7, 7), (6, 2, 3, 3)]),
    "without batch": (lambda a, w: functional.conv2d(a, w), [(2, 5, 6), (3, 2, 2, 3)]),
    "3d": (lambda a, w: functional.conv3d(a, w, stride=(1, 2, 1)), [(1, 2, 4, 5, 4), (2, 2, 2, 2, 2)]),
    "transposed": (
        lambda a, w, b: functional.conv_transpose2d(a, w, b, stride=2, padding=1, output_padding=1, groups=2),
        [(1, 4, 3, 4), (4, 2, 3, 3), (4,)],
    ),
    "columns": (lambda a: functional.unfold(a, 2, dilation=2, padding=1, stride=2), [(2, 3, 6, 5)]),
    "columns back": (lambda a: functional.fold(a, (5, 6), (2, 3), padding=1, stride=2), [(2, 12, 9)]),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    function, shapes = CONVOLUTIONS[name]
    check(function, *(x(*shape) for shape in shapes))


POOLS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "mean": (lambda t: functional.avg_pool2d(t, 3, 2, 1, ceil_mode=True), (1, 2, 6, 7)),
    "mean of what is inside": (lambda t: functional.avg_pool2d(t, 3, 2, 1, count_include_pad=False), (1, 2, 6, 7)),
    "sum by a number": (lambda t: functional.avg_pool2d(t, 3, 2, 1, True, divisor_override=2), (1, 2, 6, 7)),
    "largest": (lambda t: functional.max_pool2d(t, 3, 2, 1, dilation=2, ceil_mode=True), (1, 2, 9, 8)),
    "places of the largest": (
        lambda t: functional.max_pool2d(t, 3, 2, 1, return_indices=True), (2, 2, 6, 7)
    ),
    "places along a line": (lambda t: functional.max_pool1d(t, 2, return_indices=True), (2, 7)),
    "adaptive mean": (lambda t: functional.adaptive_avg_pool2d(t, (3, 4)), (2, 3, 7, 8)),
    "global mean": (lambda t: functional.adaptive_avg_pool2d(t, 1), (2, 3, 7, 8)),
    "adaptive largest": (lambda t: functional.adaptive_max_pool2d(t, (3, 1), return_indices=True), (2, 3, 7, 8)),
    "nearest": (lambda t: functional.interpolate(t, size=(5, 9)), (1, 2, 3, 4)),
    "twice": (lambda t: functional.interpolate(t, scale_factor=2), (1, 2, 3, 4)),
    "nearest, centred": (lambda t: functional.interpolate(t, size=(5, 9), mode="nearest-exact"), (1, 2, 3, 4)),
    "bilinear": (lambda t: functional.interpolate(t, scale_factor=1.7, mode="bilinear"), (1, 2, 5, 6)),
    "bilinear at corners": (
        lambda t: functional.interpolate(t, (7, 3), mode="bilinear", align_corners=True), (1, 2, 5, 6)
    ),
    "bicubic": (lambda t: functional.interpolate(t, (7, 3), mode="bicubic"), (1, 2, 5, 6)),
    "smooth": (lambda t: functional.interpolate(t, (3, 4), mode="bilinear", antialias=True), (1, 2, 9, 7)),
    "smooth cubic": (lambda t: functional.interpolate(t, (3, 9), mode="bicubic", antialias=True), (1, 2, 9, 7)),
    "linear": (lambda t: functional.interpolate(t, 7, mode="linear"), (1, 2, 5)),
    "trilinear": (lambda t: functional.interpolate(t, (2, 5, 3), mode="trilinear"), (1, 2, 3, 3, 4)),
    "turned": (
        lambda t: functional.grid_sample(
            t, functional.affine_grid(torch.tensor([[[0.8, 0.3, 0.1], [-0.3, 0.9, 0.0]]]), [1, 2, 4, 4])
        ),
        (1, 2, 5, 6),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools_and_images(name: str) -> None:
    function, shape = POOLS[name]
    check(function, x(*shape))


def test_whole_numbers_are_averaged_as_torch_rounds_them() -> None:
    numbers = torch.arange(-30, 30).reshape(1, 1, 60)
    check(lambda t: functional.avg_pool1d(t, 3, 2), numbers)


def test_open_batch_and_sizes() -> None:
    axes, others = [(0, 2, 3)], [(x(1, 3, 8, 12),), (x(4, 3, 10, 6),)]
    check(lambda t: functional.adaptive_avg_pool2d(t, 1), x(2, 3, 6, 8), open_axes=axes, others=others)
    check(lambda t: functional.max_pool2d(t, 2, return_indices=True), x(2, 3, 6, 8), open_axes=axes, others=others)
    check(lambda t: functional.interpolate(t, scale_factor=2), x(2, 3, 6, 8), open_axes=axes, others=others)
    weight = x(4, 3, 3, 3)
    check(lambda t: functional.conv2d(t, weight, stride=2, padding=1), x(2, 3, 6, 8), open_axes=axes, others=others)


def grouped(rows: Any, weight: Any, ends: Any) -> Any:
    """What the operator of transformers does."""
    made = rows.new_zeros(rows.shape[0], weight.shape[2])
    start = 0
    for number, end in enumerate(ends.tolist()):
        made[start:end] = rows[start:end] @ weight[number]
        start = end
    return made


def attention(**more: Any) -> Callable[..., Any]:
    return lambda q, k, v, *mask: functional.scaled_dot_product_attention(q, k, v, *mask, **more)


QKV = ((2, 4, 5, 8), (2, 4, 7, 8), (2, 4, 7, 6))
EMPTY_ROW = torch.ones(5, 7, dtype=torch.bool).tril().index_fill(0, torch.tensor([2]), False)


@pytest.mark.parametrize(
    ("options", "shapes", "mask"),
    [
        ({}, QKV, None),
        ({"scale": 0.1}, QKV, None),
        ({"is_causal": True}, QKV, None),
        ({"is_causal": True}, ((2, 4, 5, 8), (2, 4, 5, 8), (2, 4, 5, 8)), None),
        ({}, QKV, EMPTY_ROW),
        ({}, QKV, x(2, 1, 5, 7)),
        ({"enable_gqa": True}, ((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6)), None),
        ({}, ((3, 5, 8), (3, 7, 8), (3, 7, 6)), x(3, 5, 7)),
        ({}, ((5, 8), (7, 8), (7, 6)), None),
        ({}, ((2, 3, 4, 5, 8), (2, 3, 4, 7, 8), (2, 3, 4, 7, 6)), x(3, 1, 5, 7)),
    ],
)  # fmt: skip
def test_attention(options: dict[str, Any], shapes: tuple[tuple[int, ...], ...], mask: Any) -> None:
    operands = [x(*shape) for shape in shapes]
    graph = check(attention(**options), *operands, *([] if mask is None else [mask]))
    assert "attention" in {node.op for node in graph.nodes}


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(
    "options", [{}, {"bidirectional": True, "num_layers": 2, "batch_first": True}, {"bias": False}]
)
def test_recurrent_layers_stay_whole(kind: str, options: dict[str, Any]) -> None:
    layer = getattr(torch.nn, kind)(3, 4, **options).eval()
    batch = 0 if options.get("batch_first") else 1  # torch keeps the number of steps fixed
    wider = x(5, 6, 3) if batch else x(6, 2, 3)
    graph = check(lambda t: layer(t), x(5, 2, 3), open_axes=[(batch,)], others=[(wider,)])
    assert sum(node.op == kind.lower() for node in graph.nodes) == options.get("num_layers", 1)


def test_grouped_products() -> None:
    """With the operator of transformers, or where that is not installed with one that does the same."""
    try:
        importlib.import_module("transformers.integrations.moe")
    except ImportError:
        name = "transformers::grouped_mm_fallback"
        torch.library.define(name, "(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        torch.library.impl(name, "cpu", grouped)
        torch.library.register_fake(name, lambda rows, weight, ends: rows.new_empty(rows.shape[0], weight.shape[2]))
    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    check(lambda a, w, e: torch.ops.transformers.grouped_mm_fallback(a, w, e) * 1, x(6, 3), x(3, 3, 4), ends)


def test_dropout_in_attention_is_refused() -> None:
    operands = [x(*shape) for shape in QKV]
    with pytest.raises(UnsupportedError, match="dropout"):
        load(exported(attention(dropout_p=0.5), operands))


def test_through_the_compiler(tmp_path: Path) -> None:
    layer = torch.nn.LSTM(3, 4).eval()

    def function(t: Any, image: Any) -> Any:
        output, _ = layer(t)
        pooled, places = functional.max_pool2d(image, 2, return_indices=True)
        return (
            output,
            pooled,
            places,
            functional.interpolate(image, (5, 9)),
            functional.fold(functional.unfold(image, 2), (4, 6), 2),
        )

    check_compiled(function, x(5, 2, 3), x(1, 2, 4, 6), cache=tmp_path)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("more", [{}, {"ignore_index": 2}, {"weight": x(5).abs(), "linear_bias": x(5)}])
def test_linear_cross_entropy(reduction: str, more: dict[str, Any]) -> None:
    if not hasattr(functional, "linear_cross_entropy"):
        pytest.skip("this PyTorch has no linear_cross_entropy")
    target = torch.tensor([0, 4, 2, 1, 2, 3])
    parts = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)  # PyTorch's own operator, in parts of the rows

    def function(rows: Any, weight: Any) -> Any:
        with torch.no_grad():
            return functional.linear_cross_entropy(rows, weight, target, reduction=reduction, options=parts, **more)

    check(function, x(6, 3), x(5, 3))


@pytest.mark.parametrize("options", [{}, {"bidirectional": True, "num_layers": 2, "batch_first": True, "bias": False}])
def test_lstm_with_projections(options: dict[str, Any]) -> None:
    layer = torch.nn.LSTM(3, 5, proj_size=2, **options).eval()
    check(lambda t: layer(t), x(4, 2, 3))
