"""Finishes what no request is carrying forward: after a crash, a lost answer, a slow chain (security F1-F9, F20, F23).

One loop for every family, whose parts are a watch and the verbs of `settlement.family`. At start and then every
interval: takes over what belongs to processes that are gone; watches the networks (are blocks that outcomes rest on
still there, do the signers' nonces move?); looks at everything unfinished in batches and records what is proven, a page
in one commit. A row that cannot be worked on, or that breaks an invariant, is set aside, ever longer, and the operator
told; the others go on. It also opens the networks whose node did not answer yet, and asks all nodes from time to time
whether they are what they should be.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Submission, Verdict
from tollkeeper.core.settlement.states import State
from tollkeeper.hub.refusals import telling_faults
from tollkeeper.hub.settlement.family import PoolView, ProvenTransition, TermsT, Unexplained, expected_transfer
from tollkeeper.hub.settlement.orders import AccountT, PayloadT
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.hub.idempotency import forget_old_refusals
from tollkeeper.storage.hub.settlements import (
    Settlement,
    count_set_aside,
    has_orphans,
    list_broken,
    list_unfinished,
    set_aside,
    take_over,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.hub.settlement.family import NetworkWatch, SettlementParts
    from tollkeeper.hub.settlement.flow import SettlementFlow
    from tollkeeper.hub.settlement.orders import SettlingAccount

T = TypeVar("T")

_LOG = structlog.get_logger("tollkeeper.hub")
_PAGE_ROWS: Final = 500
_ASKED_AT_ONCE: Final = 32
CHECK_INTERVAL_SECONDS: Final = 15.0
FORGET_INTERVAL_SECONDS: Final = 3600.0
# A row that failed so often in a row is an alert of its own.
FAILURES_ALERT: Final = 5


@dataclass(eq=False)
class SettlementRecovery(Generic[AccountT, PayloadT, TermsT]):
    """Recovery of one family's networks, in the background. `start` it once, `close` it before the database."""

    _flow: SettlementFlow[AccountT, PayloadT, TermsT]
    watch: NetworkWatch[AccountT]
    accounts: Mapping[str, AccountT]
    _parts: SettlementParts
    _interval_seconds: float
    check_interval_seconds: float = CHECK_INTERVAL_SECONDS
    forget_interval_seconds: float = FORGET_INTERVAL_SECONDS
    set_aside: dict[str, int] = field(default_factory=dict)  # by network, as counted last
    _task: asyncio.Task[None] | None = None
    _last_check: float = -CHECK_INTERVAL_SECONDS
    _last_forgetting: float = -FORGET_INTERVAL_SECONDS

    def start(self) -> None:
        """Begin, with a first pass at once."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """End; a transition in flight is committed or not, as after a crash."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        idle_ms = 0
        while True:
            try:
                await self.complete(self._parts.clock_ms() - idle_ms)
            except (StorageError, RpcUnavailable) as error:
                _LOG.warning("recovery_waits", reason=str(error))
            except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
                _LOG.exception("recovery_failed")
            idle_ms = int(self._interval_seconds * 1000)
            await asyncio.sleep(self._interval_seconds)

    async def complete(self, before_ms: int) -> None:
        """Make one pass over everything unfinished and untouched since `before_ms`. Raises: StorageError."""
        is_due = await self._check_networks()
        database, membership = self._parts.database, self._parts.membership
        if await has_orphans(database, membership.id, membership.now_ms()):
            taken = await database.run(take_over(membership.id, membership.now_ms()))
            _LOG.info("settlements_taken_over", settlements=taken)
        views: dict[str, PoolView] = {}
        for account in self.accounts.values():
            if account.chain.asset is not None:
                view = await _on_network(account, self.watch.look(account, thoroughly=is_due))
                views |= {account.chain.network.name: view} if view is not None else {}
        after: tuple[int, str] | None = None
        while True:
            page = await list_unfinished(
                self._parts.database,
                self._parts.membership.id,
                before_ms=before_ms,
                now_ms=self._parts.clock_ms(),
                limit=_PAGE_ROWS,
                after=after,
            )
            if page.after is None:
                break
            after = page.after
            for settlement_id in page.unreadable:
                await self._set_aside(settlement_id)
            sound = await self._sound(page.settlements)
            for name, view in views.items():
                account = self.accounts[name]
                mine = [row for row in sound if row.key.network == name]
                if mine:
                    await _on_network(account, self._complete_rows(account, mine, view))
        await self._count_set_aside()
        await self._forget()

    async def _forget(self) -> None:
        """Now and then, what was kept of refusals for their callers' keys. A failure is tried again, and told."""
        now = asyncio.get_running_loop().time()
        if now < self._last_forgetting + self.forget_interval_seconds:
            return
        try:
            forgotten = await forget_old_refusals(self._parts.database, self._parts.clock_ms())
        except StorageError as error:
            _LOG.warning("refusals_not_forgotten", reason=str(error))
            return
        self._last_forgetting = now
        if forgotten:
            _LOG.info("refusals_forgotten", refusals=forgotten)

    async def _check_networks(self) -> bool:
        """Open networks whose node did not answer at the start; from time to time ask every node who it is.

        Returns whether it was time for that.
        """
        now = asyncio.get_running_loop().time()
        is_due = now >= self._last_check + self.check_interval_seconds
        if is_due:
            self._last_check = now
        for account in self.accounts.values():
            chain = account.chain
            if is_due or (chain.asset is None and not chain.is_refused):
                await _on_network(account, self._open_again(account))
        return is_due

    async def open(self, account: AccountT) -> None:
        """Open a network; one that was not open is used once its signers are ready.

        Raises: RpcUnavailable, StorageError.
        """
        was_open = account.chain.asset is not None
        await account.chain.open(lambda: self._flow.family.open(account))
        if was_open and account.chain.asset is not None:
            with suppress(RpcUnavailable):  # settlements go as they went before
                await account.look_around()

    async def open_first(self, account: AccountT) -> None:
        """Open a network at the start of the hub; one that cannot be opened, for whatever reason, is opened later."""
        chain = account.chain
        try:
            with telling_faults("network_not_understood", network=chain.network.name):
                await self.open(account)
        except (RpcUnavailable, StorageError) as error:
            chain.problem = str(error)
            _LOG.warning("network_not_reachable", network=chain.network.name, reason=str(error))

    async def _open_again(self, account: AccountT) -> None:
        with suppress(RpcUnavailable):  # `open` keeps why
            await self.open(account)
            await account.see_money()

    async def _complete_rows(self, account: AccountT, rows: list[Settlement], view: PoolView) -> None:
        pipeline = self._flow.pipeline
        findings = [pipeline.given_up(row) for row in rows if row.state is State.CLAIMED]
        signed = [row for row in rows if row.state is not State.CLAIMED]
        if signed:
            limit = asyncio.Semaphore(_ASKED_AT_ONCE)
            pairs = await self._look(account, signed)
            # What was seen is judged without a question, so that it needs no task of its own.
            judged = [await self._judge(account, *pair, view, limit) for pair in pairs if _is_seen(pair[1])]
            judged += await asyncio.gather(
                *(self._judge(account, *pair, view, limit) for pair in pairs if not _is_seen(pair[1]))
            )
            findings += [finding for finding in judged if finding is not None]
        await self._apply(findings)

    async def _look(self, account: AccountT, rows: list[Settlement]) -> list[tuple[Settlement, Sighting]]:
        """Return what is seen of each row.

        A row that cannot be looked for is found and set aside. Raises: RpcUnavailable.
        """
        try:
            depths = account.chain.config.depths
            sightings = await account.chain.look([expected_transfer(row, depths) for row in rows])
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
            _LOG.exception("settlements_not_understood", network=account.chain.network.name)
            if len(rows) == 1:
                await self._set_aside(rows[0].id)
                return []
            half = len(rows) // 2
            return [*await self._look(account, rows[:half]), *await self._look(account, rows[half:])]
        return list(zip(rows, sightings, strict=True))

    async def _judge(
        self, account: AccountT, row: Settlement, sighting: Sighting, view: PoolView, limit: asyncio.Semaphore
    ) -> ProvenTransition | None:
        """Return what became of one row; None if nothing did, or if the row had to be set aside."""
        pipeline = self._flow.pipeline
        try:
            if sighting.verdict is Verdict.ABSENT and self.watch.is_overdue(row, view):
                async with limit:
                    finding = await self._flow.family.find_out(account, row)
            else:
                submission = Submission.TAKEN if row.transaction_hash in view.taken else Submission.UNCLEAR
                finding = await pipeline.judge(account, row, submission, sighting)
        except Unexplained as error:
            _LOG.error("settlement_unexplained", settlement=row.id, reason=str(error))
            await self._set_aside(row.id)
        except RpcUnavailable as error:
            _LOG.warning("settlement_waits", settlement=row.id, reason=str(error))
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
            _LOG.exception("settlement_not_understood", settlement=row.id)
            await self._set_aside(row.id)
        else:
            return finding if finding.move is not None else None
        return None

    async def _apply(self, findings: list[ProvenTransition]) -> None:
        """Record a page in one commit; where that cannot be, row by row, so that the one at fault is found."""
        pipeline = self._flow.pipeline
        try:
            await pipeline.apply(findings)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
            for finding in findings:
                try:
                    await pipeline.apply([finding])
                except StorageError:
                    raise
                except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
                    _LOG.exception("settlement_not_understood", settlement=finding.settlement.id)
                    await self._set_aside(finding.settlement.id)

    async def _sound(self, rows: list[Settlement]) -> list[Settlement]:
        """Return the rows that break no invariant. Of the others nothing can be concluded: they are set aside.

        The operator is told at once, and not only when it happened again and again. What a request carries at this
        moment is not judged: its own next step is.
        """
        free = [row for row in rows if not self._flow.is_active(row.id)]
        parts = self._parts
        broken = await list_broken(parts.database, parts.membership.id, free, parts.clock_ms()) if free else {}
        for settlement_id, rule in broken.items():
            _LOG.error("settlement_breaks_an_invariant", settlement=settlement_id, rule=rule)
            await self._set_aside(settlement_id, FAILURES_ALERT)
        return [row for row in free if row.id not in broken]

    async def _set_aside(self, settlement_id: str, times: int = 1) -> None:
        """Leave a row alone for twice as long as the last time, and say so."""
        unit = set_aside(settlement_id, self._parts.membership.id, self._parts.clock_ms(), times)
        failures, seconds = await self._parts.database.run(unit)
        _LOG.error("settlement_set_aside", settlement=settlement_id, failures=failures, seconds=seconds)

    async def _count_set_aside(self) -> None:
        self.set_aside = await count_set_aside(self._parts.database, FAILURES_ALERT)
        for name in self.accounts:
            self._parts.metrics.set_aside.labels(name).set(self.set_aside.get(name, 0))


def _is_seen(sighting: Sighting) -> bool:
    return sighting.verdict is Verdict.TRANSFERRED


async def _on_network(account: SettlingAccount, work: Awaitable[T]) -> T | None:
    """Do one network's work; what goes wrong there holds up no other network. Raises: StorageError."""
    try:
        with telling_faults("network_not_understood", network=account.chain.network.name):
            return await work
    except RpcUnavailable as error:
        _LOG.warning("network_waits", network=account.chain.network.name, reason=str(error))
    return None
