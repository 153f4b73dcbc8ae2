"""One table of codes: each has the type and status of specification 7 and contract 9."""

from __future__ import annotations

import pytest

from tollkeeper.core.api.errors import (
    RETRY_AFTER_SECONDS,
    ApiError,
    Code,
    ErrorType,
    invalid,
    missing,
    payment_error,
)

# Typed from the two documents, not from the program.
DOCUMENTED: dict[str, tuple[str, int]] = {
    "AUTH_REQUIRED": ("authentication", 401),
    "INVALID_TOKEN": ("authentication", 401),
    "INVALID_SIGNATURE": ("authentication", 401),
    "INVALID_ADDRESS": ("validation", 400),
    "INVALID_AMOUNT": ("validation", 400),
    "INVALID_NETWORK": ("validation", 400),
    "MISSING_PARAMETER": ("validation", 400),
    "PAYMENT_INVALID": ("payment", 400),
    "INSUFFICIENT_FUNDS": ("payment", 400),
    "NONCE_ALREADY_USED": ("payment", 400),
    "INSUFFICIENT_AMOUNT": ("payment", 400),
    "PAYMENT_EXPIRED": ("payment", 400),
    "INVALID_PARAMETER": ("validation", 400),
    "NOT_FOUND": ("validation", 404),
    "FORBIDDEN": ("authentication", 403),
    "METHOD_NOT_ALLOWED": ("validation", 405),
    "CONFLICT": ("validation", 409),
    "PAYLOAD_TOO_LARGE": ("validation", 413),
    "RATE_LIMITED": ("validation", 429),
    "HEADERS_TOO_LARGE": ("validation", 431),
    "INTERNAL_ERROR": ("server", 500),
    "UPSTREAM_TIMEOUT": ("server", 502),
    "UPSTREAM_TOO_LARGE": ("server", 502),
    "UPSTREAM_UNREACHABLE": ("server", 502),
    "UPSTREAM_INVALID": ("server", 502),
    "UPSTREAM_BLOCKED": ("server", 502),
    "UNAVAILABLE": ("server", 503),
    "SETTLEMENT_PENDING": ("payment", 503),
    "CREDITS_EXHAUSTED": ("payment", 402),
    "CREDIT_TOKEN_REQUIRED": ("authentication", 403),
}

REFUSED_PAYMENTS = [
    Code.PAYMENT_INVALID,
    Code.INSUFFICIENT_AMOUNT,
    Code.PAYMENT_EXPIRED,
    Code.INSUFFICIENT_FUNDS,
    Code.NONCE_ALREADY_USED,
    Code.CREDITS_EXHAUSTED,
]


def test_the_table_holds_every_code_and_no_other() -> None:
    assert {code.value for code in Code} == set(DOCUMENTED)


@pytest.mark.parametrize("code", list(Code))
def test_each_code_has_the_documented_type_and_status(code: Code) -> None:
    error = ApiError(code, "why")
    assert (error.type.value, error.status) == DOCUMENTED[code.value]


def test_the_error_types_are_those_of_the_specification() -> None:
    assert {kind.value for kind in ErrorType} == {"validation", "authentication", "payment", "server"}


def test_the_body_is_the_specification_s_and_details_appear_only_where_there_are_some() -> None:
    assert ApiError(Code.NOT_FOUND, "no such gate").body() == {
        "type": "validation",
        "code": "NOT_FOUND",
        "message": "no such gate",
    }
    assert ApiError(Code.CONFLICT, "taken", details={"field": "slug"}).body()["details"] == {"field": "slug"}


def test_an_error_is_an_exception_that_says_its_message_and_keeps_its_headers() -> None:
    error = ApiError(Code.METHOD_NOT_ALLOWED, "not here", headers={"Allow": "GET"})
    assert str(error) == error.message == "not here"
    assert error.headers == {"Allow": "GET"}
    assert ApiError(Code.NOT_FOUND, "x").headers == {}


@pytest.mark.parametrize("code", list(Code))
def test_429_and_503_say_when_to_try_again_and_401_how_to_log_in_and_nothing_else_does(code: Code) -> None:
    bad = ' error="invalid_token"' if code is Code.INVALID_TOKEN else ""
    try_again = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    told = {401: {"WWW-Authenticate": f"Bearer{bad}"}, 429: try_again, 503: try_again}
    expected = told.get(DOCUMENTED[code.value][1], {})
    assert ApiError(code, "why").headers == expected
    assert ApiError(code, "why", headers={"Retry-After": "9"}).headers == {**expected, "Retry-After": "9"}


@pytest.mark.parametrize("code", REFUSED_PAYMENTS)
def test_a_refused_payment_is_a_402_at_a_gate(code: Code) -> None:
    error = ApiError(code, "why")
    assert error.at_gate() is error
    assert (error.type, error.status) == (ErrorType.PAYMENT, 402)


def test_a_wrong_network_of_a_payment_is_a_402_of_type_payment_at_a_gate() -> None:
    error = ApiError(Code.INVALID_NETWORK, "why").at_gate()
    assert (error.type, error.status) == (ErrorType.PAYMENT, 402)


def test_a_pending_settlement_stays_503_at_a_gate() -> None:
    assert ApiError(Code.SETTLEMENT_PENDING, "wait").at_gate().status == 503


@pytest.mark.parametrize(
    "code", [code for code in Code if code not in {*REFUSED_PAYMENTS, Code.INVALID_NETWORK, Code.SETTLEMENT_PENDING}]
)
def test_what_is_no_payment_error_is_the_same_at_a_gate(code: Code) -> None:
    error = ApiError(code, "why").at_gate()
    assert (error.type.value, error.status) == DOCUMENTED[code.value]


def test_a_wrong_signature_of_a_payment_is_a_payment_error_400_and_402_at_a_gate() -> None:
    error = payment_error(Code.INVALID_SIGNATURE, "why", details={"check": "signature"})
    assert (error.type, error.status, error.headers) == (ErrorType.PAYMENT, 400, {})
    assert error.details == {"check": "signature"}
    assert error.at_gate().status == 402


def test_a_payment_code_keeps_its_own_status_as_a_payment_error() -> None:
    assert payment_error(Code.SETTLEMENT_PENDING, "wait").status == 503
    assert payment_error(Code.PAYMENT_INVALID, "why").status == 400


def test_missing_and_invalid_name_the_field() -> None:
    absent = missing("price")
    assert (absent.code, absent.details) == (Code.MISSING_PARAMETER, {"field": "price"})
    assert "price" in absent.message
    wrong = invalid("credits", "credits must be an integer")
    assert (wrong.code, wrong.details) == (Code.INVALID_PARAMETER, {"field": "credits"})
    assert wrong.message == "credits must be an integer"


def test_a_refusal_says_more_where_more_is_known() -> None:
    error = ApiError(Code.UNAVAILABLE, "why")
    assert error.adding("nothing was charged") is error
    assert error.body()["message"] == "why; nothing was charged"
