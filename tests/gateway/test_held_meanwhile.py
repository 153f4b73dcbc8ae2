"""What happens between a call's head and its credit: a gate that changes, credits that expire, callers who come along.

The calls come again in the same bytes (`test_held`), in a program of the test's own, whose database another process
may change.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, RecordingTarget, Writer, answer_ok
from tests.gateway.same_bytes import Caller, kept, request
from tests.gateway.shop import Shop
from tollkeeper.gateway.purchase.recovery import PurchaseRecovery
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CREDITS = 20


@dataclass(slots=True)
class TurnedShop(Shop):
    """A program whose gates another process changes."""

    FIELDS: ClassVar[dict[str, Any]] = {"credits": CREDITS}

    def change(self, gate: dict[str, Any], column: str, value: Any, version: int = 2) -> Any:
        """Another process has updated the gate, and its word has not come yet. Returns what stood there before."""
        with beside(self.database) as database:
            of = (gate["slug"],)
            ((before,),) = database.execute(f"SELECT {column} FROM paygates WHERE slug = ?", of)  # noqa: S608 - ours
            database.execute(
                f"UPDATE paygates SET {column} = ?, version = ? WHERE slug = ?",  # noqa: S608 - ours
                (value, version, *of),
            )
            database.execute(
                "INSERT INTO paygate_versions"
                " (gate_id, version, price_micro, credits, network, pay_to, created_ms)"
                " SELECT id, version, price_micro, credits, network, payment_address, updated_ms"
                " FROM paygates WHERE slug = ? ON CONFLICT DO NOTHING",
                of,
            )
        return before


@asynccontextmanager
async def shop(chain: ChainUnderTest, home: Path, target: RecordingTarget, **changes: Any) -> AsyncIterator[TurnedShop]:
    database = home / "tollkeeper.db"
    async with composed(chain.url, database, **changes) as url, Buyer(derive_wallets().buyer) as buyer:
        yield TurnedShop(url, database, target, buyer)


def paid(gate: dict[str, Any], payment: str, more: str = "", method: str = "GET") -> bytes:
    return request(gate, method, f"X-Payment: {payment}\r\n{more}")


async def served(caller: Caller, data: bytes, times: int = 3) -> None:
    for _ in range(times):
        status, _, body = await caller.ask(data)
        assert status == 200, body


async def test_a_credit_that_expired_while_its_call_waited_for_its_turn_is_not_spent(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate(creditsExpireAfter=10)
        data = paid(gate, await market.payment(gate))
        async with kept(gate) as caller:
            await served(caller, data)
            expires = time.monotonic() + 10.5
            arrived = asyncio.Event()

            async def late(received: Received, writer: Writer) -> None:
                arrived.set()
                await asyncio.sleep(expires - time.monotonic())
                await answer_ok(received, writer)

            target.answer = late
            first = asyncio.create_task(caller.ask(data))
            await asyncio.wait_for(arrived.wait(), 9)
            caller.writer.write(data)
            assert (await first)[0] == 200
            status, _, body = await caller.answer(data)
        assert status == 402
        assert body["errorDetail"]["code"] == "CREDITS_EXHAUSTED"
        assert len(target.requests) == 4


@pytest.mark.parametrize(
    ("column", "value", "status"),
    [("require_auth", 1, 401), ("methods", "POST", 405), ("credit_binding", "wallet", 403)],
)
async def test_what_a_gate_asks_for_by_now_is_asked_of_a_call_that_came_before(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, column: str, value: Any, status: int
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        data = paid(gate, await market.payment(gate))
        async with kept(gate) as caller:
            await served(caller, data)
            market.change(gate, column, value)
            assert (await caller.ask(data))[0] == status
        assert len(target.requests) == 3


async def test_a_token_that_a_gate_no_longer_takes_alone_is_not_replaced_by_the_payment_beside_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment, other = await market.payment(gate), await market.payment(gate)
        async with kept(gate) as caller:
            _, headers, _ = await caller.ask(paid(gate, payment))
            await served(caller, paid(gate, other), 1)
            data = paid(gate, other, f"X-Credit-Token: {headers['x-credit-token']}\r\n")
            await served(caller, data)
            market.change(gate, "require_auth", 1)
            assert (await caller.ask(data))[0] == 401
        assert len(target.requests) == 5


async def test_paths_that_a_gate_no_longer_has_are_not_there_for_a_call_that_came_before(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate(allowSubpaths=True)
        below = {**gate, "accessUrl": gate["accessUrl"] + "/below"}
        data = paid(below, await market.payment(gate))
        async with kept(gate) as caller:
            await served(caller, data)
            market.change(gate, "allow_subpaths", 0)
            assert (await caller.ask(data))[0] == 404
        assert len(target.requests) == 3


@pytest.mark.parametrize(
    ("column", "before", "name"), [("target_headers", None, "x-key"), ("header_auth_mode", "none", "signature")]
)
async def test_a_header_that_the_owner_sets_by_now_is_not_taken_from_a_call_that_came_before(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, column: str, before: Any, name: str
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        update = {"targetHeaders": {"X-Key": "owner"}} if column == "target_headers" else {"headerAuthMode": "hmac"}
        path = f"{market.url}/api/v1/paygates/{gate['id']}"
        assert (await market.buyer.ask("PUT", path, body=update)).status == 200
        owners = market.change(gate, column, before, version=1)
        data = paid(gate, await market.payment(gate), "X-Key: caller\r\nSignature: caller\r\n")
        async with kept(gate) as caller:
            await served(caller, data)
            market.change(gate, column, owners)
            await served(caller, data)
        values = [[value for key, value in received.headers if key == name] for received in target.requests]
        assert values[:3] == [["caller"]] * 3
        assert [len(one) for one in values[3:]] == [1] * 3, values
        assert all("caller" not in one for one in values[3:]), values


async def test_behind_a_proxy_each_head_names_its_own_client(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target, trusted_proxies=(ip_network("127.0.0.1"),)) as market:
        gate = await market.gate()
        payment = await market.payment(gate)
        clients = "203.0.113.1", "203.0.113.2"
        one, other = (paid(gate, payment, f"X-Forwarded-For: {client}\r\n") for client in clients)
        for source, told in (("127.0.0.1", None), ("127.0.0.7", "127.0.0.7"), ("127.0.0.1", None)):
            target.requests.clear()
            async with kept(gate, source) as caller:
                for data in (one, other, one, other):
                    await served(caller, data, 1)
            seen = [received.header("x-forwarded-for") for received in target.requests]
            assert seen == [told or client for client in clients] * 2


async def test_a_sale_on_trust_has_the_transaction_that_was_confirmed_in_its_receipts(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its hub replaced the transaction that a node had taken; whoever follows sales writes which one was mined."""
    monkeypatch.setattr(PurchaseRecovery, "interval_seconds", 3600.0)  # no other look than this test's

    def write(of: TurnedShop, transaction: str, *, confirmed: int) -> None:
        with beside(of.database) as database:
            database.execute(
                "UPDATE purchases SET assume_valid = 1, transaction_hash = ?, confirmed = ?", (transaction, confirmed)
            )

    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        data = paid(gate, await market.payment(gate))
        async with kept(gate) as caller:

            async def named() -> str:
                status, headers, _ = await caller.ask(data)
                assert status == 200
                transaction: str = json.loads(base64.b64decode(headers["x-payment-response"]))["transaction"]
                return transaction

            mined = await named()
            write(market, replaced := "0x" + "11" * 32, confirmed=0)
            assert [await named() for _ in range(3)] == [replaced] * 3
            write(market, mined, confirmed=1)
            assert [await named() for _ in range(4)] == [mined] * 4
