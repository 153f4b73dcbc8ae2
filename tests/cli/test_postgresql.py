"""Two programs that share one PostgreSQL database, as an operator starts them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, Site
from tests.engines import PostgresqlServer, programs, said_to
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets


@pytest.fixture
def url() -> Iterator[str]:
    server = PostgresqlServer(programs())
    said_to(server.url("postgres"), "CREATE DATABASE shared")
    yield server.url("shared")
    server.stop()


async def test_two_programs_sell_the_same_gates_and_neither_shows_a_former_price(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    sites = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        site = await asyncio.to_thread(Site, tmp_path / name, embedded_chain)
        site.environ |= {"TOLLKEEPER_DATABASE_URL": url}
        sites.append(site)
    for path in (tmp_path / "one" / "keys").iterdir():  # what is sealed by one is opened by the other
        (tmp_path / "two" / "keys" / path.name).write_bytes(path.read_bytes())
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with sites[0].serving() as one, sites[1].serving() as two:
            here, there = (Scene(program.site, program, target, buyer, embedded_chain) for program in (one, two))
            gate = await here.gate(credits=3)
            elsewhere = {**gate, "url": f"{two.url}/{gate['slug']}"}
            payment, bought = await there.buy(elsewhere)
            assert bought.status == 200, bought.body
            calls = [buyer.call(where["url"], payment) for where in (gate, elsewhere, gate, elsewhere)]
            assert sorted(answer.status for answer in await asyncio.gather(*calls)) == [200, 200, 402, 402]
            await here.change(gate, price="0.02")
            shown = (await buyer.ask("GET", elsewhere["url"])).json()
            assert shown["accepts"][0]["maxAmountRequired"] == "20000"
            one.process.process.kill()
            _, again = await there.buy(elsewhere)
            assert again.status == 200, again.body
    environ = sites[1].environ | {"TOLLKEEPER_PUBLIC_URL": "http://127.0.0.1:1"}
    checked = await asyncio.to_thread(
        finished, "db", "check", "--no-chain", "--config", sites[1].config, environ=environ, is_forked=False
    )
    assert (checked.returncode, checked.stdout.strip()) == (0, "the books agree"), checked.stdout + checked.stderr
    assert said_to(url, "SELECT count(*) AS calls FROM calls") == [{"calls": 4}]


def test_a_program_whose_clock_is_far_off_the_database_s_is_refused(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    site = Site(tmp_path, embedded_chain)
    site.environ |= {"TOLLKEEPER_DATABASE_URL": url}
    finished("db", "migrate", "--config", site.config, environ=site.environ, is_forked=False)
    (said,) = said_to(url, "SELECT pg_get_functiondef('database_ms'::regproc) AS words")
    said_to(url, said["words"].replace("* 1000)", "* 1000 + 7000)"))
    environ = site.environ | {"TOLLKEEPER_PUBLIC_URL": "http://127.0.0.1:1"}
    started = finished("serve", "--config", site.config, "--port", "0", environ=environ, is_forked=False)
    assert started.returncode == 3
    assert "clock is 7 s off the database's" in started.stderr
    said_to(url, said["words"])
    with site.serving():
        pass
