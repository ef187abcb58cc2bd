"""Fixtures of the serving tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from aot.runtime.serving import Deployment


class Deployments:
    """Makes deployments and closes them; keeps the events of all."""

    def __init__(self) -> None:
        self.made: list[Deployment] = []
        self.events: list[object] = []

    def __call__(self, *arguments: object, **options: object) -> Deployment:
        options.setdefault("load_options", {"threads": 1})
        options.setdefault("on_event", self.events.append)
        made = Deployment(*arguments, **options)  # type: ignore[arg-type]
        self.made.append(made)
        return made

    def kinds(self) -> list[str]:
        """The kinds of the events, without those of single requests."""
        return [event.kind for event in self.events if event.kind not in ("fallback", "refused")]  # type: ignore[attr-defined]


@pytest.fixture
def deploy() -> Iterator[Deployments]:
    made = Deployments()
    yield made
    for deployment in made.made:
        deployment.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name == "aot-serving-turn"]
