"""Unmodified official clients buy calls through the gateway, settled on a chain (contract 4)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest
from eth_account import Account

from tests.interop.official import PAYING_CLIENTS

if TYPE_CHECKING:
    from tests.interop.local_server import LocalServer
    from tests.interop.stack import Stack

PRICE_MICRO: Final = 10_000
PAYMENT_HEADERS: Final = {"x-payment", "payment-signature", "x-credit-token"}


@pytest.mark.parametrize("client", PAYING_CLIENTS)
def test_official_client_buys_a_call(client: str, stack: Stack, target: LocalServer) -> None:
    payee = Account.create().address
    gate = stack.create_gate(targetUrl=f"{target.url}/data", price="0.01", credits=3, paymentAddress=payee)
    buyer_had = stack.balance_micro(stack.buyer_address)

    bought = PAYING_CLIENTS[client].run({"url": gate["accessUrl"], "privateKey": stack.buyer_key})

    assert (bought["error"], bought["status"]) == (None, 200), bought
    assert json.loads(bought["body"]) == {"said": "served", "method": "GET", "path": "/data"}
    receipt = bought["receipt"]
    assert (receipt["success"], receipt["network"], receipt["payer"]) == (True, "base-sepolia", stack.buyer_address)
    assert len(bytes.fromhex(receipt["transaction"].removeprefix("0x"))) == 32
    assert (bought["headers"]["x-credits-total"], bought["headers"]["x-credits-remaining"]) == ("3", "2")
    assert stack.balance_micro(payee) == PRICE_MICRO
    assert buyer_had - stack.balance_micro(stack.buyer_address) == PRICE_MICRO
    (forwarded,) = target.forwarded
    assert forwarded.headers["x-paygate-slug"] == gate["slug"]
    assert not PAYMENT_HEADERS & set(forwarded.headers)


@pytest.mark.parametrize("client", PAYING_CLIENTS)
def test_body_of_a_paid_post_reaches_the_target_once(client: str, stack: Stack, target: LocalServer) -> None:
    gate = stack.create_gate(targetUrl=f"{target.url}/orders", price="0.01", credits=1, method="GET,POST")
    order = json.dumps({"quantity": 3})

    bought = PAYING_CLIENTS[client].run(
        {
            "url": gate["accessUrl"],
            "privateKey": stack.buyer_key,
            "method": "POST",
            "headers": {"Content-Type": "application/json"},
            "body": order,
        }
    )

    assert (bought["error"], bought["status"]) == (None, 200), bought
    (forwarded,) = target.forwarded
    assert (forwarded.method, forwarded.body.decode()) == ("POST", order)


@pytest.mark.parametrize("client", PAYING_CLIENTS)
def test_official_client_without_funds_is_refused(client: str, stack: Stack, target: LocalServer) -> None:
    gate = stack.create_gate(targetUrl=f"{target.url}/data", price="0.01", credits=1)
    poor = Account.create()

    bought = PAYING_CLIENTS[client].run({"url": gate["accessUrl"], "privateKey": "0x" + bytes(poor.key).hex()})

    assert (bought["error"], bought["status"]) == (None, 402), bought
    assert json.loads(bought["body"])["error"]["code"] == "INSUFFICIENT_FUNDS"
    assert target.forwarded == []
