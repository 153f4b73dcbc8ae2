"""Orders that a gateway's server carries out for an operator: honour a payment, and end the tokens of a leaked key."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.gateway.purchase.manual_grant import ManualGrants
from tollkeeper.serving.nodes import chain_of
from tollkeeper.storage.gateway.paygates import PayGates
from tollkeeper.storage.ledger.purchases import Purchases

if TYPE_CHECKING:
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.gateway.encryption_keys import EncryptionKeys
    from tollkeeper.gateway.evidence.nodes import AnyChain
    from tollkeeper.serving.admin.socket import Carry
    from tollkeeper.settings.model import Settings
    from tollkeeper.storage.engine.database import Database


def commands_of(settings: Settings, database: Database, keys: EncryptionKeys) -> Carry:
    """Return the function that carries out an order, named by its `order`, on this database."""
    grants = _manual_grants(settings, database, keys)

    async def honour(order: JsonObject) -> JsonObject:
        """Grant what a payment bought that somebody else carried out (contract 4.3)."""
        nonce = order.get("nonce")
        if not isinstance(nonce, str | None):
            raise _unreadable()
        return await grants.honour(_text(order, "gate"), _text(order, "transaction"), nonce)

    async def revoke(order: JsonObject) -> JsonObject:
        """End the credit tokens and links that a retired key made."""
        await keys.revoke(_text(order, "key"), database)
        return {}

    carry = {"honour": honour, "revoke": revoke}

    async def carry_out(order: JsonObject) -> JsonObject:
        if (name := order.get("order")) not in carry:
            raise _unreadable()
        return await carry[name](order)

    return carry_out


def _manual_grants(settings: Settings, database: Database, keys: EncryptionKeys) -> ManualGrants:
    def chain_on(network: str) -> AnyChain | None:
        found = settings.networks.get(network)
        return chain_of(found, settings) if found is not None and found.rpc_urls else None

    gates = PayGates(database, keys.sealing, os.urandom)
    return ManualGrants(gates, Purchases(database, keys.sealing), chain_on, keys.tokens)


def _text(order: JsonObject, name: str) -> str:
    """A text of the order. Raises: INVALID_PARAMETER."""
    value = order.get(name)
    if not isinstance(value, str):
        raise _unreadable()
    return value


def _unreadable() -> ApiError:
    return ApiError(Code.INVALID_PARAMETER, "the order cannot be read")
