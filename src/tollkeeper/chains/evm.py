"""One EVM network behind its nodes: facts of a payment, sending, waiting (specification 2.3, 4.4; contract 5.2, 5.3).

`open` checks each node's chain id and adopts the token's own EIP-712 name and version if they reproduce its
DOMAIN_SEPARATOR(). Reads of one question go out in one batch, so that they speak of one moment. Whether a payment is
good is decided in `core.verification`, what a settlement becomes in the hub.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final

import structlog

from tollkeeper.chains.receipts import Expected, ReceiptReader, ReceiptWatcher, Sighting, quantity
from tollkeeper.chains.rpc import Answer, Call, Rpc, RpcError, RpcUnavailable
from tollkeeper.core import evm
from tollkeeper.core.verification import ChainFacts, EvmAsset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.chains.nodes import Node
    from tollkeeper.core.networks import Network
    from tollkeeper.core.wire import EvmPayload

_LOG = structlog.get_logger("tollkeeper.chains.evm")
_FEES_LIFETIME_SECONDS: Final = 2.0
_DEFAULT_TIP_WEI: Final = 1_000_000
# A cancelled or used authorization is looked for in about the last five hours of Base.
_LOG_RANGE_BLOCKS: Final = 9_000
_ERROR_SELECTOR: Final = bytes.fromhex("08c379a0")
# How nodes name an execution that ended without a revert (go-ethereum's and anvil's words). A contract wallet can bring
# any of them about, so none may look like a node that does not answer.
_HALTS: Final = ("gas", "opcode", "stack", "jump", "write protection", "return data", "evm error")


@dataclass(frozen=True, slots=True)
class EvmConfig:
    """How to reach and use one EVM network.

    Empty `asset`, `token_name` and `token_version` mean the network's USDC and what the token says of itself; an empty
    `batcher` means its usual place. With a `batch_queue_depth` of 0 every settlement goes alone.
    """

    network: Network
    rpc_urls: tuple[str, ...]
    asset: str = ""
    token_name: str = ""
    token_version: str = ""
    depth_blocks: int = 1
    gas_limit: int = 150_000
    gas_budget_per_hour: int = 6_000_000_000
    max_fee_per_gas_wei: int = 50_000_000_000
    batcher: str = ""
    batch_queue_depth: int = 0
    batch_items_max: int = 20
    timeout_seconds: float = 10.0


@dataclass(frozen=True, slots=True)
class Block:
    """The latest block as a node names it."""

    number: int
    timestamp_seconds: int
    base_fee_wei: int


@dataclass(frozen=True, slots=True)
class Fees:
    """EIP-1559 fees in wei per gas, and what the signer's account held when they were read, in wei."""

    max_fee_per_gas: int
    max_priority_fee_per_gas: int
    signer_balance: int


@dataclass(frozen=True, slots=True)
class Use:
    """The transaction that used an authorization up: by the transfer, or by its payer's cancellation."""

    transaction_hash: str
    is_cancellation: bool


class Submission(Enum):
    """What a node said to a transaction."""

    TAKEN = auto()
    UNCLEAR = auto()  # it may or may not have it: never a failure


class EvmChain:
    """One network. `asset` is None until `open` succeeded; then `problem` says why not."""

    def __init__(self, config: EvmConfig, rpc: Rpc | None = None) -> None:
        self.config = config
        self.network = config.network
        self.asset: EvmAsset | None = None
        self.problem = "the node was not asked yet"
        self.is_refused = False  # the node answers, but this network must not be used with it
        self.rpc = rpc or Rpc(config.rpc_urls, timeout_seconds=config.timeout_seconds)
        self._reader = ReceiptReader(self.rpc.ask, config.depth_blocks)
        self._watcher = ReceiptWatcher(self._reader)
        self._address = config.asset.lower() or config.network.usdc.address
        self._fees: Fees | None = None
        self._fees_until = 0.0

    async def open(self) -> None:
        """Asks every node who it is, and enables the network or disables it and says why in `problem`.

        To be done again from time to time: nodes come, go and fall behind, and a token may be replaced. One of another
        chain or token is not asked again until it is right. Raises: RpcUnavailable where nothing could be learned; the
        network stays as it was.
        """
        probes = await self.rpc.probe(
            [
                ("eth_chainId", []),
                ("eth_getCode", [self._address, "latest"]),
                self._read_call(evm.SELECTOR_DOMAIN_SEPARATOR),
                self._read_call(evm.SELECTOR_NAME),
                self._read_call(evm.SELECTOR_VERSION),
                ("eth_blockNumber", []),
            ]
        )
        found: EvmAsset | None = None
        silent: RpcUnavailable | None = None
        for node, answers in probes:
            try:
                judged = self._judge(answers)
            except RpcUnavailable as error:
                silent = error
                continue
            if isinstance(judged, EvmAsset):
                found = found or judged
                self._mark(node, "")
            else:
                self._mark(node, judged)
            node.height = _height(answers)
        self.rpc.nodes.compare_heights()
        if found is not None:
            self.asset = self.asset if self.asset == found else found
            self.problem, self.is_refused = "", False
        elif silent is not None:
            raise silent
        else:
            self._refuse(self.rpc.nodes.all[0].barred)

    def _mark(self, node: Node, problem: str) -> None:
        if problem and problem != node.barred:
            _LOG.error("node_refused", network=self.network.name, node=node.position, reason=problem)
        node.barred = problem

    def _refuse(self, problem: str) -> None:
        if not self.is_refused or problem != self.problem:
            _LOG.error("network_disabled", network=self.network.name, reason=problem)
        self.asset, self.problem, self.is_refused = None, problem, True

    def _judge(self, answers: list[Answer] | RpcUnavailable) -> EvmAsset | str:
        """The asset as a node's answers show it; the reason where they do not fit. Raises: RpcUnavailable."""
        if isinstance(answers, RpcUnavailable):
            raise answers
        chain_id, code, separator, name, version, _ = answers
        if isinstance(chain_id, RpcError) or isinstance(code, RpcError):
            msg = "the node does not answer eth_chainId and eth_getCode"
            raise RpcUnavailable(msg)
        if quantity(chain_id) != self.network.chain_id:
            return f"the node's chain id is {quantity(chain_id)}, not {self.network.chain_id}"
        if not _data(code):
            return f"there is no contract at the asset's address {self._address}"
        if _revert(separator) is not None or not _data(separator):
            return "the asset has no DOMAIN_SEPARATOR(), so it takes no authorizations"
        _word(separator)
        for said in (name, version):
            _revert(said)  # a node that did not run the call says nothing of the token
        asset = EvmAsset(
            self.network,
            self._address,
            self.config.token_name or _text(name),
            self.config.token_version or _text(version),
        )
        if asset.separator != _data(separator):
            return (
                f"the EIP-712 domain {asset.name!r} version {asset.version!r} does not reproduce the asset's "
                "DOMAIN_SEPARATOR()"
            )
        return asset

    def _read_call(self, data: bytes) -> Call:
        return "eth_call", [{"to": self._address, "data": "0x" + data.hex()}, "latest"]

    def _simulation(self, payload: EvmPayload, sender: str) -> Call:
        data = evm.transfer_calldata(payload.authorization, payload.signature)
        call = {"from": sender, "to": self._address, "gas": hex(self.config.gas_limit), "data": "0x" + data.hex()}
        return "eth_call", [call, "latest"]

    def _wallet_calls(self, payload: EvmPayload, asset: EvmAsset) -> tuple[Call, Call]:
        """The payer's code, and its word on the signature; asked with as much gas as a settlement would have."""
        payer = payload.authorization.payer
        digest = evm.authorization_digest(asset.separator, payload.authorization)
        data = "0x" + evm.wallet_signature_calldata(digest, payload.signature).hex()
        question = {"from": self._address, "to": payer, "gas": hex(self.config.gas_limit), "data": data}
        return ("eth_getCode", [payer, "latest"]), ("eth_call", [question, "latest"])

    async def wallet_accepts(self, payload: EvmPayload, asset: EvmAsset) -> bool | None:
        """What the payer's code says of the signature (ERC-1271); None where the payer has no code.

        Raises: RpcUnavailable.
        """
        code, word = await self.rpc.ask(self._wallet_calls(payload, asset))
        return _accepts(word) if _data(code) else None

    async def state(
        self, payload: EvmPayload, asset: EvmAsset, sender: str, *, is_signed_by_key: bool
    ) -> tuple[ChainFacts, Block]:
        """What the chain says about a payment, in one batch. `sender` is who would settle it.

        A payer whose key signed and that has code all the same is asked in a second batch: it is rare, and the question
        costs the node more than the others. Raises: RpcUnavailable.
        """
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
        has_code = bool(_data(payer_code))
        if has_code and not word:
            word = await self.rpc.ask([ask_wallet])
        facts = ChainFacts(
            asset_has_code=bool(_data(code)),
            wallet_accepts=_accepts(word[0]) if has_code else None,
            nonce_used=_word(used) != 0,
            balance=_word(balance),
            revert=_revert(simulation),
        )
        return facts, _block(block)

    async def simulate(self, payload: EvmPayload, sender: str) -> tuple[str | None, Block]:
        """The revert reason that settling would meet now (None: it would pass), and the latest block.

        Raises: RpcUnavailable.
        """
        simulation, block = await self.rpc.ask(
            [self._simulation(payload, sender), ("eth_getBlockByNumber", ["latest", False])]
        )
        return _revert(simulation), _block(block)

    async def authorization_used(self, payer: str, nonce: str) -> tuple[bool, Block]:
        """Was this authorization used or cancelled, as of the latest block? Raises: RpcUnavailable."""
        used, block = await self.rpc.ask(
            [
                self._read_call(evm.authorization_state_calldata(payer, nonce)),
                ("eth_getBlockByNumber", ["latest", False]),
            ]
        )
        return _word(used) != 0, _block(block)

    async def find_use(self, payer: str, nonce: str) -> str | None:
        """The hash of the transaction that used or cancelled the authorization; None where it is not found.

        Raises: RpcUnavailable.
        """
        use = await self.use_of(payer, nonce)
        return None if use is None else use.transaction_hash

    async def use_of(self, payer: str, nonce: str) -> Use | None:
        """How the authorization was used up, as `find_use` finds it. Raises: RpcUnavailable."""
        latest = quantity(await self._result("eth_blockNumber"))
        events = [evm.AUTHORIZATION_USED_TOPIC, evm.AUTHORIZATION_CANCELED_TOPIC]
        wanted = {
            "address": self._address,
            "topics": [events, "0x" + "0" * 24 + payer[2:], nonce],
            "fromBlock": hex(max(0, latest - _LOG_RANGE_BLOCKS)),
            "toBlock": "latest",
        }
        (logs,) = await self.rpc.ask([("eth_getLogs", [wanted])])
        if not isinstance(logs, list) or not logs or not isinstance(logs[0], dict):
            return None
        found, topics = logs[0].get("transactionHash"), logs[0].get("topics")
        if not isinstance(found, str) or not isinstance(topics, list) or not topics:
            return None
        return Use(found.lower(), is_cancellation=str(topics[0]).lower() == evm.AUTHORIZATION_CANCELED_TOPIC)

    async def sender_of(self, transaction_hash: str) -> str | None:
        """Whose transaction it is, in lower case; None where the node does not know it. Raises: RpcUnavailable."""
        found = await self._result("eth_getTransactionByHash", transaction_hash)
        sender = found.get("from") if isinstance(found, dict) else None
        return sender.lower() if isinstance(sender, str) else None

    async def latest_block(self) -> Block:
        """The latest block. Raises: RpcUnavailable."""
        (block,) = await self.rpc.ask([("eth_getBlockByNumber", ["latest", False])])
        return _block(block)

    async def fees(self, signer: str, base_fee_wei: int) -> Fees:
        """Fees for a transaction now: twice the base fee and the node's tip, under the configured cap.

        Tip and the signer's balance are remembered for about a block. Raises: RpcUnavailable, also where the cap is
        below what the next block asks.
        """
        now = asyncio.get_running_loop().time()
        known = self._fees
        if known is None or now >= self._fees_until:
            tip, balance = await self.rpc.ask(
                [("eth_maxPriorityFeePerGas", []), ("eth_getBalance", [signer, "latest"])]
            )
            tip_wei = _DEFAULT_TIP_WEI if isinstance(tip, RpcError) else quantity(tip)
            known = Fees(0, tip_wei, quantity(balance))
            self._fees, self._fees_until = known, now + _FEES_LIFETIME_SECONDS
        cap = self.config.max_fee_per_gas_wei
        tip_wei = min(known.max_priority_fee_per_gas, cap)
        if base_fee_wei + tip_wei > cap:
            msg = f"gas costs more than the configured {cap} wei"
            raise RpcUnavailable(msg)
        return Fees(min(2 * base_fee_wei + tip_wei, cap), tip_wei, known.signer_balance)

    async def pending_nonce(self, signer: str) -> int:
        """The first nonce that the node has not seen from this account. Raises: RpcUnavailable."""
        return quantity(await self._result("eth_getTransactionCount", signer, "pending"))

    async def mined_nonce(self, signer: str) -> int:
        """How many transactions of this account are mined. Raises: RpcUnavailable."""
        return quantity(await self._result("eth_getTransactionCount", signer, "latest"))

    async def submit(self, raw: bytes, transaction_hash: str) -> Submission:
        """Hands a signed transaction to the node.

        What sounds like a refusal ("already known", "nonce too low") is looked up by the hash; it is never a failure.
        """
        try:
            named = await self.rpc.send_raw(raw)
            if named.lower() == transaction_hash:
                return Submission.TAKEN
            _LOG.error("node_named_another_hash", network=self.network.name, transaction=transaction_hash)
        except RpcUnavailable as error:
            _LOG.warning("send_unclear", network=self.network.name, transaction=transaction_hash, reason=str(error))
            return Submission.UNCLEAR
        except RpcError as error:
            _LOG.warning("send_refused", network=self.network.name, transaction=transaction_hash, reason=error.message)
        try:
            known = await self._result("eth_getTransactionByHash", transaction_hash)
        except RpcUnavailable:
            return Submission.UNCLEAR
        return Submission.TAKEN if isinstance(known, dict) else Submission.UNCLEAR

    async def wait(self, expected: Expected, deadline: float) -> Sighting:
        """The first sighting at the configured depth, or at `deadline` (event loop time) what was seen last."""
        return await self._watcher.wait(expected, deadline)

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """What the chain shows now of many transactions. Raises: RpcUnavailable."""
        return await self._reader.look(wanted)

    async def close(self) -> None:
        """Ends the watcher and the connections."""
        await self._watcher.close()
        await self.rpc.close()

    async def _result(self, method: str, *params: Any) -> Any:  # noqa: ANN401 - JSON
        try:
            return await self.rpc.call(method, *params)
        except RpcError as error:
            msg = f"the node refused {method}: {error.message}"
            raise RpcUnavailable(msg) from error


def _data(answer: Answer) -> bytes:
    """Bytes in hex. Raises: RpcUnavailable for anything else."""
    if isinstance(answer, str) and answer.startswith("0x"):
        try:
            return bytes.fromhex(answer[2:])
        except ValueError:
            pass
    msg = f"the node refused a read: {answer.message}" if isinstance(answer, RpcError) else "the node sent no bytes"
    raise RpcUnavailable(msg)


def _height(answers: list[Answer] | RpcUnavailable) -> int | None:
    """The latest block in a probe's answers; None where the node does not name it."""
    latest = None if isinstance(answers, RpcUnavailable) else answers[-1]
    try:
        return quantity(latest)
    except RpcUnavailable:
        return None


def _word(answer: Answer) -> int:
    data = _data(answer)
    if len(data) != 32:
        msg = "the asset answered with something that is no number"
        raise RpcUnavailable(msg)
    return int.from_bytes(data, "big")


def _text(answer: Answer) -> str:
    try:
        return "" if isinstance(answer, RpcError) else evm.decode_string(_data(answer))
    except ValueError:
        return ""


def _block(answer: Answer) -> Block:
    if not isinstance(answer, dict):
        msg = "the node does not show its latest block"
        raise RpcUnavailable(msg)
    base_fee = answer.get("baseFeePerGas")
    return Block(
        quantity(answer.get("number")),
        quantity(answer.get("timestamp")),
        0 if base_fee is None else quantity(base_fee),
    )


def _accepts(answer: Answer) -> bool:
    """A wallet's yes to a signature. Raises: RpcUnavailable where the node did not run the call."""
    return _revert(answer) is None and evm.is_wallet_acceptance(_data(answer))


def _revert(answer: Answer) -> str | None:
    """The reason of a reverted eth_call; None where it passed. Raises: RpcUnavailable where the node did not run it."""
    if not isinstance(answer, RpcError):
        _data(answer)
        return None
    data = answer.data if isinstance(answer.data, str) else ""
    if answer.code != 3 and "revert" not in answer.message.lower() and not data.startswith("0x"):
        if any(word in answer.message.lower() for word in _HALTS):
            return answer.message
        msg = f"the node could not simulate: {answer.message}"
        raise RpcUnavailable(msg)
    try:
        raw = bytes.fromhex(data[2:])
        if raw[:4] == _ERROR_SELECTOR:
            return evm.decode_string(raw[4:])
    except ValueError:
        pass
    return answer.message or "execution reverted"
