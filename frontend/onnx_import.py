"""Walks an ONNX model and builds the Graph: scopes, functions, shapes, one error for all that is unsupported.

The result is a CORE graph in which every shape is an int or an expression over the inputs' symbols.
A fault of one node is a ModelError that names it; `onnx_graphs` says so of what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TensorProto, ValueInfoProto

from aot import dims as dimension
from aot.dims import Dim, symbols_of
from aot.errors import AotError, ModelError, UnsupportedError
from aot.frontend import (
    onnx_contrib,
    onnx_custom,
    onnx_elementwise,
    onnx_gather,
    onnx_linear,
    onnx_ml,
    onnx_model,
    onnx_ngrams,
    onnx_norm,
    onnx_places,
    onnx_quantized,
    onnx_quantized_lstm,
    onnx_random,
    onnx_recurrent,
    onnx_reduce,
    onnx_refused,
    onnx_regions,
    onnx_sequences,
    onnx_shapes,
    onnx_signal,
    onnx_sizes,
    onnx_svm,
    onnx_trees,
    onnx_weights,
    onnx_window,
)
from aot.frontend.bindings import Bindings
from aot.frontend.known import KnownBuilder
from aot.frontend.onnx_branches import Branches, Choices
from aot.frontend.onnx_contrib import CONTRIB, contributed
from aot.frontend.onnx_control import Region, import_if, import_loop, import_scan
from aot.frontend.onnx_legacy import FIRST_MODERN, modernized
from aot.frontend.onnx_model import OnnxModel, plain_domain
from aot.frontend.onnx_registry import CONVERTERS, Absent, Context, Operand, Stack, TensorList, UseFunctionBody
from aot.frontend.onnx_schema import check_node, function_body, schema_of
from aot.frontend.onnx_sequences import mapped, without_appending
from aot.ir import Graph, Node, TensorType, Value, live
from aot.ops import OPS
from aot.ops.opdef import DimMismatch

LARGEST_BYTES = 1 << 47  # of one tensor: what a process can address
DEEPEST_CALL = 32  # functions inside functions
MOST_NODES = 1 << 20  # with functions and bodies expanded, which may double them at every level
# Deprecated for what the text of the operator set said of them, and run by everyone.
_STILL_RUN = frozenset({"GroupNormalization"})
# What reading nonsense can raise. It is reported as a fault of the node.
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, TypeError, ValueError)

# Importing these modules fills CONVERTERS.
CONVERTER_MODULES = (
    onnx_contrib, onnx_elementwise, onnx_gather, onnx_linear, onnx_ml, onnx_ngrams, onnx_norm, onnx_places,
    onnx_quantized, onnx_quantized_lstm, onnx_random, onnx_recurrent, onnx_reduce, onnx_regions, onnx_sequences,
    onnx_shapes, onnx_signal, onnx_sizes, onnx_svm, onnx_trees, onnx_weights, onnx_window,
)  # fmt: skip
ONE_TO_ONE: Mapping[str, str] = {onnx_name: op.name for op in OPS.values() for onnx_name in op.onnx}


class Poison:
    """Stands for the results of an unsupported node, so that the rest can still be looked at."""


POISON = Poison()
Entry = Value | TensorList | Stack | Absent | Poison | None


@dataclass
class Scope:
    """Tensors by name, of a graph or function body. Initializers become constants when first read."""

    entries: dict[str, Entry] = field(default_factory=dict)
    initializers: Mapping[str, TensorProto] = field(default_factory=dict)
    parent: Scope | None = None
    region: Region | None = None  # whose body this is

    def names(self) -> set[str]:
        inherited = self.parent.names() if self.parent is not None else set()
        return inherited | set(self.entries) | set(self.initializers)


@dataclass(frozen=True)
class Frame:
    """The surroundings of a node list: versions, a function's attribute values, and its prefix for names."""

    opsets: Mapping[str, int]
    attributes: Mapping[str, AttributeProto] = field(default_factory=dict)
    prefix: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()
    loc: str = ""


class Importer:
    """One pass over a model under given bindings."""

    def __init__(self, model: OnnxModel, bindings: Bindings, choices: Choices) -> None:
        self.model = model
        self.branches = Branches(choices)
        self.bindings = bindings
        self.builder = KnownBuilder(model.graph.name or "graph", size_of=self.unbacked)
        self.regions: list[Region] = []  # being imported, outermost first
        self.reads_data = False  # sizes depend on data
        self.rejected: dict[tuple[str, str, int, str], list[str]] = {}
        self.names: dict[Value, str] = {}
        self.squeezes_open_axes = False
        self.notes: list[tuple[str, str]] = []  # (what the user should know, node)
        self.where = ""
        self.node_count = 0

    def run(self) -> Graph | None:
        """The graph; None when something is unsupported (see `rejected`)."""
        graph = self.model.graph
        initializers = _initializers(graph)
        if graph.sparse_initializer:
            self._reject("", "sparse initializers", 0, "", "the graph's weights")
        scope = Scope(initializers=initializers)
        declared = (*graph.input, *graph.output)
        _check_names((graph.name, *initializers, *(info.name for info in declared)))
        _check_names(dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim)
        for info in graph.input:
            if info.name in initializers:
                continue
            if not info.name or info.name in scope.entries:
                raise ModelError(f"input {info.name!r} is unnamed or declared twice")
            scope.entries[info.name] = self._input(info)
        self._nodes(graph.node, scope, Frame(self.model.opsets))
        outputs: list[Value] = []
        seen: set[str] = set()
        for info in graph.output:
            if not info.name or info.name in seen:
                raise ModelError(f"output {info.name!r} is unnamed or declared twice")
            seen.add(info.name)
            entry = self._read(info.name, scope, f"output {info.name!r}")
            if isinstance(entry, Stack):
                reason = "its length is only known when running; stack it (ConcatFromSequence) in the model"
                self._reject("", "outputs of sequence type", 0, reason, info.name)
            if isinstance(entry, Absent):
                self._reject("", "outputs of optional type", 0, "make the tensor an output", info.name)
            if isinstance(entry, TensorList):
                parts = [f"{info.name}_{number}" for number in range(len(entry.items))]
                taken = {*parts} & {output.name for output in graph.output}
                if taken or not parts:
                    reason = "it is empty" if not parts else f"{min(taken)!r} is an output already"
                    self._reject("", "outputs of sequence type", 0, reason, info.name)
                    continue
                self.notes.append(
                    (f"the sequence {info.name!r} is given as its tensors, {', '.join(parts)}", info.name)
                )
                for part, item in zip(parts, entry.items, strict=True):
                    outputs.append(self._output(item, part, outputs))
            if isinstance(entry, Value):
                self._check_rank(entry, info)
                outputs.append(self._output(entry, info.name, outputs))
        if not graph.output:
            raise ModelError("the graph has no outputs")
        if self.rejected:
            return None
        return _named(live(self.builder.finish(outputs)), self.names)

    # Inputs, outputs, constants

    def _input(self, info: ValueInfoProto) -> Entry:
        where = f"input {info.name!r}"
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            if kind is None:
                raise ModelError("the type is missing", where=where)
            self._reject("", f"inputs of {kind.removesuffix('_type')} type", 0, "", info.name)
            return POISON
        tensor = info.type.tensor_type
        try:
            dtype = onnx_model.dtype_of(tensor.elem_type, where)
        except UnsupportedError as error:
            self._reject("", error.message, 0, "", info.name)
            return POISON
        if not tensor.HasField("shape"):
            self._reject(
                "", "inputs of unknown rank", 0, "declare a shape with named dimensions in the model", info.name
            )
            return POISON
        shape: list[Dim] = []
        for axis, dim in enumerate(tensor.shape.dim):
            kind = dim.WhichOneof("value")
            declared = dim.dim_value if kind == "dim_value" else dim.dim_param if kind == "dim_param" else None
            shape.append(self.bindings.input_dim(info.name, axis, declared))
        value = self.builder.input(info.name, dtype, shape)
        _check_size(value, where)
        self.branches.input(self.builder, info.name, value)
        return value

    def _check_rank(self, value: Value, info: ValueInfoProto) -> None:
        """Takes open sizes to be 1 where a Squeeze of all of those would give the rank that the model declares.

        ONNX leaves it to the run which axes such a Squeeze drops; the declaration says which were meant.
        """
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            return
        opened = [extent for extent in value.type.shape if not isinstance(extent, int)]
        if self.squeezes_open_axes and opened and len(tensor.shape.dim) == value.type.rank - len(opened):
            self.where = f"output {info.name!r}"
            raise DimMismatch(f"the model declares rank {len(tensor.shape.dim)}: {opened[0]} is 1", opened[0], 1)

    def _output(self, value: Value, name: str, before: Sequence[Value]) -> Value:
        """The value behind an output: made by a node, and by no other output's name."""
        self.builder.materialize(value)
        if value in before or value in self.builder.inputs or value in self.builder.consts:
            with self.builder.at(name):
                value = self.builder.computed_copy(value)
        self.names[value] = name
        return value

    def _read(self, name: str, scope: Scope, where: str) -> Entry:
        level: Scope | None = scope
        crossed: list[Region] = []
        while level is not None:
            if name in level.entries or name in level.initializers:
                builder = crossed[-1].outer if crossed else self.builder
                entry = level.entries[name] if name in level.entries else self._initializer(name, level, builder)
                for region in reversed(crossed):
                    if isinstance(entry, TensorList):
                        entry = TensorList(tuple(map(region.capture, entry.items)))
                    if isinstance(entry, Stack):
                        entry = Stack(region.capture(entry.tensor))
                    entry = region.capture(entry) if isinstance(entry, Value) else entry
                return entry
            if level.region is not None:
                crossed.append(level.region)
            level = level.parent
        raise ModelError(f"tensor {name!r} is made by no node, input or initializer", where=where)

    def _initializer(self, name: str, scope: Scope, builder: KnownBuilder) -> Entry:
        tensor = scope.initializers[name]
        outermost = scope.parent is None
        try:
            const = self.model.weights.get(name) if outermost else None
            if const is None:
                const = onnx_model.tensor_const(tensor, self.model.folder, name)
        except UnsupportedError as error:
            self._reject("", error.message, 0, "", name)
            scope.entries[name] = POISON
            return POISON
        if outermost:
            self.model.weights[name] = const
        value = builder.const(const)
        scope.entries[name] = value
        return value

    def _reject(self, domain: str, op_type: str, version: int, reason: str, where: str) -> None:
        self.rejected.setdefault((domain, op_type, version, reason), []).append(where)

    # Nodes

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope, frame: Frame) -> None:
        names = onnx_model.node_names(nodes, frame.prefix)
        for index in onnx_model.ordered(nodes, names, scope.names()):
            self._node(nodes[index], names[index], scope, frame)

    def _node(self, node: NodeProto, name: str, scope: Scope, frame: Frame) -> None:
        self.where = name
        self.node_count += 1
        if self.node_count > MOST_NODES:
            raise ModelError(
                f"with its functions and bodies expanded the model has over {MOST_NODES} nodes", where=name
            )
        _check_names((name, *node.output))
        inputs: list[Operand | None] = []
        poisoned = False
        for operand in node.input:
            entry = self._read(operand, scope, name) if operand else None
            if isinstance(entry, Poison):
                poisoned = True
            else:
                inputs.append(entry)
        while inputs and inputs[-1] is None:
            inputs.pop()
        results: Sequence[Entry] = [POISON] * len(node.output)
        domain = plain_domain(node.domain)
        if not poisoned or (domain, node.op_type) not in CONVERTERS:
            try:
                results = self._convert(node, domain, name, inputs, scope, frame, poisoned)
            except UnsupportedError as error:
                version = frame.opsets.get(domain, 0)
                self._reject(domain, node.op_type, version, error.message, name)
            except DimMismatch:
                self.where = name
                raise
            except ModelError as error:
                if error.where:
                    raise
                raise ModelError(error.message, where=f"{name} ({node.op_type})", hint=error.hint) from error
            except AotError:
                raise
            except FAULTS as error:
                text = f"the node cannot be read: {type(error).__name__}: {error}"
                raise ModelError(text, where=f"{name} ({node.op_type})") from error
        squeezed = inputs[0] if node.op_type == "Squeeze" and len(inputs) == 1 else None
        if isinstance(squeezed, Value):
            open_axes = any(not isinstance(extent, int) for extent in squeezed.type.shape)
            self.squeezes_open_axes = self.squeezes_open_axes or open_axes
        if not domain and len(results) == 1 and isinstance(results[0], Value):
            sources = [operand for operand in inputs if isinstance(operand, Value)]
            results = [self.branches.result(self.builder, node.op_type, sources, results[0])]
        if len(results) < sum(1 for output in node.output if output):
            raise ModelError(f"the node declares {len(node.output)} results; it has {len(results)}", where=name)
        for output, entry in zip(node.output, results, strict=False):
            if not output:
                continue
            if entry is None:
                reason = f"the result {output!r} of this op is not supported"
                self._reject(domain, node.op_type, frame.opsets.get(domain, 0), reason, name)
                entry = POISON
            scope.entries[output] = entry
            if isinstance(entry, Value):
                _check_size(entry, name)
                self.names.setdefault(entry, frame.prefix + output)

    def _convert(
        self,
        node: NodeProto,
        domain: str,
        name: str,
        inputs: Sequence[Operand | None],
        scope: Scope,
        frame: Frame,
        poisoned: bool,
    ) -> Sequence[Entry]:
        attributes = onnx_model.attributes_of(node, frame.attributes, name)
        built_in = (domain, node.op_type) in CONVERTERS or (not domain and node.op_type in ONE_TO_ONE)
        custom = None if built_in else onnx_custom.find(domain, node.op_type, frame.opsets)
        if custom is not None:
            if poisoned:
                return [POISON] * len(node.output)
            version = frame.opsets[domain]
            with self.builder.at(frame.loc or name):
                context = Context(node, name, self.builder, version, inputs, attributes, self.model.folder, self.notes)
                return list(onnx_custom.convert(context, custom))
        key = (domain, node.op_type, node.overload)
        if key in self.model.functions:
            return self._call(self.model.functions[key], node, inputs, attributes, name, frame, poisoned)
        if domain not in frame.opsets:
            raise ModelError(f"the model imports no version of operator set {domain or 'ai.onnx'!r}", where=name)
        version = frame.opsets[domain]
        schema = schema_of(node.op_type, domain, version)
        if schema is None and (domain, node.op_type) in CONTRIB:
            if poisoned:
                return [POISON] * len(node.output)
            with self.builder.at(frame.loc or name):
                own = Context(node, name, self.builder, version, inputs, attributes, self.model.folder, self.notes)
                return list(contributed(own))
        if schema is None:
            raise UnsupportedError(onnx_custom.why_not(domain, node.op_type, version))
        if schema.deprecated and node.op_type not in _STILL_RUN:
            raise ModelError(f"{node.op_type} was removed in operator set {schema.since_version}", where=name)
        check_node(node, schema, attributes, name)
        if version < FIRST_MODERN and not domain and not poisoned:
            with self.builder.at(frame.loc or name):
                inputs, attributes = modernized(node.op_type, version, inputs, attributes, self.builder)
        if node.op_type == "SequenceMap" and not domain and not poisoned:
            return self._sequence_map(node, inputs, attributes, name, scope, frame, version)
        converter = CONVERTERS.get((domain, node.op_type))
        tensors = [operand for operand in inputs if operand is None or isinstance(operand, Value)]
        if len(tensors) != len(inputs) and node.op_type == "Identity" and not domain:
            return list(inputs)
        if len(tensors) != len(inputs) and node.op_type == "Loop" and not domain and not poisoned:
            return self._appending_loop(node, inputs, attributes, name, scope, frame, version)
        if len(tensors) != len(inputs) and converter is None:
            raise UnsupportedError("a sequence or an optional, where the op takes tensors")
        if node.op_type == "If" and not domain and not poisoned:
            try:
                return self._if(node, tensors, attributes, name, scope, frame)
            except UnsupportedError:
                self._look_inside(node, frame)
                raise
        if node.op_type in ("Loop", "Scan") and not domain:
            if poisoned:
                self._look_inside(node, frame)
                return [POISON] * len(node.output)
            return self._repeat(node, tensors, attributes, name, scope, frame, version)
        locs = frame.loc or name
        plain = ONE_TO_ONE.get(node.op_type) if not domain else None
        function = schema.has_function or schema.has_context_dependent_function
        if poisoned and (converter or plain or function):
            return [POISON] * len(node.output)
        with self.builder.at(locs):
            if converter is not None:
                context = Context(node, name, self.builder, version, inputs, attributes, self.model.folder, self.notes)
                try:
                    made = converter(context)
                    return [made] if isinstance(made, Value) else list(made)
                except UseFunctionBody as declined:
                    body = function_body(schema, node, version, tensors, frame.attributes)
                    if body is None:
                        raise UnsupportedError(str(declined)) from None
            elif plain is not None:
                return list(self.builder.op(plain, *tensors))
            else:
                body = function_body(schema, node, version, tensors, frame.attributes)
        if body is None:
            self._look_inside(node, frame)
            raise UnsupportedError(onnx_refused.reason(domain, node.op_type))
        for attribute_name, spec in schema.attributes.items():
            if attribute_name not in attributes and spec.default_value.type != AttributeProto.UNDEFINED:
                attributes[attribute_name] = spec.default_value
        return self._call(body, node, inputs, attributes, name, frame, poisoned)

    def _look_inside(self, node: NodeProto, frame: Frame) -> None:
        """Reports unsupported ops in the branches and bodies of a node that is not imported itself."""
        for attribute in node.attribute:
            for graph in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
                for child, name in zip(graph.node, onnx_model.node_names(graph.node, frame.prefix), strict=True):
                    domain = plain_domain(child.domain)
                    version = frame.opsets.get(domain, 0)
                    schema = schema_of(child.op_type, domain, version)
                    known = (domain, child.op_type) in CONVERTERS or (not domain and child.op_type in ONE_TO_ONE)
                    known = known or (domain, child.op_type) in CONTRIB
                    known = known or (domain, child.op_type, child.overload) in self.model.functions
                    known = known or onnx_custom.find(domain, child.op_type, frame.opsets) is not None
                    if not known and not (schema and (schema.has_function or schema.has_context_dependent_function)):
                        self._reject(domain, child.op_type, version, "", name)
                    self._look_inside(child, frame)

    def _call(
        self,
        function: FunctionProto,
        node: NodeProto,
        inputs: Sequence[Operand | None],
        attributes: dict[str, AttributeProto],
        name: str,
        frame: Frame,
        poisoned: bool,
    ) -> Sequence[Entry]:
        """Imports a function's body in place of a call of it."""
        key = (plain_domain(function.domain), function.name, function.overload)
        if key in frame.calls or len(frame.calls) >= DEEPEST_CALL:
            raise ModelError(f"function {function.name!r} calls itself, or calls go too deep", where=name)
        if len(inputs) > len(function.input) or len(node.output) > len(function.output):
            counts = f"{len(function.input)} operands and {len(function.output)} results"
            raise ModelError(f"function {function.name!r} has {counts}", where=name)
        given = {attribute.name: attribute for attribute in function.attribute_proto} | attributes
        scope = Scope()
        for position, formal in enumerate(function.input):
            actual = inputs[position] if position < len(inputs) else None
            scope.entries[formal] = POISON if poisoned else actual
        imported = {plain_domain(entry.domain): entry.version for entry in function.opset_import}
        opsets = {"": onnx_model.NEWEST_OPSET} | dict(frame.opsets) | imported
        inner = Frame(opsets, given, f"{name}/", (*frame.calls, key), frame.loc or name)
        self._nodes(function.node, scope, inner)
        self.where = name
        return [
            self._read(formal, scope, name) if output else None
            for formal, output in zip(function.output, node.output, strict=False)
        ]

    def _sequence_map(
        self,
        node: NodeProto,
        inputs: Sequence[Operand | None],
        attributes: Mapping[str, AttributeProto],
        name: str,
        scope: Scope,
        frame: Frame,
        version: int,
    ) -> Sequence[Entry]:
        """A SequenceMap: its body once for each element, in place."""
        body = attributes["body"].g
        context = Context(node, name, self.builder, version, inputs, attributes, self.model.folder, self.notes)
        made: list[list[Value]] = [[] for _ in body.output]
        for number, operands in enumerate(mapped(context)):
            if len(operands) != len(body.input):
                raise ModelError(f"the body has {len(body.input)} inputs; it is given {len(operands)}", where=name)
            inner = Scope(initializers=_initializers(body), parent=scope)
            inner.entries.update(zip((info.name for info in body.input), operands, strict=True))
            self._nodes(body.node, inner, replace(frame, prefix=f"{name}/{number}/"))
            for part, info in zip(made, body.output, strict=True):
                entry = self._read(info.name, inner, name)
                if not isinstance(entry, Value):
                    return [POISON] * len(node.output)
                part.append(entry)
        self.where = name
        return [TensorList(tuple(part)) for part in made]

    def _appending_loop(
        self,
        node: NodeProto,
        inputs: Sequence[Operand | None],
        attributes: Mapping[str, AttributeProto],
        name: str,
        scope: Scope,
        frame: Frame,
        version: int,
    ) -> Sequence[Entry]:
        """A Loop that collects tensors in sequences, as TorchScript's lists: it stacks them instead."""
        places = [number - 2 for number, operand in enumerate(inputs) if isinstance(operand, TensorList | Stack)]
        for place in places:
            operand = inputs[2 + place]
            if place < 0 or not isinstance(operand, TensorList) or operand.items:
                raise UnsupportedError("a sequence that is not empty before the loop that appends to it")
        body = without_appending(attributes["body"].g, places)
        kept = [operand for operand in inputs if operand is None or isinstance(operand, Value)]
        if len(kept) + len(places) != len(inputs):
            raise UnsupportedError("a Loop that carries an optional")
        newer = NodeProto()
        newer.CopyFrom(node)
        del newer.output[:]
        newer.output.extend(output for number, output in enumerate(node.output) if number not in places)
        newer.output.extend(node.output[place] for place in places)
        changed = {**attributes, "body": onnx.helper.make_attribute("body", body)}
        results = list(self._repeat(newer, kept, changed, name, scope, frame, version))
        stacks = dict(zip(places, results[len(results) - len(places) :], strict=True))
        others = iter(results[: len(results) - len(places)])
        entries: list[Entry] = []
        for number in range(len(node.output)):
            found = stacks[number] if number in stacks else next(others)
            entries.append(Stack(found) if number in stacks and isinstance(found, Value) else found)
        return entries

    def _if(
        self,
        node: NodeProto,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        name: str,
        scope: Scope,
        frame: Frame,
    ) -> Sequence[Entry]:
        """An If: the branch in place where the condition is known, or can be by importing again; else both."""
        condition = inputs[0] if inputs else None
        if condition is None:
            raise ModelError("the condition is missing", where=name)
        contents = self.builder.known(condition)
        if contents is not None and contents.size == 1:
            branch = attributes["then_branch" if bool(contents.flat[0]) else "else_branch"].g
            inner = Scope(initializers=_initializers(branch), parent=scope)
            self._nodes(branch.node, inner, replace(frame, prefix=f"{name}/"))
            return [self._read(info.name, inner, name) for info in branch.output]
        if not self.branches.choices.full:  # else there would be too many programs
            self.branches.decide_by_input(condition)
        try:
            with self.builder.at(frame.loc or name):
                made = import_if(self, condition, attributes, name, list(node.output), scope, frame)
        except UnsupportedError:
            self.branches.decide_by_size(condition)
            raise
        return [POISON] * len(node.output) if made is None else made

    def _repeat(
        self,
        node: NodeProto,
        inputs: Sequence[Value | None],
        attributes: Mapping[str, AttributeProto],
        name: str,
        scope: Scope,
        frame: Frame,
        opset: int,
    ) -> Sequence[Entry]:
        """A Loop or a Scan."""
        names = list(node.output)
        with self.builder.at(frame.loc or name):
            if node.op_type == "Loop":
                made = import_loop(self, inputs, attributes, name, names, scope, frame)
            else:
                made = import_scan(self, inputs, attributes, name, names, scope, frame, opset)
        return [POISON] * len(node.output) if made is None else made

    # Regions

    def region(
        self,
        graph: GraphProto,
        types: Sequence[TensorType],
        scope: Scope,
        frame: Frame,
        name: str,
        label: str,
        formal: Callable[[Region, Sequence[TensorType]], list[Value]] | None = None,
    ) -> Region | None:
        """Imports a body. `formal` makes its inputs, for carried values of `types`. None where it is unsupported."""
        builder = KnownBuilder(f"{name}/{label}", self.builder.locs, size_of=self.unbacked)
        region = Region(builder, self.builder)
        inner = Scope(initializers=_initializers(graph), parent=scope, region=region)
        self.builder = builder
        self.regions.append(region)
        try:
            values = formal(region, types) if formal is not None else []
            if len(values) != len(graph.input):
                raise ModelError(f"the {label} has {len(graph.input)} inputs; it is given {len(values)}", where=name)
            inner.entries.update(zip((info.name for info in graph.input), values, strict=True))
            self._nodes(graph.node, inner, replace(frame, prefix=f"{name}/"))
            entries = [self._read(info.name, inner, name) for info in graph.output]
            self.where = name
            if any(not isinstance(entry, Value) for entry in entries):
                return None
            region.results = [entry for entry in entries if isinstance(entry, Value)]
            for value in region.results:
                builder.materialize(value)
            return region
        finally:
            self.regions.pop()
            self.builder = region.outer

    def operands(self, region: Region) -> list[Value]:
        """What a region takes from outside, as values of the graph."""
        for value in region.operands:
            self.builder.materialize(value)
        return region.operands

    def finish_region(self, region: Region, results: Sequence[Value]) -> Graph:
        """The region's graph, with the model's names."""
        return _named(live(region.builder.finish(results)), self.names)

    def unbacked(self, wish: str, lo: int, hi: int | None = None) -> Dim:
        """A size that data gives when the program runs, in the region at hand; its name follows `wish`."""
        self.reads_data = True
        dim = self.bindings.unbacked(wish, lo, hi)
        if self.regions:
            self.regions[-1].symbols.update(s for s in symbols_of(dim) if s.origin != "input")
        return dim


def _initializers(graph: GraphProto) -> dict[str, TensorProto]:
    found: dict[str, TensorProto] = {}
    for tensor in graph.initializer:
        if not tensor.name or tensor.name in found:
            raise ModelError(f"initializer {tensor.name!r} is unnamed or defined twice")
        found[tensor.name] = tensor
    return found


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if "\0" in name:
            raise ModelError(f"the name {name!r} has a NUL character", hint="Rename it in the model.")


def _check_size(value: Value, where: str) -> None:
    least = dimension.bounds(value.type.bytes)[0]
    if least > LARGEST_BYTES:
        extents = ", ".join(map(str, value.type.shape))
        raise ModelError(f"a tensor of shape [{extents}] has {int(least)} bytes, more than any machine", where=where)


def _named(graph: Graph, names: Mapping[Value, str]) -> Graph:
    """The graph with node results named as in the model."""
    mapping: dict[Value, Value] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        outputs = []
        for value in node.outputs:
            mapping[value] = Value(value.type, names[value]) if value in names else value
            outputs.append(mapping[value])
        inputs = tuple(mapping.get(value, value) if value is not None else None for value in node.inputs)
        nodes.append(replace(node, inputs=inputs, outputs=tuple(outputs)))
    outputs = [mapping.get(value, value) for value in graph.outputs]
    return graph.with_(nodes=tuple(nodes), outputs=tuple(outputs))
