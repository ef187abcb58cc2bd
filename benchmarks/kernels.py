"""Matmul, convolution and attention kernels beside ONNX Runtime's, one node and one thread each.

    python -m benchmarks.kernels [--level x86-64-v4] [--seconds 0.3] [--only TEXT] [--json FILE]

Samples of both are taken in turns and the medians of the fastest third are compared, since other work
shares the machine. GFLOP/s count the multiplications and additions of the direct sum, also where
Winograd needs fewer. `ratio` is our time by ONNX Runtime's: below 1 we are faster. Results are checked
against ONNX Runtime's before they are timed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from aot import recipe
from aot.backend.base import Emitted
from aot.backend.cpu.attend import emit_attend
from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import ISAS, Isa
from aot.backend.cpu.window import emit_window
from aot.ir import const_of
from aot.kernel import Kernel
from aot.program import Source
from tests.backend.harness import KernelArgs, Storage, aligned, build
from tests.backend.kernels import attend_kernel, conv_kernel, matmul_kernel

P1, P2, P3 = (((p, p), (p, p)) for p in (1, 2, 3))
MATMULS = [
    (1, 384, 384), (1, 384, 1536), (1, 768, 3072), (4, 384, 1536), (4, 768, 768), (32, 384, 384), (32, 768, 3072),
    (128, 384, 384), (128, 384, 1536), (128, 1536, 384), (128, 768, 3072), (384, 768, 768), (3136, 16, 96),
    (196, 96, 576),
]  # fmt: skip
CONVOLUTIONS: list[tuple[str, dict[str, Any]]] = [
    ("stem 3-64 7x7 s2 @224", dict(c=3, spatial=(224, 224), o=64, window=(7, 7), strides=(2, 2), pads=P3)),
    ("3x3 64 @56", dict(c=64, spatial=(56, 56), o=64, window=(3, 3), pads=P1)),
    ("1x1 64-256 @56", dict(c=64, spatial=(56, 56), o=256, window=(1, 1))),
    ("1x1 256-64 @56", dict(c=256, spatial=(56, 56), o=64, window=(1, 1))),
    ("3x3 128 @28", dict(c=128, spatial=(28, 28), o=128, window=(3, 3), pads=P1)),
    ("3x3 256 s2 @28", dict(c=256, spatial=(28, 28), o=256, window=(3, 3), pads=P1, strides=(2, 2))),
    ("1x1 512-1024 s2 @28", dict(c=512, spatial=(28, 28), o=1024, window=(1, 1), strides=(2, 2))),
    ("3x3 256 @14", dict(c=256, spatial=(14, 14), o=256, window=(3, 3), pads=P1)),
    ("1x1 1024-256 @14", dict(c=1024, spatial=(14, 14), o=256, window=(1, 1))),
    ("3x3 512 @7", dict(c=512, spatial=(7, 7), o=512, window=(3, 3), pads=P1)),
    ("1x1 2048-512 @7", dict(c=2048, spatial=(7, 7), o=512, window=(1, 1))),
    ("3x3 24 @80", dict(c=24, spatial=(80, 80), o=24, window=(3, 3), pads=P1)),
    ("3x39 8 @172x264", dict(c=8, spatial=(172, 264), o=8, window=(3, 39), pads=((1, 1), (19, 19)))),
    ("7x7 32-1 @172x264", dict(c=32, spatial=(172, 264), o=1, window=(7, 7), pads=P3)),
    ("depthwise 3x3 32 @112", dict(c=32, spatial=(112, 112), o=32, window=(3, 3), pads=P1, groups=32)),
    ("depthwise 3x3 144 @56", dict(c=144, spatial=(56, 56), o=144, window=(3, 3), pads=P1, groups=144)),
    ("depthwise 3x3 512 @14", dict(c=512, spatial=(14, 14), o=512, window=(3, 3), pads=P1, groups=512)),
    ("depthwise 3x3 960 @7", dict(c=960, spatial=(7, 7), o=960, window=(3, 3), pads=P1, groups=960)),
    ("depthwise 5x5 s2 96 @56", dict(c=96, spatial=(56, 56), o=96, window=(5, 5), pads=P2, strides=(2, 2), groups=96)),
]
ATTENTIONS = [(128, 32, 12), (128, 64, 6), (512, 64, 6)]  # positions, elements of a head, heads


class Ours:
    """One kernel, ready to be called on one thread."""

    def __init__(self, kernel: Kernel, emitted: Emitted, isa: Isa, arrays: Sequence[np.ndarray]) -> None:
        self.function = build(emitted, isa)
        self.keep: list[Any] = []
        addresses: list[int] = []
        for number, (operand, array) in enumerate(zip(kernel.inputs, arrays, strict=True)):
            if number in emitted.packed:
                steps = (recipe.source(0), *emitted.packed[number].recipe)
                made = recipe.run(steps, [Source("w", const_of(array))])
                place = aligned(made.nbytes + 512)
                place[: made.nbytes] = made.view(np.uint8).reshape(-1)
                self.keep.append(place)
                addresses.append(place.ctypes.data)
                continue
            storage = Storage(operand.type, {}, 0)
            storage.logical[...] = array
            self.keep.append(storage)
            addresses.append(storage.address)
        self.outputs = [Storage(operand.type, {}, 0) for operand in kernel.outputs]
        addresses += [storage.address for storage in self.outputs]
        buffers = (ctypes.c_void_p * len(addresses))(*addresses)
        scratch = aligned(emitted.scratch_bytes + 64 if isinstance(emitted.scratch_bytes, int) else 64)
        args = KernelArgs(ctypes.addressof(buffers), 0, scratch.ctypes.data, 0, 1)
        self.keep += [buffers, scratch, args]
        self.argument = ctypes.byref(args)

    def __call__(self) -> None:
        self.function(self.argument)


def onnxruntime(op: str, arrays: Sequence[np.ndarray], constant: Sequence[int], **attributes: Any) -> Any:
    """A session of one node; operands in `constant` are initializers. Returns (call, outputs)."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    names = [f"x{i}" for i in range(len(arrays))]
    domain = attributes.pop("domain", "")
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], domain=domain, **attributes)],
        "one",
        [
            helper.make_tensor_value_info(names[i], TensorProto.FLOAT, a.shape)
            for i, a in enumerate(arrays)
            if i not in constant
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(arrays[i], names[i]) for i in constant],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for i, array in enumerate(arrays):
        if i not in constant:
            binding.bind_cpu_input(names[i], array)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding), lambda: binding.copy_outputs_to_cpu()[0]


def cases(only: str, isa: Isa) -> Iterator[tuple[str, Emitted, Ours, Callable[[], None], Callable[[], np.ndarray]]]:
    """(label, our code, our call, ONNX Runtime's call, its result)."""
    random = np.random.default_rng(0)

    def arrays(kernel: Kernel) -> list[np.ndarray]:
        return [random.standard_normal([int(str(e)) for e in o.type.shape]).astype(np.float32) for o in kernel.inputs]

    for m, k, n in MATMULS:
        label = f"matmul {m}x{k}x{n}"
        if only in label:
            kernel = matmul_kernel((), m, k, n)
            data, emitted = arrays(kernel), emit_contract(kernel, isa)
            yield (label, emitted, Ours(kernel, emitted, isa, data), *onnxruntime("MatMul", data, [1]))
    for name, case in CONVOLUTIONS:
        label = f"conv {name}"
        if only in label:
            kernel = conv_kernel(1, **case, epilogue="bias")
            data, emitted = arrays(kernel), emit_window(kernel, isa)
            pads = [p[side] for side in (0, 1) for p in case.get("pads", ((0, 0),) * 2)]
            strides = case.get("strides", (1,) * len(case["window"]))
            theirs = onnxruntime("Conv", data, [1, 2], pads=pads, strides=strides, group=case.get("groups", 1))
            yield (label, emitted, Ours(kernel, emitted, isa, data), *theirs)
    for s, d, h in ATTENTIONS:
        label = f"attention {s} positions, {h} heads of {d}"
        if only in label:
            kernel = attend_kernel(1, h, s, s, d)
            data, emitted = arrays(kernel), emit_attend(kernel, isa)
            rows = [np.ascontiguousarray(a.transpose(0, 2, 1, 3)).reshape(1, s, h * d) for a in data]
            run, get = onnxruntime("MultiHeadAttention", rows, [], domain="com.microsoft", num_heads=h)

            def result(get: Any = get, s: int = s, h: int = h, d: int = d) -> np.ndarray:
                return np.asarray(get()).reshape(1, s, h, d).transpose(0, 2, 1, 3)

            yield label, emitted, Ours(kernel, emitted, isa, data), run, result


def compare(calls: Sequence[Callable[[], None]], seconds: float) -> list[float]:
    """Seconds per call of each, sampled in turns."""
    counts = []
    for call in calls:
        call()
        start = time.perf_counter()
        call()
        counts.append(max(int(0.0005 / max(time.perf_counter() - start, 1e-7)), 1))
    samples: list[list[float]] = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[0]) < 6:
        for call, count, found in zip(calls, counts, samples, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            found.append((time.perf_counter() - start) / count)
    return [float(np.median(sorted(found)[: max(len(found) // 3, 1)])) for found in samples]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--level", default="x86-64-v4", choices=sorted(ISAS))
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    isa = ISAS[options.level]
    rows: list[dict[str, Any]] = []
    print(f"| kernel ({isa.name}, one thread) | us | GFLOP/s | ONNX Runtime us | ratio |\n|---|---|---|---|---|")
    for label, emitted, ours, theirs, result in cases(options.only, isa):
        ours()
        theirs()
        expected = result()
        error = float(np.abs(ours.outputs[0].logical - expected).max() / np.abs(expected).max())
        if not error < 1e-4:
            raise SystemExit(f"{label}: differs from ONNX Runtime by {error:.1e} of the largest value")
        mine, other = compare([ours, theirs], options.seconds)
        flops = float(str(emitted.flops))
        rows.append({"kernel": label, "us": mine * 1e6, "ort_us": other * 1e6, "schedule": emitted.schedule})
        print(
            f"| {label} | {mine * 1e6:.1f} | {flops / mine / 1e9:.0f} | {other * 1e6:.1f} | {mine / other:.2f} |",
            flush=True,
        )
    ratios = [row["us"] / row["ort_us"] for row in rows]
    print(f"\ngeometric mean of {len(rows)} ratios: {float(np.exp(np.mean(np.log(ratios)))):.3f}")
    if options.json:
        options.json.write_text(json.dumps({"level": isa.name, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
