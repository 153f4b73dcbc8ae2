"""A fee for direct transfers that is asked for no more, or paid elsewhere, since it was charged (contract 8)."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from tests.chains.chain_under_test import ChainUnderTest
from tests.gateway.composed import composed
from tests.gateway.hostile_hub import Forward, HostileHub, cut, lose_answer, pass_on, run_hostile_hub, says
from tests.gateway.test_transfer import Bank
from tests.gateway.test_transfer_fee import (
    FAILED_LATER,
    FEE_MICRO,
    GONE,
    OPERATOR,
    ask,
    moved,
    new_fee,
    rows_of,
    transfers_only,
)
from tollkeeper.core.wire import Payment, encode_payment_header
from tollkeeper.sandbox.buyer import Answer, Buyer
from tollkeeper.sandbox.wallets import derive_wallets
from tollkeeper.settings import Role

CHARGING: Final = {"transfer_fee_micro": FEE_MICRO, "default_payment_address": OPERATOR}
OFF: Final[dict[str, Any]] = {"transfer_fee_micro": None, "default_payment_address": OPERATOR}
ON_SOLANA: Final = {**CHARGING, "default_payment_address": "9WzDXwBbmkg8ZTbNMqUxvQRAyrZzDsGYdLVL9zYtAWWM"}
# What a request is refused with, then, that pays the fee of before.
SWITCHED: Final = pytest.mark.parametrize(
    ("switched", "refusal"), [(OFF, "PAYMENT_INVALID"), (ON_SOLANA, "INVALID_NETWORK")], ids=["off", "elsewhere"]
)


@dataclass(slots=True)
class Switching:
    """A gateway that is started again with another fee."""

    directory: Path
    chain: ChainUnderTest
    hub: HostileHub
    buyer: Buyer
    recipient: str

    @asynccontextmanager
    async def started(self, fee: dict[str, Any]) -> AsyncIterator[Bank]:
        database = self.directory / "gateway.db"
        async with composed(self.chain.url, database, role=Role.GATEWAY, hub_url=self.hub.url, **fee) as url:
            yield Bank(url, self.hub, self.chain, self.buyer, self.recipient)


@pytest.fixture
async def switching(tmp_path: Path, embedded_chain: ChainUnderTest) -> AsyncIterator[Switching]:
    async with (
        composed(embedded_chain.url, tmp_path / "hub.db", role=Role.HUB) as hub_url,
        run_hostile_hub(hub_url) as hostile,
        Buyer(derive_wallets().buyer) as buyer,
    ):
        yield Switching(tmp_path, embedded_chain, hostile, buyer, "0x" + secrets.token_hex(20))


def told(answer: Answer) -> tuple[int, object, str | None]:
    return answer.status, answer.json().get("success"), answer.error_code


MADE: Final = (200, True, None)


@SWITCHED
@pytest.mark.parametrize("hub", [lose_answer, cut], ids=["made", "never asked"])
async def test_who_was_charged_a_fee_is_told_of_the_transfer_when_none_is_asked_for_any_more(
    switching: Switching, hub: Any, switched: dict[str, Any], refusal: str
) -> None:
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(hub)
        assert (await ask(bank, transfer, fee)).error_code == "SETTLEMENT_PENDING"
        bank.hub.settling = pass_on
    async with switching.started(switched) as bank:
        own = {"Idempotency-Key": "of-the-pair"}
        assert [told(await ask(bank, transfer, fee, own)) for _ in range(2)] == [MADE, MADE]
        assert moved(bank) == (10_000, FEE_MICRO)
        for headers in (None, own):
            assert told(await ask(bank, bank.signed(), fee, headers)) == (400, None, refusal)
        assert moved(bank) == (10_000, FEE_MICRO)
    async with switching.started(CHARGING) as bank:
        assert (await ask(bank, bank.signed(), fee)).status == 402


@SWITCHED
async def test_the_fee_of_a_transfer_that_is_refused_once_none_is_asked_for_is_a_credit_when_one_is_again(
    switching: Switching, switched: dict[str, Any], refusal: str
) -> None:
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(cut)
        assert (await ask(bank, transfer, fee)).status == 503
    async with switching.started(switched) as bank:
        bank.hub.settling = transfers_only(says(400, GONE))
        assert told(await ask(bank, transfer, fee)) == (400, None, "INSUFFICIENT_FUNDS")
        bank.hub.settling = pass_on
        assert told(await ask(bank, transfer, fee)) == (400, None, refusal)
    async with switching.started(CHARGING) as bank:
        assert told(await ask(bank, bank.signed(), fee)) == MADE
        assert moved(bank) == (10_000, FEE_MICRO)


async def test_a_fee_that_was_given_back_is_told_as_owed_when_none_is_asked_for_any_more(
    switching: Switching, tmp_path: Path
) -> None:
    """Its transfer failed in its block, and a reorganisation has the same transaction succeed."""
    failed_in = json.loads(FAILED_LATER)["transaction"]
    made = {"status": "success", "transaction": failed_in, "updatedAt": "2026-01-01T00:00:00.000Z"}
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(cut)
        assert (await ask(bank, transfer, fee)).status == 503
    with capture_logs() as said:
        async with switching.started(OFF) as bank:
            bank.hub.settling, bank.hub.telling = transfers_only(says(200, FAILED_LATER)), says(200, json.dumps(made))
            assert told(await ask(bank, transfer, fee)) == (200, False, None)
            assert rows_of(tmp_path, "SELECT state FROM single_calls") == [("RESTORED",)]
            async with asyncio.timeout(20):
                while rows_of(tmp_path, "SELECT call_id FROM returned_fees WHERE made_ms IS NULL"):
                    rows_of(tmp_path, "UPDATE returned_fees SET follow_ms = 1 WHERE follow_ms IS NOT NULL")
                    await asyncio.sleep(0.5)
    assert [line["transaction"] for line in said if line["event"] == "fee_is_owed"] == [failed_in]


async def test_a_fee_that_could_be_the_transfer_of_its_body_stays_its_fee(switching: Switching) -> None:
    """The transfer pays the operator what the fee is."""
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed(pay_to=OPERATOR, value=FEE_MICRO)
        bank.hub.settling = transfers_only(lose_answer)
        assert (await ask(bank, transfer, fee)).status == 503
        bank.hub.settling = pass_on
    async with switching.started(OFF) as bank:
        assert told(await ask(bank, transfer, fee)) == MADE
        assert moved(bank) == (0, 2 * FEE_MICRO)


async def test_another_signature_of_what_a_fee_was_charged_for_takes_no_fee_back_when_it_is_off(
    switching: Switching,
) -> None:
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(lose_answer)
        assert (await ask(bank, transfer, fee)).status == 503
        bank.hub.settling = pass_on
    async with switching.started(OFF) as bank:
        other = bank.signed(nonce=transfer.authorization.nonce, value=1)
        assert told(await ask(bank, other, fee)) == (409, None, "CONFLICT")
        assert told(await ask(bank, transfer, fee)) == MADE


@SWITCHED
async def test_where_a_body_s_network_has_no_fee_a_request_that_pays_nothing_is_told_so_first(
    switching: Switching, switched: dict[str, Any], refusal: str
) -> None:
    async with switching.started(switched) as bank:
        asked = await ask(bank, bank.signed(), recipient="nobody")
        assert asked.error_code == ("INVALID_NETWORK" if refusal == "INVALID_NETWORK" else "INVALID_ADDRESS")
        asked = await ask(bank, bank.signed())
        assert asked.status == (402 if switched is OFF else 400)


@pytest.mark.parametrize("hub", [pass_on, lose_answer], ids=["told", "not told"])
async def test_a_payer_s_key_that_came_with_a_fee_stands_for_no_other_transfer_when_none_is_asked_for(
    switching: Switching, hub: Any
) -> None:
    """Whose answer was lost may sign anew under it, and is not to pay twice."""
    own = {"Idempotency-Key": "order-4711"}
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed()
        bank.hub.settling = transfers_only(hub)
        first = await ask(bank, transfer, fee, own)
        assert first.status == (200 if hub is pass_on else 503)
        bank.hub.settling = pass_on
    async with switching.started(OFF) as bank:
        for other in (bank.signed(), transfer):
            payment = encode_payment_header(Payment(1, "exact", "base-sepolia", other))
            assert told(await ask(bank, other, payment, own)) == (409, None, "CONFLICT")
        assert told(await ask(bank, transfer, fee, own)) == MADE
        assert moved(bank) == (10_000, FEE_MICRO)


@pytest.mark.parametrize("hub", [pass_on, lose_answer], ids=["told", "not told"])
async def test_a_payer_s_key_that_came_without_a_fee_stands_for_no_other_transfer_when_one_is_asked_for(
    switching: Switching, hub: Any
) -> None:
    own = {"Idempotency-Key": "order-4711"}
    async with switching.started(OFF) as bank:
        transfer = bank.signed()
        payment = encode_payment_header(Payment(1, "exact", "base-sepolia", transfer))
        bank.hub.settling = transfers_only(hub)
        assert (await ask(bank, transfer, payment, own)).status == (200 if hub is pass_on else 503)
        bank.hub.settling = pass_on
    async with switching.started(CHARGING) as bank:
        assert told(await ask(bank, bank.signed(), await new_fee(bank), own)) == (409, None, "CONFLICT")
        assert told(await ask(bank, transfer, payment, own)) == MADE
        assert moved(bank) == (10_000, 0)


async def test_a_payer_s_key_whose_transfer_was_refused_is_free_when_a_fee_is_asked_for(switching: Switching) -> None:
    own = {"Idempotency-Key": "order-4711"}
    async with switching.started(OFF) as bank:
        transfer = bank.signed()
        bank.hub.settling = transfers_only(says(400, GONE))
        payment = encode_payment_header(Payment(1, "exact", "base-sepolia", transfer))
        assert (await ask(bank, transfer, payment, own)).status == 400
        bank.hub.settling = pass_on
    async with switching.started(CHARGING) as bank:
        assert told(await ask(bank, transfer, await new_fee(bank), own)) == MADE


async def test_a_payer_s_key_that_came_twice_at_once_stands_for_what_was_made_when_a_fee_is_asked_for(
    switching: Switching,
) -> None:
    """With and without `confirm`, which are two requests: the later one is a conflict, and takes nothing back."""
    own, is_told, asked = {"Idempotency-Key": "order-4711"}, asyncio.Event(), iter((True, False))

    async def in_turn(_request: web.Request, forward: Forward) -> web.StreamResponse:
        if not next(asked):
            await is_told.wait()
        return await forward()

    async with switching.started(OFF) as bank:
        transfer = bank.signed()
        payment = encode_payment_header(Payment(1, "exact", "base-sepolia", transfer))
        bank.hub.settling = transfers_only(in_turn)
        both = [asyncio.create_task(ask(bank, transfer, payment, own, confirm=confirm)) for confirm in (False, True)]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        is_told.set()
        assert sorted(told(one)[::2] for one in await asyncio.gather(*both)) == [(200, None), (409, "CONFLICT")]
        bank.hub.settling = pass_on
    async with switching.started(CHARGING) as bank:
        assert told(await ask(bank, bank.signed(), await new_fee(bank), own)) == (409, None, "CONFLICT")
        assert moved(bank) == (10_000, 0)


@pytest.mark.parametrize("is_fresh", [False, True], ids=["the body's own", "a fresh one"])
@pytest.mark.parametrize(
    ("charging", "refusal"), [(CHARGING, "PAYMENT_INVALID"), (ON_SOLANA, "INVALID_NETWORK")], ids=["on", "elsewhere"]
)
@pytest.mark.parametrize("hub", [lose_answer, cut], ids=["made", "never asked"])
async def test_who_sent_a_transfer_without_a_fee_is_told_of_it_when_one_is_asked_for(
    switching: Switching, hub: Any, charging: dict[str, Any], refusal: str, *, is_fresh: bool
) -> None:
    async with switching.started(OFF) as bank:
        transfer = bank.signed()
        payment = encode_payment_header(Payment(1, "exact", "base-sepolia", bank.signed() if is_fresh else transfer))
        bank.hub.settling = transfers_only(hub)
        assert (await ask(bank, transfer, payment)).error_code == "SETTLEMENT_PENDING"
        bank.hub.settling = pass_on
    was_made = hub is lose_answer
    assert moved(bank) == (10_000 * was_made, 0)
    async with switching.started(charging) as bank:
        again = [told(await ask(bank, transfer, payment)) for _ in range(2)]
        assert again == [MADE if was_made else (400, None, refusal)] * 2
        bank.hub.is_down = was_made
        assert (await ask(bank, transfer, payment)).error_code == ("SETTLEMENT_PENDING" if was_made else refusal)
        bank.hub.is_down = False
        assert moved(bank) == (10_000 * was_made, 0)


async def test_a_fee_s_credit_pays_for_a_transfer_that_pays_the_same_to_the_operator(switching: Switching) -> None:
    """Its payment is carried out, and could be the transfer of this body, but was taken as a fee."""
    async with switching.started(CHARGING) as bank:
        fee = await new_fee(bank)
        bank.hub.settling = transfers_only(says(400, GONE))
        assert (await ask(bank, bank.signed(), fee)).status == 400
        bank.hub.settling = pass_on
        assert told(await ask(bank, bank.signed(pay_to=OPERATOR, value=FEE_MICRO), fee)) == MADE
        assert moved(bank) == (0, 2 * FEE_MICRO)


async def test_a_fee_that_is_claimed_while_our_hub_is_asked_of_it_is_no_transfer_of_its_own(
    switching: Switching,
) -> None:
    """The same pair twice at once, whose transfer pays the operator what the fee is."""
    async with switching.started(CHARGING) as bank:
        fee, transfer = await new_fee(bank), bank.signed(pay_to=OPERATOR, value=FEE_MICRO)
        first: list[Answer] = []

        async def later(_request: web.Request, forward: Forward) -> web.StreamResponse:
            bank.hub.telling = pass_on
            first.append(await ask(bank, transfer, fee))
            return await forward()

        bank.hub.telling = later
        second = await ask(bank, transfer, fee)
        assert [told(answer) for answer in (*first, second)] == [MADE, MADE]
        assert first[0].json()["transaction"] == second.json()["transaction"]
        assert moved(bank) == (0, 2 * FEE_MICRO)
