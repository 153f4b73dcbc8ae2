"""Direct transfers, and the fee for them, at a facilitator that is not ours (contract 4.4, 8; F19).

It knows no keys: asked again, it refuses what it made before. So the chain says what became of a transfer, and the fee
is given back by proof alone.
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
from tests.gateway.test_transfer_fee import FEE_MICRO, OPERATOR, ask, charging, moved, new_fee
from tests.hub.chaos import Act, run_chaos
from tollkeeper.core.wire import EvmPayload
from tollkeeper.gateway import chain_proofs
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings import Role

USED = "invalid_exact_evm_nonce_already_used"


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


def transfers_only(settling: Settling, usual: Settling) -> Settling:
    """Fees are settled as ever."""

    async def answer(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        is_fee = payload.authorization.pay_to == OPERATOR
        return await (usual if is_fee else settling)(foreign, payload)

    return answer


@pytest.fixture
async def foreign(embedded_chain: ChainUnderTest, usual: Settling) -> AsyncIterator[ForeignOnEvm]:
    async with run_foreign(embedded_chain, usual) as running:
        yield running


@pytest.fixture
async def bank(tmp_path: Path, foreign: ForeignOnEvm) -> AsyncIterator[Bank]:
    hub: Any = foreign
    async with charging(foreign.chain, tmp_path, foreign.url) as url, Buyer(derive_wallets().buyer) as buyer:
        yield Bank(url, hub, foreign.chain, buyer, "0x" + secrets.token_hex(20))


async def test_a_fee_pays_for_one_transfer_however_often_its_pair_is_asked_for(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    """Who asks while the first one's answer is on its way is refused at once."""
    fee, transfer = await new_fee(bank), bank.signed()

    async def slowly(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        answer = await usual(foreign, payload)
        await asyncio.sleep(0 if len(foreign.settles) > 2 else 1)
        return answer

    foreign.settling = transfers_only(slowly, usual)
    answers = await asyncio.gather(*(ask(bank, transfer, fee) for _ in range(5)))
    answers.append(await ask(bank, transfer, fee))
    assert {answer.status for answer in answers} <= {200, 503}
    assert answers[-1].status == 200
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_one_fee_at_a_time_pays_for_a_transfer(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facilitator calls it valid while it is making it, so that another fee would be taken for it."""
    monkeypatch.setattr(chain_proofs, "_WAIT_SECONDS", 0.5)
    first, second, transfer = await new_fee(bank), await new_fee(bank), bank.signed()
    kept: list[EvmPayload] = []

    async def keeps(_foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        kept.append(payload)
        return ways.failure("unexpected_settle_error")

    foreign.settling = transfers_only(keeps, usual)
    pending = await ask(bank, transfer, first)
    assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
    refused = await ask(bank, transfer, second)
    assert (refused.status, refused.error_code) == (409, "CONFLICT")
    foreign.settling = usual
    await foreign.send(kept[0])
    assert moved(bank) == (10_000, FEE_MICRO)
    assert (await ask(bank, transfer, first)).status == 200
    assert (await ask(bank, transfer, second)).status == 400  # it is made
    assert (await ask(bank, bank.signed(), second)).status == 200
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_of_two_fees_at_the_same_time_one_pays_for_a_transfer_and_the_other_stays_a_credit(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    transfer = bank.signed()
    fees = [await new_fee(bank) for _ in range(3)]
    both = asyncio.Barrier(len(fees))

    async def together(foreign: ForeignOnEvm, payload: EvmPayload) -> web.StreamResponse:
        if payload.authorization.pay_to == OPERATOR:
            await both.wait()
        return await usual(foreign, payload)

    foreign.settling = together
    answers = await asyncio.gather(*(ask(bank, transfer, fee) for fee in fees))
    assert sorted(answer.status for answer in answers) == [200, 409, 409]
    foreign.settling = usual
    others = [fee for fee, answer in zip(fees, answers, strict=True) if answer.status == 409]
    assert [(await ask(bank, bank.signed(), fee)).status for fee in others] == [200, 200]
    assert moved(bank) == (30_000, 3 * FEE_MICRO)


@pytest.mark.parametrize("settling", [ways.error_after_sending, ways.failure_after_sending, ways.another_shape])
async def test_a_transfer_that_was_made_is_told_whatever_the_facilitator_says_and_its_fee_is_spent(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling, settling: Settling
) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    foreign.settling = transfers_only(settling, usual)
    first = await ask(bank, transfer, fee)
    foreign.settling = usual
    again = await ask(bank, transfer, fee)
    assert {first.status, again.status} <= {200, 503}
    assert (again.status, again.json()["success"]) == (200, True)
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_success_of_a_transfer_that_is_not_on_the_chain_is_none(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    foreign.settling = transfers_only(ways.says_success_and_sends_nothing, usual)
    told = asyncio.create_task(ask(bank, transfer, fee))
    await until(lambda: len(foreign.settles) == 2)  # of the fee and of the transfer
    await asyncio.sleep(1)
    foreign.chain.rpc.call("evm_increaseTime", 2 * VALID_SECONDS)
    foreign.chain.rpc.call("evm_mine")
    answer = await told
    assert (answer.status, answer.error_code) == (400, "PAYMENT_EXPIRED")
    foreign.settling = usual
    assert moved(bank) == (0, FEE_MICRO)
    assert (await ask(bank, bank.signed(), fee)).status == 200  # by proof: the fee is a credit
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_refusal_gives_no_fee_back_while_the_transfer_may_be_made(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    foreign.settling = transfers_only(ways.refuses, usual)
    refused = await ask(bank, transfer, fee)
    assert (refused.status, refused.error_code) == (400, "INSUFFICIENT_FUNDS")
    assert (await ask(bank, bank.signed(), fee)).status == 402
    foreign.settling = usual
    assert (await ask(bank, transfer, fee)).status == 200
    assert moved(bank) == (10_000, FEE_MICRO)


def says(reason: str) -> Settling:
    """Sends nothing, and says why."""

    async def answer(_foreign: ForeignOnEvm, _payload: EvmPayload) -> web.StreamResponse:
        return ways.failure(reason)

    answer.__name__ = reason
    return answer


async def says_nothing(_foreign: ForeignOnEvm, _payload: EvmPayload) -> web.StreamResponse:
    """For so long that the chain is looked at without its answer."""
    await asyncio.sleep(5)
    return ways.failure("invalid_exact_evm_payload_signature")


@pytest.fixture
async def free(tmp_path: Path, foreign: ForeignOnEvm) -> AsyncIterator[Bank]:
    """Without a fee."""
    hub: Any = foreign
    settings: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url}
    async with (
        composed(foreign.chain.url, tmp_path / "gateway.db", **settings) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Bank(url, hub, foreign.chain, buyer, "0x" + secrets.token_hex(20))


@pytest.mark.parametrize("is_wallet", [False, True], ids=["of a key", "of a contract wallet"])
@pytest.mark.parametrize(
    "settling",
    [says("invalid_exact_evm_payload_signature"), says("insufficient_funds"), says(USED), says_nothing],
)
async def test_a_stranger_who_names_a_transfer_that_he_did_not_sign_is_not_told_that_it_was_made(
    free: Bank, foreign: ForeignOnEvm, settling: Settling, *, is_wallet: bool
) -> None:
    transfer = free.signed()
    if is_wallet:
        wallet = free.chain.plant_smart_wallet(free.buyer.wallet.address)
        free.chain.mint(wallet, 1_000_000)
        transfer = free.signed(payer=wallet)
    assert (await free.ask(transfer, transfer)).status == 200
    foreign.settling = settling
    forged = replace(transfer, signature=free.signed().signature)
    answer = await free.ask(forged, forged)
    assert (answer.status, answer.error_code) == (400, "INVALID_SIGNATURE")
    error = answer.json()["error"]
    assert (error["details"], answer.receipt) == ({"reason": "invalid_exact_evm_payload_signature"}, None)
    assert "look at your wallet's transactions first" in error["message"]
    assert (await free.ask(transfer, transfer)).status == 200  # who signed it is told
    assert free.received_micro() == 10_000


async def test_the_fee_of_a_transfer_that_nobody_signed_is_a_credit_once_it_can_never_be_made(
    bank: Bank, foreign: ForeignOnEvm
) -> None:
    """Its facilitator called it valid, or it had not been charged."""
    fee, transfer = await new_fee(bank), bank.signed()
    forged = replace(transfer, signature=bank.signed().signature)
    for _ in range(2):
        answer = await ask(bank, forged, fee)
        assert (answer.status, answer.error_code) == (400, "INVALID_SIGNATURE")
    assert (await ask(bank, bank.signed(), fee)).status == 402
    foreign.chain.rpc.call("evm_increaseTime", 2 * VALID_SECONDS)
    foreign.chain.rpc.call("evm_mine")
    answer = await ask(bank, forged, fee)
    assert (answer.status, answer.error_code) == (400, "INVALID_SIGNATURE")
    assert (await ask(bank, bank.signed(), fee)).status == 200
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_while_no_node_judges_a_signature_nothing_is_told_of_its_transfer(
    tmp_path: Path, foreign: ForeignOnEvm
) -> None:
    hub: Any = foreign
    async with run_chaos(foreign.chain.url) as node, Buyer(derive_wallets().buyer) as buyer:
        settings: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url}
        async with composed(node.url, tmp_path / "gateway.db", **settings) as url:
            bank = Bank(url, hub, foreign.chain, buyer, "0x" + secrets.token_hex(20))
            transfer = bank.signed()
            assert (await bank.ask(transfer, transfer)).status == 200
            forged = replace(transfer, signature=bank.signed().signature)
            node.on("eth_call", Act.SERVER_ERROR)
            answer = await bank.ask(forged, forged)
            assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
            assert answer.json()["error"]["details"]["transaction"] == ""


async def test_a_transaction_that_the_facilitator_names_is_shown_while_nothing_else_is_known(
    bank: Bank, foreign: ForeignOnEvm, usual: Settling
) -> None:
    async def names_one(foreign: ForeignOnEvm, _payload: EvmPayload) -> web.StreamResponse:
        body = {"success": False, "errorReason": "unexpected_settle_error", "transaction": foreign.NOBODYS}
        return web.json_response(body)

    fee, transfer = await new_fee(bank), bank.signed()
    foreign.settling = transfers_only(names_one, usual)
    answer = await ask(bank, transfer, fee)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert answer.json()["error"]["details"]["transaction"] == foreign.NOBODYS


async def test_no_second_fee_is_taken_for_a_transfer_that_was_made(bank: Bank) -> None:
    """A client whose answer was lost begins anew, with a fresh fee; the facilitator calls whatever is signed valid."""
    first, second, transfer = await new_fee(bank), await new_fee(bank), bank.signed()
    assert (await ask(bank, transfer, first)).status == 200
    refused = await ask(bank, transfer, second)
    assert (refused.status, refused.error_code) == (400, "NONCE_ALREADY_USED")
    assert len(refused.json()["error"]["details"]["transaction"]) == 66
    assert moved(bank) == (10_000, FEE_MICRO)
    assert (await ask(bank, transfer, first)).status == 200
    assert (await ask(bank, bank.signed(), second)).status == 200
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_a_caller_s_key_gives_one_transfer_also_where_there_is_no_fee(
    tmp_path: Path, foreign: ForeignOnEvm
) -> None:
    """A client that begins anew with a fresh signature does not pay twice."""
    hub: Any = foreign
    chain, key = foreign.chain, {"Idempotency-Key": "own"}
    gateway = composed(chain.url, tmp_path / "free.db", role=Role.GATEWAY, hub_url=foreign.url)
    async with gateway as url, Buyer(derive_wallets().buyer) as buyer:
        bank = Bank(url, hub, chain, buyer, "0x" + secrets.token_hex(20))
        first, anew = bank.signed(), bank.signed()
        for _ in range(2):
            assert (await bank.ask(first, first, key)).status == 200
            refused = await bank.ask(anew, anew, key)
            assert (refused.status, refused.error_code) == (409, "CONFLICT")
        assert bank.received_micro() == 10_000
        assert (await bank.ask(anew, anew, {"Idempotency-Key": "other"})).status == 200
        assert bank.received_micro() == 20_000
