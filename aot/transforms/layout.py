"""Chooses where every tensor's elements lie: memory order and halo. Inserts a copy only where two wishes meet.

Sliding windows want channels innermost and a halo around their input, of zeros or of its zero point; graph
inputs and outputs are row-major; everything else follows its operands, or its consumers where it is free.
A transpose never moves bytes; a reshape does only if its groups of axes are not adjacent in memory, and then
a `copy` stands before it. After this pass:
  - every `conv` and `conv_8bit` reads a value whose halo covers its padding and holds what it reads there,
  - every VIEW node except a stepped-backwards slice is an alias of its input,
  - every operand of a `concat` can be written straight into the result,
  - what a row-major kernel reads or makes is dense and row-major,
  - every graph output is a dense row-major value of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from aot.dims import Dim, typical
from aot.ir import Graph, Layout, Level, Node, Value
from aot.ops import OPS, Kind
from aot.ops.contract import MATMULS
from aot.ops.helpers import int_attr, ints_attr
from aot.ops.window import CONVS
from aot.passes import Context, transform
from aot.transforms.shapes import joined_axes
from aot.views import VIEW_OPS, view_of

Order = tuple[int, ...]
Halo = tuple[tuple[int, int], ...]
Surround = tuple[Halo, int]
"""A halo, and what it holds."""

_FEW_CHANNELS = 4
"""Up to this many input channels a convolution reads any order as fast as channels-last."""

_POOLS = ("max_pool", "avg_pool")


def channels_last(rank: int) -> Order:
    """The memory order N, spatial…, C of logical N, C, spatial…."""
    return (0, *range(2, rank), 1)


def _identity(rank: int) -> Order:
    return tuple(range(rank))


@transform(takes=Level.CORE, gives=Level.CORE)
def assign_layouts(graph: Graph, context: Context) -> Graph:
    """Gives every value its order and halo, and inserts the copies that this needs."""
    return _Assigner(graph, context).run()


def consumer_orders(graph: Graph, channel_group: int) -> dict[Value, tuple[Order, int]]:
    """The memory order that the readers of each value would like, with how much it matters (1 to 3)."""
    wanted: dict[Value, tuple[Order, int]] = {}

    def wish(value: Value, order: Order, weight: int) -> None:
        if value not in wanted or weight > wanted[value][1]:
            wanted[value] = (order, weight)

    for value in graph.outputs:
        wish(value, _identity(value.type.rank), 1)
    for node in reversed(graph.nodes):
        out, weight = wanted.get(node.outputs[0], (None, 0))
        if node.op in CONVS:
            source = node.operands[0]
            if not _are_few(source, channel_group):
                wish(source, channels_last(source.type.rank), 3)
        elif node.op in _POOLS:
            wish(node.operands[0], channels_last(node.operands[0].type.rank), 2)
        elif node.op == "transpose":
            perm = ints_attr(node.attrs, "perm")
            if out is not None:
                wish(node.operands[0], tuple(perm[axis] for axis in out), weight)
        elif node.op == "reshape":
            source = node.operands[0]
            order = _through_unit_axes(source.type.shape, node.output.type.shape, out) if out is not None else None
            wish(source, order or _identity(source.type.rank), weight if order else 1)
        elif node.op in MATMULS:
            for operand in node.operands:
                wish(operand, _identity(operand.type.rank), 1)
        elif out is not None:
            for operand in node.operands:
                if operand.type.rank == len(out):
                    wish(operand, out, weight)
    return wanted


def _are_few(image: Value, channel_group: int) -> bool:
    """Whether a convolution's image has so few channels that their order does not matter: no whole group of them."""
    channels = image.type.shape[1]
    is_group = channel_group > 1 and isinstance(channels, int) and channels % channel_group == 0
    return isinstance(channels, int) and channels <= _FEW_CHANNELS and not is_group


def _through_unit_axes(shape: Sequence[Dim], new_shape: Sequence[Dim], order: Order) -> Order | None:
    """The order before a reshape that only adds or drops axes of extent 1, given the order after it."""
    old = [axis for axis, extent in enumerate(shape) if extent != 1]
    new = [axis for axis, extent in enumerate(new_shape) if extent != 1]
    if [shape[axis] for axis in old] != [new_shape[axis] for axis in new]:
        return None
    moved = [old[new.index(axis)] for axis in order if axis in new]
    return tuple(axis for axis in range(len(shape)) if axis not in old) + tuple(moved)


class _Assigner:
    """One run: rebuilds the graph front to back with layouts in the types."""

    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        self.wanted = consumer_orders(graph, context.channel_group)
        self.has_halos = context.has_halos
        self.halos = _halos_wanted(graph) if self.has_halos else {}
        self.nodes: list[Node] = []
        self.new: dict[Value, Value] = {value: value for value in (*graph.inputs, *graph.consts)}
        self.copies: dict[tuple[Value, Layout], Value] = {}
        self.fixed = set(graph.inputs) | set(graph.consts)  # values whose bytes are not ours to arrange
        self.in_concat: set[Value] = set()
        self.dense = _read_or_made_dense(graph)

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._visit(node)
        outputs: list[Value] = []
        state_outputs = {output: source for source, output in self.graph.state}
        taken: set[Value] = set()
        for value in self.graph.outputs:
            new = self.new[value]
            root = self._root_of_output(new)
            if root is None or root in taken:
                new = root = self._copy(new, Layout(), ("output",), fresh=True)
            taken.add(root)
            outputs.append(new)
        renamed = {old: new for old, new in zip(self.graph.outputs, outputs, strict=True)}
        outputs = [replace_name(value, old.name) for value, old in zip(outputs, self.graph.outputs, strict=True)]
        final = dict(zip((renamed[v] for v in self.graph.outputs), outputs, strict=True))
        nodes = tuple(_rename(node, final) for node in self.nodes)
        state = tuple((source, outputs[self.graph.outputs.index(output)]) for output, source in state_outputs.items())
        return self.graph.with_(nodes=nodes, outputs=tuple(outputs), state=state)

    # One node.

    def _visit(self, node: Node) -> None:
        inputs = [None if value is None else self.new[value] for value in node.inputs]
        if node.op in VIEW_OPS and self._try_view(node, inputs):
            return
        row_major = OPS[node.op].row_major
        if row_major:
            inputs = [self._copy(v, Layout(), node.locs) if v is not None and v.type.layout else v for v in inputs]
        if node.op in CONVS:
            inputs[0] = self._window_input(node, _must(inputs[0]))
        if node.op == "concat":
            order = self._order(node, inputs)
            inputs = [
                self._part(_must(value), order, node, self._is_reshaped(old) or old in self.dense)
                for value, old in zip(inputs, node.operands, strict=True)
            ]
        outputs = []
        for old in node.outputs:
            order = self._order(node, inputs, old)
            halo, fill = self.halos.get(old, ((), 0))
            layout = Layout(order=() if order == _identity(old.type.rank) else order, halo=halo, fill=fill)
            if row_major:
                layout = Layout()
            outputs.append(Value(old.type.with_layout(layout), old.name))
            self.new[old] = outputs[-1]
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=tuple(outputs)))

    def _order(self, node: Node, inputs: Sequence[Value | None], out: Value | None = None) -> Order:
        """The memory order of one result."""
        old = out or node.outputs[0]
        rank = old.type.rank
        wish, weight = self.wanted.get(old, (_identity(rank), 0))
        if node.op in CONVS:
            return channels_last(rank)
        if node.op in MATMULS or node.op == "attention" or OPS[node.op].kind is Kind.RECUR:
            return wish if wish and wish[-1] == rank - 1 else _identity(rank)
        if node.op == "copy" and node.output.type.layout.order:
            return node.output.type.layout.order
        followed = [v for v in inputs if v is not None and v.type.rank == rank and v not in self.graph.consts]
        if OPS[node.op].kind is Kind.REDUCE and not node.attrs.get("keepdims", True):
            (source,) = (v for v in inputs if v is not None)
            axes = ints_attr(node.attrs, "axes") if "axes" in node.attrs else (int_attr(node.attrs, "axis"),)
            gone = {axis % max(source.type.rank, 1) for axis in axes}
            kept = [axis for axis in range(source.type.rank) if axis not in gone]
            return tuple(kept.index(axis) for axis in source.type.order if axis in kept)
        if node.op in ("gather", "gather_nd") or not followed:
            return wish
        leader = max(followed, key=lambda v: typical(v.type.elements))
        if weight == 3 and leader in self.fixed:
            return wish  # the bytes pass through here anyway: leave them as the window wants them
        return leader.type.order

    # Views.

    def _try_view(self, node: Node, inputs: Sequence[Value | None]) -> bool:
        """Emits the VIEW node as an alias, after a copy of its input where needed; False if it cannot be one."""
        source = _must(inputs[0])
        if node.op == "slice" and any(step < 1 for step in ints_attr(node.attrs, "steps")):
            return False
        view = view_of(node, source.type)
        if view is None:
            source = self._copy(source, self._readable(node, source), node.locs)
            view = view_of(node, source.type)
        if view is None:
            return False
        out = Value(view.type, node.output.name)
        self.new[node.output] = out
        self.fixed.add(out)
        self.nodes.append(replace(node, inputs=(source,), outputs=(out,)))
        return True

    def _readable(self, node: Node, source: Value) -> Layout:
        """The layout of a copy of which the node is a view: in the order that its readers want, where that can be."""
        out, weight = self.wanted.get(node.output, (None, 0))
        if node.op == "reshape" and out is not None and weight > 1:
            runs = joined_axes(source.type.shape, node.output.type.shape)
            order = tuple(axis for place in out for axis in runs[place]) if runs is not None else ()
            if order and view_of(node, source.type.with_layout(Layout(order=order))) is not None:
                return Layout(order=order if order != _identity(source.type.rank) else ())
        return Layout()

    # Wishes of particular consumers.

    def _window_input(self, node: Node, value: Value) -> Value:
        """The convolution's input with a halo that covers its padding, and channels last unless they are few."""
        rank = value.type.rank
        spatial = rank - 2
        pads = ints_attr(node.attrs, "pads") if self.has_halos else (0,) * (2 * spatial)
        needed: Halo = ((0, 0), (0, 0), *((pads[i], pads[spatial + i]) for i in range(spatial)))
        depthwise = int_attr(node.attrs, "groups") > 1
        few = _are_few(value, self.context.channel_group) and not depthwise
        # A view may be read as it is when nothing has to surround it and channels are adjacent.
        padded = any(before or after for before, after in needed)
        innermost = value.type.strides[1] == 1 or few
        fill = _fill(node)
        covered = all(h[0] >= n[0] and h[1] >= n[1] for h, n in zip(value.type.halo, needed, strict=True))
        covered = covered and (not padded or value.type.layout.fill == fill)
        if value not in self.graph.consts and innermost and (covered if value not in self.fixed else not padded):
            return value
        order = value.type.order if few and value.type.order == _identity(rank) else channels_last(rank)
        halo, held = self.halos.get(node.operands[0], (needed, fill))
        covers = held == fill and all(h[0] >= n[0] and h[1] >= n[1] for h, n in zip(halo, needed, strict=True))
        order = () if order == _identity(rank) else order
        layout = Layout(order=order, halo=halo if covers else needed, fill=fill) if padded else Layout(order=order)
        return self._copy(value, layout, node.locs)

    def _is_reshaped(self, value: Value) -> bool:
        """Whether a view merges or splits axes of the value, which takes adjacent elements: not so in a part."""
        for node in self.graph.users.get(value, ()):
            if node.op not in VIEW_OPS:
                continue
            old, new = node.operands[0].type.shape, node.output.type.shape
            if node.op == "reshape" and _through_unit_axes(old, new, _identity(len(new))) is None:
                return True
            if self._is_reshaped(node.output):
                return True
        return False

    def _part(self, value: Value, order: Order, node: Node, reshaped: bool) -> Value:
        """A value that can be written straight into a concatenation of the given order."""
        free = value not in self.fixed and value not in self.in_concat and value.type.order == order and not reshaped
        if value.type.layout.halo:
            # The part gets the halo of the whole; that must do for the part's own convolutions.
            whole, fill = self.halos.get(node.output, (((0, 0),) * value.type.rank, 0))
            covers = all(h[0] <= w[0] and h[1] <= w[1] for h, w in zip(value.type.halo, whole, strict=True))
            covers = covers and value.type.layout.fill == fill
            free = free and covers and int_attr(node.attrs, "axis") % value.type.rank == 1
        outputs = {self.new.get(v) for v in self.graph.outputs}
        if not free or value in outputs or self.producer_is_concat(value):
            identity = _identity(value.type.rank)
            value = self._copy(value, Layout(order=() if order == identity else order), node.locs, fresh=True)
        self.in_concat.add(value)
        return value

    def producer_is_concat(self, value: Value) -> bool:
        return any(node.op == "concat" and value in node.outputs for node in self.nodes)

    def _root_of_output(self, value: Value) -> Value | None:
        """The value whose bytes an output is, all of them and row-major; None where it needs bytes of its own."""
        viewed = {node.outputs[0]: _must(node.inputs[0]) for node in self.nodes if node.outputs[0] in self.fixed}
        root = value
        while root in viewed:
            root = viewed[root]
        whole = not value.type.layout and not root.type.layout and value.type.elements == root.type.elements
        free = root not in self.fixed and root not in self.in_concat and value not in self.in_concat
        return root if whole and free else None

    def _copy(self, value: Value, layout: Layout, locs: tuple[str, ...], fresh: bool = False) -> Value:
        key = (value, layout)
        if fresh or key not in self.copies:
            out = Value(value.type.with_layout(layout), value.name)
            self.nodes.append(Node("copy", (value,), (out,), locs=locs))
            if fresh:
                return out
            self.copies[key] = out
        return self.copies[key]


def _read_or_made_dense(graph: Graph) -> set[Value]:
    """Values that row-major kernels make or read, directly or through views: they cannot lie inside another tensor."""
    found: set[Value] = set()
    for node in graph.nodes:
        if not OPS[node.op].row_major:
            continue
        found.update(node.outputs)
        stack = list(node.operands)
        while stack:
            value = stack.pop()
            found.add(value)
            source = graph.producer.get(value)
            if source is not None and source.op in VIEW_OPS:
                stack.extend(source.operands)
    return found


def _fill(node: Node) -> int:
    """What a convolution reads outside of its input."""
    return int_attr(node.attrs, "fill") if "fill" in node.attrs else 0


def _halos_wanted(graph: Graph) -> dict[Value, Surround]:
    """For values whose producer may write a halo: the largest padding of the convolutions that read them.

    Where these read different numbers there, the halo is for those that read what the first one does. A value that a
    reshape or transpose also reads keeps no halo (the view would not be dense); its convolutions then read a copy.
    """
    wanted: dict[Value, list[list[int]]] = {}
    fills: dict[Value, int] = {}
    for node in graph.nodes:
        if node.op not in CONVS:
            continue
        pads = ints_attr(node.attrs, "pads")
        if not any(pads):
            continue
        source = node.operands[0]
        if fills.setdefault(source, _fill(node)) != _fill(node):
            continue
        spatial = source.type.rank - 2
        halo = wanted.setdefault(source, [[0, 0] for _ in range(source.type.rank)])
        for axis in range(spatial):
            halo[2 + axis][0] = max(halo[2 + axis][0], pads[axis])
            halo[2 + axis][1] = max(halo[2 + axis][1], pads[spatial + axis])
    viewed = {value for node in graph.nodes if node.op in VIEW_OPS for value in node.operands}
    excluded = viewed | set(graph.outputs)
    return {
        value: (tuple((before, after) for before, after in halo), fills[value])
        for value, halo in wanted.items()
        if value not in excluded
    }


def replace_name(value: Value, name: str) -> Value:
    """The same value, new object, named as the user named the output."""
    return Value(value.type, name or value.name)


def _rename(node: Node, renamed: dict[Value, Value]) -> Node:
    inputs = tuple(renamed.get(v, v) if v is not None else None for v in node.inputs)
    outputs = tuple(renamed.get(v, v) for v in node.outputs)
    return replace(node, inputs=inputs, outputs=outputs)


def _must(value: Value | None) -> Value:
    assert value is not None
    return value
