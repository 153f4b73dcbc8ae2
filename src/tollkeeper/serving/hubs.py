"""Several hubs on one database: the children of a `tollkeeper hub --workers N` (contract 5.2; security F20).

Each listens on a socket of its own on the one port, and each knows the signers' keys. They share rows, nonces, gas
budget and logins through the ledger's process; who carries which settlement forward, and who keeps a signer's nonces
moving, is settled there by leases (`hub.membership`). What one that died was carrying the others take over once it was
silent for as long as `HUB_LIFE_SECONDS`; it is started anew meanwhile.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from tollkeeper.serving.admin import told_metrics
from tollkeeper.serving.child import Child
from tollkeeper.serving.inspection import REGISTRY
from tollkeeper.serving.worker_messages import Announced, Changed, NewRing, Post
from tollkeeper.storage.leases import end_all

if TYPE_CHECKING:
    import socket
    from contextlib import ExitStack
    from pathlib import Path

    from tollkeeper.settings import Settings
    from tollkeeper.storage.remote import RemoteDatabase


class Hubs:
    """`start` them once, `stop` them before the ledger's process."""

    def __init__(self, settings: Settings, database: RemoteDatabase, ledger_path: Path) -> None:
        """`database` is the parent's own way to the ledger's process."""
        self._settings = settings
        self._database = database
        self._ledger_path = str(ledger_path)
        self._children: list[Child] = []

    @property
    def process_ids(self) -> dict[str, int]:
        """Who runs, by name."""
        return {child.name: child.process_id for child in self._children}

    async def metrics(self) -> bytes:
        """What all of them measure."""
        return await told_metrics({child.name: child.metrics for child in self._children}, REGISTRY.collect())

    async def start(self, listening: list[socket.socket], sockets: ExitStack) -> None:  # noqa: ARG002 - as `Family`'s
        """Returns when all serve. Raises: StartError, StorageError."""
        # Whoever is written down as alive has ended: the database's file is this program's.
        await self._database.run(end_all())
        public = replace(self._settings, signer_keys=())
        keys = tuple(key.reveal() for key in self._settings.signer_keys)
        for number, one in enumerate(listening):
            post = Post(f"hub {number + 1}", public, self._ledger_path, keys, is_first=number == 0)
            self._children.append(Child(post, one, _nothing_to_tell, lambda: None))
        await asyncio.gather(*(child.start() for child in self._children))

    async def stop(self) -> None:
        """Let them finish what they accepted and what is under way."""
        try:
            await asyncio.gather(*(child.stop() for child in self._children))
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """End them soon, whatever they do."""
        await asyncio.gather(*(child.end() for child in self._children))


def _nothing_to_tell(origin: Child, message: Changed | NewRing) -> None:
    """A hub has no gates."""
    origin.answer(Announced(message.number))
