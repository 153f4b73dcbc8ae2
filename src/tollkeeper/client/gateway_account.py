"""A gateway, as one wallet manages its PayGates and reads its records there.

The bearer is, in this order: a fresh login by the given key; the management token that this machine keeps of a gate
without an owner; the login that this machine keeps; none.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import mimetypes
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, Progress

from tollkeeper.client.logins import KeptLogins, log_in
from tollkeeper.client.payments import offers_of
from tollkeeper.client.requests import RefusedError, ask, open_session, require_unheard, why
from tollkeeper.client.state_folder import open_folder, read_state, write_state
from tollkeeper.core.paygates.downloads import DEFAULT_TYPE, clean_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

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

    async def items(self, path: str) -> AsyncIterator[JsonObject]:
        """Yield every item of a list, page after page. Raises: RefusedError."""
        offset = 0
        while True:
            words = urlencode({"limit": _PAGE, "offset": offset})
            page = await self.ask("GET", f"{path}?{words}", has="data")
            for item in page["data"]:
                yield item
            if not page.get("pagination", {}).get("hasNext"):
                return
            offset += _PAGE

    async def create(self, fields: Mapping[str, object], file: Path | None = None) -> JsonObject:
        """Make a PayGate, and keep its management token where it has one. Raises: RefusedError, OSError."""
        made = await self._send("POST", GATES, fields if file is None else {**fields, "resourceType": "file"}, file)
        if {"managementToken", "id", "slug"} <= made.keys():
            content = {"id": made["id"], "slug": made["slug"], "token": made["managementToken"]}
            with suppress(RefusedError):  # its user is told the token in any case
                write_state(_path_of(self.url, str(made["slug"])), content)
        return made

    async def update(self, gate: Gate, fields: Mapping[str, object], file: Path | None = None) -> JsonObject:
        """Change a PayGate: all of these fields, or nothing. Raises: RefusedError, OSError."""
        return await self._send("PUT", f"{GATES}/{gate.id}", fields, file, gate.token)

    async def _send(
        self, method: str, path: str, fields: Mapping[str, object], file: Path | None, token: str | None = None
    ) -> JsonObject:
        """Send a gate's fields, as a form where a file goes with them."""
        if file is None:
            return await self.ask(method, path, has="accessUrl", token=token, json=dict(fields))
        async with file_form(file, fields) as form:
            return await self.ask(method, path, has="accessUrl", token=token, data=form)

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


# A file on its way to a gateway: a form whose progress is shown on a terminal.

_CHUNK_SIZE_BYTES: Final = 1024 * 1024


@asynccontextmanager
async def file_form(path: Path, fields: Mapping[str, object]) -> AsyncIterator[aiohttp.FormData]:
    """Yield a form of these fields and a file, with a bar on standard error while it is sent, if that is a terminal.

    Raises: OSError.
    """
    bar = Progress(*Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True))
    bar.disable = not bar.console.is_terminal
    with bar:
        task = bar.add_task(escape(clean_name(path.name)), total=(await asyncio.to_thread(path.stat)).st_size)
        # Names are sent as UTF-8, as browsers do: the bytes of an escape would be taken for the name (RFC 7578 4.2).
        form = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
        for name, value in fields.items():
            form.add_field(name, value if isinstance(value, str) else json.dumps(value))
        content = _content(path, lambda sent_bytes: bar.update(task, completed=sent_bytes))
        form.add_field("file", content, filename=clean_name(path.name), content_type=_type_of(path))
        yield form


def _type_of(path: Path) -> str:
    """Return the content type by the name, as browsers do. A packed file gets no type of what is in it."""
    kind, packed = mimetypes.guess_type(path.name)
    return DEFAULT_TYPE if kind is None or packed is not None else kind


async def _content(path: Path, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    sent_bytes = 0
    with closing(await asyncio.to_thread(path.open, "rb")) as file:
        while data := await asyncio.to_thread(file.read, _CHUNK_SIZE_BYTES):
            yield data
            sent_bytes += len(data)
            progress(sent_bytes)


# A gate as a buyer and its owner see it, for `doctor`.


async def offered_price(link: str) -> str:
    """Return what the gate asks for, in words. Raises: RefusedError unless it answers with a 402 that can be paid."""
    async with open_session() as session:
        try:
            async with session.get(link, allow_redirects=False) as answer:
                body = await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise RefusedError(f"no answer: {why(error)}") from error
    if answer.status in {401, 405}:  # a login or another method comes first
        return f"answers {answer.status}, and no 402 before that"
    if answer.status != 402:
        raise RefusedError(f"it answers {answer.status}, and not 402")
    offers = offers_of({name.lower(): value for name, value in answer.headers.items()}, body)
    if not offers:
        raise RefusedError("its 402 offers nothing that could be paid")
    networks = ", ".join(dict.fromkeys(str(offer.requirements.get("network")) for offer in offers))
    return f"a 402 that can be paid on {networks}"


async def target_answer(account: GatewayAccount, link: str) -> JsonObject:
    """Let the gateway ask the gate's target once, which charges nobody. Raises: RefusedError."""
    return await account.of(await account.find(link), "POST", "/test", has="status")
