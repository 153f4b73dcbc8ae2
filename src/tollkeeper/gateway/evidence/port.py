"""The question whether a payment was made, and its answers (contract 4.3, 4.4).

- PAID: the very transfer is on the chain, as deep as its amount needs, in a transaction of the facilitator's.
- FAILED: it was not made and never will be, by proof.
- UNKNOWN: neither. Where the chain can show no more (`may_change` is False), the payment is the operator's to judge.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, Protocol

from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.gateway.facilitator.client import SettleAnswer, SettleMeaning

if TYPE_CHECKING:
    from tollkeeper.chains.evm.chain import EvmChain
    from tollkeeper.chains.solana.chain import SolanaChain
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.purchases import AuthorizationStanding
    from tollkeeper.core.x402.verification import Reason
    from tollkeeper.core.x402.version1 import Payment, PaymentKey
    from tollkeeper.gateway.facilitator.client import Senders

NOT_SEEN: Final = "not_on_the_chain"


@dataclass(frozen=True, slots=True)
class ExpectedTransfer:
    """The transfer that a payment is to make by a transaction of the `senders`, asked for since `asked_ms` (Unix).

    `pay_to` is a wallet; on Solana its token account is as good. `valid_before`: Unix seconds, None where it was not
    kept or where blocks and not clocks decide. `named`: the transaction that the facilitator named, "" for none. That
    is no proof, but says where to look, and who sent it where the facilitator advertises no signers.
    """

    key: PaymentKey
    pay_to: str
    value: int
    valid_before: int | None
    asked_ms: int
    senders: Senders
    named: str = ""

    @classmethod
    def of(cls, offered: OfferedPayment, asked_ms: int, senders: Senders) -> ExpectedTransfer:
        """The transfer of a payment as it was shown."""
        return cls(offered.key, offered.recipient, offered.value, offered.valid_before, asked_ms, senders)


class EvidenceOutcome(Enum):
    """Outcomes of a payment that the chain shows."""

    PAID = auto()
    FAILED = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class PaymentFinding:
    """An outcome, in which transaction ("" for none), and why a payment that is not PAID cannot be sold for.

    An UNKNOWN payment without a `reason` is not known to be used. `may_change`: later blocks may show more.
    """

    outcome: EvidenceOutcome
    transaction: str = ""
    reason: Reason | None = None
    may_change: bool = False

    @property
    def is_unused(self) -> bool:
        """Nothing speaks against selling for the payment."""
        return self.outcome is EvidenceOutcome.UNKNOWN and self.reason is None

    @property
    def is_used(self) -> bool:
        """Somebody carried the payment out, though perhaps not for us."""
        return self.outcome is EvidenceOutcome.PAID or (
            self.outcome is EvidenceOutcome.UNKNOWN and self.reason is not None
        )

    @property
    def answer(self) -> SettleAnswer:
        """The finding in the words of a settle answer."""
        if self.outcome is EvidenceOutcome.PAID:
            return SettleAnswer(SettleMeaning.SUCCESS, self.transaction, "")
        if self.outcome is EvidenceOutcome.FAILED:
            return SettleAnswer(SettleMeaning.FAILED, self.transaction, self.reason or "")
        return SettleAnswer(SettleMeaning.PENDING, self.transaction, NOT_SEEN)


UNUSED: Final = PaymentFinding(EvidenceOutcome.UNKNOWN, may_change=True)


class PaymentEvidence(Protocol):
    """The nodes of one network."""

    async def of(self, expected: ExpectedTransfer) -> PaymentFinding:
        """Ask what became of the payment.

        Raises: RpcUnavailable, also where the nodes do not show the same.
        """

    async def before(self, expected: ExpectedTransfer, payment: Payment) -> PaymentFinding:
        """Ask the same before a facilitator is asked to make the payment: `is_unused` where it may be.

        What a facilitator makes for another server looks the same afterwards. Raises: RpcUnavailable, as `of`.
        """

    async def standing(self, payment: Payment, key: PaymentKey) -> AuthorizationStanding:
        """Ask whether a payment that may never be made is unused. Raises: RpcUnavailable."""

    async def accepts(self, payment: Payment) -> bool:
        """Ask the payer's own code whether it signed, where its key did not. Raises: RpcUnavailable."""


def require_asset(chain: EvmChain | SolanaChain, expected: ExpectedTransfer) -> None:
    """Refuse to look for another token than the chain's: what was used would seem unused. Raises: RpcUnavailable."""
    if chain.asset is None or chain.asset.address != expected.key.asset:
        raise RpcUnavailable(chain.problem or "the node's asset is not the facilitator's")


def alike(finding: PaymentFinding | None) -> PaymentFinding:
    """Return what enough nodes show alike. Raises: RpcUnavailable where they do not."""
    if finding is None:
        raise RpcUnavailable("the nodes do not show alike whether the payment was used")
    return finding
