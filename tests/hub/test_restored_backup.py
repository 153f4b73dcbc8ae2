"""A hub restored from an old backup finds out what its signers did since (security A-09, F22; contract 4.3)."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, TestPayment, new_payment
from tests.hub.test_recovery import change
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement

FORGET = ("settlement_events", "settlement_slots", "raw_transactions", "idempotency", "settlements")


def carry_out(chain: ChainUnderTest, payment: TestPayment, *, by_relayer: bool, **changes: int) -> dict[str, Any]:
    """The payment's transfer, in a transaction that the hub knows nothing of."""
    wallet = chain.wallets.relayer if by_relayer else chain.wallets.faucet
    data = transfer_calldata(payment.authorization, chain.sign(payment.authorization))
    return chain.send_and_wait(wallet, USDC_ADDRESS, data, **changes)


async def test_a_forgotten_payment_that_our_signer_carried_out_is_a_success_once(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain)
    receipt = carry_out(chain, payment, by_relayer=True)
    nonce = chain.nonce(chain.wallets.relayer)
    answer = await hub_on_chain.settle(payment, key="claim.1")
    assert (answer.body["success"], answer.body["transaction"]) == (True, receipt["transactionHash"])
    assert (await hub_on_chain.settle(payment, key="claim.1")).body["success"] is True
    assert (await hub_on_chain.settle(payment, key="claim.2")).reason == "duplicate_settlement"
    assert chain.nonce(chain.wallets.relayer) == nonce
    assert await hub_on_chain.status(payment) == "success"
    assert (await hub_on_chain.settle(new_payment(chain))).body["success"] is True


async def test_a_forgotten_payment_is_not_taken_for_another_authorization_under_its_nonce(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain)
    receipt = carry_out(chain, payment, by_relayer=True)
    other = new_payment(chain, nonce=payment.authorization.nonce, value=900_000)
    refused = await hub_on_chain.settle(other, prefer="wait=1")
    assert refused.reason == "invalid_exact_evm_nonce_already_used"
    assert refused.body["transaction"] == receipt["transactionHash"]
    assert (await hub_on_chain.settle(payment)).body["success"] is True


async def test_a_payment_that_another_account_carried_out_is_refused_with_that_transaction(
    hub_on_chain: HubUnderTest, chain: ChainUnderTest
) -> None:
    payment = new_payment(chain)
    receipt = carry_out(chain, payment, by_relayer=False)
    answer = await hub_on_chain.settle(payment)
    assert answer.reason == "invalid_exact_evm_nonce_already_used"
    assert answer.body["transaction"] == receipt["transactionHash"]
    assert await hub_on_chain.status(payment) == "unknown"


@pytest.mark.parametrize("blocks_since", [0, 20_000])  # more than nodes show the logs of at once
@pytest.mark.parametrize("by_relayer", [True, False])
async def test_a_row_whose_authorization_was_used_elsewhere_learns_by_whom(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, *, by_relayer: bool, blocks_since: int
) -> None:
    """Signed and not sent, as an old backup remembers it; the transfer was made by a transaction that it does not."""
    chain = embedded_chain
    chaos.on("eth_sendRawTransaction", Act.CUT)
    payment = new_payment(chain)
    assert (await chaos_hub.settle(payment, prefer="wait=0")).status == 503
    receipt = carry_out(chain, payment, by_relayer=by_relayer)
    if blocks_since:
        chain.rpc.call("anvil_mine", hex(blocks_since))
    chaos.calm()
    with capture_logs() as logs:
        for _ in range(3):
            await chaos_hub.complete()
    shown = (await chaos_hub.get(payment.status_path)).body
    wanted = "success" if by_relayer else "failed"
    assert (shown["status"], shown["transaction"]) == (wanted, receipt["transactionHash"])
    assert any(line["event"] == "transaction_adopted" for line in logs) is by_relayer
    answer = await chaos_hub.settle(payment)
    assert answer.body["success"] is by_relayer
    assert (await chaos_hub.settle(new_payment(chain))).body["success"] is True


async def test_a_row_whose_use_no_node_shows_is_set_aside_and_told_of(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """As at a node that keeps no old logs."""
    chain = embedded_chain
    chaos.on("eth_sendRawTransaction", Act.CUT)
    payment = new_payment(chain)
    assert (await chaos_hub.settle(payment, prefer="wait=0")).status == 503
    carry_out(chain, payment, by_relayer=False)
    chaos.calm()
    chaos.falsify = lambda call, answer: answer | {"result": []} if call["method"] == "eth_getLogs" else answer
    with capture_logs() as logs:
        for _ in range(3):
            await chaos_hub.complete()
    assert [line["event"] for line in logs].count("settlement_set_aside") == 1
    assert await chaos_hub.status(payment) == "pending"
    chaos.calm()
    await chaos_hub.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await chaos_hub.complete()
    assert await chaos_hub.status(payment) == "failed"


async def signed_under_a_used_nonce(hub: HubUnderTest, chaos: ChaosNode, chain: ChainUnderTest) -> tuple[Any, str]:
    """A row of another authorization, signed and not sent; our signer's forgotten transaction has used its nonce."""
    chaos.on("eth_sendRawTransaction", Act.CUT)
    payment = new_payment(chain)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    other = new_payment(chain, nonce=payment.authorization.nonce, value=900_000)
    receipt = carry_out(chain, other, by_relayer=True)
    chaos.calm()
    return payment, receipt["transactionHash"]


async def test_a_row_whose_nonce_our_signer_used_for_another_transfer_fails_by_proof(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """Set aside it would be looked at for ever, and its buyer told to wait."""
    payment, transaction = await signed_under_a_used_nonce(chaos_hub, chaos, embedded_chain)
    with capture_logs() as logs:
        for _ in range(3):
            await chaos_hub.complete()
    shown = (await chaos_hub.get(payment.status_path)).body
    assert (shown["status"], shown["transaction"]) == ("failed", transaction)
    assert not [line for line in logs if line["event"] in {"settlement_set_aside", "transaction_adopted"}]
    assert (await chaos_hub.settle(payment)).reason == "invalid_exact_evm_nonce_already_used"


@pytest.mark.parametrize("calls", [["eth_getTransactionReceipt"], ["eth_getBlockByNumber"]])
async def test_nothing_is_adopted_that_was_signed_otherwise_while_no_node_shows_what_was_made(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, calls: list[str]
) -> None:
    """By its own bytes our transaction says what it was to make, whatever a node shows or keeps to itself."""
    chain = embedded_chain
    payment = new_payment(chain)
    receipt = carry_out(chain, payment, by_relayer=True)
    other = new_payment(chain, nonce=payment.authorization.nonce, value=900_000)
    receipts = 0

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal receipts
        receipts += call["method"] == "eth_getTransactionReceipt"
        is_hidden = call["method"] in calls and receipts
        return answer | {"result": None} if is_hidden else answer

    chaos.falsify = falsify
    assert (await chaos_hub.settle(other, prefer="wait=1")).code == "UNAVAILABLE"
    assert await chaos_hub.status(other) == "unknown"
    chaos.calm()
    refused = await chaos_hub.settle(other, prefer="wait=1")
    assert refused.reason == "invalid_exact_evm_nonce_already_used"
    assert refused.body["transaction"] == receipt["transactionHash"]
    assert (await chaos_hub.settle(payment)).body["success"] is True


async def test_a_hub_that_forgot_everything_goes_on_at_the_chain_s_nonce_and_adopts_what_is_presented(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    payments = [new_payment(chain) for _ in range(5)]
    hashes = [(await hub.settle(payment)).body["transaction"] for payment in payments]
    before = chain.balance(chain.wallets.owner.address)
    for table in FORGET:
        await hub.database.run(change(f"DELETE FROM {table}"))  # noqa: S608 - own names
    await hub.database.run(change("UPDATE signer_lanes SET next_nonce = 0"))
    with capture_logs() as logs:
        await hub.complete()
    assert [line["event"] for line in logs if line["event"] == "nonces_used_elsewhere"] == ["nonces_used_elsewhere"]
    assert (await hub.settle(new_payment(chain))).body["success"] is True
    answers = [await hub.settle(payment) for payment in payments]
    assert [(answer.body["success"], answer.body["transaction"]) for answer in answers] == [
        (True, transaction) for transaction in hashes
    ]
    assert chain.balance(chain.wallets.owner.address) == before + 10_000
    rows = await hub.database.read(Statement("SELECT COUNT(DISTINCT hash) AS n FROM raw_transactions"))
    assert rows[0]["n"] == 6
    adopted = hub.hub.metrics.registry.get_sample_value(
        "tollkeeper_hub_settlements_adopted_total", {"network": NETWORK}
    )
    assert adopted == 5


async def test_a_node_that_says_that_our_signer_sent_what_another_sent_is_not_believed(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    payment = new_payment(chain)
    carry_out(chain, payment, by_relayer=False)

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getTransactionByHash":
            return answer
        return answer | {"result": answer["result"] | {"from": chain.wallets.relayer.address}}

    chaos.falsify = falsify
    assert (await chaos_hub.settle(payment)).reason == "invalid_exact_evm_nonce_already_used"
