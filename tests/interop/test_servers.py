"""Unmodified official resource servers of x402 version 2 are paid through our hub, by unmodified official clients.

By both of the packages' flows: served and then settled, which is their default, and settled first (`upfront`).
"""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from eth_account import Account

from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import run_hub
from tests.interop.conftest import on_anvil
from tests.interop.local_server import LocalServer, Reply, Request, serving
from tests.interop.official import PAYING_CLIENTS, PAYING_CLIENTS_ON_SOLANA, VERSION_2, Json
from tests.interop.servers import (
    EVM,
    PASTED_IN,
    PRICE_MICRO,
    SERVERS,
    SOLANA,
    official_server,
    pasted,
    sale_on_evm,
    sale_on_solana,
)
from tests.interop.stack import Stack, sandbox
from tollkeeper.hub.api import requests
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

if TYPE_CHECKING:
    import pathlib
    from collections.abc import AsyncIterator, Iterator

    from tests.chains.chain_under_test import ChainUnderTest

GOODS: Final = {"said": "served"}
PATHS: Final = ("/data", "/upfront")
SEND: Final = "eth_sendRawTransaction"
# Which of them asks at which of a server's two paths, so that each is asked by two of them.
AT: Final = {"/data": "x402-2.25.0-httpx-v2", "/upfront": "@x402/fetch-2.27.0-v2"}
AT_VERSION_1: Final = ("x402-1.0.0-httpx", "x402-fetch-1.2.0")
ONE_OF_EACH_LANGUAGE: Final = ("@x402/express-2.27.0", "x402-2.25.0-fastapi")


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with sandbox(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


def assert_bought(bought: Json, network: str) -> None:
    assert (bought["error"], bought["status"]) == (None, 200), bought
    assert json.loads(bought["body"]) == GOODS
    assert (bought["receipt"]["success"], bought["receipt"]["network"]) == (True, network)
    assert bought["receipt"]["transaction"]


@pytest.mark.parametrize("server", SERVERS)
def test_an_official_server_is_paid_on_evm_by_both_flows(server: str, embedded: Stack) -> None:
    payee = Account.create().address
    with official_server(server, embedded.hub_url, sale_on_evm(embedded.token, "USD Coin", payee)) as url:
        for path, client in AT.items():
            assert_bought(PAYING_CLIENTS[client].run({"url": url + path, "privateKey": embedded.buyer_key}), EVM)
    assert embedded.balance_micro(payee) == 2 * PRICE_MICRO


@pytest.mark.parametrize("server", SERVERS)
def test_an_official_server_is_paid_on_solana_by_both_flows(server: str, embedded: Stack) -> None:
    chain = embedded.solana
    had = chain.balance_micro(chain.pay_to)
    buyer = {"privateKey": chain.buyer_key, "rpcUrl": chain.rpc_url}
    with official_server(server, embedded.hub_url, sale_on_solana(embedded)) as url:
        for path, client in AT.items():
            assert_bought(PAYING_CLIENTS_ON_SOLANA[client].run({"url": url + path, **buyer}), SOLANA)
    assert chain.balance_micro(chain.pay_to) - had == 2 * PRICE_MICRO


def test_every_client_of_version_2_pays_a_server_through_the_hub(embedded: Stack) -> None:
    payee = Account.create().address
    others = [name for name in VERSION_2 if name not in AT.values()]
    sale = sale_on_evm(embedded.token, "USD Coin", payee)
    with official_server("@x402/express-2.27.0", embedded.hub_url, sale) as url:
        for client in others:
            assert_bought(PAYING_CLIENTS[client].run({"url": url + "/upfront", "privateKey": embedded.buyer_key}), EVM)
    with official_server("@x402/express-2.27.0", embedded.hub_url, sale_on_solana(embedded)) as url:
        buyer = {"privateKey": embedded.solana.buyer_key, "rpcUrl": embedded.solana.rpc_url}
        assert_bought(PAYING_CLIENTS_ON_SOLANA["@x402/axios-2.11.0-v2"].run({"url": url + "/data", **buyer}), SOLANA)
    assert embedded.balance_micro(payee) == len(others) * PRICE_MICRO


@pytest.fixture(scope="module")
def anvil(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with on_anvil(tmp_path_factory.mktemp("sandbox") / "log.txt") as running:
        yield running


@pytest.mark.parametrize("title", ["Today: FastAPI", "Today: Express"])
def test_what_the_guide_says_to_paste_is_paid_in_the_real_token(
    title: str, anvil: Stack, tmp_path: pathlib.Path
) -> None:
    """Its price is "$0.01": the token, its name and its decimals are in the packages' own tables."""
    payee = Account.create().address
    with pasted(title, anvil.hub_url, payee, tmp_path) as url:
        for client in AT.values():
            assert_bought(PAYING_CLIENTS[client].run({"url": url + "/report", "privateKey": anvil.buyer_key}), EVM)
    assert anvil.balance_micro(payee) == 2 * PRICE_MICRO


@pytest.mark.parametrize("title", ["Yesterday: FastAPI", "Yesterday: Express"])
def test_what_the_guide_says_to_paste_for_version_1_is_paid(title: str, anvil: Stack, tmp_path: pathlib.Path) -> None:
    payee = Account.create().address
    with pasted(title, anvil.hub_url, payee, tmp_path) as url:
        for client in AT_VERSION_1:
            bought = PAYING_CLIENTS[client].run({"url": url + "/report", "privateKey": anvil.buyer_key})
            assert_bought(bought, "base-sepolia")
    assert anvil.balance_micro(payee) == len(AT_VERSION_1) * PRICE_MICRO


@pytest.mark.parametrize("title", PASTED_IN, ids=" ".join)
def test_what_the_guide_says_to_paste_is_paid_at_a_sandbox_by_the_price_that_it_names(
    title: tuple[str, str], embedded: Stack, tmp_path: pathlib.Path
) -> None:
    payee, is_today = Account.create().address, title[0] == "Today"
    with pasted(": ".join(title), embedded.hub_url, payee, tmp_path, at_sandbox=True) as url:
        client = AT["/data"] if is_today else AT_VERSION_1[0]
        bought = PAYING_CLIENTS[client].run({"url": url + "/report", "privateKey": embedded.buyer_key})
    assert_bought(bought, EVM if is_today else "base-sepolia")
    assert embedded.balance_micro(payee) == PRICE_MICRO


@asynccontextmanager
async def started(server: str, hub_url: str, payee: str) -> AsyncIterator[str]:
    """A server whose hub runs in this event loop, or is asked by it: nothing here may block."""
    running = official_server(server, hub_url, sale_on_evm(USDC_ADDRESS, "USD Coin", payee))
    url = await asyncio.to_thread(running.__enter__)
    try:
        yield url
    finally:
        await asyncio.to_thread(running.__exit__, None, None, None)


async def buy(chain: ChainUnderTest, client: str, url: str) -> Json:
    wish = {"url": url, "privateKey": chain.wallets.buyer.private_key_hex}
    return await asyncio.to_thread(PAYING_CLIENTS[client].run, wish)


async def test_with_a_block_that_comes_20_seconds_late_the_buyer_gets_the_goods_and_pays_once(
    tmp_path: pathlib.Path, embedded_chain: ChainUnderTest
) -> None:
    """Nor does a node say that it has the transaction: until the block there is no outcome that anybody knows."""
    chain, payee = embedded_chain, Account.create().address
    await asyncio.to_thread(chain.rpc.call, "evm_setAutomine", False)
    async with run_chaos(chain.url) as node, run_hub(tmp_path, chain, rpc_url=node.url) as hub, AsyncExitStack() as up:
        node.on(SEND, Act.LOSE_ANSWER)
        urls = [await up.enter_async_context(started(name, hub.url, payee)) for name in ONE_OF_EACH_LANGUAGE]
        purchases = [asyncio.create_task(buy(chain, AT[path], url + path)) for url in urls for path in PATHS]
        await under_way(node, len(purchases))
        await asyncio.sleep(20)
        assert not any(purchase.done() for purchase in purchases)
        for bought in await mined(chain, purchases):
            assert_bought(bought, EVM)
    assert chain.balance(payee) == len(purchases) * PRICE_MICRO


async def mined(chain: ChainUnderTest, purchases: list[asyncio.Task[Json]]) -> list[Json]:
    """What was bought, a block each second: what is sent late, as on a busy machine, is in a later one."""
    while not all(purchase.done() for purchase in purchases):
        await asyncio.to_thread(chain.rpc.call, "evm_mine")
        await asyncio.wait(purchases, timeout=1)
    return await asyncio.gather(*purchases)


async def under_way(node: ChaosNode, count: int) -> None:
    """So many transactions were sent."""
    async with asyncio.timeout(120):
        while node.calls[SEND] < count:  # noqa: ASYNC110 - a count
            await asyncio.sleep(0.1)


async def test_an_outcome_that_comes_behind_the_first_answer_is_told_by_the_second(
    tmp_path: pathlib.Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server asks once more with the identical body, as it was told that the settlement is pending."""
    monkeypatch.setattr(requests, "SETTLE_HOLD_SECONDS", 15)
    chain, payee = embedded_chain, Account.create().address
    await asyncio.to_thread(chain.rpc.call, "evm_setAutomine", False)
    async with (
        run_chaos(chain.url) as node,
        run_hub(tmp_path, chain, rpc_url=node.url, recovery_interval_seconds=0.2) as hub,
        AsyncExitStack() as up,
    ):
        node.on(SEND, Act.LOSE_ANSWER)
        front = up.enter_context(serving(lambda request: forwarded(hub.url, request)))
        urls = [await up.enter_async_context(started(name, front.url, payee)) for name in ONE_OF_EACH_LANGUAGE]
        purchases = [asyncio.create_task(buy(chain, AT[path], url + path)) for url in urls for path in PATHS]
        async with asyncio.timeout(120):
            while len(settles(front)) == len(set(settles(front))):  # noqa: ASYNC110 - nobody was told that it is pending
                await asyncio.sleep(0.1)
        for bought in await mined(chain, purchases):
            assert_bought(bought, EVM)
        bodies = settles(front)
        assert len(purchases) == len(set(bodies)) < len(bodies) <= 2 * len(purchases)
    assert chain.balance(payee) == len(purchases) * PRICE_MICRO


def settles(front: LocalServer) -> list[bytes]:
    return [request.body for request in front.received if request.path == "/settle"]


def forwarded(url: str, request: Request) -> Reply:
    """The answer of whoever is there, with its headers of payment; a 502 where nobody is."""
    headers = {name: value for name, value in request.headers.items() if name not in {"host", "content-length"}}
    asked = urllib.request.Request(url + request.path, request.body or None, headers, method=request.method)  # noqa: S310 - own
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:  # noqa: S310 - own addresses
            return _as_reply(answer.status, answer.read(), answer.headers)
    except urllib.error.HTTPError as refused:
        with refused:
            return _as_reply(refused.code, refused.read(), refused.headers)
    except OSError:
        return Reply(502, {})


def _as_reply(status: int, body: bytes, headers: Any) -> Reply:
    shown = {name: value for name, value in headers.items() if name.lower().startswith("payment-")}
    return Reply(status, json.loads(body), shown)


async def test_with_the_hub_killed_in_the_middle_nobody_pays_twice_for_one_authorization(
    tmp_path: pathlib.Path, embedded_chain: ChainUnderTest
) -> None:
    """The server refuses, for it knows of nothing; the same payment shown again is served, and was settled once."""
    chain, payee = embedded_chain, Account.create().address
    signed: dict[str, Request] = {}
    hub: list[HubProcess] = []
    async with run_chaos(chain.url) as node, AsyncExitStack() as up:

        async def start() -> None:
            hub[:] = [up.enter_context(await asyncio.to_thread(HubProcess, tmp_path, node.url))]

        await start()
        front = up.enter_context(serving(lambda request: forwarded(hub[0].url, request)))

        def kill(methods: list[str]) -> Act:
            if SEND not in methods:
                return Act.PASS
            hub[0].kill()
            return Act.LOSE_ANSWER

        for name in ONE_OF_EACH_LANGUAGE:
            url = await up.enter_async_context(started(name, front.url, payee))

            def show(request: Request, url: str = url) -> Reply:
                if "payment-signature" in request.headers:
                    signed[request.path] = request
                return forwarded(url, request)

            shop = up.enter_context(serving(show))
            for path in PATHS:
                had = chain.balance(payee)
                node.act = kill
                refused = await buy(chain, AT[path], shop.url + path)
                assert refused["status"] == 402, refused
                node.calm()
                await start()
                again = [await asyncio.to_thread(forwarded, url, signed[path]) for _ in range(3)]
                assert chain.balance(payee) - had == PRICE_MICRO
                served = [reply.body == GOODS for reply in again]
                assert served == ([True, False, False] if path == "/upfront" else [False, False, False])
