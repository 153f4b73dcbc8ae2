"""Blockhashes that end too soon, or that a node does not know yet (contract 5.2; security A-24, A-26; decision 0020).

A payment whose blockhash ends within a moment would be under way, for nothing, until that is proven.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.chains.solana_node import BUYER, SECOND_BUYER, WALLETS, drafted, paying
from tests.core.solana_payments import Draft, account_of, compute_limit, compute_price, key, memo, transfer
from tests.hub.chaos import Act, ChaosNode, run_chaos
from tests.hub.solana_hub import SolanaHub, hub_of, run_solana_hub
from tollkeeper.chains.rpc import Rpc
from tollkeeper.chains.solana.blockhashes import LAG_BLOCKS, BlockhashAges
from tollkeeper.core.solana.programs import RECENT_BLOCKHASHES_SYSVAR
from tollkeeper.core.solana.rules import BLOCKS_LEFT_MIN
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana.node import SLOT_SECONDS, SolanaNode

EXPIRED = "settle_exact_svm_block_height_exceeded"


def failed_checks(body: dict[str, Any]) -> list[str]:
    return [check["name"] for check in body["checks"] if not check["ok"]]


async def test_a_payment_with_too_few_blocks_left_is_refused_before_anything_is_signed(tmp_path: Path) -> None:
    async with run_solana_hub(tmp_path) as world:
        bodies = [world.payment(), world.payment()]
        world.node.chain.next_slot(RECENT_SLOTS - BLOCKS_LEFT_MIN)
        assert (await world.settle(bodies[0])).body["success"] is True
        for left in (BLOCKS_LEFT_MIN - 1, 1, 0):
            world.node.chain.next_slot(RECENT_SLOTS + 1 - left - world.node.chain.slot)
            verified = await world.hub.post("/verify?explain=true", bodies[1])
            assert (verified.body["isValid"], verified.reason) == (False, EXPIRED)
            assert failed_checks(verified.body) == ["blocksLeft"]
            assert verified.body["details"] == {
                "check": "blocksLeft",
                "expected": f"a blockhash that is taken for {BLOCKS_LEFT_MIN} more blocks",
                "found": left,
            }
            settled = await world.settle(bodies[1])
            assert (settled.status, settled.reason, settled.body["transaction"]) == (200, EXPIRED, "")
        assert await world.status(bodies[1]) == "unknown"
        assert len(world.node.chain.executed) == 1
        assert (await world.settle(world.payment())).body["success"] is True  # whoever signs again has lost nothing


async def test_payments_that_end_at_once_fill_no_queue(tmp_path: Path) -> None:
    """They would be under way until their end is proven, and every other payment turned away."""
    async with run_solana_hub(tmp_path, settlements_max=20) as world:
        bodies = [world.payment() for _ in range(20)]
        world.node.chain.next_slot(RECENT_SLOTS - 1)
        world.node.chain.holds = True
        answers = await asyncio.gather(*(world.settle(body, Prefer="wait=0") for body in bodies))
        assert {(answer.status, answer.reason) for answer in answers} == {(200, EXPIRED)}
        world.node.chain.release()
        assert (await world.settle(world.payment())).body["success"] is True


async def test_what_is_lost_is_given_up_as_soon_as_its_own_blockhash_has_ended(tmp_path: Path) -> None:
    """Not so late as if it had been new when it was signed."""
    async with run_solana_hub(tmp_path) as world:
        body = world.payment()
        world.node.chain.next_slot(RECENT_SLOTS - BLOCKS_LEFT_MIN)
        world.node.chain.holds = True
        assert (await world.settle(body, Prefer="wait=0")).status == 503
        world.node.chain.drop()
        world.node.chain.next_slot(BLOCKS_LEFT_MIN + LAG_BLOCKS)
        await world.complete()
        assert await world.status(body) == "pending"  # a fork could still show it
        world.node.chain.next_slot(FINAL_SLOTS + 1)
        await world.complete()
        assert await world.status(body) == "failed"


async def test_one_payer_has_a_small_share_of_what_is_under_way(tmp_path: Path) -> None:
    """Whatever keeps its payments out of blocks keeps no other payer's out of the queue."""
    async with run_solana_hub(tmp_path, settlements_max=1_500) as world:
        world.node.chain.holds = True
        answers = [await world.settle(world.payment(), Prefer="wait=0") for _ in range(16)]
        assert [answer.code for answer in answers] == [*["SETTLEMENT_PENDING"] * 15, "UNAVAILABLE"]
        details = answers[15].body["error"]["details"]
        assert (details["reason"], details["pending"]) == ("payer_suspended", 15)
        assert int(answers[15].headers["Retry-After"]) > 0
        other = world.asking(paying(world.node, 10_000, buyer=SECOND_BUYER))
        assert (await world.settle(other, Prefer="wait=0")).code == "SETTLEMENT_PENDING"
        world.node.chain.release()
        await world.complete()
        assert (await world.settle(world.payment())).body["success"] is True


async def test_a_node_that_does_not_list_blockhashes_is_good_enough(tmp_path: Path) -> None:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["params"][:1] == [RECENT_BLOCKHASHES_SYSVAR]:
            return answer | {"result": answer["result"] | {"value": None}}
        return answer

    async with behind_a_proxy(tmp_path) as (world, proxy):
        proxy.falsify = falsify
        body = world.payment()
        world.node.chain.next_slot(RECENT_SLOTS - 1)
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body)).body["success"] is True


async def test_a_node_that_answers_nothing_beside_the_list_stops_no_second_sale(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (world, proxy):
        proxy.act = lambda methods: Act.SERVER_ERROR if "getAccountInfo" in methods else Act.PASS
        assert (await world.settle(world.payment())).code == "UNAVAILABLE"
        assert (await world.settle(world.payment())).body["success"] is True


@asynccontextmanager
async def behind_a_proxy(directory: Path) -> AsyncIterator[tuple[SolanaHub, ChaosNode]]:
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as proxy,
        hub_of(directory, node, rpc_url=proxy.url) as world,
    ):
        yield world, proxy


def not_knowing(is_known: Callable[[], bool]) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """A node that has not seen the newest blocks, until it has."""

    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if is_known() or call["method"] not in {"simulateTransaction", "isBlockhashValid"}:
            return answer
        said: Any = False
        if call["method"] == "simulateTransaction":
            said = answer["result"]["value"] | {"err": "BlockhashNotFound"}
        return answer | {"result": answer["result"] | {"value": said}}

    return falsify


@pytest.mark.parametrize("path", ["verify", "settle"])
async def test_a_blockhash_that_is_newer_than_the_node_knows_is_waited_for(tmp_path: Path, path: str) -> None:
    """The buyer's own node was faster."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        body = world.payment()
        proxy.calls.clear()
        proxy.falsify = not_knowing(lambda: proxy.calls["isBlockhashValid"] >= 3)
        answer = await (world.verify(body) if path == "verify" else world.settle(body))
        assert answer.body["isValid" if path == "verify" else "success"] is True


async def test_what_one_node_does_not_know_is_judged_by_another_that_does(tmp_path: Path) -> None:
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as late,
        hub_of(tmp_path, node, rpc_urls=(late.url, node.url)) as world,
    ):
        late.falsify = not_knowing(lambda: False)
        body = world.payment()
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body)).body["success"] is True


async def test_a_node_that_hangs_keeps_nobody_from_what_another_one_knows(tmp_path: Path) -> None:
    """Nor does it keep the few places for what is asked about."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as late,
        run_chaos(node.url) as hanging,
        hub_of(tmp_path, node, rpc_urls=(late.url, hanging.url, node.url)) as world,
    ):
        late.falsify = not_knowing(lambda: False)
        hanging.act = lambda methods: Act.HANG if set(methods) == {"isBlockhashValid"} else Act.PASS
        for _ in range(9):
            body = world.payment()
            world.node.chain.next_slot()
            async with asyncio.timeout(2.5):
                assert (await world.verify(body)).body["isValid"] is True


async def test_what_one_node_said_of_the_height_is_no_buyers_last_block(tmp_path: Path) -> None:
    """Providers spread calls over nodes of which one may lag by far: what it listed, it counted from too low."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        world.node.chain.next_slot(2 * RECENT_SLOTS)
        body = world.payment()

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            if call["method"] != "getEpochInfo":
                return answer
            return answer | {"result": {"blockHeight": answer["result"]["blockHeight"] - RECENT_SLOTS + 5}}

        proxy.falsify = falsify
        assert (await world.verify(body)).body["isValid"] is True
        proxy.calm()
        world.node.chain.next_slot()
        assert (await world.settle(body)).body["success"] is True


async def test_a_list_that_one_node_turned_round_ends_with_that_node(tmp_path: Path) -> None:
    async with behind_a_proxy(tmp_path) as (world, proxy):
        world.node.chain.next_slot(2 * RECENT_SLOTS)
        body = world.payment()

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            if call["params"][:1] != [RECENT_BLOCKHASHES_SYSVAR]:
                return answer
            shown = answer["result"]["value"]
            data = base64.b64decode(shown["data"][0])
            entries = [data[at : at + 40] for at in range(8, len(data), 40)]
            turned = base64.b64encode(data[:8] + b"".join(reversed(entries))).decode()
            value = shown | {"data": [turned, "base64"]}
            return answer | {"result": answer["result"] | {"value": value}}

        proxy.falsify = falsify
        assert failed_checks((await world.hub.post("/verify?explain=true", body)).body) == ["blocksLeft"]
        proxy.calm()
        world.node.chain.next_slot()
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body)).body["success"] is True


async def test_payments_that_end_soon_have_the_list_read_once_a_slot(tmp_path: Path) -> None:
    """However many of them come: anybody can sign them, for nothing."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        bodies = [world.payment() for _ in range(100)]
        world.node.chain.next_slot(RECENT_SLOTS - 2)
        assert (await world.verify(bodies[0])).reason == EXPIRED
        world.node.chain.next_slot()
        proxy.calls.clear()
        began = asyncio.get_running_loop().time()
        answers = await asyncio.gather(*(world.verify(body) for body in bodies))
        slots = (asyncio.get_running_loop().time() - began) / SLOT_SECONDS
        assert {answer.reason for answer in answers} == {EXPIRED}
        assert 1 <= proxy.calls["getAccountInfo"] <= 1 + slots


async def test_a_node_that_lists_what_never_was_makes_nobody_remember_it_for_ever() -> None:
    ages = BlockhashAges(Rpc(["http://127.0.0.1:1"]))
    honest = Keypair().pubkey()
    for number in range(100):
        names = [number.to_bytes(4, "big") + place.to_bytes(28, "big") for place in range(149)]
        data = (150).to_bytes(8, "little") + b"".join(one + bytes(8) for one in [*names, bytes(honest)])
        shown = {"data": [base64.b64encode(data).decode(), "base64"], "owner": "Sysvar"}
        ages.learn({"context": {"slot": 1_000}, "value": shown}, {"blockHeight": 900})
    assert len(ages._heights) <= 5 * RECENT_SLOTS  # noqa: SLF001 - what it remembers
    assert await ages.blocks_left(bytes(honest), 1_000, 900) == 1


async def test_after_one_unanswered_question_the_age_is_known_again(tmp_path: Path) -> None:
    """Else whoever waits for a node's bad moment has a minute for payments that end at once."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        bodies = [world.payment() for _ in range(2)]
        world.node.chain.next_slot(RECENT_SLOTS - 1)
        proxy.act = lambda _methods: Act.SERVER_ERROR
        assert (await world.settle(bodies[0])).code == "UNAVAILABLE"
        proxy.calm()
        assert (await world.settle(bodies[1])).reason == EXPIRED


async def test_a_blockhash_that_no_node_knows_is_refused_as_what_it_may_be_and_good_once_it_is_known(
    tmp_path: Path,
) -> None:
    async with behind_a_proxy(tmp_path) as (world, proxy):
        body = world.payment()
        proxy.falsify = not_knowing(lambda: False)
        verified = await world.verify(body)
        assert (verified.reason, verified.body["details"]["check"]) == (EXPIRED, "blockhash")
        assert verified.body["details"]["found"] == "older than those, or newer than the node knows"
        refused = await world.settle(body, Idempotency_Key="first")
        assert (refused.reason, await world.status(body)) == (EXPIRED, "unknown")
        proxy.calm()
        assert (await world.verify(body)).body["isValid"] is True
        assert (await world.settle(body, Idempotency_Key="second")).body["success"] is True


async def test_a_crowd_with_blockhashes_that_nobody_knows_is_not_waited_for(tmp_path: Path) -> None:
    """Anybody can make them, at no cost; so few of them at a time make us ask again, and together."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        bodies = []
        for _ in range(60):
            bodies.append(world.payment())
            world.node.chain.next_slot()
        requests = 0

        def act(methods: list[str]) -> Act:
            nonlocal requests
            requests += set(methods) == {"isBlockhashValid"}
            return Act.PASS

        proxy.falsify, proxy.act = not_knowing(lambda: False), act
        proxy.calls.clear()
        answers = await asyncio.gather(*(world.verify(body) for body in bodies))
        assert {answer.reason for answer in answers} == {EXPIRED}
        assert proxy.calls["isBlockhashValid"] <= 60 + 8 * 5  # each is judged once, and some are asked about again
        assert requests <= 2 * 5


async def assert_a_newcomer_is_known_beside(world: SolanaHub, proxy: ChaosNode, bodies: list[dict[str, Any]]) -> None:
    """Who pays honestly is found valid once his blockhash is known, while all of `bodies` are asked about."""
    body = world.payment()
    is_known = asyncio.Event()
    proxy.falsify = not_knowing(is_known.is_set)
    crowd = [asyncio.create_task(world.verify(one)) for one in bodies]
    await asyncio.sleep(0.3)
    honest = asyncio.create_task(world.verify(body))
    await asyncio.sleep(0.3)
    is_known.set()
    assert (await honest).body["isValid"] is True
    await asyncio.gather(*crowd)


async def test_who_pays_nothing_takes_no_place_from_who_waits_for_his_blockhash(tmp_path: Path) -> None:
    """Nor does one payer take all: anybody can make such blockhashes, for nothing."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        poor, bodies = Keypair(), []
        for _ in range(10):
            bodies.append(world.asking(paying(world.node, 10_000, buyer=poor)))
            bodies.append(world.asking(paying(world.node, 10_000, buyer=SECOND_BUYER)))
            world.node.chain.next_slot()
        await assert_a_newcomer_is_known_beside(world, proxy, bodies)


def with_anothers_money(node: SolanaNode, stranger: Keypair) -> Draft:
    """It would be paid from an account that is not the payer's."""
    return with_money_of(node, stranger, account_of(BUYER.pubkey()))


def with_money_of_ones_own_making(node: SolanaNode, stranger: Keypair) -> Draft:
    """Anybody can make a token, and has as much of it as he likes."""
    usdc, node.chain.mint = node.chain.mint, str(Keypair().pubkey())
    try:
        return with_money_of(node, stranger, key(node.chain.open_account(str(stranger.pubkey()), 10_000)))
    finally:
        node.chain.mint = usdc


def with_money_of(node: SolanaNode, stranger: Keypair, source: Pubkey) -> Draft:
    moved = transfer(10_000, payer=stranger.pubkey(), pay_to=WALLETS.owner.address, source=source)
    return drafted(node, compute_limit(), compute_price(), moved, memo(), buyer=stranger)


@pytest.mark.parametrize("draft", [with_anothers_money, with_money_of_ones_own_making])
async def test_who_pays_with_what_is_not_his_takes_no_place_from_who_waits_for_his_blockhash(
    tmp_path: Path, draft: Callable[[SolanaNode, Keypair], Draft]
) -> None:
    """It costs nothing, and needs no money: each has a key of its own."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        bodies = []
        for _ in range(10):
            bodies.append(world.asking(draft(world.node, Keypair())))
            world.node.chain.next_slot()
        await assert_a_newcomer_is_known_beside(world, proxy, bodies)


async def test_many_payers_take_no_place_from_who_waits_for_his_blockhash(tmp_path: Path) -> None:
    """Who pays next to nothing holds it, and a wallet costs nothing; the node is asked no more for all that."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        bodies = []
        for number in range(100):
            payer = Keypair()
            world.node.chain.open_account(str(payer.pubkey()), 1)
            draft = replace(paying(world.node, 1, buyer=payer), blockhash=number.to_bytes(32, "big"))
            bodies.append(world.asking(draft, 1))
        listed = world.node.rpc.call("getAccountInfo", [RECENT_BLOCKHASHES_SYSVAR])
        world.node.chain.next_slot()
        honest, is_known = world.payment(), asyncio.Event()
        hidden = not_knowing(is_known.is_set)

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            is_list = call["params"][:1] == [RECENT_BLOCKHASHES_SYSVAR]
            return answer | {"result": listed} if is_list and not is_known.is_set() else hidden(call, answer)

        proxy.falsify = falsify
        crowd = [asyncio.create_task(world.verify(one)) for one in bodies]
        await asyncio.sleep(0.5)
        answer = asyncio.create_task(world.verify(honest))
        await asyncio.sleep(0.3)
        is_known.set()
        assert (await answer).body["isValid"] is True
        assert {one.reason for one in await asyncio.gather(*crowd)} == {EXPIRED}
        # Each is judged once; then eight of them are asked about by name, five times, and by then others.
        assert proxy.calls["isBlockhashValid"] <= 102 + 8 * 10
        assert proxy.calls["getAccountInfo"] <= 20


async def test_a_list_that_is_older_than_the_payment_is_asked_for_again(tmp_path: Path) -> None:
    """Providers spread calls over nodes of which one lags: what its list lacks may be new."""
    async with behind_a_proxy(tmp_path) as (world, proxy):
        world.node.chain.next_slot(2 * RECENT_SLOTS)
        stale = world.node.rpc.call("getAccountInfo", [RECENT_BLOCKHASHES_SYSVAR])
        world.node.chain.next_slot()
        asked = 0

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            nonlocal asked
            if call["params"][:1] != [RECENT_BLOCKHASHES_SYSVAR]:
                return answer
            asked += 1
            return answer | {"result": stale} if asked < 3 else answer

        proxy.falsify = falsify
        body = world.payment()
        assert (await world.verify(body)).body["isValid"] is True
        assert asked == 3
        assert (await world.settle(body)).body["success"] is True
        assert asked == 3  # it is known for as long as it is taken
