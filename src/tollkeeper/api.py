"""Parts common to all our answers: envelope, error body, request id, bearer and body reading (spec 4, 5, 7).

`Shell` is the outermost ASGI layer of gateway and hub: one request id, the headers of contract 1 on every answer, the
head's size limit, and the one place where a refusal (`ApiError`) or a fault (anything else) becomes specification 7's
body. It knows no route.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
import structlog
from litestar import Request, Response
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from msgspec import Struct

from tollkeeper.core.api.bodies import Pagination
from tollkeeper.core.api.csv_table import MEDIA_TYPE
from tollkeeper.core.api.errors import ApiError, Code, ErrorType, invalid, missing
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.limits import HISTORY_LIMIT_MAX, JSON_BODY_SIZE_BYTES, LIST_LIMIT_DEFAULT, OFFSET_MAX
from tollkeeper.core.limits import REQUEST_HEAD_SIZE_BYTES as HEAD_MAX

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

    from tollkeeper.core.json_types import JsonMapping, JsonObject

API_VERSION: Final = "v1"
JSON: Final = b"application/json"
# The name that a caller gives a request. An answer that has another one is of another request: a connection on which
# something sent an answer twice looks like any other.
CORRELATION_ID: Final = b"x-correlation-id"
# "//", "/" and "\\" encoded, the unreserved characters of RFC 3986 encoded, and a "/" at the end.
_OTHER_SPELLING: Final = re.compile(
    rb"//|%(?:2[def]|5[cf]|7e|3[0-9]|[46][1-9a-f]|[57][0-9a])|\A/?api/.*/\Z", re.IGNORECASE
)
_CORRELATION: Final = re.compile(rb"[A-Za-z0-9._-]{1,64}")
_LOG = structlog.get_logger("tollkeeper.api")
_ENCODE = msgspec.json.Encoder().encode

Headers = list[tuple[bytes, bytes]]
HttpRequest: TypeAlias = Request[Any, Any, Any]


def clock_ms() -> int:
    """Now, in milliseconds since the epoch: the program's one reading of the wall clock."""
    return time.time_ns() // 1_000_000


@lru_cache(maxsize=16)
def iso(when_ms: int) -> str:
    """ISO 8601 text, UTC, of milliseconds since the epoch."""
    return datetime.fromtimestamp(when_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


PROCESS_MARK: Final = os.urandom(4).hex()  # which process made an id


_END_BYTES: Final = 6
_ENDS_AT_ONCE: Final = 512  # so many to a system call
_unused_ends: list[str] = []


def new_request_id() -> str:
    """32 hex digits: twelve of the time in ms, so that rows named by it are written in order, then PROCESS_MARK."""
    return new_request_id_at(time.time_ns() // 1_000_000)


def new_request_id_at(now_ms: int) -> str:
    """Return a new request id as `new_request_id` does, for a caller that knows the time."""
    try:
        return _request_id_start(now_ms) + _unused_ends.pop()
    except IndexError:
        return _request_id_start(now_ms) + _first_of_new_ends()


@lru_cache(maxsize=1)
def _request_id_start(now_ms: int) -> str:
    """The first twenty digits of the ids of this millisecond."""
    return f"{now_ms:012x}{PROCESS_MARK}"


def _first_of_new_ends() -> str:
    """Make new ends and return the first. Two threads that find none both make new ones."""
    ends = os.urandom(_END_BYTES * _ENDS_AT_ONCE).hex(" ", _END_BYTES).split()
    end = ends.pop()
    _unused_ends.extend(ends)
    return end


def envelope(body: JsonMapping | Struct) -> bytes:
    """Return a JSON body of ours: `apiVersion` and `timestamp` are added (specification 4)."""
    if isinstance(body, Struct):
        return b'%s,"apiVersion":"%b","timestamp":"%b"}' % (
            _ENCODE(body)[:-1],
            API_VERSION.encode(),
            iso(clock_ms()).encode(),
        )
    return _ENCODE({**body, "apiVersion": API_VERSION, "timestamp": iso(clock_ms())})


def error_envelope(error: ApiError, request_id: str, also: JsonMapping | None = None) -> bytes:
    """The error body of specification 7; `also` adds sibling keys (the requirements of contract 4.5)."""
    return envelope({"error": {**error.body(), "requestId": request_id}, **(also or {})})


def ok(body: JsonMapping | Struct, *, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    """A Litestar response with our envelope."""
    return Response(envelope(body), status_code=status, headers=headers, media_type="application/json")


def unless_known(
    request: HttpRequest, body: JsonMapping | Struct, headers: Mapping[str, str] | None = None
) -> Response[bytes]:
    """The answer to a read, with an `ETag`; 304 where `If-None-Match` says that its caller has it."""
    own = {"Cache-Control": "private, no-cache", **(headers or {})}
    return content_unless_known(request, envelope(body), "application/json", own, tagged=_ENCODE(body))


def content_unless_known(
    request: HttpRequest, content: bytes, media_type: str, headers: Mapping[str, str], *, tagged: bytes | None = None
) -> Response[bytes]:
    """Answer a read with its content, or by 304. `tagged`: the content without what is another each time."""
    tag = etag_of(content if tagged is None else tagged)
    own = {**headers, "ETag": tag}
    if is_known(tag, request.headers.get("if-none-match", "")):
        return Response(b"", status_code=304, headers=own)
    return Response(content, headers=own, media_type=media_type)


def table_unless_known(request: HttpRequest, table: str, total: int, headers: Mapping[str, str]) -> Response[bytes]:
    """The same answer as CSV; how many rows there are in all is told beside it."""
    content = table.encode()
    own = {**headers, "X-Total-Count": str(total), "X-Content-Type-Options": "nosniff"}
    return content_unless_known(request, content, MEDIA_TYPE, own, tagged=content + str(total).encode())


def etag_of(content: bytes) -> str:
    """A weak `ETag` of a content without its `timestamp`, which is another each time."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'


def is_known(tag: str, if_none_match: str) -> bool:
    """Return True if the caller has what this `ETag` of ours names (RFC 9110 13.1.2)."""
    known = {one.strip().removeprefix("W/") for one in if_none_match.split(",")}
    return tag.removeprefix("W/") in known or "*" in known


def bearer_token(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer ...`; None without one or with another scheme."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None


async def read_body(chunks: AsyncIterator[bytes], headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The whole body of a request with these headers.

    Raises: PAYLOAD_TOO_LARGE, without reading on; a caller who waits to be asked for so long a body never is.
    """
    for name, value in headers:
        if name == b"content-length" and int(value) > JSON_BODY_SIZE_BYTES:
            raise _too_large()
    parts: list[bytes] = []
    size_bytes = 0
    async for chunk in chunks:
        size_bytes += len(chunk)
        if size_bytes > JSON_BODY_SIZE_BYTES:
            raise _too_large()
        parts.append(chunk)
    return b"".join(parts)


def _too_large() -> ApiError:
    details = {"limitBytes": JSON_BODY_SIZE_BYTES}
    return ApiError(Code.PAYLOAD_TOO_LARGE, "the request body is too large", details=details)


def parse_json_object(data: bytes, parse: Callable[[bytes], Any] = parse_json) -> JsonObject:
    """A request body that must be a JSON object. Raises: INVALID_PARAMETER."""
    try:
        body = parse(data)
    except ValueError as error:
        raise invalid("body", f"the request body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise invalid("body", "the request body must be a JSON object")
    return body


async def json_body(request: HttpRequest) -> JsonObject:
    """The JSON object in a request. Raises: INVALID_PARAMETER, PAYLOAD_TOO_LARGE."""
    return await json_body_of(request.stream(), request.scope["headers"])


async def json_body_of(chunks: AsyncIterator[bytes], headers: Iterable[tuple[bytes, bytes]]) -> JsonObject:
    """Read `json_body` of a bare request."""
    return parse_json_object(await read_body(chunks, headers))


def string_field(body: JsonMapping, name: str) -> str:
    """A required string of a request body. Raises: MISSING_PARAMETER, INVALID_PARAMETER."""
    value = body.get(name)
    if value is None or value == "":
        raise missing(name)
    if not isinstance(value, str):
        raise invalid(name, f"{name} must be a string")
    return value


def query_of(request: HttpRequest) -> dict[str, str]:
    """The parameters of the query string. Raises: as `once_each`."""
    return once_each(request.query_params.multi_items())


def once_each(parameters: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Their values by name. Raises: INVALID_PARAMETER for one that comes twice: either may be meant."""
    found: dict[str, str] = {}
    for name, value in parameters:
        if name in found:
            raise invalid(name, f"{name} came twice")
        found[name] = value
    return found


def integer_parameter(query: Mapping[str, str], name: str, *, low: int, high: int, default: int | None) -> int:
    """A decimal integer of the query string; required where `default` is None.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER.
    """
    text = query.get(name)
    if text is None:
        if default is None:
            raise missing(name)
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high):
        raise invalid(name, f"{name} must be an integer from {low} to {high}")
    return int(text)


def page_parameters(query: Mapping[str, str], *, limit_required: bool = False) -> tuple[int, int]:
    """`limit` (1 to 100) and `offset` (from 0) of a listing."""
    default = None if limit_required else LIST_LIMIT_DEFAULT
    limit = integer_parameter(query, "limit", low=1, high=HISTORY_LIMIT_MAX, default=default)
    return limit, integer_parameter(query, "offset", low=0, high=OFFSET_MAX, default=0)


def pagination(total: int, limit: int, offset: int) -> Pagination:
    """Return the `pagination` object of specification 4.3."""
    return Pagination(total, limit, offset, has_next=offset + limit < total, has_prev=offset > 0)


def refused(request: HttpRequest, error: Exception) -> Response[bytes]:
    """Litestar's exception handler: refusals of its router become ours, everything else goes up to `Shell`."""
    if isinstance(error, HTTPException):
        error = _from_litestar(error)
    if not isinstance(error, ApiError):
        raise error
    request_id = request.scope["state"].get("request_id", "")
    return Response(
        error_envelope(error, request_id),
        status_code=error.status,
        headers=error.headers,
        media_type="application/json",
    )


def _from_litestar(error: HTTPException) -> ApiError:
    if error.status_code == 404:
        return ApiError(Code.NOT_FOUND, "there is nothing at this path")
    if error.status_code == 405:
        return ApiError(Code.METHOD_NOT_ALLOWED, "the method is not allowed here", headers=error.headers or {})
    if error.status_code == 413:
        return ApiError(Code.PAYLOAD_TOO_LARGE, "the request body is too large")
    return invalid("request", error.detail or "the request cannot be read")


def correlation_of(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the name that a caller gave its request, to repeat it with the answer; nothing if it is no valid name."""
    named = [(name, value) for name, value in headers if name == CORRELATION_ID]
    return named if len(named) == 1 and _CORRELATION.fullmatch(named[0][1]) else []


def _check_path(path: bytes) -> None:
    """Refuse another spelling of a path: each name has one, so that no rule about it can be walked around.

    Raises: INVALID_PARAMETER.
    """
    if _OTHER_SPELLING.search(path):
        raise invalid("path", "the path has a slash too many, or encodes what needs no encoding: send it plainly")


def _check_head(scope: Scope) -> None:
    if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > HEAD_MAX:
        raise ApiError(Code.HEADERS_TOO_LARGE, "the request head is too large", details={"limitBytes": HEAD_MAX})


async def send_answer(send: Send, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """A whole JSON answer on bare ASGI, for the paths that are too hot for a framework."""
    length = (b"content-length", str(len(body)).encode())
    await send(
        {"type": "http.response.start", "status": status, "headers": [(b"content-type", JSON), length, *headers]}
    )
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def send_unless_known(send: Send, scope: HTTPScope, body: Struct) -> None:
    """`unless_known` on bare ASGI."""
    tag = etag_of(_ENCODE(body))
    headers = [(b"cache-control", b"no-cache"), (b"etag", tag.encode())]
    given = [value for name, value in scope["headers"] if name == b"if-none-match"]
    if is_known(tag, b",".join(given).decode("latin-1")):
        await send({"type": "http.response.start", "status": 304, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await send_answer(send, 200, envelope(body), headers)


async def receive_chunks(receive: Receive) -> AsyncIterator[bytes]:
    """The body of a bare ASGI request. Raises: ConnectionResetError when the client is gone."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionResetError("the client went away")
        if message["type"] == "http.request":
            yield message["body"]
            more = message.get("more_body", False)


def header_pairs(headers: Mapping[str, str]) -> Headers:
    """Header names and values as ASGI sends them."""
    return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


def own_headers(request_id: str, asked: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers of every answer (contract 1), to a request with the headers `asked`."""
    return [(b"x402-version", b"1"), (b"x-request-id", request_id.encode()), *correlation_of(asked)]


async def send_refusal(
    send: Send, error: ApiError, request_id: str, asked: Iterable[tuple[bytes, bytes]], also: Headers | None = None
) -> None:
    """Refuse a request with the headers `asked`, by all that such an answer carries; `also` are headers beside it."""
    headers = [*own_headers(request_id, asked), *header_pairs(error.headers), *(also or ())]
    await send_answer(send, error.status, error_envelope(error, request_id), headers)


def _answer_to(error: Exception, request_id: str, path: str) -> ApiError:
    """Return the answer to a request that failed with `error`. An error that is no refusal is logged."""
    if isinstance(error, ApiError):
        return error
    _LOG.exception("unhandled", request_id=request_id, path=path)
    fault = ApiError(Code.INTERNAL_ERROR, "something went wrong on our side; requestId names the log line")
    assert fault.type is ErrorType.SERVER  # noqa: S101 - the table says so
    return fault


class Shell:
    """The outermost ASGI layer around `app`; see the module's text."""

    def __init__(self, app: ASGIApp, *, takes_doubled_root: bool = False) -> None:
        """`takes_doubled_root`: for clients that join a URL which ends with a slash and a path."""
        self.app = app
        self._path_start = int(takes_doubled_root)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, lifespan or (refused) websocket."""
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        request_id = new_request_id()
        scope.setdefault("state", {})["request_id"] = request_id
        own = own_headers(request_id, scope["headers"])
        started = False

        async def send_with_own(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *own]
            await send(message)

        try:
            _check_head(scope)
            _check_path((scope.get("raw_path") or scope["path"].encode())[self._path_start :])
            await self.app(scope, receive, send_with_own)
        except ConnectionResetError:
            _LOG.info("client_gone", request_id=request_id, path=scope["path"])
        except Exception as error:
            answer = _answer_to(error, request_id, scope["path"])
            if started:
                raise
            await send_refusal(send, answer, request_id, scope["headers"])
