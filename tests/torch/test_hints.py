"""What users read of operators that are not supported, with their lines of Python, and of modules in training."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
import torch
from torch import nn
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional

import aot
from aot.cli.main import cli
from aot.errors import UnsupportedError
from aot.frontend.torch_hints import line_of
from aot.frontend.torch_import import check_torch, import_torch

X = torch.linspace(-1, 1, 12).reshape(3, 4)


@torch.library.custom_op("aotc_hints::twice", mutates_args=())  # type: ignore[untyped-decorator,unused-ignore]
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake  # type: ignore[untyped-decorator,unused-ignore]
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("aotc_hints::double_in_place", mutates_args={"x"})  # type: ignore[untyped-decorator,unused-ignore]
def double_in_place(x: torch.Tensor) -> None:
    x.mul_(2)


class Calls(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def exported(module: Any, x: Any = X, **options: Any) -> Any:
    if not isinstance(module, nn.Module):
        module = Calls(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(module, (x.clone(),), **options)


def refusal(source: Any) -> UnsupportedError:
    with pytest.raises(UnsupportedError) as caught:
        import_torch(source)
    return caught.value


def notes_of(program: Any) -> tuple[str, ...]:
    return import_torch(program)[1].warnings


FORWARD = f"test_hints.py:{Calls.forward.__code__.co_firstlineno + 1}"  # what PyTorch keeps of a trace, if not strict


# Operators of other packages


def test_an_operator_of_another_package() -> None:
    def calls(x: Any) -> Any:
        return twice(x) + 1

    error = refusal(exported(calls))
    assert "aotc_hints::twice.default x1 (twice (" in error.message and FORWARD in error.message
    assert "an operator of another package, 'aotc_hints'" in error.message
    for words in ("other operators of PyTorch", "outside of the model", "run_decompositions", "docs/torch.md"):
        assert words in error.hint
    (entry,) = check_torch(exported(calls))
    assert (entry.domain, entry.op_type, entry.count) == ("aotc_hints", "aotc_hints::twice.default", 1)


def test_an_operator_that_changes_its_arguments() -> None:
    def calls(x: Any) -> Any:
        double_in_place(x)
        return x + 1

    error = refusal(exported(calls))
    assert "aotc_hints::double_in_place.default changes its arguments: an operator of another package" in error.message
    assert FORWARD in error.message


@pytest.mark.parametrize(
    ("namespace", "reason", "hint"),
    [
        ("aotc_elsewhere", "an operator of another package, 'aotc_elsewhere'", "run_decompositions"),
        ("torchao", "an operator of quantized tensors", "export the float model"),
    ],
)
def test_an_operator_that_pytorch_does_not_know_here(namespace: str, reason: str, hint: str, tmp_path: Path) -> None:
    """As in the process that compiles a file whose exporter had torchvision."""
    library = torch.library.Library(namespace, "DEF")
    library.define("plus(Tensor x) -> Tensor")
    library.impl("plus", lambda x: x + 1, "CompositeExplicitAutograd")

    def calls(x: Any) -> Any:
        plus = getattr(torch.ops, namespace).plus
        return plus(x) * plus(-x)

    path = tmp_path / "m.pt2"
    torch.export.save(exported(calls), path)
    library._destroy()
    error = refusal(path)
    assert error.where == str(path) and f"{namespace}::plus.default x2 (" in error.message
    assert FORWARD in error.message and reason in error.message and hint in error.hint
    result = CliRunner().invoke(cli, ["build", "--check", str(path)])
    assert result.exit_code == 1 and f"{namespace}::plus.default" in result.stderr


def test_a_decomposition_before_the_build(tmp_path: Path) -> None:
    """What the hint says works, and leaves the rest of the program as it was."""
    program = exported(lambda x: functional.layer_norm(twice(x), (4,)))
    program = program.run_decompositions({torch.ops.aotc_hints.twice.default: lambda x: x + x})
    model = aot.compile(program, "cpu:x86-64-v3", cache_dir=tmp_path).load(threads=1)
    torch.testing.assert_close(torch.from_numpy(model(X)), functional.layer_norm(X * 2, (4,)))


def test_an_aten_operator() -> None:
    error = refusal(exported(lambda x: torch.linalg.ldl_factor(x @ x.T)[0]))
    assert "aten::linalg_ldl_factor_ex.default x1 (" in error.message and "test_hints.py:" in error.message
    assert "docs/torch.md" in error.hint and "aotc build --check" in error.hint


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize(),
    ],
)
def test_quantized_tensors(function: Any) -> None:
    error = refusal(exported(function))
    assert "an operator of quantized tensors" in error.message and "PT2E" in error.hint


def test_attention_with_functions_of_its_own() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    error = refusal(exported(lambda x: flex_attention(x, x, x), torch.ones(1, 1, 16, 16)))
    assert "flex_attention x1" in error.message and "test_hints.py:" in error.message
    assert "scaled_dot_product_attention" in error.hint


# Lines in the branches of control flow


def _cond(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: twice(x), lambda x: x - 1, (x,))


def _nested(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: torch.cond(x.sum() > 1, twice, torch.neg, (x,)), torch.neg, (x,))


def _while_loop(x: Any) -> Any:
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, twice(x)), (torch.tensor(0), x))[1]


def _scan(x: Any) -> Any:
    return scan(lambda kept, row: (kept + twice(row), row * 2), torch.zeros(4), x)[1]


def _map(x: Any) -> Any:
    return map_rows(lambda row: twice(row) + 1, x)


@pytest.mark.parametrize(
    ("function", "strict"),
    [(_cond, False), (_nested, False), (_while_loop, False), (_scan, False), (_map, False), (_cond, True)],
)
def test_lines_in_branches(function: Any, strict: bool, tmp_path: Path) -> None:
    """Without `strict` PyTorch traces a module that it made itself; and only what is not supported is told."""
    own = f"test_hints.py:{function.__code__.co_firstlineno + 1}" if strict else FORWARD
    program = exported(function, strict=strict)
    torch.export.save(program, tmp_path / "m.pt2")
    for source in (program, tmp_path / "m.pt2"):
        (entry,) = check_torch(source)
        assert entry.op_type == "aotc_hints::twice.default"
        assert all(own in node for node in entry.nodes), entry


def test_lines() -> None:
    torch_line = 'File "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 7, in forward\n  y'
    own = 'File "/home/me/torch/model.py", line 5, in forward\n    return f(x)'
    made = '  File "<eval_with_key>.5", line 9, in forward\n    f = g'
    assert line_of(f"{own}\n{torch_line}\n{made}") == "/home/me/torch/model.py:5"
    assert line_of(f"{torch_line}\n{made}") == "/env/lib/python3.11/site-packages/torch/nn/modules/linear.py:7"
    assert line_of(made) == "<eval_with_key>.5:9"
    assert line_of("") == "" and line_of("None") == ""


# Modules in training


IMAGE = torch.linspace(0, 1, 48).reshape(1, 3, 4, 4)
IN_TRAINING: dict[str, tuple[Callable[[], Any], Any, str]] = {
    "dropout": (lambda: nn.Dropout(0.5), X, "dropout works as in training, at random"),
    "dropout2d": (lambda: nn.Dropout2d(0.5), IMAGE, "feature_dropout works as in training"),
    "alpha dropout": (lambda: nn.AlphaDropout(0.5), X, "alpha_dropout works as in training"),
    "feature alpha dropout": (lambda: nn.FeatureAlphaDropout(0.5), IMAGE, "feature_alpha_dropout works"),
    "rrelu": (lambda: nn.RReLU(), X, "rrelu works as in training, at random"),
    "batch norm": (lambda: nn.BatchNorm1d(4), X, "batch_norm works as in training, with the statistics of each batch"),
    "batch norm 2d": (lambda: nn.BatchNorm2d(3, affine=False), IMAGE, "batch_norm works as in training"),
    "instance norm": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), IMAGE, "instance_norm works as in"),
}


@pytest.mark.parametrize("name", IN_TRAINING)
def test_modules_in_training(name: str) -> None:
    make, x, words = IN_TRAINING[name]
    (found,) = (note for note in notes_of(exported(make(), x)) if "as in training" in note)
    assert words in found and "export the module after module.eval()" in found
    assert not any("as in training" in note for note in notes_of(exported(make().eval(), x)))


def test_functions_in_training() -> None:
    """eval() does not reach a call of functional.dropout."""

    def drops(x: Any) -> Any:
        return functional.dropout(x, 0.5)

    (note,) = (note for note in notes_of(exported(Calls(drops).eval())) if "as in training" in note)
    assert FORWARD in note and "training=self.training" in note
    assert not any("as in training" in note for note in notes_of(exported(lambda x: functional.dropout(x, 0.0))))


@pytest.mark.parametrize(
    ("module", "words"), [(nn.Dropout(0.5), "dropout works"), (nn.BatchNorm1d(4), "batch_norm works")]
)
def test_modules_in_training_that_were_decomposed(module: Any, words: str) -> None:
    (found,) = (note for note in notes_of(exported(module).run_decompositions()) if "as in training" in note)
    assert words in found


def test_many_are_one_note() -> None:
    module = nn.Sequential(*(nn.Dropout(0.1) for _ in range(5)))
    (note,) = (note for note in notes_of(exported(module)) if "as in training" in note)
    assert "and 2 more" in note


def test_what_evaluation_does_not_change_has_no_note() -> None:
    for module, x in ((nn.BatchNorm1d(4, track_running_stats=False), X), (nn.InstanceNorm2d(3), IMAGE)):
        assert not any("as in training" in note for note in notes_of(exported(module, x)))


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.LSTM(4, 4, 2, dropout=0.3), X[None]),
        (nn.GRU(4, 4, 2, dropout=0.3), X[None]),
        (nn.RNN(4, 4, 2, dropout=0.3), X[None]),
        (nn.TransformerEncoderLayer(4, 2, 8, batch_first=True), X[None]),
        (Calls(lambda x: functional.scaled_dot_product_attention(x, x, x, dropout_p=0.1)), X[None]),
    ],
)
def test_refused_in_training(module: Any, x: Any) -> None:
    error = refusal(exported(module, x))
    assert "dropout" in error.message and "Export the module after module.eval()." in error.hint
