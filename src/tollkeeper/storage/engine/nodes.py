"""Programs that share one database: who of them lives, and which gates changed for their copies.

Each says every two seconds that it lives, by the database's clock, and looks four times a second which gates changed. A
copy of a gate counts for a second after the look that confirmed it began, so that an update is answered once every
living program has seen it, or after 1.25 s. What a program left that has said nothing for eight seconds, another one
ends. If it lives, it commits nothing any more (`Database.write_as`) until it has joined anew, under another name. A
program that has its database alone (SQLite's) plays none of this.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tollkeeper.storage.engine.database import Statement, StorageError, counted_together, nothing, unit_of_work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from tollkeeper.storage.engine.database import Database, Row, Steps, Unit

BEAT_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 0.25
COUNTED_SECONDS: Final = 1.0  # that a copy of a gate counts, from when the look began that found it unchanged
SEEN_SECONDS: Final = 1.25  # that an update waits at most for programs that have not looked
_ASK_SECONDS: Final = 0.05
_DEAD_SECONDS: Final = 8.0  # of silence: then nobody waits for a program, and others end what it left
_STEADY_SECONDS: Final = 4.0  # between two beats: after a longer pause a program cannot tell who else was silent

logger = logging.getLogger(__name__)


def note_change(gate_id: int) -> Statement:
    """Tell every other program that its copy of the gate is a former one, once this unit is committed."""
    return Statement("SELECT note_gate_change(:id) AS number", {"id": gate_id}, instead=nothing)


class LivingNodes:
    """This program among those that share its database.

    `forget` is given the slugs of gates that changed, and keys whose tokens were ended (`key_of_change`);
    `leave_behind` makes the unit that ends what the program with a mark left; `begin_anew` is called before this one
    goes on after it was ended so.
    """

    def __init__(
        self,
        database: Database,
        mark: str,
        *,
        forget: Callable[[Collection[str]], None],
        leave_behind: Callable[[str], Unit[int]],
        begin_anew: Callable[[], None],
        keys: Sequence[str] = (),
        seal_by: Callable[[str], None] = lambda _key: None,
    ) -> None:
        """`keys` are those of the ring, by name, first the one that is to seal; `seal_by` is told which one does.

        Until every living program has it that is the former one.
        """
        self._database = database
        self._mark = mark
        self._joined = 1
        self._is_ended = False
        self._forget = forget
        self._leave_behind = leave_behind
        self._begin_anew = begin_anew
        self._keys = list(keys)
        self._seal_by = seal_by
        self._seen = 0
        self._beaten = self._steady_since = 0.0
        self._counted_until = 0.0
        self._wake = asyncio.Event()
        self._learning: asyncio.Task[bool] | None = None
        self.is_alone = True

    async def open(self) -> None:
        """Say that this program lives. Raises: StorageError, also where its ring lacks the key that seals."""
        rows = await self._join()
        self.is_alone = not rows
        if rows:
            self._seen = rows[0]["seen"]
            if self._keys:
                self._seal_by(rows[0]["sealing"])
            self._beaten = self._steady_since = time.monotonic()
            self._database.write_as(self._name)

    @property
    def _name(self) -> str:
        """Another one each time that it joins."""
        return f"{self._mark}.{self._joined}"

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

    async def has_others(self) -> bool:
        """Tell whether another program lives. Raises: StorageError."""
        if self.is_alone:
            return False
        others = Statement(_OTHERS, {"mark": self._name, "dead_ms": _DEAD_MS})
        return bool((await self._database.read(others))[0]["nodes"])

    async def until_seen(self) -> None:
        """Wait until no living program shows or serves a gate as it was before what was committed just now."""
        if self.is_alone:
            return
        until = time.monotonic() + SEEN_SECONDS
        self._wake.set()
        try:
            newest = (await self._database.read(Statement(_NEWEST)))[0]["number"]
            behind = Statement(_BEHIND, {"number": newest, "dead_ms": _DEAD_MS})
            while time.monotonic() < until and (await self._database.read(behind))[0]["nodes"]:  # noqa: ASYNC110 - set elsewhere
                await asyncio.sleep(_ASK_SECONDS)
        except StorageError:  # it is committed, and by then every copy is over
            await asyncio.sleep(max(0.0, until - time.monotonic()))

    async def close(self) -> None:
        """Say that it has ended. Raises: StorageError."""
        if not self.is_alone:
            await self._database.run(_own(Statement(_LEAVE, {"mark": self._name})))

    async def _look(self) -> None:
        if self._is_ended:
            await self._join_anew()
        began = time.monotonic()
        changes = await self._learn()
        if not changes and began < self._beaten + BEAT_SECONDS:
            return
        beat = Statement(_BEAT, {"mark": self._name, "seen": self._seen, "dead_ms": _DEAD_MS})
        sealing = (await self._database.run(_own(beat)))[0]["sealing"]
        if sealing is None:
            logger.warning("this program was cut off from the database and begins anew")
            self._joined += 1
            self._is_ended = True
            await self._join_anew()
            return
        if self._keys:
            self._seal_by(sealing)
        now = time.monotonic()
        if now > self._beaten + _STEADY_SECONDS:
            self._steady_since = now
        self._beaten = now
        if now >= self._steady_since + _DEAD_SECONDS:
            await self._end_the_dead()

    async def catch_up(self) -> None:
        """Learn what others changed, unless that was done within the last second. Raises: StorageError."""
        for _ in range(2):  # a look that is under way may have begun too early
            if not self.counts():
                await self._learn()

    async def _learn(self) -> bool:
        """Wait for the look that is under way, or begin one; tell whether there was anything.

        All wait for the same one, so that a database that does not answer keeps each of them once.
        """
        if self._learning is None or self._learning.done():
            self._learning = asyncio.ensure_future(self._forget_what_changed())
        return await asyncio.shield(self._learning)

    async def _forget_what_changed(self) -> bool:
        """Forget what others changed since the last look; tell whether there was anything."""
        began = time.monotonic()
        changes = await self._database.read(Statement(_CHANGES, {"seen": self._seen}))
        if changes:
            self._forget({row["slug"] for row in changes})
            self._seen = changes[-1]["number"]
        self._counted_until = began + COUNTED_SECONDS
        return bool(changes)

    async def _join_anew(self) -> None:
        """Join under the next name; until that is answered, nothing is written."""
        await self._join()
        self._begin_anew()
        self._database.write_as(self._name)
        self._is_ended = False

    async def _join(self) -> list[Row]:
        """Join under this name; no row where the database is this program's alone. Raises: StorageError."""
        rows = await self._database.run(join_nodes(self._name, self._keys))
        if rows and not rows[0]["is_joined"]:
            raise _lacking(rows[0]["sealing"])
        if rows:
            self._forget({_OF_KEY + name for name in rows[0]["ended"]})
        return rows

    async def _end_the_dead(self) -> None:
        for row in await self._database.read(Statement(_DEAD, {"dead_ms": _DEAD_MS, "mark": self._name})):
            count = await self._database.run(self._end(row["mark"]))
            logger.info("a program has ended without a word: %s, calls_interrupted=%s", row["mark"], count)

    @unit_of_work
    def _end(self, name: str) -> Steps[int]:
        """End what it left, if it is silent still and nobody else has, and forget it.

        It waits for the units that the program has under way, by the lock that they have taken (`require_node`).
        """
        yield counted_together(f"node:{name}")
        count = 0
        if (yield Statement(_FORGET, {"mark": name, "dead_ms": _DEAD_MS})):
            count = yield from self._leave_behind(name.partition(".")[0])
        return count


@unit_of_work
def join_nodes(name: str, keys: Sequence[str]) -> Steps[list[Row]]:
    """Say that the program of this name lives; nothing comes back where it is alone."""
    return (yield Statement(_JOIN, {"mark": name, "keys": list(keys)}, instead=nothing, is_whole=True))


async def require_sealing_key(database: Database, keys: Collection[str]) -> None:
    """Refuse a ring that lacks the key by which the programs on this database seal. Raises: StorageError."""
    for row in await database.read(Statement("SELECT name FROM sealing_keys ORDER BY number DESC LIMIT 1")):
        if row["name"] not in keys:
            raise _lacking(row["name"])


def _lacking(key: str) -> StorageError:
    remedy = "put its line back, then start again"
    return StorageError(f"the key file lacks {key}, by which the programs on this database seal: {remedy}")


@unit_of_work
def end_tokens(key: str) -> Steps[None]:
    """End the credit tokens and links that this key made, at every node."""
    yield Statement("SELECT revoke_key(:key) AS done", {"key": key})


def key_of_change(slug: str) -> str | None:
    """Return the key whose tokens a change ended; None for one of a gate."""
    return slug.removeprefix(_OF_KEY) if slug.startswith(_OF_KEY) else None


@unit_of_work
def _own(statement: Statement) -> Steps[list[Row]]:
    """Change the program's own row, whether it is there or not."""
    return (yield replace(statement, is_whole=True))


_DEAD_MS: Final = int(_DEAD_SECONDS * 1000)


_OF_KEY: Final = "key:"  # no slug has a colon
_JOIN: Final = "SELECT * FROM join_node(:mark, CAST(:keys AS TEXT[]))"
_BEAT: Final = "SELECT beat_node(:mark, :seen, :dead_ms) AS sealing"
_LEAVE: Final = "UPDATE nodes SET beat_ms = 0 WHERE mark = :mark"  # what it left all the same, another one ends
_CHANGES: Final = "SELECT number, slug FROM gate_changes WHERE number > :seen ORDER BY number"
_NEWEST: Final = "SELECT coalesce(max(number), 0) AS number FROM gate_changes"
_BEHIND: Final = "SELECT count(*) AS nodes FROM nodes WHERE seen < :number AND beat_ms > database_ms() - :dead_ms"
_OTHERS: Final = "SELECT count(*) AS nodes FROM nodes WHERE mark <> :mark AND beat_ms > database_ms() - :dead_ms"
_DEAD: Final = "SELECT mark FROM nodes WHERE beat_ms < database_ms() - :dead_ms AND mark <> :mark"
_FORGET: Final = "DELETE FROM nodes WHERE mark = :mark AND beat_ms < database_ms() - :dead_ms RETURNING mark"


# The database's clock: where many programs share a database, what ends by time ends by one clock. A database of one
# program has no clock of its own: there the program's counts.

_OFF_MAX_MS: Final = 5_000


class DatabaseClock:
    """The database's clock, `read` now and then and kept by elapsed time until then: no change of ours moves it."""

    def __init__(self, database: Database, own_ms: Callable[[], int]) -> None:
        self._database = database
        self._own_ms = own_ms
        self._read: tuple[int, float] | None = None

    async def read(self) -> None:
        """Read it anew. Raises: StorageError."""
        if rows := await self._database.run(_clock()):
            self._read = rows[0]["ms"], time.monotonic()

    def now_ms(self) -> int:
        """The time, as late as it is at most; by our own clock where the database has none."""
        if self._read is None:
            return self._own_ms()
        ms, at = self._read
        return ms + int((time.monotonic() - at) * 1000)


async def require_same_clock(database: Database, own_ms: Callable[[], int]) -> None:
    """Refuse a machine whose clock is more than 5 s off the database's. Raises: StorageError.

    Credits and payments end by the clock of whoever serves them.
    """
    clock = DatabaseClock(database, own_ms)
    began_ms = own_ms()
    await clock.read()
    there_ms = clock.now_ms()
    off_ms = max(there_ms - own_ms(), began_ms - there_ms)  # it was read in between
    if off_ms > _OFF_MAX_MS:
        raise StorageError(
            f"this machine's clock is {off_ms / 1000:.0f} s off the database's, and at most 5 s will do: "
            "set both by NTP, then start again"
        )


@unit_of_work
def _clock() -> Steps[list[Row]]:
    return (yield Statement("SELECT database_ms() AS ms", instead=nothing, is_whole=True))
