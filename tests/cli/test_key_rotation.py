"""The encryption key is replaced by a restart with two keys in the file: nothing that is stored is ever unreadable."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import stat
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import finished
from tests.cli.program import WAIT_SECONDS, Scene, Site
from tests.gateway.recording_target import RecordingTarget, recording_target
from tollkeeper.core.keys.keyring import parse_key_ring
from tollkeeper.core.keys.sealing import sealed_prefix
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets

OLD_ROWS = 120  # gates that are there before: some pages of them


def key_file(home: Path) -> Path:
    return home / "keys" / "encryption.keys"


def ids(home: Path) -> list[str]:
    """The ids of the ring in the key file, the current one first."""
    return list(parse_key_ring(key_file(home).read_text()).keys)


def values_under(database: Path, key_id: str) -> set[str]:
    """Tables and columns, anywhere in the database, that have values sealed under a key."""
    prefix, found = sealed_prefix(key_id), set()
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for column in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                sql = f"SELECT 1 FROM {table} WHERE substr(CAST({column} AS BLOB), 1, ?) = ?"  # noqa: S608 - ours
                if connection.execute(sql, (len(prefix), prefix)).fetchone():
                    found.add(f"{table}.{column}")
    return found


@dataclass
class Stage:
    """A site that is started several times, with its target and a buyer."""

    site: Site
    target: RecordingTarget
    buyer: Buyer
    chain: ChainUnderTest

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[Scene]:
        with self.site.serving() as program:
            yield Scene(self.site, program, self.target, self.buyer, self.chain)

    async def keys(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """What `tollkeeper keys` said."""
        return await asyncio.to_thread(
            finished, "keys", *words, "--config", self.site.config, environ=environ, is_forked=False
        )

    async def refused(self, *words: str, **environ: str) -> str:
        """Why `tollkeeper keys` would not; the file is as it was."""
        before = key_file(self.site.home).read_text()
        done = await self.keys(*words, **environ)
        assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stdout + done.stderr
        assert key_file(self.site.home).read_text() == before
        return done.stderr.replace("\n", " ")

    async def done(self, *words: str) -> str:
        """What `tollkeeper keys` told of what it did."""
        done = await self.keys(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
async def stage(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Stage]:
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        yield Stage(site, target, buyer, embedded_chain)


@dataclass
class Sold:
    """What was sold under the first key. `read` and `held` are gates' slugs, `link` is of a file."""

    read: str
    gate_id: int
    held: str
    payment: str
    tokened: str
    token: str
    link: str


async def sell(scene: Scene) -> Sold:
    """Every kind of value that is sealed or signed, and gates enough for some pages."""
    for number in range(OLD_ROWS // 20):
        await asyncio.gather(*(scene.gate(targetHeaders={"x-old": f"{number}"}) for _ in range(20)))
    body = {"targetUrl": scene.target.url, "price": "0.01", "headerAuthMode": "hmac", "targetHeaders": {"x-key": "a"}}
    made = await scene.buyer.ask(
        "POST", scene.program.url + "/api/v1/paygates", body=body, headers={"Idempotency-Key": uuid.uuid4().hex}
    )
    read = made.json()
    await scene.change(read, price="0.02")
    held, tokened = [await scene.gate(credits=100, method="GET, POST") for _ in range(2)]
    payment, bought = await scene.buy(held)
    assert bought.status == 200
    _, by_token = await scene.buy(tokened)
    token, link = by_token.headers["x-credit-token"], await link_of_a_file(scene)
    return Sold(read["slug"], read["id"], held["slug"], payment, tokened["slug"], token, link)


async def link_of_a_file(scene: Scene) -> str:
    """Path and query of a download link that was bought."""
    form = aiohttp.FormData({"price": "0.01", "resourceType": "file"}, default_to_multipart=True)
    form.add_field("file", b"content", filename="a.txt")
    bearer = {"Authorization": f"Bearer {await scene.buyer.login(scene.program.url)}"}
    made = await scene.buyer.ask("POST", scene.program.url + "/api/v1/paygates", form=form, headers=bearer)
    _, bought = await scene.buy({"url": f"{scene.program.url}/{made.json()['slug']}"})
    return URL(bought.json()["downloadUrl"], encoded=True).raw_path_qs


async def is_all_there(scene: Scene, sold: Sold, *, are_tokens_good: bool = True) -> None:
    """Sealed values open, credits are spent by header and by token, the link is good; or what a token shows is not."""
    url, buyer = scene.program.url, scene.buyer
    shown = (await buyer.ask("GET", f"{url}/{sold.read}")).json()
    assert shown["accepts"][0]["payTo"].lower() == "0x" + "77" * 20
    managed = await buyer.ask("GET", f"{url}/api/v1/paygates/{sold.gate_id}")
    assert (managed.status, managed.json()["targetHeaders"]) == (200, ["x-key"]), managed.body
    assert (await buyer.call(f"{url}/{sold.held}", sold.payment)).status == 200
    answers = [
        await buyer.ask("GET", f"{url}/{sold.tokened}", headers={"X-Credit-Token": sold.token}),
        await downloaded(scene, sold.link),
    ]
    refusals = [(403, "CREDIT_TOKEN_REQUIRED"), (403, "FORBIDDEN")]
    told = [(one.status, one.error_code if one.status >= 400 else "") for one in answers]
    assert told == ([(200, "")] * 2 if are_tokens_good else refusals)
    _, bought = await scene.buy(await scene.gate())
    assert bought.status == 200


async def downloaded(scene: Scene, link: str) -> Answer:
    """The answer to a download link."""
    return await scene.buyer.ask("GET", scene.program.url + link)


async def moved(scene: Scene) -> None:
    """Returns once the program has said that everything is under its first key."""
    deadline = time.monotonic() + WAIT_SECONDS
    while "values_resealed" not in scene.program.process.wrote:
        assert time.monotonic() < deadline, scene.program.process.wrote
        await asyncio.sleep(0.05)


async def test_a_key_is_replaced_by_a_restart_and_retired_once_nothing_is_under_it(stage: Stage) -> None:
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
        told = await stage.done("rotate")
        current, second = ids(site.home)
        assert second == former
        assert f"{current} is the first key of the file now" in told
        assert f"values are sealed under {former}, which stays" in await stage.refused("retire", former)
        assert "restart the server with it" in await stage.refused("rotate")
        await is_all_there(scene, sold)
    kinds = values_under(site.database, former)
    assert kinds == {
        "paygates.payment_address", "paygates.target_headers", "paygate_versions.pay_to", "purchases.pay_to",
        "paygate_secrets.secret", "creations.answer",
    }  # fmt: skip
    assert values_under(site.database, current) == set()
    async with stage.serving() as scene:
        await is_all_there(scene, sold)
        await moved(scene)
        assert values_under(site.database, former) == set()
        assert values_under(site.database, current) >= {*kinds, "retired_keys.token_key"}
        listed = (await stage.done("list")).splitlines()
        assert listed[0].startswith(f"{current}  in use  ")
        assert listed[1:] == [f"{former}  former  0 values"]
        assert f"{former} is retired" in await stage.done("retire", former)
        await is_all_there(scene, sold)  # of a server that knows the key until it is started anew
    assert ids(site.home) == [current]
    retired = key_file(site.home).with_name("encryption.keys.retired")
    assert list(parse_key_ring(retired.read_text()).keys) == [former]
    assert retired.stat().st_mode & 0o777 == 0o600
    async with stage.serving() as scene:  # by the new key alone
        await is_all_there(scene, sold)
        assert f"{former}  retired, and its tokens are good" in await stage.done("list")


async def test_a_server_that_is_killed_while_it_moves_values_goes_on_at_its_next_start(stage: Stage) -> None:
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
    await stage.done("rotate")
    for _ in range(3):
        async with stage.serving() as scene:
            os.kill(scene.program.pid, signal.SIGKILL)
            await asyncio.to_thread(scene.program.process.process.wait, 30)
    async with stage.serving() as scene:
        await is_all_there(scene, sold)
        await moved(scene)
        await stage.done("retire", former)
    async with stage.serving() as scene:
        await is_all_there(scene, sold)


async def test_values_that_do_not_open_keep_their_key_in_the_file_and_are_told(stage: Stage) -> None:
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
    with closing(sqlite3.connect(site.database)) as books, books:
        books.execute("UPDATE paygates SET payment_address = CAST(payment_address || x'00' AS BLOB) WHERE id = 1")
    await stage.done("rotate")
    async with stage.serving() as scene:
        await moved(scene)
        told = scene.program.process.wait_for_event("values_do_not_open")
        assert (told["level"], told["values"]) == ("error", 1)
        assert f"1 values are sealed under {former}" in await stage.refused("retire", former)
        await is_all_there(scene, sold)


async def test_a_backup_from_before_a_rotation_is_an_error_at_its_start_and_not_ready(stage: Stage) -> None:
    """Every gate in it is dead: nobody could buy anything, and all else would look well."""
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        gate = await scene.gate()
    backup = site.database.read_bytes()
    await stage.done("rotate")
    async with stage.serving() as scene:
        await moved(scene)
        await stage.done("retire", former)
        assert (await scene.buyer.ask("GET", scene.program.url + "/readyz")).status == 200
    site.database.write_bytes(backup)
    async with stage.serving() as scene:
        told = scene.program.process.wait_for_event("gates_do_not_open")
        assert (told["level"], told["gates"], told["missing"]) == ("error", 1, [former])
        ready = await scene.buyer.ask("GET", scene.program.url + "/readyz")
        assert (ready.status, ready.json()["error"]["details"]["checks"]["encryptionKeys"]) == (503, False)
        assert (await scene.buyer.ask("GET", f"{scene.program.url}/{gate['slug']}")).status == 503
    checked = await asyncio.to_thread(finished, "config", "check", "--config", site.config)
    assert "warning: encryption_keys_file" in checked.stdout
    retired = key_file(site.home).with_name("encryption.keys.retired")
    key_file(site.home).write_text(key_file(site.home).read_text() + retired.read_text())
    async with stage.serving() as scene:
        await moved(scene)
        assert (await scene.buyer.ask("GET", scene.program.url + "/readyz")).status == 200
        assert (await scene.buyer.ask("GET", f"{scene.program.url}/{gate['slug']}")).status == 402


async def test_tokens_of_a_retired_key_that_leaked_are_revoked_by_the_running_server(stage: Stage) -> None:
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
    await stage.done("rotate")
    assert f"`tollkeeper keys retire {former}` first" in await stage.refused("revoke", former)
    async with stage.serving() as scene:
        await moved(scene)
        await stage.done("retire", former)
    assert "no server runs on" in await stage.refused("revoke", former)
    assert "no tokens of e-nobody are good" in await stage.refused("revoke", "e-nobody")
    async with stage.serving() as scene:
        await is_all_there(scene, sold)
        fresh = await link_of_a_file(scene)
        await stage.done("revoke", former)
        await is_all_there(scene, sold, are_tokens_good=False)
        assert "retired" not in await stage.done("list")
    async with stage.serving() as scene:
        await is_all_there(scene, sold, are_tokens_good=False)
        assert (await scene.buyer.ask("GET", scene.program.url + fresh)).status == 200


async def test_a_backup_that_is_put_back_makes_no_revoked_token_good_again(stage: Stage) -> None:
    """Whoever has the leaked key would forge them until somebody thought of it."""
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
    backup = site.database.read_bytes()
    await stage.done("rotate")
    async with stage.serving() as scene:
        await moved(scene)
        await stage.done("retire", former)
        await stage.done("revoke", former)
        await is_all_there(scene, sold, are_tokens_good=False)
    ring = key_file(site.home)
    revoked = ring.with_name("encryption.keys.revoked")
    assert (revoked.read_text(), stat.S_IMODE(revoked.stat().st_mode)) == (f"{former}\n", 0o600)
    ring.write_text(ring.read_text() + ring.with_name("encryption.keys.retired").read_text())
    site.database.write_bytes(backup)
    for _ in range(2):  # the second finds what the first one moved
        async with stage.serving() as scene:
            await is_all_there(scene, sold, are_tokens_good=False)
            if former in ids(site.home):
                await moved(scene)
                await stage.done("retire", former)
            assert "retired" not in await stage.done("list")


async def test_a_key_that_is_put_first_again_is_retired_no_more(stage: Stage) -> None:
    site = stage.site
    (former,) = ids(site.home)
    async with stage.serving() as scene:
        sold = await sell(scene)
    await stage.done("rotate")
    current, _ = ids(site.home)
    async with stage.serving() as scene:
        await moved(scene)
    file = key_file(site.home)
    lines = file.read_text().splitlines()
    file.write_text("\n".join(reversed(lines)) + "\n")
    async with stage.serving() as scene:
        await moved(scene)
        await is_all_there(scene, sold)
        assert "is the key in use" in await stage.refused("retire", former)
        await stage.done("retire", current)
    async with stage.serving() as scene:
        await is_all_there(scene, sold)


async def test_keys_of_the_environment_of_a_hub_and_of_nobody_are_refused_with_a_remedy(stage: Stage) -> None:
    text = key_file(stage.site.home).read_text()
    assert "put them into a file" in await stage.refused("rotate", TOLLKEEPER_ENCRYPTION_KEYS=text.strip())
    assert "the key file has no key e-nobody" in await stage.refused("retire", "e-nobody")
    (former,) = ids(stage.site.home)
    await asyncio.to_thread(finished, "db", "migrate", "--config", stage.site.config)
    await stage.done("rotate")
    assert "no server has sealed under" in await stage.refused("retire", former)
    config = stage.site.config
    config.write_text("\n".join(line for line in config.read_text().splitlines() if "encryption_keys" not in line))
    assert "seals nothing" in await stage.refused("rotate", "--for", "hub")
