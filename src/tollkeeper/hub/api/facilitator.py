"""`/supported`, `/verify` and `/settle` on bare ASGI (specification 4.4; contract 2, 5.1, 5.2).

These are the hot paths: no framework between socket and rule. A refused payment is an answer of status 200 with a
reason, as every x402 client expects; a request that cannot be read is a 400. The rules are `core.x402.verification`'s;
the cheap ones come before any question to a node.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

import structlog

from tollkeeper.api import (
    envelope,
    once_each,
    parse_json_object,
    read_body,
    receive_chunks,
    send_answer,
    send_unless_known,
)
from tollkeeper.core.api.bodies import Settled
from tollkeeper.core.api.errors import ApiError
from tollkeeper.core.api.strict_json import parse_json_around
from tollkeeper.core.families import row_of
from tollkeeper.core.networks import ALIASES, CAIP2_NAMES, NETWORKS
from tollkeeper.core.settlement.states import SettlementKind
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.verification import Check, Reason, form_checks
from tollkeeper.core.x402.version1 import SCHEME, X402_VERSION, Payment
from tollkeeper.hub.api.answers import pending_body, refused_unread, settled_body, verdict_body
from tollkeeper.hub.api.bodies import PendingSettlement, SupportedKind, SupportedKinds
from tollkeeper.hub.api.gateway_signature import read_headers
from tollkeeper.hub.api.requests import (
    Arrival,
    parse_asked,
    parse_kind,
    parse_settle_options,
    parse_versions,
    read_plain,
    waiting_request,
)
from tollkeeper.hub.api.withdrawal import settle_or_withdraw
from tollkeeper.hub.families import AnyAccount, enabled_assets, require_answers_for, require_reachable
from tollkeeper.hub.settlement.orders import Order, refusal, requirements_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.solana.rules import SolanaAsset
    from tollkeeper.core.x402.verification import EvmAsset
    from tollkeeper.hub.api.gateway_signature import Askers, GatewaySignature
    from tollkeeper.hub.families import AnyOrder, FamilyDispatch
    from tollkeeper.hub.refusals import LogThrottle
    from tollkeeper.hub.settlement.orders import SettleOutcome
    from tollkeeper.hub.settlement.requests import Asker, RequestedPayment, SettleOptions

_LOG = structlog.get_logger("tollkeeper.hub")
# Rules without which the payment has no meaning on any chain.
_FORM: Final = frozenset({"network", "payload"})
_VERSIONS: Final = [X402_VERSION, version2.VERSION]


@dataclass(frozen=True, slots=True)
class Facilitator:
    """The three protocol endpoints over the hub's accounts (by network name)."""

    _accounts: Mapping[str, AnyAccount]
    _settlements: FamilyDispatch
    _askers: Askers  # whose signature lets `purchaseData` into the history, and whose share a request takes
    _clock_ms: Callable[[], int]
    _telling: LogThrottle

    async def supported(self, scope: HTTPScope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """GET: what can be paid here, in the form that all official clients read."""
        await send_unless_known(send, scope, self.supported_body())

    async def verify(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: would this payment settle now? `?explain=true` lists every check."""
        data = await read_body(receive_chunks(receive), scope["headers"])
        explain = is_explained(scope["query_string"])
        plain = read_plain(data)
        is_ours = plain is not None and plain.payment.scheme == SCHEME and plain.payment.network in NETWORKS
        asked = plain if plain is not None and is_ours else _readable(read_object(data), self._assets())
        if isinstance(asked, Check):
            await send_answer(send, 200, envelope(verdict_body(asked, None, [asked] if explain else None)))
            return
        asker = await self._askers.of_question(scope, data)
        checks = await self._checks(asked, asker, explain=explain)
        failed = next((check for check in checks if not check.ok), None)
        before = None
        if failed is not None and failed.reason in row_of(asked.payment).shown_by_nodes:
            before = await self._settlements.prior(self._account(asked.payment), asked.payment, failed.reason)
            if before is not None and failed.reason is not before.reason:  # what the node names only followed from it
                wanted, found = "not carried out yet", before.transaction
                failed = Check("unsettled", ok=False, reason=before.reason, expected=wanted, actual=found)
                checks.append(failed)
        verdict = verdict_body(failed, row_of(asked.payment).payer_of(asked.payment), checks if explain else None)
        if before is not None:
            verdict.transaction = before.transaction
        await send_answer(send, 200, envelope(verdict))

    async def settle(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: settle the payment, once (contract 5.2)."""
        arrival = Arrival(asyncio.get_running_loop().time(), self._clock_ms())
        data = await read_body(receive_chunks(receive), scope["headers"])
        body = read_object(data)
        headers = read_headers(scope)
        asked = _readable(body, self._assets())
        options = parse_settle_options(body, None if isinstance(asked, Check) else asked, headers)
        if isinstance(asked, Check):
            await send_answer(send, 200, envelope(refused_unread(body, asked)))
            return
        signature = await self._askers.signature(scope, headers, data, options.purchase_data)
        require_reachable(self._accounts, asked.payment.network)
        asker = self._askers.of(scope, signature, body)
        request = waiting_request(scope, options, signature, asked.payment, asker, arrival)
        asked, failed = await self._judged(asked, asker)
        purchase_data = self._purchase_data(options, signature)
        hashed = requirements_hash(asked.requirements, asked.x402_version)
        try:
            if failed is not None:
                records, refused = self._settlements.records, refusal(failed.reason.value)
                known = await records.of_same(asked.payment, hashed, request)
                outcome = known or await records.refused(asked.payment, request, refused, purchase_data)
            else:
                account = self._account(asked.payment)
                key, payload = account.identified(asked.payment)
                order = Order(
                    account,
                    key,
                    payload,
                    payment=asked.payment,
                    requirements=asked.requirements,
                    request=request,
                    kind=SettlementKind.PURCHASE,
                    purchase_data=purchase_data,
                    requirements_hash=hashed,
                )
                outcome = await self._settled(order, arrival.loop_seconds + options.patience_seconds)
        except ApiError as error:
            answer: PendingSettlement | Settled = pending_body(asked, error)
        else:
            answer = settled_body(asked.payment, asked.requirements.amount, outcome, use_db_id=options.use_db_id)
        await send_answer(send, 200, envelope(answer))

    async def _settled(self, order: AnyOrder, until: float) -> SettleOutcome:
        """Settle an order for a caller who waits until then (event loop time). Raises: as `FamilyDispatch.settle`."""
        if order.payment.x402_version == version2.VERSION:
            return await settle_or_withdraw(self._settlements, order, until)
        return await self._settlements.settle(order)

    def _purchase_data(self, options: SettleOptions, signature: GatewaySignature) -> dict[str, object] | None:
        """Return the purchase data that is believed: a trusted gateway's of itself. It refuses no payment.

        Of a request that came too late, too: nothing is started for it, and whose next try it is was so all the same.
        """
        data = options.purchase_data
        if data is None or not signature.gateways:
            return None
        if signature.speaks_for(data):
            return data
        if self._telling.is_due("purchase_data_names_another_gateway"):
            _LOG.warning("purchase_data_names_another_gateway", gateways=sorted(signature.gateways))
        return None

    async def _judged(self, asked: RequestedPayment, asker: Asker) -> tuple[RequestedPayment, Check | None]:
        """Return the request with its payment as the token takes it, and the first rule that it breaks, if any.

        Of those that no simulation judges. Raises: UNAVAILABLE.
        """
        failed = next((check for check in self._static_checks(asked, None) if not check.ok), None)
        if failed is not None:
            return asked, failed
        require_answers_for(self._account(asked.payment), asker)
        payment, signed = await self._account(asked.payment).authorized(asked.payment)
        return asked._replace(payment=payment), None if signed.ok else signed

    def _account(self, payment: Payment) -> AnyAccount:
        """Return the account for a payment whose form was checked."""
        return self._accounts[ALIASES.get(payment.network, payment.network)]

    def supported_body(self) -> SupportedKinds:
        """`kinds` of version 2, then those of version 1, once per name that its clients may send; what else is here."""
        kinds: list[SupportedKind] = []
        former: list[SupportedKind] = []
        signers: dict[str, list[str]] = {}
        now_seconds = self._clock_ms() // 1000
        for name, asset in self._assets().items():
            account = self._accounts[name]
            shown, extra = account.kind(now_seconds)
            kinds.append(SupportedKind(2, "exact", asset.network.caip2, [shown], extra))
            names = dict.fromkeys((asset.network.v1_name, name))
            former.extend(SupportedKind(1, "exact", one, [shown], extra) for one in names)
            pattern, addresses = account.caip_signers
            known = signers.setdefault(pattern, [])
            known.extend(address for address in addresses if address not in known)
        return SupportedKinds(kinds + former, ["confirm"], signers)

    def _assets(self) -> dict[str, EvmAsset | SolanaAsset]:
        return enabled_assets(self._accounts)

    def _static_checks(self, asked: RequestedPayment, now_seconds: int | None) -> Iterator[Check]:
        """Return every rule that needs no node, in order; it ends at a form that the next ones could not read."""
        version = asked.x402_version
        is_known = version in _VERSIONS
        wanted: object = version if is_known else _VERSIONS
        yield Check("request.x402Version", is_known, Reason.X402_VERSION, wanted, version)
        is_formed = True
        for check in form_checks(asked.payment, self._assets(), version=version if is_known else X402_VERSION):
            yield check
            is_formed = is_formed and (check.ok or check.name not in _FORM)
        if is_formed:
            yield from self._account(asked.payment).static_checks(asked, now_seconds)

    async def _checks(self, asked: RequestedPayment, asker: Asker, *, explain: bool) -> list[Check]:
        """The rules in order, up to the first that fails; with `explain`, all that can be judged.

        Raises: UNAVAILABLE.
        """
        require_reachable(self._accounts, asked.payment.network)
        checks: list[Check] = []
        now_seconds = self._clock_ms() // 1000
        for check in self._static_checks(asked, now_seconds):
            checks.append(check)
            if not check.ok and not explain:
                return checks
        if any(not check.ok and check.name in _FORM for check in checks):
            return checks
        require_answers_for(self._account(asked.payment), asker)
        live = await self._account(asked.payment).live_checks(asked, now_seconds)
        # What was judged by our clock and then by the chain's is told once, as the chain has it.
        return list({check.name: check for check in (*checks, *live)}.values())


def is_explained(query: bytes) -> bool:
    """Does the query string ask for `explain=true`? Raises: INVALID_PARAMETER for a parameter that comes twice."""
    return (
        bool(query) and once_each(parse_qsl(query.decode("latin-1"), keep_blank_values=True)).get("explain") == "true"
    )


def read_object(data: bytes) -> dict[str, object]:
    """Read a request's body, in which sellers may have put anything beside what counts. Raises: INVALID_PARAMETER."""
    return parse_json_object(data, parse_json_around)


def _readable(body: dict[str, object], assets: Mapping[str, EvmAsset | SolanaAsset]) -> RequestedPayment | Check:
    """Read the request; or fail a version, scheme or network that is not ours: the rest may have any shape."""
    try:
        return _of_our_kind(body, assets)
    except ApiError:
        version = body.get("x402Version")
        if type(version) is int and version not in _VERSIONS:  # whose members nobody knows
            return Check("x402Version", ok=False, reason=Reason.X402_VERSION, expected=_VERSIONS, actual=version)
        asked, paid = parse_versions(body)
        if asked == paid:
            raise
        return Check("x402Version", ok=False, reason=Reason.X402_VERSION, expected=asked, actual=paid)


def _of_our_kind(body: dict[str, object], assets: Mapping[str, EvmAsset | SolanaAsset]) -> RequestedPayment | Check:
    is_version_2 = body.get("x402Version") == version2.VERSION
    if is_version_2:
        asked, paid = parse_versions(body)
        if asked != paid:
            return Check("x402Version", ok=False, reason=Reason.X402_VERSION, expected=asked, actual=paid)
    scheme, network, required = parse_kind(body)
    if scheme != SCHEME:
        return Check("scheme", ok=False, reason=Reason.SCHEME, expected=SCHEME, actual=scheme)
    if not (network in CAIP2_NAMES if is_version_2 else ALIASES.get(network, network) in NETWORKS):
        named = sorted(asset.network.caip2 if is_version_2 else name for name, asset in assets.items())
        return Check("network", ok=False, reason=Reason.NETWORK, expected=named, actual=network)
    if is_version_2 and required.network != network:
        return Check("requirements.network", ok=False, reason=Reason.NETWORK, expected=network, actual=required.network)
    return parse_asked(body)
