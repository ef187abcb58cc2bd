"""Says what a file or a folder is, from its contents, and what to do with one that is not what was asked for.

Nothing in a file is run, and pickles are looked at without being loaded. Like aot.errors it imports nothing of the
compiler: the serving runtime shares it.

Invariant: a name of a file says nothing here; what a folder is say the names in it. A kind is a guess for messages and
for the choice of a reader; whether the file is sound is for its reader to say.
"""

from __future__ import annotations

import io
import os
import pickletools
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

ARTIFACT, ONNX, PROGRAM = "artifact", "onnx", "program"  # names of the kinds that some reader takes

A_MODEL = "an ONNX model or a torch.export program"

_EXPORT = "torch.export.save(torch.export.export(module, inputs), 'model.pt2')"
_AGAIN = "Copy or download the file again, or export the model again."
_TEXT_BYTES = 512  # of a file's start that are looked at to call it text
_PICKLE_BYTES = 16 << 20  # of a pickle that are looked at
_ONNX_FIELDS = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2}  # of ModelProto: number: wire type
_MOST_FIELDS = 100_000
_OLD_SAVE = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began before it wrote archives
ARCHIVE_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, LookupError, OSError, RuntimeError, ValueError,
)  # fmt: skip
"""What zipfile raises for a damaged archive."""


class FileKind(NamedTuple):
    """What a file is: a stable word, words for people ("an ONNX model"), and how to come from it to a model.

    `remedy` is "" of what some reader takes.
    """

    name: str
    text: str
    remedy: str = ""

    @property
    def is_model(self) -> bool:
        """Whether `aotc build` takes it."""
        return self.name in (ONNX, PROGRAM)

    @property
    def is_folder(self) -> bool:
        """Whether it is no file; no reader takes folders."""
        return self.name.startswith("folder")

    @property
    def is_torch(self) -> bool:
        """Whether PyTorch wrote it, in whatever form."""
        return self.name.startswith(("program", "torch"))

    def instead_of(self, wanted: str) -> str:
        """The message of an error: a file of this kind was given where `wanted` belongs."""
        return f"this is {self.text}" + ("" if self.name.endswith("damaged") else f", not {wanted}")

    @property
    def model_remedy(self) -> str:
        """What to do where a model was asked for."""
        return (
            "Run it with `aotc run`, or build from the model that it came from."
            if self.name == ARTIFACT
            else self.remedy
        )


def kind_of(source: str | os.PathLike[str] | bytes) -> FileKind | None:
    """What a file, the bytes of one, or a folder are; None where that is not known or it cannot be read."""
    try:
        if isinstance(source, bytes):
            return _kind(io.BytesIO(source), len(source))
        if os.path.isdir(source):
            return _folder(os.fspath(source))
        with open(source, "rb") as file:
            return _kind(file, os.fstat(file.fileno()).st_size)
    except OSError:
        return None


def not_an_artifact(source: str | os.PathLike[str] | bytes) -> tuple[str, str] | None:
    """The message and the hint of an error: what was given where an artifact belongs.

    None for an artifact, and for what may be a damaged one.
    """
    kind = kind_of(source)
    if kind is None or kind.name in (ARTIFACT, "empty", "zip damaged"):
        return None
    hint, path = kind.remedy, "" if isinstance(source, bytes) else os.fspath(source)
    if kind.is_model:
        name = path or "MODEL"
        saved = f"{os.path.splitext(os.path.basename(name))[0]}.aot"
        hint = f"Build it first: aotc build {name}, or in Python aot.compile({name!r}).save({saved!r})."
    return kind.instead_of("an artifact"), hint


def _kind(file: BinaryIO, size: int) -> FileKind | None:
    start = file.read(_TEXT_BYTES)
    if not start:
        return FileKind("empty", "an empty file", _AGAIN)
    if start[:4] == b"AOTC":
        return FileKind(ARTIFACT, "an artifact, already built")
    if start[:4] == b"PK\3\4" or (len(start) < 4 and b"PK\3\4".startswith(start)):
        return _archive(file, start)
    if start.startswith(_OLD_SAVE):
        file.seek(0)
        return _saved(_names_in(file.read(_PICKLE_BYTES), count=4))
    if start[:1] == b"\x80" and start[1:2] in b"\2\3\4\5":
        return FileKind("pickle", "a pickle, which can run code when it is read", f"Export the model: {_EXPORT}.")
    if start[:6] == b"\x93NUMPY":
        return FileKind("array", "an .npy file of one array", "Arrays are inputs: aotc run MODEL.aot FILE.")
    if start[4:8] == b"TFL3":
        return FileKind(
            "tflite", "a TensorFlow Lite model", "Export the original model to ONNX, or convert this one with tf2onnx."
        )
    if start[4:8] in (b"ET12", b"ET13"):
        return FileKind("torch executorch", "an ExecuTorch program", f"Save what it was made from: {_EXPORT}.")
    if start[:4] == b"\x89HDF":
        return FileKind(
            "hdf5", "an HDF5 file, as Keras writes", "Export the model to ONNX: model.export(PATH, format='onnx')."
        )
    if start[:4] == b"GGUF":
        return FileKind("gguf", "a GGUF file of weights", f"Export the model that has these weights: {_EXPORT}.")
    if start[8:10] == b'{"' and 2 <= int.from_bytes(start[:8], "little") <= size - 8:
        remedy = f"Export the model that has these weights, to ONNX or by {_EXPORT}."
        return FileKind("safetensors", "a safetensors file of weights", remedy)
    if start.startswith(b"version https://git-lfs"):
        return FileKind("pointer", "a Git LFS pointer, not the file itself", "Fetch the file: git lfs pull.")
    if start[:4] == b"\x7fELF":
        return FileKind("library", "a shared library or program", "Give the model that it was built from.")
    if start[:2] == b"\x1f\x8b":
        return FileKind("gzip", "a file that gzip packed", "Unpack it: gzip -d FILE, or tar -xf FILE.")
    if _is_text(start):
        if start.startswith(b"aot ir "):
            return FileKind("ir", "the compiler's own text form (.air)", "Passes run on it: aotc opt FILE.air.")
        return FileKind(
            "text",
            "text",
            "If it was downloaded, it may be an error page: fetch it again. Models are .onnx and .pt2 files.",
        )
    return _onnx(file, size)


def _is_text(start: bytes) -> bool:
    """Whether bytes are UTF-8 without control characters; the last character may be cut."""
    try:
        text = start.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            return False
        text = start[: error.start].decode()
    return all(character in "\t\n\r\f" or character.isprintable() for character in text)


# Folders


def _folder(path: str) -> FileKind:
    """What a folder is, by the names in it; the files in it that some reader takes come first."""
    names = {os.fsdecode(name) for name in os.listdir(path)}
    known = sorted(name for name in names if name.endswith((".onnx", ".pt2", ".aot")))
    if known:
        more = f", or another of its {len(known)}" if len(known) > 1 else ""
        return FileKind("folder", "a folder", f"Name the file in it: {os.path.join(path, known[0])}{more}.")
    if "saved_model.pb" in names:
        return FileKind(
            "folder tensorflow", "a folder, a TensorFlow SavedModel",
            f"Convert it to ONNX: python -m tf2onnx.convert --saved-model {path} --output model.onnx.",
        )  # fmt: skip
    if "model_index.json" in names:
        return FileKind(
            "folder diffusers", "a folder, a pipeline of several models for Diffusers",
            f"Load it with diffusers, and export each of its modules: {_EXPORT}.",
        )  # fmt: skip
    if {"config.json", "adapter_config.json"} & names:
        return FileKind(
            "folder hugging face", "a folder, the configuration and the weights of a Hugging Face model",
            f"Load it, AutoModel.from_pretrained({path!r}).eval(), and export it: {_EXPORT}; or write ONNX: "
            f"optimum-cli export onnx --model {path} OUT.",
        )  # fmt: skip
    if {"models", "data"} <= names:
        return FileKind(
            "folder program", "a folder, a torch.export program that was unpacked", "Give the .pt2 file itself."
        )
    if {"Manifest.json", "Data"} <= names:
        return FileKind("folder core ml", "a folder, a Core ML package", "Export the model that it was converted from.")
    return FileKind("folder", "a folder", "Name a file: models are .onnx and .pt2, artifacts are .aot.")


# Archives


def _archive(file: BinaryIO, start: bytes) -> FileKind:
    try:
        with zipfile.ZipFile(file) as archive:
            if min((info.header_offset for info in archive.infolist()), default=0):
                raise zipfile.BadZipFile("what is left of it ends in another archive, a part of it")
            return _archive_of(archive, archive.namelist())
    except ARCHIVE_FAULTS:
        first = _first_name(start)
        name, what = "torch damaged", ""
        if re.search(r"/(data/(weights|constants)|models)/|/data/sample_inputs/", first):
            what = "a torch.export program"
        elif re.search(r"/(data\.pkl|data/\d+|code/|\.format_version|\.storage_alignment)", first):
            what = "a file that torch.save wrote"
        if not what:
            name, what = "zip damaged", "a zip archive"
        return FileKind(name, f"{what} that is truncated or damaged: its end is not there", _AGAIN)


def _first_name(start: bytes) -> str:
    """The name of the first part of an archive, or as much of it as is there."""
    if len(start) < 30:
        return ""
    return start[30 : 30 + int.from_bytes(start[26:28], "little")].decode(errors="replace")


def _archive_of(archive: zipfile.ZipFile, names: list[str]) -> FileKind:
    inner = {name.partition("/")[2] for name in names}
    programs = [name for name in inner if re.fullmatch(r"models/[^/]+\.json", name)]
    if len(programs) == 1:
        return FileKind(PROGRAM, "a torch.export program")
    if programs:
        remedy = "Save the one to build by itself: torch.export.save(program, 'model.pt2')."
        return FileKind("program package", f"a package of {len(programs)} torch.export programs", remedy)
    if any(name.startswith("data/aotinductor/") for name in inner):
        return FileKind(
            "torch package", "an AOTInductor package, which is compiled already",
            "Save the program that it was compiled from: torch.export.save(program, 'model.pt2').",
        )  # fmt: skip
    if "serialized_exported_program.json" in names:
        return FileKind(
            "program old", "a torch.export program in the form of PyTorch before 2.8",
            "Write it again with PyTorch 2.8 or newer: torch.export.save(torch.export.load(FILE), 'model.pt2').",
        )  # fmt: skip
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return FileKind("torch script", "a TorchScript module", f"Export the module that it was made from: {_EXPORT}.")
    pickle = next((name for name in names if name.partition("/")[2] == "data.pkl"), None)
    if pickle is not None:
        with archive.open(pickle) as member:
            return _saved(_names_in(member.read(_PICKLE_BYTES)))
    if names and all(name.endswith(".npy") for name in names):
        return FileKind("arrays", "an .npz file of arrays", "Arrays are inputs: aotc run MODEL.aot FILE.")
    return FileKind(
        "zip", "a zip archive, of no kind that PyTorch writes for a program", f"Export the model: {_EXPORT}."
    )


def _saved(names: set[str]) -> FileKind:
    """What torch.save wrote, by the strings in its pickle."""
    if {"_modules", "_parameters"} <= names:
        return FileKind(
            "torch module", "a module that torch.save pickled",
            f"It holds no program: load it where its class is, with torch.load, and export it: {_EXPORT}.",
        )  # fmt: skip
    return FileKind(
        "torch weights", "a file of weights that torch.save wrote (a state dict or a checkpoint)",
        f"It holds no program: load it into its module, with load_state_dict, and export that: {_EXPORT}.",
    )  # fmt: skip


def _names_in(data: bytes, count: int = 1) -> set[str]:
    """The strings in the first pickles of a stream, which are read as opcodes alone."""
    stream = io.BytesIO(data)
    found: set[str] = set()
    try:
        for _ in range(count):
            for _, argument, _ in _opcodes(stream):
                if isinstance(argument, str):
                    found.add(argument)
    except (ValueError, LookupError, EOFError, struct.error):
        pass  # cut off, or no pickle: what was seen is what is known
    return found


def _opcodes(stream: io.BytesIO) -> Iterator[tuple[object, object, int | None]]:
    yield from pickletools.genops(stream)


# ONNX


def _onnx(file: BinaryIO, size: int) -> FileKind | None:
    """An ONNX model, whole or cut short, by the fields of its outermost message."""
    file.seek(0)
    seen: set[int] = set()
    position = 0
    for _ in range(_MOST_FIELDS):
        if position >= size:
            break
        tag = _varint(file)
        if tag is None or _ONNX_FIELDS.get(tag >> 3) != tag & 7:
            return None
        value = _varint(file)
        if value is None:
            break
        position = file.tell() + (value if tag & 7 == 2 else 0)
        if position > size:
            seen.add(tag >> 3)
            break
        file.seek(position)
        seen.add(tag >> 3)
    if position > size and (7 in seen or 1 in seen):
        return FileKind("onnx damaged", "an ONNX model that is truncated", _AGAIN)
    return FileKind(ONNX, "an ONNX model") if 7 in seen and position == size else None


def _varint(file: BinaryIO) -> int | None:
    """A number as protobuf writes it; None at the end of the file, or where there is none."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
    return None
