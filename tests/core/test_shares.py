"""Shares: no tenant gets more than half of what is left to the others, and nobody is refused the first one for long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.shares import Shares, may_take


def _as_many_as_possible(shares: Shares, tenant: str) -> int:
    while shares.take(tenant):
        pass
    return shares.held_by(tenant)


def test_one_tenant_alone_gets_a_third() -> None:
    assert _as_many_as_possible(Shares(12), "ann") == 4
    assert _as_many_as_possible(Shares(3_000_000), "ann") == 1_000_000


def test_a_later_tenant_gets_a_third_of_what_is_left() -> None:
    shares = Shares(12)
    assert [_as_many_as_possible(shares, tenant) for tenant in ("ann", "bob")] == [4, 2]
    assert shares.left == 6


def test_tenants_that_want_everything_leave_twice_as_much_as_each_of_them_has() -> None:
    shares = Shares(1_200)
    for _ in range(1_200):
        for tenant in range(10):
            shares.take(str(tenant))
    assert {shares.held_by(str(tenant)) for tenant in range(10)} == {100}
    assert shares.left == 200


def test_a_tenant_without_any_gets_the_last_one() -> None:
    shares = Shares(2)
    assert [shares.take(tenant) for tenant in ("ann", "ann", "bob", "eve")] == [True, False, True, False]


def test_nobody_takes_more_than_there_is() -> None:
    assert not may_take(0, 1, 0)
    assert not Shares(8).take("ann", 9)


def test_what_is_given_back_is_left_to_all() -> None:
    shares = Shares(12)
    assert shares.take("ann", 4)
    shares.give_back("ann", 3)
    assert (shares.left, shares.held, shares.held_by("ann")) == (11, 1, 1)
    shares.give_back("ann")
    assert (shares.left, shares.held_by("ann")) == (12, 0)
    assert shares.take("bob", 4)


def test_another_capacity_takes_nothing_away() -> None:
    shares = Shares(12)
    assert shares.take("ann", 4)
    shares.resize(4)
    assert (shares.left, shares.held_by("ann")) == (0, 4)
    assert not shares.take("bob")
    shares.resize(8)
    assert shares.take("bob")
    assert shares.left + shares.held == 8


@given(st.integers(1, 10**12), st.lists(st.tuples(st.integers(0, 5), st.integers(1, 10**12))))
def test_whatever_is_asked_for_a_tenant_that_has_some_is_never_given_more_than_half_of_what_it_leaves(
    capacity: int, asked: list[tuple[int, int]]
) -> None:
    shares = Shares(capacity)
    for tenant, amount in asked:
        if shares.take(tenant, amount):
            assert shares.held_by(tenant) <= max(1, shares.left // 2)
    assert shares.left + sum(shares.held_by(tenant) for tenant in range(6)) == capacity
    assert shares.left >= 0
