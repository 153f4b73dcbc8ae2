"""Gateway and hub apart, and an answer that is lost or cannot be believed (contract 4.3, 4.4; F3, F4, F19; A-16)."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.edge.test_calls import until
from tests.engines import beside
from tests.gateway import version2
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
    settles_but_says,
)
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tollkeeper import api
from tollkeeper.core.evm.encoding import checksum_address
from tollkeeper.core.keys.sealing import KeyRing
from tollkeeper.core.limits import READINESS_WAIT_SECONDS
from tollkeeper.gateway import app
from tollkeeper.gateway.call import state
from tollkeeper.gateway.purchase import decisions as waiting
from tollkeeper.gateway.purchase import recovery
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role
from tollkeeper.storage.ledger.purchase_rows import Purchase
from tollkeeper.storage.ledger.purchases import Purchases


@dataclass(slots=True)
class Apart:
    """A gateway whose hub is reached through a hostile proxy."""

    gateway_url: str
    hub: HostileHub
    chain: ChainUnderTest
    target: RecordingTarget
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": "0x" + "77" * 20, **fields}
        answer = await self.buyer.ask("POST", self.gateway_url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return answer.json()

    async def payment(self, gate: dict[str, Any]) -> str:
        return self.buyer.sign((await self.buyer.ask("GET", gate["accessUrl"])).json())

    async def pay(self, gate: dict[str, Any], payment: str) -> Answer:
        return await self.buyer.call(gate["accessUrl"], payment)

    def received_micro(self) -> int:
        return self.chain.balance("0x" + "77" * 20)


async def claim_whose_answer_is_lost(
    buyer: Buyer, gateway_url: str, target: RecordingTarget, hub: HostileHub
) -> tuple[dict[str, Any], str]:
    """A new gate and a payment that the hub settled there, of which the gateway heard nothing; the hub is down now."""
    terms = {"price": "0.01", "targetUrl": target.url}
    gate: dict[str, Any] = (await buyer.ask("POST", gateway_url + "/api/v1/paygates", body=terms)).json()
    payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
    hub.settling = lose_answer
    assert (await buyer.call(gate["accessUrl"], payment)).status == 503
    hub.is_down = True
    return gate, payment


@pytest.fixture
async def apart(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Apart]:
    chain_url = embedded_chain.url
    async with (
        composed(chain_url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        composed(chain_url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hostile.url) as gateway_url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Apart(gateway_url, hostile, embedded_chain, target, buyer)


SUCCESS = {"success": True, "status": "success", "transaction": "0x" + "ab" * 32, "network": "base-sepolia"}
LOST: list[tuple[str, Settling, int]] = [
    ("answer lost", lose_answer, 10_000),
    ("500 after settling", settles_but_says(500, '{"error":"oops"}'), 10_000),
    ("not JSON after settling", settles_but_says(200, "<html>"), 10_000),
    ("success as a string after settling", settles_but_says(200, json.dumps({**SUCCESS, "success": "true"})), 10_000),
    ("another shape after settling", settles_but_says(200, "[]"), 10_000),
    ("request lost", cut, 10_000),
    ("success as a string", says(200, json.dumps({**SUCCESS, "success": "true"})), 10_000),
    ("success as 1", says(200, json.dumps({**SUCCESS, "success": 1})), 10_000),
    ("success without a transaction", says(200, '{"success":true,"network":"base-sepolia"}'), 10_000),
    ("settlement_pending", says(200, '{"success":false,"errorReason":"settlement_pending","transaction":""}'), 10_000),
    ("success in no transaction's name", says(200, json.dumps({**SUCCESS, "transaction": "a" * 100_000})), 10_000),
    ("success with a line's end in it", says(200, json.dumps({**SUCCESS, "transaction": "0xab\r\nx: y"})), 10_000),
    ("a refusal whose code is none", says(400, '{"error":{"code":[],"message":{}}}'), 10_000),
    ("bad gateway", says(502, "{}"), 10_000),
]


@pytest.mark.parametrize(("name", "settling", "paid_micro"), LOST, ids=[case[0] for case in LOST])
async def test_unknown_outcome_is_a_503_and_the_same_payment_is_served_once_in_the_end(
    apart: Apart, name: str, settling: Settling, paid_micro: int
) -> None:
    del name
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = settling
    answer = await apart.pay(gate, payment)
    body = answer.json()
    assert (answer.status, body["error"]["code"], body["error"]["type"]) == (503, "SETTLEMENT_PENDING", "payment")
    assert int(answer.headers["retry-after"]) > 0
    assert "accepts" not in body
    status = await apart.buyer.ask("GET", body["error"]["details"]["statusUrl"])
    assert status.status in {200, 404}
    assert answer.headers["x-credit-token"]
    assert apart.target.requests == []
    apart.hub.settling = HostileHub().settling
    again = await apart.pay(gate, payment)
    assert again.status == 200, again.body
    assert "x-credit-token" not in again.headers
    assert len(apart.target.requests) == 1
    assert apart.received_micro() == paid_micro
    assert len(set(apart.hub.settles)) == len(set(apart.hub.signatures)) == 1  # the same bytes each time
    assert (await apart.pay(gate, payment)).json()["errorDetail"]["code"] == "CREDITS_EXHAUSTED"


async def test_an_unknown_outcome_is_told_in_version_2_and_the_same_payment_is_served_once(apart: Apart) -> None:
    gate = await apart.gate(credits=3)
    payer = version2.Client(apart.buyer, gate["accessUrl"])
    payment = await payer.payment()
    apart.hub.settling = says(503, json.dumps({"transaction": "0x" + "ab" * 32}))
    pending = await payer.pay(payment)
    told = version2.receipt(pending)
    assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
    assert "payment-required" not in pending.headers
    assert told == {
        "success": False,
        "payer": checksum_address(apart.buyer.wallet.address),
        "transaction": pending.json()["error"]["details"].get("transaction", ""),
        "network": version2.EVM,
        "errorReason": "settlement_pending",
    }
    apart.hub.settling = HostileHub().settling
    again, more = await payer.pay(payment), await payer.pay(payment)
    assert [(answer.status, answer.error_code) for answer in (again, more)] == [
        (200, None),
        (403, "CREDIT_TOKEN_REQUIRED"),
    ]
    assert apart.received_micro() == 10_000


async def test_who_shows_elsewhere_what_is_being_settled_is_told_its_transaction(apart: Apart) -> None:
    """Nobody told the gateway; the hub names it to anybody."""
    gate, other = await apart.gate(), await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    pending = await apart.pay(gate, payment)
    elsewhere = await apart.pay(other, payment)
    assert (pending.status, elsewhere.status, elsewhere.error_code) == (503, 402, "NONCE_ALREADY_USED")
    assert elsewhere.json()["error"]["details"]["transaction"].startswith("0x")


def unclear_answer(chosen: random.Random) -> tuple[int, str]:
    """What a facilitator could say that is nearly a success, and is none."""
    odd: list[Any] = ["true", "True", 1, 1.0, "1", "yes", None, [], [True], {}, {"success": True}, 0, "", False]
    body: dict[str, Any] = {name: value for name, value in SUCCESS.items() if chosen.random() < 0.8}
    status = chosen.choice([201, 202, 204, 206, 299, 302, 304, 400, 402, 409, 429, 500, 503])
    spoiled = chosen.choice(["success", "transaction", "status code", "shape", "text"])
    if spoiled != "status code":
        status = 200
    if spoiled == "success":
        body["success"] = chosen.choice(odd)
    if spoiled == "transaction":
        body["transaction"] = chosen.choice([one for one in odd if not isinstance(one, str) or not one])
    text = json.dumps(chosen.choice([[body], {"result": body}, json.dumps(body)]) if spoiled == "shape" else body)
    return status, text[: chosen.randrange(len(text))] if spoiled == "text" else text


async def test_no_unclear_answer_of_a_facilitator_serves_anything(apart: Apart) -> None:
    chosen = random.Random(16)
    gate = await apart.gate()
    for _ in range(150):
        status, text = unclear_answer(chosen)
        apart.hub.settling = says(status, text)
        answer = await apart.pay(gate, await apart.payment(gate))
        assert answer.status in {402, 502, 503}, (status, text, answer.body)
        assert apart.target.requests == [], (status, text)
    assert apart.received_micro() == 0


async def test_who_waits_is_told_of_a_decision_that_falls_while_he_looks(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What he saw is over by the time he begins to wait. Who waits for another payment is not woken for it."""
    gate = await apart.gate(credits=3)
    payments = [await apart.payment(gate) for _ in range(2)]
    ends, look, decided, looks = asyncio.Queue[None](), Purchases.by_id, asyncio.Event(), Counter[str]()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        await ends.get()
        return await forward()

    async def looked_late(self: Purchases, purchase_id: str) -> Purchase | None:
        found = await look(self, purchase_id)
        looks[purchase_id] += 1
        if looks[purchase_id] == 1:
            await decided.wait()
        return found

    apart.hub.settling = late
    monkeypatch.setattr(waiting, "_LOOK_SECONDS", 60)
    buyers = [asyncio.create_task(apart.pay(gate, payment)) for payment in payments]
    await until(lambda: len(apart.hub.settles) == 2)
    monkeypatch.setattr(Purchases, "by_id", looked_late)
    waiters = [asyncio.create_task(apart.pay(gate, payment)) for payment in payments]
    await until(lambda: len(looks) == 2)
    ends.put_nowait(None)
    async with asyncio.timeout(30):
        await asyncio.wait(buyers, return_when=asyncio.FIRST_COMPLETED)
        decided.set()
        await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    assert sorted(looks.values()) == [1, 2]
    ends.put_nowait(None)
    async with asyncio.timeout(30):
        answers = await asyncio.gather(*buyers, *waiters)
    assert [answer.status for answer in answers] == [200] * 4
    assert sorted(looks.values()) == [2, 2]


async def test_who_waited_in_vain_is_told_the_transaction_that_the_hub_names_by_then(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both who bought with the payment and who found it being settled; nothing of it where the hub is silent."""
    gate = await apart.gate()
    payment = await apart.payment(gate)
    decided = asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        answer = await forward()
        await decided.wait()
        return answer

    apart.hub.settling = late
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    for is_down in (False, False, True):
        apart.hub.is_down = is_down
        waited = await apart.pay(gate, payment)
        assert (waited.status, waited.error_code) == (503, "SETTLEMENT_PENDING"), waited.body
        details = waited.json()["error"]["details"]
        apart.hub.is_down = False
        status = (await apart.buyer.ask("GET", details["statusUrl"])).json()
        assert details["transaction"] == ("" if is_down else status["transaction"])
        assert status["transaction"].startswith("0x")
    monkeypatch.undo()
    decided.set()
    served = await apart.pay(gate, payment)
    assert (served.status, apart.received_micro()) == (200, 10_000), served.body


async def test_credits_are_granted_without_the_buyer_when_an_answer_was_lost(apart: Apart) -> None:
    gate = await apart.gate(credits=2)
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    token = (await apart.pay(gate, payment)).headers["x-credit-token"]
    apart.hub.settling = HostileHub().settling
    for _ in range(100):
        held = await apart.buyer.ask("GET", apart.gateway_url + "/api/v1/credits", headers={"X-Credit-Token": token})
        if held.json()["data"][0]["granted"]:
            break
        await asyncio.sleep(0.1)
    assert held.json()["data"][0]["remaining"] == 2
    served = await apart.buyer.ask("GET", gate["accessUrl"], headers={"X-Credit-Token": token})
    assert (served.status, served.headers["x-credits-remaining"]) == (200, "1")


@pytest.mark.parametrize(("status", "code"), [(401, "INVALID_SIGNATURE"), (403, "FORBIDDEN"), (404, "NOT_FOUND")])
async def test_a_hub_that_will_not_tell_again_what_it_has_on_record_fails_no_claim(
    apart: Apart, status: int, code: str
) -> None:
    """As where its clock was put back, or something else answers at its URL for a while."""
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    assert (await apart.pay(gate, payment)).status == 503
    refusal = {"error": {"type": "authentication", "code": code, "message": "not now"}}
    apart.hub.settling = says(status, json.dumps(refusal))
    asked = len(apart.hub.settles)
    async with asyncio.timeout(20):
        while len(apart.hub.settles) < asked + 2:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.1)
    apart.hub.settling = pass_on
    again = await apart.pay(gate, payment)
    assert again.status == 200, again.body
    assert (len(apart.target.requests), apart.received_micro()) == (1, 10_000)


def state_in(folder: Path) -> str:
    """The claim's."""
    with beside(folder / "gateway.db") as books:
        ((state,),) = books.execute("SELECT state FROM purchases").fetchall()
        return str(state)


async def parked(folder: Path) -> None:
    """Until the claim is."""
    async with asyncio.timeout(20):
        while state_in(folder) != "PARKED":  # noqa: ASYNC110 - of another connection
            await asyncio.sleep(0.1)


async def asked_again(hub: HostileHub, times: int, settling: Settling) -> None:
    """Until it was asked for the claim so often again, answered so, and was judged by it."""
    hub.settling, before = settling, len(hub.settles)
    async with asyncio.timeout(30):
        while len(hub.settles) < before + times:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)


UNAVAILABLE = says(503, json.dumps({"error": {"type": "internal", "code": "UNAVAILABLE", "message": "not now"}}))
REFUSING = says(401, json.dumps({"error": {"type": "authentication", "code": "INVALID_SIGNATURE", "message": "no"}}))


@pytest.mark.parametrize("status", [401, 409])
async def test_a_claim_that_its_hub_never_tells_of_is_parked_in_the_end_and_honoured_by_hand(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    gate = await apart.gate(credits=2)
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    assert (await apart.pay(gate, payment)).status == 503
    refusal = {"error": {"type": "authentication", "code": "INVALID_SIGNATURE", "message": "not now"}}
    apart.hub.settling = says(status, json.dumps(refusal))
    monkeypatch.setattr(recovery, "_NOT_TOLD_MS", 1_000)

    await parked(tmp_path)
    again = await apart.pay(gate, payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")  # and nobody is told to pay again
    with beside(tmp_path / "hub.db") as hub:
        ((transaction,),) = hub.execute("SELECT transaction_hash FROM settlements").fetchall()
    of_gateway = settings_for(apart.chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=apart.hub.url)
    done = (await honour_payment(of_gateway, {"gate": gate["slug"], "transaction": transaction, "nonce": None}))["done"]
    served = await apart.buyer.ask("GET", gate["accessUrl"], headers={"X-Credit-Token": done["creditToken"]})
    assert (served.status, served.headers["x-credits-remaining"]) == (200, "1")
    assert apart.received_micro() == 10_000


async def test_the_day_that_a_hub_has_to_tell_begins_when_it_first_does_not_and_not_while_it_is_away(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim as old as that is as good as any once its hub is back, and answers badly for a moment."""
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    assert (await apart.pay(gate, payment)).status == 503
    monkeypatch.setattr(recovery, "_NOT_TOLD_MS", 3_000)

    for times, settling in ((3, cut), (3, UNAVAILABLE), (1, REFUSING)):
        await asked_again(apart.hub, times, settling)
        assert state_in(tmp_path) == "CLAIMED"
    apart.hub.settling = pass_on
    answer = await apart.pay(gate, payment)
    assert answer.status == 200, answer.body
    assert (len(apart.target.requests), apart.received_micro()) == (1, 10_000)


async def test_a_claim_whose_hub_shows_it_and_is_away_whenever_it_is_asked_for_whom_is_parked_in_the_end(
    apart: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    assert (await apart.pay(gate, payment)).status == 503
    await asked_again(apart.hub, 2, UNAVAILABLE)
    assert state_in(tmp_path) == "CLAIMED"
    monkeypatch.setattr(recovery, "_AWAY_MS", 1_000)
    await asked_again(apart.hub, 1, UNAVAILABLE)
    assert state_in(tmp_path) == "CLAIMED"  # a gateway that has just been started waits for an hour
    monkeypatch.setattr(recovery, "_ELSEWHERE_MS", 1_000)
    await parked(tmp_path)
    again = await apart.pay(gate, payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")


async def test_the_day_that_a_hub_has_to_tell_goes_on_over_a_start_of_the_gateway(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_ms = 0
    monkeypatch.setattr(app, "clock_ms", lambda: api.clock_ms() + ahead_ms)
    chain_url = embedded_chain.url
    settings: dict[str, Any] = {"role": Role.GATEWAY, "default_payment_address": "0x" + "77" * 20}
    async with (
        composed(chain_url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with composed(chain_url, tmp_path / "gateway.db", hub_url=hostile.url, **settings) as url:
            await claim_whose_answer_is_lost(buyer, url, target, hostile)
            hostile.is_down = False
            await asked_again(hostile, 2, REFUSING)
        for hours in (13, 12):
            assert state_in(tmp_path) == "CLAIMED"
            ahead_ms += hours * 3_600_000
            async with composed(chain_url, tmp_path / "gateway.db", hub_url=hostile.url, **settings):
                await asked_again(hostile, 1, REFUSING)
    assert state_in(tmp_path) == "PARKED"


@pytest.mark.sqlite_only("no gateway starts on PostgreSQL without the key that it seals by")
@pytest.mark.parametrize("is_found", [True, False])
async def test_a_claim_waits_an_hour_for_the_key_that_its_request_is_sealed_under(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_found: bool,
) -> None:
    """As of a backup from before the key was replaced, whose operator thinks of the retired one behind the start."""
    ahead_ms = 0
    monkeypatch.setattr(app, "clock_ms", lambda: api.clock_ms() + ahead_ms)
    monkeypatch.setattr(recovery.PurchaseRecovery, "interval_seconds", 0.05)
    chain_url, payee = embedded_chain.url, "0x" + "77" * 20
    former, present = {"a": bytes(32)}, {"b": bytes([1]) * 32}
    async with (
        composed(chain_url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        settings: dict[str, Any] = {"role": Role.GATEWAY, "default_payment_address": payee, "hub_url": hostile.url}
        books = tmp_path / "gateway.db"
        async with composed(chain_url, books, encryption_keys=KeyRing("a", former), **settings) as url:
            gate, payment = await claim_whose_answer_is_lost(buyer, url, target, hostile)
        hostile.is_down, hostile.settling = False, pass_on
        ahead_ms += 120_000  # nobody waits for what is older than its request
        async with composed(chain_url, books, encryption_keys=KeyRing("b", present), **settings):
            await asyncio.sleep(1)
            assert state_in(tmp_path) == "CLAIMED"
            if not is_found:
                ahead_ms += 3_600_000
                await parked(tmp_path)
        if is_found:
            async with composed(chain_url, books, encryption_keys=KeyRing("b", present | former), **settings) as url:
                served = await buyer.call(f"{url}/{gate['slug']}", payment)
                assert served.status == 200, served.body
    assert embedded_chain.balance(payee) == 10_000


async def test_clear_failure_is_a_402_and_the_payment_may_be_tried_three_times_in_all(apart: Apart) -> None:
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = says(200, '{"success":false,"errorReason":"insufficient_funds","transaction":""}')
    codes = []
    for _ in range(4):
        answer = await apart.pay(gate, payment)
        body = answer.json()
        codes.append((answer.status, body["error"]["code"], body["error"]["details"]["reason"]))
        assert body["accepts"]
    assert codes == [(402, "INSUFFICIENT_FUNDS", "insufficient_funds")] * 3 + [
        (402, "PAYMENT_INVALID", "attempts_exhausted")
    ]
    assert [json.loads(body)["purchaseData"]["purchaseId"] for body in apart.hub.settles] == [
        json.loads(apart.hub.settles[0])["purchaseData"]["purchaseId"]
    ] * 3
    assert apart.target.requests == []


async def test_failed_attempt_may_succeed_when_presented_again(apart: Apart) -> None:
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = says(200, '{"success":false,"errorReason":"unexpected_settle_error","transaction":""}')
    assert (await apart.pay(gate, payment)).status == 402
    apart.hub.settling = HostileHub().settling
    assert (await apart.pay(gate, payment)).status == 200
    assert apart.received_micro() == 10_000


async def test_who_may_have_paid_after_all_waits_no_longer_than_another_for_a_hub_that_does_not_say(
    apart: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs(_request: web.Request, _forward: Forward) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = says(200, '{"success":false,"errorReason":"insufficient_funds","transaction":""}')
    assert (await apart.pay(gate, payment)).status == 402
    switched_off = f"{apart.gateway_url}/api/v1/paygates/{gate['id']}"
    assert (await apart.buyer.ask("PUT", switched_off, body={"isEnabled": False})).status == 200
    assert (await apart.pay(gate, payment)).status == 404
    apart.hub.telling = hangs
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    async with asyncio.timeout(5):
        refused = await apart.pay(gate, payment)
    assert (refused.status, refused.error_code) == (503, "SETTLEMENT_PENDING")


async def test_payment_settled_for_another_server_buys_nothing_here(apart: Apart) -> None:
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.settling = says(
        200, json.dumps({"success": False, "errorReason": "duplicate_settlement", "transaction": "0x" + "cd" * 32})
    )
    answer = await apart.pay(gate, payment)
    body = answer.json()
    assert (answer.status, body["error"]["code"]) == (402, "NONCE_ALREADY_USED")
    assert body["error"]["details"]["transaction"] == "0x" + "cd" * 32


async def test_hub_that_is_down_is_a_503_that_charges_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with run_hostile_hub(hub_url) as hostile:
            parts = composed(embedded_chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hostile.url)
            gateway_url = await parts.__aenter__()
            body = {"price": "0.01", "targetUrl": target.url, "credits": 2}
            gate = (await buyer.ask("POST", gateway_url + "/api/v1/paygates", body=body)).json()
            challenge = (await buyer.ask("GET", gate["accessUrl"])).json()
            held = buyer.sign(challenge)
            assert (await buyer.call(gate["accessUrl"], held)).status == 200
        try:
            answer = await buyer.call(gate["accessUrl"], buyer.sign(challenge))
            assert (answer.status, answer.json()["error"]["code"]) == (503, "UNAVAILABLE")
            assert "accepts" not in answer.json()
            assert (await buyer.call(gate["accessUrl"], held)).status == 200  # held credits need no hub
            ready = await buyer.ask("GET", gateway_url + "/readyz")
            assert (ready.status, ready.json()["error"]["details"]["checks"]) == (503, {"database": True, "hub": False})
        finally:
            await parts.__aexit__(None, None, None)


async def test_a_hub_that_lost_a_network_meanwhile_refuses_no_payment_for_good(apart: Apart) -> None:
    gate = await apart.gate()
    payment = await apart.payment(gate)
    apart.hub.verifying = says(200, '{"isValid": false, "invalidReason": "invalid_network"}')
    answer = await apart.pay(gate, payment)
    assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
    apart.hub.verifying = pass_on
    assert (await apart.pay(gate, payment)).status == 200


async def test_a_gateway_says_in_time_that_its_hub_says_nothing(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    never = asyncio.Event()

    async def says_nothing(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    hub = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    hub_url = "http://{}:{}".format(*hub.sockets[0].getsockname())
    gateway = composed(embedded_chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub_url)
    try:
        async with gateway as url, Buyer(derive_wallets().buyer) as anybody, asyncio.timeout(30):
            began = time.monotonic()
            ready = await anybody.ask("GET", url + "/readyz")
            assert (ready.status, ready.json()["error"]["details"]["checks"]) == (503, {"database": True, "hub": False})
            assert time.monotonic() - began < 2 * READINESS_WAIT_SECONDS
    finally:
        never.set()
        hub.close()
        await asyncio.sleep(0.1)  # its connections are closed by then


async def test_claim_outlives_a_start_of_the_gateway_while_its_hub_is_down(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    def gateway() -> Any:
        database = tmp_path / "gateway.db"
        return composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=hostile.url)

    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with gateway() as url:
            gate, payment = await claim_whose_answer_is_lost(buyer, url, target, hostile)
        async with gateway() as url:
            await asyncio.sleep(3)  # longer than recovery waits between two passes
            answer = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert (answer.status, answer.json()["error"]["code"]) == (503, "SETTLEMENT_PENDING")
            hostile.is_down, hostile.settling = False, HostileHub().settling
            for _ in range(50):
                answer = await buyer.call(f"{url}/{gate['slug']}", payment)
                if answer.status == 200:
                    break
                assert answer.status == 503
                await asyncio.sleep(0.2)
        assert answer.status == 200
        assert len(target.requests) == 1


NOT_THERE = {"type": "validation", "code": "NOT_FOUND", "message": "there is nothing here"}


@pytest.mark.parametrize(
    "body",
    ["default backend - 404", "{}", json.dumps({"error": NOT_THERE, "apiVersion": "v1"})],
    ids=["of a proxy", "in another shape", "of another part of ours"],
)
async def test_a_404_of_somebody_else_than_the_hub_fails_no_claim(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, body: str
) -> None:
    """While a hub is away, who stands before it answers in its place, and knows nothing of any payment."""

    def gateway() -> Any:
        return composed(embedded_chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hostile.url)

    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with gateway() as url:
            gate, payment = await claim_whose_answer_is_lost(buyer, url, target, hostile)
        with beside(tmp_path / "gateway.db") as books:
            assert books.execute("UPDATE purchases SET attempt_ms = attempt_ms - 100000").rowcount == 1
        hostile.is_down, hostile.telling = False, says(404, body)
        async with gateway() as url:
            await asyncio.sleep(3)  # longer than recovery waits between two passes
            hostile.telling = hostile.settling = pass_on
            answer = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert answer.status == 200, answer.body
        assert len(target.requests) == 1


@pytest.mark.parametrize("is_there", [False, True], ids=["without its buyer", "when its buyer comes back"])
async def test_a_request_that_reaches_the_hub_after_its_claim_was_given_up_is_paid_and_sold_once(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, is_there: bool
) -> None:
    """By the gateway's clock, which was put forward meanwhile, the hub could not start it any more."""
    database = tmp_path / "gateway.db"
    late: list[asyncio.Task[web.Response]] = []
    may_come = asyncio.Event()

    def gateway() -> Any:
        return composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=hostile.url)

    async def comes_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        async def come() -> web.Response:
            await may_come.wait()
            return await forward()

        late.append(asyncio.create_task(come()))
        return await cut(request, forward)

    def state() -> str:
        with beside(database) as books:
            found: str = books.execute("SELECT state FROM purchases").fetchone()[0]
            return found

    async def until(wanted: str) -> None:
        async with asyncio.timeout(20):
            while state() != wanted:  # noqa: ASYNC110 - over a file there is nothing to wait on
                await asyncio.sleep(0.1)

    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with gateway() as url:
            body = {"price": "0.01", "targetUrl": target.url}
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
            payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            hostile.settling = comes_late
            assert (await buyer.call(gate["accessUrl"], payment)).status == 503
            hostile.is_down = True
        with beside(database) as books:
            assert books.execute("UPDATE purchases SET attempt_ms = attempt_ms - 100000").rowcount == 1
        hostile.is_down, hostile.settling = False, pass_on
        async with gateway() as url:
            await until("FAILED")
            may_come.set()
            assert (await late[0]).status == 200
            if not is_there:
                await until("LIVE")
            answer = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert answer.status == 200, answer.body
        assert len(target.requests) == 1


async def test_a_request_that_comes_behind_the_refusal_of_its_copy_charges_nothing_and_its_buyer_is_served(
    apart: Apart,
) -> None:
    """Its buyer was told that it was not settled, so his next try must be the one that is."""
    chain, received = apart.chain, apart.received_micro()
    wallet = chain.plant_smart_wallet(apart.buyer.wallet.address)
    chain.mint(wallet, 1_000_000)
    code = chain.rpc.call("eth_getCode", wallet, "latest")
    gate = await apart.gate(credits=3)
    challenge = (await apart.buyer.ask("GET", gate["accessUrl"])).json()
    payment = apart.buyer.sign(challenge, lambda plain: replace(plain, payer=wallet))
    late: list[asyncio.Task[web.Response]] = []
    may_come = asyncio.Event()

    async def comes_late(request: web.Request, forward: Forward) -> web.StreamResponse:
        async def come() -> web.Response:
            await may_come.wait()
            return await forward()

        late.append(asyncio.create_task(come()))
        return await cut(request, forward)

    apart.hub.settling = comes_late
    assert (await apart.pay(gate, payment)).status == 503
    apart.hub.settling = pass_on
    chain.rpc.call("anvil_setCode", wallet, "0x")
    refused = await apart.pay(gate, payment)
    assert (refused.status, refused.error_code) == (402, "INVALID_SIGNATURE")
    chain.rpc.call("anvil_setCode", wallet, code)
    may_come.set()
    assert json.loads((await late[0]).text or "")["errorReason"] == "invalid_exact_evm_payload_signature"
    assert apart.received_micro() == received
    served = await apart.pay(gate, payment)
    assert (served.status, served.headers["x-credits-remaining"]) == (200, "2")
    assert apart.received_micro() == received + 10_000


async def test_a_claim_is_finished_while_its_hub_settles_on_no_network(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    """It was taken out of the hub's settings, or its node does not answer: what became of the payment is told still."""

    def gateway() -> Any:
        return composed(embedded_chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hostile.url)

    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with gateway() as url:
            await claim_whose_answer_is_lost(buyer, url, target, hostile)
        supported = (await buyer.ask("GET", hub_url + "/supported")).json()
        hostile.supported = json.dumps({**supported, "kinds": []})
        hostile.is_down, hostile.settling = False, pass_on
        async with gateway() as url:
            await until(lambda: state_in(tmp_path) == "LIVE", 20)
            # No owner is told meanwhile that his network is none.
            made = await buyer.ask("POST", url + "/api/v1/paygates", body={"price": "0.01", "targetUrl": target.url})
            assert (made.status, made.error_code) == (503, "UNAVAILABLE")


@pytest.mark.parametrize("age_seconds", [100, 7_200])
async def test_what_was_asked_of_a_former_hub_is_not_failed_by_one_that_never_heard_of_it(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, age_seconds: int
) -> None:
    """Its hub settled it, the answer was lost, and the gateway was started with the URL of another one."""

    def gateway(hub_url: str) -> Any:
        return composed(embedded_chain.url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hub_url)

    def as_after(seconds: int) -> None:
        with beside(tmp_path / "gateway.db") as books:
            assert books.execute("UPDATE purchases SET attempt_ms = attempt_ms - ?", (seconds * 1000,)).rowcount == 1

    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        composed(embedded_chain.url, tmp_path / "other.db", role=Role.HUB) as other_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        async with gateway(hostile.url) as url:
            gate, payment = await claim_whose_answer_is_lost(buyer, url, target, hostile)
        as_after(age_seconds)  # the request has expired, and perhaps nobody was there for longer than a claim waits
        async with gateway(other_url) as url:
            await asyncio.sleep(3)  # longer than recovery waits between two passes
            answer = await buyer.ask("GET", f"{url}/api/v1/credits", headers={"X-Payment": payment})
            assert len(answer.json()["data"]) == 1, answer.body  # bought, or being bought
        hostile.is_down, hostile.settling = False, pass_on
        async with gateway(hostile.url) as url:
            answer = await buyer.call(f"{url}/{gate['slug']}", payment)
            assert answer.status == 200, answer.body
        assert len(target.requests) == 1


async def test_payment_claimed_before_its_gate_was_deleted_is_served_once(apart: Apart) -> None:
    gate = await apart.gate(credits=3)
    payment = await apart.payment(gate)
    apart.hub.settling = lose_answer
    assert (await apart.pay(gate, payment)).status == 503
    deleted = await apart.buyer.ask("DELETE", f"{apart.gateway_url}/api/v1/paygates/{gate['id']}")
    assert deleted.status == 200
    apart.hub.settling = HostileHub().settling
    assert (await apart.pay(gate, payment)).status == 200
    again = await apart.pay(gate, payment)
    assert (again.status, again.json()["error"]["code"]) == (404, "NOT_FOUND")
    assert (await apart.buyer.ask("GET", gate["accessUrl"])).status == 404
    assert len(apart.target.requests) == 1


async def test_a_call_whose_verification_took_longer_than_the_purchase_by_another_one_takes_a_credit_of_it(
    apart: Apart,
) -> None:
    """By then the hub has settled it, for this very gate."""
    gate = await apart.gate(credits=2)
    payment = await apart.payment(gate)
    asked, sold = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        asked.set()
        await sold.wait()
        return await forward()

    apart.hub.verifying = late
    first = asyncio.create_task(apart.pay(gate, payment))
    await asked.wait()
    apart.hub.verifying = pass_on
    url = f"{apart.gateway_url}/api/v1/paygates/{gate['id']}"
    assert (await apart.buyer.ask("PUT", url, body={"title": "another version"})).status == 200
    assert (await apart.pay(gate, payment)).status == 200
    sold.set()
    answer = await first
    assert answer.status == 200, answer.body
    assert answer.headers["x-credits-remaining"] == "0"
    assert apart.received_micro() == 10_000


@pytest.mark.parametrize("value", [10**18, 2**63, 2**200])
async def test_a_payment_of_more_than_the_books_can_count_is_refused_before_it_is_charged(
    apart: Apart, value: int
) -> None:
    """No USDC has so much; a token of one's own may."""
    apart.chain.mint(derive_wallets().buyer.address, 2**201)
    for trust in (False, True):
        gate = await apart.gate(assumeValid=trust)
        challenge = (await apart.buyer.ask("GET", gate["accessUrl"])).json()
        payment = apart.buyer.sign(challenge, lambda authorization: replace(authorization, value=value))
        before = apart.received_micro()
        answer = await apart.pay(gate, payment)
        assert (answer.status, answer.error_code) == (402, "PAYMENT_INVALID"), answer.body
        assert apart.received_micro() == before
        assert (await apart.pay(gate, await apart.payment(gate))).status == 200
    assert len(apart.target.requests) == 2
