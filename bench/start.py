"""`start`: how long `tollkeeper serve` takes to its first 200 on /healthz, and what memory it holds at rest.

The configuration is what `tollkeeper init` writes, its node the sandbox's chain in a process of its own. Every start is
a new process and ends before the next; the first ones also make the database and are not counted. The time runs from
before the process is made. The reference is not a program but the limits that are set: 1 s, and 120 MB resident.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from bench.measuring import Result, cores, pinned, say
from bench.processes import STOP_TIMEOUT_SECONDS, serving
from tests.ports import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMIT_SECONDS: Final = 1.0
LIMIT_MB: Final = 120.0
RUNS: Final = 7
UNCOUNTED: Final = 2
GIVE_UP_SECONDS: Final = 20.0
REST_SECONDS: Final = 1.5
COMMAND: Final = Path(sys.executable).with_name("tollkeeper")


def measure() -> Result:
    """The median start, and the resident memory of the last one after a rest."""
    server_core, other_core = cores()
    seconds: list[float] = []
    sizes_mb: list[float] = []
    with (
        tempfile.TemporaryDirectory(prefix="tollkeeper-bench-") as directory,
        serving("embedded_node", other_core) as node,
    ):
        port = free_port()
        command = [str(COMMAND), "init", "--dir", directory, "--rpc-url", node.url, "--port", str(port)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        config = Path(directory) / "tollkeeper.toml"
        for number in range(UNCOUNTED + RUNS):
            started = time.perf_counter()
            with pinned(server_core):
                process = subprocess.Popen([str(COMMAND), "serve", "--config", str(config)], stderr=subprocess.DEVNULL)
            with stopping(process), pinned(other_core):
                wait_until_healthy(port, process)
                elapsed = time.perf_counter() - started
                if number < UNCOUNTED:
                    continue
                seconds.append(elapsed)
                time.sleep(REST_SECONDS)
                sizes_mb.append(resident_mb(process.pid))
            say(f"start {len(seconds)}/{RUNS}: {elapsed:.3f} s, {sizes_mb[-1]:.1f} MB at rest")
    median, size_mb = statistics.median(seconds), max(sizes_mb)
    also: dict[str, float | str] = {
        "slowest": max(seconds),
        "resident_mb": size_mb,
        "resident_limit_mb": LIMIT_MB,
        "resident_ratio": LIMIT_MB / size_mb,
    }
    return Result("start", median, LIMIT_SECONDS, LIMIT_SECONDS / median, "s", RUNS, also)


def wait_until_healthy(port: int, process: subprocess.Popen[bytes]) -> None:
    """Ask until /healthz answers with 200. Raises: RuntimeError where the process ends, or takes far too long."""
    deadline = time.perf_counter() + GIVE_UP_SECONDS
    while process.poll() is None and time.perf_counter() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=GIVE_UP_SECONDS)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/healthz")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.002)
    message = f"tollkeeper serve does not answer (exit code {process.poll()})"
    raise RuntimeError(message)


@contextlib.contextmanager
def stopping(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the process as an operator would when the block ends."""
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_mb(pid: int) -> float:
    """What a process holds in memory, shared libraries included, in 10^6 bytes."""
    pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
