"""Evidence about one authorization in the logs of one transaction (contract 5.2; security A-14).

A transfer with authorization leaves two events of the token: AuthorizationUsed(payer, nonce) and, beside it,
Transfer(payer, payTo, value). A transaction may make many such transfers, also several of one payer to one payee of one
value, so an event of each kind somewhere in it proves nothing: the events are read in pairs, in the order of the log.
Whether the receipt is canonical and deep is not decided here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tollkeeper.core.evm.encoding import AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Log:
    """One event. Hex is lower case; the address is the contract's that emitted it."""

    address: str
    topics: tuple[str, ...]
    data: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """The transfer that an authorization makes. Addresses and nonce are lower-case hex, the value is base units."""

    asset: str
    payer: str
    pay_to: str
    value: int
    nonce: str


def shows_transfer(logs: Sequence[Log], transfer: Transfer) -> bool:
    """Do the logs of a transaction with status 1 show this transfer, made by this authorization?

    Raises: ValueError for a log that no token can have written.
    """
    payer = topic_of(transfer.payer)
    used = (AUTHORIZATION_USED_TOPIC, payer, transfer.nonce)
    moved = (TRANSFER_TOPIC, payer, topic_of(transfer.pay_to))
    kinds = {AUTHORIZATION_USED_TOPIC, TRANSFER_TOPIC}
    events = [log for log in logs if log.address == transfer.asset and log.topics and log.topics[0] in kinds]
    if any(len(log.topics) != 3 for log in events):  # what kind it is, and its two indexed members
        raise ValueError("a token's event has other topics than its kind has")
    uses = [index for index, log in enumerate(events) if log.topics == used]
    moves = [index for index, log in enumerate(events) if log.topics == moved and int(log.data, 16) == transfer.value]
    if len(uses) != 1:
        return False
    of_uses = [index for index, log in enumerate(events) if log.topics[0] == AUTHORIZATION_USED_TOPIC]
    if len(of_uses) == 1 and len(moves) == 1:
        return True
    if all(_is_followed(events, index) for index in of_uses):
        # A token that writes the use first, as USDC does. A payer's wallet that is deployed in the same transaction may
        # move money besides, before and after: that belongs to no use.
        return uses[0] + 1 in moves
    # The first two events belong together, and so on; which of the two a token writes first is its own affair.
    return uses[0] ^ 1 in moves and len(events) % 2 == 0


def _is_followed(events: Sequence[Log], index: int) -> bool:
    """Is a use followed at once by a transfer of its payer?"""
    behind = events[index + 1 : index + 2]
    return any(log.topics[:2] == (TRANSFER_TOPIC, events[index].topics[1]) for log in behind)


def topic_of(address: str) -> str:
    """An address as logs name it among their topics."""
    return "0x" + "0" * 24 + address[2:]
