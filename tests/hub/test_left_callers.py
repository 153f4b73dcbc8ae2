"""Who gave up before anything was signed has nothing started (contract 4.3, 5.2; security 5: abandoned, never sent).

A seller's middleware that waits no longer serves nothing either: its buyer would pay for what was settled then.
"""

from __future__ import annotations

import asyncio
import json
import re
from asyncio import StreamWriter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.solana_node import WALLETS
from tests.gateway.composed import composed
from tests.hub.chaos import LATE_SECONDS, Act, ChaosNode, run_chaos
from tests.hub.hub_under_test import TestPayment, new_payment, run_hub
from tests.hub.solana_hub import hub_of
from tollkeeper.api import clock_ms
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.sandbox.solana.node import SolanaNode

Leave: TypeAlias = Callable[[StreamWriter], object]


async def settle_and_leave(
    chaos: ChaosNode,
    url: str,
    body: dict[str, Any],
    leave: Leave,
    *,
    path: str = "/hub/settle",
    key: str = "",
    at: str = "eth_call",
    version: str = "1.1",
) -> bytes:
    """Asks on a connection of its own and leaves while the node is asked whether the payment would settle, or `at`.

    What it is answered until the connection ends. `version`: of HTTP; reverse proxies mostly speak 1.0.
    """
    port = int(url.rpartition(":")[2])
    data = json.dumps(body).encode()
    named = f"Idempotency-Key: {key}\r\n" if key else ""
    head = f"POST {path} HTTP/{version}\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(data)}\r\n{named}\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    has_left = asyncio.Event()

    def simulated(_methods: list[str]) -> Act:
        if has_left.is_set() or not is_about(chaos.judged, data, at):
            return Act.PASS
        leave(writer)
        has_left.set()
        return Act.LATE

    chaos.act = simulated
    writer.write(head.encode() + data)
    await has_left.wait()
    try:
        return b"" if writer.is_closing() else await reader.read()
    finally:
        writer.close()


def is_about(calls: list[dict[str, Any]], body: bytes, method: str = "eth_call") -> bool:
    """Is one of these calls of a node about the payment in the body? It has its nonce."""
    nonce = re.findall(rb'"nonce": "0x([0-9a-f]{64})"', body)[0].decode()
    return any(call["method"] == method and nonce in json.dumps(call["params"]) for call in calls)


async def status_of(url: str, payment: TestPayment) -> str:
    async with aiohttp.ClientSession() as http, http.get(url + "/hub" + payment.status_path) as answer:
        return "unknown" if answer.status == 404 else str((await answer.json())["status"])


async def test_for_a_caller_who_left_before_anything_was_signed_nothing_is_started(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    payment, transfer = new_payment(chain), new_payment(chain)
    payload = transfer.body["paymentPayload"]
    asset = transfer.body["paymentRequirements"]["asset"]
    body = {"network": payload["network"], "payload": payload["payload"], "asset": asset, "confirm": True}
    nonce = chain.nonce(chain.wallets.relayer)
    async with composed(chaos.url, tmp_path / "books.db") as url:
        await settle_and_leave(chaos, url, payment.asking(confirm=True), StreamWriter.close)
        await settle_and_leave(chaos, url, payment.asking(confirm=True), StreamWriter.close, version="1.0")
        await settle_and_leave(chaos, url, body, StreamWriter.close, path="/hub/transfer")
        silent = await settle_and_leave(
            chaos, url, payment.asking(confirm=True), StreamWriter.write_eof, version="1.0"
        )  # looks the same, and is told
        assert b"UNAVAILABLE" in silent
        await asyncio.sleep(LATE_SECONDS + 0.4)  # long enough for what was started to be mined
        assert [await status_of(url, one) for one in (payment, transfer)] == ["unknown"] * 2
        assert chain.nonce(chain.wallets.relayer) == nonce
        asking = payment.asking(confirm=True)  # it is as good as it was
        async with aiohttp.ClientSession() as http, http.post(url + "/hub/settle", json=asking) as answer:
            assert (await answer.json())["success"] is True


async def test_who_can_ask_again_under_its_key_may_leave(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    async with composed(chaos.url, tmp_path / "books.db") as url:
        body = payment.asking(confirm=True)
        await settle_and_leave(chaos, url, body, StreamWriter.close, key="claim.1")
        async with asyncio.timeout(60):
            while await status_of(url, payment) != "success":  # noqa: ASYNC110 - over HTTP there is nothing to wait on
                await asyncio.sleep(0.05)
        headers = {"Idempotency-Key": "claim.1"}
        async with aiohttp.ClientSession(headers=headers) as http, http.post(url + "/hub/settle", json=body) as answer:
            assert (await answer.json())["success"] is True


async def test_who_only_sends_no_more_is_answered(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    async with composed(chaos.url, tmp_path / "books.db") as url:
        body = new_payment(embedded_chain).asking(confirm=True)
        answer = await settle_and_leave(chaos, url, body, StreamWriter.write_eof)
        assert b'"success":true' in answer


async def test_who_waits_for_the_same_payment_settles_it_in_place_of_who_left(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    async with composed(chaos.url, tmp_path / "books.db") as url, aiohttp.ClientSession() as http:
        waiting: list[asyncio.Task[aiohttp.ClientResponse]] = []

        def leave(writer: StreamWriter) -> None:
            posting = http.post(url + "/hub/settle", json=payment.asking(confirm=True))
            waiting.append(asyncio.ensure_future(posting))
            writer.close()

        await settle_and_leave(chaos, url, payment.asking(confirm=True), leave)
        async with await waiting[0] as answer:
            assert (await answer.json())["success"] is True


async def test_a_success_that_its_caller_did_not_wait_for_goes_to_who_asks_again(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """What was signed goes its way; told to nobody, it is no duplicate."""
    payment = new_payment(embedded_chain)
    body = payment.asking(confirm=True)
    embedded_chain.rpc.call("evm_setAutomine", False)
    async with composed(chaos.url, tmp_path / "books.db") as url:
        await settle_and_leave(chaos, url, body, StreamWriter.close, at="eth_sendRawTransaction")
        await asyncio.sleep(LATE_SECONDS + 0.2)
        embedded_chain.rpc.call("evm_setAutomine", True)
        embedded_chain.rpc.call("evm_mine")
        told = []
        async with aiohttp.ClientSession() as http:
            for _ in range(2):
                async with http.post(url + "/hub/settle", json=body) as answer:
                    told.append(await answer.json())
        assert [(one["success"], one["errorReason"]) for one in told] == [(True, None), (False, "duplicate_settlement")]


@pytest.mark.parametrize("key", [None, "claim.1"])
async def test_nothing_is_started_that_nobody_would_wait_for(
    tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode, key: str | None
) -> None:
    """Its caller is told so, while nobody knows whether it is still there."""
    late_ms = 0
    payment = new_payment(embedded_chain)
    body = json.dumps(payment.body).encode()

    def slow(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal late_ms
        late_ms = SETTLE_WAIT_SECONDS * 1000 if is_about([call], body) else late_ms
        return answer

    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url, now_ms=lambda: clock_ms() + late_ms) as hub:
        chaos.falsify = slow
        answer = await hub.settle(payment, key=key)
        assert late_ms
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")
        assert await hub.status(payment) == "unknown"
        assert (await hub.settle(payment, key=key)).body["success"] is True


async def test_nothing_is_started_on_solana_that_nobody_would_wait_for(tmp_path: Path) -> None:
    late_ms = 0

    def slow(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        nonlocal late_ms
        late_ms = SETTLE_WAIT_SECONDS * 1000 if call["method"] == "simulateTransaction" else late_ms
        return answer

    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as chaos:
        options: dict[str, Any] = {"rpc_url": chaos.url, "now_ms": lambda: clock_ms() + late_ms}
        async with hub_of(tmp_path, node, **options) as hub:
            chaos.falsify = slow
            payment = hub.payment()
            answer = await hub.settle(payment)
            assert late_ms
            assert (answer.status, answer.code) == (503, "UNAVAILABLE")
            assert await hub.status(payment) == "unknown"
            assert (await hub.settle(payment)).body["success"] is True
