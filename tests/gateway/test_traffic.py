"""What happened is counted in its hour, once, whenever it is written."""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path
from typing import Final, cast

from structlog.testing import capture_logs

from tests.engines import beside
from tollkeeper.core.http.heads import read_head
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.core.paygates.model import CreateDefaults, parse_create
from tollkeeper.core.paygates.statistics import HOUR_MS, Kept
from tollkeeper.edge.server.call import CallHandler, Connection, InboundCall
from tollkeeper.gateway.traffic import LOGGED_MAX, ROWS_AT_ONCE, Traffic
from tollkeeper.storage.engine.database import Database, StorageError
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.gateway.statistics import Counted, Statistics
from tollkeeper.storage.ledger.purchases import Purchases
from tollkeeper.storage.urls import open_database

NEW: Final = parse_create(
    {"price": "0.01", "targetUrl": "http://target/"}, CreateDefaults("base-sepolia", "0x" + "77" * 20)
)


def request(name: str) -> InboundCall:
    """A request whose id is this."""
    head = read_head(b"GET", b"/slug", "1.1", [(b"host", b"127.0.0.1")])
    call = InboundCall.accepted(cast("Connection", None), cast("CallHandler", None), head, None)
    call.request_id = name
    return call


def opened(directory: Path) -> tuple[Database, PayGates, Purchases]:
    """A new database and what is kept in it."""
    database = open_database(str(directory / "x.db"))
    sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
    return database, PayGates(database, sealing, os.urandom), Purchases(database, sealing)


async def test_calls_that_ended_together_are_all_written(tmp_path: Path) -> None:
    database, gates, purchases = opened(tmp_path)
    gate = await gates.create(NEW, None, None, HOUR_MS)
    traffic = Traffic(purchases, Statistics(database), lambda: HOUR_MS, Kept())
    for number in range(3 * ROWS_AT_ONCE):
        traffic.ended(gate.id, request(f"{number:032x}"), 200, "pur", None, failed=False)
    await traffic.flush()
    await database.close()
    with beside(tmp_path / "x.db") as books:
        assert books.execute("SELECT count(*) FROM requests").fetchone() == (3 * ROWS_AT_ONCE,)


async def test_each_is_counted_in_its_hour_however_writings_fall(tmp_path: Path) -> None:
    database, gates, purchases = opened(tmp_path)
    ids = [(await gates.create(NEW, None, None, 1)).id for _ in range(2)]
    now_ms = 5 * HOUR_MS - 40
    traffic = Traffic(purchases, Statistics(database), lambda: now_ms, Kept())
    chosen = random.Random(4)
    expected: Counter[tuple[int, int]] = Counter()
    for number in range(3 * LOGGED_MAX):
        one = chosen.choice(ids)
        traffic.challenged(one, request(f"r{number}"))
        expected[one, now_ms // HOUR_MS * HOUR_MS] += 1
        now_ms += chosen.random() < 0.05
        if chosen.random() < 0.002:
            await traffic.flush()
        if number % 50 == 0:
            total = sum(count for (gate_id, _), count in expected.items() if gate_id == ids[0])
            written = (await gates.counters(ids[0])).challenges
            assert traffic.unwritten(ids[0])[0] + written == total
    await traffic.flush()
    with beside(tmp_path / "x.db") as connection:
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
    stray = gate.id + 1  # of a gate that is not there
    for number in range(60):
        traffic.challenged(stray if number == 7 else gate.id, request(f"r{number}"))
    traffic.challenged(gate.id, request("\udc80"))  # no text
    with capture_logs() as said:
        await traffic.flush()
    assert [(line["event"], line["count"]) for line in said if line["log_level"] == "error"] == [
        ("request_log_refused", 1),
        ("request_log_refused", 2),
    ]
    assert (traffic.refused_parts, traffic.unwritten(gate.id)) == (3, (0, 0, 0))
    assert (await gates.counters(gate.id)).challenges == 60
    with beside(tmp_path / "x.db") as connection:
        assert connection.execute("SELECT count(*), min(gate_id), max(gate_id) FROM requests").fetchone() == (
            59,
            gate.id,
            gate.id,
        )
        counted = "SELECT sum(requests) FROM traffic_hours WHERE outcome = 'challenged'"
        assert connection.execute(counted).fetchone() == (60,)
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
    for number in range(8):
        traffic.challenged(gate.id, request(f"r{number}"))
    traffic.challenged(gate.id + 1, request("stray"))
    for _ in range(12):
        await traffic.flush()
    assert (traffic.refused_parts, (await gates.counters(gate.id)).challenges) == (2, 8)
    with beside(tmp_path / "x.db") as connection:
        assert connection.execute("SELECT count(*) FROM requests").fetchone() == (8,)
    await database.close()
