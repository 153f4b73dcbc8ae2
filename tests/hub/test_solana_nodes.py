"""Several nodes of a Solana network: what one of them makes up or denies decides nothing (contract 5; A-15)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.chains.solana_node import WALLETS
from tests.hub.chaos import Act, ChaosNode, recording, run_chaos
from tests.hub.solana_hub import SolanaHub, hub_of
from tollkeeper.api import clock_ms
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.message import read_transaction
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import BUYER_MICRO, SolanaNode

FAR = 10**6
LONG_SECONDS = LIFETIME_DOUBTED_SECONDS + 5


@dataclass
class Clock:
    """The hub's; `ahead_seconds` of ours."""

    ahead_seconds: int = 0

    def __call__(self) -> int:
        return clock_ms() + self.ahead_seconds * 1000


@asynccontextmanager
async def hub_of_two_nodes(
    directory: Path, needed: int, now_ms: Callable[[], int] = clock_ms
) -> AsyncIterator[tuple[SolanaHub, ChaosNode]]:
    """The first of the nodes lies on command."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as liar:
        config: dict[str, Any] = {"rpc_urls": (liar.url, node.url), "confirm_nodes": needed, "now_ms": now_ms}
        async with hub_of(directory, node, **config) as running:
            yield running, liar


@asynccontextmanager
async def hub_of_three_nodes(
    directory: Path, now_ms: Callable[[], int] = clock_ms
) -> AsyncIterator[tuple[SolanaHub, ChaosNode]]:
    """The first of the nodes lies on command, and is one against two."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as liar,
        run_chaos(node.url) as third,
        hub_of(directory, node, rpc_urls=(liar.url, node.url, third.url), now_ms=now_ms) as running,
    ):
        yield running, liar


def saying(**shown: Callable[[Any], Any]) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """A falsifier: for each of these methods what is shown in place of its true result."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        change = shown.get(call["method"])
        return answer if change is None else answer | {"result": change(answer["result"])}

    return falsify


def executed(result: Any) -> Any:
    """Every transaction that is asked for was carried out, for good."""
    status = {"slot": 1, "confirmations": None, "err": None, "status": {"Ok": None}, "confirmationStatus": "finalized"}
    return result | {"value": [status for _ in result["value"]]}


def failed(result: Any) -> Any:
    """Every one was executed with an error, for good."""
    told = executed(result)
    return told | {"value": [one | {"err": {"InstructionError": [2, {"Custom": 1}]}} for one in told["value"]]}


def unseen(result: Any) -> Any:
    """None was."""
    return result | {"value": [None for _ in result["value"]]}


@pytest.mark.parametrize("needed", [0, 1])
async def test_what_one_node_makes_up_is_no_success(tmp_path: Path, needed: int) -> None:
    async with hub_of_two_nodes(tmp_path, needed) as (world, liar):
        world.node.chain.holds = True
        liar.falsify = saying(getSignatureStatuses=executed)
        body = world.payment()
        answer = await world.settle(body, Prefer="wait=1")
        if needed == 1:  # the lie is a good one
            assert answer.body["success"] is True
            return
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
        await world.complete()
        assert await world.status(body) == "pending"
        liar.calm()
        world.node.chain.release()
        await world.complete()
        assert await world.status(body) == "success"
        assert world.earned == 10_000


def at_slot(slot: object) -> Callable[[Any], Any]:
    return lambda result: result | {"context": result["context"] | {"slot": slot}}


def with_status(**told: object) -> Callable[[Any], Any]:
    return lambda result: result | {"value": [None if one is None else one | told for one in result["value"]]}


@pytest.mark.parametrize(
    ("method", "change", "is_sent"),
    [
        ("getSignatureStatuses", with_status(slot=2**63), True),
        ("getSignatureStatuses", with_status(slot=2**70), True),
        ("getSignatureStatuses", with_status(confirmationStatus=[]), True),
        ("simulateTransaction", at_slot(2**70), False),
        ("getEpochInfo", lambda _info: {"blockHeight": 2**70}, False),
        ("getBalance", lambda result: result | {"value": 10**400}, False),
    ],
)
async def test_what_no_chain_can_say_is_no_answer(
    tmp_path: Path, method: str, change: Callable[[Any], Any], *, is_sent: bool
) -> None:
    """Nor is it a fault of ours: neither who pays nor what looks at the payment later stumbles over it."""
    async with hub_of_two_nodes(tmp_path, 1) as (world, liar):
        liar.falsify = saying(**{method: change})
        body = world.payment()
        answer = await world.settle(body, Prefer="wait=1")
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING" if is_sent else "UNAVAILABLE")
        with capture_logs() as logs:
            await world.complete()
        assert [line for line in logs if "not_understood" in line["event"]] == []
        liar.calm()
        await world.complete()
        assert await world.status(body) == ("success" if is_sent else "unknown")


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "second"])
async def test_where_two_nodes_must_show_it_and_one_is_down_nothing_is_told_of_any_payment(
    tmp_path: Path, *, is_first: bool
) -> None:
    """Neither that it succeeded nor, of one that is too old, that it was never made; what was begun is finished."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, run_chaos(node.url) as down:
        urls = (down.url, node.url) if is_first else (node.url, down.url)
        async with hub_of(tmp_path, node, rpc_urls=urls, confirm_nodes=2, timeout_seconds=1.0) as world:
            old = world.payment()
            node.chain.next_slot(RECENT_SLOTS + 1)
            down.act = lambda _methods: Act.CUT
            body = world.payment()
            answer = await world.settle(body, Prefer="wait=1")
            assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
            refused = [await world.verify(old), await world.settle(old)]
            assert [(one.status, one.code) for one in refused] == [(503, "UNAVAILABLE")] * 2
            node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
            await world.complete()
            assert await world.status(body) == "pending"
            ready = await world.hub.get("/readyz")
            assert "once 2 nodes show them" in str(ready.body)
            down.calm()
            await world.complete()
            assert await world.status(body) == "success"
            assert world.earned == 10_000
            told = [await world.verify(old), await world.settle(old)]
            assert [one.reason for one in told] == ["settle_exact_svm_block_height_exceeded"] * 2


async def test_what_one_node_takes_and_passes_on_to_nobody_is_settled_through_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Handed to the same node again and again it would expire, and so would every payment while that one is first."""

    def taken(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "sendTransaction":
            return answer
        return answer | {"result": encode(read_transaction(base64.b64decode(call["params"][0])).signatures[0])}

    async with hub_of_two_nodes(tmp_path, 0) as (world, liar):
        liar.on("sendTransaction", Act.SWALLOW)
        liar.falsify = taken
        body = world.payment()
        answer = await world.settle(body, Prefer="wait=0")
        assert (answer.status, answer.code) == (503, "SETTLEMENT_PENDING")
        assert world.node.chain.executed == {}
        await world.complete()
        await world.complete()
        assert await world.status(body) == "success"
        assert (len(world.node.chain.executed), world.earned) == (1, 10_000)
        monkeypatch.setattr("tollkeeper.chains.watcher._PAUSES_SECONDS", (0.1, 0.1))
        settled = await world.settle(world.payment())  # nor must its buyer wait, whose blockhash grows old meanwhile
        assert (settled.body["success"], world.earned) == (True, 20_000)


@pytest.mark.parametrize("needed", [0, 1])
async def test_an_error_that_one_node_makes_up_fails_nothing(tmp_path: Path, needed: int) -> None:
    async with hub_of_two_nodes(tmp_path, needed) as (world, liar):
        liar.falsify = saying(getSignatureStatuses=failed)
        body = world.payment()
        await world.settle(body, Prefer="wait=1")
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "pending")
        liar.calm()
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "success")


@pytest.mark.parametrize("needed", [0, 1])
async def test_an_expiry_that_one_node_makes_up_fails_nothing(tmp_path: Path, needed: int) -> None:
    """It shows a far end, an old blockhash and no transaction, which was executed all the same."""
    async with hub_of_two_nodes(tmp_path, needed) as (world, liar):
        liar.falsify = saying(
            getSignatureStatuses=unseen,
            isBlockhashValid=lambda result: result | {"value": False},
        )
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        assert world.earned == 10_000
        liar.falsify = saying(
            getSignatureStatuses=unseen,
            isBlockhashValid=lambda result: result | {"value": False},
            getEpochInfo=lambda _info: {"blockHeight": FAR},
            getBlock=lambda block: block | {"blockHeight": FAR + block["blockHeight"]},
        )
        world.node.chain.next_slot(FINAL_SLOTS)
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "pending")
        liar.calm()
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "success")


async def test_a_life_that_one_node_called_short_does_not_end_before_its_time(tmp_path: Path) -> None:
    async with hub_of_two_nodes(tmp_path, 0) as (world, liar):
        world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 10)
        liar.falsify = saying(getEpochInfo=lambda _info: {"blockHeight": 0})
        world.node.chain.holds = True
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        liar.calm()
        world.node.chain.drop()  # it is withheld, and may come at any moment
        await world.complete()
        assert await world.status(body) == "pending"
        world.node.chain.release()
        await world.complete()
        await world.complete()
        assert await world.status(body) == "success"


@pytest.mark.parametrize("needed", [0, 1])
@pytest.mark.parametrize("lies_on", [False, True])
async def test_a_life_that_one_node_called_endless_ends_by_proof(tmp_path: Path, needed: int, *, lies_on: bool) -> None:
    """It names a far too high height when the payment is signed, and perhaps at any time after."""
    clock = Clock()
    async with hub_of_two_nodes(tmp_path, needed, clock) as (world, liar):
        chain = world.node.chain
        liar.falsify = saying(
            getEpochInfo=lambda info: info | {"blockHeight": FAR**2} if info["blockHeight"] == chain.slot else info
        )
        chain.holds = True
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        if not lies_on:
            liar.calm()
        chain.drop()
        chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        await world.complete()
        assert await world.status(body) == "pending"  # by that height it may still be carried out
        clock.ahead_seconds = LONG_SECONDS
        await world.complete()
        assert await world.status(body) == "pending"  # no block shows yet that so much time has passed
        chain.ahead_seconds = LONG_SECONDS
        chain.next_slot(FINAL_SLOTS + 1)
        await world.complete()
        assert await world.status(body) == "failed"
        chain.release()
        again = await world.settle(body)
        assert (again.body["success"], again.reason) == (False, "settle_exact_svm_block_height_exceeded")
        assert world.earned == 0


@pytest.mark.parametrize("needed", [0, 1])
async def test_a_long_time_that_one_node_makes_up_fails_nothing(tmp_path: Path, needed: int) -> None:
    """It shows late blocks, an old blockhash and no transaction, which was executed all the same."""
    clock = Clock()
    async with hub_of_two_nodes(tmp_path, needed, clock) as (world, liar):
        liar.falsify = saying(
            getSignatureStatuses=unseen,
            isBlockhashValid=lambda result: result | {"value": False},
            getBlockTime=lambda seconds: seconds + LONG_SECONDS,
        )
        world.node.chain.next_slot(FINAL_SLOTS + 1)
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        assert world.earned == 10_000
        clock.ahead_seconds = LONG_SECONDS
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "pending")
        liar.calm()
        await world.complete()
        assert await world.status(body) == ("failed" if needed == 1 else "success")


async def test_an_end_is_not_proven_by_two_nodes_behind_one_address_of_which_one_stands_still(tmp_path: Path) -> None:
    """Providers spread calls over several: one says that the end has come, another one has not seen the transaction."""
    async with hub_of_two_nodes(tmp_path, 1) as (world, provider):
        began = world.node.chain.slot
        standing = {"getSignatureStatuses": lambda result: at_slot(began)(unseen(result))}
        provider.falsify = saying(**standing)
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        assert world.earned == 10_000
        world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        await world.complete()
        assert await world.status(body) == "pending"
        provider.calm()
        await world.complete()
        assert await world.status(body) == "success"


def lacking_where_statuses_are_asked_for(
    provider: ChaosNode, gap: range
) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """A falsifier: a second node behind the address, which lacks these blocks, answers what is asked together."""
    lacking = saying(getSignatureStatuses=unseen, getBlocks=lambda slots: [slot for slot in slots if slot not in gap])

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        together = {one["method"] for one in provider.judged}
        return lacking(call, answer) if "getSignatureStatuses" in together else answer

    return falsify


async def test_an_end_is_not_proven_by_two_nodes_behind_one_address_of_which_one_lacks_blocks(tmp_path: Path) -> None:
    """One shows nothing of the transaction, and another one has every block: each answers what is asked together."""
    async with hub_of_two_nodes(tmp_path, 1) as (world, provider):
        world.node.chain.holds = True
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        world.node.chain.next_slot(2)
        world.node.chain.release()
        gap = range(world.node.chain.slot - 1, world.node.chain.slot + 20)
        world.node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        provider.falsify = lacking_where_statuses_are_asked_for(provider, gap)
        await world.complete()
        assert (await world.status(body), world.earned) == ("pending", 10_000)
        provider.calm()
        await world.complete()
        assert await world.status(body) == "success"


async def test_a_success_is_not_taken_back_by_two_nodes_behind_one_address_of_which_one_lacks_blocks(
    tmp_path: Path,
) -> None:
    async with hub_of_two_nodes(tmp_path, 1) as (world, provider):
        world.node.chain.next_slot(2)
        body = world.payment()
        assert (await world.settle(body)).body["success"] is True
        gap = range(world.node.chain.slot - 1, world.node.chain.slot + 20)
        world.node.chain.next_slot(FINAL_SLOTS + 1)
        provider.falsify = lacking_where_statuses_are_asked_for(provider, gap)
        with capture_logs() as logs:
            await world.complete()
        assert await world.status(body) == "success"
        assert [line for line in logs if line["event"] == "settlements_reorganised"] == []


async def test_a_success_is_not_taken_back_by_two_nodes_behind_one_address_of_which_one_stands_still(
    tmp_path: Path,
) -> None:
    """One says that its slot is final, another one has not come to that slot."""
    async with hub_of_two_nodes(tmp_path, 1) as (world, provider):
        standing = world.node.chain.slot
        world.node.chain.next_slot(2)
        body = world.payment()
        assert (await world.settle(body)).body["success"] is True
        world.node.chain.next_slot(FINAL_SLOTS)
        provider.falsify = saying(getSignatureStatuses=lambda result: at_slot(standing)(unseen(result)))
        with capture_logs() as logs:
            await world.complete()
        assert await world.status(body) == "success"
        assert [line for line in logs if line["event"] == "settlements_reorganised"] == []
        provider.calm()
        world.node.chain.roll_back(FINAL_SLOTS + 1)
        await world.complete()
        await world.complete()
        assert world.earned == 10_000, "what a fork took is still seen, and made again"


async def test_an_end_is_not_proven_by_what_two_nodes_say_in_turn_where_one_is_enough(tmp_path: Path) -> None:
    """One shows nothing, because it lacks blocks, and does not say which; the other one has all, and is not asked."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as whole,
        run_chaos(node.url) as lacking,
        hub_of(tmp_path, node, rpc_urls=(whole.url, lacking.url), confirm_nodes=1) as world,
    ):
        node.chain.holds = True
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        node.chain.release()
        node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        lacking.falsify = saying(getSignatureStatuses=unseen)
        lacking.on("getBlocks", Act.SERVER_ERROR)
        whole.on("getSignatureStatuses", Act.SERVER_ERROR)
        await world.complete()
        assert (await world.status(body), world.earned) == ("pending", 10_000)
        whole.calm()
        world.account.chain.rpc.nodes.all[0].answered()  # it has rested
        await world.complete()
        assert await world.status(body) == "success"


@pytest.mark.parametrize("needed", [0, 1])
async def test_a_success_that_one_node_takes_back_stands(tmp_path: Path, needed: int) -> None:
    """Its slot is final there, and the transaction is not in it."""
    async with hub_of_two_nodes(tmp_path, needed) as (world, liar):
        body = world.payment()
        assert (await world.settle(body)).body["success"] is True
        world.node.chain.next_slot(FINAL_SLOTS)
        liar.falsify = saying(getSignatureStatuses=unseen)
        await world.complete()
        assert await world.status(body) == ("pending" if needed == 1 else "success")


async def test_a_success_is_not_taken_back_by_a_node_that_never_had_its_block(tmp_path: Path) -> None:
    """As one that was set up since, and begins with a snapshot."""
    async with hub_of_two_nodes(tmp_path, 1) as (world, liar):
        body = world.payment()
        assert (await world.settle(body)).body["success"] is True
        world.node.chain.next_slot(FINAL_SLOTS + 2)
        liar.falsify = saying(getSignatureStatuses=unseen, getFirstAvailableBlock=lambda _slot: world.node.chain.slot)
        await world.complete()
        assert await world.status(body) == "success"
        liar.falsify = saying(getSignatureStatuses=unseen)
        await world.complete()
        assert await world.status(body) == "pending"


@pytest.mark.parametrize("needed", [0, 1])
async def test_a_success_that_a_fork_took_is_not_final_because_one_node_says_so(tmp_path: Path, needed: int) -> None:
    async with hub_of_two_nodes(tmp_path, needed) as (world, liar):
        body = world.payment()
        slot = world.node.chain.slot
        assert (await world.settle(body)).body["success"] is True
        world.node.chain.roll_back(1)
        world.node.chain.next_slot(FINAL_SLOTS)
        liar.falsify = saying(
            getSignatureStatuses=lambda result: (
                result | {"value": [one | {"slot": slot} for one in executed(result)["value"]]}
            )
        )
        await world.complete()
        assert (await world.status(body), world.earned) == ("success", 0)
        liar.calm()
        await world.complete()
        await world.complete()
        assert world.earned == (0 if needed == 1 else 10_000)  # the one is believed for good


@pytest.mark.parametrize(("hours", "status"), [(0, 503), (1, 200)])
async def test_a_node_whose_newest_block_is_old_has_no_say(tmp_path: Path, hours: int, status: int) -> None:
    """It answers and shows nothing of what the other one does. One that only lags is waited for."""
    async with hub_of_two_nodes(tmp_path, 0) as (world, standing):
        world.node.chain.next_slot(20)
        standing.falsify = saying(
            getSlot=lambda slot: slot - 10,
            getSignatureStatuses=unseen,
            getBlockTime=lambda seconds: seconds - hours * 3600,
        )
        await world.account.chain.open()  # the heights of both
        answer = await world.settle(world.payment(), Prefer="wait=2")
        assert answer.status == status


async def test_payments_go_on_while_the_other_node_is_dead_and_the_operator_is_told(tmp_path: Path) -> None:
    async with hub_of_two_nodes(tmp_path, 0) as (world, other):
        chain = world.account.chain
        chain.rpc.nodes.out_of_reach_seconds = 1
        other.act = lambda _methods: Act.CUT
        assert (await world.settle(world.payment())).body["success"] is True
        assert world.account.obstacles == [
            "one node's word is taken for settlements, because none of the others answers"
        ]
        other.calm()
        await chain.open()
        assert (await world.settle(world.payment())).body["success"] is True
        assert world.account.obstacles == []


async def test_a_refusal_that_one_node_makes_up_leaves_the_payment_as_good_as_it_was(tmp_path: Path) -> None:
    """Verify and settle are refused by one node's word: nothing is written, signed or spent."""
    async with hub_of_two_nodes(tmp_path, 0) as (world, liar):
        liar.falsify = saying(
            simulateTransaction=lambda result: (
                result | {"value": result["value"] | {"err": {"InstructionError": [2, {"Custom": 1}]}}}
            )
        )
        body, money = world.payment(), world.fee_money
        assert (await world.verify(body)).reason == "invalid_exact_svm_payload_transaction_simulation_failed"
        settled = await world.settle(body)
        assert (settled.body["success"], settled.body["transaction"]) == (False, "")
        assert await world.status(body) == "unknown"
        assert (world.node.chain.executed, world.fee_money) == ({}, money)
        liar.calm()
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body)).body["success"] is True


async def test_a_validity_that_one_node_makes_up_pays_nothing_and_costs_one_fee(tmp_path: Path) -> None:
    """The payer has not so much. The chain says so, to whoever is asked for the outcome."""
    async with hub_of_two_nodes(tmp_path, 0) as (world, liar):
        body, money = world.payment(BUYER_MICRO + 1), world.fee_money

        def rich(result: Any) -> Any:
            accounts = result["value"]
            data = bytearray(base64.b64decode(accounts[0]["data"][0]))
            data[64:72] = (10**12).to_bytes(8, "little")
            told = accounts[0] | {"data": [base64.b64encode(data).decode(), "base64"]}
            return result | {"value": [told, *accounts[1:]]}

        liar.falsify = saying(
            simulateTransaction=lambda result: result | {"value": result["value"] | {"err": None}},
            getMultipleAccounts=rich,
        )
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        world.node.chain.next_slot(FINAL_SLOTS)
        await world.complete()
        settled = await world.settle(body)
        assert (settled.body["success"], settled.reason) == (False, "invalid_exact_svm_transaction_failed")
        assert await world.status(body) == "failed"
        assert world.earned == 0
        assert money - world.fee_money == 2 * 5_000 + 1


async def test_two_nodes_overrule_one_that_says_a_transaction_failed_at_once(tmp_path: Path) -> None:
    async with hub_of_three_nodes(tmp_path) as (world, liar):
        liar.falsify = saying(getSignatureStatuses=failed)
        with capture_logs() as logs:
            for _ in range(2):
                assert (await world.settle(world.payment())).body["success"] is True
        assert [line["node"] for line in logs if line["event"] == "node_overruled"] == [1]


async def test_two_nodes_overrule_one_that_shows_nothing_of_a_transaction(tmp_path: Path) -> None:
    async with hub_of_three_nodes(tmp_path) as (world, liar):
        liar.falsify = saying(getSignatureStatuses=unseen)
        for _ in range(2):
            assert (await world.settle(world.payment())).body["success"] is True


async def test_an_end_that_the_first_node_never_shows_is_concluded_by_two_others(tmp_path: Path) -> None:
    clock = Clock()
    async with hub_of_three_nodes(tmp_path, clock) as (world, liar):
        chain = world.node.chain
        chain.holds = True
        body = world.payment()
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        chain.drop()
        liar.falsify = saying(isBlockhashValid=lambda result: result | {"value": True})
        chain.ahead_seconds = clock.ahead_seconds = LONG_SECONDS
        chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
        await world.complete()
        assert await world.status(body) == "failed"
        assert world.earned == 0


async def test_settling_what_was_just_verified_asks_for_what_must_hold_when_it_is_signed_in_one_batch_alone(
    tmp_path: Path,
) -> None:
    """Its own simulation, what pays for it, and whose the accounts are by then; its blockhash is not judged again."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as noting,
        hub_of(tmp_path, node, rpc_url=noting.url) as world,
    ):
        assert (await world.settle(world.payment())).body["success"] is True  # what is read once for all payments
        payment = world.payment()
        assert (await world.verify(payment)).body["isValid"] is True
        requests: list[list[str]] = []
        noting.act = recording(requests)
        assert (await world.settle(payment)).body["success"] is True
        before_sending = requests[: requests.index(["sendTransaction"])]
        assert before_sending == [["simulateTransaction", "getBalance", "getMultipleAccounts", "getEpochInfo"]]


async def test_a_node_that_gives_slots_for_heights_lets_no_payment_hang(tmp_path: Path) -> None:
    """On a chain where not every slot has a block: heights lie far below slots."""
    skipped = 10_000

    def on_a_chain_with_gaps(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        result = answer.get("result")
        if call["method"] in {"getEpochInfo", "getBlock"} and isinstance(result, dict):
            return answer | {"result": result | {"blockHeight": result["blockHeight"] - skipped}}
        return answer  # a height of "getBlockHeight" is a slot

    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as slots,
    ):
        node.chain.next_slot(2 * skipped)
        slots.falsify = on_a_chain_with_gaps
        async with hub_of(tmp_path, node, rpc_url=slots.url) as world:
            assert (await world.settle(world.payment())).body["success"] is True
            node.chain.holds = True
            lost = world.payment()
            assert (await world.settle(lost, Prefer="wait=0")).status == 503
            node.chain.drop()
            node.chain.next_slot(RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1)
            await world.complete()
            assert await world.status(lost) == "failed"
