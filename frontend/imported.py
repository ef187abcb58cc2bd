"""What a frontend says of a model besides its graph: where it came from, and what of it is not supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aot.errors import CompilerError


@dataclass(frozen=True)
class Unsupported:
    """What of a model cannot be compiled: an op (or one use of it), how often, and where first."""

    domain: str
    op_type: str
    version: int
    reason: str
    count: int
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        if not self.version:  # not an operator: an input, a type, the operator set
            name = self.op_type
        else:
            name = f"{self.domain or 'ai.onnx'}:{self.op_type}-{self.version}"
        more = f" and {self.count - len(self.nodes)} more" if self.count > len(self.nodes) else ""
        reason = f": {self.reason}" if self.reason else ""
        nodes = f" ({', '.join(self.nodes)}{more})" if self.nodes else ""
        return f"{name} x{self.count}{nodes}{reason}"


@dataclass(frozen=True)
class ImportInfo:
    """What is worth knowing of the source, besides the graph.

    `digest` is the SHA-256 of the file and its external data. `symbols` gives the model's own text for
    each symbol's name. `warnings` hold the conditions that the import had to put on input sizes.
    """

    digest: str
    opset: int
    producer: str
    symbols: Mapping[str, str]
    node_count: int
    ops: Mapping[str, int]
    warnings: tuple[str, ...]


def report_of(entries: Sequence[Unsupported]) -> str:
    total = sum(entry.count for entry in entries)
    if not entries:
        raise CompilerError("an import failed without a reason")
    lines = "\n".join(f"  {entry}" for entry in entries)
    return f"{total} {'node is' if total == 1 else 'nodes are'} not supported:\n{lines}"
