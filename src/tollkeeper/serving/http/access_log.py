"""In front of our applications: one log line per request, and two applications on one port (contract 1).

Requests come on two ways, as ASGI or as calls of PayGates (`edge.server.call`); the line is the same.

A line names method, path, status, duration and request id; never a query, a header or an address. What this module does
not do: answer anything itself, but for what a stop cuts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from email.utils import formatdate
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import new_request_id, send_refusal
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.edge.server.call import AnsweredRequest, CallHandler
from tollkeeper.logs import Lines

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tollkeeper.serving.http.asgi import Application, Message, Receive, Send
    from tollkeeper.serving.http.traces import Spans

# Counts of a process's answers: requests by kind and status, and how long they took (contract 2, metrics). Counted on
# the way of every answer, so nothing here does more than add one to two numbers. A status is one of 600 and a latency
# one of 64 powers of two: the labels are bounded, and no gate has one.

BUCKETS: Final = 31  # by the number of bits of the microseconds; the last one holds what took nine minutes and more
_BITS: Final = 64  # no duration has more
_STATUSES: Final = 1000  # three digits


class AnswerKind:
    """Answers of one kind, since the process's start."""

    __slots__ = ("_latencies", "_requests", "sum_us")

    def __init__(self) -> None:
        self._requests = [0] * _STATUSES
        self.sum_us = 0
        self._latencies = [0] * (_BITS + 1)

    def count(self, status: int, duration_us: int) -> None:
        """One answer, which took so long; a `status` of 0 is a request whose caller left before it had one."""
        self._requests[status] += 1
        self._latencies[duration_us.bit_length()] += 1
        self.sum_us += duration_us

    @property
    def requests(self) -> Mapping[int, int]:
        """How many answers had each status."""
        return {status: count for status, count in enumerate(self._requests) if count}

    @property
    def latencies(self) -> list[int]:
        """How many answers took microseconds of so many bits."""
        return [*self._latencies[: BUCKETS - 1], sum(self._latencies[BUCKETS - 1 :])]


class RequestCounts:
    """Counts of one process. Kinds: `gate` (calls of PayGates) and `other` (everything else)."""

    def __init__(self) -> None:
        self.gate = AnswerKind()
        self.other = AnswerKind()

    def kinds(self) -> list[tuple[str, AnswerKind]]:
        """Each with its name."""
        return [("gate", self.gate), ("other", self.other)]


_NAME: Final = "tollkeeper.access"
_LOG = structlog.get_logger(_NAME)
_LEVELS: Final = logging.getLogger(_NAME)
_PATH_LENGTH: Final = 200
_QUIET_PATHS: Final = frozenset({"/healthz", "/readyz", "/hub/healthz", "/hub/readyz"})


class AccessLog:
    """The outermost application: writes the line when the answer is complete or will never be, and dates the answer."""

    def __init__(
        self,
        app: Application,
        calls: CallHandler | None = None,
        counts: RequestCounts | None = None,
        spans: Spans | None = None,
    ) -> None:
        """`calls` answers requests that do not go through ASGI; `counts` counts all, `spans` are of paid calls."""
        self._app = app
        self._counts = counts = counts or RequestCounts()
        self.calls = None if calls is None else _LoggedCalls(calls, counts, spans)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter_ns()
        status = 0
        state = scope.setdefault("state", {})

        async def send_noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = message["headers"] = list(message.get("headers", ()))
                if not any(name == b"date" for name, _ in headers):
                    headers.append((b"date", _date(int(time.time()))))
            await send(message)

        path = scope["path"]
        try:
            await self._app(scope, receive, send_noting)
        except asyncio.CancelledError:  # by a stop whose time is over; nobody waits for this task
            if status:
                raise
            await _answer_cut_short(scope, send_noting)
        finally:
            duration_us = (time.perf_counter_ns() - started) // 1000
            self._counts.other.count(status, duration_us)
            level = logging.DEBUG if path in _QUIET_PATHS else logging.INFO
            _write_line(level, scope["method"], path, status, duration_us, state.get("request_id", ""))


async def _answer_cut_short(scope: Message, send: Send) -> None:
    request_id = scope["state"].setdefault("request_id", new_request_id())
    _LOG.warning("request_cut_short", request_id=request_id, path=scope["path"])
    cut = ApiError(Code.UNAVAILABLE, "stopping; what was asked may have been done: look before asking again")
    await send_refusal(send, cut, request_id, scope["headers"])


class _LoggedCalls:
    """`inner`, with the line when a call's answer is complete or will never be."""

    def __init__(self, inner: CallHandler, counts: RequestCounts, spans: Spans | None) -> None:
        self._spans = spans
        self._counts = counts.gate
        self.place_of = inner.place_of
        self.begin = inner.begin
        self.at_once = inner.at_once
        self._is_written = _is_written(logging.INFO)
        self._inner_ended = inner.ended

    def ended(self, call: AnsweredRequest) -> None:
        """Count a call that has ended, and write its log line."""
        self._inner_ended(call)
        self._counts.count(call.status, call.duration_us)
        if self._spans is not None:
            self._spans.add_call(call)
        if self._is_written:
            path = call.head.target.partition(b"?")[0].decode("ascii")
            _write_line(logging.INFO, call.method, path, call.status, call.duration_us, call.request_id)


def _is_written(level: int) -> bool:
    """Asked before anything is made for a line: at this rate even one that nobody writes costs."""
    return _LEVELS.isEnabledFor(level) or not structlog.is_configured()


def _write_line(level: int, method: str, path: str, status: int, duration_us: int, request_id: str) -> None:
    if not _is_written(level):
        return
    duration_ms = duration_us // 1000
    path = path[:_PATH_LENGTH]
    for handler in logging.root.handlers if level == logging.INFO else ():
        if isinstance(handler, Lines) and handler.request(_NAME, method, path, status, duration_ms, request_id):
            return
    _LOG.log(
        level,
        "request",
        method=method,
        path=path,
        status=status,
        duration_ms=duration_ms,
        request_id=request_id,
    )


@lru_cache(maxsize=1)
def _date(now_seconds: int) -> bytes:
    """The value of `Date`; made once a second."""
    return formatdate(now_seconds, usegmt=True).encode()


class Mounted:
    """`inner` under a path prefix, `outer` everywhere else; `inner` sees paths without the prefix.

    The prefix has one spelling: encoded otherwise it is the outer one's to refuse.
    """

    def __init__(self, outer: Application, prefix: str, inner: Application) -> None:
        self._outer = outer
        self._prefix = prefix.encode("ascii")
        self._inner = inner

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """The ASGI entry."""
        raw_path = scope["raw_path"] if scope["type"] == "http" else b""
        if raw_path != self._prefix and not raw_path.startswith(self._prefix + b"/"):
            await self._outer(scope, receive, send)
            return
        length = len(self._prefix)
        inner = {**scope, "path": scope["path"][length:] or "/", "raw_path": raw_path[length:] or b"/"}
        await self._inner(inner, receive, send)
