"""The direct transfer: a 402 for the very transfer of the body, made once, never paid twice (contract 8)."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway import version2
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import HostileHub, cut, lose_answer, pass_on, run_hostile_hub, says, settles_but_says
from tollkeeper.core.evm.encoding import Authorization, authorization_digest, checksum_address, sign_digest
from tollkeeper.core.x402.version1 import EvmPayload, Payment, encode_payment_header, payment_body
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings.model import Role

PATH = "/api/v1/transfer"
INVALID = json.dumps({"isValid": False, "invalidReason": "invalid_exact_evm_nonce_already_used", "payer": None})


@dataclass(slots=True)
class Bank:
    """A gateway whose hub is behind a proxy, and a buyer; `recipient` is as new."""

    gateway_url: str
    hub: HostileHub
    chain: ChainUnderTest
    buyer: Buyer
    recipient: str

    def signed(self, **changes: Any) -> EvmPayload:
        """An authorization of the buyer for the recipient."""
        authorization: Authorization = self.chain.authorization(**{"pay_to": self.recipient, **changes})
        digest = authorization_digest(self.chain.separator, authorization)
        return EvmPayload(authorization, sign_digest(digest, self.buyer.wallet.private_key))

    async def ask(
        self, payload: EvmPayload, paid: EvmPayload | None = None, headers: dict[str, str] | None = None, **fields: Any
    ) -> Answer:
        """The body's transfer, with a payment or without one; a field of None is left out."""
        body = {"network": "base-sepolia", **payment_body(_payment(payload))["payload"], **fields}
        body = {name: value for name, value in body.items() if value is not None}
        shown = {} if paid is None else {"X-Payment": encode_payment_header(_payment(paid))}
        return await self.buyer.ask("POST", self.gateway_url + PATH, body=body, headers={**shown, **(headers or {})})

    def received_micro(self) -> int:
        return self.chain.balance(self.recipient)


def _payment(payload: EvmPayload) -> Payment:
    return Payment(1, "exact", "base-sepolia", payload)


@pytest.fixture
async def bank(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Bank]:
    chain_url = embedded_chain.url
    async with (
        composed(chain_url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        composed(chain_url, tmp_path / "gateway.db", role=Role.GATEWAY, hub_url=hostile.url) as gateway_url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Bank(gateway_url, hostile, embedded_chain, buyer, "0x" + secrets.token_hex(20))


async def test_the_402_asks_for_the_transfer_of_the_body_and_a_fresh_payment_for_it_is_made(bank: Bank) -> None:
    described = bank.signed(value=25_000)
    asked = await bank.ask(described)
    assert asked.status == 402
    challenge = asked.json()
    (requirements,) = challenge["accepts"]
    assert (requirements["payTo"], requirements["maxAmountRequired"]) == (checksum_address(bank.recipient), "25000")
    assert requirements["network"] == challenge["paymentRequired"]["network"] == "base-sepolia"
    paid = bank.buyer.sign(challenge)
    body = {"network": "base-sepolia", **payment_body(_payment(described))["payload"]}
    answer = await bank.buyer.ask("POST", bank.gateway_url + PATH, body=body, headers={"X-Payment": paid})
    assert (answer.status, answer.json()["success"], answer.json()["amount"]) == (200, True, "25000")
    receipt = answer.receipt
    assert receipt is not None
    assert receipt["transaction"] == answer.json()["transaction"]
    assert bank.received_micro() == 25_000
    assert not bank.chain.is_used(described.authorization.payer, described.authorization.nonce)


async def test_a_payment_of_version_2_moves_it_and_is_told_so(bank: Bank) -> None:
    described = bank.signed(value=25_000)
    body = {"network": "base-sepolia", **payment_body(_payment(described))["payload"]}

    async def ask(**headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await bank.buyer.ask("POST", bank.gateway_url + PATH, body=body, headers=named)

    offer = version2.offers(await ask())[version2.EVM]
    assert (offer["amount"], offer["payTo"]) == ("25000", checksum_address(bank.recipient))
    wallet = version2.wallet_of(bank.buyer)
    other = version2.shown({**offer, "amount": "24999"}, version2.authorized(offer, wallet))
    refused = await ask(PAYMENT_SIGNATURE=other)
    assert (refused.status, refused.error_code) == (400, "PAYMENT_INVALID")
    payment, second = (version2.signed(offer, wallet) for _ in range(2))
    both = await ask(PAYMENT_SIGNATURE=payment, X_Payment=second)
    assert (both.status, both.error_code) == (400, "INVALID_PARAMETER")
    answer = await ask(PAYMENT_SIGNATURE=payment)
    told = version2.receipt(answer)
    assert answer.status == 200, answer.body
    assert told == {
        "success": True,
        "payer": checksum_address(bank.buyer.wallet.address),
        "transaction": answer.json()["transaction"],
        "network": version2.EVM,
    }
    assert bank.received_micro() == 25_000
    again = await ask(X_Payment=version2.in_version_1(payment))
    assert (again.status, again.json()["transaction"]) == (200, told["transaction"])
    assert version2.receipt(again) is None
    assert bank.received_micro() == 25_000


async def test_a_hundred_requests_with_one_payment_move_it_once(bank: Bank) -> None:
    payload = bank.signed()
    answers = await asyncio.gather(*(bank.ask(payload, payload) for _ in range(100)))
    assert {(answer.status, answer.json()["success"]) for answer in answers} == {(200, True)}
    assert len({answer.json()["transaction"] for answer in answers}) == 1
    assert bank.received_micro() == 10_000


@pytest.mark.parametrize("difference", ["value", "to", "from", "network"])
async def test_a_payment_that_is_another_transfer_is_refused_and_unused(bank: Bank, difference: str) -> None:
    described = bank.signed()
    other_buyer = derive_wallets().owner
    paid = {
        "value": bank.signed(value=10_001),
        "to": bank.signed(pay_to="0x" + "12" * 20),
        "from": bank.signed(payer=other_buyer.address),
        "network": bank.signed(),
    }[difference]
    header = encode_payment_header(
        replace(_payment(paid), network="base" if difference == "network" else "base-sepolia")
    )
    body = {"network": "base-sepolia", **payment_body(_payment(described))["payload"]}
    answer = await bank.buyer.ask("POST", bank.gateway_url + PATH, body=body, headers={"X-Payment": header})
    error = answer.json()["error"]
    assert (answer.status, error["code"], error["type"]) == (400, "PAYMENT_INVALID", "payment")
    assert error["details"]["check"] == difference
    assert bank.received_micro() == 0
    assert bank.hub.settles == []


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"recipient": "0x" + "12" * 20}, "PAYMENT_INVALID"),
        ({"recipient": "0x" + "12" * 20 + "*"}, "INVALID_ADDRESS"),
        ({"recipient": 5}, "INVALID_ADDRESS"),
        ({"amount": "10001"}, "PAYMENT_INVALID"),
        ({"amount": "9999"}, "PAYMENT_INVALID"),
        ({"amount": "0.01"}, "INVALID_AMOUNT"),
    ],
)
async def test_what_is_said_beside_the_signed_is_read_and_must_be_the_same(
    bank: Bank, said: dict[str, Any], code: str
) -> None:
    described = bank.signed()
    for paid in (None, described):
        answer = await bank.ask(described, paid, **said)
        assert (answer.status, answer.error_code) == (400, code)
    assert bank.hub.settles == []
    answer = await bank.ask(described, described, recipient=checksum_address(bank.recipient), amount="10000")
    assert answer.status == 200, answer.body


async def test_refusals_are_bad_requests_with_the_code_of_their_cause(bank: Bank) -> None:
    good, now = bank.signed(), bank.chain.now()
    bad_signature = replace(good, signature=bytes(64) + b"\x1b")
    expired = bank.signed(valid_before=now - 1)
    rich = bank.signed(value=10**15)
    cases = [
        (await bank.ask(good, bad_signature), "INVALID_SIGNATURE", "payment"),
        (await bank.ask(expired, expired), "PAYMENT_EXPIRED", "payment"),
        (await bank.ask(rich, rich), "INSUFFICIENT_FUNDS", "payment"),
        (await bank.ask(bank.signed(value=0)), "INVALID_AMOUNT", "validation"),
        (await bank.ask(good, network="base"), "INVALID_NETWORK", "validation"),
        (await bank.ask(good, network="solana-devnet", transaction="AQ=="), "INVALID_NETWORK", "validation"),
        (await bank.ask(good, transaction="AQ=="), "PAYMENT_INVALID", "payment"),
        (await bank.ask(good, confirm="no"), "INVALID_PARAMETER", "validation"),
        (await bank.ask(good, network=None), "MISSING_PARAMETER", "validation"),
        (await bank.ask(good, signature=None), "MISSING_PARAMETER", "validation"),
        (await bank.ask(good, authorization=None), "MISSING_PARAMETER", "validation"),
    ]
    found = [(answer.status, answer.error_code, answer.json()["error"]["type"]) for answer, _, _ in cases]
    assert found == [(400, code, kind) for _, code, kind in cases]
    assert bank.received_micro() == 0


async def test_an_answer_lost_on_its_way_is_a_503_and_the_same_payment_shows_the_success(bank: Bank) -> None:
    payload = bank.signed()
    bank.hub.settling = lose_answer
    lost = await bank.ask(payload, payload)
    assert (lost.status, lost.error_code) == (503, "SETTLEMENT_PENDING")
    assert payload.authorization.nonce in lost.json()["error"]["details"]["statusUrl"]
    bank.hub.settling = pass_on
    for _ in range(2):
        again = await bank.ask(payload, payload)
        assert (again.status, again.json()["status"]) == (200, "success")
    assert bank.received_micro() == 10_000


@pytest.mark.parametrize("database", ["gateway.db", "other.db"], ids=["restarted", "another gateway"])
async def test_every_process_shows_what_became_of_a_transfer_whose_answer_was_lost(
    bank: Bank, tmp_path: Path, embedded_chain: ChainUnderTest, database: str
) -> None:
    """A payment that was told to be sent again is not called used then, whoever is asked."""
    async with AsyncExitStack() as stack:
        place = tmp_path / "of its own" / database
        place.parent.mkdir()
        gateway = composed(embedded_chain.url, place, role=Role.GATEWAY, hub_url=bank.hub.url)
        first = replace(bank, gateway_url=await stack.enter_async_context(gateway))
        payload = first.signed()
        bank.hub.settling = lose_answer
        assert (await first.ask(payload, payload)).error_code == "SETTLEMENT_PENDING"
        bank.hub.settling = pass_on
        if database == "gateway.db":
            await stack.aclose()
            gateway = composed(embedded_chain.url, place, role=Role.GATEWAY, hub_url=bank.hub.url)
            second = replace(bank, gateway_url=await stack.enter_async_context(gateway))
        else:
            second = bank
        again = await second.ask(payload, payload)
        assert (again.status, again.json()["status"]) == (200, "success")
        assert bank.received_micro() == 10_000


@pytest.mark.parametrize("body", ["no JSON", '{"status": "success"}', "[]"])
async def test_a_success_told_in_another_shape_is_shown_when_the_same_is_sent_again(bank: Bank, body: str) -> None:
    payload = bank.signed()
    bank.hub.settling = settles_but_says(200, body)
    assert (await bank.ask(payload, payload)).error_code == "SETTLEMENT_PENDING"
    bank.hub.settling = pass_on
    assert (await bank.ask(payload, payload)).status == 200
    assert bank.received_micro() == 10_000


async def test_another_request_with_the_payment_s_nonce_learns_that_it_is_used_and_no_more(bank: Bank) -> None:
    payload = bank.signed()
    done = await bank.ask(payload, payload)
    assert done.status == 200
    same_nonce = {"nonce": payload.authorization.nonce, "valid_before": payload.authorization.valid_before + 1}
    signed_again = bank.signed(**same_nonce)
    forged = replace(payload, signature=signed_again.signature)
    for other, code in (
        (await bank.ask(signed_again, signed_again), "NONCE_ALREADY_USED"),
        (await bank.ask(payload, payload, confirm=False), "NONCE_ALREADY_USED"),
        (await bank.ask(forged, forged), "INVALID_SIGNATURE"),
    ):
        assert (other.status, other.error_code) == (400, code)
    assert (await bank.ask(payload, payload)).json()["transaction"] == done.json()["transaction"]
    assert bank.received_micro() == 10_000


async def test_a_refused_payment_that_is_good_later_is_made_then_and_shown_to_who_sends_it_again(bank: Bank) -> None:
    payload = bank.signed(value=bank.chain.balance(bank.buyer.wallet.address) + 10_000)
    for _ in range(3):
        assert (await bank.ask(payload, payload)).error_code == "INSUFFICIENT_FUNDS"
    bank.chain.mint(bank.buyer.wallet.address, 10_000)
    bank.hub.settling = lose_answer
    assert (await bank.ask(payload, payload)).error_code == "SETTLEMENT_PENDING"
    bank.hub.settling = pass_on
    for _ in range(2):
        again = await bank.ask(payload, payload)
        assert (again.status, again.json()["success"]) == (200, True)
    assert bank.received_micro() == payload.authorization.value


async def test_a_key_of_the_callers_own_is_refused_because_the_payment_is_its_own(bank: Bank) -> None:
    """Whoever signs anew under one key trusts that one transfer is made: two would be."""
    payload = bank.signed()
    answer = await bank.ask(payload, payload, {"Idempotency-Key": "order-4711"})
    assert (answer.status, answer.error_code) == (400, "INVALID_PARAMETER")
    assert answer.json()["error"]["details"] == {"field": "Idempotency-Key"}
    assert bank.hub.settles == []


async def test_a_hub_that_cannot_be_asked_does_not_say_that_nothing_was_charged(bank: Bank) -> None:
    payload = bank.signed()
    bank.hub.settling = lose_answer
    assert (await bank.ask(payload, payload)).error_code == "SETTLEMENT_PENDING"
    for broken in ({"verifying": cut}, {"verifying": says(200, INVALID), "telling": cut}):
        bank.hub.verifying, bank.hub.telling = broken["verifying"], broken.get("telling", pass_on)
        answer = await bank.ask(payload, payload)
        assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
        assert "do not sign a new one" in answer.json()["error"]["message"]
    bank.hub.settling = bank.hub.verifying = bank.hub.telling = pass_on
    assert (await bank.ask(payload, payload)).status == 200
    assert bank.received_micro() == 10_000


async def test_a_caller_may_wait_for_less_than_the_outcome(bank: Bank) -> None:
    bank.chain.rpc.call("evm_setAutomine", False)
    payload = bank.signed()
    began = time.monotonic()
    answer = await bank.ask(payload, payload, {"Prefer": "wait=1"})
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert 0.9 < time.monotonic() - began < 20
    assert answer.json()["error"]["details"]["transaction"].startswith("0x")
    bank.chain.rpc.call("evm_setAutomine", True)
    bank.chain.rpc.call("evm_mine")
    again = await bank.ask(payload, payload, {"Prefer": "wait=20"})
    assert (again.status, again.json()["status"]) == (200, "success")
    assert bank.received_micro() == 10_000


@pytest.mark.parametrize(
    "hostile",
    [cut, says(200, '{"status": "success"}'), says(200, "no JSON"), says(500, "{}"), says(400, "{}")],
    ids=["cut", "no literal success", "no JSON", "fault", "refusal without a code"],
)
async def test_an_answer_that_says_nothing_is_a_503_and_never_a_success(bank: Bank, hostile: Any) -> None:
    payload = bank.signed()
    bank.hub.settling = hostile
    answer = await bank.ask(payload, payload)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    bank.hub.settling = pass_on
    assert (await bank.ask(payload, payload)).status == 200
    assert bank.received_micro() == 10_000


async def test_a_hub_that_is_busy_is_passed_on_and_the_payment_stays_good(bank: Bank) -> None:
    payload = bank.signed()
    error = {"error": {"type": "server", "code": "UNAVAILABLE", "message": "out of gas"}}
    bank.hub.settling = says(503, json.dumps(error))
    busy = await bank.ask(payload, payload)
    assert (busy.status, busy.error_code, "retry-after" in busy.headers) == (503, "UNAVAILABLE", True)
    bank.hub.settling = pass_on
    assert (await bank.ask(payload, payload)).status == 200


async def test_a_hub_that_does_not_take_our_signature_says_nothing_of_what_it_made_before(bank: Bank) -> None:
    """A clock went wrong behind the transfer: who signs anew would pay twice."""
    payload = bank.signed()
    bank.hub.settling = lose_answer
    assert (await bank.ask(payload, payload)).error_code == "SETTLEMENT_PENDING"
    denied = {"type": "validation", "code": "INVALID_SIGNATURE", "message": "the signature was made in the future"}
    bank.hub.settling = says(401, json.dumps({"error": denied}))
    answer = await bank.ask(payload, payload)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    message = answer.json()["error"]["message"]
    assert "do not sign a new one" in message
    assert "nothing was charged" not in message
    bank.hub.settling = pass_on
    assert (await bank.ask(payload, payload)).status == 200
    assert bank.received_micro() == 10_000


async def test_a_facilitator_without_transfers_settles_the_402_s_requirements(
    bank: Bank, tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    plain = (await bank.buyer.ask("GET", bank.hub.url + "/supported")).json()
    bank.hub.supported = json.dumps({name: value for name, value in plain.items() if name != "apiVersion"})
    parts = composed(embedded_chain.url, tmp_path / "other.db", role=Role.GATEWAY, hub_url=bank.hub.url)
    async with parts as gateway_url:
        foreign = replace(bank, gateway_url=gateway_url)
        payload = bank.signed()
        assert (await foreign.ask(payload)).status == 402
        done = await foreign.ask(payload, payload)
        assert (done.status, done.json()["success"]) == (200, True)
        again = await foreign.ask(payload, payload)
        assert (again.status, again.json()["transaction"]) == (200, done.json()["transaction"])  # as the chain shows it
        failure = {"success": False, "transaction": ""}
        for settling in (
            cut,
            says(400, json.dumps({"error": "the receipt did not come in time"})),
            says(200, json.dumps({**failure, "errorReason": "unexpected_settle_error"})),
        ):
            bank.hub.settling = settling
            unknown = bank.signed()
            assert (await foreign.ask(unknown, unknown)).error_code == "SETTLEMENT_PENDING"
        bank.hub.settling = says(200, json.dumps({**failure, "errorReason": "insufficient_funds"}))
        refused = await foreign.ask(unknown, unknown)
        assert (refused.status, refused.error_code) == (400, "INSUFFICIENT_FUNDS")
    assert bank.received_micro() == 10_000
    assert json.loads(bank.hub.settles[0])["paymentRequirements"]["amount"] == "10000"


async def test_what_is_refused_while_its_payer_s_code_is_away_is_made_by_the_same_request_later(bank: Bank) -> None:
    chain = bank.chain
    wallet = chain.plant_smart_wallet(bank.buyer.wallet.address)
    chain.mint(wallet, 1_000_000)
    code = chain.rpc.call("eth_getCode", wallet, "latest")
    payload = bank.signed(payer=wallet)
    chain.rpc.call("anvil_setCode", wallet, "0x")
    refused = await bank.ask(payload, payload)
    assert (refused.status, refused.error_code) == (400, "INVALID_SIGNATURE")
    chain.rpc.call("anvil_setCode", wallet, code)
    assert (await bank.ask(payload, payload)).json()["success"] is True
    assert bank.received_micro() == 10_000
