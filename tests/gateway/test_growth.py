"""How much strangers can make the gateway's database grow: by what is not paid a line of a log at most.

Each public endpoint is sent many requests; what stands in all tables afterwards is counted, as for 10,000 of them.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.engines import beside, tables_of
from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.version2 import EVM, authorized, decoded, encoded, offers, shown, wallet_of
from tollkeeper.core.configuration import AnonymousPaygates
from tollkeeper.core.evm.encoding import personal_message_digest, sign_digest
from tollkeeper.gateway import traffic
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallet, derive_wallets

REQUESTS: Final = 60
SALES: Final = 20
# As measured, and a quarter more.
LOGGED_BYTES: Final = 1_300_000
MADE_BYTES: Final = 21_000_000
SOLD_BYTES: Final = 47_000_000
STRANGER: Final = "stranger {number}"
KEY: Final = "{number:08}-0f8f-ad5b-d9cb-469fa1657086"
GATES: Final = "/api/v1/paygates"
MUCH: Final = {"more": "m" * 3_000}


@dataclass(frozen=True, slots=True)
class Place:
    """A program with a database of its own, a gate, its 402, and who asks."""

    url: str
    database: Path
    gate: dict[str, Any]
    unpaid: Answer
    buyer: Buyer

    async def ask(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.buyer.ask(method, self.url + path, body=body, headers=named)

    def payment(self, **changes: Any) -> str:
        """What pays the gate, but for these changes, and says much beside."""
        signed = self.buyer.sign(self.unpaid.json(), lambda wanted: replace(wanted, **changes))
        return encoded({**decoded(signed), **MUCH})

    def payment_in_version_2(self, **changes: object) -> str:
        offer, wallet = offers(self.unpaid)[EVM], wallet_of(self.buyer)
        return shown(offer, authorized(offer, wallet, **changes), extensions=MUCH)

    def stored_bytes(self) -> int:
        """What stands in all rows of all tables."""
        with beside(self.database) as database:
            tables = tables_of(database)
            rows = [row for table in tables for row in database.execute(f'SELECT * FROM "{table}"')]  # noqa: S608 - its own names
        return sum(len(value) if isinstance(value, (bytes, str)) else 8 for row in rows for value in row)

    def logged(self) -> int:
        with beside(self.database) as database:
            (count,) = database.execute("SELECT count(*) FROM requests").fetchone()
            return int(count)

    def counted(self) -> tuple[int, int]:
        """How many requests the statistics know, and in how many hours."""
        with beside(self.database) as database:
            counted = database.execute(
                "SELECT coalesce(sum(requests), 0), count(DISTINCT hour_ms) FROM traffic_hours"
                " WHERE outcome <> 'notLogged'"
            )
            requests, hours = counted.fetchone()
            return int(requests), int(hours)

    def sold(self) -> int:
        with beside(self.database) as database:
            (count,) = database.execute("SELECT count(*) FROM purchases").fetchone()
            return int(count)

    async def growth(self, ask: Ask, requests: int, *, log_lines: int) -> int:
        """In bytes, as of 10,000 requests, of each of which the log has so many lines."""
        lines, before = self.logged(), self.stored_bytes()
        for start in range(0, requests, 10):
            answers = await asyncio.gather(*(ask(self, number) for number in range(start, start + 10)))
            assert all(answer.status < 500 for answer in answers), [answer.body for answer in answers]
        await until(lambda: self.logged() >= lines + requests * log_lines, 30)
        return (self.stored_bytes() - before) * 10_000 // requests


Ask = Callable[[Place, int], Awaitable[Answer]]


@pytest.fixture
async def place(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Place]:
    database = tmp_path / "own.db"
    async with (
        composed(embedded_chain.url, database, anonymous_paygates=AnonymousPaygates.CREATE) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        bearer = {"Authorization": f"Bearer {await buyer.login(url)}"}
        fields = {"price": "0.01", "targetUrl": target.url, "credits": 1}
        made = await buyer.ask("POST", url + GATES, body=fields, headers=bearer)
        gate = made.json()
        there = Place(url, database, gate, await buyer.ask("GET", gate["accessUrl"]), buyer)
        await until(lambda: there.logged() == 1, 30)
        yield there


def to(method: str, path: str, body: object = None, **headers: str) -> Ask:
    """The same request each time."""

    async def ask(place: Place, number: int) -> Answer:
        named = {name: value.format(number=number) for name, value in headers.items()}
        return await place.ask(method, path.format(id=place.gate["id"], slug=place.gate["slug"]), body, **named)

    return ask


def login(*, by: str) -> Ask:
    """A login as a stranger, which this wallet signs."""

    async def ask(place: Place, number: int) -> Answer:
        wallet, signer = (derive_wallet(name.format(number=number), seed="growth") for name in (STRANGER, by))
        message = (await place.ask("GET", f"/api/v1/auth/message?walletAddress={wallet.address}")).json()["message"]
        signature = "0x" + sign_digest(personal_message_digest(message.encode()), signer.private_key).hex()
        return await place.ask("POST", "/api/v1/auth/login", {"message": message, "signature": signature})

    return ask


async def upload(place: Place, _number: int) -> Answer:
    form = aiohttp.FormData({"price": "1", "resourceType": "file"}, default_to_multipart=True)
    form.add_field("file", b"x" * 10_000, filename="x")
    return await place.buyer.ask("POST", place.url + GATES, form=form)


def paying(path: str, **changes: Callable[[], Any]) -> Ask:
    """With a payment that is wrong in these."""

    async def ask(place: Place, _number: int) -> Answer:
        payment = place.payment(**{name: change() for name, change in changes.items()})
        return await place.ask("GET", path.format(slug=place.gate["slug"]), X_Payment=payment)

    return ask


def paying_in_version_2(**changes: Callable[[], object]) -> Ask:
    async def ask(place: Place, _number: int) -> Answer:
        payment = place.payment_in_version_2(**{name: change() for name, change in changes.items()})
        return await place.ask("GET", "/" + place.gate["slug"], PAYMENT_SIGNATURE=payment)

    return ask


def transferring(**changes: Callable[[], Any]) -> Ask:
    """A direct transfer of a payment that is wrong in these."""

    async def ask(place: Place, _number: int) -> Answer:
        payment = place.payment(**{name: change() for name, change in changes.items()})
        body = {"network": "base-sepolia", **decoded(payment)["payload"]}
        return await place.ask("POST", "/api/v1/transfer", body, X_Payment=payment)

    return ask


def badly_signed(path: str) -> Ask:
    async def ask(place: Place, _number: int) -> Answer:
        payment = decoded(place.payment())
        payment["payload"]["signature"] = "0x" + secrets.token_hex(65)
        return await place.ask("GET", path.format(slug=place.gate["slug"]), X_Payment=encoded(payment))

    return ask


MANAGEMENT: Final = "tkm_" + "x" * 43
GOOD: Final = {"price": "1", "targetUrl": "http://127.0.0.1:1/", "paymentAddress": "0x" + "55" * 20}
BAD: Final = {**GOOD, "paymentAddress": "0x1"}
POOR: Final = {"value": lambda: 10**15}
EXPIRED: Final = {"valid_before": lambda: int(time.time()) - 1}
JUNK: Final = "e30" + "x" * 2_000

NOTHING_STAYS: Final[dict[str, Ask]] = {
    **{
        f"GET {path}": to("GET", path)
        for path in (
            *("/healthz", "/readyz", "/openapi.json", "/docs", "/.well-known/jwks.json", "/hub/supported", "/nobodys"),
            *("/files/x", "/api/v1/stats", "/api/v1/auth/me", "/api/v1/history?limit=1&offset=0", GATES),
            *(f"{GATES}/{{id}}", f"{GATES}/{{id}}/stats", f"{GATES}/{{id}}/requests", f"{GATES}/99"),
            "/api/v1/auth/message?walletAddress=0x" + "55" * 20,
        )
    },
    "OPTIONS a gate": to("OPTIONS", "/{slug}", Origin="https://a.example", Access_Control_Request_Method="GET"),
    "POST paygates refused": to("POST", GATES, BAD, Idempotency_Key=KEY),
    "POST paygates by an unknown token": to("POST", GATES, BAD, Authorization=f"Bearer {MANAGEMENT}"),
    "POST a file": upload,
    "PUT a gate": to("PUT", f"{GATES}/{{id}}", {"title": "x"}, Authorization=f"Bearer {MANAGEMENT}"),
    "DELETE a gate": to("DELETE", f"{GATES}/{{id}}"),
    "POST claim": to("POST", f"{GATES}/{{id}}/claim", {"managementToken": MANAGEMENT}),
    "POST secret": to("POST", f"{GATES}/{{id}}/secret"),
    "GET credits by junk": to("GET", "/api/v1/credits", X_Payment=JUNK),
    "GET credits by no token": to("GET", "/api/v1/credits", X_Credit_Token="pur_{number}.abc"),
    "GET credits badly signed": badly_signed("/api/v1/credits"),
    "GET credits unused": paying("/api/v1/credits"),
    "POST transfer unpaid": to("POST", "/api/v1/transfer", {"network": "base-sepolia"}),
    "POST transfer poor": transferring(**POOR),
    "POST transfer expired": transferring(**EXPIRED),
    "POST login badly signed": login(by="other"),
    "POST refresh": to("POST", "/api/v1/auth/refresh", {"refreshToken": "tkr_" + "x" * 43}),
    "POST logout": to("POST", "/api/v1/auth/logout", Authorization="Bearer x"),
    "POST introspect": to("POST", "/api/v1/auth/introspect", {"token": "x" * 100}),
}

A_LINE_OF_THE_LOG: Final[dict[str, Ask]] = {
    "unpaid": to("GET", "/{slug}?" + "q" * 2_000, X_Much="m" * 2_000),
    "by another method": to("POST", "/{slug}", MUCH),
    "by junk": to("GET", "/{slug}", X_Payment=JUNK),
    "by no token": to("GET", "/{slug}", X_Credit_Token="pur_{number}.abc"),
    "badly signed": badly_signed("/{slug}"),
    "poor": paying("/{slug}", **POOR),
    "expired": paying("/{slug}", **EXPIRED),
    "too little": paying("/{slug}", value=lambda: 1),
    "for another": paying("/{slug}", pay_to=lambda: "0x" + "55" * 20),
    "too much in version 2": paying_in_version_2(value=lambda: str(10**15)),
    "expired in version 2": paying_in_version_2(validBefore=lambda: str(int(time.time()) - 1)),
    "of another's money in version 2": paying_in_version_2(**{"from": lambda: "0x" + secrets.token_hex(20)}),
}


async def test_nothing_stays_of_what_is_refused_or_only_read(place: Place) -> None:
    grown = {name: await place.growth(ask, REQUESTS, log_lines=0) for name, ask in NOTHING_STAYS.items()}
    assert {name: size for name, size in grown.items() if size} == {}


async def test_of_a_call_that_is_not_paid_a_line_of_the_log_stays(place: Place) -> None:
    grown = {name: await place.growth(ask, REQUESTS, log_lines=1) for name, ask in A_LINE_OF_THE_LOG.items()}
    assert {name: size for name, size in grown.items() if not 0 < size < LOGGED_BYTES} == {}


async def test_a_gate_s_log_takes_no_more_of_what_is_not_paid_than_an_hour_has_rows_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "UNPAID_ROWS_MAX", REQUESTS // 3)
    for name in ("unpaid", "by junk"):  # a challenge, and a refusal
        await place.growth(A_LINE_OF_THE_LOG[name], REQUESTS, log_lines=0)
    await until(lambda: place.counted()[0] == 1 + 2 * REQUESTS, 30)
    _, hours = place.counted()
    assert place.logged() <= hours * 2 * (REQUESTS // 3)
    # What is paid for is logged all the same.
    await place.growth(buy, 10, log_lines=1)


async def test_of_a_gate_and_of_a_login_little_stays(place: Place) -> None:
    """Each address makes as many as the rate limits let it."""
    made = {
        "gate": to("POST", GATES, GOOD, Idempotency_Key=KEY),
        "login": login(by=STRANGER),
    }
    grown = {name: await place.growth(ask, REQUESTS, log_lines=0) for name, ask in made.items()}
    assert {name: size for name, size in grown.items() if not 0 < size < MADE_BYTES} == {}


async def buy(place: Place, _number: int) -> Answer:
    answer = await place.ask("GET", "/" + place.gate["slug"], X_Payment=place.payment())
    assert answer.status == 200, answer.body
    return answer


@pytest.mark.parametrize("version", [1, 2])
async def test_of_what_is_sold_little_stays_and_nothing_of_what_its_buyer_says_beside(
    place: Place, version: int
) -> None:
    """It costs its buyer the price, and the hub gas, of which each owner has a share."""
    asking = buy if version == 1 else paying_in_version_2()
    before = place.sold()
    assert await place.growth(asking, SALES, log_lines=1) < SOLD_BYTES
    assert place.sold() == before + SALES
