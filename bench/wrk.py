"""wrk as the load generator of calls: prepared requests in turn, answers counted by their class of status.

It costs a fraction of what the servers under measurement cost, so that one core carries it together with the target;
`load.py` looks at every answer but takes about as much of a core as the gateway. What wrk tells about each answer is
whether its status is below 400, which is enough here: a run in which any answer was of the other class is refused.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from bench.measuring import pinned
from bench.nginx import tool

if TYPE_CHECKING:
    from collections.abc import Sequence

CONNECTIONS: Final = 64
_numbers = itertools.count()

# With a pause, requests leave each connection at exponentially distributed intervals (wrk waits whole milliseconds).
_SCRIPT: Final = """\
local requests = {{
{requests}
}}
local pause_ms = {pause_ms}
local last = 0
function request()
  last = last % #requests + 1
  return requests[last]
end
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


@dataclass(frozen=True, slots=True)
class Run:
    """What one run did. `refused` answers had a status of 400 or more."""

    answers: int
    refused: int
    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Calls:
    """Requests in turn from some connections to one server; `script` is the file that holds them."""

    url: str
    script: Path
    refused_share: float

    def run(self, seconds: int, core: int, connections: int = CONNECTIONS) -> Run:
        """One run from `core`. Raises: RuntimeError when an answer is missing or of the wrong class."""
        command = [tool("wrk"), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "20s"]
        with pinned(core):
            done = subprocess.run(
                [*command, "-s", str(self.script), self.url], check=True, capture_output=True, text=True
            )
        told = json.loads(done.stdout.splitlines()[-1])
        answers, refused = told["answers"], told["refused"]
        # Requests leave in turn, but of a mixture the last ones may be unanswered.
        slack = connections if 0 < self.refused_share < 1 else 0
        if told["broken"] or abs(refused - answers * self.refused_share) > slack:
            raise RuntimeError(f"{self.url}: not every answer was the expected one: {told}")
        return Run(answers, refused, answers / told["micros"] * 1e6, told["p50"] / 1000, told["p99"] / 1000)


def calls(
    directory: Path, url: str, requests: Sequence[bytes], *, refused_share: float = 0, pause_ms: float = 0
) -> Calls:
    """These requests, ready to be sent. `refused_share`: of the answers, how many must be 402s."""
    parts = urlsplit(url)
    script = directory / f"calls-{next(_numbers)}.lua"
    quoted = ",\n".join(json.dumps(request.decode("ascii")) for request in requests)
    script.write_text(_SCRIPT.format(requests=quoted, pause_ms=pause_ms))
    return Calls(f"{parts.scheme}://{parts.netloc}", script, refused_share)


def request(url: str, method: str = "GET", body: bytes = b"", **headers: str) -> bytes:
    """A whole request to this URL; header names with _ for -."""
    parts = urlsplit(url)
    lines = [f"{method} {parts.path or '/'} HTTP/1.1", f"Host: {parts.netloc}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("ascii") + body
