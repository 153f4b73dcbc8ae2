"""A node's replies read strictly: one answer for each call, or the node's own words why there is none (A-15).

Public nodes refuse a batch that is too large in many ways: by an HTTP status, by one error object, by a list of one
error, or by the same error for each call. All of these are a `BatchRefusal`; whether it was the size is found out by
who asked. What an answer means is not decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

# How nodes say that they serve no more of our calls for now: EIP-1474's code, others' codes, and the usual words.
_LIMIT_CODES: Final = frozenset({-32005, -32029, -32090, -32097, 429})
_LIMIT_WORDS: Final = re.compile(
    r"rate.?limit|too many requests|limit exceeded|quota|request rate|compute units|capacity exceeded", re.IGNORECASE
)
# What is too much of one call, whatever code it comes with.
_RANGE_WORDS: Final = re.compile(
    r"\branges?\b|more than [\d,_]+ (results|blocks|logs)|too many (blocks|results|logs)|\bbatch", re.IGNORECASE
)
# An error that all calls of a batch share may be about the batch, if it sounds like this.
_BATCH_WORDS: Final = re.compile(r"batch|limit|too (many|large|big)|exceed|plan|tier|upgrade|allowed", re.IGNORECASE)
# By these a node may refuse what it was asked, and not only fail to answer.
_REFUSING_STATUSES: Final = frozenset({400, 413, 429, 500})
_TOO_LONG: Final = 413
_TOO_MANY_REQUESTS: Final = 429
_SERVER_ERROR: Final = 500
_INTERNAL_ERROR: Final = -32603
_REVERTED: Final = 3
_OK: Final = 200


class RpcUnavailable(Exception):  # noqa: N818 - the state of a node, not a fault of ours
    """No usable answer: a timeout, a broken connection, an HTTP error or a malformed reply. Nothing is known."""


class RefusedByStatus(RpcUnavailable):
    """A call that a node refused by an HTTP status alone, perhaps because it asked for too much."""


class RateLimited(RpcUnavailable):
    """A node that serves no more calls now, by an HTTP status alone."""


class RpcError(Exception):
    """The node answered with an error object."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


Answer: TypeAlias = "Any | RpcError"


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A node's reply as it came. `location` is where a redirect leads, empty elsewhere."""

    status: int
    body: bytes
    location: str = ""


@dataclass(frozen=True, slots=True)
class BatchRefusal:
    """A batch that was not answered call by call. `error`: what the node said of each call, where it did.

    `is_limit`: it sounds like too many calls at this time, but may be too many in one batch. `is_too_long`: of bytes.
    """

    words: str
    error: RpcError | None = None
    is_limit: bool = False
    is_too_long: bool = False


class _ErrorObject(msgspec.Struct):
    code: int
    message: str
    data: Any = None


class _Reply(msgspec.Struct):
    id: int | None = None
    result: Any = msgspec.UNSET
    error: _ErrorObject | msgspec.UnsetType | None = msgspec.UNSET


_DECODE_BATCH: Final = msgspec.json.Decoder(list[_Reply]).decode
_DECODE_ONE: Final = msgspec.json.Decoder(_Reply).decode


def is_limit(answer: Answer) -> bool:
    """Say whether a node says by this that it serves no more of our calls for now."""
    if not isinstance(answer, RpcError) or _RANGE_WORDS.search(answer.message) is not None:
        return False
    if "revert" in answer.message.lower():  # what a contract says
        return False
    return answer.code in _LIMIT_CODES or (answer.data is None and _LIMIT_WORDS.search(answer.message) is not None)


def read_one(reply: HttpReply, call_id: int, clean: Callable[[str], str]) -> Answer:
    """Read the answer to a call that was alone. `clean` takes keys out of the node's words. Raises: RpcUnavailable."""
    if reply.status == _OK:
        return _answer(_read(_DECODE_ONE, reply, clean), call_id, clean)
    if reply.status in _REFUSING_STATUSES - {_TOO_MANY_REQUESTS}:
        error = _error_alone(reply, call_id)
        if error is not None:
            return RpcError(error.code, clean(error.message), error.data)
        raise RefusedByStatus(_status_words(reply, clean))
    if reply.status == _TOO_MANY_REQUESTS:
        raise RateLimited(_status_words(reply, clean))
    raise RpcUnavailable(_status_words(reply, clean))


def read_batch(reply: HttpReply, ids: range, clean: Callable[[str], str]) -> list[Answer] | BatchRefusal:
    """Read the answers of a batch, in the order of the calls. Raises: RpcUnavailable."""
    if reply.status != _OK and reply.status not in _REFUSING_STATUSES:
        raise RpcUnavailable(_status_words(reply, clean))
    if reply.status != _OK or _is_one_error(reply.body):
        return _refusal_by_status(reply, ids, clean)
    replies = _read(_DECODE_BATCH, reply, clean)
    answers = _in_order(replies, ids, clean)
    return _refused_each(answers) or answers


def words_in(body: bytes) -> str:
    """Find a node's own words in a reply: the message of its error, else the text itself."""
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:1000].decode("utf-8", "replace")
    if isinstance(said, list):
        said = next((one for one in said if isinstance(one, dict) and one.get("error")), None)
    if isinstance(said, dict):
        error = said.get("error")
        told = error.get("message") if isinstance(error, dict) else error or said.get("message")
        return told if isinstance(told, str) else ""
    return said if isinstance(said, str) else ""


def _refusal_by_status(reply: HttpReply, ids: range, clean: Callable[[str], str]) -> list[Answer] | BatchRefusal:
    """Read what is not a plain list of answers: some servers give these with a status of their own."""
    try:
        answers = _in_order(_DECODE_BATCH(reply.body), ids, clean)
    except (msgspec.DecodeError, UnicodeDecodeError, RpcUnavailable):
        words = clean(words_in(reply.body))
        return BatchRefusal(
            words if reply.status == _OK else _status_words(reply, clean),
            is_limit=reply.status == _TOO_MANY_REQUESTS or is_limit(RpcError(0, words)),
            is_too_long=reply.status == _TOO_LONG,
        )
    return _refused_each(answers) or answers


def _is_one_error(body: bytes) -> bool:
    """Say whether it is one error for all calls, alone or in a list."""
    if body.lstrip().startswith(b"{"):
        return True
    try:
        replies = _DECODE_BATCH(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return len(replies) == 1 and isinstance(replies[0].error, _ErrorObject)


def _refused_each(answers: list[Answer]) -> BatchRefusal | None:
    """Find the one error that all calls were answered with, unless it is about each of them, as a revert is."""
    first = answers[0]
    if not isinstance(first, RpcError) or first.code == _REVERTED or first.data is not None:
        return None
    if not is_limit(first) and _BATCH_WORDS.search(first.message) is None:
        return None
    if all(isinstance(one, RpcError) and (one.code, one.message) == (first.code, first.message) for one in answers):
        return BatchRefusal(first.message, first, is_limit(first))
    return None


def _error_alone(reply: HttpReply, call_id: int) -> _ErrorObject | None:
    """Find the refusal of this very call. A server that fails has the same form, and another node may answer then."""
    try:
        read = _DECODE_ONE(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(read.error, _ErrorObject):
        return None
    is_failure = reply.status == _SERVER_ERROR and (read.id != call_id or read.error.code == _INTERNAL_ERROR)
    return None if is_failure else read.error


def _status_words(reply: HttpReply, clean: Callable[[str], str]) -> str:
    words = clean(words_in(reply.body))
    return f"the node answered with HTTP status {reply.status}" + (f": {words}" if words else "")


def _read(decode: Any, reply: HttpReply, clean: Callable[[str], str]) -> Any:  # noqa: ANN401 - the decoder's type
    try:
        return decode(reply.body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        words = clean(words_in(reply.body))
        msg = "the node's reply is not JSON-RPC" + (f": {words}" if words else "")
        raise RpcUnavailable(msg) from error


def _in_order(replies: list[_Reply], ids: range, clean: Callable[[str], str]) -> list[Answer]:
    by_id = {reply.id: reply for reply in replies}
    if len(by_id) != len(replies) or len(by_id) != len(ids):
        raise RpcUnavailable("the node did not answer every call of a batch once")
    return [_answer(by_id.get(call_id), call_id, clean) for call_id in ids]


def _answer(reply: _Reply | None, call_id: int, clean: Callable[[str], str]) -> Answer:
    """Take exactly one of result and error, under the id of the call. Raises: RpcUnavailable."""
    if reply is None or reply.id != call_id:
        msg = "the node answered another call"
        if reply is not None and reply.id is None and isinstance(reply.error, _ErrorObject):
            msg = f"the node could not read the call: {clean(reply.error.message)}"
        raise RpcUnavailable(msg)
    if isinstance(reply.error, _ErrorObject):
        if reply.result is not msgspec.UNSET and reply.result is not None:
            raise RpcUnavailable("the node answered with a result and an error")
        return RpcError(reply.error.code, clean(reply.error.message), reply.error.data)
    if reply.result is msgspec.UNSET:
        raise RpcUnavailable("the node answered with neither result nor error")
    return reply.result
