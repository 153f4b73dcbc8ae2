"""History shows a settlement as specified (specification 2.5, 3; contract 7)."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest
from msgspec import structs

from tests.core.payments import AUTHORIZATION, signed_payment
from tollkeeper.core.settlement.states import SettlementKind, State
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.x402.version1 import PaymentKey, payment_body
from tollkeeper.hub.api.bodies import ShownTransaction
from tollkeeper.hub.api.history import history_terms
from tollkeeper.storage.hub.settlements import Settlement

PAYER: Final = "0x857b06519e91e3a54538791bdbb0e22373e36b66"
PAYEE: Final = "0x" + 40 * "b"
ASSET: Final = "0x" + 40 * "c"
HASH: Final = "0x" + 64 * "a"
ROW: Final = Settlement(
    id="tx_1",
    key=PaymentKey("base-sepolia", ASSET, PAYER, "0x" + 64 * "1"),
    kind=SettlementKind.TRANSFER,
    pay_to=PAYEE,
    value=10_000,
    state=State.CONFIRMED,
    version=1,
    attempt=1,
    payment=json.dumps(payment_body(signed_payment())),
    requirements=json.dumps({"resource": "https://seller/", "maxAmountRequired": "10000"}),
    requirements_hash="",
    confirm=True,
    purchase_data=None,
    signer="",
    transaction_hash=HASH,
    foreign_hash=None,
    block_number=None,
    block_hash=None,
    proof=None,
    error=None,
    handed_out_ms=None,
    holder="",
    fence=0,
    created_ms=1_790_856_000_000,
    updated_ms=1_790_856_002_000,
)


def shown(row: Settlement) -> dict[str, Any]:
    """The item as a wallet reads it."""
    item: dict[str, Any] = msgspec.to_builtins(ShownTransaction(**history_terms(row)))
    return item


def test_a_history_item_has_exactly_the_specified_fields() -> None:
    assert shown(ROW) == {
        "id": "tx_1",
        "createdAt": "2026-10-01T12:00:00.000Z",
        "updatedAt": "2026-10-01T12:00:02.000Z",
        "signerAddress": "0x857b06519E91e3A54538791bDbb0E22373e36b66",
        "amount": "10000",
        "network": "base-sepolia",
        "chainId": 84532,
        "transactionHash": HASH,
        "status": "success",
        "error": None,
        "type": "transfer",
        "x402Data": {
            "x402Version": 1,
            "scheme": "exact",
            "network": "base-sepolia",
            "asset": shown_address(ASSET),
            "payer": shown_address(PAYER),
            "payTo": shown_address(PAYEE),
            "value": "10000",
            "validAfter": str(AUTHORIZATION.valid_after),
            "validBefore": str(AUTHORIZATION.valid_before),
            "nonce": ROW.key.nonce,
            "resource": "https://seller/",
            "maxAmountRequired": "10000",
            "confirm": True,
        },
    }


def test_purchase_data_is_present_only_for_a_purchase_through_a_gate() -> None:
    purchase = replace(ROW, kind=SettlementKind.PURCHASE)
    item = shown(replace(purchase, purchase_data='{"slug": "abc"}'))
    assert item["type"] == "purchase"
    assert item["purchaseData"] == {"slug": "abc"}
    assert "purchaseData" not in shown(purchase)


@pytest.mark.parametrize("state", [State.CLAIMED, State.SIGNED, State.BROADCAST, State.MINED])
def test_the_hash_is_null_while_pending_even_where_it_is_known(state: State) -> None:
    item = shown(replace(ROW, state=state))
    assert (item["status"], item["transactionHash"]) == ("pending", None)


def test_a_failed_item_says_why_and_shows_its_hash() -> None:
    item = shown(replace(ROW, state=State.FAILED, error="reverted"))
    assert (item["status"], item["error"], item["transactionHash"]) == ("failed", "reverted", HASH)


@pytest.mark.parametrize(
    ("network", "chain_id"),
    [("base", 8453), ("base-sepolia", 84532), ("solana-mainnet", None), ("solana-devnet", None)],
)
def test_the_chain_id_follows_the_network_and_is_null_on_solana(network: str, chain_id: int | None) -> None:
    item = shown(replace(ROW, key=structs.replace(ROW.key, network=network)))
    assert (item["network"], item["chainId"]) == (network, chain_id)
