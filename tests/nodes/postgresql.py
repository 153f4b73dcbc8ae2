"""A PostgreSQL server that hosts reach, which a test stops, kills and starts again."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import asyncpg

from tests.engines import programs, said_to

_USER: Final[dict[str, Any]] = {"user": "nobody"} if os.geteuid() == 0 else {}
_START_SECONDS: Final = 90.0
_SETTINGS: Final = {
    "fsync": "off",  # processes die here, no machine does
    "max_connections": "200",
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
    "track_commit_timestamp": "on",
}


class Server:
    """One server: `url` is its database's. `folder` has its programs, where they are not the locked ones."""

    def __init__(self, address: str, port: int, folder: Path | None = None) -> None:
        self.address, self.port = address, port
        self.folder = folder or programs()
        self.directory = Path(tempfile.mkdtemp(prefix="tk-nodes-pg-"))
        if _USER:
            shutil.chown(self.directory, _USER["user"])
        self.data = self.directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self.settings = dict(_SETTINGS)

    @property
    def url(self) -> str:
        return f"postgresql://tollkeeper@{self.address}:{self.port}/shared"

    def url_with(self, port: int) -> str:
        """The URL that names this server and another one at its address."""
        return f"postgresql://tollkeeper@{self.address}:{self.port},{self.address}:{port}/shared"

    def make(self) -> None:
        """A new database directory, started, with an empty database."""
        words = ["-D", str(self.data), "-U", "tollkeeper", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C"]
        self.run("initdb", *words)
        with (self.data / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 0.0.0.0/0 trust\nhost replication all 0.0.0.0/0 trust\n")
        self.start()
        said_to(self.url.replace("/shared", "/postgres"), "CREATE DATABASE shared")

    def run(self, program: str, *words: str) -> None:
        """Carry out one of PostgreSQL's programs, as its user."""
        command: list[str | Path] = [self.folder / program, *words]
        subprocess.run(command, check=True, cwd=self.directory, stdout=subprocess.DEVNULL, **_USER)

    def start(self) -> None:
        """Start it, after a kill too: as often as it takes until the last of what was killed has gone."""
        words = [f"-c{name}={value}" for name, value in self.settings.items()]
        words += [f"-clisten_addresses={self.address}", f"-cport={self.port}"]
        command: list[str | Path] = [self.folder / "postgres", "-D", self.data, "-k", str(self.directory), *words]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        deadline = time.monotonic() + _START_SECONDS
        while True:
            self.process = subprocess.Popen(command, cwd=self.directory, **quiet, **_USER)
            while self.process.poll() is None:
                assert time.monotonic() < deadline
                with suppress(OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    said_to(self.url.replace("/shared", "/postgres"), "SELECT 1")
                    return
                time.sleep(0.05)
            assert time.monotonic() < deadline
            time.sleep(0.1)

    def stand_by(self, primary: Server) -> None:
        """Begin anew as a copy of that one, which follows it; started, and as far as it."""
        shutil.rmtree(self.data, ignore_errors=True)
        there = f"postgresql://tollkeeper@{primary.address}:{primary.port}/postgres"
        self.run("pg_basebackup", "-D", str(self.data), "-d", there, "-R", "--checkpoint=fast", "--no-sync")
        self.start()

    def say(self, *statements: str) -> None:
        """Carry out statements that no transaction may hold."""
        for statement in statements:
            said_to(self.url.replace("/shared", "/postgres"), statement)

    def set(self, name: str, value: str) -> None:
        """Change a setting while it runs."""
        self.say(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")

    def send(self, sign: signal.Signals) -> None:
        """Send a signal to the server and to all its children."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with suppress(ProcessLookupError):
                os.kill(pid, sign)

    def kill(self) -> None:
        """End it and all its children at once, as the machine's end would be."""
        assert self.process is not None
        self.send(signal.SIGKILL)
        self.process.wait()
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def stop(self) -> None:
        """End it at once, in order."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(60)

    def remove(self) -> None:
        """End it, and remove what it wrote."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)
