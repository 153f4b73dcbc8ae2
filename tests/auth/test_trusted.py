"""Gateway and hub apart: one takes the tokens of the other, as long as the other says that they are in force."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from tests.auth.server import KEYRING, Client, Clock, Wallet, bearer, issuer, serving
from tests.edge.targets import Connection, sized, target
from tests.ports import free_port
from tollkeeper.auth import Auth, TrustedIssuers
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.keys.tokens import SigningKeys, new_claims, sign_access_token
from tollkeeper.storage.engine.database import Database
from tollkeeper.storage.urls import open_database

JWKS = "/.well-known/jwks.json"
INTROSPECT = "/api/v1/auth/introspect"


@dataclass
class Parts:
    """A gateway, which issues, and a hub, which trusts it; each with a database of its own."""

    clock: Clock
    gateway_url: str
    gateway_database: Database
    hub: Auth
    hub_database: Database

    @asynccontextmanager
    async def gateway(self, keyring: list[tuple[str, bytes]] = KEYRING) -> AsyncIterator[Client]:
        """The gateway while it runs."""
        auth = issuer(self.gateway_database, self.clock, public_url=self.gateway_url, keyring=keyring)
        async with serving(auth, int(self.gateway_url.rpartition(":")[2])) as client:
            yield client


@pytest_asyncio.fixture
async def parts(tmp_path: Path) -> AsyncIterator[Parts]:
    clock = Clock()
    url = f"http://127.0.0.1:{free_port()}"
    trusted = TrustedIssuers([url + "/"], clock)
    databases = open_database(str(tmp_path / "gateway.db")), open_database(str(tmp_path / "hub.db"))
    hub = issuer(databases[1], clock, public_url="https://hub.example", keyring=[("h", bytes(32))], trusted=trusted)
    yield Parts(clock, url, databases[0], hub, databases[1])
    await trusted.close()
    for database in databases:
        await database.close()


async def refusal(hub: Auth, token: str) -> Code:
    with pytest.raises(ApiError) as refused:
        await hub.authenticate(token)
    return refused.value.code


async def test_a_trusted_issuers_token_speaks_for_its_wallet(parts: Parts) -> None:
    wallet = Wallet()
    async with parts.gateway() as gateway:
        login = await gateway.login(wallet)
        session = await parts.hub.authenticate(login["accessToken"])
        assert checksum_address(session.wallet) == wallet.address
        assert session.issuer == parts.gateway_url
        user = await parts.hub.user(session)
        assert checksum_address(user.wallet) == wallet.address
        assert (await parts.hub.authenticate(login["accessToken"])).user_id == user.id
        async with serving(parts.hub) as hub:
            status, me = await hub.send("GET", "/api/v1/auth/me", headers=bearer(login["accessToken"]))
            assert (status, me["walletAddress"]) == (200, wallet.address)


async def test_a_logout_at_the_issuer_is_known_within_five_seconds(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        login = await gateway.login(Wallet())
        await parts.hub.authenticate(login["accessToken"])
        await gateway.send("POST", "/api/v1/auth/logout", headers=bearer(login["accessToken"]))
        parts.clock.advance(4.999)
        await parts.hub.authenticate(login["accessToken"])
        parts.clock.advance(0.001)
        assert await refusal(parts.hub, login["accessToken"]) is Code.INVALID_TOKEN


async def test_an_issuer_that_does_not_answer_is_a_503_and_never_a_yes_or_no(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        login = await gateway.login(Wallet())
    assert await refusal(parts.hub, login["accessToken"]) is Code.UNAVAILABLE
    async with parts.gateway():
        await parts.hub.authenticate(login["accessToken"])
    parts.clock.advance(4.999)
    await parts.hub.authenticate(login["accessToken"])  # still remembered
    parts.clock.advance(0.001)
    assert await refusal(parts.hub, login["accessToken"]) is Code.UNAVAILABLE
    async with parts.gateway():
        await parts.hub.authenticate(login["accessToken"])
    parts.clock.advance(15 * 60)
    assert await refusal(parts.hub, login["accessToken"]) in {Code.INVALID_TOKEN, Code.UNAVAILABLE}


async def test_a_login_outlives_its_token_unless_it_was_ended(parts: Parts) -> None:
    """For what takes longer than a token lives, at who trusts its issuer."""
    async with parts.gateway() as gateway:
        goes_on, ended = [(await gateway.login(Wallet()))["accessToken"] for _ in range(2)]
        for token in (goes_on, ended):
            await parts.hub.check_guest(token)
        await gateway.send("POST", "/api/v1/auth/logout", headers=bearer(ended))
        parts.clock.advance(5)
        with pytest.raises(ApiError) as refused:
            await parts.hub.check_guest(ended)
        assert refused.value.code is Code.INVALID_TOKEN
    parts.clock.advance(15 * 60)
    assert await refusal(parts.hub, goes_on) in {Code.INVALID_TOKEN, Code.UNAVAILABLE}
    await parts.hub.check_guest(goes_on)


async def test_a_login_ends_where_it_began(parts: Parts) -> None:
    async with parts.gateway() as gateway, serving(parts.hub) as hub:
        login = await gateway.login(Wallet())
        status, body = await hub.send("POST", "/api/v1/auth/logout", headers=bearer(login["accessToken"]))
        assert (status, body["error"]["code"]) == (403, "FORBIDDEN")
        assert parts.gateway_url in body["error"]["message"]
        status, body = await hub.send("POST", "/api/v1/auth/refresh", json={"refreshToken": login["refreshToken"]})
        assert (status, body["error"]["code"]) == (401, "INVALID_TOKEN")


async def test_only_named_issuers_are_asked(parts: Parts) -> None:
    stranger = SigningKeys(KEYRING)
    claims = new_claims("http://127.0.0.1:1", Wallet().address, "s", "t", parts.clock())
    assert await refusal(parts.hub, sign_access_token(stranger, claims)) is Code.INVALID_TOKEN


async def test_a_forged_token_is_refused_before_its_issuer_is_asked_about_it(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        await parts.hub.authenticate((await gateway.login(Wallet()))["accessToken"])
        gateway.paths.clear()
        claims = new_claims(parts.gateway_url, Wallet().address, "s", "t", parts.clock())
        for seed in range(50):
            for kid in ("key-1", "unknown"):
                forged = sign_access_token(SigningKeys([(kid, bytes([seed]) * 32)]), claims)
                assert await refusal(parts.hub, forged) is Code.INVALID_TOKEN
        assert gateway.paths == []
        parts.clock.advance(10)
        for _ in range(10):
            assert await refusal(parts.hub, forged) is Code.INVALID_TOKEN
        assert gateway.paths == [JWKS]


async def test_a_hundred_requests_at_once_are_one_question(parts: Parts) -> None:
    """Of each kind: also for the issuer's keys, which forged tokens at once would ask for as often as they come."""
    async with parts.gateway() as gateway:
        claims = new_claims(parts.gateway_url, Wallet().address, "s", "t", parts.clock())
        forged = sign_access_token(SigningKeys([("unknown", bytes(32))]), claims)
        assert set(await asyncio.gather(*(refusal(parts.hub, forged) for _ in range(100)))) == {Code.INVALID_TOKEN}
        assert gateway.paths == [JWKS]
        login = await gateway.login(Wallet())
        await parts.hub.authenticate((await gateway.login(Wallet()))["accessToken"])
        gateway.paths.clear()
        sessions = await asyncio.gather(*(parts.hub.authenticate(login["accessToken"]) for _ in range(100)))
        assert len({session.user_id for session in sessions}) == 1
        assert gateway.paths == [INTROSPECT]


async def test_a_new_key_of_the_issuer_is_learnt(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        await parts.hub.authenticate((await gateway.login(Wallet()))["accessToken"])
    async with parts.gateway([("key-2", bytes([2]) * 32), *KEYRING]) as gateway:
        login = await gateway.login(Wallet())
        parts.clock.advance(10)
        await parts.hub.authenticate(login["accessToken"])
        parts.clock.advance(300)
        await parts.hub.authenticate(login["accessToken"])
    assert gateway.paths.count(JWKS) == 2


@pytest.mark.parametrize(
    ("jwks", "answer"),
    [
        (b"{}", b"{}"),
        (b"[]", b"{}"),
        (b"x", b"{}"),
        (b"", b"{}"),
        (b'{"keys":[],"keys":[]}', b"{}"),
        (b" " * 70_000 + b'{"keys":[]}', b"{}"),
        (None, b"{}"),
        (None, b'{"active":1}'),
        (None, b'{"active":"true"}'),
        (None, b'{"active":null}'),
        (None, b"[true]"),
        (None, b"x"),
    ],
)
async def test_an_issuer_that_talks_nonsense_is_a_503(parts: Parts, jwks: bytes | None, answer: bytes) -> None:
    async with parts.gateway() as gateway:
        login = await gateway.login(Wallet())
        async with gateway.http.get(gateway.base + JWKS) as response:
            real = await response.read()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = answer if b"introspect" in head else real if jwks is None else jwks
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    port = int(parts.gateway_url.rpartition(":")[2])
    async with await asyncio.start_server(speak, "127.0.0.1", port):
        assert await refusal(parts.hub, login["accessToken"]) is Code.UNAVAILABLE


@pytest.mark.parametrize(
    "head", [b"302 Found\r\nLocation: /elsewhere", b"500 Oops", b"404 Not Found", b"204 No Content"]
)
async def test_an_issuer_that_answers_with_another_status_is_a_503(parts: Parts, head: bytes) -> None:
    async with parts.gateway() as gateway:
        login = await gateway.login(Wallet())

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %s\r\nConnection: close\r\nContent-Length: 0\r\n\r\n" % head)
        writer.close()

    async with await asyncio.start_server(speak, "127.0.0.1", int(parts.gateway_url.rpartition(":")[2])):
        assert await refusal(parts.hub, login["accessToken"]) is Code.UNAVAILABLE


async def test_a_subject_that_is_no_wallet_is_refused(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        login = await gateway.login(Wallet())
        session = await issuer(parts.gateway_database, parts.clock, public_url=parts.gateway_url).authenticate(
            login["accessToken"]
        )
        claims = new_claims(parts.gateway_url, "somebody", session.session_id, "t", parts.clock())
        strange = sign_access_token(SigningKeys(KEYRING), claims)
        assert await refusal(parts.hub, strange) is Code.INVALID_TOKEN


async def test_closing_ends_what_is_being_asked(clock: Clock) -> None:
    """A silent issuer does not hold up the end of the program."""
    asked = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if b"introspect" in head:
                asked.set()
                await reader.read()
            else:
                body = json.dumps(SigningKeys(KEYRING).jwks()).encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        finally:
            writer.close()

    async with await asyncio.start_server(stay_silent, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        trusted = TrustedIssuers([url], clock)
        token = sign_access_token(SigningKeys(KEYRING), new_claims(url, Wallet().address, "s", "t", clock()))
        asking = asyncio.create_task(trusted.claims_in_force(token, url))
        await asked.wait()
        await trusted.close()
        with pytest.raises(asyncio.CancelledError):
            await asking


async def test_an_answer_that_comes_twice_lets_nobody_else_in(clock: Clock) -> None:
    """On a kept connection it would be the answer to the next question, about another session."""
    keys = json.dumps(SigningKeys(KEYRING).jwks()).encode()

    async def answer_twice(connection: Connection) -> None:
        while True:
            head, asked = await connection.request()
            told = json.dumps({"active": json.loads(asked)["token"] == tokens[0]}).encode() if asked else keys
            name = [line for line in head.split(b"\r\n") if line.lower().startswith(b"x-correlation-id: ")]
            await connection.send(sized(told, *name))
            if asked:
                await asyncio.sleep(0.02)
                await connection.send(sized(told, *name))

    async with target(answer_twice) as there:
        url = there.url
        tokens = [
            sign_access_token(SigningKeys(KEYRING), new_claims(url, Wallet().address, f"s{n}", f"t{n}", clock()))
            for n in range(2)
        ]
        trusted = TrustedIssuers([url], clock)
        try:
            await trusted.claims_in_force(tokens[0], url)
            await asyncio.sleep(0.1)  # the second one came
            codes = []
            async with asyncio.timeout(5):
                while Code.INVALID_TOKEN not in codes:
                    with pytest.raises(ApiError) as refused:
                        await trusted.claims_in_force(tokens[1], url)
                    codes.append(refused.value.code)
            assert set(codes) <= {Code.UNAVAILABLE, Code.INVALID_TOKEN}
        finally:
            await trusted.close()


async def test_an_issuer_s_new_key_is_learned_also_after_the_clock_was_put_back(parts: Parts) -> None:
    async with parts.gateway() as gateway:
        await parts.hub.authenticate((await gateway.login(Wallet()))["accessToken"])
    parts.clock.advance(-3_600)
    async with parts.gateway([("another", bytes(range(1, 33)))]) as gateway:
        await parts.hub.authenticate((await gateway.login(Wallet()))["accessToken"])
