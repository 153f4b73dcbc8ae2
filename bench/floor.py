"""`floor`: what a gateway on this event loop could reach at most, beside nginx in the same run.

Three servers that do nothing but what no gateway can leave out (`servers.bare`): answer without reading; pass bytes on;
pass them on behind a durable commit of one row for all that came at once. Their rates per second of processor time,
divided by nginx's (a static file, `proxy_pass`), bound `challenge` and `held-credits` from above on this machine: no
head is read, no payment matched, no credit looked at, no call recorded, no receipt written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.gateway import family_cpu_seconds
from bench.measuring import Result, cores, say
from bench.processes import serving
from bench.scene import ROUND_SECONDS, ROUNDS, scene
from bench.wrk import calls, request

if TYPE_CHECKING:
    from pathlib import Path

    from bench.wrk import Calls

BODY_BYTES = 709  # of a 402 as `challenge` measures it
PAYMENT = "x" * 900  # about as long as one


def _calls(directory: Path, url: str, path: str, *, refused_share: float = 0) -> Calls:
    return calls(directory, url, [request(url + path, X_Payment=PAYMENT)], refused_share=refused_share)


def measure() -> Result:
    """`ours`: calls behind a commit. Ratios of processor time in the further fields, of the others too."""
    server_core, load_core = cores()
    with scene() as running, running.reference(BODY_BYTES) as (url, nginx_pid):
        port, file = str(running.target_port), str(running.directory / "floor.db")
        with (
            serving("bare", server_core, "answer", str(BODY_BYTES)) as answering,
            serving("bare", server_core, "relay", port) as relaying,
            serving("bare", server_core, "commit", port, file) as committing,
        ):
            sides = {
                "static": (_calls(running.directory, url, "/challenge"), nginx_pid),
                "answer": (_calls(running.directory, answering.url, "/", refused_share=1), answering.pid),
                "proxy": (_calls(running.directory, url, "/small"), nginx_pid),
                "relay": (_calls(running.directory, relaying.url, "/small"), relaying.pid),
                "commit": (_calls(running.directory, committing.url, "/small"), committing.pid),
            }
            spent = {name: [0, 0.0] for name in sides}
            for number in range(ROUNDS + 1):
                for name, (one, pid) in sides.items():
                    before = family_cpu_seconds(pid)
                    run = one.run(ROUND_SECONDS, load_core)
                    if number:  # the first round warms up
                        spent[name][0] += run.answers
                        spent[name][1] += family_cpu_seconds(pid) - before
                say(f"floor {number}/{ROUNDS}")
    rate = {name: answers / seconds for name, (answers, seconds) in spent.items()}
    also: dict[str, float | str] = {f"{name}_us": 1e6 / one for name, one in rate.items()}
    also["answer_ratio"] = rate["answer"] / rate["static"]
    also["relay_ratio"] = rate["relay"] / rate["proxy"]
    unit = "calls per second of processor time"
    return Result("floor", rate["commit"], rate["proxy"], rate["commit"] / rate["proxy"], unit, ROUNDS, also)
