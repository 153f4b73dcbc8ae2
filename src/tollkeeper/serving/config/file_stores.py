"""Stores that the settings name for the files that are sold, and whether they can be used, for `config check`."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tollkeeper.serving import StartError
from tollkeeper.serving.config.findings import Findings
from tollkeeper.settings.model import SettingProblem
from tollkeeper.storage.files.store import FileStoreError, LocalFiles

if TYPE_CHECKING:
    from tollkeeper.core.configuration import Bucket
    from tollkeeper.settings.model import FileSettings
    from tollkeeper.storage.files.store import FileStore

_NAME: Final = "files"
_LATER: Final = "until it can, uploads are refused, and purchases of what cannot be read"
_ANSWER_SECONDS: Final = 10.0


def file_store(settings: FileSettings) -> FileStore:
    """The store. Raises: StartError where the environment does not describe the bucket's."""
    place = settings.place
    if isinstance(place, Path):
        return LocalFiles(place, settings.min_free_bytes)
    try:
        return _bucket(place)
    except FileStoreError as error:
        raise StartError(str(_cannot_be_used(place, str(error), ""))) from error


def _bucket(place: Bucket) -> FileStore:
    from tollkeeper.storage.files.s3 import S3Files  # noqa: PLC0415 - its library costs every start that does not use it

    return S3Files(place.name, place.prefix)


def judge_file_store(settings: FileSettings, *, asks: bool = True) -> Findings:
    """Return why it cannot be used, where it cannot. With a warning a start goes on without it.

    A directory is only looked at; a bucket, where it `asks`, is written a small object, which is deleted. Waits for it
    for 10 s.
    """
    found, place = Findings(), settings.place
    if isinstance(place, Path):
        found.warnings += _judge_directories(place, settings.min_free_bytes)
        return found
    try:
        store = _bucket(place)
    except FileStoreError as error:
        found.errors.append(_cannot_be_used(place, str(error), ""))
        return found
    try:
        if asks:
            asyncio.run(_probe(store))
    except TimeoutError:
        found.warnings.append(_cannot_be_used(place, f"it did not answer within {_ANSWER_SECONDS:.0f} s"))
    except FileStoreError as error:
        found.warnings.append(_cannot_be_used(place, str(error)))
    return found


async def _probe(store: FileStore) -> None:
    async with asyncio.timeout(_ANSWER_SECONDS):
        await store.check()


def _judge_directories(place: Path, min_free_bytes: int) -> list[SettingProblem]:
    for directory in LocalFiles(place, min_free_bytes).directories:
        if problem := unusable(directory):
            return [_cannot_be_used(place, problem)]
        there = _nearest(directory)
        if (free := shutil.disk_usage(there).free) < min_free_bytes:
            return [_cannot_be_used(place, f"{free >> 20} MB are free, less than files_min_free_mb")]
    return []


def unusable(directory: Path) -> str:
    """Return why nothing can be kept there, be it that it cannot be made; empty where it can."""
    there = _nearest(directory)
    if not os.path.isdir(there):  # noqa: PTH112
        return f"{there} is no directory"
    if not os.access(there, os.R_OK | os.W_OK | os.X_OK):
        return f"this user may not read and write in {there}"
    return ""


def _nearest(directory: Path) -> Path:
    """It, or what there is above it."""
    # `os.path` takes what this user may not look at for absent, and then what is above it may not be written to.
    return next(path for path in (directory, *directory.absolute().parents) if os.path.lexists(path))


def _cannot_be_used(place: Path | Bucket, problem: str, later: str = _LATER) -> SettingProblem:
    return SettingProblem(_NAME, f"{shown_place(place)} cannot be used: {problem}", later)


def shown_place(place: Path | Bucket) -> str:
    """Return the place as the setting spells it."""
    return str(place) if isinstance(place, Path) else f"s3://{place.name}/{place.prefix}"
