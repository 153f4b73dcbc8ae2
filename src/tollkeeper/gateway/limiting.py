"""Rate limits: management and logins by address and wallet, gates by unpaid and refused requests (contract 4.2).

At a gate nothing is counted but 402s and refusals, so that nobody is limited for calls that were paid for: only an
address that has such a debt is asked at all, one whose debt is full gets 429, and a payment or token that got a credit
before passes all the same. A purchase takes back the unpaid request that it began with. Requests of this machine's own
addresses are not counted. What is remembered is this process's own and in memory. The rules of counting are
`core.http.rate_limits`, whose address it is `core.http.client_addresses`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from litestar.enums import ScopeType

from tollkeeper.api import bearer_token, header_pairs
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.http.client_addresses import ClientAddresses, rate_key
from tollkeeper.core.http.rate_limits import Rate, RateLimiter, rate_headers, rate_limited
from tollkeeper.core.x402.version2 import PAYMENT_HEADERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.types import ASGIApp, Message, Receive, Scope, Send

    from tollkeeper.auth import Auth
    from tollkeeper.core.http.heads import RequestHead
    from tollkeeper.core.http.rate_limits import RequestLimits
    from tollkeeper.edge.server.call import InboundCall

GOOD_PROOFS_MAX: Final = 50_000
_LIMITED: Final = ("/api/", "/app/")
# A login costs a signature check and rows, before anybody has shown who he is.
_LOGIN: Final = (
    "/api/v1/auth/message",
    "/api/v1/auth/login",
    "/api/v1/auth/handover",
    "/api/v1/auth/refresh",
    "/app/login/message",
)
_INTROSPECTION: Final = "/api/v1/auth/introspect"  # asked by the other part, for all of its callers
PROOFS: Final = (b"x-credit-token", *PAYMENT_HEADERS, b"authorization")
PROOFS_OF_PAYERS: Final = PROOFS[1:]  # where no credit token counts


class UnpaidLimit:
    """Debts of addresses for requests at gates that were unpaid or refused, and the proofs that were good."""

    def __init__(self, per_minute: int, clients: ClientAddresses) -> None:
        self.clients = clients
        self._owed = RateLimiter(Rate("unpaid", per_minute))
        self.owing = self._owed.paid_off_ns  # empty where no address is to be asked about
        self.allow(per_minute)
        self.good: dict[int, None] = {}  # keyed hashes of bytes that got a credit; a guess at one gains a 402

    def allow(self, per_minute: int) -> None:
        """Allow so many from now on."""
        self._owed.allow(per_minute)
        policy = b'ratelimit-policy: "unpaid";q=%d;w=%d\r\n' % (per_minute, self._owed.rate.window_seconds)
        self._policy = policy if per_minute else b""

    def check(self, call: InboundCall) -> None:
        """Refuse a call whose address owes too much, unless it shows what was good. Raises: RATE_LIMITED."""
        key = self._key(call)
        if self._owed.is_over(key, time.monotonic_ns()) and not self._was_good(call):
            raise rate_limited(self._owed.rate, self._owed.standing(key, time.monotonic_ns()))

    def refused(self, call: InboundCall, error: ApiError) -> bytes:
        """The call was answered with this refusal; what is no fault of the caller's is not counted."""
        if error.status in {402, 403}:
            return self.challenged(call)
        if error.status < 500 and error.code is not Code.RATE_LIMITED:
            return self._count(call)
        return b""

    def challenged(self, call: InboundCall) -> bytes:
        """The call was told to pay, or refused: what it shows, if anything, gets no credit and is good no more."""
        if self.good:
            for name in PROOFS:
                self.good.pop(hash(call.head.header.get(name)), None)
        return self._count(call)

    def _count(self, call: InboundCall) -> bytes:
        """Return the header lines that tell how the address stands by now; it is counted, unless it is our own."""
        return self._counted(rate_key(self.client_of(call)))

    def unpaid(self, peer: str, head: RequestHead) -> bytes | None:
        """A request that shows nothing is told to pay: return the lines as above; None where it is to be refused."""
        key = rate_key(self._client(peer, head))
        if self.owing and self._owed.is_over(key, time.monotonic_ns()):
            return None
        return self._counted(key)

    def _counted(self, key: str) -> bytes:
        if not key:
            return b""
        counted = self._owed.count(key, time.monotonic_ns())
        return b'%bratelimit: "unpaid";r=%d;t=%d\r\n' % (self._policy, *counted) if self._policy else b""

    def paid(self, call: InboundCall, proofs: Sequence[bytes] = PROOFS) -> None:
        """The call got a credit by the first of these headers that it shows."""
        header = call.head.header
        for name in proofs:
            if shown := header.get(name):
                if (mark := hash(shown)) not in self.good:
                    self._remember(mark)
                return

    def bought(self, call: InboundCall) -> None:
        """The call made a purchase, or spent a credit as stock clients do: the 402 that told how to is forgiven."""
        if self.owing and (key := self._key(call)):
            self._owed.forgive(key)

    def _remember(self, mark: int) -> None:
        if len(self.good) >= GOOD_PROOFS_MAX:
            del self.good[next(iter(self.good))]
        self.good[mark] = None

    def _was_good(self, call: InboundCall) -> bool:
        return any(hash(call.head.header.get(name)) in self.good for name in PROOFS if name in call.head.header)

    def _key(self, call: InboundCall) -> str:
        return rate_key(self.client_of(call))

    def client_of(self, call: InboundCall) -> str:
        """Return the address of the call's client."""
        return self._client(call.peer, call.head) if self.clients.has_proxies else call.peer

    def _client(self, peer: str, head: RequestHead) -> str:
        clients = self.clients
        return clients.behind(peer, head.header.get(b"x-forwarded-for", b"")) if clients.has_proxies else peer


class ApiLimits:
    """Requests under `/api` by address and by wallet, and logins by address."""

    def __init__(self, limits: RequestLimits) -> None:
        self.api = RateLimiter(Rate("api", limits.api))
        self.login = RateLimiter(Rate("login", limits.login))
        self.wallet = RateLimiter(Rate("wallet", limits.wallet))

    def allow(self, limits: RequestLimits) -> None:
        """Allow so many from now on."""
        self.api.allow(limits.api)
        self.login.allow(limits.login)
        self.wallet.allow(limits.wallet)


class LimitedApi:
    """In front of the management application: refuses who asks too often, tells everybody else how he stands."""

    def __init__(self, app: ASGIApp, limits: ApiLimits, clients: ClientAddresses, auth: Auth) -> None:
        self._app = app
        self._clients = clients
        self._auth = auth
        self._api, self._login, self._wallet = limits.api, limits.login, limits.wallet

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI entry. Raises: RATE_LIMITED."""
        limiter, key = self._asked(scope)
        if limiter is None:
            await self._app(scope, receive, send)
            return
        standing = limiter.take(key, time.monotonic_ns())
        if not standing.is_allowed:
            raise rate_limited(limiter.rate, standing)
        await self._check_wallet(scope)
        lines = header_pairs(rate_headers(limiter.rate, standing))

        async def send_standing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *lines]
            await send(message)

        await self._app(scope, receive, send_standing)

    def _asked(self, scope: Scope) -> tuple[RateLimiter | None, str]:
        """By which limiter a request is judged, as whose."""
        if scope["type"] != ScopeType.HTTP:
            return None, ""
        path = scope["path"]
        if not path.startswith(_LIMITED) or path == _INTROSPECTION:
            return None, ""
        limiter = self._login if path in _LOGIN else self._api
        key = rate_key(self._clients.of_scope(scope))
        return (limiter, key) if key and limiter.rate.requests else (None, "")

    async def _check_wallet(self, scope: Scope) -> None:
        """A wallet is counted by a bearer in force; what is none is refused by whoever needs one."""
        if not self._wallet.rate.requests:
            return
        sent = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        bearer = bearer_token(sent)
        if bearer is None or bearer.count(".") != 2:
            return
        try:
            session = await self._auth.authenticate(bearer)
        except ApiError:
            return
        standing = self._wallet.take(session.wallet, time.monotonic_ns())
        if not standing.is_allowed:
            raise rate_limited(self._wallet.rate, standing)
