"""Parts of a gateway that buying, waiting, watching and recovering have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.gateway.evidence.nodes import EvidenceNodes
    from tollkeeper.gateway.facilitator.client import HubClient, Supported
    from tollkeeper.storage.ledger.purchases import Purchases, TrustCaps


@dataclass(frozen=True, slots=True, kw_only=True)
class PurchaseParts:
    """Books, facilitator, evidence, and the gateway's own names.

    `status_url`: the hub's public URL, where anybody can follow a payment. `cap`: what one payer may owe on trust.
    """

    purchases: Purchases
    hub: HubClient
    supported: Callable[[], Supported]
    evidence: EvidenceNodes
    clock_ms: Callable[[], int]
    new_id: Callable[[], str]
    cap: TrustCaps
    gateway_url: str
    status_url: str
