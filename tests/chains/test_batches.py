"""Batches on real nodes with the real token: who is bad fails alone, whoever burns gas burns only his own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.chains.anvil import wait_for_receipt
from tests.chains.batching import ADDRESSES, delegate, payers, plant, signed
from tests.chains.rpc_client import RpcFailure
from tests.fixtures_chain import taken_back
from tollkeeper.chains.evm.batcher import DEPLOYMENT_SALT, batcher_address, batcher_artifact, batcher_code_hash
from tollkeeper.core.evm.batches import (
    DEPLOYER_ADDRESS,
    DEPLOYER_CODE_HASH,
    ITEM_GAS,
    SignedTransfer,
    Via,
    batch_gas,
    encode_batch,
)
from tollkeeper.core.evm.encoding import keccak256, transfer_calldata
from tollkeeper.core.evm.receipt_logs import Log, Transfer, shows_transfer
from tollkeeper.sandbox.evm.engine import EngineName
from tollkeeper.sandbox.evm.node import USDC_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.chains.chain_under_test import ChainUnderTest

_FRESH_PAYEES: Final = ["0x" + f"{index:02x}" * 20 for index in range(0x60, 0x74)]


def send_batch(
    chain: ChainUnderTest, via: Via, transfers: Sequence[SignedTransfer], *, gas: int | None = None
) -> dict[str, Any]:
    """The batch's receipt, sent by the relayer with the gas that we compute."""
    data = encode_batch(via, USDC_ADDRESS, transfers)
    gas = gas or batch_gas(via, len(transfers))
    return chain.send_and_wait(chain.wallets.relayer, ADDRESSES[via], data, gas=gas)


def outcomes(receipt: dict[str, Any], transfers: Sequence[SignedTransfer]) -> list[bool]:
    """Of each item, whether the receipt's logs show its transfer."""
    logs = [
        Log(log["address"].lower(), tuple(topic.lower() for topic in log["topics"]), log["data"])
        for log in receipt["logs"]
    ]
    wanted = [
        Transfer(USDC_ADDRESS, one.authorization.payer, one.authorization.pay_to, one.authorization.value, nonce)
        for one in transfers
        for nonce in [one.authorization.nonce]
    ]
    return [shows_transfer(logs, one) for one in wanted]


@pytest.mark.parametrize("via", Via)
def test_each_item_of_a_batch_ends_as_it_would_alone(chain: ChainUnderTest, via: Via) -> None:
    plant(chain, via)
    wallets = payers(chain, 4)
    good = [signed(chain, wallet) for wallet in wallets]
    used = signed(chain, wallets[0])
    assert chain.relay(transfer_calldata(used.authorization, used.signature))["status"] == "0x1"
    bad = [
        used,
        replace(signed(chain, wallets[1]), signature=good[1].signature),  # of another payment
        signed(chain, wallets[2], value=10**9),  # more than there is
        signed(chain, wallets[3], valid_before=chain.now() - 1),
    ]
    twice = [signed(chain, wallets[0]), signed(chain, wallets[0])]  # alike but for the nonce
    batch = [bad[0], good[0], bad[1], good[1], twice[0], bad[2], good[2], good[3], bad[3], twice[1]]
    before = chain.balance(chain.wallets.owner.address)

    receipt = send_batch(chain, via, batch)

    assert receipt["status"] == "0x1"
    expected = [one not in bad for one in batch]
    assert outcomes(receipt, batch) == expected
    assert chain.balance(chain.wallets.owner.address) == before + 6 * 10_000
    assert chain.balance(ADDRESSES[via]) == 0
    for one, is_done in zip(batch, expected, strict=True):
        assert chain.is_used(one.authorization.payer, one.authorization.nonce) == (is_done or one is used)


@pytest.mark.parametrize("via", Via)
def test_payees_who_never_held_the_token_fit_into_the_gas(anvil_fiat_token: ChainUnderTest, via: Via) -> None:
    chain = anvil_fiat_token
    plant(chain, via)
    batch = [
        signed(chain, wallet, pay_to=payee)
        for wallet, payee in zip(payers(chain, len(_FRESH_PAYEES)), _FRESH_PAYEES, strict=True)
    ]
    for size in (1, 2, len(batch) - 3):
        part, batch = batch[:size], batch[size:]
        assert set(outcomes(send_batch(chain, via, part), part)) == {True}


def test_a_batch_of_ten_takes_at_most_65_percent_of_the_gas_of_a_single(anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    plant(chain, Via.BATCHER)
    wallets = payers(chain, 11)
    first = signed(chain, wallets[0])
    chain.relay(transfer_calldata(first.authorization, first.signature))  # the payee holds the token from here on
    single = signed(chain, wallets[0])
    single_gas = int(chain.relay(transfer_calldata(single.authorization, single.signature))["gasUsed"], 16)
    batch = [signed(chain, wallet) for wallet in wallets[1:]]
    receipt = send_batch(chain, Via.BATCHER, batch)
    assert set(outcomes(receipt, batch)) == {True}
    assert int(receipt["gasUsed"], 16) / 10 <= 0.65 * single_gas


def test_a_payer_who_burns_gas_burns_one_share_and_harms_no_other(anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    plant(chain, Via.BATCHER)
    wallets = payers(chain, 10)
    batch = [signed(chain, wallet) for wallet in wallets]
    honest_gas = int(send_batch(chain, Via.BATCHER, batch)["gasUsed"], 16)
    batch = [signed(chain, wallet) for wallet in wallets]
    delegate(chain, wallets[0])

    receipt = send_batch(chain, Via.BATCHER, batch)

    assert outcomes(receipt, batch) == [False] + 9 * [True]
    assert int(receipt["gasUsed"], 16) <= honest_gas + ITEM_GAS


def test_even_ten_who_burn_gas_leave_the_eleventh_its_own(anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    plant(chain, Via.BATCHER)
    wallets = payers(chain, 11)
    batch = [signed(chain, wallet, pay_to=_FRESH_PAYEES[0]) for wallet in wallets]
    for wallet in wallets[:-1]:
        delegate(chain, wallet)
    receipt = send_batch(chain, Via.BATCHER, batch)
    assert outcomes(receipt, batch) == 10 * [False] + [True]


def test_through_multicall_a_payer_who_burns_gas_takes_all_of_it(anvil_fiat_token: ChainUnderTest) -> None:
    """Which is why nobody with code goes through it, and why what it carried is tried again alone."""
    chain = anvil_fiat_token
    plant(chain, Via.MULTICALL)
    wallets = payers(chain, 5)
    batch = [signed(chain, wallet) for wallet in wallets]
    delegate(chain, wallets[0])
    receipt = send_batch(chain, Via.MULTICALL, batch)
    assert not any(outcomes(receipt, batch))
    assert not any(chain.is_used(one.authorization.payer, one.authorization.nonce) for one in batch)


@pytest.mark.parametrize("missing", [1, 20_000, 60_000])
def test_too_little_gas_fails_the_whole_batch_and_never_an_item(anvil_fiat_token: ChainUnderTest, missing: int) -> None:
    """Whoever brings a copy of our batch with less gas than it needs cannot make one of its items fail."""
    chain = anvil_fiat_token
    plant(chain, Via.BATCHER)
    batch = [signed(chain, wallet) for wallet in payers(chain, 3)]
    for wallet in payers(chain, 3)[:2]:
        delegate(chain, wallet)
    used = int(send_batch(chain, Via.BATCHER, batch[:2])["gasUsed"], 16)
    least = used + ITEM_GAS + ITEM_GAS // 63 + 5000
    receipt = send_batch(chain, Via.BATCHER, batch, gas=least - missing)
    assert receipt["status"] == "0x0"
    assert receipt["logs"] == []
    assert outcomes(send_batch(chain, Via.BATCHER, batch), batch)[2]


@pytest.mark.parametrize("size", [0, 23, 24, 25, 178, 180, 24 + 2 * 155 - 1])
def test_the_batcher_takes_whole_items_only(chain: ChainUnderTest, size: int) -> None:
    plant(chain, Via.BATCHER)
    transfer = signed(chain, payers(chain, 1)[0])
    data = encode_batch(Via.BATCHER, USDC_ADDRESS, [transfer, transfer])
    with pytest.raises(RpcFailure):
        chain.simulate(data[:size], to=batcher_address())
    assert not chain.is_used(transfer.authorization.payer, transfer.authorization.nonce)


def test_the_batcher_takes_no_value_and_keeps_no_state(anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    plant(chain, Via.BATCHER)
    batch = [signed(chain, wallet) for wallet in payers(chain, 2)]
    data = encode_batch(Via.BATCHER, USDC_ADDRESS, batch)
    gas = batch_gas(Via.BATCHER, 2)
    receipt = chain.send_and_wait(chain.wallets.relayer, batcher_address(), data, gas=gas, value=1)
    assert receipt["status"] == "0x0"
    receipt = send_batch(chain, Via.BATCHER, batch)
    assert {log["address"].lower() for log in receipt["logs"]} == {USDC_ADDRESS}  # it emits nothing of its own
    traced = chain.rpc.call("debug_traceTransaction", receipt["transactionHash"], {"tracer": "prestateTracer"})
    assert traced[batcher_address()].get("storage", {}) == {}
    opcodes = _opcodes(batcher_artifact().runtime)
    assert opcodes.isdisjoint({0x54, 0x55, 0x5C, 0x5D, 0xA0, 0xA1, 0xF0, 0xF2, 0xF4, 0xF5, 0xFA, 0xFF})


def _opcodes(code: bytes) -> set[int]:
    """The instructions, without what PUSH puts on the stack."""
    found, at = set(), 0
    while at < len(code):
        found.add(code[at])
        at += 1 + (code[at] - 0x5F if 0x60 <= code[at] <= 0x7F else 0)
    return found


def test_the_deterministic_deployer_puts_the_batcher_where_we_look_for_it(anvil_fiat_token: ChainUnderTest) -> None:
    chain = anvil_fiat_token
    deployer = bytes.fromhex(chain.rpc.call("eth_getCode", DEPLOYER_ADDRESS, "latest")[2:])
    assert "0x" + keccak256(deployer).hex() == DEPLOYER_CODE_HASH
    data = DEPLOYMENT_SALT + batcher_artifact().creation
    chain.send_and_wait(chain.wallets.relayer, DEPLOYER_ADDRESS, data)
    code = bytes.fromhex(chain.rpc.call("eth_getCode", batcher_address(), "latest")[2:])
    assert "0x" + keccak256(code).hex() == batcher_code_hash()


def _play(chain: ChainUnderTest, script: Sequence[str]) -> list[dict[str, Any]]:
    receipts = [wait_for_receipt(chain.rpc, chain.rpc.call("eth_sendRawTransaction", raw)) for raw in script]
    return [
        {
            "gas": int(receipt["gasUsed"], 16),
            "status": receipt["status"],
            "logs": [(log["address"].lower(), log["topics"], log["data"]) for log in receipt["logs"]],
        }
        for receipt in receipts
    ]


@pytest.mark.parametrize("via", Via)
def test_the_same_batch_takes_the_same_gas_on_each_node(
    embedded_nodes: dict[EngineName, ChainUnderTest], anvil_same_token: ChainUnderTest, via: Via
) -> None:
    payers_of = embedded_nodes[EngineName.REVM]
    batch = [signed(payers_of, wallet) for wallet in [payers_of.wallets.buyer, payers_of.wallets.second_buyer] * 2]
    batch[1] = SignedTransfer(batch[1].authorization, batch[0].signature)
    data = encode_batch(via, USDC_ADDRESS, batch)
    script = [
        payers_of.transaction(payers_of.wallets.relayer, ADDRESSES[via], data, nonce=nonce, gas=gas)[0]
        for nonce, gas in enumerate([batch_gas(via, 4), batch_gas(via, 4), 120_000])
    ]
    played = {}
    for name, node in [*((str(engine), node) for engine, node in embedded_nodes.items()), ("anvil", anvil_same_token)]:
        with taken_back(node) as chain:
            plant(chain, via)
            played[name] = _play(chain, script)
    first, again, _ = played["anvil"]
    assert (len(first["logs"]), again["logs"]) == (6, [])
    assert played["revm"] == played["anvil"]
    assert played["pyevm"] == played["anvil"]
