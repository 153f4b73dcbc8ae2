"""Addresses of either family: how one is read, kept and shown (contract 3.1, 6; security A-35).

Kept is lower-case hex of an EVM address, which is shown in EIP-55 form, and base58 of a Solana address, which has no
other spelling. Which family an address is of shows in its first two characters: base58 has no zero.
"""

from __future__ import annotations

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import checksum_address, parse_address
from tollkeeper.core.networks import Family
from tollkeeper.core.solana.base58 import parse_key


def family_of(address: str) -> Family:
    """The family of an address that was read."""
    return Family.EVM if address.startswith("0x") else Family.SOLANA


def parse_wallet(text: object, *, field: str = "address") -> str:
    """The address as it is kept. Raises: INVALID_ADDRESS."""
    if not isinstance(text, str):
        raise ApiError(Code.INVALID_ADDRESS, f"{field} is not an address", details={"field": field})
    return parse_address(text, field=field) if text.startswith("0x") else parse_key(text, field=field)


def parse_address_of(family: Family, text: object, *, field: str) -> str:
    """An address of that family as it is kept. Raises: INVALID_ADDRESS."""
    return parse_address(text, field=field) if family is Family.EVM else parse_key(text, field=field)


def shown_address(address: str) -> str:
    """The address as people and other programs see it."""
    return checksum_address(address) if address.startswith("0x") else address
