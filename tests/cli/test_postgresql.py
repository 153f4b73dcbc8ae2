"""Two programs that share one PostgreSQL database, as an operator starts them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Program, Scene, Site
from tests.engines import PostgresqlServer, programs, said_to
from tests.gateway.recording_target import recording_target
from tests.ports import free_port
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


async def test_workers_take_callers_from_one_listener_and_one_that_dies_is_started_again(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    site.environ |= {"TOLLKEEPER_DATABASE_URL": url, "TOLLKEEPER_WORKERS": "3"}
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            here = Scene(site, program, target, buyer, embedded_chain)
            await here.until(lambda: served_by(program) == 3)
            gate = await here.gate(credits=100)
            payment, bought = await here.buy(gate)
            assert bought.status == 200, bought.body
            (first, *_) = children(program.pid)
            os.kill(first, signal.SIGKILL)
            await here.until(lambda: served_by(program) == 4)
            answers = await asyncio.gather(*(buyer.call(gate["url"], payment) for _ in range(60)))
            assert [answer.status for answer in answers] == [200] * 60
            marks = "SELECT count(*) AS marks FROM nodes WHERE beat_ms > database_ms() - 8000"
            await here.until(lambda: said_to(url, marks)[0]["marks"] == 3)
            workers = children(program.pid)
            program.process.process.terminate()
            assert await asyncio.to_thread(program.process.exit_code) == 0
            assert not any(map(lives, workers))


async def test_a_worker_that_cannot_start_ends_them_all(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    environ = site.environ | {"TOLLKEEPER_DATABASE_URL": url + "_of_nobody", "TOLLKEEPER_WORKERS": "2"}
    words = ("serve", "--config", site.config, "--port", str(free_port()))
    started = await asyncio.to_thread(finished, *words, environ=environ, is_forked=False)
    assert started.returncode == 3
    assert "cannot be reached" in started.stderr


def served_by(program: Program) -> int:
    """How many workers have begun to serve, ever."""
    return sum(line.get("event") == "serving" for line in program.process.lines())


def lives(pid: int) -> bool:
    """Tell whether there is such a process."""
    return Path(f"/proc/{pid}").exists()


def children(pid: int) -> list[int]:
    """The processes that it started and that live."""
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))
