"""Specification 4.3: the transaction history's request and response, of a wallet of either family."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.specification.client import Answer, Json
from tests.specification.program import Program, bearer_header
from tests.specification.rows import field_of, row, row_on_both
from tests.specification.world import World

VALUES = (1, 2, 3)


class Reader:
    """A wallet that was paid `VALUES`, in this order, and asks for its history."""

    def __init__(self, program: Program, token: str) -> None:
        self.program = program
        self.token = token

    async def asks(self, **query: object) -> Answer:
        """The answer to this query."""
        texts = {name: str(value) for name, value in query.items()}
        return await self.program.hub("GET", "/api/v1/history", params=texts, headers=bearer_header(self.token))

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


async def reader(program: Program) -> Reader:
    """A fresh wallet that was paid three times."""
    wallet = await program.payee()
    for value in VALUES:
        selling = await program.sale(value, recipient=wallet.address)
        assert (await program.settle({**selling, "confirm": True})).body["status"] == "success"
    return Reader(program, (await program.login(wallet))["accessToken"])


def amounts(body: Json) -> list[int]:
    return [int(item["amount"]) for item in body["history"]]


@row_on_both("4.3-bearer")
async def test_history_needs_a_bearer_and_shows_that_wallets(program: Program) -> None:
    query = {"limit": "10"}
    answer = await program.hub("GET", "/api/v1/history", params=query)
    assert answer.refusal == (401, "AUTH_REQUIRED", "authentication")
    answer = await program.hub("GET", "/api/v1/history", params=query, headers=bearer_header("x"))
    assert answer.refusal == (401, "INVALID_TOKEN", "authentication")
    assert (await program.history(program.new_wallet()))["history"] == []


@row_on_both("4.3-limit")
async def test_limit_is_required_and_from_1_to_100(program: Program) -> None:
    asking = await reader(program)
    missing = await asking.asks()
    assert missing.refusal == (400, "MISSING_PARAMETER", "validation")
    for limit in ("0", "101", "-1", "x", "1.5", "", "1e1"):
        assert (await asking.asks(limit=limit)).refusal == (400, "INVALID_PARAMETER", "validation")
    assert [len((await asking.reads(limit=limit))["history"]) for limit in (1, 2, 100)] == [1, 2, 3]


@row_on_both("4.3-offset")
async def test_offset_is_optional_and_0_by_default(program: Program) -> None:
    asking = await reader(program)
    whole = amounts(await asking.reads(limit=100))
    assert amounts(await asking.reads(limit=100, offset=0)) == whole
    assert [amounts(await asking.reads(limit=1, offset=offset)) for offset in range(4)] == [*[[n] for n in whole], []]
    for offset in ("-1", "x", "1.5", ""):
        assert (await asking.asks(limit=1, offset=offset)).refusal == (400, "INVALID_PARAMETER", "validation")


@row("4.3-network")
async def test_network_is_optional_and_filters(world: World) -> None:
    asking = await reader(world)
    assert len((await asking.reads(limit=10, network="base-sepolia"))["history"]) == 3
    assert (await asking.reads(limit=10, network="base"))["history"] == []
    for network in ("ethereum", "", "84532"):
        assert (await asking.asks(limit=10, network=network)).refusal == (400, "INVALID_NETWORK", "validation")


@row_on_both("4.3-success")
async def test_success_is_true(program: Program) -> None:
    body = await (await reader(program)).reads(limit=1)
    assert body["success"] is True
    assert body.keys() == {"success", "history", "pagination", "apiVersion", "timestamp"}


@row("4.3-history")
async def test_history_is_an_array_of_items_newest_first(world: World) -> None:
    asking = await reader(world)
    body = await asking.reads(limit=10)
    assert amounts(body) == [*VALUES[::-1]]
    fields = {"id", "createdAt", "updatedAt", "signerAddress", "amount", "network", "chainId", "transactionHash"}
    assert [item.keys() for item in body["history"]] == [fields | {"status", "error", "type", "x402Data"}] * 3


@row_on_both("4.3-pagination.totalCount")
async def test_total_count_is_of_all_items(program: Program) -> None:
    asking = await reader(program)
    counts = [(await asking.pages(limit=limit, offset=offset))["totalCount"] for limit, offset in ((1, 0), (9, 8))]
    assert counts == [3, 3]
    assert (await asking.pages(limit=1, network="base"))["totalCount"] == 0


@row_on_both("4.3-pagination.limit", "4.3-pagination.offset")
async def test_pagination_says_what_was_asked(program: Program, row_id: str) -> None:
    name = field_of(row_id)
    asking = await reader(program)
    for value in (1, 3, 100):
        page = await asking.pages(**{"limit": 7, name: value})
        assert (type(page[name]), page[name]) == (int, value)
    assert (await asking.pages(limit=5))["offset"] == 0


@row_on_both("4.3-pagination.hasNext", "4.3-pagination.hasPrev")
async def test_pagination_says_whether_there_is_more(program: Program, row_id: str) -> None:
    asking = await reader(program)
    windows = {(1, 0): (True, False), (2, 1): (False, True), (1, 1): (True, True), (3, 0): (False, False)}
    place = ("hasNext", "hasPrev").index(field_of(row_id))
    for (limit, offset), expected in windows.items():
        assert (await asking.pages(limit=limit, offset=offset))[field_of(row_id)] is expected[place]


@row_on_both("4.3-apiVersion")
async def test_history_carries_the_api_version(program: Program) -> None:
    assert (await program.history(program.new_wallet()))["apiVersion"] == "v1"


@row_on_both("4.3-timestamp")
async def test_history_carries_a_timestamp(program: Program) -> None:
    when = datetime.fromisoformat((await program.history(program.new_wallet()))["timestamp"])
    assert abs(datetime.now(UTC) - when) < timedelta(seconds=10)
