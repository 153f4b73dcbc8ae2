"""Ed25519 as Solana's validators judge it: strict verification, and which 32 bytes are a point of the curve.

A signature that a validator refuses must not be called valid, so keys and nonces of small order and spellings that are
not canonical are refused beside what RFC 8032 refuses. What is signed is not decided here.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

if TYPE_CHECKING:
    from collections.abc import Callable

SIGNATURE_SIZE_BYTES: Final = 64
SEED_SIZE_BYTES: Final = 32
_P: Final = 2**255 - 19
_D: Final = -121665 * pow(121666, -1, _P) % _P
_SIGN_BIT: Final = 1 << 255
_Y_BITS: Final = _SIGN_BIT - 1
# The y coordinates of the eight points whose order divides the cofactor.
_Y_OF_ORDER_8: Final = 0x05FC536D880238B13933C6D305ACDFD5F098EFF289F4C345B027B2C28F95E826
_SMALL_ORDER: Final = frozenset({0, 1, _P - 1, _Y_OF_ORDER_8, _P - _Y_OF_ORDER_8})


def is_on_curve(key: bytes) -> bool:
    """Do these 32 bytes decompress to a point? An address that is none has no private key: a program derived it."""
    y = int.from_bytes(key, "little") % _SIGN_BIT
    y_squared = y * y % _P
    u, v = y_squared - 1, _D * y_squared + 1
    # x squared is u / v, which is a square where u * v is one (Euler's criterion)
    return pow(u * v % _P, (_P - 1) // 2, _P) <= 1


def _is_strict(point: bytes) -> bool:
    y = int.from_bytes(point, "little") & _Y_BITS
    return y < _P and y not in _SMALL_ORDER


def verify(key: bytes, signature: bytes, message: bytes) -> bool:
    """Did the key's owner sign `message`? `key` has 32 bytes, `signature` 64."""
    if not _is_strict(key) or not _is_strict(signature[:32]):
        return False
    return fastest()(key, signature, message)


def by_openssl(key: bytes, signature: bytes, message: bytes) -> bool:
    """Return OpenSSL's verdict on a signature whose points are strict."""
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except InvalidSignature:
        return False
    return True


def dalek() -> Callable[[bytes, bytes, bytes], bool]:
    """The same by ed25519-dalek, with which the validators verify, in half the time. Raises: ImportError without it."""
    from solders.pubkey import Pubkey  # noqa: PLC0415 - 14 MB and 0.1 s, for those who verify
    from solders.signature import Signature  # noqa: PLC0415

    return lambda key, signature, message: Signature(signature).verify(Pubkey(key), message)


@cache
def fastest() -> Callable[[bytes, bytes, bytes], bool]:
    """Both say the same; which of them is there, the installation decides."""
    try:
        return dalek()
    except ImportError:
        return by_openssl


def public_key(seed: bytes) -> bytes:
    """The public key of a 32-byte seed."""
    return Ed25519PrivateKey.from_private_bytes(seed).public_key().public_bytes_raw()


def sign(seed: bytes, message: bytes) -> bytes:
    """The 64-byte signature of `message`; the same for the same bytes (RFC 8032)."""
    return signer(seed)(message)


def signer(seed: bytes) -> Callable[[bytes], bytes]:
    """Return a function that signs with this seed.

    Keep it to sign often: making the key is half of one signature's time.
    """
    return Ed25519PrivateKey.from_private_bytes(seed).sign
