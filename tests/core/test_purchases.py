"""Purchases: their transitions, the terms that a payment buys, and the credit token (contract 3.3, 4.3)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.gates import GATE, NOW_MS
from tests.core.payments import AUTHORIZATION, BASE, BASE_SEPOLIA, PAY_TO, REQUIREMENTS, with_value
from tests.core.solana_payments import DEVNET, OTHER, Draft, account_of, compute_limit, compute_price, transfer
from tests.core.solana_payments import PAY_TO as SOLANA_PAY_TO
from tests.core.solana_payments import payment as solana_payment
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.fields import Recipient
from tollkeeper.core.paygates.model import FormerPrice, PayGate
from tollkeeper.core.payment_offers import offered_payment
from tollkeeper.core.purchases import (
    FIRST_LOOK_MS,
    FOLLOWED_MS,
    TRANSITIONS,
    Claim,
    PurchaseState,
    Spend,
    Terms,
    attempts_exhausted,
    credit_token,
    header_hash,
    may_move,
    next_look_ms,
    purchase_of_token,
    terms_for,
)
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.verification import EvmAsset
from tollkeeper.core.x402.version1 import EvmPayload, Payment

LAWFUL = {
    ("CLAIMED", "LIVE"),
    ("CLAIMED", "FAILED"),
    ("CLAIMED", "PARKED"),
    ("LIVE", "VOID"),
    ("VOID", "LIVE"),
    ("FAILED", "CLAIMED"),
    ("PARKED", "LIVE"),
    ("SHOWN", "LIVE"),
    ("FAILED", "LIVE"),
}
KEY, FORMER_KEY, STRANGE_KEY = b"k" * 32, b"f" * 32, b"s" * 32
CURRENT = Terms(7, 3, 10_000, 5, PAY_TO, "base-sepolia")


@pytest.mark.parametrize(("old", "new"), list(product(PurchaseState, PurchaseState)))
def test_only_the_lawful_transitions_are_allowed(old: PurchaseState, new: PurchaseState) -> None:
    assert may_move(old, new) is ((old.value, new.value) in LAWFUL)


def test_every_state_is_in_the_table() -> None:
    assert set(TRANSITIONS) == set(PurchaseState)


def test_every_outcome_has_a_name() -> None:
    assert {"SPENT", "EXHAUSTED", "WITHHELD", "FOREIGN", "IN_FLIGHT", "UNKNOWN"} <= {spend.name for spend in Spend}
    assert {"WON", "TAKEN", "ATTEMPTS_EXHAUSTED", "STALE"} <= {claim.name for claim in Claim}


# Terms


def bought(gate: PayGate, payload: EvmPayload, now_ms: int, asset: EvmAsset = BASE_SEPOLIA) -> Terms:
    """What this payment buys; who signed it does not matter here."""
    return terms_for(gate, asset, offered_payment(Payment(1, "exact", asset.network.name, payload), asset), now_ms)


def on_solana(gate: PayGate, amount: int, pay_to: str = SOLANA_PAY_TO) -> Terms:
    """The same of a Solana payment."""
    moved = (compute_limit(), compute_price(), transfer(amount, pay_to=pay_to))
    return terms_for(gate, DEVNET, offered_payment(solana_payment(Draft(moved).payload()), DEVNET), NOW_MS)


SOLANA_GATE = replace(GATE, network="solana-devnet", payment_address=SOLANA_PAY_TO)


def test_on_solana_exactly_the_price_buys() -> None:
    assert on_solana(SOLANA_GATE, 10_000) == Terms(7, 3, 10_000, 5, SOLANA_PAY_TO, "solana-devnet")
    for amount, code, reason in (
        (9_999, Code.INSUFFICIENT_AMOUNT, "invalid_exact_svm_payload_amount_insufficient"),
        (10_001, Code.PAYMENT_INVALID, "invalid_exact_svm_payload_transaction_amount_mismatch"),
    ):
        with pytest.raises(ApiError) as refused:
            on_solana(SOLANA_GATE, amount)
        assert refused.value.code is code
        assert refused.value.details is not None
        assert refused.value.details["reason"] == reason


def test_on_solana_the_recipients_associated_account_is_paid() -> None:
    with pytest.raises(ApiError) as refused:
        on_solana(SOLANA_GATE, 10_000, pay_to=str(OTHER.pubkey()))
    assert refused.value.code is Code.PAYMENT_INVALID
    assert refused.value.details is not None
    assert refused.value.details["expected"] == str(account_of(SOLANA_PAY_TO))
    assert refused.value.details["found"] == str(account_of(OTHER.pubkey()))


def test_a_former_price_counts_on_solana_too() -> None:
    former = (FormerPrice(10_000, 5, NOW_MS + 1, "solana-devnet"),)
    raised = replace(SOLANA_GATE, price_micro=20_000, credits=9, former=former)
    assert on_solana(raised, 10_000).credits == 5
    assert on_solana(raised, 20_000).credits == 9
    with pytest.raises(ApiError):
        on_solana(raised, 15_000)


@pytest.mark.parametrize("value", [10_000, 10_001, 10**15])
def test_a_payment_of_at_least_the_price_buys_the_current_terms(value: int) -> None:
    assert bought(GATE, with_value(value), NOW_MS) == CURRENT


@pytest.mark.parametrize("value", [0, 1, 9_999])
def test_a_payment_below_the_price_is_insufficient_amount(value: int) -> None:
    with pytest.raises(ApiError) as refused:
        bought(GATE, with_value(value), NOW_MS)
    assert refused.value.code is Code.INSUFFICIENT_AMOUNT
    assert refused.value.details is not None
    assert (refused.value.details["expected"], refused.value.details["found"]) == ("10000", str(value))


def test_of_a_wrong_price_and_a_wrong_recipient_the_recipient_is_told() -> None:
    elsewhere = replace(GATE, payment_address="0x" + "ab" * 20)
    for gate, value, code in (
        (elsewhere, 9_999, Code.PAYMENT_INVALID),
        (elsewhere, 10_000, Code.PAYMENT_INVALID),
        (GATE, 9_999, Code.INSUFFICIENT_AMOUNT),
    ):
        with pytest.raises(ApiError) as refused:
            bought(gate, with_value(value), NOW_MS)
        assert refused.value.code is code


def test_a_payment_to_somebody_else_is_refused_whatever_its_value() -> None:
    stranger = "0x" + "ab" * 20
    payload = EvmPayload(replace(AUTHORIZATION, pay_to=stranger, value=10**12), b"")
    with pytest.raises(ApiError) as refused:
        bought(GATE, payload, NOW_MS)
    assert refused.value.code is Code.PAYMENT_INVALID
    assert refused.value.details is not None
    assert (refused.value.details["expected"], refused.value.details["found"]) == (PAY_TO, stranger)


RAISED = replace(
    GATE, price_micro=20_000, credits=9, former=(FormerPrice(10_000, 5, NOW_MS + 120_000, "base-sepolia"),)
)
LOWERED = replace(
    GATE, price_micro=5_000, credits=2, former=(FormerPrice(10_000, 5, NOW_MS + 120_000, "base-sepolia"),)
)
NEW_OF_RAISED = Terms(7, 3, 20_000, 9, PAY_TO, "base-sepolia")
NEW_OF_LOWERED = Terms(7, 3, 5_000, 2, PAY_TO, "base-sepolia")


def test_exactly_the_former_price_buys_the_former_terms_while_they_last() -> None:
    for gate in (RAISED, LOWERED):
        assert bought(gate, with_value(10_000), NOW_MS) == CURRENT
        assert bought(gate, with_value(10_000), NOW_MS + 119_999) == CURRENT


def test_the_former_price_buys_nothing_of_its_own_once_its_time_is_over() -> None:
    with pytest.raises(ApiError) as refused:
        bought(RAISED, with_value(10_000), NOW_MS + 120_000)
    assert refused.value.code is Code.INSUFFICIENT_AMOUNT
    assert bought(LOWERED, with_value(10_000), NOW_MS + 120_000) == NEW_OF_LOWERED


TWO_NETWORKS = replace(
    RAISED, network="base", payment_address="0x" + "ab" * 20, accepts=(Recipient("base-sepolia", PAY_TO),)
)


def test_each_network_has_its_own_recipient_and_its_own_former_price() -> None:
    assert bought(TWO_NETWORKS, with_value(10_000), NOW_MS) == CURRENT
    to_base = EvmPayload(replace(AUTHORIZATION, pay_to="0x" + "ab" * 20, value=20_000), b"")
    assert bought(TWO_NETWORKS, to_base, NOW_MS, BASE) == Terms(7, 3, 20_000, 9, "0x" + "ab" * 20, "base")
    cheap = EvmPayload(replace(AUTHORIZATION, pay_to="0x" + "ab" * 20, value=10_000), b"")
    for asset, payload in ((BASE, cheap), (BASE_SEPOLIA, to_base), (BASE, with_value(20_000))):
        with pytest.raises(ApiError):
            bought(TWO_NETWORKS, payload, NOW_MS, asset)


def test_any_other_payment_that_covers_the_current_price_buys_the_current_terms() -> None:
    assert bought(RAISED, with_value(20_000), NOW_MS) == NEW_OF_RAISED
    assert bought(RAISED, with_value(20_001), NOW_MS) == NEW_OF_RAISED
    assert bought(LOWERED, with_value(9_999), NOW_MS) == NEW_OF_LOWERED
    for value in (9_999, 10_001, 19_999):
        with pytest.raises(ApiError):
            bought(RAISED, with_value(value), NOW_MS)


def test_too_many_attempts_are_payment_invalid_and_say_so() -> None:
    error = attempts_exhausted()
    assert isinstance(error, ApiError)
    details = {
        "reason": "attempts_exhausted",
        "check": "attempts",
        "expected": "at most 3",
        "found": "as many failed",
    }
    assert (error.code, error.details) == (Code.PAYMENT_INVALID, details)


# The proof of a later call


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_only_the_same_header_has_the_same_hash(one: bytes, other: bytes) -> None:
    assert len(header_hash(one)) == 32
    assert (header_hash(one) == header_hash(other)) is (one == other)


@given(st.text("0123456789abcdef", min_size=1, max_size=32))
def test_a_credit_token_names_its_purchase_to_whoever_has_the_key(purchase_id: str) -> None:
    token = credit_token(KEY, purchase_id)
    assert token == credit_token(KEY, purchase_id)
    assert token.isascii()
    assert purchase_of_token([KEY], token) == purchase_id
    assert purchase_of_token([FORMER_KEY, KEY], token) == purchase_id
    assert purchase_of_token([STRANGE_KEY], token) is None
    assert purchase_of_token([], token) is None


def test_a_token_changed_anywhere_is_nobody_s() -> None:
    token = credit_token(KEY, "deadbeef")
    for at, letter in enumerate(token):
        changed = token[:at] + ("A" if letter != "A" else "B") + token[at + 1 :]
        assert purchase_of_token([KEY], changed) is None
    for other in (token + "A", token[:-1], token + ".", token + "=", " " + token, token.upper()):
        assert purchase_of_token([KEY], other) is None


@pytest.mark.parametrize("token", ["", ".", "deadbeef", "deadbeef.", "\u0661.x", "x.\u0661", "\ud800.x", "." * 5000])
def test_what_is_no_token_is_nobody_s(token: str) -> None:
    assert purchase_of_token([KEY], token) is None


@given(st.text(max_size=50))
def test_no_guessed_text_is_a_token(text: str) -> None:
    assert purchase_of_token([KEY, FORMER_KEY], text) is None


def test_a_sale_is_looked_at_ever_more_rarely_and_a_last_time_when_no_reorganisation_is_watched_for_any_more() -> None:
    looks = [NOW_MS]
    while (following := next_look_ms(NOW_MS, looks[-1], is_used_up=False)) is not None:
        looks.append(following)
    pauses = [after - before for before, after in pairwise(looks)]
    assert pauses[0] == FIRST_LOOK_MS
    assert pauses[:-1] == sorted(pauses[:-1])
    assert looks[-1] == NOW_MS + FOLLOWED_MS
    assert len(looks) < 10


def test_of_a_sale_that_is_used_up_only_the_end_is_looked_at() -> None:
    assert next_look_ms(NOW_MS, NOW_MS + 1, is_used_up=True) == NOW_MS + FOLLOWED_MS
    assert next_look_ms(NOW_MS, NOW_MS + FOLLOWED_MS, is_used_up=True) is None


def test_a_clock_that_is_behind_looks_soon() -> None:
    assert next_look_ms(NOW_MS, NOW_MS - FOLLOWED_MS, is_used_up=False) == NOW_MS - FOLLOWED_MS + FIRST_LOOK_MS


def taken(gate: PayGate, payload: EvmPayload, *, amount: int, now_ms: int = NOW_MS) -> Terms:
    """The terms of a payment of version 2 that takes an offer at that price."""
    offer = version2.offer_of(REQUIREMENTS)
    offered = offered_payment(Payment(2, "exact", "base-sepolia", payload, offer), BASE_SEPOLIA)
    said = version2.TakenOffer(offer, {**offer, "amount": str(amount)})
    return terms_for(gate, BASE_SEPOLIA, offered, now_ms, said)


def test_in_version_2_the_offer_that_is_taken_is_paid_exactly() -> None:
    raised = replace(GATE, price_micro=20_000, credits=9, former=(FormerPrice(10_000, 5, NOW_MS + 1, "base-sepolia"),))
    assert taken(raised, with_value(10_000), amount=10_000).credits == 5
    assert taken(raised, with_value(20_000), amount=20_000).credits == 9
    for value, code in ((19_999, Code.INSUFFICIENT_AMOUNT), (20_001, Code.PAYMENT_INVALID)):
        with pytest.raises(ApiError) as refused:
            taken(raised, with_value(value), amount=20_000)
        assert refused.value.code is code
    with pytest.raises(ApiError) as refused:
        taken(raised, with_value(10_000), amount=10_000, now_ms=NOW_MS + 1)
    assert refused.value.code is Code.PAYMENT_INVALID
    assert refused.value.details is not None
    assert refused.value.details["check"] == "accepted"
