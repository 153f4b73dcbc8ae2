"""Purchases: their transitions, the terms that a payment buys, and the credit token (contract 3.3, 4.3)."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.gates import GATE, NOW_MS
from tests.core.payments import AUTHORIZATION, PAY_TO, with_value
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.paygate_fields import Recipient
from tollkeeper.core.paygates import FormerPrice
from tollkeeper.core.purchases import (
    TRANSITIONS,
    CallState,
    Claim,
    PurchaseState,
    Spend,
    Terms,
    attempts_exhausted,
    credit_token,
    header_hash,
    may_move,
    purchase_of_token,
    terms_for,
)
from tollkeeper.core.wire import EvmPayload

LAWFUL = {
    ("CLAIMED", "LIVE"),
    ("CLAIMED", "FAILED"),
    ("CLAIMED", "PARKED"),
    ("LIVE", "VOID"),
    ("FAILED", "CLAIMED"),
    ("PARKED", "LIVE"),
    ("PARKED", "FAILED"),
    ("FAILED", "LIVE"),
}
KEY, FORMER_KEY, STRANGE_KEY = b"k" * 32, b"f" * 32, b"s" * 32
CURRENT = Terms(7, 3, 10_000, 5, PAY_TO, "base-sepolia")


@pytest.mark.parametrize(("old", "new"), list(product(PurchaseState, PurchaseState)))
def test_only_the_lawful_transitions_are_allowed(old: PurchaseState, new: PurchaseState) -> None:
    assert may_move(old, new) is ((old.value, new.value) in LAWFUL)


def test_every_state_is_in_the_table_and_void_is_the_end() -> None:
    assert set(TRANSITIONS) == set(PurchaseState)
    assert [state for state, targets in TRANSITIONS.items() if not targets] == [PurchaseState.VOID]


def test_every_outcome_has_a_name() -> None:
    assert {state.name for state in CallState} == {"DISPATCHED", "DONE", "INTERRUPTED", "RESTORED"}
    assert {"SPENT", "EXHAUSTED", "WITHHELD", "FOREIGN", "IN_FLIGHT", "UNKNOWN"} <= {spend.name for spend in Spend}
    assert {"WON", "TAKEN", "ATTEMPTS_EXHAUSTED", "STALE"} <= {claim.name for claim in Claim}


# Terms


@pytest.mark.parametrize("value", [10_000, 10_001, 10**15])
def test_a_payment_of_at_least_the_price_buys_the_current_terms(value: int) -> None:
    assert terms_for(GATE, "base-sepolia", with_value(value), NOW_MS) == CURRENT


@pytest.mark.parametrize("value", [0, 1, 9_999])
def test_a_payment_below_the_price_is_insufficient_amount(value: int) -> None:
    with pytest.raises(ApiError) as refused:
        terms_for(GATE, "base-sepolia", with_value(value), NOW_MS)
    assert refused.value.code is Code.INSUFFICIENT_AMOUNT
    assert refused.value.details is not None
    assert (refused.value.details["expected"], refused.value.details["found"]) == ("10000", str(value))


def test_a_payment_to_somebody_else_is_refused_whatever_its_value() -> None:
    stranger = "0x" + "ab" * 20
    payload = EvmPayload(replace(AUTHORIZATION, pay_to=stranger, value=10**12), b"")
    with pytest.raises(ApiError) as refused:
        terms_for(GATE, "base-sepolia", payload, NOW_MS)
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
        assert terms_for(gate, "base-sepolia", with_value(10_000), NOW_MS) == CURRENT
        assert terms_for(gate, "base-sepolia", with_value(10_000), NOW_MS + 119_999) == CURRENT


def test_the_former_price_buys_nothing_of_its_own_once_its_time_is_over() -> None:
    with pytest.raises(ApiError) as refused:
        terms_for(RAISED, "base-sepolia", with_value(10_000), NOW_MS + 120_000)
    assert refused.value.code is Code.INSUFFICIENT_AMOUNT
    assert terms_for(LOWERED, "base-sepolia", with_value(10_000), NOW_MS + 120_000) == NEW_OF_LOWERED


TWO_NETWORKS = replace(
    RAISED, network="base", payment_address="0x" + "ab" * 20, accepts=(Recipient("base-sepolia", PAY_TO),)
)


def test_each_network_has_its_own_recipient_and_its_own_former_price() -> None:
    assert terms_for(TWO_NETWORKS, "base-sepolia", with_value(10_000), NOW_MS) == CURRENT
    to_base = EvmPayload(replace(AUTHORIZATION, pay_to="0x" + "ab" * 20, value=20_000), b"")
    assert terms_for(TWO_NETWORKS, "base", to_base, NOW_MS) == Terms(7, 3, 20_000, 9, "0x" + "ab" * 20, "base")
    cheap = EvmPayload(replace(AUTHORIZATION, pay_to="0x" + "ab" * 20, value=10_000), b"")
    for network, payload in (("base", cheap), ("base-sepolia", to_base), ("base", with_value(20_000))):
        with pytest.raises(ApiError):
            terms_for(TWO_NETWORKS, network, payload, NOW_MS)


def test_any_other_payment_that_covers_the_current_price_buys_the_current_terms() -> None:
    assert terms_for(RAISED, "base-sepolia", with_value(20_000), NOW_MS) == NEW_OF_RAISED
    assert terms_for(RAISED, "base-sepolia", with_value(20_001), NOW_MS) == NEW_OF_RAISED
    assert terms_for(LOWERED, "base-sepolia", with_value(9_999), NOW_MS) == NEW_OF_LOWERED
    for value in (9_999, 10_001, 19_999):
        with pytest.raises(ApiError):
            terms_for(RAISED, "base-sepolia", with_value(value), NOW_MS)


def test_too_many_attempts_are_payment_invalid_and_say_so() -> None:
    error = attempts_exhausted()
    assert isinstance(error, ApiError)
    assert (error.code, error.details) == (Code.PAYMENT_INVALID, {"reason": "attempts_exhausted"})


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
