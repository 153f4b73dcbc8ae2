"""JSON-RPC 2.0 over HTTP to a chain's node: calls joined into batches, strict replies, two kinds of failure.

No timer joins calls: what was asked while the last batch was in flight leaves as the next one, so that a lone call
never waits for company and a crowd shares round trips. The same read asked twice in one batch is sent once. A raw
transaction leaves on its own, at once. What an answer means is not decided here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiohttp
import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

_BATCH_SIZE_MAX: Final = 100
_FLIGHTS_MAX: Final = 3
_REPLY_SIZE_BYTES: Final = 16 * 1024 * 1024

Call: TypeAlias = "tuple[str, Sequence[Any]]"


class RpcUnavailable(Exception):  # noqa: N818 - the state of a node, not a fault of ours
    """No usable answer: a timeout, a broken connection, an HTTP error or a malformed reply. Nothing is known."""


class RpcError(Exception):
    """The node answered with an error object."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.data = data


class _ErrorObject(msgspec.Struct):
    code: int
    message: str
    data: Any = None


class _Reply(msgspec.Struct):
    id: int
    result: Any = msgspec.UNSET
    error: _ErrorObject | msgspec.UnsetType | None = msgspec.UNSET


Answer: TypeAlias = "Any | RpcError"

_ENCODE: Final = msgspec.json.Encoder().encode
_DECODE_BATCH: Final = msgspec.json.Decoder(list[_Reply]).decode
_DECODE_ONE: Final = msgspec.json.Decoder(_Reply).decode


@dataclass(slots=True, eq=False)
class _Group:
    """Calls that one caller asked for together; they stay in one batch, so that they see one moment of the node."""

    calls: Sequence[Call]
    done: asyncio.Future[list[Answer]]
    slots: list[int] = field(default_factory=list)


class Rpc:
    """One network's node. Safe to share between tasks of one event loop; close it when done."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float = 10.0) -> None:
        """`urls`: the first is used. `timeout_seconds` bounds one HTTP exchange."""
        self.urls = tuple(urls)
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._session: aiohttp.ClientSession | None = None
        self._batch_size = _BATCH_SIZE_MAX
        self._waiting: list[_Group] = []
        self._scheduled = False
        self._flights: set[asyncio.Task[None]] = set()

    async def call(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        """The result of one read. Raises: RpcUnavailable, RpcError."""
        (answer,) = await self.ask([(method, params)])
        if isinstance(answer, RpcError):
            raise answer
        return answer

    async def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """The answers to several reads, sent in one batch; an error of one is its answer. Raises: RpcUnavailable."""
        loop = asyncio.get_running_loop()
        group = _Group(calls, loop.create_future())
        self._waiting.append(group)
        if not self._scheduled and len(self._flights) < _FLIGHTS_MAX:
            self._scheduled = True
            loop.call_soon(self._take_off)
        return await group.done

    async def send_raw(self, raw: bytes) -> str:
        """Hands a signed transaction to the node and returns the hash that the node names.

        Raises: RpcError where the node refused; RpcUnavailable where nobody knows whether it took it.
        """
        request = {"jsonrpc": "2.0", "id": 0, "method": "eth_sendRawTransaction", "params": ["0x" + raw.hex()]}
        reply = _read(_DECODE_ONE, await self._post(_ENCODE(request)))
        answer = _answer(reply, 0)
        if isinstance(answer, RpcError):
            raise answer
        if not isinstance(answer, str):
            msg = "the node did not name the transaction that it took"
            raise RpcUnavailable(msg)
        return answer

    async def close(self) -> None:
        """Ends the connections; calls in flight fail with RpcUnavailable."""
        for flight in tuple(self._flights):
            flight.cancel()
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _take_off(self) -> None:
        self._scheduled = False
        while self._waiting and len(self._flights) < _FLIGHTS_MAX:
            boarding: list[_Group] = []
            size = 0
            while self._waiting and (not boarding or size + len(self._waiting[0].calls) <= self._batch_size):
                group = self._waiting.pop(0)
                if not group.done.done():  # its caller may have gone
                    boarding.append(group)
                    size += len(group.calls)
            if boarding:
                flight = asyncio.get_running_loop().create_task(self._fly(boarding))
                self._flights.add(flight)
                flight.add_done_callback(self._landed)

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if self._waiting:
            self._take_off()

    async def _fly(self, groups: list[_Group]) -> None:
        """Sends one batch and answers its groups; every group is answered, whatever happens."""
        entries: dict[bytes, int] = {}
        for group in groups:
            for method, params in group.calls:
                body = b'"method":' + _ENCODE(method) + b',"params":' + _ENCODE(params) + b"}"
                group.slots.append(entries.setdefault(body, len(entries)))
        requests = [_numbered(slot, body) for body, slot in entries.items()]
        reason = "the connection to the node was closed"
        answers: list[Answer] = []
        try:
            answers = await self._exchange(requests)
        except RpcUnavailable as error:
            reason = str(error)
        finally:
            for group in groups:
                if group.done.done():
                    continue
                if answers:
                    group.done.set_result([answers[slot] for slot in group.slots])
                else:
                    group.done.set_exception(RpcUnavailable(reason))

    async def _exchange(self, requests: list[bytes]) -> list[Answer]:
        if len(requests) == 1:
            return [_answer(_read(_DECODE_ONE, await self._post(requests[0])), 0)]
        if len(requests) > self._batch_size:
            return await self._exchange_halves(requests)
        body = await self._post(b"[" + b",".join(requests) + b"]")
        if body.lstrip().startswith(b"{"):  # one object for all: this node takes smaller batches, or none
            answers = await self._exchange_halves(requests)
            if not any(isinstance(answer, RpcError) for answer in answers):
                self._batch_size = min(self._batch_size, (len(requests) + 1) // 2)
            return answers
        replies = _read(_DECODE_BATCH, body)
        by_id = {reply.id: reply for reply in replies}
        if len(by_id) != len(replies) or len(by_id) != len(requests):
            msg = "the node did not answer every call of a batch once"
            raise RpcUnavailable(msg)
        return [_answer(by_id.get(slot), slot) for slot in range(len(requests))]

    async def _exchange_halves(self, requests: list[bytes]) -> list[Answer]:
        """The same calls in two batches."""
        half = (len(requests) + 1) // 2
        answers: list[Answer] = []
        for part in (requests[:half], requests[half:]):
            renumbered = [_numbered(slot, request.split(b",", 2)[2]) for slot, request in enumerate(part)]
            answers += await self._exchange(renumbered)
        return answers

    async def _post(self, body: bytes) -> bytes:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=self._timeout,
                connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=60),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        try:
            async with self._session.post(self.urls[0], data=body, allow_redirects=False) as response:
                if response.status != 200:
                    msg = f"the node answered with HTTP status {response.status}"
                    raise RpcUnavailable(msg)
                reply = await response.content.read(_REPLY_SIZE_BYTES)
                while not response.content.at_eof():
                    reply += await response.content.read(_REPLY_SIZE_BYTES)
                    if len(reply) > _REPLY_SIZE_BYTES:
                        msg = "the node's reply is too large"
                        raise RpcUnavailable(msg)
                return reply
        except TimeoutError as error:
            msg = "the node did not answer in time"
            raise RpcUnavailable(msg) from error
        except (aiohttp.ClientError, OSError) as error:  # the message may hold a URL with a key in it
            msg = f"the node cannot be reached ({type(error).__name__})"
            raise RpcUnavailable(msg) from error


def _numbered(slot: int, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,%b' % (slot, body)


def _read(decode: Any, body: bytes) -> Any:  # noqa: ANN401 - the decoder's type
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        msg = "the node's reply is not JSON-RPC"
        raise RpcUnavailable(msg) from error


def _answer(reply: _Reply | None, call_id: int) -> Answer:
    """Exactly one of result and error, under the id of the call. Raises: RpcUnavailable."""
    if reply is None or reply.id != call_id:
        msg = "the node answered another call"
        raise RpcUnavailable(msg)
    if isinstance(reply.error, _ErrorObject):
        if reply.result is not msgspec.UNSET and reply.result is not None:
            msg = "the node answered with a result and an error"
            raise RpcUnavailable(msg)
        return RpcError(reply.error.code, reply.error.message, reply.error.data)
    if reply.result is msgspec.UNSET:
        msg = "the node answered with neither result nor error"
        raise RpcUnavailable(msg)
    return reply.result
