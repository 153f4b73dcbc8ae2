"""Blocks, receipts and events of the sandbox chain, and their JSON as Ethereum nodes answer it.

Block hashes are real hashes of headers and chain as they should. The tries are not built: state, transaction and
receipt roots are placeholders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.evm.encoding import checksum_address, keccak256, rlp_encode
from tollkeeper.sandbox.evm.engine import BLOCK_GAS_LIMIT, COINBASE, EngineLog, Result

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.evm.encoding import RlpItem
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.sandbox.evm.engine import ExecutionOutcome
    from tollkeeper.sandbox.evm.transactions import CheckedTransaction

ZERO_HASH: Final = "0x" + "0" * 64
_BLOOM_BYTES: Final = 256
_EMPTY_UNCLES_HASH: Final = "0x1dcc4de8dec75d7aab85b567b6ccd41ad312451b948a7413f0a142fd40d49347"


@dataclass(frozen=True, slots=True)
class Receipt:
    """One mined transaction and what became of it. `first_log_index` counts events within the block."""

    transaction: CheckedTransaction
    outcome: ExecutionOutcome
    index: int
    price_per_gas: int
    cumulative_gas_used: int
    first_log_index: int


@dataclass(frozen=True, slots=True)
class SealedBlock:
    """A sealed block. `base_fee_per_gas` is wei."""

    number: int
    hash: str
    parent_hash: str
    timestamp_seconds: int
    base_fee_per_gas: int
    receipts: tuple[Receipt, ...]
    bloom: bytes

    @property
    def gas_used(self) -> int:
        """Gas of all its transactions."""
        return self.receipts[-1].cumulative_gas_used if self.receipts else 0


def seal_block(
    parent: SealedBlock | None,
    *,
    timestamp_seconds: int,
    base_fee_per_gas: int,
    receipts: tuple[Receipt, ...],
    salt: bytes,
) -> SealedBlock:
    """The block on `parent` with these transactions.

    `salt` goes into the hash, so that a chain that was taken back and grown again has other hashes.
    """
    number = 0 if parent is None else parent.number + 1
    parent_hash = ZERO_HASH if parent is None else parent.hash
    bloom = logs_bloom(log for receipt in receipts for log in receipt.outcome.logs)
    header: list[RlpItem] = [
        bytes.fromhex(parent_hash[2:]),
        number,
        timestamp_seconds,
        base_fee_per_gas,
        keccak256(b"".join(bytes.fromhex(receipt.transaction.hash[2:]) for receipt in receipts)),
        receipts[-1].cumulative_gas_used if receipts else 0,
        bloom,
        salt,
    ]
    block_hash = "0x" + keccak256(rlp_encode(header)).hex()
    return SealedBlock(number, block_hash, parent_hash, timestamp_seconds, base_fee_per_gas, receipts, bloom)


def logs_bloom(logs: Iterable[EngineLog]) -> bytes:
    """The 2048-bit filter over addresses and topics (yellow paper, 4.3.1)."""
    bits = 0
    for log in logs:
        for entry in (log.address, *log.topics):
            digest = keccak256(bytes.fromhex(entry[2:]))
            for start in (0, 2, 4):
                bits |= 1 << (int.from_bytes(digest[start : start + 2], "big") % (8 * _BLOOM_BYTES))
    return bits.to_bytes(_BLOOM_BYTES, "big")


def block_json(block: SealedBlock, *, full: bool) -> JsonObject:
    """`full` gives transaction objects in place of hashes."""
    transactions: list[Any] = [
        transaction_json(receipt.transaction, block, receipt) if full else receipt.transaction.hash
        for receipt in block.receipts
    ]
    return {
        "number": hex(block.number),
        "hash": block.hash,
        "parentHash": block.parent_hash,
        "timestamp": hex(block.timestamp_seconds),
        "baseFeePerGas": hex(block.base_fee_per_gas),
        "gasLimit": hex(BLOCK_GAS_LIMIT),
        "gasUsed": hex(block.gas_used),
        "miner": checksum_address(COINBASE),
        "transactions": transactions,
        "logsBloom": "0x" + block.bloom.hex(),
        "difficulty": "0x0",
        "totalDifficulty": "0x0",
        "extraData": "0x",
        "mixHash": ZERO_HASH,
        "nonce": "0x0000000000000000",
        "sha3Uncles": _EMPTY_UNCLES_HASH,
        "size": "0x400",
        "stateRoot": ZERO_HASH,
        "receiptsRoot": ZERO_HASH,
        "transactionsRoot": ZERO_HASH,
        "uncles": [],
        "withdrawals": [],
    }


def transaction_json(
    transaction: CheckedTransaction, block: SealedBlock | None = None, receipt: Receipt | None = None
) -> JsonObject:
    """A transaction object; without block and receipt, one that still waits."""
    shown: JsonObject = {
        "hash": transaction.hash,
        "type": hex(transaction.type),
        "nonce": hex(transaction.nonce),
        "from": checksum_address(transaction.sender),
        "to": checksum_address(transaction.to) if transaction.to else None,
        "value": hex(transaction.value),
        "gas": hex(transaction.gas),
        "gasPrice": hex(receipt.price_per_gas if receipt else transaction.max_fee_per_gas),
        "input": "0x" + transaction.data.hex(),
        "r": hex(transaction.r),
        "s": hex(transaction.s),
        "v": hex(transaction.parity),
        "blockHash": block.hash if block else None,
        "blockNumber": hex(block.number) if block else None,
        "transactionIndex": hex(receipt.index) if receipt else None,
    }
    if transaction.chain_id is not None:
        shown["chainId"] = hex(transaction.chain_id)
    if transaction.type == 0:
        offset = 27 if transaction.chain_id is None else 35 + 2 * transaction.chain_id
        shown["v"] = hex(offset + transaction.parity)
    else:
        shown["yParity"] = hex(transaction.parity)
        shown["accessList"] = []
        shown["maxFeePerGas"] = hex(transaction.max_fee_per_gas)
        shown["maxPriorityFeePerGas"] = hex(transaction.max_priority_fee_per_gas)
    return shown


def receipt_json(block: SealedBlock, receipt: Receipt) -> JsonObject:
    """A receipt object with its events."""
    transaction, outcome = receipt.transaction, receipt.outcome
    return {
        "transactionHash": transaction.hash,
        "transactionIndex": hex(receipt.index),
        "blockHash": block.hash,
        "blockNumber": hex(block.number),
        "from": checksum_address(transaction.sender),
        "to": checksum_address(transaction.to) if transaction.to else None,
        "contractAddress": checksum_address(outcome.created) if outcome.created else None,
        "cumulativeGasUsed": hex(receipt.cumulative_gas_used),
        "gasUsed": hex(outcome.gas_used),
        "effectiveGasPrice": hex(receipt.price_per_gas),
        "logs": logs_json(block, receipt),
        "logsBloom": "0x" + logs_bloom(outcome.logs).hex(),
        "status": hex(int(outcome.result is Result.SUCCESS)),
        "type": hex(transaction.type),
    }


def logs_json(block: SealedBlock, receipt: Receipt) -> list[JsonObject]:
    """The events of one transaction."""
    return [
        {
            "address": checksum_address(log.address),
            "topics": list(log.topics),
            "data": "0x" + log.data.hex(),
            "blockNumber": hex(block.number),
            "blockHash": block.hash,
            "blockTimestamp": hex(block.timestamp_seconds),
            "transactionHash": receipt.transaction.hash,
            "transactionIndex": hex(receipt.index),
            "logIndex": hex(receipt.first_log_index + position),
            "removed": False,
        }
        for position, log in enumerate(receipt.outcome.logs)
    ]
