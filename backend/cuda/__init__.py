"""The CUDA backend: kernels as Triton, compiled to cubins on a machine that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from aot.backend.base import Built, Emitted
from aot.backend.cuda import compile as builder
from aot.backend.cuda.architectures import architecture_of
from aot.backend.cuda.attend import emit_attend, emit_attend_parts, lacks_attention
from aot.backend.cuda.code import FLOAT8, has_type
from aot.backend.cuda.contract import emit_contract
from aot.backend.cuda.loops import emit_loops
from aot.backend.cuda.packed import emit_packed
from aot.backend.cuda.recur import emit_recurrence
from aot.backend.cuda.running import RUNNING, emit_running
from aot.backend.cuda.scans import emit_scan
from aot.backend.cuda.scatter import emit_scatter
from aot.backend.cuda.sort import emit_sort
from aot.backend.cuda.source import emit_source, lacks_source
from aot.backend.cuda.steps import emit_steps
from aot.backend.cuda.trees import emit_trees
from aot.backend.cuda.window import emit_window
from aot.dtypes import I8, DType
from aot.ir import Node
from aot.kernel import AttendRoot, ContractRoot, Kernel, Kind, ScanRoot, WindowRoot
from aot.lower import OWNED_KINDS
from aot.ops import OPS
from aot.target import Target

OWNED: Mapping[str, Callable[[Kernel, Target], Emitted]] = {
    "attention_parts": emit_attend_parts,
    "scatter_elements": emit_scatter,
    "scatter_nd": emit_scatter,
    **dict.fromkeys(RUNNING, emit_running),
    **dict.fromkeys(("recur_lstm", "recur_gru", "recur_rnn", "recur_cell"), emit_recurrence),
    "recur_map": emit_steps,
    "tree_ensemble": emit_trees,
    "sort": emit_sort,
    "top_k": emit_sort,
}
"""The emitters of ops that own their loops; others have Triton source in their entry, or run on the CPU in between."""

NO_FLOAT8 = frozenset({Kind.ATTEND, Kind.SCAN_AXIS})
"""Kinds whose emitters read elements in their memory's type; there, floats of 8 bits are bytes."""


class CudaBackend:
    """See aot.backend.base.Backend."""

    name = "cuda"
    default_architectures: tuple[str, ...] = ("sm_90a",)
    quantized_architectures: tuple[str, ...] = ("sm_90a",)
    kinds: frozenset[Kind] = frozenset(
        {
            Kind.MAP,
            Kind.REDUCE,
            Kind.ROW,
            Kind.GATHER,
            Kind.VIEW,
            Kind.CONTRACT,
            Kind.ATTEND,
            Kind.ATTEND_PARTS,
            Kind.SCAN_AXIS,
            Kind.SCATTER,
            Kind.WINDOW,
            Kind.RECUR,
            Kind.SORT,
            Kind.RANDOM,
            Kind.OPAQUE,
            Kind.KERNEL,
        }
    )
    decomposes: frozenset[str] = frozenset()
    has_halos = False
    joins_products = True
    splits_keys = True
    splits_sums = True
    channel_group = 4  # two words of half precision, which go to shared memory by themselves
    reads_anywhere = True
    precisions: frozenset[str] = frozenset({"fp32", "tf32", "fp16", "bf16"})
    precision_features: Mapping[str, str] = MappingProxyType({})
    precision_architectures: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    eight_bit_operands: tuple[DType, DType] = (I8, I8)

    def target(self, architecture: str) -> Target:
        return architecture_of(architecture).target

    def lacks(self, node: Node) -> str:
        if node.op not in OPS:
            return ""
        for value in (*node.operands, *node.outputs):
            if not has_type(value.type.dtype):
                return f"a GPU has no code for elements of type {value.type.dtype.name}"
        definition = OPS[node.op]
        has_bytes = any(value.type.dtype in FLOAT8 for value in (*node.operands, *node.outputs))
        if has_bytes and (definition.kind in (*OWNED_KINDS, *NO_FLOAT8) or self.name in definition.sources):
            return "a GPU has no kernel for it with elements of 8-bit floats"
        if node.op in OWNED:
            return ""
        if self.name in definition.sources:
            return lacks_source(node)
        if definition.kind in OWNED_KINDS or (definition.kind not in self.kinds and definition.decompose is None):
            sources = ", ".join(sorted(definition.sources))
            return f"the operator has source for {sources} only" if "." in node.op else "a GPU has no kernel for it yet"
        return lacks_attention(node) if node.op == "attention" else ""

    def emit(self, kernel: Kernel, target: Target) -> Emitted:
        if kernel.root is None:
            return emit_loops(kernel, target)
        if isinstance(kernel.root, ContractRoot):
            return emit_contract(kernel, target) if kernel.root.weight is None else emit_packed(kernel, target)
        if isinstance(kernel.root, WindowRoot):
            return emit_window(kernel, target)
        if isinstance(kernel.root, AttendRoot):
            return emit_attend(kernel, target)
        if isinstance(kernel.root, ScanRoot):
            return emit_scan(kernel, target)
        return OWNED.get(kernel.root.op, emit_source)(kernel, target)

    def build(
        self,
        sources: Sequence[tuple[str, str]],
        target: Target,
        cache: Path | None,
        *,
        jobs: int = 0,
        compiler: str | None = None,
    ) -> Built:
        """Cubins one after the other. `jobs`: processes at a time, 0 for one per CPU; `compiler` is not looked at."""
        return builder.build(sources, architecture_of(target.architecture), "exact" in target.features, cache, jobs)

    def tools(self, compiler: str | None = None) -> Mapping[str, str]:
        return {"ptxas": builder.assembler_version(), "triton": builder.triton_version()}


__all__ = ["CudaBackend"]
