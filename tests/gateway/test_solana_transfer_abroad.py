"""Direct transfers on Solana at a facilitator that is not ours (contract 4.4, 8; F19; A-15).

Nothing there remembers that a payment was made but the transaction itself, so who looks for it later must look as far
back as who asked for it first.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web
from solders.keypair import Keypair

from tests.core.solana_payments import Draft, account_of
from tests.gateway import foreign_facilitator as ways
from tests.gateway.foreign_facilitator import honest
from tests.gateway.foreign_on_solana import EXPIRED_SLOTS, ForeignOnSolana, SalesOnSolana, SiteOnSolana, site_on_solana
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import header_of
from tollkeeper import api
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway import app
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.solana_node import SolanaNode

PATH = "/api/v1/transfer"
FEE_MICRO = 2_000
RECIPIENT = str(Keypair.from_seed(b"\x44" * 32).pubkey())
MINUTE_SLOTS = 150
ADVICE = "look at your wallet's transactions first"


@dataclass(slots=True)
class Bank:
    """Gateways one after another on one database, and their clock, which is put forward with the chain."""

    site: SiteOnSolana
    ahead_ms: int = 0
    kept: list[bytes] = field(default_factory=list)  # transfers that the facilitator has not sent yet

    def now_ms(self) -> int:
        return api.clock_ms() + self.ahead_ms

    def pass_minutes(self, count: int) -> None:
        self.ahead_ms += count * 60_000
        self.site.foreign.node.chain.ahead_seconds = self.ahead_ms // 1000
        self.site.foreign.node.chain.next_slot(count * MINUTE_SLOTS)

    @asynccontextmanager
    async def gateway(self, *, charges: bool = True) -> AsyncIterator[SalesOnSolana]:
        async with self.site.gateway(transfer_fee_micro=FEE_MICRO if charges else None) as running:
            assert isinstance(running, SalesOnSolana)
            yield running

    async def keeps(self, foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
        """Settles fees; of a transfer it says nothing that counts, and sends it when it likes."""
        if foreign.settles[-1]["paymentRequirements"]["payTo"] == self.site.pay_to:
            return await honest(foreign, raw)
        self.kept.append(raw)
        return web.Response(status=500, text="oops")

    async def send_kept(self) -> str:
        """It likes now; asked again it refuses what it made. The name of the transaction."""
        sent = await self.site.foreign.send(self.kept[0])
        self.site.foreign.settling = self.refuses_transfers
        return sent

    async def refuses_transfers(self, foreign: ForeignOnSolana, raw: bytes) -> web.StreamResponse:
        if foreign.settles[-1]["paymentRequirements"]["payTo"] == self.site.pay_to:
            return await honest(foreign, raw)
        return ways.failure("settle_exact_svm_block_height_exceeded")

    def received_micro(self) -> int:
        chain = self.site.foreign.node.chain
        return chain.token_balance(chain.open_account(RECIPIENT))


@pytest.fixture
async def bank(tmp_path: Path, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bank]:
    async with SolanaNode(slot_seconds=None) as node, site_on_solana(tmp_path, node, target) as site:
        running = Bank(site)
        node.chain.open_account(RECIPIENT)
        site.foreign.settling = running.keeps
        monkeypatch.setattr(app, "clock_ms", running.now_ms)
        yield running


async def drafted(here: SalesOnSolana) -> Draft:
    fee_payer = here.site.foreign.fee_payer
    wanted = {
        "payTo": RECIPIENT,
        "asset": NETWORKS[here.site.foreign.NETWORK].usdc.address,
        "maxAmountRequired": "25000",
        "extra": {"feePayer": str(fee_payer.pubkey())},
    }
    return await here.market.draft(wanted)


async def ask(here: SalesOnSolana, transfer: Draft, paid: str | None = None) -> Answer:
    network = here.site.foreign.NETWORK
    body = {"network": network, "transaction": transfer.payload().transaction, "recipient": RECIPIENT}
    headers = {} if paid is None else {"X-Payment": paid}
    return await here.buyer.ask("POST", here.url + PATH, body=body, headers=headers)


async def new_fee(here: SalesOnSolana) -> str:
    asked = await ask(here, await drafted(here))
    assert asked.status == 402, asked.body
    (wanted,) = asked.json()["accepts"]
    assert wanted["maxAmountRequired"] == str(FEE_MICRO)
    return await here.market.payment(wanted)


@pytest.mark.parametrize("charges", [True, False], ids=["for a fee", "without a fee"])
@pytest.mark.parametrize("restarts", [False, True], ids=["the same process", "another process"])
async def test_a_transfer_that_was_made_after_its_503_is_told_as_made_minutes_later(
    bank: Bank, *, charges: bool, restarts: bool
) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(bank.gateway(charges=charges))
        transfer = await drafted(here)
        paid = await new_fee(here) if charges else header_of(transfer)
        assert (await ask(here, transfer, paid)).error_code == "SETTLEMENT_PENDING"
        bank.pass_minutes(1)
        transaction = await bank.send_kept()
        bank.pass_minutes(10)
        if restarts:
            await stack.aclose()
            here = await stack.enter_async_context(bank.gateway(charges=charges))
        for _ in range(2):  # told once, it is told again
            answer = await ask(here, transfer, paid)
            assert (answer.status, answer.json().get("transaction")) == (200, transaction), answer.body
        if charges:
            assert (await ask(here, await drafted(here), paid)).status == 402  # the fee is spent
        assert bank.received_micro() == 25_000


@pytest.mark.parametrize("charges", [True, False], ids=["for a fee", "without a fee"])
async def test_a_transfer_to_an_account_that_was_signed_away_is_asked_for_nowhere(bank: Bank, *, charges: bool) -> None:
    chain, thief = bank.site.foreign.node.chain, str(Keypair().pubkey())
    theirs = chain.account(chain.open_account(thief))
    assert theirs is not None
    chain._put(str(account_of(RECIPIENT)), bytes(theirs.data))  # noqa: SLF001 - as its owner's signature leaves it
    async with bank.gateway(charges=charges) as here:
        transfer = await drafted(here)
        paid = await new_fee(here) if charges else header_of(transfer)
        answer = await ask(here, transfer, paid)
        assert (answer.status, answer.error_code) == (400, "PAYMENT_INVALID")
        assert f"the token account of {RECIPIENT} belongs to {thief}" in answer.json()["error"]["message"]
    assert bank.site.foreign.settles == []  # nor is a fee charged for it


@pytest.mark.parametrize("charges", [True, False], ids=["for a fee", "without a fee"])
@pytest.mark.parametrize("is_told", [False, True], ids=["not told", "told before"])
async def test_a_transfer_that_was_made_hours_ago_is_told_as_made_to_whoever_asked_for_it(
    bank: Bank, *, is_told: bool, charges: bool
) -> None:
    async with bank.gateway(charges=charges) as here:
        transfer = await drafted(here)
        paid = await new_fee(here) if charges else header_of(transfer)
        assert (await ask(here, transfer, paid)).status == 503
        transaction = await bank.send_kept()
        if is_told:
            assert (await ask(here, transfer, paid)).status == 200
    bank.pass_minutes(120)
    async with bank.gateway(charges=charges) as there:
        for _ in range(2):
            answer = await ask(there, transfer, paid)
            assert (answer.status, answer.json().get("transaction")) == (200, transaction), answer.body
            bank.site.foreign.node.chain.next_slot(EXPIRED_SLOTS)


async def test_who_cannot_know_whether_an_old_transfer_was_made_says_so(bank: Bank) -> None:
    """It was asked for elsewhere, and what it was carried out by lies before all that is looked through."""
    async with bank.gateway(charges=False) as here:
        transfer = await drafted(here)
    await bank.site.foreign.send(bank.site.foreign.read(transfer.payload().body()))
    bank.site.foreign.settling = bank.refuses_transfers
    bank.pass_minutes(120)
    async with bank.gateway(charges=False) as there:
        assert (await ask(there, transfer, header_of(transfer))).error_code == "SETTLEMENT_PENDING"
        bank.site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
        answer = await ask(there, transfer, header_of(transfer))
        assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
        assert ADVICE in answer.json()["error"]["message"]


@pytest.mark.parametrize("restarts", [False, True], ids=["the same process", "another process"])
async def test_the_fee_of_a_transfer_that_nobody_made_is_a_credit_by_proof(bank: Bank, *, restarts: bool) -> None:
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(bank.gateway())
        fee, transfer = await new_fee(here), await drafted(here)
        assert (await ask(here, transfer, fee)).status == 503
        bank.pass_minutes(1)
        if restarts:  # which counts anew
            await stack.aclose()
            here = await stack.enter_async_context(bank.gateway())
            assert (await ask(here, transfer, fee)).status == 503
        bank.site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
        answer = await ask(here, transfer, fee)
        assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
        assert ADVICE not in answer.json()["error"]["message"]
        bank.site.foreign.settling = honest
        bank.site.foreign.node.chain.next_slot()
        assert (await ask(here, await drafted(here), fee)).status == 200
        assert bank.received_micro() == 25_000


async def test_a_charge_that_kept_no_time_gives_no_fee_back_for_a_transfer_that_only_seems_to_be_over(
    bank: Bank,
) -> None:
    """Of a version that kept the place alone."""
    async with bank.gateway() as here:
        fee, transfer = await new_fee(here), await drafted(here)
        assert (await ask(here, transfer, fee)).status == 503
    with closing(sqlite3.connect(bank.site.database)) as connection, connection:
        former = ("at " + bank.site.foreign.url, "transfer-fee-%-place")
        assert connection.execute("UPDATE transfer_keys SET key = ? WHERE name LIKE ?", former).rowcount == 1
    async with bank.gateway() as there:
        assert (await ask(there, transfer, fee)).status == 503
        bank.site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
        answer = await ask(there, transfer, fee)
        assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
        assert (await ask(there, await drafted(there), fee)).status == 402
