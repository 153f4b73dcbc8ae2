"""Networks have one name inside the program, whatever spelling came in (specification 2.4, contract 1)."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tollkeeper.core import networks
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.networks import ALIASES, CAIP2_NAMES, NETWORKS, Family, normalise

REFUSED: list[object] = [
    "",
    "Base",
    "BASE",
    "base ",
    " base",
    "base\n",
    "base_sepolia",
    "base-mainnet ",
    "ethereum",
    "polygon",
    "eip155:8453",
    "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp",
    "b\u0430se",  # a Cyrillic letter
    None,
    8453,
    True,
    ["base"],
    {"network": "base"},
    b"base",
]


def test_the_networks_are_those_of_the_specification() -> None:
    assert {name: (network.family.value, network.chain_id) for name, network in NETWORKS.items()} == {
        "base": ("evm", 8453),
        "base-sepolia": ("evm", 84532),
        "solana-devnet": ("solana", None),
        "solana-mainnet": ("solana", None),
    }


def test_version_2_of_x402_knows_them_by_their_chain_agnostic_names() -> None:
    assert CAIP2_NAMES == {
        "eip155:8453": "base",
        "eip155:84532": "base-sepolia",
        "solana:EtWTRABZaYq6iMfeYKouRu166VU2xqa1": "solana-devnet",
        "solana:5eykt4UsFv8P8NJdTREpY1vzqKqZKvdp": "solana-mainnet",
    }


def test_every_network_has_usdc_with_six_decimals() -> None:
    assert {name: network.usdc.address for name, network in NETWORKS.items()} == {
        "base": "0x833589fcd6edb6e08f4c7c32d4f71b54bda02913",
        "base-sepolia": "0x036cbd53842c5426634e7929541ec2318f3dcf7e",
        "solana-mainnet": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v",
        "solana-devnet": "4zMMC9srt5Ri5X14GAgXhaHii3GnPAEERYPJgZJDncDU",
    }
    assert (NETWORKS["base"].usdc.eip712_name, NETWORKS["base-sepolia"].usdc.eip712_name) == ("USD Coin", "USDC")
    assert {(network.usdc.symbol, network.usdc.decimals) for network in NETWORKS.values()} == {("USDC", 6)}


def test_the_names_in_accepts_are_those_that_version_1_clients_know() -> None:
    assert {network.v1_name for network in NETWORKS.values()} == {"base", "base-sepolia", "solana", "solana-devnet"}


def test_test_networks_are_told_from_main_ones() -> None:
    assert {name for name, network in NETWORKS.items() if network.is_test} == {"base-sepolia", "solana-devnet"}


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_name_of_the_specification_means_itself(name: str) -> None:
    assert normalise(name) is NETWORKS[name]
    assert normalise(name).name == name


@pytest.mark.parametrize(("alias", "name"), [("base-mainnet", "base"), ("solana", "solana-mainnet")])
def test_an_alias_means_the_specification_s_network(alias: str, name: str) -> None:
    assert ALIASES[alias] == name
    assert normalise(alias) is NETWORKS[name]


def test_every_version_1_name_is_read_back_as_its_network() -> None:
    for network in NETWORKS.values():
        assert normalise(network.v1_name) is network


@pytest.mark.parametrize("name", REFUSED, ids=ascii)
def test_any_other_name_is_invalid_network(name: object) -> None:
    with pytest.raises(ApiError) as refused:
        normalise(name)
    assert refused.value.code is Code.INVALID_NETWORK
    assert refused.value.details == {"field": "network", "supported": sorted(NETWORKS)}


@given(st.text())
def test_no_text_but_a_name_or_an_alias_is_a_network(name: str) -> None:
    if name in NETWORKS or name in ALIASES:
        assert normalise(name).family in Family
    else:
        with pytest.raises(ApiError):
            normalise(name)


def test_bodies_name_networks_as_they_are_answered_and_as_they_may_be_asked() -> None:
    def names(one: object) -> set[str]:
        (meta,) = get_args(one)[1:]
        return set(meta.extra_json_schema["enum"])

    assert names(networks.NetworkName) == set(NETWORKS)
    assert names(networks.NetworkAsked) == {*NETWORKS, *ALIASES}
    assert names(networks.Caip2Network) == set(CAIP2_NAMES)
