"""Held credits with two workers beside one: what the machine gives, and what two free cores would.

`ratio` is the rate of `serve --workers 2` over that of `serve`, in turns, all processes on whatever cores there are.
Where callers and target need those cores too, that says little about workers. `free_cores_ratio` is what the processor
time of each process says: with a core of its own for each worker and for the ledger's process, the rate is bounded by
the one that is busy first, so min(2 / (a worker's time of one call), 1 / (the ledger's time of one call)).

That at 64 connections, as everything else here, and under `full_` at 64 for each worker: what a commit costs is shared
by all spends that wait for it, so the ledger's time of one call is less where more wait.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.gateway import family, gateway
from bench.measuring import Result, alternate, cores, cpu_seconds
from bench.scene import PURCHASES, ROUND_SECONDS, ROUNDS, scene
from bench.wrk import CONNECTIONS, calls, request

if TYPE_CHECKING:
    from bench.gateway import Gateway
    from bench.scene import Scene
    from bench.wrk import Calls

WORKERS: Final = 2
_LEDGER: Final = b"tollkeeper.storage.ledger_process"


@dataclass
class _Side:
    """One of the two programs: its load, its answers so far, and the processor time that each kind of process used."""

    server: Gateway
    load: Calls
    connections: int = CONNECTIONS
    answers: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: int = 0

    def turn(self) -> float:
        before = {pid: cpu_seconds(pid) for pid in family(self.server.pid)}
        run = self.load.run(ROUND_SECONDS, cores()[1], self.connections)
        self.rounds += 1
        if self.rounds > 1:  # the first turn is not measured
            self.answers += run.answers
            for pid, seconds in before.items():
                kind = "ledger" if _LEDGER in Path(f"/proc/{pid}/cmdline").read_bytes() else "serving"
                self.seconds[kind] = self.seconds.get(kind, 0.0) + cpu_seconds(pid) - seconds
        return run.rate

    def per_call_us(self, kind: str) -> float:
        return 1e6 * self.seconds.get(kind, 0.0) / self.answers


def measure() -> Result:
    """Paid calls per second on many purchases, two workers over one."""
    with scene() as running:
        one = _Side(running.gateway, _held(running, running.gateway))
        directory = running.directory / "workers"
        # After the purchases of the other: both hubs sign with the same account.
        with gateway(directory, running.node_url, None, TOLLKEEPER_WORKERS=str(WORKERS)) as server:
            two = _Side(server, _held(running, server))
            result = alternate("workers-2", "calls/s", ROUNDS, two.turn, one.turn)
            full_one, full_two = (_Side(side.server, side.load, CONNECTIONS * WORKERS) for side in (one, two))
            full = alternate("workers-2", "calls/s", ROUNDS, full_two.turn, full_one.turn)
    result.also.update(_times("", one, two))
    result.also.update(_times("full_", full_one, full_two))
    result.also.update(full_ours=full.ours, full_reference=full.reference, cores=float(len(set(cores()))))
    return result


def _times(prefix: str, one: _Side, two: _Side) -> dict[str, float]:
    alone, worker, ledger = one.per_call_us("serving"), two.per_call_us("serving"), two.per_call_us("ledger")
    return {
        f"{prefix}alone_us": alone,
        f"{prefix}worker_us": worker,
        f"{prefix}ledger_us": ledger,
        f"{prefix}free_cores_ratio": alone * min(WORKERS / worker, 1 / ledger),
    }


def _held(running: Scene, server: Gateway) -> Calls:
    gate = server.gate(running.target + "/small")
    payments = server.buy(gate, PURCHASES)
    server.rest()
    return calls(running.directory, gate, [request(gate, X_Payment=payment) for payment in payments])
