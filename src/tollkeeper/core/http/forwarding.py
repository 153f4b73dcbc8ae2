"""Headers that cross the gateway, and the head that is sent to a target (contract 4.7, security A-37 to A-39).

Pure. A header is judged by its name in one spelling (lower case, every sign read as "-"), because a target may read
`X_Payment` or `X.Payment` as `X-Payment`: CGI, PHP and their kind do. Knows header names, not payments; opens no
connection (`tollkeeper.edge.target.forwarder`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from unicodedata import category, normalize
from urllib.parse import unquote_to_bytes

from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.http.target_addresses import TargetUrl

Header = tuple[bytes, bytes]

VIA: Final = b"1.1 tollkeeper"
NAME_REMEMBERED_BYTES: Final = 64

_HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"trailers",
        b"transfer-encoding",
        b"upgrade",
    }
)
# `X-Payment-Network` among them.
_PAYMENT_PREFIXES: Final = (b"x-payment", b"payment-", b"x-credit", b"x402-")
_PAYMENT: Final = frozenset({b"payment", b"x-payer", b"x-purchase-id"})
_CREDENTIALS: Final = frozenset({b"authorization", b"cookie", b"cookie2"})
# What a proxy in front, or a caller that plays one, says of the caller; and headers that change method or path.
_PROXY_PREFIXES: Final = (b"x-forwarded", b"x-paygate")
_PROXY: Final = frozenset(
    {
        b"cf-connecting-ip",
        b"client-ip",
        b"forwarded",
        b"true-client-ip",
        b"x-client-ip",
        b"x-cluster-client-ip",
        b"x-host",
        b"x-http-method",
        b"x-http-method-override",
        b"x-method-override",
        b"x-original-host",
        b"x-original-url",
        b"x-real-ip",
        b"x-request-id",
        b"x-rewrite-url",
    }
)
_REBUILT: Final = frozenset({b"content-length", b"expect", b"host"})
# Besides what is stripped: signatures are the gateway's to make, and so is the trace of its passing.
_NOT_THE_OWNERS: Final = frozenset({b"content-digest", b"signature", b"signature-input", b"via"})

# What would let a cache keep a paid answer, or is the gateway's to say of it.
_ABOUT_THE_ANSWER: Final = frozenset(
    {
        b"age",
        b"cache-control",
        b"content-length",
        b"edge-control",
        b"expires",
        b"pragma",
        b"via",
        b"x-content-type-options",
        b"x-request-id",
    }
)
# What a browser would apply to the whole origin, which is the gateway's.
_ABOUT_THE_ORIGIN: Final = frozenset(
    {
        b"accept-ch",
        b"alt-svc",
        b"clear-site-data",
        b"expect-ct",
        b"nel",
        b"public-key-pins",
        b"public-key-pins-report-only",
        b"report-to",
        b"service-worker-allowed",
        b"set-cookie",
        b"set-cookie2",
        b"set-login",
        b"strict-transport-security",
    }
)
_RESPONSE_DROPPED: Final = _ABOUT_THE_ANSWER | _ABOUT_THE_ORIGIN
# What a server or cache in front of the gateway would obey: hand out its own file, ask elsewhere, keep the answer, take
# the gateway for dead.
_TO_WHOM_STANDS_IN_FRONT: Final = (
    b"fly-replay",
    b"surrogate-",
    b"x-accel-",
    b"x-archive-files",
    b"x-envoy-",
    b"x-lighttpd-",
    b"x-litespeed-",
    b"x-reproxy-",
    b"x-sendfile",
)
_OF_A_CACHE_IN_FRONT: Final = b"-cache-control"
# CORS is the gateway's own.
_RESPONSE_DROPPED_PREFIXES: Final = (
    *_PAYMENT_PREFIXES,
    *_TO_WHOM_STANDS_IN_FRONT,
    b"access-control-",
    b"x-paygate",
)

_ON_EVERY_ANSWER: Final = (
    b"cache-control: private, no-store\r\nvary: X-Payment, Authorization\r\nx-content-type-options: nosniff\r\n"
)
_NO_SCRIPTS: Final = b"content-security-policy: sandbox\r\n"

_ONE_SPELLING: Final = (
    bytes(ord(sign) if sign.isalnum() else ord("-") for sign in map(str.lower, map(chr, range(128)))) + b"-" * 128
)
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_QUERY = re.compile(rb"[\x21\x22\x24-\x7e]*")  # printable, without "#"
_SUBPATH = re.compile(rb"(?:[A-Za-z0-9\-._~!$&'()*+,=:@/]|%[0-9A-Fa-f]{2})*")  # RFC 3986 pchar, without ";"
_PLAINEST_SUBPATH = re.compile(
    rb"(?:/[A-Za-z0-9\-_~][A-Za-z0-9\-._~!$&'()*+,=:@]*+)++/?"
)  # as most are: nothing to undo
# Escapes that a target may undo into a separator: "/", "\", ";", ".", control characters.
_SUBPATH_ESCAPES = re.compile(rb"%(?:2f|5c|3b|2e|[01][0-9a-f]|7f)", re.IGNORECASE)
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_SEPARATORS: Final = frozenset("./\\;%")  # also as what a wide or a ligature form is folded into
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class NameRules:
    """Rules that hold for one header name.

    `normal` is the one spelling that rules are written in. `is_token`: the name is valid at all. `is_protected`: the
    header carries a payment, a credit token or a login. `is_stripped`: it is kept from the target. `is_dropped`: it is
    kept from the caller.
    """

    normal: bytes
    is_token: bool
    is_protected: bool
    is_stripped: bool
    is_dropped: bool


def name_rules(name: bytes) -> NameRules:
    """The rules for `name` in any spelling."""
    # Long names are judged anew each time, so that what a caller invents cannot fill the memory of the cache.
    return _remembered_rules(name) if len(name) <= NAME_REMEMBERED_BYTES else _judge_name(name)


def _judge_name(name: bytes) -> NameRules:
    normal = name.translate(_ONE_SPELLING)
    is_payment = normal in _PAYMENT or normal.startswith(_PAYMENT_PREFIXES)
    is_hop_by_hop = normal in _HOP_BY_HOP
    is_protected = is_payment or normal in _CREDENTIALS
    is_of_proxy = normal in _PROXY or normal.startswith(_PROXY_PREFIXES)
    return NameRules(
        normal,
        is_token=_TOKEN.fullmatch(name) is not None,
        is_protected=is_protected,
        is_stripped=is_hop_by_hop or is_protected or is_of_proxy or normal in _REBUILT,
        is_dropped=is_hop_by_hop
        or is_payment
        or normal in _RESPONSE_DROPPED
        or normal.startswith(_RESPONSE_DROPPED_PREFIXES)
        or normal.endswith(_OF_A_CACHE_IN_FRONT),
    )


_remembered_rules = lru_cache(maxsize=4096)(_judge_name)


def is_target_header_allowed(name: bytes) -> bool:
    """Return True if an owner may set this name in `targetHeaders` (contract 3.1)."""
    rules = name_rules(name)
    return rules.is_token and not rules.is_stripped and rules.normal not in _NOT_THE_OWNERS


def request_target(target: TargetUrl, subpath: bytes, query: bytes) -> bytes:
    """Path and query of the request to the target.

    `subpath` (raw, b"" or starting with "/") is put below the target's path and never climbs out of it; the caller's
    raw `query` is appended to the target's own. Raises INVALID_PARAMETER.
    """
    path = target.path.encode("ascii")
    if subpath:
        path = path.rstrip(b"/") + check_subpath(subpath)
    if query and not _QUERY.fullmatch(query):
        raise invalid("query", "the query contains characters that must be percent-encoded")
    own_query = target.query.encode("ascii")
    if own_query and query:
        return b"%b?%b&%b" % (path, own_query, query)
    return path + b"?" + (own_query or query) if own_query or query else path


def header_lines(headers: Iterable[Header]) -> bytes:
    """Headers as they stand in a head."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def gateway_headers(
    *, slug: str, payer: str, purchase_id: str, request_id: str, client: str, scheme: str, host: str
) -> list[Header]:
    """Return the headers that tell a target of the gateway and of the call (contract 4.7).

    `client` is the caller's address; `scheme` and `host` are those of the public URL.
    """
    named = {
        "x-paygate-slug": slug,
        "x-payer": payer,
        "x-purchase-id": purchase_id,
        "x-request-id": request_id,
        "x-forwarded-for": client,
        "x-forwarded-proto": scheme,
        "x-forwarded-host": host,
    }
    return [(name.encode("ascii"), value.encode("ascii")) for name, value in named.items() if value]


def encode_request_head(method: str, path_and_query: bytes, headers: Iterable[Header]) -> bytes:
    """A request head on the wire. Raises ValueError when a part would break out of its line."""
    if not _TOKEN.fullmatch(method.encode("ascii")) or not re.fullmatch(rb"/[\x21-\x7e]*", path_and_query):
        raise ValueError("the request line has a part that cannot be sent")
    lines = [b"%b %b HTTP/1.1\r\n" % (method.encode("ascii"), path_and_query)]
    lines.extend(b"%b: %b\r\n" % header for header in headers)
    lines.append(b"\r\n")
    return b"".join(lines)


def guards(content_type: bytes | None) -> bytes:
    """Return the lines that stand on every answer of a target, whose `Content-Type` this is.

    No cache keeps it, and no browser takes it for what it does not say it is (security A-38, A-39).
    """
    is_clear = content_type is not None and len(content_type) <= NAME_REMEMBERED_BYTES
    return _remembered_guards(content_type) if is_clear else _guards(content_type)


def _guards(content_type: bytes | None) -> bytes:
    return _ON_EVERY_ANSWER + _NO_SCRIPTS if _may_run_scripts(content_type) else _ON_EVERY_ANSWER


_remembered_guards = lru_cache(maxsize=1024)(_guards)


def _may_run_scripts(content_type: bytes | None) -> bool:
    """Return True if a browser could run scripts of the body: HTML, XML, SVG, or a body without one clear type."""
    if content_type is None or b"," in content_type:
        return True
    media_type = content_type.partition(b";")[0].strip().lower()
    return b"/" not in media_type or b"ml" in media_type or b"svg" in media_type or media_type.startswith(b"multipart/")


def is_plain_subpath(subpath: bytes) -> bool:
    """Can every reader only understand this path in one way, however often it undoes escapes and whatever it folds?"""
    if _PLAINEST_SUBPATH.fullmatch(subpath):
        return True
    if not (subpath.startswith(b"/") and _SUBPATH.fullmatch(subpath)) or _SUBPATH_ESCAPES.search(subpath):
        return False
    try:
        text = unquote_to_bytes(subpath).decode("utf-8")
    except UnicodeDecodeError:  # an overlong "/" too
        return False
    if _ESCAPE.search(text):  # it would be undone where escapes are undone twice
        return False
    for character in "" if text.isascii() else text:
        if not character.isascii() and (
            _SEPARATORS & set(normalize("NFKC", character)) or category(character) in _INVISIBLE
        ):
            return False
    segments = text.split("/")[1:]
    return not any(segment == "" for segment in segments[:-1]) and not any(
        segment and not segment.strip(". ") for segment in segments
    )


def check_subpath(subpath: bytes) -> bytes:
    """Return a path below a slug that is plain. Raises INVALID_PARAMETER for another."""
    if not is_plain_subpath(subpath):
        raise ApiError(
            Code.INVALID_PARAMETER,
            "the path below the slug contains a part that could be read in two ways",
            details={"field": "path"},
        )
    return subpath
