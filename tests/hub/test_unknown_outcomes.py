"""Node faults around the send: no failure without proof, no second transaction (security F3-F5, F9, A-08, A-15)."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import GAS, ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import HubUnderTest, TestPayment, new_payment, run_hub
from tollkeeper.core.evm.counterfactual import settling_call
from tollkeeper.sandbox.evm.node import USDC_ADDRESS, planted_token
from tollkeeper.storage.engine.database import Statement

SEND = "eth_sendRawTransaction"
RECEIPT = "eth_getTransactionReceipt"


def relay(chain: ChainUnderTest, payment: TestPayment) -> str:
    """Somebody else carries the payment out; the hash."""
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    call = settling_call(USDC_ADDRESS, payment.authorization, signature)
    gas = 1_000_000 if call.deploys else GAS
    transaction_hash: str = chain.send_and_wait(chain.wallets.faucet, call.to, call.data, gas=gas)["transactionHash"]
    return transaction_hash


def drain(chain: ChainUnderTest) -> int:
    """Takes all USDC from the buyer; how much it was."""
    value = chain.balance(chain.wallets.buyer.address)
    relay(chain, new_payment(chain, value=value))
    return value


async def proof_of(hub: HubUnderTest) -> str | None:
    rows = await hub.database.read(Statement("SELECT proof FROM settlements"))
    proof: str | None = rows[0]["proof"]
    return proof


@pytest.mark.parametrize("act", [Act.CUT, Act.LOSE_ANSWER, Act.SERVER_ERROR, Act.HANG])
async def test_an_unclear_send_is_pending_and_becomes_one_success(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, act: Act
) -> None:
    chaos.on(SEND, act)
    chaos.falsify = lambda call, answer: {**answer, "result": None} if call["method"] == RECEIPT else answer
    payment = new_payment(embedded_chain)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    pending = await chaos_hub.settle(payment, prefer="wait=0")
    assert (pending.status, pending.code) == (503, "SETTLEMENT_PENDING")
    transaction = pending.body["error"]["details"]["transaction"]
    assert await chaos_hub.status(payment) == "pending"
    chaos.calm()
    await chaos_hub.complete()
    await chaos_hub.complete()
    assert await chaos_hub.status(payment) == "success"
    answer = await chaos_hub.settle(payment)
    assert (answer.body["success"], answer.body["transaction"]) == (True, transaction)
    assert (await chaos_hub.settle(payment)).reason == "duplicate_settlement"
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 1


@pytest.mark.parametrize("confirm", [True, False])
async def test_an_unclear_send_whose_receipt_shows_up_is_a_success_at_once(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, *, confirm: bool
) -> None:
    chaos.on(SEND, Act.LOSE_ANSWER, times=1)
    assert (await chaos_hub.settle(new_payment(embedded_chain), confirm=confirm)).body["success"] is True


async def test_without_confirm_an_unclear_send_is_pending_too(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.CUT)
    pending = await chaos_hub.settle(new_payment(embedded_chain), confirm=False, prefer="wait=0")
    assert pending.code == "SETTLEMENT_PENDING"


@pytest.mark.parametrize("message", ["already known", "nonce too low", "replacement transaction underpriced", "?"])
async def test_a_refusal_of_a_transaction_that_the_node_has_is_no_failure(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, message: str
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != SEND:
            return answer
        return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32000, "message": message}}

    chaos.falsify = falsify
    answer = await chaos_hub.settle(new_payment(embedded_chain))
    assert (answer.status, answer.body["success"]) == (200, True)


async def test_a_refusal_of_a_transaction_that_the_node_has_not_is_pending(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.SERVER_ERROR)
    payment = new_payment(embedded_chain)
    assert (await chaos_hub.settle(payment, prefer="wait=0")).code == "SETTLEMENT_PENDING"
    assert await chaos_hub.status(payment) == "pending"


async def test_callers_during_an_unknown_outcome_are_told_to_ask_again(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.CUT)
    payment = new_payment(embedded_chain)
    answers = await asyncio.gather(*(chaos_hub.settle(payment, prefer="wait=1") for _ in range(20)))
    assert {answer.status for answer in answers} == {503}
    chaos.calm()
    await chaos_hub.complete()
    await chaos_hub.complete()
    answers = await asyncio.gather(*(chaos_hub.settle(payment) for _ in range(20)))
    assert sum(answer.body["success"] for answer in answers) == 1


LIES: dict[str, Any] = {
    "another transaction's": lambda receipt: {**receipt, "transactionHash": "0x" + "12" * 32},
    "a block that is not on the chain": lambda receipt: {**receipt, "blockHash": "0x" + "12" * 32},
    "no block yet": lambda receipt: {**receipt, "blockHash": None},
    "a block ahead of the chain": lambda receipt: {**receipt, "blockNumber": "0xffffff"},
    "without status": lambda receipt: {key: value for key, value in receipt.items() if key != "status"},
    "with logs that are none": lambda receipt: {**receipt, "logs": [5]},
    "a text": lambda _receipt: "receipt",
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_receipt_that_does_not_fit_is_no_receipt(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, lie: str
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != RECEIPT or answer.get("result") is None:
            return answer
        return {**answer, "result": LIES[lie](answer["result"])}

    chaos.falsify = falsify
    payment = new_payment(embedded_chain)
    assert (await chaos_hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
    chaos.calm()
    await chaos_hub.complete()
    assert (await chaos_hub.settle(payment)).body["success"] is True


def other_log(receipt: dict[str, Any], **changes: Any) -> dict[str, Any]:
    logs = [{**log, **changes} for log in receipt["logs"]]
    return {**receipt, "logs": logs}


SILENT: dict[str, Any] = {
    "no logs": lambda receipt: {**receipt, "logs": []},
    "logs of another contract": lambda receipt: other_log(receipt, address="0x" + "12" * 20),
    "another value": lambda receipt: other_log(receipt, data="0x" + "00" * 32),
    "two transfers": lambda receipt: {**receipt, "logs": receipt["logs"] * 2},
}


@pytest.mark.parametrize("lie", SILENT)
async def test_status_one_without_the_transfer_is_never_a_success(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, lie: str
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != RECEIPT or answer.get("result") is None:
            return answer
        return {**answer, "result": SILENT[lie](answer["result"])}

    chaos.falsify = falsify
    payments = {confirm: new_payment(embedded_chain) for confirm in (True, False)}
    for confirm, payment in payments.items():
        answer = await chaos_hub.settle(payment, confirm=confirm)
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
    chaos.calm()
    await chaos_hub.complete()
    for confirm, payment in payments.items():  # it was no failure either: the money had moved
        assert (await chaos_hub.settle(payment, confirm=confirm)).body["success"] is True


async def test_what_is_signed_otherwise_under_a_failed_payment_s_nonce_is_no_next_try_of_it(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """It would be told of under the name of the payment that failed, to whoever sold for that one."""
    chain, failed = embedded_chain, new_payment(embedded_chain)
    chaos.on(SEND, Act.CUT)
    assert (await chaos_hub.settle(failed, prefer="wait=0")).status == 503
    value = drain(chain)
    chaos.calm()
    await chaos_hub.complete()  # sends it
    await chaos_hub.complete()  # sees it reverted
    assert (await chaos_hub.status(failed), await proof_of(chaos_hub)) == ("failed", "reverted")
    chain.mint(chain.wallets.buyer.address, value)
    payee = "0x" + secrets.token_hex(20)
    anew = new_payment(chain, nonce=failed.authorization.nonce, value=20_000, pay_to=payee)
    anew.body["paymentRequirements"] |= {"payTo": payee, "maxAmountRequired": "20000"}
    answer = await chaos_hub.settle(anew)
    assert (answer.body["success"], answer.reason) == (False, "invalid_exact_evm_transaction_failed")
    assert not chain.is_used(anew.authorization.payer, anew.authorization.nonce)
    assert await chaos_hub.status(anew) == "failed"
    assert (await chaos_hub.settle(failed)).body["success"] is True
    assert chain.balance(payee) == 0


async def test_a_transaction_that_reverts_after_its_simulation_fails_by_proof_and_may_be_tried_thrice(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    for attempt in (1, 2, 3):
        chaos.on(SEND, Act.CUT)
        assert (await chaos_hub.settle(payment, prefer="wait=0", key=f"claim.{attempt}")).status == 503
        value = drain(embedded_chain)
        chaos.calm()
        await chaos_hub.complete()  # sends it
        await chaos_hub.complete()  # sees it reverted
        assert (await chaos_hub.status(payment), await proof_of(chaos_hub)) == ("failed", "reverted")
        told = await chaos_hub.settle(payment, prefer="wait=0", key=f"claim.{attempt}")
        assert (told.body["success"], told.reason) == (False, "invalid_exact_evm_transaction_failed")
        embedded_chain.mint(embedded_chain.wallets.buyer.address, value)
    exhausted = await chaos_hub.settle(payment)
    assert (exhausted.body["success"], exhausted.reason) == (False, "invalid_exact_evm_transaction_failed")
    rows = await chaos_hub.database.read(Statement("SELECT attempt FROM settlements"))
    assert rows[0]["attempt"] == 3


async def test_a_new_presentation_after_a_revert_succeeds_and_leaves_the_old_key_failed(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    chaos.on(SEND, Act.CUT)
    assert (await chaos_hub.settle(payment, prefer="wait=0", key="claim.1")).status == 503
    value = drain(embedded_chain)
    chaos.calm()
    await chaos_hub.complete()
    await chaos_hub.complete()
    embedded_chain.mint(embedded_chain.wallets.buyer.address, value)
    assert (await chaos_hub.settle(payment, key="claim.2")).body["success"] is True
    assert (await chaos_hub.settle(payment, key="claim.1", prefer="wait=0")).body["success"] is False
    assert (await chaos_hub.settle(payment, key="claim.2")).body["success"] is True


async def test_a_revert_that_was_seen_is_never_a_success_without_confirm(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)

    def drain_before_send(methods: list[str]) -> Act:
        if SEND in methods:
            drain(embedded_chain)
        return Act.PASS

    chaos.act = drain_before_send
    answer = await chaos_hub.settle(payment, confirm=False)
    assert (answer.body["success"], answer.reason) == (False, "invalid_exact_evm_transaction_failed")
    assert answer.body["transaction"].startswith("0x")


async def test_an_authorization_relayed_by_somebody_else_fails_with_that_transaction(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    chaos.on(SEND, Act.CUT)
    assert (await chaos_hub.settle(payment, prefer="wait=0")).status == 503
    foreign = relay(embedded_chain, payment)
    chaos.calm()
    await chaos_hub.complete()
    await chaos_hub.complete()
    assert (await chaos_hub.status(payment), await proof_of(chaos_hub)) == ("failed", "foreign")
    answer = await chaos_hub.settle(payment)
    assert (answer.reason, answer.body["transaction"]) == ("invalid_exact_evm_nonce_already_used", foreign)
    assert (await chaos_hub.get(payment.status_path)).body["transaction"] == foreign
    bearer = await chaos_hub.login(embedded_chain.wallets.buyer)
    (item,) = (await chaos_hub.get("/api/v1/history?limit=1", Authorization=bearer)).body["history"]
    assert (item["status"], item["transactionHash"]) == ("failed", foreign)


async def test_what_became_of_a_payment_is_asked_of_its_own_token_also_where_the_asset_was_changed_since(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """By the other token it is unused, and our transaction reverted: nothing would have been paid."""
    payment, planted = new_payment(embedded_chain), planted_token({}, name="USDC")
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url) as hub:
        chaos.on(SEND, Act.CUT)
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
    foreign = relay(embedded_chain, payment)
    chaos.calm()
    other = "0x" + "7c" * 20
    embedded_chain.rpc.call("anvil_setCode", other, "0x" + planted.account.code.hex())
    for slot, value in planted.storage.items():
        embedded_chain.rpc.call("anvil_setStorageAt", other, f"0x{slot:064x}", f"0x{value:064x}")
    async with run_hub(tmp_path, embedded_chain, config={"asset": other}) as hub:
        await hub.complete()
        await hub.complete()
        assert (await hub.status(payment), await proof_of(hub)) == ("failed", "foreign")
        assert (await hub.get(payment.status_path)).body["transaction"] == foreign


async def test_an_authorization_used_before_the_hub_saw_it_is_refused_with_that_transaction(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    foreign = relay(embedded_chain, payment)
    answer = await hub.settle(payment)
    assert (answer.reason, answer.body["transaction"]) == ("invalid_exact_evm_nonce_already_used", foreign)
    assert await hub.status(payment) == "unknown"


async def test_a_dropped_transaction_is_sent_again(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    rpc = embedded_chain.rpc
    rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    pending = await hub.settle(payment, prefer="wait=0")
    rpc.call("anvil_dropTransaction", pending.body["error"]["details"]["transaction"])
    rpc.call("evm_mine")
    assert await hub.status(payment) == "pending"
    await hub.complete()
    rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(payment) == "success"


async def test_an_expired_and_unused_authorization_fails_by_proof(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    rpc = embedded_chain.rpc
    rpc.call("evm_setAutomine", False)
    rpc.call("evm_mine")  # a block of now, which the payment's end is counted from
    payment = new_payment(embedded_chain)
    pending = await hub.settle(payment, prefer="wait=0")
    rpc.call("anvil_dropTransaction", pending.body["error"]["details"]["transaction"])
    rpc.call("evm_increaseTime", 3_600)
    rpc.call("evm_mine")
    await hub.complete()
    assert await hub.status(payment) == "pending"  # just expired: a reorganisation could still go back
    rpc.call("anvil_dropTransaction", pending.body["error"]["details"]["transaction"])
    rpc.call("evm_increaseTime", 120)
    rpc.call("evm_mine")
    await hub.complete()
    assert (await hub.status(payment), await proof_of(hub)) == ("failed", "expired")
    answer = await hub.settle(payment)
    assert answer.reason == "invalid_exact_evm_payload_authorization_valid_before"


async def test_a_reorganisation_takes_a_shallow_transaction_back_to_pending_and_it_is_mined_again(
    deep_hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    rpc = embedded_chain.rpc
    before = rpc.call("evm_snapshot")
    payment = new_payment(embedded_chain)
    assert (await deep_hub.settle(payment, prefer="wait=1")).status == 503
    states = await deep_hub.database.read(Statement("SELECT state FROM settlements"))
    assert states[0]["state"] == "MINED"
    rpc.call("evm_revert", before)
    rpc.call("anvil_mine", hex(1))
    await deep_hub.complete()  # back to BROADCAST, sent again
    rpc.call("anvil_mine", hex(3))
    await deep_hub.complete()
    assert await deep_hub.status(payment) == "success"
    assert (await deep_hub.settle(payment)).body["success"] is True


async def test_a_transaction_that_a_node_forgot_does_not_block_those_after_it(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.CUT, times=1)
    first, second = new_payment(embedded_chain), new_payment(embedded_chain)
    assert (await chaos_hub.settle(first, prefer="wait=0")).status == 503
    assert (await chaos_hub.settle(second, prefer="wait=0")).status == 503  # taken, but behind a gap
    await chaos_hub.complete()
    await chaos_hub.complete()
    assert [await chaos_hub.status(first), await chaos_hub.status(second)] == ["success", "success"]


async def test_a_hub_started_before_its_node_answers_serves_once_it_does(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.act = lambda _methods: Act.CUT
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url) as hub:
        payment = new_payment(embedded_chain)
        assert (await hub.settle(payment)).code == "UNAVAILABLE"
        assert (await hub.get("/readyz")).status == 503
        chaos.calm()
        await hub.complete()
        assert (await hub.get("/readyz")).status == 200
        assert (await hub.settle(payment)).body["success"] is True


@pytest.mark.parametrize("lie", ["chain id", "token name", "no contract"])
async def test_a_node_of_another_chain_or_token_disables_the_network(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, lie: str
) -> None:
    options: dict[str, Any] = {}
    if lie == "chain id":
        chaos.falsify = lambda call, answer: {**answer, "result": "0x1"} if call["method"] == "eth_chainId" else answer
    elif lie == "token name":
        options["config"] = {"token_name": "Wrong"}
    else:
        options["config"] = {"asset": "0x" + "12" * 20}
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url, **options) as hub:
        assert (await hub.get("/supported")).body["kinds"] == []
        assert (await hub.settle(new_payment(embedded_chain))).reason == "invalid_network"
        problems = (await hub.get("/readyz")).body["error"]["details"]["problems"]
        assert len(problems) == 1


async def test_a_fee_above_the_cap_signs_nothing(
    hub_with_low_cap: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    assert (await hub_with_low_cap.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
    assert not await hub_with_low_cap.database.read(Statement("SELECT hash FROM raw_transactions"))


async def test_an_account_without_gas_money_signs_nothing(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    embedded_chain.rpc.call("anvil_setBalance", embedded_chain.wallets.relayer.address, hex(1000))
    async with run_hub(tmp_path, embedded_chain) as hub:
        assert (await hub.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
        assert not await hub.database.read(Statement("SELECT hash FROM raw_transactions"))


async def test_a_nonce_used_outside_the_hub_is_skipped_at_the_next_start(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with run_hub(tmp_path, embedded_chain) as hub:
        assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True
    embedded_chain.send_and_wait(embedded_chain.wallets.relayer, embedded_chain.wallets.owner.address, b"")
    async with run_hub(tmp_path, embedded_chain) as hub:
        assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True


@pytest.mark.parametrize(
    "prefer", ["wait=0", "respond-async, WAIT=0", 'wait="0"; foo, handling=lenient', "foo,wait = 0"]
)
async def test_a_caller_may_shorten_the_wait_in_every_spelling_of_the_header(
    chaos_hub: HubUnderTest, embedded_chain: ChainUnderTest, prefer: str
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    try:
        async with asyncio.timeout(20):  # the wait without the header is 30 seconds
            pending = await chaos_hub.settle(new_payment(embedded_chain), prefer=prefer)
        assert pending.code == "SETTLEMENT_PENDING"
    finally:
        embedded_chain.rpc.call("evm_setAutomine", True)


@pytest.mark.parametrize("prefer", ["wait=", "wait=-1", "waits=0", "wait=999999", "await=0"])
async def test_what_is_no_shorter_wait_changes_nothing(
    chaos_hub: HubUnderTest, embedded_chain: ChainUnderTest, prefer: str
) -> None:
    assert (await chaos_hub.settle(new_payment(embedded_chain), prefer=prefer)).body["success"] is True
