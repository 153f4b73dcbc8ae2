"""A gate is updated while four programs sell it: nothing is committed by what it was before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import pytest

from tests.engines import rows_of
from tests.exact.conftest import PROGRAMS
from tests.storage.test_ledger import by_header, spend_together
from tests.storage.test_purchases import NOW_MS, Shop
from tollkeeper.core.paygates.model import PayGate
from tollkeeper.core.purchases import Claim, Spend
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.purchase_rows import SpendResult

_MANY = 5_000  # batches
_P99_MS = 100
_BUSY_MS = 1_000  # more, of a machine that has other work

pytestmark = pytest.mark.postgresql_only("SQLite's file has one writer")

# Commits are compared by the server's own times: whoever waits for an answer here sees nothing of their order.
_UPDATES = "SELECT version, pg_xact_commit_timestamp(xmin) AS at FROM paygate_versions"
_CALLS = """SELECT c.key AS id, pg_xact_commit_timestamp(j.xmin) AS at
FROM call_journal j, json_each_text(j.spent::json) c"""
_CLAIMS = "SELECT id, pg_xact_commit_timestamp(xmin) AS at FROM purchases WHERE state = 'CLAIMED'"


@dataclass(slots=True)
class Beside:
    """What four programs did beside updates: by call and claim, the version that it was committed by."""

    path: Path
    gate: PayGate
    version_of: dict[str, int] = field(default_factory=dict)
    batches: int = 0
    grants: int = 0
    update_seconds: list[float] = field(default_factory=list)
    is_over: bool = False

    async def sell(self, shop: Shop, place: int) -> None:
        """Spend in batches, claim and grant, by the gate as it was looked up the last time."""
        ledger, known, batches = Ledger(shop.database), self.gate, 0
        shop.calls = place * 1_000_000
        while not self.is_over:
            spends = [by_header(shop, known, place + 1) for _ in range(4)]
            for asked, told in zip(spends, await spend_together(ledger, spends), strict=True):
                assert isinstance(told, SpendResult)
                if told.outcome is Spend.SPENT:
                    self.version_of[asked.spend_request.call_id] = known.version
                else:
                    assert told.outcome is Spend.STALE
            self.batches += 1
            batches += 1
            if batches % 5 == 0:
                await self._buy(shop, known, place * 1_000_000 + 1_000 + batches, is_granted=batches % 2 == 0)
            found = await shop.gates.by_id(known.id)
            assert found is not None
            known = found[0]

    async def _buy(self, shop: Shop, known: PayGate, number: int, *, is_granted: bool) -> None:
        claim = await shop.claim(known, number)
        if claim.outcome is Claim.STALE:
            return
        assert claim.purchase is not None
        if is_granted:
            await shop.purchases.grant(claim.purchase, "0xhash", confirmed=True, spend_request=None, now_ms=NOW_MS)
            self.grants += 1
        else:
            self.version_of[claim.purchase.id] = known.version

    async def update(self, shops: list[Shop], batches: int) -> None:
        """Update the gate again and again until there were so many batches."""
        version = self.gate.version
        while self.batches < batches or not self.grants:
            await asyncio.sleep(0.02)
            version += 1
            began = perf_counter()
            await shops[version % PROGRAMS].gates.update(
                self.gate.id, lambda now: replace(now, version=now.version + 1)
            )
            self.update_seconds.append(perf_counter() - began)
        self.is_over = True

    def late(self) -> list[str]:
        """Calls and claims that were committed after the update that ended their version."""
        updated = {row["version"]: row["at"] for row in rows_of(self.path, _UPDATES)}
        committed = [row for query in (_CALLS, _CLAIMS) for row in rows_of(self.path, query)]
        found = {row["id"]: row["at"] for row in committed if row["id"] in self.version_of}
        ends = {name: updated.get(self.version_of[name] + 1) for name in found}
        return [name for name, at in found.items() if (end := ends[name]) is not None and at > end]


async def sold_beside_updates(shops: list[Shop], path: Path, batches: int) -> Beside:
    gate = await shops[0].gate(10**7)
    for number in range(1, PROGRAMS + 1):
        await shops[0].bought(gate, number)
    beside = Beside(path, gate)
    selling = [asyncio.create_task(beside.sell(shop, place)) for place, shop in enumerate(shops)]
    await beside.update(shops, batches)
    await asyncio.gather(*selling)
    return beside


@pytest.mark.timeout(900)
@pytest.mark.parametrize("batches", [200, pytest.param(_MANY, marks=pytest.mark.long)])
async def test_nothing_is_committed_by_a_gate_as_it_was_before_an_update(
    open_shops: Callable[..., list[Shop]], tmp_path: Path, capsys: pytest.CaptureFixture[str], batches: int
) -> None:
    beside = await sold_beside_updates(open_shops(is_locked=True), tmp_path / "shared.db", batches)
    assert beside.late() == []
    assert len(beside.version_of) > batches
    seconds = sorted(beside.update_seconds)
    last = seconds[-1 - len(seconds) // 100] * 1_000
    with capsys.disabled():
        print(f"\n{beside.batches} batches, {len(seconds)} updates: p99 of an update's commit {last:.0f} ms")  # noqa: T201
    assert batches < _MANY or last < _P99_MS + _BUSY_MS


@pytest.mark.long
async def test_without_locks_a_commit_by_the_former_gate_is_seen(
    open_shops: Callable[..., list[Shop]], tmp_path: Path
) -> None:
    beside = await sold_beside_updates(open_shops(is_locked=False), tmp_path / "shared.db", 1_000)
    assert beside.late()
