"""A sale whose payment a reorganisation takes away: for good, or until it is mined again (security F8, I5).

At a gateway with a hub of its own, apart from its hub, and at a facilitator that is not ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
from tests.faults.sold import CREDITS, DECIDED_SECONDS, Facilitator, assert_stays_good, serve_with, until_void
from tests.gateway.foreign_on_evm import PAYEE, run_foreign
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.hub.hub_under_test import new_payment
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.version1 import EvmPayload, decode_payment_header
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet
from tollkeeper.settings.model import NetworkSettings

NETWORK = "base-sepolia"


@dataclass(slots=True)
class Sale:
    """One sale of many credits; `url` is the gateway's."""

    url: str
    chain: ChainUnderTest
    buyer: Buyer
    gate: dict[str, Any]
    payment: str

    async def call(self) -> Answer:
        return await self.buyer.call(self.gate["accessUrl"], self.payment)

    async def read(self) -> dict[str, Any]:
        return (await self.buyer.ask("GET", f"{self.url}/api/v1/paygates/{self.gate['id']}")).json()

    def paid_again(self) -> str:
        """A raw transaction of the facilitator's that makes the payment where its last one was."""
        payload = decode_payment_header(self.payment.encode()).payload
        assert isinstance(payload, EvmPayload)
        relayer = self.chain.wallets.relayer
        return self.carried_out(relayer, payload, self.chain.nonce(relayer) - 1)

    def spent_elsewhere(self) -> str:
        """A raw transaction that takes all that the payer had before it paid."""
        chain, payer = self.chain, self.buyer.wallet
        value = chain.balance(payer.address) + 10_000
        spent = new_payment(chain, signer=payer, value=value, pay_to="0x" + "99" * 20)
        signature = bytes.fromhex(spent.body["paymentPayload"]["payload"]["signature"][2:])
        faucet = chain.wallets.faucet
        return self.carried_out(faucet, EvmPayload(spent.authorization, signature), chain.nonce(faucet))

    def paid_otherwise(self) -> tuple[str, str]:
        """The same by another transaction under its nonce, as one that pays more for its gas, and its name."""
        payload = decode_payment_header(self.payment.encode()).payload
        assert isinstance(payload, EvmPayload)
        relayer = self.chain.wallets.relayer
        data = transfer_calldata(payload.authorization, payload.signature)
        nonce = self.chain.nonce(relayer) - 1
        return self.chain.transaction(relayer, USDC_ADDRESS, data, nonce=nonce, max_priority_fee_per_gas=2_000_000)

    def carried_out(self, wallet: TestWallet, payload: EvmPayload, nonce: int) -> str:
        data = transfer_calldata(payload.authorization, payload.signature)
        raw, _ = self.chain.transaction(wallet, USDC_ADDRESS, data, nonce=nonce)
        return raw

    def reorganise(self, depth: int, *raws: str) -> None:
        """The block of the payment is the lowest of so many that are replaced."""
        if depth > 1:
            self.chain.rpc.call("anvil_mine", hex(depth - 1))
        take_back(self.chain, depth, *raws)
        came(f"reorganisation of depth {depth}")


@asynccontextmanager
async def selling(
    folder: Path, chain: ChainUnderTest, facilitator: Facilitator, target: RecordingTarget, **fields: object
) -> AsyncIterator[Sale]:
    """The programs, and a sale whose first call was served."""
    (payer,) = payers(chain, 1)
    chain.rpc.call("anvil_mine", "0x8")  # what the buyer has is not among what is taken back
    network = NetworkSettings(NETWORKS[NETWORK], (chain.url,), asset_name=chain.token_name)
    changes: dict[str, Any] = {"networks": {NETWORK: network}, "inspection_seconds": 1}
    async with AsyncExitStack() as stack:
        foreign_url = ""
        if facilitator is Facilitator.FOREIGN:
            foreign_url = (await stack.enter_async_context(run_foreign(chain))).url
        url = await serve_with(stack, facilitator, chain.url, folder, foreign_url, **changes)
        buyer = await stack.enter_async_context(Buyer(payer))
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "credits": CREDITS, **fields}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        sale = Sale(url, chain, buyer, gate, payment)
        assert (await sale.call()).status == 200
        yield sale


@pytest.fixture
async def target() -> AsyncIterator[RecordingTarget]:
    async with recording_target() as running:
        yield running


@pytest.mark.parametrize(
    ("facilitator", "depth", "fields"),
    [
        (Facilitator.OWN, 1, {}),
        (Facilitator.APART, 3, {}),
        (Facilitator.OWN, 2, {"assumeValid": True}),
    ],
    ids=["own", "apart", "trusted"],
)
async def test_credits_are_void_once_the_payers_money_is_gone_on_the_other_branch(
    tmp_path: Path,
    anvil_fiat_token: ChainUnderTest,
    target: RecordingTarget,
    facilitator: Facilitator,
    depth: int,
    fields: dict[str, Any],
) -> None:
    chain = anvil_fiat_token
    before = chain.balance(PAYEE)
    async with selling(tmp_path, chain, facilitator, target, **fields) as sale:
        await asyncio.sleep(5)  # it was looked at, and confirmed where it was trusted
        sale.reorganise(depth, sale.spent_elsewhere())
        assert chain.balance(PAYEE) == before
        await until_void(sale)
        await assert_nothing_lost(tmp_path, chain, paid=[], refused=[authorization_in(sale.payment)])


@pytest.mark.parametrize(
    ("facilitator", "fields"),
    [(Facilitator.OWN, {"assumeValid": True}), (Facilitator.APART, {})],
    ids=["trusted", "apart"],
)
async def test_a_void_sale_comes_back_with_what_was_left_where_its_failure_is_taken_back_too(
    tmp_path: Path,
    anvil_fiat_token: ChainUnderTest,
    target: RecordingTarget,
    facilitator: Facilitator,
    fields: dict[str, Any],
) -> None:
    chain = anvil_fiat_token
    before = chain.balance(PAYEE)
    async with selling(tmp_path, chain, facilitator, target, **fields) as sale:
        await asyncio.sleep(5)  # it was looked at, and confirmed where it was trusted
        paid_in = int(chain.rpc.call("eth_blockNumber"), 16)
        sale.reorganise(1, sale.spent_elsewhere())
        served = 1
        async with asyncio.timeout(DECIDED_SECONDS):
            while (answer := await sale.call()).status != 402:
                served += answer.status == 200
                await asyncio.sleep(0.5)
        depth = int(chain.rpc.call("eth_blockNumber"), 16) - paid_in + 1
        take_back(chain, depth)  # among it what spent the money, and what failed for it
        came(f"reorganisation of depth {depth}")
        async with asyncio.timeout(DECIDED_SECONDS):
            while (answer := await sale.call()).status != 200:  # the seller's money is there again before that
                # The hub's failure stands, or it makes the payment again.
                assert answer.status == 402 or (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
                await asyncio.sleep(0.5)
        assert chain.balance(PAYEE) == before + 10_000
        assert answer.headers["x-credits-remaining"] == str(CREDITS - served - 1)
        read = await sale.read()
        assert (read["counters"]["revenue"], read["counters"]["purchases"]) == ("0.01", 1)
        assert "trusted" not in read
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(sale.payment)])


async def test_receipts_name_the_transaction_that_stands_where_another_one_makes_the_payment(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    """Of calls with the very bytes of one before, and of others, which remember the sale otherwise."""
    chain = anvil_fiat_token
    async with selling(tmp_path, chain, Facilitator.OWN, target) as sale:

        async def named() -> tuple[str, str]:
            again = await sale.call()
            other = await sale.buyer.call(sale.gate["accessUrl"] + "?other", sale.payment)
            assert again.receipt is not None
            assert other.receipt is not None
            return again.receipt["transaction"], other.receipt["transaction"]

        first = (await named())[0]
        assert await named() == (first, first)
        raw, stands = sale.paid_otherwise()
        assert stands != first
        sale.reorganise(2, raw)
        async with asyncio.timeout(DECIDED_SECONDS):
            while await named() != (stands, stands):  # noqa: ASYNC110 - a gateway is asked
                await asyncio.sleep(4)  # each time takes two of its credits
        assert await named() == (stands, stands)
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(sale.payment)])


@pytest.mark.parametrize(
    ("facilitator", "depth"),
    [(Facilitator.OWN, 6), (Facilitator.APART, 1), (Facilitator.FOREIGN, 2)],
    ids=["own", "apart", "foreign"],
)
async def test_nothing_is_void_where_the_payment_is_mined_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget, facilitator: Facilitator, depth: int
) -> None:
    chain = anvil_fiat_token
    before = chain.balance(PAYEE)
    async with selling(tmp_path, chain, facilitator, target) as sale:
        again = [sale.paid_again()] if facilitator is Facilitator.FOREIGN else []
        sale.reorganise(depth, *again)
        async with asyncio.timeout(DECIDED_SECONDS):
            while chain.balance(PAYEE) != before + 10_000:  # noqa: ASYNC110 - a chain is asked
                await asyncio.sleep(0.1)
        await assert_stays_good(sale)
        await assert_nothing_lost(tmp_path, chain, paid=[authorization_in(sale.payment)])
