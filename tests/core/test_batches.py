"""Batches: what is written reads back as it was, nothing else reads as one, and the gas covers every item."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.payments import AUTHORIZATION, BASE_SEPOLIA, PAYER_KEY
from tollkeeper.core.evm.batches import (
    DEPLOYER_ADDRESS,
    ITEM_GAS,
    ITEMS_MAX,
    MULTICALL_ADDRESS,
    SELECTOR_AGGREGATE,
    SignedTransfer,
    Via,
    batch_gas,
    create2_address,
    decode_batch,
    encode_aggregate,
    encode_batch,
    may_be_batched,
)
from tollkeeper.core.evm.counterfactual import WalletDeployment, settling_call, wrap
from tollkeeper.core.evm.encoding import Authorization, Transaction, keccak256, sign_digest, transfer_calldata
from tollkeeper.core.evm.receipt_logs import Transfer
from tollkeeper.core.evm.signed_transactions import asks_for

ASSET = BASE_SEPOLIA.address
BATCHER = "0x" + 20 * "ba"
SIGNATURE = sign_digest(keccak256(b"anything"), PAYER_KEY)
TRANSFER = SignedTransfer(AUTHORIZATION, SIGNATURE)

addresses = st.binary(min_size=20, max_size=20).map(lambda raw: "0x" + raw.hex())
times = st.integers(0, 2**40 - 1)
authorizations = st.builds(
    Authorization,
    payer=addresses,
    pay_to=addresses,
    value=st.integers(0, 2**64 - 1),
    valid_after=times,
    valid_before=times,
    nonce=st.binary(min_size=32, max_size=32).map(lambda raw: "0x" + raw.hex()),
)
transfers = st.builds(SignedTransfer, authorizations, st.binary(min_size=65, max_size=65))
batches = st.lists(transfers, min_size=1, max_size=5)
vias = st.sampled_from(Via)


@given(vias, addresses, batches)
def test_a_batch_reads_back_as_it_was_written(via: Via, asset: str, batch: list[SignedTransfer]) -> None:
    assert decode_batch(via, encode_batch(via, asset, batch)) == (asset, batch)


@given(via=st.sampled_from([None, *Via]), batch=batches, is_deploying=st.booleans(), beside=authorizations)
def test_a_transaction_is_seen_to_ask_for_what_stands_in_it_alone(
    via: Via | None, batch: list[SignedTransfer], *, is_deploying: bool, beside: Authorization
) -> None:
    first = batch[0]
    data = encode_batch(via, ASSET, batch) if via else transfer_calldata(first.authorization, first.signature)
    if via is None:
        batch = [first]
        if is_deploying:  # what the wallet's factory is told is its payer's to say
            wrapped = wrap(WalletDeployment(ASSET, transfer_calldata(beside, SIGNATURE), first.signature))
            data = settling_call(ASSET, first.authorization, wrapped).data
    to = {None: MULTICALL_ADDRESS if is_deploying else ASSET, Via.BATCHER: BATCHER, Via.MULTICALL: MULTICALL_ADDRESS}
    transaction = Transaction(1, 0, 1, 1, 100_000, to[via], 0, data)
    held = [transfer_of(one.authorization) for one in batch]
    assert all(asks_for(transaction, one) for one in held)
    one = held[0]
    others = [
        transfer_of(beside),
        replace(one, value=2**64 + one.value),
        replace(one, asset=other_end(one.asset)),
        replace(one, payer=other_end(one.payer)),
        replace(one, pay_to=other_end(one.pay_to)),
        replace(one, nonce=other_end(one.nonce)),
    ]
    assert [asks_for(transaction, other) for other in others] == [other in held for other in others]


def test_a_wallet_s_deployment_and_its_transfer_ask_for_that_transfer() -> None:
    wrapped = wrap(WalletDeployment("0x" + 20 * "fa", b"deploy", SIGNATURE))
    data = settling_call(ASSET, AUTHORIZATION, wrapped).data
    transaction = Transaction(1, 0, 1, 1, 100_000, MULTICALL_ADDRESS, 0, data)
    assert asks_for(transaction, transfer_of(AUTHORIZATION))
    assert not asks_for(transaction, replace(transfer_of(AUTHORIZATION), value=AUTHORIZATION.value + 1))


def test_a_transaction_in_none_of_our_forms_asks_for_nothing() -> None:
    for data in (
        b"",
        encode_batch(Via.BATCHER, ASSET, [TRANSFER])[:-1],
        transfer_calldata(AUTHORIZATION, SIGNATURE)[4:],
    ):
        assert not asks_for(Transaction(1, 0, 1, 1, 100_000, ASSET, 0, data), transfer_of(AUTHORIZATION))


def transfer_of(one: Authorization) -> Transfer:
    return Transfer(ASSET, one.payer, one.pay_to, one.value, one.nonce)


def other_end(hexadecimal: str) -> str:
    return hexadecimal[:-1] + ("1" if hexadecimal[-1] == "0" else "0")


@given(vias, batches, st.data())
def test_a_batch_with_any_byte_cut_off_or_added_is_none(
    via: Via, batch: list[SignedTransfer], data: st.DataObject
) -> None:
    written = encode_batch(via, ASSET, batch)
    length = data.draw(st.integers(0, len(written) - 1).filter(lambda size: (size - 24) % 155 != 0))
    for wrong in (written[:length], written + b"\0"):
        with pytest.raises(ValueError, match="no batch"):
            decode_batch(via, wrong)


@given(vias, st.binary(max_size=700))
def test_bytes_that_nobody_wrote_as_a_batch_are_none_or_exactly_one(via: Via, data: bytes) -> None:
    try:
        asset, batch = decode_batch(via, data)
    except ValueError:
        return
    assert encode_batch(via, asset, batch) == data


@given(batches, st.data())
def test_every_byte_outside_the_items_matters(batch: list[SignedTransfer], data: st.DataObject) -> None:
    """A flipped byte gives another batch or none, never the same."""
    for via in Via:
        written = encode_batch(via, ASSET, batch)
        at = data.draw(st.integers(0, len(written) - 1))
        flipped = written[:at] + bytes([written[at] ^ 0x01]) + written[at + 1 :]
        try:
            read = decode_batch(via, flipped)
        except ValueError:
            continue
        assert read != (ASSET, batch)


def test_one_asset_takes_all_items_of_an_aggregate() -> None:
    written = encode_batch(Via.MULTICALL, ASSET, [TRANSFER, TRANSFER])
    asset = bytes.fromhex(ASSET[2:])
    second = written.rindex(asset)
    other = written[:second] + bytes(20) + written[second + 20 :]
    with pytest.raises(ValueError, match="no batch"):
        decode_batch(Via.MULTICALL, other)


def test_an_item_that_must_not_fail_is_no_aggregate_of_ours() -> None:
    written = encode_batch(Via.MULTICALL, ASSET, [TRANSFER])
    at = written.index(bytes.fromhex(ASSET[2:])) + 20 + 31
    assert written[at] == 1
    with pytest.raises(ValueError, match="no batch"):
        decode_batch(Via.MULTICALL, written[:at] + b"\0" + written[at + 1 :])


def test_an_aggregate_of_no_items_is_no_batch() -> None:
    with pytest.raises(ValueError, match="no batch"):
        decode_batch(Via.MULTICALL, encode_aggregate([]))


def test_an_aggregate_holds_the_calls_that_single_settlements_send() -> None:
    written = encode_batch(Via.MULTICALL, ASSET, [TRANSFER])
    assert written[:4] == SELECTOR_AGGREGATE
    assert transfer_calldata(AUTHORIZATION, SIGNATURE) in written


def test_the_gas_share_of_an_item_is_the_one_that_is_written() -> None:
    data = encode_batch(Via.BATCHER, ASSET, [TRANSFER])
    assert int.from_bytes(data[20:24], "big") == ITEM_GAS
    with pytest.raises(ValueError, match="no batch"):
        decode_batch(Via.BATCHER, data[:20] + (ITEM_GAS + 1).to_bytes(4, "big") + data[24:])


@pytest.mark.parametrize("via", Via)
@pytest.mark.parametrize("count", [0, ITEMS_MAX + 1])
def test_a_batch_has_at_least_one_item_and_not_too_many(via: Via, count: int) -> None:
    with pytest.raises(ValueError, match="1 to 100"):
        encode_batch(via, ASSET, [TRANSFER] * count)
    assert decode_batch(via, encode_batch(via, ASSET, [TRANSFER] * ITEMS_MAX))[1] == [TRANSFER] * ITEMS_MAX


@pytest.mark.parametrize(
    ("changes", "signature"),
    [
        ({"value": 2**64}, SIGNATURE),
        ({"valid_after": 2**40}, SIGNATURE),
        ({"valid_before": 2**40}, SIGNATURE),
        ({}, SIGNATURE + b"\0"),
        ({}, SIGNATURE[:64]),
    ],
)
def test_what_does_not_fit_goes_alone(changes: dict[str, int], signature: bytes) -> None:
    outlandish = SignedTransfer(replace(AUTHORIZATION, **changes), signature)  # type: ignore[arg-type]  # of ints
    assert not may_be_batched(outlandish)
    for via in Via:
        with pytest.raises(ValueError, match="plain signatures"):
            encode_batch(via, ASSET, [TRANSFER, outlandish])


def test_largest_numbers_that_fit_do() -> None:
    largest = replace(AUTHORIZATION, value=2**64 - 1, valid_after=2**40 - 1, valid_before=2**40 - 1)
    assert may_be_batched(SignedTransfer(largest, SIGNATURE))


@given(st.integers(1, ITEMS_MAX))
def test_gas_of_a_batch_covers_each_items_whole_share_whatever_the_others_burn(count: int) -> None:
    limit = batch_gas(Via.BATCHER, count)
    left = limit - 21_000 - 16 * len(encode_batch(Via.BATCHER, ASSET, [TRANSFER] * count))
    for _ in range(count):
        assert left >= ITEM_GAS + ITEM_GAS // 63 + 5000  # what the contract asks for before each call
        left -= ITEM_GAS + 2600 + 600
    assert left >= 0


@pytest.mark.parametrize("via", Via)
def test_gas_grows_with_the_items_and_stays_under_what_a_transaction_may_have(via: Via) -> None:
    limits = [batch_gas(via, count) for count in range(1, ITEMS_MAX + 1)]
    assert limits == sorted(set(limits))
    assert limits[-1] < 2**24  # EIP-7825


def test_a_contracts_place_depends_on_its_code_and_its_salt() -> None:
    """EIP-1014's formula. That a chain does the same is shown with the chains."""
    seed = bytes.fromhex("ff" + DEPLOYER_ADDRESS[2:]) + bytes(32) + keccak256(b"")
    assert create2_address(bytes(32), b"") == "0x" + keccak256(seed)[12:].hex()
    assert create2_address(bytes(32), b"") != create2_address(bytes(31) + b"\1", b"")
    assert create2_address(bytes(32), b"") != create2_address(bytes(32), b"\0")


def test_a_count_of_more_items_than_a_batch_may_have_is_not_believed() -> None:
    data = bytearray(encode_batch(Via.MULTICALL, ASSET, [TRANSFER]))
    data[36:68] = (ITEMS_MAX + 1).to_bytes(32, "big")
    with pytest.raises(ValueError, match="batch"):
        decode_batch(Via.MULTICALL, bytes(data))
