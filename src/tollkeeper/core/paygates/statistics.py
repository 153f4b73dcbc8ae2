"""Statistics of a gate's traffic for its owner: outcomes, hours, latencies as a histogram (contract 2).

Latencies are kept in buckets whose bounds grow by about a fifth, so that a percentile of any span of time is known to
within that, whatever the number of calls. Money and credits are summed from the ledger, not counted here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.limits import JOURNAL_DAYS, REQUEST_LOG_DAYS, STATISTICS_DAYS
from tollkeeper.core.usdc import format_usdc

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.json_types import JsonObject

HOUR_MS: Final = 3_600_000
DAY_MS: Final = 24 * HOUR_MS
CLIENT_GONE_STATUS: Final = 499  # recorded for a paid call whose client went away; nobody is sent it
BUCKETS_MAX: Final = 1000  # of an answer
_PERCENTILES: Final = (("p50", 500), ("p95", 950), ("p99", 990))
_DEFAULT_DAYS: Final = 7
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_STEPS: Final = 4  # buckets from one power of two to the next


class RequestOutcome(StrEnum):
    """How a request at a gate ended."""

    SERVED = "served"
    TARGET_ERROR = "targetError"  # the target's own 4xx or 5xx, passed on
    FAILED = "failed"  # the target could not be asked, or its answer not be passed on: our own status, mostly 502
    CLIENT_GONE = "clientGone"
    CHALLENGED = "challenged"  # a 402 to a request that showed no payment, or one that is used up
    REFUSED = "refused"  # anything else that was not served


CALLS: Final = (RequestOutcome.SERVED, RequestOutcome.TARGET_ERROR, RequestOutcome.FAILED, RequestOutcome.CLIENT_GONE)


def outcome_of_call(status: int, *, failed: bool) -> RequestOutcome:
    """The outcome of a paid call that ended with this status."""
    if failed:
        return RequestOutcome.FAILED
    if status == CLIENT_GONE_STATUS:
        return RequestOutcome.CLIENT_GONE
    return RequestOutcome.SERVED if status < 400 else RequestOutcome.TARGET_ERROR


def latency_bucket(microseconds: int) -> int:
    """The bucket of a latency."""
    if microseconds < _STEPS:
        return max(0, microseconds)
    power = microseconds.bit_length() - 1
    return (power - 1) * _STEPS + ((microseconds >> (power - 2)) & (_STEPS - 1))


def bucket_bound_us(bucket: int) -> int:
    """The largest latency of a bucket, in microseconds."""
    if bucket < _STEPS:
        return bucket
    power, step = bucket // _STEPS + 1, bucket % _STEPS
    return ((_STEPS + step + 1) << (power - 2)) - 1


def percentile_us(histogram: Mapping[int, int], share_per_mille: int) -> int | None:
    """The latency that so many of a thousand calls did not exceed, in microseconds; None without calls."""
    wanted = share_per_mille * sum(histogram.values())
    seen = 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if 1000 * seen >= wanted:
            return bucket_bound_us(bucket)
    return None


@dataclass(frozen=True, slots=True)
class Kept:
    """For how many days the request log's rows, the hours' sums and single calls are kept; 0 calls: for ever."""

    log_days: int = REQUEST_LOG_DAYS
    sum_days: int = STATISTICS_DAYS
    journal_days: int = JOURNAL_DAYS


@dataclass(frozen=True, slots=True)
class Span:
    """The time that is asked about, in whole buckets of `size_ms`: from `from_ms` up to and without `to_ms`."""

    from_ms: int
    to_ms: int
    size_ms: int

    def start_of(self, when_ms: int) -> int:
        """The beginning of the bucket that this moment lies in."""
        return when_ms // self.size_ms * self.size_ms


def parse_time(query: Mapping[str, str], name: str, default_ms: int) -> int:
    """Milliseconds since the epoch of an ISO 8601 time or day, UTC unless it says otherwise.

    Raises: INVALID_PARAMETER.
    """
    text = query.get(name)
    if text is None:
        return default_ms
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        milliseconds = -1
    else:
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        milliseconds = (aware - _EPOCH) // timedelta(milliseconds=1)
    if not 0 <= milliseconds < 2**47:
        raise invalid(name, f"{name} must be a time such as 2026-01-31T12:00:00Z, or a day")
    return milliseconds


def parse_span(query: Mapping[str, str], now_ms: int) -> Span:
    """`from`, `to` (ISO 8601 times or days; default: the last seven days up to now) and `bucket` (hour or day).

    Widened to whole buckets of UTC. Raises: INVALID_PARAMETER.
    """
    size_ms = {"hour": HOUR_MS, "day": DAY_MS}.get(query.get("bucket", "day"))
    if size_ms is None:
        raise invalid("bucket", "bucket must be hour or day")
    from_ms = parse_time(query, "from", -1)
    to_ms = parse_time(query, "to", now_ms)
    from_ms = to_ms - _DEFAULT_DAYS * DAY_MS if from_ms < 0 else from_ms
    if from_ms >= to_ms:
        raise invalid("from", "from must be before to")
    span = Span(from_ms // size_ms * size_ms, -(-to_ms // size_ms) * size_ms, size_ms)
    if (span.to_ms - span.from_ms) // size_ms > BUCKETS_MAX:
        raise ApiError(
            Code.INVALID_PARAMETER,
            f"that is more than {BUCKETS_MAX} buckets: ask for days, or for less time",
            details={"field": "from"},
        )
    return span


@dataclass(slots=True)
class Sums:
    """Sums of one bucket, or of all."""

    outcomes: dict[RequestOutcome, int] = field(default_factory=dict)
    purchases: int = 0
    revenue_micro: int = 0
    latencies: dict[int, int] = field(default_factory=dict)

    def add(self, other: Sums) -> None:
        """Add what another one counted."""
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count
        for bucket, count in other.latencies.items():
            self.latencies[bucket] = self.latencies.get(bucket, 0) + count
        self.purchases += other.purchases
        self.revenue_micro += other.revenue_micro

    def body(self) -> JsonObject:
        """Return the JSON of the answer: revenue in USDC, latencies of calls in microseconds."""
        calls = {outcome.value: self.outcomes.get(outcome, 0) for outcome in CALLS}
        return {
            "revenue": format_usdc(self.revenue_micro),
            "purchases": self.purchases,
            "calls": {"total": sum(calls.values()), **calls},
            "challenges": self.outcomes.get(RequestOutcome.CHALLENGED, 0),
            "refusals": self.outcomes.get(RequestOutcome.REFUSED, 0),
            "latencyUs": {name: percentile_us(self.latencies, share) for name, share in _PERCENTILES},
        }


@dataclass(frozen=True, slots=True)
class Outstanding:
    """Credits that buyers hold and have paid for: what the owner still owes them, at what they paid."""

    credits: int
    value_micro: int

    def body(self) -> JsonObject:
        """Return the JSON of the answer: a liability, not income."""
        return {"credits": self.credits, "liability": format_usdc(self.value_micro)}


def statistics_body(
    span: Span, buckets: Mapping[int, Sums], outstanding: Outstanding, iso: Callable[[int], str]
) -> JsonObject:
    """Return the body of the answer: totals, each bucket in which something happened, and what is owed now."""
    total = Sums()
    for sums in buckets.values():
        total.add(sums)
    return {
        "from": iso(span.from_ms),
        "to": iso(span.to_ms),
        "bucket": "hour" if span.size_ms == HOUR_MS else "day",
        **total.body(),
        "outstanding": outstanding.body(),
        "data": [{"start": iso(start_ms), **buckets[start_ms].body()} for start_ms in sorted(buckets)],
    }
