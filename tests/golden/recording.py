"""Exchanges as text: what was asked and what went out, byte for byte but for what is another in each run.

`recorded` compares the exchanges of a test with a file of `texts/`, or writes it where GOLDEN=rewrite is set.
Header names, their order and the order of a JSON body's members stay. A JSON body is shown in lines, which loses
nothing: it is shown so only where its compact form is what came.
"""

from __future__ import annotations

import asyncio
import base64
import difflib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from tests.described_answers import seen_raw

TEXTS: Final = Path(__file__).parent / "texts"
_WIDTH: Final = 116
_HEADERS_SHOWN: Final = 12
_VALUE_SHOWN: Final = 1000
_TIMEOUT_SECONDS: Final = 90
_MADE_ANEW: Final = "make golden writes it anew"

# What differs between two runs, in the order in which it is looked for. The first of a kind in an exchange is <kind>, a
# further one <kind 2>; but two times may be one.
_KINDS: Final = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("jwt", r"eyJ[\w-]+\.[\w-]+\.[\w-]+"),
        ("time", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"),
        ("second", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
        ("date", r"[A-Z][a-z]{2}, \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d GMT"),
        ("signature", r"\b0x[0-9a-f]{130}\b"),
        ("mac", r"(?<=signature=)[\w-]{43}|(?<=paygate=:)[\w+/]{43}="),
        ("nonce", r'(?<=nonce=")[\w-]{16}(?=")'),
        ("hash", r"\b(?:0x)?[0-9a-f]{64}\b"),
        ("transaction", r'(?<=")[A-Za-z0-9+/]{400,}={0,2}(?=")'),
        ("secret", r"\b(?:pgs|pgm|tkr)_[\w-]{20,}"),
        ("key id", r"\bpgk_[\w-]{6,}"),
        ("solana signature", r"\b[1-9A-HJ-NP-Za-km-z]{86,88}\b"),
        ("etag", r'W/"[0-9a-f]{32}"'),
        ("credit token", r"\bpur_[0-9a-f]{32}\.[\w-]{43}"),
        ("purchase", r"\bpur_[0-9a-f]{32}\b"),
        ("id", r"\b[0-9a-f]{32}\b"),
        ("unix ms", r"\b1[789]\d{11}\b"),
        ("unix", r"\b1[789]\d{8}\b"),
        ("ms", r'(?<=Ms":)\d+|(?<=Us":)\d+|(?<="p\d\d":)\d+'),
        ("balance", r'(?<="actual":")\d{9,10}(?=")'),
        ("blocks", r'(?<=more blocks","actual":)1[345]\d'),
        ("number", r'(?<="id":)\d+|(?<="paygateId":)\d+|(?<=/paygates/)\d+|(?<=gateway\.example,)\d+'),
    )
)
_ALIKE: Final = frozenset({"time", "second", "date", "unix ms", "unix", "ms", "blocks"})
_DECODED: Final = frozenset({"x-payment-response", "payment-required", "payment-response"})


@dataclass(frozen=True, slots=True)
class Said:
    """An answer as it came."""

    status: int
    lines: tuple[str, ...]
    content: bytes

    def header(self, name: str) -> str:
        """The value of a header that is there once."""
        (value,) = [line.partition(": ")[2] for line in self.lines if line.lower().startswith(name.lower() + ": ")]
        return value

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object."""
        parsed: dict[str, Any] = json.loads(self.content)
        return parsed


@dataclass(slots=True)
class Recording:
    """The exchanges of one subject. `names` are texts of this run and what stands for them."""

    names: dict[str, str]
    parts: list[str] = field(default_factory=list)

    async def ask(
        self,
        title: str,
        method: str,
        url: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: object = None,
        content: bytes | None = None,
    ) -> Said:
        """Make a request, whose body is JSON or as it is, and keep the exchange under the title."""
        sent = content if body is None else json.dumps(body).encode()
        own = {"Content-Type": "application/json"} if body is not None else {}
        given = {**own, **(headers or {})}
        said = await exchange(method, url, given, sent)
        target = urlsplit(url)._replace(scheme="", netloc="").geturl()
        shown = [f"{name}: {_shown(name, value)}" for name, value in given.items()]
        asked = [f"{method} {target}", *shown[:_HEADERS_SHOWN]]
        asked += [f"(and {len(shown) - _HEADERS_SHOWN} more)"] * (len(shown) > _HEADERS_SHOWN)
        lines = [_without_length(line) for line in said.lines] if method == "HEAD" else said.lines
        self._keep(title, asked, b"" if body is None else sent or b"", lines, said.content)
        return said

    def keep(self, title: str, head: bytes, content: bytes) -> None:
        """Keep a request that the program made."""
        self._keep(title, [], b"", head.decode("latin-1").strip().split("\r\n"), content)

    def _keep(
        self, title: str, asked: list[str], sent: bytes, lines: list[str] | tuple[str, ...], content: bytes
    ) -> None:
        seen: dict[str, list[str]] = {}
        text = "\n".join(["> " + line for line in (*asked, *_in_lines(sent))])
        told = "\n".join((*_head(lines, content), "", *_in_lines(content)))
        plain = self._plain(f"{text}\n\n{told}" if text else told, seen)
        self.parts.append(f"## {title}\n\n{plain}".rstrip() + "\n")

    def _plain(self, text: str, seen: dict[str, list[str]]) -> str:
        for name in sorted(self.names, key=len, reverse=True):
            text = text.replace(name, self.names[name])
        for kind, pattern in _KINDS:
            text = pattern.sub(partial(_numbered, seen, kind), text)
        return text


def _numbered(seen: dict[str, list[str]], kind: str, found: re.Match[str]) -> str:
    if kind in _ALIKE:
        return f"<{kind}>"
    value = found[0]
    values = seen.setdefault(kind, [])
    if value not in values:
        values.append(value)
    place = values.index(value)
    return f"<{kind} {place + 1}>" if place else f"<{kind}>"


def _without_length(line: str) -> str:
    return "content-length: <length>" if line.lower().startswith("content-length: ") else line


def _shown(name: str, value: str) -> str:
    """A payment is told by the title of its exchange."""
    try:
        is_payment = name.lower() == "x-payment" and isinstance(json.loads(base64.b64decode(value)), dict)
    except ValueError:
        is_payment = False
    return "<payment>" if is_payment else value if len(value) <= _VALUE_SHOWN else f"({len(value)} characters)"


def _head(lines: list[str] | tuple[str, ...], content: bytes) -> Iterator[str]:
    for line in lines:
        name, _, value = line.partition(": ")
        if name.lower() == "content-length" and value == str(len(content)):
            yield f"{name}: <length>"
        elif name.lower() in _DECODED:
            decoded = base64.b64decode(value, validate=True)
            assert base64.b64encode(decoded).decode() == value
            yield f"{name}: base64 of {decoded.decode()}"
        elif name.lower() == "allow":  # in any order
            yield f"{name}: {', '.join(sorted(value.split(', ')))}"
        else:
            yield line if len(value) <= _VALUE_SHOWN else f"{name}: ({len(value)} characters)"


def _in_lines(content: bytes) -> list[str]:
    """A body for a reader: JSON in lines, a short text as it is, any other by its size."""
    if not content:
        return []
    try:
        parsed = json.loads(content)
    except ValueError:
        return [line.replace("\r", "\\r") for line in content.decode("latin-1").split("\n")]
    compact = json.dumps(parsed, separators=(",", ":"), ensure_ascii=False)
    if compact.encode() != content and json.dumps(parsed).encode() != content:
        return [content.decode()]
    return _json_lines(parsed, "")


def _json_lines(value: Any, indent: str) -> list[str]:
    flat = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if not isinstance(value, dict | list) or len(flat) + len(indent) <= _WIDTH:
        return [indent + flat]
    further = indent + "  "
    named = value.items() if isinstance(value, dict) else (("", one) for one in value)
    parts = []
    for name, one in named:
        lines = _json_lines(one, further)
        label = f"{json.dumps(name, ensure_ascii=False)}:" if isinstance(value, dict) else ""
        parts.append([further + label + lines[0].strip(), *lines[1:]])
    ends = "{}" if isinstance(value, dict) else "[]"
    inner = [line for part in parts[:-1] for line in (*part[:-1], part[-1] + ",")] + parts[-1]
    return [indent + ends[0], *inner, indent + ends[1]]


async def exchange(method: str, url: str, headers: Mapping[str, str], content: bytes | None) -> Said:
    """One request on a connection of its own."""
    parts = urlsplit(url)
    target = parts._replace(scheme="", netloc="").geturl()
    lines = [f"{method} {target} HTTP/1.1", f"Host: {parts.netloc}", *(f"{n}: {v}" for n, v in headers.items())]
    lines += [] if content is None else [f"Content-Length: {len(content)}"]
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        writer.write("".join(line + "\r\n" for line in (*lines, "")).encode("latin-1") + (content or b""))
        head = await reader.readuntil(b"\r\n\r\n")
        first, *told = head.decode("latin-1")[:-4].split("\r\n")
        said = await _content(reader, method, int(first.split(" ")[1]), told)
        writer.close()
    seen_raw(method, url, head, said)
    return Said(int(first.split(" ")[1]), (first, *told), said)


async def _content(reader: asyncio.StreamReader, method: str, status: int, lines: list[str]) -> bytes:
    named = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    if method == "HEAD" or status in {204, 304}:
        return b""
    if named.get("transfer-encoding") != "chunked":
        return await reader.readexactly(int(named["content-length"]))
    parts = []
    while size := int(await reader.readline(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(parts)


@contextmanager
def recorded(subject: str, names: Mapping[str, str]) -> Iterator[Recording]:
    """What is asked within the block is what the file of the subject holds."""
    recording = Recording(dict(names))
    yield recording
    path = TEXTS / f"{subject}.txt"
    now = "\n".join(recording.parts)
    if os.environ.get("GOLDEN") == "rewrite":
        path.write_text(now)
        return
    was = path.read_text() if path.exists() else ""
    if now != was:
        lines = difflib.unified_diff(was.splitlines(), now.splitlines(), "committed", "now", n=8, lineterm="")
        pytest.fail(f"{path.name} goes out otherwise than before ({_MADE_ANEW}):\n" + "\n".join(lines), pytrace=False)
