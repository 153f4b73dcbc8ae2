"""Transactions whose fees became too low are replaced, and gaps are filled (security F6, F7, A-25; contract 5.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, TestPayment, new_payment, run_hub
from tests.hub.test_gas import GAS_LIMIT
from tests.hub.test_recovery import change
from tollkeeper.api import clock_ms
from tollkeeper.core.evm.encoding import Transaction, transfer_calldata
from tollkeeper.core.evm.signed_transactions import read_signed
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement
from tollkeeper.storage.hub.leases import LeaseLost
from tollkeeper.storage.hub.settlements import find_payment
from tollkeeper.storage.hub.transactions import GasBudget, replace_transaction, transactions_of


async def stored(hub: HubUnderTest) -> list[Any]:
    """Every transaction that was ever signed."""
    rows = await hub.database.read(Statement("SELECT * FROM raw_transactions ORDER BY signer_nonce, created_ms"))
    return list(rows)


async def counted(hub: HubUnderTest) -> dict[bool, int]:
    """The gas of the hour, by whether a trusted gateway asked for it, or nobody."""
    rows = await hub.database.read(Statement("SELECT is_trusted, SUM(gas) AS gas FROM gas_spent GROUP BY is_trusted"))
    return {bool(row["is_trusted"]): row["gas"] for row in rows}


async def stick(hub: HubUnderTest, chain: ChainUnderTest, count: int) -> list[TestPayment]:
    """Payments whose transactions the next block cannot take, because gas costs a hundred times as much."""
    chain.rpc.call("evm_setAutomine", False)
    payments = [new_payment(chain) for _ in range(count)]
    for payment in payments:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
    block = chain.rpc.call("eth_getBlockByNumber", "latest", False)
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(100 * int(block["baseFeePerGas"], 16)))
    chain.rpc.call("anvil_mine", "0x1")
    hub.lanes.stuck_seconds = 0
    return payments


async def test_transactions_that_became_too_cheap_are_replaced_and_mined(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    payments = await stick(hub_on_anvil, anvil_fiat_token, 3)
    first = [row["hash"] for row in await stored(hub_on_anvil)]
    assert len(first) == 3
    with capture_logs() as logs:
        for _ in range(2):
            await hub_on_anvil.complete()
    assert sum(line["event"] == "transaction_replaced" for line in logs) == 3
    assert await counted(hub_on_anvil) == {False: 3 * GAS_LIMIT}  # of each nonce one transaction is mined
    anvil_fiat_token.rpc.call("evm_mine")
    await hub_on_anvil.complete()
    nonces = Counter(row["signer_nonce"] for row in await stored(hub_on_anvil))
    assert len(nonces) == 3
    for payment in payments:
        shown = (await hub_on_anvil.get(payment.status_path)).body
        assert (shown["status"], shown["transaction"] in first) == ("success", False)
        receipt = anvil_fiat_token.rpc.call("eth_getTransactionReceipt", shown["transaction"])
        assert receipt["status"] == "0x1"
        assert (await hub_on_anvil.settle(payment)).body["transaction"] == shown["transaction"]
    assert anvil_fiat_token.nonce(anvil_fiat_token.wallets.relayer) == 3


async def test_of_a_transaction_and_its_replacement_whichever_is_mined_counts(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    (payment,) = await stick(hub_on_anvil, anvil_fiat_token, 1)
    for _ in range(2):
        await hub_on_anvil.complete()
    old, new = [row["hash"] for row in await stored(hub_on_anvil)]
    (raw_old,) = [row["raw"] for row in await stored(hub_on_anvil) if row["hash"] == old]
    anvil_fiat_token.rpc.call("anvil_dropTransaction", new)
    anvil_fiat_token.rpc.call("anvil_setNextBlockBaseFeePerGas", "0x1")
    anvil_fiat_token.rpc.call("eth_sendRawTransaction", "0x" + bytes(raw_old).hex())
    anvil_fiat_token.rpc.call("anvil_mine", "0x1")
    for _ in range(2):
        await hub_on_anvil.complete()
    shown = (await hub_on_anvil.get(payment.status_path)).body
    assert (shown["status"], shown["transaction"]) == ("success", old)
    handed_out = (await hub_on_anvil.settle(payment)).body
    assert (handed_out["success"], handed_out["transaction"]) == (True, old)


async def test_fees_of_a_replacement_stay_under_the_cap(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    await stick(hub_on_anvil, anvil_fiat_token, 1)
    (row,) = await stored(hub_on_anvil)
    old = read_signed(bytes(row["raw"])).transaction
    chain = hub_on_anvil.account.chain
    base_fee = (await chain.latest_block()).base_fee_wei
    cap = base_fee + base_fee // 4
    object.__setattr__(chain.config, "max_fee_per_gas_wei", cap)
    for _ in range(3):
        await hub_on_anvil.complete()
    replaced = [read_signed(bytes(row["raw"])).transaction for row in await stored(hub_on_anvil)][1:]
    assert replaced
    assert all(one.max_fee_per_gas <= cap for one in replaced)
    assert all(one.nonce == old.nonce and one.data == old.data for one in replaced)
    assert all(one.max_fee_per_gas * 10 >= old.max_fee_per_gas * 11 for one in replaced)


async def stick_at_the_cap(hub: HubUnderTest, chain: ChainUnderTest) -> tuple[TestPayment, Transaction]:
    """A payment that pays all that a settlement may, where the next block asks for more, and for less than the cap."""
    ask_per_gas(chain, 20 * 10**9)  # so that an eighth of it is more than anvil's tip
    chain.rpc.call("anvil_mine", "0x1")
    (payment,) = await stick(hub, chain, 1)
    (row,) = await stored(hub)
    old = read_signed(bytes(row["raw"])).transaction
    evm_chain = hub.account.chain
    object.__setattr__(evm_chain.config, "max_fee_per_gas_wei", -(-old.max_fee_per_gas * 9 // 8) + 1)
    assert evm_chain.config.settlement_fee_cap_wei == old.max_fee_per_gas
    ask_per_gas(chain, old.max_fee_per_gas + 1)
    chain.rpc.call("anvil_mine", "0x1")
    return payment, old


def ask_per_gas(chain: ChainUnderTest, base_fee_wei: int) -> None:
    """The next block's base fee."""
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(base_fee_wei))


async def test_a_nonce_whose_settlement_the_cap_does_not_pay_for_is_freed_and_the_payment_is_made_once(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    owner, relayer = chain.wallets.owner.address, chain.wallets.relayer
    paid, nonce = chain.balance(owner), chain.nonce(relayer)
    payment, old = await stick_at_the_cap(hub, chain)
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {"transaction_stuck_at_cap"}
    assert len(await stored(hub)) == 1

    hub.lanes.free_after_seconds = 0
    with capture_logs() as logs:
        await hub.complete()
    (replaced,) = [line for line in logs if line["event"] == "transaction_replaced"]
    assert replaced["frees_nonce"] is True
    freeing = read_signed(bytes((await stored(hub))[-1]["raw"])).transaction
    assert (freeing.nonce, freeing.to, freeing.value, freeing.data) == (nonce, relayer.address, 0, b"")
    cap = hub.account.chain.config.max_fee_per_gas_wei
    assert old.max_fee_per_gas < freeing.max_fee_per_gas <= cap
    assert await hub.status(payment) == "pending"
    assert await counted(hub) == {False: GAS_LIMIT}

    ask_per_gas(chain, old.max_fee_per_gas + 1)
    chain.rpc.call("evm_mine")
    assert chain.nonce(relayer) == nonce + 1
    await hub.complete()
    shown = (await hub.get(payment.status_path)).body
    assert (shown["status"], chain.balance(owner)) == ("failed", paid)
    (row,) = await hub.database.read(Statement("SELECT state, proof FROM settlements"))
    assert (row["state"], row["proof"]) == ("FAILED", "reverted")

    ask_per_gas(chain, 10**9)
    chain.rpc.call("evm_mine")
    chain.rpc.call("evm_setAutomine", True)
    won = (await hub.settle(payment)).body
    again = (await hub.settle(payment)).body
    assert (won["success"], again["success"]) == (True, False)  # each success is handed out once
    assert again["transaction"] == won["transaction"]
    (row,) = await hub.database.read(Statement("SELECT state, attempt FROM settlements"))
    assert (row["state"], row["attempt"]) == ("CONFIRMED", 2)
    assert chain.balance(owner) == paid + payment.authorization.value
    assert chain.nonce(relayer) == nonce + 2


async def test_of_a_settlement_and_what_frees_its_nonce_whichever_is_mined_counts(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    payment, old = await stick_at_the_cap(hub, chain)
    hub.lanes.free_after_seconds = 0
    for _ in range(2):
        await hub.complete()
    settling, freeing = await stored(hub)
    chain.rpc.call("anvil_dropTransaction", freeing["hash"])
    ask_per_gas(chain, old.max_fee_per_gas // 2)
    chain.rpc.call("eth_sendRawTransaction", "0x" + bytes(settling["raw"]).hex())
    chain.rpc.call("anvil_mine", "0x1")
    await hub.complete()
    shown = (await hub.get(payment.status_path)).body
    assert (shown["status"], shown["transaction"]) == ("success", settling["hash"])


async def test_a_gap_is_filled_where_gas_costs_more_than_a_settlement_may_pay(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    nonce = chain.nonce(chain.wallets.relayer)
    await hub.database.run(change("UPDATE signer_lanes SET next_nonce = next_nonce + 1"))
    _, old = await stick_at_the_cap(hub, chain)
    assert old.nonce == nonce + 1
    with capture_logs() as logs:
        for _ in range(2):
            await hub.complete()
    assert sum(line["event"] == "nonce_gap_filled" for line in logs) == 1
    filler, settling = await stored(hub)
    assert (filler["signer_nonce"], settling["signer_nonce"]) == (nonce, nonce + 1)
    assert read_signed(bytes(filler["raw"])).transaction.max_fee_per_gas > old.max_fee_per_gas
    ask_per_gas(chain, old.max_fee_per_gas + 1)
    chain.rpc.call("evm_mine")
    assert chain.nonce(chain.wallets.relayer) == nonce + 1


async def test_where_gas_costs_more_than_the_whole_cap_nothing_is_signed_and_the_operator_is_told(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    await stick(hub, chain, 1)
    ask_per_gas(chain, 2 * hub.account.chain.config.max_fee_per_gas_wei)
    chain.rpc.call("anvil_mine", "0x1")
    hub.lanes.free_after_seconds = 0
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {"lane_stuck_at_cap"}
    assert len(await stored(hub)) == 1


async def mine_and_stick(hub: HubUnderTest, chain: ChainUnderTest) -> tuple[TestPayment, TestPayment]:
    """A payment that was mined and that nobody has looked at since, and one that is stuck behind it."""
    chain.rpc.call("evm_setAutomine", False)
    mined = new_payment(chain)
    assert (await hub.settle(mined, prefer="wait=0")).status == 503
    chain.rpc.call("evm_mine")
    (stuck,) = await stick(hub, chain, 1)
    assert [await hub.status(payment) for payment in (mined, stuck)] == ["pending", "pending"]
    return mined, stuck


async def test_a_stuck_transaction_that_may_not_be_signed_any_more_holds_up_no_other_and_its_nonce_is_freed(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    """As after a start with another configuration: it was signed with more gas than may be signed for now."""
    hub, chain = hub_on_anvil, anvil_fiat_token
    mined, stuck = await mine_and_stick(hub, chain)
    nonce = chain.nonce(chain.wallets.relayer)
    (relayer,) = hub.account.signers.relayers
    object.__setattr__(relayer.signer.policy, "gas_max", 100_000)
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {"transaction_not_allowed_now"}
    assert [await hub.status(payment) for payment in (mined, stuck)] == ["success", "pending"]

    hub.lanes.free_after_seconds = 0
    await hub.complete()
    freeing = read_signed(bytes((await stored(hub))[-1]["raw"])).transaction
    assert (freeing.nonce, freeing.to, freeing.data) == (nonce, chain.wallets.relayer.address, b"")
    chain.rpc.call("evm_mine")
    await hub.complete()
    assert [await hub.status(payment) for payment in (mined, stuck)] == ["success", "failed"]


async def test_a_lane_that_cannot_be_read_holds_up_no_settlement(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    mined, stuck = await mine_and_stick(hub, chain)
    row = (await stored(hub))[-1]
    spoil = "UPDATE raw_transactions SET raw = :raw WHERE hash = :hash"
    await hub.database.run(change(spoil, raw=b"\x02\xc0", hash=row["hash"]))
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert {line["event"] for line in logs if line["log_level"] == "error"} == {"lane_not_understood"}
    assert [await hub.status(payment) for payment in (mined, stuck)] == ["success", "pending"]
    await hub.database.run(change(spoil, raw=bytes(row["raw"]), hash=row["hash"]))
    await hub.complete()
    chain.rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(stuck) == "success"


async def test_what_is_young_or_pays_enough_is_not_replaced(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    assert (await hub.settle(new_payment(embedded_chain), prefer="wait=0")).status == 503
    for stuck_seconds in (45, 0):
        hub.lanes.stuck_seconds = stuck_seconds
        for _ in range(3):
            await hub.complete()
        assert len(await stored(hub)) == 1


async def leave_in_the_pool(hub: HubUnderTest, chain: ChainUnderTest, count: int) -> list[TestPayment]:
    """Payments whose transactions pay enough, at a node that mines nothing."""
    chain.rpc.call("evm_setAutomine", False)
    payments = [new_payment(chain) for _ in range(count)]
    for payment in payments:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
    hub.lanes.stuck_seconds = 0
    return payments


async def test_what_pays_enough_and_is_never_mined_is_replaced_each_time_after_as_long_again(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    payments = await leave_in_the_pool(hub, chain, 2)
    hub.lanes.unmined_seconds = 0.5
    async with asyncio.timeout(60):
        while len(signed := await stored(hub)) < 5:
            await hub.complete()
            await asyncio.sleep(0.01)
    assert Counter(row["signer_nonce"] for row in signed) == {0: 4, 1: 1}  # what waits behind it lacks nothing
    tips = [read_signed(bytes(row["raw"])).transaction.max_priority_fee_per_gas for row in signed[:4]]
    assert tips == sorted(set(tips))
    first, *later = [row["created_ms"] for row in signed[:4]]
    for before, after in pairwise([first, *later]):
        assert after - before >= max(500, before - first)
    assert await counted(hub) == {False: 2 * GAS_LIMIT}
    chain.rpc.call("evm_mine")
    await hub.complete()
    assert [await hub.status(payment) for payment in payments] == ["success", "success"]
    assert chain.nonce(chain.wallets.relayer) == 2


async def test_what_pays_enough_and_is_never_mined_stays_as_it_is_where_the_cap_allows_no_more(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = hub_on_anvil, anvil_fiat_token
    (payment,) = await leave_in_the_pool(hub, chain, 1)
    hub.lanes.unmined_seconds = hub.lanes.free_after_seconds = 0
    (row,) = await stored(hub)
    paid = read_signed(bytes(row["raw"])).transaction.max_fee_per_gas
    object.__setattr__(hub.account.chain.config, "max_fee_per_gas_wei", paid * 9 // 8)
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert not [line for line in logs if line["log_level"] == "error"]
    assert len(await stored(hub)) == 1
    chain.rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(payment) == "success"


@pytest.mark.parametrize("gap", [1, 3])
async def test_a_gap_before_what_was_signed_is_filled(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, gap: int
) -> None:
    await hub.database.run(change("UPDATE signer_lanes SET next_nonce = next_nonce + :gap", gap=gap))
    payment = new_payment(embedded_chain)
    assert (await hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
    relayer = embedded_chain.wallets.relayer.address
    before = int(embedded_chain.rpc.call("eth_getBalance", relayer, "latest"), 16)
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert sum(line["event"] == "nonce_gap_filled" for line in logs) == gap
    assert await counted(hub) == {False: GAS_LIMIT, True: gap * 21_000}
    assert await hub.status(payment) == "success"
    assert int(embedded_chain.rpc.call("eth_getBalance", relayer, "latest"), 16) < before
    answers = await asyncio.gather(*(hub.settle(new_payment(embedded_chain)) for _ in range(10)))
    assert {answer.body["success"] for answer in answers} == {True}


async def test_a_gap_is_filled_although_the_budget_is_used_up_and_new_settlements_wait_for_it(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    async with run_hub(tmp_path, chain, config={"gas_budget_per_hour": 6 * GAS_LIMIT}) as hub:
        await hub.recovery.close()  # the pass of the start, which might fill the gap before the budget is used up
        await hub.database.run(change("UPDATE signer_lanes SET next_nonce = next_nonce + 1"))
        payments = [new_payment(chain) for _ in range(2)]
        for payment in payments:
            assert (await hub.settle(payment, prefer="wait=0")).code == "SETTLEMENT_PENDING"
        for _ in range(3):
            await hub.complete()
        assert {await hub.status(payment) for payment in payments} == {"success"}
        assert await counted(hub) == {False: 2 * GAS_LIMIT, True: 21_000}
        assert (await hub.settle(new_payment(chain))).code == "UNAVAILABLE"


async def test_a_nonce_that_the_node_has_a_transaction_for_is_not_filled(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    outside = new_payment(embedded_chain)
    embedded_chain.send(
        embedded_chain.wallets.relayer,
        USDC_ADDRESS,
        transfer_calldata(outside.authorization, embedded_chain.sign(outside.authorization)),
    )
    await hub.database.run(change("UPDATE signer_lanes SET next_nonce = next_nonce + 1"))
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert not [line for line in logs if line["event"] == "nonce_gap_filled"]


async def test_a_replacement_whose_answer_was_lost_is_found_again(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """The replacement was stored and sent, and the node's answer did not come back."""
    payments = await stick(chaos_hub, embedded_chain, 1)
    chaos.on("eth_sendRawTransaction", Act.LOSE_ANSWER, times=2)
    for _ in range(2):
        await chaos_hub.complete()
    chaos.calm()
    embedded_chain.rpc.call("evm_mine")
    for _ in range(2):
        await chaos_hub.complete()
    assert await chaos_hub.status(payments[0]) == "success"
    assert len(await stored(chaos_hub)) == 2


async def test_what_was_mined_is_not_replaced_whatever_a_node_says(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    transaction = (await hub.settle(payment)).body["transaction"]
    row = await find_payment(hub.database, NETWORK, payment.authorization.payer, payment.authorization.nonce)
    assert row is not None
    (raw,) = await transactions_of(hub.database, row)
    lease = await hub.hub.membership.lease("lane")
    assert lease is not None
    other = replace(raw, hash="0x" + "ab" * 32)
    budget = GasBudget(NETWORK, 10**9, 10**9, clock_ms())
    assert not await hub.database.run(replace_transaction(lease, raw, other, budget, gas=1, frees_nonce=False))
    lost = replace(lease, token=0)
    with pytest.raises(LeaseLost):
        await hub.database.run(replace_transaction(lost, raw, other, budget, gas=1, frees_nonce=False))
    assert len(await stored(hub)) == 1
    assert (await hub.get(payment.status_path)).body["transaction"] == transaction
