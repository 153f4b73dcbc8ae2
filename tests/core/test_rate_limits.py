"""Rates: a burst, then the steady rate; what headers say; a bounded table."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import Code
from tollkeeper.core.http.rate_limits import Rate, RateLimiter, RateStanding, rate_headers, rate_limited

SECOND_NS = 1_000_000_000
RATE = Rate("api", 4, 60)


def test_a_window_of_requests_passes_at_once_and_then_one_per_share_of_the_window() -> None:
    limiter = RateLimiter(RATE)
    assert [limiter.take("a", 0).remaining for _ in range(4)] == [3, 2, 1, 0]
    over = limiter.take("a", 0)
    assert over == RateStanding(is_allowed=False, remaining=0, reset_seconds=60, wait_seconds=15)
    assert not limiter.take("a", 15 * SECOND_NS - 1).is_allowed
    assert limiter.take("a", 15 * SECOND_NS) == RateStanding(True, 0, 60, 0)
    assert limiter.is_over("a", 15 * SECOND_NS)
    assert not limiter.is_over("a", 30 * SECOND_NS)
    assert limiter.standing("a", 1000 * SECOND_NS) == RateStanding(True, 4, 0, 0)


def test_a_key_is_counted_for_itself() -> None:
    limiter = RateLimiter(RATE)
    for _ in range(5):
        limiter.take("a", 0)
    assert limiter.standing("b", 0).remaining == 4
    assert not limiter.is_over("b", 0)


def test_who_is_counted_beyond_the_limit_never_owes_more_than_a_window() -> None:
    limiter = RateLimiter(RATE)
    for _ in range(100):
        limiter.count("a", 0)
    assert limiter.is_over("a", 0)
    assert not limiter.is_over("a", 15 * SECOND_NS)


def test_who_is_counted_is_told_how_he_stands_then() -> None:
    limiter = RateLimiter(RATE)
    assert [limiter.count("a", 0) for _ in range(6)] == [(3, 15), (2, 30), (1, 45), (0, 60), (0, 60), (0, 60)]
    assert limiter.count("a", 90 * SECOND_NS) == (3, 15)
    assert RateLimiter(Rate("off", 0)).count("a", 0) == (0, 0)


def test_a_request_that_is_forgiven_was_never_made() -> None:
    limiter = RateLimiter(RATE)
    limiter.forgive("a")
    assert len(limiter) == 0
    for _ in range(1000):
        limiter.count("a", 0)
        limiter.forgive("a")
    assert limiter.standing("a", 0).remaining == 4


def test_a_rate_of_nothing_is_no_limit() -> None:
    limiter = RateLimiter(Rate("off", 0))
    for _ in range(1000):
        assert limiter.take("a", 0).is_allowed
    assert not limiter.is_over("a", 0)
    assert len(limiter) == 0


def test_the_table_is_bounded_and_who_was_counted_longest_ago_gives_way() -> None:
    limiter = RateLimiter(RATE, keys_max=3)
    for _ in range(4):
        limiter.count("a", 0)
    for name in ("b", "c", "a", "d"):
        limiter.count(name, 0)
    assert len(limiter) == 3
    assert limiter.is_over("a", 0)
    assert limiter.standing("b", 0).remaining == 4


def test_the_headers_name_policy_and_standing() -> None:
    standing = RateStanding(is_allowed=False, remaining=0, reset_seconds=60, wait_seconds=15)
    assert rate_headers(RATE, standing) == {"RateLimit-Policy": '"api";q=4;w=60', "RateLimit": '"api";r=0;t=60'}
    refusal = rate_limited(RATE, standing)
    assert (refusal.status, refusal.code) == (429, Code.RATE_LIMITED)
    assert refusal.headers == {"Retry-After": "15", **rate_headers(RATE, standing)}


@pytest.mark.parametrize("wait_seconds", [0, 1])
def test_nobody_is_told_to_come_back_at_once(wait_seconds: int) -> None:
    standing = RateStanding(is_allowed=False, remaining=0, reset_seconds=1, wait_seconds=wait_seconds)
    assert rate_limited(RATE, standing).headers["Retry-After"] == "1"


@given(
    st.integers(1, 50),
    st.integers(1, 120),
    st.lists(st.integers(0, 20 * SECOND_NS), min_size=1, max_size=200),
)
def test_no_window_ever_lets_twice_its_requests_through(requests: int, window: int, pauses: list[int]) -> None:
    limiter = RateLimiter(Rate("x", requests, window))
    now, passed = 0, []
    for pause in pauses:
        now += pause
        standing = limiter.take("a", now)
        if standing.is_allowed:
            passed.append(now)
        else:
            later = now + standing.wait_seconds * SECOND_NS
            assert limiter.standing("a", later).is_allowed
    for start in passed:
        inside = [when for when in passed if start <= when < start + window * SECOND_NS]
        assert Fraction(len(inside)) <= 2 * requests
