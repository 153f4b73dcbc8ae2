"""What is older than its days is deleted, also where the database took nothing when that was due."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.engines import commits_of, held
from tests.gateway.test_traffic import request as call_of
from tests.storage.plans import plan_of
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.core.paygates.model import CreateDefaults, parse_create
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS, Kept, RequestOutcome
from tollkeeper.gateway.traffic import Traffic
from tollkeeper.storage.engine.database import Database, Statement, Steps, StorageError, Unit, unit_of_work
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.gateway.statistics import Counted, LoggedRequest, Statistics
from tollkeeper.storage.ledger.purchases import Purchases
from tollkeeper.storage.sqlite import engine as sqlite
from tollkeeper.storage.urls import open_database

NOW_MS = 1_000 * DAY_MS
PAYEE = "0x" + "77" * 20
ENDLESS = Statement("WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n) SELECT max(v) FROM n")


async def logged(database: Database) -> list[str]:
    """The requests that the log has."""
    return [row["id"] for row in await database.read(Statement("SELECT id FROM requests ORDER BY id"))]


def request(gate_id: int, name: str, at_ms: int) -> Counted:
    one = LoggedRequest(name, gate_id, at_ms, "GET", 402, RequestOutcome.CHALLENGED, None, 0, None)
    return Counted({}, {}, {}, [one], {})


async def test_what_could_not_be_deleted_is_told_once_and_deleted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_TIMEOUT_SECONDS", 0.05)
    database = open_database(str(tmp_path / "x.db"))
    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    purchases, gates = Purchases(database, sealing), PayGates(database, sealing, os.urandom)
    statistics = Statistics(database)
    traffic = Traffic(purchases, statistics, lambda: NOW_MS, Kept(log_days=1))
    new = parse_create({"price": "0.01", "targetUrl": "http://target/"}, CreateDefaults("base-sepolia", PAYEE))
    gate = await gates.create(new, None, None, NOW_MS)
    await statistics.add(request(gate.id, "old", NOW_MS - 2 * DAY_MS))
    await statistics.add(request(gate.id, "new", NOW_MS))
    with held(tmp_path / "x.db"), capture_logs() as said:
        running = asyncio.create_task(traffic.run())
        async with asyncio.timeout(30):
            while not said:  # noqa: ASYNC110 - nobody tells of it
                await asyncio.sleep(0.1)
        await asyncio.sleep(1.5)  # it is tried again meanwhile
        assert [(line["event"], line["log_level"]) for line in said] == [("old_requests_not_deleted", "warning")]
    try:
        async with asyncio.timeout(30):
            while await logged(database) != ["new"]:  # noqa: ASYNC110 - a database is asked
                await asyncio.sleep(0.1)
        assert len(said) == 1
    finally:
        running.cancel()
        await database.close()


async def test_much_that_is_old_is_deleted_a_little_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever spends a credit waits for each commit: hours of a busy log in one would be seconds for everybody."""
    database = open_database(str(tmp_path / "x.db"))
    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    purchases, gates = Purchases(database, sealing), PayGates(database, sealing, os.urandom)
    statistics = Statistics(database)
    traffic = Traffic(purchases, statistics, lambda: NOW_MS, Kept(log_days=1, sum_days=1))
    new = parse_create({"price": "0.01", "targetUrl": "http://target/"}, CreateDefaults("base-sepolia", PAYEE))
    gate_id = (await gates.create(new, None, None, NOW_MS)).id
    hours = [NOW_MS - 2 * DAY_MS - number * HOUR_MS for number in range(2500)]
    await statistics.add(
        Counted(
            {},
            {(gate_id, hour_ms, RequestOutcome.SERVED): 1 for hour_ms in [NOW_MS, *hours]},
            {(gate_id, hour_ms, 0): 1 for hour_ms in [NOW_MS, *hours]},
            [*request(gate_id, "new", NOW_MS).requests]
            + [one for hour_ms in hours for one in request(gate_id, str(hour_ms), hour_ms).requests],
            {},
        )
    )

    async def left() -> list[int]:
        tables = ("requests", "traffic_hours", "latency_hours")
        counted = [await database.read(Statement(f"SELECT count(*) AS rows FROM {table}")) for table in tables]  # noqa: S608
        return [rows[0]["rows"] for rows in counted]

    lefts, run = [await left()], database.run

    async def noting(unit: Unit[Any], *, is_short: bool = False) -> Any:
        result = await run(unit, is_short=is_short)
        lefts.append(await left())
        return result

    monkeypatch.setattr(database, "run", noting)
    try:
        async with asyncio.timeout(30):
            while lefts[-1] != [1, 1, 1]:
                await traffic.forget()
        deleted = [sum(before) - sum(after) for before, after in pairwise(lefts)]
        assert max(deleted) <= 1000
        assert sum(deleted) == 3 * 2500
        commits = commits_of(database)
        for _ in range(3):
            await traffic.forget()
        assert commits_of(database) <= commits + 3  # the end was looked for once, and is not for an hour
    finally:
        await database.close()


@pytest.mark.sqlite_only("it reads SQLite's plans")
async def test_the_writer_looks_at_no_gate_for_what_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many gates each piece went through those before its own: whoever spends a credit waited for that."""
    database = open_database(str(tmp_path / "x.db"))
    statistics, run = Statistics(database), database.run
    written: list[Statement] = []

    async def noting(unit: Unit[Any], *, is_short: bool = False) -> Any:
        @unit_of_work
        def noted() -> Steps[Any]:
            steps = iter(unit)
            asked = next(steps)
            with suppress(StopIteration):
                while True:
                    written.append(asked)
                    asked = steps.send((yield asked))
            return []

        return await run(noted(), is_short=is_short)

    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    gates, new = PayGates(database, sealing, os.urandom), {"price": "0.01", "targetUrl": "http://target/"}
    gate = await gates.create(parse_create(new, CreateDefaults("base-sepolia", PAYEE)), None, None, NOW_MS)
    old = Counted({}, {(gate.id, 0, RequestOutcome.SERVED): 1}, {(gate.id, 0, 0): 1}, [], {})
    await statistics.add(old)
    monkeypatch.setattr(database, "run", noting)
    try:
        assert not await statistics.forget(NOW_MS, NOW_MS)
        steps = [step for statement in written for step in await plan_of(database, statement)]
        assert {"traffic_hours", "latency_hours", "requests"} <= {step.split()[1] for step in steps}
        assert not [step for step in steps if step.startswith("SCAN") and "VIRTUAL TABLE" not in step], steps
    finally:
        await database.close()


async def test_what_happens_is_written_while_an_owner_lists_for_as_long_as_it_takes(tmp_path: Path) -> None:
    """What is old is looked for among the lists: counts, rows, and credits that are owed, waited for whoever listed."""
    database = open_database(str(tmp_path / "x.db"))
    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    purchases, gates = Purchases(database, sealing), PayGates(database, sealing, os.urandom)
    traffic = Traffic(purchases, Statistics(database), lambda: NOW_MS, Kept())
    new = parse_create({"price": "0.01", "targetUrl": "http://target/"}, CreateDefaults("base-sepolia", PAYEE))
    gate_id = (await gates.create(new, None, None, NOW_MS)).id
    listing = asyncio.create_task(database.read(ENDLESS, tenant="owner"))
    running = asyncio.create_task(traffic.run())
    try:
        async with asyncio.timeout(30):
            for name in ("a", "b", "c"):
                traffic.challenged(gate_id, call_of(name))
                while name not in await logged(database):  # noqa: ASYNC110 - a database is asked
                    await asyncio.sleep(0.1)
    finally:
        running.cancel()
        await database.close()
        with pytest.raises(StorageError):
            await listing
