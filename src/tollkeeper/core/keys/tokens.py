"""Access tokens (signed JWTs) and refresh tokens (opaque) as values (specification 5; contract 6; security A-50, A-51).

An access token is a JWT signed with Ed25519 (`alg` EdDSA and no other) by the current key of a ring; its claims are
checked against the clock that is passed in. A refresh token is 256 random bits, known to the store by its hash only.
Whether the session behind a token still lives is the store's to say.
"""
# ruff: noqa: PLC0415 - PyJWT brings half of `cryptography`, which no start needs: it comes with the first token

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.limits import ACCESS_TOKEN_LIFETIME_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tollkeeper.core.json_types import JsonObject

ALGORITHM: Final = "EdDSA"
AUDIENCE: Final = "tollkeeper"
REFRESH_SIZE_BYTES: Final = 32

_HEADER_TYPE: Final = "at+jwt"  # RFC 9068: no other JWT of anybody's can pass for an access token
_TOKEN_LENGTH_MAX: Final = 2048
_LEEWAY_SECONDS: Final = 5  # for clocks of gateway and hub that differ; never extends a token's life
_REFRESH: Final = re.compile(r"tkr_[A-Za-z0-9_-]{43}", re.ASCII)


_Claim = Annotated[str, msgspec.Meta(min_length=1)]


class AccessClaims(msgspec.Struct, frozen=True):
    """Claims of an access token. `subject` is the wallet in EIP-55 spelling; times are Unix seconds."""

    issuer: _Claim = msgspec.field(name="iss")
    subject: _Claim = msgspec.field(name="sub")
    session_id: _Claim = msgspec.field(name="sid")
    token_id: _Claim = msgspec.field(name="jti")
    issued_at: int = msgspec.field(name="iat")
    expires_at: int = msgspec.field(name="exp")


class SigningKeys:
    """The Ed25519 keys of one issuer: the first signs, all verify."""

    def __init__(self, keyring: Sequence[tuple[str, bytes]]) -> None:
        if not keyring or len({kid for kid, _ in keyring}) != len(keyring):
            raise ValueError("a key ring needs at least one key, and every key an id of its own")
        self.kid = keyring[0][0]
        self._seeds = tuple(seed for _, seed in keyring)
        self.private_key = Ed25519PrivateKey.from_private_bytes(keyring[0][1])
        self.public_keys: dict[str, Ed25519PublicKey] = {
            kid: Ed25519PrivateKey.from_private_bytes(seed).public_key() for kid, seed in keyring
        }

    def derived(self, purpose: bytes) -> tuple[bytes, ...]:
        """A key of its own for another purpose from each key of the ring, the signing one's first."""
        return tuple(hmac.digest(seed, purpose, hashlib.sha256) for seed in self._seeds)

    def jwks(self) -> dict[str, list[dict[str, str]]]:
        """The public keys as a JSON Web Key Set (RFC 7517, RFC 8037)."""
        return {
            "keys": [
                {
                    "kty": "OKP",
                    "crv": "Ed25519",
                    "x": _base64url(key.public_bytes_raw()),
                    "kid": kid,
                    "use": "sig",
                    "alg": ALGORITHM,
                }
                for kid, key in self.public_keys.items()
            ]
        }


def new_claims(issuer: str, subject: str, session_id: str, token_id: str, now_ms: int) -> AccessClaims:
    """The claims of a token issued now."""
    issued_at = now_ms // 1000
    return AccessClaims(issuer, subject, session_id, token_id, issued_at, issued_at + ACCESS_TOKEN_LIFETIME_SECONDS)


def sign_access_token(keys: SigningKeys, claims: AccessClaims) -> str:
    """The JWT that says `claims`, signed by the current key."""
    import jwt

    payload = {**msgspec.to_builtins(claims), "aud": AUDIENCE}
    return jwt.encode(payload, keys.private_key, ALGORITHM, headers={"kid": keys.kid, "typ": _HEADER_TYPE})


def read_access_token(token: str, keys: Mapping[str, Ed25519PublicKey], *, issuer: str, now_ms: int) -> AccessClaims:
    """The claims of a token that `issuer` signed with one of `keys` and that is in force at `now_ms`.

    Raises: INVALID_TOKEN.
    """
    payload = _verified_payload(token, keys)
    try:
        claims = msgspec.convert(payload, AccessClaims)
    except msgspec.ValidationError:
        raise invalid_token() from None
    if claims.issuer != issuer or payload.get("aud") != AUDIENCE:
        raise invalid_token()
    now = now_ms // 1000
    lifetime = claims.expires_at - claims.issued_at
    if not claims.issued_at - _LEEWAY_SECONDS <= now < claims.expires_at or lifetime > ACCESS_TOKEN_LIFETIME_SECONDS:
        raise invalid_token()
    return claims


def unverified_issuer(token: str) -> str | None:
    """The issuer that a token claims, to choose whose keys to check it with; None where it claims none."""
    issuer = _unverified(token, "iss")
    return issuer if type(issuer) is str else None


def is_over(token: str, now_ms: int) -> bool:
    """Return True if a token that was in force once has ended by its age alone."""
    expires_at = _unverified(token, "exp")
    return type(expires_at) is int and now_ms // 1000 >= expires_at


def _unverified(token: str, claim: str) -> object:
    import jwt

    try:
        return jwt.decode(_sane(token), options={"verify_signature": False}).get(claim)
    except (jwt.InvalidTokenError, ValueError):
        return None


def parse_jwks(document: object) -> dict[str, Ed25519PublicKey]:
    """The Ed25519 keys of another issuer's JWKS by key id; keys of other kinds are left out.

    Raises: ValueError where the document is no key set.
    """
    entries = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise ValueError(  # noqa: TRY004 - a document is judged, not an argument's type
            "not a JSON Web Key Set"
        )
    keys: dict[str, Ed25519PublicKey] = {}
    for entry in entries:
        if not isinstance(entry, dict) or (entry.get("kty"), entry.get("crv")) != ("OKP", "Ed25519"):
            continue
        kid, x = entry.get("kid"), entry.get("x")
        if type(kid) is str and type(x) is str:
            keys[kid] = _public_key(x)
    return keys


def format_refresh_token(random: bytes) -> str:
    """The text of a refresh token made of REFRESH_SIZE_BYTES of fresh randomness; leak scanners know its prefix."""
    return f"tkr_{_base64url(random)}"


def successor_of(token: str, key: bytes) -> str:
    """Make the refresh token that follows `token`: the same each time, and nobody's guess without the issuer's key.

    Raises: INVALID_TOKEN for a text that cannot be one.
    """
    if _REFRESH.fullmatch(token) is None:
        raise invalid_token()
    return format_refresh_token(hmac.digest(key, token.encode("ascii"), hashlib.sha256))


def refresh_digest(token: str) -> bytes:
    """Return the digest that a refresh token is stored and found by.

    Raises: INVALID_TOKEN for a text that cannot be one.
    """
    if _REFRESH.fullmatch(token) is None:
        raise invalid_token()
    return hashlib.sha256(token.encode("ascii")).digest()


def invalid_token() -> ApiError:
    """The one answer to every token that is not in force."""
    return ApiError(Code.INVALID_TOKEN, "the token is invalid, expired or no longer in force")


def _verified_payload(token: str, keys: Mapping[str, Ed25519PublicKey]) -> JsonObject:
    """The payload, once header and signature are as this issuer makes them; claims are not looked at yet."""
    import jwt

    try:
        header = jwt.get_unverified_header(_sane(token))
        # Exactly our header: no crit, jwk, jku or x5u to talk us into another key or another reading.
        if header.keys() != {"alg", "kid", "typ"} or (header["alg"], header["typ"]) != (ALGORITHM, _HEADER_TYPE):
            raise invalid_token()
        key = keys.get(header["kid"])
        if key is None:
            raise invalid_token()
        payload: JsonObject = jwt.decode(
            token,
            key,
            algorithms=[ALGORITHM],
            # The library would read the system's clock: the claims are checked by `read_access_token`.
            options={"verify_exp": False, "verify_iat": False, "verify_nbf": False, "verify_aud": False},
        )
    except (jwt.InvalidTokenError, ValueError):
        raise invalid_token() from None
    return payload


def _sane(token: str) -> str:
    if len(token) > _TOKEN_LENGTH_MAX or not token.isascii():
        raise ValueError("not one of our tokens")
    return token


def _public_key(x: str) -> Ed25519PublicKey:
    try:
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))
    except binascii.Error as error:
        raise ValueError("a key is not base64url") from error


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")
