"""Reader of a Solana network's facts by one node, or by whichever node answers in turn (`chains.quorum`).

What is read of a payment before it is settled comes in one batch, so that it is of one moment. Whether a payment is
good is decided in `core.solana`.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.nodes import Node
from tollkeeper.chains.replies import Answer, RpcError, RpcUnavailable
from tollkeeper.chains.rpc import Call
from tollkeeper.chains.solana.answers import (
    BASE64,
    CONFIRMED,
    FINAL,
    FINALIZED,
    read_error,
    read_flag,
    read_height,
    read_list,
    read_number,
    read_sighting,
    read_slot,
    read_token,
    read_value,
    statuses_of,
)
from tollkeeper.chains.solana.blockhashes import (
    BLOCKHASH_LIFETIME_BLOCKS,
    LAG_BLOCKS,
    LIST,
    BlockhashAges,
    Lifetime,
    Newcomers,
)
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.rules import BLOCKS_LEFT_MIN, SolanaFacts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.rpc import Rpc
    from tollkeeper.chains.sightings import Sighting
    from tollkeeper.chains.solana.missing_blocks import MissingBlocks
    from tollkeeper.chains.solana.searches import Searches
    from tollkeeper.core.solana.programs import TokenAccount
    from tollkeeper.core.solana.rules import SolanaAsset, SolanaTransfer

STATUSES_MAX: Final = 256  # that one question may be about
_SIMULATION: Final = {"sigVerify": False, "replaceRecentBlockhash": False, **BASE64}
_HEIGHT: Final[Call] = ("getEpochInfo", [CONFIRMED])
BLOCKHASH_UNKNOWN: Final = "BlockhashNotFound"  # of a simulation: too old, or not seen yet


@dataclass(frozen=True, slots=True)
class Sought:
    """A transaction by its signature. `is_final_needed`: a sighting is deep once finalized, not once confirmed."""

    transaction_hash: str
    is_final_needed: bool


@dataclass(frozen=True, slots=True)
class Simulation:
    """Result of simulating a settlement.

    `error` None: it would pass. `fee_money`: the fee payer's balance, in lamports.

    `blocks_left`: the number of blocks for which the blockhash of a passing transaction stays valid; None if no node
    says. `reaches`: the account to be paid still belongs to the wallet that it was made for. `balance`: how much the
    payer can pay from its account.
    """

    error: str | None
    lifetime: Lifetime
    fee_money: int
    blocks_left: int | None = None
    reaches: bool = False
    balance: int = 0

    @property
    def ends_too_soon(self) -> bool:
        """Is it taken for too few blocks to be worth a signature?"""
        return self.blocks_left is not None and self.blocks_left < BLOCKS_LEFT_MIN


@dataclass(frozen=True, slots=True)
class SharedReads:
    """Parts that all readers of one network share: its asset, what is remembered, and whose turn it is."""

    rpc: Rpc
    asset: SolanaAsset
    ages: BlockhashAges
    newcomers: Newcomers
    searches: Searches
    missing: MissingBlocks

    def at(self, node: Node) -> SolanaReader:
        """Return the reader of this node alone."""
        return SolanaReader(self, node, partial(self.rpc.ask_of, node))

    def of_any(self) -> SolanaReader:
        """Return the reader of whichever node answers in turn; what it lacks is told of the first."""
        # A configuration without a node is examined, too (`config check`): then every question is refused.
        first = self.rpc.nodes.all[0] if self.rpc.nodes.all else Node(0, "")
        return SolanaReader(self, first, self.rpc.ask)


class SolanaReader:
    """Reader of payments' facts, statuses and blocks."""

    def __init__(
        self, shared: SharedReads, node: Node, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]]
    ) -> None:
        """`ask` returns the answers to several reads, or raises RpcUnavailable."""
        self._shared = shared
        self.ask = ask
        self.node = node
        self.token_program = shared.asset.token_program
        self.searches = shared.searches
        self.missing = shared.missing

    async def state(self, transfer: SolanaTransfer, *, waits: bool = True) -> SolanaFacts:
        """Return the chain's facts about a payment, read in one batch. Raises: RpcUnavailable.

        `waits`: wait for a moment for a blockhash that no node knows. `simulate` waits too, so before it this need not.
        """
        facts = await self._facts(transfer)
        if facts.is_blockhash_valid or not waits:
            return facts
        knowing = await self._knowing(transfer)
        return facts if knowing is None else await knowing._facts(transfer)  # noqa: SLF001 - of this class

    async def simulate(self, transfer: SolanaTransfer) -> Simulation:
        """Simulate settling now, in one batch.

        The blockhash of a transaction that passes is recent now, and for 150 blocks at most. Raises: RpcUnavailable.
        """
        simulation = await self._simulated(transfer)
        if simulation.error != BLOCKHASH_UNKNOWN:
            return simulation
        knowing = await self._knowing(transfer)
        return simulation if knowing is None else await knowing._simulated(transfer)  # noqa: SLF001 - of this class

    async def _knowing(self, transfer: SolanaTransfer) -> SolanaReader | None:
        """Return the reader of a node that takes the blockhash; None where none does. Raises: RpcUnavailable.

        Nobody waits who does not hold what he pays, of this token and himself: else anybody could take the few places,
        for nothing.
        """
        blockhash = transfer.transaction.message.recent_blockhash
        accounts, height = await self.ask([_accounts(transfer), _HEIGHT])
        source, _ = self._held(accounts)
        holder = self._shared.asset.holder(transfer.source, source).wallet
        if source is None or source.amount < transfer.value or holder != transfer.payer:
            return None
        if self._shared.ages.has_passed(blockhash, read_height(height)):
            return None
        node = await self._shared.newcomers.known_by(blockhash, transfer.payer)
        return None if node is None else self._shared.at(node)

    async def _facts(self, transfer: SolanaTransfer) -> SolanaFacts:
        accounts, recent, simulation, height = await self._ask_of_new(
            transfer,
            [
                _accounts(transfer),
                _recent(transfer),
                _simulation(transfer),
                _HEIGHT,
            ],
        )
        source, destination = self._held(accounts)
        is_recent = read_flag(recent)
        left = await self._blocks_left(transfer, recent, height) if is_recent else None
        return SolanaFacts(source, destination, is_recent, read_error(simulation), left)

    async def _simulated(self, transfer: SolanaTransfer) -> Simulation:
        money_of = ("getBalance", [transfer.fee_payer, CONFIRMED])
        simulation, money, accounts, height = await self._ask_of_new(
            transfer, [_simulation(transfer), money_of, _accounts(transfer), _HEIGHT]
        )
        error, (source, found) = read_error(simulation), self._held(accounts)
        left = await self._blocks_left(transfer, simulation, height) if error is None else None
        last_height = read_height(height) + (BLOCKHASH_LIFETIME_BLOCKS if left is None else left) + LAG_BLOCKS
        lifetime = Lifetime(read_slot(simulation), last_height)
        reaches = self._shared.asset.holder(transfer.destination, found).is_its_own
        balance = 0 if source is None else source.money_of(transfer.payer)
        return Simulation(error, lifetime, read_number(read_value(money)), left, reaches, balance)

    async def _ask_of_new(self, transfer: SolanaTransfer, calls: Sequence[Call]) -> list[Answer]:
        """Return the answers; the list of blockhashes comes with them where it is due. The last call is `_HEIGHT`.

        Raises: RpcUnavailable.
        """
        if not self._shared.ages.lacks(transfer.transaction.message.recent_blockhash):
            return await self.ask(calls)
        try:
            *answers, height, listed = await self.ask([*calls, LIST])
        except RpcUnavailable:
            self._shared.ages.ask_apart()  # if it is the list that is not answered, the next payment gets its answers
            raise
        self._shared.ages.learn(listed, height)
        return [*answers, height]

    async def _blocks_left(self, transfer: SolanaTransfer, taken: Answer, height: Answer) -> int | None:
        blockhash = transfer.transaction.message.recent_blockhash
        return await self._shared.ages.blocks_left(blockhash, read_slot(taken), read_height(height))

    async def look(self, wanted: Sequence[Sought]) -> list[Sighting]:
        """Return the transactions' statuses, in the order asked. Raises: RpcUnavailable."""
        signatures = [one.transaction_hash for one in wanted]
        pages = [signatures[start : start + STATUSES_MAX] for start in range(0, len(wanted), STATUSES_MAX)]
        answers = await self.ask([statuses_of(page) for page in pages])
        statuses = [read_list(answer, len(page)) for answer, page in zip(answers, pages, strict=True)]
        shown = (status for page in statuses for status in page)
        return [read_sighting(status, _deep_enough(one)) for one, status in zip(wanted, shown, strict=True)]

    async def look_there(self, wanted: Sequence[Sought], _numbers: Sequence[int]) -> list[Sighting]:
        """Return the same: a status is of the branch that its node follows."""
        return await self.look(wanted)

    async def newest_seconds(self) -> int:
        """Return the time of the slot that is called confirmed; a slot stands for a block there."""
        slot = await self._whole(("getSlot", [CONFIRMED]))
        return await self._whole(("getBlockTime", [slot]))

    async def _whole(self, call: Call) -> int:
        (answer,) = await self.ask([call])
        if isinstance(answer, RpcError) or type(answer) is not int:
            raise RpcUnavailable("the node does not say how old its newest block is")
        return answer

    async def shows_nothing(self, signature: str, slot: int) -> bool:
        """Say whether a node that knows of this slot shows nothing of the transaction. Raises: RpcUnavailable."""
        (answer,) = await self.ask([statuses_of([signature])])
        (status,) = read_list(answer, 1)
        return status is None and read_slot(answer) >= slot

    async def final_slot(self) -> int:
        """Return the newest finalized slot. Raises: RpcUnavailable."""
        (slot,) = await self.ask([("getSlot", [FINALIZED])])
        return read_number(slot)

    async def first_slot(self) -> int:
        """Return the first slot whose block the node has. Raises: RpcUnavailable."""
        (slot,) = await self.ask([("getFirstAvailableBlock", [])])
        return read_number(slot)

    async def see_final(self, wanted: Sequence[str]) -> tuple[int, list[Sighting]]:
        """Return the newest finalized slot, and what becomes of these transactions there: `deep` is finalized.

        Behind one address there may be several nodes, of which one lags: it is no newer than who shows them knows of.
        At most 256. Raises: RpcUnavailable.
        """
        slot, statuses = await self.ask([("getSlot", [FINALIZED]), statuses_of(wanted)])
        newest = min(read_number(slot), read_slot(statuses))
        return newest, [read_sighting(status, {FINAL}) for status in read_list(statuses, len(wanted))]

    def _held(self, accounts: Answer) -> list[TokenAccount | None]:
        """Return source and destination; None for what is no account of the asset's program. Raises: RpcUnavailable."""
        return [read_token(one, self.token_program) for one in read_list(accounts, 2)]


def _deep_enough(one: Sought) -> set[str]:
    return {FINAL} if one.is_final_needed else {"confirmed", FINAL}


def _recent(transfer: SolanaTransfer) -> Call:
    return "isBlockhashValid", [encode_key(transfer.transaction.message.recent_blockhash), CONFIRMED]


def _accounts(transfer: SolanaTransfer) -> Call:
    return "getMultipleAccounts", [[transfer.source, transfer.destination], BASE64]


def _simulation(transfer: SolanaTransfer) -> Call:
    return "simulateTransaction", [base64.b64encode(transfer.transaction.encode()).decode(), _SIMULATION]
