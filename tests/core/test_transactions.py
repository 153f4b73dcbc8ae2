"""A settlement moves only as the table says (specification 3)."""

from __future__ import annotations

from itertools import product

import pytest

from tollkeeper.core.settlement.states import (
    TRANSITIONS,
    Proof,
    SettlementKind,
    State,
    Status,
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
