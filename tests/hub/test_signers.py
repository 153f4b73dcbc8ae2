"""Several keys settle on one network: load spreads, and one without money is passed over (contract 5.2; A-25, A-26)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, new_payment, run_hub
from tests.hub.test_recovery import leave_pending
from tollkeeper.core.evm.encoding import SELECTOR_AUTHORIZATION_STATE, checksum_address
from tollkeeper.hub.signer_pool import SignerPool
from tollkeeper.sandbox.wallets import derive_wallet
from tollkeeper.storage.engine.database import Statement, Steps, unit_of_work

WALLETS = [derive_wallet(f"relayer-{number}") for number in (1, 2, 3)]


@pytest_asyncio.fixture
async def hub_of_keys(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    """Settles with three keys that hold ether."""
    for wallet in WALLETS:
        embedded_chain.rpc.call("anvil_setBalance", wallet.address, hex(10**19))
    keys = tuple(wallet.private_key for wallet in WALLETS)
    async with run_hub(tmp_path, embedded_chain, signer_keys=keys) as running:
        yield running


async def settle(hub: HubUnderTest, chain: ChainUnderTest, count: int) -> Counter[str]:
    """Who sent the transactions of so many settlements at once."""
    answers = await asyncio.gather(*(hub.settle(new_payment(chain)) for _ in range(count)))
    assert Counter(answer.body.get("success") for answer in answers) == {True: count}
    hashes = [answer.body["transaction"] for answer in answers]
    assert len(set(hashes)) == count
    return Counter(chain.rpc.call("eth_getTransactionByHash", one)["from"].lower() for one in hashes)


async def test_settlements_spread_over_the_keys_and_each_key_s_nonces_are_dense(
    hub_of_keys: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    senders = await settle(hub_of_keys, embedded_chain, 90)
    assert set(senders) == {wallet.address for wallet in WALLETS}
    assert min(senders.values()) >= 20
    rows = await hub_of_keys.database.read(
        Statement("SELECT signer, signer_nonce FROM raw_transactions ORDER BY signer, signer_nonce")
    )
    for wallet in WALLETS:
        nonces = [row["signer_nonce"] for row in rows if row["signer"] == wallet.address]
        assert nonces == list(range(senders[wallet.address]))
        assert embedded_chain.nonce(wallet) == len(nonces)


async def test_every_key_is_advertised(hub_of_keys: HubUnderTest) -> None:
    body = (await hub_of_keys.get("/supported")).body
    assert body["signers"] == {"eip155:*": [checksum_address(wallet.address) for wallet in WALLETS]}


async def test_a_key_without_gas_money_is_passed_over_and_told_of(
    hub_of_keys: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    hub, chain = hub_of_keys, embedded_chain
    poor = WALLETS[1]
    await hub.complete()  # the pass of the start is over, too
    chain.rpc.call("anvil_setBalance", poor.address, "0x1")
    hub.recovery.check_interval_seconds = 0
    await asyncio.sleep(2.1)  # balances are remembered for about a block
    with capture_logs() as logs:
        await hub.complete()
    assert [(line["event"], line["signer"]) for line in logs if "gas" in line["event"]] == [
        ("signer_without_gas", poor.address)
    ]
    assert poor.address not in await settle(hub, chain, 30)
    problem = f"{NETWORK}: the signer {poor.address} has no gas money"
    assert (await hub.get("/readyz")).body["problems"] == [problem]
    left = {"network": NETWORK, "signer": poor.address}
    assert hub.hub.metrics.registry.get_sample_value("tollkeeper_hub_signer_settlements_left", left) == 0
    for wallet in WALLETS:
        chain.rpc.call("anvil_setBalance", wallet.address, "0x1")
    await asyncio.sleep(2.1)
    refused = await hub.settle(new_payment(chain))
    assert (refused.status, refused.code) == (503, "UNAVAILABLE")
    chain.rpc.call("anvil_setBalance", poor.address, hex(10**19))
    await asyncio.sleep(2.1)
    assert set(await settle(hub, chain, 3)) == {poor.address}


async def test_no_more_is_signed_than_the_keys_can_pay_for(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    """While nothing is mined a key's balance covers each alone: all would be called successes, and some not be made."""
    chain, keys = embedded_chain, tuple(wallet.private_key for wallet in WALLETS[:2])
    for wallet in WALLETS[:2]:
        chain.rpc.call("anvil_setBalance", wallet.address, hex(10**19))
    async with run_hub(tmp_path, chain, signer_keys=keys) as hub:
        before = chain.balance(chain.wallets.owner.address)
        assert (await hub.settle(new_payment(chain))).body["success"] is True
        earned = chain.balance(chain.wallets.owner.address)
        value = earned - before
        lasts = hub.hub.accounts[NETWORK].signers.relayers[0].balance.affordable
        assert lasts
        for wallet in WALLETS[:2]:
            chain.rpc.call("anvil_setBalance", wallet.address, hex(10**19 * 5 // (2 * lasts)))  # two and a half
        await asyncio.sleep(2.1)  # balances are remembered for about a block
        chain.rpc.call("evm_setAutomine", False)
        answers = [await hub.settle(new_payment(chain), confirm=False, prefer="wait=0") for _ in range(8)]
        told = Counter(answer.code if answer.status == 503 else answer.body["success"] for answer in answers)
        assert told == {True: 4, "UNAVAILABLE": 4}
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("anvil_mine", "0x1")
        await hub.complete()
        assert chain.balance(chain.wallets.owner.address) - earned == 4 * value
        chain.rpc.call("anvil_setBalance", WALLETS[0].address, hex(10**19))
        await asyncio.sleep(2.1)
        assert (await hub.settle(new_payment(chain))).body["success"] is True


def test_a_network_needs_a_key_and_takes_each_once(hub: HubUnderTest) -> None:
    (relayer,) = hub.hub.accounts[NETWORK].signers.relayers
    for relayers in ([], [relayer, relayer]):
        with pytest.raises(ValueError, match="at least one signing key, and each key once"):
            SignerPool(relayers)


async def test_what_a_key_signed_is_sent_also_where_it_is_configured_no_more(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    async with run_hub(tmp_path, chain, rpc_url=chaos.url) as hub:
        payments = await leave_pending(hub, chaos, chain, 3)
    options: dict[str, Any] = {"signer_keys": (chain.wallets.faucet.private_key,), "recovery_interval_seconds": 0.2}
    async with run_hub(tmp_path, chain, **options) as hub:
        for payment in payments:
            await hub.wait_for_status(payment, "success")
        assert (await hub.settle(new_payment(chain))).body["success"] is True


@pytest.mark.parametrize("behind", ["eth_getTransactionReceipt", "eth_call"])
async def test_what_a_former_key_signed_and_is_mined_while_it_is_looked_for_is_no_failure(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, behind: str
) -> None:
    """Between two answers of one look, as of a node that takes one call at a time, or of several behind one URL."""
    chain, asked = embedded_chain, 0
    async with run_hub(tmp_path, chain) as hub:
        chain.rpc.call("evm_setAutomine", False)
        payment = new_payment(chain)
        assert (await hub.settle(payment, prefer="wait=0")).status == 503

    def is_meant(call: dict[str, Any]) -> bool:
        question = "0x" + SELECTOR_AUTHORIZATION_STATE.hex()
        return call["method"] == behind and (behind != "eth_call" or call["params"][0]["data"].startswith(question))

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += is_meant(call)
        if is_meant(call) and asked == (2 if behind == "eth_getTransactionReceipt" else 1):
            chain.rpc.call("evm_mine")
        return answer

    chaos.takes_batches, chaos.falsify = False, falsify
    options: dict[str, Any] = {"signer_keys": (chain.wallets.faucet.private_key,), "recovery_interval_seconds": 0.2}
    async with run_hub(tmp_path, chain, rpc_url=chaos.url, **options) as hub, asyncio.timeout(60):
        while (status := await hub.status(payment)) == "pending":  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.02)
        assert (status, asked > 0) == ("success", True)


async def test_two_forks_of_one_height_are_no_proof_of_a_failure(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Unused in the block of one, and its transaction's nonce mined in the other's: that one made the payment."""
    chain = embedded_chain
    async with run_hub(tmp_path, chain) as hub:
        chain.rpc.call("evm_setAutomine", False)
        payment = new_payment(chain)
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        rows = await hub.database.read(Statement("SELECT hash, raw FROM raw_transactions"))
        (signed,) = [dict(row) for row in rows]
    chain.rpc.call("anvil_dropTransaction", signed["hash"])
    snapshot = chain.rpc.call("evm_snapshot")
    chain.rpc.call("evm_mine")
    height, forked = chain.rpc.call("eth_blockNumber"), False

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal forked
        question = "0x" + SELECTOR_AUTHORIZATION_STATE.hex()
        if not forked and call["method"] == "eth_call" and call["params"][0]["data"].startswith(question):
            forked = True
            chain.rpc.call("evm_revert", snapshot)
            chain.rpc.call("eth_sendRawTransaction", "0x" + signed["raw"].hex())
            chain.rpc.call("evm_mine")
            assert chain.rpc.call("eth_blockNumber") == height
        return answer

    chaos.takes_batches, chaos.falsify = False, falsify
    options: dict[str, Any] = {"signer_keys": (chain.wallets.faucet.private_key,), "recovery_interval_seconds": 0.2}
    async with run_hub(tmp_path, chain, rpc_url=chaos.url, **options) as hub, asyncio.timeout(60):
        while (status := await hub.status(payment)) == "pending":  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.02)
        assert (status, forked) == ("success", True)


def of_the_other_fork(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """How many transactions are mined says a node on another fork, where there is one more; all else another node."""
    if call["method"] != "eth_getTransactionCount" or call["params"][1] == "pending":
        return answer
    if isinstance(call["params"][1], dict):
        return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": -32000, "message": "header not found"}}
    return answer | {"result": hex(int(answer["result"], 16) + 1)}


async def test_two_nodes_behind_one_url_on_two_forks_are_no_proof_of_a_failure(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Of one block, before and behind: only the count is of the other fork's."""
    chain, earlier, payment = embedded_chain, new_payment(embedded_chain), new_payment(embedded_chain)
    chain.rpc.call("evm_setAutomine", False)
    assert (await chaos_hub.settle(earlier, prefer="wait=0")).status == 503
    await chaos_hub.account.chain.authorizations.standing(chain.wallets.buyer.address, "0x" + "11" * 32, (), 1)
    assert (await chaos_hub.settle(payment, prefer="wait=0")).status == 503
    chaos.falsify = of_the_other_fork
    for _ in range(3):
        await chaos_hub.complete()
    assert {await chaos_hub.status(one) for one in (earlier, payment)} == {"pending"}
    chaos.calm()
    chain.rpc.call("evm_mine")
    await chaos_hub.complete()
    assert {await chaos_hub.status(one) for one in (earlier, payment)} == {"success"}


@pytest.mark.parametrize("code", [-32602, -32000])
async def test_a_node_that_takes_no_hash_for_a_block_is_asked_by_its_number(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, code: int
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    assert (await chaos_hub.settle(payment)).body["success"] is True
    refused: list[str] = []

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if not any(isinstance(one, dict) and "blockHash" in one for one in call["params"]):
            return answer
        refused.append(call["method"])
        return {"jsonrpc": "2.0", "id": call["id"], "error": {"code": code, "message": "invalid argument 1"}}

    chaos.falsify = falsify
    signer, authorization = chain.wallets.relayer, payment.authorization
    reader = chaos_hub.account.chain.authorizations
    standing = await reader.standing(authorization.payer, authorization.nonce, [signer.address], 1)
    assert (standing.is_used, standing.mined) == (True, {signer.address: chain.nonce(signer)})
    assert refused == ["eth_call", "eth_getTransactionCount"]


async def test_what_a_former_key_signed_too_cheaply_another_one_carries_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    paid_to = chain.wallets.owner.address
    async with run_hub(tmp_path, chain) as hub:
        chain.rpc.call("evm_setAutomine", False)
        payment = new_payment(chain)
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
    before = chain.balance(paid_to)
    options: dict[str, Any] = {"signer_keys": (chain.wallets.faucet.private_key,), "recovery_interval_seconds": 0.2}

    def mine_dearly() -> None:
        base_fee = int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(100 * base_fee))
        chain.rpc.call("evm_mine")

    async with run_hub(tmp_path, chain, **options) as hub:

        async def count() -> int:
            rows = await hub.database.read(Statement("SELECT count(*) AS nonces FROM settlement_slots"))
            nonces: int = rows[0]["nonces"]
            return nonces

        mine_dearly()
        await asyncio.sleep(1)
        assert (await hub.status(payment), await count()) == ("pending", 1)  # it is young, and fees fall again
        await hub.database.run(_one(Statement("UPDATE raw_transactions SET created_ms = created_ms - 60000")))
        async with asyncio.timeout(60):
            while await count() == 1:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                await asyncio.sleep(0.05)
        await hub.database.run(_one(Statement("UPDATE raw_transactions SET created_ms = created_ms - 60000")))
        await asyncio.sleep(1)
        assert await count() == 2  # one more at most
        chain.rpc.call("evm_mine")
        await hub.wait_for_status(payment, "success")
        chain.rpc.call("anvil_setNextBlockBaseFeePerGas", "0x1")
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_mine")  # the former one is mined, too, and moves nothing
        await hub.complete()
        assert await hub.status(payment) == "success"
        assert chain.balance(paid_to) - before == 10_000


@unit_of_work
def _one(statement: Statement) -> Steps[None]:
    yield statement
