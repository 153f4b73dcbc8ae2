"""A resource server that has one signed payment and presents it until it knows, and what must hold afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import aiohttp

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.hub.hub_under_test import TestPayment

PATIENCE_SECONDS: Final = 90  # twice as long as a node may keep a transaction to itself (F9)
PRICE: Final = 10_000


class Serving(Protocol):
    """A program that may be started anew."""

    async def url(self) -> str:
        """Where it is, once it serves."""


class Signed(Protocol):
    """A payment of either family."""

    def asking(self, **fields: Any) -> dict[str, Any]:
        """The body of a settle request."""

    @property
    def status_path(self) -> str:
        """Where everybody is shown how it ended."""


async def present(
    http: aiohttp.ClientSession,
    url: str,
    payment: Signed,
    *,
    key: str | None = None,
    wait_seconds: int = 1,
    **fields: Any,
) -> dict[str, Any] | None:
    """The final answer to one presentation; None where it is to be presented again."""
    asked = payment.asking(**{"confirm": True, **fields})
    headers = {"Prefer": f"wait={wait_seconds}"} | ({} if key is None else {"Idempotency-Key": key})
    try:
        async with http.post(url + "/settle", json=asked, headers=headers) as answer:
            body: dict[str, Any] = await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return None
    if answer.status == 503:
        assert body["error"]["code"] in {"SETTLEMENT_PENDING", "UNAVAILABLE"}, body
        return None
    assert answer.status == 200, body
    return body


async def pay(url: str, payment: Signed, *, key: str | None = None, **fields: Any) -> dict[str, Any]:
    """Presents the same payment until the hub says how it ended; that answer."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as http:
        while True:
            body = await present(http, url, payment, key=key, **fields)
            if body is not None:
                return body
            await asyncio.sleep(0.1)


async def leave_pending(hub: Serving, payment: Signed, key: str) -> None:
    """Its caller goes away once it is claimed. What a node answered twice a moment ago may have it refused at first."""
    async with asyncio.timeout(PATIENCE_SECONDS), aiohttp.ClientSession() as http:
        while True:
            url = await hub.url()
            assert await present(http, url, payment, key=key, wait_seconds=0) is None
            if await public_status(url, payment) != "unknown":
                return
            await asyncio.sleep(0.05)


async def public_status(url: str, payment: Signed) -> str:
    """What everybody is shown of the payment."""
    async with aiohttp.ClientSession() as http, http.get(url + payment.status_path) as answer:
        return "unknown" if answer.status == 404 else str((await answer.json())["status"])


async def assert_handed_out_once(url: str, payment: Signed) -> None:
    """It is a success for everybody, and nobody's second one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await public_status(url, payment) != "success":  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    again = await pay(url, payment)
    assert (again["success"], again["errorReason"]) == (False, "duplicate_settlement")


async def assert_settled_once(
    url: str, directory: Path, chain: ChainUnderTest, payments: Sequence[TestPayment], before: int
) -> None:
    """Each payment moved its value once, is a success for everybody and nobody's second one; books and chain agree.

    `before` is what the payee held before.
    """
    for payment in payments:
        await assert_handed_out_once(url, payment)
        assert chain.is_used(payment.authorization.payer, payment.authorization.nonce)
    assert chain.balance(chain.wallets.owner.address) == before + PRICE * len(payments)
    await assert_nothing_lost(directory, chain, paid=[payment.authorization for payment in payments])
