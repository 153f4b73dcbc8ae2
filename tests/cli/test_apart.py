"""Gateway and hub apart: a purchase through both, with its data in the history; a login of one taken by the other."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from tests.cli.processes import Answer, ask, configured, running
from tests.interop.local_server import Reply, serving
from tests.node_thread import run_in_thread
from tests.ports import free_port
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import EvmNode
from tollkeeper.sandbox.wallets import derive_wallets

WALLETS = derive_wallets()


@dataclass
class Parts:
    gateway_url: str
    hub_url: str
    target_url: str


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parts]:
    with ExitStack() as stack:
        node = stack.enter_context(run_in_thread(EvmNode()))
        hub_url, gateway_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        hub_environ = {
            "TOLLKEEPER_PORT": hub_url.rpartition(":")[2],
            "TOLLKEEPER_PUBLIC_URL": hub_url,
            "TOLLKEEPER_TRUSTED_ISSUERS": gateway_url,
            "TOLLKEEPER_SIGNER_KEY": WALLETS.relayer.private_key_hex,
        }
        gateway_environ = {
            "TOLLKEEPER_PORT": gateway_url.rpartition(":")[2],
            "TOLLKEEPER_PUBLIC_URL": gateway_url,
            "TOLLKEEPER_HUB_URL": hub_url,
            "TOLLKEEPER_TRUSTED_ISSUERS": hub_url,
            "TOLLKEEPER_DEFAULT_PAYMENT_ADDRESS": WALLETS.owner.address,
            "TOLLKEEPER_ALLOW_PRIVATE_TARGETS": "true",
        }
        for name, environ in (("hub", hub_environ), ("gateway", gateway_environ)):
            directory = tmp_path_factory.mktemp(name)
            config = configured(directory, node.url)
            stack.enter_context(running(name, "--config", config, environ=environ)).wait_for_event("serving")
        target = stack.enter_context(serving(lambda request: Reply(200, {"path": request.path})))
        found = Parts(gateway_url, hub_url, f"{target.url}/data")
        deadline = time.monotonic() + 30  # the hub, which came first, asks for the gateway's keys every two seconds
        while not any("purchaseData" in row for row in asyncio.run(buy_and_look(found, {}))[1]):
            assert time.monotonic() < deadline
            time.sleep(0.5)
        yield found


def test_a_purchase_through_both_is_in_the_hubs_history_with_its_data(parts: Parts) -> None:
    answer, history = asyncio.run(buy_and_look(parts, {}))
    assert answer.status == 200, answer.body
    bought = [row for row in history if "purchaseData" in row]
    (row,) = [row for row in bought if row["purchaseData"]["purchaseId"] == answer.headers["x-purchase-id"]]
    assert (row["status"], row["purchaseData"]["gateway"]) == ("success", parts.gateway_url)


def test_the_gateway_takes_the_hubs_login(parts: Parts) -> None:
    answer, _ = asyncio.run(buy_and_look(parts, {"requireAuth": True}))
    assert answer.status == 200, answer.body


def test_the_hub_takes_the_gateways_login(parts: Parts) -> None:
    with_login(parts.gateway_url, lambda bearer: ask(f"{parts.hub_url}/api/v1/history?limit=1", headers=bearer), 200)


@pytest.mark.parametrize("issuer", ["hub", "gateway"])
def test_a_logout_at_the_issuer_is_known_to_the_other_part_within_five_seconds(parts: Parts, issuer: str) -> None:
    here, there = (parts.hub_url, parts.gateway_url) if issuer == "hub" else (parts.gateway_url, parts.hub_url)

    def leave(bearer: dict[str, str]) -> Answer:
        assert ask(f"{there}/api/v1/auth/me", headers=bearer).status == 200  # remembered from now on
        assert ask(f"{here}/api/v1/auth/logout", body={}, headers=bearer).status == 200
        time.sleep(5)
        return ask(f"{there}/api/v1/auth/me", headers=bearer)

    with_login(here, leave, 401)


def test_who_signs_as_the_gateway_and_is_not_it_gets_nothing_into_the_history(parts: Parts) -> None:
    """Anybody may settle at the hub, and say whose purchase that was; only the trusted issuer's key makes it so."""
    answer, history = asyncio.run(settle_as_a_stranger(parts))
    assert (answer.status, answer.json()["success"]) == (200, True), answer.body
    (row,) = [row for row in history if row["transactionHash"] == answer.json()["transaction"]]
    assert "purchaseData" not in row


def with_login(issuer: str, act: Callable[[dict[str, str]], Answer], status: int) -> None:
    """What a bearer of that part's is answered."""

    async def login() -> str:
        async with Buyer(WALLETS.buyer) as buyer:
            return await buyer.login(issuer)

    answer = act({"Authorization": f"Bearer {asyncio.run(login())}"})
    assert answer.status == status, answer.body


async def settle_as_a_stranger(parts: Parts) -> tuple[Answer, list[dict[str, Any]]]:
    body = {"targetUrl": parts.target_url, "price": "0.01"}
    gate = ask(f"{parts.gateway_url}/api/v1/paygates", body=body).json()
    challenge = ask(gate["accessUrl"]).json()
    async with Buyer(WALLETS.buyer) as buyer:
        bearer = {"Authorization": f"Bearer {await buyer.login(parts.hub_url)}"}
        payment = json.loads(base64.b64decode(buyer.sign(challenge)))
    forged = {"gateway": parts.gateway_url, "paygateId": 1, "slug": gate["slug"], "title": "mine"}
    asked = {
        "x402Version": 1,
        "paymentPayload": payment,
        "paymentRequirements": challenge["accepts"][0],
        "confirm": True,
        "purchaseData": {**forged, "price": "0.01", "credits": 1, "purchaseId": "forged"},
    }
    answer = ask(f"{parts.hub_url}/settle", body=asked)
    return answer, ask(f"{parts.hub_url}/api/v1/history?limit=100", headers=bearer).json()["history"]


async def buy_and_look(parts: Parts, fields: dict[str, Any]) -> tuple[Answer, list[dict[str, Any]]]:
    body = {"targetUrl": parts.target_url, "price": "0.01", **fields}
    gate = ask(f"{parts.gateway_url}/api/v1/paygates", body=body).json()
    async with Buyer(WALLETS.buyer) as buyer:
        bearer = {"Authorization": f"Bearer {await buyer.login(parts.hub_url)}"}
        payment = buyer.sign(ask(gate["accessUrl"], headers=bearer).json())
    answer = ask(gate["accessUrl"], headers={**bearer, "X-Payment": payment})
    history = ask(f"{parts.hub_url}/api/v1/history?limit=100", headers=bearer).json()["history"]
    return answer, history
