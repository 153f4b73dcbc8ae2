"""A paid request whose body turns out malformed, or ends too soon: what was charged is told with its 400."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.recording_target import Received, RecordingTarget, Writer
from tests.gateway.test_leaving import LeftShop, shop
from tollkeeper.edge.presence import CONTINUE

CHUNKED = "Transfer-Encoding: chunked"
# What is sent after the head, a part at a time, and how its length is told; the last None ends the caller's side.
BROKEN: dict[str, tuple[str, list[bytes | None]]] = {
    "at once": (CHUNKED, [b"5\r\nhello\r\nZZ\r\n"]),
    "behind its head": (CHUNKED, [b"5\r\nhello\r\n", b"ZZ\r\n"]),
    "in its trailer": (CHUNKED, [b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n"]),
    "cut short": ("Content-Length: 10", [b"hello", None]),
}


async def _send(there: LeftShop, head: str, parts: list[bytes | None]) -> tuple[bytes, dict[str, Any]]:
    reader, writer = await there.connect()
    with contextlib.closing(writer):
        writer.write(head.encode())
        for part in parts:
            if part is None:
                writer.write_eof()
            else:
                writer.write(part)
            await asyncio.sleep(0.3)
        said = (await asyncio.wait_for(reader.read(), 10)).removeprefix(CONTINUE)
    head_bytes, _, body = said.partition(b"\r\n\r\n")
    return head_bytes, json.loads(body)


async def _unanswered(got: Received, writer: Writer) -> None:
    await got.reader.read()
    writer.close()


@pytest.mark.parametrize("binding", ["payment", "token"])
@pytest.mark.parametrize("signing", ["none", "hmac"])
@pytest.mark.parametrize("how", BROKEN)
async def test_a_paid_request_with_a_broken_body_is_told_what_it_cost(
    how: str, signing: str, binding: str, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """On the call that buys, which learns its credit token, and on a held credit."""
    target.answer = _unanswered
    length, parts = BROKEN[how]
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST", headerAuthMode=signing, creditBinding=binding)
        proof = f"X-Payment: {await there.payment(gate, 'POST')}"
        for left in (19, 18):
            head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\n{proof}\r\n{length}\r\n\r\n"
            answer, body = await _send(there, head, parts)
            assert answer.startswith(b"HTTP/1.1 400 "), answer
            assert body["error"]["code"] == "INVALID_PARAMETER"
            assert b"\r\nx-credits-remaining: %d\r\n" % left in answer
            assert b"\r\nconnection: close" in answer
            assert answer.count(b"\r\nx-credit-token: ") == (left == 19)
            if left == 19:
                token = answer.partition(b"\r\nx-credit-token: ")[2].partition(b"\r\n")[0].decode()
                proof = f"X-Credit-Token: {token}"
    assert there.calls() == {("DONE", 400): 2}
    assert there.outcomes(gate) == {("failed", 400, "INVALID_PARAMETER"): 2}


async def test_a_broken_request_that_waits_for_its_turn_is_charged_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain.url, target, tmp_path) as there:
        gate = await there.gate(credits=20, method="POST")
        payment = await there.payment(gate, "POST")
        head = f"POST /{gate['slug']} HTTP/1.1\r\nHost: x\r\nX-Payment: {payment}\r\n"
        whole, broken = f"{head}Content-Length: 0\r\n\r\n", f"{head}{CHUNKED}\r\n\r\nZZ\r\n"
        reader, writer = await there.connect()
        with contextlib.closing(writer):
            writer.write((whole + broken).encode())
            said = await asyncio.wait_for(reader.read(), 10)
    assert re.findall(rb"HTTP/1\.1 (\d+)", said) == [b"200", b"400"]
    assert there.calls() == {("DONE", 200): 1}
