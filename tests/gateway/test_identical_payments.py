"""Two honest payments on Solana of the same bytes: one is charged, who sent the other signs again (contract 4.3).

Clients that add no memo make them where one wallet pays one recipient the same amount twice within one blockhash.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import SolanaMarket, header_of, solana_market
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.stack import Options

BINDINGS = ("payment", "token", "wallet")
ADVICE = (
    "On Solana two payments of one wallet to the same recipient, of the same amount and within the same moment can be "
    "one transaction, which is charged once. The second has cost nothing: to buy again, wait a second and sign a new "
    "payment"
)


@pytest_asyncio.fixture
async def market(tmp_path: Path, target: RecordingTarget) -> AsyncIterator[SolanaMarket]:
    async with solana_market(target, Options(data_dir=tmp_path)) as running:
        yield running


async def bearer_of(market: SolanaMarket) -> str:
    """The buyer's login."""
    url = f"{market.url}/api/v1/auth"
    asked = await market.buyer.ask("GET", f"{url}/message?walletAddress={market.wallet.pubkey()}")
    message = asked.json()["message"]
    login = {"message": message, "signature": str(market.wallet.sign_message(message.encode()))}
    return f"Bearer {(await market.buyer.ask('POST', f'{url}/login', body=login)).json()['accessToken']}"


class Buyers:
    """Two who pay from one wallet. At a gate that is bound to the wallet both are logged in."""

    def __init__(self, market: SolanaMarket, binding: str, bearer: str) -> None:
        self.market, self.binding = market, binding
        self._headers = {"Authorization": bearer} if binding == "wallet" else {}

    async def gate(self, **fields: Any) -> dict[str, Any]:
        return await self.market.gate(creditBinding=self.binding, **fields)

    async def payment(self, gate: dict[str, Any], *, text: bytes | None = b"") -> str:
        """Without a memo, unless told otherwise."""
        return header_of(await self.market.draft(await self.market.requirements(gate), text=text))

    async def pay(self, gate: dict[str, Any], payment: str) -> Answer:
        return await self.market.buyer.ask("GET", gate["accessUrl"], headers={"X-Payment": payment, **self._headers})


@pytest_asyncio.fixture(params=BINDINGS)
async def buyers(market: SolanaMarket, request: pytest.FixtureRequest) -> Buyers:
    return Buyers(market, request.param, await bearer_of(market))


def told(answer: Answer) -> dict[str, Any]:
    """The error, which must say what became of the other one and what to do."""
    body = answer.json()
    error: dict[str, Any] = body.get("errorDetail") or body["error"]
    assert error["message"].endswith(ADVICE), answer.body
    return error


async def test_the_second_buyer_at_a_gate_is_told_to_sign_again_and_then_served(buyers: Buyers) -> None:
    market, gate = buyers.market, await buyers.gate()
    had = await market.balance(market.owner)
    payment = await buyers.payment(gate)
    assert (await buyers.pay(gate, payment)).status == 200
    second = await buyers.pay(gate, payment)
    assert (second.status, told(second)["code"]) == (402, "CREDITS_EXHAUSTED")
    assert second.json()["accepts"]  # so that a client signs again by itself
    assert await market.balance(market.owner) == had + 10_000
    assert (await buyers.pay(gate, await buyers.payment(gate, text=None))).status == 200
    assert await market.balance(market.owner) == had + 20_000


async def test_who_signs_again_without_a_memo_is_served_once_the_moment_has_passed(buyers: Buyers) -> None:
    """Another signature of the same moment is the same payment, so the refusal says to wait."""
    market, gate = buyers.market, await buyers.gate()
    had = await market.balance(market.owner)
    assert (await buyers.pay(gate, await buyers.payment(gate))).status == 200
    await market.node("sandbox_advance", 1)  # what a second brings
    assert (await buyers.pay(gate, await buyers.payment(gate))).status == 200
    assert await market.balance(market.owner) == had + 20_000


async def test_of_two_that_come_at_once_one_is_served_and_the_other_is_told(buyers: Buyers) -> None:
    market, gate = buyers.market, await buyers.gate()
    had = await market.balance(market.owner)
    payment = await buyers.payment(gate)
    answers = await asyncio.gather(*(buyers.pay(gate, payment) for _ in range(2)))
    served, second = sorted(answers, key=lambda answer: answer.status)
    assert (served.status, second.status) == (200, 402)
    assert told(second)["code"] == "CREDITS_EXHAUSTED"
    assert await market.balance(market.owner) == had + 10_000


async def test_the_second_buyer_at_another_gate_is_told_to_sign_again_and_then_served(buyers: Buyers) -> None:
    market = buyers.market
    first, second = await buyers.gate(), await buyers.gate()
    had = await market.balance(market.owner)
    payment = await buyers.payment(first)
    assert (await buyers.pay(first, payment)).status == 200
    refused = await buyers.pay(second, payment)
    error = told(refused)
    assert (refused.status, error["code"], error["details"]["reason"]) == (
        402,
        "NONCE_ALREADY_USED",
        "duplicate_settlement",
    )
    assert refused.json()["accepts"]
    assert await market.balance(market.owner) == had + 10_000
    assert (await buyers.pay(second, await buyers.payment(second, text=None))).status == 200


async def test_where_credits_are_left_no_second_buyer_is_charged(buyers: Buyers) -> None:
    """Bound to the payment or the wallet, both hold the credits; bound to the token, he who bought does."""
    market, gate = buyers.market, await buyers.gate(credits=3)
    had = await market.balance(market.owner)
    payment = await buyers.payment(gate)
    first, second = [await buyers.pay(gate, payment) for _ in range(2)]
    assert first.status == 200
    if buyers.binding == "token":
        assert (second.status, told(second)["code"]) == (403, "CREDIT_TOKEN_REQUIRED")
        token = {"X-Credit-Token": first.headers["x-credit-token"]}
        assert (await market.buyer.ask("GET", gate["accessUrl"], headers=token)).headers["x-credits-remaining"] == "1"
    else:
        assert (second.status, second.headers["x-credits-remaining"]) == (200, "1")
    assert await market.balance(market.owner) == had + 10_000


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_payment_with_a_memo_is_no_other_buyers(market: SolanaMarket, binding: str) -> None:
    buyers = Buyers(market, binding, await bearer_of(market))
    gate = await buyers.gate()
    payments = [await buyers.payment(gate, text=None) for _ in range(2)]
    answers = await asyncio.gather(*(buyers.pay(gate, payment) for payment in payments))
    assert [answer.status for answer in answers] == [200, 200]
