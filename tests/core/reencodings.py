"""Other spellings of one payment: headers that differ in their bytes and mean the same payment (security A-03).

What may vary: key order, white space, unicode escapes, case of hex and addresses, leading zeros, a number or a string
for `validBefore`, an alias of the network, members that nobody asked for, the base64's unused bits.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from tollkeeper.core.x402.version1 import EvmPayload, Payment

if TYPE_CHECKING:
    from random import Random

_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_SPACES: Final = ("", "", " ", "\t", "\n", "\r\n", "   ")
_ALIASES: Final = {"base": ("base", "base-mainnet"), "base-sepolia": ("base-sepolia",)}


def _any_case(random: Random, text: str) -> str:
    how = random.randrange(3)
    if how == 0:
        return text
    if how == 1:
        return "0x" + text[2:].upper()
    mask = random.getrandbits(len(text))
    return "0x" + "".join(digit.upper() if mask >> at & 1 else digit for at, digit in enumerate(text[2:]))


def _padded(random: Random, number: int) -> str:
    return str(number).zfill(random.choice((1, 1, 20, 78)))


def _string(random: Random, text: str) -> str:
    """A JSON string of `text` with some characters escaped."""
    if random.random() < 0.8 or not text:
        return json.dumps(text, ensure_ascii=random.random() < 0.5)
    start = random.randrange(len(text))
    stop = min(len(text), start + random.choice((1, 3, len(text))))
    return '"' + json.dumps(text[:start])[1:-1] + _escaped(random, text[start:stop]) + json.dumps(text[stop:])[1:]


def _escaped(random: Random, text: str) -> str:
    form = random.choice(("{:02x}{:02x}", "{:02X}{:02X}"))
    units = text.encode("utf-16-be")
    return "".join("\\u" + form.format(*units[at : at + 2]) for at in range(0, len(units), 2))


def _json(random: Random, value: object) -> str:
    """JSON text of `value` with its keys in any order and white space wherever it may stand."""
    space = random.choice(_SPACES)
    if isinstance(value, dict):
        members = [f"{_string(random, name)}{space}:{space}{_json(random, inner)}" for name, inner in value.items()]
        random.shuffle(members)
        return "{" + space + f"{space},{space}".join(members) + space + "}"
    if isinstance(value, list):
        return "[" + f",{space}".join(_json(random, inner) for inner in value) + "]"
    return _string(random, value) if isinstance(value, str) else json.dumps(value)


def _base64(random: Random, data: bytes) -> bytes:
    """Standard base64 whose last digit before the padding may carry unused bits."""
    text = base64.b64encode(data)
    unused = {0: 0, 1: 2, 2: 4}[text.count(b"=")]
    if not unused or random.random() < 0.5:
        return text
    body = text.rstrip(b"=")
    digit = _ALPHABET.index(body[-1:]) | random.randrange(1 << unused)
    return body[:-1] + _ALPHABET[digit : digit + 1] + b"=" * text.count(b"=")


def _extra(random: Random) -> dict[str, Any]:
    return {
        name: random.choice((1, None, True, "x", "\u00e9\U0001f600", [], {"a": []}, 10**30))
        for name in random.sample(("apiVersion", "memo", "x402", "accepted", "\u043a"), random.choice((0, 0, 1, 3)))
    }


def reencode(payment: Payment, random: Random) -> bytes:
    """Another `X-Payment` value of the same EVM payment."""
    assert isinstance(payment.payload, EvmPayload)
    authorization = payment.payload.authorization
    before: int | str = authorization.valid_before
    if random.random() < 0.5:
        before = _padded(random, authorization.valid_before)
    body = {
        "x402Version": payment.x402_version,
        "scheme": payment.scheme,
        "network": random.choice(_ALIASES[payment.network]),
        "payload": {
            "signature": _any_case(random, "0x" + payment.payload.signature.hex()),
            "authorization": {
                "from": _any_case(random, authorization.payer),
                "to": _any_case(random, authorization.pay_to),
                "value": _padded(random, authorization.value),
                "validAfter": _padded(random, authorization.valid_after),
                "validBefore": before,
                "nonce": _any_case(random, authorization.nonce),
                **_extra(random),
            },
            **_extra(random),
        },
        **_extra(random),
    }
    return _base64(random, (random.choice(_SPACES) + _json(random, body) + random.choice(_SPACES)).encode())
