"""A transaction at a settlement's cap can always be replaced within the whole cap (security F6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.fees import raised, settlement_cap

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
