"""Calibration of compiled programs: what is seen, shards, bytes, one streaming pass; and what is said of odd data."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.calibrate import Calibration, calibrate, plain
from aot.errors import OptionError
from aot.options import CompileOptions
from aot.quantization import Method
from aot.quantize import quantize
from aot.transforms.observe import taps
from aot.transforms.products import products
from tests.quantization import models
from tests.quantization.models import Maker
from tests.quantization.test_observations import observe


def test_what_is_seen_is_what_products_read(options: CompileOptions) -> None:
    """Tap by tap beside the interpreter; a tensor that several products read is seen once."""
    for make, name in ((models.images, "image"), (models.tokens, "tokens")):
        data = models.data_of(name, 3)
        found = calibrate(make(), data, options)
        graph = models.core_graph(make(), options)
        groups = taps(products(graph))
        assert set(found.taps) == set(groups) and found.samples == 3
        if name == "tokens":
            assert len(groups["q"]) == 3 and "k" not in groups
        for tap, group in groups.items():
            shown = graph.with_(outputs=(group[0].x,), state=())
            total = None
            for feed in data:
                (array,) = models.interpreted(shown, feed).values()
                here = observe(array, group[0].channel_axis)
                total = here if total is None else total + here
            seen = found.taps[tap]
            assert total is not None and seen.rows == total.rows and seen.elements == total.elements
            np.testing.assert_allclose(seen.low, total.low, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(seen.high, total.high, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(seen.means, total.means, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(seen.squares, total.squares, rtol=1e-4, atol=1e-5)
            moved = np.abs(np.cumsum(seen.counts - total.counts)).max()
            assert moved <= max(3, 0.01 * seen.elements), "few numbers lie so near an edge that they change bins"


def test_shards_in_any_order_and_bytes(options: CompileOptions, tmp_path: Path) -> None:
    """The same bytes: in one go, in shards added in any order, from files, and again; another digest for other data."""
    data = models.data_of("x", 4)
    whole = calibrate(models.dense(), data, options)
    shards = [calibrate(models.dense(), [sample], options) for sample in data[:2]]
    shards.append(calibrate(models.dense(), iter(data[2:]), options))
    for order in permutations(shards):
        assert (order[0] + order[1] + order[2]).to_bytes() == whole.to_bytes()
    for number, sample in enumerate(data):
        np.savez(tmp_path / f"{number}.npz", x=sample["x"])
    assert calibrate(models.dense(), tmp_path, options).to_bytes() == whole.to_bytes()
    other = calibrate(models.dense(), data[:3], options)
    assert other.data != whole.data and other.graph == whole.graph
    records = [
        quantize(models.dense(), calibration=Calibration.from_bytes(each.to_bytes()), options=options).to_bytes()
        for each in (whole, shards[2] + shards[0] + shards[1])
    ]
    assert records[0] == records[1]
    assert len(whole.to_bytes()) < 20_000


def test_the_file_does_not_grow_with_the_data(options: CompileOptions) -> None:
    """And samples are let go as they are used, whatever their number."""

    class Array(np.ndarray[Any, np.dtype[np.float32]]):
        pass

    alive: list[weakref.ref[Any]] = []
    most = 0

    def stream(count: int) -> Iterator[dict[str, Any]]:
        nonlocal most
        random = np.random.default_rng(0)
        for _ in range(count):
            array = random.standard_normal((4, 12)).astype(np.float32).view(Array)
            alive.append(weakref.ref(array))
            gc.collect(0)
            most = max(most, sum(each() is not None for each in alive))
            yield {"x": array}

    few, many = (calibrate(models.dense(), stream(count), options) for count in (10, 200))
    assert most <= 4 and many.samples == 200
    assert len(many.to_bytes()) < 1.7 * len(few.to_bytes())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "there is no sample"),
        (iter([]), "there is no sample"),
        ([{"y": np.ones((1, 12), np.float32)}], "no input 'y'"),
        ([{}], "input 'x' is missing"),
        ([{"x": np.ones((1, 12))}], "expected float32 elements, got float64"),
        ([{"x": np.ones((1, 13), np.float32)}], "expected 12, got 13"),
        ([{"x": np.ones((1, 12), np.float32)}, {"x": np.ones((12,), np.float32)}], "has 2 axes; the array has 1"),
        ([{"x": np.full((1, 12), np.nan, np.float32)}], "NaN or infinity, in 12 of 12"),
    ],
)
def test_data_that_does_not_fit(data: Any, message: str, options: CompileOptions) -> None:
    for attempt in (
        lambda: calibrate(models.dense(), data, options),
        lambda: quantize(models.dense(), "int8", data=data, options=options),
    ):
        with pytest.raises(OptionError, match=message) as raised:
            attempt()
        assert "there is no" in message or raised.value.where.startswith("sample ")


def test_odd_channels_are_told(options: CompileOptions) -> None:
    """Most channels of one value: a warning in the name of the node; it is quantized all the same."""
    data = [{"x": np.zeros((6, 12), np.float32)}]
    data[0]["x"][:, :3] = np.random.default_rng(0).standard_normal((6, 3))
    record = quantize(models.dense(), "int8", calibration=calibrate(models.dense(), data, options), options=options)
    assert record.notes[0] == "dense0: 9 of 12 channels of its input had one value on all of the data"
    assert record.nodes[0].form == "int8"
    dynamic = quantize(models.dense(), "int8-dynamic", data=data, allow_slower=True, options=options)
    assert dynamic.notes == (), "ranges of a run need no warning"


@pytest.mark.parametrize("observer", ["minmax", "percentile", "mse", "entropy"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_ranges_of_records(observer: str, symmetric: bool, options: CompileOptions) -> None:
    """Scales and zero points follow from the observer; zero is a number of each; relu's outputs start at zero."""
    calibration = calibrate(models.dense(), models.data_of("x", 6), options)
    method = Method(observer=observer, symmetric=symmetric, balance=False)
    for node in quantize(models.dense(), method, calibration=calibration, options=options).nodes:
        seen = calibration.taps[node.node]
        low, high = seen.range(observer)
        if symmetric:
            assert node.zero_point == 128 and node.scale == pytest.approx(max(-low, high) / 127, rel=1e-5)
        else:
            assert node.scale == pytest.approx((high - low) / 255, rel=1e-5)
            assert node.zero_point == pytest.approx(-low / node.scale, abs=0.51)
            assert node.node == "dense0" or node.zero_point == 0


def test_options_of_measurement_are_the_models_own(tmp_path: Path, options: CompileOptions) -> None:
    """What a build asks beyond the model does not reach the program that is measured."""
    from dataclasses import replace

    asked = replace(
        options, targets=("cuda:sm_90a",), precision="fp16", io_dtype="fp16", weights="external",
        variants=((("N", 1),),), dump_dir=tmp_path / "dump",
    )  # fmt: skip
    found = calibrate(models.dense(), models.data_of("x", 2), asked)
    assert found.to_bytes() == calibrate(models.dense(), models.data_of("x", 2), options).to_bytes()
    assert not (tmp_path / "dump").exists()
    kept = plain(replace(asked, exact=True, dims=("N=1..4",)))  # type: ignore[arg-type]
    assert kept.exact and str(kept.dims[0]) == "N=1..4"


def test_a_product_of_the_models_input(options: CompileOptions) -> None:
    """Observed where it enters, also where several products and outputs read it."""
    m = Maker()
    x = m.input("x", "N", 6)
    model = m.model(m.dense(x, m.array(6, 3), None, "a"), m.dense(x, m.array(6, 4), None, "b"), m.op("Identity", x))
    array = m.array(20, 6)
    found = calibrate(model, [{"x": array}], options)
    assert list(found.taps) == ["a"]
    assert np.array_equal(found.taps["a"].low, array.min(axis=0)) and found.taps["a"].rows == 20
