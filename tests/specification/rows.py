"""Every row of every table and every numbered rule of the specification's sections 2 to 5 and 7 to 9, by name.

A row's name is its section and what its first column says: `2.1-price`, `4.4-verify-isValid`, `7-proxy-1`; every one
is there for Solana too, `4.4-verify-isValid-solana`, but those that the specification itself gives to one family
(`OF_ONE_FAMILY`). Section 6 has neither a table nor a rule. A row is tested by the one test case that is named after
it: `@row` where the families differ, `@row_on_both` where the very same test runs on each. `test_rows.py` sees to it
that no row is forgotten.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar

import pytest

_ROW_ARGUMENT: Final = "row_id"


def _rows(section: str, names: str) -> tuple[str, ...]:
    return tuple(section + name for name in names.split())


RESOURCES: Final = (
    *_rows(
        "2.1-",
        "targetUrl price credits method title description assumeValid requireAuth paymentAddress headerAuthMode "
        "resourceType file",
    ),
    *_rows("2.1-rule-", "1 2 3 4 5 6 7"),
    *_rows("2.2-", "A-x402.token A-x402.amount A-x402.address"),
    *_rows(
        "2.2-B-", "error x402Version accepts paymentRequired.amount paymentRequired.currency paymentRequired.network"
    ),
    *_rows("2.2-header-", "Content-Type X402-Version"),
    *_rows("2.3-", "base64 x402Version scheme network payload signature"),
    *_rows("2.3-authorization.", "from to value validAfter validBefore nonce"),
    "2.3-transaction",
    *_rows("2.3-EIP-712-", "domain.name domain.version domain.chainId domain.verifyingContract"),
    *_rows("2.3-EIP-712-", "primaryType types.TransferWithAuthorization message"),
    "2.3-value-of-amount",
    *_rows("2.4-", "base base-sepolia solana-devnet solana-mainnet node-address"),
    *_rows(
        "2.5-",
        "id createdAt updatedAt signerAddress amount network chainId transactionHash status error type x402Data "
        "purchaseData",
    ),
    "2.6-user",
)
STATES: Final = (*_rows("3-status-", "pending success failed"), *_rows("3.", "1 2 3"))
ENDPOINTS: Final = (
    *_rows("4-", "JSON apiVersion timestamp"),
    *_rows("4.1-", "access create create-file update list delete auth-message login transfer"),
    *_rows("4.2-", "message login refresh current-user logout message-text"),
    *_rows("4.3-", "bearer limit offset network success history"),
    *_rows("4.3-pagination.", "totalCount limit offset hasNext hasPrev"),
    *_rows("4.3-", "apiVersion timestamp"),
    "4.4-all-work",
    *_rows("4.4-supported-", "kinds scheme network assets.address assets.name assets.symbol assets.decimals"),
    *_rows("4.4-verify-", "x402Version paymentPayload paymentRequirements isValid invalidReason"),
    *_rows("4.4-settle-", "x402Version paymentPayload paymentRequirements confirm useDbId"),
    *_rows("4.4-settle-", "status transaction network amount"),
    *_rows("4.4-transfer-", "payload network asset amount recipient confirm"),
    *_rows("4.4-transfer-response.", "status transaction network amount"),
)
AUTHENTICATION: Final = _rows("5.", "1 2 3 4 5 6 7")
ERRORS: Final = (
    *_rows("7-", "error.type error.code error.message apiVersion timestamp"),
    *_rows("7-status-", "200 201 400 401 402 403 404 429 500 502"),
    *_rows("7-", "AUTH_REQUIRED INVALID_TOKEN INVALID_SIGNATURE-authentication INVALID_SIGNATURE-payment"),
    *_rows("7-", "INVALID_ADDRESS INVALID_AMOUNT INVALID_NETWORK MISSING_PARAMETER"),
    *_rows("7-", "PAYMENT_INVALID INSUFFICIENT_FUNDS NONCE_ALREADY_USED INSUFFICIENT_AMOUNT PAYMENT_EXPIRED"),
    *_rows("7-", "PAYMENT_INVALID-400 INSUFFICIENT_FUNDS-400 NONCE_ALREADY_USED-400"),
    *_rows("7-proxy-", "1 2"),
)
LIMITS: Final = _rows(
    "8-",
    "proxy-time proxy-size proxy-size-file history-limit history-offset access-token-lifetime refresh-token-lifetime "
    "hub-rate-limit",
)
VERSIONING: Final = _rows("9.", "1 2 3")

_NAMES: Final = (*RESOURCES, *STATES, *ENDPOINTS, *AUTHENTICATION, *ERRORS, *LIMITS, *VERSIONING)

# The rows that are of one family, and the words by which the specification says so.
OF_ONE_FAMILY: Final[Mapping[str, str]] = {
    "2.3-signature": "EVM `payload`",
    **dict.fromkeys((name for name in RESOURCES if name.startswith("2.3-authorization.")), "EVM `payload`"),
    "2.3-transaction": "Solana `payload`",
    **dict.fromkeys(
        (name for name in RESOURCES if name.startswith("2.3-EIP-712-")), "EIP-712 typed data signed for EVM payments"
    ),
    "2.4-base": "Family: EVM mainnet",
    "2.4-base-sepolia": "Family: EVM testnet",
    "2.4-solana-devnet": "Family: Solana",
    "2.4-solana-mainnet": "Family: Solana",
}

_SUFFIX: Final = "-solana"


def on_solana(name: str) -> str:
    """The name of the same row on Solana."""
    return name + _SUFFIX


def is_on_solana(row_id: str) -> bool:
    """Is the test case named after a row on Solana?"""
    return row_id.endswith(_SUFFIX)


def field_of(row_id: str) -> str:
    """The last part of a row's name, whichever family it is of: `limit` of `4.3-pagination.limit-solana`."""
    return row_id.removesuffix(_SUFFIX).replace("-", ".").rpartition(".")[2]


ROWS: Final = (*_NAMES, *(on_solana(name) for name in _NAMES if name not in OF_ONE_FAMILY))

TestFunction = TypeVar("TestFunction", bound=Callable[..., object])


def row(*names: str) -> Callable[[TestFunction], TestFunction]:
    """Makes one test case of each of these rows, with the row's name as its id; a test may take it as `row_id`."""
    unknown = set(names) - set(ROWS)
    if unknown:
        raise ValueError(f"the specification has no rows {sorted(unknown)}")
    return pytest.mark.parametrize(_ROW_ARGUMENT, names, indirect=True)


def row_on_both(*names: str) -> Callable[[TestFunction], TestFunction]:
    """The same on each family: a test case of the row, and one of the row on Solana, by the fixtures `program` etc."""
    return row(*names, *(on_solana(name) for name in names))


def rows_under_test(modules: str = "test_*") -> Counter[str]:
    """How many test cases of this package's modules are named after each row."""
    found: Counter[str] = Counter()
    for path in sorted(Path(__file__).parent.glob(f"{modules}.py")):
        module = importlib.import_module(f"{__package__}.{path.stem}")
        for function in vars(module).values():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                for names in _row_marks(function):
                    found.update(names)
    return found


def _row_marks(function: FunctionType) -> Iterator[tuple[str, ...]]:
    marks: list[Any] = getattr(function, "pytestmark", [])
    parametrized = [mark for mark in marks if mark.name == "parametrize"]
    for mark in parametrized:
        if mark.args[0] == _ROW_ARGUMENT:
            if len(parametrized) > 1:
                raise ValueError(f"{function.__name__} makes several test cases of one row")
            yield mark.args[1]
