"""`latency`: what the gateway adds to a call at half of its full load, beside nginx under the same load.

Calls are those of `held-credits`, offered at random moments at half the rate that the gateway reached just before.
`sync_...` is what the disk takes to sync one page, which every paid call waits for at least once.
"""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING, Final

from bench.calling import PURCHASES
from bench.measuring import Result, cores, say
from bench.scene import latencies, scene
from bench.wrk import CONNECTIONS, varied

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
    with scene() as running, running.serve() as own, running.reference() as (url, _):
        gate = own.gate(running.target + "/small", allowSubpaths=True)
        payments = own.buy(gate, PURCHASES)
        full = varied(running.directory, gate, payments)
        own.rest()
        full.run(1, load_core)
        full_rate = full.run(FULL_SECONDS, load_core).rate
        # A connection's cycle is its pause and an answer: at half load an answer takes little of it.
        pause_ms = CONNECTIONS / (full_rate / 2) * 1000
        places = {"ours": gate, "reference": url + "/small"}
        sides = {side: varied(running.directory, place, payments, pause_ms=pause_ms) for side, place in places.items()}
        runs = {side: [one.run(1, load_core)][:0] for side, one in sides.items()}
        took_ms: list[float] = []
        for number in range(1, ROUNDS + 1):
            took_ms += syncs_ms(running.directory / "page")
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
