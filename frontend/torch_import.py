"""Walks a torch.export program and builds the Graph: inputs, state, sizes, one error for all that is unsupported.

Sizes need no nodes: torch has an expression over the symbols of inputs for every one, which becomes a Dim. The
inputs of the graph are the program's, by torch's flattened names, and the buffers and inputs that it changes
come back as outputs of the same names, paired as state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from aot import dims as dimension
from aot import dtypes
from aot.control import add_claim
from aot.dims import Dim, DimExpr
from aot.errors import AotError, CompilerError, ModelError, UnsupportedError
from aot.frontend import (
    aten_backward,
    aten_complex,
    aten_contract,
    aten_create,
    aten_fourier,
    aten_index,
    aten_linalg,
    aten_norm,
    aten_pointwise,
    aten_pool,
    aten_quantized,
    aten_reduce,
    aten_unary,
    aten_views,
    torch_control,
)
from aot.frontend.bindings import Bindings, DimOption, are_equal
from aot.frontend.edges import Edges
from aot.frontend.imported import ImportInfo, Unsupported, report_of
from aot.frontend.known import KnownBuilder
from aot.frontend.torch_asserts import ASSERTIONS, add_assertion
from aot.frontend.torch_complex import HINT, Complex, constant_parts, convert_complex, is_complex, part_dtype
from aot.frontend.torch_extents import alike, in_shape
from aot.frontend.torch_guards import relations_of
from aot.frontend.torch_hints import CHECK, label_of, location, place, refused
from aot.frontend.torch_numbers import computed, condition_of_sizes, whole
from aot.frontend.torch_program import read_program, tensor_bytes
from aot.frontend.torch_registry import DROPPED, HIGHER_ORDER, Context, converter_of, dtype_of
from aot.frontend.torch_sizes import SizeReader
from aot.ir import Const, Graph, Node, Relation, Value, const_of, live, rewire, sorted_nodes
from aot.ops import OPS
from aot.ops.opdef import DimMismatch

LARGEST_MADE_BYTES = 1 << 24  # of a tensor that torch makes for the importer
LARGEST_ROUNDS = 64  # conditions on sizes that one import may add
_EXAMPLES = 5
# Importing these modules fills CONVERTERS and HIGHER_ORDER.
CONVERTER_MODULES = (
    aten_pointwise, aten_unary, aten_reduce, aten_norm, aten_create, aten_views, aten_index, aten_contract, aten_pool,
    aten_complex, aten_fourier, aten_backward, aten_linalg, aten_quantized, torch_control,
)  # fmt: skip
ONE_TO_ONE: Mapping[str, str] = {aten_name: op.name for op in OPS.values() for aten_name in op.aten}


class Poison:
    """Stands for the results of an unsupported node, so that the rest can still be looked at."""


class UnknownSize(Poison):
    """Stands for a size, or a condition on sizes, that this version cannot follow; a fault where it is read."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


POISON = Poison()


class TorchImporter:
    """One pass over a program under given bindings."""

    def __init__(self, program: Any, bindings: Bindings) -> None:
        self.program = program
        self.bindings = bindings
        self.builder = KnownBuilder("program", size_of=self.unbacked)
        self.sizes = SizeReader(bindings, program.range_constraints)
        self.entries: dict[Any, Any] = {}
        self.rejected: dict[tuple[str, str], list[str]] = {}
        self.names: dict[Value, str] = {}
        self.state_names: dict[str, str] = {}  # of changed buffers, where an argument has the buffer's own name
        self.initial: list[tuple[int, Const]] = []
        self.relations: tuple[Relation, ...] = ()
        self.notes: list[str] = []
        self.hints: list[str] = []  # of what is rejected
        self.node: Any = None  # that is converted

    def unbacked(self, wish: str, lo: int, hi: int | None = None) -> Dim:
        """A size that data gives when the program runs."""
        return self.bindings.unbacked(wish, lo, hi)

    def run(self) -> Graph | None:
        """The graph; None when something is unsupported (see `rejected`)."""
        signature = self.program.graph_signature
        specs = {spec.arg.name: spec for spec in signature.input_specs}
        mutated = {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
        inputs: dict[str, Value] = {}  # by placeholder: what may change
        own = {spec.arg.name for spec in signature.input_specs if spec.kind.name == "USER_INPUT"}
        shared = own & mutated
        self.state_names = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target in shared}
        held = {node: node.meta.get("val") for node in self.program.graph.nodes if node.op == "placeholder"}
        self.sizes.bind([(node.name, value.shape) for node, value in held.items() if hasattr(value, "shape")])
        for node in self.program.graph.nodes:
            if node.op == "placeholder":
                self._placeholder(node, specs[node.name], mutated, inputs)
        given: dict[str, Sequence[Dim] | Dim] = {value.name: value.type.shape for value in self.builder.inputs}
        given.update({node.name: found for node, found in self.entries.items() if isinstance(found, int | DimExpr)})
        relations, notes = relations_of(self.program, self.sizes, given, self.builder)
        self.notes.extend(notes)
        self.relations = tuple(relation for relation in relations if not self._claimed(relation))
        self.builder.relations = self.relations
        self.walk(self.program.graph, self.program.graph_module)
        outputs, state = self._outputs(signature, inputs)
        if self.rejected:
            return None
        graph = live(_read_in_place(self.builder.finish(outputs, state), self.builder.equal))
        return _named(graph, self.names).with_(initial=tuple(self.initial), relations=self.relations)

    def _claimed(self, relation: Relation) -> bool:
        """Claims a relation of numbers that are inputs, which are read after sizes are bound; False for others."""
        symbols = {*dimension.symbols_of(relation.left), *dimension.symbols_of(relation.right)}
        if all(symbol.origin == "input" for symbol in symbols):
            return False
        if relation.sign == "!=":
            self.notes.append(f"PyTorch's guard {relation} is not checked")
        else:
            right = relation.right + (1 if relation.sign == ">" else 0)
            with self.builder.at("what PyTorch found of sizes when it exported"):
                add_claim(self.builder, relation.left, right, exact=relation.sign == "==")
        return True

    # Inputs, weights, state

    def _placeholder(self, node: Any, spec: Any, mutated: set[str], inputs: dict[str, Value]) -> None:
        kind, target = spec.kind.name, spec.target
        where = f"input {node.name!r}"
        if kind in ("PARAMETER", "BUFFER", "CONSTANT_TENSOR"):
            tensor = self._held(target)
            if is_complex(tensor):
                self.entries[node] = self._complex_const(target, tensor, target in mutated)
            elif target in mutated:
                name = self.state_names.get(target, target)
                self.entries[node] = inputs[node.name] = self._input(name, tensor)
                self.initial.append((len(self.builder.inputs) - 1, _initial(target, tensor)))
                self.notes.append(
                    f"the {kind.lower()} {target!r} changes: it is an input and an output of the name {name!r}, "
                    "and the caller keeps it"
                )
            else:
                self.entries[node] = self.builder.const(self._const(target, tensor), target)
        elif kind == "TOKEN":  # orders calls with effects, of which none is compiled
            self.entries[node] = None
        elif kind == "USER_INPUT":
            value = node.meta.get("val")
            if value is None or isinstance(value, bool | int | float | str):
                self.entries[node] = getattr(spec.arg, "value", value)
                if self.entries[node] is not None:
                    self.notes.append(f"the argument {node.name!r} is no input: fixed at {self.entries[node]!r}")
            elif type(value).__name__ == "SymInt":
                with self.builder.at(node.name):
                    given = self.builder.input(node.name, dtypes.I64, ())
                    self.entries[node] = self.sizes.read_input(self.builder, given, value)
            elif is_complex(value):
                self._reject("", "inputs of complex numbers", where, HINT)
                self.entries[node] = POISON
            elif hasattr(value, "dtype"):
                self.entries[node] = inputs[node.name] = self._input(node.name, value)
            else:
                self._reject("", f"inputs of type {type(value).__name__}", where)
                self.entries[node] = POISON
        else:
            self._reject("", f"inputs of kind {kind.lower()}", where)
            self.entries[node] = POISON

    def _held(self, target: str) -> Any:
        for table in (self.program.state_dict, self.program.constants):
            if target in table:
                return table[target]
        raise ModelError("the program holds no such tensor", where=target)

    def _const(self, target: str, tensor: Any) -> Const:
        dtype = dtype_of(tensor.dtype, target)
        array = np_array(tensor, dtype)
        return const_of(array, target)

    def _complex_const(self, target: str, tensor: Any, changes: bool) -> Complex | Poison:
        """A complex weight, buffer or constant: its parts are constants of their own."""
        if changes:
            self._reject("", "buffers of complex numbers that the program changes", repr(target), HINT)
            return POISON
        real, imaginary = (
            self.builder.const(self._const(f"{target}_{name}", part), f"{target}_{name}")
            for name, part in zip(("real", "imaginary"), constant_parts(tensor), strict=True)
        )
        return Complex(real, imaginary)

    def _input(self, name: str, tensor: Any) -> Value:
        shape = [self.sizes.input_dim(name, axis, extent) for axis, extent in enumerate(tensor.shape)]
        return self.builder.input(name, dtype_of(tensor.dtype, name), shape)

    def _outputs(self, signature: Any, inputs: Mapping[str, Value]) -> tuple[list[Value], list[tuple[Value, Value]]]:
        (node,) = (node for node in self.program.graph.nodes if node.op == "output")
        given = node.args[0]
        user = iter(output_names(self.program, len(signature.user_outputs)))
        outputs: list[Value] = []
        names: list[str] = []
        placeholders = {spec.target: spec.arg.name for spec in signature.input_specs if spec.target}
        state: list[tuple[Value, Value]] = []
        for spec, argument in zip(signature.output_specs, given, strict=True):
            kind = spec.kind.name
            name = next(user) if kind == "USER_OUTPUT" else self.state_names.get(spec.target, spec.target)
            name = _unlike(name, names)
            entry = self.entry(argument)
            if isinstance(entry, UnknownSize):
                self._reject("", entry.reason, f"output {name!r}")
            if isinstance(entry, Poison) or entry is None:
                continue
            value = self._output(self._as_value(self._settled(entry), name), name, outputs)
            if value is None:
                continue
            outputs.append(value)
            names.append(name)
            if kind in ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION"):
                changed = spec.target if kind == "USER_INPUT_MUTATION" else placeholders[spec.target]
                state.append((inputs[changed], value))
        if not outputs and not self.rejected:
            raise ModelError("the program has no outputs that are tensors or numbers")
        return outputs, state

    def _as_value(self, entry: Any, name: str) -> Value | None:
        """An output as a tensor: a size or a number becomes one of rank 0."""
        if isinstance(entry, Value):
            return entry
        if isinstance(entry, Complex | complex):
            self._reject("", "outputs of complex numbers", f"output {name!r}", HINT)
            return None
        if isinstance(entry, bool | int | float | DimExpr):
            kind = dtypes.BOOL if isinstance(entry, bool) else dtypes.F32 if isinstance(entry, float) else dtypes.I64
            return Context("", name, self.builder, {}, None).number_value(entry, kind)
        self.notes.append(f"the output {name!r} is a {type(entry).__name__} and left out")
        return None

    def _output(self, value: Value | None, name: str, before: Sequence[Value]) -> Value | None:
        """The value behind an output: made by a node, and by no other output's name."""
        if value is None:
            return None
        self.builder.materialize(value)
        if value in before or value in self.builder.inputs or value in self.builder.consts:
            with self.builder.at(name):
                value = self.builder.computed_copy(value)
        self.names[value] = name
        return value

    def _reject(self, op: str, reason: str, where: str, hint: str = "") -> None:
        if hint and hint not in self.hints:
            self.hints.append(hint)
        self.rejected.setdefault((op, reason), []).append(where)

    # Nodes

    def entry(self, argument: Any) -> Any:
        """An argument of a node, as converters see it."""
        import torch

        if isinstance(argument, torch.fx.Node):
            return self.entries[argument]
        if isinstance(argument, list | tuple):
            return [self.entry(item) for item in argument]
        if isinstance(argument, torch.SymInt):
            return self.sizes.dim(argument)
        return argument

    def walk(self, graph: Any, module: Any) -> Any:
        """Converts the nodes of a graph; returns its output's entries."""
        for node in graph.nodes:
            if node.op == "placeholder":
                continue
            self.node = node
            if node.op == "get_attr":
                self.entries[node] = getattr_path(module, node.target)
            elif node.op == "output":
                return self.entry(node.args[0])
            elif node.op == "call_function":
                self._call(node, module)
            else:
                self._reject("", f"nodes of kind {node.op}", node.name)
        return None

    def _call(self, node: Any, module: Any) -> None:
        where = location(node)
        value = node.meta.get("val")
        if is_size(value):
            # Sizes have expressions; only those that data gives need a node.
            self.entries[node] = self._size(node, value)
            return
        name = op_name(node.target)
        if name in ASSERTIONS:
            is_functional = name.startswith("_functional")
            self.entries[node] = self.entry(node.args[0]) if is_functional else None
            self.add_assertion(node, node.args)
            return
        arguments = self._arguments(node)
        poisoned = [item for item in flat(list(arguments.values())) if isinstance(item, Poison)]
        if poisoned:
            if isinstance(poisoned[0], UnknownSize) and name not in DROPPED:
                self._reject(name, poisoned[0].reason, where)
            self.entries[node] = POISON
            return
        if name == "getitem":
            self.entries[node] = arguments["0"][arguments["1"]]
            return
        if name in DROPPED:
            self.entries[node] = None
            return
        try:
            with self.builder.at(node.name):
                made = self._agreeing(node, name, arguments, value, where)
            self.entries[node] = self._checked(node, made, value, where)
        except torch_control.Refused:
            self.entries[node] = POISON
        except UnsupportedError as error:
            self._reject(name, error.message, where, error.hint)
            self.entries[node] = POISON
        except DimMismatch:
            raise
        except ModelError as error:
            raise ModelError(error.message, where=error.where or where, hint=error.hint) from error
        except AotError:
            raise
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            text = f"the node cannot be converted: {type(error).__name__}: {error}"
            raise CompilerError(text, where=where) from error

    def add_assertion(self, node: Any, arguments: Sequence[Any]) -> None:
        """Checks the condition that is the first argument in every run; the second is the user's message."""
        message = str(arguments[1]).splitlines()[0] if len(arguments) > 1 and arguments[1] else ""
        if message.startswith("Runtime assertion failed"):  # torch's own words for a condition without any
            message = ""
        note = add_assertion(self.builder, self.sizes, self.entry(arguments[0]), message, place(node))
        if note:
            self.notes.append(note)

    def agree(self, left: Dim, right: Dim) -> None:
        """Takes two sizes that torch says are equal to be so, by a rule that is checked in every run.

        Raises DimMismatch where a condition on symbols says the same (the import is repeated under it), and where the
        two differ for the sizes that the program was exported with.
        """
        if left == right:
            return
        relation, example = Relation(left, "==", right), self.sizes.example
        symbols = {symbol.name for size in (left, right) for symbol in dimension.symbols_of(size)}
        differ = symbols <= example.keys() and not are_equal(left, right, example)
        if differ or relation.known() is False or self.bindings.has_weakest(left, right):
            raise DimMismatch(f"{left} and {right} differ", left, right)
        if relation not in self.relations and not self._claimed(relation):
            self.relations = (*self.relations, relation)
            self.notes.append(f"the sizes of the inputs must meet {relation} (needed by {place(self.node)})")

    def _agreeing(self, node: Any, name: str, arguments: Mapping[str, Any], value: Any, where: str) -> Any:
        """Converts a node; where sizes of its operands do not fit together here, though torch says they do, with the
        operands in torch's form, or in that of each other. Raises DimMismatch where that helps nothing.
        """
        for attempt in (self._forms_of_torch, self._forms_of_result, None):
            try:
                return self._convert(node, name, arguments, value, where)
            except DimMismatch as error:
                if attempt is None or self.bindings.has_weakest(error.left, error.right):
                    raise
                operands = [n for n in node.all_input_nodes if isinstance(self.entries[n], Value)]
                for operand, shape in zip(operands, attempt(operands, value, error), strict=True):
                    held = self.entries[operand]
                    for left, right in zip(held.type.shape, shape, strict=True):
                        self.agree(left, right)
                    self.entries[operand] = in_shape(self.builder, held, shape)
                arguments = self._arguments(node)
        raise AssertionError("the last attempt returns or raises")

    def _forms_of_torch(self, operands: Sequence[Any], _: Any, __: DimMismatch) -> list[Sequence[Dim]]:
        """The shapes of operands as torch gives them; as they are where it gives none."""
        shapes: list[Sequence[Dim]] = []
        for operand in operands:
            own = self.entries[operand].type.shape
            given = self._shape_of(operand.meta.get("val"))
            shapes.append(given if given is not None and len(given) == len(own) else own)
        return shapes

    def _forms_of_result(self, operands: Sequence[Any], value: Any, error: DimMismatch) -> list[Sequence[Dim]]:
        """The shapes of operands with the two sizes of a mismatch as one."""
        shapes = [self.entries[operand].type.shape for operand in operands]
        return list(alike(error, shapes, self._shape_of(value) or ()))

    def _shape_of(self, fake: Any) -> tuple[Dim, ...] | None:
        """The shape that torch gives a tensor; None for what is none, or has a size that is not followed."""
        try:
            return tuple(map(self.sizes.dim, fake.shape)) if hasattr(fake, "shape") else None
        except UnsupportedError:
            return None

    def _convert(self, node: Any, name: str, arguments: Mapping[str, Any], value: Any, where: str) -> Any:
        higher = HIGHER_ORDER.get(name)
        if higher is not None:
            return higher(self, node, arguments)
        arguments = {key: self._settled(argument) for key, argument in arguments.items()}
        converter = converter_of(name)
        used = frozenset(user.args[1] for user in node.users if op_name(user.target) == "getitem")
        context = Context(name, where, self.builder, arguments, value, self.notes, used, self.agree)
        results = value if isinstance(value, list | tuple) else [value]
        if any(map(is_complex, (*flat(list(arguments.values())), *results))):
            return convert_complex(context)
        if converter is not None:
            return converter(context)
        if name in ONE_TO_ONE:
            operands = [item for item in arguments.values() if isinstance(item, Value)]
            return self.builder.op(ONE_TO_ONE[name], *operands)[0]
        if not node.all_input_nodes and is_made_of_numbers(node):
            return self.builder.const(self._const(node.name, node.target(*node.args, **node.kwargs)), node.name)
        raise refused(name, node)

    def _settled(self, argument: Any) -> Any:
        """An argument of a tensor op: a condition on sizes is a tensor there."""
        if isinstance(argument, list | tuple):
            return [self._settled(item) for item in argument]
        if type(argument).__name__ == "SymBool":
            return condition_of_sizes(self.builder, self.sizes, argument.node.expr)
        if type(argument).__name__ == "SymFloat":
            raise UnsupportedError(f"the number {argument}")
        return argument

    def _size(self, node: Any, value: Any) -> Any:
        """A size or a condition on sizes: torch's expression for it. What data gives is read."""
        name = op_name(node.target)
        if name in ("_local_scalar_dense.default", "item.default"):
            source = self.entry(node.args[0])
            if isinstance(source, Value):
                with self.builder.at(place(node)):
                    return self.sizes.read(self.builder, source, value)
        kind = type(value).__name__
        operands = [self.entry(argument) for argument in node.args] if kind in ("SymInt", "SymFloat", "SymBool") else []
        of_values = any(isinstance(operand, Value) for operand in operands)
        if (kind == "SymFloat" and not value.node.expr.is_number) or (kind == "SymBool" and of_values):
            made = computed(self.builder, name, operands, kind == "SymBool")
            return UnknownSize(f"the number {value}") if made is None else made
        try:
            return self.sizes.element(value)
        except UnsupportedError as error:
            made = whole(self.builder, name, operands) if kind == "SymInt" else None
            if made is None:
                return UnknownSize(error.message)
            with self.builder.at(place(node)):
                return self.sizes.read_whole(self.builder, made, value, node.name)

    def _arguments(self, node: Any) -> dict[str, Any]:
        """The arguments by schema name, defaults filled in; by position where there is no schema."""
        schema = getattr(node.target, "_schema", None)
        given = [self.entry(argument) for argument in node.args]
        named = {name: self.entry(argument) for name, argument in node.kwargs.items()}
        if schema is None:
            return {str(position): argument for position, argument in enumerate(given)} | named
        found: dict[str, Any] = {}
        for position, argument in enumerate(schema.arguments):
            if position < len(given):
                found[argument.name] = given[position]
            elif argument.name in named:
                found[argument.name] = named[argument.name]
            else:
                found[argument.name] = argument.default_value if argument.has_default_value() else None
        return found

    def _checked(self, node: Any, made: Any, expected: Any, where: str) -> Any:
        """The results, which must have the element types and ranks that torch says."""
        several = isinstance(expected, list | tuple)
        results = list(made) if several and isinstance(made, list | tuple) else [made]
        for made_value, fake in zip(results, expected if several else [expected], strict=False):
            if isinstance(made_value, Complex) and not is_complex(fake):
                raise CompilerError(f"made a complex tensor, torch says {getattr(fake, 'dtype', fake)}", where=where)
            parts = (made_value.real, made_value.imaginary) if isinstance(made_value, Complex) else (made_value,)
            for value in parts:
                if isinstance(value, Value) and hasattr(fake, "dtype"):
                    self._agree(node, value, fake, where)
        return results if several else results[0]

    def _agree(self, node: Any, value: Value, fake: Any, where: str) -> None:
        """Raises CompilerError unless a value has the type that torch says."""
        dtype, rank = dtype_of(part_dtype(fake.dtype), where), len(fake.shape)
        extents = zip(value.type.shape, fake.shape, strict=False)
        differ = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in extents)
        if value.type.dtype is not dtype or value.type.rank != rank or differ:
            shape = ", ".join(map(str, fake.shape))
            raise CompilerError(f"made {value.type}, torch says {dtype}[{shape}]", where=where)
        self.sizes.learn(fake.shape, value.type.shape)
        self.names.setdefault(value, node.name)


def np_array(tensor: Any, dtype: dtypes.DType) -> Any:
    """A torch tensor as a numpy array of the dtype, row-major."""
    return np.frombuffer(tensor_bytes(tensor), dtype=dtype.numpy).reshape(tuple(tensor.shape))


def _initial(target: str, tensor: Any) -> Const:
    """What a buffer holds before the first run; one element where all are that, as of an empty cache."""
    dtype = dtype_of(tensor.dtype, target)
    array = np_array(tensor, dtype)
    rows = (
        array.reshape(-1).view("u1").reshape(-1, array.itemsize) if array.size else np.zeros((1, array.itemsize), "u1")
    )
    if (rows == rows[0]).all():
        return const_of(rows[0].view(array.dtype).reshape(()))
    return const_of(array, target)


def op_name(target: Any) -> str:
    """ "add.Tensor" of torch.ops.aten.add.Tensor; other namespaces keep theirs: "prims::iota.default"."""
    text = str(target)
    namespace, _, rest = text.partition(".")
    if hasattr(target, "_schema"):
        return rest if namespace == "aten" else f"{namespace}::{rest}"
    return str(getattr(target, "__name__", text))


def flat(items: Sequence[Any]) -> list[Any]:
    """The leaves of nested lists."""
    found: list[Any] = []
    for item in items:
        found.extend(flat(item) if isinstance(item, list | tuple) else [item])
    return found


def is_made_of_numbers(node: Any) -> bool:
    """Whether a node of torch makes a small tensor of numbers alone, the same in every run: a window of a filter."""
    import torch

    value, target = node.meta.get("val"), node.target
    is_plain = isinstance(target, torch._ops.OpOverload) and target.namespace == "aten"
    if not is_plain or torch.Tag.nondeterministic_seeded in target.tags or not isinstance(value, torch.Tensor):
        return False
    sizes = value.shape
    return all(isinstance(size, int) for size in sizes) and value.numel() * value.element_size() <= LARGEST_MADE_BYTES


def is_size(value: Any) -> bool:
    """Whether torch's result of a node is a size, a number or a condition, and no tensor."""
    return isinstance(value, bool | int | float) or type(value).__name__ in ("SymInt", "SymFloat", "SymBool")


def getattr_path(module: Any, target: str) -> Any:
    """module.a.b of "a.b"."""
    found = module
    for part in target.split("."):
        found = getattr(found, part)
    return found


def output_names(program: Any, count: int) -> list[str]:
    """Names of the user's outputs: paths in what forward returns, such as "logits", "cache.0", "output_1.0"."""
    from torch.utils import _pytree as pytree

    spec = program.call_spec.out_spec
    try:
        tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        paths = pytree.tree_flatten_with_path(tree)[0]
        names = [".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
                 for path, _ in paths]  # fmt: skip
    except Exception:  # a type that pytree cannot make again
        names = []
    if len(names) != count:
        names = [""] * count
    return [f"output_{name or number}" if not name or name[0].isdigit() else name for number, name in enumerate(names)]


def _unlike(name: str, taken: Sequence[str]) -> str:
    """The name, with a number behind it where it is taken."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    return found


def _read_in_place(graph: Graph, equal: Mapping[Value, Value]) -> Graph:
    """The graph in which readers of a value read its equal, where that can be made before them."""
    for value, same in equal.items():
        nodes = sorted_nodes(rewire(graph.nodes, {value: same}))
        if nodes is not None:
            outputs = tuple(same if output is value else output for output in graph.outputs)
            graph = graph.with_(nodes=nodes, outputs=outputs)
    return graph


def _named(graph: Graph, names: Mapping[Value, str]) -> Graph:
    """The graph with node results named as in the program."""
    mapping: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        for value in node.outputs:
            mapping[value] = Value(value.type, names[value]) if value in names else value
        inputs = tuple(mapping.get(value, value) if value is not None else None for value in node.inputs)
        nodes.append(replace(node, inputs=inputs, outputs=tuple(mapping[value] for value in node.outputs)))
    outputs = tuple(mapping.get(value, value) for value in graph.outputs)
    state = tuple((kept, mapping.get(new, new)) for kept, new in graph.state)
    return graph.with_(nodes=tuple(nodes), outputs=outputs, state=state)


def _attempt(program: Any, bindings: Bindings) -> tuple[TorchImporter, Graph | None]:
    """Imports, adding conditions on symbols until every extent fits."""
    for _ in range(LARGEST_ROUNDS):
        bindings.restart()
        importer = TorchImporter(program, bindings)
        try:
            return importer, importer.run()
        except DimMismatch as error:
            if not bindings.resolve(error.left, error.right, importer.node.name, importer.sizes.example):
                raise ModelError(
                    bindings.user_text(error.message) + bindings.places(error.left, error.right),
                    where=location(importer.node),
                    hint="Give the sizes values by --dim, or export the model for sizes that are equal there.",
                ) from error
    raise ModelError(f"more than {LARGEST_ROUNDS} conditions on input sizes are needed")


def import_torch(
    source: Any,
    dims: Mapping[str, DimOption] | None = None,
    edges: Edges | None = None,
    *,
    trust_pickle: bool = False,
) -> tuple[tuple[tuple[str, Graph], ...], ImportInfo]:
    """The graph of a torch.export program, and what is known of its source; as `import_onnx` gives them."""
    if edges is not None and (edges.overridable or edges.values):
        raise UnsupportedError("--set and --override are for ONNX models", hint="Export the program as it is to be.")
    program, digest, notes = read_program(source, trust_pickle=trust_pickle)
    bindings = Bindings(dims)
    importer, graph = _attempt(program, bindings)
    if graph is None:
        hints = (*dict.fromkeys(importer.hints), CHECK)
        raise UnsupportedError(report_of(_rejections(importer)), hint=" ".join(hints))
    bindings.check_used()
    histogram: dict[str, int] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and not is_size(node.meta.get("val")):
            name = op_name(node.target)
            histogram[name] = histogram.get(name, 0) + 1
    import torch

    info = ImportInfo(
        digest=digest,
        opset=0,
        producer=f"torch {torch.__version__}",
        symbols={symbol.name: bindings.display.get(symbol.name, symbol.name) for symbol in graph.symbols},
        node_count=sum(histogram.values()),
        ops=dict(sorted(histogram.items())),
        warnings=tuple(dict.fromkeys((*bindings.conditions(), *notes, *importer.notes))),
    )
    return (("", graph),), info


def check_torch(
    source: Any, dims: Mapping[str, DimOption] | None = None, *, trust_pickle: bool = False
) -> list[Unsupported]:
    """Everything in a program that cannot be compiled; empty when it can."""
    program, _, _ = read_program(source, trust_pickle=trust_pickle)
    importer, _ = _attempt(program, Bindings(dims))
    return _rejections(importer)


def _rejections(importer: TorchImporter) -> list[Unsupported]:
    found = [
        Unsupported(*(label_of(op) if op else ("", "the program")), 0, reason, len(nodes), tuple(nodes[:_EXAMPLES]))
        for (op, reason), nodes in importer.rejected.items()
    ]
    return sorted(found, key=lambda entry: (-entry.count, entry.op_type, entry.reason))
