"""A disk that is full: clear refusals, nothing lost, and all is well once there is room (security F13).

The process may write no file beyond a size, as with a full disk: writes fail in the kernel.
"""

from __future__ import annotations

import asyncio
import resource
import time
from pathlib import Path

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import ask
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import assert_settled_once, pay, public_status
from tests.faults.counts import came
from tests.faults.shop import Shop, url_of
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import TestPayment, new_payment


def fill_disk(pid: int, directory: Path, *, room_bytes: int) -> None:
    """No file of that process grows beyond the largest one of the directory and so many bytes."""
    size_bytes = max(path.stat().st_size for path in directory.rglob("*") if path.is_file()) + room_bytes
    came("full disk")
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size_bytes, resource.RLIM_INFINITY))


def make_room(pid: int) -> None:
    """Files may grow again."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@pytest.mark.parametrize("room_bytes", [0, 6_000, 30_000])
async def test_a_hub_whose_disk_is_full_refuses_clearly_and_settles_once_there_is_room(
    tmp_path: Path, embedded_chain: ChainUnderTest, room_bytes: int
) -> None:
    before = embedded_chain.balance(embedded_chain.wallets.owner.address)
    payments = [new_payment(embedded_chain) for _ in range(20)]
    with await asyncio.to_thread(HubProcess, tmp_path, embedded_chain.url) as hub:
        assert (await pay(hub.url, payments[0]))["success"] is True
        refused: list[TestPayment] = []
        async with aiohttp.ClientSession() as http:
            for payment in payments[1:]:
                if len(refused) % 5 == 0:  # it makes some room where it can
                    fill_disk(hub.process.pid, tmp_path, room_bytes=room_bytes)
                async with http.post(hub.url + "/settle", json=payment.asking(confirm=True)) as answer:
                    body = await answer.json()
                    if answer.status == 503:
                        refused.append(payment)
                        assert body["error"]["code"] in {"SETTLEMENT_PENDING", "UNAVAILABLE"}
                    else:
                        assert (answer.status, body["success"]) == (200, True)
        assert len(refused) >= 10
        assert await public_status(hub.url, payments[0]) == "success"  # reading goes on
        make_room(hub.process.pid)
        for payment in refused:
            assert (await pay(hub.url, payment))["success"] is True
        await assert_settled_once(hub.url, tmp_path, embedded_chain, payments, before)


async def test_a_gateway_whose_disk_is_full_refuses_clearly_and_works_once_there_is_room(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    home = tmp_path / "home"
    shop = await asyncio.to_thread(Shop, home, embedded_chain, embedded_chain.url)
    await asyncio.to_thread(fill_and_free, shop, home)
    await assert_nothing_lost(tmp_path, embedded_chain, paid=[], sites=[shop.site])


def fill_and_free(shop: Shop, home: Path) -> None:
    gate = {"price": "0.01", "targetUrl": "http://127.0.0.1:9/", "credits": 1}

    def made_at(url: str) -> tuple[int, str]:
        answer = ask(url + "/api/v1/paygates", body=gate)
        return answer.status, answer.json().get("slug", "") or answer.json()["error"]["code"]

    with shop.serving() as program:
        url = url_of(program)
        status, slug = made_at(url)
        assert status == 201, slug
        fill_disk(program.process.pid, home, room_bytes=0)
        answers = [made_at(url) for _ in range(12)]
        refused = [answer for answer in answers if answer[0] != 201]
        assert set(refused) == {(503, "UNAVAILABLE")}
        slugs = [slug] + [answer[1] for answer in answers if answer[0] == 201]
        assert [ask(f"{url}/{one}").status for one in slugs] == [402] * len(slugs)  # reading goes on
        make_room(program.process.pid)
        deadline = time.monotonic() + 60
        while (made := made_at(url))[0] != 201:
            assert made == (503, "UNAVAILABLE")
            assert time.monotonic() < deadline
            time.sleep(0.2)
    with shop.serving() as program:
        url = url_of(program)
        assert [ask(f"{url}/{one}").status for one in (*slugs, made[1])] == [402] * (len(slugs) + 1)
        assert made_at(url)[0] == 201
