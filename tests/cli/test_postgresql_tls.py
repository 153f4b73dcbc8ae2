"""TLS to PostgreSQL by a certificate of a CA that only its URL names, and a standby before the server that writes."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import Scene, Site
from tests.cli.test_postgresql import debian
from tests.edge.targets import certificate
from tests.engines import said_to
from tests.gateway.recording_target import recording_target
from tests.nodes.postgresql import Server
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.postgresql.schema import applied_to

ADDRESS = "127.0.0.1"


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """A server that takes nobody's words but by TLS, and one that follows it. Their certificate is of `localhost`."""
    made = [Server(ADDRESS, free_port(), debian()) for _ in range(2)]
    primary, standby = made
    certificate(tmp_path, "localhost")
    for server in made:
        for ending in ("pem", "key"):
            copied = Path(shutil.copy(tmp_path / f"localhost.{ending}", server.directory))
            copied.chmod(0o600)
            if os.geteuid() == 0:
                shutil.chown(copied, "nobody")
        server.settings |= {
            "ssl": "on",
            "ssl_cert_file": f"{server.directory}/localhost.pem",
            "ssl_key_file": f"{server.directory}/localhost.key",
        }
    try:
        primary.make()
        standby.stand_by(primary)
        for server in made:
            rules = server.data / "pg_hba.conf"
            rules.write_text("\n".join(line for line in rules.read_text().splitlines() if line[:5] == "local"))
            with rules.open("a") as file:
                file.write(f"\nhostssl all all {ADDRESS}/32 trust\n")
            server.run("pg_ctl", "reload", "-D", str(server.data))
        yield made
    finally:
        for server in made:
            server.remove()


async def test_a_program_speaks_to_the_server_that_writes_by_a_certificate_that_it_checked(
    tmp_path: Path, embedded_chain: ChainUnderTest, servers: list[Server]
) -> None:
    primary, standby = servers

    def url(host: str, authority: Path) -> str:
        places = ",".join(f"{host}:{server.port}" for server in (standby, primary))
        words = f"sslmode=verify-full&sslrootcert={authority}&target_session_attrs=read-write"
        return f"postgresql://tollkeeper@{places}/shared?{words}"

    ours = tmp_path / "localhost.pem"
    (tmp_path / "other").mkdir()
    certificate(tmp_path / "other", "localhost")
    (tmp_path / "home").mkdir()
    site = await asyncio.to_thread(Site, tmp_path / "home", embedded_chain)
    for wrong in (url("localhost", tmp_path / "other" / "localhost.pem"), url(ADDRESS, ours)):
        environ = site.environ | {"TOLLKEEPER_DATABASE_URL": wrong, "TOLLKEEPER_PUBLIC_URL": "http://127.0.0.1:1"}
        words = ("serve", "--config", site.config, "--port", "0")
        refused = await asyncio.to_thread(finished, *words, environ=environ, is_forked=False)
        assert refused.returncode == 3
        assert "certificate verify failed" in refused.stderr
    with pytest.raises(StorageError, match="sslrootcert"):
        await asyncio.to_thread(applied_to, url("localhost", tmp_path / "nowhere.pem"))
    site.environ["TOLLKEEPER_DATABASE_URL"] = url("localhost", ours)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            here = Scene(site, program, target, buyer, embedded_chain)
            _, bought = await here.buy(await here.gate())
            assert bought.status == 200, bought.body
            ours_are = "application_name = 'tollkeeper'"
            spoken = f"SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE {ours_are}"  # noqa: S608
            assert {way["ssl"] for way in said_to(url("localhost", ours), spoken)} == {True}
