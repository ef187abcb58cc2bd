"""A build again, as an artifact says that it was made: its options, and a search for the rewrite that went wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from aot import driver
from aot.artifacts import Artifact
from aot.cli.traced import interpreted_run
from aot.driver import Lowered
from aot.errors import AotError, OptionError
from aot.ir import Array
from aot.options import CompileOptions, DimRange
from aot.passes import Rewrites
from aot.pipeline import PIPELINE
from aot.quantization import Quantization

Tell = Callable[[str, str], None]
Run = Callable[[CompileOptions], tuple[dict[str, Array], Rewrites]]
"""Builds with these options and runs: the outputs, and what the passes did."""

_MOST_BUILDS = 60


def options_of(artifact: Artifact, target: str, quantization: Path | None) -> CompileOptions:
    """The options that the artifact was built with, for one of its targets.

    Raises OptionError where the artifact does not say, or was built with a record of quantization that is not given.
    """
    held = artifact.meta.get("options")
    if not isinstance(held, Mapping):
        raise OptionError("the artifact does not say with which options it was built", hint="Build it again.")
    known = {item.name for item in fields(CompileOptions)}
    chosen = {name: _tuples(value) for name, value in held.items() if name in known}
    chosen["dims"] = tuple(DimRange(*dim) for dim in chosen.get("dims", ()))
    digest, chosen["quantization"] = chosen.get("quantization"), None
    if quantization is not None:
        record = Quantization.open(quantization)
        if record.digest != digest:
            raise OptionError(
                "the artifact was built with another record of quantization, or with none", where=str(quantization),
                hint="Give the file that the build was given.",
            )  # fmt: skip
        chosen["quantization"] = record
    return CompileOptions(**{**chosen, "targets": (target,), "weights": "embedded", "strip_debug": False})


def _tuples(value: Any) -> Any:
    """Lists of JSON as the tuples that options hold."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def lowered_program(model: Path, options: CompileOptions, variant: str) -> Lowered | None:
    """What this aotc makes of a model before there is code; None where it has no such variant."""
    return next((each for each in driver.lower(model, options) if each.variant == variant), None)


def built_run(model: Path, variant: str, feed: Mapping[str, Array], threads: int | None) -> Run:
    """Builds whole artifacts, and runs them where their code runs."""

    def run(options: CompileOptions) -> tuple[dict[str, Array], Rewrites]:
        artifact = driver.compile(model, options=options)
        with artifact.load(threads=threads) as loaded:
            given = {spec.name: np.array(feed[spec.name]) for spec in loaded.inputs}
            outputs = {name: np.array(array) for name, array in loaded.run(given).items()}
        return outputs, artifact.report.rewrites.get(variant, Rewrites())

    return run


def lowered_run(model: Path, variant: str, feed: Mapping[str, Array]) -> Run:
    """Runs the kernels' meaning in the reference interpreter, without code."""

    def run(options: CompileOptions) -> tuple[dict[str, Array], Rewrites]:
        made = lowered_program(model, options, variant)
        if made is None:
            raise OptionError(
                f"this aotc makes no program {variant!r} of the model",
                hint="Give the model that the artifact was built from, or build it again.",
            )
        return interpreted_run(0, made.ordered, feed).outputs, made.rewrites

    return run


@dataclass(frozen=True, slots=True)
class Culprit:
    """What a search found. `kind`: "rewrite", "passes" (each of `passes` alone, left out, makes the outputs agree),
    "none" (no rewrite is to blame), "gone" (built again, the outputs agree), or "unknown".

    `number`: which rewrite it was, of `rewrites` in all. `confirmed`: without its rule the outputs agree.
    """

    kind: str
    text: str
    builds: int
    number: int = 0
    rewrites: int = 0
    pass_name: str = ""
    rule: str = ""
    where: str = ""
    confirmed: bool = False
    passes: tuple[str, ...] = ()


class _Stopped(Exception):
    """The builds that the search may make are used up."""


class Search:
    """Looks for the first rewrite with which the outputs differ, by halves."""

    def __init__(
        self, run: Run, options: CompileOptions, agree: Callable[[Mapping[str, Array]], bool], tell: Tell
    ) -> None:
        self.run, self.options, self.agree, self.tell = run, options, agree, tell
        self.builds = 0

    def trial(self, what: str, **changes: Any) -> tuple[bool | None, Rewrites]:
        """Whether the outputs agree, None where there is no build or run; and what the passes did."""
        if self.builds >= _MOST_BUILDS:
            raise _Stopped
        self.builds += 1
        self.tell("bisect", f"build {self.builds}: {what}")
        try:
            outputs, rewrites = self.run(replace(self.options, **changes))
        except AotError:
            return None, Rewrites()
        return self.agree(outputs), rewrites

    def find(self) -> Culprit:
        """The culprit; see Culprit."""
        try:
            return self._find()
        except _Stopped:
            return Culprit("unknown", f"{self.builds} builds did not find it", self.builds)

    def _find(self) -> Culprit:
        agrees, rewrites = self.trial("all rewrites")
        total = rewrites.fired
        if agrees is None:
            return Culprit("unknown", "the model cannot be built and run again here", self.builds)
        if agrees:
            text = "built again by this aotc, the model's outputs agree: another version, or another machine, made it"
            return Culprit("gone", text, self.builds)
        low, agrees = self._first_that_builds(total)
        if agrees is None:
            return self._passes("with few rewrites the model does not build")
        if not agrees:
            if low:
                return self._passes(f"the outputs differ with the fewest rewrites that build, {low}")
            text = "no rewrite is to blame: the outputs differ without any"
            return Culprit("none", text, self.builds, rewrites=total)
        high, last = total, rewrites
        while high - low > 1:
            middle = (low + high) // 2
            agrees, made = self.trial(f"{middle} of {total} rewrites", bisect=middle)
            if agrees:
                low = middle
            elif agrees is None:
                return self._passes(f"with {middle} of {total} rewrites the model does not build")
            else:
                high, last = middle, made
        if last.fired != high:
            _, last = self.trial(f"{high} of {total} rewrites", bisect=high)
        rule, _, where = last.last.partition(" at ")
        agrees, _ = self.trial(f"without {rule}", disable=(*self.options.disable, rule))
        found = Culprit(
            "rewrite", f"rewrite {high} of {total}, {last.last}, in pass {last.last_pass}", self.builds, high, total,
            last.last_pass, rule, where, bool(agrees),
        )  # fmt: skip
        if agrees:
            return found
        passes = self._passes("").passes
        text = f"{found.text}; without that rule the outputs differ too, so others do the same"
        if passes:
            text += f"; they agree without {' or without '.join(passes)}"
        return replace(found, text=text, passes=passes, builds=self.builds)

    def _first_that_builds(self, total: int) -> tuple[int, bool | None]:
        """The fewest rewrites, of powers of two up to half of them, with which the model builds, and how it runs."""
        count = 0
        while count <= total // 2:
            agrees, _ = self.trial(f"{count} rewrites", bisect=count)
            if agrees is not None:
                return count, agrees
            count = max(2 * count, 1)
        return count, None

    def _passes(self, why: str) -> Culprit:
        """Which passes make the outputs agree when they alone are left out."""
        found = []
        for name in dict.fromkeys(item.name for item in PIPELINE if item.takes == item.gives):
            if name in self.options.disable:
                continue
            agrees, _ = self.trial(f"without pass {name}", disable=(*self.options.disable, name))
            if agrees:
                found.append(name)
        if not found:
            return Culprit("unknown", f"{why}; no pass alone is to blame".removeprefix("; "), self.builds)
        text = f"the outputs agree without {' or without '.join(found)}"
        return Culprit("passes", f"{why}; {text}".removeprefix("; "), self.builds, passes=tuple(found))
