"""Reader of authorizations: if they are used, by which transaction, and whose nonces are gone (security 5, A-08, F22).

Facts of one question are read in one batch at one block, as deep as the asker needs, which is named by its hash. The
signer of a transaction is recovered from its bytes, never taken from the node's word. `core.settlement.states` draws
the conclusions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.chains.evm.blocks import (
    Block,
    counted,
    hash_of_block,
    quantity,
    read_block,
    require_shown,
    transactions_of_block,
    word_of,
)
from tollkeeper.chains.evm.logs import RANGE_BLOCKS
from tollkeeper.chains.replies import RpcError, RpcUnavailable
from tollkeeper.core.evm import encoding as evm
from tollkeeper.core.evm.signed_transactions import SignedTransaction, signed_by
from tollkeeper.core.purchases import AuthorizationStanding as PaymentStanding

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from tollkeeper.chains.evm.logs import LogRange
    from tollkeeper.chains.replies import Answer
    from tollkeeper.chains.rpc import Call
    from tollkeeper.core.json_types import JsonObject

# So many ranges of blocks are asked for at most, however long ago it may have been: of Base, three months, where nodes
# show as many blocks at once as most do.
_LOG_RANGES_MAX: Final = 432
# While somebody waits, and for whom anybody may ask: enough where nodes show 1,000 blocks at once.
_LOG_RANGES_QUICK: Final = 16
# What a node says of parameters of a form that it does not know.
_INVALID_PARAMS: Final = -32602


@dataclass(frozen=True, slots=True)
class Standing:
    """State at one block: is the authorization used or cancelled, how many transactions of each signer are mined?"""

    is_used: bool
    mined: dict[str, int]
    block: Block


@dataclass(frozen=True, slots=True)
class AuthorizationUse:
    """The transaction that used or cancelled an authorization, in a canonical block so many confirmations deep."""

    transaction_hash: str
    block_number: int
    block_hash: str
    depth_blocks: int
    is_cancellation: bool


class TooFarBack(RpcUnavailable):
    """Nodes show the logs of so few blocks at once that what lies further back was not looked at."""


class AuthorizationReader:
    """Reader of the authorizations of one asset."""

    def __init__(self, ask: Callable[[Sequence[Call]], Awaitable[list[Answer]]], asset: str, logs: LogRange) -> None:
        self._ask = ask
        self._asset = asset
        self._logs = logs
        self._takes_hashes = False  # as far as was seen; from then on who refuses one does not have the block

    def of(self, asset: str) -> AuthorizationReader:
        """Return the reader of that asset: a payment's own, where the network's was changed since."""
        return self if asset == self._asset else AuthorizationReader(self._ask, asset, self._logs)

    async def standing(self, payer: str, nonce: str, signers: Sequence[str], depth_blocks: int) -> Standing:
        """Return the state at the newest block that is so deep: 1 is the latest. Raises: RpcUnavailable.

        One URL may be several nodes on several forks, so the block is named by its hash (EIP-1898): a node on another
        fork gives no answer. Where no node takes a hash, the block is named by its number, and read before and after.
        """
        block = await self.block(depth_blocks)
        call = {"to": self._asset, "data": "0x" + evm.authorization_state_calldata(payer, nonce).hex()}

        def facts(place: Any) -> list[Call]:  # noqa: ANN401 - JSON
            counts: list[Call] = [("eth_getTransactionCount", [signer, place]) for signer in signers]
            return [("eth_call", [call, place]), *counts]

        answers = await self._ask(facts({"blockHash": block.hash, "requireCanonical": True}))
        refused = [one.code for one in answers if isinstance(one, RpcError)]
        self._takes_hashes = self._takes_hashes or not refused
        if _INVALID_PARAMS in refused or (refused and not self._takes_hashes):
            tag = hex(block.number)
            *answers, shown = await self._ask([*facts(tag), ("eth_getBlockByNumber", [tag, False])])
            if read_block(shown).hash != block.hash:
                raise RpcUnavailable(f"block {block.number} was replaced while it was read")
        used, *counts = answers
        return Standing(word_of(used) != 0, dict(zip(signers, map(counted, counts), strict=True)), block)

    async def unused(self, payer: str, nonce: str) -> PaymentStanding:
        """Ask in one batch, of the latest block, whether the authorization is unused. Raises: RpcUnavailable."""
        data = "0x" + evm.authorization_state_calldata(payer, nonce).hex()
        used, block = await self._ask(
            [("eth_call", [{"to": self._asset, "data": data}, "latest"]), ("eth_getBlockByNumber", ["latest", False])]
        )
        return PaymentStanding(word_of(used) == 0, read_block(block).timestamp_seconds)

    async def block(self, depth_blocks: int) -> Block:
        """Return the newest block that is so deep: 1 is the latest. Raises: RpcUnavailable."""
        tag = "latest"
        if depth_blocks > 1:
            (head,) = await self._ask([("eth_blockNumber", [])])
            tag = hex(max(0, counted(head) - depth_blocks + 1))
        (block,) = await self._ask([("eth_getBlockByNumber", [tag, False])])
        return read_block(block)

    async def holding(self, payer: str, nonces: Sequence[str]) -> tuple[int, list[bool]]:
        """Return the payer's balance, and which of its authorizations are used, at one moment.

        Raises: RpcUnavailable.
        """
        asked = [evm.balance_of_calldata(payer), *(evm.authorization_state_calldata(payer, one) for one in nonces)]
        calls: list[Call] = [("eth_call", [{"to": self._asset, "data": "0x" + data.hex()}, "latest"]) for data in asked]
        balance, *used = await self._ask(calls)
        return word_of(balance), [word_of(one) != 0 for one in used]

    async def nonce_of(self, signer: str, tag: str) -> int:
        """Return how many transactions of this account are mined ("latest"), or also waited for ("pending").

        Raises: RpcUnavailable.
        """
        (count,) = await self._ask([("eth_getTransactionCount", [signer, tag])])
        require_shown(count)
        return counted(count)

    async def find_use(self, payer: str, nonce: str, since_seconds: int | None = None) -> AuthorizationUse | None:
        """Find the transaction that used or cancelled the authorization; None if it is not found.

        Searches the newest blocks, or back to `since_seconds` (Unix seconds) if it is given. Raises: RpcUnavailable;
        TooFarBack if the nodes show too few blocks at once to search so far.
        """
        (head,) = await self._ask([("eth_blockNumber", [])])
        latest = last = counted(head)
        topics = [
            [evm.AUTHORIZATION_USED_TOPIC, evm.AUTHORIZATION_CANCELED_TOPIC],
            "0x" + "0" * 24 + payer[2:],
            nonce,
        ]
        least = max(0, latest - RANGE_BLOCKS) if since_seconds is None else 0
        oldest: list[Answer] = []

        async def ask(count: int) -> Answer:
            nonlocal oldest
            first = hex(max(0, last - count + 1))
            # The newest range is open: the node may have come further since it named its latest block.
            ends = {"fromBlock": first, "toBlock": "latest" if last == latest else hex(last)}
            asked: list[Call] = [("eth_getLogs", [{"address": self._asset, "topics": topics, **ends}])]
            if since_seconds is not None:
                asked.append(("eth_getBlockByNumber", [first, False]))
            logs, *oldest = await self._ask(asked)
            return logs

        for _ in range(_LOG_RANGES_QUICK if since_seconds is None else _LOG_RANGES_MAX):
            count, logs = await self._logs.shown(ask)
            if logs:
                return await self._use(logs[0], latest)
            last -= count
            is_past = any(read_block(block).timestamp_seconds <= (since_seconds or 0) for block in oldest)
            if last < least or is_past:
                return None
        raise TooFarBack(self._logs.limit)

    async def _use(self, log: dict[str, object], latest: int) -> AuthorizationUse | None:
        """Return the use that this log shows; None if its block is not the canonical one. Raises: RpcUnavailable."""
        found, block_hash, topics = (log.get(name) for name in ("transactionHash", "blockHash", "topics"))
        if not isinstance(found, str) or not isinstance(block_hash, str) or not isinstance(topics, list) or not topics:
            return None
        number = counted(log.get("blockNumber"))
        (block,) = await self._ask([("eth_getBlockByNumber", [hex(number), False])])
        require_shown(block)
        if hash_of_block(block) != block_hash.lower() or found.lower() not in transactions_of_block(block):
            return None
        is_cancellation = str(topics[0]).lower() == evm.AUTHORIZATION_CANCELED_TOPIC
        return AuthorizationUse(found.lower(), number, block_hash.lower(), latest - number + 1, is_cancellation)

    async def sender_of(self, transaction_hash: str) -> str | None:
        """Return the sender that a node names, in lower case; None if it does not know the transaction.

        Raises: RpcUnavailable.

        For transactions of any kind, where no signature of our own signers has to be told from a lie.
        """
        (found,) = await self._ask([("eth_getTransactionByHash", [transaction_hash])])
        require_shown(found)
        sender = found.get("from") if isinstance(found, dict) else None
        return sender.lower() if isinstance(sender, str) else None

    async def signed(self, transaction_hash: str) -> SignedTransaction | None:
        """Return the transaction with the signer that its bytes show; None for a kind that our signers never make.

        Raises: RpcUnavailable where the node does not show it, or shows something that is not it.
        """
        (answer,) = await self._ask([("eth_getTransactionByHash", [transaction_hash])])
        if not isinstance(answer, dict):
            raise RpcUnavailable("the node does not show a transaction that it named")
        if answer.get("type") != "0x2" or answer.get("accessList") or not isinstance(answer.get("to"), str):
            return None
        try:
            found = _read(answer)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RpcUnavailable("the node's transaction cannot be read") from error
        if found.hash != transaction_hash:
            raise RpcUnavailable("the node shows another transaction than the one that was asked for")
        return found


def _read(answer: JsonObject) -> SignedTransaction:
    transaction = evm.Transaction(
        chain_id=quantity(answer["chainId"]),
        nonce=quantity(answer["nonce"]),
        max_priority_fee_per_gas=quantity(answer["maxPriorityFeePerGas"]),
        max_fee_per_gas=quantity(answer["maxFeePerGas"]),
        gas=quantity(answer["gas"]),
        to=answer["to"].lower(),
        value=quantity(answer["value"]),
        data=bytes.fromhex(answer["input"][2:]),
    )
    parity = answer.get("yParity", answer.get("v"))
    return signed_by(transaction, quantity(parity), quantity(answer["r"]), quantity(answer["s"]))
