"""Two programs that share one PostgreSQL database, as an operator starts them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import PAYEE, Program, Scene, Site
from tests.engines import PostgresqlServer, programs, said_to, wait_for_server
from tests.gateway.recording_target import recording_target
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.postgresql.schema import applied_to

DEBIAN: Final = Path("/usr/lib/postgresql")
CUT_OFF: Final = """CREATE FUNCTION cut_off() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'cut off' USING ERRCODE = 'TK001'; END $$"""


@pytest.fixture
def url() -> Iterator[str]:
    server = PostgresqlServer(programs())
    said_to(server.url("postgres"), "CREATE DATABASE shared")
    yield server.url("shared")
    server.stop()


async def test_two_programs_sell_the_same_gates_and_neither_shows_a_former_price(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    await sell_the_same_gates(tmp_path, embedded_chain, url, url)


async def test_they_do_so_behind_pgbouncer_with_the_postgresql_of_debian(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    server = await asyncio.to_thread(PostgresqlServer, debian())
    said_to(server.url("postgres"), "CREATE DATABASE shared")
    try:
        with pgbouncer(server.directory) as pooled:
            with pytest.raises(StorageError, match="write pgbouncer=transaction"):
                await asyncio.to_thread(applied_to, pooled.removesuffix("?pgbouncer=transaction"))
            await sell_the_same_gates(tmp_path, embedded_chain, server.url("shared"), pooled)
    finally:
        server.stop()


def debian() -> Path:
    """The directory of the programs of Debian's PostgreSQL."""
    found = max(DEBIAN.glob("*/bin"), default=None, key=lambda directory: int(directory.parent.name))
    assert found is not None, "PostgreSQL of Debian is not installed"
    return found


@contextmanager
def pgbouncer(server: Path) -> Iterator[str]:
    """The URL of a database of the server in this directory, behind pgbouncer in transaction mode."""
    program = shutil.which("pgbouncer", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "pgbouncer is not installed"
    port, folder = free_port(), server / "pgbouncer"
    folder.mkdir()
    if os.geteuid() == 0:
        shutil.chown(folder, "nobody")
    (folder / "pgbouncer.ini").write_text(
        f"""[databases]
shared = host={server} dbname=shared user=tollkeeper
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
"""
    )
    as_user: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
    words = [program, "-q", str(folder / "pgbouncer.ini")]
    with subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL, **as_user) as process:
        try:
            wait_for_server(f"postgresql://tollkeeper@127.0.0.1:{port}/shared")
            yield f"postgresql://tollkeeper@127.0.0.1:{port}/shared?pgbouncer=transaction"
        finally:
            process.terminate()


async def sell_the_same_gates(tmp_path: Path, embedded_chain: ChainUnderTest, url: str, theirs: str) -> None:
    """Two programs, which reach the database at that URL of theirs."""
    sites = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        site = await asyncio.to_thread(Site, tmp_path / name, embedded_chain)
        site.environ |= {"TOLLKEEPER_DATABASE_URL": theirs}
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


async def test_a_new_key_seals_once_every_program_has_it_and_a_revocation_reaches_each(  # noqa: PLR0915 - one story
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    sites = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        site = await asyncio.to_thread(Site, tmp_path / name, embedded_chain)
        site.environ |= {"TOLLKEEPER_DATABASE_URL": url}
        sites.append(site)
    here, there = (site.home / "keys" for site in sites)

    def keys(*words: str) -> None:
        """Carry out a command about keys here, and give the other host the files."""
        done = finished("keys", *words, "--config", sites[0].config, environ=sites[0].environ, is_forked=False)
        assert done.returncode == 0, done.stderr
        copied()

    def copied() -> None:
        for path in here.iterdir():
            (there / path.name).write_bytes(path.read_bytes())

    def named() -> list[str]:
        return [row["name"] for row in said_to(url, "SELECT name FROM sealing_keys ORDER BY number")]

    copied()
    old_ring = (here / "encryption.keys").read_text()
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:

        async def works(*running: Program) -> str:
            """The token of a purchase at the first, which counts at all of them, as what they make does at it."""
            places = [Scene(one.site, one, target, buyer, embedded_chain) for one in running]
            gate = await places[-1].gate(credits=20)
            _, bought = await places[0].buy({**gate, "url": f"{running[0].url}/{gate['slug']}"})
            assert bought.status == 200, bought.body
            token = bought.headers["x-credit-token"]
            for one in running:
                answer = await buyer.ask("GET", f"{one.url}/{gate['slug']}", headers={"X-Credit-Token": token})
                assert answer.status == 200, answer.body
            slugs.append(gate["slug"])
            return token

        slugs: list[str] = []
        with ExitStack() as second:
            two = second.enter_context(sites[1].serving())
            with sites[0].serving() as one:
                token = await works(one, two)
            (old,) = named()
            await asyncio.to_thread(keys, "rotate")
            with sites[0].serving() as one:
                await works(one, two)
                await works(two, one)
                assert named() == [old]  # the other one lacks the new one
                second.close()
                with sites[1].serving() as two:
                    here_now = Scene(sites[0], one, target, buyer, embedded_chain)
                    await here_now.until(lambda: len(named()) == 2)
                    await works(one, two)
                    await works(two, one)
                    await here_now.until(lambda: bool(said_to(url, "SELECT 1 FROM retired_keys")))
                    (there / "encryption.keys").write_text(old_ring)
                    environ = sites[1].environ | {"TOLLKEEPER_PUBLIC_URL": "http://127.0.0.1:1"}
                    words = ("serve", "--config", sites[1].config, "--port", "0")
                    stale = await asyncio.to_thread(finished, *words, environ=environ, is_forked=False)
                    assert stale.returncode == 3
                    assert f"the key file lacks {named()[-1]}" in stale.stderr
        await asyncio.to_thread(keys, "retire", old)
        with sites[0].serving() as one, sites[1].serving() as two:
            ask = [f"{running.url}/{slugs[0]}" for running in (one, two)]
            told = [await buyer.ask("GET", at, headers={"X-Credit-Token": token}) for at in ask]
            assert [answer.status for answer in told] == [200, 200]
            os.kill(two.pid, signal.SIGSTOP)  # it does not hear of it
            try:
                await asyncio.to_thread(keys, "revoke", old)
                asked = [asyncio.create_task(buyer.ask("GET", at, headers={"X-Credit-Token": token})) for at in ask]
                assert (await asked[0]).status == 403
            finally:
                os.kill(two.pid, signal.SIGCONT)
            assert (await asked[1]).status == 403


async def test_a_file_on_one_gateway_s_disk_is_sold_while_no_other_gateway_would(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    site.environ |= {"TOLLKEEPER_DATABASE_URL": url}
    async with Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as one:
            bearer = {"Authorization": "Bearer " + await buyer.login(one.url)}

            async def made() -> Answer:
                form = aiohttp.FormData({"price": "0.01", "resourceType": "file"}, default_to_multipart=True)
                form.add_field("file", b"content", filename="report.pdf")
                return await buyer.ask("POST", one.url + "/api/v1/paygates", form=form, headers=bearer)

            assert (await made()).status == 201
            with site.serving():
                refused = await made()
                assert refused.status == 503
                assert "each keeps files on its own disk" in refused.json()["error"]["message"]
            assert (await made()).status == 201


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


async def test_of_a_payment_that_was_made_nobody_is_told_that_nothing_was_charged(
    tmp_path: Path, embedded_chain: ChainUnderTest, url: str
) -> None:
    """What it buys cannot be written, as where the program was cut off meanwhile."""
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    site.environ |= {"TOLLKEEPER_DATABASE_URL": url}
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            here = Scene(site, program, target, buyer, embedded_chain)
            gate, before = await here.gate(), embedded_chain.balance(PAYEE)
            said_to(url, CUT_OFF)
            said_to(url, "CREATE TRIGGER cut BEFORE INSERT ON credits FOR EACH ROW EXECUTE FUNCTION cut_off()")
            payment, refused = await here.buy(gate)
            assert embedded_chain.balance(PAYEE) == before + 10_000
            assert (refused.status, refused.error_code) == (503, "SETTLEMENT_PENDING"), refused.body
            assert "nothing was charged" not in refused.json()["error"]["message"]
            said_to(url, "DROP TRIGGER cut ON credits")
            async with asyncio.timeout(60):
                while (bought := await buyer.call(gate["url"], payment)).status == 503:  # noqa: ASYNC110 - over HTTP
                    await asyncio.sleep(0.1)
            assert bought.status == 200, bought.body
            assert embedded_chain.balance(PAYEE) == before + 10_000
