"""Heads of requests, odd in one or several ways, or in none."""

from __future__ import annotations

import random
from typing import Final

NAMES: Final = [
    *[b"Accept", b"User-Agent", b"X-A", b"x-a", b"X_A", b"Cookie", b"X-Forwarded-For", b"Connection", b"connection"]
    * 3,
    *(b"Accept", b"accept", b"X-A", b"x-a", b"User-Agent", b"X_A", b"X.A", b"Cookie", b"cookie", b"X" * 65),
    *(b"Host", b"host", b"HOST", b"X_Host", b"Origin", b"Access-Control-Request-Method", b"X-Correlation-Id"),
    *(b"Connection", b"connection", b"Proxy-Connection", b"Proxy_Connection", b"Keep-Alive", b"Upgrade", b"upgrade"),
    *(b"HTTP2-Settings", b"Expect", b"TE", b"Trailer", b"Content-Length", b"content-length", b"Content_Length"),
    *(b"Transfer-Encoding", b"transfer-encoding", b"Transfer_Encoding", b"Content-Type", b"content-type"),
    *(b"X-Payment", b"x-payment", b"X_Payment", b"X.Payment", b"Payment-Signature", b"payment-signature", b"Payment"),
    *(b"X-Payment-Network", b"X-Credit-Token", b"X_Credit_Token", b"x-credit-token", b"X-Payer", b"X402-Version"),
    *(b"Authorization", b"authorization", b"Proxy-Authorization", b"X-Forwarded-For", b"x-forwarded-for"),
    *(b"X-HTTP-Method-Override", b"X-Original-URL", b"Forwarded", b"X-Request-Id", b"X%b", b"X%sA", b"!#$%&'*+-.^_`|~"),
    *(b"", b" X-A", b"X-A ", b"\tX-A", b"X A", b"X\x00A", b"X\xc3\xa9", b"X\x7f", b"X(A)", b'X"A"', b"X-A\r"),
]
VALUES: Final = [
    *[b"1", b"", b"a ", b"*/*", b"\xc3\xa9", b"keep-alive", b"Keep-Alive", b"127.0.0.1, 10.0.0.1", b"text/html"] * 3,
    *(
        b"",
        b" ",
        b"1",
        b"0",
        b"5",
        b"00",
        b"+0",
        b"0, 0",
        b"0x0",
        b"-1",
        b"9" * 19,
        b"chunked",
        b"Chunked",
        b"identity",
    ),
    *(b"gzip, chunked", b"chunked ", b"\tchunked", b"close", b"Close", b"close, x", b"keep-alive", b"Keep-Alive"),
    *(b"KEEP-ALIVE", b"keep-alive, x-payment", b"x-payment", b"X-A, host", b"upgrade", b"Upgrade, HTTP2-Settings"),
    *(
        b"h2c",
        b"websocket",
        b"WebSocket",
        b"100-continue",
        b"100-Continue ",
        b"x y",
        b"a ",
        b"a\t ",
        b" \t a",
        b"%b %s",
    ),
    *(b"a\x00b", b"a\x01b", b"a\x7fb", b"\xc3\xa9", b"\xff", b"a\rb", b"a\nb", b"a\r\n b", b"a\r\n\tb", b"a\r", b"a\n"),
    *(b"text/html", b"TEXT/HTML, */*", b"*/*", b'application/json;profile="x402-a"', b"application/json; q=0", b"null"),
    *(
        b"gw.example",
        b"gw_x",
        b"gw.example:80",
        b"[::1]:8",
        b"a b",
        b"a/b",
        b"user@a",
        b"solana",
        b"Bearer x",
        b"Basic x",
    ),
    *(b"127.0.0.1, 10.0.0.1", b"e30=", b"GET", b"POST", b"a" * 300, b"a" * 8_200, b"a" * 33_000),
]
HOSTS: Final = [
    *(b"", b"Host:gw.example\r\n", b"host: gw.example:80 \r\n", b"Host: gw_x.example\r\n", b"HOST:\tgw.example\t\r\n"),
    *(b"Host: gw.example\r\nHost: gw.example\r\n", b"Host: a\r\nhost: b\r\n", b"Host: \r\n", b"Host : gw.example\r\n"),
    *(b"X_Host: a\r\nHost: a\r\n", b"Host: gw.example, a\r\n", b"Host: gw\r\n .example\r\n", b"Host: gw.example\n"),
]
METHODS: Final = [
    *(
        b"HEAD",
        b"OPTIONS",
        b"POST",
        b"PUT",
        b"DELETE",
        b"PATCH",
        b"TRACE",
        b"QUERY",
        b"get",
        b"Get",
        b"CONNECT",
        b"PRI",
    ),
    *(b"SOURCE", b"M-SEARCH", b"DESCRIBE", b"G\x00T", b"", b"GETX", b" GET", b"\r\nGET", b"\nGET", b"\r\n\r\nGET"),
]
VERSIONS: Final = [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/1.2", b"http/1.1", b"HTTP/1.10", b"", b"HTTP/0.9"]
SPACES: Final = [b"  ", b"\t", b"", b" \t"]
LINE_ENDS: Final = [b"\n", b"\r", b"\r\r\n", b" \r\n", b"\t\r\n", b"\r\n ", b"\x00\r\n"]
HEAD_ENDS: Final = [b"\n", b"\r", b"", b" \r\n", b"\r\n\r\n", b"\r\n\n", b"\r\nX-A: 1\r\n\r\n", b"\r\n0\r\n\r\n"]
COLONS: Final = [b":", b":  ", b":\t", b" : ", b"", b"::", b":\r\n "]
MANY: Final = (30, 47, 48, 49, 99, 100, 101, 254, 255, 256, 257, 300)
PLAIN: Final = {
    "method": b"GET",
    "space": b" ",
    "space behind": b" ",
    "version": b"HTTP/1.1",
    "line": b"\r\n",
    "host": b"Host: gw.example\r\n",
    "end": b"\r\n",
}
ODD: Final = {
    "method": METHODS,
    "space": SPACES,
    "space behind": SPACES,
    "version": VERSIONS,
    "line": LINE_ENDS,
    "host": HOSTS,
    "end": HEAD_ENDS,
}


def odd_head(chosen: random.Random, targets: list[bytes]) -> bytes:
    """A head at one of these targets, whose oddness `chosen` decides."""
    part = {**PLAIN, "target": chosen.choice(targets)}
    for name in chosen.sample([*ODD], chosen.choice((0, 0, 0, 1, 1, 2))):
        part[name] = chosen.choice(ODD[name])
    lines = [part["host"]]
    for _ in range(chosen.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        lines.append(_line(chosen))
        if not chosen.randrange(12):
            lines.append(lines[-1])  # there twice, as it is
        if not chosen.randrange(12):
            lines.append(lines[-1].swapcase())
    if not chosen.randrange(20):
        lines += [b"X-%d: %d\r\n" % (number, number) for number in range(chosen.choice(MANY) - len(lines))]
    chosen.shuffle(lines)
    first = part["method"], part["space"], part["target"], part["space behind"], part["version"], part["line"]
    return b"".join([*first, *lines, part["end"]])


def _line(chosen: random.Random) -> bytes:
    colon, end = b": ", b"\r\n"
    if not chosen.randrange(12):
        colon = chosen.choice(COLONS)
    if not chosen.randrange(12):
        end = chosen.choice(LINE_ENDS)
    name, value = chosen.choice(NAMES), chosen.choice(VALUES)
    return b"".join((name, colon, value, end))
