"""Finishes what no request is carrying forward: after a crash, a lost answer, a slow chain (security F1-F5, F9).

At start and then every interval it takes the unfinished rows that nobody has touched lately: sends the stored bytes
again, looks for receipts in one batch per network, and records what is proven. It also opens the networks whose node
did not answer yet, asks all nodes from time to time whether they are what they should be, and keeps each signer's
nonces moving: a stored transaction that the chain still lacks is sent again, whatever became of its row, because
everything signed later waits behind it. Several completers do no harm, because each transition is taken once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.evm import Submission
from tollkeeper.chains.receipts import Sighting, Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.transactions import State
from tollkeeper.hub.nonces import NonceKeeper
from tollkeeper.hub.pipeline import expected_transfer
from tollkeeper.storage import StorageError
from tollkeeper.storage.hub import Settlement, list_unfinished, name_transaction, raws_of_settlement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tollkeeper.hub.accounts import Account
    from tollkeeper.hub.settlement import Settlements
    from tollkeeper.storage.database import Database

_LOG = structlog.get_logger("tollkeeper.hub")
_PAGE_ROWS: Final = 500
CHECK_INTERVAL_SECONDS: Final = 15.0


class Completer:
    """The background task. `start` it once, `close` it before the database."""

    def __init__(
        self,
        database: Database,
        settlements: Settlements,
        accounts: Mapping[str, Account],
        clock_ms: Callable[[], int],
        interval_seconds: float,
    ) -> None:
        self._database = database
        self._settlements = settlements
        self._accounts = accounts
        self._clock_ms = clock_ms
        self._interval_seconds = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self.nonces = NonceKeeper(database, clock_ms)
        self.check_interval_seconds = CHECK_INTERVAL_SECONDS
        self._last_check = -CHECK_INTERVAL_SECONDS

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
        await self._check_networks()
        after: Settlement | None = None
        while page := await list_unfinished(self._database, before_ms, _PAGE_ROWS, after):
            after = page[-1]
            for name, account in self._accounts.items():
                mine = [row for row in page if row.key.network == name and not self._settlements.is_active(row.id)]
                if account.chain.asset is not None:
                    await _on_network(account, self._complete_rows(account, mine))
        for account in self._accounts.values():
            if account.chain.asset is not None:
                await _on_network(account, self.nonces.move(account))

    async def _check_networks(self) -> None:
        """Opens networks whose node did not answer at the start; from time to time asks every node who it is again."""
        now = asyncio.get_running_loop().time()
        is_due = now >= self._last_check + self.check_interval_seconds
        if is_due:
            self._last_check = now
        for account in self._accounts.values():
            chain = account.chain
            if is_due or (chain.asset is None and not chain.is_refused):
                with suppress(RpcUnavailable):
                    await open_account(account, self._settlements)
                    await _see_balance(account)

    async def _complete_rows(self, account: Account, rows: list[Settlement]) -> None:
        chain = account.chain
        signed = []
        for row in rows:
            if row.state is State.CLAIMED:  # never signed: nobody is charged for a call given up long ago
                await self._settlements.pipeline.give_up(row)
            else:
                signed.append(row)
        if not signed:
            return
        sightings = await chain.look([expected_transfer(row) for row in signed])
        for row, sighting in zip(signed, sightings, strict=True):
            try:
                await self._complete_row(account, row, sighting)
            except (RpcUnavailable, StorageError):
                raise
            except Exception:  # noqa: BLE001 - a poison row: the others go on
                _LOG.exception("settlement_parked", settlement=row.id)

    async def _complete_row(self, account: Account, row: Settlement, sighting: Sighting) -> None:
        chain, pipeline = account.chain, self._settlements.pipeline
        submission = Submission.UNCLEAR
        if sighting.verdict is Verdict.ABSENT:
            raws = await raws_of_settlement(self._database, row)
            if len(raws) > 1:
                row, sighting = await self._sight_others(account, row, sighting)
            if raws and sighting.verdict is Verdict.ABSENT:
                submission = await chain.submit(raws[0].raw, raws[0].hash)
        advance = await pipeline.record(chain, row, submission, sighting)
        if sighting.verdict is Verdict.ABSENT and advance.settlement.state in {State.SIGNED, State.BROADCAST}:
            await pipeline.expire(chain, advance.settlement)

    async def _sight_others(self, account: Account, row: Settlement, absent: Sighting) -> tuple[Settlement, Sighting]:
        """What the chain shows of a row's other transactions: one that was replaced may have been mined after all."""
        for raw in await raws_of_settlement(self._database, row):
            if raw.hash == row.transaction_hash:
                continue
            (sighting,) = await account.chain.look([replace(expected_transfer(row), transaction_hash=raw.hash)])
            if sighting.verdict is not Verdict.ABSENT:
                named = await self._database.run(name_transaction(row, raw.hash, self._clock_ms()))
                return (row, absent) if named is None else (named, sighting)
        return row, absent


async def _on_network(account: Account, work: Awaitable[None]) -> None:
    """Does one network's work; a node that does not answer holds up no other network."""
    try:
        await work
    except RpcUnavailable as error:
        _LOG.warning("network_waits", network=account.chain.network.name, reason=str(error))


async def _see_balance(account: Account) -> None:
    """Looks at the signer's money also while nobody settles. Raises: RpcUnavailable."""
    if account.chain.asset is not None:
        block = await account.chain.latest_block()
        fees = await account.chain.fees(account.signer.address, block.base_fee_wei)
        account.gas.see_balance(fees.signer_balance, fees.max_fee_per_gas)


async def open_account(account: Account, settlements: Settlements) -> None:
    """Opens a network and, where it was not open, its signer's lane. Raises: RpcUnavailable, StorageError."""
    was_open = account.chain.asset is not None
    await account.chain.open()
    if account.chain.asset is not None and not was_open:
        try:
            await settlements.open_lane(account)
        except RpcUnavailable:
            account.chain.asset = None  # not usable before its nonces are known
            raise
