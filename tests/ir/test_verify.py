"""The verifier: each rule has a graph that breaks it, and the message names the user's node and the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from aot.builder import Builder
from aot.dims import Dim, Symbol
from aot.dtypes import F32, I64
from aot.errors import CompilerError
from aot.ir import Attr, Const, Graph, Layout, Level, Node, TensorType, Value, const_of
from aot.verify import VerifyError, verify

N = Symbol("N", 1, 64)
NHWC = (0, 2, 3, 1)


def chain() -> Graph:
    """y = relu(x + bias), made from the user's nodes fc and act."""
    builder = Builder("model")
    x = builder.input("x", F32, (N.dim, 4))
    bias = builder.const(np.ones(4, np.float32), "bias")
    with builder.at("fc"):
        total = builder.add(x, bias)
    with builder.at("act"):
        y = builder.relu(total)
    return builder.finish([y])


def fused(level: Level = Level.FUSED) -> Graph:
    """The chain as one kernel, then a reshape."""
    x = Value(TensorType(F32, (N.dim, 4)), "x")
    inner = Value(TensorType(F32, (N.dim, 4)))
    body_y = Value(TensorType(F32, (N.dim, 4)))
    body = Graph("body", (inner,), {}, (Node("relu", (inner,), (body_y,), locs=("act",)),), (body_y,))
    y = Value(TensorType(F32, (N.dim, 4)))
    flat = Value(TensorType(F32, (N.dim * 4,)), "y")
    kernel = Node("kernel", (x,), (y,), MappingProxyType({"kind": "map", "name": "relu"}), ("act",), (body,))
    view = Node("reshape", (y,), (flat,), MappingProxyType({"shape": (N.dim * 4,)}), ("flatten",))
    return Graph("model", (x,), {}, (kernel, view), (flat,), level=level)


def conv_kernel(
    halo: tuple[tuple[int, int], ...], body_halo: tuple[tuple[int, int], ...] | None = None, fill: int = 0
) -> Graph:
    """A 3x3 convolution with padding 1 as a kernel that reads a value with the given halo."""
    outer = Value(TensorType(F32, (1, 8, 6, 6)), "x")
    padded_type = TensorType(F32, (1, 8, 6, 6), Layout(NHWC, halo, fill=fill))
    copy_in, copy_out = Value(outer.type), Value(padded_type)
    copy_body = Graph("copy", (copy_in,), {}, (Node("copy", (copy_in,), (copy_out,)),), (copy_out,))
    padded = Value(padded_type)
    inner_type = padded_type if body_halo is None else TensorType(F32, (1, 8, 6, 6), Layout(NHWC, body_halo))
    inner, weight, result = Value(inner_type), Value(TensorType(F32, (8, 8, 3, 3))), Value(outer.type)
    attrs: dict[str, Attr] = {"strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1}
    conv = Node("conv", (inner, weight), (result,), MappingProxyType(attrs), ("conv1",))
    const = const_of(np.zeros((8, 8, 3, 3), np.float32))
    body = Graph("conv", (inner,), {weight: const}, (conv,), (result,))
    y = Value(outer.type)
    nodes = (
        Node("kernel", (outer,), (padded,), MappingProxyType({"kind": "map", "name": "copy"}), (), (copy_body,)),
        Node("kernel", (padded,), (y,), MappingProxyType({"kind": "window", "name": "conv"}), ("conv1",), (body,)),
    )
    return Graph("model", (outer,), {}, nodes, (y,), level=Level.ORDERED)


def in_place(number: object = 0, level: Level = Level.ORDERED, **changes: Any) -> Graph:
    """x -> a -> b -> y by kernels, where b lies in the bytes of a."""
    type_ = TensorType(F32, (N.dim, 4))
    values = [Value(type_, name) for name in "xaby"]
    nodes = []
    for source, result in pairwise(values):
        inner, out = Value(type_), Value(type_)
        body = Graph("body", (inner,), {}, (Node("relu", (inner,), (out,)),), (out,))
        attrs: dict[str, Any] = {"kind": "map", "name": "relu"} | ({"in_place": number} if result.name == "b" else {})
        nodes.append(Node("kernel", (source,), (result,), MappingProxyType(attrs), (f"to_{result.name}",), (body,)))
    graph = Graph("model", (values[0],), {}, tuple(nodes), (values[-1],), level=level)
    for position, operand in changes.get("reads", {}).items():
        graph = with_node(graph, position, inputs=(values["xaby".index(operand)],))
    return graph.with_(outputs=tuple(values["xaby".index(name)] for name in changes.get("outputs", "y")))


def concat(part_strides: tuple[Dim, ...]) -> Graph:
    """Two kernels that write the parts of a [N, 8] concatenation, and one that reads the whole."""
    x = Value(TensorType(F32, (N.dim, 4)), "x")
    part_type = TensorType(F32, (N.dim, 4), Layout(strides=part_strides))
    whole_type = TensorType(F32, (N.dim, 8))
    parts, whole, y = [Value(part_type), Value(part_type)], Value(whole_type), Value(whole_type, "y")
    nodes = []
    for operand, part in ((x, parts[0]), (x, parts[1]), (whole, y)):
        inner, out = Value(operand.type), Value(TensorType(F32, part.type.shape))
        body = Graph("body", (inner,), {}, (Node("relu", (inner,), (out,)),), (out,))
        attrs = MappingProxyType({"kind": "map", "name": "relu"})
        nodes.append(Node("kernel", (operand,), (part,), attrs, (), (body,)))
    join = Node("concat", tuple(parts), (whole,), MappingProxyType({"axis": 1}), ("join",))
    nodes.insert(2, join)
    return Graph("model", (x,), {}, tuple(nodes), (y,), level=Level.ORDERED)


def with_node(graph: Graph, position: int, **changes: Any) -> Graph:
    nodes = list(graph.nodes)
    nodes[position] = replace(nodes[position], **changes)
    return graph.with_(nodes=tuple(nodes))


def with_body(graph: Graph, **changes: Any) -> Graph:
    return with_node(graph, 0, regions=(graph.nodes[0].regions[0].with_(**changes),))


def retyped(value: Value, **changes: Any) -> Value:
    return Value(replace(value.type, **changes), value.name)


def test_good_graphs() -> None:
    verify(chain())
    verify(fused())
    verify(fused(Level.ORDERED))
    verify(conv_kernel(((0, 0), (0, 0), (1, 1), (1, 2))))
    verify(in_place())
    verify(concat((8, 1)))
    verify(Graph("empty", (), {}, (), ()))


def undefined_operand() -> Graph:
    return with_node(chain(), 0, inputs=(Value(TensorType(F32, (4,)), "ghost"), chain().inputs[0]))


def swapped_order() -> Graph:
    graph = chain()
    return graph.with_(nodes=tuple(reversed(graph.nodes)))


def defined_twice() -> Graph:
    graph = chain()
    return graph.with_(nodes=(*graph.nodes, replace(graph.nodes[1], locs=("again",))))


def wrong_result(**changes: Any) -> Graph:
    graph = chain()
    value = retyped(graph.outputs[0], **changes)
    return with_node(graph, 1, outputs=(value,)).with_(outputs=(value,))


def const_of_other_type() -> Graph:
    graph = chain()
    (value,) = graph.consts
    return graph.with_(consts={value: const_of(np.ones(5, np.float32))})


def const_without_digest() -> Graph:
    graph = chain()
    (value,) = graph.consts
    return graph.with_(consts={value: Const("12", F32, (4,), "bias", lambda: np.ones(4, np.float32))})


def output_of_another_graph() -> Graph:
    return chain().with_(outputs=chain().outputs)


def state_of(inputs: bool, outputs: bool) -> Graph:
    graph = chain()
    x, y, other = graph.inputs[0], graph.outputs[0], Value(TensorType(F32, (N.dim, 4)), "other")
    return graph.with_(state=((x if inputs else other, y if outputs else other),))


def state_of_other_type() -> Graph:
    graph = fused()
    return graph.with_(state=((graph.inputs[0], graph.outputs[0]),))


def state_twice() -> Graph:
    graph = chain()
    return graph.with_(state=((graph.inputs[0], graph.outputs[0]),) * 2)


def layout_of_result(layout: Layout) -> Graph:
    graph = chain()
    value = retyped(graph.nodes[0].output, layout=layout)
    return with_node(with_node(graph, 0, outputs=(value,)), 1, inputs=(value,))


def input_type(**changes: Any) -> Graph:
    builder = Builder("model")
    return builder.finish([]).with_(inputs=(Value(replace(TensorType(F32, (2, 3)), **changes), "x"),))


def view(op: str, result: tuple[Dim, ...], layout: Layout, attrs: dict[str, Any]) -> Graph:
    """A view of a [2, 3, 4] input as the only node at level ORDERED; a kernel then makes the output of it."""
    x = Value(TensorType(F32, (2, 3, 4)), "x")
    y = Value(TensorType(F32, result, layout))
    inner, inner_out, out = Value(y.type), Value(TensorType(F32, result)), Value(TensorType(F32, result))
    body = Graph("copy", (inner,), {}, (Node("copy", (inner,), (inner_out,)),), (inner_out,))
    kernel = Node("kernel", (y,), (out,), MappingProxyType({"kind": "map", "name": "copy"}), (), (body,))
    node = Node(op, (x,), (y,), MappingProxyType(attrs), (f"the_{op}",))
    return Graph("model", (x,), {}, (node, kernel), (out,), level=Level.ORDERED)


def two_symbols_of_one_name() -> Graph:
    a = Value(TensorType(F32, (N.dim,)), "a")
    b = Value(TensorType(F32, (Symbol("N", 2, 9).dim,)), "b")
    return Graph("model", (a, b), {}, (), ())


def unbound_symbol() -> Graph:
    builder = Builder("model")
    x = builder.input("x", F32, (1,))
    return builder.finish([builder.expand(x, shape=(N.dim,))])


CASES: dict[str, tuple[Callable[[], Graph], str, str]] = {
    "undefined operand": (undefined_operand, "fc", "operand 0, 'ghost', is used before it is defined"),
    "wrong order": (swapped_order, "act", "operand 0"),
    "defined twice": (defined_twice, "again", "is defined twice"),
    "input twice": (lambda: chain().with_(inputs=chain().inputs * 2), "graph model", "'x' is defined twice"),
    "undefined output": (output_of_another_graph, "graph model", "is not defined"),
    "no result": (lambda: with_node(chain(), 1, outputs=()), "act", "has no result"),
    "wrong dtype": (lambda: wrong_result(dtype=I64), "act", "is i64[N,4], should be f32[N,4]"),
    "wrong shape": (lambda: wrong_result(shape=(N.dim, 5)), "act", "should be f32[N,4]"),
    "two results": (
        lambda: with_node(chain(), 1, outputs=(*chain().nodes[1].outputs, Value(TensorType(F32, ())))),
        "act",
        "2 results, the op has 1",
    ),
    "operands do not fit": (lambda: with_node(chain(), 0, inputs=chain().inputs), "fc", "operand"),
    "unknown op": (lambda: with_node(chain(), 1, op="rellu"), "act", "unknown op 'rellu'"),
    "unknown attribute": (
        lambda: with_node(chain(), 1, attrs=MappingProxyType({"alpha": 1.0})),
        "act",
        "unknown attribute 'alpha'",
    ),
    "attribute type": (
        lambda: with_node(fused(), 1, attrs=MappingProxyType({"shape": (np.int64(4),)})),
        "flatten",
        "attribute shape is",
    ),
    "missing attribute": (lambda: with_node(fused(), 1, attrs=MappingProxyType({})), "flatten", "needs the attribute"),
    "region on a plain op": (lambda: with_node(chain(), 1, regions=(chain(),)), "act", "has 1 regions"),
    "constant type": (const_of_other_type, "graph model", "has the type f32[4] and holds f32[5]"),
    "constant digest": (const_without_digest, "graph model", "no SHA-256 digest"),
    "state input": (lambda: state_of(False, True), "graph model", "'other' is not an input"),
    "state output": (lambda: state_of(True, False), "graph model", "'other' is not an output"),
    "state type": (state_of_other_type, "graph model", "is replaced by"),
    "state twice": (state_twice, "graph model", "two state pairs"),
    "order is no permutation": (lambda: layout_of_result(Layout((0, 0))), "fc", "no permutation"),
    "order of another rank": (lambda: layout_of_result(Layout((0, 1, 2))), "fc", "no permutation of 2 axes"),
    "halo count": (lambda: layout_of_result(Layout(halo=((0, 0),))), "fc", "a halo for 1 of 2 axes"),
    "fill without a halo": (lambda: layout_of_result(Layout(fill=3)), "fc", "what a halo holds, 3, and no halo"),
    "fill of no halo": (lambda: layout_of_result(Layout(halo=((0, 0),) * 2, fill=3)), "fc", "and no halo"),
    "negative halo": (lambda: layout_of_result(Layout(halo=((0, 0), (-1, 0)))), "fc", "negative"),
    "stride count": (lambda: layout_of_result(Layout(strides=(1,))), "fc", "1 strides for 2 axes"),
    "negative extent": (lambda: input_type(shape=(2, -3)), "graph model", "extent -3 is negative"),
    "odd extent": (lambda: input_type(shape=(2.0,)), "graph model", "extent 2.0 is a float"),
    "rank": (lambda: input_type(shape=(1,) * 65), "graph model", "rank 65 is above 64"),
    "input layout": (lambda: input_type(layout=Layout((1, 0))), "graph model", "not row-major"),
    "input halo": (lambda: input_type(layout=Layout(halo=((0, 0), (1, 1)))), "graph model", "not row-major"),
    "one name, two symbols": (two_symbols_of_one_name, "graph model", "symbol 'N' has two definitions"),
    "unbound symbol": (unbound_symbol, "graph model", "no input has it"),
    "kernel at core": (lambda: fused(Level.CORE), "act", "level core has no kernel nodes"),
    "plain op at fused": (lambda: chain().with_(level=Level.FUSED), "fc", "add is of kind map"),
    "kernel attributes": (
        lambda: with_node(fused(), 0, attrs=MappingProxyType({"kind": "map"})),
        "act",
        "the attributes kind, name and perhaps in_place",
    ),
    "kernel kind": (
        lambda: with_node(fused(), 0, attrs=MappingProxyType({"kind": "kernel", "name": "k"})),
        "act",
        "kind 'kernel' is none of",
    ),
    "kernel name": (
        lambda: with_node(fused(), 0, attrs=MappingProxyType({"kind": "map", "name": ""})),
        "act",
        "needs a name",
    ),
    "no body": (lambda: with_node(fused(), 0, regions=()), "act", "one region, not 0"),
    "body level": (lambda: with_body(fused(), level=Level.FUSED), "act", "body of a kernel is at level core"),
    "body inputs": (lambda: with_node(fused(), 0, inputs=fused().inputs * 2), "act", "used before"),
    "body input count": (lambda: with_body(fused(), inputs=()), "act", "1 inputs, the body has 0"),
    "body output count": (lambda: with_body(fused(), outputs=()), "act", "1 outputs, the body has 0"),
    "omitted operand": (lambda: with_node(fused(), 0, inputs=(None,)), "act", "a kernel has none to omit"),
    "body input type": (
        lambda: with_body(fused(), inputs=(Value(TensorType(F32, (N.dim, 5))),)),
        "act",
        "is f32[N,4] outside and f32[N,5] in the body",
    ),
    "body is verified": (lambda: with_body(fused(), nodes=()), "act", "is not defined"),
    "convolution halo of other numbers": (
        lambda: conv_kernel(((0, 0), (0, 0), (1, 1), (1, 1)), fill=5),
        "conv1",
        "reads 0 outside of its input, whose halo holds 5",
    ),
    "convolution halo": (
        lambda: conv_kernel(((0, 0), (0, 0), (1, 1), (1, 0))),
        "conv1",
        "pads axis 3 by 1:1, its input has the halo 1:0",
    ),
    "body layout": (
        lambda: conv_kernel(((0, 0), (0, 0), (1, 1), (1, 1)), ((0, 0), (0, 0), (2, 2), (2, 2))),
        "conv1",
        "in the body",
    ),
    "in_place before layouts are final": (lambda: in_place(level=Level.FUSED), "to_b", "layouts are not final"),
    "in_place of nothing": (lambda: in_place(1), "to_b", "in_place 1 names no operand"),
    "in_place over an input": (lambda: in_place(reads={1: "x"}), "to_b", "overwrites 'x', which is the caller's"),
    "in_place over an output": (lambda: in_place(outputs="ay"), "to_b", "overwrites 'a', which is an output"),
    "in_place read later": (lambda: in_place(reads={2: "a"}), "to_b", "which is read later by kernel (to_y)"),
    "part that is not in the whole": (lambda: concat((4, 1)), "join", "operand 0 has other strides than the whole"),
    "transpose that moves": (
        lambda: view("transpose", (3, 2, 4), Layout(), {"perm": (1, 0, 2)}),
        "the_transpose",
        "no view",
    ),
    "reshape that moves": (
        lambda: view("reshape", (6, 4), Layout((1, 0)), {"shape": (6, 4)}),
        "the_reshape",
        "would have to be moved",
    ),
    "expand that moves": (
        lambda: view("expand", (5, 2, 3, 4), Layout(), {"shape": (5, 2, 3, 4)}),
        "the_expand",
        "no view",
    ),
    "slice that moves": (
        lambda: view("slice", (2, 2, 4), Layout(), {"starts": (0, 0, 0), "sizes": (2, 2, 4), "steps": (1, 1, 1)}),
        "the_slice",
        "no view",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_must_fail(name: str) -> None:
    make, where, reason = CASES[name]
    with pytest.raises(CompilerError) as caught:
        verify(make())
    assert isinstance(caught.value, VerifyError)
    assert reason in caught.value.message
    assert where in caught.value.where
    assert "report" in caught.value.hint


@pytest.mark.parametrize(
    ("op", "shape", "layout", "attrs"),
    [
        ("transpose", (3, 2, 4), Layout((1, 0, 2)), {"perm": (1, 0, 2)}),
        ("reshape", (6, 4), Layout(), {"shape": (6, 4)}),
        ("reshape", (2, 3, 1, 4), Layout(), {"shape": (2, 3, 1, 4)}),
        ("reshape", (2, 1, 3, 4), Layout((1, 0, 2, 3)), {"shape": (2, 1, 3, 4)}),
        ("expand", (5, 2, 3, 4), Layout(strides=(0, 12, 4, 1)), {"shape": (5, 2, 3, 4)}),
        (
            "slice",
            (2, 2, 2),
            Layout(strides=(12, 4, 2)),
            {"starts": (0, 1, 0), "sizes": (2, 2, 2), "steps": (1, 1, 2)},
        ),
    ],
)
def test_views(op: str, shape: tuple[int, ...], layout: Layout, attrs: dict[str, Any]) -> None:
    verify(view(op, shape, layout, attrs))


def test_shares_no_code_with_passes() -> None:
    """The verifier may know the op table, control and the data structures, nothing that a pass is made of."""
    import ast
    from pathlib import Path

    import aot.verify

    tree = ast.parse(Path(aot.verify.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    assert {name for name in imported if name.startswith("aot")} <= {
        "aot",
        "aot.control",
        "aot.dims",
        "aot.dtypes",
        "aot.errors",
        "aot.ir",
        "aot.ops",
    }
