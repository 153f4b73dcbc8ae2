"""A facilitator on Solana that cannot confirm: the gateway's own look at the chain decides (contract 4.3, 4.4; F19).

As on EVM networks: whatever it says, nothing is served unpaid, nothing is charged twice, and no client signs twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair

from tests.core.solana_payments import account_of, instruction, signer, transfer, writable
from tests.gateway import foreign_on_solana as ways
from tests.gateway.abroad import SalesAbroad
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_on_solana import ForeignOnSolana, Settling, run_foreign_on_solana
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket, header_of
from tollkeeper.chains.solana import LAG_BLOCKS
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.programs import SYSTEM_PROGRAM
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana_chain import FINAL_SLOTS, LAMPORTS_PER_SOL, RECENT_SLOTS
from tollkeeper.sandbox.solana_node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets
from tollkeeper.serving.reconciling import compare_with_chain
from tollkeeper.settings import NetworkSettings, Role

EXPIRED_SLOTS = RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 2
TWO_AND_MORE = {"depths": replace(settings_for("", Path("x.db")).depths, blocks=2)}


@dataclass(slots=True)
class Abroad(SalesAbroad):
    """A gateway with a Solana node of its own, whose facilitator is a stranger's."""

    market: SolanaMarket
    database: Path
    foreign: ForeignOnSolana
    node: SolanaNode

    @property
    def served(self) -> int:
        """How many calls reached the target."""
        return len(self.market.target.requests)

    async def gate(self, **fields: object) -> dict[str, Any]:
        return await self.market.gate(**fields)

    async def payment(self, gate: dict[str, Any]) -> str:
        return await self.market.payment(await self.market.requirements(gate))

    async def present(self, gate: dict[str, Any], payment: str) -> Answer:
        return await self.until_told(lambda: self.market.pay(gate, payment))

    def received_micro(self) -> int:
        chain = self.node.chain
        return chain.token_balance(chain.open_account(self.market.owner))

    async def until_asked(self, count: int = 1) -> None:
        """Until so many requests to settle have come, and the gateway has looked at the chain since."""
        async with asyncio.timeout(20):
            while len(self.foreign.settles) < count:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)


@asynccontextmanager
async def gateway(
    target: RecordingTarget, node: SolanaNode, foreign: ForeignOnSolana, database: Path, **changes: Any
) -> AsyncIterator[Abroad]:
    """The program, as `tollkeeper gateway` runs it."""
    network = NETWORKS[NETWORK]
    wallets = derive_solana_wallets()
    settings: dict[str, Any] = {
        "role": Role.GATEWAY,
        "hub_url": foreign.url,
        "networks": {NETWORK: NetworkSettings(network, (node.url,))},
        "default_network": network,
        "default_payment_address": wallets.owner.address,
        **changes,
    }
    evm = derive_wallets()
    async with composed("", database, **settings) as url, Buyer(evm.buyer) as buyer:
        yield Abroad(SolanaMarket(url, node.url, wallets, target, buyer), database, foreign, node)


@pytest.fixture
async def node() -> AsyncIterator[SolanaNode]:
    async with SolanaNode() as running:
        yield running


@pytest.fixture
async def abroad(tmp_path: Path, node: SolanaNode, target: RecordingTarget) -> AsyncIterator[Abroad]:
    async with (
        run_foreign_on_solana(node) as foreign,
        gateway(target, node, foreign, tmp_path / "gateway.db") as running,
    ):
        yield running


async def test_an_honest_facilitators_payment_counts_once_it_is_on_the_chain(abroad: Abroad) -> None:
    gate = await abroad.gate(credits=2)
    payment = await abroad.payment(gate)
    answers = [await abroad.market.pay(gate, payment) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert answers[2].error_code == "CREDITS_EXHAUSTED"
    assert abroad.received_micro() == 10_000
    (settled,) = abroad.foreign.settles
    assert "confirm" not in settled
    receipt = answers[0].receipt
    assert receipt is not None
    assert [receipt["transaction"]] == list(abroad.node.chain.executed)


async def test_a_gateway_compares_its_sales_with_the_chain_whoever_sent_them(abroad: Abroad) -> None:
    gate = await abroad.gate()
    assert (await abroad.market.pay(gate, await abroad.payment(gate))).status == 200
    abroad.node.chain.next_slot(FINAL_SLOTS)
    networks = {NETWORK: NetworkSettings(NETWORKS[NETWORK], (abroad.node.url,))}
    settings = settings_for("", abroad.database, role=Role.GATEWAY, networks=networks)
    assert await compare_with_chain(settings) == []
    with closing(sqlite3.connect(abroad.database)) as connection:
        connection.execute("UPDATE purchases SET transaction_hash = :name", {"name": ways.NOBODYS_SIGNATURE})
        connection.commit()
    assert {found.rule for found in await compare_with_chain(settings)} == {
        "paid_but_not_on_the_chain",
        "paid_in_another_transaction",
    }


SENDS: list[Settling] = [
    ways.answers_late,
    ways.settles_late,
    ways.another_shape,
    ways.success_as_a_string,
    ways.error_after_sending,
    ways.failure_after_sending,
    ways.expiry_after_sending,
    ways.sends_and_names_another,
    ways.never,
]


@pytest.mark.parametrize("settling", SENDS, ids=[way.__name__ for way in SENDS])
async def test_a_payment_that_was_carried_out_is_served_whatever_the_facilitator_says(
    abroad: Abroad, settling: Settling
) -> None:
    gate = await abroad.gate()
    assert (await abroad.market.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    abroad.foreign.settling = settling
    assert (await abroad.present(gate, payment)).status == 200
    again = await abroad.market.pay(gate, payment)
    assert (again.status, again.error_code) == (402, "CREDITS_EXHAUSTED")
    assert abroad.received_micro() == 20_000
    assert abroad.served == 2
    assert len(abroad.foreign.settles) == 2


SENDS_NOTHING: list[Settling] = [
    ways.says_success_and_sends_nothing,
    ways.names_no_signature,
    ways.names_what_was_paid_before,
]


@pytest.mark.parametrize("settling", SENDS_NOTHING, ids=[way.__name__ for way in SENDS_NOTHING])
async def test_nothing_is_served_for_a_payment_that_nobody_carried_out_and_it_fails_once_it_cannot_be(
    abroad: Abroad, settling: Settling
) -> None:
    gate = await abroad.gate()
    assert (await abroad.market.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    abroad.foreign.settling = settling
    asking = asyncio.create_task(abroad.market.pay(gate, payment))
    await abroad.until_asked(2)
    abroad.node.chain.next_slot(RECENT_SLOTS + 1)  # too old for the newest block, and not yet for the last final one
    await asyncio.sleep(1)
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.node.chain.next_slot(EXPIRED_SLOTS)
    answer = await asking
    if answer.status == 503:
        answer = await abroad.present(gate, payment)
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED")
    assert abroad.purchase()[:2] == ("FAILED", "settle_exact_svm_block_height_exceeded")
    assert abroad.served == 1
    assert abroad.received_micro() == 10_000


async def test_nothing_has_failed_while_the_node_lacks_blocks_that_could_hold_it(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    abroad.foreign.settling = ways.says_success_and_sends_nothing
    abroad.node.chain.next_slot(2 * EXPIRED_SLOTS)  # so that what the payment needs is not the whole chain
    payment = await abroad.payment(gate)
    asking = asyncio.create_task(abroad.market.pay(gate, payment))
    await abroad.until_asked()
    abroad.node.chain.first_slot = abroad.node.chain.slot
    abroad.node.chain.next_slot(EXPIRED_SLOTS)
    await asyncio.sleep(2)
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.node.chain.first_slot = 0
    answer = await asking
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED")


async def test_a_success_that_the_chain_has_not_executed_yet_is_pending_and_then_served(abroad: Abroad) -> None:
    gate = await abroad.gate()
    abroad.node.chain.holds = True
    asking = asyncio.create_task(abroad.market.pay(gate, await abroad.payment(gate)))
    await abroad.until_asked()
    assert not asking.done()
    assert abroad.served == 0
    abroad.node.chain.release()
    assert (await asking).status == 200


async def test_what_must_be_final_is_served_when_it_is(
    tmp_path: Path, node: SolanaNode, target: RecordingTarget
) -> None:
    async with (
        run_foreign_on_solana(node) as foreign,
        gateway(target, node, foreign, tmp_path / "gateway.db", **TWO_AND_MORE) as here,
    ):
        gate = await here.gate()
        asking = asyncio.create_task(here.market.pay(gate, await here.payment(gate)))
        await here.until_asked()
        assert len(node.chain.executed) == 1
        assert not asking.done()
        node.chain.next_slot(FINAL_SLOTS)
        assert (await asking).status == 200


async def test_a_transaction_that_failed_on_the_chain_is_no_payment_and_fails_it_once_that_is_final(
    abroad: Abroad,
) -> None:
    """The facilitator does not look at the error of what it sent, as one did that read only how deep it lay."""
    gate = await abroad.gate()
    wanted = await abroad.market.requirements(gate)
    empty = Keypair.from_seed(b"\x41" * 32)
    abroad.node.chain.open_account(str(empty.pubkey()))
    drafted = await abroad.market.draft(wanted)
    moved = transfer(int(wanted["maxAmountRequired"]), payer=empty.pubkey(), pay_to=wanted["payTo"])
    payment = header_of(replace(drafted, signers=(empty,), instructions=(*drafted.instructions[:2], moved)))
    asking = asyncio.create_task(abroad.market.pay(gate, payment))
    await abroad.until_asked()
    (executed,) = abroad.node.chain.executed.values()
    assert executed.error is not None
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.node.chain.next_slot(FINAL_SLOTS)
    answer = await asking
    assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
    assert abroad.purchase()[:2] == ("FAILED", "invalid_exact_svm_transaction_failed")
    assert abroad.served == 0


async def test_a_clear_refusal_is_a_402_and_the_same_payment_may_be_presented_again(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    abroad.foreign.settling = ways.refuses
    refused = await abroad.market.pay(gate, payment)
    assert (refused.status, refused.error_code) == (402, "INSUFFICIENT_FUNDS")
    abroad.foreign.settling = ways.honest
    assert (await abroad.market.pay(gate, payment)).status == 200
    assert abroad.received_micro() == 10_000


async def test_a_payment_whose_fee_a_stranger_paid_is_parked_and_serves_nothing(abroad: Abroad) -> None:
    """Nobody but the fee payer can carry a payment out, so it was presented to somebody else first."""
    stranger = Keypair.from_seed(b"\x33" * 32)
    abroad.node.chain.airdrop(str(stranger.pubkey()), LAMPORTS_PER_SOL)
    gate = await abroad.gate()
    wanted = await abroad.market.requirements(gate)
    wanted["extra"] = {"feePayer": str(stranger.pubkey())}

    async def already_sold_elsewhere(foreign: ForeignOnSolana, raw: bytes) -> Any:
        return ways.success(foreign.node.chain.send(bytes(foreign.sign(raw, stranger)), skips_preflight=True))

    abroad.foreign.settling = already_sold_elsewhere
    payment = await abroad.market.payment(wanted)
    answer = await abroad.market.pay(gate, payment)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert (await abroad.until("PARKED"))[1] == "not_of_the_facilitators_signers"
    again = await abroad.market.pay(gate, payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")
    assert abroad.served == 0
    assert len(abroad.foreign.settles) == 1


async def test_a_payment_that_would_never_expire_is_refused(abroad: Abroad) -> None:
    """One that advances a nonce account may be carried out in years: that it failed could never be told."""
    gate = await abroad.gate()
    drafted = await abroad.market.draft(await abroad.market.requirements(gate))
    limit, price, moved, note = drafted.instructions
    owner = abroad.market.wallet.pubkey()
    advance = instruction(SYSTEM_PROGRAM, b"\x04\0\0\0", [writable(account_of(owner)), signer(owner)])
    header = header_of(replace(drafted, instructions=(advance, limit, moved, price, note)))
    refused = await abroad.market.pay(gate, header)
    assert (refused.status, refused.error_code) == (402, "PAYMENT_INVALID")
    assert abroad.foreign.settles == []


async def test_trusted_credits_are_void_once_the_payment_can_never_be_made(abroad: Abroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    payment = await abroad.payment(gate)
    abroad.foreign.settling = ways.says_success_and_sends_nothing
    assert (await abroad.market.pay(gate, payment)).status == 200
    assert abroad.purchase() == ("LIVE", None, 0, 2)
    await asyncio.sleep(3)  # the completer looks, every two seconds
    abroad.node.chain.next_slot(EXPIRED_SLOTS)
    assert (await abroad.until("VOID"))[1] == "settlement_failed"
    refused = await abroad.market.pay(gate, payment)
    assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
    assert abroad.served == 1


async def test_trusted_credits_are_confirmed_once_the_payment_is_on_the_chain(abroad: Abroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    assert (await abroad.market.pay(gate, await abroad.payment(gate))).status == 200
    async with asyncio.timeout(30):
        while abroad.purchase()[2] == 0:  # noqa: ASYNC110 - over the file there is nothing to wait on
            await asyncio.sleep(0.05)
    assert abroad.purchase() == ("LIVE", None, 1, 2)


@pytest.mark.parametrize("settling", [ways.honest, ways.error_after_sending], ids=["vouches", "does not vouch"])
async def test_the_fee_payer_that_buyers_are_told_is_the_facilitators_where_it_lists_no_signers(
    tmp_path: Path, node: SolanaNode, target: RecordingTarget, settling: Settling
) -> None:
    async with (
        run_foreign_on_solana(node, settling, lists=False) as foreign,
        gateway(target, node, foreign, tmp_path / "gateway.db") as here,
    ):
        gate = await here.gate()
        assert (await here.present(gate, await here.payment(gate))).status == 200


async def test_a_claim_outlives_a_start_of_the_gateway(
    tmp_path: Path, node: SolanaNode, target: RecordingTarget
) -> None:
    database = tmp_path / "gateway.db"
    async with run_foreign_on_solana(node) as foreign:
        async with gateway(target, node, foreign, database) as here:
            gate = await here.gate()
            payment = await here.payment(gate)
            assert (await here.market.pay(gate, payment)).status == 200
        with closing(sqlite3.connect(database)) as connection:  # as if the process had ended before it heard the answer
            for undo in (
                "DELETE FROM calls",
                "DELETE FROM credits_given",
                "DELETE FROM credits",
                "UPDATE paygate_counters SET purchases = 0, revenue_micro = 0",
                "UPDATE purchases SET state = 'CLAIMED', request = x'00'",
                "UPDATE purchases SET transaction_hash = NULL, granted_ms = NULL",
            ):
                connection.execute(undo)
            connection.commit()
        async with gateway(target, node, foreign, database) as here:
            assert (await here.until("LIVE"))[3] == 1
            gate["accessUrl"] = f"{here.market.url}/{gate['slug']}"
            assert (await here.market.pay(gate, payment)).status == 200
        assert len(foreign.settles) == 1


async def test_a_node_that_does_not_answer_charges_nothing(
    tmp_path: Path, node: SolanaNode, target: RecordingTarget
) -> None:
    networks = {NETWORK: NetworkSettings(NETWORKS[NETWORK], ("http://127.0.0.1:1",))}
    async with (
        run_foreign_on_solana(node) as foreign,
        gateway(target, node, foreign, tmp_path / "gateway.db", networks=networks) as here,
    ):
        gate = await here.gate()
        answer = await here.market.pay(gate, await here.payment(gate))
        assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
        assert foreign.settles == []


async def test_without_a_node_only_gates_that_trust_it_are_served(
    tmp_path: Path, node: SolanaNode, target: RecordingTarget
) -> None:
    networks = {NETWORK: NetworkSettings(NETWORKS[NETWORK])}
    async with (
        run_foreign_on_solana(node) as foreign,
        gateway(target, node, foreign, tmp_path / "gateway.db", networks=networks) as here,
    ):
        refused = (await here.market.create()).json()
        assert refused["error"]["details"]["field"] == "assumeValid"
        assert "node" in refused["error"]["message"]
        gate = await here.gate(assumeValid=True)
        assert (await here.market.pay(gate, await here.payment(gate))).status == 200
