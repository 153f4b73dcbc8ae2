"""One of the programs that play units of every kind on the purchases that they share, told by its command line.

It prints what came of it: how many units, of how many kinds, how many were begun anew, and what failed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import sys
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from tests.storage.test_ledger import spend_together
from tests.storage.test_purchases import HEADER, NOW_MS, Shop
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.purchases import PurchaseState
from tollkeeper.gateway.purchase.monitor import key_of
from tollkeeper.storage.auth import admit
from tollkeeper.storage.engine.database import Statement, StorageError, load_queries
from tollkeeper.storage.ledger.ledger import Ledger
from tollkeeper.storage.ledger.quarantine import hold, release
from tollkeeper.storage.ledger.spends import HeldSpend, KnownSpends, SpendBatch
from tollkeeper.storage.urls import open_database

if TYPE_CHECKING:
    from tollkeeper.core.paygates.model import PayGate
    from tollkeeper.storage.ledger.purchase_rows import Purchase

AT_ONCE: Final = 3
GATES: Final = 3
_LOOK_EVERY: Final = 40  # units: which purchases and gates there are
_NEWEST: Final = "SELECT id FROM purchases ORDER BY number DESC LIMIT 30"
_GATES: Final = "SELECT id FROM paygates WHERE deleted_ms IS NULL ORDER BY id DESC LIMIT 6"
# How often each comes: mostly spends, as it is.
KINDS: Final = {
    "spend_known": 8,
    "spend_by_header": 5,
    "spend_by_token": 5,
    "spend_of_payer": 2,
    "give_back": 3,
    "end_calls": 2,
    "claim": 4,
    "grant": 4,
    "fail": 1,
    "reopen": 1,
    "park": 1,
    "name": 1,
    "confirm": 1,
    "void": 1,
    "revive": 1,
    "hold": 1,
    "release": 1,
    "create_gate": 1,
    "update_gate": 1,
    "delete_gate": 1,
    "log_in": 1,
}
# Of a program that voids what it read as live, by a statement that does not look again.
CARELESS: Final = KINDS | {"void": 20, "revive": 20}
_LOOKS_AGAIN: Final = " AND ((state = 'VOID' AND failure LIKE 'gate_deleted%') OR state = 'LIVE')"


class Anew(logging.Handler):
    """Units that the server broke off."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("a unit is begun anew"):
            self.counted.append(record.getMessage())


class Player:
    """Whatever it does may be refused by the state of a purchase; nothing may fail."""

    def __init__(self, url: str, place: int, *, is_careless: bool) -> None:
        self.kinds = CARELESS if is_careless else KINDS
        self.is_careless = is_careless
        self.database = open_database(url)
        self.shop = Shop(self.database)
        self.shop.calls = self.number = place * 1_000_000
        self.ledger = Ledger(self.database)
        self.random = random.Random(place)
        self.tally: Counter[str] = Counter()
        self.failed: list[str] = []
        self.purchases: list[Purchase] = []
        self.gates: list[PayGate] = []
        self.calls: list[str] = []

    async def play(self, units: int) -> None:
        while self.database.units < units:  # type: ignore[attr-defined] # the engine counts them
            await self._look()
            for kind in self.random.choices([*self.kinds], [*self.kinds.values()], k=_LOOK_EVERY):
                try:
                    await getattr(self, kind)()
                except StorageError as error:
                    self.failed.append(f"{kind}: told a caller: {error}")
                except ApiError as error:
                    self.tally[error.code.name] += 1
                except Exception as error:  # noqa: BLE001 - told at the end
                    self.failed.append(f"{kind}: {error!r}")
                self.tally[kind] += 1

    async def _look(self) -> None:
        gates = [await self.shop.gates.by_id(row["id"]) for row in await self.database.read(Statement(_GATES))]
        self.gates = [found[0] for found in gates if found is not None]
        newest = [row["id"] for row in await self.database.read(Statement(_NEWEST))]
        self.purchases = [found for one in newest if (found := await self.shop.purchases.by_id(one))]

    @property
    def one(self) -> Purchase:
        """Any of those that there are."""
        return self.random.choice(self.purchases)

    def in_state(self, state: PurchaseState) -> Purchase:
        """One that was in this state when it was looked at, if there is any."""
        return self.random.choice([one for one in self.purchases if one.state is state] or self.purchases)

    def spend(self, purchase: Purchase, header: bytes | None) -> HeldSpend:
        gate = next((gate for gate in self.gates if gate.id == purchase.gate_id), self.gates[0])
        request = self.shop.spend_request(gate, header)
        self.calls.append(request.call_id)
        is_by_header = header is not None
        return HeldSpend(key_of(purchase) if is_by_header else None, None if is_by_header else purchase.id, request)

    async def spend_known(self) -> None:
        gate = self.random.choice(self.gates)
        its = [one for one in self.purchases if one.gate_id == gate.id and one.state is PurchaseState.LIVE]
        chosen = [self.random.choice(its) for _ in range(10)] if its else []
        calls = {self.shop.spend_request(gate).call_id: one.number for one in chosen}
        known = KnownSpends({(gate.id, gate.version)}, calls, len(calls))
        await self.database.run(SpendBatch([], NOW_MS, known=known).unit())

    async def spend_by_header(self) -> None:
        told = await spend_together(self.ledger, [self.spend(self.one, HEADER) for _ in range(6)])
        for answer in told:
            if isinstance(answer, ApiError):
                raise answer

    async def spend_by_token(self) -> None:
        spends = [self.spend(self.one, None) for _ in range(6)]
        await self.database.run(SpendBatch(spends, NOW_MS, {200: self.calls[-30:-20]}).unit())

    async def spend_of_payer(self) -> None:
        one = self.one
        await self.shop.purchases.spend_of_payer(one.payer, self.spend(one, None).spend_request, NOW_MS)

    async def give_back(self) -> None:
        if self.calls:
            await self.shop.purchases.restore(self.random.choice(self.calls[-50:]), 502, NOW_MS)

    async def end_calls(self) -> None:
        await self.shop.purchases.end_calls(dict.fromkeys(self.calls[-10:-5], 200), NOW_MS)

    async def claim(self) -> None:
        self.number += 1
        payer = f"0x{self.random.randrange(1, 9):040x}"
        is_trusted = self.random.random() < 0.5  # as far as the caps on trust allow
        await self.shop.claim(self.random.choice(self.gates), self.number, payer=payer, assume_valid=is_trusted)

    async def grant(self) -> None:
        claimed = self.in_state(PurchaseState.CLAIMED)
        request = self.spend(claimed, HEADER).spend_request
        is_sure = not claimed.assume_valid
        await self.shop.purchases.grant(claimed, "0x1", confirmed=is_sure, spend_request=request, now_ms=NOW_MS)

    async def fail(self) -> None:
        await self.shop.purchases.fail(self.in_state(PurchaseState.CLAIMED), "never_sent", None, NOW_MS)

    async def reopen(self) -> None:
        await self.shop.purchases.reopen(self.in_state(PurchaseState.FAILED), NOW_MS)

    async def park(self) -> None:
        await self.shop.purchases.park(self.in_state(PurchaseState.CLAIMED), "nobody_knows", NOW_MS)

    async def name(self) -> None:
        await self.shop.purchases.name(self.in_state(PurchaseState.CLAIMED), "0x3")

    async def confirm(self) -> None:
        await self.shop.purchases.confirm(self.one, NOW_MS)

    async def void(self) -> None:
        if self.is_careless:
            read = await self.shop.purchases.by_id(self.one.id)
            if read is not None and read.state is PurchaseState.LIVE:
                await self.shop.purchases.void(read, NOW_MS)
            return
        await self.shop.purchases.void(self.one, NOW_MS)

    async def revive(self) -> None:
        await self.shop.purchases.revive(self.in_state(PurchaseState.VOID), "0x2", NOW_MS)

    async def hold(self) -> None:
        await hold(self.database, {self.one.id: "x"}, NOW_MS)

    async def release(self) -> None:
        await release(self.database, sorted({self.one.id for _ in range(8)}), NOW_MS)

    async def create_gate(self) -> None:
        if len(self.gates) < GATES:
            await self.shop.gate(40)

    async def update_gate(self) -> None:
        gate = self.random.choice(self.gates)
        await self.shop.gates.update(gate.id, lambda now: replace(now, version=now.version + 1))

    async def delete_gate(self) -> None:
        if len(self.gates) >= GATES:
            await self.shop.gates.delete(self.gates[-1].id, NOW_MS)

    async def log_in(self) -> None:
        await self.database.run(admit(f"0x{self.random.randrange(20):040x}", NOW_MS))


def forget_to_look_again() -> None:
    """Have a sale voided whatever became of it since it was read."""
    queries = load_queries("gateway.sql")._queries  # noqa: SLF001 - they are the same for the whole program
    looking = queries["void_unpaid"]
    queries["void_unpaid"] = replace(looking, sql=looking.sql.replace(_LOOKS_AGAIN, ""))
    assert queries["void_unpaid"].sql != looking.sql


async def main(url: str, place: int, units: int, *, is_careless: bool) -> None:
    """Play, several at once, and tell."""
    if is_careless:
        forget_to_look_again()
    anew = Anew()
    logger = logging.getLogger("tollkeeper.storage.postgresql.engine")
    logger.addHandler(anew)
    logger.setLevel(logging.INFO)
    player = Player(url, place, is_careless=is_careless)
    await asyncio.gather(*(player.play(units) for _ in range(AT_ONCE)))
    await player.database.close()
    told = {"units": player.database.units, "anew": anew.counted}  # type: ignore[attr-defined] # as above
    print(json.dumps({**told, "kinds": len(player.tally.keys() & KINDS.keys()), "failed": player.failed}))  # noqa: T201


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], *map(int, sys.argv[2:4]), is_careless=sys.argv[4:] == ["careless"]))
