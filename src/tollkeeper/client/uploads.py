"""A file on its way to a gateway: a form whose progress is shown on a terminal."""

from __future__ import annotations

import asyncio
import json
import mimetypes
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import TYPE_CHECKING, Final

import aiohttp
from rich.console import Console
from rich.markup import escape
from rich.progress import DownloadColumn, Progress, TaskID

from tollkeeper.core.paygates.downloads import DEFAULT_TYPE, clean_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping
    from pathlib import Path

_CHUNK_SIZE_BYTES: Final = 1024 * 1024


@asynccontextmanager
async def file_form(path: Path, fields: Mapping[str, object]) -> AsyncIterator[aiohttp.FormData]:
    """Yield a form of these fields and a file, with a bar on standard error while it is sent. Raises: OSError."""
    async with _shown_on_a_bar(path) as show:
        # Names are sent as UTF-8, as browsers do: the bytes of an escape would be taken for the name (RFC 7578 4.2).
        form = aiohttp.FormData(quote_fields=False, default_to_multipart=True)
        for name, value in fields.items():
            form.add_field(name, value if isinstance(value, str) else json.dumps(value))
        form.add_field("file", _content(path, show), filename=clean_name(path.name), content_type=_type_of(path))
        yield form


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
