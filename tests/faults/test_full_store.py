"""Uploads into a file system that is full: the right code over HTTP, and nothing that was sold is lost (security F13).

The files lie on a small file system in memory that the program alone sees, in a mount namespace of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.counts import came
from tests.faults.shop import Shop, url_of
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

MIB = 1024 * 1024
DISK_MIB = 24
PAYGATES = "/api/v1/paygates"


def on_a_small_disk(folder: Path, size_mib: int = DISK_MIB) -> tuple[str, ...]:
    """A command that gives the one that follows a file system of that size at `folder`."""
    namespace = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--mount")
    mount = f'mount -t tmpfs -o size={size_mib}m none "{folder}" && exec "$@"'
    return (*namespace, "--", "sh", "-c", mount, "sh")


def pieces(content: bytes) -> Any:
    async def given() -> AsyncIterator[bytes]:
        for start in range(0, len(content), 65_536):
            yield content[start : start + 65_536]

    return given()


@dataclass
class Seller:
    """A running program with little room for files, and its owner."""

    url: str
    owner: Buyer
    inside: Path  # the small file system
    paid: list[Any] = field(default_factory=list)

    async def send(self, method: str, path: str, content: bytes, *, is_declared: bool) -> tuple[int, dict[str, Any]]:
        """An upload whose length is declared, or not. Its caller sends all of it, unless it is answered."""
        bearer = {"Authorization": f"Bearer {await self.owner.login(self.url)}"}
        form = aiohttp.FormData({} if method == "PUT" else {"price": "0.01", "resourceType": "file"})
        form.add_field("file", BytesIO(content) if is_declared else pieces(content), filename="large.bin")
        async with (
            aiohttp.ClientSession() as http,
            http.request(method, self.url + path, data=form, headers=bearer) as answer,
        ):
            body: dict[str, Any] = await answer.json()
            return answer.status, body

    async def gates(self) -> list[dict[str, Any]]:
        bearer = {"Authorization": f"Bearer {await self.owner.login(self.url)}"}
        return list((await self.owner.ask("GET", f"{self.url}{PAYGATES}", headers=bearer)).json()["data"])

    async def bought(self, gate: dict[str, Any]) -> str:
        """The hash of the file, as a buyer gets it."""
        url = f"{self.url}/{gate['slug']}"
        payment = self.owner.sign((await self.owner.ask("GET", url)).json())
        answer = await self.owner.call(url, payment)
        assert answer.status == 200, answer.body
        self.paid.append(authorization_in(payment))
        link = URL(answer.json()["downloadUrl"], encoded=True)
        async with aiohttp.ClientSession() as http, http.get(URL(self.url).join(link.relative())) as download:
            return hashlib.sha256(await download.read()).hexdigest()

    def used_bytes(self) -> int:
        """Of contents, whole or not; beside them the store tells whose it is."""
        return sum(path.stat().st_size for path in self.inside.rglob("*/*") if path.is_file())


@pytest.mark.parametrize("is_declared", [True, False], ids=["declared", "chunked"])
async def test_an_upload_that_finds_the_disk_full_is_a_503_and_what_was_sold_stays(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    is_declared: bool,  # noqa: FBT001 - a case
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    shop = await asyncio.to_thread(Shop, tmp_path / "home", embedded_chain, embedded_chain.url)
    shop.take_port()
    shop.environ |= {"TOLLKEEPER_FILES": str(folder), "TOLLKEEPER_FILES_MIN_FREE_MB": "0"}
    first, larger, last = (os.urandom(size * MIB) for size in (8, 40, 4))
    with shop.serving(under=on_a_small_disk(folder)) as program:
        url = url_of(program)
        async with Buyer(derive_wallets().buyer) as owner:
            seller = Seller(url, owner, Path(f"/proc/{program.process.pid}/root{folder}"))
            status, gate = await seller.send("POST", PAYGATES, first, is_declared=is_declared)
            assert status == 201, gate
            for method, path in (("POST", PAYGATES), ("PUT", f"{PAYGATES}/{gate['id']}")):
                came("full disk")
                status, refused = await seller.send(method, path, larger, is_declared=is_declared)
                assert (status, refused["error"]["code"], refused["error"]["type"]) == (503, "UNAVAILABLE", "server")
                assert "room" in refused["error"]["message"]
                assert seller.used_bytes() == len(first)  # nothing of what was refused is left
                assert [one["sha256"] for one in await seller.gates()] == [gate["sha256"]]
                assert await seller.bought(gate) == hashlib.sha256(first).hexdigest()
            status, other = await seller.send("POST", PAYGATES, last, is_declared=is_declared)
            assert status == 201, other
            assert await seller.bought(other) == hashlib.sha256(last).hexdigest()
            # Full to the last byte by two at once: one of them at most gets room.
            both = await asyncio.gather(
                *(seller.send("POST", PAYGATES, larger[: 7 * MIB], is_declared=is_declared) for _ in range(2))
            )
            assert {status for status, _ in both} <= {201, 503}
            assert 503 in {status for status, _ in both}
            for status, made in both:
                if status == 201:
                    assert await seller.bought(made) == hashlib.sha256(larger[: 7 * MIB]).hexdigest()
            kept = 12 * MIB + 7 * MIB * [status for status, _ in both].count(201)
            assert seller.used_bytes() == kept
            assert await seller.bought(gate) == hashlib.sha256(first).hexdigest()
    await assert_nothing_lost(tmp_path, embedded_chain, paid=seller.paid, sites=[shop.site])
