"""Who asks too often: unpaid and refused calls of gates, management, logins; and whose address it is behind a proxy.

The clients of these tests come through a trusted proxy, this machine: their addresses are in `X-Forwarded-For`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_deleted_meanwhile import Late
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.core.networks import NETWORKS
from tollkeeper.gateway.call import state
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings, Role

PROXIES = (ip_network("127.0.0.1"),)
FEW = RequestLimits(unpaid=5, api=8, wallet=12, login=4)
GATES = "/api/v1/paygates"
ONE, OTHER = "203.0.113.1", "203.0.113.2"


@pytest.fixture(autouse=True)
def _clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands still: else what is counted ages while a slow machine asks."""
    now_ns = time.monotonic_ns()
    monkeypatch.setattr("tollkeeper.gateway.limiting.time", SimpleNamespace(monotonic_ns=lambda: now_ns))


@dataclass(frozen=True)
class Shop:
    """The program, a target, a buyer who may come from any address."""

    url: str
    target: RecordingTarget
    buyer: Buyer

    async def ask(self, method: str, path: str, client: str | None, **given: Any) -> Answer:
        headers = {**given.pop("headers", {}), **({} if client is None else {"X-Forwarded-For": client})}
        return await self.buyer.ask(method, path if "://" in path else self.url + path, headers=headers, **given)

    async def gate(self, **fields: object) -> dict[str, Any]:
        body = {"targetUrl": self.target.url, "price": "0.01", "credits": 20, **fields}
        return (await self.ask("POST", GATES, None, body=body)).json()

    async def call(self, gate: dict[str, Any], client: str | None, **headers: str) -> Answer:
        return await self.ask("GET", gate["accessUrl"], client, headers=headers)

    async def flood(self, gate: dict[str, Any], client: str) -> None:
        """Unpaid calls until the address is asked to wait."""
        for _ in range(20):
            if (await self.call(gate, client)).status == 429:
                return
        raise AssertionError("nobody was limited")


@asynccontextmanager
async def shop(
    chain: ChainUnderTest, home: Path, target: RecordingTarget, limits: RequestLimits = FEW
) -> AsyncIterator[Shop]:
    changes: dict[str, Any] = {"trusted_proxies": PROXIES, "request_limits": limits}
    async with (
        composed(chain.url, home / "tollkeeper.db", **changes) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Shop(url, target, buyer)


async def test_an_address_is_limited_by_its_unpaid_calls_and_told_when_to_come_back(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        assert [(await market.call(gate, ONE)).status for _ in range(6)] == [402] * 5 + [429]
        limited = await market.call(gate, ONE)
        assert limited.error_code == "RATE_LIMITED"
        assert limited.json()["error"]["type"] == "validation"
        assert 1 <= int(limited.headers["retry-after"]) <= 12
        assert limited.headers["ratelimit-policy"] == '"unpaid";q=5;w=60'
        assert limited.headers["ratelimit"].startswith('"unpaid";r=0;t=')
        assert (await market.call(gate, OTHER)).status == 402
        assert target.requests == []


async def test_whose_call_is_due_behind_a_delete_is_asked_to_wait_and_not_told_that_there_is_no_gate(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    apart: dict[str, Any] = {"trusted_proxies": PROXIES, "request_limits": FEW, "role": Role.GATEWAY}
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub,
        run_hostile_hub(hub) as between,
        composed(embedded_chain.url, tmp_path / "gateway.db", hub_url=between.url, **apart) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        between.settling = late = Late()
        market = Shop(url, target, buyer)
        gate, other = [await market.gate(credits=1, paymentAddress="0x" + "77" * 20) for _ in range(2)]
        shown = {"X-Payment": buyer.sign((await market.call(gate, ONE)).json())}
        assert (await market.call(gate, ONE, **shown)).status == 503
        await market.flood(other, ONE)  # somebody at the same address
        assert (await market.ask("DELETE", f"{GATES}/{gate['id']}", None)).status == 200
        await late.until_answered()
        limited = await market.call(gate, ONE, **shown)
        assert (limited.status, "retry-after" in limited.headers) == (429, True)
        assert (await market.call(gate, OTHER, **shown)).status == 200


async def test_who_is_told_to_pay_or_refused_is_told_how_he_stands_and_who_pays_is_not(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate(credits=2)
        first = await market.call(gate, ONE)
        payment = market.buyer.sign(first.json())
        unpaid = [first, await market.call(gate, ONE), await market.call(gate, ONE)]  # the last one is kept whole
        unpaid.append(await market.call(gate, ONE, **{"X-Payment": "unreadable"}))
        unpaid.append(await market.ask("DELETE", f"/{gate['slug']}", ONE))
        assert [answer.status for answer in unpaid] == [402, 402, 402, 402, 405]
        assert [answer.headers["ratelimit"].partition(";t=")[0] for answer in unpaid] == [
            f'"unpaid";r={left}' for left in (4, 3, 2, 1, 0)
        ]
        assert {answer.headers["ratelimit-policy"] for answer in unpaid} == {'"unpaid";q=5;w=60'}
        paid = await market.call(gate, OTHER, **{"X-Payment": payment})
        assert (paid.status, "ratelimit" in paid.headers) == (200, False)


async def test_refused_payments_count_as_unpaid_calls_do(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        answers = [await market.call(gate, ONE, **{"X-Payment": "unreadable"}) for _ in range(6)]
        assert [answer.status for answer in answers] == [402] * 5 + [429]


async def test_bad_payments_count_also_where_a_gate_s_network_is_away(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
    away = {"base-sepolia": NetworkSettings(NETWORKS["base-sepolia"], ("http://127.0.0.1:9",))}
    changes: dict[str, Any] = {"trusted_proxies": PROXIES, "request_limits": FEW, "networks": away}
    async with (
        composed(embedded_chain.url, tmp_path / "tollkeeper.db", **changes) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        market, address = Shop(url, target, buyer), f"/{gate['slug']}"
        answers = [await market.ask("GET", address, ONE, headers={"X-Payment": "unreadable"}) for _ in range(6)]
        assert [answer.status for answer in answers] == [503] * 5 + [429]
        good = [await market.ask("GET", address, OTHER, headers={"X-Payment": payment}) for _ in range(6)]
        assert [answer.status for answer in good] == [503] * 6


async def test_paid_calls_are_never_limited_and_a_proof_that_was_good_passes_a_full_debt(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        first = await market.call(gate, ONE, **{"X-Payment": payment})
        token = first.headers["x-credit-token"]
        assert [(await market.call(gate, ONE, **{"X-Payment": payment})).status for _ in range(8)] == [200] * 8
        await market.flood(gate, ONE)
        assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200
        assert (await market.call(gate, ONE, **{"X-Payment": "never seen"})).status == 429
        # From where nothing is owed the token gets a credit, and is good everywhere from then on.
        assert (await market.call(gate, ONE, **{"X-Credit-Token": token})).status == 429
        assert (await market.call(gate, OTHER, **{"X-Credit-Token": token})).status == 200
        assert (await market.call(gate, ONE, **{"X-Credit-Token": token})).status == 200


async def test_a_proof_that_is_used_up_is_good_no_more(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate(credits=1)
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        statuses = [(await market.call(gate, ONE, **{"X-Payment": payment})).status for _ in range(7)]
        assert statuses == [200, *[402] * 5, 429]


async def test_a_proof_that_was_good_at_one_gate_is_no_more_once_another_refused_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate, other = await market.gate(), await market.gate()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200
        answers = [await market.call(other, ONE, **{"X-Payment": payment}) for _ in range(7)]
        assert [answer.status for answer in answers] == [402] * 5 + [429] * 2
        assert answers[0].error_code == "NONCE_ALREADY_USED"


async def test_used_up_credits_at_a_gate_that_sells_nothing_are_a_404_that_counts(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """As a call that shows nothing: a client that is told to pay again could not (contract 4.2, 4.3)."""
    async with shop(embedded_chain, tmp_path, target) as market:
        owner = {"Authorization": "Bearer " + await market.buyer.login(market.url)}
        fields = {"targetUrl": target.url, "price": "0.01", "credits": 2}
        gate = (await market.ask("POST", GATES, None, body=fields, headers=owner)).json()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200
        off = await market.ask("PUT", f"{GATES}/{gate['id']}", None, body={"isEnabled": False}, headers=owner)
        assert off.status == 200
        assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200
        answers = [await market.call(gate, ONE, **{"X-Payment": payment}) for _ in range(7)]
        assert [answer.status for answer in answers] == [404] * 5 + [429] * 2
        assert "accepts" not in answers[0].json()


async def test_where_a_wallets_bearer_counts_it_was_the_bearer_that_was_good_and_no_token(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target, RequestLimits(unpaid=5)) as market:
        bearer = {"Authorization": "Bearer " + await market.buyer.login(market.url)}
        gate = await market.gate(creditBinding="wallet")
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        assert (await market.call(gate, ONE, **bearer, **{"X-Payment": payment})).status == 200
        token = {"X-Credit-Token": "of nobody"}
        assert (await market.call(gate, ONE, **bearer, **token)).status == 200
        await market.flood(gate, ONE)
        assert (await market.call(gate, ONE, **token)).status == 429
        assert (await market.call(gate, ONE, **bearer)).status == 200


async def test_where_a_token_beside_a_payment_holds_nothing_it_is_the_payment_that_was_good(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        proofs = {"X-Credit-Token": "of nobody", "X-Payment": payment}
        assert (await market.call(gate, ONE, **proofs)).status == 200
        unpaid = [(await market.call(gate, ONE)).status for _ in range(7)]
        assert unpaid[-1] == 429
        assert (await market.call(gate, ONE, **{"X-Credit-Token": "of nobody"})).status == 429
        assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200


async def test_buyers_behind_one_address_are_not_limited_by_the_402s_that_their_purchases_begin_with(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate(credits=1)
        for _ in range(8):
            payment = market.buyer.sign((await market.call(gate, ONE)).json())
            assert (await market.call(gate, ONE, **{"X-Payment": payment})).status == 200


async def test_unknown_slugs_and_wrong_methods_are_told_before_the_limit(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        await market.flood(gate, ONE)
        assert (await market.ask("GET", "/no-such-gate", ONE)).status == 404
        assert (await market.ask("PUT", gate["accessUrl"], ONE)).status == 405


async def test_management_is_limited_by_address_and_says_how_one_stands(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        answers = [await market.ask("GET", GATES, ONE) for _ in range(9)]
        assert [answer.status for answer in answers] == [200] * 8 + [429]
        assert answers[0].headers["ratelimit-policy"] == '"api";q=8;w=60'
        assert answers[0].headers["ratelimit"].startswith('"api";r=7;t=')
        assert answers[8].error_code == "RATE_LIMITED"
        assert int(answers[8].headers["retry-after"]) >= 1
        assert (await market.ask("GET", GATES, OTHER)).status == 200
        assert (await market.ask("GET", "/healthz", ONE)).status == 200


async def test_logins_have_a_limit_of_their_own_and_the_hub_has_none(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        query = f"/api/v1/auth/message?walletAddress={market.buyer.wallet.address}"
        answers = [await market.ask("GET", query, ONE) for _ in range(5)]
        assert [answer.status for answer in answers] == [200] * 4 + [429]
        assert {answer.headers["ratelimit-policy"] for answer in answers} == {'"login";q=4;w=60'}
        standing = [answer.headers["ratelimit"].partition(";t=") for answer in answers]
        assert [told for told, _, _ in standing] == [f'"login";r={left}' for left in (3, 2, 1, 0, 0)]
        assert all(0 < int(seconds) <= 60 for _, _, seconds in standing)
        assert answers[4].error_code == "RATE_LIMITED"
        assert int(answers[4].headers["retry-after"]) >= 1
        refused = [await market.ask("POST", f"/api/v1/auth/{name}", ONE, body={}) for name in ("login", "refresh")]
        assert [(answer.status, answer.headers["ratelimit"][:11]) for answer in refused] == [(429, '"login";r=0')] * 2
        fresh = await market.ask("POST", "/api/v1/auth/login", OTHER, body={})
        assert (fresh.status, fresh.headers["ratelimit"][:11]) == (400, '"login";r=3')
        assert (await market.ask("GET", GATES, ONE)).status == 200
        hub = [await market.ask("GET", "/hub" + query, ONE) for _ in range(30)]
        assert {(answer.status, answer.headers.get("ratelimit")) for answer in hub} == {(200, None)}
        introspected = [
            await market.ask("POST", "/api/v1/auth/introspect", ONE, body={"token": "x"}) for _ in range(20)
        ]
        assert {answer.status for answer in introspected} == {200}


async def test_a_wallet_is_limited_over_all_its_addresses(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        bearer = {"Authorization": "Bearer " + await market.buyer.login(market.url)}
        answers = [await market.ask("GET", GATES, f"203.0.113.{n}", headers=bearer) for n in range(13)]
        assert [answer.status for answer in answers] == [200] * 12 + [429]
        assert answers[12].headers["ratelimit-policy"] == '"wallet";q=12;w=60'
        assert (await market.ask("GET", GATES, "203.0.113.12")).status == 200


async def test_this_machine_and_limits_of_0_are_not_limited(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        own = await asyncio.gather(*(market.call(gate, None) for _ in range(40)))
        assert {answer.status for answer in own} == {402}
        assert "ratelimit" not in (await market.ask("GET", GATES, None)).headers
    off = RequestLimits(unpaid=0, api=0, wallet=0, login=0)
    async with shop(embedded_chain, tmp_path, target, off) as market:
        gate = await market.gate()
        answers = [await market.call(gate, ONE) for _ in range(40)]
        assert {answer.status for answer in answers} == {402}
        assert {(await market.ask("GET", GATES, ONE)).status for _ in range(40)} == {200}


async def test_a_target_is_told_the_clients_address_as_a_trusted_proxy_saw_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        answer = await market.call(gate, f"6.6.6.6, {ONE}", **{"X-Payment": payment})
        assert answer.status == 200
        assert target.requests[-1].header("x-forwarded-for") == ONE
        assert b"6.6.6.6" not in target.requests[-1].raw_head


async def test_an_empty_header_beside_a_payment_is_no_proof_of_anybodys(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target) as market:
        gate = await market.gate()
        payment = market.buyer.sign((await market.call(gate, OTHER)).json())
        await market.flood(gate, ONE)
        empty = {"X-Credit-Token": ""}
        proof = {**empty, "X-Payment": payment}
        assert [(await market.call(gate, OTHER, **proof)).status for _ in range(3)] == [200] * 3
        assert (await market.call(gate, ONE, **empty)).status == 429
        assert (await market.call(gate, OTHER, **empty)).status == 402
        assert (await market.call(gate, ONE, **proof)).status == 200


async def test_a_proof_or_bearer_that_gets_nothing_any_more_is_limited_like_no_proof(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with shop(embedded_chain, tmp_path, target, RequestLimits(unpaid=5)) as market:
        bearer = {"Authorization": "Bearer " + await market.buyer.login(market.url)}
        gate = await market.gate(creditBinding="wallet", credits=2)
        payment = market.buyer.sign((await market.call(gate, ONE)).json())
        assert (await market.call(gate, ONE, **bearer, **{"X-Payment": payment})).status == 200
        assert (await market.call(gate, ONE, **bearer)).status == 200
        assert [(await market.call(gate, ONE, **bearer)).status for _ in range(6)] == [402] * 5 + [429]
        rebuilt = await market.gate(creditBinding="token", credits=3)
        payment = market.buyer.sign((await market.call(rebuilt, OTHER)).json())
        statuses = [(await market.call(rebuilt, OTHER, **{"X-Payment": payment})).status for _ in range(7)]
        assert statuses == [200, *[403] * 5, 429]
