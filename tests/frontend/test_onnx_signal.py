"""Grid sampling, pooling with indices and signal ops against ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aot.evaluate import evaluate
from aot.frontend import load
from tests.frontend.models import check_against_onnxruntime, single

RNG = np.random.default_rng(5)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


def check(op_type: str, operands: Any, opset: int, **more: Any) -> None:
    check_against_onnxruntime(*single(op_type, operands, opset=opset, **more), absolute=5e-5)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align", [0, 1])
def test_grid_sample(align: int, padding: str) -> None:
    x, grid = normal(2, 3, 5, 6), (RNG.random((2, 4, 7, 2)).astype(np.float32) - 0.5) * 3
    for mode in ("bilinear", "nearest", "bicubic"):
        check("GridSample", [x, grid], 16, mode=mode, padding_mode=padding, align_corners=align)
    for mode in ("linear", "nearest", "cubic"):
        check("GridSample", [x, grid], 20, mode=mode, padding_mode=padding, align_corners=align)
    deep, places = normal(1, 2, 3, 4, 5), (RNG.random((1, 2, 3, 4, 3)).astype(np.float32) - 0.5) * 3
    for mode in ("linear", "nearest"):
        check("GridSample", [deep, places], 20, mode=mode, padding_mode=padding, align_corners=align)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_with_indices(ceil: int, order: int) -> None:
    x = RNG.permutation(2 * 3 * 7 * 9).reshape(2, 3, 7, 9).astype(np.float32)
    check("MaxPool", [x], 17, results=2, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=ceil,
          storage_order=order)  # fmt: skip
    check("MaxPool", [x], 12, results=2, kernel_shape=[2, 2], dilations=[2, 3], storage_order=order)
    check("MaxPool", [x[0]], 12, results=2, kernel_shape=[3], strides=[2], ceil_mode=ceil)


def test_dft() -> None:
    real, both = normal(2, 10, 3, 1), normal(2, 10, 3, 2)
    for x in (real, both):
        for axis in (1, 2):
            check("DFT", [x], 17, axis=axis)
            check("DFT", [x, None, np.array(axis)], 20, constant=[2])
    check("DFT", [both], 17, inverse=1)
    check("DFT", [real], 17, onesided=1)
    check("DFT", [real, np.array(16)], 17, constant=[1], onesided=1)
    check("DFT", [real, np.array(7)], 17, constant=[1])


@pytest.mark.parametrize("length", [None, 10, 9, 7, 14])
def test_inverse_of_a_one_sided_transform(length: int | None) -> None:
    spectrum = normal(2, 6, 3, 2)
    spectrum[:, [0, -1], :, 1] = 0.0  # as a real signal has it
    expected = np.fft.irfft(spectrum[..., 0] + 1j * spectrum[..., 1], length, axis=1)[..., None]
    operands = [spectrum, None if length is None else np.array(length), np.array(1)]
    model, feed = single("DFT", operands, opset=20, constant=[1, 2], onesided=1, inverse=1)
    (result,) = evaluate(load(model), feed)
    np.testing.assert_allclose(result, expected, 1e-4, 1e-5)


@pytest.mark.parametrize("length", [600, 300, 131, 1042])
@pytest.mark.parametrize("have", [600, 450])
def test_long_transforms(have: int, length: int) -> None:
    """In stages, cut and padded, one- and two-sided, both ways, against numpy in f64."""
    for parts in (1, 2):
        x = normal(2, have, 3, parts)
        signal = (x[..., 0] + (1j * x[..., 1] if parts == 2 else 0)).astype(np.complex128)
        for inverse in (0, 1):
            transform = np.fft.ifft if inverse else np.fft.fft
            for onesided in (0, 1):
                operands = [x, np.array(length), np.array(1)]
                if onesided and parts != 1 + inverse:
                    continue
                model, feed = single("DFT", operands, opset=20, constant=[1, 2], onesided=onesided, inverse=inverse)
                (result,) = evaluate(load(model), feed)
                if onesided and inverse:
                    expected = np.fft.irfft(signal, length, axis=1)[..., None]
                else:
                    wanted = transform(signal, length, axis=1)
                    wanted = wanted[:, : length // 2 + 1] if onesided else wanted
                    expected = np.stack([wanted.real, wanted.imag], -1)
                assert result.shape == expected.shape
                np.testing.assert_allclose(result, expected, atol=1e-4 if not inverse else 1e-6)


def test_stft_and_mel_weights() -> None:
    x, window = normal(2, 64, 1), np.hanning(16).astype(np.float32)
    check("STFT", [x, np.array(4), window], 17, constant=[1, 2])
    check("STFT", [x, np.array(5), window, np.array(16)], 17, constant=[1, 2, 3], onesided=0)
    check("STFT", [x, np.array(8), None, np.array(10)], 17, constant=[1, 3])
    mel = [np.array(8), np.array(64), np.array(8192), np.array(50.0, np.float32), np.array(3000.0, np.float32)]
    check("MelWeightMatrix", mel, 17, constant=[0, 1, 2, 3, 4])
