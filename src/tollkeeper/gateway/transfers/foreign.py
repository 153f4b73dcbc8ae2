"""A direct transfer at a facilitator that has none of its own: a settlement of the transfer's requirements.

Such a facilitator knows no keys: asked again, it refuses what it made before. So where the gateway has a node, the
chain is asked first what became of the transfer (contract 4.3, 4.4, 8). A refusal proves nothing of an earlier request,
and says so. On Solana the chain shows a transaction only to who was told its name: there the same payment sent again is
refused as used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.api.errors import Code
from tollkeeper.core.wallets import shown_address
from tollkeeper.core.x402.verification import Reason, code_of_reason
from tollkeeper.gateway.evidence.port import EvidenceOutcome, ExpectedTransfer
from tollkeeper.gateway.facilitator.client import SettleMeaning
from tollkeeper.gateway.transfers.request import refused_transfer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.payment_offers import OfferedPayment
    from tollkeeper.core.x402.version1 import Payment, Requirements
    from tollkeeper.gateway.evidence.nodes import EvidenceNodes
    from tollkeeper.gateway.facilitator.client import HubClient, Supported
    from tollkeeper.gateway.transfers.request import TransferRequest

_ADVICE: Final = "if you sent this payment before, look at your wallet's transactions first: it may have been made then"
_LOG = structlog.get_logger("tollkeeper.gateway")


@dataclass(frozen=True, slots=True)
class ForeignTransfers:
    """Transfers by a facilitator that is not ours, seen on the chain where the gateway has a node."""

    hub: HubClient
    supported: Callable[[], Supported]
    evidence: EvidenceNodes
    clock_ms: Callable[[], int]

    async def make(
        self, transfer: TransferRequest, payment: Payment, paid: OfferedPayment, terms: Requirements
    ) -> tuple[JsonObject | None, str]:
        """Return the body that our hub would answer, or None and the transaction that the facilitator named, if any.

        Raises: the refusal.
        """
        network, supported = paid.key.network, self.supported()
        expected = ExpectedTransfer(
            paid.key, transfer.pay_to, paid.value, paid.valid_before, self.clock_ms(), supported.senders_on(network)
        )
        if self.evidence.covers(network):
            try:
                finding = await self.evidence.before(expected, payment)
            except RpcUnavailable as error:
                _LOG.info("chain_not_seen", reason=str(error))
                return None, ""
            # Whoever names a transfer that he did not sign is not told that it is a success.
            if finding.outcome is EvidenceOutcome.PAID and paid.is_signed_by_key:
                return _told(payment, paid, finding.transaction), finding.transaction
            if finding.is_used and finding.may_change:
                return None, finding.transaction
            if not finding.is_unused:
                raise refused_transfer(finding.reason or Reason.NONCE_USED, finding.transaction, _ADVICE)
        asking = self.hub.settle(
            self.hub.settle_request(
                self.hub.asked_of(payment, terms), key="", confirm=transfer.confirm, purchase_data={}
            )
        )
        answer = await self.evidence.settle(expected, asking, trusted=not transfer.confirm, confirms=supported.confirms)
        if answer.outcome is SettleMeaning.SUCCESS:
            return _told(payment, paid, answer.transaction), answer.transaction
        is_used = code_of_reason(answer.reason) is Code.NONCE_ALREADY_USED  # by whom, it need not say
        if answer.outcome is SettleMeaning.FAILED or is_used:
            raise refused_transfer(answer.reason, answer.transaction, _ADVICE)
        return None, answer.transaction


def _told(payment: Payment, paid: OfferedPayment, transaction: str) -> JsonObject:
    return {
        "success": True,
        "status": "success",
        "transaction": transaction,
        "network": payment.network,
        "amount": str(paid.value),
        "payer": shown_address(paid.key.payer),
        "errorReason": None,
    }
