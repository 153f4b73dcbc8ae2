"""Downloads of what file PayGates sold, and the sweeping of what nobody sells (contract 4.8; security A-43, A-44).

Whoever holds a link downloads; it was signed when the credit was spent, so nothing here asks who it is. No credit is
spent for a file that the store does not give (`require`), and a link that came to nothing is renewed. On bare ASGI,
because a download is a stream with a head of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Final

import structlog

from tollkeeper.api import iso
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.limits import SETTLE_WAIT_SECONDS
from tollkeeper.core.paygates.downloads import DEFAULT_TYPE, Link, asked_part, bought_body, disposition, read_link
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.files.store import FileMissingError, FileStoreError
from tollkeeper.storage.gateway.file_rows import (
    cut_left_files,
    cut_uploads,
    find_file,
    forget_upload,
    is_orphan,
    keep_until,
    mark_of_database,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from litestar.types import HTTPScope, Receive, Send

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.core.paygates.downloads import Part, StoredFile
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.files.store import FileStore

_LOG = structlog.get_logger("tollkeeper.gateway.files")
_ROUND_SECONDS: Final = 20.0  # between looks for what nobody sells or may download any more
_ROUNDS_OF_SWEEP: Final = 180  # the whole store is looked through every hour
_LOOK_SECONDS: Final = 5.0
_CALL_MS: Final = (SETTLE_WAIT_SECONDS + 5) * 1000  # from a look at the store until the link is given
_AHEAD_MS: Final = 30_000  # so that calls of one file do not write all the time
# What no row names may be named by another database than this one, which an operator restored for a look, or began with
# beside files that are sold: so long he has from when a process first saw it, and it must be as old itself.
ORPHAN_SECONDS: Final = 24 * 3600
_ALLOWED: Final = "GET, HEAD, OPTIONS"
# The content is whatever a stranger uploaded: it must never run as a page of ours, whatever it says it is.
_ALWAYS: Final = (
    (b"content-type", DEFAULT_TYPE.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"cache-control", b"private, no-store"),
    (b"accept-ranges", b"bytes"),
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"Content-Disposition, Content-Range, ETag, Retry-After, X-Request-Id"),
)
# A page that downloads must be able to read a refusal too: it may hold the link renewed.
_FOR_PAGES: Final = {n.decode(): v.decode() for n, v in _ALWAYS if n.startswith(b"access-control-")}
_PREFLIGHT: Final = (
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", _ALLOWED.encode()),
    (b"access-control-allow-headers", b"Range, If-Range, If-Match, If-None-Match"),
    (b"access-control-max-age", b"600"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """The contents of file PayGates. `keys` sign links: the first one now, the others before.

    `unnamed` are objects that no row names, each with when this process first saw it so.
    """

    database: Database
    store: FileStore
    keys: Sequence[bytes]
    public_url: str
    lifetime_seconds: int
    clock_ms: Callable[[], int]
    unnamed: dict[str, int] = field(default_factory=dict)

    async def bought(self, file: StoredFile, purchase_id: str, request_id: str) -> JsonObject:
        """Make a file's buyer the answer, with a link of this request's own. Raises: UNAVAILABLE."""
        expires = self.clock_ms() // 1000 + self.lifetime_seconds
        link = Link(file.id, purchase_id, expires, request_id)
        await self._keep(file.id, expires * 1000)
        return bought_body(file, self.public_url + link.path(self.keys[0]), expires, iso)

    async def serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        """GET or HEAD of a link. Raises: NOT_FOUND, FORBIDDEN, METHOD_NOT_ALLOWED, UNAVAILABLE, `_other_than_asked`."""
        try:
            await self._serve(scope, receive, send)
        except ApiError as refusal:
            refusal.headers = {**_FOR_PAGES, **refusal.headers}
            raise

    async def _serve(self, scope: HTTPScope, receive: Receive, send: Send) -> None:
        if scope["method"] == "OPTIONS":
            await _send_head(send, 204, _PREFLIGHT)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        if scope["method"] not in {"GET", "HEAD"}:
            raise ApiError(Code.METHOD_NOT_ALLOWED, "a download takes GET and HEAD", headers={"Allow": _ALLOWED})
        file_id = scope["path"].removeprefix("/files").strip("/")
        link = read_link(file_id, scope["query_string"], self.keys, self.clock_ms() // 1000)
        file = await find_file(self.database, link.file_id)
        if file is None:
            raise ApiError(Code.NOT_FOUND, "the file is not kept any more")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        part = asked_part(file, headers.get)
        if part.status in {412, 416}:
            raise _other_than_asked(file, part.status)
        lines = [*_ALWAYS, *_head_of(file, part)]
        if part.start == part.end or scope["method"] == "HEAD":
            try:
                await self.store.require(file.id, file.size_bytes)
            except FileStoreError as error:
                raise await self._not_given(link, error) from error
            await _send_head(send, part.status, lines)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        content = self.store.read(file.id, part.start, part.end)
        try:
            first = await anext(content)
        except FileStoreError as error:
            raise await self._not_given(link, error) from error
        # The head leaves with the first chunk, so that an object that cannot be read is a refusal.
        await _send_head(send, part.status, lines)
        try:
            await _send_body(first, content, receive, send)
        except FileStoreError as error:  # the server cuts an answer that is not complete
            _tell_unreadable(file.id, error)

    async def require(self, file: StoredFile) -> None:
        """Ask the store before a credit is taken, for 5 s, and keep the file for the call. Raises: UNAVAILABLE."""
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await self.store.require(file.id, file.size_bytes)
        except (FileStoreError, TimeoutError) as error:
            told = "the file cannot be read now: nothing is taken for this call, send the same request again later"
            raise _unreadable(file.id, error, told) from error

        await self._keep(file.id, self.clock_ms() + _CALL_MS)

    async def _keep(self, file_id: str, least_ms: int) -> None:
        if not await keep_until(self.database, file_id, least_ms, least_ms + _AHEAD_MS):
            raise ApiError(
                Code.UNAVAILABLE, "the file was replaced just now: send the same request again, it is not charged twice"
            )

    async def _not_given(self, link: Link, error: FileStoreError) -> ApiError:
        """503, with the link for as long again: nobody's may run out while what he bought cannot be had."""
        now_seconds = self.clock_ms() // 1000
        renewed = replace(link, expires=max(link.expires, now_seconds + self.lifetime_seconds))
        await keep_until(self.database, link.file_id, renewed.expires * 1000, renewed.expires * 1000 + _AHEAD_MS)
        refusal = _unreadable(link.file_id, error, "the file cannot be read now: use this link for it later")
        refusal.details = {
            "downloadUrl": self.public_url + renewed.path(self.keys[0]),
            "expiresAt": iso(renewed.expires * 1000),
        }
        return refusal

    async def run(self) -> None:
        """Look whether the store can be used, and delete what nobody needs, until cancelled."""
        for number in count():
            try:
                await (self._delete_left() if number % _ROUNDS_OF_SWEEP else self.sweep())
            except (FileStoreError, StorageError) as error:
                _LOG.warning("sweep_failed", reason=str(error))
            except Exception:  # noqa: BLE001 - logged; the next round tries again
                _LOG.exception("sweep_failed")
            await asyncio.sleep(_ROUND_SECONDS)

    async def sweep(self) -> None:
        """Delete what nobody sells or may download any more, and what no row names.

        Raises: FileStoreError, StorageError.
        """
        try:
            await self.store.check()
        except FileStoreError as error:
            _LOG.error("file_store_unusable", reason=str(error))
        await self._delete_left()
        await self._sweep_unnamed(self.clock_ms())

    async def _delete_left(self) -> None:
        await cut_left_files(self.database, self.clock_ms())
        while cut := await cut_uploads(self.database):
            for file_id in cut:
                await self.store.delete(file_id)
                await self.database.run(forget_upload(file_id))
                _LOG.info("file_deleted", file_id=file_id)

    async def _sweep_unnamed(self, now_ms: int) -> None:
        mark = await mark_of_database(self.database)
        if (owner := await self.store.owner(mark)) != mark:  # whose rows name what ours do not
            _LOG.error("files_of_another_database", theirs=owner, ours=mark)
            return
        before_ms = now_ms - ORPHAN_SECONDS * 1000
        kept: dict[str, int] = {}
        async for found in self.store.listed():
            if found.changed_ms < before_ms and await is_orphan(self.database, found.file_id):
                since_ms = self.unnamed.get(found.file_id, now_ms)
                if since_ms < before_ms:
                    await self.store.delete(found.file_id)
                    _LOG.info("orphan_deleted", file_id=found.file_id)
                else:
                    kept[found.file_id] = since_ms
        if new := len(kept.keys() - self.unnamed.keys()):
            _LOG.warning("orphans_found", count=new)
        self.unnamed.clear()
        self.unnamed.update(kept)


def _unreadable(file_id: str, error: Exception, told: str) -> ApiError:
    _tell_unreadable(file_id, error)
    return ApiError(Code.UNAVAILABLE, told, headers={"Retry-After": "10"})


def _tell_unreadable(file_id: str, error: Exception) -> None:
    _LOG.error(
        "file_missing" if isinstance(error, FileMissingError) else "file_unreadable",
        file_id=file_id,
        reason=str(error) or "it does not say in time",
    )


def _other_than_asked(file: StoredFile, status: int) -> ApiError:
    """412 where the file is another one than its caller's, 416 where it has no such part; both tell what there is."""
    if status == 412:
        refusal = invalid("If-Match", "the file is another one than If-Match names; ETag names it")
    else:
        refusal = invalid("Range", f"the file has {file.size_bytes} bytes, and none in this range")
        refusal.headers["Content-Range"] = f"bytes */{file.size_bytes}"
    refusal.status = status
    always = {name.decode(): value.decode() for name, value in _ALWAYS if name != b"content-type"}
    refusal.headers |= {**always, "ETag": file.etag}
    return refusal


def _head_of(file: StoredFile, part: Part) -> list[tuple[bytes, bytes]]:
    lines = [(b"etag", file.etag.encode()), (b"content-disposition", disposition(file.name).encode("ascii"))]
    if part.status == 206:
        lines.append((b"content-range", f"bytes {part.start}-{part.end - 1}/{file.size_bytes}".encode()))
    if part.status != 304:
        lines.append((b"content-length", str(part.end - part.start).encode()))
    return lines


async def _send_head(send: Send, status: int, lines: Sequence[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": list(lines)})


async def _send_body(first: bytes, content: AsyncIterator[bytes], receive: Receive, send: Send) -> None:
    gone = asyncio.create_task(_gone(receive))
    try:
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for data in content:
            if gone.done():  # else the rest would be read for nobody
                return
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()
        with suppress(asyncio.CancelledError):
            await gone


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        continue
