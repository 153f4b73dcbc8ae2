"""The parts that all requests at PayGates share: those that they are served with, and what is under way for them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tollkeeper.core.shares import Shares
from tollkeeper.edge.shared.turns import TurnEnd
from tollkeeper.gateway.call import target_signature

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence

    from tollkeeper.auth import Auth
    from tollkeeper.core.paygates.challenge import Profile
    from tollkeeper.edge.target.forwarder import Forwarder
    from tollkeeper.gateway.call.driver import CallDriver
    from tollkeeper.gateway.call.payment_header import PaymentReader
    from tollkeeper.gateway.files import Files
    from tollkeeper.gateway.limiting import UnpaidLimit
    from tollkeeper.gateway.open_gate import Gates
    from tollkeeper.gateway.pages import Pages
    from tollkeeper.gateway.purchase.service import PurchaseService
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.ledger.purchases import Purchases


@dataclass(slots=True, kw_only=True)
class GatewayContext:
    """Parts of a gateway that its calls ask, one for all requests of a process."""

    gates: Gates
    purchases: Purchases
    buying: PurchaseService
    forwarder: Forwarder
    files: Files
    traffic: Traffic
    auth: Auth
    payments: PaymentReader
    limit: UnpaidLimit
    pages: Pages
    token_keys: Sequence[bytes]
    profile: Profile
    body_limit_bytes: int
    random_bytes: Callable[[int], bytes]
    ahead: Shares = field(
        default_factory=lambda: Shares(target_signature.AHEAD_SIZE_BYTES)
    )  # bodies that are to be signed
    under_way: dict[asyncio.Task[Any], CallDriver] = field(default_factory=dict)  # tasks that a stop cuts, or waits for
    answers: TurnEnd = field(default_factory=TurnEnd)  # of targets: those of one turn are passed on together
    is_stopping: bool = False  # what comes from now on is told so
