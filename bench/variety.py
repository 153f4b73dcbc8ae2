"""Requests that differ from each other as real ones do.

Each has a path below the gate's slug or a query of its own, a trace of its own, and one of several user agents. A
benchmark that repeats the same bytes measures what remembers bytes, which no caller sends.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

# Seven, so that each goes with each payment in time.
AGENTS: Final = (
    "curl/8.5.0",
    "python-httpx/0.28.1",
    "Python/3.12 aiohttp/3.11.11",
    "axios/1.7.9",
    "node",
    "Go-http-client/1.1",
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/131.0.0.0 Safari/537.36",
)


@dataclass(frozen=True, slots=True)
class Form:
    """What a head has beside Host, User-Agent, traceparent and X-Payment; `unpaid` is in that one's place."""

    lines: tuple[str, ...]
    unpaid: str

    def head(self, url: str, method: str, payment: str, body: bytes) -> tuple[str, str]:
        """What stands before that which differs, and behind it; an agent and a trace are still to follow."""
        parts = urlsplit(url)
        paid = f"X-Payment: {payment}" if payment else self.unpaid
        sent = (f"Content-Type: application/json\r\nContent-Length: {len(body)}",) if body else ()
        lines = "\r\n".join((f"Host: {parts.netloc}", paid, *self.lines, *sent))
        return f"{method} {parts.path}", f" HTTP/1.1\r\n{lines}\r\nUser-Agent: "


THREE: Final = Form((), "Accept: */*")
TWELVE: Final = Form(
    (
        "Accept: application/json",
        "Accept-Encoding: gzip, deflate, br",
        "Accept-Language: en-GB,en;q=0.9",
        "Cache-Control: no-cache",
        "Origin: https://shop.example",
        "Referer: https://shop.example/checkout",
        "Sec-Fetch-Mode: cors",
        "tracestate: shop=00f067aa0ba902b7",
        "X-Client-Version: 4.2.1",
    ),
    "Priority: u=1, i",
)


def below(number: int) -> str:
    """The path below the slug of a request, or the query of every third."""
    return f"/item/{number}" if number % 3 else f"?page={number}"


def request(
    url: str,
    number: int,
    payment: str = "",
    *,
    form: Form = THREE,
    method: str = "GET",
    body: bytes = b"",
    path: str | None = None,
    also: str = "",
) -> bytes:
    """The whole request of this number. `path` is in place of what differs, `also` one more header line."""
    before, behind = form.head(url, method, payment, body)
    told = before + (below(number) if path is None else path) + behind + AGENTS[number % len(AGENTS)]
    trace = f"traceparent: 00-{secrets.token_hex(16)}-{number:016x}-01"
    return "\r\n".join((told, trace, *([also] if also else ()), "", "")).encode("ascii") + body
