"""A refusal is kept for a gateway's key for a day, what was started for ever (contract 5.2; decision 0011)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chains.chain_under_test import ChainUnderTest
from tests.hub.gateway_requests import TRUSTED, settle_for_gateway
from tests.hub.hub_under_test import Answer, HubUnderTest, TestPayment, new_payment, run_hub
from tests.hub.test_unknown_outcomes import drain, relay
from tollkeeper.api import clock_ms
from tollkeeper.core.limits import REFUSALS_KEPT_SECONDS
from tollkeeper.storage.engine.database import Statement, Steps, unit_of_work
from tollkeeper.storage.hub.idempotency import IdempotencyKey, record_answer

MANY = 1_201  # more than two units take


class Clock:
    """Stands still, and is set."""

    def __init__(self) -> None:
        self.now_ms = clock_ms()

    def __call__(self) -> int:
        return self.now_ms


async def keys(hub: HubUnderTest) -> list[str]:
    rows = await hub.database.read(Statement("SELECT key FROM idempotency ORDER BY key"))
    return [row["key"].partition(" ")[2] for row in rows]


async def settle(hub: HubUnderTest, payment: TestPayment, key: str, clock: Clock) -> Answer:
    return await settle_for_gateway(hub, payment.asking(confirm=True), key, created=clock.now_ms // 1000)


async def test_refusals_are_forgotten_after_a_day_to_the_millisecond_and_what_was_started_never(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    clock = Clock()
    began_ms = clock.now_ms
    async with run_hub(tmp_path, embedded_chain, now_ms=clock, trusted_keys=TRUSTED) as hub:
        hub.recovery.forget_interval_seconds = 0
        settled, used = new_payment(embedded_chain), new_payment(embedded_chain)
        assert (await settle(hub, settled, "key.settled", clock)).body["success"] is True
        relay(embedded_chain, used)
        refused = await settle(hub, used, "key.refused", clock)
        assert refused.reason == "invalid_exact_evm_nonce_already_used"
        again = await settle(hub, settled, "key.duplicate", clock)
        assert again.reason == "duplicate_settlement"
        clock.now_ms += 1
        assert (await settle(hub, used, "key.later", clock)).reason == refused.reason
        everything = ["key.duplicate", "key.later", "key.refused", "key.settled"]
        assert await keys(hub) == everything

        clock.now_ms = began_ms + REFUSALS_KEPT_SECONDS * 1000 - 1
        await hub.complete()
        assert await keys(hub) == everything
        clock.now_ms += 1
        await hub.complete()
        assert await keys(hub) == ["key.later", "key.settled"]
        clock.now_ms += 10 * REFUSALS_KEPT_SECONDS * 1000
        await hub.complete()
        assert await keys(hub) == ["key.settled"]
        assert (await settle(hub, settled, "key.settled", clock)).body["success"] is True


async def test_a_payment_whose_refusal_was_forgotten_is_judged_anew_and_settled_once(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    chain, clock = embedded_chain, Clock()
    async with run_hub(tmp_path, chain, now_ms=clock, trusted_keys=TRUSTED) as hub:
        hub.recovery.forget_interval_seconds = 0
        payment = new_payment(chain, valid_before=chain.now() + 10 * REFUSALS_KEPT_SECONDS)
        held = drain(chain)
        assert (await settle(hub, payment, "key", clock)).reason == "insufficient_funds"
        chain.mint(chain.wallets.buyer.address, held)
        assert (await settle(hub, payment, "key", clock)).reason == "insufficient_funds", "a key gives one answer"
        clock.now_ms += REFUSALS_KEPT_SECONDS * 1000
        await hub.complete()
        before = chain.balance(chain.wallets.owner.address)
        assert (await settle(hub, payment, "key", clock)).body["success"] is True
        assert (await settle(hub, payment, "key", clock)).body["success"] is True, "the success that it was given"
        assert (await settle(hub, payment, "another", clock)).reason == "duplicate_settlement"
        clock.now_ms += 2 * REFUSALS_KEPT_SECONDS * 1000
        await hub.complete()
        assert await keys(hub) == ["key"]
        assert (await settle(hub, payment, "third", clock)).reason == "duplicate_settlement"
        assert chain.balance(chain.wallets.owner.address) == before + 10_000


async def test_however_many_refusals_there_are_one_pass_forgets_them_in_short_units(
    tmp_path: Path, embedded_chain: ChainUnderTest
) -> None:
    clock = Clock()

    @unit_of_work
    def kept() -> Steps[None]:
        answer: dict[str, Any] = {"success": False, "reason": "insufficient_funds"}
        for number in range(MANY):
            yield from record_answer(IdempotencyKey("payer", f"key.{number}", "print"), answer, clock.now_ms)

    async with run_hub(tmp_path, embedded_chain, now_ms=clock, trusted_keys=TRUSTED) as hub:
        await hub.database.run(kept())
        hub.recovery.forget_interval_seconds = 0
        clock.now_ms += REFUSALS_KEPT_SECONDS * 1000 - 1
        await hub.complete()
        assert len(await keys(hub)) == MANY
        clock.now_ms += 1
        await hub.complete()
        assert await keys(hub) == []
