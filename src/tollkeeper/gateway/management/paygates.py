"""Management of PayGates: create, list, read, update, claim, delete (specification 4.1; contract 2, 3)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from litestar import Response

from tollkeeper.api import (
    HttpRequest,
    bearer_token,
    clock_ms,
    iso,
    json_body,
    ok,
    page_parameters,
    pagination,
    parse_json_object,
    query_of,
    read_body,
    unless_known,
)
from tollkeeper.core.api.errors import ApiError, Code, invalid, missing
from tollkeeper.core.limits import SEARCH_LENGTH
from tollkeeper.core.paygates.challenge import client_warnings
from tollkeeper.core.paygates.fields import HeaderAuthMode, Recipient, parse_fields
from tollkeeper.core.paygates.model import (
    Counters,
    CreateDefaults,
    PayGate,
    Trust,
    check_fields_before_file,
    parse_create,
    updated,
)
from tollkeeper.core.paygates.target_signing import KEY_ID_SIZE_BYTES, SECRET_SIZE_BYTES, HmacSecret, new_secret
from tollkeeper.core.usdc import format_usdc
from tollkeeper.describing import route
from tollkeeper.gateway.management import operations
from tollkeeper.gateway.management.bodies import Deleted, SecretBody
from tollkeeper.gateway.management.gate_answers import paygate_body, trust_body
from tollkeeper.gateway.management.idempotency import creation_key, key_among
from tollkeeper.gateway.management.owner_bodies import TargetTested
from tollkeeper.gateway.management.ownership import management_hash, new_management_token
from tollkeeper.gateway.management.uploads import is_form
from tollkeeper.storage.gateway.creations import CreatedBeforeError
from tollkeeper.storage.gateway.paygates import Once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.core.http.client_addresses import ClientAddresses
    from tollkeeper.core.http.target_addresses import TargetUrl
    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.downloads import StoredFile
    from tollkeeper.edge.target.addresses import Resolver
    from tollkeeper.gateway.evidence.nodes import EvidenceNodes
    from tollkeeper.gateway.evidence.token_accounts import TokenAccounts
    from tollkeeper.gateway.facilitator.client import Supported
    from tollkeeper.gateway.management.ownership import GateManager, Ownership
    from tollkeeper.gateway.management.target_probe import TargetProbe
    from tollkeeper.gateway.management.uploads import Uploads
    from tollkeeper.gateway.open_gate import Gates
    from tollkeeper.gateway.traffic import Traffic
    from tollkeeper.storage.gateway.creations import CreationKey
    from tollkeeper.storage.gateway.paygates import Authority, PayGates

_MANAGEMENT_TOKEN_BYTES: Final = 32
_TESTED: Final = ("target_url", "methods", "target_headers")
_STATES: Final = {"": None, "enabled": True, "disabled": False}


@dataclass(frozen=True, slots=True)
class GateFilter:
    """The gates of a listing: those with `text` in title or slug, those that are enabled or are not."""

    text: str = ""
    enabled: bool | None = None

    @classmethod
    def of(cls, query: Mapping[str, str]) -> GateFilter:
        """Read `q` and `state` of a query. Raises: INVALID_PARAMETER."""
        text, state = query.get("q", ""), query.get("state", "")
        if len(text) > SEARCH_LENGTH:
            raise invalid("q", f"q has more than {SEARCH_LENGTH} characters")
        if state not in _STATES:
            raise invalid("state", "state must be enabled or disabled")
        return cls(text, _STATES[state])


@dataclass(frozen=True, slots=True, kw_only=True)
class Management:
    """Verbs behind the routes of PayGates."""

    store: PayGates
    gates: Gates
    ownership: Ownership
    resolver: Resolver
    traffic: Traffic
    supported: Callable[[], Supported]
    evidence: EvidenceNodes
    token_accounts: TokenAccounts
    target_probe: TargetProbe
    default_network: str
    default_payment_address: str | None
    min_price_micro: int
    clients: ClientAddresses

    async def create(
        self, caller: GateManager, body: JsonObject, file: StoredFile | None = None, *, key: str | None = None
    ) -> JsonObject:
        """A new gate; without an owner its management token is in the answer, once, and so is a secret to sign with.

        `key`: the answer of an earlier request with it is given again, where that was the same one.
        """
        self.ownership.may_create(caller)
        once = creation_key(key, caller, body, file)
        known = None if once is None else await self.store.created_before(once, clock_ms())
        if known is None:
            try:
                return await self._create(caller, body, file, once)
            except CreatedBeforeError as before:
                known = before.answer
        answer: JsonObject = json.loads(known)
        return answer

    async def _create(
        self, caller: GateManager, body: JsonObject, file: StoredFile | None, key: CreationKey | None
    ) -> JsonObject:
        defaults = CreateDefaults(
            self.default_network, self.default_payment_address, self._forbidden(), creator_wallet=caller.wallet
        )
        new = parse_create(body, defaults, file)
        self._check_price(new.fields["price_micro"])
        recipients = (Recipient(new.fields["network"], new.fields["payment_address"]), *new.fields["accepts"])
        self._check_recipients(recipients, assume_valid=new.fields["assume_valid"])
        target = None if file is not None else await self.resolver.check_target(new.fields["target_url"], caller.tenant)
        token = None
        if caller.wallet is None and self.ownership.anonymous != "manage":
            token = new_management_token(os.urandom(_MANAGEMENT_TOKEN_BYTES))
        hashed = None if token is None else management_hash(token)
        secret = self._new_secret() if new.fields["header_auth_mode"] is HeaderAuthMode.HMAC else None
        shown: JsonObject = {} if secret is None else _shown(secret)
        if token is not None:
            shown["managementToken"] = token
        warned = await self._warned(
            recipients, target=target, target_headers=new.fields["target_headers"], tenant=caller.tenant
        )

        def answer(gate: PayGate) -> JsonObject:
            return {**self._body(gate, Counters()), **shown, **self._all_warnings(gate, warned)}

        once = None if key is None else Once(key, lambda gate: json.dumps(answer(gate)).encode())
        by = await self.ownership.authority(caller)
        return answer(await self.store.create(new, caller.wallet, hashed, clock_ms(), secret, once, by=by))

    def _new_secret(self) -> HmacSecret:
        return new_secret(os.urandom(SECRET_SIZE_BYTES + KEY_ID_SIZE_BYTES))

    def _forbidden(self) -> frozenset[str]:
        supported = self.supported()
        return supported.signers | {asset.address for asset in supported.assets.values()}

    def _check_price(self, price_micro: int) -> None:
        """Raises: INVALID_AMOUNT for a price that is not worth its settlement."""
        if price_micro < self.min_price_micro:
            least = format_usdc(self.min_price_micro)
            raise ApiError(
                Code.INVALID_AMOUNT,
                f"price must be at least {least} here (the operator's setting min_price)",
                details={"field": "price", "minimum": least},
            )

    def _check_recipients(
        self, recipients: Sequence[Recipient], *, assume_valid: bool, before: PayGate | None = None
    ) -> None:
        """The first one is of the gate's own network, the others are of its `accepts`.

        Of an update only what it changes: what the gate has already was allowed, and a network that is away returns.
        """
        new = {
            one: "accepts" if at else "paymentAddress" if before and one.network == before.network else "network"
            for at, one in enumerate(recipients)
            if before is None or one not in before.recipients
        }
        unconfirmed = [one for one in recipients if one in new or (before is not None and before.assume_valid)]
        if new or (unconfirmed and not assume_valid):
            self._check_networks({one.network: field for one, field in new.items()})
        for one in unconfirmed:
            self._check_trust(one.network, assume_valid=assume_valid)

    def _check_networks(self, named: Mapping[str, str]) -> None:
        """Each network with the field that names it."""
        enabled = self.supported().assets
        if not enabled:  # it starts, or its node does: what is said of a network now may be wrong in a moment
            raise ApiError(Code.UNAVAILABLE, "the payment hub names no network at the moment")
        for network, field in named.items():
            if network not in enabled:
                raise ApiError(
                    Code.INVALID_NETWORK,
                    f"{network} is not enabled here",
                    details={"field": field, "supported": sorted(enabled)},
                )

    async def _warned(
        self,
        recipients: Sequence[Recipient],
        known: Sequence[Recipient] = (),
        target: TargetUrl | None = None,
        target_headers: Sequence[tuple[str, str]] = (),
        tenant: str = "",
    ) -> list[JsonObject]:
        """Tell what the owner should know of a gate that is saved.

        `target`: where it is new, with the owner's headers for it, and `tenant`, whose share asking it takes.
        Raises: INVALID_ADDRESS for a recipient that can never be paid, unless it was `known` before.
        """
        warnings = await self.token_accounts.warnings(recipients, self.supported().assets, known)
        if target is not None:
            warnings += await self.target_probe.warnings(target, target_headers, tenant)
        return warnings

    def _all_warnings(self, gate: PayGate, warned: list[JsonObject]) -> JsonObject:
        """Add what clients make of the gate, for the answer; empty where there is nothing to tell."""
        warnings = warned + client_warnings(gate, self.gates.opened(gate).offers.values())
        return {"warnings": warnings} if warnings else {}

    def _check_trust(self, network: str, *, assume_valid: bool) -> None:
        if not assume_valid and not self.supported().confirms and not self.evidence.covers(network):
            raise invalid(
                "assumeValid",
                "the configured facilitator cannot confirm on chain: set assumeValid to true, use a hub that "
                f"advertises confirm, or configure the URL of a {network} node for this gateway",
            )

    async def page(self, bearer: str | None, limit: int, offset: int, wanted: GateFilter = GateFilter()) -> JsonObject:
        """The caller's gates, newest first; a filter is for those who have an owner."""
        caller = await self.ownership.caller(bearer)
        self.ownership.require_known(caller)
        if caller.token is not None:
            raise ApiError(Code.FORBIDDEN, "a management token is for its one PayGate; log in to list yours")
        if caller.wallet is None or wanted == GateFilter():
            gates, total = await self.store.page(caller.wallet, limit, offset)
        else:
            gates, total = await self.store.found(
                caller.wallet, limit, offset, text=wanted.text, enabled=wanted.enabled
            )
        data = [self._body(gate, await self._counters(gate)) for gate in gates]
        return {"data": data, "pagination": pagination(total, limit, offset)}

    async def read(self, bearer: str | None, gate_id: int) -> JsonObject:
        """One gate."""
        gate, _ = await self.managed(bearer, gate_id)
        body = self._body(gate, await self._counters(gate))
        trust = await self.store.trust(gate)
        return body if trust == Trust() else {**body, "trusted": trust_body(trust)}

    async def may_send_form(self, bearer: str | None, gate_id: int | None) -> tuple[GateManager, PayGate | None]:
        """Return who changes which gate; asked before the first byte is read. Raises: AUTH_REQUIRED, as `update`."""
        caller = await self.ownership.caller(bearer)
        self.ownership.require_known(caller)
        if gate_id is not None:
            return caller, await self._managed_by(caller, gate_id)
        if caller.wallet is None:
            raise ApiError(Code.AUTH_REQUIRED, "a file PayGate belongs to a wallet: log in to make one")
        return caller, None

    def check_before_file(self, fields: JsonObject, *, gate: PayGate | None) -> None:
        """Raises: what `create` or, of this gate, `update` would for these fields, whatever follows them."""
        if gate is not None and gate.file is None:
            raise invalid("file", "resourceType cannot change: this PayGate sells calls of its target")
        forbidden = self._forbidden() if gate is None else self._forbidden() - gate.payees
        network = check_fields_before_file(fields, forbidden, is_new=gate is None)
        if network is not None and (gate is None or gate.pay_to_on(network) is None):
            self._check_networks({network: "network"})

    async def update(
        self, caller: GateManager, gate_id: int, body: JsonObject, file: StoredFile | None = None
    ) -> JsonObject:
        """Any subset of fields, all or nothing."""
        gate = await self._managed_by(caller, gate_id)
        forbidden, now_ms = self._forbidden(), clock_ms()
        wanted = updated(gate, body, now_ms, forbidden, file)  # refuses before anything is asked of the network
        if "price" in body:
            self._check_price(wanted.price_micro)
        self._check_recipients(wanted.recipients, assume_valid=wanted.assume_valid, before=gate)
        target = await self.resolver.check_target(wanted.target_url, gate.tenant) if "targetUrl" in body else None
        warned = await self._warned(wanted.recipients, gate.recipients, target, wanted.target_headers, gate.tenant)
        secret, by = self._new_secret(), await self._authority(caller)
        try:
            changed = await self.store.update(
                gate_id, lambda current: updated(current, body, now_ms, forbidden, file), secret, by=by
            )
        finally:
            self.gates.forget(gate.slug)  # also where the answer was lost: the commit may stand
        shown = _shown(secret) if changed.secrets else {}
        return {**self._body(changed, await self._counters(changed)), **shown, **self._all_warnings(changed, warned)}

    async def test_target(self, bearer: str | None, given: JsonObject, gate_id: int | None = None) -> TargetTested:
        """Ask a target once and tell what it answers; nobody is charged.

        `given`: `targetUrl`, `method`, `targetHeaders`; what is left out is the gate's own. Raises: UPSTREAM_*,
        INVALID_PARAMETER, MISSING_PARAMETER, as `read`.
        """
        caller = await self.ownership.caller(bearer)
        gate = None if gate_id is None else await self._managed_by(caller, gate_id)
        self.ownership.may_create(caller)
        for name in given.keys() - {"targetUrl", "method", "targetHeaders"}:
            raise invalid(name, f"{name} takes no part in a test")
        if gate is not None and gate.file is not None:
            raise ApiError(Code.CONFLICT, "a file PayGate has no target to test")
        if gate is None and not given.get("targetUrl"):
            raise missing("targetUrl")
        own = {} if gate is None else {name: getattr(gate, name) for name in _TESTED}
        fields = {"methods": ("GET",), "target_headers": (), **own, **parse_fields(given)}
        tenant = caller.tenant if gate is None else gate.tenant
        target = await self.resolver.check_target(fields["target_url"], tenant)
        return await self.target_probe.test(target, fields["methods"][0], fields["target_headers"], tenant)

    async def replace_secret(self, bearer: str | None, gate_id: int) -> SecretBody:
        """A new secret to sign with, shown once; requests carry the former one's signature too for a day."""
        gate, caller = await self.managed(bearer, gate_id)
        secret, by = self._new_secret(), await self._authority(caller)
        try:
            await self.store.replace_secret(gate_id, secret, clock_ms(), by=by)
        finally:
            self.gates.forget(gate.slug)
        return SecretBody(secret.secret, secret.key_id)

    async def claim(self, bearer: str | None, gate_id: int, token: str | None) -> JsonObject:
        """Give an ownerless gate to the caller's wallet."""
        gate, token_hash = await self._found(gate_id)
        caller = await self.ownership.caller(bearer)
        wallet = self.ownership.may_claim(caller, gate, token_hash, token)
        by = await self.ownership.authority(caller, partial(self.ownership.may_claim, caller, token=token))
        try:
            claimed = await self.store.claim(gate_id, wallet, clock_ms(), by=by)
        finally:
            self.gates.forget(gate.slug)
        return self._body(claimed, await self._counters(claimed))

    async def delete(self, bearer: str | None, gate_id: int) -> Deleted:
        """End a gate; its slug answers 404 from then on."""
        gate, caller = await self.managed(bearer, gate_id)
        by = await self._authority(caller)
        # Before the rest is void, too: that takes seconds where much was sold.
        forget = partial(self.gates.forget, gate.slug)
        try:
            outstanding = await self.store.delete(gate_id, clock_ms(), forget, by=by)
        finally:
            forget()
        return Deleted(success=True, message="the PayGate is deleted", outstanding_credits=outstanding)

    async def _found(self, gate_id: int) -> tuple[PayGate, bytes | None]:
        found = await self.store.by_id(gate_id)
        if found is None:
            raise ApiError(Code.NOT_FOUND, "there is no such PayGate")
        return found

    async def managed(self, bearer: str | None, gate_id: int) -> tuple[PayGate, GateManager]:
        """The gate and who asks, if he may. Raises: AUTH_REQUIRED, INVALID_TOKEN, FORBIDDEN, NOT_FOUND."""
        caller = await self.ownership.caller(bearer)
        return await self._managed_by(caller, gate_id), caller

    async def _managed_by(self, caller: GateManager, gate_id: int) -> PayGate:
        self.ownership.require_known(caller)
        gate, token_hash = await self._found(gate_id)
        self.ownership.may_manage(caller, gate, token_hash)
        return gate

    async def _authority(self, caller: GateManager) -> Authority:
        return await self.ownership.authority(caller, partial(self.ownership.may_manage, caller))

    async def _counters(self, gate: PayGate) -> Counters:
        written = await self.store.counters(gate.id)
        challenges, calls, failures = self.traffic.unwritten(gate.id)
        return Counters(
            written.challenges + challenges,
            written.purchases,
            written.calls + calls,
            written.failures + failures,
            written.revenue_micro,
        )

    def _body(self, gate: PayGate, counters: Counters) -> JsonObject:
        return paygate_body(gate, counters, self.gates.access_url(gate.slug), iso)


def _shown(secret: HmacSecret) -> dict[str, str]:
    return {"secret": secret.secret, "keyId": secret.key_id}


def gate_id_of(request: HttpRequest) -> int:
    """The id in the path. Raises: NOT_FOUND for what is none."""
    text = request.path_params["gate_id"]
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise ApiError(Code.NOT_FOUND, "there is no such PayGate")
    return int(text)


async def _create(management: Management, uploads: Uploads, request: HttpRequest) -> JsonObject:
    bearer, key = bearer_token(request.headers), key_among(request.headers.getall("idempotency-key", []))
    if not is_form(request.headers):
        body, address = await json_body(request), management.clients.of_scope(request.scope)
        return await management.create(await management.ownership.caller(bearer, address), body, key=key)
    caller, _ = await management.may_send_form(bearer, None)
    form = await uploads.read(request.headers, request.stream(), partial(management.check_before_file, gate=None))
    if form.file is None:
        raise missing("file")
    async with uploads.kept_if_sold(form.file):
        return await management.create(caller, form.fields, form.file, key=key)


async def _update(management: Management, uploads: Uploads, request: HttpRequest) -> JsonObject:
    gate_id, bearer = gate_id_of(request), bearer_token(request.headers)
    if not is_form(request.headers):
        body = await json_body(request)
        return await management.update(await management.ownership.caller(bearer), gate_id, body)
    caller, gate = await management.may_send_form(bearer, gate_id)
    form = await uploads.read(request.headers, request.stream(), partial(management.check_before_file, gate=gate))
    async with uploads.kept_if_sold(form.file):
        return await management.update(caller, gate_id, form.fields, form.file)


def paygate_routes(management: Management, uploads: Uploads) -> list[HTTPRouteHandler]:
    """The route handlers."""

    @route(operations.CREATE, request_max_body_size=None)
    async def create(request: HttpRequest) -> Response[bytes]:
        """Contract 3.1, 3.2; with a file as a form (4.8)."""
        return ok(await _create(management, uploads, request), status=201)

    @route(operations.PAGE)
    async def page(request: HttpRequest) -> Response[bytes]:
        """Contract 2: newest first."""
        query = query_of(request)
        limit, offset = page_parameters(query)
        body = await management.page(bearer_token(request.headers), limit, offset, GateFilter.of(query))
        return unless_known(request, body)

    @route(operations.READ)
    async def read(request: HttpRequest) -> Response[bytes]:
        """Contract 2."""
        return unless_known(request, await management.read(bearer_token(request.headers), gate_id_of(request)))

    @route(operations.UPDATE, request_max_body_size=None)
    async def update(request: HttpRequest) -> Response[bytes]:
        """Contract 3.3: any subset, one transaction; with a file as a form."""
        return ok(await _update(management, uploads, request))

    @route(operations.CLAIM)
    async def claim(request: HttpRequest) -> Response[bytes]:
        """Contract 3.2."""
        gate_id = gate_id_of(request)
        data = await read_body(request.stream(), request.scope["headers"])
        token = parse_json_object(data).get("managementToken") if data else None
        if token is not None and not isinstance(token, str):
            raise invalid("managementToken", "managementToken must be a string")
        return ok(await management.claim(bearer_token(request.headers), gate_id, token))

    @route(operations.REPLACE_SECRET)
    async def replace_secret(request: HttpRequest) -> Response[bytes]:
        """Contract 2, 4.7: shown once."""
        secret = await management.replace_secret(bearer_token(request.headers), gate_id_of(request))
        return ok(secret, headers={"Cache-Control": "no-store"})

    @route(operations.TEST)
    async def test(request: HttpRequest) -> Response[bytes]:
        """Contract 11: charges nobody."""
        data = await read_body(request.stream(), request.scope["headers"])
        given = parse_json_object(data) if data else {}
        return ok(await management.test_target(bearer_token(request.headers), given, gate_id_of(request)))

    @route(operations.DELETE)
    async def remove(request: HttpRequest) -> Response[bytes]:
        """Contract 2: soft; the answer says how many bought credits it voids."""
        return ok(await management.delete(bearer_token(request.headers), gate_id_of(request)))

    return [create, page, read, update, claim, replace_secret, test, remove]
