"""`single`: paid calls on held credits from one connection, step by step, beside nginx in the same run.

What one caller waits for who sends the next call when the last one is answered: the relay of `floor` that reads
nothing, the same behind a durable commit of one row, behind one of what a paid call must leave in the books, and the
program. Rates as the caller sees them; `*_ms` is the mean of a call. `sync_p50_ms` is what the disk takes to sync one
page, which every call but the first two waits for at least once.
"""

from __future__ import annotations

import statistics
from contextlib import ExitStack
from typing import Final

from bench.latency import syncs_ms
from bench.measuring import Result, cores, say
from bench.processes import serving
from bench.scene import scene
from bench.wrk import calls, request

ROUNDS: Final = 7
ROUND_SECONDS: Final = 1
CALLS: Final = 64  # purchases


def measure() -> Result:
    """Calls per second of one caller, ours over nginx's."""
    with ExitStack() as stack:
        running, load_core = stack.enter_context(scene()), cores()[1]
        gate = running.gateway.gate(running.target + "/small")
        payments = running.gateway.buy(gate, CALLS)
        url, _ = stack.enter_context(running.reference())
        places = {"proxy": url + "/small"}
        for kind in ("relay", "commit", "statements"):
            books = str(running.directory / f"{kind}.db")
            bare = stack.enter_context(serving("bare", cores()[0], kind, str(running.target_port), books))
            places[kind] = bare.url + "/small"
        places["held"] = gate
        sides = {
            name: calls(running.directory, place, [request(place, X_Payment=payment) for payment in payments])
            for name, place in places.items()
        }
        running.gateway.rest()
        rates: dict[str, list[float]] = {name: [] for name in sides}
        took_ms: list[float] = []
        for number in range(ROUNDS + 1):
            took_ms += syncs_ms(running.directory / "page")
            for name, one in sides.items():
                rate = one.run(ROUND_SECONDS, load_core, connections=1).rate
                rates[name] += [rate] if number else []
            say(f"single {number}/{ROUNDS}")
    medians = {name: statistics.median(its) for name, its in rates.items()}
    also: dict[str, float | str] = {f"{name}_ms": 1000 / one for name, one in medians.items()}
    also["sync_p50_ms"] = statistics.median(took_ms)
    return Result(
        "single", medians["held"], medians["proxy"], medians["held"] / medians["proxy"], "calls/s", ROUNDS, also
    )
