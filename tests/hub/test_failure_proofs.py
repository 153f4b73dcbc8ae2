"""A failure is proven as deep as its amount needs, and is open again where a reorganisation takes the proof away.

On anvil with Circle's token, at three confirmations (contract 5.2; security 5, F8, F9).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.hub.hub_under_test import HubUnderTest, TestPayment, fresh_nonce, in_the_pool, new_payment, run_hub
from tests.hub.test_reorganisations import cancel_calldata, events_of, height
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.settlement.states import Depths
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallet
from tollkeeper.storage.engine.database import Statement

DEPTH = 3
FAST = {"max_priority_fee_per_gas": 10**8}


@pytest_asyncio.fixture
async def careful_hub(tmp_path: Path, anvil_fiat_token: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Three confirmations, of failures too."""
    anvil_fiat_token.rpc.call("anvil_mine", "0x8")  # so that no reorganisation takes away what was set up
    async with run_hub(tmp_path, anvil_fiat_token, config={"depths": Depths(DEPTH)}) as running:
        yield running


async def row_of(hub: HubUnderTest) -> dict[str, Any]:
    (row,) = await hub.database.read(Statement("SELECT * FROM settlements"))
    return dict(row)


async def unsent(hub: HubUnderTest, chain: ChainUnderTest, **changes: Any) -> TestPayment:
    """A payment under way whose transaction the node does not have."""
    chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(chain, **changes)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    await dropped(chain, (await row_of(hub))["transaction_hash"])
    return payment


async def dropped(chain: ChainUnderTest, transaction_hash: str) -> None:
    """The node forgets it, once it has it: who waits for nothing may be answered before it is sent."""
    async with asyncio.timeout(60):
        while chain.rpc.call("eth_getTransactionByHash", transaction_hash) is None:  # noqa: ASYNC110 - a node is asked
            await asyncio.sleep(0.02)
    chain.rpc.call("anvil_dropTransaction", transaction_hash)


def mined(chain: ChainUnderTest, raw: str) -> str:
    """Mined now, in a block of its own; its hash."""
    transaction_hash: str = chain.rpc.call("eth_sendRawTransaction", raw)
    chain.rpc.call("evm_mine")
    assert chain.rpc.call("eth_getTransactionReceipt", transaction_hash)["blockNumber"] == hex(height(chain))
    return transaction_hash


async def failed_only_deep(
    hub: HubUnderTest, chain: ChainUnderTest, payment: TestPayment, proof: str
) -> dict[str, Any]:
    """The proof is in the newest block: it counts once two more lie on it. The row."""
    for _ in range(DEPTH - 1):
        await hub.complete()
        assert await hub.status(payment) == "pending"
        chain.rpc.call("evm_mine")
    for _ in range(DEPTH):  # our own transaction, sent again meanwhile, failed a block later: that is deep then too
        await hub.complete()
        if await hub.status(payment) == "failed":
            break
        chain.rpc.call("evm_mine")
    row = await row_of(hub)
    assert (row["state"], row["proof"]) == ("FAILED", proof)
    assert row["block_hash"]
    return row


async def reorganised(hub: HubUnderTest, chain: ChainUnderTest, row: dict[str, Any]) -> None:
    """The block that the proof rests on is gone."""
    take_back(chain, height(chain) - row["block_number"] + 1)
    block = chain.rpc.call("eth_getBlockByNumber", hex(row["block_number"]), False)
    assert block["hash"] != row["block_hash"]
    await hub.complete()


@pytest.mark.parametrize("kind", ["relayed", "cancelled"])
async def test_a_foreign_use_fails_a_payment_once_it_lies_deep(
    careful_hub: HubUnderTest, anvil_fiat_token: ChainUnderTest, kind: str
) -> None:
    hub, chain = careful_hub, anvil_fiat_token
    payment = await unsent(hub, chain)
    authorization = payment.authorization
    data = cancel_calldata(chain, payment)
    if kind == "relayed":
        data = transfer_calldata(authorization, chain.sign(authorization))
    raw, _ = chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, **FAST)
    foreign = mined(chain, raw)
    row = await failed_only_deep(hub, chain, payment, "foreign")
    assert row["foreign_hash"] == foreign
    owner = chain.balance(chain.wallets.owner.address)
    await reorganised(hub, chain, row)
    chain.rpc.call("anvil_dropTransaction", foreign)
    assert await hub.status(payment) == "pending"
    assert (await events_of(hub, payment))[-2:] == ["FAILED", "BROADCAST"]
    # The other branch has no foreign transaction: ours is sent again and makes the transfer.
    await settled(hub, chain, payment)
    moved = 10_000 if kind == "cancelled" else 0  # the relayed one had paid the owner before it was taken back
    assert chain.balance(chain.wallets.owner.address) == owner + moved


async def settled(hub: HubUnderTest, chain: ChainUnderTest, payment: TestPayment) -> None:
    chain.rpc.call("evm_setAutomine", True)
    for _ in range(DEPTH + 2):
        await hub.complete()
        chain.rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(payment) == "success"


async def test_a_revert_fails_a_payment_once_it_lies_deep(
    careful_hub: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = careful_hub, anvil_fiat_token
    buyer = chain.wallets.second_buyer
    payment = await unsent(hub, chain, signer=buyer)
    held = chain.balance(buyer.address)
    drain = chain.authorization(payer=buyer.address, pay_to="0x" + "77" * 20, value=held)
    raw, _ = chain.transaction(
        chain.wallets.faucet, USDC_ADDRESS, transfer_calldata(drain, chain.sign(drain, signer=buyer)), **FAST
    )
    mined(chain, raw)
    for _ in range(2):  # a lane that stood still sends again what the node lacks
        await hub.complete()
    chain.rpc.call("evm_mine")
    assert chain.rpc.call("eth_getTransactionReceipt", (await row_of(hub))["transaction_hash"])["status"] == "0x0"
    row = await failed_only_deep(hub, chain, payment, "reverted")
    await reorganised(hub, chain, row)
    assert await hub.status(payment) == "pending"
    assert (await events_of(hub, payment))[-2:] == ["FAILED", "BROADCAST"]


async def test_an_end_fails_a_payment_once_it_lies_deep_and_is_watched(
    careful_hub: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = careful_hub, anvil_fiat_token
    payment = await unsent(hub, chain)
    chain.rpc.call("evm_setNextBlockTimestamp", payment.authorization.valid_before + 61)
    chain.rpc.call("evm_mine")
    for _ in range(DEPTH - 1):
        await hub.complete()
        assert await hub.status(payment) == "pending"
        chain.rpc.call("anvil_dropTransaction", (await row_of(hub))["transaction_hash"])
        chain.rpc.call("evm_mine")
    await hub.complete()
    row = await row_of(hub)
    assert (row["state"], row["proof"], row["block_number"]) == ("FAILED", "expired", height(chain) - DEPTH + 1)
    await reorganised(hub, chain, row)
    assert await hub.status(payment) == "pending"
    assert (await events_of(hub, payment))[-2:] == ["FAILED", "BROADCAST"]
    # On the other branch the time is another one: the authorization is good there, and the transfer is made.
    assert chain.now() < payment.authorization.valid_before
    await settled(hub, chain, payment)


async def test_a_payment_is_tried_three_times_in_all_and_each_failure_is_proven_deep(
    careful_hub: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    hub, chain = careful_hub, anvil_fiat_token
    buyer = chain.wallets.second_buyer
    payment = new_payment(chain, signer=buyer)
    for attempt in (1, 2, 3):
        chain.rpc.call("evm_setAutomine", False)
        assert (await hub.settle(payment, prefer="wait=0", key=f"claim.{attempt}")).status == 503
        ours = (await row_of(hub))["transaction_hash"]
        await dropped(chain, ours)
        held = chain.balance(buyer.address)
        drain = chain.authorization(payer=buyer.address, pay_to="0x" + "77" * 20, value=held)
        data = transfer_calldata(drain, chain.sign(drain, signer=buyer))
        mined(chain, chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, **FAST)[0])
        for _ in range(2):
            await hub.complete()
        chain.rpc.call("evm_mine")
        await failed_only_deep(hub, chain, payment, "reverted")
        chain.rpc.call("evm_setAutomine", True)
        chain.mint(buyer.address, held)
    exhausted = await hub.settle(payment)
    assert (exhausted.body["success"], exhausted.reason) == (False, "invalid_exact_evm_transaction_failed")
    assert (await row_of(hub))["attempt"] == 3
    assert (await events_of(hub, payment)).count("CLAIMED") == 3


async def test_what_failed_may_not_be_called_failed_while_an_earlier_attempt_s_transaction_can_be_mined(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest
) -> None:
    """A reorganisation gave the first signer its nonce back; the second one's transaction failed on the new branch."""
    chain, buyer, other = anvil_fiat_token, anvil_fiat_token.wallets.second_buyer, derive_wallet("another signer")
    chain.rpc.call("anvil_setBalance", other.address, hex(10**18))
    chain.rpc.call("anvil_mine", "0x8")
    keys = (chain.wallets.relayer.private_key, other.private_key)

    def mined_before(raw: str) -> None:
        """In one block, behind what takes all that the buyer has."""
        taken = chain.authorization(
            payer=buyer.address, pay_to="0x" + "77" * 20, value=chain.balance(buyer.address), nonce=fresh_nonce()
        )
        data = transfer_calldata(taken, chain.sign(taken, signer=buyer))
        chain.rpc.call("eth_sendRawTransaction", chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, **FAST)[0])
        transaction = chain.rpc.call("eth_sendRawTransaction", raw)
        chain.rpc.call("evm_mine")
        assert chain.rpc.call("eth_getTransactionReceipt", transaction)["status"] == "0x0"

    async with run_hub(tmp_path, chain, signer_keys=keys) as hub:
        payment = await unsent(hub, chain, signer=buyer)
        first = await row_of(hub)
        mined_before(await raw_of(hub, first["transaction_hash"]))
        failed_in = height(chain)
        await hub.complete()
        assert await hub.status(payment) == "failed"
        chain.rpc.call("evm_setAutomine", True)
        chain.mint(buyer.address, 1_000_000)
        chain.rpc.call("evm_setAutomine", False)
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        second = await row_of(hub)
        assert (second["attempt"], second["signer"]) == (2, other.address)
        raw = await raw_of(hub, second["transaction_hash"])
        await dropped(chain, second["transaction_hash"])
        take_back(chain, height(chain) - failed_in + 1)
        chain.rpc.call("anvil_dropTransaction", first["transaction_hash"])
        mined_before(raw)
        for _ in range(3):
            await hub.complete()
            assert await hub.status(payment) == "pending"
        chain.rpc.call("anvil_dropTransaction", first["transaction_hash"])
        chain.rpc.call("evm_setAutomine", True)
        chain.mint(buyer.address, 1_000_000)
        for _ in range(3):
            await hub.complete()
        shown = (await hub.get(payment.status_path)).body
        assert (shown["status"], shown["transaction"]) == ("success", first["transaction_hash"])


async def raw_of(hub: HubUnderTest, transaction_hash: str) -> str:
    statement = Statement("SELECT raw FROM raw_transactions WHERE hash = :hash", {"hash": transaction_hash})
    (row,) = await hub.database.read(statement)
    return "0x" + bytes(row["raw"]).hex()


@pytest.mark.parametrize("kind", ["relayed", "cancelled"])
async def test_what_another_carried_out_is_no_failure_of_its_payer_and_what_it_cancelled_is(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest, kind: str
) -> None:
    """Our own transaction reverts behind the other one and costs its gas: whose doing was that?"""
    hub, chain = hub_on_anvil, anvil_fiat_token
    chain.rpc.call("evm_setAutomine", False)
    nonce = chain.nonce(chain.wallets.relayer)
    payment = new_payment(chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    await in_the_pool(chain, nonce + 1)
    authorization = payment.authorization
    data = cancel_calldata(chain, payment)
    if kind == "relayed":
        data = transfer_calldata(authorization, chain.sign(authorization))
    raw, _ = chain.transaction(chain.wallets.faucet, USDC_ADDRESS, data, **FAST)
    mined(chain, raw)
    for _ in range(2):
        await hub.complete()
        chain.rpc.call("evm_mine")
    row = await row_of(hub)
    assert (row["state"], row["proof"]) == ("FAILED", "foreign")
    receipt = chain.rpc.call("eth_getTransactionReceipt", row["transaction_hash"])
    assert receipt["status"] == "0x0"
    failures = await hub.database.read(Statement("SELECT payer, failures FROM payer_failures"))
    expected = [(authorization.payer.lower(), 1)] if kind == "cancelled" else []
    assert [(one["payer"], one["failures"]) for one in failures] == expected
    spent = await hub.database.read(Statement("SELECT SUM(gas) AS gas FROM gas_spent"))
    assert spent[0]["gas"] > 0, "its gas counts all the same"
