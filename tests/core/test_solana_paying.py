"""What our buyer signs is, byte for byte, what the same instructions compile to elsewhere, and keeps every rule."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.hash import Hash
from solders.keypair import Keypair

from tests.core.solana_payments import (
    BLOCKHASH,
    DEVNET,
    FEE_PAYER,
    PAY_TO,
    PAYER,
    PAYER_SEED,
    POLICY,
    REQUIREMENTS,
    Draft,
    memo,
    usual,
)
from tollkeeper.core.solana.message import Message, decode_transaction
from tollkeeper.core.solana.paying import TransferTerms, sign_payment, unsigned_payment
from tollkeeper.core.solana.rules import read_transfer, requirement_checks, transaction_checks
from tollkeeper.core.x402.verification import require
from tollkeeper.core.x402.version1 import SolanaPayload

TERMS = TransferTerms(str(FEE_PAYER.pubkey()), PAY_TO, DEVNET.address, 10_000, 6)
HASH = str(Hash.from_bytes(BLOCKHASH))


def signed(terms: TransferTerms = TERMS, text: bytes = b"one memo", seed: bytes = PAYER_SEED) -> SolanaPayload:
    return sign_payment(terms, seed, HASH, text)


def test_it_keeps_every_rule_and_pays_what_is_asked() -> None:
    payload = signed()
    require(transaction_checks(payload, DEVNET, POLICY))
    transfer = read_transfer(payload)
    require(requirement_checks(transfer, REQUIREMENTS, DEVNET))
    assert (transfer.payer, transfer.value) == (str(PAYER.pubkey()), 10_000)


@given(amount=st.integers(0, 2**64 - 1), text=st.binary(max_size=200))
def test_it_does_what_another_library_would_compile(amount: int, text: bytes) -> None:
    """The order of accounts with the same rights is each compiler's own, so instructions are compared by address."""
    ours = decode_transaction(signed(replace(TERMS, amount=amount), text).transaction).message
    draft = Draft(usual(memo(text), amount=amount))
    theirs = decode_transaction(base64.b64encode(bytes(draft.transaction())).decode()).message
    assert [resolved(ours, one) for one in range(4)] == [resolved(theirs, one) for one in range(4)]
    assert ours.recent_blockhash == theirs.recent_blockhash
    rights = ("version", "required_signatures", "readonly_signed", "readonly_unsigned")
    assert [getattr(ours, name) for name in rights] == [getattr(theirs, name) for name in rights]
    assert set(ours.accounts[-4:]) == set(theirs.accounts[-4:])


def resolved(message: Message, position: int) -> object:
    """An instruction with addresses in place of positions."""
    used, accounts = message.instructions[position], message.accounts
    return accounts[used.program], [accounts[one] for one in used.accounts], used.data


@pytest.mark.parametrize(
    "terms",
    [
        replace(TERMS, pay_to=str(PAYER.pubkey())),
        replace(TERMS, fee_payer=str(PAYER.pubkey())),
        replace(TERMS, fee_payer="nobody"),
        replace(TERMS, pay_to="0x" + "71" * 20),
        replace(TERMS, mint=""),
        replace(TERMS, amount=-1),
        replace(TERMS, amount=2**64),
    ],
)
def test_what_cannot_be_paid_is_not_signed(terms: TransferTerms) -> None:
    with pytest.raises(ValueError, match=r"base58|itself|fit"):
        signed(terms)


def test_an_unsigned_payment_is_the_same_message_without_a_signature() -> None:
    ours = decode_transaction(unsigned_payment(TERMS, str(PAYER.pubkey()), HASH, b"one memo").transaction)
    theirs = decode_transaction(signed().transaction)
    assert ours.message == theirs.message
    assert ours.signatures == (bytes(64), bytes(64))
    assert signed().unsigned() == unsigned_payment(TERMS, str(PAYER.pubkey()), HASH, b"one memo")


def test_another_memo_or_wallet_is_another_payment() -> None:
    hashes = {
        decode_transaction(one.transaction).message.hash
        for one in (signed(), signed(text=b"two"), signed(seed=bytes(Keypair().secret())))
    }
    assert len(hashes) == 3
