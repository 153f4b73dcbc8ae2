"""A paid call whose body of undeclared length passes the limit (contract 4.2, 4.5): refused or cut, never held open."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.described_answers import seen_raw
from tests.gateway.composed import composed
from tests.gateway.recording_target import recording_target
from tests.gateway.shop import Shop
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

LIMIT_BYTES = 1024 * 1024
EVENT = b"9\r\ndata: 1\n\n\r\n"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + EVENT


@dataclass(slots=True)
class SlowTarget:
    """A target that takes whatever comes; it answers at the head of a request, or never. It ends no answer."""

    answers_early: bool
    url: str = ""
    taken_bytes: int = 0
    left: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            if self.answers_early:
                writer.write(HEAD)
            while data := await reader.read(65_536):
                self.taken_bytes += len(data)
        self.left.set()
        writer.close()


@pytest.fixture
async def shop(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Shop]:
    async with (
        recording_target() as target,
        composed(embedded_chain.url, tmp_path / "gate.db", call_body_size_bytes=LIMIT_BYTES) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Shop(url, tmp_path / "gate.db", target, buyer)


async def upload(gate: dict[str, Any], payment: str, *, is_ended: bool) -> bytes:
    """All that is answered to a body of twice the limit, until the gateway ends the connection."""
    address = urlsplit(gate["accessUrl"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nX-Payment: {payment}\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
    parts: list[bytes] = []

    async def read() -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                parts.append(data)

    reading = asyncio.create_task(read())
    with suppress(ConnectionError):
        for _ in range(2 * LIMIT_BYTES // 65_536):
            writer.write(b"10000\r\n" + bytes(65_536) + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        if is_ended:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    await asyncio.wait_for(reading, 30)
    writer.close()
    return b"".join(parts)


async def logged(shop: Shop, gate: dict[str, Any]) -> list[tuple[str, int, str | None]]:
    """Outcome, status and code of the gate's calls, the newest first, once one is there."""
    deadline = time.monotonic() + 30
    while True:
        answer = await shop.buyer.ask("GET", f"{shop.url}/api/v1/paygates/{gate['id']}/requests?outcome=failed")
        rows = [(row["outcome"], row["status"], row["code"]) for row in answer.json()["data"]]
        if rows or time.monotonic() > deadline:
            return rows
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("is_ended", [False, True])
@pytest.mark.parametrize("on_failure", ["consume", "restore"])
@pytest.mark.parametrize("answers_early", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_that_grows_too_large_ends_its_call_for_one_credit(
    shop: Shop, *, stream: bool, answers_early: bool, on_failure: str, is_ended: bool
) -> None:
    target = SlowTarget(answers_early)
    server = await asyncio.start_server(target.serve, "127.0.0.1", 0)
    target.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    gate = await shop.gate(targetUrl=target.url, method="POST", credits=3, stream=stream, onFailure=on_failure)
    payment = await shop.payment(gate, "POST")
    answer = await upload(gate, payment, is_ended=is_ended)
    await asyncio.wait_for(target.left.wait(), 30)
    server.close()
    assert target.taken_bytes < 1.1 * LIMIT_BYTES
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nx-credits-remaining: 2\r\n" in head + b"\r\n"
    if stream and answers_early:  # it has begun: nothing can be said any more, and it is not ended
        assert head.startswith(b"HTTP/1.1 200 ")
        assert body == EVENT
        assert await logged(shop, gate) == [("failed", 200, "PAYLOAD_TOO_LARGE")]
    else:
        seen_raw("POST", gate["accessUrl"], head + b"\r\n\r\n", body)
        error = json.loads(body)["error"]
        assert (head[:12], error["code"]) == (b"HTTP/1.1 413", "PAYLOAD_TOO_LARGE")
        assert error["details"] == {"limitBytes": LIMIT_BYTES}
        assert await logged(shop, gate) == [("failed", 413, "PAYLOAD_TOO_LARGE")]
    held = (await shop.buyer.ask("GET", shop.url + "/api/v1/credits", headers={"X-Payment": payment})).json()["data"]
    assert [one["remaining"] for one in held] == [2]  # restore gives back what the target failed, and nothing else
    found = (await shop.buyer.ask("GET", f"{shop.url}/api/v1/paygates/{gate['id']}/stats")).json()["calls"]
    assert found == {"total": 1, "served": 0, "targetError": 0, "failed": 1, "clientGone": 0}


async def test_a_body_of_undeclared_length_below_the_limit_is_forwarded_whole(shop: Shop) -> None:
    gate = await shop.gate(method="POST")
    payment = await shop.payment(gate, "POST")
    address = urlsplit(gate["accessUrl"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nX-Payment: {payment}\r\n"
    writer.write(f"{head}Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    writer.write(b"%x\r\n%b\r\n0\r\n\r\n" % (LIMIT_BYTES, bytes(LIMIT_BYTES)))
    assert (await asyncio.wait_for(reader.read(), 20))[:12] == b"HTTP/1.1 200"
    writer.close()
    assert [len(request.body) for request in shop.target.requests] == [LIMIT_BYTES]
