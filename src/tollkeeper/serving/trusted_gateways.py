"""The keys of the gateways whose word a hub takes for `purchaseData`: from their JWKS, kept up to date (contract 6, 7).

Only issuers that the operator named are asked. A gateway that does not answer keeps the keys that it last showed; one
that never answered has none, and its settlements are carried out without their `purchaseData`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import aiohttp
import structlog

from tollkeeper.core.signatures import Algorithm, VerifyingKey
from tollkeeper.core.strict_json import parse_json
from tollkeeper.core.tokens import parse_jwks

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOG = structlog.get_logger("tollkeeper.serving")
_TIMEOUT_SECONDS: Final = 5
_RETRY_SECONDS: Final = 2
_REFRESH_SECONDS: Final = 300
_ANSWER_SIZE_BYTES: Final = 64 * 1024


async def keep_keys_fresh(issuers: Sequence[str], keys: dict[str, dict[str, VerifyingKey]]) -> None:
    """Keep `keys` those of the issuers, of each by key id, until cancelled. Who has none is not among them."""
    shown: dict[str, dict[str, VerifyingKey]] = {}
    timeout = aiohttp.ClientTimeout(total=_TIMEOUT_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()) as session:
        while True:
            for issuer in issuers:
                try:
                    shown[issuer] = await _read_keys(session, issuer)
                except (aiohttp.ClientError, OSError, ValueError) as error:
                    _LOG.warning("gateway_keys_unreadable", issuer=issuer, reason=type(error).__name__)
            current = {issuer: of_issuer for issuer, of_issuer in shown.items() if of_issuer}
            keys.update(current)
            for issuer in keys.keys() - current.keys():
                del keys[issuer]
            await asyncio.sleep(_REFRESH_SECONDS if len(shown) == len(issuers) else _RETRY_SECONDS)


async def _read_keys(session: aiohttp.ClientSession, issuer: str) -> dict[str, VerifyingKey]:
    """Raises: aiohttp.ClientError, OSError, ValueError."""
    async with session.get(f"{issuer}/.well-known/jwks.json", allow_redirects=False) as answer:
        answer.raise_for_status()
        body = b""
        async for chunk in answer.content.iter_any():
            body += chunk
            if len(body) > _ANSWER_SIZE_BYTES:
                raise ValueError("the answer is too long")
    keys = parse_jwks(parse_json(body))
    return {key_id: VerifyingKey(Algorithm.ED25519, key.public_bytes_raw()) for key_id, key in keys.items()}
