"""A gateway, as one wallet manages its PayGates and reads its records there.

The bearer is, in this order: a fresh login by the given key; the management token that this machine keeps of a gate
without an owner; the login that this machine keeps; none.
"""

from __future__ import annotations

import hashlib
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from tollkeeper.client.logins import KeptLogins, log_in
from tollkeeper.client.requests import RefusedError, ask, open_session, require_unheard
from tollkeeper.client.state_folder import open_folder, read_state, write_state
from tollkeeper.client.uploads import file_form

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    import aiohttp

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.keys.wallet_keys import WalletKey

GATES: Final = "/api/v1/paygates"
_PAGE: Final = 100
_FOLDER: Final = "gates"


@dataclass(frozen=True, slots=True)
class Gate:
    """A PayGate by its id, with its management token where this machine keeps one."""

    id: int
    token: str | None = field(default=None, repr=False)


class GatewayAccount:
    """One session at a gateway. `has_key`: it was logged in by a key just now."""

    def __init__(self, session: aiohttp.ClientSession, url: str, token: str | None, *, has_key: bool) -> None:
        """`token` None: as nobody in particular."""
        self.url = url
        self.token = token
        self._session = session
        self._has_key = has_key

    async def ask(
        self,
        method: str,
        path: str,
        *,
        has: str = "",
        token: str | None = None,
        **options: Any,  # noqa: ANN401 - the session's own
    ) -> JsonObject:
        """Return the JSON object that the gateway answers. Raises: RefusedError."""
        bearer = token or self.token
        headers = {} if bearer is None else {"Authorization": f"Bearer {bearer}"}
        return await ask(self._session, method, self.url + path, has=has, headers=headers, **options)

    async def items(self, path: str, listed: str = "data", **query: object) -> AsyncIterator[JsonObject]:
        """Yield every item of a list, page after page. Raises: RefusedError."""
        offset = 0
        while True:
            words = urlencode({**query, "limit": _PAGE, "offset": offset})
            page = await self.ask("GET", f"{path}?{words}", has=listed)
            for item in page[listed]:
                yield item
            if not page.get("pagination", {}).get("hasNext"):
                return
            offset += _PAGE

    async def create(self, fields: Mapping[str, object], file: Path | None = None) -> JsonObject:
        """Make a PayGate, and keep its management token where it has one. Raises: RefusedError, OSError."""
        if file is None:
            made = await self.ask("POST", GATES, has="accessUrl", json=dict(fields))
        else:
            async with file_form(file, {**fields, "resourceType": "file"}) as form:
                made = await self.ask("POST", GATES, has="accessUrl", data=form)
        if {"managementToken", "id", "slug"} <= made.keys():
            content = {"id": made["id"], "slug": made["slug"], "token": made["managementToken"]}
            with suppress(RefusedError):  # its user is told the token in any case
                write_state(_path_of(self.url, str(made["slug"])), content)
        return made

    async def update(self, gate: Gate, fields: Mapping[str, object], file: Path | None = None) -> JsonObject:
        """Change a PayGate: all of these fields, or nothing. Raises: RefusedError, OSError."""
        if file is None:
            return await self.of(gate, "PUT", has="accessUrl", json=dict(fields))
        async with file_form(file, fields) as form:
            return await self.of(gate, "PUT", has="accessUrl", data=form)

    async def of(
        self,
        gate: Gate,
        method: str,
        path: str = "",
        *,
        has: str = "",
        **options: Any,  # noqa: ANN401 - the session's own
    ) -> JsonObject:
        """Ask for something of one gate. Raises: RefusedError."""
        return await self.ask(method, f"{GATES}/{gate.id}{path}", has=has, token=gate.token, **options)

    async def find(self, named: str) -> Gate:
        """Return the gate by its id, its slug or its link. Raises: RefusedError."""
        slug = named.rstrip("/").rpartition("/")[2]
        kept = read_state(_path_of(self.url, slug))
        if kept and not self._has_key:
            return Gate(int(kept["id"]), str(kept["token"]))
        if slug.isdecimal() and "://" not in named:
            return Gate(int(slug))
        async for gate in self.items(GATES):
            if gate["slug"] == slug:
                return Gate(int(gate["id"]))
        raise RefusedError(f"there is no PayGate {slug} of yours at {self.url}")


@asynccontextmanager
async def open_account(url: str, key: WalletKey | None) -> AsyncIterator[GatewayAccount]:
    """Yield a session at the gateway or hub with this URL. Raises: RefusedError."""
    require_unheard(url)
    async with open_session() as session:
        token = await (KeptLogins().access_token(session, url) if key is None else log_in(session, url, key))
        yield GatewayAccount(session, url, token, has_key=key is not None)


def _path_of(url: str, slug: str) -> Path:
    return open_folder(_FOLDER) / f"{hashlib.sha256(f'{url}/{slug}'.encode()).hexdigest()[:32]}.json"
