"""Structured logs without secrets: one line per event, JSON where no terminal reads it (security A-57).

A redactor by name and by type sees every line, ours and the libraries', before it is written: what a known name holds,
what is a `Secret`, and what looks like a bearer token, a payment header or a key never gets out. Tracebacks carry no
local variables. What this module does not do: decide what is worth a line.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from tollkeeper.core.configuration import LogFormat, LogLevel
from tollkeeper.core.keyring import Secret

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

REDACTED: Final = "[redacted]"
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
    """Does a field of this name hold a secret?"""
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
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if as_json
        else structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=before,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                redact_event,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.value.upper())
    # Libraries say too much below a warning, and their lines name what ours leave out.
    for library in ("uvicorn", "aiohttp", "asyncio", "litestar"):
        logging.getLogger(library).setLevel(logging.WARNING)
