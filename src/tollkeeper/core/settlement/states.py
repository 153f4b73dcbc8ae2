"""The settlement's states and transitions, and the history item made of it (specification 2.5, 3; contract 7).

One table holds every lawful transition; storage applies one with `WHERE state = :from`. FAILED is entered only by
proof; an outcome that nobody knows stays where it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """States of a settlement."""

    CLAIMED = "CLAIMED"  # the payment's identity is ours; nothing was signed
    SIGNED = "SIGNED"  # a raw transaction with its signer nonce is on disk; it may or may not have been sent
    BROADCAST = "BROADCAST"  # a node said that it took the transaction
    MINED = "MINED"  # a receipt with matching logs, not yet at the configured depth
    CONFIRMED = "CONFIRMED"
    FAILED = "FAILED"


class Proof(StrEnum):
    """Why a settlement is FAILED: each is a fact, never a guess."""

    NEVER_SENT = "never_sent"
    EXPIRED = "expired"
    FOREIGN = "foreign"
    REVERTED = "reverted"
    SPENT = "spent"  # the only transaction that could ever carry it out was executed, and failed


TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.CLAIMED: frozenset({State.SIGNED, State.FAILED}),
    State.SIGNED: frozenset({State.BROADCAST, State.MINED, State.CONFIRMED, State.FAILED}),
    State.BROADCAST: frozenset({State.MINED, State.CONFIRMED, State.FAILED}),
    State.MINED: frozenset({State.CONFIRMED, State.BROADCAST, State.FAILED}),
    State.CONFIRMED: frozenset({State.BROADCAST}),  # a reorganisation of the chain
    # The same, still valid payment was presented again; or a reorganisation took the proof away.
    State.FAILED: frozenset({State.CLAIMED, State.BROADCAST}),
}


def may_move(old: State, new: State) -> bool:
    """Is this transition in the table?"""
    return new in TRANSITIONS[old]


class Status(StrEnum):
    """The public status of specification 3."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"


# How a hub begins to say that it has no record of a payment. A gateway knows its word by it from another's 404.
UNKNOWN_PAYMENT: Final = "this hub knows no such payment"


def public_status(state: State) -> Status:
    """Return the name of a state in history and at the payment status endpoint."""
    if state is State.CONFIRMED:
        return Status.SUCCESS
    return Status.FAILED if state is State.FAILED else Status.PENDING


class SettlementKind(StrEnum):
    """`type` of specification 2.5: settle records a purchase, `/transfer` a transfer (contract 7)."""

    TRANSFER = "transfer"
    PURCHASE = "purchase"
