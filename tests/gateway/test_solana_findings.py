"""A payment on Solana that nobody sent, whatever a node says: not made, nor waited for longer (contract 4.4; A-15)."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from solders.signature import Signature
from solders.transaction import VersionedTransaction

from tests.chains.solana_node import FEE_PAYER, WALLETS, paying
from tests.core.solana_payments import Draft
from tests.hub.chaos import Act, run_chaos
from tests.hub.solana_hub import NETWORK
from tollkeeper.api import clock_ms
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.chains.solana import LAG_BLOCKS, SolanaChain, SolanaConfig
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.settling import LIFETIME_DOUBTED_SECONDS
from tollkeeper.core.solana import SolanaAsset, payment_key, read_transfer
from tollkeeper.core.wire import Payment
from tollkeeper.gateway.findings import NOTHING, Finding, Owed, Seen
from tollkeeper.gateway.hub_client import Senders
from tollkeeper.gateway.solana_findings import SolanaFindings
from tollkeeper.sandbox.solana_chain import FINAL_SLOTS, RECENT_SLOTS
from tollkeeper.sandbox.solana_node import SolanaNode

EXPIRED_SLOTS = RECENT_SLOTS + LAG_BLOCKS + FINAL_SLOTS + 1
SENDERS = Senders(frozenset({str(FEE_PAYER.pubkey())}), are_all=True)


def owed_on(node: SolanaNode) -> Owed:
    """A payment that nobody sends."""
    return owed_by(paying(node, 10_000))


def owed_by(draft: Draft) -> Owed:
    """What it pays, asked for now."""
    transfer = read_transfer(draft.payload())
    key = payment_key(SolanaAsset(NETWORKS[NETWORK], NETWORKS[NETWORK].usdc.address), transfer)
    return Owed(key, WALLETS.owner.address, 10_000, None, clock_ms())


@asynccontextmanager
async def chain_of(*urls: str) -> AsyncIterator[SolanaChain]:
    chain = SolanaChain(SolanaConfig(NETWORKS[NETWORK], urls))
    await chain.open()
    try:
        yield chain
    finally:
        await chain.close()


def heights(changed: Callable[[int], int]) -> Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        if call["method"] != "getEpochInfo":
            return answer
        return answer | {"result": answer["result"] | {"blockHeight": changed(answer["result"]["blockHeight"])}}

    return falsify


@pytest.mark.parametrize("count", [1, 2])
async def test_a_far_too_high_height_that_a_node_named_once_is_not_counted_from_for_ever(count: int) -> None:
    now_ms = clock_ms()
    async with (
        SolanaNode(slot_seconds=None) as node,
        run_chaos(node.url) as liar,
        chain_of(*(liar.url, node.url)[:count]) as chain,
    ):
        findings = SolanaFindings(chain, lambda: now_ms)
        owed = owed_on(node)
        liar.falsify = heights(lambda _height: 10**12)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        liar.calm()
        node.chain.next_slot(EXPIRED_SLOTS)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        now_ms += LIFETIME_DOUBTED_SECONDS * 1000
        node.chain.ahead_seconds = LIFETIME_DOUBTED_SECONDS
        node.chain.next_slot()
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING  # it is counted anew
        node.chain.next_slot(EXPIRED_SLOTS)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.FAILED


async def test_counting_anew_makes_no_life_longer() -> None:
    """Where slots are slow, more time passes than a life was given, and fewer blocks."""
    now_ms = clock_ms()
    async with SolanaNode(slot_seconds=None) as node, chain_of(node.url) as chain:
        findings = SolanaFindings(chain, lambda: now_ms)
        owed = owed_on(node)
        for _ in range(EXPIRED_SLOTS // 20):
            assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
            now_ms += LIFETIME_DOUBTED_SECONDS * 1000
            node.chain.next_slot(20)
        node.chain.next_slot(20)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.FAILED


async def test_a_low_height_of_one_node_is_not_believed_while_another_one_only_fails_to_answer() -> None:
    """Else what can still be carried out would be called expired."""
    async with SolanaNode(slot_seconds=None) as node, run_chaos(node.url) as liar, run_chaos(node.url) as other:
        node.chain.next_slot(2 * EXPIRED_SLOTS)
        async with chain_of(liar.url, other.url) as chain:
            findings = SolanaFindings(chain, clock_ms)
            owed = replace(owed_on(node), asked_ms=clock_ms() - 3_600_000)
            liar.falsify = heights(lambda _height: 0)
            other.act = lambda _methods: Act.CUT
            with pytest.raises(RpcUnavailable):
                await findings.find(owed, "", SENDERS)
            liar.calm()
            other.calm()
            assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING


def executed(node: SolanaNode, draft: Draft) -> str:
    """Signed by the fee payer, too, and carried out; its name."""
    unsigned = draft.transaction()
    ours = FEE_PAYER.sign_message(bytes(unsigned)[1 + 64 * 2 :])
    sent = VersionedTransaction.populate(unsigned.message, [ours, unsigned.signatures[1]])
    return node.chain.send(bytes(sent), skips_preflight=True)


async def test_a_payment_is_not_called_expired_by_two_nodes_behind_one_address_of_which_one_stands_still() -> None:
    """One says that the payment's end has come, and another one, which has not seen so much, lists no payment."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as provider,
        chain_of(provider.url) as chain,
    ):
        findings, began = SolanaFindings(chain, clock_ms), node.chain.slot
        draft = paying(node, 10_000)
        owed = owed_by(draft)

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            if call["method"] != "getSignaturesForAddress":
                return answer
            if call["params"][1].get("minContextSlot", 0) <= began:
                return answer | {"result": []}
            error = {"code": -32016, "message": "Minimum context slot has not been reached"}
            return {"jsonrpc": "2.0", "id": answer["id"], "error": error}

        provider.falsify = falsify
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        executed(node, draft)
        node.chain.next_slot(EXPIRED_SLOTS)
        with pytest.raises(RpcUnavailable, match="Minimum context slot"):
            await findings.find(owed, "", SENDERS)
        provider.calm()
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.PAID


async def test_a_node_that_was_away_calls_no_payment_expired_that_was_made_meanwhile() -> None:
    """It went on from a snapshot, so it lacks blocks in between; its first one is old all the same."""
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, chain_of(node.url) as chain:
        findings = SolanaFindings(chain, clock_ms)
        draft = paying(node, 10_000)
        assert (await findings.find(owed_by(draft), "", SENDERS)).seen is Seen.NOTHING
        node.chain.next_slot()
        executed(node, draft)
        node.chain.lacks = range(node.chain.slot, node.chain.slot + 30)
        node.chain.next_slot(EXPIRED_SLOTS)
        assert (await findings.find(owed_by(draft), "", SENDERS)).seen is Seen.NOTHING
        node.chain.lacks = range(0)
        assert (await findings.find(owed_by(draft), "", SENDERS)).seen is Seen.PAID


async def test_a_payment_is_not_called_expired_by_two_nodes_behind_one_address_of_which_one_lacks_blocks() -> None:
    """One lists nothing of the payer, and another one has every block: each answers what is asked together."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as provider,
        chain_of(provider.url) as chain,
    ):
        findings, draft = SolanaFindings(chain, clock_ms), paying(node, 10_000)
        earlier = [executed(node, paying(node, 1)) for _ in range(3)]
        owed, never = owed_by(draft), owed_on(node)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        assert (await findings.find(never, "", SENDERS)).seen is Seen.NOTHING
        node.chain.next_slot()
        name, gap = executed(node, draft), range(node.chain.slot, node.chain.slot + 20)
        node.chain.next_slot(EXPIRED_SLOTS)

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            if "getSignaturesForAddress" not in {one["method"] for one in provider.judged}:
                return answer
            if call["method"] == "getBlocks":
                return answer | {"result": [slot for slot in answer["result"] if slot not in gap]}
            if call["method"] == "getSignaturesForAddress":
                return answer | {"result": [one for one in answer["result"] if one["signature"] != name]}
            return answer

        provider.falsify = falsify
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        provider.calm()
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.PAID
        assert (await findings.find(never, "", SENDERS)).seen is Seen.FAILED, f"{earlier} are other ones"


async def test_a_payer_with_many_transactions_has_what_was_never_made_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it goes on paying others meanwhile: all that it made is listed again with the blocks."""
    monkeypatch.setattr("tollkeeper.chains.solana.payments._PAGE", 5)
    monkeypatch.setattr("tollkeeper.chains.solana.uses._LISTED_FIRST", 2)
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as proxy,
        chain_of(proxy.url) as chain,
    ):
        findings, never = SolanaFindings(chain, clock_ms), owed_on(node)
        for count in (0, 1, 2, 4, 10):
            for _ in range(count):
                executed(node, paying(node, 1))
            assert (await findings.find(never, "", SENDERS)).seen is Seen.NOTHING
        node.chain.next_slot(EXPIRED_SLOTS)
        for _ in range(3):
            executed(node, paying(node, 1))
        asked: list[Any] = []

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            if {one["method"] for one in proxy.judged} == {"getBlocks", "getSignaturesForAddress"}:
                asked.append(call["method"])
            return answer

        proxy.falsify = falsify
        assert (await findings.find(never, "", SENDERS)).seen is Seen.FAILED
        assert sorted(asked) == ["getBlocks", *["getSignaturesForAddress"] * 5]
        monkeypatch.setattr("tollkeeper.chains.solana.payments._PAGES_MAX", 4)
        asked.clear()
        assert (await findings.find(never, "", SENDERS)).seen is Seen.FAILED
        assert asked == [], "too many for one answer"


async def test_a_payment_is_not_called_expired_by_a_node_that_was_far_behind_when_it_was_asked_for() -> None:
    """By its blocks the end has come; a blockhash that it did not know by then is taken still."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as behind,
        chain_of(behind.url) as chain,
    ):
        node.chain.ahead_seconds = -40
        node.chain.next_slot(300)
        slot, node.chain.ahead_seconds = node.chain.slot, 0
        node.chain.next_slot(100)
        told = {"getSlot": slot, "getEpochInfo": {"blockHeight": slot}}
        behind.falsify = lambda call, answer: (
            answer | ({"result": told[call["method"]]} if call["method"] in told else {})
        )
        findings, draft = SolanaFindings(chain, clock_ms), paying(node, 10_000)
        owed = owed_by(draft)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        behind.calm()
        node.chain.next_slot(RECENT_SLOTS - 1)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        executed(node, draft)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.PAID


@pytest.mark.parametrize("is_named", [False, True])
async def test_a_payment_that_one_of_two_nodes_shows_in_place_of_another_transaction_was_not_made(
    *, is_named: bool
) -> None:
    """Both say that the other one was executed, which is true; what it is only one of them is asked."""
    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as liar,
        chain_of(liar.url, node.url) as chain,
    ):
        name = executed(node, paying(node, 10_000))
        node.chain.next_slot(FINAL_SLOTS)
        draft = paying(node, 10_000)
        never = draft.transaction()
        forged = VersionedTransaction.populate(never.message, [Signature.from_string(name), never.signatures[1]])

        def falsify(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
            shown = {"transaction": [base64.b64encode(bytes(forged)).decode(), "base64"]}
            return answer | {"result": answer["result"] | shown} if call["method"] == "getTransaction" else answer

        liar.falsify = falsify
        findings = SolanaFindings(chain, clock_ms)
        owed = owed_by(draft)
        with pytest.raises(RpcUnavailable, match="another transaction"):
            await findings.find(owed, name if is_named else "", SENDERS)
        liar.calm()
        assert (await findings.find(owed, name if is_named else "", SENDERS)).seen is Seen.NOTHING


@pytest.mark.parametrize("minutes", [2, 11])
async def test_who_asks_for_a_payment_late_sees_it_as_who_asked_first_does_and_takes_nothing_from_him(
    minutes: int,
) -> None:
    """A direct transfer asks for the bytes of a sale, or is asked for again: it was made in between."""
    now_ms = clock_ms()
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, chain_of(node.url) as chain:
        findings = SolanaFindings(chain, lambda: now_ms)
        draft = paying(node, 10_000)
        owed = owed_by(draft)
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.NOTHING
        name = executed(node, draft)
        now_ms += minutes * 60_000
        node.chain.next_slot(max(EXPIRED_SLOTS, minutes * 150))
        late = replace(owed, asked_ms=now_ms)
        used = await findings.find_use(late, Payment(1, "exact", NETWORK, draft.payload()))
        assert used is not None
        assert used.transaction == name
        assert (await findings.find(late, "", SENDERS)).seen is Seen.PAID
        assert (await findings.find(owed, "", SENDERS)).seen is Seen.PAID


async def test_a_use_is_found_where_the_first_node_does_not_list_it_yet() -> None:
    """One that is behind would have a payment sold for that was made for another server a moment ago."""

    def behind(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        return answer | {"result": []} if call["method"] == "getSignaturesForAddress" else answer

    async with (
        SolanaNode(wallets=WALLETS, slot_seconds=None) as node,
        run_chaos(node.url) as lagging,
        run_chaos(node.url) as second,
        chain_of(lagging.url, second.url) as chain,
    ):
        draft, earlier = paying(node, 10_000), executed(node, paying(node, 10_000))
        payment = Payment(1, "exact", NETWORK, draft.payload())
        findings = SolanaFindings(chain, clock_ms)
        lagging.falsify = behind
        for _ in range(3):
            assert await findings.find_use(owed_by(draft), payment) == NOTHING
        assert second.calls["getTransaction"] == 1, f"{earlier} was read once"
        name = executed(node, draft)
        assert await findings.find_use(owed_by(draft), payment) == Finding(Seen.FOREIGN, name)


async def test_of_another_token_than_the_nodes_nothing_is_told() -> None:
    async with SolanaNode(wallets=WALLETS, slot_seconds=None) as node, chain_of(node.url) as chain:
        findings = SolanaFindings(chain, clock_ms)
        draft = paying(node, 10_000)
        owed = owed_by(draft)
        other = replace(owed, key=replace(owed.key, asset=WALLETS.owner.address))
        with pytest.raises(RpcUnavailable, match="asset"):
            await findings.find_use(other, Payment(1, "exact", NETWORK, draft.payload()))
        with pytest.raises(RpcUnavailable, match="asset"):
            await findings.find(other, "", SENDERS)
