"""`floor`: what a gateway on this event loop could reach at most, beside nginx in the same run.

Servers that do nothing but what no gateway can leave out (`servers.bare`): pass bytes on; pass them on behind a durable
commit of one row for all that came at once; behind one of all that a paid call must leave in the books, by bare
statements; through the program's ledger; and through it to a target behind TLS. Their rates per second of processor
time, divided by nginx's (`proxy_pass`), bound `held-credits` and `tls-target` from above on this machine: no head is
read, no payment matched, nobody's rate limited, no receipt written, nothing counted. The program itself stands beside
them; `hot_credits` is the program where all calls are of one purchase.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from bench.measuring import Result, cores
from bench.processes import serving
from bench.scene import PURCHASES, ROUND_SECONDS, ROUNDS, rates, scene
from bench.wrk import calls, request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.scene import Scene
    from bench.wrk import Calls

PAYMENT = "x" * 900  # about as long as one


def _calls(directory: Path, url: str, path: str, payments: Sequence[str] = (PAYMENT,)) -> Calls:
    return calls(directory, url, [request(url + path, X_Payment=one) for one in payments])


def sides_of(stack: ExitStack, running: Scene) -> dict[str, tuple[Calls, int]]:
    """What is called, and the process that answers."""
    url, nginx_pid = stack.enter_context(running.reference())
    directory, gateway = running.directory, running.gateway
    plain, behind_tls = (str(running.target_port),), (str(running.tls_port), str(directory / "certificate.pem"))
    sides = {
        "proxy": (_calls(directory, url, "/small"), nginx_pid),
        "secure_proxy": (_calls(directory, url, "/secure/small"), nginx_pid),
    }
    for name, *words in (
        ("relay", "relay", *plain),
        ("commit", "commit", *plain),
        ("statements", "statements", *plain),
        ("ledger", "ledger", *plain),
        ("secure_ledger", "secure", *behind_tls),
    ):
        arguments = *words, str(directory / f"{name}.db")
        bare = stack.enter_context(serving("bare", cores()[0], *arguments))
        sides[name] = _calls(directory, bare.url, "/small"), bare.pid
    for name, target in (("held_credits", running.target), ("secure_credits", running.secure_target)):
        gate = gateway.gate(target + "/small")
        payments = gateway.buy(gate, PURCHASES)
        sides[name] = _calls(directory, gate, "", payments), gateway.pid
        if name == "held_credits":
            sides["hot_credits"] = _calls(directory, gate, "", payments[:1]), gateway.pid
    return sides


def measure() -> Result:
    """`ours`: calls behind a commit. Processor time of a call at each side, and ratios, in the further fields."""
    with ExitStack() as stack:
        running = stack.enter_context(scene())
        sides = sides_of(stack, running)
        running.gateway.rest()
        rate = rates("floor", sides, ROUNDS, ROUND_SECONDS)
    also: dict[str, float | str] = {f"{name}_us": 1e6 / one for name, one in rate.items()}
    for name, one in rate.items():
        also[f"{name}_ratio"] = one / rate["secure_proxy" if name.startswith("secure_") else "proxy"]
    unit = "calls per second of processor time"
    return Result("floor", rate["commit"], rate["proxy"], rate["commit"] / rate["proxy"], unit, ROUNDS, also)
