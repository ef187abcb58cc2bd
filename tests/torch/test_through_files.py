"""Programs that PyTorch writes into a .pt2 file, and does not read back, or not as they were."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
import torch

import aot
from aot.errors import ModelError, UnsupportedError
from aot.frontend import load
from aot.frontend.torch_mended import mend_document
from aot.text import graph_digest, print_graph
from tests.torch.suites import Call, bytes_of


def exported(function: Any, *tensors: Any, **options: Any) -> Any:
    return torch.export.export(Call(function, tensors, {}), tensors, strict=False, **options)


def document_of(saved: bytes) -> Any:
    with zipfile.ZipFile(io.BytesIO(saved)) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("models/model.json"))
        return json.loads(archive.read(name))


@pytest.mark.parametrize("read", [load, lambda saved: load(torch.export.load(io.BytesIO(saved)))])
def test_a_size_that_is_a_sum(read: Any, tmp_path: Path) -> None:
    """PyTorch takes the sum for a symbol when it reads, and then fails to take the program to core ops."""
    dynamic = torch.export.Dim.DYNAMIC
    shapes = (({0: dynamic}, {0: dynamic}),)
    program = exported(lambda x, y: x[2:] + y, torch.ones(9, 3), torch.ones(7, 3), dynamic_shapes=shapes)
    assert any("+ 2" in str(size) for size in program.range_constraints)
    saved = bytes_of(program)
    assert print_graph(read(saved)) == print_graph(load(program))
    with aot.compile(saved, "cpu:x86-64-v3", cache_dir=tmp_path).load(threads=1) as model:
        x, y = torch.randn(5, 3), torch.randn(3, 3)
        (found,) = model.run(dict(zip([port.name for port in model.inputs], (x, y), strict=True))).values()
        np.testing.assert_array_equal(found, x[2:] + y)


def test_a_text_among_the_results() -> None:
    program = exported(lambda x: (x + 1, "done", x * 2), torch.ones(2))
    saved = bytes_of(program)
    with pytest.raises(RuntimeError):
        torch.export.load(io.BytesIO(saved))
    assert print_graph(load(saved)) == print_graph(load(program))
    assert any("left out" in note for note in aot.compile(saved, "cpu:x86-64-v3").report.notes)


def test_an_argument_with_a_keyword_for_a_name() -> None:
    program = exported(lambda x: x.clone().uniform_() + x.clone().uniform_(0.25, 2), torch.ones(2))
    saved = bytes_of(program)
    assert graph_digest(load(saved)) == graph_digest(load(program))


@pytest.mark.parametrize("document", [None, [], {}, {"graph_module": 3}, {"graph_module": {"graph": {"outputs": {}}}}])
def test_damaged_documents_are_left_to_the_reader(document: Any) -> None:
    assert mend_document(document) == {}


def test_texts_that_the_signature_does_not_have_stay() -> None:
    document = document_of(bytes_of(exported(lambda x: (x + 1, "done"), torch.ones(2))))
    document["graph_module"]["signature"]["output_specs"][1]["user_output"]["arg"] = {"as_string": "other"}
    assert mend_document(document) == {}
    assert document["graph_module"]["graph"]["outputs"][1] == {"as_string": "done"}


def test_an_operator_whose_results_pytorch_cannot_foresee() -> None:
    """In memory PyTorch runs it to see; not so for a program that was read."""
    program = exported(lambda x: tuple(torch.geqrf(x)), torch.randn(3, 3))
    with pytest.raises(UnsupportedError, match=r"geqrf"):
        load(program)
    with pytest.raises(UnsupportedError, match=r"aten\.geqrf\.default to Core ATen: it has no fake") as caught:
        load(bytes_of(program))
    assert caught.value.where == "node 'geqrf'"


@pytest.mark.parametrize("target", ["torch.ops.aten.save.default", "torch.ops.aten.from_file.default"])
def test_operators_on_files_are_refused(target: str) -> None:
    saved = bytes_of(exported(torch.relu, torch.ones(3)))
    document = document_of(saved)
    document["graph_module"]["graph"]["nodes"][0]["target"] = target
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(saved)) as old, zipfile.ZipFile(file, "w") as new:
        for info in old.infolist():
            is_model = info.filename.endswith("models/model.json")
            new.writestr(info.filename, json.dumps(document) if is_model else old.read(info.filename))
    with pytest.raises(ModelError, match="which is no operator"):
        load(file.getvalue())
