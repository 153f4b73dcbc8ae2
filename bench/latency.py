"""`latency`: what a paid call on held credits takes at half of the load that the gateway can carry.

First the gateway's throughput is measured as `held-credits` does. Then gateway and nginx get half of it in turns: 64
connections whose requests leave at exponentially distributed intervals, from an answer to the next request. `ours` and
`reference` are the medians over the rounds of each round's p99, in milliseconds; `ratio` is reference over ours, and
what the gateway adds is in `added_p50_ms` and `added_p99_ms`. `sync_p50_ms` and `sync_p99_ms` are what the disk takes
to sync one page in the same minutes, with nothing else of ours running: each paid call waits for one at least.
`floor_*` is the same load on a relay that knows no rule, behind a durable commit of what a paid call must leave in the
books (`servers.bare statements`): what it adds, no gateway on this loop, with these books and this disk, can leave out.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.measuring import Result, cores, say
from bench.processes import serving
from bench.scene import PURCHASES, latencies, scene
from bench.wrk import CONNECTIONS, Calls, calls, request

if TYPE_CHECKING:
    from pathlib import Path

ROUNDS: Final = 6
ROUND_SECONDS: Final = 3
FULL_SECONDS: Final = 3
SYNCS: Final = 300  # in each round
PAGE_BYTES: Final = 4096


def measure() -> Result:
    """p99 of both sides."""
    load_core = cores()[1]
    with scene() as running:
        gate = running.gateway.gate(running.target + "/small")
        payments = running.gateway.buy(gate, PURCHASES)
        with running.reference() as (url, _):
            requests = [request(gate, X_Payment=payment) for payment in payments]
            full = calls(running.directory, gate, requests)
            running.gateway.rest()
            full.run(1, load_core)
            measured = full.run(FULL_SECONDS, load_core)
            # A connection's cycle is its pause and an answer: at half load an answer takes little of it.
            pause_ms = CONNECTIONS / (measured.rate / 2) * 1000
            same = [request(url + "/small", X_Payment=payment) for payment in payments]
            ours = calls(running.directory, gate, requests, pause_ms=pause_ms)
            theirs = calls(running.directory, url, same, pause_ms=pause_ms)
            books = ("statements", str(running.target_port), str(running.directory / "statements.db"))
            with serving("bare", cores()[0], *books) as bare:
                bared = [request(bare.url + "/small", X_Payment=payment) for payment in payments]
                floor = calls(running.directory, bare.url, bared, pause_ms=pause_ms)
                sides = {"ours": ours, "reference": theirs, "floor": floor}
                return _in_turns(sides, load_core, measured.rate, running.directory)


def _in_turns(sides: dict[str, Calls], load_core: int, full_rate: float, directory: Path) -> Result:
    runs = {side: [one.run(1, load_core)][:0] for side, one in sides.items()}
    took_ms: list[float] = []
    for number in range(1, ROUNDS + 1):
        took_ms += syncs_ms(directory / "page")
        for side, one in sides.items():
            runs[side].append(one.run(ROUND_SECONDS, load_core))
        texts = [f"{side} p50 {its[-1].p50_ms:.2f} p99 {its[-1].p99_ms:.2f} ms" for side, its in runs.items()]
        say(f"latency {number}/{ROUNDS}: {', '.join(texts)}")
    told = latencies(runs)
    ours_ms, reference_ms = float(told["ours_p99_ms"]), float(told["reference_p99_ms"])
    also: dict[str, float | str] = {
        "full_rate": full_rate,
        "offered_rate": statistics.median(one.rate for one in runs["ours"]),
        **told,
        "sync_p50_ms": statistics.quantiles(took_ms, n=100)[49],
        "sync_p99_ms": statistics.quantiles(took_ms, n=100)[98],
    }
    return Result("latency", ours_ms, reference_ms, reference_ms / ours_ms, "ms", ROUNDS, also)


def syncs_ms(path: Path) -> list[float]:
    """What the disk takes to sync one page, SYNCS times."""
    took_ms = []
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        for _ in range(SYNCS):
            started = time.perf_counter()
            os.pwrite(file, os.urandom(PAGE_BYTES), 0)
            os.fdatasync(file)
            took_ms.append(1000 * (time.perf_counter() - started))
    finally:
        os.close(file)
    return took_ms
