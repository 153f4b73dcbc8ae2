"""`floor`: what a gateway on this event loop could reach at most, beside nginx in the same run.

Servers that do nothing but what no gateway can leave out (`servers.bare`): pass bytes on; pass them on behind a durable
commit of one row for all that came at once; behind one of all that a paid call must leave in the books, by bare
statements; through the program's ledger; and through it to a target behind TLS. Their rates per second of processor
time, divided by nginx's (`proxy_pass`), bound `held-credits` and `tls-target` from above on this machine: no head is
read, no payment matched, nobody's rate limited, no receipt written, nothing counted. The program itself stands beside
them. 402s have steps of their own (`challenge_floor`).
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.measuring import Result, cores
from bench.processes import serving
from bench.scene import PURCHASES, ROUND_SECONDS, ROUNDS, rates, scene
from bench.wrk import calls, request

if TYPE_CHECKING:
    from pathlib import Path

    from bench.wrk import Calls

PAYMENT = "x" * 900  # about as long as one


def _calls(directory: Path, url: str, path: str) -> Calls:
    return calls(directory, url, [request(url + path, X_Payment=PAYMENT)])


def _sides(stack: ExitStack) -> dict[str, tuple[Calls, int]]:
    """What is called, and the process that answers."""
    server_core = cores()[0]
    running = stack.enter_context(scene())
    url, nginx_pid = stack.enter_context(running.reference())
    gate = running.gateway.gate(running.target + "/small")
    payments = running.gateway.buy(gate, PURCHASES)
    directory, pid, port = running.directory, running.gateway.pid, str(running.target_port)
    sides = {"proxy": (_calls(directory, url, "/small"), nginx_pid)}
    for kind in ("relay", "commit", "statements", "ledger"):
        bare = stack.enter_context(serving("bare", server_core, kind, port, str(directory / f"{kind}.db")))
        sides[kind] = _calls(directory, bare.url, "/small"), bare.pid
    certificate = str(directory / "certificate.pem")
    sides["secure_proxy"] = _calls(directory, url, "/secure/small"), nginx_pid
    secure = ("secure", str(running.tls_port), str(directory / "secure.db"), certificate)
    bare = stack.enter_context(serving("bare", server_core, *secure))
    sides["secure_ledger"] = _calls(directory, bare.url, "/small"), bare.pid
    sides["held_credits"] = calls(directory, gate, [request(gate, X_Payment=one) for one in payments]), pid
    return sides


def measure() -> Result:
    """`ours`: calls behind a commit. Processor time of a call at each side, and ratios, in the further fields."""
    with ExitStack() as stack:
        rate = rates("floor", _sides(stack), ROUNDS, ROUND_SECONDS)
    also: dict[str, float | str] = {f"{name}_us": 1e6 / one for name, one in rate.items()}
    also |= {f"{name}_ratio": rate[name] / rate["proxy"] for name in ("relay", "statements", "ledger", "held_credits")}
    also["secure_ledger_ratio"] = rate["secure_ledger"] / rate["secure_proxy"]
    unit = "calls per second of processor time"
    return Result("floor", rate["commit"], rate["proxy"], rate["commit"] / rate["proxy"], unit, ROUNDS, also)
