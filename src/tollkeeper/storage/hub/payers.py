"""Limits of what a payer may have us sign: never more than it holds, little once it failed at our cost (security A-24).

A simulation judges one payment by itself. The payer's other payments under way will be mined before it, so the balance
that was read must cover all of them; else each but the first would cost gas and move nothing. A payer who takes the
money away after the simulation, or whose wallet changes its mind, is remembered for an hour, on the disk and by all
processes. `hub` decides which answer that becomes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.limits import PAYER_FAILURES_MAX, PAYER_UNDER_WAY_MAX
from tollkeeper.storage.engine.database import load_queries, unit_of_work

if TYPE_CHECKING:
    from tollkeeper.core.x402.version1 import PaymentKey
    from tollkeeper.storage.engine.database import Steps

_QUERIES: Final = load_queries("payers.sql")
_WINDOW_MINUTES: Final = 60
_MINUTE_MS: Final = 60_000


class Overdrawn(msgspec.Struct, frozen=True):
    """The balance does not cover what is under way and this: value by nonce of the former, the oldest first."""

    under_way: dict[str, int]


class Suspended(msgspec.Struct, frozen=True):
    """Too much failed at our cost, or is under way; ask again after so many seconds."""

    failures: int
    under_way: int
    seconds: int


@unit_of_work
def payer_obstacle(
    key: PaymentKey,
    value: int,
    balance: int | None,
    used: frozenset[str],
    now_ms: int,
    under_way_max: int = PAYER_UNDER_WAY_MAX,
) -> Steps[Overdrawn | Suspended | None]:
    """Return why `value` more may not be signed for the payer of `key` now, if anything.

    A `balance` of None is not judged, and one below nothing only beside others under way. Those whose nonces are `used`
    have been taken from it.
    """
    minute = now_ms // _MINUTE_MS
    *rows, found = yield _QUERIES.read_payer(
        network=key.network,
        payer=key.payer,
        asset=key.asset,
        limit=under_way_max + 1,
        after_minute=minute - _WINDOW_MINUTES,
    )
    under_way = {row["nonce"]: int(row["value"]) for row in rows if row["nonce"] not in {key.nonce, *used}}
    failures = found["failures"] or 0
    if failures and failures + len(under_way) >= PAYER_FAILURES_MAX:
        ends_ms = (found["first_minute"] + _WINDOW_MINUTES) * _MINUTE_MS
        # What is under way may yet succeed; what failed is forgotten by the hour.
        seconds = -(-(ends_ms - now_ms) // 1000) if failures >= PAYER_FAILURES_MAX else 2
        return Suspended(failures, len(under_way), max(1, seconds))
    if len(under_way) >= under_way_max:
        return Suspended(failures, len(under_way), 2)
    if balance is not None and (under_way or balance >= 0) and sum(under_way.values()) + value > balance:
        return Overdrawn(under_way)
    return None


@unit_of_work
def add_payer_failure(network: str, payer: str, now_ms: int) -> Steps[None]:
    """Remember that a transaction of ours for this payer was mined, and moved nothing."""
    minute = now_ms // _MINUTE_MS
    yield _QUERIES.drop_old_failures(network=network, after_minute=minute - _WINDOW_MINUTES)
    yield _QUERIES.add_failure(network=network, payer=payer, minute=minute)
