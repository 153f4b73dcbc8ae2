"""`serve` or `gateway --workers 2`, and a proxy between its processes and the ledger's, at whose questions faults come.

Parent is the test's process: it starts the ledger's process, the hub's and two workers from the program's own parts, as
`serving.workers` does, but for the socket's path that they are told.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.gateway_site import PATIENCE_SECONDS, GatewaySite, send_once
from tests.faults.ledger_chaos import Harm, LedgerCase, LedgerChaos, run_ledger_chaos
from tests.faults.striking import Case
from tests.gateway.composed import settings_for
from tests.gateway.recording_target import recording_target
from tests.hub.faulty_database import Kind
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.serving.ledger_keeper import LedgerKeeper
from tollkeeper.serving.workers import Family, listen_shared
from tollkeeper.settings import Role
from tollkeeper.storage.remote import RemoteDatabase

HOST: Final = "127.0.0.1"
WORKERS: Final = 2
# So many new connections that answer show that both workers do: the kernel spreads them.
_ASKED: Final = 10


class Workers:
    """The program that is struck."""

    def __init__(self, address: str, chaos: LedgerChaos, family: Family, keeper: LedgerKeeper) -> None:
        self._address = address
        self._chaos = chaos
        self._family = family
        self._keeper = keeper
        self._well_since = 0  # so many strikes
        self._before = 0

    @property
    def deaths(self) -> int:
        """That were ordered and came."""
        return self._chaos.deaths

    @property
    def starts(self) -> int:
        """Of processes that died so."""
        return self._chaos.deaths

    @property
    def seen(self) -> set[str]:
        """Whatever was asked of the ledger."""
        return self._chaos.seen

    async def url(self) -> str:
        """Once all of its processes serve that something befell."""
        if self._well_since != self._chaos.struck:
            struck = self._chaos.struck
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not await self._is_well():  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.05)
            self._well_since = struck
        return self._address

    async def _is_well(self) -> bool:
        """Does every process answer? New ones wait at the socket of one that is being started."""
        for _ in range(_ASKED):
            try:
                async with aiohttp.ClientSession() as http, http.get(self._address + "/readyz") as answer:
                    if answer.status != 200:
                        return False
            except aiohttp.ClientError:
                return False
        return True

    def prepare(self, case: Case) -> None:
        """It comes at the next question of that name; an error at a query or unit of one process, at the same of these.

        The ledger's process answers with it.
        """
        if not isinstance(case, LedgerCase):
            assert case.kind is Kind.ERROR
            name = case.boundary.title().replace("_", "")
            case = LedgerCase(name, case.moment, case.kind, harm=Harm.DENIED)
        self._before, self._chaos.order = self._chaos.struck, case

    def has_come(self, _case: Case) -> bool:
        """Did it?"""
        return self._chaos.struck > self._before

    async def until_come(self, case: Case) -> None:
        """It did."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not self.has_come(case):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)

    def processes(self) -> list[int]:
        """The ids of those that run; their parent starts anew whoever dies."""
        return [self._keeper.process_id, *self._family.process_ids.values()]

    def end(self) -> None:
        """All are killed at once."""
        for process in self.processes():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


@asynccontextmanager
async def several(
    directory: Path, chain: ChainUnderTest, facilitator_url: str = "", /, port: int = 0, **changes: Any
) -> AsyncIterator[GatewaySite]:
    """Two workers, serving; without a facilitator's URL with a hub of their own, on the same database."""
    apart = {"role": Role.GATEWAY, "hub_url": facilitator_url} if facilitator_url else {}
    with ExitStack() as sockets:
        listening = [sockets.enter_context(one) for one in listen_shared(HOST, port, WORKERS)]
        port = listening[0].getsockname()[1]
        address = f"http://{HOST}:{port}"
        database_file = directory / "gateway.db"
        settings = settings_for(chain.url, database_file, address, workers=WORKERS, **apart, **changes)
        own, shown = directory / "ledger", directory / "shown"
        async with AsyncExitStack() as parts:
            target = await parts.enter_async_context(recording_target())
            buyer = await parts.enter_async_context(Buyer(chain.wallets.buyer))
            send_once(buyer)
            keeper = await parts.enter_async_context(LedgerKeeper(settings.database_url, own))
            chaos = await parts.enter_async_context(
                run_ledger_chaos(own, shown, lambda: os.kill(keeper.process_id, signal.SIGKILL))
            )
            database = RemoteDatabase(shown)
            parts.push_async_callback(database.close)
            await database.open()
            family = Family(settings, database, shown)
            parts.push_async_callback(family.stop)
            await family.start(listening, sockets)
            yield GatewaySite(
                directory=directory,
                chain=chain,
                gateway=Workers(address, chaos, family, keeper),
                target=target,
                buyer=buyer,
                port=port,
                changes=changes,
            )
            sockets.close()
