"""Direct transfers at a facilitator that is not ours (contract 4.4, 8; F19).

It knows no keys: asked again, it refuses what it made before. So the chain says what became of a transfer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.gateway import foreign_facilitator as ways
from tests.gateway.composed import composed
from tests.gateway.foreign_facilitator import Settling
from tests.gateway.foreign_on_evm import VALID_SECONDS, ForeignOnEvm, run_foreign
from tests.gateway.test_transfer import Bank
from tests.hub.chaos import Act, run_chaos
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.x402.version1 import EvmPayload
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role

USED = "invalid_exact_evm_nonce_already_used"
ADVICE = "look at your wallet's transactions first"


@pytest.fixture
async def usual() -> Settling:
    """Sends what was not sent before; else says so, and knows nothing of whose it was."""
    in_turn = asyncio.Lock()

    async def settling(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        async with in_turn:
            if foreign.chain.is_used(payload.authorization.payer, payload.authorization.nonce):
                return ways.failure(USED)
            return ways.success(foreign, await foreign.send(payload))

    return settling


@pytest.fixture
async def foreign(embedded_chain: ChainUnderTest, usual: Settling) -> AsyncIterator[ForeignOnEvm]:
    async with run_foreign(embedded_chain, usual) as running:
        yield running


@pytest.fixture
async def bank(tmp_path: Path, foreign: ForeignOnEvm) -> AsyncIterator[Bank]:
    hub: Any = foreign
    settings: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url}
    async with (
        composed(foreign.chain.url, tmp_path / "gateway.db", **settings) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Bank(url, hub, foreign.chain, buyer, "0x" + secrets.token_hex(20))


async def test_a_payment_moves_once_however_often_it_is_asked_for(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    """Who asks while the first one's answer is on its way is refused at once."""
    transfer = bank.signed()

    async def slowly(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        answer = await usual(foreign, payload)
        await asyncio.sleep(0 if len(foreign.settles) > 1 else 1)
        return answer

    foreign.settling = slowly
    answers = await asyncio.gather(*(bank.ask(transfer, transfer) for _ in range(5)))
    answers.append(await bank.ask(transfer, transfer))
    assert {answer.status for answer in answers} <= {200, 503}
    assert answers[-1].status == 200
    assert bank.received_micro() == 10_000


@pytest.mark.parametrize("settling", [ways.error_after_sending, ways.failure_after_sending, ways.another_shape])
async def test_a_transfer_that_was_made_is_told_whatever_the_facilitator_says(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling, settling: Settling
) -> None:
    transfer = bank.signed()
    foreign.settling = settling
    first = await bank.ask(transfer, transfer)
    foreign.settling = usual
    again = await bank.ask(transfer, transfer)
    assert {first.status, again.status} <= {200, 503}
    assert (again.status, again.json()["success"]) == (200, True)
    assert len(foreign.settles) == 1
    assert bank.received_micro() == 10_000


async def test_a_success_of_a_transfer_that_is_not_on_the_chain_is_none(bank: Bank, foreign: ForeignOnEvm) -> None:
    transfer = bank.signed()
    foreign.settling = ways.says_success_and_sends_nothing
    told = asyncio.create_task(bank.ask(transfer, transfer))
    await until(lambda: len(foreign.settles) == 1)
    foreign.chain.rpc.call("evm_increaseTime", 2 * VALID_SECONDS)
    foreign.chain.rpc.call("evm_mine")
    answer = await told
    assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
    assert bank.received_micro() == 0


async def test_a_refusal_says_that_it_proves_nothing_of_an_earlier_request(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    transfer = bank.signed()
    foreign.settling = ways.refuses
    refused = await bank.ask(transfer, transfer)
    assert (refused.status, refused.error_code) == (400, "INSUFFICIENT_FUNDS")
    assert ADVICE in refused.json()["error"]["message"]
    foreign.settling = usual
    assert (await bank.ask(transfer, transfer)).status == 200
    assert bank.received_micro() == 10_000


async def test_a_transfer_that_a_stranger_made_is_refused_as_used_with_his_transaction(
    bank: Bank, foreign: ForeignOnEvm
) -> None:
    transfer = bank.signed()
    data = transfer_calldata(transfer.authorization, transfer.signature)
    receipt = await asyncio.to_thread(bank.chain.send_and_wait, bank.chain.wallets.faucet, USDC_ADDRESS, data)
    answer = await bank.ask(transfer, transfer)
    assert (answer.status, answer.error_code) == (400, "NONCE_ALREADY_USED")
    assert answer.json()["error"]["details"]["transaction"] == receipt["transactionHash"]
    assert foreign.settles == []
    assert bank.received_micro() == 10_000


@pytest.mark.parametrize("is_wallet", [False, True], ids=["of a key", "of a contract wallet"])
async def test_a_stranger_who_names_a_transfer_that_he_did_not_sign_is_told_of_no_success(
    bank: Bank, foreign: ForeignOnEvm, *, is_wallet: bool
) -> None:
    transfer = bank.signed()
    if is_wallet:
        wallet = bank.chain.plant_smart_wallet(bank.buyer.wallet.address)
        bank.chain.mint(wallet, 1_000_000)
        transfer = bank.signed(payer=wallet)
    assert (await bank.ask(transfer, transfer)).status == 200
    forged = replace(transfer, signature=bank.signed().signature)
    answer = await bank.ask(forged, forged)
    assert (answer.status, answer.error_code, answer.receipt) == (400, "NONCE_ALREADY_USED", None)
    assert len(foreign.settles) == 1
    assert bank.received_micro() == 10_000


async def test_while_no_node_answers_nothing_is_told_of_a_transfer_and_nothing_is_asked_for(
    tmp_path: Path, foreign: ForeignOnEvm
) -> None:
    hub: Any = foreign
    async with run_chaos(foreign.chain.url) as node, Buyer(derive_wallets().buyer) as buyer:
        settings: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url}
        async with composed(node.url, tmp_path / "gateway.db", **settings) as url:
            bank = Bank(url, hub, foreign.chain, buyer, "0x" + secrets.token_hex(20))
            transfer = bank.signed()
            assert (await bank.ask(transfer, transfer)).status == 200
            node.on("eth_call", Act.SERVER_ERROR)
            answer = await bank.ask(transfer, transfer)
            assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
            assert answer.json()["error"]["details"]["transaction"] == ""
            assert len(foreign.settles) == 1


async def test_a_transaction_that_the_facilitator_names_is_shown_while_nothing_else_is_known(
    bank: Bank, foreign: ForeignOnEvm
) -> None:
    async def names_one(foreign: ForeignOnEvm, _payload: EvmPayload) -> web.StreamResponse:
        body = {"success": False, "errorReason": "unexpected_settle_error", "transaction": foreign.NOBODYS}
        return web.json_response(body)

    transfer = bank.signed()
    foreign.settling = names_one
    answer = await bank.ask(transfer, transfer)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert answer.json()["error"]["details"]["transaction"] == foreign.NOBODYS
