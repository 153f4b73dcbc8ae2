"""Statistics and the request log of gates: written in batches off the hot path, read by owners (contract 2).

Sales and what is owed come from the ledger's own rows; the rest was counted, and what a crash loses is a count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from tollkeeper.core.paygates.statistics import Outstanding, RequestOutcome, Span, Sums
from tollkeeper.storage.engine.database import OURSELVES, load_queries, read_page, rows_of, unit_of_work
from tollkeeper.storage.ledger.purchase_rows import in_whole

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.storage.engine.database import Database, Query, Row, Steps, Value

_Q: Final = load_queries("statistics.sql")
_WRITING: Final = load_queries("traffic.sql")
_GATES_AT_ONCE: Final = 32  # whose counters are written in the loop
FORGOTTEN_AT_ONCE: Final = 200  # rows of one kind: about a millisecond of the writer
_PIECES_AT_ONCE: Final = 10  # twice as many rows as a process logs before it forgets again
_ENCODE: Final = msgspec.json.Encoder().encode
_NOT_LOGGED: Final = "notLogged"  # stands among the outcomes of an hour, and is none: no query of outcomes returns it


class LoggedRequest(msgspec.Struct, frozen=True, array_like=True):
    """One request at a gate. `code`: why it was refused, or a paid call failed; `purchase_id`: whose credit was spent.

    Encoded as `insert_requests` takes it: the order of its fields is that statement's.
    """

    id: str
    gate_id: int
    at_ms: int
    method: str
    status: int
    outcome: RequestOutcome
    code: str | None
    duration_us: int
    purchase_id: str | None


@dataclass(frozen=True, slots=True)
class Counted:
    """Counts since the last writing: requests by (gate, hour, outcome), calls by (gate, hour, bucket).

    `counters`: challenges, calls and failures by gate. `requests`: the next rows of the log; most often at least one,
    and not all of the requests counted here. `not_logged`: how many requests have no row and get none, by (gate, hour).
    """

    counters: Mapping[int, tuple[int, int, int]]
    outcomes: Mapping[tuple[int, int, RequestOutcome], int]
    latencies: Mapping[tuple[int, int, int], int]
    requests: Sequence[LoggedRequest]
    not_logged: Mapping[tuple[int, int], int]

    def by_gate(self) -> list[Counted]:
        """Return the counts of each gate, without rows of the log."""
        gates = {*self.counters, *(key[0] for of in (self.outcomes, self.latencies, self.not_logged) for key in of)}
        return [
            Counted(
                {number: one for number, one in self.counters.items() if number == gate},
                {key: one for key, one in self.outcomes.items() if key[0] == gate},
                {key: one for key, one in self.latencies.items() if key[0] == gate},
                [],
                {key: one for key, one in self.not_logged.items() if key[0] == gate},
            )
            for gate in gates
        ]


@dataclass(frozen=True, slots=True)
class Whose:
    """One gate, or all gates of an owner. `tenant`: who asks."""

    tenant: str
    gate_id: int | None = None
    owner_wallet: str | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Purchases granted, and those without an outcome by their state."""

    purchases: int
    unfinished: Mapping[str, int]


class Statistics:
    """Statistics in one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, counted: Counted, *, is_again: bool = False) -> None:
        """Write what was counted, in one transaction. Raises: StorageError, after which it may be written or not.

        `is_again`: it was tried before, and is written only if it was not written then; without a row of the log, which
        would show that, it is not.
        """
        is_short = len(counted.counters) <= _GATES_AT_ONCE
        await self._database.run(_add(counted, is_again=is_again), is_short=is_short)

    async def read(self, whose: Whose, span: Span) -> dict[int, Sums]:
        """Return the sums of each bucket of the span in which something happened, by the bucket's start."""
        bounds = {"from_ms": span.from_ms, "to_ms": span.to_ms}
        buckets: dict[int, Sums] = {}

        def bucket_of(row: Row) -> Sums:
            return buckets.setdefault(span.start_of(row["hour_ms"]), Sums())

        for row in await self._read("outcomes", whose, **bounds):
            bucket_of(row).add(Sums({RequestOutcome(row["outcome"]): row["requests"]}))
        for row in await self._read("latencies", whose, **bounds):
            bucket_of(row).add(Sums(latencies={row["bucket"]: row["calls"]}))
        for row in await self._read("sales", whose, **bounds):
            revenue_micro = in_whole(row["revenue_high"], row["revenue_low"])
            bucket_of(row).add(Sums(purchases=row["purchases"], revenue_micro=revenue_micro))
        return buckets

    async def _read(self, name: str, whose: Whose, **wanted: int) -> list[Row]:
        """Carry the query of that name out for a gate, or for all gates of an owner."""
        of_gate: dict[str, Value] = {"gate_id": whose.gate_id}
        of_owner: dict[str, Value] = {"owner_wallet": whose.owner_wallet}
        kind, of_whom = ("owner", of_owner) if whose.gate_id is None else ("gate", of_gate)
        query: Query = getattr(_Q, f"{name}_of_{kind}")
        return await self._database.read(query(**of_whom, **wanted), tenant=whose.tenant)

    async def totals(self) -> Totals:
        """Return the sales and the purchases under way, over all gates."""
        sold = (await self._database.read(_Q.sold_in_all()))[0]["purchases"]
        rows = await self._database.read(_Q.unfinished_purchases())
        return Totals(sold, {"CLAIMED": 0, "PARKED": 0} | {row["state"]: row["purchases"] for row in rows})

    async def outstanding(self, whose: Whose, now_ms: int) -> Outstanding:
        """Return the credits that buyers hold now."""
        (row,) = await self._read("outstanding", whose, now_ms=now_ms)
        return Outstanding(row["credits"], in_whole(row["value_high"], row["value_low"]))

    async def requests(
        self, gate_id: int, tenant: str, limit: int, offset: int, outcome: RequestOutcome | None
    ) -> tuple[list[Row], int]:
        """A gate's requests, newest first, and how many there are; `tenant` asks."""
        wanted = "" if outcome is None else outcome.value
        count = _Q.count_requests_of_gate(gate_id=gate_id, outcome=wanted)
        page = _Q.requests_of_gate(gate_id=gate_id, outcome=wanted, limit=limit, offset=offset)
        return await read_page(self._database, count, page, tenant)

    async def not_logged(self, gate_id: int, from_ms: int) -> int:
        """Return how many requests at a gate since then, by the hour, the log has no row of."""
        rows = await self._database.read(_Q.not_logged_of_gate(gate_id=gate_id, from_ms=from_ms, outcome=_NOT_LOGGED))
        count: int = rows[0]["requests"]
        return count

    async def forget(self, requests_before_ms: int, hours_before_ms: int) -> bool:
        """Delete some of the log's rows and of the hours' sums from before these times; whether there may be more.

        Some hundred in one commit, for spends wait for it; the sums once the log is done. Raises: StorageError.
        """
        for _ in range(_PIECES_AT_ONCE):
            piece = _Q.forget_requests(before_ms=requests_before_ms, many=FORGOTTEN_AT_ONCE)
            if len(await self._database.run(rows_of(piece))) < FORGOTTEN_AT_ONCE:
                break
        else:
            return True
        return await self._forget_sums(
            _Q.old_outcomes, _WRITING.forget_outcomes, hours_before_ms
        ) or await self._forget_sums(_Q.old_latencies, _WRITING.forget_latencies, hours_before_ms)

    async def _forget_sums(self, find: Query, forget: Query, before_ms: int) -> bool:
        """The same of one kind of sums. To find them takes a look at every gate, which is no work for the writer."""
        some = find(before_ms=before_ms, many=FORGOTTEN_AT_ONCE * _PIECES_AT_ONCE)
        found = await self._database.read(some, tenant=OURSELVES)
        old = [(row["gate_id"], row["hour_ms"], row["part"]) for row in found]
        for first in range(0, len(old), FORGOTTEN_AT_ONCE):
            piece = _ENCODE(old[first : first + FORGOTTEN_AT_ONCE]).decode()
            await self._database.run(rows_of(forget(old=piece)))
        return len(old) == FORGOTTEN_AT_ONCE * _PIECES_AT_ONCE


@unit_of_work
def _add(counted: Counted, *, is_again: bool) -> Steps[None]:
    """Few statements for all of it: callers wait for the writer meanwhile."""
    if is_again and (not counted.requests or (yield _Q.is_logged(id=counted.requests[0].id))):
        return
    for gate_id, (challenges, calls, failures) in counted.counters.items():
        yield _Q.count_traffic(gate_id=gate_id, challenges=challenges, calls=calls, failures=failures)
    outcomes: list[tuple[int, int, str, int]] = [(*key, requests) for key, requests in counted.outcomes.items()]
    outcomes += [(*key, _NOT_LOGGED, requests) for key, requests in counted.not_logged.items()]
    if outcomes:
        yield _WRITING.add_outcomes(counted=_ENCODE(outcomes).decode())
    latencies = [(*key, calls) for key, calls in counted.latencies.items()]
    if latencies:
        yield _WRITING.add_latencies(counted=_ENCODE(latencies).decode())
    yield _WRITING.insert_requests(logged=_ENCODE(counted.requests).decode())
