"""Every boundary of the pipeline where it waits for database or node, before and after it, with every kind of fault.

Whatever happens there, the same payment presented again ends as one success or one refusal (F1 to F5, F13 to F15).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.aftermath import assert_nothing_lost
from tests.faults.client import PRICE, Signed, assert_settled_once, pay, present, public_status
from tests.faults.counts import came
from tests.faults.striking import Case, Victim, cases, faulty_hub
from tests.hub.chaos import run_chaos
from tests.hub.faulty_database import FaultyDatabase, Kind, Moment
from tests.hub.hub_under_test import TestPayment, new_payment, run_hub
from tests.hub.test_unknown_outcomes import relay
from tollkeeper.storage.engine.database import Database

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
REFUSING: Final = ("find_key", "find_settlement", "eth_call", "eth_getLogs")
# What recovery waits for while a transaction waits to be mined.
COMPLETING: Final = (
    "has_orphans",
    "list_blocks",
    "eth_getBlockByNumber",
    "eth_getTransactionCount",
    "stored_from",
    "next_nonce_of",
    "eth_getTransactionByHash",
    "list_unfinished",
    "list_broken",
    "eth_getTransactionReceipt",
    "count_set_aside",
)
# What a caller waits for whose payment was settled when nobody was asking.
HANDING_OUT: Final = ("find_key", "read_settlement", "hand_out")
# What comes once in a process's life, or from time to time: who the nodes are, and what the signers hold.
STARTING: Final = frozenset(
    {
        "join",
        "open_lane",
        "take_lease",
        "forget_refusals",
        "eth_chainId",
        "eth_getCode",
        "eth_getBalance",
        "eth_blockNumber",
        "eth_feeHistory",  # in one batch with the tip
    }
)


Sign: TypeAlias = Callable[[ChainUnderTest], TestPayment]


async def carry_out(hub: Victim, payment: Signed, key: str, case: Case) -> bool:
    """Presents the payment through the fault, with the same key, until it is known how it ended: its success."""
    if case.boundary == "eth_maxPriorityFeePerGas":
        await asyncio.sleep(FEES_FORGOTTEN_SECONDS)
    await hub.rested()
    await hub.url()
    hub.prepare(case)
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        while (answer := await present(http, await hub.url(), payment, key=key)) is None or not hub.has_come(case):  # noqa: ASYNC110 - over HTTP
            await asyncio.sleep(0.05)
    came(f"{case.kind.value} at a boundary")
    assert (await pay(await hub.url(), payment, key=key))["success"] is answer["success"], case
    success: bool = answer["success"]
    return success


async def settle_through(
    directory: Path,
    chain: ChainUnderTest,
    chosen: list[Case],
    *,
    sign: Sign = new_payment,
    nodes: int = 1,
    **options: Any,
) -> Victim:
    """A payment for each case; each is settled once."""
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    async with faulty_hub(directory, *nodes * [chain.url], **options) as hub:
        for number, case in enumerate(chosen):
            payments.append(sign(chain))
            assert await carry_out(hub, payments[-1], f"key.{number}", case), case
        await assert_settled_once(await hub.url(), directory, chain, payments, before)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(payments)
    return hub


async def refuse_through(
    directory: Path,
    chain: ChainUnderTest,
    chosen: list[Case],
    *,
    sign: Sign = new_payment,
    nodes: int = 1,
    **options: Any,
) -> Victim:
    """For each case a payment that a stranger carried out; each is refused, and moves nothing more."""
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    async with faulty_hub(directory, *nodes * [chain.url], **options) as hub:
        for number, case in enumerate(chosen):
            payments.append(payment := sign(chain))
            relay(chain, payment)
            balance = chain.balance(chain.wallets.owner.address)
            assert not await carry_out(hub, payment, f"key.{number}", case), case
            assert chain.balance(chain.wallets.owner.address) == balance
        refused = [payment.authorization for payment in payments]
        await assert_nothing_lost(directory, chain, paid=[], refused=refused)
    assert chain.nonce(chain.wallets.relayer) == nonce
    return hub


async def finish_through(
    directory: Path,
    chain: ChainUnderTest,
    chosen: list[Case],
    *,
    sign: Sign = new_payment,
    nodes: int = 1,
    **options: Any,
) -> Victim:
    """For each case a payment whose transaction waits to be mined, and that nobody asks for until the fault came."""

    async def until_it_came(hub: Victim, _payment: TestPayment, _key: str, case: Case) -> None:
        await hub.rested()
        hub.prepare(case)
        await hub.until_come(case)
        came(f"{case.kind.value} at a boundary")
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")

    return await left_alone(directory, chain, chosen, until_it_came, sign, nodes, **options)


async def hand_out_through(
    directory: Path,
    chain: ChainUnderTest,
    chosen: list[Case],
    *,
    sign: Sign = new_payment,
    nodes: int = 1,
    **options: Any,
) -> Victim:
    """For each case a payment that became a success when nobody was asking; then somebody does, through the fault."""

    async def until_it_was_told(hub: Victim, payment: TestPayment, key: str, case: Case) -> None:
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
        async with asyncio.timeout(60):
            while await public_status(await hub.url(), payment) != "success":  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.05)
        assert await carry_out(hub, payment, key, case), case

    return await left_alone(directory, chain, chosen, until_it_was_told, sign, nodes, **options)


async def left_alone(
    directory: Path,
    chain: ChainUnderTest,
    chosen: list[Case],
    fault: Callable[[Victim, TestPayment, str, Case], Awaitable[None]],
    sign: Sign,
    nodes: int,
    **options: Any,
) -> Victim:
    """Each payment's caller was told that its outcome is pending, and went away."""
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    payments = []
    async with faulty_hub(directory, *nodes * [chain.url], **options) as hub, aiohttp.ClientSession() as http:
        for number, case in enumerate(chosen):
            payments.append(payment := sign(chain))
            key = f"key.{number}"
            chain.rpc.call("evm_setAutomine", False)
            assert await present(http, await hub.url(), payment, key=key, wait_seconds=0) is None
            await fault(hub, payment, key, case)
            assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
        await assert_settled_once(await hub.url(), directory, chain, payments, before)
    assert chain.nonce(chain.wallets.relayer) == nonce + len(payments)
    return hub


Through: TypeAlias = Callable[..., Awaitable[Victim]]
BOUNDARIES: Final[dict[Through, tuple[str, ...]]] = {
    settle_through: SETTLING,
    refuse_through: REFUSING,
    finish_through: COMPLETING,
    hand_out_through: HANDING_OUT,
}


class Recording(FaultyDatabase):
    """Fails nobody: it notes who waits for it."""

    def __init__(self, real: Database, orders: Path) -> None:
        super().__init__(real, orders)
        self.seen: set[str] = set()

    async def _befall(self, name: str, moment: Moment) -> None:
        del moment
        self.seen.add(name)


async def test_nothing_else_is_waited_for_from_a_request_to_the_end_of_its_settlement(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain = embedded_chain
    before = chain.balance(chain.wallets.owner.address)
    recorded: list[Recording] = []

    def record(real: Database) -> Recording:
        recorded.append(Recording(real, tmp_path / "order.json"))
        return recorded[0]

    async with (
        run_chaos(chain.url) as node,
        run_hub(tmp_path, chain, rpc_url=node.url, wrap_database=record) as hub,
        aiohttp.ClientSession() as http,
    ):
        payment, waiting, foreign = (new_payment(chain) for _ in range(3))
        assert (await pay(hub.url, payment, key="key.1"))["success"] is True
        chain.rpc.call("evm_setAutomine", False)
        assert await present(http, hub.url, waiting, key="key.2") is None
        await hub.complete()
        chain.rpc.call("evm_setAutomine", True)
        chain.rpc.call("evm_mine")
        await hub.complete()
        relay(chain, foreign)
        assert (await pay(hub.url, foreign, key="key.3"))["success"] is False
        assert (await pay(hub.url, waiting, key="key.2"))["success"] is True
        seen = recorded[0].seen | set(node.calls)
        all_boundaries = {boundary for boundaries in BOUNDARIES.values() for boundary in boundaries}
        assert seen <= {*all_boundaries, *STARTING}
        assert all_boundaries <= seen
        await assert_nothing_lost(
            tmp_path,
            chain,
            paid=[payment.authorization, waiting.authorization],
            refused=[foreign.authorization],
        )
    assert chain.balance(chain.wallets.owner.address) == before + 3 * PRICE


async def test_an_error_where_recovery_waits_holds_up_nothing(tmp_path: Path, embedded_chain: ChainUnderTest) -> None:
    hub = await finish_through(tmp_path, embedded_chain, list(cases(COMPLETING, Kind.ERROR)))
    assert hub.starts == 1


async def test_a_success_that_is_handed_out_through_an_error_or_a_crash_is_told_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chosen = [*cases(HANDING_OUT, Kind.ERROR), *cases(("hand_out",), Kind.CRASH)]
    await hand_out_through(tmp_path, embedded_chain, chosen)


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
@pytest.mark.parametrize("through", BOUNDARIES)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_at_every_boundary_ends_as_it_should(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    through: Through,
    kind: Kind,
) -> None:
    await through(tmp_path, embedded_chain, list(cases(BOUNDARIES[through], kind)))
