"""Malformed `X-Payment` values, as many as wanted, the same for the same seed (security A-33).

Every value is one that a server must refuse as unreadable. Usable by any test: the core's, and those on real sockets,
which may only send what HTTP can carry (`is_sendable`).
"""

from __future__ import annotations

import base64
import json
from random import Random
from typing import TYPE_CHECKING, Any, Final

from tests.core.payments import signed_payment
from tollkeeper.core.x402.version1 import payment_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# JSON texts that are no number, no integer, or no integer of a sane size, wherever they stand.
BAD_NUMBERS: Final = (
    "NaN",
    "Infinity",
    "-Infinity",
    "1.0",
    "1e0",
    "1E400",
    "1e999999999",
    "-1",
    "1_000",
    "\u0661\u0662",
    "\uff11",
    "0x1",
    "+1",
    "01",
    "true",
    "[1]",
    "{}",
    "null",
    "9" * 81,
    "9" * 5000,
    str(2**256),
)
# The same as JSON strings, for members that are decimal strings.
BAD_DECIMALS: Final = (
    "",
    " ",
    "-1",
    "+1",
    " 1",
    "1 ",
    "1\n",
    "1\x00",
    "1.0",
    "1e4",
    "0x10",
    "1_000",
    "\u0661\u0662",
    "\uff11\uff12",
    "\U0001d7d9",
    "NaN",
    "Infinity",
    "9" * 79,
    "9" * 1000,
    str(2**256),
)
BAD_HEX: Final = (
    "",
    "0x",
    "0X12",
    "0x1",
    "0xzz",
    "12",
    "0x\u0661\u0662",
    " 0x12",
    "0x12 ",
    "0x12\n",
    "vitalik.eth",
    "0x" + "0" * 39,
    "0x" + "0" * 41,
    "0x" + "0" * 63,
    "0x" + "0" * 65,
    "\x00",
)
NOT_OBJECTS: Final = ("null", "true", "0", '""', "[]", '[{"x402Version":1}]', '"e30="', "1.5")
_STRINGS: Final = ("x402Version", "scheme", "network", "payload")
_AUTHORIZATION: Final = ("from", "to", "value", "validAfter", "validBefore", "nonce")


def good_body() -> dict[str, Any]:
    """The JSON object of a payment that is readable and valid."""
    return payment_body(signed_payment())


GOOD_JSON: Final = json.dumps(good_body()).encode()


def _b64(data: bytes) -> bytes:
    return base64.b64encode(data)


def _spot(random: Random, data: bytes) -> int:
    return random.randrange(len(data))


def _not_ascii_or_not_base64(random: Random) -> bytes:
    good = _b64(GOOD_JSON)
    at = _spot(random, good)
    junk = random.choice((*b' \t-_.%\x00\n*,"\x7f\xff', b"=", b"==", b"\xc3\xa9"))
    junk = bytes([junk]) if isinstance(junk, int) else junk
    # "=" and "==" may stand at the very end only where they are the right padding; elsewhere never.
    return good[:at] + junk + good[at:]


def _url_safe(random: Random) -> bytes:
    data = GOOD_JSON[:-1] + b',"x":"' + bytes([0x3F] * random.randrange(3, 30)) + b'"}'
    return base64.urlsafe_b64encode(data).replace(b"+", b"-").replace(b"/", b"_").rstrip(b"=") + b"-_"


def _cut(random: Random) -> bytes:
    return _b64(GOOD_JSON[: _spot(random, GOOD_JSON)])


def _bad_padding(random: Random) -> bytes:
    good = _b64(GOOD_JSON + b" " * random.randrange(3)).rstrip(b"=")
    return good + b"=" * random.choice([n for n in range(5) if (len(good) + n) % 4])


def _noise(random: Random) -> bytes:
    return b"\x80" + random.randbytes(random.randrange(200))


def _noise_as_base64(random: Random) -> bytes:
    return _b64(b"\xff" + random.randbytes(random.randrange(200)))


def _other_encoding(random: Random) -> bytes:
    text = GOOD_JSON.decode()
    encoding = random.choice(("utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "utf-7-bom"))
    return _b64(b"\x2b\x2f\x76\x38" + GOOD_JSON if encoding == "utf-7-bom" else text.encode(encoding))


def _bad_utf8(random: Random) -> bytes:
    bad = random.choice((b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"))
    return _b64(GOOD_JSON[:-1] + b',"x":"' + bad + b'"}')


def _surrogate(random: Random) -> bytes:
    escape = random.choice(("\\ud800", "\\uDFFF", "\\udc00\\ud800", "\\ud83dx"))
    text = GOOD_JSON.decode()
    name, value = f'{text[:-1]},"{escape}":1}}', f'{text[:-1]},"x":["{escape}"]}}'
    network = text.replace('"base-sepolia"', f'"{escape}"')
    return _b64(random.choice((name, value, network)).encode())


def _raw_control(random: Random) -> bytes:
    at = _spot(random, GOOD_JSON)
    return _b64(GOOD_JSON[:at] + bytes([random.choice((0, 1, 8, 11, 27, 31))]) + GOOD_JSON[at:])


def _not_object(random: Random) -> bytes:
    return _b64(random.choice(NOT_OBJECTS).encode())


def _duplicate_key(random: Random) -> bytes:
    name = random.choice(_STRINGS)
    escaped = random.choice((name, "".join(f"\\u{ord(letter):04x}" for letter in name)))
    value = random.choice(("1", "null", '"exact"'))
    return _b64(GOOD_JSON[:-1] + f',"{escaped}":{value}}}'.encode())


def _duplicate_money(random: Random) -> bytes:
    name = random.choice(_AUTHORIZATION)
    return _b64(GOOD_JSON.replace(b'"authorization": {', f'"authorization": {{"{name}": "1", '.encode()))


def _deep(random: Random) -> bytes:
    opening, closing = random.choice((("[", "]"), ('{"a":', "}")))
    depth = random.choice((8, 9, 20, 500, 1000))
    nested = opening * depth + "1" + closing * random.choice((0, depth))
    return _b64(f'{GOOD_JSON.decode()[:-1]},"x":{nested}}}'.encode())


def _deep_alone(random: Random) -> bytes:
    return _b64(random.choice((b"[", b'{"a":')) * random.choice((9, 100, 1000)))


def _too_long(random: Random) -> bytes:
    size = random.choice((8193, 9000, 20_000, 100_000))
    filler = random.choice((b"A", b"=", b"[", b"0"))
    whole = _b64(GOOD_JSON[:-1] + b',"x":"' + b"y" * size + b'"}')
    return random.choice((filler * size, whole, _b64(b"[" * size), _b64(b'{"x402Version":' + b"9" * size + b"}")))


def _bad_number(random: Random) -> bytes:
    member = random.choice(("x402Version", "validBefore", "extra"))
    bad = random.choice(BAD_NUMBERS)
    text = GOOD_JSON.decode()
    if member == "x402Version":
        # A version may be any integer: which one is supported is not a question of syntax.
        bad = random.choice([number for number in BAD_NUMBERS if number not in {"-1", str(2**256)}])
        return _b64(text.replace('"x402Version": 1', f'"x402Version": {bad}').encode())
    if member == "validBefore":
        body = good_body()
        body["payload"]["authorization"]["validBefore"] = "@"
        return _b64(json.dumps(body).replace('"@"', bad).encode())
    bad = random.choice(("NaN", "Infinity", "-Infinity", "9" * 81, "9" * 5000, "1_000", "+1", "01", "\u0661"))
    return _b64(f'{text[:-1]},"extra":{bad}}}'.encode())


def _bad_member(random: Random) -> bytes:
    body = good_body()
    authorization = body["payload"]["authorization"]
    name = random.choice((*_AUTHORIZATION, "signature"))
    if name in {"value", "validAfter", "validBefore"}:
        authorization[name] = random.choice(BAD_DECIMALS)
    elif name == "signature":
        body["payload"]["signature"] = random.choice(BAD_HEX[:13])
    else:
        authorization[name] = random.choice(BAD_HEX)
    return _b64(json.dumps(body, ensure_ascii=random.random() < 0.5).encode())


def _wrong_type(random: Random) -> bytes:
    body = good_body()
    places = [(body, name) for name in _STRINGS]
    places += [(body["payload"], name) for name in ("signature", "authorization")]
    places += [(body["payload"]["authorization"], name) for name in _AUTHORIZATION]
    holder, name = random.choice(places)
    wrong: list[Any] = [True, False, [], {}, [1], 1.5, None]
    wrong += [] if name in {"x402Version", "validBefore"} else [1, 0, -1]
    wrong += ["1"] if name in {"x402Version", "payload", "authorization"} else []
    holder[name] = random.choice(wrong)
    return _b64(json.dumps(body).encode())


def _left_out(random: Random) -> bytes:
    body = good_body()
    places = [(body, name) for name in _STRINGS]
    places += [(body["payload"], name) for name in ("signature", "authorization")]
    places += [(body["payload"]["authorization"], name) for name in _AUTHORIZATION]
    holder, name = random.choice(places)
    del holder[name]
    return _b64(json.dumps(body).encode())


def _long_text(random: Random) -> bytes:
    body = good_body()
    body[random.choice(("scheme", "network"))] = "x" * 2049
    return _b64(json.dumps(body).encode())


def _text_after(random: Random) -> bytes:
    return _b64(GOOD_JSON + random.choice((b"x", b"{}", b"\x00", GOOD_JSON, b",")))


def _base64_twice(_: Random) -> bytes:
    return _b64(_b64(GOOD_JSON))


def _plain_json(_: Random) -> bytes:
    return GOOD_JSON


MUTATIONS: Final[tuple[Callable[[Random], bytes], ...]] = (
    _not_ascii_or_not_base64,
    _url_safe,
    _cut,
    _bad_padding,
    _noise,
    _noise_as_base64,
    _other_encoding,
    _bad_utf8,
    _surrogate,
    _raw_control,
    _not_object,
    _duplicate_key,
    _duplicate_money,
    _deep,
    _deep_alone,
    _too_long,
    _bad_number,
    _bad_member,
    _wrong_type,
    _left_out,
    _long_text,
    _text_after,
    _base64_twice,
    _plain_json,
)


def malformed_headers(seed: int, count: int) -> Iterator[bytes]:
    """`count` malformed `X-Payment` values, none of them empty, each kind of damage as often as the others."""
    random = Random(seed)
    for index in range(count):
        yield MUTATIONS[index % len(MUTATIONS)](random)


def is_sendable(header: bytes) -> bool:
    """May HTTP carry this field value as it is (no control character but a tab, no space at its ends)?"""
    return header == header.strip(b" \t") and not any((byte < 32 and byte != 9) or byte == 127 for byte in header)
