"""Target URLs and addresses that a PayGate may point at (contract 3.4, security A-41).

Pure: parses a URL, refuses what is ambiguous, and judges addresses by a table of its own, because Python's `is_global`
calls NAT64, 6to4 and others public. Resolves no name (`tollkeeper.edge.target.addresses` does).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from encodings.idna import ToASCII, nameprep
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

from tollkeeper.core.api.errors import ApiError, invalid
from tollkeeper.core.limits import TARGET_URL_LENGTH

FIELD: Final = "targetUrl"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_SCHEME = re.compile(r"(?i)(https?)://", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_DOTTED_QUAD = re.compile(r"(?:0|[1-9][0-9]{0,2})(?:\.(?:0|[1-9][0-9]{0,2})){3}", re.ASCII)
_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*", re.ASCII)
# RFC 3986 pchar and "/" for the path, "?" besides for the query; every percent sign starts a whole escape.
_PATH = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*", re.ASCII)
_QUERY = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|]|%[0-9A-Fa-f]{2})*", re.ASCII)
_DOT_SEGMENT = re.compile(r"(?:^|/)(?:\.|%2e){1,2}(?:/|$)", re.ASCII | re.IGNORECASE)
# Full stops that name mapping takes for a dot (RFC 3490 3.1).
_FOREIGN_DOTS: Final = frozenset("\u3002\uff0e\uff61")

# IANA special-purpose registry, with the addresses that clouds answer their metadata on.
_NOT_PUBLIC_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared by carriers; 100.100.100.200 is Alibaba's metadata
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's platform address
        "169.254.0.0/16",  # link-local, metadata
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; 192.0.0.192 is Oracle's metadata
        "192.0.2.0/24",  # documentation
        "192.31.196.0/24",  # AS112
        "192.52.193.0/24",  # AMT
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "192.175.48.0/24",  # AS112
        "198.18.0.0/15",  # benchmarking
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)
_GLOBAL_UNICAST_V6: Final = IPv6Network("2000::/3")  # all that was ever handed out; NAT64 and 5f00::/16 lie outside
_NOT_PUBLIC_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: carries any IPv4 address
        "2620:4f:8000::/48",  # AS112
        "3ffe::/16",  # 6bone, returned
        "3fff::/20",  # documentation
    )
)
# Refused in development too: never a target, or the metadata of the machine that one develops on.
_NEVER_V4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "100.100.100.200/32",  # Alibaba's metadata
        "168.63.129.16/32",  # Azure's platform address
        "169.254.0.0/16",  # link-local, everybody else's metadata
        "192.0.0.192/32",  # Oracle's metadata
        "224.0.0.0/4",
        "255.255.255.255/32",
    )
)
_NEVER_V6: Final = tuple(
    IPv6Network(text)
    for text in (
        "::/128",
        "fd00:42::42/128",  # Scaleway's metadata
        "fd00:c1::a9fe:a9fe/128",  # Oracle's
        "fd00:ec2::254/128",  # Amazon's
        "fd20:ce::254/128",  # Google's
        "fe80::/10",
        "ff00::/8",
    )
)
# A translator reads the last 32 bits of these as an IPv4 address (RFC 6052, 8215).
_NAT64: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))


@dataclass(frozen=True, slots=True)
class TargetUrl:
    """A target URL that was taken apart once and checked.

    `host` is what is resolved and named to TLS: a lower-case ASCII name, or an address without brackets. `path`
    starts with "/"; `query` has no "?" ("" when there is none). Both are sent as they stand.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str

    @property
    def authority(self) -> str:
        """The value of `Host`: host in URL form, with the port unless it is the scheme's own."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if DEFAULT_PORTS[self.scheme] == self.port else f"{host}:{self.port}"

    @property
    def text(self) -> str:
        """The URL in its normal form."""
        return f"{self.scheme}://{self.authority}{self.path}" + (f"?{self.query}" if self.query else "")


def check_target_url(url: str, *, allow_private: bool) -> TargetUrl:
    """Take `url` apart, and judge its host where that is an address; a name is judged when it is resolved.

    `allow_private` as in `is_target_address`. Raises: INVALID_PARAMETER.
    """
    target = parse_target_url(url)
    address = parse_address(target.host)
    if address is not None and not is_target_address(address, allow_private=allow_private):
        raise _refused(not_allowed("the address is not a public one", address, allow_private=allow_private))
    return target


def not_allowed(what: str, address: IPv4Address | IPv6Address | None, *, allow_private: bool) -> str:
    """Say why a target is refused, and which setting helps, where one does. `address`: where it is refused for one."""
    helps = not allow_private and (address is None or is_target_address(address, allow_private=True))
    return f"{what} (the setting allow_private_targets allows it)" if helps else what


def parse_target_url(url: str) -> TargetUrl:
    """Take `url` apart; refuse everything that two readers could understand differently. Raises: INVALID_PARAMETER."""
    if len(url) > TARGET_URL_LENGTH:
        raise _refused(f"at most {TARGET_URL_LENGTH} characters")
    scheme_match = _SCHEME.match(url)
    if scheme_match is None:
        raise _refused("must start with http:// or https://")
    if "#" in url:
        raise _refused("must not have a fragment")
    scheme = scheme_match[1].lower()
    authority, path, query = _split(url[scheme_match.end() :])
    if "@" in authority:
        raise _refused("must not contain a user name or password")
    host_text, port = _split_port(authority, DEFAULT_PORTS[scheme])
    host = _check_host(host_text)
    if not _PATH.fullmatch(path) or not _QUERY.fullmatch(query):
        raise _refused("path and query must be percent-encoded ASCII")
    if _DOT_SEGMENT.search(path):
        raise _refused("the path must not contain dot segments")
    return TargetUrl(scheme, host, port, path, query)


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """`text` as an address if it is one in canonical dotted-quad or in IPv6 form without zone, else None."""
    try:
        if ":" in text:
            return None if "%" in text else IPv6Address(text)
        return IPv4Address(text) if _DOTTED_QUAD.fullmatch(text) else None
    except ValueError:
        return None


def is_public_unicast(address: IPv4Address | IPv6Address) -> bool:
    """Return True if anybody on the internet can be reached at `address`.

    IPv6 forms that carry an IPv4 address (mapped, NAT64, 6to4, Teredo) are not public, whatever they carry.
    """
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_V4)
    return address in _GLOBAL_UNICAST_V6 and not any(address in network for network in _NOT_PUBLIC_V6)


def is_target_address(address: IPv4Address | IPv6Address, *, allow_private: bool) -> bool:
    """Return True if a target may be at `address`.

    `allow_private` (development) permits loopback and private networks. Unspecified, multicast, broadcast and
    link-local addresses are never permitted, nor the metadata addresses of clouds, in whatever IPv6 form.
    """
    if not allow_private:
        return is_public_unicast(address)
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NEVER_V4)
    if (carried := _carried(address)) is not None:
        return is_target_address(carried, allow_private=allow_private)
    return not any(address in network for network in _NEVER_V6)


def _carried(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that a connection to `address` may end at: of a mapped, NAT64 or 6to4 address."""
    if any(address in network for network in _NAT64):
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour


def _refused(message: str) -> ApiError:
    return invalid(FIELD, f"{FIELD}: {message}")


def _split(rest: str) -> tuple[str, str, str]:
    """Authority, path ("/" if there is none) and query of what follows the scheme."""
    before_query, _, query = rest.partition("?")
    authority, slash, path = before_query.partition("/")
    return authority, slash + path or "/", query


def _split_port(authority: str, default_port: int) -> tuple[str, int]:
    if authority.startswith("["):
        host, bracket, port_text = authority.partition("]")
        host += bracket
        if port_text and not port_text.startswith(":"):
            raise _refused("the host is not a name or an address")
        colon, port_text = port_text[:1], port_text[1:]
    else:
        host, colon, port_text = authority.partition(":")
    if not colon:
        return host, default_port
    if not _PORT.fullmatch(port_text) or int(port_text) > 65535:
        raise _refused("the port must be 1 to 65535")
    return host, int(port_text)


def _check_host(text: str) -> str:
    """The host in the form that is resolved. Raises INVALID_PARAMETER."""
    if text.startswith("["):
        address = parse_address(text[1:-1]) if text.endswith("]") else None
        if not isinstance(address, IPv6Address):
            raise _refused("the host in brackets is not an IPv6 address")
    elif _NUMERIC_LABEL.fullmatch(text.rpartition(".")[2]):
        # A host whose last label is a number is an address to every resolver: only its canonical form is taken.
        address = parse_address(text)
        if address is None:
            raise _refused("an IPv4 address must be four decimal numbers without leading zeros")
    else:
        return _check_name(text)
    return str(address)


def _check_name(text: str) -> str:
    """A host name in ASCII: labels of LDH and underscore, at most 253 characters in all."""
    labels = [_ascii_label(label) for label in text.split(".")]
    name = ".".join(labels)
    if len(name) > 253:
        raise _refused("the host is not a name or an address")
    return name


def _ascii_label(label: str) -> str:
    """One label as it goes to the resolver. Letters that name mapping would change are refused, not changed."""
    lowered = label.lower()
    if not label.isascii():
        try:
            is_mapped = any(not letter.isascii() and letter.lower().isascii() for letter in label)
            if is_mapped or nameprep(lowered) != lowered or not _FOREIGN_DOTS.isdisjoint(lowered):
                raise _refused("the host name uses letters that stand for others")
            lowered = ToASCII(lowered).decode("ascii")
        except UnicodeError:
            raise _refused("the host is not a name or an address") from None
    if not _LABEL.fullmatch(lowered):
        raise _refused("the host is not a name or an address")
    return lowered
