"""A node that takes a transaction and loses it costs its buyer two seconds, and not its sale."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.solana_node import WALLETS
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.hub_under_test import HubUnderTest, new_payment
from tests.hub.solana_hub import hub_of
from tollkeeper.core.evm.encoding import keccak256
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.sandbox.solana.node import SolanaNode


def named(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """The node names the transaction that it was given, and forgets it."""
    if answer.get("result") is not None:
        return answer
    if call["method"] == "eth_sendRawTransaction":
        return answer | {"result": "0x" + keccak256(bytes.fromhex(call["params"][0][2:])).hex()}
    if call["method"] == "sendTransaction":
        return answer | {"result": encode(read_transaction(base64.b64decode(call["params"][0])).signatures[0])}
    return answer


async def test_what_the_only_node_lost_is_sent_again_while_its_buyer_waits(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on("eth_sendRawTransaction", Act.SWALLOW, times=1)
    chaos.falsify = named
    answer = await chaos_hub.settle(new_payment(embedded_chain))
    assert answer.body["success"] is True
    assert chaos.calls["eth_sendRawTransaction"] == 2


@pytest.mark.parametrize("lost_by", [1, 2, 3])
async def test_what_some_of_three_nodes_lost_is_sent_again_to_all(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, lost_by: int
) -> None:
    for node in nodes[:lost_by]:
        node.on("eth_sendRawTransaction", Act.SWALLOW, times=1)
        node.falsify = named
    answer = await hub_of_three.settle(new_payment(embedded_chain))
    assert answer.body["success"] is True


@pytest.mark.parametrize("act", [Act.HANG, Act.CUT, Act.SERVER_ERROR])
async def test_what_the_first_node_lost_is_sent_again_though_the_one_that_is_asked_for_it_says_nothing(
    hub_of_three: HubUnderTest, nodes: list[ChaosNode], embedded_chain: ChainUnderTest, act: Act
) -> None:
    nodes[0].on("eth_sendRawTransaction", Act.SWALLOW, times=1)
    nodes[0].falsify = named
    nodes[1].on("eth_getTransactionByHash", act)
    with capture_logs() as lines:
        answer = await hub_of_three.settle(new_payment(embedded_chain))
    assert answer.body["success"] is True
    assert "sent_again" in [line["event"] for line in lines]


async def test_what_was_seen_is_not_sent_again(hub: HubUnderTest, embedded_chain: ChainUnderTest) -> None:
    assert (await hub.settle(new_payment(embedded_chain))).body["success"] is True
    assert hub.account.chain._rebroadcast._awaited == {}  # noqa: SLF001 - nothing tells it from outside


async def test_on_solana_too_it_is_sent_again_by_a_hub_with_one_node(tmp_path: Path) -> None:
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as chain,
        run_chaos(chain.url) as node,
        hub_of(tmp_path, chain, rpc_url=node.url) as world,
    ):
        node.on("sendTransaction", Act.SWALLOW, times=1)
        node.falsify = named
        assert (await world.settle(world.payment())).body["success"] is True
        assert node.calls["sendTransaction"] == 2
