"""What is not worth its settlement's gas is neither offered nor settled, where the operator says how much that is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.hub.hub_under_test import new_payment
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallets

SETTING: dict[str, Any] = {"min_price_micro": 1_000}


async def test_a_gate_below_the_least_price_is_refused_in_words_that_name_the_setting(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "shop.db", **SETTING) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        body = {"targetUrl": target.url, "price": "0.000999"}
        refused = await buyer.ask("POST", f"{url}/api/v1/paygates", body=body)
        error = refused.json()["error"]
        assert (refused.status, error["code"], error["details"]["minimum"]) == (400, "INVALID_AMOUNT", "0.001")
        assert "min_price" in error["message"]
        gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body={**body, "price": "0.001"})).json()
        for price, status in (("0.000999", 400), ("0.002", 200)):
            answer = await buyer.ask("PUT", f"{url}/api/v1/paygates/{gate['id']}", body={"price": price})
            assert answer.status == status
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        assert (await buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment})).status == 200


async def test_the_hub_settles_nothing_below_it_for_anybody(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "shop.db", **SETTING) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        for value, is_enough in ((999, False), (1_000, True)):
            payment = new_payment(embedded_chain, value=value)
            body = {**payment.requiring(maxAmountRequired="1"), "confirm": True}
            told = [(await buyer.ask("POST", f"{url}/hub{path}", body=body)).json() for path in ("/verify", "/settle")]
            assert [told[0]["isValid"], told[1]["success"]] == [is_enough] * 2
            transfer = {
                "network": "base-sepolia",
                "asset": USDC_ADDRESS,
                "payload": new_payment(embedded_chain, value=value).body["paymentPayload"]["payload"],
            }
            answer = await buyer.ask("POST", f"{url}/hub/transfer", body=transfer)
            assert answer.status == (200 if is_enough else 400)
