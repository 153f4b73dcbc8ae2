"""One request at the dashboard: its session, which cookies hold, its form, and the answer that a page gives it."""

from __future__ import annotations

import hashlib
import hmac
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlencode

from tollkeeper.api import once_each, read_body, receive_chunks
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.limits import REFRESH_TOKEN_LIFETIME_SECONDS
from tollkeeper.core.wallets import shown_address
from tollkeeper.web.rendering import rendered

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from litestar.types import HTTPScope, Receive

    from tollkeeper.auth import Auth, Session
    from tollkeeper.auth.issuer import TokenPair
    from tollkeeper.core.networks import Network

ROOT: Final = "/app"
HTML: Final = "text/html; charset=utf-8"
_ACCESS: Final = "tollkeeper_session"
_RENEWAL: Final = "tollkeeper_renewal"
_FIELDS_MAX: Final = 40
_FORM: Final = "application/x-www-form-urlencoded"


class LoginRequiredError(Exception):
    """The page is for somebody who is logged in, and nobody is."""


@dataclass(frozen=True, slots=True)
class PageAnswer:
    """One answer: a whole body, or one that is sent as it comes."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    media_type: str = HTML
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class PagePlace:
    """The dashboard's own place: its origin, its scripts, the networks that it tells of, where its limits are."""

    app_url: str
    assets: str
    networks: tuple[Network, ...]
    default_network: str
    is_sandbox: bool


@dataclass(slots=True)
class Visit:
    """A request. `path` is below `/app`; what the session's cookies become goes out with the answer."""

    scope: HTTPScope
    receive: Receive
    path: str
    place: PagePlace
    auth: Auth
    headers: Mapping[str, str] = field(init=False)
    query: dict[str, str] = field(init=False)
    cookies: list[str] = field(default_factory=list)
    bearer: str = ""
    session: Session | None = None

    def __post_init__(self) -> None:
        """Read what every page needs. Raises: INVALID_PARAMETER for a parameter that came twice."""
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self.scope["headers"]}
        self.query = once_each(parse_qsl(self.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    async def log_in(self) -> None:
        """Find the session of the cookies, and renew what of it is over. Raises: LoginRequiredError, UNAVAILABLE."""
        sent = _cookies(self.headers.get("cookie", ""))
        try:
            await self._begin(sent.get(_ACCESS))
        except ApiError as error:
            if error.code not in {Code.INVALID_TOKEN, Code.AUTH_REQUIRED}:
                raise
            await self._renew(sent.get(_RENEWAL))

    async def _begin(self, bearer: str | None) -> None:
        self.session = await self.auth.authenticate(bearer)
        self.bearer = bearer or ""

    async def _renew(self, token: str | None) -> None:
        if token is None:
            raise LoginRequiredError
        try:
            pair = await self.auth.refresh(token)
            await self._begin(pair.access_token)
        except ApiError as error:
            if error.code is not Code.INVALID_TOKEN:
                raise
            self.forget()
            raise LoginRequiredError from error
        self.keep(pair)

    def keep(self, pair: TokenPair) -> None:
        """Give the browser these tokens, in place of any that it has."""
        for name, value in ((_ACCESS, pair.access_token), (_RENEWAL, pair.refresh_token)):
            self.cookies.append(self._cookie(name, value, REFRESH_TOKEN_LIFETIME_SECONDS))

    def forget(self) -> None:
        """Take the tokens from the browser."""
        self.cookies = [self._cookie(name, "", 0) for name in (_ACCESS, _RENEWAL)]

    def _cookie(self, name: str, value: str, seconds: int) -> str:
        secure = "; Secure" if self.place.app_url.startswith("https:") else ""
        return f"{name}={value}; Path={ROOT}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    @property
    def wallet(self) -> str:
        """The wallet that is logged in, as it is shown; empty without one."""
        return "" if self.session is None else shown_address(self.session.wallet)

    @property
    def csrf(self) -> str:
        """The word that every form of this session carries; nobody else can know it."""
        session_id = "" if self.session is None else self.session.session_id
        return hashlib.sha256(f"tollkeeper forms/{session_id}".encode()).hexdigest()[:32]

    def check_origin(self) -> None:
        """Refuse a form that a page elsewhere sends. Raises: FORBIDDEN."""
        if self.headers.get("origin") != self.place.app_url:
            raise ApiError(
                Code.FORBIDDEN, "this was sent by another web page, or your browser hides which; nothing was done"
            )

    def check_csrf(self, fields: dict[str, Any]) -> None:
        """Take the session's word out of a form's fields, and refuse another. Raises: FORBIDDEN."""
        given = fields.pop("csrf", "")
        if not isinstance(given, str) or not hmac.compare_digest(given.encode(), self.csrf.encode()):
            raise ApiError(Code.FORBIDDEN, "this form is of another login; nothing was done. Open the page again")

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the body as it comes."""
        return receive_chunks(self.receive)

    async def until_gone(self) -> None:
        """Wait until the browser has closed the connection."""
        with suppress(ConnectionResetError):
            async for _ in self.chunks():
                pass
            while (await self.receive())["type"] != "http.disconnect":
                pass

    async def form(self) -> dict[str, str]:
        """Read a small form of this session. Raises: FORBIDDEN, INVALID_PARAMETER, PAYLOAD_TOO_LARGE."""
        if self.headers.get("content-type", "").partition(";")[0].strip().lower() != _FORM:
            raise invalid("Content-Type", "the body must be a form")
        text = (await read_body(self.chunks(), self.scope["headers"])).decode("utf-8", "replace")
        try:
            fields = once_each(parse_qsl(text, keep_blank_values=True, max_num_fields=_FIELDS_MAX))
        except ValueError:
            raise invalid("body", f"the form has more than {_FIELDS_MAX} fields") from None
        self.check_csrf(fields)
        return fields

    def page(self, template: str, *, status: int = 200, **values: Any) -> PageAnswer:  # noqa: ANN401 - a template's values
        """Return a page made of a template."""
        own = {"assets": self.place.assets, "wallet": self.wallet, "csrf": self.csrf, "here": self.path}
        return PageAnswer(rendered(template, {**own, "is_sandbox": self.place.is_sandbox, **values}).encode(), status)

    def go(self, path: str, **query: str) -> PageAnswer:
        """Return the way on to another page below `/app`."""
        target = ROOT + path + ("?" + urlencode(query) if query else "")
        return PageAnswer(b"", 303, headers=(("Location", target),))


def _cookies(header: str) -> dict[str, str]:
    """Read the cookies. Of two with one name the first is of the longer path, which is ours: others may be planted."""
    found: dict[str, str] = {}
    for one in header.split(";"):
        name, _, value = one.strip().partition("=")
        found.setdefault(name, value)
    return found
