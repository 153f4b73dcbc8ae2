"""Outcomes, hours, latency buckets and what is told of them (contract 2)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.statistics import (
    CLIENT_GONE_STATUS,
    DAY_MS,
    HOUR_MS,
    Outstanding,
    RequestOutcome,
    Span,
    Sums,
    bucket_bound_us,
    latency_bucket,
    outcome_of_call,
    parse_span,
    percentile_us,
    statistics_body,
)

NOW_MS = 100 * DAY_MS + 5 * HOUR_MS + 17


def at(when_ms: int) -> str:
    return datetime.fromtimestamp(when_ms / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    ("status", "failed", "outcome"),
    [
        (200, False, RequestOutcome.SERVED),
        (304, False, RequestOutcome.SERVED),
        (404, False, RequestOutcome.TARGET_ERROR),
        (502, False, RequestOutcome.TARGET_ERROR),
        (502, True, RequestOutcome.FAILED),
        (CLIENT_GONE_STATUS, False, RequestOutcome.CLIENT_GONE),
    ],
)
def test_a_call_has_one_outcome(status: int, failed: bool, outcome: RequestOutcome) -> None:  # noqa: FBT001
    assert outcome_of_call(status, failed=failed) is outcome


@given(st.integers(-5, 2**50))
def test_a_bucket_holds_its_latency_within_a_quarter(microseconds: int) -> None:
    bucket = latency_bucket(microseconds)
    bound = bucket_bound_us(bucket)
    assert max(0, microseconds) <= bound <= max(3, microseconds * 5 // 4)
    assert latency_bucket(bound) == bucket
    assert latency_bucket(bound + 1) == bucket + 1


@given(st.lists(st.integers(0, 10**8), min_size=1, max_size=200), st.sampled_from([500, 950, 990, 1000]))
def test_a_percentile_is_that_of_the_latencies_within_a_quarter(latencies: list[int], share: int) -> None:
    histogram: dict[int, int] = {}
    for one in latencies:
        histogram[latency_bucket(one)] = histogram.get(latency_bucket(one), 0) + 1
    exact = next(one for place, one in enumerate(sorted(latencies), 1) if 1000 * place >= share * len(latencies))
    told = percentile_us(histogram, share)
    assert told is not None
    assert exact <= told <= max(3, exact * 5 // 4)


def test_without_calls_there_is_no_percentile() -> None:
    assert percentile_us({}, 500) is None


def test_the_last_seven_days_are_told_by_day_unless_something_else_is_asked() -> None:
    assert parse_span({}, NOW_MS) == Span(93 * DAY_MS, 101 * DAY_MS, DAY_MS)
    asked = {"from": at(HOUR_MS + 1), "to": at(2 * HOUR_MS), "bucket": "hour"}
    assert parse_span(asked, NOW_MS) == Span(HOUR_MS, 2 * HOUR_MS, HOUR_MS)


def test_a_moment_lies_in_the_bucket_that_it_began() -> None:
    span = Span(0, 2 * DAY_MS, DAY_MS)
    assert [span.start_of(moment) for moment in (0, DAY_MS - 1, DAY_MS)] == [0, 0, DAY_MS]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"bucket": "week"}, "bucket"),
        ({"from": "yesterday"}, "from"),
        ({"to": "tomorrow"}, "to"),
        ({"from": at(NOW_MS + 1)}, "from"),
        ({"from": at(0), "bucket": "hour"}, "from"),
    ],
)
def test_a_span_that_is_none_or_too_fine_is_refused_by_its_field(query: dict[str, str], field: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_span(query, NOW_MS)
    assert (caught.value.code, (caught.value.details or {})["field"]) == (Code.INVALID_PARAMETER, field)


def test_totals_are_the_sums_of_the_buckets_and_debts_are_called_so() -> None:
    first = Sums(
        {RequestOutcome.SERVED: 3, RequestOutcome.CHALLENGED: 2}, purchases=1, revenue_micro=10_000, latencies={40: 3}
    )
    second = Sums(
        {RequestOutcome.FAILED: 1, RequestOutcome.SERVED: 1, RequestOutcome.REFUSED: 4},
        revenue_micro=5,
        latencies={40: 1, 60: 1},
    )
    span = Span(0, 2 * HOUR_MS, HOUR_MS)
    body = statistics_body(span, {HOUR_MS: second, 0: first}, Outstanding(7, 70_000), str)
    assert body["calls"] == {"total": 5, "served": 4, "targetError": 0, "failed": 1, "clientGone": 0}
    assert (body["revenue"], body["purchases"], body["challenges"], body["refusals"]) == ("0.010005", 1, 2, 4)
    assert body["outstanding"] == {"credits": 7, "liability": "0.07"}
    assert [one["start"] for one in body["data"]] == ["0", str(HOUR_MS)]
    assert body["data"][0]["latencyUs"]["p50"] == bucket_bound_us(40)
    assert body["latencyUs"]["p99"] == bucket_bound_us(60)
    assert (body["from"], body["to"], body["bucket"]) == ("0", str(2 * HOUR_MS), "hour")
    assert statistics_body(Span(0, DAY_MS, DAY_MS), {}, Outstanding(0, 0), str)["bucket"] == "day"
