"""Records of traffic, off the hot path: counters, statistics and the request log, written in batches (contract 2).

Nothing here decides about money; what a crash loses is a count, and calls that it leaves open are marked INTERRUPTED
at the next start. Counters and statistics are exact; of the log no more rows wait to be written than LOGGED_MAX, and
of what is not paid a gate gets UNPAID_ROWS_MAX in an hour: asking costs nothing, and rows stay for days. What is beyond
is counted too, and told with the log. Rows are written a few at a time: callers wait for the writer meanwhile, and
hundreds at once would be milliseconds for one call in a hundred. What the database refuses whatever comes (a fault of
ours) is left out and told, and holds up nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.paygates.statistics import DAY_MS, HOUR_MS, RequestOutcome, latency_bucket, outcome_of_call
from tollkeeper.storage.engine.database import ConstraintError, StatementError, StorageError
from tollkeeper.storage.gateway.statistics import Counted, LoggedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from tollkeeper.core.api.errors import Code
    from tollkeeper.core.paygates.statistics import Kept
    from tollkeeper.edge.server.call import AnsweredAtOnce, InboundCall
    from tollkeeper.storage.gateway.statistics import Statistics
    from tollkeeper.storage.ledger.purchases import Purchases

INTERVAL_SECONDS: Final = 0.5
LOGGED_MAX: Final = 500
ROWS_AT_ONCE: Final = 50
UNPAID_ROWS_MAX: Final = 1000  # of a gate, an outcome and an hour
_ROWS_SECONDS: Final = 0.05  # while more rows wait than are written at once
_COUNTS_SECONDS: Final = 1.0  # after which counts do not wait for more rows
_FORGET_SECONDS: Final = 3600.0
_LOG = structlog.get_logger("tollkeeper.gateway.traffic")


class _Hour:
    """Most calls of one gate in one hour: the 402s, and those that were served; how many unpaid ones have rows.

    Served are paid calls answered with less than 400 by its target, counted by their latencies' buckets.
    """

    __slots__ = ("challenge_rows", "challenges", "hour_ms", "latencies", "refusal_rows", "until_ms")

    def __init__(self, hour_ms: int) -> None:
        self.hour_ms, self.until_ms = hour_ms, hour_ms + HOUR_MS
        self.latencies: defaultdict[int, int] = defaultdict(int)
        self.challenges = self.challenge_rows = self.refusal_rows = 0


class Traffic:
    """Counts in memory and writes every INTERVAL_SECONDS."""

    def __init__(
        self,
        purchases: Purchases,
        statistics: Statistics,
        clock_ms: Callable[[], int],
        kept: Kept,
    ) -> None:
        self._purchases = purchases
        self._ledger = purchases.ledger
        self._statistics = statistics
        self._clock_ms = clock_ms
        self._kept = kept
        self._counts: dict[int, list[int]] = {}
        self._outcomes: Counter[tuple[int, int, RequestOutcome]] = Counter()
        self._latencies: Counter[tuple[int, int, int]] = Counter()
        self._requests: list[LoggedRequest] = []
        self._logged: Counter[int] = Counter()  # rows that were taken since counts were written, by gate
        self._hours: dict[int, _Hour] = {}  # by gate, of the hour that is
        self.has_room = True  # for more rows of the log, until some are written
        self._tried: list[Counted] = []  # to be written; of the last of them nobody knows whether it is
        self.not_logged = 0  # of all that was counted, since the start
        self.refused_parts = 0  # rows, or a gate's counts, that the database would not take, since the start
        self._next_forgetting = 0.0
        self._is_forgetting_late = False  # and it was told

    def _of(self, gate_id: int) -> list[int]:
        counts = self._counts.get(gate_id)
        if counts is None:
            counts = self._counts[gate_id] = [0, 0, 0]
        return counts

    def challenged(self, gate_id: int, call: InboundCall | AnsweredAtOnce) -> None:
        """A 402 was answered to a request without payment, or with one that is used up."""
        now_ms = self._clock_ms()
        hour = self._hour(gate_id, now_ms)
        hour.challenges += 1
        if self.has_room and hour.challenge_rows < UNPAID_ROWS_MAX:
            hour.challenge_rows += 1
            duration_us = (time.perf_counter_ns() - call.started_ns) // 1000
            outcome = RequestOutcome.CHALLENGED
            row = call.request_id, gate_id, now_ms, call.method, 402, outcome, None, duration_us, None
            self._log(LoggedRequest(*row))

    def _gather(self) -> None:
        """Count what the hours counted as everything else."""
        now_ms = self._clock_ms()
        for gate_id, hour in self._hours.items():
            self._take(gate_id, hour)
        self._hours = {gate_id: hour for gate_id, hour in self._hours.items() if hour.until_ms > now_ms}

    def _log(self, request: LoggedRequest) -> None:
        self._requests.append(request)
        self._logged[request.gate_id] += 1
        self.has_room = len(self._requests) < LOGGED_MAX

    def refused(self, gate_id: int, call: InboundCall, error: ApiError) -> None:
        """Something else was answered, and nothing was served."""
        self._note(gate_id, call, error.status, RequestOutcome.REFUSED, error.code.value, None)

    def ended(
        self,
        gate_id: int,
        call: InboundCall,
        status: int,
        purchase_id: str | None,
        code: Code | None,
        *,
        failed: bool,
    ) -> None:
        """A paid call ended with this status; `failed` where the status is the gateway's own, or the answer was cut.

        `code` says what was wrong where the target did not answer, or its answer was cut.
        """
        self._ledger.end(call.request_id, status)
        if status < 400 and not failed:
            now_ms, duration_us = self._clock_ms(), (time.perf_counter_ns() - call.started_ns) // 1000
            hour = self._hours.get(gate_id)
            if hour is None or not hour.hour_ms <= now_ms < hour.until_ms:
                hour = self._hour(gate_id, now_ms)
            hour.latencies[latency_bucket(duration_us)] += 1
            if self.has_room:
                outcome = RequestOutcome.SERVED
                row = call.request_id, gate_id, now_ms, call.method, status, outcome, None, duration_us, purchase_id
                self._log(LoggedRequest(*row))
        else:
            self._count_unserved(gate_id, call, status, purchase_id, code, failed=failed)

    def _count_unserved(
        self, gate_id: int, call: InboundCall, status: int, purchase_id: str | None, code: Code | None, *, failed: bool
    ) -> None:
        counts = self._of(gate_id)
        counts[1] += 1
        counts[2] += failed
        outcome = outcome_of_call(status, failed=failed)
        hour_ms, duration_us = self._note(gate_id, call, status, outcome, code and code.value, purchase_id)
        self._latencies[gate_id, hour_ms, latency_bucket(duration_us)] += 1

    def _hour(self, gate_id: int, now_ms: int) -> _Hour:
        """Return what counts most calls of a gate now."""
        hour = self._hours.get(gate_id)
        if hour is not None and hour.hour_ms <= now_ms < hour.until_ms:
            return hour
        if hour is not None:
            self._take(gate_id, hour)
        self._hours[gate_id] = hour = _Hour(now_ms // HOUR_MS * HOUR_MS)
        return hour

    def _take(self, gate_id: int, hour: _Hour) -> None:
        """Count what this hour counted, once; how many rows it has stays known."""
        served = sum(hour.latencies.values())
        for number, outcome in ((hour.challenges, RequestOutcome.CHALLENGED), (served, RequestOutcome.SERVED)):
            if number:
                self._outcomes[gate_id, hour.hour_ms, outcome] += number
        for bucket, calls in hour.latencies.items():
            self._latencies[gate_id, hour.hour_ms, bucket] += calls
        if hour.challenges or served:
            counts = self._of(gate_id)
            counts[0] += hour.challenges
            counts[1] += served
        hour.challenges = 0
        hour.latencies.clear()

    def _note(
        self,
        gate_id: int,
        call: InboundCall,
        status: int,
        outcome: RequestOutcome,
        code: str | None,
        purchase_id: str | None,
    ) -> tuple[int, int]:
        now_ms = self._clock_ms()
        hour_ms = now_ms // HOUR_MS * HOUR_MS
        duration_us = (time.perf_counter_ns() - call.started_ns) // 1000
        self._outcomes[gate_id, hour_ms, outcome] += 1
        if self.has_room and (outcome is not RequestOutcome.REFUSED or self._takes_refusal(gate_id, now_ms)):
            self._log(
                LoggedRequest(
                    call.request_id, gate_id, now_ms, call.method, status, outcome, code, duration_us, purchase_id
                )
            )
        return hour_ms, duration_us

    def _takes_refusal(self, gate_id: int, now_ms: int) -> bool:
        """Count one more row of what was refused, if the hour has any left."""
        hour = self._hour(gate_id, now_ms)
        hour.refusal_rows += 1
        return hour.refusal_rows <= UNPAID_ROWS_MAX

    def unwritten(self, gate_id: int) -> tuple[int, int, int]:
        """Challenges, calls and failures that are counted but not yet written."""
        challenges, calls, failures = self._counts.get(gate_id, (0, 0, 0))
        if gate_id in self._hours:
            hour = self._hours[gate_id]
            challenges, calls = challenges + hour.challenges, calls + sum(hour.latencies.values())
        for one in self._tried:
            tried = one.counters.get(gate_id, (0, 0, 0))
            challenges, calls, failures = challenges + tried[0], calls + tried[1], failures + tried[2]
        return challenges, calls, failures

    async def flush(self) -> None:
        """Write all that was counted; what the database did not take, or may have taken, is tried again as it was."""
        await _told(self._write(is_whole=True))

    async def _write(self, *, is_whole: bool) -> None:
        if dropped := self._ledger.take_dropped():
            _LOG.warning("ended_calls_dropped", count=dropped)
        try:
            await self._write_statistics(is_whole=is_whole)
        except Exception:  # whatever it is: credits are given back all the same
            await self._purchases.end_calls({}, self._clock_ms())
            raise
        await self._purchases.end_calls({}, self._clock_ms())

    async def _write_statistics(self, *, is_whole: bool) -> None:
        await self._write_tried(is_again=True)
        while is_whole and self._is_behind:
            await self._write_rows()
        self._gather()
        if self._outcomes:
            await self._write_counted()
        elif self._requests:
            await self._write_rows()

    @property
    def _is_behind(self) -> bool:
        """True if rows wait that go before the counts: some stay for these, which need not have rows of their own."""
        return not self._tried and len(self._requests) > ROWS_AT_ONCE

    async def _write_tried(self, *, is_again: bool = False) -> None:
        """Write what is tried. `is_again`: it was before, and nobody knows whether its last part is written."""
        refused, why = 0, ""
        try:
            while self._tried:
                one, parts = self._tried[-1], list[Counted]()
                try:
                    await self._statistics.add(one, is_again=is_again)
                except ApiError:
                    raise
                except Exception as error:  # no part of it is written, and each is tried by itself
                    if isinstance(error, StatementError) and not isinstance(error, ConstraintError):
                        raise  # whatever is written: it waits for the schema
                    parts = _parts(one)
                    if not parts:
                        refused, why = refused + 1, repr(error)
                self._tried[-1:] = parts
                is_again = False
        finally:
            if refused:
                self.refused_parts += refused
                _LOG.error("request_log_refused", count=refused, error=why)

    async def _write_counted(self) -> None:
        counters = {gate_id: (one[0], one[1], one[2]) for gate_id, one in self._counts.items()}
        not_logged = self._not_in_the_log()
        self._tried = [Counted(counters, self._outcomes, self._latencies, self._next_rows(), not_logged)]
        self._counts, self._outcomes, self._latencies, self._logged = {}, Counter(), Counter(), Counter()
        if not_logged:
            count = sum(not_logged.values())
            self.not_logged += count
            _LOG.info("requests_not_logged", count=count)
        await self._write_tried()

    async def _write_rows(self) -> None:
        """Some more of the log."""
        self._tried = [Counted({}, {}, {}, self._next_rows(), {})]
        await self._write_tried()

    def _next_rows(self) -> list[LoggedRequest]:
        """Those that wait longest."""
        rows, self._requests = self._requests[:ROWS_AT_ONCE], self._requests[ROWS_AT_ONCE:]
        self.has_room = True
        return rows

    def _not_in_the_log(self) -> dict[tuple[int, int], int]:
        """Return how many of the counted requests have no row and get none, by gate and its newest hour."""
        missing: Counter[int] = Counter()
        newest_ms: dict[int, int] = {}
        for (gate_id, hour_ms, _), count in self._outcomes.items():
            missing[gate_id] += count
            newest_ms[gate_id] = max(hour_ms, newest_ms.get(gate_id, 0))
        missing.subtract(self._logged)
        return {(gate_id, newest_ms[gate_id]): count for gate_id, count in missing.items() if count}

    async def forget(self) -> None:
        """Delete what of the log and of the hours' sums is older than its days, once an hour.

        A part of it, where that is much: the rest follows soon. Where the database does not, that is told once and
        tried again.
        """
        now = time.monotonic()
        if now < self._next_forgetting:
            return
        now_ms, is_more = self._clock_ms(), False
        log_before_ms, sums_before_ms = now_ms - self._kept.log_days * DAY_MS, now_ms - self._kept.sum_days * DAY_MS
        try:
            is_more = await self._statistics.forget(log_before_ms, sums_before_ms)
        except StorageError as error:
            if not self._is_forgetting_late:
                _LOG.warning("old_requests_not_deleted", reason=str(error))
            self._is_forgetting_late = True
            return
        except StatementError:  # a fault of ours, which is there the next time as well
            _LOG.exception("old_requests_not_deleted")
        if not is_more:
            self._next_forgetting = now + _FORGET_SECONDS
        self._is_forgetting_late = False

    async def run(self) -> None:
        """Write, and delete what is old, until cancelled; a writing that has begun is finished all the same.

        Beside each other: what is old is looked for among the lists, and an owner's may take long.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_writing())
            group.create_task(self._keep_forgetting())

    async def _keep_writing(self) -> None:
        counted_at = time.monotonic()
        while True:
            await asyncio.sleep(_ROWS_SECONDS if self._is_behind else INTERVAL_SECONDS)
            try:
                if self._is_behind and time.monotonic() < counted_at + _COUNTS_SECONDS:
                    await asyncio.shield(_told(self._write_rows()))
                else:
                    counted_at = time.monotonic()
                    await asyncio.shield(_told(self._write(is_whole=False)))
            except Exception:  # noqa: BLE001 - logged; what was counted is tried again
                _LOG.exception("flush_failed")

    async def _keep_forgetting(self) -> None:
        pause = INTERVAL_SECONDS
        while True:
            await asyncio.sleep(pause)
            begun = time.monotonic()
            try:
                await self.forget()
            except Exception:  # noqa: BLE001 - logged; it is tried again
                _LOG.exception("old_requests_not_deleted")
            pause = max(INTERVAL_SECONDS, time.monotonic() - begun)  # others list, too


async def _told(writing: Coroutine[None, None, None]) -> None:
    """Tell what the database did not take; it is tried again with the next writing."""
    try:
        await writing
    except ApiError as error:
        _LOG.warning("flush_failed", error=error.message)
    except StatementError:  # a fault of ours, which must not keep the program from ending
        _LOG.exception("flush_failed")


def _parts(counted: Counted) -> list[Counted]:
    """Return what is tried by itself where the database refused the whole; nothing where there is one thing only."""
    rows = counted.requests
    if len(rows) > 1:
        half = len(rows) // 2
        return [replace(counted, requests=rows[:half]), Counted({}, {}, {}, rows[half:], {})]
    by_gate = counted.by_gate()
    if rows and by_gate:
        return [replace(counted, requests=[]), Counted({}, {}, {}, rows, {})]
    return by_gate if len(by_gate) > 1 else []
