"""Tells an operator of what a stranger can cause at will: once a minute, not once a request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_MINUTE_MS: Final = 60_000


class LogThrottle:
    """Record of the events that one part of the hub has told of."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self._minutes: dict[str, int] = {}

    def is_due(self, event: str) -> bool:
        """Say whether the event was not told of within this minute. Who asks tells."""
        minute = self._clock_ms() // _MINUTE_MS
        was, self._minutes[event] = self._minutes.get(event, -1), minute
        return minute != was
