"""`mixed`: what a day's callers do: a 402, a purchase, then calls on what it holds.

Each visit is of a buyer of its own. Of four one buys a single call, three buy ten: of their nine further calls one
posts 1 KiB and one gets 16 KiB, the others get 200 bytes. Settlements are done at once by a facilitator on the other
core, so that what is measured is the gateway. nginx gets the same requests: a file in place of the 402, the target
behind it for all others. No two requests are alike (`variety`).
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING, Final

from bench.buying import v1_signer
from bench.gateway import family_cpu_seconds
from bench.load import OK, drive
from bench.measuring import Result, alternate, cores, pinned
from bench.scene import scene
from bench.variety import TWELVE, below, request
from bench.wrk import CONNECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.load import Step, Visit

CREDITS: Final = 10
ROUNDS: Final = 6
VISITS: Final = 400  # of each side in a round
POSTED: Final = b'"' + b"p" * 1022 + b'"'
ASKED: Final = b"HTTP/1.1 402"
_numbers = itertools.count()


def measure() -> Result:
    """Answers per second."""
    also: dict[str, float | str] = {}
    spent: dict[str, list[float]] = {"ours": [], "reference": []}
    prepared: deque[deque[Visit]] = deque()
    with scene() as running, running.instant() as own:
        gates = [
            own.gate(running.target, credits=count, method="GET,POST", allowSubpaths=True)
            for count in (1, CREDITS, CREDITS, CREDITS)
        ]
        signers = [v1_signer(gate) for gate in gates]
        with running.reference(len(own.challenge(gates[0]).body)) as (url, pid):

            def turn(side: str, process: int, to: str, visits: deque[Visit]) -> float:
                before = family_cpu_seconds(process)
                with pinned(cores()[1]):
                    load = drive(to, visits, callers=CONNECTIONS, seconds=120)
                spent[side].append(1e6 * (family_cpu_seconds(process) - before) / load.answers)
                also[f"{side}_p50_ms"], also[f"{side}_p99_ms"] = load.wait_ms(0.5), load.wait_ms(0.99)
                return load.rate

            def ours() -> float:
                mine: deque[Visit] = deque()
                prepared.append(deque())
                for number in range(VISITS):
                    place = number % len(gates)
                    steps = list(_steps(gates[place], url, signers[place](), CREDITS if place else 1))
                    mine.append([step for step, _ in steps])
                    prepared[0].append([step for _, step in steps])
                return turn("ours", own.pid, own.url, mine)

            def reference() -> float:
                return turn("reference", pid, url, prepared.popleft())

            result = alternate("mixed", "answers/s", ROUNDS, ours, reference, also=also)
    for side, turns in spent.items():
        also[f"{side}_cpu_us"] = sum(turns[1:]) / len(turns[1:])
    also["cpu_ratio"] = float(also["reference_cpu_us"]) / float(also["ours_cpu_us"])
    return result


def _steps(gate: str, url: str, payment: str, count: int) -> Iterator[tuple[Step, Step]]:
    """The requests of a visit, to our gate and to nginx, each with what must stand in its answer."""
    number = next(_numbers)
    unpaid = request(gate, number, form=TWELVE, path="/small" + below(number))
    yield (unpaid, ASKED), (request(url, number, form=TWELVE, path="/challenge" + below(number)), OK)
    for place in range(count):
        number = next(_numbers)
        path = ("/medium" if place == 6 else "/small") + below(number)
        method, body = ("POST", POSTED) if place == 3 else ("GET", b"")
        mine, same = (
            request(to, number, payment, form=TWELVE, method=method, body=body, path=path) for to in (gate, url)
        )
        yield (mine, OK), (same, OK)
