"""What was counted is written once, also where nobody knows whether it was (contract 2)."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from tollkeeper.core.paygates import CreateDefaults, parse_create
from tollkeeper.core.sealing import KeyRing
from tollkeeper.core.statistics import HOUR_MS, Outcome, Span
from tollkeeper.storage import open_database
from tollkeeper.storage.paygates import PayGates
from tollkeeper.storage.sealing import Sealing
from tollkeeper.storage.statistics import Counted, LoggedRequest, Statistics, Whose

PAYEE = "0x" + "77" * 20


def counted(gate_id: int, request_id: str) -> Counted:
    """A call and a challenge."""
    request = LoggedRequest(request_id, gate_id, HOUR_MS, "GET", 200, Outcome.SERVED, None, 1000, None)
    outcomes = {(gate_id, HOUR_MS, Outcome.SERVED): 1, (gate_id, HOUR_MS, Outcome.CHALLENGED): 1}
    return Counted({gate_id: (1, 1, 0)}, outcomes, {(gate_id, HOUR_MS, 5): 1}, [request], {(gate_id, HOUR_MS): 1})


async def test_a_batch_is_counted_once_whether_its_first_writing_stood_or_not(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    database = open_database(f"sqlite:///{path}")
    try:
        gates = PayGates(database, Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom), os.urandom)
        body = {"price": "0.01", "targetUrl": "http://target/"}
        gate = await gates.create(parse_create(body, CreateDefaults("base-sepolia", PAYEE)), None, None, 1)
        statistics = Statistics(database)
        stood, lost = counted(gate.id, "stood"), counted(gate.id, "lost")
        await statistics.add(stood)
        await statistics.add(stood, is_again=True)  # its answer was lost
        await statistics.add(lost, is_again=True)  # it never came
        counters = await gates.counters(gate.id)
        assert (counters.challenges, counters.calls, counters.failures) == (2, 2, 0)
        assert await statistics.not_logged(gate.id, HOUR_MS) == 2
        assert await statistics.not_logged(gate.id, 2 * HOUR_MS) == 0
        sums = await statistics.read(Whose(gate_id=gate.id), Span(0, 2 * HOUR_MS, HOUR_MS))
        assert sums[HOUR_MS].outcomes == {Outcome.SERVED: 2, Outcome.CHALLENGED: 2}
        with closing(sqlite3.connect(path)) as connection:
            found = dict(connection.execute("SELECT outcome, requests FROM traffic_hours").fetchall())
            (latencies,) = connection.execute("SELECT sum(calls) FROM latency_hours").fetchone()
            (logged,) = connection.execute("SELECT count(*) FROM requests").fetchone()
        assert (found, latencies, logged) == ({"served": 2, "challenged": 2, "notLogged": 2}, 2, 2)
    finally:
        await database.close()
