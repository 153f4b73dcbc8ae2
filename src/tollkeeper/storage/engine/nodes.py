"""Programs that share one database: who of them lives, and which gates changed for their copies.

Each says every two seconds that it lives, by the database's clock, and looks four times a second which gates changed. A
copy of a gate counts for a second after the look that confirmed it began, so that an update is answered once every
living program has seen it, or after 1.25 s. What a program left that has said nothing for twenty seconds, another one
ends. A program that has its database alone (SQLite's) plays none of this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import Statement, StorageError, rows_of, unit_of_work
from tollkeeper.storage.engine.locks import counted_together, nothing

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tollkeeper.storage.engine.database import Database, Steps, Unit

BEAT_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.25
COUNTED_SECONDS: Final = 1.0  # that a copy of a gate counts, from when the look began that found it unchanged
TOLD_SECONDS: Final = 1.25  # that an update waits at most for those who have not looked
_LOOK_OF_THE_TOLD_SECONDS: Final = 0.05
_SILENT_MS: Final = 10_000  # then nobody waits for a program
_DEAD_MS: Final = 20_000  # then nothing that it had sent can be under way: the server ends a silent transaction before

logger = logging.getLogger(__name__)


def note_change(gate_id: int) -> Statement:
    """Tell every other program that its copy of the gate is a former one, once this unit is committed."""
    return Statement("SELECT note_gate_change(:id) AS number", {"id": gate_id}, instead=nothing)


class LivingNodes:
    """This program among those that share its database.

    `forget` is given the slugs of gates that changed; `leave_behind` makes the unit that ends what a dead program left.
    """

    def __init__(
        self,
        database: Database,
        mark: str,
        *,
        forget: Callable[[Collection[str]], None],
        leave_behind: Callable[[str], Unit[int]],
    ) -> None:
        self._database = database
        self._mark = mark
        self._forget = forget
        self._leave_behind = leave_behind
        self._seen = 0
        self._beaten = 0.0
        self._counted_until = 0.0
        self._wake = asyncio.Event()
        self.is_alone = True

    async def open(self) -> None:
        """Say that this program lives. Raises: StorageError."""
        rows = await self._database.run(join_nodes(self._mark))
        self.is_alone = not rows
        if rows:
            self._seen = rows[0]["seen"]
            await self._end_the_dead()

    def counts(self) -> bool:
        """Tell whether a copy of a gate that is here is as it was a second ago, at most."""
        return time.monotonic() < self._counted_until

    async def run(self) -> None:
        """Look and beat until it is cancelled."""
        while not self.is_alone:
            try:
                await self._look()
            except StorageError as error:
                logger.info("other programs cannot be looked at: %s", error)
            except Exception:
                logger.exception("other programs cannot be looked at")
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), LOOK_SECONDS)
            except TimeoutError:
                continue

    async def told(self) -> None:
        """Wait until no living program shows or serves a gate as it was before what was committed just now."""
        if self.is_alone:
            return
        until = time.monotonic() + TOLD_SECONDS
        self._wake.set()
        try:
            newest = (await self._database.read(Statement(_NEWEST)))[0]["number"]
            behind = Statement(_BEHIND, {"number": newest, "silent_ms": _SILENT_MS})
            while time.monotonic() < until and (await self._database.read(behind))[0]["nodes"]:  # noqa: ASYNC110 - set elsewhere
                await asyncio.sleep(_LOOK_OF_THE_TOLD_SECONDS)
        except StorageError:  # it is committed, and by then every copy is over
            await asyncio.sleep(max(0.0, until - time.monotonic()))

    async def close(self) -> None:
        """Say that it has ended. Raises: StorageError."""
        if not self.is_alone:
            await self._database.run(rows_of(Statement(_LEAVE, {"mark": self._mark})))

    async def _look(self) -> None:
        began = time.monotonic()
        changes = await self._database.read(Statement(_CHANGES, {"seen": self._seen}))
        if changes:
            self._forget({row["slug"] for row in changes})
            self._seen = changes[-1]["number"]
        self._counted_until = began + COUNTED_SECONDS
        if not changes and began < self._beaten + BEAT_SECONDS:
            return
        beat = Statement(_BEAT, {"mark": self._mark, "seen": self._seen})
        if not await self._database.run(rows_of(beat)):
            logger.info("this program was taken for dead, and goes on")
            await self._database.run(join_nodes(self._mark))
        if began >= self._beaten + BEAT_SECONDS:
            self._beaten = began
            await self._end_the_dead()

    async def _end_the_dead(self) -> None:
        for row in await self._database.read(Statement(_DEAD, {"dead_ms": _DEAD_MS, "mark": self._mark})):
            count = await self._database.run(self._end(row["mark"]))
            logger.info("a program has ended without a word: %s, calls_interrupted=%s", row["mark"], count)

    @unit_of_work
    def _end(self, mark: str) -> Steps[int]:
        """End what it left, if nobody else has, and forget it."""
        yield counted_together(f"node:{mark}")
        count = 0
        if (yield Statement("DELETE FROM nodes WHERE mark = :mark RETURNING mark", {"mark": mark})):
            count = yield from self._leave_behind(mark)
        return count


@unit_of_work
def join_nodes(mark: str) -> Steps[list[dict[str, int]]]:
    """Say that the program with this mark lives; nothing comes back where it is alone."""
    rows = yield Statement(_JOIN, {"mark": mark}, instead=nothing)
    return [{"seen": row["seen"]} for row in rows]


_JOIN: Final = """
INSERT INTO nodes (mark, seen, beat_ms)
SELECT CAST(:mark AS TEXT), coalesce(max(number), 0), database_ms() FROM gate_changes
ON CONFLICT (mark) DO UPDATE SET beat_ms = database_ms()
RETURNING seen
"""
_BEAT: Final = "UPDATE nodes SET seen = :seen, beat_ms = database_ms() WHERE mark = :mark RETURNING mark"
_LEAVE: Final = "UPDATE nodes SET beat_ms = 0 WHERE mark = :mark"  # what it left all the same, another one ends
_CHANGES: Final = "SELECT number, slug FROM gate_changes WHERE number > :seen ORDER BY number"
_NEWEST: Final = "SELECT coalesce(max(number), 0) AS number FROM gate_changes"
_BEHIND: Final = "SELECT count(*) AS nodes FROM nodes WHERE seen < :number AND beat_ms > database_ms() - :silent_ms"
_DEAD: Final = "SELECT mark FROM nodes WHERE beat_ms < database_ms() - :dead_ms AND mark <> :mark"
