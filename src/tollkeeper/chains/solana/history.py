"""Completeness of a Solana node's blocks in some slots (contract 5.2; security A-15; decision 0022).

The absence of a transaction from all blocks proves something only if no block is missing. A node that was away, or
could not keep up, goes on from a newer snapshot and lacks the blocks between. It still names an old block as its first,
and answers as if nothing had been executed in those that it lacks. A block's height is its parent's plus one, so
heights tell how many blocks there must be, while not every slot has a block.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.chains.solana.answers import FINALIZED, number_or_none, read_list, read_number, statuses_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.solana.reader import SolanaReader

_SLOTS_AT_ONCE: Final = 5_000
_SLOTS_AT_ONCE_MAX: Final = 100_000  # a megabyte
_SLOTS_MAX: Final = 2_000_000  # some nine days; only a node that lies makes us want more
_RECENT_SLOTS: Final = 9_000  # some hour
_UNLISTED_SLOTS: Final = 64  # who lags so much lacks nothing for that
_HEAD_ALONE: Final = {"transactionDetails": "none", "rewards": False, "maxSupportedTransactionVersion": 0, **FINALIZED}


class Unseen(NamedTuple):
    """Question to a node together with the list of its blocks, and a test that its answers do not show something."""

    calls: Sequence[Call]
    is_so: Callable[[Sequence[Answer]], bool]


class FinalizedBlock(NamedTuple):
    """A finalized block. `seconds`: its Unix time, None where the node does not say."""

    slot: int
    parent_slot: int
    height: int
    seconds: int | None


async def require_recent(reader: SolanaReader) -> None:
    """Raises: RpcUnavailable where the node does not show that it has all blocks of some hour."""
    if not await reader.missing.has_recent(reader.node, partial(_has_recent, reader)):
        msg = "the node does not show every block of the last hour, and what it does not show may be there"
        raise RpcUnavailable(msg)


async def _has_recent(reader: SolanaReader) -> bool:
    try:
        newest = await reader.final_slot()
        slots = range(max(0, newest + 1 - _RECENT_SLOTS), newest + 1)
        return await has_every_block(reader, slots, lambda block: block.slot > newest - _UNLISTED_SLOTS)
    except RpcUnavailable:
        return False


async def has_every_block(
    reader: SolanaReader,
    slots: range,
    is_behind: Callable[[FinalizedBlock], bool] | None = None,
    *,
    since: int | None = None,
    unseen: Unseen | None = None,
) -> bool:
    """Say whether the node has all finalized blocks of these slots, up to the last one, which has one.

    `is_behind`: what comes behind such a block does not matter. `since`: the first block must be no later than this
    Unix time. `unseen`: and does it show nothing of that? Raises: RpcUnavailable.
    """
    first: FinalizedBlock | None = None
    count = 0
    at_once = min(_SLOTS_AT_ONCE_MAX, max(_SLOTS_AT_ONCE, len(slots) // 10))
    for start in range(slots.start, slots.stop, at_once):
        if start - slots.start > _SLOTS_MAX:
            raise RpcUnavailable("a transaction would have to be looked for in too many blocks")
        listed = await _listed(reader, range(start, min(start + at_once, slots.stop)))
        if not listed:
            continue
        ends = [await _block(reader, slot) for slot in ((listed[0], listed[-1]) if first is None else (listed[-1],))]
        first, newest = first or ends[0], ends[-1]
        count += len(listed)
        begins = first.slot == slots.start or first.parent_slot < slots.start
        if not begins or newest.height - first.height + 1 != count:
            reader.missing.tell(reader.node)
            return False
        if since is not None and (first.seconds is None or first.seconds > since):
            return False
        if newest.slot == slots.stop - 1 or (is_behind is not None and is_behind(newest)):
            every = range(slots.start, newest.slot + 1)
            return unseen is None or await _lists_all_and_shows_nothing(reader, every, count, unseen)
    return False


def no_status_of(signatures: Sequence[str]) -> Unseen:
    """Ask that nothing became of any of these transactions. At most 256."""
    nothing = [None] * len(signatures)
    return Unseen([statuses_of(signatures)], lambda answers: read_list(answers[0], len(signatures)) == nothing)


async def _lists_all_and_shows_nothing(reader: SolanaReader, slots: range, count: int, unseen: Unseen) -> bool:
    """Say whether a node that shows nothing of it lists as many blocks. Raises: RpcUnavailable.

    Asked together, because behind one address there may be several nodes, of which one lacks blocks. Of more slots than
    one answer lists that is not asked.
    """
    if len(slots) > _SLOTS_AT_ONCE_MAX:
        return True
    blocks: Call = ("getBlocks", [slots.start, slots.stop - 1, FINALIZED])
    *shown, listed = await reader.ask([*unseen.calls, blocks])
    if not unseen.is_so(shown):
        return False
    has_all = isinstance(listed, list) and len(listed) == count
    if not has_all:
        reader.missing.tell(reader.node)
    return has_all


async def _listed(reader: SolanaReader, slots: range) -> list[int]:
    """Return those of them that have a block, in order. Raises: RpcUnavailable."""
    (answer,) = await reader.ask([("getBlocks", [slots.start, slots.stop - 1, FINALIZED])])
    if isinstance(answer, list):
        listed = [read_number(slot) for slot in answer]
        if all(slot in slots for slot in listed) and all(one < other for one, other in pairwise(listed)):
            return listed
    raise _not_shown(reader, "list the blocks that it has", answer)


async def _block(reader: SolanaReader, slot: int) -> FinalizedBlock:
    """Raises: RpcUnavailable, also for one whose parent the node lacks."""
    (answer,) = await reader.ask([("getBlock", [slot, _HEAD_ALONE])])
    try:
        shown: Any = answer
        parent_slot, height = read_number(shown["parentSlot"]), read_number(shown["blockHeight"])
        return FinalizedBlock(slot, parent_slot, height, number_or_none(shown.get("blockTime")))
    except (AttributeError, KeyError, TypeError) as error:
        raise _not_shown(reader, "show a block that it lists", answer) from error


def _not_shown(reader: SolanaReader, what: str, answer: Answer) -> RpcUnavailable:
    said = f": {answer.message}" if isinstance(answer, RpcError) else ""
    reason = f"the node does not {what}{said}"
    reader.missing.tell(reader.node, reason)
    return RpcUnavailable(reason)
