"""Settlements, their raw transactions, signers' nonces and idempotency keys as units of work (contract 5.2, 7).

Every unit is one transaction; a transition is one `UPDATE .. WHERE state = :from AND version = :version` with its
event, so that of two who saw the same row one moves it. A raw transaction and the nonce it takes are stored in the
commit that signs it, before anything is sent. What a transition means is decided in `hub`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.evm import checksum_address
from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.transactions import HistoryRow, Kind, Proof, State, may_move
from tollkeeper.core.wire import PaymentKey
from tollkeeper.storage.queries import load_queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.storage.database import Database, Row, Statement, Unit

_QUERIES: Final = load_queries("hub.sql")


@dataclass(frozen=True, slots=True)
class NewSettlement:
    """What a claim writes. `payment` and `requirements` are canonical JSON texts, `signer` will settle it."""

    id: str
    key: PaymentKey
    kind: Kind
    pay_to: str
    value: int
    payment: str
    requirements: str
    requirements_hash: str
    confirm: bool
    purchase_data: str | None
    signer: str
    now_ms: int


@dataclass(frozen=True, slots=True)
class Settlement:
    """One row.

    `transaction_hash` is of the current attempt, "" before it was signed; `error` is a reason string; `foreign_hash`
    names the transaction that used the authorization in place of ours.
    """

    id: str
    key: PaymentKey
    kind: Kind
    pay_to: str
    value: int
    state: State
    version: int
    attempt: int
    payment: str
    requirements: str
    requirements_hash: str
    confirm: bool
    purchase_data: str | None
    signer: str
    transaction_hash: str
    foreign_hash: str | None
    block_number: int | None
    proof: Proof | None
    error: str | None
    handed_out_ms: int | None
    created_ms: int
    updated_ms: int

    @property
    def may_be_claimed_again(self) -> bool:
        """Would a new presentation of the payment start another attempt?"""
        retryable = self.proof in {Proof.NEVER_SENT, Proof.REVERTED}
        return self.state is State.FAILED and retryable and self.attempt < PAYMENT_ATTEMPTS_MAX


@dataclass(frozen=True, slots=True)
class RawTransaction:
    """A signed transaction as it was stored."""

    raw: bytes
    hash: str
    signer_nonce: int
    settlement_id: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key of the caller's and the request that it belongs to (`fingerprint`)."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class KnownKey:
    """What a key shows: the outcome of an attempt, or the answer recorded with it."""

    fingerprint: str
    settlement_id: str | None
    attempt: int | None
    answer: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class Claim:
    """`won`: this unit claimed and signed, `raw` is what to send. Otherwise `settlement` is who was first."""

    won: bool
    settlement: Settlement
    raw: RawTransaction | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """A transition and what is written with it. `hand_out`: the success is given to the caller of this unit."""

    to: State
    now_ms: int
    block_number: int | None = None
    proof: Proof | None = None
    error: str | None = None
    foreign_hash: str | None = None
    detail: str | None = None
    hand_out: bool = False


class KeyTaken(Exception):  # noqa: N818 - undoes a claim, is no fault
    """The idempotency key was bound to another request in the meantime; the unit was undone."""


def claim_and_sign(
    new: NewSettlement, key: IdempotencyKey | None, sign: Callable[[int], tuple[bytes, str]]
) -> Unit[Claim]:
    """Claim a payment that nobody has claimed, and sign its transaction with the signer's next nonce.

    Raises: KeyTaken; what `sign` raises. Either undoes the unit.
    """
    inserted = yield _QUERIES.insert_settlement(
        id=new.id,
        network=new.key.network,
        asset=new.key.asset,
        payer=new.key.payer,
        nonce=new.key.nonce,
        pay_to=new.pay_to,
        value=str(new.value),
        **_terms(new),
    )
    if not inserted:
        rows = yield _find(new.key)
        return Claim(won=False, settlement=_settlement(rows[0]))
    yield _event(new.id, 1, 1, None, State.CLAIMED, new.now_ms)
    return (yield from _sign(new, key, sign, version=1, attempt=1))


def reclaim_and_sign(
    known: Settlement, new: NewSettlement, key: IdempotencyKey | None, sign: Callable[[int], tuple[bytes, str]]
) -> Unit[Claim]:
    """Claim a failed payment for another attempt, with the new presentation's terms. Raises: as `claim_and_sign`."""
    rows = yield _QUERIES.reclaim_settlement(
        id=known.id, version=known.version, attempts_max=PAYMENT_ATTEMPTS_MAX, **_terms(new)
    )
    if not rows:
        rows = yield _QUERIES.read_settlement(id=known.id)
        return Claim(won=False, settlement=_settlement(rows[0]))
    row = _settlement(rows[0])
    yield _event(row.id, row.version, row.attempt, State.FAILED, State.CLAIMED, new.now_ms)
    return (yield from _sign(new, key, sign, version=row.version, attempt=row.attempt, settlement_id=row.id))


def _sign(
    new: NewSettlement,
    key: IdempotencyKey | None,
    sign: Callable[[int], tuple[bytes, str]],
    *,
    version: int,
    attempt: int,
    settlement_id: str = "",
) -> Unit[Claim]:
    row_id = settlement_id or new.id
    if key is not None:
        bound = yield _add_key(key, new.now_ms, settlement_id=row_id, attempt=attempt)
        if not bound:
            raise KeyTaken
    lane = yield _QUERIES.take_nonce(network=new.key.network, signer=new.signer)
    nonce: int = lane[0]["signer_nonce"]
    raw, transaction_hash = sign(nonce)
    yield _QUERIES.add_raw_transaction(
        hash=transaction_hash,
        settlement_id=row_id,
        attempt=attempt,
        network=new.key.network,
        signer=new.signer,
        signer_nonce=nonce,
        raw=raw,
        now_ms=new.now_ms,
    )
    rows = yield _QUERIES.set_signed(
        id=row_id, version=version, signer=new.signer, transaction_hash=transaction_hash, now_ms=new.now_ms
    )
    yield _event(row_id, version + 1, attempt, State.CLAIMED, State.SIGNED, new.now_ms, transaction_hash)
    signed = RawTransaction(raw, transaction_hash, nonce, row_id, new.now_ms)
    return Claim(won=True, settlement=_settlement(rows[0]), raw=signed)


def move(known: Settlement, to: Move) -> Unit[tuple[Settlement, bool] | None]:
    """Apply a transition to the row as `known` shows it; None where somebody else has moved it.

    The result tells whether the success was handed out by this unit. Raises: ValueError for a transition that is not
    in the table.
    """
    if not may_move(known.state, to.to):
        msg = f"a settlement cannot go from {known.state} to {to.to}"
        raise ValueError(msg)
    rows = yield _QUERIES.move(
        id=known.id,
        version=known.version,
        from_state=known.state.value,
        to_state=to.to.value,
        block_number=to.block_number,
        proof=to.proof.value if to.proof else None,
        error=to.error,
        foreign_hash=to.foreign_hash,
        now_ms=to.now_ms,
    )
    if not rows:
        return None
    row = _settlement(rows[0])
    yield _event(row.id, row.version, row.attempt, known.state, to.to, to.now_ms, to.detail or to.error)
    if to.to is State.FAILED:
        answer = {"success": False, "reason": to.error, "transaction": to.foreign_hash or row.transaction_hash}
        yield _QUERIES.settle_keys(settlement_id=row.id, attempt=row.attempt, answer=json.dumps(answer))
    if not to.hand_out:
        return row, False
    handed = yield _QUERIES.hand_out(id=row.id, attempt=row.attempt, now_ms=to.now_ms)
    return (_settlement(handed[0]), True) if handed else (row, False)


def hand_out(known: Settlement, key: IdempotencyKey | None, now_ms: int) -> Unit[bool]:
    """Give the row's success to this caller, if nobody has it yet; the caller's key then shows it again."""
    handed = yield _QUERIES.hand_out(id=known.id, attempt=known.attempt, now_ms=now_ms)
    if handed and key is not None:
        yield _add_key(key, now_ms, settlement_id=known.id, attempt=known.attempt)
    return bool(handed)


def record_answer(key: IdempotencyKey, answer: dict[str, Any], now_ms: int) -> Unit[None]:
    """Remember what the request of this key was answered; a key that is bound already stays as it is."""
    yield _add_key(key, now_ms, answer=json.dumps(answer))


def open_lane(network: str, signer: str, chain_nonce: int) -> Unit[int]:
    """Make the signer's lane start at the larger of the stored and the chain's next nonce; returns it."""
    rows = yield _QUERIES.open_lane(network=network, signer=signer, chain_nonce=chain_nonce)
    next_nonce: int = rows[0]["next_nonce"]
    return next_nonce


async def find_settlement(database: Database, key: PaymentKey) -> Settlement | None:
    """The settlement of a payment."""
    return _first(await database.read(_find(key)))


async def find_payment(database: Database, network: str, payer: str, nonce: str) -> Settlement | None:
    """The settlement that the public status shows (contract 2)."""
    return _first(await database.read(_QUERIES.find_payment(network=network, payer=payer, nonce=nonce)))


async def read_settlement(database: Database, settlement_id: str) -> Settlement | None:
    """The settlement of that id."""
    return _first(await database.read(_QUERIES.read_settlement(id=settlement_id)))


async def find_key(database: Database, key: str) -> KnownKey | None:
    """What an idempotency key is bound to."""
    rows = await database.read(_QUERIES.find_key(key=key))
    if not rows:
        return None
    row = rows[0]
    answer = None if row["answer"] is None else json.loads(row["answer"])
    return KnownKey(row["fingerprint"], row["settlement_id"], row["attempt"], answer)


async def list_unfinished(
    database: Database, before_ms: int, limit: int, after: Settlement | None = None
) -> list[Settlement]:
    """Settlements that are neither confirmed nor failed and were not touched since, longest untouched first.

    The page behind `after`, where there is one.
    """
    statement = _QUERIES.list_unfinished(
        before_ms=before_ms,
        after_ms=after.updated_ms if after else -1,
        after_id=after.id if after else "",
        limit=limit,
    )
    return [_settlement(row) for row in await database.read(statement)]


async def raws_of_settlement(database: Database, settlement: Settlement) -> list[RawTransaction]:
    """The transactions that were signed for the row's current attempt, the newest first; all have one nonce."""
    rows = await database.read(_QUERIES.raws_of_settlement(settlement_id=settlement.id, attempt=settlement.attempt))
    return [_raw(row) for row in rows]


def replace_transaction(old: RawTransaction, new: RawTransaction) -> Unit[bool]:
    """Store a transaction in place of another under its nonce, and let the row name it, where it is unfinished.

    False where nothing was stored, because the same one is there already or the row is mined.
    """
    added = yield _QUERIES.add_replacement(hash=new.hash, raw=new.raw, now_ms=new.created_ms, replaced_hash=old.hash)
    if added:
        yield from _rename(old.settlement_id, old.hash, new.hash, new.created_ms)
    return bool(added)


def name_transaction(known: Settlement, transaction_hash: str, now_ms: int) -> Unit[Settlement | None]:
    """Let the row name another of its transactions, the one on the chain; None where somebody else moved the row."""
    return (yield from _rename(known.id, known.transaction_hash, transaction_hash, now_ms))


def _rename(settlement_id: str, old_hash: str, new_hash: str, now_ms: int) -> Unit[Settlement | None]:
    rows = yield _QUERIES.name_transaction(id=settlement_id, old_hash=old_hash, new_hash=new_hash, now_ms=now_ms)
    if not rows:
        return None
    row = _settlement(rows[0])
    yield _event(row.id, row.version, row.attempt, row.state, row.state, now_ms, new_hash)
    return row


async def lane_of(database: Database, network: str, signer: str) -> int:
    """The signer's next nonce; 0 where it has none yet."""
    rows = await database.read(_QUERIES.read_lane(network=network, signer=signer))
    return rows[0]["next_nonce"] if rows else 0


async def raw_from_nonce(database: Database, network: str, signer: str, nonce: int, limit: int) -> list[RawTransaction]:
    """The signer's transactions from a nonce on, in the order of nonce and age."""
    statement = _QUERIES.raw_from_nonce(network=network, signer=signer, signer_nonce=nonce, limit=limit)
    return [_raw(row) for row in await database.read(statement)]


async def signed_per_minute(database: Database, network: str, since_ms: int) -> list[tuple[int, bool, int]]:
    """How many transactions were signed since: Unix minute, for a trusted gateway, how many."""
    rows = await database.read(_QUERIES.signed_per_minute(network=network, since_ms=since_ms))
    return [(row["minute"], bool(row["is_trusted"]), row["total"]) for row in rows]


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Whose rows: those whose signer and/or recipient is `wallet`, of one network or ("") of all."""

    wallet: str
    as_signer: bool = True
    as_recipient: bool = True
    network: str = ""


async def list_history(
    database: Database, query: HistoryQuery, limit: int, offset: int
) -> tuple[list[Settlement], int]:
    """One page, newest first, and how many there are in all."""
    total = await database.read(_QUERIES.count_history(**_history(query)))
    rows = await database.read(_QUERIES.list_history(**_history(query), limit=limit, offset=offset))
    return [_settlement(row) for row in rows], total[0]["total"]


def history_row(settlement: Settlement, iso: Callable[[int], str]) -> HistoryRow:
    """What the history item of a row is made of (contract 7). `iso` writes times."""
    payment = json.loads(settlement.payment)
    requirements = json.loads(settlement.requirements)
    authorization = payment["payload"]["authorization"]
    return HistoryRow(
        id=settlement.id,
        created=iso(settlement.created_ms),
        updated=iso(settlement.updated_ms),
        signer=checksum_address(settlement.key.payer),
        amount=settlement.value,
        network=settlement.key.network,
        transaction_hash=settlement.transaction_hash or None,
        state=settlement.state,
        error=settlement.error,
        kind=settlement.kind,
        x402_data={
            "x402Version": payment["x402Version"],
            "scheme": payment["scheme"],
            "network": settlement.key.network,
            "asset": checksum_address(settlement.key.asset),
            "payer": checksum_address(settlement.key.payer),
            "payTo": checksum_address(settlement.pay_to),
            "value": str(settlement.value),
            "validAfter": authorization["validAfter"],
            "validBefore": authorization["validBefore"],
            "nonce": settlement.key.nonce,
            "resource": requirements["resource"],
            "maxAmountRequired": requirements["maxAmountRequired"],
            "confirm": settlement.confirm,
        },
        purchase_data=None if settlement.purchase_data is None else json.loads(settlement.purchase_data),
    )


def _history(query: HistoryQuery) -> dict[str, Any]:
    return {
        "wallet": query.wallet,
        "as_signer": int(query.as_signer),
        "as_recipient": int(query.as_recipient),
        "network": query.network,
    }


def _terms(new: NewSettlement) -> dict[str, Any]:
    return {
        "kind": new.kind.value,
        "payment": new.payment,
        "requirements": new.requirements,
        "requirements_hash": new.requirements_hash,
        "confirm": int(new.confirm),
        "purchase_data": new.purchase_data,
        "signer": new.signer,
        "now_ms": new.now_ms,
    }


def _find(key: PaymentKey) -> Statement:
    return _QUERIES.find_settlement(network=key.network, asset=key.asset, payer=key.payer, nonce=key.nonce)


def _event(  # noqa: PLR0917 - one row
    settlement_id: str,
    version: int,
    attempt: int,
    from_state: State | None,
    to_state: State,
    now_ms: int,
    detail: str | None = None,
) -> Statement:
    return _QUERIES.add_event(
        settlement_id=settlement_id,
        version=version,
        attempt=attempt,
        from_state=from_state.value if from_state else None,
        to_state=to_state.value,
        detail=detail,
        now_ms=now_ms,
    )


def _add_key(
    key: IdempotencyKey,
    now_ms: int,
    *,
    settlement_id: str | None = None,
    attempt: int | None = None,
    answer: str | None = None,
) -> Statement:
    return _QUERIES.add_key(
        key=key.key,
        fingerprint=key.fingerprint,
        settlement_id=settlement_id,
        attempt=attempt,
        answer=answer,
        now_ms=now_ms,
    )


def _first(rows: list[Row]) -> Settlement | None:
    return _settlement(rows[0]) if rows else None


def _raw(row: Row) -> RawTransaction:
    return RawTransaction(bytes(row["raw"]), row["hash"], row["signer_nonce"], row["settlement_id"], row["created_ms"])


def _settlement(row: Row) -> Settlement:
    return Settlement(
        id=row["id"],
        key=PaymentKey(row["network"], row["asset"], row["payer"], row["nonce"]),
        kind=Kind(row["kind"]),
        pay_to=row["pay_to"],
        value=int(row["value"]),
        state=State(row["state"]),
        version=row["version"],
        attempt=row["attempt"],
        payment=row["payment"],
        requirements=row["requirements"],
        requirements_hash=row["requirements_hash"],
        confirm=bool(row["confirm"]),
        purchase_data=row["purchase_data"],
        signer=row["signer"],
        transaction_hash=row["transaction_hash"],
        foreign_hash=row["foreign_hash"],
        block_number=row["block_number"],
        proof=None if row["proof"] is None else Proof(row["proof"]),
        error=row["error"],
        handed_out_ms=row["handed_out_ms"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
    )
