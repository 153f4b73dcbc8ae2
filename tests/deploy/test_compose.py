"""The programs of compose-postgresql.yaml, with its settings, beside a real PostgreSQL, S3 server and nginx."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.program import Program, Scene, Site
from tests.deploy.proxies import DEPLOY, Proxy, proxy
from tests.deploy.test_proxies import session
from tests.engines import PostgresqlServer, programs, said_to
from tests.gateway.recording_target import recording_target
from tests.storage.s3_server import access_to, s3_server
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

pytestmark = pytest.mark.long
SERVICES = yaml.safe_load((DEPLOY / "compose-postgresql.yaml").read_text())["services"]
GATEWAYS = ("gateway-1", "gateway-2")


@pytest.fixture
def database_url() -> Iterator[str]:
    server = PostgresqlServer(programs())
    said_to(server.url("postgres"), "CREATE DATABASE tollkeeper")
    yield server.url("tollkeeper")
    server.stop()


def settings_of(service: str, **there: str) -> dict[str, str]:
    """The service's environment, with this machine's places for those of its network."""
    environ: dict[str, str] = SERVICES[service]["environment"]
    assert environ["TOLLKEEPER_DATABASE_URL"].startswith("postgresql://tollkeeper:${POSTGRES_PASSWORD:?}@postgres/")
    assert re.fullmatch(r"http://objects:\d+", environ["AWS_ENDPOINT_URL"])
    assert environ["TOLLKEEPER_TRUSTED_PROXIES"] == SERVICES["nginx"]["networks"]["inside"]["ipv4_address"]
    return {**environ, **there}


@asynccontextmanager
async def running(
    home: Path, chain: ChainUnderTest, database_url: str
) -> AsyncIterator[tuple[Scene, list[Program], Proxy]]:
    """Both gateways with one configuration, as they share its volume, and nginx; a scene of its callers."""
    site = await asyncio.to_thread(Site, home, chain)
    async with AsyncExitStack() as parts:
        objects = parts.enter_context(s3_server("tollkeeper"))
        there = {"TOLLKEEPER_DATABASE_URL": database_url, "TOLLKEEPER_TRUSTED_PROXIES": "127.0.0.1"}
        started = []
        for name in GATEWAYS:
            site.environ |= settings_of(name, **access_to(objects), **there)
            started.append(parts.enter_context(site.serving()))
        via = parts.enter_context(proxy("nginx-of-several", " ".join(one.url for one in started), home / "nginx"))
        target = await parts.enter_async_context(recording_target())
        buyer = await parts.enter_async_context(Buyer(derive_wallets().buyer))
        yield Scene(site, started[0], target, buyer, chain), started, via


async def test_one_gateway_after_the_other_restarts_and_no_caller_notices(
    tmp_path: Path, embedded_chain: ChainUnderTest, database_url: str
) -> None:
    async with running(tmp_path / "home", embedded_chain, database_url) as (town, gateways, via), session(via) as http:
        gate = await town.gate(credits=2000)
        payment, bought = await town.buy(gate)
        assert bought.status == 200
        found: list[int] = []
        is_over = asyncio.Event()

        async def keep_calling() -> None:
            while not is_over.is_set():
                async with http.get(f"{via.url}/{gate['slug']}", headers={"X-Payment": payment}) as answer:
                    found.append(answer.status)
                await asyncio.sleep(0.05)

        callers = [asyncio.create_task(keep_calling()) for _ in range(3)]
        await town.until(lambda: len(found) >= 20)
        one, two = gateways
        await stopped(one)
        since = len(found)
        await town.until(lambda: len(found) >= since + 30)
        with town.site.serving(int(one.url.rpartition(":")[2])) as again:
            await asyncio.to_thread(again.process.wait_for_event, "request")  # nginx has it back
            await stopped(two)
            since = len(found)
            await town.until(lambda: len(found) >= since + 30)
            is_over.set()
            await asyncio.gather(*callers)
            assert set(found) == {200}
            asked = await town.buyer.ask("GET", f"{again.url}/api/v1/credits", headers={"X-Payment": payment})
            assert [held["remaining"] for held in asked.json()["data"]] == [2000 - 1 - len(found)]


async def stopped(program: Program) -> None:
    program.process.process.terminate()
    assert await asyncio.to_thread(program.process.exit_code) == 0


async def test_a_file_of_one_gateway_is_sold_by_the_other(
    tmp_path: Path, embedded_chain: ChainUnderTest, database_url: str
) -> None:
    async with (
        running(tmp_path / "home", embedded_chain, database_url) as (town, gateways, _),
        aiohttp.ClientSession() as http,
    ):
        one, two = (gateway.url for gateway in gateways)
        bearer = {"Authorization": f"Bearer {await town.buyer.login(one)}"}
        form = aiohttp.FormData({"price": "0.01", "resourceType": "file"})
        form.add_field("file", b"almanac" * 1000, filename="almanac.txt", content_type="text/plain")
        async with http.post(f"{one}/api/v1/paygates", data=form, headers=bearer) as created:
            made: dict[str, Any] = await created.json()
            assert created.status == 201, made
        url = f"{two}/{made['slug']}"
        bought = await town.buyer.call(url, town.buyer.sign((await town.buyer.ask("GET", url)).json()))
        assert bought.status == 200, bought.body
        async with http.get(bought.json()["downloadUrl"]) as download:
            assert await download.read() == b"almanac" * 1000
