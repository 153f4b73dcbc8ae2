"""A payment on Solana for a wallet to sign: POST /api/v1/solana/transactions (contract 11).

A page has neither a node nor the means to make a transaction; what it is given is what clients make by themselves, and
nothing is charged before its wallet has signed it and the gate is shown it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import structlog
from litestar import Response

from tollkeeper.api import HttpRequest, json_body, ok, string_field
from tollkeeper.chains.replies import RpcUnavailable
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.networks import Family, normalise
from tollkeeper.core.solana.paying import TransferTerms, unsigned_payment
from tollkeeper.core.solana.programs import TOKEN_PROGRAM
from tollkeeper.core.solana.rules import SolanaAsset
from tollkeeper.core.wallets import parse_address_of
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.bodies import UnsignedPayment

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.networks import Network
    from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
    from tollkeeper.gateway.open_gate import Gates, OpenGate

_MEMO_SIZE_BYTES: Final = 16
_LOG = structlog.get_logger("tollkeeper.gateway.purchase.unsigned_payments")


async def _transaction(opened: OpenGate, network: Network, payer: str, nodes: TokenAccounts) -> str:
    """Return the transaction that pays the gate, in base64, with nobody's signature.

    Raises: INVALID_NETWORK, INVALID_ADDRESS, INVALID_PARAMETER, UNAVAILABLE.
    """
    if network.family is not Family.SOLANA or network.name not in opened.offers:
        raise ApiError(Code.INVALID_NETWORK, "the PayGate is not paid on that network of Solana")
    asset, asked = opened.asset_on(network.name), opened.offers[network.name].requirements
    if not isinstance(asset, SolanaAsset) or asset.token_program != TOKEN_PROGRAM:
        raise ApiError(Code.INVALID_NETWORK, "its token is of another program: pay it by a client of your own")
    wallet = parse_address_of(Family.SOLANA, payer, field="payer")
    terms = TransferTerms(asked.extra["feePayer"], asked.pay_to, asked.asset, asked.amount, network.usdc.decimals)
    memo = os.urandom(_MEMO_SIZE_BYTES).hex().encode()
    try:
        return unsigned_payment(terms, wallet, await nodes.blockhash(asset), memo).transaction
    except ValueError as error:
        raise invalid("payer", str(error)) from None
    except RpcUnavailable as error:
        _LOG.warning("node_unusable", network=network.name, reason=str(error))
        message = "no node of the network can be asked; nothing was charged, try again later"
        raise ApiError(Code.UNAVAILABLE, message) from error


def unsigned_payment_routes(gates: Gates, nodes: TokenAccounts) -> list[HTTPRouteHandler]:
    """Make the route handler; `nodes` know a blockhash."""

    @route(operations.UNSIGNED_PAYMENT)
    async def unsigned(request: HttpRequest) -> Response[bytes]:
        """Contract 11: free; nothing is charged before it is signed and shown."""
        body = await json_body(request)
        slug, network, payer = (string_field(body, name) for name in ("slug", "network", "payer"))
        named, opened = normalise(network), await gates.by_slug(slug)
        if (unsold := opened.unsold()) is not None:
            raise unsold
        transaction = await _transaction(opened, named, payer, nodes)
        return ok(UnsignedPayment(named.name, transaction), headers={"Cache-Control": "no-store"})

    return [unsigned]
