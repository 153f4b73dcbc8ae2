"""Messages to a caller and to the operator when a tenant has its full share (`core.shares`, A-58)."""

from __future__ import annotations

import time
from typing import Final

import structlog

from tollkeeper.edge.shared.nothing_sent import NothingSentError

_QUIET_SECONDS: Final = 10.0  # between two warnings

log = structlog.get_logger("tollkeeper.edge")


class Crowding:
    """Tells the operator once in a while, and each caller."""

    def __init__(self) -> None:
        self._quiet_until_seconds = 0.0

    def refusal(self, what: str, tenant: str) -> NothingSentError:
        """Make the 503 of a call that was not begun; `what` there is too much of."""
        if (now := time.monotonic()) >= self._quiet_until_seconds:
            self._quiet_until_seconds = now + _QUIET_SECONDS
            log.warning("share_used_up", of=what, tenant=tenant)
        message = f"who sells here has as many {what} under way as are left to all others; send the same again later"
        return NothingSentError(message)
