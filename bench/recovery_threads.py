"""`recovery-threads`: does it pay to check signatures on threads, while libsecp256k1 lets go of the interpreter's lock?

64 payments at a time, each its recovery and then some Python of its own, as a purchase has: all of it by the event
loop, as the program does it, and the recoveries by two threads, on one core and on two. `ours`, `reference` and `ratio`
are payments per second of the loop and of the threads on two cores; the other fields say the same on one core, and the
processor time of a payment in microseconds.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

from bench.measuring import Result, cores, pinned
from bench.payments import sandbox_asset, signed_payments
from tollkeeper.core.verification import signature_check
from tollkeeper.core.wire import EvmPayload
from tollkeeper.hub.requests import read_plain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Check = Callable[[EvmPayload], Awaitable[bool]]

AT_ONCE: Final = 64
TURNS: Final = 40
ROUNDS: Final = 9
PYTHON_US: Final = 20.0
THREADS: Final = 2


def measure() -> Result:
    """Four ways in turns."""
    asset = sandbox_asset()
    asked = [read_plain(one.body) for one in signed_payments(AT_ONCE, asset)]
    payloads = [one.payment.payload for one in asked if one is not None]
    steps = _steps_of(PYTHON_US)

    def check(payload: Any) -> bool:  # noqa: ANN401 - of either family to the type checker, of one here
        return signature_check(payload, asset).ok

    async def by_loop(payload: Any) -> bool:  # noqa: ANN401
        return check(payload)

    rates: dict[str, list[tuple[float, float]]] = {}
    both, one = set(cores()), {cores()[0]}
    with pinned(cores()[0]), ThreadPoolExecutor(THREADS) as threads:

        async def by_threads(payload: Any) -> bool:  # noqa: ANN401
            return await asyncio.get_running_loop().run_in_executor(threads, check, payload)

        for number in range(ROUNDS + 1):
            for name, way in (("loop", by_loop), ("threads", by_threads)):
                for on, allowed in (("1_core", one), ("2_cores", both)):
                    _allow(allowed)
                    told = uvloop.run(_turns(payloads, way, steps))
                    if number:
                        rates.setdefault(f"{name}_{on}", []).append(told)
    also: dict[str, float | str] = {}
    for name, told_all in rates.items():
        also[name] = statistics.median(rate for rate, _ in told_all)
        also[f"{name}_cpu_us"] = statistics.median(cpu_us for _, cpu_us in told_all)
    ours, theirs = float(also["loop_2_cores"]), float(also["threads_2_cores"])
    return Result("recovery-threads", ours, theirs, ours / theirs, "payments/s", ROUNDS, also)


def _allow(allowed: set[int]) -> None:
    """Of each thread of this process: those of the pool may be there already."""
    for thread in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(thread.name), allowed)


async def _turns(payloads: list[Any], way: Check, steps: int) -> tuple[float, float]:
    """Payments a second, and microseconds of processor time for one."""

    async def payment(payload: Any) -> None:  # noqa: ANN401
        assert await way(payload)
        for _ in range(steps):
            pass

    started, cpu_started = time.perf_counter(), time.process_time()
    for _ in range(TURNS):
        await asyncio.gather(*map(payment, payloads))
    count = TURNS * len(payloads)
    return count / (time.perf_counter() - started), 1e6 * (time.process_time() - cpu_started) / count


def _steps_of(microseconds: float) -> int:
    """How many steps of an empty loop take as long here."""
    started, steps = time.process_time(), 1_000_000
    for _ in range(steps):
        pass
    return int(steps * microseconds / (1e6 * (time.process_time() - started)))
