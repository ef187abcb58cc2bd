"""What must hold of an artifact before it gets traffic: numbers of its self-test, and stable's inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aot.errors import ArtifactError
from aot.runtime import Model, TensorSpec, target_rank
from aot.runtime.serving.selftest import self_test


def check_numbers(what: str, model: Any, source: Any) -> None:
    """Runs the self-test in an artifact, where it holds one; raises ArtifactError for other numbers than the build's.

    `model`: what was loaded from `source`, a path or bytes. A loaded model has no file, and is not tested. Latency is
    not looked at: `aotc selftest` does that, on a machine that does nothing else.
    """
    if isinstance(source, Model):
        return
    data = bytes(source) if isinstance(source, bytearray | memoryview) else source
    found = self_test(model, data, time_it=False)
    if found.inputs and not found.numbers_passed:
        problems = [*found.problems]
        problems += [
            f"input {check.input}: {check.metric} of output {check.output!r} is {check.value:.3g}, "
            f"at most {check.limit:.3g} is allowed"
            for check in found.checks
            if not check.passed and check.limit is not None
        ]
        more = f", and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ArtifactError(
            f"its self-test fails on this machine: {'; '.join(problems[:3])}{more}",
            where=what,
            hint="aotc selftest shows all of it, aotc doctor whether the artifact fits this machine.",
        )


def slower_because(target: str, meta: Mapping[str, Any]) -> str:
    """Why a machine runs an artifact's program for `target`, of a CPU, and not a faster one that it holds as well.

    "" where it holds none. `aotc doctor` also tells what could be built besides.
    """
    held = meta.get("targets")
    if target.startswith("cuda:") or not isinstance(held, list):
        return ""
    reasons = {other: target_rank(other)[1] for other in held if isinstance(other, str) and other != target}
    return "; ".join(f"{other}: {reason}" for other, reason in reasons.items() if reason)


def check_interface(what: str, found: Any, stable: Any) -> None:
    """Raises ArtifactError where inputs, outputs or state of a model differ from stable's.

    Names, element types, ranks, fixed extents and which extents are equal to each other count; names of extents do not.
    """
    renamed: dict[int | str, int | str] = {}
    for side in ("inputs", "outputs"):
        _check_ports(what, side, getattr(found, side), getattr(stable, side), renamed)
    states = [tuple(pair)[:2] for pair in (found.states if hasattr(found, "states") else found.state)]
    wanted = [tuple(pair)[:2] for pair in stable.state]
    if states != wanted:
        raise _differs(what, "its state is", f"expected {wanted}, found {states}")


def _check_ports(
    what: str,
    side: str,
    found: Sequence[TensorSpec],
    stable: Sequence[TensorSpec],
    renamed: dict[int | str, int | str],
) -> None:
    names, wanted = [spec.name for spec in found], [spec.name for spec in stable]
    if sorted(names) != sorted(wanted):
        raise _differs(what, f"its {side} are", f"expected {', '.join(wanted)}, found {', '.join(names)}")
    by_name = {spec.name: spec for spec in found}
    for expected in stable:
        spec = by_name[expected.name]
        fits = spec.dtype == expected.dtype and len(spec.shape) == len(expected.shape)
        for extent, other in zip(expected.shape, spec.shape, strict=False):
            is_fixed = isinstance(extent, int) or isinstance(other, int)
            fits = fits and (extent == other if is_fixed else renamed.setdefault(extent, other) == other)
        if not fits:
            raise _differs(
                what, f"its {side[:-1]} {spec.name!r} is", f"expected {_text(expected)}, found {_text(spec)}"
            )


def _text(spec: TensorSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.shape))}]"


def _differs(what: str, port: str, message: str) -> ArtifactError:
    return ArtifactError(
        f"{port} not as stable has it: {message}",
        where=what,
        hint="A deployment replaces an artifact by one that takes and gives the same; start another deployment for it.",
    )
