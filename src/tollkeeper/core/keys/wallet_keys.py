"""A wallet's private key of either family, as its owner's tools write it, and what it signs (contract 6).

Read are 64 hex digits (EVM), base58 of a Solana key pair, and the list of 64 numbers that Solana's own tools keep in a
file. Which payment a wallet makes is not decided here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Final

from tollkeeper.core.evm.encoding import address_of_key, checksum_address, personal_message_digest, sign_digest
from tollkeeper.core.keys.keyring import parse_private_key
from tollkeeper.core.networks import Family
from tollkeeper.core.solana import base58, ed25519

_PAIR_SIZE_BYTES: Final = 64  # a Solana key pair: seed, then public key
_PAIR_LENGTH_MIN: Final = 80  # in base58: an EVM key is at most 66 characters long
_NO_PAIR: Final = (
    "it is no key pair of Solana: 64 bytes in base58 or as a list, of which the last 32 are the public key"
)


@dataclass(frozen=True, slots=True)
class WalletKey:
    """`material` is the secp256k1 key of an EVM wallet, the Ed25519 seed of a Solana wallet."""

    family: Family
    material: bytes = field(repr=False)

    @property
    def address(self) -> str:
        """The wallet's address as people see it."""
        if self.family is Family.SOLANA:
            return base58.encode(ed25519.public_key(self.material))
        return checksum_address(address_of_key(self.material))

    def sign_text(self, text: str) -> str:
        """The signature of a text, as a login takes it."""
        if self.family is Family.SOLANA:
            return base58.encode(ed25519.sign(self.material, text.encode()))
        return "0x" + sign_digest(personal_message_digest(text.encode()), self.material).hex()


def parse_wallet_key(text: str) -> WalletKey:
    """The key in `text`. Raises: ValueError saying what is wrong, never quoting the text."""
    stripped = text.strip()
    if stripped.startswith("["):
        return _solana(_numbers(stripped))
    if len(stripped) >= _PAIR_LENGTH_MIN and stripped.isalnum():
        try:
            return _solana(base58.decode(stripped, size_bytes=_PAIR_SIZE_BYTES))
        except ValueError:
            raise ValueError(_NO_PAIR) from None
    return WalletKey(Family.EVM, parse_private_key(text).reveal())


def _numbers(text: str) -> bytes:
    try:
        return bytes(json.loads(text))
    except (TypeError, ValueError, RecursionError):
        raise ValueError(_NO_PAIR) from None


def _solana(pair: bytes) -> WalletKey:
    seed = pair[: ed25519.SEED_SIZE_BYTES]
    if len(pair) != _PAIR_SIZE_BYTES or ed25519.public_key(seed) != pair[ed25519.SEED_SIZE_BYTES :]:
        raise ValueError(_NO_PAIR)
    return WalletKey(Family.SOLANA, seed)
