"""The way from a worker to the hub's process: whose answer is whose, and what passes (decision 0054)."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import aiohttp
from yarl import URL

from tests.edge.targets import OK, Behaviour, Connection, Target, sized, target
from tollkeeper.serving.access import AccessLog, Mounted
from tollkeeper.serving.http_server import HttpServer, listen
from tollkeeper.serving.hub_proxy import HubProxy


@contextlib.asynccontextmanager
async def proxied(behave: Behaviour) -> AsyncIterator[tuple[str, Target, aiohttp.ClientSession]]:
    """Where a worker serves a hub that does as told, that hub, and who asks the worker."""
    async with target(behave) as there:
        proxy = HubProxy(there.url)
        app = AccessLog(Mounted(proxy, "/hub", proxy))
        async with HttpServer(app, listen("127.0.0.1", 0)) as server, aiohttp.ClientSession() as http:
            try:
                yield server.url + "/hub", there, http
            finally:
                await proxy.close()


def name_of(head: bytes) -> bytes:
    (line,) = (line for line in head.split(b"\r\n") if line.lower().startswith(b"x-correlation-id: "))
    return line.split(b": ")[1]


def named(head: bytes, body: bytes) -> bytes:
    """An answer that names the request as our hub does."""
    return sized(body, b"X-Correlation-Id: " + name_of(head))


async def test_an_answer_that_comes_twice_is_not_the_next_requests() -> None:
    """Also where every request has the same name, or none, for its caller."""

    async def answer_twice(connection: Connection) -> None:
        first, _ = await connection.request()
        await connection.send(named(first, b'{"success": true}'))
        if connection.target.connections == 1:
            second, _ = await connection.request()
            await connection.send(named(first, b'{"success": true}'), named(second, b'{"success": false}'))
        await connection.wait_closed()

    for headers in ({}, {"X-Correlation-Id": "mine"}):
        async with proxied(answer_twice) as (url, there, http):
            async with http.post(url + "/settle", data=b"{}", headers=headers) as answer:
                assert (answer.status, await answer.json(content_type=None)) == (200, {"success": True})
            async with http.post(url + "/transfer", data=b"{}", headers=headers) as answer:
                told = json.loads(await answer.read())
                assert (answer.status, told["error"]["code"]) == (503, "UNAVAILABLE"), told
                assert answer.headers.getall("X-Correlation-Id", []) == list(headers.values())
            async with asyncio.timeout(5):
                while there.connections < 2:
                    async with http.post(url + "/transfer", data=b"{}", headers=headers) as answer:
                        assert await answer.read() != b'{"success": false}' or there.connections == 2


async def test_an_answer_that_comes_before_its_request_is_nobodys() -> None:
    async def answer_ahead(connection: Connection) -> None:
        first, _ = await connection.request()
        await connection.send(named(first, b"{}"))
        if connection.target.connections == 1:
            await connection.send(named(first, b'{"success": true}'))
        await connection.wait_closed()

    async with proxied(answer_ahead) as (url, there, http):
        for _ in range(2):
            async with http.post(url + "/settle", data=b"{}") as answer:
                assert (answer.status, await answer.read()) == (200, b"{}")
            await asyncio.sleep(0.1)
        assert there.connections == 2


async def test_what_is_asked_and_answered_passes_as_it_is_but_for_the_name() -> None:
    async def answer(connection: Connection) -> None:
        while True:
            head, body = await connection.request()
            name = b"X-Correlation-Id: " + name_of(head)
            if head.startswith(b"HEAD"):
                await connection.send(OK + b"Content-Length: 77\r\nX-Request-Id: r\r\n" + name + b"\r\n\r\n")
            elif head.startswith(b"DELETE"):
                await connection.send(b"HTTP/1.1 204 No Content\r\nX-Request-Id: r\r\n" + name + b"\r\n\r\n")
            else:
                await connection.send(sized(body, b"X-Request-Id: r", b"X-A: b", name))

    async with proxied(answer) as (url, there, http):
        headers = {"X-Correlation-Id": "mine", "X-B": "c"}
        async with http.post(url + "/a%20b?c=d%26", data=b"body", headers=headers) as told:
            assert (told.status, await told.read()) == (200, b"body")
            assert [told.headers[name] for name in ("X-Request-Id", "X-A", "X-Correlation-Id")] == ["r", "b", "mine"]
            assert len(told.headers.getall("X-Correlation-Id")) == 1
        assert there.heads[0].startswith(b"POST /a%20b?c=d%26 HTTP/1.1\r\n")
        assert b"\r\nx-b: c\r\n" in there.heads[0].lower()
        assert name_of(there.heads[0]) != b"mine"
        async with http.head(url + "/a") as told:
            assert (told.status, told.headers["Content-Length"]) == (200, "77")
            assert "X-Correlation-Id" not in told.headers
        async with http.delete(url + "/a") as told:
            assert (told.status, await told.read()) == (204, b"")
        assert there.connections == 1


async def test_a_path_that_cannot_be_sent_is_no_path() -> None:
    async def answer(connection: Connection) -> None:
        await connection.request()

    async with proxied(answer) as (url, there, http):
        async with http.get(URL(url.replace("/hub", "/%68ub") + "/%C3%A9", encoded=True)) as told:
            assert told.status == 404
        assert there.connections == 0
