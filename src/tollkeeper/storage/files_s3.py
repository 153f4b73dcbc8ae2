"""Contents of file PayGates in a store that speaks S3's protocol, through obstore (contract 4.8).

Where it is and by which credentials comes from the environment, under the names that all S3 clients read
(`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, ...). An object is there only when its
last part was taken; parts of an upload that was given up are the bucket's lifecycle rule's to delete.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import S3Store

from tollkeeper.storage.files import CHUNK_SIZE_BYTES, FileMissingError, FileStoreError, Listed, Written

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from obstore import AsyncWritableFile

    from tollkeeper.storage.files import Upload

_PARTS_MAX: Final = 9_000  # S3 takes 10,000
_PART_SIZE_BYTES: Final = 8 * 1024 * 1024
_PART_SIZE_OF_UNKNOWN_BYTES: Final = 32 * 1024 * 1024
_PARTS_AT_ONCE: Final = 1


class S3Files:
    """Objects in a bucket, below a prefix."""

    def __init__(self, bucket: str, prefix: str = "", **options: Any) -> None:  # noqa: ANN401 - obstore's own
        """`options` are S3Store's, over the environment."""
        # http:// is for a store on this machine or network; https:// stays https.
        self._store = S3Store(bucket, prefix=prefix or None, client_options={"allow_http": True}, **options)

    async def begin(self, file_id: str, expected_bytes: int | None) -> Upload:
        """See `FileStore`. Parts are as large as the number of parts that S3 takes asks for."""
        if expected_bytes is None:
            part_size_bytes = _PART_SIZE_OF_UNKNOWN_BYTES
        else:
            part_size_bytes = max(_PART_SIZE_BYTES, -(-expected_bytes // _PARTS_MAX))
        writer = obstore.open_writer_async(
            self._store, file_id, buffer_size=part_size_bytes, max_concurrency=_PARTS_AT_ONCE
        )
        return _S3Upload(file_id, writer)

    async def read(self, file_id: str, start: int, end: int) -> AsyncIterator[bytes]:
        """See `FileStore`."""
        if start == end:
            return
        try:
            found = await obstore.get_async(self._store, file_id, options={"range": (start, end)})
            async for data in found.stream(min_chunk_size=CHUNK_SIZE_BYTES):
                yield bytes(data)
        except (NotFoundError, FileNotFoundError) as error:
            msg = "there is no such object"
            raise FileMissingError(msg) from error
        except (BaseError, OSError) as error:
            raise _failure(error) from error

    async def delete(self, name: str) -> None:
        """See `FileStore`."""
        try:
            await obstore.delete_async(self._store, name)
        except (NotFoundError, FileNotFoundError):
            return
        except (BaseError, OSError) as error:
            raise _failure(error) from error

    async def listed(self) -> AsyncIterator[Listed]:
        """See `FileStore`."""
        try:
            async for page in obstore.list(self._store):
                for found in page:
                    yield Listed(found["path"], int(found["last_modified"].timestamp() * 1000))
        except (BaseError, OSError) as error:
            raise _failure(error) from error

    async def check(self) -> None:
        """See `FileStore`."""
        name = f"check-{secrets.token_hex(8)}"
        try:
            await obstore.put_async(self._store, name, b"")
        except (BaseError, OSError) as error:
            raise _failure(error) from error
        await self.delete(name)


class _S3Upload:
    """Parts leave as they fill; the object appears with `finish`."""

    def __init__(self, file_id: str, writer: AsyncWritableFile) -> None:
        self._file_id = file_id
        self._writer: AsyncWritableFile | None = writer
        self._hash = hashlib.sha256()
        self._size_bytes = 0

    async def write(self, data: bytes) -> None:
        """See `Upload`."""
        assert self._writer is not None  # noqa: S101 - nobody writes after the end
        await asyncio.to_thread(self._hash.update, data)
        try:
            await self._writer.write(data)
        except (BaseError, OSError) as error:
            raise _failure(error) from error
        self._size_bytes += len(data)

    async def finish(self) -> Written:
        """See `Upload`."""
        assert self._writer is not None  # noqa: S101 - as in `write`
        try:
            await self._writer.close()
        except (BaseError, OSError) as error:
            raise _failure(error) from error
        return Written(self._file_id, self._size_bytes, self._hash.hexdigest())

    async def abort(self) -> None:
        """See `Upload`. A writer that is not closed never becomes an object."""
        self._writer = None


def _failure(error: Exception) -> FileStoreError:
    # The library's message may quote requests with their signatures.
    return FileStoreError(f"the S3 store cannot be used ({type(error).__name__})")
