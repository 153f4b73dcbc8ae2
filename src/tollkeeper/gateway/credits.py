"""The buyer's free look at held credits: GET /api/v1/credits (contract 2, 4.3).

Shown to whoever presents the payment as its payer signed it, its credit token, or a bearer of the payer; only the last
is told the token. A payment's name stands on the chain: with a signature of nobody's it tells as much as no purchase.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TYPE_CHECKING

from litestar import Response
from msgspec import UNSET

from tollkeeper.api import HttpRequest, bearer_token, clock_ms, iso, page_parameters, pagination, query_of, unless_known
from tollkeeper.core.api.errors import ApiError, Code, login_required
from tollkeeper.core.purchases import PurchaseState, credit_token, purchase_of_token
from tollkeeper.core.x402.version2 import PAYMENT_HEADERS
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.bodies import CreditBalance, CreditPage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.auth import Auth
    from tollkeeper.core.payment_offers import PresentedPayment
    from tollkeeper.gateway.call.payment_header import PaymentReader
    from tollkeeper.storage.ledger.purchase_rows import Purchase
    from tollkeeper.storage.ledger.purchases import Purchases


@dataclass(frozen=True, slots=True)
class Balances:
    """Held credits, as they are told. `wallet` is everywhere whose bearer was sent, None for nobody's."""

    purchases: Purchases
    token_keys: Sequence[bytes]

    async def by_token(self, token: str, wallet: str | None) -> list[CreditBalance]:
        """The purchase whose credit token it is. Raises: CREDIT_TOKEN_REQUIRED."""
        purchase_id = purchase_of_token(self.token_keys, token)
        purchase = await self.purchases.by_id(purchase_id) if purchase_id else None
        if purchase is None:
            raise ApiError(Code.CREDIT_TOKEN_REQUIRED, "the credit token is not one of ours")
        return await self._one(purchase, wallet)

    async def by_payment(self, paid: PresentedPayment, wallet: str | None) -> list[CreditBalance]:
        """The purchase that the payment bought, where it is shown as its payer signed it."""
        purchase = await self.purchases.by_payment(paid.key)
        return [] if purchase is None or not _is_proof(paid, purchase, wallet) else await self._one(purchase, wallet)

    async def by_wallet(self, wallet: str, limit: int, offset: int) -> tuple[list[CreditBalance], int]:
        """A page of the wallet's purchases, and how many there are."""
        mine, total = await self.purchases.of_payer(wallet, limit, offset)
        return [_balance(purchase, slug, wallet, self.token_keys) for purchase, slug in mine], total

    async def _one(self, purchase: Purchase, wallet: str | None) -> list[CreditBalance]:
        if purchase.state in {PurchaseState.FAILED, PurchaseState.SHOWN}:
            return []
        return [_balance(purchase, await self.purchases.slug_of(purchase.gate_id), wallet, self.token_keys)]


def credit_routes(balances: Balances, proofs: PaymentReader, auth: Auth) -> list[HTTPRouteHandler]:
    """The route handler."""

    async def held(request: HttpRequest, limit: int, offset: int) -> tuple[list[CreditBalance], int]:
        headers = request.headers
        shown = {name: headers[name.decode()].encode("latin-1") for name in PAYMENT_HEADERS if name.decode() in headers}
        token = headers.get("x-credit-token")
        # Each is judged in any case: what is wrong is refused, and not passed over for a good token beside it.
        paid = proofs.read(shown) if shown else None
        bearer = bearer_token(headers)
        wallet = None if bearer is None else (await auth.authenticate(bearer)).wallet
        if token is not None:
            found = await balances.by_token(token, wallet)
        elif paid is not None:
            found = await balances.by_payment(paid, wallet)
        elif wallet is not None:
            return await balances.by_wallet(wallet, limit, offset)
        else:
            raise login_required()
        return found[offset : offset + limit], len(found)

    @route(operations.CREDITS)
    async def credits_held(request: HttpRequest) -> Response[bytes]:
        """Contract 2: free; spends nothing."""
        limit, offset = page_parameters(query_of(request))
        data, total = await held(request, limit, offset)
        page = CreditPage(data, pagination(total, limit, offset))
        return unless_known(request, page, {"Cache-Control": "no-store"})

    return [credits_held]


def _is_proof(paid: PresentedPayment, purchase: Purchase, wallet: str | None) -> bool:
    """Tell whether the payment was signed by its payer. A contract wallet's was judged when these very bytes bought."""
    is_bought_by = hmac.compare_digest(paid.header_hash, purchase.header_hash)
    return paid.offered.is_signed_by_key or is_bought_by or wallet == purchase.payer


def _balance(purchase: Purchase, slug: str, wallet: str | None, token_keys: Sequence[bytes]) -> CreditBalance:
    """Tell `wallet`, whose bearer was sent, what is held: to its payer its credit token, too (contract 2)."""
    is_over = purchase.expires_ms is not None and purchase.expires_ms <= clock_ms()
    remaining = purchase.remaining if purchase.state is PurchaseState.LIVE and not is_over else 0
    return CreditBalance(
        slug,
        purchase.id,
        granted=purchase.granted,
        used=purchase.granted - purchase.remaining,
        remaining=remaining,
        expires_at=None if purchase.expires_ms is None else iso(purchase.expires_ms),
        credit_token=credit_token(token_keys[0], purchase.id) if purchase.payer == wallet else UNSET,
    )
