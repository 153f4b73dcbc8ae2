"""What was counted is written once, also where nobody knows whether it was (contract 2)."""

from __future__ import annotations

import os
from pathlib import Path

from tests.engines import rows_of
from tollkeeper.core.keys.sealing import KeyRing, Sealing
from tollkeeper.core.paygates.model import CreateDefaults, Trust, parse_create
from tollkeeper.core.paygates.statistics import HOUR_MS, RequestOutcome, Span
from tollkeeper.core.purchases import Terms
from tollkeeper.core.trust import WITHOUT_LIMIT, Exposure, TrustCaps
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.storage.books.invariants import Bounds, inspect
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.gateway.statistics import Counted, LoggedRequest, Statistics, Whose
from tollkeeper.storage.ledger.first_purchase import Paid
from tollkeeper.storage.ledger.purchases import Purchases
from tollkeeper.storage.urls import open_database, open_snapshot

PAYEE = "0x" + "77" * 20
OWNER = "0x" + "55" * 20
LARGEST = 10**18 - 1


def counted(gate_id: int, request_id: str) -> Counted:
    """A call and a challenge."""
    request = LoggedRequest(request_id, gate_id, HOUR_MS, "GET", 200, RequestOutcome.SERVED, None, 1000, None)
    outcomes = {(gate_id, HOUR_MS, RequestOutcome.SERVED): 1, (gate_id, HOUR_MS, RequestOutcome.CHALLENGED): 1}
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
        sums = await statistics.read(Whose(OWNER, gate_id=gate.id), Span(0, 2 * HOUR_MS, HOUR_MS))
        assert sums[HOUR_MS].outcomes == {RequestOutcome.SERVED: 2, RequestOutcome.CHALLENGED: 2}
        found = {
            row["outcome"]: row["requests"] for row in rows_of(path, "SELECT outcome, requests FROM traffic_hours")
        }
        latencies = rows_of(path, "SELECT sum(calls) AS calls FROM latency_hours")[0]["calls"]
        logged = rows_of(path, "SELECT count(*) AS rows FROM requests")[0]["rows"]
        assert (found, latencies, logged) == ({"served": 2, "challenged": 2, "notLogged": 2}, 2, 2)
    finally:
        await database.close()


async def test_sales_that_together_are_worth_more_than_an_integer_are_counted_to_the_micro_unit(tmp_path: Path) -> None:
    """Not of USDC, of which there is not so much, but of a token of one's own."""
    path = tmp_path / "x.db"
    database = open_database(f"sqlite:///{path}")
    try:
        sealing = Sealing(KeyRing("a", {"a": bytes(32)}), os.urandom)
        gates, purchases = PayGates(database, sealing, os.urandom), Purchases(database, sealing)
        statistics = Statistics(database)
        body = {"price": "0.01", "targetUrl": "http://target/", "credits": 3}
        gate = await gates.create(parse_create(body, CreateDefaults("base-sepolia", PAYEE)), OWNER, None, 1)
        terms = Terms(gate.id, gate.version, gate.price_micro, gate.credits, PAYEE, gate.network)
        sold = []
        for number in range(30):
            claim = await purchases.claim(
                PaymentKey(gate.network, "0x" + "11" * 20, "0x" + "22" * 20, f"0x{number:064x}"),
                terms,
                purchase_id=f"pur_{number}",
                paid=Paid(LARGEST, 60, bytes(32)),
                trust=WITHOUT_LIMIT,
                request_of=lambda *_: b"sealed",
                now_ms=HOUR_MS,
            )
            assert claim.purchase is not None
            await purchases.grant(claim.purchase, "0xhash", confirmed=False, spend_request=None, now_ms=HOUR_MS)
            sold.append(claim.purchase)

        async def earned() -> set[int]:
            span = Span(0, 2 * HOUR_MS, HOUR_MS)
            whose = [Whose(OWNER, gate_id=gate.id), Whose(OWNER, owner_wallet=OWNER)]
            read = [(await statistics.read(one, span))[HOUR_MS].revenue_micro for one in whose]
            held = [(await statistics.outstanding(one, HOUR_MS)).value_micro for one in whose]
            return {*read, *held, (await gates.counters(gate.id)).revenue_micro}

        assert await earned() == {30 * LARGEST}
        assert await gates.trust(gate) == Trust(30, 30 * LARGEST)
        for purchase in sold[:20]:
            await purchases.void(purchase, HOUR_MS)
        assert await earned() == {10 * LARGEST}
        assert await gates.trust(gate) == Trust(10, 10 * LARGEST, 20, 20 * LARGEST)
        caps = TrustCaps(Exposure(100, 2**62), Exposure(100, 2**62))
        claim = await purchases.claim(
            PaymentKey(gate.network, "0x" + "11" * 20, "0x" + "22" * 20, "0x" + "ff" * 32),
            terms,
            purchase_id="pur_beyond",
            paid=Paid(gate.price_micro, 60, bytes(32)),
            trust=caps,
            request_of=lambda *_: b"sealed",
            now_ms=HOUR_MS,
        )
        assert claim.purchase is not None
        assert not claim.purchase.assume_valid
        with open_snapshot(f"sqlite:///{path}") as snapshot:
            found = inspect(snapshot, HOUR_MS, Bounds(100, 2**62, 100, 2**62), is_shared=False)
        assert {difference.rule for difference in found.differences} == {
            "i13_a_payers_debt_is_within_the_cap",
            "i13_a_gates_debt_is_within_the_cap",
        }
    finally:
        await database.close()
