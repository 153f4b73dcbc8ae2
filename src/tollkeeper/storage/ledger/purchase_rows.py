"""Purchases as rows of the database, what a call asks of one and is told, what a look shows of one (contract 4.3).

`Purchase` and the answers to spends are `msgspec` structs: one is made for every paid call, which takes a third of the
time that a frozen dataclass takes. What this module does not do: decide anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tollkeeper.core.purchases import NOT_ATTEMPTED, PurchaseState, Spend

if TYPE_CHECKING:
    from tollkeeper.storage.engine.database import Row


class Purchase(msgspec.Struct, frozen=True, kw_only=True):
    """A purchase row as the gateway reads it. Amounts in micro-units, `value_micro` what was really paid.

    `valid_before_seconds`: the authorization's end; None on Solana, and on rows of a version that did not keep it.
    `expires_ms` is when credits that are left are lost, None for never. `number` names the row within this database.
    `confirmed`: its payment is final, or nobody can tell when it is; until then another transaction may make it.
    """

    id: str
    number: int
    network: str
    payer: str
    nonce: str
    asset: str
    gate_id: int
    state: PurchaseState
    attempt: int
    credits: int
    granted: int
    remaining: int
    token_used: bool
    assume_valid: bool
    confirmed: bool
    transaction_hash: str | None
    failure: str | None
    value_micro: int
    valid_before_seconds: int | None
    header_hash: bytes
    expires_ms: int | None
    attempt_ms: int

    @property
    def next_attempt(self) -> int:
        """The number of the attempt that follows a failed one."""
        return self.attempt if self.failure == NOT_ATTEMPTED else self.attempt + 1


class SpendRequest(msgspec.Struct, frozen=True):
    """One call's request for a credit at a gate version. `header` is the shown header's hash.

    It is empty where a header does not count at this gate, and None where another proof was shown and checked:
    the credit token (`is_token`), or a bearer of the payer. `is_once`: the header counts until its purchase was served
    once, as one of x402 version 2 does (contract 10.1).
    """

    gate_id: int
    gate_version: int
    header: bytes | None
    call_id: str
    is_token: bool = False
    is_once: bool = False


class SpendResult(msgspec.Struct, frozen=True):
    """Outcome of a spend, and the purchase as it stands afterwards; None if the payment was never seen."""

    outcome: Spend
    purchase: Purchase | None = None

    @property
    def found(self) -> Purchase:
        """The purchase that was asked for a credit: every outcome but UNKNOWN has one."""
        assert self.purchase is not None  # noqa: S101 - as this says
        return self.purchase


@dataclass(frozen=True, slots=True)
class Look:
    """A sale's payment as it was seen: in which transaction, since when it is known to be paid (Unix milliseconds).

    `attempt`, `state`: of the sale when it was looked at. `next_ms`: when to look again, None where its outcome stands.
    `is_told`: the hub, or a node, told of the payment. `is_renamed`: the sale may have named another transaction.
    """

    purchase_id: str
    attempt: int
    state: PurchaseState
    transaction_hash: str
    paid_ms: int
    next_ms: int | None
    is_told: bool = True
    is_renamed: bool = False


def in_whole(high: int, low: int) -> int:
    """A sum of micro-units that the database summed in two parts, billions and the rest."""
    return high * 10**9 + low


def purchase_from(row: Row, **changed: Any) -> Purchase:  # noqa: ANN401 - column values
    """The purchase of a row of `holdings`, some columns replaced."""
    return msgspec.convert({**row, **changed}, Purchase, strict=False)  # flags are 0 and 1, sums may be texts
