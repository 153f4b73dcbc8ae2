"""The one table of error codes and the one exception for expected refusals (specification 7, contract 9).

Rules raise `ApiError` where they decide; `tollkeeper.api` renders it. An exception of any other type is a fault,
not a refusal, and becomes INTERNAL_ERROR with a request id.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

from tollkeeper.core.json_types import JsonObject


class ErrorType(StrEnum):
    """`error.type` of specification 7."""

    VALIDATION = "validation"
    AUTHENTICATION = "authentication"
    PAYMENT = "payment"
    SERVER = "server"


class Code(StrEnum):
    """`error.code`: specification 7's codes, then the contract's."""

    AUTH_REQUIRED = "AUTH_REQUIRED"
    INVALID_TOKEN = "INVALID_TOKEN"  # noqa: S105 - a code, not a secret
    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    INVALID_ADDRESS = "INVALID_ADDRESS"
    INVALID_AMOUNT = "INVALID_AMOUNT"
    INVALID_NETWORK = "INVALID_NETWORK"
    MISSING_PARAMETER = "MISSING_PARAMETER"
    PAYMENT_INVALID = "PAYMENT_INVALID"
    INSUFFICIENT_FUNDS = "INSUFFICIENT_FUNDS"
    NONCE_ALREADY_USED = "NONCE_ALREADY_USED"
    INSUFFICIENT_AMOUNT = "INSUFFICIENT_AMOUNT"
    PAYMENT_EXPIRED = "PAYMENT_EXPIRED"

    INVALID_PARAMETER = "INVALID_PARAMETER"
    FORBIDDEN = "FORBIDDEN"
    NOT_FOUND = "NOT_FOUND"
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED"
    CONFLICT = "CONFLICT"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    RATE_LIMITED = "RATE_LIMITED"
    HEADERS_TOO_LARGE = "HEADERS_TOO_LARGE"
    INTERNAL_ERROR = "INTERNAL_ERROR"
    UPSTREAM_TIMEOUT = "UPSTREAM_TIMEOUT"
    UPSTREAM_TOO_LARGE = "UPSTREAM_TOO_LARGE"
    UPSTREAM_UNREACHABLE = "UPSTREAM_UNREACHABLE"
    UPSTREAM_INVALID = "UPSTREAM_INVALID"
    UPSTREAM_BLOCKED = "UPSTREAM_BLOCKED"
    UNAVAILABLE = "UNAVAILABLE"
    SETTLEMENT_PENDING = "SETTLEMENT_PENDING"
    CREDITS_EXHAUSTED = "CREDITS_EXHAUSTED"
    CREDIT_TOKEN_REQUIRED = "CREDIT_TOKEN_REQUIRED"  # noqa: S105 - a code, not a secret


_V, _A, _P, _S = ErrorType.VALIDATION, ErrorType.AUTHENTICATION, ErrorType.PAYMENT, ErrorType.SERVER

# Where a payment code is answered at a gate its status is 402 instead (contract 4.5); `at_gate` does that.
TABLE: Final[dict[Code, tuple[ErrorType, int]]] = {
    Code.AUTH_REQUIRED: (_A, 401),
    Code.INVALID_TOKEN: (_A, 401),
    Code.INVALID_SIGNATURE: (_A, 401),
    Code.INVALID_ADDRESS: (_V, 400),
    Code.INVALID_AMOUNT: (_V, 400),
    Code.INVALID_NETWORK: (_V, 400),
    Code.MISSING_PARAMETER: (_V, 400),
    Code.PAYMENT_INVALID: (_P, 400),
    Code.INSUFFICIENT_FUNDS: (_P, 400),
    Code.NONCE_ALREADY_USED: (_P, 400),
    Code.INSUFFICIENT_AMOUNT: (_P, 400),
    Code.PAYMENT_EXPIRED: (_P, 400),
    Code.INVALID_PARAMETER: (_V, 400),
    Code.FORBIDDEN: (_A, 403),
    Code.NOT_FOUND: (_V, 404),
    Code.METHOD_NOT_ALLOWED: (_V, 405),
    Code.CONFLICT: (_V, 409),
    Code.PAYLOAD_TOO_LARGE: (_V, 413),
    Code.RATE_LIMITED: (_V, 429),
    Code.HEADERS_TOO_LARGE: (_V, 431),
    Code.INTERNAL_ERROR: (_S, 500),
    Code.UPSTREAM_TIMEOUT: (_S, 502),
    Code.UPSTREAM_TOO_LARGE: (_S, 502),
    Code.UPSTREAM_UNREACHABLE: (_S, 502),
    Code.UPSTREAM_INVALID: (_S, 502),
    Code.UPSTREAM_BLOCKED: (_S, 502),
    Code.UNAVAILABLE: (_S, 503),
    Code.SETTLEMENT_PENDING: (_P, 503),
    Code.CREDITS_EXHAUSTED: (_P, 402),
    Code.CREDIT_TOKEN_REQUIRED: (_A, 403),
}


RETRY_AFTER_SECONDS: Final = 2
# How one shows who one is, which every 401 says (RFC 9110 11.6.1, RFC 6750 3).
_BEARER: Final = "Bearer"
_BAD_BEARER: Final = 'Bearer error="invalid_token"'


class ApiError(Exception):
    """An expected refusal: what the caller is told, and nothing that they must not know.

    `details` becomes `error.details`; `headers` are added to the answer (`Allow`, `Retry-After`). `type` and `status`
    come from `TABLE`; `payment_error` and `at_gate` make the two exceptions that the specification knows.
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
        self.type, self.status = TABLE[code]
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
