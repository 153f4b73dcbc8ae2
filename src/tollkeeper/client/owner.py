"""What an owner's own machine does at a gateway: log a wallet in, make a PayGate of a target or a file.

An HTTP client and nothing more: it asks what anybody could ask with curl, and shows how far an upload has come.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID

from tollkeeper.client.requests import ask, open_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

    from tollkeeper.core.wallet_keys import WalletKey

_CHUNK_SIZE_BYTES: Final = 1024 * 1024


async def log_in(session: aiohttp.ClientSession, base_url: str, key: WalletKey) -> str:
    """An access token of the gateway or hub at `base_url` (specification 5.3). Raises: RefusedError."""
    asked = await ask(session, "GET", f"{base_url}/api/v1/auth/message?walletAddress={key.address}")
    proof = {"message": asked["message"], "signature": key.sign_text(asked["message"])}
    token: str = (await ask(session, "POST", f"{base_url}/api/v1/auth/login", json=proof))["accessToken"]
    return token


async def make_paygate(
    gateway_url: str, key: WalletKey | None, fields: Mapping[str, object], what: str | Path
) -> dict[str, Any]:
    """A new PayGate of a target's URL or of a file, with a bar on standard error while the file is sent.

    Raises: RefusedError, OSError.
    """
    async with open_session() as session:
        token = None if key is None else await log_in(session, gateway_url, key)
        if isinstance(what, str):
            return await create_paygate(session, gateway_url, token, {**fields, "targetUrl": what})
        assert token is not None  # noqa: S101 - the command asked for the key
        bar = Progress(*Progress.get_default_columns(), DownloadColumn(), console=Console(stderr=True))
        bar.disable = not bar.console.is_terminal
        with bar:
            task = bar.add_task(what.name, total=(await asyncio.to_thread(what.stat)).st_size)
            show = partial(_show, bar, task)
            return await upload_paygate(session, gateway_url, token, what, fields, show)


def _show(bar: Progress, task: TaskID, sent_bytes: int) -> None:
    bar.update(task, completed=sent_bytes)


async def create_paygate(
    session: aiohttp.ClientSession, gateway_url: str, token: str | None, fields: Mapping[str, object]
) -> dict[str, Any]:
    """A new PayGate with these fields. Raises: RefusedError."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    return await ask(session, "POST", f"{gateway_url}/api/v1/paygates", json=dict(fields), headers=headers)


async def upload_paygate(
    session: aiohttp.ClientSession,
    gateway_url: str,
    token: str,
    path: Path,
    fields: Mapping[str, object],
    progress: Callable[[int], None],
) -> dict[str, Any]:
    """A new file PayGate; `progress` is told the bytes of the file that were sent. Raises: RefusedError, OSError."""
    form = aiohttp.FormData({name: str(value) for name, value in {**fields, "resourceType": "file"}.items()})
    form.add_field("file", _content(path, progress), filename=path.name, content_type="application/octet-stream")
    headers = {"Authorization": f"Bearer {token}"}
    return await ask(session, "POST", f"{gateway_url}/api/v1/paygates", data=form, headers=headers)


async def _content(path: Path, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    sent_bytes = 0
    with closing(await asyncio.to_thread(path.open, "rb")) as file:
        while data := await asyncio.to_thread(file.read, _CHUNK_SIZE_BYTES):
            yield data
            sent_bytes += len(data)
            progress(sent_bytes)
