"""One Solana network behind its nodes: facts of a payment, sending, waiting (specification 2.3, 4.4; A-15).

`open` checks each node's genesis hash and the mint. A transaction is simulated without our signature, which it gets
only when it passed. What was executed and failed is told from what was executed before its confirmation is looked at.
Whether a payment is good is decided in `core.solana`, what a settlement becomes in the hub.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.nodes import NOT_PREPARED
from tollkeeper.chains.quorum import NodeQuorum, QuorumReader
from tollkeeper.chains.replies import Answer, RpcUnavailable
from tollkeeper.chains.rpc import Call, Rpc
from tollkeeper.chains.solana.answers import (
    number_or_none,
    read_account,
    read_blockhash,
    read_height,
    read_number,
    read_token,
    read_value,
)
from tollkeeper.chains.solana.blockhashes import BlockhashAges, Newcomers
from tollkeeper.chains.solana.missing_blocks import MissingBlocks
from tollkeeper.chains.solana.reader import BASE64, CONFIRMED, SharedReads, Sought
from tollkeeper.chains.solana.searches import Searches
from tollkeeper.chains.solana.sender import TransactionSender
from tollkeeper.chains.watcher import Rebroadcast, SightingWatcher
from tollkeeper.core.solana.programs import (
    HARMLESS_EXTENSIONS,
    MULTISIG_SIZE_BYTES,
    Account,
    TokenAccount,
    no_wallet,
    read_mint,
)
from tollkeeper.core.solana.rules import SolanaAsset

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.sightings import Expected, Sighting, Submission
    from tollkeeper.chains.solana.config import SolanaConfig
    from tollkeeper.chains.solana.reader import Simulation
    from tollkeeper.core.solana.programs import Holder, NoWallet
    from tollkeeper.core.solana.rules import SolanaFacts, SolanaTransfer

_LOG = structlog.get_logger("tollkeeper.chains.solana")
_HEAD: Final[list[Call]] = [("getSlot", [CONFIRMED]), ("getEpochInfo", [CONFIRMED])]


class SolanaChain:
    """One network. `asset` is None until `open` succeeded; then `problem` says why not."""

    def __init__(self, config: SolanaConfig, rpc: Rpc | None = None) -> None:
        self.config = config
        self.network = config.network
        self.asset: SolanaAsset | None = None
        self.problem = "the node was not asked yet"
        self.is_refused = False  # the node answers, but this network must not be used with it
        self.rpc = rpc or Rpc(config.rpc_urls, timeout_seconds=config.timeout_seconds)
        self._mint = config.asset or config.network.usdc.address
        self._newcomers = Newcomers(self.rpc)
        shared = SharedReads(
            self.rpc,
            config,
            self.configured_asset,
            BlockhashAges(self.rpc),
            self._newcomers,
            Searches(),
            MissingBlocks(config.network.name),
        )
        self.reader = shared.of_any()
        self.quorum = NodeQuorum(self.rpc, config.confirm_nodes, self.reader, shared.at)
        self._statuses: QuorumReader[Sought] = QuorumReader(self.quorum)
        self._watcher: SightingWatcher[Sought] = SightingWatcher(self._statuses)
        self._sender = TransactionSender(self.rpc, config.network.name, self.see)
        self._rebroadcast = Rebroadcast(config.network.name, self._shows, self.submit_to_all)

    @property
    def configured_asset(self) -> SolanaAsset:
        """Asset as configured; `asset` is set to it once a node shows that it is there."""
        return SolanaAsset(self.network, self._mint, self.config.token_program)

    @property
    def limits(self) -> list[str]:
        """Limits of the nodes that were learned."""
        return self.rpc.nodes.limits

    @property
    def obstacles(self) -> list[str]:
        """Obstacles that the nodes put in the way of outcomes, for the operator."""
        return [*self.quorum.shortage, *self.limits]

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Ask every node who it is; enable the network, or disable it and say why in `problem`.

        To be done again from time to time. `prepare` is awaited before a network is enabled that was not. Raises:
        RpcUnavailable where nothing could be learned; the network stays as it was; what `prepare` raises.
        """
        probes = await self.rpc.probe(
            [("getGenesisHash", []), ("getAccountInfo", [self._mint, BASE64]), ("getSlot", [CONFIRMED])]
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
        """Say why a node must not be asked; empty where it may. Raises: RpcUnavailable."""
        if isinstance(answers, RpcUnavailable):
            raise answers
        genesis, mint = answers[0], read_value(answers[1])
        if not isinstance(genesis, str):
            raise RpcUnavailable("the node does not answer getGenesisHash")
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

    async def holder_of(self, account: str) -> Holder:
        """Return the holder of what is paid to the asset's token account at this address. Raises: RpcUnavailable."""
        (info,) = await self.rpc.ask([("getAccountInfo", [account, BASE64])])
        return self.configured_asset.holder(account, self._held(read_value(info)))

    def held_by(self, account: str, wallet: str) -> Holder:
        """Return the holder of an account of which it is known whose it was."""
        return self.configured_asset.held_by(account, wallet)

    async def recipient(self, address: str, account: str) -> tuple[NoWallet | None, Holder]:
        """Say why the address is no wallet's, and who gets what its token account is paid. Raises: RpcUnavailable."""
        beginning = {**BASE64, "dataSlice": {"offset": 0, "length": MULTISIG_SIZE_BYTES + 1}}
        at_address, held = await self.rpc.ask(
            [("getAccountInfo", [address, beginning]), ("getAccountInfo", [account, BASE64])]
        )
        info, found = read_value(at_address), self._held(read_value(held))
        data = read_account(info)
        there = None if data is None else Account(info["owner"], info.get("executable") is True, data)
        return no_wallet(address, there), self.configured_asset.holder(account, found)

    async def blockhash(self) -> str:
        """Return the newest that a new transaction may name. Raises: RpcUnavailable."""
        (answer,) = await self.rpc.ask([("getLatestBlockhash", [CONFIRMED])])
        return read_blockhash(read_value(answer))

    async def balances(self, addresses: Sequence[str]) -> list[int]:
        """Return lamports of each. Raises: RpcUnavailable."""
        answers = await self.rpc.ask([("getBalance", [address, CONFIRMED]) for address in addresses])
        return [read_number(read_value(answer)) for answer in answers]

    async def state(self, transfer: SolanaTransfer, *, waits: bool = True) -> SolanaFacts:
        """Return the chain's facts about a payment, as `SolanaReader.state`. Raises: RpcUnavailable."""
        return await self.reader.state(transfer, waits=waits)

    async def simulate(self, transfer: SolanaTransfer) -> Simulation:
        """Simulate settling now, as `SolanaReader.simulate`. Raises: RpcUnavailable."""
        return await self.reader.simulate(transfer)

    async def submit(self, raw: bytes, signature: str) -> Submission:
        """Hand a signed transaction to a node, and to all where that one does not show it."""
        self._rebroadcast.begin(raw, signature)
        return await self._sender.submit(raw, signature)

    async def submit_to_all(self, raw: bytes, signature: str) -> Submission:
        """Hand it to every node."""
        return await self._sender.submit_to_all(raw, signature)

    async def wait(self, expected: Expected, deadline: float) -> Sighting:
        """Return the first sighting that stands, or at `deadline` (event loop time) what was seen last."""
        sighting = await self._watcher.wait(self._sought(expected), deadline)
        if sighting.deep:
            self._rebroadcast.seen(expected.transaction_hash)
        return sighting

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return what the chain shows now of many transactions of ours. Raises: RpcUnavailable.

        The transfer of each needs no check here: it stands in the message, which the signature covers.
        """
        return await self._statuses.look([self._sought(one) for one in wanted])

    def _sought(self, expected: Expected) -> Sought:
        return Sought(expected.transaction_hash, self.config.is_final_needed or expected.depth_blocks > 1)

    async def see(self, wanted: Sequence[str], *, is_final_needed: bool = False) -> list[Sighting]:
        """Return what enough nodes show now of many transactions, by their signatures. Raises: RpcUnavailable.

        `is_final_needed`: they are deep only once they are final, whatever else is configured.
        """
        needed = is_final_needed or self.config.is_final_needed
        return await self._statuses.look([Sought(signature, needed) for signature in wanted])

    async def head(self) -> tuple[int, int, int]:
        """Read the newest confirmed slot and its height: of several nodes the lowest slot, the highest height, slot.

        Raises: RpcUnavailable.
        """
        told = await self.quorum.answers(_HEAD)
        heads = [(read_number(slot), read_height(height)) for slot, height in told]
        return min(slot for slot, _ in heads), max(height for _, height in heads), max(slot for slot, _ in heads)

    async def _shows(self, signature: str) -> bool:
        return not await self.reader.shows_nothing(signature, 0)

    async def close(self) -> None:
        """End what waits, the watcher and the connections."""
        await self._newcomers.close()
        await self._rebroadcast.close()
        await self._watcher.close()
        await self.rpc.close()

    def _held(self, account: Any) -> TokenAccount | None:  # noqa: ANN401 - JSON
        """Return the token account; None where there is none of the asset's program. Raises: RpcUnavailable."""
        return read_token(account, self.config.token_program)
