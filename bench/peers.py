"""`peers`: first purchases per second beside the official FastAPI and Express middlewares, at 64 connections and one.

All ask the same facilitator, an nginx on the other core that finds every payment valid and every settlement done at
once. Ours also keeps a durable ledger and forwards each call to a target (200 bytes, the same nginx), where the
middlewares' routes answer inside their own process. No two requests are alike (`variety`).

Calls on held credits are a second gateway's of ours: the first one's may be busy with what it sold in the turn before.

`ours`, `reference` and `ratio` are ours and FastAPI's first purchases at 64 connections. The other fields say the same
of Express and of one connection, and `held` is ours on credits that are held, which the middlewares do not have. nginx,
which forwards to the target and knows of no payment, is how fast any of them could be.
`*_cpu_ratio` compares purchases per second of processor time that each server used.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bench.buying import FASTAPI, purchase, v1_signer, v2_purchase, v2_signer
from bench.gateway import family_cpu_seconds
from bench.measuring import Result, cores, pinned, say
from bench.references.running import official_express_server, official_paid_server
from bench.scene import scene
from bench.wrk import listed, varied
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.sandbox.evm.node import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from bench.wrk import Calls

CONNECTIONS: Final = (64, 1)
PEERS: Final = ("fastapi", "express", "nginx")
ROUNDS: Final = 4
ROUND_SECONDS: Final = 2
FIRST_GUESS: Final = 1_200  # purchases per second, until a turn made more
MARGIN: Final = 3.0  # payments prepared per payment that the quickest turn would have taken
HELD: Final = 256


@dataclass(slots=True)
class Side:
    """One server, and what its turns came to at each number of connections.

    Each request is made by `buy`; or calls are made on what is held by these payments.
    """

    name: str
    url: str
    pid: int
    directory: Path
    buy: Callable[[], bytes] | None = None
    held: Sequence[str] = ("",)
    rates: dict[int, list[float]] = field(default_factory=lambda: {number: [] for number in CONNECTIONS})
    p50_ms: dict[int, list[float]] = field(default_factory=lambda: {number: [] for number in CONNECTIONS})
    cpu: dict[int, list[float]] = field(default_factory=lambda: {number: [] for number in CONNECTIONS})
    quickest: dict[int, float] = field(default_factory=lambda: dict.fromkeys(CONNECTIONS, FIRST_GUESS))

    def turn(self, connections: int, *, counts: bool) -> None:
        """One turn. The payments are signed before it. Raises: RuntimeError when they do not suffice."""
        prepared, wanted = self.prepared(ROUND_SECONDS, connections)
        before = family_cpu_seconds(self.pid)
        run = prepared.run(ROUND_SECONDS, cores()[1], connections)
        cpu_seconds = family_cpu_seconds(self.pid) - before
        prepared.script.unlink()
        if self.buy is not None and run.answers > wanted:
            message = f"{self.name}: {run.answers} answers to {wanted} payments"
            raise RuntimeError(message)
        self.quickest[connections] = max(self.quickest[connections], run.rate)
        if counts:
            self.rates[connections].append(run.rate)
            self.p50_ms[connections].append(run.p50_ms)
            self.cpu[connections].append(run.answers / cpu_seconds)

    def prepared(self, seconds: int, connections: int) -> tuple[Calls, int]:
        """Return what is asked for so long, and how many purchases these are."""
        if self.buy is None:
            return varied(self.directory, self.url, self.held), 0
        wanted = int(MARGIN * seconds * self.quickest[connections]) + connections
        return listed(self.directory, self.url, [self.buy() for _ in range(wanted)]), wanted

    def tell(self, also: dict[str, float | str]) -> None:
        """The medians."""
        for number in CONNECTIONS:
            also[f"{self.name}_{number}"] = statistics.median(self.rates[number])
            also[f"{self.name}_{number}_p50_ms"] = statistics.median(self.p50_ms[number])
            also[f"{self.name}_{number}_per_cpu_second"] = statistics.median(self.cpu[number])


def measure() -> Result:
    """Every side in turns, all on one core."""
    owner = checksum_address(derive_wallets().owner.address)
    with ExitStack() as stack:
        running = stack.enter_context(scene())
        own, holding = stack.enter_context(running.instant()), stack.enter_context(running.instant("holding"))
        with pinned(cores()[0]):
            fastapi = stack.enter_context(official_paid_server(running.target + "/v2", owner, TOKEN_NAME))
            express = stack.enter_context(official_express_server(running.target + "/v2", owner, TOKEN_NAME))
        url, pid = stack.enter_context(running.reference())
        gate = own.gate(running.target + "/small", credits=1)
        sides = [Side("ours", gate, own.pid, running.directory, _buys(gate, v1_signer(gate), purchase))]
        for name, peer in (("fastapi", fastapi), ("express", express)):
            place = peer.url + "/data"
            sides.append(Side(name, place, peer.pid, running.directory, _buys(place, v2_signer(place), v2_purchase)))
        gate = holding.gate(running.target + "/small", allowSubpaths=True)
        sides.append(Side("held", gate, holding.pid, running.directory, held=holding.buy(gate, HELD)))
        sides.append(Side("nginx", url + "/small", pid, running.directory))
        holding.rest()
        return _compared(in_turns("peers", sides))


def _buys(url: str, sign: Callable[[], str], made: Callable[[str, str], bytes]) -> Callable[[], bytes]:
    return lambda: made(url, sign())


def in_turns(name: str, sides: list[Side]) -> dict[str, float | str]:
    """All sides at each number of connections, again and again: the medians of what each came to."""
    for number in range(ROUNDS + 1):
        for connections in CONNECTIONS:
            for side in sides:
                side.turn(connections, counts=number > 0)
        if number:
            rates = [f"{side.name} {' / '.join(f'{side.rates[c][-1]:.0f}' for c in CONNECTIONS)}" for side in sides]
            say(f"{name} {number}/{ROUNDS}: {', '.join(rates)} per second at {CONNECTIONS[0]} / {CONNECTIONS[1]}")
    also: dict[str, float | str] = {}
    for side in sides:
        side.tell(also)
    return also


def _compared(also: dict[str, float | str]) -> Result:
    also |= {"peer": FASTAPI, "express": "npm @x402/express 2.27.0"}
    for ours in ("ours", "held"):
        for theirs in PEERS:
            for connections in CONNECTIONS:
                pair = f"{ours}_{connections}", f"{theirs}_{connections}"
                name = f"{ours}_over_{theirs}_{connections}"
                also[name] = float(also[pair[0]]) / float(also[pair[1]])
                also[name + "_cpu_ratio"] = float(also[pair[0] + "_per_cpu_second"]) / float(
                    also[pair[1] + "_per_cpu_second"]
                )
    ours_64, fastapi_64 = float(also["ours_64"]), float(also["fastapi_64"])
    return Result("peers", ours_64, fastapi_64, ours_64 / fastapi_64, "purchases/s", ROUNDS, also)
