"""Settings that bound what callers and time may do, in a running program: requests a minute, days of the log."""

from __future__ import annotations

import asyncio
import select
import signal
import socket
import sqlite3
import time
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.cli.processes import ask
from tests.cli.program import Site
from tests.gateway.recording_target import recording_target
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets

LIMITS = {"UNPAID": 5, "API": 6, "LOGIN": 4}  # one more comes after ten seconds at the soonest
DAY_MS = 24 * 3600 * 1000


def site_of(home: Path, chain: ChainUnderTest, **settings: object) -> Site:
    site = Site(home, chain)
    site.environ |= {f"TOLLKEEPER_{name}": str(value) for name, value in settings.items()}
    return site


def came_by(client: str, **more: str) -> dict[str, str]:
    """Headers of a request that a trusted proxy passes on for this client."""
    return {"X-Forwarded-For": f"203.0.113.99, {client}", **more}


def assert_limited(url: str, wanted: int, allowed: int, *, name: str, client: str) -> None:
    """So many requests of a client are answered as wanted, the next one is told when to come back."""
    statuses = [ask(url, headers=came_by(client)).status for _ in range(allowed)]
    assert statuses == [wanted] * allowed
    refused = ask(url, headers=came_by(client))
    assert (refused.status, refused.json()["error"]["code"]) == (429, "RATE_LIMITED")
    assert 1 <= int(refused.headers["retry-after"]) <= 60
    assert f'"{name}"' in refused.headers["ratelimit"]
    assert f'"{name}";q={allowed};w=60' in refused.headers["ratelimit-policy"]
    assert ask(url, headers=came_by("198.51.100.250")).status == wanted


async def test_each_limit_is_what_its_setting_says_for_each_client_of_a_trusted_proxy(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    named = {f"{name}_REQUESTS_PER_MINUTE": value for name, value in LIMITS.items()}
    site = await asyncio.to_thread(
        lambda: site_of(tmp_path / "home", embedded_chain, TRUSTED_PROXIES="127.0.0.1/32", **named)
    )
    with site.serving() as program:
        body = {"targetUrl": "http://127.0.0.1:1/", "price": "0.01"}
        gate: dict[str, Any] = ask(program.url + "/api/v1/paygates", body=body).json()
        wallet = derive_wallets().buyer.address
        api, message = program.url + "/api/v1/paygates", program.url + f"/api/v1/auth/message?walletAddress={wallet}"

        def each() -> None:
            assert_limited(f"{program.url}/{gate['slug']}", 402, LIMITS["UNPAID"], name="unpaid", client="198.51.100.1")
            assert_limited(api, 200, LIMITS["API"], name="api", client="198.51.100.2")
            assert_limited(message, 200, LIMITS["LOGIN"], name="login", client="198.51.100.3")

        await asyncio.to_thread(each)
        async with Buyer(derive_wallets().buyer) as buyer:
            bearer = f"Bearer {await buyer.login(program.url)}"
        answers = [
            await asyncio.to_thread(ask, api, headers=came_by(f"198.51.100.{number}", Authorization=bearer))
            for number in range(10, 10 + LIMITS["API"] + 1)
        ]
        assert [answer.status for answer in answers] == [200] * LIMITS["API"] + [429]
        assert '"wallet"' in answers[-1].headers["ratelimit"]


def test_a_hangup_changes_each_limit_at_once(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    site = site_of(tmp_path / "home", embedded_chain, TRUSTED_PROXIES="127.0.0.1/32")
    former = site.config.read_text()
    wallet = derive_wallets().buyer.address
    with site.serving() as program:
        gate = ask(program.url + "/api/v1/paygates", body={"targetUrl": "http://127.0.0.1:1/", "price": "0.01"}).json()
        message = program.url + f"/api/v1/auth/message?walletAddress={wallet}"
        for name, url, answered in (
            ("unpaid", f"{program.url}/{gate['slug']}", 402),
            ("api", program.url + "/api/v1/paygates", 200),
            ("login", message, 200),
        ):
            for allowed in (3, 5):
                site.config.write_text(f"{name}_requests_per_minute = {allowed}\n" + former)
                before = len(program.process.lines())
                program.process.process.send_signal(signal.SIGHUP)
                while not (told := [one for one in program.process.lines()[before:] if "now_used" in one]):
                    time.sleep(0.02)
                assert told[0]["now_used"] == [f"{name}_requests_per_minute"]
                assert_limited(url, answered, allowed, name=name, client=f"198.51.100.{allowed}")


def connected(url: str, sent: bytes) -> socket.socket:
    """A connection on which this was sent."""
    host, port = url.removeprefix("http://").split(":")
    caller = socket.create_connection((host, int(port)))
    caller.sendall(sent)
    return caller


def is_closed(caller: socket.socket, within_seconds: int) -> bool:
    """Whether the other side ends the connection in that time."""
    watched = select.poll()
    watched.register(caller, select.POLLRDHUP)
    return bool(watched.poll(within_seconds * 1000))


def test_a_connection_is_kept_between_two_requests_as_long_as_its_setting_says(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    site = site_of(tmp_path / "home", embedded_chain, IDLE_TIMEOUT_SECONDS=2)
    with (
        site.serving() as program,
        closing(connected(program.url, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")) as caller,
    ):
        assert is_closed(caller, 60)


async def test_a_body_of_a_call_is_as_large_as_its_setting_says(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    site = await asyncio.to_thread(lambda: site_of(tmp_path / "home", embedded_chain, CALL_BODY_MAX_MB=1))
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            body = {"targetUrl": target.url, "price": "0.01", "method": "POST", "credits": 2}
            gate = (await buyer.ask("POST", program.url + "/api/v1/paygates", body=body)).json()
            url = f"{program.url}/{gate['slug']}"
            payment = buyer.sign((await buyer.ask("POST", url)).json())
            # A connection each: what is left of a body that was refused is read up to a mebibyte only.
            apart = aiohttp.TCPConnector(force_close=True)
            async with aiohttp.ClientSession(headers={"X-Payment": payment}, connector=apart) as http:
                statuses = []
                for size_bytes in (1024 * 1024 + 1, 1024 * 1024):
                    async with http.post(url, data=BytesIO(bytes(size_bytes))) as answer:
                        statuses.append((answer.status, answer.headers.get("x-credits-remaining")))
            assert statuses == [(413, None), (200, "1")]


def test_the_request_log_is_kept_for_its_days(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    site = site_of(tmp_path / "home", embedded_chain, REQUEST_LOG_DAYS=2)
    with site.serving() as program:
        body = {"targetUrl": "http://127.0.0.1:1/", "price": "0.01"}
        gate = ask(program.url + "/api/v1/paygates", body=body).json()
        assert [ask(f"{program.url}/{gate['slug']}").status for _ in range(3)] == [402] * 3
    ids = [name for (name,) in site.rows("SELECT id FROM requests ORDER BY id")]
    assert len(ids) == 3
    with closing(sqlite3.connect(site.database)) as connection, connection:
        for name, age_ms in zip(ids, (DAY_MS, 2 * DAY_MS - 600_000, 2 * DAY_MS), strict=True):
            connection.execute("UPDATE requests SET at_ms = at_ms - ? WHERE id = ?", (age_ms, name))
    with site.serving():
        deadline = time.monotonic() + 60
        while len(site.rows("SELECT id FROM requests")) == 3:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert [name for (name,) in site.rows("SELECT id FROM requests ORDER BY id")] == ids[:2]


async def test_hourly_sums_are_kept_for_their_days_and_counters_and_sales_for_ever(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    site = await asyncio.to_thread(lambda: site_of(tmp_path / "home", embedded_chain, STATISTICS_DAYS=3))
    async with recording_target() as target, Buyer(derive_wallets().buyer) as buyer:
        with site.serving() as program:
            body = {"targetUrl": target.url, "price": "0.01"}
            gates = [(await buyer.ask("POST", program.url + "/api/v1/paygates", body=body)).json() for _ in range(2)]
            for gate in gates:
                url = f"{program.url}/{gate['slug']}"
                assert (await buyer.call(url, buyer.sign((await buyer.ask("GET", url)).json()))).status == 200
    tables = ("traffic_hours", "latency_hours")
    before = [site.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3") for table in tables]  # noqa: S608 - ours
    counters = site.rows("SELECT * FROM paygate_counters")
    with closing(sqlite3.connect(site.database)) as connection, connection:
        for table in tables:
            for gate, days in zip(gates, (2, 4), strict=True):
                change = f"UPDATE {table} SET hour_ms = hour_ms - ? WHERE gate_id = ?"  # noqa: S608
                connection.execute(change, (days * DAY_MS, gate["id"]))
    with site.serving() as program:
        deadline = time.monotonic() + 60
        while site.rows(f"SELECT 1 FROM latency_hours WHERE gate_id = {gates[1]['id']}"):  # noqa: S608
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
        for table, rows in zip(tables, before, strict=True):
            left = site.rows(f"SELECT * FROM {table} ORDER BY 1, 2, 3")  # noqa: S608
            assert [row[::2] for row in left] == [row[::2] for row in rows if row[0] == gates[0]["id"]]
        report = await asyncio.to_thread(ask, f"{program.url}/api/v1/paygates/{gates[1]['id']}/stats")
        assert (report.json()["purchases"], report.json()["calls"]["total"]) == (1, 0)
    assert site.rows("SELECT * FROM paygate_counters") == counters
