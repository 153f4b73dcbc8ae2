"""Codes by which a browser that is logged in lets a program on the same machine log in (contract 11).

A code carries what it is for and an HMAC over it, so none is kept. Who holds it alone logs nobody in: the program must
know what it told the browser the hash of, and name the port of this machine where it waits.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

import msgspec

from tollkeeper.core.api.errors import invalid
from tollkeeper.core.limits import HANDOVER_LIFETIME_SECONDS

_CHALLENGE: Final = re.compile("[A-Za-z0-9_-]{43}")
_PORT_MAX: Final = 65_535


class Handover(msgspec.Struct, frozen=True, array_like=True):
    """Facts that a code binds together. `challenge` is the SHA-256 of the program's verifier, in base64url."""

    wallet: str
    session_id: str
    port: int
    challenge: str
    issued_ms: int
    nonce: str

    def is_for(self, verifier: str, port: int) -> bool:
        """Is it for the program that knows this verifier and waits at that port?"""
        return port == self.port and hmac.compare_digest(challenge_of(verifier), self.challenge)


def challenge_of(verifier: str) -> str:
    """Return what a program tells of its verifier before it shows it."""
    return base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()


def check_asked(port: int, challenge: str) -> None:
    """Check what a program asks with. Raises: INVALID_PARAMETER."""
    if not 0 < port <= _PORT_MAX:
        raise invalid("port", "port must be the number of a port")
    if _CHALLENGE.fullmatch(challenge) is None:
        raise invalid("challenge", "challenge must be a SHA-256 in base64url, 43 characters")


def code_of(asked: Handover, key: bytes) -> str:
    """Write the code. Raises: INVALID_PARAMETER."""
    check_asked(asked.port, asked.challenge)
    text = msgspec.json.encode(asked)
    return base64.urlsafe_b64encode(_tag(text, key) + text).decode()


def read_code(code: str, key: bytes, now_ms: int) -> Handover | None:
    """Read a code of ours that is not over; None for anything else."""
    try:
        content = base64.urlsafe_b64decode(code.encode("ascii"))
        if not hmac.compare_digest(content[:32], _tag(content[32:], key)):
            return None
        asked = msgspec.json.decode(content[32:], type=Handover)
    except (ValueError, binascii.Error, msgspec.DecodeError):
        return None
    return asked if now_ms < asked.issued_ms + HANDOVER_LIFETIME_SECONDS * 1000 else None


def _tag(text: bytes, key: bytes) -> bytes:
    return hmac.digest(key, text, "sha256")
