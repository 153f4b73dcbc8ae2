"""A facilitator that is not ours is asked in the newest version of x402 that it names (contract 10.2)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway import foreign_facilitator as ways
from tests.gateway.abroad import Site
from tests.gateway.foreign_on_evm import site_on_evm
from tests.gateway.foreign_on_solana import site_on_solana
from tests.gateway.recording_target import RecordingTarget
from tests.gateway.test_foreign_facilitator import decoded
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.sandbox.solana.node import SolanaNode

PRICE_MICRO = 10_000


@pytest.fixture(params=tuple(Family))
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> AsyncIterator[Site]:
    if request.param is Family.EVM:
        async with site_on_evm(tmp_path, embedded_chain, target) as on_evm:
            yield on_evm
    else:
        async with SolanaNode() as node, site_on_solana(tmp_path, node, target) as on_solana:
            yield on_solana


def is_of_version_2(asked: dict[str, Any], site: Site, payment: str) -> bool:
    """Does the request hold that payment, and the offer that it took, as version 2 writes them?"""
    paid, required = asked["paymentPayload"], asked["paymentRequirements"]
    network = NETWORKS[site.foreign.NETWORK].caip2
    assert (required["network"], required["amount"], required["scheme"]) == (network, str(PRICE_MICRO), "exact")
    assert (required["payTo"].lower(), paid["accepted"]) == (site.pay_to.lower(), required)
    assert required["extra"]["paymentFlow"] == "upfront"
    assert json.dumps(paid["payload"]).lower() == json.dumps(decoded(payment)["payload"]).lower()
    return bool((asked["x402Version"], paid["x402Version"]) == (2, 2))


@pytest.mark.parametrize("versions", [(2,), (1, 2), (2, 1)])
async def test_a_facilitator_that_speaks_version_2_settles_a_payment_that_was_shown_in_version_1(
    site: Site, versions: tuple[int, ...]
) -> None:
    site.foreign.versions = versions
    async with site.gateway() as abroad:
        gate = await abroad.gate(credits=2)
        payment = await abroad.payment(gate)
        answers = [await abroad.pay(gate, payment) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 402]
        receipt = answers[0].receipt
        assert receipt is not None
        assert receipt["transaction"] == site.last_transaction()
    assert site.received_micro() == PRICE_MICRO
    (settled,) = site.foreign.settles
    assert is_of_version_2(settled, site, payment)


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
async def test_one_that_does_not_know_the_outcome_yet_is_asked_once_more_with_the_same(
    site: Site, trust: dict[str, bool]
) -> None:
    site.foreign.versions, site.foreign.settling = (2,), ways.pending_and_then_success
    async with site.gateway() as abroad:
        gate = await abroad.gate(**trust)
        assert (await abroad.pay(gate, await abroad.payment(gate))).status == 200
        assert abroad.served == 1
    first, second = site.foreign.settles
    assert first == second
    assert site.received_micro() == PRICE_MICRO


@pytest.mark.parametrize("site", [Family.EVM], indirect=True)
async def test_one_that_never_knows_it_is_asked_twice_and_then_the_chain(site: Site) -> None:
    site.foreign.versions, site.foreign.settling = (2,), ways.pending_for_ever
    async with site.gateway() as abroad:
        gate = await abroad.gate()
        payment = await abroad.payment(gate)
        assert (await abroad.present(gate, payment)).status == 200
        assert (await abroad.pay(gate, payment)).error_code == "CREDITS_EXHAUSTED"
    assert len(site.foreign.settles) == 2
    assert site.received_micro() == PRICE_MICRO


async def test_what_is_pending_without_a_transaction_tells_nobody_to_pay_again_and_is_asked_once(site: Site) -> None:
    site.foreign.versions, site.foreign.settling = (2,), ways.pending_without_a_transaction
    async with site.gateway() as abroad:
        gate = await abroad.gate()
        answer = await abroad.pay(gate, await abroad.payment(gate))
        assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
        assert abroad.purchase()[0] == "CLAIMED"
    assert len(site.foreign.settles) == 1


async def test_a_facilitator_of_version_2_makes_a_direct_transfer(site: Site) -> None:
    site.foreign.versions = (2,)
    async with site.gateway() as abroad:
        gate = await abroad.gate()
        payment = await abroad.payment(gate)
        said = decoded(payment)
        body = {"network": said["network"], **said["payload"]}
        answer = await abroad.buyer.ask(
            "POST", f"{abroad.url}/api/v1/transfer", body=body, headers={"X-Payment": payment}
        )
        assert (answer.status, answer.json()["success"]) == (200, True)
    (settled,) = site.foreign.settles
    assert is_of_version_2(settled, site, payment)
    assert site.received_micro() == PRICE_MICRO
