"""Sightings of transactions, of either family: what the nodes show of one, and how sure that is (security A-14, A-15).

A sighting is `deep` once it lies deep enough to stand: on EVM once its block has the configured number of
confirmations, on Solana once its slot is confirmed, or final. What a settlement becomes is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.evm.receipt_logs import Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence


class Submission(Enum):
    """Answers of a node to a transaction."""

    TAKEN = auto()
    UNCLEAR = auto()  # it may or may not have it: never a failure


class Verdict(Enum):
    """Verdicts of a receipt on the transfer that its transaction was to make."""

    TRANSFERRED = auto()  # status 1, and the two events of this transfer
    REVERTED = auto()  # status 0
    MISMATCH = auto()  # status 1 without those events
    ABSENT = auto()  # no canonical receipt: nothing is known
    DOUBTED = auto()  # a node shows something, and too few others do: no more is known


@dataclass(frozen=True, slots=True)
class Expected:
    """A transaction of ours and the transfer in it. Addresses, nonce and hash are lower-case hex, value base units.

    `depth_blocks`: confirmations that make a sighting of it deep; 1 is the block itself.
    """

    transaction_hash: str
    asset: str
    payer: str
    pay_to: str
    value: int
    nonce: str
    depth_blocks: int = 1

    @property
    def transfer(self) -> Transfer:
        """The transfer alone."""
        return Transfer(self.asset, self.payer, self.pay_to, self.value, self.nonce)


@dataclass(frozen=True, slots=True)
class Sighting:
    """A verdict, whether it lies deep enough to stand, and in which block (None while absent).

    `shows_failure`: it is doubted, and a node shows that the transaction moved nothing.
    """

    verdict: Verdict
    deep: bool = False
    block_number: int | None = None
    block_hash: str | None = None
    shows_failure: bool = False


NOTHING_SEEN: Final = Sighting(Verdict.ABSENT)
FAILURES: Final = frozenset({Verdict.REVERTED, Verdict.MISMATCH})


def require_agreement(sightings: Sequence[Sighting]) -> None:
    """Raises: RpcUnavailable where nodes do not show the same, so that nothing can be said of the chain."""
    if any(sighting.verdict is Verdict.DOUBTED for sighting in sightings):
        raise RpcUnavailable("the nodes do not show the same")
