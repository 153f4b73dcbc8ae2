"""At a facilitator that cannot confirm, a lie of one of the gateway's nodes neither pays nor voids (security A-15)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.foreign_facilitator import (
    Foreign,
    Settling,
    error_after_sending,
    says_success_and_sends_nothing,
)
from tests.gateway.foreign_on_evm import SalesOnEvm, site_on_evm
from tests.gateway.foreign_on_solana import site_on_solana
from tests.gateway.recording_target import RecordingTarget
from tests.hub.chaos import ChaosNode, run_chaos
from tests.hub.test_lying_nodes import listing
from tollkeeper.chains import quorum
from tollkeeper.core.evm.encoding import (
    AUTHORIZATION_USED_TOPIC,
    SELECTOR_AUTHORIZATION_STATE,
    TRANSFER_TOPIC,
    Authorization,
)
from tollkeeper.core.x402.version1 import EvmPayload, parse_payload
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.solana.node import SolanaNode

Shown = Callable[[str, list[Any], Any], Any]
Falsifier = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]
LOOKED_AT_SECONDS = 4  # long enough for many looks at the chain
MADE_UP = "0x" + "ab" * 32


@asynccontextmanager
async def gateway_of_two_nodes(
    directory: Path, chain: ChainUnderTest, target: RecordingTarget, needed: int
) -> AsyncIterator[tuple[SalesOnEvm, ChaosNode]]:
    """The first of the nodes lies on command."""
    async with site_on_evm(directory, chain, target) as site, run_chaos(chain.url) as node:
        networks = site.networks(node.url, chain.url)
        async with site.gateway(networks=networks, confirm_nodes=needed) as running:
            assert isinstance(running, SalesOnEvm)
            yield running, node


def answering(shown: Shown) -> Falsifier:
    """A falsifier out of what is shown of method, parameters and true result."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": shown(call["method"], call["params"], answer.get("result"))}

    return falsify


def is_state(method: str, params: list[Any]) -> bool:
    """Is the authorization's state asked for?"""
    return method == "eth_call" and params[0]["data"].startswith("0x" + SELECTOR_AUTHORIZATION_STATE.hex())


def paying(chain: ChainUnderTest, authorization: Authorization) -> Shown:
    """Shows a transfer of the facilitator's that nobody made, in a block that is really there."""

    def topic(address: str) -> str:
        return "0x" + address[2:].rjust(64, "0")

    used = [AUTHORIZATION_USED_TOPIC, topic(authorization.payer), authorization.nonce]
    moved = [TRANSFER_TOPIC, topic(authorization.payer), topic(authorization.pay_to)]
    logs = [
        {"address": USDC_ADDRESS, "topics": used, "data": "0x"},
        {"address": USDC_ADDRESS, "topics": moved, "data": f"0x{authorization.value:064x}"},
    ]

    def shown(method: str, params: list[Any], result: Any) -> Any:
        block = chain.rpc.call("eth_getBlockByNumber", "latest", False)
        place = {"transactionHash": MADE_UP, "blockHash": block["hash"], "blockNumber": block["number"]}
        match method:
            case "eth_getLogs":
                result = [logs[0] | place]
            case "eth_getTransactionReceipt":
                result = place | {"status": "0x1", "logs": logs}
            case "eth_getTransactionByHash":
                result = {"hash": MADE_UP, "from": chain.wallets.relayer.address}
            case "eth_getBlockByNumber":
                result = listing(result, MADE_UP)
            case _ if is_state(method, params):
                result = f"0x{1:064x}"
        return result

    return shown


def denying(authorization: Authorization) -> Shown:
    """Shows an authorization that nobody used, and whose time is over."""

    def shown(method: str, params: list[Any], result: Any) -> Any:
        if is_state(method, params):
            return f"0x{0:064x}"
        later = {"timestamp": hex(authorization.valid_before + 100)}
        return result | later if method == "eth_getBlockByNumber" else result

    return shown


def lying_from_then_on(node: ChaosNode, falsify: Falsifier) -> Settling:
    """A facilitator that never sends, and whose success the node vouches for once it has told it."""

    async def settling(foreign: Foreign, payload: Any) -> web.StreamResponse:
        node.falsify = falsify
        return await says_success_and_sends_nothing(foreign, payload)

    return settling


async def test_what_one_node_calls_used_is_not_sold_and_not_told_to_be_paid_anew(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with gateway_of_two_nodes(tmp_path, embedded_chain, target, 0) as (abroad, node):
        gate = await abroad.gate()
        payment, authorization = await abroad.sign(gate)
        node.falsify = answering(paying(embedded_chain, authorization))
        answer = await abroad.pay(gate, payment)
        assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
        assert (abroad.site.received_micro(), abroad.site.foreign.settles, target.requests) == (0, [], [])
        node.calm()
        assert (await abroad.present(gate, payment)).status == 200


async def assert_served_once_it_is_made(
    abroad: SalesOnEvm, liar: ChaosNode, target: RecordingTarget, gate: dict[str, Any], payment: str
) -> None:
    """While the liar alone shows the transfer the call waits; then the transfer is made."""
    calling = asyncio.create_task(abroad.pay(gate, payment))
    assert not (await asyncio.wait({calling}, timeout=LOOKED_AT_SECONDS))[0]
    assert (abroad.site.received_micro(), target.requests) == (0, [])
    liar.calm()
    payload = parse_payload(abroad.site.foreign.settles[0]["paymentPayload"]["payload"])
    assert isinstance(payload, EvmPayload)
    await abroad.site.foreign.send(payload)
    assert (await calling).status == 200


@pytest.mark.parametrize("needed", [0, 1])
async def test_a_transfer_that_one_node_made_up_serves_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, needed: int
) -> None:
    async with gateway_of_two_nodes(tmp_path, embedded_chain, target, needed) as (abroad, node):
        gate = await abroad.gate()
        payment, authorization = await abroad.sign(gate)
        abroad.site.foreign.settling = lying_from_then_on(node, answering(paying(embedded_chain, authorization)))
        if needed == 1:  # the lie is a good one
            assert (await abroad.present(gate, payment)).status == 200
            return
        await assert_served_once_it_is_made(abroad, node, target, gate, payment)


async def test_where_no_block_came_for_long_a_node_knows_as_much_as_the_one_that_lies(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quorum, "_STANDS_STILL_SECONDS", -3600)  # by any clock the newest block is old
    async with gateway_of_two_nodes(tmp_path, embedded_chain, target, 0) as (abroad, node):
        gate = await abroad.gate()
        payment, authorization = await abroad.sign(gate)
        abroad.site.foreign.settling = lying_from_then_on(node, answering(paying(embedded_chain, authorization)))
        await assert_served_once_it_is_made(abroad, node, target, gate, payment)


@pytest.mark.parametrize("needed", [0, 1])
async def test_a_transfer_that_one_node_denies_is_not_lost(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, needed: int
) -> None:
    async with gateway_of_two_nodes(tmp_path, embedded_chain, target, needed) as (abroad, node):
        gate = await abroad.gate()
        payment, authorization = await abroad.sign(gate)
        node.falsify = answering(denying(authorization))
        if needed == 1:
            assert (await abroad.present(gate, payment)).status == 402
            assert abroad.site.foreign.settles == []
            return
        calling = asyncio.create_task(abroad.present(gate, payment))
        assert not (await asyncio.wait({calling}, timeout=LOOKED_AT_SECONDS))[0]
        node.calm()
        assert (await calling).status == 200
        assert abroad.site.received_micro() == 10_000


async def test_a_transfer_that_one_node_of_three_denies_is_served_while_it_denies_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    chain = embedded_chain
    async with (
        site_on_evm(tmp_path, chain, target) as site,
        run_chaos(chain.url) as liar,
        run_chaos(chain.url) as third,
        site.gateway(networks=site.networks(liar.url, chain.url, third.url)) as abroad,
    ):
        assert isinstance(abroad, SalesOnEvm)
        gate = await abroad.gate()
        site.foreign.settling = error_after_sending
        payment, authorization = await abroad.sign(gate)
        liar.falsify = answering(denying(authorization))
        assert (await abroad.present(gate, payment)).status == 200
        assert site.received_micro() == 10_000


def unseen(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A Solana node that shows no transaction of anybody."""
    match call["method"]:
        case "getSignatureStatuses":
            return answer | {"result": answer["result"] | {"value": [None for _ in answer["result"]["value"]]}}
        case "getTransaction":
            return answer | {"result": None}
    return answer


async def test_a_payment_on_solana_that_one_node_denies_is_not_lost(tmp_path: Path, target: RecordingTarget) -> None:
    async with (
        SolanaNode() as node,
        site_on_solana(tmp_path, node, target) as site,
        run_chaos(node.url) as liar,
        site.gateway(networks=site.networks(liar.url, node.url)) as abroad,
    ):
        gate = await abroad.gate()
        payment = await abroad.payment(gate)
        liar.falsify = unseen
        calling = asyncio.create_task(abroad.present(gate, payment))
        assert not (await asyncio.wait({calling}, timeout=LOOKED_AT_SECONDS))[0]
        liar.calm()
        assert (await calling).status == 200
        assert site.received_micro() == 10_000


async def test_a_payment_on_solana_that_one_node_of_three_denies_is_served_while_it_denies_it(
    tmp_path: Path, target: RecordingTarget
) -> None:
    async with (
        SolanaNode() as node,
        site_on_solana(tmp_path, node, target) as site,
        run_chaos(node.url) as liar,
        run_chaos(node.url) as third,
        site.gateway(networks=site.networks(liar.url, node.url, third.url)) as abroad,
    ):
        gate = await abroad.gate()
        payment = await abroad.payment(gate)
        liar.falsify = unseen
        assert (await abroad.present(gate, payment)).status == 200
        assert site.received_micro() == 10_000
