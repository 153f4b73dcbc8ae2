"""A payer's proof ends soon, and is remembered for as long as a chain can use it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.payments import AUTHORIZATION, BASE_SEPOLIA, NOW_SECONDS, signed_payment
from tests.core.solana_payments import DEVNET, Draft
from tests.core.solana_payments import payment as solana_payment
from tollkeeper.core.payment_offers import offered_payment
from tollkeeper.core.purchases import AuthorizationStanding, ends_soon

ON_SOLANA = offered_payment(solana_payment(Draft().payload()), DEVNET)


@pytest.mark.parametrize(("valid_seconds", "is_soon"), [(60, True), (120, True), (121, False), (10**9, False)])
def test_on_evm_it_ends_within_the_time_of_its_offer_and_a_minute(valid_seconds: int, *, is_soon: bool) -> None:
    payment = signed_payment(replace(AUTHORIZATION, valid_before=NOW_SECONDS + valid_seconds))
    offered = offered_payment(payment, BASE_SEPOLIA)
    assert ends_soon(offered, NOW_SECONDS) is is_soon
    remembered = AuthorizationStanding(is_unused=True, moment=NOW_SECONDS).kept_until(offered)
    assert remembered == NOW_SECONDS + valid_seconds + 3600


def test_on_solana_blocks_end_it() -> None:
    assert ends_soon(ON_SOLANA, NOW_SECONDS)
    assert AuthorizationStanding(is_unused=True, moment=7, last=157).kept_until(ON_SOLANA) == 157
