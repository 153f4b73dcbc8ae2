"""A hub that forgot what it settled, as after a restored backup: sales stand, and their operator is told (F22)."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.keyring import Secret
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.inspection import inspect_books
from tollkeeper.settings import Role


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - a database is asked
            await asyncio.sleep(0.1)


async def test_sales_that_their_hub_forgot_stand_and_are_told_of_until_it_knows_them_again(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    chain, database = embedded_chain, tmp_path / "gateway.db"
    used: list[str] = []
    settings, empty_key = settings_for(chain.url, database, role=Role.GATEWAY), derive_wallets().faucet.private_key

    def listed() -> set[tuple[str, str]]:
        return {(one.rule, one.subject) for one in inspect_books(settings)}

    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(chain.url, tmp_path / "empty.db", role=Role.HUB, signer_keys=(Secret(empty_key),)) as empty_url,
        run_hostile_hub(lambda: used[-1] if used else hub_url) as hub,
        composed(chain.url, database, role=Role.GATEWAY, hub_url=hub.url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        sold: list[tuple[str, str]] = []
        with capture_logs() as said:
            for trusted in (False, True):
                body = {"price": "0.01", "targetUrl": target.url, "credits": 9, "assumeValid": trusted}
                gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
                payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
                if trusted:  # not confirmed before the hub forgets it
                    chain.rpc.call("evm_setAutomine", False)
                assert (await buyer.call(gate["accessUrl"], payment)).status == 200
                sold.append((gate["accessUrl"], payment))
            used.append(empty_url)
            with closing(sqlite3.connect(database)) as books:
                expected = {("a_sale_is_known_to_its_hub", id_) for (id_,) in books.execute("SELECT id FROM purchases")}
            await until(lambda: listed() == expected)
            chain.rpc.call("evm_mine")
            chain.rpc.call("evm_setAutomine", True)
            assert [(await buyer.call(*one)).status for one in sold] == [200, 200]
            used.append(hub_url)
            with closing(sqlite3.connect(database, timeout=20)) as books:
                await until(lambda: books.execute("SELECT 1 FROM purchases WHERE confirmed = 0").fetchone() is None)
                with books:
                    books.execute("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
            await until(lambda: listed() == set())
        told = [(line["purchase_id"], line["log_level"]) for line in said if line["event"] == "hub_forgot_sale"]
        assert sorted(told) == sorted((id_, "error") for _, id_ in expected)
        assert [(await buyer.call(*one)).status for one in sold] == [200, 200]
