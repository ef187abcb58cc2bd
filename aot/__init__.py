"""Ahead-of-time deployment compiler. The subpackages are links to the folders beside this one.

Everything here is loaded on first use, so that a serving process that imports `aot.runtime`
pays for none of the compiler.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aot.artifacts import Artifact
    from aot.custom import Operator
    from aot.driver import compile
    from aot.errors import AotError, ArtifactError, GuardError, OperatorError
    from aot.runtime import Model, load

__all__ = [
    "AotError",
    "Artifact",
    "ArtifactError",
    "GuardError",
    "Model",
    "Operator",
    "OperatorError",
    "compile",
    "load",
]

_HOMES = {
    "Artifact": "aot.artifacts",
    "Operator": "aot.custom",
    "compile": "aot.driver",
    "AotError": "aot.errors",
    "ArtifactError": "aot.errors",
    "GuardError": "aot.errors",
    "OperatorError": "aot.errors",
    "Model": "aot.runtime",
    "load": "aot.runtime",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # ten times the cost of importing the runtime

        return version("aotc")
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
