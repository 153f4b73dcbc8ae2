"""The signer shows its key to nobody and signs nothing but a bounded transfer (security A-24, A-26)."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import pytest

from tollkeeper.chains.evm.batcher import Carrier, allowed_carriers
from tollkeeper.core.evm.batches import (
    InnerCall,
    SignedTransfer,
    Via,
    batch_gas,
    decode_aggregate,
    decode_batch,
    encode_aggregate,
    encode_batch,
)
from tollkeeper.core.evm.counterfactual import WalletDeployment, read_settling_call, settling_call, wrap
from tollkeeper.core.evm.encoding import (
    SELECTOR_TRANSFER,
    SELECTOR_TRANSFER_BYTES,
    Authorization,
    Transaction,
    address_of_key,
    selector,
    transfer_calldata,
)
from tollkeeper.hub.evm.signer import Signer, SignerPolicy
from tollkeeper.hub.signer_pool import PolicyError

KEY = bytes(range(1, 33))
TOKEN = "0x036cbd53842c5426634e7929541ec2318f3dcf7e"
POLICY = SignerPolicy(chain_id=84532, assets=frozenset({TOKEN}), gas_max=150_000, max_fee_per_gas_max=10**10)
AUTHORIZATION = Authorization("0x" + "11" * 20, "0x" + "22" * 20, 10_000, 0, 2**40, "0x" + "33" * 32)
GOOD = Transaction(84532, 0, 10**6, 10**9, 150_000, TOKEN, 0, transfer_calldata(AUTHORIZATION, bytes(64) + b"\x1b"))


@pytest.mark.parametrize("size", [65, 96, 1, 2048])
def test_both_forms_of_the_transfer_are_signed(size: int) -> None:
    transaction = replace(GOOD, data=transfer_calldata(AUTHORIZATION, bytes(size - 1) + b"\x1b"))
    raw, transaction_hash = Signer(KEY).sign(transaction, POLICY)
    assert raw[0] == 2
    assert len(transaction_hash) == 66


def test_a_transfer_of_nothing_to_the_signer_itself_is_signed_and_nothing_else_is_sent_there() -> None:
    signer = Signer(KEY)
    policy = replace(POLICY, own=signer.address)
    freeing = replace(GOOD, to=signer.address, gas=21_000, data=b"")
    assert signer.sign(freeing, policy)[0][0] == 2
    for wrong in (
        replace(freeing, value=1),
        replace(freeing, data=GOOD.data),
        replace(freeing, to="0x" + "44" * 20),
        replace(freeing, to=TOKEN),
        replace(freeing, max_fee_per_gas=10**10 + 1),
    ):
        with pytest.raises(PolicyError):
            signer.sign(wrong, policy)
    with pytest.raises(PolicyError):
        signer.sign(freeing, POLICY)


FORBIDDEN: dict[str, Transaction] = {
    "another chain": replace(GOOD, chain_id=8453),
    "another contract": replace(GOOD, to="0x" + "44" * 20),
    "value": replace(GOOD, value=1),
    "more gas": replace(GOOD, gas=150_001),
    "no gas": replace(GOOD, gas=0),
    "higher fee": replace(GOOD, max_fee_per_gas=10**10 + 1),
    "tip above fee": replace(GOOD, max_priority_fee_per_gas=10**9 + 1),
    "negative tip": replace(GOOD, max_priority_fee_per_gas=-1),
    "no call": replace(GOOD, data=b""),
    "selector alone": replace(GOOD, data=SELECTOR_TRANSFER),
    "another call": replace(GOOD, data=selector(b"approve(address,uint256)") + GOOD.data[4:]),
    "a byte more": replace(GOOD, data=GOOD.data + b"\0"),
    "a byte less": replace(GOOD, data=GOOD.data[:-1]),
    "bytes form too short": replace(GOOD, data=SELECTOR_TRANSFER_BYTES + bytes(100)),
    "bytes form with a wild offset": replace(GOOD, data=SELECTOR_TRANSFER_BYTES + b"\xff" * 300),
}


@pytest.mark.parametrize("case", FORBIDDEN)
def test_anything_else_is_refused(case: str) -> None:
    with pytest.raises(PolicyError):
        Signer(KEY).sign(FORBIDDEN[case], POLICY)


def test_random_transactions_are_refused() -> None:
    refuse_random_transactions(2_000)


@pytest.mark.long
def test_a_hundred_thousand_random_transactions_are_refused() -> None:
    refuse_random_transactions(100_000)


def refuse_random_transactions(count: int) -> None:
    source = random.Random(1)
    signer = Signer(KEY)
    for _ in range(count):
        data = source.choice([SELECTOR_TRANSFER, SELECTOR_TRANSFER_BYTES, source.randbytes(4)])
        changed = replace(
            GOOD,
            to=source.choice([TOKEN, "0x" + source.randbytes(20).hex()]),
            gas=source.choice([150_000, source.randrange(2**32)]),
            value=source.choice([0, 0, source.randrange(2**64)]),
            data=data + source.randbytes(source.choice([0, 31, 287, 289, 320, 352])),
        )
        with pytest.raises(PolicyError):
            signer.sign(changed, POLICY)


BATCH = [SignedTransfer(replace(AUTHORIZATION, valid_before=2**40 - 1), bytes(64) + b"\x1b")] * 3
CARRIERS = allowed_carriers("")


def batched(carrier: Carrier, asset: str = TOKEN) -> Transaction:
    data = encode_batch(carrier.via, asset, BATCH)
    return replace(GOOD, to=carrier.address, data=data, gas=batch_gas(carrier.via, len(BATCH)))


@pytest.mark.parametrize("carrier", CARRIERS)
def test_a_batch_of_transfers_of_an_allowed_token_is_signed_where_batches_are_allowed(carrier: Carrier) -> None:
    assert Signer(KEY).sign(batched(carrier), replace(POLICY, carriers=CARRIERS))[0][0] == 2
    with pytest.raises(PolicyError):
        Signer(KEY).sign(batched(carrier), POLICY)


@pytest.mark.parametrize("carrier", CARRIERS)
def test_anything_else_sent_to_a_carrier_is_refused(carrier: Carrier) -> None:
    good, policy = batched(carrier), replace(POLICY, carriers=CARRIERS)
    other = next(one for one in CARRIERS if one is not carrier)
    approve = selector(b"approve(address,uint256)") + bytes(64)
    wrong = [
        batched(carrier, "0x" + "44" * 20),
        replace(good, gas=good.gas + 1),
        replace(good, gas=0),
        replace(good, value=1),
        replace(good, chain_id=8453),
        replace(good, max_fee_per_gas=10**10 + 1),
        replace(good, data=good.data + b"\0"),
        replace(good, data=good.data[:-1]),
        replace(good, data=b""),
        replace(good, data=GOOD.data),
        replace(good, data=approve),
        replace(good, data=selector(b"aggregate3Value((address,bool,uint256,bytes)[])") + good.data[4:]),
        replace(good, to=TOKEN),
        replace(good, to=other.address),
        replace(good, to="0x" + "44" * 20),
    ]
    for transaction in wrong:
        with pytest.raises(PolicyError):
            Signer(KEY).sign(transaction, policy)


def test_random_changes_of_a_batch_are_signed_only_as_another_batch() -> None:
    source = random.Random(2)
    policy = replace(POLICY, carriers=CARRIERS)
    for _ in range(2_000):
        carrier = source.choice(CARRIERS)
        good = batched(carrier)
        data = bytearray(good.data)
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        changed = replace(good, data=bytes(data))
        try:
            Signer(KEY).sign(changed, policy)
        except PolicyError:
            continue
        asset, transfers = decode_batch(carrier.via, changed.data)
        assert (asset, len(transfers)) == (TOKEN, len(BATCH))


FACTORY = "0x" + "fa" * 20
DEPLOYING_POLICY = replace(POLICY, factories=frozenset({FACTORY}), deploy_gas_max=500_000)
SIGNED = bytes(64) + b"\x1b"


def deploying(factory: str = FACTORY, asset: str = TOKEN, signature: bytes = SIGNED) -> Transaction:
    """What carries out the payment of a wallet that is deployed with it."""
    call = settling_call(asset, AUTHORIZATION, wrap(WalletDeployment(factory, b"deploy", signature)))
    return replace(GOOD, to=call.to, data=call.data, gas=650_000)


@pytest.mark.parametrize("size", [65, 200])
def test_an_allowed_factory_is_called_before_a_transfer_where_there_is_one(size: int) -> None:
    transaction = deploying(signature=bytes(size))
    assert Signer(KEY).sign(transaction, DEPLOYING_POLICY)[0][0] == 2
    for policy in (POLICY, replace(POLICY, carriers=CARRIERS), replace(DEPLOYING_POLICY, factories=frozenset({TOKEN}))):
        with pytest.raises(PolicyError):
            Signer(KEY).sign(transaction, policy)


def test_nothing_else_is_called_through_multicall3() -> None:
    good = deploying()
    deploy, transfer = decode_aggregate(good.data)
    mint = replace(transfer, data=selector(b"mint(address,uint256)") + bytes(64))
    calls = [
        [],
        [deploy],
        [transfer],
        [transfer, deploy],
        [deploy, transfer, transfer],
        [deploy, deploy, transfer],
        [deploy, mint],
        [deploy, replace(transfer, data=b"")],
        [deploy, replace(transfer, to=FACTORY)],
        [deploy, replace(transfer, may_fail=True)],
        [replace(deploy, may_fail=False), transfer],
        [replace(deploy, to=TOKEN), transfer],
        [replace(deploy, to=Signer(KEY).address), transfer],
    ]
    wrong = [
        *(replace(good, data=encode_aggregate(some)) for some in calls),
        deploying(factory="0x" + "fb" * 20),
        deploying(asset="0x" + "44" * 20),
        replace(good, gas=650_001),
        replace(good, gas=0),
        replace(good, value=1),
        replace(good, chain_id=8453),
        replace(good, max_fee_per_gas=10**10 + 1),
        replace(good, data=good.data + b"\0"),
        replace(good, data=good.data[:-1]),
        replace(good, to=FACTORY),
        replace(good, to=FACTORY, data=deploy.data),
        replace(good, to=TOKEN),
    ]
    for transaction in wrong:
        with pytest.raises(PolicyError):
            Signer(KEY).sign(transaction, DEPLOYING_POLICY)


def test_a_transfer_has_no_more_gas_because_wallets_may_be_deployed() -> None:
    with pytest.raises(PolicyError):
        Signer(KEY).sign(replace(GOOD, gas=150_001), DEPLOYING_POLICY)


def test_random_changes_of_a_deployment_are_signed_only_as_another_call_of_the_same_factory() -> None:
    change_deployments(2_000)


@pytest.mark.long
def test_a_hundred_thousand_changes_of_a_deployment_are_signed_only_as_another_call_of_the_same_factory() -> None:
    change_deployments(100_000)


def change_deployments(count: int) -> None:
    source = random.Random(3)
    good = deploying()
    for _ in range(count):
        data = bytearray(good.data)
        for _ in range(source.randrange(1, 4)):
            data[source.randrange(len(data))] ^= 1 << source.randrange(8)
        changed = replace(good, data=bytes(data))
        try:
            Signer(KEY).sign(changed, DEPLOYING_POLICY)
        except PolicyError:
            continue
        factory, asset, transfer = read_settling_call(changed.data)
        assert (factory, asset, transfer[:4]) == (FACTORY, TOKEN, SELECTOR_TRANSFER)


NEAR_POLICY = replace(DEPLOYING_POLICY, carriers=CARRIERS)
BYTES_FORM = replace(GOOD, data=transfer_calldata(AUTHORIZATION, bytes(99) + b"\x1b"))
# Of the bytes form: where its offset and its size lie; of both: what is before an address.
OFFSET_AT, SIZE_AT, PADDING_AT = 4 + 6 * 32, 4 + 7 * 32, (4, 36)
ALLOWED = [GOOD, BYTES_FORM, *map(batched, CARRIERS), deploying(), deploying(signature=bytes(200))]


def test_near_misses_are_refused_and_what_they_miss_is_signed() -> None:
    refuse_near_misses(2_000)


@pytest.mark.long
def test_a_hundred_thousand_near_misses_are_refused_and_what_they_miss_is_signed() -> None:
    refuse_near_misses(100_000)


def refuse_near_misses(count: int) -> None:
    source, signer = random.Random(4), Signer(KEY)
    for number in range(count):
        if number % 100 == 0:
            assert signer.sign(source.choice(ALLOWED), NEAR_POLICY)[0][0] == 2
        wrong = source.choice([wrong_word, wrong_batch, wrong_deployment, wrong_field])(source)
        with pytest.raises(PolicyError):
            signer.sign(wrong, NEAR_POLICY)


def changed_word(source: random.Random, transaction: Transaction, at: int, size: int = 32) -> Transaction:
    """One of these bytes is another."""
    data = bytearray(transaction.data)
    data[at + source.randrange(size)] ^= source.randrange(1, 256)
    return replace(transaction, data=bytes(data))


def wrong_word(source: random.Random) -> Transaction:
    """A transfer's selector and length, and one word that is none of a transfer's."""
    form = source.choice([GOOD, BYTES_FORM])
    places = [(at, 12) for at in PADDING_AT]
    if form is BYTES_FORM:
        places += [(OFFSET_AT, 32), (SIZE_AT, 31), (len(form.data) - 28, 28)]
    return changed_word(source, form, *source.choice(places))


def wrong_batch(source: random.Random) -> Transaction:
    """A batch of which one item, or the token of all, is wrong."""
    carrier = source.choice(CARRIERS)
    good = batched(carrier)
    if carrier.via is Via.BATCHER:
        other = batched(carrier, "0x" + source.randbytes(20).hex())
        return source.choice([other, changed_word(source, good, 4, 12)])
    calls = list(decode_aggregate(good.data))
    place = source.randrange(len(calls))
    calls[place] = wrong_call(source, calls[place])
    return replace(good, data=encode_aggregate(calls))


def wrong_call(source: random.Random, call: InnerCall) -> InnerCall:
    """One that is not a transfer of the token, but looks so."""
    return source.choice(
        [
            replace(call, to="0x" + source.randbytes(20).hex()),
            replace(call, may_fail=not call.may_fail),
            replace(call, data=source.randbytes(4) + call.data[4:]),
            replace(call, data=call.data[:-1]),
            replace(call, data=call.data + bytes(32)),
            replace(call, data=selector(b"approve(address,uint256)") + call.data[4:]),
        ]
    )


def wrong_deployment(source: random.Random) -> Transaction:
    """An allowed factory, and then another call than one transfer; or another factory."""
    good = deploying(signature=source.choice([SIGNED, bytes(200)]))
    deploy, transfer = decode_aggregate(good.data)
    strange = replace(deploy, to="0x" + source.randbytes(20).hex())
    calls = source.choice(
        [
            [deploy, wrong_call(source, transfer)],
            [deploy, transfer, wrong_call(source, transfer)],
            [strange, transfer],
            [replace(deploy, may_fail=not deploy.may_fail), transfer],
            [transfer, deploy],
        ]
    )
    return replace(good, data=encode_aggregate(calls))


def wrong_field(source: random.Random) -> Transaction:
    """An allowed call, by a transaction that is not."""
    good = source.choice(ALLOWED)
    return source.choice(
        [
            replace(good, chain_id=source.randrange(84_532)),
            replace(good, value=source.randrange(1, 2**64)),
            replace(good, gas=10**6 + source.randrange(2**32)),
            replace(good, max_fee_per_gas=10**10 + source.randrange(1, 2**32)),
            replace(good, max_priority_fee_per_gas=good.max_fee_per_gas + source.randrange(1, 2**32)),
            replace(good, to="0x" + source.randbytes(20).hex()),
        ]
    )


def test_the_key_is_in_no_text_of_the_signer_and_leaves_it_no_way() -> None:
    signer = Signer(KEY)
    assert signer.address == address_of_key(KEY)
    assert repr(signer) == str(signer) == f"Signer({signer.address})"
    for leave in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError):
            leave(signer)


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(32), b"\xff" * 32, bytes(33)])
def test_what_is_no_key_is_refused_without_showing_it(key: bytes) -> None:
    with pytest.raises(ValueError, match="a signing key is a number of 32 bytes") as refusal:
        Signer(key)
    assert key.hex() not in str(refusal.value) or not key
