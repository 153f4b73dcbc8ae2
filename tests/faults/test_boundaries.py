"""Every boundary of the pipeline where it waits for database or node, before and after it, with every kind of fault.

Whatever happens there, the same payment presented again ends as one success or one refusal (F1 to F5, F13 to F15).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import Signed, assert_settled_once, pay, present, public_status
from tests.faults.counts import came
from tests.faults.tcp_chaos import NODE_TIMEOUT_SECONDS, Fault, TcpChaos, run_tcp_chaos
from tests.hub.faulty_database import Kind, Moment, order
from tests.hub.hub_process import HubProcess
from tests.hub.hub_under_test import new_payment
from tests.hub.test_unknown_outcomes import relay

HUB: Final = Path(__file__).parents[2] / "src" / "tollkeeper" / "hub"
FEES_FORGOTTEN_SECONDS: Final = 2.2

# What a settlement waits for, in the order in which it comes: units and queries by the functions that ask for them,
# calls of the node by their methods.
SETTLING: Final = (
    "find_key",
    "find_settlement",
    "eth_call",
    "eth_maxPriorityFeePerGas",
    "claim_and_sign",
    "eth_sendRawTransaction",
    "eth_getTransactionReceipt",
    "move_all",
)
# And what the refusal of a payment that a stranger carried out waits for.
REFUSING: Final = ("find_key", "find_settlement", "eth_call", "eth_getLogs", "record_answer")

FAULTS: Final = {
    (Kind.CRASH, Moment.BEFORE): Fault.KILL_BEFORE,
    (Kind.CRASH, Moment.AFTER): Fault.KILL_AFTER,
    (Kind.ERROR, Moment.BEFORE): Fault.CUT_REQUEST,
    (Kind.ERROR, Moment.AFTER): Fault.CUT_ANSWER,
    (Kind.TIMEOUT, Moment.BEFORE): Fault.BLACKHOLE,
    (Kind.TIMEOUT, Moment.AFTER): Fault.SILENCE,
    (Kind.DUPLICATE, Moment.BEFORE): Fault.ASKED_TWICE,
    (Kind.DUPLICATE, Moment.AFTER): Fault.TWICE,
}


@dataclass(frozen=True)
class Case:
    """One fault at one boundary."""

    boundary: str
    moment: Moment
    kind: Kind

    @property
    def is_of_node(self) -> bool:
        """The database's are called by functions' names, a Solana node's without an underscore."""
        return self.boundary.startswith("eth_") or "_" not in self.boundary


def cases(boundaries: tuple[str, ...], *kinds: Kind) -> Iterator[Case]:
    """All combinations; a database gives no answer twice."""
    for boundary in boundaries:
        for moment in Moment:
            for kind in kinds:
                case = Case(boundary, moment, kind)
                if case.is_of_node or kind is not Kind.DUPLICATE:
                    yield case


class FaultyHub:
    """A hub process between a faulty database and a faulty node; a new one where the last one was killed."""

    def __init__(self, directory: Path, chaos: TcpChaos, *, is_solana: bool = False) -> None:
        self._directory = directory
        self._orders = directory / "order.json"
        self._chaos = chaos
        self._is_solana = is_solana
        self._process: HubProcess | None = None
        self.starts = 0

    async def url(self) -> str:
        """Of the process that runs."""
        if self._process is None or self._process.process.poll() is not None:
            self.end()
            self._process = await asyncio.to_thread(
                HubProcess,
                self._directory,
                self._chaos.url,
                node_timeout_seconds=NODE_TIMEOUT_SECONDS,
                orders=self._orders,
                is_solana=self._is_solana,
            )
            self._chaos.kill = self._process.kill
            self.starts += 1
        return self._process.url

    def prepare(self, case: Case) -> None:
        """The fault comes as soon as anything comes by its boundary."""
        if case.is_of_node:
            self._chaos.strike(case.boundary, FAULTS[case.kind, case.moment])
        else:
            order(self._orders, case.boundary, case.moment, case.kind)

    def has_come(self, case: Case) -> bool:
        """Did it?"""
        return self._chaos.struck > 0 if case.is_of_node else not self._orders.exists()

    def end(self) -> None:
        """No process runs any more."""
        if self._process is not None:
            self._process.__exit__()


@asynccontextmanager
async def faulty_hub(directory: Path, node_url: str, *, is_solana: bool = False) -> AsyncIterator[FaultyHub]:
    async with run_tcp_chaos(node_url) as chaos:
        hub = FaultyHub(directory, chaos, is_solana=is_solana)
        try:
            yield hub
        finally:
            hub.end()


async def carry_out(hub: FaultyHub, payment: Signed, key: str, case: Case) -> bool:
    """Presents the payment through the fault, with the same key, until it is known how it ended: its success."""
    if case.boundary == "eth_maxPriorityFeePerGas":
        await asyncio.sleep(FEES_FORGOTTEN_SECONDS)
    await hub.url()
    hub.prepare(case)
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while (answer := await present(http, await hub.url(), payment, key=key)) is None or not hub.has_come(case):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    came(f"{case.kind.value} at a boundary")
    assert (await pay(await hub.url(), payment, key=key))["success"] is answer["success"], case
    success: bool = answer["success"]
    return success


async def settle_through(directory: Path, chain: ChainUnderTest, chosen: list[Case]) -> FaultyHub:
    """A payment for each case; each is settled once."""
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    async with faulty_hub(directory, chain.url) as hub:
        for number, case in enumerate(chosen):
            payments.append(new_payment(chain))
            assert await carry_out(hub, payments[-1], f"key.{number}", case), case
        await assert_settled_once(await hub.url(), directory, chain, payments, before)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(payments)
    return hub


async def refuse_through(directory: Path, chain: ChainUnderTest, chosen: list[Case]) -> FaultyHub:
    """For each case a payment that a stranger carried out; each is refused, and moves nothing more."""
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    async with faulty_hub(directory, chain.url) as hub:
        for number, case in enumerate(chosen):
            payments.append(payment := new_payment(chain))
            relay(chain, payment)
            balance = chain.balance(chain.wallets.owner.address)
            assert not await carry_out(hub, payment, f"key.{number}", case), case
            assert chain.balance(chain.wallets.owner.address) == balance
        refused = [payment.authorization for payment in payments]
        await assert_nothing_lost(directory, chain, paid=[], refused=refused)
    assert chain.nonce(chain.wallets.relayer) == nonce
    return hub


@pytest.mark.timeout(300)
@pytest.mark.parametrize("moment", Moment)
async def test_a_hub_killed_at_any_boundary_settles_once_after_its_restart(
    tmp_path: Path, embedded_chain: ChainUnderTest, moment: Moment
) -> None:
    chosen = [case for case in cases(SETTLING, Kind.CRASH) if case.moment is moment]
    hub = await settle_through(tmp_path, embedded_chain, chosen)
    assert hub.starts == len(chosen) + 1


async def test_a_hub_killed_before_it_signed_has_charged_nobody_and_knows_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain, payment = embedded_chain, new_payment(embedded_chain)
    before = chain.balance(chain.wallets.owner.address)
    async with faulty_hub(tmp_path, chain.url) as hub, aiohttp.ClientSession() as http:
        url = await hub.url()
        hub.prepare(Case("eth_call", Moment.BEFORE, Kind.CRASH))
        assert await present(http, url, payment) is None
        assert await public_status(await hub.url(), payment) == "unknown"
        assert not chain.is_used(payment.authorization.payer, payment.authorization.nonce)
        assert (await pay(await hub.url(), payment))["success"] is True
        await assert_settled_once(await hub.url(), tmp_path, chain, [payment], before)


async def test_an_error_or_a_doubled_answer_at_any_boundary_settles_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    hub = await settle_through(tmp_path, embedded_chain, list(cases(SETTLING, Kind.ERROR, Kind.DUPLICATE)))
    assert hub.starts == 1


async def test_a_refusal_through_an_error_at_any_boundary_stays_one_and_moves_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    await refuse_through(tmp_path, embedded_chain, list(cases(REFUSING, Kind.ERROR, Kind.DUPLICATE)))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("through", [settle_through, refuse_through])
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_ends_as_it_should(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    through: Callable[[Path, ChainUnderTest, list[Case]], Awaitable[FaultyHub]],
    kind: Kind,
) -> None:
    boundaries = SETTLING if through is settle_through else REFUSING
    await through(tmp_path, embedded_chain, list(cases(boundaries, kind)))
