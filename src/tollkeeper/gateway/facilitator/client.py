"""The gateway's way to its x402 facilitator: supported, verify, settle, status (contract 1, 4.3, 4.4, 5).

The facilitator is our hub or any standard one. Ours is asked in x402 version 1, another one in the version that it
says to settle in on the payment's network, the newer where it says both (contract 10.2). Answers are judged here,
strictly: only a literal `true` is a success, and whatever is neither a clear success nor a clear failure is an unknown
outcome, never a refusal.
"""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec
import structlog

from tollkeeper.api import clock_ms, iso
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.json_types import JsonMapping, JsonObject
from tollkeeper.core.limits import SETTLE_REQUEST_LIFETIME_SECONDS
from tollkeeper.core.networks import NETWORKS, normalise
from tollkeeper.core.purchases import NOT_ATTEMPTED, AuthorizationStanding
from tollkeeper.core.settlement.states import UNKNOWN_PAYMENT
from tollkeeper.core.wallets import family_of
from tollkeeper.core.x402 import version2
from tollkeeper.core.x402.version1 import (
    X402_VERSION,
    Payment,
    PaymentKey,
    Requirements,
    payment_body,
    requirements_body,
)
from tollkeeper.gateway.facilitator.kinds import asset_of, signers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tollkeeper.core.payment_offers import Asset

    # (method, path, headers, body) -> the headers that sign the request, good for SETTLE_REQUEST_LIFETIME_SECONDS
    Signer = Callable[[str, str, Mapping[str, str], bytes], dict[str, str]]

VERIFY_TIMEOUT_SECONDS: Final = 10.0
# The hub waits up to 30 s for a receipt; a little longer lets its own answer arrive.
SETTLE_TIMEOUT_SECONDS: Final = 35.0
_NAMED_WITHIN_SECONDS: Final = 0.5
CONFIRM_EXTENSION: Final = "confirm"
# From our hub, in its own words: nothing was started, also (401) where it refuses or has outlived our signature.
_REFUSALS: Final = frozenset({400, 401, 403, 404, 413, 422})
_UNAUTHENTICATED: Final = 401
# From a hub that is away or has too much to do, or from whoever stands before it.
_AWAY_STATUSES: Final = frozenset({429, 502, 503, 504})
# Why an outcome is PENDING where nothing was answered to the question.
_UNREACHABLE: Final = "unreachable"
_UNAVAILABLE: Final = "unavailable"
AWAY: Final = frozenset({_UNREACHABLE, _UNAVAILABLE})
_CODES: Final = frozenset(Code)
_TRANSACTION: Final = re.compile(r"[!-~]{1,256}")
# A verification starts nothing, so that it needs no key of its own; the signature covers one in every request.
_VERIFYING: Final = "verify"
_SIGNING_HEADERS: Final = frozenset({"signature", "signature-input", "content-digest"})
_LOG = structlog.get_logger("tollkeeper.gateway.facilitator.client")


class HubUnreachableError(Exception):
    """No answer came, so nothing is known about what the facilitator did."""


class Transport(Protocol):
    """One request to the facilitator, over HTTP or within the process.

    `is_apart`: it is another process, to which a request shows by a signature whose it is.
    """

    is_apart: bool

    async def request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, timeout_seconds: float
    ) -> tuple[int, bytes]:
        """Status and body. Raises: HubUnreachableError."""

    async def close(self) -> None:
        """Lets go of connections."""


@dataclass(frozen=True, slots=True)
class Senders:
    """A facilitator's senders or fee payers on one network, as far as it says.

    `are_all`: it lists them. Where it does not, the transaction that it named is its own.
    """

    known: frozenset[str]
    are_all: bool

    def sent(self, sender: str | None, *, is_named: bool) -> bool:
        """Was it the facilitator? `is_named`: it named this transaction. None: nobody can say who sent it."""
        return sender in self.known or (is_named and not self.are_all)


@dataclass(frozen=True, slots=True)
class Supported:
    """The assets that the facilitator settles, by our names of networks.

    `confirms`: `confirm: true` works. `is_ours`: it knows claim keys and payment status.
    """

    assets: Mapping[str, Asset]
    confirms: bool
    is_ours: bool
    signers: frozenset[str]

    def senders_on(self, network: str) -> Senders:
        """Return whose transactions count there. On Solana the buyer is told a fee payer in any case."""
        family = NETWORKS[network].family
        listed = frozenset(one for one in self.signers if family_of(one) is family)
        asset = self.assets.get(network)
        told = frozenset() if asset is None else asset.fee_payers
        return Senders(listed | told, are_all=bool(listed))


@dataclass(frozen=True, slots=True)
class FacilitatorVerdict:
    """A facilitator's word on a payment; `transaction` names what used its authorization up, where it says so."""

    is_valid: bool
    reason: str | None
    transaction: str | None
    checks: JsonObject | None


class SettleMeaning(Enum):
    """Meanings of a settle answer."""

    SUCCESS = auto()
    FAILED = auto()  # clearly not settled by this request
    PENDING = auto()  # nobody knows yet; the claim stands
    REFUSED = auto()  # our hub never took the request up; nothing was sent
    UNHEARD = auto()  # nor did it because it refused this gateway's signature, which says nothing of the payment


@dataclass(frozen=True, slots=True)
class SettleAnswer:
    """A judged settle answer; `transaction` is a hash or empty."""

    outcome: SettleMeaning
    transaction: str
    reason: str


class PaymentStatus(NamedTuple):
    """Our hub's public word on a payment: pending, success or failed, in which transaction, since when (Unix ms)."""

    status: str
    transaction: str
    updated_ms: int


@dataclass(frozen=True, slots=True)
class SettleRequest:
    """The exact bytes of one attempt to settle, as they are stored with the claim.

    `place`: the facilitator that was asked, as in `HubClient`; None where that was not kept.
    """

    path: str
    headers: dict[str, str]
    body: bytes
    place: str | None = None

    def to_bytes(self) -> bytes:
        """For storage."""
        return _ENCODE({"path": self.path, "headers": self.headers, "body": self.body.decode(), "place": self.place})

    @property
    def members(self) -> bytes:
        """Members of its body, as `HubClient.verify` is asked: those beside `asked_of`'s say nothing there."""
        return self.body[1:-1]

    @property
    def has_key(self) -> bool:
        """Is it named to a hub of ours?"""
        return "idempotency-key" in self.headers

    def under(self, key: str) -> SettleRequest:
        """The same under another key, and so unsigned: it shows what that key shows of this very request."""
        headers = {name: value for name, value in self.headers.items() if name not in _SIGNING_HEADERS}
        return replace(self, headers=headers | {"idempotency-key": key})

    @classmethod
    def from_bytes(cls, data: bytes) -> SettleRequest:
        """From storage. Raises: ValueError."""
        stored = json.loads(data)
        return cls(stored["path"], stored["headers"], stored["body"].encode(), stored.get("place"))


_ENCODE: Final = msgspec.json.Encoder().encode
_JSON_HEADERS: Final = {"content-type": "application/json"}


class HubClient:
    """One facilitator. What only our hub understands, or only version 2, is sent once `supported` has told that.

    `place` is its URL, "" for the hub of this very program. `doubted` is set where it could not do what it advertised:
    `supported` may say something else by now.
    """

    def __init__(self, transport: Transport, sign: Signer, place: str = "") -> None:
        self.place = place
        self._transport = transport
        self._sign = sign
        self._confirms = False
        self._is_ours = False
        self._versions: Mapping[str, int] = {}  # by our names of networks
        self.doubted = asyncio.Event()

    async def close(self) -> None:
        """Lets go of the transport."""
        await self._transport.close()

    async def _read(self, path: str) -> tuple[int, JsonObject]:
        """Return status and body of what is there. Raises: HubUnreachableError."""
        status, data = await self._transport.request("GET", path, {}, b"", VERIFY_TIMEOUT_SECONDS)
        return status, _object(data)

    async def _asked(self, path: str, body: bytes) -> tuple[int, JsonObject]:
        """Return status and body of an answer to a question, which starts nothing. Raises: UNAVAILABLE."""
        headers = dict(_JSON_HEADERS)
        if self._is_ours and self._transport.is_apart:  # it keeps some of its nodes' answers for what gateways sell
            headers["idempotency-key"] = _VERIFYING
            headers |= self._sign("POST", path, headers, body)
        try:
            status, data = await self._transport.request("POST", path, headers, body, VERIFY_TIMEOUT_SECONDS)
            return status, _object(data)
        except HubUnreachableError:
            raise unavailable() from None

    async def supported(self) -> Supported:
        """Ask what the facilitator settles. Raises: HubUnreachableError, also for an answer that cannot be read."""
        status, body = await self._read("/supported")
        if status != 200 or not isinstance(body.get("kinds"), list):
            raise HubUnreachableError(f"/supported answered {status} without kinds")
        extensions = body.get("extensions")
        self._confirms = isinstance(extensions, list) and CONFIRM_EXTENSION in extensions
        self._is_ours = self._confirms and body.get("apiVersion") == "v1"
        assets: dict[str, Asset] = {}
        versions: dict[str, int] = {}
        for version in (X402_VERSION,) if self._is_ours else (version2.VERSION, X402_VERSION):
            found = [asset for kind in body["kinds"] if (asset := asset_of(kind, version)) is not None]
            for asset in found:
                assets.setdefault(asset.network.name, asset)
                versions.setdefault(asset.network.name, version)
        self._versions = versions
        signers = signers_of(body.get("signers"))
        return Supported(assets, confirms=self._confirms, is_ours=self._is_ours, signers=signers)

    def asked_of(self, payment: Payment, requirements: Requirements) -> bytes:
        """Write what verify and settle are both asked, encoded once: members of a JSON object, without its braces."""
        if self._versions.get(normalise(payment.network).name) == version2.VERSION:
            return _ENCODE(version2.facilitator_request(payment, requirements))[1:-1]
        return b'"x402Version":%d,"paymentPayload":%b,"paymentRequirements":%b' % (
            X402_VERSION,
            _ENCODE(payment_body(version2.in_version_1(payment))),
            _ENCODE(requirements_body(requirements)),
        )

    async def verify(self, asked: bytes) -> FacilitatorVerdict:
        """The facilitator's word on what `asked_of` made. Raises: UNAVAILABLE where none comes within 10 s."""
        status, answer = await self._asked("/verify", b"{%b}" % asked)
        if status == 503:
            self.doubted.set()
            raise unavailable(_reason_of(answer) if self._is_ours else "")
        if status != 200 or type(answer.get("isValid")) is not bool:
            raise unavailable()
        reason = answer.get("invalidReason")
        details = answer.get("details")
        return FacilitatorVerdict(
            answer["isValid"],
            reason if isinstance(reason, str) else None,
            _transaction_in(answer) or None,
            details if isinstance(details, dict) else None,
        )

    def settle_request(
        self, asked: bytes, *, key: str, confirm: bool, purchase_data: JsonObject, tenant: str = ""
    ) -> SettleRequest:
        """One attempt's request under its key `<claim id>.<attempt>`; pure but for the signer's clock and nonce.

        `asked` is what `asked_of` made. `tenant`: whose share of our hub's gas it takes.
        """
        headers = dict(_JSON_HEADERS)
        more = b""
        if self._confirms:
            more = b',"confirm":true' if confirm else b',"confirm":false'
        if self._is_ours:
            more += b',"purchaseData":%b,"tenant":%b' % (_ENCODE(purchase_data), _ENCODE(tenant))
            headers["idempotency-key"] = key
            if not confirm:
                headers["prefer"] = "wait=0"
        data = b"{%b%b}" % (asked, more)
        if self._is_ours:
            headers |= self._sign("POST", "/settle", headers, data)
        return SettleRequest("/settle", headers, data, self.place)

    def signed_anew(self, request: SettleRequest) -> SettleRequest:
        """The very same under its key, whose signature has expired; pure but for the signer's clock and nonce."""
        plain = request.under(request.headers["idempotency-key"])
        return replace(plain, headers=plain.headers | self._sign("POST", plain.path, plain.headers, plain.body))

    async def settle(self, request: SettleRequest) -> SettleAnswer:
        """Send the attempt (again, with the same bytes) and judges the answer, which may take 35 s.

        A facilitator of version 2 that does not know the outcome yet wants to be asked once more, for as long.
        """
        answer = await self._answer_to(request)
        if answer is not None and not self._is_ours and _wants_to_be_asked_again(*answer):
            answer = await self._answer_to(request) or answer
        if answer is None:
            return SettleAnswer(SettleMeaning.PENDING, "", _UNREACHABLE)
        return _judge(*answer, is_ours=self._is_ours)

    async def _answer_to(self, request: SettleRequest) -> tuple[int, JsonObject] | None:
        """Status and body; None where no answer came, so that nothing is known."""
        try:
            status, data = await self._transport.request(
                "POST", request.path, request.headers, request.body, SETTLE_TIMEOUT_SECONDS
            )
            if status == 503:
                self.doubted.set()
            return status, _object(data)
        except HubUnreachableError:
            return None

    def transfer_request(self, body: bytes, *, key: str, wait_seconds: int | None) -> SettleRequest:
        """A transfer by our hub, under an idempotency key; pure but for the signer's clock and nonce.

        `body`: all that says which one it is. `wait_seconds`: how long the caller cares to wait, where it says so.
        """
        headers = {**_JSON_HEADERS, "idempotency-key": key}
        if wait_seconds is not None:
            headers["prefer"] = f"wait={wait_seconds}"
        return SettleRequest("/transfer", headers | self._sign("POST", "/transfer", headers, body), body)

    async def transfer(self, request: SettleRequest) -> tuple[int, JsonObject] | None:
        """Status and body of our hub's answer; None where none came, so that nothing is known."""
        return await self._answer_to(request)

    async def payment_status(self, key: PaymentKey) -> PaymentStatus | None:
        """Ask our hub for a payment's public status; None where it says itself that it knows nothing of it.

        A 404 alone is of whoever stands before a hub that is away, and means nothing. Raises: HubUnreachableError.
        """
        status, body = await self._read(key.status_query)
        if status == 404 and _is_unknown_payment(body):
            return None
        if status != 200 or not isinstance(body.get("status"), str):
            raise HubUnreachableError(f"the payment's status answered {status}")
        return PaymentStatus(body["status"], _transaction_in(body), _read_ms(body.get("updatedAt")))

    async def standing(self, key: PaymentKey, blockhash: str) -> AuthorizationStanding:
        """Ask our hub how a payment stands on the chain that it may never see itself, by its identity alone.

        Raises: UNAVAILABLE.
        """
        status, told = await self._asked("/standing", _ENCODE({**key.columns, "blockhash": blockhash}))
        if status != 200:
            raise unavailable(_reason_of(told))
        try:
            return AuthorizationStanding(told["isUnused"] is True, int(told["moment"]), int(told["last"]))
        except (KeyError, TypeError, ValueError):
            raise unavailable() from None

    async def transaction_of(self, key: PaymentKey) -> str:
        """The transaction that a payment is in by our hub's public word; "" where it names none in half a second."""
        if not self._is_ours:
            return ""
        try:
            async with asyncio.timeout(_NAMED_WITHIN_SECONDS):
                told = await self.payment_status(key)
        except (HubUnreachableError, TimeoutError):
            return ""
        return "" if told is None else told.transaction

    async def problems(self) -> list[str] | None:
        """Ask what our hub's operator should know though it can do its work; None where the facilitator cannot."""
        try:
            await self.supported()
            if not self._is_ours:
                return []
            status, body = await self._read("/readyz")
        except HubUnreachableError:
            return None
        if status != 200:
            return None
        told = body.get("problems")
        return [problem for problem in told if isinstance(problem, str)] if isinstance(told, list) else []


def unavailable(reason: str = "") -> ApiError:
    """503 for a facilitator that gives no answer, or a hub of ours that says why it cannot; nothing was charged."""
    if reason:
        message = f"{reason}; nothing was charged, send the same payment again, or sign what a new 402 asks for"
    else:
        message = "the payment hub does not answer; nothing was charged, send the same payment again"
    return ApiError(Code.UNAVAILABLE, message)


def unheard() -> ApiError:
    """503 for a hub of ours that takes nothing of this gateway now; nothing was charged."""
    return unavailable("the payment hub takes no requests of this gateway now")


def log_refused_signature(body: JsonMapping) -> None:
    """Tell the operator why our hub refused what this gateway signed; mostly one of the two clocks is wrong.

    Nothing where they agree on what has expired: it could not be taken up in its time, and that was told.
    """
    error = _error_of(body)
    details = error.get("details")
    has_expired = isinstance(details, dict) and details.get("reason") == "signature_expired"
    if has_expired and abs(_read_ms(body.get("timestamp")) - clock_ms()) < SETTLE_REQUEST_LIFETIME_SECONDS * 1000:
        return
    reason = error.get("message")
    _LOG.error("hub_refuses_our_signature", reason=reason, hub_clock=body.get("timestamp"), our_clock=iso(clock_ms()))


def _error_of(body: JsonMapping) -> JsonMapping:
    """Return the error that our hub's answer tells; empty where it tells none."""
    error = body.get("error")
    return error if isinstance(error, dict) else {}


def _reason_of(body: JsonObject) -> str:
    """Return why our hub is not available; empty where it does not say so itself."""
    error = _error_of(body)
    message = error.get("message") if error.get("code") == Code.UNAVAILABLE else None
    return message if isinstance(message, str) else ""


def _is_unknown_payment(body: JsonObject) -> bool:
    """Tell whether it is our hub's word that it has no record of a payment."""
    return str(_error_of(body).get("message", "")).startswith(UNKNOWN_PAYMENT)


def _object(data: bytes) -> JsonObject:
    try:
        body = parse_json(data)
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise HubUnreachableError("the facilitator's answer is not a JSON object")
    return body


def _read_ms(moment: object) -> int:
    """Unix milliseconds; 0 for what is no moment."""
    try:
        return int(datetime.fromisoformat(str(moment)).timestamp() * 1000)
    except ValueError:
        return 0


def _transaction_in(answer: JsonMapping) -> str:
    """Return the transaction's name there; empty for none, and for what no receipt could show."""
    transaction = answer.get("transaction")
    return transaction if isinstance(transaction, str) and _TRANSACTION.fullmatch(transaction) else ""


def _wants_to_be_asked_again(status: int, body: JsonMapping) -> bool:
    """Tell whether a transaction is on its way whose outcome the identical request will be told (contract 10.2)."""
    is_pending = body.get("success") is False and body.get("errorReason") == version2.SETTLEMENT_PENDING
    return status == 200 and is_pending and bool(_transaction_in(body))


def _judge(status: int, body: JsonObject, *, is_ours: bool) -> SettleAnswer:
    """Judge an answer. A stranger's refusal is one only by `success: false`: any status may follow a sending."""
    transaction = _transaction_in(body)
    reason = body.get("errorReason")
    reason = reason if isinstance(reason, str) else ""
    if status == 200 and body.get("success") is True and transaction:
        return SettleAnswer(SettleMeaning.SUCCESS, transaction, "")
    is_answered = status == 200 or (status in _REFUSALS and not is_ours)
    if is_answered and body.get("success") is False and reason != version2.SETTLEMENT_PENDING:
        return SettleAnswer(SettleMeaning.FAILED, transaction, reason or "settlement_failed")
    error = _error_of(body)
    if status in _REFUSALS:
        if is_ours and str(error.get("code")) in _CODES:
            if status == _UNAUTHENTICATED:
                log_refused_signature(body)
                return SettleAnswer(SettleMeaning.UNHEARD, "", NOT_ATTEMPTED)
            return SettleAnswer(SettleMeaning.REFUSED, "", "refused_by_hub")
        _LOG.warning("settle_refused_without_proof", status=status)
    details = error.get("details")
    if isinstance(details, dict):
        transaction = _transaction_in(details) or transaction
    reason = _UNAVAILABLE if status in _AWAY_STATUSES else version2.SETTLEMENT_PENDING
    return SettleAnswer(SettleMeaning.PENDING, transaction, reason)
