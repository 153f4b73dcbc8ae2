"""How long a blockhash is taken still, and one that no node knows yet (contract 5.2; A-24, A-26; decision 0020).

A cluster lists its 150 newest blockhashes in an account, so their ages need no call of their own for each payment: the
list is read again where it lacks one that a node took later, and before a payment is refused by what is remembered. One
that a node does not know is too old, or so new that only the buyer's node has it: nothing shows which, so all nodes are
asked again for a moment. What is too short is decided in `core.solana`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.solana.answers import BASE64, CONFIRMED, read_account, read_height, read_slot, read_value
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.programs import RECENT_BLOCKHASHES_SYSVAR, read_recent_blockhashes
from tollkeeper.core.solana.rules import BLOCKS_LEFT_MIN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call, Rpc

# Lifetime of a transaction: what holds a recent blockhash can be executed for 150 blocks.

BLOCKHASH_LIFETIME_BLOCKS: Final = 150
# By so much a node that names the height may lag behind the one that simulated: providers spread calls over several.
LAG_BLOCKS: Final = 32


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Bounds of where the chain can hold a transaction that is sent from now on: a first slot and a last height."""

    first_slot: int
    last_height: int


_LOG = structlog.get_logger("tollkeeper.chains.solana")
LIST: Final[Call] = ("getAccountInfo", [RECENT_BLOCKHASHES_SYSVAR, BASE64])
_LISTING: Final[list[Call]] = [LIST, ("getEpochInfo", [CONFIRMED])]
_SLOT_SECONDS: Final = 0.4
# Providers spread calls over nodes of which one lags: so often a list is asked for that is as new as it must be.
_READS_MAX: Final = 3
# What a list does not hold is concluded from it for so long, so that a node's lie does not outlive the node.
_LIST_GOOD_SECONDS: Final = 2.0
# What was simulated is signed afterwards, and must not have grown old meanwhile.
_LIST_WAIT_SECONDS: Final = 2.0
_UNLISTED_SECONDS: Final = 60.0  # a node that lists nothing is not asked again for so long
# Those that are taken still, and as many before them; a node that makes up new ones makes us remember no more.
_REMEMBERED_MAX: Final = 4 * BLOCKHASH_LIFETIME_BLOCKS
# So often, a slot apart, all nodes are asked about a blockhash that nobody knew, and about so many at a time by name.
_ROUNDS: Final = 5
_NAMED_MAX: Final = 8
_AWAITED_MAX: Final = 1_000  # with those that are looked for in the nodes' lists
_AWAITED_OF_PAYER_MAX: Final = 2
_LAST_ROUND_SECONDS: Final = 1.0  # for what was asked and is not answered yet
_WAIT_SECONDS_MAX: Final = 3.0


class BlockhashAges:
    """The blockhashes that one network's nodes list, by the heights of their blocks."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._heights: dict[bytes, int] = {}
        self._newest = 0  # the height that was named with the list
        self._is_full = False  # a list of a young chain lacks nothing
        self._slot, self._read_at = -1, -math.inf
        self._unlisted_until = -math.inf
        self._is_apart = False
        self._reading = asyncio.Lock()

    async def blocks_left(self, blockhash: bytes, slot: int, height: int) -> int | None:
        """For so many blocks after `height` a blockhash is taken that a node took in `slot`; None where none says.

        Nobody is refused by what is only remembered: the heights that it was counted from, and by, may be of nodes that
        lag, or lied. A list as new as the answer needs none.
        """
        now = asyncio.get_running_loop().time
        for again in range(_READS_MAX):
            left = self._left_at(height, blockhash)
            if left is not None and left >= BLOCKS_LEFT_MIN:
                return left
            if self._slot >= slot and now() - self._read_at < _LIST_GOOD_SECONDS:
                listed = 0 if self._is_full else None
                return listed if left is None else self._left_at(self._newest, blockhash)
            if now() < self._unlisted_until:
                return left
            is_due = left is None and not again
            await asyncio.sleep(0 if is_due else self._read_at + _SLOT_SECONDS - now())
            await self._read_once(self._read_at)
        self._unlisted_until = now() + _LIST_GOOD_SECONDS  # such a list is not waited for each time
        return self._left_at(height, blockhash)

    def _left_at(self, height: int, blockhash: bytes) -> int | None:
        made = self._heights.get(blockhash)
        if made is None:
            return None
        return min(max(0, made + BLOCKHASH_LIFETIME_BLOCKS - height), BLOCKHASH_LIFETIME_BLOCKS)

    def lacks(self, blockhash: bytes) -> bool:
        """Is it worth asking for `LIST` beside the question whether a node takes this one? At most once a slot."""
        now = asyncio.get_running_loop().time()
        is_due = now >= max(self._read_at + _SLOT_SECONDS, self._unlisted_until)
        return is_due and not self._is_apart and blockhash not in self._heights

    def ask_apart(self) -> None:
        """Ask for the list alone from now on: a batch with it was not answered, and the list may be the reason."""
        self._is_apart = True

    def learn(self, listed: Answer, height: Answer) -> None:
        """Take in a list, and the height that the same node named with it."""
        try:
            blockhashes, slot, newest = _listed(listed), read_slot(listed), read_height(height)
        except RpcUnavailable:
            self.give_up()
            return
        self._read_at, self._is_apart = asyncio.get_running_loop().time(), False
        self._slot, self._newest, self._is_full = slot, newest, len(blockhashes) == BLOCKHASH_LIFETIME_BLOCKS
        kept = newest - 2 * BLOCKHASH_LIFETIME_BLOCKS
        former = {one: made for one, made in self._heights.items() if kept <= made <= newest}
        self._heights = former if len(former) <= _REMEMBERED_MAX else {}
        self._heights.update((one, newest - age) for age, one in enumerate(blockhashes))

    def give_up(self) -> None:
        """No node lists them, or answers where the list is asked for: for a minute nobody asks."""
        self._read_at = asyncio.get_running_loop().time()
        self._unlisted_until = self._read_at + _UNLISTED_SECONDS
        _LOG.warning("blockhashes_not_listed", account=RECENT_BLOCKHASHES_SYSVAR)

    def has_passed(self, blockhash: bytes, height: int) -> bool:
        """Say whether it is known to be taken no more at this height."""
        made = self._heights.get(blockhash)
        return made is not None and made + BLOCKHASH_LIFETIME_BLOCKS < height

    async def _read_once(self, read_at: float) -> None:
        """Read the list unless somebody else has since then."""
        async with self._reading:
            if self._read_at != read_at:
                return
            try:
                async with asyncio.timeout(_LIST_WAIT_SECONDS):
                    self.learn(*await self._rpc.ask(_LISTING))
            except (RpcUnavailable, TimeoutError):
                self.give_up()


@dataclass(slots=True)
class _Awaited:
    """One blockhash, and how often it may still be asked about."""

    payer: str  # whose payment it was first asked for
    done: asyncio.Future[Node | None]
    rounds: int = _ROUNDS


class Newcomers:
    """Blockhashes that a network's nodes may be about to know: asked about together, once a slot.

    Few are asked about by name, the longest awaited. Where there are more, which anybody can make for next to nothing,
    each node's list of the newest tells of all of them at once.
    """

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._awaited: dict[str, _Awaited] = {}
        self._asking: asyncio.Task[None] | None = None
        self._answering: dict[Node, asyncio.Task[None]] = {}

    async def known_by(self, blockhash: bytes, payer: str) -> Node | None:
        """Return a node that takes it now, or in a moment; None where none does, or too many are asked about."""
        name, loop = encode_key(blockhash), asyncio.get_running_loop()
        if name not in self._awaited:
            of_payer = sum(one.payer == payer for one in self._awaited.values())
            if len(self._awaited) >= _AWAITED_MAX or of_payer >= _AWAITED_OF_PAYER_MAX:
                return None
            self._awaited[name] = _Awaited(payer, loop.create_future())
            if self._asking is None:
                self._asking = loop.create_task(self._ask())
        try:
            async with asyncio.timeout(_WAIT_SECONDS_MAX):  # nodes may hang, and there may be other names
                return await asyncio.shield(self._awaited[name].done)
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Await nothing any more."""
        tasks = [*self._answering.values(), *([] if self._asking is None else [self._asking])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._awaited:
                ends = loop.time() + _SLOT_SECONDS
                names = list(self._awaited)
                self._begin(names)
                is_last = any(one.rounds == 1 for one in self._awaited.values())
                if self._answering:
                    seconds = _LAST_ROUND_SECONDS if is_last else _SLOT_SECONDS
                    await asyncio.wait(self._answering.values(), timeout=seconds)
                for name in names:
                    awaited = self._awaited.get(name)  # none where a node knew it
                    if awaited is not None:
                        awaited.rounds -= 1
                        if not awaited.rounds:
                            self._tell(name, None)
                await asyncio.sleep(max(0, ends - loop.time()) if self._awaited else 0)
        finally:
            self._asking = None
            for name in tuple(self._awaited):
                self._tell(name, None)

    def _begin(self, names: Sequence[str]) -> None:
        """Ask each node about them that has answered what it was asked before: one that hangs is not waited for."""
        for node in self._rpc.nodes.all:
            if not node.barred and node not in self._answering:
                task = asyncio.get_running_loop().create_task(self._ask_of(node, names))
                self._answering[node] = task
                task.add_done_callback(lambda _task, node=node: self._answering.pop(node))  # type: ignore[misc] # of this turn

    async def _ask_of(self, node: Node, names: Sequence[str]) -> None:
        named = names[:_NAMED_MAX]
        try:
            answers = await self._rpc.ask_of(node, [("isBlockhashValid", [name, CONFIRMED]) for name in named])
            for name, answer in zip(named, answers, strict=True):
                if _is_taken(answer):
                    self._tell(name, node)
            if len(names) > len(named):
                (listed,) = await self._rpc.ask_of(node, [LIST])
                for one in _listed(listed):
                    self._tell(encode_key(one), node)
        except RpcUnavailable:
            return

    def _tell(self, name: str, node: Node | None) -> None:
        """Tell those who wait for it, and nobody twice."""
        awaited = self._awaited.pop(name, None)
        if awaited is not None:
            awaited.done.set_result(node)


def _listed(answer: Answer) -> list[bytes]:
    """Return the newest blockhashes, the newest first. Raises: RpcUnavailable."""
    blockhashes = read_recent_blockhashes(read_account(read_value(answer)) or b"")
    if blockhashes is None:
        raise RpcUnavailable("the node does not list the newest blockhashes")
    return blockhashes


def _is_taken(answer: Answer) -> bool:
    try:
        return read_value(answer) is True
    except RpcUnavailable:
        return False
