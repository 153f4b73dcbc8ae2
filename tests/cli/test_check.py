"""`tollkeeper db check`: silent on sound books, also beside a running server; each difference a line (security 5)."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import configured, finished, running
from tests.gateway.composed import composed, settings_for
from tests.node_thread import run_in_thread
from tests.storage.test_invariants import Books
from tollkeeper.sandbox.evm.node import USDC_ADDRESS, EvmNode
from tollkeeper.serving.books import inspection
from tollkeeper.serving.books.inspection import REGISTRY, inspect_books, keep_inspecting
from tollkeeper.serving.books.reconciliation import not_compared
from tollkeeper.settings.model import Role, Settings
from tollkeeper.storage.books import invariants
from tollkeeper.storage.engine.database import Snapshot, Statement
from tollkeeper.storage.urls import open_database


@pytest.fixture(scope="module")
def rpc_url() -> Iterator[str]:
    with run_in_thread(EvmNode()) as node:
        yield node.url


@pytest.fixture
def config(tmp_path: Path, rpc_url: str) -> Path:
    return configured(tmp_path, rpc_url)


@pytest.fixture
async def books(config: Path) -> Books:
    path = config.parent / "data" / "tollkeeper.db"
    path.parent.mkdir(exist_ok=True)
    made = Books(path)
    await made.fill()
    made.break_with("UPDATE purchases SET valid_before_seconds = 9007199254740992")
    made.break_with("UPDATE settlements SET payment = (SELECT payment FROM settlements WHERE id = 's-6')")
    return made


@pytest.mark.parametrize("reach", [(), ("--all",)], ids=["what changed", "all"])
def test_sound_books_agree_and_a_difference_is_a_line_and_an_exit_code(
    config: Path, books: Books, reach: tuple[str, ...]
) -> None:
    sound = finished("db", "check", "--no-chain", "--config", config, *reach)
    assert (sound.returncode, sound.stdout) == (0, "the books agree\n")
    content = books.path.read_bytes()
    books.break_with("UPDATE credits SET remaining = 1", "PRAGMA wal_checkpoint(TRUNCATE)")
    broken = books.path.read_bytes()
    assert broken != content
    found = finished("db", "check", "--no-chain", "--config", config, *reach)
    assert found.returncode == 1
    lines = found.stdout.splitlines()
    assert lines[-1] == f"{len(lines) - 1} differences"
    assert any(line.startswith("i2_remaining_is_the_ledger: pur_") for line in lines)
    assert books.path.read_bytes() == broken


async def test_what_is_under_way_on_a_network_that_was_taken_out_of_the_settings_is_told(
    rpc_url: str, books: Books
) -> None:
    """Nobody carries it on: the operator is to switch the network on again until it is done."""
    settings = settings_for(rpc_url, books.path)
    assert inspect_books(settings) == []
    off = replace(settings, networks={})
    (told,) = inspect_books(off)
    assert (told.rule, told.subject) == ("i10_what_is_under_way_is_looked_after", "base-sepolia")
    assert told.found.startswith("2 under way")
    assert inspect_books(replace(off, role=Role.GATEWAY)) == [], "its hub knows"
    async with inspected(off, books):
        await counted(told.rule, 1)
        books.break_with("DELETE FROM settlements WHERE state NOT IN ('CONFIRMED', 'FAILED')")
        await counted(told.rule, None)


def test_it_works_beside_a_running_server(config: Path) -> None:
    with running("serve", "--config", config, "--port", "0") as process:
        process.wait_for_event("serving")
        without_chain = finished("db", "check", "--no-chain", "--config", config)
        assert (without_chain.returncode, without_chain.stdout) == (0, "the books agree\n")
        with_chain = finished("db", "check", "--config", config)
        assert (with_chain.returncode, with_chain.stdout) == (0, "books and chain agree\n"), with_chain.stderr
        no_node = {"TOLLKEEPER_RPC_URL_BASE_SEPOLIA": "http://127.0.0.1:1"}
        unseen = finished("db", "check", "--config", config, environ=no_node)
        assert (unseen.returncode, "cannot be compared" in unseen.stderr) == (1, True)
        assert process.process.poll() is None


def test_what_was_not_compared_with_the_chain_is_not_said_to_agree(config: Path, books: Books, rpc_url: str) -> None:
    check = ("db", "check", "--chain", "--config", config)
    late = finished(*check, "--since-block", "4000000000")
    assert (late.returncode, "newer than the newest" in late.stderr, late.stdout) == (1, True, "")
    compared = finished(*check, "--network", "base-sepolia", "--since-block", "0")
    assert (compared.returncode, compared.stdout) == (0, "books and chain agree\n")
    no_such = finished(*check, "--network", "base")
    assert (no_such.returncode, "is no network" in no_such.stderr) == (2, True)

    usual = f"UPDATE settlements SET asset = '{USDC_ADDRESS}'"  # noqa: S608 - own text
    books.break_with(usual, "UPDATE purchases SET asset = '0xformer'")
    assert not_compared(settings_for(rpc_url, books.path)) == {}
    assert not_compared(settings_for(rpc_url, books.path, role=Role.GATEWAY)).keys() == {"base-sepolia, 0xformer"}
    books.break_with("UPDATE settlements SET asset = '0xformer' WHERE id = 's-6'")
    told = finished(*check)
    assert "not compared with the chain: base-sepolia, 0xformer, 1 payments" in told.stdout

    config.write_text(config.read_text().replace("rpc_url", "# rpc_url"))
    environ = {"TOLLKEEPER_HUB_URL": "http://127.0.0.1:1", "TOLLKEEPER_DATABASE_URL": f"sqlite:///{books.path}"}
    unseen = finished(*check, "--for", "gateway", environ=environ)
    assert (unseen.returncode, "no node" in unseen.stderr, unseen.stdout) == (1, True, "")
    alone = finished("db", "check", "--config", config, "--for", "gateway", environ=environ)
    assert "cannot be compared" not in alone.stderr


def test_a_hub_has_no_purchase_to_honour_a_payment_by(config: Path) -> None:
    done = finished("payments", "honour", "0x" + "12" * 32, "--gate", "weather", "--for", "hub", "--config", config)
    assert (done.returncode, "its gateway does" in done.stderr) == (2, True)


def test_no_database_is_a_refusal(config: Path) -> None:
    done = finished("db", "check", "--config", config)
    assert done.returncode == 3
    assert "is not there" in done.stderr
    assert "Traceback" not in done.stderr


@asynccontextmanager
async def inspected(settings: Settings, books: Books) -> AsyncIterator[None]:
    """A process that serves looks through its books again and again."""
    database = open_database(str(books.path))
    inspecting = asyncio.create_task(keep_inspecting(settings, database, 0.01))
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        inspecting.cancel()
        await asyncio.gather(inspecting, return_exceptions=True)
        await database.close()


async def counted(rule: str, wanted: int | None) -> None:
    """Until the metric says so."""
    asked = {"rule": rule}
    while REGISTRY.get_sample_value("tollkeeper_differences", asked) != wanted:  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0.01)


async def test_a_serving_process_counts_and_logs_what_differs(
    rpc_url: str, books: Books, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(books.path)) as connection:
        connection.execute("UPDATE single_calls SET state = 'RESTORED' WHERE id = 'call-1'")
        connection.commit()
    rule = "i3_a_restored_call_has_its_credit_back"
    async with inspected(settings_for(rpc_url, books.path), books):
        await counted(rule, 1)
        books.break_with("UPDATE single_calls SET state = 'DISPATCHED' WHERE id = 'call-1'")
        await counted(rule, None)
    assert "books_differ" in capsys.readouterr().out


async def test_everything_is_looked_at_once_a_day_and_after_a_difference_and_else_what_changed(
    rpc_url: str, books: Books
) -> None:
    rule = "counters_are_the_sales"

    async def checked(since: str) -> int:
        """Until one of the last checks began after that; when it did."""
        while True:
            with closing(sqlite3.connect(books.path)) as connection:
                row = connection.execute(f"SELECT changes_ms FROM book_checks WHERE {since}").fetchone()  # noqa: S608
            if row is not None:
                return int(row[0])
            await asyncio.sleep(0.01)

    async with inspected(settings_for(rpc_url, books.path), books):
        await checked("all_ms > 0")
        books.break_with("UPDATE paygate_counters SET revenue_micro = revenue_micro + 1")
        for _ in range(2):
            await checked(f"changes_ms > {await checked('all_ms > 0')}")
        await counted(rule, None)
        while REGISTRY.get_sample_value("tollkeeper_differences", {"rule": rule}) != 2:  # gates
            books.break_with("UPDATE book_checks SET all_ms = 1")  # a check under way writes what it had read
            await asyncio.sleep(0.1)
        books.break_with("UPDATE paygate_counters SET revenue_micro = revenue_micro - 1")
        await counted(rule, None)
        await checked("all_ms > 0")


async def test_who_ends_waits_for_no_check(rpc_url: str, books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    long = Statement(
        "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 300000000) SELECT max(v) FROM n"
    )
    begun, ended = threading.Event(), threading.Event()

    def inspect(snapshot: Snapshot, *_: object, **__: object) -> None:
        begun.set()
        try:
            snapshot.read(long)
        finally:
            ended.set()

    monkeypatch.setattr(inspection, "inspect", inspect)
    async with inspected(settings_for(rpc_url, books.path), books):
        assert await asyncio.to_thread(begun.wait, 10)
    assert await asyncio.to_thread(ended.wait, 5)


async def test_who_is_stopped_in_the_middle_of_a_check_leaves_one_file(
    rpc_url: str, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever copies it then has all of it."""
    long = Statement(
        "WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < 300000000) SELECT max(v) FROM n"
    )
    begun = threading.Event()

    def inspect(snapshot: Snapshot, *_: object, **__: object) -> None:
        begun.set()
        snapshot.read(long)

    monkeypatch.setattr(inspection, "inspect", inspect)
    async with composed(rpc_url, books.path, inspection_seconds=0.01):
        assert await asyncio.to_thread(begun.wait, 10)
    assert not books.path.with_name(books.path.name + "-wal").exists()


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_file_that_a_server_begins_to_write_while_it_is_checked_is_not_called_broken(
    rpc_url: str, books: Books, monkeypatch: pytest.MonkeyPatch, *, goes_on: bool
) -> None:
    """Without a log nobody has the file, and it is read without locks; then its pages change below the check."""
    books.break_with("PRAGMA wal_checkpoint(TRUNCATE)")
    assert not books.path.with_name(books.path.name + "-wal").exists()
    asked = 0
    opened: list[sqlite3.Connection] = []

    def inspect(snapshot: Snapshot, *args: Any, **named: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            snapshot.read(Statement("SELECT count(*) FROM purchases"))
            # As a server does that was started just now: tables that grew and moved, folded into the file.
            database = sqlite3.connect(books.path, check_same_thread=False)
            opened.append(database)
            database.executescript(
                "PRAGMA journal_mode = WAL; UPDATE paygates SET description = printf('%0200000d', 1);"
                "UPDATE paygate_versions SET pay_to = zeroblob(100000); PRAGMA wal_checkpoint(TRUNCATE);"
            )
            if not goes_on:
                database.close()
        return invariants.inspect(snapshot, *args, **named)

    monkeypatch.setattr(inspection, "inspect", inspect)
    assert inspect_books(settings_for(rpc_url, books.path)) == []
    assert asked == 2
    opened[0].close()


# What a process that serves sets up, then a check of its books; its last line is how many bytes larger it was then.
_CHECKS = """
import asyncio, sys
from pathlib import Path
from tests.gateway.composed import composed, settings_for
from tollkeeper.serving.process.machine import set_up_heap
from tollkeeper.serving.books.inspection import keep_inspecting
from tollkeeper.serving.books import inspection
from tollkeeper.storage.urls import open_database

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def main():
    settings, database = settings_for("http://127.0.0.1:1", Path(sys.argv[1])), open_database(sys.argv[1])
    before, sizes = resident_bytes(), []
    counted = inspection.report
    def report(differences):
        counted(differences)
        sizes.append(resident_bytes())
    inspection.report = report
    inspecting = asyncio.create_task(keep_inspecting(settings, database, 0.01))
    while not sizes:
        await asyncio.sleep(0.01)
    inspecting.cancel()
    print(sizes[0] - before)
    await asyncio.gather(inspecting, return_exceptions=True)
    await database.close()

set_up_heap()
asyncio.run(main())
"""


async def test_a_check_of_many_calls_leaves_the_process_as_small_as_it_was(books: Books) -> None:
    spent = [
        json.dumps({f"{row:04}aaaaaaaabbbbbbbb{call:012}": 1 for call in range(50)}, separators=(",", ":"))
        for row in range(2_500)
    ]
    with closing(sqlite3.connect(books.path)) as connection, connection:
        connection.executemany("INSERT INTO call_journal VALUES (NULL, 1, ?, '{}', '[]')", [(one,) for one in spent])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _CHECKS,
        str(books.path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0
    assert int(said.splitlines()[-1]) < 3_000_000
