"""A database that fails at the worst moments: nobody is told a failure, and nothing is lost (security F3, F13, F14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, TypeVar

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import held
from tests.faults.client import pay
from tests.gateway.composed import settings_for
from tests.hub.faulty_database import FaultyDatabase, Moment
from tests.hub.hub_under_test import HubUnderTest, new_payment, run_hub, serving
from tollkeeper.serving import composition
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import Database, Row, Statement, StorageError, Unit
from tollkeeper.storage.urls import open_database

T = TypeVar("T")
LATE_SECONDS: Final = 2.2  # a start waits for two


class FailingDatabase:
    """A real database whose n-th unit fails: before it ran, or after it was committed."""

    def __init__(self, real: Database) -> None:
        self.real = real
        self.fail_at = 0
        self.after_commit = False

    async def read(self, statement: Statement, *, is_short: bool = False, tenant: str | None = None) -> list[Row]:
        """As the real one."""
        return await self.real.read(statement, is_short=is_short, tenant=tenant)

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """As the real one, but for the unit that fails."""
        self.fail_at -= 1
        if self.fail_at == 0 and not self.after_commit:
            raise StorageError("the disk is full")
        result = await self.real.run(unit, is_short=is_short)
        if self.fail_at == 0:
            raise StorageError("the answer of the disk was lost")
        return result

    async def close(self) -> None:
        """As the real one."""
        await self.real.close()


@asynccontextmanager
async def failing_hub(directory: Path, chain: ChainUnderTest) -> AsyncIterator[tuple[HubUnderTest, FailingDatabase]]:
    wrapped: list[FailingDatabase] = []

    def wrap(database: Database) -> FailingDatabase:
        wrapped.append(FailingDatabase(database))
        return wrapped[0]

    async with run_hub(directory, chain, wrap_database=wrap) as hub:
        await hub.complete()  # the pass of the start is over, too: it writes nothing more
        yield hub, wrapped[0]


@pytest.mark.parametrize("confirm", [True, False])
@pytest.mark.parametrize("after_commit", [False, True])
@pytest.mark.parametrize("unit", [1, 2])
async def test_a_settlement_whose_record_failed_is_pending_and_then_settled_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, *, unit: int, after_commit: bool, confirm: bool
) -> None:
    payment = new_payment(embedded_chain)
    before = embedded_chain.balance(embedded_chain.wallets.owner.address)
    async with failing_hub(tmp_path, embedded_chain) as (hub, database):
        database.fail_at, database.after_commit = unit, after_commit
        answer = await hub.settle(payment, key="claim.1", confirm=confirm)
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
        await hub.complete()
        await hub.complete()
        again = await hub.settle(payment, key="claim.1", confirm=confirm)
        assert again.body["success"] is True
        assert (await hub.settle(payment)).reason == "duplicate_settlement"
    assert embedded_chain.balance(embedded_chain.wallets.owner.address) == before + 10_000


async def test_nothing_is_sent_when_the_raw_transaction_could_not_be_stored(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    nonce = embedded_chain.nonce(embedded_chain.wallets.relayer)
    async with failing_hub(tmp_path, embedded_chain) as (hub, database):
        database.fail_at = 1
        answer = await hub.settle(payment)
        told = answer.body["error"]
        assert (answer.status, told["code"]) == (503, "SETTLEMENT_PENDING")
        assert told["details"]["transaction"] == ""  # none was sent, and another one may get its nonce
        assert told["details"]["statusUrl"]
        assert embedded_chain.nonce(embedded_chain.wallets.relayer) == nonce
        assert await hub.status(payment) == "unknown"


@pytest.mark.postgresql_only("SQLite's units wait for one another without a limit")
async def test_a_claim_that_others_held_up_too_long_was_never_made_and_may_come_again(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server undid it: told as unknown, its payment would be parked until it expires."""
    monkeypatch.setattr("tollkeeper.storage.postgresql.engine.STATEMENT_SECONDS", 1.0)
    payment = new_payment(embedded_chain)
    async with run_hub(tmp_path, embedded_chain) as hub:
        with held(tmp_path / "hub.db"):
            answer = await hub.settle(payment)
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")
        assert await hub.status(payment) == "unknown"
        assert (await hub.settle(payment)).body["success"] is True


async def test_a_closed_database_is_unavailable(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with failing_hub(tmp_path, embedded_chain) as (hub, database):
        await database.real.close()
        assert (await hub.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
        ready = await hub.get("/readyz")
        assert (ready.status, ready.code) == (503, "UNAVAILABLE")
        assert (await hub.get("/healthz")).status == 200


class LateDatabase(FaultyDatabase):
    """Fails once at that unit, later than a start waits for nodes."""

    def __init__(self, real: Database, directory: Path, name: str) -> None:
        super().__init__(real, directory / "order.json")
        self._late = name

    async def _befall(self, name: str, moment: Moment) -> None:
        if name == self._late and moment is Moment.BEFORE:
            self._late = ""
            await asyncio.sleep(LATE_SECONDS)
            raise StorageError("the disk is full")


@asynccontextmanager
async def starting_late(
    directory: Path, chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch, name: str
) -> AsyncIterator[str]:
    """The URL of a hub as its process composes it."""
    settings = settings_for(chain.url, directory / "hub.db", role=Role.HUB)
    database = LateDatabase(open_database(settings.database_url), directory, name)
    monkeypatch.setattr(composition, "open_database", lambda _url: database)
    async with composition.compose(settings) as app, serving(app) as url:
        yield url


async def test_a_hub_that_cannot_join_the_others_does_not_serve_however_late_it_learns_so(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError):
        async with starting_late(tmp_path, embedded_chain, monkeypatch, "join"):
            pytest.fail("it serves, and would never settle anything")


async def test_a_network_whose_opening_the_database_refuses_late_is_opened_again(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with starting_late(tmp_path, embedded_chain, monkeypatch, "open_lane") as url:
        assert (await pay(url, new_payment(embedded_chain)))["success"] is True
