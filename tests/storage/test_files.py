"""Both stores of files keep whole objects only, whatever cuts an upload (contract 4.8; security A-45)."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import resource
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from tests.ports import free_port
from tests.storage.s3_server import gated, s3_server
from tollkeeper.storage.engine.private_files import make_private_directory
from tollkeeper.storage.files import s3 as files_s3
from tollkeeper.storage.files.s3 import PART_SIZE_BYTES, S3Files
from tollkeeper.storage.files.store import FileMissingError, FileStore, FileStoreError, FileStoreFullError, LocalFiles

MIB = 1024 * 1024


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    with s3_server("files") as url:
        yield url


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path, s3_url: str) -> FileStore:
    if request.param == "local":
        return LocalFiles(tmp_path / "files", min_free_bytes=0)
    return s3_store(s3_url, prefix=os.urandom(4).hex())


def access_to(url: str) -> dict[str, Any]:
    return {"endpoint": url, "access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}


def s3_store(url: str, prefix: str = "", bucket: str = "files") -> S3Files:
    return S3Files(bucket, prefix, **access_to(url))


def new_id() -> str:
    return os.urandom(16).hex()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077, 0o777])
async def test_what_is_sold_is_its_owner_s_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        store = LocalFiles(tmp_path / "files", min_free_bytes=0)
        await written(store, b"content", new_id())
        unfinished = await store.begin(new_id(), None)
        make_private_directory(tmp_path / "made" / "data")
    finally:
        os.umask(before)
    folders = [tmp_path / "files", *store.directories, tmp_path / "made" / "data"]
    files = [file for folder in store.directories for file in folder.iterdir()]
    assert len(files) == 2
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await unfinished.abort()


async def written(store: FileStore, content: bytes, file_id: str) -> None:
    upload = await store.begin(file_id, len(content))
    for start in range(0, len(content), MIB):
        await upload.write(content[start : start + MIB])
    whole = await upload.finish()
    assert (whole.file_id, whole.size_bytes) == (file_id, len(content))
    assert whole.sha256 == hashlib.sha256(content).hexdigest()


async def joined(parts: AsyncIterator[bytes]) -> bytes:
    return b"".join([part async for part in parts])


async def names(store: FileStore) -> list[str]:
    return sorted([found.file_id async for found in store.listed()])


async def test_a_store_belongs_to_the_database_that_asked_first(store: FileStore) -> None:
    assert [await store.owner(name) for name in ("one", "two", "one")] == ["one"] * 3
    assert await names(store) == []


@pytest.mark.parametrize("size_bytes", [0, 1, MIB, 17 * MIB + 5])
async def test_what_was_written_is_read_whole_and_in_any_part(store: FileStore, size_bytes: int) -> None:
    content, file_id = os.urandom(size_bytes), new_id()
    await written(store, content, file_id)
    assert await joined(store.read(file_id, 0, size_bytes)) == content
    for start, end in (
        (0, 1),
        (size_bytes // 2, size_bytes),
        (size_bytes // 3, size_bytes // 2),
        (size_bytes, size_bytes),
    ):
        assert await joined(store.read(file_id, start, min(end, size_bytes))) == content[start:end]
    assert await names(store) == [file_id]


async def test_an_upload_that_is_given_up_never_becomes_an_object(store: FileStore) -> None:
    file_id = new_id()
    upload = await store.begin(file_id, 20 * MIB)
    for _ in range(20):
        await upload.write(os.urandom(MIB))
    await upload.abort()
    with pytest.raises(FileMissingError):
        await joined(store.read(file_id, 0, 1))
    assert await names(store) == []


async def test_an_upload_that_is_just_forgotten_is_no_object_and_can_be_swept(store: FileStore) -> None:
    file_id = new_id()
    upload = await store.begin(file_id, None)
    await upload.write(b"half")
    with pytest.raises(FileMissingError):
        await joined(store.read(file_id, 0, 1))
    for name in await names(store):
        await store.delete(name)
    assert await names(store) == []
    await upload.abort()


async def test_deleting_twice_is_deleting_once(store: FileStore) -> None:
    file_id = new_id()
    await written(store, b"content", file_id)
    await store.delete(file_id)
    await store.delete(file_id)
    with pytest.raises(FileMissingError):
        await joined(store.read(file_id, 0, 1))


async def test_a_store_that_works_passes_its_check_and_keeps_nothing_of_it(store: FileStore) -> None:
    await store.check()
    assert await names(store) == []


@pytest.mark.parametrize("size_bytes", [0, 1, 70_000, PART_SIZE_BYTES, 2 * PART_SIZE_BYTES + 1])
async def test_a_look_tells_whether_an_object_is_there_and_whole(store: FileStore, size_bytes: int) -> None:
    file_id = new_id()
    with pytest.raises(FileMissingError):
        await store.require(file_id, size_bytes)
    await written(store, bytes(size_bytes), file_id)
    await store.require(file_id, size_bytes)
    with pytest.raises(FileStoreError):
        await store.require(file_id, size_bytes + 1)
    await store.delete(file_id)
    with pytest.raises(FileMissingError):
        await store.require(file_id, size_bytes)


async def test_a_reader_slower_than_one_request_may_last_is_read_to_by_several(
    s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix, file_id, content = os.urandom(4).hex(), new_id(), os.urandom(PART_SIZE_BYTES + 9)
    await written(s3_store(s3_url, prefix), content, file_id)
    for name in ("_ANSWER_SECONDS", "_RETRIED_SECONDS"):
        monkeypatch.setattr(files_s3, name, 4)  # in which a busy machine begins to answer, too
    read, pauses = b"", 3
    async for data in s3_store(s3_url, prefix).read(file_id, 0, len(content)):
        read += data
        if pauses:
            pauses -= 1
            await asyncio.sleep(4.4)
    assert (read == content, pauses) == (True, 0)


async def test_a_store_that_says_nothing_is_given_up(s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with gated(s3_url) as (url, gate):
        patient, file_id = s3_store(url, prefix := os.urandom(4).hex()), new_id()
        monkeypatch.setattr(files_s3, "_ANSWER_SECONDS", 1)
        monkeypatch.setattr(files_s3, "_RETRIED_SECONDS", 1)
        store = s3_store(url, prefix)
        await written(patient, b"x", file_id)
        gate.is_shut = True
        async with asyncio.timeout(60):
            with pytest.raises(FileStoreError):
                await store.require(file_id, 1)
            with pytest.raises(FileStoreError):
                await joined(store.read(file_id, 0, 1))
            with pytest.raises(FileStoreError):
                await store.check()
        gate.is_shut = False
        assert await joined(patient.read(file_id, 0, 1)) == b"x"


async def test_a_content_in_a_bucket_is_objects_that_were_each_put_whole_and_others_stay(s3_url: str) -> None:
    prefix, file_id = os.urandom(4).hex(), new_id()
    store, bucket = s3_store(s3_url, prefix), S3Store("files", client_options={"allow_http": True}, **access_to(s3_url))
    obstore.put(bucket, f"{prefix}/report.pdf", b"x")
    await written(store, bytes(2 * PART_SIZE_BYTES + 1), file_id)
    sizes = [PART_SIZE_BYTES, PART_SIZE_BYTES, 1]
    assert await store.parts(file_id) == {f"{file_id}/{number:08}": size for number, size in enumerate(sizes)}
    assert await names(store) == [file_id]
    await store.delete(file_id)
    assert await store.parts(file_id) == {}
    assert [found["path"] for found in obstore.list(bucket, prefix).collect()] == [f"{prefix}/report.pdf"]


async def test_a_content_in_a_bucket_that_lost_a_part_is_an_error_never_a_short_read(s3_url: str) -> None:
    store, file_id = s3_store(s3_url, os.urandom(4).hex()), new_id()
    await written(store, bytes(PART_SIZE_BYTES + 9), file_id)
    await store.put(file_id, 1, [bytes(4)])
    with pytest.raises(FileStoreError):
        await joined(store.read(file_id, 0, PART_SIZE_BYTES + 9))


async def test_parts_that_were_cut_otherwise_are_refused_and_never_joined(s3_url: str) -> None:
    """They would give other bytes than were bought, and enough of them."""
    store, file_id = s3_store(s3_url, os.urandom(4).hex()), new_id()
    for number in range(2):
        await store.put(file_id, number, [bytes([number]) * (PART_SIZE_BYTES + 1)])
    with pytest.raises(FileStoreError, match="cuts them"):
        await joined(store.read(file_id, 0, 2 * PART_SIZE_BYTES))


async def test_an_upload_whose_parts_were_deleted_meanwhile_is_refused(s3_url: str) -> None:
    store, file_id = s3_store(s3_url, os.urandom(4).hex()), new_id()
    upload = await store.begin(file_id, None)
    for _ in range(17):
        await upload.write(bytes(MIB))
    await store.delete(file_id)
    with pytest.raises(FileStoreError, match="gone"):
        await upload.finish()
    await upload.abort()
    assert await names(store) == []


async def test_too_little_free_space_refuses_an_upload_before_it_begins(tmp_path: Path) -> None:
    full = LocalFiles(tmp_path / "files", min_free_bytes=2**60)
    with pytest.raises(FileStoreFullError):
        await full.begin(new_id(), None)
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    nearly = LocalFiles(tmp_path / "files", min_free_bytes=free // 2)
    with pytest.raises(FileStoreFullError):
        await nearly.begin(new_id(), free)
    assert await names(nearly) == []


async def test_an_upload_of_unknown_size_is_refused_where_it_would_leave_too_little_free(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    room = min(256 * MIB, free // 2)  # others write to this disk meanwhile
    store = LocalFiles(tmp_path / "files", min_free_bytes=free - room)
    upload = await store.begin(new_id(), None)
    await upload.write(bytes(MIB))
    with pytest.raises(FileStoreFullError):
        await upload.write(bytes(2 * room))
    (part,) = (tmp_path / "files/incoming").iterdir()
    assert part.stat().st_size == MIB  # not a byte beyond
    await upload.abort()
    assert await names(store) == []


@contextmanager
def no_file_larger_than(size_bytes: int) -> Iterator[None]:
    """The kernel refuses to write beyond that, as it does on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_write_that_the_disk_refuses_is_full_and_leaves_nothing(tmp_path: Path) -> None:
    store = LocalFiles(tmp_path / "files", min_free_bytes=0)
    upload = await store.begin(new_id(), None)
    await upload.write(bytes(MIB))
    with no_file_larger_than(MIB + 10), pytest.raises(FileStoreFullError):
        await upload.write(bytes(MIB))
    await upload.abort()
    assert await names(store) == []


async def test_a_directory_that_cannot_be_used_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("not a directory")
    with pytest.raises(FileStoreError):
        await LocalFiles(tmp_path / "files", min_free_bytes=0).begin(new_id(), None)


async def test_an_object_that_lost_its_end_is_an_error_never_a_short_read(tmp_path: Path) -> None:
    store, file_id = LocalFiles(tmp_path, min_free_bytes=0), new_id()
    await written(store, b"0123456789", file_id)
    os.truncate(tmp_path / "objects" / file_id, 4)
    with pytest.raises(FileStoreError, match="size"):
        await joined(store.read(file_id, 0, 10))


async def test_a_store_that_cannot_be_reached_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_s3, "_RETRIED_SECONDS", 1)
    nowhere = s3_store(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(FileStoreError, match=r"^objects .* written \(the store cannot be reached\)$"):
        await nowhere.check()


async def test_an_s3_store_that_is_not_there_or_refuses_is_an_error_of_the_store(s3_url: str) -> None:
    absent = s3_store(s3_url, bucket="absent")
    with pytest.raises(FileStoreError) as caught:
        await absent.check()
    assert re.search("test|Signature", str(caught.value)) is None
    upload = await absent.begin(new_id(), 1)
    with pytest.raises(FileStoreError):  # noqa: PT012 - which of the two meets it is the store's
        await upload.write(b"x")
        await upload.finish()
