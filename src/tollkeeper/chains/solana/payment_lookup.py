"""Transactions that carried payments out on Solana, and their outcomes (contract 4.3, 4.4; security A-15, F4).

A payment is its message. Its transaction has the fee payer's signature for a name, which only the fee payer knows
before it is sent; anybody who was not told the name finds it among the transactions of the payer. Bytes come with the
signatures that prove them; how deep they lie is the node's word. The asker draws the conclusions.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Verdict
from tollkeeper.chains.solana.answers import (
    BASE64,
    CONFIRMED,
    FINAL,
    read_height,
    read_list,
    read_sighting,
    read_token,
    read_value,
    statuses_of,
)
from tollkeeper.chains.solana.history import require_recent
from tollkeeper.chains.solana.payments import (
    payments_in,
    signatures_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.quorum import NodeQuorum
    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.chains.solana.reader import SolanaReader
    from tollkeeper.core.settlement.reconciliation import ChainPayment

_LISTED_MAX: Final = 10_000  # of one account, the newest: some ten questions
# Most accounts have no more since long ago. As many such lists as go into one batch fit into one answer.
_LISTED_FIRST: Final = 100
_WHOLE: Final = {"maxSupportedTransactionVersion": 0, **BASE64}


@dataclass(frozen=True, slots=True)
class PaymentUse:
    """A payment in a transaction, named by the token account that it is for, and how the transaction stands."""

    payment: ChainPayment
    sighting: Sighting


async def is_named(quorum: NodeQuorum[SolanaReader], account: str, signature: str, *, by_whole: bool = False) -> bool:
    """Say whether any node names this transaction, as by `is_listed`. Raises: RpcUnavailable.

    Whoever names it has it from the chain: only its fee payer can make its name. That no node does as many must say as
    an outcome needs, where it is `by_whole` such as have every block of some hour.
    """
    found: list[bool] = []

    async def judge(reader: SolanaReader) -> bool:
        found.append(await is_listed(reader, account, signature))
        if by_whole and not found[-1]:
            await require_recent(reader)
        return found[-1]

    told = await quorum.agreed(judge, lambda is_there: is_there)
    if told is None and not any(found):
        raise RpcUnavailable("too few nodes list the account's transactions")
    return any(found)


async def is_listed(reader: SolanaReader, account: str, signature: str) -> bool:
    """Say whether the node names this transaction among the newest of those with the account. Raises: RpcUnavailable.

    It is not told which one is looked for. Behind an account's newest ones few look at a time: anybody can have it
    looked through, for nothing, as often as he likes.
    """
    looked_at = 0
    async with AsyncExitStack() as turn:
        async for one in signatures_of(reader, account, range(2**63), commitment="confirmed", first=_LISTED_FIRST):
            looked_at += 1
            if one.signature == signature or looked_at == _LISTED_MAX:
                return one.signature == signature
            if looked_at == _LISTED_FIRST:
                await turn.enter_async_context(reader.searches.turn(account))
    return False


class Holding(NamedTuple):
    """Money that a payer can pay from a token account, and which transactions were executed by then, passed or failed.

    `height`: the height of the newest block before the balance was read. A transaction that had to be executed by that
    height is in the balance, or never will be.
    """

    money: int
    executed: list[bool]
    height: int


async def holding(reader: SolanaReader, account: str, payer: str, signatures: Sequence[str]) -> Holding:
    """Read the balance, and the state of these transactions, at most 256. Raises: RpcUnavailable.

    The balance is read first: a transaction executed in between counts as one that has left the balance already.
    """
    height, info, shown = await reader.ask(
        [
            ("getEpochInfo", [CONFIRMED]),
            ("getAccountInfo", [account, BASE64]),
            statuses_of(signatures),
        ]
    )
    held = read_token(read_value(info), reader.token_program)
    sightings = [read_sighting(one, {"confirmed", FINAL}) for one in read_list(shown, len(signatures))]
    executed = [one.deep or one.verdict is Verdict.REVERTED for one in sightings]
    return Holding(0 if held is None else held.money_of(payer), executed, read_height(height))


async def read_use(chain: SolanaChain, signature: str, *, is_final_needed: bool = False) -> PaymentUse | None:
    """Read the payment in this transaction and how it stands; None where there is none. Raises: RpcUnavailable.

    `is_final_needed`: it is deep only where it is final, whatever else is configured.
    """
    seeing = chain.see([signature], is_final_needed=is_final_needed)
    (answer,), (sighting,) = await asyncio.gather(chain.rpc.ask([("getTransaction", [signature, _WHOLE])]), seeing)
    if answer is None or sighting.verdict is Verdict.ABSENT:
        return None
    payments = payments_in(chain.require_asset(), signature, answer, {})
    return PaymentUse(payments[0], sighting) if payments else None
