"""PyTorch as the reference for torch.export programs: the program of a .pt2 file, run as it was exported.

The file is read by aotc's own reader, which unpickles nothing and lets names and expressions through that an export
can contain; before PyTorch runs the program, every operator in it must be one of PyTorch's that touch no files. Where
the file is trusted, torch.export.load reads it, so that aotc's reader is checked too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from aot.cli.reference import widened
from aot.errors import AotError, ModelError, OptionError
from aot.ir import Array

if TYPE_CHECKING:
    from aot.program import Program

# Of operators on tensors that come with PyTorch, and of its control flow.
_NAMESPACES = frozenset({"aten", "prims"})
_CONTROL = frozenset(
    {
        "associative_scan", "cond", "map", "map_impl", "scan", "while_loop", "with_effects", "wrap_with_autocast",
        "wrap_with_set_grad_enabled",
    }
)  # fmt: skip


class TorchReference:
    """A torch.export program in PyTorch on the CPU, with the names of inputs and outputs that an artifact of it has.

    Buffers and inputs that the program changes are inputs, and outputs of the same names. `defaults`: what the buffers
    hold in the file. `trust_pickle`: PyTorch reads the file itself, which unpickles parts of it, and may run any
    operator. `inner`: after a run, the tensors of the nodes that `wanted` names.
    """

    def __init__(
        self, path: Path, program: Program, threads: int, *, trust_pickle: bool = False, wanted: Collection[str] = ()
    ) -> None:
        from aot.frontend.torch_import import output_names
        from aot.frontend.torch_program import open_program

        self.path = path
        self.inner: dict[str, Array] = {}
        self._wanted = frozenset(wanted)
        exported = _loaded(path) if trust_pickle else open_program(path)[0]
        if not trust_pickle:
            check_operators(exported, path)
        import torch

        torch.set_num_threads(threads)
        exported._guards_code = []  # Python text, of which the artifact has its own form
        self.name = f"PyTorch {torch.__version__}"
        self._module = exported.module(check_guards=False)
        self._spec = exported.call_spec.in_spec
        self._dtypes = {port.name: port.type.dtype.numpy for port in program.outputs}
        values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
        self._arguments = [  # (name, None) of a tensor, ("", value) of what was fixed when it was exported
            (spec.arg.name, None)
            if hasattr(values.get(spec.arg.name), "dtype")
            else ("", getattr(spec.arg, "value", None))
            for spec in exported.graph_signature.input_specs
            if spec.kind.name == "USER_INPUT"
        ]
        self._user_outputs = output_names(exported, exported.call_spec.out_spec.num_leaves)
        state = {program.inputs[old].name: program.outputs[new].name for old, new in program.state}
        held = dict([*self._module.named_parameters(), *self._module.named_buffers()])
        self._held = {name: tensor for name, tensor in held.items() if name in state}
        self._state = state
        self._types = {name: value.dtype for name, value in values.items() if hasattr(value, "dtype")}
        self._types |= {name: tensor.dtype for name, tensor in self._held.items()}
        self.defaults: dict[str, Array] = {name: _array_of(tensor) for name, tensor in self._held.items()}
        self.inputs = [*self._held, *(name for name, _ in self._arguments if name)]

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name."""
        import torch

        run_once, _ = self.timed(feed)
        results = run_once()
        found: dict[str, Array] = {}
        for name, result in zip(self._user_outputs, results, strict=True):
            if isinstance(result, torch.Tensor):
                found[name] = _array_of(result)
            elif isinstance(result, bool | int | float):
                found[name] = np.asarray(result, self._dtypes.get(name))
        return found | {self._state[name]: _array_of(self._held.get(name, self._given[name])) for name in self._state}

    def timed(self, feed: Mapping[str, Array]) -> tuple[Callable[[], list[Any]], Callable[[], None]]:
        """What runs the program on these inputs, which are tensors already, and what puts back the state after it.

        State is put in its place here first. Only the last feed's pair works.
        """
        import torch
        from torch.utils import _pytree as pytree

        missing = [name for name in self.inputs if name not in feed]
        if missing:
            raise OptionError(f"the model also needs the inputs {', '.join(missing)}", where=str(self.path))
        given = self._given = {name: self._tensor(name, feed[name]) for name in self.inputs}
        kept = {name: given[name].clone() for name in self._state}
        leaves = [given[name] if name else value for name, value in self._arguments]
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)

        def run_once() -> list[Any]:
            try:
                with torch.no_grad():
                    if self._wanted:
                        return list(pytree.tree_leaves(self._observed(leaves)))
                    return list(pytree.tree_leaves(self._module(*args, **kwargs)))
            except Exception as error:  # whatever PyTorch raises
                reason = f"PyTorch cannot run the program on these inputs: {next(iter(str(error).splitlines()), '')}"
                hint = "If they are random, give those that must fit with --input, sizes with --dim, and add --random."
                raise ModelError(reason, where=str(self.path), hint=hint) from error

        def restore() -> None:
            with torch.no_grad():
                for name, tensor in kept.items():
                    self._held.get(name, given[name]).copy_(tensor)

        restore()
        return run_once, restore

    def _observed(self, leaves: list[Any]) -> Any:
        """The program's outputs, node by node, with copies of what the wanted nodes give: it may change later."""
        import torch

        wanted, inner = self._wanted, self.inner
        inner.clear()

        class Observer(torch.fx.Interpreter):  # type: ignore[misc]  # it has no types
            def run_node(self, n: Any) -> Any:
                result = super().run_node(n)
                if n.name in wanted and isinstance(result, torch.Tensor):
                    inner[n.name] = _array_of(result.detach().clone())
                return result

        return Observer(self._module).run(*leaves, enable_io_processing=False)

    def _tensor(self, name: str, array: Array) -> Any:
        """A copy of an array as the tensor that the program takes; --io-dtype may have made it 16 bits wide."""
        import torch

        wanted = self._types[name]
        if wanted == torch.float32:
            array = widened(array)
        plain = np.array(array, order="C")
        if plain.dtype.name == "bfloat16":  # which numpy, and so torch.from_numpy, does not know
            return torch.from_numpy(plain.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(plain)


def _array_of(tensor: Any) -> Array:
    """A tensor as an artifact gives it."""
    from aot.frontend.torch_import import np_array
    from aot.frontend.torch_registry import dtype_of

    array: Array = np_array(tensor, dtype_of(tensor.dtype))
    return array


def check_operators(exported: Any, path: Path) -> None:
    """Raises OptionError where the program calls what an untrusted file must not: operators of other packages."""
    import torch

    for module in exported.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            target = node.target
            is_foreign = isinstance(target, torch._ops.OpOverload) and target.namespace not in _NAMESPACES
            is_other = isinstance(target, torch._ops.HigherOrderOperator) and target.name() not in _CONTROL
            if is_foreign or is_other:
                raise OptionError(
                    f"PyTorch would run {target} in node {node.name!r}, an operator of another package",
                    where=str(path),
                    hint="If you trust the file, add --trust-pickle; or compare with --reference interpreter.",
                )


def _loaded(path: Path) -> Any:
    """The program, by PyTorch's own reader, which unpickles parts of the file."""
    try:
        import torch
    except ImportError as error:
        raise OptionError("this needs PyTorch, which is not installed", hint="pip install 'aotc[torch]'") from error
    try:
        return torch.export.load(path)
    except AotError:
        raise
    except Exception as error:  # whatever PyTorch raises
        reason = next(iter(str(error).splitlines()), "")
        raise ModelError(f"PyTorch cannot load it: {type(error).__name__}: {reason}", where=str(path)) from error
