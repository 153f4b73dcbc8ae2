"""A payer's proof: a payment of x402 version 2 spends a credit that its payer holds, and is never settled (10.3)."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, HostileHub, cut, lose_answer, run_hostile_hub
from tests.gateway.market import Market
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.version2 import (
    EVM,
    SOLANA,
    Client,
    Json,
    authorized,
    decoded,
    encoded,
    in_version_1,
    receipt,
    required,
    shown,
    signed,
    wallet_of,
)
from tests.specification.client import Wallet
from tollkeeper.core.evm.encoding import checksum_address, transfer_calldata
from tollkeeper.core.http.rate_limits import RequestLimits
from tollkeeper.core.x402.version1 import EvmPayload, parse_payload
from tollkeeper.gateway.call import state
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import TestWallet, derive_wallets
from tollkeeper.settings.model import Role

PAYEE = "0x" + "77" * 20
ONCE = 1_000
PRICE_MICRO = 10_000


@dataclass(slots=True)
class Shop:
    """A gateway whose hub is behind a proxy that notes all that is asked of it, on a chain of its own."""

    url: str
    hub: HostileHub
    chain: ChainUnderTest
    target: RecordingTarget
    buyer: Buyer
    directory: Path

    async def ask(self, method: str, path: str, **given: Any) -> Answer:
        return await self.buyer.ask(method, self.url + path, **given)

    async def gate(self, **fields: object) -> Json:
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": PAYEE, "credits": 5, **fields}
        answer = await self.ask("POST", "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        return answer.json()

    async def client(self, **fields: object) -> Client:
        return Client(self.buyer, (await self.gate(**fields))["accessUrl"])

    def rich(self, wallet: TestWallet) -> TestWallet:
        """The wallet, which can pay for gas."""
        self.chain.rpc.call("anvil_setBalance", wallet.address, hex(10**18))
        return wallet

    def sales(self) -> int:
        """How many prices of 0.01 USDC were paid."""
        count, rest = divmod(self.chain.balance(PAYEE), PRICE_MICRO)
        assert rest == 0
        return count


@asynccontextmanager
async def opened(
    directory: Path, chain: ChainUnderTest, target: RecordingTarget, **settings: Any
) -> AsyncIterator[Shop]:
    async with (
        composed(chain.url, directory / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hub,
        composed(chain.url, directory / "gateway.db", role=Role.GATEWAY, hub_url=hub.url, **settings) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Shop(url, hub, chain, target, buyer, directory)


@pytest.fixture
async def shop(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Shop]:
    """One whose gateway has no node of its own, so that it asks the hub."""
    async with opened(tmp_path, embedded_chain, target, networks={}) as running:
        yield running


def left(answer: Answer) -> str:
    assert answer.status == 200, answer.body
    return answer.headers["x-credits-remaining"]


async def test_calls_of_a_client_that_signs_anew_each_time_spend_what_it_bought(shop: Shop) -> None:
    payer = await shop.client()
    answers = [await payer.call() for _ in range(24)]
    assert [left(answer) for answer in answers] == [*"43210" * 4, *"4321"]
    assert shop.sales() == 5
    for answer in answers:
        told, former = receipt(answer), answer.receipt
        assert told is not None
        assert former is not None
        has_bought = answer.headers["x-credits-remaining"] == "4"
        assert told.get("amount") == (None if has_bought else "0")
        assert (told["success"], told["network"], told["transaction"]) == (True, EVM, former["transaction"])
        assert ("x-credit-token" in answer.headers) == has_bought
    assert len(shop.target.requests) == 24


async def test_the_402_says_what_becomes_of_the_payment_of_who_holds_credits(shop: Shop) -> None:
    told = [required(await (await shop.client(credits=count)).ask())["error"] for count in (1, 2)]
    assert told[0] == "Payment required"
    assert told[1] == "Payment required; from a wallet that holds credits here it spends one, and is not settled"


async def test_fifty_first_calls_at_once_buy_ten_bundles_side_by_side(shop: Shop) -> None:
    payer = await shop.client()
    answers = await asyncio.gather(*(payer.call() for _ in range(50)))
    assert Counter(left(answer) for answer in answers) == dict.fromkeys("01234", 10)
    assert len({answer.headers["x-purchase-id"] for answer in answers}) == 10
    assert shop.sales() == 10


async def test_calls_of_single_credits_wait_for_nobody(shop: Shop) -> None:
    payer = await shop.client(credits=1)
    answers = await asyncio.gather(*(payer.call() for _ in range(10)))
    assert [left(answer) for answer in answers] == ["0"] * 10
    assert shop.sales() == 10


async def test_one_payment_at_once_as_proof_and_as_purchase_is_one_and_never_both(market: Market) -> None:
    gate = await market.gate(credits=ONCE)
    payer = Client(market.buyer, gate["accessUrl"])
    offer, wallet, room = await payer.offer(), wallet_of(market.buyer), asyncio.Semaphore(20)
    assert left(await payer.pay(signed(offer, wallet))) == str(ONCE - 1)

    async def both(at: int) -> Answer:
        async with room:
            payment = signed(offer, wallet)
            asked = [payer.pay(payment), payer.pay(payment, X_Credits="buy")]
            answers = await asyncio.gather(*asked[:: 1 if at % 2 else -1])
        assert sorted(answer.status for answer in answers) == [200, 403], [answer.body for answer in answers]
        return next(answer for answer in answers if answer.status == 200)

    told = [receipt(served) or {} for served in await asyncio.gather(*map(both, range(ONCE)))]
    bought = 1 + sum("amount" not in one for one in told)
    counters = await market.counters(gate, lambda counters: counters["calls"] == 1 + ONCE)
    assert (counters["purchases"], counters["calls"]) == (bought, 1 + ONCE)
    assert len(market.target.requests) == 1 + ONCE


async def test_a_proof_shown_again_spends_nothing(shop: Shop) -> None:
    payer = await shop.client(credits=3)
    assert left(await payer.call()) == "2"
    proof = await payer.payment()
    assert left(await payer.pay(proof)) == "1"
    forms = {"PAYMENT_SIGNATURE": proof}, {"X_Payment": proof}, {"X_Payment": in_version_1(proof)}
    again = [await payer.ask(**form) for form in (*forms, {**forms[0], "X_Credits": "buy"})]
    assert {(answer.status, answer.error_code) for answer in again} == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert left(await payer.call()) == "0"
    late = await payer.pay(proof)
    assert (late.status, late.error_code) == (402, "NONCE_ALREADY_USED")
    assert required(late)["accepts"]
    other = await shop.client()
    elsewhere = await other.pay(proof)
    assert (elsewhere.status, elsewhere.error_code) == (402, "NONCE_ALREADY_USED")
    assert shop.sales() == 1
    assert len(shop.target.requests) == 3


async def test_a_payment_that_the_chain_has_used_spends_nothing(shop: Shop) -> None:
    payer = await shop.client()
    assert left(await payer.call()) == "4"
    by_hub, by_somebody = await payer.payment(), await payer.payment()
    body = decoded(by_hub)
    asked = {"x402Version": 2, "paymentPayload": body, "paymentRequirements": body["accepted"]}
    settled = await shop.buyer.ask("POST", shop.hub.url + "/settle", body=asked)
    assert settled.json()["success"] is True
    payload = parse_payload(decoded(by_somebody)["payload"])
    assert isinstance(payload, EvmPayload)
    data, sender = transfer_calldata(payload.authorization, payload.signature), shop.rich(derive_wallets().second_buyer)
    await asyncio.to_thread(shop.chain.send_and_wait, sender, body["accepted"]["asset"], data)
    for used in (by_hub, by_somebody):
        refused = await payer.pay(used)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
    assert left(await payer.call()) == "3"


async def test_a_payment_of_other_terms_spends_nothing(shop: Shop) -> None:
    payer = await shop.client()
    assert left(await payer.call()) == "4"
    offer, wallet = await payer.offer(), wallet_of(shop.buyer)
    stranger = Wallet("0x" + derive_wallets().second_buyer.private_key.hex())
    elsewhere = checksum_address("0x" + "12" * 20)
    of_payer = {"from": wallet.address}
    refused = {
        "another recipient": signed({**offer, "payTo": elsewhere}, wallet),
        "one that is not in what it takes": signed(offer, wallet, to=elsewhere),
        "less": signed(offer, wallet, value="9999"),
        "more": signed(offer, wallet, value="10001"),
        "another network": shown({**offer, "network": SOLANA}, authorized(offer, wallet)),
        "another chain": signed({**offer, "network": "eip155:8453"}, wallet),
        "over": signed(offer, wallet, validBefore=str(int(time.time()) - 1)),
        "to come": signed(offer, wallet, validAfter=str(int(time.time()) + 50)),
        "a stranger's": shown(offer, authorized(offer, stranger, **of_payer)),
    }
    for name, payment in refused.items():
        answer = await payer.pay(payment)
        assert answer.status == 402, (name, answer.body)
    assert shop.sales() == 1
    far = await payer.pay(signed(offer, wallet, validBefore=str(int(time.time()) + 3600)))
    assert (left(far), shop.sales()) == ("4", 2)  # it buys, as every payment does that is no proof
    assert [left(await payer.call()) for _ in range(8)] == [*"32103210"]


async def test_who_rebuilds_the_header_that_bought_spends_nothing(shop: Shop) -> None:
    payer = await shop.client()
    payment = await payer.payment()
    assert left(await payer.pay(payment)) == "4"
    body = decoded(payment)
    rebuilt = [payment, in_version_1(payment), encoded({**body, "resource": {"url": "https://elsewhere.example/"}})]
    answers = [await payer.ask(**{name: one}) for one in rebuilt for name in ("PAYMENT_SIGNATURE", "X_Payment")]
    assert {(answer.status, answer.error_code) for answer in answers} == {(403, "CREDIT_TOKEN_REQUIRED")}
    assert left(await payer.call()) == "3"


async def test_an_empty_wallet_spends_what_it_holds(shop: Shop) -> None:
    payer = await shop.client(credits=2)
    assert left(await payer.call()) == "1"
    mover = shop.rich(shop.chain.wallets.buyer)
    everything = shop.chain.balance(mover.address)
    words = bytes(12) + bytes.fromhex("99" * 20) + everything.to_bytes(32)
    transfer = bytes.fromhex("a9059cbb") + words
    await asyncio.to_thread(shop.chain.send_and_wait, mover, (await payer.offer())["asset"], transfer)
    assert shop.chain.balance(mover.address) == 0
    assert left(await payer.call()) == "0"
    poor = await payer.call()
    assert (poor.status, poor.error_code) == (402, "INSUFFICIENT_FUNDS")


async def test_credits_that_have_expired_or_are_void_are_bought_anew(shop: Shop) -> None:
    payer = await shop.client(creditsExpireAfter=1)
    assert left(await payer.call()) == "4"
    await asyncio.sleep(1.1)
    assert left(await payer.call()) == "4"
    other = await shop.client()
    first = await other.call()
    with beside(shop.directory / "gateway.db") as database:
        named = (first.headers["x-purchase-id"],)
        database.execute("UPDATE purchases SET state = 'VOID', failure = 'gate_deleted' WHERE id = ?", named)
        database.execute(
            "UPDATE credits SET is_live = 0 WHERE number = (SELECT number FROM purchases WHERE id = ?)", named
        )
    assert left(await other.call()) == "4"
    assert shop.sales() == 4


async def test_x_credits_buy_buys_though_credits_are_held(shop: Shop) -> None:
    payer = await shop.client()
    assert [left(await payer.call(X_Credits=spend_request)) for spend_request in ("buy", " Buy", "held")] == [
        "4",
        "4",
        "3",
    ]
    assert shop.sales() == 2


async def test_a_proof_brings_neither_credit_token_nor_balance(shop: Shop) -> None:
    payer = await shop.client()
    assert left(await payer.call()) == "4"
    proof = await payer.payment()
    served = await payer.pay(proof)
    assert "x-credit-token" not in served.headers
    told = await shop.ask("GET", "/api/v1/credits", headers={"PAYMENT-SIGNATURE": proof})
    assert told.json()["data"] == []


async def test_once_a_proof_spent_the_header_that_bought_counts_no_more(shop: Shop) -> None:
    gate = await shop.gate()
    payer = Client(shop.buyer, gate["accessUrl"])
    payment = shop.buyer.sign((await payer.ask()).json())
    assert [left(await payer.ask(X_Payment=payment)) for _ in range(2)] == ["4", "3"]
    assert left(await payer.call()) == "2"
    refused = await payer.ask(X_Payment=payment)
    assert (refused.status, refused.error_code) == (403, "CREDIT_TOKEN_REQUIRED")


async def test_payments_of_version_1_buy_each_time_unless_the_gate_says_otherwise(shop: Shop) -> None:
    for is_proof, wanted in ((False, ["4", "4"]), (True, ["4", "3"])):
        gate = await shop.gate(payerProof=is_proof)
        assert gate["payerProof"] is is_proof
        payer = Client(shop.buyer, gate["accessUrl"])
        answers = [await payer.ask(X_Payment=shop.buyer.sign((await payer.ask()).json())) for _ in range(2)]
        assert [left(answer) for answer in answers] == wanted
        assert {receipt(answer) for answer in answers} == {None}
    assert shop.sales() == 3


async def test_a_gate_that_is_not_enabled_serves_what_is_held_and_sells_nothing(shop: Shop) -> None:
    gate = await shop.gate(credits=2)
    payer = Client(shop.buyer, gate["accessUrl"])
    offer = await payer.offer()
    assert left(await payer.call()) == "1"
    off = await shop.ask("PUT", f"/api/v1/paygates/{gate['id']}", body={"isEnabled": False})
    assert off.status == 200
    wallet = wallet_of(shop.buyer)
    assert left(await payer.pay(signed(offer, wallet))) == "0"
    assert (await payer.pay(signed(offer, wallet))).status == 404
    assert shop.sales() == 1


async def test_what_the_gate_binds_credits_to_holds_for_proofs(shop: Shop) -> None:
    bearer = await shop.buyer.login(shop.url)
    assert [left(await (await shop.client(creditBinding="token")).call())] == ["4"]
    for binding in ("token", "wallet"):
        payer = await shop.client(creditBinding=binding)
        with_bearer = {"Authorization": f"Bearer {bearer}"}
        assert left(await payer.pay(await payer.payment(), **with_bearer)) == "4"
        alone = await payer.pay(await payer.payment())
        assert (alone.status, alone.headers.get("x-credits-remaining")) == (
            (200, "3") if binding == "token" else (401, None)
        )
        assert left(await payer.pay(await payer.payment(), **with_bearer)) == ("2" if binding == "token" else "3")
    strict = await shop.client(requireAuth=True)
    assert left(await strict.pay(await payer_payment(strict, bearer), Authorization=f"Bearer {bearer}")) == "4"
    assert (await strict.pay(await payer_payment(strict, bearer))).status == 401
    assert shop.sales() == 4


async def payer_payment(payer: Client, bearer: str) -> str:
    """A payment at a gate that wants to know who asks."""
    return signed(await payer.offer(Authorization=f"Bearer {bearer}"), wallet_of(payer.buyer))


@pytest.mark.sqlite_only("it reads the bytes of its file")
async def test_no_proof_is_settled_logged_stored_or_sent_out(
    shop: Shop, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    payer = await shop.client(credits=3)
    assert left(await payer.call()) == "2"
    shop.hub.asked.clear()
    proofs = [await payer.payment() for _ in range(2)]
    assert [left(await payer.pay(proof)) for proof in proofs] == ["1", "0"]
    assert (await payer.pay(proofs[0])).status == 402
    said = "".join(capfd.readouterr()) + caplog.text + "".join(shop.hub.asked)
    asked = [line.split(" ")[1] for line in shop.hub.asked]
    kept = b"".join(
        path.read_bytes() for path in shop.directory.iterdir() if path.is_file() and path.name.startswith("gateway.db")
    )
    told = [(name, value) for request in shop.target.requests for name, value in request.headers]
    assert asked == ["/standing"] * 2
    for proof in proofs:
        body = decoded(proof)
        signature = body["payload"]["signature"][2:]
        for part in (proof, proof[:64], signature, signature[:40], signature[64:104]):
            assert part not in said
            assert part not in str(told)
            assert part.encode() not in kept
        for part in (signature, signature[:64]):
            assert bytes.fromhex(part) not in kept
        assert body["payload"]["authorization"]["nonce"].encode() in kept  # its name alone
        assert not shop.chain.is_used(shop.buyer.wallet.address, body["payload"]["authorization"]["nonce"])


async def test_a_gateway_asks_a_node_of_its_own_where_it_has_one(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with opened(tmp_path, embedded_chain, target) as shop:
        payer = await shop.client()
        answers = [await payer.call() for _ in range(6)]
        assert [left(answer) for answer in answers] == [*"432104"]
        assert not any("/standing" in asked for asked in shop.hub.asked)
        used = await payer.payment()
        body = decoded(used)
        asked = {"x402Version": 2, "paymentPayload": body, "paymentRequirements": body["accepted"]}
        assert (await shop.buyer.ask("POST", shop.hub.url + "/settle", body=asked)).json()["success"] is True
        refused = await payer.pay(used)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        assert left(await payer.call()) == "3"


@pytest.mark.parametrize("sees", [True, False])
async def test_a_contract_wallet_is_asked_at_a_node_of_the_gateway_s_own_and_buys_without_one(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget, *, sees: bool
) -> None:
    settings: Json = {} if sees else {"networks": {}}
    async with opened(tmp_path, embedded_chain, target, **settings) as shop:
        contract = shop.chain.plant_smart_wallet(shop.buyer.wallet.address)
        shop.chain.mint(contract, 1_000_000)
        payer, of_contract = await shop.client(), {"from": checksum_address(contract)}
        offer, owner = await payer.offer(), wallet_of(shop.buyer)
        stranger = Wallet("0x" + derive_wallets().second_buyer.private_key.hex())
        answers = [await payer.pay(shown(offer, authorized(offer, owner, **of_contract))) for _ in range(2)]
        assert [left(answer) for answer in answers] == ["4", "3" if sees else "4"]
        assert (await payer.pay(shown(offer, authorized(offer, stranger, **of_contract)))).status == 402
        assert shop.sales() == (1 if sees else 2)


async def test_a_node_that_cannot_be_asked_charges_nothing(shop: Shop) -> None:
    payer = await shop.client()
    assert left(await payer.call()) == "4"
    proof = await payer.payment()
    shop.hub.is_down = True
    refused = await payer.pay(proof)
    assert (refused.status, refused.error_code) == (503, "UNAVAILABLE")
    shop.hub.is_down = False
    assert left(await payer.pay(proof)) == "3"
    assert shop.sales() == 1


async def test_who_waits_for_a_purchase_longer_than_calls_wait_is_told_of_it_and_not_claimed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    payer = await shop.client()
    arrived, go = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        arrived.set()
        await go.wait()
        return await forward()

    shop.hub.settling = late
    first = asyncio.create_task(payer.call())
    await arrived.wait()
    monkeypatch.setattr(state, "SETTLE_WAIT_SECONDS", 1)
    second = await payer.payment()
    pending = await payer.pay(second)
    assert (pending.status, pending.error_code) == (503, "SETTLEMENT_PENDING")
    told = receipt(pending)
    assert told is not None
    assert (told["success"], told["errorReason"]) == (False, "settlement_pending")
    monkeypatch.undo()
    waiting = asyncio.create_task(payer.pay(second))
    go.set()
    assert sorted([left(await first), left(await waiting)]) == ["3", "4"]
    assert shop.sales() == 1


async def test_a_claim_whose_outcome_nobody_knows_yet_is_waited_for(shop: Shop) -> None:
    payer = await shop.client(credits=2)
    shop.hub.settling = lose_answer
    bought = await payer.payment()
    assert (await payer.pay(bought)).status == 503
    shop.hub.settling = HostileHub().settling
    second = asyncio.create_task(payer.call())  # it waits for recovery, or for the buyer
    assert left(await payer.pay(bought)) in {"0", "1"}
    assert left(await second) in {"0", "1"}
    assert shop.sales() == 1


async def test_a_purchase_that_fails_leaves_its_waiters_to_buy(shop: Shop) -> None:
    payer = await shop.client()
    refused = {"success": False, "errorReason": "insufficient_funds", "transaction": "", "network": "base-sepolia"}
    held, go = asyncio.Event(), asyncio.Event()

    async def fail(_request: web.Request, _forward: Forward) -> web.StreamResponse:
        held.set()
        await go.wait()
        return web.Response(status=200, text=json.dumps(refused), content_type="application/json")

    shop.hub.settling = fail
    first = asyncio.create_task(payer.call())
    await held.wait()
    others = [asyncio.create_task(payer.call()) for _ in range(4)]
    await asyncio.sleep(0.5)  # until they wait, where this machine is quick; else one of them buys, too
    shop.hub.settling = HostileHub().settling
    go.set()
    assert (await first).status == 402
    assert sorted([left(await other) for other in others]) == [*"1234"]
    assert shop.sales() == 1


async def test_a_client_that_leaves_gives_up_its_place(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    payer = await shop.client(credits=2)
    held, go = asyncio.Event(), asyncio.Event()

    async def late(_request: web.Request, forward: Forward) -> web.StreamResponse:
        held.set()
        await go.wait()
        return await forward()

    shop.hub.settling = late
    first = asyncio.create_task(payer.call())
    await held.wait()
    gone = asyncio.create_task(payer.call())
    await asyncio.sleep(0.3)
    gone.cancel()
    said, deadline = "", time.monotonic() + 30
    while "client_gone" not in said and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
        said += capfd.readouterr().out
    second = asyncio.create_task(payer.call())
    await asyncio.sleep(0.3)
    go.set()
    assert sorted([left(await first), left(await second)]) == [*"01"]
    assert shop.sales() == 1


async def test_a_stock_client_is_never_over_the_limit_of_unpaid_requests(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    limits = RequestLimits(unpaid=3, api=1000, wallet=1000, login=1000)
    async with (
        composed(embedded_chain.url, tmp_path / "one.db", request_limits=limits) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        body = {"price": "0.01", "targetUrl": target.url, "paymentAddress": PAYEE, "credits": 20}
        gate = (await buyer.ask("POST", url + "/api/v1/paygates", body=body)).json()
        payer = Client(buyer, gate["accessUrl"])
        assert [left(await payer.call()) for _ in range(20)] == [str(19 - at) for at in range(20)]


async def test_a_credit_given_back_is_spent_by_the_next_proof(shop: Shop) -> None:
    payer = await shop.client(credits=2, onFailure="restore")
    assert left(await payer.call()) == "1"

    async def fail(_request: object, writer: Any) -> None:
        writer.close()

    answer_before, shop.target.answer = shop.target.answer, fail
    failed = await payer.call()
    assert (failed.status, failed.headers["x-credits-remaining"]) == (502, "1")
    shop.target.answer = answer_before
    assert left(await payer.call()) == "0"
    assert shop.sales() == 1


async def test_it_is_counted_and_logged_as_a_call_on_a_held_credit(shop: Shop) -> None:
    bearer = await shop.buyer.login(shop.url)
    gate = await shop.ask(
        "POST",
        "/api/v1/paygates",
        headers={"Authorization": f"Bearer {bearer}"},
        body={"price": "0.01", "targetUrl": shop.target.url, "paymentAddress": PAYEE, "credits": 5},
    )
    payer = Client(shop.buyer, gate.json()["accessUrl"])
    answers = [await payer.call() for _ in range(3)]
    assert [left(answer) for answer in answers] == [*"432"]
    gate_id, deadline = gate.json()["id"], time.monotonic() + 30
    while time.monotonic() < deadline:
        counters = (
            await shop.ask("GET", f"/api/v1/paygates/{gate_id}", headers={"Authorization": f"Bearer {bearer}"})
        ).json()["counters"]
        if counters["calls"] == 3:
            break
        await asyncio.sleep(0.05)
    assert (counters["purchases"], counters["calls"], counters["revenue"]) == (1, 3, "0.01")
    while time.monotonic() < deadline:
        log = (
            await shop.ask("GET", f"/api/v1/paygates/{gate_id}/requests", headers={"Authorization": f"Bearer {bearer}"})
        ).json()["data"]
        served = [one for one in log if one["status"] == 200]
        if len(served) == 3:
            break
        await asyncio.sleep(0.05)
    purchase = {answers[0].headers["x-purchase-id"]}
    assert {one["purchaseId"] for one in served} == purchase, log


async def test_a_lost_connection_to_the_hub_at_the_purchase_leaves_no_waiter_behind(shop: Shop) -> None:
    payer = await shop.client()
    shop.hub.verifying = cut
    assert {(await payer.call()).status for _ in range(2)} == {503}
    shop.hub.verifying = HostileHub().verifying
    assert left(await payer.call()) == "4"
