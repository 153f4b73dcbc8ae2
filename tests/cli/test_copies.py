"""An installation moves from SQLite to PostgreSQL, and PostgreSQL's backups come back, each to the last row."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, Site, scene
from tests.engines import PostgresqlServer, programs, said_to
from tests.storage.s3_server import access_to, s3_server
from tollkeeper.storage.postgresql import copy as copies
from tollkeeper.storage.sqlite.file import create_file
from tollkeeper.storage.urls import back_up, move, open_database

MOVE: Final = "import sys; from tollkeeper.storage.urls import move; move(*sys.argv[1:])"


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    made = PostgresqlServer(programs())
    for name in ("here", "there"):
        said_to(made.url("postgres"), f"CREATE DATABASE {name}")
    yield made
    made.stop()


def content(file: Path) -> dict[str, list[str]]:
    """The rows of every table but the schema's history."""
    with closing(sqlite3.connect(file)) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        kept = [name for name in names if not name.startswith("sqlite_") and name != "schema_migrations"]
        return {name: sorted(map(repr, connection.execute(f"SELECT * FROM {name}"))) for name in kept}  # noqa: S608 - the schema's


def insert(made: sqlite3.Connection, table: str, **values: object) -> None:
    """A row that has something in every column that needs it."""
    for _, name, kind, is_needed, *_ in made.execute(f"PRAGMA table_info({table})").fetchall():
        if is_needed:
            values.setdefault(name, {"TEXT": "", "BYTEA": b""}.get(kind, 0))
    places = ", ".join("?" for _ in values)
    made.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", [*values.values()])  # noqa: S608 - ours


def migrated(url: str) -> None:
    asyncio.run(open_database(url).close())


async def done(site: Site, *words: str | Path) -> str:
    """What a command that succeeds says."""
    ended = await asyncio.to_thread(finished, *words, "--config", site.config, environ=site.environ, is_forked=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


async def test_a_killed_installation_moves_to_a_server_and_its_backups_come_back_to_either_engine(
    tmp_path: Path, embedded_chain: ChainUnderTest, server: PostgresqlServer
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as town:
        gate = await town.gate(credits=5)
        payment, bought = await town.buy(gate)
        assert bought.status == 200, bought.body
        await town.buyer.call(gate["url"], payment)
        site, file = town.site, town.site.database
        runs = await asyncio.to_thread(finished, "db", "copy", server.url("here"), "--config", site.config)
        assert (runs.returncode, "is in use by process" in runs.stderr) == (3, True)
        os.kill(town.program.pid, signal.SIGKILL)
        await asyncio.to_thread(town.program.process.process.wait)

        before = await asyncio.to_thread(content, file)
        said = await done(site, "db", "copy", server.url("here"))
        assert f"holds all {sum(map(len, before.values())):,} rows" in said
        assert await asyncio.to_thread(content, file) == before
        uncounted = "SELECT relname FROM pg_stat_user_tables WHERE last_analyze IS NULL"
        assert await asyncio.to_thread(said_to, server.url("here"), uncounted) == []
        site.environ["TOLLKEEPER_DATABASE_URL"] = server.url("here")
        moved = tmp_path / "moved.db"
        await done(site, "backup", moved)
        assert (await asyncio.to_thread(content, moved), moved.stat().st_mode & 0o777) == (before, 0o600)

        with site.serving() as program:
            later = Scene(site, program, town.target, town.buyer, embedded_chain)
            held = embedded_chain.balance(town.buyer.wallet.address)
            again = await town.buyer.call(f"{program.url}/{gate['slug']}", payment)
            assert (again.status, embedded_chain.balance(town.buyer.wallet.address)) == (200, held), again.body
            second = await later.gate(credits=2)
            assert second["id"] > gate["id"]
            kept, spent = await later.buy(second)
            assert spent.status == 200, spent.body
            beside = tmp_path / "beside.db"
            await done(site, "backup", beside)
        assert "the books agree" in await done(site, "db", "check", "--no-chain")

        refused = await asyncio.to_thread(finished, "restore", beside, "--config", site.config, environ=site.environ)
        assert (refused.returncode, "name an empty database" in refused.stderr) == (3, True), refused.stderr
        for url in (server.url("there"), f"sqlite:///{tmp_path}/again.db"):
            site.environ["TOLLKEEPER_DATABASE_URL"] = url
            await done(site, "restore", beside)
            back = tmp_path / f"{len(url)}.db"
            await done(site, "backup", back)
            assert await asyncio.to_thread(content, back) == await asyncio.to_thread(content, beside)
            with site.serving() as program:
                answer = await town.buyer.call(f"{program.url}/{second['slug']}", kept)
                assert answer.status == 200, answer.body


async def test_sold_files_move_to_a_bucket_go_on_where_they_were_cut_off_and_what_is_lost_is_named(
    tmp_path: Path, embedded_chain: ChainUnderTest, server: PostgresqlServer
) -> None:
    async with scene(tmp_path / "home", embedded_chain) as town, aiohttp.ClientSession() as http:
        site, url = town.site, town.program.url
        bearer = {"Authorization": f"Bearer {await town.buyer.login(url)}"}
        contents, slugs = {"long": b"almanac" * 500_000, "lost": b"x" * 9}, {}
        for name, content_of in contents.items():
            form = aiohttp.FormData({"price": "0.01", "resourceType": "file"})
            form.add_field("file", BytesIO(content_of), filename=name, content_type="text/plain")
            async with http.post(f"{url}/api/v1/paygates", data=form, headers=bearer) as created:
                slugs[name] = (await created.json())["slug"]
        town.program.process.process.terminate()
        assert await asyncio.to_thread(town.program.process.exit_code) == 0
        objects = site.database.parent / "files" / "objects"
        (long,) = (one for one in objects.iterdir() if one.stat().st_size > 9)
        for one in objects.iterdir():
            if one != long:
                one.unlink()
        with s3_server("sold") as store:
            site.environ |= access_to(store)
            words = ("--files", "s3://sold/files")
            nowhere = ("db", "copy", server.url("here"), "--files", "s3://nowhere", "--config", site.config)
            refused = await asyncio.to_thread(finished, *nowhere, environ=site.environ, is_forked=False)
            assert (refused.returncode, "no database was copied" in refused.stderr) == (1, True), refused.stderr
            said = await done(site, "db", "copy", server.url("here"), *words)
            assert "s3://sold/files has 1 of 2 files" in said
            assert "(lost)" in said
            async with http.delete(f"{store}/sold/files/{long.name}/00000002"):  # as where it was cut off
                pass
            await done(site, "db", "copy", server.url("there"), *words)
            site.environ |= {"TOLLKEEPER_DATABASE_URL": server.url("there"), "TOLLKEEPER_FILES": "s3://sold/files"}
            with site.serving() as program:
                _, bought = await town.buy({"url": f"{program.url}/{slugs['long']}"})
                assert bought.status == 200, bought.body
                async with http.get(bought.json()["downloadUrl"]) as download:
                    assert await download.read() == contents["long"]


def test_a_row_that_comes_out_different_is_told_and_nothing_is_copied(tmp_path: Path, server: PostgresqlServer) -> None:
    file, url = tmp_path / "small.db", server.url("here")
    with closing(create_file(file)) as made:
        made.executemany("INSERT INTO settled_assets VALUES (?, ?, '{}')", [(f"n{i}", "x") for i in range(9)])
    copies.put_back(server.url("there"), file)  # brings no other schema than this one has
    copies.back_up(server.url("there"), tmp_path / "same.db")
    assert content(tmp_path / "same.db") == content(file)
    with pytest.raises(Exception, match="holds something already"):
        copies.put_back(server.url("there"), file)
    migrated(url)
    said_to(
        url, "CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.shown := 'y'; RETURN NEW; END $$"
    )
    said_to(url, "CREATE TRIGGER spoils BEFORE INSERT ON settled_assets FOR EACH ROW EXECUTE FUNCTION spoil()")
    with pytest.raises(Exception, match="settled_assets came out different"):
        copies.put_back(url, file)
    assert said_to(url, "SELECT count(*) AS n FROM settled_assets") == [{"n": 0}]


def test_what_a_copied_state_has_under_way_is_of_dead_programs_and_ended_tokens_stay_ended(
    tmp_path: Path, server: PostgresqlServer
) -> None:
    file, url = tmp_path / "data.db", server.url("here")
    with closing(create_file(file)) as made:
        made.execute("PRAGMA foreign_keys = OFF")
        calls = [(f"{'0' * 12}{mark}", state) for mark, state in (("single00", "DISPATCHED"), ("ended000", "DONE"))]
        made.executemany("INSERT INTO single_calls VALUES (?, 'p-1', ?, NULL, 1, NULL)", calls)
        made.execute("INSERT INTO open_calls VALUES ('journal0-ledger', 1, '[]', NULL)")
        uploads = [("f-1", "upload00", 0), ("f-2", "cut00000", 1)]
        made.executemany("INSERT INTO uploads VALUES (?, ?, 1, ?)", uploads)
        made.execute("INSERT INTO revoked_keys VALUES ('k-1')")
        insert(made, "paygates", id=1, version=1, price_micro=1, credits=1)
        insert(made, "purchases", id="p-1", gate_id=1, price_micro=1, credits=1, attempt=1)
    copies.put_back(url, file)
    dead = said_to(url, "SELECT mark, beat_ms FROM nodes ORDER BY mark")
    assert dead == [{"mark": mark, "beat_ms": 0} for mark in ("journal0", "single00", "upload00")]
    copies.back_up(url, tmp_path / "again.db")
    assert content(tmp_path / "again.db")["revoked_keys"] == ["('k-1',)"]


def test_a_copy_that_is_cut_off_begins_again(tmp_path: Path, server: PostgresqlServer) -> None:
    file, url = tmp_path / "data.db", server.url("here")
    with closing(create_file(file)) as made:
        made.executemany("INSERT INTO users VALUES (?, ?, 1, 1)", [(i, f"w{i}") for i in range(1, 20_000)])
        made.execute("INSERT INTO leases VALUES ('last', 'somebody', 1)")
    migrated(url)
    held = asyncio.run(_cut_off(url, file))
    assert held > 0
    assert said_to(url, "SELECT count(*) AS n FROM users") == [{"n": 0}]
    assert move(str(file), url) == 20_000
    assert back_up(url, tmp_path / "same.db") > 0
    assert content(tmp_path / "same.db") == content(file)


async def _cut_off(url: str, file: Path) -> int:
    """Kill a copy while it waits for its last table; return how many rows it had sent by then."""
    import asyncpg  # noqa: PLC0415 - only this engine's tests need it

    holder = await asyncpg.connect(url)
    try:
        await holder.execute("BEGIN")
        await holder.execute("LOCK TABLE leases IN EXCLUSIVE MODE")
        copying = await asyncio.create_subprocess_exec(sys.executable, "-c", MOVE, str(file), url)
        waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
        for _ in range(1200):
            if await holder.fetchval(waiting):
                break
            assert copying.returncode is None
            await asyncio.sleep(0.1)
        sent: int = await holder.fetchval("SELECT pg_relation_size('users')")
        copying.kill()
        await copying.wait()
        await holder.execute("COMMIT")
    finally:
        await holder.close()
    return sent
