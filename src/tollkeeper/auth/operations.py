"""Table of the login endpoints (specification 4.2, contract 2), the same at gateway and hub."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Final

from msgspec import Meta

from tollkeeper.auth import bodies
from tollkeeper.core.api.bodies import WalletAddress
from tollkeeper.core.api.errors import Code
from tollkeeper.core.api.openapi import JSON, Bearer, Operation, answer, query, read

_login: Final = partial(Operation, tag="login", is_limited=True)
_GUARDED: Final = (Code.FORBIDDEN, Code.UNAVAILABLE)  # a web page of an origin that the settings do not name: FORBIDDEN
_BODY: Final = (Code.MISSING_PARAMETER, Code.PAYLOAD_TOO_LARGE, *_GUARDED)
_BEARER: Final = (Code.AUTH_REQUIRED, Code.INVALID_TOKEN, *_GUARDED)
_WALLET: Final = Annotated[WalletAddress, Meta(description="EVM, or base58 on Solana")]

MESSAGE: Final = _login(
    "loginMessage",
    "get /api/v1/auth/message",
    "The message to sign for a login",
    description="EIP-4361 text, good for one login within five minutes.",
    parameters=(query("walletAddress", _WALLET, required=True),),
    answers=answer("The message", bodies.LoginText),
    codes=(Code.MISSING_PARAMETER, Code.INVALID_ADDRESS, *_GUARDED),
)
LOGIN: Final = _login(
    "login",
    "post /api/v1/auth/login",
    "Log in with a signed message",
    request={JSON: bodies.LoginRequest},
    answers=answer("A pair of tokens", bodies.LoggedIn),
    codes=(Code.INVALID_SIGNATURE, *_BODY),
)
HANDOVER: Final = _login(
    "handover",
    "post /api/v1/auth/handover",
    "Log in with a code that the dashboard made",
    description="For a program on the machine of a browser that is logged in. It opens /app/terminal with its port, a "
    "code that it shows, and the SHA-256 of a verifier; its user confirms; the browser brings the code to the port.",
    request={JSON: bodies.HandoverRequest},
    answers=answer("A pair of tokens", bodies.LoggedIn),
    codes=(Code.INVALID_TOKEN, *_BODY),
)
REFRESH: Final = _login(
    "refresh",
    "post /api/v1/auth/refresh",
    "A new pair of tokens",
    description="A refresh token is good for one use. Presented again within 10 seconds it gives the same successor, "
    "as long as that was not used; any other second use ends the login.",
    request={JSON: bodies.RefreshRequest},
    answers=answer("A pair of tokens", bodies.Tokens),
    codes=(Code.INVALID_TOKEN, *_BODY),
)
ME: Final = _login(
    "currentUser",
    "get /api/v1/auth/me",
    "The current user",
    bearer=Bearer.REQUIRED,
    answers=read("The user", bodies.CurrentUser),
    codes=_BEARER,
)
LOGOUT: Final = _login(
    "logout",
    "post /api/v1/auth/logout",
    "End this login",
    description="Its refresh tokens and its access tokens are void from then on.",
    bearer=Bearer.REQUIRED,
    answers=answer("Logged out", bodies.Done),
    codes=_BEARER,
)
INTROSPECT: Final = _login(
    "introspect",
    "post /api/v1/auth/introspect",
    "Is an access token in force?",
    description="RFC 7662.",
    request={JSON: bodies.IntrospectionRequest, "application/x-www-form-urlencoded": bodies.IntrospectionRequest},
    answers=answer("What the token says", bodies.Introspection),
    codes=_BODY,
    is_limited=False,
)
JWKS: Final = _login(
    "signingKeys",
    "get /.well-known/jwks.json",
    "The public keys of access tokens",
    description="RFC 7517.",
    answers=read("The keys", bodies.PublicKeys, headers={"Cache-Control": str}),
    is_limited=False,
)
