"""Access tokens of the other part, where gateway and hub run apart (contract 6).

A token's key comes from its issuer's JWKS, the life of its session from its issuer's introspection, remembered for five
seconds. An issuer that gives no clear answer is a 503: never "valid", and never "invalid" either, since a client
told so would throw a good login away. Only issuers that the operator named are asked.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import aiohttp

from tollkeeper.api import CORRELATION_ID, new_request_id
from tollkeeper.core.api.errors import ApiError, Code
from tollkeeper.core.api.strict_json import parse_json
from tollkeeper.core.keys import tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Sequence

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from tollkeeper.core.json_types import JsonObject

K = TypeVar("K", bound="Hashable")
T = TypeVar("T")

logger = logging.getLogger(__name__)

REMEMBERED_MS: Final = 5_000
_KEYS_REMEMBERED_MS: Final = 300_000
_KEYS_ASKED_AGAIN_AFTER_MS: Final = 10_000  # for an unknown key: forged ones must not make us ask for each
_ANSWERS_MAX: Final = 10_000
_ANSWER_SIZE_BYTES: Final = 64 * 1024
_TIMEOUT_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Keys:
    by_id: dict[str, Ed25519PublicKey]
    asked_ms: int


@dataclass(frozen=True, slots=True)
class _Answer:
    is_active: bool
    asked_ms: int


class TrustedIssuers:
    """The issuers, by public URL, whose tokens are taken here. Close it in the loop that used it."""

    def __init__(self, issuers: Sequence[str], now_ms: Callable[[], int]) -> None:
        self._issuers = frozenset(issuer.rstrip("/") for issuer in issuers)
        self._now_ms = now_ms
        self._keys: dict[str, _Keys] = {}
        self._answers: dict[bytes, _Answer] = {}
        self._asking: dict[bytes, asyncio.Task[bool]] = {}
        self._asking_keys: dict[str, asyncio.Task[_Keys]] = {}
        self._http: aiohttp.ClientSession | None = None

    def __contains__(self, issuer: object) -> bool:
        return issuer in self._issuers

    async def claims_in_force(self, token: str, issuer: str) -> tokens.AccessClaims:
        """Return the claims of `issuer`'s token if it and its session are in force.

        Raises: INVALID_TOKEN, UNAVAILABLE.
        """
        try:
            claims = await self._read(token, issuer, self._keys.get(issuer), _KEYS_REMEMBERED_MS)
        except ApiError as error:
            if error.code is not Code.INVALID_TOKEN:
                raise
            # Perhaps signed with a key newer than those that we remember.
            claims = await self._read(token, issuer, self._keys.get(issuer), _KEYS_ASKED_AGAIN_AFTER_MS)
        if not await self._is_active(token, issuer):
            raise tokens.invalid_token()
        return claims

    async def close(self) -> None:
        """Close the connections."""
        for task in (*self._asking.values(), *self._asking_keys.values()):
            task.cancel()
            with suppress(asyncio.CancelledError, ApiError):
                await task
        if self._http is not None:
            await self._http.close()

    async def _read(self, token: str, issuer: str, keys: _Keys | None, age_max_ms: int) -> tokens.AccessClaims:
        if keys is None or not 0 <= self._now_ms() - keys.asked_ms < age_max_ms:
            keys = await self._ask_keys(issuer)
        return tokens.read_access_token(token, keys.by_id, issuer=issuer, now_ms=self._now_ms())

    async def _ask_keys(self, issuer: str) -> _Keys:
        """The issuer's keys now; callers that ask at once, as many forged tokens do, share one question."""
        return await _share(self._asking_keys, issuer, lambda: self._fetch_keys(issuer))

    async def _fetch_keys(self, issuer: str) -> _Keys:
        document = await self._ask(issuer, "/.well-known/jwks.json", None)
        try:
            keys = _Keys(tokens.parse_jwks(document), self._now_ms())
        except ValueError as error:
            raise _unavailable(issuer, error) from error
        self._keys[issuer] = keys
        return keys

    async def _is_active(self, token: str, issuer: str) -> bool:
        """Introspection, remembered for five seconds; callers that ask at once share one question."""
        digest = hashlib.sha256(token.encode()).digest()
        answer = self._answers.get(digest)
        if answer is not None and 0 <= self._now_ms() - answer.asked_ms < REMEMBERED_MS:
            return answer.is_active
        return await _share(self._asking, digest, lambda: self._introspect(token, issuer, digest))

    async def _introspect(self, token: str, issuer: str, digest: bytes) -> bool:
        asked_ms = self._now_ms()
        body = await self._ask(issuer, "/api/v1/auth/introspect", {"token": token})
        is_active = body.get("active")
        if not isinstance(is_active, bool):
            raise _unavailable(issuer, "no `active` in the answer")
        self._answers.pop(digest, None)
        self._answers[digest] = _Answer(is_active, asked_ms)
        while len(self._answers) > _ANSWERS_MAX:
            self._answers.pop(next(iter(self._answers)))
        return is_active

    async def _ask(self, issuer: str, path: str, body: dict[str, str] | None) -> JsonObject:
        """One JSON object from an issuer. Raises: UNAVAILABLE for anything else.

        The question has a name, which the issuer repeats: something may have sent the answer to another one twice.
        """
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
            self._http = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        http, method, name = self._http, "GET" if body is None else "POST", new_request_id()
        named = {CORRELATION_ID.decode(): name}
        try:
            async with http.request(method, issuer + path, json=body, headers=named, allow_redirects=False) as answer:
                if answer.headers.get(CORRELATION_ID.decode(), name) != name:
                    if self._http is http:
                        self._http = None  # what comes on its connections is behind, and stays so
                    await http.close()
                    raise _unavailable(issuer, "the answer is another question's")
                if answer.status != 200:
                    raise _unavailable(issuer, f"status {answer.status}")
                document = await short_json(answer)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _unavailable(issuer, error) from error
        if not isinstance(document, dict):
            raise _unavailable(issuer, "not a JSON object")
        return document


async def short_json(answer: aiohttp.ClientResponse) -> Any:  # noqa: ANN401 - JSON
    """Return an issuer's JSON. Raises: ValueError where it is none, or longer than such an answer can be."""
    data = b""
    async for chunk in answer.content.iter_any():
        data += chunk
        if len(data) > _ANSWER_SIZE_BYTES:
            raise ValueError("the answer is too long")
    return parse_json(data)


async def _share(asking: dict[K, asyncio.Task[T]], key: K, ask: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return the answer to a question, which all share that ask it at once."""

    def ended(task: asyncio.Task[T]) -> None:
        del asking[key]
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    if key not in asking:
        asking[key] = asyncio.create_task(ask())
        asking[key].add_done_callback(ended)
    return await asyncio.shield(asking[key])


def _unavailable(issuer: str, reason: object) -> ApiError:
    logger.warning("the trusted issuer %s gave no answer: %s", issuer, reason)
    return ApiError(
        Code.UNAVAILABLE, "the issuer of this token cannot be asked at the moment", headers={"Retry-After": "5"}
    )
