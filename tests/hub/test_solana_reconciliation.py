"""The hub's books and a Solana chain, whatever was lost on either side (security I6 to I8, F8, F22)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair

from tests.chains.solana_node import BUYER, FEE_PAYER, WALLETS, drafted, paid_for_by, paying
from tests.core.solana_payments import Draft, compute_limit, compute_price, memo, transfer
from tests.engines import beside, copy_database
from tests.hub.chaos import run_chaos
from tests.hub.solana_hub import SolanaHub, hub_of, run_solana_hub, solana_settings
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode
from tollkeeper.serving.books.reconciliation import compare_with_chain, keep_reconciling
from tollkeeper.settings.model import Role
from tollkeeper.storage.engine.database import Statement


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


async def differences(
    path: Path, node: SolanaNode, since_block: int | None = None, *, role: Role = Role.HUB
) -> list[str]:
    """Between the books and what is final on the chain."""
    node.chain.next_slot(FINAL_SLOTS + 10)
    found = await compare_with_chain(solana_settings(node.url, path / "hub.db", role), since_block)
    return [difference.rule for difference in found]


def change(path: Path, *statements: str) -> None:
    with beside(path / "hub.db") as connection:
        for statement in statements:
            connection.execute(statement)


async def settled(world: SolanaHub, count: int = 1) -> None:
    for _ in range(count):
        assert (await world.settle(world.payment())).body["success"] is True


def carried_out(node: SolanaNode, draft: Draft, *signers: Keypair) -> None:
    """On the chain, without any hub."""
    node.chain.send(bytes(replace(draft, signers=signers).transaction()), skips_preflight=True)


def copied(path: Path, name: str) -> Path:
    """The books in a directory of their own."""
    directory = path / name
    directory.mkdir()
    copy_database(path / "hub.db", directory / "hub.db")
    return directory


async def test_what_was_settled_and_what_failed_agree_with_the_chain(tmp_path: Path, world: SolanaHub) -> None:
    await settled(world, 3)
    assert (await world.settle(world.payment(10**12))).body["success"] is False
    stranger = Keypair()
    world.node.chain.airdrop(str(stranger.pubkey()), 10**9)
    draft = paid_for_by(paying(world.node, 5), stranger)
    carried_out(world.node, draft, stranger, BUYER)  # between strangers, which is nobody's business here
    assert await differences(tmp_path, world.node) == []


async def test_what_is_not_final_yet_is_not_compared(tmp_path: Path, world: SolanaHub) -> None:
    await settled(world)
    world.node.chain.roll_back(1)
    assert await compare_with_chain(solana_settings(world.node.url, tmp_path / "hub.db")) == []


async def test_a_restored_backup_lacks_what_the_chain_has(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            await settled(world)
        backup = copied(tmp_path, "backup")
        async with hub_of(tmp_path, node) as world:
            await settled(world, 2)
        assert await differences(backup, node) == ["settled_but_not_in_the_books"] * 2


@pytest.mark.parametrize("slots", [0, RECENT_SLOTS + 1])
async def test_what_a_restored_backup_forgot_is_settled_by_what_the_chain_shows(tmp_path: Path, slots: int) -> None:
    """Also when its blockhash has become too old: nobody pays twice, and the payment is a success once."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            await settled(world)
        backup = copied(tmp_path, "backup")
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            assert (await world.settle(body)).body["success"]
        node.chain.next_slot(slots)
        async with hub_of(backup, node) as world:
            assert (await world.settle(body)).body["success"] is True
            assert (await world.settle(body)).reason == "duplicate_settlement"
            assert world.earned == 20_000
        assert await differences(backup, node) == []


@pytest.mark.parametrize("slots", [0, RECENT_SLOTS + 1])
async def test_what_a_restored_backup_forgot_is_known_when_its_payer_has_spent_the_rest(
    tmp_path: Path, slots: int
) -> None:
    """The buyer, who paid, has no money left for the payment to be simulated with."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            await settled(world)
        backup = copied(tmp_path, "backup")
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            paid = await world.settle(body)
            assert (await world.settle(world.payment(BUYER_MICRO - 20_000))).body["success"]
        node.chain.next_slot(slots)
        async with hub_of(backup, node) as world:
            verified = await world.verify(body)
            assert (verified.body["isValid"], verified.reason) == (False, "duplicate_settlement")
            assert verified.body["transaction"] == paid.body["transaction"]
            again = await world.settle(body)
            assert (again.body["success"], again.body["transaction"]) == (True, paid.body["transaction"])


async def test_a_fork_that_was_left_took_a_payment_with_it(tmp_path: Path, world: SolanaHub) -> None:
    await settled(world)
    for recovery in world.hub.hub.recoveries.values():
        await recovery.close()  # the pass of the start, which would find it out, too, and send it again
    world.node.chain.roll_back(1)
    assert await differences(tmp_path, world.node) == ["paid_but_not_on_the_chain"]


async def test_a_payment_to_a_seller_that_another_facilitator_carried_out_is_listed(
    tmp_path: Path, world: SolanaHub
) -> None:
    await settled(world)
    change(tmp_path, "UPDATE settlements SET purchase_data = '{}'")
    stranger = Keypair()
    world.node.chain.airdrop(str(stranger.pubkey()), 10**9)
    carried_out(world.node, paid_for_by(paying(world.node, 5), stranger), stranger, BUYER)
    moved = (compute_limit(), compute_price(), transfer(5, payer=BUYER.pubkey(), pay_to=WALLETS.owner.address))
    world.node.chain.airdrop(str(BUYER.pubkey()), 10**9)
    alone = Draft(moved, BUYER.pubkey(), (BUYER,), drafted(world.node).blockhash)
    carried_out(world.node, alone, BUYER)  # a wallet's own transfer is no payment
    assert await differences(tmp_path, world.node, role=Role.SERVE) == ["payment_without_purchase"]
    assert await differences(tmp_path, world.node, role=Role.HUB) == [], "its gateways know what they honoured"


@pytest.mark.parametrize(
    ("lie", "rule"),
    [
        ("value = '9999'", "paid_otherwise"),
        ("pay_to = payer", "paid_otherwise"),
        ("state = 'BROADCAST', block_number = NULL", "carried_out_but_open"),
        ("state = 'FAILED', proof = 'expired', error = 'x'", "failed_but_carried_out"),
        ("transaction_hash = 'x'", "paid_in_another_transaction"),
    ],
)
async def test_books_that_say_otherwise_than_the_chain_are_listed(tmp_path: Path, lie: str, rule: str) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            await settled(world)
        change(tmp_path, f"UPDATE settlements SET {lie}")  # noqa: S608 - own text
        assert await differences(tmp_path, node, 0) == [rule]


async def test_an_account_with_more_transactions_than_one_answer_names_is_read_in_pages(
    tmp_path: Path, world: SolanaHub
) -> None:
    await settled(world)
    for number in range(1_005):
        other = drafted(world.node, compute_limit(), compute_price(), memo(b"%d" % number))
        carried_out(world.node, other, FEE_PAYER)
    await settled(world)
    assert await differences(tmp_path, world.node) == []


async def test_a_chain_that_cannot_be_asked_agrees_with_nothing(tmp_path: Path, world: SolanaHub) -> None:
    await settled(world)
    await world.node.stop()
    with pytest.raises(RpcUnavailable):
        await compare_with_chain(solana_settings(world.node.url, tmp_path / "hub.db"))


async def test_of_two_nodes_behind_one_address_one_that_stands_still_is_not_compared_with(
    tmp_path: Path, world: SolanaHub
) -> None:
    """One says which slot is final, and another one, which has not come there, lists nothing of it."""
    standing = world.node.chain.slot
    world.node.chain.next_slot(2)
    await settled(world)

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "getSignaturesForAddress":
            return answer
        if call["params"][1].get("minContextSlot", 0) <= standing:
            return answer | {"result": []}
        error = {"code": -32016, "message": "Minimum context slot has not been reached"}
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error}

    async with run_chaos(world.node.url) as provider:
        provider.falsify = falsify
        world.node.chain.next_slot(FINAL_SLOTS + 10)
        settings = solana_settings(provider.url, tmp_path / "hub.db")
        with pytest.raises(RpcUnavailable, match="Minimum context slot"):
            await compare_with_chain(settings)
        asyncio.get_running_loop().call_later(0.5, provider.calm)  # it has come there by now
        assert await compare_with_chain(settings) == []


async def test_the_job_reads_what_is_final_once(tmp_path: Path, world: SolanaHub) -> None:
    await settled(world)
    settings = solana_settings(world.node.url, tmp_path / "hub.db")
    job = asyncio.create_task(keep_reconciling(settings, world.hub.database, 0.05, 0))
    async with asyncio.timeout(30):
        world.node.chain.next_slot(FINAL_SLOTS + 5)
        while (await _next_block(world)) < 5:  # noqa: ASYNC110 - over the database there is nothing to wait on
            await asyncio.sleep(0.05)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


async def _next_block(world: SolanaHub) -> int:
    rows = await world.hub.database.read(Statement("SELECT next_block FROM chain_cursors"))
    return int(rows[0]["next_block"]) if rows else 0
