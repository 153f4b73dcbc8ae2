"""Running `tollkeeper` as its users do, in a process of its own, and asking it over HTTP."""
# ruff: noqa: S310 - the addresses that are asked are our own

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any, Final

from tests.described_answers import seen
from tests.forked import start
from tests.started import light_environment
from tollkeeper.serving.config.init import initialise, parse_choices
from tollkeeper.settings.sources import FILE_NAME

START_SECONDS: Final = 90  # of a machine that has other work
STOP_SECONDS: Final = 30
FINISHED_SECONDS: Final = 90
_STATES: Final = tempfile.TemporaryDirectory()


@dataclass
class Answer:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    url: str, *, method: str | None = None, body: object = None, headers: Mapping[str, str] | None = None
) -> Answer:
    """One request; a body is sent as JSON."""
    content = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url, content, {"Content-Type": "application/json", **(headers or {})}, method=method
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return _told(request, response.status, response.headers, response.read())
    except urllib.error.HTTPError as refused:
        with refused:
            return _told(request, refused.code, refused.headers, refused.read())


def _told(request: urllib.request.Request, status: int, headers: Message, content: bytes) -> Answer:
    answer = Answer(status, {name.lower(): value for name, value in headers.items()}, content)
    seen(request.get_method(), request.full_url, status, answer.headers, content)
    return answer


def clean_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of Tollkeeper's but those given, and with no user's state."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("TOLLKEEPER_")}
    environment = light_environment(own)
    # No fixed port: many programs run beside each other here.
    fresh = {"TOLLKEEPER_METRICS_ADDRESS": "", "XDG_STATE_HOME": tempfile.mkdtemp(dir=_STATES.name)}
    return {**environment, **fresh, **(extra or {})}


def command(*arguments: str | Path) -> list[str]:
    """The command line of a `tollkeeper` command."""
    return [sys.executable, "-m", "tollkeeper.cli", *map(str, arguments)]


def interruptible(*arguments: str | Path) -> list[str]:
    """The same, to be sent SIGINT: tests in a script's background ignore it, and so would the programs they start."""
    return ["env", "--default-signal=INT", *command(*arguments)]


def finished(
    *arguments: str | Path,
    environ: Mapping[str, str] | None = None,
    is_forked: bool = True,
    seconds: float = FINISHED_SECONDS,
) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself, within so many seconds, with what it wrote."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    words = command(*arguments)
    with start(words, is_forked=is_forked, env=clean_environment(environ), **pipes) as process:
        try:
            said, wrote = process.communicate(timeout=seconds)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, said, wrote)


def configured(
    directory: Path, rpc_url: str | None = None, *, network: str = "base-sepolia", payment_address: str | None = None
) -> Path:
    """The configuration that `tollkeeper init` writes there, with its keys, for tests of what comes after it."""
    initialise(directory, parse_choices(network, rpc_url, "127.0.0.1", 8402, None, payment_address))
    return directory / FILE_NAME


@dataclass
class Running:
    """A process that serves. `wrote` is everything on its standard error so far."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]
    output: list[str] = field(default_factory=list)

    @property
    def wrote(self) -> str:
        return Path(self.log.name).read_text(errors="replace")  # of a letter that is just being written, too

    def lines(self) -> list[dict[str, Any]]:
        """What was logged; of a line that is just being written nothing yet."""
        whole = self.wrote.rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def wait_for_event(self, event: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """The first log line of that event. Raises AssertionError where the process ends or takes too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.lines():
                if line.get("event") == event:
                    return line
            assert self.process.poll() is None, self.wrote
            time.sleep(0.02)
        raise AssertionError(self.wrote)

    def first_line(self) -> str:
        """The first line of standard output; empty when the process ends without one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().decode()
        assert line, self.wrote
        return line

    def exit_code(self) -> int:
        return self.process.wait(STOP_SECONDS)


@contextmanager
def running(
    *arguments: str | Path,
    environ: Mapping[str, str] | None = None,
    under: Sequence[str] = (),
    is_forked: bool = True,
) -> Iterator[Running]:
    """A command that serves until it is told to stop; killed at the end where it has not ended.

    `under` is a command that runs it.
    """
    words, environment = [*under, *command(*arguments)], clean_environment(environ)
    with tempfile.NamedTemporaryFile("wb") as log:
        process = start(words, is_forked=is_forked, stdout=subprocess.PIPE, stderr=log, env=environment)
        with process:
            try:
                yield Running(process, log)
            finally:
                if process.poll() is None:
                    process.kill()
