"""A fee for direct transfers: charged once for each, and kept as a credit where the transfer fails (contract 8)."""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.edge.test_calls import until
from tests.gateway.composed import composed, settings_for
from tests.gateway.hostile_hub import (
    Forward,
    HostileHub,
    Settling,
    cut,
    lose_answer,
    pass_on,
    run_hostile_hub,
    says,
)
from tests.gateway.test_honouring import relay
from tests.gateway.test_transfer import PATH, Bank
from tollkeeper.core.differences import Difference
from tollkeeper.core.evm import checksum_address, transfer_calldata
from tollkeeper.core.keyring import Secret
from tollkeeper.core.wire import EvmPayload, Payment, PaymentKey, encode_payment_header, payment_body
from tollkeeper.gateway.buying import Presented
from tollkeeper.gateway.transfer_fee import FeeCharges, TransferFees
from tollkeeper.gateway.transfer_keys import TransferKeys
from tollkeeper.hub.lanes import LaneKeeper
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.genesis import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.hands import honour_payment
from tollkeeper.serving.inspection import inspect_books
from tollkeeper.serving.reconciling import compare_with_chain
from tollkeeper.settings import Role
from tollkeeper.storage import StorageError, open_database

OPERATOR = "0x" + "99" * 20
FEE_MICRO = 2_000


def charging(chain: ChainUnderTest, directory: Path, hub_url: str) -> AbstractAsyncContextManager[str]:
    return composed(
        chain.url,
        directory / "gateway.db",
        role=Role.GATEWAY,
        hub_url=hub_url,
        transfer_fee_micro=FEE_MICRO,
        default_payment_address=OPERATOR,
    )


@pytest.fixture
async def bank(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Bank]:
    chain_url = embedded_chain.url
    async with (
        composed(chain_url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        charging(embedded_chain, tmp_path, hostile.url) as gateway_url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Bank(gateway_url, hostile, embedded_chain, buyer, "0x" + secrets.token_hex(20))


async def ask(
    bank: Bank,
    transfer: EvmPayload,
    fee: str | None = None,
    headers: dict[str, str] | None = None,
    **fields: object,
) -> Answer:
    payload = payment_body(Payment(1, "exact", "base-sepolia", transfer))["payload"]
    body = {"network": "base-sepolia", **payload, **fields}
    paid = {} if fee is None else {"X-Payment": fee}
    return await bank.buyer.ask("POST", bank.gateway_url + PATH, body=body, headers={**paid, **(headers or {})})


async def new_fee(bank: Bank) -> str:
    return bank.buyer.sign((await ask(bank, bank.signed())).json())


GONE = json.dumps({"error": {"type": "payment", "code": "INSUFFICIENT_FUNDS", "message": "gone"}})
AWAY = json.dumps({"error": {"type": "payment", "code": "INVALID_NETWORK", "message": "not settled at the moment"}})
BUSY = json.dumps({"error": {"type": "server", "code": "UNAVAILABLE", "message": "busy"}})


TAKEN = json.dumps({"error": {"type": "validation", "code": "CONFLICT", "message": "another request's"}})


def transfers_only(settling: Settling) -> Settling:
    """Fees are settled as ever."""

    async def answer(request: web.Request, forward: Forward) -> web.StreamResponse:
        return await (settling if request.path == "/transfer" else pass_on)(request, forward)

    return answer


def rows_of(directory: Path, statement: str) -> list[tuple[object, ...]]:
    """What a statement finds, or changes, in the gateway's books."""
    with closing(sqlite3.connect(directory / "gateway.db", timeout=20)) as books, books:
        return books.execute(statement).fetchall()


def moved(bank: Bank) -> tuple[int, int]:
    """What the recipient and the operator got."""
    return bank.received_micro(), bank.chain.balance(OPERATOR)


async def test_the_402_asks_for_the_fee_and_the_bodys_own_transfer_is_made(bank: Bank) -> None:
    transfer = bank.signed(value=25_000)
    asked = await ask(bank, transfer)
    assert asked.status == 402
    (requirements,) = asked.json()["accepts"]
    assert (requirements["payTo"], requirements["maxAmountRequired"]) == (checksum_address(OPERATOR), "2000")
    assert moved(bank) == (0, 0)
    answer = await ask(bank, transfer, bank.buyer.sign(asked.json()))
    assert (answer.status, answer.json()["success"], answer.json()["amount"]) == (200, True, "25000")
    assert answer.receipt is not None
    assert answer.receipt["transaction"] == answer.json()["transaction"]
    assert moved(bank) == (25_000, FEE_MICRO)


async def test_a_fee_pays_for_one_transfer_and_the_same_one_asked_again_costs_nothing(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    first = await ask(bank, transfer, fee)
    again = await ask(bank, transfer, fee)
    assert (first.status, again.status) == (200, 200)
    assert again.json()["transaction"] == first.json()["transaction"]
    other = await ask(bank, bank.signed(), fee)
    assert (other.status, other.error_code) == (402, "CREDITS_EXHAUSTED")
    assert other.json()["accepts"][0]["maxAmountRequired"] == "2000"
    assert moved(bank) == (10_000, FEE_MICRO)


async def ask_while_nothing_is_mined(bank: Bank, transfer: EvmPayload, fee: str) -> list[Answer]:
    """First without `confirm` and then with it, once the fee is paid."""
    bank.hub.settling = transfers_only(says(503, BUSY))
    assert (await ask(bank, transfer, fee, confirm=False)).status == 503
    bank.hub.settling = pass_on
    bank.chain.rpc.call("evm_setAutomine", False)
    try:
        return [
            await ask(bank, transfer, fee, {"Prefer": "wait=0"}, confirm=False),
            await ask(bank, transfer, fee, {"Prefer": "wait=0"}, confirm=True),
        ]
    finally:
        bank.chain.rpc.call("evm_setAutomine", True)
        bank.chain.rpc.call("evm_mine")


@pytest.mark.parametrize("confirm", [False, True])
async def test_a_transfer_is_told_whichever_confirm_it_is_asked_again_with(bank: Bank, *, confirm: bool) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    first = await ask(bank, transfer, fee, confirm=confirm)
    again = [await ask(bank, transfer, fee, confirm=other) for other in (not confirm, confirm)]
    assert [(one.status, one.json().get("transaction")) for one in again] == [(200, first.json()["transaction"])] * 2
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_transfer_that_is_not_mined_is_no_success_for_who_asks_again_with_confirm(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    early = await ask_while_nothing_is_mined(bank, transfer, fee)
    assert [(one.status, one.error_code) for one in early] == [(200, None), (503, "SETTLEMENT_PENDING")]
    async with asyncio.timeout(30):
        while (done := await ask(bank, transfer, fee, confirm=True)).status != 200:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.2)
    assert done.json()["transaction"] == early[0].json()["transaction"]
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_transfer_whose_fee_was_given_back_is_made_for_another_one(bank: Bank) -> None:
    first, second, transfer = await new_fee(bank), await new_fee(bank), bank.signed()
    bank.hub.settling = transfers_only(says(503, BUSY))
    assert (await ask(bank, transfer, first)).status == 503
    taken = await ask(bank, transfer, second)
    assert (taken.status, taken.error_code) == (409, "CONFLICT")
    bank.hub.settling = transfers_only(says(400, GONE))
    assert (await ask(bank, transfer, first)).status == 400
    bank.hub.settling = pass_on
    assert (await ask(bank, transfer, second)).status == 200
    assert (await ask(bank, bank.signed(), first)).status == 200
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_who_is_about_to_charge_what_another_request_was_given_back_charges_it_anew(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pair twice at a time, of which the second one has yet to spend the fee when the first one failed."""
    fee, transfer = await new_fee(bank), bank.signed()
    usual, held, given_back = TransferFees.charge, asyncio.Event(), asyncio.Event()

    async def late(self: TransferFees, network: str, presented: Presented, token: str, call_id: str) -> None:
        if not given_back.is_set():
            held.set()
            await given_back.wait()
        await usual(self, network, presented, token, call_id)

    monkeypatch.setattr(TransferFees, "charge", late)
    second = asyncio.create_task(ask(bank, transfer, fee))
    await held.wait()
    monkeypatch.setattr(TransferFees, "charge", usual)
    bank.hub.settling = transfers_only(says(400, GONE))
    assert (await ask(bank, transfer, fee)).status == 400
    bank.hub.settling = pass_on
    given_back.set()
    answer = await second
    assert (answer.status, answer.json().get("success")) == (200, True)
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)


async def asked_twice_at_once(
    bank: Bank, transfer: EvmPayload, fee: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[asyncio.Task[Answer]], list[asyncio.Event]]:
    """One pair, which is charged, twice at a time; neither holds its transfer before its turn has come."""
    usual, turns, waiting = TransferKeys.hold, [asyncio.Event(), asyncio.Event()], asyncio.Semaphore(0)
    places = iter(turns)

    async def late(self: TransferKeys, transfer: PaymentKey, call_id: str, is_charged: Any) -> None:
        turn = next(places)
        waiting.release()
        await turn.wait()
        await usual(self, transfer, call_id, is_charged)

    monkeypatch.setattr(TransferKeys, "hold", late)
    pair = []
    for _ in turns:
        pair.append(asyncio.create_task(ask(bank, transfer, fee)))
        await waiting.acquire()
    monkeypatch.setattr(TransferKeys, "hold", usual)
    return pair, turns


async def test_who_finds_his_fee_given_back_to_another_request_of_his_pair_is_charged_it_anew(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    pair, turns = await asked_twice_at_once(bank, transfer, fee, monkeypatch)
    bank.hub.settling = transfers_only(says(400, GONE))
    turns[0].set()
    refused = await pair[0]
    assert (refused.status, refused.error_code) == (400, "INSUFFICIENT_FUNDS")
    bank.hub.settling = pass_on
    turns[1].set()
    assert (await pair[1]).status == 200
    assert moved(bank) == (10_000, FEE_MICRO)
    assert (await ask(bank, bank.signed(), fee)).status == 402


async def test_who_finds_his_fee_given_back_when_the_other_one_lets_go_of_his_transfer_is_not_served_for_nothing(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pair twice at a time, beside another fee for the same transfer, which is refused in the end."""
    first, second, transfer = await new_fee(bank), await new_fee(bank), bank.signed()
    pair, turns = await asked_twice_at_once(bank, transfer, first, monkeypatch)
    refusing, is_asked = asyncio.Event(), asyncio.Event()

    async def refuse(request: web.Request, forward: Forward) -> web.StreamResponse:
        is_asked.set()
        await refusing.wait()
        return await says(400, GONE)(request, forward)

    bank.hub.settling = transfers_only(refuse)
    other = asyncio.create_task(ask(bank, transfer, second))
    await is_asked.wait()
    turns[0].set()
    assert (await pair[0]).status == 409
    refusing.set()
    assert (await other).status == 400
    bank.hub.settling = pass_on
    turns[1].set()
    assert (await pair[1]).status == 200
    assert moved(bank) == (10_000, 2 * FEE_MICRO)
    assert [(await ask(bank, bank.signed(), fee)).status for fee in (first, second)] == [402, 200]
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_a_fee_that_has_taken_its_transfer_meanwhile_is_not_given_back_for_the_other_one(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pair twice at a time: the first is to give it back when the other fee lets go, and the second takes over."""
    first, second, transfer = await new_fee(bank), await new_fee(bank), bank.signed()
    asked, may_go = [asyncio.Event(), asyncio.Event()], [asyncio.Event(), asyncio.Event()]
    turns = iter(((asked[0], may_go[0], says(400, GONE)), (asked[1], may_go[1], pass_on)))

    async def in_turn(request: web.Request, forward: Forward) -> web.StreamResponse:
        is_asked, goes, then = next(turns)
        is_asked.set()
        await goes.wait()
        return await then(request, forward)

    usual, gives, may_give = FeeCharges.give_back, asyncio.Event(), asyncio.Event()

    async def late(self: FeeCharges, call_id: str, status: int, **said: Any) -> None:
        if status == 409:
            gives.set()
            await may_give.wait()
        await usual(self, call_id, status, **said)

    is_charged_once = asyncio.Semaphore(0)
    hold, may_hold = TransferKeys.hold, asyncio.Event()

    async def later(self: TransferKeys, transfer: PaymentKey, call_id: str, is_charged: Any) -> None:
        is_charged_once.release()
        await may_hold.wait()
        await hold(self, transfer, call_id, is_charged)

    bank.hub.settling = transfers_only(in_turn)
    monkeypatch.setattr(FeeCharges, "give_back", late)
    monkeypatch.setattr(TransferKeys, "hold", later)
    pair = [asyncio.create_task(ask(bank, transfer, first))]
    await is_charged_once.acquire()
    monkeypatch.setattr(TransferKeys, "hold", hold)
    other = asyncio.create_task(ask(bank, transfer, second))
    await asked[0].wait()
    may_hold.set()
    await gives.wait()
    may_go[0].set()
    assert (await other).status == 400
    pair.append(asyncio.create_task(ask(bank, transfer, first)))
    await asked[1].wait()
    may_give.set()
    assert (await pair[0]).status == 409
    may_go[1].set()
    assert (await pair[1]).status == 200
    bank.hub.settling = pass_on
    assert [(await ask(bank, bank.signed(), fee)).status for fee in (first, second)] == [402, 200]
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_another_signature_of_the_same_transfer_learns_nothing_and_takes_no_fee_back(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    assert (await ask(bank, transfer, fee)).status == 200
    bank.hub.settling = transfers_only(says(409, TAKEN))
    for confirm in (False, True):
        refused = await ask(bank, transfer, fee, confirm=confirm)
        assert (refused.status, refused.error_code) == (409, "CONFLICT")
    bank.hub.settling = pass_on
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)


@pytest.mark.parametrize("spoiled", ["signature", "value"])
async def test_another_signature_takes_no_fee_back_while_the_transfer_is_under_way(bank: Bank, spoiled: str) -> None:
    """The hub knows nothing of the transfer yet, and refuses the other one: nothing follows for what the fee is for."""
    fee, transfer = await new_fee(bank), bank.signed()
    held, refused = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        held.set()
        await refused.wait()
        return await forward()

    bank.hub.settling = transfers_only(late)
    first = asyncio.create_task(ask(bank, transfer, fee))
    await held.wait()
    bank.hub.settling = pass_on
    other = replace(transfer, signature=bank.signed().signature)
    if spoiled == "value":
        other = bank.signed(nonce=transfer.authorization.nonce, value=2**100)
    answer = await ask(bank, other, fee)
    refused.set()
    assert (await first).status == 200
    assert (answer.status, answer.error_code) == (409, "CONFLICT")
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_database_that_fails_gives_no_fee_back_while_its_transfer_is_under_way(
    bank: Bank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again before the first answer: nobody knows then whether the transfer is held."""
    fee, transfer = await new_fee(bank), bank.signed()
    asked, may_go = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        asked.set()
        await may_go.wait()
        return await forward()

    async def fail(*_: object) -> None:
        raise StorageError("the disk is full")

    bank.hub.settling = transfers_only(late)
    first = asyncio.create_task(ask(bank, transfer, fee))
    await asked.wait()
    with monkeypatch.context() as failing:
        failing.setattr(TransferKeys, "hold", fail)
        again = await ask(bank, transfer, fee)
    assert (again.status, again.error_code) == (503, "UNAVAILABLE")
    other = await ask(bank, bank.signed(), fee)
    may_go.set()
    assert ((await first).status, other.status) == (200, 402)
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_of_many_transfers_at_once_with_one_fee_one_is_made(bank: Bank) -> None:
    fee = await new_fee(bank)
    answers = await asyncio.gather(*(ask(bank, bank.signed(), fee) for _ in range(20)))
    assert sorted(answer.status for answer in answers) == [200] + [402] * 19
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_the_same_pair_at_once_is_one_transfer_for_one_fee_and_everybody_is_told_so(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    answers = await asyncio.gather(*(ask(bank, transfer, fee) for _ in range(8)))
    assert [answer.status for answer in answers] == [200] * 8, [answer.body for answer in answers]
    assert len({answer.json()["transaction"] for answer in answers}) == 1
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_pair_whose_verification_took_longer_than_the_same_one_s_transfer_is_told_of_that(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    held, made = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        held.set()
        await made.wait()
        return await forward()

    bank.hub.verifying = late
    first = asyncio.create_task(ask(bank, transfer, fee))
    await held.wait()
    bank.hub.verifying = pass_on
    assert (await ask(bank, transfer, fee)).status == 200
    made.set()
    answer = await first
    assert (answer.status, answer.json()["success"]) == (200, True)
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_refusal_names_the_transaction_that_used_the_transfer(bank: Bank) -> None:
    transfer = bank.signed()
    made = await ask(bank, transfer, await new_fee(bank))
    refused = await ask(bank, transfer, await new_fee(bank))
    assert (refused.status, refused.error_code) == (400, "NONCE_ALREADY_USED")
    assert refused.json()["error"]["details"]["transaction"] == made.json()["transaction"]
    assert "before you sign another" in refused.json()["error"]["message"]
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_transfer_that_would_be_refused_costs_no_fee(bank: Bank) -> None:
    fee = await new_fee(bank)
    expired = bank.signed(valid_before=bank.chain.now() - 10)
    refused = await ask(bank, expired, fee)
    assert (refused.status, refused.error_code) == (400, "PAYMENT_EXPIRED")
    assert moved(bank) == (0, 0)
    assert (await ask(bank, bank.signed(), fee)).status == 200


async def test_a_transfer_to_the_operator_does_not_pay_for_itself(bank: Bank) -> None:
    transfer = bank.signed(value=25_000, pay_to=OPERATOR)
    refused = await ask(bank, transfer, encode_payment_header(Payment(1, "exact", "base-sepolia", transfer)))
    assert (refused.status, refused.error_code) == (400, "PAYMENT_INVALID")
    assert bank.chain.balance(OPERATOR) == 0
    assert (await ask(bank, transfer, await new_fee(bank))).status == 200
    assert bank.chain.balance(OPERATOR) == 25_000 + FEE_MICRO


async def test_the_fee_of_a_transfer_that_failed_is_a_credit_for_the_next_try(bank: Bank) -> None:
    fee = await new_fee(bank)
    assert (await ask(bank, bank.signed(), await new_fee(bank))).status == 200
    failing = bank.signed()
    paid_before = moved(bank)
    bank.hub.settling = transfers_only(says(400, GONE))
    refused = await ask(bank, failing, fee)
    assert (refused.status, refused.error_code) == (400, "INSUFFICIENT_FUNDS")
    assert moved(bank) == (paid_before[0], paid_before[1] + FEE_MICRO)
    bank.hub.settling = HostileHub().settling
    assert (await ask(bank, failing, fee)).status == 200
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert moved(bank) == (paid_before[0] + 10_000, paid_before[1] + FEE_MICRO)


FAILED_LATER = json.dumps(
    {
        "success": False,
        "status": "failed",
        "transaction": "0x" + "fa" * 32,
        "network": "base-sepolia",
        "amount": "10000",
        "payer": derive_wallets().buyer.address,
        "errorReason": "invalid_exact_evm_transaction_failed",
    }
)


def refused_later(code: str, transaction: str = "") -> str:
    details = {"reason": "of later", **({"transaction": transaction} if transaction else {})}
    return json.dumps({"error": {"type": "payment", "code": code, "message": "not made", "details": details}})


@pytest.mark.parametrize(
    ("status", "later", "is_given_back"),
    [
        (200, FAILED_LATER, True),
        (400, refused_later("PAYMENT_EXPIRED", "0x" + "fa" * 32), True),
        (400, refused_later("PAYMENT_EXPIRED"), False),
        (400, refused_later("NONCE_ALREADY_USED", "0x" + "fa" * 32), False),
        (503, BUSY, False),
    ],
    ids=["failed", "over", "over, of a hub that forgot", "used", "busy"],
)
async def test_the_fee_of_a_transfer_that_was_told_as_made_and_failed_is_a_credit_for_the_next_try(
    bank: Bank, tmp_path: Path, status: int, later: str, *, is_given_back: bool
) -> None:
    """A node took it, or a reorganisation took it away. What only refuses it anew tells nothing of it."""
    fee, transfer = await new_fee(bank), bank.signed()
    assert (await ask(bank, transfer, fee, confirm=False)).json()["success"] is True
    bank.hub.settling = transfers_only(says(status, later))
    answers = await asyncio.gather(*(ask(bank, transfer, fee, confirm=False) for _ in range(4)))
    # Whoever comes once it is given back charges it again, and gives that back, too.
    assert {answer.status for answer in answers} <= {status, 400}, [answer.body for answer in answers]
    bank.hub.settling = pass_on
    others = [await ask(bank, bank.signed(), fee) for _ in range(2)]
    assert [other.status for other in others] == [200 if is_given_back else 402, 402]
    assert moved(bank) == (20_000 if is_given_back else 10_000, FEE_MICRO)
    settings = settings_for(bank.chain.url, tmp_path / "gateway.db", role=Role.GATEWAY)
    assert inspect_books(settings) == []


async def asked_while_under_way_again(bank: Bank, hub_url: str, transfer: EvmPayload, fee: str) -> asyncio.Task[Answer]:
    """The same pair, asked for once the hub has seen the block go in which the transfer failed."""
    bank.hub.settling = pass_on
    status_url = f"{hub_url}/payments/base-sepolia/{bank.buyer.wallet.address}/{transfer.authorization.nonce}"
    while (await bank.buyer.ask("GET", status_url)).json()["status"] != "pending":  # noqa: ASYNC110 - over HTTP
        await asyncio.sleep(0.2)
    asked = len(bank.hub.settles)
    again = asyncio.create_task(ask(bank, transfer, fee))
    while len(bank.hub.settles) == asked:  # noqa: ASYNC110 - the proxy keeps what came
        await asyncio.sleep(0.05)
    return again


def assert_one_is_owed(listed: Sequence[Difference], transaction: str) -> None:
    assert [one.rule for one in listed] == ["a_fee_is_kept_where_its_transfer_was_made"]
    assert transaction in listed[0].found


async def assert_told_as_made(bank: Bank, transfer: EvmPayload, fee: str, transaction: str) -> None:
    """The same pair again, before and after its fee is spent for another transfer; under one own key only."""
    bank.hub.settling, own = pass_on, {"Idempotency-Key": "of-the-pair"}
    for is_spent in (False, True):
        if is_spent:
            assert (await ask(bank, bank.signed(), fee)).status == 200
        same = await ask(bank, transfer, fee, own)
        assert (same.status, same.json().get("success")) == (200, True), same.body
        assert same.json()["transaction"] == transaction
    assert (await ask(bank, bank.signed(), await new_fee(bank), own)).error_code == "CONFLICT"


async def replaced_in(chain: ChainUnderTest, transaction: str) -> str:
    """What stands in the pool in place of that transaction, once there is something."""
    async with asyncio.timeout(40):
        while True:
            pooled = chain.rpc.call("txpool_content")
            found = [one["hash"] for where in pooled.values() for slots in where.values() for one in slots.values()]
            if len(found) == 1 and found[0] != transaction:
                return str(found[0])
            await asyncio.sleep(0.2)


def spending_first(chain: ChainUnderTest, spent: list[str]) -> Settling:
    """The buyer's money is spent in the block that is mined next, before the transfer is made; `spent`: by which."""

    async def spend_first(_request: web.Request, forward: Forward) -> web.StreamResponse:
        drain = chain.authorization(pay_to="0x" + "88" * 20, value=chain.balance(chain.wallets.buyer.address))
        fees = {"max_fee_per_gas": 50_000_000_000, "max_priority_fee_per_gas": 40_000_000_000}
        chain.rpc.call("evm_setAutomine", False)
        data = transfer_calldata(drain, chain.sign(drain))
        spent.append(chain.send(chain.wallets.faucet, USDC_ADDRESS, data, **fees))
        return await forward()

    return transfers_only(spend_first)


@pytest.mark.parametrize("meanwhile", ["", "asked again", "paid anew", "replaced"])
async def test_a_fee_that_was_given_back_for_what_a_reorganisation_makes_after_all_is_told_as_owed(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    """Its payer's money was gone in the block in which the transfer failed, and is there on the other branch.

    There it may be made by another transaction of the same attempt, which pays more.
    """
    if meanwhile == "replaced":
        impatient = partial(LaneKeeper, stuck_seconds=0.5, unmined_seconds=0.5)
        monkeypatch.setattr("tollkeeper.hub.completer.LaneKeeper", impatient)
    chain, buyer_wallet = anvil_fiat_token, derive_wallets().buyer
    chain.rpc.call("anvil_mine", "0x8")
    settings = settings_for(chain.url, tmp_path / "gateway.db", role=Role.GATEWAY)
    spent: list[str] = []
    async with (
        composed(chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        charging(chain, tmp_path, hostile.url) as gateway_url,
        Buyer(buyer_wallet) as buyer,
    ):
        bank = Bank(gateway_url, hostile, chain, buyer, "0x" + secrets.token_hex(20))
        fee, transfer = await new_fee(bank), bank.signed()
        hostile.settling = spending_first(chain, spent)
        asking = asyncio.create_task(ask(bank, transfer, fee))
        async with asyncio.timeout(20):
            while chain.rpc.call("txpool_status")["pending"] != "0x2":  # noqa: ASYNC110 - a node is asked
                await asyncio.sleep(0.05)
        chain.rpc.call("evm_mine")
        failed = await asking
        assert (failed.status, failed.json()["status"]) == (200, "failed"), failed.body
        assert inspect_books(settings) == []
        mined = chain.rpc.call("eth_getTransactionReceipt", failed.json()["transaction"])
        with capture_logs() as said:
            take_back(chain, int(chain.rpc.call("eth_blockNumber"), 16) - int(mined["blockNumber"], 16) + 1)
            chain.rpc.call("anvil_dropTransaction", spent[0])
            again = None
            async with asyncio.timeout(40):
                shown = {"asked again": fee, "paid anew": await new_fee(bank)}.get(meanwhile)
                if shown is not None:
                    again = await asked_while_under_way_again(bank, hub_url, transfer, shown)
                made_in = failed.json()["transaction"]
                if meanwhile == "replaced":
                    made_in = await replaced_in(chain, made_in)
                chain.rpc.call("evm_setAutomine", True)
                chain.rpc.call("evm_mine")
                if again is not None:
                    assert (await again).json()["transaction"] == made_in
                while rows_of(tmp_path, "SELECT call_id FROM returned_fees WHERE made_ms IS NULL"):
                    rows_of(tmp_path, "UPDATE returned_fees SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
                    await asyncio.sleep(0.5)
        assert moved(bank) == (10_000, FEE_MICRO * (1 + (meanwhile == "paid anew")))
        told = [line["log_level"] for line in said if line["event"] == "fee_is_owed"]
        listed = inspect_books(settings)
        if again is not None:
            assert (told, listed) == ([], [])
            assert (await ask(bank, bank.signed(), fee)).status == {"asked again": 402, "paid anew": 200}[meanwhile]
        else:
            assert told == ["error"]
            assert_one_is_owed(listed, made_in)
            await assert_told_as_made(bank, transfer, fee, made_in)
            assert inspect_books(settings) == listed


async def test_a_fee_that_was_given_back_to_one_request_is_owed_where_the_same_one_beside_it_was_made(
    bank: Bank, tmp_path: Path
) -> None:
    """The hub keeps no refusal of what it cannot do at the moment, and can a moment later."""
    settings = settings_for(bank.chain.url, tmp_path / "gateway.db", role=Role.GATEWAY)
    fee, transfer = await new_fee(bank), bank.signed()
    first_is_there, second_is_there, may_be_made = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def refuse_the_first(_request: web.Request, forward: Forward) -> web.StreamResponse:
        if not first_is_there.is_set():
            first_is_there.set()
            await second_is_there.wait()
            return web.Response(status=400, text=AWAY, content_type="application/json")
        second_is_there.set()
        await may_be_made.wait()
        return await forward()

    bank.hub.settling = transfers_only(refuse_the_first)
    first = asyncio.create_task(ask(bank, transfer, fee))
    await first_is_there.wait()
    second = asyncio.create_task(ask(bank, transfer, fee))
    assert (await first).error_code == "INVALID_NETWORK"
    may_be_made.set()
    with capture_logs() as said:
        made = await second
        assert (made.status, made.json()["success"]) == (200, True)
        async with asyncio.timeout(30):
            while not (listed := inspect_books(settings)):  # noqa: ASYNC110 - the books are read
                await asyncio.sleep(0.5)
    assert_one_is_owed(listed, made.json()["transaction"])
    assert [line["transaction"] for line in said if line["event"] == "fee_is_owed"] == [made.json()["transaction"]]
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_lost_answer_is_a_503_and_the_same_pair_is_made_once_for_one_fee(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    bank.hub.settling = transfers_only(lose_answer)
    answer = await ask(bank, transfer, fee)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    other = await ask(bank, bank.signed(), fee)
    assert other.status == 402  # the fee is taken until the outcome is known
    bank.hub.settling = HostileHub().settling
    again = await ask(bank, transfer, fee)
    assert (again.status, again.json()["success"]) == (200, True)
    assert moved(bank) == (10_000, FEE_MICRO)


@pytest.mark.parametrize("was_made", [False, True], ids=["failed", "made"])
async def test_after_a_restart_the_fee_of_a_transfer_is_a_credit_where_it_failed_and_only_there(
    tmp_path: Path, embedded_chain: ChainUnderTest, *, was_made: bool
) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with charging(embedded_chain, tmp_path, hostile.url) as url:
            bank = Bank(url, hostile, embedded_chain, buyer, "0x" + secrets.token_hex(20))
            fee, transfer = await new_fee(bank), bank.signed()
            hostile.settling = transfers_only(lose_answer if was_made else cut)
            assert (await ask(bank, transfer, fee)).error_code == "SETTLEMENT_PENDING"
        async with charging(embedded_chain, tmp_path, hostile.url) as url:
            bank = replace(bank, gateway_url=url)
            assert (await ask(bank, bank.signed(), fee)).status == 402  # nobody knows yet
            hostile.settling = pass_on if was_made else transfers_only(says(400, GONE))
            answers = await asyncio.gather(*(ask(bank, transfer, fee) for _ in range(5)))
            assert {answer.status for answer in answers} == {200 if was_made else 400}
            hostile.settling = pass_on
            answers = [await ask(bank, bank.signed(), fee) for _ in range(2)]
            assert [answer.status for answer in answers] == ([402, 402] if was_made else [200, 402])
            assert moved(bank) == (10_000, FEE_MICRO)


@dataclass(slots=True)
class TwoHubs:
    """A gateway whose `hub_url` is changed. The first hub is reached through a hostile proxy."""

    directory: Path
    chain: ChainUnderTest
    hub: HostileHub
    other_url: str
    buyer: Buyer
    recipient: str

    @asynccontextmanager
    async def at(self, hub_url: str) -> AsyncIterator[Bank]:
        async with charging(self.chain, self.directory, hub_url) as url:
            yield Bank(url, self.hub, self.chain, self.buyer, self.recipient)


@pytest.fixture
async def two_hubs(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[TwoHubs]:
    wallets = derive_wallets()
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(
            embedded_chain.url, tmp_path / "other.db", role=Role.HUB, signer_keys=(Secret(wallets.faucet.private_key),)
        ) as other_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(wallets.buyer) as buyer,
    ):
        yield TwoHubs(tmp_path, embedded_chain, hostile, other_url, buyer, "0x" + secrets.token_hex(20))


async def test_a_transfer_that_a_former_hub_made_keeps_its_fee_whatever_the_next_one_says(two_hubs: TwoHubs) -> None:
    """It made it, its answer was lost, and `hub_url` was changed; another hub refuses what is used."""
    async with two_hubs.at(two_hubs.hub.url) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(lose_answer)
        assert (await ask(bank, transfer, fee)).status == 503
        assert moved(bank) == (10_000, FEE_MICRO)
    async with two_hubs.at(two_hubs.other_url) as bank:
        for _ in range(2):
            refused = await ask(bank, transfer, fee)
            assert (refused.status, refused.error_code) == (400, "NONCE_ALREADY_USED")
        assert (await ask(bank, bank.signed(), fee)).status == 402  # the fee is spent
    two_hubs.hub.settling = pass_on
    async with two_hubs.at(two_hubs.hub.url) as bank:
        done = await ask(bank, transfer, fee)
        assert (done.status, done.json()["success"]) == (200, True)
        assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_transfer_that_a_former_hub_never_heard_of_is_made_by_the_next_one_or_gives_its_fee_back(
    two_hubs: TwoHubs,
) -> None:
    async with two_hubs.at(two_hubs.hub.url) as bank:
        made, fee, late, its_fee = bank.signed(), await new_fee(bank), bank.signed(), await new_fee(bank)
        bank.hub.settling = transfers_only(cut)
        assert (await ask(bank, made, fee)).status == 503
        assert (await ask(bank, late, its_fee)).status == 503
    async with two_hubs.at(two_hubs.other_url) as bank:
        assert (await ask(bank, made, fee)).status == 200
        assert moved(bank) == (10_000, 2 * FEE_MICRO)
        bank.chain.rpc.call("evm_increaseTime", 7_200)
        bank.chain.rpc.call("evm_mine")
        expired = await ask(bank, late, its_fee)
        assert (expired.status, expired.error_code) == (400, "PAYMENT_EXPIRED")
        assert (await ask(bank, bank.signed(valid_after=0), its_fee)).status == 200
        assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_a_hub_that_is_busy_after_it_made_the_transfer_gives_no_fee_back(bank: Bank) -> None:
    fee, transfer = await new_fee(bank), bank.signed()
    bank.hub.settling = transfers_only(lose_answer)
    assert (await ask(bank, transfer, fee)).error_code == "SETTLEMENT_PENDING"
    bank.hub.settling = transfers_only(says(503, BUSY))
    assert (await ask(bank, transfer, fee)).error_code == "UNAVAILABLE"
    bank.hub.settling = pass_on
    assert (await ask(bank, bank.signed(), fee)).status == 402
    assert (await ask(bank, transfer, fee)).status == 200
    assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_caller_s_key_is_of_one_fee_and_one_transfer(bank: Bank) -> None:
    key = {"Idempotency-Key": "own-key-of-a-payer-1"}
    fee, transfer = await new_fee(bank), bank.signed()
    bank.hub.settling = transfers_only(lose_answer)
    assert (await ask(bank, transfer, fee, key)).error_code == "SETTLEMENT_PENDING"
    bank.hub.settling = pass_on
    other_fee = await new_fee(bank)
    refused = await ask(bank, bank.signed(), other_fee, key)
    assert (refused.status, refused.error_code) == (409, "CONFLICT")
    again = [await ask(bank, transfer, fee, key) for _ in range(2)]
    assert [answer.status for answer in again] == [200, 200]
    assert moved(bank) == (10_000, FEE_MICRO)
    assert (await ask(bank, bank.signed(), other_fee, {"Idempotency-Key": "own-key-of-a-payer-2"})).status == 200
    assert moved(bank) == (20_000, 2 * FEE_MICRO)


async def test_a_fee_that_a_stranger_carried_out_is_honoured_by_hand_and_spent_by_its_credit_token(
    bank: Bank, tmp_path: Path
) -> None:
    settings = settings_for(
        bank.chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, default_payment_address=OPERATOR
    )
    fee, transfer = await new_fee(bank), bank.signed()
    transaction = relay(bank.chain, fee)
    refused = await ask(bank, transfer, fee)
    assert (refused.status, refused.error_code) == (400, "NONCE_ALREADY_USED")
    order = {"gate": "transfer.base-sepolia", "transaction": transaction, "nonce": None}
    told = (await honour_payment(settings, order))["done"]

    mine = {"Authorization": f"Bearer {await bank.buyer.login(bank.gateway_url)}"}
    listed = (await bank.buyer.ask("GET", bank.gateway_url + "/api/v1/credits", headers=mine)).json()["data"]
    assert [one["creditToken"] for one in listed] == [told["creditToken"]]
    for wrong in ({}, {"X-Credit-Token": told["purchaseId"] + ".forged"}):
        withheld = await ask(bank, transfer, fee, wrong)
        assert (withheld.status, withheld.error_code) == (400, "PAYMENT_INVALID")
        assert "X-Credit-Token" in withheld.json()["error"]["message"]
    assert moved(bank) == (0, FEE_MICRO)
    token = {"X-Credit-Token": told["creditToken"]}
    bank.hub.settling = transfers_only(says(400, GONE))
    assert (await ask(bank, transfer, fee, token)).error_code == "INSUFFICIENT_FUNDS"
    bank.hub.settling = pass_on
    answers = [await ask(bank, transfer, fee, token), await ask(bank, transfer, fee)]  # told again it costs nothing
    assert [answer.status for answer in answers] == [200, 200]
    assert (await ask(bank, bank.signed(), fee, token)).status == 402
    assert moved(bank) == (10_000, FEE_MICRO)
    assert inspect_books(settings) == []
    assert await compare_with_chain(settings) == []


async def test_a_payment_that_is_no_fee_is_refused_and_unused(bank: Bank) -> None:
    transfer = bank.signed()
    asked = (await ask(bank, transfer)).json()
    (requirements,) = asked["accepts"]
    too_little = {**asked, "accepts": [{**requirements, "maxAmountRequired": "1999"}]}
    elsewhere = {**asked, "accepts": [{**requirements, "payTo": "0x" + "12" * 20}]}
    for wrong, code in ((too_little, "INSUFFICIENT_AMOUNT"), (elsewhere, "PAYMENT_INVALID")):
        refused = await ask(bank, transfer, bank.buyer.sign(wrong))
        assert (refused.status, refused.error_code) == (400, code)
    assert moved(bank) == (0, 0)


async def test_the_gate_of_the_fee_is_nobodys_to_see_to_call_or_to_manage(bank: Bank) -> None:
    assert (await ask(bank, bank.signed(), await new_fee(bank))).status == 200
    assert (await bank.buyer.ask("GET", bank.gateway_url + "/transfer.base-sepolia")).status == 404
    listed = (await bank.buyer.ask("GET", bank.gateway_url + "/api/v1/paygates")).json()
    assert listed["data"] == []
    for method, body in (("GET", None), ("DELETE", None), ("PUT", {"price": "1"})):
        answer = await bank.buyer.ask(method, bank.gateway_url + "/api/v1/paygates/1", body=body)
        assert answer.status in {401, 403}


async def test_the_facilitator_that_a_fee_s_transfer_was_to_be_asked_of_first_is_kept_until_its_charge(
    tmp_path: Path,
) -> None:
    """Another one's refusal proves nothing while the first one may have been asked by another process."""
    database, now_ms = open_database(str(tmp_path / "gateway.db")), 1_000
    keys = TransferKeys(database, lambda: now_ms, lambda: "unused")
    try:
        assert await keys.first_of("fee-a-1") is None
        await keys.keep_first("fee-a-1", "http://first.test")
        now_ms = 2_000
        await keys.keep_first("fee-a-1", "http://second.test")
        await keys.keep_first("fee-a-2", "")
        assert await keys.first_of("fee-a-1") == ("http://first.test", 1_000)
        assert await keys.first_of("fee-a-2") == ("", 2_000)
    finally:
        await database.close()


async def test_of_two_that_ask_with_one_pair_none_moves_what_the_other_was_told_is_refused(bank: Bank) -> None:
    """The payer's code is away for a moment: the fee is given back by then, and may pay for another transfer."""
    chain = bank.chain
    wallet = chain.plant_smart_wallet(bank.buyer.wallet.address)
    chain.mint(wallet, 1_000_000)
    code = chain.rpc.call("eth_getCode", wallet, "latest")
    fee, transfer = await new_fee(bank), bank.signed(payer=wallet)
    both_are_there, may_go = asyncio.Event(), asyncio.Event()
    count = 0

    async def first_refused(_request: web.Request, forward: Forward) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count == 1:
            await both_are_there.wait()
            chain.rpc.call("anvil_setCode", wallet, "0x")
            answer = await forward()
            chain.rpc.call("anvil_setCode", wallet, code)
            return answer
        both_are_there.set()
        await may_go.wait()
        return await forward()

    bank.hub.settling = transfers_only(first_refused)
    asked = [asyncio.create_task(ask(bank, transfer, fee))]
    await until(lambda: count == 1)
    asked.append(asyncio.create_task(ask(bank, transfer, fee)))
    refused = await asked[0]
    may_go.set()
    for answer in (refused, await asked[1]):
        assert (answer.status, answer.error_code) == (400, "INVALID_SIGNATURE")
    bank.hub.settling = pass_on
    assert (await ask(bank, bank.signed(), fee)).status == 200
    assert moved(bank) == (10_000, FEE_MICRO)
