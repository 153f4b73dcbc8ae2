"""What a payment owes, and what a chain shows of it: the words of a gateway's own proofs (contract 4.3, 4.4).

How a chain is asked is in `evm_findings` and `solana_findings`; when, in `chain_proofs`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.gateway.hub_client import SettleAnswer, Settlement

if TYPE_CHECKING:
    from tollkeeper.chains.evm import EvmChain
    from tollkeeper.chains.solana import SolanaChain
    from tollkeeper.core.tenders import Tender
    from tollkeeper.core.verification import Reason
    from tollkeeper.core.wire import PaymentKey


@dataclass(frozen=True, slots=True)
class Owed:
    """The transfer that a payment is to make, and since when it is asked for (Unix milliseconds).

    `pay_to` is a wallet; on Solana its token account is as good. `valid_before`: Unix seconds, None where it was not
    kept or where blocks and not clocks decide.
    """

    key: PaymentKey
    pay_to: str
    value: int
    valid_before: int | None
    asked_ms: int

    @classmethod
    def of(cls, tender: Tender, asked_ms: int) -> Owed:
        """The transfer of a payment as it was shown."""
        return cls(tender.key, tender.recipient, tender.value, tender.valid_before, asked_ms)


class Seen(Enum):
    """What the chain shows of a payment."""

    PAID = auto()
    FAILED = auto()  # it was not made, and never can be
    FOREIGN = auto()  # carried out, but nobody can say that it was for us
    NOTHING = auto()  # not yet, or not deep enough


@dataclass(frozen=True, slots=True)
class Finding:
    """What was seen, in which transaction ("" where in none), and why it FAILED.

    `is_made`: it made the very transfer, whoever sent it.
    """

    seen: Seen
    transaction: str = ""
    reason: Reason | None = None
    is_made: bool = False


NOTHING: Final = Finding(Seen.NOTHING)


def require_asset(chain: EvmChain | SolanaChain, owed: Owed) -> None:
    """Of another token than the owed one a chain shows nothing. Raises: RpcUnavailable."""
    if chain.asset is None or chain.asset.address != owed.key.asset:
        raise RpcUnavailable(chain.problem or "the node's asset is not the facilitator's")


def answer_of(finding: Finding) -> SettleAnswer:
    """A finding in the words of a settle answer."""
    if finding.seen is Seen.PAID:
        return SettleAnswer(Settlement.SUCCESS, finding.transaction, "")
    if finding.seen is Seen.FAILED:
        return SettleAnswer(Settlement.FAILED, finding.transaction, finding.reason or "")
    if finding.seen is Seen.FOREIGN:
        return SettleAnswer(Settlement.UNPROVABLE, finding.transaction, "not_of_the_facilitators_signers")
    return SettleAnswer(Settlement.PENDING, "", "not_on_the_chain")
