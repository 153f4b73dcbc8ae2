"""Base58 with Bitcoin's alphabet: how Solana writes keys and signatures (specification 2.3).

Every byte string has one spelling and every spelling one byte string; lengths are bounded before anything is computed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from tollkeeper.core.api.errors import ApiError, Code

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
_PAIRS: Final = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_PAIRS_OF_PART: Final = 5
_PART: Final = len(_PAIRS) ** _PAIRS_OF_PART  # fits into 60 bits
_VALUES: Final = {digit: value for value, digit in enumerate(_ALPHABET)}
KEY_SIZE_BYTES: Final = 32
_KEY_LENGTH_MAX: Final = 44


def encode(data: bytes) -> str:
    """The base58 text of `data`."""
    number = int.from_bytes(data, "big")
    pairs = []
    while number:
        number, part = divmod(number, _PART)  # long numbers are divided as seldom as can be
        for _ in range(_PAIRS_OF_PART):
            part, pair = divmod(part, len(_PAIRS))
            pairs.append(_PAIRS[pair])
    zeros = len(data) - len(data.lstrip(b"\x00"))
    return "1" * zeros + "".join(reversed(pairs)).lstrip("1")


def decode(text: str, *, size_bytes: int) -> bytes:
    """The `size_bytes` bytes that `text` writes. Raises: ValueError where it does not write exactly so many."""
    number = 0
    if size_bytes <= len(text) <= 2 * size_bytes:
        try:
            for digit in text:
                number = number * 58 + _VALUES[digit]
        except KeyError:
            raise ValueError("not base58") from None
        zeros = len(text) - len(text.lstrip("1"))
        if zeros + (number.bit_length() + 7) // 8 == size_bytes:
            return number.to_bytes(size_bytes, "big")
    raise ValueError(f"not base58 of {size_bytes} bytes")


@lru_cache(maxsize=4096)
def encode_key(key: bytes) -> str:
    """The base58 text of a public key or account; remembered, because the same few come again and again."""
    return encode(key)


@lru_cache(maxsize=4096)
def decode_key(text: str) -> bytes:
    """The 32 bytes of a public key or account. Raises: ValueError."""
    if len(text) > _KEY_LENGTH_MAX:
        raise ValueError("not base58 of 32 bytes")
    return decode(text, size_bytes=KEY_SIZE_BYTES)


def parse_key(text: object, *, field: str = "address") -> str:
    """A Solana address, as it is written. Raises: INVALID_ADDRESS."""
    if isinstance(text, str):
        try:
            decode_key(text)
        except ValueError:
            pass
        else:
            return text
    raise ApiError(Code.INVALID_ADDRESS, f"{field} is not a Solana address", details={"field": field})
