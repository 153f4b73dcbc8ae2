"""Specification 8: every limit, at it and one past it."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest

from tests.auth.conftest import auth as auth  # noqa: PLC0414 - the fixtures of an issuer whose clock can be moved
from tests.auth.conftest import client as client  # noqa: PLC0414
from tests.auth.conftest import clock as clock  # noqa: PLC0414
from tests.auth.conftest import database as database  # noqa: PLC0414
from tests.auth.server import START_MS, Client, Clock, bearer
from tests.auth.server import SolanaWallet as LoginSolanaWallet
from tests.auth.server import Wallet as LoginWallet
from tests.gateway.recording_target import Received, Writer, answer_ok
from tests.specification.client import Answer, Json
from tests.specification.program import Program, bearer_header
from tests.specification.rows import is_on_solana, row_on_both
from tests.specification.world import World
from tollkeeper.core.limits import PROXY_TIMEOUT_SECONDS
from tollkeeper.edge.target.forwarder import Forwarder

PROXY_SIZE_BYTES = 10_485_760
DAY_SECONDS = 24 * 3600


@row_on_both("8-proxy-time")
async def test_the_gateway_waits_600_seconds_for_a_target(program: Program) -> None:
    """What happens when they are over is `7-proxy-1`, with a shorter wait; `-m long` waits them out."""
    assert PROXY_TIMEOUT_SECONDS == 600
    for forward in (Forwarder.relay, Forwarder.stream):
        limits = inspect.signature(forward).parameters["limits"].default
        assert (limits.request_seconds, limits.response_seconds) == (600, 600)

    async def late(request: Received, writer: Writer) -> None:
        await asyncio.sleep(2)
        await answer_ok(request, writer)

    program.target.answer = late
    _, answer = await program.buy(await program.gate())
    assert answer.content == b'{"served":true}'


@pytest.mark.long
@pytest.mark.timeout(700)
async def test_a_target_that_says_nothing_for_600_seconds_is_a_502(world: World) -> None:
    async def silent(_request: Received, _writer: Writer) -> None:
        """Never an answer."""

    gate = await world.gate(credits=2)
    paid = await world.payment(gate)
    world.target.answer = silent
    started = time.monotonic()
    answer = await world.call(gate, paid)
    assert 600 <= time.monotonic() - started < 630
    assert answer.refusal == (502, "UPSTREAM_TIMEOUT", "server")
    assert answer.headers["x-credits-remaining"] == "1"


@row_on_both("8-proxy-size")
async def test_a_response_of_the_limit_passes_and_one_byte_more_does_not(program: Program) -> None:
    gate = await program.gate(credits=4)
    paid = await program.payment(gate)
    size = 0

    async def sized(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + bytes(size))

    async def chunked(_request: Received, writer: Writer) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n" % size + bytes(size) + b"\r\n0\r\n\r\n")

    for kind in (sized, chunked):
        program.target.answer = kind
        size = PROXY_SIZE_BYTES
        fits = await program.call(gate, paid)
        assert (fits.status, len(fits.content)) == (200, PROXY_SIZE_BYTES)
        size = PROXY_SIZE_BYTES + 1
        assert (await program.call(gate, paid)).refusal == (502, "UPSTREAM_TOO_LARGE", "server")


@row_on_both("8-history-limit")
async def test_history_limit_is_1_to_100_and_required(program: Program) -> None:
    wallet = await program.payee()
    for count in (20, 20, 20, 20, 21):  # no hub has to take a hundred in one moment
        payments = [program.settle(await program.sale(1, recipient=wallet.address)) for _ in range(count)]
        assert {answer.body["status"] for answer in await asyncio.gather(*payments)} == {"success"}
    bearer = bearer_header((await program.login(wallet))["accessToken"])

    async def asks(**query: str) -> Answer:
        return await program.hub("GET", "/api/v1/history", params=query, headers=bearer)

    for limit in (1, 100):
        answer = await asks(limit=str(limit))
        assert (answer.status, len(answer.body["history"])) == (200, limit)
    assert [(await asks(limit=limit)).status for limit in ("0", "101")] == [400, 400]
    assert (await asks()).refusal == (400, "MISSING_PARAMETER", "validation")


@row_on_both("8-history-offset")
async def test_history_offset_is_0_by_default(program: Program) -> None:
    wallet = await program.payee()
    for _ in range(2):
        answer = await program.settle({**await program.sale(1, recipient=wallet.address), "confirm": True})
        assert answer.body.get("status") == "success", answer
    whole = await program.history(wallet)
    assert len(whole["history"]) == 2
    assert whole["pagination"]["offset"] == 0
    assert (await program.history(wallet, offset=0))["history"] == whole["history"]
    assert (await program.history(wallet, offset=1))["history"] == whole["history"][1:]


async def me(client: Client, pair: Json) -> int:
    """What the current-user operation answers to the pair's access token."""
    status, _ = await client.send("GET", "/api/v1/auth/me", headers=bearer(pair["accessToken"]))
    return status


async def refresh(client: Client, pair: Json) -> tuple[int, Json]:
    """What the refresh operation answers to the pair's refresh token."""
    return await client.send("POST", "/api/v1/auth/refresh", json={"refreshToken": pair["refreshToken"]})


def login_wallet(row_id: str) -> LoginWallet | LoginSolanaWallet:
    """A fresh wallet of the row's family."""
    return LoginSolanaWallet() if is_on_solana(row_id) else LoginWallet()


@row_on_both("8-access-token-lifetime")
async def test_access_tokens_of_login_and_refresh_live_15_minutes(client: Client, clock: Clock, row_id: str) -> None:
    begun = START_MS // 1000 * 1000  # a JWT counts whole seconds
    pair = await client.login(login_wallet(row_id))
    clock.now_ms = begun + 15 * 60 * 1000 - 1
    assert await me(client, pair) == 200
    clock.advance(0.001)
    assert await me(client, pair) == 401
    status, pair = await refresh(client, pair)
    assert (status, await me(client, pair)) == (200, 200)
    clock.advance(15 * 60 - 0.001)
    assert await me(client, pair) == 200
    clock.advance(0.001)
    assert await me(client, pair) == 401


@row_on_both("8-refresh-token-lifetime")
async def test_refresh_tokens_of_login_and_refresh_live_7_days(client: Client, clock: Clock, row_id: str) -> None:
    for pause_seconds, expected in ((7 * DAY_SECONDS - 0.001, 200), (7 * DAY_SECONDS, 401)):
        of_login = await client.login(login_wallet(row_id))
        status, of_refresh = await refresh(client, await client.login(login_wallet(row_id)))
        assert status == 200
        clock.advance(pause_seconds)
        assert [(await refresh(client, pair))[0] for pair in (of_login, of_refresh)] == [expected] * 2


@row_on_both("8-hub-rate-limit")
async def test_the_hub_has_no_rate_limit(program: Program) -> None:
    asking = await program.sale()
    requests = [program.hub("GET", "/supported") for _ in range(300)]
    requests += [program.verify(asking) for _ in range(200)]
    query = {"walletAddress": program.new_wallet().address}
    requests += [program.hub("GET", "/api/v1/auth/message", params=query) for _ in range(100)]
    refused = [answer for answer in await asyncio.gather(*requests) if answer.status != 200]
    assert not refused, (len(refused), refused[0].content)
