"""Prices and recipients that change while buyers buy: nobody pays what was not shown (contract 3.3)."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.edge.test_calls import until
from tests.gateway.market import Market
from tollkeeper.core.usdc import format_usdc

VERSIONS = range(2, 42)
BUYERS = 8


class Sales(Counter[int]):
    """How often each version was sold. Of three payments one is kept until what it was signed for is over."""

    def __init__(self) -> None:
        super().__init__()
        self._turns = itertools.count()
        self._kept = set[int]()

    async def of(self, version: int) -> None:
        """Returns once this version was sold, and a payment for it is kept, which is late for the next one."""
        await until(lambda: self[version] and version in self._kept, 60)

    async def keep(self, version: int, is_over: Callable[[], bool]) -> None:
        """Returns when a payment for this version may be sent: each third one once it is over."""
        if next(self._turns) % 3 == 0:
            self._kept.add(version)
            await until(is_over, 60)


def recipient(version: int) -> str:
    return f"0x{'c4' * 19}{version:02x}"


def terms(version: int) -> dict[str, Any]:
    """A version n sells n credits for n micro-units to a recipient of its own."""
    return {"price": format_usdc(version), "credits": version, "paymentAddress": recipient(version)}


async def test_each_purchase_is_one_version_that_was_shown_and_no_former_recipient_is_paid_after_the_answer(
    market: Market,
) -> None:
    gate = await market.gate(**terms(1) | {"credits": 1000})
    held, _ = await market.buy(gate)
    answered, late = 1, 0  # the version whose update was answered last, and how many came too late
    dice = random.Random(3)
    sold = Sales()
    done = asyncio.Event()

    async def update() -> None:
        nonlocal answered
        for version in VERSIONS:
            assert (await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=terms(version))).status == 200
            answered = version
            await sold.of(version)
        done.set()

    async def buy() -> None:
        nonlocal late
        while not done.is_set():
            challenge = await market.challenge(gate)
            version = int(challenge["accepts"][0]["maxAmountRequired"])
            assert challenge["accepts"][0]["payTo"].lower() == recipient(version)  # never a mixture
            payment = market.buyer.sign(challenge)
            await asyncio.sleep(dice.random() / 50)
            await sold.keep(version, lambda: answered > version or done.is_set())  # noqa: B023 - of this turn
            was_former = answered > version
            answer = await market.pay(gate, payment)
            if answer.status == 200 and answer.receipt is not None:
                assert not was_former
                sums = (int(answer.receipt["amount"]), int(answer.headers["x-credits-total"]))
                assert sums == (version, version if version > 1 else 1000)
                sold[version] += 1
            else:
                assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID")
                assert answer.json()["accepts"][0]["payTo"].lower() != recipient(version)
                late += 1

    async def spend() -> int:
        """Credits that were bought before outlive all of it."""
        spent = 0
        while not done.is_set():
            answer = await market.pay(gate, held)
            assert answer.status == 200, answer.body
            spent += 1
        return spent

    spending = asyncio.gather(spend())
    await asyncio.gather(update(), *(buy() for _ in range(BUYERS)))
    (spent,) = await spending
    assert sold.total() >= len(VERSIONS)
    assert late >= len(VERSIONS) - 1
    sold[1] += 1
    paid = {version: market.stack.balance_micro(recipient(version)) for version in (1, *VERSIONS)}
    assert paid == {version: version * sold[version] for version in paid}
    (left,) = (await market.ask("GET", "/api/v1/credits", headers={"X-Payment": held})).json()["data"]
    assert left["remaining"] == 1000 - 1 - spent
    assert len(market.target.requests) == sold.total() + spent


async def test_whoever_signed_a_price_that_was_shown_gets_the_credits_shown_with_it_however_it_moved_since(
    market: Market,
) -> None:
    """Prices go up and down, their recipient stays: a former price sells its own credits, never the current one's."""
    dice = random.Random(4)
    prices = dice.sample(range(1, 1000), 40)
    payee = "0x" + "c6" * 20

    def sells(price: int) -> dict[str, Any]:
        return {"price": format_usdc(price), "credits": 2 * price + 1}

    gate = await market.gate(**sells(prices[0]), paymentAddress=payee)
    sold = Sales()
    answered, former = 0, 0  # the place of the price whose update was answered last, and who paid an earlier one
    done = asyncio.Event()

    async def update() -> None:
        nonlocal answered
        for place, price in enumerate(prices[1:], 1):
            assert (await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body=sells(price))).status == 200
            answered = place
            await sold.of(price)
        done.set()

    async def buy() -> None:
        nonlocal former
        while not done.is_set():
            challenge = await market.challenge(gate)
            price = int(challenge["accepts"][0]["maxAmountRequired"])
            assert challenge["resource"]["credits"] == 2 * price + 1  # never a mixture
            payment, place = market.buyer.sign(challenge), prices.index(price)
            await asyncio.sleep(dice.random() / 50)
            await sold.keep(price, lambda: answered > place or done.is_set())  # noqa: B023 - of this turn
            was_former = answered > place
            answer = await market.pay(gate, payment)
            assert answer.status == 200, answer.body
            assert answer.receipt is not None
            assert int(answer.receipt["amount"]) == price
            assert int(answer.headers["x-credits-total"]) == 2 * price + 1
            sold[price] += 1
            former += was_former

    await asyncio.gather(update(), *(buy() for _ in range(BUYERS)))
    assert former >= len(prices) - 2
    assert set(prices[1:]) <= set(sold) <= set(prices)
    assert market.stack.balance_micro(payee) == sum(price * times for price, times in sold.items())
    assert len(market.target.requests) == sold.total()


async def test_a_gate_that_is_closed_and_opened_under_load_sells_nothing_while_it_is_closed(market: Market) -> None:
    gate = await market.gate(price="0.000001", credits=1, paymentAddress="0x" + "c5" * 20)
    path = f"/api/v1/paygates/{gate['id']}"
    closed = 0  # how often an update that closed it was answered; 0 from when one that opens it is sent
    closings = 0
    done = asyncio.Event()
    sold = 0

    async def switch() -> None:
        nonlocal closed, closings
        for number in range(30):
            opens = number % 2 == 1
            if opens:
                closed = 0
            assert (await market.ask("PUT", path, body={"isEnabled": opens})).status == 200
            closings += not opens
            closed = 0 if opens else closings
            await asyncio.sleep(0.01)
        done.set()

    payments = [await market.payment(gate) for _ in range(200)]

    async def buy() -> None:
        nonlocal sold
        while payments and not done.is_set():
            was_closed = closed
            answer = await market.pay(gate, payments.pop())
            if answer.status == 200:
                assert not was_closed or closed != was_closed  # it was opened meanwhile
                sold += 1
            else:
                assert (answer.status, answer.error_code) == (404, "NOT_FOUND")

    await asyncio.gather(switch(), *(buy() for _ in range(4)))
    assert market.stack.balance_micro("0x" + "c5" * 20) == sold
    assert len(market.target.requests) == sold
