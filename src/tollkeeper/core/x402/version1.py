"""The x402 version 1 wire: payment header, payment payload, payment requirements (specification 2.2, 2.3, 4.4).

`x402.version2` reads and writes version 2's into and from the same types.

Reading is syntax only: which version, scheme, network or asset is supported is decided in `verification`. A payment's
identity is canonical (network, asset, payer, nonce) and never depends on how its header was spelled (contract 4.3).
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeGuard

import msgspec

from tollkeeper.core.api.errors import ApiError, Code, failed_check, invalid, missing, payment_error
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.evm.encoding import Authorization, checksum_address
from tollkeeper.core.limits import PAYMENT_HEADER_SIZE_BYTES
from tollkeeper.core.networks import Family

if TYPE_CHECKING:
    from collections.abc import Callable

    from tollkeeper.core.json_types import JsonMapping, JsonObject

X402_VERSION: Final = 1
SCHEME: Final = "exact"
UINT256_MAX: Final = 2**256 - 1
# Of `extra`: the token's EIP-712 domain; who pays a Solana transaction's fee, and what it must have for a memo.
_EXTRA: Final = ("name", "version", "feePayer", "memo")
# Base58 signatures and multi-signature wallets fit; nothing honest is longer.
_TEXT_MAX: Final = 2048
_NO_OBJECT: Final = "the header is not base64 of a JSON object"

_BASE64: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}", re.ASCII)
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_BYTES32: Final = re.compile(r"0x[0-9a-fA-F]{64}", re.ASCII)
_HEX: Final = re.compile(r"0x(?:[0-9a-fA-F]{2})+", re.ASCII)
_UINT: Final = re.compile(r"[0-9]{1,78}", re.ASCII)


class PaymentKey(msgspec.Struct, frozen=True, cache_hash=True):
    """One payment, on every node and in every database: the identity under which it is claimed and settled."""

    network: str
    asset: str
    payer: str
    nonce: str

    @property
    def columns(self) -> dict[str, str]:
        """The parts by their names, as bodies and databases have them."""
        return {"network": self.network, "asset": self.asset, "payer": self.payer, "nonce": self.nonce}

    @property
    def status_path(self) -> str:
        """Path at which a hub shows anybody how the payment stands. On Solana the nonce suffices."""
        payer = self.payer + "/" if self.payer.startswith("0x") else ""
        return f"/payments/{self.network}/{payer}{self.nonce}"

    @property
    def status_query(self) -> str:
        """The same of no other token: a payer may use a nonce with each, where a network's asset was changed.

        A message on Solana names its token itself.
        """
        return f"{self.status_path}?asset={self.asset}" if self.payer.startswith("0x") else self.status_path


@dataclass(frozen=True, slots=True)
class EvmPayload:
    """`payload` of an EVM payment."""

    family: ClassVar[Family] = Family.EVM

    authorization: Authorization
    signature: bytes

    def body(self) -> JsonObject:
        """Return the payload as JSON, spelled as every facilitator takes it."""
        authorization = self.authorization
        return {
            "signature": "0x" + self.signature.hex(),
            "authorization": {
                "from": checksum_address(authorization.payer),  # facilitators built on web3.py take no other spelling
                "to": checksum_address(authorization.pay_to),
                "value": str(authorization.value),
                "validAfter": str(authorization.valid_after),
                "validBefore": str(authorization.valid_before),
                "nonce": authorization.nonce,
            },
        }


@dataclass(frozen=True, slots=True)
class SolanaPayload:
    """`payload` of a Solana payment: the base64 transaction as it was sent."""

    family: ClassVar[Family] = Family.SOLANA

    transaction: str

    def body(self) -> JsonObject:
        """Return the payload as JSON."""
        return {"transaction": self.transaction}

    def unsigned(self) -> SolanaPayload:
        """The same message with nobody's signature, of a transaction that was read before."""
        raw = base64.b64decode(self.transaction)
        message_at = 1 + 64 * raw[0]
        return SolanaPayload(base64.b64encode(raw[:1] + bytes(message_at - 1) + raw[message_at:]).decode())


@dataclass(frozen=True, slots=True)
class Payment:
    """A payment payload as it was sent; `network` is the sender's spelling, of version 2 our own name.

    `accepted`: of version 2, the offer that the payer says to take, as it was sent.
    """

    x402_version: int
    scheme: str
    network: str
    payload: EvmPayload | SolanaPayload
    accepted: JsonMapping | None = field(default=None, compare=False)

    @property
    def authorized(self) -> EvmPayload:
        """The payload of a payment whose form was checked, on an EVM network."""
        assert isinstance(self.payload, EvmPayload)  # noqa: S101 - of this family
        return self.payload

    @property
    def transacted(self) -> SolanaPayload:
        """The same on Solana."""
        assert isinstance(self.payload, SolanaPayload)  # noqa: S101 - of this family
        return self.payload


@dataclass(frozen=True, slots=True)
class Requirements:
    """PaymentRequirements of version 1. `amount` is `maxAmountRequired` in base units.

    Addresses are as sent but lower-cased on EVM; `network` is the sender's spelling.
    """

    scheme: str
    network: str
    amount: int
    asset: str
    pay_to: str
    resource: str = ""
    description: str = ""
    mime_type: str = ""
    max_timeout_seconds: int = 60
    extra: JsonObject = field(default_factory=dict)


def _member(body: JsonObject, name: str, path: str) -> Any:  # noqa: ANN401 - JSON
    value = body.get(name)
    if value is None:
        raise missing(f"{path}{name}")
    return value


def _text(body: JsonObject, name: str, path: str) -> str:
    value = _member(body, name, path)
    if not isinstance(value, str):
        raise invalid(f"{path}{name}", f"{path}{name} must be a string")
    if len(value) > _TEXT_MAX:
        raise invalid(f"{path}{name}", f"{path}{name} must have at most {_TEXT_MAX} characters")
    if not is_text(value):
        raise invalid(f"{path}{name}", f"{path}{name} must be text")
    return value


def is_text(value: object) -> TypeGuard[str]:
    """Tell a text that can be written as UTF-8: half of a surrogate pair, which JSON can spell, cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def member_object(body: JsonObject, name: str, path: str = "") -> JsonObject:
    """Take the object of that name. Raises: MISSING_PARAMETER, INVALID_PARAMETER."""
    value = _member(body, name, path)
    if not isinstance(value, dict):
        raise invalid(f"{path}{name}", f"{path}{name} must be an object")
    return value


def parse_uint256(value: object, name: str, *, number_too: bool = False) -> int:
    """A decimal uint256 given as a string, or as a JSON integer too. Raises: INVALID_AMOUNT."""
    number = _uint256(value, number_too=number_too)
    if number is None:
        raise ApiError(Code.INVALID_AMOUNT, f"{name} must be a decimal integer string", details={"field": name})
    return number


def _time(body: JsonObject, name: str, path: str, *, number_too: bool = False) -> int:
    number = _uint256(_member(body, name, path), number_too=number_too)
    if number is None:
        raise invalid(f"{path}{name}", f"{path}{name} must be a Unix timestamp in seconds, as a decimal string")
    return number


def _uint256(value: object, *, number_too: bool) -> int | None:
    if number_too and type(value) is int and value >= 0:  # a bool is no number here
        value = str(value)
    number = int(value) if isinstance(value, str) and _UINT.fullmatch(value) else UINT256_MAX + 1
    return number if number <= UINT256_MAX else None


def _evm_address(body: JsonObject, name: str, path: str) -> str:
    value = _member(body, name, path)
    if not isinstance(value, str) or _ADDRESS.fullmatch(value) is None:
        raise ApiError(
            Code.INVALID_ADDRESS, f"{path}{name} is not an Ethereum address", details={"field": f"{path}{name}"}
        )
    return value.lower()


def parse_authorization(body: JsonObject, path: str) -> Authorization:
    """The authorization object of specification 2.3; `validBefore` may also be a JSON integer.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_ADDRESS, INVALID_AMOUNT.
    """
    nonce = _member(body, "nonce", path)
    if not isinstance(nonce, str) or _BYTES32.fullmatch(nonce) is None:
        raise invalid(f"{path}nonce", f"{path}nonce must be 32 bytes in hex")
    return Authorization(
        payer=_evm_address(body, "from", path),
        pay_to=_evm_address(body, "to", path),
        value=parse_uint256(_member(body, "value", path), f"{path}value"),
        valid_after=_time(body, "validAfter", path),
        valid_before=_time(body, "validBefore", path, number_too=True),
        nonce=nonce.lower(),
    )


def parse_payload(body: JsonObject, path: str = "payload.") -> EvmPayload | SolanaPayload:
    """`payload` of specification 2.3, of either family. Raises: as `parse_authorization`."""
    if body.get("transaction") is not None:
        return SolanaPayload(_text(body, "transaction", path))
    signature = _member(body, "signature", path)
    if not isinstance(signature, str) or _HEX.fullmatch(signature) is None:
        raise invalid(f"{path}signature", f"{path}signature must be bytes in hex")
    authorization = parse_authorization(member_object(body, "authorization", path), f"{path}authorization.")
    return EvmPayload(authorization, bytes.fromhex(signature[2:]))


def parse_payment(body: JsonObject, path: str = "") -> Payment:
    """A payment payload (specification 2.3).

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_ADDRESS, INVALID_AMOUNT; an unsupported version, scheme or
    network is not an error here.
    """
    version, scheme, network = parse_payment_kind(body, path)
    return Payment(version, scheme, network, parse_payload(member_object(body, "payload", path), f"{path}payload."))


def parse_payment_kind(body: JsonObject, path: str = "") -> tuple[int, str, str]:
    """A payment's version, scheme and network, which say how its payload is to be read.

    Raises: MISSING_PARAMETER, INVALID_PARAMETER.
    """
    version = _member(body, "x402Version", path)
    if type(version) is not int:
        raise invalid(f"{path}x402Version", f"{path}x402Version must be an integer")
    return version, _text(body, "scheme", path), _text(body, "network", path)


def decode_payment_header(header: bytes) -> Payment:
    """The payment in an `X-Payment` value: standard padded base64 of UTF-8 JSON.

    Raises: PAYMENT_INVALID (type payment) for everything unreadable, with what was wrong in `details`.
    """
    return read_payment_header(header, "X-Payment", lambda data: parse_payment(as_object(parse_json(data))))


def read_payment_header(header: bytes, name: str, read: Callable[[bytes], Payment]) -> Payment:
    """Read the payment in the header of that name: standard padded base64 of what `read` takes.

    Raises: as `decode_payment_header`.
    """
    if len(header) > PAYMENT_HEADER_SIZE_BYTES:
        raise _unreadable("the header is too long", name)
    if not header.isascii():
        raise _unreadable(_NO_OBJECT, name)
    # The decoder of some Pythons takes padding after a whole group, so the length is judged here.
    if len(header) % 4 or _BASE64.fullmatch(header.decode("ascii")) is None:
        raise _unreadable("the header is not standard base64", name)
    try:
        return read(base64.b64decode(header, validate=True))
    except ApiError as error:
        raise _unreadable(error.message, name, error.details) from None
    except (ValueError, binascii.Error):
        raise _unreadable(_NO_OBJECT, name) from None


def as_object(value: object) -> JsonObject:
    """Take a JSON object. Raises: ValueError for anything else."""
    if not isinstance(value, dict):
        raise ValueError(_NO_OBJECT)  # noqa: TRY004 - what a stranger sent
    return value


def _unreadable(message: str, name: str, details: JsonObject | None = None) -> ApiError:
    found = failed_check("invalid_payload", "payload", "base64 of the JSON object of an x402 payment", message)
    return payment_error(Code.PAYMENT_INVALID, message, details={**found, "field": name, **(details or {})})


def payment_body(payment: Payment) -> JsonObject:
    """The canonical JSON object of a payment: what the gateway sends to a facilitator, and what is stored."""
    return {
        "x402Version": payment.x402_version,
        "scheme": payment.scheme,
        "network": payment.network,
        "payload": payment.payload.body(),
    }


def encode_payment_header(payment: Payment) -> str:
    """The `X-Payment` value of a payment."""
    return encode_header(payment_body(payment))


def encode_header(body: JsonObject) -> str:
    """Standard base64 of compact JSON, as all x402 headers are."""
    return base64.b64encode(json.dumps(body, separators=(",", ":")).encode()).decode()


def parse_requirements(body: JsonObject, amount: str = "maxAmountRequired") -> Requirements:
    """PaymentRequirements as a resource server sends them: what takes part in a settlement, and the resource.

    What else a seller says is not judged and not kept (contract 5.1). `amount` names the member that holds it. Raises:
    MISSING_PARAMETER, INVALID_PARAMETER, INVALID_AMOUNT.
    """
    path = "paymentRequirements."
    extra, resource = body.get("extra"), body.get("resource")
    timeout = body.get("maxTimeoutSeconds", 60)
    if type(timeout) is not int or timeout < 0:
        raise invalid(f"{path}maxTimeoutSeconds", f"{path}maxTimeoutSeconds must be a whole number of seconds")
    return Requirements(
        scheme=_text(body, "scheme", path),
        network=_text(body, "network", path),
        amount=parse_uint256(_member(body, amount, path), f"{path}{amount}"),
        asset=_lowered(_text(body, "asset", path)),
        pay_to=_lowered(_text(body, "payTo", path)),
        resource=_kept(resource) if isinstance(resource, str) else "",
        max_timeout_seconds=timeout,
        extra=taking_part(extra) if isinstance(extra, dict) else {},
    )


def taking_part(extra: JsonObject) -> dict[str, str]:
    """The members of `extra` that a scheme of ours knows: each is a text."""
    return {name: _kept(extra[name]) for name in _EXTRA if isinstance(extra.get(name), str)}


def _kept(text: str) -> str:
    """Return as much of a seller's text as is kept."""
    return text[:_TEXT_MAX].encode("utf-8", "replace").decode()


def _lowered(address: str) -> str:
    return address.lower() if address.startswith(("0x", "0X")) else address


def requirements_body(requirements: Requirements) -> JsonObject:
    """PaymentRequirements as `accepts` holds them: no nulls, amounts as strings (every official client reads it)."""
    return {
        "scheme": requirements.scheme,
        "network": requirements.network,
        "maxAmountRequired": str(requirements.amount),
        "resource": requirements.resource,
        "description": requirements.description,
        "mimeType": requirements.mime_type,
        "payTo": requirements.pay_to,
        "maxTimeoutSeconds": requirements.max_timeout_seconds,
        "asset": requirements.asset,
        "extra": requirements.extra,
    }
