"""Kernels of numbers in 8 and 4 bits beside ONNX Runtime's and beside our own float kernels, one thread each.

    python -m benchmarks.quantized [--level x86-64-v4+vnni] [--seconds 0.3] [--only TEXT] [--json FILE]

Samples are taken in turns, with real-time scheduling where that is allowed, and the medians of the fastest third are
compared, since other work shares the machine. A quantized kernel has its scales, bias, rounding and bounds in it, as
ONNX Runtime's QLinearMatMul and QLinearConv have. `ratio` is our time by ONNX Runtime's, `float` by our float kernel's.
Results are checked against ONNX Runtime's before they are timed: 8-bit ones bit for bit.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aot.backend.base import Emitted
from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import ISAS, Isa
from aot.backend.cpu.window import emit_window
from aot.ops.quantized import pack_rows
from benchmarks.kernels import CONVOLUTIONS, Ours, compare
from benchmarks.timing import prefer_realtime
from tests.backend.kernels import conv_kernel, matmul_kernel
from tests.backend.test_weights import weight_kernel
from tests.backend.word_kernels import conv_8bit_kernel, matmul_8bit_kernel

MATMULS = [
    (m, k, n) for m in (1, 4, 32, 128, 384) for k, n in ((384, 384), (384, 1536), (768, 768), (768, 3072), (1024, 4096))
]
WEIGHTS = [(1, 768, 3072), (1, 4096, 4096), (4, 768, 3072), (4, 4096, 4096), (32, 768, 3072), (128, 4096, 4096)]
SCALES = (0.02, 0.003, 0.1)
"""Of the left operand, of the right one, and of the result."""


@dataclass(frozen=True)
class Case:
    """What is timed: our kernel, ONNX Runtime's, our float kernel; `result` gives ONNX Runtime's output."""

    label: str
    emitted: Emitted
    ours: Ours
    theirs: Callable[[], None]
    result: Callable[[], np.ndarray]
    floats: Ours


def onnxruntime(op: str, named: Sequence[tuple[str, np.ndarray, bool]], **attributes: Any) -> Any:
    """A session of one node with (name, array, is constant) operands. Returns (call, result)."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    domain = attributes.pop("domain", "")
    types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.uint8): TensorProto.UINT8}
    graph = helper.make_graph(
        [helper.make_node(op, [name for name, _, _ in named], ["y"], domain=domain, **attributes)],
        "one",
        [helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a, constant in named if not constant],
        [helper.make_tensor_value_info("y", types[named[0][1].dtype], None)],
        [numpy_helper.from_array(a, n) for n, a, constant in named if constant],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    for name, array, constant in named:
        if not constant:
            binding.bind_cpu_input(name, array)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding), lambda: binding.copy_outputs_to_cpu()[0]


def parameters(zero_x: int, zero_y: int, columns: int) -> list[tuple[str, np.ndarray]]:
    """Scales and zero points of QLinearMatMul and QLinearConv, in their order, without x and w."""
    a, b, y = (np.asarray(scale, np.float32) for scale in SCALES)
    zeros = (np.asarray(zero_x, np.uint8), np.zeros(columns, np.int8), np.asarray(zero_y, np.uint8))
    return [("a_scale", a), ("a_zero", zeros[0]), ("b_scale", np.full(columns, b)), ("b_zero", zeros[1]),
            ("y_scale", y), ("y_zero", zeros[2])]  # fmt: skip


def matmuls(only: str, isa: Isa) -> Iterator[Case]:
    """The products of activations and constant weights."""
    random = np.random.default_rng(0)
    for m, k, n in MATMULS:
        label = f"matmul {m}x{k}x{n}"
        if only not in label:
            continue
        x = random.integers(0, 256, (m, k)).astype(np.uint8)
        w = random.integers(-128, 128, (k, n)).astype(np.int8)
        shift = 3 * w.astype(np.int32).sum(0, dtype=np.int32)
        scale = np.full(n, SCALES[0] * SCALES[1] / SCALES[2], np.float32)
        kernel = matmul_8bit_kernel((), m, k, n, epilogue=True)
        emitted = emit_contract(kernel, isa)
        a_scale, a_zero, *rest, y_scale, y_zero = parameters(3, 7, n)
        named = [("x", x), a_scale, a_zero, ("w", w), *rest, y_scale, y_zero]
        theirs = onnxruntime("QLinearMatMul", [(name, array, name != "x") for name, array in named])
        float_kernel = matmul_kernel((), m, k, n, epilogue="bias")
        floats = Ours(
            float_kernel, emit_contract(float_kernel, isa), isa,
            [random.standard_normal([int(str(e)) for e in o.type.shape]).astype(np.float32)
             for o in float_kernel.inputs],
        )  # fmt: skip
        yield Case(label, emitted, Ours(kernel, emitted, isa, [x, w, shift, scale]), *theirs, floats)


def convolutions(only: str, isa: Isa) -> Iterator[Case]:
    """Convolutions of images, channels last in ours; ONNX Runtime's reads and writes channels first."""
    random = np.random.default_rng(0)
    for name, case in CONVOLUTIONS:
        label = f"conv {name}"
        if only not in label:
            continue
        c, o, groups = case["c"], case["o"], case.get("groups", 1)
        x = random.integers(0, 256, (1, c, *case["spatial"])).astype(np.uint8)
        w = random.integers(-128, 128, (o, c // groups, *case["window"])).astype(np.int8)
        shift = 3 * w.astype(np.int32).reshape(o, -1).sum(1, dtype=np.int32)
        scale = np.full(o, SCALES[0] * SCALES[1] / SCALES[2], np.float32)
        kernel = conv_8bit_kernel(1, **case, fill=3, epilogue=True)
        emitted = emit_window(kernel, isa)
        a_scale, a_zero, *rest, y_scale, y_zero = parameters(3, 7, o)
        named = [("x", x), a_scale, a_zero, ("w", w), *rest, y_scale, y_zero]
        pads = [p[side] for side in (0, 1) for p in case.get("pads", ((0, 0),) * 2)]
        theirs = onnxruntime(
            "QLinearConv", [(each, array, each != "x") for each, array in named], pads=pads,
            strides=case.get("strides", (1,) * len(case["window"])), group=groups,
        )  # fmt: skip
        float_kernel = conv_kernel(1, **case, epilogue="bias")
        arrays = [
            random.standard_normal([int(str(e)) for e in o.type.shape]).astype(np.float32) for o in float_kernel.inputs
        ]
        floats = Ours(float_kernel, emit_window(float_kernel, isa), isa, arrays)
        ours = Ours(kernel, emitted, isa, [x, w, shift, scale])
        ours.keep[0].with_halo()[...] = 3
        ours.keep[0].logical[...] = x
        yield Case(label, emitted, ours, *theirs, floats)


def weights(only: str, isa: Isa) -> Iterator[Case]:
    """Products of floats with weights of 4 bits in blocks of 32 rows, beside MatMulNBits computing in floats."""
    random = np.random.default_rng(0)
    for m, k, n in WEIGHTS:
        label = f"weights of 4 bits {m}x{k}x{n}"
        if only not in label:
            continue
        x = random.standard_normal((m, k)).astype(np.float32)
        numbers = random.integers(0, 16, (k, n)).astype(np.uint8)
        scale = (random.random((k // 32, n)) * 0.1).astype(np.float32)
        kernel = weight_kernel((m,), k, n, 4, 32)
        emitted = emit_contract(kernel, isa)
        stored = np.ascontiguousarray(pack_rows(numbers).T.reshape(n, k // 32, 16))
        theirs = onnxruntime(
            "MatMulNBits",
            [("x", x, False), ("w", stored, True), ("scale", np.ascontiguousarray(scale.T).reshape(-1), True)],
            domain="com.microsoft", K=k, N=n, bits=4, block_size=32, accuracy_level=0,
        )  # fmt: skip
        float_kernel = matmul_kernel((), m, k, n)
        arrays = [x, random.standard_normal((k, n)).astype(np.float32)]
        floats = Ours(float_kernel, emit_contract(float_kernel, isa), isa, arrays)
        yield Case(label, emitted, Ours(kernel, emitted, isa, [x, pack_rows(numbers), scale]), *theirs, floats)


def agree(got: np.ndarray, want: np.ndarray) -> bool:
    """Whether results are the same: of quantized numbers, but for halves where the orders of scales differ."""
    if got.dtype == np.float32:
        return bool(np.abs(got - want).max() < 1e-4 * np.abs(want).max())
    apart = np.abs(got.astype(np.int32) - want.astype(np.int32))
    return bool(apart.max() <= 1 and (apart != 0).mean() <= 1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--level", default="x86-64-v4+vnni", choices=sorted(ISAS))
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    isa = ISAS[options.level]
    rows: list[dict[str, Any]] = []
    print(
        f"| kernel ({isa.name}, one thread) | us | GOP/s | ONNX Runtime us | ratio | float |\n|---|---|---|---|---|---|"
    )
    makers = (matmuls, convolutions, weights)
    for case in (case for maker in makers for case in maker(options.only, isa)):
        case.ours()
        case.theirs()
        if not agree(case.ours.outputs[0].logical, case.result()):
            raise SystemExit(f"{case.label}: differs from ONNX Runtime")
        prefer_realtime()
        mine, other, floats = compare([case.ours, case.theirs, case.floats], options.seconds)
        prefer_realtime(False)
        work = float(str(case.emitted.flops))
        rows.append({"kernel": case.label, "us": mine * 1e6, "ort_us": other * 1e6, "float_us": floats * 1e6})
        print(
            f"| {case.label} | {mine * 1e6:.1f} | {work / mine / 1e9:.0f} | {other * 1e6:.1f} | {mine / other:.2f}"
            f" | {mine / floats:.2f} |",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"level": isa.name, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
