"""PostgreSQL's own backup, taken amid purchases and brought to a moment after it, by the guide's steps."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, Site
from tests.deploy.test_backup_under_load import OPEN, SETTLED, differences, load
from tests.engines import PostgresqlServer, programs, said_to, wait_for_server
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

USER: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}  # who PostgreSQL's programs may be


def run(program: str, *words: str | Path) -> None:
    subprocess.run([programs() / program, *words], check=True, cwd="/", stdout=subprocess.DEVNULL, **USER)


@contextmanager
def recovered(base: Path, archive: Path, moment: str) -> Iterator[str]:
    """A server of the backup, brought to that moment by segments of the write-ahead log: its database's URL."""
    with (base / "postgresql.auto.conf").open("a") as settings:
        settings.write(f"restore_command = 'cp {archive}/%f %p'\nrecovery_target_time = '{moment}'\n")
        settings.write(
            "recovery_target_action = 'promote'\nlisten_addresses = ''\nmax_connections = 300\nfsync = off\n"
        )
    (base / "recovery.signal").touch()
    words: list[str | Path] = [programs() / "postgres", "-D", base, "-k", base]
    with subprocess.Popen(words, cwd="/", stderr=subprocess.DEVNULL, **USER) as server:
        try:
            wait_for_server(f"postgresql://tollkeeper@/shop?host={base}&target_session_attrs=primary")
            yield f"postgresql://tollkeeper@/shop?host={base}"
        finally:
            server.send_signal(3)


@pytest.mark.long
async def test_a_moment_after_the_backup_comes_back_and_the_books_agree(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    server = await asyncio.to_thread(PostgresqlServer, programs())
    base, data = server.directory / "base", server.directory / "data"
    archive = data / "pg_wal"  # an archive would have the same segments
    said_to(server.url("postgres"), "CREATE DATABASE shop")
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    site.environ["TOLLKEEPER_DATABASE_URL"] = server.url("shop")

    def sold() -> int:
        return int(said_to(site.environ["TOLLKEEPER_DATABASE_URL"], "SELECT count(*) AS n FROM purchases")[0]["n"])

    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            town = Scene(site, program, target, buyer, embedded_chain)
            gate = await town.gate(credits=20)
            async with load(town, gate):
                await town.until(lambda: sold() >= 4)
                run("pg_basebackup", "-D", base, "-d", server.url("postgres"), "--checkpoint=fast", "--wal-method=none")
                since = sold()
                await town.until(lambda: sold() >= since + 4)
                (row,) = said_to(server.url("shop"), "SELECT clock_timestamp()::text AS moment")
                kept = sold()
                await town.until(lambda: sold() >= kept + 4)
            payment, _ = await town.buy(gate)
            program.process.process.kill()
        run("pg_ctl", "stop", "-D", data, "--mode=immediate")
        with recovered(base, archive, row["moment"]) as url:
            site.environ["TOLLKEEPER_DATABASE_URL"] = url
            assert since + 4 <= sold() <= kept + 3  # and those that were under way
            own = await asyncio.to_thread(
                finished, "db", "check", "--no-chain", "--config", site.config, environ=site.environ
            )
            assert own.stdout == "the books agree\n", own.stdout + own.stderr
            assert set(differences(town)) <= {SETTLED, OPEN}
            with site.serving() as again:
                held = embedded_chain.balance(buyer.wallet.address)
                answer = await buyer.call(f"{again.url}/{gate['slug']}", payment)
                assert (answer.status, embedded_chain.balance(buyer.wallet.address)) == (200, held), answer.body
                await town.until(lambda: set(differences(town)) == {SETTLED})
    server.stop()
