"""Charts: valid XML, everything in the frame, names that do not overlap, scales that fit."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest

from aot.cli.charts import Band, Chart, Level, Line, Mark, duration, number, round_powers, round_times, round_values

SVG = "{http://www.w3.org/2000/svg}"


def drawn(chart: Chart) -> ET.Element:
    return ET.fromstring(chart.svg())


def test_lines_break_at_gaps_and_lone_points_are_dots() -> None:
    root = drawn(Chart("t", [Line("a", [0, 1, 2, 3, 4], [1.0, 2.0, None, math.nan, 5.0], "#000")]))
    assert len(root.findall(f".//{SVG}polyline")) == 2
    assert len(root.findall(f".//{SVG}circle")) == 1


def test_steps_hold_until_the_next() -> None:
    root = drawn(Chart("t", [Line("a", [0, 10], [1.0, 2.0], "#000", steps=True)]))
    polyline = root.find(f".//{SVG}polyline")
    assert polyline is not None
    points = [tuple(map(float, point.split(","))) for point in polyline.attrib["points"].split()]
    assert len(points) == 3
    assert points[0][1] == points[1][1] and points[1][0] == points[2][0]


def test_names_stand_apart_and_in_the_picture() -> None:
    lines = [Line(f"line {n}", [0, 1], [1.0, 1.0 + n * 1e-6], "#000") for n in range(9)]
    root = drawn(Chart("t", lines, height=130))
    places = sorted(
        float(each.attrib["y"]) for each in root.findall(f"{SVG}text") if (each.text or "").startswith("line ")
    )
    assert len(places) == 9
    assert all(b - a >= 12.9 for a, b in itertools.pairwise(places))
    assert 0 < places[0] and places[-1] < float(root.attrib["height"])


def test_texts_are_escaped_everywhere() -> None:
    bad = '<script>"&\x00'
    chart = Chart(bad, [Line(bad, [0, 1], [1, 2], "#000")], [Band(bad, [0, 1], [0, 0], [1, 1], "#000")],
                  [Level(bad, 1.0)], [Mark(bad, 0.5)])  # fmt: skip
    svg = chart.svg()
    ET.fromstring(svg)
    assert "<script" not in svg and "\x00" not in svg


def test_bands_without_end_and_values_beyond_the_focus_are_clipped() -> None:
    band = Band("", [0, 1, 2], [-math.inf, 0, None], [math.inf, 1e9, 1], "#000")
    chart = Chart("t", [Line("a", [0, 1, 2], [0.5, 1e12, 0.7], "#000")], [band], focus=(0, 1))
    root = drawn(chart)
    polygon = root.find(f".//{SVG}polygon")
    assert polygon is not None
    numbers = [float(value) for value in re.findall(r"-?[\d.]+", polygon.attrib["points"])]
    assert max(map(abs, numbers)) < 5000
    assert "inf" not in chart.svg() and "nan" not in chart.svg()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[], [0.0], [5.0, 5.0], [1e-12, 1e12], [-1.0, 1.0]])
def test_any_values_can_be_drawn(values: list[float], log: bool) -> None:
    ET.fromstring(Chart("t", [Line("a", range(len(values)), values, "#000")], log=log).svg())


def test_scales() -> None:
    assert round_values(0, 1, 5) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert round_powers(-2.1, -0.9) == pytest.approx([0.01, 0.02, 0.05, 0.1])
    assert round_powers(0, 20) == pytest.approx([1, 1e4, 1e8, 1e12, 1e16, 1e20])
    assert round_times(3600) == [0, 600, 1200, 1800, 2400, 3000, 3600]


def test_numbers_for_people() -> None:
    assert [number(0.0042, "s"), number(12e-6, "s"), number(2.5, "s"), number(0, "s")] == [
        "4.2 ms",
        "12 us",
        "2.5 s",
        "0",
    ]
    assert [number(0.0525, "%"), number(1.1), duration(0), duration(600), duration(7200)] == [
        "5.25 %", "1.1", "0", "10 min", "2 h",
    ]  # fmt: skip
