"""One EVM network behind its nodes: facts of a payment, sending, waiting (specification 2.3, 4.4; contract 5.2, 5.3).

`open` checks each node's chain id and adopts the token's own EIP-712 name and version if they reproduce its
DOMAIN_SEPARATOR(). Reads of one question go out in one batch, so that they speak of one moment. Whether a payment is
good is decided in `core.x402.verification`, what a settlement becomes in the hub.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import structlog

from tollkeeper.chains.chain import NetworkBehindNodes
from tollkeeper.chains.evm.blocks import Block, counted, data_of, hash_of_block, quantity, read_block, word_of
from tollkeeper.chains.evm.calls import accepts_once_deployed, accepts_signature, revert_of, text_of
from tollkeeper.chains.evm.config import EvmConfig
from tollkeeper.chains.evm.logs import LogRange
from tollkeeper.chains.evm.market import Market
from tollkeeper.chains.evm.reader import EvmReader
from tollkeeper.chains.quorum import NodeQuorum, QuorumReader
from tollkeeper.chains.replies import Answer, RpcError, RpcUnavailable
from tollkeeper.chains.sightings import Expected, Sighting, Submission, Verdict
from tollkeeper.chains.watcher import SightingWatcher
from tollkeeper.core.evm import encoding as evm
from tollkeeper.core.evm.batches import MULTICALL_ADDRESS
from tollkeeper.core.evm.counterfactual import (
    acceptance_question,
    settling_call,
    unwrap,
)
from tollkeeper.core.x402.verification import ChainFacts, EvmAsset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.chains.rpc import Call
    from tollkeeper.core.x402.version1 import EvmPayload

_LOG = structlog.get_logger("tollkeeper.chains.evm.chain")


@dataclass(frozen=True, slots=True)
class Fees:
    """EIP-1559 fees in wei per gas."""

    max_fee_per_gas: int
    max_priority_fee_per_gas: int


@dataclass(frozen=True, slots=True)
class EvmSimulation:
    """The reason for which settling would revert (None: it would pass), the latest block, and what the payer holds.

    `balance` is None where it was not asked for.
    """

    revert: str | None
    block: Block
    balance: int | None


class GasTooDear(RpcUnavailable):
    """The next block asks for more than the configured cap: nothing can be sent now."""


class EvmChain(NetworkBehindNodes[EvmAsset]):
    """One network."""

    def __init__(self, config: EvmConfig) -> None:
        super().__init__(config.network, config.rpc_urls, config.timeout_seconds)
        self.config = config
        self._address = config.asset.lower() or config.network.usdc.address
        self.logs = LogRange(config.network.name)
        any_node = EvmReader(self.rpc.ask, self._address, self.logs)
        self.authorizations = any_node.authorizations
        self.quorum = NodeQuorum(self.rpc, config.confirm_nodes, any_node, self._reader_of)
        sightings: QuorumReader[Expected] = QuorumReader(self.quorum)
        self.look = sightings.look
        self._watcher = SightingWatcher(sightings)
        self._market = Market(self.rpc.ask)
        self.balances = self._market.balances

    def _reader_of(self, node: Node) -> EvmReader:
        return EvmReader(partial(self.rpc.ask_of, node), self._address, self.logs)

    @property
    def limits(self) -> list[str]:
        """Limits of the nodes that were learned."""
        return [*super().limits, *([self.logs.limit] if self.logs.limit else [])]

    @property
    def obstacles(self) -> list[str]:
        """Obstacles that the nodes put in the way of outcomes, for the operator."""
        return [*self.quorum.shortage, *self.limits]

    def _identity(self) -> list[Call]:
        return [
            ("eth_chainId", []),
            ("eth_getCode", [self._address, "latest"]),
            self._read_call(evm.SELECTOR_DOMAIN_SEPARATOR),
            self._read_call(evm.SELECTOR_NAME),
            self._read_call(evm.SELECTOR_VERSION),
            ("eth_blockNumber", []),
        ]

    def _height(self, answer: Answer) -> int | None:
        try:
            return counted(answer)
        except RpcUnavailable:
            return None

    def _judge(self, answers: Sequence[Answer]) -> EvmAsset | str:
        chain_id, code, separator, name, version, _ = answers
        if isinstance(chain_id, RpcError) or isinstance(code, RpcError):
            raise RpcUnavailable("the node does not answer eth_chainId and eth_getCode")
        if quantity(chain_id) != self.network.chain_id:
            return f"the node's chain id is {quantity(chain_id)}, not {self.network.chain_id}"
        if not data_of(code):
            return f"there is no contract at the asset's address {self._address}"
        if revert_of(separator) is not None or not data_of(separator):
            return "the asset has no DOMAIN_SEPARATOR(), so it takes no authorizations"
        word_of(separator)
        for said in (name, version):
            revert_of(said)  # a node that did not run the call says nothing of the token
        asset = EvmAsset(
            self.network,
            self._address,
            self.config.token_name or text_of(name),
            self.config.token_version or text_of(version),
        )
        if asset.separator != data_of(separator):
            return (
                f"the EIP-712 domain {asset.name!r} version {asset.version!r} does not reproduce the asset's "
                "DOMAIN_SEPARATOR()"
            )
        return asset

    def _read_call(self, data: bytes) -> Call:
        return "eth_call", [{"to": self._address, "data": "0x" + data.hex()}, "latest"]

    def _simulation(self, payload: EvmPayload, sender: str) -> Call:
        settling = settling_call(self._address, payload.authorization, payload.signature)
        call = {"from": sender, "to": settling.to, "gas": hex(self.config.gas_of(deploys=settling.deploys))}
        return "eth_call", [call | {"data": "0x" + settling.data.hex()}, "latest"]

    def _wallet_calls(self, payload: EvmPayload, asset: EvmAsset) -> tuple[Call, Call]:
        """Return the payer's code, and its word on the signature; asked with as much gas as a settlement would have.

        Of a wallet that is to be deployed, its word once it is.
        """
        payer = payload.authorization.payer
        digest = evm.authorization_digest(asset.separator, payload.authorization)
        deploys = evm.is_counterfactual_signature(payload.signature)
        gas = self.config.gas_of(deploys=deploys)
        if deploys:
            to, data = MULTICALL_ADDRESS, acceptance_question(payer, digest, payload.signature)
        else:
            to, data = payer, evm.wallet_signature_calldata(digest, payload.signature)
        question = {"from": self._address, "to": to, "gas": hex(gas), "data": "0x" + data.hex()}
        return ("eth_getCode", [payer, "latest"]), ("eth_call", [question, "latest"])

    async def ready(self, payload: EvmPayload) -> EvmPayload:
        """Return the payment as it is carried out now: of a wallet that is deployed meanwhile, its own signature alone.

        Its signature was read before (`deployed_check`). Raises: RpcUnavailable.
        """
        if not evm.is_counterfactual_signature(payload.signature):
            return payload
        (code,) = await self.rpc.ask([("eth_getCode", [payload.authorization.payer, "latest"])])
        return replace(payload, signature=unwrap(payload.signature).signature) if data_of(code) else payload

    async def wallet_accepts(self, payload: EvmPayload, asset: EvmAsset) -> bool | None:
        """Return the verdict of the payer's code on the signature (ERC-1271); None if it has no code and gets none.

        Raises: RpcUnavailable.
        """
        payload = await self.ready(payload)
        ask_code, ask_wallet = self._wallet_calls(payload, asset)
        deploys = evm.is_counterfactual_signature(payload.signature)
        # Most who have not signed have no code, and anybody may ask: the dear question is asked of wallets alone.
        if not deploys and not data_of(*await self.rpc.ask([ask_code])):
            return None
        (word,) = await self.rpc.ask([ask_wallet])
        return accepts_once_deployed(word) if deploys else accepts_signature(word)

    async def state(
        self, payload: EvmPayload, asset: EvmAsset, sender: str, *, is_signed_by_key: bool
    ) -> tuple[ChainFacts, Block]:
        """Return the chain's facts about a payment, read in one batch. `sender` is the account that would settle it.

        A payer that has code although its key signed is asked in a second batch: it is rare, and the question costs the
        node more than the others. Raises: RpcUnavailable.
        """
        payload = await self.ready(payload)
        authorization = payload.authorization
        ask_code, ask_wallet = self._wallet_calls(payload, asset)
        code, payer_code, used, balance, simulation, block, *word = await self.rpc.ask(
            [
                ("eth_getCode", [self._address, "latest"]),
                ask_code,
                self._read_call(evm.authorization_state_calldata(authorization.payer, authorization.nonce)),
                self._read_call(evm.balance_of_calldata(authorization.payer)),
                self._simulation(payload, sender),
                ("eth_getBlockByNumber", ["latest", False]),
                *(() if is_signed_by_key else (ask_wallet,)),
            ]
        )
        has_code = bool(data_of(payer_code))
        if has_code and not word:
            word = await self.rpc.ask([ask_wallet])
        accepts = accepts_signature(word[0]) if has_code else None
        if evm.is_counterfactual_signature(payload.signature):
            accepts = accepts_once_deployed(word[0])
        facts = ChainFacts(
            asset_has_code=bool(data_of(code)),
            wallet_accepts=accepts,
            nonce_used=word_of(used) != 0,
            balance=word_of(balance),
            revert=revert_of(simulation),
        )
        return facts, read_block(block)

    async def simulate(self, payload: EvmPayload, sender: str, *, with_balance: bool) -> EvmSimulation:
        """Simulate settling now, and read the payer's balance if `with_balance`. Raises: RpcUnavailable."""
        holder = evm.balance_of_calldata(payload.authorization.payer)
        simulation, block, *balance = await self.rpc.ask(
            [
                self._simulation(payload, sender),
                ("eth_getBlockByNumber", ["latest", False]),
                *([self._read_call(holder)] if with_balance else ()),
            ]
        )
        return EvmSimulation(revert_of(simulation), read_block(block), word_of(balance[0]) if balance else None)

    async def latest_block(self) -> Block:
        """Return the latest block. Raises: RpcUnavailable."""
        (block,) = await self.rpc.ask([("eth_getBlockByNumber", ["latest", False])])
        return read_block(block)

    async def fees(self, base_fee_wei: int, *, moves_nonce: bool = False) -> Fees:
        """Return fees for a transaction now: twice the base fee and a tip, under a settlement's cap.

        What only moves a nonce may pay the whole cap. Raises: GasTooDear where the next block asks for more than the
        cap; RpcUnavailable.
        """
        cap = self.config.max_fee_per_gas_wei if moves_nonce else self.config.settlement_fee_cap_wei
        tip_wei = min(await self._market.tip_wei(base_fee_wei), cap)
        if base_fee_wei + tip_wei > cap:
            raise GasTooDear(f"gas costs more than the configured {cap} wei")
        return Fees(min(2 * base_fee_wei + tip_wei, cap), tip_wei)

    async def agreed_nonce(self, signer: str, tag: str = "latest") -> int | None:
        """Return the nonce that enough nodes show alike, None where they do not: what a lane never comes back from.

        Raises: RpcUnavailable.
        """
        return await self.quorum.agreed(
            lambda reader: reader.authorizations.nonce_of(signer, tag), lambda _nonce: False
        )

    async def submit(self, raw: bytes, transaction_hash: str) -> Submission:
        """Hand a signed transaction to the node. One that no node shows soon is sent again."""
        self._rebroadcast.begin(raw, transaction_hash)
        told = await self._taken(self.rpc.send_raw(raw), transaction_hash)
        if told is None:
            with suppress(RpcUnavailable):
                told = Submission.TAKEN if await self.known_to_node([transaction_hash]) else None
        return told or Submission.UNCLEAR

    async def known_to_node(self, hashes: Sequence[str]) -> set[str]:
        """Return those of these transactions that the node has, mined or waiting. Raises: RpcUnavailable."""
        answers = await self.rpc.ask([("eth_getTransactionByHash", [one]) for one in hashes])
        return {one for one, answer in zip(hashes, answers, strict=True) if isinstance(answer, dict)}

    async def submit_all(self, raws: Sequence[tuple[bytes, str]]) -> set[str]:
        """Hand signed transactions (bytes, hash) to the node in their order, joined; those that it has afterwards.

        Raises: RpcUnavailable where nothing is known of any.
        """
        answers = await self.rpc.ask([("eth_sendRawTransaction", ["0x" + raw.hex()]) for raw, _ in raws])
        taken: set[str] = set()
        unclear: list[str] = []
        for (_, one), answer in zip(raws, answers, strict=True):
            if isinstance(answer, str) and answer.lower() == one:
                taken.add(one)
            else:
                reason = answer.message if isinstance(answer, RpcError) else "the node named another hash"
                _LOG.warning("send_refused", network=self.network.name, transaction=one, reason=reason)
                unclear.append(one)
        return taken | (await self.known_to_node(unclear) if unclear else set())

    async def spread(self, raws: Sequence[bytes]) -> None:
        """Hand signed transactions, in their order, to every node that does not rest but the one that is asked.

        That one may have them and pass them on to nobody. What these say of it changes nothing.
        """
        others = self.rpc.nodes.well(asyncio.get_running_loop().time())[1:]
        calls = [("eth_sendRawTransaction", ["0x" + raw.hex()]) for raw in raws]

        async def hand_to(node: Node) -> None:
            with suppress(RpcUnavailable):
                await self.rpc.ask_of(node, calls)

        await asyncio.gather(*map(hand_to, others))

    async def _shows(self, name: str) -> bool:
        """Ask for a transaction: of several nodes the second one, because the first may have passed it on to nobody."""
        others = self.rpc.nodes.well(asyncio.get_running_loop().time())[1:]
        if not others:
            return name in await self.known_to_node([name])
        (answer,) = await self.rpc.ask_of(others[0], [("eth_getTransactionByHash", [name])])
        return isinstance(answer, dict)

    async def submit_to_all(self, raw: bytes, name: str) -> Submission:
        """Hand a signed transaction to the node that is asked, and to all others that do not rest."""
        taken = set[str]()
        with suppress(RpcUnavailable):
            taken = await self.submit_all([(raw, name)])
        await self.spread([raw])
        return Submission.TAKEN if taken else Submission.UNCLEAR

    async def block_hashes(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the canonical hashes of those of these blocks that the node has. Raises: RpcUnavailable."""
        blocks = await self.rpc.ask([("eth_getBlockByNumber", [hex(number), False]) for number in numbers])
        hashes = {number: hash_of_block(block) for number, block in zip(numbers, blocks, strict=True)}
        return {number: one for number, one in hashes.items() if one is not None}

    async def wait(self, expected: Expected, deadline: float) -> Sighting:
        """Return the first sighting at the configured depth, or at `deadline` (event loop time) what was seen last."""
        sighting = await self._watcher.wait(expected, deadline)
        if sighting.verdict is not Verdict.ABSENT:
            self._rebroadcast.seen(expected.transaction_hash)
        return sighting

    async def close(self) -> None:
        """End what waits, the watcher and the connections."""
        await self._watcher.close()
        await super().close()
