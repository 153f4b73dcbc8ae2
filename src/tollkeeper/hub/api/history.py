"""History and payment status of settlements for wallets and the public (specification 4.3; contract 2, 7).

History is JSON, and CSV where `Accept` prefers it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from litestar import Response
from litestar.params import FromPath
from msgspec import UNSET, to_builtins

from tollkeeper.api import (
    HttpRequest,
    bearer_token,
    iso,
    page_parameters,
    pagination,
    query_of,
    table_unless_known,
    unless_known,
)
from tollkeeper.core.api.csv_table import prefers_csv
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS, normalise
from tollkeeper.core.settlement.history_csv import history_csv
from tollkeeper.core.settlement.states import UNKNOWN_PAYMENT, Status, public_status
from tollkeeper.core.wallets import family_of, shown_address
from tollkeeper.describing import route
from tollkeeper.hub.api import operations
from tollkeeper.hub.api.bodies import HistoryPage, OneTransaction, PaymentStatusBody, ShownTransaction
from tollkeeper.storage.hub.settlements import (
    HistoryQuery,
    Settlement,
    find_named,
    find_payment,
    list_history,
    read_settlement,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.auth import Auth
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.storage.engine.database import Database

_ROLES: Final = {"": (True, True), "signer": (True, False), "recipient": (False, True)}
_NO_STORE: Final = {"Cache-Control": "no-store"}
# A payer can make any number of signatures of one message, and none of them shows whose or of what it is.
_NO_NAME: Final = (
    f"{UNKNOWN_PAYMENT} by this name: a payment has two, its message's hash (64 hex digits), and the one "
    "signature of its payer (base58) that it was settled with"
)
_TOKEN: Final = re.compile("0x[0-9a-fA-F]{40}")
_HEX: Final = re.compile("0[xX].*|[0-9a-fA-F]{64}")
_NEGOTIATED: Final = {**_NO_STORE, "Vary": "Accept"}


def history_routes(database: Database, auth: Auth) -> list[HTTPRouteHandler]:
    """Return the route handlers of history; each takes a bearer."""

    @route(operations.HISTORY)
    async def history(request: HttpRequest) -> Response[bytes]:
        """Specification 4.3: newest first; `limit` is required."""
        session = await auth.authenticate(bearer_token(request.headers))
        asked = query_of(request)
        limit, offset = page_parameters(asked, limit_required=True)
        query = _query(session.wallet, asked)
        rows, total = await list_history(database, query, limit, offset)
        items = [ShownTransaction(**history_terms(row)) for row in rows]
        if prefers_csv(request.headers.get("accept", "")):
            return _table(request, items, total)
        page = HistoryPage(success=True, history=items, pagination=pagination(total, limit, offset))
        return unless_known(request, page, _NEGOTIATED)

    @route(operations.TRANSACTION)
    async def one(request: HttpRequest, settlement_id: FromPath[str]) -> Response[bytes]:
        """Contract 2: for its signer or recipient; for anybody else it is not there."""
        session = await auth.authenticate(bearer_token(request.headers))
        row = await read_settlement(database, settlement_id)
        if row is None or session.wallet not in {row.key.payer, row.pay_to}:
            raise ApiError(Code.NOT_FOUND, "there is no such transaction in your history")
        if prefers_csv(request.headers.get("accept", "")):
            return _table(request, [ShownTransaction(**history_terms(row))], 1)
        return unless_known(request, OneTransaction(**history_terms(row)), _NEGOTIATED)

    return [history, one]


def _table(request: HttpRequest, items: list[ShownTransaction], total: int) -> Response[bytes]:
    return table_unless_known(request, history_csv(map(to_builtins, items)), total, _NEGOTIATED)


def status_routes(database: Database) -> list[HTTPRouteHandler]:
    """Return the public status of a payment; whoever knows payer and nonce may ask."""

    @route(operations.PAYMENT)
    async def payment_status(
        request: HttpRequest, network: FromPath[str], payer: FromPath[str], nonce: FromPath[str]
    ) -> Response[bytes]:
        """Contract 2: `status, transaction, network, amount, payer, payTo, updatedAt`."""
        known, asset = normalise(network), query_of(request).get("asset")
        if asset is not None and _TOKEN.fullmatch(asset) is None:
            raise invalid("asset", "asset must be a token's address: 0x and 40 hex digits")
        row = await find_payment(database, known.name, _in_lower_case(payer), nonce.lower(), (asset or "").lower())
        if row is None:
            raise ApiError(Code.NOT_FOUND, UNKNOWN_PAYMENT)
        body = status_body(row)
        return unless_known(request, body, _NO_STORE)

    @route(operations.NAMED_PAYMENT)
    async def named_status(request: HttpRequest, network: FromPath[str], name: FromPath[str]) -> Response[bytes]:
        """Contract 2: as above, by the message's hash in hex or the payer's signature in base58."""
        known = normalise(network)
        row = await find_named(database, known.name, _in_lower_case(name))
        if row is None:
            raise ApiError(Code.NOT_FOUND, _NO_NAME)
        return unless_known(request, status_body(row), _NO_STORE)

    return [payment_status, named_status]


def _in_lower_case(name: str) -> str:
    """Return hex in lower case, as its case says nothing. The case of a Solana address or signature is kept."""
    return name.lower() if _HEX.fullmatch(name) else name


def status_body(row: Settlement) -> PaymentStatusBody:
    """Return the public status: the hash is that of the transaction in question, "" before there is one."""
    return PaymentStatusBody(
        status=public_status(row.state),
        transaction=row.told_hash,
        network=row.key.network,
        amount=str(row.value),
        payer=shown_address(row.key.payer),
        pay_to=shown_address(row.pay_to),
        updated_at=iso(row.updated_ms),
        id=row.id,
        error=row.error,
    )


def history_terms(row: Settlement) -> JsonObject:
    """Return the fields of a history item (specification 2.5; contract 7).

    The hash is shown once the status is no longer pending (specification 3).
    """
    payment, requirements = json.loads(row.payment), json.loads(row.requirements)
    status, payer = public_status(row.state), shown_address(row.key.payer)
    return {
        "id": row.id,
        "created_at": iso(row.created_ms),
        "updated_at": iso(row.updated_ms),
        "signer_address": payer,
        "amount": str(row.value),
        "network": row.key.network,
        "chain_id": NETWORKS[row.key.network].chain_id,
        "transaction_hash": None if status is Status.PENDING else row.told_hash or None,
        "status": status,
        "error": row.error,
        "type": row.kind,
        "x402_data": {
            "x402Version": payment["x402Version"],
            "scheme": payment["scheme"],
            "network": row.key.network,
            "asset": shown_address(row.key.asset),
            "payer": payer,
            "payTo": shown_address(row.pay_to),
            "value": str(row.value),
            **FAMILIES[family_of(row.key.payer)].history_terms(payment["payload"], row.key.nonce),
            "resource": requirements["resource"],
            "maxAmountRequired": requirements["maxAmountRequired"],
            "confirm": row.confirm,
        },
        "purchase_data": UNSET if row.purchase_data is None else json.loads(row.purchase_data),
    }


def _query(wallet: str, asked: Mapping[str, str]) -> HistoryQuery:
    role = asked.get("role", "")
    if role not in _ROLES:
        raise invalid("role", "role must be signer or recipient")
    as_signer, as_recipient = _ROLES[role]
    name = asked.get("network")
    network = "" if name is None else normalise(name).name
    return HistoryQuery(wallet, as_signer, as_recipient, network)
