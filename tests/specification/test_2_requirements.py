"""Specification 2.2: the body of a 402, in both shapes, and its headers.

The default body contains both shapes; each is one `Accept` profile away to the letter (contract 4.1).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from tests.specification.client import Json
from tests.specification.rows import row
from tests.specification.world import World

PROFILES = {"A": 'application/json;profile="x402-a"', "B": 'application/json;profile="x402-b"'}


async def bodies(world: World, shape: str, **fields: object) -> tuple[Json, list[Json]]:
    """A gate, and its 402's bodies that have this shape: the default one and the one to the letter."""
    gate = await world.gate(**fields)
    literal = await world.call(gate, headers={"Accept": PROFILES[shape]})
    assert literal.status == 402
    return gate, [await world.asked(gate), literal.body]


def at(body: Json, path: str) -> Any:
    """The member that a dotted name means."""
    value: Any = body
    for name in path.split("."):
        value = value[name]
    return value


@row("2.2-A-x402.token")
async def test_shape_a_names_the_payment_token(world: World) -> None:
    _, (default, literal) = await bodies(world, "A")
    assert default["x402"]["token"] == literal["x402"]["token"] == "USDC"
    assert literal.keys() == {"x402"}
    assert literal["x402"].keys() == {"token", "amount", "address"}


@row("2.2-A-x402.amount", "2.2-B-paymentRequired.amount")
async def test_the_amount_is_the_price_as_a_decimal_string(world: World, row_id: str) -> None:
    _, _, shape, *_ = row_id.replace("-", ".").split(".")
    path = "x402.amount" if shape == "A" else "paymentRequired.amount"
    for price in ("0.01", "1", "0.000001", "123456.789"):
        _, found = await bodies(world, shape, price=price)
        assert [at(body, path) for body in found] == [price, price]
        assert Decimal(found[0]["accepts"][0]["maxAmountRequired"]) == Decimal(price) * 1_000_000


@row("2.2-A-x402.address")
async def test_shape_a_names_the_recipient(world: World) -> None:
    gate, found = await bodies(world, "A")
    assert [body["x402"]["address"] for body in found] == [gate["paymentAddress"]] * 2
    assert found[0]["accepts"][0]["payTo"] == gate["paymentAddress"]


@row("2.2-B-error")
async def test_shape_b_says_in_a_string_what_is_wrong(world: World) -> None:
    _, found = await bodies(world, "B")
    assert [body["error"] for body in found] == ["Payment required"] * 2
    assert found[1].keys() == {"error", "x402Version", "accepts", "paymentRequired"}


@row("2.2-B-x402Version")
async def test_shape_b_has_version_one(world: World) -> None:
    _, found = await bodies(world, "B")
    assert [(type(body["x402Version"]), body["x402Version"]) for body in found] == [(int, 1)] * 2


@row("2.2-B-accepts")
async def test_shape_b_lists_media_types_and_the_default_payment_requirements(world: World) -> None:
    gate, (default, literal) = await bodies(world, "B", mimeType="text/csv")
    assert literal["accepts"] == ["text/csv"]
    (requirements,) = default["accepts"]
    assert requirements == {
        "scheme": "exact",
        "network": "base-sepolia",
        "maxAmountRequired": "10000",
        "resource": gate["accessUrl"],
        "description": "",
        "mimeType": "text/csv",
        "payTo": gate["paymentAddress"],
        "maxTimeoutSeconds": 60,
        "asset": world.chain.token,
        "extra": {"name": "USD Coin", "version": "2"},
    }


@row("2.2-B-paymentRequired.currency")
async def test_shape_b_is_in_usdc(world: World) -> None:
    _, found = await bodies(world, "B")
    assert [body["paymentRequired"]["currency"] for body in found] == ["USDC"] * 2
    assert found[1]["paymentRequired"].keys() == {"amount", "currency", "network"}


@row("2.2-B-paymentRequired.network")
async def test_shape_b_names_the_network(world: World) -> None:
    gate, found = await bodies(world, "B")
    assert [body["paymentRequired"]["network"] for body in found] == [gate["network"]] * 2 == ["base-sepolia"] * 2


@row("2.2-header-Content-Type", "2.2-header-X402-Version")
async def test_every_402_carries_its_headers(world: World, row_id: str) -> None:
    name, value = {"Content-Type": ("content-type", "application/json"), "X402-Version": ("x402-version", "1")}[
        row_id.removeprefix("2.2-header-")
    ]
    gate = await world.gate()
    exhausted, _ = await world.buy(gate)
    answers = [await world.call(gate, headers={"Accept": accept}) for accept in ("*/*", *PROFILES.values())]
    answers += [await world.call(gate, exhausted), await world.call(gate, "unreadable")]
    assert [(answer.status, answer.headers[name]) for answer in answers] == [(402, value)] * 5


@pytest.mark.parametrize("shape", PROFILES)
async def test_a_payment_made_from_either_shape_alone_is_taken(world: World, shape: str) -> None:
    gate = await world.gate()
    literal = (await world.call(gate, headers={"Accept": PROFILES[shape]})).body
    asked = literal["x402"] if shape == "A" else literal["paymentRequired"]
    assert Decimal(asked["amount"]) * 1_000_000 == 10_000
    paid = await world.payment(gate)
    assert (await world.call(gate, paid, headers={"Accept": PROFILES[shape]})).status == 200
