"""Direct transfers on Solana at a facilitator that is not ours (contract 4.3, 8; F19; A-15).

Only a transaction that the facilitator named is looked up there, so whoever sends a payment again is refused.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from solders.keypair import Keypair

from tests.core.solana_payments import Draft, account_of
from tests.gateway import foreign_facilitator as ways
from tests.gateway.foreign_on_solana import EXPIRED_SLOTS, SalesOnSolana, SiteOnSolana, site_on_solana
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import header_of
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.solana.node import SolanaNode

PATH = "/api/v1/transfer"
RECIPIENT = str(Keypair.from_seed(b"\x44" * 32).pubkey())
ADVICE = "look at your wallet's transactions first"


@pytest.fixture
async def site(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SiteOnSolana]:
    async with SolanaNode(slot_seconds=None) as node, site_on_solana(tmp_path, node, target) as running:
        node.chain.open_account(RECIPIENT)
        yield running


@pytest.fixture
async def here(site: SiteOnSolana) -> AsyncIterator[SalesOnSolana]:
    async with site.gateway() as running:
        assert isinstance(running, SalesOnSolana)
        yield running


def received_micro(site: SiteOnSolana) -> int:
    chain = site.foreign.node.chain
    return chain.token_balance(chain.open_account(RECIPIENT))


async def drafted(here: SalesOnSolana) -> Draft:
    wanted = {
        "payTo": RECIPIENT,
        "asset": NETWORKS[here.site.foreign.NETWORK].usdc.address,
        "maxAmountRequired": "25000",
        "extra": {"feePayer": str(here.site.foreign.fee_payer.pubkey())},
    }
    return await here.market.draft(wanted)


async def ask(here: SalesOnSolana, transfer: Draft) -> Answer:
    network = here.site.foreign.NETWORK
    body = {"network": network, "transaction": transfer.payload().transaction, "recipient": RECIPIENT}
    return await here.buyer.ask("POST", here.url + PATH, body=body, headers={"X-Payment": header_of(transfer)})


async def test_a_transfer_is_made_once_and_the_same_payment_is_refused_afterwards(
    site: SiteOnSolana, here: SalesOnSolana
) -> None:
    transfer = await drafted(here)
    done = await ask(here, transfer)
    assert (done.status, done.json()["transaction"]) == (200, site.last_transaction()), done.body
    for code in ("NONCE_ALREADY_USED", "PAYMENT_EXPIRED"):
        again = await ask(here, transfer)
        assert (again.status, again.error_code) == (400, code)
        assert ADVICE in again.json()["error"]["message"]
        site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
    assert len(site.foreign.settles) == 1
    assert received_micro(site) == 25_000


async def test_a_transfer_that_was_made_and_not_named_is_a_503_and_then_refused_as_used(
    site: SiteOnSolana, here: SalesOnSolana
) -> None:
    transfer = await drafted(here)
    site.foreign.settling = ways.error_after_sending
    assert (await ask(here, transfer)).error_code == "SETTLEMENT_PENDING"
    answer = await ask(here, transfer)
    assert (answer.status, answer.error_code) == (400, "NONCE_ALREADY_USED")
    assert ADVICE in answer.json()["error"]["message"]
    assert received_micro(site) == 25_000


async def test_a_transfer_to_an_account_that_was_signed_away_is_asked_for_nowhere(
    site: SiteOnSolana, here: SalesOnSolana
) -> None:
    chain, thief = site.foreign.node.chain, str(Keypair().pubkey())
    theirs = chain.account(chain.open_account(thief))
    assert theirs is not None
    chain._put(str(account_of(RECIPIENT)), bytes(theirs.data))  # noqa: SLF001 - as its owner's signature leaves it
    answer = await ask(here, await drafted(here))
    assert (answer.status, answer.error_code) == (400, "PAYMENT_INVALID")
    reason = answer.json()["error"]["details"]["reason"]
    assert reason == "invalid_exact_svm_payload_transaction_receiver_ata_not_found"
    assert site.foreign.settles == []


async def test_who_cannot_know_whether_an_old_transfer_was_made_says_so(
    site: SiteOnSolana, here: SalesOnSolana
) -> None:
    """It was asked for elsewhere."""
    transfer = await drafted(here)
    await site.foreign.send(site.foreign.read(transfer.payload().body()))
    site.foreign.node.chain.next_slot(EXPIRED_SLOTS)
    answer = await ask(here, transfer)
    assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
    assert ADVICE in answer.json()["error"]["message"]
