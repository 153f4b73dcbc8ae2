"""Structured logs without secrets: one line per event, JSON where no terminal reads it (security A-57).

A redactor by name and by type sees every line, ours and the libraries', before it is written: what a known name holds,
what is a `Secret`, and what looks like a bearer token, a payment header or a key never gets out. Tracebacks carry no
local variables. What this module does not do: decide what is worth a line.

Lines of requests are gathered and written together (`Lines`): they come by the ten thousand in a second.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import time
from contextlib import suppress
from functools import lru_cache
from select import PIPE_BUF
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.keys.keyring import Secret
from tollkeeper.core.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

REDACTED: Final = "[redacted]"
FLUSH_SECONDS: Final = 0.2
_WAITING_MAX: Final = 1000  # lines, some 200 KB
_REMEMBERED_LENGTH: Final = 256  # of a path
_DEPTH_MAX: Final = 6
# Compared without case, `-` and `_`; a name that ends with one of these counts too (`x-payment`, `signerKey`).
_SECRET_NAMES: Final = (
    "authorization",
    "cookie",
    "credittoken",
    "key",
    "keys",
    "managementtoken",
    "password",
    "payment",
    "paymentpayload",
    "privatekey",
    "rawtransaction",
    "rpcurl",
    "rpcurls",
    "secret",
    "signature",
    "token",
)
_FIRST: Final = ("timestamp", "level", "logger", "event")
_SAFE_NAMES: Final = frozenset({"paymentkey", "idempotencykey"})
_SECRET_TEXT: Final = re.compile(
    r"eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)*[A-Za-z0-9+/=]*"  # a JWT, or base64 of a JSON object: a payment header
    r"|tkr_[A-Za-z0-9_-]{20,}"  # a refresh token
    r"|(?i:bearer)\s+[^\s\"',]+"
    r"|0x[0-9a-fA-F]{66,}"  # longer than a hash: a signature, calldata, a raw transaction
    r"|(?<=[?&])[A-Za-z0-9_-]{1,64}=[^\s\"'&#]+"  # the query of a URL
    r"|(?<=://)[^\s\"'/@]+:[^\s\"'/@]+(?=@)"  # the credentials of a URL
)


def redact_text(text: str) -> str:
    """The text without what looks like a secret."""
    return _SECRET_TEXT.sub(REDACTED, text)


def is_secret_name(name: str) -> bool:
    """Tell whether a field of this name holds a secret."""
    bare = name.lower().replace("_", "").replace("-", "")
    return bare not in _SAFE_NAMES and bare.endswith(_SECRET_NAMES)


def redact(value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - whatever is logged
    """The value as it may be written."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, bool | int | float) or value is None:
        return value
    if isinstance(value, bytes | bytearray | Secret) or depth >= _DEPTH_MAX:
        return REDACTED
    if isinstance(value, dict):
        return {
            redact_text(str(name)): REDACTED if is_secret_name(str(name)) else redact(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [redact(inner, depth + 1) for inner in value]
    return redact_text(str(value))


def redact_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The structlog processor that every line passes last."""
    names = (*(name for name in _FIRST if name in event), *(name for name in event if name not in _FIRST))
    return {name: REDACTED if is_secret_name(name) else redact(event[name]) for name in names}


def printable_event(_logger: object, _method: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """The structlog processor of lines that go to a terminal; a traceback keeps its line ends."""
    shown: dict[str, Any] = {}
    for name, value in event.items():
        kept = "\n" if name in {"exception", "stack"} else ""
        shown[printable(name)] = printable(value, kept) if isinstance(value, str) else value
    return shown


class Lines(logging.StreamHandler[TextIO]):
    """Output of all lines. Lines of requests may wait for FLUSH_SECONDS, but no other line overtakes them.

    Lines that wait are written at the process's end too; only a process that is killed loses them.
    """

    def __init__(self, stream: TextIO, *, is_json: bool) -> None:
        super().__init__(stream)
        self._is_json = is_json
        self._waiting: list[str] = []

    def request(self, logger: str, method: str, path: str, status: int, duration_ms: int, request_id: str) -> bool:
        """Write what structlog would of this request, at a twentieth of the cost; False where a person reads along.

        Nothing but the path needs quoting or can hold a secret.
        """
        if not self._is_json:
            return False
        now_ns = time.time_ns()
        self._waiting.append(
            f'{{"timestamp": "{_second(now_ns // 1_000_000_000)}.{now_ns // 1000 % 1_000_000:06d}Z", "level": "info", '
            f'"logger": "{logger}", "event": "request", "method": "{method}", "path": {_quoted(path)}, '
            f'"status": {status}, "duration_ms": {duration_ms}, "request_id": "{request_id}"}}\n'
        )
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)
        elif len(self._waiting) >= _WAITING_MAX:
            self.flush()
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write the lines that wait, then this record."""
        self._write()
        super().emit(record)

    def flush(self) -> None:
        """Write the lines that wait."""
        self.acquire()
        try:
            self._write()
        finally:
            self.release()
        super().flush()

    def _write(self) -> None:
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            with suppress(OSError, ValueError):  # nobody reads any more: no reason to fail a request
                piece = ""
                for line in waiting:
                    if len(piece) + len(line) > PIPE_BUF:
                        self._write_whole(piece)
                        piece = ""
                    piece += line
                self._write_whole(piece)

    def _write_whole(self, lines: str) -> None:
        """In one write of no more than a pipe takes at once: several processes may write to the same one."""
        self.stream.write(lines)
        self.stream.flush()


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _quoted(path: str) -> str:
    # Long paths are quoted anew each time, so that what a caller invents cannot fill the memory of the cache.
    return _remembered_quoted(path) if len(path) <= _REMEMBERED_LENGTH else json.dumps(redact_text(path))


@lru_cache(maxsize=1024)
def _remembered_quoted(path: str) -> str:
    return json.dumps(redact_text(path))


def configure_logs(level: LogLevel, form: LogFormat, stream: TextIO | None = None, *, colours: bool = False) -> None:
    """Send every log of this process, the libraries' too, to `stream` (stderr unless given)."""
    stream = sys.stderr if stream is None else stream
    as_json = form is LogFormat.JSON or (form is LogFormat.AUTO and not stream.isatty())
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *before,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    renderers: tuple[structlog.typing.Processor, ...] = (
        (structlog.processors.JSONRenderer(),)
        if as_json
        else (
            printable_event,
            structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback),
        )
    )
    handler = Lines(stream, is_json=as_json)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact_event,
                *renderers,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())
    # Libraries say too much below a warning, and their lines name what ours leave out.
    for library in ("uvicorn", "aiohttp", "asyncio", "litestar"):
        logging.getLogger(library).setLevel(logging.WARNING)
