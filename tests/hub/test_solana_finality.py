"""What was confirmed on Solana before it is final: forks that are left, proofs of failure, restarts (F8)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.solana_node import WALLETS, paying
from tests.hub.chaos import Act, run_chaos
from tests.hub.solana_hub import SolanaHub, hub_of, run_solana_hub
from tollkeeper.api import clock_ms
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.core.settlement.states import Depths
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode
from tollkeeper.storage.engine.database import Statement

EXPIRED_SLOTS = RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


async def taken_back(world: SolanaHub) -> int:
    """How often a told outcome was."""
    rows = await world.hub.database.read(
        Statement("SELECT count(*) AS n FROM settlement_events WHERE detail = 'no longer on the chain'")
    )
    return int(rows[0]["n"])


async def test_what_a_left_fork_takes_away_is_sent_again_and_moves_once(world: SolanaHub) -> None:
    body = world.payment()
    first = await world.settle(body)
    assert (first.body["success"], world.earned) == (True, 10_000)
    assert world.node.chain.roll_back(1) == 1
    assert world.earned == 0
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    assert world.earned == 10_000
    await world.complete()
    assert await world.status(body) == "success"
    assert await taken_back(world) == 1
    assert (await world.settle(body)).reason == "duplicate_settlement"
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    assert await world.status(body) == "success"
    assert (await taken_back(world), world.earned) == (1, 10_000)


async def test_a_success_is_not_doubted_before_its_slot_can_be_final(world: SolanaHub) -> None:
    """A node that does not show it may be behind."""
    body = world.payment()
    assert (await world.settle(body)).body["success"]
    world.node.chain.roll_back(1)
    world.node.chain.next_slot(FINAL_SLOTS - 1)
    await world.complete()
    assert await world.status(body) == "success"


async def test_what_is_final_is_asked_about_once(world: SolanaHub) -> None:
    body = world.payment()
    assert (await world.settle(body)).body["success"]
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    world.node.chain.roll_back(FINAL_SLOTS + 1)  # no cluster does that
    await world.complete()
    assert await world.status(body) == "success"


async def test_what_a_left_fork_takes_away_for_good_fails_by_proof_and_not_before(world: SolanaHub) -> None:
    body = world.payment()
    assert (await world.settle(body)).body["success"]
    world.node.chain.roll_back(1)
    world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + 1)  # its blockhash is too old to be sent again
    await world.complete()
    await world.complete()
    assert await world.status(body) == "pending"
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    assert await world.status(body) == "failed"
    assert (world.earned, await taken_back(world)) == (0, 1)


async def test_absence_proves_nothing_at_a_node_that_has_thrown_those_blocks_away(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    world.node.chain.drop()
    world.node.chain.next_slot(EXPIRED_SLOTS)
    world.node.chain.first_slot = 100
    await world.complete()
    assert await world.status(body) == "pending"
    world.node.chain.first_slot = 0
    await world.complete()
    assert await world.status(body) == "failed"


async def test_a_payer_whose_money_is_gone_on_the_other_branch_has_paid_nothing(world: SolanaHub) -> None:
    body = world.payment(BUYER_MICRO)
    assert (await world.settle(body)).body["success"]
    world.node.chain.roll_back(1)
    other = world.payment(1)
    assert (await world.settle(other)).body["success"]
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()  # what is gone is found out and sent again; it fails there
    await world.complete()
    assert await world.status(body) == "pending"  # a failure is proven once it is final
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    assert await world.status(body) == "failed"
    assert (await world.settle(body)).reason == "invalid_exact_svm_transaction_failed"
    assert world.earned == 1


async def test_a_restarted_hub_looks_again_at_what_was_told_before(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            assert (await world.settle(body)).body["success"]
        node.chain.roll_back(1)
        node.chain.next_slot(FINAL_SLOTS)
        async with hub_of(tmp_path, node) as world:
            await world.complete()
            await world.complete()
            assert await world.status(body) == "success"
            assert (await taken_back(world), world.earned) == (1, 10_000)


async def test_a_hub_that_was_down_for_long_looks_again_at_what_it_told_last(tmp_path: Path) -> None:
    """Also where it tells others before its first look, and where the node does not say then which blocks it has."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as slow:
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            assert (await world.settle(body)).body["success"]
        node.chain.roll_back(1)
        node.chain.next_slot(FINAL_SLOTS)
        acts = {"getGenesisHash": Act.LATE, "getBlocks": Act.SERVER_ERROR}
        slow.act = lambda methods: next((acts[one] for one in methods if one in acts), Act.PASS)
        async with hub_of(tmp_path, node, rpc_url=slow.url, now_ms=lambda: clock_ms() + 86_400_000) as world:
            assert (await world.settle(world.payment())).body["success"]
            for _ in range(2):
                await world.recovery.complete(clock_ms() + 2 * 86_400_000)
            assert (await world.status(body), await taken_back(world)) == ("success", 0)
            slow.calm()
            for _ in range(2):
                await world.recovery.complete(clock_ms() + 2 * 86_400_000)
            assert await world.status(body) == "success"
            assert (await taken_back(world), world.earned) == (1, 20_000)


async def test_where_outcomes_are_told_when_they_are_final_no_fork_changes_them(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path, is_final_needed=True) as world:
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        await world.complete()
        assert await world.status(body) == "pending"
        world.node.chain.roll_back(1)
        await world.complete()
        assert (await world.status(body), world.earned) == ("pending", 10_000)
        world.node.chain.next_slot(FINAL_SLOTS)
        await world.complete()
        assert (await world.status(body), world.earned) == ("success", 10_000)


async def test_every_fork_of_a_crowd_ends_with_each_payment_once(world: SolanaHub) -> None:
    bodies = [world.payment(1_000) for _ in range(20)]
    for number, body in enumerate(bodies):
        assert (await world.settle(body)).body["success"]
        world.node.chain.next_slot()
        if number % 5 == 4:
            world.node.chain.roll_back(3)
    world.node.chain.next_slot(FINAL_SLOTS)
    for _ in range(3):
        await world.complete()
    assert [await world.status(body) for body in bodies] == ["success"] * 20
    assert world.earned == 20_000
    assert await taken_back(world) == 8


def asking(world: SolanaHub, fee_payer: str) -> dict[str, object]:
    """A payment whose fee the first account pays, at a server that names that one."""
    return world.asking(paying(world.node, 10_000), extra={"feePayer": fee_payer})


async def test_a_402_is_paid_whichever_fee_payer_is_advertised_meanwhile(world: SolanaHub) -> None:
    first, second = (one.address for one in WALLETS.fee_payers)
    for named in (first, second):
        assert (await world.settle(asking(world, named))).body["success"]
    stranger = await world.settle(asking(world, WALLETS.owner.address))
    assert stranger.reason == "invalid_exact_svm_fee_payer_mismatch"


async def test_a_402_from_before_a_restart_with_more_keys_is_paid(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node, keys=WALLETS.fee_payers[:1]) as world:
            kind, _ = (await world.hub.get("/supported")).body["kinds"]
            assert kind["extra"]["feePayer"] == WALLETS.fee_payers[0].address
            outstanding = asking(world, kind["extra"]["feePayer"])
        async with hub_of(tmp_path, node, keys=WALLETS.fee_payers[::-1]) as world:
            assert (await world.settle(outstanding)).body["success"]


async def test_a_fee_payer_without_money_is_told_of_and_the_other_one_advertised(world: SolanaHub) -> None:
    for poor, rich in (WALLETS.fee_payers, WALLETS.fee_payers[::-1]):
        world.node.chain.drain(poor.address)
        world.node.chain.airdrop(rich.address, 10**10)
        world.recovery.check_interval_seconds = 0
        await world.complete()
        kind, _ = (await world.hub.get("/supported")).body["kinds"]
        assert kind["extra"]["feePayer"] == rich.address
        (told,) = world.hub.hub.shortages()
        assert poor.address in told


async def test_a_large_amount_is_told_once_it_is_final(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path, depths=Depths(1, ((20_000, 2),))) as world:
        assert (await world.settle(world.payment(19_999))).body["success"] is True
        body = world.payment(20_000)
        assert (await world.settle(body, Prefer="wait=1")).code == "SETTLEMENT_PENDING"
        await world.complete()
        assert await world.status(body) == "pending"
        world.node.chain.next_slot(FINAL_SLOTS)
        await world.complete()
        assert (await world.status(body), (await world.settle(body)).body["success"]) == ("success", True)


async def test_a_node_that_lacks_blocks_in_between_proves_no_failure(world: SolanaHub) -> None:
    """One that was away and began anew from a snapshot still names an old block as its first."""
    body = world.payment()
    world.node.chain.next_slot(10)
    world.node.chain.holds = True
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    world.node.chain.next_slot()
    world.node.chain.release()
    slot = world.node.chain.slot
    world.node.chain.lacks = range(slot - 3, slot + 30)
    world.node.chain.next_slot(EXPIRED_SLOTS)
    with capture_logs() as logs:
        await world.complete()
        await world.complete()
    assert (await world.status(body), world.earned) == ("pending", 10_000)
    assert [line["node"] for line in logs if line["event"] == "blocks_missing"] == [1], "the operator is told, once"
    world.node.chain.holds = True
    other = world.payment()
    assert (await world.settle(other, Prefer="wait=0")).status == 503
    world.node.chain.release()
    await world.complete()
    assert [await world.status(one) for one in (body, other)] == ["pending", "success"], "nothing else waits for it"
    world.node.chain.lacks = range(0)
    await world.complete()
    assert await world.status(body) == "success"


@pytest.mark.parametrize("is_first_told", [True, False])
async def test_a_node_that_lacks_a_success_s_block_does_not_take_it_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_first_told: bool
) -> None:
    """Nor does anything else wait for it, also where the node does not say which block is its first."""
    monkeypatch.setattr("tollkeeper.hub.solana.watch._SOON_SECONDS", 0.0)
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as proxy,
        hub_of(tmp_path, node, rpc_url=proxy.url) as world,
    ):
        node.chain.next_slot(10)
        body = world.payment()
        assert (await world.settle(body)).body["success"]
        slot = node.chain.slot
        node.chain.lacks = range(slot, slot + 30)
        node.chain.next_slot(EXPIRED_SLOTS)
        node.chain.holds = True
        other = world.payment()
        assert (await world.settle(other, Prefer="wait=0")).status == 503
        node.chain.release()
        if not is_first_told:
            proxy.on("getFirstAvailableBlock", Act.SERVER_ERROR)
        for _ in range(2):
            await world.complete()
        assert [await world.status(one) for one in (body, other)] == ["success", "success"], "nothing else waits for it"
        method, passes = "getBlocks" if is_first_told else "getFirstAvailableBlock", 40
        asked = proxy.calls[method]
        for _ in range(passes):
            await world.complete()
        assert proxy.calls[method] - asked < passes, "it is asked ever more rarely"
        node.chain.lacks = range(0)
        await world.complete()
        assert (await world.status(body), await taken_back(world)) == ("success", 0)
