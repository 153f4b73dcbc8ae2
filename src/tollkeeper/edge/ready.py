"""Answers that are kept whole: of many equal ones only the date, the request id and a timestamp differ (performance).

Everything around the request id is made once for each millisecond in which the answer is sent, so that neither is ever
older than the answer. Decides nothing; who keeps such an answer knows when it still holds.
"""

from __future__ import annotations

from collections.abc import Callable

from tollkeeper.api import new_request_id_at
from tollkeeper.edge.call import END_OF_HEAD, head_lines


class ReadyAnswer:
    """The whole answer to requests that are not HEAD and leave their connection open."""

    __slots__ = ("_after", "_before", "_lines", "_made_ms", "_make_body", "status")

    def __init__(self, status: int, lines: bytes, make_body: Callable[[int], bytes]) -> None:
        """`lines` as for `InboundCall.answer`; `make_body` gives the body of an answer at so many ms of the epoch."""
        self.status = status
        self._lines = lines
        self._make_body = make_body
        self._made_ms = -1
        self._before = self._after = b""

    def at(self, now_ms: int, lines: bytes = b"") -> tuple[str, bytes]:
        """The request id and all bytes of one answer, with header lines of its own."""
        if now_ms != self._made_ms:
            self._make(now_ms)
        request_id = new_request_id_at(now_ms)
        shown = b"%b\r\n%b" % (request_id.encode(), lines[:-2]) if lines else request_id.encode()
        return request_id, b"%b%b%b" % (self._before, shown, self._after)

    def _make(self, now_ms: int) -> None:
        body = self._make_body(now_ms)
        self._before = head_lines(self.status, self._lines, len(body), now_ms // 1000)
        self._after = END_OF_HEAD + body
        self._made_ms = now_ms
