"""Starts a process of the benchmarks on one core for as long as a block lasts, and stops that very process."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bench.measuring import pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_TIMEOUT_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Running:
    """A process that serves: its id, and what it said about itself."""

    pid: int
    said: dict[str, Any]

    @property
    def url(self) -> str:
        """Where it listens."""
        url: str = self.said["url"]
        return url


@contextmanager
def serving(module: str, core: int, *arguments: str) -> Iterator[Running]:
    """A module of `bench.servers` as a process pinned to `core`. Raises: RuntimeError when it does not start."""
    command = [sys.executable, "-m", f"bench.servers.{module}", *arguments]
    with pinned(core):
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                message = f"bench.servers.{module} did not start"
                raise RuntimeError(message)
            yield Running(process.pid, json.loads(line))
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
