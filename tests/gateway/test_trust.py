"""A sale on trust whose settlement is proved failed: void, in the history, seen by its owner (contract 4.4; A-11)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.networks import NETWORKS, Asset
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import planted_token
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings


async def test_a_trusted_sale_that_is_never_mined_is_void_failed_in_the_history_and_seen_by_its_owner(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    chain = embedded_chain
    async with (
        composed(chain.url, tmp_path / "tollkeeper.db") as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        body = {"price": "0.01", "targetUrl": target.url, "credits": 3, "assumeValid": True}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        before = chain.balance(chain.wallets.owner.address)
        chain.rpc.call("evm_setAutomine", False)
        try:
            sold = await buyer.call(gate["accessUrl"], payment)
            assert (sold.status, sold.headers["x-credits-remaining"]) == (200, "2")
            assert sold.receipt is not None
            chain.rpc.call("anvil_dropTransaction", sold.receipt["transaction"])
            chain.rpc.call("evm_increaseTime", 200)
            chain.rpc.call("evm_mine")

            async def read() -> dict[str, Any]:
                found: dict[str, Any] = (await buyer.ask("GET", f"{url}/api/v1/paygates/{gate['id']}")).json()
                return found

            async with asyncio.timeout(90):
                while (await read())["trusted"]["failed"] == 0:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                    await asyncio.sleep(0.2)
        finally:
            chain.rpc.call("evm_setAutomine", True)
        refused = await buyer.call(gate["accessUrl"], payment)
        assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
        assert "failed" in refused.json()["errorDetail"]["message"]
        mine = {"Authorization": f"Bearer {await buyer.login(url)}", "X-Payment": payment}
        bound = await buyer.ask("PUT", f"{url}/api/v1/paygates/{gate['id']}", body={"creditBinding": "wallet"})
        assert bound.status == 200
        refused = await buyer.ask("GET", gate["accessUrl"], headers=mine)
        assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
        assert "failed" in refused.json()["errorDetail"]["message"]
        owned = await read()
        assert owned["trusted"] == {"open": 0, "openAmount": "0", "failed": 1, "failedAmount": "0.01"}
        assert owned["counters"]["revenue"] == "0"
        bearer = {"Authorization": f"Bearer {await buyer.login(url + '/hub')}"}
        history = (await buyer.ask("GET", f"{url}/hub/api/v1/history?limit=5&offset=0", headers=bearer)).json()
        (item,) = [item for item in history["history"] if item["purchaseData"]["slug"] == gate["slug"]]
        assert item["status"] == "failed"
        assert item["error"]
        assert chain.balance(chain.wallets.owner.address) == before
        assert len(target.requests) == 1


@pytest.mark.parametrize("is_paid", [True, False])
async def test_a_trusted_sale_whose_gate_is_deleted_is_looked_at_until_its_payment_is_decided(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, is_paid: bool
) -> None:
    chain, database = embedded_chain, tmp_path / "tollkeeper.db"

    def read(sql: str) -> Any:
        with beside(database) as books:
            return books.execute(sql).fetchone()

    async with composed(chain.url, database) as url, Buyer(derive_wallets().buyer) as buyer:
        body = {"price": "0.01", "targetUrl": target.url, "credits": 3, "assumeValid": True}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        chain.rpc.call("evm_setAutomine", False)
        try:
            sold = await buyer.call(gate["accessUrl"], payment)
            assert sold.status == 200
            assert sold.receipt is not None
            deleted = await buyer.ask("DELETE", f"{url}/api/v1/paygates/{gate['id']}")
            assert (deleted.status, deleted.json()["outstandingCredits"]) == (200, 2)
            assert read("SELECT state, failure, confirmed FROM purchases") == ("VOID", "gate_deleted", 0)
            if not is_paid:
                chain.rpc.call("anvil_dropTransaction", sold.receipt["transaction"])
                chain.rpc.call("evm_increaseTime", 200)
            chain.rpc.call("evm_mine")
            async with asyncio.timeout(90):
                while read("SELECT confirmed FROM purchases") == (0,):  # noqa: ASYNC110 - of another connection
                    await asyncio.sleep(0.2)
        finally:
            chain.rpc.call("evm_setAutomine", True)
        assert (await buyer.call(gate["accessUrl"], payment)).status == 404
    failure, earned_micro = ("gate_deleted", 10_000) if is_paid else ("settlement_failed", 0)
    assert read("SELECT state, failure FROM purchases") == ("VOID", failure)
    assert read("SELECT revenue_micro FROM paygate_counters") == (earned_micro,)
    assert len(target.requests) == 1


async def test_a_trusted_sale_is_not_paid_by_a_payment_of_another_token_under_the_same_nonce(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """The network's asset is changed between the two, so that the hub has both on record."""
    chain, wallets, database = embedded_chain, derive_wallets(), tmp_path / "tollkeeper.db"
    other = "0x" + "7c" * 20
    planted = planted_token({wallets.buyer.address: 1_000_000}, name="Other USD")
    chain.rpc.call("anvil_setCode", other, "0x" + planted.account.code.hex())
    for slot, value in planted.storage.items():
        chain.rpc.call("anvil_setStorageAt", other, f"0x{slot:064x}", f"0x{value:064x}")
    network, nonce = NETWORKS["base-sepolia"], "0x" + "5e" * 32
    changed = NetworkSettings(replace(network, usdc=Asset(other)), (chain.url,))
    gate: dict[str, Any] = {}

    async def bought(url: str, buyer: Buyer) -> dict[str, Any]:
        asked = (await buyer.ask("GET", f"{url}/{gate['slug']}")).json()
        payment = buyer.sign(asked, lambda wanted: replace(wanted, nonce=nonce))
        sold = await buyer.call(f"{url}/{gate['slug']}", payment)
        assert sold.status == 200, sold.body
        assert sold.receipt is not None
        return sold.receipt

    async def read(url: str, buyer: Buyer) -> dict[str, Any]:
        found = (await buyer.ask("GET", f"{url}/api/v1/paygates/{gate['id']}")).json()
        told: dict[str, Any] = found.get("trusted", {})
        return told

    async with Buyer(wallets.buyer) as buyer:
        async with composed(chain.url, database) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 3, "assumeValid": True}
            gate |= (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            await bought(url, buyer)
            async with asyncio.timeout(60):
                while (await read(url, buyer)).get("open"):  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                    await asyncio.sleep(0.2)
        async with composed(chain.url, database, networks={network.name: changed}) as url:
            chain.rpc.call("evm_setAutomine", False)
            try:
                receipt = await bought(url, buyer)
                chain.rpc.call("anvil_dropTransaction", receipt["transaction"])
                chain.rpc.call("evm_increaseTime", 200)
                chain.rpc.call("evm_mine")
                async with asyncio.timeout(90):
                    while (told := await read(url, buyer)).get("open"):  # noqa: ASYNC110 - as above
                        await asyncio.sleep(0.2)
            finally:
                chain.rpc.call("evm_setAutomine", True)
            assert told.get("failed") == 1
            path = f"{url}/hub/payments/{network.name}/{wallets.buyer.address}/{nonce}"
            asked = [(await buyer.ask("GET", path + which)).json()["status"] for which in (f"?asset={other}", "")]
            assert asked == ["failed", "failed"], "the newest, where none is named"
            of_former = await buyer.ask("GET", f"{path}?asset={network.usdc.address.upper().replace('X', 'x')}")
            assert of_former.json()["status"] == "success"
            assert (await buyer.ask("GET", f"{path}?asset=0x{'00' * 20}")).status == 404
            assert [(await buyer.ask("GET", f"{path}?asset={one}")).status for one in ("", "0x7c")] == [400, 400]
