"""Every boundary where hub or worker of `serve --workers 2` waits for the ledger's process, by what is asked of it.

Before and after each, the process is killed, or whoever asks it, or the connection breaks, or a word comes too late.
Whatever happens there: one signature buys once, nobody is served who did not pay, a credit is taken once, and given
back once (F1 to F3, F10, F11, F13, F24). Kills at any moment, under load, are `tests/storage/test_ledger_process.py`'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.faults.counts import came
from tests.faults.gateway_site import GatewaySite, until_told
from tests.faults.ledger_chaos import Harm, LedgerCase, ledger_cases
from tests.faults.striking import Case
from tests.faults.test_gateway_boundaries import Act, follow, restore, sell
from tests.faults.workers_site import workers_site
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


# What is done, and what hub or worker ask of the ledger's process meanwhile, in that order.
ACTS: Final[dict[str, tuple[Act, tuple[str, ...]]]] = {
    "sell": (
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
    "spend": (spend, ("Spends",)),
    "spend by token": (spend_by_token, ("SpendOne",)),
    "spend of wallet": (spend_of_wallet, ("SpendOfPayer",)),
    "restore": (restore, ("restore_call", "give_credit_back", "give_credits", "End of give_credits")),
    "follow": (follow, ("followed_purchases", "follow_purchase", "End of follow_purchase")),
}
ALL: Final = {boundary for _, boundaries in ACTS.values() for boundary in boundaries}
# A few for every run: where money was taken, and nobody knows.
SOME: Final = (
    LedgerCase("ClaimPurchase", Moment.AFTER, Kind.ERROR, harm=Harm.LEDGER_KILLED),
    LedgerCase("GrantPurchase", Moment.AFTER, Kind.CRASH, harm=Harm.ASKER_KILLED),
)


async def strike(site: GatewaySite, name: str, chosen: Iterable[LedgerCase]) -> None:
    """The act, once for each."""
    act, _ = ACTS[name]
    for case in chosen:
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
    async with workers_site(tmp_path, embedded_chain) as site:
        await strike(site, "sell", SOME)
        for name, (_, boundaries) in ACTS.items():
            await strike(site, name, ledger_cases(boundaries[-1:], Harm.LOST))
        await site.nothing_lost()
        assert site.gateway.seen >= ALL


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("harm", Harm)
async def test_whatever_comes_at_every_named_question_to_the_ledger_ends_as_it_should(
    tmp_path: Path, embedded_chain: ChainUnderTest, name: str, harm: Harm
) -> None:
    async with workers_site(tmp_path, embedded_chain) as site:
        await strike(site, name, ledger_cases(ACTS[name][1], harm))
        await site.nothing_lost()
