"""A file PayGate's form: its fields are read, its file goes straight to the store (contract 4.8).

Specification 2.1 rule 5. The file is never held in memory and has no limit but the space that must stay free. Who sends
it was asked before the first byte is read, and what its fields say before the first byte of the file. What is refused
is refused at once: who sends on can read why (`edge.server.delayed_close`). That a content is being written is in the
database before its first byte is in the store, so that what a crash leaves of it is found. Whether it was sold is the
caller's to find out: `kept_if_sold`.
"""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import structlog
from multipart import MultipartError, MultipartSegment, PushMultipartParser, StrictParserError, parse_options_header

from tollkeeper.api import PROCESS_MARK, clock_ms
from tollkeeper.core.api.errors import ApiError, Code, invalid
from tollkeeper.core.limits import JSON_BODY_SIZE_BYTES
from tollkeeper.core.paygates.downloads import StoredFile, clean_name, clean_type
from tollkeeper.core.paygates.fields import form_fields
from tollkeeper.storage.engine.database import StorageError
from tollkeeper.storage.files.store import CHUNK_SIZE_BYTES, FileStoreError, FileStoreFullError
from tollkeeper.storage.gateway.file_rows import begin_upload, cut_upload, forget_upload

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping

    from tollkeeper.core.json_types import JsonObject
    from tollkeeper.storage.engine.database import Database
    from tollkeeper.storage.files.store import FileStore, Upload

_LOG = structlog.get_logger("tollkeeper.gateway.management.uploads")
AGAIN_SECONDS: Final = 1.0
_FIELDS_MAX: Final = 40
_AROUND_SIZE_BYTES: Final = 8 * 1024
_PART_HEAD_SIZE_BYTES: Final = 8 * 1024


@dataclass(frozen=True, slots=True)
class Form:
    """A form that was read: its fields as JSON values, and its file, which is whole in the store."""

    fields: JsonObject
    file: StoredFile | None


@dataclass(slots=True)
class _Reading:
    """The part of a form that was read so far."""

    check_before_file: Callable[[JsonObject], None]
    pairs: list[tuple[str, str]] = field(default_factory=list)
    part: MultipartSegment | None = None
    text: bytearray = field(default_factory=bytearray)
    texts_bytes: int = 0
    upload_id: str = ""
    upload: Upload | None = None
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0
    file: StoredFile | None = None


def is_form(headers: Mapping[str, str]) -> bool:
    """Tell whether the body is a form with parts."""
    return headers.get("content-type", "").lower().startswith("multipart/")


@dataclass(frozen=True, slots=True)
class Uploads:
    """Takes uploads into one store. `new_id` makes 32 random hex digits.

    `is_unreachable`: other programs that sell the file have it not in a store of theirs.
    """

    database: Database
    store: FileStore
    is_unreachable: Callable[[], Awaitable[bool]]
    left: dict[str, Upload | None] = field(default_factory=dict)  # what could not be discarded yet

    async def run(self) -> None:
        """Discard what could not be discarded at once, until cancelled. What a process leaves, its parent cuts."""
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            for file_id, upload in list(self.left.items()):
                try:
                    await self._discard(file_id, upload)
                except Exception:  # noqa: BLE001 - logged; the next round tries again
                    _LOG.exception("upload_not_discarded", file_id=file_id)

    async def read(
        self,
        headers: Mapping[str, str],
        chunks: AsyncIterator[bytes],
        check_before_file: Callable[[JsonObject], None],
    ) -> Form:
        """The form; its file, where it has one, is durable in the store and not sold yet.

        `check_before_file` judges the fields that came before the file. Raises: what it raises; INVALID_PARAMETER for
        what is no such form, PAYLOAD_TOO_LARGE for fields that are, UNAVAILABLE where the store cannot take the file;
        then nothing of it stays. ConnectionResetError where the client left.
        """
        kind, options = parse_options_header(headers.get("content-type", ""))
        boundary = options.get("boundary", "")
        if kind != "multipart/form-data" or not boundary:
            raise invalid("Content-Type", "the body must be JSON or multipart/form-data with a boundary")
        length = headers.get("content-length", "")
        reading = _Reading(check_before_file)
        try:
            await self._parse(reading, boundary, int(length) if length.isdigit() else None, chunks)
            return Form(form_fields(reading.pairs), reading.file)
        except BaseException as error:
            await self._give_up(reading)
            if isinstance(error, MultipartError):
                raise invalid("body", f"the form cannot be read: {error}") from None
            raise

    async def _parse(
        self, reading: _Reading, boundary: str, expected_bytes: int | None, chunks: AsyncIterator[bytes]
    ) -> None:
        with PushMultipartParser(
            boundary,
            max_header_size=_PART_HEAD_SIZE_BYTES,
            max_segment_size=math.inf,
            max_segment_count=_FIELDS_MAX,
            strict=True,
        ) as parser:
            behind_bytes = 0
            async for chunk in _behind_preamble(chunks, boundary.encode()):
                behind_bytes += len(chunk) if parser.closed else 0
                if behind_bytes > _AROUND_SIZE_BYTES:
                    raise invalid("body", "too much follows the form's last boundary")
                if not chunk or parser.closed:
                    continue
                try:
                    await self._take(reading, parser.parse(chunk), expected_bytes)
                except StrictParserError as strict:
                    # What follows the last boundary is nothing (RFC 2046, 5.1.1), and every client sends a line's end
                    # there; the parser refuses what comes in a piece of its own.
                    try:
                        parser.close()
                    except MultipartError:
                        raise strict from None  # there was no such boundary

    async def _take(
        self,
        reading: _Reading,
        events: Iterator[MultipartSegment | bytearray | bytes | None],
        expected_bytes: int | None,
    ) -> None:
        for event in events:
            if isinstance(event, MultipartSegment):
                await self._begin(reading, event, expected_bytes)
            elif event is None:
                await self._end(reading)
            elif reading.upload is not None:
                await self._file_data(reading, reading.upload, bytes(event))
            else:
                _text_data(reading, event)

    async def _begin(self, reading: _Reading, part: MultipartSegment, expected_bytes: int | None) -> None:
        reading.part = part
        reading.text.clear()
        if part.name != "file":
            if part.filename:
                raise invalid(part.name, f"only the part named file may be a file, not {part.name}")
            return
        if reading.file is not None:
            raise invalid("file", "file came twice")
        reading.check_before_file(form_fields(reading.pairs))
        if await self.is_unreachable():
            raise ApiError(
                Code.UNAVAILABLE,
                "no file is sold here: several gateways share the database, and each keeps files on its own disk. The"
                " operator must name a bucket that all of them have in `files`; nothing was made",
            )
        reading.upload_id = os.urandom(16).hex()
        await self.database.run(begin_upload(reading.upload_id, PROCESS_MARK, clock_ms()))
        reading.upload = await _stored(self.store.begin(reading.upload_id, expected_bytes))

    async def _file_data(self, reading: _Reading, upload: Upload, data: bytes) -> None:
        reading.waiting.append(data)
        reading.waiting_bytes += len(data)
        if reading.waiting_bytes >= CHUNK_SIZE_BYTES:
            await _flush(reading, upload)

    async def _end(self, reading: _Reading) -> None:
        part, upload = reading.part, reading.upload
        assert part is not None  # noqa: S101 - an end follows a beginning
        if upload is None:
            try:
                reading.pairs.append((part.name, reading.text.decode()))
            except UnicodeDecodeError:
                raise invalid(part.name, f"{part.name} is not UTF-8") from None
            return
        await _flush(reading, upload)
        written = await _stored(upload.finish())
        reading.upload = None
        if part.filename == "" and not written.size_bytes:  # how a browser sends that no file was chosen
            await self._discard(written.file_id)
            return
        name, kind = clean_name(part.filename), clean_type(part.content_type)
        reading.file = StoredFile(written.file_id, name, written.size_bytes, kind, written.sha256)

    async def _give_up(self, reading: _Reading) -> None:
        if reading.upload_id:
            await self._discard(reading.upload_id, reading.upload)

    @asynccontextmanager
    async def kept_if_sold(self, file: StoredFile | None) -> AsyncIterator[None]:
        """Discard the file where the block refuses, and where it sells nothing: the create was carried out before."""
        try:
            yield
        finally:
            if file is not None:
                await self._discard(file.id)

    async def _discard(self, file_id: str, upload: Upload | None = None) -> None:
        """Delete a content that was not sold. What cannot be deleted now is deleted later: nobody can sell it."""
        try:
            if await self.database.run(cut_upload(file_id)):
                if upload is not None:
                    await upload.abort()
                await self.store.delete(file_id)
                await self.database.run(forget_upload(file_id))
            self.left.pop(file_id, None)
        except (FileStoreError, StorageError) as error:
            if file_id not in self.left:
                _LOG.warning("upload_not_discarded", file_id=file_id, reason=str(error))
            self.left[file_id] = upload


async def _behind_preamble(chunks: AsyncIterator[bytes], boundary: bytes) -> AsyncIterator[bytes]:
    """The chunks from the first boundary on: what stands before it is nothing (RFC 2046, 5.1.1), however it is cut."""
    begun = b""
    async for chunk in chunks:
        begun += chunk
        place = (b"\r\n" + begun).find(b"\r\n--" + boundary)
        if place >= 0:
            yield begun[place:]
            break
        if len(begun) > _AROUND_SIZE_BYTES:
            raise invalid("body", "too much stands before the form's first boundary")
    else:
        yield begun
    async for chunk in chunks:
        yield chunk


def _text_data(reading: _Reading, data: bytes | bytearray) -> None:
    reading.text += data
    reading.texts_bytes += len(data)
    if reading.texts_bytes > JSON_BODY_SIZE_BYTES:
        raise ApiError(Code.PAYLOAD_TOO_LARGE, "the form's fields are too large")


async def _flush(reading: _Reading, upload: Upload) -> None:
    waiting, reading.waiting, reading.waiting_bytes = reading.waiting, [], 0
    if waiting:
        await _stored(upload.write(b"".join(waiting)))


async def _stored(doing: Any) -> Any:  # noqa: ANN401 - whatever the store gives
    try:
        return await doing
    except FileStoreError as error:
        _LOG.error("upload_refused", reason=str(error))
        what = (
            "there is no room for the file" if isinstance(error, FileStoreFullError) else "files cannot be stored now"
        )
        raise ApiError(Code.UNAVAILABLE, what, headers={"Retry-After": "60"}) from error
