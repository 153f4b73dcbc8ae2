"""Several workers on one port: a parent process, the ledger's, the hub's and the gateway's workers (performance 7).

The parent serves nothing. It owns the listening sockets, so that nothing is refused while a process is started anew,
starts the ledger's process, then the hub's (which alone knows the signer's key), then the workers; passes on which
gates changed; marks the calls and cuts the uploads that a dead worker left open; checks the books; and stops them in
the reverse order. The workers of a hub alone are `hubs`'.
Where the parent dies, all of them end.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import clock_ms
from tollkeeper.core.keyring import parse_key_ring
from tollkeeper.serving.admin import serving_metrics, told_metrics
from tollkeeper.serving.child import Child
from tollkeeper.serving.http_server import Address, listen
from tollkeeper.serving.hubs import Hubs
from tollkeeper.serving.inspection import REGISTRY, keep_inspecting
from tollkeeper.serving.ledger_keeper import LedgerKeeper
from tollkeeper.serving.own_database import make_directory
from tollkeeper.serving.worker_messages import Announced, Changed, NewRing, Post
from tollkeeper.settings import Role
from tollkeeper.storage import StorageError
from tollkeeper.storage.file_rows import cut_uploads_of_the_dead
from tollkeeper.storage.purchases import Purchases
from tollkeeper.storage.remote import RemoteDatabase
from tollkeeper.storage.sealing import Sealing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tollkeeper.settings import Settings

_LOG = structlog.get_logger("tollkeeper.serving")
_LOOPBACK: Final = "127.0.0.1"
# What a dead worker had sent is committed or undone in the ledger's process by then (`interrupting.SETTLED_MS`).
_SETTLED_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 0.5


async def serve_with_workers(settings: Settings, stop: asyncio.Event) -> None:
    """Serve until `stop` is set, finish the accepted requests, close. Raises: StartError, StorageError."""
    with ExitStack() as sockets:
        listening = [
            sockets.enter_context(one) for one in listen_shared(settings.host, settings.port, settings.workers)
        ]
        async with AsyncExitStack() as parts:
            directory = parts.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-"))
            ledger_path = Path(directory) / "ledger"
            make_directory(settings)
            keeper = await parts.enter_async_context(LedgerKeeper(settings.database_url, ledger_path))
            database = RemoteDatabase(ledger_path)
            parts.push_async_callback(database.close)
            await database.open()
            family = (Hubs if settings.role is Role.HUB else Family)(settings, database, ledger_path)

            async def leave(_kind: object, error: BaseException | None, _trace: object) -> None:
                if isinstance(error, asyncio.CancelledError):
                    await family.end()  # the waiting was over before it began: two signals at once
                await family.stop()

            parts.push_async_exit(leave)
            await family.start(listening, sockets)
            await parts.enter_async_context(serving_metrics(settings.metrics_address, family.metrics))
            address = Address(*listening[0].getsockname()[:2])
            inspecting = asyncio.create_task(keep_inspecting(settings, database))
            parts.callback(inspecting.cancel)
            _LOG.info(
                "serving",
                role=settings.role.value,
                url=address.url,
                public_url=settings.public_url.text,
                processes={"ledger": keeper.process_id, **family.process_ids},
            )
            await stop.wait()
            sockets.close()  # before the workers: nobody may wait in a line that is never served
    _LOG.info("stopped")


def listen_shared(host: str, port: int, count: int) -> Iterator[socket.socket]:
    """That many listening sockets on one port, among which the kernel spreads connections evenly. Raises: ListenError.

    The first bind, which shares with nobody, finds out whether another program has the port.
    """
    with listen(host, port) as alone:
        port = alone.getsockname()[1]
    for _ in range(count):
        yield listen(host, port, shares_port=True)


class Family:
    """The hub's process and the workers. `start` them once, `stop` them before the ledger's process."""

    def __init__(self, settings: Settings, database: RemoteDatabase, ledger_path: Path) -> None:
        """`database` is the parent's own way to the ledger's process."""
        self._settings = settings
        self._ledger_path = str(ledger_path)
        assert settings.encryption_keys is not None  # noqa: S101 - a gateway has them
        self._database = database
        self._purchases = Purchases(database, Sealing(settings.encryption_keys, os.urandom))
        self._hub: Child | None = None
        self._workers: list[Child] = []
        self._telling: set[asyncio.Task[None]] = set()
        self._deaths = asyncio.Event()
        self._marking: asyncio.Task[None] | None = None

    @property
    def process_ids(self) -> dict[str, int]:
        """Who runs, by name."""
        children = self._workers if self._hub is None else [self._hub, *self._workers]
        return {child.name: child.process_id for child in children}

    async def metrics(self) -> bytes:
        """What all of them measure."""
        children = self._workers if self._hub is None else [self._hub, *self._workers]
        return await told_metrics({child.name: child.metrics for child in children}, REGISTRY.collect())

    async def start(self, listening: list[socket.socket], sockets: ExitStack) -> None:
        """Returns when all serve. The hub's own socket is closed with `sockets`. Raises: StartError, StorageError."""
        interrupted = await self._purchases.interrupt_calls(clock_ms())
        if interrupted.count:
            _LOG.warning("calls_interrupted", count=interrupted.count)
        await self._database.run(cut_uploads_of_the_dead())
        public = replace(self._settings, signer_keys=())
        hub_url = None
        if self._settings.role is Role.SERVE:
            own = sockets.enter_context(listen(_LOOPBACK, 0))
            hub_url = Address(*own.getsockname()[:2]).url
            keys = tuple(key.reveal() for key in self._settings.signer_keys)
            # It seals nothing, and of rings that the workers take nobody tells it: started anew with that of the start,
            # it would open nothing that a rotation since has sealed.
            without_ring = replace(public, encryption_keys=None)
            post = Post("hub", without_ring, self._ledger_path, keys, is_first=True)
            self._hub = Child(post, own, self._changed, lambda: None)
            await self._hub.start()
        for number, one in enumerate(listening):
            post = Post(f"worker {number + 1}", public, self._ledger_path, hub_url=hub_url, is_first=number == 0)
            self._workers.append(Child(post, one, self._changed, self._deaths.set))
        await asyncio.gather(*(worker.start() for worker in self._workers))
        self._marking = asyncio.create_task(self._mark_calls())

    def _changed(self, origin: Child, message: Changed | NewRing) -> None:
        task = asyncio.create_task(self._tell(origin, message))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def _tell(self, origin: Child, message: Changed | NewRing) -> None:
        if isinstance(message, NewRing):
            ring = parse_key_ring(message.ring)
            await asyncio.gather(*(worker.take_ring(ring) for worker in self._workers))
        else:
            others = [worker for worker in self._workers if worker is not origin]
            await asyncio.gather(*(other.forget(message.slug) for other in others))
        origin.answer(Announced(message.number))

    async def _mark_calls(self) -> None:
        """After a worker's death its open calls are marked: soon, and again until nothing of it can be under way."""
        while True:
            await self._deaths.wait()
            is_over = False
            while not is_over:
                is_first = self._deaths.is_set()  # of somebody who died since the last one
                self._deaths.clear()
                is_over = await self._mark() and not is_first
                if not is_over:
                    await asyncio.sleep(_SETTLED_SECONDS)

    async def _mark(self) -> bool:
        """Whether nothing more can come of those that are dead, as far as the database knows them."""
        while True:
            try:
                interrupted = await self._purchases.interrupt_calls(clock_ms(), self._living)
                await self._database.run(cut_uploads_of_the_dead(self._living()))
            except StorageError:
                await asyncio.sleep(_AGAIN_SECONDS)
                continue
            if interrupted.count:
                _LOG.warning("calls_interrupted", count=interrupted.count)
            return interrupted.is_done

    def _living(self) -> str:
        """The marks of those who serve now.

        A worker without a mark is being started: its calls come once it has said its mark, and are younger.
        """
        return " ".join(worker.mark for worker in self._workers) or " "

    async def stop(self) -> None:
        """Let the workers finish what they accepted, then the hub's process what is under way."""
        if self._marking is not None:
            self._marking.cancel()
        hub = [] if self._hub is None else [self._hub]
        try:
            await asyncio.gather(*(worker.stop() for worker in self._workers))
            await asyncio.gather(*(child.stop() for child in hub))
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """End them soon, whatever they do."""
        children = self._workers if self._hub is None else [*self._workers, self._hub]
        await asyncio.gather(*(child.end() for child in children))
