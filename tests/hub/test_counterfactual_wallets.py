"""Payers whose wallets are deployed with their first payment, honest and hostile (ERC-6492; contract 5.1; A-21, A-22).

On anvil with Circle's token and a real factory, which the operator listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.counterfactual import FACTORY, OTHER_FACTORY, FutureWallet, plant_factory
from tests.hub.chaos import Act, run_chaos
from tests.hub.hub_under_test import HubUnderTest, TestPayment, new_payment, run_hub, settle_body
from tests.hub.test_contract_wallets import ALWAYS_YES, SIGNATURE, in_thread, nothing_was_sent, reasons
from tollkeeper.chains.evm.batcher import batcher_address
from tollkeeper.core.evm.batches import MULTICALL_ADDRESS, SELECTOR_AGGREGATE
from tollkeeper.core.evm.counterfactual import WalletDeployment, wrap
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

NOT_ALLOWED = "eip6492_factory_not_allowed"
SIMULATION = "invalid_exact_evm_transaction_simulation_failed"
GAS_MAX = 150_000 + 500_000
BURNER = "0x" + "b0" * 20
# Burns all gas where gas costs something: in a transaction, and not in eth_call.
BURNS_IN_TRANSACTIONS = "0x3a600557005b600556"
ALLOWED = {"wallet_factories": (FACTORY,)}


@pytest.fixture
def factory_chain(anvil_fiat_token: ChainUnderTest) -> ChainUnderTest:
    """With the factory that is listed, and one that is not."""
    plant_factory(anvil_fiat_token)
    plant_factory(anvil_fiat_token, OTHER_FACTORY)
    return anvil_fiat_token


@pytest_asyncio.fixture
async def factory_hub(tmp_path: Path, factory_chain: ChainUnderTest) -> AsyncIterator[HubUnderTest]:
    async with run_hub(tmp_path, factory_chain, config=ALLOWED) as running:
        yield running


def funded(chain: ChainUnderTest, **fields: Any) -> FutureWallet:
    wallet = FutureWallet(chain, **fields)
    chain.mint(wallet.address, 100_000)
    return wallet


def payment_of(wallet: FutureWallet, call: bytes | None = None, **changes: Any) -> TestPayment:
    authorization = wallet.authorization(**changes)
    return TestPayment(authorization, settle_body(wallet.chain, authorization, wallet.sign(authorization, call)))


async def transaction_of(chain: ChainUnderTest, transaction: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The transaction and its receipt."""
    found = await in_thread(chain.rpc.call, "eth_getTransactionByHash", transaction)
    return found, await in_thread(chain.rpc.call, "eth_getTransactionReceipt", transaction)


async def sent(chain: ChainUnderTest, nonce: int) -> None:
    """Until the node has the hub's transactions up to that nonce."""
    async with asyncio.timeout(60):
        while await in_thread(chain.nonce, chain.wallets.relayer) < nonce:  # noqa: ASYNC110 - of another process
            await asyncio.sleep(0.02)


async def test_a_wallet_pays_though_it_is_deployed_only_by_its_payment(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    hub, chain = factory_hub, factory_chain
    wallet = await in_thread(funded, chain)
    owner = await in_thread(chain.balance, chain.wallets.owner.address)
    payment = await in_thread(payment_of, wallet)
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    explained = await hub.post("/verify?explain=true", payment.body)
    assert explained.body["isValid"] is True
    checks = {check["name"]: check for check in explained.body["checks"]}
    assert checks["deployed"]["expected"] == {"factories": [FACTORY]}
    assert checks["signature"]["actual"] == "accepted by the payer's code"
    assert not await in_thread(lambda: wallet.is_deployed)  # asking changed nothing
    settled = await hub.settle(payment)
    assert (settled.body["success"], settled.body["payer"].lower()) == (True, wallet.address)
    transaction, receipt = await transaction_of(chain, settled.body["transaction"])
    assert (transaction["to"], transaction["value"], int(transaction["gas"], 16)) == (MULTICALL_ADDRESS, "0x0", GAS_MAX)
    assert receipt["status"] == "0x1"
    assert await in_thread(lambda: wallet.is_deployed)
    assert await in_thread(chain.nonce, chain.wallets.relayer) == before + 1  # one transaction for both
    assert await in_thread(chain.balance, wallet.address) == 90_000
    assert await in_thread(chain.balance, chain.wallets.owner.address) == owner + 10_000
    again = await hub.settle(payment)
    assert (again.body["success"], again.reason) == (False, "duplicate_settlement")
    assert (await hub.get(payment.status_path)).body["status"] == "success"


async def test_a_wallet_that_is_deployed_meanwhile_pays_by_its_own_signature(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    wallet = await in_thread(funded, factory_chain)
    payment = await in_thread(payment_of, wallet)
    await in_thread(wallet.deploy)
    assert (await factory_hub.post("/verify", payment.body)).body["isValid"] is True
    settled = await factory_hub.settle(payment)
    transaction, _ = await transaction_of(factory_chain, settled.body["transaction"])
    assert (settled.body["success"], transaction["to"]) == (True, USDC_ADDRESS)  # the factory is not called
    stranger = await in_thread(payment_of, FutureWallet(factory_chain, owner=factory_chain.wallets.owner.address))
    assert reasons(await factory_hub.settle(stranger)) == {SIGNATURE}


async def test_payments_of_a_wallet_that_come_together_are_all_settled(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    """Each would deploy it: whoever is second finds it there."""
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    payments = [await in_thread(payment_of, wallet) for _ in range(3)]
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    chain.rpc.call("evm_setAutomine", False)
    asked = [asyncio.create_task(factory_hub.settle(payment)) for payment in payments]
    await sent(chain, before + 3)
    chain.rpc.call("evm_mine")
    chain.rpc.call("evm_setAutomine", True)
    answers = await asyncio.gather(*asked)
    assert [answer.body["success"] for answer in answers] == [True] * 3
    assert await in_thread(chain.balance, wallet.address) == 70_000


async def test_its_transfer_and_its_next_payments_need_nothing_special(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    wallet = await in_thread(funded, factory_chain)
    payment = await in_thread(payment_of, wallet)
    transfer = {
        "network": "base-sepolia",
        "asset": USDC_ADDRESS,
        "payload": payment.body["paymentPayload"]["payload"],
        "confirm": True,
    }
    assert (await factory_hub.post("/transfer", transfer)).body["success"] is True
    authorization = await in_thread(wallet.authorization)
    plain = settle_body(factory_chain, authorization, factory_chain.sign(authorization))
    assert (await factory_hub.settle(TestPayment(authorization, plain))).body["success"] is True


@pytest.mark.usefixtures("patient")
async def test_no_payment_that_deploys_a_wallet_shares_a_transaction(
    tmp_path: Path, factory_chain: ChainUnderTest
) -> None:
    chain = factory_chain
    await in_thread(chain.rpc.call, "anvil_setCode", batcher_address(), "0x")  # Multicall3 carries batches then
    wallets = [await in_thread(lambda salt=salt: funded(chain, salt=salt)) for salt in range(2)]
    async with run_hub(tmp_path, chain, config={**ALLOWED, "batch_queue_depth": 1, "batch_items_max": 2}) as hub:
        deploying = [await in_thread(payment_of, wallet) for wallet in wallets]
        plain = [new_payment(chain) for _ in range(2)]
        before = await in_thread(chain.nonce, chain.wallets.relayer)
        chain.rpc.call("evm_setAutomine", False)
        asked = [asyncio.create_task(hub.settle(payment)) for payment in deploying]
        await sent(chain, before + 2)
        asked += [asyncio.create_task(hub.settle(payment)) for payment in plain]
        await sent(chain, before + 3)
        chain.rpc.call("evm_mine")
        chain.rpc.call("evm_setAutomine", True)
        answers = await asyncio.gather(*asked)
    assert [answer.body["success"] for answer in answers] == [True] * 4
    hashes = [answer.body["transaction"] for answer in answers]
    assert len({hashes[0], hashes[1], hashes[2]}) == 3
    assert hashes[2] == hashes[3]  # the two others went together


@pytest.mark.parametrize("case", ["no list", "another factory", "the token", "an EOA's own signature", "wrapped twice"])
async def test_what_is_not_listed_is_refused_and_nothing_of_it_is_called(
    tmp_path: Path, factory_chain: ChainUnderTest, case: str
) -> None:
    chain = factory_chain
    factory = OTHER_FACTORY if case == "another factory" else FACTORY
    wallet = await in_thread(lambda: funded(chain, factory=factory))
    authorization = await in_thread(wallet.authorization)
    signature = wallet.sign(authorization)
    if case == "the token":
        signature = wrap(WalletDeployment(USDC_ADDRESS, transfer_calldata(authorization, bytes(65)), bytes(65)))
    if case == "wrapped twice":
        signature = wrap(WalletDeployment(FACTORY, b"", wallet.sign(authorization)))
    if case == "an EOA's own signature":
        authorization = chain.authorization()
        signature = wrap(WalletDeployment(OTHER_FACTORY, b"", chain.sign(authorization)))
    listed = () if case == "no list" else (FACTORY,)
    payment = TestPayment(authorization, settle_body(chain, authorization, signature))
    async with run_hub(tmp_path, chain, config={"wallet_factories": listed}) as hub:
        before = await in_thread(chain.nonce, chain.wallets.relayer)
        for path in ("/verify", "/verify?explain=true"):
            assert reasons(await hub.post(path, payment.body)) == {NOT_ALLOWED}
        assert reasons(await hub.settle(payment)) == {NOT_ALLOWED}
        await nothing_was_sent(hub, chain, before)
        assert not (await hub.get("/readyz")).body["problems"]


@pytest.mark.parametrize(
    ("absent", "reason"),
    [(FACTORY, "base-sepolia has no contract there"), (MULTICALL_ADDRESS, "base-sepolia has no Multicall3 at")],
)
async def test_payer_and_operator_are_told_why_a_listed_factory_cannot_be_called(
    tmp_path: Path, factory_chain: ChainUnderTest, absent: str, reason: str
) -> None:
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    payment = await in_thread(payment_of, wallet)
    code = await in_thread(chain.rpc.call, "eth_getCode", absent, "latest")
    await in_thread(chain.rpc.call, "anvil_setCode", absent, "0x")
    async with run_hub(tmp_path, chain, config=ALLOWED, recovery_interval_seconds=0.1) as hub:
        before = await in_thread(chain.nonce, chain.wallets.relayer)
        answers = (await hub.post("/verify", payment.body), await hub.settle(payment))
        assert reasons(*answers) == {"invalid_exact_evm_payload_undeployed_smart_wallet"}
        told = answers[0].body["details"]["found"]
        assert f"the factory {FACTORY}, which cannot be called: {reason}" in told
        await nothing_was_sent(hub, chain, before)
        (problem,) = (await hub.get("/readyz")).body["problems"]
        assert problem.startswith("base-sepolia: payments that have the wallet factory")
        assert FACTORY in problem
        assert reason in problem
        assert (await hub.settle(new_payment(chain))).body["success"] is True  # who needs no factory pays
        await in_thread(chain.rpc.call, "anvil_setCode", absent, code)
        hub.recovery.check_interval_seconds = 0
        async with asyncio.timeout(30):
            while (await hub.get("/readyz")).body["problems"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.1)
        assert (await hub.settle(payment)).body["success"] is True


async def test_nobody_is_refused_before_anybody_has_looked_for_the_factories(
    tmp_path: Path, factory_chain: ChainUnderTest
) -> None:
    """The node says who it is, and not yet what stands where the factories are to be."""
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    payment = await in_thread(payment_of, wallet)
    async with run_chaos(chain.url) as node:
        node.act = lambda methods: Act.CUT if methods == ["eth_getCode"] * 2 else Act.PASS
        async with run_hub(tmp_path, chain, rpc_url=node.url, config=ALLOWED) as hub:
            for path in ("/verify", "/settle"):
                answer = await hub.post(path, payment.body)
                assert (answer.status, answer.code) == (503, "UNAVAILABLE")
            node.calm()
            await hub.complete()
            assert (await hub.settle(payment)).body["success"] is True


def hostile_call(kind: str, wallet: FutureWallet, authorization: Any) -> bytes:
    """The factory's call, as a payer who means no good would have it."""
    chain = wallet.chain
    inner = chain.sign(authorization)
    if kind == "burns all gas":
        chain.rpc.call("anvil_setCode", BURNER, "0x5b600056")
        return wallet.deployment(BURNER)
    if kind == "uses the authorization itself":
        return wallet.deployment(USDC_ADDRESS, transfer_calldata(authorization, inner + b"\0"))
    if kind == "calls Multicall3 again":
        return wallet.deployment(MULTICALL_ADDRESS, SELECTOR_AGGREGATE)
    if kind == "deploys another wallet":
        return FutureWallet(chain, salt=99).deployment()
    if kind == "spends the money first":
        other = wallet.authorization(value=100_000, pay_to="0x" + "77" * 20)
        return wallet.deployment(USDC_ADDRESS, transfer_calldata(other, chain.sign(other) + b"\0"))
    return b""  # calls nothing that the factory has


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("burns all gas", SIGNATURE),
        ("uses the authorization itself", SIMULATION),
        ("calls Multicall3 again", SIGNATURE),
        ("deploys another wallet", SIGNATURE),
        ("spends the money first", SIMULATION),
        ("deploys nothing", SIGNATURE),
    ],
)
async def test_a_deployment_that_does_not_lead_to_the_transfer_is_refused_and_costs_nothing(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest, kind: str, reason: str
) -> None:
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    authorization = await in_thread(wallet.authorization)
    call = await in_thread(hostile_call, kind, wallet, authorization)
    payment = TestPayment(authorization, settle_body(chain, authorization, wallet.sign(authorization, call)))
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    assert reasons(await factory_hub.post("/verify", payment.body), await factory_hub.settle(payment)) == {reason}
    await nothing_was_sent(factory_hub, chain, before)


async def test_a_wallet_that_says_yes_to_everything_says_it_for_nobody_else(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    """The factory leaves it at its own address; whose money it would move has none there, or another key."""
    chain = factory_chain
    yes = "0x" + "1e5" * 13 + "0"
    await in_thread(chain.rpc.call, "anvil_setCode", yes, ALWAYS_YES)
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    victims = [chain.wallets.second_buyer.address, (await in_thread(lambda: funded(chain, salt=5))).address]
    for victim in victims:
        authorization = chain.authorization(payer=victim)
        signature = wrap(WalletDeployment(FACTORY, FutureWallet(chain).deployment(yes), b"\1" * 65))
        payment = TestPayment(authorization, settle_body(chain, authorization, signature))
        assert reasons(await factory_hub.post("/verify", payment.body), await factory_hub.settle(payment)) == {
            SIGNATURE
        }
    await nothing_was_sent(factory_hub, chain, before)


async def test_a_deployment_that_burns_gas_only_in_transactions_costs_at_most_its_cap_once(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    chain = factory_chain
    await in_thread(chain.rpc.call, "anvil_setCode", BURNER, BURNS_IN_TRANSACTIONS)
    wallet = await in_thread(funded, chain)
    payment = await in_thread(lambda: payment_of(wallet, wallet.deployment(BURNER)))
    assert (await factory_hub.post("/verify", payment.body)).body["isValid"] is True
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    answer = await factory_hub.settle(payment)
    assert (answer.body["success"], answer.body["status"]) == (False, "failed")
    _, receipt = await transaction_of(chain, answer.body["transaction"])
    assert (receipt["status"], int(receipt["gasUsed"], 16) <= GAS_MAX) == ("0x0", True)
    assert await in_thread(chain.nonce, chain.wallets.relayer) == before + 1
    assert await in_thread(chain.balance, wallet.address) == 100_000
    (spent,) = await factory_hub.database.read(Statement("SELECT SUM(gas) AS gas FROM gas_spent"))
    assert spent["gas"] == GAS_MAX


async def test_what_a_wallet_pays_besides_while_it_is_deployed_hides_nothing(
    factory_hub: HubUnderTest, factory_chain: ChainUnderTest
) -> None:
    """Its deployment carries out another authorization of its own, of the same value to the same payee."""
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    other = await in_thread(wallet.authorization)
    call = wallet.deployment(USDC_ADDRESS, transfer_calldata(other, chain.sign(other) + b"\0"))
    payment = await in_thread(payment_of, wallet, call)
    assert (await factory_hub.settle(payment)).body["success"] is True
    assert await in_thread(chain.balance, wallet.address) == 80_000


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_a_payment_that_deploys_its_wallet_survives_a_crash(
    tmp_path: Path, factory_chain: ChainUnderTest, moment: str
) -> None:
    """The stored transaction is sent again, as it was."""
    chain = factory_chain
    wallet = await in_thread(funded, chain)
    payment = await in_thread(payment_of, wallet)
    chain.rpc.call("evm_setAutomine", False)
    async with run_hub(tmp_path, chain, config=ALLOWED) as hub:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        (row,) = await hub.database.read(Statement("SELECT transaction_hash FROM settlements"))
        if moment == "before":
            chain.rpc.call("anvil_dropTransaction", row["transaction_hash"])
    chain.rpc.call("evm_setAutomine", True)
    if moment == "after":
        chain.rpc.call("evm_mine")
    async with run_hub(tmp_path, chain, config=ALLOWED) as hub:
        await hub.complete()
        await hub.complete()
        answer = await hub.wait_for_status(payment, "success")
        assert answer.body["transaction"] == row["transaction_hash"]
    assert await in_thread(chain.balance, wallet.address) == 90_000
