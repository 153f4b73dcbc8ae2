"""Every node of a network asked by itself: in step with the others and with the clock, for batches and for logs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Rpc
from tollkeeper.core.evm.encoding import TRANSFER_TOPIC
from tollkeeper.core.networks import Family

if TYPE_CHECKING:
    from tollkeeper.chains.nodes import Node
    from tollkeeper.serving.config.findings import Findings
    from tollkeeper.settings.model import NetworkSettings

_BEHIND_BLOCKS: Final = {Family.EVM: 15, Family.SOLANA: 75}  # half a minute
_OLD_SECONDS: Final = 120
_AHEAD_SECONDS: Final = 10
_BATCH: Final = 50
_LOG_BLOCKS: Final = 1000
_NOBODY: Final = "0x" + "0" * 63 + "1"


async def examine_nodes(network: NetworkSettings, found: Findings) -> None:
    """Ask every node of a network, and compare what they say."""
    name, family = f"networks.{network.network.name}.rpc_url", network.network.family
    rpc = Rpc(network.rpc_urls)
    try:
        question = ("eth_getBlockByNumber", ["latest", False]) if family is Family.EVM else ("getSlot", [])
        heads = {node: _head_of(answer) for node, answer in await rpc.probe([question])}
        highest = max((head for head, _ in heads.values() if head is not None), default=None)
        for node, (head, at_seconds) in heads.items():
            if head is None or highest is None:
                continue  # `config check` says that it does not answer
            behind = highest - head
            if behind > _BEHIND_BLOCKS[family]:
                problem = f"node {node.position} is {behind} blocks behind the others"
                found.warn(name, problem, "name another one, or put it last")
            if at_seconds is not None:
                _judge_clock(name, node, at_seconds, found)
            if family is Family.EVM:
                await _examine_limits(rpc, node, network, head, found)
        if highest is not None:
            found.good.append(f"networks.{network.network.name}: its nodes were asked up to block {highest}")
    finally:
        await rpc.close()


def _head_of(answer: Any) -> tuple[int | None, int | None]:  # noqa: ANN401 - JSON, or why there is none
    """Return the newest block's number and time; None where the node did not tell."""
    if isinstance(answer, RpcUnavailable) or isinstance(answer[0], RpcError):
        return None, None
    head = answer[0]
    try:
        return (head, None) if isinstance(head, int) else (int(head["number"], 16), int(head["timestamp"], 16))
    except (KeyError, TypeError, ValueError):
        return None, None


def _judge_clock(name: str, node: Node, at_seconds: int, found: Findings) -> None:
    """Compare the newest block's time with this machine's clock: one of both is wrong where they are apart."""
    age = time.time() - at_seconds
    if age < -_AHEAD_SECONDS:
        problem = f"this machine's clock is {-age:.0f} s behind the newest block of node {node.position}"
        found.fail("clock", problem, "set it (NTP): else good payments are refused")
    elif age > _OLD_SECONDS:
        problem = f"the newest block of node {node.position} is {age:.0f} s old"
        remedy = "name a node that is in step; where it is, this machine's clock is ahead: set it (NTP)"
        found.warn(name, problem, remedy)


async def _examine_limits(rpc: Rpc, node: Node, network: NetworkSettings, head: int, found: Findings) -> None:
    """Ask for a batch and for the logs of many blocks, as settlements and searches for payments do."""
    name = f"networks.{network.network.name}.rpc_url"
    logs = {
        "address": network.network.usdc.address,
        "topics": [TRANSFER_TOPIC, _NOBODY],
        "fromBlock": hex(max(0, head - _LOG_BLOCKS)),
        "toBlock": hex(head),
    }
    for what, calls, cost in (
        (f"{_BATCH} questions in one request", [("eth_chainId", [])] * _BATCH, "settlements take longer"),
        (f"the logs of {_LOG_BLOCKS} blocks", [("eth_getLogs", [logs])], "looking for a payment takes longer"),
    ):
        try:
            answers = await rpc.ask_of(node, calls)
        except RpcUnavailable as error:
            refusal = str(error)
        else:
            refusal = next((one.message for one in answers if isinstance(one, RpcError)), "")
        if refusal:
            problem = f"node {node.position} does not answer {what} ({refusal}), and {cost}"
            found.warn(name, problem, "take a larger plan, or name another node first")
