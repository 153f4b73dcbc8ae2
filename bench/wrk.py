"""wrk as the load generator of calls: requests that differ from each other, answers counted by their class of status.

It costs a fraction of what the servers under measurement cost, so that one core carries it together with the target;
`load.py` looks at every answer but takes about as much of a core as the gateway. What wrk tells about each answer is
whether its status is below 400, which is enough here: a run in which any answer was of the other class is refused.
"""

from __future__ import annotations

import itertools
import json
import secrets
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.measuring import pinned
from bench.nginx import tool
from bench.variety import AGENTS, THREE, Form

if TYPE_CHECKING:
    from collections.abc import Sequence

CONNECTIONS: Final = 64
_numbers = itertools.count()

# With a pause, requests leave each connection at exponentially distributed intervals (wrk waits whole milliseconds).
_SCRIPT: Final = """\
{requests}
local pause_ms = {pause_ms}
if pause_ms > 0 then
  function init() math.randomseed(tonumber(tostring(wrk.thread):match("0x%x+")) or 1) end
  function delay() return math.floor(-math.log(1 - math.random()) * pause_ms + 0.5) end
end
function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    '{{"answers":%d,"micros":%d,"refused":%d,"broken":%d,"p50":%d,"p99":%d}}\\n',
    summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout,
    latency:percentile(50), latency:percentile(99)))
end
"""
# As `variety.request` makes them: no two are alike, in this run or another.
_VARIED: Final = """\
local heads = {{
{heads}
}}
local agents = {agents}
local number = {first}
function request()
  number = number + 1
  local head = heads[number % #heads + 1]
  local below = number % 3 > 0 and "/item/" .. number or "?page=" .. number
  return head[1] .. below .. head[2] .. agents[number % #agents + 1]
    .. string.format("\\r\\ntraceparent: 00-{run}%016x-%016x-01\\r\\n\\r\\n", number, number)
end"""
_LISTED: Final = """\
local requests = {{
{requests}
}}
local last = 0
function request()
  last = last % #requests + 1
  return requests[last]
end"""


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did."""

    answers: int
    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests from some connections to one server, which `script` makes; all answers are 402s, or none is."""

    url: str
    script: Path
    is_refused: bool

    def run(self, seconds: int, core: int, connections: int = CONNECTIONS) -> Run:
        """One run from `core`. Raises: RuntimeError when an answer is missing or of the wrong class."""
        run, told = self._run(seconds, core, connections)
        if told["broken"] or told["refused"] != told["answers"] * self.is_refused:
            raise RuntimeError(f"{self.url}: not every answer was the expected one: {told}")
        return run

    def tried(self, seconds: int, core: int, connections: int) -> tuple[Run, int]:
        """One run from `core`, and how many of its requests were refused or broken."""
        run, told = self._run(seconds, core, connections)
        return run, told["refused"] + told["broken"]

    def _run(self, seconds: int, core: int, connections: int) -> tuple[Run, dict[str, int]]:
        command = [tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s"]
        with pinned(core):
            done = subprocess.run(
                [*command, "-s", str(self.script), self.url], check=True, capture_output=True, text=True
            )
        told = json.loads(done.stdout.splitlines()[-1])
        rate = told["answers"] / told["micros"] * 1e6
        return Run(told["answers"], rate, told["p50"] / 1000, told["p99"] / 1000), told


def varied(
    directory: Path,
    url: str,
    payments: Sequence[str] = ("",),
    form: Form = THREE,
    *,
    is_refused: bool = False,
    pause_ms: float = 0,
) -> Calls:
    """Calls of `url` that differ from each other, with these payments in turn; all are to be refused, or none."""
    heads = (form.head(url, "GET", payment, b"") for payment in payments)
    requests = _VARIED.format(
        heads=",\n".join("{" + ", ".join(map(json.dumps, head)) + "}" for head in heads),
        agents="{" + ", ".join(map(json.dumps, AGENTS)) + "}",
        first=secrets.randbelow(10**8),
        run=secrets.token_hex(8),
    )
    return _calls(directory, url, requests, is_refused=is_refused, pause_ms=pause_ms)


def listed(directory: Path, url: str, requests: Sequence[bytes], *, pause_ms: float = 0) -> Calls:
    """These requests in turn."""
    quoted = ",\n".join(json.dumps(request.decode("ascii")) for request in requests)
    return _calls(directory, url, _LISTED.format(requests=quoted), is_refused=False, pause_ms=pause_ms)


def _calls(directory: Path, url: str, requests: str, *, is_refused: bool, pause_ms: float) -> Calls:
    parts = urlsplit(url)
    script = directory / f"calls-{next(_numbers)}.lua"
    script.write_text(_SCRIPT.format(requests=requests, pause_ms=pause_ms))
    return Calls(f"{parts.scheme}://{parts.netloc}", script, is_refused)
