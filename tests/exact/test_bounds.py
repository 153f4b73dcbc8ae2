"""What may be had so often, and no more, is had exactly so often, however many programs ask at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs

from tests.exact.conftest import PROGRAMS
from tests.hub.test_store import KEY, NEW
from tests.storage.test_purchases import NOW_MS, TRUST, Shop
from tollkeeper.core.purchases import Claim
from tollkeeper.storage.auth import admit
from tollkeeper.storage.engine.database import Database, StatementError
from tollkeeper.storage.hub.claims import ClaimBounds, ClaimedSettlement, Funds, SettlementRequest, claim_and_sign
from tollkeeper.storage.hub.transactions import GasBudget, open_lane

pytestmark = pytest.mark.postgresql_only("SQLite's file has one writer")

AT_ONCE = 40
ROUNDS = 30  # in which what one alone may miss is seen
BIG = 2**60

# By name: the gas of an hour and strangers' part of it, tenants, and what bounds the claims of a network.
BOUNDS: dict[str, tuple[int, int, int, Callable[[str], ClaimBounds]]] = {
    "queue": (BIG, BIG, AT_ONCE, lambda network: ClaimBounds(network, 5, 5)),
    "gas of strangers": (BIG, 100, AT_ONCE, lambda network: ClaimBounds(network, BIG, BIG)),
    "gas of a tenant": (1_000, 1_000, 1, lambda network: ClaimBounds(network, BIG, BIG)),
    "funds": (BIG, BIG, AT_ONCE, lambda network: ClaimBounds(network, BIG, BIG, funds=Funds(NEW.signer, 95, 10, 0))),
}


async def claimed(databases: list[Database], bound: str, network: str, *, at_once: bool) -> Counter[ClaimedSettlement]:
    """Outcomes of forty claims on a network that has had none, all at once or one after the other."""
    per_hour, strangers, tenants, bounds_of = BOUNDS[bound]

    def sign(nonce: int, _won: object) -> tuple[bytes, str]:
        return b"%s-%d" % (network.encode(), nonce), f"{network}-{nonce}"

    async def claim(number: int) -> ClaimedSettlement:
        key = structs.replace(KEY, network=network, payer=f"0x{number:040x}", nonce=f"0x{number:064x}")
        new = replace(NEW, id=f"{network}-{number}", key=key, tenant=f"tenant-{number % tenants}")
        budget = GasBudget(network, per_hour, strangers, 60_000)
        unit = claim_and_sign([SettlementRequest(new, gas=10)], sign, budget, bounds_of(network))
        return (await databases[number % len(databases)].run(unit))[0].outcome

    await databases[0].run(open_lane(network, NEW.signer, 0))
    if at_once:
        return Counter(await asyncio.gather(*(claim(number) for number in range(AT_ONCE))))
    return Counter([await claim(number) for number in range(AT_ONCE)])


@pytest.mark.parametrize("bound", BOUNDS)
async def test_forty_claims_at_once_meet_a_bound_of_settlements_as_one_after_the_other(
    open_shops: Callable[..., list[Shop]], bound: str
) -> None:
    databases = [shop.database for shop in open_shops(is_locked=True)]
    alone = await claimed(databases, bound, "alone", at_once=False)
    assert 0 < alone[ClaimedSettlement.WON] < AT_ONCE
    for number in range(3):
        assert await claimed(databases, bound, f"at-once-{number}", at_once=True) == alone


@pytest.mark.long
@pytest.mark.parametrize("bound", BOUNDS)
async def test_without_locks_more_claims_than_that_are_seen(open_shops: Callable[..., list[Shop]], bound: str) -> None:
    databases = [shop.database for shop in open_shops(is_locked=False)]
    most = (await claimed(databases, bound, "alone", at_once=False))[ClaimedSettlement.WON]
    for number in range(ROUNDS):
        if (await claimed(databases, bound, f"at-once-{number}", at_once=True))[ClaimedSettlement.WON] > most:
            return
    pytest.fail("the bound holds without a lock, so nothing shows what the lock is for")


async def trusted(shops: list[Shop]) -> list[str]:
    """Payers of the claims that are trusted, of forty at once at a new gate, eight of each payer."""
    gate = await shops[0].gate()
    payers = [f"0x{gate.id:038x}{number:02x}" for number in range(1, 6)]
    claims = (
        shops[number % PROGRAMS].claim(gate, gate.id * 1_000 + number, assume_valid=True, payer=payer)
        for number, payer in enumerate(payers * 8, start=1)
    )
    results = await asyncio.gather(*claims)
    assert {result.outcome for result in results} == {Claim.WON}
    return [result.purchase.payer for result in results if result.purchase and result.purchase.assume_valid]


async def test_claims_at_once_meet_the_caps_on_trust_exactly(open_shops: Callable[..., list[Shop]]) -> None:
    payers = await trusted(open_shops(is_locked=True))
    assert len(payers) == TRUST.gate.purchases
    assert max(map(payers.count, payers)) <= TRUST.payer.purchases


@pytest.mark.long
async def test_without_locks_more_trust_than_that_is_seen(open_shops: Callable[..., list[Shop]]) -> None:
    shops = open_shops(is_locked=False)
    for _ in range(ROUNDS):
        if len(await trusted(shops)) > TRUST.gate.purchases:
            return
    pytest.fail("the caps hold without a lock, so nothing shows what the lock is for")


async def users_of(shops: list[Shop], wallet: str) -> set[int]:
    logins = (shops[number % PROGRAMS].database.run(admit(wallet, NOW_MS)) for number in range(100))
    return {user.id for user in await asyncio.gather(*logins)}


async def test_a_hundred_first_logins_of_one_wallet_make_one_user(open_shops: Callable[..., list[Shop]]) -> None:
    assert len(await users_of(open_shops(is_locked=True), "0x" + "ab" * 20)) == 1


@pytest.mark.long
async def test_without_locks_a_first_login_is_seen_to_fail(open_shops: Callable[..., list[Shop]]) -> None:
    shops = open_shops(is_locked=False)
    for number in range(ROUNDS):
        try:
            await users_of(shops, f"0x{number:040x}")
        except StatementError:
            return
    pytest.fail("first logins are right without a lock, so nothing shows what the lock is for")
