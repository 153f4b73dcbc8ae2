"""Transitions of a settlement that are proven, and how a sighting becomes one (contract 5.2; security 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.chains.sightings import Expected
from tollkeeper.core.settlement.states import State
from tollkeeper.storage.hub.settlements import Move

if TYPE_CHECKING:
    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.core.settlement.states import Depths
    from tollkeeper.storage.hub.settlements import Settlement


class Contradiction(Exception):  # noqa: N818 - what the chain shows, not a fault of ours
    """Our own transaction used the payment and moved nothing: a node that lies, or a token that is no USDC."""


class Unexplained(RpcUnavailable):
    """The payment is used, and a node does not show by which transaction: one without old logs, or that lies.

    As where a node does not answer, the next one is asked.
    """


@dataclass(frozen=True, slots=True)
class ProvenTransition:
    """The row, perhaps under another of its transactions, and the transition that is proven, if any."""

    settlement: Settlement
    move: Move | None = None


def transferred(row: Settlement, sighting: Sighting, now_ms: int) -> ProvenTransition:
    """Return the transition that a sighted transfer proves."""
    to = State.CONFIRMED if sighting.deep else State.MINED
    if to is row.state:
        return ProvenTransition(row)
    return ProvenTransition(row, Move(to, now_ms, block_number=sighting.block_number, block_hash=sighting.block_hash))


def expected_transfer(row: Settlement, depths: Depths, transaction_hash: str = "") -> Expected:
    """Return the transfer that the row's transaction (or that one) must show on the chain, and how deep."""
    key = row.key
    named = transaction_hash or row.transaction_hash
    return Expected(named, key.asset, key.payer, row.pay_to, row.value, key.nonce, depths.of(row.value))
