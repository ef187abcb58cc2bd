"""Machine code of GPU programs: kernels that several variants of one target share are stored once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.program import Program

IMAGE_ALIGN_BYTES = 64


def shared_images(programs: Sequence[Program]) -> list[Program]:
    """The programs, those of one target with one blob of code where they had several with the same kernels in them.

    A program then has kernels of others in its code as well; the driver is given only those that it names.
    """
    found = list(programs)
    for target in dict.fromkeys(program.target for program in programs):
        numbers = [number for number, program in enumerate(programs) if program.target == target]
        blobs = {part.code for number in numbers for part in programs[number].parts if part.kernels}
        parts = [part for number in numbers for part in programs[number].parts]
        if len(blobs) < 2 or any(kernel.image is None for part in parts for kernel in part.kernels):
            continue
        code, places = bytearray(), dict[bytes, int]()
        for part in parts:
            for image in _images(part):
                if image not in places:
                    code += bytes(-len(code) % IMAGE_ALIGN_BYTES)
                    places[image] = len(code)
                    code += image
        if len(code) >= sum(map(len, blobs)):
            continue
        for number in numbers:
            found[number] = _moved(programs[number], bytes(code), places)
    return found


def _images(program: Program) -> list[bytes]:
    """The code of each kernel."""
    images = [kernel.image for kernel in program.kernels if kernel.image is not None]
    return [program.code[image.offset_bytes :][: image.size_bytes] for image in images]


def _moved(program: Program, code: bytes, places: dict[bytes, int]) -> Program:
    """A program, blocks of its flow included, whose kernels lie elsewhere."""
    if program.flow is not None:
        blocks = tuple(_moved(block, code, places) for block in program.flow.blocks)
        return replace(program, flow=replace(program.flow, blocks=blocks))
    kernels = tuple(
        replace(kernel, image=replace(kernel.image, offset_bytes=places[image]))
        for kernel, image in zip(program.kernels, _images(program), strict=True)
        if kernel.image is not None
    )
    return replace(program, kernels=kernels, code=code)
