"""Waiting for transactions to be seen: one task per network asks for all of them at once (contract 5.2).

Soon after they were sent, then ever more rarely, and whenever a block is due.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic

import structlog

from tollkeeper.chains.quorum import WantedT
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import NOTHING_SEEN, Sighting

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.chains.quorum import QuorumReader

_LOG = structlog.get_logger("tollkeeper.chains")
_FIRST_POLL_SECONDS: Final = 0.002
_LAST_POLL_SECONDS: Final = 0.5


@dataclass(slots=True, eq=False)
class _Waiter(Generic[WantedT]):
    """One awaited transaction. `last` is the newest sighting, deep or not.

    `absent_at` is when it was last looked for in vain; event loop time, as `next_poll` is.
    """

    expected: WantedT
    done: asyncio.Future[None]
    next_poll: float
    last: Sighting = NOTHING_SEEN
    absent_at: float | None = None
    pause: float = _FIRST_POLL_SECONDS


class SightingWatcher(Generic[WantedT]):
    """The one task that asks for the sightings of everything awaited on a network. It ends when nothing is awaited."""

    def __init__(self, reader: QuorumReader[WantedT]) -> None:
        self._reader = reader
        self._beat = BlockBeat()
        self._block_due = math.inf
        self._waiters: list[_Waiter[WantedT]] = []
        self._wake: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def wait(self, expected: WantedT, deadline: float) -> Sighting:
        """Return the first deep sighting, or at `deadline` (event loop time) whatever was seen last."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(expected, loop.create_future(), loop.time())
        self._waiters.append(waiter)
        if self._task is None:
            self._task = loop.create_task(self._watch())
        elif self._wake is not None and not self._wake.done():
            self._wake.set_result(None)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await waiter.done
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return waiter.last

    async def close(self) -> None:
        """End the task; those who wait get what was seen last, at their deadline."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        try:
            while self._waiters:
                due = await self._due()
                if due:
                    await self._poll(due)
        finally:
            self._task = None

    async def _due(self) -> list[_Waiter[WantedT]]:
        loop = asyncio.get_running_loop()
        now = loop.time()
        due = [waiter for waiter in self._waiters if min(waiter.next_poll, self._block_due) <= now]
        if not due:
            self._wake = loop.create_future()
            next_poll = min(waiter.next_poll for waiter in self._waiters)
            timer = loop.call_at(min(next_poll, self._block_due), _set, self._wake)
            await self._wake
            timer.cancel()
            self._wake = None
        return due

    async def _poll(self, due: list[_Waiter[WantedT]]) -> None:
        sightings: list[Sighting | None]
        asked_at = asyncio.get_running_loop().time()
        try:
            sightings = list(await self._reader.look([waiter.expected for waiter in due]))
        except RpcUnavailable:
            sightings = [None] * len(due)
        except Exception:  # noqa: BLE001 - whatever a node may have shown: who waits for the next look is not left alone
            _LOG.exception("receipts_not_understood")
            sightings = [None] * len(due)
        now = asyncio.get_running_loop().time()
        for waiter, sighting in zip(due, sightings, strict=True):
            if sighting is not None:
                self._note(waiter, sighting, asked_at, now)
                waiter.last = sighting
                if sighting.deep:
                    if not waiter.done.done():
                        waiter.done.set_result(None)
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)
            waiter.next_poll = now + waiter.pause
            waiter.pause = min(waiter.pause * 2, _LAST_POLL_SECONDS)
        self._block_due = self._beat.next_look(now) or math.inf

    def _note(self, waiter: _Waiter[WantedT], sighting: Sighting, asked_at: float, now: float) -> None:
        """Note what a look, asked at `asked_at` and answered `now`, tells of when the transaction's block came."""
        if sighting.block_number is None:
            waiter.absent_at = asked_at
        elif waiter.last.block_number is None and waiter.absent_at is not None:
            self._beat.found(sighting.block_number, waiter.absent_at, now)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# When a chain's next block is worth looking for, by when those before it were found. Times are seconds of one clock.
# Chains add their blocks in a steady beat, and who looks every half second learns of one a quarter of a second late in
# the mean. What is known of a block is that it came behind a look that did not show it and before one that did. From
# two such blocks the beat follows, from the latest the moment of the next: it is looked for in the middle of where it
# may come, at the end, and then ever more rarely. So what is known gets narrower with each block, until it is as wide
# as the chain is unsteady, and a beat that moves is followed.

# Faster ones are not foretold: to look as often as their blocks come is more than nodes like to be asked (Solana), and
# a chain that adds a block for each transaction has no beat.
_SHORTEST_SECONDS: Final = 0.8
_NARROWEST_SECONDS: Final = 0.02
# Looks lie closer together than this. Where they did not, no node answered, and the block may have come at any time.
_WIDEST_SECONDS: Final = 1.0
# How much of what is known of the beat a measurement over one block replaces: one over many counts for nearly all.
_REMEMBERED_BLOCKS: Final = 7
# From another beat than this much of it nothing is learned: it is begun anew.
_SAME_BEAT: Final = 0.25
_LEAST_AHEAD_SECONDS: Final = 0.001


class BlockBeat:
    """Times of the blocks of one chain."""

    __slots__ = ("_after", "_by", "_number", "_period")

    def __init__(self) -> None:
        self._number = -1
        self._after = self._by = 0.0
        self._period = 0.0  # seconds from block to block; 0: not known

    def found(self, number: int, after: float, by: float) -> None:
        """Block `number` came behind `after`, and was there at `by`."""
        if by - after > _WIDEST_SECONDS:
            return
        if number == self._number:
            self._after, self._by = max(self._after, min(after, self._by)), min(self._by, max(by, self._after))
            return
        blocks = number - self._number
        if self._number >= 0 and blocks > 0:
            self._learn((by - self._by) / blocks, blocks)
            # Where the first look found it, it may have come much earlier: the next is looked for a little earlier.
            after = max(after, by - 2 * self._width)
        self._number, self._after, self._by = number, after, by

    def next_look(self, now: float) -> float | None:
        """Return the first moment behind `now` at which it is worth looking; None while the beat is not known."""
        period, width = self._period, self._width
        if period < _SHORTEST_SECONDS:
            return None
        blocks = max(1, math.ceil((now - self._by) / period - 0.25))
        while True:
            expected = self._by + blocks * period
            offset = -width / 2
            while offset <= period / 4:
                if expected + offset > now + _LEAST_AHEAD_SECONDS:
                    return expected + offset
                offset = 2 * offset + width
            blocks += 1

    @property
    def _width(self) -> float:
        """How well the moment of a block is known: seconds."""
        return max(_NARROWEST_SECONDS, min(self._by - self._after, self._period))

    def _learn(self, measured: float, blocks: int) -> None:
        """Take a beat that was measured over so many blocks."""
        if abs(measured - self._period) > _SAME_BEAT * self._period:
            self._period = measured
        else:
            self._period += (measured - self._period) * blocks / (blocks + _REMEMBERED_BLOCKS)


# Sending again what a node took and nobody shows (contract 5.2; security F4, F9). A node may take a transaction and
# lose it, or pass it on to nobody. A signed transaction can be carried out once at most, so it may be sent as often as
# one likes, and to whom one likes. What is not shown two seconds after it was sent goes to every node, whether there is
# one or several: an authorization lasts a minute, and a buyer waits.

_PAUSES_SECONDS: Final = (2.0, 4.0, 8.0)
_LOOK_SECONDS: Final = 0.75
_AWAITED_MAX: Final = 10_000  # at a time; the others are sent again by who finishes what nobody carries


@dataclass(frozen=True, slots=True)
class Rebroadcast:
    """Rebroadcast on one network. `_is_shown` asks the nodes for a transaction, `_send` hands it to all of them."""

    _network: str
    _is_shown: Callable[[str], Awaitable[bool]]
    _send: Callable[[bytes, str], Awaitable[object]]
    _awaited: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def begin(self, raw: bytes, name: str) -> None:
        """Look after a transaction that is sent now."""
        if name not in self._awaited and len(self._awaited) < _AWAITED_MAX:
            task = asyncio.get_running_loop().create_task(self._look_after(raw, name))
            self._awaited[name] = task
            task.add_done_callback(lambda _: self._awaited.pop(name, None))

    def seen(self, name: str) -> None:
        """Look after it no more: somebody saw it on the chain."""
        task = self._awaited.get(name)
        if task is not None:
            task.cancel()

    async def close(self) -> None:
        """Look after nothing any more."""
        tasks = tuple(self._awaited.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_after(self, raw: bytes, name: str) -> None:
        for pause in _PAUSES_SECONDS:
            await asyncio.sleep(pause)
            with suppress(RpcUnavailable, TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    if await self._is_shown(name):
                        return
            _LOG.warning("sent_again", network=self._network, transaction=name)
            await self._send(raw, name)
