"""Nodes that lie about a payment's outcome: it is told as two nodes show it, or not at all (contract 5; A-15)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_under_test import NETWORK, HubUnderTest, TestPayment, new_payment, run_hub
from tests.hub.test_recovery import change
from tests.hub.test_restored_backup import carry_out
from tests.hub.test_several_nodes import always, chain_of
from tollkeeper.api import clock_ms
from tollkeeper.chains import quorum
from tollkeeper.chains.quorum import OVERDUE_SECONDS
from tollkeeper.core.evm.encoding import AUTHORIZATION_USED_TOPIC, SELECTOR_AUTHORIZATION_STATE, TRANSFER_TOPIC
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement


def log_of(receipt: dict[str, Any], *topics: str) -> dict[str, Any]:
    """Another event of the token's."""
    return {**receipt["logs"][0], "topics": list(topics)}


FORGED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another hash": lambda receipt: receipt | {"transactionHash": "0x" + "11" * 32},
    "another block": lambda receipt: receipt | {"blockHash": "0x" + "11" * 32},
    "a block that is not there yet": lambda receipt: receipt | {"blockNumber": "0xffffff"},
    "no block": lambda receipt: receipt | {"blockHash": None, "blockNumber": None},
    "no logs": lambda receipt: receipt | {"logs": []},
    "half the logs": lambda receipt: receipt | {"logs": receipt["logs"][:1]},
    "another token": lambda receipt: (
        receipt | {"logs": [log | {"address": "0x" + "11" * 20} for log in receipt["logs"]]}
    ),
    "a use of nobody's": lambda receipt: (
        receipt | {"logs": [*receipt["logs"], log_of(receipt, AUTHORIZATION_USED_TOPIC), receipt["logs"][-1]]}
    ),
    "an amount of null": lambda receipt: receipt | {"logs": [log | {"data": None} for log in receipt["logs"]]},
    "a status of text": lambda receipt: receipt | {"status": "success"},
    "no status": lambda receipt: {name: value for name, value in receipt.items() if name != "status"},
    "a list": lambda receipt: [receipt],
    "true": lambda _receipt: True,
}


@pytest.mark.parametrize("lie", FORGED)
async def test_a_node_that_lies_about_a_receipt_makes_neither_success_nor_failure(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, lie: str
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_getTransactionReceipt" and answer.get("result"):
            return answer | {"result": FORGED[lie](answer["result"])}
        return answer

    for node in nodes:
        node.falsify = falsify
    payment = new_payment(embedded_chain)
    assert (await hub_of_three.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
    for _ in range(2):
        await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "pending"
    for node in nodes:
        node.calm()
    await hub_of_three.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await hub_of_three.complete()
    assert await hub_of_three.status(payment) == "success"


def listing(block: Any, *transactions: str) -> Any:
    """The block with more transactions in it."""
    return block and block | {"transactions": [*block["transactions"], *transactions]}


def liar(chain: ChainUnderTest, payment: TestPayment, *, lists_it: bool = True) -> Any:
    """Shows what would have come of any transaction of ours: this transfer, in a block that is really there.

    `lists_it`: what it shows of its blocks fits to that.
    """
    authorization = payment.authorization

    def topic(address: str) -> str:
        return "0x" + address[2:].rjust(64, "0")

    events = [
        ([AUTHORIZATION_USED_TOPIC, topic(authorization.payer), authorization.nonce], "0x"),
        ([TRANSFER_TOPIC, topic(authorization.payer), topic(authorization.pay_to)], f"0x{authorization.value:064x}"),
    ]
    logs = [{"address": USDC_ADDRESS, "topics": topics, "data": data} for topics, data in events]
    made_up: set[str] = set()

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_getBlockByNumber" and lists_it:
            return answer | {"result": listing(answer["result"], *made_up)}
        if call["method"] != "eth_getTransactionReceipt":
            return answer
        made_up.add(call["params"][0])
        block = chain.rpc.call("eth_getBlockByNumber", "latest", False)
        named = {"transactionHash": call["params"][0], "blockHash": block["hash"], "blockNumber": block["number"]}
        return answer | {"result": named | {"status": "0x1", "logs": logs}}

    return falsify


@pytest.mark.parametrize("needed", [0, 1, 2, 3])
async def test_where_several_nodes_must_show_a_payment_one_that_lies_makes_no_success(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, needed: int
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    urls = tuple(node.url for node in nodes)
    config = {"rpc_urls": urls, "timeout_seconds": 1.0, "confirm_nodes": needed}
    before = chain.balance(chain.wallets.owner.address)
    chain.rpc.call("evm_setAutomine", False)
    nodes[0].falsify = liar(chain, payment)
    async with run_hub(tmp_path, chain, config=config) as hub:
        answer = await hub.settle(payment, prefer="wait=1")
        assert chain.balance(chain.wallets.owner.address) == before
        if needed == 1:
            assert answer.body["success"] is True  # the one node that is asked is believed
            return
        assert answer.code == "SETTLEMENT_PENDING"
        for _ in range(2):
            await hub.complete()
        assert await hub.status(payment) == "pending"
        chain.rpc.call("evm_mine")
        nodes[0].calm()
        await hub.complete()
        assert await hub.status(payment) == "success"
        assert (await hub.settle(payment)).body["success"] is True
        assert (await hub.settle(new_payment(chain), prefer="wait=0")).status == 503
        chain.rpc.call("evm_setAutomine", True)
        assert (await hub.settle(new_payment(chain))).body["success"] is True


async def test_a_node_alone_that_shows_a_receipt_of_a_transaction_that_its_block_does_not_list_makes_no_success(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    chain.rpc.call("evm_setAutomine", False)
    nodes[0].falsify = liar(chain, payment, lists_it=False)
    async with run_hub(tmp_path, chain, config={"rpc_urls": (nodes[0].url,), "timeout_seconds": 1.0}) as hub:
        assert (await hub.settle(payment, prefer="wait=1")).code == "SETTLEMENT_PENDING"
        await hub.complete()
        assert await hub.status(payment) == "pending"
        nodes[0].calm()
        chain.rpc.call("evm_mine")
        await hub.complete()
        assert (await hub.settle(payment, prefer="wait=1")).body["success"] is True


async def test_a_lie_is_believed_only_where_no_other_node_can_be_reached_for_a_while(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    hub, chain, payment = hub_of_three, embedded_chain, new_payment(embedded_chain)
    chain.rpc.call("evm_setAutomine", False)
    nodes[0].falsify = liar(chain, payment)
    nodes[1].act = nodes[2].act = always(Act.CUT)
    answer = await hub.settle(payment, prefer="wait=1")  # a moment's silence of the others is not enough
    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "SETTLEMENT_PENDING", "2")
    nodes[2].calm()
    await chain_of(hub).open()
    chain_of(hub).rpc.nodes.out_of_reach_seconds = 0
    await hub.complete()
    assert await hub.status(payment) == "pending"
    told = f"{NETWORK}: one node's word is taken for settlements, because none of the others answers"
    assert told not in (await hub.get("/readyz")).body["problems"]
    nodes[2].act = always(Act.CUT)
    await hub.complete()
    assert await hub.status(payment) == "success"  # what is given up for payments to go on
    assert told in (await hub.get("/readyz")).body["problems"]


def denying(payment: TestPayment, proof: str) -> Any:
    """Shows, of a transfer that was made, that it never can be."""
    elsewhere, is_foreign, is_expired = "0x" + "ab" * 32, proof == "foreign", proof == "expired"

    def shown(method: str, params: list[Any], result: Any) -> Any:
        match method:
            case "eth_getTransactionReceipt":
                result = None
            case "eth_call" if params[0]["data"].startswith("0x" + SELECTOR_AUTHORIZATION_STATE.hex()):
                result = f"0x{int(is_foreign):064x}"
            case "eth_getTransactionCount" if is_expired:
                result = "0x0"
            case "eth_getBlockByNumber" if is_expired:
                result = result | {"timestamp": hex(payment.authorization.valid_before + 100)}
            case "eth_getBlockByNumber" if is_foreign:
                result = listing(result, elsewhere)
            case "eth_getLogs" if is_foreign:
                result = [log | {"transactionHash": elsewhere} for log in result]
            case "eth_getTransactionByHash" if params == [elsewhere]:
                result = {"hash": elsewhere, "type": "0x0", "from": "0x" + "12" * 20}
        return result

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": shown(call["method"], call["params"], answer["result"])}

    return falsify


@pytest.mark.parametrize("proof", ["foreign", "reverted", "expired"])
@pytest.mark.parametrize("needed", [0, 1, 2, 3])
async def test_one_node_that_denies_a_payment_makes_it_no_failure(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, needed: int, proof: str
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    urls = tuple(node.url for node in nodes)
    config = {"rpc_urls": urls, "timeout_seconds": 1.0, "confirm_nodes": needed}
    chain.rpc.call("evm_setAutomine", False)
    async with run_hub(tmp_path, chain, config=config) as hub:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        nodes[0].falsify = denying(payment, proof)
        chain.rpc.call("evm_mine")
        with capture_logs() as logs:
            for _ in range(2):
                await hub.complete()
        if needed == 1:
            assert await hub.status(payment) == "failed"  # the one node that is asked is believed
            return
        if needed == 3:
            assert await hub.status(payment) == "pending"  # without this one nothing is told
        else:
            assert [line["node"] for line in logs if line["event"] == "node_overruled"] == [1]
            assert await hub.status(payment) == "success"  # as the two others show it
        nodes[0].calm()
        for _ in range(2):
            await hub.complete()
        assert await hub.status(payment) == "success"


async def test_two_nodes_overrule_one_that_says_a_transfer_reverted_at_once(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_getTransactionReceipt" and answer.get("result"):
            return answer | {"result": answer["result"] | {"status": "0x0", "logs": []}}
        return answer

    nodes[0].falsify = falsify
    with capture_logs() as logs:
        for _ in range(3):
            assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert [line["node"] for line in logs if line["event"] == "node_overruled"] == [1]
    nodes[1].falsify = falsify  # two against one
    answers = [await hub_of_three.settle(new_payment(embedded_chain), prefer="wait=1") for _ in range(2)]
    assert [answer.body.get("success") for answer in answers] != [True, True]


async def test_two_nodes_overrule_one_that_shows_nothing_before_a_caller_gives_up(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": None} if call["method"] == "eth_getTransactionReceipt" else answer

    nodes[0].falsify = falsify
    began = asyncio.get_running_loop().time()
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True
    assert asyncio.get_running_loop().time() - began >= OVERDUE_SECONDS  # a node may lag by so much
    assert (await hub_of_three.settle(new_payment(embedded_chain))).body["success"] is True


async def test_a_transfer_that_one_node_makes_up_for_long_keeps_no_end_from_being_proven(
    hub_of_three: HubUnderTest,
    nodes: list[ChaosNode],
    embedded_chain: ChainUnderTest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its transaction was dropped and its time is over, as the two others show."""
    monkeypatch.setattr(quorum, "_DOUBT_TOLD_SECONDS", 0)
    hub, chain, payment = hub_of_three, embedded_chain, new_payment(embedded_chain)
    chain.rpc.call("evm_setAutomine", False)
    assert (await hub.settle(payment, prefer="wait=0")).status == 503
    (row,) = await hub.database.read(Statement("SELECT transaction_hash FROM settlements"))
    chain.rpc.call("anvil_dropTransaction", row["transaction_hash"])
    nodes[0].falsify = liar(chain, payment)
    hub.lanes.is_carried = lambda _id: True  # nobody sends it again
    chain.rpc.call("evm_setNextBlockTimestamp", payment.authorization.valid_before + 100)
    chain.rpc.call("evm_mine")
    for _ in range(3):
        await hub.complete()
    assert await hub.status(payment) == "failed"


@pytest.mark.parametrize("count", [2, 3])
async def test_an_end_that_the_first_node_never_shows_is_concluded_by_two_others(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, count: int
) -> None:
    chain = embedded_chain
    payment = new_payment(chain)
    config = {"rpc_urls": tuple(node.url for node in nodes[:count]), "timeout_seconds": 1.0}
    chain.rpc.call("evm_setAutomine", False)
    late = 0

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getBlockByNumber" or not answer["result"]:
            return answer
        return answer | {"result": answer["result"] | {"timestamp": hex(payment.authorization.valid_before)}}

    async with run_hub(tmp_path, chain, config=config, now_ms=lambda: clock_ms() + late) as hub:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        (row,) = await hub.database.read(Statement("SELECT transaction_hash FROM settlements"))
        chain.rpc.call("anvil_dropTransaction", row["transaction_hash"])
        nodes[0].falsify = falsify
        chain.rpc.call("evm_setNextBlockTimestamp", payment.authorization.valid_before + 600)
        chain.rpc.call("evm_mine")
        late = 3 * 3_600_000
        hub.lanes.is_carried = lambda _id: True  # nobody sends it again
        for _ in range(2):
            await hub.recovery.complete(clock_ms() + 2 * late)
        assert await hub.status(payment) == ("failed" if count == 3 else "pending")


@pytest.mark.parametrize("needed", [0, 2])
async def test_a_failure_that_two_nodes_show_is_one(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, needed: int
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    urls = tuple(node.url for node in nodes)
    config = {"rpc_urls": urls, "timeout_seconds": 1.0, "confirm_nodes": needed}
    chain.rpc.call("evm_setAutomine", False)
    async with run_hub(tmp_path, chain, config=config) as hub:
        assert (await hub.settle(payment, prefer="wait=0")).status == 503
        (row,) = await hub.database.read(Statement("SELECT transaction_hash FROM settlements"))
        chain.rpc.call("anvil_dropTransaction", row["transaction_hash"])
        nodes[2].falsify = denying(payment, "foreign")  # who is not needed is not asked
        chain.rpc.call("evm_setNextBlockTimestamp", payment.authorization.valid_before + 61)
        chain.rpc.call("evm_mine")
        await hub.complete()
        assert await hub.status(payment) == "failed"


def of_nonce(nonce: int, *tags: str) -> Any:
    """Says of every account that it has sent so many transactions."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        is_meant = call["method"] == "eth_getTransactionCount" and call["params"][1] in tags
        return answer | {"result": hex(nonce)} if is_meant else answer

    return falsify


async def test_a_nonce_that_one_node_made_up_moves_no_lane(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    """It would leave a gap that is to be filled at our cost, and everything signed later would wait behind it."""
    chain, hub = embedded_chain, hub_of_three
    assert (await hub.settle(new_payment(chain))).body["success"] is True
    mined = chain.nonce(chain.wallets.relayer)
    nodes[0].falsify = of_nonce(mined + 1_000, "latest", "pending")
    with capture_logs() as logs:
        for _ in range(3):
            await hub.complete()
    assert "nonces_doubted" in {line["event"] for line in logs}
    nodes[0].calm()
    await hub.complete()
    assert (await hub.settle(new_payment(chain))).body["success"] is True
    assert chain.nonce(chain.wallets.relayer) == mined + 1


@pytest.mark.parametrize("count", [2, 3])
async def test_a_lane_does_not_begin_at_a_nonce_that_one_node_made_up(
    tmp_path: Path, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, count: int
) -> None:
    chain = embedded_chain
    mined = chain.nonce(chain.wallets.relayer)
    nodes[0].falsify = of_nonce(mined + 1_000, "latest", "pending")
    config = {"rpc_urls": tuple(node.url for node in nodes[:count]), "timeout_seconds": 1.0}
    async with run_hub(tmp_path, chain, config=config) as hub:
        if count == 2:
            assert (await hub.settle(new_payment(chain))).code == "UNAVAILABLE"
            nodes[0].falsify = of_nonce(mined + 1_000, "pending")  # as one whose pool has what no other has
            await hub.complete()
        assert (await hub.settle(new_payment(chain))).body["success"] is True
    assert chain.nonce(chain.wallets.relayer) == mined + 1


def far_away(far: int) -> Any:
    """Everything that was mined lies in a block of that number, which is the newest, and canonical."""
    named: list[str] = []

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        method, shown = call["method"], answer.get("result")
        if method == "eth_blockNumber":
            return answer | {"result": hex(far)}
        if method == "eth_getTransactionReceipt" and shown:
            named.append(shown["blockHash"])
            return answer | {"result": shown | {"blockNumber": hex(far)}}
        if method == "eth_getBlockByNumber" and call["params"][0] == hex(far):
            return {"jsonrpc": "2.0", "id": answer["id"], "result": {"hash": named[-1]}}
        return answer

    return falsify


@pytest.mark.parametrize("far", [2**63, 2**70])
async def test_a_block_that_no_chain_can_have_is_no_answer(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, far: int
) -> None:
    """Nor is it a fault of ours: neither who pays nor what looks at the payment later stumbles over it."""
    chaos.falsify, payment = far_away(far), new_payment(embedded_chain)
    answer = await chaos_hub.settle(payment, prefer="wait=1")
    assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
    chaos.calm()
    await chaos_hub.complete()
    assert await chaos_hub.status(payment) == "success"


async def test_money_that_nobody_can_have_is_no_answer(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": hex(10**400)} if call["method"] == "eth_getBalance" else answer

    chaos.falsify = falsify
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url) as hub:
        assert (await hub.settle(new_payment(embedded_chain))).code == "UNAVAILABLE"
        chaos.calm()
        assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True


async def test_a_node_that_shows_another_transaction_of_ours_as_the_user_makes_no_failure(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest
) -> None:
    """That one is on the chain and made another transfer, which all nodes show: what it used only one says."""
    chain = embedded_chain
    payment = new_payment(chain)
    for node in nodes:
        node.on("eth_sendRawTransaction", Act.CUT)
    assert (await hub_of_three.settle(payment, prefer="wait=0")).status == 503
    log = next(
        log
        for log in carry_out(chain, new_payment(chain), by_relayer=True)["logs"]
        if log["topics"][0] == AUTHORIZATION_USED_TOPIC
    )

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "eth_getLogs":
            return answer | {"result": [log | {"topics": [*log["topics"][:2], payment.authorization.nonce]}]}
        if call["method"] == "eth_call" and SELECTOR_AUTHORIZATION_STATE.hex() in str(call["params"]):
            return answer | {"result": f"0x{1:064x}"}
        return answer

    for node in nodes[1:]:
        node.act = always(Act.SERVER_ERROR)
    nodes[0].calm()
    nodes[0].falsify = falsify
    with capture_logs() as logs:
        for _ in range(2):
            await hub_of_three.complete()
    assert any(line["event"] == "failure_doubted" for line in logs)
    assert await hub_of_three.status(payment) == "pending"
    for node in nodes[1:]:
        node.calm()
    await hub_of_three.database.run(change("UPDATE settlements SET retry_ms = 0"))
    await hub_of_three.complete()
    rows = await hub_of_three.database.read(Statement("SELECT proof FROM settlements WHERE state = 'FAILED'"))
    assert [row["proof"] for row in rows] == ["reverted"]  # as the others show: nothing was made with it
    assert (await hub_of_three.settle(payment)).body["success"] is True
