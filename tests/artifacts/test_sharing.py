"""One file for several targets: every weight once, kernels and lines of text once; the loader makes the rest."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aot import dtypes, recipe
from aot.artifacts import Artifact, layout, texts
from aot.artifacts.images import shared_images
from aot.artifacts.kept_sources import WORTH, kept_sources
from aot.artifacts.layout import RECORD_OF, ConstantFlag, Section
from aot.artifacts.write import assemble
from aot.errors import ArtifactError
from aot.ir import Array, const_of
from aot.program import Constant, Program, RecipeOp, RecipeStep, Source
from aot.runtime import load
from tests.artifacts.test_damaged import READERS, Opener, must_be_damaged, sections_of
from tests.runtime import cuda_programs, handmade

F32, F16 = dtypes.F32.number, dtypes.F16.number
WIDE = np.random.default_rng(3).standard_normal((64, 48)).astype(np.float32)


def other(*constants: Constant, sources: Mapping[str, Array] | None = None, target: str = "cuda:sm_90a") -> Program:
    """A program of another target that reads weights and does nothing."""
    named = {"layer.weight": handmade.weights()[0], "layer.bias": handmade.weights()[1]} if sources is None else sources
    return replace(
        handmade.program(target),
        kernels=(),
        steps=(),
        code=b"",
        buffers=(),
        constants=constants,
        sources=tuple(Source(name, const_of(array, name)) for name, array in named.items()),
    )


def plain() -> Program:
    """The other target reads the weight row by row, and the bias as all do."""
    w, b = handmade.weights()
    return other(
        Constant("layer.weight", F32, w.shape, (recipe.source(0),)),
        Constant("layer.bias", F32, b.shape, (recipe.source(1),)),
    )


def both(**options: object) -> Artifact:
    return handmade.artifact(plain(), handmade.program(), **options)


def test_a_weight_that_targets_pack_differently_is_stored_once() -> None:
    artifact, packed = both(), both(weights="packed")
    w, b = handmade.weights()
    assert artifact.sections["weights"] == -(-w.nbytes // 64) * 64 + b.nbytes
    assert packed.sections["weights"] > artifact.sections["weights"] + 600
    gpu, cpu = artifact.target_bytes
    assert (gpu.ready_bytes, gpu.made_bytes) == (w.nbytes + b.nbytes, 0)
    assert (cpu.ready_bytes, cpu.made_bytes) == (b.nbytes, 2 * handmade.K * 16 * 4)  # the bias lies ready for both
    assert cpu.own_bytes == cpu.code_bytes and gpu.own_bytes == 0  # what the CPU packs is used by both
    assert [row.made_bytes for row in packed.target_bytes] == [0, 0]
    for number in range(2):
        found, expected = artifact.constants(number), packed.constants(number)
        assert found.keys() == expected.keys()
        for name, array in found.items():
            np.testing.assert_array_equal(array, expected[name])
    np.testing.assert_array_equal(artifact.programs[1].sources[0].const.array(), w)
    assert artifact.programs == packed.programs == (plain(), handmade.program())
    assert artifact.data == both().data and artifact.weights_mode == packed.weights_mode == "embedded"


def test_the_loader_makes_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "both.aot"
    both().save(path)
    x = handmade.batch_of(37)
    with both(weights="packed").load(threads=1) as model:
        ready_bytes = model.weight_bytes
    for source, mapped in ((path, False), (path, True), (path.read_bytes(), False)):
        with load(source, threads=1, map_weights=mapped) as model:
            np.testing.assert_array_equal(model(x), handmade.expected(x))
            assert mapped or model.weight_bytes == ready_bytes


def test_given_weights_are_not_looked_at() -> None:
    wrong = {"layer.weight": np.zeros((1, 1), np.float32)}
    with both().load(weights=wrong) as model:
        x = handmade.batch_of(3)
        np.testing.assert_array_equal(model(x), handmade.expected(x))


def test_programs_that_pack_alike_have_their_packing_ready() -> None:
    levels = (handmade.program("cpu:x86-64-v4"), handmade.program("cpu:x86-64-v3"))
    assert not kept_sources(levels)
    assert handmade.artifact(*levels).data == handmade.artifact(*levels, weights="packed").data.replace(
        b"packed", b"packed"
    )
    assert all(row.made_bytes == 0 and row.own_bytes == 0 for row in handmade.artifact(*levels).target_bytes)


@pytest.mark.parametrize("mode", ["external", "none"])
def test_other_modes_keep_nothing(mode: str) -> None:
    artifact = both(weights=mode)
    assert artifact.sections["weights"] == 0
    with pytest.raises(ArtifactError, match="are not in the artifact"):
        artifact.programs[0].sources[0].const.array()


def packing(name: str, shape: tuple[int, ...], *steps: object, dtype: int = F32) -> Constant:
    return Constant(name, dtype, shape, (recipe.source(0), *steps))  # type: ignore[arg-type]


HALF = packing("w", WIDE.shape, recipe.cast(dtypes.F16), dtype=F16)
WHOLE = packing("w", WIDE.shape)
FLAT = packing("w", (64 * 48,), recipe.reshape(64 * 48))
PANELS = packing("panels", (3, 64, 16), recipe.pack_matrix(64, 48))


@pytest.mark.parametrize(
    ("first", "second", "is_kept"),
    [
        ((HALF,), (PANELS,), True),  # 1.5 of the weight
        ((WHOLE,), (PANELS,), True),
        ((HALF,), (HALF,), False),
        ((HALF, PANELS), (PANELS, HALF), False),  # both programs read both
        ((HALF, PANELS), (PANELS,), True),
        ((HALF,), (), False),
    ],
)
def test_which_sources_are_kept(first: tuple[Constant, ...], second: tuple[Constant, ...], is_kept: bool) -> None:
    programs = [
        other(*constants, sources={"w": WIDE}, target=target)
        for constants, target in ((first, "cuda:sm_90a"), (second, "cuda:sm_86"))
    ]
    assert bool(kept_sources(programs)) == is_kept
    artifact = handmade.artifact(*programs)
    stored, ready = artifact.sections["weights"], handmade.artifact(*programs, weights="packed").sections["weights"]
    assert stored == (WIDE.nbytes if is_kept else ready) and stored <= ready
    for number, constants in enumerate((first, second)):
        made = artifact.constants(number)
        assert made.keys() == {constant.name for constant in constants}
        for constant in constants:
            expected = recipe.run(constant.recipe, programs[number].sources)
            np.testing.assert_array_equal(made[constant.name], expected, strict=True)


def test_recipes_that_give_the_same_bytes_are_ready_for_both() -> None:
    same = [other(WHOLE, sources={"w": WIDE}), other(FLAT, sources={"w": WIDE}, target="cpu:x86-64")]
    assert handmade.artifact(*same).sections["weights"] == WIDE.nbytes
    assert [row.made_bytes for row in handmade.artifact(*same).target_bytes] == [0, 0]


def test_packings_that_take_little_more_are_ready() -> None:
    """A weight that one program reads whole, and of which the other reads a tenth."""
    tenth = packing("w", (6, 48), RecipeStep(RecipeOp.PACK, shape=(6, 48), coefficients=((1, 0), (0, 1))))
    programs = [other(tenth, sources={"w": WIDE}), other(PANELS, sources={"w": WIDE})]
    assert not kept_sources(programs) and 6 / 64 < WORTH - 1
    assert handmade.artifact(*programs).sections["weights"] == WIDE.nbytes + tenth.shape[0] * 48 * 4


def test_weights_that_a_recipe_joins_are_kept_together() -> None:
    """Three weights that one target joins, and of which the other packs only one in its own way."""
    parts = {name: WIDE + number for number, name in enumerate("qkv")}
    steps = (recipe.source(0), recipe.source(1), recipe.source(2), recipe.concat(0, 3))
    joined = Constant("qkv", F32, (3 * 64, 48), steps)
    apart = [Constant(name, F32, (64, 48), (recipe.source(number),)) for number, name in enumerate("qkv")]
    apart[1] = Constant("k", F32, (3, 64, 16), (recipe.source(1), recipe.pack_matrix(64, 48)))
    programs = [other(joined, sources=parts), other(*apart, sources=parts, target="cuda:sm_86")]
    assert len(kept_sources(programs)) == 3
    artifact = handmade.artifact(*programs)
    assert artifact.sections["weights"] == sum(array.nbytes for array in parts.values())
    np.testing.assert_array_equal(artifact.constants(0)["qkv"], np.concatenate(list(parts.values())))
    assert [row.made_bytes for row in artifact.target_bytes] == [3 * WIDE.nbytes, WIDE.nbytes]
    loose = [other(Constant("q", F32, (64, 48), (recipe.source(0),)), sources=parts), programs[1]]
    assert len(kept_sources(loose)) <= 2


def test_constants_that_are_no_weights_of_the_model_are_kept_too() -> None:
    """In the file they are made like the others; --weights none has them ready, since nobody could give them."""
    programs = [other(replace(constant, always_embedded=True), sources={"w": WIDE}) for constant in (WHOLE, PANELS)]
    assert handmade.artifact(*programs).sections["weights"] == WIDE.nbytes
    outside = handmade.artifact(*programs, weights="none")
    assert outside.sections["weights"] == 2 * WIDE.nbytes
    assert outside.programs[1].constants[0].always_embedded and outside.constants(1).keys() == {"panels"}


def changed(data: bytes, section: Section, field: str, value: int, only: int = 0) -> bytes:
    """The file with another number in one field of a record, and the digests right again."""
    sections = sections_of(data)
    record = RECORD_OF[section]
    names = [each.name for each in record.fields]
    before = record.fields[: names.index(field)]
    at = only * record.size_bytes + struct.calcsize("<" + "".join(each.format for each in before))
    struct.pack_into("<Q", sections[section], at, value)
    return assemble(sections)


def sources_in_file(data: bytes) -> list[int]:
    """Records of sources whose bytes a constant that is made at load needs."""
    reader = Artifact(data).reader
    row = reader.tables[Section.PROGRAMS][1]
    made = [c for c in reader.run(Section.CONSTANTS, row["constants"]) if not c["flags"] & ConstantFlag.EMBEDDED]
    assert len(made) == 1
    return [row["sources"][0]]


@READERS
@pytest.mark.parametrize("offset", [1 << 40, (1 << 64) - 64, 512, 4])
def test_sources_outside_of_the_weights(opener: Opener, offset: int) -> None:
    data = both().data
    (record,) = sources_in_file(data)
    opener(data)
    text = must_be_damaged(opener, changed(data, Section.SOURCES, "external_offset", offset, record))
    assert "outside the weights" in text or "misaligned" in text


# Lines.

LINES = st.text(st.sampled_from("ab\n é"), max_size=30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.text(max_size=3), LINES, max_size=3), max_size=3),
    st.dictionaries(LINES, LINES, max_size=3),
)
def test_texts_come_back(kernels: list[dict[str, str]], named: dict[str, str]) -> None:
    data = texts.encode(kernels, named)
    assert texts.decode(json.loads(data)) == {"kernels": kernels, "texts": named}
    assert texts.encode(kernels, named) == data


def test_lines_are_stored_once() -> None:
    text = "\n".join(f"line {number} of a kernel that is long enough" for number in range(300))
    alike = text.replace("line 150 ", "another line ")
    one, three = texts.encode([{"a": text}], {}), texts.encode([{"a": text}, {"a": text}, {"b": alike}], {})
    assert len(three) < len(one) + 200
    assert json.loads(three)["kernels"][2]["b"] == [0, 150, 300, 1, 151, 149]


def test_texts_of_older_files_are_read() -> None:
    old = {"kernels": [{"k": "void k(void);\n"}], "texts": {"graph": "a\nb"}}
    assert texts.decode(old) == old and texts.decode({}) == {"kernels": [], "texts": {}}


@pytest.mark.parametrize(
    "value",
    [
        {"lines": 3},
        {"lines": [1]},
        {"kernels": 3},
        {"kernels": [[]]},
        {"texts": []},
        {"lines": ["a"], "texts": {"t": [0, 2]}},
        {"lines": ["a"], "texts": {"t": [-1, 1]}},
        {"lines": ["a"], "texts": {"t": [1, -1]}},
        {"lines": ["a"], "texts": {"t": [0]}},
        {"lines": ["a"], "texts": {"t": ["0", "1"]}},
        {"lines": ["a"], "kernels": [{"k": "a"}]},
    ],
)
def test_damaged_texts(value: dict[str, object]) -> None:
    sections = sections_of(handmade.artifact().data)
    sections[Section.DEBUG] = bytearray(json.dumps(value).encode())
    with pytest.raises(ArtifactError, match="damaged: debug"):
        _ = Artifact(assemble(sections)).programs


# Machine code.


def variant(name: str, images: Mapping[str, bytes], target: str = "cuda:sm_90a") -> Program:
    """A GPU program whose kernels have these images, one behind the other."""
    base = cuda_programs.program(target, variant=name)
    code, kernels = bytearray(), []
    for kernel in base.kernels:
        assert kernel.image is not None
        code += bytes(-len(code) % 64)
        image = images.get(kernel.symbol, f"code of {kernel.symbol}".encode() * 40)
        kernels.append(replace(kernel, image=replace(kernel.image, offset_bytes=len(code), size_bytes=len(image))))
        code += image
    return replace(base, kernels=tuple(kernels), code=bytes(code))


def image_of(program: Program, number: int) -> bytes:
    image = program.kernels[number].image
    assert image is not None
    return program.code[image.offset_bytes :][: image.size_bytes]


def test_variants_share_their_kernels() -> None:
    one, two = variant("n=8", {"k_copy": b"of eight" * 100}), variant("", {})
    elsewhere = variant("", {}, "cuda:sm_80")
    artifact = handmade.artifact(one, two, elsewhere)
    assert artifact.sections["code"] < len(one.code) + len(two.code) + len(elsewhere.code) - 1500
    for before, after in zip((one, two, elsewhere), artifact.programs, strict=True):
        assert [image_of(after, number) for number in range(4)] == [image_of(before, number) for number in range(4)]
        images = [kernel.image for kernel in after.kernels]
        assert all(image is not None and image.offset_bytes % 64 == 0 for image in images)
    assert artifact.programs[0].code == artifact.programs[1].code != artifact.programs[2].code
    assert artifact.programs[2] == elsewhere
    assert [row.code_bytes for row in artifact.target_bytes] == [len(artifact.programs[0].code), len(elsewhere.code)]


def test_code_that_nothing_shares_stays_as_it_is() -> None:
    kernels = ("k_add_first", "k_add_state", "k_copy", "k_addscratch_last")
    different = variant("n=8", {name: name.encode() * 50 for name in kernels})
    for programs in ([different, variant("", {})], [variant("n=8", {}), variant("", {})], [handmade.program()]):
        assert shared_images(programs) == programs


def test_the_format_says_so() -> None:
    assert (layout.MAJOR, layout.MINOR) == (1, 6)
