"""What only a facilitator on an EVM network can do that cannot confirm (contract 4.3, 4.4; F19)."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from tests.chains.cancelling import cancellation_calldata
from tests.chains.chain_under_test import ChainUnderTest
from tests.chains.forks import take_back
from tests.engines import beside
from tests.gateway import foreign_facilitator as ways
from tests.gateway.composed import composed
from tests.gateway.foreign_facilitator import Settling
from tests.gateway.foreign_on_evm import ForeignOnEvm, SalesOnEvm, SiteOnEvm, run_foreign, site_on_evm
from tests.gateway.ordering import honour_payment
from tests.gateway.recording_target import RecordingTarget
from tests.hub.chaos import run_chaos
from tollkeeper.api import clock_ms
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.evm.encoding import transfer_calldata
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.x402.verification import payment_key
from tollkeeper.core.x402.version1 import EvmPayload, Payment
from tollkeeper.gateway.evidence.evm import EvmEvidence
from tollkeeper.gateway.evidence.port import EvidenceOutcome, ExpectedTransfer
from tollkeeper.gateway.facilitator.client import Senders
from tollkeeper.gateway.purchase import monitor, recovery
from tollkeeper.sandbox.buyer import Buyer
from tollkeeper.sandbox.evm.node import USDC_ADDRESS
from tollkeeper.serving.books.inspection import inspect_books
from tollkeeper.settings.model import DepthSettings, Role
from tollkeeper.storage.books.invariants import parked
from tollkeeper.storage.urls import open_snapshot


@pytest.fixture
async def site(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[SiteOnEvm]:
    async with site_on_evm(tmp_path, embedded_chain, target) as running:
        yield running


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody can tell of a claim is the operator's within seconds."""
    monkeypatch.setattr(recovery, "SETTLE_REQUEST_LIFETIME_SECONDS", 2)
    monkeypatch.setattr(recovery, "_EXPIRY_MARGIN_SECONDS", 1)


@pytest.fixture
async def abroad(site: SiteOnEvm) -> AsyncIterator[SalesOnEvm]:
    async with site.gateway() as running:
        assert isinstance(running, SalesOnEvm)
        yield running


async def test_a_payment_that_its_payer_cancelled_has_failed(abroad: SalesOnEvm) -> None:
    gate = await abroad.gate()
    payment, authorization = await abroad.sign(gate)

    async def cancelled_meanwhile(foreign: ForeignOnEvm, _payload: Any) -> Any:
        data = cancellation_calldata(foreign.chain, foreign.chain.wallets.buyer, authorization.nonce)
        await asyncio.to_thread(foreign.chain.relay, data)
        return ways.success(foreign, foreign.NOBODYS)

    abroad.site.foreign.settling = cancelled_meanwhile
    answer = await abroad.present(gate, payment)
    assert (answer.status, answer.error_code) == (402, "NONCE_ALREADY_USED")
    assert abroad.served == 0


async def test_a_cancellation_that_is_taken_back_sells_nothing_until_its_operator_honours_it(
    tmp_path: Path, anvil_fiat_token: ChainUnderTest, target: RecordingTarget
) -> None:
    """On the other branch the facilitator made the payment, for whomever: no transaction tells for which server."""
    chain = anvil_fiat_token
    chain.rpc.call("anvil_mine", "0x8")
    async with site_on_evm(tmp_path, chain, target) as site, site.gateway() as here:
        assert isinstance(here, SalesOnEvm)
        gate = await here.gate(credits=2)
        payment, authorization = await here.sign(gate)
        made: list[tuple[str, str]] = []

        async def cancelled_meanwhile(foreign: ForeignOnEvm, payload: EvmPayload) -> Any:
            calldata = transfer_calldata(payload.authorization, payload.signature)
            made.append(foreign.chain.transaction(foreign.sender, USDC_ADDRESS, calldata))
            data = cancellation_calldata(foreign.chain, foreign.chain.wallets.buyer, authorization.nonce)
            await asyncio.to_thread(foreign.chain.relay, data)
            return ways.success(foreign, foreign.NOBODYS)

        before, site.foreign.settling = site.received_micro(), cancelled_meanwhile
        assert (await here.present(gate, payment)).error_code == "NONCE_ALREADY_USED"
        ((raw, transaction),) = made
        take_back(chain, 1, raw)
        assert site.received_micro() == before + 10_000
        assert here.purchase()[0] == "FAILED"
        site.foreign.settling = ways.honest
        refused = await here.pay(gate, payment)
        assert (refused.status, refused.error_code) == (402, "NONCE_ALREADY_USED")
        assert refused.json()["error"]["details"]["transaction"] == transaction
        await honour_payment(site.settings(), {"gate": gate["slug"], "transaction": transaction, "nonce": None})
        assert (await here.until("LIVE"))[3] == 2
        assert site.received_micro() == before + 10_000


@pytest.mark.parametrize("trust", [{}, {"assumeValid": True}], ids=["confirmed", "trusted"])
async def test_a_success_that_a_facilitator_tells_every_server_of_one_payment_buys_nothing_after_the_first(
    site: SiteOnEvm, trust: dict[str, bool]
) -> None:
    """It confirms, so its word is enough, but it tells it as often as it is asked."""
    made: list[str] = []

    async def tells_again(foreign: ForeignOnEvm, payload: EvmPayload) -> Any:
        made.append(made[0] if made else await foreign.send(payload))
        return ways.success(foreign, made[0])

    site.foreign.confirms, site.foreign.settling = True, tells_again
    async with site.gateway() as here:
        assert isinstance(here, SalesOnEvm)
        gate = await here.gate(**trust)
        payment, authorization = await here.sign(gate)
        header = json.loads(base64.b64decode(payment))
        await tells_again(site.foreign, site.foreign.read(header["payload"]))  # for another server
        answer = await here.present(gate, payment)
        assert (answer.status, answer.error_code) == (402, "NONCE_ALREADY_USED")
        assert answer.json()["error"]["details"]["transaction"] == made[0]
        assert here.served == 0
        assert site.foreign.chain.is_used(authorization.payer, authorization.nonce)


async def test_a_facilitator_is_asked_for_the_value_that_was_authorized(abroad: SalesOnEvm) -> None:
    """Many want the exact amount; a payment of more than the price is as good."""
    site, gate = abroad.site, await abroad.gate()

    async def exact(foreign: ForeignOnEvm, payload: EvmPayload) -> Any:
        if foreign.settles[-1]["paymentRequirements"]["maxAmountRequired"] != str(payload.authorization.value):
            return ways.failure("invalid_exact_evm_payload_authorization_value")
        return await ways.honest(foreign, payload)

    site.foreign.settling = exact
    challenge = (await abroad.buyer.ask("GET", gate["accessUrl"])).json()
    payment = abroad.buyer.sign(challenge, lambda wanted: replace(wanted, value=15_000))
    assert (await abroad.pay(gate, payment)).status == 200
    assert site.received_micro() == 15_000


async def test_a_failure_that_may_follow_a_sending_is_looked_for_also_where_the_facilitator_confirms(
    site: SiteOnEvm,
) -> None:
    site.foreign.confirms, site.foreign.settling = True, ways.failure_after_sending
    async with site.gateway() as here:
        gate = await here.gate()
        assert (await here.present(gate, await here.payment(gate))).status == 200
        assert (here.served, len(site.foreign.settles), site.received_micro()) == (1, 1, 10_000)


@pytest.mark.usefixtures("impatient")
async def test_a_payment_that_a_stranger_carried_out_is_parked_and_serves_nothing(
    site: SiteOnEvm, abroad: SalesOnEvm
) -> None:
    gate = await abroad.gate()
    payment = await abroad.payment(gate)
    site.foreign.sender = site.foreign.chain.wallets.faucet
    answer = await abroad.pay(gate, payment)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert (await abroad.until("PARKED"))[1] == "not_of_the_facilitators_signers"
    again = await abroad.pay(gate, payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")
    assert abroad.served == 0
    assert len(site.foreign.settles) == 1
    (told,) = inspect_books(site.settings())
    assert (told.rule, "not_of_the_facilitators_signers" in told.found) == ("a_claim_has_an_outcome", True)
    with open_snapshot(str(site.database)) as snapshot:
        assert parked(snapshot, clock_ms() + 7 * 86_400_000) == [], "for a week"
    order = {"gate": gate["slug"], "transaction": site.last_transaction(), "nonce": None}
    assert "done" in await honour_payment(site.settings(), order)
    assert inspect_books(site.settings()) == []


@pytest.mark.parametrize(("price", "blocks"), [("0.01", 3), ("0.02", 5)], ids=["any amount", "a larger one"])
@pytest.mark.parametrize("assume_valid", [False, True], ids=["confirmed", "trusted"])
async def test_a_payment_counts_at_the_depth_that_its_amount_needs_and_not_before(
    site: SiteOnEvm, price: str, blocks: int, *, assume_valid: bool
) -> None:
    mine = partial(site.foreign.chain.rpc.call, "evm_mine")
    async with site.gateway(depths=DepthSettings(3, ((20_000, 5),))) as here:
        gate = await here.gate(price=price, assumeValid=assume_valid, credits=2)
        asking = asyncio.create_task(here.pay(gate, await here.payment(gate)))
        await here.until_asked()
        for _ in range(blocks - 2):
            mine()
        await asyncio.sleep(3)  # recovery looks, every two seconds
        assert here.purchase()[2] == 0
        assert here.served == int(assume_valid)
        mine()
        assert (await asking).status == 200
        assert await here.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 1)


async def test_a_payment_that_nobody_made_has_failed_once_a_block_of_its_depth_is_past_its_end(site: SiteOnEvm) -> None:
    site.foreign.settling = ways.says_success_and_sends_nothing
    async with site.gateway(depths=DepthSettings(3)) as here:
        gate = await here.gate()
        asking = asyncio.create_task(here.pay(gate, await here.payment(gate)))
        await here.until_asked()
        site.expire()
        site.foreign.chain.rpc.call("evm_mine")
        await asyncio.sleep(3)  # recovery looks, every two seconds
        assert here.purchase()[0] == "CLAIMED"
        site.foreign.chain.rpc.call("evm_mine")
        assert (await asking).error_code == "PAYMENT_EXPIRED"
        assert here.purchase()[:2] == ("FAILED", site.EXPIRED)


@pytest.mark.parametrize(
    ("settling", "status", "state"),
    [
        (ways.honest, 200, "LIVE"),
        (ways.answers_late, 200, "LIVE"),
        (ways.error_after_sending, 503, "PARKED"),
    ],
    ids=["vouches", "vouches late", "does not vouch"],
)
@pytest.mark.usefixtures("impatient")
async def test_without_advertised_signers_the_facilitators_word_stands_in_for_them(
    site: SiteOnEvm, settling: Settling, status: int, state: str
) -> None:
    site.foreign.signers, site.foreign.settling = [], settling
    async with site.gateway() as here:
        gate = await here.gate()
        assert (await here.pay(gate, await here.payment(gate))).status == status
        await here.until(state)
        assert here.served == (status == 200)


def without_old_logs(call: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
    """A node that says what was used, and not by whom."""
    return answer | {"result": []} if call["method"] == "eth_getLogs" else answer


def an_hour_later(site: SiteOnEvm) -> None:
    """By the chain, and by what the books say of the claim."""
    with beside(site.database) as books:
        books.execute("UPDATE purchases SET attempt_ms = attempt_ms - 3600000")
    site.expire()


async def without_end(abroad: SalesOnEvm, gate: dict[str, Any]) -> str:
    """A payment whose authorization ends in a day."""
    challenge = (await abroad.buyer.ask("GET", gate["accessUrl"])).json()
    return abroad.buyer.sign(challenge, lambda wanted: replace(wanted, valid_before=wanted.valid_before + 86_400))


async def test_a_claim_whose_use_no_node_shows_is_parked_after_an_hour_however_long_its_payment_is_good(
    site: SiteOnEvm,
) -> None:
    async with run_chaos(site.rpc_url) as node:
        async with site.gateway(networks=site.networks(node.url)) as before:
            assert isinstance(before, SalesOnEvm)
            gate = await before.gate()
            payment = await without_end(before, gate)
            site.foreign.settling, node.falsify = ways.error_after_sending, without_old_logs
            assert (await before.pay(gate, payment)).error_code == "SETTLEMENT_PENDING"
            assert before.purchase()[0] == "CLAIMED"
        an_hour_later(site)
        async with site.gateway(networks=site.networks(node.url)) as abroad:
            await abroad.until("PARKED")
            again = await abroad.pay(gate, payment)
            assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")
            assert abroad.served == 0


async def sold_on_trust(site: SiteOnEvm) -> tuple[dict[str, Any], str]:
    """A gate and the payment that it sold for, of which nobody tells yet."""
    async with site.held(), site.gateway() as before:
        gate = await before.gate(assumeValid=True, credits=3)
        payment = await before.payment(gate)
        assert (await before.pay(gate, payment)).status == 200
        await asyncio.sleep(3)  # recovery looks, every two seconds
        assert before.purchase() == ("LIVE", None, 0, 2)
    return gate, payment


def our_hub(site: SiteOnEvm) -> AbstractAsyncContextManager[str]:
    """A new one's URL."""
    return composed(site.rpc_url, site.database.with_name("hub.db"), role=Role.HUB)


@pytest.mark.parametrize("is_made", [True, False])
async def test_a_trusted_sale_is_followed_after_a_change_to_our_own_hub(site: SiteOnEvm, *, is_made: bool) -> None:
    """Which knows nothing of it: what the former facilitator named shows the chain."""
    site.foreign.settling = ways.hands_over if is_made else ways.says_success_and_sends_nothing
    gate, payment = await sold_on_trust(site)
    async with our_hub(site) as hub_url, site.gateway(hub_url=hub_url) as abroad:
        if is_made:
            assert await abroad.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 2)
            assert (await abroad.pay(gate, payment)).status == 200
            return
        await asyncio.sleep(3)
        assert abroad.purchase() == ("LIVE", None, 0, 2)
        site.expire()
        assert (await abroad.until("VOID"))[1] == "settlement_failed"


async def test_a_trusted_sale_stands_though_our_own_hub_failed_to_make_its_payment_a_second_time(
    site: SiteOnEvm,
) -> None:
    """Anybody may bring the hub a payment that the former facilitator is making."""
    foreign, chain = site.foreign, site.foreign.chain
    foreign.settling, foreign.sender = ways.hands_over, chain.wallets.faucet
    foreign.signers = [foreign.sender.address]
    async with our_hub(site) as hub_url:
        async with site.held():
            async with site.gateway() as before:
                gate = await before.gate(assumeValid=True, credits=3)
                challenge = (await before.buyer.ask("GET", gate["accessUrl"])).json()
                payment = await before.payment(gate)
                assert (await before.pay(gate, payment)).status == 200
            body = {
                "x402Version": 1,
                "paymentPayload": json.loads(base64.b64decode(payment)),
                "paymentRequirements": challenge["accepts"][0],
            }
            async with Buyer(chain.wallets.buyer) as anybody:
                asked = await anybody.ask("POST", hub_url + "/settle", body=body, headers={"Prefer": "wait=0"})
                assert asked.json().get("transaction"), asked.body
        payload = body["paymentPayload"]["payload"]["authorization"]
        where = f"{hub_url}/payments/{foreign.NETWORK}/{payload['from']}/{payload['nonce']}"
        async with asyncio.timeout(30), Buyer(chain.wallets.buyer) as anybody:
            while (await anybody.ask("GET", where)).json()["status"] != "failed":  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(0.2)
        async with site.gateway(hub_url=hub_url) as abroad:
            assert await abroad.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 2)


async def test_a_trusted_sale_is_followed_after_a_change_to_another_foreign_facilitator(site: SiteOnEvm) -> None:
    """Whose signers did not make it: what the former one named counts, if it is the very transfer."""
    site.foreign.settling, chain = ways.hands_over, site.foreign.chain
    gate, payment = await sold_on_trust(site)
    async with run_foreign(chain) as other:
        other.sender, other.signers = chain.wallets.faucet, [chain.wallets.faucet.address]
        async with site.gateway(hub_url=other.url) as abroad:
            assert await abroad.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 2)
            assert (await abroad.pay(gate, payment)).status == 200
    with beside(site.database) as books:
        assert books.execute("SELECT request FROM purchases").fetchone() == (None,)


@pytest.mark.parametrize("has_node", [True, False], ids=["with a node", "without one, as in serve"])
async def test_a_trusted_sale_that_another_s_transaction_paid_is_left_to_its_operator_after_such_a_change(
    site: SiteOnEvm, monkeypatch: pytest.MonkeyPatch, *, has_node: bool
) -> None:
    """Who has a day for it: then it is told, and stands, for it would count against the caps for ever."""
    site.foreign.settling = ways.says_success_and_sends_nothing
    async with site.gateway() as before:
        gate = await before.gate(assumeValid=True, credits=3)
        payment = await before.payment(gate)
        assert (await before.pay(gate, payment)).status == 200
    site.foreign.sender = site.foreign.chain.wallets.faucet
    await site.foreign.send(site.foreign.read(json.loads(base64.b64decode(payment))["payload"]))
    networks = site.networks(*[site.rpc_url] * has_node)
    async with our_hub(site) as hub_url, site.gateway(hub_url=hub_url, networks=networks) as abroad:
        await asyncio.sleep(5)
        assert abroad.purchase() == ("LIVE", None, 0, 2)
        monkeypatch.setattr(monitor, "_OPEN_MS", 1_000)
        await asyncio.sleep(3)
        assert abroad.purchase() == ("LIVE", None, 0, 2)  # a gateway that has just been started waits for an hour
        monkeypatch.setattr(monitor, "_UNTOLD_SINCE_START_MS", 1_000)
        assert await abroad.until(lambda purchase: purchase[2] == 1) == ("LIVE", None, 1, 2)


async def test_a_use_is_found_though_the_clock_was_hours_ahead_when_it_was_asked_for(
    embedded_chain: ChainUnderTest,
) -> None:
    rpc, relayer = embedded_chain.rpc, embedded_chain.wallets.relayer
    authorization = embedded_chain.authorization(valid_before=2**40)
    payload = EvmPayload(authorization, embedded_chain.sign(authorization))
    receipt = embedded_chain.relay(transfer_calldata(authorization, payload.signature))
    used_at = int(rpc.call("eth_getBlockByNumber", "latest", False)["timestamp"], 16)
    for _ in range(3):
        rpc.call("evm_increaseTime", 3_600)
        rpc.call("evm_mine")
    chain = EvmChain(EvmConfig(NETWORKS["base-sepolia"], (embedded_chain.url,)))
    chain.logs.blocks = 1
    await chain.open()
    try:
        assert chain.asset is not None
        asked_ms = (used_at + 2 * 3_600) * 1000
        key = payment_key(chain.asset, payload)
        senders = Senders(frozenset({relayer.address.lower()}), are_all=True)
        pay_to, value = authorization.pay_to.lower(), authorization.value
        expected = ExpectedTransfer(key, pay_to, value, authorization.valid_before, asked_ms, senders)
        found = await EvmEvidence(chain).of(expected)
        assert (found.outcome, found.transaction) == (EvidenceOutcome.PAID, receipt["transactionHash"])
    finally:
        await chain.close()


async def test_of_another_token_than_the_nodes_nothing_is_told(embedded_chain: ChainUnderTest) -> None:
    """Else what was used would seem unused, because another token remembers nothing of it."""
    authorization = embedded_chain.authorization()
    payload = EvmPayload(authorization, embedded_chain.sign(authorization))
    chain = EvmChain(EvmConfig(NETWORKS["base-sepolia"], (embedded_chain.url,)))
    await chain.open()
    try:
        assert chain.asset is not None
        key = payment_key(chain.asset, payload)
        nobody = Senders(frozenset(), are_all=True)
        other = structs.replace(key, asset="0x" + "11" * 20)
        expected = ExpectedTransfer(other, "0x" + "22" * 20, 10_000, None, 0, nobody)
        with pytest.raises(RpcUnavailable, match="asset"):
            await EvmEvidence(chain).before(expected, Payment(1, "exact", "base-sepolia", payload))
    finally:
        await chain.close()
