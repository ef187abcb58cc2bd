"""Quantization of a model that changes its buffers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aot.options import CompileOptions
from aot.quantize import quantize
from tests.quantization import models

pytest.importorskip("torch")
import torch


class Cell(torch.nn.Module):
    """One step of a recurrent layer, whose state is a buffer."""

    h: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.new, self.old = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.register_buffer("h", torch.full((1, 8), 0.5))

    def forward(self, x: Any) -> Any:
        made = torch.tanh(self.new(x) + self.old(self.h))
        self.h.copy_(made)
        return made * 2


def test_state(tmp_path: Path) -> None:
    """Buffers that a model changes: samples may leave them out; the artifact keeps them in 32 bits."""
    options = CompileOptions(cache_dir=tmp_path)
    program = torch.export.export(Cell().eval(), (torch.ones(1, 8),), strict=False)
    random = np.random.default_rng(0)
    xs = [random.standard_normal((1, 8)).astype(np.float32) for _ in range(6)]
    states = [{"x": x, "h": random.uniform(-1, 1, (1, 8)).astype(np.float32)} for x in xs]
    record = quantize(program, "int8", data=states, allow_slower=True, options=options)
    assert [node.form for node in record.nodes] == ["int8", "int8"]
    left_out = quantize(program, "int8", data=[{"x": x} for x in xs], options=options)  # with times: they need it too
    assert "on all of the data" in left_out.ledger[1].reason
    with models.build(program, options, record).load(threads=1) as one, models.build(program, options).load() as other:
        states = [one.new_state(), other.new_state()]
        for x in xs:
            found, expected = (
                model.run({"x": x}, state=state) for model, state in zip((one, other), states, strict=True)
            )
        assert all(models.relative_error(found[name], expected[name]) < 0.05 for name in expected)
