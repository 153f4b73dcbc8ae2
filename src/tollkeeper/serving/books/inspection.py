"""The books checked against their invariants: by `tollkeeper db check`, and every minute while serving (security 5).

A check reads one consistent state through a connection of its own, in a thread, and so holds up nobody. Every minute
one program of those that share a database looks at what changed since the last check, and a minute or two before that;
once a day, and after a check that found something, at everything. After a check calls are counted by their days.

What does not hold is logged and counted. A sale that breaks an invariant by itself is held until a check finds it
mended (`storage.ledger.quarantine`); nothing else is stopped, because anybody who could cause a difference could then
stop everything.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, Gauge

from tollkeeper.api import PROCESS_MARK, clock_ms
from tollkeeper.serving.process.machine import give_back_freed
from tollkeeper.settings.model import Role
from tollkeeper.storage.books.checks import LastCheck, last_checked_ms, note_turn, take_turn
from tollkeeper.storage.books.invariants import EVERYTHING, Bounds, Extent, forgotten, inspect, parked, unattended
from tollkeeper.storage.engine.database import MovedError, StorageError
from tollkeeper.storage.ledger.call_days import keep_days
from tollkeeper.storage.ledger.quarantine import held_sales, hold, release
from tollkeeper.storage.urls import open_snapshot, server_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.settlement.reconciliation import Difference
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.books.invariants import Found
    from tollkeeper.storage.engine.database import Database

INTERVAL_SECONDS: Final = 60.0
# A check of large books reads all of them: it never uses more than this share of one core, nor of the time a half.
_PAUSE_FACTOR: Final = 30
_ALL_EVERY_MS: Final = 86_400_000
# Looked at again: rows whose commit came after the last check though they name a time before, by a clock that is late;
# and what a rule leaves a minute's time.
_AGAIN_MS: Final = 120_000
_SILENT_SECONDS: Final = 60.0  # after which a check that is late is another program's
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


def inspect_books(settings: Settings, extent: Extent = EVERYTHING) -> list[Difference]:
    """Every invariant that the database of these settings breaks now. Blocks. Raises: StorageError."""
    try:
        return _inspect(settings, extent)[0].differences
    except MovedError:  # a server was started, which is read beside from now on
        return _inspect(settings, extent)[0].differences


def _inspect(
    settings: Settings, extent: Extent, is_over: Callable[[], bool] | None = None
) -> tuple[Found, frozenset[str]]:
    """The same with the sales that break one; and those that are held, where everything is looked at.

    `is_over` as of `open_snapshot`.
    """
    cap = settings.exposure
    bounds = Bounds(cap.payer.purchases, cap.payer.value_micro, cap.gate.purchases, cap.gate.value_micro)
    with open_snapshot(settings.database_url, is_over) as snapshot:
        found = inspect(snapshot, clock_ms(), bounds, is_shared=settings.role is Role.SERVE, extent=extent)
        if settings.role is not Role.HUB:
            found.differences.extend(parked(snapshot, clock_ms()))
        if settings.role is Role.GATEWAY:
            found.differences.extend(forgotten(snapshot, clock_ms()))
        else:
            found.differences.extend(unattended(snapshot, settings.networks))
        found.differences.sort()
        return found, frozenset() if extent.since_ms else held_sales(snapshot)


def _measured(settings: Settings, extent: Extent, is_over: Callable[[], bool]) -> tuple[Found, frozenset[str], float]:
    """The same, and how many seconds of a core it used: what it waited for one, or for the disk, is nobody's work."""
    begun = time.thread_time()
    try:
        found, held = _inspect(settings, extent, is_over)
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


class Checking:
    """Checks of the books, by turns with the other programs of the same role on the same database."""

    def __init__(self, settings: Settings, database: Database, interval_seconds: float) -> None:
        self._settings = settings
        self._database = database
        self._interval_seconds = interval_seconds
        self._is_alone = server_of(settings.database_url) is None
        self._over = threading.Event()
        self._reading: asyncio.Future[tuple[Found, frozenset[str], float]] | None = None

    async def check(self) -> float:
        """Check the books if it is our turn; return how long to pause. Raises: StorageError."""
        begun, last = time.monotonic(), await self._turn(self._interval_seconds)
        if last is None:
            _DIFFERENCES.clear()  # whoever checked tells
            _CHECKED.set(await self._database.run(last_checked_ms(self._settings.role)) / 1000)
            return self._interval_seconds
        begun_ms = clock_ms()
        is_due = not 0 <= begun_ms - last.all_ms < _ALL_EVERY_MS
        extent = EVERYTHING if is_due else Extent(max(1, last.changes_ms - _AGAIN_MS))
        found, held, used_seconds = await self._read(extent)
        report(found.differences)
        await _hold_sales(self._database, found.sales, held)
        pause = max(self._interval_seconds, _PAUSE_FACTOR * used_seconds, time.monotonic() - begun)
        all_ms = 0 if found.differences else begun_ms if is_due else last.all_ms
        made = LastCheck(begun_ms, all_ms)
        await self._database.run(note_turn(self._settings.role, PROCESS_MARK, made, self._until_ms(pause)))
        if self._settings.role is not Role.HUB:
            await keep_days(self._database, self._settings.kept.journal_days)
        return pause

    async def _turn(self, seconds: float) -> LastCheck | None:
        role, until_ms = self._settings.role, self._until_ms(seconds)
        return await self._database.run(take_turn(role, PROCESS_MARK, until_ms, clock_ms(), is_alone=self._is_alone))

    def _until_ms(self, seconds: float) -> int:
        return clock_ms() + int((seconds + _SILENT_SECONDS) * 1000)

    async def _read(self, extent: Extent) -> tuple[Found, frozenset[str], float]:
        """Have a thread read, and the turn until it has."""
        is_over = self._over.is_set
        reading = asyncio.ensure_future(asyncio.to_thread(_measured, self._settings, extent, is_over))
        self._reading = reading
        while not (await asyncio.wait([reading], timeout=_SILENT_SECONDS / 2))[0]:
            await self._turn(_SILENT_SECONDS)
        return await reading

    async def end(self) -> None:
        """Break off what is read: no program ends before its threads, and a check of large books takes minutes."""
        self._over.set()
        # While anybody reads the file whoever closes it cannot fold its log into it, and leaves two files behind.
        if self._reading is not None:
            await asyncio.wait([self._reading], timeout=_BROKEN_OFF_SECONDS)


async def keep_inspecting(settings: Settings, database: Database, interval_seconds: float = INTERVAL_SECONDS) -> None:
    """Check the books every minute, more rarely where that takes long, and hold what is broken, until cancelled."""
    pause = interval_seconds
    _CHECKED.set(time.time())
    checking = Checking(settings, database, interval_seconds)
    try:
        while True:
            await asyncio.sleep(pause)
            pause = interval_seconds
            try:
                pause = await checking.check()
            except StorageError as error:
                _LOG.warning("books_not_checked", reason=error.message)
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("books_not_checked")
    finally:
        await checking.end()
