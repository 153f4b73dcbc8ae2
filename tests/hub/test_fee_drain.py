"""Somebody tries to empty the hub's fee payers: it stays within the budget, and honest payments go on (A-24, A-28)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from solders.keypair import Keypair

from tests.chains.solana_node import BUYER, FEE_PAYER, WALLETS, drafted
from tests.core.solana_payments import compute_limit, compute_price, memo, transfer
from tests.hub.drains import Scene as Robbery
from tests.hub.drains import drains, misdirected
from tests.hub.gateway_requests import DATA, TRUSTED, signed
from tests.hub.hub_under_test import Answer
from tests.hub.solana_hub import SolanaHub, body_of, run_solana_hub
from tollkeeper.core.limits import PAYER_FAILURES_MAX
from tollkeeper.sandbox.solana.chain import Executed
from tollkeeper.storage.engine.database import Statement

PRICE: Final = 10_000
_AT_ONCE: Final = 32
_SLOT_SECONDS: Final = 0.1
_DEAR_LAMPORTS: Final = 50_000  # what the caps let a buyer make us pay for one transaction
_STRANGERS_MAX: Final = 120  # of such transactions within the hour
_BUDGET: Final = 2 * _STRANGERS_MAX * _DEAR_LAMPORTS
_FIRST_STRIKE: Final = PAYER_FAILURES_MAX + 5


@dataclass
class Attack:
    """A hub, its chain, and who attacks it; a gateway sells meanwhile."""

    world: SolanaHub
    sold: Counter[object] = field(default_factory=Counter)
    numbers: int = 0

    def paying(self, payer: Keypair, *, pay_to: str, is_dear: bool = True) -> dict[str, Any]:
        """A payment unlike every other, at the highest fee that the caps allow."""
        self.numbers += 1
        budget = (compute_limit(400_000), compute_price(100_000)) if is_dear else (compute_limit(), compute_price())
        moved = transfer(PRICE, payer=payer.pubkey(), pay_to=pay_to)
        draft = drafted(self.world.node, *budget, moved, memo(f"number {self.numbers}".encode()), buyer=payer)
        return body_of(draft.payload(), PRICE, payTo=pay_to)

    async def settle(self, body: dict[str, Any], *, wait_seconds: int = 20) -> Answer:
        """As a stranger."""
        return await self.world.settle(body, Prefer=f"wait={wait_seconds}")

    async def at_once(self, bodies: Iterable[dict[str, Any]]) -> list[Answer]:
        """All of them, so many at a time; each is made when it is its turn, because a blockhash ages."""
        left, answers = iter(bodies), list[Answer]()

        async def worker() -> None:
            for body in left:
                answers.append(await self.settle(body))

        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
        return answers

    @asynccontextmanager
    async def selling(self) -> AsyncIterator[None]:
        """A trusted gateway's buyers pay all the while."""
        task = asyncio.ensure_future(self._sell())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _sell(self) -> None:
        while True:
            asked = self.paying(BUYER, pay_to=WALLETS.owner.address, is_dear=False)
            body = json.dumps({**asked, "confirm": True, "purchaseData": DATA}).encode()
            headers = signed(body, idempotency_key=f"claim-{self.sold.total()}.1")
            answer = await self.world.hub.send("POST", "/settle", data=body, headers=headers)
            self.sold[answer.status, answer.body.get("success")] += 1
            await asyncio.sleep(0.3)

    async def outcome(self, body: dict[str, Any]) -> str:
        """What became of it; "unknown" where nothing was begun."""
        while (status := await self.world.status(body)) == "pending":  # noqa: ASYNC110 - of answers over HTTP
            await asyncio.sleep(_SLOT_SECONDS)
        return status

    async def strike(self, payer: Keypair, count: int) -> list[str]:
        """So many payments that the money covers, until it goes elsewhere before they are executed."""
        chain = self.world.node.chain
        chain.open_account(str(payer.pubkey()), count * PRICE)
        async with self.held():
            bodies = [self.paying(payer, pay_to=WALLETS.second_buyer.address) for _ in range(count)]
            await asyncio.gather(*(self.settle(body, wait_seconds=0) for body in bodies))
            chain.open_account(str(payer.pubkey()), -count * PRICE)
        return [await self.outcome(body) for body in bodies]

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Nothing is executed meanwhile."""
        self.world.node.chain.holds = True
        try:
            yield
        finally:
            self.world.node.chain.release()

    async def failures(self, payer: Keypair) -> int:
        """How often that payer has cost a fee for nothing."""
        failed = Statement(
            "SELECT SUM(failures) AS n FROM payer_failures WHERE payer = :payer", {"payer": str(payer.pubkey())}
        )
        return int((await self.world.hub.database.read(failed))[0]["n"] or 0)

    async def paid_for(self) -> dict[bool, list[Executed]]:
        """What was executed for strangers (False) and for the gateway; all of it stands in the books."""
        rows = await self.world.hub.database.read(Statement("SELECT transaction_hash, purchase_data FROM settlements"))
        executed = self.world.node.chain.executed
        booked = {row["transaction_hash"]: row["purchase_data"] is not None for row in rows}
        assert set(executed) <= set(booked)
        paid: dict[bool, list[Executed]] = {False: [], True: []}
        for name, one in executed.items():
            paid[booked[name]].append(one)
        return paid


def bad_ones(world: SolanaHub, count: int) -> list[dict[str, Any]]:
    """Bodies that must cost nothing: every robbery there is, again and again, and payments that are not covered."""
    scene = Robbery(FEE_PAYER, BUYER, WALLETS.owner.address, world.node.chain.blockhash)
    robberies = [body_of(payload, Robbery.amount) for payload in (drains(scene) | misdirected(scene)).values()]
    poor = Keypair()
    moved = transfer(PRICE, payer=poor.pubkey(), pay_to=WALLETS.owner.address)
    uncovered = drafted(world.node, compute_limit(), compute_price(), moved, buyer=poor)
    kinds = [*robberies, body_of(uncovered.payload(), PRICE)]
    return [kinds[number % len(kinds)] for number in range(count)]


async def drain(directory: Path, count: int) -> None:
    config: dict[str, Any] = {"fee_budget_per_hour_lamports": _BUDGET, "trusted_keys": TRUSTED}
    async with run_solana_hub(directory, slot_seconds=_SLOT_SECONDS, recovery_interval_seconds=0.3, **config) as world:
        attack, money = Attack(world), world.fee_money
        used = attack.paying(BUYER, pay_to=WALLETS.owner.address)
        assert (await attack.settle(used)).body["success"] is True
        movers, purses = (Keypair(), Keypair()), (Keypair(), Keypair())
        for purse in purses:
            world.node.chain.open_account(str(purse.pubkey()), _AT_ONCE * PRICE)
        async with attack.selling():
            cheap = await attack.at_once([*bad_ones(world, count), *[used] * 50])
            assert {(answer.status, answer.body["success"]) for answer in cheap} == {(200, False)}
            assert {answer.body["transaction"] for answer in cheap} <= {"", next(iter(world.node.chain.executed))}
            for _ in range(3):
                told = [*await attack.strike(movers[0], _FIRST_STRIKE), *await attack.strike(movers[1], 4)]
                assert set(told) <= {"failed", "unknown"}
            # The first time costs as much as came at once; after that nothing is signed for that payer.
            assert [await attack.failures(one) for one in movers] == [_FIRST_STRIKE, PAYER_FAILURES_MAX]
            to_himself = (
                attack.paying(purses[number % 2], pay_to=str(purses[1 - number % 2].pubkey()))
                for number in range(2 * _STRANGERS_MAX)
            )
            statuses = Counter(answer.status for answer in await attack.at_once(to_himself))
            assert set(statuses) == {200, 503}
            refused = await attack.settle(attack.paying(BUYER, pay_to=WALLETS.owner.address))
            assert (refused.status, refused.code) == (503, "UNAVAILABLE")
            before = attack.sold.total()
            async with asyncio.timeout(60):
                while attack.sold.total() < before + 3:  # noqa: ASYNC110 - of answers over HTTP
                    await asyncio.sleep(0.05)
        assert set(attack.sold) == {(200, True)}
        paid = await attack.paid_for()
        assert sum(one.fee for one in paid[False]) <= _STRANGERS_MAX * _DEAR_LAMPORTS
        assert money - world.fee_money == sum(one.fee for all_ in paid.values() for one in all_) <= _BUDGET
        assert len(paid[True]) == attack.sold.total()
        assert await world.status(used) == "success"


@pytest.mark.timeout(300)
async def test_a_thousand_bad_settles_cost_the_fee_payers_no_more_than_the_budget_and_sales_go_on(
    tmp_path: Path,
) -> None:
    await drain(tmp_path, 700)


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_ten_thousand_bad_settles_cost_the_fee_payers_no_more_than_the_budget_and_sales_go_on(
    tmp_path: Path,
) -> None:
    await drain(tmp_path, 9_700)
