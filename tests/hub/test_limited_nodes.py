"""The hub behind public nodes: they limit batches and ranges of logs, refuse to look, and suggest absurd tips."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode, recording
from tests.hub.gateway_requests import TRUSTED, post, request_of, signed
from tests.hub.hub_under_test import NETWORK, HubUnderTest, new_payment, run_hub
from tollkeeper.core.evm.encoding import transfer_calldata


def relay(chain: ChainUnderTest, payment: Any) -> str:
    """Somebody else carries the payment out."""
    signature = bytes.fromhex(payment.body["paymentPayload"]["payload"]["signature"][2:])
    return str(chain.relay(transfer_calldata(payment.authorization, signature))["transactionHash"])


def blocks_in(call: dict[str, Any], chain: ChainUnderTest) -> int:
    wanted = call["params"][0]
    latest = int(chain.rpc.call("eth_blockNumber"), 16)
    last = latest if wanted["toBlock"] == "latest" else int(wanted["toBlock"], 16)
    return last - int(wanted["fromBlock"], 16) + 1


@pytest.mark.parametrize("largest", [10, 100, 1_000])
@pytest.mark.parametrize("words", ["eth_getLogs is limited to a range of %d blocks", "query exceeds the plan"])
async def test_who_used_an_authorization_is_found_behind_a_node_that_shows_few_blocks_at_once(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, largest: int, words: str
) -> None:
    def limited(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getLogs" or blocks_in(call, embedded_chain) <= largest:
            return answer
        said = words % largest if "%" in words else words
        return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32000, "message": said}}

    embedded_chain.rpc.call("anvil_mine", 1_100)
    payment = new_payment(embedded_chain)
    used_by = relay(embedded_chain, payment)
    embedded_chain.rpc.call("anvil_mine", 40)
    chaos.falsify = limited
    for _ in range(2):
        answer = await chaos_hub.post("/verify", payment.body)
        assert (answer.reason, answer.body["transaction"]) == ("invalid_exact_evm_nonce_already_used", used_by)
    asked = chaos.calls["eth_getLogs"]
    assert (await chaos_hub.settle(payment)).body["transaction"] == used_by
    assert chaos.calls["eth_getLogs"] - asked <= -(-41 // (largest // 2))  # learned, and kept
    ready = (await chaos_hub.get("/readyz")).body
    assert any("eth_getLogs" in problem and words[:12] in problem for problem in ready["problems"])


async def test_a_node_that_shows_no_logs_has_not_said_that_nobody_used_the_authorization(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    def refuse(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        error = {"code": -32601, "message": "eth_getLogs is not served here"}
        is_logs = call["method"] == "eth_getLogs"
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error} if is_logs else answer

    payment = new_payment(embedded_chain)
    used_by = relay(embedded_chain, payment)
    chaos.falsify = refuse
    refused = await chaos_hub.settle(payment)
    assert (refused.status, refused.code) == (503, "UNAVAILABLE")
    assert "eth_getLogs is not served here" in refused.body["error"]["message"]
    chaos.calm()
    assert (await chaos_hub.settle(payment)).body["transaction"] == used_by


@pytest.mark.parametrize("largest", [1, 3, 10])
async def test_forty_buyers_at_once_are_served_behind_a_node_that_takes_small_batches(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, largest: int
) -> None:
    chaos.batches_max = largest
    payments = [new_payment(embedded_chain, signer=payer) for payer in payers(embedded_chain, 40)]
    settled = await asyncio.gather(*(chaos_hub.settle(payment) for payment in payments))
    assert {answer.body.get("success") for answer in settled} == {True}
    (problem,) = (await chaos_hub.get("/readyz")).body["problems"]
    assert "no batches" in problem if largest == 1 else f"{largest} calls in a batch" in problem


@pytest.mark.parametrize("shows_history", [True, False])
async def test_an_absurd_tip_is_bounded_by_what_recent_blocks_paid(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, *, shows_history: bool
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_maxPriorityFeePerGas":
            return answer | {"result": hex(40 * 10**9)}
        if call["method"] == "eth_feeHistory" and not shows_history:
            return {"jsonrpc": "2.0", "id": answer["id"], "error": {"code": -32601, "message": "method not found"}}
        return answer

    chaos.falsify = falsify
    settled = (await chaos_hub.settle(new_payment(embedded_chain))).body
    transaction = embedded_chain.rpc.call("eth_getTransactionByHash", settled["transaction"])
    base_fee_wei = int(embedded_chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
    usual_wei = int(embedded_chain.rpc.call("eth_maxPriorityFeePerGas"), 16)
    most_wei = usual_wei if shows_history else max(usual_wei, 2 * base_fee_wei)
    assert int(transaction["maxPriorityFeePerGas"], 16) <= most_wei


class Limiter:
    """A node's quota: so many calls a second."""

    def __init__(self, calls: int) -> None:
        self._calls = calls
        self._second, self._used = 0, 0

    def __call__(self, methods: list[str]) -> Act:
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._used = second, 0
        if self._used + len(methods) > self._calls:
            return Act.TOO_MANY
        self._used += len(methods)
        return Act.PASS


async def test_junk_of_strangers_that_eats_the_nodes_quota_stops_no_sale(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    nobody = bytes(64) + b"\x1b"
    junk = [new_payment(embedded_chain, signature=nobody, payer=f"0x{number:040x}").body for number in range(1, 500)]
    sales = [request_of(new_payment(embedded_chain)) for _ in range(4)]
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url, trusted_keys=TRUSTED) as hub:
        chaos.act = Limiter(60)
        told: Counter[int] = Counter()
        is_over, is_known = False, asyncio.Event()

        async def flood() -> None:
            while not is_over:
                told[(await hub.post("/verify", junk[told.total() % len(junk)])).status] += 1
                if told[503]:
                    is_known.set()

        flooding = [asyncio.create_task(flood()) for _ in range(50)]
        await is_known.wait()
        for number, body in enumerate(sales):
            signed_verify = signed(body, path="/verify", idempotency_key="verify")
            assert (await post(hub, body, signed_verify, "/verify")).body["isValid"] is True
            answer = await post(hub, body, signed(body, idempotency_key=f"claim-{number}.1"))
            assert answer.body["success"] is True
        is_over = True
        await asyncio.gather(*flooding)
        assert told[200] > 0


async def test_of_what_its_payer_s_key_did_not_sign_a_node_is_asked_for_its_code_and_no_more(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    junk = new_payment(embedded_chain, signature=bytes(64) + b"\x1b")
    payload = junk.body["paymentPayload"]["payload"]
    transfer = {"network": NETWORK, "asset": junk.body["paymentRequirements"]["asset"], "payload": payload}
    for path, body in (("/verify", junk.body), ("/verify?explain=true", junk.body), ("/settle", junk.body)):
        asked: list[list[str]] = []
        chaos.act = recording(asked)
        assert (await chaos_hub.post(path, body)).reason == "invalid_exact_evm_payload_signature"
        assert asked == [["eth_getCode"]], path
    asked = []
    chaos.act = recording(asked)
    assert (await chaos_hub.post("/transfer", transfer)).code == "INVALID_SIGNATURE"
    assert asked == [["eth_getCode"]]


async def test_however_often_it_is_asked_whether_the_hub_is_ready_a_node_is_asked_once_a_second(
    chaos_hub: HubUnderTest, chaos: ChaosNode
) -> None:
    chaos.calls.clear()
    began = time.monotonic()
    for _ in range(100):
        assert (await chaos_hub.get("/readyz")).status == 200
    assert chaos.calls.total() <= 1 + (time.monotonic() - began)
    chaos.on("eth_getTransactionCount", Act.SERVER_ERROR)
    async with asyncio.timeout(20):
        while (await chaos_hub.get("/readyz")).status == 200:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.05)
    chaos.calm()
    assert (await chaos_hub.get("/readyz")).status == 200
