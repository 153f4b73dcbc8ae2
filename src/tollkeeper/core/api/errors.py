"""The one table of error codes and the one exception for expected refusals (specification 7, contract 9).

Rules raise `ApiError` where they decide; `tollkeeper.api` renders it. An exception of any other type is a fault,
not a refusal, and becomes INTERNAL_ERROR with a request id.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Self

from tollkeeper.core.json_types import JsonObject


class ErrorType(StrEnum):
    """`error.type` of specification 7."""

    VALIDATION = "validation"
    AUTHENTICATION = "authentication"
    PAYMENT = "payment"
    SERVER = "server"


_V, _A, _P, _S = ErrorType.VALIDATION, ErrorType.AUTHENTICATION, ErrorType.PAYMENT, ErrorType.SERVER


class Code(StrEnum):
    """`error.code` with its type and status: specification 7's codes, then the contract's.

    Where a payment code is answered at a gate its status is 402 instead (contract 4.5); `at_gate` does that.
    """

    type: ErrorType
    status: int

    def __new__(cls, word: str, kind: ErrorType, status: int) -> Self:
        """Make a code that is its word."""
        code = str.__new__(cls, word)
        code._value_ = word
        code.type, code.status = kind, status
        return code

    AUTH_REQUIRED = "AUTH_REQUIRED", _A, 401
    INVALID_TOKEN = "INVALID_TOKEN", _A, 401
    INVALID_SIGNATURE = "INVALID_SIGNATURE", _A, 401
    INVALID_ADDRESS = "INVALID_ADDRESS", _V, 400
    INVALID_AMOUNT = "INVALID_AMOUNT", _V, 400
    INVALID_NETWORK = "INVALID_NETWORK", _V, 400
    MISSING_PARAMETER = "MISSING_PARAMETER", _V, 400
    PAYMENT_INVALID = "PAYMENT_INVALID", _P, 400
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS", _P, 400
    NONCE_ALREADY_USED = "NONCE_ALREADY_USED", _P, 400
    INSUFFICIENT_AMOUNT = "INSUFFICIENT_AMOUNT", _P, 400
    PAYMENT_EXPIRED = "PAYMENT_EXPIRED", _P, 400
    INVALID_PARAMETER = "INVALID_PARAMETER", _V, 400
    FORBIDDEN = "FORBIDDEN", _A, 403
    NOT_FOUND = "NOT_FOUND", _V, 404
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED", _V, 405
    CONFLICT = "CONFLICT", _V, 409
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE", _V, 413
    RATE_LIMITED = "RATE_LIMITED", _V, 429
    HEADERS_TOO_LARGE = "HEADERS_TOO_LARGE", _V, 431
    INTERNAL_ERROR = "INTERNAL_ERROR", _S, 500
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT", _S, 502
    UPSTREAM_TOO_LARGE = "UPSTREAM_TOO_LARGE", _S, 502
    UPSTREAM_UNREACHABLE = "UPSTREAM_UNREACHABLE", _S, 502
    UPSTREAM_INVALID = "UPSTREAM_INVALID", _S, 502
    UPSTREAM_BLOCKED = "UPSTREAM_BLOCKED", _S, 502
    UNAVAILABLE = "UNAVAILABLE", _S, 503
    SETTLEMENT_PENDING = "SETTLEMENT_PENDING", _P, 503
    CREDITS_EXHAUSTED = "CREDITS_EXHAUSTED", _P, 402
    CREDIT_TOKEN_REQUIRED = "CREDIT_TOKEN_REQUIRED", _A, 403


RETRY_AFTER_SECONDS: Final = 2
# How one shows who one is, which every 401 says (RFC 9110 11.6.1, RFC 6750 3).
_BEARER: Final = "Bearer"
_BAD_BEARER: Final = 'Bearer error="invalid_token"'


class ApiError(Exception):
    """An expected refusal: what the caller is told, and nothing that they must not know.

    `details` becomes `error.details`; `headers` are added to the answer (`Allow`, `Retry-After`). `type` and `status`
    come from the code; `payment_error` and `at_gate` make the two exceptions that the specification knows.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        *,
        details: JsonObject | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details
        self.headers = headers or {}
        self.type, self.status = code.type, code.status
        if self.status in {429, 503}:
            self.headers = {"Retry-After": str(RETRY_AFTER_SECONDS), **self.headers}
        elif self.status == 401:
            self.headers = {"WWW-Authenticate": _BAD_BEARER if code is Code.INVALID_TOKEN else _BEARER, **self.headers}

    def body(self) -> JsonObject:
        """The `error` object of specification 7."""
        error: JsonObject = {"type": self.type.value, "code": self.code.value, "message": self.message}
        if self.details:
            error["details"] = self.details
        return error

    def at_gate(self) -> ApiError:
        """This refusal as a gate answers it: a refused payment is a 402 (contract 4.5). Returns itself."""
        if self.type is ErrorType.PAYMENT and self.code is not Code.SETTLEMENT_PENDING:
            self.status = 402
        elif self.code is Code.INVALID_NETWORK:
            self.type, self.status = ErrorType.PAYMENT, 402
        return self

    def adding(self, what: str) -> ApiError:
        """Say this, too. Returns itself."""
        self.message = f"{self.message}; {what}"
        return self


def payment_error(code: Code, message: str, *, details: JsonObject | None = None) -> ApiError:
    """A refused payment: type `payment` and, unless the code has its own, status 400 (INVALID_SIGNATURE, spec 7)."""
    error = ApiError(code, message, details=details)
    if error.type is not ErrorType.PAYMENT:
        error.type, error.status = ErrorType.PAYMENT, 400
        error.headers.pop("WWW-Authenticate", None)
    return error


def failed_check(reason: str, check: str, expected: Any, found: Any) -> JsonObject:  # noqa: ANN401 - JSON
    """Return the `details` of a refused payment (contract 4.5)."""
    return {"reason": reason, "check": check, "expected": expected, "found": found}


def missing(field: str) -> ApiError:
    """MISSING_PARAMETER for a required field."""
    return ApiError(Code.MISSING_PARAMETER, f"{field} is required", details={"field": field})


def invalid(field: str, message: str) -> ApiError:
    """INVALID_PARAMETER that names the field."""
    return ApiError(Code.INVALID_PARAMETER, message, details={"field": field})


def login_required() -> ApiError:
    """AUTH_REQUIRED for a request without a bearer where one is needed."""
    return ApiError(Code.AUTH_REQUIRED, "this route requires user authentication")
