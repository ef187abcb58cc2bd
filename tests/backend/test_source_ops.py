"""Built-in ops whose entry has C source: every sample, with 1 to 4 threads, against the reference."""

from __future__ import annotations

import numpy as np
import pytest

from aot.backend.cpu import CpuBackend
from aot.backend.cpu.isa import Isa
from aot.builder import Builder
from aot.dtypes import from_numpy
from aot.evaluate import evaluate_op
from aot.ops import OPS
from tests.backend.harness import ISAS, run_threads
from tests.backend.test_loops import kernel_of
from tests.ops.samples import samples_of

SOURCE_OPS = sorted(name for name, op in OPS.items() if op.sources)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SOURCE_OPS)
def test_samples(name: str, isa: Isa) -> None:
    for sample in samples_of(name):
        builder = Builder()
        given = [
            None if a is None else builder.input(f"x{n}", from_numpy(a.dtype), a.shape)
            for n, a in enumerate(sample.operands)
        ]
        kernel = kernel_of(builder.finish(builder.op(name, *given, **sample.attrs)))
        arrays = [a for a in sample.operands if a is not None]
        got = run_threads(kernel, CpuBackend().emit(kernel, isa.target), isa, arrays)
        want = evaluate_op(OPS[name], OPS[name].check_attrs(sample.attrs), sample.operands)
        for mine, theirs in zip(got, want, strict=True):
            if theirs.dtype.kind == "f":
                wide = mine.astype(np.float64), theirs.astype(np.float64)
                np.testing.assert_allclose(*wide, sample.relative, sample.absolute, err_msg=str(sample.attrs))
            else:
                np.testing.assert_array_equal(mine, theirs)
