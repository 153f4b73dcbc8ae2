"""Several nodes of one network: one dies, lags, hangs or is of another chain, and payments go on (contract 5; A-15)."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode, recording
from tests.hub.hub_under_test import NETWORK, HubUnderTest, in_the_pool, new_payment, run_hub
from tests.hub.test_restored_backup import carry_out
from tests.hub.test_unknown_outcomes import SEND, drain
from tollkeeper.chains import nodes as chains_nodes
from tollkeeper.chains import watcher
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.core.evm.encoding import keccak256


def chain_of(hub: HubUnderTest) -> EvmChain:
    return hub.account.chain


def always(act: Act) -> Any:
    return lambda _methods: act


def of_chain(chain_id: str) -> Any:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": chain_id} if call["method"] == "eth_chainId" else answer

    return falsify


def at_height(height: int) -> Any:
    """A node that has not seen a block since, and so knows of no receipt."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_blockNumber":
            return answer | {"result": hex(height)}
        return answer | {"result": None} if call["method"] == "eth_getTransactionReceipt" else answer

    return falsify


async def test_only_the_first_node_is_asked_while_it_is_well(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    before = [sum(node.calls.values()) for node in nodes]
    asked: list[list[str]] = []
    nodes[1].act = recording(asked)
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    after = [sum(node.calls.values()) for node in nodes]
    assert after[0] > before[0]
    assert after[2] == before[2]
    # The second one vouches for the outcome, in one round trip.
    assert asked == [["eth_getTransactionReceipt", "eth_getBlockByNumber", "eth_blockNumber"]]


async def test_who_settles_at_once_share_the_second_nodes_word(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    settling = [asyncio.create_task(hub_of_three.settle(new_payment(embedded_chain))) for _ in range(20)]
    await in_the_pool(embedded_chain, mined + 20)
    asked: list[list[str]] = []
    nodes[1].act = recording(asked)
    embedded_chain.rpc.call("evm_mine")
    assert {answer.body["success"] for answer in await asyncio.gather(*settling)} == {True}
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 20
    assert sum(methods.count("eth_getTransactionReceipt") for methods in asked) == 20
    assert len(asked) <= 10  # as often as a poll sees something new: far fewer than settle


@pytest.mark.parametrize("act", [Act.CUT, Act.HANG, Act.SERVER_ERROR])
async def test_payments_go_on_when_nodes_die_and_the_dead_are_left_alone(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, act: Act
) -> None:
    chain_of(hub_of_three).rpc.nodes.out_of_reach_seconds = 1
    asked: list[list[str]] = []
    nodes[0].act, nodes[1].act = recording(asked, act), always(act)
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    asked.clear()
    began = time.monotonic()
    answers = await asyncio.gather(*(hub_of_three.settle(new_payment(embedded_chain)) for _ in range(20)))
    assert {answer.body["success"] for answer in answers} == {True}
    # After each of its rests (2 s, then twice as long each time), by the few exchanges that begin before it failed.
    rests = 1 + int(math.log2(1 + (time.monotonic() - began) / 2))
    assert len(asked) <= 8 * rests  # 28 or more where it is not left alone


async def test_a_node_that_comes_back_is_asked_again(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[0].act = always(Act.CUT)
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    nodes[0].calm()
    await chain_of(hub_of_three).open()
    second = nodes[1].calls["eth_call"]
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert nodes[1].calls["eth_call"] == second  # it vouches, and no more


async def test_a_send_that_one_node_swallowed_reaches_the_chain_through_the_next(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[0].on("eth_sendRawTransaction", Act.CUT)
    payment = new_payment(embedded_chain)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    assert (await hub_of_three.settle(payment)).body["success"] is True
    nodes[0].on("eth_sendRawTransaction", Act.LOSE_ANSWER)
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 2


def pretending(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """Of a node that calls every transaction its own."""
    if call["method"] == "eth_sendRawTransaction":
        return answer | {"result": "0x" + keccak256(bytes.fromhex(call["params"][0][2:])).hex()}
    return answer | {"result": {"hash": call["params"][0]}} if call["method"] == "eth_getTransactionByHash" else answer


async def test_what_one_node_takes_and_passes_on_to_nobody_is_sent_to_another_while_its_buyer_waits(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[0].on("eth_sendRawTransaction", Act.SWALLOW)
    nodes[0].falsify = pretending
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True


async def test_what_one_node_takes_and_passes_on_to_nobody_is_mined_through_another(
    hub_of_three: HubUnderTest,
    nodes: list[ChaosNode],
    embedded_chain: ChainUnderTest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watcher, "_PAUSES_SECONDS", (600.0,))  # nobody waits for them any more
    nodes[0].on("eth_sendRawTransaction", Act.SWALLOW)
    nodes[0].falsify = pretending
    payments = [new_payment(embedded_chain) for _ in range(3)]
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    for payment in payments:
        assert (await hub_of_three.settle(payment, prefer="wait=0")).status == 503
    for _ in range(3):  # it need not be so, while they are young
        await hub_of_three.complete()
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined
    hub_of_three.lanes.stuck_seconds = 0
    for _ in range(2):
        await hub_of_three.complete()
    assert [await hub_of_three.status(payment) for payment in payments] == ["success"] * 3
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 3


async def test_a_lagging_node_comes_after_the_others_until_it_has_caught_up(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("anvil_mine", hex(20))
    nodes[0].falsify = at_height(3)
    hub_of_three.recovery.check_interval_seconds = 0
    await hub_of_three.complete()
    asked = sum(nodes[0].calls.values())
    answer = await hub_of_three.settle(new_payment(embedded_chain))
    assert answer.body["success"] is True
    assert sum(nodes[0].calls.values()) == asked
    nodes[0].calm()
    await hub_of_three.complete()
    asked = sum(nodes[0].calls.values())
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert sum(nodes[0].calls.values()) > asked


async def test_a_lagging_node_alone_makes_no_success_and_no_failure(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    chain_of(hub_of_three).rpc.nodes.out_of_reach_seconds = 0
    nodes[1].act = nodes[2].act = always(Act.CUT)
    nodes[0].falsify = at_height(0)
    payment = new_payment(embedded_chain)
    pending = await hub_of_three.settle(payment, prefer="wait=1")
    assert pending.code == "SETTLEMENT_PENDING"
    await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "pending"
    nodes[0].calm()
    await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "success"


async def test_a_node_that_turns_to_another_chain_is_not_asked_and_the_last_one_disables_the_network(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    hub_of_three.recovery.check_interval_seconds = 0
    nodes[0].falsify = of_chain("0x1")
    await hub_of_three.complete()
    asked = sum(nodes[0].calls.values())
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert sum(nodes[0].calls.values()) == asked
    nodes[1].falsify = nodes[2].falsify = of_chain("0x1")
    await hub_of_three.complete()
    refused = await hub_of_three.settle(new_payment(embedded_chain))
    assert refused.reason == "invalid_network"
    assert await hub_of_three.hub.unreadiness() == [f"{NETWORK}: the node's chain id is 1, not 84532"]
    nodes[2].calm()
    await hub_of_three.complete()
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True


async def test_a_token_that_changed_its_name_is_noticed(hub_of_three: HubUnderTest, nodes: list[ChaosNode]) -> None:
    def other_separator(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_call" and call["params"][0]["data"] == "0x3644e515":
            return answer | {"result": "0x" + "11" * 32}
        return answer

    for node in nodes:
        node.falsify = other_separator
    hub_of_three.recovery.check_interval_seconds = 0
    await hub_of_three.complete()
    (problem,) = await hub_of_three.hub.unreadiness()
    assert "does not reproduce" in problem
    assert (await hub_of_three.get("/supported")).body["kinds"] == []


async def test_the_check_of_a_silent_node_changes_nothing(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[0].act = nodes[1].act = nodes[2].act = always(Act.CUT)
    hub_of_three.recovery.check_interval_seconds = 0
    await hub_of_three.complete()
    assert chain_of(hub_of_three).asset is not None
    assert (await hub_of_three.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
    nodes[2].calm()
    chain_of(hub_of_three).rpc.nodes.out_of_reach_seconds = 0
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True


LIMITS = [
    {"code": -32005, "message": "daily request count exceeded, request rate limited"},
    {"code": 429, "message": "Your app has exceeded its compute units per second capacity."},
    {"code": -32000, "message": "Too Many Requests"},
]


def limiting(error: dict[str, Any], *methods: str) -> Any:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if methods and call["method"] not in methods:
            return answer
        return {"jsonrpc": "2.0", "id": answer["id"], "error": error}

    return falsify


@pytest.mark.parametrize("error", LIMITS)
async def test_a_node_that_limits_our_calls_is_passed_over_and_left_alone(
    hub_of_three: HubUnderTest,
    nodes: list[ChaosNode],
    embedded_chain: ChainUnderTest,
    error: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chains_nodes, "_REST_FIRST_SECONDS", 60.0)  # longer than a busy machine needs for another one
    nodes[0].falsify = limiting(error)
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    asked = sum(nodes[0].calls.values())
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert sum(nodes[0].calls.values()) == asked
    assert sum(nodes[1].calls.values()) > 0


async def test_a_send_that_one_node_limits_goes_to_the_next(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[0].falsify = limiting(LIMITS[0], "eth_sendRawTransaction")
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert nodes[1].calls["eth_sendRawTransaction"] == 1


async def test_nodes_that_all_limit_our_calls_start_nothing_and_lose_nothing(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    for node in nodes:
        node.falsify = limiting(LIMITS[0])
    assert (await hub_of_three.settle(payment)).code == "UNAVAILABLE"
    nodes[1].calm()
    chain_of(hub_of_three).rpc.nodes.out_of_reach_seconds = 0
    assert (await hub_of_three.settle(payment)).body["success"] is True


async def test_a_question_has_one_budget_of_time_over_all_nodes(
    tmp_path: Path, embedded_chain: ChainUnderTest, nodes: list[ChaosNode]
) -> None:
    urls = tuple(node.url for node in nodes * 4)
    async with run_hub(tmp_path, embedded_chain, config={"rpc_urls": urls, "timeout_seconds": 1.0}) as hub:
        for node in nodes:
            node.act = always(Act.HANG)
        began = time.monotonic()
        assert (await hub.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
        assert time.monotonic() - began < 8  # twelve nodes, each with a second of its own


async def test_where_the_other_nodes_never_answered_one_carries_payments_at_once(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    nodes[1].act = nodes[2].act = always(Act.CUT)
    config = {"rpc_urls": tuple(node.url for node in nodes), "timeout_seconds": 1.0}
    async with run_hub(tmp_path, embedded_chain, config=config) as hub:
        assert (await hub.settle(new_payment(embedded_chain), prefer="wait=5")).body["success"] is True


async def test_a_second_node_that_lags_delays_a_success_and_no_more(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    for node in nodes[1:]:
        node.falsify = at_height(0)
    payment = new_payment(embedded_chain)
    answer = await hub_of_three.settle(payment, prefer="wait=1")
    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "SETTLEMENT_PENDING", "2")
    settling = asyncio.create_task(hub_of_three.settle(new_payment(embedded_chain)))
    await asyncio.sleep(0.5)
    assert not settling.done()
    nodes[2].calm()
    assert (await settling).body["success"] is True
    await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "success"


async def test_a_node_that_itself_says_that_it_stands_still_has_no_say(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    def stuck(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_getBlockByNumber":
            return answer | {"result": answer["result"] | {"timestamp": hex(int(time.time()) - 700)}}
        behind: dict[str, Any] = at_height(0)(call, answer)
        return behind

    for node in nodes[1:]:
        node.falsify = stuck
    assert (await hub_of_three.settle(new_payment(embedded_chain), prefer="wait=5")).body["success"] is True


async def test_where_too_few_nodes_answer_settlements_wait_and_the_operator_is_told(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    urls = tuple(node.url for node in nodes[:2])
    config = {"rpc_urls": urls, "timeout_seconds": 1.0, "confirm_nodes": 2}
    async with run_hub(tmp_path, embedded_chain, config=config) as hub:
        assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True
        assert (await hub.get("/readyz")).body["problems"] == []
        nodes[1].act = always(Act.CUT)
        payment = new_payment(embedded_chain)
        assert (await hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
        assert await hub.status(payment) == "pending"
        told = "settlements are told once 2 nodes show them, and 1 of them too few answer"
        assert (await hub.get("/readyz")).body["problems"] == [f"{NETWORK}: {told}"]
        nodes[1].calm()
        await hub.complete()
        assert await hub.status(payment) == "success"
        assert (await hub.get("/readyz")).body["problems"] == []


async def test_what_the_first_node_keeps_no_logs_of_another_one_explains(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    """A payment of ours whose transaction the database forgot, at a node that keeps no old logs."""
    for node in nodes:
        node.on("eth_sendRawTransaction", Act.CUT)
    ours, foreign = new_payment(embedded_chain), new_payment(embedded_chain)
    for payment, by_relayer in ((ours, True), (foreign, False)):
        assert (await hub_of_three.settle(payment, prefer="wait=0")).status == 503
        carry_out(embedded_chain, payment, by_relayer=by_relayer)
    for node in nodes:
        node.calm()
    nodes[0].falsify = lambda call, answer: answer | {"result": []} if call["method"] == "eth_getLogs" else answer
    for _ in range(2):
        await hub_of_three.complete()
    assert [await hub_of_three.status(payment) for payment in (ours, foreign)] == ["success", "failed"]


async def test_a_revert_that_one_node_shows_is_no_success_without_confirm_while_the_others_are_behind(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    head = int(embedded_chain.rpc.call("eth_blockNumber"), 16)

    def drain_before_send(methods: list[str]) -> Act:
        if SEND in methods:
            drain(embedded_chain)
        return Act.PASS

    nodes[0].act = drain_before_send
    for node in nodes[1:]:
        node.falsify = at_height(head)
    payment = new_payment(embedded_chain)
    answer = await hub_of_three.settle(payment, confirm=False)
    assert (answer.status, answer.body.get("success")) == (503, None)
    assert answer.code == "SETTLEMENT_PENDING"
    for node in nodes:
        node.calm()
    await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "failed"
