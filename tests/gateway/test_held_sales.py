"""A sale that breaks an invariant: nothing is spent of it until it is mended, and nobody is told to pay again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.shop import Shop
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.books import inspection
from tollkeeper.storage.engine.database import Snapshot
from tollkeeper.storage.urls import open_snapshot

CREDITS = 5
# Of the first sale: what no unit of work does, and what mends it.
BROKEN = {
    "i2_remaining_is_the_ledger": (
        "UPDATE credits SET remaining = remaining - 1",
        "UPDATE credits SET remaining = remaining + 1",
    ),
    "i2_granted_is_what_was_bought": (
        "UPDATE purchases SET credits = credits + 1",
        "UPDATE purchases SET credits = credits - 1",
    ),
    "i5_credits_rest_on_a_payment": ("UPDATE purchases SET confirmed = 0", "UPDATE purchases SET confirmed = 1"),
    "i11_terms_are_a_version_of_the_gate": (
        "UPDATE purchases SET price_micro = price_micro - 1",
        "UPDATE purchases SET price_micro = price_micro + 1",
    ),
    "a_sale_has_its_settlement": (
        "UPDATE settlements SET nonce = nonce || 'x'",
        "UPDATE settlements SET nonce = substr(nonce, 1, length(nonce) - 1)",
    ),
    "a_sale_is_worth_its_settlement": (
        "UPDATE settlements SET value = '1'",
        "UPDATE settlements SET value = '10000'",
    ),
}


@dataclass(slots=True)
class BooksShop(Shop):
    """A program that looks at its books all the time."""

    FIELDS: ClassVar[dict[str, Any]] = {"credits": CREDITS, "method": "GET,POST"}

    async def buy(self, gate: dict[str, Any]) -> tuple[str, Answer]:
        payment = await self.payment(gate)
        return payment, await self.call(gate, X_Payment=payment)

    async def call(self, gate: dict[str, Any], **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.buyer.ask("GET", gate["accessUrl"], headers=named)

    def change_first(self, sql: str) -> None:
        table = sql.split()[1]
        with beside(self.database) as connection:
            order = "created_ms" if table == "settlements" else "number"
            first = f"{sql} WHERE {order} = (SELECT min({order}) FROM {table})"  # noqa: S608 - own text
            assert connection.execute(first).rowcount == 1

    async def until_first_is(self, failure: str | None) -> None:
        async with asyncio.timeout(30):
            while True:
                with beside(self.database) as connection:
                    if connection.execute("SELECT failure FROM purchases WHERE number = 1").fetchone() == (failure,):
                        return
                await asyncio.sleep(0.02)


@pytest.fixture
async def shop(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[BooksShop]:
    path = tmp_path / "books.db"
    async with (
        composed(embedded_chain.url, path, inspection_seconds=0.05) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield BooksShop(url, path, target, buyer)


def is_told_to_wait(answer: Answer) -> bool:
    return (answer.status, answer.error_code, "retry-after" in answer.headers) == (503, "SETTLEMENT_PENDING", True)


@pytest.mark.parametrize("rule", BROKEN)
async def test_nothing_is_spent_of_a_sale_that_breaks_an_invariant_until_it_is_mended(
    shop: BooksShop, rule: str
) -> None:
    gate = await shop.gate()
    payment, bought = await shop.buy(gate)
    assert bought.status == 200
    token = bought.headers["x-credit-token"]
    shop.change_first(BROKEN[rule][0])
    await shop.until_first_is(f"held: {rule}")
    for _ in range(2):
        assert is_told_to_wait(await shop.call(gate, X_Payment=payment))
        assert is_told_to_wait(await shop.call(gate, X_Credit_Token=token))
    assert len(shop.target.requests) == 1
    other, answer = await shop.buy(gate)  # others are sold to, and served
    assert (answer.status, answer.headers["x-credits-remaining"]) == (200, str(CREDITS - 1))
    assert (await shop.call(gate, X_Payment=other)).status == 200
    shop.change_first(BROKEN[rule][1])
    await shop.until_first_is(None)
    answer = await shop.call(gate, X_Payment=payment)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (200, str(CREDITS - 2))


async def test_a_sale_that_is_held_for_its_failed_settlement_is_void_in_the_end(shop: BooksShop) -> None:
    gate = await shop.gate()
    payment, bought = await shop.buy(gate)
    assert bought.status == 200
    shop.change_first("UPDATE purchases SET follow_ms = NULL")  # sold so long ago that nobody follows it any more
    shop.change_first("UPDATE settlements SET state = 'FAILED', updated_ms = 1")
    await shop.until_first_is("settlement_failed")
    refused = await shop.call(gate, X_Payment=payment)
    assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
    assert len(shop.target.requests) == 1
    shop.change_first("UPDATE settlements SET state = 'CONFIRMED'")  # as its events say


async def test_books_that_are_slow_to_read_are_checked_again_soon_where_that_is_no_work(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has no core for the check, or a disk that is busy, keeps no broken sale on sale for minutes."""

    def slowly(url: str, is_over: Callable[[], bool]) -> AbstractContextManager[Snapshot]:
        time.sleep(1)
        return open_snapshot(url, is_over)

    monkeypatch.setattr(inspection, "open_snapshot", slowly)
    path = tmp_path / "books.db"
    async with (
        composed(embedded_chain.url, path, inspection_seconds=0.05) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        shop = BooksShop(url, path, target, buyer)
        await shop.buy(await shop.gate())
        await asyncio.sleep(1.5)  # it was checked once
        shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][0])
        async with asyncio.timeout(20):
            await shop.until_first_is("held: i5_credits_rest_on_a_payment")
        shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][1])


async def test_a_wallet_spends_what_is_in_order_before_it_is_told_to_wait(shop: BooksShop) -> None:
    gate = await shop.gate(credits=2, creditBinding="wallet")
    bearer = {"Authorization": f"Bearer {await shop.buyer.login(shop.url)}"}
    for _ in range(2):
        payment = shop.buyer.sign((await shop.buyer.ask("GET", gate["accessUrl"])).json())
        assert (await shop.call(gate, X_Payment=payment, **bearer)).status == 200
    shop.change_first(BROKEN["i2_granted_is_what_was_bought"][0])
    await shop.until_first_is("held: i2_granted_is_what_was_bought")
    assert (await shop.call(gate, **bearer)).status == 200
    assert is_told_to_wait(await shop.call(gate, **bearer))
    shop.change_first(BROKEN["i2_granted_is_what_was_bought"][1])
    await shop.until_first_is(None)
    assert (await shop.call(gate, **bearer)).status == 200
    assert (await shop.call(gate, **bearer)).status == 402


async def test_a_call_that_fails_while_its_sale_is_held_has_its_credit_back(shop: BooksShop) -> None:
    gate = await shop.gate(onFailure="restore")
    payment, _ = await shop.buy(gate)
    is_held = asyncio.Event()

    async def fail_when_held(_request: Received, writer: Writer) -> None:
        await is_held.wait()
        writer.close()

    shop.target.answer = fail_when_held
    calling = asyncio.create_task(shop.buyer.ask("POST", gate["accessUrl"], headers={"X-Payment": payment}))
    async with asyncio.timeout(20):
        while len(shop.target.requests) < 2:  # noqa: ASYNC110 - of another task
            await asyncio.sleep(0.02)
    shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][0])
    await shop.until_first_is("held: i5_credits_rest_on_a_payment")
    is_held.set()
    answer = await calling
    assert (answer.status, answer.headers["x-credits-remaining"]) == (502, str(CREDITS - 1))
    shop.target.answer = answer_ok
    shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][1])
    await shop.until_first_is(None)
    answer = await shop.call(gate, X_Payment=payment)
    assert (answer.status, answer.headers["x-credits-remaining"]) == (200, str(CREDITS - 2))


@pytest.mark.parametrize("state", ["VOID", "PARKED"])
async def test_credits_that_are_open_though_their_sale_is_over_are_closed(shop: BooksShop, state: str) -> None:
    gate = await shop.gate()
    payment, _ = await shop.buy(gate)
    shop.change_first(f"UPDATE purchases SET failure = 'outcome_unknown', state = '{state}'")  # noqa: S608 - own text
    async with asyncio.timeout(20):
        while True:
            with beside(shop.database) as connection:
                if connection.execute("SELECT is_live FROM credits").fetchone() == (0,):
                    break
            await asyncio.sleep(0.02)
    assert (await shop.call(gate, X_Payment=payment)).status in {402, 503}
    assert len(shop.target.requests) == 1
    shop.change_first("UPDATE purchases SET failure = NULL, state = 'LIVE'")
    shop.change_first("UPDATE credits SET is_live = 1")


async def test_the_end_of_a_gate_ends_no_hold(shop: BooksShop) -> None:
    gate = await shop.gate()
    await shop.buy(gate)
    rule = "i5_credits_rest_on_a_payment"
    shop.change_first(BROKEN[rule][0])
    await shop.until_first_is(f"held: {rule}")
    assert (await shop.buyer.ask("DELETE", f"{shop.url}/api/v1/paygates/{gate['id']}")).status == 200
    await shop.until_first_is(f"gate_deleted, held: {rule}")
    await asyncio.sleep(2)  # some looks
    with beside(shop.database) as connection:
        assert connection.execute("SELECT failure FROM purchases").fetchall() == [(f"gate_deleted, held: {rule}",)]
    shop.change_first(BROKEN[rule][1])
    await shop.until_first_is("gate_deleted")


async def test_the_end_of_a_gate_ends_its_held_sales(shop: BooksShop) -> None:
    gate = await shop.gate()
    payment, _ = await shop.buy(gate)
    shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][0])
    await shop.until_first_is("held: i5_credits_rest_on_a_payment")
    answer = await shop.buyer.ask("DELETE", f"{shop.url}/api/v1/paygates/{gate['id']}")
    assert (answer.status, answer.json()["outstandingCredits"]) == (200, CREDITS - 1)
    shop.change_first(BROKEN["i5_credits_rest_on_a_payment"][1])
    await shop.until_first_is("gate_deleted")
    assert (await shop.call(gate, X_Payment=payment)).status == 404
