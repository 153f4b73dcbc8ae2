"""Copies of contents from one store to another, as an installation moves from a disk to a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tollkeeper.storage.files.store import FileMissingError, FileStoreError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tollkeeper.core.paygates.downloads import StoredFile
    from tollkeeper.storage.files.store import FileStore


async def copy_contents(files: Sequence[StoredFile], source: FileStore, to: FileStore) -> list[StoredFile]:
    """Copy what `to` lacks, each compared by its digest; return what `source` has not. Raises: FileStoreError.

    Where it was cut off it goes on: a content is there whole or not at all.
    """
    missing = []
    for file in files:
        try:
            await to.require(file.id, file.size_bytes)
        except FileStoreError:  # missing, or cut off
            try:
                await _copy(file, source, to)
            except FileMissingError:
                missing.append(file)
    return missing


async def _copy(file: StoredFile, source: FileStore, to: FileStore) -> None:
    await source.require(file.id, file.size_bytes)
    await to.delete(file.id)
    upload = await to.begin(file.id, file.size_bytes)
    try:
        async for data in source.read(file.id, 0, file.size_bytes):
            await upload.write(data)
        written = await upload.finish()
    except FileStoreError:
        await upload.abort()
        raise
    if written.sha256 != file.sha256:
        await to.delete(file.id)
        raise FileStoreError(f"{file.id} ({file.name}) is not what was uploaded: put it back from a backup")
