"""JSON-RPC 2.0 over HTTP to a chain's nodes: calls joined into batches, strict replies, two kinds of failure.

No timer joins calls: what was asked while the last batch was in flight leaves as the next one, so that a lone call
never waits for others and a crowd shares round trips. The same read asked twice in one batch is sent once. A raw
transaction leaves on its own, at once. A node that does not answer, or that has had enough of our calls, is passed over
for the next one; any other answer, also a refusal, is never asked of another. One question has a budget of time over
all nodes, its wait for a batch included. What an answer means is not decided here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import msgspec

from tollkeeper.chains.connections import CLOSED, NodeConnections
from tollkeeper.chains.nodes import BATCH_SIZE_MAX, Node, Nodes
from tollkeeper.chains.quota import Quota
from tollkeeper.chains.replies import (
    Answer,
    BatchRefusal,
    RateLimited,
    RpcError,
    RpcUnavailable,
    is_limit,
    read_batch,
    read_one,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence


# How long a node is waited for while another one could be asked.
_IMPATIENT_SECONDS: Final = 3.0
# All nodes together have so many times the timeout of one for a question.
_BUDGET_TIMEOUTS: Final = 3
_FLIGHTS_MAX: Final = 3
_LIMITED: Final = "it limits how often we may ask"
_LIMITED_PAUSE_SECONDS: Final = 1.0

Call: TypeAlias = "tuple[str, Sequence[Any]]"
T = TypeVar("T")


_ENCODE: Final = msgspec.json.Encoder().encode


@dataclass(slots=True, eq=False)
class _Group:
    """Calls that one caller asked for together; they stay in one batch, so that they see one moment of the node."""

    calls: Sequence[Call]
    done: asyncio.Future[list[Answer]]
    slots: list[int] = field(default_factory=list)


class Rpc:
    """One network's nodes. Safe to share between tasks of one event loop; close it when done."""

    def __init__(self, urls: Sequence[str], *, timeout_seconds: float = 10.0) -> None:
        """`urls`: in the order of preference.

        `timeout_seconds` bounds one HTTP exchange with the last of them, and thrice as long a question to all.
        """
        self.nodes = Nodes(urls)
        self.quota = Quota()
        self._timeout_seconds = timeout_seconds
        self._connections = NodeConnections()
        self._waiting: list[_Group] = []
        self._scheduled = False
        self._flights: set[asyncio.Task[None]] = set()
        self._leaving: list[_Group] = []
        self._sending: set[asyncio.Task[None]] = set()
        self._next_id = 0

    async def call(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        """Return the result of one read. Raises: RpcUnavailable, RpcError."""
        (answer,) = await self.ask([(method, params)])
        if isinstance(answer, RpcError):
            raise answer
        return answer

    async def ask(self, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers to several reads, sent in one batch; an error of one is its answer.

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
        """Hand a signed transaction to the node and return the hash that the node names, in lower case.

        Raises: RpcError where the node refused; RpcUnavailable where nobody knows whether it took it.
        """
        return (await self.send("eth_sendRawTransaction", ["0x" + raw.hex()])).lower()

    async def send(self, method: str, params: Sequence[Any]) -> str:
        """Hand a signed transaction to the node by a method of its family's. Returns and raises as `send_raw`."""
        (answer,) = await self._first_answer(partial(self._exchange, requests=[_request(method, params)]))
        return self._named(answer)

    async def send_together(self, method: str, params: Sequence[Any]) -> str:
        """Send as `send` does, in one exchange with all that are handed over in this turn of the loop.

        For transactions that do not depend on each other; the same one may be sent again where an exchange is unclear.
        """
        loop = asyncio.get_running_loop()
        group = _Group([(method, params)], loop.create_future())
        if not self._leaving:
            loop.call_soon(self._send_off)
        self._leaving.append(group)
        (answer,) = await group.done
        return self._named(answer)

    def _named(self, answer: Answer) -> str:
        if isinstance(answer, RpcError):
            raise answer
        if not isinstance(answer, str):
            raise RpcUnavailable("the node did not name the transaction that it took")
        return answer

    async def probe(self, calls: Sequence[Call]) -> list[tuple[Node, list[Answer] | RpcUnavailable]]:
        """Return each node's answers to these reads, also of barred nodes."""
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
        """Return the answers of this node and of no other. Raises: RpcUnavailable."""
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
        """End the connections; calls in flight fail with RpcUnavailable."""
        for exchange in (*self._flights, *self._sending):
            exchange.cancel()
        await self._connections.close()

    def _send_off(self) -> None:
        leaving, self._leaving = self._leaving, []
        for start in range(0, len(leaving), BATCH_SIZE_MAX):
            self._begin(leaving[start : start + BATCH_SIZE_MAX], self._sending)

    def _begin(self, groups: list[_Group], under_way: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        """Begin an exchange for these groups, each of which is told how it ended."""
        flight = asyncio.get_running_loop().create_task(self._fly(groups))
        under_way.add(flight)
        flight.add_done_callback(under_way.discard)
        flight.add_done_callback(partial(_leave_none_waiting, groups))
        return flight

    def _take_off(self) -> None:
        self._scheduled = False
        now = asyncio.get_running_loop().time()
        batch_size = min((node.batch_size(now) for node in self.nodes.all), default=BATCH_SIZE_MAX)
        while self._waiting and len(self._flights) < _FLIGHTS_MAX:
            boarding: list[_Group] = []
            size = 0
            while self._waiting and (not boarding or size + len(self._waiting[0].calls) <= batch_size):
                group = self._waiting.pop(0)
                if not group.done.done():  # its caller may have gone
                    boarding.append(group)
                    size += len(group.calls)
            if boarding:
                self._begin(boarding, self._flights).add_done_callback(self._landed)

    def _landed(self, _flight: asyncio.Task[None]) -> None:
        if self._waiting:
            self._take_off()

    async def _fly(self, groups: list[_Group]) -> None:
        """Send one batch and answer its groups."""
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
        """Return the answers of the first node that gives any.

        Raises: RpcUnavailable if none does in the time there is.

        If all nodes serve no more calls for now they are asked once more, a little later: quotas are of a second.
        """
        now = asyncio.get_running_loop().time
        deadline = now() + self.budget_seconds
        try:
            answers = await self._by_any(ask, deadline)
            if not any(map(is_limit, answers)):
                return answers
        except RateLimited:
            pass
        self.quota.refused()
        await asyncio.sleep(min(_LIMITED_PAUSE_SECONDS, max(0.0, deadline - now())))
        return await self._by_any(ask, deadline)

    async def _by_any(self, ask: Callable[[Node, float], Awaitable[list[Answer]]], deadline: float) -> list[Answer]:
        """Ask once. What all limit is an answer, or RateLimited. Raises: RpcUnavailable."""
        loop = asyncio.get_running_loop()
        last = RpcUnavailable("no node may be asked")
        candidates = self.nodes.in_order(loop.time())
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

    async def _exchange(self, node: Node, seconds: float, requests: Sequence[bytes]) -> list[Answer]:
        """Ask a node in batches as large as it takes. Raises: RpcUnavailable."""
        now = asyncio.get_running_loop().time
        deadline, largest = now() + seconds, node.batch_size(now())
        self.quota.asked(len(requests))
        answers: list[Answer] = []
        while len(answers) < len(requests):
            some = requests[len(answers) : len(answers) + node.batch_size(now())]
            if len(some) > 1:
                answers += await self._ask_batch(node, deadline - now(), some)
            else:
                answers.append(await self._ask_alone(node, deadline - now(), some[0]))
        if node.batch_size(now()) < largest:
            node.tell_batch_size()
        return answers

    async def _ask_alone(self, node: Node, seconds: float, request: bytes) -> Answer:
        (call_id,) = self._take_ids(1)
        reply = await self._connections.post(node, _numbered(call_id, request), seconds)
        return await self._in_step(lambda: read_one(reply, call_id, node.clean))

    async def _ask_batch(self, node: Node, seconds: float, requests: Sequence[bytes]) -> list[Answer]:
        """Return the answers to the first of these calls: to all of them, where the batch is not too large."""
        now = asyncio.get_running_loop().time
        deadline = now() + seconds
        ids = self._take_ids(len(requests))
        body = b"[" + b",".join(map(_numbered, ids, requests)) + b"]"
        reply = await self._connections.post(node, body, seconds)
        read = await self._in_step(lambda: read_batch(reply, ids, node.clean))
        if not isinstance(read, BatchRefusal):
            node.answered_batch(now(), len(requests))
            return read
        is_taken = not read.is_too_long and node.is_taken(now(), len(requests), read.words)
        if is_taken and read.is_limit:
            raise RateLimited(read.words)
        # Was it the size? A call that is answered alone says so; one that is not says that the node does not serve.
        first = await self._ask_alone(node, deadline - now(), requests[0])
        if is_limit(first) or (read.error is not None and _is_same(read.error, first)):
            return [first] * len(requests)
        if not is_taken:  # else one of the others is what it does not answer
            node.refused_batch(now(), len(requests), read.words)
        return [first]

    async def _in_step(self, read: Callable[[], T]) -> T:
        """Return what `read` returns.

        Renews the connection if a reply is not to its call: it may stay one behind for ever.
        """
        try:
            return read()
        except RpcUnavailable:
            await self._connections.renew()
            raise

    def _take_ids(self, count: int) -> range:
        """Take ids that no call had before, so that an answer that comes twice, or late, is not another one's."""
        self._next_id += count
        return range(self._next_id - count, self._next_id)


def _is_same(error: RpcError, answer: Answer) -> bool:
    return isinstance(answer, RpcError) and (answer.code, answer.message) == (error.code, error.message)


def _give_up(waiting: asyncio.Future[T]) -> None:
    if not waiting.done():
        waiting.set_exception(RpcUnavailable("no node answered in the time that a question has"))


def _leave_none_waiting(groups: Sequence[_Group], _ended: asyncio.Task[None]) -> None:
    """Whoever has no answer when an exchange has ended, perhaps before it began, gets none."""
    for group in groups:
        if not group.done.done():
            group.done.set_exception(RpcUnavailable(CLOSED))


def _request(method: str, params: Sequence[Any]) -> bytes:
    """Return a call without its head, which numbers it."""
    return b'"method":' + _ENCODE(method) + b',"params":' + _ENCODE(params) + b"}"


def _numbered(call_id: int, body: bytes) -> bytes:
    return b'{"jsonrpc":"2.0","id":%d,%b' % (call_id, body)
