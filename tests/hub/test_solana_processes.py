"""Hubs that share one database settle each Solana payment once, and finish what one of them left (F15, A-31)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.books import assert_books_agree
from tests.chains.solana_node import WALLETS
from tests.engines import IS_POSTGRESQL
from tests.hub.solana_hub import SolanaHub, new_solana_hub, served
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

RECOVERY_SECONDS = 1 if IS_POSTGRESQL else 3600  # there a busy database leaves some to the recovery
LIFE_SECONDS = 20.0  # nobody dies here without a word: only a machine that stands still would end one


@asynccontextmanager
async def hub_on(database: Database, node: SolanaNode, *, recovery_interval_seconds: float) -> AsyncIterator[SolanaHub]:
    """One of several on that database."""
    hub = new_solana_hub(
        database,
        node.url,
        recovery_interval_seconds=recovery_interval_seconds,
        shared_life_seconds=LIFE_SECONDS,
    )
    async with served(hub, database, node) as running:
        yield running


async def test_hubs_that_share_a_database_settle_each_payment_once(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "hub.db"))
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, AsyncExitStack() as running:
        running.push_async_callback(database.close)
        hubs = [
            await running.enter_async_context(hub_on(database, node, recovery_interval_seconds=RECOVERY_SECONDS))
            for _ in range(3)
        ]
        bodies = [hubs[0].payment(1_000) for _ in range(20)]

        answers = await asyncio.gather(*(hub.settle(body) for body in bodies for hub in hubs for _ in range(3)))
        assert {answer.status for answer in answers} == {200}
        assert sum(answer.body["success"] for answer in answers) == len(bodies)
        assert {answer.reason for answer in answers} == {None, "duplicate_settlement"}
        assert len(node.chain.executed) == len(bodies)
        assert hubs[0].earned == 20_000
    assert_books_agree(tmp_path)


async def test_what_a_hub_left_is_finished_by_another_one(tmp_path: Path) -> None:
    database = open_database(str(tmp_path / "hub.db"))
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, AsyncExitStack() as running:
        running.push_async_callback(database.close)
        other = await running.enter_async_context(hub_on(database, node, recovery_interval_seconds=0.1))
        node.chain.holds = True
        async with hub_on(database, node, recovery_interval_seconds=3600) as leaving:
            body = leaving.payment()
            assert (await leaving.settle(body, Prefer="wait=0")).status == 503
        node.chain.drop()
        node.chain.release()
        async with asyncio.timeout(60):
            while await other.status(body) != "success":  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        assert (other.earned, len(node.chain.executed)) == (10_000, 1)
    assert_books_agree(tmp_path)
