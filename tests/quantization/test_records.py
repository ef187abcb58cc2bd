"""Records and calibrations as files: the same bytes, and an error for everything else; nothing in them runs."""

from __future__ import annotations

import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.array_files import archive_bytes
from aot.calibrate import Calibration
from aot.errors import OptionError
from aot.observations import Observation
from aot.quantization import (
    DYNAMIC,
    FLOAT,
    FORMS,
    STATIC,
    WEIGHTS,
    Entry,
    Method,
    NodeRecord,
    Point,
    Quantization,
)
from tests.quantization.test_observations import observe


def record() -> Quantization:
    """One with all that a record can hold."""
    odd = "päth/ 'node' \"<x>\" #2\n"
    nodes = (
        NodeRecord("a", "int8", 0.25, 3, balance=np.array([1, 2.5], np.float32), means=np.array([0, -1], np.float32)),
        NodeRecord(odd, FLOAT),
        NodeRecord("c", "int4-weights", weight=np.arange(6, dtype=np.uint8).reshape(3, 2),
                   weight_scale=np.ones((1, 2), np.float32)),
        NodeRecord("d", "int8-weights", weight=np.ones((2, 2), np.int8), weight_scale=np.ones((1, 2), np.float32)),
    )  # fmt: skip
    ledger = (Entry(node="a", op="conv", form="int8", alone=0.1, running=0.2, weight_snr_db=40.0, saturated=0.0),
              Entry(node=odd, op="matmul", form=FLOAT, reason="asked for: päth"))  # fmt: skip
    points = (Point(quantized=0, error=0.0, run_us=1.0, weight_bytes=9),
              Point(quantized=1, error=0.1, run_us=1.0, weight_bytes=9, chosen=True))  # fmt: skip
    return Quantization(
        Method(float_nodes=("päth",)), nodes, "ab" * 32, "cd" * 32, 5, "relative error", 0.1, 0.05, 4, "here", ledger,
        points, ("a note",),
    )  # fmt: skip


def calibration() -> Calibration:
    seen = {"b": observe([[1, 2, 3], [np.nan, 5, 6]]), "a": observe([[0.5]])}
    return Calibration("ab" * 32, f"{12345:064x}", 2, seen)


READERS: dict[str, tuple[Callable[[], bytes], Callable[[bytes], Any]]] = {
    "record": (lambda: record().to_bytes(), Quantization.from_bytes),
    "calibration": (lambda: calibration().to_bytes(), Calibration.from_bytes),
}


@pytest.mark.parametrize("kind", READERS)
def test_bytes_come_back(kind: str, tmp_path: Path) -> None:
    make, read = READERS[kind]
    data = make()
    assert make() == data and read(data).to_bytes() == data
    path = tmp_path / "file"
    read(data).save(path)
    assert path.read_bytes() == data and type(read(data)).open(path).to_bytes() == data


def test_a_record_comes_back() -> None:
    back, one = Quantization.from_bytes(record().to_bytes()), record()
    assert back.summary() == one.summary() and back.digest == one.digest and back.method == one.method
    assert back.ledger == one.ledger and back.points == one.points
    assert np.array_equal(back.nodes[0].balance, one.nodes[0].balance) and back.nodes[1].node == one.nodes[1].node


def test_the_digest_is_of_what_changes_a_build() -> None:
    one = record()
    assert replace(one, ledger=(), points=(), notes=(), final=None).digest == one.digest
    others = [
        replace(one, graph="ef" * 32),
        replace(one, method=replace(one.method, per_channel=False)),
        one.with_forms({"a": FLOAT}),
        replace(one, nodes=(replace(one.nodes[0], scale=0.5), *one.nodes[1:])),
        replace(one, nodes=(replace(one.nodes[0], zero_point=4), *one.nodes[1:])),
        replace(one, nodes=(replace(one.nodes[0], means=np.ones(2, np.float32)), *one.nodes[1:])),
    ]
    assert len({each.digest for each in (one, *others)}) == 1 + len(others)


@pytest.mark.parametrize("kind", READERS)
def test_damage(kind: str) -> None:
    """Files cut at every place of the beginning and many others, with flipped bits, and grown."""
    make, read = READERS[kind]
    data, chance = make(), random.Random(kind)
    damaged = [data[:end] for end in {*range(0, 80), *(chance.randrange(len(data)) for _ in range(150))}]
    for _ in range(700):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        damaged.append(bytes(changed))
    damaged += [data[: len(data) // 2] * 2, data[100:], b"", b"PK", bytes(200), data[::-1]]
    expected = read(data).to_bytes()
    refused = 0
    for each in damaged:
        try:
            found = read(each)
        except OptionError as error:
            refused += 1
            assert str(error)
        else:  # a bit that no one reads, such as one of a time stamp
            assert found.to_bytes() == expected
    assert refused > 0.6 * len(damaged)


class Evil:
    """Runs when it is unpickled."""

    ran = False

    def __reduce__(self) -> Any:
        return (setattr, (Evil, "ran", True))


def archive(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", READERS)
def test_other_files(kind: str) -> None:
    make, read = READERS[kind]
    other = READERS["calibration" if kind == "record" else "record"][0]()
    with zipfile.ZipFile(plain := io.BytesIO(), "w") as file:
        file.writestr("hello.txt", "hello")
    array = io.BytesIO()
    np.save(array, np.arange(3))
    with zipfile.ZipFile(io.BytesIO(make())) as file:
        document = np.load(io.BytesIO(file.read("record.npy")))

    def said(text: str) -> bytes:
        return archive(record=np.frombuffer(text.encode(), np.uint8))

    form = f"aot.{'quantization' if kind == 'record' else 'calibration'}/1"
    evil = np.array([Evil()], object)
    files = [
        other, plain.getvalue(), array.getvalue(), pickle.dumps(Evil()), archive(record=evil),
        archive(record=document, more=evil), archive(x=np.ones(3)), said("[]"), said("{}"), said("3"), said("null"),
        said("not json"), said("[" * 100_000), said(json.dumps({"format": form})),
        said(json.dumps({"format": form[:-1] + "2"})), said(json.dumps({"format": 7})),
        archive(record=np.ones((2, 2))), archive(record=document.astype(np.float64)), archive(record=np.array("x")),
    ]  # fmt: skip
    for data in files:
        with pytest.raises(OptionError):
            read(data)
    assert not Evil.ran
    with pytest.raises(OptionError, match=r"expected 'aot\..*/1"):
        read(said(json.dumps({"format": form[:-1] + "2"})))
    missing = Quantization.open if kind == "record" else Calibration.open
    with pytest.raises(OptionError, match="No such file") as raised:
        missing(Path("no such file"))
    assert f"aotc {'quantize' if kind == 'record' else 'calibrate'}" in raised.value.hint


def changed_record(change: Callable[[Any], object], **arrays: Any) -> bytes:
    """A well-formed file with another document."""
    one = record()
    document = json.loads(json.dumps(one.summary()))
    change(document)
    held = {
        f"{number}.{name}": getattr(node, name)
        for number, node in enumerate(one.nodes)
        for name in ("balance", "means", "weight", "weight_scale")
        if getattr(node, name).size
    }
    return archive_bytes(document, {**held, **arrays})


def put(*path: Any) -> Callable[[Any], object]:
    """Sets a field: keys, then what is put there."""

    def change(document: Any) -> None:
        for key in path[:-2]:
            document = document[key]
        document[path[-2]] = path[-1]

    return change


@pytest.mark.parametrize(
    "path",
    [
        ("nodes", 0, "form", "int3"), ("nodes", 0, "scale", -1.0), ("nodes", 0, "scale", 0.0),
        ("nodes", 0, "scale", "x"), ("nodes", 0, "scale", None), ("nodes", 0, "zero_point", 256),
        ("nodes", 0, "zero_point", -1), ("nodes", 0, "node", 7), ("nodes", 0, "scale", 10**400),
        ("nodes", {"a": 1}), ("nodes", 3), ("nodes", ["x"]), ("method", []), ("method", "form", "x"),
        ("method", "percentile", "x"), ("method", "extra", 1), ("method", "float_nodes", 3), ("extra", 1),
        ("ledger", 0, "alone", "<script>"), ("ledger", 0, "node", None), ("ledger", 0, "more", 1), ("ledger", 3),
        ("points", 0, "error", "much"), ("points", 0, "chosen", 3), ("final", "x"), ("samples", "x"), ("budget", []),
        ("graph", 3), ("notes", 3),
    ],
    ids=str,
)  # fmt: skip
def test_documents_that_no_record_has(path: Any) -> None:
    with pytest.raises(OptionError, match="damaged"):
        Quantization.from_bytes(changed_record(put(*path)))


@pytest.mark.parametrize(
    "arrays",
    [
        {"0.balance": np.array([1.0, np.nan], np.float32)},
        {"0.balance": np.array([1.0, -1.0], np.float32)},
        {"0.balance": np.array([1.0, 0.0], np.float32)},
        {"0.balance": np.array([1.0, 2.0])},
        {"0.means": np.array([[1.0]], np.float32)},
        {"2.weight": np.ones((3, 2), np.float32)},
        {"2.weight_scale": np.array([[1, np.inf]], np.float32)},
        {"2.weight": np.array(["x"])},
    ],
    ids=str,
)
def test_arrays_that_no_record_has(arrays: Any) -> None:
    with pytest.raises(OptionError, match="damaged"):
        Quantization.from_bytes(changed_record(lambda document: None, **arrays))


def test_numbers_that_json_does_not_have() -> None:
    text = json.dumps(record().summary()).replace('"final": 0.05', '"final": NaN')
    assert "NaN" in text
    with pytest.raises(OptionError, match="NaN"):
        Quantization.from_bytes(archive(record=np.frombuffer(text.encode(), np.uint8)))


@pytest.mark.parametrize("data", ["zz", "", 7, None])
def test_digests_that_are_none(data: Any) -> None:
    document = {"format": "aot.calibration/1", "graph": "ab", "data": data, "samples": 1, "taps": []}
    with pytest.raises(OptionError, match="damaged"):
        Calibration.from_bytes(archive_bytes(document, {}))


def test_shards_add_up_in_any_order() -> None:
    chance = np.random.default_rng(0)
    parts = [
        Calibration("ab", f"{chance.integers(1 << 62) << 190:064x}", 1, {"a": observe(chance.normal(size=(5, 4)))})
        for _ in range(5)
    ]
    sums = set()
    for _ in range(10):
        order = chance.permutation(5)
        total = parts[order[0]]
        for n in order[1:]:
            total = total + parts[n]
        sums.add(total.to_bytes())
    assert len(sums) == 1 and total.samples == 5
    nested = (parts[0] + parts[1]) + (parts[2] + (parts[3] + parts[4]))
    assert nested.to_bytes() in sums


def test_calibrations_of_different_models_do_not_add_up() -> None:
    one = calibration()
    narrow = {name: observe(np.ones((1, 7))) for name in one.taps}
    for other in (replace(one, graph="ef"), replace(one, taps={"b": one.taps["b"]}), replace(one, taps=narrow)):
        with pytest.raises(OptionError, match="different models"):
            one + other


def test_methods() -> None:
    assert set(FORMS) == {*STATIC, *DYNAMIC, *WEIGHTS}
    assert Method(form="int4-weights").block == 32 and Method(form="int8-weights").block == 0
    assert Method(float_nodes="head").float_nodes == ("head",)  # type: ignore[arg-type]
    needing = {form for form in FORMS if Method(form=form).needs_data}
    assert needing == set(STATIC) and Method(form="int8-weights", rounding="gptq").needs_data
    assert asdict(Method())["form"] == "int8"
    wrong: list[dict[str, Any]] = [
        {"form": "int7"}, {"observer": "most"}, {"rounding": "up"}, {"percentile": 50}, {"percentile": 101},
        {"percentile": float("nan")}, {"block": 32}, {"block": -4, "form": "int8-weights"}, {"rounding": "gptq"},
        {"form": "int4-weights", "block": 16},
    ]  # fmt: skip
    for options in wrong:
        with pytest.raises(OptionError):
            Method(**options)


def test_an_observation_is_not_compared_by_mistake() -> None:
    assert isinstance(calibration().taps["a"], Observation) and calibration().taps["a"] != calibration().taps["a"]
