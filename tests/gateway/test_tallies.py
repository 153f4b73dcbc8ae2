"""402s that are answered at once are counted by adding to a number: in their hour, once, whenever it is written."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from structlog.testing import capture_logs

from tollkeeper.core.paygates import CreateDefaults, parse_create
from tollkeeper.core.sealing import KeyRing
from tollkeeper.core.statistics import HOUR_MS, Kept
from tollkeeper.gateway.again import CallAgain
from tollkeeper.gateway.traffic import LOGGED_MAX, ROWS_AT_ONCE, Traffic
from tollkeeper.storage import Database, StorageError, open_database
from tollkeeper.storage.paygates import PayGates
from tollkeeper.storage.purchases import Purchases
from tollkeeper.storage.sealing import Sealing
from tollkeeper.storage.statistics import Counted, Statistics

NEW: Final = parse_create(
    {"price": "0.01", "targetUrl": "http://target/"}, CreateDefaults("base-sepolia", "0x" + "77" * 20)
)


@dataclass
class Answers:
    """Answers one gate's requests, as `Access.at_once` does."""

    gate_id: int
    hour_ms: int = 0
    count: int = 0
    is_counting: bool = False
    made_ms: int = -1

    def stop(self) -> None:
        self.made_ms = -1

    def answer(self, traffic: Traffic, now_ms: int, name: str) -> None:
        if self.made_ms != now_ms:
            self.made_ms = now_ms
            traffic.tally(self, now_ms)
        self.count += 1
        traffic.log_at_once(self, name, "GET")


def opened(directory: Path) -> tuple[Database, PayGates, Purchases]:
    """A new database and what is kept in it."""
    database = open_database(str(directory / "x.db"))
    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    return database, PayGates(database, sealing, os.urandom), Purchases(database, sealing)


@dataclass
class Served:
    """A paid call that was answered, as `CallAgain` has it; its own `held`."""

    request_id: str
    standing: tuple[int, int]
    purchase: Any
    status: int = 200
    duration_us: int = 9
    arrived_ms: int = HOUR_MS
    method: str = "GET"

    @property
    def held(self) -> Served:
        return self


async def test_calls_answered_in_one_turn_are_all_written(tmp_path: Path) -> None:
    database, gates, purchases = opened(tmp_path)
    gate = await gates.create(NEW, None, None, HOUR_MS)
    traffic = Traffic(purchases, Statistics(database), lambda: HOUR_MS, Kept())
    numbers = range(3 * ROWS_AT_ONCE)
    calls = [Served(f"{number:032x}", (gate.id, gate.version), SimpleNamespace(id="pur")) for number in numbers]
    traffic.answered_together(cast("list[CallAgain]", calls))
    await traffic.flush()
    await database.close()
    with closing(sqlite3.connect(tmp_path / "x.db")) as books:
        assert books.execute("SELECT count(*) FROM requests").fetchone() == (3 * ROWS_AT_ONCE,)


async def test_each_is_counted_in_its_hour_however_writings_fall(tmp_path: Path) -> None:
    database, gates, purchases = opened(tmp_path)
    ids = [(await gates.create(NEW, None, None, 1)).id for _ in range(2)]
    now_ms = 5 * HOUR_MS - 40
    traffic = Traffic(purchases, Statistics(database), lambda: now_ms, Kept())
    answers = [Answers(ids[0]), Answers(ids[0]), Answers(ids[1])]  # a gate may have answers of several profiles
    chosen = random.Random(3)
    expected: Counter[tuple[int, int]] = Counter()
    for number in range(3 * LOGGED_MAX):
        one = chosen.choice(answers)
        one.answer(traffic, now_ms, f"r{number}")
        expected[one.gate_id, now_ms // HOUR_MS * HOUR_MS] += 1
        now_ms += chosen.random() < 0.05
        if chosen.random() < 0.002:
            await traffic.flush()
        if number % 50 == 0:
            total = sum(count for (gate_id, _), count in expected.items() if gate_id == ids[0])
            written = (await gates.counters(ids[0])).challenges
            assert traffic.unwritten(ids[0])[0] + written == total
        assert traffic.counted_at_once == number + 1
    await traffic.flush()
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        rows = connection.execute("SELECT gate_id, hour_ms, requests FROM traffic_hours WHERE outcome = 'challenged'")
        found = {(gate_id, hour_ms): requests for gate_id, hour_ms, requests in rows}
        ((logged,),) = connection.execute("SELECT count(*) FROM requests").fetchall()
        lost = connection.execute(
            "SELECT gate_id, sum(requests) FROM traffic_hours WHERE outcome = 'notLogged' GROUP BY 1"
        )
        in_log = connection.execute("SELECT gate_id, count(*) FROM requests GROUP BY gate_id")
        told = Counter(dict(lost.fetchall())) + Counter(dict(in_log.fetchall()))
    assert len(expected) == 4
    assert found == expected
    of_gates = {gate_id: sum(count for (one, _), count in expected.items() if one == gate_id) for gate_id in ids}
    assert told == of_gates
    assert traffic.not_logged == 3 * LOGGED_MAX - logged
    assert LOGGED_MAX < logged < 3 * LOGGED_MAX
    await database.close()


async def test_what_the_database_refuses_is_dropped_and_told_and_holds_up_no_other_row_or_count(tmp_path: Path) -> None:
    database, gates, purchases = opened(tmp_path)
    gate = await gates.create(NEW, None, None, 1)
    traffic = Traffic(purchases, Statistics(database), lambda: HOUR_MS, Kept())
    good, stray = Answers(gate.id), Answers(gate.id + 1)  # of a gate that is not there
    for number in range(60):
        (stray if number == 7 else good).answer(traffic, HOUR_MS, f"r{number}")
    traffic.log_at_once(good, "\udc80", "GET")  # no text
    with capture_logs() as said:
        await traffic.flush()
    assert [(line["event"], line["count"]) for line in said if line["log_level"] == "error"] == [
        ("request_log_refused", 1),
        ("request_log_refused", 2),
    ]
    assert (traffic.refused_parts, traffic.unwritten(gate.id)) == (3, (0, 0, 0))
    assert (await gates.counters(gate.id)).challenges == 59
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        assert connection.execute("SELECT count(*), min(gate_id), max(gate_id) FROM requests").fetchone() == (
            59,
            gate.id,
            gate.id,
        )
        counted = "SELECT sum(requests) FROM traffic_hours WHERE outcome = 'challenged'"
        assert connection.execute(counted).fetchone() == (59,)
    await database.close()


async def test_what_is_tried_again_after_a_part_of_it_was_refused_is_counted_once(tmp_path: Path) -> None:
    """Nobody knows of the last part alone whether it is written."""
    database, gates, purchases = opened(tmp_path)
    gate = await gates.create(NEW, None, None, 1)

    class Lossy(Statistics):
        """Each writing that stands is told as lost, once."""

        is_lost = False

        async def add(self, counted: Counted, *, is_again: bool = False) -> None:
            await super().add(counted, is_again=is_again)
            self.is_lost = not self.is_lost
            if self.is_lost:
                raise StorageError("the answer was lost")

    traffic = Traffic(purchases, Lossy(database), lambda: HOUR_MS, Kept())
    answers = Answers(gate.id)
    for number in range(8):
        answers.answer(traffic, HOUR_MS, f"r{number}")
    Answers(gate.id + 1).answer(traffic, HOUR_MS, "stray")
    for _ in range(12):
        await traffic.flush()
    assert (traffic.refused_parts, (await gates.counters(gate.id)).challenges) == (2, 8)
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (8,)
    await database.close()
