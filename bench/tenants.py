"""`tenants`: p99 of honest paid calls while one tenant attacks, beside the quiet value of the same minute.

Of each attack (`attacks`) three turns without it and three with it alternate, honest calls arriving at random moments
at a rate that leaves the processor idle for most of the time. `ours` is the worst of the attacks: how many times the
quiet p99 it makes of it; `reference` is the aim. Beside each: both p99s, how many honest calls were refused or broken,
and what the attacker was answered.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from bench import attacks
from bench.buying import purchase, v1_signer
from bench.gateway import gateway
from bench.measuring import Result, cores, pinned, say
from bench.scene import scene
from bench.variety import request
from bench.wrk import listed, varied
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from bench.attacks import Attacker, Going
    from bench.gateway import Gateway
    from bench.scene import Scene
    from bench.wrk import Calls, Run

    Attack = Callable[[Attacker], Coroutine[Any, Any, Going]]

T = TypeVar("T")

AIM: Final = 4.0
ROUNDS: Final = 3
TURN_SECONDS: Final = 5
GROWS_SECONDS: Final = 2  # in which an attack takes what it gets, before it is measured
HELD: Final = 64  # purchases of honest callers
PURCHASERS: Final = 4
_PROGRAM: Final = (sys.executable, "-m", "bench.servers.silent_names")
# The attack, and which honest requests are measured under it.
ATTACKS: Final[dict[str, tuple[Attack, str]]] = {
    "lookups_at_calls": (attacks.lookups_at_calls, "calls"),
    "lookups_at_creates": (attacks.lookups_at_creates, "calls"),
    "hanging_targets": (attacks.hanging_targets, "calls"),
    "slow_readers": (attacks.slow_readers, "large"),
    "deep_pages": (attacks.deep_pages, "calls"),
    "lists_under_deep_pages": (attacks.deep_pages, "lists"),
    "uploads": (attacks.uploads, "calls"),
    "junk_verifies": (attacks.junk_verifies, "purchases"),
    "junk_settles": (attacks.junk_settles, "purchases"),
    "sales_to_oneself": (attacks.sales_to_oneself, "purchases"),
    "login_messages": (attacks.login_messages, "purchases"),
}


@dataclass(frozen=True, slots=True)
class Honest:
    """Callers of one kind: so many connections, each with a pause of so long, on average, between its calls."""

    connections: int
    pause_ms: float
    made: Callable[[float], Calls]

    def turn(self) -> tuple[Run, int]:
        """One turn, and how many of its calls were refused or broken."""
        return self.made(self.pause_ms).tried(TURN_SECONDS, cores()[1], self.connections)


def honest(running: Scene, own: Gateway) -> dict[str, Honest]:
    """`calls` on held credits, whose target is looked up by name; answers of 2 MiB; first `purchases`; `lists`."""
    place = running.target.replace("127.0.0.1", "localhost")
    small, large = (own.gate(f"{place}/{what}", allowSubpaths=True) for what in ("small", "double"))
    held, held_large = own.buy(small, HELD), own.buy(large, HELD)
    sold = own.gate(f"{place}/small", credits=1)
    sign = v1_signer(sold)

    def purchases(pause_ms: float) -> Calls:
        wanted = int(PURCHASERS * (2 * TURN_SECONDS * 1000 / pause_ms + 5))
        return listed(running.directory, sold, [purchase(sold, sign()) for _ in range(wanted)], pause_ms=pause_ms)

    requests, bearer = asyncio.run(_owned(own.url, f"{place}/small"))

    def lists(pause_ms: float) -> Calls:
        asked = [request(requests, number, path="", also=f"Authorization: Bearer {bearer}") for number in range(100)]
        return listed(running.directory, requests, asked, pause_ms=pause_ms)

    return {
        "calls": Honest(16, 80, lambda pause_ms: varied(running.directory, small, held, pause_ms=pause_ms)),
        "large": Honest(4, 200, lambda pause_ms: varied(running.directory, large, held_large, pause_ms=pause_ms)),
        "purchases": Honest(PURCHASERS, 250, purchases),
        "lists": Honest(4, 200, lists),
    }


async def _owned(url: str, target: str) -> tuple[str, str]:
    """Where the requests of a gate that has an owner are listed, and his bearer."""
    async with Buyer(derive_wallets().buyer) as owner:
        bearer = await owner.login(url)
        body, headers = {"targetUrl": target, "price": "0.01"}, {"Authorization": f"Bearer {bearer}"}
        made = (await owner.ask("POST", f"{url}/api/v1/paygates", body=body, headers=headers)).json()
        return f"{url}/api/v1/paygates/{made['id']}/requests", bearer


@dataclass(slots=True)
class Background:
    """An event loop in a thread of its own."""

    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)

    def run(self, steps: Coroutine[Any, Any, T]) -> T:
        """Wait for what these steps return."""
        return asyncio.run_coroutine_threadsafe(steps, self.loop).result()

    @contextmanager
    def during(self, steps: Coroutine[Any, Any, None]) -> Iterator[None]:
        """Let these steps go on until the block ends. Raises: what ended them before."""
        going = self.run(_begun(steps))
        try:
            yield
            if going.done():
                going.result()
        finally:
            self.run(_ended(going))


async def _begun(steps: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(steps)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


@contextmanager
def background() -> Iterator[Background]:
    """Such a loop, until the block ends; on the core of the load."""
    made = Background()
    with pinned(cores()[1]):
        thread = threading.Thread(target=made.loop.run_forever)
        thread.start()
    try:
        yield made
    finally:
        made.loop.call_soon_threadsafe(made.loop.stop)
        thread.join()
        made.loop.close()


def measure() -> Result:
    """The worst of the attacks."""
    also: dict[str, float | str] = {}
    with ExitStack() as stack:
        running, loop = stack.enter_context(scene()), stack.enter_context(background())
        directory, silent = running.directory / "serve", running.directory / "silent"
        node = stack.enter_context(running.chain())
        program = gateway(directory, node, cores()[0], program=_PROGRAM, BENCH_SILENT=str(silent))
        own = stack.enter_context(program)
        kinds = honest(running, own)
        own.rest()
        for name, (attack, kind) in ATTACKS.items():
            closing = AsyncExitStack()
            attacker = loop.run(attacks.attacker(own.url, running.target, directory, silent, closing))
            try:
                also |= _under(name, kinds[kind], loop, attacker, loop.run(attack(attacker)))
            finally:
                loop.run(closing.aclose())
    worst = max(float(also[f"{name}_times"]) for name in ATTACKS)
    return Result("tenants", worst, AIM, AIM / worst, "times the quiet p99", ROUNDS, also)


def _under(name: str, callers: Honest, loop: Background, attacker: Attacker, going: Going) -> dict[str, float | str]:
    """One attack: the medians of the p99s without and with it, in turns after an unmeasured one."""
    callers.turn()
    attacker.answers.clear()
    quiet_ms, under_ms, lost = [], [], 0
    for _ in range(ROUNDS):
        run, refused = callers.turn()
        quiet_ms.append(run.p99_ms)
        lost += refused
        with loop.during(going()):
            time.sleep(GROWS_SECONDS)
            run, refused = callers.turn()
        under_ms.append(run.p99_ms)
        lost += refused
    quiet, under = statistics.median(quiet_ms), statistics.median(under_ms)
    told = ", ".join(f"{status}: {count}" for status, count in sorted(attacker.answers.items()))
    say(f"{name}: p99 {quiet:.1f} -> {under:.1f} ms, {under / quiet:.2f} times; {lost} honest calls lost; {told}")
    also: dict[str, float | str] = {"quiet_p99_ms": quiet, "p99_ms": under, "times": under / quiet, "lost": float(lost)}
    return {f"{name}_{what}": value for what, value in (also | {"attacker": told}).items()}
