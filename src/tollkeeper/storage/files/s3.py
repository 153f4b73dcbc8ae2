"""Contents of file PayGates in a store that speaks S3's protocol, through obstore (contract 4.8).

Where it is and by which credentials comes from the environment, under the names that all S3 clients read
(`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, ...). A content is a row of objects,
`<id>/00000000` and so on, each of PART_SIZE_BYTES but the last, each put in one request that leaves a whole object or
none. There is no multipart upload: what a crash leaves of one is shown by no listing that all such stores have.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from tollkeeper.storage.files.store import (
    CHUNK_SIZE_BYTES,
    OF_ANOTHER_SIZE,
    OWNER_NAME,
    FileMissingError,
    FileStoreError,
    StoredObject,
    WrittenObject,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from tollkeeper.storage.files.store import Upload

# What lies in buckets was cut by it, so it can never change. Two parts are in memory while a file passes: larger ones
# would take a process over 100 MB, smaller ones make a bucket's listing longer.
PART_SIZE_BYTES: Final = 1536 * 1024
_PART: Final = re.compile(r"((?:check-)?[0-9a-f]{32})/[0-9]{8,}")
_DELETED_AT_ONCE: Final = 1000
# A store that says nothing is given up after the first of these, once: its library's own bound is three minutes.
_ANSWER_SECONDS: Final = 30
_RETRIED_SECONDS: Final = 20
_PROBE: Final = b"x"
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")  # in what a store answers to a request that it refuses
_NO_BUCKET: Final = "NoSuchBucket"
_CUT_OTHERWISE: Final = "the object is not a part as this program cuts them"


class S3Files:
    """Objects in a bucket, below a prefix. Objects that are named otherwise than ours are left alone."""

    def __init__(self, bucket: str, prefix: str = "", **options: Any) -> None:  # noqa: ANN401 - obstore's own
        """`options` are S3Store's, over the environment. Raises: FileStoreError where these describe no store."""
        try:
            self._store = S3Store(
                bucket,
                prefix=prefix or None,
                # http:// is for a store on this machine or network; https:// stays https.
                client_options={"allow_http": True, "timeout": timedelta(seconds=_ANSWER_SECONDS)},
                retry_config={"retry_timeout": timedelta(seconds=_RETRIED_SECONDS)},
                **options,
            )
        except BaseError as error:  # nothing is signed yet that its first line could quote
            raise FileStoreError(str(error).partition("\n")[0]) from error

    async def begin(self, file_id: str, expected_bytes: int | None) -> Upload:  # noqa: ARG002 - no store says what is free
        """Begin an object."""
        return _S3Upload(self, file_id)

    async def require(self, file_id: str, size_bytes: int) -> None:
        """Check that the object's first part and its last are there, and of the right size."""
        last, rest_bytes = divmod(max(size_bytes, 1) - 1, PART_SIZE_BYTES)
        expected = {0: PART_SIZE_BYTES} | {last: min(rest_bytes + 1, size_bytes)}
        for number, part_bytes in expected.items():
            with _asking("read"):
                found = await obstore.head_async(self._store, _part_name(file_id, number))
            if found["size"] != part_bytes:
                raise FileStoreError(OF_ANOTHER_SIZE)

    async def read(self, file_id: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Yield the bytes. A reader slower than the store lets one request last is read to by several requests."""
        place = start
        while place < end:
            number, skipped = divmod(place, PART_SIZE_BYTES)
            asked, before = min(PART_SIZE_BYTES - skipped, end - place), place
            try:
                async for data in self._read_part(_part_name(file_id, number), skipped, asked):
                    place += len(data)
                    yield data
            except FileStoreError:
                if place == before:
                    raise

    async def _read_part(self, name: str, start: int, size_bytes: int) -> AsyncIterator[bytes]:
        read_bytes = 0
        with _asking("read"):
            found = await obstore.get_async(self._store, name, options={"range": (start, start + size_bytes)})
            if found.meta["size"] > PART_SIZE_BYTES:
                raise FileStoreError(_CUT_OTHERWISE)
            async for data in found.stream(min_chunk_size=CHUNK_SIZE_BYTES):
                read_bytes += len(data)
                yield bytes(data)
        if read_bytes != size_bytes:
            raise FileStoreError(OF_ANOTHER_SIZE)

    async def put(self, file_id: str, number: int, data: Sequence[bytes]) -> None:
        """Write one part out of its pieces, or nothing. Raises: FileStoreError."""
        with _asking("written"):
            await obstore.put_async(self._store, _part_name(file_id, number), data, use_multipart=False)

    async def parts(self, file_id: str) -> dict[str, int]:
        """Its parts by their names, with their sizes. Raises: FileStoreError."""
        found = {}
        with _asking("listed"):
            async for page in obstore.list(self._store, f"{file_id}/"):
                found.update({part["path"]: part["size"] for part in page})
        return found

    async def delete(self, file_id: str) -> None:
        """Delete the object's parts."""
        await self.delete_parts(list(await self.parts(file_id)))

    async def delete_parts(self, names: Sequence[str]) -> None:
        """Delete these, or what of them is there. Raises: FileStoreError."""
        with suppress(FileMissingError), _asking("deleted"):
            for place in range(0, len(names), _DELETED_AT_ONCE):
                await obstore.delete_async(self._store, names[place : place + _DELETED_AT_ONCE])

    async def listed(self) -> AsyncIterator[StoredObject]:
        """Yield everything in the store.

        An object is as young as its youngest part: other parts of a slow upload may be old.
        """
        changed: dict[str, int] = {}
        with _asking("listed"):
            async for page in obstore.list(self._store):
                for found in page:
                    if part := _PART.fullmatch(found["path"]):
                        changed_ms = int(found["last_modified"].timestamp() * 1000)
                        changed[part[1]] = max(changed_ms, changed.get(part[1], 0))
        for file_id, changed_ms in changed.items():
            yield StoredObject(file_id, changed_ms)

    async def check(self) -> None:
        """Check that the bucket can be used.

        Each right that it may withhold is used once: to write, list, read and delete.
        """
        probe = await self.begin(f"check-{secrets.token_hex(16)}", None)
        try:
            await probe.write(_PROBE)
            written = await probe.finish()
            await self.require(written.file_id, written.size_bytes)
            async for _ in self.read(written.file_id, 0, written.size_bytes):
                pass
        except FileStoreError:
            with suppress(FileStoreError):
                await probe.abort()
            raise
        await probe.abort()

    async def owner(self, database: str) -> str:
        """Return the database that owns the objects: the first that asked."""
        with suppress(FileMissingError), _asking("read"):
            found = await obstore.get_async(self._store, OWNER_NAME)
            return bytes(await found.bytes_async()).decode("utf-8", "replace")
        with _asking("written"):
            await obstore.put_async(self._store, OWNER_NAME, database.encode(), use_multipart=False)
        return database


class _S3Upload:
    """Parts leave as they fill: one is on its way while the next one fills. Nothing is copied into one piece."""

    def __init__(self, store: S3Files, file_id: str) -> None:
        self._store = store
        self._file_id = file_id
        self._hash = hashlib.sha256()
        self._filling: list[bytes] = []
        self._filling_bytes = 0
        self._sent: dict[str, int] = {}
        self._leaving: asyncio.Task[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write the next bytes."""
        await asyncio.to_thread(self._hash.update, data)
        while self._filling_bytes + len(data) >= PART_SIZE_BYTES:
            missing = PART_SIZE_BYTES - self._filling_bytes
            self._fill(data[:missing])
            data = data[missing:]
            await self._send()
        self._fill(data)

    def _fill(self, data: bytes) -> None:
        if data:
            self._filling.append(data)
            self._filling_bytes += len(data)

    async def _send(self) -> None:
        await self._left()
        number, part = len(self._sent), self._filling
        self._sent[_part_name(self._file_id, number)] = self._filling_bytes
        self._filling, self._filling_bytes = [], 0
        self._leaving = asyncio.create_task(self._store.put(self._file_id, number, part))

    async def _left(self) -> None:
        """Return when the part on its way was taken; nobody who gives up ends it, or it might arrive after all."""
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    async def finish(self) -> WrittenObject:
        """Finish the object. Checks that all parts are there: another process may delete some of a very slow upload."""
        if self._filling or not self._sent:
            await self._send()
        await self._left()
        if await self._store.parts(self._file_id) != self._sent:
            raise FileStoreError("parts of the upload are gone")
        return WrittenObject(self._file_id, sum(self._sent.values()), self._hash.hexdigest())

    async def abort(self) -> None:
        """Give the upload up, and delete the parts that were sent."""
        self._filling.clear()
        with suppress(FileStoreError):
            await self._left()
        await self._store.delete_parts(list(self._sent))


def _part_name(file_id: str, number: int) -> str:
    return f"{file_id}/{number:08d}"


@contextmanager
def _asking(done: str) -> Iterator[None]:
    """Raises FileStoreError for whatever the library raises where objects are `done`: a panic of it, too.

    Without its message, which quotes what the store says, at times a request's signature. A bucket that is not there
    is no word on an object.
    """
    try:
        yield
    except FileStoreError:
        raise
    except Exception as error:  # noqa: BLE001 - no module names the class of a panic
        why = _why(error)
        if isinstance(error, (NotFoundError, FileNotFoundError)) and why != _NO_BUCKET:
            raise FileMissingError("there is no such object") from None
        raise FileStoreError(f"objects in the bucket cannot be {done} ({why})") from None


def _why(error: Exception) -> str:
    """The store's own code for it, which quotes nothing; else what the library calls it."""
    said = str(error)
    if (code := _CODE.search(said)) is not None:
        return code[1]
    return "the store cannot be reached" if "kind: Connect" in said else type(error).__name__
