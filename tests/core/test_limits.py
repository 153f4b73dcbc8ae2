"""The specification's limits have the specification's values (specification 4.2, 4.3, 8; contract 4, 5)."""

from __future__ import annotations

from tollkeeper.core import limits
from tollkeeper.core.http.timeouts import Patience
from tollkeeper.core.paygates.statistics import Kept


def test_the_limits_of_specification_8_have_its_values() -> None:
    assert limits.PROXY_TIMEOUT_SECONDS == 600
    assert limits.PROXY_RESPONSE_SIZE_BYTES == 10_485_760
    assert limits.HISTORY_LIMIT_MAX == 100
    assert limits.ACCESS_TOKEN_LIFETIME_SECONDS == 900
    assert limits.REFRESH_TOKEN_LIFETIME_SECONDS == 604_800


def test_the_limits_of_the_contract_have_its_values() -> None:
    assert limits.CHALLENGE_TIMEOUT_SECONDS == 60
    assert limits.FORMER_PRICE_SECONDS == 120
    assert limits.SETTLE_WAIT_SECONDS == 30
    assert limits.ACCEPT_WAIT_SECONDS == 4
    assert limits.SETTLE_REQUEST_LIFETIME_SECONDS == 60
    assert limits.PAYMENT_ATTEMPTS_MAX == 3
    assert limits.LOGIN_MESSAGE_LIFETIME_SECONDS == 300
    assert limits.LIST_LIMIT_DEFAULT == 20


def test_a_limit_is_a_whole_number_above_zero() -> None:
    values = {name: value for name, value in vars(limits).items() if name.isupper()}
    assert {name for name, value in values.items() if type(value) is not int or value < 1} == set()


def test_what_an_operator_may_change_has_these_defaults() -> None:
    waited = Patience()
    assert (waited.head_seconds, waited.body_seconds, waited.body_bytes_per_second) == (15, 60, 1024)
    assert (waited.read_seconds, waited.idle_seconds) == (60, 75)
    assert (Kept().log_days, Kept().sum_days) == (30, 730)
    assert limits.CALL_BODY_SIZE_BYTES == 104_857_600
