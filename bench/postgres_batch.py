"""A batch of spends of known purchases as one statement of PostgreSQL, which is its transaction and one exchange.

It is put together from the three statements that the batch is on SQLite, in PostgreSQL's words: the gates are looked
at, credits are taken only if they stand as the batch was judged by, and the journal has the calls whose purchases had
the credits. What the batch is answered the program decides itself, from the rows that the three would have given it.
"""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.postgres import Postgres
from bench.postgres_words import words
from tollkeeper.storage.database import Statement
from tollkeeper.storage.queries import load_queries
from tollkeeper.storage.spending import SpendBatch

if TYPE_CHECKING:
    from tollkeeper.storage.database import Job, Row
    from tollkeeper.storage.spending import KnownSpends

_STANDING: Final = load_queries("spending_sqlite.sql").standing_of_gates.sql
_SPEND: Final = load_queries("spending_sqlite.sql").spend_known_credits.sql
_WRITE: Final = load_queries("call_journal_sqlite.sql").write_in_journal.sql
_ENCODE: Final = msgspec.json.Encoder().encode

# `locked`: two batches that take the same rows in different orders would wait for each other.
_PARTS: Final = """\
WITH judged AS (
    SELECT (value::jsonb ->> 0)::bigint AS id, (value::jsonb ->> 1)::bigint AS version
    FROM jsonb_array_elements_text(:judged::jsonb)
), standing AS ({standing}), asked AS (
    SELECT key, value::bigint AS number FROM jsonb_each_text(:calls::text::jsonb)
), wanted AS (
    SELECT number, count(*) AS credits FROM asked WHERE NOT EXISTS (
        SELECT FROM judged j LEFT JOIN standing s ON s.id = j.id AND s.version = j.version AND s.deleted_ms IS NULL
        WHERE s.id IS NULL
    ) GROUP BY number
), locked AS (
    SELECT c.number FROM credits c JOIN wanted USING (number) ORDER BY c.number FOR UPDATE OF c
), taken AS ({spend}), written AS ({write})
SELECT 0 AS kind, id, version, deleted_ms FROM standing
UNION ALL SELECT 1, number, remaining, NULL FROM taken UNION ALL SELECT 2, number, NULL, NULL FROM written"""
_SPENT: Final = """\
(SELECT coalesce(jsonb_object_agg(w.number, w.credits), '{}') FROM wanted w
    WHERE (SELECT count(*) FROM locked) IS NOT NULL)"""
_WRITTEN: Final = """\
SELECT :now_ms, CASE
        WHEN (SELECT count(*) FROM taken) = (SELECT count(DISTINCT number) FROM asked) THEN :calls::text
        ELSE (SELECT coalesce(jsonb_object_agg(c.key, c.number), '{}')::text FROM asked c JOIN taken USING (number))
    END, :ended, :interrupted
WHERE :ended <> '{}' OR EXISTS (SELECT FROM taken)"""


@cache
def at_once() -> str:
    """The statement. Raises: RuntimeError where one of its parts has become another."""
    standing, spend, write = (words()[sql] for sql in (_STANDING, _SPEND, _WRITE))
    values = "VALUES (:now_ms, :spent, :ended, :interrupted)"
    if ":spent::jsonb" not in spend or values not in write:
        raise RuntimeError("the statements of a batch are others than this one is made of")
    return _PARTS.format(
        standing=standing, spend=spend.replace(":spent::jsonb", _SPENT), write=write.replace(values, _WRITTEN)
    )


class AtOnce(Postgres):
    """Carries out as one statement each batch that can be one; everything else as `Postgres` does."""

    name = "at_once"

    async def run(self, job: Job) -> Any:  # noqa: ANN401 - as the job's unit returns
        """See `Postgres.run`."""
        known = job.known if isinstance(job, SpendBatch) and not (job.spends or job.ended or job.is_alone) else None
        if not isinstance(job, SpendBatch) or known is None or known.opened or len(known.calls) < known.count:
            return await super().run(job)
        rows_of, unit = await self._at_once(known, job.now_ms), job.unit()
        try:
            asked = next(unit)
            while True:
                asked = unit.send(rows_of[asked.sql])
        except StopIteration as end:
            return end.value

    async def _at_once(self, known: KnownSpends, now_ms: int) -> dict[str, list[Row]]:
        judged = list(known.gates)
        params: dict[str, Any] = {
            "judged": _ENCODE(judged).decode(),
            "wanted": _ENCODE([gate_id for gate_id, _ in judged]).decode(),
            "calls": _ENCODE(known.calls).decode(),
            "ended": _ENCODE(known.ended).decode(),
            "interrupted": "[]",
            "now_ms": now_ms,
        }
        rows_of: dict[str, list[Row]] = defaultdict(list)
        for row in await self.rows(Statement(at_once(), params)):
            if row["kind"] == 0:
                rows_of[_STANDING].append(row)
            elif row["kind"] == 1:
                rows_of[_SPEND].append({"number": row["id"], "remaining": row["version"]})
            else:
                rows_of[_WRITE].append({"number": row["id"]})
        return rows_of
