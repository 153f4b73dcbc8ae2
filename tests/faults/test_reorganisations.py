"""Blocks that are taken back, transactions that are dropped or stand still, under Circle's token (F5 to F8, F20).

Whatever the chain forgets, each payment is on it once in the end, the history says so, and nobody signs twice.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.batching import payers, plant
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import nothing_mined, take_back
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import PRICE, assert_settled_once, pay
from tests.faults.counts import came
from tests.hub.hub_under_test import HubUnderTest, TestPayment, new_payment, run_hub
from tollkeeper.core.evm.batches import Via
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.hub.evm import batch
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

DEPTHS: Final = range(1, 7)
SETTLING_SECONDS: Final = 90


class Carried(Enum):
    """How payments go to the chain."""

    ALONE = auto()
    TOGETHER = auto()


@asynccontextmanager
async def hub_of(directory: Path, chain: ChainUnderTest, carried: Carried) -> AsyncIterator[HubUnderTest]:
    """Its recovery works all the time; together: from the second payment under way on, at most four a transaction."""
    config = {}
    if carried is Carried.TOGETHER:
        plant(chain, Via.BATCHER)
        config = {"batch_queue_depth": 1, "batch_items_max": 4}
    chain.rpc.call("anvil_mine", hex(max(DEPTHS)))  # what the buyers have is not among what is taken back
    with pytest.MonkeyPatch.context() as patience:
        patience.setattr(batch, "WAIT_SECONDS", 1.0)  # on a busy machine not all come within 40 ms
        async with run_hub(directory, chain, config=config, recovery_interval_seconds=0.1) as hub:
            yield hub


def purses(chain: ChainUnderTest, carried: Carried, count: int) -> list[dict[str, Any]]:
    """Who pays: a crowd, or the same buyer again and again."""
    if carried is Carried.ALONE:
        return [{}] * count
    return [{"signer": wallet} for wallet in payers(chain, count)]


async def paid(hub: HubUnderTest, payments: Sequence[TestPayment], carried: Carried) -> None:
    """Alone: in a block each. Together: the first alone, the others with each other."""
    if carried is Carried.ALONE:
        for payment in payments:
            assert (await pay(hub.url, payment))["success"] is True
        return
    answers = await asyncio.gather(*(pay(hub.url, payment) for payment in payments))
    assert [answer["success"] for answer in answers] == [True] * len(payments)


async def wait_for_balance(chain: ChainUnderTest, micro: int) -> None:
    """Until the payee holds that much again."""
    owner = chain.wallets.owner.address
    async with asyncio.timeout(SETTLING_SECONDS):
        while chain.balance(owner) != micro:  # noqa: ASYNC110 - a chain is asked
            await asyncio.sleep(0.05)


async def reopened(hub: HubUnderTest) -> int:
    """How often a told outcome was taken back."""
    rows = await hub.database.read(
        Statement("SELECT count(*) AS n FROM settlement_events WHERE detail LIKE '%no longer on the chain%'")
    )
    count: int = rows[0]["n"]
    return count


@pytest.mark.parametrize("carried", Carried)
async def test_what_reorganisations_of_any_depth_take_away_is_settled_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, carried: Carried
) -> None:
    chain = anvil_fiat_token
    buyers = purses(chain, carried, 7)
    before = chain.balance(chain.wallets.owner.address)
    payments: list[TestPayment] = []
    async with hub_of(tmp_path, chain, carried) as hub:
        for depth in DEPTHS:
            new = [new_payment(chain, **buyer) for buyer in buyers]
            await paid(hub, new, carried)
            payments += new
            known = await reopened(hub)
            reorganise(chain, depth)
            async with asyncio.timeout(SETTLING_SECONDS):
                while await reopened(hub) == known:  # noqa: ASYNC110 - the database is asked
                    await asyncio.sleep(0.05)
            await wait_for_balance(chain, before + PRICE * len(payments))
        await assert_settled_once(hub.url, tmp_path, chain, payments, before)
        assert await reopened(hub) >= (sum(DEPTHS) if carried is Carried.ALONE else len(DEPTHS))


def reorganise(chain: ChainUnderTest, depth: int, *raws: str) -> None:
    """So many blocks are replaced; the first new one holds these transactions."""
    take_back(chain, depth, *raws)
    came(f"reorganisation of depth {depth}")


def drop(chain: ChainUnderTest, hashes: Sequence[str]) -> None:
    """The node forgets these."""
    for one in hashes:
        chain.rpc.call("anvil_dropTransaction", one)
    came("dropped transaction", len(hashes))


def relayed(chain: ChainUnderTest, payment: TestPayment, nonce: int) -> str:
    """A raw transaction of a stranger's that carries the payment out."""
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    data = transfer_calldata(payment.authorization, signature)
    raw, _ = chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, nonce=nonce)
    return raw


async def test_a_payment_that_a_stranger_carries_out_on_the_other_branch_moves_once_and_is_told_so(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    before = chain.balance(chain.wallets.owner.address)
    payment = new_payment(chain)
    async with hub_of(tmp_path, chain, Carried.ALONE) as hub:
        await paid(hub, [payment], Carried.ALONE)
        reorganise(chain, 1, relayed(chain, payment, chain.nonce(chain.wallets.faucet)))
        await hub.wait_for_status(payment, "failed", seconds=SETTLING_SECONDS)
        answer = await hub.settle(payment)
        assert (answer.status, answer.body["success"]) == (200, False)
        assert chain.balance(chain.wallets.owner.address) == before + PRICE
        await assert_nothing_lost(tmp_path, chain, paid=[], refused=[payment.authorization])


async def test_a_payer_whose_money_is_gone_on_the_other_branch_has_paid_nothing_and_is_told_so(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    (payer,) = payers(chain, 1)
    before = chain.balance(chain.wallets.owner.address)
    payment = new_payment(chain, signer=payer)
    spent = new_payment(chain, signer=payer, value=chain.balance(payer.address), pay_to="0x" + "99" * 20)
    async with hub_of(tmp_path, chain, Carried.ALONE) as hub:
        await paid(hub, [payment], Carried.ALONE)
        reorganise(chain, 1, relayed(chain, spent, chain.nonce(chain.wallets.faucet)))
        await hub.wait_for_status(payment, "failed", seconds=SETTLING_SECONDS)
        assert chain.balance(chain.wallets.owner.address) == before
        await assert_nothing_lost(tmp_path, chain, paid=[], refused=[payment.authorization])


def waiting_hashes(chain: ChainUnderTest) -> list[str]:
    """Of the node's pool, those of the relayer's, in the order of their nonces."""
    pool = chain.rpc.call("txpool_content")
    found: dict[int, str] = {}
    for part in pool.values():
        for sender, transactions in part.items():
            if sender.lower() == chain.wallets.relayer.address:
                found |= {int(nonce): one["hash"] for nonce, one in transactions.items()}
    return [found[nonce] for nonce in sorted(found)]


async def stand_still(
    hub: HubUnderTest, chain: ChainUnderTest, payments: Sequence[TestPayment], transactions: int
) -> list[asyncio.Task[dict[str, Any]]]:
    """All payments signed and in the pool of a node that does not mine."""
    chain.rpc.call("evm_setAutomine", False)
    asked = []
    for payment in payments:
        asked.append(asyncio.create_task(pay(hub.url, payment)))
        if len(asked) == 1:
            await asyncio.sleep(0.5)
    async with asyncio.timeout(SETTLING_SECONDS):
        while len(waiting_hashes(chain)) < transactions:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)
    return asked


@pytest.mark.parametrize("dropped", ["first", "middle", "last", "all"])
@pytest.mark.parametrize("carried", Carried)
async def test_dropped_transactions_are_sent_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, carried: Carried, dropped: str
) -> None:
    chain = anvil_fiat_token
    count = 5 if carried is Carried.ALONE else 9  # one alone, and two fours
    payments = [new_payment(chain, **buyer) for buyer in purses(chain, carried, count)]
    before = chain.balance(chain.wallets.owner.address)
    async with hub_of(tmp_path, chain, carried) as hub:
        asked = await stand_still(hub, chain, payments, 5 if carried is Carried.ALONE else 3)
        waiting = waiting_hashes(chain)
        chosen = {"first": waiting[:1], "middle": waiting[1:2], "last": waiting[-1:], "all": waiting}[dropped]
        drop(chain, chosen)
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_setAutomine", True)
        answers = await asyncio.gather(*asked)
        assert [answer["success"] for answer in answers] == [True] * count
        await assert_settled_once(hub.url, tmp_path, chain, payments, before)


@pytest.mark.parametrize("carried", Carried)
async def test_transactions_that_nobody_mines_are_replaced_and_the_chain_carries_each_payment_once(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, carried: Carried
) -> None:
    chain = anvil_fiat_token
    count = 4 if carried is Carried.ALONE else 9
    payments = [new_payment(chain, **buyer) for buyer in purses(chain, carried, count)]
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    transactions = 4 if carried is Carried.ALONE else 3
    async with hub_of(tmp_path, chain, carried) as hub:
        asked = await stand_still(hub, chain, payments, transactions)
        stuck = waiting_hashes(chain)
        base_fee = int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(100 * base_fee))
        chain.rpc.call("evm_mine")
        assert chain.balance(chain.wallets.owner.address) == before
        hub.lanes.stuck_seconds = 0
        async with asyncio.timeout(SETTLING_SECONDS):
            while chain.balance(chain.wallets.owner.address) != before + PRICE * count:
                chain.rpc.call("evm_mine")
                await asyncio.sleep(0.5)
        chain.rpc.call("evm_setAutomine", True)
        assert [answer["success"] for answer in await asyncio.gather(*asked)] == [True] * count
        await assert_settled_once(hub.url, tmp_path, chain, payments, before)
    came("stuck transaction", transactions)
    assert not [one for one in stuck if chain.rpc.call("eth_getTransactionReceipt", one)]
    assert chain.nonce(chain.wallets.relayer) == nonce + transactions


def take_back_and_drop(chain: ChainUnderTest, chosen: random.Random) -> None:
    """Some blocks, and some of what waits by the time the hub may have seen it."""
    with nothing_mined(chain):
        reorganise(chain, chosen.choice(DEPTHS))
        time.sleep(chosen.random() / 2)
        drop(chain, waiting_hashes(chain)[:: chosen.randrange(1, 4)])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("carried", Carried)
@pytest.mark.parametrize("seed", range(3))
async def test_reorganisations_and_drops_under_load_leave_each_payment_on_the_chain_once(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, carried: Carried, seed: int
) -> None:
    chain, chosen = anvil_fiat_token, random.Random(seed)
    buyers = purses(chain, carried, 20)
    before = chain.balance(chain.wallets.owner.address)
    payments: list[TestPayment] = []
    async with hub_of(tmp_path, chain, carried) as hub:
        for _ in range(12):
            new = [new_payment(chain, **buyer) for buyer in buyers]
            payments += new
            asked = [asyncio.create_task(pay(hub.url, payment)) for payment in new]
            for _ in range(3):
                await asyncio.sleep(chosen.random())
                await asyncio.to_thread(take_back_and_drop, chain, chosen)  # the hub works meanwhile
            assert [answer["success"] for answer in await asyncio.gather(*asked)] == [True] * len(new)
        await wait_for_balance(chain, before + PRICE * len(payments))
        await assert_settled_once(hub.url, tmp_path, chain, payments, before)
