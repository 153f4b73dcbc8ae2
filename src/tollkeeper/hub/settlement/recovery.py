"""Finishes what no request is carrying forward: after a crash, a lost answer, a slow chain (security F1-F9, F20, F23).

At start and then every interval: takes over what belongs to processes that are gone; looks whether blocks that
outcomes rest on are still there; keeps each signer's nonces moving; reads the receipts of everything unfinished in
batches and records what is proven, a page in one commit. A row that cannot be worked on, or that breaks an invariant,
is set aside, ever longer, and the operator told; the others go on. It also opens the networks whose node did not
answer yet, and asks all nodes from time to time whether they are what they should be.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from tollkeeper.chains.evm.chain import Submission
from tollkeeper.chains.evm.receipts import Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.settlement.proof import EXPIRY_MARGIN_SECONDS
from tollkeeper.core.settlement.states import State
from tollkeeper.hub.evm.nonce_lanes import LaneKeeper, LaneView
from tollkeeper.hub.settlement.findings import (
    OVERDUE_SECONDS,
    ProvenTransition,
    Unexplained,
    expected_transfer,
    valid_before,
)
from tollkeeper.hub.settlement.reorganisations import ReorganisationWatch
from tollkeeper.storage import StorageError
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
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.chains.evm.receipts import Sighting
    from tollkeeper.hub.accounts import AnyAccount, SettlingAccount
    from tollkeeper.hub.membership import Membership
    from tollkeeper.hub.metrics import HubMetrics
    from tollkeeper.hub.settlement.flow import Settlements
    from tollkeeper.storage.engine.database import Database

T = TypeVar("T")

_LOG = structlog.get_logger("tollkeeper.hub")
_PAGE_ROWS: Final = 500
_ASKED_AT_ONCE: Final = 32
CHECK_INTERVAL_SECONDS: Final = 15.0
FORGET_INTERVAL_SECONDS: Final = 3600.0
# A row that failed so often in a row is an alert of its own.
FAILURES_ALERT: Final = 5


class SettlementRecovery:
    """The background task. `start` it once, `close` it before the database."""

    def __init__(  # noqa: PLR0917 - the parts that it sets to work
        self,
        database: Database,
        settlements: Settlements,
        accounts: Mapping[str, Any],  # of the settlements' family
        clock_ms: Callable[[], int],
        membership: Membership,
        metrics: HubMetrics,
        interval_seconds: float,
    ) -> None:
        self._database = database
        self.settlements = settlements
        self.accounts = accounts
        self._clock_ms = clock_ms
        self._membership = membership
        self._metrics = metrics
        self._interval_seconds = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self.lanes = LaneKeeper(database, clock_ms, membership, metrics, settlements.is_active)
        self._watch = ReorganisationWatch(database, clock_ms, membership, metrics)
        self.check_interval_seconds = CHECK_INTERVAL_SECONDS
        self._last_check = -CHECK_INTERVAL_SECONDS
        self.forget_interval_seconds = FORGET_INTERVAL_SECONDS
        self._last_forgetting = -FORGET_INTERVAL_SECONDS
        self.set_aside: dict[str, int] = {}  # by network, as counted last

    def start(self) -> None:
        """Begins, with a first pass at once."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Ends; a transition in flight is committed or not, as after a crash."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        idle_ms = 0
        while True:
            try:
                await self.complete(self._clock_ms() - idle_ms)
            except (StorageError, RpcUnavailable) as error:
                _LOG.warning("completer_waits", reason=str(error))
            except Exception:  # noqa: BLE001 - no fault of ours may end the only task that finishes payments
                _LOG.exception("completer_failed")
            idle_ms = int(self._interval_seconds * 1000)
            await asyncio.sleep(self._interval_seconds)

    async def complete(self, before_ms: int) -> None:
        """One pass over everything unfinished and untouched since `before_ms`. Raises: StorageError."""
        is_due = await self._check_networks()
        if await has_orphans(self._database, self._membership.id, self._clock_ms()):
            taken = await self._database.run(take_over(self._membership.id, self._clock_ms()))
            _LOG.info("settlements_taken_over", settlements=taken)
        views: dict[str, LaneView] = {}
        for account in self.accounts.values():
            if account.chain.asset is not None:
                view = await _on_network(account, self._see_network(account, thoroughly=is_due))
                views |= {account.chain.network.name: view} if view is not None else {}
        after: tuple[int, str] | None = None
        while True:
            page = await list_unfinished(
                self._database,
                self._membership.id,
                before_ms=before_ms,
                now_ms=self._clock_ms(),
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
            forgotten = await forget_old_refusals(self._database, self._clock_ms())
        except StorageError as error:
            _LOG.warning("refusals_not_forgotten", reason=str(error))
            return
        self._last_forgetting = now
        if forgotten:
            _LOG.info("refusals_forgotten", refusals=forgotten)

    async def _see_network(self, account: SettlingAccount, *, thoroughly: bool) -> LaneView:
        """Watches blocks and keeps lanes. Raises: RpcUnavailable, StorageError."""
        head = await account.chain.latest_block()
        try:
            await self._watch.look(account, head.number, thoroughly=thoroughly)
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - lanes and rows do not wait for it
            _LOG.exception("blocks_not_understood", network=account.chain.network.name)
        view = LaneView(chain_seconds=head.timestamp_seconds)
        for relayer in account.signers.relayers:
            try:
                seen = await self.lanes.move(account, relayer)
            except (StorageError, RpcUnavailable):
                raise
            except Exception:  # noqa: BLE001 - a poison lane: what lies in it is looked at row by row all the same
                _LOG.exception("lane_not_understood", network=account.chain.network.name, signer=relayer.signer.address)
                continue
            view.waiting |= seen.waiting
            view.taken |= seen.taken
        return view

    async def _check_networks(self) -> bool:
        """Opens networks whose node did not answer at the start; from time to time asks every node who it is again.

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

    async def _open_again(self, account: SettlingAccount) -> None:
        with suppress(RpcUnavailable):  # `open` keeps why
            await open_account(account, self.settlements)
            await account.see_money()

    async def _complete_rows(self, account: SettlingAccount, rows: list[Settlement], view: LaneView) -> None:
        pipeline = self.settlements.pipeline
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

    async def _look(self, account: SettlingAccount, rows: list[Settlement]) -> list[tuple[Settlement, Sighting]]:
        """Return what is seen of each row.

        A row that cannot be looked for is found and set aside. Raises: RpcUnavailable.
        """
        chain = account.chain
        try:
            sightings = await chain.look([expected_transfer(row, chain.config.depths) for row in rows])
        except (StorageError, RpcUnavailable):
            raise
        except Exception:  # noqa: BLE001 - one of them, or what a node shows of it
            _LOG.exception("settlements_not_understood", network=chain.network.name)
            if len(rows) == 1:
                await self._set_aside(rows[0].id)
                return []
            half = len(rows) // 2
            return [*await self._look(account, rows[:half]), *await self._look(account, rows[half:])]
        return list(zip(rows, sightings, strict=True))

    async def _judge(
        self, account: SettlingAccount, row: Settlement, sighting: Sighting, view: LaneView, limit: asyncio.Semaphore
    ) -> ProvenTransition | None:
        """Return what became of one row; None if nothing did, or if the row had to be set aside."""
        pipeline = self.settlements.pipeline
        try:
            if sighting.verdict is Verdict.ABSENT and self._needs_a_closer_look(row, view):
                async with limit:
                    finding = await pipeline.recovery.find_out(account, row)
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
        except Exception:  # noqa: BLE001 - a poison row: the others go on
            _LOG.exception("settlement_not_understood", settlement=row.id)
            await self._set_aside(row.id)
        else:
            return finding if finding.move is not None else None
        return None

    def _needs_a_closer_look(self, row: Settlement, view: LaneView) -> bool:
        """Is its transaction no longer waiting, or its authorization over? Raises: as `valid_before`.

        By the chain's time, or for long by ours: a chain's time is one node's word.
        """
        if row.transaction_hash not in view.waiting:
            return True
        end_seconds = valid_before(row)
        is_overdue = end_seconds + OVERDUE_SECONDS <= self._clock_ms() // 1000
        return is_overdue or end_seconds + EXPIRY_MARGIN_SECONDS <= view.chain_seconds

    async def _apply(self, findings: list[ProvenTransition]) -> None:
        """Records a page in one commit; where that cannot be, row by row, so that the one at fault is found."""
        pipeline = self.settlements.pipeline
        try:
            await pipeline.apply(findings)
        except StorageError:
            raise
        except Exception:  # noqa: BLE001 - one of them
            for finding in findings:
                try:
                    await pipeline.apply([finding])
                except StorageError:
                    raise
                except Exception:  # noqa: BLE001 - this one
                    _LOG.exception("settlement_not_understood", settlement=finding.settlement.id)
                    await self._set_aside(finding.settlement.id)

    async def _sound(self, rows: list[Settlement]) -> list[Settlement]:
        """Those of these rows that break no invariant. Of the others nothing can be concluded: they are set aside.

        The operator is told at once, and not only when it happened again and again. What a request carries at this
        moment is not judged: its own next step is.
        """
        free = [row for row in rows if not self.settlements.is_active(row.id)]
        broken = await list_broken(self._database, self._membership.id, free, self._clock_ms()) if free else {}
        for settlement_id, rule in broken.items():
            _LOG.error("settlement_breaks_an_invariant", settlement=settlement_id, rule=rule)
            await self._set_aside(settlement_id, FAILURES_ALERT)
        return [row for row in free if row.id not in broken]

    async def _set_aside(self, settlement_id: str, times: int = 1) -> None:
        """Leaves a row alone for twice as long as the last time, and says so."""
        unit = set_aside(settlement_id, self._membership.id, self._clock_ms(), times)
        failures, seconds = await self._database.run(unit)
        _LOG.error("settlement_set_aside", settlement=settlement_id, failures=failures, seconds=seconds)

    async def _count_set_aside(self) -> None:
        self.set_aside = await count_set_aside(self._database, FAILURES_ALERT)
        for name in self.accounts:
            self._metrics.set_aside.labels(name).set(self.set_aside.get(name, 0))


def _is_seen(sighting: Sighting) -> bool:
    return sighting.verdict is Verdict.TRANSFERRED


async def _on_network(account: SettlingAccount, work: Awaitable[T]) -> T | None:
    """Does one network's work; what goes wrong there holds up no other network. Raises: StorageError."""
    try:
        return await work
    except RpcUnavailable as error:
        _LOG.warning("network_waits", network=account.chain.network.name, reason=str(error))
    except StorageError:
        raise
    except Exception:  # noqa: BLE001 - no fault of ours, and nothing that a node shows, may stop the other networks
        _LOG.exception("network_not_understood", network=account.chain.network.name)
    return None


async def open_account(account: AnyAccount, settlements: Settlements) -> None:
    """Opens a network and, where it was not open, its signers' lanes. Raises: RpcUnavailable, StorageError."""
    chain = account.chain
    was_open = chain.asset is not None
    await chain.open()
    if was_open:
        if chain.asset is not None:
            with suppress(RpcUnavailable):  # settlements go as they went before
                await account.look_around()
    elif chain.asset is not None:
        # It is not used before its nonces are known, and whom a payment may have called.
        asset, chain.asset = chain.asset, None
        chain.problem = "its signers' nonces are not known yet"
        await settlements.open_lanes(account)
        await account.look_around()
        chain.asset, chain.problem = asset, ""
