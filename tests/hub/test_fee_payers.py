"""Our fee payers sign honest payments and nothing else, whoever asks them to (A-26 to A-32)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Collection

import pytest
from solders.keypair import Keypair
from solders.transaction import VersionedTransaction

from tests.core.solana_payments import BLOCKHASH, DEVNET, PAY_TO, PAYER, Draft, compute_limit, compute_price, transfer
from tests.hub.drains import Scene, drains
from tollkeeper.core.solana.base58 import encode
from tollkeeper.core.solana.rules import FeePolicy
from tollkeeper.hub.signer_pool import PolicyError
from tollkeeper.hub.solana import signer
from tollkeeper.hub.solana.signer import ADVERTISED_SECONDS, FeePayer

SEEDS = [bytes([number]) * 32 for number in (0x61, 0x62, 0x63)]
KEYS = [Keypair.from_seed(seed) for seed in SEEDS]
POOL = {one.address: one for one in map(FeePayer, SEEDS)}
ADDRESSES = tuple(POOL)
POLICY = FeePolicy(ADDRESSES)
DRAINS = drains(Scene(KEYS[0], PAYER, PAY_TO, encode(BLOCKHASH)))


def test_there_are_enough_ways_to_rob_us() -> None:
    assert len(DRAINS) >= 200


@pytest.mark.parametrize("name", DRAINS)
def test_no_signature_is_made_for(name: str) -> None:
    for fee_payer in ADDRESSES:
        with pytest.raises(PolicyError):
            POOL[fee_payer].co_sign(DRAINS[name], DEVNET, POLICY)


@pytest.mark.parametrize("is_legacy", [False, True])
def test_an_honest_payment_is_signed_by_the_account_that_pays(*, is_legacy: bool) -> None:
    for number, pair in enumerate(KEYS):
        payload = Draft((compute_limit(), compute_price(), transfer()), pair.pubkey(), is_legacy=is_legacy).payload()
        raw, signature = POOL[str(pair.pubkey())].co_sign(payload, DEVNET, POLICY)
        signed = VersionedTransaction.from_bytes(raw)
        assert all(signed.verify_with_results())
        assert str(signed.signatures[0]) == signature
        for other in SEEDS[:number] + SEEDS[number + 1 :]:
            with pytest.raises(PolicyError, match="another account"):
                FeePayer(other).co_sign(payload, DEVNET, POLICY)


def test_a_fee_payer_never_shows_its_key() -> None:
    fee_payer = FeePayer(SEEDS[0])
    assert str(fee_payer) == repr(fee_payer) == f"FeePayer({KEYS[0].pubkey()})"
    assert fee_payer.address == str(KEYS[0].pubkey())
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            copied(fee_payer)


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_key_follows_from_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        FeePayer(bytes(size))


def advertised(second: int, with_money: Collection[str] = ADDRESSES) -> str:
    return signer.advertised(ADDRESSES, second, with_money)


def test_the_advertised_fee_payer_stays_for_an_hour_and_changes_then() -> None:
    start = 40 * ADVERTISED_SECONDS
    assert {advertised(start + second) for second in range(0, ADVERTISED_SECONDS, 7)} == {advertised(start)}
    in_turn = [advertised(start + hour * ADVERTISED_SECONDS) for hour in range(len(SEEDS))]
    assert set(in_turn) == set(ADDRESSES) == {str(pair.pubkey()) for pair in KEYS}


def test_a_fee_payer_without_money_is_not_advertised_while_another_one_has_some() -> None:
    start = 40 * ADVERTISED_SECONDS
    for rich in ADDRESSES:
        assert {advertised(start + hour * ADVERTISED_SECONDS, {rich}) for hour in range(4)} == {rich}
    assert advertised(start, ()) == advertised(start)
