"""What only a facilitator on Solana can do that cannot confirm (contract 4.3, 4.4; F19)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from solders.keypair import Keypair

from tests.core.solana_payments import account_of, instruction, signer, transfer, writable
from tests.gateway import foreign_facilitator as ways
from tests.gateway.foreign_facilitator import Settling
from tests.gateway.foreign_on_solana import (
    ForeignOnSolana,
    SalesOnSolana,
    SiteOnSolana,
    expiry_after_sending,
    names_no_signature,
    names_what_was_paid_before,
    sends_and_names_another,
    site_on_solana,
)
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import header_of
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana.chain import SolanaChain
from tollkeeper.chains.solana.config import SolanaConfig
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import SYSTEM_PROGRAM
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.gateway.evidence.port import ExpectedTransfer
from tollkeeper.gateway.evidence.solana import SolanaEvidence
from tollkeeper.gateway.facilitator.client import Senders
from tollkeeper.gateway.purchase import recovery
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, LAMPORTS_PER_SOL, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.serving.books.inspection import inspect_books
from tollkeeper.settings.model import DepthSettings


@pytest.fixture
async def site(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SiteOnSolana]:
    async with SolanaNode() as node, site_on_solana(tmp_path, node, target) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody can tell of a claim is the operator's within seconds."""
    monkeypatch.setattr(recovery, "SETTLE_REQUEST_LIFETIME_SECONDS", 2)
    monkeypatch.setattr(recovery, "_EXPIRY_MARGIN_SECONDS", 1)
    monkeypatch.setattr("tollkeeper.gateway.evidence.solana._LIFETIME_MS", 3_000)


@pytest.fixture
async def abroad(site: SiteOnSolana) -> AsyncIterator[SalesOnSolana]:
    async with site.gateway() as running:
        assert isinstance(running, SalesOnSolana)
        yield running


@pytest.mark.parametrize(
    ("depths", "price"),
    [(DepthSettings(2), "0.01"), (DepthSettings(1, ((20_000, 2),)), "0.02")],
    ids=["any amount", "a larger one"],
)
async def test_what_must_be_final_is_served_when_it_is(site: SiteOnSolana, depths: DepthSettings, price: str) -> None:
    chain = site.foreign.node.chain
    async with site.gateway(depths=depths) as here:
        gate = await here.gate(price=price)
        asking = asyncio.create_task(here.pay(gate, await here.payment(gate)))
        await here.until_asked()
        assert len(chain.executed) == 1
        assert not asking.done()
        chain.next_slot(FINAL_SLOTS)
        assert (await asking).status == 200


async def test_a_transaction_that_failed_on_the_chain_is_no_payment_and_fails_it_once_that_is_final(
    abroad: SalesOnSolana,
) -> None:
    """The facilitator does not look at the error of what it sent, as one did that read only how deep it lay."""
    gate = await abroad.gate()
    wanted = await abroad.market.requirements(gate)
    empty = Keypair.from_seed(b"\x41" * 32)
    abroad.site.foreign.node.chain.open_account(str(empty.pubkey()))
    drafted = await abroad.market.draft(wanted)
    moved = transfer(int(wanted["maxAmountRequired"]), payer=empty.pubkey(), pay_to=wanted["payTo"])
    payment = header_of(replace(drafted, signers=(empty,), instructions=(*drafted.instructions[:2], moved)))
    asking = asyncio.create_task(abroad.pay(gate, payment))
    await abroad.until_asked()
    (executed,) = abroad.site.foreign.node.chain.executed.values()
    assert executed.error is not None
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.site.foreign.node.chain.next_slot(FINAL_SLOTS)
    answer = await asking
    assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
    assert abroad.purchase()[:2] == ("FAILED", "invalid_exact_svm_transaction_failed")
    again = await abroad.present(gate, payment)  # no block takes the same message again
    assert (again.status, again.error_code) == (402, "NONCE_ALREADY_USED")
    assert abroad.served == 0


@pytest.mark.usefixtures("impatient")
async def test_a_payment_whose_fee_a_stranger_paid_is_parked_and_serves_nothing(abroad: SalesOnSolana) -> None:
    """Nobody but the fee payer can carry a payment out, so it was presented to somebody else first."""
    stranger = Keypair.from_seed(b"\x33" * 32)
    abroad.site.foreign.node.chain.airdrop(str(stranger.pubkey()), LAMPORTS_PER_SOL)
    gate = await abroad.gate()
    wanted = await abroad.market.requirements(gate)
    wanted["extra"] = {"feePayer": str(stranger.pubkey())}

    async def already_sold_elsewhere(foreign: ForeignOnSolana, raw: bytes) -> Any:
        return ways.success(foreign, foreign.node.chain.send(bytes(foreign.sign(raw, stranger)), skips_preflight=True))

    abroad.site.foreign.settling = already_sold_elsewhere
    payment = await abroad.market.payment(wanted)
    answer = await abroad.pay(gate, payment)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert (await abroad.until("PARKED"))[1] == "not_of_the_facilitators_signers"
    again = await abroad.pay(gate, payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")
    assert abroad.served == 0
    assert len(abroad.site.foreign.settles) == 1


SENDS = [
    ways.another_shape,
    ways.error_after_sending,
    ways.failure_after_sending,
    ways.status_after_sending(400),
    expiry_after_sending,
    sends_and_names_another,
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("settling", SENDS)
async def test_a_payment_whose_transaction_the_facilitator_did_not_name_is_the_operators(
    abroad: SalesOnSolana, settling: Settling
) -> None:
    """Nobody is told to pay again, and nothing is served until it is honoured."""
    site, gate = abroad.site, await abroad.gate()
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    site.foreign.settling = settling
    pending = await abroad.pay(gate, payment)
    assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
    await abroad.until("PARKED")
    again = await abroad.pay(gate, payment)
    assert (again.status, again.error_code, abroad.served) == (503, "SETTLEMENT_PENDING", 1)
    assert "a_claim_has_an_outcome" in {found.rule for found in inspect_books(site.settings())}
    site.finalise()
    order = {"gate": gate["slug"], "transaction": site.last_transaction(), "nonce": None}
    assert "creditToken" in (await honour_payment(site.settings(), order))["done"]
    assert (site.received_micro(), len(site.foreign.settles)) == (20_000, 2)


SENDS_NOTHING = [
    ways.says_success_and_sends_nothing,
    ways.string_and_sends_nothing,
    ways.wrong_request,
    names_no_signature,
    names_what_was_paid_before,
]


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("settling", SENDS_NOTHING)
async def test_nothing_is_served_for_a_payment_that_nobody_carried_out(
    abroad: SalesOnSolana, settling: Settling
) -> None:
    site, gate = abroad.site, await abroad.gate()
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    site.foreign.settling = settling
    pending = await abroad.pay(gate, payment)
    assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
    await abroad.until("PARKED")
    assert (abroad.served, site.received_micro()) == (1, 10_000)


async def test_a_named_transaction_is_looked_up_after_a_start_and_granted_without_its_buyer(
    site: SiteOnSolana, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.gateway.evidence.nodes._WAIT_SECONDS", 0.5)
    depths = DepthSettings(2)
    async with site.gateway(depths=depths) as before:
        gate = await before.gate(credits=2)
        payment = await before.payment(gate)
        pending = await before.pay(gate, payment)
        assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
        assert pending.json()["error"]["details"]["transaction"] == site.last_transaction()
        assert before.purchase()[0] == "CLAIMED"
    site.finalise()
    async with site.gateway(depths=depths) as after:
        assert await after.until("LIVE") == ("LIVE", None, 1, 2)
        assert (await after.pay(gate, payment)).status == 200
    assert len(site.foreign.settles) == 1


async def test_of_another_token_than_the_nodes_nothing_is_told(site: SiteOnSolana) -> None:
    """Else what was used would seem unused."""
    network = NETWORKS["solana-devnet"]
    chain = SolanaChain(SolanaConfig(network, (site.rpc_url,)))
    await chain.open()
    try:
        key = PaymentKey(network.name, str(Keypair().pubkey()), str(Keypair().pubkey()), "00" * 32)
        expected = ExpectedTransfer(key, site.pay_to, 10_000, None, 0, Senders(frozenset(), are_all=True))
        with pytest.raises(RpcUnavailable, match="asset"):
            await SolanaEvidence(chain).of(expected)
    finally:
        await chain.close()


async def test_a_payment_that_would_never_expire_is_refused(abroad: SalesOnSolana) -> None:
    """One that advances a nonce account may be carried out in years: that it failed could never be told."""
    gate = await abroad.gate()
    drafted = await abroad.market.draft(await abroad.market.requirements(gate))
    limit, price, moved, note = drafted.instructions
    owner = abroad.market.wallet.pubkey()
    advance = instruction(SYSTEM_PROGRAM, b"\x04\0\0\0", [writable(account_of(owner)), signer(owner)])
    header = header_of(replace(drafted, instructions=(advance, limit, moved, price, note)))
    refused = await abroad.pay(gate, header)
    assert (refused.status, refused.error_code) == (402, "PAYMENT_INVALID")
    assert abroad.site.foreign.settles == []


async def test_the_fee_payer_that_buyers_are_told_is_the_facilitators_where_it_lists_no_signers(
    site: SiteOnSolana,
) -> None:
    site.foreign.lists = False
    async with site.gateway() as here:
        gate = await here.gate()
        assert (await here.present(gate, await here.payment(gate))).status == 200


async def test_a_seller_whose_account_was_signed_away_sells_nothing(abroad: SalesOnSolana) -> None:
    """His facilitator need not look whose it is: the chain pays whomever it belongs to, and calls it a success.

    Nor does one whose account is closed, and what he was to be paid is not waited for.
    """
    gate, chain = await abroad.gate(), abroad.site.foreign.node.chain
    own = chain.account(chain.open_account(abroad.site.pay_to))
    theirs = chain.account(chain.open_account(str(Keypair().pubkey())))
    assert own is not None
    assert theirs is not None
    account = str(account_of(abroad.site.pay_to))
    chain._put(account, bytes(theirs.data))  # noqa: SLF001 - as its owner's signature leaves it
    answers = [await abroad.pay(gate, await abroad.payment(gate))]
    chain.drain(account)
    answers.append(await abroad.pay(gate, await abroad.payment(gate)))
    assert [(answer.status, answer.error_code) for answer in answers] == 2 * [(402, "PAYMENT_INVALID")]
    assert (abroad.served, abroad.site.foreign.settles) == (0, [])
    chain._put(account, bytes(own.data))  # noqa: SLF001 - the same
    assert (await abroad.present(gate, await abroad.payment(gate))).status == 200


EXPIRED = "settle_exact_svm_block_height_exceeded"


async def refused_as_expired(abroad: SalesOnSolana, gate: dict[str, Any], payment: str) -> dict[str, Any]:
    """What the buyer is told of a payment that its facilitator calls too old."""
    abroad.site.foreign.refusing = EXPIRED
    answer = await abroad.pay(gate, payment)
    assert answer.status == 402
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
async def test_what_the_facilitator_made_for_another_server_long_before_buys_nothing_here(
    abroad: SalesOnSolana, trust: dict[str, bool]
) -> None:
    """It calls it valid however old it is, and names the transaction, which is the very payment's."""
    gate, foreign = await abroad.gate(**trust), abroad.site.foreign
    drafted = await abroad.market.draft(await abroad.market.requirements(gate))
    transaction = await foreign.send(base64.b64decode(drafted.payload().transaction))

    async def names_it(foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
        return ways.success(foreign, transaction)

    foreign.settling = names_it
    foreign.node.chain.next_slot(3 * RECENT_SLOTS)
    answer = await abroad.present(gate, header_of(drafted))
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED"), answer.body
    assert (abroad.served, foreign.settles) == (0, [])
    assert abroad.site.received_micro() == 10_000


async def test_who_can_tell_nothing_of_an_old_payment_tells_its_buyer_to_look_before_he_signs_again(
    abroad: SalesOnSolana,
) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    error = await refused_as_expired(abroad, gate, payment)
    assert error["code"] == "PAYMENT_EXPIRED"
    assert error["message"] == (
        "the payment's blockhash is too old to be settled, or newer than the facilitator's node knows: whether it was "
        "charged before could not be asked, so look at your wallet's transactions first; sign a new payment, or, if "
        "this one is only seconds old, send it once more"
    )
