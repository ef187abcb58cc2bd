"""Core ops that give gradients, against eager torch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.torch.programs import check, check_compiled

torch = pytest.importorskip("torch")
aten = torch.ops.aten


def rand(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


# Input shape, weight shape, stride, padding, dilation, transposed, output padding, groups.
CONVOLUTIONS = {
    "plain": ((2, 3, 7, 8), (4, 3, 3, 2), [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    "strided": ((2, 3, 8, 9), (4, 3, 3, 3), [2, 3], [1, 1], [1, 1], False, [0, 0], 1),
    "groups": ((3, 6, 9), (4, 3, 3), [2], [1], [2], False, [0], 2),
    "depthwise": ((1, 4, 6, 6), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1], False, [0, 0], 4),
    "transposed": ((2, 4, 5, 6), (4, 3, 3, 2), [2, 1], [1, 0], [1, 2], True, [1, 0], 1),
    "transposed groups": ((2, 4, 5), (4, 3, 3), [2], [1], [1], True, [0], 2),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolution(name: str) -> None:
    x_shape, w_shape, *attrs = CONVOLUTIONS[name]
    x, weight = rand(*x_shape), rand(*w_shape)
    made = aten.convolution(x, weight, None, *attrs)
    biases = [made.shape[1]]

    def gradients(grad: Any, x: Any, weight: Any) -> Any:
        return aten.convolution_backward(grad, x, weight, biases, *attrs, [True, True, True])

    check(gradients, rand(*made.shape), x, weight)


def test_convolution_in_part() -> None:
    def gradients(grad: Any, x: Any, weight: Any) -> Any:
        return aten.convolution_backward(
            grad, x, weight, [4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False]
        )[1]

    check(gradients, rand(2, 4, 6, 6), rand(2, 3, 6, 6), rand(4, 3, 3, 3))


POOLS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "average": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 2], [2, 2], [1, 0], False, True, None),
        (2, 3, 4, 4), (2, 3, 7, 8),
    ),
    "average of what is inside, rounded up": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], True, False, None),
        (2, 3, 5, 5), (2, 3, 8, 8),
    ),
    "average with a divisor": (
        lambda g, x: aten.avg_pool2d_backward(g, x, [2, 2], [], [0, 0], False, True, 3), (3, 4, 4), (3, 8, 9),
    ),
    "adaptive": (lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), (2, 3, 3, 5), (2, 3, 7, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_pools(name: str) -> None:
    function, grad, x = POOLS[name]
    check(function, rand(*grad), rand(*x))
    check(function, rand(*grad).half(), rand(*x).half())


def test_max_pool() -> None:
    x = rand(2, 3, 8, 9)
    attrs = ([3, 3], [2, 2], [1, 1], [1, 1], False)
    made, places = aten.max_pool2d_with_indices(x, *attrs)
    check(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, *attrs, i), rand(*made.shape), x, places)


@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(by_frequency: bool) -> None:
    words = torch.tensor([[1, 2, 2], [5, 1, 0]])
    check(lambda g, i: aten.embedding_dense_backward(g, i, 7, 2, by_frequency), rand(2, 3, 4), words)


def test_norms() -> None:
    x, grad, weight = rand(4, 3, 5), rand(4, 3, 5).flip(0), rand(3, 5)

    def layer(grad: Any, x: Any, weight: Any) -> Any:
        _, mean, inverse = aten.native_layer_norm(x, [3, 5], weight, None, 1e-5)
        return aten.native_layer_norm_backward(grad, x, [3, 5], mean, inverse, weight, weight, [True, True, True])

    def group(grad: Any, x: Any, weight: Any) -> Any:
        _, mean, inverse = aten.native_group_norm(x, weight, None, 4, 6, 5, 3, 1e-5)
        return aten.native_group_norm_backward(grad, x, mean, inverse, weight, 4, 6, 5, 3, [True, True, True])

    check(layer, grad, x, weight)
    check(group, rand(4, 6, 5).flip(0), rand(4, 6, 5), rand(6))


def test_gradient_of_a_network(tmp_path: Path) -> None:
    """Compiled: the gradients of layers in a row."""

    def gradients(x: Any, weight: Any, scale: Any) -> Any:
        made = aten.convolution(x, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
        normed, mean, inverse = aten.native_group_norm(made, scale, None, 2, 4, 16, 2, 1e-5)
        pooled, places = aten.max_pool2d_with_indices(normed, [2, 2], [2, 2])
        back = aten.max_pool2d_with_indices_backward(
            pooled, normed, [2, 2], [2, 2], [0, 0], [1, 1], False, places
        )  # fmt: skip
        back = back + aten.avg_pool2d_backward(pooled, normed, [2, 2], [2, 2], [0, 0], False, True, None)
        back, of_scale, _ = aten.native_group_norm_backward(
            back, made, mean, inverse, scale, 2, 4, 16, 2, [True, True, False]
        )
        into, of_weight, _ = aten.convolution_backward(
            back, x, weight, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        )
        return into, of_weight, of_scale

    check_compiled(gradients, rand(2, 3, 8, 8), rand(4, 3, 3, 3), rand(4), cache=tmp_path)


@pytest.mark.parametrize("axes", [2, 3])
def test_fractional_pool(axes: int) -> None:
    pool = aten.fractional_max_pool2d if axes == 2 else aten.fractional_max_pool3d
    x, samples = rand(2, 3, *(9, 8, 7)[:axes]), torch.rand(2, 3, axes)
    check(lambda x, u: pool(x, [2] * axes, [4, 1, 3][:axes], u), x, samples)
