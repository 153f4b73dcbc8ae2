"""How many requests somebody may make in a time, and what the answer says of it (contract 4.2, 9).

GCRA: of each key one integer is kept, the time at which everything that it has done would be paid off at the steady
rate. A burst of a whole window's requests is allowed at once. The table is bounded: the key that was counted longest
ago gives way. Times are nanoseconds of a monotonic clock, passed in. Knows no request and no address.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from tollkeeper.core.api.errors import ApiError, Code

KEYS_MAX: Final = 50_000
_SECOND_NS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`requests` in any `window_seconds`; 0 requests: there is no limit. `name` stands in the headers."""

    name: str
    requests: int
    window_seconds: int = 60


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Requests per minute; 0: no limit. At gates only those that are unpaid or refused, by address.

    `api` of an address and `wallet` of a bearer's wallet under `/api`; `login` of an address that logs in.
    """

    unpaid: int = 600
    api: int = 600
    wallet: int = 600
    login: int = 60


@dataclass(frozen=True, slots=True)
class RateStanding:
    """How a key stands: whether it may go on, how many more requests at once, seconds until it may do all again.

    `wait_seconds` is when it may do one more; 0 where it may now.
    """

    is_allowed: bool
    remaining: int
    reset_seconds: int
    wait_seconds: int


class RateLimiter:
    """The standing of every key under one rate."""

    def __init__(self, rate: Rate, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self.paid_off_ns: dict[str, int] = {}  # by key, in the order in which they were counted last
        self._window_ns = rate.window_seconds * _SECOND_NS
        self.rate = rate
        self.allow(rate.requests)

    def allow(self, requests: int) -> None:
        """Allow so many from now on. What a key owes is a share of the window, and stays that share."""
        self.rate = replace(self.rate, requests=requests)
        self._each_ns = self._window_ns // requests if requests else 0

    def __len__(self) -> int:
        """Return how many keys are remembered."""
        return len(self.paid_off_ns)

    def standing(self, key: str, now_ns: int) -> RateStanding:
        """Return how the key stands, without counting anything."""
        if not self._each_ns:
            return RateStanding(is_allowed=True, remaining=0, reset_seconds=0, wait_seconds=0)
        owed_ns = max(0, self.paid_off_ns.get(key, 0) - now_ns)
        free_ns = self._window_ns - owed_ns
        return RateStanding(
            is_allowed=free_ns >= self._each_ns,
            remaining=max(0, free_ns // self._each_ns),
            reset_seconds=_seconds(owed_ns),
            wait_seconds=_seconds(max(0, self._each_ns - free_ns)),
        )

    def is_over(self, key: str, now_ns: int) -> bool:
        """Return True if the key may make no more requests now."""
        paid_off_ns = self.paid_off_ns.get(key)
        return paid_off_ns is not None and paid_off_ns - now_ns + self._each_ns > self._window_ns

    def count(self, key: str, now_ns: int) -> tuple[int, int]:
        """The key made a request; one over the limit counts too, but nobody owes more than a window.

        Returns how many more it may make at once, and seconds until it may make all again; no limit: zeros.
        """
        if not self._each_ns:
            return 0, 0
        paid_off_ns = min(max(self.paid_off_ns.pop(key, 0), now_ns) + self._each_ns, now_ns + self._window_ns)
        if len(self.paid_off_ns) >= self._keys_max:
            del self.paid_off_ns[next(iter(self.paid_off_ns))]
        self.paid_off_ns[key] = paid_off_ns
        owed_ns = paid_off_ns - now_ns
        return (self._window_ns - owed_ns) // self._each_ns, _seconds(owed_ns)

    def forgive(self, key: str) -> None:
        """Take one counted request back."""
        if key in self.paid_off_ns:
            self.paid_off_ns[key] -= self._each_ns

    def take(self, key: str, now_ns: int) -> RateStanding:
        """Counts a request that the limit allows, and says how the key stands after it; another is not counted."""
        before = self.standing(key, now_ns)
        if not before.is_allowed:
            return before
        self.count(key, now_ns)
        after = self.standing(key, now_ns)
        return RateStanding(
            is_allowed=True, remaining=after.remaining, reset_seconds=after.reset_seconds, wait_seconds=0
        )


def rate_headers(rate: Rate, standing: RateStanding) -> dict[str, str]:
    """`RateLimit-Policy` and `RateLimit` (draft-ietf-httpapi-ratelimit-headers)."""
    return {
        "RateLimit-Policy": f'"{rate.name}";q={rate.requests};w={rate.window_seconds}',
        "RateLimit": f'"{rate.name}";r={standing.remaining};t={standing.reset_seconds}',
    }


def rate_limited(rate: Rate, standing: RateStanding) -> ApiError:
    """The refusal of a request over the limit, with `Retry-After`."""
    wait_seconds = max(1, standing.wait_seconds)
    return ApiError(
        Code.RATE_LIMITED,
        f"too many requests: {rate.requests} in {rate.window_seconds} seconds are allowed",
        details={"limit": rate.name, "retryAfterSeconds": wait_seconds},
        headers={"Retry-After": str(wait_seconds), **rate_headers(rate, standing)},
    )


def _seconds(duration_ns: int) -> int:
    """Whole seconds, rounded up."""
    return -(-duration_ns // _SECOND_NS)
