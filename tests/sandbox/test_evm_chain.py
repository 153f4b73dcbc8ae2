"""What the embedded chain promises beyond what anvil can be compared on. Each test runs on both engines."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from eth_account import Account as SigningAccount

from tests.chains.abi import encode_call
from tollkeeper.core.evm.encoding import Transaction, sign_transaction
from tollkeeper.sandbox.evm.blocks import Receipt
from tollkeeper.sandbox.evm.chain import BASE_SEPOLIA_CHAIN_ID, EmbeddedChain, revert_reason
from tollkeeper.sandbox.evm.engine import (
    BLOCK_GAS_LIMIT,
    COINBASE,
    EngineAccount,
    EngineMessage,
    EngineName,
    GenesisAccount,
    Result,
)
from tollkeeper.sandbox.evm.node import (
    BUYER_BALANCE_MICRO,
    RELAYER_BALANCE_WEI,
    USDC_ADDRESS,
    open_engine,
    planted_token,
    sandbox_genesis,
    short_string,
)
from tollkeeper.sandbox.rpc_server import ServedRpcError
from tollkeeper.sandbox.wallets import derive_wallets

_START_MS = 1_800_000_000_000
_STRANGER = "0x" + "7e" * 20
_WALLETS = derive_wallets()


class _Clock:
    def __init__(self) -> None:
        self.now_ms = _START_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> _Clock:
    return _Clock()


@pytest.fixture(params=list(EngineName))
def embedded(request: pytest.FixtureRequest, clock: _Clock) -> EmbeddedChain:
    return EmbeddedChain(
        open_engine(BASE_SEPOLIA_CHAIN_ID, request.param),
        chain_id=BASE_SEPOLIA_CHAIN_ID,
        genesis=sandbox_genesis(_WALLETS),
        clock_ms=clock,
    )


def _raw(embedded: EmbeddedChain, *, to: str = _STRANGER, nonce: int | None = None, **changes: int) -> bytes:
    fields = {"value": 1, "gas": 21_000, "max_fee_per_gas": 20_000_000, "max_priority_fee_per_gas": 1_000} | changes
    sender = _WALLETS.relayer
    chosen = embedded.next_nonce(sender.address) if nonce is None else nonce
    transaction = Transaction(chain_id=BASE_SEPOLIA_CHAIN_ID, nonce=chosen, to=to, data=b"", **fields)
    return sign_transaction(transaction, sender.private_key)[0]


def _receipt(embedded: EmbeddedChain, transaction_hash: str) -> Receipt:
    mined = embedded.mined(transaction_hash)
    assert mined is not None
    return mined[1]


def _usdc(embedded: EmbeddedChain, holder: str) -> int:
    message = EngineMessage(_STRANGER, USDC_ADDRESS, encode_call("balanceOf(address)", holder), BLOCK_GAS_LIMIT)
    return int.from_bytes(embedded.call(message).output, "big")


def test_genesis_funds_the_roles(embedded: EmbeddedChain) -> None:
    assert embedded.engine.account(_WALLETS.relayer.address).balance == RELAYER_BALANCE_WEI
    assert _usdc(embedded, _WALLETS.buyer.address) == _usdc(embedded, _WALLETS.second_buyer.address)
    assert _usdc(embedded, _WALLETS.buyer.address) == BUYER_BALANCE_MICRO
    assert _usdc(embedded, _WALLETS.owner.address) == 0
    supply = embedded.call(EngineMessage(_STRANGER, USDC_ADDRESS, encode_call("totalSupply()"), BLOCK_GAS_LIMIT)).output
    assert int.from_bytes(supply, "big") == 2 * BUYER_BALANCE_MICRO


def test_ether_is_neither_made_nor_lost(embedded: EmbeddedChain) -> None:
    holders = (_WALLETS.relayer.address, _WALLETS.faucet.address, _STRANGER, COINBASE)
    before = sum(embedded.engine.account(holder).balance for holder in holders)
    transaction_hash = embedded.send_raw(_raw(embedded, value=5))
    receipt = _receipt(embedded, transaction_hash)
    burnt = receipt.outcome.gas_used * embedded.base_fee_per_gas
    assert sum(embedded.engine.account(holder).balance for holder in holders) == before - burnt
    assert embedded.engine.account(COINBASE).balance == receipt.outcome.gas_used * 1_000


def test_blocks_follow_the_clock_and_never_go_back(embedded: EmbeddedChain, clock: _Clock) -> None:
    clock.now_ms += 5_999
    assert embedded.mine().timestamp_seconds == _START_MS // 1000 + 5
    clock.now_ms -= 60_000
    assert embedded.mine().timestamp_seconds == _START_MS // 1000 + 5
    embedded.advance_time(100)
    assert embedded.mine().timestamp_seconds == _START_MS // 1000 + 45
    with pytest.raises(ServedRpcError, match="before the newest"):
        embedded.set_next_timestamp(_START_MS // 1000)


def test_block_hashes_are_chained_and_differ_on_a_second_branch(embedded: EmbeddedChain) -> None:
    checkpoint = embedded.checkpoint()
    first = [embedded.mine(), embedded.mine()]
    assert first[1].parent_hash == first[0].hash
    assert embedded.restore(checkpoint)
    second = embedded.mine()
    assert second.number == first[0].number
    assert second.hash != first[0].hash
    assert embedded.block_of_hash(first[0].hash) is None


def test_checkpoint_serves_once_and_ends_later_ones(embedded: EmbeddedChain) -> None:
    first, second = embedded.checkpoint(), embedded.checkpoint()
    assert embedded.restore(first)
    assert not embedded.restore(second)
    assert not embedded.restore(first)


def test_restored_state_is_the_engines_too(embedded: EmbeddedChain) -> None:
    checkpoint = embedded.checkpoint()
    embedded.send_raw(_raw(embedded, value=9))
    embedded.engine.set_storage(USDC_ADDRESS, 0, short_string("Other"))
    assert embedded.restore(checkpoint)
    assert embedded.engine.account(_STRANGER) == EngineAccount()
    assert embedded.engine.account(_WALLETS.relayer.address).nonce == 0
    name = embedded.call(EngineMessage(_STRANGER, USDC_ADDRESS, encode_call("name()"), BLOCK_GAS_LIMIT)).output
    assert b"USD Coin" in name


def test_transaction_that_cannot_pay_the_base_fee_waits(embedded: EmbeddedChain) -> None:
    embedded.base_fee_per_gas = 30_000_000
    first = embedded.send_raw(_raw(embedded))
    behind = embedded.send_raw(_raw(embedded, max_fee_per_gas=40_000_000))
    assert embedded.mined(first) is None
    assert embedded.mined(behind) is None
    embedded.base_fee_per_gas = 10_000_000
    embedded.mine()
    assert _receipt(embedded, first).price_per_gas == 10_001_000
    assert _receipt(embedded, behind).index == 1


def test_mined_transaction_is_already_known(embedded: EmbeddedChain) -> None:
    raw = _raw(embedded)
    embedded.send_raw(raw)
    with pytest.raises(ServedRpcError, match="already known"):
        embedded.send_raw(raw)


def test_transaction_whose_sender_was_emptied_is_dropped(embedded: EmbeddedChain) -> None:
    embedded.automine = False
    embedded.send_raw(_raw(embedded, value=RELAYER_BALANCE_WEI // 2))
    second = embedded.send_raw(_raw(embedded, value=RELAYER_BALANCE_WEI // 2 + 1))
    embedded.mine()
    assert embedded.mined(second) is None
    assert embedded.pool.get(second) is None
    assert embedded.next_nonce(_WALLETS.relayer.address) == 1


def test_block_takes_no_more_than_its_gas_limit(embedded: EmbeddedChain) -> None:
    embedded.automine = False
    hashes = [embedded.send_raw(_raw(embedded, gas=BLOCK_GAS_LIMIT)) for _ in range(2)]
    assert len(embedded.mine().receipts) == 1
    assert embedded.mined(hashes[1]) is None
    assert len(embedded.mine().receipts) == 1


def test_creation_by_a_legacy_transaction(embedded: EmbeddedChain) -> None:
    creation = bytes.fromhex("60aa60005360016000f3")  # returns the one byte 0xaa
    fields = {"nonce": 0, "gas": 100_000, "gasPrice": 10**9, "value": 0, "data": creation, "chainId": 84532}
    signed = SigningAccount.sign_transaction(fields, _WALLETS.relayer.private_key)
    outcome = _receipt(embedded, embedded.send_raw(bytes(signed.raw_transaction))).outcome
    assert outcome.result is Result.SUCCESS
    assert outcome.created is not None
    assert embedded.engine.account(outcome.created) == EngineAccount(balance=0, nonce=1, code=b"\xaa")
    assert embedded.engine.account(_WALLETS.relayer.address).nonce == 1


def test_contract_sees_block_and_chain(embedded: EmbeddedChain, clock: _Clock) -> None:
    # NUMBER, TIMESTAMP, CHAINID, GASLIMIT, COINBASE, BASEFEE, GASPRICE, one word each
    opcodes = (0x43, 0x42, 0x46, 0x45, 0x41, 0x48, 0x3A)
    code = b"".join(bytes([opcode, 0x60, 32 * place, 0x52]) for place, opcode in enumerate(opcodes))
    code += bytes([0x60, 32 * len(opcodes), 0x60, 0, 0xF3])
    embedded.engine.set_account(_STRANGER, EngineAccount(nonce=1, code=code))
    clock.now_ms += 7_000
    output = embedded.call(EngineMessage(_WALLETS.owner.address, _STRANGER, b"", 100_000)).output
    words = [int.from_bytes(output[start : start + 32], "big") for start in range(0, len(output), 32)]
    assert words == [1, _START_MS // 1000 + 7, 84532, BLOCK_GAS_LIMIT, int(COINBASE, 16), 0, 0]


def test_transient_storage_ends_with_the_transaction(embedded: EmbeddedChain) -> None:
    # stores TLOAD(0) at slot 0, then TSTORE(0, 1)
    code = bytes.fromhex("60005c60005560016000" + "5d00")
    embedded.engine.set_account(_STRANGER, EngineAccount(nonce=1, code=code))
    for _ in range(2):
        embedded.send_raw(_raw(embedded, gas=100_000, value=0))
        assert embedded.engine.storage(_STRANGER, 0) == 0


def test_contract_that_calls_itself_goes_as_deep_as_its_gas(embedded: EmbeddedChain) -> None:
    # adds one to slot 0, then calls itself with all its gas
    code = bytes.fromhex("60005460010160005560006000600060006000305af100")
    embedded.engine.set_account(_STRANGER, EngineAccount(nonce=1, code=code))
    limit = sys.getrecursionlimit()
    embedded.send_raw(_raw(embedded, gas=BLOCK_GAS_LIMIT, value=0))
    assert embedded.engine.storage(_STRANGER, 0) > 300
    assert sys.getrecursionlimit() == limit


def test_cleared_slot_reads_as_zero_and_refunds(embedded: EmbeddedChain) -> None:
    embedded.engine.set_account(_STRANGER, EngineAccount(nonce=1, code=bytes.fromhex("60006000556001600155")))
    embedded.engine.set_storage(_STRANGER, 0, 5)
    transaction_hash = embedded.send_raw(_raw(embedded, gas=100_000, value=0))
    assert embedded.engine.storage(_STRANGER, 0) == 0
    assert embedded.engine.storage(_STRANGER, 1) == 1
    assert _receipt(embedded, transaction_hash).outcome.gas_refunded == 4_800


def test_contract_can_ask_and_cannot_send(embedded: EmbeddedChain) -> None:
    genesis = planted_token({_STRANGER: 5}, name="Two")
    embedded.engine.set_account(_STRANGER, genesis.account)
    for slot, value in genesis.storage.items():
        embedded.engine.set_storage(_STRANGER, slot, value)
    assert _usdc(embedded, _WALLETS.buyer.address) == BUYER_BALANCE_MICRO
    token = embedded.engine.account(_STRANGER)
    assert token == genesis.account

    relayer = embedded.engine.account(_WALLETS.relayer.address)
    embedded.engine.set_account(_WALLETS.relayer.address, replace(relayer, code=b"\0"))
    with pytest.raises(ServedRpcError, match="sender not an eoa"):
        embedded.send_raw(_raw(embedded))


def test_names_longer_than_a_slot_are_refused() -> None:
    with pytest.raises(ValueError, match="31 bytes"):
        planted_token({}, name="x" * 32)


@pytest.mark.parametrize("output", [b"", b"\x08\xc3\x79\xa0", bytes(100)])
def test_other_reverts_have_no_reason(output: bytes) -> None:
    assert revert_reason(output) is None


def test_other_worlds_can_be_built() -> None:
    rich = GenesisAccount(EngineAccount(balance=7), {})
    for name in EngineName:
        world = EmbeddedChain(open_engine(1, name), chain_id=1, genesis={_STRANGER: rich}, clock_ms=_Clock())
        assert world.engine.account(_STRANGER).balance == 7
        assert world.engine.name is name
