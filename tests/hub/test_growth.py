"""How much strangers can make the hub's database grow: nothing by what is refused, and little by what they pay for.

Each public endpoint is sent many requests; what stands in all tables afterwards is counted, as for 10,000 of them.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.solana_node import WALLETS
from tests.engines import beside, tables_of
from tests.hub.hub_under_test import NETWORK, Answer, HubUnderTest, new_payment
from tests.hub.solana_hub import hub_of
from tests.hub.test_solana_reasons import REFUSED as REFUSED_ON_SOLANA
from tests.hub.test_unknown_outcomes import relay
from tests.hub.version2 import in_version_2
from tollkeeper.core.evm.encoding import personal_message_digest, sign_digest
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_wallet

REQUESTS: Final = 100
MUCH: Final[dict[str, Any]] = {
    "extra": {"name": "USD Coin", "version": "2", "more": "m" * 50_000},
    "description": "d" * 5_000,
}

Ask = Callable[[HubUnderTest, ChainUnderTest, int], Awaitable[Answer]]


def stored_bytes(directory: Path) -> int:
    """What stands in all rows of all tables."""
    with beside(directory / "hub.db") as database:
        tables = tables_of(database)
        return sum(len(repr(row)) for table in tables for row in database.execute(f'SELECT * FROM "{table}"'))  # noqa: S608 - its own names


def body_of(kind: str, chain: ChainUnderTest) -> dict[str, Any]:
    signed: dict[str, Any] = {
        "unsigned": {"signature": secrets.token_bytes(65)},
        "poor": {"value": 10**15},
        "expired": {"valid_before": chain.now() - 1},
    }
    required = {"for another": {"payTo": "0x" + "55" * 20}, "of another network": {"network": "base"}}
    body = new_payment(chain, **signed.get(kind, {})).requiring(**required.get(kind, {}), **MUCH)
    return {**body, "x402Version": 7} if kind == "of another version" else body


REFUSED: Final = ("unsigned", "poor", "expired", "for another", "of another network", "of another version")


def to_settle(path: str, kind: str) -> Ask:
    async def ask(hub: HubUnderTest, chain: ChainUnderTest, number: int) -> Answer:
        body = body_of(kind, chain)
        if path == "/transfer":
            asset = body["paymentRequirements"]["asset"] if kind != "for another" else "0x" + "66" * 20
            body = {"network": NETWORK, "payload": body["paymentPayload"]["payload"], "asset": asset}
        answer = await hub.post(path, body, Idempotency_Key=f"key-{number}-{secrets.token_hex(100)}")
        assert answer.body.get("success") is not True
        return answer

    return ask


async def used(hub: HubUnderTest, chain: ChainUnderTest, number: int) -> Answer:
    """Of a payment that somebody carried out elsewhere."""
    payment = new_payment(chain)
    relay(chain, payment)
    return await hub.post("/settle", payment.requiring(**MUCH), Idempotency_Key=f"used-{number}")


def reading(path: str) -> Ask:
    async def ask(hub: HubUnderTest, _chain: ChainUnderTest, number: int) -> Answer:
        return await hub.get(path.format(hex=f"0x{number:040x}", nonce=f"0x{number:064x}"))

    return ask


def posting(path: str, body: dict[str, Any]) -> Ask:
    async def ask(hub: HubUnderTest, _chain: ChainUnderTest, _number: int) -> Answer:
        return await hub.post(path, body)

    return ask


async def verified(hub: HubUnderTest, chain: ChainUnderTest, _number: int) -> Answer:
    return await hub.post("/verify", body_of("good", chain))


async def login_of_another(hub: HubUnderTest, _chain: ChainUnderTest, number: int) -> Answer:
    wallet = derive_wallet(f"stranger {number}", seed="growth")
    message = (await hub.get(f"/api/v1/auth/message?walletAddress={wallet.address}")).body["message"]
    signature = sign_digest(
        personal_message_digest(message.encode()), derive_wallet("other", seed="growth").private_key
    )
    return await hub.post("/api/v1/auth/login", {"message": message, "signature": "0x" + signature.hex()})


NOTHING_STAYS: Final[dict[str, Ask]] = {
    **{
        f"POST {path} {kind}": to_settle(path, kind)
        for path in ("/verify", "/settle", "/transfer")
        for kind in REFUSED[:4]
    },
    **{f"POST {path} {kind}": to_settle(path, kind) for path in ("/verify", "/settle") for kind in REFUSED[4:]},
    "POST /settle used": used,
    "POST /verify good": verified,
    "GET /supported": reading("/supported"),
    "GET /payments": reading("/payments/base-sepolia/{hex}/{nonce}"),
    "GET /healthz": reading("/healthz"),
    "GET /readyz": reading("/readyz"),
    "GET /api/v1/auth/message": reading("/api/v1/auth/message?walletAddress={hex}"),
    "GET /api/v1/history": reading("/api/v1/history?limit=1"),
    "GET /api/v1/auth/me": reading("/api/v1/auth/me"),
    "GET /.well-known/jwks.json": reading("/.well-known/jwks.json"),
    "POST /api/v1/auth/login": login_of_another,
    "POST /api/v1/auth/refresh": posting("/api/v1/auth/refresh", {"refreshToken": "tkr_" + "x" * 43}),
    "POST /api/v1/auth/introspect": posting("/api/v1/auth/introspect", {"token": "x" * 100}),
}


async def growth(hub: HubUnderTest, chain: ChainUnderTest, directory: Path, ask: Ask, requests: int) -> int:
    """In bytes, as of 10,000 requests."""
    before = stored_bytes(directory)
    for start in range(0, requests, 10):
        answers = await asyncio.gather(*(ask(hub, chain, number) for number in range(start, start + 10)))
        assert {answer.status for answer in answers} <= {200, 400, 401, 404}
    return (stored_bytes(directory) - before) * 10_000 // requests


@pytest.mark.parametrize("name", NOTHING_STAYS)
async def test_nothing_stays_of_what_is_refused_or_only_read(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, tmp_path: Path, name: str
) -> None:
    assert await growth(hub, embedded_chain, tmp_path, NOTHING_STAYS[name], REQUESTS) == 0


@pytest.mark.parametrize("kind", ["/settle", "/settle in version 2", "/transfer"])
async def test_what_is_settled_stays_and_none_of_a_seller_s_metadata(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, tmp_path: Path, kind: str
) -> None:
    """It costs its payer money, and the hub gas, of which each has a share."""
    path = kind.split(maxsplit=1)[0]

    async def ask(hub: HubUnderTest, chain: ChainUnderTest, number: int) -> Answer:
        body = {**body_of("good", chain), "confirm": True}
        if kind == "/settle in version 2":  # it says the requirements twice
            much = {"extra": {**MUCH["extra"], "more": "m" * 15_000}}
            body = in_version_2(new_payment(chain).requiring(**much))
            body["paymentPayload"] |= {
                "extensions": much,
                "resource": {"url": "https://gate.example", "a": "d" * 5_000},
            }
        if path == "/transfer":
            asset, payload = body["paymentRequirements"]["asset"], body["paymentPayload"]["payload"]
            body = {"network": NETWORK, "payload": payload, "asset": asset, "confirm": True, **MUCH}
        answer = await hub.post(path, body, Idempotency_Key=f"settled-{number}")
        assert answer.body.get("success") is True, answer
        return answer

    grown = await growth(hub, embedded_chain, tmp_path, ask, 20)
    assert grown < 50_000_000, grown


async def test_on_solana_too_nothing_stays_of_what_is_refused(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as chain, hub_of(tmp_path, chain) as world:
        before = stored_bytes(tmp_path)
        for word, makes in REFUSED_ON_SOLANA.items():
            for make in makes:
                answer = await world.settle(make(world), Idempotency_Key=secrets.token_hex(100))
                assert (answer.status, answer.reason) == (200, word)
        assert stored_bytes(tmp_path) == before
