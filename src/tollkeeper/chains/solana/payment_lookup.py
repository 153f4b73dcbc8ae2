"""Transactions that carried payments out on Solana, and their outcomes (contract 4.3, 4.4; security A-15, F4).

A payment is its message. Its transaction has the fee payer's signature for a name, which only the fee payer knows
before it is sent; anybody who was not told the name finds it among the transactions of the payer. Bytes come with the
signatures that prove them; how deep they lie is the node's word. The asker draws the conclusions.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

from tollkeeper.chains.evm.receipts import Verdict
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.chains.solana.answers import FINAL, read_height, read_list, read_sighting, read_token, read_value
from tollkeeper.chains.solana.payments import (
    asset_of,
    payments_in,
    signatures_of,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from tollkeeper.chains.evm.receipts import Sighting
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.settlement.reconciliation import ChainPayment

_READ_AT_ONCE: Final = 50
_MESSAGES_MAX: Final = 20_000
_LISTED_MAX: Final = 10_000  # of one account, the newest: some ten questions
# Most accounts have no more since long ago. As many such lists as go into one batch fit into one answer.
_LISTED_FIRST: Final = 100
_SEARCHES_MAX: Final = 2  # behind those, at a time
_TURN_SECONDS: Final = 2.0
_CONFIRMED: Final = {"commitment": "confirmed"}
_WHOLE: Final = {"encoding": "base64", "maxSupportedTransactionVersion": 0, **_CONFIRMED}


@dataclass(frozen=True, slots=True)
class PaymentUse:
    """A payment in a transaction, named by the token account that it is for, and how the transaction stands."""

    payment: ChainPayment
    sighting: Sighting


async def is_named(chain: SolanaChain, account: str, signature: str, *, by_whole: bool = False) -> bool:
    """Does any node name this transaction, as `is_listed` says? Raises: RpcUnavailable.

    Whoever names it has it from the chain: only its fee payer can make its name. That no node does as many must say as
    an outcome needs, where it is `by_whole` such as have every block of some hour.
    """
    found: list[bool] = []

    async def judge(node: SolanaChain) -> bool:
        found.append(await is_listed(node, account, signature))
        if by_whole and not found[-1]:
            await chain.missing.require_recent(node)
        return found[-1]

    told = await chain.agreed(judge, lambda is_there: is_there)
    if told is None and not any(found):
        msg = "too few nodes list the account's transactions"
        raise RpcUnavailable(msg)
    return any(found)


async def is_listed(chain: SolanaChain, account: str, signature: str) -> bool:
    """Does the node name this transaction among the newest of those with the account? Raises: RpcUnavailable.

    It is not told which one is looked for. Behind an account's newest ones few look at a time: anybody can have it
    looked through, for nothing, as often as he likes.
    """
    looked_at = 0
    async with AsyncExitStack() as turn:
        async for one in signatures_of(chain, account, range(2**63), commitment="confirmed", first=_LISTED_FIRST):
            looked_at += 1
            if one.signature == signature or looked_at == _LISTED_MAX:
                return one.signature == signature
            if looked_at == _LISTED_FIRST:
                await turn.enter_async_context(chain.searches.turn(account))
    return False


class Holding(NamedTuple):
    """Money that a payer can pay from a token account, and which transactions were executed by then, passed or failed.

    `height`: the height of the newest block before the balance was read. A transaction that had to be executed by that
    height is in the balance, or never will be.
    """

    money: int
    executed: list[bool]
    height: int


async def holding(chain: SolanaChain, account: str, payer: str, signatures: Sequence[str]) -> Holding:
    """Read the balance, and the state of these transactions, at most 256. Raises: RpcUnavailable.

    The balance is read first: a transaction executed in between counts as one that has left the balance already.
    """
    statuses: Call = ("getSignatureStatuses", [list(signatures), {"searchTransactionHistory": True}])
    height, info, shown = await chain.rpc.ask(
        [
            ("getEpochInfo", [_CONFIRMED]),
            ("getAccountInfo", [account, {"encoding": "base64", **_CONFIRMED}]),
            statuses,
        ]
    )
    held = read_token(read_value(info), chain.config.token_program)
    sightings = [read_sighting(one, {"confirmed", FINAL}) for one in read_list(shown, signatures)]
    executed = [one.deep or one.verdict is Verdict.REVERTED for one in sightings]
    return Holding(0 if held is None else held.money_of(payer), executed, read_height(height))


class Searches:
    """Turns to search behind the newest transactions of an account: few at a time, and one by one for each account.

    So a payer that has its own account searched without end keeps the others waiting for one of its searches only.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_SEARCHES_MAX)
        self._accounts: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # while somebody holds it

    @asynccontextmanager
    async def turn(self, account: str) -> AsyncIterator[None]:
        """Raises: RpcUnavailable where it does not come in time."""
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(_TURN_SECONDS):
                    await held.enter_async_context(self._accounts.setdefault(account, asyncio.Lock()))
                    await held.enter_async_context(self._places)
            except TimeoutError as error:
                msg = "too many accounts are looked through"
                raise RpcUnavailable(msg) from error
            yield


async def read_use(chain: SolanaChain, signature: str, *, is_final_needed: bool = False) -> PaymentUse | None:
    """Read the payment in this transaction and how it stands; None where there is none. Raises: RpcUnavailable.

    `is_final_needed`: it is deep only where it is final, whatever else is configured.
    """
    seeing = chain.see([signature], is_final_needed=is_final_needed)
    (answer,), (sighting,) = await asyncio.gather(chain.rpc.ask([("getTransaction", [signature, _WHOLE])]), seeing)
    if answer is None or sighting.verdict is Verdict.ABSENT:
        return None
    payments = payments_in(asset_of(chain), signature, answer, {})
    return PaymentUse(payments[0], sighting) if payments else None
