"""How a demo tells its story: numbered steps, each checked; the first check that fails ends it by name."""

from __future__ import annotations

import json
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_LINE_MAX: Final = 160


class StepFailed(Exception):  # noqa: N818 - what happened, in the story's words
    """A check of a step was not met."""


class Narrator:
    """Tells the steps to `say`. `checks` counts what was checked."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self.steps = 0
        self.checks = 0
        self.current = "start"

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """One step of the story."""
        self.steps += 1
        self.current = title
        self._say(f"\n{self.steps}. {title}")
        yield

    def tell(self, text: str) -> None:
        """Something worth reading; of a long line its beginning."""
        self._say("\n".join(f"   {_shortened(line)}" for line in text.splitlines()))

    def show(self, value: object) -> None:
        """A JSON value, as it is."""
        self.tell(json.dumps(value, indent=2))

    def check(self, what: str, *, expected: Any, actual: Any) -> None:  # noqa: ANN401 - anything comparable
        """Raises: StepFailed unless both are equal."""
        self.checks += 1
        if expected != actual:
            raise StepFailed(f"{what}: expected {expected!r}, got {actual!r}")
        self.tell(f"✓ {what}: {actual}")

    @property
    def seconds(self) -> float:
        """Since the story began."""
        return time.monotonic() - self._began


def _shortened(line: str) -> str:
    return line if len(line) <= _LINE_MAX else f"{line[:_LINE_MAX]}... ({len(line)} characters)"
