"""Two gateways at one hub: a payment that is shown at both in the same moment buys at one of them (A-01, A-08)."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.books import assert_books_agree
from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role

PAYEE = "0x" + "77" * 20
SALES = 6


async def decided(buyer: Buyer, gate: str, payment: str) -> Answer:
    """The answer once it is known."""
    async with asyncio.timeout(30):
        while (answer := await buyer.call(gate, payment)).status == 503:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.2)
    return answer


@pytest.mark.parametrize("assume_valid", [False, True])
async def test_a_payment_shown_at_two_gateways_at_once_is_sold_for_at_one_of_them(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, assume_valid: bool
) -> None:
    chain = embedded_chain
    body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "slug": "same", "credits": 1}
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(chain.url, tmp_path / "one.db", role=Role.GATEWAY, hub_url=hub_url) as one,
        composed(chain.url, tmp_path / "two.db", role=Role.GATEWAY, hub_url=hub_url) as two,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        gates = []
        for url in (one, two):
            made = await buyer.ask("POST", url + "/api/v1/paygates", body={**body, "assumeValid": assume_valid})
            assert made.status == 201, made.body
            gates.append(made.json()["accessUrl"])
        for _ in range(SALES):
            payment = buyer.sign((await buyer.ask("GET", gates[0])).json())
            answers = await asyncio.gather(*(buyer.call(gates[number % 2], payment) for number in range(8)))
            told = Counter(answer.status for answer in answers)
            assert told[200] == 1
            assert set(told) <= {200, 402, 503}  # nobody knows at once what came of it
            codes = {(await decided(buyer, gate, payment)).error_code for gate in gates}
            assert codes == {"CREDITS_EXHAUSTED", "NONCE_ALREADY_USED"}
        assert chain.balance(PAYEE) == SALES * 10_000
        assert len(target.requests) == SALES
    assert_books_agree(tmp_path)
