"""Payers that are contracts, honest and hostile: judged as the token judges them (contract 5.1; A-21, A-22)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment, settle_body
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

SIGNATURE = "invalid_exact_evm_payload_signature"
GAS_LIMIT = 150_000
# Runtime code of wallets that do not mean well, or do not work.
ALWAYS_YES = "0x631626ba7e60e01b60005260206000f3"
YES_WHILE_GAS_IS_FREE = "0x3a15631626ba7e60e01b0260005260206000f3"  # as in eth_call, and never in a transaction
HOSTILE = {
    "loops for ever": "0x5b600056",
    "reverts": "0x60006000fd",
    "meets an invalid opcode": "0xfe",
    "pops an empty stack": "0x50",
    "jumps to nowhere": "0x60ff56",
    "writes where it may only read": "0x6001600055",
    "returns nothing": "0x00",
    "returns four bytes of the right word": "0x631626ba7e60e01b60005260046000f3",
    "returns another word": "0x63deadbeef60e01b60005260206000f3",
    "returns the right word and more in it": "0x631626ba7e60e01b60010160005260206000f3",
    "is delegated to nobody": "0xef0100" + "5a" * 20,
}
WALLET = "0x" + "c0de" * 10


async def in_thread(function: Any, *arguments: Any) -> Any:
    """The chain's client blocks; the hub runs in this thread."""
    return await asyncio.to_thread(function, *arguments)


def plant(chain: ChainUnderTest, code: str) -> None:
    """A wallet of that code, with money."""
    chain.rpc.call("anvil_setCode", WALLET, code)
    chain.mint(WALLET, 1_000_000)


def by_wallet(chain: ChainUnderTest, wallet: str, extra: bytes = b"", **changes: Any) -> TestPayment:
    """A payment of the wallet's, signed by the buyer's key."""
    authorization = chain.authorization(payer=wallet, **changes)
    return TestPayment(authorization, settle_body(chain, authorization, chain.sign(authorization) + extra))


def reasons(*answers: Answer) -> set[str | None]:
    return {answer.reason for answer in answers}


async def nothing_was_sent(hub: HubUnderTest, chain: ChainUnderTest, before: int) -> None:
    assert await in_thread(chain.nonce, chain.wallets.relayer) == before
    assert not await hub.database.read(Statement("SELECT id FROM settlements"))


@pytest.mark.parametrize("extra", [b"", bytes(31)], ids=["65 bytes", "96 bytes"])
async def test_a_wallet_pays_by_the_signature_that_it_accepts(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest, extra: bytes
) -> None:
    wallet = await in_thread(chain.plant_smart_wallet, chain.wallets.buyer.address)
    await in_thread(chain.mint, wallet, 20_000)
    held = await in_thread(chain.balance, wallet)
    payment = await in_thread(by_wallet, chain, wallet, extra)
    explained = await hub_on_chain.post("/verify?explain=true", payment.body)
    assert explained.body["isValid"] is True
    checks = {check["name"]: check for check in explained.body["checks"]}
    assert checks["signature"]["actual"] == "accepted by the payer's code"
    settled = await hub_on_chain.settle(payment)
    assert (settled.body["success"], settled.body["payer"].lower()) == (True, wallet)
    assert await in_thread(chain.balance, wallet) == held - 10_000
    transfer = {
        "network": "base-sepolia",
        "asset": USDC_ADDRESS,
        "payload": (await in_thread(by_wallet, chain, wallet, extra)).body["paymentPayload"]["payload"],
        "confirm": True,
    }
    assert (await hub_on_chain.post("/transfer", transfer)).body["success"] is True
    assert await in_thread(chain.balance, wallet) == held - 20_000


async def test_a_signature_that_the_wallet_refuses_is_no_signature(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    wallet = await in_thread(chain.plant_smart_wallet, chain.wallets.second_buyer.address)
    await in_thread(chain.mint, wallet, 20_000)
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    payment = await in_thread(by_wallet, chain, wallet)
    verified, settled = await hub.post("/verify", payment.body), await hub.settle(payment)
    assert reasons(verified, settled) == {SIGNATURE}
    assert verified.body["details"]["found"] == "refused by the payer's code (ERC-1271)"
    transfer = {"network": "base-sepolia", "asset": USDC_ADDRESS, "payload": payment.body["paymentPayload"]["payload"]}
    refused = await hub.post("/transfer", transfer)
    assert (refused.status, refused.code) == (400, "INVALID_SIGNATURE")
    await nothing_was_sent(hub, chain, before)


async def test_an_account_with_code_is_judged_as_the_token_judges_it(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    payment = new_payment(anvil_fiat_token)
    assert (await hub_on_anvil.post("/verify", payment.body)).body["isValid"] is True
    delegated = "0xef0100" + "5a" * 20  # EIP-7702: the payer's key signs, but the token asks the payer's code
    await in_thread(anvil_fiat_token.rpc.call, "anvil_setCode", payment.authorization.payer, delegated)
    before = await in_thread(anvil_fiat_token.nonce, anvil_fiat_token.wallets.relayer)
    assert reasons(await hub_on_anvil.post("/verify", payment.body), await hub_on_anvil.settle(payment)) == {SIGNATURE}
    await nothing_was_sent(hub_on_anvil, anvil_fiat_token, before)


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_wallet_that_does_not_say_yes_is_refused_and_costs_nothing(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest, kind: str
) -> None:
    await in_thread(plant, chain, HOSTILE[kind])
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    payment = await in_thread(by_wallet, chain, WALLET)
    assert reasons(await hub_on_chain.post("/verify", payment.body), await hub_on_chain.settle(payment)) == {SIGNATURE}
    await nothing_was_sent(hub_on_chain, chain, before)


async def test_a_wallet_that_changes_its_mind_costs_at_most_the_gas_limit_and_is_never_a_success(
    hub_on_anvil: HubUnderTest, anvil_fiat_token: ChainUnderTest
) -> None:
    chain = anvil_fiat_token
    await in_thread(plant, chain, YES_WHILE_GAS_IS_FREE)
    payment = await in_thread(by_wallet, chain, WALLET)
    assert (await hub_on_anvil.post("/verify", payment.body)).body["isValid"] is True
    held = await in_thread(chain.balance, WALLET)
    answer = await hub_on_anvil.settle(payment)
    assert (answer.body["success"], answer.body["status"]) == (False, "failed")
    receipt = await in_thread(chain.rpc.call, "eth_getTransactionReceipt", answer.body["transaction"])
    assert receipt["status"] == "0x0"
    assert int(receipt["gasUsed"], 16) <= GAS_LIMIT
    assert await in_thread(chain.balance, WALLET) == held


async def test_a_wallet_that_its_signature_would_deploy_is_refused_and_nothing_is_called(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    before = await in_thread(chain.nonce, chain.wallets.relayer)
    call = transfer_calldata(chain.authorization(), bytes(65))  # what the wrapper would have us call: the token
    head = (
        bytes(12) + bytes.fromhex(USDC_ADDRESS[2:]) + (96).to_bytes(32, "big") + (128 + len(call)).to_bytes(32, "big")
    )
    wrapped = head + len(call).to_bytes(32, "big") + call + bytes(32) + bytes.fromhex("6492" * 16)
    for payer in ("0x" + "ab" * 20, chain.wallets.buyer.address):
        authorization = chain.authorization(payer=payer)
        payment = TestPayment(authorization, settle_body(chain, authorization, wrapped))
        answers = (await hub.post("/verify", payment.body), await hub.settle(payment))
        assert reasons(*answers) == {"eip6492_factory_not_allowed"}
    await nothing_was_sent(hub, chain, before)


async def test_who_knows_only_a_payment_s_name_learns_and_takes_nothing(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    """Payer and nonce of a broadcast payment are public; its success belongs to whoever shows the signature."""
    chain = embedded_chain
    payment = new_payment(chain)
    garbage = TestPayment(payment.authorization, settle_body(chain, payment.authorization, bytes(65)))
    answers = await asyncio.gather(
        *(hub.settle(garbage) for _ in range(5)), hub.settle(payment), *(hub.settle(garbage) for _ in range(5))
    )
    assert [answer.body["success"] for answer in answers] == [False] * 5 + [True] + [False] * 5
    assert reasons(*answers[:5], *answers[6:]) == {SIGNATURE}
    assert {answer.body["transaction"] for answer in (*answers[:5], *answers[6:])} == {""}
