"""Refusals of the hub that say that nothing was started (contract 5.1, 5.2).

Tells an operator of what a stranger can cause at will: once a minute, not once a request.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.storage.engine.database import StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LOG: Final = structlog.get_logger("tollkeeper.hub")
RETRY_AFTER_SECONDS: Final = 2


def unavailable(reason: str) -> ApiError:
    """Return the 503 of a chain that cannot be asked: nothing was started."""
    return ApiError(
        Code.UNAVAILABLE,
        f"the network cannot be used at the moment: {reason}",
        headers={"Retry-After": str(RETRY_AFTER_SECONDS)},
    )


def without_gas_money() -> ApiError:
    """Return the 503 where no signer can pay for one more, beside what is under way."""
    return unavailable("the hub's accounts have no gas money on this network")


def nothing_moved(field: str) -> ApiError:
    """Return the 400 of a transfer of nothing, which would cost a fee all the same."""
    return ApiError(Code.INVALID_AMOUNT, f"{field} must be above zero", details={"field": field})


def conflict() -> ApiError:
    """Return the 409 of an idempotency key that came with another request before."""
    return ApiError(
        Code.CONFLICT, "this Idempotency-Key came with another request", details={"field": "Idempotency-Key"}
    )


@contextmanager
def telling_faults(event: str, **about: object) -> Iterator[None]:
    """Tell the operator of a fault of ours, which ends the block and nothing else: what comes behind does not wait.

    Raises: StorageError, RpcUnavailable.
    """
    try:
        yield
    except (StorageError, RpcUnavailable):
        raise
    except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
        _LOG.exception(event, **about)


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
