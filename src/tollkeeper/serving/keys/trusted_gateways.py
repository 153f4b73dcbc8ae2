"""The keys of the gateways whose word a hub takes for `purchaseData`: from their JWKS, kept up to date (contract 6, 7).

Only issuers that the operator named are asked, every five minutes, and at once where a request is signed by a key that
nobody knows: a gateway that starts again may have a new one. Strangers can make us ask, too, so that is bounded; who
says that it is one of the issuers waits until they may be asked again, because what is settled without its
`purchaseData` never has them. One that does not answer keeps the keys that it last showed; one that never answered is
waited for by each of its settlements in the first minute, in which it may be starting, and asked every two seconds
after that; meanwhile they are carried out without their `purchaseData`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp
import structlog

from tollkeeper.api import clock_ms
from tollkeeper.auth.trusted import short_json
from tollkeeper.core.http.signatures import Algorithm, VerifyingKey
from tollkeeper.core.keys.tokens import parse_jwks
from tollkeeper.hub.refusals import LogThrottle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.hub.api.gateway_signature import TrustedKeys

_LOG = structlog.get_logger("tollkeeper.serving")
_TIMEOUT_SECONDS: Final = 5
_RETRY_SECONDS: Final = 2
_REFRESH_SECONDS: Final = 300
_AGAIN_SECONDS: Final = 2.0
_STARTING_SECONDS: Final = 60.0
_PATIENCE_SECONDS: Final = 1.0  # with one that did not answer


class GatewayKeys:
    """Keeps `keys` those of the issuers, of each by key id; who has none is not among them."""

    def __init__(
        self,
        issuers: Sequence[str],
        keys: TrustedKeys,
        *,
        seldom_seconds: float = _AGAIN_SECONDS,
        starting_seconds: float = _STARTING_SECONDS,
    ) -> None:
        """`seldom_seconds`: how often strangers' signatures may make us ask.

        `starting_seconds`: for how long from now on one that never answered is waited for.
        """
        self._issuers = issuers
        self._keys = keys
        self._seldom_seconds = seldom_seconds
        self._shown: dict[str, dict[str, VerifyingKey]] = {}
        self._silent: set[str] = set()  # who gave no answer when it was asked last
        self._telling = LogThrottle(clock_ms)
        self._asked_at = float("-inf")
        self._started_at = asyncio.get_running_loop().time() + starting_seconds
        self._one_asks = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None  # the next asking for a key, before it begins
        keys.ask = self.ask

    async def keep_fresh(self) -> None:
        """Ask now and then, until cancelled."""
        try:
            while True:
                await self._ask()
                await asyncio.sleep(_REFRESH_SECONDS if len(self._shown) == len(self._issuers) else _RETRY_SECONDS)
        finally:
            if self._next is not None:
                self._next.cancel()

    async def ask(self, named: object) -> None:
        """Ask because of a key that nobody knows; where they were asked a moment ago, later, or not at all.

        It is waited for where the request is of one of the issuers, as it says (`named`), and that one answered last
        time, or may be starting; else for a second. All who wait are told by one asking, which begins behind them all.
        """
        now_seconds = asyncio.get_running_loop().time()
        is_due = now_seconds >= self._asked_at + self._seldom_seconds
        may_be_starting = named not in self._shown and now_seconds < self._started_at
        is_worth_it = named in self._issuers and (named not in self._silent or may_be_starting)
        if not is_worth_it and (not is_due or self._one_asks.locked()):
            return
        if self._next is None:
            self._next = asyncio.create_task(self._ask_next())
        await asyncio.wait({self._next}, timeout=None if is_worth_it else _PATIENCE_SECONDS)

    async def _ask_next(self) -> None:
        async with self._one_asks:
            await asyncio.sleep(self._asked_at + self._seldom_seconds - asyncio.get_running_loop().time())
            self._next = None
            await self._ask()

    async def _ask(self) -> None:
        self._asked_at = asyncio.get_running_loop().time()
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
            await asyncio.gather(*(self._ask_one(session, issuer) for issuer in self._issuers))
        current = {issuer: of_issuer for issuer, of_issuer in self._shown.items() if of_issuer}
        self._keys.update(current)
        for issuer in self._keys.keys() - current.keys():
            del self._keys[issuer]

    async def _ask_one(self, session: aiohttp.ClientSession, issuer: str) -> None:
        try:
            self._shown[issuer] = await _read_keys(session, issuer)
            self._silent.discard(issuer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            self._silent.add(issuer)
            if self._telling.is_due(issuer):
                _LOG.warning("gateway_keys_unreadable", issuer=issuer, reason=type(error).__name__)


async def _read_keys(session: aiohttp.ClientSession, issuer: str) -> dict[str, VerifyingKey]:
    """Raises: aiohttp.ClientError, OSError, ValueError."""
    async with session.get(f"{issuer}/.well-known/jwks.json", allow_redirects=False) as answer:
        answer.raise_for_status()
        keys = parse_jwks(await short_json(answer))
    return {key_id: VerifyingKey(Algorithm.ED25519, key.public_bytes_raw()) for key_id, key in keys.items()}
