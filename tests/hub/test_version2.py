"""x402 version 2 at the hub: both versions side by side, and outcomes as official servers read them (contract 10.2)."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.chaos import Act, ChaosNode
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment, run_hub
from tests.hub.solana_hub import run_solana_hub
from tests.hub.test_left_callers import is_about
from tests.hub.test_recovery import leave_pending, unsign
from tests.hub.version2 import NAMES, in_version_2, with_offer
from tollkeeper.core.limits import ACCEPT_WAIT_SECONDS
from tollkeeper.hub.api import requests
from tollkeeper.storage.engine.database import Database, StorageError, Unit

T = TypeVar("T")
SEND: Final = "eth_sendRawTransaction"
CAIP2: Final = NAMES["base-sepolia"]
MISMATCH: Final = "invalid_exact_evm_payload_authorization_value_mismatch"


async def settle(hub: HubUnderTest, payment: TestPayment, *, prefer: str | None = None, **fields: Any) -> Answer:
    headers = {} if prefer is None else {"Prefer": prefer}
    return await hub.post("/settle", {**in_version_2(payment.body), **fields}, **headers)


def is_pending(answer: Answer) -> bool:
    """Is it what an official server asks again on?"""
    body = answer.body
    is_named = body.get("transaction", "").startswith("0x") and "status" not in body
    return answer.status == 200 and body["success"] is False and is_named and answer.reason == "settlement_pending"


async def test_a_payment_of_version_2_is_verified_and_settled_under_its_network_s_name(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payment = new_payment(embedded_chain)
    payer = (await hub.post("/verify", payment.body)).body["payer"]
    verified = await hub.post("/verify", in_version_2(payment.body))
    assert (verified.status, verified.body["isValid"], verified.body["payer"]) == (200, True, payer)
    settled = (await settle(hub, payment)).body
    assert settled["transaction"].startswith("0x")
    assert {name: settled[name] for name in ("success", "status", "network", "amount", "payer", "errorReason")} == {
        "success": True,
        "status": "success",
        "network": CAIP2,
        "amount": "10000",
        "payer": payer,
        "errorReason": None,
    }
    used = await hub.post("/verify", in_version_2(payment.body))
    assert (used.body["isValid"], used.reason) == (False, "invalid_exact_evm_nonce_already_used")


async def test_one_authorization_in_both_versions_at_once_is_one_settlement(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    payee = embedded_chain.wallets.owner.address
    before = embedded_chain.balance(payee)
    for _ in range(10):
        payment = new_payment(embedded_chain)
        answers = await asyncio.gather(*(f(hub, payment) for f in (hub_settle, settle, hub_settle, settle)))
        assert sorted(answer.body["success"] for answer in answers) == [False, False, False, True]
        assert {answer.reason for answer in answers} == {None, "duplicate_settlement"}
    assert embedded_chain.balance(payee) - before == 10 * 10_000


async def hub_settle(hub: HubUnderTest, payment: TestPayment) -> Answer:
    return await hub.settle(payment)


@pytest.mark.parametrize("amount", ["9999", "10001", "0"])
async def test_a_value_that_is_not_the_amount_is_refused_in_version_2(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, amount: str
) -> None:
    payment = new_payment(embedded_chain)
    body = with_offer(in_version_2(payment.body), amount=amount)
    assert (await hub.post("/verify", body)).reason == MISMATCH
    refused = await hub.post("/settle", body)
    assert (refused.status, refused.reason, refused.body["transaction"]) == (200, MISMATCH, "")
    # As ever in version 1, where more than the amount is enough.
    lower = await hub.post("/verify", payment.requiring(maxAmountRequired="9999"))
    assert lower.body["isValid"] is True


async def test_the_hash_that_is_pending_becomes_a_success_on_the_identical_body_and_nowhere_else(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    chaos.on(SEND, Act.CUT)
    payment = new_payment(embedded_chain)
    pending = await settle(chaos_hub, payment, prefer="wait=0")
    assert is_pending(pending)
    assert {name: pending.body[name] for name in ("network", "amount")} == {"network": CAIP2, "amount": "10000"}
    assert is_pending(await settle(chaos_hub, payment, prefer="wait=0"))
    chaos.calm()
    await chaos_hub.complete()
    await chaos_hub.complete()
    body = in_version_2(payment.body)
    others = [payment.asking(), with_offer(body, payTo="0x" + "11" * 20), with_offer(body, maxTimeoutSeconds=301)]
    for other in others:
        assert (await chaos_hub.post("/settle", other)).body["success"] is False
    told = await settle(chaos_hub, payment)
    assert (told.body["success"], told.body["transaction"]) == (True, pending.body["transaction"])
    assert (await settle(chaos_hub, payment)).reason == "duplicate_settlement"


async def test_an_answer_is_held_until_there_is_an_outcome_where_the_caller_prefers_nothing(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    """No node says that it took the transaction, so that only its receipt shows what became of it, late."""
    chain = embedded_chain
    chain.rpc.call("evm_setAutomine", False)
    chaos.on(SEND, Act.LOSE_ANSWER)
    payment = new_payment(chain)
    mined = chain.nonce(chain.wallets.relayer)
    asking = asyncio.create_task(settle(chaos_hub, payment))
    async with asyncio.timeout(60):
        while chain.nonce(chain.wallets.relayer) == mined:  # noqa: ASYNC110 - of the node
            await asyncio.sleep(0.05)
    _, still = await asyncio.wait({asking}, timeout=2 * ACCEPT_WAIT_SECONDS)
    assert still
    chain.rpc.call("evm_mine")
    assert (await asking).body["success"] is True


async def test_without_confirm_what_a_node_took_is_a_success_before_it_is_mined(
    hub: HubUnderTest, embedded_chain: ChainUnderTest
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    assert (await settle(hub, payment)).body["success"] is True
    assert await hub.status(payment) == "pending"


async def test_with_confirm_the_time_is_up_at_the_hold_and_the_outcome_pending(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded_chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(embedded_chain)
    with monkeypatch.context() as impatient:
        impatient.setattr(requests, "SETTLE_HOLD_SECONDS", 5)
        assert is_pending(await settle(hub, payment, confirm=True))
    embedded_chain.rpc.call("evm_mine")
    await hub.complete()
    assert (await settle(hub, payment, confirm=True)).body["success"] is True


async def test_what_nothing_was_signed_for_in_time_is_refused_and_never_signed_for_that_order(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SETTLE_HOLD_SECONDS", 2)
    payment, other = new_payment(embedded_chain), new_payment(embedded_chain)
    mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
    chaos.on("eth_call", Act.HANG)
    answers = await asyncio.gather(*(settle(chaos_hub, payment) for _ in range(3)))
    for answer in answers:
        told = (answer.status, answer.body["success"], answer.body["status"], answer.body["transaction"])
        assert told == (200, False, "failed", "")
        assert answer.reason == "unexpected_settle_error"
    assert await chaos_hub.status(payment) == "unknown"
    monkeypatch.undo()
    chaos.calm()
    assert (await settle(chaos_hub, other)).body["success"] is True  # long enough for what else would be signed
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 1
    assert (await settle(chaos_hub, payment)).body["success"] is True  # it may be ordered anew
    assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 2


class SlowSigning:
    """A real database whose next signing commit waits for `going`; `came` is set once it is there."""

    def __init__(self, real: Database) -> None:
        self.real = real
        self.came, self.going = asyncio.Event(), asyncio.Event()
        self.fails_afterwards = False
        self.is_armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def run(self, unit: Unit[T], *, is_short: bool = False) -> T:
        """As the real one; a unit that signs waits."""
        if not self.is_armed or unit.name != "claim_and_sign":
            return await self.real.run(unit, is_short=is_short)
        self.is_armed = False
        self.came.set()
        await self.going.wait()
        done = await self.real.run(unit, is_short=is_short)
        if self.fails_afterwards:
            raise StorageError("the disk is slow today")
        return done


async def test_a_signature_whose_commit_comes_behind_the_refusal_is_discarded(
    tmp_path: Path, embedded_chain: ChainUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "SETTLE_HOLD_SECONDS", 5)
    slow: list[SlowSigning] = []

    def wrapped(real: Database) -> Any:
        slow.append(SlowSigning(real))
        return slow[0]

    async with run_hub(tmp_path, embedded_chain, wrap_database=wrapped) as hub:
        payment = new_payment(embedded_chain)
        mined = embedded_chain.nonce(embedded_chain.wallets.relayer)
        slow[0].is_armed = True
        answer = await settle(hub, payment)
        assert slow[0].came.is_set()
        assert answer.reason == "unexpected_settle_error"
        slow[0].going.set()
        await hub.complete()
        assert await hub.status(payment) == "unknown"
        assert (await settle(hub, payment)).body["success"] is True
        assert embedded_chain.nonce(embedded_chain.wallets.relayer) == mined + 1


async def test_a_commit_whose_answer_is_lost_is_pending_under_the_transaction_that_it_signed(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    slow: list[SlowSigning] = []

    def wrapped(real: Database) -> Any:
        slow.append(SlowSigning(real))
        return slow[0]

    async with run_hub(tmp_path, embedded_chain, wrap_database=wrapped) as hub:
        payment = new_payment(embedded_chain)
        slow[0].is_armed = slow[0].fails_afterwards = True
        slow[0].going.set()
        pending = await settle(hub, payment)
        assert is_pending(pending)
        await hub.complete()
        told = await settle(hub, payment)
        assert (told.body["success"], told.body["transaction"]) == (True, pending.body["transaction"])


async def test_a_claim_without_a_signature_is_ended_and_may_be_ordered_anew(
    chaos_hub: HubUnderTest, chaos: ChaosNode, embedded_chain: ChainUnderTest
) -> None:
    (payment,) = await leave_pending(chaos_hub, chaos, embedded_chain, 1)
    await unsign(chaos_hub)
    body = in_version_2(payment.body)
    refused = await chaos_hub.post("/settle", body, Prefer="wait=0")
    assert (refused.reason, refused.body["transaction"]) == ("unexpected_settle_error", "")
    assert await chaos_hub.status(payment) == "failed"
    assert (await chaos_hub.post("/settle", body)).body["success"] is True


def without(body: dict[str, Any], *path: str) -> dict[str, Any]:
    changed = copy.deepcopy(body)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = None
    return changed


@pytest.mark.parametrize(
    "path",
    [
        ("paymentPayload", "accepted"),
        ("paymentPayload", "accepted", "scheme"),
        ("paymentPayload", "accepted", "network"),
        ("paymentPayload", "payload"),
        ("paymentRequirements", "amount"),
        ("paymentRequirements", "asset"),
        ("paymentRequirements", "payTo"),
    ],
)
async def test_what_is_missing_is_named_as_version_2_names_it(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: tuple[str, ...]
) -> None:
    body = without(in_version_2(new_payment(embedded_chain).body), *path)
    for operation in ("/verify", "/settle"):
        answer = await hub.post(operation, body)
        assert (answer.status, answer.code) == (400, "MISSING_PARAMETER")
        assert answer.body["error"]["details"]["field"] == ".".join(path)


@pytest.mark.parametrize("path", [("paymentRequirements", "extra"), ("paymentRequirements", "maxTimeoutSeconds")])
async def test_a_null_is_a_member_that_is_not_there(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, path: tuple[str, ...]
) -> None:
    body = without(in_version_2(new_payment(embedded_chain).body), *path)
    assert (await hub.post("/verify", body)).body["isValid"] is True


OTHER_KINDS: Final[dict[str, tuple[Callable[[dict[str, Any]], dict[str, Any]], str]]] = {
    "another scheme": (lambda body: with_offer(body, scheme="upto"), "unsupported_scheme"),
    "another network": (lambda body: with_offer(body, network="eip155:10"), "invalid_network"),
    "version 1's name of the network": (lambda body: with_offer(body, network="base-sepolia"), "invalid_network"),
    "requirements of another network": (
        lambda body: {**body, "paymentRequirements": {**body["paymentRequirements"], "network": "eip155:8453"}},
        "invalid_network",
    ),
    "a payment of version 1": (
        lambda body: {**body, "paymentPayload": {**body["paymentPayload"], "x402Version": 1}},
        "invalid_x402_version",
    ),
    "a request of version 1": (lambda body: {**body, "x402Version": 1}, "invalid_x402_version"),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
async def test_a_kind_that_is_not_ours_is_a_reason(
    hub: HubUnderTest, embedded_chain: ChainUnderTest, kind: str
) -> None:
    change, reason = OTHER_KINDS[kind]
    body = change(in_version_2(new_payment(embedded_chain).body))
    verified = await hub.post("/verify", body)
    assert (verified.status, verified.body["isValid"], verified.reason) == (200, False, reason)
    settled = await hub.post("/settle", body)
    assert (settled.status, settled.body["success"], settled.reason) == (200, False, reason)
    assert (settled.body["network"], settled.body["amount"]) == (body["paymentRequirements"]["network"], "10000")


async def test_on_solana_too_both_versions_are_one_payment(
    tmp_path: Path,
) -> None:
    async with run_solana_hub(tmp_path) as world:
        body = world.payment()
        assert (await world.hub.post("/verify", in_version_2(body))).body["isValid"] is True
        settled = (await world.hub.post("/settle", in_version_2(body))).body
        assert (settled["success"], settled["network"]) == (True, NAMES["solana-devnet"])
        assert (await world.hub.post("/settle", body)).reason == "duplicate_settlement"
        kinds = [(kind["x402Version"], kind["network"]) for kind in (await world.hub.get("/supported")).body["kinds"]]
        assert kinds == [(2, NAMES["solana-devnet"]), (1, "solana-devnet")]


@pytest.mark.parametrize("at", ["eth_call", SEND])
async def test_a_hub_that_is_killed_in_the_middle_settles_an_authorization_once(
    tmp_path: Path, chaos: ChaosNode, embedded_chain: ChainUnderTest, at: str
) -> None:
    """As official servers do, the server asks once more with the identical body, by then of the restarted hub."""
    payment = new_payment(embedded_chain)
    payee = embedded_chain.wallets.owner.address
    before = embedded_chain.balance(payee)
    body = in_version_2(payment.body)
    with await asyncio.to_thread(HubProcess, tmp_path, chaos.url) as first:

        def kill(methods: list[str]) -> Act:
            if at not in methods or not (at == SEND or is_about(chaos.judged, json.dumps(body).encode(), at)):
                return Act.PASS
            first.kill()
            chaos.calm()
            return Act.LOSE_ANSWER

        chaos.act = kill
        with pytest.raises(aiohttp.ClientError):
            await asked(first.url, body)
    with await asyncio.to_thread(HubProcess, tmp_path, chaos.url) as second:
        assert (await asked(second.url, body))["success"] is True
        assert (await asked(second.url, body))["errorReason"] == "duplicate_settlement"
    assert embedded_chain.balance(payee) - before == 10_000


async def asked(url: str, body: dict[str, Any]) -> dict[str, Any]:
    async with aiohttp.ClientSession() as http, http.post(url + "/settle", json=body) as answer:
        told: dict[str, Any] = await answer.json()
        return told
