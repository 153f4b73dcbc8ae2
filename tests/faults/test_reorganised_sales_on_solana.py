"""A sale on Solana whose payment goes with a fork that was left: for good, or until it is carried out again (F8, I5).

At a gateway with a hub of its own, apart from its hub, and at a facilitator that is not ours.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.aftermath import assert_nothing_lost_on_solana
from tests.faults.sold import CREDITS, DECIDED_SECONDS, Facilitator, assert_stays_good, serve_with, until_void
from tests.gateway.foreign_on_solana import ForeignOnSolana, run_foreign_on_solana
from tests.gateway.recording_target import RecordingTarget, recording_target
from tests.gateway.solana_market import NETWORK, SolanaMarket
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.solana.rules import SolanaTransfer, read_transfer
from tollkeeper.core.x402.version1 import SolanaPayload
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.solana.chain import FINAL_SLOTS, EmbeddedSolanaChain
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.sandbox.wallets import derive_solana_wallets, derive_wallets, fee_payers_of
from tollkeeper.settings.model import NetworkSettings

SLOTS_AT_ONCE = 20


@dataclass(slots=True)
class Sale:
    """One sale of many credits."""

    node: SolanaNode
    market: SolanaMarket
    gate: dict[str, Any]
    payment: str
    foreign: ForeignOnSolana | None

    @property
    def chain(self) -> EmbeddedSolanaChain:
        return self.node.chain

    @property
    def transfer(self) -> SolanaTransfer:
        """What the payer signed."""
        payload = json.loads(base64.b64decode(self.payment))["payload"]
        return read_transfer(SolanaPayload(payload["transaction"]))

    async def call(self) -> Answer:
        return await self.market.pay(self.gate, self.payment)

    async def read(self) -> dict[str, Any]:
        url = f"{self.market.url}/api/v1/paygates/{self.gate['id']}"
        return (await self.market.buyer.ask("GET", url)).json()

    def earned(self) -> int:
        return self.chain.token_balance(self.chain.open_account(self.market.owner))

    def leave_the_fork(self) -> None:
        """The payment's slot is not among those that are finalized."""
        assert self.chain.roll_back(1) == 1

    def spend_elsewhere(self) -> None:
        """What the payer has goes to somebody else, on the branch that stays."""
        payer = str(self.market.wallet.pubkey())
        self.chain.open_account(payer, -self.chain.token_balance(self.chain.open_account(payer)))

    async def send_again(self) -> None:
        """Who settled it does so: our hub by itself, the other facilitator now."""
        if self.foreign is not None:
            await self.foreign.hand_over(base64.b64decode(self.transfer.payload.transaction))


@asynccontextmanager
async def selling(
    folder: Path, facilitator: Facilitator, target: RecordingTarget, **fields: object
) -> AsyncIterator[Sale]:
    """The programs on a chain whose slots pass when told, and a sale whose first call was served."""
    wallets = replace(derive_solana_wallets(), fee_payers=fee_payers_of(derive_wallets().relayer.private_key))
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(SolanaNode(wallets=wallets, slot_seconds=None))
        network = NETWORKS[NETWORK]
        changes: dict[str, Any] = {
            "networks": {NETWORK: NetworkSettings(network, (node.url,))},
            "default_network": network,
            "default_payment_address": wallets.owner.address,
            "inspection_seconds": 1,
        }
        foreign = None
        if facilitator is Facilitator.FOREIGN:
            foreign = await stack.enter_async_context(run_foreign_on_solana(node))
        url = await serve_with(stack, facilitator, "", folder, foreign.url if foreign else "", **changes)
        buyer = await stack.enter_async_context(Buyer(derive_wallets().buyer))
        market = SolanaMarket(url, node.url, wallets, target, buyer, NETWORK)
        gate = await market.gate(credits=CREDITS, **fields)
        payment = await market.payment(await market.requirements(gate))
        sale = Sale(node, market, gate, payment, foreign)
        assert (await sale.call()).status == 200
        yield sale


@pytest.fixture
async def target() -> AsyncIterator[RecordingTarget]:
    async with recording_target() as running:
        yield running


@pytest.mark.parametrize(
    ("facilitator", "fields"),
    [
        (Facilitator.OWN, {}),
        (Facilitator.APART, {}),
        (Facilitator.OWN, {"assumeValid": True}),
    ],
    ids=["own", "apart", "trusted"],
)
async def test_credits_are_void_once_the_payers_money_is_gone_on_the_other_fork(
    tmp_path: Path, target: RecordingTarget, facilitator: Facilitator, fields: dict[str, Any]
) -> None:
    async with selling(tmp_path, facilitator, target, **fields) as sale:
        await asyncio.sleep(5)  # it was looked at, and confirmed where it was trusted
        assert sale.earned() == 10_000
        sale.leave_the_fork()
        sale.spend_elsewhere()
        await until_void(sale, lambda: sale.chain.next_slot(SLOTS_AT_ONCE))
        assert sale.earned() == 0
        await assert_nothing_lost_on_solana(tmp_path, sale.node, paid=[], refused=[sale.transfer])


@pytest.mark.parametrize("facilitator", Facilitator, ids=lambda one: one.name.lower())
async def test_nothing_is_void_where_the_payment_is_carried_out_again(
    tmp_path: Path, target: RecordingTarget, facilitator: Facilitator
) -> None:
    async with selling(tmp_path, facilitator, target) as sale:
        sale.leave_the_fork()
        assert sale.earned() == 0
        await sale.send_again()
        sale.chain.next_slot(FINAL_SLOTS)
        async with asyncio.timeout(DECIDED_SECONDS):
            while sale.earned() != 10_000:  # noqa: ASYNC110 - a chain is asked
                await asyncio.sleep(0.1)
        await assert_stays_good(sale, lambda: sale.chain.next_slot(SLOTS_AT_ONCE))
        await assert_nothing_lost_on_solana(tmp_path, sale.node, paid=[sale.transfer])
