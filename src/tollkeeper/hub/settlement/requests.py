"""Requests to the hub as values: a payment and what it is to meet, who asks, and whether somebody waits (contract 5).

The endpoints (`hub.api`) read them from HTTP; a settlement is carried out by them and knows no HTTP.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from tollkeeper.core.x402.version1 import Payment, Requirements, payment_body
from tollkeeper.storage.hub.idempotency import IdempotencyKey

if TYPE_CHECKING:
    from collections.abc import Callable


class RequestedPayment(NamedTuple):
    """A payment and the requirements that it is to meet."""

    x402_version: int
    payment: Payment
    requirements: Requirements


@dataclass(frozen=True, slots=True)
class SettleOptions:
    """The rest of a settle request. `fingerprint` is of everything in its body, however it was spelled.

    `wait_seconds`: so long it is held at most; `receipt_seconds`: where a node has taken the transaction already.
    `patience_seconds`: so long a caller is taken to wait, also one who would rather hear sooner.
    """

    x402_version: int
    confirm: bool
    use_db_id: bool
    wait_seconds: int
    receipt_seconds: int
    patience_seconds: int
    idempotency_key: str | None
    fingerprint: str
    purchase_data: dict[str, object] | None


@dataclass(frozen=True, slots=True)
class RequestedTransfer:
    """One transfer request. `amount` and `recipient` are what its caller says was signed; None where it does not."""

    payment: Payment
    asset: str
    amount: int | None
    recipient: str | None

    def body(self) -> dict[str, object]:
        """Return everything that it asks for, for comparing two requests."""
        return {
            "transfer": payment_body(self.payment),
            "asset": self.asset,
            "amount": None if self.amount is None else str(self.amount),
            "recipient": self.recipient,
        }


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom a request is made. `is_trusted`: a gateway that we trust signed it."""

    tenant: str
    is_trusted: bool


class CallerPresence:
    """Caller of one request.

    `until_ms`: the Unix time until which it waits; None: for ever. `ask`: has its connection ended?
    """

    __slots__ = ("_ask", "_has_left", "_until_ms")

    def __init__(self, until_ms: int | None, ask: Callable[[], bool] | None) -> None:
        self._until_ms = until_ms
        self._ask = ask
        self._has_left = False

    def look(self) -> bool:
        """Say whether it is there. Asked in its connection's event loop alone: a signature may be made elsewhere."""
        self._has_left = self._has_left or (self._ask is not None and self._ask())
        return not self._has_left

    def leave(self) -> None:
        """End the wait: it is told, or has been, that nothing was begun."""
        self._has_left = True

    def waits(self, now_ms: int) -> bool:
        """Say whether something may be begun for it. By the last look."""
        return not self._has_left and (self._until_ms is None or now_ms < self._until_ms)


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request to settle: for whom it is made, and until when its caller waits for an outcome.

    `key_owner`: the gateway that signed it, where we trust it, else the payer, whose signature must be good where the
    key is used; "" where nobody knows the payer. `key_other`: the one of the two whose it was where the gateway's key
    could not be read, or could.
    """

    options: SettleOptions
    key_owner: str
    key_other: str
    is_gateway_s: bool
    deadline: float  # event loop time
    receipt_deadline: float  # the same, where a node has taken the transaction
    expires_seconds: int | None  # from then on (Unix time) nothing may be started for the request; None: ever
    caller: CallerPresence  # for whom nothing is started once it waits no more
    asker: Asker  # for whom it is settled; trusted for a gateway of ours, for something that it was paid for

    @property
    def idempotency(self) -> IdempotencyKey | None:
        """The caller's key with the request that it belongs to."""
        options = self.options
        if options.idempotency_key is None or not self.key_owner:
            return None
        return IdempotencyKey(self.key_owner, options.idempotency_key, options.fingerprint, self.key_other)


def canonical_hash(value: dict[str, object]) -> str:
    """SHA-256 in hex of a JSON value, independent of the order of keys."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def canonical_json(value: dict[str, object]) -> str:
    """Return one text per JSON value: sorted keys, no spaces; a number that is not an integer as the text it was."""
    return _CANONICAL(value)


_CANONICAL: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=lambda number: number.text).encode
