"""A facilitator that cannot confirm: the gateway's own look at the chain decides (contract 4.3, 4.4; F19).

Whatever it says: nothing is served unpaid, nothing is charged twice, and no client has to sign twice.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.chains.abi import encode_call
from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway import foreign_facilitator as foreign_ways
from tests.gateway.abroad import SalesAbroad
from tests.gateway.composed import composed, settings_for
from tests.gateway.foreign_facilitator import Foreign, Settling, run_foreign
from tests.gateway.recording_target import RecordingTarget
from tollkeeper.core.evm import Authorization, transfer_calldata
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.genesis import USDC_ADDRESS
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.serving.reconciling import compare_with_chain
from tollkeeper.settings import NetworkSettings, Role

PAYEE = "0x" + "77" * 20


@dataclass(slots=True)
class Abroad(SalesAbroad):
    """A gateway with a node of its own, whose facilitator is a stranger's."""

    url: str
    database: Path
    foreign: Foreign
    chain: ChainUnderTest
    target: RecordingTarget
    buyer: Buyer

    async def gate(self, **fields: object) -> dict[str, Any]:
        body = {"price": "0.01", "targetUrl": self.target.url, "paymentAddress": PAYEE, **fields}
        answer = await self.buyer.ask("POST", self.url + "/api/v1/paygates", body=body)
        assert answer.status == 201, answer.body
        gate: dict[str, Any] = answer.json()
        return gate

    async def payment(self, gate: dict[str, Any], seconds: int = 3600) -> tuple[str, Authorization]:
        """Valid for longer than a busy machine needs."""
        signed: list[Authorization] = []

        def keep(wanted: Authorization) -> Authorization:
            signed.append(replace(wanted, valid_before=wanted.valid_before + seconds))
            return signed[0]

        challenge = (await self.buyer.ask("GET", gate["accessUrl"])).json()
        return self.buyer.sign(challenge, keep), signed[0]

    async def present(self, gate: dict[str, Any], payment: str, *, until: int = 200) -> Answer:
        return await self.until_told(lambda: self.buyer.call(gate["accessUrl"], payment), until=until)

    def received_micro(self) -> int:
        return self.chain.balance(PAYEE)

    def pass_time(self, seconds: int) -> None:
        self.chain.rpc.call("evm_increaseTime", seconds)
        self.chain.rpc.call("evm_mine")


@pytest.fixture
async def abroad(tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget) -> AsyncIterator[Abroad]:
    database = tmp_path / "gateway.db"
    async with (
        run_foreign(embedded_chain) as foreign,
        composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=foreign.url) as url,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Abroad(url, database, foreign, embedded_chain, target, buyer)


async def test_an_honest_facilitators_payment_counts_once_it_is_on_the_chain(abroad: Abroad) -> None:
    gate = await abroad.gate(credits=2)
    payment, _ = await abroad.payment(gate)
    answers = [await abroad.buyer.call(gate["accessUrl"], payment) for _ in range(3)]
    assert [answer.status for answer in answers] == [200, 200, 402]
    assert answers[2].error_code == "CREDITS_EXHAUSTED"
    assert abroad.received_micro() == 10_000
    assert len(abroad.foreign.settles) == 1
    assert "confirm" not in abroad.foreign.settles[0]


async def test_a_gateway_compares_its_sales_with_the_chain_whoever_sent_them(abroad: Abroad) -> None:
    gate = await abroad.gate()
    assert (await abroad.buyer.call(gate["accessUrl"], (await abroad.payment(gate))[0])).status == 200
    settings = settings_for(abroad.chain.url, abroad.database, role=Role.GATEWAY)
    assert await compare_with_chain(settings) == []
    with closing(sqlite3.connect(abroad.database)) as connection:
        connection.execute("UPDATE purchases SET transaction_hash = :hash", {"hash": "0x" + "ab" * 32})
        connection.commit()
    assert {found.rule for found in await compare_with_chain(settings)} == {
        "paid_but_not_on_the_chain",
        "paid_in_another_transaction",
    }


SENDS: list[Settling] = [
    foreign_ways.answers_late,
    foreign_ways.settles_late,
    foreign_ways.sends_twice,
    foreign_ways.another_shape,
    foreign_ways.success_as_a_string,
    foreign_ways.error_after_sending,
    foreign_ways.failure_after_sending,
    foreign_ways.never,
]


@pytest.mark.parametrize("settling", SENDS, ids=[way.__name__ for way in SENDS])
async def test_a_payment_that_was_carried_out_is_served_whatever_the_facilitator_says(
    abroad: Abroad, settling: Settling
) -> None:
    gate = await abroad.gate()
    payment, _ = await abroad.payment(gate)
    abroad.foreign.settling = settling
    assert (await abroad.present(gate, payment)).status == 200
    again = await abroad.buyer.call(gate["accessUrl"], payment)
    assert (again.status, again.error_code) == (402, "CREDITS_EXHAUSTED")
    assert abroad.received_micro() == 10_000
    assert len(abroad.target.requests) == 1
    assert len(abroad.foreign.settles) == 1


SENDS_NOTHING: list[Settling] = [
    foreign_ways.says_success_and_sends_nothing,
    foreign_ways.string_and_sends_nothing,
]


@pytest.mark.parametrize("settling", SENDS_NOTHING, ids=[way.__name__ for way in SENDS_NOTHING])
async def test_nothing_is_served_for_a_payment_that_nobody_carried_out_and_it_fails_once_it_cannot_be(
    abroad: Abroad, settling: Settling
) -> None:
    gate = await abroad.gate()
    payment, authorization = await abroad.payment(gate)
    abroad.foreign.settling = settling
    asking = asyncio.create_task(abroad.buyer.call(gate["accessUrl"], payment))
    async with asyncio.timeout(20):
        while not abroad.foreign.settles:  # noqa: ASYNC110 - over HTTP there is nothing to wait on
            await asyncio.sleep(0.05)
    await asyncio.sleep(1)
    assert abroad.purchase()[0] == "CLAIMED"
    abroad.pass_time(authorization.valid_before - abroad.chain.now() + 61)
    answer = await asking
    if answer.status == 503:
        answer = await abroad.present(gate, payment)
    assert (answer.status, answer.error_code) == (402, "PAYMENT_EXPIRED")
    assert abroad.purchase()[:2] == ("FAILED", "invalid_exact_evm_payload_authorization_valid_before")
    assert abroad.target.requests == []
    assert abroad.received_micro() == 0


async def test_a_success_that_is_not_on_the_chain_yet_is_pending_and_then_served(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment, _ = await abroad.payment(gate)
    abroad.chain.rpc.call("evm_setAutomine", False)
    try:

        async def accepted_by_its_node(foreign: Foreign, payload: Any) -> Any:
            data = transfer_calldata(payload.authorization, payload.signature)
            return foreign_ways.success(foreign.chain.send(foreign.sender, USDC_ADDRESS, data))

        abroad.foreign.settling = accepted_by_its_node
        asking = asyncio.create_task(abroad.buyer.call(gate["accessUrl"], payment))
        await asyncio.sleep(1.5)
        assert not asking.done()
        assert abroad.target.requests == []
        abroad.chain.rpc.call("evm_mine")
        assert (await asking).status == 200
    finally:
        abroad.chain.rpc.call("evm_setAutomine", True)


async def test_a_clear_refusal_is_a_402_and_the_same_payment_may_be_presented_again(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment, _ = await abroad.payment(gate)
    abroad.foreign.settling = foreign_ways.refuses
    refused = await abroad.buyer.call(gate["accessUrl"], payment)
    assert (refused.status, refused.error_code) == (402, "INSUFFICIENT_FUNDS")
    abroad.foreign.settling = foreign_ways.honest
    assert (await abroad.buyer.call(gate["accessUrl"], payment)).status == 200
    assert abroad.received_micro() == 10_000


async def test_a_second_answer_is_not_taken_for_the_next_payments(abroad: Abroad) -> None:
    gate = await abroad.gate(assumeValid=True)
    abroad.foreign.settling = foreign_ways.answers_twice
    assert (await abroad.buyer.call(gate["accessUrl"], (await abroad.payment(gate))[0])).status == 200
    await asyncio.sleep(0.2)
    abroad.foreign.settling = foreign_ways.refuses
    answer = await abroad.present(gate, (await abroad.payment(gate))[0])
    assert (answer.status, answer.error_code) == (402, "INSUFFICIENT_FUNDS")
    assert len(abroad.target.requests) == 1
    assert abroad.received_micro() == 10_000


async def test_a_payment_that_its_payer_cancelled_has_failed(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment, authorization = await abroad.payment(gate)

    async def cancelled_meanwhile(foreign: Foreign, _payload: Any) -> Any:
        signature = foreign.chain.sign_cancellation(foreign.chain.wallets.buyer, authorization.nonce)
        data = encode_call(
            "cancelAuthorization(address,bytes32,uint8,bytes32,bytes32)",
            authorization.payer,
            bytes.fromhex(authorization.nonce[2:]),
            signature[64],
            signature[:32],
            signature[32:64],
        )
        await asyncio.to_thread(foreign.chain.relay, data)
        return foreign_ways.success("0x" + "ab" * 32)

    abroad.foreign.settling = cancelled_meanwhile
    answer = await abroad.present(gate, payment)
    assert (answer.status, answer.error_code) == (402, "NONCE_ALREADY_USED")
    assert abroad.target.requests == []


async def test_a_payment_that_a_stranger_carried_out_is_parked_and_serves_nothing(abroad: Abroad) -> None:
    gate = await abroad.gate()
    payment, _ = await abroad.payment(gate)
    abroad.foreign.sender = abroad.chain.wallets.faucet
    answer = await abroad.buyer.call(gate["accessUrl"], payment)
    assert (answer.status, answer.error_code) == (503, "SETTLEMENT_PENDING")
    assert (await abroad.until("PARKED"))[1] == "not_of_the_facilitators_signers"
    again = await abroad.buyer.call(gate["accessUrl"], payment)
    assert (again.status, again.error_code) == (503, "SETTLEMENT_PENDING")
    assert abroad.target.requests == []
    assert len(abroad.foreign.settles) == 1


async def test_trusted_credits_are_void_once_the_payment_can_never_be_made(abroad: Abroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    payment, authorization = await abroad.payment(gate)
    abroad.foreign.settling = foreign_ways.says_success_and_sends_nothing
    assert (await abroad.buyer.call(gate["accessUrl"], payment)).status == 200
    assert abroad.purchase() == ("LIVE", None, 0, 2)
    address = f"{abroad.url}/api/v1/paygates/{gate['id']}"
    read = (await abroad.buyer.ask("GET", address)).json()
    assert read["trusted"] == {"open": 1, "openAmount": "0.01", "failed": 0, "failedAmount": "0"}
    abroad.pass_time(authorization.valid_before - abroad.chain.now() + 61)
    assert (await abroad.until("VOID"))[1] == "settlement_failed"
    refused = await abroad.buyer.call(gate["accessUrl"], payment)
    assert (refused.status, refused.error_code) == (402, "CREDITS_EXHAUSTED")
    read = (await abroad.buyer.ask("GET", address)).json()
    assert read["counters"]["revenue"] == "0"
    assert read["trusted"] == {"open": 0, "openAmount": "0", "failed": 1, "failedAmount": "0.01"}
    assert len(abroad.target.requests) == 1


async def test_trusted_credits_are_confirmed_once_the_payment_is_on_the_chain(abroad: Abroad) -> None:
    gate = await abroad.gate(assumeValid=True, credits=3)
    payment, _ = await abroad.payment(gate)
    assert (await abroad.buyer.call(gate["accessUrl"], payment)).status == 200
    async with asyncio.timeout(30):
        while abroad.purchase()[2] == 0:  # noqa: ASYNC110 - over the file there is nothing to wait on
            await asyncio.sleep(0.05)
    assert abroad.purchase() == ("LIVE", None, 1, 2)
    read = (await abroad.buyer.ask("GET", f"{abroad.url}/api/v1/paygates/{gate['id']}")).json()
    assert "trusted" not in read


@pytest.mark.parametrize(
    ("settling", "status", "state"),
    [
        (foreign_ways.honest, 200, "LIVE"),
        (foreign_ways.answers_late, 200, "LIVE"),
        (foreign_ways.error_after_sending, 503, "PARKED"),
    ],
    ids=["vouches", "vouches late", "does not vouch"],
)
async def test_without_advertised_signers_the_facilitators_word_stands_in_for_them(
    tmp_path: Path,
    embedded_chain: ChainUnderTest,
    target: RecordingTarget,
    settling: Settling,
    status: int,
    state: str,
) -> None:
    async with run_foreign(embedded_chain, settling) as foreign, Buyer(derive_wallets().buyer) as buyer:
        foreign.signers = []
        database = tmp_path / "gateway.db"
        async with composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=foreign.url) as url:
            here = Abroad(url, database, foreign, embedded_chain, target, buyer)
            gate = await here.gate()
            payment, _ = await here.payment(gate)
            assert (await buyer.call(gate["accessUrl"], payment)).status == status
            await here.until(state)
            assert len(target.requests) == (status == 200)


async def test_a_claim_outlives_a_start_of_the_gateway(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with run_foreign(embedded_chain) as foreign, Buyer(derive_wallets().buyer) as buyer:
        database = tmp_path / "gateway.db"
        async with composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=foreign.url) as url:
            here = Abroad(url, database, foreign, embedded_chain, target, buyer)
            gate = await here.gate()
            payment, _ = await here.payment(gate)
            assert (await buyer.call(gate["accessUrl"], payment)).status == 200
        with closing(sqlite3.connect(database)) as connection:  # as if the process had ended before it heard the answer
            for undo in (
                "DELETE FROM calls",
                "DELETE FROM credits_given",
                "DELETE FROM credits",
                "UPDATE paygate_counters SET purchases = 0, revenue_micro = 0",
                "UPDATE purchases SET state = 'CLAIMED', request = x'00'",
                "UPDATE purchases SET transaction_hash = NULL, granted_ms = NULL",
            ):
                connection.execute(undo)
            connection.commit()
        async with composed(embedded_chain.url, database, role=Role.GATEWAY, hub_url=foreign.url) as url:
            here.url = url
            assert (await here.until("LIVE"))[3] == 1
            assert (await buyer.call(f"{url}/{gate['slug']}", payment)).status == 200
    assert len(foreign.settles) == 1


async def test_a_node_that_does_not_answer_charges_nothing(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    async with run_foreign(embedded_chain) as foreign, Buyer(derive_wallets().buyer) as buyer:
        database = tmp_path / "gateway.db"
        async with composed("http://127.0.0.1:1", database, role=Role.GATEWAY, hub_url=foreign.url) as url:
            here = Abroad(url, database, foreign, embedded_chain, target, buyer)
            gate = await here.gate()
            payment, _ = await here.payment(gate)
            answer = await buyer.call(gate["accessUrl"], payment)
            assert (answer.status, answer.error_code) == (503, "UNAVAILABLE")
            assert foreign.settles == []


async def test_without_a_node_only_gates_that_trust_it_are_served(
    tmp_path: Path, embedded_chain: ChainUnderTest, target: RecordingTarget
) -> None:
    known = settings_for(embedded_chain.url, tmp_path / "x.db").networks
    networks = {name: NetworkSettings(one.network) for name, one in known.items()}
    async with run_foreign(embedded_chain) as foreign, Buyer(derive_wallets().buyer) as buyer:
        changes: dict[str, Any] = {"role": Role.GATEWAY, "hub_url": foreign.url, "networks": networks}
        async with composed(embedded_chain.url, tmp_path / "gateway.db", **changes) as url:
            body = {"price": "0.01", "targetUrl": target.url}
            refused = await buyer.ask("POST", url + "/api/v1/paygates", body=body)
            assert refused.json()["error"]["details"]["field"] == "assumeValid"
            assert "node" in refused.json()["error"]["message"]
            gate = (await buyer.ask("POST", url + "/api/v1/paygates", body={**body, "assumeValid": True})).json()
            payment = buyer.sign((await buyer.ask("GET", gate["accessUrl"])).json())
            assert (await buyer.call(gate["accessUrl"], payment)).status == 200
