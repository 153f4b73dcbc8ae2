"""`/supported`, `/verify` and `/settle` on bare ASGI (specification 4.4; contract 2, 5.1, 5.2).

These are the hot paths: no framework between socket and rule. A refused payment is an answer of status 200 with a
reason, as every x402 client expects; a request that cannot be read is a 400. The rules are `core.verification`'s; the
cheap ones come before any question to a node.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs

from tollkeeper.api import envelope, parse_json_object, read_body, receive_chunks, send_answer
from tollkeeper.chains.rpc import RpcUnavailable
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.evm import checksum_address
from tollkeeper.core.networks import ALIASES, NETWORKS
from tollkeeper.core.transactions import Kind
from tollkeeper.core.verification import (
    Check,
    EvmAsset,
    Reason,
    chain_checks,
    deployed_check,
    form_checks,
    payment_key,
    requirement_checks,
    signature_check,
    time_checks,
)
from tollkeeper.core.wire import SCHEME, X402_VERSION, EvmPayload, Payment
from tollkeeper.hub.accounts import Account, checked_signature, enabled_assets, require_reachable, unavailable
from tollkeeper.hub.gateway_signature import read_gateway_signature
from tollkeeper.hub.orders import Order, Outcome, requirements_hash
from tollkeeper.hub.requests import Asked, Headers, parse_asked, parse_settle_options, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.signatures import VerifyingKey
    from tollkeeper.hub.settlement import Settlements

_SINGLE_HEADERS: Final = frozenset({b"idempotency-key", b"signature", b"signature-input", b"content-digest"})


class Facilitator:
    """The three protocol endpoints over the hub's accounts (by network name)."""

    def __init__(
        self,
        accounts: Mapping[str, Account],
        settlements: Settlements,
        trusted_keys: Mapping[str, VerifyingKey],
        public_path: str,
        clock_ms: Callable[[], int],
    ) -> None:
        """`trusted_keys`: whose signature lets `purchaseData` into the history. `public_path`: of the hub's URL."""
        self._accounts = accounts
        self._settlements = settlements
        self._trusted_keys = trusted_keys
        self._public_path = public_path
        self._clock_ms = clock_ms

    async def supported(self, scope: HTTPScope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI
        """GET: what can be paid here, in the form that all official clients read."""
        await send_answer(send, 200, envelope(self.supported_body()))

    async def verify(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: would this payment settle now? `?explain=true` lists every check."""
        data = await read_body(receive_chunks(receive))
        explain = is_explained(scope["query_string"])
        plain = read_plain(data)
        is_ours = plain is not None and plain.payment.scheme == SCHEME and plain.payment.network in NETWORKS
        asked = plain if plain is not None and is_ours else _readable(parse_json_object(data), self._assets())
        if isinstance(asked, Check):
            await send_answer(send, 200, envelope(_verdict(asked, None, [asked] if explain else None)))
            return
        checks = await self._checks(asked, explain=explain)
        failed = next((check for check in checks if not check.ok), None)
        verdict = _verdict(failed, _payer(asked.payment), checks if explain else None)
        if failed is not None and failed.reason is Reason.NONCE_USED:
            verdict["transaction"] = await self._used_by(asked)
        await send_answer(send, 200, envelope(verdict))

    async def _used_by(self, asked: Asked) -> str:
        """The transaction that used the authorization up, for the buyer to look at; empty where it is not found."""
        payload = asked.payment.payload
        assert isinstance(payload, EvmPayload)  # noqa: S101 - a Solana payment has no such reason
        asset = self._assets()[ALIASES.get(asked.payment.network, asked.payment.network)]
        chain = self._accounts[asset.network.name].chain
        try:
            use = await chain.authorizations.find_use(payload.authorization.payer, payload.authorization.nonce)
        except RpcUnavailable:
            return ""
        return "" if use is None else use.transaction_hash

    async def settle(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """POST: settle the payment, once (contract 5.2)."""
        arrived = asyncio.get_running_loop().time()
        data = await read_body(receive_chunks(receive))
        body = parse_json_object(data)
        headers = read_headers(scope)
        asked = _readable(body, self._assets())
        if isinstance(asked, Check):
            await send_answer(send, 200, envelope(_refused_unread(body, asked)))
            return
        options = parse_settle_options(body, asked, headers)
        signature = read_gateway_signature(
            scope, headers, data, self._trusted_keys, self._public_path, self._clock_ms() // 1000
        )
        require_reachable(self._accounts, asked.payment.network)
        assets = self._assets()
        failed = await self._refusal(asked, assets)
        if failed is not None:
            outcome = Outcome(success=False, reason=failed.reason.value)
        else:
            asset = assets[ALIASES.get(asked.payment.network, asked.payment.network)]
            payload = asked.payment.payload
            assert isinstance(payload, EvmPayload)  # noqa: S101 - form_checks passed
            order = Order(
                account=self._accounts[asset.network.name],
                key=payment_key(asset, payload),
                payment=asked.payment,
                payload=payload,
                requirements=asked.requirements,
                options=options,
                kind=Kind.PURCHASE,
                purchase_data=options.purchase_data if signature.is_trusted else None,
                deadline=arrived + options.wait_seconds,
                is_expired=signature.is_expired,
                is_trusted=signature.is_trusted,
                requirements_hash=requirements_hash(asked.requirements),
            )
            outcome = await self._settlements.settle(order)
        body = settled_body(asked.payment, asked.requirements.amount, outcome, use_db_id=options.use_db_id)
        await send_answer(send, 200, envelope(body))

    async def _refusal(self, asked: Asked, assets: Mapping[str, EvmAsset]) -> Check | None:
        """The first rule that the payment breaks, of those that no simulation judges. Raises: UNAVAILABLE."""
        failed = next((check for check in _static_checks(asked, assets) if not check.ok), None)
        payload = asked.payment.payload
        if failed is not None or not isinstance(payload, EvmPayload):
            return failed
        asset = assets[ALIASES.get(asked.payment.network, asked.payment.network)]
        signed = await checked_signature(self._accounts[asset.network.name], asset, payload)
        return None if signed.ok else signed

    def supported_body(self) -> dict[str, Any]:
        """`kinds` once per name that a version 1 client may send, `extensions`, `signers`."""
        kinds: list[dict[str, Any]] = []
        signers: dict[str, list[str]] = {}
        for asset in self._assets().values():
            names = dict.fromkeys((asset.network.v1_name, asset.network.name))
            kinds.extend(_kind(name, asset) for name in names)
            known = signers.setdefault("eip155:*", [])
            addresses = map(checksum_address, self._accounts[asset.network.name].signers.addresses)
            known.extend(address for address in addresses if address not in known)
        return {"kinds": kinds, "extensions": ["confirm"], "signers": signers}

    def _assets(self) -> dict[str, EvmAsset]:
        return enabled_assets(self._accounts)

    async def _checks(self, asked: Asked, *, explain: bool) -> list[Check]:
        """The rules in order, up to the first that fails; with `explain`, all that can be judged.

        Raises: UNAVAILABLE.
        """
        require_reachable(self._accounts, asked.payment.network)
        assets = self._assets()
        checks: list[Check] = []
        for check in _static_checks(asked, assets, now_seconds=self._clock_ms() // 1000):
            checks.append(check)
            if not check.ok and not explain:
                return checks
        asset = assets.get(ALIASES.get(asked.payment.network, asked.payment.network))
        payload = asked.payment.payload
        if asset is None or not isinstance(payload, EvmPayload):
            return checks
        account = self._accounts[asset.network.name]
        by_key = signature_check(payload, asset)
        try:
            facts, block = await account.chain.state(payload, asset, account.caller, is_signed_by_key=by_key.ok)
        except RpcUnavailable as error:
            raise unavailable(str(error)) from error
        now_seconds = max(block.timestamp_seconds, self._clock_ms() // 1000)
        late = [check for check in time_checks(payload, now_seconds) if not check.ok]
        return [*checks, *late, *chain_checks(payload, by_key, facts)]


def is_explained(query: bytes) -> bool:
    """Does the query string ask for `explain=true`?"""
    return bool(query) and parse_qs(query.decode("latin-1")).get("explain") == ["true"]


def read_headers(scope: HTTPScope) -> Headers:
    """The request's headers. Raises: INVALID_PARAMETER where one that must be single came twice."""
    headers: Headers = {}
    for name, value in scope["headers"]:
        if name in headers and name in _SINGLE_HEADERS:
            raise ApiError(Code.INVALID_PARAMETER, f"{name.decode('latin-1')} came twice")
        headers[name] = value
    return headers


def _readable(body: dict[str, Any], assets: Mapping[str, EvmAsset]) -> Asked | Check:
    """The request; or, for a scheme or network that is not ours, that check: its payload may have any shape."""
    payment = body.get("paymentPayload")
    if isinstance(payment, dict) and isinstance(body.get("paymentRequirements"), dict):
        scheme, network = payment.get("scheme"), payment.get("network")
        if isinstance(scheme, str) and scheme != SCHEME:
            return Check("scheme", ok=False, reason=Reason.SCHEME, expected=SCHEME, actual=scheme)
        if isinstance(network, str) and ALIASES.get(network, network) not in NETWORKS:
            return Check("network", ok=False, reason=Reason.NETWORK, expected=sorted(assets), actual=network)
    return parse_asked(body)


def _static_checks(asked: Asked, assets: Mapping[str, EvmAsset], now_seconds: int | None = None) -> Iterator[Check]:
    """Every rule that needs no node, in order; those about time only where `now_seconds` is given.

    The signature is not among them: where the payer is a contract, only a node can say.
    """
    version = asked.x402_version
    yield Check("request.x402Version", version == X402_VERSION, Reason.X402_VERSION, X402_VERSION, version)
    yield from form_checks(asked.payment, assets)
    asset = assets.get(ALIASES.get(asked.payment.network, asked.payment.network))
    payload = asked.payment.payload
    if asset is None or not isinstance(payload, EvmPayload):
        return
    yield from requirement_checks(asked.payment, asked.requirements, asset)
    if now_seconds is not None:
        yield from time_checks(payload, now_seconds)
    yield deployed_check(payload)


def _payer(payment: Payment) -> str | None:
    payload = payment.payload
    return checksum_address(payload.authorization.payer) if isinstance(payload, EvmPayload) else None


def _kind(name: str, asset: EvmAsset) -> dict[str, Any]:
    usdc = asset.network.usdc
    return {
        "x402Version": X402_VERSION,
        "scheme": SCHEME,
        "network": name,
        "assets": [
            {
                "address": checksum_address(asset.address),
                "name": asset.name,
                "symbol": usdc.symbol,
                "decimals": usdc.decimals,
            }
        ],
        "extra": {"name": asset.name, "version": asset.version},
    }


def _verdict(failed: Check | None, payer: str | None, explained: list[Check] | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "isValid": failed is None,
        "invalidReason": None if failed is None else failed.reason.value,
        "payer": payer,
    }
    if failed is not None:
        body["invalidMessage"] = f"payment check failed: {failed.name}"
        body["details"] = {"check": failed.name, "expected": failed.expected, "found": failed.actual}
    if explained is not None:
        body["checks"] = [
            {"name": check.name, "ok": check.ok, "expected": check.expected, "actual": check.actual}
            for check in explained
        ]
    return body


def settled_body(payment: Payment, amount: int, outcome: Outcome, *, use_db_id: bool) -> dict[str, Any]:
    """The answer to a settlement whose outcome is known. `amount` is what was asked, where the payload shows none."""
    payload = payment.payload
    value = payload.authorization.value if isinstance(payload, EvmPayload) else amount
    transaction = outcome.settlement_id or "" if use_db_id else outcome.transaction
    return {
        "success": outcome.success,
        "status": "success" if outcome.success else "failed",
        "transaction": transaction,
        "network": payment.network,
        "amount": str(value),
        "payer": _payer(payment),
        "errorReason": outcome.reason,
    }


def _refused_unread(body: dict[str, Any], failed: Check) -> dict[str, Any]:
    network, amount = body["paymentPayload"].get("network"), body["paymentRequirements"].get("maxAmountRequired")
    return {
        "success": False,
        "status": "failed",
        "transaction": "",
        "network": network if isinstance(network, str) else "",
        "amount": amount if isinstance(amount, str) else "0",
        "payer": None,
        "errorReason": failed.reason.value,
    }
