"""Which proof counts for credits, whose next try it is, and which answers give a credit back (contract 4.3, 4.5)."""

from __future__ import annotations

import pytest

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.paygates.fields import CreditBinding, OnFailure
from tollkeeper.core.purchases import Spend, header_counts, is_given_back, next_try_is_buyers, payer_may_spend

PAYMENT, TOKEN, WALLET = CreditBinding.PAYMENT, CreditBinding.TOKEN, CreditBinding.WALLET


@pytest.mark.parametrize("is_payer", [False, True])
def test_under_payment_the_same_bytes_count_whoever_logs_in(*, is_payer: bool) -> None:
    assert header_counts(PAYMENT, shown=b"same", bought=b"same", is_payer=is_payer)
    assert not header_counts(PAYMENT, shown=b"other", bought=b"same", is_payer=is_payer)


@pytest.mark.parametrize("binding", [TOKEN, WALLET])
def test_elsewhere_only_the_payers_bearer_counts_beside_a_payment(binding: CreditBinding) -> None:
    assert header_counts(binding, shown=b"other", bought=b"same", is_payer=True)
    assert not header_counts(binding, shown=b"same", bought=b"same", is_payer=False)


@pytest.mark.parametrize("outcome", Spend)
@pytest.mark.parametrize("binding", CreditBinding)
def test_the_payer_spends_where_the_payment_beside_his_bearer_gave_nothing(
    binding: CreditBinding, outcome: Spend
) -> None:
    expected = {TOKEN: {Spend.WITHHELD}, WALLET: {Spend.WITHHELD, Spend.EXHAUSTED}}.get(binding, set())
    assert payer_may_spend(binding, outcome, is_payer=True) == (outcome in expected)
    assert not payer_may_spend(binding, outcome, is_payer=False)


@pytest.mark.parametrize("is_payer", [False, True])
@pytest.mark.parametrize("shows_token", [False, True])
@pytest.mark.parametrize("binding", CreditBinding)
def test_a_public_failed_payment_is_tried_again_where_the_token_counts_for_its_buyer_alone(
    binding: CreditBinding, *, shows_token: bool, is_payer: bool
) -> None:
    expected = binding is not TOKEN or shows_token or is_payer
    assert next_try_is_buyers(binding, is_payer=is_payer, shows_token=shows_token) == expected


@pytest.mark.parametrize("on_failure", OnFailure)
@pytest.mark.parametrize("code", Code)
def test_a_503_of_ours_gives_the_credit_back_and_a_502_where_the_owner_wants_it(
    code: Code, on_failure: OnFailure
) -> None:
    error = ApiError(code, "")
    expected = code is Code.UNAVAILABLE or (error.status == 502 and on_failure is OnFailure.RESTORE)
    assert is_given_back(error, on_failure) == expected
