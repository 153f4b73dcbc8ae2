"""What several nodes of a network show alike, where one node's word is not enough (contract 5; security A-15).

A node that answers consistently with itself can show a transfer that nobody made, or deny one that was. So what one
node shows of a payment's outcome counts once another one, asked for itself, shows the same: the same verdict in the
same block, as deep there. Only where none of the others can be reached, or has seen a block for long, one node's word
has to do. Where the operator names a number of nodes, it is that many and nothing else will do. What they do not show
alike is waited for: nothing fails by it, and nothing succeeds. Which questions need this, who asks decides (decision
0040).
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import structlog

from tollkeeper.chains.authorizations import AuthorizationReader
from tollkeeper.chains.blocks import read_block
from tollkeeper.chains.receipts import DOUBTED, Expected, ReceiptReader, Sighting, Verdict
from tollkeeper.chains.rpc import RpcUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Rpc

_LOG = structlog.get_logger("tollkeeper.chains")
# A node whose newest block is so old by our clock stands still, and has no say.
_STANDS_STILL_SECONDS: Final = 600
# What nodes do not show alike for so long is told to the operator.
_DOUBT_TOLD_SECONDS: Final = 60.0
_DOUBTS_KEPT: Final = 10_000
# How many show the same where no number is configured, and others can be reached.
_USUALLY: Final = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class View:
    """What one node shows, or in turn whichever answers."""

    authorizations: AuthorizationReader
    receipts: ReceiptReader


class Witnesses(ABC):
    """The nodes of a network, each asked for itself. `needed`: how many must show the same; 0: two, where possible."""

    def __init__(self, rpc: Rpc, needed: int) -> None:
        self._rpc = rpc
        self.is_fixed = needed > 0
        self.needed = needed or _USUALLY

    async def agreed_by(self, judge: Callable[[Node], Awaitable[T]], is_open: Callable[[T], bool]) -> T | None:
        """What the first node's facts come to, once enough others' come to an equal one; None where they do not.

        What `is_open` says nothing is concluded yet, and needs nobody else's word. Raises: RpcUnavailable where no node
        answers.
        """

        async def judge_one(node: Node) -> list[T]:
            return [await judge(node)]

        (found,) = await self.agreed_each_by(judge_one, is_open)
        return found

    async def agreed_each_by(
        self, judge: Callable[[Node], Awaitable[list[T]]], is_open: Callable[[T], bool]
    ) -> list[T | None]:
        """As `agreed_by`, of several things at once, each for itself. Raises: RpcUnavailable where no node answers."""
        first, found = await self.first(judge)
        concluded = [place for place, one in enumerate(found) if not is_open(one)]
        if not concluded:
            return [*found]

        async def ask(node: Node, places: Sequence[int]) -> list[bool]:
            others = await judge(node)
            return [others[place] == found[place] for place in places]

        vouched = await self.vouched(first, concluded, ask)
        return [one if is_open(one) or place in vouched else None for place, one in enumerate(found)]

    async def first(self, ask: Callable[[Node], Awaitable[T]]) -> tuple[Node, T]:
        """The answer of the best node that gives one.

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

    async def vouched(
        self, first: Node, places: Sequence[int], ask: Callable[[Node, Sequence[int]], Awaitable[list[bool]]]
    ) -> set[int]:
        """Those of these claims of `first` that enough others share, as `ask` says of each of the others."""
        nodes, loop = self._rpc.nodes, asyncio.get_running_loop()
        alike = Counter(places)
        denied: set[int] = set()
        may_be_alone = not self.is_fixed
        for node in nodes.in_order(loop.time()):
            asked = [place for place in places if alike[place] < self.needed]
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
        return {place for place in places if alike[place] >= self.needed or (may_be_alone and place not in denied)}

    async def _stands_still(self, node: Node, first: Node) -> bool:
        """Does this node itself say that it has seen no block for long, and the first one, that there are newer ones?

        What another one says of it does not count, and where no block came for long it knows as much as the first.
        """
        try:
            seen_seconds = await self.newest_seconds(node)
            is_old = seen_seconds < time.time() - _STANDS_STILL_SECONDS
            return is_old and seen_seconds < await self.newest_seconds(first)
        except RpcUnavailable:
            return False

    @abstractmethod
    async def newest_seconds(self, node: Node) -> int:
        """The Unix time of this node's newest block. Raises: RpcUnavailable."""


class EvmWitnesses(Witnesses):
    """Those of an EVM network."""

    def __init__(self, rpc: Rpc, asset: str, needed: int) -> None:
        super().__init__(rpc, needed)
        self._views: dict[int, View] = {}
        for node in rpc.nodes.all:
            ask = partial(rpc.ask_of, node)
            self._views[node.position] = View(AuthorizationReader(ask, asset), ReceiptReader(ask))

    def view(self, node: Node) -> View:
        """What this node alone shows."""
        return self._views[node.position]

    async def agreed(self, judge: Callable[[View], Awaitable[T]], is_open: Callable[[T], bool]) -> T | None:
        """As `agreed_by`, of the nodes' views."""
        return await self.agreed_by(lambda node: judge(self.view(node)), is_open)

    async def newest_seconds(self, node: Node) -> int:
        """Of the block that it calls latest."""
        (block,) = await self._rpc.ask_of(node, [("eth_getBlockByNumber", ["latest", False])])
        return read_block(block).timestamp_seconds


class Vouched(ABC, Generic[T]):
    """Reads what enough different nodes show alike; a `T` says which transaction."""

    def __init__(self, witnesses: Witnesses) -> None:
        self._all = witnesses
        self._doubted: dict[str, float] = {}  # transactions, and since when they are

    @abstractmethod
    async def look_at(self, node: Node, wanted: Sequence[T]) -> list[Sighting]:
        """What this node shows. Raises: RpcUnavailable."""

    @abstractmethod
    async def look_there(self, node: Node, wanted: Sequence[T], numbers: Sequence[int]) -> list[Sighting]:
        """What this node shows of what another one saw in these blocks. Raises: RpcUnavailable."""

    @abstractmethod
    def name_of(self, one: T) -> str:
        """The transaction's name."""

    async def look(self, wanted: Sequence[T]) -> list[Sighting]:
        """What is shown now, in the order asked. Raises: RpcUnavailable."""
        first, sightings = await self._all.first(lambda node: self.look_at(node, wanted))
        seen = [place for place, one in enumerate(sightings) if one.verdict is not Verdict.ABSENT]
        if not seen:
            return sightings

        async def ask(node: Node, places: Sequence[int]) -> list[bool]:
            some = [wanted[place] for place in places]
            numbers = sorted({number for place in places if (number := sightings[place].block_number) is not None})
            others = await self.look_there(node, some, numbers)
            return [_is_alike(sightings[place], other) for place, other in zip(places, others, strict=True)]

        vouched = await self._all.vouched(first, seen, ask)
        doubted = set(seen) - vouched
        self._remember(first, [self.name_of(wanted[place]) for place in vouched], doubted=False)
        self._remember(first, [self.name_of(wanted[place]) for place in doubted], doubted=True)
        return [DOUBTED if place in doubted else one for place, one in enumerate(sightings)]

    def _remember(self, first: Node, transactions: Sequence[str], *, doubted: bool) -> None:
        """Tells the operator, once, of what one node shows and others do not for longer than a lag explains."""
        now = asyncio.get_running_loop().time()
        for transaction in transactions:
            if not doubted:
                self._doubted.pop(transaction, None)
            elif now - self._doubted.setdefault(transaction, now) >= _DOUBT_TOLD_SECONDS:
                self._doubted[transaction] = float("inf")
                _LOG.error("nodes_show_different_things", node=first.position, transaction=transaction)
        while len(self._doubted) > _DOUBTS_KEPT:
            del self._doubted[next(iter(self._doubted))]


class VouchedReader(Vouched[Expected]):
    """Of an EVM network's receipts."""

    def __init__(self, witnesses: EvmWitnesses) -> None:
        super().__init__(witnesses)
        self._witnesses = witnesses

    async def look_at(self, node: Node, wanted: Sequence[Expected]) -> list[Sighting]:
        """As its receipts say."""
        return await self._witnesses.view(node).receipts.look(wanted)

    async def look_there(self, node: Node, wanted: Sequence[Expected], numbers: Sequence[int]) -> list[Sighting]:
        """As its receipts say, and its blocks of these numbers."""
        return await self._witnesses.view(node).receipts.look_there(wanted, numbers)

    def name_of(self, one: Expected) -> str:
        """Its hash."""
        return one.transaction_hash


def _is_alike(one: Sighting, other: Sighting) -> bool:
    """The same verdict in the same block, and as good as final there too, if it is here."""
    is_same = (other.verdict, other.block_number, other.block_hash) == (one.verdict, one.block_number, one.block_hash)
    return is_same and (other.deep or not one.deep)
