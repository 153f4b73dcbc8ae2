"""A process killed amid spends and grants: what was answered stands, nothing is there twice or by halves."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.books import purchases_and_calls
from tests.engines import IS_POSTGRESQL, rows_of, url_of, wait_for_the_killed
from tests.faults.counts import PROPERTY
from tests.storage.test_purchases import Shop
from tollkeeper.storage.urls import open_database

CALLERS = 16
CREDITS = 9999

SPENDER = """
import asyncio, os, sys
import uvloop
from tests.storage.test_purchases import HEADER, NOW_MS, Shop, key
from tollkeeper.core.purchases import Spend
from tollkeeper.storage.urls import open_database
from tollkeeper.storage.ledger.ledger import HeldSpend, Ledger
from tollkeeper.storage.ledger.purchase_rows import SpendRequest

async def main(path, run):
    database = open_database(path)
    shop = Shop(database)
    ledger = Ledger(database)
    gate, _ = await shop.gates.by_id(1)
    calls = 0

    def go_on(caller):
        nonlocal calls
        calls += 1
        call_id = f"{run}-{calls}"

        def answered(result):
            assert result.outcome is Spend.SPENT, result
            os.write(1, f"call {call_id}\\n".encode())
            go_on(caller)

        spend_request = SpendRequest(1, gate.version, HEADER, call_id)
        ledger.spend(HeldSpend(key(1 + caller % 3), None, spend_request), NOW_MS, answered)

    for caller in range(CALLERS):
        go_on(caller)
    number = 1000 * (run + 1)
    while True:
        number += 1
        purchase = await shop.bought(gate, number)
        os.write(1, f"bought {purchase.id}\\n".encode())
        await asyncio.sleep(0.001)

uvloop.run(main(sys.argv[1], int(sys.argv[2])))
""".replace("CALLERS", str(CALLERS))


async def kill_once(path: Path, run: int, after_lines: int) -> list[str]:
    """What a process said to its callers before it was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SPENDER, url_of(path), str(run), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    lines = [await process.stdout.readline() for _ in range(after_lines)]
    process.kill()
    lines += (await process.stdout.read()).splitlines(keepends=True)
    await process.wait()
    wait_for_the_killed(path)
    return [line.decode().strip() for line in lines if line.endswith(b"\n")]


def check(path: Path, told: list[str], runs: int) -> None:
    if not IS_POSTGRESQL:
        assert rows_of(path, "PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    calls = {row["id"] for row in rows_of(path, "SELECT id FROM calls")}
    spends, grants = (
        {row["cause"] for row in rows_of(path, f"SELECT cause FROM credit_entries WHERE reason = '{reason}'")}  # noqa: S608 - ours
        for reason in ("spend", "grant")
    )
    purchases = rows_of(path, purchases_and_calls("state, remaining, granted, calls, total"))
    assert calls == spends
    answered = {line.removeprefix("call ") for line in told if line.startswith("call ")}
    assert answered
    assert answered <= calls
    assert len(calls - answered) <= CALLERS * runs  # committed, and killed before the answer
    assert {line.removeprefix("bought ") for line in told if line.startswith("bought ")} <= grants
    live = [row for row in purchases if row["state"] == "LIVE"]
    assert all(row["remaining"] == row["granted"] - row["calls"] == row["total"] for row in live)


async def kill_many(path: Path, kills: int) -> None:
    database = open_database(str(path))
    shop = Shop(database)
    gate = await shop.gate(CREDITS)
    for number in (1, 2, 3):
        await shop.bought(gate, number)
    await database.close()
    told: list[str] = []
    for run in range(kills):
        told += await kill_once(path, run, random.Random(run).randrange(1, 400))
        check(path, told, run + 1)


@pytest.mark.timeout(600)  # twenty starts, on a machine that may have other work
async def test_kills_lose_no_answered_spend_and_double_none(tmp_path: Path) -> None:
    await kill_many(tmp_path / "db", 20)


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_a_thousand_kills_lose_no_answered_spend_and_double_none(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    for part in range(25):  # of a fresh database each, so that the credits last
        await kill_many(tmp_path / f"db{part}", 40)
        record_property(PROPERTY, {"kill amid spends and grants": 40})
