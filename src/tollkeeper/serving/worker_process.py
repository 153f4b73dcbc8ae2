"""A process that a parent started: a gateway's worker, or a hub (contract 1; performance 7). See `start_worker`.

It composes what it is told to, on the ledger process's database, listens on an inherited socket, and stops when its
parent says so: signals that a terminal or a service manager sends to the whole group are the parent's to answer.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from tollkeeper.api import PROCESS_MARK
from tollkeeper.core.keyring import Secret, parse_key_ring, ring_text
from tollkeeper.logs import configure_logs
from tollkeeper.serving.composition import Among, compose_hub, compose_worker
from tollkeeper.serving.heap import set_up_heap
from tollkeeper.serving.http_server import HttpServer, run
from tollkeeper.serving.live_keys import LiveKeys
from tollkeeper.serving.worker_messages import ParentLine, Post
from tollkeeper.settings import wants_colours
from tollkeeper.storage.remote import RemoteDatabase

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tollkeeper.core.sealing import KeyRing
    from tollkeeper.serving.access import Application

_LOG = structlog.get_logger("tollkeeper.serving")


class _Keys:
    """The process's encryption keys, from before its database is open: the parent may change them at any moment.

    A hub alone seals nothing and has none.
    """

    def __init__(self, post: Post) -> None:
        ring = post.settings.encryption_keys
        self._live = None if ring is None else LiveKeys(ring, os.urandom)
        self.database = RemoteDatabase(Path(post.ledger_path))
        self._is_open = False

    async def open(self) -> None:
        """Open the database, and know what retired keys made."""
        await self.database.open()
        self._is_open = True
        if self._live is not None:
            await self._live.settle(self.database)

    @property
    def live(self) -> LiveKeys:
        """Those of a process that seals."""
        assert self._live is not None  # noqa: S101 - a gateway has them
        return self._live

    async def take(self, text: str) -> None:
        """Take a ring; nothing was sealed before the database is open."""
        self.live.take(parse_key_ring(text))
        if self._is_open:
            await self.live.settle(self.database)


async def _serve(post: Post, keys: _Keys, parent: ParentLine, listening: socket.socket, stop: asyncio.Event) -> None:
    database = keys.database
    try:
        await keys.open()
        async with _composed(post, parent, keys) as (app, forget):
            await parent.ready(PROCESS_MARK, forget)
            drain_seconds, patience = post.settings.shutdown_timeout_seconds, post.settings.patience
            async with HttpServer(app, listening, drain_seconds=drain_seconds, patience=patience):
                _LOG.info("process_serving", process=post.name)
                await stop.wait()
    finally:
        await database.close()


@asynccontextmanager
async def _composed(
    post: Post, parent: ParentLine, keys: _Keys
) -> AsyncIterator[tuple[Application, Callable[[str], None]]]:
    """The application, and what drops its copy of a gate."""
    if post.signer_keys:
        signers = tuple(map(Secret, post.signer_keys))
        hub = compose_hub(post.settings, keys.database, signers, post.metrics, is_first=post.is_first)
        async with hub as app:
            yield app, lambda _slug: None
    else:
        from tollkeeper.gateway.app import Worker  # noqa: PLC0415 - a hub does without

        worker = Worker(parent.announce, post.is_first)

        async def spread(ring: KeyRing) -> None:
            await parent.spread_ring(ring_text(ring))

        among = Among(keys.live, worker, spread)
        async with compose_worker(post.settings, keys.database, among, post.hub_url, post.metrics) as (app, gateway):
            yield app, gateway.gates.forget


async def _main(post: Post, line_descriptor: int, listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, lambda: None)
    stop = asyncio.Event()
    serving: asyncio.Task[None] | None = None

    def stopped() -> None:
        if serving is not None and stop.is_set():
            serving.cancel()
        stop.set()

    keys = _Keys(post)
    parent = await ParentLine.open(line_descriptor, stopped, keys.take)
    serving = asyncio.create_task(_serve(post, keys, parent, listening, stop))
    with suppress(asyncio.CancelledError):
        await serving


def main() -> int:
    """Serve on the socket of the second argument's descriptor, with the parent at the first one's."""
    post = pickle.load(sys.stdin.buffer)  # noqa: S301 - our own parent's pipe
    assert isinstance(post, Post)  # noqa: S101 - it sends nothing else
    settings = post.settings
    set_up_heap()
    configure_logs(settings.log_level, settings.log_format, colours=wants_colours(sys.stderr))
    run(_main(post, int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))
    return 0
