"""`/transfer`: carry out a signed authorization or transaction to any recipient (specification 4.4; contract 5.1).

It has no requirements, and goes the way of every settlement: one payment is moved once, whichever of `/settle` and
`/transfer` asks for it. What is refused is a 400 with a code of specification 7; an outcome that nobody knows yet is a
503, as of `/settle`. Only a transaction of ours that failed on the chain answers 200, `status: "failed"` and its hash.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tollkeeper.api import envelope, read_body, receive_chunks, send_answer
from tollkeeper.core.api.errors import ApiError, Code, invalid, missing, payment_error
from tollkeeper.core.families import FAMILIES
from tollkeeper.core.networks import NETWORKS, normalise
from tollkeeper.core.settlement.states import SettlementKind
from tollkeeper.core.wallets import parse_address_of
from tollkeeper.core.x402.verification import Reason, code_of_reason, form_checks, require
from tollkeeper.core.x402.version1 import (
    SCHEME,
    X402_VERSION,
    Payment,
    is_text,
    member_object,
    parse_payload,
    parse_uint256,
)
from tollkeeper.hub.api.answers import settled_body
from tollkeeper.hub.api.facilitator import read_object
from tollkeeper.hub.api.gateway_signature import read_headers
from tollkeeper.hub.api.requests import Arrival, parse_options, waiting_request
from tollkeeper.hub.families import enabled_assets, require_answers_for, require_reachable
from tollkeeper.hub.settlement.orders import Order, refusal
from tollkeeper.hub.settlement.requests import RequestedTransfer, canonical_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.networks import Family
    from tollkeeper.hub.api.gateway_signature import Askers
    from tollkeeper.hub.families import AnyAccount, AnyOrder, FamilyDispatch
    from tollkeeper.hub.settlement.orders import SettleOutcome
    from tollkeeper.hub.settlement.requests import WaitingRequest

_FAULTS: Final = 500
# A transaction that was sent and failed is an outcome (200); everything else that is no success is a refusal (400).
_SENT_AND_FAILED: Final = frozenset(row.failed_on_chain.value for row in FAMILIES.values())


def parse_transfer(body: dict[str, object], accounts: Mapping[str, AnyAccount]) -> RequestedTransfer:
    """Read the request.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_NETWORK, INVALID_ADDRESS, INVALID_AMOUNT; UNAVAILABLE for a
    network of ours whose node has not answered yet.
    """
    if body.get("x402Version", X402_VERSION) != X402_VERSION or isinstance(body.get("x402Version"), bool):
        raise invalid("x402Version", f"x402Version must be {X402_VERSION}")
    network = body.get("network")
    if network is None:
        raise missing("network")
    if not is_text(network):
        raise invalid("network", "network must be a string")
    name = normalise(network).name
    require_reachable(accounts, name)
    try:
        return _parse_terms(body, network, NETWORKS[name].family)
    except ApiError:
        _require_enabled(accounts, name)  # else it does not matter how the rest is spelled
        raise


def _require_enabled(accounts: Mapping[str, AnyAccount], name: str) -> None:
    """Raises: INVALID_NETWORK."""
    enabled = enabled_assets(accounts)
    if name not in enabled:
        details = {"field": "network", "supported": sorted(enabled)}
        raise ApiError(Code.INVALID_NETWORK, "this hub settles nothing on that network", details=details)


def _parse_terms(body: dict[str, object], network: str, family: Family) -> RequestedTransfer:
    for required in FAMILIES[family].transfer_members:
        if body.get(required) is None:
            raise missing(required)
    payload = member_object(body, "payload")
    if body.get("asset") is None:
        raise missing("asset")
    amount, recipient = body.get("amount"), body.get("recipient")
    return RequestedTransfer(
        payment=Payment(X402_VERSION, SCHEME, network, parse_payload(payload)),
        asset=parse_address_of(family, body["asset"], field="asset"),
        amount=None if amount is None else parse_uint256(amount, "amount", number_too=True),
        recipient=None if recipient is None else parse_address_of(family, recipient, field="recipient"),
    )


@dataclass(frozen=True, slots=True)
class Transfers:
    """The endpoint, over the hub's accounts (by network name)."""

    _accounts: Mapping[str, AnyAccount]
    _settlements: FamilyDispatch
    _askers: Askers
    _clock_ms: Callable[[], int]

    async def transfer(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: carry the authorization out, once."""
        arrival = Arrival(asyncio.get_running_loop().time(), self._clock_ms())
        data = await read_body(receive_chunks(receive), scope["headers"])
        body = read_object(data)
        headers = read_headers(scope)
        asked = parse_transfer(body, self._accounts)
        options = parse_options(body, headers, asked.body())
        signature = await self._askers.signature(scope, headers, data)
        # It is any stranger's, whoever asks for it.
        asker = replace(self._askers.of(scope, signature, body), is_trusted=False)
        request = waiting_request(scope, options, signature, asked.payment, asker, arrival)
        try:
            order = await self._order(asked, request)
        except ApiError as refused:
            if refused.status >= _FAULTS:
                raise
            outcome = await self._instead_of(refused, asked, request)
            if outcome is None or (not outcome.success and outcome.reason == _reason_of(refused)):
                raise
        else:
            outcome = await self._settlements.settle(order)
        answer = settled_body(asked.payment, asked.amount or 0, outcome, use_db_id=options.use_db_id)
        if not outcome.success and outcome.reason not in _SENT_AND_FAILED:
            raise _refused(outcome, answer.transaction)
        await send_answer(send, 200, envelope(answer))

    async def _instead_of(
        self, refused: ApiError, asked: RequestedTransfer, request: WaitingRequest
    ) -> SettleOutcome | None:
        """Return the outcome of the same earlier request, which goes on, whatever is taken by now; else the refusal.

        The refusal is kept with its key: as for `/settle`, an earlier copy may come later. None for what can never be
        taken. Raises: CONFLICT, SETTLEMENT_PENDING.
        """
        records, hashed, reason = self._settlements.records, canonical_hash(asked.body()), _reason_of(refused)
        known = await records.of_same(asked.payment, hashed, request)
        if known is not None or reason is None:
            return known
        return await records.refused(asked.payment, request, refusal(reason), None)

    async def _order(self, asked: RequestedTransfer, request: WaitingRequest) -> AnyOrder:
        """Return the transfer as it is to be carried out. Raises: the first rule that it breaks; UNAVAILABLE."""
        name = normalise(asked.payment.network).name
        _require_enabled(self._accounts, name)
        account = self._accounts[name]
        require(form_checks(asked.payment, enabled_assets(self._accounts)))
        require(account.transfer_checks(asked))
        require_answers_for(account, request.asker)
        payment, signed = await account.authorized(asked.payment)
        require([signed])
        key, payload = account.identified(payment)
        return Order(
            account,
            key,
            payload,
            payment=payment,
            requirements=account.own_requirements(asked),
            request=request,
            kind=SettlementKind.TRANSFER,
            purchase_data=None,
            requirements_hash=canonical_hash(asked.body()),
        )


def _reason_of(refused: ApiError) -> str | None:
    """Return the rule that a request breaks, as a facilitator names it; None where there is nothing to transfer."""
    if refused.code is Code.INVALID_NETWORK:
        return Reason.NETWORK.value
    reason: str | None = (refused.details or {}).get("reason")
    return reason


def _refused(outcome: SettleOutcome, transaction: str) -> ApiError:
    """Return the 400 with specification 7's code; `details` name the reason and the transaction, where there is one."""
    details = {"reason": outcome.reason, **({"transaction": transaction} if transaction else {})}
    return payment_error(code_of_reason(outcome.reason), f"the transfer was refused: {outcome.reason}", details=details)
