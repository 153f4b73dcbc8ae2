"""The text a wallet signs to log in (EIP-4361) and who signed it (specification 4.2, 5.3; contract 6; security A-47).

A Solana wallet gets the same text with its own words for account and chain, and signs its bytes with ed25519. The chain
that it names is one that the program is on.

Only text and signature are judged here. That a message was issued, is unexpired and has not been used is one statement
of the store, keyed by `message_digest`: login compares the whole message, so there is nothing to parse in what comes
back. Contract wallets (ERC-1271, ERC-6492) do not log in: only a key's own signature counts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core import base58, ed25519
from tollkeeper.core.errors import ApiError, Code
from tollkeeper.core.evm import personal_message_digest, recover_address
from tollkeeper.core.limits import LOGIN_MESSAGE_LIFETIME_SECONDS
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.wallets import family_of, shown_address

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.core.networks import Network

NONCE_SIZE_BYTES: Final = 16
STATEMENT: Final = "Sign in to Tollkeeper. This costs nothing and sends no transaction."
MESSAGE_LENGTH_MAX: Final = 4096

_SIGNATURE: Final = re.compile(r"0x[0-9a-fA-F]{130}", re.ASCII)
_ACCOUNTS: Final = {Family.EVM: "Ethereum account", Family.SOLANA: "Solana account"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LoginMessage:
    """What one login message binds together. `wallet` is as it is kept, times are ms since the epoch."""

    public_url: str
    wallet: str
    chain: str
    nonce: str
    issued_ms: int

    @property
    def expires_ms(self) -> int:
        """The first moment at which the message no longer logs in."""
        return self.issued_ms + LOGIN_MESSAGE_LIFETIME_SECONDS * 1000

    def text(self) -> str:
        """The EIP-4361 text, an EVM address in its EIP-55 spelling."""
        family = family_of(self.wallet)
        return (
            f"{urlsplit(self.public_url).netloc} wants you to sign in with your {_ACCOUNTS[family]}:\n"
            f"{shown_address(self.wallet)}\n"
            "\n"
            f"{STATEMENT}\n"
            "\n"
            f"URI: {self.public_url}\n"
            "Version: 1\n"
            f"Chain ID: {self.chain}\n"
            f"Nonce: {self.nonce}\n"
            f"Issued At: {_instant(self.issued_ms)}\n"
            f"Expiration Time: {_instant(self.expires_ms)}"
        )


def login_chains(networks: Sequence[Network]) -> Mapping[Family, str]:
    """What a login message calls the chain, by the wallet's family: a login is good for every network, and names one.

    It is the first of these networks that is of the family; where none is, the one that is like the first, play money
    or real.
    """
    like_the_first = [one for one in NETWORKS.values() if not networks or one.is_test == networks[0].is_test]
    shown: dict[Family, str] = {}
    for one in (*networks, *like_the_first):
        shown.setdefault(one.family, one.cluster if one.chain_id is None else str(one.chain_id))
    return MappingProxyType(shown)


def new_message(public_url: str, wallet: str, chains: Mapping[Family, str], nonce: bytes, now_ms: int) -> LoginMessage:
    """A message for `wallet` issued now; `nonce` is NONCE_SIZE_BYTES of fresh randomness, never used before."""
    return LoginMessage(public_url, wallet, chains[family_of(wallet)], nonce.hex(), now_ms)


def message_digest(message: str) -> bytes:
    """What an issued message is remembered and found by: equal only for the same bytes.

    Raises: INVALID_SIGNATURE for a text that cannot be one of ours.
    """
    if len(message) > MESSAGE_LENGTH_MAX:
        raise refused_login()
    try:
        return hashlib.sha256(message.encode("utf-8")).digest()
    except UnicodeEncodeError:
        raise refused_login() from None


def signer_of(message: str, signature: str) -> str:
    """The wallet that signed `message`.

    An EVM wallet by personal_sign (0x + 65 bytes in hex), or the Solana wallet that the message names by ed25519 (64
    bytes in base58 or base64).

    Raises: INVALID_SIGNATURE.
    """
    if not signature.startswith("0x"):
        return _solana_signer(message, signature)
    if _SIGNATURE.fullmatch(signature) is None:
        raise refused_login()
    try:
        signer = recover_address(personal_message_digest(message.encode("utf-8")), bytes.fromhex(signature[2:]))
    except ValueError:  # a UnicodeEncodeError is one too
        raise refused_login() from None
    return f"0x{signer.hex()}"


def _solana_signer(message: str, signature: str) -> str:
    """An ed25519 signature does not show whose it is, but the message does."""
    wallet = message.split("\n", 2)[1] if "\n" in message else ""
    try:
        signed = _signature_bytes(signature)
        if ed25519.verify(base58.decode_key(wallet), signed, message.encode("utf-8")):
            return wallet
    except ValueError:  # a UnicodeEncodeError is one too
        pass
    raise refused_login()


def _signature_bytes(text: str) -> bytes:
    """64 bytes in base58 or in standard base64, which ends in padding here. Raises: ValueError."""
    if not text.endswith("="):
        return base58.decode(text, size_bytes=ed25519.SIGNATURE_SIZE_BYTES)
    try:
        raw = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(text) from error
    if len(raw) != ed25519.SIGNATURE_SIZE_BYTES or base64.b64encode(raw).decode() != text:
        raise ValueError(text)
    return raw


def refused_login() -> ApiError:
    """The one answer to every login that fails, so that it tells nothing about which messages are outstanding."""
    return ApiError(
        Code.INVALID_SIGNATURE,
        "the wallet signature does not match an unused login message issued in the last five minutes",
    )


def _instant(when_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=when_ms)
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"
