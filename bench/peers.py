"""`peers`: first purchases per second beside the official FastAPI and Express middlewares, at 64 connections and one.

All ask the same facilitator, an nginx on the other core that finds every payment valid and every settlement done at
once. Ours also keeps a durable ledger and forwards each call to a target (200 bytes, the same nginx), where the
middlewares' routes answer inside their own process. The gate is `assumeValid`, for such a facilitator confirms nothing.

Calls on held credits are a second gateway's of ours: the first one's is busy with what it sold in the turn before, for
trusted sales are followed until their payments are seen, which the middlewares do not do.

`ours`, `reference` and `ratio` are ours and FastAPI's first purchases at 64 connections. The other fields say the same
of Express and of one connection, and `held` is ours on credits that are held, which the middlewares do not have. nginx,
which forwards to the target and knows of no payment, is how fast any of them could be.
`*_cpu_ratio` compares purchases per second of processor time that each server used.
"""

from __future__ import annotations

import statistics
import tempfile
from collections import deque
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.buying import FASTAPI, facilitator, v1_signer, v2_signer
from bench.gateway import family_cpu_seconds, gateway
from bench.measuring import Result, cores, pinned, say
from bench.nginx import nginx
from bench.processes import serving
from bench.references.running import official_express_server, official_paid_server
from bench.wrk import calls, request
from tests.ports import free_port
from tollkeeper.core.evm import checksum_address
from tollkeeper.sandbox.genesis import TOKEN_NAME
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.gateway import Gateway
    from bench.wrk import Calls

CONNECTIONS: Final = (64, 1)
PEERS: Final = ("fastapi", "express", "nginx")
ROUNDS: Final = 4
ROUND_SECONDS: Final = 2
FIRST_GUESS: Final = 1_200  # purchases per second, until a turn made more
MARGIN: Final = 3.0  # payments prepared per payment that the quickest turn would have taken
HELD: Final = 64

_PROXY: Final = """\
    upstream target {{ server 127.0.0.1:{target_port}; keepalive 512; keepalive_requests 1000000000; }}
    proxy_http_version 1.1;
    proxy_set_header Connection "";
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        location = /small {{ proxy_pass http://target; }}
    }}
"""


@dataclass(slots=True)
class Side:
    """One server, and what its turns came to at each number of connections."""

    name: str
    url: str
    pid: int
    sign: Callable[[], bytes]
    directory: Path
    repeat: bool = False
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
        if run.answers > wanted and not self.repeat:
            message = f"{self.name}: {run.answers} answers to {wanted} payments"
            raise RuntimeError(message)
        self.quickest[connections] = max(self.quickest[connections], run.rate)
        if counts:
            self.rates[connections].append(run.rate)
            self.p50_ms[connections].append(run.p50_ms)
            self.cpu[connections].append(run.answers / cpu_seconds)

    def prepared(self, seconds: int, connections: int) -> tuple[Calls, int]:
        """Purchases for so long, each with a payment of its own, and how many payments these are."""
        wanted = HELD if self.repeat else int(MARGIN * seconds * self.quickest[connections]) + connections
        return calls(self.directory, self.url, [self.sign() for _ in range(wanted)]), wanted

    def tell(self, also: dict[str, float | str]) -> None:
        """The medians."""
        for number in CONNECTIONS:
            also[f"{self.name}_{number}"] = statistics.median(self.rates[number])
            also[f"{self.name}_{number}_p50_ms"] = statistics.median(self.p50_ms[number])
            also[f"{self.name}_{number}_per_cpu_second"] = statistics.median(self.cpu[number])


@dataclass(frozen=True, slots=True)
class Peers:
    """Ours and the two official ones. The facilitator is at `port`, and the target; `gate` is ours."""

    directory: Path
    port: int
    gate: str
    sides: list[Side]
    another: Callable[[str], AbstractContextManager[Gateway]]  # gateway of ours, in a directory of that name


@contextmanager
def peers() -> Iterator[Peers]:
    """All of them on one core, until the block ends."""
    server_core, other_core = cores()
    owner = checksum_address(derive_wallets().owner.address)
    with ExitStack() as running:
        directory = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="tollkeeper-bench-")))
        node = running.enter_context(serving("embedded_node", other_core))
        port = free_port()
        at = f"http://127.0.0.1:{port}"
        running.enter_context(nginx(facilitator(port), port, other_core, directory / "facilitator"))

        def another(name: str) -> AbstractContextManager[Gateway]:
            return gateway(directory / name, node.url, server_core, role="gateway", TOLLKEEPER_HUB_URL=at + "/v1")

        own = running.enter_context(another("gateway"))
        gate = own.gate(at + "/small", assumeValid=True)
        with pinned(server_core):
            fastapi = running.enter_context(official_paid_server(at + "/v2", owner, TOKEN_NAME))
            express = running.enter_context(official_express_server(at + "/v2", owner, TOKEN_NAME))
        sides = [
            Side("ours", gate, own.pid, v1_signer(gate), directory),
            Side("fastapi", fastapi.url + "/data", fastapi.pid, v2_signer(fastapi.url + "/data"), directory),
            Side("express", express.url + "/data", express.pid, v2_signer(express.url + "/data"), directory),
        ]
        yield Peers(directory, port, gate, sides, another)


def measure() -> Result:
    """Every side in turns."""
    with peers() as running, running.another("held") as own, _forwarding(running) as bare:
        gate = own.gate(f"http://127.0.0.1:{running.port}/small", assumeValid=True)
        held = deque(request(gate, X_Payment=payment) for payment in own.buy(gate, HELD))
        own.rest()
        ours = Side("held", gate, own.pid, lambda: _next(held), running.directory, repeat=True)
        return _compared(in_turns("peers", [*running.sides, ours, bare]))


@contextmanager
def _forwarding(running: Peers) -> Iterator[Side]:
    """An nginx in front of the target, on the core of the others."""
    port = free_port()
    proxy = _PROXY.format(port=port, target_port=running.port)
    with nginx(proxy, port, cores()[0], running.directory / "proxy") as pid:
        url = f"http://127.0.0.1:{port}/small"
        yield Side("nginx", url, pid, lambda: request(url), running.directory, repeat=True)


def _next(held: deque[bytes]) -> bytes:
    held.rotate(-1)
    return held[0]


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
