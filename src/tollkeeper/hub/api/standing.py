"""`/standing`: is a payment unused that the hub may never be shown? Asked by its identity alone (contract 10.3).

A gateway whose buyer holds credits takes such a payment as a proof of who calls. Its signature stays with the gateway:
whoever has that could settle it. What a node says of it starts nothing and is no promise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tollkeeper.api import envelope, read_body, receive_chunks, send_answer
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code, invalid, missing
from tollkeeper.core.networks import Family, normalise
from tollkeeper.core.solana.base58 import decode_key
from tollkeeper.core.wallets import parse_address_of
from tollkeeper.core.x402.version1 import PaymentKey
from tollkeeper.hub.api.bodies import PaymentStanding
from tollkeeper.hub.api.facilitator import read_object
from tollkeeper.hub.families import require_answers_for, require_reachable
from tollkeeper.hub.refusals import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.hub.api.gateway_signature import Askers
    from tollkeeper.hub.families import AnyAccount
    from tollkeeper.hub.settlement.outcomes import SettlementRecords

_NONCES: Final = {Family.EVM: re.compile("0x[0-9a-f]{64}"), Family.SOLANA: re.compile("[0-9a-f]{64}")}


@dataclass(frozen=True, slots=True)
class Standings:
    """The endpoint over the hub's accounts (by network name)."""

    _accounts: Mapping[str, AnyAccount]
    _records: SettlementRecords
    _askers: Askers

    async def standing(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: unused on the chain, and not on record here? With the chain's moment (`AuthorizationStanding`)."""
        data = await read_body(receive_chunks(receive), scope["headers"])
        body = read_object(data)
        name = normalise(_text(body, "network")).name
        require_reachable(self._accounts, name)
        account = self._accounts.get(name)
        if account is None or account.chain.asset is None:
            supported = {"field": "network", "supported": sorted(self._accounts)}
            raise ApiError(Code.INVALID_NETWORK, "network is not enabled here", details=supported)
        key, blockhash = _identity(account, body)
        require_answers_for(account, await self._askers.of_question(scope, data))
        try:
            standing = await account.standing(key, blockhash)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        is_unused = standing.is_unused and not await self._records.has(key)
        await send_answer(send, 200, envelope(PaymentStanding(is_unused, standing.moment, standing.last)))


def _identity(account: AnyAccount, body: Mapping[str, object]) -> tuple[PaymentKey, str]:
    """Read the payment's identity and blockhash. Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_ADDRESS."""
    network, asset = account.chain.network, account.chain.require_asset()
    payer = parse_address_of(network.family, _text(body, "payer"), field="payer")
    nonce, blockhash = _text(body, "nonce").lower(), ""
    if not _NONCES[network.family].fullmatch(nonce):
        raise invalid("nonce", "nonce must be 32 bytes in hex")
    if parse_address_of(network.family, _text(body, "asset"), field="asset") != asset.address:
        raise invalid("asset", "asset must be the network's")
    if network.family is Family.SOLANA:
        blockhash = _text(body, "blockhash")
        try:
            decode_key(blockhash)
        except ValueError:
            raise invalid("blockhash", "blockhash must be 32 bytes in base58") from None
    return PaymentKey(network.name, asset.address, payer, nonce), blockhash


def _text(body: Mapping[str, object], name: str) -> str:
    value = body.get(name)
    if value is None:
        raise missing(name)
    if not isinstance(value, str):
        raise invalid(name, f"{name} must be a text")
    return value
