"""PayGates: their fields, and the parsing of create and update (specification 2.1, contract 3).

A value that is not built yet is refused with INVALID_PARAMETER, never ignored. What needs a name server or a database
(is the target's address public, is the slug taken) is decided by the gateway.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.errors import ApiError, Code, invalid, missing
from tollkeeper.core.evm import ZERO_ADDRESS, checksum_address, parse_address
from tollkeeper.core.limits import CREDITS_MAX, DESCRIPTION_LENGTH, FORMER_PRICE_SECONDS, TITLE_LENGTH
from tollkeeper.core.networks import NETWORKS, Family, normalise
from tollkeeper.core.strict_json import NumberText
from tollkeeper.core.usdc import format_usdc, parse_usdc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RESERVED_SLUGS: Final = frozenset(
    [
        "api",
        "hub",
        "app",
        "ops",
        "files",
        "docs",
        "openapi.json",
        "healthz",
        "readyz",
        "metrics",
        "assets",
        "favicon.ico",
        "robots.txt",
        "llms.txt",
        "mcp",
        "receipt",
        ".well-known",
        "verify",
        "settle",
        "supported",
        "transfer",
        "payments",
        "discovery",
    ]
)
_SLUG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,63}", re.ASCII)
_MIME_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class FormerPrice:
    """Terms that a buyer may have been shown before an update; good until `until_ms` (contract 3.3)."""

    price_micro: int
    credits: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class PayGate:
    """One PayGate. `version` counts its updates; `payment_address` is lower case on EVM."""

    id: int
    slug: str
    version: int
    target_url: str
    price_micro: int
    credits: int
    methods: tuple[str, ...]
    title: str
    description: str
    assume_valid: bool
    require_auth: bool
    network: str
    payment_address: str
    mime_type: str
    is_enabled: bool
    owner_wallet: str | None
    created_ms: int
    updated_ms: int
    former: tuple[FormerPrice, ...] = ()

    def allows(self, method: str) -> bool:
        """May this HTTP method be called? GET implies HEAD (contract 3.1)."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    @property
    def allow(self) -> str:
        """The `Allow` header of a 405."""
        implied = ("HEAD",) if "GET" in self.methods and "HEAD" not in self.methods else ()
        return ", ".join((*self.methods, *implied))


@dataclass(frozen=True, slots=True)
class CreateDefaults:
    """What a create falls back to, and the addresses that may never be paid (the tokens, our own signers)."""

    network: str
    payment_address: str | None
    forbidden_addresses: frozenset[str] = frozenset()


# Fields whose other values come with a later capability: the one value that means today's behaviour.
_FIXED: Final[dict[str, Any]] = {
    "headerAuthMode": "none",
    "resourceType": "url",
    "allowSubpaths": False,
    "stream": False,
    "creditBinding": "payment",
    "onFailure": "consume",
    "accepts": [],
    "targetHeaders": {},
}


def _boolean(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, f"{name} must be true or false")
    return value


def _text(value: object, name: str, length: int) -> str:
    if not isinstance(value, str) or len(value) > length:
        raise invalid(name, f"{name} must be a string of at most {length} characters")
    if _CONTROL.search(value):
        raise invalid(name, f"{name} must not contain control characters")
    return value


def parse_price(value: object) -> int:
    """Micro-units of a price given as a decimal string, or as a JSON number whose text is one.

    Raises: INVALID_AMOUNT.
    """
    if type(value) is int:
        return parse_usdc(str(value))
    return parse_usdc(value.text if isinstance(value, NumberText) else value)


def parse_credits(value: object) -> int:
    """Calls per purchase, 1 to CREDITS_MAX. Raises: INVALID_PARAMETER."""
    if type(value) is not int or not 1 <= value <= CREDITS_MAX:
        raise invalid("credits", f"credits must be an integer from 1 to {CREDITS_MAX}")
    return value


def parse_methods(value: object) -> tuple[str, ...]:
    """HTTP methods of a comma-separated list, upper case, each once. Raises: INVALID_PARAMETER."""
    names = [name.strip().upper() for name in value.split(",")] if isinstance(value, str) else []
    if not names or any(name not in METHODS for name in names):
        raise invalid("method", f"method must be a comma-separated list of {', '.join(METHODS)}")
    return tuple(dict.fromkeys(names))


def parse_slug(value: object) -> str:
    """An owner's own slug. Raises: INVALID_PARAMETER for a bad or reserved one."""
    if not isinstance(value, str) or _SLUG.fullmatch(value) is None:
        raise invalid("slug", "slug must be 3 to 64 letters, digits, _ or -, and begin with a letter or digit")
    if value.lower() in RESERVED_SLUGS:
        raise invalid("slug", "slug is reserved")
    return value


def is_slug(text: str) -> bool:
    """Could this path segment be a gate's slug?"""
    return _SLUG.fullmatch(text) is not None


def random_slug(random: bytes) -> str:
    """A slug of one base62 character per random byte below 248 (no bias); shorter when bytes had to be left out."""
    return "".join(BASE62[byte % 62] for byte in random if byte < 248)


def _mime_type(value: object) -> str:
    if not isinstance(value, str) or _MIME_TYPE.fullmatch(value) is None:
        raise invalid("mimeType", "mimeType must be a media type such as application/json")
    return value


def _target_url(value: object) -> str:
    # Form and address are judged by the edge's address policy; here it only has to be text.
    if not isinstance(value, str) or not value:
        raise invalid("targetUrl", "targetUrl must be a URL")
    return value


_PARSERS: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "targetUrl": ("target_url", _target_url),
    "price": ("price_micro", parse_price),
    "credits": ("credits", parse_credits),
    "method": ("methods", parse_methods),
    "title": ("title", lambda value: _text(value, "title", TITLE_LENGTH)),
    "description": ("description", lambda value: _text(value, "description", DESCRIPTION_LENGTH)),
    "assumeValid": ("assume_valid", lambda value: _boolean(value, "assumeValid")),
    "requireAuth": ("require_auth", lambda value: _boolean(value, "requireAuth")),
    "isEnabled": ("is_enabled", lambda value: _boolean(value, "isEnabled")),
    "mimeType": ("mime_type", _mime_type),
    "network": ("network", lambda value: normalise(value).name),
    "paymentAddress": ("payment_address", lambda value: value),
}
_CREATE_DEFAULTS: Final[dict[str, Any]] = {
    "credits": 1,
    "methods": ("GET",),
    "title": "",
    "description": "",
    "assume_valid": False,
    "require_auth": False,
    "is_enabled": True,
    "mime_type": "application/json",
}


def _parse_fields(body: dict[str, Any], also_known: Iterable[str] = ()) -> dict[str, Any]:
    known = {*_PARSERS, *_FIXED, "creditsExpireAfter", *also_known}
    for name in body:
        if name not in known:
            raise invalid(name, f"{name} is not a field that can be set")
    for name, only in _FIXED.items():
        if name in body and (body[name] != only or type(body[name]) is not type(only)):
            raise invalid(name, f"{name} takes only {json.dumps(only)} in this version")
    if body.get("creditsExpireAfter") is not None:
        raise invalid("creditsExpireAfter", "creditsExpireAfter is not available in this version")
    return {attribute: parse(body[name]) for name, (attribute, parse) in _PARSERS.items() if name in body}


def check_payment_address(value: object, network: str, forbidden: frozenset[str]) -> str:
    """A recipient on this network, in its canonical form.

    Raises: INVALID_ADDRESS (of another family, a wrong checksum, zero, a token, one of our signers).
    """
    if NETWORKS[network].family is not Family.EVM:
        raise ApiError(
            Code.INVALID_NETWORK, f"{network} is not enabled for PayGates here", details={"field": "network"}
        )
    address = parse_address(value, field="paymentAddress")
    if address == ZERO_ADDRESS or address in forbidden:
        raise ApiError(Code.INVALID_ADDRESS, "paymentAddress may not be paid", details={"field": "paymentAddress"})
    return address


@dataclass(frozen=True, slots=True)
class NewPayGate:
    """A parsed create: everything of a PayGate but what the database gives it."""

    slug: str | None
    fields: dict[str, Any]


def parse_create(body: dict[str, Any], defaults: CreateDefaults) -> NewPayGate:
    """The fields of a create (contract 3.1).

    Raises: MISSING_PARAMETER, INVALID_PARAMETER, INVALID_AMOUNT, INVALID_ADDRESS, INVALID_NETWORK.
    """
    for required in ("price", "targetUrl"):
        if body.get(required) in (None, ""):  # a set would want a hashable value, which JSON need not be
            raise missing(required)
    fields = {"network": defaults.network, **_CREATE_DEFAULTS, **_parse_fields(body, ("slug",))}
    address = fields.get("payment_address", defaults.payment_address)
    if address is None:
        raise missing("paymentAddress")
    fields["payment_address"] = check_payment_address(address, fields["network"], defaults.forbidden_addresses)
    slug = parse_slug(body["slug"]) if body.get("slug") is not None else None
    return NewPayGate(slug, fields)


def updated(gate: PayGate, body: dict[str, Any], now_ms: int, forbidden: frozenset[str]) -> PayGate:
    """The gate as an update leaves it: any subset of fields, all or nothing (specification 2.1 rules 3 and 4).

    Raises: as `parse_create`; also when nothing is given.
    """
    if not body:
        raise ApiError(Code.INVALID_PARAMETER, "the update names no field")
    if "slug" in body:
        raise invalid("slug", "slug cannot change")
    fields = _parse_fields(body)
    network = fields.get("network", gate.network)
    address = fields.get("payment_address", gate.payment_address)
    fields["payment_address"] = check_payment_address(address, network, forbidden)
    return replace(gate, **fields, version=gate.version + 1, updated_ms=max(now_ms, gate.updated_ms), former=())


@dataclass(frozen=True, slots=True)
class FormerVersion:
    """What a version of a gate sold, and when the next one took its place."""

    price_micro: int
    credits: int
    network: str
    payment_address: str
    replaced_ms: int


def with_former_prices(gate: PayGate, versions: Iterable[FormerVersion]) -> PayGate:
    """The gate with what its former versions (newest first) still sell (contract 3.3).

    A former price sells for FORMER_PRICE_SECONDS, to the same recipient on the same network only; the current price
    sells the current terms, however it was before.
    """
    former: dict[int, FormerPrice] = {}
    for version in versions:
        is_same_sale = (version.network, version.payment_address) == (gate.network, gate.payment_address)
        if is_same_sale and version.price_micro != gate.price_micro:
            until_ms = version.replaced_ms + FORMER_PRICE_SECONDS * 1000
            former.setdefault(version.price_micro, FormerPrice(version.price_micro, version.credits, until_ms))
    return replace(gate, former=tuple(former.values()))


@dataclass(frozen=True, slots=True)
class Counters:
    """What a gate has done so far; revenue in micro-units."""

    challenges: int = 0
    purchases: int = 0
    calls: int = 0
    failures: int = 0
    revenue_micro: int = 0


def paygate_body(gate: PayGate, counters: Counters, access_url: str, iso: Callable[[int], str]) -> dict[str, Any]:
    """A PayGate as it is read (contract 3.1)."""
    return {
        "id": gate.id,
        "slug": gate.slug,
        "accessUrl": access_url,
        "targetUrl": gate.target_url,
        "price": format_usdc(gate.price_micro),
        "credits": gate.credits,
        "method": ",".join(gate.methods),
        "title": gate.title,
        "description": gate.description,
        "assumeValid": gate.assume_valid,
        "requireAuth": gate.require_auth,
        "paymentAddress": checksum_address(gate.payment_address),
        "network": gate.network,
        "mimeType": gate.mime_type,
        "isEnabled": gate.is_enabled,
        **_FIXED,
        "targetHeaders": [],
        "creditsExpireAfter": None,
        "ownerWallet": None if gate.owner_wallet is None else checksum_address(gate.owner_wallet),
        "createdAt": iso(gate.created_ms),
        "updatedAt": iso(gate.updated_ms),
        "counters": {
            "challenges": counters.challenges,
            "purchases": counters.purchases,
            "calls": counters.calls,
            "failures": counters.failures,
            "revenue": format_usdc(counters.revenue_micro),
        },
    }
