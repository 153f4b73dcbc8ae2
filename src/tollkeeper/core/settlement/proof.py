"""Proofs about a settlement whose transfer the chain does not show (security 5, A-08, A-09; contract 4.3, 5.2).

A settlement is FAILED only by proof. The facts given here were read at the depth that the settlement's amount needs; a
fact that could not be read is no evidence. This module neither reads the chain nor writes down the conclusion.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

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
