"""The way to a facilitator at a URL: connections kept, answers bounded, nothing believed that did not come whole."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.edge.targets import OK, Behaviour, Connection, Target, answers, serves, sized, target
from tollkeeper.api import Shell
from tollkeeper.gateway.facilitator.client import HubUnreachableError
from tollkeeper.gateway.facilitator.transports import ANSWER_SIZE_BYTES, AsgiTransport, HttpTransport


@contextlib.asynccontextmanager
async def facilitator(behave: Behaviour) -> AsyncIterator[tuple[HttpTransport, Target]]:
    async with target(behave) as there:
        transport = HttpTransport(there.url + "/base/")
        try:
            yield transport, there
        finally:
            await transport.close()


async def test_requests_share_a_connection_and_go_below_the_base_path() -> None:
    async with facilitator(serves(sized(b"{}"))) as (transport, there):
        for body in (b"one", b"two"):
            assert await transport.request("POST", "/verify", {"x-a": "b"}, body, 5) == (200, b"{}")
        assert (there.connections, there.bodies) == (1, [b"one", b"two"])
        assert there.heads[0].startswith(b"POST /base/verify HTTP/1.1\r\n")
        assert b"\r\nx-a: b\r\n" in there.heads[0]


async def test_a_hub_in_the_process_has_its_time_and_answers_for_no_task_that_is_cancelled() -> None:
    """Only whoever listens tells a caller that a stop has cut him."""

    async def waits(_scope: Any, _receive: Any, _send: Any) -> None:
        await asyncio.Event().wait()

    transport = AsgiTransport(Shell(waits))
    with pytest.raises(HubUnreachableError, match="timeout"):
        await transport.request("POST", "/verify", {}, b"{}", 0.05)
    asking = asyncio.create_task(transport.request("POST", "/verify", {}, b"{}", 20))
    await asyncio.sleep(0.05)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


def redirect(location: str) -> bytes:
    return f"HTTP/1.1 308 Permanent Redirect\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def redirects(location: str) -> Behaviour:
    """Sends whoever asks below its base path elsewhere, and answers there."""

    async def behave(connection: Connection) -> None:
        while True:
            await connection.request()
            is_first = connection.target.heads[-1].split(b" ")[1].startswith(b"/base/")
            await connection.send(redirect(location) if is_first else sized(b"{}"))

    return behave


@pytest.mark.parametrize("location", ["/supported/", "../supported?a=b"])
async def test_a_get_follows_a_redirect_on_the_same_host(location: str) -> None:
    async with facilitator(redirects(location)) as (transport, there):
        assert await transport.request("GET", "/supported", {}, b"", 5) == (200, b"{}")
        assert [head.split(b" ")[1] for head in there.heads] == [
            b"/base/supported",
            b"/" + location.lstrip("./").encode(),
        ]


@pytest.mark.parametrize("path", ["/settle", "/verify", "/transfer"])
async def test_a_redirect_of_a_payment_is_named_and_never_followed(path: str) -> None:
    async with facilitator(redirects("/elsewhere")) as (transport, there):
        with pytest.raises(HubUnreachableError, match=r"POST .* is redirected to http://127\.0\.0\.1:\d+/elsewhere"):
            await transport.request("POST", path, {}, b"{}", 5)
        assert len(there.heads) == 1


@pytest.mark.parametrize("location", ["https://127.0.0.1/base/supported", "http://127.0.0.1:1/", "//other.example/x"])
async def test_a_redirect_to_another_host_is_named_and_not_followed(location: str) -> None:
    async with facilitator(serves(redirect(location))) as (transport, there):
        with pytest.raises(HubUnreachableError, match=r"is redirected to http.*set hub_url"):
            await transport.request("GET", "/supported", {}, b"", 5)
        assert len(there.heads) == 1


async def test_a_redirect_without_end_is_not_followed_for_ever() -> None:
    async with facilitator(serves(redirect("/base/supported"))) as (transport, there):
        with pytest.raises(HubUnreachableError, match="is redirected to"):
            await transport.request("GET", "/supported", {}, b"", 5)
        assert len(there.heads) < 6


async def test_what_names_no_place_is_an_answer() -> None:
    nowhere = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n"
    async with facilitator(serves(nowhere)) as (transport, _):
        assert await transport.request("GET", "/supported", {}, b"", 5) == (302, b"")


@pytest.mark.parametrize(
    "behave",
    [
        answers(wait=False),
        answers(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", wait=False),
        answers(b"nonsense\r\n\r\n"),
        serves(sized(bytes(ANSWER_SIZE_BYTES + 1))),
    ],
    ids=["nothing", "half", "nonsense", "too much"],
)
async def test_what_is_no_whole_answer_is_none(behave: Behaviour) -> None:
    async with facilitator(behave) as (transport, _):
        with pytest.raises(HubUnreachableError) as none:
            await transport.request("POST", "/settle", {}, b"{}", 5)
        assert "target" not in str(none.value), "an operator has set no target"


def _named(request: bytes, body: bytes) -> bytes:
    """An answer that names the request as our hub does."""
    (name,) = (line for line in request.split(b"\r\n") if line.lower().startswith(b"x-correlation-id: "))
    return OK + name + b"\r\nContent-Length: %d\r\n\r\n" % len(body) + body


async def test_an_answer_that_comes_twice_is_not_the_next_requests() -> None:
    async def answer_twice(connection: Connection) -> None:
        first, _ = await connection.request()
        await connection.send(_named(first, b'{"success": true}'))
        if connection.target.connections > 1:
            await connection.wait_closed()
            return
        second, _ = await connection.request()
        await connection.send(_named(first, b'{"success": true}'), _named(second, b'{"success": false}'))
        await connection.wait_closed()

    async with facilitator(answer_twice) as (transport, there):
        assert await transport.request("POST", "/settle", {}, b"{}", 5) == (200, b'{"success": true}')
        with pytest.raises(HubUnreachableError, match="another request's"):
            await transport.request("POST", "/transfer", {}, b"{}", 5)
        async with asyncio.timeout(5):
            while there.connections < 2:
                with contextlib.suppress(HubUnreachableError):
                    await transport.request("POST", "/transfer", {}, b"{}", 5)


async def test_a_connection_that_is_one_answer_behind_is_not_used_again() -> None:
    async def one_behind(connection: Connection) -> None:
        asked, _ = await connection.request()
        await connection.send(_named(asked, b"{}"))
        while True:
            following, _ = await connection.request()
            await connection.send(_named(asked, b"{}"))
            asked = following

    async with facilitator(one_behind) as (transport, there):
        await transport.request("POST", "/settle", {}, b"{}", 5)
        with pytest.raises(HubUnreachableError, match="another request's"):
            await transport.request("POST", "/settle", {}, b"{}", 5)
        assert await transport.request("POST", "/settle", {}, b"{}", 5) == (200, b"{}")
        assert there.connections == 2


async def test_the_largest_answer_comes_through() -> None:
    async with facilitator(serves(sized(bytes(ANSWER_SIZE_BYTES)))) as (transport, _):
        assert len((await transport.request("GET", "/supported", {}, b"", 5))[1]) == ANSWER_SIZE_BYTES


async def test_the_time_counts_from_the_request_to_the_whole_answer() -> None:
    async def dribble(connection: Connection) -> None:
        await connection.request()
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n")
        while True:
            await connection.send(b".")
            await asyncio.sleep(0.05)

    async with facilitator(dribble) as (transport, there):
        with pytest.raises(HubUnreachableError):
            await transport.request("POST", "/settle", {}, b"{}", 0.3)
        await asyncio.wait_for(there.lost.wait(), 5)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://user:word@127.0.0.1", "ftp://127.0.0.1"])
async def test_a_facilitator_that_cannot_be_reached_is_unreachable(url: str) -> None:
    transport = HttpTransport(url)
    with pytest.raises(HubUnreachableError) as none:
        await transport.request("GET", "/supported", {}, b"", 5)
    assert "target" not in str(none.value)
    await transport.close()
