"""The login endpoints (contract 2), the same at gateway and hub; mounted by listing `auth_routes(auth)`.

`/introspect` asks for no credentials of its caller: it tells whoever holds an access token what that token says in
plain (`sub`, `exp`) and whether its login has ended, and a token cannot be guessed. No answer with a token in it may be
cached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from litestar import Response
from msgspec.structs import asdict

from tollkeeper.api import (
    HttpRequest,
    bearer_token,
    iso,
    json_body,
    ok,
    once_each,
    query_of,
    read_body,
    string_field,
    unless_known,
)
from tollkeeper.auth import bodies, operations
from tollkeeper.core.api.errors import invalid, missing
from tollkeeper.core.wallets import shown_address
from tollkeeper.describing import route

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from tollkeeper.auth.issuer import Auth
    from tollkeeper.storage.auth import User

_NO_STORE: Final = {"Cache-Control": "no-store"}
_FORM: Final = "application/x-www-form-urlencoded"
_FORM_FIELDS_MAX: Final = 16


def auth_routes(auth: Auth) -> list[HTTPRouteHandler]:
    """The route handlers of one issuer."""
    return [*_login_routes(auth), *_session_routes(auth), *_verifier_routes(auth)]


def _login_routes(auth: Auth) -> list[HTTPRouteHandler]:
    @route(operations.MESSAGE)
    async def message(request: HttpRequest) -> Response[bytes]:
        """Specification 4.2: EIP-4361 text for `walletAddress`."""
        wallet_address = query_of(request).get("walletAddress")
        if not wallet_address:
            raise missing("walletAddress")
        return ok(bodies.LoginText(auth.message(wallet_address)), headers=_NO_STORE)

    @route(operations.LOGIN)
    async def login(request: HttpRequest) -> Response[bytes]:
        """Specification 4.2: `message` and `signature` for a pair of tokens."""
        body = await json_body(request)
        done = await auth.login(string_field(body, "message"), string_field(body, "signature"))
        pair = done.tokens
        return ok(bodies.LoggedIn(pair.access_token, pair.refresh_token, user_body(done.user)), headers=_NO_STORE)

    @route(operations.HANDOVER)
    async def handover(request: HttpRequest) -> Response[bytes]:
        """Contract 11: `code` of the dashboard, `verifier` and `port` of the program that asked for it."""
        body = await json_body(request)
        port = body.get("port")
        if not isinstance(port, int) or isinstance(port, bool):
            raise missing("port") if port is None else invalid("port", "port must be a whole number")
        done = await auth.take_over(string_field(body, "code"), string_field(body, "verifier"), port)
        pair = done.tokens
        return ok(bodies.LoggedIn(pair.access_token, pair.refresh_token, user_body(done.user)), headers=_NO_STORE)

    @route(operations.REFRESH)
    async def refresh(request: HttpRequest) -> Response[bytes]:
        """Specification 4.2: `refreshToken`, good for one use."""
        pair = await auth.refresh(string_field(await json_body(request), "refreshToken"))
        return ok(bodies.Tokens(pair.access_token, pair.refresh_token), headers=_NO_STORE)

    return [message, login, handover, refresh]


def _session_routes(auth: Auth) -> list[HTTPRouteHandler]:
    @route(operations.ME)
    async def me(request: HttpRequest) -> Response[bytes]:
        """Contract 2: the user's fields at the top and again under `user`."""
        session = await auth.authenticate(bearer_token(request.headers))
        user = user_body(await auth.user(session))
        return unless_known(request, bodies.CurrentUser(**asdict(user), user=user), _NO_STORE)

    @route(operations.LOGOUT)
    async def logout(request: HttpRequest) -> Response[bytes]:
        """Contract 2: ends the refresh family and the access tokens of this login."""
        await auth.logout(await auth.authenticate(bearer_token(request.headers)))
        return ok(bodies.Done(success=True, message="logged out"))

    return [me, logout]


def _verifier_routes(auth: Auth) -> list[HTTPRouteHandler]:
    @route(operations.INTROSPECT)
    async def introspect(request: HttpRequest) -> Response[bytes]:
        """RFC 7662: `token`, as JSON or as a form."""
        return ok(await auth.introspect(await _token_field(request)), headers=_NO_STORE)

    @route(operations.JWKS)
    async def jwks(request: HttpRequest) -> Response[bytes]:
        """RFC 7517: every key that may have signed a token still in force."""
        return unless_known(request, auth.jwks(), {"Cache-Control": "public, max-age=300"})

    return [introspect, jwks]


async def _token_field(request: HttpRequest) -> str:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
        return string_field(await json_body(request), "token")
    text = (await read_body(request.stream(), request.scope["headers"])).decode("utf-8", "replace")
    try:
        fields = parse_qsl(text, keep_blank_values=True, max_num_fields=_FORM_FIELDS_MAX)
    except ValueError:
        raise invalid("body", f"the form has more than {_FORM_FIELDS_MAX} fields") from None
    return string_field(once_each(fields), "token")


def user_body(user: User) -> bodies.LoggedInUser:
    """Return the `user` object of contract 2."""
    return bodies.LoggedInUser(user.id, shown_address(user.wallet), iso(user.created_ms), iso(user.updated_ms))
