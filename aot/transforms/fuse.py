"""Groups nodes into kernels: greatest modelled saving first, under the rules of kinds.

A cluster of nodes becomes one `kernel` node. It may hold one root (an op whose loops an emitter owns:
matmul, conv, attention, cumulative sums, pooling windows) or reductions over one set of axes, and any
number of elementwise and index ops around them. Where the backend asks for it, two products of one left
operand that meet in elementwise ops (the gate of a gated layer) are one kernel too. Merging a producer
into a consumer saves the bytes of the value between them and one launch; where a small producer would be
recomputed at every point of a larger consumer, its flops are charged. Every refusal is recorded with its
reason.

VIEW nodes and `concat` stay outside of kernels: they are aliases after layout assignment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from aot.dims import Dim, product, typical
from aot.dtypes import BF16, F16, F32, I64
from aot.ir import ROW_MAJOR, Const, Graph, Level, Node, Value, live
from aot.lower import OWNED_KINDS, POOLS, ROOT_OPS
from aot.ops import OPS, Kind
from aot.ops.contract import MATMULS
from aot.ops.helpers import int_attr, ints_attr
from aot.ops.window import CONVS
from aot.passes import Context, transform
from aot.views import is_view

GENERATORS = frozenset({"iota", "dim_tensor"})
"""Ops without operands: cloned into every consumer, since an index is cheaper than a load."""

_EXPENSIVE_GATHERS = frozenset({"resize", "grid_sample"})
"""GATHER ops that read several elements of their input per output element."""

_MOVING_READS = frozenset(
    {
        "gather",
        "gather_elements",
        "gather_nd",
        "pad",
        "tile",
        "slice",
        "one_hot",
        "trilu",
        "concat",
        "reshape_copy",
        "transpose_copy",
    }
)

_MOVES = frozenset({"copy", "reshape_copy", "transpose_copy", "gather"})
"""Ops that give elements of their first operand, each where it is."""


MOST_NODES = 48
_ROW_NODES = 8
"""Nodes in one kernel, and what a ROW op counts, which is many: more saves little, takes the C compiler
minutes, and is deeper than recursion goes."""

MOST_PRODUCTS = 2
"""Products of one left operand in one kernel: each has sums of its own in registers."""

_READ_FROM_MEMORY = {**dict.fromkeys(CONVS, 2), "attention": 3, "matmul_packed": 4}
"""How many of the first operands of an op must be operands of the kernel: the emitter walks their bytes."""


@dataclass
class _Cluster:
    """A kernel in the making. `nodes` are in graph order."""

    number: int
    nodes: list[Node]
    root: Node | None
    domain: tuple[Dim, ...]  # shape of the primary output
    full: tuple[Dim, ...]  # the shape reductions run over; the domain where there are none
    reduced: tuple[int, ...] | None  # the axes reduced, or None
    version: int = 0
    others: tuple[Node, ...] = ()  # more products of the root's left operand

    @property
    def roots(self) -> tuple[Node, ...]:
        """The root and the other products; none without a root."""
        return () if self.root is None else (self.root, *self.others)

    @property
    def is_owned(self) -> bool:
        """Whether the root is a kernel by itself."""
        return self.root is not None and OPS[self.root.op].kind in OWNED_KINDS


@transform(takes=Level.CORE, gives=Level.FUSED)
def fuse(graph: Graph, context: Context) -> Graph:
    """The graph with every op in a `kernel` node, except views and concatenations."""
    return _Fuser(live(_clone_generators(graph)), context).run()


def is_bare(node: Node) -> bool:
    """Whether the node stays outside of kernels: an alias."""
    return is_view(node) or node.op == "concat"


def _clone_generators(graph: Graph) -> Graph:
    """Gives every reader of an operand-less node its own copy of it."""
    nodes: list[Node] = []
    origin = {node.output: node for node in graph.nodes if node.op in GENERATORS}
    for node in graph.nodes:
        if node.op in GENERATORS and node.output not in graph.outputs:
            readers = graph.users.get(node.output, ())
            if len(readers) > 1 or any(is_bare(reader) for reader in readers):
                if any(is_bare(reader) for reader in readers):
                    nodes.append(node)
                continue
        if is_bare(node):
            nodes.append(node)
            continue
        fresh: dict[Value, Value] = {}
        for value in node.operands:
            source = origin.get(value)
            if source is not None and len(graph.users[value]) > 1 and value not in fresh:
                fresh[value] = Value(value.type, value.name)
                nodes.append(replace(source, outputs=(fresh[value],)))
        inputs = tuple(fresh.get(v, v) if v is not None else None for v in node.inputs)
        nodes.append(replace(node, inputs=inputs) if fresh else node)
    return graph.with_(nodes=tuple(nodes))


class _Fuser:
    def __init__(self, graph: Graph, context: Context) -> None:
        self.graph = graph
        self.context = context
        numbers = context.target.numbers
        # A value between two kernels is read back from the nearest cache that holds it.
        self.bytes_per_us = numbers.get("l2_bytes_per_us", 40e3)
        self.flops_per_us = numbers.get("fp32_flops_per_us", 60e3)
        self.launch_us = numbers.get("launch_us", 0.5)
        self.position = {node: number for number, node in enumerate(graph.nodes)}
        self.cluster: dict[Node, _Cluster] = {}
        self.outputs = set(graph.outputs)
        for number, node in enumerate(graph.nodes):
            if not is_bare(node):
                self.cluster[node] = _new_cluster(number, node)

    def run(self) -> Graph:
        queue: list[tuple[float, int, int, int, int]] = []
        clusters = {c.number: c for c in self.cluster.values()}

        def push(producer: _Cluster, consumer: _Cluster) -> None:
            saving = self._saving(producer, consumer)
            if saving > 0:
                heapq.heappush(queue, (-saving, producer.number, consumer.number, producer.version, consumer.version))

        for before, after in self._edges():
            push(before, after)
        while queue:
            _, first, second, first_version, second_version = heapq.heappop(queue)
            if first not in clusters or second not in clusters:
                continue
            producer, consumer = clusters[first], clusters[second]
            if producer.version != first_version or consumer.version != second_version:
                continue
            reason = self._why_not(producer, consumer)
            if reason is None and not self.context.allow("fuse"):
                reason = "stopped by --bisect"
            if reason is not None:
                where = f"{producer.nodes[-1].where} -> {consumer.nodes[0].where}"
                self.context.refuse("fuse", where, reason)
                continue
            merged = self._merge(producer, consumer)
            del clusters[producer.number]
            for neighbour in self._producers(merged):
                push(neighbour, merged)
            for neighbour in self._consumers(merged):
                push(merged, neighbour)
        return self._emit()

    # The cluster graph.

    def _edges(self) -> Iterable[tuple[_Cluster, _Cluster]]:
        for node in self.graph.nodes:
            if node in self.cluster:
                for value in node.operands:
                    source = self.graph.producer.get(value)
                    if source is not None and source in self.cluster:
                        yield self.cluster[source], self.cluster[node]

    def _producers(self, cluster: _Cluster) -> list[_Cluster]:
        found: dict[int, _Cluster] = {}
        for node in cluster.nodes:
            for value in node.operands:
                source = self.graph.producer.get(value)
                if source is not None and source in self.cluster and self.cluster[source] is not cluster:
                    found[self.cluster[source].number] = self.cluster[source]
        return list(found.values())

    def _consumers(self, cluster: _Cluster) -> list[_Cluster]:
        found: dict[int, _Cluster] = {}
        for node in cluster.nodes:
            for value in node.outputs:
                for user in self.graph.users.get(value, ()):
                    if user in self.cluster and self.cluster[user] is not cluster:
                        found[self.cluster[user].number] = self.cluster[user]
        return list(found.values())

    def _merge(self, producer: _Cluster, consumer: _Cluster) -> _Cluster:
        nodes = sorted(producer.nodes + consumer.nodes, key=self.position.__getitem__)
        reduced = producer.reduced if producer.reduced is not None else consumer.reduced
        full = producer.full if producer.reduced is not None else consumer.full
        roots = (*producer.roots, *consumer.roots)
        consumer.nodes = nodes
        consumer.root, consumer.others = (roots[0], roots[1:]) if roots else (None, ())
        if producer.root is not None or (consumer.reduced is None and producer.reduced is not None):
            consumer.domain = consumer.domain if _larger(consumer.domain, producer.domain) else producer.domain
        consumer.reduced, consumer.full = reduced, full
        consumer.version += 1
        for node in producer.nodes:
            self.cluster[node] = consumer
        return consumer

    def _between(self, producer: _Cluster, consumer: _Cluster) -> list[Value]:
        """The values that the producer makes and the consumer reads."""
        inside = set(consumer.nodes)
        return [
            value
            for node in producer.nodes
            for value in node.outputs
            if any(user in inside for user in self.graph.users.get(value, ()))
        ]

    def _read_elsewhere(self, value: Value, *clusters: _Cluster) -> bool:
        if value in self.outputs:
            return True
        return any(
            user not in self.cluster or self.cluster[user] not in clusters for user in self.graph.users.get(value, ())
        )

    # The cost decision.

    def _saving(self, producer: _Cluster, consumer: _Cluster) -> float:
        """Microseconds that the merge saves in the model; negative when recomputation costs more."""
        saved = self.launch_us
        for value in self._between(producer, consumer):
            size = typical(value.type.bytes)
            saved += size / self.bytes_per_us
            if not self._read_elsewhere(value, producer, consumer):
                saved += size / self.bytes_per_us
        points = typical(product(consumer.domain))
        for node in producer.nodes:
            own = typical(node.outputs[0].type.elements)
            if points > own and producer.root is None and producer.reduced is None:
                saved -= (points - own) * OPS[node.op].cost_flops / self.flops_per_us
        return saved

    # Legality.

    def _why_not(self, producer: _Cluster, consumer: _Cluster) -> str | None:
        """The reason a merge is not possible, or None."""
        if producer.is_owned or consumer.is_owned:
            return "an op that writes its results itself is a kernel of its own"
        if self._widens(producer, consumer):
            return None
        if producer.root is not None and consumer.root is not None and not self._shares_left(producer, consumer):
            return "both have loops of their own"
        if _size(producer) + _size(consumer) > MOST_NODES:
            return f"the kernel would have more than {MOST_NODES} nodes"
        values = self._between(producer, consumer)
        reason = self._why_not_kinds(producer, consumer, values)
        if reason is not None:
            return reason
        domain = producer.domain if _larger(producer.domain, consumer.domain) else consumer.domain
        if consumer.root is not None and producer.root is None:
            domain = consumer.domain
        for cluster in (producer, consumer):
            for node in cluster.nodes:
                for value in node.outputs:
                    stays = self._read_elsewhere(value, producer, consumer)
                    if stays and (value.type.rank != len(domain) or not _fits(value.type.shape, domain)):
                        return f"{value.name or 'a value'} is read elsewhere and has another shape"
        for cluster in (producer, consumer):
            if cluster.reduced is not None and not self._outputs_fit_rows(producer, consumer):
                return "an output has neither the row's shape nor the reduced shape"
        if not self._is_convex(producer, consumer):
            return "a third kernel reads the first and is read by the second"
        return None

    def _shares_left(self, producer: _Cluster, consumer: _Cluster) -> bool:
        """Whether the roots are products of one left operand with weights of one shape, which one kernel may make."""
        roots = (*producer.roots, *consumer.roots)
        if not self.context.joins_products or len(roots) > MOST_PRODUCTS:
            return False
        rights = {node.operands[1].type if node.op == "matmul" else None for node in roots}
        return (
            None not in rights
            and len(rights) == len({node.operands[0] for node in roots}) == 1
            and all(node.operands[1] in self.graph.consts for node in roots)
        )

    def _why_not_kinds(self, producer: _Cluster, consumer: _Cluster, values: Sequence[Value]) -> str | None:
        if producer.root is not None:
            if consumer.reduced is not None:
                return "the second reduces whole rows, which the first makes in blocks"
            if any(node.op in _MOVING_READS or node.op in _EXPENSIVE_GATHERS for node in consumer.nodes):
                return "the consumer reads at other places than it writes"
            if any(value.type.shape != producer.domain for value in values) or consumer.domain != producer.domain:
                return "the consumer has another shape"
            if any(value in root.operands for root in consumer.roots for value in values):
                return "the second reads its operand from memory, block by block"
            return self._relayout_reason(producer, consumer)
        if consumer.root is not None:
            operands = {v for root in consumer.roots for v in root.operands[: 2 if root.op in CONVS else 4]}
            if consumer.root.op in POOLS:
                return "the window would compute the producer once per tap"
            if self._moves_left(producer, consumer, values) or self._is_mask(producer, consumer, values):
                return None
            if any(value in operands for value in values):
                return "the second reads its operand from memory, block by block"
            if producer.reduced is not None:
                return "the first reduces whole rows, which the second does not have at hand"
            if any(not _fits(node.outputs[0].type.shape, consumer.domain) for node in producer.nodes):
                return "the producer has another shape"
            return None
        if any(node.op in _EXPENSIVE_GATHERS and any(v in values for v in node.operands) for node in consumer.nodes):
            return "the consumer reads the value several times per element"
        if producer.reduced is not None:
            if consumer.reduced is not None and (consumer.reduced, consumer.full) != (producer.reduced, producer.full):
                return "reductions over different axes"
            for node in consumer.nodes:
                if any(v in values for v in node.operands) and node.op in _MOVING_READS:
                    return "the consumer reads at other places than it writes"
                shape = node.outputs[0].type.shape
                if shape not in (producer.full, producer.domain) and not _is_reduced_shape(shape, producer):
                    return "the consumer has neither the row's shape nor the reduced shape"
            return None
        if consumer.reduced is not None:
            for value in values:
                if not _fits(value.type.shape, consumer.full) and not self._is_place(value):
                    return "the value has another shape than the rows"
            return None
        for node in consumer.nodes:
            is_lookup = node.op in ("gather", "gather_elements", "gather_nd") and node.operands[0] in values
            if is_lookup and not (self.context.reads_anywhere and _only_moves(producer)):
                return "only the elements that are looked up should be computed, and they are looked up at random"
        return None

    def _is_place(self, value: Value) -> bool:
        """Whether a value only says where elements are read, so that it is computed for each of them."""
        users = self.graph.users.get(value, ())
        return value not in self.outputs and all(user.op == "gather" and user.operands[0] != value for user in users)

    def _moves_left(self, producer: _Cluster, consumer: _Cluster, values: Sequence[Value]) -> bool:
        """Whether the first only moves lines of the left operand of products, which read them where they are."""
        if not self.context.reads_anywhere or len(values) != 1 or not _only_moves(producer):
            return False
        (value,) = values
        readers = [user for user in self.graph.users[value] if user in consumer.nodes]
        by_products = all(user.op in MATMULS and value not in user.operands[1:] for user in readers)
        by_moves = all(user.op in _MOVES and value not in user.operands[1:] for user in readers)
        if not (by_products or by_moves) or len({root.operands[0] for root in consumer.roots}) > 1:
            return False
        while (node := self.graph.producer.get(value)) is not None and node in producer.nodes:
            source = node.operands[0].type
            axes = {int_attr(node.attrs, "axis") % source.rank} if node.op == "gather" else set()
            last = ints_attr(node.attrs, "perm")[-1] if node.op == "transpose_copy" else source.rank - 1
            if last != source.rank - 1 or last in axes or source.shape[-1:] != value.type.shape[-1:]:
                return False
            value = node.operands[0]
        return value.type.strides[-1] == 1

    def _is_mask(self, producer: _Cluster, consumer: _Cluster, values: Sequence[Value]) -> bool:
        """Whether the first makes the mask of attention, each element for one score, or only moves it."""
        root = consumer.root
        if not self.context.reads_anywhere or root is None or root.op != "attention" or producer.reduced is not None:
            return False
        q, k, v, *masks = root.operands
        scores = (*q.type.shape[:3], k.type.shape[2])
        return (
            set(values) == set(masks)
            and not set(values) & {q, k, v}
            and all(set(self.graph.users[value]) == {root} and value not in self.outputs for value in values)
            and (_only_moves(producer) or all(node.outputs[0].type.shape == scores for node in producer.nodes))
        )

    def _widens(self, producer: _Cluster, consumer: _Cluster) -> bool:
        """Whether the first only widens a factor of the second, which is multiplied as it lies in memory."""
        node, root = producer.nodes[0], consumer.root
        return (
            self.context.splits_sums
            and root is not None
            and root.op == "matmul"
            and len(producer.nodes) == 1
            and node.op == "cast"
            and node.output.type.dtype == F32
            and node.operands[0].type.dtype in (F16, BF16)
            and set(self.graph.users[node.output]) == {root}
            and node.output not in self.outputs
        )

    def _relayout_reason(self, producer: _Cluster, consumer: _Cluster) -> str | None:
        root_order = producer.root.outputs[0].type.order if producer.root is not None else None
        for node in consumer.nodes:
            if node.op == "copy" and node.output.type.order != root_order:
                last = node.output.type.shape[root_order[-1]] if root_order else 1
                if not isinstance(last, int) or last > 8:
                    return "a change of memory order is cheaper in a kernel of its own"
        return None

    def _outputs_fit_rows(self, producer: _Cluster, consumer: _Cluster) -> bool:
        rows = producer if producer.reduced is not None else consumer
        shapes = [
            value.type.shape
            for cluster in (producer, consumer)
            for node in cluster.nodes
            for value in node.outputs
            if self._read_elsewhere(value, producer, consumer)
        ]
        if any(shape == rows.full for shape in shapes):
            return all(
                shape == rows.full or (len(shape) == len(rows.full) and _is_reduced_shape(shape, rows))
                for shape in shapes
            )
        return len(set(shapes)) == 1

    def _is_convex(self, producer: _Cluster, consumer: _Cluster) -> bool:
        """Whether no path leads from the producer through other nodes into the consumer."""
        inside = set(producer.nodes) | set(consumer.nodes)
        last = max(self.position[node] for node in consumer.nodes)
        stack = [
            user
            for node in producer.nodes
            for value in node.outputs
            for user in self.graph.users.get(value, ())
            if user not in inside
        ]
        seen: set[int] = set()
        while stack:
            node = stack.pop()
            members = self.cluster[node].nodes if node in self.cluster else [node]
            key = self.position[members[0]]
            if key in seen:
                continue
            seen.add(key)
            for member in members:
                for value in member.outputs:
                    for user in self.graph.users.get(value, ()):
                        if user in inside:
                            # Members of the producer downstream of an outsider make a cycle as well.
                            return False
                        if self.position[user] <= last or user in self.cluster:
                            stack.append(user)
        return True

    # Making the graph.

    def _emit(self) -> Graph:
        renamed: dict[Value, Value] = {}
        units: dict[int, tuple[int, Node | _Cluster]] = {}
        for node in self.graph.nodes:
            if node in self.cluster:
                cluster = self.cluster[node]
                units[cluster.number] = (self.position[cluster.nodes[-1]], cluster)
            else:
                units[-1 - self.position[node]] = (self.position[node], node)
        ordered = _topological([unit for _, unit in sorted(units.values(), key=lambda u: u[0])])
        nodes: list[Node] = []
        names: dict[str, int] = {}
        for unit in ordered:
            if isinstance(unit, Node):
                nodes.append(unit)
            else:
                kernel, fresh = self._kernel(unit, names)
                renamed.update(fresh)
                nodes.append(kernel)
        nodes = [
            replace(node, inputs=tuple(renamed.get(v, v) if v is not None else None for v in node.inputs))
            for node in nodes
        ]
        outputs = tuple(renamed.get(v, v) for v in self.graph.outputs)
        state = tuple((source, renamed.get(output, output)) for source, output in self.graph.state)
        used = {value for node in nodes for value in node.operands} | set(outputs)
        consts = {value: const for value, const in self.graph.consts.items() if value in used}
        return self.graph.with_(nodes=tuple(nodes), outputs=outputs, consts=consts, state=state, level=Level.FUSED)

    def _kernel(self, cluster: _Cluster, names: dict[str, int]) -> tuple[Node, dict[Value, Value]]:
        """The kernel node of a cluster, and its new output for each value of the cluster read outside."""
        # Layouts are decided outside, so the body says none.
        inside = {v: Value(v.type.with_layout(ROW_MAJOR), v.name) for node in cluster.nodes for v in node.outputs}
        inputs: dict[Value, Value] = {}
        consts: dict[Value, Const] = {}
        body: list[Node] = []
        for node in cluster.nodes:
            operands: list[Value | None] = []
            for position, value in enumerate(node.inputs):
                in_memory = cluster.is_owned or position < _READ_FROM_MEMORY.get(node.op, 0)
                if value is None or value in inside:
                    operands.append(None if value is None else inside[value])
                elif value in self.graph.consts and _is_scalar(self.graph.consts[value]) and not in_memory:
                    consts[value] = self.graph.consts[value]
                    operands.append(value)
                else:
                    fresh = Value(value.type.with_layout(ROW_MAJOR), value.name)
                    operands.append(inputs.setdefault(value, fresh))
            body.append(replace(node, inputs=tuple(operands), outputs=tuple(inside[v] for v in node.outputs)))
        exported = [v for node in cluster.nodes for v in node.outputs if self._read_elsewhere(v, cluster)]
        exported.sort(key=lambda v: -typical(v.type.elements))
        locs = tuple(dict.fromkeys(loc for node in cluster.nodes for loc in node.locs))
        kind = _kind_name(cluster)
        base = _identifier(f"{kind}_{cluster.nodes[-1].locs[-1] if cluster.nodes[-1].locs else cluster.nodes[-1].op}")
        names[base] = names.get(base, 0) + 1
        name = base if names[base] == 1 else f"{base}_{names[base]}"
        region = Graph(name, tuple(inputs.values()), consts, tuple(body), tuple(inside[v] for v in exported))
        outputs = {value: Value(value.type, value.name) for value in exported}
        attrs = MappingProxyType({"kind": kind, "name": name})
        return Node("kernel", tuple(inputs), tuple(outputs.values()), attrs, locs, (region,)), outputs


def _only_moves(cluster: _Cluster) -> bool:
    """Whether the cluster only moves elements of one tensor, to places that follow from sizes alone."""
    inside = {value for node in cluster.nodes for value in node.outputs}
    return all(
        (node.op in _MOVES and all(value in inside for value in node.operands[1:]))
        or (node.outputs[0].type.dtype == I64 and node.op in (*GENERATORS, "mod"))
        for node in cluster.nodes
    )


def _size(cluster: _Cluster) -> int:
    return sum(_ROW_NODES if OPS[node.op].kind is Kind.ROW else 1 for node in cluster.nodes)


def _is_scalar(const: Const) -> bool:
    """Whether the constant has one element: its value then stands in the kernel's text."""
    return all(extent == 1 for extent in const.shape)


def _new_cluster(number: int, node: Node) -> _Cluster:
    shape = node.outputs[0].type.shape
    kind = OPS[node.op].kind
    root = node if node.op in ROOT_OPS or node.op in POOLS or kind in OWNED_KINDS else None
    if kind is Kind.REDUCE:
        source = node.operands[0].type
        axes = reduced_axes(node)
        reduced = tuple(sorted(axis % max(source.rank, 1) for axis in axes))
        return _Cluster(number, [node], None, shape, source.shape, reduced)
    if kind is Kind.ROW:
        return _Cluster(number, [node], None, shape, shape, _row_axes(node))
    return _Cluster(number, [node], root, shape, shape, None)


def reduced_axes(node: Node) -> tuple[int, ...]:
    """The axes of a REDUCE node, as its attributes give them."""
    return ints_attr(node.attrs, "axes") if "axes" in node.attrs else (int_attr(node.attrs, "axis"),)


def _row_axes(node: Node) -> tuple[int, ...]:
    """The axes that a ROW op reduces over."""
    rank = node.operands[0].type.rank
    if node.op in ("instance_norm", "group_norm"):
        return tuple(range(2, rank))
    if rank == 0:
        return ()
    axis = int_attr(node.attrs, "axis") % rank
    return (axis,) if node.op in ("softmax", "log_softmax") else tuple(range(axis, rank))


def _is_reduced_shape(shape: tuple[Dim, ...], rows: _Cluster) -> bool:
    """Whether the shape is the row's shape with the reduced axes dropped or of extent 1."""
    assert rows.reduced is not None
    dropped = tuple(extent for axis, extent in enumerate(rows.full) if axis not in rows.reduced)
    kept = tuple(1 if axis in rows.reduced else extent for axis, extent in enumerate(rows.full))
    return shape in (dropped, kept) or (rows.domain != rows.full and shape == rows.domain)


def _fits(shape: tuple[Dim, ...], domain: tuple[Dim, ...]) -> bool:
    """Whether a value of this shape can be computed (or stored) at the points of the domain."""
    if len(shape) > len(domain):
        return False
    return all(extent in (1, want) for extent, want in zip(shape, domain[len(domain) - len(shape) :], strict=True))


def _larger(left: tuple[Dim, ...], right: tuple[Dim, ...]) -> bool:
    return typical(product(left)) > typical(product(right))


def _kind_name(cluster: _Cluster) -> str:
    if cluster.root is not None:
        return OPS[cluster.root.op].kind.value
    if cluster.reduced is not None:
        return Kind.REDUCE.value if cluster.domain != cluster.full else Kind.ROW.value
    moving = any(OPS[node.op].kind is Kind.GATHER for node in cluster.nodes)
    return Kind.GATHER.value if moving else Kind.MAP.value


def _identifier(text: str) -> str:
    clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in text).strip("_")
    return clean[:64] or "kernel"


def _topological(units: Sequence[Node | _Cluster]) -> list[Node | _Cluster]:
    """The units in an order where every value is made before it is read; stable for equal choices."""
    made_by: dict[Value, int] = {}
    members = [unit.nodes if isinstance(unit, _Cluster) else [unit] for unit in units]
    for number, nodes in enumerate(members):
        for node in nodes:
            for value in node.outputs:
                made_by[value] = number
    needs = [
        {made_by[v] for n in nodes for v in n.operands if v in made_by and made_by[v] != i}
        for i, nodes in enumerate(members)
    ]
    readers: list[list[int]] = [[] for _ in units]
    for number, sources in enumerate(needs):
        for source in sources:
            readers[source].append(number)
    waiting = [len(sources) for sources in needs]
    ready = [number for number, count in enumerate(waiting) if not count]
    heapq.heapify(ready)
    result: list[Node | _Cluster] = []
    while ready:
        number = heapq.heappop(ready)
        result.append(units[number])
        for reader in readers[number]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heapq.heappush(ready, reader)
    return result
