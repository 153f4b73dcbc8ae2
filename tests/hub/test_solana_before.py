"""What is said of a Solana payment that was carried out before, and what nodes learn by it (contract 5.1; F22)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from tests.chains.solana_node import BUYER, FEE_PAYER, SECOND_BUYER, WALLETS, drafted, paying
from tests.core.solana_payments import compute_limit, compute_price, encoded, memo
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.solana_hub import SolanaHub, body_of, hub_of, run_solana_hub
from tests.hub.test_solana_nodes import saying, unseen
from tollkeeper.api import clock_ms
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode

FAILED = "invalid_exact_svm_transaction_failed"
EXPIRED = "settle_exact_svm_block_height_exceeded"
UNMANAGED = "fee_payer_not_managed_by_facilitator"


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[SolanaHub]:
    async with run_solana_hub(tmp_path) as running:
        yield running


def our_signature(body: dict[str, Any]) -> str:
    """By which the chain names the payment's transaction, once we have signed it."""
    message = read_transaction(base64.b64decode(body["paymentPayload"]["payload"]["transaction"])).message
    return encode(bytes(FEE_PAYER.sign_message(message.raw)))


async def failed_on_the_chain(world: SolanaHub) -> tuple[dict[str, Any], str]:
    """A payment that passed the simulation and failed in its block, for good; its transaction."""
    world.node.chain.holds = True
    half = BUYER_MICRO // 2
    bodies = [world.payment(half), world.payment(half)]
    waiting = [asyncio.create_task(world.settle(one)) for one in bodies]
    while len(world.node.chain._waiting) < 2:  # noqa: SLF001, ASYNC110 - the node's own list
        await asyncio.sleep(0.01)
    world.node.chain.open_account(WALLETS.buyer.address, -half)
    world.node.chain.release()
    world.node.chain.next_slot(FINAL_SLOTS)
    answers = await asyncio.gather(*waiting)
    (loser,) = [place for place, answer in enumerate(answers) if not answer.body["success"]]
    return bodies[loser], answers[loser].body["transaction"]


@pytest.mark.parametrize("slots", [0, RECENT_SLOTS + 1])
async def test_what_was_executed_and_failed_is_told_so_with_its_transaction_however_late(
    world: SolanaHub, slots: int
) -> None:
    body, transaction = await failed_on_the_chain(world)
    world.node.chain.next_slot(slots)
    for answer in (await world.verify(body), await world.hub.post("/verify?explain=true", body)):
        assert (answer.body["isValid"], answer.reason) == (False, FAILED)
        assert answer.body["transaction"] == transaction
    settled = await world.settle(body)
    assert (settled.reason, settled.body["transaction"]) == (FAILED, transaction)


@pytest.mark.parametrize("slots", [0, RECENT_SLOTS + 1])
async def test_what_failed_is_told_so_by_the_chain_where_the_books_do_not_know_it(tmp_path: Path, slots: int) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            body, transaction = await failed_on_the_chain(world)
        node.chain.next_slot(slots)
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        async with hub_of(fresh, node) as world:
            verified = await world.verify(body)
            assert (verified.reason, verified.body["transaction"]) == (FAILED, transaction)
            settled = await world.settle(body)
            assert (settled.reason, settled.body["transaction"]) == (FAILED, transaction)


async def test_what_a_fee_payer_paid_for_that_is_ours_no_more_is_told_so_to_who_has_signed_it(tmp_path: Path) -> None:
    """Not "another fee payer", for which its buyer would sign, and pay, again."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            paid = await world.settle(body)
            assert paid.body["success"] is True
        async with hub_of(tmp_path, node, keys=WALLETS.fee_payers[1:]) as world:
            for answer in (await world.verify(body), await world.hub.post("/verify?explain=true", body)):
                assert (answer.body["isValid"], answer.reason) == (False, "duplicate_settlement")
                assert answer.body["transaction"] == paid.body["transaction"]
            raw = bytearray(base64.b64decode(body["paymentPayload"]["payload"]["transaction"]))
            raw[70] ^= 1
            forged = body_of(encoded(bytes(raw)), 10_000)
            no_transfer = world.asking(drafted(node, compute_limit(), compute_price(), memo(b"a"), memo(b"b")))
            for never_paid in (forged, no_transfer, world.payment()):
                verified = await world.verify(never_paid)
                assert (verified.reason, "transaction" in verified.body) == (UNMANAGED, False)
                assert (await world.settle(never_paid)).reason == UNMANAGED


async def test_what_failed_and_is_not_final_yet_is_not_called_failed(tmp_path: Path) -> None:
    """On another fork the same transaction may pass."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        node.chain.holds = True
        async with hub_of(tmp_path, node) as world:
            half = BUYER_MICRO // 2
            bodies = [world.payment(half), world.payment(half)]
            for body in bodies:
                assert (await world.settle(body, Prefer="wait=0")).status == 503
            node.chain.open_account(WALLETS.buyer.address, -half)
            node.chain.release()
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        async with hub_of(fresh, node) as world:
            assert [(await world.verify(body)).reason for body in bodies] == ["duplicate_settlement"] * 2
            node.chain.next_slot(FINAL_SLOTS)
            reasons = [(await world.verify(body)).reason for body in bodies]
            assert sorted(map(str, reasons)) == ["duplicate_settlement", FAILED]


@pytest.mark.parametrize("lie", ["BlockhashNotFound", "AlreadyProcessed"])
async def test_a_node_that_calls_a_payment_too_old_or_used_learns_no_signature_of_ours(
    tmp_path: Path, lie: str
) -> None:
    """It has the payer's already: with ours it could have the transaction executed, beside books and budgets."""
    asked: list[Any] = []

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        asked.append(call)
        if call["method"] == "simulateTransaction":
            return answer | {"result": answer["result"] | {"value": answer["result"]["value"] | {"err": lie}}}
        if call["method"] == "isBlockhashValid":
            return answer | {"result": answer["result"] | {"value": lie == "AlreadyProcessed"}}
        return answer

    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as liar,
        hub_of(tmp_path, node, rpc_url=liar.url) as world,
    ):
        body = world.payment()
        liar.falsify = falsify
        told = "duplicate_settlement" if lie == "AlreadyProcessed" else "settle_exact_svm_block_height_exceeded"
        assert (await world.verify(body)).reason == told
        assert (await world.settle(body)).reason == told
        assert our_signature(body) not in json.dumps(asked)
        assert {"simulateTransaction", "getSignaturesForAddress"} <= {call["method"] for call in asked}
        assert (await world.status(body), node.chain.executed) == ("unknown", {})


def silent(node: ChaosNode) -> None:
    """It says nothing of how a transaction stands."""
    node.act = lambda methods: Act.CUT if "getSignatureStatuses" in methods else Act.PASS


def behind(node: ChaosNode) -> None:
    """It lists the transaction, and shows nothing of it yet."""
    node.falsify = saying(getSignatureStatuses=unseen)


@pytest.mark.parametrize("slots", [1, RECENT_SLOTS + 1])
@pytest.mark.parametrize(("unsure", "count"), [(silent, 2), (behind, 1)])
async def test_what_we_carried_out_is_not_refused_for_good_while_nobody_shows_what_became_of_it(
    tmp_path: Path, unsure: Callable[[ChaosNode], None], count: int, slots: int
) -> None:
    """Whoever is told that it is too old, or that nothing was charged, signs another one and pays twice."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as other:
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            paid = await world.settle(body)
        node.chain.next_slot(slots)
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        async with hub_of(fresh, node, rpc_urls=(node.url, other.url)[-count:]) as world:
            unsure(other)
            verified = await world.verify(body)
            assert (verified.status, verified.reason) == (200, "duplicate_settlement")
            assert verified.body["transaction"] == paid.body["transaction"]
            assert (await world.settle(body, Idempotency_Key="one")).code == "UNAVAILABLE"
            other.calm()
            settled = await world.settle(body, Idempotency_Key="one")
            assert settled.body["success"] is True
            assert settled.body["transaction"] == paid.body["transaction"]


@pytest.mark.parametrize("nodes", [2, 3])
async def test_what_we_carried_out_is_not_refused_because_one_node_lists_nothing_of_it(
    tmp_path: Path, nodes: int
) -> None:
    """Whoever names it has it from the chain, for only we can make its name; that it is nowhere one node cannot say."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as liar:
        async with hub_of(tmp_path, node) as world:
            body, never = world.payment(), world.payment()
            paid = await world.settle(body)
        node.chain.next_slot(RECENT_SLOTS + 1)
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        liar.falsify = saying(getSignaturesForAddress=lambda _listed: [])
        async with hub_of(fresh, node, rpc_urls=(liar.url, *[node.url] * (nodes - 1))) as world:
            verified = await world.verify(body)
            assert (verified.reason, verified.body["transaction"]) == (
                "duplicate_settlement",
                paid.body["transaction"],
            )
            settled = await world.settle(body)
            assert (settled.body["success"], settled.body["transaction"]) == (True, paid.body["transaction"])
            assert (await world.verify(never)).reason == EXPIRED
            assert (await world.settle(never)).reason == EXPIRED


@pytest.mark.parametrize("is_too_old", [False, True])
async def test_what_we_carried_out_is_not_refused_by_a_node_that_lacks_its_block(
    tmp_path: Path, *, is_too_old: bool
) -> None:
    """As after a backup was restored: nobody is told that it was never made, and the operator is told of the node."""
    now_ms = clock_ms()
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        node.chain.next_slot(10)
        async with hub_of(tmp_path, node) as world:
            body, never = world.payment(), world.payment()
            paid = await world.settle(body)
        node.chain.lacks = range(node.chain.slot, node.chain.slot + 20)
        node.chain.next_slot(RECENT_SLOTS + 1 if is_too_old else FINAL_SLOTS + 30)
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        async with hub_of(fresh, node, now_ms=lambda: now_ms) as world:
            bodies = [body, never] if is_too_old else [body]
            with capture_logs() as logs:
                told = [await ask(one) for one in bodies for ask in (world.verify, world.settle)]
            assert [(one.status, one.code) for one in told] == [(503, "UNAVAILABLE")] * len(told)
            assert [line["node"] for line in logs if line["event"] == "blocks_missing"] == [1]
            node.chain.lacks = range(0)
            world.account.chain.reader.missing._recent.clear()  # noqa: SLF001 - a moment later
            settled = await world.settle(body)
            assert (settled.body["success"], settled.body["transaction"]) == (True, paid.body["transaction"])
            if is_too_old:
                assert (await world.settle(never)).reason == EXPIRED
                node.chain.lacks = range(3, 20)
                world.account.chain.reader.missing._recent.clear()  # noqa: SLF001 - again
                assert (await world.settle(never)).code == "UNAVAILABLE"
                now_ms += 3_600_000  # what it forgot was made before it began
                assert (await world.settle(never)).reason == EXPIRED


async def test_a_payer_with_many_transactions_is_looked_through_in_pages(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node:
        async with hub_of(tmp_path, node) as world:
            body = world.payment()
            paid = await world.settle(body)
        first = node.chain.executed[paid.body["transaction"]]
        for number in range(1, 1_500):  # later ones of the same payer, as a node lists them
            node.chain.executed[encode(number.to_bytes(64, "big"))] = first
        fresh = tmp_path / "fresh"
        fresh.mkdir()
        async with hub_of(fresh, node) as world:
            verified = await world.verify(body)
            assert verified.reason == "duplicate_settlement"
            assert verified.body["transaction"] == paid.body["transaction"]


async def test_accounts_with_many_transactions_are_looked_through_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can have it done for nothing, by payments of theirs that are too old; nobody else waits for it."""
    monkeypatch.setattr("tollkeeper.chains.solana.searches._TURN_SECONDS", 0)
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        hub_of(tmp_path, node) as world,
    ):
        paid = await world.settle(world.payment())
        other = world.asking(paying(node, 10_000, buyer=SECOND_BUYER))
        assert (await world.settle(other)).body["success"] is True
        first = node.chain.executed[paid.body["transaction"]]
        for number in range(1, 2_500):
            node.chain.executed[encode(number.to_bytes(64, "big"))] = first
        bodies = [world.payment() for _ in range(12)]
        little = world.asking(paying(node, 10_000, buyer=SECOND_BUYER))
        node.chain.next_slot(RECENT_SLOTS + 1)
        await world.verify(bodies[0])  # from now on the blockhash is known to have passed, and not waited for
        answers = await asyncio.gather(*(world.verify(body) for body in bodies), world.verify(little))
        assert {answer.reason for answer in answers if answer.status == 200} == {EXPIRED}
        assert {answer.code for answer in answers if answer.status != 200} == {"UNAVAILABLE"}
        assert answers[-1].status == 200
        assert (await world.verify(bodies[1])).reason == EXPIRED  # once it is its turn


async def test_who_has_many_searches_made_holds_one_place_and_keeps_no_other_account_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tollkeeper.chains.solana.searches._TURN_SECONDS", 0)
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        hub_of(tmp_path, node) as world,
    ):
        paid = [await world.settle(world.asking(paying(node, 10_000, buyer=one))) for one in (BUYER, SECOND_BUYER)]
        for place, one in enumerate(paid):
            first = node.chain.executed[one.body["transaction"]]
            for number in range(1, 500):
                node.chain.executed[encode(bytes([place + 1]) + number.to_bytes(63, "big"))] = first
        crowd = [world.payment() for _ in range(12)]
        other = world.asking(paying(node, 10_000, buyer=SECOND_BUYER))
        node.chain.next_slot(RECENT_SLOTS + 1)
        await world.verify(crowd[0])  # from now on the blockhash is known to have passed, and not waited for
        answers = await asyncio.gather(*(world.verify(body) for body in crowd), world.verify(other))
        assert "UNAVAILABLE" in {answer.code for answer in answers[:-1] if answer.status != 200}
        assert (answers[-1].status, answers[-1].reason) == (200, EXPIRED)


async def test_few_names_are_asked_for_first_so_that_what_many_ask_fits_into_one_answer(tmp_path: Path) -> None:
    """A hundred questions go together, and a node's answer has a bound: beside them may be those of a sale."""
    limits: list[int] = []

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] == "getSignaturesForAddress":
            limits.append(call["params"][1]["limit"])
        return answer

    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as proxy,
        hub_of(tmp_path, node, rpc_url=proxy.url) as world,
    ):
        paid = await world.settle(world.payment())
        first = node.chain.executed[paid.body["transaction"]]
        for number in range(1, 1_500):
            node.chain.executed[encode(number.to_bytes(64, "big"))] = first
        body = world.payment()
        node.chain.next_slot(RECENT_SLOTS + 1)
        proxy.falsify = falsify
        assert (await world.verify(body)).reason == EXPIRED
        assert limits == [100, 1_000, 1_000]
