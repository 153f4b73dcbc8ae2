"""Verify, settle, transfer and history on Solana (specification 4.4, 4.3; contract 5, 7; A-27 to A-32, F1 to F5)."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from structlog.testing import capture_logs

from tests.auth.server import SolanaWallet
from tests.chains.solana_node import BUYER, FEE_PAYER, SECOND_FEE_PAYER, WALLETS, drafted, paid_for_by, paying
from tests.core.solana_payments import compute_limit, compute_price, encoded, lighthouse, memo, signed_again, transfer
from tests.hub.hub_under_test import Answer
from tests.hub.solana_hub import NETWORK, USDC, SolanaHub, body_of, hub_of, message_hash, run_solana_hub
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.chains.solana.config import RENT_EXEMPT_LAMPORTS
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.core.solana.programs import LIGHTHOUSE_PROGRAM, MEMO_PROGRAM, TOKEN_2022_PROGRAM
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode

FEE_LAMPORTS = 2 * 5_000 + 1  # of the payments that the tests make
OWNER = WALLETS.owner.address


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


async def test_a_payment_is_verified_and_settled(world: SolanaHub) -> None:
    body = world.payment()
    verified = await world.verify(body)
    assert (verified.status, verified.body["isValid"], verified.body["invalidReason"]) == (200, True, None)
    assert verified.body["payer"] == WALLETS.buyer.address
    assert world.earned == 0
    money = world.fee_money
    settled = await world.settle(body)
    assert settled.status == 200
    assert settled.body["success"] is True
    assert settled.body["status"] == "success"
    assert settled.body["network"] == NETWORK
    assert settled.body["amount"] == "10000"
    assert settled.body["payer"] == WALLETS.buyer.address
    assert settled.body["errorReason"] is None
    assert world.node.chain.executed[settled.body["transaction"]].error is None
    assert world.earned == 10_000
    assert money - world.fee_money == FEE_LAMPORTS


async def test_every_check_is_explained(world: SolanaHub) -> None:
    answer = await world.hub.post("/verify?explain=true", world.payment())
    names = [check["name"] for check in answer.body["checks"]]
    assert all(check["ok"] for check in answer.body["checks"])
    assert {"transaction", "feePayer", "feePayerIsolated", "computePriceMax", "signature", "recipient", "value"} < {
        *names
    }
    assert names[-1] == "simulation"
    wrong = world.payment(9_999)
    wrong["paymentRequirements"]["maxAmountRequired"] = "10000"
    answer = await world.hub.post("/verify?explain=true", wrong)
    assert answer.reason == "invalid_exact_svm_payload_amount_insufficient"
    assert [check["name"] for check in answer.body["checks"] if not check["ok"]] == ["value"]
    assert answer.body["checks"][-1]["name"] == "simulation"
    unreadable = await world.hub.post("/verify?explain=true", body_of(encoded(b"x"), 1))
    assert [check["name"] for check in unreadable.body["checks"] if not check["ok"]] == ["transaction"]


@pytest.mark.parametrize(
    ("amount", "requirements", "reason"),
    [
        (10_001, {}, "invalid_exact_svm_payload_transaction_amount_mismatch"),
        (9_999, {}, "invalid_exact_svm_payload_amount_insufficient"),
        (
            10_000,
            {"payTo": WALLETS.second_buyer.address},
            "invalid_exact_svm_payload_transaction_transfer_to_incorrect_ata",
        ),
        (10_000, {"payTo": "0x209693bc6afc0c5328ba36faf03c514ef312287c"}, "invalid_payment_requirements"),
        (10_000, {"asset": OWNER}, "invalid_payment_requirements"),
        (10_000, {"network": "base-sepolia"}, "invalid_network"),
        (10_000, {"network": "solana-mainnet"}, "invalid_network"),
        (10_000, {"scheme": "upto"}, "unsupported_scheme"),
        (10_000, {"extra": {"feePayer": OWNER}}, "invalid_exact_svm_fee_payer_mismatch"),
        (10_000, {"extra": {"memo": "order 7"}}, "invalid_exact_svm_payload_memo_mismatch"),
    ],
)
async def test_what_does_not_meet_the_requirements_is_named(
    world: SolanaHub, amount: int, requirements: dict[str, Any], reason: str
) -> None:
    body = world.asking(paying(world.node, amount), 10_000, **requirements)
    assert (await world.verify(body)).reason == reason
    settled = await world.settle(body)
    assert (settled.status, settled.reason, settled.body["status"]) == (200, reason, "failed")
    assert world.earned == 0


async def test_what_is_refused_is_told_with_the_amount_that_was_signed(world: SolanaHub) -> None:
    body = world.asking(paying(world.node, 9_999), 10_000)
    assert (await world.settle(body)).body["amount"] == "9999"
    unreadable = await world.settle(body_of(encoded(b"x"), 10_000))
    assert (unreadable.body["amount"], unreadable.body["payer"]) == ("10000", None)


async def test_an_authorization_is_no_payment_on_solana(world: SolanaHub) -> None:
    body = world.payment()
    body["paymentPayload"]["payload"] = {
        "signature": "0x" + "11" * 65,
        "authorization": {
            "from": "0x" + "11" * 20,
            "to": "0x" + "22" * 20,
            "value": "1",
            "validAfter": "0",
            "validBefore": "9999999999",
            "nonce": "0x" + "33" * 32,
        },
    }
    assert (await world.verify(body)).reason == "invalid_payload"
    assert (await world.settle(body)).reason == "invalid_payload"


async def test_what_the_chain_would_refuse_costs_nothing(world: SolanaHub) -> None:
    money = world.fee_money
    stranger = str(FEE_PAYER.pubkey())
    cases = {
        "insufficient_funds": world.payment(BUYER_MICRO + 1),
        "invalid_exact_svm_payload_transaction_receiver_ata_not_found": world.asking(
            paying(world.node, 5, pay_to=stranger), 5, payTo=stranger
        ),
    }
    old = world.payment()
    for reason, body in cases.items():
        assert (await world.verify(body)).reason == reason
        assert (await world.settle(body)).reason == reason
        assert await world.status(body) == "unknown"
    world.node.chain.next_slot(RECENT_SLOTS + 1)
    assert (await world.verify(old)).reason == "settle_exact_svm_block_height_exceeded"
    assert (await world.settle(old)).reason == "settle_exact_svm_block_height_exceeded"
    assert world.fee_money == money
    assert world.node.chain.executed == {}


async def test_a_success_is_handed_out_once(world: SolanaHub) -> None:
    body = world.payment()
    first = await world.settle(body, Idempotency_Key="mine")
    again = await world.settle(body)
    assert (again.body["success"], again.reason) == (False, "duplicate_settlement")
    assert again.body["transaction"] == first.body["transaction"]
    shown = await world.settle(body, Idempotency_Key="mine")
    assert (shown.body["success"], shown.body["transaction"]) == (True, first.body["transaction"])
    assert (await world.verify(body)).reason == "duplicate_settlement"
    assert world.earned == 10_000


@pytest.mark.parametrize("slots", [0, RECENT_SLOTS + 1])
async def test_what_the_hub_settled_is_told_with_its_transaction_however_late_it_is_verified(
    world: SolanaHub, slots: int
) -> None:
    """It was charged: "expired", or "no money", would tell the buyer to pay again."""
    body = world.payment()
    paid = await world.settle(body)
    assert (await world.settle(world.payment(BUYER_MICRO - 10_000))).body["success"]
    world.node.chain.next_slot(slots)
    plain, explained = await world.verify(body), await world.hub.post("/verify?explain=true", body)
    for answer in (plain, explained):
        assert (answer.body["isValid"], answer.reason) == (False, "duplicate_settlement")
        assert answer.body["transaction"] == paid.body["transaction"]
    assert not all(check["ok"] for check in explained.body["checks"])


async def test_what_failed_by_proof_is_told_as_expired(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    world.node.chain.drop()
    world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
    await world.complete()
    verified = await world.verify(body)
    assert verified.reason == "settle_exact_svm_block_height_exceeded"
    assert "transaction" not in verified.body


async def test_another_valid_signature_of_the_same_message_is_the_same_payment(world: SolanaHub) -> None:
    body = world.payment()
    raw = base64.b64decode(body["paymentPayload"]["payload"]["transaction"])
    assert (await world.settle(body)).body["success"]
    changed = bytearray(raw)
    changed[70] ^= 1
    forged = body_of(encoded(bytes(changed)), 10_000)
    assert (await world.settle(forged)).reason == "invalid_exact_svm_payload_signature_invalid"
    full = body_of(encoded(raw[:1] + b"\x07" * 64 + raw[65:]), 10_000)
    assert (await world.settle(full)).reason == "invalid_exact_svm_payload_transaction"


@pytest.mark.parametrize("settled_with", [0, 1])
async def test_of_two_valid_signatures_of_a_message_either_is_the_payment_and_one_is_its_name(
    world: SolanaHub, settled_with: int
) -> None:
    """Nothing in the other one shows which message it is of; the 404 says what the payment's names are."""
    draft = paying(world.node, 10_000)
    payloads = [draft.payload(), signed_again(draft.payload(), WALLETS.buyer.seed)]
    bodies = [body_of(payload, 10_000) for payload in payloads]
    names = [encode(read_transaction(base64.b64decode(payload.transaction)).signatures[1]) for payload in payloads]
    assert names[0] != names[1]
    assert message_hash(bodies[0]) == message_hash(bodies[1])
    assert [(await world.verify(body)).body["isValid"] for body in bodies] == [True, True]
    paid = await world.settle(bodies[settled_with])
    assert paid.body["success"] is True
    other = await world.settle(bodies[1 - settled_with])
    assert (other.reason, other.body["transaction"]) == ("duplicate_settlement", paid.body["transaction"])
    assert world.earned == 10_000
    for name in (names[settled_with], message_hash(bodies[0])):
        assert (await world.hub.get(f"/payments/{NETWORK}/{name}")).body["transaction"] == paid.body["transaction"]
    unknown = await world.hub.get(f"/payments/{NETWORK}/{names[1 - settled_with]}")
    assert (unknown.status, unknown.code) == (404, "NOT_FOUND")
    assert "its message's hash" in unknown.body["error"]["message"]
    assert "that it was settled with" in unknown.body["error"]["message"]


async def test_a_thousand_settles_at_once_have_one_success(world: SolanaHub) -> None:
    body = world.payment()
    money = world.fee_money

    async def settled(*, confirm: bool) -> Answer:
        """On a slow machine those who do not wait for confirmation may learn that it is pending, and ask again."""
        while (answer := await world.settle(body, confirm=confirm)).status == 503:
            assert answer.body["error"]["code"] == "SETTLEMENT_PENDING"
        return answer

    async with asyncio.timeout(120):
        answers = await asyncio.gather(*(settled(confirm=number % 2 == 0) for number in range(1000)))
    assert [answer.status for answer in answers] == [200] * 1000
    reasons = [answer.reason for answer in answers]
    assert reasons.count(None) == 1
    assert reasons.count("duplicate_settlement") == 999
    assert len({answer.body["transaction"] for answer in answers}) == 1
    assert len(world.node.chain.executed) == 1
    assert world.earned == 10_000
    assert money - world.fee_money == FEE_LAMPORTS


async def test_many_payments_at_once_are_all_settled_by_both_fee_payers(world: SolanaHub) -> None:
    bodies = []
    for number in range(60):
        draft = paying(world.node, 1_000)
        bodies.append(world.asking(paid_for_by(draft, SECOND_FEE_PAYER) if number % 2 else draft, 1_000, extra={}))
    answers = await asyncio.gather(*(world.settle(body) for body in bodies))
    assert all(answer.body["success"] for answer in answers)
    assert world.earned == 60_000


async def told_of(world: SolanaHub, body: dict[str, Any]) -> list[str | None]:
    """The transactions that the status of a payment and its history name."""
    status = (await world.hub.get(f"/payments/{NETWORK}/{message_hash(body)}")).body
    items = await world.hub.get("/api/v1/history?limit=100", Authorization=await log_in(world, WALLETS.buyer.seed))
    (item,) = [one for one in items.body["history"] if one["x402Data"]["messageHash"] == message_hash(body)]
    return [status["transaction"], item["transactionHash"]]


async def test_a_payment_that_fails_on_the_chain_is_no_success_and_never_tried_again(world: SolanaHub) -> None:
    """It passes the simulation, and the money is gone when it is executed."""
    world.node.chain.holds = True
    half = BUYER_MICRO // 2
    body, other = world.payment(half), world.payment(half)
    waiting = [asyncio.create_task(world.settle(one)) for one in (body, other)]
    while len(world.node.chain._waiting) < 2:  # noqa: SLF001, ASYNC110 - the node's own list
        await asyncio.sleep(0.01)
    world.node.chain.open_account(WALLETS.buyer.address, -half)
    world.node.chain.release()
    world.node.chain.next_slot(FINAL_SLOTS)  # until then another branch may still carry out the other one
    answers = await asyncio.gather(*waiting)
    assert sorted(answer.body["success"] for answer in answers) == [False, True]
    failed = next(answer for answer in answers if not answer.body["success"])
    assert failed.reason == "invalid_exact_svm_transaction_failed"
    assert world.node.chain.executed[failed.body["transaction"]].error is not None
    loser = body if answers[0] is failed else other
    assert await world.status(loser) == "failed"
    assert await told_of(world, loser) == [failed.body["transaction"]] * 2
    executed = len(world.node.chain.executed)
    assert (await world.settle(loser)).reason == "invalid_exact_svm_transaction_failed"
    assert len(world.node.chain.executed) == executed


async def test_an_unknown_outcome_is_pending_until_it_is_known(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    answer = await world.settle(body, Prefer="wait=0")
    assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
    details = answer.body["error"]["details"]
    assert details["statusUrl"].endswith(f"/payments/{NETWORK}/{message_hash(body)}")
    assert await world.status(body) == "pending"
    await world.complete()
    assert await world.status(body) == "pending"
    world.node.chain.release()
    await world.complete()
    assert await world.status(body) == "success"
    given = await world.settle(body)
    assert (given.body["success"], given.body["transaction"]) == (True, details["transaction"])
    assert await told_of(world, body) == [details["transaction"]] * 2
    assert world.earned == 10_000


async def test_what_a_node_lost_is_sent_again(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    world.node.chain.drop()
    world.node.chain.release()
    await world.complete()
    await world.complete()
    assert await world.status(body) == "success"
    assert world.earned == 10_000


async def test_a_payment_expires_by_proof_and_not_before(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    assert (await world.settle(body, Prefer="wait=0")).status == 503
    world.node.chain.drop()
    world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + 1)
    await world.complete()
    assert await world.status(body) == "pending"  # a fork could still show it
    world.node.chain.next_slot(FINAL_SLOTS)
    await world.complete()
    assert await world.status(body) == "failed"
    world.node.chain.release()
    again = await world.settle(body)
    assert (again.body["success"], again.reason) == (False, "settle_exact_svm_block_height_exceeded")
    assert world.earned == 0


async def test_without_confirmation_a_node_that_took_it_is_enough(world: SolanaHub) -> None:
    world.node.chain.holds = True
    body = world.payment()
    answer = await world.settle(body, confirm=False, Prefer="wait=0")
    assert answer.body["success"] is True
    assert await world.status(body) == "pending"
    world.node.chain.release()
    await world.complete()
    assert await world.status(body) == "success"


async def test_what_a_former_run_left_is_finished(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        node.chain.holds = True
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            pending = await world.settle(body, Prefer="wait=0")
        node.chain.drop()
        node.chain.release()
        async with hub_of(tmp_path, node) as world:
            await world.complete()
            await world.complete()
            assert await world.status(body) == "success"
            given = await world.settle(body)
            assert given.body["transaction"] == pending.body["error"]["details"]["transaction"]
        assert len(node.chain.executed) == 1


async def test_a_node_that_is_gone_starts_nothing(world: SolanaHub) -> None:
    body = world.payment()
    await world.node.stop()
    for answer in (await world.verify(body), await world.settle(body)):
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")
    assert await world.status(body) == "unknown"
    ready = await world.hub.get("/readyz")
    assert ready.status == 503


async def test_a_fee_payer_without_money_settles_nothing(world: SolanaHub) -> None:
    world.node.chain.drain(str(FEE_PAYER.pubkey()))
    body = world.payment()
    for answer in (await world.verify(body), await world.settle(body)):
        assert (answer.status, answer.code) == (503, "UNAVAILABLE")
    assert any("gas money" in problem for problem in world.hub.hub.shortages())


@pytest.mark.parametrize("is_ours", [True, False])
async def test_no_question_about_a_transaction_that_we_would_not_sign_says_that_our_money_is_gone(
    world: SolanaHub, *, is_ours: bool
) -> None:
    """A stranger's fee may be any, and a stranger's fee payer need not be there."""
    before = (await world.hub.get("/supported")).body["kinds"]
    moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER)
    draft = drafted(world.node, compute_limit(), compute_price(2**63 if is_ours else 1), moved)
    body = world.asking(draft if is_ours else paid_for_by(draft, Keypair()))
    with capture_logs() as logs:
        answer = await world.hub.post("/verify?explain=true", body)
    assert answer.status == 200
    wrong = [check["name"] for check in answer.body["checks"] if not check["ok"]]
    assert wrong == (["computePriceMax"] if is_ours else ["feePayer"])
    assert not [line for line in logs if line["event"] == "signer_without_gas"]
    assert (await world.hub.get("/supported")).body["kinds"] == before
    assert (await world.hub.hub.unreadiness(), world.hub.hub.shortages()) == ([], [])


@pytest.mark.parametrize("spare", [0, 50_000 - 1, 50_000])
async def test_what_exempts_a_fee_payer_from_rent_is_not_its_to_spend(world: SolanaHub, spare: int) -> None:
    """Without it the chain takes no transaction of its, which is no fault of the buyer's."""
    fee_payer = str(FEE_PAYER.pubkey())
    world.node.chain.drain(fee_payer)
    world.node.chain.airdrop(fee_payer, RENT_EXEMPT_LAMPORTS + spare)
    body = world.payment()
    verified, settled = await world.verify(body), await world.settle(body)
    if spare < 50_000:  # the most that one may cost
        assert (settled.status, settled.code) == (503, "UNAVAILABLE")
        assert verified.status == (200 if spare else 503)  # by its own fee, which is smaller, it would pass
        assert await world.status(body) == "unknown"
        assert any("gas money" in problem for problem in world.hub.hub.shortages())
    else:
        assert (verified.body["isValid"], settled.body["success"]) == (True, True)
        assert world.node.chain.balance(fee_payer) == RENT_EXEMPT_LAMPORTS + spare - FEE_LAMPORTS


async def test_a_fee_payer_that_ran_out_of_money_is_told_with_what_it_holds_in_lamports(world: SolanaHub) -> None:
    world.node.chain.drain(str(FEE_PAYER.pubkey()))
    with capture_logs() as logs:
        await world.verify(world.payment())
    (told,) = [line for line in logs if line["event"] == "signer_without_gas"]
    assert (told["signer"], told["balance_lamports"]) == (str(FEE_PAYER.pubkey()), 0)
    assert "balance_wei" not in told


async def test_supported_names_the_network_and_a_fee_payer_that_stays(world: SolanaHub) -> None:
    first, second = (await world.hub.get("/supported")).body, (await world.hub.get("/supported")).body
    assert first["kinds"] == second["kinds"]
    newer, kind = first["kinds"]
    assert (kind["x402Version"], kind["scheme"], kind["network"]) == (1, "exact", NETWORK)
    assert newer == {**kind, "x402Version": 2, "network": NETWORKS[NETWORK].caip2}
    assert kind["extra"]["feePayer"] in [one.address for one in WALLETS.fee_payers]
    assert kind["assets"] == [{"address": USDC, "name": "USD Coin", "symbol": "USDC", "decimals": 6}]
    assert first["signers"] == {"solana:*": [one.address for one in WALLETS.fee_payers]}


async def test_the_public_status_has_two_names_and_the_path_of_every_network(world: SolanaHub) -> None:
    body = world.payment()
    settled = await world.settle(body)
    raw = base64.b64decode(body["paymentPayload"]["payload"]["transaction"])
    signature = encode(read_transaction(raw).signatures[1])
    hashed, payer = message_hash(body), WALLETS.buyer.address
    names = (hashed, hashed.upper(), signature, f"{payer}/{hashed}", f"{payer}/{hashed.upper()}")
    for answer in [await world.hub.get(f"/payments/{NETWORK}/{name}") for name in names]:
        assert answer.body["status"] == "success"
        assert answer.body["transaction"] == settled.body["transaction"]
        assert (answer.body["payer"], answer.body["payTo"]) == (payer, OWNER)
        assert (answer.body["amount"], answer.body["network"]) == ("10000", NETWORK)
    for name in ("0" * 64, f"{OWNER}/{hashed}", f"{payer.lower()}/{hashed}"):
        assert (await world.hub.get(f"/payments/{NETWORK}/{name}")).status == 404


async def test_history_shows_the_payment_to_both_sides(world: SolanaHub) -> None:
    body = world.payment()
    settled = await world.settle(body)
    for pair in (WALLETS.buyer, WALLETS.owner):
        bearer = await log_in(world, pair.seed)
        answer = await world.hub.get("/api/v1/history?limit=10", Authorization=bearer)
        (item,) = answer.body["history"]
        assert (item["network"], item["chainId"], item["type"]) == (NETWORK, None, "purchase")
        assert (item["signerAddress"], item["amount"]) == (WALLETS.buyer.address, "10000")
        assert item["transactionHash"] == settled.body["transaction"]
        data = item["x402Data"]
        assert data["messageHash"] == message_hash(body)
        assert (data["payTo"], data["asset"]) == (OWNER, USDC)
        assert data["payerSignature"]
        assert not {"validAfter", "validBefore", "nonce"} & data.keys()
        filtered = await world.hub.get(f"/api/v1/history?limit=10&network={NETWORK}", Authorization=bearer)
        assert filtered.body["pagination"]["totalCount"] == 1
        other = await world.hub.get("/api/v1/history?limit=10&network=base-sepolia", Authorization=bearer)
        assert other.body["pagination"]["totalCount"] == 0


async def log_in(world: SolanaHub, seed: bytes) -> str:
    wallet = SolanaWallet(Keypair.from_seed(seed))
    asked = await world.hub.get(f"/api/v1/auth/message?walletAddress={wallet.address}")
    signed = {"message": asked.body["message"], "signature": wallet.sign(asked.body["message"])}
    return f"Bearer {(await world.hub.post('/api/v1/auth/login', signed)).body['accessToken']}"


def moving(world: SolanaHub, amount: int = 4_000) -> dict[str, Any]:
    """The body of a transfer."""
    draft = paying(world.node, amount, pay_to=WALLETS.second_buyer.address)
    return {
        "payload": {"transaction": draft.payload().transaction},
        "network": NETWORK,
        "asset": USDC,
        "amount": str(amount),
        "recipient": WALLETS.second_buyer.address,
        "confirm": True,
    }


async def test_a_transfer_moves_what_its_caller_says(world: SolanaHub) -> None:
    body = moving(world)
    answer = await world.hub.post("/transfer", body)
    assert (answer.status, answer.body["status"], answer.body["amount"]) == (200, "success", "4000")
    account = world.node.chain.open_account(WALLETS.second_buyer.address)
    assert world.node.chain.token_balance(account) == BUYER_MICRO + 4_000
    again = await world.hub.post("/transfer", body)
    assert (again.status, again.code) == (400, "NONCE_ALREADY_USED")


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"amount": None}, "MISSING_PARAMETER"),
        ({"recipient": None}, "MISSING_PARAMETER"),
        ({"amount": "3999"}, "PAYMENT_INVALID"),
        ({"amount": "4001"}, "INSUFFICIENT_AMOUNT"),
        ({"amount": -1}, "INVALID_AMOUNT"),
        ({"recipient": OWNER}, "PAYMENT_INVALID"),
        ({"recipient": "0x209693bc6afc0c5328ba36faf03c514ef312287c"}, "INVALID_ADDRESS"),
        ({"asset": OWNER}, "PAYMENT_INVALID"),
        ({"asset": "0x036cbd53842c5426634e7929541ec2318f3dcf7e"}, "INVALID_ADDRESS"),
        ({"network": "solana-mainnet"}, "INVALID_NETWORK"),
        ({"payload": {"transaction": "AAAA"}}, "PAYMENT_INVALID"),
    ],
)
async def test_a_transfer_is_refused_with_its_code(world: SolanaHub, changes: dict[str, Any], code: str) -> None:
    answer = await world.hub.post("/transfer", {**moving(world), **changes})
    assert (answer.status, answer.code) == (400, code)
    assert world.node.chain.executed == {}


async def test_a_transfer_of_nothing_is_refused(world: SolanaHub) -> None:
    answer = await world.hub.post("/transfer", moving(world, 0))
    assert (answer.status, answer.code) == (400, "INVALID_AMOUNT")


async def test_nothing_is_settled_where_nothing_would_be_moved(world: SolanaHub) -> None:
    """It would cost the hub a fee, and whoever asks for it nothing, not even a balance."""
    money, word = world.fee_money, "invalid_exact_svm_payload_amount_insufficient"
    body = world.payment(0)
    assert (await world.verify(body)).reason == word
    assert (await world.settle(body)).reason == word
    assert await world.status(body) == "unknown"
    assert world.fee_money == money


async def test_a_payment_is_either_settled_or_transferred(world: SolanaHub) -> None:
    body = world.payment()
    assert (await world.settle(body)).body["success"]
    moved = await world.hub.post(
        "/transfer",
        {
            "payload": body["paymentPayload"]["payload"],
            "network": NETWORK,
            "asset": USDC,
            "amount": "10000",
            "recipient": OWNER,
        },
    )
    assert moved.code == "NONCE_ALREADY_USED"


async def test_a_payment_without_a_memo_is_a_payment_too(world: SolanaHub) -> None:
    """As the oldest client makes it."""
    moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER)
    body = world.asking(drafted(world.node, compute_limit(), compute_price(), moved))
    assert (await world.settle(body)).body["success"]


def guarded(world: SolanaHub) -> dict[str, Any]:
    """A payment as a wallet signs it that adds an assertion of its own."""
    moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER)
    used = (compute_limit(), compute_price(), moved, memo(), lighthouse(BUYER.pubkey()))
    return world.asking(drafted(world.node, *used))


async def test_a_wallet_s_assertion_is_carried_out_with_its_payment(world: SolanaHub) -> None:
    """By another program at Lighthouse's address, which nobody publishes apart from the clusters."""
    programs = world.node.chain._svm  # noqa: SLF001 - no cluster takes a program from its clients like this
    stand_in = programs.get_account(Pubkey.from_string(MEMO_PROGRAM))
    assert stand_in is not None
    programs.add_program(Pubkey.from_string(LIGHTHOUSE_PROGRAM), bytes(stand_in.data))
    body = guarded(world)
    assert (await world.verify(body)).body["isValid"] is True
    paid = await world.settle(body)
    assert paid.body["success"] is True
    logs = "\n".join(world.node.chain.executed[paid.body["transaction"]].logs)
    assert f"Program {LIGHTHOUSE_PROGRAM} success" in logs
    assert world.earned == 10_000


async def test_a_chain_without_lighthouse_has_its_payments_refused_and_nothing_is_charged(world: SolanaHub) -> None:
    """As the sandbox's is. The rules let them pass, and the chain's own word is told."""
    body, money = guarded(world), world.fee_money
    verified = await world.verify(body)
    assert verified.reason == "invalid_exact_svm_payload_transaction_simulation_failed"
    assert verified.body["details"]["found"] == "InvalidProgramForExecution"
    assert (await world.settle(body)).reason == verified.reason
    assert (world.fee_money, world.earned, await world.status(body)) == (money, 0, "unknown")


async def test_fees_of_an_hour_are_bounded(tmp_path: Path) -> None:
    """By what each transaction costs, which stands in it."""
    moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER)
    async with run_solana_hub(tmp_path, fee_budget_per_hour_lamports=3 * (50_000 + 3 * FEE_LAMPORTS) - 1) as world:
        money = world.fee_money
        dear = world.asking(drafted(world.node, compute_limit(400_000), compute_price(100_000), moved))
        bodies = [dear, *(world.payment() for _ in range(3))]
        answers = [await world.settle(body) for body in bodies]
        assert [answer.status for answer in answers] == [200, 200, 200, 503]
        assert answers[3].code == "UNAVAILABLE"
        assert money - world.fee_money == 50_000 + 2 * FEE_LAMPORTS


async def test_what_is_under_way_is_bounded_and_what_is_executed_makes_room(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path, settlements_max=2) as world:
        world.node.chain.holds = True
        answers = [await world.settle(world.payment(), Prefer="wait=0") for _ in range(3)]
        assert [answer.code for answer in answers] == [*["SETTLEMENT_PENDING"] * 2, "UNAVAILABLE"]
        assert int(answers[2].headers["Retry-After"]) > 0
        world.node.chain.release()
        await world.complete()
        assert (await world.settle(world.payment())).body["success"] is True


async def test_the_caps_are_the_settings(tmp_path: Path) -> None:
    caps: dict[str, Any] = {"compute_limit_max": 20_000, "compute_price_max_micro_lamports": 7}
    async with run_solana_hub(tmp_path, **caps) as world:
        moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER)
        reasons = []
        for limit, price in ((20_000, 7), (20_001, 7), (20_000, 8)):
            body = world.asking(drafted(world.node, compute_limit(limit), compute_price(price), moved))
            reasons.append((await world.settle(body)).reason)
        assert reasons == [
            None,
            "invalid_exact_svm_payload_transaction_instructions_compute_limit_instruction_too_high",
            "invalid_exact_svm_payload_transaction_instructions_compute_price_instruction_too_high",
        ]


async def test_token_2022_is_settled_where_it_is_configured(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path, token_program=TOKEN_2022_PROGRAM, is_token_2022=True) as world:
        kind, _ = (await world.hub.get("/supported")).body["kinds"]
        assert kind["assets"][0]["tokenProgram"] == TOKEN_2022_PROGRAM
        moved = transfer(10_000, payer=BUYER.pubkey(), pay_to=OWNER, program=TOKEN_2022_PROGRAM)
        body = world.asking(drafted(world.node, compute_limit(), compute_price(), moved))
        assert (await world.settle(body)).body["success"]
        assert world.earned == 10_000
        older = await world.settle(world.payment())
        assert older.reason == "invalid_exact_svm_payload_transaction_instruction_not_token_2022_transfer_checked"
