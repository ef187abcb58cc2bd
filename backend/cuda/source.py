"""Kernels from the Triton source of an op's entry: the call of its function by the names of its parameters.

docs/custom_operators.md is the contract. A function takes what it names: pointers, shapes, strides, attributes, the
number of its program. Sizes that are known are constants in its code.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from aot import dims as dimension
from aot.backend.base import Emitted
from aot.backend.cuda.code import Code, DimTable
from aot.backend.cuda.frame import Tiling, finish
from aot.dtypes import DType
from aot.errors import AotError, CompilerError, OperatorError, UnsupportedError
from aot.ir import Attr, Node, TensorType
from aot.kernel import Kernel, OwnedRoot
from aot.ops.opdef import OPS, KernelSource, infer
from aot.target import Target

_OPERAND = re.compile(r"(in|out)(\d+)(?:_(shape|strides|elements))?", re.ASCII)


def emit_source(kernel: Kernel, target: Target) -> Emitted:
    """The kernel of an op whose entry has Triton source. Raises UnsupportedError where there is none."""
    root = kernel.root
    if not isinstance(root, OwnedRoot):
        raise CompilerError(f"{kernel.name}: not an op with a kernel of its own")
    definition = OPS[root.op]
    source = definition.sources.get("cuda")
    if source is None:
        raise UnsupportedError(f"a GPU has no kernel for {root.op} yet")
    types = [None if number is None else kernel.inputs[number].type for number in root.operands]
    types += [None] * (sum(not name.startswith("*") for name in definition.inputs) - len(types))
    where = f"operator {root.op!r}"
    text = _made(source.text, "the source", root, types, where)
    programs = _made(source.programs, "programs", root, types, where)
    if not isinstance(text, str):
        raise OperatorError(f"the source must be text, not {type(text).__name__}", where=where)
    if not isinstance(programs, int | dimension.DimExpr):
        raise OperatorError(f"programs must be a number, not {programs!r}", where=where)
    function = _function(text, source, where)
    _check_results(function, root)
    code, dims = Code(1), DimTable()
    tiling = Tiling(code, dims)
    with tiling.programs(programs) as program:
        given = _Arguments(kernel, root, len(types), dims, program)
        arguments = []
        for name in _parameters(function):
            argument = given.find(name)
            if argument is None:
                raise OperatorError(
                    f"the Triton function {source.function} has a parameter {name!r}, which nothing is known of",
                    where=where,
                    hint=f"It may name {', '.join(given.names)}; in0_shape, in0_strides and in0_elements.",
                )
            arguments.append(argument)
        code.line(f"{source.function}({', '.join(arguments)})")
    results = infer(root.op, root.attrs, [None if t is None else TensorType(t.dtype, t.shape) for t in types])
    return finish(
        kernel, tiling, warps=source.warps, stages=1, schedule=f"Triton source of {root.op}",
        flops=results[0].elements * definition.cost_flops, functions=f"{text.strip()}\n\n\n",
    )  # fmt: skip


def lacks_source(node: Node) -> str:
    """Why an op with Triton source has none for this node, such as for a matrix that is too large; "" if it has."""
    source = OPS[node.op].sources["cuda"]
    root = OwnedRoot(node.op, node.attrs, (), ())
    types = [None if value is None else value.type for value in node.inputs]
    types += [None] * (sum(not name.startswith("*") for name in OPS[node.op].inputs) - len(types))
    try:
        for part in (source.text, source.programs):
            _made(part, "the source", root, types, f"operator {node.op!r}")
    except UnsupportedError as error:
        return error.message
    return ""


def _made(value: object, what: str, root: OwnedRoot, types: Sequence[TensorType | None], where: str) -> object:
    """A part of the source, which may be a function of the attributes and the operands' types."""
    if not callable(value):
        return value
    try:
        return value(root.attrs, *types)
    except AotError:
        raise
    except Exception as error:
        raise OperatorError(f"{what} raised {type(error).__name__}: {error}", where=where) from error


def _function(text: str, source: KernelSource, where: str) -> ast.FunctionDef:
    """The function of a source. Raises OperatorError where there is no such function."""
    try:
        module = ast.parse(text)
    except SyntaxError as error:
        message = f"the Triton source does not parse: line {error.lineno}: {error.msg}"
        raise OperatorError(message, where=where) from error
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name == source.function:
            if not any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
                raise OperatorError(f"the Triton function {source.function} lacks @triton.jit", where=where)
            return node
    hint = f"Define `@triton.jit` and `def {source.function}(program, in0, out0, ...)`."
    raise OperatorError(f"the Triton source has no function {source.function}", where=where, hint=hint)


def _parameters(function: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]


def _check_results(function: ast.FunctionDef, root: OwnedRoot) -> None:
    """Raises UnsupportedError where the function wants the memory of a result that nobody reads."""
    compared = [node for node in ast.walk(function) if isinstance(node, ast.Compare)]
    tested = {
        node.left.id
        for node in compared
        if isinstance(node.left, ast.Name) and isinstance(node.ops[0], ast.Is | ast.IsNot)
    }
    for number, place in enumerate(root.results):
        if place is None and f"out{number}" in _parameters(function) and f"out{number}" not in tested:
            raise UnsupportedError(f"a GPU has no kernel for {root.op} of which nobody reads result {number}")


class _Arguments:
    """What a parameter of each name gets: None for an operand that is not given, and a result that nobody reads."""

    def __init__(self, kernel: Kernel, root: OwnedRoot, count: int, dims: DimTable, program: str) -> None:
        self.attrs, self.dims, self.program = root.attrs, dims, program
        inputs = [*root.operands, *[None] * (count - len(root.operands))]
        outputs = [None if n is None else len(kernel.inputs) + n for n in root.results]
        self.numbers = {
            f"{side}{n}": number for side, given in (("in", inputs), ("out", outputs)) for n, number in enumerate(given)
        }
        self.types = [operand.type for operand in (*kernel.inputs, *kernel.outputs)]

    @property
    def names(self) -> list[str]:
        """What may be asked for; of operands also shape, strides and elements."""
        return ["program", *self.numbers, *(name for name in self.attrs if not self._is_operand(name))]

    def _is_operand(self, name: str) -> bool:
        return name == "program" or _OPERAND.fullmatch(name) is not None

    def find(self, name: str) -> str | None:
        """The text of an argument, None where nothing is known of the name."""
        if name == "program":
            return self.program
        found = _OPERAND.fullmatch(name)
        if found is None:
            return _attribute(self.attrs[name], self.dims) if name in self.attrs else None
        operand = f"{found[1]}{found[2]}"
        if operand not in self.numbers:
            return None
        number = self.numbers[operand]
        if number is None:
            return "None"
        type_, text = self.types[number], self.dims.text
        if found[3] is None:
            return f"p{number}" + ("" if type_.origin_elements == 0 else f" + {text(type_.origin_elements)}")
        if found[3] == "elements":
            return text(type_.elements)
        values = type_.shape if found[3] == "shape" else type_.strides
        return f"({''.join(f'{text(value)}, ' for value in values)})"


def _attribute(value: Attr, dims: DimTable) -> str:
    """A constant of the kernel's text."""
    if isinstance(value, tuple):
        return f"({''.join(f'{_attribute(item, dims)}, ' for item in value)})"
    if isinstance(value, DType):
        return repr(value.name)
    if isinstance(value, dimension.DimExpr):
        return dims.text(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f'float("{value}")'
    return repr(value)
