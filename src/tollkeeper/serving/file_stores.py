"""Which store the settings name for the files that are sold, and whether it can be used, for `config check`."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.settings import Finding
from tollkeeper.storage.files import FileStoreError, LocalFiles

if TYPE_CHECKING:
    from tollkeeper.core.configuration import Bucket
    from tollkeeper.settings import FileSettings
    from tollkeeper.storage.files import FileStore

_NAME: Final = "files"
_LATER: Final = "until it can, uploads are refused, and purchases of what cannot be read"
_ANSWER_SECONDS: Final = 10.0


def file_store(settings: FileSettings) -> FileStore:
    """The store."""
    if isinstance(settings.place, Path):
        return LocalFiles(settings.place, settings.min_free_bytes)
    from tollkeeper.storage.files_s3 import S3Files  # noqa: PLC0415 - its library costs every start that does not use it

    return S3Files(settings.place.name, settings.place.prefix)


def judge_file_store(settings: FileSettings) -> list[Finding]:
    """Why it cannot be used, where it cannot: a start goes on without it.

    A directory is only looked at; a bucket is written a small object, which is deleted. Waits for it for 10 s.
    """
    place = settings.place
    if isinstance(place, Path):
        return _judge_directory(place, settings.min_free_bytes)
    try:
        asyncio.run(_probe(settings))
    except TimeoutError:
        return [_cannot_be_used(place, f"it did not answer within {_ANSWER_SECONDS:.0f} s")]
    except FileStoreError as error:
        return [_cannot_be_used(place, str(error))]
    return []


async def _probe(settings: FileSettings) -> None:
    async with asyncio.timeout(_ANSWER_SECONDS):
        await file_store(settings).check()


def _judge_directory(place: Path, min_free_bytes: int) -> list[Finding]:
    there = next(path for path in (place, *place.absolute().parents) if _is_there(path))
    for used in (there, *filter(_is_there, LocalFiles(place, min_free_bytes).directories)):
        if not used.is_dir():
            return [_cannot_be_used(place, f"{used} is no directory")]
        if not os.access(used, os.R_OK | os.W_OK | os.X_OK):
            return [_cannot_be_used(place, f"this user may not read and write in {used}")]
    if (free := shutil.disk_usage(there).free) < min_free_bytes:
        return [_cannot_be_used(place, f"{free >> 20} MB are free, less than files_min_free_mb")]
    return []


def _is_there(path: Path) -> bool:
    """Without the error that `Path.exists` raises below a directory that this user may not enter."""
    return os.access(path, os.F_OK)


def _cannot_be_used(place: Path | Bucket, problem: str) -> Finding:
    named = str(place) if isinstance(place, Path) else f"s3://{place.name}/{place.prefix}"
    return Finding(_NAME, f"{named} cannot be used: {problem}", _LATER)
