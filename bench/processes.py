"""Starts a process of the benchmarks for as long as a block lasts, and stops that very process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.measuring import pinned

if TYPE_CHECKING:
    from collections.abc import Iterator

STOP_TIMEOUT_SECONDS: Final = 10


@dataclass(frozen=True, slots=True)
class Running:
    """A process that serves: its id, and where it listens."""

    pid: int
    url: str


@contextmanager
def serving(module: str, core: int, *arguments: str) -> Iterator[Running]:
    """A module of `bench.servers` as a process pinned to `core`. Raises: as `started`."""
    with ExitStack() as stack:
        with pinned(core):
            running = stack.enter_context(started(sys.executable, "-m", f"bench.servers.{module}", *arguments))
        yield running


@contextmanager
def started(*command: str, **variables: str) -> Iterator[Running]:
    """A program that says {"url": ...} in its first line; `variables` are added to its environment.

    Raises: RuntimeError when it does not start.
    """
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **variables}) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                message = f"{command[-1]} did not start; is what it needs installed (tests/interop/setup)?"
                raise RuntimeError(message)
            yield Running(process.pid, json.loads(line)["url"])
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
