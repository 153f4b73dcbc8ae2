"""`tollkeeper payments honour`: by the running server where there is one, else by the command (contract 4.3)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tollkeeper.api import clock_ms, new_request_id
from tollkeeper.chains.evm import EvmChain
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.gateway.honouring import Honouring
from tollkeeper.serving.control import answer_order, give_order
from tollkeeper.serving.keys import token_keys
from tollkeeper.serving.nodes import evm_nodes
from tollkeeper.storage import open_database
from tollkeeper.storage.paygates import PayGates
from tollkeeper.storage.purchases import Purchases

if TYPE_CHECKING:
    from tollkeeper.serving.control import Carry
    from tollkeeper.settings import Settings
    from tollkeeper.storage.database import Database


def orders_of(settings: Settings, database: Database) -> Carry:
    """What carries out an order on this database."""
    ring = settings.encryption_keys
    assert ring is not None  # noqa: S101 - a gateway's settings have them

    def chain_of(network: str) -> EvmChain | None:
        found = evm_nodes(settings).get(network)
        return None if found is None else EvmChain(found)

    honouring = Honouring(
        PayGates(database, ring, os.urandom),
        Purchases(database, ring, os.urandom),
        chain_of,
        token_keys(ring),
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


async def honour_payment(settings: Settings, order: dict[str, Any]) -> dict[str, Any]:
    """What came of it: `done` or `error`. Raises: StorageError."""
    answer = await give_order(settings.database_url, order)
    if answer is not None:
        return answer
    database = open_database(settings.database_url, migrate=False)
    try:
        return await answer_order(orders_of(settings, database), order)
    finally:
        await database.close()
