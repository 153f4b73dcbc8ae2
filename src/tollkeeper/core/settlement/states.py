"""The settlement's states and transitions, and the history item made of it (specification 2.5, 3; contract 7).

One table holds every lawful transition; storage applies one with `WHERE state = :from`. FAILED is entered only by
proof; an outcome that nobody knows stays where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum, auto
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
    """Tell whether this transition is in the table."""
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


# Proofs about a settlement whose transfer the chain does not show (security 5, A-08, A-09; contract 4.3, 5.2). A
# settlement is FAILED only by proof. The facts given here were read at the depth that the settlement's amount needs; a
# fact that could not be read is no evidence. This module neither reads the chain nor writes down the conclusion.

# An authorization has expired for good once a block this much younger than its end exists: no reorganisation that deep.
EXPIRY_MARGIN_SECONDS: Final = 60
# On Solana blocks are counted and not seconds, from what a node said. After so long it is no longer believed: by then
# every block of before the signature is final, also where our clock or those of the blocks go wrong by minutes.
LIFETIME_DOUBTED_SECONDS: Final = 600


class Conclusion(Enum):
    """Conclusions from the evidence."""

    WAIT = auto()  # nothing is proven: the transfer may still be made
    OURS = auto()  # a transaction of one of our signers used the authorization: it counts
    FOREIGN = auto()  # somebody else's transaction used or cancelled it, or one of ours made another transfer with it
    REVERTED = auto()  # unused, and none of our transactions can carry it out any more
    EXPIRED = auto()  # unused, and it cannot be used any more


@dataclass(frozen=True, slots=True)
class AuthorizationEvidence:
    """The authorization as the chain has it.

    `user_is_ours` says whether the transaction that used it is one of our signers', and for this transfer; None where
    it was not found.
    `nonces_consumed`: every signer nonce that was ever taken for it is mined. Times are Unix seconds.
    """

    is_used: bool
    user_is_ours: bool | None
    nonces_consumed: bool
    block_seconds: int
    valid_before_seconds: int


def conclude(evidence: AuthorizationEvidence) -> Conclusion:
    """The one conclusion that the evidence allows."""
    if evidence.is_used:
        if evidence.user_is_ours is None:
            return Conclusion.WAIT
        return Conclusion.OURS if evidence.user_is_ours else Conclusion.FOREIGN
    if evidence.nonces_consumed:
        return Conclusion.REVERTED
    if evidence.block_seconds >= evidence.valid_before_seconds + EXPIRY_MARGIN_SECONDS:
        return Conclusion.EXPIRED
    return Conclusion.WAIT


@dataclass(frozen=True, slots=True)
class Depths:
    """How many confirmations an outcome needs: 1 is the block itself. `steps`: (from this amount on, at least)."""

    blocks: int = 1
    steps: tuple[tuple[int, int], ...] = ()

    def of(self, value: int) -> int:
        """For that many base units."""
        return max([self.blocks, *(blocks for amount, blocks in self.steps if value >= amount)])
