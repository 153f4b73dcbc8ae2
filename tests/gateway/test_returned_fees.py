"""What becomes of a fee that was given back, by what the hub tells of its transfer later (contract 8)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.hostile_hub import run_hostile_hub, says
from tests.storage.test_purchases import HEADER, NOW_MS, Shop, key
from tollkeeper.core.purchases import FIRST_LOOK_MS, FOLLOWED_MS, Spend
from tollkeeper.core.transactions import UNKNOWN_PAYMENT
from tollkeeper.core.wire import PaymentKey
from tollkeeper.gateway.hub_client import HubClient, Supported
from tollkeeper.gateway.returned_fees import ReturnedFees
from tollkeeper.gateway.transports import HttpTransport
from tollkeeper.storage import open_database
from tollkeeper.storage.database import Statement, Unit
from tollkeeper.storage.invariants import owed_fees
from tollkeeper.storage.purchase_rows import SpendRequest
from tollkeeper.storage.snapshot import open_snapshot

FAILED_IN = "0x" + "fa" * 32
TRANSFER = PaymentKey("base-sepolia", "0x" + "11" * 20, "0x" + "22" * 20, "0x" + "33" * 32)
UNKNOWN = {"error": {"type": "validation", "code": "NOT_FOUND", "message": UNKNOWN_PAYMENT}}


def told(status: str, transaction: str = FAILED_IN) -> dict[str, Any]:
    return {"status": status, "transaction": transaction, "updatedAt": "2026-01-01T00:00:00.000Z"}


@pytest.mark.parametrize(
    ("answer", "is_kept_at_first", "is_kept_for_long", "is_owed"),
    [
        (told("failed"), True, False, False),
        (UNKNOWN, True, False, False),
        (told("pending"), True, True, False),
        (told("success"), True, True, True),
        (told("success", "0x" + "ab" * 32), False, False, False),  # another attempt's, which has a fee of its own
        ({**told("success", "0x" + "ab" * 32), "isOfKey": False}, False, False, False),
        ({**told("success", "0x" + "ab" * 32), "isOfKey": True}, True, True, True),
    ],
    ids=["failed", "forgotten", "pending", "made", "made by another", "made by another's", "made by what replaced it"],
)
async def test_a_fee_is_owed_where_the_very_transaction_that_failed_was_made(
    tmp_path: Path, answer: dict[str, Any], *, is_kept_at_first: bool, is_kept_for_long: bool, is_owed: bool
) -> None:
    database, now_ms = open_database(str(tmp_path / "gateway.db")), 1_000_000_000
    ours = Supported({}, confirms=True, is_ours=True, signers=frozenset())
    async with run_hostile_hub("http://127.0.0.1:1") as hub:
        client = HubClient(HttpTransport(hub.url), lambda *_: {})
        returned = ReturnedFees(database, client, lambda: ours, lambda: now_ms)

        async def kept() -> list[bool]:
            rows = await database.read(Statement("SELECT made_ms FROM returned_fees"))
            return [row["made_ms"] is not None for row in rows]

        try:
            await returned.keep("fee-a-1", TRANSFER, FAILED_IN)
            await returned.look_again()
            assert await kept() == [False]  # it is not due
            hub.telling = says(404 if answer is UNKNOWN else 200, json.dumps(answer))
            now_ms += FIRST_LOOK_MS
            await returned.look_again()
            assert await kept() == [is_owed] * is_kept_at_first
            now_ms += FOLLOWED_MS
            await returned.look_again()
            assert await kept() == [is_owed] * is_kept_for_long
            now_ms -= 2 * FOLLOWED_MS  # a clock that was put back delays nothing
            hub.telling = says(200, json.dumps(told("success")))
            await returned.look_again()
            assert await kept() == [True] * is_kept_for_long
        finally:
            await client.close()
            await database.close()


async def test_a_fee_is_owed_only_while_no_other_call_of_its_pair_is_charged(tmp_path: Path) -> None:
    """Whoever asks for the same pair again is charged again, and given that back, too, where it is refused."""
    path = str(tmp_path / "gateway.db")
    database, now_ms = open_database(path), NOW_MS
    ours = Supported({}, confirms=True, is_ours=True, signers=frozenset())

    def look_now() -> Unit[None]:
        yield Statement("UPDATE returned_fees SET follow_ms = 1 WHERE follow_ms IS NOT NULL")

    shop = Shop(database)
    gate = await shop.gate(9)
    await shop.bought(gate)

    async def charge(call_id: str) -> None:
        wish = SpendRequest(gate.id, gate.version, HEADER, call_id)
        assert (await shop.purchases.spend(key(1), wish, now_ms)).outcome is Spend.SPENT

    async with run_hostile_hub("http://127.0.0.1:1") as hub:
        client = HubClient(HttpTransport(hub.url), lambda *_: {})
        returned = ReturnedFees(database, client, lambda: ours, lambda: now_ms)
        hub.telling = says(200, json.dumps(told("success")))

        async def kept_and_listed() -> tuple[list[bool], int]:
            await database.run(look_now())
            await returned.look_again()
            rows = await database.read(Statement("SELECT made_ms FROM returned_fees"))
            with open_snapshot(path) as snapshot:
                return [row["made_ms"] is not None for row in rows], len(owed_fees(snapshot, now_ms))

        try:
            await charge("fee-ab12-1")
            await charge("fee-ab1-1")  # of another pair
            await returned.keep("fee-ab12-1", TRANSFER, FAILED_IN)
            await shop.purchases.restore("fee-ab12-1", 400, now_ms)
            await charge("fee-ab12-10")
            assert await kept_and_listed() == ([False], 0)
            await shop.purchases.restore("fee-ab12-10", 400, now_ms)
            assert await kept_and_listed() == ([True], 1)
            await charge("fee-ab12-11")
            assert await kept_and_listed() == ([True], 0)
            await returned.keep("fee-ab12-10", TRANSFER, FAILED_IN)
            await shop.purchases.end_calls({"fee-ab12-11": 200}, now_ms)
            assert await kept_and_listed() == ([True], 0)
        finally:
            await client.close()
            await database.close()
