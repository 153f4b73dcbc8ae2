"""The encryption key is replaced while calls are served: by one process, by several, and by a gateway without a hub.

Everything that seals or opens something goes on all the while, and no request may fail; whoever is killed in the middle
(the command, a worker, the ledger's process, all of the server), no stored value is lost, and the command goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import configured, finished, running
from tests.edge.test_calls import until
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.ports import free_port
from tests.workers.program import PAYEE, START_SECONDS, Program, Scene, Site
from tollkeeper.core.keyring import parse_key_ring
from tollkeeper.core.sealing import sealed_prefix
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

CREDITS = 1_000_000
OLD_ROWS = 400  # gates that are there before, so that moving them takes a while
COMMAND_SECONDS = 120


def key_file(home: Path) -> Path:
    return home / "keys" / "encryption.keys"


def ids(home: Path) -> list[str]:
    """The ids of the ring in the key file, the current one first."""
    return list(parse_key_ring(key_file(home).read_text()).keys)


def rotate(config: Path, *options: str, role: str = "serve") -> subprocess.CompletedProcess[str]:
    return finished("keys", "rotate", "--config", config, "--for", role, *options)


def values_under(database: Path, key_id: str) -> dict[str, int]:
    """How many values anywhere in the database were sealed under a key, by table and column."""
    prefix, found = sealed_prefix(key_id), {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for column in [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]:
                sql = f"SELECT count(*) FROM {table} WHERE substr(CAST({column} AS BLOB), 1, ?) = ?"  # noqa: S608 - ours
                (count,) = connection.execute(sql, (len(prefix), prefix)).fetchone()
                if count:
                    found[f"{table}.{column}"] = count
    return found


@dataclass
class Load:
    """Callers of everything that seals or opens. `wrong` is every answer that should not have been."""

    url: str
    target: str
    payment: str
    token: str
    held: dict[str, Any]
    link: str  # of a file that was bought before
    answers: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    may_break: bool = False  # somebody is killed: connections and 503 are no fault then
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [
            asyncio.create_task(one())
            for one in (self._header, self._header, self._token, self._download, self._manage, self._buy)
        ]
        try:
            yield
        finally:
            self._stop.set()
            await asyncio.gather(*tasks)

    async def _again_and_again(self, name: str, method: str, path: str, wanted: int, **more: Any) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            while not self._stop.is_set():
                await self._ask(session, name, method, path, wanted, **more)
                await asyncio.sleep(0.03)  # many enough to meet every moment, few enough for two cores

    async def _ask(
        self, session: aiohttp.ClientSession, name: str, method: str, path: str, wanted: int, **more: Any
    ) -> Any:
        try:
            async with session.request(method, self.url + path, **more) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            if not self.may_break:
                self.wrong.append(f"{name}: {error!r}")
            return None
        self.answers[name] += answer.status == wanted
        if answer.status != wanted and not (self.may_break and answer.status in {402, 409, 502, 503}):
            self.wrong.append(f"{name}: {answer.status} {body[:300]!r}")
        return json.loads(body) if answer.status == wanted and body.startswith(b"{") else None

    async def _header(self) -> None:
        await self._again_and_again("header", "POST", f"/{self.held['slug']}", 200, headers={"X-Payment": self.payment})

    async def _token(self) -> None:
        # At the other gate: a header does not count any more once its token was used.
        await self._again_and_again(
            "token", "POST", f"/{self.held['tokenSlug']}", 200, headers={"X-Credit-Token": self.token}
        )

    async def _download(self) -> None:
        await self._again_and_again("download", "GET", self.link, 200)

    async def _manage(self) -> None:
        """Creates (with a key, twice), changes and reads gates with every sealed field."""
        number = 0
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
            while not self._stop.is_set():
                number += 1
                body = {
                    "targetUrl": self.target,
                    "price": "0.01",
                    "headerAuthMode": "hmac",
                    "targetHeaders": {"x-key": f"secret {number}"},
                }
                key = {"Idempotency-Key": uuid.uuid4().hex}
                first = await self._ask(session, "create", "POST", "/api/v1/paygates", 201, json=body, headers=key)
                again = await self._ask(session, "create", "POST", "/api/v1/paygates", 201, json=body, headers=key)
                if first and again and first["secret"] != again["secret"]:
                    self.wrong.append("the same create was answered in two ways")
                if first:
                    path = f"/api/v1/paygates/{first['id']}"
                    change = {"paymentAddress": f"0x{number:040x}", "targetHeaders": {"x-key": "another"}}
                    await self._ask(session, "change", "PUT", path, 200, json=change)
                    await self._ask(session, "secret", "POST", path + "/secret", 200)
                    await self._ask(session, "read", "GET", path, 200)
                await asyncio.sleep(0.06)

    async def _buy(self) -> None:
        """Claims hold a sealed address and a sealed request."""
        async with Buyer(derive_wallets().buyer) as buyer:
            while not self._stop.is_set():
                try:
                    url = f"{self.url}/{self.held['soldSlug']}"
                    answer = await buyer.call(url, buyer.sign((await buyer.ask("GET", url)).json()))
                except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError) as error:
                    if not self.may_break:
                        self.wrong.append(f"buy: {error!r}")
                    await asyncio.sleep(0.1)
                    continue
                self.answers["buy"] += answer.status == 200
                if answer.status != 200 and not self.may_break:
                    self.wrong.append(f"buy: {answer.status} {answer.body[:300]!r}")
                await asyncio.sleep(0.05)


async def prepared(site: Scene, rows: int = OLD_ROWS) -> Load:
    """Gates that were there before, credits held by header and by token."""
    for number in range(rows // 20):
        await asyncio.gather(*(site.gate(targetHeaders={"x-old": f"{number}"}) for _ in range(20)))
    gates = [await site.gate(credits=CREDITS, method="GET, POST") for _ in range(3)]
    payment, bought = await site.buy(gates[0])
    assert bought.status == 200
    _, by_token = await site.buy(gates[1])
    held = {"slug": gates[0]["slug"], "tokenSlug": gates[1]["slug"], "soldSlug": gates[2]["slug"]}
    token = by_token.headers["x-credit-token"]
    return Load(site.program.url, site.target.url, payment, token, held, await link_of_a_file(site))


async def link_of_a_file(site: Scene) -> str:
    """Path and query of a download link that was bought."""
    form = aiohttp.FormData({"price": "0.01", "resourceType": "file"}, default_to_multipart=True)
    form.add_field("file", b"content", filename="a.txt")
    bearer = {"Authorization": f"Bearer {await site.buyer.login(site.program.url)}"}
    made = await site.buyer.ask("POST", site.program.url + "/api/v1/paygates", form=form, headers=bearer)
    _, bought = await site.buy({"url": f"{site.program.url}/{made.json()['slug']}"})
    link = URL(bought.json()["downloadUrl"], encoded=True)
    return link.raw_path_qs


@dataclass
class Stage:
    """A site that is started several times, with its target and a buyer."""

    site: Site
    target: RecordingTarget
    buyer: Buyer
    chain: ChainUnderTest

    @contextlib.asynccontextmanager
    async def serving(self, workers: int, port: int = 0) -> AsyncIterator[Scene]:
        with self.site.serving(workers, port) as program:
            yield Scene(self.site, program, self.target, self.buyer, self.chain)


@pytest.fixture
async def stage(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Stage]:
    site = await asyncio.to_thread(Site, tmp_path, embedded_chain)
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        yield Stage(site, target, buyer, embedded_chain)


@pytest.mark.parametrize("workers", [1, 3])
async def test_no_request_fails_while_the_key_is_replaced(stage: Stage, workers: int) -> None:
    site = stage.site
    (first,) = ids(site.home)
    async with stage.serving(workers) as serving:
        load = await prepared(serving)
        async with load.running():
            await asyncio.sleep(1)
            for _ in range(2):
                done = await asyncio.to_thread(rotate, site.config)
                assert done.returncode == 0, done.stdout + done.stderr
            await asyncio.sleep(1)
            kinds = ("header", "token", "download", "create", "change", "secret", "read", "buy")
            await serving.until(lambda: min(load.answers[name] for name in kinds) > 3)
        assert load.wrong == []
        (current,) = ids(site.home)
        assert current != first
        assert values_under(site.database, first) == {}
        assert values_under(site.database, current).keys() >= {
            "paygates.payment_address", "paygates.target_headers", "paygate_versions.pay_to", "purchases.pay_to",
            "paygate_secrets.secret", "creations.answer", "retired_keys.token_key",
        }  # fmt: skip
        listed = await asyncio.to_thread(finished, "keys", "list", "--config", site.config, is_forked=False)
        assert listed.returncode == 0, listed.stderr
        assert listed.stdout.startswith(f"{current}  in use  ")
        others = listed.stdout.splitlines()[1:]
        assert f"{first}  retired, and its tokens are good" in others
        assert len(others) == 2
    retired = key_file(site.home).with_name("encryption.keys.retired")
    assert first in parse_key_ring(retired.read_text()).keys
    assert retired.stat().st_mode & 0o777 == 0o600
    async with stage.serving(workers) as serving:  # by the new key alone
        load = Load(serving.program.url, load.target, load.payment, load.token, load.held, load.link)
        async with load.running():
            await asyncio.sleep(1)
        assert load.wrong == []


async def test_no_request_fails_at_a_gateway_apart_from_its_hub(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    hub_url, gateway_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    shared = {"LOG_FORMAT": "json", "ASSET_NAME_BASE_SEPOLIA": embedded_chain.token_name}
    of_hub = {
        "PUBLIC_URL": hub_url,
        "TRUSTED_ISSUERS": gateway_url,
        "SIGNER_KEY": derive_wallets().relayer.private_key_hex,
    }
    of_gateway = {
        "PUBLIC_URL": gateway_url,
        "HUB_URL": hub_url,
        "TRUSTED_ISSUERS": hub_url,
        "DEFAULT_PAYMENT_ADDRESS": PAYEE,
        "ALLOW_PRIVATE_TARGETS": "true",
        "ANONYMOUS_PAYGATES": "manage",
    }
    async with contextlib.AsyncExitStack() as stack:
        for role, own in (("hub", of_hub), ("gateway", of_gateway)):
            home = tmp_path / role
            configured(home, embedded_chain.url)
            environ = {f"TOLLKEEPER_{name}": value for name, value in {**shared, **own}.items()}
            port = own["PUBLIC_URL"].rpartition(":")[2]
            process = stack.enter_context(
                running(role, "--config", home / "tollkeeper.toml", "--port", port, environ=environ)
            )
            await asyncio.to_thread(process.wait_for_event, "serving", START_SECONDS)
        await asyncio.sleep(5)  # the hub, which came first, asks the gateway for its keys every two seconds
        target = await stack.enter_async_context(recording_target())
        buyer = await stack.enter_async_context(Buyer(derive_wallets().buyer))
        site = Site.__new__(Site)  # of a home that was made above
        site.home = home
        load = await prepared(Scene(site, Program(site, process, gateway_url, {}), target, buyer, embedded_chain), 40)
        (former,) = ids(home)
        async with load.running():
            command = ("keys", "rotate", "--config", home / "tollkeeper.toml", "--for", "gateway")
            done = await asyncio.to_thread(finished, *command, environ=environ)
            assert done.returncode == 0, done.stdout + done.stderr
            await until(lambda: load.answers["buy"] > 0, 30)
        assert load.wrong == []
        assert values_under(site.database, former) == {}


async def test_a_command_that_is_killed_anywhere_loses_nothing_and_is_gone_on_with(stage: Stage) -> None:
    site = stage.site
    async with stage.serving(2) as serving:
        load = await prepared(serving)
        async with load.running():
            for number in range(8):
                with running("keys", "rotate", "--config", site.config) as process:
                    await asyncio.sleep(0.4 + 0.25 * number)
                    process.process.kill()
                ring = ids(site.home)
                assert 1 <= len(ring) <= 2
            done = await asyncio.to_thread(rotate, site.config)
            assert done.returncode == 0, done.stdout + done.stderr
        assert load.wrong == []
        (current,) = ids(site.home)
        retired = parse_key_ring(key_file(site.home).with_name("encryption.keys.retired").read_text())
        assert [values_under(site.database, name) for name in retired.keys] == [{} for _ in retired.keys]
        assert values_under(site.database, current)


@pytest.mark.parametrize("victim", ["worker 1", "worker 2", "ledger", "everybody"])
async def test_whoever_is_killed_in_the_middle_every_value_opens_and_the_rotation_ends(
    stage: Stage, victim: str
) -> None:
    site, random_ = stage.site, random.Random(victim)
    port = free_port()
    (first,) = ids(site.home)
    async with stage.serving(2, port) as serving:
        load = await prepared(serving)
        load.may_break = True
        async with load.running():
            rotating = asyncio.create_task(asyncio.to_thread(rotate, site.config))
            await serving.until(lambda: ids(site.home) != [first])
            await asyncio.sleep(random_.uniform(0, 0.5))
            if victim == "everybody":
                os.kill(serving.program.parent, signal.SIGKILL)
            else:
                serving.program.kill(victim)
                await asyncio.sleep(1)
                serving.program.kill(victim)
            done = await rotating
        assert load.wrong == []
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(ids(site.home)) == 1
    assert values_under(site.database, first) == {}
    async with stage.serving(2, port) as serving:
        load = Load(serving.program.url, load.target, load.payment, load.token, load.held, load.link)
        async with load.running():
            await asyncio.sleep(1)
        assert load.wrong == []
        checked = await asyncio.to_thread(finished, "db", "check", "--config", site.config)
        assert checked.returncode == 0, checked.stdout


async def test_a_worker_that_dies_before_it_reads_of_the_key_is_replaced(stage: Stage) -> None:
    (first,) = ids(stage.site.home)
    async with stage.serving(2) as serving:
        hanging = serving.program.children()["worker 2"]
        os.kill(hanging, signal.SIGSTOP)
        rotating = asyncio.create_task(asyncio.to_thread(rotate, stage.site.config))
        await serving.until(lambda: ids(stage.site.home) != [first])
        await asyncio.sleep(1)
        with contextlib.suppress(ProcessLookupError):  # its parent does so too, if that took long
            os.kill(hanging, signal.SIGKILL)
        done = await rotating
        assert done.returncode == 0, done.stdout + done.stderr
        await serving.until(lambda: serving.program.children().get("worker 2") not in {None, hanging})


@pytest.mark.parametrize("victim", ["hub", "worker 1", "ledger"])
async def test_whoever_dies_behind_a_rotation_is_started_anew_and_sells(stage: Stage, victim: str) -> None:
    async with stage.serving(2) as serving:
        gate = await serving.gate()
        done = await asyncio.to_thread(rotate, stage.site.config)
        assert done.returncode == 0, done.stdout + done.stderr
        payment = serving.buyer.sign((await serving.buyer.ask("GET", gate["url"])).json())
        serving.program.kill(victim)
        for _ in range(100):
            sold = await serving.buyer.call(gate["url"], payment)
            if sold.status != 503:
                break
            await asyncio.sleep(0.2)
        assert sold.status == 200, sold.body


async def test_a_stopped_gateways_key_is_replaced_too_and_its_leaked_tokens_are_revoked(stage: Stage) -> None:
    site = stage.site
    async with stage.serving(1) as serving:
        load = await prepared(serving, rows=0)
    done = await asyncio.to_thread(rotate, site.config, "--revoke-tokens")
    assert done.returncode == 0, done.stdout + done.stderr
    async with stage.serving(1) as serving:
        url = f"{serving.program.url}/{load.held['tokenSlug']}"
        refused = await stage.buyer.ask("GET", url, headers={"X-Credit-Token": load.token})
        assert (refused.status, refused.json()["error"]["code"]) == (403, "CREDIT_TOKEN_REQUIRED")
        assert (await stage.buyer.call(f"{serving.program.url}/{load.held['slug']}", load.payment)).status == 200
        assert await downloaded(serving, load.link) == (403, "FORBIDDEN")
        fresh = await link_of_a_file(serving)
        assert await downloaded(serving, fresh) == (200, "content")
    # Without the option, what the replaced key made stays good, also when the next one is revoked: until it is itself.
    (replaced,) = ids(site.home)
    assert (await asyncio.to_thread(rotate, site.config)).returncode == 0
    told = await asyncio.to_thread(rotate, site.config, "--revoke-tokens")
    assert f"tokens that {replaced} made stay good" in told.stdout

    async def keys(*arguments: str) -> subprocess.CompletedProcess[str]:
        return await asyncio.to_thread(finished, "keys", *arguments, "--config", site.config, is_forked=False)

    async with stage.serving(2) as serving:
        assert await downloaded(serving, fresh) == (200, "content")
        assert await downloaded(serving, load.link) == (403, "FORBIDDEN")
        assert f"{replaced}  retired, and its tokens are good" in (await keys("list")).stdout
        done = await keys("revoke", replaced)
        assert done.returncode == 0, done.stdout + done.stderr
        for _ in range(6):  # whichever worker is asked
            assert await downloaded(serving, fresh) == (403, "FORBIDDEN")
        assert "retired" not in (await keys("list")).stdout
        for name, said in ((replaced, "no tokens of"), (ids(site.home)[0], "keys rotate --revoke-tokens")):
            denied = await keys("revoke", name)
            assert (denied.returncode, said in denied.stderr) == (3, True), denied.stderr


async def test_a_revocation_that_was_cut_off_reaches_every_process_when_it_is_ordered_again(stage: Stage) -> None:
    """Cut off behind its commit, nothing is left to revoke, and the processes that serve have not heard of it."""
    site, (first,) = stage.site, ids(stage.site.home)
    async with stage.serving(2) as serving:
        link = await link_of_a_file(serving)
        assert (await asyncio.to_thread(rotate, site.config)).returncode == 0
        with closing(sqlite3.connect(site.database)) as connection, connection:
            assert connection.execute("DELETE FROM retired_keys WHERE id = ?", (first,)).rowcount == 1
        assert await downloaded(serving, link) == (200, "content")
        told = await asyncio.to_thread(finished, "keys", "revoke", first, "--config", site.config, is_forked=False)
        assert f"no tokens of {first} are good" in told.stderr
        for _ in range(6):  # whichever worker is asked
            assert await downloaded(serving, link) == (403, "FORBIDDEN")


async def downloaded(site: Scene, link: str) -> tuple[int, str]:
    """The status, and the content or the code of the refusal."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(URL(site.program.url + link, encoded=True)) as answer,
    ):
        text = await answer.text()
        return answer.status, json.loads(text)["error"]["code"] if answer.status >= 400 else text


async def test_keys_of_the_environment_and_of_a_hub_are_refused_with_a_remedy(stage: Stage) -> None:
    site = stage.site
    text = key_file(site.home).read_text()
    inline = {"TOLLKEEPER_ENCRYPTION_KEYS": text.strip()}
    refused = finished("keys", "rotate", "--config", site.config, environ=inline)
    assert refused.returncode == 3
    assert "put them into a file" in refused.stderr
    key_file(site.home).write_text("")
    hub = finished("keys", "rotate", "--config", site.config, "--for", "hub", is_forked=False)
    assert hub.returncode == 3
    key_file(site.home).write_text("e-other:" + "77" * 32 + "\n")
    async with stage.serving(1):
        key_file(site.home).write_text(text)
        refused = await asyncio.to_thread(rotate, site.config)
        assert refused.returncode == 3
        assert "e-other" in refused.stderr
        assert key_file(site.home).read_text() == text
