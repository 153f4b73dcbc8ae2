"""Every payment that a facilitator carried out on Solana for some accounts, in a range of slots (security I6, I7).

What a wallet sends by itself is nobody's business here: a payment is a transaction of a payment's shape whose fee
another account than the payer paid. Only finalized transactions are read. Whether the books agree is decided in
`core.settlement.reconciliation`.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.sightings import Verdict, require_agreement
from tollkeeper.chains.solana.answers import FINALIZED, read_number
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.settlement.reconciliation import ChainPayment
from tollkeeper.core.solana import ed25519
from tollkeeper.core.solana.base58 import encode, encode_key, parse_key
from tollkeeper.core.solana.message import MalformedTransaction
from tollkeeper.core.solana.rules import payment_key, read_transfer
from tollkeeper.core.x402.version1 import SolanaPayload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.chains.solana.reader import SolanaReader
    from tollkeeper.core.solana.message import SolanaTransaction
    from tollkeeper.core.solana.rules import SolanaAsset

_PAGE: Final = 1_000  # signatures that one question is answered with at most
_PAGES_MAX: Final = 8  # two megabytes
_TRANSACTIONS_AT_ONCE: Final = 50
_WHOLE: Final = {"encoding": "base64", "maxSupportedTransactionVersion": 0, **FINALIZED}
_SLOT_SECONDS: Final = 0.4
_LISTED_TRIES: Final = 4  # a slot apart, before the last one
_LATER_VERSION: Final = -32015  # a node's answer where the transaction is of a version above that


async def read_payments(
    chain: SolanaChain, senders: Iterable[str], sold_to: Iterable[str], known: Iterable[str], slots: range
) -> list[ChainPayment]:
    """Return the payments whose fees `senders` paid, or that reached the wallets `sold_to`, in the chain's order.

    `known` are wallets by which recipients are named; another one is named by its token account, and so is an account
    that its wallet had signed away. Raises: RpcUnavailable, also where a node has not come to the last of these slots:
    behind one address there may be several.
    """
    asset = chain.require_asset()
    accounts = {asset.account_of(wallet): wallet for wallet in {*known, *sold_to}}
    looked_at = [*senders, *(asset.account_of(wallet) for wallet in sold_to)]
    wanted: dict[str, None] = {}
    for address in looked_at:
        for one in await _listed(chain, address, slots):
            if not one.has_failed:
                wanted[one.signature] = None
    names = list(wanted)
    found: list[ChainPayment] = []
    for first in range(0, len(names), _TRANSACTIONS_AT_ONCE):
        some = names[first : first + _TRANSACTIONS_AT_ONCE]
        answers = await chain.rpc.ask([("getTransaction", [one, _WHOLE]) for one in some])
        for name, answer in zip(some, answers, strict=True):
            found += payments_in(asset, name, answer, accounts)
    return sorted(found, key=lambda payment: payment.block_number)


async def _listed(chain: SolanaChain, address: str, slots: range) -> list[ListedTransaction]:
    """List all of these slots, by a node that has come to the last of them; one that lags is waited for."""
    last = max(0, slots.stop - 1)
    for _ in range(_LISTED_TRIES):
        try:
            return [
                one
                async for one in signatures_of(chain.reader, address, slots, commitment="finalized", known_slot=last)
            ]
        except RpcUnavailable:
            await asyncio.sleep(_SLOT_SECONDS)
    return [one async for one in signatures_of(chain.reader, address, slots, commitment="finalized", known_slot=last)]


async def payments_of(chain: SolanaChain, signature: str) -> list[ChainPayment]:
    """Return the payment that one finalized transaction carried out, to a token account; none where there is none.

    Raises: RpcUnavailable.
    """
    asset = chain.require_asset()
    (answer,) = await chain.rpc.ask([("getTransaction", [signature, _WHOLE])])
    if answer is None:
        return []
    if isinstance(answer, RpcError) or not isinstance(answer, dict) or not isinstance(answer.get("meta"), dict):
        raise RpcUnavailable("the node does not show the transaction")
    if answer["meta"].get("err") is not None:
        return []
    (sighting,) = sightings = await chain.see([signature], is_final_needed=True)
    require_agreement(sightings)
    if sighting.verdict is not Verdict.TRANSFERRED or not sighting.deep:  # what shows it may have made up how it ended
        return []
    return list(payments_in(asset, signature, answer, {}))


class ListedTransaction(NamedTuple):
    """A transaction as a node lists it."""

    signature: str
    slot: int
    has_failed: bool


async def signatures_of(
    reader: SolanaReader, address: str, slots: range, *, commitment: str, first: int = _PAGE, known_slot: int = 0
) -> AsyncIterator[ListedTransaction]:
    """Yield what was executed with this account in these slots, the newest first. Raises: RpcUnavailable.

    `first`: the number that is asked for before the others. A node that has not come to `known_slot` yet lists nothing.
    """
    before: dict[str, str] = {}
    where = _where(commitment, known_slot)
    size = first
    while True:
        options = {"limit": size, **before, **where}
        (page,) = await reader.ask([("getSignaturesForAddress", [address, options])])
        entries = _entries(page)
        if before and entries and entries[-1].signature == before["before"]:  # else it would have no end
            raise RpcUnavailable("the node lists the same transactions again")
        for entry in entries:
            if entry.slot in slots:
                yield entry
        if len(entries) < size or entries[-1].slot < slots.start:
            return
        size, before = _PAGE, {"before": entries[-1].signature}


def _where(commitment: str, known_slot: int) -> dict[str, object]:
    return {"commitment": commitment, **({"minContextSlot": known_slot} if known_slot else {})}


def _entries(page: Any) -> list[ListedTransaction]:  # noqa: ANN401 - JSON
    if isinstance(page, list):
        try:
            return [
                ListedTransaction(str(one["signature"]), read_number(one["slot"]), one["err"] is not None)
                for one in page
            ]
        except (KeyError, TypeError, RpcUnavailable):
            pass
    said = f": {page.message}" if isinstance(page, RpcError) else ""
    raise RpcUnavailable(f"the node does not list an account's transactions{said}")


def transaction_bytes(answer: Any) -> bytes:  # noqa: ANN401 - JSON
    """Return the transaction that a node shows.

    Raises: MalformedTransaction for one of a version that no payment has; RpcUnavailable where it shows none.
    """
    if isinstance(answer, RpcError) and answer.code == _LATER_VERSION:
        raise MalformedTransaction(answer.message)
    try:
        text, encoding = answer["transaction"]
        raw = base64.b64decode(text, validate=True) if encoding == "base64" else b""
    except (KeyError, TypeError, ValueError):
        raw = b""
    if not raw:
        raise RpcUnavailable("the node does not show a transaction that it lists")
    return raw


def require_name(transaction: SolanaTransaction, signature: str) -> None:
    """Require that it is the transaction that is named so. Raises: RpcUnavailable.

    Its name is its fee payer's signature: with other bytes than those that were signed no node can show it. That it was
    executed several nodes may have to say; what it is each of them can only show.
    """
    named, message = transaction.signatures[0], transaction.message
    if encode(named) != signature or not ed25519.verify(message.accounts[0], named, message.raw):
        raise RpcUnavailable("the node shows another transaction than the one that was asked for")


def payments_in(asset: SolanaAsset, name: str, answer: Any, wallets: Mapping[str, str]) -> Sequence[ChainPayment]:  # noqa: ANN401
    """Read the payment that the transaction of this name is, or none. Raises: RpcUnavailable if it is not shown."""
    try:
        raw = transaction_bytes(answer)
        slot = read_number(answer.get("slot"))
        transfer = read_transfer(SolanaPayload(base64.b64encode(raw).decode()))
        message = transfer.transaction.message
        moved = message.instructions[2]
        mint, program = (encode_key(message.accounts[place]) for place in (moved.accounts[1], moved.program))
    except (MalformedTransaction, IndexError):
        return []
    if (mint, program) != (asset.address, asset.token_program) or transfer.payer == transfer.fee_payer:
        return []
    if transfer.source == transfer.destination:  # nothing moves, and the chain calls it a success
        return []
    require_name(transfer.transaction, name)
    holder = _holder(answer, moved.accounts[2])
    is_theirs = not holder or asset.held_by(transfer.destination, holder).is_its_own
    return [
        ChainPayment(
            payment_key(asset, transfer),
            wallets.get(transfer.destination, transfer.destination) if is_theirs else transfer.destination,
            transfer.value,
            encode(transfer.transaction.signatures[0]),
            transfer.fee_payer,
            slot,
            holder,
        )
    ]


def _holder(answer: Any, position: int) -> str:  # noqa: ANN401 - JSON
    """Return the owner of the token account at this position of the message, behind the transaction; "" if not told.

    The account may belong to somebody else by now, and may have before.
    """
    try:
        found = [one["owner"] for one in answer["meta"]["postTokenBalances"] if one["accountIndex"] == position]
        return parse_key(found[0]) if found else ""
    except (KeyError, TypeError, ApiError):
        return ""
