"""The buyer's free look at held credits: GET /api/v1/credits (contract 2, 4.3).

Shown to whoever presents the payment, its credit token, or a bearer of the payer; only the last is told the token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Request, Response

from tollkeeper.api import bearer_token, clock_ms, iso, page_parameters, pagination, query_of, unless_known
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.purchases import PurchaseState, credit_token, purchase_of_token
from tollkeeper.describing import route
from tollkeeper.gateway import operations
from tollkeeper.gateway.ownership import login_required

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.auth import Auth
    from tollkeeper.gateway.proofs import Proofs
    from tollkeeper.storage.purchase_rows import Purchase
    from tollkeeper.storage.purchases import Purchases


def credit_routes(
    purchases: Purchases, proofs: Proofs, auth: Auth, token_keys: Sequence[bytes]
) -> list[HTTPRouteHandler]:
    """The route handler."""

    async def held(request: Request[Any, Any, Any], limit: int, offset: int) -> tuple[list[dict[str, Any]], int]:
        headers = request.headers
        header = headers.get("x-payment")
        # Each is judged in any case: what is wrong is refused, and not passed over for a good token beside it.
        paid = None if header is None else proofs.read(header.encode("latin-1"))
        bearer = bearer_token(headers)
        wallet = None if bearer is None else (await auth.authenticate(bearer)).wallet
        token = headers.get("x-credit-token")
        if token is not None:
            purchase_id = purchase_of_token(token_keys, token)
            purchase = await purchases.by_id(purchase_id) if purchase_id else None
            if purchase is None:
                raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
            return part_of(await _one(purchase, wallet), limit, offset)
        if paid is not None:
            purchase = await purchases.by_payment(paid.key)
            return part_of([] if purchase is None else await _one(purchase, wallet), limit, offset)
        if wallet is None:
            raise login_required()
        mine, total = await purchases.of_payer(wallet, limit, offset)
        return [_balance(purchase, slug, wallet, token_keys) for purchase, slug in mine], total

    def part_of(found: list[dict[str, Any]], limit: int, offset: int) -> tuple[list[dict[str, Any]], int]:
        return found[offset : offset + limit], len(found)

    async def _one(purchase: Purchase, wallet: str | None) -> list[dict[str, Any]]:
        if purchase.state is PurchaseState.FAILED:
            return []
        return [_balance(purchase, await purchases.slug_of(purchase.gate_id), wallet, token_keys)]

    @route(operations.CREDITS)
    async def credits_held(request: Request[Any, Any, Any]) -> Response[bytes]:
        """Contract 2: free; spends nothing."""
        limit, offset = page_parameters(query_of(request))
        data, total = await held(request, limit, offset)
        page = pagination(total, limit, offset)
        return unless_known(request, {"data": data, "pagination": page}, {"Cache-Control": "no-store"})

    return [credits_held]


def _balance(purchase: Purchase, slug: str, wallet: str | None, token_keys: Sequence[bytes]) -> dict[str, Any]:
    """What `wallet`, whose bearer was sent, is told of it: to its payer its credit token, too (contract 2)."""
    own = {"creditToken": credit_token(token_keys[0], purchase.id)} if purchase.payer == wallet else {}
    is_over = purchase.expires_ms is not None and purchase.expires_ms <= clock_ms()
    remaining = purchase.remaining if purchase.state is PurchaseState.LIVE and not is_over else 0
    return {
        "slug": slug,
        "purchaseId": purchase.id,
        "granted": purchase.granted,
        "used": purchase.granted - purchase.remaining,
        "remaining": remaining,
        "expiresAt": None if purchase.expires_ms is None else iso(purchase.expires_ms),
        **own,
    }
