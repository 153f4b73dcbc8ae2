"""Every boundary where hub or worker of `--workers 2` waits for the ledger's process, by what is asked of it.

Before and after each, the process is killed, or whoever asks it, or the connection breaks, or a word comes too late, or
it says that its disk would not. What is done there is what `test_gateway_boundaries` does, and what `worker_acts` adds.
Whatever happens there: one signature buys once, nobody is served who did not pay, a credit is taken once, and given
back once (F1 to F3, F10, F11, F13, F24). Kills at any moment, under load, are `tests/storage/test_ledger_process.py`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.counts import came
from tests.faults.gateway_site import GatewaySite, abroad, at_home, until_told
from tests.faults.ledger_chaos import Harm, LedgerCase, ledger_cases
from tests.faults.striking import Case
from tests.faults.test_gateway_boundaries import (
    Act,
    follow,
    give_back,
    give_up,
    honour,
    lose_trust,
    restore,
    restore_held,
    sell,
    start,
    trust,
)
from tests.faults.test_gateway_boundaries_abroad import honour as honour_parked
from tests.faults.test_gateway_boundaries_abroad import park
from tests.faults.worker_acts import count, log_in, upload
from tests.faults.workers_site import several
from tests.hub.faulty_database import Kind, Moment


async def spend(site: GatewaySite, case: Case) -> None:
    """The payment is shown again, and spends what it bought."""
    signed = await site.sign()
    await site.until(signed)
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await site.until(signed)
    await site.bought_once(signed, case, deaths, calls=2)


async def spend_by_token(site: GatewaySite, case: Case) -> None:
    """Its credit token spends it."""
    signed = await site.sign(creditBinding="token")
    token = (await site.until(signed)).headers["x-credit-token"]
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await until_told(partial(site.ask, "GET", signed.gate["accessUrl"], headers={"X-Credit-Token": token}), 200)
    await site.bought_once(signed, case, deaths, calls=2)


async def spend_of_wallet(site: GatewaySite, case: Case) -> None:
    """The payer's bearer spends it."""
    signed = await site.sign(creditBinding="wallet")
    bearer = {"Authorization": f"Bearer {await site.buyer.login(site.url)}"}
    ask = partial(site.ask, "GET", signed.gate["accessUrl"])
    await until_told(partial(ask, headers={"X-Payment": signed.header, **bearer}), 200)
    deaths = site.gateway.deaths
    site.gateway.prepare(case)
    await until_told(partial(ask, headers=bearer), 200)
    await site.bought_once(signed, case, deaths, calls=2)


# What the parent asks once a process has died, and nobody else.
OF_PARENT: Final = ("interrupt_calls", "End of move_open_calls", "End of cut_uploads_of_the_dead")
Place: TypeAlias = Callable[[Path, ChainUnderTest], AbstractAsyncContextManager[GatewaySite]]
# With the hub's process among them; before a hub apart; before a stranger's facilitator.
TOGETHER: Final[Place] = several
APART: Final[Place] = partial(at_home, selling=several)
ABROAD: Final[Place] = partial(abroad, selling=several)
# What is done, where, and what hub, worker or parent ask of the ledger's process meanwhile, in that order.
ACTS: Final[dict[str, tuple[Place, Act, tuple[str, ...]]]] = {
    "sell": (
        TOGETHER,
        sell,
        (
            "Spends",
            "ClaimPurchase",
            "find_key",
            "find_settlement",
            "PrepareClaims",
            "RecordSigned",
            "End of RecordSigned",
            "MoveAll",
            "End of MoveAll",
            "GrantPurchase",
            "end_calls",
            "End of end_calls",
        ),
    ),
    "spend": (TOGETHER, spend, ("Spends",)),
    "spend by token": (TOGETHER, spend_by_token, ("SpendOne",)),
    "spend of wallet": (TOGETHER, spend_of_wallet, ("oldest_of_payer", "SpendOne")),
    "restore": (TOGETHER, restore, ("restore_call", "give_credit_back", "give_credits", "End of give_credits")),
    "restore held": (
        TOGETHER,
        restore_held,
        ("spent_in_journal", "restore_in_journal", "End of give_credit_back"),
    ),
    "follow": (TOGETHER, follow, ("followed_purchases", "follow_purchase", "End of follow_purchase")),
    "start": (
        TOGETHER,
        start,
        (
            "End of nothing",
            "retired_keys",
            "End of newest_of_journal",
            "End of join_process",
            "End of open_lane",
            "End of read_lease",
        ),
    ),
    "mark": (TOGETHER, start, OF_PARENT),
    "log in": (
        TOGETHER,
        log_in,
        (
            "use_nonce",
            "End of add_refresh_token",
            "use_refresh_token",
            "End of read_session",
            "read_user",
            "end_session",
            "End of end_session",
        ),
    ),
    "upload": (
        TOGETHER,
        upload,
        ("begin_upload", "End of begin_upload", "sell_upload", "End of insert_creation", "cut_upload"),
    ),
    "count": (TOGETHER, count, ("count_traffic", "insert_requests", "End of insert_requests")),
    "give back": (APART, give_back, ("restore_call", "end_calls", "End of spent_in_journal")),
    "fail": (APART, give_up, ("fail_purchase", "End of fail_purchase")),
    "confirm": (APART, trust, ("confirm_purchase", "End of confirm_purchase")),
    "void": (APART, lose_trust, ("void_unpaid", "close_credits", "End of add_revenue")),
    "honour": (APART, honour, ("honour_failed", "open_credits", "End of purchase_by_payment")),
    "park": (ABROAD, park, ("park_purchase", "End of park_purchase")),
    "honour what is parked": (ABROAD, honour_parked, ("honour_parked", "End of purchase_by_payment")),
}
# A few for every run: where money was taken, and nobody knows; and what is asked besides sales.
SOME: Final = (
    LedgerCase("ClaimPurchase", Moment.AFTER, Kind.ERROR, harm=Harm.LEDGER_KILLED),
    LedgerCase("GrantPurchase", Moment.AFTER, Kind.CRASH, harm=Harm.ASKER_KILLED),
)
BESIDES: Final = {
    "log in": "End of add_refresh_token",
    "upload": "End of begin_upload",
    "count": "End of insert_requests",
}
OF_A_GATEWAY: Final = ("give back", "fail", "honour")


def chosen(name: str, *harms: Harm) -> list[LedgerCase]:
    """Each of them, at each boundary of the act; the parent, which the test is, is not killed."""
    _, _, boundaries = ACTS[name]
    return [
        case
        for case in ledger_cases(boundaries, *harms)
        if case.harm is not Harm.ASKER_KILLED or case.boundary not in OF_PARENT
    ]


async def strike(site: GatewaySite, name: str, cases: Iterable[LedgerCase]) -> None:
    """The act, once for each."""
    _, act, _ = ACTS[name]
    for case in cases:
        try:
            await act(site, case)
        except BaseException as error:
            error.add_note(f"{name}: {case}")
            raise
        came(f"{case.harm.value}, at a named question")


@pytest.mark.timeout(300)
async def test_what_comes_at_a_named_question_to_the_ledger_sells_and_spends_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with several(tmp_path, embedded_chain) as site:
        await strike(site, "sell", SOME)
        for name in ("sell", "spend", "spend by token", "spend of wallet", "restore", "follow"):
            await strike(site, name, ledger_cases(ACTS[name][2][-1:], Harm.LOST))
        for name, boundary in BESIDES.items():
            await strike(site, name, [LedgerCase(boundary, Moment.AFTER, Kind.ERROR, harm=Harm.LOST)])
        await site.nothing_lost()


@pytest.mark.timeout(300)
async def test_what_comes_at_a_named_question_of_one_of_several_gateways_is_decided_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    async with APART(tmp_path, embedded_chain) as site:
        for name in OF_A_GATEWAY:
            last = ACTS[name][2][-1]
            await strike(site, name, [LedgerCase(last, Moment.AFTER, Kind.ERROR, harm=Harm.LOST)])
        await site.nothing_lost()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ACTS)
async def test_whatever_comes_at_every_named_question_to_the_ledger_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str
) -> None:
    place, _, boundaries = ACTS[name]
    async with place(tmp_path, embedded_chain) as site:
        await strike(site, name, chosen(name, *Harm))
        await site.nothing_lost()
        assert site.gateway.seen >= {*boundaries}
