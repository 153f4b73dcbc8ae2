"""A transaction at a settlement's cap can always be replaced within the whole cap (security F6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.evm.signed_transactions import USUAL_TIP_WEI, bounded_tip, raised, settlement_cap

CAPS = st.integers(min_value=1, max_value=10**24)


@given(cap_wei=CAPS)
def test_what_a_settlement_may_pay_can_be_raised_within_the_cap(cap_wei: int) -> None:
    assert settlement_cap(cap_wei) >= 0
    assert raised(settlement_cap(cap_wei)) <= cap_wei


@given(cap_wei=CAPS)
def test_a_settlement_may_pay_all_that_leaves_room_for_a_raise(cap_wei: int) -> None:
    assert raised(settlement_cap(cap_wei) + 2) > cap_wei


def test_every_small_cap_leaves_room_for_a_raise() -> None:
    assert all(raised(settlement_cap(cap_wei)) <= cap_wei for cap_wei in range(1, 10_000))


@given(fee_wei=st.integers(min_value=0, max_value=10**24))
def test_a_raise_is_more_than_an_eighth(fee_wei: int) -> None:
    assert (raised(fee_wei) - fee_wei) * 8 > fee_wei


def test_a_tip_is_no_more_than_recent_blocks_paid() -> None:
    paid = [0, 3_000_000, 2_000_000]
    assert bounded_tip(40 * 10**9, paid, 5_000_000) == 3_000_000
    assert bounded_tip(2_500_000, paid, 5_000_000) == 2_500_000


def test_after_empty_blocks_the_usual_tip_is_paid() -> None:
    assert bounded_tip(40 * 10**9, [0, 0], 0) == USUAL_TIP_WEI
    assert bounded_tip(40 * 10**9, [], 0) == USUAL_TIP_WEI
    assert bounded_tip(5, [0, 0], 0) == 5


def test_without_word_of_recent_blocks_a_tip_is_no_more_than_the_base_fee() -> None:
    assert bounded_tip(40 * 10**9, None, 5_000_000) == 5_000_000
    assert bounded_tip(40 * 10**9, None, 7) == USUAL_TIP_WEI
