"""`postgres-held`, `postgres-nodes`: what a call on held credits costs where programs share a PostgreSQL.

The server is the tests' (`tests.engines`), which syncs nothing: what counts is processor time, not a disk's. Gateways
and nodes are on one core, the server with everything else on the other. What a spend costs the server is the processor
time of all its processes, while nodes spend and nothing else happens. `postgres-costs` counts rows, bytes and syncs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final, NamedTuple

from bench.gateway import family_cpu_seconds
from bench.measuring import Result, alternate, cores, pinned
from bench.scene import ROUND_SECONDS, compare, scene
from bench.servers.spender import UNMEASURED_SECONDS
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
_numbers = itertools.count()


class Spending(NamedTuple):
    """What some nodes did together. `busy`: which part of its core the server used."""

    rate: float
    server_us: float
    node_us: float
    busy: float
    anew: int
    answers: int  # with those of the unmeasured time


def held() -> Result:
    """Paid calls on a gateway with PostgreSQL, beside the same on SQLite.

    `server_us` is a spend by a node of 64 callers that does nothing else, `server_call_us` all that a call costs the
    server: its spend in smaller batches, its lines of the log, statistics.
    """
    with scene() as running, ExitStack() as stack:
        server = started(stack)
        shared = stack.enter_context(running.instant("postgresql", server.database_of("held")))
        plain = stack.enter_context(running.instant("sqlite"))

        def calls(own: Gateway) -> Calls:
            gate = own.gate(running.target + "/small", allowSubpaths=True)
            return varied(running.directory, gate, own.buy(gate, PURCHASES), THREE)

        ours, theirs = calls(shared), calls(plain)
        result = compare("postgres-held", "calls/s", ours, shared.pid, theirs, plain.pid, rounds=ROUNDS)
        before = family_cpu_seconds(server.pid)
        run = ours.run(ROUND_SECONDS, cores()[1], CONNECTIONS)
        result.also["server_call_us"] = 1e6 * (family_cpu_seconds(server.pid) - before) / run.answers
    with ExitStack() as stack:
        server = started(stack)
        url = sold(server)
        alone = [spent(server, url, 1) for _ in range(ROUNDS)]
        result.also["server_us"] = statistics.median(one.server_us for one in alone)
    return result


def nodes() -> Result:
    """Spends by four nodes on the same purchases, beside those by one; each has as many callers.

    `ratio` is of rates, `server_ratio` of what one second of the server's processor time carries: where the nodes' core
    is the limit, it is this that says what sharing costs. `busy` says how far the server was one.
    """
    with ExitStack() as stack:
        server = started(stack)
        url = sold(server)
        seen: dict[int, list[Spending]] = {NODES: [], 1: []}

        def rate(count: int) -> float:
            seen[count].append(spent(server, url, count))
            return seen[count][-1].rate

        result = alternate("postgres-nodes", "spends/s", ROUNDS, lambda: rate(NODES), lambda: rate(1))
    four, one = seen[NODES][1:], seen[1][1:]
    for side, its in (("ours", four), ("reference", one)):
        for name in ("server_us", "node_us", "busy"):
            result.also[f"{side}_{name}"] = statistics.median(getattr(spending, name) for spending in its)
    result.also["server_ratio"] = float(result.also["reference_server_us"]) / float(result.also["ours_server_us"])
    result.also["begun_anew"] = float(sum(spending.anew for spending in [*seen[NODES], *seen[1]]))
    return result


def started(stack: ExitStack, **settings: str) -> PostgresqlServer:
    """A server on the core of the load, until the stack ends."""
    with pinned(cores()[1]):
        server = PostgresqlServer(programs(), **settings)
    stack.callback(server.stop)
    return server


def sold(server: PostgresqlServer) -> str:
    """The URL of a database with purchases at one gate that nobody spends to the end."""
    url = server.database_of(f"nodes-{next(_numbers)}")

    async def sell() -> None:
        shop = Shop(open_database(url))
        gate = await shop.gate(10**8)
        for number in range(PURCHASES):
            await shop.bought(gate, number)
        await shop.database.close()

    asyncio.run(sell())
    return url


def spent(server: PostgresqlServer, url: str, count: int, callers: int = CALLERS, seconds: float = SECONDS) -> Spending:
    """Have nodes spend together."""
    words = [sys.executable, "-m", "bench.servers.spender", url, str(callers), str(seconds)]
    pipe = subprocess.PIPE
    with pinned(cores()[0]):
        spenders = [subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, bufsize=1) for _ in range(count)]

    def say() -> None:
        for spender in spenders:
            assert spender.stdin is not None
            spender.stdin.write("\n")

    for spender in spenders:
        assert spender.stdout is not None
        assert spender.stdout.readline() == "ready\n"
    say()
    time.sleep(UNMEASURED_SECONDS)
    began, used = time.monotonic(), family_cpu_seconds(server.pid)
    time.sleep(seconds)
    took, used = time.monotonic() - began, family_cpu_seconds(server.pid) - used
    say()
    told = [json.loads(spender.communicate()[0]) for spender in spenders]
    rate = sum(one["rate"] for one in told)
    node_us = 1e6 * sum(one["cpu_seconds"] for one in told) / sum(one["spends"] for one in told)
    anew, answers = (sum(one[name] for one in told) for name in ("anew", "answers"))
    return Spending(rate, 1e6 * used / took / rate, node_us, used / took, anew, answers)
