"""When a transaction can be executed no longer, by proof (contract 5.2; security 5, A-15; decisions 0020 and 0022).

What holds a recent blockhash can be executed for 150 blocks. Where that ends was counted when it was signed, from a
height that one node named, and a node may lie. So each node is judged by its own finalized blocks, and a second proof
needs no such count: what was signed long ago by our clock and by the finalized blocks' own times, whose blockhash is
not taken any more, and that no block shows. Its blockhash was there when it was signed, or never. From then on the
blocks' times also say whether the node has all that could hold it: where it began was one node's word too. Either way
it must have all of them, and not only an old one (`history`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.solana.answers import CONFIRMED, FINALIZED, read_height, read_number, read_slot, read_value
from tollkeeper.chains.solana.blockhashes import BLOCKHASH_LIFETIME_BLOCKS, LAG_BLOCKS, Lifetime
from tollkeeper.chains.solana.history import FinalizedBlock, Unseen, has_every_block, no_status_of
from tollkeeper.core.purchases import AuthorizationStanding
from tollkeeper.core.settlement.states import LIFETIME_DOUBTED_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.chains.quorum import NodeQuorum
    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.solana.reader import SolanaReader

# Twice as many as a cluster has: what is looked for in too many slots is found all the same.
SLOTS_PER_SECOND_MAX: Final = 5
# So long, two slots, a node may be behind another one.
_ASKED_AGAIN_SECONDS: Final = (0.4, 0.4, 0.0)
_ENDS: Final[list[Call]] = [("getEpochInfo", [FINALIZED]), ("getFirstAvailableBlock", [])]


async def standing_of(reader: SolanaReader, blockhash: str) -> AuthorizationStanding:
    """Ask whether a transaction of this blockhash may be executed yet, and until which height. Raises: RpcUnavailable.

    A blockhash that the node does not know may be newer than the node: it is asked again for a moment.
    """
    for seconds in _ASKED_AGAIN_SECONDS:
        recent, height, final = await reader.ask(
            [
                ("isBlockhashValid", [blockhash, CONFIRMED]),
                ("getEpochInfo", [CONFIRMED]),
                ("getEpochInfo", [FINALIZED]),
            ]
        )
        last = read_height(height) + BLOCKHASH_LIFETIME_BLOCKS + LAG_BLOCKS
        standing = AuthorizationStanding(read_value(recent) is True, read_height(final), last)
        if standing.is_unused:
            break
        await asyncio.sleep(seconds)
    return standing


async def has_expired(
    quorum: NodeQuorum[SolanaReader], signature: str, blockhash: str, lifetime: Lifetime, doubted_since: int | None
) -> bool:
    """Say whether it is proven that the transaction of this blockhash was not executed and never will be.

    Every block that could hold it is finalized, the node still has all of them, and none shows it. The lifetime was
    one node's word, so none of those that are asked may take the blockhash still. `doubted_since`: when it was signed,
    in Unix seconds, where that is so long ago by our clock that its lifetime is no longer waited for, and that it may
    be executed yet is one node's word, too; else None. Raises: RpcUnavailable, also where the node keeps no history.

    Behind one address there may be several nodes, of which one lags: who shows no transaction must know of the block by
    which the end was told.
    """

    async def judge(reader: SolanaReader) -> bool:
        final_slot, recent, *ends = await reader.ask(
            [("getSlot", [FINALIZED]), ("isBlockhashValid", [blockhash, CONFIRMED]), *_ENDS]
        )
        if read_value(recent) is not False:
            return False
        newest = read_number(final_slot)
        if doubted_since is None:
            is_over, times = _has_ended(ends, lifetime), (0, 0)
        else:
            height, first_slot = _read_ends(ends)
            is_known = read_slot(recent) >= newest  # said by who knows of that block
            times = await _times(reader, first_slot, newest)
            is_over = is_known and _is_long_over(times, doubted_since, has_passed=height > lifetime.last_height)
        if not is_over or not await reader.shows_nothing(signature, max(newest, read_slot(recent))):
            return False
        if doubted_since is None:
            slots = range(lifetime.first_slot, newest + 1)
            unseen = no_status_of([signature])
            return await has_every_block(
                reader, slots, lambda block: block.height > lifetime.last_height, unseen=unseen
            )
        slots = range(first_slot, newest + 1)
        unseen = no_status_of([signature])
        return await _has_all_since(reader, lifetime.first_slot, slots, times[1], doubted_since, unseen=unseen)

    return bool(await quorum.agreed(judge, lambda has_expired: not has_expired and doubted_since is None))


def _has_ended(ends: Sequence[Answer], lifetime: Lifetime) -> bool:
    height, first_slot = _read_ends(ends)
    return first_slot <= lifetime.first_slot and height > lifetime.last_height


def _read_ends(ends: Sequence[Answer]) -> tuple[int, int]:
    """Return the height, and the first slot that the node has. Raises: RpcUnavailable."""
    height, first_slot = ends
    return read_height(height), read_number(first_slot)


async def _has_all_since(
    reader: SolanaReader, began: int, slots: range, seconds: int, signed: int, *, unseen: Unseen
) -> bool:
    """Say whether the node has every block in which what was signed then may be, and shows nothing of it.

    `slots`: from the first that it has, which is older, to the newest finalized one, of the time `seconds`. `began`:
    where somebody said that it begins, which saves looking through all since then. Raises: RpcUnavailable.
    """
    oldest, newest = slots.start, slots.stop - 1
    early = signed - LIFETIME_DOUBTED_SECONDS
    since_slots = max(seconds - early, 2 * LIFETIME_DOUBTED_SECONDS) * SLOTS_PER_SECOND_MAX
    far = max(oldest, newest - since_slots)
    near = max(far, min(began, newest) - LIFETIME_DOUBTED_SECONDS * SLOTS_PER_SECOND_MAX)
    for start in dict.fromkeys((near, far)):
        since, some = early if start > oldest else None, range(start, newest + 1)
        if await has_every_block(reader, some, _well_behind(signed), since=since, unseen=unseen):
            return True
    return False


def _well_behind(signed: int) -> Callable[[FinalizedBlock], bool]:
    """Make a test, for blocks in their order: is no blockhash of then taken in a block behind this one?"""
    height: int | None = None  # of a block that was made since

    def is_behind(block: FinalizedBlock) -> bool:
        nonlocal height
        if height is None and block.seconds is not None and block.seconds >= signed + LIFETIME_DOUBTED_SECONDS:
            height = block.height
        return height is not None and block.height >= height + BLOCKHASH_LIFETIME_BLOCKS

    return is_behind


async def _times(reader: SolanaReader, first_slot: int, final_slot: int) -> tuple[int, int]:
    """Read the Unix times of the node's first block, and of a later one. Who has slot 0 has every block."""
    slots = [final_slot, *([first_slot] if first_slot else [])]
    newest, *oldest = map(read_number, await reader.ask([("getBlockTime", [slot]) for slot in slots]))
    return min(oldest, default=0), newest


def _is_long_over(times: tuple[int, int], signed_seconds: int, *, has_passed: bool) -> bool:
    """Say whether the node has what was long before the signature, and its lifetime is over, or so long ago."""
    oldest, newest = times
    is_kept = oldest <= signed_seconds - LIFETIME_DOUBTED_SECONDS
    return is_kept and (has_passed or newest >= signed_seconds + LIFETIME_DOUBTED_SECONDS)
