"""Addresses of the clients behind proxies (contract 1, 4.2, 4.7).

`X-Forwarded-For` is believed as far as trusted proxies wrote it. It is read from its right end: every address of a
trusted proxy is passed over, and the first other address is the client's. Anybody may have written the rest.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from ipaddress import IPv4Address

    from tollkeeper.core.json_types import JsonMapping

_HEADER: Final = b"x-forwarded-for"
_MAPPED: Final = "::ffff:"
_REMEMBERED_MAX: Final = 10_000
_REMEMBERED_BYTES: Final = 256  # of the header: several proxies' worth
_PREFIX_BITS: Final = 64  # of an IPv6 address; the rest of it one client chooses as it likes


class ClientAddresses:
    """Clients' addresses behind the proxies of these networks."""

    def __init__(self, trusted: tuple[IPv4Network | IPv6Network, ...] = ()) -> None:
        self.has_proxies = bool(trusted)
        self._trusted = trusted
        self._behind = lru_cache(maxsize=_REMEMBERED_MAX)(self._find)

    def of(self, peer: str, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The client's address; `peer` is the connection's, header names are in lower case."""
        return self.behind(peer, b",".join([value for name, value in headers if name == _HEADER]))

    def behind(self, peer: str, forwarded_for: bytes) -> str:
        """The client's address; `forwarded_for` are all values of `X-Forwarded-For`, with commas between."""
        if not self._trusted:
            return peer
        # Anybody may write the left of it, at any length: that must not fill the memory of the cache.
        find = self._behind if len(forwarded_for) <= _REMEMBERED_BYTES else self._find
        return find(peer, forwarded_for)

    def of_scope(self, scope: JsonMapping) -> str:
        """Return the client's address of an ASGI request."""
        client = scope["client"]
        return self.of(client[0] if client else "", scope["headers"])

    def _find(self, peer: str, forwarded_for: bytes) -> str:
        client = _address(peer)
        if client is None:
            return peer
        hops = forwarded_for.decode("latin-1").split(",") if forwarded_for else []
        for hop in reversed(hops):
            if not any(client in network for network in self._trusted):
                break
            address = _address(hop)
            if address is None:  # a trusted proxy knows no better
                break
            client = address
        return str(client)


def plain_address(address: str) -> str:
    """Return the address as its own family writes it: where one socket takes both, IPv4 comes as `::ffff:192.0.2.1`."""
    return address[len(_MAPPED) :] if address.startswith(_MAPPED) and "." in address else address


@lru_cache(maxsize=_REMEMBERED_MAX)
def rate_key(address: str) -> str:
    """Return the key that a client's requests are counted under; "" if they are not counted.

    Requests from this machine, and from no address, are not counted. An IPv6 client is counted as its network of 64
    bits.
    """
    found = _address(address)
    if found is None or found.is_loopback:
        return ""
    if isinstance(found, IPv6Address):
        return str(IPv6Network((int(found) >> (128 - _PREFIX_BITS) << (128 - _PREFIX_BITS), _PREFIX_BITS)))
    return str(found)


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """An address, also with a port or in brackets, as some proxies write it; None for anything else."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
