"""Specification 4.3: the transaction history's request and response."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.specification.client import Answer, Json, Wallet
from tests.specification.program import bearer_header
from tests.specification.rows import row
from tests.specification.settling import nonce_of
from tests.specification.world import World


class Reader:
    """A wallet with three transactions, oldest first in `nonces`, which asks for its history."""

    def __init__(self, world: World, token: str, nonces: list[str]) -> None:
        self.world = world
        self.token = token
        self.nonces = nonces

    async def asks(self, **query: object) -> Answer:
        """The answer to this query."""
        texts = {name: str(value) for name, value in query.items()}
        return await self.world.hub("GET", "/api/v1/history", params=texts, headers=bearer_header(self.token))

    async def reads(self, **query: object) -> Json:
        """The body of a history that is answered."""
        answer = await self.asks(**query)
        assert answer.status == 200, answer.content
        return answer.body

    async def pages(self, **query: object) -> dict[str, Any]:
        """The `pagination` object."""
        page: dict[str, Any] = (await self.reads(**query))["pagination"]
        assert page.keys() == {"totalCount", "limit", "offset", "hasNext", "hasPrev"}
        return page


async def reader(world: World) -> Reader:
    """A fresh wallet that was paid three times."""
    wallet = Wallet()
    nonces = []
    for value in (1, 2, 3):
        asking = world.asking(value, recipient=wallet.address)
        assert (await world.settle({**asking, "confirm": True})).body["status"] == "success"
        nonces.append(nonce_of(asking))
    return Reader(world, (await world.login(wallet))["accessToken"], nonces)


def nonces(body: Json) -> list[str]:
    return [item["x402Data"]["nonce"] for item in body["history"]]


@row("4.3-bearer")
async def test_history_needs_a_bearer_and_shows_that_wallets(world: World) -> None:
    query = {"limit": "10"}
    answer = await world.hub("GET", "/api/v1/history", params=query)
    assert answer.refusal == (401, "AUTH_REQUIRED", "authentication")
    answer = await world.hub("GET", "/api/v1/history", params=query, headers=bearer_header("x"))
    assert answer.refusal == (401, "INVALID_TOKEN", "authentication")
    assert (await world.history(Wallet()))["history"] == []


@row("4.3-limit")
async def test_limit_is_required_and_from_1_to_100(world: World) -> None:
    asking = await reader(world)
    missing = await asking.asks()
    assert missing.refusal == (400, "MISSING_PARAMETER", "validation")
    for limit in ("0", "101", "-1", "x", "1.5", "", "1e1"):
        assert (await asking.asks(limit=limit)).refusal == (400, "INVALID_PARAMETER", "validation")
    assert [len((await asking.reads(limit=limit))["history"]) for limit in (1, 2, 100)] == [1, 2, 3]


@row("4.3-offset")
async def test_offset_is_optional_and_0_by_default(world: World) -> None:
    asking = await reader(world)
    whole = nonces(await asking.reads(limit=100))
    assert nonces(await asking.reads(limit=100, offset=0)) == whole
    assert [nonces(await asking.reads(limit=1, offset=offset)) for offset in range(4)] == [*[[n] for n in whole], []]
    for offset in ("-1", "x", "1.5", ""):
        assert (await asking.asks(limit=1, offset=offset)).refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.3-network")
async def test_network_is_optional_and_filters(world: World) -> None:
    asking = await reader(world)
    assert len((await asking.reads(limit=10, network="base-sepolia"))["history"]) == 3
    assert (await asking.reads(limit=10, network="base"))["history"] == []
    for network in ("ethereum", "", "84532"):
        assert (await asking.asks(limit=10, network=network)).refusal == (400, "INVALID_NETWORK", "validation")


@row("4.3-success")
async def test_success_is_true(world: World) -> None:
    body = await (await reader(world)).reads(limit=1)
    assert body["success"] is True
    assert body.keys() == {"success", "history", "pagination", "apiVersion", "timestamp"}


@row("4.3-history")
async def test_history_is_an_array_of_items_newest_first(world: World) -> None:
    asking = await reader(world)
    body = await asking.reads(limit=10)
    assert nonces(body) == asking.nonces[::-1]
    fields = {"id", "createdAt", "updatedAt", "signerAddress", "amount", "network", "chainId", "transactionHash"}
    assert [item.keys() for item in body["history"]] == [fields | {"status", "error", "type", "x402Data"}] * 3


@row("4.3-pagination.totalCount")
async def test_total_count_is_of_all_items(world: World) -> None:
    asking = await reader(world)
    counts = [(await asking.pages(limit=limit, offset=offset))["totalCount"] for limit, offset in ((1, 0), (9, 8))]
    assert counts == [3, 3]
    assert (await asking.pages(limit=1, network="base"))["totalCount"] == 0


@row("4.3-pagination.limit", "4.3-pagination.offset")
async def test_pagination_says_what_was_asked(world: World, row_id: str) -> None:
    name = row_id.rpartition(".")[2]
    asking = await reader(world)
    for value in (1, 3, 100):
        page = await asking.pages(**{"limit": 7, name: value})
        assert (type(page[name]), page[name]) == (int, value)
    assert (await asking.pages(limit=5))["offset"] == 0


@row("4.3-pagination.hasNext", "4.3-pagination.hasPrev")
async def test_pagination_says_whether_there_is_more(world: World, row_id: str) -> None:
    asking = await reader(world)
    windows = {(1, 0): (True, False), (2, 1): (False, True), (1, 1): (True, True), (3, 0): (False, False)}
    place = ("hasNext", "hasPrev").index(row_id.rpartition(".")[2])
    for (limit, offset), expected in windows.items():
        assert (await asking.pages(limit=limit, offset=offset))[row_id.rpartition(".")[2]] is expected[place]


@row("4.3-apiVersion")
async def test_history_carries_the_api_version(world: World) -> None:
    assert (await world.history(Wallet()))["apiVersion"] == "v1"


@row("4.3-timestamp")
async def test_history_carries_a_timestamp(world: World) -> None:
    when = datetime.fromisoformat((await world.history(Wallet()))["timestamp"])
    assert abs(datetime.now(UTC) - when) < timedelta(seconds=10)
