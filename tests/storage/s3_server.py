"""A server of S3's protocol (moto's) on a free port of this machine."""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web
from moto.server import ThreadedMotoServer
from yarl import URL

_KEPT: Final = ("Content-Type", "Content-Range", "Content-Length", "ETag", "Last-Modified")


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """Its URL; with these buckets, empty."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        url = "http://{}:{}".format(*server.get_host_and_port())
        for bucket in buckets:
            urllib.request.urlopen(urllib.request.Request(f"{url}/{bucket}", method="PUT")).close()  # noqa: S310  own
        yield url
    finally:
        server.stop()


def access_to(url: str) -> dict[str, str]:
    """The environment by which any S3 client finds the server."""
    keys = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    return {"AWS_ENDPOINT_URL": url, "AWS_REGION": "us-east-1", **keys}


@dataclass
class Gate:
    """Shut, it takes connections and requests, and nothing comes of them."""

    is_shut: bool = False


@asynccontextmanager
async def gated(url: str) -> AsyncIterator[tuple[str, Gate]]:
    """A server before the one at `url` that can say nothing for a while."""
    gate, place, tasks = Gate(), urlsplit(url), set[asyncio.Task[None]]()

    async def carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if not gate.is_shut:
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        behind_reader, behind_writer = await asyncio.open_connection(place.hostname, place.port)
        try:
            with suppress(ConnectionError, asyncio.CancelledError):
                await asyncio.gather(carried(reader, behind_writer), carried(behind_reader, writer))
        finally:
            for one in (writer, behind_writer):
                one.transport.abort()
            await asyncio.sleep(0)
            tasks.discard(task)

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname()[:2]), gate
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def refusing(url: str, right: str) -> AsyncIterator[str]:
    """A server before the one at `url` for somebody who lacks a right: PUT, POST (to delete), GET, HEAD or LIST."""

    async def answered(request: web.BaseRequest) -> web.Response:
        asked = "LIST" if "list-type" in request.query else request.method
        if asked == right:
            return web.Response(status=403)
        headers = {name: value for name, value in request.headers.items() if name.lower() != "host"}
        sent = (request.method, URL(url + request.raw_path, encoded=True))
        async with http.request(*sent, headers=headers, data=await request.read()) as answer:
            kept = {name: answer.headers[name] for name in _KEPT if name in answer.headers}
            return web.Response(status=answer.status, headers=kept, body=await answer.read() or None)

    server = web.Server(answered)
    runner = web.ServerRunner(server)
    await runner.setup()
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield "http://{}:{}".format(*runner.addresses[0][:2])
        finally:
            await runner.cleanup()
