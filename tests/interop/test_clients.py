"""Unmodified official clients of both versions buy calls at one gate, settled on a chain (contract 4 and 10.1).

One URL, paid on Base Sepolia and on Solana at once; beside them a client written from the specification alone.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import TYPE_CHECKING, Final

import aiohttp
import pytest
from eth_account import Account

from tests.gateway.version2 import decoded, signed
from tests.interop.conftest import serving_goods
from tests.interop.official import (
    BOTH_VERSIONS,
    PAYING_CLIENTS,
    PAYING_CLIENTS_ON_SOLANA,
    VERSION_1,
    Driver,
    Json,
)
from tests.interop.servers import EVM, SOLANA
from tests.specification.client import Chain, Http, Wallet, authorization, header, payment, typed_data

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.interop.local_server import LocalServer
    from tests.interop.stack import OnSolana, Stack

PRICE_MICRO: Final = 10_000
PAYMENT_HEADERS: Final = {"x-payment", "payment-signature", "x-credit-token"}
ORDER: Final = json.dumps({"quantity": 3})
CALLS: Final[list[Json]] = [
    {"method": "GET"},
    {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": ORDER},
]


@pytest.fixture(scope="module")
def shop() -> Iterator[LocalServer]:
    with serving_goods() as server:
        yield server


@pytest.fixture(scope="module")
def gate(stack: Stack, shop: LocalServer) -> Json:
    """The one URL that everybody pays. One credit a purchase, so that each call is one."""
    return stack.create_gate(
        targetUrl=f"{shop.url}/data",
        price="0.01",
        credits=1,
        method="GET,POST",
        network="base-sepolia",
        paymentAddress=Account.create().address,
        accepts=[{"network": "solana-devnet", "paymentAddress": stack.solana.pay_to}],
    )


def assert_bought(answers: list[Json], network: str, payer: str, shop: LocalServer, gate: Json) -> None:
    """Each call was served for one payment of its own, by the target, which saw nothing of it."""
    for call, bought in zip(CALLS, answers, strict=True):
        assert (bought["error"], bought["status"]) == (None, 200), bought
        assert json.loads(bought["body"]) == {"said": "served", "method": call["method"], "path": "/data"}
        receipt = bought["receipt"]
        assert (receipt["success"], receipt["network"], receipt["payer"]) == (True, network, payer)
        assert (bought["headers"]["x-credits-total"], bought["headers"]["x-credits-remaining"]) == ("1", "0")
    assert len({bought["receipt"]["transaction"] for bought in answers}) == len(CALLS)
    forwarded = shop.forwarded[-len(CALLS) :]
    assert [(one.method, one.body.decode()) for one in forwarded] == [("GET", ""), ("POST", ORDER)]
    for one in forwarded:
        assert one.headers["x-paygate-slug"] == gate["slug"]
        assert not PAYMENT_HEADERS & set(one.headers)


@pytest.mark.parametrize("client", PAYING_CLIENTS)
def test_an_official_client_buys_a_get_and_a_post(client: str, stack: Stack, gate: Json, shop: LocalServer) -> None:
    payee = gate["paymentAddress"]
    owner_had, buyer_had = stack.balance_micro(payee), stack.balance_micro(stack.buyer_address)

    bought = PAYING_CLIENTS[client].run({"url": gate["accessUrl"], "privateKey": stack.buyer_key, "calls": CALLS})

    network = "base-sepolia" if client in VERSION_1 else EVM
    assert_bought(bought["answers"], network, stack.buyer_address, shop, gate)
    assert stack.balance_micro(payee) - owner_had == len(CALLS) * PRICE_MICRO
    assert buyer_had - stack.balance_micro(stack.buyer_address) == len(CALLS) * PRICE_MICRO


@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
@pytest.mark.parametrize("client", PAYING_CLIENTS_ON_SOLANA)
def test_an_official_client_buys_a_get_and_a_post_at_the_same_url_on_solana(
    client: str, stack: Stack, gate: Json, shop: LocalServer
) -> None:
    """Version 1 has to name the network, because its 402s stay within one family."""
    chain, driver = stack.solana, PAYING_CLIENTS_ON_SOLANA[client]
    owner_had, buyer_had = chain.balance_micro(chain.pay_to), chain.balance_micro(chain.buyer_address)
    wish = {"url": gate["accessUrl"], "privateKey": chain.buyer_key, "rpcUrl": chain.rpc_url}

    if client in VERSION_1:
        bought = [in_a_new_moment(driver, {**wish, **call}, chain) for call in CALLS]
        assert_bought(bought, "solana-devnet", chain.buyer_address, shop, gate)
    else:
        bought = driver.run({**wish, "calls": CALLS})["answers"]
        assert_bought(bought, SOLANA, chain.buyer_address, shop, gate)
    assert chain.balance_micro(chain.pay_to) - owner_had == len(CALLS) * PRICE_MICRO
    assert buyer_had - chain.balance_micro(chain.buyer_address) == len(CALLS) * PRICE_MICRO


def in_a_new_moment(driver: Driver, call: Json, chain: OnSolana) -> Json:
    """Buy with a blockhash that nothing was signed with yet: version 1 adds no memo that would tell payments apart."""
    former = chain.node("getLatestBlockhash")["value"]["blockhash"]
    while chain.node("getLatestBlockhash")["value"]["blockhash"] == former:
        time.sleep(0.1)
    named = {**call.get("headers", {}), "X-Payment-Network": "solana-devnet"}
    return driver.run({**call, "network": "solana-devnet", "headers": named})


@pytest.mark.parametrize("version", [1, 2])
async def test_a_client_written_from_the_specification_buys_at_the_same_url(
    version: int, stack: Stack, gate: Json
) -> None:
    wallet, payee = Wallet(stack.buyer_key), gate["paymentAddress"]
    had = await asyncio.to_thread(stack.balance_micro, payee)
    async with aiohttp.ClientSession() as session:
        http = Http(session)
        unpaid = await http.send("GET", gate["accessUrl"])
        if version == 1:
            (wanted,) = unpaid.body["accepts"]
            name = wanted["extra"]["name"]
            promised = authorization(wallet.address, wanted["payTo"], int(wanted["maxAmountRequired"]))
            signature = wallet.sign_typed(typed_data(promised, Chain(wanted["asset"]), name=name))
            headers = {"X-Payment": header(payment(promised, signature))}
        else:
            offer, _ = decoded(unpaid.headers["payment-required"])["accepts"]
            headers = {"PAYMENT-SIGNATURE": signed(offer, wallet)}
        bought = await http.send("GET", gate["accessUrl"], headers=headers)
    assert (bought.status, bought.body["said"]) == (200, "served")
    assert bought.confirmation["network"] == "base-sepolia"
    assert ("payment-response" in bought.headers) is (version == 2)
    assert await asyncio.to_thread(stack.balance_micro, payee) - had == PRICE_MICRO


@pytest.mark.parametrize("stack", ["embedded"], indirect=True)
@pytest.mark.parametrize("client", [*VERSION_1, *BOTH_VERSIONS])
def test_an_official_client_without_funds_is_refused(client: str, gate: Json, shop: LocalServer) -> None:
    poor, served = Account.create(), len(shop.forwarded)
    wish = {"url": gate["accessUrl"], "privateKey": "0x" + bytes(poor.key).hex()}

    bought = PAYING_CLIENTS[client].run(wish)

    assert (bought["error"], bought["status"]) == (None, 402), bought
    assert json.loads(bought["body"])["error"]["code"] == "INSUFFICIENT_FUNDS"
    assert len(shop.forwarded) == served
