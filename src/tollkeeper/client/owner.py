"""Tasks of an owner's machine at a gateway: log a wallet in, make a PayGate of a target or a file, replace a file.

An HTTP client and nothing more: it asks what anybody could ask with curl, and shows how far an upload has come.
"""

from __future__ import annotations

import asyncio
import mimetypes
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, Progress, TaskID
from yarl import URL

from tollkeeper.client.requests import RefusedError, ask, open_session, require_unheard
from tollkeeper.core.keys.siwe import login_chains, read_message
from tollkeeper.core.networks import NETWORKS
from tollkeeper.core.paygates.downloads import DEFAULT_TYPE, clean_name
from tollkeeper.core.wallets import parse_wallet

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tollkeeper.core.keys.wallet_keys import WalletKey

_CHUNK_SIZE_BYTES: Final = 1024 * 1024
_PATH: Final = "/api/v1/paygates"
_PAGE: Final = 100


async def log_in(session: aiohttp.ClientSession, base_url: str, key: WalletKey) -> str:
    """An access token of the gateway or hub at `base_url` (specification 5.3). Raises: RefusedError."""
    base = require_unheard(base_url)
    asked = await ask(session, "GET", f"{base_url}/api/v1/auth/message?walletAddress={key.address}", has="message")
    _check_message(asked["message"], base, key)
    proof = {"message": asked["message"], "signature": key.sign_text(asked["message"])}
    answer = await ask(session, "POST", f"{base_url}/api/v1/auth/login", has="accessToken", json=proof)
    token: str = answer["accessToken"]
    return token


def _check_message(text: object, base: URL, key: WalletKey) -> None:
    """Refuse to sign what is no login of this wallet at the server that was asked, but might be one elsewhere.

    Raises: RefusedError.
    """
    try:
        message = read_message(str(text))
        is_here = URL(message.public_url) == base.origin()
    except ValueError as error:
        raise RefusedError(
            f"{base} asks to sign something else than a login message ({error}), and nothing was signed"
        ) from None
    if not is_here:
        raise RefusedError(
            f"{base} asks to sign a login at {message.public_url}, and nothing was signed: a login is good there. If "
            "both are yours, use that URL, or set public_url"
        )
    chains = {login_chains([network])[key.family] for network in NETWORKS.values()}
    if message.wallet != parse_wallet(key.address) or message.chain not in chains:
        raise RefusedError(f"{base} asks to sign a login of another wallet or chain, and nothing was signed")


async def make_paygate(
    gateway_url: str, key: WalletKey | None, fields: Mapping[str, object], what: str | Path
) -> dict[str, Any]:
    """A new PayGate of a target's URL or of a file, with a bar on standard error while the file is sent.

    Raises: RefusedError, OSError.
    """
    require_unheard(gateway_url)
    async with open_session() as session:
        token = None if key is None else await log_in(session, gateway_url, key)
        if isinstance(what, str):
            return await create_paygate(session, gateway_url, token, {**fields, "targetUrl": what})
        assert token is not None  # noqa: S101 - the command asked for the key
        async with _shown_on_a_bar(what) as show:
            return await upload_paygate(session, gateway_url, token, what, fields, show)


async def replace_file(gateway_url: str, key: WalletKey, link: str, path: Path) -> dict[str, Any]:
    """The file PayGate with this link or slug, which sells that file from now on. Raises: RefusedError, OSError."""
    slug = link.rstrip("/").rpartition("/")[2]
    async with open_session() as session:
        token = await log_in(session, gateway_url, key)
        gate_id = await _find_own(session, gateway_url, token, slug)
        async with _shown_on_a_bar(path) as show:
            return await _send_form(session, "PUT", f"{gateway_url}{_PATH}/{gate_id}", token, path, {}, show)


async def _find_own(session: aiohttp.ClientSession, gateway_url: str, token: str, slug: str) -> int:
    headers, offset = {"Authorization": f"Bearer {token}"}, 0
    while True:
        url = f"{gateway_url}{_PATH}?limit={_PAGE}&offset={offset}"
        page = await ask(session, "GET", url, headers=headers)
        for gate in page["data"]:
            if gate["slug"] == slug:
                gate_id: int = gate["id"]
                return gate_id
        if not page["pagination"]["hasNext"]:
            raise RefusedError(f"the wallet has no PayGate {slug} there")
        offset += _PAGE


@asynccontextmanager
async def _shown_on_a_bar(path: Path) -> AsyncIterator[Callable[[int], None]]:
    """Yield a function that takes how much of the file was sent.

    It shows it on standard error if that is a terminal.
    """
    bar = Progress(*Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True))
    bar.disable = not bar.console.is_terminal
    with bar:
        task = bar.add_task(escape(clean_name(path.name)), total=(await asyncio.to_thread(path.stat)).st_size)
        yield partial(_show, bar, task)


def _show(bar: Progress, task: TaskID, sent_bytes: int) -> None:
    bar.update(task, completed=sent_bytes)


async def create_paygate(
    session: aiohttp.ClientSession, gateway_url: str, token: str | None, fields: Mapping[str, object]
) -> dict[str, Any]:
    """A new PayGate with these fields. Raises: RefusedError."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await ask(session, "POST", gateway_url + _PATH, has="accessUrl", json=dict(fields), headers=headers)


async def upload_paygate(
    session: aiohttp.ClientSession,
    gateway_url: str,
    token: str,
    path: Path,
    fields: Mapping[str, object],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """A new file PayGate; `progress` is told the bytes of the file that were sent. Raises: RefusedError, OSError."""
    return await _send_form(
        session, "POST", gateway_url + _PATH, token, path, {**fields, "resourceType": "file"}, progress
    )


async def _send_form(  # noqa: PLR0917 - what a request is made of
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    token: str,
    path: Path,
    fields: Mapping[str, object],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    # Names are sent as UTF-8, as browsers do: the bytes of an escape would be taken for the name (RFC 7578 4.2).
    form = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
    for name, value in fields.items():
        form.add_field(name, str(value))
    content = _content(path, progress)
    form.add_field("file", content, filename=clean_name(path.name), content_type=_type_of(path))
    headers = {"Authorization": f"Bearer {token}"}
    return await ask(session, method, url, has="accessUrl", data=form, headers=headers)


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
