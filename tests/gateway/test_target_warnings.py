"""What an owner is told of a target when a gate is made or changed: it does not answer, or redirects (contract 3.4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.gateway.market import Market

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[str]:
    """A target's URL, each of whose connections is `answer`'s."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/a?own=1"


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def closing(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def babbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1000)
    writer.write(b"220 mail.example ESMTP\r\n")


def answering(status: bytes, seen: list[bytes], ended: asyncio.Event) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 %b Whatever\r\nlocation: /b\r\ncontent-length: 2\r\n\r\n" % status)
        assert await reader.read() == b""  # it is a connection of its own, and ended once the head has come
        ended.set()

    return answer


async def warned(market: Market, url: str, **fields: object) -> list[dict[str, Any]]:
    """The warnings of a create, which is answered all the same."""
    gate = await market.gate(targetUrl=url, **fields)
    found: list[dict[str, Any]] = gate.get("warnings", [])
    return found


@pytest.mark.parametrize(
    ("answer", "scheme", "why"),
    [
        (silent, "http", "the target did not answer a HEAD within 3 seconds"),
        (closing, "http", "the target closed the connection"),
        (babbling, "http", "the target"),
        (babbling, "https", "the target's TLS handshake failed"),
        (None, "http", "the target cannot be reached"),
    ],
)
async def test_a_target_that_does_not_answer_is_said_at_create_and_update_and_forbids_neither(
    market: Market, answer: Answer | None, scheme: str, why: str
) -> None:
    async with listening(answer or silent) as url:
        if answer is not None:
            await check(market, url.replace("http", scheme), why)
    if answer is None:
        await check(market, url, why)


async def check(market: Market, url: str, why: str) -> None:
    (warning,) = await warned(market, url)
    assert warning["field"] == "targetUrl"
    assert warning["message"].startswith(why)
    assert "every paid call ends in a 502" in warning["message"]
    gate = await market.gate()
    path = f"/api/v1/paygates/{gate['id']}"
    changed = await market.ask("PUT", path, body={"targetUrl": url})
    assert (changed.status, changed.json()["warnings"]) == (200, [warning])
    assert "warnings" not in (await market.ask("GET", path)).json()
    renamed = await market.ask("PUT", path, body={"title": "x"})  # what did not change is not asked again
    assert (renamed.status, renamed.json().get("warnings")) == (200, None)


@pytest.mark.parametrize("status", [b"200", b"201", b"204", b"401", b"404", b"405", b"500"])
async def test_whatever_a_target_answers_it_answers(market: Market, status: bytes) -> None:
    seen, ended = list[bytes](), asyncio.Event()
    async with listening(answering(status, seen, ended)) as url:
        assert await warned(market, url, targetHeaders={"x-key": "secret"}, method="POST") == []
        lines = (b"HEAD /a?own=1 HTTP/1.1", b"host: %b" % url.split("/")[2].encode(), b"user-agent: tollkeeper")
        assert seen == [b"\r\n".join((*lines, b"via: 1.1 tollkeeper", b"x-key: secret", b"", b""))]
        await asyncio.wait_for(ended.wait(), 30)


async def test_an_owner_is_told_that_the_target_asks_for_payment_itself(market: Market) -> None:
    async with listening(answering(b"402", [], asyncio.Event())) as url:
        (warning,) = await warned(market, url)
    assert warning["message"].startswith("the target itself asks for payment (402): every paid call ends in a 502")


@pytest.mark.parametrize("location", ["/a/", "https://shop.example/a"])
async def test_an_owner_is_told_that_the_target_redirects(market: Market, location: str) -> None:
    async def redirecting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 308 Moved\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % location.encode())
        await reader.read()

    async with listening(redirecting) as url:
        (warning,) = await warned(market, url)
        assert warning["field"] == "targetUrl"
        assert f"redirect (308) to {location}: callers pay" in warning["message"]
        gate = await market.gate()
        changed = await market.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"targetUrl": url})
        assert (changed.status, changed.json()["warnings"]) == (200, [warning])
