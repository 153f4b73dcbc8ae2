"""A settlement moves only as the table says, and history shows it as specified (specification 2.5, 3; contract 7)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from tollkeeper.core.settlement.states import (
    TRANSITIONS,
    HistoryRow,
    Proof,
    SettlementKind,
    State,
    Status,
    history_item,
    may_move,
    public_status,
)

LAWFUL = {
    ("CLAIMED", "SIGNED"),
    ("CLAIMED", "FAILED"),
    ("SIGNED", "BROADCAST"),
    ("SIGNED", "MINED"),
    ("SIGNED", "CONFIRMED"),
    ("SIGNED", "FAILED"),
    ("BROADCAST", "MINED"),
    ("BROADCAST", "CONFIRMED"),
    ("BROADCAST", "FAILED"),
    ("MINED", "CONFIRMED"),
    ("MINED", "BROADCAST"),
    ("MINED", "FAILED"),
    ("CONFIRMED", "BROADCAST"),
    ("FAILED", "CLAIMED"),
    ("FAILED", "BROADCAST"),
}

ROW = HistoryRow(
    id="tx_1",
    created="2026-10-01T12:00:00.000Z",
    updated="2026-10-01T12:00:02.000Z",
    signer="0x857b06519E91e3A54538791bDbb0E22373e36b66",
    amount=10_000,
    network="base-sepolia",
    transaction_hash="0x" + 64 * "a",
    state=State.CONFIRMED,
    error=None,
    kind=SettlementKind.TRANSFER,
    x402_data={"x402Version": 1},
    purchase_data=None,
)


@pytest.mark.parametrize(("old", "new"), list(product(State, State)))
def test_only_the_lawful_transitions_are_allowed(old: State, new: State) -> None:
    assert may_move(old, new) is ((old.value, new.value) in LAWFUL)


def test_every_state_has_a_way_out_and_none_moves_to_itself() -> None:
    assert set(TRANSITIONS) == set(State)
    assert all(targets and old not in targets for old, targets in TRANSITIONS.items())


def test_a_confirmed_settlement_is_never_failed_directly() -> None:
    assert not may_move(State.CONFIRMED, State.FAILED)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (State.CLAIMED, "pending"),
        (State.SIGNED, "pending"),
        (State.BROADCAST, "pending"),
        (State.MINED, "pending"),
        (State.CONFIRMED, "success"),
        (State.FAILED, "failed"),
    ],
)
def test_each_state_has_one_public_status(state: State, status: str) -> None:
    assert public_status(state) is Status(status)


def test_the_public_statuses_kinds_and_proofs_are_the_documented_ones() -> None:
    assert {status.value for status in Status} == {"pending", "success", "failed"}
    assert {kind.value for kind in SettlementKind} == {"transfer", "purchase"}
    assert {proof.value for proof in Proof} == {"never_sent", "expired", "foreign", "reverted", "spent"}


def test_a_history_item_has_exactly_the_specified_fields() -> None:
    assert history_item(ROW) == {
        "id": "tx_1",
        "createdAt": "2026-10-01T12:00:00.000Z",
        "updatedAt": "2026-10-01T12:00:02.000Z",
        "signerAddress": "0x857b06519E91e3A54538791bDbb0E22373e36b66",
        "amount": "10000",
        "network": "base-sepolia",
        "chainId": 84532,
        "transactionHash": "0x" + 64 * "a",
        "status": "success",
        "error": None,
        "type": "transfer",
        "x402Data": {"x402Version": 1},
    }


def test_purchase_data_is_present_only_for_a_purchase_through_a_gate() -> None:
    item = history_item(replace(ROW, kind=SettlementKind.PURCHASE, purchase_data={"slug": "abc"}))
    assert item["type"] == "purchase"
    assert item["purchaseData"] == {"slug": "abc"}
    assert "purchaseData" not in history_item(replace(ROW, kind=SettlementKind.PURCHASE))


@pytest.mark.parametrize("state", [State.CLAIMED, State.SIGNED, State.BROADCAST, State.MINED])
def test_the_hash_is_null_while_pending_even_where_it_is_known(state: State) -> None:
    item = history_item(replace(ROW, state=state))
    assert (item["status"], item["transactionHash"]) == ("pending", None)


def test_a_failed_item_says_why_and_shows_its_hash() -> None:
    item = history_item(replace(ROW, state=State.FAILED, error="reverted"))
    assert (item["status"], item["error"], item["transactionHash"]) == ("failed", "reverted", ROW.transaction_hash)


@pytest.mark.parametrize(
    ("network", "chain_id"),
    [("base", 8453), ("base-sepolia", 84532), ("solana-mainnet", None), ("solana-devnet", None)],
)
def test_the_chain_id_follows_the_network_and_is_null_on_solana(network: str, chain_id: int | None) -> None:
    item = history_item(replace(ROW, network=network))
    assert (item["network"], item["chainId"]) == (network, chain_id)
