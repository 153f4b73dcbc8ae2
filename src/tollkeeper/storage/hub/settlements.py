"""Settlements as rows, and their transitions as units of work (contract 5.2, 7; security 5, F20, F23).

A transition is one `UPDATE .. WHERE state = :from AND version = :version AND fence = :fence` with its event in the same
commit: of two who saw the same row one moves it, and whose row was taken over by another process moves nothing. What a
transition means is decided in `hub`; claiming and signing are `claims`'.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.limits import PAYMENT_ATTEMPTS_MAX
from tollkeeper.core.settlement.states import Proof, SettlementKind, State, may_move
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.engine.database import load_queries, read_page, unit_of_work
from tollkeeper.storage.hub.idempotency import forget_failure, keep_failure
from tollkeeper.storage.hub.payers import add_payer_failure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.json_types import JsonMapping, JsonObject
    from tollkeeper.storage.engine.database import Database, Row, Statement, Steps

_QUERIES: Final = load_queries("settlements.sql")
# A row that cannot be worked on is left alone for no longer than this.
_LEFT_ALONE_MAX_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True)
class Settlement:
    """One row.

    `transaction_hash` is of the current attempt, "" before it was signed; `error` is a reason string; `foreign_hash`
    names the transaction that used the authorization in place of ours. `block_number` and `block_hash` are of the block
    that showed the outcome. `holder` is the process that carries the row forward, `fence` grows when another takes it.
    """

    id: str
    key: PaymentKey
    kind: SettlementKind
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
    block_hash: str | None
    proof: Proof | None
    error: str | None
    handed_out_ms: int | None
    holder: str
    fence: int
    created_ms: int
    updated_ms: int

    @property
    def told_hash(self) -> str:
        """The transaction that everybody is told of: whose outcome this is, "" where none was ever sent."""
        return "" if self.proof is Proof.NEVER_SENT else self.foreign_hash or self.transaction_hash

    def may_be_claimed_again(self, by: JsonMapping | None) -> bool:
        """Would a new presentation of the payment start another attempt? `by`: the purchase data that came with it.

        What was tried for a gateway is tried again for that gateway alone: a transaction that failed has shown the
        payment to everybody, and whoever had it carried out would leave the gateway's buyer without a purchase.
        """
        retryable = self.proof in {Proof.NEVER_SENT, Proof.REVERTED}
        if self.state is not State.FAILED or not retryable or self.attempt >= PAYMENT_ATTEMPTS_MAX:
            return False
        if self.purchase_data is None:
            return True
        return by is not None and by.get("gateway") == json.loads(self.purchase_data).get("gateway")

    def is_of_purchase(self, by: JsonMapping | None) -> bool:
        """Tell whether it is the settlement of the very purchase that this purchase data names."""
        if self.purchase_data is None or by is None or by.get("purchaseId") is None:
            return False
        known = json.loads(self.purchase_data)
        return all(by.get(name) == known.get(name) for name in ("gateway", "purchaseId"))


@dataclass(frozen=True, slots=True)
class Move:
    """A transition and what is written with it. `hand_out`: the success is given to the caller of this unit.

    `cost_gas`: it failed on the chain, at our cost, which its payer is remembered for. `cost_nothing`: none of
    its transactions was executed, or will be.
    """

    to: State
    now_ms: int
    block_number: int | None = None
    block_hash: str | None = None
    proof: Proof | None = None
    error: str | None = None
    foreign_hash: str | None = None
    detail: str | None = None
    hand_out: bool = False
    cost_gas: bool = False
    cost_nothing: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """The row as a transition left it, and whether its success was handed out by the same unit."""

    settlement: Settlement
    handed_out: bool


@unit_of_work
def move(known: Settlement, to: Move) -> Steps[Moved | None]:
    """Apply a transition to the row as `known` shows it; None where somebody else has moved it or taken it over.

    Raises: ValueError for a transition that is not in the table.
    """
    check_move(known, to)
    written: JsonObject = {
        "id": known.id,
        "version": known.version,
        "fence": known.fence,
        "from_state": known.state.value,
        "to_state": to.to.value,
        "block_number": to.block_number,
        "block_hash": to.block_hash,
        "proof": to.proof.value if to.proof else None,
        "error": to.error,
        "foreign_hash": to.foreign_hash,
        "now_ms": to.now_ms,
    }
    handed = (yield _QUERIES.move_and_hand_out(**written)) if to.hand_out and to.to is not State.FAILED else []
    rows = handed or (yield _QUERIES.move(**written))
    if not rows:
        return None
    row = read_row(rows[0])
    yield event(row, known.state, to.now_ms, to.detail or to.error)
    if to.to is State.FAILED:
        answer = {"success": False, "reason": to.error, "transaction": row.told_hash}
        yield keep_failure(row.id, row.attempt, json.dumps(answer))
        if to.cost_gas:
            yield from add_payer_failure(row.key.network, row.key.payer, to.now_ms)
        if to.cost_nothing:
            yield from take_back_gas(row.id, row.attempt)
    return Moved(row, handed_out=bool(handed))


@unit_of_work
def move_all(moves: Sequence[tuple[Settlement, Move]]) -> Steps[list[Moved | None]]:
    """Apply several transitions in one commit; each is taken or not by itself. Raises: as `move`, before the first."""
    for known, to in moves:
        check_move(known, to)
    results = []
    for known, to in moves:
        results.append((yield from move(known, to)))
    return results


def check_move(known: Settlement, to: Move) -> None:
    """Raises: ValueError for a transition that is not in the table."""
    if not may_move(known.state, to.to):
        raise ValueError(f"a settlement cannot go from {known.state} to {to.to}")


@unit_of_work
def reopen(known: Settlement, holder: str, now_ms: int, detail: str) -> Steps[Settlement | None]:
    """Back to BROADCAST, because the block that showed the outcome is gone; `holder` carries the row from now on.

    None where somebody else was first. Raises: ValueError for a row whose state has no way back.
    """
    if not may_move(known.state, State.BROADCAST):
        raise ValueError(f"a settlement cannot go from {known.state} to BROADCAST")
    rows = yield _QUERIES.reopen(
        id=known.id, version=known.version, from_state=known.state.value, holder=holder, now_ms=now_ms
    )
    if not rows:
        return None
    row = read_row(rows[0])
    yield event(row, known.state, now_ms, detail)
    if known.state is State.FAILED:
        yield forget_failure(row.id, row.attempt)
    return row


@unit_of_work
def reopen_all(rows: Sequence[Settlement], holder: str, now_ms: int, detail: str) -> Steps[int]:
    """The same for several; how many were not somebody else's meanwhile."""
    count = 0
    for row in rows:
        count += (yield from reopen(row, holder, now_ms, detail)) is not None
    return count


@unit_of_work
def name_transaction(known: Settlement, transaction_hash: str, now_ms: int) -> Steps[Settlement | None]:
    """Let the row name another of its transactions, the one on the chain; None where somebody else moved the row."""
    rows = yield _QUERIES.name_transaction(
        id=known.id, version=known.version, fence=known.fence, new_hash=transaction_hash, now_ms=now_ms
    )
    if not rows:
        return None
    row = read_row(rows[0])
    yield event(row, row.state, now_ms, transaction_hash)
    return row


@unit_of_work
def name_replacement(slot: tuple[str, str, int], old_hash: str, new_hash: str, now_ms: int) -> Steps[None]:
    """Let every unfinished row of a slot (network, signer, nonce) name the transaction that replaced the old one."""
    network, signer, nonce = slot
    rows = yield _QUERIES.name_replacement(
        network=network, signer=signer, signer_nonce=nonce, old_hash=old_hash, new_hash=new_hash, now_ms=now_ms
    )
    for row in rows:
        renamed = read_row(row)
        yield event(renamed, renamed.state, now_ms, new_hash)


@unit_of_work
def take_over(holder: str, now_ms: int) -> Steps[int]:
    """Make every unfinished row of a process that is no longer alive `holder`'s; how many there were."""
    return len((yield _QUERIES.take_over(holder=holder, now_ms=now_ms)))


async def has_orphans(database: Database, holder: str, now_ms: int) -> bool:
    """Tell whether there is anything that `take_over` would take. A look costs less than a write."""
    return bool(await database.read(_QUERIES.find_orphan(holder=holder, now_ms=now_ms)))


async def list_broken(database: Database, holder: str, among: Sequence[Settlement], now_ms: int) -> dict[str, str]:
    """List which of these unfinished rows of `holder`'s break an invariant by themselves now.

    Returns the invariant's name by the row's id.
    """
    times = [row.updated_ms for row in among]
    statement = _QUERIES.list_broken(
        holder=holder,
        from_ms=min(times, default=0),
        to_ms=max(times, default=0),
        now_ms=now_ms,
        longest_ms=_LEFT_ALONE_MAX_MS,
    )
    ids = {row.id for row in among}
    return {row["id"]: row["rule"] for row in await database.read(statement) if row["id"] in ids}


@unit_of_work
def set_aside(settlement_id: str, holder: str, now_ms: int, times: int = 1) -> Steps[tuple[int, int]]:
    """Leave a row alone, because it could not be worked on: each time in a row for twice as long.

    `times`: as if that had happened so often by now. How often it has happened in all, and for how many seconds it is
    left alone; (0, 0) where it is not the holder's.
    """
    rows = yield _QUERIES.set_aside(id=settlement_id, holder=holder, times=times)
    if not rows:
        return 0, 0
    failures = int(rows[0]["failures"])
    seconds = min(2 ** min(failures, 30), _LEFT_ALONE_MAX_MS // 1000)
    yield _QUERIES.leave_until(id=settlement_id, retry_ms=now_ms + seconds * 1000)
    return failures, seconds


async def count_set_aside(database: Database, failures: int) -> dict[str, int]:
    """Return how many rows of each network have failed to be worked on at least so often in a row."""
    rows = await database.read(_QUERIES.count_set_aside(failures=failures))
    return {row["network"]: row["total"] for row in rows}


async def find_settlement(database: Database, key: PaymentKey) -> Settlement | None:
    """The settlement of a payment."""
    return _first(await database.read(find_statement(key), is_short=True))


async def find_payment(database: Database, network: str, payer: str, nonce: str, asset: str = "") -> Settlement | None:
    """The settlement that the public status shows (contract 2): of that asset, or the newest where none is named."""
    return _first(await database.read(_QUERIES.find_payment(network=network, payer=payer, nonce=nonce, asset=asset)))


async def find_named(database: Database, network: str, name: str) -> Settlement | None:
    """The settlement whose payment has that name: on Solana the hash of its message, or its payer's signature."""
    return _first(await database.read(_QUERIES.find_named(network=network, name=name)))


async def read_settlement(database: Database, settlement_id: str) -> Settlement | None:
    """The settlement of that id."""
    return _first(await database.read(_QUERIES.read_settlement(id=settlement_id), is_short=True))


@dataclass(frozen=True, slots=True)
class SettlementPage:
    """One page of rows, those that cannot be read by their ids, and where the next page begins."""

    settlements: list[Settlement]
    unreadable: list[str]
    after: tuple[int, str] | None


async def list_unfinished(
    database: Database, holder: str, *, before_ms: int, now_ms: int, limit: int, after: tuple[int, str] | None = None
) -> SettlementPage:
    """`holder`'s settlements that are neither confirmed nor failed, not touched since and not set aside.

    Longest untouched first; the page behind `after`, where there is one.
    """
    after_ms, after_id = after or (-1, "")
    statement = _QUERIES.list_unfinished(
        holder=holder,
        before_ms=before_ms,
        now_ms=now_ms,
        longest_ms=_LEFT_ALONE_MAX_MS,
        after_ms=after_ms,
        after_id=after_id,
        limit=limit,
    )
    return _page(await database.read(statement))


def _page(rows: list[Row]) -> SettlementPage:
    page = SettlementPage([], [], (rows[-1]["updated_ms"], rows[-1]["id"]) if rows else None)
    for row in rows:
        try:
            page.settlements.append(read_row(row))
        except ValueError:
            page.unreadable.append(row["id"])
    return page


async def list_blocks(database: Database, network: str, from_block: int) -> list[tuple[int, str]]:
    """Number and hash of the blocks from there on that outcomes rest on, the newest first."""
    rows = await database.read(_QUERIES.list_blocks(network=network, from_block=from_block))
    return [(row["block_number"], row["block_hash"]) for row in rows]


async def list_in_block(
    database: Database, network: str, block_number: int, block_hash: str, limit: int
) -> SettlementPage:
    """Settlements whose outcome rests on that block."""
    statement = _QUERIES.list_in_block(network=network, block_number=block_number, block_hash=block_hash, limit=limit)
    return _page(await database.read(statement))


async def list_confirmed(database: Database, network: str, after: tuple[int, str], limit: int) -> SettlementPage:
    """Settlements that were confirmed in a block that is known by its number alone, by time and id, behind `after`."""
    statement = _QUERIES.list_confirmed(network=network, after_ms=after[0], after_id=after[1], limit=limit)
    return _page(await database.read(statement))


async def newest_confirmed_ms(database: Database, network: str, until_ms: int) -> int | None:
    """Return when the newest of those was confirmed until then; None where none was."""
    (row,) = await database.read(_QUERIES.newest_confirmed(network=network, until_ms=until_ms))
    return None if row["newest_ms"] is None else int(row["newest_ms"])


def find_statement(key: PaymentKey) -> Statement:
    """Read the row of a payment."""
    return _QUERIES.find_settlement(**key.columns)


def hand_out_statement(row: Settlement, now_ms: int) -> Statement:
    """Return the row where it gives the success away, which happens once."""
    return _QUERIES.hand_out(id=row.id, attempt=row.attempt, now_ms=now_ms)


def event(row: Settlement, from_state: State | None, now_ms: int, detail: str | None = None) -> Statement:
    """One line of the row's history: how it came to be as it is."""
    return _QUERIES.add_event(
        settlement_id=row.id,
        version=row.version,
        attempt=row.attempt,
        from_state=from_state.value if from_state else None,
        to_state=row.state.value,
        detail=detail,
        now_ms=now_ms,
    )


def _first(rows: list[Row]) -> Settlement | None:
    return read_row(rows[0]) if rows else None


def read_row(row: Row) -> Settlement:
    """A row's columns. Raises: ValueError for what no version of this program has written."""
    try:  # flags are 0 and 1, a value is a text
        return msgspec.convert({**row, "key": {**row}}, Settlement, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


async def count_unfinished(database: Database) -> dict[tuple[str, str], int]:
    """Return how many settlements have no final outcome, by network and state. Raises: StorageError."""
    rows = await database.read(_QUERIES.count_unfinished())
    return {(row["network"], row["state"]): row["settlements"] for row in rows}


# A wallet's settlements, page by page (specification 2.5, 4.3; contract 7).


@dataclass(frozen=True, slots=True)
class HistoryQuery:
    """Query for rows whose signer and/or recipient is `wallet`, of one network or ("") of all."""

    wallet: str
    as_signer: bool = True
    as_recipient: bool = True
    network: str = ""


async def list_history(
    database: Database, query: HistoryQuery, limit: int, offset: int
) -> tuple[list[Settlement], int]:
    """One page, newest first, and how many there are in all."""
    of_wallet: JsonObject = {
        "wallet": query.wallet,
        "as_signer": int(query.as_signer),
        "as_recipient": int(query.as_recipient),
        "network": query.network,
    }
    count, page = _QUERIES.count_history(**of_wallet), _QUERIES.list_history(**of_wallet, limit=limit, offset=offset)
    rows, total = await read_page(database, count, page, query.wallet)
    return [read_row(row) for row in rows], total


# Gas that was counted for transactions which were never executed, and never will be (security A-24). It cost nothing,
# so the budget of the hour has it again, in the same share: else payments that no block ever holds would stop the sales
# of everybody, at no cost to whoever signs them. Whether that is proven is decided in `hub`.

_GAS_QUERIES: Final = load_queries("transactions.sql")
_MINUTE_MS: Final = 60_000


@unit_of_work
def take_back_gas(settlement_id: str, attempt: int) -> Steps[None]:
    """Give back to the hour's budget the gas that was counted for the transactions of that attempt."""
    rows = yield _GAS_QUERIES.transactions_of_settlement(settlement_id=settlement_id, attempt=attempt)
    for row in rows:
        trusted = row["gas_trusted"]
        for is_trusted, gas in ((1, trusted), (0, row["gas_counted"] - trusted)):
            minute = row["created_ms"] // _MINUTE_MS
            yield _GAS_QUERIES.take_back_gas(network=row["network"], minute=minute, is_trusted=is_trusted, gas=gas)
        minute, gas = row["created_ms"] // _MINUTE_MS, row["gas_counted"]
        yield _GAS_QUERIES.take_back_gas_of_tenant(
            network=row["network"], minute=minute, settlement_id=settlement_id, gas=gas
        )
        yield _GAS_QUERIES.uncount_transaction(hash=row["hash"])
