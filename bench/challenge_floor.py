"""`challenge-floor`: where the processor time of a 402 goes, step by step, beside nginx in the same run.

Servers of one method each on the gateway's event loop and core (`servers.unpaid`): one answers without reading, one
reads heads by llhttp, one knows them by their bytes, one does besides what no 402 goes without. Their answers per
second of processor time, divided by those of nginx for a static file of the same size, bound `challenge` from above on
this machine; what the program takes beyond the last of them is its own. The program stands beside them.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from bench.measuring import Result, cores
from bench.processes import serving
from bench.scene import rates, scene
from bench.wrk import calls, request

if TYPE_CHECKING:
    from bench.scene import Scene
    from bench.wrk import Calls

ROUNDS: Final = 9
ROUND_SECONDS: Final = 1
STEPS: Final = ("answer", "parsed", "known", "counted")


def measure() -> Result:
    """`ours`: 402s of the program per second of processor time. Microseconds of all in the further fields."""
    with ExitStack() as stack:
        rate = rates("challenge-floor", _sides(stack, stack.enter_context(scene())), ROUNDS, ROUND_SECONDS)
    also: dict[str, float | str] = {f"{name}_us": 1e6 / one for name, one in rate.items()}
    also |= {f"{name}_ratio": rate[name] / rate["static"] for name in STEPS}
    unit = "402s per second of processor time"
    ours, static = rate["challenge"], rate["static"]
    return Result("challenge-floor", ours, static, ours / static, unit, ROUNDS, also)


def _sides(stack: ExitStack, running: Scene) -> dict[str, tuple[Calls, int]]:
    """What is called, and the process that answers. All get the request that the gateway gets, to a host of theirs."""
    gate = running.gateway.gate(running.target + "/small")
    size_bytes = len(running.gateway.challenge(gate).body)
    url, nginx_pid = stack.enter_context(running.reference(size_bytes))
    sides = {"static": (calls(running.directory, url, [request(url + "/challenge")]), nginx_pid)}
    for step in STEPS:
        server = stack.enter_context(serving("unpaid", cores()[0], step, str(size_bytes)))
        sides[step] = calls(running.directory, server.url, [request(server.url + "/gate")], refused_share=1), server.pid
    sides["challenge"] = calls(running.directory, gate, [request(gate)], refused_share=1), running.gateway.pid
    return sides
