"""A hub that forgot what it settled, as after a restored backup: sales stand, and their operator is told (F22)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import lose_answer, pass_on, run_hostile_hub, says
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.shop import Shop
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.gateway.purchase import recovery
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.books.inspection import inspect_books
from tollkeeper.settings.model import Role

PAYEE = "0x" + "77" * 20


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
            with beside(database) as books:
                expected = {("a_sale_is_known_to_its_hub", id_) for (id_,) in books.execute("SELECT id FROM purchases")}
            await until(lambda: listed() == expected)
            chain.rpc.call("evm_mine")
            chain.rpc.call("evm_setAutomine", True)
            assert [(await buyer.call(*one)).status for one in sold] == [200, 200]
            used.append(hub_url)
            with beside(database) as books:
                await until(lambda: books.execute("SELECT 1 FROM purchases WHERE confirmed = 0").fetchone() is None)
                books.execute("UPDATE purchases SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
            await until(lambda: listed() == set())
        told = [(line["purchase_id"], line["log_level"]) for line in said if line["event"] == "hub_forgot_sale"]
        assert sorted(told) == sorted((id_, "error") for _, id_ in expected)
        assert [(await buyer.call(*one)).status for one in sold] == [200, 200]


@pytest.mark.parametrize("then", ["third attempt", "address", "disabled", "deleted"])
async def test_a_payment_whose_hub_forgot_it_before_it_was_told_of_is_served_whatever_its_gate_asks_for_by_then(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """The answer is lost, the hub is set back to a backup, and the request has expired when it is there again."""
    monkeypatch.setattr(recovery, "SETTLE_REQUEST_LIFETIME_SECONDS", -26)  # as if 90 s had passed after 4
    chain, backup = embedded_chain, tmp_path / "backup.db"
    poor = says(200, json.dumps({"success": False, "transaction": "", "errorReason": "insufficient_funds"}))
    async with composed(chain.url, backup, role=Role.HUB):
        pass
    used: list[str] = []
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(chain.url, backup, role=Role.HUB) as restored_url,
        run_hostile_hub(lambda: used[-1] if used else hub_url) as between,
        composed(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=between.url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        shop = Shop(url, tmp_path / "gateway.db", target, buyer)
        gate = await shop.gate(credits=3, paymentAddress=PAYEE)
        before, payment = chain.balance(PAYEE), await shop.payment(gate)
        between.settling = poor
        for _ in range(2 if then == "third attempt" else 0):
            assert (await buyer.call(gate["accessUrl"], payment)).status == 402
        between.settling = lose_answer
        assert (await buyer.call(gate["accessUrl"], payment)).status == 503
        used.append(restored_url)
        between.settling = pass_on

        def is_decided() -> bool:
            with beside(shop.database) as books:
                return books.execute("SELECT 1 FROM purchases WHERE state = 'CLAIMED'").fetchone() is None

        await until(is_decided)
        change = {"address": {"paymentAddress": "0x" + "55" * 20}, "disabled": {"isEnabled": False}}.get(then)
        where = f"{url}/api/v1/paygates/{gate['id']}"
        if change is not None:
            assert (await buyer.ask("PUT", where, body=change)).status == 200
        if then == "deleted":
            assert (await buyer.ask("DELETE", where)).status == 200
        served = await buyer.call(gate["accessUrl"], payment)
        assert served.status == 200, served.body
        assert chain.balance(PAYEE) - before == 10_000
        assert len(set(between.signatures[-2:])) == 2, "an expired signature starts and finds out nothing"
    assert inspect_books(settings_for(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY)) == []
