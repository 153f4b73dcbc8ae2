"""The fields of a PayGate that an owner sets: how each is read from JSON or a form, and its default (contract 3.1).

`SETTABLE` is the one table of them. What fields mean together, and what a gate is, is `model`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tollkeeper.core.api.errors import ApiError, invalid
from tollkeeper.core.api.strict_json import NumberText, parse_json
from tollkeeper.core.http.forwarding import is_target_header_allowed, name_rules
from tollkeeper.core.limits import (
    ACCEPTS_MAX,
    CREDITS_EXPIRE_AFTER_MAX_SECONDS,
    CREDITS_MAX,
    DESCRIPTION_LENGTH,
    TARGET_HEADERS_MAX,
    TARGET_HEADERS_SIZE_BYTES,
    TITLE_LENGTH,
)
from tollkeeper.core.networks import normalise
from tollkeeper.core.usdc import parse_usdc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tollkeeper.core.json_types import JsonObject

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
RESERVED_SLUGS: Final = frozenset(
    (
        *("api", "hub", "app", "ops", "files", "docs", "openapi.json", "healthz", "readyz", "metrics", "assets"),
        *("favicon.ico", "robots.txt", "llms.txt", "mcp", "receipt", ".well-known"),
        *("verify", "settle", "supported", "transfer", "payments", "discovery"),
    )
)
_SLUG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{2,63}", re.ASCII)
_MIME_TYPE: Final = re.compile(r"[A-Za-z0-9!#$&^_.+-]{1,127}/[A-Za-z0-9!#$&^_.+-]{1,127}", re.ASCII)
_HEADER_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?", re.ASCII)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")

BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


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
    """Tell whether this path segment could be a gate's slug."""
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


def _one_of(choices: type[StrEnum], value: object, name: str) -> StrEnum:
    if not isinstance(value, str) or value not in set(choices):
        raise invalid(name, f"{name} must be one of {', '.join(choices)}")
    return choices(value)


class HeaderAuthMode(StrEnum):
    """Ways to authenticate forwarded requests: not at all, or by a signature (contract 4.7)."""

    NONE = "none"
    HMAC = "hmac"


class CreditBinding(StrEnum):
    """Proofs that a call must show to spend a credit that was bought before (contract 4.3)."""

    PAYMENT = "payment"
    TOKEN = "token"  # noqa: S105 - a word of the contract, no secret
    WALLET = "wallet"


class OnFailure(StrEnum):
    """Fates of the credit of a call whose target failed (specification 1.5, contract 4.5)."""

    CONSUME = "consume"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Recipient:
    """Address that is paid on a network."""

    network: str
    payment_address: str


def _accepts(value: object) -> tuple[Recipient, ...]:
    if not isinstance(value, list) or len(value) > ACCEPTS_MAX:
        raise invalid("accepts", f"accepts must be a list of at most {ACCEPTS_MAX} objects")
    recipients: list[Recipient] = []
    for entry in value:
        if not isinstance(entry, dict) or entry.keys() != {"network", "paymentAddress"}:
            raise invalid("accepts", "each of accepts must have network and paymentAddress, and nothing else")
        try:
            recipients.append(Recipient(normalise(entry["network"]).name, entry["paymentAddress"]))
        except ApiError as error:
            raise within(error, "accepts") from None
    return tuple(recipients)


def within(error: ApiError, field: str) -> ApiError:
    """The refusal of a part of a field, as one of the field."""
    return ApiError(error.code, error.message, details={**(error.details or {}), "field": field})


def _target_headers(value: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or len(value) > TARGET_HEADERS_MAX:
        raise invalid("targetHeaders", f"targetHeaders must be an object of at most {TARGET_HEADERS_MAX} headers")
    names: set[bytes] = set()
    for name, text in value.items():
        if not name.isascii() or not is_target_header_allowed(name.encode()):
            message = f"targetHeaders: {name[:64]!a} is no header name, or the gateway's to send or to keep back"
            raise invalid("targetHeaders", message)
        if not isinstance(text, str) or _HEADER_VALUE.fullmatch(text) is None:
            raise invalid("targetHeaders", f"targetHeaders: the value of {name[:64]} must be printable ASCII text")
        names.add(name_rules(name.encode()).normal)
    if len(names) != len(value):
        raise invalid("targetHeaders", "targetHeaders has a name in two spellings")
    if sum(len(name) + len(text) for name, text in value.items()) > TARGET_HEADERS_SIZE_BYTES:
        raise invalid("targetHeaders", f"targetHeaders must have at most {TARGET_HEADERS_SIZE_BYTES} characters in all")
    return tuple(value.items())


def _expire_after(value: object) -> int | None:
    if value is not None and (type(value) is not int or not 1 <= value <= CREDITS_EXPIRE_AFTER_MAX_SECONDS):
        message = f"creditsExpireAfter must be null or an integer from 1 to {CREDITS_EXPIRE_AFTER_MAX_SECONDS} seconds"
        raise invalid("creditsExpireAfter", message)
    return value


class FormText(Enum):
    """Kinds of JSON values that a form's text stands for (`form_fields`)."""

    STRING = auto()
    NUMBER = auto()
    BOOLEAN = auto()
    JSON = auto()


_NO_DEFAULT: Final = object()


class SettableField(NamedTuple):
    """One field: its name in a PayGate, how its JSON value is read, what a form's text of it is, and its default."""

    attribute: str
    parse: Callable[[Any], Any]
    text: FormText = FormText.STRING
    default: object = _NO_DEFAULT
    is_of_targets: bool = False  # it speaks of a target, which a file PayGate does not have


def _flag(name: str, attribute: str, *, default: bool = False, is_of_targets: bool = False) -> SettableField:
    return SettableField(attribute, partial(_boolean, name=name), FormText.BOOLEAN, default, is_of_targets)


def _choice(name: str, attribute: str, default: StrEnum, *, is_of_targets: bool = False) -> SettableField:
    parse = partial(_one_of, type(default), name=name)
    return SettableField(attribute, parse, default=default, is_of_targets=is_of_targets)


# By their names on the wire, in the order in which they are read. docs/architecture.md 8 has the way of a new one.
SETTABLE: Final[dict[str, SettableField]] = {
    "targetUrl": SettableField("target_url", _target_url, is_of_targets=True),
    "price": SettableField("price_micro", parse_price),
    "credits": SettableField("credits", parse_credits, FormText.NUMBER, default=1),
    "method": SettableField("methods", parse_methods, default=("GET",)),
    "title": SettableField("title", partial(_text, name="title", length=TITLE_LENGTH), default=""),
    "description": SettableField(
        "description", partial(_text, name="description", length=DESCRIPTION_LENGTH), default=""
    ),
    "assumeValid": _flag("assumeValid", "assume_valid"),
    "requireAuth": _flag("requireAuth", "require_auth"),
    "headerAuthMode": _choice("headerAuthMode", "header_auth_mode", HeaderAuthMode.NONE, is_of_targets=True),
    "creditBinding": _choice("creditBinding", "credit_binding", CreditBinding.PAYMENT),
    "onFailure": _choice("onFailure", "on_failure", OnFailure.CONSUME, is_of_targets=True),
    "creditsExpireAfter": SettableField("credits_expire_after_seconds", _expire_after, FormText.NUMBER, default=None),
    "accepts": SettableField("accepts", _accepts, FormText.JSON, default=()),
    "allowSubpaths": _flag("allowSubpaths", "allow_subpaths", is_of_targets=True),
    "targetHeaders": SettableField("target_headers", _target_headers, FormText.JSON, default=(), is_of_targets=True),
    "stream": _flag("stream", "stream", is_of_targets=True),
    "payerProof": _flag("payerProof", "payer_proof"),
    "isEnabled": _flag("isEnabled", "is_enabled", default=True),
    "mimeType": SettableField("mime_type", _mime_type, default="application/json"),
    "network": SettableField("network", lambda value: normalise(value).name),
    "paymentAddress": SettableField("payment_address", lambda value: value),
}
OF_TARGETS: Final = frozenset(name for name, field in SETTABLE.items() if field.is_of_targets)
CREATE_DEFAULTS: Final[JsonObject] = {
    field.attribute: field.default for field in SETTABLE.values() if field.default is not _NO_DEFAULT
}


def refuse_file_in_json(body: JsonObject) -> None:
    """Say how a file is sent, before anything is called missing. Raises: INVALID_PARAMETER."""
    if "file" in body:
        raise invalid("file", "a file is sent as multipart/form-data, not as JSON")
    if body.get("resourceType", "url") != "url":
        raise invalid("resourceType", "resourceType must be url; a file is sent as multipart/form-data, with file")


def parse_fields(body: JsonObject, also_known: Iterable[str] = ()) -> JsonObject:
    """The fields that are there, by their names in a PayGate. Raises: INVALID_PARAMETER and what each field raises."""
    known = {*SETTABLE, "resourceType", *also_known}
    refuse_file_in_json(body)
    for name in body:
        if name not in known:
            raise invalid(name, f"{name} is not a field that can be set")
    return {field.attribute: field.parse(body[name]) for name, field in SETTABLE.items() if name in body}


# The fields of a PayGate as a form sends them, which knows only text (contract 3.1, specification 2.1 rule 5). A form's
# fields become the JSON values that `parse_fields` reads; what a text cannot be is refused by the field's name. The
# file itself is not among them.


def form_fields(pairs: Iterable[tuple[str, str]]) -> JsonObject:
    """The fields with their values as JSON has them. Raises: INVALID_PARAMETER; also for one that came twice."""
    fields: dict[str, Any] = {}
    for name, text in pairs:
        if name in fields:
            raise invalid(name, f"{name} came twice")
        fields[name] = _value(name, text)
    return fields


def _value(name: str, text: str) -> Any:  # noqa: ANN401 - JSON
    kind = SETTABLE[name].text if name in SETTABLE else FormText.STRING
    if kind is FormText.BOOLEAN:
        if text not in {"true", "false"}:
            raise invalid(name, f"{name} must be true or false")
        return text == "true"
    if kind is FormText.NUMBER:
        if not (text.isascii() and text.isdigit() and len(text) <= 16):
            raise invalid(name, f"{name} must be a whole number")
        return int(text)
    if kind is FormText.JSON:
        try:
            return parse_json(text.encode())
        except ValueError:
            raise invalid(name, f"{name} must be JSON") from None
    return text
