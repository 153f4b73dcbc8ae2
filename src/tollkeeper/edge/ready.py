"""Answers that are kept whole: of many equal ones only the date, the request id and a timestamp differ (performance).

Everything around the end of the request id is made once for each millisecond in which the answer is sent, so that
neither is ever older than the answer. Decides nothing; who keeps such an answer knows when it still holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tollkeeper.api import clock_ms, new_request_id_ends, request_id_start
from tollkeeper.edge.call import END_OF_HEAD, head_lines

ID_ENDS: Final[list[bytes]] = []  # ends of request ids, each to be taken once; `make` brings more
_ENDS_MIN: Final = 1024  # more than most milliseconds have time for


class ReadyAnswer:
    """The whole answer to requests that are not HEAD and leave their connection open.

    It is `before`, one of ID_ENDS and `after`, which hold from `since` until `until` (in seconds of the epoch). At any
    other time, and where no end is left, whoever sends it calls `make` first. The request id is `id_start` and the end.
    """

    __slots__ = ("_lines", "_make_body", "after", "before", "id_start", "since", "status", "until")

    def __init__(self, status: int, lines: bytes, make_body: Callable[[int], bytes]) -> None:
        """`lines` as for `InboundCall.answer`; `make_body` gives the body of an answer at so many ms of the epoch."""
        self.status = status
        self.before = self.after = b""
        self.id_start = ""
        self.since = self.until = 0.0
        self._lines = lines
        self._make_body = make_body

    def make(self) -> None:
        """The answer of this millisecond."""
        now_ms = clock_ms()
        body = self._make_body(now_ms)
        self.id_start = request_id_start(now_ms)
        self.before = head_lines(self.status, self._lines, len(body), now_ms // 1000) + self.id_start.encode()
        self.after = END_OF_HEAD + body
        self.since, self.until = now_ms / 1000, (now_ms + 1) / 1000
        while len(ID_ENDS) < _ENDS_MIN:
            ID_ENDS.extend(end.encode() for end in new_request_id_ends())
