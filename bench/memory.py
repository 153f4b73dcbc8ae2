"""`memory`: what `tollkeeper serve` holds in memory over many paid calls: a million, or as many as are asked for.

The calls are those of `held-credits`. `reference` is the resident size after the first tenth of them, when caches and
pools are as large as they get, `ours` the size after the last; `ratio` is reference over ours: below 1, it grew.
Megabytes are 10^6 bytes, of the process and its descendants, shared libraries counted in each.
"""

from __future__ import annotations

from typing import Final

from bench.calling import PURCHASES
from bench.gateway import family
from bench.measuring import Result, cores, say
from bench.scene import scene
from bench.start import resident_mb
from bench.wrk import varied

CALLS: Final = 1_000_000
STEP_SECONDS: Final = 2
STEPS: Final = 10


def measure(count: int = CALLS) -> Result:
    """Resident memory before and after."""
    with scene() as running, running.serve() as own:
        gate = own.gate(running.target + "/small", allowSubpaths=True)
        ours = varied(running.directory, gate, own.buy(gate, PURCHASES))
        sizes_mb: list[float] = []
        done = 0
        while done < count:
            done += ours.run(STEP_SECONDS, cores()[1]).answers
            if done * STEPS >= count * (len(sizes_mb) + 1):
                sizes_mb.append(sum(resident_mb(pid) for pid in family(own.pid)))
                say(f"memory: {sizes_mb[-1]:.1f} MB after {done} calls")
    also: dict[str, float | str] = {"calls": float(done), "largest_mb": max(sizes_mb)}
    return Result("memory", sizes_mb[-1], sizes_mb[0], sizes_mb[0] / sizes_mb[-1], "MB", 1, also)
