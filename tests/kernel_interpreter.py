"""Runs a Kernel with numpy, straight from its definition: the independent meaning of aot/kernel.py.

Slow and obvious. Loads go by logical index; out-of-range indices fail unless a guard is false there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from aot import expr as e
from aot.dims import Dim, evaluate
from aot.dtypes import DType
from aot.kernel import AttendRoot, ContractRoot, Kernel, ScanRoot, WindowRoot

_REDUCE: dict[str, Callable[..., Any]] = {"sum": np.sum, "max": np.max, "min": np.min, "prod": np.prod}


def run_kernel(kernel: Kernel, operands: Sequence[np.ndarray], symbols: Mapping[str, int]) -> list[np.ndarray]:
    """The outputs of a kernel, as logical arrays."""
    return _Run(kernel, operands, symbols).outputs()


class _Run:
    def __init__(self, kernel: Kernel, operands: Sequence[np.ndarray], symbols: Mapping[str, int]) -> None:
        self.kernel = kernel
        self.operands = operands
        self.symbols = symbols
        self.extents = [self.dim(axis.extent) for axis in kernel.axes]
        self.domain = tuple(self.extents[: kernel.domain])
        self.root: Any = None

    def dim(self, value: Dim) -> int:
        return value if isinstance(value, int) else evaluate(value, self.symbols)

    def grid(self, axes: Sequence[int], extra: int = 0) -> dict[int, np.ndarray]:
        """An index array for each axis, over the grid of all of them."""
        ranges = [np.arange(self.extents[axis]) for axis in axes]
        arrays = np.meshgrid(*ranges, indexing="ij", sparse=True) if ranges else []
        return {axis: array.astype(np.int64) for axis, array in zip(axes, arrays, strict=True)}

    def outputs(self) -> list[np.ndarray]:
        results = [np.zeros([self.dim(d) for d in o.type.shape], o.type.dtype.numpy) for o in self.kernel.outputs]
        axes = list(range(self.kernel.domain))
        self.root = self.run_root()
        for store in self.kernel.stores:
            env = self.grid(axes)
            value = np.broadcast_to(self.value(store.value, env, {}), self.domain)
            indices = tuple(np.broadcast_to(self.value(i, env, {}), self.domain) for i in store.indices)
            results[store.output][indices] = value
        return results

    def value(self, node: e.Expr, env: Mapping[int, np.ndarray], known: dict[e.Expr, Any]) -> Any:
        if node not in known:
            known[node] = self._value(node, env, known)
        return known[node]

    def _value(self, node: e.Expr, env: Mapping[int, np.ndarray], known: dict[e.Expr, Any]) -> Any:
        if node.op == "axis":
            return env[node.payload]
        if node.op == "const":
            return np.asarray(node.payload, node.dtype.numpy)
        if node.op == "dim":
            return np.asarray(self.dim(node.payload), np.int64)
        if node.op == "root":
            assert self.root is not None
            root = self.root[node.payload] if isinstance(self.kernel.root, ContractRoot) else self.root
            return root[tuple(env[axis] for axis in range(self.kernel.domain))]
        if node.op == "load":
            return self.load(node, env, known)
        if node.op == "reduce":
            function, axis = node.payload
            inner = {a: array[..., None] for a, array in env.items()}
            inner[axis] = np.arange(self.extents[axis], dtype=np.int64).reshape((1,) * len(self.domain_of(env)) + (-1,))
            value = np.asarray(self.value(node.args[0], inner, {}))
            value = np.broadcast_to(value, (*value.shape[:-1], self.extents[axis]))
            if function.startswith("arg"):
                last = function.endswith("_last")
                pick = np.argmax if function.startswith("argmax") else np.argmin
                if last:
                    return self.extents[axis] - 1 - pick(value[..., ::-1], axis=-1)
                return pick(value, axis=-1).astype(np.int64)
            wide = value.astype(np.float64) if value.dtype == np.float32 else value
            return _REDUCE[function](wide, axis=-1).astype(node.dtype.numpy)
        args = [self.value(a, env, known) for a in node.args]
        return e.convert(args[0], node.dtype) if node.op == "cast" else e.NUMPY[node.op](*args)

    def domain_of(self, env: Mapping[int, np.ndarray]) -> tuple[int, ...]:
        return np.broadcast_shapes(*(a.shape for a in env.values()))

    def load(self, node: e.Expr, env: Mapping[int, np.ndarray], known: dict[e.Expr, Any]) -> Any:
        operand = np.asarray(self.operands[node.payload])
        indices, guard, fill = node.args, None, None
        if len(indices) == operand.ndim + 2:
            indices, guard, fill = node.args[:-2], node.args[-2], node.args[-1]
        where = [np.asarray(self.value(i, env, known)) for i in indices]
        if guard is None:
            for index, extent in zip(where, operand.shape, strict=True):
                assert index.size == 0 or (index.min() >= 0 and index.max() < extent), "a load out of range"
            return operand[tuple(where)] if where else operand
        holds = np.asarray(self.value(guard, env, known))
        shape = np.broadcast_shapes(holds.shape, *(i.shape for i in where))
        holds = np.broadcast_to(holds, shape)
        clipped = []
        for index, extent in zip(where, operand.shape, strict=True):
            index = np.broadcast_to(index, shape)
            assert not np.any(holds & ((index < 0) | (index >= extent))), "a guarded load out of range"
            clipped.append(np.clip(index, 0, max(extent - 1, 0)))
        if operand.size == 0:
            return np.broadcast_to(self.value(fill, env, known), shape)  # type: ignore[arg-type]
        return np.where(holds, operand[tuple(clipped)], self.value(fill, env, known))  # type: ignore[arg-type]

    # Roots.

    def run_root(self) -> Any:
        root = self.kernel.root
        if isinstance(root, ContractRoot):
            axes = [*root.batch, root.m, root.n, root.k]
            env = self.grid(axes)
            a, *rights = (np.asarray(self.value(each, env, {}), np.float64) for each in (root.a, *root.rights))
            shape = tuple(self.extents[axis] for axis in axes)
            return [np.broadcast_to(a * b, shape).sum(-1).astype(root.accumulate.numpy) for b in rights]
        if isinstance(root, WindowRoot):
            return self.convolution(root)
        if isinstance(root, AttendRoot):
            return self.attention(root)
        if isinstance(root, ScanRoot):
            env = self.grid(list(range(self.kernel.domain)))
            value = np.broadcast_to(self.value(root.value, env, {}), self.domain)
            value = np.flip(value, root.axis) if root.reverse else value
            scan = np.cumsum(value, root.axis) if root.function == "sum" else np.cumprod(value, root.axis)
            if root.exclusive:
                neutral = np.full_like(np.take(scan, [0], root.axis), 0 if root.function == "sum" else 1)
                scan = np.concatenate([neutral, np.delete(scan, -1, root.axis)], root.axis)
            return (np.flip(scan, root.axis) if root.reverse else scan).astype(root.accumulate.numpy)
        return None

    def factor(self, number: int, dtype: DType | None) -> np.ndarray:
        """An operand of a root, converted to the type in which it is multiplied."""
        array = np.asarray(self.operands[number])
        return (array if dtype is None else array.astype(dtype.numpy)).astype(np.float64)

    def convolution(self, root: WindowRoot) -> Any:
        x, w = (self.factor(i, root.operand) for i in (root.x, root.w))
        x = np.pad(x, [(0, 0), (0, 0), *root.pads])
        out = np.zeros(self.domain)
        per_group_in, per_group_out = x.shape[1] // root.groups, w.shape[0] // root.groups
        for tap in np.ndindex(*w.shape[2:]):
            window = tuple(
                slice(t * d, t * d + s * (n - 1) + 1, s)
                for t, d, s, n in zip(tap, root.dilations, root.strides, self.domain[2:], strict=True)
            )
            for group in range(root.groups):
                xs = x[(slice(None), slice(group * per_group_in, (group + 1) * per_group_in), *window)]
                os_ = slice(group * per_group_out, (group + 1) * per_group_out)
                out[:, os_] += np.moveaxis(np.tensordot(xs, w[(os_, slice(None), *tap)], ((1,), (1,))), -1, 1)
        return out.astype(root.accumulate.numpy)

    def attention(self, root: AttendRoot) -> Any:
        q, k, v = (self.factor(i, root.operand) for i in (root.q, root.k, root.v))
        repeat = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, repeat, 1), np.repeat(v, repeat, 1)
        scores = root.scale * (q @ np.swapaxes(k, -1, -2))
        if root.mask is not None:
            env = self.grid([0, 1, 2, root.t])
            scores = scores + np.asarray(self.value(root.mask, env, {}), np.float64)
        if root.causal:
            s, t = scores.shape[-2:]
            scores = np.where(np.tri(s, t, t - s, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        if root.zero_empty:
            weights = np.where(scores.max(-1, keepdims=True) == -np.inf, 0.0, weights)
            return (weights / np.maximum(weights.sum(-1, keepdims=True), 1.0) @ v).astype(root.accumulate.numpy)
        return (weights / weights.sum(-1, keepdims=True) @ v).astype(root.accumulate.numpy)
