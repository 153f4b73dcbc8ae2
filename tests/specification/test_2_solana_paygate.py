"""Specification 2.1, 2.2 and 8 on Solana: what of a PayGate's fields and rules a payment there decides."""

from __future__ import annotations

import asyncio

import pytest

from tests.specification.program import bearer_header
from tests.specification.rows import row
from tests.specification.solana_world import SolanaWorld
from tests.specification.test_2_requirements import PROFILES


@row("2.1-price-solana")
async def test_price_is_a_decimal_string_of_usdc_and_the_price_of_one_purchase(solana: SolanaWorld) -> None:
    recipient = str((await solana.funded()).pubkey())
    gate = await solana.gate(price="0.012345", credits=2, paymentAddress=recipient)
    assert (await solana.world.asked(gate))["x402"]["amount"] == "0.012345"
    paid, _ = await solana.buy(gate)
    assert (await solana.world.call(gate, paid)).status == 200
    assert await solana.balance(recipient) == 12_345
    assert (await solana.world.update(gate, price="0.5")).status == 200
    await solana.buy(gate)
    assert await solana.balance(recipient) == 512_345


@row("2.1-credits-solana")
async def test_credits_are_the_calls_that_a_purchase_grants(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate(credits=3)
    paid = await solana.payment(gate)
    assert [(await world.call(gate, paid)).status for _ in range(4)] == [200, 200, 200, 402]
    assert len(world.target.requests) == 3


@row("2.1-assumeValid-solana")
async def test_assume_valid_decides_whether_the_chain_is_waited_for(solana: SolanaWorld) -> None:
    world = solana.world
    confirmed, trusted = await solana.gate(), await solana.gate(assumeValid=True)
    assert confirmed["assumeValid"] is False
    payments = [await solana.payment(gate) for gate in (trusted, confirmed)]
    async with solana.held():
        answer = await world.call(trusted, payments[0])
        assert answer.status == 200
        statuses = await solana.node("getSignatureStatuses", [answer.confirmation["transaction"]])
        assert statuses["value"] == [None]
        waiting = asyncio.create_task(world.call(confirmed, payments[1]))
        done, _ = await asyncio.wait({waiting}, timeout=1)
        assert not done
        assert len(world.target.requests) == 1
    answer = await waiting
    assert answer.status == 200
    statuses = await solana.node("getSignatureStatuses", [answer.confirmation["transaction"]])
    assert statuses["value"][0]["err"] is None


@row("2.1-requireAuth-solana")
async def test_require_auth_asks_for_a_bearer_besides_the_payment(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate(credits=2)
    paid = await solana.payment(gate)
    assert (await world.update(gate, requireAuth=True)).body["requireAuth"] is True
    bearer = bearer_header((await solana.login(solana.buyer, world.gateway_url))["accessToken"])
    assert (await world.call(gate, paid)).refusal == (401, "AUTH_REQUIRED", "authentication")
    assert (await world.call(gate, headers=bearer)).status == 402
    assert (await world.call(gate, paid, headers=bearer)).status == 200


@row("2.1-rule-2-solana")
async def test_changed_credits_are_those_of_new_purchases_only(solana: SolanaWorld) -> None:
    world, gate = solana.world, await solana.gate(credits=2)
    held, _ = await solana.buy(gate)
    await world.update(gate, credits=3)
    assert [(await world.call(gate, held)).status for _ in range(2)] == [200, 402]
    new, answer = await solana.buy(gate)
    assert answer.headers["x-credits-total"] == "3"
    assert [(await world.call(gate, new)).status for _ in range(3)] == [200, 200, 402]


@row("2.2-header-Content-Type-solana", "2.2-header-X402-Version-solana")
async def test_every_402_carries_its_headers(solana: SolanaWorld, row_id: str) -> None:
    world, gate = solana.world, await solana.gate()
    name = row_id.removeprefix("2.2-header-").removesuffix("-solana").lower()
    exhausted, _ = await solana.buy(gate)
    answers = [await world.call(gate, headers={"Accept": accept}) for accept in ("*/*", *PROFILES.values())]
    answers += [await world.call(gate, exhausted), await world.call(gate, "unreadable")]
    value = {"content-type": "application/json", "x402-version": "1"}[name]
    assert [(answer.status, answer.headers[name]) for answer in answers] == [(402, value)] * 5


@pytest.mark.parametrize("shape", PROFILES)
async def test_a_payment_made_from_either_shape_alone_is_taken(solana: SolanaWorld, shape: str) -> None:
    world, gate = solana.world, await solana.gate()
    literal = (await world.call(gate, headers={"Accept": PROFILES[shape]})).body
    asked = literal["x402"] if shape == "A" else literal["paymentRequired"]
    assert asked["amount"] == "0.01"
    assert (await world.call(gate, await solana.payment(gate), headers={"Accept": PROFILES[shape]})).status == 200
