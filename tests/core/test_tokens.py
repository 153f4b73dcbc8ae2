from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Iterator
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.keys.tokens import (
    AccessClaims,
    SigningKeys,
    format_refresh_token,
    is_over,
    new_claims,
    parse_jwks,
    read_access_token,
    refresh_digest,
    sign_access_token,
    successor_of,
    unverified_issuer,
)

ISSUER = "https://gate.example"
NOW_MS = 1_750_000_000_500
SEED = bytes(range(32))
KEYS = SigningKeys([("new", SEED), ("old", bytes(32))])
CLAIMS = new_claims(ISSUER, "0xAbc", "session", "token", NOW_MS)
TOKEN = sign_access_token(KEYS, CLAIMS)


def read(token: str, *, now_ms: int = NOW_MS, issuer: str = ISSUER) -> AccessClaims:
    return read_access_token(token, KEYS.public_keys, issuer=issuer, now_ms=now_ms)


def assert_refused(token: str, *, now_ms: int = NOW_MS, issuer: str = ISSUER) -> None:
    with pytest.raises(ApiError) as refusal:
        read(token, now_ms=now_ms, issuer=issuer)
    assert (refusal.value.code, refusal.value.status) == (Code.INVALID_TOKEN, 401)
    assert refusal.value.__suppress_context__ or refusal.value.__context__ is None


def b64(data: bytes | dict[str, Any]) -> str:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


HEADER: dict[str, Any] = {"alg": "EdDSA", "kid": "new", "typ": "at+jwt"}
PAYLOAD: dict[str, Any] = {
    "iss": ISSUER,
    "aud": "tollkeeper",
    "sub": "0xAbc",
    "sid": "session",
    "jti": "token",
    "iat": 1_750_000_000,
    "exp": 1_750_000_900,
}


def forge(
    header: dict[str, Any] | bytes = HEADER, payload: dict[str, Any] | bytes = PAYLOAD, *, seed: bytes = SEED
) -> str:
    """A token of any header and payload, signed with `seed`: what an issuer that has gone wrong might sign."""
    signed = f"{b64(header)}.{b64(payload)}"
    return f"{signed}.{b64(Ed25519PrivateKey.from_private_bytes(seed).sign(signed.encode()))}"


def forged_tokens() -> Iterator[tuple[str, str]]:
    """Tokens that are not in force, each with the reason."""
    header, payload, signature = TOKEN.split(".")
    public_raw = KEYS.public_keys["new"].public_bytes_raw()
    public_pem = KEYS.public_keys["new"].public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    yield from [
        ("empty", ""),
        ("no JWT", "x"),
        ("two parts", f"{header}.{payload}"),
        ("dots", ".."),
        ("four", f"{TOKEN}.x"),
    ]
    yield from [
        ("no signature", f"{header}.{payload}."),
        ("half a signature", TOKEN[:-43]),
        ("too long", TOKEN + "A" * 2048),
    ]
    yield "not ASCII", TOKEN + "\N{LATIN SMALL LETTER E WITH ACUTE}"
    yield "lone surrogate", "\ud800"
    yield "signature of another key", forge(seed=bytes([7]) * 32)
    yield "signature of the other key of the ring", forge(seed=bytes(32))
    yield "signature over another payload", f"{header}.{b64({**PAYLOAD, 'sub': '0xDef'})}.{signature}"
    yield "signature over another header", f"{b64({**HEADER, 'kid': 'old'})}.{payload}.{signature}"
    yield "a refresh token", format_refresh_token(bytes(32))
    for name in ("none", "None", "NONE", "", "EdDSA ", "eddsa", "Ed25519", "HS256", "RS256", "ES256"):
        yield f"alg {name!r}", forge({**HEADER, "alg": name})
        yield f"alg {name!r} unsigned", f"{b64({**HEADER, 'alg': name})}.{payload}."
    for secret in (public_raw, public_pem, SEED):
        signed = f"{b64({**HEADER, 'alg': 'HS256'})}.{payload}"
        yield "public key as HMAC secret", f"{signed}.{b64(hmac.digest(secret, signed.encode(), 'sha256'))}"
    ec_key = generate_private_key(SECP256R1())
    yield "ES256", jwt.encode(PAYLOAD, ec_key, "ES256", headers={"kid": "new", "typ": "at+jwt"})
    strange_kids: list[Any] = ["unknown", "", "../new", "new\0", None, 1, ["new"], {"kid": "new"}, True]
    for kid in strange_kids:
        yield f"kid {kid!r}", forge({**HEADER, "kid": kid})
    for typ in ("JWT", "AT+JWT", "application/at+jwt", "refresh", None):
        yield f"typ {typ!r}", forge({**HEADER, "typ": typ})
    for name in HEADER:
        yield f"header without {name}", forge({key: value for key, value in HEADER.items() if key != name})
    jwk = {
        "kty": "OKP",
        "crv": "Ed25519",
        "x": b64(Ed25519PrivateKey.from_private_bytes(bytes([7]) * 32).public_key().public_bytes_raw()),
    }
    extras: dict[str, Any] = {
        "crit": ["exp"],
        "jwk": jwk,
        "jku": "https://evil.example/jwks.json",
        "x5u": "https://evil.example/cert",
        "x5c": ["AAAA"],
        "b64": False,
        "zip": "DEF",
        "cty": "JWT",
    }
    for name, value in extras.items():
        yield f"header with {name}", forge({**HEADER, name: value})
        yield f"header with {name}, other key", forge({**HEADER, name: value}, seed=bytes([7]) * 32)
    for name in PAYLOAD:
        yield f"payload without {name}", forge(payload={key: value for key, value in PAYLOAD.items() if key != name})
    wrong: dict[str, list[Any]] = {
        "iss": ["https://evil.example", ISSUER + "/", "", None, [ISSUER]],
        "aud": ["other", ["tollkeeper"], ["tollkeeper", "other"], None, ""],
        "sub": ["", None, 1, ["0xAbc"]],
        "sid": ["", None, 1, {"a": 1}],
        "jti": ["", None, 1, []],
        "iat": [None, "1750000000", 1.75e9, True, 1_750_000_007, 10**30, -(10**30)],
        "exp": [None, "1750000900", 1.7500009e9, True, 1_750_000_000, 1_749_999_999, 1_750_000_901, 10**30],
    }
    for name, values in wrong.items():
        for value in values:
            yield f"{name} {value!r}", forge(payload={**PAYLOAD, name: value})
    yield from [("payload is a list", forge(payload=b"[]")), ("payload is no JSON", forge(payload=b"{"))]
    yield from [
        ("header is a list", forge(b"[]")),
        ("header is no JSON", forge(b"{")),
        ("payload NaN", forge(payload=b"NaN")),
    ]
    yield "payload is not UTF-8", forge(payload=b'{"iss":"\xff"}')
    yield "header is deep", forge(b'{"a":' + b"[" * 600 + b"]" * 600 + b"}")


FORGED = list(forged_tokens())


def test_a_token_says_what_was_signed() -> None:
    assert read(TOKEN) == CLAIMS == AccessClaims(ISSUER, "0xAbc", "session", "token", 1_750_000_000, 1_750_000_900)
    assert jwt.get_unverified_header(TOKEN) == HEADER
    assert jwt.decode(TOKEN, options={"verify_signature": False}) == PAYLOAD
    assert read(forge()) == CLAIMS  # so that each forgery below fails for its own reason


def test_the_claims_are_those_of_the_contract_and_fifteen_minutes_apart() -> None:
    assert CLAIMS.expires_at - CLAIMS.issued_at == 15 * 60


@pytest.mark.parametrize(
    "token", [token for _, token in FORGED], ids=[f"{n}-{reason}" for n, (reason, _) in enumerate(FORGED)]
)
def test_a_forged_token_is_refused(token: str) -> None:
    assert_refused(token)


def test_sixty_forged_tokens_and_more_are_among_the_tests() -> None:
    assert len({token for _, token in FORGED}) >= 60


@given(st.data())
def test_no_changed_byte_leaves_a_token_in_force(data: st.DataObject) -> None:
    position = data.draw(st.integers(0, len(TOKEN) - 2))  # the last character holds two bits that mean nothing
    character = data.draw(st.characters(codec="ascii").filter(lambda drawn: drawn != TOKEN[position]))
    assert_refused(TOKEN[:position] + character + TOKEN[position + 1 :])


@given(st.text(max_size=300))
def test_no_text_is_more_than_refused(text: str) -> None:
    assert_refused(text)
    unverified_issuer(text)


def test_a_token_is_in_force_from_its_issue_to_the_second_before_its_end() -> None:
    issued_ms, end_ms = CLAIMS.issued_at * 1000, CLAIMS.expires_at * 1000
    for now_ms in (issued_ms - 5_000, issued_ms, end_ms - 1):
        assert read(TOKEN, now_ms=now_ms) == CLAIMS
    for now_ms in (issued_ms - 5_001, end_ms, end_ms + 1):
        assert_refused(TOKEN, now_ms=now_ms)


def test_a_token_of_another_issuer_is_refused() -> None:
    assert_refused(TOKEN, issuer="https://hub.example")
    assert unverified_issuer(TOKEN) == ISSUER


@pytest.mark.parametrize(
    "token",
    ["", "x", "a.b.c", "\ud800", "A" * 3000, forge(payload={}), forge(payload={"iss": 1}), forge(payload=b"[]")],
)
def test_a_token_without_an_issuer_claims_none(token: str) -> None:
    assert unverified_issuer(token) is None


def test_a_token_is_over_by_its_age_and_nothing_else() -> None:
    end_ms = CLAIMS.expires_at * 1000
    assert [is_over(TOKEN, now_ms) for now_ms in (0, end_ms - 1, end_ms)] == [False, False, True]
    for token in ("", "x", "\ud800", forge(payload={}), forge(payload={"exp": "1"})):
        assert not is_over(token, end_ms)


def test_a_former_key_still_verifies_and_a_removed_one_does_not() -> None:
    former = sign_access_token(SigningKeys([("old", bytes(32))]), CLAIMS)
    assert read(former) == CLAIMS
    removed = sign_access_token(SigningKeys([("gone", bytes([9]) * 32)]), CLAIMS)
    assert_refused(removed)


@pytest.mark.parametrize("ring", [[], [("a", SEED), ("a", bytes(32))], [("a", b"short")]])
def test_a_ring_without_keys_of_their_own_names_is_refused(ring: list[tuple[str, bytes]]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography's own text for the short key
        SigningKeys(ring)


def test_a_key_set_carries_the_public_keys_and_no_private_one() -> None:
    document = KEYS.jwks()
    read_back = parse_jwks(document)
    assert {kid: key.public_bytes_raw() for kid, key in read_back.items()} == {
        kid: key.public_bytes_raw() for kid, key in KEYS.public_keys.items()
    }
    assert all(entry.keys() == {"kty", "crv", "x", "kid", "use", "alg"} for entry in document["keys"])
    assert b64(SEED) not in json.dumps(document)
    assert read_access_token(TOKEN, read_back, issuer=ISSUER, now_ms=NOW_MS) == CLAIMS
    assert jwt.PyJWKSet.from_dict(document)["new"].key == KEYS.public_keys["new"]  # another reader agrees


def test_keys_of_other_kinds_in_a_key_set_are_left_out() -> None:
    ours = KEYS.jwks()["keys"]
    others: list[Any] = [
        "x",
        {},
        {"kty": "RSA"},
        {**ours[0], "crv": "X25519"},
        {**ours[0], "kid": 1},
        {**ours[0], "x": None},
    ]
    assert parse_jwks({"keys": [*others, ours[1]]}).keys() == {"old"}


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"keys": {}},
        {"keys": [{**KEYS.jwks()["keys"][0], "x": "A"}]},
        {"keys": [{**KEYS.jwks()["keys"][0], "x": "AAAA"}]},
    ],
)
def test_a_document_that_is_no_key_set_is_an_error(document: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - cryptography's own text for a key of a wrong length
        parse_jwks(document)


@given(st.binary(min_size=32, max_size=32))
def test_a_refresh_token_is_its_random_bytes_and_is_found_by_its_hash(random: bytes) -> None:
    token = format_refresh_token(random)
    assert base64.urlsafe_b64decode(token.removeprefix("tkr_") + "=") == random
    assert refresh_digest(token) == hashlib.sha256(token.encode()).digest()


@pytest.mark.parametrize(
    "token",
    [
        "",
        "tkr_",
        TOKEN,
        "tkr_" + "A" * 42,
        "tkr_" + "A" * 44,
        "TKR_" + "A" * 43,
        "tkr_" + "A" * 42 + "\n",
        "tkr_" + "é" * 43,
    ],
)
def test_a_text_that_is_no_refresh_token_is_refused(token: str) -> None:
    with pytest.raises(ApiError) as refusal:
        refresh_digest(token)
    assert refusal.value.code is Code.INVALID_TOKEN
    with pytest.raises(ApiError) as refusal:
        successor_of(token, SEED)
    assert refusal.value.code is Code.INVALID_TOKEN


def test_a_refresh_token_has_one_successor_by_each_key() -> None:
    key, former = KEYS.derived(b"refresh")
    token = format_refresh_token(bytes(32))
    assert successor_of(token, key) == successor_of(token, key)
    assert len({token, successor_of(token, key), successor_of(token, former)}) == 3
    assert len({key, former, *KEYS.derived(b"another purpose")}) == 4
    assert refresh_digest(successor_of(token, key))


def test_claims_are_values() -> None:
    assert replace(CLAIMS, token_id="other") != CLAIMS
