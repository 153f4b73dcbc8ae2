"""What passed through a call is let go with it, and not when the collector comes (security A-58)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, Writer, answer_ok, recording_target
from tests.gateway.test_signed_bodies import SIGNED_BYTES, letting_go, send
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CALLS = 5
PART = bytes(50_000)
LENGTH = 5 * 1024 * 1024
HELD_BYTES = CALLS * len(PART) // 2
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % LENGTH


async def answer_in_parts(_request: Received, writer: Writer) -> None:
    """Six parts in chunks, one after the other."""
    writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    for _ in range(6):
        writer.write(b"%x\r\n%b\r\n" % (len(PART), PART))
        await writer.drain()
        await asyncio.sleep(0.01)
    writer.write(b"0\r\n\r\n")


async def break_off(_request: Received, writer: Writer) -> None:
    """One part of many, and no more."""
    writer.write(HEAD + PART)
    await writer.drain()
    await asyncio.sleep(0.02)
    writer.close()


async def answer_much(_request: Received, writer: Writer) -> None:
    """More than any caller's connection takes at once."""
    writer.write(HEAD + bytes(LENGTH))
    await writer.drain()


@dataclass(frozen=True)
class Case:
    """What passes: a body of so many bytes, and the answer, which the caller reads none of where he `leaves`."""

    answer: Any = answer_ok
    size_bytes: int = 0
    leaves: bool = False
    fields: dict[str, Any] = field(default_factory=dict)


CASES = {
    "signed, its answer streamed": Case(answer_ok, SIGNED_BYTES, fields={"headerAuthMode": "hmac", "stream": True}),
    "signed, answered in parts": Case(answer_in_parts, SIGNED_BYTES, fields={"headerAuthMode": "hmac"}),
    "answered in parts": Case(answer_in_parts),
    "streamed, and broken off": Case(break_off, fields={"stream": True}),
    "streamed to a caller who leaves": Case(answer_much, leaves=True, fields={"stream": True}),
    "on disk, for a caller who leaves": Case(answer_much, leaves=True),
}


async def read(url: str, payment: str, *, leaves: bool) -> None:
    """One call, its answer read to the end of the connection; or none of it."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=1024)
    writer.write(f"GET {place.path} HTTP/1.1\r\nHost: a\r\nX-Payment: {payment}\r\nConnection: close\r\n\r\n".encode())
    if leaves:
        await asyncio.sleep(0.3)
        writer.transport.abort()
        return
    while await reader.read(65_536):
        pass
    writer.close()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_passed_is_let_go_with_its_call(embedded_chain: ChainUnderTest, tmp_path: Path, case: Case) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "gateway.db") as url,
        recording_target() as target,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        fields = {"targetUrl": target.url, "price": "0.01", "credits": 50, "method": "GET,POST", **case.fields}
        gate = (await buyer.ask("POST", f"{url}/api/v1/paygates", body=fields)).json()
        payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
        assert (await buyer.call(gate["accessUrl"], payment)).status == 200
        target.answer = case.answer
        async with letting_go(HELD_BYTES):
            for _ in range(CALLS):
                if case.size_bytes:
                    assert b" 200 " in await send(gate["accessUrl"], payment, size_bytes=case.size_bytes)
                else:
                    await read(gate["accessUrl"], payment, leaves=case.leaves)
