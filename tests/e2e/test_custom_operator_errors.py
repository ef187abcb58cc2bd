"""What is wrong with a custom operator is said in its own words: its name, its source lines, its functions."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

import aot
from aot import custom
from aot.cli.main import main
from aot.custom import AttrSpec, KernelSource, Kind, Operator, Sample, TensorType, load_operators
from aot.errors import OperatorError, UnsupportedError
from aot.testing import check_operator
from tests.e2e.test_custom_operators import COPY, DOUBLE, SCALE, floats, model, node, opaque

X = Sample((floats(3, 5),))
PROTO = model([node("Double", ["x"], ["y"])], {"x": (1, ["N", 5])}, {"y": 1})


def changed(**parts: Any) -> Operator:
    return replace(DOUBLE, op=replace(DOUBLE.op, **parts))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"name": "relu"}, "'relu' is the name of a built-in op; the name of a custom operator has the form NAMESPACE"),
        ({"name": "double"}, "has the form NAMESPACE.NAME"),
        ({"name": "test.a b"}, "has the form NAMESPACE.NAME"),
        ({"doc": ""}, "`doc` is empty"),
        ({"inputs": "x"}, "`inputs` must be a tuple of names"),
        ({"inputs": ("x y",)}, "`inputs` must be a tuple of names"),
        ({"attrs": {"to": AttrSpec("dtype")}}, "attribute 'to' needs an AttrSpec of type int, float"),
        ({"attrs": {"a-b": AttrSpec("int")}}, "attribute 'a-b' needs an AttrSpec"),
        ({"sources": {}}, "it says nothing of how it is computed"),
        ({"body": lambda attrs, x: x}, "it has both `body` and `sources`"),
        ({"kind": Kind.SORT}, "an operator with `sources` is of Kind.OPAQUE"),
        ({"reference": None}, "the reference is missing"),
        ({"infer": "x"}, "`infer` must be a function"),
        ({"sources": {"cpu": KernelSource(text=COPY, function="not a name")}}, "must be a C identifier"),
    ],
)
def test_definitions(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        changed(**parts)
    assert caught.value.hint and str(parts.get("name", "test.double")) in caught.value.where


def test_the_onnx_side_of_a_definition() -> None:
    with pytest.raises(OperatorError, match="op_type and a since_version"):
        replace(DOUBLE, since_version=0)
    with pytest.raises(OperatorError, match=r"maps to 'bias'; the op has no attributes"):
        replace(DOUBLE, attributes={"b": "bias"})
    with pytest.raises(OperatorError, match="must be an OpDef, not str"):
        Operator(op="x", op_type="X", domain="")  # type: ignore[arg-type]


def test_two_of_one_name() -> None:
    other = opaque("Double", COPY, reference=lambda attrs, x: x)
    with pytest.raises(OperatorError, match=r"the name test.double is given twice"):
        aot.compile(PROTO, operators=[DOUBLE, replace(other, op_type="Other")])
    with pytest.raises(OperatorError, match=r"the ONNX operator com.test:Double-1 is given twice"):
        aot.compile(PROTO, operators=[DOUBLE, replace(SCALE, op_type="Double")])
    with custom.use([DOUBLE, replace(DOUBLE, domain="org.other")]):
        pass  # one op for two ONNX names is no clash


def compile_with(text: str) -> OperatorError:
    broken = changed(sources={"cpu": KernelSource(text=text, function="run")})
    with pytest.raises(OperatorError) as caught:
        aot.compile(PROTO, operators=[broken], target="cpu:x86-64-v3")
    assert caught.value.where == "operator 'test.double'"
    return caught.value


def test_a_source_that_does_not_compile_is_shown_with_its_lines() -> None:
    error = compile_with(COPY.replace("2 * x[i]", "two * x[i]"))
    lines = error.message.splitlines()
    assert lines[0] == "the C source does not compile:" and "line 5: " in lines[1] and "'two'" in lines[1]
    assert lines[2] == "     5 |   for (; i < end; i++) y[i] = two * x[i];"
    assert lines[3].index("^") == lines[2].index("two")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("f32 helper(f32 x) { return x; }\n" + COPY, "line 1: no previous prototype for .?helper", "must be static"),
        ("#include <math.h>\n" + COPY, "line 1: #include <math.h>: kernels are compiled without", "float.h"),
        ('\n #  include "own.h"\n' + COPY, 'line 2: #  include "own.h"', "float.h"),
        (COPY.replace("2 * x[i]", "expf(x[i])"), "line 5: implicit declaration of function .?expf", "custom_operators"),
        (COPY.replace("2 * x[i]", "__builtin_expf(x[i])"), "calls expf, which is not there", "aot_exp_f32"),
        (COPY.replace("2 * x[i]", "aot_gamma_f32(x[i])"), "declaration of function .?aot_gamma", "custom_operators"),
        (COPY.replace("run(", "ran("), "the source has no function run", r"static void run\(const aot_call"),
        (COPY.replace("const IN0_T *x", "const f64 *x").replace("].data;", "].shape;"), "line 3", "custom_operators"),
        (COPY + "\nstatic i32 f(void) { }", "line 8: ", "custom_operators"),
        (COPY + "/* an open comment", "does not compile", "left open"),
        (COPY.rstrip().removesuffix("}"), "does not compile", "left open"),
    ],
)  # fmt: skip
def test_sources(text: str, message: str, hint: str) -> None:
    error = compile_with(text)
    assert re.search(message, error.message), error.message
    assert re.search(hint, error.hint), error.hint


def test_a_function_for_the_source() -> None:
    texts: list[tuple[Any, str]] = [
        (lambda attrs, x: 3, "must be text, not int"),
        (lambda attrs: "", "raised TypeError"),
    ]
    for text, message in texts:
        broken = changed(sources={"cpu": KernelSource(text=text, function="run")})
        with pytest.raises(OperatorError, match=message):
            aot.compile(PROTO, operators=[broken], target="cpu:x86-64-v3")
    broken = changed(sources={"cpu": KernelSource(text=COPY, function="run", scratch_bytes=-1)})
    with pytest.raises(OperatorError, match="scratch_bytes must be a number of bytes, not -1"):
        aot.compile(PROTO, operators=[broken], target="cpu:x86-64-v3")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"infer": lambda attrs, x: x.nonsense}, "infer raised AttributeError: .*'nonsense'"),
        ({"infer": lambda attrs, x: 3}, "infer must return a TensorType without a layout, or a tuple of them; not 3"),
        ({"infer": lambda attrs, x: ()}, "infer must return a TensorType"),
    ],
)
def test_functions_that_fail(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message) as caught:
        aot.compile(PROTO, operators=[changed(**parts)])
    assert "test.double" in caught.value.where


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"samples": lambda rng: []}, "must return a list of Sample"),
        ({"samples": lambda rng: 1 / 0}, "samples raised ZeroDivisionError"),
        ({"reference": lambda attrs, x: x.nonsense}, "reference raised AttributeError"),
        ({"reference": lambda attrs, x: x.astype(np.float64)}, r"infer says f32\[3, 5\]; the reference computes f64"),
        ({"reference": lambda attrs, x: (x, x)}, r"infer says f32\[3, 5\]; the reference computes f32\[3, 5\], f32"),
        ({"reference": lambda attrs, x: 3 * x}, r"1 thread: result 0 is wrong in 15 of 15 elements; .* at \[0, 0\]"),
        ({"reference": lambda attrs, x: np.multiply(x, 2, out=x)}, "the reference changes operand 0"),
        ({"infer": lambda attrs, x: TensorType(x.dtype, (*x.shape, 1))}, r"infer says f32\[3, 5, 1\]"),
        (
            {"infer": lambda attrs, x: x if isinstance(x.shape[0], int) else TensorType(x.dtype, (x.shape[0] + 1, 5))},
            r"for \(f32\[s3,s5\]\) infer says that result 0 is f32\[s3 \+ 1,5\], which is \[4, 5\]",
        ),
    ],
)
def test_check_operator_finds(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        check_operator(changed(**{"samples": lambda rng: [X]} | parts))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("2 * x[i];", "2 * x[i]; y[call->inputs[0].elements] = 0;", "the kernel writes beside result 0"),
        ("2 * x[i];", "2 * x[i]; y[-1] = 0;", "the kernel writes beside result 0"),
        ("2 * x[i];", "2 * x[i]; ((f32 *)x)[i] = 0;", "the kernel writes to operand 0"),
        ("2 * x[i];", "2 * x[i + 1];", "is wrong in"),
        (
            "2 * x[i];",
            "2 * x[i] * (1 + 0x1p-23f * call->thread);",
            "2 threads: the results have other bits than with 1",
        ),
        ("2 * x[i];", "2 * x[i]; if (call->thread == 2) ((f32 *)call->scratch)[-1] = 0;", "beside its scratch memory"),
        ("i < end;", "i < end - 1;", "is wrong in"),
    ],
)
def test_check_operator_finds_kernels(old: str, new: str, message: str) -> None:
    assert old in COPY
    source = KernelSource(text=COPY.replace(old, new), function="run", scratch_bytes=64)
    with pytest.raises(OperatorError, match=message):
        check_operator(changed(samples=lambda rng: [X], sources={"cpu": source}))


def test_nodes_that_do_not_fit() -> None:
    with pytest.raises(aot.AotError, match=r"Double-1 has no attribute 'alpha'; it has none"):
        aot.compile(model([node("Double", ["x"], ["y"], alpha=1.0)], {"x": (1, [5])}, {"y": 1}), operators=[DOUBLE])
    with pytest.raises(aot.AotError, match=r"test.double takes x; got 2 operands"):
        aot.compile(model([node("Double", ["x", "x"], ["y"])], {"x": (1, [5])}, {"y": 1}), operators=[DOUBLE])
    with pytest.raises(aot.AotError, match=r"declares 2 results; it has 1"):
        aot.compile(model([node("Double", ["x"], ["y", "z"])], {"x": (1, [5])}, {"y": 1}), operators=[DOUBLE])
    gate = model([node("Gate", ["x"], ["y"], limit="high")], {"x": (1, [5])}, {"y": 1})
    with pytest.raises(aot.AotError, match=r"attribute 'limit' must be a float"):
        aot.compile(gate, operators=[SCALE])


def test_an_operator_that_nobody_registered() -> None:
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(PROTO)
    assert "com.test:Double-1 x1 (n_y)" in caught.value.message
    assert "--operators FILE" in caught.value.hint and "aot.operators" in caught.value.hint
    near = model([node("Doubel", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1})
    with pytest.raises(UnsupportedError, match=r"no such operator is registered; 'com.test' has Double"):
        aot.compile(near, operators=[DOUBLE])
    with pytest.raises(UnsupportedError, match=r"registered from version 4 on; the model imports version 1"):
        aot.compile(PROTO, operators=[replace(DOUBLE, since_version=4)])


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ops.py"
    for text, message in (
        ("OPERATORS = 3", "expected a list of aot.custom.Operator, found 3"),
        ("OPERATORS = [1]", "expected a list"),
        ("X = 1", "there is no variable OPERATORS in it"),
        ("import nothing_like_this", "ModuleNotFoundError: No module named 'nothing_like_this'"),
        ("def", "SyntaxError"),
    ):
        path.write_text(text)
        with pytest.raises(OperatorError, match=message) as caught:
            load_operators(path)
        assert "ops.py" in caught.value.where
    path.write_text(
        "from tests.e2e.test_custom_operators import DOUBLE, SCALE\nOPERATORS = [DOUBLE]\nBOTH = DOUBLE, SCALE"
    )
    (found,) = load_operators(path)
    assert found.package == "ops.py" and found.version.startswith("sha256:") and "ops.py sha256:" in str(found)
    assert len(load_operators(f"{path}:BOTH")) == 2
    assert load_operators("tests.e2e.test_custom_operators:DOUBLE")[0].package.startswith("tests")
    with pytest.raises(OperatorError, match="cannot load operators: No such file"):
        load_operators(tmp_path / "none.py")
    with pytest.raises(OperatorError, match="cannot load operators: ModuleNotFoundError"):
        load_operators("no_such_module_at_all")
    with pytest.raises(OperatorError, match=r"an operator is an aot.custom.Operator, a module or a file, not 3"):
        aot.compile(PROTO, operators=[3])  # type: ignore[list-item]
    assert aot.compile(PROTO, operators=[path], target="cpu:x86-64-v3").meta["operators"][0]["package"] == "ops.py"


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Stand-ins for installed packages: (package, version, what its entry point loads)."""

    def install(*points: tuple[str, str, Any]) -> None:
        def load(value: Any) -> Callable[[], Any]:
            return lambda: value() if callable(value) else value

        found = [
            SimpleNamespace(name="ops", value="x:y", dist=SimpleNamespace(name=name, version=version), load=load(value))
            for name, version, value in points
        ]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: found)
        custom.installed.cache_clear()

    yield install
    custom.installed.cache_clear()


def test_installed_packages(packages: Callable[..., None], tmp_path: Path) -> None:
    packages(("acme", "1.5", [DOUBLE]), ("broken", "2", lambda: 1 / 0), ("zeta", "1", [replace(DOUBLE, op_type="Z")]))
    artifact = aot.compile(PROTO, target="cpu:x86-64-v3")
    assert artifact.meta["operators"][0] | {"name": ""} == {
        "name": "", "onnx": "com.test:Double-1", "package": "acme", "version": "1.5",
    }  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        aot.compile(model([node("Gate", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1}))
    assert "package broken, entry point ops cannot be loaded: ZeroDivisionError" in caught.value.hint
    # What is given comes before what is installed.
    other = opaque("Double", COPY, reference=lambda attrs, x: x)
    assert aot.compile(PROTO, operators=[other], target="cpu:x86-64-v3").meta["operators"][0]["package"] == ""
    # Text of the compiler is read with the operators of installed packages.
    assert aot.ops.OPS["test.double"].kind is Kind.OPAQUE


def test_two_packages_that_clash(packages: Callable[..., None]) -> None:
    packages(("acme", "1", [DOUBLE]), ("zeta", "3", [opaque("Double", COPY, reference=lambda attrs, x: x)]))
    assert [operator.package for operator in custom.installed()[0]] == ["acme"]
    assert "the name test.double is given twice, by acme 1 and zeta 3" in custom.installed()[1][0]


def test_models_of_built_in_operators_load_no_package(packages: Callable[..., None]) -> None:
    def load() -> Any:
        raise AssertionError("loaded")

    packages(("acme", "1", load))
    proto = model([helper.make_node("Relu", ["x"], ["y"])], {"x": (1, [5])}, {"y": 1})
    aot.compile(proto, target="cpu:x86-64-v3")
    assert custom.installed.cache_info().misses == 0


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], cache: Path) -> None:
    path, ops, out = tmp_path / "m.onnx", tmp_path / "ops.py", tmp_path / "m.aot"
    path.write_bytes(PROTO.SerializeToString())
    ops.write_text("from tests.e2e.test_custom_operators import DOUBLE\nOPERATORS = [DOUBLE]")
    assert main(["build", str(path), "--check"]) == 1
    assert "com.test:Double-1 x1 (n_y)" in capsys.readouterr().out
    assert main(["build", str(path), "--check", "--operators", str(ops)]) == 0
    assert "every op is supported\n  custom operator com.test:Double-1 (test.double, ops.py" in capsys.readouterr().out
    assert main(["build", str(path), "--check", "--operators", str(ops), "--json"]) == 0
    assert '"operators": [' in capsys.readouterr().out
    arguments = ["--cache", str(cache), "-o", str(out)]
    assert main(["build", str(path), *arguments]) == 1
    assert "--operators FILE" in capsys.readouterr().err
    assert main(["build", str(path), "--operators", str(ops), *arguments]) == 0
    assert "custom    com.test:Double-1 (ops.py sha256:" in capsys.readouterr().out
    assert main(["verify", str(out), "--against", str(path), "--operators", str(ops)]) == 0
    captured = capsys.readouterr()
    assert "agree with aotc's reference interpreter" in captured.out
    assert "ONNX Runtime does not know com.test:Double-1" in captured.err
    assert main(["verify", str(out), "--against", str(path)]) == 1
    assert "com.test:Double-1" in capsys.readouterr().err
    text = tmp_path / "m.air"
    assert main(["opt", str(path), "--until", "fold", "--operators", str(ops), "-o", str(text)]) == 0
    assert main(["opt", str(text), "--pass", "dedupe", "--operators", str(ops)]) == 0
    assert "= test.double(%0)" in capsys.readouterr().out
    assert main(["inspect", str(out)]) == 0
    assert "com.test:Double-1 (ops.py" in capsys.readouterr().out
