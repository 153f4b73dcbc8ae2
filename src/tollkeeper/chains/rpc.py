"""JSON-RPC 2.0 over HTTP to a chain's nodes: calls joined into batches, strict replies, two kinds of failure.

No timer joins calls: what was asked while the last batch was in flight leaves as the next one, so that a lone call
never waits for company and a crowd shares round trips. The same read asked twice in one batch is sent once. A raw
transaction leaves on its own, at once. A node that does not answer, or that has had enough of our calls, is passed over
for the next one; any other answer, also a refusal, is never asked of another. One question has a budget of time over
all nodes, its wait for a batch included. What an answer means is not decided here.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import aiohttp
import msgspec

from tollkeeper.chains.nodes import BATCH_SIZE_MAX, Node, Nodes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

# How long a node is waited for while another one could be asked.
_IMPATIENT_SECONDS: Final = 3.0
# All nodes together have so many times the timeout of one for a question.
_BUDGET_TIMEOUTS: Final = 3
_FLIGHTS_MAX: Final = 3
# How nodes say that they serve no more of our calls for now: EIP-1474's code, others' codes, and the usual words.
_LIMIT_CODES: Final = frozenset({-32005, -32029, -32090, -32097, 429})
_LIMIT_WORDS: Final = re.compile(
    r"rate.?limit|too many requests|limit exceeded|quota|request rate|compute units|capacity exceeded", re.IGNORECASE
)
_CLOSED: Final = "the connection to the node was closed"
_LIMITED: Final = "it limits how often we may ask"
# What aiohttp raises where a connection ends under a question; it also has these for one that cannot be made.
_BROKEN_OFF: Final = (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientConnectionResetError)
_REPLY_SIZE_BYTES: Final = 16 * 1024 * 1024

Call: TypeAlias = "tuple[str, Sequence[Any]]"


class RpcUnavailable(Exception):  # noqa: N818 - the state of a node, not a fault of ours
    """No usable answer: a timeout, a broken connection, an HTTP error or a malformed reply. Nothing is known."""


class _BrokenOffError(RpcUnavailable):
    """A connection that had been made ended before there was an answer."""


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


class _Connections:
    """Kept connections, until one of them turns out to be out of step."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None
        self._calls: Counter[aiohttp.ClientSession] = Counter()  # under way
        self._is_closed = False

    async def post(self, url: str, body: bytes, seconds: float) -> bytes:
        """The whole reply. Raises: RpcUnavailable.

        Nodes close idle connections when they like, and what leaves in that moment meets the closing. So what a
        connection broke off under leaves once more, over a new one, in the time that is left. A read may be asked
        twice; a signed transaction is the same one.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        try:
            return await self._post(url, body, seconds)
        except _BrokenOffError:
            left = deadline - now()
            if left <= 0:  # which would be no limit at all
                raise
        former, self._session = self._session, None  # what others kept meanwhile may be closed, too
        try:
            return await self._post(url, body, left)
        finally:
            if former is not None:
                await self._close_unused(former)

    async def _post(self, url: str, body: bytes, seconds: float) -> bytes:
        if self._is_closed:  # whoever still waited for a turn would open connections that nobody ends
            raise RpcUnavailable(_CLOSED)
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=60),
                headers={"Content-Type": "application/json", "Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=2**18,
            )
        session = self._session
        self._calls[session] += 1
        try:
            return await _post(session, url, body, seconds)
        except _BrokenOffError:
            if session is self._session:  # others that were kept are as old
                self._session = None
            raise
        finally:
            self._calls[session] -= 1
            await self._close_unused(session)

    async def renew(self) -> None:
        """Every later call goes over a new connection; those under way still end on theirs."""
        session, self._session = self._session, None
        if session is not None:
            await self._close_unused(session)

    async def close(self) -> None:
        """Ends all connections, for good."""
        self._is_closed = True
        self._session = None
        for session in tuple(self._calls):
            await session.close()

    async def _close_unused(self, session: aiohttp.ClientSession) -> None:
        if session is not self._session and not self._calls[session]:
            del self._calls[session]
            await session.close()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes, seconds: float) -> bytes:
    try:
        timeout = aiohttp.ClientTimeout(total=seconds)
        async with session.post(url, data=body, allow_redirects=False, timeout=timeout) as response:
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
        is_broken_off = isinstance(error, _BROKEN_OFF) and not isinstance(error, aiohttp.ClientConnectorError)
        raise (_BrokenOffError if is_broken_off else RpcUnavailable)(msg) from error


class Rpc:
    """One network's nodes. Safe to share between tasks of one event loop; close it when done."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float = 10.0) -> None:
        """`urls`: in the order of preference.

        `timeout_seconds` bounds one HTTP exchange with the last of them, and thrice as long a question to all.
        """
        self.nodes = Nodes(urls)
        self._timeout_seconds = timeout_seconds
        self._connections = _Connections()
        self._waiting: list[_Group] = []
        self._scheduled = False
        self._flights: set[asyncio.Task[None]] = set()
        self._leaving: list[tuple[bytes, asyncio.Future[Answer]]] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._next_id = 0

    async def call(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        """The result of one read. Raises: RpcUnavailable, RpcError."""
        (answer,) = await self.ask([(method, params)])
        if isinstance(answer, RpcError):
            raise answer
        return answer

    async def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """The answers to several reads, sent in one batch; an error of one is its answer.

        Raises: RpcUnavailable, also where the time for one question passed while it waited for its turn.
        """
        loop = asyncio.get_running_loop()
        group = _Group(calls, loop.create_future())
        self._waiting.append(group)
        if not self._scheduled and len(self._flights) < _FLIGHTS_MAX:
            self._scheduled = True
            loop.call_soon(self._take_off)
        budget = loop.call_later(self.budget_seconds, _give_up, group.done)
        try:
            return await group.done
        finally:
            budget.cancel()

    async def send_raw(self, raw: bytes) -> str:
        """Hands a signed transaction to the node and returns the hash that the node names.

        Raises: RpcError where the node refused; RpcUnavailable where nobody knows whether it took it.
        """
        return await self.send("eth_sendRawTransaction", ["0x" + raw.hex()])

    async def send(self, method: str, params: Sequence[Any]) -> str:
        """Hands a signed transaction to the node by a method of its family's. Returns and raises as `send_raw`."""
        (answer,) = await self._first_answer(partial(self._exchange, requests=[_request(method, params)]))
        return self._named(answer)

    async def send_together(self, method: str, params: Sequence[Any]) -> str:
        """As `send`, in one exchange with all that are handed over in this turn of the loop.

        For transactions that do not depend on each other; the same one may be sent again where an exchange is unclear.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Answer] = loop.create_future()
        if not self._leaving:
            loop.call_soon(self._send_off)
        self._leaving.append((_request(method, params), answer))
        return self._named(await answer)

    def _named(self, answer: Answer) -> str:
        if isinstance(answer, RpcError):
            raise answer
        if not isinstance(answer, str):
            msg = "the node did not name the transaction that it took"
            raise RpcUnavailable(msg)
        return answer

    async def probe(self, calls: Sequence[Call]) -> list[tuple[Node, list[Answer] | RpcUnavailable]]:
        """What each node answers to these reads, barred ones too."""
        bodies = [_request(method, params) for method, params in calls]
        seconds = self._timeout_seconds if len(self.nodes.all) == 1 else self._impatience

        async def ask(node: Node) -> tuple[Node, list[Answer] | RpcUnavailable]:
            try:
                answers = await self._exchange(node, seconds, bodies)
            except RpcUnavailable as error:
                node.failed(asyncio.get_running_loop().time(), str(error))
                return node, error
            node.answered()
            return node, answers

        return list(await asyncio.gather(*(ask(node) for node in self.nodes.all)))

    async def ask_of(self, node: Node, calls: Sequence[Call]) -> list[Answer]:
        """The answers of this node and of no other. Raises: RpcUnavailable."""
        now = asyncio.get_running_loop().time
        try:
            answers = await self._exchange(
                node, self._impatience, [_request(method, params) for method, params in calls]
            )
        except RpcUnavailable as error:
            node.failed(now(), str(error))
            raise
        if any(map(is_limit, answers)):
            node.failed(now(), _LIMITED)
            raise RpcUnavailable(_LIMITED)
        node.answered()
        return answers

    async def close(self) -> None:
        """Ends the connections; calls in flight fail with RpcUnavailable."""
        for exchange in (*self._flights, *self._sending):
            exchange.cancel()
        await self._connections.close()

    def _send_off(self) -> None:
        leaving, self._leaving = self._leaving, []
        for start in range(0, len(leaving), BATCH_SIZE_MAX):
            some = leaving[start : start + BATCH_SIZE_MAX]
            sending = asyncio.get_running_loop().create_task(self._send_batch(some))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
            sending.add_done_callback(partial(_leave_none_waiting, [answer for _, answer in some]))

    async def _send_batch(self, leaving: Sequence[tuple[bytes, asyncio.Future[Answer]]]) -> None:
        reason, answers = "", []
        try:
            answers = await self._first_answer(partial(self._exchange, requests=[request for request, _ in leaving]))
        except RpcUnavailable as error:
            reason = str(error)
        for place, (_, waiting) in enumerate(leaving):
            if waiting.done():  # its caller has gone
                continue
            if answers:
                waiting.set_result(answers[place])
            else:
                waiting.set_exception(RpcUnavailable(reason))

    def _take_off(self) -> None:
        self._scheduled = False
        batch_size = min((node.batch_size for node in self.nodes.all), default=BATCH_SIZE_MAX)
        while self._waiting and len(self._flights) < _FLIGHTS_MAX:
            boarding: list[_Group] = []
            size = 0
            while self._waiting and (not boarding or size + len(self._waiting[0].calls) <= batch_size):
                group = self._waiting.pop(0)
                if not group.done.done():  # its caller may have gone
                    boarding.append(group)
                    size += len(group.calls)
            if boarding:
                flight = asyncio.get_running_loop().create_task(self._fly(boarding))
                self._flights.add(flight)
                flight.add_done_callback(self._landed)
                flight.add_done_callback(partial(_leave_none_waiting, [group.done for group in boarding]))

    def _landed(self, flight: asyncio.Task[None]) -> None:
        self._flights.discard(flight)
        if self._waiting:
            self._take_off()

    async def _fly(self, groups: list[_Group]) -> None:
        """Sends one batch and answers its groups."""
        entries: dict[bytes, int] = {}
        for group in groups:
            for method, params in group.calls:
                group.slots.append(entries.setdefault(_request(method, params), len(entries)))
        reason, answers = "", []
        try:
            answers = await self._first_answer(partial(self._exchange, requests=list(entries)))
        except RpcUnavailable as error:
            reason = str(error)
        for group in groups:
            if group.done.done():  # its caller has gone
                continue
            if answers:
                group.done.set_result([answers[slot] for slot in group.slots])
            else:
                group.done.set_exception(RpcUnavailable(reason))

    @property
    def budget_seconds(self) -> float:
        """How long one question may take over all nodes."""
        return _BUDGET_TIMEOUTS * self._timeout_seconds

    @property
    def _impatience(self) -> float:
        return min(self._timeout_seconds, _IMPATIENT_SECONDS)

    async def _first_answer(self, ask: Callable[[Node, float], Awaitable[list[Answer]]]) -> list[Answer]:
        """What the first node says that says anything. Raises: RpcUnavailable where none does in the time there is."""
        loop = asyncio.get_running_loop()
        last = RpcUnavailable("no node may be asked")
        candidates = self.nodes.in_order(loop.time())
        deadline = loop.time() + self.budget_seconds
        limited: list[Answer] | None = None
        for node in candidates:
            seconds = self._timeout_seconds if node is candidates[-1] else self._impatience
            left = deadline - loop.time()
            if left <= 0:
                break
            try:
                answers = await ask(node, min(seconds, left))
            except RpcUnavailable as error:
                node.failed(loop.time(), str(error))
                last = error
                continue
            if not any(map(is_limit, answers)):
                node.answered()
                return answers
            node.failed(loop.time(), _LIMITED)
            limited = limited or answers
        if limited is not None:  # what it did answer is as good as ever
            return limited
        raise last

    async def _exchange(self, node: Node, seconds: float, requests: list[bytes]) -> list[Answer]:
        if len(requests) == 1:
            (first,) = self._take_ids(1)
            body = await self._connections.post(node.url, _numbered(first, requests[0]), seconds)
            return await self._in_step(lambda: [_answer(_read(_DECODE_ONE, body), first)])
        if len(requests) > node.batch_size:
            return await self._exchange_halves(node, seconds, requests)
        ids = self._take_ids(len(requests))
        numbered = b",".join(map(_numbered, ids, requests))
        body = await self._connections.post(node.url, b"[" + numbered + b"]", seconds)
        if body.lstrip().startswith(b"{"):  # one object for all: this node takes smaller batches, or none
            answers = await self._exchange_halves(node, seconds, requests)
            if not any(isinstance(answer, RpcError) for answer in answers):
                node.batch_size = min(node.batch_size, (len(requests) + 1) // 2)
            return answers
        return await self._in_step(lambda: _answers(body, ids))

    async def _in_step(self, read: Callable[[], list[Answer]]) -> list[Answer]:
        """What is read there. A reply that is not to its call may leave its connection one behind for ever."""
        try:
            return read()
        except RpcUnavailable:
            await self._connections.renew()
            raise

    def _take_ids(self, count: int) -> range:
        """Ids that no call had before, so that an answer that comes twice, or late, is not taken for another one's."""
        self._next_id += count
        return range(self._next_id - count, self._next_id)

    async def _exchange_halves(self, node: Node, seconds: float, requests: list[bytes]) -> list[Answer]:
        """The same calls in two batches."""
        half = (len(requests) + 1) // 2
        answers: list[Answer] = []
        for part in (requests[:half], requests[half:]):
            answers += await self._exchange(node, seconds, part)
        return answers


def _give_up(waiting: asyncio.Future[Any]) -> None:
    if not waiting.done():
        waiting.set_exception(RpcUnavailable("no node answered in the time that a question has"))


def _leave_none_waiting(waiting: Sequence[asyncio.Future[Any]], _ended: asyncio.Task[None]) -> None:
    """Whoever has no answer when an exchange has ended, perhaps before it began, gets none."""
    for answer in waiting:
        if not answer.done():
            answer.set_exception(RpcUnavailable(_CLOSED))


def is_limit(answer: Answer) -> bool:
    """Does a node say by this that it serves no more of our calls for now?"""
    if not isinstance(answer, RpcError):
        return False
    return answer.code in _LIMIT_CODES or (answer.data is None and _LIMIT_WORDS.search(answer.message) is not None)


def _request(method: str, params: Sequence[Any]) -> bytes:
    """A call without its head, which numbers it."""
    return b'"method":' + _ENCODE(method) + b',"params":' + _ENCODE(params) + b"}"


def _numbered(call_id: int, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,%b' % (call_id, body)


def _read(decode: Any, body: bytes) -> Any:  # noqa: ANN401 - the decoder's type
    try:
        return decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        msg = "the node's reply is not JSON-RPC"
        raise RpcUnavailable(msg) from error


def _answers(body: bytes, ids: range) -> list[Answer]:
    """Of a batch, in the order of the calls. Raises: RpcUnavailable."""
    replies = _read(_DECODE_BATCH, body)
    by_id = {reply.id: reply for reply in replies}
    if len(by_id) != len(replies) or len(by_id) != len(ids):
        msg = "the node did not answer every call of a batch once"
        raise RpcUnavailable(msg)
    return [_answer(by_id.get(call_id), call_id) for call_id in ids]


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
