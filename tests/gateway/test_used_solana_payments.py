"""Solana payments that were carried out before and come to a gate again (contract 4.3; security F22)."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.composed import composed
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.solana_market import NETWORK, SolanaMarket, header_of
from tests.hub.chaos import run_chaos
from tests.hub.test_solana_nodes import saying, unseen
from tollkeeper.core.networks import NETWORKS
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.settings.model import NetworkSettings

RECENT_SLOTS = 150


@dataclass(frozen=True, slots=True)
class Place:
    """A chain whose slots pass when told, and a directory for the program's database."""

    node: SolanaNode
    directory: Path
    target: RecordingTarget

    @asynccontextmanager
    async def market(self, **changes: Any) -> AsyncIterator[SolanaMarket]:
        """The program, on the database as it is now, with some settings changed."""
        network = NETWORKS[NETWORK]
        settings: dict[str, Any] = {
            "networks": {network.name: NetworkSettings(network, (self.node.url,))},
            "default_network": network,
            "default_payment_address": self.node.wallets.owner.address,
            **changes,
        }
        async with (
            composed("", self.directory / "main.db", **settings) as url,
            Buyer(derive_wallets().buyer) as buyer,
        ):
            yield SolanaMarket(url, self.node.url, self.node.wallets, self.target, buyer, NETWORK)


def made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@asynccontextmanager
async def place_of(home: Path, target: RecordingTarget) -> AsyncIterator[Place]:
    keys = fee_payers_of(derive_wallets().relayer.private_key)
    wallets = replace(derive_solana_wallets(), fee_payers=keys)
    async with SolanaNode(wallets=wallets, slot_seconds=None) as node:
        yield Place(node, made(home / "place"), target)


@contextmanager
def forgotten(directory: Path) -> Iterator[None]:
    """What is written into the directory meanwhile is lost: its backup takes its place."""
    backup = directory.with_name("backup")
    shutil.copytree(directory, backup)
    with ExitStack() as stack:
        stack.callback(shutil.move, backup, directory)
        stack.callback(shutil.rmtree, directory)
        yield


def at(market: SolanaMarket, gate: dict[str, Any]) -> dict[str, Any]:
    """The gate of a former program, at this one."""
    return {**gate, "accessUrl": f"{market.url}/{gate['slug']}"}


async def forgotten_sale(place: Place) -> tuple[dict[str, Any], str, int]:
    """A gate of two credits, a payment that bought there and was forgotten by gateway and hub, what its owner had."""
    async with place.market() as market:
        gate = await market.gate(credits=2)
    with forgotten(place.directory):
        async with place.market() as market:
            payment = await market.payment(await market.requirements(at(market, gate)))
            assert (await market.pay(at(market, gate), payment)).status == 200
            return gate, payment, await market.balance(market.owner)


def error_of(answer: Answer) -> dict[str, Any]:
    error: dict[str, Any] = answer.json()["error"]
    return error


@pytest.mark.parametrize("slots", [1, RECENT_SLOTS + 1])
@pytest.mark.sqlite_only("it puts a copy of the file back")
async def test_what_gateway_and_hub_forgot_is_served_when_its_payment_is_presented_again(
    tmp_path: Path, target: RecordingTarget, slots: int
) -> None:
    async with place_of(tmp_path, target) as place:
        gate, payment, had = await forgotten_sale(place)
        place.node.chain.next_slot(slots)
        async with place.market() as market:
            answers = [await market.pay(at(market, gate), payment) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 402], answers[0].body
            assert await market.balance(market.owner) == had


@pytest.mark.parametrize("slots", [1, RECENT_SLOTS + 1])
@pytest.mark.sqlite_only("it puts a copy of the file back")
async def test_whom_gateway_and_hub_forgot_is_not_told_to_pay_again_while_a_node_does_not_show_his_payment(
    tmp_path: Path, target: RecordingTarget, slots: int
) -> None:
    async with place_of(tmp_path, target) as place, run_chaos(place.node.url) as behind:
        gate, payment, had = await forgotten_sale(place)
        place.node.chain.next_slot(slots)
        network = NETWORKS[NETWORK]
        async with place.market(networks={NETWORK: NetworkSettings(network, (behind.url,))}) as market:
            behind.falsify = saying(getSignatureStatuses=unseen)
            error = error_of(await market.pay(at(market, gate), payment))
            assert (error["code"], error["details"]["retry"]) == ("SETTLEMENT_PENDING", "send the same payment again")
            behind.calm()
            answers = [await market.pay(at(market, gate), payment) for _ in range(3)]
            assert [answer.status for answer in answers] == [200, 200, 402], answers[0].body
            assert await market.balance(market.owner) == had


@pytest.mark.parametrize("slots", [1, RECENT_SLOTS + 1])
async def test_a_payment_that_was_settled_elsewhere_is_refused_by_its_transaction_however_late_it_comes(
    tmp_path: Path, target: RecordingTarget, slots: int
) -> None:
    async with place_of(tmp_path, target) as place, place.market() as market:
        gate = await market.gate()
        wanted = await market.requirements(gate)
        draft = await market.draft(wanted)
        paid = {"x402Version": 1, "scheme": "exact", "network": NETWORK}
        payload = {**paid, "payload": {"transaction": draft.payload().transaction}}
        body = {"x402Version": 1, "paymentPayload": payload, "paymentRequirements": wanted, "confirm": True}
        settled = (await market.buyer.ask("POST", f"{market.url}/hub/settle", body=body)).json()
        assert settled["success"] is True
        place.node.chain.next_slot(slots)
        error = error_of(await market.pay(gate, header_of(draft)))
        assert (error["code"], error["details"]["transaction"]) == ("NONCE_ALREADY_USED", settled["transaction"])
        assert error["message"].startswith("the payment was settled before, and is charged once")
        shown = await market.buyer.ask("GET", error["details"]["statusUrl"])
        assert (shown.json()["status"], shown.json()["transaction"]) == ("success", settled["transaction"])


async def test_a_payment_that_was_carried_out_and_failed_is_told_so_however_late_it_comes(
    tmp_path: Path, target: RecordingTarget
) -> None:
    """It is no expired one: it can be seen on the chain, where it moved nothing."""
    async with place_of(tmp_path, target) as place, place.market() as market:
        gate, chain = await market.gate(), place.node.chain
        payment = await market.payment(await market.requirements(gate))
        chain.holds = True
        paying = asyncio.create_task(market.pay(gate, payment))
        while not chain._waiting:  # noqa: SLF001, ASYNC110 - the node's own list
            await asyncio.sleep(0.01)
        wallet = str(market.wallet.pubkey())
        chain.open_account(wallet, -await market.balance(wallet))  # the money goes elsewhere
        chain.release()
        chain.next_slot(FINAL_SLOTS)
        first = error_of(await paying)
        assert first["details"]["reason"] == "invalid_exact_svm_transaction_failed"
        told = "the payment was carried out and failed on the chain: nothing was charged; sign a new payment"
        assert first["message"] == told
        for slots in (1, RECENT_SLOTS + 1):
            chain.next_slot(slots)
            error = error_of(await market.pay(gate, payment))
            assert (error["code"], error["details"]["reason"]) == ("PAYMENT_INVALID", first["details"]["reason"])
            assert error["details"]["transaction"] == first["details"]["transaction"]
            assert error["message"] == told


async def test_who_never_paid_is_told_that_nothing_was_charged(tmp_path: Path, target: RecordingTarget) -> None:
    async with place_of(tmp_path, target) as place, place.market() as market:
        gate = await market.gate()
        payment = await market.payment(await market.requirements(gate))
        place.node.chain.next_slot(RECENT_SLOTS + 1)
        for _ in range(5):  # more often than a payment may be tried to be settled
            error = error_of(await market.pay(gate, payment))
            assert (error["code"], error["details"]["check"]) == ("PAYMENT_EXPIRED", "blockhash")
            assert "nothing was charged" in error["message"]


@pytest.mark.parametrize("text", [b"", None])
async def test_whose_payment_may_be_another_buyers_is_told_so_where_credits_are_left(
    tmp_path: Path, target: RecordingTarget, text: bytes | None
) -> None:
    async with place_of(tmp_path, target) as place, place.market() as market:
        gate = await market.gate(credits=3, creditBinding="token")
        payment = await market.payment(await market.requirements(gate), text=text)
        first, second = [await market.pay(gate, payment) for _ in range(2)]
        assert (first.status, second.status, error_of(second)["code"]) == (200, 403, "CREDIT_TOKEN_REQUIRED")
        assert ("one transaction, which is charged once" in error_of(second)["message"]) is (text == b"")
