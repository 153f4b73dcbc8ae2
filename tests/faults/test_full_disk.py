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
from tests.faults.aftermath import assert_nothing_lost, authorization_in
from tests.faults.client import assert_settled_once, pay, public_status
from tests.faults.counts import came
from tests.faults.shop import PAYEE, Shop, url_of
from tests.gateway.recording_target import recording_target
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import TestPayment, new_payment
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


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


@pytest.mark.parametrize("room_bytes", [0, 20_000, 80_000])
async def test_what_is_bought_on_a_full_disk_is_paid_once_and_served_once_there_is_room(
    tmp_path: Path, embedded_chain: ChainUnderTest, room_bytes: int
) -> None:
    chain, home = embedded_chain, tmp_path / "home"
    before = chain.balance(PAYEE)
    shop = await asyncio.to_thread(Shop, home, chain, chain.url)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with shop.serving() as program:
            url = await asyncio.to_thread(url_of, program)
            body = {"price": "0.01", "targetUrl": target.url, "credits": 2}
            gate = f"{url}/{(await buyer.ask('POST', url + '/api/v1/paygates', body=body)).json()['slug']}"
            challenge = (await buyer.ask("GET", gate)).json()
            payments = [buyer.sign(challenge) for _ in range(8)]
            assert (await buyer.call(gate, payments[0])).status == 200
            fill_disk(program.process.pid, home, room_bytes=room_bytes)
            answers = [await buyer.call(gate, payment) for payment in payments[1:]]
            refused = [answer for answer in answers if answer.status != 200]
            assert {answer.status for answer in refused} == {503}
            assert {answer.error_code for answer in refused} <= {"SETTLEMENT_PENDING", "UNAVAILABLE"}
            assert not any("accepts" in answer.json() for answer in refused)
            make_room(program.process.pid)
            served = [200, *(answer.status for answer in answers)].count(200)
            for _ in range(2 * len(payments) - served):
                left = [payment for payment in payments if (await presented(buyer, gate, payment)) == 200]
                if not left:
                    break
            assert len(target.requests) == 2 * len(payments)
            assert chain.balance(PAYEE) - before == 10_000 * len(payments)
    paid = [authorization_in(payment) for payment in payments]
    await assert_nothing_lost(tmp_path, chain, paid=paid, sites=[shop.site])


async def presented(buyer: Buyer, gate: str, payment: str) -> int:
    """The status once it is known what became of the payment; while it is not, nobody is told to pay again."""
    async with asyncio.timeout(60):
        while (answer := await buyer.call(gate, payment)).status == 503:
            assert "accepts" not in answer.json()
            await asyncio.sleep(0.3)
    return answer.status
