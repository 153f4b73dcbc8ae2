"""`tollkeeper serve` killed while it takes a file: at a random byte of it, and at every await of its handler.

After a restart a created gate is there with its whole file or not at all, and a gate whose file was being replaced
sells its former file or its new one, whole. What else the crash left in the store is gone soon after the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import Running
from tests.faults import dying_upload
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came, rounds
from tests.faults.shop import Shop
from tests.storage.s3_server import access_to, s3_server
from tollkeeper.api import clock_ms
from tollkeeper.gateway.files import Files
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage.files.s3 import S3Files
from tollkeeper.storage.files.store import FileStore, LocalFiles
from tollkeeper.storage.urls import open_database

PAYGATES = "/api/v1/paygates"
LONG_SECONDS = 150
START_SECONDS = 120  # it is started a hundred times, on a machine that may have other work
SOON_SECONDS = 60
TWO_DAYS_MS = 2 * 24 * 3600 * 1000
FORMER = b"former " * 60_000
NEVER = (0, "asked")
MIB = 1024 * 1024
SEVERAL_PARTS_WORDS = 2_000_000  # 20 MB or more


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server("files") as url:
        yield url


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not await is_so():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


@dataclass
class Seller:
    """A gateway that is killed and started again, its store, and its owner."""

    shop: Shop
    store: FileStore
    owner: Buyer
    url: str = ""
    paid: list[Any] = field(default_factory=list)

    @contextmanager
    def serving(self, boundary: int, side: str) -> Iterator[Running]:
        wrapper = (sys.executable, dying_upload.__file__, str(boundary), side)
        with self.shop.serving(under=wrapper) as program:
            self.url = program.wait_for_event("serving", START_SECONDS)["url"]
            yield program

    async def send(self, method: str, path: str, body: aiohttp.BytesPayload | AsyncIterator[bytes]) -> Any:
        """A form by the owner; None where the program died over it."""
        bearer = {"Authorization": f"Bearer {await self.owner.login(self.url)}"}
        bearer["Content-Type"] = "multipart/form-data; boundary=b"
        try:
            async with (
                aiohttp.ClientSession() as http,
                http.request(method, self.url + path, data=body, headers=bearer) as answer,
            ):
                assert answer.status in {200, 201}, await answer.text()
                return await answer.json()
        except (aiohttp.ClientError, OSError):
            return None

    async def gates(self) -> list[dict[str, Any]]:
        bearer = {"Authorization": f"Bearer {await self.owner.login(self.url)}"}
        listed = await self.owner.ask("GET", f"{self.url}{PAYGATES}?limit=100", headers=bearer)
        return list(listed.json()["data"])

    async def bought(self, gate: dict[str, Any]) -> bytes:
        """The file, as a buyer gets it."""
        url = f"{self.url}/{gate['slug']}"
        payment = self.owner.sign((await self.owner.ask("GET", url)).json())
        answer = await self.owner.call(url, payment)
        assert answer.status == 200, answer.body
        self.paid.append(authorization_in(payment))
        link = URL(answer.json()["downloadUrl"], encoded=True)
        async with aiohttp.ClientSession() as http, http.get(URL(self.url).join(link.relative())) as download:
            assert download.status == 200
            content = await download.read()
        assert hashlib.sha256(content).hexdigest() == gate["sha256"] == answer.json()["sha256"]
        return content

    async def objects(self) -> set[str]:
        """Uploads' own: a program that is killed while it looks at its store leaves a byte there, for some days."""
        return {found.file_id async for found in self.store.listed() if not found.file_id.startswith("check-")}

    async def holds_much(self) -> bool:
        """Whether the store has several parts of what is being sent, or as much of it in one."""
        if isinstance(self.store, S3Files):
            return any([len(await self.store.parts(file_id)) >= 3 for file_id in await self.objects()])
        held = [path.stat().st_size for path in self.shop.config.parent.parent.glob("files/incoming/*")]
        return any(size_bytes >= 24 * MIB for size_bytes in held)

    def named(self) -> set[str]:
        """What the database's rows name, sold or replaced."""
        with closing(sqlite3.connect(f"file:{self.shop.database}?mode=ro", uri=True)) as connection:
            return {name for (name,) in connection.execute("SELECT id FROM files")}

    async def until_swept(self) -> None:
        """The program that was started deletes by itself whatever no row names."""
        deadline = time.monotonic() + SOON_SECONDS
        while (found := await self.objects()) != (named := self.named()):
            assert time.monotonic() < deadline, f"{found - named} left, {named - found} gone"
            await asyncio.sleep(0.05)

    async def swept(self, later_ms: int) -> set[str]:
        """What is left once the sweep was at work so much later, while nothing serves."""
        database = open_database(f"sqlite:///{self.shop.database}")
        try:
            await Files(
                database=database,
                store=self.store,
                keys=[b""],
                public_url="",
                lifetime_seconds=1,
                clock_ms=lambda: clock_ms() + later_ms,
            ).sweep()
        finally:
            await database.close()
        return await self.objects()


@pytest.fixture(params=["local", "s3"])
async def seller(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    s3_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Seller]:
    shop = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, embedded_chain.url)
    shop.take_port()
    for name, value in access_to(s3_url).items():
        monkeypatch.setenv(name, value)
    store: FileStore
    if request.param == "local":
        shop.environ |= {"TOLLKEEPER_FILES": str(tmp_path / "files"), "TOLLKEEPER_FILES_MIN_FREE_MB": "0"}
        store = LocalFiles(tmp_path / "files", 0)
    else:
        prefix = os.urandom(4).hex()
        shop.environ["TOLLKEEPER_FILES"] = f"s3://files/{prefix}"
        store = S3Files("files", prefix)
    async with Buyer(derive_wallets().buyer) as owner:
        yield Seller(shop, store, owner)


def form(content: bytes, *, is_new: bool) -> bytes:
    fields = {"price": "0.01", "resourceType": "file"} if is_new else {}
    parts = [f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{fields[name]}\r\n' for name in fields]
    head = "".join(parts) + '--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
    return head.encode() + content + b"\r\n--b--\r\n"


async def in_pieces(body: bytes, kill_at: int | None, pid: int) -> AsyncIterator[bytes]:
    """The body, with a kill once so many bytes of it were handed over."""
    for start in range(0, len(body), 65_536):
        end = min(start + 65_536, len(body))
        if kill_at is not None and start <= kill_at < end:
            yield body[start : kill_at + 1]
            await asyncio.sleep(random.uniform(0, 0.05))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return
        yield body[start:end]


@dataclass
class Uploads:
    """Uploads that a kill cuts, one after the other, each looked at after the restart."""

    seller: Seller
    gate: dict[str, Any]
    contents: set[bytes]
    last: bytes = b""
    sent: set[bytes] = field(default_factory=set)  # their hashes
    number: int = 0

    async def cut(
        self, method: str, boundary: int, side: str, kill_at: int | None = None, words: int = 50_000
    ) -> int | None:
        """Starts the program, looks at what the last kill left, and is killed over an upload of so many words.

        Returns how many awaits an upload had that lived to its end.
        """
        with self.seller.serving(boundary, side) as program:
            await self.look()
            await self.seller.until_swept()
            self.number += 1
            self.last = f"content {self.number} ".encode() * words
            self.sent.add(hashlib.sha256(self.last).digest())
            path = PAYGATES if method == "POST" else f"{PAYGATES}/{self.gate['id']}"
            body = form(self.last, is_new=method == "POST")
            pid = program.process.pid
            cut_at = None if kill_at is None else kill_at % len(body)
            answer = await self.seller.send(method, path, in_pieces(body, cut_at, pid))
            if answer is not None:
                assert answer["sha256"] == hashlib.sha256(self.last).hexdigest()
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                first = await asyncio.to_thread(program.first_line)
                return int(first.split()[1])
            assert await asyncio.to_thread(program.process.wait, 30) == -signal.SIGKILL
            came("kill over an upload")
            return None

    async def look(self) -> None:
        """Each gate sells, whole, a file that was sent; the replaced one its former file or the one sent last."""
        for gate in await self.seller.gates():
            content = await self.seller.bought(gate)
            if gate["id"] == self.gate["id"]:
                assert content in {next(iter(self.contents)), self.last}
                self.contents = {content}
            else:
                assert hashlib.sha256(content).digest() in self.sent

    async def end(self) -> None:
        """What is sold stays, all else is swept, and nothing that was paid is lost."""
        with self.seller.serving(*NEVER):
            await self.look()
            await self.seller.until_swept()
            sold = len(await self.seller.gates())
        left = await self.seller.swept(TWO_DAYS_MS)
        assert len(left) == sold
        with self.seller.serving(*NEVER):
            await self.look()
            assert len(await self.seller.gates()) == sold


async def uploads_of(seller: Seller) -> Uploads:
    with seller.serving(*NEVER):
        gate = await seller.send("POST", PAYGATES, in_pieces(form(FORMER, is_new=True), None, 0))
    return Uploads(seller, gate, {FORMER})


async def awaits_of(uploads: Uploads, method: str) -> int:
    """How many awaits an upload has that nobody cuts."""
    count = await uploads.cut(method, *NEVER)
    assert count is not None
    return count


@pytest.mark.timeout(600)  # ten starts of the program, on a machine that may have other work
async def test_uploads_killed_at_some_bytes_and_awaits_leave_whole_files_alone(
    seller: Seller, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - of a failure, to try it again
    uploads, random_ = await uploads_of(seller), random.Random(seed)
    for method in ("POST", "PUT"):
        last = await awaits_of(uploads, method)
        # The last awaits are where the file becomes whole and the gate's row names it. All of both: the long form.
        cuts = ((last - 2, "asked"), (last - 1, "answered"), (last, "answered"))
        for boundary, side in cuts if method == "POST" else cuts[1:2]:
            await uploads.cut(method, boundary, side)
        await uploads.cut(method, *NEVER, kill_at=random_.randrange(10**9))
    await uploads.end()
    await assert_nothing_lost(tmp_path, embedded_chain, paid=seller.paid, sites=[seller.shop.site])


async def test_an_upload_that_is_killed_after_many_parts_leaves_nothing_once_the_program_is_started_again(
    seller: Seller, s3_url: str, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    body, sent_bytes = form(os.urandom(5 * MIB) * 6, is_new=True), 27 * MIB
    with seller.serving(*NEVER) as program:
        pid = program.process.pid

        async def half() -> AsyncIterator[bytes]:
            yield body[:sent_bytes]
            await until(seller.holds_much)
            os.kill(pid, signal.SIGKILL)

        assert await seller.send("POST", PAYGATES, half()) is None
        assert await asyncio.to_thread(program.process.wait, 30) == -signal.SIGKILL
    assert len(await seller.objects()) == 1
    async with aiohttp.ClientSession() as http, http.get(f"{s3_url}/files?uploads") as answer:
        assert "<Upload>" not in await answer.text()  # which no listing of objects would show
    with seller.serving(*NEVER):
        await seller.until_swept()
        assert await seller.gates() == []
        assert await seller.objects() == set()
        kept = await seller.send("POST", PAYGATES, in_pieces(body, None, 0))
        assert kept["fileSize"] == 30 * MIB
        assert hashlib.sha256(await seller.bought(kept)).hexdigest() == kept["sha256"]
    assert await seller.swept(TWO_DAYS_MS) == seller.named()
    await assert_nothing_lost(tmp_path, embedded_chain, paid=seller.paid, sites=[seller.shop.site])


@pytest.mark.long
@pytest.mark.timeout(3600)
async def test_uploads_killed_at_every_await_and_at_many_bytes_leave_whole_files_alone(
    seller: Seller, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    uploads, random_ = await uploads_of(seller), random.Random(7)
    for turn, method in enumerate(("POST", "PUT")):
        last = await awaits_of(uploads, method)
        for boundary in range(last, 0, -1):
            # What one await answers is what the next one is asked after: each side of it by one of the two methods,
            # and both sides of those where the file becomes whole.
            chosen = ("asked", "answered") if boundary > last - 4 else (("asked", "answered")[(boundary + turn) % 2],)
            for side in chosen:
                await uploads.cut(method, boundary, side)
    for _ in rounds(100, seconds=LONG_SECONDS):
        words = random_.choice((50_000, SEVERAL_PARTS_WORDS))
        await uploads.cut(random_.choice(("POST", "PUT")), *NEVER, kill_at=random_.randrange(10**9), words=words)
    await uploads.end()
    await assert_nothing_lost(tmp_path, embedded_chain, paid=seller.paid, sites=[seller.shop.site])
