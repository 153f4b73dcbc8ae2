"""Answers of the running program that come before the body: the caller sees them, whatever it still sends (A-58)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest

from tests.described_answers import seen_raw
from tests.edge.callers import Answer, first_answer
from tests.gateway.market import Market

MIB = 1024 * 1024
LONG_BYTES = 8 * MIB  # more than the systems of both ends hold for one connection
MULTIPART = b"Content-Type: multipart/form-data; boundary=b"
JSON = b"Content-Type: application/json"
SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: gate\r\n\r\n"

# Method, path ("@" is a gate), header lines, status, code.
CASES = {
    "a payment is asked for": (b"POST", b"/@", (), 402, None),
    "no such gate": (b"POST", b"/Nowhere1", (), 404, "NOT_FOUND"),
    "a method that the gate does not take": (b"DELETE", b"/@", (), 405, "METHOD_NOT_ALLOWED"),
    "a payment that is nonsense": (b"POST", b"/@", (b"X-Payment: nonsense",), 402, "PAYMENT_INVALID"),
    "no such path": (b"POST", b"/api/v1/nowhere", (), 404, "NOT_FOUND"),
    "a method that the path does not take": (b"PATCH", b"/api/v1/paygates", (), 405, "METHOD_NOT_ALLOWED"),
    "a file without a login": (b"POST", b"/api/v1/paygates", (MULTIPART,), 401, "AUTH_REQUIRED"),
    "a bearer that is nobody's": (
        b"PUT",
        b"/api/v1/paygates/1",
        (MULTIPART, b"Authorization: Bearer x"),
        401,
        "INVALID_TOKEN",
    ),
    "a form in JSON that is too large": (b"POST", b"/api/v1/paygates", (JSON,), 413, "PAYLOAD_TOO_LARGE"),
    "a transfer that is too large": (b"POST", b"/api/v1/transfer", (JSON,), 413, "PAYLOAD_TOO_LARGE"),
    "a login that is too large": (b"POST", b"/api/v1/auth/login", (JSON,), 413, "PAYLOAD_TOO_LARGE"),
    "a verification that is too large": (b"POST", b"/hub/verify", (JSON,), 413, "PAYLOAD_TOO_LARGE"),
    "a settlement that is too large": (b"POST", b"/hub/settle", (JSON,), 413, "PAYLOAD_TOO_LARGE"),
}


def said_to(url: str, head: bytes, body: bytes, *, after_bytes: int | None = None) -> Answer:
    """What a caller gets who sends all before it reads; a reset is an error.

    `after_bytes`: it sends so much of the body, and the rest when it sees the answer begin.
    """
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as line:
        line.sendall(head)
        said = b""
        for start in range(0, len(body), 65_536):
            if start == after_bytes:
                said = line.recv(65_536)
            line.sendall(body[start : start + 65_536])
        while part := line.recv(65_536):
            said += part
    method, path, _ = head.decode("latin-1").split(" ", 2)
    answered, _, content = said.partition(b"\r\n\r\n")
    seen_raw(method, url + path, answered, content)
    return first_answer(said)


@pytest.fixture
async def slug(market: Market) -> AsyncIterator[bytes]:
    gate = await market.gate(method="POST")
    yield gate["slug"].encode()
    assert market.target.requests == []


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("framing", ["length", "chunked", "expect"])
async def test_an_answer_before_a_long_body_is_seen_and_what_follows_is_no_request(
    market: Market, slug: bytes, name: str, framing: str
) -> None:
    method, path, lines, status, code = CASES[name]
    body = (SMUGGLED * (LONG_BYTES // len(SMUGGLED) + 1))[:LONG_BYTES]
    framed = [b"Transfer-Encoding: chunked" if framing == "chunked" else b"Content-Length: %d" % len(body)]
    framed += [b"Expect: 100-continue"] if framing == "expect" else []
    head = b"%b %b HTTP/1.1\r\nHost: gate\r\n" % (method, path.replace(b"@", slug))
    head += b"".join(line + b"\r\n" for line in (*lines, *framed)) + b"\r\n"
    if framing == "chunked":
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    answer = await asyncio.to_thread(said_to, market.stack.gateway_url, head, body)
    assert (answer.status, answer.headers[b"connection"], answer.rest) == (status, b"close", b"")
    error = json.loads(answer.body)["error"]
    assert (error["code"] if isinstance(error, dict) else None) == code


async def test_a_target_s_answer_before_the_body_is_the_caller_s(market: Market) -> None:
    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                while await reader.read(65_536):
                    pass
        finally:
            writer.close()

    server = await asyncio.start_server(answers, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        gate = await market.gate(method="POST", credits=2, targetUrl=f"http://127.0.0.1:{port}/")
        payment = await market.payment(gate)
        for remaining in (b"1", b"0"):
            lines = b"Host: gate\r\nX-Payment: %b\r\nContent-Length: %d\r\n" % (payment.encode(), LONG_BYTES)
            head = b"POST /%b HTTP/1.1\r\n%b\r\n" % (gate["slug"].encode(), lines)
            # More than a mebibyte is left when the answer comes: else the rest would be read, and the connection kept.
            told = partial(said_to, market.stack.gateway_url, head, bytes(LONG_BYTES), after_bytes=65_536)
            answer = await asyncio.to_thread(told)
            assert (answer.status, answer.body, answer.headers[b"connection"]) == (413, b"much", b"close")
            assert answer.headers[b"x-credits-remaining"] == remaining
