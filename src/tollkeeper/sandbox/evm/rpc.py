"""The sandbox chain's JSON-RPC methods.

They are those that the official x402 stacks, viem and web3.py call, and test methods of anvil's under anvil's names.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.sandbox.evm.blocks import block_json, logs_json, receipt_json, transaction_json
from tollkeeper.sandbox.evm.chain import SUGGESTED_PRIORITY_FEE_PER_GAS, raise_for_failure
from tollkeeper.sandbox.evm.engine import BLOCK_GAS_LIMIT, EngineMessage
from tollkeeper.sandbox.rpc_server import INVALID_PARAMS, JsonRpcApp, ServedRpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tollkeeper.sandbox.evm.blocks import SealedBlock
    from tollkeeper.sandbox.evm.chain import EmbeddedChain

    Json = Any

_NEWEST: Final = frozenset({"latest", "pending", "safe", "finalized"})
_MAX_MINED_AT_ONCE: Final = 10_000


def evm_rpc_app(chain: EmbeddedChain) -> JsonRpcApp:
    """The chain as a table of methods."""
    return JsonRpcApp({**_reading(chain), **_executing(chain), **_testing(chain)})


def _reading(chain: EmbeddedChain) -> dict[str, Callable[..., Json]]:
    def get_block_by_number(tag: str, full: bool = False) -> Json:  # noqa: FBT001, FBT002 - JSON-RPC is positional
        block = _block(chain, tag)
        return None if block is None else block_json(block, full=full)

    def get_block_by_hash(block_hash: str, full: bool = False) -> Json:  # noqa: FBT001, FBT002 - as above
        block = chain.block_of_hash(block_hash.lower())
        return None if block is None else block_json(block, full=full)

    def get_transaction_by_hash(transaction_hash: str) -> Json:
        mined = chain.mined(transaction_hash.lower())
        if mined is not None:
            return transaction_json(mined[1].transaction, *mined)
        waiting = chain.pool.get(transaction_hash.lower())
        return None if waiting is None else transaction_json(waiting)

    def get_transaction_receipt(transaction_hash: str) -> Json:
        mined = chain.mined(transaction_hash.lower())
        return None if mined is None else receipt_json(*mined)

    def get_transaction_count(address: str, tag: Json = "latest") -> str:
        _require_newest(chain, tag)
        key = _address(address)
        return hex(chain.next_nonce(key) if tag == "pending" else chain.engine.account(key).nonce)

    def get_balance(address: str, tag: Json = "latest") -> str:
        _require_newest(chain, tag)
        return hex(chain.engine.account(_address(address)).balance)

    def get_code(address: str, tag: Json = "latest") -> str:
        _require_newest(chain, tag)
        return "0x" + chain.engine.account(_address(address)).code.hex()

    def get_storage_at(address: str, slot: str, tag: Json = "latest") -> str:
        _require_newest(chain, tag)
        return f"0x{chain.engine.storage(_address(address), int(slot, 16)):064x}"

    return {
        "eth_chainId": lambda: hex(chain.chain_id),
        "net_version": lambda: str(chain.chain_id),
        "net_listening": lambda: True,
        "web3_clientVersion": lambda: f"tollkeeper-sandbox/{chain.engine.name}",
        "eth_syncing": lambda: False,
        "eth_accounts": list,
        "eth_blockNumber": lambda: hex(chain.head.number),
        "eth_gasPrice": lambda: hex(chain.base_fee_per_gas + SUGGESTED_PRIORITY_FEE_PER_GAS),
        "eth_maxPriorityFeePerGas": lambda: hex(SUGGESTED_PRIORITY_FEE_PER_GAS),
        "eth_feeHistory": lambda count, newest, percentiles=(): _fee_history(chain, count, newest, percentiles),
        "eth_getBlockByNumber": get_block_by_number,
        "eth_getBlockByHash": get_block_by_hash,
        "eth_getTransactionByHash": get_transaction_by_hash,
        "eth_getTransactionReceipt": get_transaction_receipt,
        "eth_getTransactionCount": get_transaction_count,
        "eth_getBalance": get_balance,
        "eth_getCode": get_code,
        "eth_getStorageAt": get_storage_at,
        "eth_getLogs": lambda query: _logs(chain, query),
    }


def _executing(chain: EmbeddedChain) -> dict[str, Callable[..., Json]]:
    def call(request: Json, tag: Json = "latest", overrides: Json = None, *_: Json) -> str:
        _require_newest(chain, tag)
        _refuse_overrides(overrides)
        outcome = chain.call(_message(request))
        raise_for_failure(outcome)
        return "0x" + outcome.output.hex()

    def estimate_gas(request: Json, tag: Json = "latest", overrides: Json = None, *_: Json) -> str:
        _require_newest(chain, tag)
        _refuse_overrides(overrides)
        return hex(chain.estimate_gas(_message(request)))

    return {
        "eth_call": call,
        "eth_estimateGas": estimate_gas,
        "eth_sendRawTransaction": lambda raw: chain.send_raw(_data(raw)),
    }


def _testing(chain: EmbeddedChain) -> dict[str, Callable[..., Json]]:
    def mine(count: Json = 1, *_: Json) -> str:
        wanted = _number(count) if not isinstance(count, dict) else 1
        for _index in range(min(wanted, _MAX_MINED_AT_ONCE)):
            chain.mine()
        return "0x0"

    def set_automine(enabled: bool) -> bool:  # noqa: FBT001 - as above
        chain.automine = enabled
        return True

    def set_base_fee(base_fee: Json) -> None:
        chain.base_fee_per_gas = _number(base_fee)

    def set_next_timestamp(timestamp: Json) -> None:
        chain.set_next_timestamp(_number(timestamp))

    def change(address: str, **fields: Any) -> None:  # noqa: ANN401 - fields of Account
        key = _address(address)
        chain.engine.set_account(key, replace(chain.engine.account(key), **fields))

    def drop(transaction_hash: str) -> str | None:
        waiting = chain.pool.get(transaction_hash.lower())
        if waiting is None:
            return None
        chain.pool.remove(waiting)
        return waiting.hash

    def set_storage(address: str, slot: str, value: str) -> bool:
        chain.engine.set_storage(_address(address), int(slot, 16), int(value, 16))
        return True

    return {
        "evm_mine": mine,
        "anvil_mine": mine,
        "evm_setAutomine": set_automine,
        "evm_increaseTime": lambda seconds: hex(chain.advance_time(_number(seconds))),
        "evm_setNextBlockTimestamp": set_next_timestamp,
        "evm_snapshot": lambda: hex(chain.checkpoint()),
        "evm_revert": lambda number: chain.restore(_number(number)),
        "anvil_setNextBlockBaseFeePerGas": set_base_fee,
        "anvil_dropTransaction": drop,
        "anvil_setBalance": lambda address, wei: change(address, balance=_number(wei)),
        "anvil_setNonce": lambda address, nonce: change(address, nonce=_number(nonce)),
        "anvil_setCode": lambda address, code: change(address, code=_data(code)),
        "anvil_setStorageAt": set_storage,
    }


def _message(request: Json) -> EngineMessage:
    data = request.get("input") or request.get("data") or "0x"
    gas = _number(request.get("gas") or BLOCK_GAS_LIMIT)
    return EngineMessage(
        sender=_address(request.get("from") or "0x" + "0" * 40),
        to=_address(request["to"]) if request.get("to") else None,
        data=_data(data),
        gas=min(gas, BLOCK_GAS_LIMIT),
        value=_number(request.get("value") or 0),
    )


def _block(chain: EmbeddedChain, tag: str) -> SealedBlock | None:
    return chain.block(_height(chain, tag))


def _require_newest(chain: EmbeddedChain, tag: Json) -> None:
    """Raises: RpcError for a block other than the newest (EIP-1898 objects included)."""
    if tag is None or (isinstance(tag, str) and tag in _NEWEST):
        return
    if isinstance(tag, dict):
        block = (
            chain.block_of_hash(tag["blockHash"].lower()) if "blockHash" in tag else _block(chain, tag["blockNumber"])
        )
    else:
        block = _block(chain, tag)
    if block is None:
        raise ServedRpcError("header not found")
    if block is not chain.head:
        raise ServedRpcError(f"missing trie node: the state at block {block.number} is not kept")


def _refuse_overrides(overrides: Json) -> None:
    if overrides:
        raise ServedRpcError("state overrides are not supported", code=INVALID_PARAMS)


def _fee_history(chain: EmbeddedChain, count: Json, newest: str, percentiles: Sequence[float]) -> Json:
    last = _block(chain, newest) or chain.head
    first = max(0, last.number - min(_number(count), 1024) + 1)
    blocks = [block for number in range(first, last.number + 1) if (block := chain.block(number)) is not None]
    following = chain.block(last.number + 1)
    next_fee = following.base_fee_per_gas if following else chain.base_fee_per_gas
    history: dict[str, Json] = {
        "oldestBlock": hex(first),
        "baseFeePerGas": [hex(block.base_fee_per_gas) for block in blocks] + [hex(next_fee)],
        "gasUsedRatio": [block.gas_used / BLOCK_GAS_LIMIT for block in blocks],
    }
    if percentiles:
        history["reward"] = [[hex(SUGGESTED_PRIORITY_FEE_PER_GAS)] * len(percentiles) for _ in blocks]
    return history


def _logs(chain: EmbeddedChain, query: Json) -> list[Json]:
    """eth_getLogs. Raises: RpcError for a range that runs backwards."""
    if query.get("blockHash"):
        named = chain.block_of_hash(query["blockHash"].lower())
        if named is None:
            raise ServedRpcError("unknown block")
        first = last = named.number
    else:
        first, last = (_height(chain, query.get(key) or "latest") for key in ("fromBlock", "toBlock"))
    if first > last:
        raise ServedRpcError("invalid block range params", code=INVALID_PARAMS)
    addresses = query.get("address") or []
    wanted = {_address(one) for one in ([addresses] if isinstance(addresses, str) else addresses)}
    topics = [None if one is None else _lower(one) for one in query.get("topics") or []]
    return [
        log
        for number in range(first, min(last, chain.head.number) + 1)
        if (block := chain.block(number)) is not None
        for receipt in block.receipts
        for log in logs_json(block, receipt)
        if (not wanted or log["address"].lower() in wanted) and _topics_match(topics, log["topics"])
    ]


def _height(chain: EmbeddedChain, tag: str) -> int:
    if tag in _NEWEST:
        return chain.head.number
    return 0 if tag == "earliest" else _number(tag)


def _lower(topic: str | list[str]) -> set[str]:
    return {one.lower() for one in ([topic] if isinstance(topic, str) else topic)}


def _topics_match(wanted: list[set[str] | None], topics: list[str]) -> bool:
    """Each place matches one of its topics; None matches any. An event may have more topics than were asked for."""
    if len(wanted) > len(topics):
        return False
    return all(not one or topic in one for one, topic in zip(wanted, topics, strict=False))


def _address(text: str) -> str:
    if len(bytes.fromhex(text.removeprefix("0x"))) != 20 or not text.startswith("0x"):
        raise ServedRpcError("invalid address", code=INVALID_PARAMS)
    return text.lower()


def _data(text: str) -> bytes:
    if not text.startswith("0x"):
        raise ServedRpcError("cannot unmarshal hex string without 0x prefix", code=INVALID_PARAMS)
    return bytes.fromhex(text[2:])


def _number(value: Json) -> int:
    return int(value, 16) if isinstance(value, str) else int(value)
