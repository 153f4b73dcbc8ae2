"""What a payment offers a gate, of either family (contract 4.2, 4.3)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.core.payments import AUTHORIZATION, BASE_SEPOLIA, NOW_SECONDS, OTHER_KEY, PAYER, signed_payment
from tests.core.solana_payments import (
    AMOUNT,
    DEVNET,
    FEE_PAYER,
    OTHER,
    PAY_TO,
    Draft,
    account_of,
    compute_limit,
    compute_price,
    instruction,
    memo,
    payment,
    signer,
    transfer,
    usual,
    writable,
)
from tests.core.solana_payments import PAYER as SOLANA_PAYER
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.payment_offers import (
    Asset,
    PresentedPayment,
    offered_payment,
    price_check,
    recipient_check,
    require_valid_now,
    with_advice,
)
from tollkeeper.core.solana.programs import SYSTEM_PROGRAM
from tollkeeper.core.x402.verification import Reason
from tollkeeper.core.x402.version1 import EvmPayload, Payment, SolanaPayload

PAYER_ADDRESS = str(SOLANA_PAYER.pubkey())


def refused(payment: Payment, asset: Asset) -> ApiError:
    """The refusal of this payment."""
    with pytest.raises(ApiError) as caught:
        offered_payment(payment, asset)
    assert caught.value.type == "payment"
    return caught.value


def test_an_evm_payment_offers_what_its_authorization_says() -> None:
    offered = offered_payment(signed_payment(), BASE_SEPOLIA)
    assert (offered.key.payer, offered.key.network, offered.key.asset) == (PAYER, "base-sepolia", BASE_SEPOLIA.address)
    assert (offered.value, offered.recipient) == (AUTHORIZATION.value, AUTHORIZATION.pay_to)
    assert (offered.valid_before, offered.fee_payer) == (AUTHORIZATION.valid_before, "")
    assert offered.is_signed_by_key


def test_a_signature_of_another_key_may_still_be_a_contract_wallets() -> None:
    assert not offered_payment(signed_payment(key=OTHER_KEY), BASE_SEPOLIA).is_signed_by_key


def test_a_signature_that_would_deploy_its_wallet_is_the_facilitators_to_judge() -> None:
    counterfactual = EvmPayload(AUTHORIZATION, bytes(64) + b"\x64\x92" * 16)
    assert not offered_payment(replace(signed_payment(), payload=counterfactual), BASE_SEPOLIA).is_signed_by_key


def test_a_solana_payment_offers_what_its_transaction_does() -> None:
    payload = Draft().payload()
    offered = offered_payment(payment(payload), DEVNET)
    assert (offered.key.payer, offered.key.asset) == (str(SOLANA_PAYER.pubkey()), DEVNET.address)
    assert (offered.value, offered.recipient) == (AMOUNT, str(account_of(PAY_TO)))
    assert (offered.valid_before, offered.fee_payer) == (None, str(FEE_PAYER.pubkey()))
    assert offered.is_signed_by_key


def test_a_solana_payment_without_a_memo_can_be_made_twice_in_the_same_bytes() -> None:
    bare = (compute_limit(), compute_price(), transfer())
    drafts = [Draft(bare), Draft((*bare, memo()))]
    assert [offered_payment(payment(draft.payload()), DEVNET).is_repeatable for draft in drafts] == [True, False]
    assert not offered_payment(signed_payment(), BASE_SEPOLIA).is_repeatable


def test_the_facilitator_alone_judges_what_the_fee_payer_risks() -> None:
    dear = (compute_limit(1_400_000), compute_price(5_000_000), transfer())
    assert offered_payment(payment(Draft(dear).payload()), DEVNET).value == AMOUNT
    others = Draft(fee_payer=OTHER.pubkey())
    assert offered_payment(payment(others.payload()), DEVNET).fee_payer == str(OTHER.pubkey())


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (SolanaPayload("AQ=="), Code.PAYMENT_INVALID),
        (SolanaPayload("!"), Code.PAYMENT_INVALID),
        (Draft(signers=()).payload(), Code.INVALID_SIGNATURE),
        (Draft((compute_limit(), compute_price(), memo())).payload(), Code.PAYMENT_INVALID),
        (Draft((compute_limit(), compute_price())).payload(), Code.PAYMENT_INVALID),
        (Draft((compute_limit(), compute_price(), transfer(decimals=9))).payload(), Code.PAYMENT_INVALID),
        (Draft((compute_limit(), compute_price(), transfer(mint=str(OTHER.pubkey())))).payload(), Code.PAYMENT_INVALID),
        (Draft((compute_limit(), compute_price(), transfer(pay_to=PAYER_ADDRESS))).payload(), Code.PAYMENT_INVALID),
        (Draft(usual(memo(b"a"), memo(b"b"), memo(b"c"), memo(b"d"), memo(b"e"))).payload(), Code.PAYMENT_INVALID),
    ],
)
def test_what_is_no_signed_transfer_of_the_mint_is_refused_at_the_gate(payload: SolanaPayload, code: Code) -> None:
    assert refused(payment(payload), DEVNET).code is code


def test_what_begins_by_advancing_a_nonce_is_refused_because_it_could_be_carried_out_in_years() -> None:
    owner = SOLANA_PAYER.pubkey()
    advance = instruction(SYSTEM_PROGRAM, b"\x04\0\0\0", [writable(account_of(owner)), signer(owner)])
    refusal = refused(payment(Draft((advance, compute_limit(), transfer())).payload()), DEVNET)
    assert refusal.details is not None
    assert refusal.details["reason"] == Reason.SVM_INSTRUCTIONS


def test_a_gate_s_own_terms_are_refused_like_the_rules() -> None:
    offered = offered_payment(signed_payment(), BASE_SEPOLIA)
    wrong = recipient_check(offered, BASE_SEPOLIA, PAYER)
    assert (wrong.ok, wrong.reason) == (False, Reason.RECIPIENT)
    assert (wrong.name, wrong.expected, wrong.actual) == ("recipient", PAYER, AUTHORIZATION.pay_to)
    for price_micro, is_paid in ((9_999, True), (10_000, True), (10_001, False)):
        check = price_check(offered, BASE_SEPOLIA, price_micro)
        assert (check.ok, check.reason) == (is_paid, Reason.VALUE)


def test_only_an_evm_payment_has_times_of_its_own() -> None:
    require_valid_now(signed_payment(), NOW_SECONDS)
    require_valid_now(payment(Draft().payload()), NOW_SECONDS)
    with pytest.raises(ApiError) as caught:
        require_valid_now(signed_payment(), NOW_SECONDS + 60)
    assert caught.value.code is Code.PAYMENT_EXPIRED


def test_whose_solana_payment_was_used_before_is_told_to_sign_again() -> None:
    assert with_advice("used", PAYER) == "used"
    assert with_advice("used", str(SOLANA_PAYER.pubkey())).endswith("sign a new payment")


def test_a_presented_payment_is_known_by_its_identity_and_by_what_it_accepts() -> None:
    payment = signed_payment()
    offered = offered_payment(payment, BASE_SEPOLIA)
    presented = PresentedPayment(payment, offered, b"header", b"hash")
    assert (presented.key, presented.accepted) == (offered.key, None)
    assert "header" not in repr(presented).replace("header_hash", "")
