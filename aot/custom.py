"""Custom operators: what a user's package gives, and which are at hand in a build.

An `Operator` is an `OpDef` and the ONNX operator that imports to it. Operators come from the argument
`operators` of `aot.compile`, and from installed packages with an entry point of the group
`aot.operators`, which are loaded when a model has an operator that is not built in. From there on a
custom op is one more entry of the op table: no other module knows the difference.

Invariant: what a package's function raises by mistake is reported as a fault of its operator, by name.
The guide is docs/custom_operators.md.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from aot.errors import AotError, OperatorError
from aot.expr import Expr, call, cast, select
from aot.ir import TensorType
from aot.ops.opdef import (
    OPS,
    AttrSpec,
    KernelSource,
    Kind,
    OpDef,
    OpError,
    Sample,
    broadcast_shapes,
    custom_ops,
    normalize_axis,
    same_extent,
)

__all__ = [
    "AttrSpec",
    "KernelSource",
    "Kind",
    "OpDef",
    "OpError",
    "Operator",
    "Operators",
    "Sample",
    "TensorType",
    "broadcast_shapes",
    "call",
    "cast",
    "current",
    "installed",
    "load_operators",
    "normalize_axis",
    "same_extent",
    "select",
    "use",
]

ENTRY_POINTS = "aot.operators"
"""The group of entry points: each names an Operator, or a sequence of them."""

GUIDE = "docs/custom_operators.md"
ATTRIBUTE_TYPES = ("int", "float", "str", "bool", "ints", "floats")
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_OPERAND = re.compile(r"\*?[A-Za-z_]\w*\??", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operator:
    """A user's operator: its meaning, and the ONNX operator that imports to it.

    op: the OpDef. Its name has the form NAMESPACE.NAME. It has one of `body` (kind MAP), `sources`
    (kind OPAQUE, with a `reference`) and `decompose` (kind OPAQUE, with a `reference`).
    op_type, domain: of the ONNX operator; the domain "" is ai.onnx. since_version: the first version of
    the domain that has this form of it.
    attributes: the ONNX names of attributes whose names in the OpDef are others: {ONNX name: name}.
    package, version: who provides it; kept in artifacts. Filled in for operators of packages and files.
    Raises OperatorError for a definition that cannot be right.
    """

    op: OpDef
    op_type: str
    domain: str
    since_version: int = 1
    attributes: Mapping[str, str] = field(default_factory=dict)
    package: str = ""
    version: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.op, OpDef):
            raise OperatorError(f"`op` must be an OpDef, not {type(self.op).__name__}", where=self.onnx_name)
        _check_definition(self.op)
        name = self.op.name
        if not self.op_type or not isinstance(self.since_version, int) or self.since_version < 1:
            raise OperatorError("an ONNX operator has an op_type and a since_version of 1 or more", where=name)
        if self.domain == "ai.onnx":
            object.__setattr__(self, "domain", "")
        for attribute in self.attributes.values():
            if attribute not in self.op.attrs:
                raise OperatorError(
                    f"`attributes` maps to {attribute!r}; the op has {sorted(self.op.attrs) or 'no attributes'}",
                    where=name,
                )
        object.__setattr__(self, "op", _guarded(self.op))

    @property
    def onnx_name(self) -> str:
        """DOMAIN:OP_TYPE-VERSION, as in the list of what is not supported."""
        return f"{self.domain or 'ai.onnx'}:{self.op_type}-{self.since_version}"

    @property
    def provider(self) -> str:
        """The package and its version, for people."""
        return f"{self.package} {self.version}".strip()

    def __str__(self) -> str:
        return f"{self.onnx_name} ({self.op.name}{', ' if self.provider else ''}{self.provider})"


def _check_definition(op: OpDef) -> None:
    """Raises OperatorError where the parts of an OpDef do not make an operator."""

    def fail(reason: str, hint: str = "") -> OperatorError:
        return OperatorError(reason, where=f"operator {op.name!r}", hint=hint or f"See {GUIDE}.")

    if not isinstance(op.name, str) or not _NAME.fullmatch(op.name):
        taken = f"{op.name!r} is the name of a built-in op; " if op.name in dict.keys(OPS) else ""
        raise fail(
            f"{taken}the name of a custom operator has the form NAMESPACE.NAME",
            hint="Put your package's name before it, such as acme.swish: built-in ops have no dot in their names.",
        )
    if not isinstance(op.doc, str) or not op.doc.strip():
        raise fail("`doc` is empty", hint="Say in one sentence what the operator computes.")
    wrong = [name for name in op.inputs if not isinstance(name, str) or not _OPERAND.fullmatch(name)]
    if isinstance(op.inputs, str) or wrong:
        raise fail(f"`inputs` must be a tuple of names, 'x?' optional, '*xs' all that remain; it is {op.inputs!r}")
    for attribute, spec in op.attrs.items():
        if not isinstance(spec, AttrSpec) or spec.type not in ATTRIBUTE_TYPES or not _IDENTIFIER.fullmatch(attribute):
            raise fail(f"attribute {attribute!r} needs an AttrSpec of type {', '.join(ATTRIBUTE_TYPES)}")
    forms = [name for name in ("body", "sources", "decompose") if getattr(op, name)]
    if not forms:
        raise fail(
            "it says nothing of how it is computed",
            hint=f"Give `body` (elementwise), `sources` (C) or `decompose` (other ops): see {GUIDE}.",
        )
    if "body" in forms and len(forms) > 1:
        raise fail(f"it has both `body` and `{forms[1]}`", hint="An elementwise operator needs its `body` alone.")
    wanted = Kind.MAP if "body" in forms else Kind.OPAQUE
    if op.kind is not wanted:
        raise fail(f"an operator with `{forms[0]}` is of Kind.{wanted.name}, not {op.kind}")
    if op.reference is None and op.body is None:
        raise fail(
            "the reference is missing",
            hint="Give `reference`: the operator's meaning in numpy, which the compiled kernel is compared with.",
        )
    for backend, source in op.sources.items():
        if not _IDENTIFIER.fullmatch(source.function):
            raise fail(f"the function of the source for {backend} must be a C identifier, not {source.function!r}")
    for name in ("infer", "samples", *forms, "reference"):
        value = getattr(op, name)
        if name != "sources" and value is not None and not callable(value):
            raise fail(f"`{name}` must be a function, not {type(value).__name__}")


_FUNCTIONS = ("infer", "samples", "body", "reference", "decompose")


def _guarded(op: OpDef) -> OpDef:
    """The same op; what its functions raise by mistake, or return of a wrong type, is an OperatorError."""
    where = f"operator {op.name!r}"

    def fault(reason: str) -> OperatorError:
        return OperatorError(reason, where=where)

    def guard(what: str, function: Any) -> Any:
        if function is None or hasattr(function, "of_user"):
            return function

        def run(*args: Any) -> Any:
            # Where the elements of a tensor lie is no concern of infer: shapes alone decide the result.
            given = [TensorType(a.dtype, a.shape) if isinstance(a, TensorType) else a for a in args]
            try:
                found = function(*given)
            except AotError:
                raise
            except Exception as error:
                raise fault(f"{what} raised {type(error).__name__}: {error}") from error
            types = found if isinstance(found, tuple) else (found,)
            if what == "infer" and not (types and all(isinstance(t, TensorType) and not t.layout for t in types)):
                raise fault(f"infer must return a TensorType without a layout, or a tuple of them; not {found!r}")
            if what == "body" and not isinstance(found, Expr):
                raise fault(f"body must return an Expr, not {found!r}")
            return found

        run.of_user = function  # type: ignore[attr-defined]
        return run

    return replace(op, **{name: guard(name, getattr(op, name)) for name in _FUNCTIONS})


def _is_same(left: OpDef, right: OpDef) -> bool:
    """Whether two ops are one definition of the user's."""

    def parts(op: OpDef) -> list[Any]:
        functions = [getattr(op, name) for name in _FUNCTIONS]
        return [op.name, op.sources, op.attrs, *(getattr(function, "of_user", function) for function in functions)]

    return parts(left) == parts(right)


# Where operators come from.


def load_operators(spec: str | os.PathLike[str]) -> tuple[Operator, ...]:
    """The operators of a module ("acme.operators") or of a file ("ops.py"): what its OPERATORS holds.

    MODULE:NAME and FILE.py:NAME take another variable. Raises OperatorError with the reason.
    """
    text = os.fspath(spec)
    place, _, name = text.rpartition(":") if ":" in text else (text, "", "")
    name = name or "OPERATORS"
    is_file = place.endswith(".py") or os.sep in place
    try:
        if is_file:
            content = Path(place).read_bytes()
            module = _module_of_file(Path(place), content)
            path = Path(place)
            package = f"{path.parent.name}/{path.name}" if path.name == "__init__.py" else path.name
            version = f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"
        else:
            module = importlib.import_module(place)
            package, version = _distribution(place)
    except AotError:
        raise
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        hint = "Give a file (path/to/ops.py), or a module that can be imported; installed packages need no option."
        raise OperatorError(f"cannot load operators: {reason}", where=text, hint=hint) from error
    if not hasattr(module, name):
        hint = f"Define it as a list of aot.custom.Operator: see {GUIDE}."
        raise OperatorError(f"there is no variable {name} in it", where=text, hint=hint)
    return _provided(getattr(module, name), text, package, version)


def _module_of_file(path: Path, content: bytes) -> ModuleType:
    name = f"aot_operators_{hashlib.sha256(str(path.resolve()).encode() + content).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the name ends in .py, or it has been read
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _distribution(module: str) -> tuple[str, str]:
    """The package that a module belongs to, and its version; the module itself where no package is known."""
    names = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return (names[0], importlib.metadata.version(names[0])) if names else (module, "")


def _provided(value: Any, where: str, package: str, version: str) -> tuple[Operator, ...]:
    found = (value,) if isinstance(value, Operator) else value
    if not isinstance(found, Sequence) or not all(isinstance(item, Operator) for item in found):
        raise OperatorError(f"expected a list of aot.custom.Operator, found {value!r:.80}", where=where)
    return tuple(item if item.package else replace(item, package=package, version=version) for item in found)


@cache
def installed() -> tuple[tuple[Operator, ...], tuple[str, ...]]:
    """The operators of installed packages, and what went wrong: a broken package does not stop the others."""
    found: list[Operator] = []
    problems: list[str] = []
    points = importlib.metadata.entry_points(group=ENTRY_POINTS)
    for point in sorted(points, key=lambda point: (point.dist.name if point.dist else "", point.name)):
        package = point.dist.name if point.dist else point.value
        version = point.dist.version if point.dist else ""
        where = f"package {package}, entry point {point.name}"
        try:
            provided = _provided(point.load(), where, package, version)
            _check_unique((*found, *provided))
            found.extend(provided)
        except Exception as error:
            reason = error.message if isinstance(error, AotError) else f"{type(error).__name__}: {error}"
            problems.append(f"the operators of {where} cannot be loaded: {reason}")
    return tuple(found), tuple(problems)


def _check_unique(operators: Sequence[Operator]) -> None:
    """Raises OperatorError where two operators have one name or one ONNX operator."""
    for what, keys in (
        ("the name", [operator.op.name for operator in operators]),
        ("the ONNX operator", [operator.onnx_name for operator in operators]),
    ):
        seen: dict[str, Operator] = {}
        for key, operator in zip(keys, operators, strict=True):
            other = seen.setdefault(key, operator)
            if other is operator or (what == "the name" and _is_same(other.op, operator.op)):
                continue
            both = " and ".join(dict.fromkeys(o.provider for o in (other, operator) if o.provider))
            raise OperatorError(
                f"{what} {key} is given twice{f', by {both}' if both else ''}",
                hint="Rename one of them, or uninstall one of the packages.",
            )


class Operators:
    """The operators at hand in one build. `used` collects those that a model needed."""

    def __init__(self, given: Iterable[Operator] = ()) -> None:
        self.given = tuple(given)
        _check_unique(self.given)
        self.used: dict[str, Operator] = {}
        self._looked = False

    def find(self, domain: str, op_type: str, version: int) -> Operator | None:
        """The operator that a node of this version of a domain imports to; those given come first."""
        for operators in (self._explicit, self._installed):
            fitting = [o for o in operators() if (o.domain, o.op_type) == (domain, op_type)]
            fitting = [o for o in fitting if o.since_version <= version]
            if fitting:
                found = max(fitting, key=lambda o: o.since_version)
                self.used[found.op.name] = found
                return found
        return None

    def definition(self, name: str) -> OpDef | None:
        """The op of this name."""
        return next(
            (o.op for operators in (self._explicit, self._installed) for o in operators() if o.op.name == name), None
        )

    def _explicit(self) -> tuple[Operator, ...]:
        return self.given

    def _installed(self) -> tuple[Operator, ...]:
        self._looked = True
        return installed()[0]

    @property
    def problems(self) -> tuple[str, ...]:
        """What went wrong with installed packages, if they were looked for."""
        return installed()[1] if self._looked else ()

    def why_not(self, domain: str, op_type: str, version: int) -> str:
        """What is known of an operator that is not at hand: another version of it, or a similar name."""
        known = [o for o in (*self.given, *installed()[0]) if o.domain == domain]
        same = sorted({o.since_version for o in known if o.op_type == op_type})
        if same:
            return f"it is registered from version {same[0]} on; the model imports version {version} of {domain!r}"
        names = [o.op_type for o in known]
        near = get_close_matches(op_type, names, n=1) or names[:5]
        return f"no such operator is registered; {domain!r} has {', '.join(near)}" if near else ""

    def described(self) -> list[dict[str, str]]:
        """The used ones, for the artifact."""
        return [
            {"name": o.op.name, "onnx": o.onnx_name, "package": o.package, "version": o.version}
            for _, o in sorted(self.used.items())
        ]


_current: ContextVar[Operators | None] = ContextVar("operators", default=None)


def current() -> Operators:
    """The operators at hand here: those of `use`, else those of installed packages."""
    return _current.get() or Operators()


@contextmanager
def use(operators: Iterable[Operator | str | os.PathLike[str]] | Operators = ()) -> Iterator[Operators]:
    """Has operators at hand inside a `with` block, beside those of installed packages.

    Each is an Operator, or a module or file as `load_operators` takes it.
    """
    if isinstance(operators, Operators):
        registry = operators
    else:
        given: list[Operator] = []
        for item in [operators] if isinstance(operators, str | os.PathLike | Operator) else operators:
            if isinstance(item, Operator):
                given.append(item)
            elif isinstance(item, str | os.PathLike):
                given.extend(load_operators(item))
            else:
                raise OperatorError(f"an operator is an aot.custom.Operator, a module or a file, not {item!r:.80}")
        registry = Operators(given)
    tokens = _current.set(registry), custom_ops.set(registry.definition)
    try:
        yield registry
    finally:
        _current.reset(tokens[0])
        custom_ops.reset(tokens[1])
