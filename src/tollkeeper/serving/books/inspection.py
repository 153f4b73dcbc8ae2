"""The books checked against their invariants: by `tollkeeper db check`, and every minute while serving (security 5).

A check reads one consistent state through a connection of its own, in a thread, and so holds up nobody. What does not
hold is logged and counted. A sale that breaks an invariant by itself is held until a check finds it mended
(`storage.ledger.quarantine`); nothing else is stopped, because anybody who could cause a difference could then stop
everything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

from tollkeeper.api import clock_ms
from tollkeeper.serving.process.machine import give_back_freed
from tollkeeper.settings.model import Role
from tollkeeper.storage.books.invariants import Bounds, forgotten, inspect, parked, unattended
from tollkeeper.storage.engine.database import MovedError, StorageError
from tollkeeper.storage.ledger.quarantine import held_sales, hold, release
from tollkeeper.storage.urls import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.settlement.reconciliation import Difference
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.books.invariants import Found
    from tollkeeper.storage.engine.database import Database

INTERVAL_SECONDS: Final = 60.0
# A check of large books reads all of them: it never uses more than this share of one core, nor of the time a half.
_PAUSE_FACTOR: Final = 30
_BROKEN_OFF_SECONDS: Final = 5.0  # mostly some hundredths; a sort is not broken off
_LOGGED_MAX: Final = 20
_LOG = structlog.get_logger("tollkeeper.serving.books.inspection")
REGISTRY: Final = CollectorRegistry()  # told by the process that checks, and by no other
_DIFFERENCES: Final = Gauge(
    "tollkeeper_differences", "Differences that the last check of the books found", ["rule"], registry=REGISTRY
)
_HELD: Final = Gauge(
    "tollkeeper_sales_held", "Sales that break an invariant: nothing is spent of them", registry=REGISTRY
)
_CHECKED: Final = Gauge(
    "tollkeeper_books_checked_timestamp_seconds",
    "When the books were last checked; before the first check, when the process was started",
    registry=REGISTRY,
)


def inspect_books(settings: Settings) -> list[Difference]:
    """Every invariant that the database of these settings breaks now. Blocks. Raises: StorageError."""
    try:
        return _inspect(settings)[0].differences
    except MovedError:  # a server was started, which is read beside from now on
        return _inspect(settings)[0].differences


def _inspect(settings: Settings, is_over: Callable[[], bool] | None = None) -> tuple[Found, frozenset[str]]:
    """The same with the sales that break one, and those that are held. `is_over` as of `open_snapshot`."""
    cap = settings.exposure
    bounds = Bounds(cap.payer.purchases, cap.payer.value_micro, cap.gate.purchases, cap.gate.value_micro)
    with open_snapshot(settings.database_url, is_over) as snapshot:
        found = inspect(snapshot, clock_ms(), bounds, is_shared=settings.role is Role.SERVE)
        if settings.role is not Role.HUB:
            found.differences.extend(parked(snapshot, clock_ms()))
        if settings.role is Role.GATEWAY:
            found.differences.extend(forgotten(snapshot, clock_ms()))
        else:
            found.differences.extend(unattended(snapshot, settings.networks))
        found.differences.sort()
        return found, held_sales(snapshot)


def _measured(settings: Settings, is_over: Callable[[], bool]) -> tuple[Found, frozenset[str], float]:
    """The same, and how many seconds of a core it used: what it waited for one, or for the disk, is nobody's work."""
    begun = time.thread_time()
    try:
        found, held = _inspect(settings, is_over)
    finally:
        give_back_freed()  # some megabytes, which nobody else would use until the next check
    return found, held, time.thread_time() - begun


def report(differences: list[Difference]) -> None:
    """Log lines, the first ones in full, and the metric."""
    _DIFFERENCES.clear()
    for rule, count in Counter(difference.rule for difference in differences).items():
        _DIFFERENCES.labels(rule).set(count)
    _CHECKED.set(time.time())
    for difference in differences[:_LOGGED_MAX]:
        _LOG.error("books_differ", rule=difference.rule, subject=difference.subject, found=difference.found)
    if len(differences) > _LOGGED_MAX:
        _LOG.error("books_differ_more", differences=len(differences), remedy="run `tollkeeper db check`")


async def _hold_sales(database: Database, broken: dict[str, str], held: frozenset[str]) -> None:
    """Nothing is spent of a sale that is broken; what is in order again may be spent. Raises: StorageError."""
    for purchase_id in await hold(database, broken, clock_ms()):
        _LOG.error("sale_held", purchase_id=purchase_id, rule=broken[purchase_id])
    mended = sorted(held - broken.keys())
    for purchase_id in await release(database, mended, clock_ms()):
        _LOG.info("sale_released", purchase_id=purchase_id)
    _HELD.set(len(broken))


async def keep_inspecting(settings: Settings, database: Database, interval_seconds: float = INTERVAL_SECONDS) -> None:
    """Checks the books every minute, more rarely where that takes long, and holds what is broken, until cancelled."""
    pause = interval_seconds
    _CHECKED.set(time.time())
    over, checking = threading.Event(), asyncio.get_running_loop().create_future()
    checking.set_result(None)
    try:
        while True:
            await asyncio.sleep(pause)
            begun, used_seconds = time.monotonic(), 0.0
            try:
                checking = asyncio.ensure_future(asyncio.to_thread(_measured, settings, over.is_set))
                found, held, used_seconds = await asyncio.shield(checking)
                report(found.differences)
                await _hold_sales(database, found.sales, held)
            except StorageError as error:
                _LOG.warning("books_not_checked", reason=error.message)
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("books_not_checked")
            pause = max(interval_seconds, _PAUSE_FACTOR * used_seconds, time.monotonic() - begun)
    finally:
        over.set()  # no program ends before its threads, and a check of large books takes minutes
        # While anybody reads the file whoever closes it cannot fold its log into it, and leaves two files behind.
        await asyncio.wait([checking], timeout=_BROKEN_OFF_SECONDS)
