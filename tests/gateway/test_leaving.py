"""Clients who leave at a bad moment: what was charged is told from the books, and every paid call has an end."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import aiohttp.web
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside, held
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, run_hostile_hub
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.shop import Shop
from tollkeeper.gateway.call import state
from tollkeeper.gateway.call.state import PaidCall
from tollkeeper.gateway.open_gate import Gates, OpenGate
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role
from tollkeeper.storage.ledger.purchase_rows import SpendResult
from tollkeeper.storage.ledger.purchases import Purchases


@dataclass(slots=True)
class LeftShop(Shop):
    """A gateway whose clients leave."""

    FIELDS: ClassVar[dict[str, Any]] = {"paymentAddress": "0x" + "77" * 20}

    def request(self, gate: dict[str, Any], method: str = "GET", **headers: str) -> bytes:
        lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        return f"{method} /{gate['slug']} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode()

    async def leave(self, request: bytes, after_seconds: float) -> None:
        """Sends a request and is gone, with a reset, so much later."""
        _, writer = await self.connect()
        writer.write(request)
        await writer.drain()
        await asyncio.sleep(after_seconds)
        self.reset(writer)

    def reset(self, writer: asyncio.StreamWriter) -> None:
        linger = struct.pack("ii", 1, 0)  # else what is closed looks like a caller who sends no more, and still reads
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(*self.url.removeprefix("http://").split(":"))

    def calls(self) -> dict[tuple[str, int | None], int]:
        """How many calls the books have, by state and status; their ends once the gateway has ended, or later."""
        with beside(self.database) as books:
            counted = books.execute("SELECT state, status, count(*) FROM calls GROUP BY state, status").fetchall()
        return {(state, status): count for state, status, count in counted}

    def statuses(self) -> dict[str, int]:
        """With what each call ended, by its id. The gateway must have ended."""
        with beside(self.database) as books:
            return dict(books.execute("SELECT id, status FROM calls").fetchall())

    def outcomes(self, gate: dict[str, Any]) -> dict[tuple[str, int, str | None], int]:
        """How many paid calls of a gate its owner is shown, by outcome, status and code; once the gateway ended."""
        sql = (
            "SELECT outcome, status, code, count(*) FROM requests "
            "WHERE gate_id = ? AND outcome <> 'challenged' GROUP BY outcome, status, code"
        )
        with beside(self.database) as books:
            return {(*row[:3],): row[3] for row in books.execute(sql, (gate["id"],))}


@asynccontextmanager
async def shop(chain_url: str, target: RecordingTarget, folder: Path, **changes: Any) -> AsyncIterator[LeftShop]:
    path = folder / "gateway.db"
    async with composed(chain_url, path, **changes) as url, Buyer(derive_wallets().buyer) as buyer:
        yield LeftShop(url, path, target, buyer)


async def test_every_call_by_credit_token_has_an_end_whenever_its_client_leaves(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=200)
        token = (await there.buyer.call(gate["accessUrl"], await there.payment(gate))).headers["x-credit-token"]
        request = there.request(gate, X_Credit_Token=token)
        for number in range(60):
            await there.leave(request, number % 6 / 2000)
        await asyncio.sleep(0.1)
    assert {state for state, _ in there.calls()} == {"DONE"}


async def test_every_first_call_has_an_end_whenever_its_client_leaves(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    settled = asyncio.Event()

    async def tell(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        answer = await forward()
        settled.set()
        return answer

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = tell
        async with shop(embedded_chain.url, target, tmp_path, role=Role.GATEWAY, hub_url=between.url) as there:
            gate = await there.gate()
            for number in range(40):
                settled.clear()
                _, writer = await there.connect()
                writer.write(there.request(gate, X_Payment=await there.payment(gate)))
                await asyncio.wait_for(settled.wait(), 10)
                await asyncio.sleep(number % 8 / 1000)
                writer.transport.abort()
    assert {state for state, _ in there.calls()} == {"DONE"}


async def test_calls_that_a_stop_cuts_short_have_an_end_and_their_callers_are_told(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    reached = asyncio.Semaphore(0)

    async def hang(request: Received, writer: Writer) -> None:
        reached.release()
        if request.path == "/half":
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf")
        await request.reader.read()

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        half = await there.gate(credits=20, targetUrl=target.url + "/half")
        requests = []
        for one in (gate, half):
            payment = await there.payment(one)
            assert (await there.buyer.call(one["accessUrl"], payment)).status == 200
            requests += [there.request(one, X_Payment=payment)] * 3
        target.answer = hang
        waiting = []
        for request in requests:
            reader, writer = await there.connect()
            writer.write(request)
            waiting.append((reader, writer))
            await asyncio.wait_for(reached.acquire(), 5)
    assert there.calls() == {("DONE", 200): 2, ("RESTORED", 503): 6}
    for one in (gate, half):  # what the gateway gave up is no error of the target
        assert there.outcomes(one) == {("served", 200, None): 1, ("failed", 503, "UNAVAILABLE"): 3}
    for reader, writer in waiting:
        assert b" 503 " in await asyncio.wait_for(reader.readline(), 5)
        writer.close()


async def serve(there: LeftShop, request: bytes, times: int) -> None:
    """So many calls, one after the other on one connection."""
    reader, writer = await there.connect()
    for _ in range(times):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    writer.close()


def hang_once_bought(monkeypatch: pytest.MonkeyPatch, reached: asyncio.Event) -> None:
    """From now on a call that has bought asks in vain for its gate as it is by then; `reached` says that one does."""

    async def never_current(_self: Gates, _opened: OpenGate) -> OpenGate:
        reached.set()
        await asyncio.sleep(60)
        raise AssertionError

    monkeypatch.setattr(Gates, "current", never_current)


@pytest.mark.parametrize("moment", ["its token's credit is taken", "it has bought"])
async def test_a_call_that_a_stop_cuts_before_it_is_forwarded_is_charged_nothing(
    moment: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commit is done, and the call does not know it yet, or asks for its gate as it is by now."""
    reached = asyncio.Event()
    spend_token = Purchases.spend_token

    async def spend_late(self: Purchases, *arguments: Any) -> SpendResult:
        result = await spend_token(self, *arguments)
        reached.set()
        await asyncio.sleep(2)
        return result

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        payment = await there.payment(gate)
        headers = {"X_Payment": payment}
        if moment == "it has bought":
            hang_once_bought(monkeypatch, reached)
        else:
            bought = await there.buyer.call(gate["accessUrl"], payment)
            headers = {"X_Credit_Token": bought.headers["x-credit-token"]}
            monkeypatch.setattr(Purchases, "spend_token", spend_late)
        reader, writer = await there.connect()
        writer.write(there.request(gate, **headers))
        await asyncio.wait_for(reached.wait(), 10)
    assert there.calls() == {("RESTORED", 503): 1} | ({} if moment == "it has bought" else {("DONE", 200): 1})
    assert there.outcomes(gate)["failed", 503, "UNAVAILABLE"] == 1
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in head.lower()
    assert (b"\r\nx-credit-token: " in head) == (moment == "it has bought")  # it may be needed with the next try
    assert json.loads(body)["error"]["code"] == "UNAVAILABLE"
    writer.close()


async def test_a_call_that_a_stop_cuts_while_its_payment_settles_is_told_so_and_keeps_its_credits(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    settling = asyncio.Event()

    async def settle_late(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        settling.set()
        await asyncio.sleep(3)
        return await forward()

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settle_late
        apart = {"role": Role.GATEWAY, "hub_url": between.url}
        async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1, **apart) as there:
            gate = await there.gate(credits=20)
            reader, writer = await there.connect()
            writer.write(there.request(gate, X_Payment=await there.payment(gate)))
            await asyncio.wait_for(settling.wait(), 10)
    head, _, body = (await asyncio.wait_for(reader.read(), 5)).partition(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 503 ")
    assert b"\r\nretry-after: " in head.lower()
    assert json.loads(body)["error"]["code"] == "UNAVAILABLE"
    assert there.calls() == {}
    with beside(there.database) as books:
        assert books.execute("SELECT state, remaining FROM holdings").fetchall() == [("LIVE", 20)]


@pytest.mark.parametrize("behind", ["a first payment", "a held credit"])
async def test_what_stands_behind_a_call_that_a_stop_cuts_is_not_begun(
    behind: str,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reached = asyncio.Event()
    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate, other = await there.gate(credits=20), await there.gate(credits=20)
        second = there.request(other, X_Payment=await there.payment(other))
        await serve(there, second, 3 if behind == "a held credit" else 0)
        hang_once_bought(monkeypatch, reached)
        reader, writer = await there.connect()
        writer.write(there.request(gate, X_Payment=await there.payment(gate)) + second)
        await asyncio.wait_for(reached.wait(), 10)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b"\r\nconnection: close\r\n" in answer.lower()
    served = {("DONE", 200): 3} if behind == "a held credit" else {}
    assert there.calls() == {("RESTORED", 503): 1} | served


@pytest.mark.parametrize("behind", ["a first payment", "a call like those before"])
async def test_what_stands_behind_a_call_whose_target_a_stop_gives_up_is_told_so(
    behind: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """Such a call is answered when its credit is given back, and then the next has its turn."""
    reached = asyncio.Event()

    async def hang(request: Received, _writer: Writer) -> None:
        reached.set()
        await request.reader.read()

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=20)
        first, second = [there.request(gate, X_Payment=await there.payment(gate)) for _ in range(2)]
        served = 0 if behind == "a first payment" else 3
        await serve(there, second, served)
        target.answer = hang
        reader, writer = await there.connect()
        writer.write(first)
        await asyncio.wait_for(reached.wait(), 10)
        writer.write(second)
    answers = (await asyncio.wait_for(reader.read(), 5)).split(b"HTTP/1.1 ")
    writer.close()
    assert [answer[:4] for answer in answers[1:]] == [b"503 ", b"503 "]
    assert (b"\r\nx-credits-remaining: 20\r\n" in answers[1], b"is stopping" in answers[2]) == (True, True)
    assert b"\r\nconnection: close\r\n" in answers[2].lower()
    assert there.calls() == {("RESTORED", 503): 1} | ({("DONE", 200): served} if served else {})


async def test_a_stream_that_a_stop_finds_unread_is_given_up_on_the_gateways_side(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    is_full = asyncio.Event()

    async def endless(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n")
        for _ in range(9):
            writer.write(bytes(1_000_000))
            try:
                await asyncio.wait_for(writer.drain(), 1)
            except TimeoutError:
                is_full.set()
                await asyncio.sleep(60)

    async with shop(embedded_chain.url, target, tmp_path, drain_seconds=1) as there:
        gate = await there.gate(credits=2, stream=True)
        payment = await there.payment(gate)
        target.answer = endless
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        host, port = there.url.removeprefix("http://").split(":")
        unread.connect((host, int(port)))
        unread.sendall(there.request(gate, X_Payment=payment))
        await asyncio.wait_for(is_full.wait(), 20)
    unread.close()
    assert there.outcomes(gate) == {("failed", 503, "UNAVAILABLE"): 1}


async def test_a_gate_that_changes_whenever_it_is_asked_is_a_503_at_the_deadline(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=3)
        payment = await there.payment(gate)
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        another_process = "UPDATE paygates SET version = version + 1"
        with beside(there.database) as books:
            books.execute(another_process)
        monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 0)
        late = await there.buyer.call(gate["accessUrl"], payment)
        assert (late.status, late.json()["error"]["code"], "retry-after" in late.headers) == (503, "UNAVAILABLE", True)
        monkeypatch.undo()
        in_time = await there.buyer.call(gate["accessUrl"], payment)
        assert (in_time.status, in_time.headers["x-credits-remaining"]) == (200, "1")


async def test_the_deadline_counts_from_the_arrival_however_long_the_credit_took(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=3)
        payment = await there.payment(gate)
        assert (await there.buyer.call(gate["accessUrl"], payment)).status == 200
        monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
        with held(there.database) as books:
            books.execute("UPDATE paygates SET version = version + 1")
            calling = asyncio.ensure_future(there.buyer.call(gate["accessUrl"], payment))
            await asyncio.sleep(3)  # the spend waits for that program to let go
        late = await calling
        assert (late.status, late.json()["error"]["code"]) == (503, "UNAVAILABLE")
        monkeypatch.undo()
        in_time = await there.buyer.call(gate["accessUrl"], payment)
        assert (in_time.status, in_time.headers["x-credits-remaining"]) == (200, "1")


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_whoever_leaves_in_the_turn_in_which_his_purchase_is_decided_leaves_no_call_without_an_end(
    turns: int, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """The second request with a payment waits for the first one's settlement; its connection is reset so much later."""
    settling, go = asyncio.Event(), asyncio.Event()

    async def settle_late(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        settling.set()
        await go.wait()
        return await forward()

    async with composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub, run_hostile_hub(hub) as between:
        between.settling = settle_late
        async with shop(embedded_chain.url, target, tmp_path, role=Role.GATEWAY, hub_url=between.url) as there:
            gate = await there.gate(credits=5)
            request = there.request(gate, X_Payment=await there.payment(gate))
            before = {id(one) for one in calls_under_way()}
            first, first_writer = await there.connect()
            first_writer.write(request)
            await asyncio.wait_for(settling.wait(), 10)
            known = before | {id(one) for one in calls_under_way()}
            _, second_writer = await there.connect()
            second_writer.write(request)
            buying = None
            while buying is None or not buying.pending._awaited:  # noqa: SLF001 - nothing else says so
                await asyncio.sleep(0.01)
                for one in calls_under_way():
                    if id(one) not in known:
                        second, buying = one, one.context.buying
            (awaited,) = buying.pending._awaited.values()  # noqa: SLF001 - no other moment is so exact
            decided = awaited.decided
            go.set()
            while not decided.is_set():  # noqa: ASYNC110 - its every turn counts
                await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            second.http._connection.connection_lost(None)  # type: ignore[attr-defined]  # noqa: SLF001 - as a transport does
            assert (await first.readline()).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.2)
            first_writer.close()
            second_writer.close()
    assert there.calls() in ({("DONE", 200): 1}, {("DONE", 200): 1, ("DONE", 499): 1})


def calls_under_way() -> list[PaidCall]:
    return [one for one in gc.get_objects() if isinstance(one, PaidCall) and one.buyer is not None]
