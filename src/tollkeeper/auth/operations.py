"""Descriptions of the login endpoints (specification 4.2, contract 2), the same at gateway and hub."""

from __future__ import annotations

from typing import Final

from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, ResponseSpec, ref
from tollkeeper.core.api.schemas import IF_NONE_MATCH, TEXT, UNCHANGED, query, record

_TAG: Final = "login"
_GUARDED: Final = (Code.FORBIDDEN, Code.UNAVAILABLE)  # a web page of an origin that the settings do not name: FORBIDDEN
_BODY: Final = (Code.MISSING_PARAMETER, Code.PAYLOAD_TOO_LARGE, *_GUARDED)
_BEARER: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN, *_GUARDED)
_WORD: Final = {"type": "string", "minLength": 1}

MESSAGE: Final = Operation(
    id="loginMessage",
    method="get",
    path="/api/v1/auth/message",
    tag=_TAG,
    is_limited=True,
    summary="The message to sign for a login",
    description="EIP-4361 text, good for one login within five minutes.",
    parameters=(
        query(
            "walletAddress",
            {"type": "string", "pattern": "^(0x[0-9a-fA-F]{40}|[1-9A-HJ-NP-Za-km-z]{32,44})$"},
            "EVM, or base58 on Solana",
            required=True,
        ),
    ),
    answers={200: ResponseSpec("The message", {JSON: ref("LoginMessage")})},
    codes=(Code.MISSING_PARAMETER, Code.INVALID_ADDRESS, *_GUARDED),
)
LOGIN: Final = Operation(
    id="login",
    method="post",
    path="/api/v1/auth/login",
    tag=_TAG,
    is_limited=True,
    summary="Log in with a signed message",
    request={JSON: record({"message": _WORD, "signature": _WORD})},
    answers={200: ResponseSpec("A pair of tokens", {JSON: ref("LoggedIn")})},
    codes=(Code.INVALID_SIGNATURE, *_BODY),
)
REFRESH: Final = Operation(
    id="refresh",
    method="post",
    path="/api/v1/auth/refresh",
    tag=_TAG,
    is_limited=True,
    summary="A new pair of tokens",
    description=(
        "A refresh token is good for one use. Presented again within 10 seconds it gives the same successor, as long "
        "as that was not used; any other second use ends the login."
    ),
    request={JSON: record({"refreshToken": _WORD})},
    answers={200: ResponseSpec("A pair of tokens", {JSON: ref("Tokens")})},
    codes=(Code.INVALID_TOKEN, *_BODY),
)
ME: Final = Operation(
    id="currentUser",
    method="get",
    path="/api/v1/auth/me",
    tag=_TAG,
    is_limited=True,
    summary="The current user",
    parameters=(IF_NONE_MATCH,),
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("The user", {JSON: ref("CurrentUser")}), 304: UNCHANGED},
    codes=_BEARER,
)
LOGOUT: Final = Operation(
    id="logout",
    method="post",
    path="/api/v1/auth/logout",
    tag=_TAG,
    is_limited=True,
    summary="End this login",
    description="Its refresh tokens and its access tokens are void from then on.",
    bearer=Bearer.REQUIRED,
    answers={200: ResponseSpec("Logged out", {JSON: ref("Done")})},
    codes=_BEARER,
)
INTROSPECT: Final = Operation(
    id="introspect",
    method="post",
    path="/api/v1/auth/introspect",
    tag=_TAG,
    summary="Whether an access token is in force",
    description="RFC 7662.",
    request={
        JSON: record({"token": _WORD}),
        "application/x-www-form-urlencoded": record({"token": _WORD}),
    },
    answers={200: ResponseSpec("What the token says", {JSON: ref("Introspection")})},
    codes=_BODY,
)
JWKS: Final = Operation(
    id="signingKeys",
    method="get",
    path="/.well-known/jwks.json",
    tag=_TAG,
    summary="The public keys of access tokens",
    description="RFC 7517.",
    parameters=(IF_NONE_MATCH,),
    answers={200: ResponseSpec("The keys", {JSON: ref("SigningKeys")}, {"Cache-Control": TEXT}), 304: UNCHANGED},
)
