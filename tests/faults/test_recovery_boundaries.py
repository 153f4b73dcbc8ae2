"""Every boundary where a hub waits while it recovers: it starts, replaces, fills, adopts, or settles several together.

Also where it tries one alone that failed in company, opens again what a reorganisation took away, or sets a row aside.

As in `test_boundaries`, before and after it, with every kind of fault: whatever happens there, each payment ends as one
success, and its signer's nonces go on without a gap (F1 to F7, F20, F22).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import pytest

from tests.chains.batching import plant
from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.client import assert_settled_once, leave_pending, pay, present
from tests.faults.counts import came
from tests.faults.striking import Case, Victim, cases, faulty_hub
from tests.faults.test_boundaries import BOUNDARIES, FEES_FORGOTTEN_SECONDS, STARTING, carry_out
from tests.hub.faulty_database import Kind, Moment
from tests.hub.hub_under_test import TestPayment, new_payment
from tests.hub.test_restored_backup import carry_out as carry_out_elsewhere
from tollkeeper.core.evm.batches import Via

PARTY: Final = 4
# What comes where a lane stands still behind a transaction that became too cheap, and before a gap.
REPLACING: Final = (
    "eth_getBlockByNumber",
    "settlements_of",
    "eth_maxPriorityFeePerGas",
    "replace_transaction",
    "eth_getTransactionByHash",
    "eth_sendRawTransaction",
)
FILLING: Final = ("eth_getTransactionCount", "store_filler")
# What comes at a start that finds what a dead process carried; of what comes in a life anyway, what comes first.
TAKING_OVER: Final = (
    "join",
    "eth_chainId",
    "open_lane",
    "eth_getCode",
    "eth_getBalance",
    "take_lease",
    "has_orphans",
    "take_over",
    "stored_from",
    "forget_refusals",
)
# And where our signer carried a payment out that the database does not know, or not by that transaction.
ADOPTING: Final = ("find_settlement", "eth_getLogs", "eth_getTransactionByHash", "adopt_and_sign", "move_all")
FINDING: Final = (
    "transactions_of",
    "eth_call",
    "eth_getLogs",
    "eth_getTransactionByHash",
    "_found",
    "eth_getTransactionReceipt",
    "move_all",
)
OPEN_BATCH: Final = (
    "SELECT hash, signer_nonce FROM raw_transactions WHERE hash IN (SELECT transaction_hash FROM settlements"
    " WHERE state != 'CONFIRMED' GROUP BY transaction_hash HAVING COUNT(*) > 1)"
)
SLOTS_OF_EACH: Final = "SELECT DISTINCT COUNT(*) FROM settlement_slots GROUP BY settlement_id"
SHARED: Final = "SELECT signer_nonce FROM settlement_slots GROUP BY signer_nonce HAVING COUNT(*) > 1"
# What whoever looks at a payment's public status waits for.
ASKING: Final = "find_payment"
# What comes where a batch lost its nonce, where a block was taken back, and where a row breaks an invariant.
TRYING_ALONE: Final = ("transactions_of", "eth_call", "sign_again", "eth_sendRawTransaction")
REOPENING: Final = ("list_blocks", "list_in_block", "reopen_all")
SETTING_ASIDE: Final = ("list_broken", "set_aside")
TOGETHER: Final = ("eth_getCode", "claim_and_sign", "eth_sendRawTransaction", "eth_getTransactionReceipt", "move_all")

Act: TypeAlias = Callable[[Victim, Path, ChainUnderTest, Case, str], Awaitable[list[TestPayment]]]


def ask_per_gas(chain: ChainUnderTest, base_fee_wei: int) -> None:
    """A block of that base fee."""
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(base_fee_wei))
    chain.rpc.call("anvil_mine", "0x1")


def rows(directory: Path, sql: str, *values: object) -> list[Any]:
    """What a statement of ours gives on the hub's file."""
    with closing(sqlite3.connect(directory / "hub.db", timeout=20)) as connection, connection:
        return connection.execute(sql, values).fetchall()


def resume(chain: ChainUnderTest) -> None:
    """What waits is mined, and from now on everything at once."""
    chain.rpc.call("evm_setAutomine", True)
    chain.rpc.call("evm_mine")


async def left_pending(hub: Victim, chain: ChainUnderTest, key: str) -> TestPayment:
    """A payment that waits to be mined, and whose caller went away."""
    chain.rpc.call("evm_setAutomine", False)
    payment = new_payment(chain)
    await leave_pending(hub, payment, key)
    return payment


async def until_come(hub: Victim, case: Case) -> None:
    """The fault came, whichever process it befell; a crash once another one runs."""
    deaths = hub.deaths
    async with asyncio.timeout(60):
        while not hub.has_come(case) or (case.kind is Kind.CRASH and hub.deaths == deaths):
            await hub.url()
            await asyncio.sleep(0.05)
    came(f"{case.kind.value} at a boundary of recovery")


async def replace_it(hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """Its transaction became too cheap."""
    ask_per_gas(chain, 10**8)
    payment = await left_pending(hub, chain, key)
    if case.boundary == "eth_maxPriorityFeePerGas":
        await asyncio.sleep(FEES_FORGOTTEN_SECONDS)
    hub.prepare(case)
    ask_per_gas(chain, 10**10)
    await until_come(hub, case)
    slot = "SELECT hash FROM raw_transactions WHERE signer_nonce = (SELECT MAX(signer_nonce) FROM raw_transactions)"
    async with asyncio.timeout(60):
        while len(rows(directory, slot)) < 2:
            await hub.url()
            await asyncio.sleep(0.05)
    resume(chain)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


async def fill_it(hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """Before its transaction is a nonce that nothing was signed for."""
    await hub.url()
    rows(directory, "UPDATE signer_lanes SET next_nonce = next_nonce + 1")
    hub.prepare(case)
    payment = new_payment(chain)
    async with aiohttp.ClientSession() as http:
        await present(http, await hub.url(), payment, key=key, wait_seconds=0)
    await until_come(hub, case)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


async def take_it_over(hub: Victim, _directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """The process that carried it died."""
    payment = await left_pending(hub, chain, key)
    await hub.ended()
    hub.prepare(case)
    await until_come(hub, case)
    resume(chain)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


async def adopt_it(hub: Victim, _directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """The database forgot it, and it is presented."""
    payment = new_payment(chain)
    carry_out_elsewhere(chain, payment, by_relayer=True)
    assert await carry_out(hub, payment, key, case), case
    return [payment]


async def find_it(hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """The database forgot the transaction that carried it out, and knows another one."""
    payment = await left_pending(hub, chain, key)
    await hub.ended()
    ((known,),) = rows(
        directory, "SELECT transaction_hash FROM settlements WHERE nonce = ?", payment.authorization.nonce
    )
    chain.rpc.call("anvil_dropTransaction", known)
    chain.rpc.call("evm_setAutomine", True)
    carry_out_elsewhere(chain, payment, by_relayer=True)
    hub.prepare(case)
    await until_come(hub, case)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


async def settle_together(
    hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str, *, apart_seconds: float = 0
) -> list[TestPayment]:
    """One goes alone, and of the others those share a transaction who come at once, while one of them is under way.

    Who comes by himself goes alone, and where the fault ended the process, or its answer, they may come so again:
    then each has a transaction of its own. None has a second one, whatever happened.
    """
    first = await left_pending(hub, chain, key)
    others = [new_payment(chain) for _ in range(PARTY)]
    hub.prepare(case)

    async def go(payment: TestPayment, number: int) -> bool:
        async with asyncio.timeout(60), aiohttp.ClientSession() as http:
            answer = None
            while answer is None:
                url = await hub.url()
                await asyncio.sleep(number * apart_seconds)
                answer = await present(http, url, payment, key=f"{key}.{number}")
                await asyncio.sleep(0.05)
        return bool(answer["success"])

    going = [asyncio.create_task(go(payment, number)) for number, payment in enumerate(others)]
    if case.boundary == "move_all":
        resume(chain)
    await until_come(hub, case)
    resume(chain)
    assert all(await asyncio.gather(*going)), case
    assert (await pay(await hub.url(), first, key=key))["success"] is True, case
    assert rows(directory, SLOTS_OF_EACH) == [(1,)], case
    return [first, *others]


async def try_alone(hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """Their common transaction lost its nonce to another one, while nobody was there."""
    first = await left_pending(hub, chain, key)
    others = [new_payment(chain) for _ in range(PARTY)]
    async with aiohttp.ClientSession() as http:
        url = await hub.url()
        asking = (
            present(http, url, payment, key=f"{key}.{number}", wait_seconds=0) for number, payment in enumerate(others)
        )
        assert await asyncio.gather(*asking) == [None] * PARTY
    await hub.ended()
    ((batch, nonce),) = rows(directory, OPEN_BATCH)
    chain.rpc.call("anvil_dropTransaction", batch)
    relayer = chain.wallets.relayer
    chain.send(relayer, relayer.address, b"", nonce=nonce, gas=21_000)
    hub.prepare(case)
    resume(chain)
    await until_come(hub, case)
    for number, payment in enumerate(others):
        assert (await pay(await hub.url(), payment, key=f"{key}.{number}"))["success"] is True, case
    assert (await pay(await hub.url(), first, key=key))["success"] is True, case
    return [first, *others]


async def reopen_it(hub: Victim, _directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """Its success was told, and then its block was taken back."""
    payment = new_payment(chain)
    await hub.url()
    checkpoint = chain.rpc.call("evm_snapshot")
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    chain.rpc.call("evm_setAutomine", False)
    chain.rpc.call("evm_revert", checkpoint)
    assert not chain.is_used(payment.authorization.payer, payment.authorization.nonce)
    hub.prepare(case)
    chain.rpc.call("anvil_mine", "0x2")
    await until_come(hub, case)
    resume(chain)
    async with asyncio.timeout(60):
        while not chain.is_used(payment.authorization.payer, payment.authorization.nonce):
            await hub.url()
            await asyncio.sleep(0.05)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


async def set_it_aside(hub: Victim, directory: Path, chain: ChainUnderTest, case: Case, key: str) -> list[TestPayment]:
    """Its row breaks an invariant, and is mended later."""
    payment = await left_pending(hub, chain, key)
    nonce = payment.authorization.nonce
    hub.prepare(case)
    rows(directory, "UPDATE settlements SET transaction_hash = 'x' || transaction_hash WHERE nonce = ?", nonce)
    await until_come(hub, case)
    async with asyncio.timeout(60):
        while not rows(directory, "SELECT 1 FROM settlements WHERE nonce = ? AND failures > 0", nonce):
            await hub.url()
            await asyncio.sleep(0.05)
    resume(chain)
    rows(directory, "UPDATE settlements SET transaction_hash = substr(transaction_hash, 2) WHERE nonce = ?", nonce)
    rows(directory, "UPDATE settlements SET retry_ms = 0 WHERE nonce = ?", nonce)
    assert (await pay(await hub.url(), payment, key=key))["success"] is True, case
    return [payment]


# Whoever comes with the others waits until all are there, which on a busy machine they are not within 40 ms.
IN_COMPANY: Final = {"batch_queue_depth": 1, "batch_items_max": PARTY}
# What is done, through which boundaries, and how many nonces each case takes at least and at most.
RECOVERIES: Final[dict[str, tuple[Act, tuple[str, ...], range, dict[str, Any]]]] = {
    "replace": (replace_it, REPLACING, range(1, 2), {"stuck_seconds": 0.2}),
    "fill": (fill_it, FILLING, range(2, 3), {}),
    "take over": (take_it_over, TAKING_OVER, range(1, 2), {}),
    "adopt": (adopt_it, ADOPTING, range(1, 2), {}),
    "find": (find_it, FINDING, range(1, 2), {}),
    "alone": (try_alone, TRYING_ALONE, range(PARTY + 2, PARTY + 3), {**IN_COMPANY, "company_seconds": 5.0}),
    "reopen": (reopen_it, REOPENING, range(1, 2), {}),
    "set aside": (set_it_aside, SETTING_ASIDE, range(1, 2), {}),
    # At most one for each payment: the fault may part those who came together (decision 0015).
    "together": (settle_together, TOGETHER, range(2, PARTY + 2), {**IN_COMPANY, "company_seconds": 0.5}),
}


async def recover_through(directory: Path, chain: ChainUnderTest, name: str, kind: Kind, *moments: Moment) -> Victim:
    """Each case of it; every payment is settled once, and every nonce used."""
    act, boundaries, nonces, options = RECOVERIES[name]
    if "batch_queue_depth" in options:
        plant(chain, Via.BATCHER)
    before = chain.balance(chain.wallets.owner.address)
    nonce = chain.nonce(chain.wallets.relayer)
    chosen = [case for case in cases(boundaries, kind) if case.moment in moments]
    payments: list[TestPayment] = []
    async with faulty_hub(directory, chain.url, **options) as hub:
        for number, case in enumerate(chosen):
            payments += await act(hub, directory, chain, case, f"key.{number}")
        await assert_settled_once(await hub.url(), directory, chain, payments, before)
        used = chain.nonce(chain.wallets.relayer) - nonce
        assert nonces[0] * len(chosen) <= used <= nonces[-1] * len(chosen)
        (next_nonce,) = {row[0] for row in rows(directory, "SELECT next_nonce FROM signer_lanes")}
        assert next_nonce == chain.nonce(chain.wallets.relayer)
        # Of so many cases some at least went in company.
        assert "batch_queue_depth" not in options or rows(directory, SHARED)
    return hub


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RECOVERIES)
async def test_an_error_where_a_hub_recovers_loses_nothing_and_nothing_else_is_waited_for(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str
) -> None:
    hub = await recover_through(tmp_path, embedded_chain, name, Kind.ERROR, Moment.AFTER)
    known = {boundary for boundaries in BOUNDARIES.values() for boundary in boundaries}
    known |= {boundary for _, boundaries, _, _ in RECOVERIES.values() for boundary in boundaries}
    assert hub.seen <= {*known, *STARTING, ASKING}
    assert set(RECOVERIES[name][1]) <= hub.seen


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", RECOVERIES)
@pytest.mark.parametrize("kind", Kind)
async def test_every_kind_of_fault_where_a_hub_recovers_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str, kind: Kind
) -> None:
    await recover_through(tmp_path, embedded_chain, name, kind, *Moment)


async def test_those_who_come_apart_after_a_crash_have_one_transaction_each(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    """As on a machine that is busy: none finds company, and what one had before is not signed again."""
    chain = embedded_chain
    plant(chain, Via.BATCHER)
    before, nonce = chain.balance(chain.wallets.owner.address), chain.nonce(chain.wallets.relayer)
    case = Case("claim_and_sign", Moment.AFTER, Kind.CRASH)
    async with faulty_hub(tmp_path, chain.url, batch_queue_depth=1) as hub:
        payments = await settle_together(hub, tmp_path, chain, case, "key", apart_seconds=1)
        await assert_settled_once(await hub.url(), tmp_path, chain, payments, before)
        assert rows(tmp_path, SHARED) == []
        assert chain.nonce(chain.wallets.relayer) - nonce == PARTY + 1 in RECOVERIES["together"][2]
