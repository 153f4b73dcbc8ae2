"""`postgres-held`, `postgres-nodes`: what a call on held credits costs where programs share a PostgreSQL.

The server is the tests' (`tests.engines`), which syncs nothing: what counts is processor time, not a disk's. Gateways
are on one core, the server with everything else on the other. A spend's time in the server is all its processes'.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from bench.gateway import family_cpu_seconds
from bench.measuring import Result, alternate, cores, pinned
from bench.scene import ROUND_SECONDS, compare, scene
from bench.variety import THREE
from bench.wrk import CONNECTIONS, varied
from tests.engines import PostgresqlServer, programs
from tests.storage.test_purchases import Shop
from tollkeeper.storage.urls import open_database

if TYPE_CHECKING:
    from bench.gateway import Gateway
    from bench.wrk import Calls

PURCHASES: Final = 256
NODES: Final = 4
CALLERS: Final = 64  # of each node
ROUNDS: Final = 5
SECONDS: Final = 3.0


def _server(stack: ExitStack) -> PostgresqlServer:
    with pinned(cores()[1]):
        server = PostgresqlServer(programs())
    stack.callback(server.stop)
    return server


def held() -> Result:
    """Paid calls on a gateway with PostgreSQL, beside the same on SQLite."""
    with scene() as running, ExitStack() as stack:
        server = _server(stack)
        shared = stack.enter_context(running.instant("postgresql", server.database_of("held")))
        plain = stack.enter_context(running.instant("sqlite"))

        def calls(own: Gateway) -> Calls:
            gate = own.gate(running.target + "/small", allowSubpaths=True)
            return varied(running.directory, gate, own.buy(gate, PURCHASES), THREE)

        ours, theirs = calls(shared), calls(plain)
        result = compare("postgres-held", "calls/s", ours, shared.pid, theirs, plain.pid, rounds=ROUNDS)
        before = family_cpu_seconds(server.pid)
        run = ours.run(ROUND_SECONDS, cores()[1], CONNECTIONS)
        result.also["server_us"] = 1e6 * (family_cpu_seconds(server.pid) - before) / run.answers
    return result


def nodes() -> Result:
    """Spends by four nodes on the same purchases, beside those by one; each has as many callers."""
    with ExitStack() as stack:
        server = _server(stack)
        url = server.database_of("nodes")
        asyncio.run(_sold(url))
        anew = 0

        def spent(count: int) -> float:
            nonlocal anew
            words = [sys.executable, "-m", "bench.servers.spender", url, str(CALLERS), str(SECONDS)]
            spenders = [subprocess.Popen(words, stdout=subprocess.PIPE) for _ in range(count)]
            told = [json.loads(spender.communicate()[0]) for spender in spenders]
            anew += sum(one["anew"] for one in told)
            return float(sum(one["rate"] for one in told))

        result = alternate("postgres-nodes", "spends/s", ROUNDS, lambda: spent(NODES), lambda: spent(1))
        result.also["begun_anew"] = float(anew)
    return result


async def _sold(url: str) -> None:
    shop = Shop(open_database(url))
    gate = await shop.gate(10**8)
    for number in range(PURCHASES):
        await shop.bought(gate, number)
    await shop.database.close()
