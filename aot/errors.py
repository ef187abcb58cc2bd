"""The error family of aotc. Imports nothing: the serving runtime shares it with the compiler.

Every error says what was expected, what was found, where (in the names of the user's model) and
what to do. `code` is a stable word for programs; the message is for people.
"""


class AotError(Exception):
    """Base of every error that aotc raises on purpose.

    `where` names the user's node, tensor or file; `hint` is the remedy, one sentence. `reason`, of errors that the
    runtime library reports, is a stable word that is finer than `code`, such as "dtype" of a guard; else empty.
    """

    code = "error"
    status = 0
    """What the C API returned, for errors that come from it: a number of aot_status."""
    reason = ""

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class ModelError(AotError):
    """The source model is malformed, or contradicts itself."""

    code = "model"


class UnsupportedError(AotError):
    """The model is well formed, but uses something that this version cannot compile."""

    code = "unsupported"


class OperatorError(AotError):
    """A custom operator is wrong: its definition, its functions, or its C source."""

    code = "operator"


class OptionError(AotError):
    """An option, or a combination of options, makes no sense for this model."""

    code = "option"


class TargetError(AotError):
    """The target is unknown, its tools are missing, or this machine cannot run it."""

    code = "target"


class CompilerError(AotError):
    """A defect of aotc itself: an invariant between two of its parts was broken."""

    code = "internal"


class ArtifactError(AotError):
    """An artifact is damaged, of another version, or not an artifact."""

    code = "artifact"


class GuardError(AotError):
    """An input or output does not fit what the artifact was built for."""

    code = "guard"


class RunError(AotError):
    """The runtime could not run: out of memory, cancelled, or misused."""

    code = "run"
