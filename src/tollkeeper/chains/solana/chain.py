"""One Solana network behind its nodes: facts of a payment, sending, waiting (specification 2.3, 4.4; A-15).

`open` checks each node's genesis hash and the mint. A transaction is simulated without our signature, which it gets
only when it passed. What was executed and failed is told from what was executed before its confirmation is looked at.
Whether a payment is good is decided in `core.solana`, what a settlement becomes in the hub.
"""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.chain import NetworkBehindNodes
from tollkeeper.chains.quorum import NodeQuorum, QuorumReader
from tollkeeper.chains.replies import Answer, RpcUnavailable
from tollkeeper.chains.sightings import Submission, Verdict
from tollkeeper.chains.solana.answers import (
    BASE64,
    CONFIRMED,
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
from tollkeeper.chains.solana.reader import SharedReads, Sought
from tollkeeper.chains.solana.searches import Searches
from tollkeeper.chains.watcher import SightingWatcher
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
    from collections.abc import Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Call
    from tollkeeper.chains.sightings import Expected, Sighting
    from tollkeeper.chains.solana.config import SolanaConfig
    from tollkeeper.core.solana.programs import Holder, NoWallet

_HOW: Final = {"encoding": "base64", "skipPreflight": True, "preflightCommitment": "confirmed"}
_HEAD: Final[list[Call]] = [("getSlot", [CONFIRMED]), ("getEpochInfo", [CONFIRMED])]


class SolanaChain(NetworkBehindNodes[SolanaAsset]):
    """One network. Nothing that a node says of a signed transaction is a failure."""

    def __init__(self, config: SolanaConfig) -> None:
        super().__init__(config.network, config.rpc_urls, config.timeout_seconds)
        self.config = config
        self._mint = config.asset or config.network.usdc.address
        self._newcomers = Newcomers(self.rpc)
        shared = SharedReads(
            self.rpc,
            self.configured_asset,
            BlockhashAges(self.rpc),
            self._newcomers,
            Searches(),
            MissingBlocks(config.network.name),
        )
        self.reader = shared.of_any()
        self.state, self.simulate = self.reader.state, self.reader.simulate
        self.quorum = NodeQuorum(self.rpc, config.confirm_nodes, self.reader, shared.at)
        self._statuses: QuorumReader[Sought] = QuorumReader(self.quorum)
        self._watcher = SightingWatcher(self._statuses)

    @property
    def configured_asset(self) -> SolanaAsset:
        """Asset as configured; `asset` is set to it once a node shows that it is there."""
        return SolanaAsset(self.network, self._mint, self.config.token_program)

    @property
    def obstacles(self) -> list[str]:
        """Obstacles that the nodes put in the way of outcomes, for the operator."""
        return [*self.quorum.shortage, *self.limits]

    def _identity(self) -> list[Call]:
        return [("getGenesisHash", []), ("getAccountInfo", [self._mint, BASE64]), ("getSlot", [CONFIRMED])]

    def _height(self, answer: Answer) -> int | None:
        return number_or_none(answer)

    def _judge(self, answers: Sequence[Answer]) -> SolanaAsset | str:
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
        return self.configured_asset

    async def holder_of(self, account: str) -> Holder:
        """Return the holder of what is paid to the asset's token account at this address. Raises: RpcUnavailable."""
        (info,) = await self.rpc.ask([("getAccountInfo", [account, BASE64])])
        return self.configured_asset.holder(account, self._held(read_value(info)))

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

    async def submit(self, raw: bytes, signature: str) -> Submission:
        """Hand a signed transaction to a node, and to all where that one does not show it."""
        self._rebroadcast.begin(raw, signature)
        return await self._submit(raw, signature)

    async def submit_to_all(self, raw: bytes, name: str) -> Submission:
        """Hand it to every node that does not rest: one that takes a transaction may pass it on to nobody."""
        nodes = self.rpc.nodes.well(asyncio.get_running_loop().time())
        if len(nodes) <= 1:
            return await self._submit(raw, name)
        told = await asyncio.gather(*(self._handed_to(node, raw) for node in nodes))
        return Submission.TAKEN if name in told else await self._shown_as_taken(name)

    async def _submit(self, raw: bytes, signature: str) -> Submission:
        told = await self._taken(self.rpc.send_together(*_sending(raw)), signature)
        return await self._shown_as_taken(signature) if told is None else told

    async def _handed_to(self, node: Node, raw: bytes) -> str:
        """Return the signature that the node names; "" if it refuses or does not answer."""
        try:
            (answer,) = await self.rpc.ask_of(node, [_sending(raw)])
        except RpcUnavailable:
            return ""
        return answer if isinstance(answer, str) else ""

    async def _shown_as_taken(self, signature: str) -> Submission:
        try:
            (sighting,) = await self.see([signature])
        except RpcUnavailable:
            return Submission.UNCLEAR
        return Submission.UNCLEAR if sighting.verdict in {Verdict.ABSENT, Verdict.DOUBTED} else Submission.TAKEN

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

    async def _shows(self, name: str) -> bool:
        return not await self.reader.shows_nothing(name, 0)

    async def close(self) -> None:
        """End what waits, the watcher and the connections."""
        await self._newcomers.close()
        await self._watcher.close()
        await super().close()

    def _held(self, account: Any) -> TokenAccount | None:  # noqa: ANN401 - JSON
        """Return the token account; None where there is none of the asset's program. Raises: RpcUnavailable."""
        return read_token(account, self.config.token_program)


def _sending(raw: bytes) -> Call:
    return "sendTransaction", [base64.b64encode(raw).decode(), _HOW]
