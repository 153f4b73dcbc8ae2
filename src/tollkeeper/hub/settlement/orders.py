"""Orders to the hub to settle, the accounts that carry them out, and their outcomes (contract 5.1 to 5.3)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from msgspec import UNSET, Struct, UnsetType

from tollkeeper.core.api.bodies import Body, Count
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.x402.version1 import X402_VERSION, payment_body, requirements_body
from tollkeeper.hub.settlement.requests import canonical_hash

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from tollkeeper.chains.sightings import Expected, Sighting, Submission
    from tollkeeper.core.networks import Network
    from tollkeeper.core.settlement.states import Depths, SettlementKind
    from tollkeeper.core.x402.verification import Reason
    from tollkeeper.core.x402.version1 import Payment, PaymentKey, Requirements
    from tollkeeper.hub.admission import Admission, FeeBudget
    from tollkeeper.hub.settlement.requests import WaitingRequest


class SupportedAsset(Body):
    """A token that is settled."""

    address: str
    name: str
    symbol: str
    decimals: Count
    token_program: str | UnsetType = UNSET


class SettlingConfig(Protocol):
    """Settings of a network, as far as every family's are the same."""

    @property
    def depths(self) -> Depths:
        """How deep a settlement must lie, by its amount."""


class SettlingChain(Protocol):
    """One network behind its nodes, as far as every family's is the same."""

    is_refused: bool
    problem: str

    @property
    def network(self) -> Network:
        """The network."""

    @property
    def config(self) -> SettlingConfig:
        """Its settings."""

    @property
    def asset(self) -> object | None:
        """Asset that is settled; None while the network cannot be used."""

    async def open(self, prepare: Callable[[], Awaitable[None]] | None = None) -> None:
        """Ask every node who it is. `prepare` is awaited before a network is used that was not in use."""

    async def submit(self, raw: bytes, transaction_hash: str) -> Submission:
        """Hand a signed transaction to the nodes."""

    async def wait(self, expected: Expected, deadline: float) -> Sighting:
        """Wait for a transaction until it lies deep enough, or until `deadline` (event loop time)."""

    async def look(self, wanted: Sequence[Expected]) -> list[Sighting]:
        """Return what the chain shows now of many transactions. Raises: RpcUnavailable."""


class SettlingAccount(Protocol):
    """One network with the signers that settle on it."""

    @property
    def chain(self) -> SettlingChain:
        """The network behind its nodes."""

    @property
    def gas_budget(self) -> FeeBudget:
        """Budget of what settling may cost in an hour."""

    @property
    def admission(self) -> Admission:
        """Bound of how many settlements are under way."""

    def without_money(self) -> ApiError:
        """Return the refusal of a settlement that no signer can pay for."""

    async def look_around(self) -> None:
        """Look for what the open network offers beyond what settling needs."""

    async def see_money(self) -> None:
        """Look at the signers' money of an open network."""


AccountT = TypeVar("AccountT", bound=SettlingAccount)
AccountT_contra = TypeVar("AccountT_contra", bound=SettlingAccount, contravariant=True)
PayloadT = TypeVar("PayloadT")


@dataclass(frozen=True, slots=True)
class Order(Generic[AccountT, PayloadT]):
    """A checked settle request: its payment's signature is good and it meets the requirements."""

    account: AccountT
    key: PaymentKey
    payload: PayloadT  # what is to be carried out, as the account's family reads it
    payment: Payment
    requirements: Requirements
    request: WaitingRequest
    kind: SettlementKind
    purchase_data: dict[str, object] | None
    requirements_hash: str

    def given_up(self, now_ms: int) -> GivenUpError | None:
        """Say why nothing may be started for it by now, by the last look for its caller; None where something may."""
        expires_seconds = self.request.expires_seconds
        if expires_seconds is not None and expires_seconds * 1000 <= now_ms:
            return GivenUpError(
                Code.INVALID_SIGNATURE,
                "this settle request has expired: nothing was started",
                details={"reason": "signature_expired"},
            )
        if self.request.caller.waits(now_ms):
            return None
        return GivenUpError(
            Code.UNAVAILABLE,
            "this settlement could not be started while its caller waited: nothing was started, ask again",
            headers={"Retry-After": "1"},
        )


class GivenUpError(ApiError):
    """A request that came, or got on, too late to start a settlement. `rows`: the ids that theirs would have had."""

    rows: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PriorOutcome:
    """A payment that was carried out before: as what it is refused now, and the transaction, "" where nobody knows."""

    reason: Reason
    transaction: str


class SettleOutcome(Struct, frozen=True, rename="camel"):
    """Outcome that the caller is told: success, or why not.

    `transaction` is the hash of the transaction it is about. It is kept so with an idempotency key.
    """

    success: bool
    transaction: str = ""
    reason: str | None = None
    settlement_id: str | None = None


def require_awaited(orders: Mapping[str, Order[AccountT, PayloadT]], now_ms: int) -> None:
    """Refuse right before the signature what nobody waits for: a node or a disk may have taken long.

    Raises: GivenUpError, naming those rows.
    """
    late = {row_id: error for row_id, order in orders.items() if (error := order.given_up(now_ms)) is not None}
    for error in late.values():
        # Those for another reason are found once the rest goes without these.
        error.rows = frozenset(row_id for row_id, other in late.items() if other.code is error.code)
        raise error


def refusal(reason: str, transaction: str = "", settlement_id: str | None = None) -> SettleOutcome:
    """Return the answer to a payment that was not settled, and is not, for this caller."""
    return SettleOutcome(success=False, transaction=transaction, reason=reason, settlement_id=settlement_id)


def is_kept_as(payment: Payment, text: str) -> bool:
    """Say whether this text is the payment's. Beside it may stand what its family keeps."""
    kept, said = json.loads(text), payment_body(payment)
    return {name: kept.get(name) for name in said} == said


def requirements_hash(requirements: Requirements, x402_version: int = X402_VERSION) -> str:
    """Hash requirements and their version of x402, by which two callers' are compared."""
    body = requirements_body(requirements)
    return canonical_hash(body if x402_version == X402_VERSION else {**body, "x402Version": x402_version})
