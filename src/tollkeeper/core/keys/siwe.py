"""The text a wallet signs to log in (EIP-4361) and who signed it (specification 4.2, 5.3; contract 6; security A-47).

A Solana wallet gets the same text with its own words for account and chain, and signs its bytes with ed25519. The chain
that it names is one that the program is on.

No message is kept: its nonce is random bytes and an HMAC over the rest of the text, so that the issuer knows its own
again. Whoever reads a text makes it anew from what it says and compares all bytes: nothing else can stand in it. Our
own clients read it in the same way before they sign. That a message is used once is a statement of the store. Contract
wallets (ERC-1271, ERC-6492) do not log in: only a key's own signature counts.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.evm.encoding import personal_message_digest, recover_address
from tollkeeper.core.limits import LOGIN_MESSAGE_LIFETIME_SECONDS
from tollkeeper.core.networks import NETWORKS, Family
from tollkeeper.core.solana import base58, ed25519
from tollkeeper.core.wallets import family_of, parse_wallet, shown_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tollkeeper.core.networks import Network

NONCE_SIZE_BYTES: Final = 16
STATEMENT: Final = "Sign in to Tollkeeper. This costs nothing and sends no transaction."

_TAG_SIZE_BYTES: Final = 16
_LINES: Final = 11
_NONCE: Final = re.compile(r"[0-9A-Za-z]{8,128}", re.ASCII)
_WORD: Final = re.compile(r"[!-~]+", re.ASCII)
_SIGNATURE: Final = re.compile(r"(?:0x)?([0-9a-fA-F]{130})", re.ASCII)
# The envelope in which a Ledger shows and signs a text, without what follows of either layout: until version 1.8 of its
# application the format and the length, since then also whose application asks (nobody's) and who signs.
_OFF_CHAIN: Final = b"\xffsolana offchain\x00"
_NO_APPLICATION: Final = bytes(32)
_OFF_CHAIN_FORMATS: Final = (b"\x00", b"\x01")  # ASCII, UTF-8: devices differ on which one a line end makes it
_ACCOUNTS: Final = {Family.EVM: "Ethereum account", Family.SOLANA: "Solana account"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class LoginMessage:
    """Facts that one login message binds together. `wallet` is as it is kept, times are ms since the epoch."""

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
    """Return the chain that a login message names, for each wallet family. A login is good for every network.

    The chain is the first of these networks that is of the family. If none is, it is a known network of the family that
    is like the first one: play money or real.
    """
    like_the_first = [one for one in NETWORKS.values() if not networks or one.is_test == networks[0].is_test]
    shown: dict[Family, str] = {}
    for one in (*networks, *like_the_first):
        shown.setdefault(one.family, one.cluster if one.chain_id is None else str(one.chain_id))
    return MappingProxyType(shown)


def new_message(
    public_url: str, wallet: str, chains: Mapping[Family, str], random: bytes, now_ms: int, key: bytes
) -> LoginMessage:
    """Make a message for `wallet`; `random` is NONCE_SIZE_BYTES that were never used, `key` makes it known again."""
    bare = LoginMessage(public_url, wallet, chains[family_of(wallet)], random.hex(), now_ms)
    return replace(bare, nonce=bare.nonce + _tag(bare, key))


def read_message(text: str) -> LoginMessage:
    """Read what a text binds together: EIP-4361 as `LoginMessage` writes it, and no byte beside.

    Raises: ValueError.
    """
    lines = text.split("\n")
    if len(lines) != _LINES:
        raise ValueError("it has other lines than a login message")
    uri, chain, nonce, issued = (lines[place].partition(": ")[2] for place in (5, 7, 8, 9))
    if not (_WORD.fullmatch(uri) and _WORD.fullmatch(chain) and _NONCE.fullmatch(nonce)):
        raise ValueError("its URI, chain or nonce is none")
    try:
        message = LoginMessage(uri, parse_wallet(lines[1]), chain, nonce, _milliseconds(issued))
        again = message.text()
    except (ApiError, TypeError, ValueError, OverflowError) as error:
        raise ValueError("its address, URI or time is none") from error
    if again != text:
        raise ValueError("it says more or other things than a login message")
    return message


def is_issued(message: LoginMessage, keys: Sequence[bytes]) -> bool:
    """Tell whether one of these keys made the message. Constant time in the tag."""
    size = 2 * NONCE_SIZE_BYTES
    bare, tag = replace(message, nonce=message.nonce[:size]), message.nonce[size:]
    return any(hmac.compare_digest(_tag(bare, key), tag) for key in keys)


def is_signed(message: LoginMessage, signature: str) -> bool:
    """Tell whether the message's wallet made `signature`.

    An EVM wallet by personal_sign (65 bytes in hex, with or without 0x, v 27 and 28 or 0 and 1); a Solana wallet by
    ed25519 (64 bytes in base58 or base64), of the text or of the off-chain envelope in which a Ledger signs it.
    """
    text = message.text().encode()
    try:
        if family_of(message.wallet) is Family.EVM:
            return _recovered(text, signature) == message.wallet
        key, signed = base58.decode_key(message.wallet), _signature_bytes(signature)
    except ValueError:
        return False
    return any(ed25519.verify(key, signed, data) for data in (text, *_off_chain(key, text)))


def _tag(bare: LoginMessage, key: bytes) -> str:
    return hmac.digest(key, bare.text().encode(), hashlib.sha256)[:_TAG_SIZE_BYTES].hex()


def _recovered(text: bytes, signature: str) -> str:
    """Recover the EVM wallet. Raises: ValueError."""
    match = _SIGNATURE.fullmatch(signature)
    if match is None:
        raise ValueError("it is no signature")
    raw = bytes.fromhex(match[1])
    if raw[64] in {0, 1}:
        raw = raw[:64] + bytes([raw[64] + 27])
    return f"0x{recover_address(personal_message_digest(text), raw).hex()}"


def _off_chain(key: bytes, text: bytes) -> Iterator[bytes]:
    length = len(text).to_bytes(2, "little")
    for form in _OFF_CHAIN_FORMATS:
        yield _OFF_CHAIN + form + length + text
        yield _OFF_CHAIN + _NO_APPLICATION + form + b"\x01" + key + length + text


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


def _milliseconds(instant: str) -> int:
    """Raises: ValueError."""
    return (datetime.fromisoformat(instant) - _EPOCH) // timedelta(milliseconds=1)
