"""The order to honour a payment that somebody else carried out (contract 4.3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.gateway.honouring import Honouring
from tollkeeper.serving.nodes import chain_of
from tollkeeper.storage.paygates import PayGates
from tollkeeper.storage.purchases import Purchases

if TYPE_CHECKING:
    from tollkeeper.gateway.evidence.families import AnyChain
    from tollkeeper.serving.control import Carry
    from tollkeeper.serving.live_keys import LiveKeys
    from tollkeeper.settings import Settings
    from tollkeeper.storage.database import Database


def honouring_of(settings: Settings, database: Database, keys: LiveKeys) -> Carry:
    """What carries out the order to honour a payment, on this database."""

    def chain_on(network: str) -> AnyChain | None:
        found = settings.networks.get(network)
        return chain_of(found, settings) if found is not None and found.rpc_urls else None

    honouring = Honouring(
        PayGates(database, keys.sealing, os.urandom),
        Purchases(database, keys.sealing),
        chain_on,
        keys.tokens,
        clock_ms,
        lambda: "pur_" + new_request_id(),
        os.urandom,
    )

    async def carry(order: dict[str, Any]) -> dict[str, Any]:
        slug, transaction, nonce = order.get("gate"), order.get("transaction"), order.get("nonce")
        if not isinstance(slug, str) or not isinstance(transaction, str) or not isinstance(nonce, str | None):
            raise ApiError(Code.INVALID_PARAMETER, "the order cannot be read")
        return await honouring.honour(slug, transaction, nonce)

    return carry
