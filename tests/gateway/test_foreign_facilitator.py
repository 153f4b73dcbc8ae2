"""A facilitator that cannot confirm: the gateway's own look at the chain decides (contract 4.3, 4.4; F19).

Whatever it says: nothing is served unpaid, nothing is charged twice, and no client has to sign twice. The same stories
on both families; those of one alone are in `test_foreign_on_evm` and `test_foreign_on_solana`.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.engines import beside
from tests.gateway import foreign_facilitator as ways
from tests.gateway import foreign_on_evm
from tests.gateway.abroad import DEAD_NODE, SalesAbroad, Site
from tests.gateway.foreign_facilitator import Settling
from tests.gateway.foreign_on_evm import site_on_evm
from tests.gateway.foreign_on_solana import site_on_solana
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.networks import Family
from tollkeeper.sandbox.buyer import Answer
from tollkeeper.sandbox.solana.node import SolanaNode
from tollkeeper.serving.books.reconciliation import compare_with_chain
from tollkeeper.settings.model import DepthSettings

BOTH = tuple(Family)


@pytest.fixture(params=BOTH)
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> AsyncIterator[Site]:
    if request.param is Family.EVM:
        async with site_on_evm(tmp_path, embedded_chain, target) as on_evm:
            yield on_evm
    else:
        async with SolanaNode() as node, site_on_solana(tmp_path, node, target) as on_solana:
            yield on_solana


@pytest.fixture
async def abroad(site: Site) -> AsyncIterator[SalesAbroad]:
    async with site.gateway() as running:
        yield running


async def test_an_honest_facilitators_payment_counts_once_it_is_on_the_chain(abroad: SalesAbroad) -> None:
    gate = await abroad.gate(credits=2)
    payment = await abroad.payment(gate)
    answers = [await abroad.pay(gate, payment) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert answers[2].error_code == "CREDITS_EXHAUSTED"
    assert abroad.site.received_micro() == 10_000
    (settled,) = abroad.site.foreign.settles
    assert "confirm" not in settled
    receipt = answers[0].receipt
    assert receipt is not None
    assert receipt["transaction"] == abroad.site.last_transaction()


async def test_a_gateway_compares_its_sales_with_the_chain_whoever_sent_them(abroad: SalesAbroad) -> None:
    site, gate = abroad.site, await abroad.gate()
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    site.finalise()
    assert await compare_with_chain(site.settings()) == []
    with beside(abroad.database) as connection:
        connection.execute("UPDATE purchases SET transaction_hash = :name", {"name": site.foreign.NOBODYS})
    assert {found.rule for found in await compare_with_chain(site.settings())} == {
        "paid_but_not_on_the_chain",
        "paid_in_another_transaction",
    }


def decoded(payment: str) -> dict[str, Any]:
    """What an `X-Payment` value says."""
    said: dict[str, Any] = json.loads(base64.b64decode(payment))
    return said


def told_by(families: tuple[Family, ...], *settling: Settling) -> list[object]:
    """A test case of each way of each of these families."""
    return [pytest.param(family, way, id=f"{family}-{way.__name__}") for family in families for way in settling]


SENDS = [
    *told_by(BOTH, ways.answers_late, ways.settles_late, ways.success_as_a_string),
    *told_by((Family.EVM,), ways.another_shape, ways.error_after_sending, ways.failure_after_sending, ways.never),
    *told_by((Family.EVM,), *(ways.status_after_sending(status) for status in (400, 401, 403, 404, 413, 422))),
    *told_by((Family.EVM,), foreign_on_evm.sends_twice),
]


@pytest.mark.parametrize(("site", "settling"), SENDS, indirect=["site"])
async def test_a_payment_that_was_carried_out_is_served_whatever_the_facilitator_says(
    abroad: SalesAbroad, settling: Settling
) -> None:
    gate = await abroad.gate()
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    abroad.site.foreign.settling = settling
    assert (await abroad.present(gate, payment)).status == 200
    again = await abroad.pay(gate, payment)
    assert (again.status, again.error_code) == (402, "CREDITS_EXHAUSTED")
    assert abroad.site.received_micro() == 20_000
    assert abroad.served == 2
    assert len(abroad.site.foreign.settles) == 2


@pytest.mark.parametrize("site", BOTH, indirect=True)
async def test_a_failure_that_may_follow_a_sending_tells_nobody_to_pay_again_where_no_node_is_set(site: Site) -> None:
    site.foreign.settling = ways.failure_after_sending
    async with site.gateway(networks=site.networks()) as abroad:
        gate = await abroad.gate(assumeValid=True)
        payment = await abroad.payment(gate)
        answer = await abroad.pay(gate, payment)
        assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
        assert "accepts" not in answer.json()
        assert (abroad.purchase()[0], abroad.served, len(site.foreign.settles)) == ("CLAIMED", 0, 1)
        site.foreign.settling = ways.refuses
        refused = await abroad.pay(gate, await abroad.payment(gate))
        assert (refused.status, refused.error_code) == (402, "INSUFFICIENT_FUNDS")


def named_in(answer: Answer) -> str | None:
    """The transaction that a refusal names."""
    named: str | None = answer.json()["error"]["details"].get("transaction")
    return named


def expected_name(site: Site) -> str | None:
    """On Solana a node says that a payment was carried out, and not in which transaction."""
    return site.last_transaction() if isinstance(site, foreign_on_evm.SiteOnEvm) else None


SETTLES_AGAIN = told_by(BOTH, ways.honest, ways.failure_after_sending)


@pytest.mark.parametrize("depth", [1, 3], ids=["at once", "deep"])
@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
@pytest.mark.parametrize(("site", "settling"), SETTLES_AGAIN, indirect=["site"])
async def test_a_payment_that_the_facilitator_made_for_another_server_buys_nothing_here(
    site: Site, settling: Settling, trust: dict[str, bool], depth: int
) -> None:
    """Such a facilitator may call it valid all the same: not every one asks the chain whether it was used."""
    site.foreign.settling = settling
    async with site.gateway(depths=DepthSettings(depth)) as abroad:
        gate = await abroad.gate(**trust)
        payment = await abroad.payment(gate)
        await site.foreign.send(site.foreign.read(decoded(payment)["payload"]))
        answer = await abroad.present(gate, payment)
        assert (answer.status, answer.error_code) == (402, "NONCE_ALREADY_USED")
        assert named_in(answer) == expected_name(site)
        assert abroad.served == 0
        assert site.received_micro() == 10_000


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
@pytest.mark.parametrize(("site", "settling"), SETTLES_AGAIN, indirect=["site"])
async def test_a_payment_that_failed_here_and_was_made_for_another_server_since_buys_nothing_here(
    site: Site, settling: Settling, trust: dict[str, bool]
) -> None:
    """As where its wallet was empty when it was to be made for this one."""
    async with site.gateway() as abroad:
        gate = await abroad.gate(**trust)
        payment = await abroad.payment(gate)
        site.foreign.settling = ways.refuses
        assert (await abroad.pay(gate, payment)).error_code == "INSUFFICIENT_FUNDS"
        await site.foreign.send(site.foreign.read(decoded(payment)["payload"]))
        site.foreign.settling = settling
        for _ in range(2):
            answer = await abroad.present(gate, payment)
            assert (answer.status, answer.error_code) == (402, "NONCE_ALREADY_USED")
            assert named_in(answer) == expected_name(site)
        assert abroad.purchase()[0] == "FAILED"
        assert (abroad.served, len(site.foreign.settles)) == (0, 1)
        assert site.received_micro() == 10_000
        order = {"gate": gate["slug"], "transaction": site.last_transaction(), "nonce": None}
        site.finalise()
        assert "creditToken" in (await honour_payment(site.settings(), order))["done"]


SENDS_NOTHING = (ways.says_success_and_sends_nothing, ways.string_and_sends_nothing, ways.wrong_request)


@pytest.mark.parametrize(("site", "settling"), told_by((Family.EVM,), *SENDS_NOTHING), indirect=["site"])
async def test_nothing_is_served_for_a_payment_that_nobody_carried_out_and_it_fails_once_it_cannot_be(
    abroad: SalesAbroad, settling: Settling
) -> None:
    site, gate = abroad.site, await abroad.gate()
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    payment = await abroad.payment(gate)
    site.foreign.settling = settling
    asking = asyncio.create_task(abroad.pay(gate, payment))
    await abroad.until_asked(2)
    site.age()
    await asyncio.sleep(1)
    assert abroad.purchase()[0] == "CLAIMED"
    site.expire()
    answer = await asking
    if answer.status == 503:
        answer = await abroad.present(gate, payment)
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED")
    assert abroad.purchase()[:2] == ("FAILED", site.EXPIRED)
    assert abroad.served == 1
    assert site.received_micro() == 10_000


async def test_a_success_that_is_not_on_the_chain_yet_is_pending_and_then_served(abroad: SalesAbroad) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    abroad.site.foreign.settling = ways.hands_over
    async with abroad.site.held():
        asking = asyncio.create_task(abroad.pay(gate, payment))
        await abroad.until_asked()
        assert not asking.done()
        assert abroad.served == 0
    assert (await asking).status == 200


@pytest.mark.parametrize(("site", "refusing"), told_by(BOTH, ways.refuses, ways.refuses_with_400), indirect=["site"])
async def test_a_clear_refusal_is_a_402_and_the_same_payment_may_be_presented_again(
    abroad: SalesAbroad, refusing: Settling
) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    abroad.site.foreign.settling = refusing
    refused = await abroad.pay(gate, payment)
    assert (refused.status, refused.error_code) == (402, "INSUFFICIENT_FUNDS")
    abroad.site.foreign.settling = ways.honest
    assert (await abroad.pay(gate, payment)).status == 200
    assert abroad.site.received_micro() == 10_000


async def test_a_second_answer_is_not_taken_for_the_next_payments(abroad: SalesAbroad) -> None:
    gate = await abroad.gate(assumeValid=True)
    abroad.site.foreign.settling = ways.answers_twice
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    await asyncio.sleep(0.2)
    abroad.site.foreign.settling = ways.refuses
    answer = await abroad.present(gate, await abroad.payment(gate))
    assert (answer.status, answer.error_code) == (402, "INSUFFICIENT_FUNDS")
    assert abroad.served == 1
    assert abroad.site.received_micro() == 10_000


@pytest.mark.parametrize("site", [Family.EVM], indirect=True)
async def test_trusted_credits_are_void_once_the_payment_can_never_be_made(abroad: SalesAbroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    payment = await abroad.payment(gate)
    abroad.site.foreign.settling = ways.says_success_and_sends_nothing
    assert (await abroad.pay(gate, payment)).status == 200
    assert abroad.purchase() == ("LIVE", None, 0, 2)
    trusted = (await abroad.read(gate))["trusted"]
    assert trusted == {"open": 1, "openAmount": "0.01", "failed": 0, "failedAmount": "0"}
    await asyncio.sleep(3)  # recovery looks, every two seconds
    abroad.site.expire()
    assert (await abroad.until("VOID"))[1] == "settlement_failed"
    refused = await abroad.pay(gate, payment)
    assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
    read = await abroad.read(gate)
    assert read["counters"]["revenue"] == "0"
    assert read["trusted"] == {"open": 0, "openAmount": "0", "failed": 1, "failedAmount": "0.01"}
    assert abroad.served == 1


async def test_trusted_credits_are_confirmed_once_the_payment_is_on_the_chain(abroad: SalesAbroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
    assert await abroad.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 2)
    assert "trusted" not in await abroad.read(gate)


@pytest.mark.parametrize("site", [Family.EVM], indirect=True)
async def test_a_claim_outlives_a_start_of_the_gateway(site: Site) -> None:
    async with site.gateway() as before:
        gate = await before.gate()
        payment = await before.payment(gate)
        assert (await before.pay(gate, payment)).status == 200
    with beside(site.database) as connection:  # as if the process had ended before it heard the answer
        for undo in (
            "DELETE FROM single_calls",
            "DELETE FROM call_journal",
            "DELETE FROM credits_given",
            "DELETE FROM credits",
            "UPDATE paygate_counters SET purchases = 0, revenue_micro = 0",
            "UPDATE purchases SET state = 'CLAIMED', request = x'00'",
            "UPDATE purchases SET transaction_hash = NULL, granted_ms = NULL",
        ):
            connection.execute(undo)
    async with site.gateway() as after:
        assert (await after.until("LIVE"))[3] == 1
        assert (await after.pay(gate, payment)).status == 200
    assert len(site.foreign.settles) == 1


async def test_a_node_that_does_not_answer_charges_nothing(site: Site) -> None:
    async with site.gateway(networks=site.networks(DEAD_NODE)) as here:
        gate = await here.gate()
        answer = await here.pay(gate, await here.payment(gate))
        assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
        assert site.foreign.settles == []


async def test_without_a_node_only_gates_that_trust_it_are_served(site: Site) -> None:
    async with site.gateway(networks=site.networks()) as here:
        refused = (await here.create()).json()
        assert refused["error"]["details"]["field"] == "assumeValid"
        assert "node" in refused["error"]["message"]
        gate = await here.gate(assumeValid=True)
        assert (await here.pay(gate, await here.payment(gate))).status == 200
