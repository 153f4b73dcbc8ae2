"""Signers' nonces, the transactions signed for them, and their gas, as rows (contract 5.2; security A-24, F6, F7).

A slot is (network, signer, nonce): of all transactions that were ever signed for it at most one can be mined, and it
settles every settlement that is tied to the slot. Whoever replaces or fills holds the signer's lease; the unit of one
who lost it writes nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.shares import may_take
from tollkeeper.storage.engine.database import load_queries, unit_of_work
from tollkeeper.storage.hub.leases import hold
from tollkeeper.storage.hub.settlements import Settlement, name_replacement, read_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tollkeeper.storage.engine.database import Database, Steps
    from tollkeeper.storage.hub.leases import Lease

_QUERIES: Final = load_queries("transactions.sql")
_WINDOW_MINUTES: Final = 60
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class RawTransaction:
    """A signed transaction as it was stored."""

    raw: bytes
    hash: str
    network: str
    signer: str
    signer_nonce: int
    created_ms: int

    @property
    def slot(self) -> tuple[str, str, int]:
        """Network, signer and nonce."""
        return self.network, self.signer, self.signer_nonce


@dataclass(frozen=True, slots=True)
class GasBudget:
    """Gas that may be signed on a network in an hour, and how much of it by requests of strangers."""

    network: str
    per_hour: int
    strangers: int
    now_ms: int


@dataclass(slots=True)
class GasLeft:
    """Gas left of a budget within one unit, and what that unit takes of it, by `is_trusted` and by tenant.

    `of_tenants`: what the tenants of this unit have had within the hour.
    """

    total: int
    strangers: int
    of_tenants: dict[str, int] = field(default_factory=dict)
    taken: dict[bool, int] = field(default_factory=lambda: {False: 0, True: 0})
    taken_by: Counter[str] = field(default_factory=Counter)

    def has(self, gas: int, *, is_trusted: bool) -> bool:
        """Tell whether there is so much left."""
        return gas <= self._left(is_trusted=is_trusted)

    def take(self, gas: int, *, is_trusted: bool, tenant: str) -> bool:
        """Give a tenant so much, if its share lasts for it (`core.shares`)."""
        has = self.of_tenants.get(tenant, 0) + self.taken_by[tenant]
        if not may_take(has, gas, self._left(is_trusted=is_trusted)):
            return False
        self.go_on(gas, is_trusted=is_trusted)
        self.taken_by[tenant] += gas
        return True

    def give_back(self, gas: int, *, is_trusted: bool, tenant: str) -> None:
        """Count it out again: it was not used after all."""
        self.go_on(-gas, is_trusted=is_trusted)
        self.taken_by[tenant] -= gas

    def go_on(self, gas: int, *, is_trusted: bool) -> None:
        """Count it for what was begun before, so that no share is asked."""
        self.total -= gas
        self.strangers -= 0 if is_trusted else gas
        self.taken[is_trusted] += gas

    def _left(self, *, is_trusted: bool) -> int:
        return self.total if is_trusted else min(self.total, self.strangers)


@unit_of_work
def gas_left(budget: GasBudget, tenants: Iterable[str] = ()) -> Steps[GasLeft]:
    """Return what the last sixty minutes left of the budget, and what these tenants had of it."""
    after = budget.now_ms // _MINUTE_MS - _WINDOW_MINUTES
    rows = yield _QUERIES.read_gas(network=budget.network, after_minute=after)
    spent = {row["is_trusted"]: row["gas"] for row in rows}
    total = budget.per_hour - sum(spent.values())
    of_tenants = {}
    for tenant in tenants:
        (row,) = yield _QUERIES.read_gas_of_tenant(network=budget.network, tenant=tenant, after_minute=after)
        of_tenants[tenant] = row["gas"]
    return GasLeft(total, budget.strangers - spent.get(0, 0), of_tenants)


@unit_of_work
def add_gas(budget: GasBudget, left: GasLeft) -> Steps[None]:
    """Count what a unit took."""
    minute = budget.now_ms // _MINUTE_MS
    yield _QUERIES.drop_old_gas(network=budget.network, after_minute=minute - _WINDOW_MINUTES)
    for is_trusted, gas in left.taken.items():
        if gas:
            yield _QUERIES.add_gas(network=budget.network, minute=minute, is_trusted=int(is_trusted), gas=gas)
    yield _QUERIES.drop_old_gas_of_tenants(network=budget.network, after_minute=minute - _WINDOW_MINUTES)
    for tenant, gas in left.taken_by.items():
        if gas:
            yield _QUERIES.add_gas_of_tenant(network=budget.network, tenant=tenant, minute=minute, gas=gas)


@unit_of_work
def open_lane(network: str, signer: str, chain_nonce: int) -> Steps[int]:
    """Make the signer's lane start at the larger of the stored and the chain's next nonce; returns it."""
    rows = yield _QUERIES.open_lane(network=network, signer=signer, chain_nonce=chain_nonce)
    next_nonce: int = rows[0]["next_nonce"]
    return next_nonce


@unit_of_work
def take_nonce(network: str, signer: str) -> Steps[int]:
    """The signer's next nonce, taken."""
    rows = yield _QUERIES.take_nonce(network=network, signer=signer)
    nonce: int = rows[0]["signer_nonce"]
    return nonce


@unit_of_work
def add_signed(
    signed: RawTransaction, settlements: Sequence[tuple[str, int]], gas_counted: int = 0, gas_trusted: int = 0
) -> Steps[None]:
    """Store a transaction and tie its slot to the attempts (id, attempt) that it is to settle.

    `gas_counted`: what it takes of the hour's budget; `gas_trusted`: how much of that for trusted gateways.
    """
    yield _QUERIES.add_transaction(**asdict(signed), gas_counted=gas_counted, gas_trusted=gas_trusted)
    for settlement_id, attempt in settlements:
        yield _QUERIES.add_to_slot(
            settlement_id=settlement_id,
            attempt=attempt,
            network=signed.network,
            signer=signed.signer,
            signer_nonce=signed.signer_nonce,
        )


@unit_of_work
def adopt_transaction(found: RawTransaction, settlement: Settlement) -> Steps[None]:
    """Store a transaction that one of our signers made and this database does not remember, for a settlement."""
    yield from add_signed(found, [(settlement.id, settlement.attempt)])
    yield from open_lane(found.network, found.signer, found.signer_nonce + 1)


@unit_of_work
def replace_transaction(
    lease: Lease, old: RawTransaction, new: RawTransaction, budget: GasBudget, *, gas: int, frees_nonce: bool
) -> Steps[bool]:
    """Store a transaction with that gas limit in place of another under its nonce.

    The slot's unfinished rows name it from then on, unless it only frees the nonce. Of all transactions of a nonce one
    is mined, so it counts only what no other one of it has counted within the hour; it is never kept back by a budget
    that is used up, because everything signed later waits behind it. False where nothing was stored, because the same
    one is there already or a row is mined. Raises: LeaseLost.
    """
    yield from hold(lease)
    counted, is_trusted = yield from _counted(old.slot, budget)
    missing = max(0, gas - counted)
    added = yield _QUERIES.add_replacement(**asdict(new), gas_counted=missing)
    if not added:
        return False
    yield from add_gas(budget, GasLeft(0, 0, taken={is_trusted: missing}))
    if not frees_nonce:
        yield from name_replacement(old.slot, old.hash, new.hash, new.created_ms)
    return True


@unit_of_work
def store_filler(lease: Lease, filler: RawTransaction, budget: GasBudget, *, gas: int) -> Steps[bool]:
    """Store a transaction with that gas limit that only uses up its nonce; False where one is stored under it by now.

    It counts, and not against the strangers' share: none of them asked for it. Raises: LeaseLost.
    """
    yield from hold(lease)
    added = yield _QUERIES.add_filler(**asdict(filler), gas_counted=gas)
    if added:
        yield from add_gas(budget, GasLeft(0, 0, taken={True: gas}))
    return bool(added)


@unit_of_work
def _counted(slot: tuple[str, str, int], budget: GasBudget) -> Steps[tuple[int, bool]]:
    """Return what the hour's budget holds of a nonce, and whether a trusted gateway asked for its settlement."""
    network, signer, nonce = slot
    after_ms = (budget.now_ms // _MINUTE_MS - _WINDOW_MINUTES + 1) * _MINUTE_MS
    (found,) = yield _QUERIES.read_counted(network=network, signer=signer, signer_nonce=nonce, after_ms=after_ms)
    return found["gas"], bool(found["trusted"])


async def next_nonce_of(database: Database, network: str, signer: str) -> int:
    """The signer's next nonce; 0 where it has none yet."""
    rows = await database.read(_QUERIES.read_lane(network=network, signer=signer))
    return rows[0]["next_nonce"] if rows else 0


async def transactions_of(database: Database, settlement: Settlement) -> list[RawTransaction]:
    """Every transaction of the slots of the row's current attempt, the newest first."""
    statement = _QUERIES.transactions_of_settlement(settlement_id=settlement.id, attempt=settlement.attempt)
    return [msgspec.convert(row, RawTransaction) for row in await database.read(statement)]


async def transactions_before(database: Database, settlement: Settlement) -> list[RawTransaction]:
    """Every transaction of the row's earlier attempts: a reorganisation may let one of them be mined after all."""
    if settlement.attempt == 1:
        return []
    statement = _QUERIES.transactions_of_earlier_attempts(settlement_id=settlement.id, attempt=settlement.attempt)
    return [msgspec.convert(row, RawTransaction) for row in await database.read(statement)]


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored transaction, and of the settlements that it is to carry out one, with the process that holds it."""

    transaction: RawTransaction
    settlement_id: str | None
    holder: str | None


async def stored_from(
    database: Database, network: str, signer: str, after: tuple[int, int, str], limit: int
) -> list[Stored]:
    """The signer's transactions behind `after` (nonce, created_ms, hash), in that order."""
    statement = _QUERIES.transactions_after(
        network=network, signer=signer, signer_nonce=after[0], created_ms=after[1], hash=after[2], limit=limit
    )
    return [
        Stored(msgspec.convert(row, RawTransaction), row["settlement_id"], row["holder"])
        for row in await database.read(statement)
    ]


async def settlements_of(database: Database, slot: tuple[str, str, int]) -> list[Settlement]:
    """The settlements whose current attempt is tied to the slot."""
    network, signer, nonce = slot
    rows = await database.read(_QUERIES.settlements_of_slot(network=network, signer=signer, signer_nonce=nonce))
    return [read_row(row) for row in rows]
