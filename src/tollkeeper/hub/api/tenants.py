"""Tenants that ask the hub for something: each takes its share of the hub's gas and of its nodes' answers.

A tenant is a gate's owner, as the trusted gateway that signed the request says; a trusted gateway that does not say; or
the address of anybody else. Their shares are `core.shares`'. What a request may do is not decided here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tollkeeper.core.http.client_addresses import ClientAddresses, rate_key
from tollkeeper.core.x402.version1 import is_text
from tollkeeper.hub.api.gateway_signature import (
    GATEWAY_IN_PROCESS,
    GatewaySignature,
    HubAddress,
    read_gateway_signature,
)
from tollkeeper.hub.settlement.requests import Asker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from litestar.types import HTTPScope

    from tollkeeper.hub.api.gateway_signature import TrustedKeys

_TENANT_LENGTH_MAX: Final = 128


class Askers:
    """Reads requests' signatures and senders, for all endpoints of one hub."""

    def __init__(
        self, trusted_keys: TrustedKeys, public_url: str, clients: ClientAddresses, clock_ms: Callable[[], int]
    ) -> None:
        """`public_url`: of the hub, which a gateway's signature covers."""
        self._trusted_keys = trusted_keys
        self._place = HubAddress.of(public_url)
        self._clients = clients
        self._clock_ms = clock_ms

    async def signature(
        self,
        scope: HTTPScope,
        headers: Mapping[bytes, bytes],
        data: bytes,
        purchase_data: Mapping[str, object] | None = None,
    ) -> GatewaySignature:
        """Judge the request's signature; the gateway in this process needs none. Raises: INVALID_SIGNATURE."""
        if b"signature-input" not in headers and (gateway := scope["state"].get(GATEWAY_IN_PROCESS)):
            return GatewaySignature(frozenset((gateway,)))
        await self._trusted_keys.know(headers, purchase_data)
        now_seconds = self._clock_ms() // 1000
        return read_gateway_signature(scope, headers, data, self._trusted_keys, self._place, now_seconds)

    def of(self, scope: HTTPScope, signature: GatewaySignature, body: Mapping[str, object]) -> Asker:
        """For whom the request is made. `body`: of a signed request, which may name a tenant of its gateway's."""
        if not signature.is_trusted:
            client = scope["client"]
            address = self._clients.of(client[0] if client else "", scope["headers"])
            return Asker(f"address {rate_key(address)}", is_trusted=False)
        named = body.get("tenant")
        data = body.get("purchaseData")
        gateway = signature.owner_of(data if isinstance(data, dict) else None)
        tenant = f" {named[:_TENANT_LENGTH_MAX]}" if is_text(named) else ""
        return Asker(f"gateway {gateway}{tenant}", is_trusted=True)
