"""The CPU backend: kernels as header-free C with vector extensions, one shared object per level of x86-64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from aot.backend.base import Built, Emitted
from aot.backend.cpu import build as builder
from aot.backend.cpu.attend import emit_attend
from aot.backend.cpu.contract import emit_contract
from aot.backend.cpu.isa import ISAS, Isa, isa_of, isa_of_target
from aot.backend.cpu.loops import emit_loops
from aot.backend.cpu.prelude import assemble
from aot.backend.cpu.recur import emit_recurrence
from aot.backend.cpu.scan import emit_scan
from aot.backend.cpu.scatter import emit_scatter
from aot.backend.cpu.sort import emit_sort
from aot.backend.cpu.source import emit_source
from aot.backend.cpu.steps import emit_steps
from aot.backend.cpu.trees import emit_trees
from aot.backend.cpu.window import emit_window
from aot.dtypes import I8, U8, DType
from aot.errors import CompilerError
from aot.ir import Node
from aot.kernel import AttendRoot, ContractRoot, Kernel, Kind, OwnedRoot, ScanRoot, WindowRoot
from aot.ops import OPS
from aot.target import Target

OWNED: Mapping[str, Callable[[Kernel, Isa], Emitted]] = {
    "sort": emit_sort, "top_k": emit_sort, "scatter_elements": emit_scatter, "scatter_nd": emit_scatter,
    "tree_ensemble": emit_trees,
    "recur_lstm": emit_recurrence, "recur_gru": emit_recurrence, "recur_rnn": emit_recurrence,
    "recur_cell": emit_recurrence, "recur_map": emit_steps,
}  # fmt: skip
"""The emitters of ops that own their loops; the others have C source in their entry."""


class CpuBackend:
    """See aot.backend.base.Backend."""

    name = "cpu"
    default_architectures: tuple[str, ...] = ("x86-64-v4", "x86-64-v3")
    quantized_architectures: tuple[str, ...] = ("x86-64-v4+vnni", "x86-64-v3")
    kinds: frozenset[Kind] = frozenset(Kind)
    decomposes: frozenset[str] = frozenset()
    has_halos = True
    joins_products = False  # each product reads its left operand from cache, and packs its weight alone
    splits_keys = False  # one thread walks a cache as fast as it comes
    splits_sums = False  # likewise a weight
    channel_group = 1
    reads_anywhere = False  # lanes want runs of neighbours
    precisions: frozenset[str] = frozenset({"fp32", "bf16"})
    precision_features: Mapping[str, str] = MappingProxyType({"bf16": "bf16"})
    precision_architectures: Mapping[str, tuple[str, ...]] = MappingProxyType(
        {"bf16": ("x86-64-v4+vnni+bf16", "x86-64-v3")}
    )
    eight_bit_operands: tuple[DType, DType] = (U8, I8)  # what its dot products multiply

    def target(self, architecture: str) -> Target:
        return isa_of(architecture).target

    def lacks(self, node: Node) -> str:
        return ""

    def emit(self, kernel: Kernel, target: Target) -> Emitted:
        isa = isa_of_target(target)
        root = kernel.root
        if isinstance(root, ContractRoot):
            return emit_contract(kernel, isa)
        if isinstance(root, WindowRoot):
            return emit_window(kernel, isa, isa.is_exact)
        if isinstance(root, AttendRoot):
            return emit_attend(kernel, isa)
        if isinstance(root, ScanRoot):
            return emit_scan(kernel, isa)
        if isinstance(root, OwnedRoot):
            if root.op not in OWNED and "cpu" not in OPS[root.op].sources:
                raise CompilerError(
                    f"the CPU backend has no emitter for {root.op} (kind {kernel.kind.value})",
                    hint="The pass decompose writes it in simpler ops: do not disable it.",
                )
            return OWNED.get(root.op, emit_source)(kernel, isa)
        return emit_loops(kernel, isa)

    def build(
        self,
        sources: Sequence[tuple[str, str]],
        target: Target,
        cache: Path | None,
        *,
        jobs: int = 0,
        compiler: str | None = None,
    ) -> Built:
        """A shared object that exports each symbol. `jobs`: compilers at a time, 0 for one per CPU."""
        isa = isa_of_target(target)
        complete = [(symbol, assemble(source, isa)) for symbol, source in sources]
        return Built(builder.build(complete, isa, builder.find_compiler(compiler or ""), cache, jobs))

    def tools(self, compiler: str | None = None) -> Mapping[str, str]:
        return {"c_compiler": builder.find_compiler(compiler or "").version}


__all__ = ["ISAS", "CpuBackend"]
