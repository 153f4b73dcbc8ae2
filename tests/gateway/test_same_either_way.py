"""Two gates, the same exchanges: a head that came before is answered and charged as a new one is.

One gate's callers send a new head each time, so that every step of theirs is read and judged; the other's send the same
bytes. Targets answer in all shapes, callers send, end and leave in several. Answers, what targets are sent, credits,
the books and the statistics are the same, but for ids and dates.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import socket
import sqlite3
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.targets import certificate
from tests.gateway.composed import composed
from tests.gateway.recording_target import Received, RecordingTarget, Writer, recording_target
from tests.gateway.same_bytes import request
from tests.gateway.shop import Shop
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

STEPS = 40
CREDITS = 200
LATE_SECONDS = 0.2
TURNS = 50  # of the loop that caller, program and target share
OWN_TO_CALLER = {"x-request-id", "x-purchase-id", "x-payment-response"}
OWN_TO_TARGET = {"x-request-id", "x-purchase-id", "x-number", "host", "x-paygate-slug"}
JSON = b'{"served":true}'
Pieces = list[bytes | float | None]  # what a target writes, waits (seconds), and None where it closes


def ok(body: bytes, *lines: bytes, status: bytes = b"200 OK", version: bytes = b"1.1") -> bytes:
    head = b"".join(line + b"\r\n" for line in (b"HTTP/%b %b" % (version, status), *lines))
    return head + b"content-length: %d\r\n\r\n%b" % (len(body), body)


DATE = b"date: Mon, 02 Nov 2026 10:00:00 GMT"
ANSWERS: dict[str, Pieces] = {
    "plain": [ok(JSON)],
    "late": [LATE_SECONDS, ok(JSON)],
    "dated": [ok(JSON, DATE)],
    "longer": [ok(JSON * 3)],
    "empty": [ok(b"")],
    "html": [ok(b"<p>", b"content-type: text/html")],
    "in pieces": [ok(JSON)[:30], 0.01, ok(JSON)[30:]],
    "body late": [ok(JSON)[:-15], 0.01, JSON],
    "early hints": [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + ok(JSON)],
    "continue first": [b"HTTP/1.1 100 Continue\r\n\r\n", 0.01, ok(JSON)],
    "many hints": [b"HTTP/1.1 103 Early Hints\r\n\r\n" * 12 + ok(JSON)],
    "closes": [ok(JSON, b"connection: close"), None],
    "closes in silence": [ok(JSON), None],
    "says close and stays": [ok(JSON, b"connection: close")],
    "answers twice": [ok(JSON) + ok(b"other")],
    "answers twice, known": [ok(JSON) + ok(JSON)],
    "one byte more": [ok(JSON) + b"x"],
    "an empty line more": [ok(JSON) + b"\r\n"],
    "no content": [b"HTTP/1.1 204 No Content\r\n\r\n"],
    "no content, with one": [b"HTTP/1.1 204 No Content\r\n\r\n" + JSON],
    "not modified": [b'HTTP/1.1 304 Not Modified\r\netag: "a"\r\n\r\n'],
    "not modified, of some length": [b"HTTP/1.1 304 Not Modified\r\ncontent-length: 15\r\n\r\n"],
    "a part": [ok(JSON, b"content-range: bytes 0-14/99", status=b"206 Partial Content")],
    "switches": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
    "a short promise": [ok(JSON, b"keep-alive: timeout=1")],
    "a promise": [ok(JSON, b"keep-alive: timeout=3")],
    "of old": [ok(JSON, version=b"1.0")],
    "of old, kept": [ok(JSON, b"connection: keep-alive", version=b"1.0")],
    "chunks": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nf\r\n" + JSON + b"\r\n0\r\n\r\n"],
    "trailers": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\nx-a: b\r\n\r\n"],
    "chunks and length": [b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n"],
    "to the end": [b"HTTP/1.1 200 OK\r\n\r\n" + JSON, None],
    "cut": [ok(JSON)[:-4], None],
    "cut head": [ok(JSON)[:20], None],
    "nothing": [None],
    "no HTTP": [b"hello\r\n\r\n"],
    "two lengths": [ok(JSON, b"content-length: 15")],
    "error": [ok(JSON, status=b"500 Oh")],
    "not found": [ok(JSON, status=b"404 No")],
    "asks to pay": [ok(JSON, status=b"402 Pay")],
    "odd headers": [
        ok(
            JSON,
            b"x-payment-response: mine",
            b"set-cookie: a=b",
            b"x-credits-remaining: 9",
            b"connection: x-a",
            b"x-a: 1",
        )
    ],
    "large": [ok(b"y" * 70_000)],
    "larger": [ok(b"z" * 1_200_000)],
    "empty lines first": [b"\r\n\r\n" + ok(JSON)],
    "bare lines": [ok(JSON).replace(b"\r\n", b"\n")],
    "folded": [ok(JSON, b"x-a: b\r\n c")],
    "a body like a head": [ok(b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")],
    "stray spaces": [ok(JSON, b"x-a:   b  ")],
    "another case": [ok(JSON).replace(b"content-length", b"CONTENT-LENGTH")],
    "underscores": [ok(JSON).replace(b"content-length", b"content_length"), None],
}
KNOWN = ("plain", "dated", "longer", "empty", "html", "no content", "a part", "error", "a promise")
CALLERS = (
    "whole",
    "whole",
    "whole",
    "whole",
    "two parts",
    "ends",
    "sent ahead",
    "behind another",
    "bytes first",
    "leaves",
)


@dataclass(frozen=True)
class Step:
    answers: tuple[str, str]
    caller: str
    method: str
    body: bytes
    pause: float


def steps(seed: int) -> list[Step]:
    dice = random.Random(seed)
    made = []
    for _ in range(STEPS):
        names = [dice.choice(KNOWN if dice.random() < 0.5 else tuple(ANSWERS)) for _ in range(2)]
        method = dice.choice(["GET"] * 6 + ["POST", "POST", "PUT", "HEAD"])
        body = dice.choice([b"", b"a", b"other", b"\r\n\r\n", b"q" * 3000]) if method in {"POST", "PUT"} else b""
        caller = dice.choice(CALLERS)
        if caller == "sent ahead" and None in ANSWERS[names[0]]:
            names[0] = "plain"  # whether the next call meets that end or comes behind it is chance
        made.append(Step((names[0], names[1]), caller, method, body, dice.choice([0.03, 0.03, 0.06])))
    return made


class Side:
    """One gate and its target, whose answers are told in advance."""

    def __init__(self, target: RecordingTarget, gate: dict[str, Any], payment: str, *, is_new: bool) -> None:
        self.target, self.gate, self.payment, self.is_new = target, gate, payment, is_new
        self.number = 0
        self.answers: list[str] = []
        target.answer = self.answer
        self.has_come = asyncio.Event()
        self.connection: tuple[asyncio.StreamReader, Writer] | None = None

    async def answer(self, received: Received, writer: Writer) -> None:
        self.has_come.set()
        name = self.answers.pop(0) if self.answers else "plain"
        if received.method == "HEAD" and name not in (*KNOWN, "late"):
            name = "plain"
        for piece in ANSWERS[name]:
            if piece is None:
                writer.close()
                return
            if isinstance(piece, float):
                await asyncio.sleep(piece)
            elif received.method == "HEAD":
                writer.write(piece.partition(b"\r\n\r\n")[0] + b"\r\n\r\n")
                await writer.drain()
                return
            else:
                writer.write(piece)
                await writer.drain()

    def data(self, step: Step) -> bytes:
        self.number += self.is_new
        length = f"Content-Length: {len(step.body)}\r\n" if step.method in {"POST", "PUT"} else ""
        more = f"X-Number: {self.number:012d}\r\nX-Payment: {self.payment}\r\n{length}"
        return request(self.gate, step.method, more) + step.body

    async def take(self, step: Step) -> list[tuple[Any, ...]]:
        """The answers to the calls of this step."""
        if self.connection is None:
            parts = urlsplit(self.gate["accessUrl"])
            self.connection = await asyncio.open_connection(parts.hostname, parts.port)
        reader, writer = self.connection
        self.answers = ["late"] if step.caller == "leaves" else list(step.answers)
        self.has_come.clear()
        first, *later = self.parts(step)
        writer.write(first)
        for part in later:
            await asyncio.sleep(0.002)
            writer.write(part)
        if step.caller == "leaves":
            await self.leave(writer)
            return []
        if step.caller == "ends":
            writer.write_eof()  # with the call, long before its answer
        asked = {"sent ahead": [step.method] * 2, "behind another": ["GET", step.method]}.get(
            step.caller, [step.method]
        )
        answers = [await read(reader, method) for method in asked]
        if step.caller == "ends":
            answers.append(("end", await asyncio.wait_for(reader.read(), 20)))
            await self.close()
        await asyncio.sleep(step.pause)
        for _ in range(TURNS):  # else a call could meet the end of a connection half-way
            await asyncio.sleep(0)
        return answers

    def parts(self, step: Step) -> list[bytes]:
        """What the caller sends, one after the other."""
        data = self.data(step)
        if step.caller == "two parts":
            return [data[:40], data[40:]]
        if step.caller == "sent ahead":
            return [data, self.data(step)]
        if step.caller == "behind another":
            return [b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n", data]
        return [b"\r\n", data] if step.caller == "bytes first" else [data]

    async def leave(self, writer: Writer) -> None:
        """Be gone once the target has the call, with a reset, which is seen at once."""
        await asyncio.wait_for(self.has_come.wait(), 20)
        reset = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
        await self.close()
        await asyncio.sleep(LATE_SECONDS + 0.1)

    async def close(self) -> None:
        if self.connection is not None:
            _, writer = self.connection
            self.connection = None
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def sent(self) -> list[tuple[Any, ...]]:
        """What the target was sent since it was asked last."""
        told = [
            (
                one.method,
                one.path,
                [(name, "" if name in OWN_TO_TARGET else value) for name, value in one.headers],
                one.body,
            )
            for one in self.target.requests
        ]
        self.target.requests.clear()
        return told


async def read(reader: asyncio.StreamReader, method: str) -> tuple[Any, ...]:
    """The next answer without what is each answer's own."""
    head = b""
    while not head or head.startswith(b"HTTP/1.1 100 "):  # by which a caller who ends is asked whether it is there
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
    first, *lines = head.decode().strip().split("\r\n")
    pairs = [(name.lower(), value) for name, _, value in (line.partition(": ") for line in lines)]
    headers = dict(pairs)
    is_empty = method == "HEAD" or first.split(" ")[1] in {"204", "304"}
    body = await asyncio.wait_for(reader.readexactly(0 if is_empty else int(headers["content-length"])), 20)
    is_own_date = headers.get("date", "") not in DATE.decode()
    own = OWN_TO_CALLER | {"date"} if is_own_date else OWN_TO_CALLER
    shown = sorted((name, "" if name in own else value) for name, value in pairs)
    return first, shown, re.sub(rb'"(timestamp|requestId)":"[^"]*"', b"", body)


WAYS = [(wire, on_failure) for wire in ("plain", "tls") for on_failure in ("consume", "restore")]


@pytest.mark.long
@pytest.mark.parametrize(("wire", "on_failure"), WAYS)
@pytest.mark.parametrize("seed", range(5))
async def test_a_head_that_came_before_is_answered_and_charged_as_a_new_one(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
    wire: str,
    on_failure: str,
) -> None:
    server = None
    if wire == "tls":
        server, _ = certificate(tmp_path, "localhost")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "localhost.pem"))
    path = tmp_path / "tollkeeper.db"
    async with (
        recording_target(server) as first,
        recording_target(server) as other,
        composed(embedded_chain.url, path) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        sides = []
        for target, is_new in ((first, True), (other, False)):
            shop = Shop(url, path, target, buyer)
            gate = await shop.gate(credits=CREDITS, method="GET,POST,PUT", onFailure=on_failure)
            payment = await shop.payment(gate)
            assert (await buyer.call(gate["accessUrl"], payment)).status == 200
            target.requests.clear()
            sides.append(Side(target, gate, payment, is_new=is_new))
        history = []
        for step in steps(seed):
            history.append(step)
            try:
                new = await sides[0].take(step)
                known = await sides[1].take(step)
            except TimeoutError:
                raise AssertionError(history[-4:]) from None
            assert known == new, history[-4:]
            assert sides[1].sent() == sides[0].sent(), history[-4:]
        for side in sides:
            await side.close()
        found = [await buyer.ask("GET", url + "/api/v1/credits", headers={"X-Payment": side.payment}) for side in sides]
        left = [one.json()["data"][0]["remaining"] for one in found]
        assert left[0] == left[1]
    with contextlib.closing(sqlite3.connect(path)) as books:
        counted = [
            [
                sorted(books.execute(sql, (side.gate["id"],)).fetchall(), key=repr)
                for sql in (
                    "SELECT outcome, sum(requests) FROM traffic_hours WHERE gate_id = ? GROUP BY 1",
                    "SELECT outcome, status, code, count(*) FROM requests WHERE gate_id = ? GROUP BY 1, 2, 3",
                    (
                        "SELECT c.state, c.status, count(*) FROM calls c JOIN purchases p ON p.id = c.purchase_id"
                        " WHERE p.gate_id = ? GROUP BY 1, 2"
                    ),
                )
            ]
            for side in sides
        ]
    assert counted[0] == counted[1]
