"""Of what a gate needs something is away, or forbidden, since the gateway was started anew: a network, a target."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import Forward, run_hostile_hub
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_several_networks import BASE, BASE_PAYEE, BOTH, base_node
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import NetworkSettings, Role


async def payment_on_base(buyer: Buyer, gate_url: str) -> str:
    return buyer.sign((await buyer.ask("GET", gate_url, headers={"X-Payment-Network": "base"})).json())


async def test_held_credits_are_served_while_their_networks_node_is_away(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "all.db"
    async with base_node() as (node, base_url), Buyer(derive_wallets().buyer) as buyer:
        networks = {
            **settings_for(embedded_chain.url, database).networks,
            BASE.name: NetworkSettings(BASE, (base_url,)),
        }
        async with composed(embedded_chain.url, database, networks=networks) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 5, **BOTH}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            payment = await payment_on_base(buyer, gate["accessUrl"])
            unused = await payment_on_base(buyer, gate["accessUrl"])
            first = await buyer.call(gate["accessUrl"], payment)
            assert (first.status, first.headers["x-credits-remaining"]) == (200, "4")
        await node.stop()
        async with composed(embedded_chain.url, database, networks=networks) as url:
            again = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert (again.status, again.headers.get("x-credits-remaining")) == (200, "3")
            other = await buyer.call(f"{url}/{gate['slug']}", unused)
            assert (other.status, other.error_code) == (402, "INVALID_NETWORK")


async def test_a_claimed_payment_is_pending_while_its_network_is_away(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async def lost(_request: aiohttp.web.Request, forward: Forward) -> aiohttp.web.StreamResponse:
        await forward()
        return aiohttp.web.Response(status=502, text="{}")

    async with base_node() as (_, base_url), Buyer(derive_wallets().buyer) as buyer:
        networks = dict(settings_for(embedded_chain.url, tmp_path / "hub.db").networks)
        networks[BASE.name] = NetworkSettings(BASE, (base_url,))
        async with (
            composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB, networks=networks) as hub,
            run_hostile_hub(hub) as between,
        ):
            apart: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": between.url, "networks": networks}
            between.settling = lost
            async with composed(embedded_chain.url, tmp_path / "gateway.db", **apart) as url:
                body = {"price": "0.01", "targetUrl": target.url, "credits": 5, **BOTH}
                gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
                payment = await payment_on_base(buyer, gate["accessUrl"])
                first = await buyer.call(gate["accessUrl"], payment)
                assert (first.status, first.error_code) == (503, "SETTLEMENT_PENDING")
            supported = (await buyer.ask("GET", hub + "/supported")).json()
            supported["kinds"] = [kind for kind in supported["kinds"] if kind["network"] != "base"]
            between.supported = json.dumps(supported)
            async with composed(embedded_chain.url, tmp_path / "gateway.db", **apart) as url:
                again = await buyer.call(f"{url}/{gate['slug']}", payment)
                assert again.status in {200, 503}, again.body


async def everything_asked(buyer: Buyer, gate_url: str, held: str, token: str) -> dict[str, tuple[int, str | None]]:
    preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
    answers = {
        "unpaid": await buyer.ask("GET", gate_url),
        "named": await buyer.ask("GET", gate_url, headers={"X-Payment-Network": "base-sepolia"}),
        "payment": await buyer.call(gate_url, held),
        "token": await buyer.ask("GET", gate_url, headers={"X-Credit-Token": token}),
        "method": await buyer.ask("DELETE", gate_url),
        "preflight": await buyer.ask("OPTIONS", gate_url, headers=preflight),
        "unreadable": await buyer.call(gate_url, "x"),
    }
    return {
        name: (answer.status, answer.error_code if answer.status >= 400 else None) for name, answer in answers.items()
    }


@pytest.mark.parametrize("away", ["node", "setting", "hub"])
async def test_where_a_gate_s_own_network_is_away_what_was_bought_is_served_and_nothing_sold(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, away: str
) -> None:
    database = tmp_path / "gateway.db"
    dead = NetworkSettings(NETWORKS["base-sepolia"], ("http://127.0.0.1:9",))
    then: dict[str, Any] = {"networks": {"base-sepolia": dead}}
    if away == "hub":
        then = {"role": Role.GATEWAY, "hub_url": "http://127.0.0.1:9"}
    async with base_node() as (_, base_url), Buyer(derive_wallets().buyer) as buyer:
        if away == "setting":
            then = {"networks": {BASE.name: NetworkSettings(BASE, (base_url,))}}
        async with composed(embedded_chain.url, database) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 4}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            held = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            first = await buyer.call(gate["accessUrl"], held)
            unused = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            used_up = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            for _ in range(4):
                assert (await buyer.call(gate["accessUrl"], used_up)).status == 200
        async with composed(embedded_chain.url, database, **then) as url:
            gate_url = f"{url}/{gate['slug']}"
            asked = await everything_asked(buyer, gate_url, held, first.headers["x-credit-token"])
            fresh, exhausted = await buyer.call(gate_url, unused), await buyer.call(gate_url, used_up)
    away_now = (503, "UNAVAILABLE")
    assert asked == {
        "unpaid": away_now,
        "named": away_now,
        "payment": (200, None),
        "token": (200, None),
        "method": (405, "METHOD_NOT_ALLOWED"),
        "preflight": (204, None),
        "unreadable": away_now,
    }
    assert [(answer.status, answer.error_code) for answer in (fresh, exhausted)] == [away_now, away_now]
    assert "on base-sepolia nothing can be paid for now" in fresh.json()["error"]["message"]
    assert "retry-after" in fresh.headers


async def test_a_gate_whose_own_network_is_away_is_sold_on_a_further_one(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "all.db"
    async with base_node() as (_, base_url), Buyer(derive_wallets().buyer) as buyer:
        on_base = NetworkSettings(BASE, (base_url,))
        networks = {**settings_for(embedded_chain.url, database).networks, BASE.name: on_base}
        async with composed(embedded_chain.url, database, networks=networks) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 5, **BOTH}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        async with composed(embedded_chain.url, database, networks={BASE.name: on_base}) as url:
            asked = await buyer.ask("GET", f"{url}/{gate['slug']}")
            assert (asked.status, [one["network"] for one in asked.json()["accepts"]]) == (402, ["base"])
            assert (await buyer.call(f"{url}/{gate['slug']}", buyer.sign(asked.json()))).status == 200


async def test_a_stored_target_that_may_be_one_no_more_fails_where_it_is_connected_to(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "all.db"
    async with Buyer(derive_wallets().buyer) as buyer:
        async with composed(embedded_chain.url, database) as url:
            body = {"price": "0.01", "targetUrl": target.url, "credits": 4}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            held = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            first = await buyer.call(gate["accessUrl"], held)
        seen = len(target.requests)
        async with composed(embedded_chain.url, database, allow_private_targets=False) as url:
            token = first.headers["x-credit-token"]
            asked = await everything_asked(buyer, f"{url}/{gate['slug']}", held, token)
    assert asked == {
        "unpaid": (402, None),
        "named": (402, None),
        "payment": (502, "UPSTREAM_BLOCKED"),
        "token": (502, "UPSTREAM_BLOCKED"),
        "method": (405, "METHOD_NOT_ALLOWED"),
        "preflight": (204, None),
        "unreadable": (402, "PAYMENT_INVALID"),
    }
    assert len(target.requests) == seen


async def test_a_gate_is_changed_while_its_networks_are_away_but_for_what_would_be_paid_there(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    database = tmp_path / "all.db"
    async with base_node() as (_, base_url), Buyer(derive_wallets().buyer) as buyer:
        sepolia = dict(settings_for(embedded_chain.url, database).networks)
        networks = {**sepolia, BASE.name: NetworkSettings(BASE, (base_url,))}
        async with composed(embedded_chain.url, database, networks=networks) as url:
            created = {"price": "0.01", "targetUrl": target.url, **BOTH}
            further = (await buyer.ask("POST", url + "/api/v1/paygates", body=created)).json()
            own = {**created, "network": "base", "paymentAddress": BASE_PAYEE, "accepts": []}
            only = (await buyer.ask("POST", url + "/api/v1/paygates", body=own)).json()

        async def update(url: str, gate: dict[str, Any], **fields: object) -> tuple[int, str | None, str | None]:
            answer = await buyer.ask("PUT", f"{url}/api/v1/paygates/{gate['id']}", body=fields)
            error = answer.json().get("error") or {}
            return answer.status, error.get("code"), error.get("details", {}).get("field")

        changed: list[dict[str, object]] = [{"title": "x"}, {"credits": 6}, {"assumeValid": True}, {"isEnabled": False}]
        async with composed(embedded_chain.url, database, networks=sepolia) as url:
            for gate in (further, only):
                for fields in (*changed, {"network": gate["network"], "accepts": gate["accepts"]}):
                    assert await update(url, gate, **fields) == (200, None, None)
                assert await update(url, gate, assumeValid=False) == (200, None, None)
            refused = (400, "INVALID_NETWORK")
            assert await update(url, further, network="base", accepts=[]) == (*refused, "network")
            assert await update(url, only, paymentAddress="0x" + "73" * 20) == (*refused, "paymentAddress")
            payee = {"network": "base", "paymentAddress": "0x" + "73" * 20}
            assert await update(url, further, accepts=[payee]) == (*refused, "accepts")
            assert await update(url, further, paymentAddress="0x" + "74" * 20) == (200, None, None)
            assert await update(url, only, network="base-sepolia") == (200, None, None)


async def test_a_gate_is_changed_while_the_hub_is_away_but_for_what_only_the_hub_can_tell(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    apart: dict[str, Any] = {"role": Role.GATEWAY, "signer_keys": ()}
    async with Buyer(derive_wallets().buyer) as buyer:
        async with (
            composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub,
            composed(embedded_chain.url, tmp_path / "gateway.db", hub_url=hub, **apart) as url,
        ):
            body = {"price": "0.01", "targetUrl": target.url}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        async with composed(embedded_chain.url, tmp_path / "gateway.db", hub_url="http://127.0.0.1:9", **apart) as url:
            path = f"{url}/api/v1/paygates/{gate['id']}"
            for fields in ({"title": "x"}, {"credits": 6}, {"assumeValid": True}, {"isEnabled": False}):
                answer = await buyer.ask("PUT", path, body=fields)
                assert (answer.status, answer.json().get("error")) == (200, None)
            for fields in ({"paymentAddress": "0x" + "73" * 20}, {"assumeValid": False}, {"network": "base"}):
                answer = await buyer.ask("PUT", path, body=fields)
                assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
