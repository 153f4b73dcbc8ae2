"""One Solana network behind its nodes: facts of a payment, sending, waiting (specification 2.3, 4.4; A-15).

`open` checks each node's genesis hash and the mint. A transaction is simulated without our signature, which it gets
only when it passed. What was executed and failed is told from what was executed before its confirmation is looked at.
Whether a payment is good is decided in `core.solana`, what a settlement becomes in the hub.
"""

from __future__ import annotations

import base64
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import structlog

from tollkeeper.chains.evm.chain import NOT_PREPARED
from tollkeeper.chains.evm.rebroadcast import Rebroadcast
from tollkeeper.chains.evm.receipts import Expected, ReceiptWatcher, Sighting
from tollkeeper.chains.rpc import Answer, Call, Rpc, RpcUnavailable
from tollkeeper.chains.solana.answers import (
    FINAL,
    number_or_none,
    read_account,
    read_accounts,
    read_blockhash,
    read_error,
    read_flag,
    read_height,
    read_list,
    read_number,
    read_sighting,
    read_slot,
    read_token,
    read_value,
)
from tollkeeper.chains.solana.blockhashes import LIST, BlockhashAges, Newcomers
from tollkeeper.chains.solana.expiry_proof import BLOCKHASH_LIFETIME_BLOCKS, LAG_BLOCKS, Lifetime
from tollkeeper.chains.solana.history import MissingBlocks
from tollkeeper.chains.solana.payment_lookup import Searches
from tollkeeper.chains.solana.quorum import NodeReads, SolanaWitnesses, Sought, VouchedStatuses
from tollkeeper.chains.solana.sender import submit, submit_to_all
from tollkeeper.core.limits import SETTLEMENTS_UNDER_WAY_MAX
from tollkeeper.core.settlement.proof import Depths
from tollkeeper.core.solana import BLOCKS_LEFT_MIN, FeePolicy, SolanaAsset, SolanaFacts
from tollkeeper.core.solana.base58 import encode_key
from tollkeeper.core.solana.programs import (
    HARMLESS_EXTENSIONS,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    TokenAccount,
    read_compute_unit_limit,
    read_compute_unit_price,
    read_mint,
)
from tollkeeper.core.solana.recipients import MULTISIG_SIZE_BYTES, Account, no_wallet

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.chain import Submission
    from tollkeeper.chains.nodes import Node
    from tollkeeper.core.networks import Network
    from tollkeeper.core.solana import SolanaTransfer
    from tollkeeper.core.solana.recipients import Holder, NoWallet

T = TypeVar("T")

_LOG = structlog.get_logger("tollkeeper.chains.solana")
LAMPORTS_PER_SIGNATURE: Final = 5_000
RENT_EXEMPT_LAMPORTS: Final = 890_880  # without so much an account that holds nothing else pays no fee
_SIGNATURES: Final = 2
_MICRO_LAMPORTS: Final = 10**6
STATUSES_MAX: Final = 256  # that one question may be about
_CONFIRMED: Final = {"commitment": "confirmed"}
_FINALIZED: Final = {"commitment": FINAL}
_BASE64: Final = {"encoding": "base64", **_CONFIRMED}
_SIMULATION: Final = {"sigVerify": False, "replaceRecentBlockhash": False, **_BASE64}
_HEIGHT: Final[Call] = ("getEpochInfo", [_CONFIRMED])
_HEAD: Final[list[Call]] = [("getSlot", [_CONFIRMED]), _HEIGHT]
BLOCKHASH_UNKNOWN: Final = "BlockhashNotFound"  # of a simulation: too old, or not seen yet


@dataclass(frozen=True, slots=True)
class SolanaConfig:
    """How to reach and use one Solana network. An empty `asset` means the network's USDC.

    `is_token_2022`: the asset belongs to that program, and not to SPL Token.
    `is_final_needed`: an outcome stands once it is finalized (about 13 s), not once it is confirmed (about 1 s), each
    time once `confirm_nodes` nodes show it; 0 means two, where another one can be reached.
    The budget is what fees may cost in an hour, in lamports.
    """

    network: Network
    rpc_urls: tuple[str, ...]
    asset: str = ""
    is_token_2022: bool = False
    is_final_needed: bool = False
    confirm_nodes: int = 0
    depths: Depths = field(default_factory=Depths)  # of an amount whose depth is above 1 an outcome is final, too
    compute_limit_max: int = 400_000
    compute_price_max_micro_lamports: int = 100_000
    fee_budget_per_hour_lamports: int = 2_000_000_000
    settlements_max: int = SETTLEMENTS_UNDER_WAY_MAX
    min_value: int = 0  # of a payment, in base units: what moves less is not worth its fee
    timeout_seconds: float = 10.0

    @property
    def token_program(self) -> str:
        """The program that the asset belongs to."""
        return TOKEN_2022_PROGRAM if self.is_token_2022 else TOKEN_PROGRAM

    @property
    def fee_max_lamports(self) -> int:
        """Most that one settlement costs."""
        return _fee_lamports(self.compute_limit_max, self.compute_price_max_micro_lamports)

    def policy(self, fee_payers: Sequence[str]) -> FeePolicy:
        """Return the bounds of what a transaction may make these fee payers pay."""
        return FeePolicy(tuple(fee_payers), self.compute_limit_max, self.compute_price_max_micro_lamports)


def fee_lamports(transfer: SolanaTransfer) -> int:
    """Return the exact fee of a transaction that kept every rule. The fee payer pays it whether it passes or fails."""
    first, second = transfer.transaction.message.instructions[:2]
    limit, price = read_compute_unit_limit(first), read_compute_unit_price(second)
    assert limit is not None and price is not None  # noqa: S101, PT018 - the rules ask for both
    return _fee_lamports(limit, price)


def _fee_lamports(compute_limit: int, price_micro_lamports: int) -> int:
    return _SIGNATURES * LAMPORTS_PER_SIGNATURE + -(-compute_limit * price_micro_lamports // _MICRO_LAMPORTS)


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


class SolanaChain:
    """One network. `asset` is None until `open` succeeded; then `problem` says why not."""

    def __init__(self, config: SolanaConfig, rpc: Rpc | None = None) -> None:
        self.config = config
        self.network = config.network
        self.asset: SolanaAsset | None = None
        self.problem = "the node was not asked yet"
        self.is_refused = False  # the node answers, but this network must not be used with it
        self.rpc = rpc or Rpc(config.rpc_urls, timeout_seconds=config.timeout_seconds)
        self._ages, self._newcomers = BlockhashAges(self.rpc), Newcomers(self.rpc)
        self.searches, self.missing = Searches(), MissingBlocks(config.network.name)
        self._mint = config.asset or config.network.usdc.address
        self._watcher: ReceiptWatcher[Expected] = ReceiptWatcher(self)
        self._rebroadcast = Rebroadcast(config.network.name, self._shows, self.submit_to_all)
        is_one_enough = config.confirm_nodes == 1 or (config.confirm_nodes == 0 and len(config.rpc_urls) == 1)
        self._witnesses = None if is_one_enough else SolanaWitnesses(self.rpc, config.confirm_nodes)
        self._vouched = None if self._witnesses is None else VouchedStatuses(self._witnesses, self._seen_at)
        # One word that is enough is one node's all the same, and not made of what several say.
        is_one_there = len(self.rpc.nodes.all) <= 1
        self._judges = self._witnesses or (None if is_one_there else SolanaWitnesses(self.rpc, 1))

    @property
    def configured_asset(self) -> SolanaAsset:
        """Asset as configured; `asset` is set to it once a node shows that it is there."""
        return SolanaAsset(self.network, self._mint, self.config.token_program)

    @property
    def limits(self) -> list[str]:
        """Limits of the nodes that were learned."""
        return self.rpc.nodes.limits

    @property
    def missing_nodes(self) -> int:
        """So many nodes fewer answer than outcomes need, or than they would need where none is out of reach."""
        return 0 if self._witnesses is None else self.rpc.nodes.missing(self._witnesses.needed)

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Asks every node who it is, and enables the network or disables it and says why in `problem`.

        To be done again from time to time. `prepare` is awaited before a network is enabled that was not. Raises:
        RpcUnavailable where nothing could be learned; the network stays as it was; what `prepare` raises.
        """
        probes = await self.rpc.probe(
            [("getGenesisHash", []), ("getAccountInfo", [self._mint, _BASE64]), ("getSlot", [_CONFIRMED])]
        )
        problems: list[str] = []
        silent: RpcUnavailable | None = None
        for node, answers in probes:
            try:
                problem = self._judge(answers)
            except RpcUnavailable as error:
                silent = error
                continue
            node.judged(self.network.name, problem)
            problems.append(problem)
            node.height = None if isinstance(answers, RpcUnavailable) else number_or_none(answers[2])
        self.rpc.nodes.compare_heights()
        if "" in problems:
            if self.asset is None and prepare is not None:
                self.problem, self.is_refused = NOT_PREPARED, False
                await prepare()
            self.asset = self.asset or self.configured_asset
            self.problem, self.is_refused = "", False
        elif silent is not None:
            raise silent
        else:
            self._refuse(problems[0])

    def _refuse(self, problem: str) -> None:
        if not self.is_refused or problem != self.problem:
            _LOG.error("network_disabled", network=self.network.name, reason=problem)
        self.asset, self.problem, self.is_refused = None, problem, True

    def _judge(self, answers: list[Answer] | RpcUnavailable) -> str:
        """Why a node must not be asked; empty where it may. Raises: RpcUnavailable."""
        if isinstance(answers, RpcUnavailable):
            raise answers
        genesis, mint = answers[0], read_value(answers[1])
        if not isinstance(genesis, str):
            msg = "the node does not answer getGenesisHash"
            raise RpcUnavailable(msg)
        if genesis != self.network.genesis_hash:
            return f"the node's genesis hash is {genesis}, not {self.network.genesis_hash}"
        data = read_account(mint)
        if data is None:
            return f"there is no account at the mint's address {self._mint}"
        decimals = self.network.usdc.decimals
        name = "Token-2022" if self.config.is_token_2022 else "SPL Token"
        found = read_mint(data) if mint["owner"] == self.config.token_program else None
        if found is None or not found.is_initialized or found.decimals != decimals:
            return f"the account at {self._mint} is no mint of {name} with {decimals} decimals"
        if not found.extensions <= HARMLESS_EXTENSIONS:
            return f"the mint {self._mint} has extensions by which a payment may arrive smaller, or not at all"
        return ""

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

    async def _knowing(self, transfer: SolanaTransfer) -> SolanaChain | None:
        """This chain as a node shows it that takes the blockhash; None where none does. Raises: RpcUnavailable.

        Nobody waits who does not hold what he pays, of this token and himself: else anybody could take the few places,
        for nothing.
        """
        blockhash = transfer.transaction.message.recent_blockhash
        accounts, height = await self.rpc.ask([_accounts(transfer), _HEIGHT])
        source, _ = map(self._held, read_accounts(accounts, 2))
        holder = self.configured_asset.holder(transfer.source, source).wallet
        if source is None or source.amount < transfer.value or holder != transfer.payer:
            return None
        if self._ages.has_passed(blockhash, read_height(height)):
            return None
        node = await self._newcomers.known_by(blockhash, transfer.payer)
        return None if node is None else self._at(node)

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
        source, destination = map(self._held, read_accounts(accounts, 2))
        is_recent = read_flag(recent)
        left = await self._blocks_left(transfer, recent, height) if is_recent else None
        return SolanaFacts(source, destination, is_recent, read_error(simulation), left)

    async def _simulated(self, transfer: SolanaTransfer) -> Simulation:
        money_of = ("getBalance", [transfer.fee_payer, _CONFIRMED])
        simulation, money, accounts, height = await self._ask_of_new(
            transfer, [_simulation(transfer), money_of, _accounts(transfer), _HEIGHT]
        )
        error, (source, found) = read_error(simulation), map(self._held, read_accounts(accounts, 2))
        left = await self._blocks_left(transfer, simulation, height) if error is None else None
        last_height = read_height(height) + (BLOCKHASH_LIFETIME_BLOCKS if left is None else left) + LAG_BLOCKS
        lifetime = Lifetime(read_slot(simulation), last_height)
        reaches = self.configured_asset.holder(transfer.destination, found).is_its_own
        balance = 0 if source is None else source.money_of(transfer.payer)
        return Simulation(error, lifetime, read_number(read_value(money)), left, reaches, balance)

    async def _ask_of_new(self, transfer: SolanaTransfer, calls: Sequence[Call]) -> list[Answer]:
        """The answers; the list of blockhashes comes with them where it is due. The last call is `_HEIGHT`.

        Raises: RpcUnavailable.
        """
        if not self._ages.lacks(transfer.transaction.message.recent_blockhash):
            return await self.rpc.ask(calls)
        try:
            *answers, height, listed = await self.rpc.ask([*calls, LIST])
        except RpcUnavailable:
            self._ages.ask_apart()  # where it is the list that is not answered, the next payment gets its answers
            raise
        self._ages.learn(listed, height)
        return [*answers, height]

    async def _blocks_left(self, transfer: SolanaTransfer, taken: Answer, height: Answer) -> int | None:
        blockhash = transfer.transaction.message.recent_blockhash
        return await self._ages.blocks_left(blockhash, read_slot(taken), read_height(height))

    async def holder_of(self, account: str) -> Holder:
        """Return the holder of what is paid to the asset's token account at this address. Raises: RpcUnavailable."""
        (info,) = await self.rpc.ask([("getAccountInfo", [account, _BASE64])])
        return self.configured_asset.holder(account, self._held(read_value(info)))

    def held_by(self, account: str, wallet: str) -> Holder:
        """The same of an account of which it is known whose it was."""
        return self.configured_asset.held_by(account, wallet)

    async def recipient(self, address: str, account: str) -> tuple[NoWallet | None, Holder]:
        """Why the address is no wallet's, and who gets what is paid to its token account. Raises: RpcUnavailable."""
        beginning = {**_BASE64, "dataSlice": {"offset": 0, "length": MULTISIG_SIZE_BYTES + 1}}
        at_address, held = await self.rpc.ask(
            [("getAccountInfo", [address, beginning]), ("getAccountInfo", [account, _BASE64])]
        )
        info, found = read_value(at_address), self._held(read_value(held))
        data = read_account(info)
        there = None if data is None else Account(info["owner"], info.get("executable") is True, data)
        return no_wallet(address, there), self.configured_asset.holder(account, found)

    async def blockhash(self) -> str:
        """The newest that a new transaction may name. Raises: RpcUnavailable."""
        (answer,) = await self.rpc.ask([("getLatestBlockhash", [_CONFIRMED])])
        return read_blockhash(read_value(answer))

    async def balances(self, addresses: Sequence[str]) -> list[int]:
        """Lamports of each. Raises: RpcUnavailable."""
        answers = await self.rpc.ask([("getBalance", [address, _CONFIRMED]) for address in addresses])
        return [read_number(read_value(answer)) for answer in answers]

    async def submit(self, raw: bytes, signature: str) -> Submission:
        """Hands a signed transaction to the node, as `sender.submit`, and to all where that one does not show it."""
        self._rebroadcast.begin(raw, signature)
        return await submit(self, raw, signature)

    async def submit_to_all(self, raw: bytes, signature: str) -> Submission:
        """Hands it to every node, as `sender.submit_to_all`."""
        return await submit_to_all(self, raw, signature)

    async def wait(self, expected: Expected, deadline: float) -> Sighting:
        """The first sighting that stands, or at `deadline` (event loop time) what was seen last."""
        sighting = await self._watcher.wait(expected, deadline)
        if sighting.deep:
            self._rebroadcast.seen(expected.transaction_hash)
        return sighting

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return what the chain shows now of many transactions of ours. Raises: RpcUnavailable.

        The transfer of each needs no check here: it stands in the message, which the signature covers.
        """
        is_final_needed = self.config.is_final_needed
        return await self._shown(
            [Sought(one.transaction_hash, is_final_needed or one.depth_blocks > 1) for one in wanted]
        )

    async def see(self, wanted: Sequence[str], *, is_final_needed: bool = False) -> list[Sighting]:
        """Return what enough nodes show now of many transactions, by their signatures. Raises: RpcUnavailable.

        `is_final_needed`: they are deep only once they are final, whatever else is configured.
        """
        needed = is_final_needed or self.config.is_final_needed
        return await self._shown([Sought(signature, needed) for signature in wanted])

    async def _shown(self, wanted: Sequence[Sought]) -> list[Sighting]:
        return await (self._seen(wanted) if self._vouched is None else self._vouched.look(wanted))

    async def agreed(self, judge: Callable[[SolanaChain], Awaitable[T]], is_open: Callable[[T], bool]) -> T | None:
        """Return the conclusion that enough nodes, each asked alone, agree on; else None.

        A conclusion is still open while `is_open` returns True for it. Raises: RpcUnavailable.
        """
        if self._judges is None:
            return await judge(self)
        return await self._judges.agreed_by(lambda node: judge(self._at(node)), is_open)

    async def agreed_each(
        self, judge: Callable[[SolanaChain], Awaitable[list[T]]], is_open: Callable[[T], bool]
    ) -> Sequence[T | None]:
        """Return the conclusions on several things at once, each found for itself as by `agreed`.

        Raises: RpcUnavailable.
        """
        if self._judges is None:
            return await judge(self)
        return await self._judges.agreed_each_by(lambda node: judge(self._at(node)), is_open)

    def _at(self, node: Node) -> SolanaChain:
        """This chain for reading, as this node alone shows it."""
        alone = copy(self)
        alone.rpc = cast("Rpc", NodeReads(self.rpc, node))
        alone._witnesses = alone._vouched = alone._judges = None  # noqa: SLF001 - of this class
        return alone

    async def _seen_at(self, node: Node, wanted: Sequence[Sought]) -> list[Sighting]:
        return await self._at(node)._seen(wanted)  # noqa: SLF001 - of this class

    async def _seen(self, wanted: Sequence[Sought]) -> list[Sighting]:
        signatures = [one.signature for one in wanted]
        pages = [signatures[start : start + STATUSES_MAX] for start in range(0, len(wanted), STATUSES_MAX)]
        answers = await self.rpc.ask([_statuses(page) for page in pages])
        statuses = [read_list(answer, page) for answer, page in zip(answers, pages, strict=True)]
        shown = (status for page in statuses for status in page)
        return [read_sighting(status, _deep_enough(one)) for one, status in zip(wanted, shown, strict=True)]

    async def head(self) -> tuple[int, int, int]:
        """The newest confirmed slot and its block's height: of several nodes the lowest slot, the highest height, slot.

        Raises: RpcUnavailable.
        """
        told = [await self.rpc.ask(_HEAD)] if self._witnesses is None else await self._witnesses.told(_HEAD)
        heads = [(read_number(slot), read_height(height)) for slot, height in told]
        return min(slot for slot, _ in heads), max(height for _, height in heads), max(slot for slot, _ in heads)

    async def _shows(self, signature: str) -> bool:
        return not await self.shows_nothing(signature, 0)

    async def shows_nothing(self, signature: str, slot: int) -> bool:
        """Does a node that knows of this slot show nothing of the transaction? Raises: RpcUnavailable."""
        (answer,) = await self.rpc.ask([_statuses([signature])])
        (status,) = read_list(answer, [signature])
        return status is None and read_slot(answer) >= slot

    async def final_slot(self) -> int:
        """The newest finalized slot. Raises: RpcUnavailable."""
        (slot,) = await self.rpc.ask([("getSlot", [_FINALIZED])])
        return read_number(slot)

    async def first_slot(self) -> int:
        """The first slot whose block the node has. Raises: RpcUnavailable."""
        (slot,) = await self.rpc.ask([("getFirstAvailableBlock", [])])
        return read_number(slot)

    async def see_final(self, wanted: Sequence[str]) -> tuple[int, list[Sighting]]:
        """The newest finalized slot, and what becomes of these transactions there: `deep` is finalized.

        Behind one address there may be several nodes, of which one lags: it is no newer than who shows them knows of.
        At most 256. Raises: RpcUnavailable.
        """
        slot, statuses = await self.rpc.ask([("getSlot", [_FINALIZED]), _statuses(wanted)])
        newest = min(read_number(slot), read_slot(statuses))
        return newest, [read_sighting(status, {FINAL}) for status in read_list(statuses, wanted)]

    async def close(self) -> None:
        """Ends what waits, the watcher and the connections."""
        await self._newcomers.close()
        await self._rebroadcast.close()
        await self._watcher.close()
        await self.rpc.close()

    def _held(self, account: Any) -> TokenAccount | None:  # noqa: ANN401 - JSON
        """The token account; None where there is none of the asset's program. Raises: RpcUnavailable."""
        return read_token(account, self.config.token_program)


def _deep_enough(one: Sought) -> set[str]:
    return {FINAL} if one.is_final_needed else {"confirmed", FINAL}


def _recent(transfer: SolanaTransfer) -> Call:
    return "isBlockhashValid", [encode_key(transfer.transaction.message.recent_blockhash), _CONFIRMED]


def _accounts(transfer: SolanaTransfer) -> Call:
    return "getMultipleAccounts", [[transfer.source, transfer.destination], _BASE64]


def _simulation(transfer: SolanaTransfer) -> Call:
    return "simulateTransaction", [base64.b64encode(transfer.transaction.encode()).decode(), _SIMULATION]


def _statuses(signatures: Sequence[str]) -> Call:
    return "getSignatureStatuses", [list(signatures), {"searchTransactionHistory": True}]
