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
    EXPIRED_SLOTS,
    ForeignOnSolana,
    SalesOnSolana,
    SiteOnSolana,
    site_on_solana,
)
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import header_of
from tollkeeper.core.solana.programs import SYSTEM_PROGRAM
from tollkeeper.sandbox.solana_chain import FINAL_SLOTS, LAMPORTS_PER_SOL, RECENT_SLOTS
from tollkeeper.sandbox.solana_node import SolanaNode
from tollkeeper.settings import DepthSettings


@pytest.fixture
async def site(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SiteOnSolana]:
    async with SolanaNode() as node, site_on_solana(tmp_path, node, target) as running:
        yield running


@pytest.fixture
async def abroad(site: SiteOnSolana) -> AsyncIterator[SalesOnSolana]:
    async with site.gateway() as running:
        assert isinstance(running, SalesOnSolana)
        yield running


async def test_nothing_has_failed_while_the_node_lacks_blocks_that_could_hold_it(abroad: SalesOnSolana) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    abroad.site.foreign.settling = ways.says_success_and_sends_nothing
    abroad.site.foreign.node.chain.next_slot(2 * EXPIRED_SLOTS)  # so that what the payment needs is not the whole chain
    payment = await abroad.payment(gate)
    asking = asyncio.create_task(abroad.pay(gate, payment))
    await abroad.until_asked()
    abroad.site.foreign.node.chain.first_slot = abroad.site.foreign.node.chain.slot
    abroad.site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
    await asyncio.sleep(2)
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.site.foreign.node.chain.first_slot = 0
    answer = await asking
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED")


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
    again = await abroad.present(gate, payment)  # that it failed is no use of it
    assert (again.status, again.error_code) == (402, "PAYMENT_INVALID")
    assert abroad.served == 0


async def test_a_failure_that_is_taken_back_is_granted_without_its_buyer_once_its_transaction_made_the_payment(
    abroad: SalesOnSolana,
) -> None:
    """Not even what was final stays where a cluster is started anew from an older slot."""
    foreign, market = abroad.site.foreign, abroad.market
    chain, gate = foreign.node.chain, await abroad.gate(credits=2)
    drafted = await market.draft(await market.requirements(gate))
    buyer = str(market.wallet.pubkey())
    held = await market.balance(buyer)
    chain.open_account(buyer, -held)
    asking = asyncio.create_task(abroad.pay(gate, header_of(drafted)))
    await abroad.until_asked()
    chain.next_slot(FINAL_SLOTS)
    assert (await asking).error_code == "PAYMENT_INVALID"
    assert abroad.purchase()[0] == "FAILED"
    assert chain.roll_back(chain.slot) == 1
    chain.open_account(buyer, held)
    await foreign.hand_over(base64.b64decode(drafted.payload().transaction))
    chain.next_slot(FINAL_SLOTS)
    assert await abroad.until("LIVE") == ("LIVE", None, 1, 2)
    answers = [await abroad.pay(gate, header_of(drafted)) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert abroad.site.received_micro() == 10_000
    assert len(foreign.settles) == 1


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


@pytest.mark.parametrize("settling", [ways.honest, ways.error_after_sending], ids=["vouches", "does not vouch"])
async def test_the_fee_payer_that_buyers_are_told_is_the_facilitators_where_it_lists_no_signers(
    site: SiteOnSolana, settling: Settling
) -> None:
    site.foreign.lists, site.foreign.settling = False, settling
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


async def test_a_payment_that_was_settled_elsewhere_is_told_so_by_the_chain_when_it_is_too_old(
    abroad: SalesOnSolana,
) -> None:
    """Its facilitator keeps no record for us, and "sign a new payment" would have it paid twice."""
    gate, foreign = await abroad.gate(), abroad.site.foreign
    drafted = await abroad.market.draft(await abroad.market.requirements(gate))
    transaction = await foreign.send(base64.b64decode(drafted.payload().transaction))
    abroad.site.age()
    error = await refused_as_expired(abroad, gate, header_of(drafted))
    assert (error["code"], error["details"]["transaction"]) == ("NONCE_ALREADY_USED", transaction)
    assert error["message"].startswith("the payment was settled before, and is charged once")


async def test_a_payment_that_failed_elsewhere_is_told_so_by_the_chain_when_it_is_too_old(
    abroad: SalesOnSolana,
) -> None:
    gate, foreign = await abroad.gate(), abroad.site.foreign
    wanted = await abroad.market.requirements(gate)
    drafted = await abroad.market.draft(wanted)
    buyer = str(abroad.market.wallet.pubkey())
    foreign.node.chain.open_account(buyer, -await abroad.market.balance(buyer))
    transaction = await foreign.send(base64.b64decode(drafted.payload().transaction))
    assert foreign.node.chain.executed[transaction].error is not None
    abroad.site.age()
    error = await refused_as_expired(abroad, gate, header_of(drafted))
    assert (error["code"], error["details"]["transaction"]) == ("PAYMENT_INVALID", transaction)
    assert error["message"].startswith("the payment was carried out and failed on the chain: nothing was charged")


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
@pytest.mark.parametrize(
    ("slots", "code"), [(3 * RECENT_SLOTS, "NONCE_ALREADY_USED"), (10_000, "PAYMENT_EXPIRED")], ids=["minutes", "hours"]
)
async def test_what_the_facilitator_made_for_another_server_long_before_buys_nothing_here(
    abroad: SalesOnSolana, slots: int, code: str, trust: dict[str, bool]
) -> None:
    """It calls it valid however old it is, and names the transaction, which is the very payment's."""
    gate, foreign = await abroad.gate(**trust), abroad.site.foreign
    drafted = await abroad.market.draft(await abroad.market.requirements(gate))
    transaction = await foreign.send(base64.b64decode(drafted.payload().transaction))

    async def names_it(foreign: ForeignOnSolana, _raw: bytes) -> web.StreamResponse:
        return ways.success(foreign, transaction)

    foreign.settling = names_it
    foreign.node.chain.next_slot(slots)
    answer = await abroad.present(gate, header_of(drafted))
    assert (answer.status, answer.error_code) == (402, code), answer.body
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
