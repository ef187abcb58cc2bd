"""Complex numbers inside of torch programs: pairs of real values, against eager torch and numpy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.errors import UnsupportedError
from aot.frontend import fourier, load
from aot.frontend.known import KnownBuilder
from tests.torch.programs import check, check_compiled, exported

torch = pytest.importorskip("torch")
Module: Any = torch.nn.Module


def rand(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def as_real(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of complex tensors, as one of tensors with parts in the last axis; complex results likewise."""

    def call(*given: Any) -> Any:
        result = function(*(torch.view_as_complex(tensor) for tensor in given))
        return torch.view_as_real(result.resolve_conj()) if result.is_complex() else result

    return call


ONE: dict[str, Callable[[Any], Any]] = {
    "abs": torch.abs, "angle": torch.angle, "conj": torch.conj, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "square": torch.square, "sgn": torch.sgn, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "expm1": torch.expm1,
    "neg": torch.neg, "sum": torch.sum, "mean": lambda x: x.mean(1, keepdim=True), "cumsum": lambda x: x.cumsum(0),
    "var": torch.var, "std": lambda x: x.std(0), "norm": torch.linalg.vector_norm, "prod": torch.prod,
    "prod of rows": lambda x: x.prod(1), "real": torch.real, "imag": torch.imag, "silu": lambda x: x * x.sigmoid(),
    "imag of conj": lambda x: x.conj().imag, "transpose": lambda x: x.T, "adjoint": lambda x: x.mH,
    "slice": lambda x: x[1:, ::2], "flip": lambda x: x.flip(0, 1), "roll": lambda x: x.roll(2, 1),
    "reshape": lambda x: x.reshape(-1), "cat": lambda x: torch.cat([x, 2j * x], 1),
    "stack": lambda x: torch.stack([x, x]),
    "pad": lambda x: torch.nn.functional.pad(x, (1, 2)), "where": lambda x: torch.where(x.real > 0, x, x.conj()),
    "index": lambda x: x[torch.tensor([2, 0])], "tril": torch.tril, "repeat": lambda x: x.repeat(2, 3),
    "power 3": lambda x: x**3, "power -2": lambda x: x**-2, "power 0.5": lambda x: x**0.5,
    "power 1.7": lambda x: x**1.7, "number to it": lambda x: 2.0**x, "power of itself": lambda x: x**x,
    "1j": lambda x: 1j * x + (2 - 1j), "over 1j": lambda x: x / (1 + 2j), "real over it": lambda x: 1.0 / x,
    "less real": lambda x: x - x.real, "real less it": lambda x: x.real - x, "all": lambda x: (x != 0).all(),
    "isfinite": torch.isfinite, "isnan": torch.isnan, "to real": lambda x: x.real.to(torch.complex64) * x,
    "to double": lambda x: x.to(torch.complex128), "ones": lambda x: torch.ones_like(x) + x,
    "zeros": lambda x: torch.zeros_like(x) - x, "full": lambda x: torch.full_like(x, 2 + 3j),
    "view as floats": lambda x: x.view(torch.float32) * 2, "masked": lambda x: x.masked_fill(x.real > 0, 1 - 1j),
    "split": lambda x: x.split(2, 1)[1], "unbind": lambda x: x.unbind(0)[-1], "isclose": lambda x: torch.isclose(x, x),
    "index put": lambda x: x.index_put((torch.tensor([0, 0]),), x[:2], accumulate=True),
    "filter": lambda x: torch.conv1d(x[None], x[:, None, :2].conj(), x[:, 0], groups=x.shape[0]),
}  # fmt: skip
TWO: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "alpha": lambda x, y: x.add(y, alpha=2 - 1j),
    "matmul": lambda x, y: x @ y.mT, "conjugated": lambda x, y: x @ y.mH, "vdot": lambda x, y: torch.vdot(x[0], y[0]),
    "dot": lambda x, y: torch.dot(x[0], y[0]), "mv": lambda x, y: x @ y[0],
    "outer": lambda x, y: torch.outer(x[0], y[1]),
    "addmm": lambda x, y: torch.addmm(x[:, :3], x, y.mT, beta=0.5, alpha=1j), "eq": torch.eq, "ne": torch.ne,
    "einsum": lambda x, y: torch.einsum("ab,cb->ac", x, y), "lerp": lambda x, y: torch.lerp(x, y, 0.3),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=2),
    "linear": lambda x, y: torch.nn.functional.linear(x, y, x[:, 0]),
    "real with complex": lambda x, y: x.real * y + y / x.imag,
    "pow": torch.pow, "dist": lambda x, y: torch.linalg.vector_norm(x - y), "isclose": torch.isclose,
}  # fmt: skip


@pytest.mark.parametrize("name", ONE)
def test_one_operand(name: str) -> None:
    check(as_real(ONE[name]), rand(3, 5, 2))


@pytest.mark.parametrize("name", TWO)
def test_two_operands(name: str) -> None:
    check(as_real(TWO[name]), rand(3, 5, 2), rand(3, 5, 2).flip(0))


def test_special_values() -> None:
    parts = torch.tensor([0.0, -0.0, 1.0, -1.0, 1e30, float("inf")])
    grid = torch.stack(torch.meshgrid(parts, parts, indexing="ij"), -1)
    finite = torch.stack(torch.meshgrid(parts[:5], parts[:5], indexing="ij"), -1)
    for function in (torch.abs, torch.angle, torch.isinf, torch.isfinite):
        check(as_real(function), grid)
    for function in (torch.sgn, torch.sqrt):
        check(as_real(function), finite)
    check(as_real(lambda x, y: x / y), finite[2:4, 2:], finite[2:4, 2:].flip(0))


def test_made_and_broadcast() -> None:
    check(lambda x, y: torch.view_as_real(torch.polar(x, y)), rand(3, 4).abs(), rand(3, 4))
    check(lambda x, y: torch.view_as_real(torch.complex(x, y)), rand(3, 4), rand(3, 4))
    check(as_real(lambda x, y: x * y), rand(3, 1, 2), rand(4, 2))
    check(lambda x: torch.view_as_real(torch.eye(3, dtype=torch.complex64) * x), rand(3, 3))
    check(lambda x: (torch.linspace(0, 1, 4) * 1j * x).exp().real, rand(3, 4))


def rotary(x: Any, angles: Any) -> Any:
    """Llama's first form of rotary embedding: pairs of neighbours as complex numbers, turned."""
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * angles[None, : x.shape[1], None, :]).flatten(3).type_as(x)


class Turned(Module):
    """Holds complex angles as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        frequencies = torch.outer(torch.arange(16).float(), 1.0 / 100.0 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("angles", torch.polar(torch.ones_like(frequencies), frequencies))
        self.mix = torch.nn.Parameter(torch.view_as_complex(rand(4, 4, 2)))

    def forward(self, x: Any) -> Any:
        turned = rotary(x, self.angles)
        spectrum = torch.view_as_complex(turned.reshape(*x.shape[:-1], -1, 2)) @ self.mix.conj()
        return turned, spectrum.abs()


def test_complex_buffers_and_weights(tmp_path: Path) -> None:
    """Also through a file, and with the length of the sequence open."""
    import aot

    module, x = Turned().eval(), rand(2, 7, 3, 8)
    program = torch.export.export(module, (x,), dynamic_shapes=({1: torch.export.Dim("length", min=2, max=16)},))
    torch.export.save(program, tmp_path / "turned.pt2")
    model = aot.compile(tmp_path / "turned.pt2", "cpu:x86-64-v3", cache_dir=str(tmp_path)).load()
    for length in (2, 7, 16):
        given = rand(2, length, 3, 8)
        for mine, theirs in zip(model.run({"x": given.numpy()}).values(), module(given), strict=True):
            np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=1e-5, atol=1e-5)


# Fourier transforms


@pytest.mark.parametrize("length", [1, 2, 7, 12, 128, 129, 400, 512, 521, 1042])
def test_transform(length: int) -> None:
    """Direct, in stages, with a prime length and as a convolution, both ways, against numpy in f64."""
    from aot import dtypes
    from aot.evaluate import evaluate

    rng = np.random.default_rng(length)
    x = (rng.normal(size=(2, length)) + 1j * rng.normal(size=(2, length))).astype(np.complex64)
    bins = length // 2 + 1
    for inverse in (False, True):
        builder = KnownBuilder("transform")
        real, imaginary = (builder.input(name, dtypes.F32, x.shape) for name in ("real", "imaginary"))
        half = [
            builder.op("slice", part, starts=(0, 0), sizes=(2, bins), steps=(1, 1))[0] for part in (real, imaginary)
        ]
        results = [
            *fourier.transform(builder, (real, imaginary), length, inverse=inverse),
            *fourier.transform(builder, (real, None), length, inverse=inverse, scale=2.0, bins=bins),
            fourier.real_inverse(builder, (half[0], half[1]), length, 1.0 / length),
        ]
        graph = builder.finish([builder.computed_copy(value) for value in results])
        got = evaluate(graph, [x.real.copy(), x.imag.copy()])
        wide = x.astype(np.complex128)
        fft = (lambda z: np.fft.ifft(z) * length) if inverse else np.fft.fft
        tolerance = 1e-6 * length**0.5 * np.log2(length + 1)
        np.testing.assert_allclose(got[0] + 1j * got[1], fft(wide), atol=tolerance)
        np.testing.assert_allclose(got[2] + 1j * got[3], 2 * fft(wide.real)[:, :bins], atol=2 * tolerance)
        np.testing.assert_allclose(got[4], np.fft.irfft(wide[:, :bins], length), atol=tolerance)


NORMS = ("forward", "backward", "ortho")
COMPLEX_FFT: dict[str, Callable[[Any, str], Any]] = {
    "fft": lambda x, norm: torch.fft.fft(x, norm=norm),
    "ifft, cut": lambda x, norm: torch.fft.ifft(x, 4, 1, norm),
    "fft, padded": lambda x, norm: torch.fft.fft(x, 9, 0, norm),
    "fft2": lambda x, norm: torch.fft.fft2(x, norm=norm),
    "ifftn": lambda x, norm: torch.fft.ifftn(x, (3, 8), (2, 0), norm),
    "irfft": lambda x, norm: torch.fft.irfft(x, norm=norm),
    "irfft, odd": lambda x, norm: torch.fft.irfft(x, 9, 1, norm),
    "irfft2": lambda x, norm: torch.fft.irfft2(x, norm=norm),
    "hfft": lambda x, norm: torch.fft.hfft(x, norm=norm),
}
REAL_FFT: dict[str, Callable[[Any, str], Any]] = {
    "fft": lambda x, norm: torch.fft.fft(x, norm=norm),
    "rfft": lambda x, norm: torch.fft.rfft(x, norm=norm),
    "rfft, padded": lambda x, norm: torch.fft.rfft(x, 11, 0, norm),
    "rfftn": lambda x, norm: torch.fft.rfftn(x, norm=norm),
    "ihfft": lambda x, norm: torch.fft.ihfft(x, norm=norm),
    "shifted": lambda x, norm: torch.fft.fftshift(torch.fft.fft2(x, norm=norm)),
}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", COMPLEX_FFT)
def test_complex_fft(name: str, norm: str) -> None:
    check(as_real(lambda x: COMPLEX_FFT[name](x, norm)), rand(3, 6, 5, 2))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("name", REAL_FFT)
def test_real_fft(name: str, norm: str) -> None:
    check(lambda x: torch.view_as_real(REAL_FFT[name](x, norm).resolve_conj()), rand(3, 6, 5))


def test_open_batch_and_convolution_theorem() -> None:
    def filtered(x: Any, kernel: Any) -> Any:
        size = x.shape[-1] + kernel.shape[-1] - 1
        product = torch.fft.rfft(x, size) * torch.fft.rfft(kernel, size)
        return torch.fft.irfft(product, size)

    check(filtered, rand(3, 40), rand(9), open_axes=((0,), ()), others=[(rand(1, 40), rand(9)), (rand(6, 40), rand(9))])


@pytest.mark.parametrize("center", [True, False])
def test_spectrogram(center: bool) -> None:
    def spectrum(x: Any) -> Any:
        window = torch.hann_window(24)
        return torch.stft(x, 32, 8, 24, window, center=center, normalized=True, return_complex=True).abs()

    check(spectrum, rand(2, 100))


def test_compiled(tmp_path: Path) -> None:
    def spectrum(x: Any) -> Any:
        frames = torch.stft(x, 200, 80, window=torch.hann_window(200), return_complex=True)
        power = torch.view_as_real(frames).pow(2).sum(-1)
        return power.clamp(min=1e-10).log10(), torch.fft.ifft2(frames).real

    check_compiled(spectrum, rand(2, 1000), cache=tmp_path, relative=1e-3)


# What is refused


def test_refused() -> None:
    """Each with a way out."""
    with pytest.raises(UnsupportedError, match="inputs of complex numbers") as caught:
        load(exported(torch.abs, (torch.ones(3, dtype=torch.complex64),)))
    assert "view_as_real" in str(caught.value)
    with pytest.raises(UnsupportedError, match="outputs of complex numbers") as caught:
        load(exported(torch.fft.rfft, (rand(8),)))
    assert "view_as_real" in str(caught.value)

    class Spectrum(Module):
        def forward(self, x: Any) -> Any:
            return torch.view_as_real(torch.fft.fft(x))

    length = torch.export.Dim("length", min=2, max=64)
    with pytest.raises(UnsupportedError, match="length is only known when running"):
        load(torch.export.export(Spectrum(), (rand(2, 8),), dynamic_shapes=({1: length},)))
    with pytest.raises(UnsupportedError, match="complex numbers"):
        load(exported(as_real(torch.acos), (rand(3, 2),)))


def test_complex_buffer_that_changes() -> None:
    class Counter(Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3, dtype=torch.complex64))

        def forward(self, x: Any) -> Any:
            self.total.add_(x)
            return self.total.abs()

    with pytest.raises(UnsupportedError, match="buffers of complex numbers that the program changes"):
        load(torch.export.export(Counter(), (rand(3),), strict=False))


def test_complex_numbers_in_branches() -> None:
    """A branch may take complex tensors; it gives real ones."""

    def function(x: Any, y: Any) -> Any:
        z = torch.view_as_complex(y)
        return torch.cond(x.sum() > 0, lambda a: a.abs(), lambda a: (a * 1j).real.clone(), (z,))

    check(function, rand(3).abs(), rand(4, 2), others=[(-rand(3).abs(), rand(4, 2))])
