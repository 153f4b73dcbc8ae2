"""Behind nginx and Caddy as deploy/ configures them a caller finds what it finds without them."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import Scene, scene
from tests.deploy.proxies import NAMES, Proxy, proxy
from tests.gateway.recording_target import Received, Writer

MIB = 1024 * 1024
UPLOAD_MIB = 120
BODY_MIB = 20
SSE = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
PATHS = (
    "", "/", "/a//b", "/a%2Fb", "/a%2fb", "/%41", "/a%20b+c", "/a;v=1,2", "/caf%C3%A9", "/a%5Cb", "/a/./b", "/a/../b",
    "/a?x=1&x=2", "/a?x=%2F/&y=a%20b", "/a?", "?x=//", "/a%3Fb", "/a:b@c", "/~a_b-c.d", "/%E0%A4", "/a%23b",
)  # fmt: skip


def session(via: Proxy) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=via.trust), timeout=aiohttp.ClientTimeout(120))


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def events_arrive_one_by_one(town: Scene, via: Proxy, kind: bytes) -> None:
    gate = await town.gate(stream=True, credits=5)
    payment, _ = await town.buy(gate)
    seen = asyncio.Queue[int]()

    async def events(_request: Received, writer: Writer) -> None:
        writer.write(SSE % kind)
        for number in range(3):
            writer.write(chunk(b"data: %d\n\n" % number))
            await writer.drain()
            assert await asyncio.wait_for(seen.get(), 30) == number  # it would wait for ever if that were held back
        writer.write(b"0\r\n\r\n")

    usual, town.target.answer = town.target.answer, events
    async with session(via) as http, http.get(f"{via.url}/{gate['slug']}", headers={"X-Payment": payment}) as answer:
        assert answer.status == 200
        for number in range(3):
            assert await answer.content.readexactly(9) == b"data: %d\n\n" % number
            await seen.put(number)
        assert await answer.content.read() == b""
    town.target.answer = usual


async def paths_reach_the_target_as_they_were_sent(town: Scene, via: Proxy) -> None:
    gate = await town.gate(allowSubpaths=True, credits=100)
    payment, _ = await town.buy(gate)

    async def found(base: str, path: str) -> tuple[int, list[str]]:
        before = len(town.target.requests)
        url = URL(f"{base}/{gate['slug']}{path}", encoded=True)
        async with session(via) as http, http.get(url, headers={"X-Payment": payment}) as answer:
            await answer.read()
        return answer.status, [request.path for request in town.target.requests[before:]]

    direct = {path: await found(town.program.url, path) for path in PATHS}
    assert {status for status, _ in direct.values()} >= {200}
    assert {path: await found(via.url, path) for path in PATHS} == direct


async def a_large_body_is_forwarded(town: Scene, via: Proxy) -> None:
    gate = await town.gate(method="POST", credits=1)
    async with session(via) as http:
        url = f"{via.url}/{gate['slug']}"
        async with http.post(url) as unpaid:
            payment = town.buyer.sign(await unpaid.json())
        async with http.post(url, data=io.BytesIO(b"x" * BODY_MIB * MIB), headers={"X-Payment": payment}) as answer:
            assert answer.status == 200, await answer.read()
    assert len(town.target.requests[-1].body) == BODY_MIB * MIB


async def an_upload_arrives_as_it_is_sent(town: Scene, via: Proxy) -> None:
    bearer = {"Authorization": f"Bearer {await town.buyer.login(town.program.url)}"}
    data = town.site.database.parent

    async def content() -> AsyncIterator[bytes]:
        for number in range(UPLOAD_MIB):
            if number == UPLOAD_MIB // 2:  # the second half is not sent before the first half is there
                await town.until(lambda: held(data) > 0)
            yield bytes([number]) * MIB

    form = aiohttp.FormData({"price": "0.01", "resourceType": "file"})
    form.add_field("file", content(), filename="large.bin", content_type="application/octet-stream")
    async with session(via) as http:
        async with http.post(f"{via.url}/api/v1/paygates", data=form, headers=bearer) as created:
            made: dict[str, Any] = await created.json()
            assert (created.status, made.get("fileSize")) == (201, UPLOAD_MIB * MIB), made
        url = f"{via.url}/{made['slug']}"
        bought = await town.buyer.call(
            f"{town.program.url}/{made['slug']}", town.buyer.sign(await unpaid_body(http, url))
        )
        assert bought.status == 200, bought.body
        link = URL(bought.json()["downloadUrl"], encoded=True)
        async with http.get(URL(via.url).join(link.relative())) as download:
            assert len(await download.read()) == UPLOAD_MIB * MIB
    assert max((path.stat().st_size for path in via.folder.rglob("*") if path.is_file()), default=0) < MIB


async def unpaid_body(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    async with http.get(url) as unpaid:
        body: dict[str, Any] = await unpaid.json()
        return body


def held(data: Path) -> int:
    """The largest file, so far, of what is being uploaded."""
    return max((path.stat().st_size for path in (data / "files").rglob("*") if path.is_file()), default=0)


@pytest.mark.parametrize("name", NAMES)
async def test_streams_paths_and_uploads_pass(name: str, tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    async with scene(tmp_path / "home", embedded_chain) as town:
        with proxy(name, town.program.url, tmp_path / name) as via:
            await paths_reach_the_target_as_they_were_sent(town, via)
            for kind in (b"text/event-stream", b"application/x-ndjson"):
                await events_arrive_one_by_one(town, via, kind)
            await a_large_body_is_forwarded(town, via)
            await an_upload_arrives_as_it_is_sent(town, via)


@pytest.mark.parametrize("name", NAMES)
async def test_a_call_whose_answer_breaks_off_is_not_sent_again(name: str, tmp_path: Path) -> None:
    """A second try could use a second credit."""
    heads: list[bytes] = []

    async def ends_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    server = await asyncio.start_server(ends_early, "127.0.0.1", 0)
    async with server:
        upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with proxy(name, upstream, tmp_path / name) as via:
            async with session(via) as http, http.get(f"{via.url}/slug", headers={"X-Payment": "e30"}) as answer:
                assert answer.status == 502
            assert len(heads) == 1
            head = heads[0].lower()
            assert (b"x-payment: e30" in head, b"x-forwarded-for: 127.0.0.1" in head) == (True, True)


@pytest.mark.parametrize("name", NAMES)
async def test_nobody_speaks_for_another_address(name: str, tmp_path: Path) -> None:
    """The rightmost address that is no proxy's counts: the one that the proxy saw."""
    heads: list[bytes] = []

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        upstream = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with proxy(name, upstream, tmp_path / name) as via:
            forged = {"X-Forwarded-For": "198.51.100.7"}
            async with session(via) as http, http.get(f"{via.url}/slug", headers=forged) as answer:
                assert answer.status == 204
    assert b"x-forwarded-for: 127.0.0.1\r\n" in heads[0].lower()
