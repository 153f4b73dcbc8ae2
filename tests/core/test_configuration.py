"""What a setting's text means is exact, and what cannot be meant is refused without being quoted (contract 1, 3.2)."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core.configuration import (
    AnonymousPaygates,
    LogFormat,
    LogLevel,
    choice,
    default_anonymous_paygates,
    is_loopback,
    list_of,
    local_url,
    parse_boolean,
    parse_database_url,
    parse_host,
    parse_network,
    parse_origin,
    parse_peers,
    parse_rpc_url,
    parse_token_text,
    parse_url,
    parse_usdc_micro,
    whole_number,
)

port = whole_number(1, 65535)
level = choice(LogLevel)

TAKEN: list[tuple[Callable[[str], object], str, object]] = [
    (parse_boolean, "true", True),
    (parse_boolean, "FALSE", False),
    (port, "1", 1),
    (port, "65535", 65535),
    (port, "0080", 80),
    (level, "debug", LogLevel.DEBUG),
    (level, "Warning", LogLevel.WARNING),
    (choice(LogFormat), "json", LogFormat.JSON),
    (choice(AnonymousPaygates), "off", AnonymousPaygates.OFF),
    (list_of(port), "", ()),
    (list_of(port), " 80, 443 ,", (80, 443)),
    (parse_host, "127.0.0.1", "127.0.0.1"),
    (parse_host, "[::1]", "::1"),
    (parse_host, "::", "::"),
    (parse_host, "gateway.internal", "gateway.internal"),
    (parse_url, "https://hub.example/api/", "https://hub.example/api"),
    (parse_url, "http://127.0.0.1:8402", "http://127.0.0.1:8402"),
    (parse_rpc_url, "https://node.example/v2/key?x=1", "https://node.example/v2/key?x=1"),
    (parse_database_url, "sqlite:///data/x.db", "sqlite:///data/x.db"),
    (parse_token_text, "USD Coin", "USD Coin"),
    (parse_token_text, "x" * 64, "x" * 64),
    (parse_peers, "10.0.0.0/8", ip_network("10.0.0.0/8")),
    (parse_peers, "::1", ip_network("::1/128")),
    (parse_usdc_micro, "0.50", 500_000),
]

REFUSED: list[tuple[Callable[[str], object], str]] = [
    (parse_boolean, ""),
    (parse_boolean, "1"),
    (parse_boolean, "yes"),
    (port, "0"),
    (port, "65536"),
    (port, ""),
    (port, "-1"),
    (port, "1.0"),
    (port, "1_0"),
    (port, "\u0661"),
    (port, "9" * 31),
    (level, "loud"),
    (list_of(port), "80,x"),
    (parse_host, ""),
    (parse_host, "a b"),
    (parse_host, "-a"),
    (parse_host, "http://a"),
    (parse_host, "a:80"),
    (parse_host, "h\u00f6st"),
    (parse_url, ""),
    (parse_url, "hub.example"),
    (parse_url, "ftp://hub.example"),
    (parse_url, "https://"),
    (parse_url, "https://a:0"),
    (parse_url, "https://a:65536"),
    (parse_url, "https://a:"),
    (parse_url, "https://a:b"),
    (parse_url, "https://[::1"),
    (parse_url, "https://user@a"),
    (parse_url, "https://user:hunter2@a"),
    (parse_url, "https://a/?q=1"),
    (parse_url, "https://a?"),
    (parse_url, "https://a#"),
    (parse_url, "https://a/#f"),
    (parse_url, "https://a b"),
    (parse_url, "https://a\n"),
    (parse_url, "https://\u00e4.example"),
    (parse_origin, "https://a/path"),
    (parse_rpc_url, "ws://node.example"),
    (parse_rpc_url, "https://user:hunter2@node.example"),
    (parse_database_url, "sqlite:///"),
    (parse_database_url, "sqlite://x"),
    (parse_database_url, "postgresql://user:hunter2@db/x"),
    (parse_database_url, "sqlite:///a\x00b"),
    (parse_network, ""),
    (parse_network, "polygon"),
    (parse_network, "solana-devnet"),
    (parse_token_text, ""),
    (parse_token_text, "x" * 65),
    (parse_token_text, "a\nb"),
    (parse_token_text, "\u20ac"),
    (parse_peers, ""),
    (parse_peers, "10.0.0.1/8"),
    (parse_peers, "example.org"),
    (parse_usdc_micro, "0"),
    (parse_usdc_micro, "1e2"),
]


@pytest.mark.parametrize(("parse", "text", "value"), TAKEN)
def test_a_good_text_has_its_value(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text"), REFUSED)
def test_a_bad_text_is_a_value_error_that_says_why_without_quoting_it(
    parse: Callable[[str], object], text: str
) -> None:
    with pytest.raises(ValueError, match=r"^it (is|has) ") as refused:
        parse(text)
    assert "hunter2" not in str(refused.value)


@given(st.text(max_size=40))
def test_any_text_has_a_value_or_is_a_value_error(text: str) -> None:
    for parse in (parse_host, parse_url, parse_origin, parse_rpc_url, parse_peers, parse_network, port):
        try:
            assert parse(text) is not None
        except ValueError as error:
            assert str(error).startswith("it ")  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("text", "url", "host"),
    [
        ("https://pay.example.org/", "https://pay.example.org", "pay.example.org"),
        ("http://127.0.0.1:8402", "http://127.0.0.1:8402", "127.0.0.1"),
        ("http://[::1]:8402", "http://[::1]:8402", "::1"),
    ],
)
def test_an_origin_is_scheme_host_and_port_alone(text: str, url: str, host: str) -> None:
    origin = parse_origin(text)
    assert (origin.text, origin.host) == (url, host)


@pytest.mark.parametrize(
    ("name", "network"), [("base", "base"), ("base-mainnet", "base"), ("base-sepolia", "base-sepolia")]
)
def test_an_evm_network_is_known_by_its_name_or_alias(name: str, network: str) -> None:
    assert parse_network(name).name == network


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "a.localhost", "127.0.0.1", "127.8.9.1", "::1", "[::1]"])
def test_a_name_or_address_of_this_machine_alone_is_loopback(host: str) -> None:
    assert is_loopback(host)
    assert parse_origin(local_url(host.strip("[]"), 8402)).is_loopback


@pytest.mark.parametrize("host", ["", "10.0.0.1", "localhost.example.org", "::", "127.0.0.1.example.org"])
def test_any_other_host_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)


def test_gates_without_an_owner_are_created_only_where_this_machine_alone_can_ask() -> None:
    local, public = parse_origin("http://127.0.0.1:8402"), parse_origin("https://pay.example.org")
    assert default_anonymous_paygates(local, behind_proxy=False) is AnonymousPaygates.CREATE
    assert default_anonymous_paygates(local, behind_proxy=True) is AnonymousPaygates.OFF
    assert default_anonymous_paygates(public, behind_proxy=False) is AnonymousPaygates.OFF
