"""What one tenant does to stop the others: the attacks that `tenants` measures honest calls under.

The attacker is a wallet that owns gates, another one that pays, and an address, none of which anybody else has. Each
attack is prepared once; what that returns goes on until it is cancelled. It comes at a rate, or keeps so many requests
open: a flood that fills the processor would measure the machine.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import secrets
import socket
import sqlite3
import time
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import aiohttp

from tollkeeper.client.logins import log_in
from tollkeeper.client.payments import authorization_for, payment_for
from tollkeeper.sandbox.wallets import derive_wallets

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping
    from contextlib import AsyncExitStack
    from pathlib import Path

    # Goes on until it is cancelled.
    Going = Callable[[], Coroutine[Any, Any, None]]

ADDRESS: Final = "127.0.0.2"
SILENT_HOSTS: Final = 160
HANGING: Final = 12
HANGING_CALLS: Final = 40  # at each of those addresses
SLOW_READERS: Final = 70
LISTS: Final = 60
LISTED: Final = 300_000  # requests in the attacker's log
UPLOAD_BYTES: Final = 4 * 1024 * 1024
MANY: Final = 1_000_000_000
_MICRO: Final = "0.000001"
_BUYING_AT_ONCE: Final = 16
_CHANCE: Final = random.Random(1)  # noqa: S311 - no secret
_ROWS_AT_ONCE: Final = 10_000  # while the gateway writes
_ROW: Final = (
    "INSERT INTO requests (id, gate_id, at_ms, method, status, outcome, duration_us)"
    " WITH RECURSIVE n(v) AS (SELECT 1 UNION ALL SELECT v + 1 FROM n WHERE v < ?)"
    " SELECT hex(randomblob(16)), ?, ? - v, 'GET', 200, 'served', 1000 FROM n"
)


@dataclass
class Attacker:
    """The attacker at one gateway. `answers` counts what he was told, by status; 0 is no answer."""

    url: str
    target: str
    directory: Path
    silent: Path
    http: aiohttp.ClientSession
    bearer: dict[str, str]
    answers: Counter[int] = field(default_factory=Counter)

    async def ask(self, method: str, url: str, **request: Any) -> bytes:  # noqa: ANN401 - as aiohttp takes it
        """The body of the answer."""
        try:
            async with self.http.request(method, url, **request) as answer:
                body = await answer.read()
                self.answers[answer.status] += 1
                return body
        except (aiohttp.ClientError, TimeoutError):
            self.answers[0] += 1
            return b""

    async def gate(self, target: str, **fields: object) -> dict[str, Any]:
        """A gate of his. Raises: RuntimeError."""
        body = {"targetUrl": target, "price": _MICRO, "credits": MANY, **fields}
        told = await self.ask("POST", f"{self.url}/api/v1/paygates", json=body, headers=self.bearer)
        made: dict[str, Any] = json.loads(told)
        if "accessUrl" not in made:
            message = f"the attacker's gate was not made: {made}"
            raise RuntimeError(message)
        return made

    async def terms(self, gate: Mapping[str, Any]) -> dict[str, Any]:
        """What a gate's 402 asks for."""
        terms: dict[str, Any] = json.loads(await self.ask("GET", gate["accessUrl"]))["accepts"][0]
        return terms

    async def bought(self, gate: Mapping[str, Any]) -> str:
        """A payment of his that holds credits at his gate."""
        payment = signed(await self.terms(gate))
        await self.ask("GET", gate["accessUrl"], headers={"X-Payment": payment})
        return payment

    async def at_rate(self, per_second: float, one: Callable[[], Awaitable[object]]) -> None:
        """One after the other is begun, whatever became of those before."""
        async with asyncio.TaskGroup() as group:
            due = time.monotonic()
            while True:
                group.create_task(_awaited(one()))
                due += 1 / per_second
                await asyncio.sleep(max(0, due - time.monotonic()))


async def _awaited(one: Awaitable[object]) -> None:
    await one


async def _again(one: Callable[[], Awaitable[object]]) -> None:
    """Who is refused waits a second or so, as he is told to: all at once would be one burst a second."""
    while True:
        due = time.monotonic() + _CHANCE.uniform(0.5, 1.5)
        await one()
        await asyncio.sleep(max(0.0, due - time.monotonic()))


async def _all_again(ones: list[Callable[[], Awaitable[object]]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in ones:
            group.create_task(_again(one))


def signed(terms: Mapping[str, Any]) -> str:
    """A payment of the attacker's."""
    wallet = derive_wallets().second_buyer
    wanted = authorization_for(terms, wallet.address, secrets.token_bytes(32), int(time.time()))
    return payment_for(terms, wanted, wallet.private_key)


async def attacker(url: str, target: str, directory: Path, silent: Path, stack: AsyncExitStack) -> Attacker:
    """The attacker, logged in."""
    connector = aiohttp.TCPConnector(local_addr=(ADDRESS, 0), limit=0)
    timeout = aiohttp.ClientTimeout(total=60)
    http = await stack.enter_async_context(aiohttp.ClientSession(connector=connector, timeout=timeout))
    bearer = {"Authorization": f"Bearer {await log_in(http, url, derive_wallets().owner.key)}"}
    return Attacker(url, target, directory, silent, http, bearer)


async def _bought_at(own: Attacker, targets: list[str]) -> list[tuple[str, str]]:
    """A gate for each target, and a payment that holds credits there."""
    at_once = asyncio.Semaphore(_BUYING_AT_ONCE)

    async def one(target: str) -> tuple[str, str]:
        async with at_once:
            gate = await own.gate(target)
            return gate["accessUrl"], await own.bought(gate)

    return await asyncio.gather(*map(one, targets))


def _calls(own: Attacker, bought: list[tuple[str, str]], each: int = 1) -> list[Callable[[], Awaitable[object]]]:
    def call(url: str, payment: str) -> Callable[[], Awaitable[object]]:
        return lambda: own.ask("GET", url, headers={"X-Payment": payment})

    return [call(*one) for one in bought for _ in range(each)]


async def lookups_at_calls(own: Attacker) -> Going:
    """Calls of 160 own hosts whose name servers are silent."""
    port = urlsplit(own.target).port
    bought = await _bought_at(own, [f"http://h{n}.silent.test:{port}/small" for n in range(SILENT_HOSTS)])

    async def going() -> None:
        own.silent.touch()
        try:
            await _all_again(_calls(own, bought))
        finally:
            own.silent.unlink()

    return going


async def lookups_at_creates(own: Attacker) -> Going:
    """160 gates at a time are made for hosts whose name servers are silent."""

    async def create() -> None:
        body = {"targetUrl": f"http://c{secrets.token_hex(8)}.silent.test/", "price": _MICRO}
        await own.ask("POST", f"{own.url}/api/v1/paygates", json=body, headers=own.bearer)

    async def going() -> None:
        own.silent.touch()
        try:
            await _all_again([create] * SILENT_HOSTS)
        finally:
            own.silent.unlink()

    return going


async def hanging_targets(own: Attacker) -> Going:
    """20 calls each of 12 targets that hang, at 12 addresses."""
    hang = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                if hang.is_set():
                    await reader.read()  # until the gateway gives up
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    servers = [await asyncio.start_server(answer, f"127.0.0.{10 + n}", 0) for n in range(HANGING)]
    bought = await _bought_at(own, ["http://{}:{}/".format(*one.sockets[0].getsockname()) for one in servers])

    async def going() -> None:
        hang.set()
        try:
            await _all_again(_calls(own, bought, HANGING_CALLS))
        finally:
            hang.clear()

    return going


async def slow_readers(own: Attacker) -> Going:
    """70 callers that ask for 10 MiB each and do not read; who is refused asks again a second later."""
    ((url, payment),) = await _bought_at(own, [f"{own.target}/huge"])
    parts = urlsplit(url)
    request = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nX-Payment: {payment}\r\n\r\n".encode()

    async def one() -> None:
        unread = socket.socket()
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.setblocking(False)  # noqa: FBT003 - its only form
        unread.bind((ADDRESS, 0))
        loop = asyncio.get_running_loop()
        with closing(unread), suppress(OSError):
            await loop.sock_connect(unread, (parts.hostname, parts.port))
            await loop.sock_sendall(unread, request)
            head = await loop.sock_recv(unread, 64)
            status = int(head[9:12] or b"0")
            own.answers[status] += 1
            await asyncio.sleep(120 if status == 200 else 0)

    async def going() -> None:
        await _all_again([one] * SLOW_READERS)

    return going


async def deep_pages(own: Attacker) -> Going:
    """60 deep pages at a time of a log of 300,000 requests."""
    gate = await own.gate(f"{own.target}/small")
    (books,) = own.directory.glob("**/tollkeeper.db")
    for number in range(LISTED // _ROWS_AT_ONCE):
        with closing(sqlite3.connect(books, timeout=60)) as connection, connection:
            connection.execute(_ROW, (_ROWS_AT_ONCE, gate["id"], int(time.time() * 1000) - number * _ROWS_AT_ONCE))
        await asyncio.sleep(0.1)
    url = f"{own.url}/api/v1/paygates/{gate['id']}/requests?limit=100&offset={LISTED - 200}"

    async def going() -> None:
        await _all_again([lambda: own.ask("GET", url, headers=own.bearer)] * LISTS)

    return going


async def uploads(own: Attacker) -> Going:
    """Two files of 4 MiB a second are uploaded, and their gates deleted."""
    content = secrets.token_bytes(UPLOAD_BYTES)

    async def one() -> None:
        form = aiohttp.FormData(default_to_multipart=True)
        form.add_field("price", _MICRO)
        form.add_field("resourceType", "file")
        form.add_field("file", content, filename="x.bin")
        made = json.loads(await own.ask("POST", f"{own.url}/api/v1/paygates", data=form, headers=own.bearer) or "{}")
        if "id" in made:
            await own.ask("DELETE", f"{own.url}/api/v1/paygates/{made['id']}", headers=own.bearer)

    return lambda: own.at_rate(2, one)


async def junk_verifies(own: Attacker) -> Going:
    """150 verifies a second whose signature is anybody's."""
    return await _junk(own, "verify", 150)


async def junk_settles(own: Attacker) -> Going:
    """50 settles a second whose signature is anybody's."""
    return await _junk(own, "settle", 50)


async def _junk(own: Attacker, what: str, per_second: float) -> Going:
    terms = await own.terms(await own.gate(f"{own.target}/small"))

    async def one() -> None:
        payment = json.loads(base64.b64decode(signed(terms)))
        payment["payload"]["signature"] = "0x" + secrets.token_hex(64) + "1b"
        body = {"x402Version": 1, "paymentPayload": payment, "paymentRequirements": terms}
        await own.ask("POST", f"{own.url}/hub/{what}", json=body)

    return lambda: own.at_rate(per_second, one)


async def sales_to_oneself(own: Attacker) -> Going:
    """20 sales a second to oneself at 0.000001."""
    gate = await own.gate(f"{own.target}/small", credits=1)
    terms = await own.terms(gate)

    async def one() -> None:
        await own.ask("GET", gate["accessUrl"], headers={"X-Payment": signed(terms)})

    return lambda: own.at_rate(20, one)


async def login_messages(own: Attacker) -> Going:
    """200 login messages a second that nobody signs."""
    url = f"{own.url}/api/v1/auth/message?walletAddress={derive_wallets().second_buyer.key.address}"
    return lambda: own.at_rate(200, lambda: own.ask("GET", url))
