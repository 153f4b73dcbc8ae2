"""What a parent process and its workers say to each other (contract 3.3): lines of JSON over a socket pair.

A worker says that it is ready, and which mark its calls bear, and serves once it is told to go: whatever the parent
said before that has reached it. It announces each changed gate, is asked to forget each that another one announced,
and is told when all have; another ring of encryption keys goes the same way. What this module does not do: decide
anything.
"""

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from tollkeeper.storage import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tollkeeper.settings import Settings


class Ready(msgspec.Struct, tag=True):
    """Worker: all that came before was read; `mark` is in the id of each of its calls."""

    mark: str


class Changed(msgspec.Struct, tag=True):
    """Worker: this gate's update is committed and not answered."""

    number: int
    slug: str


class Noted(msgspec.Struct, tag=True):
    """Worker: its copy is dropped, or it has the ring and nothing sealed by the former one can come any more."""

    number: int


class NewRing(msgspec.Struct, tag=True):
    """Worker: every worker shall take this ring of encryption keys."""

    number: int
    ring: str


class Go(msgspec.Struct, tag=True):
    """Parent: serve."""


class Forget(msgspec.Struct, tag=True):
    """Parent: drop the copy of this gate, and say so."""

    number: int
    slug: str


class TakeRing(msgspec.Struct, tag=True):
    """Parent: open and seal by this ring, and say so."""

    number: int
    ring: str


class Announced(msgspec.Struct, tag=True):
    """Parent: no other worker has the former copy of what you announced, or every one has the ring."""

    number: int


class Stop(msgspec.Struct, tag=True):
    """Parent: finish what was accepted, and end. The second one: end."""


FromWorker: TypeAlias = Ready | Changed | NewRing | Noted
FromParent: TypeAlias = Go | Forget | TakeRing | Announced | Stop

_ENCODE: Final = msgspec.json.Encoder().encode
decode_from_worker: Final = msgspec.json.Decoder(FromWorker).decode
decode_from_parent: Final = msgspec.json.Decoder(FromParent).decode


def line(message: FromWorker | FromParent) -> bytes:
    """The message as it is sent."""
    return _ENCODE(message) + b"\n"


@dataclass(frozen=True, slots=True)
class Post:
    """What a child process is started with; it comes over a pipe, so that no key is in an environment or on a disk.

    `settings` are without the signers' keys, which only the hub's process is given; its own are without the encryption
    keys, too. A gateway worker reaches the hub at `hub_url`, None where the settings name another; `is_first` is one of
    several that do the same.
    """

    name: str
    settings: Settings
    ledger_path: str
    signer_keys: tuple[bytes, ...] = field(default=(), repr=False)
    hub_url: str | None = None
    is_first: bool = False

    @property
    def metrics(self) -> Path:
        """Where the process tells its metrics: in the parent's own directory."""
        return Path(self.ledger_path).with_name(self.name.replace(" ", "-") + ".metrics")


class ParentLine:
    """A worker's end of the socket pair. A worker whose parent is gone ends at once, as if both had been killed."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        stop: Callable[[], None],
        take_ring: Callable[[str], Awaitable[None]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._announced: dict[int, asyncio.Future[None]] = {}
        self._number = 0
        self._go = asyncio.Event()
        self._stop = stop
        self._take_ring = take_ring
        self._taking: set[asyncio.Task[None]] = set()
        self._forget: Callable[[str], None] = lambda _slug: None
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def open(
        cls, descriptor: int, stop: Callable[[], None], take_ring: Callable[[str], Awaitable[None]]
    ) -> ParentLine:
        """The line at an inherited descriptor; `stop` is called for each time that the parent says so.

        `take_ring` returns when the process has taken a ring.
        """
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=descriptor))
        return cls(reader, writer, stop, take_ring)

    async def _read(self) -> None:
        # From the start on: a worker that waits for a ledger that will never come must see that its parent is gone.
        while text := await self._lines():
            message = decode_from_parent(text)
            if isinstance(message, Forget):
                self._forget(message.slug)
                self._writer.write(line(Noted(message.number)))
            elif isinstance(message, TakeRing):
                task = asyncio.create_task(self._take(message))
                self._taking.add(task)
                task.add_done_callback(self._taking.discard)
            elif isinstance(message, Announced):
                self._announced.pop(message.number).set_result(None)
            elif isinstance(message, Go):
                self._go.set()
            else:
                self._stop()
        # Without a parent nobody would tell this worker of changed gates, and the ledger has ended or soon will.
        os._exit(1)

    async def _take(self, message: TakeRing) -> None:
        await self._take_ring(message.ring)
        self._writer.write(line(Noted(message.number)))

    async def _lines(self) -> bytes:
        try:
            return await self._reader.readline()
        except OSError:
            return b""

    async def ready(self, mark: str, forget: Callable[[str], None]) -> None:
        """Tell the parent, and return when it says go; `forget` drops this process's copy of a gate from then on."""
        self._forget = forget
        self._writer.write(line(Ready(mark)))
        await self._go.wait()

    async def announce(self, slug: str) -> None:
        """Returns once no other worker has a former copy of the gate. Raises: StorageError while stopping."""
        await self._announce(lambda number: Changed(number, slug))

    async def spread_ring(self, ring: str) -> None:
        """Returns once every worker, this one included, has taken the ring. Raises: StorageError while stopping."""
        await self._announce(lambda number: NewRing(number, ring))

    async def _announce(self, message: Callable[[int], Changed | NewRing]) -> None:
        if self._writer.is_closing():
            raise StorageError("the other workers cannot be told at the moment")
        self._number += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._announced[self._number] = future
        self._writer.write(line(message(self._number)))
        await asyncio.shield(future)
