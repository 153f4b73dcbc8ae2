"""The sandbox's chain answers as anvil does, wherever the hub or an official stack asks."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.chains.abi import encode_call
from tests.chains.anvil import wait_for_receipt
from tests.chains.rpc_client import RpcFailure
from tollkeeper.core.evm.encoding import TRANSFER_TOPIC, checksum_address, keccak256, transfer_calldata
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

if TYPE_CHECKING:
    from tests.chains.chain_under_test import ChainUnderTest

_STRANGER = "0x00000000000000000000000000000000000abcde"


def _paid_call(chain: ChainUnderTest, **changes: Any) -> bytes:
    authorization = chain.authorization(**changes)
    return transfer_calldata(authorization, chain.sign(authorization))


def test_chain_id_is_base_sepolias(chain: ChainUnderTest) -> None:
    assert chain.rpc.call("eth_chainId") == "0x14a34"
    assert chain.rpc.call("net_version") == "84532"


def test_transaction_is_mined_into_the_next_block(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer
    before = int(chain.rpc.call("eth_blockNumber"), 16)
    receipt = chain.relay(_paid_call(chain))
    block = chain.rpc.call("eth_getBlockByNumber", receipt["blockNumber"], True)

    assert int(receipt["blockNumber"], 16) == before + 1
    assert block["hash"] == receipt["blockHash"]
    assert [one["hash"] for one in block["transactions"]] == [receipt["transactionHash"]]
    assert chain.rpc.call("eth_getBlockByHash", block["hash"], False)["transactions"] == [receipt["transactionHash"]]
    parent = chain.rpc.call("eth_getBlockByNumber", hex(before), False)
    assert block["parentHash"] == parent["hash"]
    assert int(block["timestamp"], 16) >= int(parent["timestamp"], 16)
    assert receipt["from"].lower() == relayer.address
    assert receipt["to"].lower() == USDC_ADDRESS
    assert receipt["type"] == "0x2"
    assert block["gasUsed"] == receipt["gasUsed"] == receipt["cumulativeGasUsed"]


def test_block_time_is_the_clocks(chain: ChainUnderTest) -> None:
    chain.rpc.call("evm_mine")
    assert abs(chain.now() - time.time()) < 5


def test_transaction_can_be_read_back(chain: ChainUnderTest) -> None:
    data = _paid_call(chain)
    receipt = chain.relay(data)
    shown = chain.rpc.call("eth_getTransactionByHash", receipt["transactionHash"])
    while shown["blockHash"] is None:  # a node may show a receipt a moment before it says so of the transaction
        time.sleep(0.05)
        shown = chain.rpc.call("eth_getTransactionByHash", receipt["transactionHash"])
    expected = {
        "hash": receipt["transactionHash"],
        "blockHash": receipt["blockHash"],
        "blockNumber": receipt["blockNumber"],
        "from": chain.wallets.relayer.address,
        "to": USDC_ADDRESS,
        "input": "0x" + data.hex(),
        "value": "0x0",
        "chainId": "0x14a34",
        "type": "0x2",
        "maxPriorityFeePerGas": hex(1_000_000),
        "gasPrice": receipt["effectiveGasPrice"],
    }
    assert {key: shown[key].lower() for key in expected} == expected


def test_unknown_things_are_null(chain: ChainUnderTest) -> None:
    nothing = "0x" + "ab" * 32
    assert chain.rpc.call("eth_getTransactionReceipt", nothing) is None
    assert chain.rpc.call("eth_getTransactionByHash", nothing) is None
    assert chain.rpc.call("eth_getBlockByHash", nothing, False) is None
    assert chain.rpc.call("eth_getBlockByNumber", "0xffffff", False) is None


def test_relayer_pays_the_effective_price_for_the_gas_used(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer.address
    before = int(chain.rpc.call("eth_getBalance", relayer, "latest"), 16)
    receipt = chain.relay(_paid_call(chain))
    after = int(chain.rpc.call("eth_getBalance", relayer, "latest"), 16)
    base_fee = int(chain.rpc.call("eth_getBlockByHash", receipt["blockHash"], False)["baseFeePerGas"], 16)

    assert int(receipt["effectiveGasPrice"], 16) == base_fee + 1_000_000
    assert before - after == int(receipt["gasUsed"], 16) * int(receipt["effectiveGasPrice"], 16)


def test_fee_answers_are_enough_for_the_next_block(chain: ChainUnderTest) -> None:
    chain.relay(_paid_call(chain))
    base_fee = int(chain.rpc.call("eth_getBlockByNumber", "latest", False)["baseFeePerGas"], 16)
    priority_fee = int(chain.rpc.call("eth_maxPriorityFeePerGas"), 16)
    assert int(chain.rpc.call("eth_gasPrice"), 16) >= base_fee * 7 // 8
    history = chain.rpc.call("eth_feeHistory", "0x2", "latest", [50])
    assert len(history["baseFeePerGas"]) == 3
    assert len(history["reward"]) == 2
    assert history["baseFeePerGas"][1] == hex(base_fee)
    fees = {"max_fee_per_gas": 2 * base_fee + priority_fee, "max_priority_fee_per_gas": priority_fee}
    receipt = chain.send_and_wait(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain), **fees)
    assert receipt["status"] == "0x1"


def test_nonces_advance_with_success_and_with_revert(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer
    start = chain.nonce(relayer)
    data = _paid_call(chain)
    assert chain.relay(data)["status"] == "0x1"
    assert chain.relay(data)["status"] == "0x0"
    assert chain.nonce(relayer) == start + 2
    assert int(chain.rpc.call("eth_getTransactionCount", relayer.address, "latest"), 16) == start + 2


def test_used_nonce_is_too_low(chain: ChainUnderTest) -> None:
    nonce = chain.nonce(chain.wallets.relayer)
    chain.relay(_paid_call(chain))
    with pytest.raises(RpcFailure, match="nonce too low"):
        chain.send(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce)


def test_waiting_transaction_is_already_known(chain: ChainUnderTest) -> None:
    chain.rpc.call("evm_setAutomine", False)
    raw, _ = chain.transaction(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain))
    chain.rpc.call("eth_sendRawTransaction", raw)
    with pytest.raises(RpcFailure, match=r"already (known|imported)"):
        chain.rpc.call("eth_sendRawTransaction", raw)


def test_transaction_behind_a_gap_waits_until_the_gap_closes(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer
    nonce = chain.nonce(relayer)
    ahead = chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce + 1)
    assert chain.rpc.call("eth_getTransactionReceipt", ahead) is None
    assert chain.rpc.call("eth_getTransactionByHash", ahead)["blockHash"] is None
    assert chain.nonce(relayer) == nonce

    closing = chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce)
    assert wait_for_receipt(chain.rpc, closing)["status"] == "0x1"
    assert wait_for_receipt(chain.rpc, ahead)["status"] == "0x1"
    assert chain.nonce(relayer) == nonce + 2


def test_pending_count_runs_ahead_of_the_mined_one(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer
    start = chain.nonce(relayer)
    chain.rpc.call("evm_setAutomine", False)
    hashes = [chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=start + step) for step in range(3)]
    assert int(chain.rpc.call("eth_getTransactionCount", relayer.address, "latest"), 16) == start
    assert chain.nonce(relayer) == start + 3

    chain.rpc.call("evm_mine")
    receipts = [chain.rpc.call("eth_getTransactionReceipt", one) for one in hashes]
    assert [receipt["transactionIndex"] for receipt in receipts] == ["0x0", "0x1", "0x2"]
    assert len({receipt["blockHash"] for receipt in receipts}) == 1
    assert [log["logIndex"] for receipt in receipts for log in receipt["logs"]] == [hex(i) for i in range(6)]
    used = [int(receipt["gasUsed"], 16) for receipt in receipts]
    assert int(receipts[2]["cumulativeGasUsed"], 16) == sum(used)


def test_waiting_transaction_is_replaced_for_a_better_fee_only(chain: ChainUnderTest) -> None:
    relayer = chain.wallets.relayer
    chain.rpc.call("evm_setAutomine", False)
    nonce = chain.nonce(relayer)
    fees = {"max_fee_per_gas": 3_000_000_000, "max_priority_fee_per_gas": 1_000_000_000}
    first = chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce, **fees)
    with pytest.raises(RpcFailure, match=r"(?i)underpriced"):
        chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce, **fees)
    doubled = {name: 2 * fee for name, fee in fees.items()}
    second = chain.send(relayer, USDC_ADDRESS, _paid_call(chain), nonce=nonce, **doubled)

    chain.rpc.call("evm_mine")
    assert chain.rpc.call("eth_getTransactionReceipt", second)["status"] == "0x1"
    assert chain.rpc.call("eth_getTransactionByHash", first) is None


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chain_id": 8453}, r"(?i)invalid chain id"),
        ({"gas": 20_000}, r"(?i)intrinsic gas too low"),
        ({"value": 10**24}, r"(?i)insufficient funds for gas \* price \+ value"),
        ({"max_priority_fee_per_gas": 6_000_000_000}, r"(?i)max priority fee per gas higher than max fee per gas"),
    ],
    ids=["chain", "gas", "funds", "fees"],
)
def test_transaction_that_no_block_can_hold_is_refused(
    chain: ChainUnderTest, changes: dict[str, int], reason: str
) -> None:
    nonce = chain.nonce(chain.wallets.relayer)
    with pytest.raises(RpcFailure, match=reason):
        chain.send(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain), **changes)
    assert chain.nonce(chain.wallets.relayer) == nonce


@pytest.mark.parametrize("raw", ["0x", "0x02", "0x02c0", "0x" + "ff" * 40])
def test_bytes_that_are_no_transaction_are_refused(chain: ChainUnderTest, raw: str) -> None:
    with pytest.raises(RpcFailure):
        chain.rpc.call("eth_sendRawTransaction", raw)


def test_out_of_gas_takes_all_the_gas_and_changes_nothing(chain: ChainUnderTest) -> None:
    receipt = chain.send_and_wait(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain), gas=45_000)
    assert receipt["status"] == "0x0"
    assert 44_000 < int(receipt["gasUsed"], 16) <= 45_000  # a proxy keeps back a 64th
    assert receipt["logs"] == []
    assert chain.balance(chain.wallets.owner.address) == 0


def test_estimate_is_enough_and_not_much_more(chain: ChainUnderTest) -> None:
    data = _paid_call(chain)
    request = {"from": chain.wallets.relayer.address, "to": USDC_ADDRESS, "data": "0x" + data.hex()}
    estimate = int(chain.rpc.call("eth_estimateGas", request), 16)
    receipt = chain.send_and_wait(chain.wallets.relayer, USDC_ADDRESS, data, gas=estimate)
    assert receipt["status"] == "0x1"
    assert int(receipt["gasUsed"], 16) <= estimate <= 1.2 * int(receipt["gasUsed"], 16)


def test_estimate_of_a_revert_gives_its_reason(chain: ChainUnderTest) -> None:
    data = "0x" + encode_call("transfer(address,uint256)", _STRANGER, 1).hex()
    with pytest.raises(RpcFailure, match="execution reverted: ERC20: transfer amount exceeds balance") as refusal:
        chain.rpc.call("eth_estimateGas", {"from": _STRANGER, "to": USDC_ADDRESS, "data": data})
    assert refusal.value.code == 3


def test_revert_without_a_reason_has_empty_data(chain: ChainUnderTest) -> None:
    chain.rpc.call("anvil_setCode", _STRANGER, "0x60006000fd")
    with pytest.raises(RpcFailure) as refusal:
        chain.rpc.call("eth_call", {"to": _STRANGER, "data": "0x"}, "latest")
    assert (refusal.value.code, refusal.value.data) == (3, "0x")
    assert re.fullmatch(r"execution reverted.*", refusal.value.message)


def test_halt_is_an_error_and_no_revert(chain: ChainUnderTest) -> None:
    chain.rpc.call("anvil_setCode", _STRANGER, "0x5b600056")  # jumps to itself for ever
    with pytest.raises(RpcFailure) as refusal:
        chain.rpc.call("eth_call", {"to": _STRANGER, "gas": hex(100_000)}, "latest")
    assert refusal.value.code != 3
    assert re.search(r"(?i)out ?of ?gas", refusal.value.message)


def test_call_changes_nothing(chain: ChainUnderTest) -> None:
    data = _paid_call(chain)
    head = chain.rpc.call("eth_blockNumber")
    for _ in range(2):
        assert chain.simulate(data) == b""
    assert chain.balance(chain.wallets.owner.address) == 0
    assert chain.rpc.call("eth_blockNumber") == head


def test_call_to_an_account_without_code_is_empty(chain: ChainUnderTest) -> None:
    assert chain.simulate(b"\x01\x02\x03\x04", to=_STRANGER) == b""
    assert chain.rpc.call("eth_getCode", _STRANGER, "latest") == "0x"
    assert chain.rpc.call("eth_getBalance", _STRANGER, "latest") == "0x0"
    assert len(chain.rpc.call("eth_getCode", USDC_ADDRESS, "latest")) > 1000


def test_account_that_was_looked_at_before_it_existed_can_be_funded(chain: ChainUnderTest) -> None:
    assert chain.simulate(b"", to=_STRANGER) == b""
    receipt = chain.send_and_wait(chain.wallets.relayer, _STRANGER, b"", value=7, gas=21_000)
    assert receipt["gasUsed"] == hex(21_000)
    assert chain.rpc.call("eth_getBalance", _STRANGER, "latest") == "0x7"


def test_contract_is_created_at_the_address_of_sender_and_nonce(chain: ChainUnderTest) -> None:
    # Creation code that returns the 1-byte runtime code 0xaa. The signer of core cannot create, so anvil's unlocked or
    # the legacy way is not needed here: a factory does it.
    factory = "0x00000000000000000000000000000000000fac70"
    creation = bytes.fromhex("60aa60005360016000f3")
    store = b"\x69" + creation + bytes.fromhex("600052600a60166000f0") + bytes.fromhex("60005260206000f3")
    chain.rpc.call("anvil_setCode", factory, "0x" + store.hex())
    chain.rpc.call("anvil_setNonce", factory, "0x1")
    created = chain.simulate(b"", to=factory)[12:]
    receipt = chain.send_and_wait(chain.wallets.relayer, factory, b"")
    assert receipt["status"] == "0x1"
    rlp = bytes([0xD6, 0x94]) + bytes.fromhex(factory[2:]) + b"\x01"
    assert created == keccak256(rlp)[12:]
    assert chain.rpc.call("eth_getCode", "0x" + created.hex(), "latest") == "0xaa"


def test_storage_can_be_read(chain: ChainUnderTest) -> None:
    chain.rpc.call("anvil_setCode", _STRANGER, "0x602a600755")
    chain.send_and_wait(chain.wallets.relayer, _STRANGER, b"")
    assert int(chain.rpc.call("eth_getStorageAt", _STRANGER, "0x7", "latest"), 16) == 42
    assert int(chain.rpc.call("eth_getStorageAt", _STRANGER, "0x8", "latest"), 16) == 0


def test_logs_are_found_by_address_topic_and_range(chain: ChainUnderTest) -> None:
    receipt = chain.relay(_paid_call(chain))
    chain.relay(_paid_call(chain, pay_to=chain.wallets.second_buyer.address))
    number = receipt["blockNumber"]
    payee = "0x" + "0" * 24 + chain.wallets.owner.address[2:]
    transfer = receipt["logs"][1]

    def found(**query: object) -> list[dict[str, Any]]:
        logs: list[dict[str, Any]] = chain.rpc.call("eth_getLogs", {"fromBlock": number, "toBlock": "latest"} | query)
        return logs

    assert len(found(address=USDC_ADDRESS)) == 4
    assert len(found(toBlock=number)) == 2
    assert len(found(address=[USDC_ADDRESS, _STRANGER], topics=[TRANSFER_TOPIC])) == 2
    (only,) = found(address=checksum_address(USDC_ADDRESS), topics=[[TRANSFER_TOPIC], None, payee])
    assert {key: only[key] for key in ("data", "logIndex", "transactionHash", "topics")} == {
        key: transfer[key] for key in ("data", "logIndex", "transactionHash", "topics")
    }
    assert found(address=_STRANGER) == []
    by_hash = chain.rpc.call("eth_getLogs", {"blockHash": receipt["blockHash"]})
    assert [log["logIndex"] for log in by_hash] == ["0x0", "0x1"]


def test_bloom_filters_are_alike(chain: ChainUnderTest) -> None:
    receipt = chain.relay(_paid_call(chain))
    block = chain.rpc.call("eth_getBlockByHash", receipt["blockHash"], False)
    assert receipt["logsBloom"] == block["logsBloom"]
    bits = int(receipt["logsBloom"], 16)
    digest = keccak256(bytes.fromhex(USDC_ADDRESS[2:]))
    for start in (0, 2, 4):
        assert bits >> (int.from_bytes(digest[start : start + 2], "big") % 2048) & 1


def test_snapshot_takes_back_blocks_state_and_nonces(chain: ChainUnderTest) -> None:
    data = _paid_call(chain)
    start = (chain.rpc.call("eth_blockNumber"), chain.nonce(chain.wallets.relayer))
    snapshot = chain.rpc.call("evm_snapshot")
    receipt = chain.relay(data)
    assert chain.rpc.call("evm_revert", snapshot) is True

    assert (chain.rpc.call("eth_blockNumber"), chain.nonce(chain.wallets.relayer)) == start
    assert chain.rpc.call("eth_getTransactionReceipt", receipt["transactionHash"]) is None
    assert chain.balance(chain.wallets.owner.address) == 0
    assert chain.relay(data)["status"] == "0x1"


def test_dropped_transaction_is_gone(chain: ChainUnderTest) -> None:
    chain.rpc.call("evm_setAutomine", False)
    nonce = chain.nonce(chain.wallets.relayer)
    transaction_hash = chain.send(chain.wallets.relayer, USDC_ADDRESS, _paid_call(chain))
    assert chain.rpc.call("anvil_dropTransaction", transaction_hash) == transaction_hash
    assert chain.rpc.call("eth_getTransactionByHash", transaction_hash) is None
    assert chain.nonce(chain.wallets.relayer) == nonce


def test_time_moves_by_hand(chain: ChainUnderTest) -> None:
    chain.rpc.call("evm_mine")  # the newest block may be minutes old
    before = chain.now()
    chain.rpc.call("evm_increaseTime", 5000)
    chain.rpc.call("evm_mine")
    assert 5000 <= chain.now() - before <= 5100
    chain.rpc.call("evm_setNextBlockTimestamp", before + 9000)
    chain.rpc.call("evm_mine")
    assert chain.now() == before + 9000


def test_base_fee_can_be_set(chain: ChainUnderTest) -> None:
    chain.rpc.call("anvil_setNextBlockBaseFeePerGas", hex(3_000_000_000))
    receipt = chain.relay(_paid_call(chain))
    assert receipt["effectiveGasPrice"] == hex(3_001_000_000)


def test_batches_are_answered_in_order(chain: ChainUnderTest) -> None:
    batch: list[dict[str, object]] = [
        {"jsonrpc": "2.0", "id": number, "method": "eth_chainId", "params": []} for number in (7, 8)
    ]
    batch.append({"jsonrpc": "2.0", "id": 9, "method": "eth_noSuchMethod", "params": []})
    answers = chain.rpc.post(batch)
    assert [answer["id"] for answer in answers] == [7, 8, 9]
    assert [answer.get("result") for answer in answers] == ["0x14a34", "0x14a34", None]
    assert answers[2]["error"]["code"] in {-32601, -32602}
