"""The books compared with the chain, in both directions: by `db check` and while serving (security I7).

The job reads each block once, well behind the newest, and remembers how far it came; the command reads from the first
block that the books name (a gateway's name none: from a day ago), or from where it is told. What differs is listed and
mends nothing. A gateway apart compares its sales, and only by the command: its hub does the rest. A hub apart keeps no
purchases: whether a stranger's payment to a seller is one, or was honoured by hand, the gateway's own command says; the
hub tells of it once, when it reads the block.
"""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from tollkeeper.chains.evm import payments
from tollkeeper.chains.evm.chain import EvmChain
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.chains.sightings import Expected, Verdict, require_agreement
from tollkeeper.chains.solana import payments as solana_payments
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.settlement.reconciliation import BookedPayment, Difference, compare
from tollkeeper.serving.nodes import chain_of
from tollkeeper.settings.model import Role
from tollkeeper.storage.books.reconciliation import Books, move_cursor, payments_in
from tollkeeper.storage.urls import open_snapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.settlement.reconciliation import ChainPayment, Entry
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.engine.database import Database


class ComparedChain:
    """A network of either family as the comparison reads it. What asks its nodes may raise RpcUnavailable."""

    def __init__(self, chain: EvmChain | SolanaChain) -> None:
        self._chain = chain
        self.name = chain.network.name
        self.open, self.look, self.close = chain.open, chain.look, chain.close
        self.day_blocks = 43_200 if isinstance(chain, EvmChain) else 216_000  # 43,200 of Base

    @property
    def asset(self) -> str:
        """The token's address, of an open chain."""
        return self._chain.require_asset().address

    async def newest(self) -> int:
        """Read the newest block that may be compared."""
        if isinstance(self._chain, EvmChain):
            return (await self._chain.latest_block()).number
        return await self._chain.reader.final_slot()

    async def payments(
        self, senders: Collection[str], sold_to: Collection[str], recipients: Sequence[str], blocks: range
    ) -> list[ChainPayment]:
        """Read at least those that `senders` sent to `recipients`, and those to `sold_to` whoever sent them.

        On EVM those to `recipients` are read whoever sent them, and `sold_to` are among these.
        """
        if isinstance(self._chain, EvmChain):
            return await payments.read_payments(self._chain, recipients, blocks)
        return await solana_payments.read_payments(self._chain, sorted(senders), sorted(sold_to), recipients, blocks)


def compared_chains(settings: Settings) -> list[ComparedChain]:
    """Every network of these settings that has a node."""
    chains = [chain_of(network, settings) for network in settings.networks.values() if network.rpc_urls]
    return [ComparedChain(one) for one in chains]


INTERVAL_SECONDS: Final = 60.0
# No reorganisation reaches a block this far behind the newest, and whatever it holds was recorded meanwhile.
BEHIND_BLOCKS: Final = 30
# Of a chain that was not compared for long: so much at a time, so that the cursor moves on.
_BLOCKS_AT_ONCE: Final = 20_000
_LOOKED_AT_ONCE: Final = 50
_LOG = structlog.get_logger("tollkeeper.serving.books.reconciliation")
REGISTRY: Final = CollectorRegistry()  # told by the process that compares, and by no other
_FOUND: Final = Counter(
    "tollkeeper_chain_differences", "Differences found between books and chain", ["rule"], registry=REGISTRY
)


async def compare_with_chain(settings: Settings, since_block: int | None = None) -> list[Difference]:
    """Every difference on every network of these settings that has a node.

    Raises: RpcUnavailable where a node cannot be asked, or nothing is there to be compared; StorageError, SealError.
    """
    found: list[Difference] = []
    chains = compared_chains(settings)
    if not chains:
        raise RpcUnavailable("no node is configured: set the rpc_url of a network")
    for chain in chains:
        try:
            await chain.open()
            newest = await chain.newest()
            if since_block is not None and since_block > newest:
                raise RpcUnavailable(f"block {since_block} is newer than the newest of {chain.name}, {newest}")
            with open_snapshot(settings.database_url) as snapshot, ThreadPoolExecutor(1) as aside:
                books = Books(snapshot, chain.name, chain.asset)
                if settings.role is Role.GATEWAY:
                    start = max(0, newest - chain.day_blocks) if since_block is None else since_block
                    found += await _compare_sales(chain, books, settings, range(start, newest + 1))
                else:
                    first = books.first_block() or 0 if since_block is None else since_block
                    sold_to = frozenset[str]() if settings.role is Role.HUB else books.sold_to()
                    found += await _compare_settlements(chain, books, aside, sold_to, range(first, newest + 1))
                if settings.encryption_keys is not None:
                    found += await _not_there(chain, books.honoured(settings.encryption_keys), "honoured")
        finally:
            await chain.close()
    return sorted(found)


def not_compared(settings: Settings) -> dict[str, int]:
    """Return how many payments the books have of each network and token that no node of these settings shows.

    Raises: StorageError.
    """
    shown = {(name, one.network.usdc.address) for name, one in settings.networks.items() if one.rpc_urls}
    with open_snapshot(settings.database_url) as snapshot:
        counted = payments_in(snapshot, of_sales=settings.role is Role.GATEWAY)
    return {
        f"{network}, {asset}": count for (network, asset), count in counted.items() if (network, asset) not in shown
    }


async def _compare_settlements(
    chain: ComparedChain, books: Books, aside: ThreadPoolExecutor, sold_to: frozenset[str], blocks: range
) -> list[Difference]:
    """Whatever takes as long as the books are large is done `aside`: the loop may be one that serves."""
    loop = asyncio.get_running_loop()
    signers = await loop.run_in_executor(aside, books.signers)
    recipients = await loop.run_in_executor(aside, books.recipients)
    found = await chain.payments(signers, sold_to, recipients, blocks)

    def compared() -> list[Difference]:
        entries = books.entries((payment.key for payment in found), blocks)
        # What we made ourselves, for another server, may be honoured too: it is in the books, and on the chain.
        made = {entry.key for entry in entries if entry.standing is BookedPayment.PAID}
        others = _not_honoured(books, [payment for payment in found if payment.key not in made])
        payments = [payment for payment in found if payment.key in made] + others
        return compare(entries, payments, signers, blocks, sold_to)

    return await loop.run_in_executor(aside, compared)


async def _compare_sales(chain: ComparedChain, books: Books, settings: Settings, blocks: range) -> list[Difference]:
    """Whoever sent them: the facilitator is somebody else. Sales name no block, so each is looked up."""
    assert settings.encryption_keys is not None  # noqa: S101 - a gateway's settings have them
    entries = books.sales(settings.encryption_keys)
    sold_to = frozenset(entry.pay_to for entry in entries)
    payments = _not_honoured(books, await chain.payments((), sold_to, sorted(sold_to), blocks))
    paid = [entry for entry in entries if entry.standing is BookedPayment.PAID]
    missing = await _not_there(chain, paid, "paid")
    return missing + compare(entries, payments, frozenset(), blocks, sold_to)


async def _not_there(chain: ComparedChain, entries: list[Entry], why: str) -> list[Difference]:
    """Those whose transaction does not show their transfer; `why` it should. Raises: RpcUnavailable."""
    missing: list[Difference] = []
    for first in range(0, len(entries), _LOOKED_AT_ONCE):
        some = entries[first : first + _LOOKED_AT_ONCE]
        sightings = await chain.look([_expected(entry) for entry in some])
        require_agreement(sightings)
        missing += [
            Difference(f"{why}_but_not_on_the_chain", entry.id, entry.transaction_hash)
            for entry, sighting in zip(some, sightings, strict=True)
            if sighting.verdict is not Verdict.TRANSFERRED
        ]
    return missing


def _not_honoured(books: Books, payments: list[ChainPayment]) -> list[ChainPayment]:
    """Without those that an operator checked by hand: they are others' transactions, and sales all the same."""
    return [payment for payment in payments if not books.is_honoured(payment.key)]


def _expected(entry: Entry) -> Expected:
    key = entry.key
    return Expected(entry.transaction_hash, key.asset, key.payer, entry.pay_to, entry.value, key.nonce)


async def keep_reconciling(
    settings: Settings,
    database: Database,
    interval_seconds: float = INTERVAL_SECONDS,
    behind_blocks: int = BEHIND_BLOCKS,
) -> None:
    """Compares the blocks that are new and old enough, every minute or, where that is slow, more rarely."""
    chains, pause = compared_chains(settings), interval_seconds
    try:
        while True:
            await asyncio.sleep(pause)
            begun = time.monotonic()
            for chain in chains:
                try:
                    await _go_on(chain, settings, database, behind_blocks)
                except (ApiError, RpcUnavailable) as error:
                    _LOG.warning("chain_not_compared", network=chain.name, reason=str(error))
                except Exception:  # noqa: BLE001 - logged; the next round tries again
                    _LOG.exception("chain_not_compared", network=chain.name)
            pause = max(interval_seconds, time.monotonic() - begun)
    finally:
        for chain in chains:
            with suppress(Exception):
                await chain.close()


async def _go_on(chain: ComparedChain, settings: Settings, database: Database, behind_blocks: int) -> None:
    await chain.open()
    end = await chain.newest() - behind_blocks + 1
    loop = asyncio.get_running_loop()
    over = threading.Event()
    # The thread ends first: whoever is cancelled waits for its last read, which is broken off, and then closes what it
    # reads.
    with open_snapshot(settings.database_url, over.is_set) as snapshot, ThreadPoolExecutor(1) as aside:
        try:
            books = Books(snapshot, chain.name, chain.asset)
            start = await loop.run_in_executor(aside, books.next_block)
            if start is None:
                start = await loop.run_in_executor(aside, books.first_block)
            if start is None:
                start = end  # nothing was settled yet: from now on
            blocks = range(max(0, start), min(end, start + _BLOCKS_AT_ONCE))
            differences: list[Difference] = []
            if blocks:
                sold_to = await loop.run_in_executor(aside, books.sold_to)
                differences = await _compare_settlements(chain, books, aside, sold_to, blocks)
        finally:
            over.set()
    for difference in differences:
        _FOUND.labels(difference.rule).inc()
        _LOG.error("chain_differs", rule=difference.rule, subject=difference.subject, found=difference.found)
    next_block = max(start, blocks.stop)
    await database.run(move_cursor(chain.name, chain.asset, next_block))
