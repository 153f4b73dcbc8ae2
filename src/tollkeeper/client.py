"""What an owner's own machine does at a gateway: log a wallet in, make a PayGate of a target or a file.

An HTTP client and nothing more: it asks what anybody could ask with curl, and shows how far an upload has come.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import aiohttp
import msgspec
from rich.console import Console
from rich.progress import DownloadColumn, Progress, TaskID

from tollkeeper.core.evm import address_of_key, checksum_address, personal_message_digest, sign_digest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

_CHUNK_SIZE_BYTES: Final = 1024 * 1024
_WAIT_SECONDS: Final = 60


class RefusedError(Exception):
    """The gateway refused, or could not be reached; the text says why."""


def open_session() -> aiohttp.ClientSession:
    """A session for these requests: no limit to the length of an upload, but to every silence."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=_WAIT_SECONDS, sock_read=_WAIT_SECONDS)
    return aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())


async def log_in(session: aiohttp.ClientSession, base_url: str, private_key: bytes) -> str:
    """An access token of the gateway or hub at `base_url` (specification 5.3). Raises: RefusedError."""
    wallet = checksum_address(address_of_key(private_key))
    asked = await _ask(session, "GET", f"{base_url}/api/v1/auth/message?walletAddress={wallet}")
    signature = sign_digest(personal_message_digest(asked["message"].encode()), private_key)
    proof = {"message": asked["message"], "signature": "0x" + signature.hex()}
    token: str = (await _ask(session, "POST", f"{base_url}/api/v1/auth/login", json=proof))["accessToken"]
    return token


async def make_paygate(
    gateway_url: str, private_key: bytes | None, fields: Mapping[str, object], what: str | Path
) -> dict[str, Any]:
    """A new PayGate of a target's URL or of a file, with a bar on standard error while the file is sent.

    Raises: RefusedError, OSError.
    """
    async with open_session() as session:
        token = None if private_key is None else await log_in(session, gateway_url, private_key)
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
    return await _ask(session, "POST", f"{gateway_url}/api/v1/paygates", json=dict(fields), headers=headers)


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
    return await _ask(session, "POST", f"{gateway_url}/api/v1/paygates", data=form, headers=headers)


async def _content(path: Path, progress: Callable[[int], None]) -> AsyncIterator[bytes]:
    sent_bytes = 0
    with closing(await asyncio.to_thread(path.open, "rb")) as file:
        while data := await asyncio.to_thread(file.read, _CHUNK_SIZE_BYTES):
            yield data
            sent_bytes += len(data)
            progress(sent_bytes)


async def _ask(session: aiohttp.ClientSession, method: str, url: str, **options: Any) -> dict[str, Any]:  # noqa: ANN401
    try:
        async with session.request(method, url, allow_redirects=False, **options) as answer:
            body = msgspec.json.decode(await answer.read())
    except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
        raise RefusedError(f"no answer that could be read from {url}: {str(error) or type(error).__name__}") from error
    if not isinstance(body, dict) or not 200 <= answer.status < 300:
        said = body.get("error") if isinstance(body, dict) else None
        text = f"{said.get('code')}: {said.get('message')}" if isinstance(said, dict) else f"status {answer.status}"
        raise RefusedError(f"the gateway refused: {text}")
    return body
