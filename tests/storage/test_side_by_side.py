"""Units of four programs at once, on one database: as exact as one writer's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines import IS_POSTGRESQL, rows_of
from tests.storage.test_ledger import by_header, spend_together
from tests.storage.test_purchases import NOW_MS, TRUST, Shop
from tollkeeper.core.purchases import Claim, Spend
from tollkeeper.storage import open_database
from tollkeeper.storage.auth import admit
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.purchase_rows import SpendResult

pytestmark = pytest.mark.skipif(not IS_POSTGRESQL, reason="SQLite's file has one writer")


@pytest.fixture
async def shops(tmp_path: Path) -> AsyncIterator[list[Shop]]:
    databases = [open_database(str(tmp_path / "shared.db")) for _ in range(4)]
    yield [Shop(database) for database in databases]
    for database in databases:
        await database.close()


async def test_a_hundred_first_logins_of_one_wallet_make_one_user(shops: list[Shop]) -> None:
    logins = (shops[number % 4].database.run(admit("0x" + "ab" * 20, NOW_MS)) for number in range(100))
    assert len({user.id for user in await asyncio.gather(*logins)}) == 1


async def test_claims_at_once_meet_the_caps_on_trust_exactly(shops: list[Shop]) -> None:
    gate = await shops[0].gate()
    payers = ["0x" + f"{number:02x}" * 20 for number in range(1, 6)]
    claims = (
        shops[number % 4].claim(gate, number, assume_valid=True, payer=payer)
        for number, payer in enumerate(payers * 8, start=1)
    )
    results = await asyncio.gather(*claims)
    assert {result.outcome for result in results} == {Claim.WON}
    trusted = [result.purchase.payer for result in results if result.purchase and result.purchase.assume_valid]
    assert len(trusted) == TRUST.gate.purchases
    assert max(map(trusted.count, trusted)) <= TRUST.payer.purchases


async def test_no_credit_is_taken_by_a_gate_as_it_was_before_an_update(shops: list[Shop], tmp_path: Path) -> None:
    """Commits are compared by the server's own times: whoever waits for an answer here sees nothing of their order."""
    path, gate = tmp_path / "shared.db", await shops[0].gate(100_000)
    for number in range(1, 5):
        await shops[0].bought(gate, number)
    version_of: dict[str, int] = {}
    is_over = False

    async def spend(place: int) -> None:
        shop, ledger, known = shops[place], Ledger(shops[place].database), gate
        shop.calls = place * 1_000_000
        while not is_over:
            spends = [by_header(shop, known, place + 1) for _ in range(4)]
            for asked, told in zip(spends, await spend_together(ledger, spends), strict=True):
                assert isinstance(told, SpendResult)
                if told.outcome is Spend.SPENT:
                    version_of[asked.spend_request.call_id] = known.version
                else:
                    assert told.outcome is Spend.STALE
            found = await shop.gates.by_id(gate.id)
            assert found is not None
            known = found[0]

    spending = [asyncio.create_task(spend(place)) for place in range(4)]
    for version in range(2, 32):
        await asyncio.sleep(0.05)
        await shops[version % 4].gates.update(gate.id, lambda now: replace(now, version=now.version + 1))
    is_over = True
    await asyncio.gather(*spending)
    updated = {
        row["version"]: row["at"]
        for row in rows_of(path, "SELECT version, pg_xact_commit_timestamp(xmin) AS at FROM paygate_versions")
    }
    calls = "SELECT c.key AS id, pg_xact_commit_timestamp(j.xmin) AS at"
    calls += " FROM call_journal j, json_each_text(j.spent::json) c"
    calls += " UNION ALL SELECT id, pg_xact_commit_timestamp(xmin) FROM single_calls"
    taken = [(updated.get(version_of[row["id"]] + 1), row["at"]) for row in rows_of(path, calls)]
    assert len(taken) == len(version_of) > 100
    assert [at for replaced, at in taken if replaced is not None and at > replaced] == []
