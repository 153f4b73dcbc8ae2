"""Settlements that share a transaction: each ends as it would alone, whatever the others are or do (contract 5.2)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.abi import encode_call
from tests.chains.batching import ADDRESSES, BURNER, delegate_raw, payers, plant
from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_process import HubProcess, settle_at
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment, one_under_way, run_hub
from tollkeeper.chains.evm.batcher import batcher_artifact
from tollkeeper.core.evm.batches import Via
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import TestWallet
from tollkeeper.storage.engine.database import Statement

TIP_WEI: Final = 2_000_000_000  # above the hub's: these go first in a block


@asynccontextmanager
async def run_batching_hub(
    directory: Path, chain: ChainUnderTest, via: Via = Via.BATCHER, **config: Any
) -> AsyncIterator[HubUnderTest]:
    """From the second settlement under way on they go together."""
    plant(chain, via)
    config = {"batch_queue_depth": 1, **config}
    async with run_hub(directory, chain, config=config, recovery_interval_seconds=0.2) as hub:
        yield hub


class Paused:
    """A node that mines when it is told to."""

    def __init__(self, chain: ChainUnderTest) -> None:
        self.chain = chain
        chain.rpc.call("evm_setAutomine", False)

    async def wait_for_pool(self, transactions: int) -> None:
        async with asyncio.timeout(60):
            while int(self.chain.rpc.call("txpool_status")["pending"], 16) < transactions:  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.02)

    def mine(self) -> None:
        self.chain.rpc.call("evm_mine")

    def resume(self) -> None:
        self.chain.rpc.call("evm_setAutomine", True)
        self.mine()


async def settle_all(hub: HubUnderTest, payments: list[TestPayment], **fields: Any) -> list[asyncio.Task[Answer]]:
    """Every one on its way, the first before the others."""
    tasks = [asyncio.create_task(hub.settle(payments[0], **fields))]
    await one_under_way(hub)
    return tasks + [asyncio.create_task(hub.settle(payment, **fields)) for payment in payments[1:]]


def carriers_of(chain: ChainUnderTest, blocks: int = 10) -> Counter[str]:
    """To whom the relayer's transactions of the last blocks went."""
    head = int(chain.rpc.call("eth_blockNumber"), 16)
    found: Counter[str] = Counter()
    for number in range(max(0, head - blocks + 1), head + 1):
        for sent in chain.rpc.call("eth_getBlockByNumber", hex(number), True)["transactions"]:
            if sent["from"].lower() == chain.wallets.relayer.address:
                found[sent["to"].lower()] += 1
    return found


async def counted(hub: HubUnderTest, table: str) -> int:
    rows = await hub.database.read(Statement(f"SELECT count(*) AS n FROM {table}"))  # noqa: S608 - own names
    n: int = rows[0]["n"]
    return n


async def statuses(hub: HubUnderTest, payments: list[TestPayment]) -> list[str]:
    return [await hub.status(payment) for payment in payments]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("via", Via)
async def test_payments_that_come_together_share_a_transaction(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, via: Via
) -> None:
    chain = anvil_fiat_token
    wallets = payers(chain, 10)
    payments = [new_payment(chain, signer=wallet) for wallet in [wallets[0], *wallets]]
    before = chain.balance(chain.wallets.owner.address)
    async with run_batching_hub(tmp_path, chain, via, batch_items_max=10) as hub:
        node = Paused(chain)
        tasks = await settle_all(hub, payments)
        await node.wait_for_pool(2)
        node.resume()
        answers = await asyncio.gather(*tasks)
        assert [answer.body["success"] for answer in answers] == [True] * 11
        assert len({answer.body["transaction"] for answer in answers[1:]}) == 1
        assert set(await statuses(hub, payments)) == {"success"}
        assert {(await hub.settle(payment)).reason for payment in payments} == {"duplicate_settlement"}
    assert chain.balance(chain.wallets.owner.address) == before + 11 * 10_000
    assert carriers_of(chain) == {USDC_ADDRESS: 1, ADDRESSES[via]: 1}


@pytest.mark.usefixtures("patient")
async def test_who_is_bad_fails_alone_and_the_history_says_so(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> None:
    """All ten are good when they are signed for; before they are mined, three of their payers see to it that not."""
    chain = anvil_fiat_token
    wallets = payers(chain, 10)
    payments = [new_payment(chain, signer=wallet) for wallet in [wallets[0], *wallets]]
    unsigned = new_payment(chain, signer=wallets[1], signature=bytes(64) + b"\x1b")
    batch = payments[1:]
    async with run_batching_hub(tmp_path, chain, batch_items_max=10) as hub:
        node = Paused(chain)
        tasks = await settle_all(hub, payments)
        assert (await hub.settle(unsigned)).body["success"] is False  # a bad signature never comes that far
        await node.wait_for_pool(2)
        spoilt = {2: use_elsewhere, 5: blacklist, 7: burn}
        for index, spoil in spoilt.items():
            spoil(chain, wallets[index], batch[index])
        node.resume()
        answers = (await asyncio.gather(*tasks))[1:]
        good = [index for index in range(10) if index not in spoilt]
        assert [index for index, answer in enumerate(answers) if answer.body.get("success")] == good
        assert answers[2].reason == "invalid_exact_evm_nonce_already_used"
        for index in spoilt:
            await hub.wait_for_status(batch[index], "failed")
        assert await statuses(hub, [batch[index] for index in good]) == ["success"] * 7
        bearer = await hub.login(chain.wallets.owner)
        history = (await hub.get("/api/v1/history?limit=50&offset=0", Authorization=bearer)).body["history"]
        shown = {item["x402Data"]["nonce"]: item["status"] for item in history}
        wanted = {payment.authorization.nonce: "success" for payment in payments}
        assert shown == {**wanted, **{batch[index].authorization.nonce: "failed" for index in spoilt}}


def use_elsewhere(chain: ChainUnderTest, _payer: TestWallet, payment: TestPayment) -> None:
    authorization = payment.authorization
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    chain.send(
        chain.wallets.faucet,
        USDC_ADDRESS,
        transfer_calldata(authorization, signature),
        max_priority_fee_per_gas=TIP_WEI,
    )


def blacklist(chain: ChainUnderTest, payer: TestWallet, _payment: TestPayment) -> None:
    owner = chain.rpc.call("eth_accounts")[0]
    data = "0x" + encode_call("blacklist(address)", payer.address).hex()
    fees = {"maxPriorityFeePerGas": hex(TIP_WEI), "maxFeePerGas": hex(10**10)}
    chain.rpc.call("eth_sendTransaction", {"from": owner, "to": USDC_ADDRESS, "data": data, **fees})


def burn(chain: ChainUnderTest, payer: TestWallet, _payment: TestPayment) -> None:
    chain.rpc.call("eth_sendRawTransaction", delegate_raw(chain, payer, BURNER, tip_wei=TIP_WEI))


@pytest.mark.usefixtures("patient")
async def test_a_batch_that_reverts_as_a_whole_is_tried_again_one_by_one(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    """Through Multicall3 one payer can burn the gas of all: the others are paid all the same."""
    chain = anvil_fiat_token
    wallets = payers(chain, 6)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets]
    before = chain.balance(chain.wallets.owner.address)
    async with run_batching_hub(tmp_path, chain, Via.MULTICALL, batch_items_max=5) as hub:
        node = Paused(chain)
        tasks = await settle_all(hub, payments)
        await node.wait_for_pool(2)
        burn(chain, wallets[3], payments[3])
        node.resume()
        answers = await asyncio.gather(*tasks)
        assert [answer.body.get("success") for answer in answers] == [True, True, True, False, True, True]
        assert await statuses(hub, payments) == ["success"] * 3 + ["failed"] + ["success"] * 2
    assert chain.balance(chain.wallets.owner.address) == before + 5 * 10_000
    assert carriers_of(chain, 20) == {USDC_ADDRESS: 5, ADDRESSES[Via.MULTICALL]: 1}


@pytest.mark.parametrize("via", Via)
async def test_an_account_with_code_goes_alone(tmp_path: Path, chain: ChainUnderTest, via: Via) -> None:
    wallet = chain.plant_smart_wallet(chain.wallets.buyer.address)
    chain.mint(wallet, 1_000_000)
    wallets = payers(chain, 3)
    payments = [new_payment(chain, signer=one) for one in wallets]
    payments.append(new_payment(chain, payer=wallet))
    async with run_batching_hub(tmp_path, chain, via, batch_items_max=3) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body["success"] for answer in answers] == [True] * 4
    assert chain.rpc.call("eth_getTransactionByHash", answers[3].body["transaction"])["to"].lower() == USDC_ADDRESS


@pytest.mark.parametrize("via", Via)
async def test_every_payment_under_load_is_settled_once_on_each_chain(
    tmp_path: Path, chain: ChainUnderTest, via: Via
) -> None:
    wallets = payers(chain, 5)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets * 8]
    before = chain.balance(chain.wallets.owner.address)
    async with run_batching_hub(tmp_path, chain, via, batch_items_max=7) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body["success"] for answer in answers] == [True] * 40
        assert set(await statuses(hub, payments)) == {"success"}
    assert chain.balance(chain.wallets.owner.address) == before + 40 * 10_000
    assert len({answer.body["transaction"] for answer in answers}) < 40


async def test_a_contract_with_other_code_carries_nothing(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = anvil_fiat_token
    for address in ADDRESSES.values():
        chain.rpc.call("anvil_setCode", address, "0x00")
    payments = [new_payment(chain) for _ in range(8)]
    config = {"batch_queue_depth": 1, "batcher": "0x" + "b7" * 20}
    async with run_hub(tmp_path, chain, config=config) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body["success"] for answer in answers] == [True] * 8
        # Who named it learns that it is not used, and by what else; until it is there.
        assert capsys.readouterr().out.count("batcher_cannot_be_called") == 1
        absent = f"base-sepolia: batcher {config['batcher']} is not called: our contract is not there"
        assert (await hub.get("/readyz")).body["problems"] == [f"{absent}; settlements go alone"]
        chain.rpc.call("anvil_setCode", config["batcher"], "0x" + batcher_artifact().runtime.hex())
        hub.recovery.check_interval_seconds = 0
        await hub.complete()
        assert (await hub.get("/readyz")).body["problems"] == []
    assert carriers_of(chain, 20) == {USDC_ADDRESS: 8}


@pytest.mark.usefixtures("patient")
async def test_a_node_that_does_not_show_the_carrier_keeps_nobody_from_settling(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    plant(embedded_chain, Via.BATCHER)
    chaos.act = lambda methods: Act.CUT if set(methods) == {"eth_getCode"} else Act.PASS
    config = {"batch_queue_depth": 1, "batch_items_max": 3}
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url, config=config) as hub:
        payments = [new_payment(embedded_chain) for _ in range(4)]
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body.get("success") for answer in answers] == [True] * 4
        chaos.calm()
        hub.recovery.check_interval_seconds = 0
        await hub.complete()  # the nodes are looked at again, and the contract is there
        answers = await asyncio.gather(*(hub.settle(new_payment(embedded_chain)) for _ in range(4)))
        assert len({answer.body["transaction"] for answer in answers}) == 2


@pytest.mark.usefixtures("patient")
async def test_a_signer_whose_money_lasts_for_few_settles_those(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    payments = [new_payment(chain, signer=wallet) for wallet in payers(chain, 6)]
    node = Paused(chain)  # the fees stay as they are
    base_fee = int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
    fee = 2 * base_fee + int(chain.rpc.call("eth_maxPriorityFeePerGas"), 16)
    chain.rpc.call("anvil_setBalance", chain.wallets.relayer.address, hex(fee * 150_000 * 7 // 2))
    async with run_batching_hub(tmp_path, chain, batch_items_max=5) as hub:
        tasks = await settle_all(hub, payments)
        await node.wait_for_pool(3)
        node.resume()
        answers = await asyncio.gather(*tasks)
        assert Counter(answer.status for answer in answers) == {200: 3, 503: 3}
        assert {answer.code for answer in answers if answer.status == 503} == {"UNAVAILABLE"}
    assert carriers_of(chain) == {USDC_ADDRESS: 3}


async def test_a_key_shows_its_own_payment_of_a_batch_again(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    payments = [new_payment(chain, signer=wallet) for wallet in payers(chain, 5)]
    async with run_batching_hub(tmp_path, chain, batch_items_max=4) as hub:
        keyed = list(zip(payments, "abcde", strict=True))
        for _ in range(2):
            answers = await asyncio.gather(*(hub.settle(payment, key=key) for payment, key in keyed))
            assert [answer.body["success"] for answer in answers] == [True] * 5
            assert [answer.body["payer"].lower() for answer in answers] == [
                payment.authorization.payer for payment in payments
            ]
        assert (await hub.settle(payments[2], key="b")).reason == "duplicate_settlement"  # the key is another payer's


@pytest.mark.usefixtures("patient")
async def test_a_batch_that_became_too_cheap_is_replaced_for_all_of_it(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    payments = [new_payment(chain, signer=wallet) for wallet in payers(chain, 5)]
    before = chain.balance(chain.wallets.owner.address)
    async with run_batching_hub(tmp_path, chain, batch_items_max=4) as hub:
        node = Paused(chain)
        tasks = await settle_all(hub, payments, prefer="wait=3")
        await node.wait_for_pool(2)
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {503}
        base_fee = int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(100 * base_fee))
        node.mine()
        assert set(await statuses(hub, payments)) == {"pending"}
        hub.lanes.stuck_seconds = 0
        for _ in range(2):
            await hub.complete()
        node.mine()
        for payment in payments:
            await hub.wait_for_status(payment, "success")
    assert chain.balance(chain.wallets.owner.address) == before + 50_000
    assert carriers_of(chain)[ADDRESSES[Via.BATCHER]] == 1


@pytest.mark.usefixtures("patient")
async def test_a_hub_that_was_gone_while_its_batch_reverted_tries_each_alone_when_it_is_back(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    wallets = payers(chain, 6)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets]
    before = chain.balance(chain.wallets.owner.address)
    node = Paused(chain)
    async with run_batching_hub(tmp_path, chain, Via.MULTICALL, batch_items_max=5) as hub:
        tasks = await settle_all(hub, payments, prefer="wait=3")
        await node.wait_for_pool(2)
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {503}
    burn(chain, wallets[3], payments[3])
    node.resume()
    async with run_batching_hub(tmp_path, chain, Via.MULTICALL) as hub:
        for payment, wanted in zip(payments, 3 * ["success"] + ["failed"] + 2 * ["success"], strict=True):
            await hub.wait_for_status(payment, wanted)
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body["success"] for answer in answers] == [True, True, True, False, True, True]
    assert chain.balance(chain.wallets.owner.address) == before + 5 * 10_000


async def test_where_few_are_under_way_each_goes_alone(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    payments = [new_payment(chain) for _ in range(8)]
    async with run_batching_hub(tmp_path, chain, batch_queue_depth=8) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert [answer.body["success"] for answer in answers] == [True] * 8
    assert carriers_of(chain, 20) == {USDC_ADDRESS: 8}


async def test_five_hundred_waiting_payments_are_mined_within_three_blocks_on_one_key(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    wallets = payers(chain, 20)
    payments = [new_payment(chain, signer=wallet, value=100) for wallet in wallets * 25]
    asked = [payment.requiring(maxAmountRequired="100") for payment in payments]
    async with run_batching_hub(tmp_path, chain, batch_items_max=25) as hub:
        node = Paused(chain)
        head = int(chain.rpc.call("eth_blockNumber"), 16)
        tasks = [asyncio.create_task(hub.post("/settle", {**body, "confirm": True})) for body in asked]
        async with asyncio.timeout(60):
            while await counted(hub, "settlements") < len(payments):  # noqa: ASYNC110 - a database is asked
                await asyncio.sleep(0.1)
        await node.wait_for_pool(await counted(hub, "raw_transactions"))
        chain.rpc.call("evm_setIntervalMining", 1)
        await asyncio.gather(*tasks)
        shown = [await hub.wait_for_status(payment, "success") for payment in payments]
        hashes = {answer.body["transaction"] for answer in shown}
        blocks = {int(chain.rpc.call("eth_getTransactionReceipt", one)["blockNumber"], 16) for one in hashes}
        assert max(blocks) - head <= 3


@pytest.mark.usefixtures("patient")
async def test_a_batch_whose_block_is_taken_back_is_mined_again(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    wallets = payers(chain, 4)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets]
    before = chain.balance(chain.wallets.owner.address)
    async with run_batching_hub(tmp_path, chain, batch_items_max=3) as hub:
        node = Paused(chain)
        snapshot = chain.rpc.call("evm_snapshot")
        tasks = await settle_all(hub, payments)
        await node.wait_for_pool(2)
        node.mine()
        answers = await asyncio.gather(*tasks)
        assert [answer.body["success"] for answer in answers] == [True] * 4
        chain.rpc.call("evm_revert", snapshot)
        assert chain.balance(chain.wallets.owner.address) == before
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_setAutomine", True)
        async with asyncio.timeout(30):
            while chain.balance(chain.wallets.owner.address) != before + 40_000:
                await hub.complete()
                await asyncio.sleep(0.1)
        for payment in payments:
            await hub.wait_for_status(payment, "success")
    assert chain.balance(chain.wallets.owner.address) == before + 40_000


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_hub_killed_with_a_batch_on_its_way_settles_each_of_it_once(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, moment: str
) -> None:
    chain = embedded_chain
    plant(chain, Via.BATCHER)
    wallets = payers(chain, 8)
    payments = [new_payment(chain, signer=wallet) for wallet in wallets]
    before = chain.balance(chain.wallets.owner.address)
    with await asyncio.to_thread(HubProcess, tmp_path, chaos.url, batch_queue_depth=1) as process:
        kill_at_second_send(chaos, process.kill, moment)
        asked = [settle_at(process.url, payment.asking(confirm=True)) for payment in payments]
        assert None in await asyncio.gather(*asked)
    chaos.calm()
    chaos.after_pass = lambda _methods: None
    async with run_batching_hub(tmp_path, chain) as hub:
        answers = await asyncio.gather(*(hub.settle(payment) for payment in payments))
        assert {answer.status for answer in answers} == {200}
        assert set(await statuses(hub, payments)) == {"success"}
    assert chain.balance(chain.wallets.owner.address) == before + 8 * 10_000


def kill_at_second_send(chaos: ChaosNode, kill: Callable[[], None], moment: str) -> None:
    """The first transaction goes alone, the second is a batch."""
    sends = 0

    def count(methods: list[str]) -> bool:
        nonlocal sends
        sends += methods.count("eth_sendRawTransaction")
        if sends == 2:
            kill()
        return sends >= 2

    def cut(methods: list[str]) -> Act:
        return Act.CUT if count(methods) else Act.PASS

    if moment == "before":
        chaos.act = cut
    else:
        chaos.after_pass = count
