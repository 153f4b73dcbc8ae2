"""What the text of a setting means, and which texts are refused, at each boundary."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import pytest

from tollkeeper.core.configuration import (
    AnonymousPaygates,
    Bucket,
    PublicUrl,
    choice,
    default_anonymous_paygates,
    is_loopback,
    list_of,
    local_url,
    parse_address_and_port,
    parse_boolean,
    parse_database_url,
    parse_depth_step,
    parse_files,
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
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.challenge import Profile

GOOD: list[tuple[Callable[[str], Any], str, Any]] = [
    (parse_boolean, "true", True),
    (parse_boolean, "False", False),
    (whole_number(1, 10), "1", 1),
    (whole_number(1, 10), "10", 10),
    (choice(Profile), "X402-A", Profile.SHAPE_A),
    (list_of(parse_host), "", ()),
    (list_of(parse_host), " 127.0.0.1 ,, ::1", ("127.0.0.1", "::1")),
    (parse_host, "0.0.0.0", "0.0.0.0"),  # noqa: S104 - an address to listen on is what is parsed
    (parse_host, "[::1]", "::1"),
    (parse_host, "pay.example.org", "pay.example.org"),
    (parse_url, "https://hub.example.org/x402/", "https://hub.example.org/x402"),
    (parse_url, "http://[::1]:8402", "http://[::1]:8402"),
    (parse_origin, "https://pay.example.org/", PublicUrl("https://pay.example.org", "pay.example.org")),
    (parse_rpc_url, "https://node.example.org/v2/key?x=1", "https://node.example.org/v2/key?x=1"),
    (parse_rpc_url, "https://user:key@node.example.org", "https://user:key@node.example.org"),
    (parse_database_url, "sqlite:///data/x.db", "sqlite:///data/x.db"),
    (parse_database_url, "postgresql://u:p@a,b/x?sslmode=verify-full", "postgresql://u:p@a,b/x?sslmode=verify-full"),
    (parse_network, "base-mainnet", NETWORKS["base"]),
    (parse_network, "base-sepolia", NETWORKS["base-sepolia"]),
    (parse_network, "solana-devnet", NETWORKS["solana-devnet"]),
    (parse_network, "solana", NETWORKS["solana-mainnet"]),
    (parse_token_text, "USD Coin", "USD Coin"),
    (parse_address_and_port, "127.0.0.1:8403", ("127.0.0.1", 8403)),
    (parse_address_and_port, "[::1]:0", ("::1", 0)),
    (parse_peers, "10.0.0.0/8", IPv4Network("10.0.0.0/8")),
    (parse_peers, "::1", IPv6Network("::1/128")),
    (parse_usdc_micro, "0.5", 500_000),
    (parse_files, "files", "files"),
    (parse_files, "/srv/files", "/srv/files"),
    (parse_files, "s3://files", Bucket("files", "")),
    (parse_files, "s3://my.files-1/toll/keeper/", Bucket("my.files-1", "toll/keeper")),
    (parse_depth_step, "1000:12", (1_000_000_000, 12)),
    (parse_depth_step, "0.01 : 2", (10_000, 2)),
]

BAD: list[tuple[Callable[[str], Any], str]] = [
    (parse_boolean, "yes"),
    (whole_number(1, 10), "0"),
    (whole_number(1, 10), "11"),
    (whole_number(1, 10), "1.0"),
    (whole_number(1, 10), "-1"),
    (whole_number(1, 10), "\u0661"),
    (choice(Profile), "x402-c"),
    (parse_address_and_port, "127.0.0.1"),
    (parse_address_and_port, "127.0.0.1:x"),
    (parse_address_and_port, "127.0.0.1:65536"),
    (list_of(parse_host), "127.0.0.1, a b"),
    (parse_host, "a_b"),
    (parse_host, "-x"),
    (parse_url, "pay.example.org"),
    (parse_url, "ftp://pay.example.org"),
    (parse_url, "http://"),
    (parse_url, "http://x:99999"),
    (parse_url, "http://x:0"),
    (parse_url, "http://a b"),
    (parse_url, "http://x/\u00e9"),
    (parse_url, "http://[::1"),
    (parse_url, "http://user:word@x"),
    (parse_url, "http://x/?q=1"),
    (parse_url, "http://x/#f"),
    (parse_url, "http://x?"),
    (parse_url, "http://x#"),
    (parse_url, "http://x:"),
    (parse_origin, "https://pay.example.org/path"),
    (parse_rpc_url, "wss://node.example.org"),
    (parse_rpc_url, "https://user:key@"),
    (parse_database_url, "mysql://x/y"),
    (parse_database_url, "postgresql://"),
    (parse_database_url, "sqlite:///"),
    (parse_database_url, "sqlite:///a\0b"),
    (parse_network, "ethereum"),
    (parse_network, "solana-testnet"),
    (parse_token_text, ""),
    (parse_token_text, "x" * 65),
    (parse_token_text, "USD\u20ac"),
    (parse_peers, "10.0.0.1/8"),
    (parse_peers, "proxy"),
    (parse_usdc_micro, "0.0000001"),
    (parse_files, "gs://files"),
    (parse_files, "fi\0les"),
    (parse_files, "s3://"),
    (parse_files, "s3://Files"),
    (parse_files, "s3://files/\u20ac"),
    (parse_files, "s3://files/a\nb"),
    (parse_depth_step, "1000"),
    (parse_depth_step, "x:1"),
    (parse_depth_step, "1:0"),
    (parse_depth_step, "1:1001"),
]


@pytest.mark.parametrize(("parse", "text", "value"), GOOD)
def test_a_good_value_is_read(parse: Callable[[str], Any], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(("parse", "text"), BAD)
def test_a_bad_value_is_refused_in_words_that_do_not_quote_it(parse: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"^it ") as caught:
        parse(text)
    assert len(text) < 16 or text not in str(caught.value)  # shorter ones are examples in our own words


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("localhost", True),
        ("gate.localhost", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),  # noqa: S104 - judged, not listened on
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_loopback_is_this_machine_alone(host: str, *, expected: bool) -> None:
    assert is_loopback(host) is expected
    assert PublicUrl("", host).is_loopback is expected


@pytest.mark.parametrize(
    ("host", "behind_proxy", "expected"),
    [
        ("127.0.0.1", False, AnonymousPaygates.CREATE),
        ("127.0.0.1", True, AnonymousPaygates.OFF),
        ("pay.example.org", False, AnonymousPaygates.OFF),
        ("pay.example.org", True, AnonymousPaygates.OFF),
    ],
)
def test_ownerless_gates_are_made_only_where_nobody_else_can_ask(
    host: str, expected: AnonymousPaygates, *, behind_proxy: bool
) -> None:
    assert default_anonymous_paygates(PublicUrl(f"http://{host}", host), behind_proxy=behind_proxy) is expected


@pytest.mark.parametrize(("host", "url"), [("127.0.0.1", "http://127.0.0.1:80"), ("::1", "http://[::1]:80")])
def test_the_url_of_a_local_listener_brackets_an_ipv6_address(host: str, url: str) -> None:
    assert local_url(host, 80) == url
