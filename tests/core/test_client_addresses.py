"""The client's address behind proxies: the rightmost one that no trusted proxy has."""

from __future__ import annotations

import tracemalloc
from ipaddress import ip_network

import pytest

from tollkeeper.core.http.client_addresses import ClientAddresses, plain_address, rate_key

TRUSTED = (ip_network("10.0.0.0/8"), ip_network("2001:db8:1::/48"))


def client(peer: str, *lines: str) -> str:
    """The client's address, by these header lines."""
    headers = [(b"host", b"x"), *[(b"x-forwarded-for", line.encode()) for line in lines]]
    return ClientAddresses(TRUSTED).of(peer, headers)


def test_without_trusted_proxies_nobody_is_believed() -> None:
    assert ClientAddresses().of("10.0.0.1", [(b"x-forwarded-for", b"203.0.113.9")]) == "10.0.0.1"


@pytest.mark.parametrize(
    ("peer", "lines", "expected"),
    [
        ("198.51.100.7", ["203.0.113.9"], "198.51.100.7"),  # no proxy of ours sent this
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", ["6.6.6.6", "203.0.113.9, 10.2.3.4"], "203.0.113.9"),
        ("10.0.0.1", ["10.9.9.9"], "10.9.9.9"),
        ("10.0.0.1", ["203.0.113.9, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["unknown, 10.2.3.4"], "10.2.3.4"),
        ("10.0.0.1", ["203.0.113.9:4711"], "203.0.113.9"),
        ("10.0.0.1", ["[2001:db8:9::1]:4711"], "2001:db8:9::1"),
        ("2001:db8:1::1", ["2001:db8:9::1"], "2001:db8:9::1"),
        ("::ffff:10.0.0.1", ["203.0.113.9"], "203.0.113.9"),
        ("", ["203.0.113.9"], ""),
    ],
)
def test_the_rightmost_address_that_is_no_trusted_proxys_is_the_clients(
    peer: str, lines: list[str], expected: str
) -> None:
    assert client(peer, *lines) == expected


def test_what_anybody_writes_into_the_header_is_not_kept() -> None:
    clients = ClientAddresses(TRUSTED)
    tracemalloc.start()
    try:
        for number in range(100):
            invented = b"%d" % number + b"x" * 30_000
            assert clients.of("10.0.0.1", [(b"x-forwarded-for", invented + b", 203.0.113.9")]) == "203.0.113.9"
        assert tracemalloc.get_traced_memory()[0] < 200_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:9:1:2:3:4:5", "2001:db8:9:1::/64"),
        ("2001:db8:9:1::9", "2001:db8:9:1::/64"),
        ("127.0.0.1", ""),
        ("127.8.8.8", ""),
        ("::1", ""),
        ("", ""),
    ],
)
def test_a_client_is_counted_by_its_address_or_its_ipv6_network_and_this_machine_is_not(address: str, key: str) -> None:
    assert rate_key(address) == key


@pytest.mark.parametrize(
    ("address", "plain"),
    [("::ffff:192.0.2.1", "192.0.2.1"), ("192.0.2.1", "192.0.2.1"), ("::1", "::1"), ("::ffff:1", "::ffff:1")],
)
def test_an_address_of_the_other_family_is_written_as_its_own(address: str, plain: str) -> None:
    assert plain_address(address) == plain


@pytest.mark.parametrize(("peer", "expected"), [(("10.0.0.1", 4711), "203.0.113.9"), (None, "")])
def test_a_request_of_asgi_says_its_peer_or_none(peer: tuple[str, int] | None, expected: str) -> None:
    scope = {"client": peer, "headers": [(b"x-forwarded-for", b"203.0.113.9")]}
    assert ClientAddresses(TRUSTED).of_scope(scope) == expected
