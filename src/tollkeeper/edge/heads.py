"""Request heads that were read and judged before: the same bytes need no second reading (performance).

Reading a head is a function of its bytes, where a connection stands between two requests. A client that keeps its
connection sends the same head again and again, so parsing, checking and encoding it are done once. Only whole requests
without a body that arrived alone are remembered, in a bounded table; a fault elsewhere can therefore cost time, never
correctness. Knows no connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from tollkeeper.core.forwarding import Header

REMEMBERED_MAX: Final = 2048
REMEMBERED_SIZE_BYTES: Final = 4096


@dataclass(slots=True)
class RequestHead:
    """A checked head. `header` has each header once, names in lower case; nobody changes it.

    `content_length` None: a chunked body. `notes` is the handler's: what he made of this head, which is the same for
    every request with it.
    """

    method: str
    target: bytes
    headers: list[Header] = field(repr=False)
    header: dict[bytes, bytes] = field(repr=False)
    content_length: int | None
    notes: Any = field(default=None, repr=False)


def read_head(method: bytes, target: bytes, headers: list[Header]) -> RequestHead:
    """The head in these parts, which `check_request_head` has let through."""
    header = dict(headers)
    length = None if b"transfer-encoding" in header else int(header.get(b"content-length", b"0"))
    return RequestHead(method.decode("ascii"), target, headers, header, length)


class RememberedHeads:
    """Heads by their bytes, the oldest forgotten first. One for all connections of a listener."""

    def __init__(self) -> None:
        self._heads: dict[bytes, RequestHead] = {}
        self.get = self._heads.get

    def remember(self, data: bytes, head: RequestHead) -> None:
        """`data` is the whole request whose head this is."""
        if len(data) > REMEMBERED_SIZE_BYTES:
            return
        if len(self._heads) >= REMEMBERED_MAX:
            del self._heads[next(iter(self._heads))]
        self._heads[data] = head
