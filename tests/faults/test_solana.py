"""The same faults at every boundary on Solana: killed, cut, doubled, silenced (F1 to F5, F13 to F15)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from tests.chains.solana_node import WALLETS, paying
from tests.faults.aftermath import assert_nothing_lost_on_solana
from tests.faults.client import PRICE, assert_handed_out_once
from tests.faults.striking import Case, Victim, cases, faulty_hub
from tests.faults.test_boundaries import carry_out
from tests.hub.faulty_database import Kind, Moment
from tests.hub.solana_hub import NETWORK, body_of, message_hash
from tollkeeper.core.solana import read_transfer
from tollkeeper.core.wire import SolanaPayload
from tollkeeper.sandbox.solana_node import SolanaNode

FEE_LAMPORTS: Final = 2 * 5_000 + 1
# What a settlement waits for, in the order in which it comes.
SETTLING: Final = (
    "find_key",
    "find_settlement",
    "simulateTransaction",
    "claim_and_sign",
    "sendTransaction",
    "getSignatureStatuses",
    "move_all",
)
OF_NODE: Final = tuple(boundary for boundary in SETTLING if "_" not in boundary)


@dataclass(frozen=True)
class SolanaPayment:
    """A signed payment as its server presents it."""

    body: dict[str, Any]

    def asking(self, **fields: Any) -> dict[str, Any]:
        """The body of a settle request."""
        return {**self.body, **fields}

    @property
    def payload(self) -> SolanaPayload:
        """What its payer signed."""
        return SolanaPayload(self.body["paymentPayload"]["payload"]["transaction"])

    @property
    def status_path(self) -> str:
        """Where everybody is shown how it ended."""
        return f"/payments/{NETWORK}/{message_hash(self.body)}"


async def settle_through(directory: Path, node: SolanaNode, chosen: list[Case]) -> Victim:
    """A payment for each case; each is settled once, and no fee is paid twice."""
    chain, payments = node.chain, []
    owner = chain.open_account(WALLETS.owner.address)
    before, money = chain.token_balance(owner), _money(node)
    async with faulty_hub(directory, node.url, is_solana=True) as hub:
        for number, case in enumerate(chosen):
            payments.append(SolanaPayment(body_of(paying(node, PRICE).payload(), PRICE)))
            assert await carry_out(hub, payments[-1], f"key.{number}", case), case
        for payment in payments:
            await assert_handed_out_once(await hub.url(), payment)
        paid = [read_transfer(payment.payload) for payment in payments]
        await assert_nothing_lost_on_solana(directory, node, paid=paid)
    assert chain.token_balance(owner) == before + PRICE * len(payments)
    assert money - _money(node) == FEE_LAMPORTS * len(payments)
    return hub


def _money(node: SolanaNode) -> int:
    return sum(node.chain.balance(one.address) for one in WALLETS.fee_payers)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_hub_killed_at_any_boundary_settles_once_after_its_restart(tmp_path: Path, moment: Moment) -> None:
    chosen = [case for case in cases(SETTLING, Kind.CRASH) if case.moment is moment]
    async with SolanaNode(wallets=WALLETS) as node:
        hub = await settle_through(tmp_path, node, chosen)
    assert hub.starts == len(chosen) + 1


@pytest.mark.timeout(300)
async def test_an_error_or_a_doubled_answer_at_any_boundary_settles_once(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS) as node:
        hub = await settle_through(tmp_path, node, list(cases(SETTLING, Kind.ERROR, Kind.DUPLICATE)))
    assert hub.starts == 1


@pytest.mark.timeout(300)
async def test_a_request_or_an_answer_that_is_lost_without_a_word_settles_once(tmp_path: Path) -> None:
    async with SolanaNode(wallets=WALLETS) as node:
        hub = await settle_through(tmp_path, node, list(cases(OF_NODE, Kind.TIMEOUT)))
    assert hub.starts == 1


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_ends_as_it_should(tmp_path: Path, kind: Kind) -> None:
    async with SolanaNode(wallets=WALLETS) as node:
        await settle_through(tmp_path, node, 3 * list(cases(SETTLING, kind)))
