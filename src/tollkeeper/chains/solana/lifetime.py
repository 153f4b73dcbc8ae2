"""Lifetime of a transaction: what holds a recent blockhash can be executed for 150 blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BLOCKHASH_LIFETIME_BLOCKS: Final = 150
# By so much a node that names the height may lag behind the one that simulated: providers spread calls over several.
LAG_BLOCKS: Final = 32


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Bounds of where the chain can hold a transaction that is sent from now on: a first slot and a last height."""

    first_slot: int
    last_height: int
