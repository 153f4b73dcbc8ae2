"""A start finishes everything that a former run left, however much that is (security F1-F3).

The long form leaves ten thousand settlements and says how long the hub took, beside what its node alone takes.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.chains.batching import payers
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.rpc_client import RpcClient
from tests.hub.chaos import ChaosNode
from tests.hub.hub_under_test import NETWORK, TestPayment, fresh_nonce, run_hub, settle_body
from tests.hub.test_store import BOUNDS, NEW, UNBOUNDED
from tollkeeper.chains.connections import NodeConnections
from tollkeeper.chains.nodes import Node
from tollkeeper.chains.replies import HttpReply
from tollkeeper.core.evm.encoding import Transaction, sign_transaction, transfer_calldata
from tollkeeper.core.settlement.states import SettlementKind
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.storage.engine.database import Statement, Steps, unit_of_work
from tollkeeper.storage.hub.claims import ClaimedSettlement, NewSettlement, SettlementRequest, claim_and_sign
from tollkeeper.storage.hub.transactions import open_lane
from tollkeeper.storage.urls import open_database

_BATCH = 100
_OF_PAYER = 100  # what each can pay
AIM_SECONDS = 5.0


def wish_of(chain: ChainUnderTest, payment: TestPayment, number: int) -> SettlementRequest:
    authorization = payment.authorization
    return SettlementRequest(
        NewSettlement(
            id=f"left-{number}",
            key=PaymentKey(NETWORK, USDC_ADDRESS, authorization.payer, authorization.nonce),
            kind=SettlementKind.TRANSFER,
            pay_to=authorization.pay_to,
            value=authorization.value,
            payment=json.dumps(payment.body["paymentPayload"]),
            requirements="{}",
            requirements_hash="r",
            confirm=True,
            purchase_data=None,
            signer=chain.wallets.relayer.address,
            holder="a process that ended",
            now_ms=NEW.now_ms,
        )
    )


async def leave(directory: Path, chain: ChainUnderTest, count: int) -> list[bytes]:
    """So many settlements, signed and not sent, in a database; their transactions in the order of their nonces."""
    database = open_database(str(directory / "hub.db"))
    relayer = chain.wallets.relayer
    await database.run(open_lane(NETWORK, relayer.address, chain.nonce(relayer)))
    raws: list[bytes] = []
    fee = 4 * int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
    first = chain.authorization()
    wallets = payers(chain, -(-count // _OF_PAYER))

    @unit_of_work
    def one(number: int) -> Steps[None]:
        payer = wallets[number // _OF_PAYER]
        authorization = replace(first, payer=payer.address, nonce=fresh_nonce())
        signature = chain.sign(authorization, signer=payer)
        payment = TestPayment(authorization, settle_body(chain, authorization, signature))
        data = transfer_calldata(authorization, signature)

        def sign(nonce: int, _won: object, data: bytes = data) -> tuple[bytes, str]:
            transaction = Transaction(84532, nonce, 10**6, fee + 10**6, 150_000, USDC_ADDRESS, 0, data)
            raw, transaction_hash = sign_transaction(transaction, relayer.private_key)
            raws.append(raw)
            return raw, transaction_hash

        (claim,) = yield from claim_and_sign([wish_of(chain, payment, number)], sign, UNBOUNDED, BOUNDS)
        assert claim.outcome is ClaimedSettlement.WON

    @unit_of_work
    def all_of_them() -> Steps[None]:
        for number in range(count):
            yield from one(number)

    await database.run(all_of_them())
    await database.close()
    return raws


def send(rpc: RpcClient, raws: Sequence[bytes]) -> None:
    for start in range(0, len(raws), _BATCH):
        calls = [
            {"jsonrpc": "2.0", "id": number, "method": "eth_sendRawTransaction", "params": ["0x" + raw.hex()]}
            for number, raw in enumerate(raws[start : start + _BATCH])
        ]
        assert not [answer for answer in rpc.post(calls) if "error" in answer]


async def finish(directory: Path, chain: ChainUnderTest, count: int, rpc_url: str = "") -> float:
    """Seconds from the start of a hub until every settlement is confirmed."""
    began = time.monotonic()
    async with run_hub(
        directory,
        chain,
        rpc_url=rpc_url or chain.url,
        recovery_interval_seconds=0.2,
        config={"timeout_seconds": 30.0},
    ) as hub:
        confirmed = Statement("SELECT COUNT(*) AS n FROM settlements WHERE state = 'CONFIRMED'")
        while (await hub.database.read(confirmed))[0]["n"] < count:
            assert time.monotonic() - began < 300
            await asyncio.sleep(0.05)
        return time.monotonic() - began


@pytest.mark.parametrize("were_sent", [True, False])
async def test_what_a_former_run_left_is_finished(
    tmp_path: Path, embedded_chain: ChainUnderTest, *, were_sent: bool
) -> None:
    before = embedded_chain.balance(embedded_chain.wallets.owner.address)
    raws = await leave(tmp_path, embedded_chain, 700)
    if were_sent:
        send(embedded_chain.rpc, raws)
    await finish(tmp_path, embedded_chain, 700)
    assert embedded_chain.balance(embedded_chain.wallets.owner.address) == before + 7_000_000


def mine_together(chain: ChainUnderTest, raws: Sequence[bytes]) -> None:
    """All of them in as few blocks as they fit into."""
    chain.rpc.call("evm_setAutomine", False)
    send(chain.rpc, raws)
    while int(chain.rpc.call("eth_getTransactionCount", chain.wallets.relayer.address, "latest"), 16) < len(raws):
        chain.rpc.call("evm_mine")
    chain.rpc.call("evm_setAutomine", True)


async def test_what_lies_in_a_few_blocks_is_not_asked_for_one_by_one(
    tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode
) -> None:
    mine_together(embedded_chain, await leave(tmp_path, embedded_chain, 700))
    await finish(tmp_path, embedded_chain, 700, chaos.url)
    assert chaos.calls["eth_getTransactionReceipt"] < 200


UNUSABLE: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "none": lambda _: [],
    "no list": lambda _: "0x",
    "no logs": lambda logs: [1 for _ in logs],
    "of another block": lambda logs: [log | {"blockHash": "0x" + "ab" * 32} for log in logs],
    "of another contract": lambda logs: [log | {"address": "0x" + "ab" * 20} for log in logs],
    "of another transaction": lambda logs: [log | {"transactionHash": "0x" + "ab" * 32} for log in logs],
    "taken back": lambda logs: [log | {"removed": True} for log in logs],
    "of another value": lambda logs: [log | {"data": hex(1)} for log in logs],
    "of no value": lambda logs: [log | {"data": "?"} for log in logs],
}


@pytest.mark.parametrize("lie", UNUSABLE)
async def test_what_a_block_s_logs_do_not_show_is_asked_for_by_its_receipt(
    tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode, lie: str
) -> None:
    mine_together(embedded_chain, await leave(tmp_path, embedded_chain, 120))

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getLogs":
            return answer
        return answer | {"result": UNUSABLE[lie](answer["result"])}

    chaos.falsify = falsify
    await finish(tmp_path, embedded_chain, 120, chaos.url)
    assert chaos.calls["eth_getLogs"] > 0
    assert chaos.calls["eth_getTransactionReceipt"] >= 120


async def test_logs_of_a_block_that_is_not_the_canonical_one_prove_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, chaos: ChaosNode
) -> None:
    mine_together(embedded_chain, await leave(tmp_path, embedded_chain, 120))

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "eth_getBlockByNumber" or call["params"][0] == "latest":
            return answer
        return answer | {"result": answer["result"] | {"hash": "0x" + "ab" * 32}}

    chaos.falsify = falsify
    async with run_hub(tmp_path, embedded_chain, rpc_url=chaos.url, recovery_interval_seconds=0.1) as hub:
        while chaos.calls["eth_getTransactionReceipt"] < 250:  # noqa: ASYNC110 - in the second pass, of the node
            await asyncio.sleep(0.05)
        rows = await hub.database.read(Statement("SELECT DISTINCT state FROM settlements"))
        assert not {row["state"] for row in rows} & {"MINED", "CONFIRMED", "FAILED"}


@dataclass
class Exchanges:
    """When each exchange with a node began and ended."""

    spans: list[tuple[float, float]] = field(default_factory=list)

    def seconds(self) -> float:
        """How long at least one of them was under way: those that overlap count once."""
        total, until = 0.0, 0.0
        for began, ended in sorted(self.spans):
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total


def test_exchanges_that_overlap_count_once() -> None:
    assert Exchanges([(5.0, 6.0), (1.0, 3.0), (2.0, 4.0), (1.5, 2.0)]).seconds() == 4


@pytest.fixture
def exchanges(monkeypatch: pytest.MonkeyPatch) -> Exchanges:
    """Those of the hub under test."""
    seen = Exchanges()
    post = NodeConnections.post

    async def measured(self: NodeConnections, node: Node, body: bytes, seconds: float) -> HttpReply:
        began = time.monotonic()
        try:
            return await post(self, node, body, seconds)
        finally:
            seen.spans.append((began, time.monotonic()))

    monkeypatch.setattr(NodeConnections, "post", measured)
    return seen


def waited_for_a_core() -> float:
    """Seconds that this process's threads could have gone on and had no core, since they began; 0 where none tells."""
    told = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[1]) for one in told) / 1e9


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("were_sent", [True, False])
async def test_ten_thousand_left_settlements_are_finished(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, exchanges: Exchanges, *, were_sent: bool
) -> None:
    chain, count = anvil_fiat_token, 10_000
    chain.rpc.call("anvil_setBalance", chain.wallets.relayer.address, hex(10**21))
    chain.rpc.call("evm_setBlockGasLimit", hex(4 * 10**9))  # else full blocks make gas dearer than the cap
    chain.rpc.call("evm_mine")
    raws = await leave(tmp_path, chain, count)
    chain.rpc.call("evm_setIntervalMining", 1)
    if were_sent:
        send(chain.rpc, raws)
        nonce = chain.nonce(chain.wallets.relayer)
        while int(chain.rpc.call("eth_getTransactionCount", chain.wallets.relayer.address, "latest"), 16) < nonce:  # noqa: ASYNC110 - of the node
            await asyncio.sleep(0.1)
    processor_began, waited_before = time.process_time(), waited_for_a_core()
    seconds = await finish(tmp_path, chain, count)
    processor, node = time.process_time() - processor_began, exchanges.seconds()
    waited = max(0.0, waited_for_a_core() - waited_before)
    sys.stderr.write(
        f"\n{count} settlements, sent before the start: {were_sent}: finished in {seconds:.1f} s; in {node:.1f} s of "
        f"them one of {len(exchanges.spans)} answers of the node was awaited; {processor:.1f} s of processor time, "
        f"{waited:.1f} s without a core\n"
    )
    # The aim is 5 s plus the chain's latency, on a machine that has nothing else to do: what others' work on it costs
    # is taken off. Work that is done while an answer is awaited hides behind the node; the processor's time has all.
    assert processor <= AIM_SECONDS
    assert seconds - node - waited <= AIM_SECONDS
