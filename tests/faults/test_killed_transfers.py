"""A gateway that is killed while its hub carries out a direct transfer (contract 8; security F2, F10)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.counts import came
from tests.faults.parts import Part
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, HostileHub, pass_on, run_hostile_hub
from tests.gateway.test_transfer import Bank
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role


@pytest_asyncio.fixture
async def hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[HostileHub]:
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as url,
        run_hostile_hub(url) as hostile,
    ):
        yield hostile


def gateway_at(hub: HostileHub, directory: Path, chain: ChainUnderTest, **environ: str) -> Part:
    port = free_port()
    own = {"TOLLKEEPER_PUBLIC_URL": f"http://127.0.0.1:{port}", "TOLLKEEPER_HUB_URL": hub.url}
    return Part("gateway", directory, chain, port, **own, **environ)


def kill_while_transferring(part: Part, hub: HostileHub) -> asyncio.Event:
    """The next transfer kills all of the gateway before the hub's answer.

    The event is set once nothing of the gateway runs any more.
    """
    killed = asyncio.Event()

    async def kill(_request: web.Request, forward: Forward) -> web.StreamResponse:
        await forward()
        hub.settling = pass_on
        await asyncio.to_thread(part.kill)
        came("kill of a gateway while a transfer is under way")
        killed.set()
        return web.Response(status=500)

    hub.settling = kill
    return killed


async def test_a_transfer_whose_gateway_was_killed_is_shown_by_the_next_one(
    tmp_path: Path, embedded_chain: ChainUnderTest, hub: HostileHub
) -> None:
    part = gateway_at(hub, tmp_path, embedded_chain)
    with ExitStack() as stack:
        stack.callback(part.stop)
        async with Buyer(derive_wallets().buyer) as buyer:
            await asyncio.to_thread(part.start)
            bank = Bank(part.url, hub, embedded_chain, buyer, "0x" + secrets.token_hex(20))
            payload = bank.signed()
            killed = kill_while_transferring(part, hub)
            with pytest.raises(aiohttp.ClientError):
                await bank.ask(payload, payload)
            await killed.wait()
            await asyncio.to_thread(part.start)
            answers = await asyncio.gather(*(bank.ask(payload, payload) for _ in range(6)))
            assert {(answer.status, answer.json().get("status")) for answer in answers} == {(200, "success")}
            assert bank.received_micro() == 10_000
    await assert_nothing_lost(tmp_path, embedded_chain, paid=[payload.authorization], sites=[part.configured])
