"""Agreement of several nodes of a network, where one node's word is not enough (contract 5; security A-15).

A node that answers consistently with itself can show a transfer that nobody made, or deny one that was. So what one
node shows of a payment's outcome counts once another node, asked for itself, shows the same: the same verdict in the
same block, as deep there. One node's word suffices only if none of the others can be reached, or has seen a block for
long. If the operator names a number of nodes, that many must agree and no fewer will do. A fact that they do not agree
on is waited for: it makes nothing fail, and nothing succeed. The asker decides which questions need this (decision
0040).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import FAILURES, Sighting, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call, Rpc

_LOG = structlog.get_logger("tollkeeper.chains")
# A node whose newest block is so old by our clock stands still, and has no say.
_STANDS_STILL_SECONDS: Final = 600
# What nodes do not show alike for so long is told to the operator.
_DOUBT_TOLD_SECONDS: Final = 60.0
_DOUBTS_KEPT: Final = 10_000
# What the first node does not show for so long, the others are asked for: longer than a block takes.
OVERDUE_SECONDS: Final = 6.0
# How many show the same where no number is configured, and others can be reached.
_USUALLY: Final = 2

T = TypeVar("T")


class SeenTransaction(Protocol):
    """A transaction that is looked for, by its name."""

    @property
    def transaction_hash(self) -> str:
        """Name of the transaction on its chain."""


WantedT = TypeVar("WantedT", bound=SeenTransaction)
WantedT_contra = TypeVar("WantedT_contra", bound=SeenTransaction, contravariant=True)


class DatedReader(Protocol):
    """Reader of one node that can tell how old the node's newest block is."""

    async def newest_seconds(self) -> int:
        """Return the Unix time of the newest block. Raises: RpcUnavailable."""


class SightingReader(DatedReader, Protocol[WantedT_contra]):
    """Reader of one node, or of whichever node answers in turn."""

    async def look(self, wanted: Sequence[WantedT_contra]) -> list[Sighting]:
        """Return what is shown now, in the order asked. Raises: RpcUnavailable."""

    async def look_there(self, wanted: Sequence[WantedT_contra], numbers: Sequence[int]) -> list[Sighting]:
        """Return what is shown of what another node saw in these blocks. Raises: RpcUnavailable."""


ReaderT_co = TypeVar("ReaderT_co", bound=DatedReader, covariant=True)


class NodeQuorum(Generic[ReaderT_co]):
    """The nodes of a network, each asked for itself through a reader of its own."""

    def __init__(
        self, rpc: Rpc, confirm_nodes: int, any_node: ReaderT_co, reader_of: Callable[[Node], ReaderT_co]
    ) -> None:
        """`confirm_nodes`: how many must show the same; 0: two, if there is another one. `any_node`: as they come."""
        self._rpc = rpc
        self._any_node = any_node
        self._readers = {node.position: reader_of(node) for node in rpc.nodes.all}
        self._is_fixed = confirm_nodes > 0
        self._needed = confirm_nodes or min(_USUALLY, len(self._readers))

    @property
    def any_node(self) -> ReaderT_co:
        """Reader of whichever node answers in turn."""
        return self._any_node

    @property
    def is_one_enough(self) -> bool:
        """True where what one node shows is told."""
        return self._needed == 1

    @property
    def _is_one_there(self) -> bool:
        return self.is_one_enough and len(self._readers) == 1

    @property
    def shortage(self) -> list[str]:
        """Sentence for the operator where too few nodes answer."""
        missing = 0 if self.is_one_enough else self._rpc.nodes.missing(self._needed)
        if not missing:
            return []
        if self._is_fixed:
            return [f"settlements are told once {self._needed} nodes show them, and {missing} of them too few answer"]
        return ["one node's word is taken for settlements, because none of the others answers"]

    async def agreed(self, judge: Callable[[ReaderT_co], Awaitable[T]], is_open: Callable[[T], bool]) -> T | None:
        """Return the conclusion that enough nodes' facts agree on, the first node's first; None if they do not agree.

        A conclusion that `is_open` calls open needs no other node's word. Raises: RpcUnavailable if no node answers.
        """
        if self._is_one_there:
            return await judge(self._any_node)
        (found,) = await self._agreed_each(lambda node: _one(judge(self.at(node))), is_open)
        return found

    async def agreed_each(
        self, judge: Callable[[ReaderT_co], Awaitable[list[T]]], is_open: Callable[[T], bool]
    ) -> Sequence[T | None]:
        """Return conclusions on several things, each for itself as by `agreed`.

        Raises: RpcUnavailable if no node answers.
        """
        if self._is_one_there:
            return await judge(self._any_node)
        # One word that is enough is one node's all the same, and not made of what several say.
        return await self._agreed_each(lambda node: judge(self.at(node)), is_open)

    async def answers(self, calls: Sequence[Call]) -> list[list[Answer]]:
        """Return the answers of each node that answers; of any node, where one is enough.

        If enough nodes answer, the others are not missed. Raises: RpcUnavailable if another one that is in reach does
        not.
        """
        if self.is_one_enough:
            return [await self._rpc.ask(calls)]
        loop = asyncio.get_running_loop()
        asked = [(node, answers) for node, answers in await self._rpc.probe(calls) if not node.barred]
        told = [answers for _, answers in asked if not isinstance(answers, RpcUnavailable)]
        silent = [node for node, answers in asked if isinstance(answers, RpcUnavailable)]
        is_missed = self._is_fixed or any(not self._rpc.nodes.is_out_of_reach(node, loop.time()) for node in silent)
        if not told or (len(told) < self._needed and silent and is_missed):
            raise RpcUnavailable("too few nodes answer")
        return told

    def at(self, node: Node) -> ReaderT_co:
        """Return the reader of this node alone."""
        return self._readers[node.position]

    async def _agreed_each(
        self, judge: Callable[[Node], Awaitable[list[T]]], is_open: Callable[[T], bool]
    ) -> list[T | None]:
        first, found = await self.first(judge)
        concluded = [place for place, one in enumerate(found) if not is_open(one)]
        if not concluded:
            return [*found]
        answers = {first.position: found}

        async def answer_of(node: Node) -> list[T]:
            if node.position not in answers:
                answers[node.position] = await judge(node)
            return answers[node.position]

        def sharing(claims: list[T]) -> Callable[[Node, Sequence[int]], Awaitable[list[bool]]]:
            async def ask(node: Node, places: Sequence[int]) -> list[bool]:
                others = await answer_of(node)
                return [others[place] == claims[place] for place in places]

            return ask

        doubted = set(concluded) - await self.confirmed(first, concluded, sharing(found))
        told: list[T | None] = [None if place in doubted else one for place, one in enumerate(found)]
        async for node, others in self.instead_of(first, answer_of, doubted):
            places = sorted(doubted)
            for place in await self.confirmed(node, places, sharing(others), is_alone_enough=False):
                told[place] = others[place]
                doubted.discard(place)
                self.overrule(first)
        return told

    async def instead_of(
        self, first: Node, ask: Callable[[Node], Awaitable[T]], left: Collection[int]
    ) -> AsyncIterator[tuple[Node, T]]:
        """Each other node with its answer, the best first, while something is `left` and enough could overrule `first`.

        Whose word alone is doubted is not waited for, where as many others as are needed show something else alike.
        """
        others = [node for node in self._rpc.nodes.in_order(asyncio.get_running_loop().time()) if node is not first]
        while len(others) >= self._needed and left:
            node = others.pop(0)  # with fewer behind it than are needed beside it, it is the last that could
            try:
                yield node, await ask(node)
            except RpcUnavailable:
                continue

    @property
    def can_overrule(self) -> bool:
        """Are there as many others as are needed, whichever is asked first?"""
        return len(self._rpc.nodes.all) > self._needed

    def overrule(self, node: Node) -> None:
        """Ask this one last for a while: enough others showed alike what it did not."""
        node.overruled(asyncio.get_running_loop().time())

    async def first(self, ask: Callable[[Node], Awaitable[T]]) -> tuple[Node, T]:
        """Return the answer of the best node that gives one.

        Raises: RpcUnavailable where none does in the time there is, as the best one said it.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._rpc.budget_seconds
        why: RpcUnavailable | None = None
        for node in self._rpc.nodes.in_order(loop.time()):
            if loop.time() >= deadline:
                break
            try:
                return node, await ask(node)
            except RpcUnavailable as error:
                why = why or error
        raise why or RpcUnavailable("no node may be asked")

    async def confirmed(
        self,
        first: Node,
        places: Sequence[int],
        ask: Callable[[Node, Sequence[int]], Awaitable[list[bool]]],
        *,
        is_alone_enough: bool = True,
    ) -> set[int]:
        """Return those of these claims of `first` that enough others share, as `ask` says of each of the others.

        `is_alone_enough`: its word may have to do where none of the others can be reached.
        """
        nodes, loop = self._rpc.nodes, asyncio.get_running_loop()
        alike = Counter(places)
        denied: set[int] = set()
        may_be_alone = is_alone_enough and not self._is_fixed
        for node in nodes.in_order(loop.time()):
            asked = [place for place in places if alike[place] < self._needed]
            if node is first or not asked:
                continue
            if may_be_alone and loop.time() < node.rests_until and nodes.is_out_of_reach(node, loop.time()):
                continue  # it is asked again when it has rested
            try:
                shares = await ask(node, asked)
            except RpcUnavailable:
                may_be_alone = may_be_alone and nodes.is_out_of_reach(node, loop.time())
                continue
            missed = {place for place, is_shared in zip(asked, shares, strict=True) if not is_shared}
            alike.update(place for place in asked if place not in missed)
            if missed and not await self._stands_still(node, first):
                denied |= missed
        return {place for place in places if alike[place] >= self._needed or (may_be_alone and place not in denied)}

    async def _stands_still(self, node: Node, first: Node) -> bool:
        """Say whether this node says that it saw no block for long, and the first one that there are newer ones.

        What another one says of it does not count, and where no block came for long it knows as much as the first.
        """
        try:
            seen_seconds = await self.at(node).newest_seconds()
            is_old = seen_seconds < time.time() - _STANDS_STILL_SECONDS
            return is_old and seen_seconds < await self.at(first).newest_seconds()
        except RpcUnavailable:
            return False


class QuorumReader(Generic[WantedT]):
    """Reader of what enough different nodes show alike, with the interface of one node's."""

    def __init__(self, quorum: NodeQuorum[SightingReader[WantedT]]) -> None:
        self._quorum = quorum
        self._doubted: dict[str, float] = {}  # transactions, and since when they are
        self._due: dict[str, float] = {}  # transactions that were not shown, and when the others are asked
        self.overdue_seconds = OVERDUE_SECONDS

    async def look(self, wanted: Sequence[WantedT]) -> list[Sighting]:
        """Return what is shown now, in the order asked. Raises: RpcUnavailable."""
        if self._quorum.is_one_enough:
            return await self._quorum.any_node.look(wanted)
        first, sightings = await self._quorum.first(lambda node: self._quorum.at(node).look(wanted))
        seen = [place for place, one in enumerate(sightings) if one.verdict is not Verdict.ABSENT]
        overdue = self._overdue(wanted, sightings)
        if not seen and not overdue:
            return sightings
        confirmed = await self._quorum.confirmed(first, seen, self._sharing(wanted, sightings)) if seen else set()
        doubted = set(seen) - confirmed
        told = [_doubted(one) if place in doubted else one for place, one in enumerate(sightings)]
        left = doubted | overdue
        async for node, others in self._quorum.instead_of(first, lambda node: self._quorum.at(node).look(wanted), left):
            places = [place for place in sorted(left) if others[place].verdict is not Verdict.ABSENT]
            shared = self._sharing(wanted, others)
            for place in await self._quorum.confirmed(node, places, shared, is_alone_enough=False) if places else ():
                told[place] = others[place]
                left.discard(place)
                self._quorum.overrule(first)
        self._remember(first, [wanted[place].transaction_hash for place in set(seen) - left], doubted=False)
        self._remember(first, [wanted[place].transaction_hash for place in doubted & left], doubted=True)
        return told

    def _sharing(
        self, wanted: Sequence[WantedT], claims: Sequence[Sighting]
    ) -> Callable[[Node, Sequence[int]], Awaitable[list[bool]]]:
        """Ask another node whether it shows what these claims say."""

        async def ask(node: Node, places: Sequence[int]) -> list[bool]:
            some = [wanted[place] for place in places]
            numbers = sorted({number for place in places if (number := claims[place].block_number) is not None})
            others = await self._quorum.at(node).look_there(some, numbers)
            return [_is_alike(claims[place], other) for place, other in zip(places, others, strict=True)]

        return ask

    def _overdue(self, wanted: Sequence[WantedT], sightings: Sequence[Sighting]) -> set[int]:
        """Return the places of what the first node has not shown for so long that the others are asked."""
        now = asyncio.get_running_loop().time()
        overdue: set[int] = set()
        if not self._quorum.can_overrule:
            return overdue
        for place, (one, sighting) in enumerate(zip(wanted, sightings, strict=True)):
            name = one.transaction_hash
            if sighting.verdict is not Verdict.ABSENT:
                self._due.pop(name, None)
            elif now >= self._due.setdefault(name, now + self.overdue_seconds):
                self._due[name] = now + self.overdue_seconds
                overdue.add(place)
        while len(self._due) > _DOUBTS_KEPT:
            del self._due[next(iter(self._due))]
        return overdue

    def _remember(self, first: Node, transactions: Sequence[str], *, doubted: bool) -> None:
        """Tell the operator, once, of what one node shows and others do not for longer than a lag explains.

        From then on that node is asked last, where as many others as are needed do not show it.
        """
        now = asyncio.get_running_loop().time()
        for transaction in transactions:
            if not doubted:
                self._doubted.pop(transaction, None)
            elif now - self._doubted.setdefault(transaction, now) >= _DOUBT_TOLD_SECONDS:
                self._doubted[transaction] = float("inf")
                _LOG.error("nodes_show_different_things", node=first.position, transaction=transaction)
                if self._quorum.can_overrule:
                    self._quorum.overrule(first)
        while len(self._doubted) > _DOUBTS_KEPT:
            del self._doubted[next(iter(self._doubted))]


async def _one(found: Awaitable[T]) -> list[T]:
    return [await found]


def _doubted(one: Sighting) -> Sighting:
    return Sighting(Verdict.DOUBTED, shows_failure=one.verdict in FAILURES or one.shows_failure)


def _is_alike(one: Sighting, other: Sighting) -> bool:
    """Compare: the same verdict in the same block, and as good as final there too, if it is here."""
    is_same = (other.verdict, other.block_number, other.block_hash) == (one.verdict, one.block_number, one.block_hash)
    return is_same and (other.deep or not one.deep)
